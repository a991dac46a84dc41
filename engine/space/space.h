/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Free space: allocation groups as pages, runs of pages for extents.
 *
 * Pages are first reserved in memory (so that they can be filled before they are
 * published), then taken inside the mini-transaction that publishes them; freeing is a
 * change in a mini-transaction too. A crash forgets reservations and nothing else.
 *
 * A node reserves and takes in groups that it owns only, and frees in any
 * (docs/many-nodes.md, "Space").
 *
 * Keeps: no page handed out twice; a freed page is not reserved again before the record
 * that freed it is durable (invariant 3); each reservation has an incarnation above every
 * earlier one of its group (invariant 8).
 */
#ifndef WEFT_SPACE_H
#define WEFT_SPACE_H

#include "engine/cache/mtr.h"
#include "engine/net/calls.h"

struct space;

/* ---- where groups are: of a store with so many page slots ---- */

/* A group that would have no page to describe does not exist. */
static inline uint64_t space_layout_groups(uint64_t page_count)
{
	return page_count < 3 ? 0 : (page_count - 3) / (1 + DISK_GROUP_PAGES) + 1;
}

/* Pages that group describes; the last one may have fewer than DISK_GROUP_PAGES. */
static inline uint32_t space_layout_pages(uint64_t page_count, uint64_t group)
{
	uint64_t behind = page_count - disk_group_slot(group) - 1;

	return (uint32_t)MIN(behind, (uint64_t)DISK_GROUP_PAGES);
}

/* Checks a group page's image by itself: magic, number, counter, bits past the last slot.
 */
int space_check_page(
	const void *image, uint64_t page_count, uint64_t group, struct weft_error *err);

/* Contiguous pages reserved in memory; all in one group. */
struct space_run {
	page_id pid;     /* first */
	uint32_t length; /* pages; 0: none */
	uint64_t incarnation;
};

/*
 * Reads all group pages of this node's shard (in batches); repairs nothing. Other shards of
 * the volume have to be known, with their sizes, if groups in them are to be used. -EUCLEAN
 * with a text. Waits.
 */
int space_open(struct space **out, struct cache *cache, struct weft_error *err);
void space_close(struct space *sp);

/* may use the last pages, kept for what frees space */
#define SPACE_PRIVILEGED (1u << 0)
/* tree pages: kept apart from file data within the group */
#define SPACE_METADATA (1u << 1)
/* without asking other nodes for room */
#define SPACE_ALONE (1u << 2)

/*
 * Reserves 1 to `want` contiguous pages, near `goal` where possible (PID_NONE: anywhere).
 * Flushes the log when only pages freed but not durably so are left, and makes this node
 * the owner of further groups when its own have no room, of those that other nodes hand over
 * as well. -ENOSPC; -EIO or
 * -EUCLEAN where there may be room, but only in groups whose pages cannot be read. Waits;
 * hold nothing.
 */
int space_reserve(struct space *sp, page_id goal, uint32_t want, unsigned flags,
	struct space_run *out);
/* Was this error of a reservation for want of room, be it room that cannot be reached? */
bool space_exhausted(struct space *sp, int error);
/* Gives an untaken reservation, or the part of it left, back. Never waits. */
void space_unreserve(struct space *sp, const struct space_run *run);

/* The group page that a mini-transaction on this page must hold. */
page_id space_group_of(struct space *sp, page_id pid);
/*
 * In an mtr: are all pages of the run in use / all free, as its page says? Latches the
 * group's page, changes nothing: 0, -EAGAIN, -EUCLEAN (logged). Never waits. A
 * transaction of several runs checks all of them before its first change, since it cannot
 * abort after it.
 */
int space_check(
	struct space *sp, struct mtr *m, page_id pid, uint32_t length, bool in_use);
/*
 * In an mtr: mark the run as used / as free. Never wait. The run stays reserved in memory
 * until space_committed. -EAGAIN, -EUCLEAN as space_check, before anything of this run is
 * changed; once 0, the mtr must be committed and space_committed called.
 */
int space_take(struct space *sp, struct mtr *m, const struct space_run *run);
int space_free(struct space *sp, struct mtr *m, page_id pid, uint32_t length);
/* After mtr_commit, for each run taken (freed = false) or freed: settles memory. */
void space_committed(
	struct space *sp, page_id pid, uint32_t length, bool freed, lsn_t end);

/*
 * The volume has other nodes: asks them for room, and serves what they ask, until
 * space_disconnect, which waits. `nodes`: bits of all that take part, read anew each time.
 */
void space_connect(
	struct space *sp, struct net_calls *calls, const _Atomic uint64_t *nodes);
void space_disconnect(struct space *sp);
/*
 * The node goes, and nothing is reserved or freed any more: gives up all groups, so that
 * others may take them. `look`: also those that an earlier life of it has left. Waits. 0, or
 * some are still its own.
 */
int space_leave(struct space *sp, bool look);
/*
 * Called when others ask for room and there is no group to spare: gives back what is
 * reserved ahead; true: more may be free in a moment. Must not wait for another node's
 * answer. NULL: none any more; waits until it does not run.
 */
void space_give_back(struct space *sp, bool (*give_back)(void *owner), void *owner);

struct space_stat {
	/* of this node's shard; what other nodes own or free of it, as last looked at */
	uint64_t total_pages;     /* that files and metadata can use */
	uint64_t free_pages;      /* not in use; reservations count as free */
	uint64_t available_pages; /* free, without the pages kept back */
};
void space_stat(struct space *sp, struct space_stat *out);
/* Of the whole volume, as other nodes said at most so long ago; of one that is away, what
 * it said last. Waits. */
void space_stat_all(struct space *sp, uint64_t age_ns, struct space_stat *out);
/* Files hold reservations to write ahead into; when this changes, space got tight and
 * they should give theirs back. */
uint32_t space_pressure(struct space *sp);

#endif
