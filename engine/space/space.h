/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Free space: allocation groups as pages, runs of pages for extents.
 *
 * Pages are first reserved in memory, so that they can be filled before they are published. They
 * are taken inside the mini-transaction that publishes them. Freeing is a change in a
 * mini-transaction too. A crash forgets reservations and nothing else.
 *
 * A node reserves and takes pages only in groups that it owns. It frees pages in any group
 * (docs/nodes/space.md).
 *
 * Keeps:
 *
 * - No page is handed out twice.
 * - A freed page is not reserved again before the record that freed it is durable (invariant 3).
 * - The incarnation of each reservation is higher than all earlier ones of its group (invariant 8).
 */
#ifndef WEFT_SPACE_H
#define WEFT_SPACE_H

#include "engine/cache/mtr.h"
#include "engine/net/calls.h"

struct space;

/* ---- the place of groups, in a store with page_count slots ---- */

/* Returns the number of groups. A group without a page to describe does not exist. */
static inline uint64_t space_layout_groups(uint64_t page_count)
{
	return page_count < 3 ? 0 : (page_count - 3) / (1 + DISK_GROUP_PAGES) + 1;
}

/* Returns the number of pages that the group describes: DISK_GROUP_PAGES, or fewer in the last. */
static inline uint32_t space_layout_pages(uint64_t page_count, uint64_t group)
{
	uint64_t behind = page_count - disk_group_slot(group) - 1;

	return (uint32_t)MIN(behind, (uint64_t)DISK_GROUP_PAGES);
}

/* Checks the image of a group page by itself: magic, number, counter, bits past the last slot. */
int space_check_page(
	const void *image, uint64_t page_count, uint64_t group, struct weft_error *err);

/* Contiguous pages of one group, reserved in memory. */
struct space_run {
	page_id pid;     /* the first page */
	uint32_t length; /* number of pages; 0: none */
	uint64_t incarnation;
};

/*
 * Reads all group pages of this node's shard, in batches; repairs nothing. If groups of other
 * shards are to be used, those shards and their sizes must be known. Returns 0 or a negative errno;
 * -EUCLEAN has a text. Waits.
 */
int space_open(struct space **out, struct cache *cache, struct weft_error *err);
void space_close(struct space *sp);

/* may use the last pages, which are kept for work that frees space */
#define SPACE_PRIVILEGED (1u << 0)
/* tree pages: kept apart from file data within the group */
#define SPACE_METADATA (1u << 1)
/* does not ask other nodes for room */
#define SPACE_ALONE (1u << 2)

/*
 * Reserves 1 to `want` contiguous pages, near `goal` if possible (PID_NONE: anywhere). If the only
 * free pages are not durably free, flushes the log. If the node's own groups have no room, makes it
 * the owner of others, which other nodes may hand over. Returns 0 or:
 *
 * - -ENOSPC;
 * - -EIO or -EUCLEAN: there may be room, but only in groups whose pages cannot be read.
 *
 * Waits; call it with nothing held.
 */
int space_reserve(struct space *sp, page_id goal, uint32_t want, unsigned flags,
	struct space_run *out);
/* Returns true if this error of a reservation means that no room was found, or none that can be
 * reached. */
bool space_exhausted(struct space *sp, int error);
/* Gives a reservation, or its remaining part, back. It was not taken. Never waits. */
void space_unreserve(struct space *sp, const struct space_run *run);

/* Returns the group page that a mini-transaction on this page must hold. */
page_id space_group_of(struct space *sp, page_id pid);
/*
 * Checks in an mtr that all pages of the run are in use, or free, in its group's page. Latches that
 * page and changes nothing. A transaction of several runs checks all of them before its first
 * change, since it cannot abort after it. Returns 0, -EAGAIN or -EUCLEAN (logged). Never waits.
 */
int space_check(
	struct space *sp, struct mtr *m, page_id pid, uint32_t length, bool in_use);
/*
 * Mark the run as used, or as free, in an mtr. The run stays reserved in memory until
 * space_committed. Return -EAGAIN or -EUCLEAN as space_check does, before the run is changed. After
 * 0 the caller must commit the mtr and call space_committed. Never wait.
 */
int space_take(struct space *sp, struct mtr *m, const struct space_run *run);
int space_free(struct space *sp, struct mtr *m, page_id pid, uint32_t length);
/* Settles the state in memory after mtr_commit, for each run that was taken (freed = false) or
 * freed. */
void space_committed(
	struct space *sp, page_id pid, uint32_t length, bool freed, lsn_t end);

/*
 * Connects the volume's other nodes: asks them for room, and serves their requests, until
 * space_disconnect, which waits. `nodes`: a map of all nodes that take part, read at each use.
 * `owns_none`: no group of another shard names this node.
 */
void space_connect(struct space *sp, struct net_calls *calls,
	const _Atomic uint64_t *nodes, bool owns_none);
void space_disconnect(struct space *sp);
/*
 * Gives all groups back to their homes. The node leaves, and reserves or frees nothing any more.
 * `look`: first asks the homes for groups of its earlier starts; homes that are away are passed
 * over. Returns 0, or an error if it still owns some. Waits.
 */
int space_leave(struct space *sp, bool look);
/*
 * Sets a function that gives back pages reserved ahead. It is called when other nodes ask for room
 * and no group can be spared. It returns true if more pages may soon be free, and must not wait for
 * another node. NULL: removes it, and waits until it does not run.
 */
void space_give_back(struct space *sp, bool (*give_back)(void *owner), void *owner);

struct space_stat {
	/* of this node's shard; pages that other nodes own or free are counted as last seen */
	uint64_t total_pages;     /* usable for files and metadata */
	uint64_t free_pages;      /* not in use; reservations count as free */
	uint64_t available_pages; /* free, without the pages that are kept for freeing */
};
void space_stat(struct space *sp, struct space_stat *out);
/* Sums the space of the whole volume. Other nodes' numbers are at most `age_ns` old; a node that is
 * away counts with its last. Waits. */
void space_stat_all(struct space *sp, uint64_t age_ns, struct space_stat *out);
/* Returns a number that changes when space gets tight. Files then give back the pages that they
 * have reserved ahead. Never waits. */
uint32_t space_pressure(struct space *sp);

#endif
