/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kept WHAT SECONDS WRITER READER...: what kernels keep of a volume of several nodes is never
 * behind. WRITER and READER are mounts of it, of different nodes or the same.
 *
 *   pages    numbers that grow, each in a page of one file, written by the writer and by the
 *            first reader's node; all readers read them through descriptors that they hold
 *   mapped   the same, read through mappings
 *   exchange the same, but all numbers are in one page; read both ways
 *   stores   the same, but both write numbers of their own in all pages, mostly by storing into
 *            mappings; readers look in all the ways there are
 *   turns    writer and first reader store in one page in turn, each when it sees the other's
 *   sizes    a file that grows and is cut, by stat and by lseek
 *   found    files that are new to each reader's node and grow, by stat: the first look of each finds the name
 *   made     the writer makes files, and looks; the first reader changes each as soon as it is there
 *   names    a file that is renamed on and on, and one that is made anew, by stat and open
 *   still    nothing is written: each reader looks SECONDS * 1000 times
 *
 * Readers spin while the writer changes things; what had been done before a look began, or been
 * seen by another reader, must be seen by it, nothing that has not been begun when it ended. The first that is behind
 * ends it with exit code 1. So does a process that changes things and comes to fewer changes than seconds, or to none for
 * STARVED_SECONDS. Prints how many looks there were, and the longest wait of a change.
 */
#include <errno.h>
#include <fcntl.h>
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

#define PAGES           8
#define PAGE_BYTES      4096
#define READERS_MAX     16
#define FOUND_SIZES     8 /* that each file to be found has, one after the other */
#define NAMES_KEPT      4 /* of the last names are looked at */
#define CHANGERS        2
#define STARVED_SECONDS 60

/* What all processes see. */
struct shared {
	_Atomic uint64_t begun[2 * PAGES], done[2 * PAGES];
	_Atomic uint64_t seen[2 * PAGES]; /* by any reader, on whatever node */
	_Atomic bool stop;
	_Atomic uint64_t looks, untold;
	_Atomic uint64_t changes[CHANGERS]; /* of each that changes things */
	_Atomic uint64_t longest_ms;        /* from one to the next */
};

static struct shared *shared;
static const char *writer, *reader[READERS_MAX];
static unsigned readers;
static double seconds;
static unsigned stride = PAGE_BYTES; /* from number to number */
static unsigned changers, changer;   /* how many there are; which this process is */
static unsigned children;

static void fail(const char *what)
{
	fprintf(stderr, "kept: %s: %s\n", what, strerror(errno));
	exit(2);
}

static void behind(const char *what, uint64_t seen, uint64_t from, uint64_t to)
{
	fprintf(stderr, "kept: %s is %llu, not %llu to %llu\n", what,
		(unsigned long long)seen, (unsigned long long)from,
		(unsigned long long)to);
	atomic_store(&shared->stop, true);
	exit(1);
}

static const char *path(const char *dir, const char *name, uint64_t n)
{
	static char text[512];

	snprintf(text, sizeof(text), "%s/%s%llu", dir, name, (unsigned long long)n);
	return text;
}

static int open_file(const char *dir, const char *name, int flags)
{
	int fd = open(path(dir, name, 0), flags, 0644);

	if (fd < 0)
		fail(path(dir, name, 0));
	return fd;
}

static bool stopped(void)
{
	return atomic_load(&shared->stop);
}

static void pause_us(unsigned us)
{
	struct timespec t = {.tv_nsec = (long)(rand() % (us + 1)) * 1000};

	nanosleep(&t, NULL);
}

static uint64_t now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

/* By this process, which is one of the changers. */
static void changed(void)
{
	static uint64_t last;
	uint64_t now = now_ms(), longest = atomic_load(&shared->longest_ms);

	while (last && longest < now - last &&
		!atomic_compare_exchange_weak(&shared->longest_ms, &longest, now - last))
		;
	last = now;
	atomic_fetch_add(&shared->changes[changer], 1);
}

/* ---- pages ---------------------------------------------------------------------------------- */

/* Even pages are the writer's, odd ones the first reader's. Each has its number twice. */
static void pages_write(const char *dir, unsigned first)
{
	int fd = open_file(dir, "pages", O_RDWR);

	for (uint64_t n = 1; !stopped(); n++) {
		unsigned page = first + 2 * ((unsigned)rand() % (PAGES / 2));
		uint64_t number = atomic_load(&shared->done[page]) + 1;
		uint64_t text[2] = {number, number};

		atomic_store(&shared->begun[page], number);
		if (pwrite(fd, text, sizeof(text), page * stride + 80) != sizeof(text))
			fail("pwrite");
		atomic_store(&shared->done[page], number);
		changed();
		pause_us(500);
	}
}

/* No look that begins now may find less. */
static uint64_t page_from(unsigned page)
{
	uint64_t done = atomic_load(&shared->done[page]);
	uint64_t seen = atomic_load(&shared->seen[page]);

	return done > seen ? done : seen;
}

static void page_seen(unsigned page, uint64_t number)
{
	uint64_t most = atomic_load(&shared->seen[page]);

	while (most < number &&
		!atomic_compare_exchange_weak(&shared->seen[page], &most, number))
		;
	atomic_fetch_add(&shared->looks, 1);
}

static void pages_look(const char *dir)
{
	int fd = open_file(dir, "pages", O_RDONLY);

	while (!stopped()) {
		unsigned page = (unsigned)rand() % PAGES;
		uint64_t from = page_from(page), to, text[2];

		if (pread(fd, text, sizeof(text), page * stride + 80) != sizeof(text))
			fail("pread");
		to = atomic_load(&shared->begun[page]);
		if (text[0] < from || text[0] > to || text[1] != text[0])
			behind("a page", text[0], from, to);
		page_seen(page, text[0]);
	}
}

/* Only this process uses the mount. */
static bool alone(const char *dir)
{
	unsigned users = !strcmp(dir, writer);

	for (unsigned i = 0; i < readers; i++)
		users += !strcmp(dir, reader[i]);
	return users == 1;
}

/*
 * Where others write or read the file by the same mount the kernel drops pages for them, too, and
 * may do so before it tells this processor (docs/limits.md, "Known faults"). But the page
 * itself is not behind: it is not when it is mapped anew.
 */
static uint64_t mapped_anew(char *map, const _Atomic uint64_t *at)
{
	if (madvise(map, PAGES * PAGE_BYTES, MADV_DONTNEED))
		fail("madvise");
	atomic_fetch_add(&shared->untold, 1);
	return atomic_load(at);
}

static void mapped_look(const char *dir)
{
	int fd = open_file(dir, "pages", O_RDONLY);
	char *map = mmap(NULL, PAGES * PAGE_BYTES, PROT_READ, MAP_SHARED, fd, 0);
	bool others = !alone(dir);

	if (map == MAP_FAILED)
		fail("mmap");
	while (!stopped()) {
		unsigned page = (unsigned)rand() % PAGES;
		const _Atomic uint64_t *at =
			(const _Atomic uint64_t *)(map + page * stride + 80);
		uint64_t from = page_from(page), seen = atomic_load(at);
		uint64_t to;

		if (seen < from && others)
			seen = mapped_anew(map, at);
		to = atomic_load(&shared->begun[page]);
		if (seen < from || seen > to)
			behind("a mapped page", seen, from, to);
		page_seen(page, seen);
	}
}

/* On every other node through a mapping. */
static void exchange_look(const char *dir)
{
	(dir == reader[0] || dir == reader[readers - 1] ? pages_look : mapped_look)(dir);
}

/* ---- stores --------------------------------------------------------------------------------- */

/* Number i lies in page i % PAGES; the first PAGES numbers are the writer's. */
static size_t number_at(unsigned i)
{
	return i % PAGES * PAGE_BYTES + (i < PAGES ? 80 : 2080);
}

static char *map_pages(int fd, int how)
{
	char *map = mmap(NULL, PAGES * PAGE_BYTES, how, MAP_SHARED, fd, 0);

	if (map == MAP_FAILED)
		fail("mmap");
	return map;
}

static void numbers_store(const char *dir, unsigned first)
{
	int fd = open_file(dir, "pages", O_RDWR);
	char *map = map_pages(fd, PROT_READ | PROT_WRITE);

	while (!stopped()) {
		unsigned i = first + (unsigned)rand() % PAGES;
		_Atomic uint64_t *at = (_Atomic uint64_t *)(map + number_at(i));
		uint64_t last = atomic_load(&shared->done[i]), number = last + 1;

		if (atomic_load(at) != last)
			behind("the storer's number", atomic_load(at), last, last);
		atomic_store(&shared->begun[i], number);
		if (rand() % 8 == 0) {
			if (pwrite(fd, &number, 8, (off_t)number_at(i)) != 8)
				fail("pwrite");
		} else {
			atomic_store(at, number);
		}
		atomic_store(&shared->done[i], number);
		changed();
		pause_us(500);
		if (rand() % 500 == 0 && msync(map, PAGES * PAGE_BYTES, MS_SYNC))
			fail("msync");
	}
}

static void numbers_store_writer(const char *dir)
{
	numbers_store(dir, 0);
}

static void numbers_store_reader(const char *dir)
{
	numbers_store(dir, PAGES);
}

static uint64_t number_look(int fd, const char *map, unsigned i)
{
	uint64_t number;

	if (map)
		return atomic_load((const _Atomic uint64_t *)(map + number_at(i)));
	if (pread(fd, &number, 8, (off_t)number_at(i)) != 8)
		fail("pread");
	return number;
}

static void numbers_look(const char *dir)
{
	int read_only = open_file(dir, "pages", O_RDONLY);
	int fd = open_file(dir, "pages", O_RDWR);
	char *map = map_pages(fd, PROT_READ | PROT_WRITE);
	char *read_map = map_pages(read_only, PROT_READ);

	while (!stopped()) {
		unsigned i = (unsigned)rand() % (2 * PAGES), way = (unsigned)rand() % 4;
		uint64_t from = atomic_load(&shared->done[i]), seen, to;

		seen = number_look(way & 1 ? fd : read_only,
			way & 2 ? (way & 1 ? map : read_map) : NULL, i);
		to = atomic_load(&shared->begun[i]);
		if (seen < from || seen > to)
			behind("a number", seen, from, to);
		atomic_fetch_add(&shared->looks, 1);
		pause_us(200); /* else they leave nobody the pages */
	}
}

/* Stores n in its word when the other's is n - 1 (`first`), or n. */
static void turns_store(const char *dir, bool first)
{
	int fd = open_file(dir, "pages", O_RDWR);
	char *map = map_pages(fd, PROT_READ | PROT_WRITE);
	_Atomic uint64_t *mine = (_Atomic uint64_t *)(map + number_at(first ? 0 : PAGES));
	_Atomic uint64_t *theirs =
		(_Atomic uint64_t *)(map + number_at(first ? PAGES : 0));

	for (uint64_t n = 1; !stopped(); n++) {
		while (atomic_load(theirs) != (first ? n - 1 : n) && !stopped())
			atomic_fetch_add(&shared->looks, 1);
		if (stopped())
			break;
		atomic_store(mine, n);
		changed();
	}
}

static void turns_first(const char *dir)
{
	turns_store(dir, true);
}

static void turns_second(const char *dir)
{
	turns_store(dir, false);
}

/* ---- sizes ---------------------------------------------------------------------------------- */

/* The size in the nth state: no two of a few in a row are the same. */
static uint64_t size_of(uint64_t n)
{
	return n * 7919 % 100003;
}

static void sizes_write(const char *dir)
{
	int fd = open_file(dir, "sizes", O_RDWR);

	for (uint64_t n = 1; !stopped(); n++) {
		atomic_store(&shared->begun[0], n);
		if (ftruncate(fd, (off_t)size_of(n)))
			fail("ftruncate");
		atomic_store(&shared->done[0], n);
		changed();
		pause_us(1000);
	}
}

static void sizes_look(const char *dir)
{
	int fd = open_file(dir, "sizes", O_RDONLY);

	while (!stopped()) {
		uint64_t n = atomic_load(&shared->done[0]), to;
		struct stat st;

		if (rand() % 2 ? fstat(fd, &st) : stat(path(dir, "sizes", 0), &st))
			fail("stat");
		to = atomic_load(&shared->begun[0]);
		while (n <= to && size_of(n) != (uint64_t)st.st_size)
			n++;
		if (n > to)
			behind("a size", (uint64_t)st.st_size, size_of(to), size_of(to));
		atomic_fetch_add(&shared->looks, 1);
	}
}

/* ---- what is found by name for the first time ------------------------------------------------ */

/* Number n is file n / FOUND_SIZES, of size n % FOUND_SIZES. */
static void found_write(const char *dir)
{
	int fd = -1;

	for (uint64_t n = FOUND_SIZES; !stopped(); n++) {
		if (n % FOUND_SIZES == 0) {
			close(fd);
			fd = open(path(dir, "found", n / FOUND_SIZES),
				O_WRONLY | O_CREAT | O_EXCL, 0644);
			if (fd < 0)
				fail("making a file to be found");
		}
		atomic_store(&shared->begun[0], n);
		if (ftruncate(fd, (off_t)(n % FOUND_SIZES)))
			fail("ftruncate");
		atomic_store(&shared->done[0], n);
		changed();
		pause_us(100);
	}
}

static void found_look(const char *dir)
{
	uint64_t from, to, size;
	struct stat st;

	while (!stopped()) {
		from = atomic_load(&shared->done[0]);
		if (!from)
			continue;
		if (stat(path(dir, "found", from / FOUND_SIZES), &st))
			fail("stat of what is to be found");
		to = atomic_load(&shared->begun[0]);
		if (to / FOUND_SIZES > from / FOUND_SIZES)
			to = from / FOUND_SIZES * FOUND_SIZES + FOUND_SIZES - 1;
		size = (uint64_t)st.st_size;
		if (size < from % FOUND_SIZES || size > to % FOUND_SIZES)
			behind("the size of what was found", size, from % FOUND_SIZES,
				to % FOUND_SIZES);
		atomic_fetch_add(&shared->looks, 1);
		pause_us(rand() % 300);
	}
}

/* ---- what is made, and at once changed elsewhere ---------------------------------------------- */

/* File n has its last size. Whoever has made it looks until then. */
static bool made_over(uint64_t n)
{
	return stopped() ||
	       atomic_load(&shared->done[0]) >= n * FOUND_SIZES + FOUND_SIZES - 1;
}

static void made_write(const char *dir)
{
	for (uint64_t n = 1; !stopped(); n++) {
		int fd = open(path(dir, "made", n), O_WRONLY | O_CREAT | O_EXCL, 0644);

		if (fd < 0 || ((n & 1) && close(fd)))
			fail("making a file");
		while (!made_over(n)) {
			uint64_t first = n * FOUND_SIZES, from, to, size;
			struct stat st;

			from = atomic_load(&shared->done[0]);
			if (stat(path(dir, "made", n), &st))
				fail("stat of what was made");
			to = atomic_load(&shared->begun[0]);
			from = from < first ? 0 : from - first;
			size = (uint64_t)st.st_size;
			if (size < from || size > to - first)
				behind("the size of what was made", size, from,
					to - first);
			atomic_fetch_add(&shared->looks, 1);
		}
		if (!(n & 1))
			close(fd);
		changed();
	}
}

static void made_change(const char *dir)
{
	for (uint64_t n = FOUND_SIZES; !stopped(); n++) {
		if (n % FOUND_SIZES == 0)
			continue;
		atomic_store(&shared->begun[0], n);
		while (truncate(
			path(dir, "made", n / FOUND_SIZES), (off_t)(n % FOUND_SIZES))) {
			if (errno != ENOENT)
				fail("truncate");
			if (stopped())
				return;
		}
		atomic_store(&shared->done[0], n);
		changed();
	}
}

/* ---- names ---------------------------------------------------------------------------------- */

static void anew(const char *dir, uint64_t n)
{
	int fd;

	if (n > 4 && unlink(path(dir, "anew", 0)))
		fail("unlink");
	fd = open(path(dir, "anew", 0), O_WRONLY | O_CREAT | O_EXCL, 0644);
	if (fd < 0 || write(fd, &n, sizeof(n)) != sizeof(n) || close(fd))
		fail("making a file anew");
}

static void names_write(const char *dir)
{
	char from[512];

	for (uint64_t n = 1; !stopped(); n++) {
		snprintf(from, sizeof(from), "%s", path(dir, "name", n - 1));
		atomic_store(&shared->begun[0], n);
		if (rename(from, path(dir, "name", n)))
			fail("rename");
		atomic_store(&shared->done[0], n);
		if (n % 4 == 0) {
			atomic_store(&shared->begun[1], n);
			anew(dir, n);
			atomic_store(&shared->done[1], n);
		}
		changed();
		pause_us(1000);
	}
}

/* A name that is gone, or will come, is not there; the only one that can be is. */
static void name_look(const char *dir)
{
	uint64_t from = atomic_load(&shared->done[0]), to;
	uint64_t n = from + (uint64_t)rand() % (2 * NAMES_KEPT);
	struct stat st;
	bool there;

	n = n > NAMES_KEPT ? n - NAMES_KEPT : 0;
	there = stat(path(dir, "name", n), &st) == 0;
	if (!there && errno != ENOENT)
		fail("stat");
	to = atomic_load(&shared->begun[0]);
	if (there ? n < from || n > to : n == from && n == to)
		behind(there ? "a name that is there" : "a name that is not there", n,
			from, to);
}

static void anew_look(const char *dir)
{
	uint64_t from = atomic_load(&shared->done[1]), to, n = 0;
	int fd = open(path(dir, "anew", 0), O_RDONLY);
	ssize_t got = fd < 0 ? 0 : read(fd, &n, sizeof(n));

	if (fd < 0 && errno != ENOENT && errno != ESTALE)
		fail("open");
	to = atomic_load(&shared->begun[1]);
	if (got < 0)
		fail("read");
	if (fd >= 0)
		close(fd);
	if (from == to && from && (got != sizeof(n) || n != from))
		behind("a file made anew", n, from, to);
	if (got && (n < from || n > to))
		behind("a file made anew", n, from, to);
}

static void names_look(const char *dir)
{
	while (!stopped()) {
		if (rand() % 3)
			name_look(dir);
		else
			anew_look(dir);
		atomic_fetch_add(&shared->looks, 1);
	}
}

/* ---- nothing changes ------------------------------------------------------------------------ */

static void still_look(const char *dir)
{
	int fd = open_file(dir, "pages", O_RDONLY);
	struct stat st;
	char c;

	for (unsigned i = 0; i < seconds * 1000; i++) {
		if (pread(fd, &c, 1, i % PAGES * PAGE_BYTES) != 1 ||
			stat(path(dir, "pages", 0), &st) || fstat(fd, &st) ||
			stat(path(dir, "absent", 0), &st) == 0)
			fail("looking");
		atomic_fetch_add(&shared->looks, 1);
	}
}

/* ---- the runner ------------------------------------------------------------------------------- */

static void make_files(void)
{
	static char page[PAGE_BYTES];
	int fd;

	for (unsigned i = 0; i < 3; i++) {
		static const char *const name[] = {"pages", "sizes", "name"};

		fd = open_file(writer, name[i], O_RDWR | O_CREAT);
		for (unsigned p = 0; i == 0 && p < PAGES; p++)
			if (pwrite(fd, page, PAGE_BYTES, p * PAGE_BYTES) != PAGE_BYTES)
				fail("pwrite");
		close(fd);
	}
}

static void child(void (*main)(const char *dir), const char *dir)
{
	pid_t pid = fork();

	if (pid < 0)
		fail("fork");
	if (pid) {
		children++;
		return;
	}
	srand((unsigned)getpid());
	main(dir);
	exit(0);
}

/* One that changes things. */
static void child_changes(void (*main)(const char *dir), const char *dir)
{
	if (!main)
		return;
	changer = changers++;
	child(main, dir);
}

static void pages_write_even(const char *dir)
{
	pages_write(dir, 0);
}

static void pages_write_odd(const char *dir)
{
	pages_write(dir, 1);
}

static const struct kind {
	const char *name;
	void (*write)(const char *dir);  /* by the writer */
	void (*write2)(const char *dir); /* by the first reader */
	void (*look)(const char *dir);   /* by each reader */
} kinds[] = {
	{"pages", pages_write_even, pages_write_odd, pages_look},
	{"mapped", pages_write_even, pages_write_odd, mapped_look},
	{"exchange", pages_write_even, pages_write_odd, exchange_look},
	{"stores", numbers_store_writer, numbers_store_reader, numbers_look},
	{"turns", turns_first, turns_second, NULL},
	{"sizes", sizes_write, NULL, sizes_look},
	{"found", found_write, NULL, found_look},
	{"made", made_write, made_change, NULL},
	{"names", names_write, NULL, names_look},
	{"still", NULL, NULL, still_look},
};

static const struct kind *kind_named(const char *name)
{
	for (unsigned i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
		if (!strcmp(kinds[i].name, name))
			return &kinds[i];
	return NULL;
}

static void start(const struct kind *kind)
{
	if (!strcmp(kind->name, "exchange"))
		stride = PAGE_BYTES / PAGES;
	child_changes(kind->write, writer);
	child_changes(kind->write2, reader[0]);
	for (unsigned i = 0; i < readers && kind->look; i++)
		child(kind->look, reader[i]);
}

static void wait_seconds(void)
{
	struct timespec t = {.tv_nsec = 20000000};

	for (unsigned i = 0; i < seconds * 50 && !stopped(); i++)
		nanosleep(&t, NULL);
	atomic_store(&shared->stop, true);
}

static int wait_children(void)
{
	int code = 0, status;

	while (children--) {
		if (wait(&status) < 0)
			fail("wait");
		if (status)
			code = WIFEXITED(status) ? WEXITSTATUS(status) : 3;
	}
	return code;
}

/* None of those that change things had to stand back for the others. */
static bool all_changed(void)
{
	for (unsigned i = 0; i < changers; i++)
		if ((double)shared->changes[i] < seconds) {
			fprintf(stderr, "kept: %u has come to %llu changes in %g s\n", i,
				(unsigned long long)shared->changes[i], seconds);
			return false;
		}
	if (shared->longest_ms >= STARVED_SECONDS * 1000) {
		fprintf(stderr, "kept: a change took %llu ms\n",
			(unsigned long long)shared->longest_ms);
		return false;
	}
	return true;
}

int main(int argc, char **argv)
{
	const struct kind *kind = argc < 5 ? NULL : kind_named(argv[1]);
	int code;

	if (!kind || argc > 4 + READERS_MAX) {
		fprintf(stderr,
			"usage: kept "
			"pages|mapped|exchange|stores|turns|sizes|found|made|names|still "
			"SECONDS WRITER "
			"READER...\n");
		return 2;
	}
	seconds = atof(argv[2]);
	writer = argv[3];
	for (int i = 4; i < argc; i++)
		reader[readers++] = argv[i];
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE,
		MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (shared == MAP_FAILED)
		fail("mmap");
	if (kind->write)
		make_files();
	start(kind);
	if (kind->write)
		wait_seconds();
	code = wait_children();
	printf("%s: %llu looks at %llu and %llu changes, the longest wait %llu ms, %llu "
	       "before a processor was told\n",
		kind->name, (unsigned long long)shared->looks,
		(unsigned long long)shared->changes[0],
		(unsigned long long)shared->changes[1],
		(unsigned long long)shared->longest_ms,
		(unsigned long long)shared->untold);
	return code ? code : !all_changed();
}
