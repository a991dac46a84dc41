/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The node's page cache: frames, latches, guards, the page provider.
 *
 * Guards are the only way to a page. Latches are hybrid (ScaleStore §3.2, LeanStore
 * §IV-F): a word with a version, a shared count and an exclusive bit; optimistic
 * readers read and validate. Frames are type-stable: an optimistic reader can fail
 * validation but never fault.
 *
 * Latching rules (invariant 6): a task that holds a latch never waits for another
 * one, for a message or for a disk. Functions marked "waits" must be called with no
 * guard held, "never waits" ones may fail with -EAGAIN instead.
 *
 * Bytes of images that optimistic readers may see are read with page_load_* and
 * page_copy_out, and changed with page_store (below, or mtr_write): relaxed atomics,
 * so that ThreadSanitizer can judge the rest.
 */
#ifndef WEFT_CACHE_H
#define WEFT_CACHE_H

#include <string.h>

#include "engine/coherence/coherence.h"
#include "engine/log/log.h"
#include "engine/store/store.h"

struct cache;

/* ---- frames -------------------------------------------------------------------- */

#define FRAME_DIRTY       (1u << 0) /* newer than the home's persisted image */
#define FRAME_LOADING     (1u << 1) /* its request is under way; latched exclusively */
#define FRAME_NEED_FULL   (1u << 2) /* the next log record of it carries the full image */
#define FRAME_UNPUBLISHED (1u << 3) /* file data that no extent names: never written */
#define FRAME_WRITING     (1u << 4) /* an image of it is on its way to the store */
#define FRAME_DATA        (1u << 5) /* file data: changes are not logged as ranges */
#define FRAME_PERSISTED   (1u << 6) /* the store has an image of this incarnation */
#define FRAME_LOGGED      (1u << 7) /* the log has the image of this very version */
#define FRAME_CHECKED     (1u << 8) /* has passed tree_check_page; cleared at load */
#define FRAME_AGED        (1u << 9) /* was dirty, or at rest, at the flusher's last tick */
#define FRAME_HOLLOW      (1u << 10) /* X without content: guard_fill's, _overwrite's */
#define FRAME_LEAVING     (1u << 11) /* is being given away: nobody here uses it */
#define FRAME_ARRIVED     (1u << 12) /* others wait for it to be used here once */
#define FRAME_OWED        (1u << 13) /* in no table: kept until it is persisted (give.c) */
#define FRAME_ASKING      (1u << 14) /* has an image, and is latched by a request for more */
#define FRAME_READ        (1u << 15) /* was asked for as data of a file is (FETCH_READ) */

/* The hot state of a frame: one cache line. Fields but latch, pid, next and epoch
 * change under the exclusive latch only, or as said. */
struct frame {
	_Atomic uint64_t
		latch; /* bit 0 X, bit 1 waiters, bits 2-15 shared count, 16-63 version */
	_Atomic uint64_t pid; /* PID_NONE: free */
	uint64_t incarnation;
	uint64_t version;
	_Atomic uint64_t rec_lsn; /* the log from here on is needed for this page;
				     LSN_NONE: nothing */
	_Atomic uint64_t
		page_lsn; /* the image may leave once the log is durable to here */
	_Atomic uint32_t
		next; /* translation table's chain; under the partition's latch */
	_Atomic uint32_t epoch; /* of the last access (ScaleStore §4.1) */
	_Atomic uint8_t mode;   /* enum page_mode: what guards may do with it */
	uint8_t held; /* enum page_mode: the right behind a HOLLOW or LEAVING frame */
	_Atomic uint16_t flags; /* FRAME_* */
	_Atomic uint32_t hints; /* 1 + index of its swizzling hints, or 0 (engine/tree) */
};
_Static_assert(sizeof(struct frame) == 64, "a frame's hot state is one cache line");

#define LATCH_EXCLUSIVE    1ull
#define LATCH_WAITERS      2ull
#define LATCH_SHARED_ONE   4ull
#define LATCH_SHARED_MASK  0xfffcull
#define LATCH_VERSION_ONE  0x10000ull
#define LATCH_VERSION_MASK (~0xffffull)

/* ---- relaxed access to images ------------------------------------------------------ */

static inline uint64_t page_load_u64(const void *p)
{
	return __atomic_load_n((const uint64_t *)p, __ATOMIC_RELAXED);
}
static inline uint32_t page_load_u32(const void *p)
{
	return __atomic_load_n((const uint32_t *)p, __ATOMIC_RELAXED);
}
static inline uint16_t page_load_u16(const void *p)
{
	return __atomic_load_n((const uint16_t *)p, __ATOMIC_RELAXED);
}
/* Copy out of an image that may be changing; the caller validates afterwards. */
void page_copy_out(void *dst, const void *image_src, size_t len);
/* Copy into an image under its exclusive latch. src must not overlap the target. */
void page_store(void *image_dst, const void *src, size_t len);
/* memmove within an image under its exclusive latch. */
void page_move(void *image_dst, const void *image_src, size_t len);

/* ---- opening --------------------------------------------------------------------- */

#define CACHE_DEFAULT_BYTES (256ull << 20)

struct cache_options {
	uint64_t cache_bytes;  /* images; at least 64 pages. 0: 256 MiB */
	bool read_only;        /* nothing may become dirty */
	uint64_t dirty_age_ms; /* write back what has been dirty for so long; 0: 30000 */
};

/* Starts no task. */
int cache_open(struct cache **out, struct store *s, struct log *log, struct coherence *c,
	const struct cache_options *o);
/* Starts the page provider and the checkpointer. */
int cache_start(struct cache *cache);
/*
 * The checkpointer alone, before: others have this node persist what they ship, and its log needs
 * room for that. When all is recovered, and the provider serves.
 */
int cache_start_checkpoints(struct cache *cache);
/* Stops them; idempotent. The checkpointer goes last, as all others may wait for room in the log. */
void cache_stop(struct cache *cache);
/* All but the checkpointer: what is left to do, a last cache_checkpoint, may need room, too. */
void cache_stop_work(struct cache *cache);
/* Drops everything, dirty or not. */
void cache_close(struct cache *cache);

struct store *cache_store(struct cache *cache);
struct log *cache_log(struct cache *cache);
/* Which pages the volume has. */
const struct shards *cache_shards(struct cache *cache);
/* Another node has said how large its store is: shards_learn. */
int cache_shards_learn(struct cache *cache, uint16_t shard, uint64_t page_count);
/* May other nodes have, and change, pages of the volume? */
bool cache_has_peers(struct cache *cache);
/* The other node that is the page's home; COHERENCE_NO_NODE: it is this one, or none is known. */
unsigned cache_home(struct cache *cache, page_id pid);
uint64_t cache_frame_count(struct cache *cache);
struct frame *cache_frame(struct cache *cache, uint32_t index);
uint32_t cache_frame_index(struct cache *cache, const struct frame *f);
/* Most pages that one caller may hold or fetch at once (an eighth of the frames, <= 256).
 */
unsigned cache_batch_max(struct cache *cache);

/* ---- guards ---------------------------------------------------------------------- */

enum guard_kind { GUARD_NONE = 0, GUARD_OPTIMISTIC, GUARD_SHARED, GUARD_EXCLUSIVE };

struct guard {
	struct frame *frame;
	uint8_t *image;
	uint64_t latch; /* the word seen, for validation */
	enum guard_kind kind;
};

struct page_ref {
	page_id pid;
	uint64_t incarnation; /* wanted; 0: any */
};

/*
 * Wait for the page and latch it. 0; -EIO; -EUCLEAN (damaged image); -ESTALE: the page
 * has a newer incarnation than wanted (the mapping changed: look it up again). A page
 * whose stored incarnation is older than wanted is zeros (invariant 8). -EINTR, of these and all
 * that wait for a page of another node: nobody waits any more for what the task does
 * (rt_task_unwanted), and the page may come late or never; nothing is held then.
 */
int guard_shared(struct cache *cache, page_id pid, uint64_t incarnation, struct guard *g);
int guard_exclusive(
	struct cache *cache, page_id pid, uint64_t incarnation, struct guard *g);
/*
 * Gets the right to change the page, and holds nothing at the end; that is no use of it. What
 * was read of the page stands where the image was here and only the right was not. Waits.
 */
int guard_own(struct cache *cache, page_id pid, uint64_t incarnation);
/*
 * guard_shared and guard_exclusive for whoever may be waited for itself by who has the page:
 * -EAGAIN as soon as `stands`, which must not wait, says no; nothing is latched while it is
 * asked. (It is asked where there is a kernel that keeps pages; else nobody waits like that.)
 */
typedef bool cache_stands(void *arg);
int guard_shared_while(struct cache *cache, page_id pid, uint64_t incarnation,
	cache_stands *stands, void *arg, struct guard *g);
int guard_exclusive_while(struct cache *cache, page_id pid, uint64_t incarnation,
	cache_stands *stands, void *arg, struct guard *g);
/*
 * Optimistic: nothing is held. Waits for a missing page or while it is latched
 * exclusively. `hint` may name a frame likely to bear the PID, or be NULL.
 */
int guard_optimistic(
	struct cache *cache, page_id pid, struct frame *hint, struct guard *g);
/* The same without waiting: -EAGAIN when missing or latched. */
int guard_try_optimistic(
	struct cache *cache, page_id pid, struct frame *hint, struct guard *g);
/* What was read since the guard was taken stands. */
static inline bool guard_valid(const struct guard *g);
/* Never wait: -EAGAIN when missing, latched, or of another incarnation. */
int guard_try_shared(
	struct cache *cache, page_id pid, uint64_t incarnation, struct guard *g);
int guard_try_exclusive(
	struct cache *cache, page_id pid, uint64_t incarnation, struct guard *g);
/* Optimistic to exclusive if still valid; else -EAGAIN and the guard is gone. Never
 * waits. */
int guard_try_upgrade(struct cache *cache, struct guard *g);
/*
 * Exclusive, without reading the image. Fresh: the page was just allocated with this
 * incarnation; the image is zeros, version 0. Fill: the same for a caller that fills the
 * whole page and releases it dirty. Overwrite: such a caller again, of a page that has an
 * image; the version continues. Who gives up instead just releases it: an image that was
 * not there before is dropped. -ESTALE as above. Wait (for a frame or a descriptor).
 */
int guard_fresh(struct cache *cache, page_id pid, uint64_t incarnation, struct guard *g);
int guard_fill(struct cache *cache, page_id pid, uint64_t incarnation, struct guard *g);
int guard_overwrite(
	struct cache *cache, page_id pid, uint64_t incarnation, struct guard *g);

/* Releases any kind; no-op on GUARD_NONE. */
void guard_release(struct cache *cache, struct guard *g);
/*
 * What was read through an optimistic guard and found valid has served its purpose: a page
 * that came from another node may be given away again. Guards of the other kinds say so
 * with their release.
 */
static inline void guard_used(struct cache *cache, const struct guard *g);
/*
 * File data only: the image was changed under this exclusive guard. Adds one to the
 * version, marks it dirty, releases. `unpublished`: no extent names the page yet
 * (FRAME_UNPUBLISHED).
 */
void guard_release_dirty(struct cache *cache, struct guard *g, bool unpublished);

/*
 * Brings all pages into the cache, misses in flight together, holding nothing at the
 * end. count <= cache_batch_max. First error, or 0. Waits. The second one also gets the
 * right to change them, where this node has not got it.
 */
int cache_fetch(struct cache *cache, const struct page_ref *refs, unsigned count);
int cache_fetch_exclusive(
	struct cache *cache, const struct page_ref *refs, unsigned count);
/*
 * While this node may change the page, others do not get it before that moment (rt_now_ns; 0:
 * they do). No ask waits for that longer than CACHE_KEEP_NS, and the note may be lost. Never
 * waits.
 */
#define CACHE_KEEP_NS 100000000ull
void cache_keep(struct cache *cache, page_id pid, uint64_t until_ns);
/* Somebody was refused the page for that, and comes again in a moment. Never waits. */
bool cache_keep_refused(struct cache *cache, page_id pid);
/* The same for whoever can do without: -EHOSTUNREACH where a node would be waited for that is
 * away. */
int cache_fetch_near(struct cache *cache, const struct page_ref *refs, unsigned count);
int cache_fetch_reached(struct cache *cache, const struct page_ref *refs, unsigned count);
/* Might another node have to be asked before the page may be changed here? As far as can be seen
 * without waiting. */
bool cache_asks_to_own(struct cache *cache, const struct page_ref *ref);
/*
 * Latches all pages shared: fetches what is missing, holds none while it waits, and
 * starts over when some were lost meanwhile, with growing pauses. On error holds none.
 * Waits.
 */
int guard_shared_batch(struct cache *cache, const struct page_ref *refs, unsigned count,
	struct guard *guards);
/* Asks a background task to fetch; returns at once; dropped when too many are waiting.
 * `scan`: pages are unlikely to be used again soon (LeanStore §IV-I, hinting). */
void cache_prefetch(
	struct cache *cache, const struct page_ref *refs, unsigned count, bool scan);

/* ---- for simulations ----------------------------------------------------------------- */

enum cache_change {
	CACHE_CHANGED,     /* without a record: file data */
	CACHE_LOGGED,      /* with a record of what has changed */
	CACHE_LOGGED_FULL, /* with one of the full image */
	CACHE_PUBLISHED,   /* an extent names it from now on; it has not changed */
	CACHE_UNMADE,      /* it was to be named by an extent, and is not: zeros again */
};

/*
 * Is told of each change, while the page is still latched. `until`: what of it another node, or
 * a store, may have once the log is durable to here; LSN_NONE: at once. Never waits. Set by tests
 * of several nodes; else NULL.
 */
extern void (*cache_watch)(
	struct cache *cache, struct frame *f, enum cache_change what, lsn_t until);

static inline void cache_watched(
	struct cache *cache, struct frame *f, enum cache_change what, lsn_t until)
{
	if (unlikely(cache_watch))
		cache_watch(cache, f, what, until);
}

/* The cache's own. */
void frame_used_slow(struct cache *cache, struct frame *f);

static inline void guard_used(struct cache *cache, const struct guard *g)
{
	if (unlikely(atomic_load_explicit(&g->frame->flags, memory_order_relaxed) &
		     FRAME_ARRIVED))
		frame_used_slow(cache, g->frame);
}

static inline bool guard_valid(const struct guard *g)
{
	rt_sched_point();
	atomic_thread_fence(memory_order_acquire);
	return ((atomic_load_explicit(&g->frame->latch, memory_order_relaxed) ^
			g->latch) &
		       (LATCH_VERSION_MASK | LATCH_EXCLUSIVE)) == 0;
}

/* ---- file data that is published later ------------------------------------------- */

/*
 * Brackets the filling of pages that are published later: they cannot be evicted, so all
 * callers together may hold only a quarter of the cache: pages <= cache_fill_max. begin
 * waits; call it before the first guard_fresh, holding nothing.
 */
unsigned cache_fill_max(struct cache *cache);
void cache_fill_begin(struct cache *cache, unsigned pages);
void cache_fill_end(struct cache *cache, unsigned pages);

/* The extents that name these pages are committed: they may be written once the log is
 * durable to `lsn`. Missing or newer pages are passed over. Waits. */
void cache_publish(
	struct cache *cache, const struct page_ref *refs, unsigned count, lsn_t lsn);
/* The pages are free: drop them, dirty or not, if they still bear this incarnation.
 * Waits. */
void cache_discard(struct cache *cache, const struct page_ref *refs, unsigned count);

/* ---- what this node's kernel has of pages (expose.c) ------------------------------- */

#define EXPOSE_BLOCK      (1u << 0) /* a file's page */
#define EXPOSE_ATTRIBUTES (1u << 1) /* of inodes whose items lie in the leaf */
#define EXPOSE_NAMES      (1u << 2) /* whose keys lie in the leaf, absent ones too */
#define EXPOSE_FILES      (1u << 3) /* pages of files, by sizes and extents in the leaf */
#define EXPOSE_STORES                                                                    \
	(1u << 4) /* with BLOCK: it may change it, and tell when asked to drop it */
#define EXPOSE_COPY                                                                      \
	(1u << 5) /* with BLOCK: it may change it, and what this node has stays as it is */
#define EXPOSE_ALL 0x3fu

/* What is to be dropped. */
struct cache_exposed {
	page_id pid;
	unsigned kinds;
	uint64_t ino, block; /* EXPOSE_BLOCK */
	const void *image;   /* the leaf's; not with EXPOSE_BLOCK alone */
};

struct cache_kernel_ops {
	/* The kernel has nothing of it any more, nor what was exposed before, when this
	 * returns; what it has stored there has come by cache_stores. Waits, but for no page
	 * that another node has. */
	void (*drop)(void *owner, const struct cache_exposed *what);
	/* False: it has no page of this file, and no READ that began before this is answered with
	 * one of what was exposed earlier. Never waits. */
	bool (*has_pages)(void *owner, uint64_t ino);
};

/* An exposure, to ask whether it stands. */
struct cache_exposure {
	uint32_t frame, generation;
};

struct kernel_counters {
	_Atomic uint64_t kernel_drops; /* of pages, exposed */
	/* fs/ops: inodes of which the kernel may have something; those dropped for others */
	_Atomic uint64_t kernel_inodes, kernel_inodes_dropped;
};

/*
 * From here on guards may be exposed, and what is exposed is dropped before a page is given
 * up. Only before anything is exposed; once for a cache. Not on a volume of one node.
 */
int cache_kernel_start(
	struct cache *cache, const struct cache_kernel_ops *ops, void *owner);
/* And it may get pages with STORES: for guard_shared_while, and the like. Ended by
 * cache_kernel_stop, too. */
int cache_stores_start(struct cache *cache);
/* The kernel has nothing any more: it is gone. */
void cache_kernel_stop(struct cache *cache);
/* NULL: there is no kernel. */
struct kernel_counters *cache_kernel_counters(struct cache *cache);
/*
 * The kernel may have this of the page from here on. The guard is shared, or exclusive (for
 * STORES it is). Of a block: where it is. *out may be NULL. -EAGAIN: not now, the page is to be
 * given up; let go of the guard and wait a little.
 */
int guard_expose(struct cache *cache, const struct guard *g, unsigned kinds, uint64_t ino,
	uint64_t block, struct cache_exposure *out);
/*
 * What was exposed before: true if the kernel may have all of this of the page from here on
 * already, and the guard, optimistic, stands when it has been used; then *out as of guard_expose.
 * Else expose it.
 */
bool guard_exposed(struct cache *cache, const struct guard *g, unsigned kinds,
	struct cache_exposure *out);
/*
 * What the kernel has stored in [from, from + len) of a file's block, which was exposed with
 * STORES; also while it is being dropped. -ENOENT: the page is not the file's any more. Waits
 * for a latch, for nothing else.
 */
int cache_stores(struct cache *cache, uint64_t ino, uint64_t block, unsigned from,
	const void *bytes, size_t len);
/*
 * What the kernel was given of a file's block, exposed with COPY: a page, to `out`; also while it
 * is being dropped. False: nothing of a page. Waits for nothing.
 */
bool cache_copied(struct cache *cache, uint64_t ino, uint64_t block, void *out);
/* It is not being dropped, nor was it. */
bool cache_exposure_stands(struct cache *cache, const struct cache_exposure *e);
/* Items of a leaf have moved to another one; both are latched exclusively. */
void guard_expose_like(
	struct cache *cache, const struct guard *from, const struct guard *to);

/* ---- durability ------------------------------------------------------------------ */

/* Up to so many dirty bytes go through the log at fsync. */
#define CACHE_SYNC_LOGGED_MAX (64u << 10)

/*
 * Makes the pages' present images and the log up to `lsn` durable: small sets in one log
 * write and one flush, larger ones in place. Clean and missing pages cost nothing. Waits.
 * 0, or -EIO.
 */
int cache_sync(
	struct cache *cache, const struct page_ref *refs, unsigned count, lsn_t lsn);
/*
 * Puts all dirty and owed images that the log has not got into it, durably, so that nothing is
 * lost with this node's memory. -ENOBUFS: they do not fit; -EBUSY: some are being asked for of
 * other nodes. Waits for the device alone, never for room or for others.
 */
int cache_log_dirty(struct cache *cache);
/*
 * Nobody waits for other nodes any more (coherence_cluster_give_up): nor for homes that are away,
 * nor for room in the log, which may need these. It fails with -EIO.
 */
void cache_give_up(struct cache *cache);
/*
 * Others cannot do without this page, whatever becomes of this node: it is not to have it alone
 * for longer than it changes it. It is shipped to its home, if that is another node, and shared,
 * within some seconds. At most a few at a time; others rest as all do (docs/many-nodes.md, "Pages
 * at rest").
 */
void cache_rest_soon(struct cache *cache, page_id pid);
/* The same, but leaves room for those that all nodes need. */
void cache_rest_soon_spare(struct cache *c, page_id pid);
/* Starts writing the dirty ones of these pages in the background. */
void cache_write_behind(struct cache *cache, const struct page_ref *refs, unsigned count);
/* Writes back every dirty page (but unpublished ones), flushes, writes the table,
 * advances the log's tail. After it, with nothing changing, the log is empty. Waits. */
int cache_checkpoint(struct cache *cache);
/*
 * After cache_stop, where cache_checkpoint has failed: writes this node's own pages back, from
 * the log's reserve, as far as that goes, and logs those that are not in the log, as far as there
 * is room. Returns how many pages of file data are not known to be in either as they are here.
 * Waits for no other node.
 */
uint64_t cache_save(struct cache *cache);
/*
 * The negative errno with which the store here refused the last write-back; 0: it takes them.
 * -ENOSPC stays until the store has taken a page that it had no image of: it may take others all
 * the time.
 */
int cache_write_error(struct cache *cache);
/* Returns true if the store was full at the last try, some seconds ago at most: new pages are refused. */
bool cache_store_full(struct cache *cache);
/* Is anything owed to other nodes? */
bool cache_owes(struct cache *cache);
/* Is anything dirty, or owed to other nodes? A look: others may change it. */
bool cache_keeps(struct cache *cache);

/*
 * After cache_stop_work, with nothing changing here any more: gives up what this node has of other
 * stores' pages, and has their homes persist what it owes, as far as it can be done soon.
 * Returns what it still has: a bit for each of the first 64 shards. Waits.
 */
uint64_t cache_give_back(struct cache *cache);
/*
 * As cache_checkpoint, and images that this node owes are persisted, too: whatever of others'
 * changes it has, dirty, at the call is persisted when it returns. Waits for homes that are away.
 */
int cache_persist(struct cache *cache);

/* ---- counters -------------------------------------------------------------------- */

struct cache_counters {
	_Atomic uint64_t hits, misses, fetch_requests, prefetches, evictions,
		evicted_dirty, swept, /* frames looked at, to evict some */
		stays; /* pages that others had to wait for while they were in use (stay.c) */
	_Atomic uint64_t pages_written, write_batches,
		write_failures; /* batches that the store here, or another, did not take */
	_Atomic uint64_t sync_logged, sync_in_place,
		checkpoints;
	_Atomic uint64_t latch_waits, latch_restarts, frame_waits;
};
struct cache_counters *cache_counters(struct cache *cache);
uint64_t cache_dirty_pages(struct cache *cache);
uint64_t cache_free_frames(struct cache *cache);
/*
 * For people: what the frames have of each shard, as far as one look at each of them tells while
 * the rest goes on.
 */
struct cache_census {
	uint64_t exclusive,
		shared; /* pages that this node may change; that it may read */
	uint64_t dirty; /* of these, newer than their store */
	uint64_t owed;  /* images kept until their home has them, without a right */
};
void cache_census(struct cache *cache, struct cache_census of[SHARDS_MAX]);

#endif
