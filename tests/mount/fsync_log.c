/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes records, syncs them, and notes outside the volume what must survive a crash.
 *
 *	fsync_log write DIR LOG SEED   until a write fails for good: the mount is gone
 *	fsync_log check DIR LOG        exit status 0 if all that the log says was synced
 * is there
 *
 * A record is a page of a file: magic, file, page number, version, and bytes that follow
 * from these. "I FILE PAGE COUNT VERSION" goes to the log before pages are written, "S
 * ..." once fsync or fdatasync has returned. After a crash each page must be whole and of
 * a version from the last synced one to the last intended one; where nothing was synced it
 * may be zeros or not there. Files from REPLACED on are written anew under another name
 * and renamed over the old one: all of one is of one version. The log needs no sync: only
 * the daemon dies.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PAGE       4096u
#define FILES      12u
#define REPLACED   8u
#define PAGES      96u
#define MAGIC      0x676f6c636e797366ull
#define RUN_LONG   48u /* pages: more than fsync puts into the log */
#define FILE_PAGES 3u  /* of a replaced file */

struct record {
	uint64_t magic, file, page, version;
	uint64_t fill[PAGE / 8 - 4];
};
_Static_assert(sizeof(struct record) == PAGE, "a record is a page");

/* What the log says of a page: versions that it may have. */
static struct {
	uint64_t synced, intended;
} state[FILES][PAGES];

static const char *dir;
static uint64_t random_state;

static _Noreturn void die(const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	vfprintf(stderr, fmt, args);
	va_end(args);
	fputc('\n', stderr);
	exit(1);
}

static uint64_t mix(uint64_t z)
{
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
	return z ^ (z >> 31);
}

static unsigned pick(unsigned below)
{
	random_state += 0x9e3779b97f4a7c15ull;
	return (unsigned)(mix(random_state) % below);
}

static void record_make(struct record *r, uint64_t file, uint64_t page, uint64_t version)
{
	uint64_t z = mix(file * 1000003 + page * 101 + version);

	*r = (struct record){
		.magic = MAGIC, .file = file, .page = page, .version = version};
	for (unsigned i = 0; i < sizeof(r->fill) / 8; i++)
		r->fill[i] = z = mix(z + i);
}

static void path_of(char *path, size_t size, unsigned file, const char *suffix)
{
	snprintf(path, size, "%s/f%u%s", dir, file, suffix);
}

/* ---- the log --------------------------------------------------------------------- */

static uint64_t last_version;

/* The number of syncs that it tells of; 0 if it is not there. */
static uint64_t load_log(const char *log)
{
	unsigned file, page, count;
	uint64_t version, synced = 0;
	FILE *in = fopen(log, "r");
	char what;

	if (!in)
		return 0;
	while (fscanf(in, " %c %u %u %u %" SCNu64, &what, &file, &page, &count,
		       &version) == 5) {
		if (file >= FILES || page > PAGES || count > PAGES - page)
			die("%s: a line makes no sense", log);
		for (unsigned i = page; i < page + count; i++) {
			if (what == 'S')
				state[file][i].synced = version;
			else
				state[file][i].intended = version;
		}
		last_version = version > last_version ? version : last_version;
		synced += what == 'S';
	}
	fclose(in);
	return synced;
}

/* ---- writing --------------------------------------------------------------------- */

static FILE *out;

static void note(
	char what, unsigned file, unsigned page, unsigned count, uint64_t version)
{
	fprintf(out, "%c %u %u %u %" PRIu64 "\n", what, file, page, count, version);
	if (fflush(out))
		die("the log: %s", strerror(errno));
}

/* A full volume is part of the game; anything else ends it. */
static bool went_well(long rc, const char *what)
{
	if (rc >= 0)
		return true;
	if (errno == ENOSPC)
		return false;
	fprintf(stderr, "%s: %s\n", what, strerror(errno));
	exit(0);
}

static bool write_pages(
	int fd, unsigned file, unsigned page, unsigned count, uint64_t version)
{
	static struct record records[PAGES];
	ssize_t len = (ssize_t)count * PAGE, n;

	for (unsigned i = 0; i < count; i++)
		record_make(&records[i], file, page + i, version);
	n = pwrite(fd, records, (size_t)len, (off_t)page * PAGE);
	return went_well(n, "write") && n == len;
}

static bool sync_file(int fd)
{
	return went_well(pick(2) ? fsync(fd) : fdatasync(fd), "fsync");
}

static void write_in_place(unsigned file, uint64_t version)
{
	unsigned count = pick(8) ? 1 + pick(6) : RUN_LONG, page = pick(PAGES - count + 1);
	char path[4096];
	int fd;

	path_of(path, sizeof(path), file, "");
	fd = open(path, O_RDWR | O_CREAT | (pick(16) ? 0 : O_DSYNC), 0644);
	if (!went_well(fd, "open"))
		return;
	note('I', file, page, count, version);
	if (write_pages(fd, file, page, count, version) && pick(4) && sync_file(fd))
		note('S', file, page, count, version);
	close(fd);
}

static void replace(unsigned file, uint64_t version)
{
	char path[4096], fresh[4096];
	bool good;
	int fd;

	path_of(path, sizeof(path), file, "");
	path_of(fresh, sizeof(fresh), file, ".new");
	fd = open(fresh, O_WRONLY | O_CREAT | O_TRUNC, 0644);
	if (!went_well(fd, "open"))
		return;
	note('I', file, 0, FILE_PAGES, version);
	good = write_pages(fd, file, 0, FILE_PAGES, version) && sync_file(fd);
	close(fd);
	if (!good || !went_well(rename(fresh, path), "rename"))
		return;
	fd = open(dir, O_RDONLY | O_DIRECTORY);
	if (!went_well(fd, "open of the directory"))
		return;
	if (went_well(fsync(fd), "fsync of the directory"))
		note('S', file, 0, FILE_PAGES, version);
	close(fd);
}

static _Noreturn void write_main(const char *log)
{
	load_log(log); /* earlier rounds wrote to the same files */
	out = fopen(log, "a");
	if (!out)
		die("%s: %s", log, strerror(errno));
	for (uint64_t version = last_version + 1;; version++) {
		unsigned file = pick(FILES);

		if (file < REPLACED)
			write_in_place(file, version);
		else
			replace(file, version);
	}
}

/* ---- checking -------------------------------------------------------------------- */

static bool is_zeros(const struct record *r)
{
	const uint64_t *word = (const void *)r;

	for (unsigned i = 0; i < PAGE / 8; i++)
		if (word[i])
			return false;
	return true;
}

/* `size` bytes of the page are in the file. Returns its version, 0: there is none. */
static uint64_t check_page(
	unsigned file, unsigned page, const struct record *r, ssize_t size)
{
	uint64_t low = state[file][page].synced, high = state[file][page].intended;
	struct record want;

	if (size == 0 || (size == PAGE && is_zeros(r))) {
		if (low)
			die("%s/f%u page %u: synced at version %" PRIu64 ", now %s", dir,
				file, page, low, size ? "zeros" : "not there");
		return 0;
	}
	if (size != PAGE)
		die("%s/f%u page %u: %zd bytes of it", dir, file, page, size);
	record_make(&want, file, page, r->version);
	if (memcmp(r, &want, PAGE))
		die("%s/f%u page %u: bytes that nobody wrote there (magic %" PRIx64
		    ", file %" PRIu64 ", page %" PRIu64 ", version %" PRIu64 ")",
			dir, file, page, r->magic, r->file, r->page, r->version);
	if (r->version < low || r->version > high)
		die("%s/f%u page %u: version %" PRIu64 ", synced %" PRIu64
		    ", intended %" PRIu64,
			dir, file, page, r->version, low, high);
	return r->version;
}

static unsigned check_file(unsigned file)
{
	static struct record r;
	uint64_t first = 0, version;
	unsigned found = 0;
	char path[4096];
	int fd;

	path_of(path, sizeof(path), file, "");
	fd = open(path, O_RDONLY);
	if (fd < 0 && errno != ENOENT)
		die("%s: %s", path, strerror(errno));
	for (unsigned page = 0; page < PAGES; page++) {
		ssize_t n = fd < 0 ? 0 : pread(fd, &r, PAGE, (off_t)page * PAGE);

		if (n < 0)
			die("%s page %u: %s", path, page, strerror(errno));
		version = check_page(file, page, &r, n);
		found += version > 0;
		if (page == 0)
			first = version;
		if (file >= REPLACED && page < FILE_PAGES && version != first)
			die("%s: versions %" PRIu64 " and %" PRIu64 " in one", path,
				first, version);
	}
	if (fd >= 0)
		close(fd);
	return found;
}

static int check_main(const char *log)
{
	uint64_t synced = load_log(log);
	unsigned found = 0;

	for (unsigned file = 0; file < FILES; file++)
		found += check_file(file);
	printf("%" PRIu64 " synced, %u pages found\n", synced, found);
	return synced ? 0 : 3; /* nothing was proven */
}

int main(int argc, char **argv)
{
	if (argc == 5 && strcmp(argv[1], "write") == 0) {
		dir = argv[2];
		random_state = strtoull(argv[4], NULL, 0);
		write_main(argv[3]);
	}
	if (argc == 4 && strcmp(argv[1], "check") == 0) {
		dir = argv[2];
		return check_main(argv[3]);
	}
	fprintf(stderr, "usage: fsync_log write DIR LOG SEED | check DIR LOG\n");
	return 2;
}
