/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operations of several nodes on the same few names and files, several at a time on each,
 * are linearizable: there is one order of all of them that explains what each returned, and
 * in which none comes before one that had ended before it began (linear.h).
 *
 * In rounds: some tasks of each node do some operations each, everyone stops, and what is
 * there is read once more, so that a round ends in one state. Four things are judged by
 * themselves: names (create, look up, link, unlink, rename, numbers of links), the bytes of
 * a file that also shrinks and grows, a file that is only appended to, and locks of a file
 * (fcntl's, of ranges, tried, waited for and looked for, and flock). What each should do is
 * in linear_spec.c.
 *
 * With each second seed every descent to a leaf begins with a guess (guesses.h).
 *
 *   WEFT_SIM_SEED=7 build/tests/sim/linear_test     one seed; a failure prints its history
 *   WEFT_SIM_SEEDS=1000                             so many of each kind
 */
#include "tests/sim/guesses.h"
#include "tests/sim/linear_work.h"

#define ROUNDS 8u

static void rounds_work(struct node *n)
{
	if (n->id == 1)
		things_make(n);
	barrier(n);
	for (unsigned round = 0; round < n->w->steps; round++) {
		work_together(n, tasks_of(n->w->nodes));
		barrier(n);
		if (n->id == 1 + round % n->w->nodes) {
			look_at_all(n);
			judge();
		}
		barrier(n);
	}
}

/* The same is there when every node looks, also after opening again. */
static void rounds_check(struct node *n)
{
	rt_mutex_lock(&n->w->turn);
	look_at_all(n);
	judge();
	rt_mutex_unlock(&n->w->turn);
}

/* ---- the runner -------------------------------------------------------------------------- */

static bool few; /* a tenth of the seeds */

static void run_seeds(unsigned nodes, const struct linear_model *model,
	void (*choose)(const struct worker *w, struct action *a))
{
	struct world *w = (struct world *)calloc(1, sizeof(*w));
	uint64_t seeds = seeds_count(few ? MAX(SEEDS / 10, 1) : SEEDS);
	struct rt_sim_options o = {.time_limit_ns = 600ull * 1000000000};
	uint64_t overlapped = 0;

	assert_non_null(w);
	for (uint64_t seed = seeds_first(); seeds--; seed++) {
		memset(w, 0, sizeof(*w));
		memset(&shared, 0, sizeof(shared));
		w->nodes = seeds_nodes(nodes, seed);
		w->steps = model == &log_model ? 3 : model == &names_model ? 4 : ROUNDS;
		if (w->nodes > 5) /* as many operations in all */
			w->steps = MAX(w->steps / 2, 2u);
		w->work = rounds_work;
		w->check = rounds_check;
		shared.model = model;
		shared.choose = choose;
		if (seed % 2 == 0)
			guesses_begin();
		assert_int_equal(rt_sim_run(seed, &o, run_world, w), 0);
		guesses_end();
		overlapped += shared.overlapped;
	}
	print_message("%" PRIu64 " operations overlapped others\n", overlapped);
	assert_true(overlapped > 0);
	free(w);
}

static void names_of_two_nodes(void **state)
{
	run_seeds(2, &names_model, choose_name);
}

static void names_of_three_nodes(void **state)
{
	run_seeds(3, &names_model, choose_name);
}

static void a_file_of_two_nodes(void **state)
{
	run_seeds(2, &file_model, choose_file);
}

static void a_file_of_three_nodes(void **state)
{
	run_seeds(3, &file_model, choose_file);
}

static void appends_of_two_nodes(void **state)
{
	run_seeds(2, &log_model, choose_log);
}

static void appends_of_three_nodes(void **state)
{
	run_seeds(3, &log_model, choose_log);
}

static void locks_of_two_nodes(void **state)
{
	run_seeds(2, &locks_model, choose_lock);
}

static void locks_of_three_nodes(void **state)
{
	run_seeds(3, &locks_model, choose_lock);
}

static void all_of_it_on_five_and_eight_nodes(void **state)
{
	few = true;
	for (unsigned nodes = 5; nodes <= 8; nodes += 3) {
		run_seeds(nodes, &names_model, choose_name);
		run_seeds(nodes, &file_model, choose_file);
		run_seeds(nodes, &log_model, choose_log);
		run_seeds(nodes, &locks_model, choose_lock);
	}
	few = false;
}

/* ---- the judge itself: what could not be is found out ------------------------------------ */

static bool could_be(const struct linear_model *m, void *state,
	const struct linear_op *ops, unsigned count, unsigned *deepest)
{
	uint64_t bits;
	bool found = linear_check(m, ops, count, state, &bits);

	if (deepest)
		*deepest = (unsigned)__builtin_popcountll(bits);
	return found;
}

static void the_check_refuses_bytes_that_cannot_be(void **state)
{
	struct action write = {.kind = FILE_WRITE, .value = 5, .result = VALUE_BYTES};
	struct action early = {.kind = FILE_READ, .value = 5, .result = VALUE_BYTES};
	struct action late = {.kind = FILE_READ};
	struct linear_op ops[] = {{.began = 1, .ended = 4, .op = &write},
		{.began = 2, .ended = 3, .op = &early},
		{.began = 5, .ended = 6, .op = &late}};
	struct file_state s = {0};
	unsigned deepest;

	/* seen while it was written, and gone when it was */
	assert_false(could_be(&file_model, &s, ops, 3, &deepest));
	assert_int_equal(deepest, 2);
	late = early;
	assert_true(could_be(&file_model, &s, ops, 3, NULL));
	assert_int_equal(s.value[0], 5);
	/* not seen any more, though it was before */
	s = (struct file_state){0};
	early.result = 0;
	ops[1].op = &late;
	ops[2].op = &early;
	assert_false(could_be(&file_model, &s, ops, 3, NULL));
}

static void the_check_refuses_locks_that_cannot_be(void **state)
{
	struct action one = {.kind = LOCK_TRY, .node = 1, .to = 2, .flags = LOCK_SHARED};
	struct action two = {.kind = LOCK_WAIT, .node = 2, .at = 1, .to = 1};
	struct action test = {.kind = LOCK_TEST, .node = 2, .to = 3, .flags = LOCK_ALONE};
	struct linear_op ops[] = {{.began = 1, .ended = 2, .op = &one},
		{.began = 3, .ended = 4, .op = &two},
		{.began = 5, .ended = 6, .op = &test}};
	struct locks_state s = {0}, none = {0};

	two.flags = LOCK_SHARED;
	test.found = LOCK_SHARED;
	test.found_to = 2;
	assert_true(could_be(&locks_model, &s, ops, 3, NULL));
	/* two that exclude each other */
	s = none;
	two.flags = LOCK_ALONE;
	assert_false(could_be(&locks_model, &s, ops, 2, NULL));
	/* it is not in the way */
	s = none;
	two = (struct action){.kind = LOCK_TRY, .node = 2, .at = 3, .to = 3};
	two.flags = LOCK_ALONE;
	two.result = -EAGAIN;
	assert_false(could_be(&locks_model, &s, ops, 2, NULL));
	/* more is found than is locked; nothing is; another node says who it is */
	s = none;
	two.result = 0;
	test.found_to = 3;
	assert_false(could_be(&locks_model, &s, ops, 3, NULL));
	test = (struct action){
		.kind = LOCK_TEST, .node = 2, .to = 3, .flags = LOCK_ALONE};
	s = none;
	assert_false(could_be(&locks_model, &s, ops, 3, NULL));
	test = (struct action){
		.kind = LOCK_TEST, .node = 2, .to = 3, .flags = LOCK_ALONE};
	test.found = LOCK_SHARED;
	test.found_to = 2;
	test.found_by = 1;
	s = none;
	assert_false(could_be(&locks_model, &s, ops, 3, NULL));
	test.node = 1;
	test.task = 1;
	s = none;
	assert_true(could_be(&locks_model, &s, ops, 1, NULL));
}

/* Who gets another type of flock loses the one it had, in the same moment. */
static void the_check_knows_flock(void **state)
{
	struct action one = {.kind = LOCK_FLOCK, .node = 1, .flags = LOCK_SHARED};
	struct action two = {.kind = LOCK_FLOCK, .node = 2, .flags = LOCK_SHARED};
	struct action more = {.kind = LOCK_FLOCK, .node = 1, .flags = LOCK_ALONE};
	struct action last = {.kind = LOCK_FLOCK, .node = 2, .flags = LOCK_ALONE};
	struct linear_op ops[] = {{.began = 1, .ended = 2, .op = &one},
		{.began = 3, .ended = 4, .op = &two},
		{.began = 5, .ended = 6, .op = &more},
		{.began = 7, .ended = 8, .op = &last}};
	struct locks_state s = {0}, none = {0};

	assert_false(could_be(&locks_model, &s, ops, 4, NULL));
	s = none;
	more.result = -EAGAIN;
	assert_true(could_be(&locks_model, &s, ops, 4, NULL));
	s = none;
	last.result = -EAGAIN;
	assert_false(could_be(&locks_model, &s, ops, 4, NULL));
}

/* A node that has crashed was writing 5; another one reads. */
static bool could_read_around_a_crash(uint64_t before, uint64_t behind, bool writes)
{
	struct action lost = {.kind = FILE_WRITE, .node = 1, .value = 5, .lost = true};
	struct action read[] = {{.kind = FILE_READ, .node = 2, .value = before},
		{.kind = FILE_READ, .node = 2, .value = behind}};
	struct action crash = {.kind = NODE_CRASH, .nodes = 1u << 1};
	struct action write = {
		.kind = FILE_WRITE, .node = 2, .value = 7, .result = VALUE_BYTES};
	struct linear_op ops[] = {
		{.began = 1, .ended = 8, .op = &lost, .lost = true},
		{.began = 2, .ended = 3, .op = &read[0]},
		{.began = 9, .ended = 10, .op = &crash},
		{.began = 11, .ended = 12, .op = &read[1]},
		{.began = 4, .ended = 5, .op = &write},
	};
	struct linear_model m = lossy_model(&file_model);
	struct file_state s = {.size = VALUE_BYTES, .value = {3}};
	uint64_t lossy[LINEAR_STATE_MAX / 8];

	for (unsigned i = 0; i < 2; i++)
		read[i].result = VALUE_BYTES;
	lossy_begin(&file_model, &s, lossy);
	return could_be(&m, lossy, ops, writes ? 5 : 4, NULL);
}

static void the_check_knows_what_a_crash_undoes(void **state)
{
	assert_true(could_read_around_a_crash(3, 3, false));
	assert_true(could_read_around_a_crash(3, 5, false));
	assert_true(could_read_around_a_crash(5, 5, false));
	assert_true(could_read_around_a_crash(5, 3, false));
	assert_false(could_read_around_a_crash(3, 7, false));
	assert_false(could_read_around_a_crash(7, 7, false));
	/* what another has written over it, who lives, stays; or it was written over that */
	assert_true(could_read_around_a_crash(5, 7, true));
	assert_true(could_read_around_a_crash(3, 5, true));
	assert_false(could_read_around_a_crash(5, 5, true));
	assert_false(could_read_around_a_crash(3, 3, true));
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_check_refuses_bytes_that_cannot_be),
		cmocka_unit_test(the_check_refuses_locks_that_cannot_be),
		cmocka_unit_test(the_check_knows_flock),
		cmocka_unit_test(the_check_knows_what_a_crash_undoes),
		cmocka_unit_test(names_of_two_nodes),
		cmocka_unit_test(names_of_three_nodes),
		cmocka_unit_test(a_file_of_two_nodes),
		cmocka_unit_test(a_file_of_three_nodes),
		cmocka_unit_test(appends_of_two_nodes),
		cmocka_unit_test(appends_of_three_nodes),
		cmocka_unit_test(locks_of_two_nodes),
		cmocka_unit_test(locks_of_three_nodes),
		cmocka_unit_test(all_of_it_on_five_and_eight_nodes),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
