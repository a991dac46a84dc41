/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Orphans: inodes without a name. The transaction that takes the last link (or makes a
 * tmpfile) writes an orphan item; after the last close the inode's pages and items are
 * freed in pieces, each a transaction that leaves the counts exact, the inode and the
 * orphan item in the last one. An error or a crash in between leaves the orphan item: the
 * next mount goes on.
 *
 * Every piece writes the inode and reads its link count, so a tmpfile that is being
 * linked meanwhile is either seen to have a link, or the link's transaction starts over
 * and finds it gone.
 */
#include "fs/ops/data_internal.h"

#define XATTRS_A_PIECE 8
#define LINKS_A_PIECE  8 /* a target of PATH_MAX bytes is five */

static struct disk_key orphan_key(uint64_t ino)
{
	return disk_key(DISK_INO_SYSTEM, DISK_ITEM_ORPHAN, ino);
}

int orphan_mark(struct txn *x, uint64_t ino)
{
	return txn_write(x, orphan_key(ino), "", 0);
}

int orphan_unmark(struct txn *x, uint64_t ino)
{
	return txn_delete(x, orphan_key(ino));
}

struct reclaim_step {
	struct fs *fs;
	uint64_t ino;
	bool done;
	bool linked; /* it has a name again: a tmpfile that was linked */
};

/* Frees the pages of a big value; returns how many, or an error. */
static int64_t xattr_free_pages(struct txn *x, const void *value, size_t len)
{
	struct xattr_view view;
	int64_t freed = 0;
	int rc = xattr_parse(value, len, &view);

	if (rc < 0)
		return rc;
	for (unsigned i = 0; i < view.head.run_count; i++) {
		struct disk_extent run;

		memcpy(&run, view.runs + i * sizeof(run), sizeof(run));
		rc = txn_free(x, run.pid, run.length, run.incarnation);
		if (rc < 0)
			return rc;
		freed += run.length;
	}
	return freed;
}

/* Some of the xattrs. 1: all are gone; 0: more are left. */
static int reclaim_xattrs(struct reclaim_step *s, struct txn *x, struct disk_inode *inode)
{
	struct disk_key from = disk_key(s->ino, DISK_ITEM_XATTR, 0);
	const struct disk_key to = disk_key(s->ino, DISK_ITEM_XATTR + 1, 0);
	uint8_t value[DISK_VALUE_MAX];

	for (unsigned runs = 0, n = 0; n < XATTRS_A_PIECE && runs < EXTENTS_A_PIECE;
		n++) {
		struct disk_key found;
		int64_t freed;
		int rc = txn_next(x, from, to, &found, value, sizeof(value));

		if (rc == -ENOENT)
			return 1;
		if (rc < 0)
			return rc;
		freed = xattr_free_pages(x, value, (size_t)rc);
		if (freed < 0)
			return (int)freed;
		inode->blocks -= MIN((uint64_t)freed, inode->blocks);
		runs += (unsigned)freed;
		rc = txn_delete(x, found);
		if (rc < 0)
			return rc;
	}
	return 0;
}

/* The pieces of a symlink's target; then the inode and what names it. */
static int reclaim_last(struct reclaim_step *s, struct txn *x)
{
	const struct disk_key from = disk_key(s->ino, DISK_ITEM_LINK, 0);
	const struct disk_key to = disk_key(s->ino, DISK_ITEM_LINK + 1, 0);
	uint8_t value[DISK_VALUE_MAX];
	struct disk_key found;
	int rc = 0;

	for (unsigned n = 0; n < LINKS_A_PIECE && rc >= 0; n++) {
		rc = txn_next(x, from, to, &found, value, sizeof(value));
		if (rc >= 0)
			rc = txn_delete(x, found);
	}
	if (rc < 0 && rc != -ENOENT)
		return rc;
	rc = txn_delete(x, disk_key(s->ino, DISK_ITEM_INODE, 0));
	if (rc == 0)
		rc = txn_delete(x, disk_key(DISK_INO_SYSTEM, DISK_ITEM_INTENT, s->ino));
	if (rc == 0)
		rc = orphan_unmark(x, s->ino);
	s->done = true;
	return rc;
}

static int reclaim_body(struct txn *x, void *arg)
{
	struct reclaim_step *s = arg;
	struct disk_inode inode;
	uint64_t freed, next;
	int rc;

	s->done = s->linked = false;
	rc = inode_read(x, s->ino, &inode);
	if (rc == -ENOENT || (rc == 0 && inode.nlink > 0)) {
		s->done = true;
		s->linked = rc == 0;
		return orphan_unmark(x, s->ino);
	}
	if (rc < 0)
		return rc;
	rc = extent_remove(s->fs, x, s->ino, 0, BLOCK_END, &freed, &next);
	if (rc < 0)
		return rc;
	inode.blocks -= MIN(freed, inode.blocks);
	/* Full of extents: the xattrs' runs might not fit as well. */
	if (next == BLOCK_END) {
		rc = reclaim_xattrs(s, x, &inode);
		if (rc < 0)
			return rc;
		if (rc == 1)
			return reclaim_last(s, x);
	}
	return inode_write(x, s->ino, &inode);
}

static void state_forget(struct inode_state *st)
{
	rt_mutex_lock(&st->lock);
	dirty_clear(&st->dirty);
	st->dirty_unknown = false;
	st->mtime_ns = st->atime_ns = 0;
	rt_mutex_unlock(&st->lock);
}

int inode_reclaim(struct fs *fs, uint64_t ino)
{
	struct reclaim_step s = {.fs = fs, .ino = ino};
	struct inode_state *st;
	int rc;

	if (fs_check_writable(fs) < 0)
		return -EROFS;
	rc = state_get(fs, ino, &st);
	if (rc < 0)
		goto out;
	rt_mutex_lock(&st->structure);
	ahead_release(fs, st);
	state_reclaiming(fs, st, true);
	do {
		map_change_begin(st);
		rc = ops_run(fs, OPS_RUN_PRIVILEGED, reclaim_body, &s, NULL);
		map_change_end(st);
	} while (rc == 0 && !s.done);
	state_reclaiming(fs, st, false);
	if (rc == 0 && !s.linked)
		state_forget(st);
	rt_mutex_unlock(&st->structure);
	if (rc == 0 && s.linked)
		(void)state_settle(fs, st);
	state_put(fs, st);
out:
	if (rc < 0)
		weft_log(4,
			"freeing unlinked inode %llu failed (%s); the next mount will "
			"try again",
			(unsigned long long)ino, strerror(-rc));
	return rc;
}

/* ---- at open
 * ---------------------------------------------------------------------------------- */

static int recover_intent(struct fs *fs, uint64_t ino)
{
	struct inode_state *st;
	int rc = state_get(fs, ino, &st);

	if (rc < 0)
		return rc;
	atomic_fetch_add_explicit(intents_unfinished(fs), 1, memory_order_relaxed);
	rt_mutex_lock(&st->structure);
	rc = intent_finish(fs, st);
	rt_mutex_unlock(&st->structure);
	state_put(fs, st);
	if (rc < 0)
		weft_log(4,
			"finishing the truncation of inode %llu failed (%s); "
			"it is tried again when the file grows and at the next mount",
			(unsigned long long)ino, strerror(-rc));
	return rc;
}

/*
 * Each item is gone after its turn, or stays after an error: then the mount goes on
 * without, what it holds is only space.
 */
int reclaim_recover(struct fs *fs, struct weft_error *err)
{
	const struct disk_key end = disk_key(DISK_INO_SYSTEM, DISK_ITEM_INTENT + 1, 0);
	struct disk_key at = disk_key(DISK_INO_SYSTEM, DISK_ITEM_ORPHAN, 0), found;
	uint8_t value[DISK_VALUE_MAX];

	for (;;) {
		int rc = tree_next(fs->tree, at, end, &found, value, sizeof(value));

		if (rc == -ENOENT)
			return 0;
		if (rc < 0)
			return weft_error(err, rc,
				"reading the list of unlinked files: %s", strerror(-rc));
		if ((found.high & 0xff) == DISK_ITEM_ORPHAN)
			(void)inode_reclaim(fs, found.low);
		else
			(void)recover_intent(fs, found.low);
		at = found;
		if (++at.low == 0)
			at.high++;
	}
}
