/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A node of the world among the others: its network endpoint, its page driver, and barriers. The
 * same on both runtimes; world.c has simulated nodes, real.c those on a real machine.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/coherence/protocol/protocol.h"
#include "engine/rt/rt_shared.h"
#include "tests/world/expect.h"
#include "tests/world/world.h"

const uint8_t world_uuid[16] = {0x11, 0x11, 0x11, 0x11, 0x11, 0x11, 0x41, 0x11, 0x91, 0x11, 0x11,
	0x11, 0x11, 0x11, 0x11, 0x11};

unsigned world_stores(const struct world *w)
{
	return w->nodes - w->clients;
}

bool world_client(const struct node *n)
{
	return n->id > world_stores(n->w);
}

uint16_t world_shard(const struct node *n)
{
	return world_client(n) ? DISK_SHARD_CLIENT(n->id) : (uint16_t)(n->id - 1);
}

void world_ok(int rc, const char *what, const char *text)
{
	if (!rc)
		return;
	fprintf(stderr, "%s is %d %s\n", what, rc, text);
	abort();
}

void barrier(struct node *n)
{
	struct world *w = n->w;
	uint32_t seen = atomic_fetch_add(&w->arrived, 1) + 1;
	uint32_t whole = (seen + w->nodes - 1) / w->nodes * w->nodes;

	if (w->transport)
		rt_shared_wake(&w->arrived, INT32_MAX);
	else
		rt_wake(&w->arrived, INT32_MAX);
	while (seen < whole) {
		if (w->transport)
			rt_shared_wait(&w->arrived, seen, RT_FOREVER);
		else
			rt_wait(&w->arrived, seen, RT_FOREVER);
		seen = atomic_load(&w->arrived);
	}
}

/* ---- the endpoint --------------------------------------------------------------------------- */

static unsigned home_of(void *owner, uint16_t shard)
{
	const struct world *w = (const struct world *)owner;

	return shard < world_stores(w) ? shard + 1u : NODE_NONE;
}

static void on_message(void *owner, struct net_peer *peer, const struct net_message *m)
{
	struct node *n = (struct node *)owner;

	if (n->w->takes && n->w->takes(n, peer, m))
		return;
	rt_holds(n, rt_never); /* other messages are behind it: it does not wait */
	coherence_message(n->coherence, peer, m);
	rt_lets_go(n);
	if (n->w->handled)
		n->w->handled(n, m);
}

static void on_event(void *owner, struct net_peer *peer, const struct net_event *event)
{
	struct node *n = (struct node *)owner;

	if (event->kind == NET_LINK_UP) {
		atomic_fetch_add(&n->ups, 1);
		net_wake(n->net, &n->ups, INT32_MAX);
	}
	coherence_event(n->coherence, peer, event);
	if (n->calls)
		net_calls_event(n->calls, peer, event);
}

/* The address of an RDMA device, if there is one to test with (tests/rdma/run). */
static const char *real_ip(void)
{
	const char *ip = getenv("WEFT_RDMA_ADDRESS");

	return ip ? ip : "127.0.0.1";
}

static void address_set(struct node *n)
{
	const char *transport = n->w->transport;

	if (!transport)
		snprintf(n->address, sizeof(n->address), "node%u:7000", n->id);
	else if (!strcmp(transport, "shm"))
		snprintf(n->address, sizeof(n->address), "%s/%u", n->w->folder, n->id);
	else
		snprintf(n->address, sizeof(n->address), "%s:0", real_ip());
}

struct net_options world_net_options(struct node *n, uint64_t incarnation)
{
	struct net_options no = {
		.transport = n->w->transport ? n->w->transport : "sim",
		.self = {.incarnation = incarnation,
			.node = (uint16_t)n->id,
			.role = world_client(n) ? NET_ROLE_CLIENT : NET_ROLE_STORAGE},
		.listen = n->address,
		.handlers = {n, on_message, on_event},
		.stall_ns = n->w->stall_ns,
		.retry_ns = n->w->transport ? 0 : 50000000,
	};

	address_set(n);
	memcpy(no.self.volume_uuid, world_uuid, sizeof(world_uuid));
	memset(no.self.cluster_uuid, 0x22, NET_UUID_BYTES);
	memset(no.self.node_uuid, 0x30 + (int)n->id, NET_UUID_BYTES);
	return no;
}

struct coherence_options node_network(
	struct node *n, struct store *store, struct log *log, uint64_t incarnation)
{
	struct net_options no = world_net_options(n, incarnation);
	bool sizes = !n->w->transport && n->w->depth == WORLD_PAGES;
	struct weft_error err = {0};

	atomic_store(&n->ups, 0);
	world_ok(net_open(&n->net, &no, &err), "net_open", err.text);
	/* volumes find out how large others are */
	for (unsigned i = 0; i < world_stores(n->w); i++)
		OK(shards_set(&n->shards, (uint16_t)i,
			sizes ? store_superblock(store)->page_count : 0));
	return (struct coherence_options){
		.self = (uint8_t)n->id,
		.shard = world_shard(n),
		.home = home_of,
		.owner = n->w,
		.net = n->net,
		.store = store,
		.log = log,
		.shards = &n->shards,
		.cluster_epoch = WORLD_EPOCH,
		.members = n->w->hostile ? node_bit(n->id) : 0,
	};
}

/* ---- the links ------------------------------------------------------------------------------- */

static void peer_add(struct node *n, struct node *other)
{
	struct net_peer_options po = {
		.node = (uint16_t)other->id, .address = other->address};
	struct weft_error err = {0};
	struct net_peer *peer;

	if (n->w->hostile)
		po.address = NULL;
	world_ok(net_peer_add(&peer, n->net, &po, &err), "net_peer_add", err.text);
}

/* Simulated nodes know the addresses of the others before these are open. */
static void link_simulated(struct node *n)
{
	for (unsigned i = 0; i < n->w->nodes; i++) {
		struct node *other = &n->w->node[i];

		address_set(other);
		if (other != n)
			peer_add(n, other);
	}
	OK(net_start(n->net, NULL));
}

/* The node with the higher id connects, once the other has told its address. */
static void link_real(struct node *n)
{
	struct weft_error err = {0};
	struct net_peer *peer;

	for (unsigned i = n->id; i < n->w->nodes; i++) {
		struct net_peer_options po = {.node = (uint16_t)(i + 1)};

		world_ok(
			net_peer_add(&peer, n->net, &po, &err), "net_peer_add", err.text);
	}
	world_ok(net_start(n->net, &err), "net_start", err.text);
	net_address(n->net, n->address);
	barrier(n);
	for (unsigned i = 0; i + 1 < n->id; i++)
		peer_add(n, &n->w->node[i]);
}

void node_join(struct node *n)
{
	uint32_t ups;

	OK(coherence_start(n->coherence));
	if (n->w->transport)
		link_real(n);
	else
		link_simulated(n);
	while (!n->w->others_away && (ups = atomic_load(&n->ups)) < n->w->nodes - 1)
		net_wait(n->net, NULL, &n->ups, ups, RT_FOREVER);
	if (n->w->transport)
		barrier(n);
}

uint64_t node_sent(const struct node *n)
{
	const struct coherence_counters *c = coherence_counters(n->coherence);
	uint64_t sum = 0;

	for (unsigned type = 0; type < ARRAY_SIZE(c->sent); type++)
		sum += c->sent[type];
	return sum;
}
