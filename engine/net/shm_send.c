/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sending half of a shm link. The caller performs operations at once, on the other end's
 * memory. Messages go into the other end's ring. If it is full, they wait in a bounded queue, in
 * order. The node's task moves them into the ring when there is room.
 */
#include "engine/common/racy.h"
#include "engine/net/shm_internal.h"

#include <errno.h>
#include <string.h>

static struct net_message *queued_at(struct shm_send *s, unsigned i)
{
	return &s->queue[(s->first + i) % NET_QUEUE_MAX];
}

/* ---- the ring ---------------------------------------------------------------------------- */

/*
 * The word changes first, so that a task which is about to sleep there does not. Each process rings
 * once for each sleep. It relies on no other process for that, which may be stopped or killed
 * before it rings.
 */
void shm_ring_node(struct shm_node *node, _Atomic uint64_t *rung)
{
	uint64_t sleep = atomic_load(&node->sleeps);

	if (!shm_sleeps(sleep) ||
		atomic_load_explicit(rung, memory_order_acquire) == sleep)
		return;
	atomic_fetch_add(&node->bell, 1);
	rt_shared_wake(&node->bell, INT32_MAX);
	atomic_store_explicit(rung, sleep, memory_order_release);
}

/* A reader that looks after the fence sees the message. */
static void wake_reader(struct shm_peer *peer)
{
	uint32_t reader;

	peer->line.held = false;
	atomic_thread_fence(memory_order_seq_cst);
	reader = atomic_load(&peer->out->reader);
	if (reader == SHM_AWAKE)
		return;
	if (reader == SHM_ASLEEP) {
		if (!atomic_compare_exchange_strong(
			    &peer->out->reader, &reader, SHM_AWAKE))
			return;
		atomic_fetch_add(&peer->out->bell, 1);
		rt_shared_wake(&peer->out->bell, INT32_MAX);
		return;
	}
	shm_ring_node(peer->node, &peer->rung);
}

/* Under send_lock. Returns false if there is no room. The other end then rings the node's task when
 * there is room. That may be at once, so the task must find `waiting` set, and the lock taken. */
static bool put_message(struct shm_peer *peer, const struct net_message *m)
{
	struct shm_send *s = &peer->send;
	uint64_t used =
		s->tail - atomic_load_explicit(&peer->out->head, memory_order_acquire);

	if (used >= SHM_SLOTS) {
		atomic_store(&s->waiting, true);
		atomic_store(&peer->out->full, 1);
		used = s->tail - atomic_load(&peer->out->head);
	}
	if (used > SHM_SLOTS) {
		shm_cut_locked(&peer->line, -EPROTO);
		return false;
	}
	if (used == SHM_SLOTS)
		return false;
	peer->out->messages[s->tail % SHM_SLOTS] = *m;
	net_before_send(&peer->line.base);
	atomic_store_explicit(&peer->out->tail, ++s->tail, memory_order_release);
	net_count(&peer->line.base.counters.messages_out, 1);
	net_count(&peer->line.base.counters.sends_out, 1);
	return true;
}

/* ---- operations ------------------------------------------------------------------------- */

static uint8_t *remote_memory(const struct shm_peer *peer, const struct net_op *op)
{
	static const unsigned wanted[] = {
		[NET_WRITE] = NET_REMOTE_WRITE,
		[NET_READ] = NET_REMOTE_READ,
		[NET_CAS] = NET_REMOTE_ATOMIC,
		[NET_FAA] = NET_REMOTE_ATOMIC,
	};
	bool atomic = op->kind == NET_CAS || op->kind == NET_FAA;
	const struct net_region *r;

	if (op->region >= NET_REGIONS_MAX)
		return NULL;
	r = &peer->remote[op->region];
	if (!r->base || !wire_access_check(r->bytes, r->rights, wanted[op->kind],
				op->offset, atomic ? 8 : op->length))
		return NULL;
	return r->base + op->offset;
}

static void access_memory(struct net_op *op, uint8_t *at)
{
	switch (op->kind) {
	case NET_WRITE:
		racy_copy(at, op->local, op->length);
		break;
	case NET_READ:
		racy_copy(op->local, at, op->length);
		break;
	case NET_FAA:
		op->value =
			__atomic_fetch_add((uint64_t *)at, op->operand, __ATOMIC_SEQ_CST);
		break;
	case NET_CAS:
		op->value = op->compare;
		__atomic_compare_exchange_n((uint64_t *)at, &op->value, op->operand,
			false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
		break;
	}
}

static void count_op(struct shm_peer *peer, const struct net_op *op)
{
	struct net_peer_counters *c = &peer->line.base.counters;

	if (op->kind == NET_WRITE) {
		net_count(&c->writes_out, 1);
		net_count(&c->bytes_out, op->length);
	} else if (op->kind == NET_READ) {
		net_count(&c->reads_out, 1);
		net_count(&c->bytes_in, op->length);
	} else {
		net_count(&c->atomics_out, 1);
	}
}

/* The owner closes its memory, and then waits for earlier accesses. The order of the two words
 * makes this safe. */
static int perform_op(struct shm_peer *peer, struct net_op *op)
{
	uint8_t *at = remote_memory(peer, op);
	int rc = 0;

	if (!at)
		return -EACCES;
	atomic_fetch_add(&peer->out->busy, 1);
	if (atomic_load(&peer->out->open)) {
		access_memory(op, at);
		count_op(peer, op);
	} else {
		rc = -ECONNRESET;
	}
	atomic_fetch_sub(&peer->out->busy, 1);
	return rc;
}

/* ---- messages, and operations with them -------------------------------------------------- */

static void send_message(struct shm_peer *peer, const struct net_message *m)
{
	struct shm_send *s = &peer->send;
	struct net_message copy = *m;

	copy.sender = peer->line.base.net->options.self.node;
	if (peer->line.queued || !put_message(peer, &copy))
		*queued_at(s, peer->line.queued++) = copy;
	else if (atomic_load_explicit(&s->waiting, memory_order_relaxed))
		atomic_store(&s->waiting, false); /* there was room after all */
}

/* A message was sent. With send_lock held; drops it. */
static void after_send(struct shm_peer *peer, unsigned flags)
{
	if (flags & NET_MORE)
		net_queue_hold(&peer->line);
	else
		wake_reader(peer);
	net_queue_unlock(&peer->line, flags);
}

void shm_flush(struct connect_peer *line, unsigned flags)
{
	after_send(shm_peer_of(&line->base), flags);
}

int shm_send(struct net_peer *base, const struct net_message *m, unsigned flags)
{
	struct shm_peer *peer = shm_peer_of(base);
	int rc;

	rt_mutex_lock(&peer->line.send_lock);
	rc = net_queue_reserve(&peer->line, 1, flags);
	if (rc)
		return rc;
	send_message(peer, m);
	after_send(peer, flags);
	return 0;
}

/* Without the lock, which other tasks may need meanwhile. The op has no message, so no order must
 * be kept. */
static void run_unlocked(struct shm_peer *peer, struct net_op *op, unsigned flags)
{
	int rc;

	atomic_fetch_add(&peer->users, 1);
	rt_mutex_unlock(&peer->line.send_lock);
	rc = perform_op(peer, op);
	rt_mutex_lock(&peer->line.send_lock);
	if (rc == -EACCES)
		shm_cut_locked(&peer->line, -EACCES);
	net_queue_ended(&peer->line, op, rc);
	atomic_fetch_sub(&peer->users, 1);
	net_queue_unlock(&peer->line, flags);
}

int shm_post(struct net_peer *base, struct net_op *op, unsigned flags)
{
	struct shm_peer *peer = shm_peer_of(base);
	struct net_message m = op->message; /* the op may be gone before it is sent */
	bool tell = op->kind == NET_WRITE && m.type, at_once;
	int rc;

	rt_mutex_lock(&peer->line.send_lock);
	rc = net_queue_reserve(&peer->line, tell ? 1 : 0, flags);
	if (rc)
		return rc;
	if (!tell) {
		run_unlocked(peer, op, flags);
		return 0;
	}
	rc = perform_op(peer, op);
	if (rc == -EACCES)
		shm_cut_locked(&peer->line, -EACCES);
	else
		send_message(peer, &m);
	at_once = !rc && (flags & NET_AT_ONCE);
	if (!at_once)
		net_queue_ended(&peer->line, op, rc);
	after_send(peer, flags);
	return at_once;
}

void shm_drain(struct shm_peer *peer)
{
	struct shm_send *s = &peer->send;
	bool any = false;

	rt_mutex_lock(&peer->line.send_lock);
	while (peer->line.base.up && peer->line.queued && put_message(peer, queued_at(s, 0))) {
		any = true;
		s->first = (s->first + 1) % NET_QUEUE_MAX;
		net_queue_left(&peer->line);
	}
	if (peer->line.queued == 0)
		atomic_store(&s->waiting, false);
	if (any)
		wake_reader(peer);
	rt_mutex_unlock(&peer->line.send_lock);
}

void shm_send_reset(struct shm_peer *peer)
{
	struct shm_send *s = &peer->send;

	s->first = peer->line.queued = 0;
	s->tail = 0;
	atomic_store(&s->waiting, false);
	net_queue_reset(&peer->line);
}
