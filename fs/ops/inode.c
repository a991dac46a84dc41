/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inodes: reads, writes and makes them, and changes their attributes.
 *
 * Keeps: an inode that is not valid is never returned (invariant 9). Setuid, setgid, capabilities
 * and ACLs follow changes of mode, owner and size as on Linux' local filesystems.
 */
#include <errno.h>

#include "fs/ops/ops_internal.h"

#define DAY_NS (24 * 3600 * 1000000000ll)

/* ---- reading and writing ---------------------------------------------------------- */

static bool inode_valid(const struct disk_inode *inode)
{
	switch (inode->mode & S_IFMT) {
	case S_IFDIR:
		return inode->parent != 0 && inode->parent <= DISK_INO_MAX;
	case S_IFREG:
		return inode->size <= INT64_MAX;
	case S_IFLNK:
		return inode->size > 0 && inode->size < 4096;
	case S_IFCHR:
	case S_IFBLK:
	case S_IFIFO:
	case S_IFSOCK:
		return true;
	default:
		return false;
	}
}

static int inode_check(int len, const struct disk_inode *inode)
{
	if (len < 0)
		return len == -ERANGE ? -EUCLEAN : len;
	if (len != sizeof(*inode) || !inode_valid(inode))
		return -EUCLEAN;
	return 0;
}

static bool ino_possible(uint64_t ino)
{
	return ino != DISK_INO_SYSTEM && ino <= DISK_INO_MAX;
}

int inode_read(struct txn *x, uint64_t ino, struct disk_inode *out)
{
	if (!ino_possible(ino))
		return -ENOENT;
	return inode_check(
		txn_read(x, disk_key(ino, DISK_ITEM_INODE, 0), out, sizeof(*out)), out);
}

int inode_write_atime(struct txn *x, uint64_t ino, struct disk_inode *inode)
{
	WEFT_ASSERT(ino_possible(ino) && inode_valid(inode));
	inode->changes++;
	return txn_write(x, disk_key(ino, DISK_ITEM_INODE, 0), inode, sizeof(*inode));
}

int inode_write(struct txn *x, uint64_t ino, struct disk_inode *inode)
{
	inode->writers |= 1ull << txn_node(x);
	return inode_write_atime(x, ino, inode);
}

int inode_get_seen(
	struct fs *fs, struct tree_seen *seen, uint64_t ino, struct disk_inode *out)
{
	int len;

	if (!ino_possible(ino))
		return -ENOENT;
	len = tree_read_seen(fs->tree, seen, disk_key(ino, DISK_ITEM_INODE, 0), out,
		sizeof(*out));
	return seen && len == -EAGAIN ? -ESTALE : inode_check(len, out);
}

int inode_get(struct fs *fs, uint64_t ino, struct disk_inode *out)
{
	return inode_get_seen(fs, NULL, ino, out);
}

static int inode_get_kcached(
	struct fs *fs, struct tree_kcopy *e, uint64_t ino, struct disk_inode *out)
{
	if (!ino_possible(ino))
		return -ENOENT;
	return inode_check(tree_read_kcached(fs->tree, e,
				   disk_key(ino, DISK_ITEM_INODE, 0), out, sizeof(*out)),
		out);
}

int inode_attr_kcached(
	struct fs *fs, struct tree_kcopy *e, uint64_t ino, struct ops_attr *out)
{
	int rc = e ? inode_get_kcached(fs, e, ino, &out->inode)
		   : inode_get(fs, ino, &out->inode);

	if (rc)
		return rc;
	out->ino = ino;
	if (S_ISREG(out->inode.mode))
		file_overlay(fs, ino, &out->inode);
	return 0;
}

int inode_attr(struct fs *fs, uint64_t ino, struct ops_attr *out)
{
	return inode_attr_kcached(fs, NULL, ino, out);
}

int ops_getattr(struct fs *fs, uint64_t ino, struct ops_attr *out)
{
	ops_count(fs, OPS_CALL_GETATTR);
	return inode_attr(fs, ino, out);
}

/* ---- making ----------------------------------------------------------------------- */

/* The kernel has removed setgid from `mode` if the caller may not set it. Its mode_strip_sgid knows
 * the caller's supplementary groups; this layer does not. */
int inode_create_txn(struct fs *fs, struct txn *x, uint64_t dir,
	const struct disk_inode *parent, const struct ops_caller *c,
	const struct inode_new *what, struct disk_inode *out)
{
	int rc;

	*out = (struct disk_inode){
		.mode = what->mode & (S_IFMT | 07777),
		.uid = c->uid,
		.gid = c->gid,
		.nlink = what->nlink,
		.size = what->size,
		.atime_ns = what->now,
		.mtime_ns = what->now,
		.ctime_ns = what->now,
		.btime_ns = what->now,
		.rdev_major = what->rdev_major,
		.rdev_minor = what->rdev_minor,
		.generation = DISK_GENERATION_LIVE,
	};
	out->flags = parent->flags & DISK_INODE_INHERITED;
	if (parent->mode & S_ISGID) {
		out->gid = parent->gid;
		if (S_ISDIR(out->mode))
			out->mode |= S_ISGID;
	}
	if (S_ISDIR(out->mode))
		out->parent = what->parent_ino;
	if (!S_ISLNK(out->mode)) {
		rc = acl_inherit_txn(fs, x, dir, parent, c->umask, what->ino, out);
		if (rc)
			return rc;
	}
	return inode_write(x, what->ino, out);
}

/* ---- attributes ------------------------------------------------------------------- */

bool ops_kill_setid(struct disk_inode *inode, const struct ops_caller *c)
{
	uint32_t kill = inode->mode & S_ISUID;

	if (c->keeps_setid || !S_ISREG(inode->mode))
		return false;
	if ((inode->mode & (S_ISGID | S_IXGRP)) == (S_ISGID | S_IXGRP))
		kill |= S_ISGID;
	inode->mode &= ~kill;
	return kill != 0;
}

/* Since Linux 2.2.13 a change of owner removes the bits from files of all users, root's too
 * (chown(2)). If group execution is off, setgid is removed only if the caller could not set it. */
static void chown_kill_setid(struct disk_inode *inode, const struct ops_caller *c)
{
	if (S_ISDIR(inode->mode))
		return;
	inode->mode &= ~(uint32_t)S_ISUID;
	if ((inode->mode & S_IXGRP) || !(c->in_group || c->keeps_setid))
		inode->mode &= ~(uint32_t)S_ISGID;
}

/* The kernel makes no check for a chown with uid and gid both -1. Only the owner and root may
 * remove bits. */
static int chown_no_one_check(const struct disk_inode *inode, const struct ops_caller *c)
{
	struct disk_inode after = *inode;

	chown_kill_setid(&after, c);
	if (after.mode == inode->mode || c->uid == inode->uid || c->uid == 0)
		return 0;
	return -EPERM;
}

static int setattr_mode(struct fs *fs, struct txn *x, uint64_t ino,
	struct disk_inode *inode, const struct ops_caller *c, uint32_t mode)
{
	if (S_ISLNK(inode->mode))
		return -EOPNOTSUPP;
	mode &= 07777;
	if (!c->in_group && !c->keeps_setid)
		mode &= ~(uint32_t)S_ISGID;
	inode->mode = (inode->mode & S_IFMT) | mode;
	return acl_chmod_txn(fs, x, ino, inode);
}

static void setattr_times(
	struct disk_inode *inode, const struct ops_setattr *set, int64_t now)
{
	if (set->set & OPS_SET_ATIME_NOW)
		inode->atime_ns = now;
	else if (set->set & OPS_SET_ATIME)
		inode->atime_ns = set->atime_ns;
	if (set->set & OPS_SET_MTIME_NOW)
		inode->mtime_ns = now;
	else if (set->set & OPS_SET_MTIME)
		inode->mtime_ns = set->mtime_ns;
	else if (set->set & OPS_SET_SIZE)
		inode->mtime_ns = now;
	inode->ctime_ns = set->set & OPS_SET_CTIME ? set->ctime_ns : now;
}

/* As notify_change() and vfs_truncate() do for other filesystems. */
static int setattr_allowed(const struct disk_inode *inode, uint32_t set)
{
	const uint32_t never = OPS_SET_MODE | OPS_SET_UID | OPS_SET_GID | OPS_SET_SIZE |
			       OPS_SET_ATIME | OPS_SET_MTIME;
	const uint32_t now = OPS_SET_ATIME_NOW | OPS_SET_MTIME_NOW;

	if (inode_is_fixed(inode) && (set & never))
		return -EPERM;
	return (inode->flags & DISK_INODE_IMMUTABLE) && (set & now) ? -EPERM : 0;
}

int setattr_apply(struct fs *fs, struct txn *x, uint64_t ino, struct disk_inode *inode,
	const struct ops_caller *c, const struct ops_setattr *set, int64_t now)
{
	bool owner = set->set & (OPS_SET_UID | OPS_SET_GID | OPS_CHOWN_NO_ONE);
	int rc = setattr_allowed(inode, set->set);

	if (rc)
		return rc;
	if (set->set & OPS_CHOWN_NO_ONE) {
		rc = chown_no_one_check(inode, c);
		if (rc)
			return rc;
	}
	if (set->set & OPS_SET_UID)
		inode->uid = set->uid;
	if (set->set & OPS_SET_GID)
		inode->gid = set->gid;
	if (set->set & OPS_SET_MODE) {
		rc = setattr_mode(fs, x, ino, inode, c, set->mode);
		if (rc)
			return rc;
	} else if (owner) {
		chown_kill_setid(inode, c);
	}
	if (set->set & OPS_KILL_SETID)
		ops_kill_setid(inode, &(struct ops_caller){.keeps_setid = false});
	if ((owner && !S_ISDIR(inode->mode)) ||
		set->set & (OPS_SET_SIZE | OPS_KILL_SETID)) {
		rc = xattr_drop_caps(fs, x, ino, inode);
		if (rc)
			return rc;
	}
	setattr_times(inode, set, now);
	return 0;
}

struct setattr_arg {
	struct fs *fs;
	uint64_t ino;
	const struct ops_caller *c;
	const struct ops_setattr *set;
	int64_t now;
	struct disk_inode inode;
};

static int setattr_body(struct txn *x, void *p)
{
	struct setattr_arg *a = p;
	int rc;

	rc = inode_read(x, a->ino, &a->inode);
	if (rc)
		return rc;
	rc = setattr_apply(a->fs, x, a->ino, &a->inode, a->c, a->set, a->now);
	if (rc)
		return rc;
	return inode_write(x, a->ino, &a->inode);
}

int ops_setattr(struct fs *fs, uint64_t ino, const struct ops_caller *c,
	const struct ops_setattr *set, struct ops_attr *out)
{
	struct setattr_arg a = {.fs = fs, .ino = ino, .c = c, .set = set};
	int rc;

	ops_count(fs, OPS_CALL_SETATTR);
	if (set->set == 0)
		return inode_attr(fs, ino, out);
	if (set->set & OPS_SET_SIZE)
		return ops_truncate(fs, ino, c, set, out);
	rc = file_settle(fs, ino);
	if (rc)
		return rc;
	a.now = rt_wall_ns();
	rc = ops_run(fs, OPS_RUN_PRIVILEGED, setattr_body, &a, NULL);
	if (rc == -EPERM && (set->set & OPS_CHOWN_NO_ONE) && S_ISREG(a.inode.mode) &&
		file_open_to_write(fs, ino))
		return inode_attr(fs, ino, out);
	if (rc)
		return rc;
	*out = (struct ops_attr){.ino = ino, .inode = a.inode};
	return 0;
}

struct flags_arg {
	uint64_t ino;
	uint32_t flags;
	int64_t now;
};

static int flags_body(struct txn *x, void *p)
{
	const struct flags_arg *a = p;
	struct disk_inode inode;
	int rc = inode_read(x, a->ino, &inode);

	if (rc)
		return rc;
	inode.flags = (inode.flags & ~DISK_INODE_BY_USERS) | a->flags;
	inode.ctime_ns = a->now;
	return inode_write(x, a->ino, &inode);
}

int ops_setflags(struct fs *fs, uint64_t ino, uint32_t flags)
{
	struct flags_arg a = {.ino = ino, .flags = flags};
	int rc;

	ops_count(fs, OPS_CALL_SETATTR);
	if (flags & ~DISK_INODE_BY_USERS)
		return -EOPNOTSUPP;
	rc = file_settle(fs, ino);
	if (rc)
		return rc;
	a.now = rt_wall_ns();
	return ops_run(fs, OPS_RUN_PRIVILEGED, flags_body, &a, NULL);
}

/* relatime of mount(8): the atime is written if it is not newer than the last change, or is a day
 * old. */
bool atime_due(struct fs *fs, const struct disk_inode *inode, int64_t now)
{
	unsigned rule = atomic_load_explicit(&fs->atime, memory_order_relaxed);

	if (rule == OPS_NOATIME || (inode->flags & DISK_INODE_NOATIME) ||
		fs_check_writable(fs))
		return false;
	if (rule == OPS_STRICTATIME)
		return now > inode->atime_ns;
	return inode->atime_ns <= inode->mtime_ns || inode->atime_ns <= inode->ctime_ns ||
	       inode->atime_ns <= now - DAY_NS;
}
