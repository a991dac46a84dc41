/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mutex, condition and gate over rt_wait and rt_wake, the same for both runtimes.
 *
 * The mutex is the three-state one of Drepper, "Futexes Are Tricky" (mutex 3). If other tasks may
 * be waiting, its state is 2, and the unlock wakes one of them.
 */
#include "engine/rt/rt_internal.h"

/* About as long as the short sections that these mutexes protect. */
#define MUTEX_SPINS 100

void rt_mutex_lock_slow(struct rt_mutex *m)
{
	unsigned spins = rt_simulated ? 0 : MUTEX_SPINS;

	while (spins--) {
		uint32_t state = atomic_load_explicit(&m->state, memory_order_relaxed);

		if (state == 2)
			break;
		if (state == 0 && atomic_compare_exchange_weak_explicit(&m->state, &state,
					  1, memory_order_acquire, memory_order_relaxed))
			return;
		cpu_pause();
	}
	rt_awaits(m);
	while (atomic_exchange_explicit(&m->state, 2, memory_order_acquire) != 0)
		rt_wait(&m->state, 2, RT_FOREVER);
	rt_awaits(NULL);
	rt_holds(m, NULL);
}

/* The mutex is free already, and may be gone: only its address is used. */
void rt_mutex_unlock_slow(struct rt_mutex *m)
{
	rt_wake(&m->state, 1);
}

/*
 * The sequence rises by 2. Its lowest bit says that a task may be waiting. A waiter sets the bit
 * while it holds the mutex. A signaller changes the condition later, under the mutex, so it sees
 * the bit. Without the bit a signal costs no system call.
 */
#define COND_WAITERS 1u
#define COND_STEP    2u

int rt_cond_wait(struct rt_cond *c, struct rt_mutex *m, uint64_t deadline_ns)
{
	uint32_t seen = atomic_fetch_or_explicit(
				&c->sequence, COND_WAITERS, memory_order_relaxed) |
			COND_WAITERS;
	int rc;

	rt_mutex_unlock(m);
	rc = rt_wait(&c->sequence, seen, deadline_ns);
	rt_mutex_lock(m);
	return rc;
}

void rt_cond_signal(struct rt_cond *c)
{
	uint32_t v = atomic_load_explicit(&c->sequence, memory_order_relaxed);

	do {
		if (!(v & COND_WAITERS))
			return;
	} while (!atomic_compare_exchange_weak_explicit(&c->sequence, &v, v + COND_STEP,
		memory_order_relaxed, memory_order_relaxed));
	v += COND_STEP;
	/*
	 * No task slept: drop the bit, unless another task has changed the word. A waiter that
	 * found the bit set has changed nothing. Either it is woken here, or it sees the change
	 * before it sleeps, and sets the bit again.
	 */
	if (rt_wake_counted(&c->sequence, 1) == 0 &&
		atomic_compare_exchange_strong_explicit(&c->sequence, &v,
			(v + COND_STEP) & ~COND_WAITERS, memory_order_relaxed,
			memory_order_relaxed))
		rt_wake(&c->sequence, INT32_MAX);
}

void rt_cond_broadcast(struct rt_cond *c)
{
	uint32_t v = atomic_load_explicit(&c->sequence, memory_order_relaxed);

	do {
		if (!(v & COND_WAITERS))
			return;
	} while (!atomic_compare_exchange_weak_explicit(&c->sequence, &v,
		(v + COND_STEP) & ~COND_WAITERS, memory_order_relaxed,
		memory_order_relaxed));
	rt_wake(&c->sequence, INT32_MAX);
}

void rt_gate_wait(struct rt_gate *g, uint32_t ticket, uint32_t width)
{
	unsigned spins = rt_simulated ? 0 : MUTEX_SPINS;

	while (spins-- && !rt_gate_open(g, ticket, width))
		cpu_pause();
	for (;;) {
		uint32_t left = atomic_load_explicit(&g->left, memory_order_seq_cst);

		if ((int32_t)(ticket - left) < (int32_t)width)
			return;
		rt_wait(&g->left, left, RT_FOREVER);
	}
}
