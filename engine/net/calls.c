/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls between nodes, on messages alone.
 *
 * A caller's struct waits in the list of its node. It enters the list before the request is sent,
 * and leaves it when the answer has come or the link has ended. It is on the caller's stack, so
 * every access to it is made under `lock`. Requests wait for a server task in a ring per node and
 * class. A node has at most NET_CALLS_MAX requests out, and the requests of a link that has ended
 * are dropped. So only a peer that breaks this rule can fill a ring.
 *
 * No deadlock: a call waits, to be sent, taken or served, for calls of its own class. Their servers
 * wait for calls of earlier classes only. No call waits for one of a later class.
 */
#include "engine/net/calls.h"

#include <errno.h>
#include <string.h>

#include "engine/rt/rt.h"

#define SERVER_TASKS 8u /* of each class */

/* Calls of each class to one node that wait for an answer, at most. */
#define LOCAL_OUT 24u
#define PAGES_OUT 8u
#define SPACE_OUT 8u
#define TREE_OUT  8u
#define SYNC_OUT  16u
_Static_assert(LOCAL_OUT + PAGES_OUT + SPACE_OUT + TREE_OUT + SYNC_OUT == NET_CALLS_MAX,
	"calls to one node");

/* The body of either message. */
struct call_body {
	uint16_t kind;
	uint16_t reserved;
	int32_t result;
	uint64_t words[NET_CALL_WORDS];
};
_Static_assert(sizeof(struct call_body) == NET_BODY_BYTES, "the body of a call");

/* A call that waits for an answer. */
struct caller {
	struct caller *next;
	enum net_call_class class;
	uint32_t request;
	_Atomic uint32_t done;
	int result;
	uint64_t *answer;
};

struct call_node {
	struct net_peer *peer;
	bool up;
	struct caller *callers;
	unsigned out[NET_CALL_CLASSES];
	/* requests that wait to be served: rings; and the number of all */
	struct ask_ring {
		struct net_message ask[NET_CALLS_MAX];
		unsigned first, count;
	} ring[NET_CALL_CLASSES];
	unsigned asks;
};

/* The state of one class. Its server tasks share it. */
struct call_class {
	struct net_calls *calls;
	enum net_call_class class;
	struct rt_cond asked;
	unsigned turn; /* the node that was served last: the next one comes first */
};

struct net_calls {
	struct net *net;
	struct rt_mutex lock; /* a leaf; for all below */
	struct rt_cond room, served;
	uint32_t next_request;
	bool stopping;
	struct call_class class[NET_CALL_CLASSES];
	struct {
		net_call_server serve;
		void *owner;
		unsigned serving;
	} server[NET_CALL_KINDS];
	struct rt_task *task[NET_CALL_CLASSES * SERVER_TASKS];
	unsigned tasks;
	struct call_node *node[NET_NODES_MAX];
};

static struct call_body *body_of(struct net_message *m)
{
	return (struct call_body *)m->body;
}

static const unsigned out_max[NET_CALL_CLASSES] = {
	[NET_CALLS_LOCAL] = LOCAL_OUT,
	[NET_CALLS_PAGES] = PAGES_OUT,
	[NET_CALLS_SPACE] = SPACE_OUT,
	[NET_CALLS_TREE] = TREE_OUT,
	[NET_CALLS_SYNC] = SYNC_OUT,
};

enum net_call_class net_call_class_of(enum net_call_kind kind)
{
	switch (kind) {
	case NET_CALL_SYNC:
		return NET_CALLS_SYNC;
	case NET_CALL_TREE_SPLIT:
	case NET_CALL_TREE_NEAR:
		return NET_CALLS_TREE;
	case NET_CALL_LEAF:
		return NET_CALLS_PAGES;
	case NET_CALL_SPACE_GIVE:
	case NET_CALL_SPACE_STAT:
		return NET_CALLS_SPACE;
	default: /* unknown kinds, too */
		return NET_CALLS_LOCAL;
	}
}

static int serve_ping(void *owner, unsigned from, const uint64_t ask[NET_CALL_WORDS],
	uint64_t answer[NET_CALL_WORDS])
{
	memcpy(answer, ask, sizeof(uint64_t) * NET_CALL_WORDS);
	return 0;
}

/* ---- serving ---------------------------------------------------------------------------- */

/* Under the lock. Takes the next request of the class, of one node after the other. */
static bool ask_take(struct call_class *of, struct net_message *out)
{
	for (unsigned i = 1; i <= NET_NODES_MAX; i++) {
		unsigned id = (of->turn + i) % NET_NODES_MAX;
		struct call_node *n = of->calls->node[id];
		struct ask_ring *r = n ? &n->ring[of->class] : NULL;

		if (!r || !r->count)
			continue;
		*out = r->ask[r->first];
		r->first = (r->first + 1) % NET_CALLS_MAX;
		r->count--;
		n->asks--;
		of->turn = id;
		return true;
	}
	return false;
}

/* Under the lock, which is dropped meanwhile. */
static int ask_serve(struct net_calls *c, const struct net_message *ask,
	uint64_t answer[NET_CALL_WORDS])
{
	struct net_message copy = *ask;
	const struct call_body *b = body_of(&copy);
	net_call_server serve;
	void *owner;
	int rc;

	if (b->kind == NET_CALL_NONE || b->kind >= NET_CALL_KINDS)
		return -EOPNOTSUPP;
	serve = c->server[b->kind].serve;
	owner = c->server[b->kind].owner;
	if (!serve)
		return -EAGAIN;
	c->server[b->kind].serving++;
	rt_mutex_unlock(&c->lock);
	rc = serve(owner, copy.sender, b->words, answer);
	rt_mutex_lock(&c->lock);
	if (--c->server[b->kind].serving == 0)
		rt_cond_broadcast(&c->served);
	return rc;
}

/* Waits for room if there is none. Returns 0, or an error if there is no link. */
static int send_waiting(struct net_peer *peer, const struct net_message *m)
{
	int rc;

	while ((rc = net_send(peer, m, 0)) == -EAGAIN) {
		rc = net_wait_room(peer, RT_FOREVER);
		if (rc)
			return rc;
	}
	return rc;
}

static void server_main(void *arg)
{
	struct call_class *of = (struct call_class *)arg;
	struct net_calls *c = of->calls;
	struct net_message ask;

	rt_mutex_lock(&c->lock);
	while (!c->stopping) {
		struct net_message answer = {.type = NET_CALL_ANSWER};
		struct net_peer *peer;

		if (!ask_take(of, &ask)) {
			rt_cond_wait(&of->asked, &c->lock, RT_FOREVER);
			continue;
		}
		peer = c->node[ask.sender]->peer;
		answer.request = ask.request;
		body_of(&answer)->kind = body_of(&ask)->kind;
		body_of(&answer)->result = ask_serve(c, &ask, body_of(&answer)->words);
		rt_mutex_unlock(&c->lock);
		(void)send_waiting(peer, &answer); /* without a link no node waits for it */
		rt_mutex_lock(&c->lock);
	}
	rt_mutex_unlock(&c->lock);
}

void net_calls_serve(
	struct net_calls *c, enum net_call_kind kind, net_call_server serve, void *owner)
{
	WEFT_ASSERT(kind > NET_CALL_NONE && kind < NET_CALL_KINDS);
	rt_mutex_lock(&c->lock);
	c->server[kind].serve = serve;
	c->server[kind].owner = owner;
	while (!serve && c->server[kind].serving)
		rt_cond_wait(&c->served, &c->lock, RT_FOREVER);
	rt_mutex_unlock(&c->lock);
}

/* ---- messages --------------------------------------------------------------------------- */

/* Under the lock. NULL: no memory. */
static struct call_node *node_of(struct net_calls *c, struct net_peer *peer)
{
	struct call_node **n = &c->node[net_peer_node(peer)];

	if (!*n) {
		*n = rt_alloc(sizeof(**n));
		if (*n)
			(*n)->peer = peer;
	}
	return *n;
}

/* Under the lock. Takes the call out of its list, and wakes the caller. */
static void caller_end(
	struct net_calls *c, struct call_node *n, struct caller **at, int result)
{
	struct caller *w = *at;

	*at = w->next;
	n->out[w->class]--;
	w->result = result;
	atomic_store_explicit(&w->done, 1, memory_order_release);
	net_wake(c->net, &w->done, 1);
	rt_cond_broadcast(&c->room);
}

static void node_end_all(struct net_calls *c, struct call_node *n, int result)
{
	while (n->callers)
		caller_end(c, n, &n->callers, result);
}

static void take_answer(struct net_calls *c, struct call_node *n, struct net_message *m)
{
	struct caller **at = &n->callers;

	while (*at && (*at)->request != m->request)
		at = &(*at)->next;
	if (!*at)
		return; /* of a link that has ended: its caller has been woken */
	memcpy((*at)->answer, body_of(m)->words, sizeof(body_of(m)->words));
	/* an error is -errno, even if the peer sends another value */
	caller_end(c, n, at, MAX(MIN(body_of(m)->result, 0), -4095));
}

/* Returns false if the node has more requests than it may. */
static bool take_ask(struct net_calls *c, struct call_node *n, struct net_message *m)
{
	enum net_call_class class =
		net_call_class_of((enum net_call_kind)body_of(m)->kind);
	struct ask_ring *r = &n->ring[class];

	if (n->asks == NET_CALLS_MAX)
		return false;
	r->ask[(r->first + r->count++) % NET_CALLS_MAX] = *m;
	n->asks++;
	rt_cond_signal(&c->class[class].asked);
	return true;
}

/* No node waits for the answers. */
static void asks_drop(struct call_node *n)
{
	for (unsigned i = 0; i < NET_CALL_CLASSES; i++)
		n->ring[i].count = 0;
	n->asks = 0;
}

static void on_call_message(void *owner, struct net_peer *peer, const struct net_message *m)
{
	struct net_calls *c = owner;
	struct net_message copy = *m;
	struct call_node *n;
	bool fine = true;

	rt_mutex_lock(&c->lock);
	n = node_of(c, peer);
	if (n && m->type == NET_CALL_ANSWER)
		take_answer(c, n, &copy);
	else if (n)
		fine = take_ask(c, n, &copy);
	rt_mutex_unlock(&c->lock);
	if (!n || !fine) {
		weft_log(3, "node %u: %s; the link is cut", net_peer_node(peer),
			n ? "it sends more requests at a time than it may"
			  : "no memory for its calls");
		net_cut(peer, n ? -EPROTO : -ENOMEM);
	}
}

void net_calls_event(
	struct net_calls *c, struct net_peer *peer, const struct net_event *event)
{
	struct call_node *n;

	if (event->kind == NET_LINK_REFUSED)
		return;
	rt_mutex_lock(&c->lock);
	n = node_of(c, peer);
	if (n) {
		n->up = event->kind == NET_LINK_UP;
		if (!n->up) {
			asks_drop(n);
			node_end_all(c, n, -ECONNRESET);
			rt_cond_broadcast(&c->room);
		}
	}
	rt_mutex_unlock(&c->lock);
}

/* ---- calling ---------------------------------------------------------------------------- */

/* Under the lock. Waits until the class has room. */
static int caller_begin(struct net_calls *c, struct call_node *n, struct caller *w)
{
	while (!c->stopping && n->up && n->out[w->class] == out_max[w->class])
		rt_cond_wait(&c->room, &c->lock, RT_FOREVER);
	if (c->stopping)
		return -ESHUTDOWN;
	if (!n->up)
		return -ENOTCONN;
	w->request = ++c->next_request;
	w->next = n->callers;
	n->callers = w;
	n->out[w->class]++;
	return 0;
}

/* The request was not sent. The call ends now, unless it has ended already. */
static void caller_fail(
	struct net_calls *c, struct call_node *n, struct caller *w, int result)
{
	struct caller **at = &n->callers;

	rt_mutex_lock(&c->lock);
	while (*at && *at != w)
		at = &(*at)->next;
	if (*at)
		caller_end(c, n, at, result);
	rt_mutex_unlock(&c->lock);
}

static void ask_send(struct net_calls *c, struct call_node *n, struct net_peer *peer,
	struct caller *w, const struct net_message *m)
{
	if (send_waiting(peer, m))
		caller_fail(c, n, w, -ENOTCONN);
}

int net_call(struct net_calls *c, unsigned node, enum net_call_kind kind,
	const uint64_t ask[NET_CALL_WORDS], uint64_t answer[NET_CALL_WORDS])
{
	struct net_message m = {.type = NET_CALL_ASK};
	struct caller w = {.class = net_call_class_of(kind), .answer = answer};
	struct net_peer *peer = NULL;
	struct call_node *n;
	int rc;

	if (node >= NET_NODES_MAX)
		return -ENOTCONN;
	body_of(&m)->kind = (uint16_t)kind;
	memcpy(body_of(&m)->words, ask, sizeof(body_of(&m)->words));
	rt_mutex_lock(&c->lock);
	n = c->node[node];
	rc = c->stopping ? -ESHUTDOWN : -ENOTCONN;
	if (n) {
		peer = n->peer;
		rc = caller_begin(c, n, &w);
	}
	m.request = w.request;
	rt_mutex_unlock(&c->lock);
	if (rc)
		return rc;
	ask_send(c, n, peer, &w, &m);
	rt_task_needs(RT_NEEDS_ANSWER, node);
	while (!atomic_load_explicit(&w.done, memory_order_acquire))
		net_wait(c->net, peer, &w.done, 0, RT_FOREVER);
	rt_task_needs(RT_NEEDS_NOTHING, 0);
	/* the task that ended the call may still hold the lock */
	rt_mutex_lock(&c->lock);
	rt_mutex_unlock(&c->lock);
	return w.result;
}

/* ---- opening and closing ---------------------------------------------------------------- */

static int class_open(struct net_calls *c, enum net_call_class class)
{
	struct call_class *of = &c->class[class];
	int rc = 0;

	of->calls = c;
	of->class = class;
	for (unsigned i = 0; i < SERVER_TASKS && !rc; i++) {
		rc = rt_task_spawn(&c->task[c->tasks], "calls", server_main, of);
		c->tasks += !rc;
	}
	return rc;
}

int net_calls_open(struct net_calls **out, struct net *net)
{
	struct net_calls *c = rt_alloc(sizeof(*c));
	int rc;

	if (!c)
		return -ENOMEM;
	c->net = net;
	c->server[NET_CALL_PING].serve = serve_ping;
	rc = net_handle(net, NET_CALL_ASK, NET_CALL_ANSWER + 1, on_call_message, c);
	for (unsigned i = 0; i < NET_CALL_CLASSES && !rc; i++)
		rc = class_open(c, (enum net_call_class)i);
	if (rc) {
		net_calls_stop(c);
		net_calls_close(c);
		return rc;
	}
	*out = c;
	return 0;
}

void net_calls_stop(struct net_calls *c)
{
	rt_mutex_lock(&c->lock);
	c->stopping = true;
	for (unsigned i = 0; i < NET_NODES_MAX; i++)
		if (c->node[i])
			node_end_all(c, c->node[i], -ESHUTDOWN);
	rt_cond_broadcast(&c->room);
	for (unsigned i = 0; i < NET_CALL_CLASSES; i++)
		rt_cond_broadcast(&c->class[i].asked);
	rt_mutex_unlock(&c->lock);
	for (unsigned i = 0; i < c->tasks; i++)
		rt_task_join(c->task[i]);
	c->tasks = 0;
}

void net_calls_close(struct net_calls *c)
{
	for (unsigned i = 0; i < NET_NODES_MAX; i++)
		rt_free(c->node[i]);
	rt_free(c);
}
