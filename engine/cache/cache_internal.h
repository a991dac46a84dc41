/* SPDX-License-Identifier: Apache-2.0 */
/* The cache's insides: shared by the files of engine/cache only. */
#ifndef WEFT_CACHE_INTERNAL_H
#define WEFT_CACHE_INTERNAL_H

#include "engine/cache/cache.h"
#include "engine/cache/mtr.h"
#include "engine/common/racy.h"

#include <errno.h>

#define TABLE_PARTITIONS 64
#define PARKING_WORDS    256
#define FETCH_MAX        256        /* pages of one fetch */
#define WB_PAGES_MAX     2048       /* pages of one write-back batch (8 MiB) */
#define WB_REGIONS       2          /* bounce buffers, so many batches at once */
#define WB_SHIPPED       WB_REGIONS /* and one for what other nodes ship, of */
#define WB_SHIPPED_PAGES 64
#define WB_ALL           (WB_REGIONS + 1)
#define PREFETCH_SLOTS   32
#define PREFETCH_TASKS   2
#define BEHIND_SLOTS     64
/* one prepares its batch while the other's is written */
#define BEHIND_TASKS    WB_REGIONS
#define COUNTER_STRIPES 16
#define AWAY_MAX        128 /* pages that a sweep gives back to homes elsewhere */
#define DROPPING_MAX    32  /* pages that sweeps have dropped from the kernel at once */
#define SOON_MAX        32u /* pages that are to rest soon */

struct frame_list { /* stack of free frames */
	struct rt_mutex lock;
	struct rt_cond available;
	uint32_t *index;
	_Atomic uint32_t count;
};

/* What is remembered of one page of a write-back batch between its steps. */
struct wb_page {
	page_id pid;
	uint64_t rec_lsn; /* when the image was copied */
	bool log_image; /* an overwrite that could tear: image goes into the log first */
};

/* One write-back batch's buffers. Owned by whoever holds `lock`, for which nobody waits:
 * they do at region_gate. */
struct wb_region {
	struct rt_mutex lock;
	_Atomic uint32_t turn; /* odd while it is held; changed by who holds it */
	uint32_t pages;        /* that it has room for */
	uint8_t *images;       /* registered for I/O */
	struct wb_page *page;
	struct store_write *write;
	struct coherence_ship *ship; /* where the home is elsewhere */
	struct disk_log_descriptor *descriptor;
	_Atomic uint64_t pin; /* log needed by the batch in flight; LSN_MAX: none */
	lsn_t record_lsn;     /* a lower bound of where its DESCRIPTORS record starts */
};

struct prefetch_slot {
	unsigned count;
	bool scan;
	struct page_ref ref[FETCH_MAX];
};

/* Bounded queue of page lists for background tasks. */
struct page_queue {
	struct rt_mutex lock;
	_Atomic uint32_t word; /* changes with every put and at stop */
	unsigned head, count, slots;
	struct prefetch_slot *slot;
};

/* An image that this node owes: kept in a frame that is in no table. */
struct owed {
	page_id pid;
	uint32_t frame;
	bool shipping;  /* its home is being asked to persist it */
	uint64_t since; /* place in the order in which pages came to be owed */
};

/* A page that this node is not to have alone for long; how it was when last looked at, and
 * how often it was. */
struct soon_page {
	page_id pid;
	uint64_t incarnation, version;
	unsigned looks;
};

#define STAY_PLACES 256u

/* Of a page that was granted while others may want it, as long as it is with this node, and
 * of how earlier stays went (stay.c). */
struct stay {
	_Atomic page_id pid;
	_Atomic uint64_t came_ns, came_version;
	_Atomic uint64_t look_ns; /* asks wait until then, at least; 0: there were none */
	_Atomic uint64_t look_version; /* when that was said, or it came */
	_Atomic uint32_t skip, skips_left; /* stays in which none waits */
	_Atomic bool open;
	/* It is kept until then (cache_keep); the first ask since it came was refused for that then. */
	_Atomic uint64_t kept_ns, refused_ns;
};

struct counter_stripe {
	_Atomic uint64_t hits;
	uint8_t pad[CACHE_LINE - 8];
};

struct cache {
	struct store *store;
	struct log *log;
	struct coherence *coherence;
	struct shards alone; /* the volume's shards where the provider names none */
	struct cache_options options;

	/* frames */
	uint32_t frame_count;
	struct frame *frames;
	uint8_t *images;
	unsigned batch_max;

	/* translation table: bucket -> 1 + frame index, chained through frame.next.
	 * Chains change under the partition's lock; readers walk without it and verify.
	 */
	uint32_t bucket_mask;
	_Atomic uint32_t *buckets;
	struct rt_mutex partition[TABLE_PARTITIONS];

	/* tasks that wait for a latch, by frame: a sequence word each */
	_Atomic uint32_t parking[PARKING_WORDS];
	_Atomic uint32_t unreached; /* tasks in unreached_wait */

	/* page provider */
	struct frame_list free;
	uint32_t low_water, high_water;
	_Atomic uint32_t epoch;           /* ScaleStore §4.1: advances with evictions */
	_Atomic uint32_t epoch_evictions; /* since it advanced */
	struct rt_mutex sweep_lock; /* one sweep at a time; protects the next six */
	uint32_t hand;
	struct page_ref *victims; /* dirty pages found by a sweep */
	page_id away[AWAY_MAX];   /* found by it: pages whose home is elsewhere */
	unsigned away_count;
	page_id dropping[DROPPING_MAX]; /* found by it: the kernel has to drop them first */
	unsigned dropping_count;
	_Atomic uint32_t provider_word;
	_Atomic uint32_t flusher_word;
	_Atomic bool rests;        /* there may be pages to be downgraded (flusher.c) */
	struct rt_mutex soon_lock; /* the next two */
	struct soon_page soon[SOON_MAX];
	unsigned soon_count;
	_Atomic bool stopping;        /* all tasks but */
	_Atomic bool checkpoints_end; /* the checkpointer */
	_Atomic bool given_up;        /* other nodes are not waited for any more */
	bool started;
	struct rt_task *provider_task, *checkpoint_task, *flusher_task;
	struct rt_task *behind_task[BEHIND_TASKS];
	struct rt_task *prefetch_task[PREFETCH_TASKS];
	struct page_queue prefetch, behind;

	/* write-back */
	uint32_t wb_pages;   /* of one batch */
	uint32_t tear_pages; /* of one batch: images that go into the log against tearing
			      */
	struct rt_gate region_gate; /* as many are inside as there are regions */
	struct rt_gate shipped_gate;
	struct wb_region region[WB_ALL];
	_Atomic uint64_t batch_number;
	_Atomic uint32_t write_failures; /* counts batches that failed */
	_Atomic int write_error;         /* of the store here; 0: it takes writes */
	_Atomic uint64_t full_until_ns;  /* before then a full store is not tried again */
	bool redo; /* between cache_recover_begin and _end: write-back needs no log of its
		      own */
	struct mend *mends; /* then: pages whose images are being rebuilt (recovery.c) */
	unsigned mend_count;
	unsigned redo_owed;  /* frames of pages of other homes */
	struct ahead *ahead; /* working memory of cache_recover_ahead */
	_Atomic uint64_t dirty;
	struct rt_mutex checkpoint_lock;  /* one checkpoint at a time */
	struct page_ref *checkpoint_refs; /* under checkpoint_lock */
	struct page_ref *flusher_refs;    /* the flusher's own */
	/*
	 * The redo of discarded frames, pinned until what freed them is durable. In two
	 * generations, so that steady freeing does not put off the end of a pin for ever:
	 * pins gather in [1], which moves to [0] when [0] has ended. So a pin is over
	 * with the second flush behind it at the latest. checkpoint.c.
	 */
	struct rt_mutex discard_lock; /* the two below */
	struct discard_pins {
		lsn_t rec_lsn; /* the lowest */
		lsn_t until;   /* LSN_NONE: no pin */
	} discards[2];

	/* pages given up dirty, until they are persisted (give.c) */
	struct rt_mutex owed_lock;
	struct owed *owed; /* owed_max places, owed_count in use, in no order */
	uint32_t owed_max, owed_count;
	uint32_t owed_room;         /* places; more than owed_max after a recovery */
	uint64_t owed_newest;       /* `since` of the last */
	uint32_t owed_reserved;     /* by pages that are leaving */
	_Atomic uint64_t handovers; /* pins of the log that went from frame to frame */
	/* by frame: its image may go to another node once the log is durable to here; the
	 * end of the last record that changed it together with other pages */
	_Atomic uint64_t *ship_lsn;

	struct stay stay[STAY_PLACES]; /* by pages' hashes (stay.c) */

	/* pages being filled ahead of publication */
	struct rt_mutex fill_lock;
	struct rt_cond fill_cond;
	uint32_t filling, fill_max;

	struct apart *apart;         /* what waits for pages (apart.c) while there is a kernel */
	struct cache_kernel *kernel; /* what it has of pages (expose.c); NULL: none */
	struct cache_counters counters;
	struct counter_stripe stripe[COUNTER_STRIPES];
};

#define COUNT(cache, field, n)                                                           \
	atomic_fetch_add_explicit(&(cache)->counters.field, n, memory_order_relaxed)

static inline uint8_t *frame_image(struct cache *c, const struct frame *f)
{
	return c->images + (size_t)(f - c->frames) * PAGE_SIZE;
}

static inline uint32_t frame_flags(const struct frame *f)
{
	return atomic_load_explicit(&f->flags, memory_order_relaxed);
}

static inline void frame_set(struct frame *f, uint16_t flags)
{
	atomic_fetch_or_explicit(&f->flags, flags, memory_order_relaxed);
}

static inline void frame_clear(struct frame *f, uint16_t flags)
{
	atomic_fetch_and_explicit(&f->flags, (uint16_t)~flags, memory_order_relaxed);
}

/* A page that can only be had from a node which is not connected is asked for again after
 * this; till then its frame is free, and nobody waits behind it. */
#define UNREACHED_NS 20000000ull
/* Of more than so many that wait each asks less often, or asking would be all that is done. */
#define UNREACHED_AT_ONCE 16u

static inline bool mode_allows(const struct frame *f, enum page_mode wanted)
{
	return atomic_load_explicit(&f->mode, memory_order_relaxed) >= wanted;
}

static inline void frame_set_mode(struct frame *f, enum page_mode mode)
{
	atomic_store_explicit(&f->mode, (uint8_t)mode, memory_order_relaxed);
}

/* The right that this node has, whatever guards may do at the moment. */
static inline enum page_mode frame_right(const struct frame *f)
{
	return (enum page_mode)(
		frame_flags(f) & (FRAME_HOLLOW | FRAME_LEAVING)
			? f->held
			: atomic_load_explicit(&f->mode, memory_order_relaxed));
}

/* A latched frame has been used by who asked for it; it may be given away again. */
static inline void frame_used(struct cache *c, struct frame *f)
{
	if (unlikely(frame_flags(f) & FRAME_ARRIVED))
		frame_used_slow(c, f);
}

static inline void frame_touch(struct cache *c, struct frame *f)
{
	uint32_t now = atomic_load_explicit(&c->epoch, memory_order_relaxed);

	if (atomic_load_explicit(&f->epoch, memory_order_relaxed) != now)
		atomic_store_explicit(&f->epoch, now, memory_order_relaxed);
}

/* Marks dirty, counting; with the exclusive latch. */
void frame_mark_dirty(struct cache *c, struct frame *f, uint16_t more_flags);
/* Clears DIRTY (and UNPUBLISHED, AGED, LOGGED), counting. */
void frame_mark_clean(struct cache *c, struct frame *f);
/* The frame bears this incarnation of its page, at version 0; the image is still another's.
 * With the exclusive latch, as the next. */
void frame_renew(struct cache *c, struct frame *f, uint64_t incarnation);
/* The same with an image of zeros. */
void frame_reinit(struct cache *c, struct frame *f, uint64_t incarnation);

/* ---- cache.c ---- */

/* Memory for images that other nodes may reach; NULL: there is none. */
void *images_alloc(struct cache *c, unsigned area, size_t size_bytes);
void images_free(struct cache *c, void *images, size_t size_bytes);

/* ---- latch.c ---- */

/* The frame is being filled by the task's own request, or is latched by one for more: nobody could
 * want what is in it, and whoever serves others does not wait for it (invariant 6). */
static inline bool latch_may_wait(const void *latch)
{
	const struct frame *f = container_of(latch, const struct frame, latch);

	return frame_flags(f) & (FRAME_LOADING | FRAME_ASKING);
}

static inline bool latch_try_exclusive(struct frame *f, uint64_t *seen)
{
	uint64_t w = atomic_load_explicit(&f->latch, memory_order_relaxed);

	rt_sched_point();
	if (w & (LATCH_EXCLUSIVE | LATCH_SHARED_MASK))
		return false;
	*seen = w;
	if (!atomic_compare_exchange_strong_explicit(&f->latch, &w, w | LATCH_EXCLUSIVE,
		    memory_order_acquire, memory_order_relaxed))
		return false;
	/* Whoever reads what is stored from here on sees the bit (guard_valid has the
	 * other fence). */
	atomic_thread_fence(memory_order_release);
	rt_holds(&f->latch, latch_may_wait);
	return true;
}

static inline bool latch_try_shared(struct frame *f)
{
	uint64_t w = atomic_load_explicit(&f->latch, memory_order_relaxed);

	rt_sched_point();
	while (!(w & LATCH_EXCLUSIVE) && (w & LATCH_SHARED_MASK) != LATCH_SHARED_MASK)
		if (atomic_compare_exchange_weak_explicit(&f->latch, &w,
			    w + LATCH_SHARED_ONE, memory_order_acquire,
			    memory_order_relaxed)) {
			rt_holds(&f->latch, latch_may_wait);
			return true;
		}
	return false;
}

/* The word on which those wait who wait for something of this frame, or of others. */
_Atomic uint32_t *latch_parking(struct cache *c, struct frame *f);
void latch_wake(struct cache *c, struct frame *f);

/* Releases; `changed`: raises the version, so that optimistic readers notice. */
static inline void latch_release_exclusive(struct cache *c, struct frame *f, bool changed)
{
	uint64_t delta = (changed ? LATCH_VERSION_ONE : 0) - LATCH_EXCLUSIVE;
	uint64_t was = atomic_fetch_add_explicit(&f->latch, delta, memory_order_release);

	rt_lets_go(&f->latch);
	if (unlikely(was & LATCH_WAITERS))
		latch_wake(c, f);
	rt_sched_point();
}

static inline void latch_release_shared(struct cache *c, struct frame *f)
{
	uint64_t was = atomic_fetch_sub_explicit(
		&f->latch, LATCH_SHARED_ONE, memory_order_release);

	rt_lets_go(&f->latch);
	if (unlikely(was & LATCH_WAITERS) &&
		(was & LATCH_SHARED_MASK) == LATCH_SHARED_ONE)
		latch_wake(c, f);
	rt_sched_point();
}

/* Wait for the latch of a frame that bore `pid` when looked up. False when it no longer
 * does (look it up again). They wait. */
bool latch_exclusive(struct cache *c, struct frame *f, page_id pid);
bool latch_shared(struct cache *c, struct frame *f, page_id pid);
/* The same, for guards. False also where another task is asking for the page, maybe of a node
 * that is away, and nobody waits for the caller any more (rt_task_unwanted). */
bool latch_exclusive_wanted(struct cache *c, struct frame *f, page_id pid);
bool latch_shared_wanted(struct cache *c, struct frame *f, page_id pid);
/* Waits while latched exclusively, not longer than it takes to change hands once. */
void latch_wait_open(struct cache *c, struct frame *f);

/* ---- table.c ---- */

int table_open(struct cache *c);
void table_close(struct cache *c);
#define TABLE_WALK_MAX 64

/* Buckets of pages in a row lie side by side: a line of memory tells of TABLE_RUN of them. */
#define TABLE_RUN (CACHE_LINE / sizeof(uint32_t))

static inline uint32_t table_hash(page_id pid)
{
	uint64_t h = pid / TABLE_RUN * 0x9e3779b97f4a7c15ull;

	return (uint32_t)(h >> 32) * (uint32_t)TABLE_RUN + (uint32_t)(pid % TABLE_RUN);
}

/* For loops over many pages: what a look for that one will read comes meanwhile. */
static inline void table_expect(struct cache *c, page_id pid)
{
	__builtin_prefetch(&c->buckets[table_hash(pid) & c->bucket_mask]);
}
#define TABLE_AHEAD 8u /* pages */
static inline void frame_expect(struct cache *c, page_id pid)
{
	uint32_t link = atomic_load_explicit(
		&c->buckets[table_hash(pid) & c->bucket_mask], memory_order_relaxed);

	if (link)
		__builtin_prefetch(&c->frames[link - 1]);
}

/* The first lines of its image: the processor goes on from there by itself. */
#define IMAGE_AHEAD 2u /* pages */
static inline void image_expect(struct cache *c, page_id pid)
{
	uint32_t link = atomic_load_explicit(
		&c->buckets[table_hash(pid) & c->bucket_mask], memory_order_relaxed);
	const uint8_t *image;

	if (!link)
		return;
	image = c->images + ((size_t)link - 1) * PAGE_SIZE;
	for (unsigned line = 0; line < 4; line++)
		__builtin_prefetch(image + line * CACHE_LINE);
}

/* Lock-free; NULL may be wrong under concurrent change. A hit must be latched and
 * verified. */
static inline struct frame *table_find(struct cache *c, page_id pid)
{
	uint32_t link = atomic_load_explicit(
		&c->buckets[table_hash(pid) & c->bucket_mask], memory_order_acquire);

	for (unsigned steps = 0; link && steps < TABLE_WALK_MAX; steps++) {
		struct frame *f = &c->frames[link - 1];

		if (likely(atomic_load_explicit(&f->pid, memory_order_relaxed) == pid))
			return f;
		link = atomic_load_explicit(&f->next, memory_order_acquire);
	}
	return NULL;
}

/* Definitive. If absent and `f` is given (latched exclusively), inserts f under pid.
 * Returns the frame that bore the PID before, or NULL. */
struct frame *table_insert(struct cache *c, page_id pid, struct frame *f);
/* Takes a frame (latched exclusively) out; its PID becomes PID_NONE. */
void table_remove(struct cache *c, struct frame *f);

/* ---- provider.c ---- */

/* A free frame, latched exclusively, PID_NONE. With `wait` false: NULL when there is
 * none. Waiting: NULL with *error (-EIO, -ENOMEM: nothing can be evicted any more). */
struct frame *frame_get(struct cache *c, bool wait, int *error);
/* Takes as many free frames as there are, at most `max`, into index[], in the order of their
 * places: pages in a row then lie in a row. Not latched. How many. */
unsigned frames_take(struct cache *c, uint32_t *index, unsigned max);
/* Puts them back, or others that are in no chain. */
void frames_put_back(struct cache *c, const uint32_t *index, unsigned count);
/*
 * Takes a clean frame, latched exclusively, out of the cache; unlatches. False: its home
 * must be asked, or somebody waits for the page: it stays, a hollow one as such.
 */
bool frame_drop(struct cache *c, struct frame *f);
/* Empties a frame that is latched exclusively and in the table, and puts it back. */
void frame_free(struct cache *c, struct frame *f);
/* Puts a frame (latched exclusively, in no chain) back; unlatches. */
void frame_put(struct cache *c, struct frame *f);
/* Latches a frame that is in no chain. */
void latch_free_frame(struct frame *f);
/* A free frame, latched, becomes one that is LOADING; table_insert follows. */
void frame_claim(struct cache *c, struct frame *f, uint64_t incarnation);
void provider_main(void *arg);
void provider_wake(struct cache *c);

/* ---- flusher.c ---- */

void flusher_main(void *arg);
void flusher_wake(struct cache *c);
/* The frame, latched, has just got the exclusive right. */
void flusher_note(struct cache *c, const struct frame *f);

/* ---- fetch.c ---- */

#define FETCH_SCAN     (1u << 0)
#define FETCH_NO_IMAGE (1u << 1) /* descriptor only; with count 1 and keep */
/* just allocated: nothing of it is in the store; with keep */
#define FETCH_FRESH (1u << 2)
/* with the right to change it */
#define FETCH_EXCLUSIVE (1u << 3)
/* -EHOSTUNREACH where a node would be waited for that is away */
#define FETCH_REACHED (1u << 4)
/* to be read alone, most likely: of another home shared even if nobody else has it. One
 * message is saved when it is evicted, and others need not wait for it when this node is lost */
#define FETCH_READ (1u << 5)
/* nobody waits for them */
#define FETCH_AHEAD (1u << 6)
/* with EXCLUSIVE: what is here to be read only, and not latched, is asked for in the same round */
#define FETCH_HELD (1u << 7)
/*
 * Loads what is missing. `keep` (count 1): the frame is returned still latched
 * exclusively if this call loaded it, else NULL (someone else has it: look again).
 */
int fetch_pages(struct cache *c, const struct page_ref *refs, unsigned count,
	unsigned flags, struct frame **keep);
/* guard_own; flags: FETCH_REACHED, or 0. */
int frame_own(struct cache *c, page_id pid, uint64_t incarnation, unsigned flags);
/*
 * A request for what a frame in the table, latched exclusively, lacks; FRAME_ASKING from here on. When it is
 * answered: 0, still latched and as it was granted; an error: unlatched, and free if it was lost. Waits.
 */
void frame_request(struct cache *c, struct frame *f, const struct page_ref *ref,
	enum page_mode wanted, bool blind, struct coherence_request *out);
int frame_answered(struct cache *c, struct frame *f, const struct page_ref *ref,
	const struct coherence_request *r);
/*
 * A request for a frame in the table, latched exclusively, was granted: gets the image, if
 * it must come from somewhere, and sets what the frame says of it. 0: still latched; an
 * error: the frame is gone, or hollow, and unlatched. Waits.
 */
int fetch_granted(struct cache *c, struct frame *f, const struct page_ref *ref,
	const struct coherence_request *request);
/*
 * A page cannot be had now, since these nodes (bits) are not connected: waits, holding nothing, until it
 * is time to ask again. -EINTR: nobody waits for it any more (rt_task_unwanted).
 */
int unreached_wait(struct cache *c, uint64_t nodes);
void prefetch_main(void *arg);
int queue_open(struct page_queue *q, unsigned slots);
void queue_close(struct page_queue *q);
bool queue_put(
	struct page_queue *q, const struct page_ref *refs, unsigned count, bool scan);
bool queue_take(struct page_queue *q, struct prefetch_slot *out); /* false when empty */

/* ---- apart.c ---- */

/* With the kernel's stop. */
void apart_stop(struct cache *c);

/* ---- expose.c ---- */

/*
 * Has this node's kernel nothing of the latched frame's page that keeps the mode from becoming
 * `to`, SHARED or INVALID? If it has, that is dropped: ask again later. Never waits.
 */
bool kernel_free(struct cache *c, struct frame *f, enum page_mode to);
/* It may have stores that nobody was told of. */
bool kernel_may_store(struct cache *c, struct frame *f);
/* There is a drop under way; `eased` says its end. */
bool kernel_drops(struct cache *c, struct frame *f);
/* It may have something, or a drop is under way. */
bool kernel_has(struct cache *c, struct frame *f);
/* The frame leaves the table. */
void exposure_reset(struct cache *c, struct frame *f);
void kernel_close(struct cache *c);

/* ---- writeback.c ---- */

int writeback_open(struct cache *c);
void writeback_close(struct cache *c);
/*
 * Writes back those of the pages that are dirty and not already on their way; any count
 * (in batches). *written (may be NULL) counts them. Waits. Sorts refs by PID. `urgent` is
 * the checkpointer's: never waits for the log's tail, passes over pages that do not pin
 * it where those would need more of the log. Others wait for room in the log: hold
 * nothing that the checkpointer needs. -EHOSTDOWN: all but pages whose home is away.
 */
int writeback_pages(struct cache *c, struct page_ref *refs, unsigned count, bool urgent,
	unsigned *written);
void behind_main(void *arg);
/*
 * Latches a dirty page's frame, to copy it; never waits for other nodes: false, it is another
 * page's, or a request for it is under way.
 */
bool latch_for_copy(struct cache *c, struct frame *f, page_id pid);
/* coherence.h, `persist`. */
int writeback_shipped(void *cache, const struct coherence_ship *ships, unsigned count);
/* coherence.h, `write_back`. */
int writeback_own(struct cache *c, page_id pid);

/* ---- give.c ---- */

int give_open(struct cache *c);
void give_close(struct cache *c);
/* Of what is owed: bits as of cache_give_back. */
uint64_t owed_shards(struct cache *c);
/* Waits until a frame that is LEAVING (latched exclusively; unlatches) has left or stays.
 */
void leaving_wait(struct cache *c, struct frame *f);
/* Redo has made images of other homes' pages (in the table, UNPUBLISHED): they are owed. */
int owed_from_redo(struct cache *c);
/* Has the homes persist what this node owes and what pins the log below `upto`. Waits. */
void owed_ship(struct cache *c, lsn_t upto, bool urgent);
/* All that is owed by now, for owed_older: is any of it still? */
uint64_t owed_mark(struct cache *c);
bool owed_older(struct cache *c, uint64_t mark);
/* More is owed than the page provider should leave alone. */
bool owed_crowded(struct cache *c);

/* ---- stay.c ---- */

#define STAY_NS 4000000ull /* so long a page stays from its arrival on, at most */

/* The latched frame's page has come, to be changed. */
void stay_begin(struct cache *c, const struct frame *f);
/* Nobody gets it before this, by rt_now_ns(); 0: there is nothing against it. Latched. */
uint64_t stay_until(struct cache *c, const struct frame *f);

/* ---- sync.c ---- */

#define AWAY_POLL_NS  20000000ull
#define AWAY_STOPPING 100u
/* A home is away: waits for a moment. False: it has been so often since the cache was
 * stopped (counted from 0 in *times); or nobody is waited for any more (cache_give_up). */
bool home_awaited(struct cache *c, unsigned *times);
/* Pages that were changed, and are in this state in no log and, here, in no store. */
uint64_t unlogged(struct cache *c);
/* As cache_log_dirty, as far as there is room. */
int log_all(struct cache *c);

/*
 * refused.c: a batch for the store here ended with `e`. `fresh`: it had a page that the store has no
 * image of, as far as is known.
 */
void store_took(struct cache *c, int e, bool fresh);
/* Returns true if the store was full a moment ago. Not at the cache's end, where each try counts. */
bool store_rests(struct cache *c);

/* ---- checkpoint.c ---- */

void checkpoint_main(void *arg);
/* The tail may move to here now. */
lsn_t checkpoint_horizon(struct cache *c);

#endif
