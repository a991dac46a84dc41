/* SPDX-License-Identifier: Apache-2.0 */
/* The internal header of the cache: for the files of engine/cache only. */
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
#define WB_REGIONS       2    /* number of bounce buffers, and so of concurrent batches */
#define WB_SHIPPED_PAGES 256  /* of a batch of images that other nodes ship */
#define WB_ALL           (2 * WB_REGIONS) /* the last WB_REGIONS are for those images */
#define PREFETCH_SLOTS   32
#define PREFETCH_TASKS   2
#define BEHIND_SLOTS     64
/* one task prepares its batch while the other's is written */
#define BEHIND_TASKS    WB_REGIONS
#define COUNTER_STRIPES 16
#define AWAY_MAX        128 /* pages of other homes that a sweep gives back */
#define DROPPING_MAX    32  /* pages that the kernel drops for sweeps at a time */
#define SOON_MAX        32u /* pages to be downgraded soon */

/* Flags of frames, apart from those in cache.h. */
#define FRAME_DIRTY       (1u << 0)  /* newer than the home's persisted image */
#define FRAME_LOADING     (1u << 1)  /* its request is under way; latched exclusively */
#define FRAME_NEED_FULL   (1u << 2)  /* its next log record must hold the full image */
#define FRAME_UNPUBLISHED (1u << 3)  /* file data that no extent names yet: never written */
#define FRAME_WRITING     (1u << 4)  /* an image of the frame is being written to the store */
#define FRAME_DATA        (1u << 5)  /* file data: changes are not logged as ranges */
#define FRAME_PERSISTED   (1u << 6)  /* the store has an image of this incarnation */
#define FRAME_LOGGED      (1u << 7)  /* the log has the image of this version */
#define FRAME_AGED        (1u << 9)  /* was dirty, or idle, at the flusher's last tick */
#define FRAME_HOLLOW      (1u << 10) /* X without an image, by guard_fill or guard_overwrite */
#define FRAME_LEAVING     (1u << 11) /* is being given away: no task of this node uses it */
#define FRAME_OWED        (1u << 13) /* in no table: kept until persisted (revoke.c) */
#define FRAME_ASKING      (1u << 14) /* has an image; latched by a request for a stronger mode */
#define FRAME_READ        (1u << 15) /* was requested as file data (FETCH_READ) */

/* The rest of the latch word. */
#define LATCH_WAITERS     2ull
#define LATCH_SHARED_ONE  4ull
#define LATCH_SHARED_MASK 0xfffcull
#define LATCH_VERSION_ONE 0x10000ull

struct frame_list { /* stack of free frames */
	struct rt_mutex lock;
	struct rt_cond available;
	uint32_t *index;
	_Atomic uint32_t count;
};

/* The state of one page of a write-back batch between its steps. */
struct wb_page {
	page_id pid;
	uint64_t rec_lsn; /* when the image was copied */
	bool log_image;   /* an overwrite that could tear: image goes into the log first */
};

/* The buffers of one write-back batch. The task that holds X on `lock` owns them. No task waits for
 * the lock: tasks wait at region_gate. */
struct wb_region {
	struct rt_mutex lock;
	_Atomic uint32_t turn; /* odd while the region is held; changed by the task that holds it */
	uint32_t pages;        /* capacity in pages */
	bool registered;       /* its images are registered for I/O */
	uint8_t *images;
	struct wb_page *page;
	struct store_write *write;
	struct coherence_ship *ship; /* for pages of other homes */
	struct disk_log_descriptor *descriptor;
	_Atomic uint64_t pin; /* log needed by the batch in flight; LSN_MAX: none */
	lsn_t record_lsn;     /* lower bound of the start of its DESCRIPTORS record */
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

/* An image that this node owes. Its frame is in no table. */
struct owed {
	page_id pid;
	uint32_t frame;
	bool shipping;  /* its home has been asked to persist it */
	uint64_t since; /* place in the order in which images became owed */
	uint32_t next;  /* place + 1 of the next one of its bucket; 0: none */
};

/* A page that this node should soon share, its state at the last check, and the number of
 * checks. */
struct soon_page {
	page_id pid;
	uint64_t incarnation, version;
	unsigned looks;
};

#define MIN_HOLD_PLACES 256u

/* The time of a page that was granted while other nodes may want it, and the results of its earlier
 * stays (min_hold.c). */
struct min_hold {
	_Atomic page_id pid;
	_Atomic uint64_t came_ns, came_version;
	_Atomic uint64_t look_ns;          /* asks wait at least until then; 0: there were none */
	_Atomic uint64_t look_version;     /* the version at that time, or at the arrival */
	_Atomic uint32_t skip, skips_left; /* stays in which no ask waits */
	_Atomic bool open;
	/* The page is kept until then (cache_keep), and the value for which the first ask since its
	 * arrival was refused. */
	_Atomic uint64_t kept_ns, refused_ns;
};

/* Copies bytes into an image under its exclusive latch. src must not overlap the target. */
void page_store(void *image_dst, const void *src, size_t len);

struct counter_stripe {
	_Atomic uint64_t hits;
	uint8_t pad[CACHE_LINE - 8];
};

/*
 * The parts of struct cache. Each belongs to the file that it is named after, and that file
 * keeps its invariants. The comment names the lock.
 */

/* cache.c: the memory of pages. It is set at open. */
struct cache_frames {
	uint32_t count;
	struct frame *frame;
	uint8_t *image;
	unsigned batch_max; /* pages that one caller may hold or fetch at once */
};

/*
 * table.c: the translation table. bucket -> 1 + frame index, chained through frame.next.
 * Chains change under the partition's lock. Readers walk without it and verify.
 */
struct cache_table {
	uint32_t mask;
	_Atomic uint32_t *bucket;
	struct rt_mutex partition[TABLE_PARTITIONS];
};

/* latch.c: tasks that wait for a latch, by frame. A sequence word each. No lock. */
struct cache_latch {
	_Atomic uint32_t parking[PARKING_WORDS];
};

/* fetch.c: pages that are fetched in the background. No lock but the queue's. */
struct cache_fetch {
	_Atomic uint32_t unreached; /* tasks in unreached_wait */
	struct page_queue queue;
	struct rt_task *task[PREFETCH_TASKS];
};

/* provider.c: free frames, and the sweep for more of them. */
struct cache_provider {
	struct frame_list free;           /* has its own lock */
	uint32_t low_water, high_water;   /* free frames; set at open */
	_Atomic uint32_t epoch;           /* ScaleStore §4.1: advances with evictions */
	_Atomic uint32_t epoch_evictions; /* since it advanced */
	_Atomic uint32_t scan_loads;      /* as many evictions will not advance it */
	struct rt_mutex sweep_lock;       /* one sweep at a time; protects the next six */
	uint32_t hand;
	struct page_ref *victims; /* dirty pages found by a sweep */
	page_id away[AWAY_MAX];   /* found by it: pages whose home is elsewhere */
	unsigned away_count;
	page_id dropping[DROPPING_MAX]; /* found by it: the kernel has to drop them first */
	unsigned dropping_count;
	_Atomic uint32_t word; /* changes when there is something to do */
	struct rt_task *task;
};

/* flusher.c: old dirty pages, and idle downgrades. */
struct cache_flusher {
	_Atomic uint32_t word;     /* changes when there is something to do */
	_Atomic bool idle_pages;   /* there may be pages to be downgraded */
	struct rt_mutex soon_lock; /* the next two */
	struct soon_page soon[SOON_MAX];
	unsigned soon_count;
	struct page_ref *refs; /* the flusher task's own */
	struct rt_task *task;
};

/* writeback.c: batches of images on their way to the store. */
struct cache_writeback {
	uint32_t pages;             /* of one batch; set at open, as the next */
	uint32_t tear_pages;        /* of one batch: images that go to the log against tearing */
	struct rt_gate region_gate; /* as many are inside as there are regions */
	struct rt_gate shipped_gate;
	struct wb_region region[WB_ALL]; /* each has its own lock */
	_Atomic uint64_t batch_number;
	_Atomic uint32_t failures; /* counts batches that failed */
	_Atomic uint64_t dirty;    /* frames; frame_mark_dirty and frame_mark_clean count it */
	struct page_queue behind;  /* cache_write_behind; has its own lock */
	struct rt_task *behind_task[BEHIND_TASKS];
};

/* refused.c: writes that the store here has refused. No lock. */
struct cache_refused {
	_Atomic int error;              /* of the store here; 0: it takes writes */
	_Atomic uint64_t full_until_ns; /* before then a full store is not tried again */
};

/* recovery.c: the redo at start. One task has it, before the others are started. */
struct cache_recovery {
	bool redo; /* between cache_recover_begin and _end: write-back needs no log of its own */
	struct mend *mends; /* then: pages whose images are being rebuilt */
	unsigned mend_count;
	unsigned owed;       /* frames of pages of other homes */
	struct ahead *ahead; /* working memory of cache_recover_ahead */
};

/* checkpoint.c: checkpoints, and pages that are published or discarded. */
struct cache_checkpoint {
	struct rt_mutex lock;  /* one checkpoint at a time */
	struct page_ref *refs; /* under `lock` */
	struct rt_task *task;
	_Atomic bool end; /* the checkpointer is to stop */
	/*
	 * Pins of the redo of discarded frames. A pin ends when the freeing is durable. There
	 * are two generations, so that steady freeing does not put off that end for ever. Pins
	 * gather in [1], which moves to [0] when [0] has ended. So a pin ends with the second
	 * flush behind it at the latest.
	 */
	struct rt_mutex discard_lock; /* `discard` */
	struct discard_pins {
		lsn_t rec_lsn; /* the lowest */
		lsn_t until;   /* LSN_NONE: no pin */
	} discard[2];
	/* pages being filled ahead of publication */
	struct rt_mutex fill_lock; /* the next two */
	struct rt_cond fill_cond;
	uint32_t filling;
	uint32_t fill_max; /* set at open */
};

/* revoke.c: pages given up dirty, until they are persisted. Under `lock`, except atomics. */
struct cache_revoke {
	struct rt_mutex lock;
	struct owed *owed; /* owed_room places, the first owed_count in use, in no order */
	uint32_t *owed_bucket; /* by hash of the page: place + 1 of the first; 0: none */
	uint32_t owed_max, owed_count;
	uint32_t owed_room;         /* a power of two; as many buckets */
	uint64_t newest;            /* `since` of the last */
	uint32_t reserved;          /* places, by pages that are leaving */
	_Atomic uint64_t handovers; /* pins of the log that went from frame to frame */
	/* by frame: its image may go to another node once the log is durable to here. That is
	 * the end of the last record that changed it together with other pages */
	_Atomic uint64_t *ship_lsn;
};

struct cache {
	/* the layers below; set at open */
	struct store *store;
	struct log *log;
	struct coherence *coherence;
	struct shards alone; /* the volume's shards where the provider names none */
	struct cache_options options;

	struct cache_frames frames;
	struct cache_table table;
	struct cache_latch latch;
	struct cache_fetch fetch;
	struct cache_provider provider;
	struct cache_flusher flusher;
	struct cache_writeback writeback;
	struct cache_refused refused;
	struct cache_recovery recovery;
	struct cache_checkpoint checkpoint;
	struct cache_revoke revoke;
	struct min_hold min_hold[MIN_HOLD_PLACES]; /* by pages' hashes; atomics (min_hold.c) */
	/* tasks that wait for pages while there is a kernel; own locks (guard_while.c) */
	struct guards_while *guards_while;
	/* the kernel's copies of pages; NULL: none; own locks (kcached.c) */
	struct cache_kernel *_Atomic kernel;

	/* its life (cache.c) */
	bool started;          /* set by cache_start, cleared by cache_stop_work */
	_Atomic bool stopping; /* all tasks but the checkpointer */
	_Atomic bool given_up; /* other nodes are not waited for any more */

	struct cache_counters counters;
	struct counter_stripe stripe[COUNTER_STRIPES];
};

#define COUNT(cache, field, n)                                                           \
	atomic_fetch_add_explicit(&(cache)->counters.field, n, memory_order_relaxed)

static inline uint8_t *frame_image(struct cache *c, const struct frame *f)
{
	return c->frames.image + (size_t)(f - c->frames.frame) * PAGE_SIZE;
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

/* Pause between requests for a page that only an unconnected node has. Meanwhile its frame is free,
 * so that no task waits behind it. */
#define UNREACHED_NS 20000000ull
/* If more tasks wait than this, each requests less often. */
#define UNREACHED_AT_ONCE 16u

static inline bool mode_allows(const struct frame *f, enum page_mode wanted)
{
	return atomic_load_explicit(&f->mode, memory_order_relaxed) >= wanted;
}

static inline void frame_set_mode(struct frame *f, enum page_mode mode)
{
	atomic_store_explicit(&f->mode, (uint8_t)mode, memory_order_relaxed);
}

/* Returns the right of this node, which may be more than guards have at the moment. */
static inline enum page_mode frame_right(const struct frame *f)
{
	return (enum page_mode)(
		frame_flags(f) & (FRAME_HOLLOW | FRAME_LEAVING)
			? f->held
			: atomic_load_explicit(&f->mode, memory_order_relaxed));
}

/* Notes that the requester has used a latched frame: the page may be given away again. */
static inline void frame_used(struct cache *c, struct frame *f)
{
	if (unlikely(frame_flags(f) & FRAME_ARRIVED))
		frame_used_slow(c, f);
}

/*
 * A bit of frame.epoch: the page was fetched for a sequential reader, and only that one has used it
 * (LeanStore §IV-I, hinting). Such a page is SCAN_AGE epochs old from the start.
 */
#define EPOCH_SCAN (1u << 31)
#define SCAN_AGE   2u

static inline uint32_t epoch_now(const struct cache *c)
{
	return atomic_load_explicit(&c->provider.epoch, memory_order_relaxed) & ~EPOCH_SCAN;
}

static inline bool frame_scanned(const struct frame *f)
{
	return atomic_load_explicit(&f->epoch, memory_order_relaxed) & EPOCH_SCAN;
}

/* Epochs since the last use. */
static inline uint32_t frame_age(const struct cache *c, const struct frame *f)
{
	return (epoch_now(c) - atomic_load_explicit(&f->epoch, memory_order_relaxed)) &
	       ~EPOCH_SCAN;
}

static inline void frame_touch(struct cache *c, struct frame *f)
{
	uint32_t now = epoch_now(c);

	if (atomic_load_explicit(&f->epoch, memory_order_relaxed) != now)
		atomic_store_explicit(&f->epoch, now, memory_order_relaxed);
}

/* Marks the frame dirty and counts it. It is latched exclusively. */
void frame_mark_dirty(struct cache *c, struct frame *f, uint16_t more_flags);
/* Clears DIRTY (and UNPUBLISHED, AGED, LOGGED) and counts it. The frame is latched exclusively. */
void frame_mark_clean(struct cache *c, struct frame *f);
/* Gives the frame this incarnation of its page, at version 0. Leaves the image of the earlier one.
 * This and the next function need the exclusive latch. */
void frame_renew(struct cache *c, struct frame *f, uint64_t incarnation);
/* Works as frame_renew, with an image of zeros. */
void frame_reinit(struct cache *c, struct frame *f, uint64_t incarnation);

/* ---- cache.c ---- */

/* Returns memory for images that other nodes can reach, or NULL. */
void *images_alloc(struct cache *c, unsigned area, size_t size_bytes);
void images_free(struct cache *c, void *images, size_t size_bytes);

/* ---- latch.c ---- */

/*
 * Returns true if a wait is allowed while this latch is held. The frame is being filled by the
 * task's own request, or a request for a stronger mode has it latched. No other task can need its
 * image, and servers of other nodes do not wait for it (invariant 6).
 */
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
	/* A task that reads a value stored after this sees the bit (guard_valid has the other
	 * fence). */
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

/* Returns the parking word of this frame, which other frames share. */
_Atomic uint32_t *latch_parking(struct cache *c, struct frame *f);
void latch_wake(struct cache *c, struct frame *f);

/* Releases the latch. `changed`: increments the version, so that optimistic readers see it. */
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

/* Latch a frame that had `pid` when it was looked up. Return false if it has another page now: look
 * it up again. Wait. */
bool latch_exclusive(struct cache *c, struct frame *f, page_id pid);
bool latch_shared(struct cache *c, struct frame *f, page_id pid);
/* Work the same for guards. Return false also if another task is requesting the page and the caller
 * is not needed any more (rt_task_unwanted). */
bool latch_exclusive_wanted(struct cache *c, struct frame *f, page_id pid);
bool latch_shared_wanted(struct cache *c, struct frame *f, page_id pid);
/* Waits while the frame is latched exclusively, until the latch has changed hands once at most. */
void latch_wait_open(struct cache *c, struct frame *f);

/* ---- table.c ---- */

int table_open(struct cache *c);
void table_close(struct cache *c);
#define TABLE_WALK_MAX 64

/* Buckets of neighbouring pages lie side by side: one line of memory has TABLE_RUN of them. */
#define TABLE_RUN (CACHE_LINE / sizeof(uint32_t))

static inline uint32_t table_hash(page_id pid)
{
	uint64_t h = pid / TABLE_RUN * 0x9e3779b97f4a7c15ull;

	return (uint32_t)(h >> 32) * (uint32_t)TABLE_RUN + (uint32_t)(pid % TABLE_RUN);
}

/* Prefetches the memory that a lookup of the page will read, in loops over many pages. */
static inline void table_expect(struct cache *c, page_id pid)
{
	__builtin_prefetch(&c->table.bucket[table_hash(pid) & c->table.mask]);
}
#define TABLE_AHEAD 8u /* pages */
static inline void frame_expect(struct cache *c, page_id pid)
{
	uint32_t link = atomic_load_explicit(
		&c->table.bucket[table_hash(pid) & c->table.mask], memory_order_relaxed);

	if (link)
		__builtin_prefetch(&c->frames.frame[link - 1]);
}

/* Prefetch the first lines of the page's image. The processor goes on by itself. */
#define IMAGE_AHEAD 2u /* pages */
static inline void image_expect(struct cache *c, page_id pid)
{
	uint32_t link = atomic_load_explicit(
		&c->table.bucket[table_hash(pid) & c->table.mask], memory_order_relaxed);
	const uint8_t *image;

	if (!link)
		return;
	image = c->frames.image + ((size_t)link - 1) * PAGE_SIZE;
	for (unsigned line = 0; line < 4; line++)
		__builtin_prefetch(image + line * CACHE_LINE);
}

/* Looks a page up without a lock. NULL may be wrong during a change. Latch and verify a hit. */
static inline struct frame *table_find(struct cache *c, page_id pid)
{
	uint32_t link = atomic_load_explicit(
		&c->table.bucket[table_hash(pid) & c->table.mask], memory_order_acquire);

	for (unsigned steps = 0; link && steps < TABLE_WALK_MAX; steps++) {
		struct frame *f = &c->frames.frame[link - 1];

		if (likely(atomic_load_explicit(&f->pid, memory_order_relaxed) == pid))
			return f;
		link = atomic_load_explicit(&f->next, memory_order_acquire);
	}
	return NULL;
}

/* Looks a page up under the lock, so that the result is definite. If it is absent and `f` is given
 * (latched exclusively), inserts f under pid. Returns the frame that had the PID before, or NULL.
 */
struct frame *table_insert(struct cache *c, page_id pid, struct frame *f);
/* Removes a frame (latched exclusively); its PID becomes PID_NONE. */
void table_remove(struct cache *c, struct frame *f);

/* ---- provider.c ---- */

/*
 * Returns a free frame, latched exclusively, with PID_NONE. If `wait` is false, returns NULL if
 * there is none. If it is true, returns NULL only with *error: -EIO or -ENOMEM, nothing can be
 * evicted any more.
 */
struct frame *frame_get(struct cache *c, bool wait, int *error);
/* Takes up to `max` free frames into index[], by rising place: neighbouring pages then get
 * neighbouring frames. Does not latch them. Returns their number. */
unsigned frames_take(struct cache *c, uint32_t *index, unsigned max);
/* Puts these frames back, or others that are in no chain. */
void frames_put_back(struct cache *c, const uint32_t *index, unsigned count);
/*
 * Takes a clean frame, latched exclusively, out of the cache, and unlatches it. Returns false if
 * its home must be asked, or a node waits for the page. The frame then stays; a hollow one stays
 * hollow.
 */
bool frame_drop(struct cache *c, struct frame *f);
/* Empties a frame that is latched exclusively and in the table, and puts it back. */
void frame_free(struct cache *c, struct frame *f);
/* Puts a frame (latched exclusively, in no chain) back; unlatches. */
void frame_put(struct cache *c, struct frame *f);
/* Latches a frame that is in no chain. */
void latch_free_frame(struct frame *f);
/* Makes a free, latched frame LOADING; table_insert follows. */
void frame_claim(struct cache *c, struct frame *f, uint64_t incarnation);
void provider_main(void *arg);
void provider_wake(struct cache *c);

/* ---- flusher.c ---- */

void flusher_main(void *arg);
void flusher_wake(struct cache *c);
/* Notes that the latched frame has just got the exclusive right. */
void flusher_note(struct cache *c, const struct frame *f);

/* ---- fetch.c ---- */

#define FETCH_SCAN     (1u << 0)
#define FETCH_NO_IMAGE (1u << 1) /* descriptor only: the frame is hollow afterwards */
/* just allocated: the store has nothing of it; with keep or NO_IMAGE */
#define FETCH_FRESH (1u << 2)
/* with the right to change it */
#define FETCH_EXCLUSIVE (1u << 3)
/* return -EHOSTUNREACH instead of waiting for a node that is away */
#define FETCH_REACHED (1u << 4)
/* will probably only be read: of another home, request it shared even if no other node has it. That
 * saves one message at its eviction, and other nodes need not wait for it if this node is lost */
#define FETCH_READ (1u << 5)
/* no task waits for the pages */
#define FETCH_AHEAD (1u << 6)
/* with EXCLUSIVE: pages that are here shared, and not latched, are requested in the same round */
#define FETCH_HELD (1u << 7)
/* Loads the missing pages. `keep` (count 1): returns the frame still latched exclusively if this
 * call loaded it, else NULL: another task has it, so look it up again. */
int fetch_pages(struct cache *c, const struct page_ref *refs, unsigned count,
	unsigned flags, struct frame **keep);
/* Gets the right to change a page, as guard_own does. flags: FETCH_REACHED, or 0. */
int frame_own(struct cache *c, page_id pid, uint64_t incarnation, unsigned flags);
/*
 * Requests a stronger right, or the image, for a frame in the table that is latched exclusively.
 * Sets FRAME_ASKING. Returns 0 with the frame still latched and as granted. After an error the
 * frame is unlatched, and free if it was lost. Waits.
 */
void frame_request(struct cache *c, struct frame *f, const struct page_ref *ref,
	enum page_mode wanted, bool blind, struct coherence_request *out);
int frame_answered(struct cache *c, struct frame *f, const struct page_ref *ref,
	const struct coherence_request *r);
/*
 * Completes a granted request of a frame in the table, latched exclusively: gets the image, if
 * needed, and sets the frame's state. Returns 0 with the frame still latched. After an error the
 * frame is gone or hollow, and unlatched. Waits.
 */
int fetch_granted(struct cache *c, struct frame *f, const struct page_ref *ref,
	const struct coherence_request *request);
/* Shows that the calling task waits for the page. Metadata is fetched by its id alone. */
static inline void page_needed(const struct page_ref *ref)
{
	rt_task_needs(ref->incarnation ? RT_NEEDS_FILE_PAGE : RT_NEEDS_PAGE, ref->pid);
}
/* Shows that the calling task waits for no page any more. */
static inline void page_came(void)
{
	rt_task_awaits(0);
	rt_task_needs(RT_NEEDS_NOTHING, 0);
}
/* Waits with nothing held until a page can be requested again. `nodes`: the unconnected nodes that
 * have it. Returns 0, or -EINTR if the caller is not needed any more (rt_task_unwanted). */
int unreached_wait(struct cache *c, uint64_t nodes);
void prefetch_main(void *arg);
int queue_open(struct page_queue *q, unsigned slots);
void queue_close(struct page_queue *q);
bool queue_put(
	struct page_queue *q, const struct page_ref *refs, unsigned count, bool scan);
bool queue_take(struct page_queue *q, struct prefetch_slot *out); /* false if it is empty */

/* ---- guard_while.c ---- */

/* Stops the tasks, when the kernel stops. */
void guard_while_stop(struct cache *c);

/* ---- kcached.c ---- */

/* Returns true if this node's kernel has nothing of the latched frame's page that keeps it from
 * becoming `to`, SHARED or INVALID. If it has, that is dropped: ask again later. Never waits. */
bool kernel_free(struct cache *c, struct frame *f, enum page_mode to);
/* Returns true if the kernel may have unreported stores in the page. */
bool kernel_may_store(struct cache *c, struct frame *f);
/* Returns true if a drop is under way. `kernel_invalidated` reports its end. */
bool kernel_drops(struct cache *c, struct frame *f);
/* Returns true if the kernel may have something of the page, or a drop is under way. */
bool kernel_has(struct cache *c, struct frame *f);
/* Clears the kernel copy of a frame that leaves the table. */
void kcopy_reset(struct cache *c, struct frame *f);
void kernel_close(struct cache *c);

/* ---- writeback.c ---- */

int writeback_open(struct cache *c);
void writeback_close(struct cache *c);
/*
 * Writes back those of the pages that are dirty and not being written, in batches of any total
 * count. *written (may be NULL) counts them. Sorts refs by PID. `urgent`: for the checkpointer. It
 * never waits for the log's tail, and skips pages that do not pin it if they would need more log.
 * Other callers wait for room in the log, so they must hold nothing that the checkpointer needs.
 * Returns -EHOSTDOWN if only pages of homes that are away are left. Waits.
 */
int writeback_pages(struct cache *c, struct page_ref *refs, unsigned count, bool urgent,
	unsigned *written);
void behind_main(void *arg);
/* Latches a dirty page's frame in order to copy it. Never waits for other nodes: returns false if
 * the frame has another page, or a request for it is under way. */
bool latch_for_copy(struct cache *c, struct frame *f, page_id pid);
/* coherence.h, `persist`. */
int writeback_shipped(void *cache, const struct coherence_ship *ships, unsigned count);
/* coherence.h, `write_back`. */
int writeback_own(struct cache *c, page_id pid);

/* ---- revoke.c ---- */

int give_open(struct cache *c);
void give_close(struct cache *c);
/* owed_list.c: the list of owed images, under revoke.lock. Makes room for so many images, and keeps
 * the list. Returns 0 or -ENOMEM. */
int owed_list_open(struct cache *c, uint32_t places);
void owed_list_close(struct cache *c);
void owed_list_add(struct cache *c, page_id pid, uint32_t frame);
/* Removes an image. The last one of the list takes its place. */
void owed_list_remove(struct cache *c, struct owed *o);
/* Return the page's first image, and the next after it; NULL: there is none. */
struct owed *owed_list_find(struct cache *c, page_id pid);
struct owed *owed_list_next(struct cache *c, const struct owed *o);

/* Returns the shards of all owed images: bits as of cache_give_back. */
uint64_t owed_shards(struct cache *c);
/* Waits until a LEAVING frame has left or stays. The frame is latched exclusively; unlatches it. */
void leaving_wait(struct cache *c, struct frame *f);
/* Makes images of other homes' pages, which redo has made, owed (in the table, UNPUBLISHED). */
int owed_from_redo(struct cache *c);
/* Has the homes persist owed images, and pages that pin the log below `upto`. Waits. */
void owed_ship(struct cache *c, lsn_t upto, bool urgent);
/* Returns a mark of all images owed now. owed_older returns true while one of them still is. */
uint64_t owed_mark(struct cache *c);
bool owed_older(struct cache *c, uint64_t mark);
/* Returns true if so many images are owed that the page provider must act. */
bool owed_crowded(struct cache *c);

/* ---- min_hold.c ---- */

#define MIN_HOLD_NS 4000000ull /* a page stays so long after its arrival, at most */

/* Notes that the latched frame's page has come, to be changed. */
void min_hold_begin(struct cache *c, const struct frame *f);
/* Returns the rt_now_ns() before which no node gets the latched page; 0: at once. */
uint64_t min_hold_until(struct cache *c, const struct frame *f);

/* ---- sync.c ---- */

#define AWAY_POLL_NS  20000000ull
#define AWAY_STOPPING 100u
/* Waits a moment for a home that is away. Returns false after some calls since the cache was
 * stopped (counted from 0 in *times), or after cache_give_up. */
bool home_awaited(struct cache *c, unsigned *times);
/* Returns the number of changed pages whose present image is in no log and in no store here. */
uint64_t cache_unlogged(struct cache *c);
/* Works as cache_log_dirty, as far as there is room. */
int log_all(struct cache *c);

/* Notes the result `rc` of a batch for the store here. `fresh`: it had a page without an image in
 * the store, as far as known. (refused.c) */
void store_took(struct cache *c, int rc, bool fresh);
/* Returns true if the store was full a moment ago. At the cache's end it returns false, because
 * each try counts. */
bool store_rests(struct cache *c);

/* ---- checkpoint.c ---- */

void checkpoint_main(void *arg);
/* Returns the LSN to which the tail may move now. */
lsn_t checkpoint_horizon(struct cache *c);

#endif
