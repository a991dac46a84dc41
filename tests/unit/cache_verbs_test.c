/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a page costs over verbs, in work requests, doorbells and completions: two engines, over
 * a device that is not there (verbs_fake.h). docs/benchmarks.md has the table.
 */
#include "tests/unit/verbs_fake.h"

#include "tests/unit/cache_fixture.h"
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "engine/coherence/protocol/protocol.h"
#include "tests/world/expect.h"
#include "tests/world/world.h"

#define SLOT   10
#define NODES  4u
#define BATCH  32u
#define FRAMES 2048u
#define AWAY   128u /* pages that are given back at once */

/* What a node has asked its card for. */
struct cost {
	uint64_t requests; /* messages, writes, reads; no signs of life, no credits */
	uint64_t doorbells, signalled;
};

static struct world world;
static struct engine engines[NODES];
static struct cost before[NODES]; /* by node */

static page_id pid_of(unsigned i)
{
	return pid_make(0, SLOT + i);
}

/* ---- counting ------------------------------------------------------------------------------ */

/* To all peers. Each sign of life, or credits, may have had a doorbell of its own. */
static struct cost so_far(const struct node *n)
{
	struct cost sum = {0};

	for (unsigned id = 1; id <= n->w->nodes; id++) {
		struct net_counters c;
		uint64_t work, signs;

		if (id == n->id)
			continue;
		net_counters(net_peer_find(n->net, (uint16_t)id), &c);
		work = c.messages_out + c.writes_out + c.reads_out + c.atomics_out;
		signs = c.requests > work ? c.requests - work : 0;
		sum.requests += work;
		sum.doorbells += c.calls_out - MIN(c.calls_out, signs);
		sum.signalled += c.signalled;
	}
	return sum;
}

/* Since all nodes were told to forget. */
static struct cost spent(const struct node *n)
{
	struct cost now = so_far(n), was = before[n->id - 1];

	return (struct cost){now.requests - was.requests, now.doorbells - was.doorbells,
		now.signalled - was.signalled};
}

static void forget(struct node *n)
{
	barrier(n);
	rt_sleep_ns(20000000);
	before[n->id - 1] = so_far(n);
	barrier(n);
}

static void show(const struct node *n, const char *what, struct cost is)
{
	if (getenv("WEFT_COSTS"))
		printf("%s: node %u: %" PRIu64 " requests, %" PRIu64
		       " doorbells, %" PRIu64 " completions\n",
			what, n->id, is.requests, is.doorbells, is.signalled);
}

/*
 * Exactly so many requests by each node, and no more of the rest. What nobody waited for is
 * waited for here. Begins anew.
 */
static void expect(struct node *n, const char *what, const struct cost *want)
{
	struct cost w = want[n->id - 1], is;

	while (spent(n).requests < w.requests)
		rt_sleep_ns(1000000); /* an alarm ends it */
	barrier(n);
	rt_sleep_ns(20000000);
	is = spent(n);
	show(n, what, is);
	if (is.requests != w.requests || is.doorbells > w.doorbells ||
		is.signalled > w.signalled) {
		fprintf(stderr,
			"%s cost node %u %" PRIu64 " requests, %" PRIu64
			" doorbells, %" PRIu64 " completions, not %" PRIu64 ", %" PRIu64
			", %" PRIu64 "\n",
			what, n->id, is.requests, is.doorbells, is.signalled, w.requests,
			w.doorbells, w.signalled);
		abort();
	}
	forget(n);
}
#define EXPECT(n, what, ...) expect(n, what, (const struct cost[NODES]){__VA_ARGS__})

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
	OK(guard_shared_batch(e->cache, refs, BATCH, false, g));
	for (unsigned i = 0; i < BATCH; i++) {
		HOLDS(filled(g[i].image, refs[i].pid, stamp));
		guard_release(e->cache, &g[i]);
	}
}

/* ---- two nodes ---------------------------------------------------------------------------- */

/* Node 1 is the home of all pages, and has changed them. */
static void costs(struct node *n, struct engine *e)
{
	bool home = n->id == 1;

	for (unsigned i = 0; i < 2 * BATCH && home; i++)
		change(e, i, 5);
	forget(n);
	if (!home)
		see(e, 0, 5);
	EXPECT(n, "a miss", {2, 1, 1}, {1, 1, 0});
	if (!home)
		see(e, 0, 5);
	EXPECT(n, "what a node has", {0});
	if (!home)
		change(e, 1, 6);
	EXPECT(n, "a page wanted exclusively", {2, 1, 1}, {1, 1, 0});
	if (home)
		see(e, 1, 6);
	EXPECT(n, "a page that its home wants back", {1, 1, 0}, {2, 1, 1});
	if (!home)
		see_many(e, BATCH, 5);
	EXPECT(n, "a batch", {2 * BATCH, 2, 2}, {BATCH, 1, 0});
}

/* ---- several sharers ------------------------------------------------------------------------- */

static void all_see(struct node *n, struct engine *e, unsigned i, uint64_t stamp,
	unsigned first, unsigned last)
{
	if (n->id >= first && n->id <= last)
		see(e, i, stamp);
	forget(n);
}

/* ScaleStore §3.4.3: the requester asks each sharer itself. */
static void upgrade_costs(struct node *n, struct engine *e)
{
	bool home = n->id == 1, writer = n->id == 2;

	for (unsigned i = 0; i < BATCH && home; i++)
		change(e, i, 5);
	forget(n);
	all_see(n, e, 0, 5, 2, 2);
	if (writer)
		change(e, 0, 6);
	EXPECT(n, "an upgrade, of a page that its home has too", {1, 1, 0}, {1, 1, 0});
	all_see(n, e, 1, 5, 2, 3);
	if (writer)
		change(e, 1, 6);
	EXPECT(n, "an upgrade, one more sharer", {1, 1, 0}, {2, 2, 0}, {1, 1, 0});
	all_see(n, e, 2, 5, 2, 4);
	if (writer)
		change(e, 2, 6);
	EXPECT(n, "an upgrade, two more sharers", {1, 1, 0}, {3, 3, 0}, {1, 1, 0},
		{1, 1, 0});
	all_see(n, e, 3, 5, 3, 4);
	if (writer)
		change(e, 3, 6);
	EXPECT(n, "a page wanted exclusively, two sharers", {2, 1, 1}, {3, 3, 0},
		{1, 1, 0}, {1, 1, 0});
	if (n->id == 3)
		see(e, 0, 6);
	EXPECT(n, "a miss, of a page that a third has changed", {1, 1, 0}, {2, 1, 1},
		{2, 2, 0});
}

/* ---- evictions ----------------------------------------------------------------------------------- */

static unsigned frames_of_others(struct cache *c)
{
	unsigned n = 0;

	for (uint32_t i = 0; i < cache_frame_count(c); i++) {
		page_id pid = atomic_load(&cache_frame(c, i)->pid);

		n += pid != PID_NONE && pid_shard(pid) == 0;
	}
	return n;
}

/*
 * Node 2 uses pages of its own, of which there are more than frames, until the page
 * provider has given up all of node 1's.
 */
static void crowd_out(struct node *n, struct engine *e)
{
	struct guard g;

	for (unsigned i = 0; n->id == 2 && frames_of_others(e->cache); i++)
		for (unsigned k = 0; k < FRAMES / 8; k++) {
			page_id pid =
				pid_make(1, SLOT + (i * FRAMES / 8 + k) % (2 * FRAMES));

			OK(guard_exclusive(e->cache, pid, 1, &g));
			fill(g.image, pid, 5);
			guard_release_dirty(e->cache, &g, false);
		}
	/* clean ones are told of with what follows, the last of them a moment after they have gone */
	for (; n->id == 2 && spent(n).requests < AWAY; rt_sleep_ns(1000000))
		net_flush(n->net);
}

/* ScaleStore §4.3: up to 128 (it: 100) pages at a time, reads linked. */
static void eviction_costs(struct node *n, struct engine *e)
{
	bool home = n->id == 1;

	for (unsigned i = 0; i < 2 * AWAY && home; i++)
		change(e, i, 5);
	forget(n);
	for (unsigned i = 0; i < AWAY && !home; i++)
		see(e, i, 5);
	forget(n);
	crowd_out(n, e);
	EXPECT(n, "128 clean pages are evicted", {0}, {AWAY, AWAY / 8, AWAY / 8});
	for (unsigned i = 0; i < AWAY && !home; i++)
		change(e, AWAY + i, 6);
	forget(n);
	crowd_out(n, e);
	EXPECT(n, "128 changed pages are evicted", {2 * AWAY, AWAY / 4, AWAY / 4},
		{AWAY, AWAY / 8, AWAY / 8});
	if (home)
		OK(cache_checkpoint(e->cache));
	EXPECT(n, "what they were is persisted", {AWAY, AWAY / 8, AWAY / 8}, {0});
}

/* ---- all ----------------------------------------------------------------------------------------- */

static void (*current)(struct node *n, struct engine *e);

static void node_main(void *arg)
{
	struct cache_options co = {
		.cache_bytes = FRAMES * PAGE_SIZE, .dirty_age_ms = 1000000};
	struct node *n = arg;
	struct engine *e = &engines[n->id - 1];

	engine_open_log(e, n->file.path);
	e->coherence = node_provide(n, e->store, e->log);
	OK(cache_open(&e->cache, e->store, e->log, e->coherence, &co));
	node_join(n);
	current(n, e);
	for (unsigned round = 0; round < 3; round++) {
		OK(cache_checkpoint(e->cache));
		owed_ship(e->cache, LSN_MAX, false);
		barrier(n);
	}
	node_part_all(n);
	engine_close(e);
}

static void run(unsigned count, void (*what)(struct node *n, struct engine *e))
{
	current = what;
	memset(before, 0, sizeof(before));
	world_make_real(&world, "verbs", count, NULL, 64 << 20);
	for (unsigned i = 0; i < count; i++)
		engine_format_shard(world.node[i].file.path, 24 << 20, (uint16_t)i);
	world_run_real(&world, node_main);
	world_drop_real(&world);
}

static void a_page_costs_what_is_written(void **state)
{
	run(2, costs);
}

static void an_upgrade_costs_a_message_to_and_from_each_sharer(void **state)
{
	run(NODES, upgrade_costs);
}

static void evictions_cost_a_doorbell_for_each_batch(void **state)
{
	run(2, eviction_costs);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_page_costs_what_is_written),
		cmocka_unit_test(an_upgrade_costs_a_message_to_and_from_each_sharer),
		cmocka_unit_test(evictions_cost_a_doorbell_for_each_batch),
	};

	fake_usual();
	rt_real_start();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
