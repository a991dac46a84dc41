/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scrub: reads images and blocks of the descriptor table as they are on the device, beside all
 * other use of the store.
 *
 * Blocks of the table are written under the table's write lock. So a copy that looks damaged is
 * read again under that lock, and counts only then. A block with newer descriptors in memory will
 * be written over its older copy. So that copy does not count, and may be torn after a crash.
 */
#include "engine/store/store_internal.h"

#define SCRUB_BOTH       3u
#define SCRUB_UNREADABLE 4u

void store_scrub_pages(struct store *s, struct store_read *reads, unsigned count)
{
	pages_read(s, reads, count, PAGES_FOR_SCRUB);
}

uint64_t store_table_blocks(struct store *s)
{
	return layout_table_blocks(&s->sb);
}

/* The damage of a block, whose copies are in `copies`. */
static uint8_t copies_check(
	struct store *s, const struct disk_table_block *copies, uint64_t block)
{
	enum table_copy first = table_copy_check(s, &copies[0], block);
	enum table_copy second = table_copy_check(s, &copies[1], block);

	if (first != TABLE_COPY_WHOLE && second != TABLE_COPY_WHOLE)
		return SCRUB_BOTH;
	return (uint8_t)((first == TABLE_COPY_DAMAGED) | (second == TABLE_COPY_DAMAGED) << 1);
}

/* Returns a map of the copies that count: a write is not about to replace them. */
static uint8_t copies_needed(struct store *s, uint64_t block)
{
	struct table *t = &s->table;
	const struct table_entry *e;
	uint8_t map = SCRUB_BOTH;

	rt_mutex_lock(&t->lock);
	e = table_entry_find(t, block);
	if (e && e->state == TABLE_VALID && e->dirty)
		map = (uint8_t)(1u << e->copy);
	rt_mutex_unlock(&t->lock);
	return map;
}

/* Looks at a block for certain. */
static uint8_t block_confirm(
	struct store *s, struct disk_table_block *copies, uint64_t block)
{
	uint8_t bad;

	rt_mutex_lock(&s->table.write_lock);
	if (rt_disk_read(s->disk, table_block_place(s, block, 0), copies,
		    2 * sizeof(*copies)))
		bad = SCRUB_UNREADABLE;
	else
		bad = copies_check(s, copies, block) & copies_needed(s, block);
	rt_mutex_unlock(&s->table.write_lock);
	return bad;
}

void store_scrub_table(
	struct store *s, uint64_t first, unsigned count, void *memory, uint8_t *bad)
{
	struct disk_table_block *copies = memory;
	int rc;

	WEFT_ASSERT(count <= STORE_SCRUB_BLOCKS);
	rc = rt_disk_read(s->disk, table_block_place(s, first, 0), copies,
		2 * count * sizeof(*copies));
	counter_add(&s->counters.table_reads, count);
	counter_add(&s->counters.read_requests, 1);
	for (unsigned i = 0; i < count; i++) {
		bad[i] = rc ? SCRUB_UNREADABLE
			    : copies_check(s, &copies[2 * i], first + i);
		if (bad[i])
			bad[i] = block_confirm(s, &copies[2 * i], first + i);
	}
}
