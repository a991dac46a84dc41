/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shaken HOW SECONDS SEED MOUNT...: a file is changed in all ways under mappings of it. MOUNT are
 * mounts of one volume; on each are
 *
 *   a storer   stores numbers that grow, of its own in each page, through a mapping
 *   a looker   looks at all storers' numbers, through a mapping to read and by read(2)
 *   a changer  punches, zeroes, allocates and writes beside the numbers; with HOW
 *              `cuts`, not `holes`, it also sets the size, to anywhere
 *
 * All do at least a few things each, however long that takes: none may wait for ever. With
 * `holes` a number is 0, or what was stored last. (With cuts a page may be from before one that
 * meets another one: docs/nodes/mappings.md, "Mappings".) In the end all mounts have the same file.
 * Exit code 1: they do not, or a number was behind.
 */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MOUNTS_MAX 8u
#define PAGES      16u
#define PAGE_BYTES 4096u
#define FILE_BYTES (PAGES * PAGE_BYTES)
#define BESIDE     1024u /* numbers are before this in each page, other bytes behind */
#define LATE_MS    50u
#define LATE_MOST  3u /* times in a run */
#define LEAST      20u   /* things that each process does */

static struct shared {
	_Atomic uint64_t begun[MOUNTS_MAX][PAGES], done[MOUNTS_MAX][PAGES];
	_Atomic uint64_t did[3 * MOUNTS_MAX];
	_Atomic uint64_t late;
	_Atomic bool over, stop;
} * shared;

static const char *mount[MOUNTS_MAX];
static unsigned mounts;
static uint64_t random_state;
static bool cuts;
static sigjmp_buf behind_end;

static unsigned pick(unsigned n)
{
	random_state = random_state * 6364136223846793005u + 1442695040888963407u;
	return (unsigned)(random_state >> 33) % n;
}

static void fail(const char *what)
{
	fprintf(stderr, "shaken: %s: %s\n", what, strerror(errno));
	atomic_store(&shared->stop, true);
	exit(2);
}

static int open_file(unsigned m, int flags)
{
	char path[512];
	int fd;

	snprintf(path, sizeof(path), "%s/shaken", mount[m]);
	fd = open(path, flags, 0644);
	if (fd < 0)
		fail(path);
	return fd;
}

static char *map_file(int fd, int how)
{
	char *map = mmap(NULL, FILE_BYTES, how, MAP_SHARED, fd, 0);

	if (map == MAP_FAILED)
		fail("mmap");
	return map;
}

static void pause_us(unsigned us)
{
	struct timespec t = {.tv_nsec = (long)pick(us + 1) * 1000};

	nanosleep(&t, NULL);
}

/* One thing is done. False: enough. */
static bool goes_on(unsigned me)
{
	uint64_t did = atomic_fetch_add(&shared->did[me], 1) + 1;

	return !atomic_load(&shared->stop) &&
	       (did < LEAST || !atomic_load(&shared->over));
}

static void on_bus(int signal)
{
	(void)signal;
	siglongjmp(behind_end, 1);
}

static _Atomic uint64_t *number_at(char *map, unsigned m, unsigned page)
{
	return (_Atomic uint64_t *)(map + page * PAGE_BYTES + m * 64);
}

/*
 * Linux drops what it has of a range when its own punching of it has been answered, with what was
 * stored there after that: so no node stores into pages that it punches itself.
 */
static bool punches(unsigned m, unsigned page)
{
	return page % (mounts + 1) == m;
}

/* ---- who does what ----------------------------------------------------------------------- */

/* False: there is nothing to store to. */
static bool store(_Atomic uint64_t *at, uint64_t number)
{
	if (sigsetjmp(behind_end, 1))
		return false;
	atomic_store(at, number);
	return true;
}

static bool load(_Atomic uint64_t *at, uint64_t *number)
{
	if (sigsetjmp(behind_end, 1))
		return false;
	*number = atomic_load(at);
	return true;
}

static void store_numbers(unsigned m)
{
	int fd = open_file(m, O_RDWR);
	char *map = map_file(fd, PROT_READ | PROT_WRITE);

	do {
		unsigned page = pick(PAGES);
		uint64_t number = atomic_load(&shared->done[m][page]) + 1;

		if (!cuts && punches(m, page))
			continue;
		atomic_store(&shared->begun[m][page], number);
		if (store(number_at(map, m, page), number))
			atomic_store(&shared->done[m][page], number);
		if (!pick(300) && msync(map, FILE_BYTES, MS_SYNC))
			fail("msync");
		if (!pick(8))
			pause_us(300);
	} while (goes_on(3 * m));
}

/*
 * Of a page that a process of this mount drops itself, past the daemon, a processor may be told late
 * (docs/limits.md, "Known faults"): a moment later it is told.
 */
static bool late(_Atomic uint64_t *at, uint64_t from)
{
	uint64_t number = 0;

	for (unsigned i = 0; i < LATE_MS; i++) {
		pause_us(2000);
		if (!load(at, &number) || !number || number >= from) {
			fprintf(stderr, "shaken: late by %u looks\n", i + 1);
			return atomic_fetch_add(&shared->late, 1) < LATE_MOST;
		}
	}
	return false;
}

static void look(unsigned m)
{
	int fd = open_file(m, O_RDONLY);
	char *map = map_file(fd, PROT_READ);

	do {
		unsigned page = pick(PAGES), whose = pick(mounts);
		uint64_t from = atomic_load(&shared->done[whose][page]), to, number = 0;

		bool mapped = pick(4) != 0;

		if (mapped)
			(void)load(number_at(map, whose, page), &number);
		else if (pread(fd, &number, sizeof(number),
				 (off_t)page * PAGE_BYTES + (off_t)whose * 64) < 0)
			fail("pread");
		to = atomic_load(&shared->begun[whose][page]);
		if (!cuts && number && (number < from || number > to) &&
			!(mapped && late(number_at(map, whose, page), from))) {
			fprintf(stderr,
				"shaken: mount %u: page %u, %s: number %u is %llu, "
				"not %llu to %llu\n",
				m + 1, page, mapped ? "mapped" : "read", whose + 1,
				(unsigned long long)number, (unsigned long long)from,
				(unsigned long long)to);
			atomic_store(&shared->stop, true);
			exit(1);
		}
		if (!pick(4))
			pause_us(200);
	} while (goes_on(3 * m + 1));
}

static bool set_size(int fd)
{
	if (ftruncate(fd, (off_t)pick(FILE_BYTES)))
		return false;
	pause_us(500);
	return ftruncate(fd, FILE_BYTES) == 0;
}

static bool write_beside(int fd)
{
	static const char bytes[PAGE_BYTES];
	unsigned from = BESIDE + pick(PAGE_BYTES - BESIDE);
	size_t len = 1 + pick(PAGE_BYTES - from);

	return pwrite(fd, bytes, len, (off_t)pick(PAGES) * PAGE_BYTES + (off_t)from) ==
	       (ssize_t)len;
}

static bool punch(unsigned m, int fd)
{
	int way = pick(2) ? FALLOC_FL_PUNCH_HOLE : FALLOC_FL_ZERO_RANGE;
	unsigned first = pick(PAGES), count = cuts ? 1 + pick(PAGES - first) : 1;

	while (!cuts && !punches(m, first))
		first = pick(PAGES);
	return fallocate(fd, way | FALLOC_FL_KEEP_SIZE, (off_t)first * PAGE_BYTES,
		       (off_t)count * PAGE_BYTES) == 0;
}

static bool change(unsigned m, int fd)
{
	switch (pick(8)) {
	case 0:
	case 1:
		return cuts ? set_size(fd) : write_beside(fd);
	case 2:
	case 3:
		return write_beside(fd);
	case 4: /* to grow it, if it was cut */
		return fallocate(fd, 0, 0, FILE_BYTES) == 0;
	case 5:
		return fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, FILE_BYTES / 2) == 0;
	default:
		return punch(m, fd);
	}
}

static void change_all(unsigned m)
{
	int fd = open_file(m, O_RDWR);

	do {
		if (!change(m, fd))
			fail("a change");
		pause_us(pick(8) ? 500 : 20000);
	} while (goes_on(3 * m + 2));
}

/* ---- the runner -------------------------------------------------------------------------- */

static void start(void (*work)(unsigned m), unsigned m, uint64_t seed)
{
	pid_t pid = fork();

	if (pid < 0)
		fail("fork");
	if (pid)
		return;
	random_state = seed;
	signal(SIGBUS, on_bus);
	work(m);
	exit(0);
}

static int wait_all(void)
{
	int code = 0, status;

	for (unsigned i = 0; i < 3 * mounts; i++) {
		if (wait(&status) < 0)
			fail("wait");
		if (status)
			code = WIFEXITED(status) ? WEXITSTATUS(status) : 3;
	}
	return code;
}

/* What a mount has, by read(2) and through a mapping. */
static bool same(const char *first, size_t bytes, unsigned m)
{
	static char text[FILE_BYTES + 1];
	int fd = open_file(m, O_RDWR);
	struct stat st;
	ssize_t got = pread(fd, text, sizeof(text), 0);
	char *map = map_file(fd, PROT_READ);
	bool is = !fstat(fd, &st) && (size_t)st.st_size == bytes &&
		  got == (ssize_t)bytes && !memcmp(text, first, bytes) &&
		  !memcmp(map, first, bytes);

	if (!is)
		fprintf(stderr, "shaken: mount %u has another file than mount 1\n",
			m + 1);
	munmap(map, FILE_BYTES);
	close(fd);
	return is;
}

static int compare(void)
{
	static char first[FILE_BYTES + 1];
	ssize_t bytes = pread(open_file(0, O_RDONLY), first, sizeof(first), 0);

	if (bytes < 0)
		fail("pread");
	for (unsigned m = 0; m < mounts; m++)
		if (!same(first, (size_t)bytes, m))
			return 1;
	return 0;
}

int main(int argc, char **argv)
{
	struct timespec t = {.tv_nsec = 20000000};
	uint64_t seed, did = 0;
	int code;

	if (argc < 5 || argc > 4 + (int)MOUNTS_MAX ||
		(strcmp(argv[1], "holes") && strcmp(argv[1], "cuts"))) {
		fputs("usage: shaken holes|cuts SECONDS SEED MOUNT...\n", stderr);
		return 2;
	}
	cuts = !strcmp(argv[1], "cuts");
	seed = strtoull(argv[3], NULL, 10);
	for (int i = 4; i < argc; i++)
		mount[mounts++] = argv[i];
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE,
		MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (shared == MAP_FAILED)
		return 2;
	if (ftruncate(open_file(0, O_RDWR | O_CREAT | O_TRUNC), FILE_BYTES))
		fail("ftruncate");
	for (unsigned m = 0; m < mounts; m++) {
		start(store_numbers, m, seed + 3 * m);
		start(look, m, seed + 3 * m + 1);
		start(change_all, m, seed + 3 * m + 2);
	}
	for (double s = atof(argv[2]) * 50; s > 0 && !atomic_load(&shared->stop); s--)
		nanosleep(&t, NULL);
	atomic_store(&shared->over, true);
	code = wait_all();
	for (unsigned i = 0; i < 3 * mounts; i++)
		did += shared->did[i];
	printf("%llu things done, seed %llu\n", (unsigned long long)did,
		(unsigned long long)seed);
	return code ? code : compare();
}
