/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sets the size of a file, and works intents off.
 *
 * The first transaction sets the size and zeroes the rest of the last page. It may leave these
 * bytes to the next call that moves the end (keeps_tail). It frees as many extents as fit. If more
 * are left, it also writes an intent and sets a flag in the inode. Further transactions free the
 * rest in pieces. The last one deletes the intent. The count of blocks is exact after each.
 *
 * The caller holds `alloc_gate` until the end. On this node other calls therefore see an unfinished
 * truncation only after an error. Other nodes may see it at any time. A call that extends the file
 * or maps pages finds the flag and finishes the truncation first (intent_finish). So does the next
 * mount. Several tasks may work on one intent: each piece is a transaction of its own.
 */
#include "fs/ops/data_internal.h"

static struct disk_key intent_key(uint64_t ino)
{
	return disk_key(DISK_INO_SYSTEM, DISK_ITEM_INTENT, ino);
}

/* ---- working an intent off ------------------------------------------------------- */

struct intent_step {
	struct fs *fs;
	uint64_t ino;
	bool done;
};

/* There is no intent: the task that finished it has cleared the flag, unless it was damaged. */
static int intent_unflag(struct txn *x, uint64_t ino)
{
	struct disk_inode inode;
	int rc = inode_read(x, ino, &inode);

	if (rc < 0 || !intent_is_due(&inode))
		return rc == -ENOENT ? 0 : rc;
	inode.flags &= ~DISK_INODE_HAS_INTENT;
	return inode_write(x, ino, &inode);
}

static int intent_body(struct txn *x, void *arg)
{
	struct intent_step *s = arg;
	struct disk_intent intent;
	struct disk_inode inode;
	uint64_t freed, next;
	int rc;

	s->done = true;
	rc = txn_read(x, intent_key(s->ino), &intent, sizeof(intent));
	if (rc == -ENOENT)
		return intent_unflag(x, s->ino);
	if (rc < 0)
		return rc;
	if (rc != (int)sizeof(intent) || intent.kind != DISK_INTENT_TRUNCATE ||
		intent.from > BLOCK_END) {
		weft_log(3, "inode %llu: its intent is damaged; run fsck.weft",
			(unsigned long long)s->ino);
		return -EUCLEAN;
	}
	rc = inode_read(x, s->ino, &inode);
	if (rc == -ENOENT)
		return txn_delete(x, intent_key(s->ino));
	if (rc < 0)
		return rc;
	rc = extent_remove(
		s->fs, x, s->ino, intent.from, BLOCK_END, false, &freed, &next);
	if (rc < 0)
		return rc;
	s->done = next == BLOCK_END;
	inode.blocks -= MIN(freed, inode.blocks);
	if (s->done)
		inode.flags &= ~DISK_INODE_HAS_INTENT;
	rc = inode_write(x, s->ino, &inode);
	if (rc == 0 && s->done)
		rc = txn_delete(x, intent_key(s->ino));
	return rc;
}

int intent_work(struct fs *fs, struct inode_state *st)
{
	struct intent_step s = {.fs = fs, .ino = st->ino};
	int rc;

	do {
		map_change_begin(st);
		rc = ops_run(fs, OPS_RUN_PRIVILEGED, intent_body, &s, NULL);
		map_change_end(st);
	} while (rc == 0 && !s.done);
	return rc;
}

int intent_finish(struct fs *fs, struct inode_state *st)
{
	struct disk_inode inode;
	int rc = inode_get(fs, st->ino, &inode);

	return rc == 0 && intent_is_due(&inode) ? intent_work(fs, st) : rc;
}

/* ---- the last page --------------------------------------------------------------- */

#define TAIL_MOVED 1 /* the size has changed */

static bool view_still_stands(void *view)
{
	return map_view_stands(view);
}

/*
 * Looks at the last page. -EAGAIN: the view has changed while this waited for the page. A task that
 * sets a size must not wait longer. Another node that has the page may set one, too, and wait for a
 * page for which this node's kernel has stores. Only the page with the current end is worth waiting
 * for: one of those nodes has it.
 */
static int tail_look(struct fs *fs, struct map_view *view, uint64_t size, bool *dirty)
{
	struct cache *cache = fs->volume->cache;
	struct disk_inode inode;
	struct map map;
	struct guard g;
	int rc = inode_get_seen(fs, map_view_seen(view), view->st->ino, &inode);

	if (rc < 0)
		return rc;
	if (inode.size != size)
		return TAIL_MOVED;
	rc = map_lookup_seen(
		fs, map_view_seen(view), view->st->ino, size >> PAGE_SHIFT, 1, &map);
	if (rc < 0 || map.segment[0].kind != MAP_WRITTEN)
		return rc;
	rc = guard_shared_while(cache, map.segment[0].pid, map.segment[0].incarnation,
		view_still_stands, view, &g);
	if (rc < 0)
		return rc;
	*dirty = tail_is_dirty(g.image, size % PAGE_SIZE);
	rc = map_view_stands(view) ? 0 : -ESTALE;
	guard_release(cache, &g);
	return rc;
}

int tail_check(struct fs *fs, struct inode_state *st, uint64_t size, bool *dirty)
{
	struct map_view view;
	int rc = -ESTALE;

	*dirty = false;
	if (size % PAGE_SIZE == 0)
		return 0;
	for (unsigned tries = 1; rc == -ESTALE && tries <= views_max(fs);) {
		map_view_begin(fs, st, true, tries > 1, &view);
		rc = tail_look(fs, &view, size, dirty);
		map_view_end(fs, &view);
		if (rc == -E2BIG) {
			map_tidy(fs, st->ino, size >> PAGE_SHIFT,
				(size >> PAGE_SHIFT) + 1);
			rc = -ESTALE;
		}
		if (rc == -ESTALE)
			views_pause(fs, tries++);
		else if (rc == -EAGAIN) /* without a limit: it may be a long wait */
			rc = -ESTALE;
	}
	if (rc == TAIL_MOVED)
		return -ESTALE;
	return rc == -ESTALE ? -EUCLEAN : rc;
}

/* ---- truncating ------------------------------------------------------------------ */

struct truncation {
	struct fs *fs;
	struct inode_state *st;
	const struct ops_caller *c;
	const struct ops_setattr *set;
	uint64_t size_before; /* the size with which tail_dirty was found */
	bool tail_dirty;
	bool unfinished; /* an intent was written */
	int64_t now;
	struct disk_inode inode; /* as written */
};

/*
 * Returns true if the bytes behind the end must stay. While a size is set, the kernel writes
 * nothing back, so stores of programs here wait until this has ended. This must not wait for a page
 * of which another node's kernel may be in the same position. The next call that moves the end
 * finds the bytes.
 */
static bool keeps_tail(const struct truncation *t)
{
	return fs_has_peers(t->fs) && stores_possible(t->st);
}

/* Shrinks the size, or keeps it and frees pages held behind it. */
static int cut_size(struct truncation *t, struct txn *x, struct disk_inode *inode)
{
	uint64_t size = t->set->size, from = DIV_UP(size, (uint64_t)PAGE_SIZE), freed,
		 next;
	struct disk_intent intent = {.kind = DISK_INTENT_TRUNCATE, .from = from};
	int rc = 0;

	if (size % PAGE_SIZE && size < inode->size && !keeps_tail(t))
		rc = extent_zero_bytes(t->fs, x, t->st->ino, size >> PAGE_SHIFT,
			size % PAGE_SIZE, PAGE_SIZE);
	if (rc == 0)
		rc = extent_remove(
			t->fs, x, t->st->ino, from, BLOCK_END, false, &freed, &next);
	if (rc < 0)
		return rc;
	inode->blocks -= MIN(freed, inode->blocks);
	t->unfinished = next != BLOCK_END;
	if (t->unfinished)
		inode->flags |= DISK_INODE_HAS_INTENT;
	return t->unfinished
		       ? txn_write(x, intent_key(t->st->ino), &intent, sizeof(intent))
		       : 0;
}

static int truncate_body(struct txn *x, void *arg)
{
	struct truncation *t = arg;
	struct disk_inode inode;
	int rc = inode_read(x, t->st->ino, &inode);

	t->unfinished = false;
	if (rc < 0)
		return rc;
	if (!S_ISREG(inode.mode))
		return S_ISDIR(inode.mode) ? -EISDIR : -EINVAL;
	if (inode.size != t->size_before || intent_is_due(&inode))
		return -ESTALE;
	if (t->set->size <= inode.size)
		rc = cut_size(t, x, &inode);
	else if (t->tail_dirty)
		rc = extent_zero_bytes(t->fs, x, t->st->ino, inode.size >> PAGE_SHIFT,
			inode.size % PAGE_SIZE, PAGE_SIZE);
	if (rc < 0)
		return rc;
	inode.size = t->set->size;
	rc = setattr_apply(t->fs, x, t->st->ino, &inode, t->c, t->set, t->now);
	if (rc < 0)
		return rc;
	rc = inode_write(x, t->st->ino, &inode);
	t->inode = inode;
	return rc;
}

/* Runs the first transaction. -ESTALE: another node has changed the size, or cut. */
static int truncate_commit(struct truncation *t)
{
	struct inode_state *st = t->st;
	struct disk_inode inode;
	unsigned flags = 0;
	int rc;

	rc = inode_get(t->fs, st->ino, &inode);
	if (rc == 0 && intent_is_due(&inode))
		rc = intent_work(t->fs, st);
	if (rc < 0)
		return rc;
	t->size_before = inode.size;
	t->tail_dirty = false;
	t->now = rt_wall_ns();
	if (t->set->size > inode.size && S_ISREG(inode.mode)) {
		rc = tail_check(t->fs, st, inode.size, &t->tail_dirty);
		if (rc < 0)
			return rc;
	} else {
		flags = OPS_RUN_PRIVILEGED;
	}
	map_change_begin(st);
	rc = ops_run(t->fs, flags | OPS_RUN_LETS_GO, truncate_body, t, NULL);
	map_change_end(st);
	return rc;
}

/* Drops the in-memory state of blocks that are gone. The transaction has logged the rest of the
 * last page, but it is still dirty. */
static void state_cut(struct inode_state *st, uint64_t size)
{
	rt_mutex_lock(&st->lock);
	dirty_cut(&st->dirty, DIV_UP(size, (uint64_t)PAGE_SIZE));
	if (size % PAGE_SIZE)
		dirty_add(&st->dirty, size >> PAGE_SHIFT, (size >> PAGE_SHIFT) + 1);
	rt_mutex_unlock(&st->lock);
}

int ops_truncate(struct fs *fs, uint64_t ino, const struct ops_caller *c,
	const struct ops_setattr *set, struct ops_attr *out)
{
	struct truncation t = {.fs = fs, .c = c, .set = set};
	struct kcache_change change;
	int rc;

	if (set->size > FILE_SIZE_MAX)
		return -EFBIG;
	rc = fs_check_writable(fs);
	if (rc < 0)
		return rc;
	rc = state_get(fs, ino, &t.st);
	if (rc < 0)
		return rc;
	/* Before any wait for another node: that node may wait for a task that waits for this. */
	kcache_change_cuts(fs->kcache, &change, &t.st->kcache, set->size);
	rc = file_settle(fs, ino);
	if (rc)
		goto out_changed;
	kcache_stores_cut(fs->kcache, ino, set->size);
	rt_gate_enter(&t.st->alloc_gate, 1);
	for (unsigned tries = 1; tries <= views_max(fs); tries++) {
		rc = truncate_commit(&t);
		if (rc != -ESTALE)
			break;
		views_pause(fs, tries);
	}
	if (rc < 0)
		goto out_unlock;
	state_times_written(t.st, t.now);
	if (t.set->size < t.size_before) {
		state_cut(t.st, t.set->size);
		kcache_sizes_cut(&fs->sizes, &t.st->kcache, t.set->size);
	}
	ahead_release(fs, t.st);
	/* The size is set. After an error pages stay with the file until a later call finds the
	 * intent. */
	if (t.unfinished)
		(void)intent_work(fs, t.st);
	*out = (struct ops_attr){.ino = ino, .inode = t.inode};
	if (t.unfinished)
		(void)inode_get(fs, ino, &out->inode);
	file_overlay(fs, ino, &out->inode);
out_unlock:
	rt_gate_leave(&t.st->alloc_gate, 1);
out_changed:
	kcache_change_end(fs->kcache, &change);
	state_put(fs, t.st);
	return rc == -ESTALE ? -EUCLEAN : rc;
}
