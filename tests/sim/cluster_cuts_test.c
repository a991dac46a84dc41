/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What several nodes do to a tree, and in a filesystem (cluster_test), while they do not hear each
 * other: links break, or are silent in one direction or in both, for a shorter time than a silent
 * link lives or for a longer one. Or their links change bits: no reader sees one of these, and none
 * reaches a store. No operation fails by that, each finds what the last one left, and all go on when
 * the links are well; in the end fsck finds nothing.
 *
 *   WEFT_SIM_SEED=7 build/tests/sim/cluster_cuts_test     one seed
 *   WEFT_SIM_SEEDS=1000                                   so many of each kind
 *   WEFT_SIM_LONGER=10                                    each so many times as long
 */
#include "tests/world/weather.h"
#include "tests/sim/cluster_work.h"

#define FLIP_EVERY (64u << 10) /* bytes */

static void (*the_work)(struct node *);

static void cuts_work(struct node *n)
{
	barrier(n);
	if (n->id == 1)
		/* transactions on a tree take hardly any time */
		weather_begin(n->w, the_work == tree_work ? 3000000 : 60000000);
	the_work(n);
	barrier(n);
	if (n->id == 1)
		weather_end();
}

static void run_seeds(unsigned nodes, unsigned steps, uint64_t seeds,
	void (*work)(struct node *), void (*check)(struct node *))
{
	struct world *w = (struct world *)calloc(1, sizeof(*w));
	struct rt_sim_options o = {.time_limit_ns = 600ull * 1000000000};

	assert_non_null(w);
	seeds = seeds_count(seeds);
	the_work = work;
	weather.cuts = weather.silent = 0;
	for (uint64_t seed = seeds_first(); seeds--; seed++) {
		memset(w, 0, sizeof(*w));
		w->nodes = seeds_nodes(nodes, seed);
		w->steps = steps * (unsigned)setting("WEFT_SIM_LONGER", 1);
		w->stall_ns = WEATHER_STALL_NS;
		w->work = cuts_work;
		w->check = check;
		w->no_files = work == tree_work;
		assert_int_equal(rt_sim_run(seed, &o, run_world, w), 0);
		places_clear(w);
	}
	print_message("%u links broke, %u were silent\n", weather.cuts, weather.silent);
	assert_true(weather.cuts + weather.silent + weather.flips > 0);
	free(w);
}

static void a_tree_loses_no_change(void **state)
{
	run_seeds(2, 600, 4, tree_work, tree_check);
	run_seeds(3, 400, 4, tree_work, tree_check);
}

static void two_and_three_nodes_have_a_filesystem(void **state)
{
	run_seeds(2, 120, 4, ops_work, ops_check);
	run_seeds(3, 80, 4, ops_work, ops_check);
}

static void five_and_eight_nodes_have_a_filesystem(void **state)
{
	run_seeds(5, 30, 1, ops_work, ops_check);
	run_seeds(8, 20, 1, ops_work, ops_check);
}

static void run_flips(unsigned nodes, unsigned steps, uint64_t seeds)
{
	weather.flips = 0;
	weather.flip_every = FLIP_EVERY;
	run_seeds(nodes, steps, seeds, ops_work, ops_check);
	weather.flip_every = 0;
	print_message("%" PRIu64 " bits were flipped\n", weather.flips);
	assert_true(weather.flips > seeds);
}

static void links_change_bits(void **state)
{
	run_flips(2, 120, 4);
	run_flips(3, 80, 4);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_tree_loses_no_change),
		cmocka_unit_test(two_and_three_nodes_have_a_filesystem),
		cmocka_unit_test(five_and_eight_nodes_have_a_filesystem),
		cmocka_unit_test(links_change_bits),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
