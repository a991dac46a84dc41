/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sending half of a verbs link: a bounded queue. A task that adds an entry posts chains of all
 * entries that may go.
 *
 * Messages go packed, several with one send, while the peer has a receive for it. If a message must
 * wait, the entries behind it wait, too. The last request of a chain reports its end if an op in
 * the chain needs it. It also does if many requests have been posted without a report. Requests of
 * a pair end in order, so a report stands for all requests before it (selective signalling,
 * ScaleStore §3.5).
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
	       (p->receives + sequence % p->depth) * (size_t)VERBS_SLOT_BYTES;
}

static uint64_t *result_slot(const struct verbs_pair *p, uint64_t sequence)
{
	return (uint64_t *)(p->memory +
			    (p->receives + p->depth) * (size_t)VERBS_SLOT_BYTES) +
	       sequence % p->depth;
}

static uint32_t immediate_data(struct verbs_peer *peer, enum verbs_kind kind)
{
	uint32_t taken = atomic_load(&peer->taken);

	atomic_store(&peer->told, taken);
	peer->send.control = false;
	return count_of(kind, taken);
}

/* Messages that leave with one send. */
struct message_pack {
	struct net_message last;
	unsigned count, bytes;
	uint8_t packed[VERBS_SLOT_BYTES];
};

/* The messages are copied to a slot of the pair's memory: the card may read it later. */
static void messages_request(struct verbs_peer *peer, const struct message_pack *pack,
	struct ibv_send_wr *wr, struct ibv_sge *sge)
{
	uint8_t *slot = send_slot(peer->pair, peer->send.tail);

	memcpy(slot, pack->packed, pack->bytes);
	*sge = (struct ibv_sge){.addr = (uintptr_t)slot,
		.length = pack->bytes,
		.lkey = peer->pair->memory_key->lkey};
	wr->opcode = IBV_WR_SEND_WITH_IMM;
	wr->imm_data = immediate_data(peer, VERBS_MESSAGE);
	wr->sg_list = sge;
	wr->num_sge = 1;
	if (peer->pair->inline_bytes >= pack->bytes)
		wr->send_flags |= IBV_SEND_INLINE;
	peer->send.sent++;
}

/* The key of the op's local memory. A short write that is sent inline needs none. */
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
	wr->imm_data = immediate_data(peer, VERBS_CONTROL);
}

/* ---- chains ------------------------------------------------------------------------------ */

/* Returns true if a chain of `n` requests may have `more`. */
static bool has_room(const struct verbs_peer *peer, unsigned n, unsigned more)
{
	return n + more <= VERBS_CHAIN &&
	       peer->send.tail - peer->send.head + more <= peer->pair->depth;
}

static bool has_credit(const struct verbs_send *s)
{
	return s->sent - s->given < s->window;
}

/* Numbers the request at `n` of the chain. */
static void chain_add(struct verbs_peer *peer, unsigned n)
{
	struct verbs_send *s = &peer->send;

	s->wr[n].wr_id = s->tail++;
	if (n)
		s->wr[n - 1].next = &s->wr[n];
}

static void request_begin(struct verbs_send *s, unsigned n)
{
	s->wr[n] = (struct ibv_send_wr){0};
	s->posted[s->tail % VERBS_DEPTH] = (struct verbs_posted){0};
}

static void entry_left(struct verbs_peer *peer)
{
	peer->send.first = (peer->send.first + 1) % NET_QUEUE_MAX;
	net_queue_left(&peer->line);
}

/* The operation at the front of the queue becomes the request at `n`. Returns false if the link
 * must end. */
static bool op_add(struct verbs_peer *peer, unsigned n)
{
	struct verbs_send *s = &peer->send;
	struct net_op *op = entry_at(s, 0)->op;
	struct verbs_posted *posted = &s->posted[s->tail % VERBS_DEPTH];
	int rc;

	request_begin(s, n);
	rc = op_request(peer, op, &s->wr[n], &s->sge[n], posted);
	if (rc) {
		posted->op = NULL; /* it stays in the queue */
		weft_log(3, "verbs: %u bytes cannot be registered for node %u: %s",
			op->length, peer->line.base.node, strerrordesc_np(-rc));
		verbs_cut_locked(&peer->line, rc);
		return false;
	}
	chain_add(peer, n);
	entry_left(peer);
	return true;
}

/* The message at the front of the queue joins the pack. Returns false if the pack is full. */
static bool message_add(struct verbs_peer *peer, struct message_pack *pack)
{
	if (pack->count == WIRE_RUN_MAX || pack->bytes + WIRE_PACKED_MAX > VERBS_SLOT_BYTES)
		return false;
	pack->bytes += wire_pack(
		pack->packed + pack->bytes, &pack->last, &entry_at(&peer->send, 0)->m);
	pack->count++;
	entry_left(peer);
	return true;
}

/* The pack becomes the request at `n`, and is empty. */
static void pack_add(struct verbs_peer *peer, unsigned n, struct message_pack *pack)
{
	struct verbs_send *s = &peer->send;

	request_begin(s, n);
	messages_request(peer, pack, &s->wr[n], &s->sge[n]);
	chain_add(peer, n);
	net_count(&peer->line.base.counters.sends_out, 1);
	pack->last = (struct net_message){0};
	pack->count = pack->bytes = 0;
}

static void chain_post(struct verbs_peer *peer, unsigned n, bool wanted)
{
	struct verbs_send *s = &peer->send;
	struct net_peer_counters *c = &peer->line.base.counters;
	struct ibv_send_wr *bad;
	int rc;

	s->silent += n;
	if (wanted || s->silent >= peer->pair->depth / 4) {
		s->wr[n - 1].send_flags |= IBV_SEND_SIGNALED;
		s->silent = 0;
		net_count(&c->signalled, 1);
	}
	net_before_send(&peer->line.base);
	rc = ibv_post_send(peer->pair->id->qp, s->wr, &bad);
	net_count(&c->calls_out, 1);
	net_count(&c->requests, n);
	atomic_store_explicit(&peer->spoke, true, memory_order_relaxed);
	if (rc)
		verbs_cut_locked(&peer->line, -EIO);
}

/*
 * Under send_lock. Sends one chain of the entries that may go. Returns false if there were none.
 * Messages gather for one send, behind the operations that were queued between them. A message only
 * has to come after every write before it.
 */
static bool chain_send(struct verbs_peer *peer)
{
	struct verbs_send *s = &peer->send;
	struct message_pack pack;
	bool wanted = false;
	unsigned n = 0;

	pack.last = (struct net_message){0};
	pack.count = pack.bytes = 0;
	while (peer->line.queued && has_room(peer, n, pack.count ? 2 : 1)) {
		if (entry_at(s, 0)->op) {
			if (!op_add(peer, n))
				break;
			wanted = true;
			n++;
		} else if (!pack.count && !has_credit(s)) {
			break;
		} else if (!message_add(peer, &pack)) {
			pack_add(peer, n++, &pack);
		}
	}
	if (pack.count)
		pack_add(peer, n++, &pack);
	/* no other request carries the count */
	if (s->control && has_room(peer, n, 1)) {
		request_begin(s, n);
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
static void post_enqueued(struct verbs_peer *peer, unsigned flags)
{
	if ((flags & NET_MORE) && peer->line.queued < NET_QUEUE_SHORT)
		net_queue_hold(&peer->line);
	else
		send_all(peer);
	net_queue_unlock(&peer->line, flags);
}

void verbs_flush(struct connect_peer *line, unsigned flags)
{
	post_enqueued(verbs_peer_of(&line->base), flags & ~NET_MORE);
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

/* ---- the queue --------------------------------------------------------------------------- */

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
	int rc;

	rt_mutex_lock(&peer->line.send_lock);
	rc = net_queue_reserve(&peer->line, 1, flags);
	if (rc)
		return rc;
	enqueue_message(peer, m);
	post_enqueued(peer, flags);
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

/* With send_lock held; drops it. Ends the op, and with EACCES the link. */
static void refuse_work(struct verbs_peer *peer, struct net_op *op, int code, unsigned flags)
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
	int rc;

	rt_mutex_lock(&peer->line.send_lock);
	rc = net_queue_reserve(&peer->line, tell ? 2 : 1, flags);
	if (rc)
		return rc;
	if (op->kind != NET_WRITE && s->reads == NET_OPS_MAX) {
		rt_mutex_unlock(&peer->line.send_lock);
		return -EAGAIN;
	}
	if (!may_access(peer, op)) {
		refuse_work(peer, op, -EACCES, flags);
		return 0;
	}
	if (is_atomic(op) && peer->pair->theirs.no_atomics) {
		refuse_work(peer, op, -EOPNOTSUPP, flags);
		return 0;
	}
	s->reads += op->kind != NET_WRITE;
	count_op(peer, op);
	e = entry_at(s, peer->line.queued++);
	e->op = op;
	if (tell)
		enqueue_message(peer, &op->message);
	post_enqueued(peer, flags);
	return 0;
}

/* ---- what has ended ---------------------------------------------------------------------- */

static void retire_requests(struct verbs_peer *peer, uint64_t sequence)
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
		retire_requests(peer, sequence);
	/* A count that goes back, or beyond the number of sent messages, is wrong. */
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

/* ---- beginning and end ------------------------------------------------------------------- */

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

static struct net_op *list_add_op(struct net_op *list, struct net_op *op)
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
		list = list_add_op(list, posted->op);
		*posted = (struct verbs_posted){0};
	}
	for (unsigned i = 0; i < peer->line.queued; i++)
		list = list_add_op(list, entry_at(s, i)->op);
	s->first = 0;
	net_queue_reset(&peer->line);
	return list;
}
