/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mini-transactions: several pages change in one log record.
 *
 * An mtr first reserves log room, which waits, with nothing held. It then latches pages exclusively
 * and never waits. Its functions change the pages and collect the byte ranges (SELCC §5.2.2's dirty
 * boundaries). At the commit it appends one record, increments the versions, and releases the
 * latches. It can be aborted before its first change. Afterwards it must commit.
 *
 * mtr_begin -> mtr_latch / mtr_fresh ... -> mtr_write ... -> mtr_commit
 */
#ifndef WEFT_MTR_H
#define WEFT_MTR_H

#include "engine/cache/cache.h"

#define MTR_PAGES_MAX  64
#define MTR_RANGES_MAX 24 /* per page; more are merged with their nearest neighbours */
#define MTR_MOVES_MAX  8  /* per page; more are logged as ranges */

struct mtr_page {
	struct guard guard;
	bool full; /* log the full image */
	bool changed;
	uint8_t move_count;
	uint16_t range_count;
	struct disk_log_move move[MTR_MOVES_MAX];    /* in order; redone before the ranges */
	struct disk_log_range range[MTR_RANGES_MAX]; /* sorted, disjoint */
};

struct mtr {
	struct cache *cache;
	struct log_room room;
	unsigned page_count;
	struct mtr_page page[MTR_PAGES_MAX];
};

/* Begins an mtr and reserves its log room. `pages`: the most pages that it will latch. Returns 0,
 * -EROFS if the volume is read-only or its log has failed, or another negative errno. Waits. */
int mtr_begin(struct mtr *m, struct cache *cache, unsigned pages);
/*
 * Latches a page exclusively. Returns the mtr's page; the same one if it is already latched. Never
 * waits. Returns NULL with *error = -EAGAIN if the page is missing, latched or of another
 * incarnation. Abort, wait for it with guard_shared or cache_fetch, and start over.
 */
struct mtr_page *mtr_latch(struct mtr *m, page_id pid, uint64_t incarnation, int *error);
/* Turns an optimistic guard into a page of the mtr. The guard is released in any case. Returns NULL
 * with -EAGAIN as mtr_latch does. Never waits. */
struct mtr_page *mtr_upgrade(struct mtr *m, struct guard *g, int *error);
/* Adds a page that was just allocated: zeros, logged in full. Call mtr_prepare_fresh before any
 * page is latched. Returns NULL with -EAGAIN if the frame was lost meanwhile. Never waits. */
struct mtr_page *mtr_fresh(struct mtr *m, page_id pid, uint64_t incarnation, int *error);
/* Puts a zeroed frame for the page into the cache, before mtr_fresh. Returns 0 or a negative errno.
 * Waits. */
int mtr_prepare_fresh(struct cache *cache, page_id pid, uint64_t incarnation);

/* Change a page and collect the ranges. Offsets and lengths are in bytes, within the page. */
void mtr_write(struct mtr_page *p, unsigned offset, const void *src, unsigned len);
void mtr_zero(struct mtr_page *p, unsigned offset, unsigned len);
void mtr_move(struct mtr_page *p, unsigned to, unsigned from, unsigned len);
static inline void mtr_write_u16(struct mtr_page *p, unsigned offset, uint16_t v)
{
	mtr_write(p, offset, &v, sizeof(v));
}
static inline void mtr_write_u32(struct mtr_page *p, unsigned offset, uint32_t v)
{
	mtr_write(p, offset, &v, sizeof(v));
}
static inline void mtr_write_u64(struct mtr_page *p, unsigned offset, uint64_t v)
{
	mtr_write(p, offset, &v, sizeof(v));
}

/* Logs the changes, increments the versions, and releases all pages. Returns the position of the
 * record. Never waits. */
struct log_position mtr_commit(struct mtr *m);
/* Releases all pages. None was changed. */
void mtr_abort(struct mtr *m);

#endif
