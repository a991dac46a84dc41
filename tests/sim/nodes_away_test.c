/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Nodes that are away, or do not hear each other: what needs them waits, and nobody waits
 * behind that (docs/nodes/failures.md). Each case is a few steps of four nodes, one
 * after the other, with the link or the node missing in between; a step that should not
 * wait, and does, ends the run by its time.
 *
 *   WEFT_SIM_SEED=7 build/tests/sim/nodes_away_test     one seed
 */
#include "engine/coherence/driver/driver_internal.h"
#include "tests/sim/nodes_life.h"

#define AWAY_NODES 4u
#define LONG_NS    300000000ull /* longer than anything that is not held up */

/* One thing that a node does to a page. */
struct errand {
	unsigned node, page; /* page i has its home at node 1 + i % AWAY_NODES */
	bool writes;
	void (*does)(struct node *n, unsigned i); /* something else */
	_Atomic bool done;
	struct rt_task *task;
	struct sharing *w;
};

static void errand_main(void *arg)
{
	struct errand *x = arg;
	struct node *n = &x->w->w.node[x->node - 1];

	if (x->does)
		x->does(n, x->page);
	else if (x->writes)
		write_data(n, x->page, false);
	else
		read_latched(n, x->page);
	look_page(pid_of(x->w, x->page));
	atomic_store(&x->done, true);
}

static void errand_begin(struct sharing *w, struct errand *x)
{
	x->w = w;
	OK(rt_sim_spawn_on(w->w.node[x->node - 1].sim, "errand", errand_main, x));
}

static bool errand_ended(struct errand *x, uint64_t within_ns)
{
	uint64_t end = rt_now_ns() + within_ns;

	while (!atomic_load(&x->done) && rt_now_ns() < end)
		rt_sleep_ns(100000);
	return atomic_load(&x->done);
}

/* It does not wait for anything that is missing. */
static void goes_on(struct sharing *w, struct errand x)
{
	errand_begin(w, &x);
	if (errand_ended(&x, LONG_NS))
		return;
	print_message("node %u waits, to %s page %u\n", x.node,
		x.writes ? "write" : "read", x.page);
	abort();
}

/* ---- the cases ------------------------------------------------------------------------------ */

static void hear_each_other(struct sharing *w, unsigned a, unsigned b, bool hear)
{
	rt_sim_net_block(w->w.node[a - 1].sim, w->w.node[b - 1].sim, !hear);
	rt_sim_net_block(w->w.node[b - 1].sim, w->w.node[a - 1].sim, !hear);
	rt_sim_net_cut(w->w.node[a - 1].sim, w->w.node[b - 1].sim);
	rt_sleep_ns(50000000);
}

/* Nodes 2 and 3 do not hear each other; both hear the home, node 1, and node 4. */
static void a_link_is_missing(struct sharing *w)
{
	struct errand wants = {.node = 3, .page = 0, .writes = true};
	struct errand looks = {.node = 3, .page = 4};

	goes_on(w, (struct errand){.node = 2, .page = 0, .writes = true});
	goes_on(w, (struct errand){.node = 2, .page = 4, .writes = true});
	goes_on(w, (struct errand){.node = 4, .page = 4}); /* node 2 is the source */
	hear_each_other(w, 2, 3, false);
	errand_begin(w, &wants);
	errand_begin(w, &looks);
	HOLDS(!errand_ended(&wants, LONG_NS)); /* only node 2 can give it */
	for (unsigned i = 0; i < 3; i++) {
		goes_on(w, (struct errand){.node = 2, .page = 0, .writes = true});
		goes_on(w, (struct errand){.node = 2, .page = 4});
		goes_on(w, (struct errand){.node = 4, .page = 4});
	}
	/* when a node that both hear has it, both can have it */
	goes_on(w, (struct errand){.node = 4, .page = 0, .writes = true});
	goes_on(w, (struct errand){.node = 4, .page = 4, .writes = true});
	HOLDS(errand_ended(&wants, LONG_NS) && errand_ended(&looks, LONG_NS));
	goes_on(w, (struct errand){.node = 3, .page = 8, .writes = true});
	hear_each_other(w, 2, 3, true);
	goes_on(w, (struct errand){.node = 2, .page = 8, .writes = true});
}

static void crash(struct sharing *w, unsigned id)
{
	struct node *n = &w->w.node[id - 1];

	rt_sim_node_kill(n->sim);
	n->up = false;
	note_crash(n);
	rt_sleep_ns(50000000);
}

static void node_main(void *arg);

static void come_back(struct node *n)
{
	n->life++;
	n->sim = rt_sim_node_new(n->disk);
	OK(rt_sim_spawn_on(n->sim, "node", node_main, n));
}

static void asks_for_both(struct node *n, unsigned i)
{
	struct page_ref refs[2];

	for (unsigned k = 0; k < 2; k++) {
		unsigned at = i + k * AWAY_NODES;

		refs[k] = (struct page_ref){pid_of(sharing_of(n), at), sharing_of(n)->page[at].incarnation};
	}
	do /* one that waits for a node asks again */
		OK(cache_fetch_exclusive(n->v->cache, refs, 2));
	while (!table_find(n->v->cache, refs[1].pid));
}

/* Node 3 is away, and others make a link anew: pages that it may have are rebuilt. */
static void a_node_is_away(struct sharing *w)
{
	struct errand wants = {.node = 2, .page = 0, .writes = true};
	struct errand only = {.node = 2, .page = 8};
	/* with page 4, which node 3 has nothing of */
	struct errand both = {.node = 4, .page = 4, .does = asks_for_both};
	struct errand home = {.node = 1, .page = 4, .does = asks_for_both};

	goes_on(w, (struct errand){.node = 2, .page = 0, .writes = true});
	goes_on(w, (struct errand){.node = 3, .page = 0});
	goes_on(w, (struct errand){.node = 4, .page = 0});
	goes_on(w, (struct errand){.node = 3, .page = 8, .writes = true});
	crash(w, 3);
	hear_each_other(w, 1, 2, false);
	hear_each_other(w, 1, 2, true);
	/* what others have, shared, node 3 has at most shared: for readers it is there */
	goes_on(w, (struct errand){.node = 4, .page = 0});
	goes_on(w, (struct errand){.node = 2, .page = 0});
	goes_on(w, (struct errand){.node = 1, .page = 0});
	goes_on(w, (struct errand){.node = 2, .page = 1, .writes = true});
	/* a writer waits, and so does what only node 3 can have; readers go on */
	errand_begin(w, &wants);
	errand_begin(w, &only);
	HOLDS(!errand_ended(&wants, LONG_NS) && !errand_ended(&only, LONG_NS));
	goes_on(w, (struct errand){.node = 1, .page = 0});
	goes_on(w, (struct errand){.node = 2, .page = 0});
	goes_on(w, (struct errand){.node = 4, .page = 0});
	/* who waits for page 8 keeps page 4 from nobody, on its own node neither */
	errand_begin(w, &both);
	HOLDS(!errand_ended(&both, LONG_NS));
	errand_begin(w, &home);
	HOLDS(!errand_ended(&home, LONG_NS));
	for (unsigned id = 1; id <= 4; id += 1 + (id == 2))
		goes_on(w, (struct errand){.node = id, .page = 4, .writes = true});
	come_back(&w->w.node[2]);
	HOLDS(errand_ended(&wants, 10 * LONG_NS) && errand_ended(&only, 10 * LONG_NS));
	HOLDS(errand_ended(&both, 10 * LONG_NS) && errand_ended(&home, 10 * LONG_NS));
	goes_on(w, (struct errand){.node = 3, .page = 0});
	goes_on(w, (struct errand){.node = 4, .page = 0});
}

static void cannot_leave(struct node *n, unsigned i)
{
	struct page_driver *d = (struct page_driver *)n->v->cache->coherence;
	struct frame *f = table_find(n->v->cache, pid_of(sharing_of(n), i));
	uint64_t seen;

	while (!view_epoch_due(d))
		rt_sleep_ns(1000000);
	HOLDS(f && !kernel_has(n->v->cache, f) && latch_try_exclusive(f, &seen));
	HOLDS(!frame_drop(n->v->cache, f));
}

/*
 * Node 2 has changed two pages and shares them with their home, and with node 3. Its links are lost, but
 * the epoch for that has not begun. The copies are what is left of its changes.
 */
static void copies_are_left(struct sharing *w)
{
	goes_on(w, (struct errand){.node = 2, .page = 0, .writes = true});
	goes_on(w, (struct errand){.node = 2, .page = 4, .writes = true});
	goes_on(w, (struct errand){.node = 1, .page = 0});
	goes_on(w, (struct errand){.node = 3, .page = 4});
	for (unsigned id = 1; id <= 4; id += 1 + (id == 1))
		hear_each_other(w, 2, id, false);
	goes_on(w, (struct errand){.node = 1, .page = 0, .does = cannot_leave});
	goes_on(w, (struct errand){.node = 3, .page = 4, .does = cannot_leave});
	rt_sleep_ns(3 * LONG_NS);
	goes_on(w, (struct errand){.node = 4, .page = 0});
	goes_on(w, (struct errand){.node = 4, .page = 4});
	for (unsigned id = 1; id <= 4; id += 1 + (id == 1))
		hear_each_other(w, 2, id, true);
}

static void persists(struct node *n, unsigned i)
{
	OK(cache_checkpoint(n->v->cache));
}

/* Nodes 2 and 3 have page 0, shared, as it is persisted; nobody else has it. */
static void two_nodes_are_away(struct sharing *w)
{
	struct errand wants = {.node = 4, .page = 0, .writes = true};
	struct errand only = {.node = 4, .page = 4};

	goes_on(w, (struct errand){.node = 2, .page = 0, .writes = true});
	goes_on(w, (struct errand){.node = 2, .page = 4, .writes = true});
	goes_on(w, (struct errand){.node = 3, .page = 0});
	goes_on(w, (struct errand){.node = 2, .page = 0, .does = persists});
	goes_on(w, (struct errand){.node = 2, .page = 4, .writes = true});
	crash(w, 2);
	crash(w, 3);
	hear_each_other(w, 1, 4, false);
	hear_each_other(w, 1, 4, true);
	goes_on(w, (struct errand){.node = 4, .page = 0});
	goes_on(w, (struct errand){.node = 1, .page = 0});
	errand_begin(w, &wants);
	errand_begin(w, &only);
	HOLDS(!errand_ended(&wants, LONG_NS) && !errand_ended(&only, LONG_NS));
	goes_on(w, (struct errand){.node = 1, .page = 0});
	come_back(&w->w.node[1]);
	HOLDS(errand_ended(&only, 10 * LONG_NS) && !errand_ended(&wants, LONG_NS));
	come_back(&w->w.node[2]);
	HOLDS(errand_ended(&wants, 10 * LONG_NS));
	goes_on(w, (struct errand){.node = 3, .page = 0});
}

static void logs(struct node *n, unsigned i)
{
	write_metadata(n, i);
	OK(log_flush(n->v->log, log_end(n->v->log)));
}

static void renews(struct node *n, unsigned i)
{
	renew(n, i, false);
}

static void allocates(struct node *n, unsigned i)
{
	renew(n, i, true);
}

/*
 * Node 2 owes a version of page 0, the log of another has a later one; then the page is
 * allocated anew, twice, never written, and lost with node 4. What node 2 owes is the page
 * again, until that log is read.
 */
static void an_incarnation_comes_back(struct sharing *w, unsigned logger)
{
	goes_on(w, (struct errand){.node = 2, .page = 0, .writes = true});
	goes_on(w, (struct errand){.node = logger, .page = 0, .does = logs});
	goes_on(w, (struct errand){.node = logger, .page = 0, .does = renews});
	goes_on(w, (struct errand){.node = 4, .page = 0, .does = renews});
	crash(w, 4);
	come_back(&w->w.node[3]);
	rt_sleep_ns(10 * LONG_NS);
	crash(w, logger);
	come_back(&w->w.node[logger - 1]);
	rt_sleep_ns(10 * LONG_NS); /* all have heard all */
	for (unsigned id = 1; id <= w->w.nodes; id++)
		goes_on(w, (struct errand){.node = id, .page = 0});
	for (unsigned id = 1; id <= w->w.nodes; id++)
		goes_on(w, (struct errand){.node = id, .page = 0, .writes = true});
}

static void from_the_log_of_another(struct sharing *w)
{
	an_incarnation_comes_back(w, 3);
}

static void from_the_log_of_the_home(struct sharing *w)
{
	an_incarnation_comes_back(w, 1);
}

/* What a node can say only to those that it hears. */
static void cut_off(struct sharing *w, unsigned node, bool cut)
{
	for (unsigned other = 1; other <= 2; other++)
		hear_each_other(w, node, other, !cut);
}

/*
 * Node 2 owes a version of page 0; then the page is allocated anew, and nodes 3 and 4 share
 * its zeros. While these are not heard what node 2 owes is not the page.
 */
static void zeros_are_away(struct sharing *w)
{
	struct errand wants = {.node = 1, .page = 0};

	goes_on(w, (struct errand){.node = 2, .page = 0, .writes = true});
	goes_on(w, (struct errand){.node = 3, .page = 0, .does = renews});
	goes_on(w, (struct errand){.node = 4, .page = 0});
	hear_each_other(w, 1, 2, false);
	hear_each_other(w, 1, 2, true); /* entries are made anew */
	cut_off(w, 3, true);
	cut_off(w, 4, true);
	hear_each_other(w, 1, 2, false);
	hear_each_other(w, 1, 2, true);
	errand_begin(w, &wants);
	HOLDS(!errand_ended(&wants, LONG_NS));
	cut_off(w, 3, false);
	cut_off(w, 4, false);
	HOLDS(errand_ended(&wants, 10 * LONG_NS));
	for (unsigned id = 1; id <= w->w.nodes; id++)
		goes_on(w, (struct errand){.node = id, .page = 0});
}

/*
 * Node 2 owes a version of page 0 and is not heard; the page goes with the only node that
 * has it. What node 2 owes is the newest that is left.
 */
static void who_owes_is_away(struct sharing *w)
{
	struct errand wants = {.node = 4, .page = 0};

	goes_on(w, (struct errand){.node = 2, .page = 0, .writes = true});
	goes_on(w, (struct errand){.node = 3, .page = 0, .writes = true});
	hear_each_other(w, 1, 2, false);
	hear_each_other(w, 1, 4, false);
	hear_each_other(w, 1, 4, true); /* entries are made anew */
	crash(w, 3);
	come_back(&w->w.node[2]);
	rt_sleep_ns(LONG_NS);
	errand_begin(w, &wants);
	HOLDS(!errand_ended(&wants, LONG_NS));
	hear_each_other(w, 1, 2, true);
	HOLDS(errand_ended(&wants, 10 * LONG_NS));
	HOLDS(w->page[0].known && w->page[0].version == 1);
}

/* Nobody can say that it has the page otherwise than before, meanwhile. */
static void looks_long(struct node *n, unsigned i)
{
	struct guard g;

	OK(guard_shared(n->v->cache, pid_of(sharing_of(n), i), sharing_of(n)->page[i].incarnation, &g));
	rt_lets_go(&g.frame->latch); /* no task of the engine would wait with it */
	rt_sleep_ns(2 * LONG_NS);
	rt_holds(&g.frame->latch, rt_never);
	guard_release(n->v->cache, &g);
}

/*
 * Nodes 3 and 4 share what node 2 has changed, which has crashed. Node 3 is told to have it
 * in its place, and lost before it says so: it has the page all the same.
 */
static void who_is_reinstated_is_lost(struct sharing *w)
{
	struct errand looks = {.node = 3, .page = 0, .does = looks_long};

	goes_on(w, (struct errand){.node = 2, .page = 0, .writes = true});
	goes_on(w, (struct errand){.node = 3, .page = 0});
	goes_on(w, (struct errand){.node = 4, .page = 0});
	errand_begin(w, &looks);
	crash(w, 2);
	hear_each_other(w, 1, 4, false);
	hear_each_other(w, 1, 4, true);
	HOLDS(!errand_ended(&looks, 0));
	hear_each_other(w, 1, 3, false);
	HOLDS(errand_ended(&looks, 2 * LONG_NS));
	come_back(&w->w.node[1]);
	rt_sleep_ns(LONG_NS);
	goes_on(w, (struct errand){.node = 3, .page = 0});
	goes_on(w, (struct errand){.node = 4, .page = 0, .writes = true});
	hear_each_other(w, 1, 3, true);
	for (unsigned id = 1; id <= w->w.nodes; id++)
		goes_on(w, (struct errand){.node = id, .page = 0});
}

/* Reads so many others that the page leaves its cache. */
static void forgets(struct node *n, unsigned i)
{
	page_id pid = pid_of(sharing_of(n), i);

	for (unsigned k = 1; k < sharing_of(n)->pages || table_find(n->v->cache, pid); k++)
		if (k % sharing_of(n)->pages != i)
			read_latched(n, k % sharing_of(n)->pages);
}

/*
 * Nodes 1 and 2 owe versions of page 0; then its home, node 1, allocates it anew, never
 * writes it, and has no room for it. That what they owe is past is known all the same.
 */
static void zeros_leave_their_home(struct sharing *w)
{
	goes_on(w, (struct errand){.node = 1, .page = 0, .writes = true});
	goes_on(w, (struct errand){.node = 2, .page = 0, .writes = true});
	goes_on(w, (struct errand){.node = 1, .page = 0, .does = renews});
	goes_on(w, (struct errand){.node = 1, .page = 0, .does = forgets});
	hear_each_other(w, 1, 2, false);
	hear_each_other(w, 1, 4, false);
	hear_each_other(w, 1, 4, true); /* entries are made anew */
	hear_each_other(w, 1, 2, true);
	for (unsigned id = 1; id <= w->w.nodes; id++)
		goes_on(w, (struct errand){.node = id, .page = 0});
}

static void log_main(void *arg)
{
	struct errand *x = arg;
	struct node *n = &x->w->w.node[x->node - 1];

	for (unsigned i = 0; i < sharing_of(n)->pages; i++)
		write_metadata(n, i);
	OK(log_flush(n->v->log, log_end(n->v->log)));
	atomic_store(&x->done, true);
}

/* What node 2 has logged of others' pages is more than its cache can hold when it is back. */
static void a_log_is_larger_than_the_cache(struct sharing *w)
{
	struct errand writes = {.node = 2, .w = w};

	OK(rt_sim_spawn_on(w->w.node[1].sim, "errand", log_main, &writes));
	HOLDS(errand_ended(&writes, 100 * LONG_NS));
	crash(w, 2);
	w->w.frames = FRAMES;
	come_back(&w->w.node[1]);
	for (unsigned i = 0; i < w->pages; i++) {
		struct errand looks = {.node = 1 + i % w->w.nodes, .page = i};

		errand_begin(w, &looks);
		HOLDS(errand_ended(&looks, 10 * LONG_NS));
		HOLDS(w->page[i].known); /* nothing of it was lost */
	}
}

static unsigned frames_of_shard(const struct node *n, uint16_t shard)
{
	const struct cache *c = n->v->cache;
	unsigned count = 0;

	for (uint32_t i = 0; i < c->frames.count; i++) {
		page_id pid = atomic_load(&c->frames.frame[i].pid);

		count += pid != PID_NONE && pid_shard(pid) == shard;
	}
	return count;
}

/*
 * Node 2's cache is full of node 1's pages, which it has alone, or shares, as they are persisted. When
 * node 1 has gone data of files leaves it as other pages do, and is there when it is back. Page 0, which
 * is none, stays: what is found by it is needed.
 */
static void the_cache_is_full_of_them(struct sharing *w)
{
	const struct node *n = &w->w.node[1];

	goes_on(w, (struct errand){.node = 3, .page = 0, .writes = true});
	for (unsigned i = AWAY_NODES; i < w->pages; i += AWAY_NODES) {
		goes_on(w, (struct errand){.node = 2, .page = i, .writes = true});
		if (i % 3 == 0)
			goes_on(w, (struct errand){.node = 3, .page = i});
	}
	goes_on(w, (struct errand){.node = 3, .does = persists});
	goes_on(w, (struct errand){.node = 2, .does = persists});
	goes_on(w, (struct errand){.node = 2, .page = 0});
	HOLDS(frames_of_shard(n, 0) > FRAMES / 2);
	crash(w, 1);
	rt_sleep_ns(4 * LONG_NS); /* it is given up */
	for (unsigned i = 0; i < w->pages; i++)
		if (i % AWAY_NODES)
			goes_on(w,
				(struct errand){.node = 2, .page = i, .writes = i % 2});
	HOLDS(frames_of_shard(n, 0) < FRAMES / 8);
	goes_on(w, (struct errand){.node = 2, .page = 0});
	come_back(&w->w.node[0]);
	for (unsigned i = 0; i < w->pages; i += AWAY_NODES) {
		struct errand looks = {.node = 2 + i % 3, .page = i};

		errand_begin(w, &looks);
		HOLDS(errand_ended(&looks, 10 * LONG_NS));
		HOLDS(w->page[i].known && w->page[i].version == 1);
		goes_on(w, (struct errand){.node = 4, .page = i, .writes = true});
	}
}

/* Uses its own pages, of which there are more than frames, again and again. */
static void crowds(struct node *n, unsigned i)
{
	for (unsigned round = 0; round < 3; round++)
		for (unsigned k = n->id - 1; k < sharing_of(n)->pages; k += AWAY_NODES)
			write_data(n, k, false);
}

/*
 * Node 2 has page 0, as it is persisted, and has just lost its home. Who hears both is still sent to
 * node 2 for it: it is there until an epoch has begun without the home.
 */
static void its_home_was_just_lost(struct sharing *w)
{
	goes_on(w, (struct errand){.node = 2, .page = 0, .writes = true});
	goes_on(w, (struct errand){.node = 2, .does = persists});
	hear_each_other(w, 1, 2, false);
	goes_on(w, (struct errand){.node = 2, .does = crowds});
	goes_on(w, (struct errand){.node = 3, .page = 0, .writes = true});
	hear_each_other(w, 1, 2, true);
	goes_on(w, (struct errand){.node = 2, .page = 0});
}

/*
 * Node 1, the home, was started while node 3 is away, so it does not know what that has of its
 * shard. It gets page 0 from node 2, has it alone as it is persisted, and so keeps no record of
 * it; then it allocates the page anew.
 */
static void the_home_has_not_heard_all(struct sharing *w)
{
	goes_on(w, (struct errand){.node = 2, .page = 0, .writes = true});
	crash(w, 3);
	crash(w, 1);
	come_back(&w->w.node[0]);
	rt_sleep_ns(
		40 *
		LONG_NS); /* all that are there have missed the start before, and met this */
	goes_on(w, (struct errand){.node = 1, .page = 0, .writes = true});
	goes_on(w, (struct errand){.node = 1, .page = 0, .does = persists});
	goes_on(w, (struct errand){.node = 1, .page = 0, .does = allocates});
	goes_on(w, (struct errand){.node = 2, .page = 0});
	come_back(&w->w.node[2]);
	rt_sleep_ns(40 * LONG_NS);
	for (unsigned id = 1; id <= w->w.nodes; id++)
		goes_on(w, (struct errand){.node = id, .page = 0, .writes = true});
}

/*
 * Node 2 was not told that what it owes of page 0 is persisted, and reports it when the home
 * has no record of the page any more; and the home's task that allocates the page anew gets the
 * frame before it has been looked at.
 */
static void it_is_reported_meanwhile(struct sharing *w)
{
	struct errand looks = {.node = 1, .page = 0, .does = looks_long};
	struct errand takes = {.node = 1, .page = 0, .does = allocates};

	goes_on(w, (struct errand){.node = 2, .page = 0, .writes = true});
	goes_on(w, (struct errand){.node = 1, .page = 0, .writes = true});
	rt_sim_net_block(w->w.node[0].sim, w->w.node[1].sim, true);
	goes_on(w, (struct errand){.node = 1, .page = 0, .does = persists});
	errand_begin(w, &looks);
	rt_sleep_ns(10000000);
	errand_begin(w, &takes);
	hear_each_other(w, 1, 2, true);
	HOLDS(!errand_ended(&looks, LONG_NS));
	HOLDS(errand_ended(&looks, 2 * LONG_NS));
	HOLDS(errand_ended(&takes, LONG_NS));
	for (unsigned id = 1; id <= w->w.nodes; id++)
		goes_on(w, (struct errand){.node = id, .page = 0, .writes = true});
}

/*
 * Node 2 shares page 0, which it has changed, and asks for the right to it together with page 4, which node 4
 * is slow to give. It gets page 0, gives it to node 3 unused, and that is lost on its way. What node 2 owes is
 * the page again, in a frame that its call has latched until the home serves page 4.
 */
static void it_was_asked_for_with_another(struct sharing *w)
{
	struct errand both = {.node = 2, .page = 0, .does = asks_for_both};
	struct errand looks = {.node = 4, .page = 4, .does = looks_long};
	struct errand wants = {.node = 3, .page = 0, .writes = true};
	const struct node *n = &w->w.node[1];

	goes_on(w, (struct errand){.node = 4, .page = 4, .writes = true});
	goes_on(w, (struct errand){.node = 2, .page = 0, .writes = true});
	goes_on(w, (struct errand){.node = 3, .page = 0});
	errand_begin(w, &looks);
	rt_sleep_ns(10000000);
	errand_begin(w, &both);
	rt_sleep_ns(10000000);
	rt_sim_net_block(n->sim, w->w.node[2].sim, true);
	errand_begin(w, &wants);
	rt_sleep_ns(LONG_NS / 3);
	HOLDS(coherence_counters(n->coherence)->given_back == 1);
	HOLDS(!errand_ended(&both, 0) && !errand_ended(&wants, 0));
	hear_each_other(w, 2, 3, false);
	hear_each_other(w, 1, 3, false);
	hear_each_other(w, 1, 3, true); /* entries are made anew */
	goes_on(w, (struct errand){.node = 4, .page = 8, .writes = true});
	HOLDS(errand_ended(&both, 10 * LONG_NS));
	hear_each_other(w, 2, 3, true);
	HOLDS(errand_ended(&wants, 10 * LONG_NS) && errand_ended(&looks, 0));
	HOLDS(w->page[0].known && w->page[0].version == 2);
	for (unsigned id = 1; id <= w->w.nodes; id++)
		goes_on(w, (struct errand){.node = id, .page = 0, .writes = true});
}

static void asks_for_past(struct node *n, unsigned i)
{
	struct guard g;

	HOLDS(guard_shared(n->v->cache, pid_of(sharing_of(n), i), 1, &g) == -ESTALE);
}

static const struct frame *frame_of(struct sharing *w, unsigned id, unsigned i)
{
	return table_find(w->w.node[id - 1].v->cache, pid_of(w, i));
}

/*
 * As it_is_reported_meanwhile. But the home's frame may only be read: it was revoked so far for
 * node 3, which was then refused the page. Before the home has looked at the frame, a task of the
 * home latches it, and requests the right to change it.
 */
static void it_may_be_read_and_is_reported(struct sharing *w)
{
	struct errand looks = {.node = 1, .page = 0, .does = looks_long};
	struct errand takes = {.node = 1, .page = 0, .writes = true};

	goes_on(w, (struct errand){.node = 2, .page = 0, .does = allocates});
	goes_on(w, (struct errand){.node = 1, .page = 0, .writes = true});
	rt_sim_net_block(w->w.node[0].sim, w->w.node[1].sim, true);
	goes_on(w, (struct errand){.node = 1, .page = 0, .does = persists});
	rt_sleep_ns(20000000);
	goes_on(w, (struct errand){.node = 3, .page = 0, .does = asks_for_past});
	HOLDS(frame_of(w, 1, 0) && frame_right(frame_of(w, 1, 0)) == PAGE_SHARED);
	errand_begin(w, &looks);
	rt_sleep_ns(10000000);
	errand_begin(w, &takes);
	hear_each_other(w, 1, 2, true);
	HOLDS(errand_ended(&looks, 3 * LONG_NS));
	HOLDS(errand_ended(&takes, 10 * LONG_NS));
	for (unsigned id = 1; id <= w->w.nodes; id++)
		goes_on(w, (struct errand){.node = id, .page = 0, .writes = true});
}

/* Two pages in one call, each of another home. */
static void asks_for_two_homes(struct node *n, unsigned i)
{
	struct page_ref refs[2];

	for (unsigned k = 0; k < 2; k++)
		refs[k] = (struct page_ref){pid_of(sharing_of(n), i + k),
			sharing_of(n)->page[i + k].incarnation};
	OK(cache_fetch_exclusive(n->v->cache, refs, 2));
}

static bool refused_is_dirty; /* nodes 1 and 2 have changed the pages that they are refused */

/*
 * Nodes 1 and 2 do not hear each other; both hear node 3. All three share pages 0 and 1, of the
 * homes 1 and 2. Node 3 requests both. Before it has its grants, nodes 1 and 2 request both. Each is
 * refused the page of the other's home, and waits behind node 3 for its own. Node 3 waits for the
 * pages that were refused, which nodes 1 and 2 still share.
 */
static void they_were_refused_one_of_two(struct sharing *w)
{
	struct errand first = {.node = 3, .page = 0, .does = asks_for_two_homes};
	struct errand one = {.node = 1, .page = 0, .does = asks_for_two_homes};
	struct errand two = {.node = 2, .page = 0, .does = asks_for_two_homes};
	unsigned sim[3];

	for (unsigned i = 0; i < 3; i++)
		sim[i] = w->w.node[i].sim;
	for (unsigned i = 0; i < 2; i++)
		goes_on(w, (struct errand){.node = refused_is_dirty ? 2 - i : 3,
				   .page = i, .writes = true});
	for (unsigned id = 1; id <= 3; id++)
		for (unsigned i = 0; i < 2; i++)
			goes_on(w, (struct errand){.node = id, .page = i});
	hear_each_other(w, 1, 2, false);
	rt_sim_net_block(sim[0], sim[2], true); /* grants are late */
	rt_sim_net_block(sim[1], sim[2], true);
	errand_begin(w, &first);
	rt_sleep_ns(1000000);
	errand_begin(w, &one);
	errand_begin(w, &two);
	rt_sleep_ns(1000000);
	rt_sim_net_block(sim[0], sim[2], false);
	rt_sim_net_block(sim[1], sim[2], false);
	rt_sleep_ns(LONG_NS);
	hear_each_other(w, 1, 2, true);
	HOLDS(errand_ended(&first, 10 * LONG_NS));
	HOLDS(errand_ended(&one, LONG_NS) && errand_ended(&two, LONG_NS));
	for (unsigned id = 1; id <= w->w.nodes; id++)
		goes_on(w, (struct errand){.node = id, .page = 0, .writes = true});
}

/* All that is written, or but for the log: the pages. */
static void disk_fails(struct sharing *w, unsigned id, bool pages)
{
	const struct node *n = &w->w.node[id - 1];
	struct rt_sim_fail fail = {
		.ops = RT_SIM_FAIL_WRITE | RT_SIM_FAIL_FLUSH, .n = 1, .sticky = true};

	if (pages) {
		fail.ops = RT_SIM_FAIL_WRITE;
		fail.offset = store_superblock(n->v->store)->pages_offset;
		fail.length = 12 * BASE_SLOT * PAGE_SIZE;
	}
	rt_sim_disk_fail(n->sim_disk, &fail);
}

static void ships_in_vain(struct node *n, unsigned i)
{
	struct page_ref ref = {.pid = pid_of(sharing_of(n), i)};

	HOLDS(writeback_pages(n->v->cache, &ref, 1, false, NULL) == -EHOSTDOWN);
	HOLDS(cache_dirty_pages(n->v->cache) > 0);
}

/*
 * The disk of node 2 takes nothing any more: what others ship to it they keep, as from a node
 * that has crashed, and it is all there when the node is back with a disk that is well.
 */
static void home_fails(struct sharing *w, bool pages)
{
	struct errand wants = {.node = 4, .page = 5};
	struct errand ships = {.node = 3, .page = 1, .does = ships_in_vain};

	goes_on(w, (struct errand){.node = 3, .page = 1, .writes = true});
	goes_on(w, (struct errand){.node = 4, .page = 9, .writes = true});
	goes_on(w, (struct errand){.node = 2, .page = 0, .writes = true});
	disk_fails(w, 2, pages);
	errand_begin(w, &ships);
	HOLDS(errand_ended(&ships, pages ? 20 * LONG_NS : LONG_NS));
	goes_on(w, (struct errand){.node = 4, .page = 9, .does = ships_in_vain});
	/* what does not need it goes on, and nothing is taken from who has it */
	goes_on(w, (struct errand){.node = 3, .page = 1, .writes = true});
	goes_on(w, (struct errand){.node = 4, .page = 3, .writes = true});
	goes_on(w, (struct errand){.node = 1, .page = 3});
	errand_begin(w, &wants);
	HOLDS(!errand_ended(&wants, 10 * LONG_NS));
	crash(w, 2);
	rt_sim_disk_fail(w->w.node[1].sim_disk, &(struct rt_sim_fail){0});
	come_back(&w->w.node[1]);
	HOLDS(errand_ended(&wants, 10 * LONG_NS));
	goes_on(w, (struct errand){.node = 3, .page = 1, .does = persists});
	for (unsigned id = 1; id <= w->w.nodes; id++)
		for (unsigned i = 0; i < w->pages; i++)
			goes_on(w,
				(struct errand){.node = id, .page = i, .writes = true});
}

static void a_home_cannot_log(struct sharing *w)
{
	home_fails(w, false);
}

/* It tries for some seconds. */
static void a_home_cannot_write_pages(struct sharing *w)
{
	home_fails(w, true);
}

/* A page whose block of the table was not used before. */
static void asks_for_far_page(struct node *n, int expected)
{
	page_id pid = pid_make(0, BASE_SLOT + 1000);
	struct guard g;
	int rc = guard_shared(n->v->cache, pid, 0, &g);

	HOLDS(rc == expected);
	if (!rc)
		guard_release(n->v->cache, &g);
}

static void cannot_read_it(struct node *n, unsigned i)
{
	asks_for_far_page(n, -EIO);
}

static void reads_it(struct node *n, unsigned i)
{
	asks_for_far_page(n, 0);
}

/* The home cannot read a page's descriptor. A node that asks for the page is told so at once, and
 * is given the page when the disk is well again. */
static void a_descriptor_cannot_be_read(struct sharing *w)
{
	const struct node *n = &w->w.node[0];
	const struct disk_superblock *sb = store_superblock(n->v->store);
	struct rt_sim_fail fail = {.ops = RT_SIM_FAIL_READ,
		.n = 1,
		.sticky = true,
		.offset = sb->table_offset,
		.length = sb->pages_offset - sb->table_offset};

	goes_on(w, (struct errand){.node = 2, .page = 0, .writes = true});
	rt_sim_disk_fail(n->sim_disk, &fail);
	goes_on(w, (struct errand){.node = 2, .does = cannot_read_it});
	goes_on(w, (struct errand){.node = 3, .does = cannot_read_it});
	goes_on(w, (struct errand){.node = 1, .does = cannot_read_it});
	goes_on(w, (struct errand){.node = 3, .page = 0, .writes = true});
	rt_sim_disk_fail(n->sim_disk, &(struct rt_sim_fail){0});
	goes_on(w, (struct errand){.node = 3, .does = reads_it});
	goes_on(w, (struct errand){.node = 2, .does = reads_it});
	goes_on(w, (struct errand){.node = 1, .does = reads_it});
}

/* ---- the runner ------------------------------------------------------------------------------ */

static void (*the_case)(struct sharing *w);

static void node_main(void *arg)
{
	struct node *n = arg;

	pages_open(n);
	node_barrier(n, 1);
	node_barrier(n, 2);
	settle(n);
	node_barrier(n, 3);
	settle(n);
	node_barrier(n, 4);
	OK(volume_close(n->v));
}

static int run_case(void *arg)
{
	struct sharing *w = arg;

	sharing_open(w);
	for (unsigned i = 0; i < w->w.nodes; i++) {
		struct node *n = &w->w.node[i];

		n->sim = rt_sim_node_new(n->disk);
		OK(rt_sim_spawn_on(n->sim, "node", node_main, n));
	}
	barrier_to(w, 1, w->w.nodes + 1);
	rt_sleep_ns(100000000); /* all have heard all */
	the_case(w);
	for (unsigned nth = 2; nth <= 5; nth++)
		barrier_to(w, nth, w->w.nodes + 1);
	for (unsigned i = 0; i < w->w.nodes; i++)
		HOLDS(!rt_sim_node_wait(w->w.node[i].sim));
	world_over();
	return 0;
}

static void run_world_of(
	void (*fn)(struct sharing *w), unsigned pages, unsigned frames, bool idle)
{
	struct rt_sim_options o = {.time_limit_ns = 60ull * 1000000000};
	struct sharing *w = calloc(1, sizeof(*w));
	uint64_t seeds = seeds_count(20);

	assert_non_null(w);
	the_case = fn;
	for (uint64_t seed = seeds_first(); seeds--; seed++) {
		memset(w, 0, sizeof(*w));
		w->w.nodes = AWAY_NODES;
		w->pages = pages;
		w->w.frames = frames;
		w->w.idle = idle;
		w->crashes = 1; /* who comes back need not find the others */
		assert_int_equal(rt_sim_run(seed, &o, run_case, w), 0);
	}
	free(w);
}

static void run_seeds(void (*fn)(struct sharing *w), unsigned pages, unsigned frames)
{
	run_world_of(fn, pages, frames, false);
}

/* No page is persisted because of its age. */
static void run_idle(void (*fn)(struct sharing *w), unsigned pages)
{
	run_world_of(fn, pages, 0, true);
}

static void who_does_not_hear_another_holds_up_nobody_else(void **state)
{
	run_seeds(a_link_is_missing, 12, 0);
}

static void what_a_node_that_is_away_has_shared_can_be_read(void **state)
{
	run_seeds(a_node_is_away, 12, 0);
}

static void a_copy_stays_until_it_is_known_what_was_lost(void **state)
{
	run_idle(copies_are_left, 12);
}

static void what_only_nodes_that_are_away_share_can_be_read(void **state)
{
	run_idle(two_nodes_are_away, 12);
}

static void a_node_returns_with_a_cache_smaller_than_its_log(void **state)
{
	run_seeds(a_log_is_larger_than_the_cache, PAGES_MAX, 4 * PAGES_MAX);
}

static void pages_whose_home_is_away_leave_the_cache(void **state)
{
	run_seeds(the_cache_is_full_of_them, PAGES_MAX, 0);
	run_seeds(its_home_was_just_lost, PAGES_MAX, 0);
}

static void two_versions_of_a_past_incarnation_come_back(void **state)
{
	run_idle(from_the_log_of_another, 12);
	run_idle(from_the_log_of_the_home, 12);
}

static void what_is_owed_is_not_the_page_that_was_allocated_anew(void **state)
{
	run_idle(zeros_are_away, 12);
}

static void what_is_owed_is_past_when_zeros_leave_their_home(void **state)
{
	run_idle(zeros_leave_their_home, PAGES_MAX);
}

static void who_is_lost_while_it_is_reinstated_has_the_page(void **state)
{
	run_idle(who_is_reinstated_is_lost, 12);
}

static void what_a_node_owes_that_is_away_is_waited_for(void **state)
{
	run_idle(who_owes_is_away, 12);
}

static void what_the_home_has_alone_it_can_allocate_anew(void **state)
{
	run_idle(the_home_has_not_heard_all, 12);
	run_idle(it_is_reported_meanwhile, 12);
}

static void what_is_owed_comes_back_to_who_asked_for_more(void **state)
{
	run_idle(it_was_asked_for_with_another, 12);
}

static void what_the_home_may_read_it_can_write(void **state)
{
	run_idle(it_may_be_read_and_is_reported, 12);
}

static void what_was_refused_in_a_call_is_given(void **state)
{
	run_idle(they_were_refused_one_of_two, 12);
	refused_is_dirty = true;
	run_idle(they_were_refused_one_of_two, 12);
	refused_is_dirty = false;
}

static void a_home_that_cannot_persist_is_away(void **state)
{
	run_idle(a_home_cannot_log, 12);
	run_idle(a_home_cannot_write_pages, 12);
}

static void a_descriptor_that_cannot_be_read_holds_up_nobody(void **state)
{
	run_seeds(a_descriptor_cannot_be_read, 4, 0);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_descriptor_that_cannot_be_read_holds_up_nobody),
		cmocka_unit_test(who_does_not_hear_another_holds_up_nobody_else),
		cmocka_unit_test(what_a_node_that_is_away_has_shared_can_be_read),
		cmocka_unit_test(a_copy_stays_until_it_is_known_what_was_lost),
		cmocka_unit_test(what_only_nodes_that_are_away_share_can_be_read),
		cmocka_unit_test(a_node_returns_with_a_cache_smaller_than_its_log),
		cmocka_unit_test(pages_whose_home_is_away_leave_the_cache),
		cmocka_unit_test(two_versions_of_a_past_incarnation_come_back),
		cmocka_unit_test(what_is_owed_is_not_the_page_that_was_allocated_anew),
		cmocka_unit_test(what_is_owed_is_past_when_zeros_leave_their_home),
		cmocka_unit_test(what_a_node_owes_that_is_away_is_waited_for),
		cmocka_unit_test(what_the_home_has_alone_it_can_allocate_anew),
		cmocka_unit_test(who_is_lost_while_it_is_reinstated_has_the_page),
		cmocka_unit_test(what_is_owed_comes_back_to_who_asked_for_more),
		cmocka_unit_test(a_home_that_cannot_persist_is_away),
		cmocka_unit_test(what_was_refused_in_a_call_is_given),
		cmocka_unit_test(what_the_home_may_read_it_can_write),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
