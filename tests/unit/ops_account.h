/* SPDX-License-Identifier: Apache-2.0 */
/* Space accounting: every page in use is a file's or the tree's, and blocks counts are
 * exact. */
#ifndef WEFT_TEST_OPS_ACCOUNT_H
#define WEFT_TEST_OPS_ACCOUNT_H

#include "tests/unit/ops_fixture.h"

struct account {
	uint64_t extents, xattr_pages;
	uint64_t ino, end; /* of the last extent, to find overlaps */
	uint64_t blocks_ino, blocks_want, blocks_seen;
};

static inline void account_inode_end(struct account *a)
{
	EQ(a->blocks_seen, a->blocks_want);
	a->blocks_seen = a->blocks_want = 0;
}

static inline int account_item(
	void *arg, struct disk_key key, const void *value, size_t len)
{
	struct account *a = arg;
	uint64_t ino = key.high >> 8;
	struct disk_inode inode;
	struct disk_extent e;

	switch (key.high & 0xff) {
	case DISK_ITEM_INODE:
		account_inode_end(a);
		EQ(len, sizeof(inode));
		memcpy(&inode, value, len);
		a->blocks_ino = ino;
		a->blocks_want = inode.blocks;
		break;
	case DISK_ITEM_EXTENT:
		EQ(len, sizeof(e));
		memcpy(&e, value, len);
		EQ(ino, a->blocks_ino);
		HOLDS(ino != a->ino || key.low >= a->end);
		a->ino = ino;
		a->end = key.low + e.length;
		a->extents += e.length;
		a->blocks_seen += e.length;
		break;
	case DISK_ITEM_ORPHAN:
	case DISK_ITEM_INTENT:
		HOLDS(!"an orphan or intent is left");
		break;
	default:
		break;
	}
	return 0;
}

static inline uint64_t tree_pages(struct fs *fs, page_id pid)
{
	struct cache *cache = fs->volume->cache;
	struct disk_inner *copy = malloc(PAGE_SIZE);
	uint64_t pages = 1;
	struct guard g;

	OK(guard_shared(cache, pid, 0, &g));
	memcpy(copy, g.image, PAGE_SIZE);
	guard_release(cache, &g);
	HOLDS(copy->node.magic == DISK_MAGIC_NODE);
	for (unsigned i = 0; copy->node.level > 0 && i < copy->node.count; i++)
		pages += tree_pages(fs, copy->child[i]);
	free(copy);
	return pages;
}

/* Pages in use that neither an extent nor the tree has. */
static inline int64_t pages_over(struct fs *fs)
{
	struct account a = {0};
	struct space_stat stat;

	OK(tree_scan(fs->tree, (struct disk_key){0, 0},
		(struct disk_key){UINT64_MAX, UINT64_MAX}, false, account_item, &a));
	account_inode_end(&a);
	space_stat(fs->volume->space, &stat);
	return (int64_t)(stat.total_pages - stat.free_pages - a.extents) -
	       (int64_t)tree_pages(fs, fs->volume->catalog.root_pid);
}

#endif
