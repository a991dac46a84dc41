/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stores through shared mappings, on a volume of several nodes (docs/many-nodes.md, "Mappings").
 * The kernel has pages that it may change without a word while this node has them exclusively
 * (EXPOSE_STORES); before one is given up it writes the stores back.
 *
 * Keeps: what is written back goes straight to the frame that the page was exposed from. No
 * look-up, transaction or other node is waited for, so whoever gives the page up waits
 * for nothing that waits for it. Bytes of pages that the file has no more are nobody's. (With
 * OPS_MMAP_LOCAL it is answered before that: kernel_stores.c.)
 *
 * The mtime is kept in the state and brought into the tree by fsync, by a close, and behind
 * a write-back: once a second, and when the file is at rest. It costs the leaf, which others
 * may want.
 */
#include "fs/ops/kernel.h"

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
	file->mappable = fs->kernel && fs->options.mmap != OPS_MMAP_OFF &&
			 (file->flags & O_ACCMODE) == O_RDWR;
	if (file->mappable)
		atomic_fetch_add_explicit(
			&file->state->mappable, 1, memory_order_seq_cst);
}

void stores_closed(struct ops_file *file)
{
	struct inode_state *st = file->state;

	if (!file->mappable ||
		atomic_fetch_sub_explicit(&st->mappable, 1, memory_order_seq_cst) > 1)
		return;
	/* the kernel has written all back before it let go of the handle */
	if (atomic_exchange_explicit(&st->mapped, false, memory_order_acq_rel))
		atomic_fetch_sub_explicit(&st->writing, 1, memory_order_release);
}

static int join_body(struct txn *x, void *arg)
{
	const uint64_t *ino = arg;
	struct disk_inode inode;
	int rc = inode_read(x, *ino, &inode);

	return rc ? rc : inode_write(x, *ino, &inode); /* says who has written */
}

/* Counted as a write under way before the inode says so: who takes this node off its list looks
 * at that first. */
int stores_join(struct fs *fs, struct inode_state *st)
{
	uint64_t ino = st->ino;
	int rc;

	if (likely(atomic_load_explicit(&st->mapped, memory_order_acquire)))
		return 0;
	atomic_fetch_add_explicit(&st->writing, 1, memory_order_seq_cst);
	rc = ops_run(fs, 0, join_body, &ino, NULL);
	if (rc == -ENOENT) /* it is gone, and open */
		rc = 0;
	if (rc || atomic_exchange_explicit(&st->mapped, true, memory_order_acq_rel))
		atomic_fetch_sub_explicit(&st->writing, 1, memory_order_release);
	return rc;
}

/* ---- stores that come back -------------------------------------------------------------- */

static void stored(struct inode_state *st, uint64_t first, uint64_t end)
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
			stored(st, block, block + 1);
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
		(void)state_settle(fs, st); /* if not: the next write-back, or close */
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

static int bring_in(struct fs *fs, struct inode_state *st, struct kernel_store *s,
	uint64_t offset, const uint8_t *bytes, const uint8_t *was, size_t len)
{
	size_t skip = offset % PAGE_SIZE, done = 0;
	int first = 0;

	while (done < len) {
		uint64_t at = offset + done;
		size_t part = MIN(len - done, (size_t)(PAGE_SIZE - at % PAGE_SIZE));
		int rc = data_merge(fs, st, s, at, bytes + done, was + skip + done, part);

		if (rc > 0)
			stored(st, at >> PAGE_SHIFT, (at >> PAGE_SHIFT) + 1);
		else if (rc < 0 && rc != -ENOENT && !first) /* or nobody's any more */
			first = rc == -ENOSPC || rc == -EDQUOT ? rc : -EIO;
		done += part;
	}
	return first;
}

/* Nobody is told of the error but by the next fsync or close. */
static void store_failed(struct inode_state *st, int rc)
{
	weft_log(3,
		"inode %llu: what a program has stored through a mapping could not be "
		"written: %s",
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
	struct kernel_store s = {
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
		fs, file->state->ino); /* which may be closed once it is answered */
	WEFT_ASSERT(st == file->state);
	/* so this node stays among the inode's writers */
	atomic_fetch_add_explicit(&st->writing, 1, memory_order_seq_cst);
	atomic_fetch_add_explicit(&st->storing, 1, memory_order_seq_cst);
	kernel_store_begin(fs, &s, st, was);
	rc = kernel_store_turn(fs, &s);
	rc = rc ? -EIO : bring_in(fs, st, &s, offset, buf, was, len);
	if (kernel_store_end(fs, &s) && rc)
		store_failed(st, rc);
	atomic_fetch_sub_explicit(&st->storing, 1, memory_order_release);
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
