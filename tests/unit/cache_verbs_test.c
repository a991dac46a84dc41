/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a page costs over verbs, in work requests, doorbells and completions: two engines, over
 * a device that is not there (verbs_fake.h). docs/benchmarks.md has the table.
 */
#include "tests/unit/verbs_fake.h"

#include "tests/unit/cache_fixture.h"
#include "tests/unit/nodes_fixture.h"

#define SLOT  10
#define BATCH 32u

struct cost {
	uint64_t requests, doorbells, signalled;
};

static struct nodes world;
static struct engine engines[2];
static struct cost spent[2]; /* by node, since the last look */

static page_id pid_of(unsigned i)
{
	return pid_make(0, SLOT + i);
}

/* ---- counting ------------------------------------------------------------------------------ */

static struct cost so_far(const struct node *n)
{
	struct net_counters c;

	net_counters(net_peer_find(n->net, (uint16_t)(3 - n->id)), &c);
	return (struct cost){c.requests, c.calls_out, c.signalled};
}

/* What both have spent since the last time. All is said that follows from what was done. */
static void look(struct node *n)
{
	static struct cost before[2];
	struct cost now;

	nodes_barrier(n);
	rt_sleep_ns(20000000); /* answers that nobody waited for */
	now = so_far(n);
	spent[n->id - 1] = (struct cost){now.requests - before[n->id - 1].requests,
		now.doorbells - before[n->id - 1].doorbells,
		now.signalled - before[n->id - 1].signalled};
	before[n->id - 1] = now;
	nodes_barrier(n);
}

static void expect(
	const struct node *n, const char *what, struct cost one, struct cost two)
{
	const struct cost want[2] = {one, two};

	for (unsigned i = 0; i < 2 && n->id == 1; i++) {
		struct cost c = spent[i];

		if (c.requests == want[i].requests && c.doorbells <= want[i].doorbells &&
			c.signalled <= want[i].signalled)
			continue;
		fprintf(stderr,
			"%s cost node %u %" PRIu64 " requests, %" PRIu64
			" doorbells, %" PRIu64 " completions, not %" PRIu64 ", %" PRIu64
			", %" PRIu64 "\n",
			what, i + 1, c.requests, c.doorbells, c.signalled,
			want[i].requests, want[i].doorbells, want[i].signalled);
		abort();
	}
}

/* ---- what nodes do --------------------------------------------------------------------------- */

static void change(struct engine *e, unsigned i, uint64_t stamp)
{
	struct guard g;

	OK(guard_exclusive(e->cache, pid_of(i), 1, &g));
	fill(g.image, pid_of(i), stamp);
	guard_release_dirty(e->cache, &g, false);
}

static void see(struct engine *e, unsigned i, uint64_t stamp)
{
	struct guard g;

	OK(guard_shared(e->cache, pid_of(i), 1, &g));
	HOLDS(filled(g.image, pid_of(i), stamp));
	guard_release(e->cache, &g);
}

static void see_many(struct engine *e, unsigned first, uint64_t stamp)
{
	struct page_ref refs[BATCH];
	struct guard g[BATCH];

	for (unsigned i = 0; i < BATCH; i++)
		refs[i] = (struct page_ref){pid_of(first + i), 1};
	OK(guard_shared_batch(e->cache, refs, BATCH, g));
	for (unsigned i = 0; i < BATCH; i++) {
		HOLDS(filled(g[i].image, refs[i].pid, stamp));
		guard_release(e->cache, &g[i]);
	}
}

/* Node 1 is the home of all pages, and has changed them. */
static void costs(struct node *n, struct engine *e)
{
	bool home = n->id == 1;

	for (unsigned i = 0; i < 2 * BATCH && home; i++)
		change(e, i, 5);
	look(n);
	if (!home)
		see(e, 0, 5);
	look(n);
	expect(n, "a miss", (struct cost){2, 1, 1}, (struct cost){1, 1, 0});
	if (!home)
		see(e, 0, 5);
	look(n);
	expect(n, "what a node has", (struct cost){0}, (struct cost){0});
	if (!home)
		change(e, 1, 6);
	look(n);
	expect(n, "a page wanted exclusively", (struct cost){2, 1, 1},
		(struct cost){1, 1, 0});
	if (home)
		see(e, 1, 6);
	look(n);
	expect(n, "a page that its home wants back", (struct cost){1, 1, 0},
		(struct cost){2, 1, 1});
	if (!home)
		see_many(e, BATCH, 5);
	look(n);
	expect(n, "a batch", (struct cost){2 * BATCH, 2, 2}, (struct cost){BATCH, 1, 0});
}

static void node_main(void *arg)
{
	struct cache_options co = {
		.cache_bytes = 8 * BATCH * PAGE_SIZE, .dirty_age_ms = 100000};
	struct node *n = arg;
	struct engine *e = &engines[n->id - 1];

	engine_open_log(e, n->file.path);
	e->coherence = node_provide(n, e->store, e->log);
	OK(cache_open(&e->cache, e->store, e->log, e->coherence, &co));
	node_join(n);
	costs(n, e);
	for (unsigned round = 0; round < 3; round++) {
		OK(cache_checkpoint(e->cache));
		owed_ship(e->cache, LSN_MAX, false);
		nodes_barrier(n);
	}
	node_leave(n);
	engine_close(e);
}

static void a_page_costs_what_is_written(void **state)
{
	nodes_make(&world, "verbs", 2, NULL, 64 << 20);
	for (unsigned i = 0; i < 2; i++)
		engine_format_shard(world.node[i].file.path, 4 << 20, (uint16_t)i);
	nodes_run(&world, node_main);
	nodes_drop(&world);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_page_costs_what_is_written),
	};

	rt_real_start();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
