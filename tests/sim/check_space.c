/* SPDX-License-Identifier: Apache-2.0 */
/* What a quiet volume's pages are used for, against its bitmaps. */
#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "tests/sim/harness.h"
#include "tests/sim/life_memory.h"

#define SLOTS_MAX (64u << 8) /* of 64 MiB */

struct census {
	struct fs *fs;
	struct volume *volume;
	uint8_t used[SLOTS_MAX];
	uint64_t ino, blocks, blocks_want; /* of the inode being counted */
	uint64_t extents_end;
	uint32_t nlink;
};

static struct census census;

static bool is_group(uint64_t slot)
{
	return slot == DISK_CATALOG_SLOT || (slot - 1) % (1 + DISK_GROUP_PAGES) == 0;
}

static void mark(struct census *c, page_id pid, uint64_t count, const char *what)
{
	const struct disk_superblock *sb = store_superblock(c->volume->store);

	for (uint64_t i = 0; i < count; i++) {
		uint64_t slot = pid_slot(pid) + i;

		if (slot >= sb->page_count || slot >= SLOTS_MAX || is_group(slot))
			workload_die("space: inode %llu: page %llu of %s cannot be one",
				(unsigned long long)c->ino, (unsigned long long)slot,
				what);
		if (c->used[slot])
			workload_die("space: inode %llu: page %llu of %s is in use twice",
				(unsigned long long)c->ino, (unsigned long long)slot,
				what);
		c->used[slot] = 1;
	}
}

static void inode_end(struct census *c)
{
	if (c->blocks != c->blocks_want)
		workload_die("space: inode %llu says %llu blocks and has %llu",
			(unsigned long long)c->ino, (unsigned long long)c->blocks_want,
			(unsigned long long)c->blocks);
	c->blocks = c->blocks_want = c->extents_end = 0;
}

static void count_xattr(struct census *c, const uint8_t *value, size_t len)
{
	struct disk_xattr head;
	struct disk_extent run;

	WEFT_ASSERT(len >= sizeof(head));
	memcpy(&head, value, sizeof(head));
	for (unsigned i = 0; i < head.run_count; i++) {
		memcpy(&run, value + sizeof(head) + head.name_bytes + i * sizeof(run),
			sizeof(run));
		mark(c, run.pid, run.length, "an xattr");
		c->blocks += run.length;
	}
}

static int count_item(void *arg, struct disk_key key, const void *value, size_t len)
{
	struct census *c = arg;
	uint64_t ino = key.high >> 8;
	struct disk_inode inode;
	struct disk_extent e;

	switch (key.high & 0xff) {
	case DISK_ITEM_INODE:
		inode_end(c);
		WEFT_ASSERT(len == sizeof(inode));
		memcpy(&inode, value, len);
		c->ino = ino;
		c->blocks_want = inode.blocks;
		if (inode.nlink == 0)
			workload_die(
				"space: inode %llu has no link", (unsigned long long)ino);
		break;
	case DISK_ITEM_EXTENT:
		WEFT_ASSERT(len == sizeof(e));
		memcpy(&e, value, len);
		if (ino != c->ino || key.low < c->extents_end)
			workload_die("space: inode %llu: an extent at %llu overlaps or "
				     "is nobody's",
				(unsigned long long)ino, (unsigned long long)key.low);
		c->extents_end = key.low + e.length;
		mark(c, e.pid, e.length, "an extent");
		c->blocks += e.length;
		break;
	case DISK_ITEM_XATTR:
		if (ino != c->ino)
			workload_die("space: an xattr of inode %llu, which is none",
				(unsigned long long)ino);
		count_xattr(c, value, len);
		break;
	case DISK_ITEM_ORPHAN:
	case DISK_ITEM_INTENT:
		workload_die("space: an orphan or intent of inode %llu is left",
			(unsigned long long)key.low);
	default:
		if (ino != c->ino)
			workload_die("space: an item of inode %llu, which is none",
				(unsigned long long)ino);
	}
	return 0;
}

static void count_tree(struct census *c, page_id pid)
{
	struct disk_inner *copy = life_alloc(PAGE_SIZE);
	struct guard g;

	mark(c, pid, 1, "the tree");
	OK(guard_shared(c->volume->cache, pid, 0, &g));
	memcpy(copy, g.image, PAGE_SIZE);
	guard_release(c->volume->cache, &g);
	WEFT_ASSERT(copy->node.magic == DISK_MAGIC_NODE);
	for (unsigned i = 0; copy->node.level > 0 && i < copy->node.count; i++)
		count_tree(c, copy->child[i]);
	life_free(copy);
}

static void compare_group(struct census *c, uint64_t group)
{
	uint64_t count = store_superblock(c->volume->store)->page_count;
	uint64_t first = disk_group_slot(group) + 1;
	struct disk_group d;
	uint32_t free_pages = 0;
	struct guard g;

	OK(guard_shared(c->volume->cache, first - 1, 0, &g));
	memcpy(&d, g.image, sizeof(d));
	guard_release(c->volume->cache, &g);
	for (uint32_t i = 0; i < DISK_GROUP_PAGES; i++) {
		bool set = d.bitmap[i / 8] >> i % 8 & 1;
		bool want = first + i >= count || c->used[first + i];

		free_pages += !set;
		if (set != want)
			workload_die("space: page %llu is %s",
				(unsigned long long)first + i,
				set ? "leaked" : "in use and free");
	}
	if (free_pages != d.free_pages)
		workload_die("space: group %llu counts %u free pages and has %u",
			(unsigned long long)group, d.free_pages, free_pages);
}

void sim_check_space(struct fs *fs)
{
	struct census *c = &census;
	uint64_t count;

	memset(c, 0, sizeof(*c));
	c->fs = fs;
	c->volume = fs_volume(fs);
	count = store_superblock(c->volume->store)->page_count;
	count_tree(c, c->volume->catalog.root_pid);
	OK(tree_scan(c->volume->tree, (struct disk_key){0, 0},
		(struct disk_key){UINT64_MAX, UINT64_MAX}, false, count_item, c));
	inode_end(c);
	for (uint64_t g = 0; g < space_layout_groups(count); g++)
		compare_group(c, g);
}
