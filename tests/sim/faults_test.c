/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Errors at every point: a read, write or flush of the log or of the pages that fails
 * once or from then on, memory that is not there, a full disk. Callers get an errno and
 * nothing that is not true: what an fsync said is durable is. The rest goes on: reads
 * always; changes too, unless the log has failed, which turns the volume read-only. After
 * a remount, with a power cut or without, the model's rules hold.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

#include "tests/sim/harness.h"

#define LIVES 3u

enum plan { PLAN_DISK, PLAN_MEMORY, PLAN_FULL };

static struct {
	enum plan plan;
	struct sim_shape shape;
	uint64_t point; /* of the first life's requests or allocations; 0: no fault */
	unsigned life;
	bool finished, gave_up;
	bool clean;        /* the last life's close succeeded */
	uint64_t measured; /* requests or allocations of a life without faults */
	struct rt_sim_disk *disk;
	struct model model;
} run;

static uint64_t pick(unsigned what, uint64_t below)
{
	return sim_mix(run.shape.seed * 1000003 + run.point * 101 + run.life * 7919 +
		       what) %
	       below;
}

static void heal(void)
{
	rt_sim_disk_fail(run.disk, &(struct rt_sim_fail){0});
	rt_sim_alloc_fail(0);
}

/* One kind of request, on one area of the disk. */
static void break_disk(struct fs *fs, uint64_t n)
{
	static const unsigned kinds[] = {RT_SIM_FAIL_READ, RT_SIM_FAIL_WRITE,
		RT_SIM_FAIL_FLUSH, RT_SIM_FAIL_WRITE | RT_SIM_FAIL_FLUSH};
	const struct disk_superblock *sb = store_superblock(fs_volume(fs)->store);
	struct rt_sim_fail fail = {.ops = kinds[pick(10, ARRAY_SIZE(kinds))],
		.n = n,
		.sticky = pick(11, 3) == 0};

	switch (pick(12, 4)) {
	case 0:
		fail.offset = sb->log_offset;
		fail.length = sb->log_bytes;
		break;
	case 1:
		fail.offset = sb->pages_offset;
		fail.length = sb->page_count * PAGE_SIZE;
		break;
	case 2:
		fail.offset = sb->table_offset;
		fail.length = sb->table_bytes;
		break;
	default:
		break;
	}
	rt_sim_disk_fail(run.disk, &fail);
	if (model_trace)
		fprintf(stderr, "fault: ops %x n %llu sticky %d at %llu + %llu\n",
			fail.ops, (unsigned long long)n, fail.sticky,
			(unsigned long long)fail.offset, (unsigned long long)fail.length);
}

static unsigned errors_of_plan(void)
{
	switch (run.plan) {
	case PLAN_DISK:
		return WORKLOAD_EIO;
	case PLAN_MEMORY:
		return WORKLOAD_ENOMEM;
	default:
		return WORKLOAD_ENOSPC;
	}
}

static uint64_t counter(void)
{
	return run.plan == PLAN_MEMORY ? rt_sim_allocs() : rt_sim_disk_ops(run.disk);
}

static void life_main(void *arg)
{
	struct workload work = {.model = &run.model,
		.tasks = run.shape.tasks,
		.ops = run.shape.ops,
		.heal = heal,
		.large = run.plan == PLAN_FULL};
	struct model_cover cover;
	uint64_t before;
	int rc;

	work.fs = sim_life_begin(&run.shape, &run.model);
	if (run.plan == PLAN_FULL || (run.point && run.life < LIVES))
		work.errors = errors_of_plan();
	work.seed = run.life == 0 ? sim_mix(run.shape.seed) : pick(1, UINT64_MAX);
	before = counter();
	if (run.point && run.life < LIVES) {
		uint64_t n =
			run.life == 0 ? run.point : 1 + pick(3, MAX(run.measured, 1));

		if (run.plan == PLAN_DISK)
			break_disk(work.fs, n);
		else if (run.plan == PLAN_MEMORY)
			rt_sim_alloc_fail(n);
	}
	sim_life_work(&work);
	if (run.life == 0 && !run.point)
		run.measured = counter() - before;
	heal();
	sim_life_audit(&work);
	if (pick(4, 3) == 0)
		rt_sim_node_kill(rt_sim_node()); /* no close, but a cut */
	model_cover(&run.model, &cover);
	rc = sim_close(work.fs);
	if (rc == 0)
		model_all_durable(&run.model, &cover);
	else if (rc != -EIO || run.plan != PLAN_DISK)
		workload_die("close returned %d", rc);
	run.finished = true;
}

static void live(void)
{
	run.finished = false;
	sim_repeat_note("WEFT_SIM_CUT=%llu", (unsigned long long)run.point);
	if (model_trace)
		fprintf(stderr, "life %u\n", run.life);
	if (sim_node_run(life_main, NULL))
		atomic_fetch_add(&sim_totals->cuts, 1);
	heal();
	atomic_fetch_add(&sim_totals->lives, 1);
	run.life++;
}

static int run_main(void *arg)
{
	sim_watch();
	run.life = 0;
	run.disk = sim_disk_formatted("disk", &run.shape);
	model_init(&run.model, run.shape.tasks);
	while (run.life < LIVES + 1)
		live();
	model_free(&run.model);
	memset(&run.model, 0, sizeof(run.model));
	return 0;
}

static void one_run(uint64_t point)
{
	run.point = point;
	sim_run(&run.shape, run_main);
}

static void seed_main(uint64_t seed)
{
	uint64_t only = sim_env("WEFT_SIM_CUT", 0);

	run.shape = sim_shape_of(seed);
	sim_prepare(&run.shape);
	one_run(0);
	if (only)
		one_run(only);
	else
		sim_each_point(seed, run.measured, one_run);
}

static void full_seed_main(uint64_t seed)
{
	run.shape = sim_shape_of(seed);
	run.shape.disk_bytes = 9ull << 20;
	run.shape.tasks = 1 + seed % MODEL_TASKS;
	run.shape.filled = false;
	run.shape.ops = 200;
	sim_prepare(&run.shape);
	for (uint64_t i = 1; i <= 4; i++)
		one_run(i);
}

static void check(const char *test, enum plan plan, uint64_t seeds, void (*fn)(uint64_t))
{
	uint64_t count = sim_env("WEFT_SIM_SEEDS", seeds);
	unsigned failed;

	run.plan = plan;
	failed = sim_each_seed(test, sim_env("WEFT_SIM_FIRST", 1), count, 600, fn);
	printf("             %llu runs, %llu lives, %llu errors answered, %llu syncs\n",
		(unsigned long long)sim_totals->runs,
		(unsigned long long)sim_totals->lives,
		(unsigned long long)sim_totals->faults,
		(unsigned long long)sim_totals->syncs);
	assert_int_equal(failed, 0);
	if (!getenv("WEFT_SIM_SEED") && count >= seeds) /* a few may meet none */
		assert_true(sim_totals->faults > 0);
}

static void failing_disks_are_answered_truly(void **state)
{
	check("'*disks*'", PLAN_DISK, 5, seed_main);
}

static void failing_allocations_are_answered_truly(void **state)
{
	check("'*allocations*'", PLAN_MEMORY, 5, seed_main);
}

static void full_volumes_are_answered_truly(void **state)
{
	check("'*full*'", PLAN_FULL, 5, full_seed_main);
}

/* An argument picks tests by name ("*full*"). */
int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(failing_disks_are_answered_truly),
		cmocka_unit_test(failing_allocations_are_answered_truly),
		cmocka_unit_test(full_volumes_are_answered_truly),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
