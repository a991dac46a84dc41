/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The receiving half of a tcp link: bytes to frames, frames to handlers, memory and operations. The
 * task with event_lock receives. It is the progress task, or a task that waits for an answer and
 * leads the link (tcp_wait).
 *
 * No byte is used before wire.h has checked it. The data of writes and read replies goes straight
 * from the socket to its place. Only data that arrived together with other frames is copied.
 */
#include "engine/common/racy.h"
#include "engine/net/tcp_internal.h"

#include <errno.h>
#include <string.h>

#define LONG_BYTES (128u << 10)
/* More than the head of a frame and a message: the bytes in front of a run's data. */
#define LOOK_BYTES                                                                       \
	(sizeof(struct wire_frame) + sizeof(struct wire_run) +                           \
		TCP_RUN_REST)

/* ---- frames ----------------------------------------------------------------------------- */

static bool cut_wrong(struct tcp_peer *peer, int code)
{
	tcp_cut(&peer->line.base, code);
	return false;
}

/* Nothing of the frame may be used: neither its length, nor the place of its data. */
static bool changed_on_the_way(struct tcp_peer *peer)
{
	net_checksum_error(&peer->line.base, "a message");
	return cut_wrong(peer, -EBADMSG);
}

static uint8_t *memory_of(struct tcp_peer *peer, uint32_t id, unsigned wanted,
	uint64_t offset, uint64_t length)
{
	const struct net_region *r;

	if (id >= NET_REGIONS_MAX)
		return NULL;
	r = &peer->line.base.net->regions[id];
	if (!r->base || !wire_access_check(r->bytes, r->rights, wanted, offset, length))
		return NULL;
	return r->base + offset;
}

static bool take_message(struct tcp_peer *peer, const struct net_message *m)
{
	if (atomic_load(&peer->allowed) == 0)
		return cut_wrong(peer, -ENOBUFS);
	atomic_fetch_sub(&peer->allowed, 1);
	net_deliver(&peer->line.base, m);
	atomic_fetch_add(&peer->owed, 1);
	return true;
}

static bool begin_write(
	struct tcp_peer *peer, const struct wire_frame *f, const uint8_t *fixed)
{
	struct tcp_receive *rx = &peer->receive;
	uint32_t length = f->bytes - (uint32_t)sizeof(struct wire_write);
	struct wire_write w;

	memcpy(&w, fixed, sizeof(w));
	rx->data = memory_of(peer, w.region, NET_REMOTE_WRITE, w.offset, length);
	if (!rx->data) {
		tcp_bye(peer, EACCES);
		return cut_wrong(peer, -EACCES);
	}
	rx->data_left = length;
	rx->long_ones = length >= LONG_BYTES;
	rx->op = NULL;
	net_count(&peer->line.base.counters.writes_in, 1);
	net_count(&peer->line.base.counters.bytes_in, length);
	return true;
}

/* Unpacks the messages of a run into `rx->run`. */
static bool unpack_run(struct tcp_peer *peer, const struct wire_run *r, const uint8_t *packed)
{
	struct tcp_receive *rx = &peer->receive;
	struct net_message last = {0};
	uint32_t at = 0;

	for (unsigned i = 0; i < r->count; i++) {
		unsigned took = wire_unpack(packed + at, r->packed - at, &last);

		if (!took || !wire_message_check(&last, peer->line.base.node))
			return false;
		at += took;
		rx->run[i].message = last;
	}
	return at == r->packed;
}

/* Finds the places of the run's writes. Returns false if one is not allowed. */
static bool place_run(struct tcp_peer *peer, const struct wire_run *r, const uint8_t *offsets)
{
	struct tcp_receive *rx = &peer->receive;

	for (unsigned i = 0; i < r->count; i++) {
		uint64_t offset;

		memcpy(&offset, offsets + i * sizeof(offset), sizeof(offset));
		rx->run[i].to =
			memory_of(peer, r->region, NET_REMOTE_WRITE, offset, r->length);
		if (!rx->run[i].to)
			return false;
	}
	return true;
}

/* Takes the messages of a run without writes. */
static bool take_run(struct tcp_peer *peer, unsigned count)
{
	for (unsigned i = 0; i < count; i++)
		if (!take_message(peer, &peer->receive.run[i].message) ||
			atomic_load_explicit(&peer->line.cut_code, memory_order_relaxed))
			return false;
	return true;
}

/* The run's offsets and messages have arrived. */
static bool begin_run(struct tcp_peer *peer, const uint8_t *fixed)
{
	struct tcp_receive *rx = &peer->receive;
	const uint8_t *rest = fixed + sizeof(struct wire_run);
	struct wire_run r;

	memcpy(&r, fixed, sizeof(r));
	if (!unpack_run(peer, &r, rest + wire_run_head(&r) - r.packed))
		return cut_wrong(peer, -EPROTO);
	net_count(&peer->line.base.counters.sends_in, 1);
	if (!r.length)
		return take_run(peer, r.count);
	if (!place_run(peer, &r, rest)) {
		tcp_bye(peer, EACCES);
		return cut_wrong(peer, -EACCES);
	}
	rx->run_at = 0;
	rx->run_count = r.count;
	rx->run_length = rx->data_left = r.length;
	rx->data = rx->run[0].to;
	rx->op = NULL;
	rx->long_ones = true;
	net_count(&peer->line.base.counters.writes_in, r.count);
	net_count(&peer->line.base.counters.bytes_in, (uint64_t)r.count * r.length);
	return true;
}

static bool take_read(struct tcp_peer *peer, const uint8_t *fixed)
{
	const uint8_t *data;
	struct wire_read r;

	memcpy(&r, fixed, sizeof(r));
	net_count(&peer->line.base.counters.reads_in, 1);
	data = memory_of(peer, r.region, NET_REMOTE_READ, r.offset, r.length);
	if (data)
		return tcp_reply_read(peer, &r, data) == 0;
	return tcp_reply_refuse(peer, WIRE_READ, r.op) == 0;
}

static bool take_atomic(struct tcp_peer *peer, const uint8_t *fixed)
{
	struct wire_atomic a;
	uint64_t *word, value;

	memcpy(&a, fixed, sizeof(a));
	net_count(&peer->line.base.counters.atomics_in, 1);
	word = (uint64_t *)memory_of(peer, a.region, NET_REMOTE_ATOMIC, a.offset, 8);
	if (!word)
		return tcp_reply_refuse(peer, WIRE_ATOMIC, a.op) == 0;
	if (a.kind == WIRE_FAA) {
		value = __atomic_fetch_add(word, a.operand, __ATOMIC_SEQ_CST);
	} else {
		value = a.compare;
		__atomic_compare_exchange_n(word, &value, a.operand, false,
			__ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
	}
	return tcp_reply_atomic(peer, a.op, value) == 0;
}

/* The peer refused: the op learns it, and the link ends. */
static bool refuse_op(struct tcp_peer *peer, struct net_op *op)
{
	tcp_bye(peer, EACCES);
	cut_wrong(peer, -EACCES);
	net_op_end(peer->line.base.net, op, -EACCES);
	return false;
}

static bool begin_read_reply(
	struct tcp_peer *peer, const struct wire_frame *f, const uint8_t *fixed)
{
	struct tcp_receive *rx = &peer->receive;
	struct wire_read_reply r;
	struct net_op *op;

	memcpy(&r, fixed, sizeof(r));
	op = tcp_slot_take(peer, r.op, false);
	if (!op)
		return cut_wrong(peer, -EPROTO);
	if (r.status)
		return refuse_op(peer, op);
	/* The receiving half owns it now. It ends here, or with the link. */
	rx->op = op;
	if (f->bytes - sizeof(r) != op->length)
		return cut_wrong(peer, -EPROTO);
	rx->data = op->local;
	rx->data_left = op->length;
	rx->long_ones = op->length >= LONG_BYTES;
	net_count(&peer->line.base.counters.bytes_in, op->length);
	return true;
}

static bool take_atomic_reply(struct tcp_peer *peer, const uint8_t *fixed)
{
	struct wire_atomic_reply r;
	struct net_op *op;

	memcpy(&r, fixed, sizeof(r));
	op = tcp_slot_take(peer, r.op, true);
	if (!op)
		return cut_wrong(peer, -EPROTO);
	if (r.status)
		return refuse_op(peer, op);
	op->value = r.value;
	net_op_end(peer->line.base.net, op, 0);
	return true;
}

static bool take_bye(struct tcp_peer *peer, const uint8_t *fixed)
{
	struct wire_bye b;

	memcpy(&b, fixed, sizeof(b));
	return cut_wrong(peer, b.reason ? -(int)b.reason : -ESHUTDOWN);
}

/* Handles a frame whose head and fixed part have arrived. Returns false if the link must end. */
static bool take_frame(struct tcp_peer *peer, const struct wire_frame *f,
	const uint8_t *fixed, uint32_t fixed_bytes)
{
	struct net_message m;

	if (!wire_fixed_whole(f, fixed, fixed_bytes))
		return changed_on_the_way(peer);
	if (!wire_fixed_check(f, fixed, peer->line.base.node))
		return cut_wrong(peer, -EPROTO);
	if (f->credits)
		tcp_credits_came(peer, f->credits);
	switch (f->type) {
	case WIRE_MESSAGE:
		memcpy(&m, fixed, sizeof(m));
		net_count(&peer->line.base.counters.sends_in, 1);
		return take_message(peer, &m);
	case WIRE_RUN:
		return begin_run(peer, fixed);
	case WIRE_WRITE:
		return begin_write(peer, f, fixed);
	case WIRE_READ:
		return take_read(peer, fixed);
	case WIRE_READ_REPLY:
		return begin_read_reply(peer, f, fixed);
	case WIRE_ATOMIC:
		return take_atomic(peer, fixed);
	case WIRE_ATOMIC_REPLY:
		return take_atomic_reply(peer, fixed);
	case WIRE_BYE:
		return take_bye(peer, fixed);
	default:
		return true; /* PING */
	}
}

/* ---- bytes ------------------------------------------------------------------------------ */

static void data_done(struct tcp_peer *peer)
{
	struct tcp_receive *rx = &peer->receive;
	const struct net_message *told = NULL;
	struct net_op *op = rx->op;

	rx->data = NULL;
	rx->op = NULL;
	if (rx->run_count) {
		told = &rx->run[rx->run_at++].message;
		if (rx->run_at < rx->run_count) {
			rx->data = rx->run[rx->run_at].to;
			rx->data_left = rx->run_length;
		} else {
			rx->run_count = 0;
		}
	}
	if (op)
		net_op_end(peer->line.base.net, op, 0);
	if (told)
		take_message(peer, told);
}

/* `n` bytes of data have come to their places. Returns false if the link must end. */
static bool data_came(struct tcp_peer *peer, size_t n)
{
	struct tcp_receive *rx = &peer->receive;

	while (n) {
		uint32_t some = (uint32_t)MIN(n, (size_t)rx->data_left);

		rx->data += some;
		rx->data_left -= some;
		n -= some;
		if (rx->data_left == 0)
			data_done(peer);
		if (atomic_load_explicit(&peer->line.cut_code, memory_order_relaxed))
			return false;
	}
	return true;
}

/* The places of the next bytes: the data of a frame that has begun, then the buffer. */
static unsigned receive_places(struct tcp_peer *peer, struct iovec *iov, size_t *data)
{
	struct tcp_receive *rx = &peer->receive;
	size_t space = TCP_RECEIVE_BYTES - rx->end;
	unsigned count = 0;

	*data = 0;
	if (rx->data_left) {
		iov[count++] = (struct iovec){rx->data, rx->data_left};
		*data = rx->data_left;
	}
	for (unsigned i = rx->run_at + 1; i < rx->run_count; i++) {
		tcp_iov_add(iov, &count, rx->run[i].to, rx->run_length);
		*data += rx->run_length;
	}
	/* A long frame may follow a long one. Its data should not go through the buffer. */
	if (rx->long_ones)
		space = MIN(space, LOOK_BYTES);
	iov[count++] = (struct iovec){rx->buffer + rx->end, space};
	return count;
}

/* Moves the frame's data in the buffer to its place. */
static void move_data(struct tcp_peer *peer)
{
	struct tcp_receive *rx = &peer->receive;
	uint32_t n = MIN(rx->data_left, rx->end - rx->first);

	racy_copy(rx->data, rx->buffer + rx->first, n);
	rx->first += n;
	data_came(peer, n);
}

/* The run's numbers have not been checked yet. The receiver must not wait for bytes that may never
 * come. */
static bool run_head_fits(const struct wire_frame *f, const struct wire_run *run)
{
	return run->count <= WIRE_RUN_MAX && run->packed <= run->count * WIRE_PACKED_MAX &&
	       sizeof(*run) + wire_run_head(run) <= f->bytes;
}

/* The bytes that a frame's check needs, if they have arrived; else 0. */
static uint32_t head_bytes(const struct wire_frame *f, const uint8_t *at, unsigned there)
{
	uint32_t bytes = sizeof(*f) + wire_fixed_bytes(f->type);
	struct wire_run run;

	if (f->type == WIRE_RUN && there >= bytes) {
		memcpy(&run, at + sizeof(*f), sizeof(run));
		if (run_head_fits(f, &run)) /* else it is refused */
			bytes += wire_run_head(&run);
	}
	return there >= bytes ? bytes : 0;
}

static bool check_head(struct tcp_peer *peer, const struct wire_frame *f)
{
	if (!wire_head_whole(f))
		return changed_on_the_way(peer);
	return wire_frame_check(f) || cut_wrong(peer, -EPROTO);
}

/* Handles all whole frames of the buffer. The rest moves to its front. */
static void take_frames(struct tcp_peer *peer)
{
	struct tcp_receive *rx = &peer->receive;

	while (!atomic_load_explicit(&peer->line.cut_code, memory_order_relaxed)) {
		unsigned there = rx->end - rx->first;
		const uint8_t *at = rx->buffer + rx->first;
		struct wire_frame f;
		uint32_t head;

		if (rx->data_left) {
			if (there == 0)
				break;
			move_data(peer);
			continue;
		}
		if (there < sizeof(f))
			break;
		memcpy(&f, at, sizeof(f));
		if (!check_head(peer, &f))
			return;
		head = head_bytes(&f, at, there);
		if (head == 0)
			break;
		rx->first += head;
		if (!take_frame(peer, &f, at + sizeof(f), head - (uint32_t)sizeof(f)))
			return;
	}
	memmove(rx->buffer, rx->buffer + rx->first, rx->end - rx->first);
	rx->end -= rx->first;
	rx->first = 0;
}

bool tcp_receive(struct tcp_peer *peer)
{
	struct tcp_receive *rx = &peer->receive;
	struct iovec iov[WIRE_RUN_MAX + 1];
	size_t room, data, direct;
	unsigned count;
	ssize_t n;

	if (atomic_load(&peer->line.cut_code))
		return false;
	count = receive_places(peer, iov, &data);
	room = data + iov[count - 1].iov_len;
	n = net_stream_recv(&peer->stream, iov, count);
	if (n == -EAGAIN)
		return false;
	if (n <= 0)
		return cut_wrong(peer, -ECONNRESET);
	net_after_receive(&peer->line.base);
	atomic_store_explicit(&peer->heard, true, memory_order_relaxed);
	net_count(&peer->line.base.counters.calls_in, 1);
	/* Less than there was room for: that was all. A record of TLS gives no such proof. */
	room = (size_t)n == room || peer->stream.tls ? 1 : 0;
	direct = MIN((size_t)n, data);
	rx->end += (unsigned)((size_t)n - direct);
	if (!data)
		rx->long_ones = false; /* one receive */
	if (data_came(peer, direct))
		take_frames(peer);
	/* Messages that handlers held back go out with the last answer. */
	net_queue_flush(peer->line.base.net, NET_URGENT);
	if (atomic_load_explicit(&peer->owed, memory_order_relaxed) >= WIRE_WINDOW / 4)
		tcp_push(peer, true);
	return room;
}

/* ---- waiting -------------------------------------------------------------------------------- */

/* Receives until nothing is there, because no other task may know of the rest. */
static void receive_all(struct tcp_peer *peer)
{
	rt_mutex_lock(&peer->line.event_lock);
	while (tcp_receive(peer))
		;
	rt_mutex_unlock(&peer->line.event_lock);
}

/* The poller reports the rest, but not bytes that TLS has read ahead. */
void tcp_receive_some(struct tcp_peer *peer)
{
	rt_mutex_lock(&peer->line.event_lock);
	while (tcp_receive(peer) && peer->stream.tls)
		;
	rt_mutex_unlock(&peer->line.event_lock);
}

int tcp_wait(struct net *base, struct net_peer *likely, _Atomic uint32_t *word,
	uint32_t expected, uint64_t deadline_ns)
{
	struct tcp_peer *peer = likely ? tcp_peer_of(likely) : NULL;
	int rc = 0;

	if (atomic_load_explicit(word, memory_order_acquire) != expected)
		return 0;
	if (!peer || !likely->up || !net_lead_begin(&peer->line))
		return net_lead_sleep(connect_net_of(base), word, expected, deadline_ns);
	while (rc == 0) {
		atomic_store(&peer->line.leads_for, word);
		if (atomic_load(word) != expected || net_lead_over(&peer->line))
			break;
		rc = rt_socket_wait(peer->stream.socket, deadline_ns);
		atomic_store(&peer->line.leads_for, NULL);
		receive_all(peer);
	}
	atomic_store(&peer->line.leads_for, NULL);
	net_lead_end(&peer->line);
	return rc;
}
