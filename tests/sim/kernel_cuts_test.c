/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What kernel_test does, while nodes do not hear each other: links break, or are silent in one
 * direction or in both, for a shorter time than a silent link lives or for a longer one. No
 * answer is older than what anybody was told before the question, no kernel has anything from
 * before a change that has ended, and all go on when the links are well.
 *
 *   WEFT_SIM_SEED=7 build/tests/sim/kernel_cuts_test     one seed
 *   WEFT_SIM_SEEDS=1000                                  so many of each kind
 *   WEFT_SIM_LONGER=10                                   each so many times as long
 */
#include "tests/world/weather.h"
#include "tests/sim/kernel_work.h"

#define CUTS_SEEDS 6
#define PAUSE_NS   60000000ull /* between two cuts, the longest */

static void cuts_work(struct node *n)
{
	struct kernel_model *k = &kernels[n->id - 1];
	struct rt_task *answers;

	make_files(n);
	barrier(n);
	if (n->id == 1)
		weather_begin(n->w, PAUSE_NS);
	answers = open_run(k, n);
	barrier(n);
	if (n->id == 1)
		weather_end();
	barrier(n);
	kernel_shut(k, answers);
}

static void closed_cuts_work(struct node *n)
{
	make_files(n);
	barrier(n);
	if (n->id == 1)
		weather_begin(n->w, PAUSE_NS);
	closed_run(&kernels[n->id - 1], n);
	barrier(n);
	if (n->id == 1)
		weather_end();
	barrier(n);
	fs_kernel_stop(n->fs);
}

static bool closed; /* nobody has the files open */

static void run_seeds(unsigned nodes, unsigned steps, uint64_t seeds)
{
	struct world *w = (struct world *)calloc(1, sizeof(*w));
	struct rt_sim_options o = {.time_limit_ns = 600ull * 1000000000};

	seeds = seeds_count(seeds);
	files = (struct history *)calloc(FILES + 1, sizeof(*files));
	assert_true(w && files);
	names = &files[FILES];
	sum_drops = weather.cuts = weather.silent = 0;
	for (uint64_t seed = seeds_first(); seeds--; seed++) {
		memset(w, 0, sizeof(*w));
		memset(files, 0, (FILES + 1) * sizeof(*files));
		next_word = neighbours = 0;
		w->nodes = seeds_nodes(nodes, seed);
		w->steps = steps * (unsigned)setting("WEFT_SIM_LONGER", 1);
		w->mmap = kernel_stores ? OPS_MMAP_SHARED : OPS_MMAP_OFF;
		w->stall_ns = WEATHER_STALL_NS;
		w->work = closed ? closed_cuts_work : cuts_work;
		w->check = closed ? closed_check : kernel_check;
		assert_int_equal(rt_sim_run(seed, &o, run_world, w), 0);
	}
	print_message("%u links broke, %u were silent; %" PRIu64 " pages dropped\n",
		weather.cuts, weather.silent, sum_drops);
	assert_true((closed || sum_drops > 0) && weather.cuts + weather.silent > 0);
	free(files);
	free(w);
}

static void two_kernels_are_never_behind(void **state)
{
	run_seeds(2, 120, CUTS_SEEDS);
}

static void three_kernels_are_never_behind(void **state)
{
	run_seeds(3, 120, CUTS_SEEDS);
}

static void five_and_eight_kernels_are_never_behind(void **state)
{
	run_seeds(5, 40, 1);
	run_seeds(8, 25, 1);
}

static void stores_of_two_and_three_kernels_are_seen(void **state)
{
	kernel_stores = true;
	run_seeds(2, 120, CUTS_SEEDS / 2);
	run_seeds(3, 80, CUTS_SEEDS / 2);
	kernel_stores = false;
}

static void attributes_that_come_with_a_name_are_never_behind(void **state)
{
	closed = true;
	run_seeds(3, 120, CUTS_SEEDS / 2);
	closed = false;
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(two_kernels_are_never_behind),
		cmocka_unit_test(three_kernels_are_never_behind),
		cmocka_unit_test(five_and_eight_kernels_are_never_behind),
		cmocka_unit_test(attributes_that_come_with_a_name_are_never_behind),
		cmocka_unit_test(stores_of_two_and_three_kernels_are_seen),
	};

	fsyncs = true;
	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
