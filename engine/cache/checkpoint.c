/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checkpoints: they move the log's tail, and prepare a clean end.
 *
 * The tail may move to the smallest of these LSNs:
 *
 * - the log's durable end when the look began;
 * - rec_lsn of dirty frames;
 * - the pins of write-back batches under way;
 * - the oldest descriptor in a dirty table block;
 * - the LSN that discarded frames still need (below).
 *
 * They are looked at one after the other, and none is missed. Each pin is set, to a lower bound,
 * before the record that it protects is appended. A pin is handed on, from frame to batch to table,
 * before it is dropped. So they are looked at in that order. A batch that failed hands its pin back
 * to the frames, so batches are looked at before the frames as well.
 *
 * A discarded frame's redo is needed until the record that freed the page is durable. A crash
 * before that brings the page back (invariant 3).
 */
#include <errno.h>

#include "engine/cache/cache_internal.h"

/* Ends the pins that are over. With the lock. */
static void discards_settle(struct cache *c)
{
	lsn_t durable = log_durable(c->log);

	/* Twice: the pins that move from [1] to [0] may be over as well. */
	for (int turn = 0; turn < 2; turn++) {
		if (c->checkpoint.discard[0].until &&
			durable < c->checkpoint.discard[0].until)
			return;
		c->checkpoint.discard[0] = c->checkpoint.discard[1];
		c->checkpoint.discard[1] = (struct discard_pins){0};
	}
}

static lsn_t discard_horizon(struct cache *c)
{
	lsn_t h = LSN_MAX;

	rt_mutex_lock(&c->checkpoint.discard_lock);
	discards_settle(c);
	for (int i = 0; i < 2; i++)
		if (c->checkpoint.discard[i].until)
			h = MIN(h, c->checkpoint.discard[i].rec_lsn);
	rt_mutex_unlock(&c->checkpoint.discard_lock);
	return h;
}

static lsn_t batches_horizon(struct cache *c)
{
	lsn_t h = LSN_MAX;

	for (unsigned i = 0; i < WB_ALL; i++)
		h = MIN(h, atomic_load_explicit(
				   &c->writeback.region[i].pin, memory_order_seq_cst));
	return h;
}

static lsn_t frames_horizon(struct cache *c)
{
	lsn_t h = LSN_MAX;

	for (uint32_t i = 0; i < c->frames.count; i++) {
		struct frame *f = &c->frames.frame[i];
		lsn_t rec = atomic_load_explicit(&f->rec_lsn, memory_order_seq_cst);

		if (rec != LSN_NONE && rec < h &&
			(frame_flags(f) & (FRAME_DIRTY | FRAME_OWED)))
			h = rec;
	}
	return h;
}

lsn_t checkpoint_horizon(struct cache *c)
{
	lsn_t h = log_durable(c->log);
	uint64_t handovers;

	h = MIN(h, discard_horizon(c));
	h = MIN(h, batches_horizon(c));
	atomic_thread_fence(memory_order_seq_cst);
	do { /* a pin that went from one frame to another may have been missed in both */
		handovers =
			atomic_load_explicit(&c->revoke.handovers, memory_order_seq_cst);
		h = MIN(h, frames_horizon(c));
	} while (atomic_load_explicit(&c->revoke.handovers, memory_order_seq_cst) !=
		 handovers);
	h = MIN(h, batches_horizon(c));
	return MIN(h, store_table_oldest(c->store));
}

/*
 * Writes back dirty frames that pin the log below `upto`; LSN_MAX: all that may be
 * written. `refs` has room for a batch.
 */
static int write_old(struct cache *c, lsn_t upto, bool urgent, struct page_ref *refs)
{
	unsigned n = 0;
	int error = 0, away = 0;

	for (uint32_t i = 0; i < c->frames.count && !error; i++) {
		struct frame *f = &c->frames.frame[i];
		lsn_t rec = atomic_load_explicit(&f->rec_lsn, memory_order_relaxed);
		uint32_t flags = frame_flags(f);

		if (!(flags & FRAME_DIRTY) || (flags & FRAME_UNPUBLISHED))
			continue;
		if (upto != LSN_MAX && (rec == LSN_NONE || rec >= upto))
			continue;
		refs[n++] = (struct page_ref){
			.pid = atomic_load_explicit(&f->pid, memory_order_relaxed)};
		if (n == c->writeback.pages) {
			error = writeback_pages(c, refs, n, urgent, NULL);
			n = 0;
		}
		if (error == -EHOSTDOWN) {
			away = error;
			error = 0;
		}
	}
	if (n && !error)
		error = writeback_pages(c, refs, n, urgent, NULL);
	return error ? error : away;
}

/*
 * An fsync that logs an image of a page anew raises its rec_lsn as it appends. The image that
 * pinned the log before is needed until the new one is durable. So the log is flushed behind the
 * look as well.
 */
static int advance_tail(struct cache *c)
{
	lsn_t horizon = checkpoint_horizon(c);
	int rc = log_flush(c->log, log_end(c->log));

	return rc ? rc : log_advance_tail(c->log, horizon);
}

/* If batches that failed have used up even the urgent part of the ring, the written pages move the
 * tail first. It is an error only if that moves nothing. */
static int checkpoint_round(struct cache *c, lsn_t upto)
{
	lsn_t tail = log_tail(c->log);
	bool used_up, away;
	int rc;

	rt_mutex_lock(&c->checkpoint.lock);
	rc = write_old(c, upto, true, c->checkpoint.refs);
	away = rc == -EHOSTDOWN;
	if (away) /* the tail may move all the same, if not as far */
		rc = 0;
	owed_ship(c, upto, true);
	used_up = rc == -ENOBUFS;
	if (!rc || used_up)
		rc = store_table_write(c->store, upto);
	if (!rc)
		rc = log_flush(c->log, log_end(c->log));
	if (!rc)
		rc = advance_tail(c);
	if (!rc && used_up && log_tail(c->log) == tail)
		rc = -ENOBUFS;
	if (!rc)
		COUNT(c, checkpoints, 1);
	rt_mutex_unlock(&c->checkpoint.lock);
	return !rc && away ? -EHOSTDOWN : rc;
}

/* The log's room is no concern of those above: writes that failed have used it up. */
static int persisting_error(int rc)
{
	return rc == -ENOBUFS ? -EIO : rc;
}

void cache_batches_await(struct cache *c)
{
	for (unsigned i = 0; i < WB_ALL; i++) {
		_Atomic uint32_t *turn = &c->writeback.region[i].turn;
		uint32_t seen = atomic_load_explicit(turn, memory_order_seq_cst);

		while (seen & 1 &&
			atomic_load_explicit(turn, memory_order_acquire) == seen)
			rt_wait(turn, seen, RT_FOREVER);
	}
}

int cache_page_persist(struct cache *c, page_id pid)
{
	struct page_ref ref = {.pid = pid};

	return c->options.read_only ? 0 : writeback_pages(c, &ref, 1, false, NULL);
}

/*
 * A frame whose write was under way is passed over. The image of a write that was under way in the
 * first round may be an older one. So the page needs a second round; writes under way then are new
 * enough. Two rounds suffice for all pages that were dirty at the call, if no write fails. Pages
 * that other tasks change meanwhile do not keep the caller.
 */
int cache_checkpoint(struct cache *c)
{
	struct page_ref *refs = rt_alloc(c->writeback.pages * sizeof(*refs));
	int rc = refs ? log_flush(c->log, log_end(c->log)) : -ENOMEM;
	lsn_t from = log_durable(c->log);
	unsigned away = 0;

	for (unsigned rounds = 0; rounds < 1000 && !rc; rounds++) {
		uint32_t failures;

		if (rounds)
			rt_sleep_ns(100000);
		failures = atomic_load_explicit(
			&c->writeback.failures, memory_order_acquire);
		/* Pages that do not pin the log come first. Such a page may wait for a checkpoint.
		 * If no task makes one (the volume is closed), a checkpoint of ours does. */
		if (!c->checkpoint.task)
			rc = checkpoint_round(c, LSN_MAX);
		if (!rc || rc == -EHOSTDOWN)
			rc = write_old(c, LSN_MAX, false, refs);
		cache_batches_await(c);
		if (!rc)
			rc = checkpoint_round(c, LSN_MAX);
		if (rc == -EHOSTDOWN && home_awaited(c, &away)) {
			rc = 0;
			rounds = 0;
			continue;
		}
		if (!atomic_load_explicit(&c->writeback.dirty, memory_order_relaxed) ||
			(rounds && log_tail(c->log) >= from &&
				failures == atomic_load_explicit(&c->writeback.failures,
						    memory_order_acquire)))
			break;
	}
	rt_free(refs);
	return persisting_error(rc);
}

uint64_t cache_save(struct cache *c)
{
	struct page_ref *refs = c->checkpoint.refs;
	unsigned n = 0;
	int rc = 0;

	cache_batches_await(c);
	rt_mutex_lock(&c->checkpoint.lock);
	for (uint32_t i = 0; i <= c->frames.count && !rc; i++) {
		struct frame *f = &c->frames.frame[i];

		if (n == c->writeback.pages || (n && i == c->frames.count)) {
			rc = writeback_pages(c, refs, n, true, NULL);
			n = 0;
		}
		if (i == c->frames.count)
			break;
		refs[n].pid = atomic_load_explicit(&f->pid, memory_order_relaxed);
		n += (frame_flags(f) & FRAME_DIRTY) &&
		     !(frame_flags(f) & FRAME_UNPUBLISHED) &&
		     coherence_home_here(c->coherence, refs[n].pid);
	}
	rt_mutex_unlock(&c->checkpoint.lock);
	(void)log_all(c);
	return cache_unlogged(c);
}

/* Waits for frames that were leaving, dirty, when the checkpoint passed them over. Returns true if
 * one stays. */
static bool leaving_await(struct cache *c)
{
	bool stays = false;

	for (uint32_t i = 0; i < c->frames.count; i++) {
		struct frame *f = &c->frames.frame[i];
		const uint32_t leaves = FRAME_DIRTY | FRAME_LEAVING;
		bool left = true;

		while ((frame_flags(f) & leaves) == leaves) {
			rt_sleep_ns(100000);
			left = !(frame_flags(f) & FRAME_DIRTY);
		}
		stays |= !left;
	}
	return stays;
}

/*
 * A page that is dirty at the call, or owed, stays so until it is persisted. A page that the
 * checkpoint did not meet in a frame is owed by then. (It may also come back into a frame while it
 * is shipped: then that is written back.)
 */
int cache_persist(struct cache *c)
{
	unsigned away = 0;
	uint64_t mark;
	int rc;

	do
		rc = cache_checkpoint(c);
	while (!rc && leaving_await(c));
	mark = owed_mark(c);
	while (!rc && owed_older(c, mark)) {
		owed_ship(c, LSN_MAX, false);
		if (!owed_older(c, mark))
			break;
		if (log_failed(c->log) || !home_awaited(c, &away))
			rc = -EIO;
	}
	return rc;
}

#define DISCARD_POLL_NS 10000ull
#define RETRY_MS 50
/* Failures in a row, while the log fills, after which the store is given up: 5 s. */
#define GIVE_UP 100

/* Tasks that wait for room change the pressure again and again. So only the end cuts the pause
 * short. Each failure has left descriptors in the log. */
static void failure_pause(struct cache *c)
{
	_Atomic uint32_t *pressure = log_pressure_word(c->log);
	uint64_t until = rt_now_ns() + RETRY_MS * 1000000ull;

	while (rt_now_ns() < until) {
		uint32_t word = atomic_load_explicit(pressure, memory_order_acquire);

		if (atomic_load_explicit(&c->checkpoint.end, memory_order_acquire))
			return;
		rt_wait(pressure, word, until);
	}
}

/* Returns true if the device failed. A node that is away, or a full disk, does not count. An
 * operator can make room on the disk, and tasks that need the log wait until then. */
static bool round_failed(struct cache *c, int rc)
{
	return rc && rc != -EHOSTDOWN && cache_write_error(c) != -ENOSPC &&
	       !atomic_load_explicit(&c->given_up, memory_order_acquire);
}

void checkpoint_main(void *arg)
{
	struct cache *c = arg;
	_Atomic uint32_t *pressure = log_pressure_word(c->log);
	unsigned failures = 0;
	uint32_t word;

	while (rt_goes_on(&c->checkpoint.end, pressure, &word)) {
		lsn_t tail = log_tail(c->log);
		int rc;

		if (!log_wants_checkpoint(c->log) && !store_table_crowded(c->store)) {
			rt_wait(pressure, word, RT_FOREVER);
			continue;
		}
		rc = checkpoint_round(
			c, store_table_crowded(c->store) && !log_wants_checkpoint(c->log)
				   ? LSN_MAX
				   : tail + (log_end(c->log) - tail) / 2);
		failures = round_failed(c, rc) ? failures + 1 : 0;
		/* Otherwise tasks that wait for room in the log would wait for ever. */
		if (failures == GIVE_UP)
			log_give_up(c->log, persisting_error(rc));
		if (rc)
			failure_pause(c);
		else if (log_tail(c->log) == tail)
			rt_wait(pressure,
				atomic_load_explicit(pressure, memory_order_acquire),
				rt_now_ns() + RETRY_MS * 1000000ull);
	}
}

/* ---- pages that were freed ------------------------------------------------------- */

static void discard_pin(struct cache *c, lsn_t rec)
{
	struct discard_pins *pins = &c->checkpoint.discard[1];

	rt_mutex_lock(&c->checkpoint.discard_lock);
	if (!pins->until || rec < pins->rec_lsn)
		pins->rec_lsn = rec;
	pins->until = log_end(c->log);
	discards_settle(c);
	rt_mutex_unlock(&c->checkpoint.discard_lock);
}

/*
 * With other nodes a dirty page stays dirty until its home has persisted it, freed or not. Other
 * nodes may owe earlier versions, and its home takes back only its own version. A page that never
 * left this frame is zeros that nobody changed.
 */
static void discard_shared(struct cache *c, struct frame *f)
{
	lsn_t end = log_end(c->log);

	if (frame_flags(f) & FRAME_UNPUBLISHED) {
		frame_reinit(c, f, f->incarnation);
		cache_watched(c, f, CACHE_UNMADE, LSN_NONE);
	} else {
		atomic_store_explicit(&f->page_lsn, end, memory_order_relaxed);
		atomic_store_explicit(&c->revoke.ship_lsn[f - c->frames.frame], end,
			memory_order_relaxed);
	}
	latch_release_exclusive(c, f, true);
}

/*
 * Returns false if the frame is another page's, or a request is under way for it. That request may
 * wait for a task that waits for the caller. Then the page stays as it is on any other node that
 * has it.
 */
static bool discard_latch(struct cache *c, struct frame *f, page_id pid)
{
	uint64_t seen;

	if (!cache_has_peers(c))
		return latch_exclusive(c, f, pid);
	while (!latch_try_exclusive(f, &seen)) {
		if (atomic_load_explicit(&f->pid, memory_order_relaxed) != pid ||
			(frame_flags(f) & FRAME_ASKING) || !mode_allows(f, PAGE_SHARED))
			return false;
		rt_sleep_ns(DISCARD_POLL_NS);
	}
	if (atomic_load_explicit(&f->pid, memory_order_relaxed) == pid)
		return true;
	latch_release_exclusive(c, f, false);
	return false;
}

void cache_discard(struct cache *c, const struct page_ref *refs, unsigned count)
{
	for (unsigned i = 0; i < count; i++) {
		struct frame *f = table_find(c, refs[i].pid);
		lsn_t rec;

		if (!f || !discard_latch(c, f, refs[i].pid))
			continue;
		if (f->incarnation != refs[i].incarnation) {
			latch_release_exclusive(c, f, false);
			continue;
		}
		if (cache_has_peers(c) && (frame_flags(f) & FRAME_DIRTY)) {
			discard_shared(c, f);
			continue;
		}
		rec = atomic_load_explicit(&f->rec_lsn, memory_order_relaxed);
		if (rec != LSN_NONE && (frame_flags(f) & FRAME_DIRTY))
			discard_pin(c, rec);
		if (frame_flags(f) & FRAME_WRITING) {
			/* stays until its write has ended; clean, so it goes soon after
			 */
			frame_mark_clean(c, f);
			latch_release_exclusive(c, f, true);
			continue;
		}
		frame_mark_clean(c, f);
		frame_drop(c, f);
	}
}

void cache_freed(struct cache *c, page_id pid, uint64_t incarnation, unsigned count)
{
	if (c->coherence->ops->freed)
		c->coherence->ops->freed(c->coherence, pid, incarnation, count);
}

void cache_publish(
	struct cache *c, const struct page_ref *refs, unsigned count, lsn_t lsn)
{
	for (unsigned i = 0; i < count; i++) {
		struct frame *f = table_find(c, refs[i].pid);

		if (!f || !latch_shared(c, f, refs[i].pid))
			continue;
		if (f->incarnation == refs[i].incarnation) {
			atomic_store_explicit(&f->page_lsn, lsn, memory_order_relaxed);
			atomic_store_explicit(&c->revoke.ship_lsn[f - c->frames.frame],
				lsn, memory_order_relaxed);
			/* release: a reader that finds it published finds page_lsn (copy_page) */
			atomic_fetch_and_explicit(&f->flags, (uint16_t)~FRAME_UNPUBLISHED,
				memory_order_release);
			cache_watched(c, f, CACHE_PUBLISHED, lsn);
		}
		latch_release_shared(c, f);
	}
}

void cache_fill_begin(struct cache *c, unsigned pages)
{
	WEFT_ASSERT(pages <= c->checkpoint.fill_max);
	rt_mutex_lock(&c->checkpoint.fill_lock);
	while (c->checkpoint.filling + pages > c->checkpoint.fill_max)
		rt_cond_wait(
			&c->checkpoint.fill_cond, &c->checkpoint.fill_lock, RT_FOREVER);
	c->checkpoint.filling += pages;
	rt_mutex_unlock(&c->checkpoint.fill_lock);
}

void cache_fill_end(struct cache *c, unsigned pages)
{
	rt_mutex_lock(&c->checkpoint.fill_lock);
	WEFT_ASSERT(c->checkpoint.filling >= pages);
	c->checkpoint.filling -= pages;
	rt_mutex_unlock(&c->checkpoint.fill_lock);
	rt_cond_broadcast(&c->checkpoint.fill_cond);
}
