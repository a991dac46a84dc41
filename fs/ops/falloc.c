/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Space and holes: fallocate, lseek, and copies between files.
 *
 * fallocate works in pieces. Each is a transaction that keeps extents, bitmap and the count of
 * blocks consistent. The first one that zeroes bytes sets the times, and so does the last one,
 * which sets the size. fallocate holds `alloc_gate` throughout. If space runs out, it frees the
 * space that it took, except blocks that it could not record. That happens without memory, and in
 * files so scattered that recording needs too much memory.
 */
#include <linux/falloc.h>
#include <unistd.h>

#include "fs/ops/data_internal.h"

#define COPY_BYTES_MAX    (16u << 20) /* in one call */
#define COPY_BUFFER_PAGES 64u

struct falloc {
	struct fs *fs;
	struct inode_state *st;
	const struct ops_caller *c;
	int mode;
	uint64_t offset, end; /* bytes */
	uint64_t size_before;
	bool tail_dirty;
	struct dirty_set taken; /* blocks to which this call gave pages */
	/* Of one piece: */
	uint64_t first, next, stop; /* blocks to free: [first, stop) */
	bool changes; /* the first piece of [offset, end): zero its partial pages, set times */
	bool gives_back; /* free only blocks that no other node has written since */
	unsigned run_count, handed;
	struct {
		uint64_t block;
		struct space_run run;
	} run[EXTENTS_A_PIECE];
};

static uint64_t block_of(uint64_t byte)
{
	return byte >> PAGE_SHIFT;
}

static uint64_t block_behind(uint64_t byte)
{
	return DIV_UP(byte, (uint64_t)PAGE_SIZE);
}

/* ---- freeing a range ------------------------------------------------------------- */

/* Zeroes the bytes of the range in its first and last page. */
static int zero_edges(const struct falloc *f, struct txn *x)
{
	uint64_t head = block_of(f->offset), tail = block_of(f->end);
	unsigned from = f->offset % PAGE_SIZE, to = f->end % PAGE_SIZE;
	int rc = 0;

	if (head == tail)
		return extent_zero_bytes(f->fs, x, f->st->ino, head, from, to);
	if (from)
		rc = extent_zero_bytes(f->fs, x, f->st->ino, head, from, PAGE_SIZE);
	if (rc == 0 && to)
		rc = extent_zero_bytes(f->fs, x, f->st->ino, tail, 0, to);
	return rc;
}

static int punch_body(struct txn *x, void *arg)
{
	struct falloc *f = arg;
	struct disk_inode inode;
	uint64_t freed = 0;
	int rc;

	f->next = f->stop;
	rc = inode_read(x, f->st->ino, &inode);
	if (rc == 0 && f->changes)
		rc = inode_modified(f->fs, x, f->st->ino, &inode, f->c, rt_wall_ns());
	if (rc == 0 && f->changes)
		rc = zero_edges(f, x);
	if (rc == 0 && f->first < f->stop)
		rc = extent_remove(f->fs, x, f->st->ino, f->first, f->stop, f->gives_back,
			&freed, &f->next);
	if (rc < 0)
		return rc;
	inode.blocks -= MIN(freed, inode.blocks);
	return inode_write(x, f->st->ino, &inode);
}

/* Frees the pages of blocks [first, stop). */
static int punch_blocks(struct falloc *f, uint64_t first, uint64_t stop, bool changes)
{
	int rc;

	f->first = first;
	f->stop = MAX(first, stop);
	f->changes = changes;
	do {
		map_change_begin(f->st);
		rc = ops_run(f->fs, OPS_RUN_PRIVILEGED, punch_body, f, NULL);
		map_change_end(f->st);
		f->first = f->next;
		f->changes = false;
	} while (rc == 0 && f->first < f->stop);
	return rc;
}

/* ---- taking space ---------------------------------------------------------------- */

static int allocate_body(struct txn *x, void *arg)
{
	struct falloc *f = arg;
	struct disk_inode inode;
	int rc;

	f->handed = 0;
	rc = inode_read(x, f->st->ino, &inode);
	if (rc == 0 && intent_is_due(&inode))
		rc = -ESTALE;
	for (unsigned i = 0; i < f->run_count && rc == 0; i++) {
		const struct space_run *run = &f->run[i].run;
		const struct disk_extent extent = {.pid = run->pid,
			.length = run->length,
			.flags = DISK_EXTENT_UNWRITTEN,
			.incarnation = run->incarnation};

		rc = extent_insert(f->fs, x, f->st->ino, f->run[i].block, &extent);
		if (rc == 0)
			rc = txn_take(x, run);
		if (rc == 0) {
			f->handed = i + 1;
			inode.blocks += run->length;
		}
	}
	return rc ? rc : inode_write(x, f->st->ino, &inode);
}

static int allocate_commit(struct falloc *f)
{
	int rc;

	if (f->run_count == 0)
		return 0;
	f->handed = 0;
	rc = ops_run(f->fs, 0, allocate_body, f, NULL);
	if (rc < 0) {
		for (unsigned i = f->handed; i < f->run_count; i++)
			space_unreserve(f->fs->volume->space, &f->run[i].run);
	} else {
		for (unsigned i = 0; i < f->run_count; i++)
			(void)dirty_add_exact(&f->taken, f->run[i].block,
				f->run[i].block + f->run[i].run.length);
	}
	f->run_count = 0;
	return rc;
}

static int allocate_hole(struct falloc *f, uint64_t block, uint64_t count)
{
	page_id goal = PID_NONE;

	while (count > 0) {
		struct space_run *run = &f->run[f->run_count].run;
		int rc;

		if (goal == PID_NONE)
			goal = map_goal(f->fs, f->st->ino, block);
		rc = run_reserve(f->fs, goal, (uint32_t)MIN(count, DISK_EXTENT_MAX), run);
		if (rc < 0)
			return rc;
		goal = run->pid + run->length;
		f->run[f->run_count++].block = block;
		block += run->length;
		count -= run->length;
		if (f->run_count == EXTENTS_A_PIECE) {
			rc = allocate_commit(f);
			if (rc < 0)
				return rc;
		}
	}
	return 0;
}

/* Visits the holes of [first, stop): counts their blocks, or allocates them. */
static int step_holes(
	struct falloc *f, uint64_t first, uint64_t stop, bool allocate, uint64_t *pages)
{
	while (first < stop) {
		struct map map;
		int rc = map_lookup(f->fs, f->st->ino, first, stop - first, &map);

		for (unsigned i = 0; rc == 0 && i < map.count; i++) {
			const struct map_segment *s = &map.segment[i];

			if (s->kind != MAP_HOLE)
				continue;
			*pages += s->count;
			if (allocate)
				rc = allocate_hole(f, s->block, s->count);
		}
		if (rc < 0)
			return rc;
		first = map_end(&map);
	}
	return 0;
}

static void give_back(struct falloc *f)
{
	const struct dirty_range *r = dirty_ranges(&f->taken);

	f->gives_back = true;
	for (uint32_t i = 0; i < f->taken.count; i++)
		if (punch_blocks(f, r[i].first, r[i].end, false) < 0)
			return; /* stays with the file as reserved space */
}

static int allocate_run(struct falloc *f, uint64_t first, uint64_t stop)
{
	uint64_t pages = 0;
	int rc = 0;

	for (unsigned tries = 1; tries <= views_max(f->fs); tries++) {
		rc = intent_finish(f->fs, f->st);
		if (rc == 0)
			rc = step_holes(f, first, stop, true, &pages);
		if (rc == 0)
			rc = allocate_commit(f);
		for (unsigned i = 0; i < f->run_count; i++)
			space_unreserve(f->fs->volume->space, &f->run[i].run);
		f->run_count = 0;
		if (rc != -ESTALE)
			break;
		views_pause(f->fs, tries); /* another node has mapped some of it */
	}
	return rc == -ESTALE ? -EUCLEAN : rc;
}

static bool has_room(struct fs *fs, uint64_t pages)
{
	struct space_stat stat;

	if (cache_store_full(fs->volume->cache))
		return false;
	space_stat(fs->volume->space, &stat);
	if (pages > stat.available_pages)
		space_stat_all(fs->volume->space, 0, &stat);
	return pages <= stat.available_pages;
}

/* Returns -ENOSPC before any change if the space is clearly too small. */
static int allocate_check(struct falloc *f, uint64_t first, uint64_t stop)
{
	uint64_t pages = 0;
	int rc = step_holes(f, first, stop, false, &pages);

	if (rc < 0 || has_room(f->fs, pages))
		return rc;
	(void)orphans_settle(f->fs, true);
	return has_room(f->fs, pages) ? 0 : -ENOSPC;
}

/* ---- fallocate ------------------------------------------------------------------- */

static int finish_body(struct txn *x, void *arg)
{
	struct falloc *f = arg;
	struct disk_inode inode;
	int rc = inode_read(x, f->st->ino, &inode);

	if (rc < 0)
		return rc;
	if (!(f->mode & FALLOC_FL_KEEP_SIZE) && f->end > inode.size) {
		if (inode.size != f->size_before || intent_is_due(&inode))
			return -ESTALE;
		if (f->tail_dirty)
			rc = extent_zero_bytes(f->fs, x, f->st->ino, block_of(inode.size),
				inode.size % PAGE_SIZE, PAGE_SIZE);
		if (rc < 0)
			return rc;
		inode.size = f->end;
	}
	rc = inode_modified(f->fs, x, f->st->ino, &inode, f->c, rt_wall_ns());
	return rc ? rc : inode_write(x, f->st->ino, &inode);
}

/* Sets size and times after all pages are allocated. */
static int set_size_and_times(struct falloc *f)
{
	struct disk_inode inode;
	int rc = -ESTALE;

	for (unsigned tries = 1; rc == -ESTALE && tries <= views_max(f->fs); tries++) {
		views_pause(f->fs, tries);
		rc = intent_finish(f->fs, f->st);
		if (rc == 0)
			rc = inode_get(f->fs, f->st->ino, &inode);
		if (rc < 0)
			return rc;
		f->size_before = inode.size;
		f->tail_dirty = false;
		if (!(f->mode & FALLOC_FL_KEEP_SIZE) && f->end > inode.size)
			rc = tail_check(f->fs, f->st, inode.size, &f->tail_dirty);
		if (rc == 0)
			rc = ops_run(f->fs, 0, finish_body, f, NULL);
	}
	return rc == -ESTALE ? -EUCLEAN : rc;
}

static int falloc_run(struct falloc *f)
{
	uint64_t first = block_of(f->offset), stop = block_behind(f->end);
	uint64_t inner_first = block_behind(f->offset), inner_stop = block_of(f->end);
	int rc = 0;

	if (!(f->mode & FALLOC_FL_PUNCH_HOLE))
		rc = allocate_check(f, first, stop);
	if (rc == 0 && (f->mode & (FALLOC_FL_PUNCH_HOLE | FALLOC_FL_ZERO_RANGE))) {
		rc = punch_blocks(f, inner_first, inner_stop, true);
		state_dirty(f->st, first, stop);
	}
	if (rc == 0 && !(f->mode & FALLOC_FL_PUNCH_HOLE)) {
		rc = allocate_run(f, first, stop);
		if (rc < 0)
			give_back(f);
	}
	if (rc == 0 && !(f->mode & FALLOC_FL_PUNCH_HOLE))
		rc = set_size_and_times(f);
	return rc;
}

static bool mode_known(int mode)
{
	switch (mode) {
	case 0:
	case FALLOC_FL_KEEP_SIZE:
	case FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE:
	case FALLOC_FL_ZERO_RANGE:
	case FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE:
		return true;
	default:
		return false;
	}
}

/* As vfs_fallocate() does for other filesystems. */
static int falloc_allowed(const struct falloc *f)
{
	struct disk_inode inode;
	int rc = inode_get(f->fs, f->st->ino, &inode);
	uint32_t never = DISK_INODE_IMMUTABLE;

	if (f->mode & ~FALLOC_FL_KEEP_SIZE)
		never |= DISK_INODE_APPEND_ONLY;
	return rc == 0 && (inode.flags & never) ? -EPERM : rc;
}

int ops_fallocate(struct fs *fs, struct ops_file *file, const struct ops_caller *c,
	int mode, uint64_t offset, uint64_t len)
{
	struct falloc f = {
		.fs = fs, .st = file->state, .c = c, .mode = mode, .offset = offset};
	struct kcache_change change;
	int rc;

	ops_count(fs, OPS_CALL_FALLOCATE);
	if (!mode_known(mode))
		return -EOPNOTSUPP;
	if (len == 0)
		return -EINVAL;
	if ((file->flags & O_ACCMODE) == O_RDONLY)
		return -EBADF;
	if (offset > FILE_SIZE_MAX || len > FILE_SIZE_MAX - offset)
		return -EFBIG;
	rc = fs_check_writable(fs);
	if (rc < 0)
		return rc;
	rc = kcache_stores_await(fs->kcache, &f.st->kcache);
	if (rc == 0)
		rc = falloc_allowed(&f);
	if (rc < 0)
		return rc;
	f.end = offset + len;
	kcache_change_begin(fs->kcache, &change, &f.st->kcache, offset, len);
	rt_gate_enter(&f.st->alloc_gate, 1);
	rc = intent_finish(fs, f.st);
	if (rc == 0)
		rc = falloc_run(&f);
	rt_gate_leave(&f.st->alloc_gate, 1);
	kcache_change_end(fs->kcache, &change);
	dirty_clear(&f.taken);
	return rc;
}

/* ---- lseek ----------------------------------------------------------------------- */

struct seek {
	struct fs *fs;
	struct inode_state *st;
	bool data;             /* looks for data, else for a hole */
	bool unseen;           /* mappings may hold data of holes */
	uint64_t fetched, end; /* blocks; up to `fetched` mappings have no data */
	ops_fetch fetch;
	void *owner;
};

static int stores_fetch(struct fs *fs, struct inode_state *st, uint64_t first,
	uint64_t end, ops_fetch fetch, void *owner)
{
	if (fs->kcache)
		return kcache_fetch_range(fs->kcache, &st->kcache, first, end);
	return fetch ? fetch(owner, st->ino, first, end) : 0;
}

/* Returns the number of segments from the i-th on without data. */
static unsigned hole_segments(const struct map *map, unsigned i)
{
	unsigned n = 0;

	while (i + n < map->count && map->segment[i + n].kind != MAP_WRITTEN)
		n++;
	return n;
}

/* Returns the offset found in the map, or the one to continue at; -errno. Before a hole counts, the
 * stores of mappings in it are fetched, and it is looked up again. */
static int64_t seek_in(struct seek *k, const struct map *map, bool *found)
{
	for (unsigned i = 0; i < map->count; i++) {
		const struct map_segment *s = &map->segment[i], *last;
		bool data = s->kind == MAP_WRITTEN;
		int rc;

		if (!data && k->unseen && k->fetched < s->block + s->count) {
			last = s + hole_segments(map, i) - 1;
			k->fetched = last->block + last->count;
			rc = stores_fetch(
				k->fs, k->st, s->block, k->fetched, k->fetch, k->owner);
			return rc ? rc : (int64_t)s->block;
		}
		*found = data == k->data;
		if (*found)
			return (int64_t)s->block;
	}
	return (int64_t)map_end(map);
}

int64_t ops_lseek(struct fs *fs, struct ops_file *file, uint64_t offset, int whence,
	ops_fetch fetch, void *owner)
{
	struct seek k = {.fs = fs,
		.st = file->state,
		.data = whence == SEEK_DATA,
		.fetch = fetch,
		.owner = owner};
	struct disk_inode inode;
	bool found = false;
	int64_t at;
	int rc;

	ops_count(fs, OPS_CALL_LSEEK);
	if (whence != SEEK_DATA && whence != SEEK_HOLE)
		return -EINVAL;
	rc = kcache_stores_await(fs->kcache, &k.st->kcache);
	if (rc == 0)
		rc = inode_get(fs, k.st->ino, &inode);
	if (rc < 0)
		return rc;
	if (offset >= inode.size)
		return -ENXIO;
	k.unseen = stores_unseen(fs, k.st);
	k.end = block_behind(inode.size);
	for (at = (int64_t)block_of(offset); !found && (uint64_t)at < k.end;) {
		struct map map;

		rc = map_lookup(fs, k.st->ino, (uint64_t)at, k.end - (uint64_t)at, &map);
		if (rc < 0)
			return rc;
		at = seek_in(&k, &map, &found);
		if (at < 0)
			return at;
	}
	if (found)
		return (int64_t)MAX(offset, (uint64_t)at << PAGE_SHIFT);
	return whence == SEEK_HOLE ? (int64_t)inode.size : -ENXIO;
}

/* ---- a file without blocks ------------------------------------------------------- */

bool ops_blocks_hidden(struct fs *fs, const struct ops_attr *attr)
{
	struct inode_state *st;
	bool hidden;

	if (likely(attr->inode.blocks) || !S_ISREG(attr->inode.mode) ||
		attr->inode.size == 0)
		return false;
	if (fs_opens_hidden(fs))
		return true;
	st = state_find(fs, attr->ino);
	if (!st)
		return false;
	hidden = stores_unseen(fs, st);
	state_put(fs, st);
	return hidden;
}

int ops_fetched(struct fs *fs, uint64_t ino, ops_fetch fetch, void *owner)
{
	struct inode_state *st = state_find(fs, ino);
	int rc;

	if (!st)
		return fs_opens_hidden(fs) && fetch ? fetch(owner, ino, 0, UINT64_MAX)
						    : 0;
	rc = stores_fetch(fs, st, 0, UINT64_MAX, fetch, owner);
	state_put(fs, st);
	return rc;
}

/* ---- copy_range ------------------------------------------------------------------ */

struct copy_buffer {
	uint8_t *bytes;
	size_t size;
};

static int copy_sink(void *arg, const struct iovec *iov, unsigned iov_count, size_t total)
{
	struct copy_buffer *b = arg;
	size_t at = 0;

	WEFT_ASSERT(total <= b->size);
	for (unsigned i = 0; i < iov_count; i++) {
		memcpy(b->bytes + at, iov[i].iov_base, iov[i].iov_len);
		at += iov[i].iov_len;
	}
	return (int)at;
}

static int64_t copy_all(struct fs *fs, struct ops_file *in, uint64_t offset_in,
	struct inode_state *out, uint64_t offset_out, size_t len,
	const struct ops_caller *c)
{
	struct copy_buffer b = {.size = MIN(len, (size_t)COPY_BUFFER_PAGES * PAGE_SIZE)};
	size_t done = 0;
	int64_t rc = 0;

	b.bytes = rt_alloc(b.size);
	if (!b.bytes)
		return -ENOMEM;
	while (done < len) {
		int got = data_read(fs, in->state, offset_in + done,
			MIN(b.size, len - done), !(in->flags & O_NOATIME), copy_sink, &b);
		int over = (int)((offset_out + done + MAX(got, 0)) % PAGE_SIZE);

		/* Write whole pages, except for the first and the last. No page is then filled in
		 * two steps, and a copy that ends early has written whole pages. */
		if (got > over && done + (size_t)got < len)
			got -= over;
		rc = got;
		if (got > 0)
			rc = data_write(fs, out, c, offset_out + done, b.bytes,
				(size_t)got, false);
		if (rc <= 0)
			break;
		done += (size_t)rc;
		if (rc < got)
			break;
	}
	rt_free(b.bytes);
	return done ? (int64_t)done : rc;
}

int64_t ops_copy_range(struct fs *fs, struct ops_file *in, uint64_t offset_in,
	struct ops_file *out, uint64_t offset_out, size_t len, const struct ops_caller *c)
{
	struct disk_inode inode;
	uint64_t copied = len;
	int rc;

	ops_count(fs, OPS_CALL_COPY_RANGE);
	if ((in->flags & O_ACCMODE) == O_WRONLY || (out->flags & O_ACCMODE) == O_RDONLY ||
		(out->flags & O_APPEND))
		return -EBADF;
	if (offset_in > FILE_SIZE_MAX || offset_out > FILE_SIZE_MAX)
		return -EINVAL;
	rc = fs_check_writable(fs);
	if (rc == 0)
		rc = kcache_stores_await(fs->kcache, &in->state->kcache);
	if (rc == 0)
		rc = kcache_stores_await(fs->kcache, &out->state->kcache);
	if (rc == 0)
		rc = inode_get(fs, out->state->ino, &inode);
	if (rc == 0 && inode_is_fixed(&inode))
		rc = -EPERM;
	if (rc == 0)
		rc = inode_get(fs, in->state->ino, &inode);
	if (rc < 0)
		return rc;
	if (offset_in >= inode.size)
		return 0;
	copied = MIN(copied, inode.size - offset_in);
	if (in->state == out->state && offset_in < offset_out + copied &&
		offset_out < offset_in + copied)
		return -EINVAL;
	copied = MIN(copied, COPY_BYTES_MAX);
	return copied ? copy_all(fs, in, offset_in, out->state, offset_out,
				(size_t)copied, c)
		      : 0;
}
