/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Power cuts: for each seed the run is cut at disk operations spread over all of it,
 * recovered, judged by the model, worked on and cut again, in recovery too; at the end it
 * is closed cleanly and nothing may be missing.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

#include "tests/sim/harness.h"

#define LIVES 6u /* of a node, in one run */

static struct {
	struct sim_shape shape;
	uint64_t cut; /* of the first life; 0: none */
	unsigned life;
	uint64_t cut_later;    /* armed once the recovery has been judged; 0: not */
	bool judged, finished; /* of this life */
	bool fsck;             /* after this life's recovery */
	uint64_t requests;     /* of an uncut first life */
	struct rt_sim_disk *disk;
	struct model model;
} run;

/* A number that depends on the run, the life and what it is for. */
static uint64_t pick(unsigned what, uint64_t below)
{
	return sim_mix(run.shape.seed * 1000003 + run.cut * 101 + run.life * 7919 +
		       what) %
	       below;
}

static void life_main(void *arg)
{
	struct workload work = {
		.model = &run.model, .tasks = run.shape.tasks, .ops = run.shape.ops};
	struct model_cover cover;

	work.fs = sim_life_begin(&run.shape, &run.model);
	if (run.fsck)
		sim_check_fsck(run.disk);
	run.judged = true;
	if (run.cut_later)
		rt_sim_disk_cut_after(run.disk, run.cut_later);
	/* the first life is the same in all runs of a seed, up to its cut */
	work.seed = run.life == 0 ? sim_mix(run.shape.seed) : pick(1, UINT64_MAX);
	sim_life_work(&work);
	sim_life_audit(&work);
	model_cover(&run.model, &cover);
	OK(sim_close(work.fs));
	model_all_durable(&run.model, &cover);
	run.finished = true;
}

/* Runs a life with a cut at its n-th disk request, or later: at the n-th once it is
 * judged. */
static void live(uint64_t n, bool later)
{
	uint64_t before = rt_sim_disk_ops(run.disk);

	run.judged = run.finished = false;
	run.cut_later = later ? n : 0;
	/* not while a cut is armed: the recovery is to meet it */
	run.fsck = run.cut && (later || n == 0);
	rt_sim_disk_cut_after(run.disk, later ? 0 : n);
	sim_repeat_note("WEFT_SIM_CUT=%llu", (unsigned long long)run.cut);
	if (model_trace)
		fprintf(stderr, "life %u, to be cut %s request %llu\n", run.life,
			later ? "after recovery at" : "at", (unsigned long long)n);
	if (sim_node_run(life_main, NULL)) {
		atomic_fetch_add(&sim_totals->cuts, 1);
		if (!run.judged)
			atomic_fetch_add(&sim_totals->recovery_cuts, 1);
		if (pick(5, 2) == 0)
			sim_check_fsck(run.disk); /* it replays the log in memory */
	} else {
		WEFT_ASSERT(run.finished);
	}
	if (run.life == 0)
		run.requests = rt_sim_disk_ops(run.disk) - before;
	rt_sim_disk_cut_after(run.disk, 0);
	atomic_fetch_add(&sim_totals->lives, 1);
	run.life++;
}

static int run_main(void *arg)
{
	sim_watch();
	run.life = 0;
	run.disk = sim_disk_formatted("disk", &run.shape);
	model_init(&run.model, run.shape.tasks);
	live(run.cut, false);
	while (run.cut && run.life < LIVES - 1) {
		if (pick(2, 3) == 0)
			live(1 + pick(3, 60), false); /* in the recovery, or soon after */
		else
			live(1 + pick(3, pick(4, 2) ? 600 : 60), true);
	}
	live(0, false);
	live(0, false); /* and nothing was lost by a clean end */
	sim_check_fsck(run.disk);
	model_free(&run.model);
	memset(&run.model, 0, sizeof(run.model));
	return 0;
}

static void one_run(uint64_t cut)
{
	run.cut = cut;
	sim_run(&run.shape, run_main);
}

static void seed_main(uint64_t seed)
{
	uint64_t only = sim_env("WEFT_SIM_CUT", 0);

	run.shape = sim_shape_of(seed);
	sim_prepare(&run.shape);
	one_run(only);
	if (!only)
		sim_each_point(seed, run.requests, one_run);
}

static void after_any_cut_a_volume_is_what_its_syncs_promised(void **state)
{
	unsigned failed = sim_each_seed("", sim_env("WEFT_SIM_FIRST", 1),
		sim_env("WEFT_SIM_SEEDS", 4), 600, seed_main);

	printf("             %llu runs, %llu cuts (%llu in recoveries), %llu fscks, %llu "
	       "operations, "
	       "%llu syncs\n",
		(unsigned long long)sim_totals->runs,
		(unsigned long long)sim_totals->cuts,
		(unsigned long long)sim_totals->recovery_cuts,
		(unsigned long long)sim_totals->fscks,
		(unsigned long long)sim_totals->operations,
		(unsigned long long)sim_totals->syncs);
	assert_int_equal(failed, 0);
	if (!getenv("WEFT_SIM_SEED")) {
		assert_true(sim_totals->cuts > sim_totals->runs);
		assert_true(sim_totals->syncs > 0);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(after_any_cut_a_volume_is_what_its_syncs_promised),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
