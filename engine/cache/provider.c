/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The page provider keeps free frames between two watermarks. (ScaleStore §4; it has the role of
 * the cooling stage of LeanStore §III-B.) Each access stamps a frame with the current epoch. A
 * sample of frames estimates the stamp below which the coldest part lies (§4.2). A clock hand
 * collects frames below it: clean ones at once, dirty ones after a batched write-back.
 *
 * The background task does this ahead of need. A task that finds no free frame does a sweep itself.
 * So tools work without background tasks, and nobody waits for a sleeping provider.
 */
#include "engine/cache/cache_internal.h"

#include <stdlib.h>

#define SAMPLE_FRAMES 128
#define COLD_PERCENT  15   /* of the sample: so many frames are taken by a sweep */
#define SWEEP_VICTIMS 1024 /* dirty pages of one sweep, at most */
#define LEFT_MIN      8u   /* frames that remain for pages that are not here */
#define RETRY_NS      (20 * 1000000ull)
#define SPARE_AGE     2u    /* epochs */
#define DROP_NS       50000 /* interval of looks whether the kernel has ended its drops */

void frame_mark_dirty(struct cache *c, struct frame *f, uint16_t more_flags)
{
	uint32_t was = atomic_fetch_or_explicit(
		&f->flags, (uint16_t)(FRAME_DIRTY | more_flags), memory_order_relaxed);

	if (was & FRAME_DIRTY)
		return;
	if (was & FRAME_AGED) /* while it was clean */
		frame_clear(f, FRAME_AGED);
	if (atomic_fetch_add_explicit(&c->writeback.dirty, 1, memory_order_relaxed) == 0)
		flusher_wake(c);
}

void frame_mark_clean(struct cache *c, struct frame *f)
{
	uint32_t was = atomic_fetch_and_explicit(&f->flags,
		(uint16_t) ~(FRAME_DIRTY | FRAME_UNPUBLISHED | FRAME_AGED | FRAME_LOGGED),
		memory_order_relaxed);

	if (was & FRAME_DIRTY)
		atomic_fetch_sub_explicit(&c->writeback.dirty, 1, memory_order_relaxed);
}

void frame_renew(struct cache *c, struct frame *f, uint64_t incarnation)
{
	frame_mark_clean(c, f);
	frame_clear(f,
		FRAME_DATA | FRAME_READ | FRAME_PERSISTED | FRAME_CHECKED | FRAME_HOLLOW);
	frame_set(f, FRAME_NEED_FULL);
	atomic_store_explicit(&f->rec_lsn, LSN_NONE, memory_order_relaxed);
	atomic_store_explicit(&f->page_lsn, LSN_NONE, memory_order_relaxed);
	atomic_store_explicit(
		&c->revoke.ship_lsn[f - c->frames.frame], LSN_NONE, memory_order_relaxed);
	f->incarnation = incarnation;
	f->version = 0;
}

void frame_reinit(struct cache *c, struct frame *f, uint64_t incarnation)
{
	static const uint8_t zeros[PAGE_SIZE];

	frame_renew(c, f, incarnation);
	page_store(frame_image(c, f), zeros, PAGE_SIZE);
}

/* ---- free frames ------------------------------------------------------------- */

unsigned frames_take(struct cache *c, uint32_t *index, unsigned max)
{
	const uint32_t *top;
	uint32_t left;
	unsigned n;

	rt_mutex_lock(&c->provider.free.lock);
	left = atomic_load_explicit(&c->provider.free.count, memory_order_relaxed);
	n = MIN(max, left);
	left -= n;
	top = &c->provider.free.index[left];
	/* the list is a stack; those of one sweep came in the order of their places */
	for (unsigned i = 0; i < n; i++)
		index[i] = top[0] < top[n - 1] ? top[i] : top[n - 1 - i];
	atomic_store_explicit(&c->provider.free.count, left, memory_order_relaxed);
	rt_mutex_unlock(&c->provider.free.lock);
	if (n && left < c->provider.low_water && c->started)
		provider_wake(c);
	return n;
}

void frames_put_back(struct cache *c, const uint32_t *index, unsigned count)
{
	uint32_t n;

	if (!count)
		return;
	rt_mutex_lock(&c->provider.free.lock);
	n = atomic_load_explicit(&c->provider.free.count, memory_order_relaxed);
	for (unsigned i = count; i-- > 0;) /* the first of them is taken first again */
		c->provider.free.index[n++] = index[i];
	atomic_store_explicit(&c->provider.free.count, n, memory_order_relaxed);
	rt_mutex_unlock(&c->provider.free.lock);
	if (count == 1)
		rt_cond_signal(&c->provider.free.available);
	else
		rt_cond_broadcast(&c->provider.free.available);
}

void frame_free(struct cache *c, struct frame *f)
{
	table_remove(c, f);
	frame_set_mode(f, PAGE_INVALID);
	atomic_store_explicit(&f->flags, 0, memory_order_relaxed);
	frame_put(c, f);
}

/*
 * Returns true if the page may go though its home is away and cannot give it again. Data of files
 * may go. The tree's pages may not: without one of them names are not found, also those of files
 * elsewhere. Zeros may not: perhaps only this node knows of them.
 */
static bool is_spare(const struct cache *c, const struct frame *f)
{
	uint16_t flags = frame_flags(f);

	return (flags & (FRAME_DATA | FRAME_READ)) &&
	       !(flags & (FRAME_CHECKED | FRAME_HOLLOW)) && f->version &&
	       frame_age(c, f) >= SPARE_AGE;
}

bool frame_drop(struct cache *c, struct frame *f)
{
	page_id pid = atomic_load_explicit(&f->pid, memory_order_relaxed);

	if (c->coherence->ops->release(
		    c->coherence, pid, frame_right(f), f->incarnation, is_spare(c, f))) {
		frame_free(c, f);
		return true;
	}
	if (frame_flags(f) & FRAME_HOLLOW) /* guards have to ask (frame_adapt) */
		frame_set_mode(f, PAGE_INVALID);
	latch_release_exclusive(c, f, true);
	return false;
}

void frame_put(struct cache *c, struct frame *f)
{
	WEFT_ASSERT(atomic_load_explicit(&f->pid, memory_order_relaxed) == PID_NONE);
	latch_release_exclusive(c, f, true);
	frames_put_back(c, &(uint32_t){cache_frame_index(c, f)}, 1);
}

void provider_wake(struct cache *c)
{
	atomic_fetch_add_explicit(&c->provider.word, 1, memory_order_release);
	rt_wake(&c->provider.word, 1);
}

void frame_claim(struct cache *c, struct frame *f, uint64_t incarnation)
{
	f->incarnation = incarnation;
	f->version = 0;
	atomic_store_explicit(&f->flags, FRAME_LOADING, memory_order_relaxed);
	frame_set_mode(f, PAGE_INVALID);
	atomic_store_explicit(&f->rec_lsn, LSN_NONE, memory_order_relaxed);
	atomic_store_explicit(&f->page_lsn, LSN_NONE, memory_order_relaxed);
	atomic_store_explicit(
		&c->revoke.ship_lsn[f - c->frames.frame], LSN_NONE, memory_order_relaxed);
}

/* Nobody else can hold a frame that is in no chain for longer than a failed try. */
void latch_free_frame(struct frame *f)
{
	unsigned spins = 0;
	uint64_t seen;

	rt_awaits(&f->latch);
	while (!latch_try_exclusive(f, &seen))
		rt_spin(&spins);
	rt_awaits(NULL);
}

/* ---- sweeping ------------------------------------------------------------------- */

/* Under sweep_lock: a page that its home, elsewhere, must agree to have back. */
static void away_add(struct cache *c, page_id pid)
{
	if (c->provider.away_count < AWAY_MAX)
		c->provider.away[c->provider.away_count++] = pid;
}

/* Asks for all of them at once (ScaleStore §4.3). The frames that became free by it. */
static unsigned away_evict(struct cache *c)
{
	uint32_t before =
		atomic_load_explicit(&c->provider.free.count, memory_order_relaxed);
	uint32_t after;
	unsigned n = c->provider.away_count;

	if (!n)
		return 0;
	c->provider.away_count = 0;
	c->coherence->ops->evict(c->coherence, c->provider.away, n);
	after = atomic_load_explicit(&c->provider.free.count, memory_order_relaxed);
	n = after > before ? MIN(after - before, n) : 0;
	COUNT(c, evictions, n);
	return n;
}

/* Under sweep_lock: one that the kernel has to drop first. The next round looks again. */
static void dropping_add(struct cache *c, page_id pid)
{
	if (c->provider.dropping_count < DROPPING_MAX)
		c->provider.dropping[c->provider.dropping_count++] = pid;
}

/* Takes a clean, unused frame out of the cache. Returns false if it is not one. */
static bool frame_evict(struct cache *c, struct frame *f)
{
	uint64_t seen;
	page_id pid;

	if (!latch_try_exclusive(f, &seen))
		return false;
	pid = atomic_load_explicit(&f->pid, memory_order_relaxed);
	if (pid == PID_NONE ||
		(frame_flags(f) & (FRAME_DIRTY | FRAME_LOADING | FRAME_WRITING |
					  FRAME_UNPUBLISHED | FRAME_LEAVING))) {
		latch_release_exclusive(c, f, false);
		return false;
	}
	if (!kernel_free(c, f, PAGE_INVALID)) {
		latch_release_exclusive(c, f, false);
		dropping_add(c, pid);
		return false;
	}
	if (!frame_drop(c, f)) {
		away_add(c, pid);
		return false;
	}
	COUNT(c, evictions, 1);
	return true;
}

static int compare_u32(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return x < y ? -1 : x > y;
}

/* How far back in epochs the coldest COLD_PERCENT of the frames lie, by sample. */
static uint32_t cold_age(struct cache *c)
{
	uint32_t age[SAMPLE_FRAMES];

	for (unsigned i = 0; i < SAMPLE_FRAMES; i++) {
		struct frame *f = &c->frames.frame[rt_random() % c->frames.count];

		age[i] = frame_age(c, f);
	}
	qsort(age, SAMPLE_FRAMES, sizeof(age[0]), compare_u32);
	return age[SAMPLE_FRAMES - 1 - SAMPLE_FRAMES * COLD_PERCENT / 100];
}

/* Returns how many of the evictions made room for pages of scans. */
static unsigned evictions_for_scans(struct cache *c, unsigned evicted)
{
	uint32_t loads = atomic_exchange_explicit(
		&c->provider.scan_loads, 0, memory_order_relaxed);
	unsigned n;

	loads = MIN(loads, c->frames.count); /* a cache that fills evicts nothing */
	n = MIN(evicted, loads);
	atomic_fetch_add_explicit(
		&c->provider.scan_loads, loads - n, memory_order_relaxed);
	return n;
}

/*
 * ScaleStore §4.1: the epoch advances with evictions, not with time. Evictions that make room for a
 * scan do not count, or a scan would make all other pages old. The epoch advances also with each
 * look at all frames that finds none. Pages not used since may go then, even if their home is away.
 */
static void advance_epoch(struct cache *c, unsigned evicted)
{
	uint32_t sum = atomic_fetch_add_explicit(&c->provider.epoch_evictions, evicted,
			       memory_order_relaxed) +
		       evicted;

	if (sum < c->frames.count / 10 + 1)
		return;
	atomic_store_explicit(&c->provider.epoch_evictions, 0, memory_order_relaxed);
	atomic_fetch_add_explicit(&c->provider.epoch, 1, memory_order_relaxed);
}

/* Returns true if the kernel has nothing of the page. Otherwise it has the kernel drop the page. */
static bool not_kcached(struct cache *c, struct frame *f, page_id pid)
{
	bool none;
	uint64_t seen;

	if (!kernel_has(c, f))
		return true;
	if (!latch_try_exclusive(f, &seen))
		return false;
	none = atomic_load_explicit(&f->pid, memory_order_relaxed) == pid &&
	       kernel_free(c, f, PAGE_INVALID);
	latch_release_exclusive(c, f, false);
	if (!none)
		dropping_add(c, pid);
	return none;
}

/* Not of a frame that is to be written here first. The frames that became free. */
static unsigned frame_take(struct cache *c, struct frame *f, page_id pid)
{
	if (!(frame_flags(f) & FRAME_DIRTY))
		return frame_evict(c, f);
	if (!coherence_home_here(c->coherence, pid) && not_kcached(c, f, pid))
		away_add(c, pid);
	return 0;
}

/* Evicts the pages that the kernel has dropped for the earlier rounds. */
static unsigned dropped_evict(struct cache *c)
{
	unsigned n = c->provider.dropping_count, evicted = 0;

	c->provider.dropping_count = 0;
	for (unsigned i = 0; i < n; i++) {
		page_id pid = c->provider.dropping[i];
		struct frame *f = table_find(c, pid);

		if (f && kernel_drops(c, f))
			dropping_add(c, pid);
		else if (f && !kernel_has(c, f)) /* else it was read again */
			evicted += frame_take(c, f, pid);
	}
	return evicted + away_evict(c);
}

/*
 * A page of the tree that was used in this epoch goes last (path-aware eviction, DEX §5.3). Others
 * are found by it, and its home may be away by then.
 */
static bool goes_last(const struct cache *c, const struct frame *f)
{
	return (frame_flags(f) & FRAME_CHECKED) && frame_age(c, f) == 0;
}

/*
 * The hand goes round at most once; frames younger than `age` are passed over, and those that go
 * last if `last` is false. The homes of its
 * candidates are asked as soon as the list of these is full. If the hand passed by further ones, it
 * would come to the same place again behind the round. These may be frames that cannot go.
 */
static unsigned sweep_frames(
	struct cache *c, uint32_t age, bool last, unsigned wanted, unsigned *dirty)
{
	unsigned evicted = 0,
		 max_dirty = MIN(SWEEP_VICTIMS, MAX(8u, c->frames.count / 8));
	uint32_t steps;

	*dirty = 0;
	if (log_failed(c->log) || c->options.read_only) /* nothing can be written back */
		max_dirty = 0;
	for (steps = 0;
		steps < c->frames.count && c->provider.dropping_count < DROPPING_MAX &&
		evicted + *dirty + c->provider.dropping_count < wanted;
		steps++) {
		struct frame *f = &c->frames.frame[c->provider.hand];
		struct frame *soon = &c->frames.frame[MIN(
			c->provider.hand + TABLE_AHEAD, c->frames.count - 1)];
		uint32_t flags = frame_flags(f);
		page_id pid = atomic_load_explicit(&f->pid, memory_order_relaxed);

		table_expect(c, atomic_load_explicit(&soon->pid, memory_order_relaxed));
		c->provider.hand = c->provider.hand + 1 == c->frames.count
					   ? 0
					   : c->provider.hand + 1;
		if (pid == PID_NONE || frame_age(c, f) < age || (!last && goes_last(c, f)))
			continue;
		if (!(flags & FRAME_DIRTY) || !coherence_home_here(c->coherence, pid))
			evicted += frame_take(c, f, pid);
		else if (!(flags & (FRAME_UNPUBLISHED | FRAME_WRITING)) &&
			 *dirty < max_dirty)
			c->provider.victims[(*dirty)++] = (struct page_ref){.pid = pid};
		if (c->provider.away_count == AWAY_MAX ||
			evicted + *dirty + c->provider.away_count >= wanted)
			evicted += away_evict(c);
	}
	COUNT(c, swept, steps);
	return evicted + away_evict(c);
}

/*
 * With a log that has failed dirty pages stay. There may be few other frames, fewer than are freed
 * ahead of need. So they go one at a time. Otherwise a task that reads two pages may lose each by
 * the other, for ever.
 */
static unsigned frames_wanted(const struct cache *c)
{
	return log_failed(c->log) ? 1 : c->provider.high_water;
}

/*
 * One round under sweep_lock: evicts, writes dirty pages back and evicts those. Returns the number
 * of frames freed or cleaned. *soon: the next round frees more, as soon as the kernel has dropped
 * it.
 */
static unsigned provide_frames(struct cache *c, int *error, bool *soon)
{
	unsigned wanted = frames_wanted(c), dirty = 0, again = 0, freed, written = 0;
	uint32_t age = cold_age(c);
	bool stuck;

	*error = 0;
	freed = dropped_evict(c);
	if (freed < wanted)
		freed += sweep_frames(c, age, false, wanted - freed, &dirty);
	if (dirty) {
		*error = writeback_pages(c, c->provider.victims, dirty, false, &written);
		COUNT(c, evicted_dirty, written);
		for (unsigned i = 0; i < dirty; i++) {
			struct frame *f = table_find(c, c->provider.victims[i].pid);

			if (f && !(frame_flags(f) & FRAME_DIRTY))
				freed += frame_evict(c, f);
		}
	}
	/* the sample misled, or everything old is in use */
	for (unsigned last = age == 0; last < 2 && !freed && !again; last++) {
		if (c->provider.dropping_count)
			break;
		freed = sweep_frames(c, 0, last, MIN(wanted, 32u), &again);
		if (!freed && again)
			*error = writeback_pages(
				c, c->provider.victims, again, false, &written);
	}
	stuck = !freed && !written && !c->provider.dropping_count;
	advance_epoch(c, stuck ? c->frames.count : freed - evictions_for_scans(c, freed));
	*soon = c->provider.dropping_count > 0;
	return freed + written;
}

/* Nothing is written any more, and nearly all frames are dirty. Pages that are needed together, as
 * one of each level of a tree, would go on taking the frames of each other. */
static bool too_few_left(const struct cache *c)
{
	return log_failed(c->log) &&
	       c->frames.count <
		       atomic_load_explicit(&c->writeback.dirty, memory_order_relaxed) +
			       LEFT_MIN;
}

/* Why no frame becomes free: all are dirty and cannot be written. 0: some may yet. */
static int stuck_error(struct cache *c, int write_error)
{
	if (c->options.read_only)
		return -ENOMEM;
	if (log_failed(c->log))
		return -EIO;
	return write_error == -EIO || write_error == -ENOSPC ? write_error : 0;
}

#define GIVE_BACK_ROUNDS 200
#define GIVE_BACK_NS     10000000ull

/* Looks at all frames once. Returns the shards of other stores that still have pages in frames
 * here, as bits. */
static uint64_t give_back_round(struct cache *c)
{
	uint64_t left = 0;

	rt_mutex_lock(&c->provider.sweep_lock);
	for (uint32_t i = 0; i < c->frames.count; i++) {
		struct frame *f = &c->frames.frame[i];
		page_id pid = atomic_load_explicit(&f->pid, memory_order_relaxed);

		if (pid == PID_NONE || coherence_home_here(c->coherence, pid))
			continue;
		if (frame_flags(f) & FRAME_DIRTY)
			away_add(c, pid);
		else if (frame_evict(c, f))
			continue;
		left |= 1ull << MIN(pid_shard(pid), 63u);
		if (c->provider.away_count == AWAY_MAX)
			away_evict(c);
	}
	away_evict(c);
	rt_mutex_unlock(&c->provider.sweep_lock);
	return left;
}

uint64_t cache_give_back(struct cache *c)
{
	uint64_t left;

	for (unsigned round = 0; round < GIVE_BACK_ROUNDS; round++) {
		if (round)
			rt_sleep_ns(GIVE_BACK_NS);
		left = give_back_round(c);
		owed_ship(c, LSN_MAX, false);
		left |= owed_shards(c);
		if (!left)
			break;
	}
	return left;
}

static void free_wait(struct cache *c, uint64_t at_most_ns)
{
	rt_mutex_lock(&c->provider.free.lock);
	if (!c->provider.free.count)
		rt_cond_wait(&c->provider.free.available, &c->provider.free.lock,
			rt_now_ns() + at_most_ns);
	rt_mutex_unlock(&c->provider.free.lock);
}

struct frame *frame_get(struct cache *c, bool wait, int *error)
{
	uint64_t pause_ns = DROP_NS;
	unsigned fruitless = 0;

	for (;;) {
		uint32_t index;
		int rc;

		if (likely(frames_take(c, &index, 1))) {
			latch_free_frame(&c->frames.frame[index]);
			return &c->frames.frame[index];
		}
		if (!wait)
			return NULL;
		COUNT(c, frame_waits, 1);
		if (rt_mutex_trylock(&c->provider.sweep_lock)) {
			bool soon;
			unsigned freed = provide_frames(c, &rc, &soon);

			rt_mutex_unlock(&c->provider.sweep_lock);
			rt_cond_broadcast(&c->provider.free.available);
			fruitless = freed || soon ? 0 : fruitless + 1;
			if ((fruitless > 3 || too_few_left(c)) &&
				(*error = stuck_error(c, rc)) != 0)
				return NULL;
			if (freed) {
				pause_ns = DROP_NS;
			} else { /* all may be another node's that is away: a look is a round */
				free_wait(c, rc ? RETRY_NS : pause_ns);
				pause_ns = MIN(2 * pause_ns, RETRY_NS);
			}
			continue;
		}
		free_wait(c, RETRY_NS);
	}
}

void provider_main(void *arg)
{
	struct cache *c = arg;
	uint32_t word;

	while (rt_goes_on(&c->stopping, &c->provider.word, &word)) {
		uint64_t pause_ns = DROP_NS;
		unsigned freed;
		bool soon;
		int error;

		if (owed_crowded(c))
			owed_ship(c, LSN_MAX, false);
		if (atomic_load_explicit(&c->provider.free.count, memory_order_relaxed) >=
				c->provider.low_water ||
			log_failed(c->log)) {
			rt_wait(&c->provider.word, word, RT_FOREVER);
			continue;
		}
		while (atomic_load_explicit(&c->provider.free.count,
			       memory_order_relaxed) < c->provider.high_water &&
			!atomic_load_explicit(&c->stopping, memory_order_acquire)) {
			rt_mutex_lock(&c->provider.sweep_lock);
			freed = provide_frames(c, &error, &soon);
			rt_mutex_unlock(&c->provider.sweep_lock);
			rt_cond_broadcast(&c->provider.free.available);
			if (error || (!freed && !soon))
				break;
			if (freed) {
				pause_ns = DROP_NS;
			} else { /* a page that the kernel has locked may take long */
				rt_sleep_ns(pause_ns);
				pause_ns = MIN(2 * pause_ns, RETRY_NS);
			}
		}
		if (atomic_load_explicit(&c->provider.free.count, memory_order_relaxed) <
			c->provider.low_water)
			rt_wait(&c->provider.word,
				atomic_load_explicit(
					&c->provider.word, memory_order_acquire),
				rt_now_ns() + RETRY_NS);
	}
}
