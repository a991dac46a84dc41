/* SPDX-License-Identifier: Apache-2.0 */
/* The beginning and the end of a simulation. After any abort in it, prints the seed that repeats
 * it. */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "engine/rt/sim.h"

#define DAY_NS (86400ull * 1000000000ull)

void *sim_own_alloc(size_t size)
{
	void *p = calloc(1, size);

	WEFT_ASSERT(p); /* the test machine, not the tested program, is out of memory */
	return p;
}

/* SA_RESETHAND sets the default handler again. Then abort() raises the signal again. */
static void print_seed(int signal_number)
{
	char text[128];
	int len = snprintf(text, sizeof(text),
		"simulation: aborted, seed %" PRIu64 ", %" PRIu64
		" ns, node %u task %.15s\n",
		sim->seed, sim->now, sim_current_node(),
		sim->current ? sim->current->base.name : "-");

	if (len > 0 && write(STDERR_FILENO, text, (size_t)len) < 0)
		_exit(1);
}

static void first_task(void *arg)
{
	sim->result = sim->fn(sim->arg);
	sim_context_switch(&sim->current->context, &sim->main, true);
}

static void sim_begin(uint64_t seed, const struct rt_sim_options *options)
{
	/* A test that failed by a jump out of its simulation has left one. It is lost. */
	sim = sim_own_alloc(sizeof(*sim));
	sim->seed = seed;
	if (options)
		sim->options = *options;
	if (!sim->options.switch_one_in)
		sim->options.switch_one_in = 16;
	if (!sim->options.time_limit_ns)
		sim->options.time_limit_ns = DAY_NS;
	if (!sim->options.step_limit)
		sim->options.step_limit = 1ull << 32;
	sim->schedule_rng.state = seed;
	sim->disk_rng.state = seed ^ 0x5851f42d4c957f2dull;
	sim->task_rng.state = seed ^ 0x14057b7ef767814full;
	sim->now = 1000000000;
	sim->crashing = UINT32_MAX;
	rt_select(&rt_sim_ops, true);
	rt_sim_node_new("harness");
}

static void sim_end(void)
{
	sim->current = NULL;
	for (unsigned n = sim->node_count; n-- > 0;)
		sim_node_clear(n);
	sim_disks_free();
	sim_net_free();
	for (unsigned n = 0; n < sim->node_count; n++)
		free(sim->nodes[n]);
	free(sim->runnable);
	free(sim->timers);
	sim_context_main_done(&sim->main);
	sim_stacks_free();
	free(sim);
	sim = NULL;
}

int rt_sim_run(
	uint64_t seed, const struct rt_sim_options *options, int (*fn)(void *), void *arg)
{
	const struct rt_ops *before = rt_simulated ? &rt_real_ops : rt_selected();
	struct sigaction on_abort = {
		.sa_handler = print_seed, .sa_flags = (int)SA_RESETHAND};
	struct sigaction old;
	struct sim_task *first;
	int result;

	sim_begin(seed, options);
	sim->fn = fn;
	sim->arg = arg;
	WEFT_ASSERT(sigaction(SIGABRT, &on_abort, &old) == 0);
	WEFT_ASSERT(sim_task_new(&first, 0, "first", first_task, NULL) == 0);
	sim_context_main(&sim->main);
	sim_sched_start(&sim->main);
	result = sim->result;
	sim_end();
	sigaction(SIGABRT, &old, NULL);
	rt_select(before, false);
	return result;
}

uint64_t rt_sim_trace(void)
{
	return sim->trace;
}
