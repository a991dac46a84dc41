/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Flushes that fail, while the power stays. What was written before one can be read and
 * need never become durable, whatever flush ends well later: what a recovery finds so it
 * has to write again before the log gives up what could bring it back.
 */
#include "tests/unit/volume_fixture.h"

#define FLUSHES 16u /* more than a checkpoint of these changes has */

static struct {
	struct rt_sim_disk *disk;
	unsigned fail; /* the n-th flush of the first life's checkpoint */
	bool failed;
	uint64_t free_pages; /* at the end of the second life */
} run;

static void change(struct volume *v, unsigned count)
{
	struct space_run taken;

	for (unsigned i = 0; i < count; i++) {
		OK(space_reserve(v->space, PID_NONE, 3, 0, &taken));
		runs_take(v, &taken, 1);
	}
}

/* A life that ends with the failure, one that recovers and is shut; then the power goes. */
static void lives(void *arg)
{
	struct rt_sim_fail fail = {.ops = RT_SIM_FAIL_FLUSH, .n = run.fail};
	struct volume *v = volume_must("d", (struct open_how){.background = false});

	change(v, 5);
	OK(volume_sync(v));
	change(v, 5);
	rt_sim_disk_fail(run.disk, &fail);
	run.failed = volume_sync(v) != 0;
	rt_sim_disk_fail(run.disk, &(struct rt_sim_fail){0});
	(void)volume_close(v);

	v = volume_must("d", (struct open_how){.background = false});
	run.free_pages = free_pages(v);
	OK(volume_close(v));
	(void)disk_open(
		"d", 0); /* only a disk in use loses what it has not made durable */
	rt_sim_node_kill(rt_sim_node());
}

/* Opening reads every group's page and the catalog. */
static void look(void *arg)
{
	struct volume *v = volume_must("d", (struct open_how){.background = false});

	CHECK(free_pages(v) == run.free_pages);
	OK(volume_close(v));
}

static int fail_one(void *arg)
{
	run.disk = rt_sim_disk_create("d", 8 * MIB, NULL);
	volume_make("d", 2 * MIB);
	CHECK(node_run(lives, NULL));
	CHECK(!node_run(look, NULL));
	return 0;
}

static void what_a_failed_flush_left_readable_is_made_durable(void **state)
{
	unsigned failed = 0;

	for (run.fail = 1; run.fail <= FLUSHES; run.fail++)
		for (uint64_t seed = 1; seed <= 20; seed++) {
			assert_int_equal(rt_sim_run(seed, NULL, fail_one, NULL), 0);
			failed += run.failed;
		}
	assert_true(failed > 20);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_a_failed_flush_left_readable_is_made_durable),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
