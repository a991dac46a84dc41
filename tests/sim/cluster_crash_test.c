/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Nodes that lose their power while all make, write and read files on one volume, and come
 * back. What was fsynced, and what a node has written that has not crashed since, is there
 * for all; nobody sees anything that was not written; operations of others wait, and go on;
 * in the end fsck finds nothing.
 *
 *   WEFT_SIM_SEED=7 build/tests/sim/cluster_crash_test     one seed
 *   WEFT_SIM_SEEDS=1000                                    so many
 */
#define LOG_BYTES (16ull << 20)
#include "tests/sim/cluster_files.h"
#include "tests/sim/cluster_world.h"
#include "tests/world/weather.h"

#define CRASHES       4u
#define CRASHES_SEEDS 5u

static unsigned ended;
static bool cuts; /* links break, too */

static void work(void *arg)
{
	work_on((struct node *)arg, &over);
}

/* ---- lives of a node ----------------------------------------------------------------------- */

static void node_life(void *arg)
{
	struct node *n = (struct node *)arg;
	struct rt_task *task[TASKS];

	crash_open(n);
	for (unsigned i = 0; i < TASKS; i++)
		OK(rt_task_spawn(&task[i], "work", work, n));
	for (unsigned i = 0; i < TASKS; i++)
		rt_task_join(task[i]);
	barrier(n);
	for (unsigned i = 0; i < FILES; i++)
		read_file(n, i);
	crash_close(n);
	ended++;
}

static void crash_one(struct world *w)
{
	struct node *n = &w->node[pick(w->nodes)];

	n->coherence = NULL;
	rt_sim_node_kill(n->sim);
	files_crashed(n);
	if (pick(3))
		rt_sleep_ns(rt_random() % 100000000);
	n->sim = rt_sim_node_new(n->disk);
	OK(rt_sim_spawn_on(n->sim, "node", node_life, n));
}

static int run_crashes(void *arg)
{
	struct world *w = (struct world *)arg;

	cluster_format(w);
	for (unsigned i = 0; i < w->nodes; i++) {
		struct node *n = &w->node[i];

		n->sim = rt_sim_node_new(n->disk);
		OK(rt_sim_spawn_on(n->sim, "node", node_life, n));
	}
	rt_sleep_ns(200000000);
	if (cuts)
		weather_begin(w, 100000000);
	for (unsigned i = 0; i < CRASHES; i++) {
		rt_sleep_ns(rt_random() % 200000000);
		crash_one(w);
	}
	rt_sleep_ns(200000000);
	if (cuts)
		weather_end();
	atomic_store(&over, true);
	for (unsigned i = 0; i < w->nodes; i++)
		HOLDS(!rt_sim_node_wait(w->node[i].sim));
	HOLDS(ended == w->nodes);
	world_stopped();
	stores_check(w);
	world_over();
	return 0;
}

static unsigned frames; /* of a cache; 0: as usual */

static void run_seeds(unsigned nodes, uint64_t seeds, uint64_t log_bytes)
{
	struct rt_sim_options o = {.time_limit_ns = 60ull * 1000000000};

	seeds = seeds_count(seeds);
	for (uint64_t seed = seeds_first(); seeds--; seed++) {
		struct world *w = (struct world *)calloc(1, sizeof(*w));

		assert_non_null(w);
		w->nodes = seeds_nodes(nodes, seed);
		w->log_bytes = log_bytes;
		w->frames = frames;
		w->stall_ns = cuts ? WEATHER_STALL_NS : 0;
		memset(files, 0, sizeof(files));
		atomic_store(&over, false);
		ended = 0;
		assert_int_equal(rt_sim_run(seed, &o, run_crashes, w), 0);
		free(w);
	}
}

static void what_is_fsynced_or_written_by_who_lives_is_not_lost(void **state)
{
	run_seeds(3, CRASHES_SEEDS, 0);
}

static void so_it_is_on_five_and_eight_nodes(void **state)
{
	run_seeds(5, 1, 0);
	run_seeds(8, 1, 0);
}

static void so_it_is_while_links_break(void **state)
{
	cuts = true;
	run_seeds(3, CRASHES_SEEDS, 0);
	run_seeds(5, 1, 0);
	cuts = false;
}

/*
 * Caches that hold much more than the logs: these are full of what others have to persist.
 * (The disks tear, so each image of another node is logged by its home.)
 */
static void nobody_stands_still_with_logs_that_are_full(void **state)
{
	frames = 1280;
	run_seeds(3, 20, 4 << 20);
	frames = 0;
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_is_fsynced_or_written_by_who_lives_is_not_lost),
		cmocka_unit_test(so_it_is_on_five_and_eight_nodes),
		cmocka_unit_test(so_it_is_while_links_break),
		cmocka_unit_test(nobody_stands_still_with_logs_that_are_full),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
