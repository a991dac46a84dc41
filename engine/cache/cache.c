/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cache as a whole: its memory, its background tasks, access to images.
 *
 * All memory is allocated at open (invariant 10): images, one cache line per frame, the translation
 * table, bounce buffers, queues. Frames keep their place while the cache is open. Images are not
 * registered for I/O: that would make a whole, mostly empty cache resident at once. Bulk writes go
 * through the bounce buffers, which are registered.
 */
#include "engine/cache/cache_internal.h"

#define DEFAULT_DIRTY_AGE_MS 30000
#define MIN_FRAMES           64
#define MAX_FRAMES           (1u << 31)

/* ---- images ------------------------------------------------------------------------
 * Optimistic readers copy while an exclusive holder may write. Under ThreadSanitizer the
 * copies are made of relaxed atomics; elsewhere the compiler's memcpy does the same job:
 * the bytes may be torn, and are used only after validation.
 */
#if defined(__SANITIZE_THREAD__)
void page_copy_out(void *dst, const void *src, size_t len)
{
	for (size_t i = 0; i < len; i++)
		((uint8_t *)dst)[i] =
			__atomic_load_n((const uint8_t *)src + i, __ATOMIC_RELAXED);
}

void page_store(void *dst, const void *src, size_t len)
{
	for (size_t i = 0; i < len; i++)
		__atomic_store_n(
			(uint8_t *)dst + i, ((const uint8_t *)src)[i], __ATOMIC_RELAXED);
}

void page_move(void *dst, const void *src, size_t len)
{
	uint8_t copy[PAGE_SIZE];

	WEFT_ASSERT(len <= sizeof(copy));
	page_copy_out(copy, src, len);
	page_store(dst, copy, len);
}
#else
void page_copy_out(void *dst, const void *src, size_t len)
{
	memcpy(dst, src, len);
	atomic_signal_fence(memory_order_seq_cst);
}

void page_store(void *dst, const void *src, size_t len)
{
	memcpy(dst, src, len);
}

void page_move(void *dst, const void *src, size_t len)
{
	memmove(dst, src, len);
}
#endif

void (*cache_watch)(
	struct cache *c, struct frame *f, enum cache_change what, lsn_t until);

/* ---- open and close -------------------------------------------------------------- */

void *images_alloc(struct cache *c, unsigned area, size_t size_bytes)
{
	const struct coherence_ops *ops = c->coherence->ops;
	void *images;

	if (!ops->memory)
		return rt_alloc_pages(size_bytes);
	return ops->memory(c->coherence, area, size_bytes, &images) ? NULL : images;
}

/* The provider's may be gone by now, with its network. */
void images_free(struct cache *c, void *images, size_t size_bytes)
{
	if (images && !c->coherence->ops->memory)
		rt_free_pages(images, size_bytes);
}

static int open_frames(struct cache *c)
{
	c->frames.frame =
		rt_alloc_pages((size_t)c->frames.count * sizeof(*c->frames.frame));
	c->frames.image = images_alloc(c, 0, (size_t)c->frames.count * PAGE_SIZE);
	c->provider.free.index =
		rt_alloc_pages((size_t)c->frames.count * sizeof(*c->provider.free.index));
	if (!c->frames.frame || !c->frames.image || !c->provider.free.index)
		return -ENOMEM;
	for (uint32_t i = 0; i < c->frames.count; i++) {
		atomic_store_explicit(
			&c->frames.frame[i].pid, PID_NONE, memory_order_relaxed);
		/* low indices first, so that memory is touched only as the cache fills */
		c->provider.free.index[c->frames.count - 1 - i] = i;
	}
	atomic_store_explicit(
		&c->provider.free.count, c->frames.count, memory_order_relaxed);
	return 0;
}

static void set_bounds(struct cache *c)
{
	c->frames.batch_max = MIN(FETCH_MAX, c->frames.count / 8);
	c->checkpoint.fill_max = MAX(c->frames.batch_max, c->frames.count / 4);
	c->provider.low_water = MAX(4u, MIN(c->frames.count / 64, 4096u));
	c->provider.high_water = 2 * c->provider.low_water;
}

static int open_queues(struct cache *c)
{
	int rc;

	if (c->options.read_only)
		return 0;
	c->provider.victims = rt_alloc(1024 * sizeof(*c->provider.victims));
	rc = writeback_open(c);
	if (rc || !c->provider.victims)
		return rc ? rc : -ENOMEM;
	c->checkpoint.refs = rt_alloc(c->writeback.pages * sizeof(*c->checkpoint.refs));
	c->flusher.refs = rt_alloc(c->writeback.pages * sizeof(*c->flusher.refs));
	return c->checkpoint.refs && c->flusher.refs ? 0 : -ENOMEM;
}

/* This store's size, in the provider's list or in one of its own. */
static int open_shards(struct cache *c)
{
	const struct disk_superblock *sb = store_superblock(c->store);

	return shards_set(c->coherence->shards ? c->coherence->shards : &c->alone,
		sb->shard, sb->page_count);
}

int cache_open(struct cache **out, struct store *s, struct log *log, struct coherence *co,
	const struct cache_options *o)
{
	struct cache *c = rt_alloc(sizeof(*c));
	uint64_t frames;
	int rc;

	if (!c)
		return -ENOMEM;
	c->store = s;
	c->log = log;
	c->coherence = co;
	c->options = *o;
	if (!c->options.dirty_age_ms)
		c->options.dirty_age_ms = DEFAULT_DIRTY_AGE_MS;
	if (!c->options.cache_bytes)
		c->options.cache_bytes = CACHE_DEFAULT_BYTES;
	frames = MAX(c->options.cache_bytes / PAGE_SIZE, (uint64_t)MIN_FRAMES);
	c->frames.count = (uint32_t)MIN(frames, (uint64_t)MAX_FRAMES);
	set_bounds(c);
	rc = open_shards(c);
	if (!rc)
		rc = open_frames(c);
	if (!rc)
		rc = table_open(c);
	if (!rc)
		rc = open_queues(c);
	if (!rc)
		rc = give_open(c);
	if (!rc)
		rc = queue_open(&c->fetch.queue, PREFETCH_SLOTS);
	if (!rc)
		rc = queue_open(&c->writeback.behind, BEHIND_SLOTS);
	if (rc) {
		cache_close(c);
		return rc;
	}
	*out = c;
	return 0;
}

int cache_start_checkpoints(struct cache *c)
{
	if (c->options.read_only || c->checkpoint.task)
		return 0;
	atomic_store_explicit(&c->checkpoint.end, false, memory_order_relaxed);
	return rt_task_spawn(&c->checkpoint.task, "weft-checkpt", checkpoint_main, c);
}

int cache_start(struct cache *c)
{
	int rc = 0;

	WEFT_ASSERT(!c->started);
	c->started = true;
	atomic_store_explicit(&c->stopping, false, memory_order_relaxed);
	for (unsigned i = 0; i < PREFETCH_TASKS && !rc; i++)
		rc = rt_task_spawn(&c->fetch.task[i], "weft-ahead", prefetch_main, c);
	if (!rc)
		rc = rt_task_spawn(&c->provider.task, "weft-provider", provider_main, c);
	if (!rc)
		rc = cache_start_checkpoints(c);
	if (!rc && !c->options.read_only)
		rc = rt_task_spawn(&c->flusher.task, "weft-flusher", flusher_main, c);
	for (unsigned i = 0; i < BEHIND_TASKS && !rc && !c->options.read_only; i++)
		rc = rt_task_spawn(
			&c->writeback.behind_task[i], "weft-behind", behind_main, c);
	if (rc)
		cache_stop(c);
	return rc;
}

static void stop_task(struct rt_task **task, _Atomic uint32_t *word)
{
	if (!*task)
		return;
	atomic_fetch_add_explicit(word, 1, memory_order_release);
	rt_wake(word, INT32_MAX);
	rt_task_join(*task);
	*task = NULL;
}

void cache_stop_work(struct cache *c)
{
	if (!c->started)
		return;
	atomic_store_explicit(&c->stopping, true, memory_order_release);
	for (unsigned i = 0; i < PREFETCH_TASKS; i++)
		stop_task(&c->fetch.task[i], &c->fetch.queue.word);
	stop_task(&c->provider.task, &c->provider.word);
	stop_task(&c->flusher.task, &c->flusher.word);
	for (unsigned i = 0; i < BEHIND_TASKS; i++)
		stop_task(&c->writeback.behind_task[i], &c->writeback.behind.word);
	c->started = false;
}

void cache_stop(struct cache *c)
{
	cache_stop_work(c);
	if (!c->checkpoint.task)
		return;
	atomic_store_explicit(&c->checkpoint.end, true, memory_order_release);
	stop_task(&c->checkpoint.task, log_pressure_word(c->log));
}

void cache_close(struct cache *c)
{
	if (!c)
		return;
	cache_stop(c);
	writeback_close(c);
	kernel_close(c);
	give_close(c);
	queue_close(&c->fetch.queue);
	queue_close(&c->writeback.behind);
	table_close(c);
	rt_free(c->provider.victims);
	rt_free(c->checkpoint.refs);
	rt_free(c->flusher.refs);
	if (c->provider.free.index)
		rt_free_pages(c->provider.free.index,
			(size_t)c->frames.count * sizeof(*c->provider.free.index));
	images_free(c, c->frames.image, (size_t)c->frames.count * PAGE_SIZE);
	if (c->frames.frame)
		rt_free_pages(c->frames.frame,
			(size_t)c->frames.count * sizeof(*c->frames.frame));
	rt_free(c);
}

/* ---- what others ask ------------------------------------------------------------- */

struct store *cache_store(struct cache *c)
{
	return c->store;
}

struct log *cache_log(struct cache *c)
{
	return c->log;
}

int cache_shards_learn(struct cache *c, uint16_t shard, uint64_t page_count)
{
	return c->coherence->shards
		       ? shards_learn(c->coherence->shards, shard, page_count)
		       : -EINVAL;
}

const struct shards *cache_shards(struct cache *c)
{
	return c->coherence->shards ? c->coherence->shards : &c->alone;
}

bool cache_has_peers(struct cache *c)
{
	return c->coherence->shards != NULL;
}

unsigned cache_home(struct cache *c, page_id pid)
{
	const struct coherence *from = c->coherence;

	return from->ops->home && !coherence_home_here(from, pid)
		       ? from->ops->home(from, pid)
		       : COHERENCE_NO_NODE;
}

uint64_t cache_frame_count(struct cache *c)
{
	return c->frames.count;
}

struct frame *cache_frame(struct cache *c, uint32_t index)
{
	WEFT_ASSERT(index < c->frames.count);
	return &c->frames.frame[index];
}

uint32_t cache_frame_index(struct cache *c, const struct frame *f)
{
	return (uint32_t)(f - c->frames.frame);
}

unsigned cache_batch_max(struct cache *c)
{
	return c->frames.batch_max;
}

unsigned cache_fill_max(struct cache *c)
{
	return c->checkpoint.fill_max;
}

struct cache_counters *cache_counters(struct cache *c)
{
	uint64_t hits = 0;

	for (unsigned i = 0; i < COUNTER_STRIPES; i++)
		hits += atomic_load_explicit(&c->stripe[i].hits, memory_order_relaxed);
	atomic_store_explicit(&c->counters.hits, hits, memory_order_relaxed);
	return &c->counters;
}

uint64_t cache_dirty_pages(struct cache *c)
{
	return atomic_load_explicit(&c->writeback.dirty, memory_order_relaxed);
}

uint64_t cache_free_frames(struct cache *c)
{
	return atomic_load_explicit(&c->provider.free.count, memory_order_relaxed);
}

void cache_census(struct cache *c, struct cache_census of[SHARDS_MAX])
{
	memset(of, 0, SHARDS_MAX * sizeof(*of));
	for (uint32_t i = 0; i < c->frames.count; i++) {
		struct frame *f = cache_frame(c, i);
		page_id pid = atomic_load_explicit(&f->pid, memory_order_relaxed);
		unsigned flags = atomic_load_explicit(&f->flags, memory_order_relaxed);
		unsigned mode = atomic_load_explicit(&f->mode, memory_order_relaxed);
		struct cache_census *n;

		if (pid == PID_NONE || pid_shard(pid) >= SHARDS_MAX)
			continue;
		n = &of[pid_shard(pid)];
		n->exclusive += mode == PAGE_EXCLUSIVE;
		n->shared += mode == PAGE_SHARED;
		n->dirty += mode != PAGE_INVALID && (flags & FRAME_DIRTY);
	}
	/* their frames are in no table, and do not say which page they have */
	rt_mutex_lock(&c->revoke.lock);
	for (uint32_t i = 0; i < c->revoke.owed_count; i++)
		if (pid_shard(c->revoke.owed[i].pid) < SHARDS_MAX)
			of[pid_shard(c->revoke.owed[i].pid)].owed++;
	rt_mutex_unlock(&c->revoke.lock);
}
