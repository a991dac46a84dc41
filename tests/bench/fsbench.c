/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The loops that tests/bench/run times on a mounted filesystem: one loop per call, one
 * line of key=value on stdout. Knows nothing of what it runs on.
 *
 *	fsbench fill FILE MIB			write a file of random bytes, fsync
 *	fsbench pread FILE SECONDS [direct]	4 KiB at random offsets	-> per_second
 *	fsbench stat FILE SECONDS		one path again and again	->
 * per_second
 *	fsbench seqread FILE [direct]		1 MiB at a time to the end	->
 * per_second (bytes)
 *	fsbench seqwrite FILE MIB [direct]	a new file, 1 MiB at a time, fsync ->
 * per_second (bytes); `direct`: O_DIRECT, from memory that begins within a page
 *	fsbench create|statall|unlink DIR N [PREFIX]	N names, one after the other	->
 * per_second
 *	fsbench fsync DIR THREADS N [append]	4 KiB write + fsync, N per thread, a file
 * each
 *						-> median_ns, p99_ns, per_second
 *	fsbench alternate FILE FILE N		the same file by two paths: 4 KiB written by the
 * first, read by the second, which must see it -> median_ns, p99_ns
 *	fsbench crossing FILE N			4 KiB, O_DIRECT, the same again and again ->
 * median_ns
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define BLOCK         4096u
#define STEP          (1u << 20)
#define THREADS_MAX   64u
#define ARRAY_SIZE(a) (sizeof(a) / sizeof((a)[0]))
#define FILE_BLOCKS   1024u /* of the files that are overwritten and synced: 4 MiB */

static _Noreturn void die(const char *what, const char *path)
{
	fprintf(stderr, "fsbench: %s %s: %s\n", what, path, strerror(errno));
	exit(1);
}

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static uint64_t next_random(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state;
}

static void *buffer_of(size_t bytes)
{
	uint64_t state = 88172645463325252ull;
	uint64_t *b = aligned_alloc(BLOCK, bytes);

	if (!b) {
		fputs("fsbench: no memory\n", stderr);
		exit(1);
	}
	for (size_t i = 0; i < bytes / sizeof(*b); i++)
		b[i] = next_random(&state);
	return b;
}

static int open_or_die(const char *path, int flags)
{
	int fd = open(path, flags, 0644);

	if (fd < 0)
		die("cannot open", path);
	return fd;
}

static void print_rate(double count, uint64_t began)
{
	printf("per_second=%.1f\n", count * 1e9 / (double)(now_ns() - began));
}

/* ---- data ------------------------------------------------------------------------ */

static void write_file(int fd, const char *path, unsigned mib, void *buf)
{
	for (unsigned i = 0; i < mib; i++) {
		*(uint64_t *)buf = i; /* no two steps alike */
		if (write(fd, buf, STEP) != STEP)
			die("cannot write", path);
	}
	if (fsync(fd) < 0)
		die("cannot fsync", path);
}

static void run_seqwrite(const char *path, unsigned mib, int timed, int flags)
{
	int fd = open_or_die(path, O_WRONLY | O_CREAT | O_TRUNC | flags);
	uint8_t *buf = buffer_of(STEP + BLOCK);
	uint64_t began = now_ns();

	write_file(fd, path, mib, flags ? buf + 512 : buf);
	if (timed)
		print_rate((double)mib * STEP, began);
	close(fd);
}

static void run_seqread(const char *path, int flags)
{
	int fd = open_or_die(path, O_RDONLY | flags);
	void *buf = buffer_of(STEP);
	uint64_t began = now_ns(), bytes = 0;
	ssize_t n;

	while ((n = read(fd, buf, STEP)) > 0)
		bytes += (uint64_t)n;
	if (n < 0)
		die("cannot read", path);
	print_rate((double)bytes, began);
	close(fd);
}

static void run_pread(const char *path, double seconds, int flags)
{
	int fd = open_or_die(path, O_RDONLY | flags);
	void *buf = buffer_of(BLOCK);
	uint64_t state = 42, count = 0, began, end;
	struct stat st;

	if (fstat(fd, &st) < 0 || st.st_size < BLOCK)
		die("cannot use", path);
	began = now_ns();
	end = began + (uint64_t)(seconds * 1e9);
	do {
		for (unsigned i = 0; i < 64; i++) {
			uint64_t block =
				next_random(&state) % ((uint64_t)st.st_size / BLOCK);

			if (pread(fd, buf, BLOCK, (off_t)(block * BLOCK)) != BLOCK)
				die("cannot read", path);
		}
		count += 64;
	} while (now_ns() < end);
	print_rate((double)count, began);
	close(fd);
}

/* ---- names ----------------------------------------------------------------------- */

static void run_stat(const char *path, double seconds)
{
	uint64_t count = 0, began = now_ns(), end = began + (uint64_t)(seconds * 1e9);
	struct stat st;

	do {
		for (unsigned i = 0; i < 64; i++)
			if (stat(path, &st) < 0)
				die("cannot stat", path);
		count += 64;
	} while (now_ns() < end);
	print_rate((double)count, began);
}

static void create_one(const char *name)
{
	int fd = open(name, O_WRONLY | O_CREAT | O_EXCL, 0644);

	if (fd < 0)
		die("cannot create", name);
	close(fd);
}

static void stat_one(const char *name)
{
	struct stat st;

	if (stat(name, &st) < 0)
		die("cannot stat", name);
}

static void unlink_one(const char *name)
{
	if (unlink(name) < 0)
		die("cannot unlink", name);
}

static void run_names(const char *dir, unsigned count, const char *prefix,
	void (*one)(const char *name))
{
	char name[64];
	uint64_t began;

	if (chdir(dir) < 0)
		die("cannot enter", dir);
	began = now_ns();
	for (unsigned i = 0; i < count; i++) {
		snprintf(name, sizeof(name), "%sfile-%06u", prefix, i);
		one(name);
	}
	print_rate(count, began);
}

/* ---- write + fsync --------------------------------------------------------------- */

struct syncer {
	pthread_t thread;
	pthread_barrier_t *start;
	int fd;
	unsigned count, number;
	int append;
	uint64_t *took_ns;
};

static void *syncer_main(void *arg)
{
	struct syncer *s = arg;
	void *buf = buffer_of(BLOCK);
	uint64_t state = s->number * 7919u + 1;

	pthread_barrier_wait(s->start);
	for (unsigned i = 0; i < s->count; i++) {
		uint64_t block = s->append ? i : next_random(&state) % FILE_BLOCKS;
		uint64_t began = now_ns();

		*(uint64_t *)buf = i;
		if (pwrite(s->fd, buf, BLOCK, (off_t)(block * BLOCK)) != BLOCK ||
			fsync(s->fd) < 0)
			die("cannot write and fsync", "a file");
		s->took_ns[i] = now_ns() - began;
	}
	free(buf);
	return NULL;
}

static int by_value(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

static void run_fsync(const char *dir, unsigned threads, unsigned count, int append)
{
	static struct syncer syncers[THREADS_MAX];
	uint64_t *took = buffer_of(((size_t)threads * count * 8 / BLOCK + 1) * BLOCK);
	void *buf = buffer_of(STEP);
	pthread_barrier_t start;
	char path[4096];
	uint64_t began;

	pthread_barrier_init(&start, NULL, threads + 1);
	for (unsigned i = 0; i < threads; i++) {
		snprintf(path, sizeof(path), "%s/sync-%u", dir, i);
		syncers[i] = (struct syncer){.start = &start,
			.number = i,
			.count = count,
			.append = append,
			.took_ns = took + (size_t)i * count};
		syncers[i].fd =
			open_or_die(path, O_RDWR | O_CREAT | (append ? O_TRUNC : 0));
		if (!append && lseek(syncers[i].fd, 0, SEEK_END) < FILE_BLOCKS * BLOCK) {
			lseek(syncers[i].fd, 0, SEEK_SET);
			write_file(syncers[i].fd, path, FILE_BLOCKS * BLOCK / STEP, buf);
		}
		errno = pthread_create(
			&syncers[i].thread, NULL, syncer_main, &syncers[i]);
		if (errno)
			die("cannot start", "a thread");
	}
	pthread_barrier_wait(&start);
	began = now_ns();
	for (unsigned i = 0; i < threads; i++)
		pthread_join(syncers[i].thread, NULL);
	print_rate((double)threads * count, began);
	qsort(took, (size_t)threads * count, sizeof(*took), by_value);
	printf("median_ns=%llu\np99_ns=%llu\n",
		(unsigned long long)took[(size_t)threads * count / 2],
		(unsigned long long)took[(size_t)threads * count * 99 / 100]);
}

static void print_latency(uint64_t *ns, unsigned count)
{
	qsort(ns, count, sizeof(*ns), by_value);
	printf("median_ns=%llu\np99_ns=%llu\n", (unsigned long long)ns[count / 2],
		(unsigned long long)ns[(uint64_t)count * 99 / 100]);
}

static void run_alternate(const char *there, const char *here, unsigned count)
{
	int writer = open_or_die(there, O_RDWR | O_CREAT),
	    reader = open_or_die(here, O_RDONLY);
	uint64_t *ns = calloc(count, sizeof(*ns)), seen[BLOCK / sizeof(uint64_t)],
		 bytes[BLOCK / sizeof(uint64_t)] = {0};

	if (!ns)
		die("cannot time", here);
	for (unsigned i = 0; i < count; i++) {
		uint64_t began = now_ns();

		bytes[0] = bytes[ARRAY_SIZE(bytes) - 1] = i + 1;
		if (pwrite(writer, bytes, BLOCK, 0) != BLOCK)
			die("cannot write", there);
		if (pread(reader, seen, BLOCK, 0) != BLOCK)
			die("cannot read", here);
		ns[i] = now_ns() - began;
		if (memcmp(seen, bytes, BLOCK) != 0) {
			errno = ESTALE;
			die("what was written is not in", here);
		}
	}
	print_latency(ns, count);
	free(ns);
}

static void run_crossing(const char *path, unsigned count)
{
	int fd = open_or_die(path, O_RDONLY | O_DIRECT);
	uint64_t *ns = calloc(count, sizeof(*ns));
	void *buf = buffer_of(BLOCK);

	if (!ns)
		die("cannot time", path);
	for (unsigned i = 0; i < count; i++) {
		uint64_t began = now_ns();

		if (pread(fd, buf, BLOCK, 0) != BLOCK)
			die("cannot read", path);
		ns[i] = now_ns() - began;
	}
	print_latency(ns, count);
	free(ns);
}

int main(int argc, char **argv)
{
	const char *what = argc > 2 ? argv[1] : "", *path = argc > 2 ? argv[2] : "";
	const char *last = argv[argc - 1];
	int direct = strcmp(last, "direct") == 0 ? O_DIRECT : 0;
	unsigned n = argc > 3 ? (unsigned)strtoul(argv[3], NULL, 10) : 0;
	const char *prefix = argc > 4 ? argv[4] : "";

	if (strcmp(what, "fill") == 0 && n)
		run_seqwrite(path, n, 0, 0);
	else if (strcmp(what, "seqwrite") == 0 && n)
		run_seqwrite(path, n, 1, direct);
	else if (strcmp(what, "seqread") == 0)
		run_seqread(path, direct);
	else if (strcmp(what, "pread") == 0 && argc > 3)
		run_pread(path, atof(argv[3]), direct);
	else if (strcmp(what, "stat") == 0 && argc > 3)
		run_stat(path, atof(argv[3]));
	else if (strcmp(what, "create") == 0 && n)
		run_names(path, n, prefix, create_one);
	else if (strcmp(what, "statall") == 0 && n)
		run_names(path, n, prefix, stat_one);
	else if (strcmp(what, "unlink") == 0 && n)
		run_names(path, n, prefix, unlink_one);
	else if (strcmp(what, "fsync") == 0 && argc > 4 && n && n <= THREADS_MAX &&
		 atoi(argv[4]) > 0)
		run_fsync(path, n, (unsigned)atoi(argv[4]), strcmp(last, "append") == 0);
	else if (strcmp(what, "alternate") == 0 && argc > 4 && atoi(argv[4]) > 0)
		run_alternate(path, argv[3], (unsigned)atoi(argv[4]));
	else if (strcmp(what, "crossing") == 0 && n)
		run_crossing(path, n);
	else {
		fputs("fsbench: see the comment at the head of tests/bench/fsbench.c\n",
			stderr);
		return 2;
	}
	return 0;
}
