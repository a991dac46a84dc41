/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tasks that read and write files at the same time and know what they must find:
 * appenders of one file, random operations against a shadow, slices of a shared file, a
 * file that comes and goes.
 */
#ifndef WEFT_TEST_OPS_DATA_CREWS_H
#define WEFT_TEST_OPS_DATA_CREWS_H

#include <linux/falloc.h>

#include "tests/unit/ops_fixture.h"

/* ---- words ----------------------------------------------------------------------- */

struct copy {
	uint8_t *to;
	size_t room;
};

static inline int copy_out(void *arg, const struct iovec *iov, unsigned n, size_t total)
{
	struct copy *c = arg;
	size_t at = 0;

	HOLDS(total <= c->room);
	for (unsigned i = 0; i < n; i++) {
		memcpy(c->to + at, iov[i].iov_base, iov[i].iov_len);
		at += iov[i].iov_len;
	}
	HOLDS(at == total);
	return (int)total;
}

/* Reads all of [offset, offset + len) that is there; returns how much. */
static inline size_t read_at(
	struct fs *fs, struct ops_file *f, uint64_t offset, void *buf, size_t len)
{
	size_t done = 0;

	while (done < len) {
		struct copy c = {(uint8_t *)buf + done, len - done};
		int rc = ops_read(fs, f, offset + done, len - done, copy_out, &c);

		HOLDS(rc >= 0);
		if (rc == 0)
			break;
		done += (size_t)rc;
	}
	return done;
}

static inline struct ops_file *open_ino(struct fs *fs, uint64_t ino, int flags)
{
	struct ops_file *f;
	struct ops_attr a;

	OK(ops_open(fs, ino, &root_user, flags, &f, &a));
	return f;
}

static inline struct ops_file *make_file(struct fs *fs, const char *name, uint64_t *ino)
{
	*ino = mk_file(fs, DISK_INO_ROOT, name);
	return open_ino(fs, *ino, O_RDWR);
}

static inline void write_at(
	struct fs *fs, struct ops_file *f, uint64_t offset, const void *buf, size_t len)
{
	EQ(ops_write(fs, f, &root_user, offset, buf, len, false), len);
}

static inline void set_size(struct fs *fs, uint64_t ino, uint64_t size)
{
	struct ops_setattr set = {.set = OPS_SET_SIZE, .size = size};
	struct ops_attr a;

	OK(ops_setattr(fs, ino, &root_user, &set, &a));
	EQ(a.inode.size, size);
}

static inline void fill(uint8_t *buf, size_t len, unsigned seed)
{
	for (size_t i = 0; i < len; i++)
		buf[i] = (uint8_t)(1 + (i * 7 + seed * 13 + (i >> 12)) % 255);
}

static inline bool zeros(const uint8_t *p, size_t len)
{
	for (size_t i = 0; i < len; i++)
		if (p[i])
			return false;
	return true;
}

static inline void append_run(struct fs *fs, unsigned n)
{
	struct ops_file *f =
		open_ino(fs, ino_of(fs, DISK_INO_ROOT, "log"), O_WRONLY | O_APPEND);
	uint8_t line[900];

	memset(line, 'a' + (int)n, sizeof(line));
	for (int i = 0; i < 40; i++)
		EQ(ops_write(fs, f, &root_user, 0, line, sizeof(line), false),
			sizeof(line));
	ops_close(fs, f);
}

/* ---- random operations against a shadow ------------------------------------------ */

#define FSX_MAX (160u * PAGE_SIZE)

struct fsx {
	struct fs *fs;
	uint64_t ino;
	struct ops_file *f;
	uint64_t random, size;
	uint8_t *shadow, *buf;
};

static inline uint64_t fsx_random(struct fsx *x, uint64_t below)
{
	x->random = x->random * 6364136223846793005ull + 1442695040888963407ull;
	return (x->random >> 33) % below;
}

/* Often at or near page boundaries. */
static inline uint64_t fsx_offset(struct fsx *x, uint64_t below)
{
	uint64_t at = fsx_random(x, below);

	switch (fsx_random(x, 4)) {
	case 0:
		return at & ~4095ull;
	case 1:
		return at | 4095;
	default:
		return at;
	}
}

static inline uint64_t fsx_len(struct fsx *x, uint64_t offset)
{
	uint64_t most = FSX_MAX - MIN(offset, FSX_MAX);
	uint64_t len = 1 + fsx_random(x, fsx_random(x, 3) ? 6000 : 60 * PAGE_SIZE);

	return MIN(len, most);
}

static inline void fsx_grow(struct fsx *x, uint64_t size)
{
	if (size > x->size) {
		memset(x->shadow + x->size, 0, size - x->size);
		x->size = size;
	}
}

static inline void fsx_write(struct fsx *x, uint64_t at, uint64_t len, bool append)
{
	if (append)
		at = x->size;
	len = MIN(len, FSX_MAX - MIN(at, FSX_MAX));
	if (len == 0)
		return;
	fill(x->buf, len, (unsigned)fsx_random(x, 1000));
	EQ(ops_write(x->fs, x->f, &root_user, append ? 0 : at, x->buf, len, append), len);
	fsx_grow(x, at + len);
	memcpy(x->shadow + at, x->buf, len);
}

static inline void fsx_read(struct fsx *x, uint64_t at, uint64_t len)
{
	uint64_t want = at >= x->size ? 0 : MIN(len, x->size - at);

	EQ(read_at(x->fs, x->f, at, x->buf, len), want);
	for (uint64_t i = 0; i < want; i++)
		if (x->buf[i] != x->shadow[at + i]) {
			fprintf(stderr,
				"inode %llu: byte %llu (block %llu) is %u, not %u\n",
				(unsigned long long)x->ino, (unsigned long long)(at + i),
				(unsigned long long)((at + i) >> 12), x->buf[i],
				x->shadow[at + i]);
			abort();
		}
}

static inline void fsx_fallocate(struct fsx *x, int mode, uint64_t at, uint64_t len)
{
	if (len == 0)
		return;
	OK(ops_fallocate(x->fs, x->f, &root_user, mode, at, len));
	if (!(mode & FALLOC_FL_KEEP_SIZE))
		fsx_grow(x, at + len);
	if ((mode & (FALLOC_FL_PUNCH_HOLE | FALLOC_FL_ZERO_RANGE)) && at < x->size)
		memset(x->shadow + at, 0, MIN(len, x->size - at));
}

static inline void fsx_copy(struct fsx *x, uint64_t from, uint64_t len, uint64_t to)
{
	uint64_t n = from >= x->size ? 0 : MIN(len, x->size - from);
	int64_t rc;

	if (n && from < to + n && to < from + n) {
		EQ(ops_copy_range(x->fs, x->f, from, x->f, to, len, &root_user), -EINVAL);
		return;
	}
	n = MIN(n, FSX_MAX - MIN(to, FSX_MAX));
	rc = n ? ops_copy_range(x->fs, x->f, from, x->f, to, n, &root_user) : 0;
	EQ(rc, n);
	if (n) {
		fsx_grow(x, to + n);
		memcpy(x->shadow + to, x->shadow + from, n);
	}
}

static inline void fsx_reopen(struct fsx *x)
{
	ops_close(x->fs, x->f);
	x->f = open_ino(x->fs, x->ino, O_RDWR);
}

static inline void fsx_step(struct fsx *x)
{
	uint64_t at = fsx_offset(x, FSX_MAX), len = fsx_len(x, at);

	switch (fsx_random(x, 16)) {
	case 0 ... 3:
		fsx_write(x, at, len, false);
		break;
	case 4:
		fsx_write(x, at, len, true);
		break;
	case 5 ... 8:
		fsx_read(x, at, MAX(len, 1));
		break;
	case 9:
		at = fsx_random(x, 3) ? at : fsx_random(x, FSX_MAX / 20);
		set_size(x->fs, x->ino, at);
		fsx_grow(x, at);
		x->size = at;
		break;
	case 10:
		fsx_fallocate(x, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, at, len);
		break;
	case 11:
		fsx_fallocate(x, fsx_random(x, 2) ? FALLOC_FL_KEEP_SIZE : 0, at, len);
		break;
	case 12:
		fsx_fallocate(x,
			FALLOC_FL_ZERO_RANGE |
				(fsx_random(x, 2) ? FALLOC_FL_KEEP_SIZE : 0),
			at, len);
		break;
	case 13:
		fsx_copy(x, at, len, fsx_offset(x, FSX_MAX));
		break;
	case 14:
		OK(ops_fsync(x->fs, x->ino, fsx_random(x, 2)));
		break;
	default:
		fsx_reopen(x);
		break;
	}
	EQ(attr_of(x->fs, x->ino).size, x->size);
}

static inline void fsx_run(struct fs *fs, unsigned n)
{
	struct fsx x = {.fs = fs, .random = rt_random()};
	char name[8];

	snprintf(name, sizeof(name), "fsx%u", n);
	x.f = make_file(fs, name, &x.ino);
	x.shadow = malloc(FSX_MAX);
	x.buf = malloc(FSX_MAX);
	for (int i = 0; i < 250; i++)
		fsx_step(&x);
	fsx_read(&x, 0, FSX_MAX);
	ops_close(fs, x.f);
	free(x.shadow);
	free(x.buf);
}

/* One file, tasks with a slice each: they share its mapping and pages' neighbours. */
#define SLICE (24u * PAGE_SIZE + 1000)

static inline void slice_run(struct fs *fs, unsigned n)
{
	struct ops_file *f = open_ino(fs, ino_of(fs, DISK_INO_ROOT, "shared"), O_RDWR);
	uint64_t base = (uint64_t)n * SLICE, random = rt_random();
	uint8_t *shadow = calloc(1, SLICE), *buf = malloc(SLICE);
	struct fsx x = {.random = random};

	for (int i = 0; i < 120; i++) {
		uint64_t at = fsx_random(&x, SLICE), len = 1 + fsx_random(&x, SLICE - at);

		switch (fsx_random(&x, 5)) {
		case 0 ... 1:
			fill(buf, len, (unsigned)i);
			write_at(fs, f, base + at, buf, len);
			memcpy(shadow + at, buf, len);
			break;
		case 2:
			OK(ops_fallocate(fs, f, &root_user,
				FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, base + at,
				len));
			memset(shadow + at, 0, len);
			break;
		case 3:
			OK(ops_fsync(fs, ops_file_ino(f), false));
			break;
		default:
			EQ(read_at(fs, f, base + at, buf, len), len);
			EQ(memcmp(buf, shadow + at, len), 0);
			break;
		}
	}
	free(shadow);
	free(buf);
	ops_close(fs, f);
}

/* A reader must see each page old, new or cut off, never zeros or another file's. */
static inline void churn_run(struct fs *fs, unsigned n)
{
	uint64_t ino = ino_of(fs, DISK_INO_ROOT, "churn");
	struct ops_file *f = open_ino(fs, ino, O_RDWR);
	size_t len = 40 * PAGE_SIZE;
	uint8_t *buf = malloc(len);

	for (int i = 0; i < 60; i++) {
		if (n == 0) {
			memset(buf, 'a', len);
			write_at(fs, f, 0, buf, len);
			set_size(fs, ino, 0);
		} else if (n == 1) {
			struct ops_file *other;
			uint64_t other_ino;

			other = make_file(fs, "other", &other_ino);
			memset(buf, 'z', len);
			write_at(fs, other, 0, buf, len);
			ops_close(fs, other);
			OK(ops_unlink(fs, DISK_INO_ROOT, nm("other")));
		} else {
			size_t got = read_at(fs, f, 0, buf, len);

			for (size_t b = 0; b < got; b++)
				EQ(buf[b], 'a');
		}
	}
	free(buf);
	ops_close(fs, f);
}

#endif
