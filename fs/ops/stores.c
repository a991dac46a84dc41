/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stores through shared mappings, on a volume of several nodes (docs/many-nodes.md, "Writers
 * and mappings"). The kernel has pages that it may change without a word while this node
 * has them exclusively (EXPOSE_STORES); before one is given up it writes the stores back.
 *
 * Keeps: what is written back goes straight to the frame that the page was exposed from. No
 * look-up, transaction or other node is waited for, so whoever gives the page up waits
 * for nothing that waits for it. Bytes of pages that the file has no more are nobody's.
 *
 * With mmap_local the kernel has pages as readers have them, and may write them back when this
 * node has them no more. Then stores are kept here, and written as a program would by a
 * task; what has to come behind them waits for it (stores_wait).
 *
 * The mtime is kept in the state and brought into the tree by fsync, by the last close,
 * and by the write-back, once a second: it costs the leaf, which others may want.
 */
#include "fs/ops/kernel.h"

#define SETTLE_NS       1000000000ll
#define LATER_BYTES_MAX (64u << 20)

static const struct ops_caller nobody = {.keeps_setid = true};

/* With mmap_local: what is to be written. */
struct later {
	struct later *next;
	struct inode_state *st; /* with a reference */
	uint64_t offset;
	size_t len;
	uint8_t bytes[];
};

struct stores {
	struct rt_mutex lock; /* a leaf, for all below and the states' `storing` */
	struct rt_cond work, done;
	struct later *first, **end;
	size_t bytes;
	bool stopping;
	struct rt_task *task;
};

/* ---- handles ------------------------------------------------------------------------- */

void stores_opened(struct fs *fs, struct ops_file *file)
{
	file->mappable = fs->kernel && !fs->options.mmap_local &&
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
		(void)state_settle(fs, st); /* if not: the next one */
	state_put(fs, st);
}

/* ---- stores that are written later --------------------------------------------------------- */

static struct later *later_take(struct stores *s)
{
	struct later *l;

	while (!s->first && !s->stopping)
		rt_cond_wait(&s->work, &s->lock, RT_FOREVER);
	l = s->first;
	if (l)
		s->first = l->next;
	if (!s->first)
		s->end = &s->first;
	return l;
}

static void later_write(struct fs *fs, struct later *l)
{
	int64_t rc = data_write_inside(fs, l->st, &nobody, l->offset, l->bytes, l->len);

	if (rc < 0 && rc != -ENOENT)
		weft_log(3, "inode %llu: what was stored through a mapping is lost: %s",
			(unsigned long long)l->st->ino, strerror((int)-rc));
}

static void later_main(void *arg)
{
	struct fs *fs = arg;
	struct stores *s = fs->stores;
	struct later *l;

	rt_mutex_lock(&s->lock);
	while ((l = later_take(s)) != NULL) {
		rt_mutex_unlock(&s->lock);
		later_write(fs, l);
		rt_mutex_lock(&s->lock);
		s->bytes -= l->len;
		l->st->storing--;
		rt_mutex_unlock(&s->lock);
		rt_cond_broadcast(&s->done);
		state_put(fs, l->st);
		rt_free(l);
		rt_mutex_lock(&s->lock);
	}
	rt_mutex_unlock(&s->lock);
}

static int store_later(struct fs *fs, struct inode_state *st, uint64_t offset,
	const void *bytes, size_t len)
{
	struct stores *s = fs->stores;
	struct later *l = rt_alloc(sizeof(*l) + len);

	if (!l)
		return -ENOMEM;
	*l = (struct later){.offset = offset, .len = len};
	memcpy(l->bytes, bytes, len);
	l->st = state_find(fs, st->ino);
	WEFT_ASSERT(l->st == st);
	rt_mutex_lock(&s->lock);
	while (s->bytes && s->bytes + len > LATER_BYTES_MAX)
		rt_cond_wait(&s->done, &s->lock, RT_FOREVER);
	s->bytes += len;
	st->storing++;
	*s->end = l;
	s->end = &l->next;
	rt_mutex_unlock(&s->lock);
	rt_cond_signal(&s->work);
	return 0;
}

void stores_wait(struct fs *fs, struct inode_state *st)
{
	struct stores *s = fs->stores;

	if (likely(!s))
		return;
	rt_mutex_lock(&s->lock);
	while (st->storing)
		rt_cond_wait(&s->done, &s->lock, RT_FOREVER);
	rt_mutex_unlock(&s->lock);
}

int stores_open(struct fs *fs)
{
	struct stores *s;
	int e;

	if (!fs->options.mmap_local || !fs_has_peers(fs))
		return 0;
	s = rt_alloc(sizeof(*s));
	if (!s)
		return -ENOMEM;
	s->end = &s->first;
	fs->stores = s;
	e = rt_task_spawn(&s->task, "weft-stores", later_main, fs);
	if (e) {
		fs->stores = NULL;
		rt_free(s);
	}
	return e;
}

void stores_close(struct fs *fs)
{
	struct stores *s = fs->stores;

	if (!s)
		return;
	rt_mutex_lock(&s->lock);
	s->stopping = true;
	rt_mutex_unlock(&s->lock);
	rt_cond_signal(&s->work);
	rt_task_join(s->task);
	fs->stores = NULL;
	rt_free(s);
}

/* ---- the call -------------------------------------------------------------------------------- */

int64_t ops_store(struct fs *fs, struct ops_file *file, uint64_t offset, const void *buf,
	size_t len)
{
	int rc = 0;

	ops_count(fs, OPS_CALL_WRITE);
	if ((file->flags & O_ACCMODE) == O_RDONLY)
		return -EBADF;
	if (fs->stores)
		rc = store_later(fs, file->state, offset, buf, len);
	else
		store_pages(fs, file->state, offset, buf, len);
	return rc ? rc : (int64_t)len;
}
