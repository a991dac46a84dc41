/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Adds and removes names.
 *
 * An inode without a name becomes an orphan (orphan.c). If the caller sends no forgets,
 * directories, symlinks and special files cannot be open here. Such an inode is freed in the
 * transaction if it has no data in pages.
 */
#include <dirent.h>
#include <errno.h>

#include "fs/ops/ops_internal.h"

/* ---- the last link ---------------------------------------------------------------- */

/* Deletes an inode that has only small items. */
static int inode_delete_txn(struct txn *x, uint64_t ino, const struct disk_inode *inode)
{
	if (S_ISLNK(inode->mode)) {
		for (uint64_t piece = 0; piece < DIV_UP(inode->size, DISK_LINK_PIECE);
			piece++) {
			int rc = txn_delete(x, disk_key(ino, DISK_ITEM_LINK, piece));

			if (rc)
				return rc;
		}
	}
	return txn_delete(x, disk_key(ino, DISK_ITEM_INODE, 0));
}

int inode_unlink_txn(struct fs *fs, struct txn *x, uint64_t ino, struct disk_inode *inode,
	int64_t now, bool *orphan)
{
	int rc;

	*orphan = false;
	if (S_ISDIR(inode->mode))
		inode->nlink = 0;
	else if (inode->nlink > 0)
		inode->nlink--;
	inode->ctime_ns = now;
	if (inode->nlink > 0)
		return inode_write(x, ino, inode);
	if (!fs->options.caller_forgets && !S_ISREG(inode->mode) &&
		!(inode->flags & DISK_INODE_HAS_XATTR))
		return inode_delete_txn(x, ino, inode);
	*orphan = true;
	rc = orphan_mark(x, ino);
	if (rc == 0 && fs->options.caller_forgets)
		rc = elsewhere_note_txn(fs, x, ino);
	return rc ? rc : inode_write(x, ino, inode);
}

/* ---- unlink and rmdir ------------------------------------------------------------- */

struct unlink_arg {
	struct fs *fs;
	uint64_t dir;
	struct ops_name name;
	bool directory; /* rmdir */
	int64_t now;
	uint64_t ino;
	bool orphan;
};

/* Checks that the inode may be removed in this way. */
static int unlink_check(const struct unlink_arg *a, const struct disk_inode *inode)
{
	if (inode_is_fixed(inode))
		return -EPERM;
	if (!a->directory)
		return S_ISDIR(inode->mode) ? -EISDIR : 0;
	if (!S_ISDIR(inode->mode))
		return -ENOTDIR;
	return inode->size > 0 ? -ENOTEMPTY : 0;
}

static int unlink_body(struct txn *x, void *p)
{
	struct unlink_arg *a = p;
	struct disk_inode inode;
	struct place place;
	int rc;

	rc = place_find(a->fs, x, a->dir, a->name, &place);
	if (rc)
		return rc;
	if (!place.slot.found)
		return OPS_VERDICT(-ENOENT);
	a->ino = place.slot.entry.ino;
	rc = inode_read(x, a->ino, &inode);
	if (rc)
		return rc == -ENOENT ? OPS_VERDICT(-EUCLEAN) : rc;
	rc = dir_allows(&place.parent, true);
	if (rc)
		return rc;
	rc = unlink_check(a, &inode);
	if (rc)
		return OPS_VERDICT(rc);
	rc = place_remove(x, &place, a->directory, a->now);
	return rc ? rc : inode_unlink_txn(a->fs, x, a->ino, &inode, a->now, &a->orphan);
}

static int unlink_or_rmdir(
	struct fs *fs, uint64_t dir, struct ops_name name, bool directory)
{
	struct unlink_arg a = {
		.fs = fs, .dir = dir, .name = name, .directory = directory};
	int rc;

	rc = name_check(name);
	if (rc == 0)
		rc = orphans_room(fs);
	if (rc)
		return rc;
	a.now = rt_wall_ns();
	elsewhere_unlinking(fs, true);
	rc = ops_run_names(fs, OPS_RUN_PRIVILEGED, unlink_body, &a);
	if (rc == 0 && a.orphan)
		orphan_drop(fs, a.ino);
	elsewhere_unlinking(fs, false);
	return rc;
}

int ops_unlink(struct fs *fs, uint64_t dir, struct ops_name name)
{
	ops_count(fs, OPS_CALL_UNLINK);
	if (name_dots(name))
		return -EISDIR;
	return unlink_or_rmdir(fs, dir, name, false);
}

int ops_rmdir(struct fs *fs, uint64_t dir, struct ops_name name)
{
	ops_count(fs, OPS_CALL_RMDIR);
	if (name_dots(name))
		return name_dots(name) == 1 ? -EINVAL : -ENOTEMPTY;
	return unlink_or_rmdir(fs, dir, name, true);
}

/* ---- link ------------------------------------------------------------------------- */

struct link_arg {
	struct fs *fs;
	uint64_t ino, dir;
	struct ops_name name;
	int64_t now;
	bool first; /* it had no name before */
	struct disk_inode inode;
};

/* Adds a link. The first one of a tmpfile removes it from the list of orphans. */
static int link_inode(struct txn *x, struct link_arg *a)
{
	struct disk_inode *inode = &a->inode;
	int rc;

	rc = inode_read(x, a->ino, inode);
	if (rc)
		return rc;
	if (S_ISDIR(inode->mode) || inode_is_fixed(inode))
		return -EPERM;
	if (inode->nlink >= DISK_LINK_MAX)
		return -EMLINK;
	a->first = inode->nlink == 0;
	if (a->first) {
		if (!file_naming(a->fs, a->ino))
			return -ENOENT;
		rc = orphan_unmark(x, a->ino);
		if (rc)
			return rc;
	}
	inode->nlink++;
	inode->ctime_ns = a->now;
	return inode_write(x, a->ino, inode);
}

static int link_body(struct txn *x, void *p)
{
	struct link_arg *a = p;
	struct place place;
	int rc;

	rc = place_find_free(a->fs, x, a->dir, a->name, &place);
	if (rc)
		return rc;
	rc = link_inode(x, a);
	if (rc)
		return rc;
	return place_add(x, &place,
		(struct entry){.ino = a->ino, .type = mode_type(a->inode.mode)}, a->now);
}

int ops_link(struct fs *fs, uint64_t ino, uint64_t dir, struct ops_name name,
	struct ops_attr *out)
{
	struct link_arg a = {.fs = fs, .ino = ino, .dir = dir, .name = name};
	int rc;

	ops_count(fs, OPS_CALL_LINK);
	if (name_dots(name))
		return -EEXIST;
	rc = name_check(name);
	if (rc)
		return rc;
	a.now = rt_wall_ns();
	rc = ops_run_names(fs, 0, link_body, &a);
	if (rc)
		return rc;
	if (a.first)
		file_named(fs, ino);
	*out = (struct ops_attr){.ino = ino, .inode = a.inode};
	if (S_ISREG(a.inode.mode))
		file_overlay(fs, ino, &out->inode);
	return 0;
}
