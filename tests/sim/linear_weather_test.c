/* SPDX-License-Identifier: Apache-2.0 */
/*
 * As linear_test, in bad weather: links break; nodes do not hear each other, in one direction
 * or both, for less or more time than links live; nodes lose their power and come back in
 * the middle of it, one or some at a moment; networks are slow, and caches small. Every
 * operation of a node that lives ends, and one order explains what all returned.
 *
 * Of a crash is promised that nothing is lost that was fsynced, or that a node has done which
 * lives. So nodes are of two kinds, by the seed. Those that never crash do their
 * operations, and nothing else. Of those that may crash most operations that change something
 * end with an fsync: what has returned is for ever; and so is what all had done before it to
 * what was synced. What they are at when they crash has no answer: the order has it before the
 * crash, or nowhere. Others may have seen what it did, and the crash may undo it all the same,
 * for nobody had it durable; so it may what has returned and was not synced. But not where
 * a node that lives has done since what only that explains (`lossy_model`). Of a write to a
 * new page the size may be left, without the bytes.
 *
 * Locks end with their node. They are in the way of all others until it is started again,
 * and need not be from then on; when all have heard of that they are not.
 *
 * With each second seed every descent to a leaf begins with a guess (guesses.h).
 *
 *   WEFT_SIM_SEED=7 build/tests/sim/linear_weather_test     one seed
 *   WEFT_SIM_SEEDS=1000                                     so many of each kind
 */
#define LOG_BYTES (8ull << 20)
#include "tests/sim/cluster_world.h"
#include "tests/world/weather.h"
#include "tests/sim/guesses.h"
#include "tests/sim/linear_work.h"

#define WEATHER_SEEDS 2u
#define ROUNDS        6u
#define PAUSE_NS      25000000u /* between two cuts, the longest */
#define LOST_MAX      3u /* operations; of each there are three possible ends (AFTER_MAX) */

enum { CUTS = 1, CRASHES = 2 };

static struct {
	unsigned of; /* CUTS, CRASHES */
	_Atomic bool over, calm; /* the last round has ended; and all hear each other */
	_Atomic unsigned round;
	bool lived[NODES_MAX + 1], opened[NODES_MAX + 1], works[NODES_MAX + 1];
	unsigned ended;
} run;

/* Over all seeds. */
static unsigned sum_crashes, sum_lost, sum_risked;

/* ---- nodes --------------------------------------------------------------------------------- */

static bool has_heard(const struct node *n, const struct node *back)
{
	return n == back || atomic_load(&n->fs->locks->heard[back->id]) >=
				    back->fs->locks->incarnation;
}

/* A hello travels as other messages do: the last of a round waits for it. */
static void all_hear(struct world *w)
{
	for (unsigned i = 0; i < w->nodes; i++)
		for (unsigned k = 0; k < w->nodes; k++)
			while (shared.crashed >> (k + 1) & 1 &&
				!has_heard(&w->node[i], &w->node[k]))
				rt_sleep_ns(100000);
	note_event(NODE_HEARD, shared.crashed);
}

static void round_ends(struct node *n)
{
	if (shared.crashed && shared.model == &locks_model)
		all_hear(n->w);
	look_at_all(n);
	judge();
	shared.crashed = 0;
	shared.lax = pick(1u << (NODES_MAX + 1));
	if (atomic_fetch_add(&run.round, 1) + 1 == n->w->steps)
		atomic_store(&run.over, true);
}

static void node_rounds(struct node *n)
{
	while (!atomic_load(&run.over)) {
		unsigned looks = atomic_load(&run.round) % n->w->nodes;

		run.works[n->id] = true;
		work_together(n, MIN(tasks_of(n->w->nodes), 2u));
		if (shared.mortal >> n->id & 1)
			sync_all(n->fs);
		run.works[n->id] = false;
		barrier(n);
		if (n->id == 1 + looks)
			round_ends(n);
		barrier(n);
	}
}

static void node_life(void *arg)
{
	struct node *n = (struct node *)arg;

	crash_open(n);
	run.opened[n->id] = true;
	if (!run.lived[n->id]) {
		if (n->id == 1)
			things_make(n);
		OK(ops_syncfs(n->fs));
		run.lived[n->id] = true;
		barrier(n);
	}
	node_rounds(n);
	rt_mutex_lock(&n->w->turn);
	look_at_all(n);
	judge();
	rt_mutex_unlock(&n->w->turn);
	while (!atomic_load(&run.calm)) /* who leaves alone gives less back */
		rt_sleep_ns(1000000);
	crash_close(n);
	run.ended++;
}

/* ---- the weather --------------------------------------------------------------------------- */

static void life_begin(struct node *n)
{
	run.opened[n->id] = false;
	n->sim = rt_sim_node_new(n->disk);
	OK(rt_sim_spawn_on(n->sim, "node", node_life, n));
}

/* What the node is at that would change something, and what it has changed. */
static unsigned changes_of(unsigned id)
{
	unsigned count = 0;

	for (unsigned i = 0; i < shared.count; i++)
		count += shared.action[i].loose && shared.action[i].node == id;

	for (unsigned i = 0; i < TASKS; i++)
		count += shared.doing[id][i].is &&
			 action_changes(shared.doing[id][i].action.kind);
	return count;
}

/* The first has no answer; the second need not be durable. */
static void note_lost(unsigned id, uint64_t now)
{
	for (unsigned i = 0; i < shared.count; i++) {
		struct action *a = &shared.action[i];

		a->risked |= a->loose && a->node == id;
		sum_risked += a->loose && a->node == id;
		a->loose &= a->node != id;
	}
	for (unsigned i = 0; i < TASKS; i++) {
		struct action *a = &shared.doing[id][i].action;

		if (shared.doing[id][i].is && action_changes(a->kind)) {
			a->lost = true;
			note(a, shared.doing[id][i].began, now);
			sum_lost++;
		}
		shared.doing[id][i].is = false;
	}
}

/* These, at one moment. */
static void crash(struct world *w, unsigned nodes)
{
	uint64_t now = ++shared.clock;

	for (unsigned id = 1; id <= w->nodes; id++) {
		if (!(nodes >> id & 1))
			continue;
		w->node[id - 1].coherence = NULL;
		rt_sim_node_kill(w->node[id - 1].sim);
		run.works[id] = false;
		note_lost(id, now);
		sum_crashes++;
	}
	note_event(NODE_CRASH, nodes);
	shared.crashed = nodes;
}

/* It may crash again before it has opened the volume. */
static void come_back_one(struct node *n)
{
	life_begin(n);
	while (pick(3) == 0) {
		rt_sleep_ns(pick(pick(2) ? 3000000 : 100000000));
		if (run.opened[n->id])
			return;
		n->coherence = NULL;
		rt_sim_node_kill(n->sim);
		sum_crashes++;
		life_begin(n);
	}
}

static void come_back(struct world *w)
{
	for (unsigned id = 1; id <= w->nodes; id++) {
		if (!(shared.crashed >> id & 1))
			continue;
		if (pick(3))
			rt_sleep_ns(pick(pick(4) ? 20000000 : 2000000000));
		note_event(NODE_RETURN, 1u << id);
		come_back_one(&w->node[id - 1]);
	}
}

/* Which of those that may crash do now: one or more, if what they are at is not too much. */
static unsigned who_crashes(const struct world *w)
{
	unsigned nodes = 0, lost = 0, first = pick(w->nodes);

	for (unsigned i = 0; i < w->nodes; i++) {
		unsigned id = 1 + (first + i) % w->nodes;

		if (!(shared.mortal >> id & 1) || !run.works[id] ||
			lost + changes_of(id) > LOST_MAX || (nodes && pick(2)))
			continue;
		nodes |= 1u << id;
		lost += changes_of(id);
	}
	return nodes;
}

/* Somewhere in the round, or not. */
static void crash_somewhere(struct world *w, unsigned round)
{
	unsigned behind = pick(24), nodes;

	while (atomic_load(&run.round) == round && shared.count < behind)
		rt_sleep_ns(20000);
	rt_sleep_ns(pick(300000));
	if (atomic_load(&run.round) != round || !is_room())
		return;
	nodes = who_crashes(w);
	if (!nodes)
		return;
	crash(w, nodes);
	come_back(w);
}

static int run_weather(void *arg)
{
	struct world *w = (struct world *)arg;

	cluster_format(w);
	for (unsigned i = 0; i < w->nodes; i++)
		life_begin(&w->node[i]);
	while (atomic_load(&w->arrived) < w->nodes)
		rt_sleep_ns(1000000);
	if (run.of & CUTS)
		weather_begin(w, PAUSE_NS);
	for (unsigned round = 0; round < w->steps; round++) {
		if (run.of & CUTS && pick(2))
			rt_sim_net_delay(5000, 100000 * (1 + pick(30)));
		if (run.of & CRASHES)
			crash_somewhere(w, round);
		while (atomic_load(&run.round) == round)
			rt_sleep_ns(50000);
	}
	if (run.of & CUTS)
		weather_end();
	rt_sleep_ns(1000000000);
	atomic_store(&run.calm, true);
	for (unsigned i = 0; i < w->nodes; i++)
		HOLDS(!rt_sim_node_wait(w->node[i].sim));
	HOLDS(run.ended == w->nodes);
	world_stopped();
	stores_check(w);
	world_over();
	return 0;
}

/* ---- the runner -------------------------------------------------------------------------- */

/* Some, but not all. */
static unsigned mortal_nodes(unsigned nodes, uint64_t seed)
{
	unsigned all = (1u << nodes) - 1;

	return (1 + (unsigned)(seed * 0x9e3779b97f4a7c15ull >> 32) % (all - 1)) << 1;
}

static bool few; /* less of it */

static void run_one(uint64_t seed, unsigned nodes, const char *name)
{
	static const unsigned caches[] = {FRAMES, 112, 80};
	struct rt_sim_options o = {.time_limit_ns = 3600ull * 1000000000};
	struct world *w = (struct world *)calloc(1, sizeof(*w));

	assert_non_null(w);
	w->nodes = nodes;
	w->stall_ns = WEATHER_STALL_NS;
	w->steps = nodes > 5 ? ROUNDS / 3 : ROUNDS;
	if (shared.model == &log_model)
		w->steps = MIN(w->steps, 3u);
	w->frames = caches[seed % ARRAY_SIZE(caches)];
	w->dirty_age_ms = seed / 3 % 2 ? 40 : 10000;
	shared.weather = true;
	shared.mortal = run.of & CRASHES ? mortal_nodes(nodes, seed) : 0;
	snprintf(repeat_by, sizeof(repeat_by),
		"WEFT_SIM_SEED=%" PRIu64 " WEFT_SIM_NODES=%u "
		"build/tests/sim/linear_weather_test %s",
		seed, nodes, name);
	if (seed % 2 == 0)
		guesses_begin();
	assert_int_equal(rt_sim_run(seed, &o, run_weather, w), 0);
	guesses_end();
	free(w);
}

static void run_seeds(unsigned nodes, unsigned of, const struct linear_model *model,
	void (*choose)(const struct worker *w, struct action *a), const char *name)
{
	uint64_t seeds = seeds_count(WEATHER_SEEDS);

	if (few)
		seeds = MAX(seeds / WEATHER_SEEDS, 1);
	sum_crashes = sum_lost = sum_risked = 0;
	weather.cuts = weather.silent = 0;
	for (uint64_t seed = seeds_first(); seeds--; seed++) {
		memset(&shared, 0, sizeof(shared));
		memset(&run, 0, sizeof(run));
		run.of = of;
		shared.model = model;
		shared.choose = choose;
		run_one(seed, seeds_nodes(nodes, seed), name);
	}
	print_message("%u links broke, %u were silent, %u crashes, %u operations without an "
		      "answer, %u not durable\n",
		weather.cuts, weather.silent, sum_crashes, sum_lost, sum_risked);
	assert_true(!(of & CUTS) || weather.cuts + weather.silent > 0);
	assert_true(!(of & CRASHES) || sum_crashes > 0);
}

static void names_while_links_break(void **state)
{
	run_seeds(3, CUTS, &names_model, choose_name, __func__);
}

static void files_while_links_break(void **state)
{
	run_seeds(3, CUTS, &file_model, choose_file, __func__);
}

static void appends_while_links_break(void **state)
{
	run_seeds(3, CUTS, &log_model, choose_log, __func__);
}

static void locks_while_links_break(void **state)
{
	run_seeds(3, CUTS, &locks_model, choose_lock, __func__);
}

static void names_while_nodes_crash(void **state)
{
	run_seeds(3, CRASHES, &names_model, choose_name, __func__);
}

static void files_while_nodes_crash(void **state)
{
	run_seeds(3, CRASHES, &file_model, choose_file, __func__);
}

static void appends_while_nodes_crash(void **state)
{
	run_seeds(3, CRASHES, &log_model, choose_log, __func__);
}

static void locks_while_nodes_crash(void **state)
{
	run_seeds(3, CRASHES, &locks_model, choose_lock, __func__);
}

static void names_while_both_happen(void **state)
{
	run_seeds(3, CUTS | CRASHES, &names_model, choose_name, __func__);
}

static void files_while_both_happen(void **state)
{
	run_seeds(3, CUTS | CRASHES, &file_model, choose_file, __func__);
}

static void appends_while_both_happen(void **state)
{
	run_seeds(3, CUTS | CRASHES, &log_model, choose_log, __func__);
}

static void locks_while_both_happen(void **state)
{
	run_seeds(3, CUTS | CRASHES, &locks_model, choose_lock, __func__);
}

/* The same on more nodes, and on two. */
static void on_nodes(unsigned nodes, const char *name)
{
	few = true;
	run_seeds(nodes, CUTS | CRASHES, &names_model, choose_name, name);
	run_seeds(nodes, CUTS | CRASHES, &file_model, choose_file, name);
	run_seeds(nodes, CUTS | CRASHES, &log_model, choose_log, name);
	run_seeds(nodes, CUTS | CRASHES, &locks_model, choose_lock, name);
	few = false;
}

static void all_of_it_on_two_nodes(void **state)
{
	on_nodes(2, __func__);
}

static void all_of_it_on_five_nodes(void **state)
{
	on_nodes(5, __func__);
}

static void all_of_it_on_eight_nodes(void **state)
{
	on_nodes(8, __func__);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(names_while_links_break),
		cmocka_unit_test(files_while_links_break),
		cmocka_unit_test(appends_while_links_break),
		cmocka_unit_test(locks_while_links_break),
		cmocka_unit_test(names_while_nodes_crash),
		cmocka_unit_test(files_while_nodes_crash),
		cmocka_unit_test(appends_while_nodes_crash),
		cmocka_unit_test(locks_while_nodes_crash),
		cmocka_unit_test(names_while_both_happen),
		cmocka_unit_test(files_while_both_happen),
		cmocka_unit_test(appends_while_both_happen),
		cmocka_unit_test(locks_while_both_happen),
		cmocka_unit_test(all_of_it_on_two_nodes),
		cmocka_unit_test(all_of_it_on_five_nodes),
		cmocka_unit_test(all_of_it_on_eight_nodes),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
