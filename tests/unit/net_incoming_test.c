/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The dispatcher of incoming messages: by type to the handlers of an endpoint, in order.
 */
#include "tests/unit/net_fixture.h"

#include "engine/rt/real.h"
#include "engine/rt/rt_sim.h"
#include "tests/sim/seeds.h"

#define SEEDS 10

/* Two ranges side by side, and one apart. */
enum { FIRST = 0x10, SECOND = 0x14, END = 0x18, APART = 0x300 };

struct taken {
	struct end *end;
	uint16_t type[16];
	_Atomic uint32_t count;
};

static void take(void *owner, struct net_peer *peer, const struct net_message *m)
{
	struct taken *t = (struct taken *)owner;

	CHECK(net_peer_owner(peer) == t->end && m->sender == net_peer_node(peer));
	t->type[atomic_load(&t->count)] = m->type;
	raise_counter(t->end, &t->count);
}

static void send_type(struct end *e, uint16_t type)
{
	struct net_message m = {.type = type};

	CHECK(send_waiting(e->peer, &m, 0) == 0);
}

/* Node 1 has the handlers; node 2 connects to it and sends. */
static void open_both(struct pair *p, struct taken t[3])
{
	static const uint16_t first[3] = {FIRST, SECOND, APART};
	static const uint16_t end[3] = {SECOND, END, APART + 1};

	*p = (struct pair){end_new(1), end_new(2)};
	end_open(p->a);
	end_open(p->b);
	for (unsigned i = 0; i < 3; i++) {
		t[i] = (struct taken){.end = p->a};
		CHECK(net_handle(p->a->net, first[i], end[i], take, &t[i]) == 0);
	}
}

static void start_both(struct pair *p)
{
	end_add_peer(p->a, 2, NULL);
	end_start(p->a);
	end_add_peer(p->b, 1, p->a->address);
	end_start(p->b);
	wait_for(p->a, &p->a->ups, 1);
	wait_for(p->b, &p->b->ups, 1);
}

static int by_type(void *arg)
{
	static const uint16_t types[] = {FIRST, SECOND - 1, SECOND, END - 1, APART, FIRST};
	struct taken t[3];
	struct pair p;

	open_both(&p, t);
	start_both(&p);
	for (unsigned i = 0; i < ARRAY_SIZE(types); i++)
		send_type(p.b, types[i]);
	send_type(p.b, FIRST - 1);
	send_type(p.b, END);
	send_type(p.b, APART + 1);
	wait_for(p.a, &p.a->messages, 3); /* those that no handler has */
	CHECK(t[0].count == 3 && t[1].count == 2 && t[2].count == 1);
	CHECK(t[0].type[0] == FIRST && t[0].type[1] == SECOND - 1 && t[0].type[2] == FIRST);
	CHECK(t[1].type[0] == SECOND && t[1].type[1] == END - 1);
	CHECK(t[2].type[0] == APART && p.a->messages == 3);
	pair_down(&p);
	return 0;
}

static int ranges(void *arg)
{
	struct taken t[3];
	struct net *net;
	struct pair p;

	open_both(&p, t);
	net = p.a->net;
	CHECK(net_handle(net, 0, 4, take, t) == -EINVAL);
	CHECK(net_handle(net, 4, 4, take, t) == -EINVAL);
	CHECK(net_handle(net, FIRST, FIRST + 1, take, t) == -EEXIST);
	CHECK(net_handle(net, END - 1, END + 1, take, t) == -EEXIST);
	CHECK(net_handle(net, 1, APART + 9, take, t) == -EEXIST);
	CHECK(net_handle(net, END, END + 1, take, t) == 0);
	CHECK(net_handle(net, END + 1, END + 2, take, t) == -ENOSPC);
	pair_down(&p);
	return 0;
}

static int unknown(void *arg)
{
	struct taken t[3];
	struct pair p = {end_new(1), end_new(2)};

	p.a->options.handlers.message = NULL;
	end_open(p.a);
	end_open(p.b);
	t[0] = (struct taken){.end = p.a};
	CHECK(net_handle(p.a->net, FIRST, SECOND, take, &t[0]) == 0);
	start_both(&p);
	send_type(p.b, FIRST);
	send_type(p.b, SECOND);
	wait_for(p.a, &p.a->downs, 1);
	CHECK(p.a->down_code == -EPROTO && t[0].count == 1);
	pair_down(&p);
	return 0;
}

/* The first link is ignored, and cut; the second is used. */
static void ignore_first(void *owner, struct net_peer *peer, const struct net_event *event)
{
	struct end *e = (struct end *)owner;

	if (event->kind == NET_LINK_UP && !atomic_load(&e->ups))
		net_peer_ignore(peer);
	end_event(owner, peer, event);
}

static int ignored(void *arg)
{
	struct taken t[3];
	struct pair p = {end_new(1), end_new(2)};

	p.a->options.handlers.event = ignore_first;
	end_open(p.a);
	end_open(p.b);
	t[0] = (struct taken){.end = p.a};
	CHECK(net_handle(p.a->net, FIRST, SECOND, take, &t[0]) == 0);
	start_both(&p);
	send_type(p.b, FIRST);
	send_type(p.b, END); /* nor does the other handler get it */
	rt_sleep_ns(20 * MS);
	CHECK(!t[0].count && !p.a->messages);
	net_cut(p.a->peer, -EAGAIN);
	wait_for(p.a, &p.a->ups, 2);
	wait_for(p.b, &p.b->ups, 2);
	send_type(p.b, FIRST + 1);
	wait_for(p.a, &t[0].count, 1);
	CHECK(t[0].type[0] == FIRST + 1);
	pair_down(&p);
	return 0;
}

static const char *test_listen_address(void)
{
	return rt_simulated ? "host1:7000" : "127.0.0.1:0";
}

static void run_one(int (*fn)(void *))
{
	if (!rt_simulated && strcmp(test_transport, "sim")) {
		assert_int_equal(fn(NULL), 0);
		return;
	}
	for (uint64_t seed = seeds_first(), left = seeds_count(SEEDS); left--; seed++)
		assert_int_equal(rt_sim_run(seed, NULL, fn, NULL), 0);
}

static void messages_go_to_the_handler_of_their_type(void **state)
{
	run_one(by_type);
}

static void handlers_share_no_type(void **state)
{
	run_one(ranges);
}

static void a_type_without_a_handler_cuts_the_link(void **state)
{
	run_one(unknown);
}

static void messages_of_an_ignored_link_are_dropped(void **state)
{
	run_one(ignored);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(messages_go_to_the_handler_of_their_type),
		cmocka_unit_test(handlers_share_no_type),
		cmocka_unit_test(a_type_without_a_handler_cuts_the_link),
		cmocka_unit_test(messages_of_an_ignored_link_are_dropped),
	};
	int failed = 0;

	test_transport = "sim";
	if (!getenv("WEFT_NO_SIM"))
		failed = cmocka_run_group_tests_name(
			"incoming, simulated", tests, NULL, NULL);
	if (failed || getenv("WEFT_SIM_SEED"))
		return failed;
	rt_real_start();
	test_transport = "tcp";
	return cmocka_run_group_tests_name("incoming, over tcp", tests, NULL, NULL);
}
