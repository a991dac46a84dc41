/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The insides of engine/space: shared by its files only.
 *
 * Memory, per TiB of store (8,322 groups): 64 bytes a group for `struct group` and 8 for its place
 * in the overlay table. That is 0.6 MiB together. An overlay, 16 KiB, exists only for a group that
 * is being allocated from. OVERLAYS_SOFT_MAX of them (4 MiB) are kept. These hand out 31 GiB
 * without one reload. More are made only while every one of those holds a reservation, and never
 * more than there are groups.
 *
 * Groups are numbered through all shards, this node's first. `struct group` exists for all of them:
 * 0.5 MiB per TiB of the volume.
 *
 * Locks: overlay_lock before a group's lock. Both are leaves below page latches: they may be taken
 * while a latch is held. A task that holds one never latches, logs or reads.
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
/* A group that could not be taken, or given, is passed over for so long. */
#define GROUP_PASSED_NS 1000000000ull
#define INDEX_NONE      UINT32_MAX

/* The state of a group in memory, beyond the group's page. Under the group's lock; `group` is under
 * overlay_lock. */
struct overlay {
	uint64_t group; /* the group that has it; GROUP_NONE: no group */
	bool used;      /* since the clock's hand came by */
	uint64_t busy[GROUP_WORDS]; /* not to be reserved: in use, reserved or quarantined
				     */
	uint64_t reserved[GROUP_WORDS];
	/*
	 * The quarantine has two generations, so that steady freeing does not put off its end for
	 * ever. Frees gather in [1], which moves to [0] when [0] is empty. [0] ends when the log is
	 * durable to freed_lsn[0].
	 */
	uint64_t freed[2][GROUP_WORDS];
	lsn_t freed_lsn[2];
	uint32_t freed_pages[2];
};

struct group {
	struct rt_mutex lock;
	uint32_t reserved;    /* pages */
	uint32_t quarantined; /* pages */
	uint32_t freeing;     /* pages freed by mtrs that are not settled yet; also if another
			       * node is the owner */
	uint32_t changes; /* counts takes and frees: a copy of the page is stale after one
			   */
	uint32_t cursor;  /* the search for file data begins here */
	_Atomic uint32_t
		room; /* pages neither in use nor reserved; read without the lock */
	_Atomic uint32_t
		longest;           /* no known run is longer; read without the lock */
	uint64_t next_incarnation; /* above all incarnations handed out, with reserved ones */
	lsn_t loadable; /* without overlay: its page may be copied once the log is durable to
			 * here */
	struct overlay *overlay; /* or NULL */
	/* The picture: written with the group's lock and its page latched in any mode. So a task
	 * that has latched it exclusively may look without the lock. */
	uint64_t version;      /* of the page, as known here */
	uint32_t page_free;    /* free_pages of that version */
	bool stale;            /* the overlay lacks pages that other nodes have freed */
	bool owned;            /* by this node; otherwise only `freeing` is in use */
	bool counted;          /* in total_pages and free_pages: it is of this node's shard */
	uint16_t owner;        /* of this node's shard: as its page was last seen here */
	uint64_t passed_until; /* it could not be taken, or given: passed over before */
	uint16_t pages;
	int broken; /* the error of reading its page; then nothing is reserved in it. 0: none */
};

/* The last answer of another node about its groups. */
struct space_told {
	uint64_t total_pages, free_pages, at_ns; /* at_ns 0: nothing yet */
};

/* The last word of a home about the groups that it could hand over (choose.c). */
struct home_told {
	uint64_t pages; /* free in groups of its shard that it owns */
	uint64_t load;  /* pages that its store, with its log, reads and writes in a second */
	uint64_t at_ns; /* 0: ask it before the next choice */
	/* Its groups from this place on (counted from 1) may name this node without its knowledge.
	 * 0: none does. */
	uint64_t unknown_from;
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
	/* Shards whose size is known, this node's first. More come (spans_grow), and none goes.
	 * Changed under grow_lock, read without it. */
	_Atomic uint32_t span_count;
	struct span span[SHARDS_MAX];
	_Atomic uint64_t group_count;
	struct rt_mutex grow_lock;    /* a leaf */
	uint64_t frees_unknown;       /* frees under way in groups that are not known */
	_Atomic uint64_t unowned;     /* groups that this node does not own */
	_Atomic uint64_t total_pages; /* of groups that are counted */
	uint64_t kept_pages;          /* for SPACE_PRIVILEGED */
	uint64_t tight_pages;         /* pressure rises when the budget falls below */

	_Atomic uint64_t free_pages; /* as in the group pages, of those counted */
	_Atomic uint64_t budget;     /* pages that are free and not reserved, in owned groups:
				      * sum of `room` */
	_Atomic uint64_t freed_lsn;  /* the highest end of a record that freed pages */
	_Atomic uint32_t pressure;
	_Atomic uint32_t broken_groups; /* only ever goes up */

	/* The groups of tasks without a goal, striped, so that they latch different group pages. */
	unsigned stripe_count;
	_Atomic uint64_t stripe[STRIPES_MAX];

	/* Other nodes (handover.c). `calls` is NULL if there are none. */
	struct net_calls *calls;
	const _Atomic uint64_t *nodes; /* bits: all nodes that take part */
	struct rt_mutex ask_lock;      /* one task asks at a time; also for the two below */
	struct home_told home[DISK_NODE_MAX + 1];
	double home_turn;              /* the next place to draw a home from, below 1 */
	struct rt_mutex load_lock;     /* the three below; a leaf */
	double load;                   /* pages a second, averaged */
	uint64_t load_moved;           /* pages that the store had read and written */
	uint64_t load_at_ns;           /* at this time */
	struct rt_mutex hook_lock;     /* the two below; held while the hook runs */
	bool (*give_back)(void *owner);
	void *give_back_owner;
	struct rt_mutex look_lock; /* held while all groups are looked at for statfs */
	uint64_t looked_ns;
	struct rt_mutex told_lock; /* the last answers of other nodes; held while they are asked */
	struct space_told told[DISK_NODE_MAX + 1];

	uint64_t overlays_soft_max;   /* OVERLAYS_SOFT_MAX; tests lower it */
	struct rt_mutex overlay_lock; /* the three below */
	struct overlay **overlays;    /* overlay_places, overlay_count in use */
	uint64_t overlay_places;
	uint64_t overlay_count;
	uint64_t overlay_hand;
};

/* Notes that the group's page has so many more free pages; wraps. */
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
/* Returns the length of the clear run at `first`, at most `most`. */
uint32_t bitmap_run(const uint64_t *map, uint32_t first, uint32_t end, uint32_t most);
/* Finds the first clear run of `want` bits in [from, end). If there is none, finds the longest one.
 * Returns its length, at most `want`; 0 if all bits are set. */
uint32_t bitmap_find(
	const uint64_t *map, uint32_t from, uint32_t end, uint32_t want, uint32_t *first);
/* The same from the end downwards: the run's last bit is as high as it can be. */
uint32_t bitmap_find_down(
	const uint64_t *map, uint32_t end, uint32_t want, uint32_t *first);

/* ---- open.c ---- */

/* Returns the number of groups that can be looked at. */
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

/* Adds the groups of shards whose size has become known meanwhile. */
void spans_grow(struct space *sp);

static inline page_id group_pid(const struct space *sp, uint64_t group)
{
	const struct span *span = group_span(sp, group);

	return pid_make(span->shard, disk_group_slot(group - span->first));
}

/* Finds the group of a run's first page, and the index in it. Returns false if it is not a run of
 * one group. GROUP_NONE: the size of its shard is not known yet. */
bool space_locate(const struct space *sp, page_id pid, uint32_t length, uint64_t *group,
	uint32_t *index);

/* ---- owner.c ---- */

/* Works as space_check_page. */
int group_check(const struct space *sp, uint64_t group, const void *image,
	struct weft_error *err);
/* Latches the group's page shared. Returns 0; -EHOSTUNREACH: that would wait for a node that is
 * away; or another negative errno. Waits. */
int group_near(struct space *sp, uint64_t group, struct guard *g);
/* This node owns the group, and its page says so, or will with this version. Memory takes over the
 * state of the page, without the budget. With the group's lock, its page latched. */
void group_adopt(struct space *sp, struct group *g, const struct disk_group *d,
	uint64_t version, uint32_t longest);
/* The group's page, latched, has this version. Takes over the pages that other nodes have freed, if
 * this node owns the group. Returns 0; -EUCLEAN (logged). Never waits. */
int group_look(
	struct space *sp, uint64_t group, const struct disk_group *d, uint64_t version);
/* Looks at all groups of this node. Waits. */
void groups_look(struct space *sp);
/*
 * Looks for more room. First it looks for pages that other nodes have freed in this node's groups,
 * then for a group of its shard that nobody owns. Unless `alone`, it then looks elsewhere.
 *
 * Returns 0 if the budget has grown, or another task was faster; -ENOSPC, or the reason why it
 * cannot grow. Waits.
 */
int space_more(struct space *sp, bool alone);

/* Notes that the group is not to be had, or given, for a while (GROUP_PASSED_NS). */
void group_pass(struct space *sp, uint64_t group);
/* The group's page is said to name this node, which becomes its owner. Returns 0 if it does.
 * Waits. */
int group_had(struct space *sp, uint64_t group);

/*
 * Takes a group that nobody owns, or that names this node: of this node's shard, or `everywhere`.
 * Returns 0, or -ENOSPC. Waits, but for no node that is away.
 */
int groups_take(struct space *sp, bool everywhere);

/* ---- handover.c ---- */

/* Returns bits: the other nodes that take part. 0: none can be asked. */
static inline uint64_t others_of(const struct space *sp)
{
	return sp->calls ? atomic_load(sp->nodes) & ~(1ull << sp->node) : 0;
}

/* Looks for room elsewhere. Returns 0 if the budget has grown, or -ENOSPC. Waits. */
int space_ask(struct space *sp);
/* Asks a home for its word (home_says). With ask_lock. Waits. */
void home_ask(struct space *sp, unsigned node);

/* ---- choose.c: the home that is asked. With ask_lock ---- */

/* Returns the word of this node: the pages that it could hand over, and its load. Needs no lock. */
uint64_t home_word(struct space *sp);
/* Begins to measure the load, and draws the first place to choose from. Needs no lock. */
void choose_begin(struct space *sp);
/* Notes the word that a home has said. */
void home_says(struct space *sp, unsigned node, uint64_t word);
/* Notes that the home could not be asked. It is not chosen before it has said a word again. */
void home_silent(struct space *sp, unsigned node);
/* Returns bits: the other nodes that are homes. Needs no lock. */
uint64_t homes_of(const struct space *sp);
/* Asks each home whose last word is too old, and learns the sizes of their shards. Waits. */
void homes_learn(struct space *sp);
/* Returns the home to ask for a group; 0: none has any. `asked`: bits of homes to pass over. */
unsigned home_choose(struct space *sp, uint64_t asked);

/* ---- overlay.c ---- */

/* Gives the group an overlay from its page. Returns 0; -EAGAIN: the page is just changing; -ENOMEM;
 * -EIO, -EUCLEAN. Hold nothing. Waits. */
int overlay_load(struct space *sp, uint64_t group);
/* Ends the quarantine of pages that are durably freed. With the group's lock. */
void group_settle(struct group *g, lsn_t durable);
/* Puts freed pages into quarantine. With the group's lock. */
void group_quarantine(struct group *g, uint32_t index, uint32_t length, lsn_t end);
void overlays_close(struct space *sp);

#endif
