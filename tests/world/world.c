/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Nodes of a simulation: each has a store, a network endpoint and the page driver, and is opened,
 * settled and closed together with the others.
 */
#include <inttypes.h>
#include <signal.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

#include "engine/coherence/peers.h"
#include "engine/coherence/protocol/protocol.h"
#include "engine/rt/rt_sim.h"
#include "tests/world/check.h"
#include "tests/world/expect.h"
#include "tests/world/world.h"

uint64_t sum_sent, sum_restarts, sum_unheard;
char repeat_by[200];
static struct world *running;
static void (*abort_before)(int);

static void on_abort(int signal_number)
{
	/* NOLINTBEGIN(bugprone-signal-handler): a task has aborted */
	rt_sim_look(false); /* what follows may wait */
	for (unsigned i = 0; running && i < running->nodes; i++)
		if (running->dump)
			running->dump(&running->node[i]);
		else if (running->node[i].coherence)
			coherence_dump(running->node[i].coherence);
	/* NOLINTEND(bugprone-signal-handler) */
	if (*repeat_by) /* NOLINTNEXTLINE(bugprone-signal-handler) */
		fprintf(stderr, "repeat: %s\n", repeat_by);
	signal(signal_number, abort_before); /* the simulator's, which says the seed */
	raise(signal_number);
}

void world_watch(struct world *w)
{
	running = w;
	if (!abort_before)
		abort_before = signal(SIGABRT, on_abort);
}

void world_stopped(void)
{
	running = NULL;
}

void world_over(void)
{
	running = NULL;
	signal(SIGABRT, abort_before);
	abort_before = NULL;
}

unsigned pick(unsigned n)
{
	return (unsigned)(rt_random() % n);
}

/* ---- a node ------------------------------------------------------------------------------ */

static void message_handled(struct node *n, const struct net_message *m)
{
	/* the link of an honest node is never cut: it would heal, and hide that */
	HOLDS(n->w->hostile || !n->coherence ||
		!coherence_counters(n->coherence)->impossible);
	look_message(m);
}

static void invalidated_seldom(struct coherence *c, page_id pid)
{
	for (unsigned i = 0; i < running->nodes; i++)
		if (running->node[i].coherence == c && pick(4) == 0)
			running->node[i].real->kernel_invalidated(c, pid);
}

static void calls_open(struct node *n, struct volume *v)
{
	OK(net_calls_open(&n->calls, n->net));
	v->calls = n->calls;
	for (unsigned id = 1; id <= n->w->nodes; id++)
		v->nodes |= 1ull << id;
}

static int peers_open(void *arg, struct volume *v, struct coherence_options *out,
	struct weft_error *err)
{
	struct node *n = (struct node *)arg;
	bool pages = n->w->depth == WORLD_PAGES;

	*out = node_network(n, v->store, v->log,
		pages ? n->life + 1 : store_superblock(v->store)->incarnation);
	if (!pages)
		calls_open(n, v);
	return 0;
}

static int peers_start(void *arg, struct volume *v, struct weft_error *err)
{
	struct node *n = (struct node *)arg;

	n->coherence = v->coherence;
	if (n->w->deaf) {
		n->real = n->coherence->ops;
		n->deaf = *n->real;
		n->deaf.kernel_invalidated = invalidated_seldom;
		n->coherence->ops = &n->deaf;
	}
	if (!n->w->hostile)
		look_up(n->id, n->coherence);
	node_join(n);
	return 0;
}

static void node_counts(const struct node *n)
{
	const struct coherence_counters *c = coherence_counters(n->coherence);

	for (unsigned i = 0; i < ARRAY_SIZE(c->sent); i++)
		sum_sent += c->sent[i];
	sum_restarts += tree_counters(n->v->tree)->restarts;
	sum_unheard += c->eased_unheard;
	HOLDS(n->w->deaf || !c->eased_unheard);
}

/* All nodes that are up stop together. */
static void node_part(void *arg, struct volume *v)
{
	struct node *n = (struct node *)arg;

	if (n->w->parts)
		n->w->parts(n);
	else if (n->fs) /* else it could not be opened */
		barrier(n);
	look_down(n->id);
	if (n->calls)
		net_calls_stop(n->calls);
	coherence_stop(v->coherence);
	net_close(n->net);
	if (n->calls)
		net_calls_close(n->calls);
	n->calls = NULL;
	n->coherence = NULL; /* the volume closes it */
}

void world_settle(struct node *n)
{
	for (unsigned round = 0; round < 3; round++) {
		OK(volume_sync(n->v));
		barrier(n);
	}
	if (n->id == 1)
		look_directory(n->w->nodes);
	barrier(n);
}

/* The same once all nodes close: joining the ranges of inode numbers changes pages of other nodes. */
static int node_settle_closed(void *arg, struct volume *v)
{
	struct node *n = (struct node *)arg;

	barrier(n);
	world_settle(n);
	return 0;
}

static struct volume_options volume_options_of(struct node *n)
{
	const struct world *w = n->w;
	bool pages = w->depth == WORLD_PAGES;

	return (struct volume_options){
		.background = !pages,
		.cache = {.cache_bytes = (uint64_t)w->frames * PAGE_SIZE,
			.dirty_age_ms = w->idle           ? 0
					: w->dirty_age_ms ? w->dirty_age_ms
							  : 40},
		.learned_bytes = n->w->unlearned ? 0 : LEARNED_BYTES,
		.log.flush_interval_ms = pages ? UINT64_MAX : 0,
		.node = (uint16_t)n->id,
		.shard = world_shard(n),
		.peers = &n->peers,
		.storage_only = pages,
	};
}

void crash_open(struct node *n)
{
	struct volume_options vo = volume_options_of(n);
	struct ops_options oo = {.atime = OPS_RELATIME,
		.caller_forgets = n->w->caller_forgets,
		.mmap = n->w->mmap};
	bool pages = n->w->depth == WORLD_PAGES;
	struct weft_error err = {0};
	struct rt_disk *disk;

	atomic_store(&n->ups, 0);
	n->fs = NULL;
	n->calls = NULL;
	n->shards.count = 0;
	n->peers = (struct volume_peers){.open = peers_open,
		.start = peers_start,
		.stop = node_part,
		.settle = pages ? NULL : node_settle_closed,
		.arg = n};
	OK(rt_disk_open(&disk, n->disk, 0, &err));
	if (volume_open(&n->v, disk, &vo, &err) ||
		(!pages && fs_open(&n->fs, n->v, &oo, &err))) {
		print_message("node %u: %s\n", n->id, err.text);
		abort();
	}
}

void crash_close(struct node *n)
{
	fs_close(n->fs);
	barrier(n);
	world_settle(n);
	OK(volume_close(n->v));
}

void node_begin(struct node *n)
{
	crash_open(n);
	barrier(n);
}

void node_end(struct node *n)
{
	fs_close(n->fs);
	barrier(n);
	world_settle(n);
	node_counts(n);
	OK(volume_close(n->v));
	barrier(n);
}

static void node_main(void *arg)
{
	struct node *n = (struct node *)arg;

	node_begin(n);
	n->w->work(n);
	barrier(n);
	n->w->check(n);
	node_end(n);
	node_begin(n);
	n->w->check(n);
	node_end(n);
}

static void look_main(void *arg)
{
	struct node *n = (struct node *)arg;

	node_begin(n);
	node_end(n);
}

void nodes_run(struct world *w, void (*fn)(void *))
{
	for (unsigned i = 0; i < w->nodes; i++) {
		struct node *n = &w->node[i];

		n->sim = rt_sim_node_new(n->disk);
		OK(rt_sim_spawn_on(n->sim, "node", fn, n));
	}
}

void nodes_await(const struct world *w, bool killed)
{
	for (unsigned i = 0; i < w->nodes; i++)
		HOLDS(!rt_sim_node_wait(w->node[i].sim) || killed);
}

void world_format(struct world *w)
{
	world_watch(w);
	look_begin(w->hostile ? 0 : w->look_every ? w->look_every : 1);
	w->handled = message_handled;
	for (unsigned i = 0; i < w->nodes; i++) {
		struct node *n = &w->node[i];

		n->w = w;
		n->id = i + 1;
		snprintf(n->disk, sizeof(n->disk), "disk%u", n->id);
		disk_format(n);
	}
}

int world_run(struct world *w)
{
	nodes_run(w, node_main);
	if (w->cut_ns) {
		rt_sleep_ns(w->cut_ns);
		for (unsigned i = 0; i < w->nodes; i++)
			rt_sim_node_kill(w->node[i].sim);
	}
	nodes_await(w, w->cut_ns);
	world_stopped();
	if (!w->no_files)
		w->cut_redone = stores_check(w);
	if (w->cut_redone) {
		stores_recover(w);
		atomic_store(&w->arrived, 0);
		nodes_run(w, look_main);
		nodes_await(w, false);
		HOLDS(!stores_check(w));
	}
	HOLDS(!w->cut_redone || w->cut_ns);
	world_over();
	return 0;
}
