/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Looks names up, and makes them. One transaction makes the inode, the entry and the change to the
 * directory.
 *
 * Keeps: a directory's size is the number of its entries. Its nlink is 2 plus its subdirectories.
 * No name is made in a directory that has been removed.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>

#include "fs/ops/ops_internal.h"

#define LINK_TARGET_MAX 4095u
/* Limit for a name that is replaced at just the wrong moment each time. */
#define LOOKUP_TRIES 1000u

/* ---- lookup ----------------------------------------------------------------------- */

/* Returns the reason for a missing name: -ENOTDIR or -ENOENT. */
static int why_absent(struct fs *fs, uint64_t dir)
{
	struct disk_inode inode;
	int rc = inode_get(fs, dir, &inode);

	if (rc)
		return rc;
	return S_ISDIR(inode.mode) ? -ENOENT : -ENOTDIR;
}

/* If the file is open, a program may use its size. Nothing of it may then be kept. */
static int attr_found(
	struct fs *fs, struct tree_kcopy *e, uint64_t ino, struct ops_attr *out)
{
	if (!e)
		return inode_attr(fs, ino, out);
	e->kcached = false;
	return inode_attr_kcached(
		fs, ops_goes_by_size(fs, ino, false) ? NULL : e, ino, out);
}

/* With ".", the kernel finds an inode of any type by its number: it has only a file handle. An
 * orphan that is not in use is about to be reclaimed, so it is absent. */
static int lookup_dots(struct fs *fs, struct tree_kcopy *e, uint64_t ino,
	unsigned dots, struct ops_attr *out)
{
	int rc = attr_found(fs, e, ino, out);

	if (rc)
		return rc;
	if (dots == 1)
		return out->inode.nlink > 0 || orphan_lives(fs, ino) ? 0 : -ENOENT;
	if (!S_ISDIR(out->inode.mode))
		return -ENOTDIR;
	return attr_found(fs, e, out->inode.parent, out);
}

/*
 * Reads the entry and then its inode. If the inode is gone by then, or has no link left, it was
 * unlinked. The entry is then gone or replaced: look again. An inode that never existed is damage.
 * `names` and `attributes` (or NULL) are kernel-cached before the last look at them.
 */
static int names_lookup(struct fs *fs, uint64_t dir, struct ops_name name,
	struct tree_kcopy *names, struct tree_kcopy *attributes,
	struct ops_attr *out)
{
	struct entry entry;
	uint64_t missing = 0;
	int rc;

	ops_count(fs, OPS_CALL_LOOKUP);
	if (name_dots(name))
		return lookup_dots(fs, attributes, dir, name_dots(name), out);
	rc = name_check(name);
	if (rc)
		return rc;
	for (unsigned tries = 0; tries < LOOKUP_TRIES; tries++) {
		rc = entry_get_kcached(fs, names, dir, name, &entry);
		if (rc)
			return rc == -ENOENT ? why_absent(fs, dir) : rc;
		if (tries == 0)
			listing_looked(fs, dir, name, entry.ino);
		rc = attr_found(fs, attributes, entry.ino, out);
		if (rc == 0 && out->inode.nlink == 0)
			continue;
		if (rc != -ENOENT)
			return rc;
		if (entry.ino == missing)
			break;
		missing = entry.ino;
	}
	return -EUCLEAN;
}

int ops_lookup(struct fs *fs, uint64_t dir, struct ops_name name, struct ops_attr *out)
{
	return names_lookup(fs, dir, name, NULL, NULL, out);
}

int ops_lookup_kept(struct fs *fs, uint64_t dir, struct ops_name name,
	struct ops_attr *out, struct kcache_looked *looked)
{
	struct tree_kcopy names = {.kinds = KCACHE_NAMES};
	struct tree_kcopy attributes = {.kinds = KCACHE_ATTRIBUTES};
	int rc = fs->kcache ? names_lookup(fs, dir, name, &names, &attributes, out)
			    : names_lookup(fs, dir, name, NULL, NULL, out);

	*looked = (struct kcache_looked){
		.name = names.kcached,
		.attributes = attributes.kcached,
		.names = names.leaf,
		.leaf = attributes.leaf,
	};
	return rc;
}

/* ---- directories in transactions -------------------------------------------------- */

int dir_read(struct txn *x, uint64_t ino, struct disk_inode *out)
{
	int rc = inode_read(x, ino, out);

	if (rc)
		return rc;
	if (!S_ISDIR(out->mode))
		return -ENOTDIR;
	return out->nlink == 0 ? -ENOENT : 0;
}

uint8_t mode_type(uint32_t mode)
{
	return (uint8_t)IFTODT(mode);
}

void dir_lose_subdir(struct disk_inode *dir)
{
	if (dir->nlink > 2)
		dir->nlink--;
}

int place_find(struct fs *fs, struct txn *x, uint64_t dir, struct ops_name name,
	struct place *out)
{
	int rc;

	out->dir = dir;
	out->name = name;
	rc = dir_read(x, dir, &out->parent);
	return rc ? rc : entry_find(fs, x, dir, name, &out->slot);
}

int dir_allows(const struct disk_inode *dir, bool removes)
{
	uint32_t never = DISK_INODE_IMMUTABLE | (removes ? DISK_INODE_APPEND_ONLY : 0);

	return dir->flags & never ? OPS_VERDICT(-EPERM) : 0;
}

int place_find_free(struct fs *fs, struct txn *x, uint64_t dir, struct ops_name name,
	struct place *out)
{
	int rc = place_find(fs, x, dir, name, out);

	if (rc)
		return rc;
	if (out->slot.found)
		return OPS_VERDICT(-EEXIST);
	return dir_allows(&out->parent, false);
}

static int place_parent_write(struct txn *x, struct place *p, int64_t now)
{
	p->parent.mtime_ns = p->parent.ctime_ns = now;
	return inode_write(x, p->dir, &p->parent);
}

int place_add(struct txn *x, struct place *p, struct entry entry, int64_t now)
{
	int rc = entry_insert(x, &p->slot, p->name, entry);

	if (rc)
		return rc;
	p->parent.size++;
	if (entry.type == DT_DIR)
		p->parent.nlink++;
	return place_parent_write(x, p, now);
}

int place_remove(struct txn *x, struct place *p, bool directory, int64_t now)
{
	int rc = entry_remove(x, &p->slot);

	if (rc)
		return rc;
	p->parent.size -= MIN(p->parent.size, 1);
	if (directory)
		dir_lose_subdir(&p->parent);
	return place_parent_write(x, p, now);
}

/* ---- making ----------------------------------------------------------------------- */

struct make_arg {
	struct fs *fs;
	uint64_t dir;
	struct ops_name name;
	const struct ops_caller *c;
	struct inode_new what;
	const char *target; /* a symlink's */
	struct disk_inode inode;
};

static int write_target(struct txn *x, uint64_t ino, const char *target, size_t len)
{
	for (size_t at = 0; at < len; at += DISK_LINK_PIECE) {
		int rc = txn_write(x, disk_key(ino, DISK_ITEM_LINK, at / DISK_LINK_PIECE),
			target + at, MIN(len - at, DISK_LINK_PIECE));

		if (rc)
			return rc;
	}
	return 0;
}

static int make_body(struct txn *x, void *p)
{
	struct make_arg *a = p;
	struct place place;
	int rc;

	rc = place_find_free(a->fs, x, a->dir, a->name, &place);
	if (rc)
		return rc;
	rc = inode_create_txn(a->fs, x, a->dir, &place.parent, a->c, &a->what, &a->inode);
	if (rc)
		return rc;
	if (a->target) {
		rc = write_target(x, a->what.ino, a->target, a->what.size);
		if (rc)
			return rc;
	}
	return place_add(x, &place,
		(struct entry){.ino = a->what.ino, .type = mode_type(a->what.mode)},
		a->what.now);
}

/* Sets number and time. */
static int make_prepare(struct make_arg *a)
{
	int rc;

	rc = fs_check_writable(a->fs);
	if (rc)
		return rc;
	rc = volume_inode_number(a->fs->volume, &a->what.ino);
	if (rc)
		return rc;
	a->what.now = rt_wall_ns();
	return 0;
}

static int inode_make(struct make_arg *a, struct ops_attr *out)
{
	int rc;

	if (name_dots(a->name))
		return -EEXIST;
	rc = name_check(a->name);
	if (rc)
		return rc;
	rc = make_prepare(a);
	if (rc)
		return rc;
	rc = ops_run_names(a->fs, 0, make_body, a);
	if (rc)
		return rc;
	*out = (struct ops_attr){.ino = a->what.ino, .inode = a->inode};
	return 0;
}

int ops_mknod(struct fs *fs, uint64_t dir, struct ops_name name,
	const struct ops_caller *c, uint32_t mode, uint32_t rdev_major,
	uint32_t rdev_minor, struct ops_attr *out)
{
	struct make_arg a = {.fs = fs, .dir = dir, .name = name, .c = c};

	ops_count(fs, OPS_CALL_MKNOD);
	a.what.nlink = 1;
	switch (mode & S_IFMT) {
	case 0:
		mode |= S_IFREG;
		break;
	case S_IFREG:
	case S_IFIFO:
	case S_IFSOCK:
		break;
	case S_IFCHR:
	case S_IFBLK:
		a.what.rdev_major = rdev_major;
		a.what.rdev_minor = rdev_minor;
		break;
	case S_IFDIR:
		return -EPERM;
	default:
		return -EINVAL;
	}
	a.what.mode = mode;
	return inode_make(&a, out);
}

int ops_mkdir(struct fs *fs, uint64_t dir, struct ops_name name,
	const struct ops_caller *c, uint32_t mode, struct ops_attr *out)
{
	struct make_arg a = {.fs = fs, .dir = dir, .name = name, .c = c};

	ops_count(fs, OPS_CALL_MKDIR);
	a.what.mode = S_IFDIR | (mode & 07777);
	a.what.nlink = 2;
	a.what.parent_ino = dir;
	return inode_make(&a, out);
}

int ops_symlink(struct fs *fs, uint64_t dir, struct ops_name name,
	const struct ops_caller *c, const char *target, struct ops_attr *out)
{
	struct make_arg a = {
		.fs = fs, .dir = dir, .name = name, .c = c, .target = target};
	size_t len = strnlen(target, LINK_TARGET_MAX + 1);

	ops_count(fs, OPS_CALL_SYMLINK);
	if (len == 0)
		return -ENOENT;
	if (len > LINK_TARGET_MAX)
		return -ENAMETOOLONG;
	a.what.mode = S_IFLNK | 0777;
	a.what.nlink = 1;
	a.what.size = len;
	return inode_make(&a, out);
}

/* A target never changes. If pieces are missing, the link is gone. */
int ops_readlink(struct fs *fs, uint64_t ino, char *buf, size_t cap)
{
	char piece[DISK_LINK_PIECE];
	struct disk_inode inode;
	size_t at = 0;
	int rc;

	ops_count(fs, OPS_CALL_READLINK);
	rc = inode_get(fs, ino, &inode);
	if (rc)
		return rc;
	if (!S_ISLNK(inode.mode))
		return -EINVAL;
	while (at < inode.size && at < cap) {
		size_t want = MIN(inode.size - at, DISK_LINK_PIECE);

		rc = tree_read(fs->tree,
			disk_key(ino, DISK_ITEM_LINK, at / DISK_LINK_PIECE), piece,
			sizeof(piece));
		if (rc == -ENOENT) {
			rc = inode_get(fs, ino, &inode);
			return rc ? rc : -EUCLEAN;
		}
		if (rc < 0 && rc != -ERANGE)
			return rc;
		if (rc < 0 || (size_t)rc != want)
			return -EUCLEAN;
		memcpy(buf + at, piece, MIN(want, cap - at));
		at += want;
	}
	return (int)MIN(at, cap);
}

/* ---- making and opening ----------------------------------------------------------- */

/* The handle comes first: an unlink right after the transaction must find the file open. */
static int create_new(struct make_arg *a, int flags, struct ops_file **out, ops_body body)
{
	struct ops_file *file;
	int rc;

	rc = make_prepare(a);
	if (rc)
		return rc;
	rc = file_open_new(a->fs, a->what.ino, flags, &file);
	if (rc)
		return rc;
	rc = ops_run_names(a->fs, 0, body, a);
	if (rc) {
		file_abandon(a->fs, file);
		return rc;
	}
	*out = file;
	return 0;
}

/* -ENOENT: the name was removed meanwhile. */
static int open_existing(
	struct make_arg *a, int flags, struct ops_file **out, struct ops_attr *attr)
{
	struct entry entry;
	int rc;

	rc = entry_get(a->fs, a->dir, a->name, &entry);
	if (rc)
		return rc;
	if (entry.type == DT_DIR)
		return -EISDIR;
	if (entry.type == DT_LNK)
		return -ELOOP;
	return ops_open(a->fs, entry.ino, a->c, flags & ~(O_CREAT | O_EXCL), out, attr);
}

int ops_create(struct fs *fs, uint64_t dir, struct ops_name name,
	const struct ops_caller *c, uint32_t mode, int flags, struct ops_file **out,
	struct ops_attr *attr)
{
	struct make_arg a = {.fs = fs, .dir = dir, .name = name, .c = c};
	int rc;

	ops_count(fs, OPS_CALL_CREATE);
	if (name_dots(name))
		return flags & O_EXCL ? -EEXIST : -EISDIR;
	rc = name_check(name);
	if (rc)
		return rc;
	a.what.mode = S_IFREG | (mode & 07777);
	a.what.nlink = 1;
	for (unsigned tries = 0; tries < LOOKUP_TRIES; tries++) {
		rc = create_new(&a, flags, out, make_body);
		if (rc == 0) {
			*attr = (struct ops_attr){.ino = a.what.ino, .inode = a.inode};
			return 0;
		}
		if (rc != -EEXIST || (flags & O_EXCL))
			return rc;
		rc = open_existing(&a, flags, out, attr);
		if (rc != -ENOENT)
			return rc;
	}
	return -EUCLEAN;
}

static int tmpfile_body(struct txn *x, void *p)
{
	struct make_arg *a = p;
	struct disk_inode parent;
	int rc;

	rc = dir_read(x, a->dir, &parent);
	if (rc == 0)
		rc = dir_allows(&parent, false);
	if (rc)
		return rc;
	rc = inode_create_txn(a->fs, x, a->dir, &parent, a->c, &a->what, &a->inode);
	if (rc)
		return rc;
	return orphan_mark(x, a->what.ino);
}

int ops_tmpfile(struct fs *fs, uint64_t dir, const struct ops_caller *c, uint32_t mode,
	int flags, struct ops_file **out, struct ops_attr *attr)
{
	struct make_arg a = {.fs = fs, .dir = dir, .c = c};
	int rc;

	ops_count(fs, OPS_CALL_TMPFILE);
	a.what.mode = S_IFREG | (mode & 07777);
	rc = orphans_room(fs);
	if (rc == 0)
		rc = create_new(&a, flags | O_TMPFILE, out, tmpfile_body);
	if (rc)
		return rc;
	(void)orphan_await(fs, a.what.ino);
	*attr = (struct ops_attr){.ino = a.what.ino, .inode = a.inode};
	return 0;
}
