/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For nodes_test and nodes_away_test: how a node of nodes_world.h is opened and settled, and the
 * barriers of nodes that lose their power.
 */
#ifndef WEFT_TEST_NODES_LIFE_H
#define WEFT_TEST_NODES_LIFE_H

#include "tests/sim/nodes_world.h"

/* What a node waits for, when a run is stuck. */
static void pages_dump(struct node *n)
{
	if (!n->up) /* its memory may be gone */
		return;
	print_message("node %u: %u owed, %u reserved, %" PRIu64 " free frames\n", n->id,
		n->v->cache->revoke.owed_count, n->v->cache->revoke.reserved,
		cache_free_frames(n->v->cache));
	for (unsigned o = 0; o < n->v->cache->revoke.owed_count; o++)
		print_message("  owes %" PRIx64 "%s\n", n->v->cache->revoke.owed[o].pid,
			n->v->cache->revoke.owed[o].shipping ? ", shipping" : "");
	coherence_dump(n->coherence);
}

/* All nodes come to the n-th barrier before any goes on. */
static void barrier_await(struct sharing *w, unsigned nth, unsigned parties)
{
	uint32_t seen;

	rt_wake(&w->w.arrived, INT32_MAX);
	while ((seen = atomic_load(&w->w.arrived)) < nth * parties)
		rt_wait(&w->w.arrived, seen, RT_FOREVER);
}

static void barrier_to(struct sharing *w, unsigned nth, unsigned parties)
{
	atomic_fetch_add(&w->w.arrived, 1);
	barrier_await(w, nth, parties);
}

/* A node that has crashed comes there once more, and counts once. */
static void node_barrier(struct node *n, unsigned nth)
{
	if (n->reached < nth)
		atomic_fetch_add(&n->w->arrived, 1);
	n->reached = MAX(n->reached, nth);
	barrier_await(sharing_of(n), nth, n->w->nodes + 1);
}

/* All nodes stop together. */
static void pages_part(struct node *n)
{
	if (n->up && !n->w->hostile) /* else it is not to be opened, and says why */
		node_barrier(n, 5);
	n->up = false;
}

static void pages_open(struct node *n)
{
	crash_open(n);
	OK(cache_start(n->v->cache));
	n->up = true;
}

static void sharing_open(struct sharing *w)
{
	w->w.depth = WORLD_PAGES;
	w->w.frames = w->w.frames ? w->w.frames : FRAMES;
	w->w.log_bytes = 4 << 20;
	w->w.idle |= w->turns != NULL;
	w->w.others_away = w->w.hostile || w->crashes;
	w->w.parts = pages_part;
	w->w.dump = pages_dump;
	for (unsigned i = 0; i < w->pages; i++)
		w->page[i].incarnation = 1;
	world_format(&w->w);
}

/* Everything dirty here reaches its home; what is owed here has by then. */
static void settle(struct node *n)
{
	for (unsigned tries = 0; tries < 200; tries++) {
		OK(cache_checkpoint(n->v->cache));
		owed_ship(n->v->cache, LSN_MAX, false);
		if (!n->v->cache->revoke.owed_count && !cache_dirty_pages(n->v->cache))
			break;
		rt_sleep_ns(1000000);
	}
}

#endif
