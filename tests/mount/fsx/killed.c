/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One file, used by the mounts of several nodes in turn while some of these are killed. The shadow
 * says of each byte what it may be: a node that is killed loses what it has not synced, and
 * nothing else.
 *
 * `-k KILLS` times: all is synced, by any node; the victims are chosen; work; "kill N..." is said
 * on standard output; more work, until "back" comes on standard input: they were killed, and are
 * mounted again. Then all nodes must have the same file, and each byte be one of those that
 *
 *   - it was when all was synced last, by any node,
 *   - a victim has written there after that,
 *
 * but what another node has written is the only one. With sizes it is the same; of a victim's
 * changes each may be there in part (a long one is several transactions), so any size
 * between two is one.
 */
#include "tests/mount/fsx/fsx.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#define TRAIL 60u

/* The values that a byte may have: a bit for each. */
struct may {
	uint64_t bits[4];
};

struct either {
	const struct options *o;
	uint64_t random;
	struct view {
		int fd, reader, appender;
		char path[4096];
		bool victim, dead;
	} view[VIEWS_MAX];
	unsigned now;
	bool killing; /* victims may be dead: `copy` and `size` mean nothing */
	size_t size, lowest, highest;
	uint8_t *copy;
	uint8_t *buffer;
	struct may *may;
	uint64_t count, lost, maybe;
	struct {
		const char *what;
		unsigned view;
		bool killing, failed;
		uint64_t from, len, size;
	} trail[TRAIL];
};

static struct view *view_of(struct either *e)
{
	return &e->view[e->now];
}

static void note(struct either *e, const char *what, uint64_t from, uint64_t len)
{
	unsigned at = e->count++ % TRAIL;

	e->trail[at].what = what;
	e->trail[at].view = e->now;
	e->trail[at].killing = e->killing;
	e->trail[at].failed = false;
	e->trail[at].from = from;
	e->trail[at].len = len;
	e->trail[at].size = e->size;
}

static _Noreturn void wrong(struct either *e, const char *what)
{
	fprintf(stderr,
		"%s: operation %llu: %s (seed 0x%llx); victims:", view_of(e)->path,
		(unsigned long long)e->count, what, (unsigned long long)e->o->seed);
	for (unsigned i = 0; i < e->o->directories; i++)
		if (e->view[i].victim)
			fprintf(stderr, " %u", i);
	fprintf(stderr, "; size %zu, %zu to %zu; the last ones:\n", e->size, e->lowest,
		e->highest);
	for (uint64_t i = e->count > TRAIL ? e->count - TRAIL : 0; i < e->count; i++)
		fprintf(stderr,
			"  %6llu view %u%s%s %-14s from 0x%06llx len 0x%06llx size was "
			"0x%06llx\n",
			(unsigned long long)i, e->trail[i % TRAIL].view,
			e->trail[i % TRAIL].killing ? " killing" : "",
			e->trail[i % TRAIL].failed ? " failed" : "",
			e->trail[i % TRAIL].what,
			(unsigned long long)e->trail[i % TRAIL].from,
			(unsigned long long)e->trail[i % TRAIL].len,
			(unsigned long long)e->trail[i % TRAIL].size);
	_exit(1);
}

static void must(struct either *e, bool ok, const char *what)
{
	char text[128];

	if (ok)
		return;
	snprintf(text, sizeof(text), "%s: %s", what, strerror(errno));
	wrong(e, text);
}

/* ---- the shadow --------------------------------------------------------------------------- */

static void only(struct may *m, uint8_t value)
{
	*m = (struct may){{0}};
	m->bits[value / 64] = 1ull << value % 64;
}

static void also(struct may *m, uint8_t value)
{
	m->bits[value / 64] |= 1ull << value % 64;
}

static bool may_be(const struct may *m, uint8_t value)
{
	return m->bits[value / 64] >> value % 64 & 1;
}

static void set_bytes(struct either *e, size_t from, size_t end, const uint8_t *bytes)
{
	for (size_t i = from; i < end; i++) {
		uint8_t value = bytes ? bytes[i - from] : 0;

		if (view_of(e)->victim)
			also(&e->may[i], value);
		else
			only(&e->may[i], value);
		e->copy[i] = value;
	}
}

static size_t larger(size_t a, size_t b)
{
	return a > b ? a : b;
}

/* The file now ends here. */
static void set_size(struct either *e, size_t size)
{
	set_bytes(e, size, e->o->size, NULL);
	e->lowest = view_of(e)->victim && e->lowest < size ? e->lowest : size;
	e->highest = view_of(e)->victim ? larger(e->highest, size) : size;
	e->size = size;
}

/* It ends here or behind. */
static void grown(struct either *e, size_t end)
{
	if (!e->killing && end > e->size) {
		set_size(e, end);
		return;
	}
	e->highest = larger(e->highest, end);
	if (!view_of(e)->victim)
		e->lowest = larger(e->lowest, end);
}

/* All that was done before is durable. */
static void all_synced(struct either *e)
{
	for (size_t i = 0; i < e->o->size; i++)
		only(&e->may[i], e->copy[i]);
	e->lowest = e->highest = e->size;
}

/* ---- operations --------------------------------------------------------------------------- */

/*
 * The errors of a mount whose daemon was killed. What the kernel was just handing to it ends with
 * EIO; a daemon that lives and says so answers what comes next.
 */
static bool is_dead(const struct view *v, int error)
{
	struct statfs st;

	for (unsigned i = 0; error == EIO && i < 5; i++) {
		usleep(i * 100000);
		error = fstatfs(v->fd, &st) == 0 ? EIO : errno;
	}
	return error == ENOTCONN || error == ECONNABORTED;
}

/* Whether it was done; a victim's that fails may have been done, or in part. */
static void done(struct either *e, bool ok, const char *what)
{
	struct view *v = view_of(e);
	int error = errno;

	if (!ok && e->killing && v->victim && is_dead(v, error)) {
		e->trail[(e->count - 1) % TRAIL].failed = true;
		v->dead = true;
		e->maybe++;
		return;
	}
	errno = error;
	must(e, ok, what);
}

static size_t range(struct either *e, size_t *from)
{
	static const size_t lengths[] = {10, 600, 4096, 20480, 65536, 200000};
	size_t limit = e->o->size, len;

	*from = random_below(&e->random, limit);
	if (random_below(&e->random, 3) == 0)
		*from &= ~(size_t)4095;
	len = 1 + random_below(&e->random, lengths[random_below(&e->random, 6)]);
	if (random_below(&e->random, 3) == 0)
		len = (len + 4095) & ~(size_t)4095;
	return len < limit - *from ? len : limit - *from;
}

static void fill(struct either *e, size_t len)
{
	uint64_t tag = random_next(&e->random);

	for (size_t i = 0; i < len; i++)
		e->buffer[i] = (uint8_t)((tag >> (i % 8 * 8)) + i / 8);
}

static void op_write(struct either *e)
{
	size_t from, len = range(e, &from);

	note(e, "write", from, len);
	fill(e, len);
	done(e, pwrite(view_of(e)->fd, e->buffer, len, (off_t)from) == (ssize_t)len,
		"write");
	grown(e, from + len);
	set_bytes(e, from, from + len, e->buffer);
}

static void op_append(struct either *e)
{
	size_t from, len = range(e, &from);
	ssize_t n;

	if (e->killing || len > e->o->size - e->size)
		return; /* nobody knows where it will be */
	note(e, "append", e->size, len);
	fill(e, len);
	for (size_t at = 0; at < len; at += (size_t)n) {
		n = write(view_of(e)->appender, e->buffer + at, len - at);
		must(e, n > 0, "append");
	}
	from = e->size;
	grown(e, from + len);
	set_bytes(e, from, from + len, e->buffer);
}

static void op_truncate(struct either *e)
{
	size_t size = random_below(&e->random, e->o->size + 1);

	if (random_below(&e->random, 4) == 0)
		size &= ~(size_t)4095;
	note(e, "truncate", size, 0);
	done(e, ftruncate(view_of(e)->fd, (off_t)size) == 0, "ftruncate");
	set_size(e, size);
}

static void allocated(struct either *e, const char *what, int mode)
{
	size_t from, len = range(e, &from);

	note(e, what, from, len);
	done(e, fallocate(view_of(e)->fd, mode, (off_t)from, (off_t)len) == 0, what);
	if (!(mode & FALLOC_FL_KEEP_SIZE))
		grown(e, from + len);
	if (mode & ~FALLOC_FL_KEEP_SIZE)
		set_bytes(e, from, from + len, NULL);
}

static void op_punch(struct either *e)
{
	allocated(e, "punch", FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE);
}

static void op_zero(struct either *e)
{
	int keep = random_below(&e->random, 2) ? FALLOC_FL_KEEP_SIZE : 0;

	allocated(e, keep ? "zero keep" : "zero", FALLOC_FL_ZERO_RANGE | keep);
}

static void op_allocate(struct either *e)
{
	int keep = random_below(&e->random, 2) ? FALLOC_FL_KEEP_SIZE : 0;

	allocated(e, keep ? "allocate keep" : "allocate", keep);
}

static void op_sync(struct either *e)
{
	int fd = view_of(e)->fd;

	note(e, "sync", 0, 0);
	done(e, (random_below(&e->random, 2) ? fsync(fd) : fdatasync(fd)) == 0, "fsync");
	if (!e->killing)
		all_synced(e);
}

static void op_forget(struct either *e)
{
	note(e, "drop cache", 0, 0);
	(void)posix_fadvise(view_of(e)->fd, 0, 0, POSIX_FADV_DONTNEED);
}

/* N bytes, and an end if there are no more, are in the buffer. */
static void look(struct either *e, size_t from, size_t n, bool end)
{
	char text[128];

	if (n && from + n > e->highest)
		wrong(e, "a read from behind the end");
	if (end && from < e->lowest && from + n < e->lowest)
		wrong(e, "a read ends early");
	for (size_t i = 0; i < n; i++) {
		if (e->killing ? may_be(&e->may[from + i], e->buffer[i])
			       : e->buffer[i] == e->copy[from + i])
			continue;
		snprintf(text, sizeof(text), "byte 0x%zx is 0x%02x, not 0x%02x%s",
			from + i, e->buffer[i], e->copy[from + i],
			e->killing ? " or what it may be" : "");
		wrong(e, text);
	}
}

static void op_read(struct either *e)
{
	size_t from, len = range(e, &from);
	struct view *v = view_of(e);
	ssize_t n;

	if (e->killing && v->victim)
		return; /* a dead mount's kernel may know the pages */
	note(e, "read", from, len);
	n = pread(random_below(&e->random, 2) ? v->reader : v->fd, e->buffer, len,
		(off_t)from);
	must(e, n >= 0, "read");
	if (!e->killing && (size_t)n != (from >= e->size               ? 0
						: len < e->size - from ? len
								       : e->size - from))
		wrong(e, "read gave another number of bytes");
	look(e, from, (size_t)n, (size_t)n < len);
}

static void one_operation(struct either *e)
{
	static const struct {
		void (*op)(struct either *);
		unsigned weight;
	} mix[] = {{op_read, 20}, {op_write, 24}, {op_append, 8}, {op_truncate, 8},
		{op_punch, 6}, {op_zero, 5}, {op_allocate, 4}, {op_sync, 1},
		{op_forget, 2}};
	uint64_t at = random_below(&e->random, 78);

	for (size_t i = 0; i < sizeof(mix) / sizeof(mix[0]); i++) {
		if (at < mix[i].weight) {
			mix[i].op(e);
			return;
		}
		at -= mix[i].weight;
	}
}

/* ---- rounds ------------------------------------------------------------------------------- */

static void view_open(struct view *v, struct either *e)
{
	v->fd = open(v->path, O_RDWR | O_CLOEXEC);
	must(e, v->fd >= 0, "open");
	v->reader = open(v->path, O_RDONLY | O_CLOEXEC);
	must(e, v->reader >= 0, "open to read");
	v->appender = open(v->path, O_WRONLY | O_APPEND | O_CLOEXEC);
	must(e, v->appender >= 0, "open to append");
	v->victim = v->dead = false;
}

static void file_make(struct either *e)
{
	struct view *v = &e->view[0];
	int dir, fd;

	for (unsigned i = 0; i < e->o->directories; i++)
		snprintf(e->view[i].path, sizeof(e->view[i].path), "%s/killed",
			e->o->directory[i]);
	fd = open(v->path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	dir = open(e->o->directory[0], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	must(e, fd >= 0 && dir >= 0 && fsync(fd) == 0 && fsync(dir) == 0, "making it");
	close(fd);
	close(dir);
	for (unsigned i = 0; i < e->o->directories; i++)
		view_open(&e->view[i], e);
	all_synced(e);
}

/* "back" has come; waits for it if nothing else can be done. */
static bool are_back(struct either *e, bool wait)
{
	struct pollfd in = {.fd = 0, .events = POLLIN};
	char text[16];
	ssize_t n;

	if (poll(&in, 1, wait ? -1 : 0) == 0)
		return false;
	n = read(0, text, sizeof(text));
	if (n < 4 || memcmp(text, "back", 4) != 0)
		wrong(e, "the victims do not come back");
	return true;
}

static bool view_choose(struct either *e)
{
	unsigned first = (unsigned)random_below(&e->random, e->o->directories);

	for (unsigned i = 0; i < e->o->directories; i++) {
		e->now = (first + i) % e->o->directories;
		if (!view_of(e)->dead)
			return true;
	}
	return false;
}

static void victims_choose(struct either *e)
{
	unsigned n = e->o->directories, count = 1;

	if (random_below(&e->random, 3) == 0)
		count = 1 + (unsigned)random_below(&e->random, n);
	while (count > 0) {
		struct view *v = &e->view[random_below(&e->random, n)];

		count -= !v->victim;
		v->victim = true;
	}
}

static void victims_kill(struct either *e)
{
	e->killing = true;
	printf("kill");
	for (unsigned i = 0; i < e->o->directories; i++)
		if (e->view[i].victim)
			printf(" %u", i + 1);
	printf("\n");
	fflush(stdout);
}

static void read_all(struct either *e)
{
	struct view *v = view_of(e);
	struct stat st;
	ssize_t n;

	must(e, fstat(v->fd, &st) == 0, "fstat");
	n = pread(random_below(&e->random, 2) ? v->reader : v->fd, e->buffer, e->o->size,
		0);
	must(e, n >= 0, "read all");
	if (n != st.st_size)
		wrong(e, "fstat and read do not agree on the size");
	if ((size_t)n < e->lowest || (size_t)n > e->highest) {
		e->size = (size_t)n;
		wrong(e, "that size it cannot have");
	}
	look(e, 0, (size_t)n, true);
}

/* All are there again: what is it now? */
static void resolve(struct either *e)
{
	for (unsigned i = 0; i < e->o->directories; i++) {
		struct view *v = &e->view[i];

		if (!v->victim)
			continue;
		close(v->fd), close(v->reader), close(v->appender);
		e->now = i;
		view_open(v, e);
	}
	e->now = (unsigned)random_below(&e->random, e->o->directories);
	note(e, "look", 0, 0);
	read_all(e);
	e->size = (size_t)pread(view_of(e)->fd, e->buffer, e->o->size, 0);
	e->lost += memcmp(e->copy, e->buffer, e->size) != 0;
	memset(e->copy, 0, e->o->size);
	memcpy(e->copy, e->buffer, e->size);
	e->lowest = e->highest = e->size;
	e->killing = false;
	for (unsigned i = 0; i < e->o->directories; i++) {
		e->now = i;
		note(e, "compare", 0, 0);
		read_all(e);
	}
}

static void round_of_work(struct either *e)
{
	unsigned until;

	e->now = (unsigned)random_below(&e->random, e->o->directories);
	note(e, "sync all", 0, 0);
	must(e, fsync(view_of(e)->fd) == 0, "fsync");
	all_synced(e);
	victims_choose(e);
	until = (unsigned)random_below(&e->random, e->o->operations);
	for (unsigned i = 0; i < until && view_choose(e); i++)
		one_operation(e);
	victims_kill(e);
	while (!are_back(e, !view_choose(e)))
		if (!view_of(e)->dead)
			one_operation(e);
	resolve(e);
}

int killed_run(const struct options *o)
{
	struct either e = {.o = o, .random = o->seed};

	e.copy = calloc(1, o->size);
	e.buffer = calloc(1, o->size + 4096);
	e.may = calloc(o->size, sizeof(*e.may));
	must(&e, e.copy && e.buffer && e.may, "memory");
	file_make(&e);
	for (unsigned i = 0; i < o->kills; i++)
		round_of_work(&e);
	fprintf(stderr,
		"%llu operations, %u kills, %llu with something lost, %llu operations "
		"that failed\n",
		(unsigned long long)e.count, o->kills, (unsigned long long)e.lost,
		(unsigned long long)e.maybe);
	free(e.copy), free(e.buffer), free(e.may);
	return 0;
}
