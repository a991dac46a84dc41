/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Changing names: taking entries away, giving what has none a name in lost+found.
 *
 * Each change is one transaction with the directory's counts, so none of them shows up as
 * wrong afterwards.
 */
#include <dirent.h>
#include <stdio.h>

#include "mkfs/fsck/fsck_internal.h"

#define LOST_FOUND "lost+found"

struct change {
	uint64_t dir;
	const char *name;
	unsigned len;
	uint64_t ino;
	uint8_t type;
	/* drop: true when it was there */
	bool found;
};

static int inode_load(struct txn *x, uint64_t ino, struct disk_inode *out)
{
	int rc = txn_read(x, disk_key(ino, DISK_ITEM_INODE, 0), out, sizeof(*out));

	return rc < 0 ? rc : rc == (int)sizeof(*out) ? 0 : -EUCLEAN;
}

static int inode_store(struct txn *x, uint64_t ino, struct disk_inode *inode)
{
	inode->changes++;
	return txn_write(x, disk_key(ino, DISK_ITEM_INODE, 0), inode, sizeof(*inode));
}

/* Where in an item's value the entry is; its length in *bytes. -1: nowhere. */
static int entry_place(
	const uint8_t *value, size_t len, const struct change *c, unsigned *bytes)
{
	const struct disk_entry *e;
	size_t at = 0, begin = 0;
	int error;

	for (; disk_entry_step(value, len, &at, &e, &error); begin = at) {
		if (e->name_bytes != c->len || memcmp(e->name, c->name, c->len) != 0)
			continue;
		if (c->ino && e->ino != c->ino)
			continue;
		*bytes = (unsigned)(at - begin);
		return (int)begin;
	}
	return -1;
}

static struct disk_key entry_key(struct fsck *f, const struct change *c)
{
	return disk_key(c->dir, DISK_ITEM_ENTRY, name_place(f, c->name, c->len));
}

/* ---- taking away ----------------------------------------------------------------- */

static int drop_body(struct fsck *f, struct txn *x, void *arg)
{
	struct change *c = arg;
	uint8_t value[DISK_VALUE_MAX];
	struct disk_inode dir;
	unsigned bytes;
	int len = txn_read(x, entry_key(f, c), value, sizeof(value));
	int at, rc;

	c->found = false;
	if (len < 0)
		return len == -ENOENT ? 0 : len;
	at = entry_place(value, (size_t)len, c, &bytes);
	if (at < 0)
		return 0;
	c->found = true;
	memmove(value + at, value + at + bytes, (size_t)len - (size_t)at - bytes);
	len -= (int)bytes;
	rc = len ? txn_write(x, entry_key(f, c), value, (size_t)len)
		 : txn_delete(x, entry_key(f, c));
	if (rc)
		return rc;
	rc = inode_load(x, c->dir, &dir);
	if (rc)
		return rc == -ENOENT ? 0 : rc;
	dir.size -= MIN(dir.size, 1u);
	if (c->type == DT_DIR && dir.nlink > 2)
		dir.nlink--;
	return inode_store(x, c->dir, &dir);
}

int entry_drop(struct fsck *f, uint64_t dir, const struct disk_entry *e)
{
	struct change c = {.dir = dir,
		.name = e->name,
		.len = e->name_bytes,
		.ino = e->ino,
		.type = e->type};
	int rc = repair_run(f, drop_body, &c);

	return rc ? rc : c.found ? 0 : -ENOENT;
}

struct drop_all {
	uint64_t dir, ino;
	int rc;
};

static int drop_visit(
	struct fsck *f, void *arg, struct disk_key key, const void *value, size_t len)
{
	struct drop_all *d = arg;
	const struct disk_entry *e;
	size_t at = 0;
	int error;

	while (disk_entry_step(value, len, &at, &e, &error))
		if (e->ino == d->ino) {
			d->rc = entry_drop(f, d->dir, e);
			return 1;
		}
	return 0;
}

int entry_drop_ino(struct fsck *f, uint64_t dir, uint64_t ino)
{
	struct drop_all d = {.dir = dir, .ino = ino};
	int rc;

	do {
		d.rc = 0;
		rc = items_scan(f, disk_key(dir, DISK_ITEM_ENTRY, 0),
			disk_key(dir, DISK_ITEM_ENTRY + 1, 0), 0, drop_visit, &d);
	} while (rc == 1 && d.rc == 0);
	return rc < 0 ? rc : d.rc;
}

static int type_body(struct fsck *f, struct txn *x, void *arg)
{
	const struct change *c = arg;
	uint8_t value[DISK_VALUE_MAX];
	struct disk_entry head;
	struct disk_inode dir;
	unsigned bytes;
	int len = txn_read(x, entry_key(f, c), value, sizeof(value));
	int at = len < 0 ? len : entry_place(value, (size_t)len, c, &bytes);
	int rc;

	if (at < 0)
		return len < 0 ? len : -ENOENT;
	rc = inode_load(x, c->dir, &dir);
	if (rc)
		return rc;
	memcpy(&head, value + at, sizeof(head));
	if (head.type != DT_DIR && c->type == DT_DIR)
		dir.nlink++;
	if (head.type == DT_DIR && c->type != DT_DIR && dir.nlink > 2)
		dir.nlink--;
	head.type = c->type;
	memcpy(value + at, &head, sizeof(head));
	rc = txn_write(x, entry_key(f, c), value, (size_t)len);
	return rc ? rc : inode_store(x, c->dir, &dir);
}

int entry_set_type(struct fsck *f, uint64_t dir, const struct disk_entry *e, uint8_t type)
{
	struct change c = {.dir = dir,
		.name = e->name,
		.len = e->name_bytes,
		.ino = e->ino,
		.type = type};

	return repair_run(f, type_body, &c);
}

/* ---- giving a name --------------------------------------------------------------- */

/* Adds the entry and to the directory's counts, in memory and in x. */
static int entry_give(
	struct fsck *f, struct txn *x, const struct change *c, struct disk_inode *dir)
{
	uint8_t value[DISK_VALUE_MAX];
	struct disk_entry head = {
		.ino = c->ino, .type = c->type, .name_bytes = (uint8_t)c->len};
	int len = txn_read(x, entry_key(f, c), value, sizeof(value));

	if (len < 0 && len != -ENOENT)
		return len;
	len = MAX(len, 0);
	if ((size_t)len + sizeof(head) + c->len > sizeof(value))
		return -ENOSPC;
	memcpy(value + len, &head, sizeof(head));
	memcpy(value + len + sizeof(head), c->name, c->len);
	dir->size++;
	if (c->type == DT_DIR)
		dir->nlink++;
	dir->mtime_ns = dir->ctime_ns = rt_wall_ns();
	return txn_write(x, entry_key(f, c), value, (size_t)len + sizeof(head) + c->len);
}

/* Makes the directory lost+found, with the number in c->ino. */
static int make_body(struct fsck *f, struct txn *x, void *arg)
{
	struct change *c = arg;
	struct disk_inode root, inode = {.mode = S_IFDIR | 0700,
					.nlink = 2,
					.parent = DISK_INO_ROOT,
					.generation = 1};
	int rc = inode_load(x, DISK_INO_ROOT, &root);

	if (rc)
		return rc;
	inode.atime_ns = inode.mtime_ns = inode.ctime_ns = inode.btime_ns = rt_wall_ns();
	rc = entry_give(f, x, c, &root);
	if (rc == 0)
		rc = inode_store(x, DISK_INO_ROOT, &root);
	return rc ? rc : inode_store(x, c->ino, &inode);
}

static int search_entry(
	struct fsck *f, uint64_t dir, const char *name, uint64_t *ino, uint8_t *type)
{
	struct change c = {.dir = dir, .name = name, .len = (unsigned)strlen(name)};
	uint8_t value[DISK_VALUE_MAX];
	struct disk_entry head;
	unsigned bytes;
	int len = item_get(f, entry_key(f, &c), value, sizeof(value));
	int at = len < 0 ? len : entry_place(value, (size_t)len, &c, &bytes);

	if (at < 0)
		return len < 0 ? len : -ENOENT;
	memcpy(&head, value + at, sizeof(head));
	*ino = head.ino;
	*type = head.type;
	return 0;
}

/* The number of lost+found, which is made if it is not there. */
static int lost_found(struct fsck *f, uint64_t *ino)
{
	struct change c = {.dir = DISK_INO_ROOT,
		.name = LOST_FOUND,
		.len = strlen(LOST_FOUND),
		.type = DT_DIR};
	uint8_t type;
	int rc = search_entry(f, DISK_INO_ROOT, LOST_FOUND, ino, &type);

	if (rc != -ENOENT)
		return rc ? rc : type == DT_DIR ? 0 : -ENOTDIR;
	rc = volume_inode_number(f->v, &c.ino);
	f->catalog.next_inode_range =
		MAX(f->catalog.next_inode_range, (c.ino >> DISK_INODE_RANGE_BITS) + 1);
	if (rc == 0)
		rc = repair_run(f, make_body, &c);
	*ino = c.ino;
	return rc;
}

static int attach_body(struct fsck *f, struct txn *x, void *arg)
{
	struct change *c = arg;
	struct disk_inode dir, inode;
	int rc = inode_load(x, c->ino, &inode);

	if (rc == 0)
		rc = inode_load(x, c->dir, &dir);
	if (rc)
		return rc;
	c->type = mode_dt(inode.mode);
	rc = entry_give(f, x, c, &dir);
	if (rc)
		return rc;
	if (S_ISDIR(inode.mode)) {
		inode.parent = c->dir;
		inode.nlink = MAX(inode.nlink, 2u);
	} else {
		inode.nlink = 1;
	}
	rc = txn_delete(x, disk_key(DISK_INO_SYSTEM, DISK_ITEM_ORPHAN, c->ino));
	if (rc == 0)
		rc = inode_store(x, c->ino, &inode);
	return rc ? rc : inode_store(x, c->dir, &dir);
}

int attach_lost(struct fsck *f, uint64_t ino)
{
	char name[40];
	struct change c = {.name = name, .ino = ino};
	uint64_t other;
	uint8_t type;
	int rc = lost_found(f, &c.dir);

	for (unsigned i = 0; rc == 0 && i < 100; i++) {
		snprintf(name, sizeof(name), i ? "#%" PRIu64 ".%u" : "#%" PRIu64, ino, i);
		c.len = (unsigned)strlen(name);
		rc = search_entry(f, c.dir, name, &other, &type);
		if (rc == -ENOENT)
			return repair_run(f, attach_body, &c);
	}
	return rc ? rc : -EEXIST;
}
