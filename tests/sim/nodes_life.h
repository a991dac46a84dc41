/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For nodes_test and nodes_away_test: how a node of nodes_world.h comes to be: its store, log
 * and cache, the driver of the page protocol, and the network.
 */
#ifndef WEFT_TEST_NODES_LIFE_H
#define WEFT_TEST_NODES_LIFE_H

#include <signal.h>

#include "tests/sim/nodes_world.h"

/* What each node waits for, when a run is stuck. */
static struct world *running;
static void (*abort_before)(int);

static void on_abort(int signal_number)
{
	/* NOLINTBEGIN(bugprone-signal-handler): a task has aborted */
	rt_sim_look(false); /* what follows may wait */
	for (unsigned i = 0; running && i < running->nodes; i++) {
		struct node *n = &running->node[i];

		if (!n->up) /* its memory may be gone */
			continue;
		print_message("node %u: %u owed, %u reserved, %" PRIu64 " free frames\n",
			n->id, n->e.cache->owed_count, n->e.cache->owed_reserved,
			cache_free_frames(n->e.cache));
		for (unsigned o = 0; o < n->e.cache->owed_count; o++)
			print_message("  owes %" PRIx64 "%s\n", n->e.cache->owed[o].pid,
				n->e.cache->owed[o].shipping ? ", shipping" : "");
		coherence_cluster_dump(n->e.coherence);
	}
	/* NOLINTEND(bugprone-signal-handler) */
	signal(signal_number, abort_before); /* the simulator's, which says the seed */
	raise(signal_number);
}

/* ---- a node ------------------------------------------------------------------------------- */

/* All nodes come to the n-th barrier before any goes on. */
static void barrier_await(struct world *w, unsigned nth, unsigned parties)
{
	uint32_t seen;

	rt_wake(&w->arrived, INT32_MAX);
	while ((seen = atomic_load(&w->arrived)) < nth * parties)
		rt_wait(&w->arrived, seen, RT_FOREVER);
}

static void barrier(struct world *w, unsigned nth, unsigned parties)
{
	atomic_fetch_add(&w->arrived, 1);
	barrier_await(w, nth, parties);
}

/* A node that has crashed comes there once more, and counts once. */
static void node_barrier(struct node *n, unsigned nth)
{
	if (n->reached < nth)
		atomic_fetch_add(&n->w->arrived, 1);
	n->reached = MAX(n->reached, nth);
	barrier_await(n->w, nth, n->w->nodes + 1);
}

static unsigned home_of(void *owner, uint16_t shard)
{
	const struct world *w = owner;

	return shard < w->nodes ? shard + 1u : NODE_NONE;
}

static void on_message(void *owner, struct net_peer *peer, const struct net_message *m)
{
	struct node *n = owner;

	rt_holds(n, rt_never); /* others are behind it: it does not wait */
	coherence_cluster_message(n->e.coherence, peer, m);
	rt_lets_go(n);
	/* of honest nodes none is cut off: it would heal, and hide that */
	HOLDS(n->w->rogue || !coherence_cluster_counters(n->e.coherence)->impossible);
	look_message(m);
}

static void on_event(void *owner, struct net_peer *peer, const struct net_event *event)
{
	struct node *n = owner;

	if (event->kind == NET_LINK_UP) {
		atomic_fetch_add(&n->ups, 1);
		net_wake(n->net, &n->ups, INT32_MAX);
	}
	coherence_cluster_event(n->e.coherence, peer, event);
}

static void address_of(char out[32], unsigned id)
{
	snprintf(out, 32, "node%u:7000", id);
}

static void node_connect(struct node *n)
{
	char address[32];
	uint32_t ups;

	for (unsigned id = 1; id <= n->w->nodes; id++) {
		struct net_peer_options po = {.node = (uint16_t)id, .address = address};
		struct net_peer *peer;

		address_of(address, id);
		if (n->w->rogue)
			po.address = NULL;
		if (id != n->id)
			OK(net_peer_add(&peer, n->net, &po, NULL));
	}
	OK(net_start(n->net, NULL));
	/* a link that was cut may have come up more than once, and others be away */
	while (!n->w->rogue && !n->w->crashes &&
		(ups = atomic_load(&n->ups)) < n->w->nodes - 1)
		net_wait(n->net, NULL, &n->ups, ups, RT_FOREVER);
}

static struct net_options node_net_options(struct node *n)
{
	struct net_options no = {
		.transport = "sim",
		.self = {.incarnation = n->life + 1,
			.node = (uint16_t)n->id,
			.role = NET_ROLE_STORAGE},
		.listen = n->address,
		.handlers = {n, on_message, on_event},
		.retry_ns = 50000000,
	};

	address_of(n->address, n->id);
	memset(no.self.volume_uuid, 0x11, NET_UUID_BYTES);
	memset(no.self.cluster_uuid, 0x22, NET_UUID_BYTES);
	memset(no.self.node_uuid, 0x30 + (int)n->id, NET_UUID_BYTES);
	return no;
}

static int peers_open(
	void *arg, struct volume *v, struct coherence **out, struct weft_error *err)
{
	struct node *n = arg;
	struct net_options no = node_net_options(n);
	struct coherence_cluster_options co = {
		.self = (uint8_t)n->id,
		.shard = n->id - 1,
		.home = home_of,
		.owner = n->w,
		.store = v->store,
		.log = v->log,
		.cluster_epoch = EPOCH,
		.members = n->w->rogue ? node_bit(n->id) : 0,
	};

	OK(net_open(&n->net, &no, NULL));
	co.net = n->net;
	OK(coherence_cluster_open(&n->e.coherence, &co));
	n->shards.count = 0;
	for (unsigned id = 1; id <= n->w->nodes; id++)
		OK(shards_set(&n->shards, (uint16_t)(id - 1),
			store_superblock(v->store)->page_count));
	n->e.coherence->shards = &n->shards;
	*out = n->e.coherence;
	return 0;
}

static int peers_start(void *arg, struct volume *v, struct weft_error *err)
{
	struct node *n = arg;

	if (!n->w->rogue)
		look_up(n->id, n->e.coherence);
	OK(coherence_cluster_start(n->e.coherence));
	node_connect(n);
	return 0;
}

static void peers_stop(void *arg, struct volume *v)
{
	struct node *n = arg;

	if (n->up && !n->w->rogue) /* else it is not to be opened, and says why */
		node_barrier(n, 5);
	n->up = false;
	look_down(n->id);
	coherence_cluster_stop(n->e.coherence);
	net_close(n->net);
}

static void node_open(struct node *n)
{
	struct volume_options o = {
		.cache = {.cache_bytes =
				  (uint64_t)(n->w->frames ? n->w->frames : FRAMES) *
				  PAGE_SIZE,
			.dirty_age_ms = n->w->turns || n->w->idle ? 0 : 40},
		.log = {.flush_interval_ms = UINT64_MAX},
		.node = (uint16_t)n->id,
		.shard = (uint16_t)(n->id - 1),
		.peers = &n->peers,
		.storage_only = true,
	};
	struct weft_error err = {0};
	struct rt_disk *disk;

	n->peers = (struct volume_peers){
		.open = peers_open, .start = peers_start, .stop = peers_stop, .arg = n};
	OK(rt_disk_open(&disk, n->disk, 0, &err));
	if (volume_open(&n->v, disk, &o, &err)) {
		print_message("node %u: %s\n", n->id, err.text);
		abort();
	}
	n->e.store = n->v->store;
	n->e.log = n->v->log;
	n->e.cache = n->v->cache;
	OK(cache_start(n->e.cache));
	n->up = true;
}

static void format_store(const char *path, unsigned shard)
{
	struct store_format f = {.log_bytes = 4 << 20,
		.checksum_kind = DISK_CHECKSUM_GMAC,
		.node = (uint16_t)(shard + 1),
		.shard = (uint16_t)shard};
	struct weft_error err = {0};
	struct disk_superblock sb;
	struct rt_disk *disk;
	struct store *s;

	OK(rt_disk_open(&disk, path, 0, &err));
	OK(store_format_plan(disk, &f, &sb, &err));
	OK(store_format_write(disk, &sb, &err));
	OK(store_format_open(&s, disk, &sb, &err));
	OK(store_format_finish(s, &err));
	store_close(s);
	rt_disk_close(disk);
}

static void world_open(struct world *w)
{
	static const struct rt_sim_disk_options slow = {
		.latency_min_ns = 100000, .latency_max_ns = 5000000};

	look_begin(!w->rogue);
	for (unsigned i = 0; i < w->pages; i++)
		w->page[i].incarnation = 1;
	for (unsigned i = 0; i < w->nodes; i++) {
		struct node *n = &w->node[i];

		n->w = w;
		n->id = i + 1;
		snprintf(n->disk, sizeof(n->disk), "disk%u", n->id);
		n->sim_disk = rt_sim_disk_create(
			n->disk, 64 << 20, w->slow_disks ? &slow : NULL);
		format_store(n->disk, i);
	}
}

/* Everything dirty here reaches its home; what is owed here has by then. */
static void settle(struct node *n)
{
	for (unsigned tries = 0; tries < 200; tries++) {
		OK(cache_checkpoint(n->e.cache));
		owed_ship(n->e.cache, LSN_MAX, false);
		if (!n->e.cache->owed_count && !cache_dirty_pages(n->e.cache))
			break;
		rt_sleep_ns(1000000);
	}
}

#endif
