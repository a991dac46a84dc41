/* SPDX-License-Identifier: Apache-2.0 */
/* Streams and pollers of both runtimes, and what the simulated network does to them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/rt/rt_sim.h"
#include "engine/rt/rt_socket.h"

#define CHECK WEFT_ASSERT
#define MS    1000000ull
#define SEEDS 40u

struct ends {
	struct rt_socket *listener, *a, *b; /* a connects */
};

static void connect_pair(struct ends *e)
{
	struct rt_address at;
	char name[128];
	int r;

	CHECK(rt_address_resolve(&at, rt_simulated ? "here:0" : "127.0.0.1:0", NULL) ==
		0);
	CHECK(rt_socket_listen(&e->listener, &at, NULL) == 0);
	rt_socket_name(e->listener, name, sizeof(name));
	CHECK(rt_address_resolve(&at, name, NULL) == 0);
	CHECK(rt_socket_connect(&e->a, &at) == 0);
	while ((r = rt_socket_accept(&e->b, e->listener)) == -EAGAIN)
		rt_sleep_ns(MS / 10);
	CHECK(r == 0);
	while ((r = rt_socket_connected(e->a)) == -EINPROGRESS)
		rt_sleep_ns(MS / 10);
	CHECK(r == 0);
}

static void close_pair(struct ends *e)
{
	rt_socket_close(e->a);
	rt_socket_close(e->b);
	rt_socket_close(e->listener);
}

/* ---- on both ----------------------------------------------------------------------------- */

#define STREAM_BYTES 3000000u

static void send_stream(void *arg)
{
	struct rt_socket *s = arg;
	static uint8_t bytes[10000];

	for (uint32_t at = 0; at < STREAM_BYTES;) {
		struct iovec iov[2];
		ssize_t n;

		for (uint32_t i = 0; i < sizeof(bytes); i++)
			bytes[i] = (uint8_t)((at + i) * 7 >> 3);
		iov[0] = (struct iovec){bytes, 100};
		iov[1] = (struct iovec){
			bytes + 100, MIN(sizeof(bytes), STREAM_BYTES - at) - 100};
		n = rt_socket_send(s, iov, 2);
		CHECK(n > 0 || n == -EAGAIN);
		if (n > 0)
			at += (uint32_t)n;
		else
			rt_sleep_ns(MS / 10);
	}
	rt_socket_shutdown(s);
}

/* Through the poller, in pieces of any size, to the end. */
static int bytes_arrive_in_order(void *arg)
{
	struct rt_poller *p;
	struct rt_task *task;
	struct ends e;
	uint32_t at = 0;
	int tag;

	connect_pair(&e);
	CHECK(rt_poller_open(&p) == 0);
	CHECK(rt_poller_add(p, e.b, RT_READABLE, &tag) == 0);
	CHECK(rt_task_spawn(&task, "sender", send_stream, e.a) == 0);
	for (;;) {
		static uint8_t bytes[7777];
		struct rt_ready ready[4];
		struct iovec iov = {bytes, sizeof(bytes)};
		ssize_t n;

		if (rt_poller_wait(p, ready, 4, RT_FOREVER) == 0)
			continue;
		CHECK(ready[0].tag == &tag);
		n = rt_socket_recv(e.b, &iov, 1);
		if (n == 0)
			break;
		CHECK(n > 0 || n == -EAGAIN);
		for (ssize_t i = 0; i < n; i++, at++)
			CHECK(bytes[i] == (uint8_t)(at * 7 >> 3));
	}
	CHECK(at == STREAM_BYTES);
	rt_task_join(task);
	rt_poller_remove(p, e.b);
	rt_poller_close(p);
	close_pair(&e);
	return 0;
}

static void kick_both(void *arg)
{
	void **what = arg;

	rt_sleep_ns(2 * MS);
	rt_socket_kick(what[0]);
	rt_poller_kick(what[1]);
}

static int kicks_and_deadlines_end_waits(void *arg)
{
	struct rt_ready ready[2];
	struct rt_poller *p;
	struct rt_task *task;
	struct ends e;
	void *what[2];
	int tag;

	connect_pair(&e);
	CHECK(rt_poller_open(&p) == 0);
	CHECK(rt_poller_add(p, e.a, RT_READABLE, &tag) == 0);
	while (rt_socket_wait(e.b, rt_now_ns() + MS) == 0)
		;
	CHECK(rt_poller_wait(p, ready, 2, rt_now_ns() + MS) == 0);
	what[0] = e.b;
	what[1] = p;
	CHECK(rt_task_spawn(&task, "kicker", kick_both, what) == 0);
	CHECK(rt_socket_wait(e.b, RT_FOREVER) == 0);
	CHECK(rt_poller_wait(p, ready, 2, RT_FOREVER) == 0);
	rt_task_join(task);
	/* A kick that nobody waits for is not lost. */
	rt_poller_kick(p);
	CHECK(rt_poller_wait(p, ready, 2, RT_FOREVER) == 0);
	/* Writable, then not asked any more. */
	rt_poller_change(p, e.a, RT_WRITABLE, &tag);
	CHECK(rt_poller_wait(p, ready, 2, RT_FOREVER) == 1 &&
		ready[0].events == RT_WRITABLE);
	rt_poller_change(p, e.a, 0, &tag);
	CHECK(rt_poller_wait(p, ready, 2, rt_now_ns() + MS) == 0);
	/* The end is told in any case. */
	rt_socket_shutdown(e.a);
	while (rt_poller_wait(p, ready, 2, RT_FOREVER) == 0)
		;
	CHECK(ready[0].events & RT_HANGUP);
	rt_poller_remove(p, e.a);
	rt_poller_close(p);
	close_pair(&e);
	return 0;
}

static int bad_addresses_are_told(void *arg)
{
	static const char *const bad[] = {"", "host", ":", "host:", ":80", "[::1:80"};
	struct rt_address at;

	for (unsigned i = 0; i < ARRAY_SIZE(bad) && !rt_simulated; i++) {
		struct weft_error err = {0};

		CHECK(rt_address_resolve(&at, bad[i], &err) < 0);
		CHECK(err.code < 0 && err.text[0]);
	}
	return 0;
}

/* The two who may wait for a socket: what arrives wakes one, and is never forgotten. */
static _Atomic uint32_t taken, waits;

static void take_one(struct rt_socket *s)
{
	uint8_t byte;
	struct iovec iov = {&byte, 1};
	ssize_t n;

	while ((n = rt_socket_recv(s, &iov, 1)) == 1) {
		atomic_fetch_add(&taken, 1);
		rt_wake(&taken, 1);
	}
	CHECK(n == -EAGAIN);
}

static void wait_alone(void *arg)
{
	while (atomic_load(&taken) < 3000) {
		atomic_fetch_add(&waits, 1);
		rt_socket_wait(arg, rt_now_ns() + rt_random() % (MS / 2));
		take_one(arg);
		if (rt_random() % 4 == 0)
			rt_yield();
	}
}

static int two_waiters_forget_nothing(void *arg)
{
	struct rt_ready ready[2];
	struct rt_poller *p;
	struct rt_task *task;
	struct ends e;
	uint8_t byte = 1;
	struct iovec iov = {&byte, 1};
	int tag;

	connect_pair(&e);
	atomic_store(&taken, 0);
	CHECK(rt_poller_open(&p) == 0);
	CHECK(rt_poller_add(p, e.b, RT_READABLE, &tag) == 0);
	CHECK(rt_task_spawn(&task, "alone", wait_alone, e.b) == 0);
	for (uint32_t i = 0; i < 3000; i++) {
		CHECK(rt_socket_send(e.a, &iov, 1) == 1);
		while (atomic_load(&taken) == i)
			if (rt_poller_wait(p, ready, 2, rt_now_ns() + MS))
				take_one(e.b);
	}
	rt_task_join(task);
	CHECK(taken == 3000);
	rt_poller_remove(p, e.b);
	rt_poller_close(p);
	close_pair(&e);
	return 0;
}

/* ---- the simulated network ------------------------------------------------------------------- */

static void echo_one(void *arg)
{
	struct rt_address at;
	struct rt_socket *listener, *s;
	uint8_t byte;
	struct iovec iov = {&byte, 1};

	CHECK(rt_address_resolve(&at, "echo:1", NULL) == 0);
	CHECK(rt_socket_listen(&listener, &at, NULL) == 0);
	while (rt_socket_accept(&s, listener) == -EAGAIN)
		rt_sleep_ns(MS);
	for (;;) {
		ssize_t n = rt_socket_recv(s, &iov, 1);

		if (n == 1)
			CHECK(rt_socket_send(s, &iov, 1) == 1);
		else if (n == -EAGAIN)
			rt_socket_wait(s, RT_FOREVER);
		else
			rt_sleep_ns(1000 * MS);
	}
}

static ssize_t answer(struct rt_socket *s, uint64_t patience_ns)
{
	uint64_t until = rt_now_ns() + patience_ns;
	uint8_t byte;
	struct iovec iov = {&byte, 1};
	ssize_t n;

	while ((n = rt_socket_recv(s, &iov, 1)) == -EAGAIN && rt_now_ns() < until)
		rt_socket_wait(s, until);
	return n;
}

static ssize_t ask(struct rt_socket *s, uint64_t patience_ns)
{
	uint8_t byte = 5;
	struct iovec iov = {&byte, 1};
	ssize_t n = rt_socket_send(s, &iov, 1);

	return n == 1 ? answer(s, patience_ns) : n;
}

static int blocks_cuts_and_crashes(void *arg)
{
	unsigned node = rt_sim_node_new("echo");
	struct rt_socket *s;
	struct rt_address at;
	ssize_t n;

	CHECK(rt_sim_spawn_on(node, "echo", echo_one, NULL) == 0);
	rt_sleep_ns(MS);
	CHECK(rt_address_resolve(&at, "echo:1", NULL) == 0);
	CHECK(rt_socket_connect(&s, &at) == 0);
	while (rt_socket_connected(s) == -EINPROGRESS)
		rt_sleep_ns(MS);
	CHECK(ask(s, 100 * MS) == 1);
	for (unsigned direction = 0; direction < 2; direction++) {
		rt_sim_net_block(direction ? 0 : node, direction ? node : 0, true);
		CHECK(ask(s, 1000 * MS) == -EAGAIN);
		rt_sim_net_block(direction ? 0 : node, direction ? node : 0, false);
		/* What was held arrives. */
		CHECK(answer(s, 100 * MS) == 1 && ask(s, 100 * MS) == 1);
	}
	if (*(uint64_t *)arg % 2) {
		rt_sim_net_cut(0, node);
		CHECK(ask(s, MS) == -EPIPE);
	} else {
		rt_sim_node_kill(node);
		n = ask(s, 1000 * MS);
		CHECK(n == -ECONNRESET || n == -EPIPE || n == -EAGAIN);
		rt_socket_close(s);
		CHECK(rt_socket_connect(&s, &at) == 0);
		rt_sleep_ns(100 * MS);
		CHECK(rt_socket_connected(s) == -ECONNREFUSED);
	}
	rt_socket_close(s);
	return 0;
}

static void both(int (*run)(void *))
{
	CHECK(run(NULL) == 0);
	for (uint64_t seed = 0; seed < SEEDS && !getenv("WEFT_NO_SIM"); seed++)
		assert_int_equal(rt_sim_run(seed, NULL, run, NULL), 0);
}

static void streams_keep_order(void **state)
{
	both(bytes_arrive_in_order);
}

static void waits_end(void **state)
{
	both(kicks_and_deadlines_end_waits);
}

static void addresses(void **state)
{
	both(bad_addresses_are_told);
}

static void exclusive_waiters(void **state)
{
	both(two_waiters_forget_nothing);
}

static void a_network_that_fails(void **state)
{
	for (uint64_t seed = 0; seed < SEEDS && !getenv("WEFT_NO_SIM"); seed++)
		assert_int_equal(
			rt_sim_run(seed, NULL, blocks_cuts_and_crashes, &seed), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(streams_keep_order),
		cmocka_unit_test(waits_end),
		cmocka_unit_test(addresses),
		cmocka_unit_test(exclusive_waiters),
		cmocka_unit_test(a_network_that_fails),
	};

	rt_real_start();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
