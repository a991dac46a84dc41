/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Frees orphans: inodes without a name. The transaction that removes the last link (or makes a
 * tmpfile) writes an orphan item. After the last close, the inode's pages and items are freed in
 * pieces. Each piece is a transaction that leaves the counts exact. The last one frees the inode
 * and the orphan item. An error or a crash in between leaves the orphan item, and the next mount
 * continues.
 *
 * Each piece writes the inode and reads its link count. If a tmpfile is being linked meanwhile,
 * either this sees the link, or the link's transaction starts over and finds the inode gone.
 *
 * Small orphans that no node refers to are reclaimed many in one transaction. If they were made or
 * unlinked one after the other, their items and orphan items lie side by side. The leaves are then
 * latched and logged once.
 */
#include "fs/ops/data_internal.h"

#define DISK_ITEM_LAST 0xff /* greater than all items of an inode */
#define XATTRS_A_PIECE 8
#define LINKS_A_PIECE  8 /* number of items; a target of PATH_MAX bytes has five */
#define LOCKS_A_PIECE  8 /* number of items of locks, all void by now */

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

/* Changes the inode, so that a node that has asked about it before does not free it. */
static int take_body(struct txn *x, void *arg)
{
	const uint64_t *ino = arg;
	struct disk_inode inode;
	int rc = inode_read(x, *ino, &inode);

	if (rc == -ENOENT || (rc == 0 && inode.generation == DISK_GENERATION_FREED))
		return OPS_VERDICT(-ENOENT);
	if (rc < 0)
		return rc;
	return inode.nlink > 0 ? 0 : inode_write_atime(x, *ino, &inode);
}

int orphan_take(struct fs *fs, uint64_t ino)
{
	return ops_run(fs, OPS_RUN_PRIVILEGED, take_body, &ino, NULL);
}

struct reclaim_step {
	struct fs *fs;
	uint64_t ino;
	const uint64_t *changes; /* from before other nodes were asked; or NULL */
	bool done;
	bool linked;  /* the inode has a name again */
	bool changed; /* the inode was changed since other nodes were asked */
	bool intent;  /* a truncation is unfinished */
};

/* Frees the pages of a big value. Returns their number, or an error. */
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

/* Frees some xattrs. Returns 1 if all are freed, 0 if more are left. */
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

/* Frees locks of nodes that have ended. Returns as reclaim_xattrs. */
static int reclaim_locks(struct reclaim_step *s, struct txn *x)
{
	const struct disk_key from = disk_key(s->ino, DISK_ITEM_LOCK, 0);
	const struct disk_key to = disk_key(s->ino, DISK_ITEM_LOCK + 1, 0);
	uint8_t value[DISK_VALUE_MAX];

	for (unsigned n = 0; n < LOCKS_A_PIECE; n++) {
		struct disk_key found;
		int rc = txn_next(x, from, to, &found, value, sizeof(value));

		if (rc == -ENOENT)
			return 1;
		if (rc >= 0)
			rc = txn_delete(x, found);
		if (rc < 0)
			return rc;
	}
	return 0;
}

/* Frees the inode item and the orphan item. */
static int reclaim_inode(struct reclaim_step *s, struct txn *x)
{
	const struct disk_key intent =
		disk_key(DISK_INO_SYSTEM, DISK_ITEM_INTENT, s->ino);
	int rc = txn_delete(x, disk_key(s->ino, DISK_ITEM_INODE, 0));

	if (rc == 0 && s->intent)
		rc = txn_delete(x, intent);
	if (rc == 0)
		rc = orphan_unmark(x, s->ino);
	s->done = true;
	return rc;
}

/* Frees the pieces of a symlink's target, and then all else. */
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
	return rc < 0 && rc != -ENOENT ? rc : reclaim_inode(s, x);
}

/* Returns true if the inode item is the only item. A transaction that sets an xattr writes the
 * inode. */
static bool inode_is_bare(const struct disk_inode *inode)
{
	return inode->blocks == 0 && inode->size == 0 && !S_ISLNK(inode->mode) &&
	       !(inode->flags & (DISK_INODE_HAS_XATTR | DISK_INODE_HAS_INTENT));
}

/* If the inode shows that it has no other items, checks that: one look at the items that could
 * follow. */
static int check_bare(struct reclaim_step *s, struct txn *x)
{
	uint8_t value[DISK_VALUE_MAX];
	struct disk_key found;
	int rc = txn_next(x, disk_key(s->ino, DISK_ITEM_INODE, 1),
		disk_key(s->ino, DISK_ITEM_LAST, UINT64_MAX), &found, value,
		sizeof(value));

	return rc == -ENOENT ? 1 : MIN(rc, 0);
}

static int reclaim_body(struct txn *x, void *arg)
{
	struct reclaim_step *s = arg;
	struct disk_inode inode;
	uint64_t freed, next;
	int rc;

	s->done = s->linked = s->changed = false;
	rc = inode_read(x, s->ino, &inode);
	if (rc == -ENOENT || (rc == 0 && inode.nlink > 0)) {
		s->done = true;
		s->linked = rc == 0;
		return orphan_unmark(x, s->ino);
	}
	if (rc < 0)
		return rc;
	s->changed = s->changes && inode.generation != DISK_GENERATION_FREED &&
		     inode.changes != *s->changes;
	if (s->changed) {
		s->done = true;
		return 0;
	}
	s->intent = intent_is_due(&inode);
	if (inode_is_bare(&inode)) {
		rc = check_bare(s, x);
		if (rc < 0)
			return rc;
		if (rc == 1)
			return reclaim_inode(s, x);
	}
	rc = extent_remove(s->fs, x, s->ino, 0, BLOCK_END, false, &freed, &next);
	if (rc < 0)
		return rc;
	inode.blocks -= MIN(freed, inode.blocks);
	/* Full of extents: the runs of xattrs might not fit as well. */
	if (next == BLOCK_END) {
		rc = reclaim_xattrs(s, x, &inode);
		if (rc == 1)
			rc = reclaim_locks(s, x);
		if (rc < 0)
			return rc;
		if (rc == 1)
			return reclaim_last(s, x);
	}
	inode.generation = DISK_GENERATION_FREED;
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

/* Drops the in-memory state of an inode that a transaction has freed. If the inode has links again,
 * writes its times. */
static void state_end(struct fs *fs, const struct reclaim_step *s)
{
	struct inode_state *st = s->changed ? NULL : state_find(fs, s->ino);

	if (!st)
		return;
	if (s->linked)
		(void)state_settle(fs, st);
	else
		state_forget(st);
	state_put(fs, st);
}

/* Frees one inode alone. *s: as the last transaction has left it. */
static int inode_reclaim(struct reclaim_step *s)
{
	struct fs *fs = s->fs;
	struct inode_state *st;
	int rc;

	if (fs_check_writable(fs) < 0)
		return -EROFS;
	rc = state_get(fs, s->ino, &st);
	if (rc < 0)
		goto out;
	rt_gate_enter(&st->alloc_gate, 1);
	ahead_release(fs, st);
	state_reclaiming(fs, st, true);
	do {
		map_change_begin(st);
		rc = ops_run(fs, OPS_RUN_PRIVILEGED, reclaim_body, s, NULL);
		map_change_end(st);
	} while (rc == 0 && !s->done);
	state_reclaiming(fs, st, false);
	rt_gate_leave(&st->alloc_gate, 1);
	if (rc == 0)
		state_end(fs, s);
	state_put(fs, st);
out:
	if (rc < 0)
		weft_log(4,
			"cannot free unlinked inode %llu: %s; the next mount tries "
			"again",
			(unsigned long long)s->ino, strerror(-rc));
	return rc;
}

/* ---- many at once ---------------------------------------------------------------- */

/* Limits of one piece of one inode. */
#define PIECE_WRITES                                                                     \
	(EXTENTS_A_PIECE + XATTRS_A_PIECE + LOCKS_A_PIECE + LINKS_A_PIECE + 4)

struct reclaim_batch {
	struct reclaim_step *step;
	unsigned count;
	uint32_t alone;    /* a bit for each inode that must be reclaimed alone */
	uint32_t finished; /* a bit for each inode that the transaction frees */
};

/* Frees as many pieces as fit. An inode that needs another piece is left with its remaining
 * items. */
static int batch_body(struct txn *x, void *arg)
{
	struct reclaim_batch *b = arg;

	b->finished = 0;
	for (unsigned i = 0; i < b->count; i++) {
		int rc;

		if (b->alone & 1u << i)
			continue;
		/* Xattrs may use all free runs. */
		if (txn_runs_left(x) < 2 * EXTENTS_A_PIECE ||
			txn_writes_left(x) < PIECE_WRITES)
			break;
		rc = reclaim_body(x, &b->step[i]);
		if (rc < 0)
			return rc;
		if (b->step[i].done)
			b->finished |= 1u << i;
	}
	return 0;
}

/* Chooses the inodes without handles and operations under way. Their states need not be held. */
static void batch_choose(struct reclaim_batch *b)
{
	for (unsigned i = 0; i < b->count; i++)
		if (!state_is_idle(b->step[i].fs, b->step[i].ino))
			b->alone |= 1u << i;
}

/* Each successful round frees at least one inode, or a piece of the first one left. If an inode
 * meets an error in a batch, it is tried again alone. */
uint32_t reclaim_many(
	struct fs *fs, const uint64_t *ino, const uint64_t *changes, unsigned count)
{
	struct reclaim_step step[32];
	struct reclaim_batch b = {.step = step, .count = count};
	uint32_t left = count < 32 ? (1u << count) - 1 : UINT32_MAX, changed = 0;

	WEFT_ASSERT(count <= ARRAY_SIZE(step));
	if (fs_check_writable(fs) < 0)
		return 0; /* the cause was logged; the next mount reclaims */
	for (unsigned i = 0; i < count; i++)
		step[i] = (struct reclaim_step){
			.fs = fs, .ino = ino[i], .changes = changes ? &changes[i] : NULL};
	batch_choose(&b);
	while (left & ~b.alone) {
		if (ops_run(fs, OPS_RUN_PRIVILEGED, batch_body, &b, NULL) < 0)
			break;
		if (!b.finished)
			break;
		for (unsigned i = 0; i < count; i++)
			if (b.finished & 1u << i)
				state_end(fs, &step[i]);
		left &= ~b.finished;
		b.alone |= b.finished;
	}
	for (unsigned i = 0; i < count; i++)
		if (left & 1u << i && inode_reclaim(&step[i]) == -EROFS)
			break; /* logged once */
	for (unsigned i = 0; i < count; i++)
		changed |= (uint32_t)step[i].changed << i;
	return changed;
}

/* ---- at open --------------------------------------------------------------------- */

static int recover_intent(struct fs *fs, uint64_t ino)
{
	struct inode_state *st;
	int rc;

	rc = state_get(fs, ino, &st);
	if (rc < 0)
		return rc;
	rt_gate_enter(&st->alloc_gate, 1);
	rc = intent_work(fs, st);
	rt_gate_leave(&st->alloc_gate, 1);
	state_put(fs, st);
	if (rc < 0)
		weft_log(4,
			"finishing the truncation of inode %llu failed (%s); "
			"it is tried again when the file grows and at the next mount",
			(unsigned long long)ino, strerror(-rc));
	return rc;
}

/* Finds the next item of a type. *at moves behind it. *passed: some may have been skipped. */
static int recover_next(struct fs *fs, struct disk_key *at, enum disk_item_type type,
	uint64_t *ino, bool *passed)
{
	struct disk_key to = disk_key(DISK_INO_SYSTEM, type + 1, 0), found;
	uint8_t value[DISK_VALUE_MAX];
	int rc;

	if (!fs->elsewhere)
		rc = tree_next(fs->tree, *at, to, &found, value, sizeof(value));
	else
		while ((rc = tree_next_near(fs->tree, *at, to, &found, value,
				sizeof(value))) == -EHOSTUNREACH) {
			*passed = true;
			*at = found;
		}
	if (rc < 0)
		return rc;
	*ino = found.low;
	*at = found;
	if (++at->low == 0)
		at->high++;
	return 0;
}

/* Keeps the inodes of a batch that can be worked on without waiting for a node that is away. */
static unsigned recover_near(struct fs *fs, uint64_t *ino, unsigned count, bool *passed)
{
	unsigned n = 0;

	for (unsigned i = 0; i < count; i++)
		if (elsewhere_near(fs, ino[i]))
			ino[n++] = ino[i];
	*passed |= n < count;
	return n;
}

int reclaim_listed(struct fs *fs)
{
	struct disk_key orphan = disk_key(DISK_INO_SYSTEM, DISK_ITEM_ORPHAN, 0);
	uint64_t ino[RECLAIM_BATCH];
	bool passed = false;
	int rc;

	do {
		unsigned count = 0;

		do
			rc = recover_next(
				fs, &orphan, DISK_ITEM_ORPHAN, &ino[count], &passed);
		while (rc == 0 && ++count < RECLAIM_BATCH);
		count = recover_near(fs, ino, count, &passed);
		if (count)
			orphans_reclaim(fs, ino, count, true);
	} while (rc == 0);
	if (rc == -ENOENT)
		rc = passed ? -EHOSTUNREACH : 0;
	return rc;
}

/* Each item is gone after its turn. After an error it stays, which only costs space. It also stays
 * if another node will finish the inode. If that node works on the intent now, both do. */
int reclaim_intents(struct fs *fs)
{
	struct disk_key intent = disk_key(DISK_INO_SYSTEM, DISK_ITEM_INTENT, 0);
	bool passed = false;
	uint64_t ino;
	int rc;

	while ((rc = recover_next(fs, &intent, DISK_ITEM_INTENT, &ino, &passed)) == 0)
		if (recover_near(fs, &ino, 1, &passed))
			(void)recover_intent(fs, ino);
	if (rc == -ENOENT)
		rc = passed ? -EHOSTUNREACH : 0;
	return rc;
}

/* The mount continues without the items that could not be finished. */
int reclaim_recover(struct fs *fs, struct weft_error *err)
{
	int rc = reclaim_listed(fs);

	if (rc == 0)
		rc = reclaim_intents(fs);
	return rc ? weft_error(err, rc, "cannot read the list of unlinked files: %s",
			    strerror(-rc))
		  : 0;
}
