/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Locks and other nodes: void records, and messages about locks.
 *
 * For each other node a task, its *courier*, sends messages one after the other. It repeats each
 * until it is answered. So unlocking does not wait for messages, and a node that does not answer
 * does not delay messages to others.
 *
 * Keeps: the number of pending messages is bounded. If there are too many, the node is told to look
 * again at all its waiting requests.
 */
#include "fs/ops/lock_internal.h"

#define COURIER_WAKES 64u
#define PAUSE_MIN_NS  10000000ull
#define PAUSE_MAX_NS  1000000000ull

struct wake {
	uint64_t ino, ticket, incarnation;
};

struct lock_courier {
	struct locks *k;
	unsigned node;
	struct rt_task *task;
	struct rt_mutex lock; /* for all below; a leaf */
	struct rt_cond some;
	bool stopping, hello;
	uint64_t all; /* all requests of that incarnation; 0: not needed */
	unsigned first, count;
	struct wake wake[COURIER_WAKES];
};

/* ---- incarnations of nodes ----------------------------------------------------------------- */

bool lock_void(const struct locks *k, unsigned node, uint64_t incarnation)
{
	if (node == k->node)
		return incarnation != k->incarnation;
	if (!(volume_nodes(k->fs->volume) & 1ull << node) ||
		volume_over(k->fs->volume, node, incarnation))
		return true;
	return incarnation < atomic_load_explicit(&k->heard[node], memory_order_acquire);
}

void lock_heard(struct locks *k, unsigned node, uint64_t incarnation)
{
	uint64_t known;

	if (node >= LOCK_NODES || node == k->node)
		return;
	known = atomic_load_explicit(&k->heard[node], memory_order_relaxed);
	do {
		if (incarnation <= known)
			return;
	} while (!atomic_compare_exchange_weak_explicit(&k->heard[node], &known,
		incarnation, memory_order_acq_rel, memory_order_relaxed));
	(void)lock_wait_wake(k, 0);
}

void ops_locks_heard(struct fs *fs, unsigned node, uint64_t incarnation)
{
	lock_heard(fs->locks, node, incarnation);
}

/* ---- messages sent -------------------------------------------------------------------------- */

/* Gets the next message. Returns false if there is none and none will come. Waits. */
static bool courier_next(struct lock_courier *c, bool *hello, struct wake *wake)
{
	bool any;

	rt_mutex_lock(&c->lock);
	while (!c->hello && !c->all && !c->count && !c->stopping)
		rt_cond_wait(&c->some, &c->lock, RT_FOREVER);
	any = c->hello || c->all || c->count;
	*hello = c->hello;
	if (c->hello) {
		c->hello = false;
	} else if (c->all) {
		*wake = (struct wake){.incarnation = c->all};
		c->all = 0;
	} else if (c->count) {
		*wake = c->wake[c->first];
		c->first = (c->first + 1) % COURIER_WAKES;
		c->count--;
	}
	rt_mutex_unlock(&c->lock);
	return any;
}

static int say_hello(struct lock_courier *c)
{
	uint64_t ask[NET_CALL_WORDS] = {c->k->incarnation}, answer[NET_CALL_WORDS];
	int rc = net_call(
		c->k->fs->volume->calls, c->node, NET_CALL_LOCK_HELLO, ask, answer);

	if (rc == 0)
		lock_heard(c->k, c->node, answer[0]);
	return rc;
}

static int say_wake(struct lock_courier *c, const struct wake *w)
{
	uint64_t ask[NET_CALL_WORDS] = {w->ino, w->ticket, w->incarnation};
	uint64_t answer[NET_CALL_WORDS];

	if (lock_void(c->k, c->node, w->incarnation))
		return 0;
	return net_call(
		c->k->fs->volume->calls, c->node, NET_CALL_LOCK_WAKE, ask, answer);
}

/* Returns true to send the message again. The pause grows while a node does not answer. Closing
 * does not wait for it. */
static bool courier_pause(struct lock_courier *c, uint64_t *pause)
{
	uint64_t until = rt_now_ns() + *pause;
	bool goes_on;

	rt_mutex_lock(&c->lock);
	while (!c->stopping && rt_now_ns() < until)
		rt_cond_wait(&c->some, &c->lock, until);
	goes_on = !c->stopping;
	rt_mutex_unlock(&c->lock);
	*pause = MIN(2 * *pause, PAUSE_MAX_NS);
	return goes_on;
}

static void courier_main(void *arg)
{
	struct lock_courier *c = arg;
	struct wake wake;
	bool hello;

	while (courier_next(c, &hello, &wake)) {
		uint64_t pause = PAUSE_MIN_NS;
		int rc;

		do
			rc = hello ? say_hello(c) : say_wake(c, &wake);
		while ((rc == -ENOTCONN || rc == -ECONNRESET) &&
			courier_pause(c, &pause));
	}
}

static void courier_tell(struct locks *k, unsigned node, const struct wake *w)
{
	struct lock_courier *c = atomic_load(&k->courier[node]);

	if (!c)
		return;
	rt_mutex_lock(&c->lock);
	if (w->ticket && c->count < COURIER_WAKES)
		c->wake[(c->first + c->count++) % COURIER_WAKES] = *w;
	else
		c->all = MAX(c->all, w->incarnation);
	rt_cond_signal(&c->some);
	rt_mutex_unlock(&c->lock);
}

static void wake_one(struct locks *k, unsigned node, const struct wake *w)
{
	if (node == k->node)
		(void)lock_wait_wake(k, w->ticket);
	else
		courier_tell(k, node, w);
}

void lock_nodes_wake(struct locks *k, uint64_t ino, const struct lock_wakes *wakes)
{
	for (unsigned i = 0; i < wakes->count; i++) {
		struct wake w = {ino, wakes->at[i].ticket, wakes->at[i].incarnation};

		wake_one(k, wakes->at[i].node, &w);
	}
	for (unsigned node = 0; node < LOCK_NODES; node++) {
		struct wake w = {.incarnation = wakes->all[node]};

		if (w.incarnation)
			wake_one(k, node, &w);
	}
}

/* ---- messages received ---------------------------------------------------------------------- */

static int serve_hello(void *owner, unsigned from, const uint64_t ask[NET_CALL_WORDS],
	uint64_t answer[NET_CALL_WORDS])
{
	struct locks *k = owner;

	lock_heard(k, from, ask[0]);
	answer[0] = k->incarnation;
	return 0;
}

static int serve_wake(void *owner, unsigned from, const uint64_t ask[NET_CALL_WORDS],
	uint64_t answer[NET_CALL_WORDS])
{
	struct locks *k = owner;

	return ask[2] == k->incarnation ? lock_wait_wake(k, ask[1]) : -ESTALE;
}

static int serve_waits(void *owner, unsigned from, const uint64_t ask[NET_CALL_WORDS],
	uint64_t answer[NET_CALL_WORDS])
{
	struct locks *k = owner;
	struct lock_edge e;

	if (ask[1] != k->incarnation)
		return -ESTALE;
	if (!lock_wait_of(k, ask[0], &e))
		return -ENOENT;
	answer[0] = e.ino;
	answer[1] = e.want.first;
	answer[2] = e.want.last;
	answer[3] = lock_type(&e.want);
	answer[4] = e.ticket;
	return 0;
}

bool lock_nodes_wait_of(
	struct locks *k, const struct disk_lock *owner, struct lock_edge *out)
{
	uint64_t ask[NET_CALL_WORDS] = {owner->owner, owner->incarnation};
	uint64_t answer[NET_CALL_WORDS];

	if (owner->node == k->node)
		return owner->incarnation == k->incarnation &&
		       lock_wait_of(k, owner->owner, out);
	if (!atomic_load(&k->courier[owner->node]) ||
		net_call(k->fs->volume->calls, owner->node, NET_CALL_LOCK_WAITS, ask,
			answer))
		return false;
	out->ino = answer[0];
	out->ticket = answer[4];
	out->want = *owner;
	out->want.first = answer[1];
	out->want.last = answer[2];
	out->want.type = (uint8_t)answer[3];
	return !lock_waits(&out->want) && disk_lock_valid(&out->want);
}

/* ---- opening and closing ------------------------------------------------------------------- */

static int courier_open(struct locks *k, unsigned node)
{
	struct lock_courier *c = rt_alloc(sizeof(*c));
	int rc;

	if (!c)
		return -ENOMEM;
	c->k = k;
	c->node = node;
	c->hello = true;
	rc = rt_task_spawn(&c->task, "lock-courier", courier_main, c);
	if (rc)
		rt_free(c);
	else
		atomic_store(&k->courier[node], c);
	return rc;
}

int lock_nodes_open(struct locks *k)
{
	struct net_calls *calls = k->fs->volume->calls;
	uint64_t others = volume_others(k->fs->volume);
	int rc = 0;

	if (!calls)
		return 0;
	net_calls_serve(calls, NET_CALL_LOCK_HELLO, serve_hello, k);
	net_calls_serve(calls, NET_CALL_LOCK_WAKE, serve_wake, k);
	net_calls_serve(calls, NET_CALL_LOCK_WAITS, serve_waits, k);
	for (unsigned node = 0; node < LOCK_NODES && !rc; node++)
		if (others & 1ull << node && !atomic_load(&k->courier[node]))
			rc = courier_open(k, node);
	return rc;
}

void lock_nodes_stop(struct locks *k)
{
	struct net_calls *calls = k->fs->volume->calls;

	for (unsigned node = 0; node < LOCK_NODES; node++) {
		struct lock_courier *c = atomic_load(&k->courier[node]);

		if (!c)
			continue;
		rt_mutex_lock(&c->lock);
		c->stopping = true;
		rt_cond_broadcast(&c->some);
		rt_mutex_unlock(&c->lock);
		rt_task_join(c->task);
		atomic_store(&k->courier[node], NULL);
		rt_free(c);
	}
	if (!calls)
		return;
	net_calls_serve(calls, NET_CALL_LOCK_HELLO, NULL, NULL);
	net_calls_serve(calls, NET_CALL_LOCK_WAKE, NULL, NULL);
	net_calls_serve(calls, NET_CALL_LOCK_WAITS, NULL, NULL);
}
