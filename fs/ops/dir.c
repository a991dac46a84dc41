/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads directories.
 *
 * Entries come in key order, the order of their names' hashes. A cookie is a key. An entry that
 * stays is therefore returned exactly once, even if other entries are added or removed. (If names
 * share an item, the low bits of a cookie are the place in the item. There are 2^59 hashes.)
 *
 * Entries are collected in batches. For readdirplus, the leaves of all inodes of a batch are
 * requested before the first is waited for. The caller's function runs with nothing held.
 */
#include <dirent.h>
#include <errno.h>

#include "fs/ops/ops_internal.h"

#define COOKIE_DOT          1ull
#define COOKIE_DOTDOT       2ull
#define COOKIE_ENTRIES      16ull /* the lowest cookie of an entry */
#define COOKIE_INDEX_MASK   15ull
#define BATCH_BYTES         8192u /* number of bytes of names; an item always fits */
#define BATCH_ENTRIES       128u
#define BATCH_ENTRIES_FIRST 32u /* the caller's buffer may be small */

_Static_assert(BATCH_BYTES >= DISK_VALUE_MAX, "an item fits an empty batch");
_Static_assert(BATCH_ENTRIES_FIRST >= 16, "an item fits an empty batch");

struct batch_entry {
	uint64_t ino, cookie;
	uint16_t name_at;
	uint8_t name_bytes, type;
};

struct batch {
	uint64_t from;      /* entries behind this cookie */
	unsigned count_max; /* an item is taken whole if there is room for one */
	unsigned count;
	unsigned name_bytes;
	struct batch_entry entry[BATCH_ENTRIES];
	char names[BATCH_BYTES];
};

/* For tree_visit. Returns 1 when the batch is full. */
static int batch_take(void *arg, struct disk_key key, const void *value, size_t len)
{
	struct batch *b = arg;
	const struct disk_entry *e;
	uint64_t cookie = key.low;
	size_t at = 0;
	int error;

	if (key.low & COOKIE_INDEX_MASK || key.low < COOKIE_ENTRIES)
		return -EUCLEAN;
	if (b->count + 16 > b->count_max || b->name_bytes + len > BATCH_BYTES)
		return 1;
	for (; disk_entry_step(value, len, &at, &e, &error); cookie++) {
		if (cookie - key.low > COOKIE_INDEX_MASK)
			return -EUCLEAN;
		if (cookie <= b->from)
			continue;
		b->entry[b->count++] = (struct batch_entry){
			.ino = e->ino,
			.cookie = cookie,
			.name_at = (uint16_t)b->name_bytes,
			.name_bytes = e->name_bytes,
			.type = e->type,
		};
		memcpy(b->names + b->name_bytes, e->name, e->name_bytes);
		b->name_bytes += e->name_bytes;
	}
	return error;
}

/* Fills the batch with entries behind b->from. *more: further entries may follow. */
static int batch_fill(struct fs *fs, uint64_t dir, struct batch *b, bool *more)
{
	int rc;

	b->count = 0;
	b->name_bytes = 0;
	rc = tree_scan(fs->tree,
		disk_key(dir, DISK_ITEM_ENTRY, b->from & ~COOKIE_INDEX_MASK),
		disk_key(dir, DISK_ITEM_EXTENT, 0), false, batch_take, b);
	*more = rc == 1;
	return MIN(rc, 0);
}

/* Requests the leaves of all inodes of the batch. */
static void batch_ahead(struct fs *fs, const struct batch *b)
{
	struct disk_key key[BATCH_ENTRIES];

	for (unsigned i = 0; i < b->count; i++)
		key[i] = disk_key(b->entry[i].ino, DISK_ITEM_INODE, 0);
	tree_prefetch(fs->tree, key, b->count);
}

/* Gives the entries of the batch to the caller. Returns 1 if the caller stops. */
static int batch_give(
	struct fs *fs, const struct batch *b, unsigned flags, ops_dirent_fn fn, void *arg)
{
	bool plus = flags & OPS_READDIR_PLUS;
	struct ops_attr attr;

	if (plus)
		batch_ahead(fs, b);
	for (unsigned i = 0; i < b->count; i++) {
		const struct batch_entry *e = &b->entry[i];
		struct ops_dirent out = {
			.ino = e->ino,
			.cookie = e->cookie,
			.type = e->type,
			.name = b->names + e->name_at,
			.name_len = e->name_bytes,
		};

		if (plus) {
			int rc = inode_attr(fs, e->ino, &attr);

			if (rc == -ENOENT || (rc == 0 && attr.inode.nlink == 0))
				continue; /* unlinked meanwhile */
			/* A damaged inode does not hide the names around it. */
			out.attr = rc == 0 ? &attr : NULL;
		}
		if (fn(arg, &out))
			return 1;
	}
	return 0;
}

/* Gives "." and "..". Returns 1 if the caller stops. */
static int give_dots(uint64_t dir, const struct disk_inode *inode, uint64_t cookie,
	ops_dirent_fn fn, void *arg)
{
	struct ops_dirent out = {.type = DT_DIR, .name = ".."};

	if (cookie < COOKIE_DOT) {
		out.ino = dir;
		out.cookie = COOKIE_DOT;
		out.name_len = 1;
		if (fn(arg, &out))
			return 1;
	}
	if (cookie < COOKIE_DOTDOT) {
		out.ino = inode->parent;
		out.cookie = COOKIE_DOTDOT;
		out.name_len = 2;
		if (fn(arg, &out))
			return 1;
	}
	return 0;
}

/* ---- atime ------------------------------------------------------------------------ */

struct atime_arg {
	uint64_t dir;
	int64_t now;
};

static int atime_body(struct txn *x, void *p)
{
	struct atime_arg *a = p;
	struct disk_inode inode;
	int rc;

	rc = dir_read(x, a->dir, &inode);
	if (rc)
		return rc;
	if (inode.atime_ns >= a->now)
		return 0;
	inode.atime_ns = a->now;
	return inode_write_atime(x, a->dir, &inode);
}

/* Writes the atime. Reading succeeds even if it cannot be written (a full volume), and does not
 * wait for it. */
static void touch_atime(struct fs *fs, uint64_t dir, const struct disk_inode *inode)
{
	struct atime_arg a = {.dir = dir, .now = rt_wall_ns()};

	if (!atomic_load_explicit(&fs->nodiratime, memory_order_relaxed) &&
		atime_due(fs, inode, a.now))
		(void)ops_run(fs, OPS_RUN_REACHED, atime_body, &a, NULL);
}

int ops_readdir(struct fs *fs, uint64_t dir, uint64_t cookie, unsigned flags,
	ops_dirent_fn fn, void *arg)
{
	struct disk_inode inode;
	struct batch *b;
	bool more = true;
	int rc;

	ops_count(fs, OPS_CALL_READDIR);
	rc = inode_get(fs, dir, &inode);
	if (rc)
		return rc;
	if (!S_ISDIR(inode.mode))
		return -ENOTDIR;
	if (inode.nlink == 0)
		return -ENOENT;
	if (cookie == 0)
		touch_atime(fs, dir, &inode);
	rc = give_dots(dir, &inode, cookie, fn, arg);
	if (rc)
		return 0;
	b = rt_alloc(sizeof(*b));
	if (!b)
		return -ENOMEM;
	b->from = MAX(cookie, COOKIE_ENTRIES - 1);
	b->count_max = BATCH_ENTRIES_FIRST;
	while (rc == 0 && more) {
		rc = batch_fill(fs, dir, b, &more);
		if (rc == 0)
			rc = batch_give(fs, b, flags, fn, arg);
		if (b->count > 0)
			b->from = b->entry[b->count - 1].cookie;
		b->count_max = BATCH_ENTRIES;
	}
	rt_free(b);
	return MIN(rc, 0);
}
