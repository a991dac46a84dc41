/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Leaves that are found without the pages above them (docs/nodes/learned.md):
 *
 * - All work of cluster_test, with a guess before each descent, one in four of them an old one; and
 *   the same with power cuts.
 * - What a lookup costs: round trips of a node that has nothing, with and without the table; splits
 *   by another node.
 * - A home answers with nonsense.
 * - The home of the pages above is away: a node that has met leaves finds them and their neighbours
 *   at nodes that live. One that has met nothing waits.
 * - A leaf dies, and its home is started again: an old guess does not bring it back.
 * - A home tells the place of a leaf, and crashes: the leaf is there.
 *
 *   WEFT_SIM_SEED=7 build/tests/sim/cluster_learned_test     one seed
 *   WEFT_SIM_SEEDS=1000                                      so many
 */
#define LOG_BYTES (16ull << 20)
#include "tests/sim/cluster_work.h"
#include "tests/sim/guesses.h"
#include "tests/sim/phases.h"

#define LEARNED_SEEDS 3
#define CUT_AFTER_NS  50000000ull /* the nodes are open by then */
#define CUT_WITHIN_NS 150000000ull
#define ROOMY         4000u /* frames: all that a node uses stays */
#define PUTS          100u  /* items of a transaction */

static uint64_t right, wrong, calls;

static void sum_guesses(struct node *n)
{
	const struct tree_counters *c = tree_counters(n->v->tree);

	right += c->guesses_right;
	wrong += c->guesses_wrong;
	calls += c->leaf_calls;
}

/* ---- a guess before each descent ---------------------------------------------------------- */

static void (*checked)(struct node *n);

static void check_and_sum(struct node *n)
{
	checked(n);
	sum_guesses(n);
}

static void run_guessing(unsigned nodes, unsigned steps, void (*work)(struct node *),
	void (*check)(struct node *), bool cut)
{
	struct world *w = (struct world *)calloc(1, sizeof(*w));
	struct rt_sim_options o = {.time_limit_ns = 600ull * 1000000000};
	uint64_t seeds = seeds_count(LEARNED_SEEDS), made = 0;
	unsigned redone = 0;

	assert_non_null(w);
	right = wrong = calls = 0;
	checked = check;
	for (uint64_t seed = seeds_first(); seeds--; seed++) {
		memset(w, 0, sizeof(*w));
		w->nodes = seeds_nodes(nodes, seed);
		w->steps = steps;
		w->work = work;
		w->check = check_and_sum;
		w->no_files = work == tree_work;
		if (cut)
			w->cut_ns = CUT_AFTER_NS + seed * 7919 * 104729 % CUT_WITHIN_NS;
		guesses_begin();
		assert_int_equal(rt_sim_run(seed, &o, run_world, w), 0);
		guesses_end();
		redone += w->cut_redone;
		made += guesses.made;
		places_clear(w);
	}
	print_message("%" PRIu64 " guesses right, %" PRIu64 " wrong, %" PRIu64
		      " questions to others, of nodes that lived on; logs redone: %u\n",
		right, wrong, calls, redone);
	assert_true(cut ? redone > 0 && made > 0 : right > 100 && wrong > 10 && calls > 0);
	free(w);
}

static void nodes_that_guess_change_a_tree(void **state)
{
	run_guessing(3, 150, tree_work, tree_check, false);
}

static void nodes_that_guess_have_a_filesystem(void **state)
{
	run_guessing(3, 60, ops_work, ops_check, false);
	run_guessing(5, 20, ops_work, ops_check, false);
}

static void nothing_is_damaged_when_nodes_that_guess_lose_their_power(void **state)
{
	run_guessing(2, 100, ops_work, ops_check, true);
}

/* ---- items ---------------------------------------------------------------------------------- */

struct item {
	uint64_t value;
	uint8_t filler[150]; /* some twenty of them fill a leaf */
};

static struct disk_key item_key(unsigned i)
{
	return disk_key(1000 + i, DISK_ITEM_LINK, 0);
}

static void change_items(struct node *n, unsigned first, unsigned count, uint64_t value)
{
	struct item item = {.value = value};
	struct txn *x;
	int rc = 0;

	OK(txn_begin(n->v->tree, !value, &x));
	do {
		if (rc)
			txn_restart(x);
		rc = 0;
		for (unsigned i = first; !rc && i < first + count; i++)
			rc = value ? txn_write(x, item_key(i), &item, sizeof(item))
				   : txn_delete(x, item_key(i));
		if (!rc)
			rc = txn_commit(x, NULL);
	} while (rc == -EAGAIN);
	OK(rc);
	txn_end(x);
}

/* Gives the items that value; 0: removes them. */
static void set_items(struct node *n, unsigned first, unsigned count, uint64_t value)
{
	for (unsigned i = 0; i < count; i += PUTS)
		change_items(n, first + i, MIN(PUTS, count - i), value);
}

static void must_read(struct node *n, unsigned i, uint64_t value)
{
	struct item item = {0};

	EQ(tree_read(n->v->tree, item_key(i), &item, sizeof(item)), sizeof(item));
	EQ(item.value, value);
}

/* Pages and places that the node has asked others for: each a round trip. */
static uint64_t trips_of(const struct node *n)
{
	const struct coherence_counters *c = coherence_counters(n->coherence);

	return c->sent[PAGE_REQUEST - PAGE_MESSAGE_FIRST] +
	       tree_counters(n->v->tree)->leaf_calls;
}

/* A page above the item's leaf is not here. */
static bool misses_above(struct node *n, unsigned i)
{
	struct descent d;

	return tree_descend_once(n->v->tree, tree_key_of(item_key(i)), 0, &d) &&
	       tree_misses_above(n->v->tree, &d);
}

static void run_items(void (*work)(struct node *n), unsigned nodes, bool unlearned)
{
	struct world *w = (struct world *)calloc(1, sizeof(*w));
	struct rt_sim_options o = {.time_limit_ns = 600ull * 1000000000};

	assert_non_null(w);
	w->nodes = nodes;
	w->frames = ROOMY;
	w->work = work;
	w->check = sum_guesses;
	w->no_files = true;
	w->unlearned = unlearned;
	assert_int_equal(rt_sim_run(seeds_first(), &o, run_world, w), 0);
	free(w);
}

/* ---- round trips ---------------------------------------------------------------------------- */

#define COUNTED 6000u /* items: 300 leaves, a page above half of them, the root */
#define LOOKUPS 400u

static uint64_t trips, trips_asked;

/* The node has met one leaf, and no page above can be had: it asks the home of that leaf. */
static void look_up_by_asking(struct node *n)
{
	struct tree *t = n->v->tree;

	trips_asked = 0;
	for (unsigned i = 0; i < LOOKUPS; i++) {
		tree_key key = tree_key_of(item_key(1 + pick(COUNTED - 1)));
		struct descent d;
		uint64_t before;

		EQ(cache_give_back(n->v->cache), 0);
		learned_close(t->learned);
		OK(tree_learn(t, LEARNED_BYTES));
		must_read(n, 0, 1);
		EQ(cache_give_back(n->v->cache), 0);
		before = trips_of(n);
		OK(tree_guess_leaf(t, key, true, &d));
		HOLDS(guard_valid(&d.node) && tree_key_within(key, d.low, d.high));
		trips_asked += trips_of(n) - before;
	}
}

/* Node 2 has met all leaves, and has no page any more before each lookup. */
static void look_up_cold(struct node *n)
{
	if (n->id == 1)
		set_items(n, 0, COUNTED, 1);
	barrier(n);
	if (n->id == 2) {
		for (unsigned i = 0; i < COUNTED; i++)
			must_read(n, i, 1);
		trips = 0;
		for (unsigned i = 0; i < LOOKUPS; i++) {
			uint64_t before;

			EQ(cache_give_back(n->v->cache), 0);
			before = trips_of(n);
			must_read(n, pick(COUNTED), 1);
			trips += trips_of(n) - before;
		}
		if (!n->w->unlearned)
			look_up_by_asking(n);
	}
	barrier(n);
}

static void a_lookup_costs_one_round_trip(void **state)
{
	run_items(look_up_cold, 2, true);
	print_message("%u lookups without the table: %" PRIu64 " round trips\n", LOOKUPS,
		trips);
	assert_true(trips * 10 >= LOOKUPS * 29);
	run_items(look_up_cold, 2, false);
	print_message("%u lookups with the table: %" PRIu64 " round trips\n", LOOKUPS, trips);
	assert_true(trips * 100 <= LOOKUPS * 102);
	print_message("with a question to a home: %" PRIu64 "\n", trips_asked);
	assert_true(trips_asked * 100 <= LOOKUPS * 202);
}

/* ---- splits --------------------------------------------------------------------------------- */

#define GROWS   40u /* rounds */
#define GROWN   60u /* items that are put behind the others in a round: at least two leaves */
#define LOOKS   20u /* of each other node in a round */
#define NEAR    1500u /* of the last so many items, which have the same page above */

static uint64_t split_messages;

static void look_while_others_split(struct node *n)
{
	uint64_t before = 0;

	if (n->id == 1)
		set_items(n, 0, COUNTED, 1);
	barrier(n);
	for (unsigned i = COUNTED - NEAR; n->id != 1 && i < COUNTED; i++)
		must_read(n, i, 1);
	barrier(n);
	if (n->id == 2)
		before = node_sent(n);
	for (unsigned round = 0; round < GROWS; round++) {
		if (n->id == 1)
			set_items(n, COUNTED + round * GROWN, GROWN, 1);
		barrier(n);
		for (unsigned i = 0; n->id != 1 && i < LOOKS; i++)
			must_read(n, COUNTED - NEAR + pick(NEAR - 100), 1);
		barrier(n);
	}
	if (n->id == 2)
		split_messages = node_sent(n) - before;
	/* the last leaf was split: its home says where the items are; the page above stays away */
	for (unsigned i = 0; n->id == 2 && !n->w->unlearned && i < GROWS * GROWN; i++) {
		must_read(n, COUNTED + i, 1);
		HOLDS(misses_above(n, COUNTED + i));
	}
	HOLDS(n->id != 2 || n->w->unlearned ||
		tree_counters(n->v->tree)->leaf_calls >= 2 * GROWS);
	barrier(n);
}

static void splits_send_the_sharers_nothing(void **state)
{
	run_items(look_while_others_split, 3, true);
	print_message("%u rounds of splits without the table: node 2 sent %" PRIu64
		      " messages\n",
		GROWS, split_messages);
	assert_true(split_messages >= GROWS / 2);
	run_items(look_while_others_split, 3, false);
	print_message("with the table: %" PRIu64 "\n", split_messages);
	/* it gives up the page above once, and the last leaf */
	assert_true(split_messages <= 4);
}

/* ---- answers that are nonsense -------------------------------------------------------------- */

/* Page ids of the volume and of none, with any incarnation; leaves of other keys, with their own
 * incarnation and with another one; nodes that do not exist. */
static int serve_nonsense(void *owner, unsigned from, const uint64_t ask[NET_CALL_WORDS],
	uint64_t answer[NET_CALL_WORDS])
{
	struct tree *t = ((struct node *)owner)->v->tree;
	struct descent d;
	struct guard g;

	answer[0] = rt_random() % (DISK_BYTES / PAGE_SIZE);
	answer[1] = 1 + rt_random() % 100;
	answer[2] = rt_random();
	switch (pick(5)) {
	case 0:
		answer[0] = rt_random();
		return 0;
	case 1:
		return 0;
	case 2:
		return pick(2) ? -EREMOTE : -(int)pick(5000);
	default:
		OK(tree_descend(t, tree_key_of(item_key(pick(COUNTED))), 0, &d));
		OK(guard_shared(t->cache, d.pid, 0, &g));
		answer[0] = d.pid;
		answer[1] = g.frame->incarnation + (pick(4) == 0);
		guard_release(t->cache, &g);
		return 0;
	}
}

static void look_up_by_nonsense(struct node *n)
{
	if (n->id == 1) {
		set_items(n, 0, COUNTED, 1);
		net_calls_serve(n->calls, NET_CALL_LEAF, serve_nonsense, n);
	}
	barrier(n);
	if (n->id == 2)
		must_read(n, 0, 1);
	for (unsigned i = 0; n->id == 2 && i < LOOKUPS; i++) {
		unsigned item = pick(COUNTED);
		tree_key key = tree_key_of(item_key(item));
		struct descent d;

		if (tree_guess_leaf(n->v->tree, key, true, &d) == 0)
			HOLDS(!guard_valid(&d.node) || tree_key_within(key, d.low, d.high));
		must_read(n, item, 1);
	}
	barrier(n);
}

static void nonsense_is_no_leaf(void **state)
{
	calls = 0;
	run_items(look_up_by_nonsense, 2, false);
	assert_true(calls > LOOKUPS / 4);
}

/* ---- nodes that are away -------------------------------------------------------------------- */

#define FILES 600u

static _Atomic uint32_t finished, waited;
static uint64_t directory;
static unsigned ended;
static struct learned_leaf old_leaf;

enum { TOGETHER, LOST, BACK };

/* So many nodes have come so far; the count begins anew. */
static void await(unsigned nodes)
{
	uint64_t end = rt_now_ns() + 200ull * 1000000000;

	while (atomic_load(&finished) < nodes) {
		HOLDS(rt_now_ns() < end);
		rt_sleep_ns(1000000);
	}
	atomic_store(&finished, 0);
}

static void look_at_file(struct node *n, unsigned i)
{
	struct ops_attr a;
	char text[16];

	snprintf(text, sizeof(text), "f%u", i);
	OK(ops_lookup(n->fs, directory, nm(text), &a));
}

static void make_files(struct node *n)
{
	struct ops_attr a;
	char text[16];

	directory = mk_dir(n->fs, DISK_INO_ROOT, "own");
	for (unsigned i = 0; i < FILES; i++) {
		snprintf(text, sizeof(text), "f%u", i);
		OK(ops_mknod(n->fs, directory, nm(text), &root_user, S_IFREG | 0644, 0, 0,
			&a));
	}
	OK(volume_sync(n->v));
}

/* The node has met nothing, and has no page of another home. */
static void forget_all(struct node *n, bool table)
{
	struct tree *t = n->v->tree;

	EQ(cache_give_back(n->v->cache), 0);
	if (!table)
		return;
	learned_close(t->learned);
	OK(tree_learn(t, LEARNED_BYTES));
}

/* Node 1 has the pages above all, node 2 the files. Node 3 has met each fourth, node 4 none. */
static void before_loss(struct node *n)
{
	if (n->id == 2)
		make_files(n);
	barrier(n);
	for (unsigned i = 0; n->id == 3 && i < FILES; i += 4)
		look_at_file(n, i);
	barrier(n);
	if (n->id > 2)
		forget_all(n, n->id == 4);
	atomic_fetch_add(&finished, 1);
	come_to(LOST);
}

static void while_lost(struct node *n)
{
	uint64_t before = tree_counters(n->v->tree)->leaf_calls;

	for (unsigned i = 0; n->id == 3 && i < FILES; i += 4)
		look_at_file(n, i);
	/* one that it has not met, and many whose leaves it has not */
	for (unsigned i = 1; n->id == 3 && i < FILES; i += 4)
		look_at_file(n, i);
	HOLDS(n->id != 3 || tree_counters(n->v->tree)->leaf_calls > before ||
		tree_counters(n->v->tree)->guesses_right > 0);
	if (n->id == 4) {
		look_at_file(n, 0);
		atomic_store(&waited, 1);
	} else {
		atomic_fetch_add(&finished, 1);
	}
}

static void away_life(void *arg)
{
	struct node *n = (struct node *)arg;

	crash_open(n);
	if (atomic_load(&phase) == TOGETHER) {
		before_loss(n);
		while_lost(n);
	}
	come_to(BACK);
	barrier(n);
	crash_close(n);
	ended++;
}

static void (*life)(void *node);

static void life_begin(struct node *n)
{
	n->sim = rt_sim_node_new(n->disk);
	OK(rt_sim_spawn_on(n->sim, "node", life, n));
}

static void world_begin(struct world *w)
{
	cluster_format(w);
	atomic_store(&phase, TOGETHER);
	atomic_store(&finished, 0);
	atomic_store(&waited, 0);
	ended = 0;
	for (unsigned i = 0; i < w->nodes; i++)
		life_begin(&w->node[i]);
}

static void world_end(struct world *w)
{
	for (unsigned i = 0; i < w->nodes; i++)
		HOLDS(!rt_sim_node_wait(w->node[i].sim));
	HOLDS(ended == w->nodes);
	world_stopped();
	if (!w->no_files)
		stores_check(w);
	world_over();
}

static void lose(struct node *n)
{
	n->coherence = NULL;
	rt_sim_node_kill(n->sim);
}

static int run_away(void *arg)
{
	struct world *w = (struct world *)arg;

	world_begin(w);
	await(4);
	lose(&w->node[0]);
	go_on_to(LOST);
	await(2);
	rt_sleep_ns(3000000000);
	HOLDS(!atomic_load(&waited));
	life_begin(&w->node[0]);
	go_on_to(BACK);
	world_end(w);
	HOLDS(atomic_load(&waited));
	return 0;
}

static void run_lives(int (*run)(void *world), void (*node_life)(void *node),
	unsigned nodes, bool files)
{
	struct world *w = (struct world *)calloc(1, sizeof(*w));
	struct rt_sim_options o = {.time_limit_ns = 600ull * 1000000000};
	uint64_t seeds = seeds_count(LEARNED_SEEDS);

	assert_non_null(w);
	life = node_life;
	for (uint64_t seed = seeds_first(); seeds--; seed++) {
		memset(w, 0, sizeof(*w));
		w->nodes = nodes;
		w->frames = ROOMY;
		w->no_files = !files;
		assert_int_equal(rt_sim_run(seed, &o, run, w), 0);
	}
	free(w);
}

static void known_leaves_are_found_while_the_home_above_is_away(void **state)
{
	run_lives(run_away, away_life, 4, true);
}

/* ---- a leaf that has died ------------------------------------------------------------------- */

#define DYING 1200u /* items */
#define LAST  600u  /* the one that stays */

/* The guess of node 3 is always the leaf that the item had at first. */
static void guess_old(
	struct tree *t, tree_key key, bool *known, struct learned_leaf *guess)
{
	if (store_superblock(cache_store(t->cache))->node != 3 || !old_leaf.pid)
		return;
	*known = true;
	*guess = old_leaf;
}

static void dying_life(void *arg)
{
	struct node *n = (struct node *)arg;
	struct descent d;

	crash_open(n);
	if (atomic_load(&phase) == TOGETHER) {
		if (n->id == 2)
			set_items(n, 0, DYING, 1);
		barrier(n);
		if (n->id == 3) {
			must_read(n, LAST, 1);
			HOLDS(learned_find(n->v->tree->learned,
				tree_key_of(item_key(LAST)), &old_leaf));
			EQ(pid_shard(old_leaf.pid), 1);
		}
		barrier(n);
		if (n->id == 2) {
			set_items(n, LAST + 1, DYING - LAST - 1, 0);
			set_items(n, 1, LAST - 1, 0);
			set_items(n, LAST, 1, 2);
			OK(tree_descend(n->v->tree, tree_key_of(item_key(LAST)), 0, &d));
			HOLDS(d.pid != old_leaf.pid);
			OK(volume_sync(n->v));
		}
		barrier(n);
		atomic_fetch_add(&finished, 1);
		if (n->id == 3) {
			tree_guess_watch = guess_old;
			must_read(n, LAST, 2);
			HOLDS(tree_counters(n->v->tree)->guesses_wrong +
					tree_counters(n->v->tree)->guesses_refused >
				0);
		}
	}
	come_to(BACK);
	if (n->id == 3)
		must_read(n, LAST, 2);
	barrier(n);
	if (n->id == 3)
		tree_guess_watch = NULL;
	crash_close(n);
	ended++;
}

static int run_dying(void *arg)
{
	struct world *w = (struct world *)arg;

	memset(&old_leaf, 0, sizeof(old_leaf));
	world_begin(w);
	await(3);
	/* before it is written back, meanwhile, or after that */
	rt_sleep_ns(rt_random() % 4 * 30000000);
	lose(&w->node[1]);
	go_on_to(LOST);
	rt_sleep_ns(rt_random() % 2 * 100000000);
	life_begin(&w->node[1]);
	rt_sleep_ns(1000000000);
	go_on_to(BACK);
	world_end(w);
	return 0;
}

static void a_leaf_that_has_died_does_not_come_back(void **state)
{
	run_lives(run_dying, dying_life, 3, false);
	tree_guess_watch = NULL;
}

/* ---- a home that tells a place, and crashes ------------------------------------------------ */

static unsigned told_item;

/* Node 1 splits leaves, and nothing makes that durable but the answer to node 2. */
static void told_life(void *arg)
{
	struct node *n = (struct node *)arg;
	struct learned_leaf now;

	crash_open(n);
	if (atomic_load(&phase) == TOGETHER) {
		if (n->id == 1)
			set_items(n, 0, 400, 1);
		OK(volume_sync(n->v));
		barrier(n);
		if (n->id == 1)
			set_items(n, 400, 200, 1);
		barrier(n);
		if (n->id == 2) {
			told_item = 400 + pick(200);
			OK(tree_ask_leaf(n->v->tree, 1, tree_key_of(item_key(told_item)),
				&old_leaf));
		}
		atomic_fetch_add(&finished, n->id == 2);
	}
	come_to(BACK);
	barrier(n);
	if (n->id == 1) {
		must_read(n, told_item, 1);
		HOLDS(learned_find(
			n->v->tree->learned, tree_key_of(item_key(told_item)), &now));
		EQ(now.pid, old_leaf.pid);
		EQ(now.incarnation, old_leaf.incarnation);
	}
	barrier(n);
	crash_close(n);
	ended++;
}

static int run_told(void *arg)
{
	struct world *w = (struct world *)arg;

	world_begin(w);
	await(1);
	lose(&w->node[0]);
	go_on_to(LOST);
	life_begin(&w->node[0]);
	go_on_to(BACK);
	world_end(w);
	return 0;
}

static void a_leaf_that_was_told_outlives_the_home(void **state)
{
	run_lives(run_told, told_life, 2, false);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(nodes_that_guess_change_a_tree),
		cmocka_unit_test(nodes_that_guess_have_a_filesystem),
		cmocka_unit_test(
			nothing_is_damaged_when_nodes_that_guess_lose_their_power),
		cmocka_unit_test(a_lookup_costs_one_round_trip),
		cmocka_unit_test(splits_send_the_sharers_nothing),
		cmocka_unit_test(nonsense_is_no_leaf),
		cmocka_unit_test(known_leaves_are_found_while_the_home_above_is_away),
		cmocka_unit_test(a_leaf_that_has_died_does_not_come_back),
		cmocka_unit_test(a_leaf_that_was_told_outlives_the_home),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
