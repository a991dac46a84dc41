/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rename, by the rules of POSIX and renameat2(2).
 *
 * Keeps: the directories are one tree. A directory that moves to another parent could close a loop.
 * Such renames exclude each other (fs.rename_lock) while they walk from the new parent up to the
 * root. No other operation changes a directory's parent, so the walk needs no transaction and has
 * no limit on depth. The transaction then finds the same inodes under the names, or starts over. If
 * other nodes may move directories, the transaction itself reads the way to the root. The way is
 * then limited to the number of its reads.
 */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>

#include "fs/ops/ops_internal.h"

/* Longer chains of parents are loops. */
#define DEPTH_MAX (1u << 20)

/* One of the two names. */
struct side {
	uint64_t dir;
	struct ops_name name;
	struct disk_inode
		parent; /* if both sides have one directory, the other side's is used */
	struct entry_slot slot;
	struct disk_inode inode; /* if slot.found */
};

struct rename_arg {
	struct fs *fs;
	unsigned flags;
	int64_t now;
	struct side from, to;
	/* Results of the walk to the root: the inodes that it was made for (0: no entry), and
	 * whether to and from lie below them. */
	bool walked;
	uint64_t walked_from, walked_to;
	bool loops_from, loops_to;
	uint64_t whiteout;          /* inode number for RENAME_WHITEOUT */
	const struct ops_caller *c; /* owner of the whiteout */
	bool orphan;
};

/* Returned if the transaction needs the walk, or another one. */
#define NEEDS_WALK (-EDEADLK)

static bool same_dir(const struct rename_arg *a)
{
	return a->from.dir == a->to.dir;
}

static bool is_exchange(const struct rename_arg *a)
{
	return a->flags & RENAME_EXCHANGE;
}

static struct disk_inode *to_parent(struct rename_arg *a)
{
	return same_dir(a) ? &a->from.parent : &a->to.parent;
}

static bool side_is_dir(const struct side *s)
{
	return s->slot.found && S_ISDIR(s->inode.mode);
}

/* ---- checks ----------------------------------------------------------------------- */

static int side_read(struct txn *x, struct fs *fs, struct side *s)
{
	int rc;

	rc = entry_find(fs, x, s->dir, s->name, &s->slot);
	if (rc || !s->slot.found)
		return rc;
	rc = inode_read(x, s->slot.entry.ino, &s->inode);
	return rc == -ENOENT ? OPS_VERDICT(-EUCLEAN) : rc;
}

static int rename_read(struct txn *x, struct rename_arg *a)
{
	int rc;

	rc = dir_read(x, a->from.dir, &a->from.parent);
	if (rc)
		return rc;
	if (!same_dir(a)) {
		rc = dir_read(x, a->to.dir, &a->to.parent);
		if (rc)
			return rc;
	}
	rc = side_read(x, a->fs, &a->from);
	if (rc)
		return rc;
	return side_read(x, a->fs, &a->to);
}

/* A directory that changes its parent must not move below itself. */
static int check_loops(const struct rename_arg *a)
{
	bool to_moves = is_exchange(a) && side_is_dir(&a->to);

	if (same_dir(a) || (!side_is_dir(&a->from) && !to_moves))
		return 0;
	if (!a->walked || a->walked_from != a->from.slot.entry.ino ||
		a->walked_to != (a->to.slot.found ? a->to.slot.entry.ino : 0))
		return NEEDS_WALK;
	if ((side_is_dir(&a->from) && a->loops_from) || (to_moves && a->loops_to))
		return -EINVAL;
	return 0;
}

/* Checks that the flags of directories and inodes allow to remove `from`, and to add or replace
 * `to`. */
static int check_flags(const struct rename_arg *a)
{
	const struct disk_inode *to = same_dir(a) ? &a->from.parent : &a->to.parent;

	if (dir_allows(&a->from.parent, true) || dir_allows(to, a->to.slot.found))
		return -EPERM;
	return inode_is_fixed(&a->from.inode) ||
			       (a->to.slot.found && inode_is_fixed(&a->to.inode))
		       ? -EPERM
		       : 0;
}

/* Returns 0, -errno, or 1 if both names are the same file and nothing is to be done. */
static int rename_check(const struct rename_arg *a)
{
	int rc;

	if (!a->from.slot.found)
		return -ENOENT;
	if (is_exchange(a) && !a->to.slot.found)
		return -ENOENT;
	if ((a->flags & RENAME_NOREPLACE) && a->to.slot.found)
		return -EEXIST;
	if (a->to.slot.found && a->to.slot.entry.ino == a->from.slot.entry.ino)
		return 1;
	rc = check_flags(a);
	if (rc)
		return rc;
	rc = check_loops(a);
	if (rc || is_exchange(a) || !a->to.slot.found)
		return rc;
	if (side_is_dir(&a->from) && !side_is_dir(&a->to))
		return -ENOTDIR;
	if (!side_is_dir(&a->from) && side_is_dir(&a->to))
		return -EISDIR;
	if (side_is_dir(&a->to) && a->to.inode.size > 0)
		return -ENOTEMPTY;
	return 0;
}

/* ---- changes ---------------------------------------------------------------------- */

/* Writes the new parent and the ctime of the inode that `s` names. */
static int write_moved(
	struct txn *x, struct rename_arg *a, struct side *s, uint64_t parent)
{
	if (S_ISDIR(s->inode.mode))
		s->inode.parent = parent;
	s->inode.ctime_ns = a->now;
	return inode_write(x, s->slot.entry.ino, &s->inode);
}

static int write_parents(struct txn *x, struct rename_arg *a)
{
	int rc;

	a->from.parent.mtime_ns = a->from.parent.ctime_ns = a->now;
	rc = inode_write(x, a->from.dir, &a->from.parent);
	if (rc || same_dir(a))
		return rc;
	a->to.parent.mtime_ns = a->to.parent.ctime_ns = a->now;
	return inode_write(x, a->to.dir, &a->to.parent);
}

static int do_exchange(struct txn *x, struct rename_arg *a)
{
	struct entry from = a->from.slot.entry, to = a->to.slot.entry;
	struct entry_slot slot;
	int rc;

	rc = write_moved(x, a, &a->from, a->to.dir);
	if (rc)
		return rc;
	rc = write_moved(x, a, &a->to, a->from.dir);
	if (rc)
		return rc;
	rc = entry_replace(x, &a->from.slot, to);
	if (rc)
		return rc;
	/* The names may share an item. */
	rc = entry_find(a->fs, x, a->to.dir, a->to.name, &slot);
	if (rc)
		return rc;
	rc = entry_replace(x, &slot, from);
	if (rc)
		return rc;
	if (!same_dir(a) && S_ISDIR(a->from.inode.mode) != S_ISDIR(a->to.inode.mode)) {
		bool away = S_ISDIR(a->from.inode.mode);

		dir_lose_subdir(away ? &a->from.parent : &a->to.parent);
		(away ? &a->to.parent : &a->from.parent)->nlink++;
	}
	return write_parents(x, a);
}

/* renameat2(2), RENAME_WHITEOUT: the old name becomes a character device 0/0, which overlay
 * filesystems read as "deleted". */
static int leave_whiteout(struct txn *x, struct rename_arg *a)
{
	const struct inode_new what = {
		.ino = a->whiteout, .mode = S_IFCHR, .nlink = 1, .now = a->now};
	struct disk_inode inode;
	int rc;

	rc = inode_create_txn(
		a->fs, x, a->from.dir, &a->from.parent, a->c, &what, &inode);
	if (rc)
		return rc;
	return entry_replace(x, &a->from.slot,
		(struct entry){.ino = a->whiteout, .type = mode_type(inode.mode)});
}

/* Changes the names: removes `from`, and makes `to` name its inode. */
static int move_entries(struct txn *x, struct rename_arg *a)
{
	struct entry entry = a->from.slot.entry;
	struct entry_slot slot;
	int rc;

	rc = a->whiteout ? leave_whiteout(x, a) : entry_remove(x, &a->from.slot);
	if (rc)
		return rc;
	rc = entry_find(a->fs, x, a->to.dir, a->to.name, &slot);
	if (rc)
		return rc;
	return slot.found ? entry_replace(x, &slot, entry)
			  : entry_insert(x, &slot, a->to.name, entry);
}

static int do_rename(struct txn *x, struct rename_arg *a)
{
	struct disk_inode *parent = to_parent(a);
	int rc;

	rc = write_moved(x, a, &a->from, a->to.dir);
	if (rc)
		return rc;
	rc = move_entries(x, a);
	if (rc)
		return rc;
	if (!a->whiteout)
		a->from.parent.size -= MIN(a->from.parent.size, 1);
	if (S_ISDIR(a->from.inode.mode)) {
		dir_lose_subdir(&a->from.parent);
		parent->nlink++;
	}
	if (!a->to.slot.found) {
		parent->size++;
	} else {
		if (S_ISDIR(a->to.inode.mode))
			dir_lose_subdir(parent);
		rc = inode_unlink_txn(
			a->fs, x, a->to.slot.entry.ino, &a->to.inode, a->now, &a->orphan);
		if (rc)
			return rc;
	}
	return write_parents(x, a);
}

/* Checks the result of the walk: dir is not below `above`. */
static int stays_clear(struct txn *x, uint64_t dir, uint64_t above)
{
	struct disk_inode inode;

	while (dir != DISK_INO_ROOT) {
		int rc = dir == above ? NEEDS_WALK : inode_read(x, dir, &inode);

		if (rc)
			return rc == -ENOENT ? NEEDS_WALK : rc;
		if (!S_ISDIR(inode.mode))
			return NEEDS_WALK;
		dir = inode.parent;
	}
	return 0;
}

/* The rename_lock of this node does not exclude other nodes. */
static int check_ways(struct txn *x, const struct rename_arg *a)
{
	int rc = 0;

	if (same_dir(a) || !cache_has_peers(a->fs->volume->cache))
		return 0;
	if (side_is_dir(&a->from))
		rc = stays_clear(x, a->to.dir, a->from.slot.entry.ino);
	if (rc == 0 && is_exchange(a) && side_is_dir(&a->to))
		rc = stays_clear(x, a->from.dir, a->to.slot.entry.ino);
	return rc;
}

static int rename_body(struct txn *x, void *p)
{
	struct rename_arg *a = p;
	int rc;

	a->orphan = false;
	rc = rename_read(x, a);
	if (rc)
		return rc;
	rc = rename_check(a);
	if (rc == NEEDS_WALK)
		return rc;
	if (rc)
		return rc > 0 ? 0 : OPS_VERDICT(rc);
	rc = check_ways(x, a);
	if (rc)
		return rc;
	return is_exchange(a) ? do_exchange(x, a) : do_rename(x, a);
}

/* ---- the walk to the root --------------------------------------------------------- */

/* Sets *out if `above` is dir or on the way from dir up to the root. The caller holds
 * rename_lock. */
static int hangs_below(struct fs *fs, uint64_t dir, uint64_t above, bool *out)
{
	struct disk_inode inode;

	for (unsigned depth = 0; depth < DEPTH_MAX; depth++) {
		int rc;

		*out = dir == above;
		if (*out || dir == DISK_INO_ROOT)
			return 0;
		rc = inode_get(fs, dir, &inode);
		if (rc)
			return rc;
		if (!S_ISDIR(inode.mode))
			return -ENOTDIR;
		dir = inode.parent;
	}
	return -ELOOP;
}

static int walk_up(struct rename_arg *a)
{
	struct entry entry;
	int rc;

	a->walked = true;
	a->walked_from = a->walked_to = 0;
	a->loops_from = a->loops_to = false;
	rc = entry_get(a->fs, a->from.dir, a->from.name, &entry);
	if (rc)
		return rc;
	a->walked_from = entry.ino;
	rc = hangs_below(a->fs, a->to.dir, entry.ino, &a->loops_from);
	if (rc)
		return rc;
	rc = entry_get(a->fs, a->to.dir, a->to.name, &entry);
	if (rc)
		return rc == -ENOENT ? 0 : rc;
	a->walked_to = entry.ino;
	return hangs_below(a->fs, a->from.dir, entry.ino, &a->loops_to);
}

/* Limit of walks: names may change between walk and transaction, but each time another rename has
 * succeeded. */
#define WALKS_MAX 100000u

static int rename_walking(struct rename_arg *a)
{
	int rc = NEEDS_WALK;

	rt_mutex_lock(&a->fs->rename_lock);
	for (unsigned tries = 0; rc == NEEDS_WALK && tries < WALKS_MAX; tries++) {
		rc = walk_up(a);
		if (rc == 0)
			rc = ops_run_names(a->fs, 0, rename_body, a);
	}
	rt_mutex_unlock(&a->fs->rename_lock);
	return rc == NEEDS_WALK ? -EBUSY : rc;
}

int ops_rename(struct fs *fs, uint64_t dir, struct ops_name name, uint64_t new_dir,
	struct ops_name new_name, unsigned flags)
{
	if (flags & RENAME_WHITEOUT)
		return -EINVAL;
	return ops_rename_as(fs, dir, name, new_dir, new_name, NULL, flags);
}

int ops_rename_as(struct fs *fs, uint64_t dir, struct ops_name name, uint64_t new_dir,
	struct ops_name new_name, const struct ops_caller *c, unsigned flags)
{
	struct rename_arg a = {
		.fs = fs,
		.c = c,
		.flags = flags,
		.from = {.dir = dir, .name = name},
		.to = {.dir = new_dir, .name = new_name},
	};
	int rc;

	ops_count(fs, OPS_CALL_RENAME);
	if (flags & ~(RENAME_NOREPLACE | RENAME_EXCHANGE | RENAME_WHITEOUT) ||
		((flags & RENAME_EXCHANGE) && flags != RENAME_EXCHANGE))
		return -EINVAL;
	if (name_dots(name) || name_dots(new_name))
		return -EBUSY;
	rc = name_check(name);
	if (rc == 0)
		rc = name_check(new_name);
	if (rc == 0)
		rc = orphans_room(fs);
	if (rc)
		return rc;
	if (flags & RENAME_WHITEOUT) {
		rc = fs_check_writable(fs);
		if (rc == 0)
			rc = volume_inode_number(fs->volume, &a.whiteout);
		if (rc)
			return rc;
	}
	a.now = rt_wall_ns();
	elsewhere_unlinking(fs, true);
	rc = ops_run_names(fs, 0, rename_body, &a);
	if (rc == NEEDS_WALK)
		rc = rename_walking(&a);
	if (rc == 0 && a.orphan)
		orphan_drop(fs, a.to.slot.entry.ino);
	elsewhere_unlinking(fs, false);
	return rc;
}
