/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Several nodes have the same volume: each opens it with a store of its own, the driver of
 * the page protocol and the simulated network, and changes what the others change too.
 *
 * The tree: items that all nodes count up in transactions lose no count, and nobody reads
 * less than was committed before it looked. The operations: directories that all nodes
 * use, one operation at a time, where each must find what the last one left, on whatever
 * node that was; meanwhile each node works in a directory of its own, and at names of its
 * own in one that all have; all write to the same two files and move directories into each
 * other; and, in a run of its own, append records that are as large as a transaction takes.
 * In the end every node sees the same, also after closing and opening again, and fsck finds
 * nothing in their stores, also when all lose their power together in the midst.
 *
 * The same while links break: cluster_cuts_test. Files that are open while another node unlinks
 * them: cluster_open_test.
 *
 *   WEFT_SIM_SEED=7 build/tests/sim/cluster_test     one seed
 *   WEFT_SIM_SEEDS=1000                              so many of each kind
 *   WEFT_SIM_LONGER=10                               each so many times as long
 */
#include "tests/sim/cluster_work.h"

/* ---- large appends ------------------------------------------------------------------------ */

/* What begins a large record; the rest of it is the node's bytes. */
struct large {
	uint32_t node, number, len;
};

static uint8_t large_byte(const struct large *l)
{
	return (uint8_t)(l->node * 50 + l->number % 50);
}

/* Each as long as a cache lets one append be, wherever the file's end is. */
static void append_large(struct node *n, unsigned number)
{
	uint32_t most = (cache_fill_max(n->v->cache) / 2 - 1) * PAGE_SIZE;
	struct large l = {.node = n->id, .number = number};
	struct ops_file *f;
	struct ops_attr a;
	uint8_t *bytes;

	l.len = pick(3) ? 1 + (uint32_t)sizeof(l) + pick(most - (uint32_t)sizeof(l))
			: most;
	bytes = rt_alloc(l.len);
	memset(bytes, large_byte(&l), l.len);
	memcpy(bytes, &l, sizeof(l));
	OK(ops_open(n->fs, model.appended, &root_user, O_RDWR, &f, &a));
	EQ(ops_write(n->fs, f, &root_user, 0, bytes, l.len, true), l.len);
	ops_close(n->fs, f);
	rt_free(bytes);
	model.node[n->id].appended_bytes += l.len;
}

static void large_work(struct node *n)
{
	if (n->id == 1)
		model.appended = mk_file(n->fs, DISK_INO_ROOT, "appended");
	barrier(n);
	for (unsigned i = 0; i < n->w->steps; i++)
		append_large(n, i);
}

static void large_check(struct node *n)
{
	unsigned next[NODES_MAX] = {0}, count = 0;
	uint64_t size = 0;
	uint8_t *all;

	for (unsigned i = 0; i < n->w->nodes; i++)
		size += model.node[i + 1].appended_bytes;
	all = read_all(n, model.appended, size);
	for (uint64_t at = 0; at < size; count++) {
		struct large l;

		memcpy(&l, all + at, sizeof(l));
		HOLDS(l.node >= 1 && l.node <= n->w->nodes && l.len <= size - at);
		EQ(l.number, next[l.node - 1]++);
		for (uint32_t i = sizeof(l); i < l.len; i++)
			EQ(all[at + i], large_byte(&l));
		at += l.len;
	}
	EQ(count, n->w->nodes * n->w->steps);
	rt_free(all);
}

/* ---- appends of several calls ------------------------------------------------------------ */

#define RECORD_CALLS 3u
#define CALL_PAGES   8u
#define RECORD_BYTES (RECORD_CALLS * CALL_PAGES * PAGE_SIZE)

static uint64_t records, records_torn;

/* As a kernel sends a large write(2): each call when the one before was answered. */
static void append_in_calls(struct node *n, uint8_t *bytes)
{
	struct ops_file *f;
	struct ops_attr a;

	OK(ops_open(n->fs, model.appended, &root_user, O_RDWR, &f, &a));
	for (unsigned i = 0; i < RECORD_CALLS; i++) {
		bool more = i + 1 < RECORD_CALLS;

		EQ(ops_write(n->fs, f, &root_user, 0, bytes, CALL_PAGES * PAGE_SIZE,
			   OPS_APPEND | (more ? OPS_APPEND_MORE : 0)),
			CALL_PAGES * PAGE_SIZE);
		if (more)
			rt_sleep_ns(pick(2000000));
	}
	ops_close(n->fs, f);
}

static void calls_work(struct node *n)
{
	uint8_t *bytes = rt_alloc(CALL_PAGES * PAGE_SIZE);

	memset(bytes, (int)n->id, CALL_PAGES * PAGE_SIZE);
	if (n->id == 1)
		model.appended = mk_file(n->fs, DISK_INO_ROOT, "appended");
	barrier(n);
	for (unsigned i = 0; i < n->w->steps; i++)
		append_in_calls(n, bytes);
	rt_free(bytes);
}

/* Pieces of one node that are not whole records. */
static void calls_check(struct node *n)
{
	uint64_t size = (uint64_t)n->w->nodes * n->w->steps * RECORD_BYTES;
	uint8_t *all = read_all(n, model.appended, size);
	uint64_t from = 0;

	for (uint64_t at = 0; at <= size; at += PAGE_SIZE) {
		if (at < size && all[at] == all[from])
			continue;
		records_torn += (at - from) % RECORD_BYTES != 0;
		from = at;
	}
	records += n->w->nodes * n->w->steps;
	rt_free(all);
}

/* ---- the runner -------------------------------------------------------------------------- */

#define CUT_WITHIN_NS 500000000ull /* most of what a run takes */

static bool few; /* a tenth of the seeds */

static void run_seeds(unsigned nodes, unsigned steps, void (*work)(struct node *),
	void (*check)(struct node *), bool cut)
{
	unsigned redone = 0;
	struct world *w = (struct world *)calloc(1, sizeof(*w));
	uint64_t seeds = seeds_count(few ? SEEDS / 10 : SEEDS);
	struct rt_sim_options o = {.time_limit_ns = 600ull * 1000000000};

	assert_non_null(w);
	sum_sent = sum_restarts = 0;
	for (uint64_t seed = seeds_first(); seeds--; seed++) {
		memset(w, 0, sizeof(*w));
		w->nodes = seeds_nodes(nodes, seed);
		w->steps = steps * (unsigned)setting("WEFT_SIM_LONGER", 1);
		w->work = work;
		w->check = check;
		w->no_files = work == tree_work;
		if (cut)
			w->cut_ns = 1 + seed * 7919 * 104729 % CUT_WITHIN_NS;
		assert_int_equal(rt_sim_run(seed, &o, run_world, w), 0);
		redone += w->cut_redone;
		places_clear(w);
	}
	print_message(
		"%" PRIu64 " messages, %" PRIu64 " restarts\n", sum_sent, sum_restarts);
	assert_true(cut ? redone > 0 : sum_sent > 0);
	free(w);
}

static void two_nodes_change_a_tree(void **state)
{
	run_seeds(2, 300, tree_work, tree_check, false);
}

static void three_nodes_change_a_tree(void **state)
{
	run_seeds(3, 200, tree_work, tree_check, false);
}

static void two_nodes_have_a_filesystem(void **state)
{
	run_seeds(2, 120, ops_work, ops_check, false);
}

static void three_nodes_have_a_filesystem(void **state)
{
	run_seeds(3, 80, ops_work, ops_check, false);
}

static void five_and_eight_nodes_have_a_filesystem(void **state)
{
	few = true;
	run_seeds(5, 100, tree_work, tree_check, false);
	run_seeds(5, 30, ops_work, ops_check, false);
	run_seeds(8, 20, ops_work, ops_check, false);
	run_seeds(8, 20, ops_work, ops_check, true);
	few = false;
}

static void large_appends_are_one_piece(void **state)
{
	run_seeds(3, 12, large_work, large_check, false);
}

/* But for what takes longer than others wait, or where the note of the leaf was lost. */
static void appends_of_several_calls_are_kept_together(void **state)
{
	records = records_torn = 0;
	run_seeds(3, 12, calls_work, calls_check, false);
	print_message("%" PRIu64 " of %" PRIu64 " records torn\n", records_torn, records);
	assert_true(records_torn * 50 <= records);
}

static void nothing_is_damaged_when_two_nodes_lose_their_power(void **state)
{
	run_seeds(2, 120, ops_work, ops_check, true);
}

static void nothing_is_damaged_when_three_nodes_lose_their_power(void **state)
{
	run_seeds(3, 80, ops_work, ops_check, true);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(two_nodes_change_a_tree),
		cmocka_unit_test(three_nodes_change_a_tree),
		cmocka_unit_test(two_nodes_have_a_filesystem),
		cmocka_unit_test(three_nodes_have_a_filesystem),
		cmocka_unit_test(five_and_eight_nodes_have_a_filesystem),
		cmocka_unit_test(large_appends_are_one_piece),
		cmocka_unit_test(appends_of_several_calls_are_kept_together),
		cmocka_unit_test(nothing_is_damaged_when_two_nodes_lose_their_power),
		cmocka_unit_test(nothing_is_damaged_when_three_nodes_lose_their_power),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
