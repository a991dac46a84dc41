/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shapes HOW SECONDS SEED MOUNT...: a file that is cut, grown, punched and filled on one node
 * after the other, under readers whose kernels keep it, while another file beside it changes, too.
 * MOUNT are mounts of one volume; one process looks on each, HOW:
 *
 *   read     read(2) of a page, through a descriptor that is held
 *   stat     size, by fstat and by stat
 *   mapped   a load through a mapping; SIGBUS says that the page is behind the end
 *
 * All know what the file is after each change, so each look must be explained by one of the
 * changes that were done when it began up to those begun when it ended; while nothing changes,
 * by the last. The first look that is not ends it with exit code 1.
 *
 * Two things that the kernel does alone are let pass. A read, or a load, that meets a change
 * may go by a size that this kernel has had before (docs/nodes/sizes.md, "Sizes"), but finds no
 * other bytes. And a mapping is asked only after an fstat, since without one the kernel does not
 * learn of another size.
 */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
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
#define WORDS      (PAGE_BYTES / sizeof(uint64_t))
#define STATES     4096u /* that are remembered */

/* The words [from, to) of a page are STAMP, the others 0. */
struct page {
	uint64_t stamp;
	uint32_t from, to;
};

struct state {
	uint64_t size; /* a multiple of 8 */
	struct page page[PAGES];
};

static struct shared {
	_Atomic uint64_t begun, done;
	_Atomic bool stop;
	_Atomic uint64_t looks, quiet, again;
	struct state state[STATES];
} * shared;

static const char *mount[MOUNTS_MAX], *how;
static unsigned mounts;
static uint64_t seed, random_state;

static unsigned pick(unsigned n)
{
	random_state = random_state * 6364136223846793005u + 1442695040888963407u;
	return (unsigned)(random_state >> 33) % n;
}

static void fail(const char *what)
{
	fprintf(stderr, "shapes: %s: %s\n", what, strerror(errno));
	atomic_store(&shared->stop, true);
	exit(2);
}

static const char *path(unsigned m)
{
	static char text[512];

	snprintf(text, sizeof(text), "%s/shapes-%s", mount[m], how);
	return text;
}

static int open_file(unsigned m, int flags)
{
	int fd = open(path(m), flags, 0644);

	if (fd < 0)
		fail(path(m));
	return fd;
}

static void pause_us(unsigned us)
{
	struct timespec t = {.tv_nsec = (long)us * 1000};

	nanosleep(&t, NULL);
}

static struct state *state_of(uint64_t n)
{
	return &shared->state[n % STATES];
}

static bool stopped(void)
{
	return atomic_load(&shared->stop);
}

/* ---- changes ------------------------------------------------------------------------------ */

/* What the file is beyond SIZE bytes is gone. */
static void cut_state(struct state *s, uint64_t size)
{
	for (unsigned p = 0; p < PAGES; p++) {
		uint64_t start = (uint64_t)p * PAGE_BYTES;
		uint64_t words = size > start ? (size - start) / sizeof(uint64_t) : 0;

		if (s->page[p].to > words)
			s->page[p].to = (uint32_t)words;
		if (s->page[p].from >= s->page[p].to)
			s->page[p] = (struct page){0};
	}
}

static bool cut_or_grow(struct state *s, int fd)
{
	uint64_t size = (uint64_t)pick(PAGES * WORDS) * sizeof(uint64_t);

	if (!pick(3)) /* where it may have been before */
		size = (size / PAGE_BYTES) * PAGE_BYTES;
	cut_state(s, size);
	s->size = size;
	return ftruncate(fd, (off_t)size) == 0;
}

static bool punch(struct state *s, int fd)
{
	unsigned first = pick(PAGES), count = 1 + pick(PAGES - first);
	int mode = pick(3) ? FALLOC_FL_PUNCH_HOLE : FALLOC_FL_ZERO_RANGE;

	for (unsigned p = first; p < first + count; p++)
		s->page[p] = (struct page){0};
	return fallocate(fd, mode | FALLOC_FL_KEEP_SIZE, (off_t)first * PAGE_BYTES,
		       (off_t)count * PAGE_BYTES) == 0;
}

static bool allocate(struct state *s, int fd)
{
	uint64_t end = (uint64_t)(1 + pick(PAGES)) * PAGE_BYTES;

	if (s->size < end)
		s->size = end;
	return fallocate(fd, 0, 0, (off_t)end) == 0;
}

/* Whole pages. */
static bool fill(struct state *s, int fd, uint64_t n)
{
	static uint64_t words[PAGES * WORDS];
	unsigned first = pick(PAGES), count = 1 + pick(PAGES - first);
	size_t bytes = (size_t)count * PAGE_BYTES;
	uint64_t end = (uint64_t)(first + count) * PAGE_BYTES;

	if (pick(2))
		count = 1, bytes = PAGE_BYTES, end = (uint64_t)(first + 1) * PAGE_BYTES;
	for (unsigned p = first; p < first + count; p++)
		s->page[p] = (struct page){.stamp = n, .to = WORDS};
	if (s->size < end)
		s->size = end;
	for (size_t w = 0; w < count * WORDS; w++)
		words[w] = n;
	return pwrite(fd, words, bytes, (off_t)first * PAGE_BYTES) == (ssize_t)bytes;
}

/* Part of a page that is zeros so far: a hole, often. */
static bool fill_part(struct state *s, int fd, uint64_t n)
{
	static uint64_t words[WORDS];
	unsigned p = pick(PAGES);
	uint32_t from = pick(WORDS), to = from + 1 + pick((unsigned)WORDS - from);
	size_t bytes = (to - from) * sizeof(uint64_t);
	uint64_t at = (uint64_t)p * PAGE_BYTES + from * sizeof(uint64_t);

	if (s->page[p].stamp)
		return fill(s, fd, n);
	s->page[p] = (struct page){.stamp = n, .from = from, .to = to};
	if (s->size < at + bytes)
		s->size = at + bytes;
	for (size_t w = 0; w < to - from; w++)
		words[w] = n;
	return pwrite(fd, words, bytes, (off_t)at) == (ssize_t)bytes;
}

static bool change(struct state *s, int fd, uint64_t n)
{
	switch (pick(10)) {
	case 0:
	case 1:
	case 2:
		return cut_or_grow(s, fd);
	case 3:
	case 4:
		return punch(s, fd);
	case 5:
		return allocate(s, fd);
	case 6:
	case 7:
		return fill(s, fd, n);
	default:
		return fill_part(s, fd, n);
	}
}

static void write_shapes(void)
{
	int fd[MOUNTS_MAX];

	for (unsigned m = 0; m < mounts; m++)
		fd[m] = open_file(m, O_RDWR | O_CREAT);
	for (uint64_t n = 1; !stopped(); n++) {
		struct state s = *state_of(n - 1);
		unsigned m = pick(mounts);
		uint64_t chosen = random_state;

		/* the readers know it before it is begun: first without doing it */
		(void)change(&s, -1, n);
		*state_of(n) = s;
		atomic_store(&shared->begun, n);
		random_state = chosen;
		s = *state_of(n - 1);
		if (!change(&s, fd[m], n))
			fail("a change");
		atomic_store(&shared->done, n);
		if (pick(3))
			pause_us(pick(pick(8) ? 500 : 20000));
	}
}

/* What lies in the same leaf of the tree changes all the time: so attributes and pages of this file
 * are dropped, too, while it stays as it is. */
static void change_neighbour(unsigned m)
{
	int fd[MOUNTS_MAX];
	char text[512];

	(void)m;
	for (m = 0; m < mounts; m++) {
		snprintf(text, sizeof(text), "%s/shapes-beside-%s", mount[m], how);
		fd[m] = open(text, O_RDWR | O_CREAT, 0644);
		if (fd[m] < 0)
			fail(text);
	}
	while (!stopped()) {
		if (ftruncate(fd[pick(mounts)], pick(PAGES * PAGE_BYTES)))
			fail("a change beside");
		pause_us(pick(pick(8) ? 300 : 20000));
	}
}

/* ---- looks -------------------------------------------------------------------------------- */

static void wrong(uint64_t from, uint64_t to, const char *fmt, ...)
	__attribute__((format(printf, 3, 4), noreturn));

static void wrong(uint64_t from, uint64_t to, const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	fprintf(stderr, "shapes: ");
	vfprintf(stderr, fmt, args);
	va_end(args);
	fprintf(stderr, "; changes %llu to %llu, seed %llu\n", (unsigned long long)from,
		(unsigned long long)to, (unsigned long long)seed);
	for (uint64_t n = from > 3 ? from - 3 : 0; n <= to; n++) {
		const struct state *s = state_of(n);

		fprintf(stderr, "%8llu: %llu bytes;", (unsigned long long)n,
			(unsigned long long)s->size);
		for (unsigned p = 0; p < PAGES; p++)
			if (s->page[p].stamp)
				fprintf(stderr, " %u:%llu[%u,%u)", p,
					(unsigned long long)s->page[p].stamp,
					s->page[p].from, s->page[p].to);
		fputc('\n', stderr);
	}
	atomic_store(&shared->stop, true);
	exit(1);
}

static void looked(uint64_t from, uint64_t to)
{
	atomic_fetch_add(&shared->looks, 1);
	if (from == to)
		atomic_fetch_add(&shared->quiet, 1);
}

static uint64_t word_of(const struct state *s, unsigned p, unsigned w)
{
	return w >= s->page[p].from && w < s->page[p].to ? s->page[p].stamp : 0;
}

static uint64_t bytes_of(const struct state *s, unsigned p)
{
	uint64_t start = (uint64_t)p * PAGE_BYTES;

	if (p == PAGES)
		return s->size;
	if (s->size <= start)
		return 0;
	return s->size - start < PAGE_BYTES ? s->size - start : PAGE_BYTES;
}

static bool same(const struct state *s, unsigned p, const uint64_t *words, size_t bytes)
{
	for (unsigned w = 0; w < bytes / sizeof(uint64_t); w++)
		if (words[w] != word_of(s, p, w))
			return false;
	return true;
}

/* How much there is of page P, or, P being PAGES, in all. A write grows the file piece by
 * piece. */
static bool size_explained(uint64_t from, uint64_t to, unsigned p, uint64_t bytes)
{
	for (uint64_t n = from; n <= to; n++)
		if (bytes_of(state_of(n), p) == bytes)
			return true;
	for (uint64_t n = from; n < to; n++)
		if (bytes_of(state_of(n), p) < bytes &&
			bytes < bytes_of(state_of(n + 1), p))
			return true;
	return false;
}

static bool explained(
	uint64_t from, uint64_t to, unsigned p, const uint64_t *words, size_t bytes)
{
	if (from == to && !size_explained(from, to, p, bytes))
		return false;
	for (uint64_t n = from; n <= to; n++)
		if (same(state_of(n), p, words, bytes))
			return true;
	return false;
}

/* The kernel does not take in a smaller size that it asked for while something of the file was
 * dropped (docs/nodes/sizes.md, "Sizes"): zeros behind the end are read again; and for a mapping,
 * which asks for nothing, what has another end. So often at least, and for so long: on a busy machine
 * it has not asked sooner. */
#define LOOKS_AGAIN   1000u
#define LOOKS_AGAIN_S 0.5

static double now_s(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static bool looks_again(unsigned *tries, double *since_s)
{
	if (!*tries)
		*since_s = now_s();
	return ++*tries < LOOKS_AGAIN || now_s() - *since_s < LOOKS_AGAIN_S;
}

static bool zeros_behind(
	uint64_t from, uint64_t to, unsigned p, const uint64_t *words, size_t bytes)
{
	return from == to && bytes > bytes_of(state_of(to), p) &&
	       same(state_of(to), p, words, bytes);
}

static void look_read(unsigned m)
{
	int fd = open_file(m, O_RDONLY);
	uint64_t words[WORDS];

	while (!stopped()) {
		unsigned p = pick(PAGES), tries = 0;
		uint64_t from, to;
		double since_s = 0;
		ssize_t n;

		do {
			from = atomic_load(&shared->done);
			n = pread(fd, words, PAGE_BYTES, (off_t)p * PAGE_BYTES);
			if (n < 0)
				fail("pread");
			to = atomic_load(&shared->begun);
		} while (zeros_behind(from, to, p, words, (size_t)n) &&
			 looks_again(&tries, &since_s));
		atomic_fetch_add(&shared->again, tries);
		if (!explained(from, to, p, words, (size_t)n))
			wrong(from, to, "mount %u: page %u: %zd bytes, %llu ... %llu",
				m + 1, p, n, n ? (unsigned long long)words[0] : 0,
				n ? (unsigned long long)words[(size_t)n / 8 - 1] : 0);
		looked(from, to);
	}
}

static void look_stat(unsigned m)
{
	int fd = open_file(m, O_RDONLY);

	while (!stopped()) {
		uint64_t from = atomic_load(&shared->done), to;
		struct stat st;

		if (pick(2) ? fstat(fd, &st) : stat(path(m), &st))
			fail("stat");
		to = atomic_load(&shared->begun);
		if (!size_explained(from, to, PAGES, (uint64_t)st.st_size))
			wrong(from, to, "mount %u: size %lld", m + 1,
				(long long)st.st_size);
		looked(from, to);
	}
}

static sigjmp_buf behind_end;

static void on_bus(int signal)
{
	(void)signal;
	siglongjmp(behind_end, 1);
}

/* False: SIGBUS. */
static bool load(const volatile uint64_t *at, uint64_t *value)
{
	if (sigsetjmp(behind_end, 1))
		return false;
	*value = *at;
	return true;
}

static bool load_explained(
	uint64_t from, uint64_t to, unsigned p, unsigned w, bool there, uint64_t value)
{
	if (from == to && (bytes_of(state_of(to), p) > 0) != there)
		return false;
	for (uint64_t n = from; n <= to; n++)
		if (!there || word_of(state_of(n), p, w) == value)
			return true;
	return false;
}

static void look_mapped(unsigned m)
{
	int fd = open_file(m, O_RDONLY);
	const volatile uint64_t *map =
		mmap(NULL, PAGES * PAGE_BYTES, PROT_READ, MAP_SHARED, fd, 0);

	if (map == MAP_FAILED)
		fail("mmap");
	signal(SIGBUS, on_bus);
	while (!stopped()) {
		unsigned p = pick(PAGES), w = pick(WORDS);
		uint64_t from, to, value = 0;
		struct stat st;
		bool there;
		unsigned tries = 0;
		double since_s = 0;

		do {
			from = atomic_load(&shared->done);
			if (fstat(fd, &st))
				fail("fstat");
			there = load(map + p * WORDS + w, &value);
			to = atomic_load(&shared->begun);
		} while (from == to && there != (bytes_of(state_of(to), p) > 0) &&
			 !value && looks_again(&tries, &since_s));
		atomic_fetch_add(&shared->again, tries);
		if (!load_explained(from, to, p, w, there, value))
			wrong(from, to, "mount %u: page %u word %u: %s%llu", m + 1, p, w,
				there ? "" : "SIGBUS ", (unsigned long long)value);
		looked(from, to);
	}
}

/* ---- the runner ---------------------------------------------------------------------------- */

static pid_t start(void (*look)(unsigned m), unsigned m)
{
	pid_t pid = fork();

	if (pid < 0)
		fail("fork");
	if (pid)
		return pid;
	random_state = seed + m + 1;
	look(m);
	exit(0);
}

static void writer(unsigned m)
{
	(void)m;
	write_shapes();
}

int main(int argc, char **argv)
{
	void (*look)(unsigned m);
	struct timespec t = {.tv_nsec = 20000000};
	double seconds;
	int code = 0, status;

	if (argc < 5 || argc > 4 + (int)MOUNTS_MAX) {
		fputs("usage: shapes read|stat|mapped SECONDS SEED MOUNT...\n", stderr);
		return 2;
	}
	how = argv[1];
	seconds = atof(argv[2]);
	seed = strtoull(argv[3], NULL, 10);
	for (int i = 4; i < argc; i++)
		mount[mounts++] = argv[i];
	look = !strcmp(how, "read")   ? look_read
	       : !strcmp(how, "stat") ? look_stat
				      : look_mapped;
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE,
		MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (shared == MAP_FAILED)
		return 2;
	close(open_file(0, O_RDWR | O_CREAT | O_TRUNC));
	start(writer, mounts);
	start(change_neighbour, mounts + 1);
	for (unsigned m = 0; m < mounts; m++)
		start(look, m);
	for (double s = seconds * 50; s > 0 && !stopped(); s--)
		nanosleep(&t, NULL);
	atomic_store(&shared->stop, true);
	for (unsigned i = 0; i < mounts + 2; i++) {
		if (wait(&status) < 0)
			fail("wait");
		if (status)
			code = WIFEXITED(status) ? WEXITSTATUS(status) : 3;
	}
	printf("%llu looks, %llu while nothing changed, %llu once more, at %llu changes, "
	       "seed %llu\n",
		(unsigned long long)shared->looks, (unsigned long long)shared->quiet,
		(unsigned long long)shared->again, (unsigned long long)shared->done,
		(unsigned long long)seed);
	if (!code && (shared->done < seconds || shared->looks < seconds)) {
		fprintf(stderr, "shapes: one of these is less than one a second\n");
		code = 1;
	}
	return code;
}
