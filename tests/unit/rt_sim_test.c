/* SPDX-License-Identifier: Apache-2.0 */
/* The simulated runtime: scheduling, time, nodes. Its disks: rt_sim_disk_test.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/rt/rt_sim.h"

/* Inside a simulation a failed check aborts, which prints the seed. */
#define CHECK WEFT_ASSERT

static int return_its_argument(void *arg)
{
	return (int)(intptr_t)arg;
}

static void run_returns_the_result(void **state)
{
	assert_int_equal(rt_sim_run(1, NULL, return_its_argument, (void *)42), 42);
	assert_false(rt_simulated);
	assert_int_equal(rt_sim_run(2, NULL, return_its_argument, (void *)-5), -5);
}

/* ---- a world with some of everything --------------------------------------------- */

#define WORKERS 5
#define ROUNDS  40

struct world {
	struct rt_mutex lock;
	struct rt_cond changed;
	struct rt_disk *disk;
	unsigned counter, waiting;
};

static void work(void *arg)
{
	struct world *w = arg;
	uint8_t *page = rt_alloc_pages(PAGE_SIZE);

	CHECK(page && rt_task_index() < WORKERS + 1);
	for (unsigned i = 0; i < ROUNDS; i++) {
		unsigned seen;
		uint64_t offset = rt_random() % 16 * PAGE_SIZE;

		rt_mutex_lock(&w->lock);
		seen = w->counter;
		rt_sched_point();
		rt_yield();
		CHECK(w->counter == seen);
		w->counter = seen + 1;
		rt_cond_broadcast(&w->changed);
		if (rt_random() % 4 == 0)
			rt_cond_wait(&w->changed, &w->lock, rt_now_ns() + 100000);
		rt_mutex_unlock(&w->lock);
		if (i % 4 == 0)
			CHECK(rt_disk_write(w->disk, offset, page, PAGE_SIZE) == 0);
		if (i % 8 == 0)
			rt_sleep_ns(rt_random() % 100000);
	}
	rt_free_pages(page, PAGE_SIZE);
}

static int busy_world(void *arg)
{
	struct world *w = rt_alloc(sizeof(*w));
	struct rt_task *tasks[WORKERS];

	CHECK(w && rt_simulated);
	rt_sim_disk_create("disk", 16 * PAGE_SIZE, NULL);
	CHECK(rt_disk_open(&w->disk, "disk", 0, NULL) == 0);
	for (unsigned i = 0; i < WORKERS; i++)
		CHECK(rt_task_spawn(&tasks[i], "worker", work, w) == 0);
	for (unsigned i = 0; i < WORKERS; i++)
		rt_task_join(tasks[i]);
	CHECK(w->counter == WORKERS * ROUNDS && w->lock.state == 0);
	rt_disk_close(w->disk);
	*(uint64_t *)arg = rt_sim_trace();
	return 0; /* w is left to the end of the run */
}

static void same_seed_gives_the_same_run(void **state)
{
	uint64_t first[20], again;

	for (uint64_t seed = 0; seed < 20; seed++) {
		rt_sim_run(seed, NULL, busy_world, &first[seed]);
		for (uint64_t other = 0; other < seed; other++)
			assert_int_not_equal(first[other], first[seed]);
	}
	for (uint64_t seed = 20; seed-- > 0;) {
		rt_sim_run(seed, NULL, busy_world, &again);
		assert_int_equal(first[seed], again);
	}
}

static void mutex_excludes_under_every_schedule(void **state)
{
	uint64_t trace;

	for (uint64_t seed = 100; seed < 300; seed++)
		rt_sim_run(seed,
			&(struct rt_sim_options){.switch_one_in = 1 + (unsigned)seed % 5},
			busy_world, &trace);
}

/* ---- races are found ------------------------------------------------------------- */

static void increment_carelessly(void *arg)
{
	unsigned *counter = arg, seen;

	for (unsigned i = 0; i < 3; i++) {
		seen = *counter;
		rt_sched_point();
		*counter = seen + 1;
	}
}

static int careless_world(void *arg)
{
	struct rt_task *a, *b;
	unsigned counter = 0;

	CHECK(rt_task_spawn(&a, "a", increment_carelessly, &counter) == 0);
	CHECK(rt_task_spawn(&b, "b", increment_carelessly, &counter) == 0);
	rt_task_join(a);
	rt_task_join(b);
	return (int)counter;
}

static void scheduling_points_expose_races(void **state)
{
	unsigned wrong = 0, right = 0;

	for (uint64_t seed = 0; seed < 200; seed++) {
		if (rt_sim_run(seed, NULL, careless_world, NULL) == 6)
			right++;
		else
			wrong++;
	}
	assert_true(wrong > 5);
	assert_true(right > 5);
}

/* ---- time ------------------------------------------------------------------------ */

static void sleep_an_hour(void *arg)
{
	rt_sleep_ns(3600ull * 1000000000);
	*(uint64_t *)arg = rt_now_ns();
}

static int time_world(void *arg)
{
	uint64_t start = rt_now_ns(), woke = 0;
	int64_t wall = rt_wall_ns();
	_Atomic uint32_t word = 0;
	struct rt_task *task;
	unsigned spins = 0;
	int r;

	CHECK(rt_task_spawn(&task, "sleeper", sleep_an_hour, &woke) == 0);
	while ((r = rt_wait(&word, 0, start + 1000000000)) == 0)
		;
	CHECK(r == -ETIMEDOUT && rt_now_ns() - start >= 1000000000 && woke == 0);
	CHECK(rt_now_ns() - start < 1001000000);
	CHECK(rt_wait(&word, 0, 5) == -ETIMEDOUT && rt_wait(&word, 1, RT_FOREVER) == 0);
	while (rt_now_ns() - start < 2000000000) /* time goes on for who spins */
		rt_spin(&spins);
	rt_task_join(task);
	CHECK(woke - start >= 3600ull * 1000000000);
	CHECK(rt_wall_ns() - wall >= 3600ll * 1000000000);
	return 0;
}

static void time_is_virtual(void **state)
{
	assert_int_equal(rt_sim_run(1, NULL, time_world, NULL), 0);
}

/* ---- waking ---------------------------------------------------------------------- */

struct sleepers {
	_Atomic uint32_t word;
	unsigned asleep, woken;
};

static void sleep_on_word(void *arg)
{
	struct sleepers *s = arg;

	s->asleep++;
	while (atomic_load(&s->word) == 0)
		rt_wait(&s->word, 0, RT_FOREVER);
	s->woken++;
}

static int wake_world(void *arg)
{
	struct sleepers s = {0};
	struct rt_task *tasks[10];

	for (unsigned i = 0; i < 10; i++)
		CHECK(rt_task_spawn(&tasks[i], "sleeper", sleep_on_word, &s) == 0);
	rt_sleep_ns(1000000);
	CHECK(s.asleep == 10 && s.woken == 0);
	atomic_store(&s.word, 1);
	rt_wake(&s.word, 3);
	rt_sleep_ns(1000000);
	CHECK(s.woken >= 3);
	rt_wake(&s.word, INT32_MAX);
	for (unsigned i = 0; i < 10; i++)
		rt_task_join(tasks[i]);
	CHECK(s.woken == 10);
	return 0;
}

static void wake_reaches_waiters(void **state)
{
	for (uint64_t seed = 0; seed < 50; seed++)
		rt_sim_run(seed, NULL, wake_world, NULL);
}

struct queue {
	struct rt_mutex lock;
	struct rt_cond more, room;
	unsigned queued;
};

static void produce(void *arg)
{
	struct queue *q = arg;

	for (unsigned i = 0; i < 50; i++) {
		rt_mutex_lock(&q->lock);
		while (q->queued == 2)
			rt_cond_wait(&q->room, &q->lock, RT_FOREVER);
		q->queued++;
		rt_mutex_unlock(&q->lock);
		rt_cond_signal(&q->more);
	}
}

static void consume(void *arg)
{
	struct queue *q = arg;

	for (unsigned i = 0; i < 50; i++) {
		rt_mutex_lock(&q->lock);
		while (q->queued == 0)
			rt_cond_wait(&q->more, &q->lock, RT_FOREVER);
		q->queued--;
		rt_mutex_unlock(&q->lock);
		rt_cond_signal(&q->room);
	}
}

static int queue_world(void *arg)
{
	struct queue q = {0};
	struct rt_task *tasks[6];

	for (unsigned i = 0; i < 6; i++)
		CHECK(rt_task_spawn(&tasks[i], "queue", i % 2 ? produce : consume, &q) ==
			0);
	for (unsigned i = 0; i < 6; i++)
		rt_task_join(tasks[i]);
	CHECK(q.queued == 0);
	return 0;
}

/* A lost signal is a deadlock, which aborts. */
static void condition_loses_no_signal(void **state)
{
	for (uint64_t seed = 0; seed < 300; seed++)
		rt_sim_run(seed,
			&(struct rt_sim_options){.switch_one_in = 1 + (unsigned)seed % 4},
			queue_world, NULL);
}

struct gate_world {
	struct rt_gate gate;
	uint32_t width;
	unsigned inside, most, entered;
	uint32_t order[40]; /* tickets, as they were let in; with width 1 */
};

static void gate_visitor(void *arg)
{
	struct gate_world *w = arg;

	for (unsigned i = 0; i < 8; i++) {
		rt_gate_enter(&w->gate, w->width);
		w->inside++;
		w->most = MAX(w->most, w->inside);
		w->entered++;
		rt_yield();
		w->inside--;
		rt_gate_leave(&w->gate, w->width);
	}
}

static int gate_visits(void *arg)
{
	struct gate_world w = {.width = *(uint32_t *)arg};
	struct rt_task *tasks[5];

	w.gate.tickets = w.gate.left = UINT32_MAX - 10; /* they may run over */
	for (unsigned i = 0; i < 5; i++)
		CHECK(rt_task_spawn(&tasks[i], "visitor", gate_visitor, &w) == 0);
	for (unsigned i = 0; i < 5; i++)
		rt_task_join(tasks[i]);
	CHECK(w.entered == 40 && w.inside == 0 && w.most <= w.width);
	CHECK(w.gate.tickets == w.gate.left);
	return (int)w.most;
}

/* A wake-up that gets lost is a deadlock, which aborts. */
static void gate_lets_in_as_many_as_it_is_wide(void **state)
{
	unsigned full = 0;

	for (uint32_t width = 1; width <= 3; width++)
		for (uint64_t seed = 0; seed < 100; seed++)
			full += (uint32_t)rt_sim_run(seed,
					&(struct rt_sim_options){
						.switch_one_in = 1 + (unsigned)seed % 4},
					gate_visits, &width) == width;
	assert_true(full > 200);
}

static void gate_queue_up(void *arg)
{
	struct gate_world *w = arg;
	unsigned me = w->entered++;

	rt_gate_enter(&w->gate, 1);
	w->order[w->most++] = me;
	rt_yield();
	rt_gate_leave(&w->gate, 1);
}

/* Who has it and wants it again comes last, like all others who come late. */
static int gate_order(void *arg)
{
	struct gate_world w = {.width = 1};
	struct rt_task *tasks[10];

	rt_gate_enter(&w.gate, 1);
	for (unsigned i = 0; i < 10; i++) {
		CHECK(rt_task_spawn(&tasks[i], "visitor", gate_queue_up, &w) == 0);
		while (atomic_load(&w.gate.tickets) < 2 + i)
			rt_yield();
	}
	rt_gate_leave(&w.gate, 1);
	rt_gate_enter(&w.gate, 1);
	CHECK(w.most == 10);
	rt_gate_leave(&w.gate, 1);
	for (unsigned i = 0; i < 10; i++) {
		CHECK(w.order[i] == i);
		rt_task_join(tasks[i]);
	}
	return 0;
}

static void gate_lets_in_in_the_order_of_coming(void **state)
{
	for (uint64_t seed = 0; seed < 100; seed++)
		rt_sim_run(seed, NULL, gate_order, NULL);
}

/* ---- a stuck world --------------------------------------------------------------- */

static void lock_both(void *arg)
{
	struct rt_mutex *m = arg;

	rt_mutex_lock(&m[1]);
	rt_yield();
	rt_mutex_lock(&m[0]);
}

static int deadlock_world(void *arg)
{
	struct rt_mutex *m = rt_alloc(2 * sizeof(*m));
	struct rt_task *task;

	rt_mutex_lock(&m[0]);
	CHECK(rt_task_spawn(&task, "the-other", lock_both, m) == 0);
	rt_sleep_ns(1000000);
	rt_mutex_lock(&m[1]);
	return 0;
}

static int endless_world(void *arg)
{
	while (rt_simulated)
		rt_yield();
	return 0;
}

/* Runs the world in a child; what it says on stderr, and that it aborts. */
static void expect_abort(int (*world)(void *), const struct rt_sim_options *options,
	const char *const *words)
{
	char text[4096];
	size_t len = 0;
	ssize_t n;
	int pipe_fds[2], status;
	pid_t pid;

	assert_int_equal(pipe(pipe_fds), 0);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		dup2(pipe_fds[1], STDERR_FILENO);
		rt_sim_run(77, options, world, NULL);
		_exit(0);
	}
	close(pipe_fds[1]);
	while (len < sizeof(text) - 1 &&
		(n = read(pipe_fds[0], text + len, sizeof(text) - 1 - len)) > 0)
		len += (size_t)n;
	text[len] = 0;
	close(pipe_fds[0]);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
	for (; *words; words++)
		if (!strstr(text, *words))
			fail_msg("no \"%s\" in: %s", *words, text);
}

static void deadlock_is_reported(void **state)
{
	static const char *const words[] = {
		"deadlock", "the-other", "first", "word", "seed 77", NULL};

	expect_abort(deadlock_world, NULL, words);
}

static void livelock_is_reported(void **state)
{
	static const char *const steps[] = {"too many steps", "seed 77", NULL};
	static const char *const time[] = {"time limit", "seed 77", NULL};

	expect_abort(endless_world, &(struct rt_sim_options){.step_limit = 10000}, steps);
	expect_abort(endless_world, &(struct rt_sim_options){.time_limit_ns = 2000000000},
		time);
}

/* ---- a look ---------------------------------------------------------------------- */

static void count_on(void *arg)
{
	unsigned *count = arg;

	while (*count < 1000) {
		++*count;
		rt_yield();
	}
}

/* Nobody runs while it is looked, however often somebody could. */
static int look_world(void *arg)
{
	struct rt_mutex *m = rt_alloc(sizeof(*m));
	uint64_t *trace = arg;
	unsigned count = 0, seen;
	struct rt_task *task;

	CHECK(rt_task_spawn(&task, "counter", count_on, &count) == 0);
	rt_sleep_ns(10000);
	seen = count;
	CHECK(seen > 0 && seen < 1000);
	rt_sim_look(true);
	for (unsigned i = 0; i < 100 && trace[0]; i++) {
		rt_mutex_lock(m);
		rt_sched_point();
		rt_mutex_unlock(m);
	}
	CHECK(count == seen);
	rt_sim_look(false);
	while (count == seen)
		rt_sched_point();
	rt_task_join(task);
	trace[1] = rt_sim_trace();
	return 0;
}

static void a_look_changes_nothing(void **state)
{
	for (uint64_t seed = 0; seed < 20; seed++) {
		uint64_t looks[2] = {1}, does_not[2] = {0};

		assert_int_equal(rt_sim_run(seed, NULL, look_world, looks), 0);
		assert_int_equal(rt_sim_run(seed, NULL, look_world, does_not), 0);
		assert_true(looks[1] == does_not[1]);
	}
}

static int impatient_world(void *arg)
{
	struct rt_mutex *m = rt_alloc(2 * sizeof(*m));
	struct rt_task *task;

	CHECK(rt_task_spawn(&task, "the-other", lock_both, m) == 0);
	while (rt_mutex_trylock(&m[1])) {
		rt_mutex_unlock(&m[1]);
		rt_yield();
	}
	rt_sim_look(true);
	rt_mutex_lock(&m[1]);
	return 0;
}

static void a_look_that_waits_is_reported(void **state)
{
	static const char *const words[] = {"a look would have to wait", "seed 77", NULL};

	expect_abort(impatient_world, NULL, words);
}

/* ---- nodes ----------------------------------------------------------------------- */

static unsigned crash_calls;
static unsigned survivors;

static void count_crash(void *arg)
{
	crash_calls += (unsigned)(uintptr_t)arg;
	rt_free(rt_alloc(10));
}

static void child_of_node(void *arg)
{
	CHECK(rt_sim_node() == *(unsigned *)arg);
	for (;;)
		rt_sleep_ns(1000);
}

static void live_on_node(void *arg)
{
	struct rt_mutex *m = rt_alloc(sizeof(*m));
	unsigned node = rt_sim_node();
	struct rt_task *tasks[3];

	CHECK(m && rt_alloc_pages(3 << 20));
	rt_on_crash(count_crash, (void *)1);
	rt_on_crash(count_crash, (void *)10);
	rt_on_crash(count_crash, (void *)100);
	rt_on_crash_forget(count_crash, (void *)10);
	for (unsigned i = 0; i < 3; i++)
		CHECK(rt_task_spawn(&tasks[i], "child", child_of_node, &node) == 0);
	rt_mutex_lock(m);
	if (arg)
		rt_sim_node_kill(node);
	rt_mutex_lock(m); /* for ever */
	survivors++;
}

static int kill_world(void *arg)
{
	unsigned other = rt_sim_node_new("other");
	unsigned node = rt_sim_node_new("victim");

	CHECK(node != 0 && rt_sim_node() == 0 && !rt_sim_node_dead(node));
	CHECK(!rt_sim_node_wait(node)); /* no task, not dead */
	CHECK(rt_sim_spawn_on(node, "main", live_on_node, arg) == 0);
	if (!arg) {
		rt_sleep_ns(1000000);
		CHECK(rt_sim_node_memory(node) == (3 << 20) + sizeof(struct rt_mutex));
		rt_sim_node_kill(node);
	}
	CHECK(rt_sim_node_wait(node) && rt_sim_node_dead(node));
	CHECK(rt_sim_node_memory(node) == 0 && crash_calls == 101 && survivors == 0);
	rt_sim_node_kill(node);
	CHECK(!rt_sim_node_dead(other));
	rt_sleep_ns(1000000);
	CHECK(survivors == 0 && crash_calls == 101);
	return 0;
}

static void kill_takes_everything_of_a_node(void **state)
{
	for (uint64_t seed = 0; seed < 50; seed++) {
		crash_calls = 0;
		rt_sim_run(seed, NULL, kill_world, NULL);
		crash_calls = 0;
		rt_sim_run(seed, NULL, kill_world, (void *)1);
	}
}

static int unfinished_world(void *arg)
{
	unsigned node = rt_sim_node_new("left");

	CHECK(rt_sim_spawn_on(node, "main", live_on_node, NULL) == 0);
	rt_sleep_ns(1000000);
	return 0;
}

static void end_of_a_run_takes_what_is_left(void **state)
{
	crash_calls = 0;
	rt_sim_run(1, NULL, unfinished_world, NULL);
	assert_int_equal(crash_calls, 101);
}

static void finish_early(void *arg)
{
	rt_sleep_ns(1000);
	++*(unsigned *)arg;
}

static int finish_world(void *arg)
{
	unsigned node = rt_sim_node_new("node"), ended = 0;

	for (unsigned i = 0; i < 100; i++) {
		CHECK(rt_sim_spawn_on(node, "main", finish_early, &ended) == 0);
		CHECK(rt_sim_spawn_on(node, "main", finish_early, &ended) == 0);
		CHECK(!rt_sim_node_wait(node));
		CHECK(ended == 2 * (i + 1));
	}
	return 0;
}

static void wait_sees_a_node_finish(void **state)
{
	for (uint64_t seed = 0; seed < 20; seed++)
		rt_sim_run(seed, NULL, finish_world, NULL);
}

/* ---- memory ---------------------------------------------------------------------- */

static void allocate_some(void *arg)
{
	for (unsigned i = 1; i <= 6; i++) {
		void *p = i % 2 ? rt_alloc(100) : rt_alloc_pages(PAGE_SIZE);

		CHECK((p == NULL) == (i == (unsigned)(uintptr_t)arg));
		CHECK((uintptr_t)p % CACHE_LINE == 0);
	}
}

static int memory_world(void *arg)
{
	for (unsigned n = 0; n <= 7; n++) {
		unsigned node = rt_sim_node_new("node");

		rt_sim_alloc_fail(n);
		CHECK(rt_sim_spawn_on(
			      node, "main", allocate_some, (void *)(uintptr_t)n) == 0);
		rt_sim_node_wait(node);
		CHECK(rt_sim_allocs() == 6 * (n + 1));
	}
	return 0;
}

static void chosen_allocation_fails(void **state)
{
	rt_sim_run(1, NULL, memory_world, NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(run_returns_the_result),
		cmocka_unit_test(same_seed_gives_the_same_run),
		cmocka_unit_test(mutex_excludes_under_every_schedule),
		cmocka_unit_test(scheduling_points_expose_races),
		cmocka_unit_test(time_is_virtual),
		cmocka_unit_test(wake_reaches_waiters),
		cmocka_unit_test(condition_loses_no_signal),
		cmocka_unit_test(gate_lets_in_as_many_as_it_is_wide),
		cmocka_unit_test(gate_lets_in_in_the_order_of_coming),
		cmocka_unit_test(deadlock_is_reported),
		cmocka_unit_test(livelock_is_reported),
		cmocka_unit_test(a_look_changes_nothing),
		cmocka_unit_test(a_look_that_waits_is_reported),
		cmocka_unit_test(kill_takes_everything_of_a_node),
		cmocka_unit_test(end_of_a_run_takes_what_is_left),
		cmocka_unit_test(wait_sees_a_node_finish),
		cmocka_unit_test(chosen_allocation_fails),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
