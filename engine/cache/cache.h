/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The page cache of the node: frames, latches, guards and the page provider.
 *
 * A guard is the only way to access a page. Latches are hybrid (ScaleStore §3.2, LeanStore §IV-F):
 * one word holds a version, a shared count and an exclusive bit. Optimistic readers read first and
 * validate afterwards. Frames are type-stable: an optimistic reader can fail validation but never
 * fault.
 *
 * Latching rules (invariant 6): a task that holds a latch never waits for another latch, a message
 * or a disk. Call a function marked "Waits." with no guard held. A function marked "Never waits."
 * may fail with -EAGAIN instead.
 *
 * Optimistic readers may see an image while it changes. Read its bytes with page_load_* and
 * page_copy_out. Change them with guard_store (below) or mtr_write. These are relaxed atomics, so
 * ThreadSanitizer can check all other accesses.
 */
#ifndef WEFT_CACHE_H
#define WEFT_CACHE_H

#include <string.h>

#include "engine/coherence/coherence.h"
#include "engine/log/log.h"
#include "engine/store/store.h"

struct cache;

/* ---- frames -------------------------------------------------------------------- */

/* Flags of frames: these two are tested inline here. cache_internal.h has the others. */
#define FRAME_CHECKED (1u << 8)  /* has passed tree_check_page; cleared at load */
#define FRAME_ARRIVED (1u << 12) /* other nodes wait until it is used once here */

/* The hot state of a frame: one cache line. latch, pid, next and epoch change as their comments
 * say. All other fields change under the exclusive latch, if the comment says nothing else. */
struct frame {
	_Atomic uint64_t
		latch; /* bit 0: X, bit 1: waiters, bits 2-15: shared count, bits 16-63: version */
	_Atomic uint64_t pid; /* PID_NONE if the frame is free */
	uint64_t incarnation;
	uint64_t version;
	_Atomic uint64_t rec_lsn; /* the log from this LSN on is needed for the page; LSN_NONE:
				   * none */
	_Atomic uint64_t
		page_lsn; /* the image may leave the node when the log is durable to this LSN */
	_Atomic uint32_t
		next; /* chain of the translation table; under the partition's latch */
	_Atomic uint32_t epoch; /* time of the last access (ScaleStore §4.1) */
	_Atomic uint8_t mode;   /* enum page_mode: the right that guards have */
	uint8_t held; /* enum page_mode: the right that a HOLLOW or LEAVING frame still has */
	_Atomic uint16_t flags; /* FRAME_* */
	_Atomic uint32_t hints; /* 1 + index of its swizzling hints; 0: none (engine/tree) */
};
_Static_assert(sizeof(struct frame) == 64, "a frame's hot state is one cache line");

#define LATCH_EXCLUSIVE    1ull
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
/* Copies bytes out of an image that may be changing. The caller validates its guard afterwards. */
void page_copy_out(void *dst, const void *image_src, size_t len);
/* Moves bytes within an image under its exclusive latch, as memmove does. */
void page_move(void *image_dst, const void *image_src, size_t len);

/* ---- opening --------------------------------------------------------------------- */

#define CACHE_DEFAULT_BYTES (256ull << 20)

struct cache_options {
	uint64_t cache_bytes;  /* size of all images, at least 64 pages; 0: 256 MiB */
	bool read_only;        /* no page may become dirty */
	uint64_t dirty_age_ms; /* write back a page that has been dirty for this time; 0: 30000 */
};

/* Opens a cache without starting a task. Returns 0 or a negative errno. The caller closes it with
 * cache_close. */
int cache_open(struct cache **out, struct store *s, struct log *log, struct coherence *c,
	const struct cache_options *o);
/* Starts the page provider and the checkpointer. Returns 0 or a negative errno. */
int cache_start(struct cache *cache);
/*
 * Starts only the checkpointer, before cache_start. While the node recovers, other nodes have it
 * persist the images that they ship, and its log needs room for them. Returns 0 or a negative
 * errno.
 */
int cache_start_checkpoints(struct cache *cache);
/* Stops all tasks of the cache; idempotent. The checkpointer stops last, because the other tasks
 * may wait for room in the log. Waits. */
void cache_stop(struct cache *cache);
/* Stops all tasks but the checkpointer. The work that remains, such as a last cache_checkpoint, may
 * need room in the log. Waits. */
void cache_stop_work(struct cache *cache);
/* Drops all pages, dirty ones too, and frees the cache. */
void cache_close(struct cache *cache);

struct store *cache_store(struct cache *cache);
struct log *cache_log(struct cache *cache);
/* Returns the pages that the volume has. */
const struct shards *cache_shards(struct cache *cache);
/* Notes the size of another node's store (shards_learn). Returns 0 or a negative errno. */
int cache_shards_learn(struct cache *cache, uint16_t shard, uint64_t page_count);
/* Returns true if other nodes may hold and change pages of the volume. */
bool cache_has_peers(struct cache *cache);
/* Returns the other node that is the page's home. Returns COHERENCE_NO_NODE if this node is the
 * home, or no home is known. */
unsigned cache_home(struct cache *cache, page_id pid);
uint64_t cache_frame_count(struct cache *cache);
struct frame *cache_frame(struct cache *cache, uint32_t index);
uint32_t cache_frame_index(struct cache *cache, const struct frame *f);
/* Returns the most pages that one caller may hold or fetch at once: an eighth of the frames, at
 * most 256. */
unsigned cache_batch_max(struct cache *cache);

/* ---- guards ---------------------------------------------------------------------- */

enum guard_kind { GUARD_NONE = 0, GUARD_OPTIMISTIC, GUARD_SHARED, GUARD_EXCLUSIVE };

struct guard {
	struct frame *frame;
	uint8_t *image;
	uint64_t latch; /* the latch word that was read, for validation */
	enum guard_kind kind;
};

struct page_ref {
	page_id pid;
	uint64_t incarnation; /* expected incarnation; 0: any */
};

/*
 * Latch the page, and fetch it first if it is missing. If the stored incarnation is older than
 * `incarnation`, the page is zeros (invariant 8). On error no latch is held. Return:
 *
 * - 0;
 * - -EIO;
 * - -EUCLEAN: the image is damaged;
 * - -ESTALE: the page has a newer incarnation. The mapping has changed; look it up again;
 * - -EINTR: the task's work is not needed any more (rt_task_unwanted). The page may still arrive
 *   later. Each function that waits for a page of another node may return this.
 *
 * Wait.
 */
int guard_shared(struct cache *cache, page_id pid, uint64_t incarnation, struct guard *g);
int guard_exclusive(
	struct cache *cache, page_id pid, uint64_t incarnation, struct guard *g);
/*
 * Gets the right to change the page, and holds nothing afterwards. This does not count as a use of
 * the page. If the frame had the image and lacked only the right, optimistic reads of it stay
 * valid. Returns as guard_exclusive. Waits.
 */
int guard_own(struct cache *cache, page_id pid, uint64_t incarnation);
/*
 * Work as guard_shared and guard_exclusive, for a caller whose own end the page's holder may wait
 * for. Return -EAGAIN as soon as `stands` returns false. `stands` must not wait; no latch is held
 * during the call. It is called only where a kernel caches pages: elsewhere no such circle exists.
 * Wait.
 */
typedef bool cache_stands(void *arg);
int guard_shared_while(struct cache *cache, page_id pid, uint64_t incarnation,
	cache_stands *stands, void *arg, struct guard *g);
int guard_exclusive_while(struct cache *cache, page_id pid, uint64_t incarnation,
	cache_stands *stands, void *arg, struct guard *g);
/* Takes an optimistic guard, which holds nothing. `hint` is a frame that probably has the page, or
 * NULL. Waits while the page is missing or latched exclusively. */
int guard_optimistic(
	struct cache *cache, page_id pid, struct frame *hint, struct guard *g);
/* Works as guard_optimistic, but returns -EAGAIN if the page is missing or latched. Never waits. */
int guard_try_optimistic(
	struct cache *cache, page_id pid, struct frame *hint, struct guard *g);
/* Returns the LSN to which the log must be durable before other nodes may learn the image's last
 * change. The guard must stand when this has returned. Never waits. */
static inline lsn_t guard_lsn(const struct guard *g)
{
	return atomic_load_explicit(&g->frame->page_lsn, memory_order_relaxed);
}
/* Returns true if the page is in the cache and may be read. The answer may be outdated. Never
 * waits. */
bool cache_is_here(struct cache *cache, page_id pid);
/* Returns true if everything read since the guard was taken is valid. Never waits. */
static inline bool guard_valid(const struct guard *g);
/* Latch the page if it is in the cache. Return -EAGAIN if it is missing, latched or of another
 * incarnation. Never wait. */
int guard_try_shared(
	struct cache *cache, page_id pid, uint64_t incarnation, struct guard *g);
int guard_try_exclusive(
	struct cache *cache, page_id pid, uint64_t incarnation, struct guard *g);
/* Turns an optimistic guard into an exclusive one, if it is still valid. If not, returns -EAGAIN,
 * and the guard is released. Never waits. */
int guard_try_upgrade(struct cache *cache, struct guard *g);
/*
 * Latch the page exclusively without reading its image.
 *
 * - guard_fresh: the page was just allocated with this incarnation. Its image is zeros, version 0.
 * - guard_fill: the same, but the caller fills the whole page and releases it dirty.
 * - guard_overwrite: the caller fills a page that has an image. The version continues.
 *
 * A caller that gives up releases the guard. An image that did not exist before is then dropped.
 * Return -ESTALE as guard_exclusive does. Wait for a frame or a descriptor.
 */
int guard_fresh(struct cache *cache, page_id pid, uint64_t incarnation, struct guard *g);
int guard_fill(struct cache *cache, page_id pid, uint64_t incarnation, struct guard *g);
int guard_overwrite(
	struct cache *cache, page_id pid, uint64_t incarnation, struct guard *g);

/* Returns true if the image has passed the tree's check since it was loaded. Never waits. */
static inline bool guard_checked(const struct guard *g);
/* Notes that the image has passed the tree's check, or needs none. Never waits. */
void guard_mark_checked(const struct guard *g);
/* Notes that the page is file data, whose changes are not logged as ranges. The guard is
 * exclusive. Never waits. */
void guard_mark_data(const struct guard *g);

/* Releases a guard of any kind; does nothing for GUARD_NONE. Never waits. */
void guard_release(struct cache *cache, struct guard *g);
/*
 * Tells the cache that the reads through a valid optimistic guard are done. A page that came from
 * another node may then be given away again. Guards of the other kinds do that when they are
 * released. Never waits.
 */
static inline void guard_used(struct cache *cache, const struct guard *g);
/*
 * Copies `len` bytes into a file data page, `from` bytes behind its start. All bytes of files that
 * change in place go through here: overwrites, fills, and write-backs of mappings. The guard is
 * exclusive; the caller ends it with guard_release_dirty. `bytes` must not overlap the page. Never
 * waits.
 */
void guard_store(const struct guard *g, unsigned from, const void *bytes, size_t len);
/* Releases an exclusive guard of a file data page that was changed. Increments the version and
 * marks the page dirty. `unpublished`: no extent names the page yet (FRAME_UNPUBLISHED). */
void guard_release_dirty(struct cache *cache, struct guard *g, bool unpublished);

/*
 * Fetch all pages into the cache with their misses in flight together, and hold nothing at the end.
 * At most cache_batch_max pages. The second function also gets the right to change the pages.
 * Return 0 or the first error. Wait.
 */
int cache_fetch(struct cache *cache, const struct page_ref *refs, unsigned count);
int cache_fetch_exclusive(
	struct cache *cache, const struct page_ref *refs, unsigned count);
/* Fetches one page to be read. If a node that is away would have to be waited for, waits for a
 * moment only. So the page may not be here afterwards (cache_is_here). Returns 0 or an error as
 * guard_shared does. Waits. */
int cache_fetch_once(struct cache *cache, page_id pid);
/*
 * Keeps a page from other nodes until `until_ns` (rt_now_ns), while this node may change it. 0 ends
 * that. A request of another node waits at most CACHE_KEEP_NS for it. The note may be lost. Never
 * waits.
 */
#define CACHE_KEEP_NS 100000000ull
void cache_keep(struct cache *cache, page_id pid, uint64_t until_ns);
/* Returns true if another node was refused the page because of cache_keep. That node tries again
 * soon. Never waits. */
bool cache_keep_refused(struct cache *cache, page_id pid);
/* Work as cache_fetch, for a caller that can do without the pages. Return -EHOSTUNREACH instead of
 * waiting for a node that is away. */
int cache_fetch_near(struct cache *cache, const struct page_ref *refs, unsigned count);
int cache_fetch_reached(struct cache *cache, const struct page_ref *refs, unsigned count);
/*
 * Gets the right to change pages in a row, in one round of messages, if other nodes must be asked
 * for several of them. `fresh`: the pages were just allocated with this incarnation; guard_fill or
 * guard_fresh follows. Best effort: those guards get what is missing. Waits; call it with nothing
 * held.
 */
void cache_claim(struct cache *cache, page_id pid, uint64_t incarnation, unsigned count,
	bool fresh);
/* Returns true if another node might have to be asked before the page may be changed here. The
 * answer may be outdated. Never waits. */
bool cache_asks_to_own(struct cache *cache, const struct page_ref *ref);
/*
 * Latches all pages shared. Fetches missing pages while it holds no latch. If pages were lost
 * meanwhile, starts over after growing pauses. On error no latch is held. `scan`: a sequential
 * reader uses them, as cache_prefetch says. Waits.
 */
int guard_shared_batch(struct cache *cache, const struct page_ref *refs, unsigned count,
	bool scan, struct guard *guards);
/* Has a background task fetch the pages. Drops the request if too many requests wait already.
 * `scan`: a sequential reader will use them, so they are unlikely to be used again soon (LeanStore
 * §IV-I, hinting). They leave the cache before other pages, and do not make those old, until a
 * reader of another kind uses them. Never waits. */
void cache_prefetch(
	struct cache *cache, const struct page_ref *refs, unsigned count, bool scan);

/* ---- for simulations ----------------------------------------------------------------- */

enum cache_change {
	CACHE_CHANGED,     /* without a log record: file data */
	CACHE_LOGGED,      /* with a log record of the changed bytes */
	CACHE_LOGGED_FULL, /* with a log record of the full image */
	CACHE_PUBLISHED,   /* an extent names the page from now on; the page has not changed */
	CACHE_UNMADE,      /* no extent will name the page: it is zeros again */
};

/*
 * Called after each change, while the page is still latched. `until`: the change may reach another
 * node or a store when the log is durable to this LSN; LSN_NONE: at once. Never waits. Only tests
 * of several nodes set it; elsewhere it is NULL.
 */
extern void (*cache_watch)(
	struct cache *cache, struct frame *f, enum cache_change what, lsn_t until);

static inline void cache_watched(
	struct cache *cache, struct frame *f, enum cache_change what, lsn_t until)
{
	if (unlikely(cache_watch))
		cache_watch(cache, f, what, until);
}

/* Internal to the cache: called by guard_used. */
void frame_used_slow(struct cache *cache, struct frame *f);

static inline void guard_used(struct cache *cache, const struct guard *g)
{
	if (unlikely(atomic_load_explicit(&g->frame->flags, memory_order_relaxed) &
		     FRAME_ARRIVED))
		frame_used_slow(cache, g->frame);
}

static inline bool guard_checked(const struct guard *g)
{
	return atomic_load_explicit(&g->frame->flags, memory_order_relaxed) & FRAME_CHECKED;
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
 * Bracket the filling of pages that are published later. Such pages cannot be evicted, so all
 * callers together may hold only a quarter of the cache. pages <= cache_fill_max. Call
 * cache_fill_begin before the first guard_fresh, with nothing held. cache_fill_begin waits.
 */
unsigned cache_fill_max(struct cache *cache);
void cache_fill_begin(struct cache *cache, unsigned pages);
void cache_fill_end(struct cache *cache, unsigned pages);

/* Marks pages as published: the extents that name them are committed. The pages may be written when
 * the log is durable to `lsn`. Missing or newer pages are skipped. Waits. */
void cache_publish(
	struct cache *cache, const struct page_ref *refs, unsigned count, lsn_t lsn);
/* Drops freed pages, dirty ones too, if they still have this incarnation. Waits. */
void cache_discard(struct cache *cache, const struct page_ref *refs, unsigned count);
/* Tells other nodes, in the background, that pages in a row are freed. They drop what they share of
 * this incarnation and earlier ones, or may miss it. Never waits. */
void cache_freed(
	struct cache *cache, page_id pid, uint64_t incarnation, unsigned count);

/* ---- what this node's kernel has of pages (kcached.c) ------------------------------- */

#define KCACHE_BLOCK      (1u << 0) /* a page of a file */
#define KCACHE_ATTRIBUTES (1u << 1) /* attributes of inodes whose items are in the leaf */
#define KCACHE_NAMES      (1u << 2) /* names whose keys are in the leaf, and names that are
				     * absent from it */
#define KCACHE_FILES      (1u << 3) /* pages of files, found by sizes and extents in the leaf */
#define KCACHE_STORES                                                                    \
	(1u << 4) /* with BLOCK: the kernel may change it, and reports the change when told to
		   * drop it */
#define KCACHE_COPY                                                                      \
	(1u << 5) /* with BLOCK: the kernel may change it, and the node's image stays as it is */
#define KCACHE_ALL 0x3fu

/* A kernel copy that is to be dropped. */
struct cache_kcached {
	page_id pid;
	unsigned kinds;
	uint64_t ino, block; /* for KCACHE_BLOCK */
	const void *image;   /* the image of the leaf; not with KCACHE_BLOCK alone */
	void *drop;          /* for cache_drop_anew */
};

struct cache_kernel_ops {
	/*
	 * Drops the kernel copy. Afterwards the kernel has nothing of it, including anything
	 * kernel-cached earlier. Changes that the kernel stored have come through cache_stores.
	 * Waits, but for no page that another node holds. Returns false if cache_drop_anew has
	 * returned true for it meanwhile: another task drops the copy.
	 */
	bool (*drop)(void *owner, const struct cache_kcached *what);
	/* Returns false if the kernel has no page of this file. No READ that began before the call
	 * is then answered with a page that was kernel-cached earlier. Never waits. */
	bool (*has_pages)(void *owner, uint64_t ino);
};

/* Identifies a kernel copy, for cache_kcopy_stands. */
struct cache_kcopy {
	uint32_t frame, generation;
};

struct kernel_counters {
	_Atomic uint64_t kernel_drops; /* drops of kernel-cached pages */
	/* counted by fs/ops: inodes that the kernel may have cached; of these, dropped for other
	 * nodes */
	_Atomic uint64_t kernel_inodes, kernel_inodes_dropped;
};

/*
 * Allows guards to be kernel-cached. From now on the cache drops kernel copies before it gives a
 * page up. Call it at most once for a cache, before anything is kernel-cached. Not for a volume of
 * one node. Returns 0 or a negative errno.
 */
int cache_kernel_start(
	struct cache *cache, const struct cache_kernel_ops *ops, void *owner);
/* Allows KCACHE_STORES too, so that guard_shared_while and the like call `stands`.
 * cache_kernel_stop ends this. Returns 0 or a negative errno. */
int cache_stores_start(struct cache *cache);
/*
 * For a call of `drop` that may wait for long. Another task calls `drop` anew for the same copy.
 * What this call does from now on no longer counts. Call it once at most for each call of `drop`,
 * before that returns. Returns false if the kernel is going: the call goes on. Never waits.
 */
bool cache_drop_anew(struct cache *cache, const struct cache_kcached *what);
/* Ends kernel caching: the kernel has nothing any more. */
void cache_kernel_stop(struct cache *cache);
/* Returns the counters, or NULL if there is no kernel. */
struct kernel_counters *cache_kernel_counters(struct cache *cache);
/*
 * Notes that the kernel may cache this of the page from now on. The guard is shared or exclusive;
 * KCACHE_STORES needs an exclusive one. `ino` and `block` say where a KCACHE_BLOCK is. `out` may be
 * NULL. Returns 0. Returns -EAGAIN if the page is being given up: release the guard and wait a
 * little.
 */
int guard_kcache(struct cache *cache, const struct guard *g, unsigned kinds, uint64_t ino,
	uint64_t block, struct cache_kcopy *out);
/*
 * Returns true if the kernel may already cache all these kinds of the page, and the optimistic
 * guard is still valid after use. *out is then set as by guard_kcache. If it returns false, use
 * guard_kcache.
 */
bool guard_kcached(struct cache *cache, const struct guard *g, unsigned kinds,
	struct cache_kcopy *out);
/*
 * Takes the bytes that the kernel stored in [from, from + len) of a file's block with
 * KCACHE_STORES, also while the copy is being dropped. Returns 0, or -ENOENT if the page is not the
 * file's any more. Waits for a latch only.
 */
int cache_stores(struct cache *cache, uint64_t ino, uint64_t block, unsigned from,
	const void *bytes, size_t len);
/* Copies to `out` the page that the kernel was given of a file's block with KCACHE_COPY, also while
 * the copy is being dropped. Returns false if there is none. Never waits. */
bool cache_copied(struct cache *cache, uint64_t ino, uint64_t block, void *out);
/* Returns true if the kernel copy has not been dropped and is not being dropped. */
bool cache_kcopy_stands(struct cache *cache, const struct cache_kcopy *e);
/* Gives the page of `to` the kernel copies of `from`, after items have moved between the leaves.
 * Both are latched exclusively. */
void guard_kcache_like(
	struct cache *cache, const struct guard *from, const struct guard *to);

/* ---- durability ------------------------------------------------------------------ */

/* Up to this many dirty bytes, fsync writes through the log. */
#define CACHE_SYNC_LOGGED_MAX (64u << 10)

/*
 * Makes the present images of the pages and the log up to `lsn` durable. Small sets take one log
 * write and one flush; larger ones are written in place. Clean and missing pages cost nothing.
 * Returns 0 or -EIO. Waits.
 */
int cache_sync(
	struct cache *cache, const struct page_ref *refs, unsigned count, lsn_t lsn);
/* Returns when the batches of write-back that are under way at the call have ended. Descriptors of
 * the images that they have written are in the store's table then. Waits; call it with nothing
 * held. */
void cache_batches_await(struct cache *cache);
/* Writes the page's image back if it is dirty here. Returns 0 or a negative errno. Waits; call it
 * with nothing held. */
int cache_page_persist(struct cache *cache, page_id pid);
/*
 * Writes all dirty and owed images that the log lacks into the log, durably, so that they survive
 * the loss of this node's memory. Returns 0, -ENOBUFS if they do not fit, or -EBUSY if some are
 * being requested from other nodes. Waits for the device only, never for room or other nodes.
 */
int cache_log_dirty(struct cache *cache);
/* Ends all waits for other nodes (coherence_give_up): for homes that are away, and for room in the
 * log that depends on them. Such waits fail with -EIO. */
void cache_give_up(struct cache *cache);
/*
 * Ships a page that all nodes need to its home, and downgrades it to shared, within some seconds.
 * Does nothing if this node is the home. If more than a few pages are in the list, the others
 * are downgraded like any page (docs/nodes/driver.md, "Idle downgrade"). Never waits.
 */
void cache_downgrade_soon(struct cache *cache, page_id pid);
/* Works as cache_downgrade_soon, for a page that fewer nodes need. Uses at most half of the list.
 * Never waits. */
void cache_downgrade_soon_spare(struct cache *c, page_id pid);
/* Starts to write the dirty ones of these pages in the background. */
void cache_write_behind(struct cache *cache, const struct page_ref *refs, unsigned count);
/*
 * Writes back all dirty pages except unpublished ones, flushes, writes the table and advances the
 * log's tail. If nothing changes meanwhile, the log is empty afterwards. Returns 0 or a negative
 * errno. Waits.
 */
int cache_checkpoint(struct cache *cache);
/*
 * Saves dirty pages after cache_stop, where cache_checkpoint has failed. Writes this node's own
 * pages back from the log's reserve, as far as possible. Then logs other pages as far as there is
 * room. Returns the number of file data pages whose present image may be in neither the log nor a
 * store. Waits for no other node.
 */
uint64_t cache_save(struct cache *cache);
/*
 * Returns the negative errno with which this node's store refused the last write-back, or 0 if it
 * takes writes. The value -ENOSPC stays until the store has taken a page that it had no image of.
 * It may take other pages meanwhile.
 */
int cache_write_error(struct cache *cache);
/* Returns true if the store was full at the last try, at most some seconds ago: new pages are
 * refused. */
bool cache_store_full(struct cache *cache);
/* Returns true if this node owes an image to another node. */
bool cache_owes(struct cache *cache);
/* Returns true if a page is dirty or owed. Other tasks may change that meanwhile. */
bool cache_keeps(struct cache *cache);

/*
 * Gives up the pages of other stores, and has their homes persist the owed images, as far as
 * possible soon. Call it after cache_stop_work, when nothing changes any more. Returns one bit for
 * each of the first 64 shards of which pages remain. Waits.
 */
uint64_t cache_give_back(struct cache *cache);
/* Works as cache_checkpoint, and has owed images persisted too. Each change of other nodes' pages
 * that is dirty here at the call is persisted at the return. Waits, also for homes that are away.
 */
int cache_persist(struct cache *cache);

/* ---- counters -------------------------------------------------------------------- */

struct cache_counters {
	_Atomic uint64_t hits, misses, fetch_requests, prefetches, evictions,
		evicted_dirty, swept, /* frames inspected to evict some of them */
		stays; /* pages that other nodes had to wait for while they were in use
		        * (min_hold.c) */
	_Atomic uint64_t pages_written, write_batches,
		write_failures; /* batches that this or another store refused */
	_Atomic uint64_t sync_logged, sync_in_place,
		checkpoints;
	_Atomic uint64_t latch_waits, latch_restarts, frame_waits;
};
struct cache_counters *cache_counters(struct cache *cache);
uint64_t cache_dirty_pages(struct cache *cache);
uint64_t cache_free_frames(struct cache *cache);
/* For people: a count of each shard's pages in the frames. Each frame is read once while other
 * tasks go on, so the sums are approximate. */
struct cache_census {
	uint64_t exclusive,
		shared; /* pages that this node may change; pages that it may only read */
	uint64_t dirty; /* of these, pages newer than their store's image */
	uint64_t owed;  /* images kept, without a right, until their home has persisted them */
};
void cache_census(struct cache *cache, struct cache_census of[SHARDS_MAX]);

#endif
