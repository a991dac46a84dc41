/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sending half of a verbs link: a bounded queue, from which what may go is posted in
 * chains, by whoever has something to say.
 *
 * A message goes while the peer has a receive for it; what is behind it waits with it. The
 * last request of a chain says when it ends if somebody waits for that, or if much has been
 * posted without: requests of a pair end in order, so it speaks for all before it
 * (selective signalling, ScaleStore §3.5).
 */
#include "engine/net/verbs_internal.h"

#include <errno.h>
#include <string.h>

static struct verbs_entry *entry_at(struct verbs_send *s, unsigned i)
{
	return &s->queue[(s->first + i) % NET_QUEUE_MAX];
}

static uint32_t count_of(enum verbs_kind kind, uint32_t taken)
{
	return htonl((uint32_t)kind << 24 | (taken & VERBS_COUNT_MASK));
}

/* ---- work requests --------------------------------------------------------------------------- */

static bool is_atomic(const struct net_op *op)
{
	return op->kind == NET_CAS || op->kind == NET_FAA;
}

static uint8_t *send_slot(const struct verbs_pair *p, uint64_t sequence)
{
	return p->memory +
	       (p->receives + sequence % p->depth) * sizeof(struct net_message);
}

static uint64_t *result_slot(const struct verbs_pair *p, uint64_t sequence)
{
	return (uint64_t *)(p->memory +
			    (p->receives + p->depth) * sizeof(struct net_message)) +
	       sequence % p->depth;
}

static uint32_t immediate(struct verbs_peer *peer, enum verbs_kind kind)
{
	uint32_t taken = atomic_load(&peer->taken);

	atomic_store(&peer->told, taken);
	peer->send.control = false;
	return count_of(kind, taken);
}

/* From a slot of the pair's memory: the card may look at it later. */
static void message_request(struct verbs_peer *peer, const struct net_message *m,
	struct ibv_send_wr *wr, struct ibv_sge *sge)
{
	uint8_t *slot = send_slot(peer->pair, peer->send.tail);

	memcpy(slot, m, sizeof(*m));
	*sge = (struct ibv_sge){.addr = (uintptr_t)slot,
		.length = sizeof(*m),
		.lkey = peer->pair->memory_key->lkey};
	wr->opcode = IBV_WR_SEND_WITH_IMM;
	wr->imm_data = immediate(peer, VERBS_MESSAGE);
	wr->sg_list = sge;
	wr->num_sge = 1;
	if (peer->pair->inline_bytes >= sizeof(*m))
		wr->send_flags |= IBV_SEND_INLINE;
	peer->send.sent++;
}

/* The key of the op's local memory; what is short and inline needs none. */
static int local_key(struct verbs_peer *peer, const struct net_op *op,
	struct ibv_send_wr *wr, struct ibv_sge *sge, struct verbs_posted *posted)
{
	struct verbs_pair *p = peer->pair;
	struct ibv_mr *key =
		verbs_region_key(peer->line.base.net, p->device, op->local, op->length);

	if (!key && op->kind == NET_WRITE && op->length <= p->inline_bytes) {
		wr->send_flags |= IBV_SEND_INLINE;
		return 0;
	}
	if (!key) {
		key = ibv_reg_mr(p->device->pd, op->local, op->length,
			op->kind == NET_READ ? IBV_ACCESS_LOCAL_WRITE : 0);
		if (!key)
			return -errno;
		posted->key = key;
		net_count(&peer->line.base.counters.registered, 1);
	}
	sge->lkey = key->lkey;
	return 0;
}

static int op_request(struct verbs_peer *peer, struct net_op *op, struct ibv_send_wr *wr,
	struct ibv_sge *sge, struct verbs_posted *posted)
{
	const struct wire_key *to = &peer->pair->theirs.region[op->region];
	uint64_t at = to->base + op->offset;

	posted->op = op;
	wr->sg_list = sge;
	wr->num_sge = 1;
	if (is_atomic(op)) {
		*sge = (struct ibv_sge){
			.addr = (uintptr_t)result_slot(peer->pair, peer->send.tail),
			.length = sizeof(uint64_t),
			.lkey = peer->pair->memory_key->lkey};
		wr->opcode = op->kind == NET_CAS ? IBV_WR_ATOMIC_CMP_AND_SWP
						 : IBV_WR_ATOMIC_FETCH_AND_ADD;
		wr->wr.atomic.remote_addr = at;
		wr->wr.atomic.rkey = to->key;
		wr->wr.atomic.compare_add =
			op->kind == NET_CAS ? op->compare : op->operand;
		wr->wr.atomic.swap = op->operand;
		return 0;
	}
	*sge = (struct ibv_sge){.addr = (uintptr_t)op->local, .length = op->length};
	wr->opcode = op->kind == NET_WRITE ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ;
	wr->wr.rdma.remote_addr = at;
	wr->wr.rdma.rkey = to->key;
	return local_key(peer, op, wr, sge, posted);
}

static void control_request(struct verbs_peer *peer, struct ibv_send_wr *wr)
{
	wr->opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
	wr->imm_data = immediate(peer, VERBS_CONTROL);
}

/* ---- chains ------------------------------------------------------------------------------------ */

static bool has_room(const struct verbs_peer *peer)
{
	return peer->send.tail - peer->send.head < peer->pair->depth;
}

static bool has_credit(const struct verbs_send *s)
{
	return s->sent - s->given < s->window;
}

/* The request at `n` of the chain gets its number. */
static void chain_add(struct verbs_peer *peer, unsigned n)
{
	struct verbs_send *s = &peer->send;

	s->wr[n].wr_id = s->tail++;
	if (n)
		s->wr[n - 1].next = &s->wr[n];
}

/* The first of the queue becomes the request at `n`. False: the link is to end. */
static bool entry_add(struct verbs_peer *peer, unsigned n, bool *wanted)
{
	struct verbs_send *s = &peer->send;
	struct verbs_entry *e = entry_at(s, 0);
	struct verbs_posted *posted = &s->posted[s->tail % VERBS_DEPTH];
	int r = 0;

	s->wr[n] = (struct ibv_send_wr){0};
	*posted = (struct verbs_posted){0};
	if (e->op) {
		r = op_request(peer, e->op, &s->wr[n], &s->sge[n], posted);
		*wanted = true;
	} else {
		message_request(peer, &e->m, &s->wr[n], &s->sge[n]);
	}
	if (r) {
		posted->op = NULL; /* it stays in the queue */
		weft_log(3, "verbs: %u bytes cannot be registered for node %u: %s",
			e->op->length, peer->line.base.node, strerrordesc_np(-r));
		verbs_cut_locked(&peer->line, r);
		return false;
	}
	chain_add(peer, n);
	s->first = (s->first + 1) % NET_QUEUE_MAX;
	net_queue_left(&peer->line);
	return true;
}

static void chain_post(struct verbs_peer *peer, unsigned n, bool wanted)
{
	struct verbs_send *s = &peer->send;
	struct net_peer_counters *c = &peer->line.base.counters;
	struct ibv_send_wr *bad;
	int r;

	s->silent += n;
	if (wanted || s->silent >= peer->pair->depth / 4) {
		s->wr[n - 1].send_flags |= IBV_SEND_SIGNALED;
		s->silent = 0;
		net_count(&c->signalled, 1);
	}
	net_before_send(&peer->line.base);
	r = ibv_post_send(peer->pair->id->qp, s->wr, &bad);
	net_count(&c->calls_out, 1);
	net_count(&c->requests, n);
	atomic_store_explicit(&peer->spoke, true, memory_order_relaxed);
	if (r)
		verbs_cut_locked(&peer->line, -EIO);
}

/* Under send_lock: one chain of what may go. False: there was nothing. */
static bool chain_send(struct verbs_peer *peer)
{
	struct verbs_send *s = &peer->send;
	bool wanted = false;
	unsigned n = 0;

	while (n < VERBS_CHAIN && peer->line.queued && has_room(peer) &&
		(entry_at(s, 0)->op || has_credit(s)))
		if (!entry_add(peer, n, &wanted))
			break;
		else
			n++;
	/* nothing else says it */
	if (s->control && n < VERBS_CHAIN && has_room(peer)) {
		s->wr[n] = (struct ibv_send_wr){0};
		s->posted[s->tail % VERBS_DEPTH] = (struct verbs_posted){0};
		control_request(peer, &s->wr[n]);
		chain_add(peer, n++);
	}
	if (n)
		chain_post(peer, n, wanted);
	return n > 0;
}

/* Under send_lock. */
static void send_all(struct verbs_peer *peer)
{
	peer->line.held = false;
	while (!atomic_load(&peer->line.cut_code) && chain_send(peer))
		;
}

/* After an enqueue, with send_lock held; drops it. */
static void enqueued(struct verbs_peer *peer, unsigned flags)
{
	if ((flags & NET_MORE) && peer->line.queued < NET_QUEUE_SHORT)
		net_queue_hold(&peer->line);
	else
		send_all(peer);
	net_queue_unlock(&peer->line, flags);
}

void verbs_flush(struct connect_peer *line, unsigned flags)
{
	enqueued(verbs_peer_of(&line->base), flags & ~NET_MORE);
}

void verbs_push(struct verbs_peer *peer, bool control)
{
	rt_mutex_lock(&peer->line.send_lock);
	if (peer->line.base.up) {
		peer->send.control |= control;
		send_all(peer);
	}
	net_queue_unlock(&peer->line, NET_URGENT);
}

/* ---- the queue ---------------------------------------------------------------------------------- */

static void enqueue_message(struct verbs_peer *peer, const struct net_message *m)
{
	struct verbs_entry *e = entry_at(&peer->send, peer->line.queued++);

	e->op = NULL;
	e->m = *m;
	e->m.sender = peer->line.base.net->options.self.node;
	net_count(&peer->line.base.counters.messages_out, 1);
}

int verbs_send(struct net_peer *base, const struct net_message *m, unsigned flags)
{
	struct verbs_peer *peer = verbs_peer_of(base);
	int r;

	rt_mutex_lock(&peer->line.send_lock);
	r = net_queue_reserve(&peer->line, 1, flags);
	if (r)
		return r;
	enqueue_message(peer, m);
	enqueued(peer, flags);
	return 0;
}

static bool may_access(const struct verbs_peer *peer, const struct net_op *op)
{
	static const unsigned wanted[] = {
		[NET_WRITE] = NET_REMOTE_WRITE,
		[NET_READ] = NET_REMOTE_READ,
		[NET_CAS] = NET_REMOTE_ATOMIC,
		[NET_FAA] = NET_REMOTE_ATOMIC,
	};
	const struct wire_key *r;

	if (op->region >= NET_REGIONS_MAX)
		return false;
	r = &peer->pair->theirs.region[op->region];
	return r->bytes && wire_access_check(r->bytes, r->rights, wanted[op->kind],
				   op->offset, is_atomic(op) ? 8 : op->length);
}

static void count_op(struct verbs_peer *peer, const struct net_op *op)
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

/* With send_lock held, which it drops: the op ends, and with EACCES the link. */
static void refuse(struct verbs_peer *peer, struct net_op *op, int code, unsigned flags)
{
	if (code == -EACCES)
		verbs_cut_locked(&peer->line, code);
	net_queue_ended(&peer->line, op, code);
	net_queue_unlock(&peer->line, flags);
}

int verbs_post(struct net_peer *base, struct net_op *op, unsigned flags)
{
	struct verbs_peer *peer = verbs_peer_of(base);
	struct verbs_send *s = &peer->send;
	bool tell = op->kind == NET_WRITE && op->message.type;
	struct verbs_entry *e;
	int r;

	rt_mutex_lock(&peer->line.send_lock);
	r = net_queue_reserve(&peer->line, tell ? 2 : 1, flags);
	if (r)
		return r;
	if (op->kind != NET_WRITE && s->reads == NET_OPS_MAX) {
		rt_mutex_unlock(&peer->line.send_lock);
		return -EAGAIN;
	}
	if (!may_access(peer, op)) {
		refuse(peer, op, -EACCES, flags);
		return 0;
	}
	if (is_atomic(op) && peer->pair->theirs.no_atomics) {
		refuse(peer, op, -EOPNOTSUPP, flags);
		return 0;
	}
	s->reads += op->kind != NET_WRITE;
	count_op(peer, op);
	e = entry_at(s, peer->line.queued++);
	e->op = op;
	if (tell)
		enqueue_message(peer, &op->message);
	enqueued(peer, flags);
	return 0;
}

/* ---- what has ended ------------------------------------------------------------------------------- */

static void retire(struct verbs_peer *peer, uint64_t sequence)
{
	struct verbs_send *s = &peer->send;

	while (s->head <= sequence && s->head < s->tail) {
		struct verbs_posted *posted = &s->posted[s->head % VERBS_DEPTH];
		struct net_op *op = posted->op;

		if (posted->key)
			ibv_dereg_mr(posted->key);
		if (op && is_atomic(op))
			op->value = *result_slot(peer->pair, s->head);
		if (op) {
			s->reads -= op->kind != NET_WRITE;
			net_queue_ended(&peer->line, op, 0);
		}
		*posted = (struct verbs_posted){0};
		s->head++;
		s->moved = true;
	}
}

void verbs_progress(
	struct verbs_peer *peer, uint64_t sequence, bool counted, uint32_t taken)
{
	struct verbs_send *s = &peer->send;
	uint32_t more;

	rt_mutex_lock(&peer->line.send_lock);
	if (sequence != UINT64_MAX)
		retire(peer, sequence);
	/* A count that goes back, or beyond what was sent, is no peer's. */
	more = counted ? (taken - s->given) & VERBS_COUNT_MASK : 0;
	if (more > s->sent - s->given) {
		verbs_cut_locked(&peer->line, -EPROTO);
	} else if (more) {
		s->given += more;
		s->moved = true;
	}
	if (!peer->line.held && (peer->line.queued || s->control))
		send_all(peer);
	net_queue_unlock(&peer->line, NET_URGENT);
}

/* ---- beginning and end ----------------------------------------------------------------------------- */

void verbs_send_begin(struct verbs_peer *peer)
{
	struct verbs_send *s = &peer->send;

	WEFT_ASSERT(s->head == s->tail && peer->line.queued == 0);
	s->head = s->tail = 0;
	s->sent = s->given = 0;
	s->silent = s->reads = 0;
	s->control = s->moved = false;
	s->window = peer->pair->theirs.window;
}

static struct net_op *add(struct net_op *list, struct net_op *op)
{
	if (!op)
		return list;
	op->next = list;
	return op;
}

struct net_op *verbs_send_reset(struct verbs_peer *peer)
{
	struct verbs_send *s = &peer->send;
	struct net_op *list = NULL;

	for (; s->head < s->tail; s->head++) {
		struct verbs_posted *posted = &s->posted[s->head % VERBS_DEPTH];

		if (posted->key)
			ibv_dereg_mr(posted->key);
		list = add(list, posted->op);
		*posted = (struct verbs_posted){0};
	}
	for (unsigned i = 0; i < peer->line.queued; i++)
		list = add(list, entry_at(s, i)->op);
	s->first = 0;
	net_queue_reset(&peer->line);
	return list;
}
