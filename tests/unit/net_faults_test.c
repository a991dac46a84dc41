/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Three simulated nodes of two addresses each that write pages into each other's memory and
 * say so, while the network between them is cut, stalls in one direction, loses addresses,
 * and nodes lose their power. What docs/protocol.md promises must hold all the time, and
 * when all is well again all links come back.
 */
#include "engine/rt/rt_sim.h"
#include "engine/net/net.h"
#include "tests/sim/seeds.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK      WEFT_ASSERT
#define NODES      3u
#define SEEDS      12u
#define STEPS      50u
#define SLOTS      16u /* pages that one node writes on another */
#define MS         1000000ull
#define HEALING_NS (60000 * MS)

/* One direction of a pair, as its ends have seen it. The harness's memory outlives nodes. */
struct flow {
	/* The sender's. */
	bool sender_up;
	uint64_t stream, next; /* of its session */
	/* The receiver's. */
	bool receiver_up;
	uint64_t stream_seen, expected, received;
};

struct node {
	unsigned sim, id;
	uint64_t incarnation;
	struct net *net;
	struct net_peer *peers[NODES + 1];
	uint8_t *memory;
};

static struct node nodes[NODES + 1];
static struct flow flows[NODES + 1][NODES + 1]; /* from, to */
static uint64_t streams, downs;
static bool tls; /* of this run */

static size_t slot_offset(unsigned from, uint64_t n)
{
	return (from * SLOTS + n % SLOTS) * PAGE_SIZE;
}

static void on_message(void *owner, struct net_peer *peer, const struct net_message *m)
{
	struct node *self = owner;
	unsigned from = net_peer_node(peer);
	struct flow *f = &flows[from][self->id];
	const uint64_t *page =
		(uint64_t *)(self->memory + slot_offset(from, m->words[1]));

	CHECK(f->receiver_up);
	if (m->words[0] != f->stream_seen) {
		/* Only the beginning of a stream, or the last word of one before. */
		CHECK(m->words[0] > f->stream_seen || f->received == 0);
		f->stream_seen = m->words[0];
		f->expected = m->words[1];
	}
	CHECK(m->words[1] == f->expected);
	f->expected++;
	f->received++;
	CHECK(page[0] == m->words[0] && page[1] == m->words[1]);
	CHECK(page[PAGE_SIZE / 8 - 1] == (m->words[0] ^ m->words[1]));
}

static void on_event(void *owner, struct net_peer *peer, const struct net_event *e)
{
	struct node *self = owner;
	unsigned other = net_peer_node(peer);
	struct flow *out = &flows[self->id][other], *in = &flows[other][self->id];

	switch (e->kind) {
	case NET_LINK_UP:
		CHECK(!out->sender_up && !in->receiver_up);
		CHECK(e->incarnation <= nodes[other].incarnation);
		out->sender_up = in->receiver_up = true;
		out->stream = ++streams;
		out->next = 0;
		in->received = 0;
		break;
	case NET_LINK_DOWN:
		CHECK(out->sender_up && in->receiver_up);
		out->sender_up = in->receiver_up = false;
		downs++;
		break;
	case NET_LINK_REFUSED:
		CHECK(e->code == -ECONNREFUSED || e->code == -ECONNRESET ||
			e->code == -ETIMEDOUT || e->code == -ESTALE || e->code == -EPIPE);
		break;
	}
}

static void write_to(struct node *self, unsigned to, uint64_t *page)
{
	struct flow *f = &flows[self->id][to];
	struct net_op op = {.kind = NET_WRITE, .local = page, .length = PAGE_SIZE};

	page[0] = f->stream;
	page[1] = f->next;
	page[PAGE_SIZE / 8 - 1] = page[0] ^ page[1];
	op.offset = slot_offset(self->id, page[1]);
	op.message = (struct net_message){.type = 1, .words = {page[0], page[1]}};
	if (!f->sender_up || net_post(self->peers[to], &op, 0))
		return;
	/* A session that began meanwhile has a stream of its own. */
	if (f->stream == page[0])
		f->next = page[1] + 1;
	net_op_wait(self->peers[to], &op);
}

/* Each node has two addresses. */
static void addresses_of(unsigned id, char out[32])
{
	snprintf(out, 32, "node%u:1, node%u:2", id, id);
}

static void node_main(void *arg)
{
	struct node *self = arg;
	struct net_options o = {
		.transport = "sim",
		.self = {.incarnation = self->incarnation,
			.node = (uint16_t)self->id,
			.role = NET_ROLE_STORAGE},
		.handlers = {self, on_message, on_event},
		.tls = tls,
	};
	uint64_t *page = rt_alloc_pages(PAGE_SIZE);
	char address[32];
	void *base;

	memset(o.self.node_uuid, (int)self->id, NET_UUID_BYTES);
	addresses_of(self->id, address);
	o.listen = address;
	CHECK(page && net_open(&self->net, &o, NULL) == 0);
	CHECK(net_region_create(self->net, 0, (NODES + 1) * SLOTS * PAGE_SIZE,
		      NET_REMOTE_WRITE, &base) == 0);
	self->memory = base;
	for (unsigned i = 1; i <= NODES; i++) {
		struct net_peer_options p = {.node = (uint16_t)i, .address = address};

		addresses_of(i, address);
		if (i != self->id)
			CHECK(net_peer_add(&self->peers[i], self->net, &p, NULL) == 0);
	}
	CHECK(net_start(self->net, NULL) == 0);
	for (;;) {
		unsigned to = 1 + (unsigned)(rt_random() % NODES);

		if (to != self->id)
			write_to(self, to, page);
		rt_sleep_ns(rt_random() % (2 * MS));
	}
}

static void node_start(unsigned id)
{
	struct node *n = &nodes[id];
	uint64_t incarnation = n->incarnation + 1;
	char name[16];

	for (unsigned i = 1; i <= NODES; i++) {
		flows[id][i].sender_up = false;
		flows[i][id].receiver_up = false;
		flows[i][id].stream_seen = 0;
	}
	*n = (struct node){.id = id, .incarnation = incarnation};
	snprintf(name, sizeof(name), "node%u", id);
	n->sim = rt_sim_node_new(name);
	CHECK(rt_sim_spawn_on(n->sim, "main", node_main, n) == 0);
}

static unsigned any_node(void)
{
	return 1 + (unsigned)(rt_random() % NODES);
}

/* Nobody reaches the node at one of them, now and then at both, for longer than a link lives. */
static void lose_an_address(unsigned id)
{
	unsigned first = 1 + (unsigned)(rt_random() % 2);
	unsigned last = rt_random() % 4 ? first : 2;
	char address[32];

	for (unsigned on = 2; on--;) {
		for (unsigned i = first; i <= last; i++) {
			snprintf(address, sizeof(address), "node%u:%u", id, i);
			rt_sim_net_lose(address, on);
		}
		rt_sleep_ns(on * rt_random() % (30000 * MS));
	}
}

static void something_happens(void)
{
	unsigned a = any_node(), b = any_node();

	if (a == b)
		return;
	switch (rt_random() % 9) {
	case 0:
		rt_sim_node_kill(nodes[a].sim);
		rt_sleep_ns(rt_random() % (20000 * MS));
		node_start(a);
		break;
	case 1: /* longer than silence is tolerated, or shorter */
		rt_sim_net_block(nodes[a].sim, nodes[b].sim, true);
		rt_sleep_ns(rt_random() % (30000 * MS));
		rt_sim_net_block(nodes[a].sim, nodes[b].sim, false);
		break;
	case 2:
		rt_sim_net_block(nodes[a].sim, nodes[b].sim, true);
		rt_sim_net_block(nodes[b].sim, nodes[a].sim, true);
		rt_sleep_ns(rt_random() % (30000 * MS));
		rt_sim_net_block(nodes[a].sim, nodes[b].sim, false);
		rt_sim_net_block(nodes[b].sim, nodes[a].sim, false);
		break;
	case 3:
	case 4:
		rt_sim_net_cut(nodes[a].sim, nodes[b].sim);
		break;
	case 5:
		if (nodes[a].net && nodes[a].peers[b])
			net_cut(nodes[a].peers[b], -ECONNABORTED);
		break;
	case 6:
		lose_an_address(a);
		break;
	default:
		rt_sleep_ns(rt_random() % (100 * MS));
	}
}

static bool all_flow(uint64_t before[NODES + 1][NODES + 1])
{
	for (unsigned a = 1; a <= NODES; a++)
		for (unsigned b = 1; b <= NODES; b++)
			if (a != b &&
				(!flows[a][b].sender_up || !flows[a][b].receiver_up ||
					flows[a][b].received < before[a][b] + 3))
				return false;
	return true;
}

static int run_world(void *arg)
{
	uint64_t before[NODES + 1][NODES + 1] = {0}, until;

	memset(nodes, 0, sizeof(nodes));
	memset(flows, 0, sizeof(flows));
	streams = downs = 0;
	for (unsigned i = 1; i <= NODES; i++)
		node_start(i);
	for (unsigned i = 0; i < STEPS; i++)
		something_happens();
	until = rt_now_ns() + HEALING_NS;
	while (!all_flow(before)) {
		CHECK(rt_now_ns() < until);
		rt_sleep_ns(10 * MS);
	}
	CHECK(downs > 0);
	for (unsigned i = 1; i <= NODES; i++)
		rt_sim_node_kill(nodes[i].sim);
	return 0;
}

static void no_log(int level, const char *line)
{
}

static void promises_hold_whatever_happens(void **state)
{
	for (uint64_t s = seeds_first(), left = seeds_count(SEEDS); left--; s++) {
		tls = s % 4 == 3;
		assert_int_equal(rt_sim_run(s, NULL, run_world, NULL), 0);
	}
	tls = false;
}

static int trace_of_world(void *arg)
{
	run_world(NULL);
	*(uint64_t *)arg = rt_sim_trace();
	return 0;
}

static void a_seed_repeats_its_run(void **state)
{
	uint64_t one, two;

	rt_sim_run(7, NULL, trace_of_world, &one);
	rt_sim_run(7, NULL, trace_of_world, &two);
	assert_int_equal(one, two);
}

int main(void)
{
	weft_log_sink = no_log;
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(promises_hold_whatever_happens),
		cmocka_unit_test(a_seed_repeats_its_run),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
