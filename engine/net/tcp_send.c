/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sending half of a tcp link: a bounded queue of frames. The task that adds a frame sends the
 * whole queue, as far as the socket takes it. The progress task sends the rest when there is room,
 * or credit.
 *
 * One task at a time is in the system call (`sending`), and send_lock is not held during it. Frames
 * leave the queue in order and whole. A message leaves only with a credit. Only PING overtakes a
 * message that waits. PING gives credits back, so two full queues cannot block each other.
 *
 * Messages that wait one after the other leave as one frame, and so do writes, each with a message
 * behind it. Such a frame is a run. The messages of pages in a row take few bytes in it, and the
 * other end knows the place of all bytes before they arrive.
 */
#include "engine/net/tcp_internal.h"

#include <errno.h>
#include <string.h>

#define SEND_PIECES (4 * WIRE_RUN_MAX) /* pieces of one system call */

static struct tcp_frame *frame_at(struct tcp_send *s, unsigned i)
{
	return &s->frames[(s->first + i) % NET_QUEUE_MAX];
}

/* ---- credits -------------------------------------------------------------------------- */

/* The credits that this node owes the peer. The peer may send as many more from now on. */
static uint16_t take_owed(struct tcp_peer *peer)
{
	uint32_t owed = atomic_load_explicit(&peer->owed, memory_order_relaxed);

	if (owed == 0)
		return 0;
	owed = atomic_exchange(&peer->owed, 0);
	WEFT_ASSERT(owed <= WIRE_WINDOW);
	atomic_fetch_add(&peer->allowed, owed);
	return (uint16_t)owed;
}

void tcp_credits_came(struct tcp_peer *peer, uint32_t n)
{
	struct tcp_send *s = &peer->send;
	bool push, wrong;

	rt_mutex_lock(&peer->line.send_lock);
	wrong = n > s->window - s->credits;
	if (wrong)
		tcp_cut_locked(&peer->line, -EPROTO);
	else
		s->credits += n;
	push = !wrong && peer->line.queued && !s->blocked && !peer->line.held;
	rt_mutex_unlock(&peer->line.send_lock);
	if (push)
		tcp_push(peer, false);
}

/* ---- sending ---------------------------------------------------------------------------- */

/* Completes the frame's head. Returns false if the frame must wait. */
static bool prepare_frame(struct tcp_peer *peer, struct tcp_frame *f)
{
	struct tcp_send *s = &peer->send;
	struct wire_frame *head = (struct wire_frame *)f->head;

	if (f->type == WIRE_MESSAGE) {
		if (s->credits == 0)
			return false;
		s->credits--;
		net_count(&peer->line.base.counters.sends_out, 1);
	}
	head->credits = take_owed(peer);
	wire_frame_seal(head, head + 1, f->head_bytes - (uint32_t)sizeof(*head));
	return true;
}

/* Returns the offset and region of a write that is queued. */
static const struct wire_write *write_of(const struct tcp_frame *f)
{
	return (const struct wire_write *)(f->head + sizeof(struct wire_frame));
}

/* Returns the number of messages from the i-th frame on that can leave as a run. If that frame is a
 * write, each of them has a write of its length and region before it. */
static unsigned run_messages(struct tcp_peer *peer, unsigned i)
{
	struct tcp_send *s = &peer->send;
	const struct tcp_frame *first = frame_at(s, i);
	bool writes = first->type == WIRE_WRITE;
	unsigned step = writes ? 2 : 1, n = 0;

	if (first->data_bytes > WIRE_RUN_BYTES_MAX)
		return 0;
	while (n < MIN(WIRE_RUN_MAX, s->credits) && i + step * (n + 1) <= peer->line.queued) {
		const struct tcp_frame *f = frame_at(s, i + step * n);

		if (writes && (f->type != WIRE_WRITE || f->data_bytes != first->data_bytes ||
				      write_of(f)->region != write_of(first)->region))
			break;
		if (frame_at(s, i + step * n + step - 1)->type != WIRE_MESSAGE)
			break;
		n++;
	}
	return n < 2 ? 0 : n;
}

/* The heads of the frames with these messages become one. */
static void run_prepare(struct tcp_peer *peer, unsigned i, unsigned count)
{
	struct tcp_send *s = &peer->send;
	struct tcp_run *run = &s->run[s->next_run++ % TCP_RUNS];
	struct tcp_frame *first = frame_at(s, i);
	bool writes = first->type == WIRE_WRITE;
	uint32_t offsets = writes ? count * (uint32_t)sizeof(uint64_t) : 0;
	struct net_message last = {0};
	uint8_t *packed = run->rest + offsets;

	run->run = (struct wire_run){.count = count};
	if (writes) {
		run->run.region = write_of(first)->region;
		run->run.length = first->data_bytes;
	}
	for (unsigned n = 0; n < count; n++) {
		struct tcp_frame *f = frame_at(s, writes ? i + 2 * n : i + n);
		struct tcp_frame *m = writes ? frame_at(s, i + 2 * n + 1) : f;

		if (writes)
			memcpy(run->rest + n * sizeof(uint64_t), &write_of(f)->offset,
				sizeof(uint64_t));
		packed += wire_pack(packed, &last,
			(const struct net_message *)(m->head + sizeof(struct wire_frame)));
		f->head_bytes = m->head_bytes = 0;
	}
	run->run.packed = (uint32_t)(packed - run->rest) - offsets;
	run->head = (struct wire_frame){
		.type = WIRE_RUN,
		.credits = take_owed(peer),
		.bytes = (uint32_t)sizeof(run->run) + wire_run_head(&run->run) +
			 count * run->run.length,
	};
	wire_frame_seal(&run->head, &run->run,
		(uint32_t)sizeof(run->run) + wire_run_head(&run->run));
	first->leads = run;
	first->head_bytes = (uint16_t)(sizeof(run->head) + sizeof(run->run) +
				       wire_run_head(&run->run));
	s->runs++;
	s->credits -= count;
	s->prepared += writes ? 2 * count : count;
	net_count(&peer->line.base.counters.sends_out, 1);
}

/* The first frame is the rest of a run: nothing may come before it. */
static bool within_run(struct tcp_peer *peer)
{
	struct tcp_send *s = &peer->send;

	return s->prepared && frame_at(s, 0)->head_bytes == 0;
}

/* Completes the i-th frame, perhaps together with others. Returns false if it must wait. */
static bool prepare_from(struct tcp_peer *peer, unsigned i)
{
	struct tcp_frame *f = frame_at(&peer->send, i);
	bool may = f->type == WIRE_WRITE || f->type == WIRE_MESSAGE;
	unsigned count = may ? run_messages(peer, i) : 0;

	if (count && peer->send.runs == TCP_RUNS)
		return false; /* until one of them has left */
	if (count) {
		run_prepare(peer, i, count);
		return true;
	}
	if (!prepare_frame(peer, f))
		return false;
	peer->send.prepared++;
	return true;
}

static void add_iov(
	struct iovec *iov, unsigned *n, const void *base, size_t bytes, size_t *skip)
{
	size_t skipped = MIN(*skip, bytes);

	*skip -= skipped;
	if (bytes > skipped)
		tcp_iov_add(iov, n, (uint8_t *)base + skipped, bytes - skipped);
}

/* A PING goes between two frames, even when the next one has no credit. */
static void gather_ping(struct tcp_peer *peer, bool *ping)
{
	struct tcp_send *s = &peer->send;

	if (s->ping_left == 0 && *ping && s->sent == 0 && !within_run(peer)) {
		s->ping = (struct wire_frame){
			.type = WIRE_PING, .credits = take_owed(peer)};
		wire_frame_seal(&s->ping, NULL, 0);
		s->ping_left = sizeof(s->ping);
	}
	*ping = false;
}

/* Under send_lock. Gathers the bytes that can be sent now. */
static unsigned gather_frames(struct tcp_peer *peer, struct iovec *iov, bool *ping)
{
	struct tcp_send *s = &peer->send;
	size_t skip = s->sent;
	unsigned n = 0;

	gather_ping(peer, ping);
	if (s->ping_left)
		iov[n++] = (struct iovec){
			(uint8_t *)(&s->ping + 1) - s->ping_left, s->ping_left};
	for (unsigned i = 0; i < peer->line.queued && n + 2 <= SEND_PIECES; i++) {
		struct tcp_frame *f = frame_at(s, i);

		if (i == s->prepared && !prepare_from(peer, i))
			break;
		add_iov(iov, &n, f->leads ? (uint8_t *)f->leads : f->head, f->head_bytes,
			&skip);
		add_iov(iov, &n, f->data, f->data_bytes, &skip);
	}
	return n;
}

/* The first frame has left. */
static void frame_sent(struct tcp_peer *peer, struct tcp_frame *f)
{
	struct tcp_send *s = &peer->send;

	if (f->op)
		net_queue_ended(&peer->line, f->op, 0);
	if (f->type == WIRE_READ_REPLY || f->type == WIRE_ATOMIC_REPLY)
		s->replies--;
	if (f->leads)
		s->runs--;
	s->first = (s->first + 1) % NET_QUEUE_MAX;
	s->prepared--;
	net_queue_left(&peer->line);
	if (peer->line.queued == 0)
		s->first = 0; /* uses the same memory again */
}

static void consume_sent(struct tcp_peer *peer, size_t bytes)
{
	struct tcp_send *s = &peer->send;
	unsigned of_ping = (unsigned)MIN(bytes, (size_t)s->ping_left);

	s->ping_left -= of_ping;
	bytes -= of_ping;
	s->sent += bytes;
	while (peer->line.queued) {
		struct tcp_frame *f = frame_at(s, 0);
		size_t whole = (size_t)f->head_bytes + f->data_bytes;

		if (s->sent < whole)
			break;
		s->sent -= whole;
		frame_sent(peer, f);
	}
}

/* Under send_lock, which it drops and retakes. `sending` is false before and after. Sends until
 * nothing more can be sent. */
static void send_all(struct tcp_peer *peer, bool ping)
{
	struct tcp_send *s = &peer->send;
	struct iovec iov[SEND_PIECES];
	unsigned n;

	s->sending = true;
	peer->line.held = false;
	while (((n = gather_frames(peer, iov, &ping)) || net_stream_pending(&peer->stream)) &&
		!atomic_load(&peer->line.cut_code)) {
		size_t wanted = 0;
		ssize_t sent;

		for (unsigned i = 0; i < n; i++)
			wanted += iov[i].iov_len;
		rt_mutex_unlock(&peer->line.send_lock);
		net_before_send(&peer->line.base);
		sent = net_stream_send(&peer->stream, iov, n);
		rt_mutex_lock(&peer->line.send_lock);
		net_count(&peer->line.base.counters.calls_out, 1);
		if (sent < 0 && sent != -EAGAIN) {
			tcp_cut_locked(&peer->line, -ECONNRESET);
			break;
		}
		if (sent > 0) {
			atomic_store_explicit(&peer->spoke, true, memory_order_relaxed);
			s->moved = true;
			consume_sent(peer, (size_t)sent);
		}
		s->blocked = sent < 0 || (size_t)sent < wanted ||
			     net_stream_pending(&peer->stream);
		if (s->blocked)
			break;
	}
	s->sending = false;
	if (peer->want_write != s->blocked)
		tcp_watch(peer, s->blocked);
}

/* After an enqueue, with send_lock held; drops it. */
static void after_enqueue(struct tcp_peer *peer, unsigned flags)
{
	struct tcp_send *s = &peer->send;

	if ((flags & NET_MORE) && peer->line.queued < NET_QUEUE_SHORT)
		net_queue_hold(&peer->line);
	else if (!s->sending && !s->blocked)
		send_all(peer, false);
	else
		peer->line.held = false;
	net_queue_unlock(&peer->line, flags);
}

void tcp_flush(struct connect_peer *line, unsigned flags)
{
	after_enqueue(tcp_peer_of(&line->base), flags);
}

void tcp_push(struct tcp_peer *peer, bool ping)
{
	struct tcp_send *s = &peer->send;

	rt_mutex_lock(&peer->line.send_lock);
	if (peer->line.base.up && !s->sending)
		send_all(peer, ping);
	net_queue_unlock(&peer->line, NET_URGENT);
}

/* ---- the queue --------------------------------------------------------------------------- */

/* Under send_lock, with room. Returns the place of the fixed part. */
static void *enqueue_frame(struct tcp_peer *peer, enum wire_type type, const void *data,
	uint32_t data_bytes, struct net_op *op)
{
	struct tcp_send *s = &peer->send;
	struct tcp_frame *f = frame_at(s, peer->line.queued);
	struct wire_frame *head = (struct wire_frame *)f->head;
	uint32_t fixed = wire_fixed_bytes((uint8_t)type);

	peer->line.queued++;
	f->head_bytes = (uint16_t)(sizeof(*head) + fixed);
	f->type = (uint8_t)type;
	f->leads = NULL;
	f->data = data;
	f->data_bytes = data_bytes;
	f->op = op;
	*head = (struct wire_frame){.type = (uint8_t)type, .bytes = fixed + data_bytes};
	return head + 1;
}

static void enqueue_message(struct tcp_peer *peer, const struct net_message *m)
{
	struct net_message *to = enqueue_frame(peer, WIRE_MESSAGE, NULL, 0, NULL);

	*to = *m;
	to->sender = peer->line.base.net->options.self.node;
	net_count(&peer->line.base.counters.messages_out, 1);
}

int tcp_send(struct net_peer *base, const struct net_message *m, unsigned flags)
{
	struct tcp_peer *peer = tcp_peer_of(base);
	int rc;

	rt_mutex_lock(&peer->line.send_lock);
	rc = net_queue_reserve(&peer->line, 1, flags);
	if (rc)
		return rc;
	enqueue_message(peer, m);
	after_enqueue(peer, flags);
	return 0;
}

static uint32_t slot_find(struct tcp_send *s)
{
	for (unsigned i = 0; i < ARRAY_SIZE(s->slots_used); i++)
		if (s->slots_used[i] != UINT64_MAX)
			return i * 64 + (unsigned)__builtin_ctzll(~s->slots_used[i]);
	return TCP_NO_SLOT;
}

struct net_op *tcp_slot_take(struct tcp_peer *peer, uint32_t slot, bool atomic)
{
	struct tcp_send *s = &peer->send;
	struct net_op *op;

	rt_mutex_lock(&peer->line.send_lock);
	op = s->slots[slot];
	if (op && (op->kind == NET_READ) == atomic)
		op = NULL;
	if (op) {
		s->slots[slot] = NULL;
		s->slots_used[slot / 64] &= ~(1ull << (slot % 64));
	}
	rt_mutex_unlock(&peer->line.send_lock);
	return op;
}

static void enqueue_write(struct tcp_peer *peer, struct net_op *op)
{
	struct wire_write *w = enqueue_frame(peer, WIRE_WRITE, op->local, op->length, op);

	*w = (struct wire_write){.region = op->region, .offset = op->offset};
	net_count(&peer->line.base.counters.writes_out, 1);
	net_count(&peer->line.base.counters.bytes_out, op->length);
	if (op->message.type)
		enqueue_message(peer, &op->message);
}

static void enqueue_read(struct tcp_peer *peer, struct net_op *op)
{
	struct wire_read *r = enqueue_frame(peer, WIRE_READ, NULL, 0, NULL);

	*r = (struct wire_read){.op = op->slot,
		.region = op->region,
		.offset = op->offset,
		.length = op->length};
	net_count(&peer->line.base.counters.reads_out, 1);
}

static void enqueue_atomic(struct tcp_peer *peer, struct net_op *op)
{
	struct wire_atomic *a = enqueue_frame(peer, WIRE_ATOMIC, NULL, 0, NULL);

	*a = (struct wire_atomic){.op = op->slot,
		.region = op->region,
		.offset = op->offset,
		.kind = op->kind == NET_CAS ? WIRE_CAS : WIRE_FAA,
		.compare = op->compare,
		.operand = op->operand};
	net_count(&peer->line.base.counters.atomics_out, 1);
}

int tcp_post(struct net_peer *base, struct net_op *op, unsigned flags)
{
	struct tcp_peer *peer = tcp_peer_of(base);
	struct tcp_send *s = &peer->send;
	int rc;

	rt_mutex_lock(&peer->line.send_lock);
	rc = net_queue_reserve(
		&peer->line, op->kind == NET_WRITE && op->message.type ? 2 : 1, flags);
	if (rc)
		return rc;
	if (op->kind == NET_WRITE) {
		enqueue_write(peer, op);
	} else {
		op->slot = slot_find(s);
		if (op->slot == TCP_NO_SLOT) {
			rt_mutex_unlock(&peer->line.send_lock);
			return -EAGAIN;
		}
		s->slots[op->slot] = op;
		s->slots_used[op->slot / 64] |= 1ull << (op->slot % 64);
		if (op->kind == NET_READ)
			enqueue_read(peer, op);
		else
			enqueue_atomic(peer, op);
	}
	after_enqueue(peer, flags);
	return 0;
}

/* ---- answers ------------------------------------------------------------------------------- */

/* With send_lock held afterwards, unless it fails. */
static int reserve_reply(struct tcp_peer *peer)
{
	struct tcp_send *s = &peer->send;
	int rc;

	rt_mutex_lock(&peer->line.send_lock);
	if (s->replies == NET_OPS_MAX) {
		tcp_cut_locked(&peer->line, -ENOBUFS);
		rt_mutex_unlock(&peer->line.send_lock);
		return -ENOTCONN;
	}
	rc = net_queue_reserve(&peer->line, 1, NET_URGENT);
	if (!rc)
		s->replies++;
	return rc;
}

int tcp_reply_read(struct tcp_peer *peer, const struct wire_read *r, const uint8_t *data)
{
	struct wire_read_reply *reply;
	int rc = reserve_reply(peer);

	if (rc)
		return rc;
	reply = enqueue_frame(peer, WIRE_READ_REPLY, data, r->length, NULL);
	*reply = (struct wire_read_reply){.op = r->op};
	after_enqueue(peer, NET_URGENT);
	return 0;
}

int tcp_reply_atomic(struct tcp_peer *peer, uint32_t op, uint64_t value)
{
	struct wire_atomic_reply *reply;
	int rc = reserve_reply(peer);

	if (rc)
		return rc;
	reply = enqueue_frame(peer, WIRE_ATOMIC_REPLY, NULL, 0, NULL);
	*reply = (struct wire_atomic_reply){.op = op, .value = value};
	after_enqueue(peer, NET_URGENT);
	return 0;
}

int tcp_reply_refuse(struct tcp_peer *peer, uint8_t type, uint32_t op)
{
	int rc = reserve_reply(peer);

	if (rc)
		return rc;
	if (type == WIRE_READ)
		*(struct wire_read_reply *)enqueue_frame(peer, WIRE_READ_REPLY, NULL, 0, NULL) =
			(struct wire_read_reply){.op = op, .status = EACCES};
	else
		*(struct wire_atomic_reply *)enqueue_frame(peer, WIRE_ATOMIC_REPLY, NULL, 0,
			NULL) = (struct wire_atomic_reply){.op = op, .status = EACCES};
	after_enqueue(peer, NET_URGENT);
	return 0;
}

/* ---- the end of a link -------------------------------------------------------------------- */

void tcp_bye(struct tcp_peer *peer, uint32_t reason)
{
	struct tcp_send *s = &peer->send;
	struct wire_last frame = wire_last_make(reason);
	struct iovec iov = {&frame, sizeof(frame)};

	rt_mutex_lock(&peer->line.send_lock);
	if (peer->line.base.up && !s->sending && s->sent == 0 && s->ping_left == 0 &&
		!within_run(peer))
		net_stream_send(&peer->stream, &iov, 1);
	rt_mutex_unlock(&peer->line.send_lock);
}

struct net_op *tcp_send_reset(struct tcp_peer *peer, uint32_t window)
{
	struct tcp_send *s = &peer->send;
	struct net_op *list = NULL;

	for (unsigned i = peer->line.queued; i-- > 0;) {
		struct tcp_frame *f = frame_at(s, i);

		if (f->op) {
			f->op->next = list;
			list = f->op;
		}
	}
	for (unsigned i = 0; i < NET_OPS_MAX; i++) {
		if (!s->slots[i])
			continue;
		s->slots[i]->next = list;
		list = s->slots[i];
		s->slots[i] = NULL;
	}
	memset(s->slots_used, 0, sizeof(s->slots_used));
	s->first = s->prepared = 0;
	s->sent = 0;
	s->ping_left = 0;
	s->replies = 0;
	s->blocked = s->moved = false;
	s->runs = 0;
	s->window = s->credits = window;
	net_queue_reset(&peer->line);
	return list;
}
