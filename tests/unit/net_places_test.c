/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Nodes with several addresses: they listen at all, and are reached at the first that works;
 * in the simulator, where an address can be lost, and over real sockets.
 */
#include "engine/rt/rt_sim.h"
#include "engine/rt/rt_socket.h"
#include "tests/unit/net_fixture.h"

#define SEEDS 16u

static const char *test_listen_address(void)
{
	return rt_simulated ? "a1:1, a2:1" : "127.0.0.1:0, 127.0.0.2:0";
}

/* ---- what was said, and which way links went ------------------------------------------------- */

static char logged[8192];
static char way[3][NET_ADDRESS_BYTES]; /* of the last link, as node 1 and 2 know it */
static bool dialed[3];

static void keep_log(int level, const char *line)
{
	size_t used = strlen(logged);

	snprintf(logged + used, sizeof(logged) - used, "<%d>%s\n", level, line);
}

static void keep_event(void *owner, struct net_peer *peer, const struct net_event *event)
{
	struct end *e = owner;
	unsigned node = e->options.self.node;

	if (event->kind == NET_LINK_UP) {
		snprintf(way[node], sizeof(way[node]), "%s", event->address);
		dialed[node] = event->dialed;
	}
	end_event(owner, peer, event);
}

static struct pair pair_new(void)
{
	struct pair p = {end_new(1), end_new(2)};

	logged[0] = '\0';
	weft_log_sink = keep_log;
	p.a->options.handlers.event = p.b->options.handlers.event = keep_event;
	end_open(p.a);
	end_open(p.b);
	end_add_peer(p.a, 2, NULL);
	return p;
}

/* Node 2 knows these addresses of node 1, which listens already. */
static void pair_connect(struct pair *p, const char *addresses)
{
	end_add_peer(p->b, 1, addresses);
	end_start(p->b);
}

static void pair_has_link(struct pair *p, unsigned nth, const char *address)
{
	wait_for(p->a, &p->a->ups, nth);
	wait_for(p->b, &p->b->ups, nth);
	CHECK(!strcmp(way[1], address) && !strcmp(way[2], address));
	CHECK(!dialed[1] && dialed[2]);
}

/* ---- simulated ------------------------------------------------------------------------------- */

static int the_first_address_is_used_of_those_that_work(void *arg)
{
	struct pair p = pair_new();

	end_start(p.a);
	CHECK(!strcmp(p.a->address, "a1:1,a2:1"));
	pair_connect(&p, "a1:1, a2:1");
	pair_has_link(&p, 1, "a1:1");
	CHECK(!logged[0]);
	pair_down(&p);
	return 0;
}

/* Nobody listens at the first, nothing is heard of the second. */
static int what_is_not_reached_is_passed_over(void *arg)
{
	struct pair p = pair_new();
	uint64_t began = rt_now_ns();

	rt_sim_net_lose("a1:1", true);
	end_start(p.a);
	pair_connect(&p, "nobody:1,a1:1,a2:1");
	pair_has_link(&p, 1, "a2:1");
	CHECK(rt_now_ns() - began < 5000 * MS);
	CHECK(atomic_load(&p.b->refusals) == 0);
	CHECK(strstr(logged, "<4>node 1 is reached at a2:1, not at nobody:1: Connection "
			     "refused; a1:1: Connection timed out\n"));
	rt_sim_net_lose("a1:1", false);
	pair_down(&p);
	return 0;
}

static void listen_later(void *arg)
{
	rt_sleep_ns(10 * MS + rt_random() % (200 * MS));
	end_start(arg);
}

/* Whenever it begins to listen, be it between two addresses that are tried. */
static int who_is_there_first_uses_the_first_address_of_who_comes(void *arg)
{
	struct rt_task *later;

	for (unsigned i = 0; i < 20; i++) {
		struct pair p = pair_new();

		CHECK(rt_task_spawn(&later, "later", listen_later, p.a) == 0);
		pair_connect(&p, "a1:1,a2:1");
		pair_has_link(&p, 1, "a1:1");
		rt_task_join(later);
		pair_down(&p);
	}
	return 0;
}

/* Its two ends see the silence; each attempt begins with the first address. */
static int a_link_comes_back_over_the_address_that_is_left(void *arg)
{
	struct pair p = pair_new();

	end_start(p.a);
	pair_connect(&p, "a1:1,a2:1");
	pair_has_link(&p, 1, "a1:1");
	rt_sim_net_lose("a1:1", true);
	pair_has_link(&p, 2, "a2:1");
	CHECK(atomic_load(&p.b->refusals) == 0);
	rt_sim_net_lose("a1:1", false);
	rt_sleep_ns(20000 * MS); /* it stays */
	CHECK(atomic_load(&p.a->ups) == 2);
	net_cut(p.b->peer, -ECONNABORTED);
	pair_has_link(&p, 3, "a1:1");
	pair_down(&p);
	return 0;
}

static int an_attempt_in_vain_is_told_once_with_all_addresses(void *arg)
{
	struct pair p = pair_new();

	rt_sim_net_lose("a1:1", true);
	rt_sim_net_lose("a2:1", true);
	end_start(p.a);
	pair_connect(&p, "nobody:1,a1:1,a2:1");
	wait_for(p.b, &p.b->refusals, 1);
	CHECK(p.b->refusal_code == -ECONNREFUSED);
	CHECK(!strcmp(p.b->refusal,
		"cannot connect with node 1: nobody:1: Connection refused; a1:1: "
		"Connection timed out; a2:1: Connection timed out"));
	rt_sleep_ns(60000 * MS);
	CHECK(atomic_load(&p.b->refusals) == 1 && atomic_load(&p.b->ups) == 0);
	rt_sim_net_lose("a1:1", false);
	pair_has_link(&p, 1, "a1:1");
	rt_sim_net_lose("a2:1", false);
	pair_down(&p);
	return 0;
}

/* Another node has the first address: the second is tried, and what was found is said. */
static int who_does_not_fit_is_passed_over(void *arg)
{
	struct end *stranger = end_new(3);
	struct pair p = pair_new();

	stranger->options.listen = "stranger:1";
	end_open(stranger);
	end_add_peer(stranger, 2, NULL);
	end_start(stranger);
	end_start(p.a);
	pair_connect(&p, "stranger:1,a2:1");
	pair_has_link(&p, 1, "a2:1");
	CHECK(atomic_load(&p.b->refusals) == 0);
	CHECK(strstr(logged, "<4>node 1 is reached at a2:1, not at stranger:1: "));
	pair_down(&p);
	end_free(stranger);
	return 0;
}

/* The code is the refusal's, wherever it comes. */
static int where_none_fits_the_refusal_is_told(void *arg)
{
	struct end *stranger = end_new(3);
	struct pair p = pair_new();

	stranger->options.listen = "stranger:1";
	end_open(stranger);
	end_add_peer(stranger, 2, NULL);
	end_start(stranger);
	end_start(p.a);
	pair_connect(&p, "nobody:1,stranger:1");
	wait_for(p.b, &p.b->refusals, 1);
	CHECK(p.b->refusal_code == -EADDRNOTAVAIL || p.b->refusal_code == -ENOENT);
	CHECK(strstr(p.b->refusal, "node 1: nobody:1: Connection refused; stranger:1: "));
	pair_down(&p);
	end_free(stranger);
	return 0;
}

/* It is listened at when it is free: nobody has to do anything. */
static int an_address_that_is_taken_is_tried_again(void *arg)
{
	struct pair p = pair_new();
	struct rt_socket *taker;
	struct rt_address at;

	CHECK(rt_address_resolve(&at, "a1:1", NULL) == 0);
	CHECK(rt_socket_listen(&taker, &at, NULL) == 0);
	end_start(p.a);
	CHECK(!strcmp(p.a->address, "a2:1"));
	CHECK(strstr(logged, "<4>node 1, address a1:1: cannot listen at a1:1: "));
	rt_sleep_ns(30000 * MS);
	net_address(p.a->net, p.a->address);
	CHECK(!strcmp(p.a->address, "a2:1"));
	rt_socket_close(taker);
	rt_sleep_ns(6000 * MS);
	net_address(p.a->net, p.a->address);
	CHECK(!strcmp(p.a->address, "a1:1,a2:1"));
	CHECK(strstr(logged, "<5>node 1 listens at its address a1:1 now, too\n"));
	pair_connect(&p, "a1:1,a2:1");
	pair_has_link(&p, 1, "a1:1");
	pair_down(&p);
	return 0;
}

/* ---- real ------------------------------------------------------------------------------------ */

static int all_addresses_answer(void *arg)
{
	char first[NET_ADDRESS_BYTES], second[NET_ADDRESS_BYTES],
		list[NET_ADDRESS_BYTES + 32];

	for (unsigned i = 0; i < 3; i++) {
		struct pair p = pair_new();

		end_start(p.a);
		CHECK(sscanf(p.a->address, "%[^,],%s", first, second) == 2);
		CHECK(!strncmp(first, "127.0.0.1:", 10));
		CHECK(!strncmp(second, "127.0.0.2:", 10));
		if (i == 0)
			snprintf(list, sizeof(list), "%s", p.a->address);
		else if (i == 1) /* nobody listens at port 1 */
			snprintf(list, sizeof(list), "127.0.0.1:1, %s", second);
		else /* which never resolves (RFC 6761) */
			snprintf(list, sizeof(list), "weft.invalid:9338,%s", second);
		pair_connect(&p, list);
		pair_has_link(&p, 1, i ? second : first);
		CHECK(i != 0 || !logged[0]);
		CHECK(i != 1 ||
			strstr(logged, ", not at 127.0.0.1:1: Connection refused"));
		CHECK(i != 2 || strstr(logged, "<4>node 1: weft.invalid:9338 cannot be "
					       "looked up: "));
		pair_down(&p);
	}
	return 0;
}

/* 198.51.100.0/24 is nobody's (RFC 5737). */
static int one_address_of_this_machine_is_enough(void *arg)
{
	struct weft_error err = {0};
	struct pair p = pair_new();

	net_close(p.a->net);
	p.a->options.listen = "198.51.100.1:9338, 127.0.0.1:0";
	end_open(p.a);
	end_add_peer(p.a, 2, NULL);
	end_start(p.a);
	CHECK(!strncmp(p.a->address, "127.0.0.1:", 10));
	CHECK(strstr(logged, "<4>node 1, address 198.51.100.1:9338: cannot listen at "
			     "198.51.100.1:9338: Cannot assign requested address"));
	pair_connect(&p, p.a->address);
	pair_has_link(&p, 1, p.a->address);
	pair_down(&p);

	p = pair_new();
	net_close(p.a->net);
	p.a->options.listen = "198.51.100.1:9338,198.51.100.2:9338";
	end_open(p.a);
	CHECK(net_start(p.a->net, &err) == -EADDRNOTAVAIL);
	CHECK(strstr(
		err.text, "at 198.51.100.1:9338: Cannot assign requested address; "));
	CHECK(strstr(err.text, "at 198.51.100.2:9338: Cannot assign requested address"));
	pair_down(&p);
	return 0;
}

static int lists_that_are_wrong_are_refused(void *arg)
{
	static const char *const wrong[] = {
		"127.0.0.1:1,127.0.0.2:1,127.0.0.3:1,127.0.0.4:1,127.0.0.5:1",
		"127.0.0.1:1,", "127.0.0.1:1,noport", "weft.invalid:1,weft.invalid:2"};
	struct pair p = pair_new();

	for (unsigned i = 0; i < ARRAY_SIZE(wrong); i++) {
		struct net_peer_options o = {.node = 1, .address = wrong[i]};
		struct weft_error err = {0};
		struct net_peer *peer;

		CHECK(net_peer_add(&peer, p.b->net, &o, &err) < 0);
		CHECK(err.text[0]);
	}
	pair_down(&p);
	return 0;
}

/* ---- running them ---------------------------------------------------------------------------- */

static void run_real(void **state)
{
	int (**run)(void *) = *state;
	void (*sink)(int, const char *) = weft_log_sink;

	rt_real_start();
	test_transport = "tcp";
	assert_int_equal((*run)(NULL), 0);
	weft_log_sink = sink;
}

static void run_simulated(void **state)
{
	int (**run)(void *) = *state;
	void (*sink)(int, const char *) = weft_log_sink;
	const char *seed = getenv("WEFT_SIM_SEED");
	uint64_t first = seed ? strtoull(seed, NULL, 0) : 0;

	test_transport = "sim";
	for (uint64_t s = first; s < first + (seed ? 1 : SEEDS); s++) {
		test_tls = s % 4 == 3;
		assert_int_equal(rt_sim_run(s, NULL, *run, NULL), 0);
	}
	test_tls = false;
	weft_log_sink = sink;
}

#define TEST(f, how)                                                                     \
	{                                                                                \
		.name = #f, .test_func = (how), .initial_state = &(int (*[])(void *))    \
		{                                                                        \
			f                                                                \
		}                                                                        \
	}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(the_first_address_is_used_of_those_that_work, run_simulated),
		TEST(what_is_not_reached_is_passed_over, run_simulated),
		TEST(who_is_there_first_uses_the_first_address_of_who_comes,
			run_simulated),
		TEST(a_link_comes_back_over_the_address_that_is_left, run_simulated),
		TEST(an_attempt_in_vain_is_told_once_with_all_addresses, run_simulated),
		TEST(who_does_not_fit_is_passed_over, run_simulated),
		TEST(where_none_fits_the_refusal_is_told, run_simulated),
		TEST(an_address_that_is_taken_is_tried_again, run_simulated),
		TEST(all_addresses_answer, run_real),
		TEST(one_address_of_this_machine_is_enough, run_real),
		TEST(lists_that_are_wrong_are_refused, run_real),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
