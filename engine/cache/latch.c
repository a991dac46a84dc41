/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hybrid latches (LeanStore §IV-F, ScaleStore §3.2): the slow paths. A task spins a little and then
 * parks. The word is in the frame. Parked tasks wait on one of a few sequence words, chosen by
 * frame, so a frame needs no room for a queue. The WAITERS bit tells the releasing task that a task
 * may be parked.
 *
 * A task that waits here holds no other latch (invariant 6), except of frames that its own requests
 * are filling. The simulator checks that (rt_may_wait).
 */
#include "engine/cache/cache_internal.h"

#define SPINS_BEFORE_PARKING 40

_Atomic uint32_t *latch_parking(struct cache *c, struct frame *f)
{
	return &c->latch.parking[(uint32_t)(f - c->frames.frame) % PARKING_WORDS];
}

void latch_wake(struct cache *c, struct frame *f)
{
	_Atomic uint32_t *word = latch_parking(c, f);

	atomic_fetch_and_explicit(&f->latch, ~LATCH_WAITERS, memory_order_relaxed);
	atomic_fetch_add_explicit(word, 1, memory_order_release);
	rt_wake(word, INT32_MAX);
}

/* Parks until the latch, which had `blocking` bits set, may have been released; or until then. */
static void latch_park(struct cache *c, struct frame *f, uint64_t blocking, uint64_t until_ns)
{
	_Atomic uint32_t *word = latch_parking(c, f);
	uint32_t sequence = atomic_load_explicit(word, memory_order_acquire);
	uint64_t w = atomic_load_explicit(&f->latch, memory_order_relaxed);

	do {
		if (!(w & blocking))
			return;
	} while (!atomic_compare_exchange_weak_explicit(&f->latch, &w, w | LATCH_WAITERS,
		memory_order_relaxed, memory_order_relaxed));
	COUNT(c, latch_waits, 1);
	rt_task_needs(
		RT_NEEDS_PAGE, atomic_load_explicit(&f->pid, memory_order_relaxed));
	rt_wait(word, sequence, until_ns);
	rt_task_needs(RT_NEEDS_NOTHING, 0);
}

/* The task that has it latched may be waiting for a node that is away, for as long as that
 * lasts. */
static bool waits_in_vain(const struct frame *f)
{
	return (frame_flags(f) & (FRAME_LOADING | FRAME_ASKING)) && rt_task_unwanted();
}

static bool await_exclusive(struct cache *c, struct frame *f, page_id pid, bool wanted)
{
	unsigned spins = 0;
	uint64_t seen;

	rt_may_wait();
	for (;;) {
		if (atomic_load_explicit(&f->pid, memory_order_relaxed) != pid)
			return false;
		if (latch_try_exclusive(f, &seen))
			break;
		if (spins < SPINS_BEFORE_PARKING)
			rt_spin(&spins);
		else if (wanted && waits_in_vain(f))
			return false;
		else
			latch_park(c, f, LATCH_EXCLUSIVE | LATCH_SHARED_MASK,
				wanted ? rt_task_asks_ns() : RT_FOREVER);
	}
	if (atomic_load_explicit(&f->pid, memory_order_relaxed) == pid)
		return true;
	latch_release_exclusive(c, f, false);
	return false;
}

static bool await_shared(struct cache *c, struct frame *f, page_id pid, bool wanted)
{
	unsigned spins = 0;

	rt_may_wait();
	for (;;) {
		if (atomic_load_explicit(&f->pid, memory_order_relaxed) != pid)
			return false;
		if (latch_try_shared(f))
			break;
		if (spins < SPINS_BEFORE_PARKING)
			rt_spin(&spins);
		else if (wanted && waits_in_vain(f))
			return false;
		else
			latch_park(c, f, LATCH_EXCLUSIVE,
				wanted ? rt_task_asks_ns() : RT_FOREVER);
	}
	if (atomic_load_explicit(&f->pid, memory_order_relaxed) == pid)
		return true;
	latch_release_shared(c, f);
	return false;
}

bool latch_exclusive(struct cache *c, struct frame *f, page_id pid)
{
	return await_exclusive(c, f, pid, false);
}

bool latch_shared(struct cache *c, struct frame *f, page_id pid)
{
	return await_shared(c, f, pid, false);
}

bool latch_exclusive_wanted(struct cache *c, struct frame *f, page_id pid)
{
	return await_exclusive(c, f, pid, true);
}

bool latch_shared_wanted(struct cache *c, struct frame *f, page_id pid)
{
	return await_shared(c, f, pid, true);
}

void latch_wait_open(struct cache *c, struct frame *f)
{
	unsigned spins = 0;

	while (atomic_load_explicit(&f->latch, memory_order_acquire) & LATCH_EXCLUSIVE) {
		if (spins < SPINS_BEFORE_PARKING) {
			rt_spin(&spins);
		} else {
			latch_park(c, f, LATCH_EXCLUSIVE, rt_task_asks_ns());
			return;
		}
	}
}
