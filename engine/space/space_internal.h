/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The insides of engine/space: shared by its files only.
 *
 * Memory, per TiB of store (8,322 groups): 64 bytes a group for `struct group` and 8 for
 * its place in the overlay table, 0.6 MiB together. An overlay, 16 KiB, is only there for
 * a group that is being allocated from: OVERLAYS_SOFT_MAX of them (4 MiB) are kept, which
 * hand out 31 GiB without one reload. More are made only while every one of those holds a
 * reservation, and never more than there are groups.
 *
 * Groups are numbered through all shards, this node's first. `struct group` is there for
 * all of them: 0.5 MiB per TiB of the volume.
 *
 * Locks: overlay_lock before a group's lock; both are leaves below page latches: they may
 * be taken while a latch is held, and nobody who holds one latches, logs or reads.
 */
#ifndef WEFT_SPACE_INTERNAL_H
#define WEFT_SPACE_INTERNAL_H

#include <errno.h>

#include "engine/space/space.h"

#define GROUP_WORDS (DISK_GROUP_PAGES / 64)
_Static_assert(DISK_GROUP_PAGES % 64 == 0, "a group's bitmap is whole words");

#define OVERLAYS_SOFT_MAX 256
#define STRIPES_MAX       8
#define GROUP_NONE        UINT64_MAX
/* A group that was not to be had is not looked at again for so long. */
#define GROUP_PASSED_NS 1000000000ull
#define INDEX_NONE      UINT32_MAX

/*
 * What memory knows of a group's pages beyond the group's page. Under the group's lock,
 * but `group`: under overlay_lock.
 */
struct overlay {
	uint64_t group;             /* whose it is; GROUP_NONE: nobody's */
	bool used;                  /* since the clock's hand came by */
	uint64_t busy[GROUP_WORDS]; /* not to be reserved: in use, reserved or quarantined
				     */
	uint64_t reserved[GROUP_WORDS];
	/*
	 * The quarantine has two generations, so that steady freeing does not put off its
	 * end for ever: frees gather in [1], which moves to [0] when [0] is empty; [0]
	 * ends when the log is durable to freed_lsn[0].
	 */
	uint64_t freed[2][GROUP_WORDS];
	lsn_t freed_lsn[2];
	uint32_t freed_pages[2];
};

struct group {
	struct rt_mutex lock;
	uint32_t reserved;    /* pages */
	uint32_t quarantined; /* pages */
	uint32_t freeing;     /* pages freed by mtrs that are not settled yet; also where
				 another node is the owner */
	uint32_t changes; /* counts takes and frees: a copy of the page is stale after one
			   */
	uint32_t cursor;  /* file data is looked for from here on */
	_Atomic uint32_t
		room; /* pages neither in use nor reserved; read without the lock */
	_Atomic uint32_t
		longest; /* no run is longer, as far as known; read without the lock */
	uint64_t next_incarnation; /* above all handed out, reserved ones included */
	lsn_t loadable; /* without overlay: its page may be copied once durable to here */
	struct overlay *overlay; /* or NULL */
	/*
	 * The picture: with the group's lock and its page latched in whatever way, so that
	 * who has latched it exclusively may look without the lock.
	 */
	uint64_t version;   /* of the page, as known here */
	uint32_t page_free; /* free_pages of that version */
	bool stale;         /* the overlay lacks what others have freed */
	bool owned;         /* by this node: else none but `freeing` is in use */
	bool counted; /* in total_pages and free_pages: it is of this node's shard */
	uint64_t passed_until; /* it was not to be had: not looked at again before */
	uint16_t pages;
	int broken; /* its page cannot be read: why; nothing is reserved in it. 0: it can
		     */
};

/* What another node has said of its groups. */
struct space_told {
	uint64_t total_pages, free_pages, at_ns; /* at_ns 0: nothing yet */
};

/* The groups of a shard. */
struct span {
	uint16_t shard;
	uint64_t page_count;
	uint64_t first, count; /* groups */
	struct group *groups;
};

struct space {
	struct cache *cache;
	struct log *log;
	const struct shards *shards;
	uint16_t node;
	bool has_peers; /* others may free pages, and own groups */
	/*
	 * Shards whose size is known, this node's first; more come (spans_grow), and none
	 * goes. Under grow_lock, but to be read.
	 */
	_Atomic uint32_t span_count;
	struct span span[SHARDS_MAX];
	_Atomic uint64_t group_count;
	struct rt_mutex grow_lock;    /* a leaf */
	uint64_t frees_unknown;       /* under way, in groups that are not known */
	_Atomic uint64_t unowned;     /* groups that this node does not own */
	_Atomic uint64_t total_pages; /* of groups that are counted */
	uint64_t kept_pages;          /* for SPACE_PRIVILEGED */
	uint64_t tight_pages;         /* pressure rises when the budget falls below */

	_Atomic uint64_t free_pages; /* as the group pages say, of those counted */
	_Atomic uint64_t budget; /* free and not reserved, where owned: sum of `room` */
	_Atomic uint64_t freed_lsn; /* the highest end of a record that freed pages */
	_Atomic uint32_t pressure;
	_Atomic uint32_t broken_groups; /* only ever goes up */

	/* Where tasks without a goal go, striped, so that they latch different group
	 * pages. */
	unsigned stripe_count;
	_Atomic uint64_t stripe[STRIPES_MAX];

	/* Other nodes (handover.c); calls NULL: there are none. */
	struct net_calls *calls;
	const _Atomic uint64_t *nodes; /* bits: all that take part */
	struct rt_mutex ask_lock;  /* one task asks at a time */
	struct rt_mutex hook_lock; /* the two below; held while the hook runs */
	bool (*give_back)(void *owner);
	void *give_back_owner;
	struct rt_mutex look_lock; /* held while all groups are looked at for statfs */
	uint64_t looked_ns;
	struct rt_mutex told_lock; /* what others said, held while they are asked */
	struct space_told told[DISK_NODE_MAX + 1];

	uint64_t overlays_soft_max;   /* OVERLAYS_SOFT_MAX; tests lower it */
	struct rt_mutex overlay_lock; /* the three below */
	struct overlay **overlays;    /* overlay_places, overlay_count in use */
	uint64_t overlay_places;
	uint64_t overlay_count;
	uint64_t overlay_hand;
};

/* Its page has so many more free; wraps. */
static inline void count_free(struct space *sp, const struct group *g, uint64_t more)
{
	if (g->counted)
		atomic_fetch_add_explicit(&sp->free_pages, more, memory_order_relaxed);
}

/* ---- bitmap.c: ranges of bits, a word at a time ---- */

void bitmap_set(uint64_t *map, uint32_t first, uint32_t count);
void bitmap_clear(uint64_t *map, uint32_t first, uint32_t count);
bool bitmap_all_set(const uint64_t *map, uint32_t first, uint32_t count);
bool bitmap_all_clear(const uint64_t *map, uint32_t first, uint32_t count);
uint32_t bitmap_count(const uint64_t *map, uint32_t bits);
/* Length of the clear run at `first`, at most `most`. */
uint32_t bitmap_run(const uint64_t *map, uint32_t first, uint32_t end, uint32_t most);
/*
 * The first clear run of `want` bits in [from, end); failing that the longest. Its
 * length, at most `want`, 0 when all is set.
 */
uint32_t bitmap_find(
	const uint64_t *map, uint32_t from, uint32_t end, uint32_t want, uint32_t *first);
/* The same from the end downwards: the run's last bit is as high as it can be. */
uint32_t bitmap_find_down(
	const uint64_t *map, uint32_t end, uint32_t want, uint32_t *first);

/* ---- open.c ---- */

/* All of these can be looked at. */
static inline uint64_t groups_known(const struct space *sp)
{
	return atomic_load_explicit(&sp->group_count, memory_order_acquire);
}

static inline const struct span *group_span(const struct space *sp, uint64_t group)
{
	const struct span *span = sp->span;

	while (group - span->first >= span->count)
		span++;
	return span;
}

static inline struct group *group_at(const struct space *sp, uint64_t group)
{
	const struct span *span = group_span(sp, group);

	return &span->groups[group - span->first];
}

/* Shards whose size has become known meanwhile have groups from now on. */
void spans_grow(struct space *sp);

static inline page_id group_pid(const struct space *sp, uint64_t group)
{
	const struct span *span = group_span(sp, group);

	return pid_make(span->shard, disk_group_slot(group - span->first));
}

/*
 * Group and index in it of a run's first page; false when it is not a run of one group.
 * GROUP_NONE: of a shard whose size is not known yet.
 */
bool space_locate(const struct space *sp, page_id pid, uint32_t length, uint64_t *group,
	uint32_t *index);

/* ---- owner.c ---- */

/* As space_check_page. */
int group_check(const struct space *sp, uint64_t group, const void *image,
	struct weft_error *err);
/*
 * This node owns the group, and its page says so, or will with this version: memory takes
 * over what it says, but for the budget. With the group's lock, its page latched.
 */
void group_adopt(struct space *sp, struct group *g, const struct disk_group *d,
	uint64_t version, uint32_t longest);
/*
 * The group's page, latched, has this version: takes over what others have freed, if this
 * node owns the group. 0; -EUCLEAN (logged). Never waits.
 */
int group_look(
	struct space *sp, uint64_t group, const struct disk_group *d, uint64_t version);
/* Looks at all groups of this node. Waits. */
void groups_look(struct space *sp);
/*
 * Looks for more room: pages that others have freed in this node's groups, then a group
 * that nobody owns, then, unless `alone`, one of another node. 0: the budget has grown, or another task was faster; -ENOSPC, or why
 * it cannot. Waits.
 */
int space_more(struct space *sp, bool alone);

/* The group's page is said to name this node: it becomes its owner. 0, or it does not. Waits. */
int group_had(struct space *sp, uint64_t group);

/* ---- handover.c ---- */

/* Asks other nodes for a group. 0: the budget has grown; -ENOSPC. Waits. */
int space_ask(struct space *sp);

/* ---- overlay.c ---- */

/*
 * Gives the group an overlay from its page. 0; -EAGAIN: the page is just changing;
 * -ENOMEM; -EIO, -EUCLEAN. Waits: hold nothing.
 */
int overlay_load(struct space *sp, uint64_t group);
/* Ends the quarantine of what is durably freed. With the group's lock. */
void group_settle(struct group *g, lsn_t durable);
/* Puts freed pages into quarantine. With the group's lock. */
void group_quarantine(struct group *g, uint32_t index, uint32_t length, lsn_t end);
void overlays_close(struct space *sp);

#endif
