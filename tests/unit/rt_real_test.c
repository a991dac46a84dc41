/* SPDX-License-Identifier: Apache-2.0 */
/* The real runtime: tasks, waiting, time, memory. */
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <stdarg.h>
#include <cmocka.h>
#include <errno.h>
#include <sched.h>
#include <string.h>

#include "engine/rt/rt.h"

#define TASKS  8
#define ROUNDS 20000

static struct {
	struct rt_mutex lock;
	struct rt_cond more, room;
	unsigned long counter;
	unsigned queued;
	unsigned long taken;
} shared;

static void add_many(void *arg)
{
	for (unsigned i = 0; i < ROUNDS; i++) {
		rt_mutex_lock(&shared.lock);
		shared.counter++;
		rt_mutex_unlock(&shared.lock);
	}
}

static void run_all(void (*fn)(void *), unsigned n)
{
	struct rt_task *tasks[64];

	for (unsigned i = 0; i < n; i++)
		assert_int_equal(
			rt_task_spawn(&tasks[i], "worker", fn, (void *)(uintptr_t)i), 0);
	for (unsigned i = 0; i < n; i++)
		rt_task_join(tasks[i]);
}

static void mutex_excludes(void **state)
{
	memset(&shared, 0, sizeof(shared));
	run_all(add_many, TASKS);
	assert_int_equal(shared.counter, TASKS * ROUNDS);
	assert_int_equal(shared.lock.state, 0);
}

static struct {
	struct rt_gate gate;
	unsigned long counter;
	_Atomic unsigned inside;
	_Atomic bool crowded;
} gated;

static void add_behind_gate(void *arg)
{
	for (unsigned i = 0; i < ROUNDS / 10; i++) {
		rt_gate_enter(&gated.gate, 1);
		gated.counter++;
		rt_gate_leave(&gated.gate, 1);
	}
}

static void pass_wide_gate(void *arg)
{
	for (unsigned i = 0; i < ROUNDS / 10; i++) {
		rt_gate_enter(&gated.gate, 3);
		if (atomic_fetch_add(&gated.inside, 1) >= 3)
			atomic_store(&gated.crowded, true);
		if (i % 16 == 0)
			rt_yield();
		atomic_fetch_sub(&gated.inside, 1);
		rt_gate_leave(&gated.gate, 3);
	}
}

static void gate_keeps_out_more_than_its_width(void **state)
{
	memset(&gated, 0, sizeof(gated));
	run_all(add_behind_gate, TASKS);
	assert_int_equal(gated.counter, TASKS * (ROUNDS / 10));
	run_all(pass_wide_gate, TASKS);
	assert_false(atomic_load(&gated.crowded));
	assert_int_equal(gated.gate.tickets, 2 * TASKS * (ROUNDS / 10));
	assert_int_equal(gated.gate.left, gated.gate.tickets);
}

#define QUEUE_MAX 3
#define ITEMS     20000

static void producer_or_consumer(void *arg)
{
	bool producer = (uintptr_t)arg % 2;

	for (unsigned i = 0; i < ITEMS; i++) {
		rt_mutex_lock(&shared.lock);
		if (producer) {
			while (shared.queued == QUEUE_MAX)
				rt_cond_wait(&shared.room, &shared.lock, RT_FOREVER);
			shared.queued++;
		} else {
			while (shared.queued == 0)
				rt_cond_wait(&shared.more, &shared.lock, RT_FOREVER);
			shared.queued--;
			shared.taken++;
		}
		rt_mutex_unlock(&shared.lock);
		if (i % 7)
			rt_cond_signal(producer ? &shared.more : &shared.room);
		else
			rt_cond_broadcast(producer ? &shared.more : &shared.room);
	}
}

static void condition_loses_no_signal(void **state)
{
	memset(&shared, 0, sizeof(shared));
	run_all(producer_or_consumer, TASKS);
	assert_int_equal(shared.taken, ITEMS * TASKS / 2);
	assert_int_equal(shared.queued, 0);
}

static void wait_times_out_at_deadline(void **state)
{
	_Atomic uint32_t word = 5;
	struct rt_mutex m = {0};
	struct rt_cond c = {0};
	uint64_t deadline = rt_now_ns() + 3000000;
	int r;

	assert_int_equal(rt_wait(&word, 4, RT_FOREVER), 0);
	while ((r = rt_wait(&word, 5, deadline)) == 0)
		;
	assert_int_equal(r, -ETIMEDOUT);
	assert_true(rt_now_ns() >= deadline);
	assert_int_equal(rt_wait(&word, 5, 0), -ETIMEDOUT);
	rt_mutex_lock(&m);
	while ((r = rt_cond_wait(&c, &m, rt_now_ns() + 1000)) == 0)
		;
	assert_int_equal(r, -ETIMEDOUT);
	assert_false(rt_mutex_trylock(&m));
	rt_mutex_unlock(&m);
}

static _Atomic uint32_t indexes_seen[TASKS];
static _Atomic uint32_t arrived;

static void note_index(void *arg)
{
	unsigned index = rt_task_index();

	assert_true(index < TASKS + 1);
	indexes_seen[(uintptr_t)arg] = index;
	if (++arrived % TASKS == 0)
		rt_wake(&arrived, INT32_MAX);
	for (uint32_t v; (v = arrived) % TASKS != 0;)
		rt_wait(&arrived, v, RT_FOREVER);
	assert_int_equal(rt_task_index(), index);
}

static void task_indexes_are_small_distinct_and_reused(void **state)
{
	rt_task_index();
	for (unsigned round = 0; round < 10; round++) {
		run_all(note_index, TASKS);
		for (unsigned i = 0; i < TASKS; i++)
			for (unsigned j = 0; j < i; j++)
				assert_int_not_equal(indexes_seen[i], indexes_seen[j]);
	}
}

static void a_task_stays_where_it_is_told_and_goes_again(void **state)
{
	cpu_set_t all, now;
	unsigned here;

	assert_return_code(sched_getaffinity(0, sizeof(all), &all), errno);
	rt_task_on_cpu(RT_ANY_CPU);
	for (here = 0; !CPU_ISSET(here, &all); here++)
		;
	rt_task_on_cpu(here);
	assert_return_code(sched_getaffinity(0, sizeof(now), &now), errno);
	assert_int_equal(CPU_COUNT(&now), 1);
	assert_true(CPU_ISSET(here, &now));
	/* what there is not is nowhere to stay */
	rt_task_on_cpu(CPU_SETSIZE);
	assert_return_code(sched_getaffinity(0, sizeof(now), &now), errno);
	assert_true(CPU_EQUAL(&now, &all));
	rt_task_on_cpu(here);
	rt_task_on_cpu(RT_ANY_CPU);
	assert_return_code(sched_getaffinity(0, sizeof(now), &now), errno);
	assert_true(CPU_EQUAL(&now, &all));
}

static void clocks_go_forward(void **state)
{
	uint64_t now = rt_now_ns();
	int64_t wall = rt_wall_ns();

	assert_true(wall > 1500000000ll * 1000000000ll);
	for (unsigned i = 0; i < 1000; i++) {
		assert_true(rt_now_ns() >= now);
		assert_true(rt_wall_ns() >= wall);
		now = rt_now_ns();
		wall = rt_wall_ns();
	}
	rt_sleep_ns(1000000);
	assert_true(rt_now_ns() >= now + 1000000);
}

static void memory_is_zeroed_and_aligned(void **state)
{
	static const size_t sizes[] = {1, 63, 64, 100, 4096, 100000, 3 << 20};

	for (unsigned i = 0; i < ARRAY_SIZE(sizes); i++) {
		for (unsigned round = 0; round < 3; round++) {
			unsigned char *p = rt_alloc(sizes[i]);
			unsigned char *q = rt_alloc_pages(sizes[i]);

			assert_non_null(p);
			assert_non_null(q);
			assert_int_equal((uintptr_t)p % 64, 0);
			assert_int_equal((uintptr_t)q % PAGE_SIZE, 0);
			for (size_t k = 0; k < sizes[i]; k++) {
				assert_int_equal(p[k], 0);
				assert_int_equal(q[k], 0);
			}
			memset(p, 0xff, sizes[i]);
			memset(q, 0xff, sizes[i]);
			rt_free(p);
			rt_free_pages(q, sizes[i]);
		}
	}
	assert_null(rt_alloc(SIZE_MAX));
	assert_null(rt_alloc_pages(SIZE_MAX));
	rt_free(NULL);
	rt_free_pages(NULL, 1);
}

static void random_numbers_differ(void **state)
{
	uint8_t a[32], b[32];

	assert_int_not_equal(rt_random(), rt_random());
	rt_random_bytes(a, sizeof(a));
	rt_random_bytes(b, sizeof(b));
	assert_memory_not_equal(a, b, sizeof(a));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(mutex_excludes),
		cmocka_unit_test(gate_keeps_out_more_than_its_width),
		cmocka_unit_test(condition_loses_no_signal),
		cmocka_unit_test(wait_times_out_at_deadline),
		cmocka_unit_test(task_indexes_are_small_distinct_and_reused),
		cmocka_unit_test(a_task_stays_where_it_is_told_and_goes_again),
		cmocka_unit_test(clocks_go_forward),
		cmocka_unit_test(memory_is_zeroed_and_aligned),
		cmocka_unit_test(random_numbers_differ),
	};

	if (rt_real_start())
		return 1;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
