/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mini-transactions: several pages changed as one log record.
 *
 * An mtr reserves log room first (waits, holding nothing), then latches pages exclusively
 * without ever waiting, has them changed through functions that collect the byte ranges
 * (SELCC §5.2.2's dirty boundaries), and commits: one record, versions raised, latches
 * released. Before the first change it can be aborted freely; after it, it must commit.
 *
 *	mtr_begin -> mtr_latch / mtr_fresh ... -> mtr_write ... -> mtr_commit
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
	struct disk_log_move move[MTR_MOVES_MAX]; /* in order; redone before the ranges */
	struct disk_log_range range[MTR_RANGES_MAX]; /* sorted, disjoint */
};

struct mtr {
	struct cache *cache;
	struct log_room room;
	unsigned page_count;
	struct mtr_page page[MTR_PAGES_MAX];
};

/* `pages`: at most so many will be latched (for the log room). Waits. -EROFS when the
 * volume is read-only or its log has failed. */
int mtr_begin(struct mtr *m, struct cache *cache, unsigned pages);
/*
 * Latches a page exclusively. Returns the mtr's page, the same one when it is held
 * already. NULL with *error: -EAGAIN (missing, latched, other incarnation: abort, wait
 * for it with guard_shared or cache_fetch, start over). Never waits.
 */
struct mtr_page *mtr_latch(struct mtr *m, page_id pid, uint64_t incarnation, int *error);
/* Upgrades an optimistic guard into the mtr; -EAGAIN as above. The guard is consumed. */
struct mtr_page *mtr_upgrade(struct mtr *m, struct guard *g, int *error);
/*
 * A just allocated page, prepared by mtr_prepare_fresh before any latch was taken: zeros,
 * logged in full. Never waits; -EAGAIN if the frame got lost meanwhile.
 */
struct mtr_page *mtr_fresh(struct mtr *m, page_id pid, uint64_t incarnation, int *error);
/* Puts a zeroed frame for the page into the cache, ahead of mtr_fresh. Waits. */
int mtr_prepare_fresh(struct cache *cache, page_id pid, uint64_t incarnation);

/* Changes; all collect ranges. Offsets and lengths in bytes, within the page. */
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

/* Logs, raises versions, releases all. Returns where the record is. Never waits. */
struct log_position mtr_commit(struct mtr *m);
/* Releases all; nothing may have been changed. */
void mtr_abort(struct mtr *m);

#endif
