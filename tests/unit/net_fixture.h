/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two endpoints that know each other, node 1 listening and node 2 connecting, and what
 * their handlers have seen. Works on both runtimes: failed checks abort.
 */
#ifndef WEFT_TESTS_NET_FIXTURE_H
#define WEFT_TESTS_NET_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/net/net.h"
#include "engine/rt/rt.h"

#define CHECK        WEFT_ASSERT
#define MS           1000000ull
#define REGION_BYTES (4u << 20)
#define REGION_ALL   0u /* every right */
#define REGION_READ  1u /* to be read only */
#define PATIENCE_NS  (20000 * MS)

static const char *test_transport;
static bool test_tls;

enum { MESSAGE_PLAIN = 1, MESSAGE_ASK, MESSAGE_ANSWER, MESSAGE_WRITTEN, MESSAGE_COUNT };

struct end {
	struct net_options options;
	struct net *net;
	struct net_peer *peer;
	uint64_t peer_least;
	uint8_t *memory, *memory_read;
	char address[NET_ADDRESS_BYTES];
	/* What handlers saw: by one task at a time for one peer. */
	_Atomic uint32_t ups, downs, refusals, messages, answers, pauses;
	_Atomic int down_code, refusal_code;
	_Atomic uint32_t refusal_ups; /* `ups` at the last refusal */
	_Atomic uint64_t session;
	bool is_up;
	uint64_t next_sequence;
	void (*on_message)(
		struct end *end, struct net_peer *peer, const struct net_message *m);
	void (*on_down)(struct end *end);
	void (*on_refused)(int code, const char *text);
	void *owner;
	char refusal[512], down_text[128];
};

/* Waits until a counter that a handler raises has got there. */
static inline void wait_for(struct end *e, _Atomic uint32_t *counter, uint32_t wanted)
{
	uint64_t until = rt_now_ns() + PATIENCE_NS;

	for (;;) {
		uint32_t seen = atomic_load(counter);

		if (seen >= wanted)
			return;
		CHECK(net_wait(e->net, e->peer, counter, seen, until) == 0);
	}
}

static inline void raise_counter(struct end *e, _Atomic uint32_t *counter)
{
	atomic_fetch_add(counter, 1);
	net_wake(e->net, counter, INT32_MAX);
}

static inline void end_message(
	void *owner, struct net_peer *peer, const struct net_message *m)
{
	struct end *e = owner;

	CHECK(e->is_up && net_peer_owner(peer) == e);
	CHECK(m->sender == net_peer_node(peer));
	if (e->on_message)
		e->on_message(e, peer, m);
	raise_counter(e, &e->messages);
}

static inline void end_event(
	void *owner, struct net_peer *peer, const struct net_event *event)
{
	struct end *e = owner;

	CHECK(event->text && event->text[0]);
	switch (event->kind) {
	case NET_LINK_UP:
		CHECK(!e->is_up && event->code == 0);
		CHECK(event->session > atomic_load(&e->session));
		e->is_up = true;
		e->next_sequence = 0;
		atomic_store(&e->session, event->session);
		raise_counter(e, &e->ups);
		break;
	case NET_LINK_DOWN:
		CHECK(e->is_up && event->code < 0);
		e->is_up = false;
		if (e->on_down)
			e->on_down(e);
		atomic_store(&e->down_code, event->code);
		snprintf(e->down_text, sizeof(e->down_text), "%s", event->text);
		raise_counter(e, &e->downs);
		break;
	case NET_LINK_REFUSED:
		CHECK(event->code < 0);
		atomic_store(&e->refusal_code, event->code);
		atomic_store(&e->refusal_ups, e->ups);
		snprintf(e->refusal, sizeof(e->refusal), "%s", event->text);
		if (e->on_refused)
			e->on_refused(event->code, event->text);
		raise_counter(e, &e->refusals);
		break;
	}
}

static inline void options_default(
	struct net_options *o, const char *transport, uint16_t node, struct end *owner)
{
	*o = (struct net_options){
		.transport = transport,
		.self = {.incarnation = 1, .node = node, .role = NET_ROLE_STORAGE},
		.handlers = {owner, end_message, end_event},
		.retry_ns = 50 * MS,
		.tls = test_tls,
	};
	memset(o->self.volume_uuid, 0x11, NET_UUID_BYTES);
	memset(o->self.cluster_uuid, 0x22, NET_UUID_BYTES);
	memset(o->self.node_uuid, 0x30 + node, NET_UUID_BYTES);
	memset(o->key, 0x5a, NET_KEY_BYTES);
}

static inline void end_open(struct end *e)
{
	struct weft_error err = {0};
	void *base;

	if (net_open(&e->net, &e->options, &err))
		printf("%s\n", err.text);
	CHECK(err.code == 0);
	CHECK(net_region_create(e->net, REGION_ALL, REGION_BYTES,
		      NET_REMOTE_READ | NET_REMOTE_WRITE | NET_REMOTE_ATOMIC,
		      &base) == 0);
	e->memory = base;
	CHECK(net_region_create(
		      e->net, REGION_READ, REGION_BYTES, NET_REMOTE_READ, &base) == 0);
	e->memory_read = base;
}

static inline void end_start(struct end *e)
{
	struct weft_error err = {0};

	if (net_start(e->net, &err))
		printf("%s\n", err.text);
	CHECK(err.code == 0);
	net_address(e->net, e->address);
}

static inline void end_add_peer(struct end *e, uint16_t node, const char *address)
{
	struct net_peer_options o = {.node = node,
		.incarnation = e->peer_least,
		.address = address,
		.owner = e};

	CHECK(net_peer_add(&e->peer, e->net, &o, NULL) == 0);
}

/* An address that nobody uses; a static string. */
static const char *test_listen_address(void);

static inline struct end *end_new(uint16_t node)
{
	struct end *e = calloc(1, sizeof(*e));

	CHECK(e);
	options_default(&e->options, test_transport, node, e);
	if (node == 1)
		e->options.listen = test_listen_address();
	return e;
}

static inline void end_free(struct end *e)
{
	net_close(e->net);
	free(e);
}

struct pair {
	struct end *a, *b; /* nodes 1 and 2 */
};

/* Both open and started; they connect on their own. */
static inline void pair_start(struct pair *p)
{
	end_open(p->a);
	end_open(p->b);
	end_add_peer(p->a, 2, NULL);
	end_start(p->a);
	end_add_peer(p->b, 1, p->a->address);
	end_start(p->b);
}

static inline struct pair pair_up(void)
{
	struct pair p = {end_new(1), end_new(2)};

	pair_start(&p);
	wait_for(p.a, &p.a->ups, 1);
	wait_for(p.b, &p.b->ups, 1);
	return p;
}

static inline void pair_down(struct pair *p)
{
	end_free(p->b);
	end_free(p->a);
}

/* As a task would: waits where the queue is full. */
static inline int send_waiting(
	struct net_peer *peer, const struct net_message *m, unsigned flags)
{
	int r;

	while ((r = net_send(peer, m, flags)) == -EAGAIN)
		if (net_wait_room(peer, RT_FOREVER))
			return -ENOTCONN;
	return r;
}

static inline int post_waiting(struct net_peer *peer, struct net_op *op, unsigned flags)
{
	int r;

	while ((r = net_post(peer, op, flags)) == -EAGAIN) {
		if (net_wait_room(peer, RT_FOREVER))
			return -ENOTCONN;
		rt_yield();
	}
	return r;
}

static inline int run_op(struct net_peer *peer, struct net_op *op)
{
	int r = post_waiting(peer, op, 0);

	return r ? r : net_op_wait(peer, op);
}

#endif
