/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stores through shared mappings, on a volume of several nodes (docs/nodes/mappings.md,
 * "Mappings"). The kernel may change a page without a request while this node has the page
 * exclusively (KCACHE_STORES). Before this node gives the page up, the kernel writes the stores
 * back.
 *
 * Keeps: stores that are written back go straight to the frame from which the page was
 * kernel-cached. That waits for no look-up, transaction or other node. So a task that gives the
 * page up waits for no task that waits for it. Bytes of pages that the file no longer has are
 * dropped. (With OPS_MMAP_LOCAL the write-back is answered before that: stores.c of fs/kcache.)
 *
 * The state keeps the mtime. fsync, a close and a write-back bring it into the tree. A write-back
 * does so once a second, and when no program uses the file. It needs the leaf, which other nodes
 * may want.
 */
#include "fs/ops/data_internal.h"

#define SETTLE_NS 1000000000ll

bool fs_maps_shared(const struct fs *fs)
{
	return fs->options.mmap != OPS_MMAP_OFF && fs_has_peers(fs);
}

bool fs_maps_alone(const struct fs *fs)
{
	return fs->options.mmap == OPS_MMAP_SHARED && fs_has_peers(fs);
}

/* ---- handles ------------------------------------------------------------------------- */

void stores_opened(struct fs *fs, struct ops_file *file)
{
	file->mappable = fs->kcache && fs->options.mmap != OPS_MMAP_OFF &&
			 (file->flags & O_ACCMODE) == O_RDWR;
	if (file->mappable)
		atomic_fetch_add_explicit(
			&file->state->kcache.mappable, 1, memory_order_seq_cst);
}

void stores_closed(struct ops_file *file)
{
	struct inode_state *st = file->state;

	if (!file->mappable || atomic_fetch_sub_explicit(
				       &st->kcache.mappable, 1, memory_order_seq_cst) > 1)
		return;
	/* The kernel has written all stores back before it released the handle. */
	if (atomic_exchange_explicit(&st->kcache.mapped, false, memory_order_acq_rel))
		atomic_fetch_sub_explicit(&st->writing, 1, memory_order_release);
}

static int join_body(struct txn *x, void *arg)
{
	const uint64_t *ino = arg;
	struct disk_inode inode;
	int rc = inode_read(x, *ino, &inode);

	return rc ? rc : inode_write(x, *ino, &inode); /* names this node as a writer */
}

/* Counted as a write under way before the inode names this node. A task that takes this node off
 * that list looks at the count first. */
int stores_join(struct fs *fs, struct inode_state *st)
{
	uint64_t ino = st->ino;
	int rc;

	if (likely(atomic_load_explicit(&st->kcache.mapped, memory_order_acquire)))
		return 0;
	atomic_fetch_add_explicit(&st->writing, 1, memory_order_seq_cst);
	rc = ops_run(fs, 0, join_body, &ino, NULL);
	if (rc == -ENOENT) /* it is gone, and open */
		rc = 0;
	if (rc ||
		atomic_exchange_explicit(&st->kcache.mapped, true, memory_order_acq_rel))
		atomic_fetch_sub_explicit(&st->writing, 1, memory_order_release);
	return rc;
}

/* ---- stores that come back -------------------------------------------------------------- */

static void note_stored(struct inode_state *st, uint64_t first, uint64_t end)
{
	int64_t now = rt_wall_ns();

	rt_mutex_lock(&st->lock);
	dirty_add(&st->dirty, first, end);
	st->mtime_ns = MAX(st->mtime_ns, now);
	rt_mutex_unlock(&st->lock);
}

static void store_pages(struct fs *fs, struct inode_state *st, uint64_t offset,
	const uint8_t *bytes, size_t len)
{
	size_t done = 0;

	while (done < len) {
		uint64_t at = offset + done, block = at >> PAGE_SHIFT;
		size_t part = MIN(len - done, (size_t)(PAGE_SIZE - at % PAGE_SIZE));

		if (cache_stores(fs->volume->cache, st->ino, block,
			    (unsigned)(at % PAGE_SIZE), bytes + done, part) == 0)
			note_stored(st, block, block + 1);
		done += part;
	}
}

void stores_settle(struct fs *fs, struct inode_state *st)
{
	bool any;

	rt_mutex_lock(&st->lock);
	any = st->mtime_ns != 0;
	rt_mutex_unlock(&st->lock);
	if (any)
		(void)state_settle(fs, st); /* if it fails: the next write-back, or close */
}

void ops_stored(struct fs *fs, uint64_t ino)
{
	struct inode_state *st = state_find(fs, ino);
	int64_t now = rt_wall_ns(), before;

	if (!st)
		return;
	before = atomic_load_explicit(&st->settled_ns, memory_order_relaxed);
	if ((now - before > SETTLE_NS || now < before) &&
		atomic_compare_exchange_strong_explicit(&st->settled_ns, &before, now,
			memory_order_relaxed, memory_order_relaxed))
		stores_settle(fs, st);
	else
		state_settle_later(fs, st);
	state_put(fs, st);
}

/* ---- for one node: OPS_MMAP_LOCAL ---------------------------------------------------------- */

static int bring_in(struct fs *fs, struct inode_state *st, struct kcache_store *s,
	uint64_t offset, const uint8_t *bytes, const uint8_t *was, size_t len)
{
	size_t skip = offset % PAGE_SIZE, done = 0;
	int first = 0;

	while (done < len) {
		uint64_t at = offset + done;
		size_t part = MIN(len - done, (size_t)(PAGE_SIZE - at % PAGE_SIZE));
		int rc = data_merge(fs, st, s, at, bytes + done, was + skip + done, part);

		if (rc > 0)
			note_stored(st, at >> PAGE_SHIFT, (at >> PAGE_SHIFT) + 1);
		else if (rc < 0 && rc != -ENOENT && !first) /* or of a page that is gone */
			first = rc == -ENOSPC || rc == -EDQUOT ? rc : -EIO;
		done += part;
	}
	return first;
}

/* Keeps the error for the next fsync or close, which alone returns it. */
static void store_failed(struct inode_state *st, int rc)
{
	weft_log(3,
		"inode %llu: a program's stores through a mapping were not written: %s",
		(unsigned long long)st->ino, strerror(-rc));
	atomic_store_explicit(&st->store_error, rc, memory_order_relaxed);
}

int stores_error(struct inode_state *st, bool once)
{
	return once ? atomic_exchange_explicit(&st->store_error, 0, memory_order_relaxed)
		    : atomic_load_explicit(&st->store_error, memory_order_relaxed);
}

int64_t ops_store_local(struct fs *fs, struct ops_file *file, uint64_t offset,
	const void *buf, size_t len, void (*answer)(void *arg), void *arg)
{
	unsigned pages = (unsigned)DIV_UP(offset % PAGE_SIZE + len, (size_t)PAGE_SIZE);
	struct inode_state *st;
	struct kcache_store s = {
		.offset = offset, .bytes = buf, .len = len, .answer = answer, .arg = arg};
	uint8_t *was;
	int rc;

	ops_count(fs, OPS_CALL_WRITE);
	if ((file->flags & O_ACCMODE) == O_RDONLY)
		return -EBADF;
	was = rt_alloc_pages((size_t)pages * PAGE_SIZE);
	if (!was)
		return -ENOMEM;
	st = state_find(
		fs, file->state->ino); /* the file may be closed once it is answered */
	WEFT_ASSERT(st == file->state);
	/* So this node stays among the inode's writers. */
	atomic_fetch_add_explicit(&st->writing, 1, memory_order_seq_cst);
	atomic_fetch_add_explicit(&st->kcache.storing, 1, memory_order_seq_cst);
	kcache_store_begin(fs->kcache, &s, &st->kcache, was);
	rc = kcache_store_turn(fs->kcache, &s);
	rc = rc ? -EIO : bring_in(fs, st, &s, offset, buf, was, len);
	if (kcache_store_end(fs->kcache, &s) && rc)
		store_failed(st, rc);
	atomic_fetch_sub_explicit(&st->kcache.storing, 1, memory_order_release);
	atomic_fetch_sub_explicit(&st->writing, 1, memory_order_release);
	rt_free_pages(was, (size_t)pages * PAGE_SIZE);
	state_put(fs, st);
	return rc ? rc : (int64_t)len;
}

/* ---- the call -------------------------------------------------------------------------------- */

int64_t ops_store(struct fs *fs, struct ops_file *file, uint64_t offset, const void *buf,
	size_t len)
{
	ops_count(fs, OPS_CALL_WRITE);
	if ((file->flags & O_ACCMODE) == O_RDONLY)
		return -EBADF;
	store_pages(fs, file->state, offset, buf, len);
	return (int64_t)len;
}
