/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pass 0: the descriptor table. Assumes sound superblocks.
 *
 * Checks that each block has a whole copy. If the log was closed cleanly, both copies must be whole
 * (or never written). Otherwise a crash may leave a torn copy, and the log has the changes that
 * were being written. Also notes the highest incarnation in each group for pass 4.
 *
 * A block lost in both copies is made anew. The engine's own pages identify themselves. They get a
 * descriptor that fits their image, and later passes check it. For file data, the image of this
 * file cannot be told from that of an earlier file. It gets no descriptor: it reads as zeros, which
 * pass 5 reports.
 */
#include "mkfs/fsck/fsck_internal.h"

#define RUN_BLOCKS   64u          /* read at once; two copies each */
#define LOST_VERSION (1ull << 40) /* higher than any that the page may have had */

enum copy { COPY_WHOLE, COPY_EMPTY, COPY_BAD };

struct table_scan {
	struct store *s;
	struct disk_table_block *blocks; /* 2 * RUN_BLOCKS */
	uint8_t *image;                  /* a page */
	bool stop;
	unsigned lost_max;
};

static enum copy copy_state(
	struct table_scan *t, struct disk_table_block *b, uint64_t block)
{
	const uint64_t *words = (const uint64_t *)b;

	if (b->magic == DISK_MAGIC_TABLE && b->block == block &&
		b->checksum == store_table_checksum(t->s, b))
		return COPY_WHOLE;
	for (size_t i = 0; i < sizeof(*b) / sizeof(*words); i++)
		if (words[i])
			return COPY_BAD;
	return COPY_EMPTY;
}

static void note_incarnations(struct fsck *f, const struct disk_table_block *b)
{
	for (unsigned i = 0; i < DISK_TABLE_SLOTS; i++) {
		page_id pid = pid_make(f->at->sb.shard, b->block * DISK_TABLE_SLOTS + i);
		uint64_t *high;

		if (!page_usable(f, pid))
			continue;
		high = &f->at->group_high[page_group(pid)];
		*high = MAX(*high, b->slot[i].incarnation);
	}
}

bool table_lost(const struct fsck *f, page_id pid)
{
	const struct fsck_store *s = store_of((struct fsck *)f, pid);
	uint64_t block = pid_slot(pid) / DISK_TABLE_SLOTS;

	for (unsigned i = 0; s && i < s->lost_count; i++)
		if (s->lost_blocks[i] == block)
			return true;
	return false;
}

/* Returns true if the image itself shows that it belongs here. */
static bool self_evident(struct fsck *f, const void *image, uint64_t slot)
{
	page_id pid = pid_make(f->at->sb.shard, slot);
	const struct disk_catalog *c = image;
	const struct disk_group *g = image;

	if (slot == DISK_CATALOG_SLOT)
		return c->magic == DISK_MAGIC_CATALOG &&
		       memcmp(c->volume_uuid, f->at->sb.volume_uuid, 16) == 0;
	if ((slot - 1) % (1 + DISK_GROUP_PAGES) == 0)
		return g->magic == DISK_MAGIC_GROUP &&
		       g->group == (slot - 1) / (1 + DISK_GROUP_PAGES);
	return tree_check_page(image, pid, NULL) == 0;
}

static int block_fill(struct fsck *f, struct table_scan *t, struct disk_table_block *b)
{
	for (unsigned i = 0; i < DISK_TABLE_SLOTS; i++) {
		uint64_t slot = b->block * DISK_TABLE_SLOTS + i;

		if (slot >= f->at->sb.page_count ||
			rt_disk_read(f->at->in.disk,
				f->at->sb.pages_offset + slot * PAGE_SIZE, t->image,
				PAGE_SIZE) ||
			!self_evident(f, t->image, slot))
			continue;
		b->slot[i] = (struct disk_descriptor){
			.incarnation = 1, .version = LOST_VERSION};
		b->slot[i].checksum = store_page_checksum(
			t->s, pid_make(f->at->sb.shard, slot), 1, LOST_VERSION, t->image);
	}
	return 0;
}

static int block_rebuild(struct fsck *f, struct table_scan *t,
	struct disk_table_block *pair, uint64_t block)
{
	bool repair;
	int rc;

	f->keep = f->alone; /* otherwise changes of its pages in other logs would be lost */
	repair = fsck_found(f, 20,
		"block %" PRIu64 " of the descriptor table (pages %" PRIu64 " to %" PRIu64
		") is damaged in both copies",
		block, block * DISK_TABLE_SLOTS,
		MIN((block + 1) * DISK_TABLE_SLOTS, f->at->sb.page_count) - 1);
	f->keep = false;
	if (!repair) {
		t->stop = true;
		return 0;
	}
	if (f->at->lost_count == t->lost_max)
		return fsck_repaired(f, -ENOMEM);
	f->at->lost_blocks[f->at->lost_count++] = block;
	memset(pair, 0, 2 * sizeof(*pair));
	pair->magic = DISK_MAGIC_TABLE;
	pair->block = block;
	pair->generation = 1;
	rc = block_fill(f, t, pair);
	note_incarnations(f, pair);
	pair->checksum = store_table_checksum(t->s, pair);
	if (rc == 0)
		rc = rt_disk_write(f->at->in.disk,
			f->at->sb.table_offset + 2 * block * PAGE_SIZE, pair,
			2 * PAGE_SIZE);
	return fsck_repaired(f, rc);
}

/* Repairs a block with one bad copy from the whole one. */
static int copy_mend(
	struct fsck *f, struct disk_table_block *pair, uint64_t block, unsigned bad)
{
	if (!f->at->was_clean || !fsck_found(f, 21,
					 "the %s copy of block %" PRIu64
					 " of the descriptor table is damaged",
					 bad ? "second" : "first", block))
		return 0;
	memcpy(&pair[bad], &pair[!bad], sizeof(pair[bad]));
	return fsck_repaired(
		f, rt_disk_write(f->at->in.disk,
			   f->at->sb.table_offset + (2 * block + bad) * PAGE_SIZE,
			   &pair[bad], PAGE_SIZE));
}

static int block_check(struct fsck *f, struct table_scan *t,
	struct disk_table_block *pair, uint64_t block)
{
	enum copy state[2];
	unsigned newest;
	int rc = 0;

	for (unsigned i = 0; i < 2; i++)
		state[i] = copy_state(t, &pair[i], block);
	if (state[0] != COPY_WHOLE && state[1] != COPY_WHOLE)
		return block_rebuild(f, t, pair, block);
	newest = state[0] != COPY_WHOLE ||
		 (state[1] == COPY_WHOLE && pair[1].generation > pair[0].generation);
	note_incarnations(f, &pair[newest]);
	if (state[!newest] == COPY_BAD || (newest && state[0] == COPY_EMPTY))
		rc = copy_mend(f, pair, block, !newest);
	return rc;
}

static int table_scan(struct fsck *f, struct table_scan *t)
{
	uint64_t blocks = DIV_UP(f->at->sb.page_count, (uint64_t)DISK_TABLE_SLOTS);

	for (uint64_t at = 0; at < blocks; at += RUN_BLOCKS) {
		unsigned n = (unsigned)MIN((uint64_t)RUN_BLOCKS, blocks - at);
		int rc = rt_disk_read(f->at->in.disk,
			f->at->sb.table_offset + 2 * at * PAGE_SIZE, t->blocks,
			(size_t)n * 2 * PAGE_SIZE);

		if (rc)
			return weft_error(f->err, rc,
				"reading the descriptor table at byte %llu failed",
				(unsigned long long)f->at->sb.table_offset +
					2 * at * PAGE_SIZE);
		for (unsigned i = 0; i < n && rc == 0; i++)
			rc = block_check(f, t, t->blocks + 2 * i, at + i);
		if (rc)
			return rc;
		fsck_progress(f, 0, at, blocks);
	}
	return f->changed ? rt_disk_flush(f->at->in.disk) : 0;
}

int table_check(struct fsck *f, bool *stop)
{
	struct store_options o = {.read_only = true, .any_node = true};
	struct table_scan t = {.lost_max = 1u << 16};
	int rc = store_open(&t.s, f->at->in.disk, &o, f->err);

	if (rc)
		return rc;
	t.blocks = rt_alloc_pages(2 * RUN_BLOCKS * PAGE_SIZE);
	t.image = rt_alloc_pages(PAGE_SIZE);
	f->at->lost_blocks = rt_alloc(t.lost_max * sizeof(*f->at->lost_blocks));
	rc = t.blocks && t.image && f->at->lost_blocks ? table_scan(f, &t) : -ENOMEM;
	*stop |= t.stop;
	if (t.image)
		rt_free_pages(t.image, PAGE_SIZE);
	if (t.blocks)
		rt_free_pages(t.blocks, 2 * RUN_BLOCKS * PAGE_SIZE);
	store_close(t.s);
	return rc;
}
