/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The simulated runtime's scheduler: tasks, virtual time, waiting and waking.
 *
 * One task runs at a time. At each switch the seed picks the next among the runnable ones. If there
 * is none, time jumps to the next timer. If there is no timer either, the world is deadlocked: the
 * scheduler lists all tasks with their waits, and aborts.
 *
 * Addresses must not influence any choice, or runs would differ. The buckets of waiting tasks are
 * hashed by address. But they are only ever searched for one word, in order of arrival.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/rt/sim.h"

/* Each switch takes some time, so that a task which polls a deadline gets there. */
#define STEP_NS_MIN   50u
#define STEP_NS_RANGE 200u
/* rt_wait may return early. It does so in one of so many calls. */
#define EARLY_RETURN_ONE_IN 32u
/* A spin goes on for so many steps before it sleeps between them. */
#define SPINS_BEFORE_SLEEP 64u
#define SPIN_SLEEP_NS      50000u

struct sim *sim;

/* ---- choices ------------------------------------------------------------------- */

/* SplitMix64. */
uint64_t sim_rng_next(struct sim_rng *rng)
{
	uint64_t z = rng->state += 0x9e3779b97f4a7c15ull;

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
	return z ^ (z >> 31);
}

uint64_t sim_rng_below(struct sim_rng *rng, uint64_t n)
{
	return (uint64_t)(((unsigned __int128)sim_rng_next(rng) * n) >> 64);
}

static void trace_add(uint64_t value)
{
	sim->trace = (sim->trace ^ value) * 0x100000001b3ull;
	sim->trace ^= sim->trace >> 29;
}

/* ---- timers: a binary heap by (time, order of setting) --------------------------- */

static bool timer_before(const struct sim_timer *a, const struct sim_timer *b)
{
	return a->at != b->at ? a->at < b->at : a->order < b->order;
}

static void timer_place(struct sim_timer *timer, size_t slot)
{
	sim->timers[slot] = timer;
	timer->slot = slot;
}

static void timer_up(struct sim_timer *timer, size_t slot)
{
	while (slot > 1 && timer_before(timer, sim->timers[slot / 2])) {
		timer_place(sim->timers[slot / 2], slot);
		slot /= 2;
	}
	timer_place(timer, slot);
}

static void timer_down(struct sim_timer *timer, size_t slot)
{
	for (;;) {
		size_t child = slot * 2;

		if (child > sim->timer_count)
			break;
		if (child < sim->timer_count &&
			timer_before(sim->timers[child + 1], sim->timers[child]))
			child++;
		if (timer_before(timer, sim->timers[child]))
			break;
		timer_place(sim->timers[child], slot);
		slot = child;
	}
	timer_place(timer, slot);
}

/* Room for `count` pointers, and one for the heap's unused slot 0. */
static void *heap_grow(void *array, size_t *room, size_t count)
{
	if (count + 1 < *room)
		return array;
	*room = MAX(*room * 2, (size_t)64);
	array = realloc(array, *room * sizeof(void *));
	WEFT_ASSERT(array);
	return array;
}

void sim_timer_set(struct sim_timer *timer, uint64_t at, void (*fire)(struct sim_timer *))
{
	WEFT_ASSERT(timer->slot == 0);
	timer->at = at;
	timer->order = ++sim->timer_order;
	timer->fire = fire;
	sim->timers = heap_grow(sim->timers, &sim->timer_room, sim->timer_count + 1);
	sim->timer_count++;
	timer_up(timer, sim->timer_count);
}

void sim_timer_cancel(struct sim_timer *timer)
{
	size_t slot = timer->slot;
	struct sim_timer *last;

	if (!slot)
		return;
	timer->slot = 0;
	last = sim->timers[sim->timer_count--];
	if (last == timer)
		return;
	if (slot > 1 && timer_before(last, sim->timers[slot / 2]))
		timer_up(last, slot);
	else
		timer_down(last, slot);
}

static void fire_due_timers(void)
{
	while (sim->timer_count && sim->timers[1]->at <= sim->now) {
		struct sim_timer *timer = sim->timers[1];

		sim_timer_cancel(timer);
		timer->fire(timer);
	}
}

/* ---- the report of a stuck world ---------------------------------------------------- */

static void list_tasks(void)
{
	for (unsigned n = 0; n < sim->node_count; n++) {
		for (struct sim_task *t = sim->nodes[n]->tasks; t; t = t->node_next) {
			if (t->state == SIM_ENDED)
				continue;
			fprintf(stderr, "  node %u (%s) task %" PRIu64 " %-15s ", n,
				sim->nodes[n]->name, t->id, t->base.name);
			if (t->state != SIM_BLOCKED)
				fprintf(stderr, "can run");
			else if (t->word)
				fprintf(stderr,
					"waits while the word at %p is %u (it is %u)",
					(void *)t->word, t->expected, *t->word);
			else
				fprintf(stderr, "waits: %s", t->reason);
			if (t->timer.slot)
				fprintf(stderr, ", until %" PRIu64 " ns", t->timer.at);
			fputc('\n', stderr);
		}
	}
}

static _Noreturn void abort_stuck(const char *why)
{
	fprintf(stderr, "simulation: %s at %" PRIu64 " ns, %" PRIu64 " steps. Tasks:\n",
		why, sim->now, sim->steps);
	list_tasks();
	abort();
}

/* ---- switching ------------------------------------------------------------------- */

static void make_runnable(struct sim_task *task)
{
	task->state = SIM_RUNNABLE;
	sim->runnable = (struct sim_task **)heap_grow(
		sim->runnable, &sim->runnable_room, sim->runnable_count);
	task->run_slot = sim->runnable_count;
	sim->runnable[sim->runnable_count++] = task;
}

static void take_from_runnable(struct sim_task *task)
{
	struct sim_task *last = sim->runnable[--sim->runnable_count];

	sim->runnable[task->run_slot] = last;
	last->run_slot = task->run_slot;
}

static struct sim_task *pick_task(void)
{
	struct sim_task *task;

	if (sim->looking)
		abort_stuck("a look would have to wait");
	if (++sim->steps > sim->options.step_limit)
		abort_stuck("too many steps");
	sim->now += STEP_NS_MIN + sim_rng_below(&sim->schedule_rng, STEP_NS_RANGE);
	fire_due_timers();
	while (sim->runnable_count == 0) {
		if (sim->timer_count == 0)
			abort_stuck("deadlock: nothing can run and no deadline is left");
		sim->now = sim->timers[1]->at;
		fire_due_timers();
	}
	if (sim->now > sim->options.time_limit_ns)
		abort_stuck("past the time limit");
	task = sim->runnable[sim_rng_below(&sim->schedule_rng, sim->runnable_count)];
	take_from_runnable(task);
	trace_add(task->id);
	trace_add(sim->now);
	return task;
}

static void free_grave(void)
{
	if (sim->grave) {
		sim_task_free(sim->grave);
		sim->grave = NULL;
	}
}

/* Lets the next task run. Returns when the caller is picked again. */
static void switch_away(void)
{
	struct sim_task *self = sim->current, *next = pick_task();

	sim->current = next;
	next->state = SIM_RUNNING;
	if (next == self)
		return;
	sim_context_switch(&self->context, &next->context, false);
	free_grave();
}

static void block_current(const char *reason)
{
	WEFT_ASSERT(sim->current &&
		    sim->crashing == UINT32_MAX); /* crash functions do not wait */
	sim->current->state = SIM_BLOCKED;
	sim->current->reason = reason;
	switch_away();
}

void sim_yield(void)
{
	WEFT_ASSERT(sim->current && sim->crashing == UINT32_MAX);
	make_runnable(sim->current);
	switch_away();
}

void sim_task_on_cpu(unsigned cpu)
{
}

_Noreturn void sim_task_vanish(void)
{
	struct sim_task *self = sim->current, *next;

	next = pick_task();
	WEFT_ASSERT(!sim->grave);
	sim->grave = self;
	sim->current = next;
	next->state = SIM_RUNNING;
	sim_context_switch(&self->context, &next->context, true);
	abort();
}

static void sched_point(void)
{
	if (sim->current && sim->crashing == UINT32_MAX && !sim->looking &&
		sim_rng_below(&sim->schedule_rng, sim->options.switch_one_in) == 0)
		sim_yield();
}

void rt_sim_look(bool on)
{
	WEFT_ASSERT(sim->current && !(on && sim->looking));
	sim->looking = on;
}

/* ---- waiting --------------------------------------------------------------------- */

static struct sim_task **wait_bucket(_Atomic uint32_t *word)
{
	return &sim->waiting[((uintptr_t)word >> 2) * 0x9e3779b1u / 64 %
			     SIM_WAIT_BUCKETS];
}

static void wait_unlink(struct sim_task *task)
{
	*task->wait_link = task->wait_next;
	if (task->wait_next)
		task->wait_next->wait_link = task->wait_link;
	task->word = NULL;
}

static void wake_task(struct sim_task *task)
{
	sim_timer_cancel(&task->timer);
	if (task->word)
		wait_unlink(task);
	make_runnable(task);
}

static void task_timer_fired(struct sim_timer *timer)
{
	struct sim_task *task = container_of(timer, struct sim_task, timer);

	task->timed_out = true;
	wake_task(task);
}

int sim_wait(_Atomic uint32_t *word, uint32_t expected, uint64_t deadline_ns)
{
	struct sim_task *self = sim->current;
	struct sim_task **link = wait_bucket(word);

	sim_about_to_wait();
	sched_point();
	if (atomic_load(word) != expected)
		return 0;
	if (deadline_ns <= sim->now) {
		sim_yield();
		return -ETIMEDOUT;
	}
	if (sim_rng_below(&sim->schedule_rng, EARLY_RETURN_ONE_IN) == 0) {
		sim_yield();
		return 0;
	}
	while (*link)
		link = &(*link)->wait_next;
	*link = self;
	self->wait_link = link;
	self->wait_next = NULL;
	self->word = word;
	self->expected = expected;
	self->timed_out = false;
	if (deadline_ns != RT_FOREVER)
		sim_timer_set(&self->timer, deadline_ns, task_timer_fired);
	block_current("a word");
	return self->timed_out ? -ETIMEDOUT : 0;
}

static unsigned count_waiters(_Atomic uint32_t *word)
{
	unsigned n = 0;

	for (struct sim_task *t = *wait_bucket(word); t; t = t->wait_next)
		n += t->word == word;
	return n;
}

/* For code outside of tasks: no other task runs meanwhile. */
int sim_wake_quietly(_Atomic uint32_t *word, int count)
{
	unsigned waiters = count_waiters(word);
	int woken = 0;

	for (; waiters && woken < count; waiters--, woken++) {
		uint64_t skip = sim_rng_below(&sim->schedule_rng, waiters);
		struct sim_task *t = *wait_bucket(word);

		for (; t->word != word || skip--; t = t->wait_next)
			;
		wake_task(t);
	}
	return woken;
}

static int sim_wake(_Atomic uint32_t *word, int count)
{
	int woken = sim_wake_quietly(word, count);

	sched_point();
	return woken;
}

static void sim_sleep_ns(uint64_t ns)
{
	uint64_t until = ns > UINT64_MAX / 2 ? UINT64_MAX / 2 : sim->now + ns;

	sim_about_to_wait();
	sim_timer_set(&sim->current->timer, until, task_timer_fired);
	block_current("sleep");
}

static void sim_spin(unsigned *spins)
{
	sim_about_to_wait();
	if ((*spins)++ < SPINS_BEFORE_SLEEP)
		sim_yield();
	else
		sim_sleep_ns(SPIN_SLEEP_NS);
}

/* ---- tasks ----------------------------------------------------------------------- */

unsigned sim_current_node(void)
{
	if (sim->crashing != UINT32_MAX)
		return sim->crashing;
	return sim->current ? sim->current->node : 0;
}

static void task_ended(struct sim_task *task)
{
	struct sim_node *node = sim->nodes[task->node];

	task->state = SIM_ENDED;
	if (--node->running_tasks == 0) {
		atomic_fetch_add(&node->changed, 1);
		sim_wake_quietly(&node->changed, INT32_MAX);
	}
	if (task->joiner)
		wake_task(task->joiner);
}

static void task_entry(void)
{
	struct sim_task *self = sim->current;

	sim_context_entered(&self->context, sim->switched_from);
	free_grave();
	self->fn(self->arg);
	task_ended(self);
	if (self->detached)
		sim_task_vanish();
	/* The joiner frees it. The task leaves its stack before the joiner can run. */
	self->reason = "its join";
	sim->current = pick_task();
	sim->current->state = SIM_RUNNING;
	sim_context_switch(&self->context, &sim->current->context, true);
	abort();
}

static int index_take(struct sim_node *node)
{
	for (unsigned i = 0; i < ARRAY_SIZE(node->index_used); i++) {
		if (node->index_used[i] != UINT64_MAX) {
			int bit = __builtin_ctzll(~node->index_used[i]);

			node->index_used[i] |= 1ull << bit;
			return (int)i * 64 + bit;
		}
	}
	return -EAGAIN;
}

int sim_task_new(struct sim_task **out, unsigned node_id, const char *name,
	void (*fn)(void *), void *arg)
{
	struct sim_node *node = sim->nodes[node_id];
	struct sim_task *task = sim_own_alloc(sizeof(*task));
	int index = index_take(node);

	if (index < 0 || sim_context_make(&task->context, task_entry)) {
		free(task);
		return -EAGAIN;
	}
	strncpy(task->base.name, name, sizeof(task->base.name) - 1);
	task->base.index = (unsigned)index;
	task->node = node_id;
	task->id = ++sim->last_task_id;
	task->fn = fn;
	task->arg = arg;
	task->node_next = node->tasks;
	task->node_link = &node->tasks;
	if (node->tasks)
		node->tasks->node_link = &task->node_next;
	node->tasks = task;
	node->running_tasks++;
	make_runnable(task);
	*out = task;
	return 0;
}

void sim_task_free(struct sim_task *task)
{
	struct sim_node *node = sim->nodes[task->node];

	sim_holds_forget(task);
	if (task->state == SIM_RUNNABLE)
		take_from_runnable(task);
	sim_timer_cancel(&task->timer);
	if (task->word)
		wait_unlink(task);
	if (task->state != SIM_ENDED)
		node->running_tasks--;
	*task->node_link = task->node_next;
	if (task->node_next)
		task->node_next->node_link = task->node_link;
	node->index_used[task->base.index / 64] &= ~(1ull << (task->base.index % 64));
	sim_context_free(&task->context);
	free(task);
}

static int sim_task_spawn(
	struct rt_task **out, const char *name, void (*fn)(void *), void *arg)
{
	struct sim_task *task;
	int rc = sim_task_new(&task, sim_current_node(), name, fn, arg);

	if (rc)
		return rc;
	*out = &task->base;
	sched_point();
	return 0;
}

static void sim_task_join(struct rt_task *base)
{
	struct sim_task *task = container_of(base, struct sim_task, base);

	WEFT_ASSERT(!task->detached && !task->joiner);
	sim_about_to_wait();
	if (task->state != SIM_ENDED) {
		task->joiner = sim->current;
		block_current("a task's end");
	}
	sim_task_free(task);
}

static unsigned sim_task_index(void)
{
	return sim->current ? sim->current->base.index : 0;
}

/* Runs tasks until the first one has ended and switches back. */
void sim_sched_start(struct sim_context *from)
{
	sim->current = pick_task();
	sim->current->state = SIM_RUNNING;
	sim_context_switch(from, &sim->current->context, false);
	free_grave();
}

/* ---- time and randomness --------------------------------------------------------- */

#define SIM_WALL_START_NS 1700000000000000000ll

static uint64_t sim_now_ns(void)
{
	return sim->now++;
}

static int64_t sim_wall_ns(void)
{
	return SIM_WALL_START_NS + (int64_t)sim->now++;
}

static uint64_t sim_random(void)
{
	return sim_rng_next(&sim->task_rng);
}

static void sim_random_bytes(void *buf, size_t len)
{
	uint8_t *p = buf;

	while (len) {
		uint64_t r = sim_random();
		size_t n = MIN(len, sizeof(r));

		memcpy(p, &r, n);
		p += n;
		len -= n;
	}
}

const struct rt_ops rt_sim_ops = {
	.now_ns = sim_now_ns,
	.wall_ns = sim_wall_ns,
	.random = sim_random,
	.random_bytes = sim_random_bytes,
	.alloc = sim_alloc,
	.free = sim_free,
	.alloc_pages = sim_alloc_pages,
	.free_pages = sim_free_pages,
	.on_crash = sim_on_crash,
	.on_crash_forget = sim_on_crash_forget,
	.task_spawn = sim_task_spawn,
	.task_join = sim_task_join,
	.task_index = sim_task_index,
	.task_on_cpu = sim_task_on_cpu,
	.yield = sim_yield,
	.sleep_ns = sim_sleep_ns,
	.spin = sim_spin,
	.sched_point = sched_point,
	.wait = sim_wait,
	.holds = sim_holds,
	.lets_go = sim_lets_go,
	.awaits = sim_awaits,
	.may_wait = sim_about_to_wait,
	.wake = sim_wake,
	.disk_open = sim_disk_open,
	.disk_close = sim_disk_close,
	.disk_register = sim_disk_register,
	.disk_submit = sim_disk_submit,
	.disk_wait = sim_disk_wait,
	.disk_run = sim_disk_run,
	.sockets = &rt_sim_socket_ops,
};
