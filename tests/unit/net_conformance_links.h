/* SPDX-License-Identifier: Apache-2.0 */
/* What every transport must do: who is refused, what a cut ends. See net_conformance.h. */
#ifndef WEFT_TESTS_NET_CONFORMANCE_LINKS_H
#define WEFT_TESTS_NET_CONFORMANCE_LINKS_H

#include "tests/unit/net_fixture.h"

#define DEEP 64u /* ops at once */

static unsigned test_scale = 1; /* how much is done is divided by it */

/* ---- what is refused -------------------------------------------------------------------------- */

static int impossible_calls_are_refused_at_once(void *arg)
{
	struct pair p = pair_up();
	uint64_t word = 0;
	struct net_op none = {.kind = NET_READ, .local = &word, .length = 0};
	struct net_op large = {
		.kind = NET_WRITE, .local = &word, .length = NET_TRANSFER_MAX + 1};
	struct net_op strange = {.kind = (enum net_op_kind)9, .length = 1};
	struct net_peer_options again = {.node = 2, .owner = p.a};
	struct net_peer_options self = {.node = 1, .owner = p.a};
	struct net_peer *peer;
	void *base;

	CHECK(net_post(p.a->peer, &none, 0) == -EINVAL);
	CHECK(net_post(p.a->peer, &large, 0) == -EINVAL);
	CHECK(net_post(p.a->peer, &strange, 0) == -EINVAL);
	CHECK(net_peer_add(&peer, p.a->net, &again, NULL) == -EEXIST);
	CHECK(net_peer_add(&peer, p.a->net, &self, NULL) == -EINVAL);
	CHECK(net_region_create(p.a->net, 7, PAGE_SIZE, NET_REMOTE_READ, &base) ==
		-EINVAL);
	CHECK(net_peer_find(p.a->net, 2) == p.a->peer);
	CHECK(net_peer_find(p.a->net, 3) == NULL);
	CHECK(net_peer_up(p.a->peer) && net_of(p.a->peer) == p.a->net);
	pair_down(&p);
	return 0;
}

/* Each ends the link, changes nothing, and the link comes back. */
static int accesses_out_of_bounds_are_refused(void *arg)
{
	struct pair p = pair_up();
	uint8_t bytes[64] = {1, 2, 3};
	const struct net_op wrong[] = {
		{.kind = NET_READ, .region = 2, .local = bytes, .length = 8},
		{.kind = NET_READ,
			.region = NET_REGIONS_MAX,
			.local = bytes,
			.length = 8},
		{.kind = NET_READ, .region = UINT32_MAX, .local = bytes, .length = 8},
		{.kind = NET_READ, .offset = REGION_BYTES, .local = bytes, .length = 1},
		{.kind = NET_READ,
			.offset = REGION_BYTES - 7,
			.local = bytes,
			.length = 8},
		{.kind = NET_READ, .offset = UINT64_MAX - 3, .local = bytes, .length = 8},
		{.kind = NET_WRITE, .region = 3, .local = bytes, .length = 8},
		{.kind = NET_WRITE, .region = REGION_READ, .local = bytes, .length = 8},
		{.kind = NET_WRITE,
			.offset = REGION_BYTES - 7,
			.local = bytes,
			.length = 8},
		{.kind = NET_WRITE,
			.offset = UINT64_MAX - 7,
			.local = bytes,
			.length = 8},
		{.kind = NET_FAA, .region = REGION_READ, .operand = 1},
		{.kind = NET_FAA, .offset = REGION_BYTES, .operand = 1},
		{.kind = NET_FAA, .offset = 12, .operand = 1},
		{.kind = NET_CAS, .offset = REGION_BYTES - 4, .operand = 1},
		{.kind = NET_CAS, .offset = UINT64_MAX - 7, .operand = 1},
	};

	for (uint32_t i = 0; i < ARRAY_SIZE(wrong); i++) {
		struct net_op op = wrong[i];
		int r = run_op(p.a->peer, &op);

		CHECK(r == -EACCES || (op.kind == NET_WRITE && r == 0));
		wait_for(p.a, &p.a->downs, i + 1);
		wait_for(p.b, &p.b->downs, i + 1);
		CHECK(p.a->down_code == -EACCES || p.a->down_code == -ECONNRESET);
		CHECK(p.b->down_code == -EACCES || p.b->down_code == -ECONNRESET);
		wait_for(p.a, &p.a->ups, i + 2);
		wait_for(p.b, &p.b->ups, i + 2);
	}
	for (unsigned i = 0; i < REGION_BYTES; i++)
		CHECK(p.b->memory[i] == 0 && p.b->memory_read[i] == 0);
	pair_down(&p);
	return 0;
}

/* A pair that cannot come together: the codes that each end is told, 0 for nothing. */
static void expect_refusal(struct pair *p, int code_a, int code_b)
{
	pair_start(p);
	if (code_b) {
		wait_for(p->b, &p->b->refusals, 1);
		CHECK(p->b->refusal_code == code_b);
	}
	if (code_a) {
		wait_for(p->a, &p->a->refusals, 1);
		CHECK(p->a->refusal_code == code_a);
	}
	rt_sleep_ns(20 * MS);
	CHECK(p->a->ups == 0 && p->b->ups == 0);
	CHECK(p->a->refusals <= 2 &&
		p->b->refusals <= 2); /* told once, not at each try */
	pair_down(p);
}

static int a_wrong_key_is_refused(void *arg)
{
	struct pair p = {end_new(1), end_new(2)};

	p.b->options.key[31] ^= 1;
	/* With TLS the listener does not know whom it refuses. */
	expect_refusal(&p, test_tls ? 0 : -EKEYREJECTED, -EKEYREJECTED);
	return 0;
}

static int another_volume_is_refused(void *arg)
{
	struct pair p = {end_new(1), end_new(2)};

	p.b->options.self.volume_uuid[0] ^= 1;
	expect_refusal(&p, -EXDEV, -EXDEV);
	p = (struct pair){end_new(1), end_new(2)};
	p.a->options.self.cluster_uuid[15] ^= 1;
	expect_refusal(&p, -EXDEV, -EXDEV);
	return 0;
}

static int another_node_is_refused(void *arg)
{
	struct pair p = {end_new(1), end_new(2)};

	/* Node 3 is where node 1 should be. */
	p.a->options.self.node = 3;
	memset(p.a->options.self.node_uuid, 0x33, NET_UUID_BYTES);
	expect_refusal(&p, -EADDRNOTAVAIL, -EADDRNOTAVAIL);
	/* Node 4 is not known there. */
	p = (struct pair){end_new(1), end_new(4)};
	expect_refusal(&p, 0, -ENOENT);
	return 0;
}

static void connect_again(struct end *e, struct end *with)
{
	end_open(e);
	end_add_peer(e, 1, with->address);
	end_start(e);
}

/* The same id with another UUID, another instance, an earlier incarnation. */
static int a_clashing_node_is_refused(void *arg)
{
	struct pair p = {end_new(1), end_new(2)};
	struct end *other;

	p.b->options.self.incarnation = 5;
	pair_start(&p);
	wait_for(p.a, &p.a->ups, 1);
	for (unsigned i = 0; i < 3; i++) {
		other = end_new(2);
		other->options.self.incarnation = i == 0 ? 9 : i == 1 ? 5 : 4;
		if (i == 0)
			other->options.self.node_uuid[0] ^= 1;
		connect_again(other, p.a);
		wait_for(other, &other->refusals, 1);
		CHECK(other->refusal_code == (i == 2 ? -ESTALE : -EADDRINUSE));
		CHECK(other->ups == 0);
		end_free(other);
	}
	CHECK(p.a->downs == 0 && p.b->downs == 0);
	/* A later start takes the place of the one before. */
	other = end_new(2);
	other->options.self.incarnation = 6;
	connect_again(other, p.a);
	wait_for(other, &other->ups, 1);
	wait_for(p.b, &p.b->downs, 1);
	wait_for(p.a, &p.a->ups, 2);
	wait_for(p.b, &p.b->refusals, 1);
	CHECK(p.b->refusal_code == -ESTALE);
	end_free(other);
	pair_down(&p);
	return 0;
}

/* What the owner knows to be over, though it has met nobody of that node. */
static int an_earlier_start_than_the_owner_knows_of_is_refused(void *arg)
{
	struct pair p = {end_new(1), end_new(2)};

	p.a->peer_least = 7;
	p.b->options.self.incarnation = 6;
	pair_start(&p);
	wait_for(p.b, &p.b->refusals, 1);
	CHECK(p.b->refusal_code == -ESTALE && p.a->ups == 0 && p.b->ups == 0);
	end_free(p.b);
	p.b = end_new(2);
	p.b->options.self.incarnation = 7;
	connect_again(p.b, p.a);
	wait_for(p.a, &p.a->ups, 1);
	wait_for(p.b, &p.b->ups, 1);
	pair_down(&p);
	return 0;
}

/* ---- cuts ------------------------------------------------------------------------------------ */

static void ended_either_way(struct net_op *op)
{
	struct end *e = op->owner;

	CHECK(op->result == 0 || op->result == -ECONNRESET);
	raise_counter(e, &e->answers);
}

/* Each time: down, all ops ended before, up again with a later session. */
static int a_cut_ends_all_and_the_link_comes_back(void *arg)
{
	struct pair p = pair_up();
	uint8_t *local = rt_alloc_pages(DEEP * PAGE_SIZE);
	struct net_op *ops = calloc(DEEP, sizeof(*ops));
	uint32_t rounds = 60 / MIN(test_scale, 10u);

	CHECK(local && ops);
	for (uint32_t round = 1; round <= rounds; round++) {
		uint32_t before = p.a->answers, started = 0;

		for (uint32_t i = 0; i < DEEP; i++) {
			ops[i] = (struct net_op){.kind = i % 4 == 0   ? NET_FAA
							 : i % 4 == 1 ? NET_WRITE
								      : NET_READ,
				.offset = i * PAGE_SIZE,
				.local = local + i * PAGE_SIZE,
				.length = PAGE_SIZE,
				.done = ended_either_way,
				.owner = p.a};
			if (net_post(p.a->peer, &ops[i], i % 3 ? NET_MORE : 0) == 0)
				started++;
			if (i == rt_random() % DEEP)
				net_cut(round % 2 ? p.a->peer : p.b->peer, -ECONNABORTED);
		}
		net_cut(round % 3 ? p.a->peer : p.b->peer, -ECONNABORTED);
		wait_for(p.a, &p.a->answers, before + started);
		wait_for(p.a, &p.a->downs, round);
		wait_for(p.b, &p.b->downs, round);
		CHECK(p.a->answers == before + started);
		wait_for(p.a, &p.a->ups, p.a->downs + 1);
		wait_for(p.b, &p.b->ups, p.b->downs + 1);
	}
	rt_free_pages(local, DEEP * PAGE_SIZE);
	free(ops);
	pair_down(&p);
	return 0;
}

/* In the handler of DOWN, before there can be another session. */
static void memory_stands_still(struct end *e)
{
	static uint8_t copy[NET_TRANSFER_MAX];

	memcpy(copy, e->memory, sizeof(copy));
	for (unsigned i = 0; i < 4; i++)
		CHECK(memcmp(copy, e->memory, sizeof(copy)) == 0);
}

static _Atomic uint32_t stop_writing;

static void write_without_end(void *arg)
{
	struct end *e = arg;
	uint8_t *from = rt_alloc_pages(NET_TRANSFER_MAX);

	CHECK(from);
	for (unsigned i = 0; !atomic_load(&stop_writing); i++) {
		struct net_op op = {
			.kind = NET_WRITE, .local = from, .length = NET_TRANSFER_MAX};

		memset(from, (int)i, NET_TRANSFER_MAX);
		if (post_waiting(e->peer, &op, 0) == 0)
			net_op_wait(e->peer, &op);
		else
			rt_sleep_ns(MS / 10);
	}
	rt_free_pages(from, NET_TRANSFER_MAX);
}

static int after_down_nothing_is_written(void *arg)
{
	struct pair p = pair_up();
	uint32_t rounds = 60 / MIN(test_scale, 6u);
	struct rt_task *task;

	atomic_store(&stop_writing, 0);
	p.a->on_down = memory_stands_still;
	CHECK(rt_task_spawn(&task, "writer", write_without_end, p.b) == 0);
	for (uint32_t i = 1; i <= rounds; i++) {
		rt_sleep_ns(rt_random() % MS);
		net_cut(i % 2 ? p.a->peer : p.b->peer, -ECONNABORTED);
		wait_for(p.a, &p.a->downs, i);
		wait_for(p.a, &p.a->ups, i + 1);
		wait_for(p.b, &p.b->ups, i + 1);
	}
	atomic_store(&stop_writing, 1);
	rt_task_join(task);
	pair_down(&p);
	return 0;
}

static int without_a_link_nothing_is_sent(void *arg)
{
	struct end *e = end_new(1);
	struct net_message m = {.type = MESSAGE_PLAIN};
	uint64_t word;
	struct net_op op = {.kind = NET_READ, .local = &word, .length = 8};

	end_open(e);
	end_add_peer(e, 2, NULL);
	end_start(e);
	CHECK(!net_peer_up(e->peer));
	CHECK(net_send(e->peer, &m, 0) == -ENOTCONN);
	CHECK(net_send(e->peer, &m, NET_URGENT) == -ENOTCONN);
	CHECK(net_post(e->peer, &op, 0) == -ENOTCONN);
	CHECK(net_wait_room(e->peer, RT_FOREVER) == -ENOTCONN);
	net_cut(e->peer, -EIO);
	net_flush(e->net);
	end_free(e);
	return 0;
}

static int a_node_that_closes_and_comes_back(void *arg)
{
	struct pair p = pair_up();
	uint32_t rounds = 10 / MIN(test_scale, 5u);

	for (uint32_t i = 1; i <= rounds; i++) {
		struct end *again = end_new(2);

		end_free(p.b);
		wait_for(p.a, &p.a->downs, i);
		CHECK(p.a->down_code == -ESHUTDOWN || p.a->down_code == -ECONNRESET);
		again->options.self.incarnation = 1 + i;
		connect_again(again, p.a);
		wait_for(again, &again->ups, 1);
		wait_for(p.a, &p.a->ups, i + 1);
		p.b = again;
	}
	pair_down(&p);
	return 0;
}

/* Whichever end it is, dialed or dialing: what waits ends, memory stays, and no link is made. */
static int a_shutdown_ends_links_for_good(void *arg)
{
	for (unsigned which = 0; which < 2; which++) {
		struct pair p = pair_up();
		struct end *ends = which ? p.b : p.a, *other = which ? p.a : p.b;
		struct net_message m = {.type = MESSAGE_PLAIN};
		uint64_t word;
		struct net_op op = {.kind = NET_READ, .local = &word, .length = 8};
		struct rt_task *task;

		atomic_store(&stop_writing, 0);
		CHECK(rt_task_spawn(&task, "writer", write_without_end, other) == 0);
		rt_sleep_ns(rt_random() % MS);
		net_shutdown(ends->net);
		net_shutdown(ends->net);
		wait_for(ends, &ends->downs, 1);
		wait_for(other, &other->downs, 1);
		atomic_store(&stop_writing, 1);
		rt_task_join(task);
		CHECK(net_send(ends->peer, &m, 0) == -ENOTCONN);
		CHECK(net_post(ends->peer, &op, 0) == -ENOTCONN);
		memset(ends->memory, 1, REGION_BYTES);
		rt_sleep_ns(100 * MS);
		CHECK(ends->ups == 1 && other->ups == 1);
		CHECK(ends->downs == 1 && other->downs == 1);
		pair_down(&p);
	}
	return 0;
}

#endif
