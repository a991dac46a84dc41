/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One file and its copy in memory, in the manner of fsx: every operation is done to both,
 * and what is read is compared. The last operations are printed when a byte is wrong.
 */
#include "tests/mount/fsx/fsx.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define BLOCK 4096u
#define TRAIL 40u

struct file {
	const struct options *o;
	uint64_t random;
	char path[4096]; /* of the view that is used now */
	/* By each mount: to read and write, O_DIRECT (-1 without), only to read, to append. */
	struct view {
		int fd, direct, reader, appender;
	} view[VIEWS_MAX];
	unsigned now, looks;
	size_t size;
	char *copy;   /* o->size bytes; zeros behind size */
	char *buffer; /* aligned, o->size and a block */
	uint64_t count;
	struct {
		const char *what;
		unsigned view;
		uint64_t from, len, size;
	} trail[TRAIL];
};

static int fd_of(const struct file *f)
{
	return f->view[f->now].fd;
}

static int direct_of(const struct file *f)
{
	return f->view[f->now].direct;
}

/* What only reads may use either descriptor: the kernel may keep what this one has read. */
static int reader_of(struct file *f)
{
	return f->o->readers && random_below(&f->random, 2) ? f->view[f->now].reader
							    : fd_of(f);
}

static void trail_add(struct file *f, const char *what, uint64_t from, uint64_t len)
{
	unsigned at = f->count++ % TRAIL;

	f->trail[at].what = what;
	f->trail[at].view = f->now;
	f->trail[at].from = from;
	f->trail[at].len = len;
	f->trail[at].size = f->size;
}

static _Noreturn void wrong(struct file *f, const char *what)
{
	printf("%s: operation %llu: %s (seed 0x%llx); the last ones:\n", f->path,
		(unsigned long long)f->count, what, (unsigned long long)f->o->seed);
	for (uint64_t i = f->count > TRAIL ? f->count - TRAIL : 0; i < f->count; i++)
		printf("  %6llu view %u %-16s from 0x%06llx len 0x%06llx size was "
		       "0x%06llx\n",
			(unsigned long long)i, f->trail[i % TRAIL].view,
			f->trail[i % TRAIL].what,
			(unsigned long long)f->trail[i % TRAIL].from,
			(unsigned long long)f->trail[i % TRAIL].len,
			(unsigned long long)f->trail[i % TRAIL].size);
	fflush(NULL);
	_exit(1);
}

static void must(struct file *f, bool ok, const char *what)
{
	char text[128];

	if (ok)
		return;
	snprintf(text, sizeof(text), "%s: %s", what, strerror(errno));
	wrong(f, text);
}

static void compare(struct file *f, const char *got, size_t from, size_t len)
{
	char text[128];

	if (memcmp(got, f->copy + from, len) == 0)
		return;
	for (size_t i = 0; i < len; i++) {
		if (got[i] == f->copy[from + i])
			continue;
		snprintf(text, sizeof(text), "byte 0x%zx is 0x%02x, not 0x%02x", from + i,
			(unsigned char)got[i], (unsigned char)f->copy[from + i]);
		wrong(f, text);
	}
}

/* A range within [0, limit); small ones as often as large ones. */
static size_t range(struct file *f, size_t limit, size_t *from)
{
	static const size_t lengths[] = {10, 600, BLOCK, 5 * BLOCK, 65536, 1 << 20};
	size_t len;

	*from = random_below(&f->random, limit);
	if (random_below(&f->random, 3) == 0)
		*from &= ~(size_t)(BLOCK - 1);
	len = 1 + random_below(&f->random, lengths[random_below(&f->random, 6)]);
	if (random_below(&f->random, 3) == 0)
		len = (len + BLOCK - 1) & ~(size_t)(BLOCK - 1);
	return len < limit - *from ? len : limit - *from;
}

static void fill(struct file *f, char *to, size_t len)
{
	uint64_t tag = random_next(&f->random);

	for (size_t i = 0; i < len; i++)
		to[i] = (char)(tag >> (i % 8 * 8)) + (char)(i / 8);
}

/* For O_DIRECT: whole blocks. */
static bool align(struct file *f, size_t *from, size_t *len)
{
	size_t start = *from & ~(size_t)(BLOCK - 1);
	size_t whole = (*len + BLOCK - 1) & ~(size_t)(BLOCK - 1);

	if (start + whole > f->o->size)
		return false;
	*from = start;
	*len = whole;
	return true;
}

static bool wants_direct(struct file *f)
{
	return direct_of(f) >= 0 && random_below(&f->random, 2);
}

/* ---- operations -------------------------------------------------------------------- */

static void grown(struct file *f, size_t end)
{
	if (end > f->size)
		f->size = end;
}

static void op_read(struct file *f)
{
	size_t from, len = range(f, f->o->size, &from), want;
	bool direct = wants_direct(f) && align(f, &from, &len);
	ssize_t n;

	trail_add(f, direct ? "read direct" : "read", from, len);
	n = pread(direct ? direct_of(f) : reader_of(f), f->buffer, len, (off_t)from);
	must(f, n >= 0, "read");
	want = from >= f->size ? 0 : len < f->size - from ? len : f->size - from;
	if ((size_t)n != want)
		wrong(f, "read gave another number of bytes");
	compare(f, f->buffer, from, want);
}

static void op_write(struct file *f)
{
	size_t from, len = range(f, f->o->size, &from);
	bool direct = wants_direct(f) && align(f, &from, &len);
	ssize_t n;

	trail_add(f, direct ? "write direct" : "write", from, len);
	fill(f, f->buffer, len);
	n = pwrite(direct ? direct_of(f) : fd_of(f), f->buffer, len, (off_t)from);
	must(f, n == (ssize_t)len, "write");
	memcpy(f->copy + from, f->buffer, len);
	grown(f, from + len);
}

static void op_writev(struct file *f)
{
	size_t from, len = range(f, f->o->size, &from), half = len / 2;
	struct iovec iov[2] = {{f->buffer, half}, {f->buffer + half, len - half}};

	trail_add(f, "writev", from, len);
	fill(f, f->buffer, len);
	must(f, pwritev(fd_of(f), iov, 2, (off_t)from) == (ssize_t)len, "pwritev");
	memcpy(f->copy + from, f->buffer, len);
	grown(f, from + len);
}

/*
 * RWF_APPEND takes the end as the kernel knows it, which is another mount's to move. A long append
 * may end early there; the rest follows it.
 */
static ssize_t append(struct file *f, const char *bytes, size_t len)
{
	struct iovec iov = {(void *)bytes, len};
	ssize_t n = 0;

	if (f->o->directories == 1 && random_below(&f->random, 2))
		return pwritev2(fd_of(f), &iov, 1, 0, RWF_APPEND);
	for (size_t done = 0; done < len; done += (size_t)n) {
		n = write(f->view[f->now].appender, bytes + done, len - done);
		if (n <= 0 || (f->o->directories == 1 && (size_t)n < len))
			return n;
	}
	return (ssize_t)len;
}

static void op_append(struct file *f)
{
	size_t from, len = range(f, f->o->size, &from);

	if (len > f->o->size - f->size)
		len = f->o->size - f->size;
	if (len == 0)
		return;
	trail_add(f, "append", f->size, len);
	fill(f, f->buffer, len);
	must(f, append(f, f->buffer, len) == (ssize_t)len, "append");
	memcpy(f->copy + f->size, f->buffer, len);
	f->size += len;
}

static void resize(struct file *f, size_t size)
{
	must(f, ftruncate(fd_of(f), (off_t)size) == 0, "ftruncate");
	if (size < f->size)
		memset(f->copy + size, 0, f->size - size);
	f->size = size;
}

static void op_truncate(struct file *f)
{
	size_t size = random_below(&f->random, f->o->size + 1);

	if (random_below(&f->random, 4) == 0)
		size &= ~(size_t)(BLOCK - 1);
	trail_add(f, "truncate", size, 0);
	resize(f, size);
}

/* Maps the range, and what of its last page lies behind the end, which must be zeros. */
static void op_map(struct file *f)
{
	bool writes = random_below(&f->random, 2);
	size_t from, len, start, end;
	struct stat st;
	char *p;

	if (!f->o->mappings)
		return;
	len = range(f, writes ? f->o->size : f->size, &from);
	if (len == 0 || (!writes && from >= f->size))
		return;
	trail_add(f, writes ? "store" : "load", from, len);
	if (writes && from + len > f->size)
		resize(f, from + len);
	else if (f->o->directories > 1) /* another mount may have moved it */
		must(f, fstat(writes ? fd_of(f) : reader_of(f), &st) == 0, "fstat");
	start = from & ~(size_t)(BLOCK - 1);
	p = mmap(NULL, from + len - start, PROT_READ | (writes ? PROT_WRITE : 0),
		MAP_SHARED, writes ? fd_of(f) : reader_of(f), (off_t)start);
	must(f, p != MAP_FAILED, "mmap");
	if (writes) {
		fill(f, f->copy + from, len);
		memcpy(p + (from - start), f->copy + from, len);
		if (random_below(&f->random, 4) == 0)
			must(f, msync(p, from + len - start, MS_SYNC) == 0, "msync");
	} else {
		compare(f, p + (from - start), from, len);
		end = (f->size + BLOCK - 1) & ~(size_t)(BLOCK - 1);
		if (from + len == f->size)
			for (size_t i = f->size; i < end; i++)
				if (p[i - start])
					wrong(f, "a byte behind the end is not zero");
	}
	must(f, munmap(p, from + len - start) == 0, "munmap");
}

static void op_punch(struct file *f)
{
	size_t from, len = range(f, f->o->size, &from);

	trail_add(f, "punch", from, len);
	must(f,
		fallocate(fd_of(f), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
			(off_t)from, (off_t)len) == 0,
		"punch");
	memset(f->copy + from, 0, len);
}

static void op_zero(struct file *f)
{
	size_t from, len = range(f, f->o->size, &from);
	bool keep = random_below(&f->random, 2);

	trail_add(f, keep ? "zero keep" : "zero", from, len);
	must(f,
		fallocate(fd_of(f),
			FALLOC_FL_ZERO_RANGE | (keep ? FALLOC_FL_KEEP_SIZE : 0),
			(off_t)from, (off_t)len) == 0,
		"zero");
	memset(f->copy + from, 0, len);
	if (!keep)
		grown(f, from + len);
}

static void op_allocate(struct file *f)
{
	size_t from, len = range(f, f->o->size, &from);
	bool keep = random_below(&f->random, 2);

	trail_add(f, keep ? "allocate keep" : "allocate", from, len);
	must(f,
		fallocate(fd_of(f), keep ? FALLOC_FL_KEEP_SIZE : 0, (off_t)from,
			(off_t)len) == 0,
		"fallocate");
	if (!keep)
		grown(f, from + len);
}

/*
 * The kernel copies nothing from behind the end that it knows. Another mount may have moved it,
 * and it does not ask; when it asks here, it may be told of changes meanwhile, and forget the
 * answer.
 */
static void look_for_end(struct file *f)
{
	struct stat st;

	if (f->o->directories == 1 || ++f->looks > 1000)
		wrong(f, "copy_file_range ends early");
	must(f, fstat(fd_of(f), &st) == 0, "fstat");
}

static void op_copy(struct file *f)
{
	size_t from, to, len = range(f, f->size, &from);
	loff_t in, out;

	to = random_below(&f->random, f->o->size);
	if (len > f->o->size - to)
		len = f->o->size - to;
	if (from >= f->size || len == 0 || (from < to + len && to < from + len))
		return;
	trail_add(f, "copy", from, len);
	trail_add(f, "  to", to, len);
	in = (loff_t)from;
	out = (loff_t)to;
	for (size_t left = len; left > 0;) {
		ssize_t n = copy_file_range(fd_of(f), &in, fd_of(f), &out, left, 0);

		must(f, n >= 0, "copy_file_range");
		left -= (size_t)n;
		if (n == 0)
			look_for_end(f);
	}
	memmove(f->copy + to, f->copy + from, len);
	grown(f, to + len);
}

static void op_sync(struct file *f)
{
	trail_add(f, "sync", 0, 0);
	must(f,
		(random_below(&f->random, 2) ? fsync(fd_of(f)) : fdatasync(fd_of(f))) ==
			0,
		"fsync");
}

static void op_forget(struct file *f)
{
	trail_add(f, "drop cache", 0, 0);
	must(f, posix_fadvise(fd_of(f), 0, 0, POSIX_FADV_DONTNEED) == 0, "fadvise");
}

static void view_use(struct file *f, unsigned process, unsigned view)
{
	f->now = view;
	snprintf(f->path, sizeof(f->path), "%s/data-%u", f->o->directory[view], process);
}

static void verify(struct file *f)
{
	struct stat st;

	must(f, fstat(fd_of(f), &st) == 0, "fstat");
	if ((size_t)st.st_size != f->size)
		wrong(f, "the size is another");
	must(f, pread(reader_of(f), f->buffer, f->o->size, 0) == (ssize_t)f->size,
		"read all");
	compare(f, f->buffer, 0, f->size);
}

static void file_open(struct file *f)
{
	struct view *v = &f->view[f->now];

	v->fd = open(f->path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
	must(f, v->fd >= 0, "open");
	v->reader = open(f->path, O_RDONLY | O_CLOEXEC);
	must(f, v->reader >= 0, "open to read");
	v->appender = open(f->path, O_WRONLY | O_APPEND | O_CLOEXEC);
	must(f, v->appender >= 0, "open to append");
	v->direct = f->o->direct ? open(f->path, O_RDWR | O_DIRECT | O_CLOEXEC) : -1;
	must(f, v->direct >= 0 || !f->o->direct, "open direct");
}

static void op_reopen(struct file *f)
{
	const struct view *v = &f->view[f->now];

	trail_add(f, "close and open", 0, 0);
	must(f, close(v->fd) == 0, "close");
	must(f, close(v->reader) == 0 && close(v->appender) == 0, "close");
	if (v->direct >= 0)
		must(f, close(v->direct) == 0, "close");
	file_open(f);
	verify(f);
}

static void one_operation(struct file *f)
{
	static const struct {
		void (*op)(struct file *);
		unsigned weight;
	} mix[] = {{op_read, 20}, {op_write, 16}, {op_writev, 4}, {op_append, 3},
		{op_truncate, 6}, {op_map, 16}, {op_punch, 6}, {op_zero, 5},
		{op_allocate, 4}, {op_copy, 6}, {op_sync, 2}, {op_forget, 2},
		{op_reopen, 1}};
	uint64_t at = random_below(&f->random, 91);

	for (size_t i = 0; i < sizeof(mix) / sizeof(mix[0]); i++) {
		if (at < mix[i].weight) {
			mix[i].op(f);
			return;
		}
		at -= mix[i].weight;
	}
}

int data_run(const struct options *o, unsigned process)
{
	struct file f = {.o = o, .random = o->seed + process * 7919};

	view_use(&f, process, 0);
	f.copy = calloc(1, o->size);
	f.buffer = aligned_alloc(BLOCK, (o->size + 2 * BLOCK) & ~(size_t)(BLOCK - 1));
	must(&f, f.copy && f.buffer, "memory");
	must(&f, unlink(f.path) == 0 || errno == ENOENT, "unlink");
	for (unsigned i = 0; i < o->directories; i++) {
		view_use(&f, process, i);
		file_open(&f);
	}
	for (unsigned i = 0; i < o->operations; i++) {
		view_use(&f, process, (unsigned)random_below(&f.random, o->directories));
		one_operation(&f);
	}
	for (unsigned i = 0; i < o->directories; i++) {
		view_use(&f, process, i);
		op_reopen(&f);
	}
	free(f.copy);
	free(f.buffer);
	return 0;
}
