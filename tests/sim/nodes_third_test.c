/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pages that are in another node's memory, and not in their home's (docs/protocol.md, "From a
 * sharer's memory"). Node 1 is their home and has them on its device. Node 2 has read them. What
 * node 3 does with them costs the device nothing, except for pages that node 2 has dropped.
 *
 *   WEFT_SIM_SEED=7 build/tests/sim/nodes_third_test     one seed
 */
#include "tests/sim/nodes_life.h"
#include "tests/sim/phases.h"

#define THIRD_SEEDS 6
#define NODES       3u
#define CACHE       256u         /* frames of a node */
#define PAGES       96u          /* pages of node 1 that all read */
#define OTHERS      (4u * CACHE) /* pages of each node that only it uses */
#define BATCH       16u
#define ROUNDS      60u

static void (*second_does)(struct node *n), (*third_does)(struct node *n);
static bool second_is_lost;
static uint64_t asked, fetched; /* over all seeds: asks of sharers, and those in vain */

/* ---- pages --------------------------------------------------------------------------------- */

static page_id page_of(unsigned node, unsigned i)
{
	return pid_make((uint16_t)(node - 1), BASE_SLOT + i);
}

static void make_pages(struct node *n)
{
	for (unsigned i = 0; i < PAGES + OTHERS; i++) {
		page_id pid = page_of(n->id, i);
		struct guard g;

		OK(guard_fresh(n->v->cache, pid, 1, &g));
		fill(g.image, pid, 1);
		guard_release_dirty(n->v->cache, &g, false);
	}
	OK(cache_checkpoint(n->v->cache));
}

/* Reads some pages, as a read of a file does. */
static void read_pages(struct node *n, unsigned of, unsigned first, uint64_t stamp)
{
	struct page_ref refs[BATCH];
	struct guard g[BATCH];

	for (unsigned i = 0; i < BATCH; i++)
		refs[i] = (struct page_ref){page_of(of, first + i), 1};
	OK(guard_shared_batch(n->v->cache, refs, BATCH, false, g));
	for (unsigned i = 0; i < BATCH; i++) {
		HOLDS(filled(g[i].image, refs[i].pid, stamp));
		guard_release(n->v->cache, &g[i]);
	}
}

static unsigned pages_held(struct node *n)
{
	unsigned held = 0;

	for (unsigned i = 0; i < PAGES; i++)
		held += table_find(n->v->cache, page_of(1, i)) != NULL;
	return held;
}

/* Reads pages of its own until it has no more than that of node 1's. */
static void push_out(struct node *n, unsigned left)
{
	while (pages_held(n) > left)
		read_pages(n, n->id, PAGES + BATCH * pick(OTHERS / BATCH), 1);
	rt_sleep_ns(20000000); /* nothing is under way */
}

static uint64_t device_reads(const struct node *n)
{
	return atomic_load(&store_counters(n->w->node[0].v->store)->pages_read);
}

static uint64_t messages_of(const struct node *n, enum page_message_type type)
{
	return atomic_load(
		&coherence_counters(n->coherence)->sent[type - PAGE_MESSAGE_FIRST]);
}

/* Reads all pages of node 1. Returns what that costs node 1's device. */
static uint64_t read_all(struct node *n, uint64_t stamp)
{
	uint64_t before = device_reads(n);

	for (unsigned i = 0; i < PAGES; i += BATCH)
		read_pages(n, 1, i, stamp);
	return device_reads(n) - before;
}

/* ---- the cases ------------------------------------------------------------------------------ */

static void reads_all(struct node *n)
{
	EQ(read_all(n, 1), PAGES); /* nobody else has them */
	EQ(pages_held(n), PAGES);
}

static void reads_all_again(struct node *n)
{
	EQ(read_all(n, 1), 0);
	EQ(messages_of(n, PAGE_COPY), PAGES);
	EQ(messages_of(n, PAGE_FETCH), 0);
}

static void reads_all_and_drops_half(struct node *n)
{
	reads_all(n);
	push_out(n, PAGES / 2);
}

static void reads_all_but_those(struct node *n)
{
	unsigned held = pages_held(&n->w->node[1]);

	HOLDS(held && held <= PAGES / 2);
	EQ(read_all(n, 1), PAGES - held);
	/* some DROPs wait for other messages to go with */
	EQ(messages_of(n, PAGE_COPY) - messages_of(n, PAGE_FETCH), held);
}

/* Node 2 must be told anyway: the image comes with its answer. */
static void writes_all(struct node *n)
{
	uint64_t before = device_reads(n);

	for (unsigned i = 0; i < PAGES; i++) {
		struct guard g;

		OK(guard_exclusive(n->v->cache, page_of(1, i), 1, &g));
		HOLDS(filled(g.image, page_of(1, i), 1));
		fill(g.image, page_of(1, i), 2);
		guard_release_dirty(n->v->cache, &g, false);
	}
	EQ(device_reads(n) - before, 0);
	EQ(messages_of(n, PAGE_MOVE), PAGES);
	EQ(messages_of(n, PAGE_INVALIDATE), 0);
	EQ(pages_held(&n->w->node[1]), 0);
}

/* Pages come and go on both nodes, so that one often drops what the other is sent for. */
static void press_main(void *arg)
{
	struct node *n = arg;

	for (unsigned i = 0; i < ROUNDS; i++) {
		read_pages(n, 1, BATCH * pick(PAGES / BATCH), 1);
		for (unsigned k = pick(4); k; k--)
			read_pages(n, n->id, PAGES + BATCH * pick(OTHERS / BATCH), 1);
	}
}

static void reads_under_pressure(struct node *n)
{
	uint64_t before = device_reads(n), requests = messages_of(n, PAGE_REQUEST);
	struct rt_task *task[TASKS];

	for (unsigned i = 0; i < TASKS; i++)
		OK(rt_task_spawn(&task[i], "press", press_main, n));
	for (unsigned i = 0; i < TASKS; i++)
		rt_task_join(task[i]);
	requests = messages_of(n, PAGE_REQUEST) - requests;
	HOLDS(requests > PAGES);
	print_message("node %u: %" PRIu64 " requests, %" PRIu64
		      " device reads meanwhile, %" PRIu64 " asks of sharers, %" PRIu64
		      " in vain\n",
		n->id, requests, device_reads(n) - before, messages_of(n, PAGE_COPY),
		messages_of(n, PAGE_FETCH));
	asked += messages_of(n, PAGE_COPY);
	fetched += messages_of(n, PAGE_FETCH);
}

/* The home's device has them, though the home may count node 2 as a sharer. */
static void reads_all_of_a_lost_node(struct node *n)
{
	HOLDS(read_all(n, 1) >= PAGES);
}

/* ---- a run ---------------------------------------------------------------------------------- */

static void life_end(struct node *n)
{
	settle(n);
	node_barrier(n, 2);
	settle(n);
	node_barrier(n, 3);
	node_barrier(n, 4);
	OK(volume_close(n->v));
}

static void second_life(void *arg)
{
	struct node *n = arg;

	pages_open(n);
	rt_sleep_ns(2000000000); /* all are in one epoch */
	EQ(read_all(n, 1), 0);   /* node 3 has them by now */
	EQ(messages_of(n, PAGE_COPY), PAGES);
	life_end(n);
}

static void first_life(void *arg)
{
	struct node *n = arg;

	pages_open(n);
	node_barrier(n, 1);
	make_pages(n);
	if (n->id == 1) {
		push_out(n, 0);
		go_on_to(1);
	} else if (n->id == 2) {
		come_to(1);
		second_does(n);
		go_on_to(2);
	} else {
		come_to(second_does == third_does ? 1 : second_is_lost ? 3 : 2);
		third_does(n);
		go_on_to(4);
	}
	come_to(4);
	life_end(n);
}

/* Node 2 loses its power with the pages. It comes back when node 3 has them. */
static void lose_second(struct sharing *w)
{
	struct node *n = &w->w.node[1];

	come_to(2);
	rt_sim_node_kill(n->sim);
	n->up = false;
	note_crash(n);
	n->life++;
	go_on_to(3);
	come_to(4);
	n->sim = rt_sim_node_new(n->disk);
	OK(rt_sim_spawn_on(n->sim, "node", second_life, n));
}

static int run_world(void *arg)
{
	struct sharing *w = arg;

	w->w.nodes = NODES;
	w->w.frames = CACHE;
	w->w.idle = true;
	w->crashes = second_is_lost; /* its peers are away when it opens */
	atomic_store(&phase, 0);
	sharing_open(w);
	for (unsigned i = 0; i < NODES; i++) {
		struct node *n = &w->w.node[i];

		n->sim = rt_sim_node_new(n->disk);
		OK(rt_sim_spawn_on(n->sim, "node", first_life, n));
	}
	barrier_to(w, 1, NODES + 1);
	if (second_is_lost)
		lose_second(w);
	for (unsigned nth = 2; nth <= 5; nth++)
		barrier_to(w, nth, NODES + 1);
	for (unsigned i = 0; i < NODES; i++)
		HOLDS(!rt_sim_node_wait(w->w.node[i].sim));
	world_over();
	return 0;
}

static void run_seeds(
	void (*second)(struct node *n), void (*third)(struct node *n), bool lost)
{
	struct sharing *w = calloc(1, sizeof(*w));
	struct rt_sim_options o = {.time_limit_ns = 60ull * 1000000000};
	uint64_t seeds = seeds_count(THIRD_SEEDS);

	assert_non_null(w);
	second_does = second;
	third_does = third;
	second_is_lost = lost;
	asked = fetched = 0;
	for (uint64_t seed = seeds_first(); seeds--; seed++) {
		memset(w, 0, sizeof(*w));
		assert_int_equal(rt_sim_run(seed, &o, run_world, w), 0);
	}
	free(w);
}

static void a_third_reader_costs_the_homes_device_nothing(void **state)
{
	run_seeds(reads_all, reads_all_again, false);
}

static void the_device_is_read_for_pages_that_the_second_has_dropped(void **state)
{
	run_seeds(reads_all_and_drops_half, reads_all_but_those, false);
}

static void a_writer_costs_the_homes_device_nothing(void **state)
{
	run_seeds(reads_all, writes_all, false);
}

static void sharers_that_drop_pages_while_they_are_asked_say_so(void **state)
{
	run_seeds(reads_under_pressure, reads_under_pressure, false);
	assert_true(asked > PAGES);
	if (seeds_count(THIRD_SEEDS) >= THIRD_SEEDS)
		assert_true(fetched);
}

static void a_lost_sharer_is_not_waited_for(void **state)
{
	run_seeds(reads_all, reads_all_of_a_lost_node, true);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_third_reader_costs_the_homes_device_nothing),
		cmocka_unit_test(
			the_device_is_read_for_pages_that_the_second_has_dropped),
		cmocka_unit_test(a_writer_costs_the_homes_device_nothing),
		cmocka_unit_test(sharers_that_drop_pages_while_they_are_asked_say_so),
		cmocka_unit_test(a_lost_sharer_is_not_waited_for),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
