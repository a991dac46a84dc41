/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks the locks that tasks hold while they wait (invariant 6). Each mutex, and each lock that is
 * reported with rt_holds, is noted with its holder until it is released.
 *
 * There are two kinds of waits. A task waits for a lock if it waits for a mutex, or has called
 * rt_awaits. The lock's holder may itself wait, but only for another lock. Every other wait is for
 * a message, a disk, time, or another task. A task in such a wait must hold nothing whose `may`
 * refuses it. The same is true of each task that waits for a lock of this task, directly or behind
 * others.
 */
#include <execinfo.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "engine/rt/sim.h"

#define CHAIN_MAX       32u /* locks that are waited for behind one another */
#define FRAMES_OF_STACK 24

struct sim_hold {
	const void *what;
	bool (*may)(const void *what); /* may a task wait while it holds this? NULL: a mutex */
	const void *from;
};

void sim_holds(const void *what, bool (*may)(const void *what), const void *from)
{
	struct sim_task *self = sim->current;

	if (!self || !sim->watches)
		return;
	if (self->hold_count == self->hold_room) {
		self->hold_room = MAX(2 * self->hold_room, 8u);
		self->holds =
			realloc(self->holds, self->hold_room * sizeof(*self->holds));
		WEFT_ASSERT(self->holds);
	}
	self->holds[self->hold_count++] =
		(struct sim_hold){.what = what, .may = may, .from = from};
}

/* The latest is mostly the first to go. Returns false if the task does not hold it. */
static bool task_lets_go(struct sim_task *task, const void *what)
{
	for (unsigned i = task->hold_count; i-- > 0;) {
		if (task->holds[i].what != what)
			continue;
		task->hold_count--;
		for (; i < task->hold_count; i++)
			task->holds[i] = task->holds[i + 1];
		return true;
	}
	return false;
}

/* A task may release a latch that another task has taken. */
void sim_lets_go(const void *what)
{
	if (!sim->watches || (sim->current && task_lets_go(sim->current, what)))
		return;
	for (unsigned n = 0; n < sim->node_count; n++)
		for (struct sim_task *t = sim->nodes[n]->tasks; t; t = t->node_next)
			if (task_lets_go(t, what))
				return;
}

void sim_holds_forget(struct sim_task *task)
{
	free(task->holds);
	if (task->awaits)
		sim->awaiting--;
	task->awaits = NULL;
}

static __attribute__((noreturn)) void waits_wrongly(const struct sim_task *waits,
	const struct sim_task *holder, const struct sim_hold *held)
{
	void *stack[FRAMES_OF_STACK];
	int depth = backtrace(stack, FRAMES_OF_STACK);

	fprintf(stderr,
		"simulation: node %u task %s waits, while node %u task %s holds what may "
		"be needed for that (invariant 6); it was taken at:\n",
		waits->node, waits->base.name, holder->node, holder->base.name);
	backtrace_symbols_fd((void *const *)&held->from, 1, STDERR_FILENO);
	fprintf(stderr, "and this task is at:\n");
	backtrace_symbols_fd(stack, depth, STDERR_FILENO);
	abort();
}

/* Checks that the task holds nothing which forbids the wait of `waits`. */
static void check_holder(const struct sim_task *waits, const struct sim_task *holder)
{
	for (unsigned i = 0; i < holder->hold_count; i++) {
		const struct sim_hold *h = &holder->holds[i];

		if (h->may && !h->may(h->what))
			waits_wrongly(waits, holder, h);
	}
}

/* Checks the holder, the tasks that wait for its locks, and those behind them. */
static void check_behind(
	const struct sim_task *waits, const struct sim_task *holder, unsigned depth)
{
	check_holder(waits, holder);
	if (!sim->awaiting || depth == CHAIN_MAX)
		return;
	for (unsigned i = 0; i < holder->hold_count; i++)
		for (unsigned n = 0; n < sim->node_count; n++)
			for (const struct sim_task *t = sim->nodes[n]->tasks; t;
				t = t->node_next)
				if (t->awaits == holder->holds[i].what && t != holder)
					check_behind(waits, t, depth + 1);
}

void sim_about_to_wait(void)
{
	if (sim->watches && sim->current && !sim->current->awaits)
		check_behind(sim->current, sim->current, 0);
}

static bool task_has(const struct sim_task *task, const void *what)
{
	for (unsigned i = 0; i < task->hold_count; i++)
		if (task->holds[i].what == what)
			return true;
	return false;
}

/* Checks the holder of the lock that the task waits for, and the holders ahead of it. If one of
 * them waits for something else, the task must hold nothing that forbids it. */
static void check_ahead(const struct sim_task *task, const void *what, unsigned depth)
{
	for (unsigned n = 0; n < sim->node_count && depth < CHAIN_MAX; n++)
		for (const struct sim_task *t = sim->nodes[n]->tasks; t;
			t = t->node_next) {
			if (t == task || !task_has(t, what))
				continue;
			if (t->awaits)
				check_ahead(task, t->awaits, depth + 1);
			else if (t->state == SIM_BLOCKED)
				check_behind(t, task, 0);
		}
}

void sim_awaits(const void *what)
{
	struct sim_task *self = sim->current;

	if (!sim->watches || !self)
		return;
	sim->awaiting += (what != NULL) - (self->awaits != NULL);
	self->awaits = what;
	if (what)
		check_ahead(self, what, 0);
}

void rt_sim_watch_waits(void)
{
	sim->watches = true;
}
