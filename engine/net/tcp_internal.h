/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of the tcp transport share.
 *
 * Locks, in order: event_lock of a link, then send_lock of any link, then kick_lock of any.
 * Handlers run under event_lock only. Everything without a lock's name beside it is the
 * progress task's own.
 */
#ifndef WEFT_NET_TCP_INTERNAL_H
#define WEFT_NET_TCP_INTERNAL_H

#include "engine/net/connect.h"

#define TCP_RECEIVE_BYTES (64u << 10)
#define TCP_HEAD_MAX      (sizeof(struct wire_frame) + WIRE_FIXED_MAX)
#define TCP_NO_SLOT       UINT32_MAX

/* ---- a link's sending half ---------------------------------------------------------- */

/* The head of several frames that leave as one. */
struct tcp_run {
	struct wire_frame head;
	struct wire_run run;
	struct wire_run_entry entry[WIRE_RUN_MAX];
};

/* A frame to be sent: a head of ours, then data of somebody's. */
struct tcp_frame {
	uint8_t head[TCP_HEAD_MAX];
	uint16_t head_bytes; /* 0: it is said in the run's head */
	uint8_t type;
	bool leads; /* its head is the run's */
	uint32_t data_bytes;
	const uint8_t *data;
	struct net_op *op; /* a write's, which ends when the frame is sent; or NULL */
};

struct tcp_send {
	struct tcp_frame *frames; /* NET_QUEUE_MAX */
	unsigned first;           /* of a ring; line.queued of them wait */
	unsigned prepared;        /* of them: credit taken, header filled in */
	size_t sent;              /* bytes of the first frame that are gone */
	uint32_t credits;         /* messages that the peer lets us send */
	uint32_t window;          /* the peer's */
	bool sending;  /* a task is in the system call: it alone takes frames off */
	bool blocked;  /* the socket took less than we had */
	bool moved;    /* something was sent since the last tick */
	bool run_used; /* the frame that leads the run has not left yet */
	struct tcp_run run;
	struct wire_frame ping;            /* goes out before the next frame */
	unsigned ping_left;                /* bytes of it */
	uint32_t replies;                  /* reads and atomics that the peer waits for */
	struct net_op *slots[NET_OPS_MAX]; /* reads and atomics that we wait for */
	uint64_t slots_used[NET_OPS_MAX / 64];
};

/* ---- a link's receiving half: all under event_lock ----------------------------------- */

struct tcp_receive {
	uint8_t *buffer; /* TCP_RECEIVE_BYTES */
	unsigned first, end;
	/* Data of a frame that goes to its place at once. */
	uint8_t *data;
	uint32_t data_left;
	struct net_op *op; /* the read that it is for; or NULL */
	bool long_ones;    /* the last frame with data was a long one, or a run */
	/* A run: what is behind `data` in it, and what is told then. */
	struct {
		uint8_t *to;
		struct net_message message;
	} run[WIRE_RUN_MAX];
	unsigned run_at, run_count; /* run_at: the one that `data` is of */
	uint32_t run_length;
};

struct tcp_peer {
	struct connect_peer line;
	/* The link: changed under both locks. */
	struct net_stream stream;
	struct tcp_send send;
	struct tcp_receive receive;
	_Atomic uint32_t owed;     /* messages taken, whose credits are not given back */
	_Atomic uint32_t allowed;  /* messages that the peer may still send */
	_Atomic bool heard, spoke; /* since the last tick */
	unsigned silent_ticks, stuck_ticks;
	bool want_write; /* send_lock: the poller tells when there is room */
};

static inline struct tcp_peer *tcp_peer_of(struct net_peer *peer)
{
	return container_of(peer, struct tcp_peer, line.base);
}

/* One piece more; what lies behind the last one becomes part of it: the kernel copies long
 * pieces for less. */
static inline void tcp_iov_add(
	struct iovec *iov, unsigned *n, uint8_t *base, size_t bytes)
{
	struct iovec *last = *n ? &iov[*n - 1] : NULL;

	if (last && (uint8_t *)last->iov_base + last->iov_len == base)
		last->iov_len += bytes;
	else
		iov[(*n)++] = (struct iovec){base, bytes};
}

/* ---- tcp.c ------------------------------------------------------------------------------- */

/* By any task that does not hold send_lock; the progress task ends the link then. */
void tcp_cut(struct net_peer *peer, int code);
/* The same with send_lock held. */
void tcp_cut_locked(struct connect_peer *line, int code);
void tcp_watch(struct tcp_peer *peer, bool want_write);

/* ---- tcp_send.c ---------------------------------------------------------------------------- */

int tcp_send(struct net_peer *peer, const struct net_message *m, unsigned flags);
int tcp_post(struct net_peer *peer, struct net_op *op, unsigned flags);
/* With send_lock held, which it drops. */
void tcp_flush(struct connect_peer *line, unsigned flags);
/*
 * Sends what it can, handlers may run: credits have come, or the socket has room. With
 * ping: the peer hears from us in any case.
 */
void tcp_push(struct tcp_peer *peer, bool ping);
void tcp_credits_came(struct tcp_peer *peer, uint32_t n);
/* Answers for the peer; -EAGAIN when there is no room, the link is cut then. */
int tcp_reply_read(struct tcp_peer *peer, const struct wire_read *r, const uint8_t *data);
int tcp_reply_refuse(struct tcp_peer *peer, uint8_t type, uint32_t op);
int tcp_reply_atomic(struct tcp_peer *peer, uint32_t op, uint64_t value);
/* The op that waits in that slot, taken out of it if it is of that type; or NULL. */
struct net_op *tcp_slot_take(struct tcp_peer *peer, uint32_t slot, bool atomic);
/* The last frame of a link, if it can be said at once. */
void tcp_bye(struct tcp_peer *peer, uint32_t reason);
/* All that had not ended, by `next`; the queue is empty then. No task is sending. */
struct net_op *tcp_send_reset(struct tcp_peer *peer, uint32_t window);

/* ---- tcp_receive.c -------------------------------------------------------------------------- */

/*
 * Takes what has come, under event_lock: true if there may be more. Handlers run. What is
 * wrong cuts the link.
 */
bool tcp_receive(struct tcp_peer *peer);
/* The same, taking event_lock. */
void tcp_receive_some(struct tcp_peer *peer);
int tcp_wait(struct net *net, struct net_peer *likely, _Atomic uint32_t *word,
	uint32_t expected, uint64_t deadline_ns);

#endif
