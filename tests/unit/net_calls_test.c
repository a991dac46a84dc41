/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls between two nodes: many at a time, both ways, with answers that take their time,
 * links that are cut meanwhile, and ends that stop. Each gets its own answer or the reason
 * why there is none.
 */
#include "engine/net/calls.h"
#include "engine/rt/rt_sim.h"
#include "tests/sim/seeds.h"
#include "tests/unit/net_fixture.h"

#define SEEDS   24u
#define CALLERS (NET_CALLS_MAX + 8u) /* some have to wait for their turn */
#define EACH    12u

struct side {
	struct end *end;
	struct net_calls *calls;
	unsigned other;
	_Atomic uint32_t served, most, now, answered, broken, refused;
	_Atomic bool stopped;
	struct rt_task *task[CALLERS];
	unsigned each;
	bool slow;
};

static const char *test_listen_address(void)
{
	return rt_simulated ? "sim:0" : "127.0.0.1:0";
}

static uint64_t answer_of(const uint64_t *ask, unsigned from)
{
	return ask[0] * 31 + ask[4] + from;
}

static int serve_sum(void *owner, unsigned from, const uint64_t ask[NET_CALL_WORDS],
	uint64_t answer[NET_CALL_WORDS])
{
	struct side *s = (struct side *)owner;
	uint32_t now = atomic_fetch_add(&s->now, 1) + 1;

	CHECK(from == s->other);
	if (now > atomic_load(&s->most))
		atomic_store(&s->most, now);
	if (s->slow)
		rt_sleep_ns(rt_random() % MS);
	for (unsigned i = 0; i < NET_CALL_WORDS; i++)
		CHECK(answer[i] == 0);
	answer[0] = answer_of(ask, from);
	atomic_fetch_sub(&s->now, 1);
	atomic_fetch_add(&s->served, 1);
	return ask[0] % 7 ? 0 : -ENODATA;
}

static void side_message(
	struct end *end, struct net_peer *peer, const struct net_message *m)
{
	CHECK(m->type < NET_CALL_ASK); /* the others are the calls' */
}

static void side_event(void *owner, struct net_peer *peer, const struct net_event *event)
{
	struct end *end = (struct end *)owner;
	struct side *s = (struct side *)end->owner;

	net_calls_event(s->calls, peer, event);
	end_event(owner, peer, event);
}

static void side_open(struct side *s, uint16_t node)
{
	*s = (struct side){.end = end_new(node), .other = 3u - node, .each = EACH};
	s->end->owner = s;
	s->end->on_message = side_message;
	s->end->options.handlers.event = side_event;
	end_open(s->end);
	CHECK(net_calls_open(&s->calls, s->end->net) == 0);
}

static void sides_up(struct side *s)
{
	side_open(&s[0], 1);
	side_open(&s[1], 2);
	end_add_peer(s[0].end, 2, NULL);
	end_start(s[0].end);
	end_add_peer(s[1].end, 1, s[0].end->address);
	end_start(s[1].end);
	wait_for(s[0].end, &s[0].end->ups, 1);
	wait_for(s[1].end, &s[1].end->ups, 1);
}

static void side_down(struct side *s)
{
	net_calls_stop(s->calls);
	net_close(s->end->net);
	net_calls_close(s->calls);
	free(s->end);
}

static void call_once(struct side *s, uint64_t number)
{
	uint64_t words[NET_CALL_WORDS] = {number, 1, 2, 3, rt_random()};
	uint64_t wanted = answer_of(words, s->other == 1 ? 2 : 1);
	int rc = net_call(s->calls, s->other, NET_CALL_PING, words, words);

	switch (rc) {
	case 0:
	case -ENODATA:
		CHECK(words[0] == wanted && (rc == 0) == (number % 7 != 0));
		atomic_fetch_add(&s->answered, 1);
		break;
	case -ECONNRESET:
		atomic_fetch_add(&s->broken, 1);
		break;
	case -ENOTCONN:
		atomic_fetch_add(&s->refused, 1);
		rt_sleep_ns(5 * MS);
		break;
	default:
		CHECK(rc == -ESHUTDOWN && atomic_load(&s->stopped));
	}
}

static void caller_main(void *arg)
{
	struct side *s = (struct side *)arg;

	for (unsigned i = 0; i < s->each; i++)
		call_once(s, rt_random() % 1000);
}

static void callers_start(struct side *s)
{
	for (unsigned i = 0; i < CALLERS; i++)
		CHECK(rt_task_spawn(&s->task[i], "caller", caller_main, s) == 0);
}

static void callers_join(struct side *s)
{
	for (unsigned i = 0; i < CALLERS; i++)
		rt_task_join(s->task[i]);
}

/* Without trouble each call is answered, and each side serves several at a time. */
static int all_answered(void *arg)
{
	static struct side s[2];

	sides_up(s);
	for (unsigned i = 0; i < 2; i++) {
		s[i].slow = true;
		net_calls_serve(s[i].calls, NET_CALL_PING, serve_sum, &s[i]);
	}
	callers_start(&s[0]);
	callers_start(&s[1]);
	for (unsigned i = 0; i < 2; i++)
		callers_join(&s[i]);
	for (unsigned i = 0; i < 2; i++) {
		CHECK(s[i].answered == CALLERS * EACH && s[i].served == CALLERS * EACH);
		CHECK(s[i].most > 1);
	}
	side_down(&s[1]);
	side_down(&s[0]);
	return 0;
}

/* Links end under the calls: no caller is left behind, none gets another's answer. */
static int links_end(void *arg)
{
	static struct side s[2];

	sides_up(s);
	for (unsigned i = 0; i < 2; i++) {
		s[i].slow = rt_random() % 2;
		net_calls_serve(s[i].calls, NET_CALL_PING, serve_sum, &s[i]);
	}
	callers_start(&s[0]);
	callers_start(&s[1]);
	for (unsigned cut = 0; cut < 4; cut++) {
		rt_sleep_ns(rt_random() % (3 * MS));
		net_cut(s[cut % 2].end->peer, -ECONNABORTED);
	}
	for (unsigned i = 0; i < 2; i++) {
		callers_join(&s[i]);
		CHECK(s[i].answered + s[i].broken + s[i].refused == CALLERS * EACH);
	}
	side_down(&s[1]);
	side_down(&s[0]);
	return 0;
}

/* An end that stops ends its own calls, and answers none that comes later. */
static int ends_stop(void *arg)
{
	static struct side s[2];

	sides_up(s);
	for (unsigned i = 0; i < 2; i++) {
		s[i].slow = true;
		s[i].each = 1000; /* longer than the test lasts */
		net_calls_serve(s[i].calls, NET_CALL_PING, serve_sum, &s[i]);
	}
	s[1].each = 1;
	callers_start(&s[0]);
	callers_start(&s[1]);
	rt_sleep_ns(rt_random() % (4 * MS));
	atomic_store(&s[0].stopped, true);
	net_calls_stop(s[0].calls);
	callers_join(&s[0]);
	net_close(s[0].end->net);
	callers_join(&s[1]); /* with the end of the link */
	net_calls_close(s[0].calls);
	side_down(&s[1]);
	free(s[0].end);
	return 0;
}

/* Kinds that are not served, and nodes that are not there. */
static int nobody_serves(void *arg)
{
	uint64_t words[NET_CALL_WORDS] = {4};
	static struct side s[2];

	sides_up(s);
	CHECK(net_call(s[0].calls, 2, NET_CALL_PING, words, words) == 0 && words[0] == 4);
	CHECK(net_call(s[0].calls, 2, (enum net_call_kind)4711, words, words) ==
		-EOPNOTSUPP);
	net_calls_serve(s[1].calls, NET_CALL_PING, NULL, NULL);
	CHECK(net_call(s[0].calls, 2, NET_CALL_PING, words, words) == -EAGAIN);
	CHECK(net_call(s[0].calls, 3, NET_CALL_PING, words, words) == -ENOTCONN);
	CHECK(net_call(s[0].calls, UINT32_MAX, NET_CALL_PING, words, words) == -ENOTCONN);
	side_down(&s[1]);
	side_down(&s[0]);
	return 0;
}

/* Who asks more at a time than a node may is cut off; answers to nothing do no harm. */
static int floods_are_cut(void *arg)
{
	struct net_message m = {.type = NET_CALL_ANSWER, .request = 99};
	static struct side s[2];

	sides_up(s);
	for (unsigned i = 0; i < 2; i++) {
		s[i].slow = true;
		net_calls_serve(s[i].calls, NET_CALL_PING, serve_sum, &s[i]);
	}
	CHECK(send_waiting(s[0].end->peer, &m, 0) == 0);
	call_once(&s[0], 5);
	CHECK(s[0].answered == 1 && s[0].end->downs == 0);
	m.type = NET_CALL_ASK;
	m.words[0] = NET_CALL_PING;
	while (atomic_load(&s[0].end->downs) == 0) {
		if (send_waiting(s[0].end->peer, &m, 0))
			rt_sleep_ns(MS);
		rt_yield();
	}
	wait_for(s[0].end, &s[0].end->ups, 2);
	wait_for(s[1].end, &s[1].end->ups, 2);
	call_once(&s[1], 6);
	CHECK(s[1].answered == 1);
	side_down(&s[1]);
	side_down(&s[0]);
	return 0;
}

/* ---- servers that wait ---------------------------------------------------------------- */

static _Atomic uint32_t done_of[NET_CALL_CLASSES];

static void await_class(enum net_call_class class)
{
	for (unsigned i = 0; !atomic_load(&done_of[class]); i++) {
		CHECK(i < 100000);
		rt_sleep_ns(MS / 10);
	}
}

static int serve_local(void *owner, unsigned from, const uint64_t ask[NET_CALL_WORDS],
	uint64_t answer[NET_CALL_WORDS])
{
	atomic_fetch_add(&done_of[NET_CALLS_LOCAL], 1);
	return 0;
}

static int serve_pages(void *owner, unsigned from, const uint64_t ask[NET_CALL_WORDS],
	uint64_t answer[NET_CALL_WORDS])
{
	await_class(NET_CALLS_LOCAL);
	atomic_fetch_add(&done_of[NET_CALLS_PAGES], 1);
	return 0;
}

static int serve_space(void *owner, unsigned from, const uint64_t ask[NET_CALL_WORDS],
	uint64_t answer[NET_CALL_WORDS])
{
	await_class(NET_CALLS_PAGES);
	atomic_fetch_add(&done_of[NET_CALLS_SPACE], 1);
	return 0;
}

static int serve_tree(void *owner, unsigned from, const uint64_t ask[NET_CALL_WORDS],
	uint64_t answer[NET_CALL_WORDS])
{
	await_class(NET_CALLS_SPACE);
	atomic_fetch_add(&done_of[NET_CALLS_TREE], 1);
	return 0;
}

static int serve_sync(void *owner, unsigned from, const uint64_t ask[NET_CALL_WORDS],
	uint64_t answer[NET_CALL_WORDS])
{
	await_class(NET_CALLS_TREE);
	atomic_fetch_add(&done_of[NET_CALLS_SYNC], 1);
	return 0;
}

struct asker {
	struct side *side;
	enum net_call_kind kind;
	struct rt_task *task;
};

static void asker_main(void *arg)
{
	struct asker *a = (struct asker *)arg;
	uint64_t words[NET_CALL_WORDS] = {0};

	CHECK(net_call(a->side->calls, a->side->other, a->kind, words, words) == 0);
}

/*
 * More calls than may be out, or are served at once, of the kinds that wait for others: these
 * are asked last, and served all the same.
 */
static int earlier_classes_are_served(void *arg)
{
	static const enum net_call_kind kinds[] = {NET_CALL_SYNC, NET_CALL_TREE_SPLIT,
		NET_CALL_SPACE_GIVE, NET_CALL_LEAF, NET_CALL_LOG_WRITE};
	static struct asker asker[ARRAY_SIZE(kinds)][CALLERS];
	static struct side s[2];

	for (unsigned i = 0; i < NET_CALL_CLASSES; i++)
		atomic_store(&done_of[i], 0);
	sides_up(s);
	net_calls_serve(s[1].calls, NET_CALL_SYNC, serve_sync, NULL);
	net_calls_serve(s[1].calls, NET_CALL_TREE_SPLIT, serve_tree, NULL);
	net_calls_serve(s[1].calls, NET_CALL_SPACE_GIVE, serve_space, NULL);
	net_calls_serve(s[1].calls, NET_CALL_LEAF, serve_pages, NULL);
	net_calls_serve(s[1].calls, NET_CALL_LOG_WRITE, serve_local, NULL);
	for (unsigned k = 0; k < ARRAY_SIZE(kinds); k++) {
		for (unsigned i = 0; i < CALLERS; i++) {
			asker[k][i] = (struct asker){&s[0], kinds[k], NULL};
			CHECK(rt_task_spawn(&asker[k][i].task, "asker", asker_main,
				      &asker[k][i]) == 0);
		}
		rt_sleep_ns(10 * MS);
		CHECK(kinds[k] == NET_CALL_LOG_WRITE ||
			!atomic_load(&done_of[net_call_class_of(kinds[k])]));
	}
	for (unsigned k = 0; k < ARRAY_SIZE(kinds); k++)
		for (unsigned i = 0; i < CALLERS; i++)
			rt_task_join(asker[k][i].task);
	for (unsigned i = 0; i < NET_CALL_CLASSES; i++)
		CHECK(atomic_load(&done_of[i]) == CALLERS);
	side_down(&s[1]);
	side_down(&s[0]);
	return 0;
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

#define TEST(fn)                                                                         \
	static void test_##fn(void **state)                                              \
	{                                                                                \
		run_one(fn);                                                             \
	}
TEST(all_answered)
TEST(links_end)
TEST(ends_stop)
TEST(nobody_serves)
TEST(floods_are_cut)
TEST(earlier_classes_are_served)

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_all_answered),
		cmocka_unit_test(test_links_end),
		cmocka_unit_test(test_ends_stop),
		cmocka_unit_test(test_nobody_serves),
		cmocka_unit_test(test_floods_are_cut),
		cmocka_unit_test(test_earlier_classes_are_served),
	};
	int failed = 0;

	test_transport = "sim";
	if (!getenv("WEFT_NO_SIM"))
		failed = cmocka_run_group_tests_name(
			"calls, simulated", tests, NULL, NULL);
	if (failed || getenv("WEFT_SIM_SEED"))
		return failed;
	rt_real_start();
	test_transport = "tcp";
	return cmocka_run_group_tests_name("calls, over tcp", tests, NULL, NULL);
}
