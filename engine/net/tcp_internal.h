/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Structures and functions that the files of the tcp transport share.
 *
 * Locks, in order: event_lock of a link, then send_lock of any link, then kick_lock of any.
 * Handlers run under event_lock only. Only the progress task uses a field, unless a lock is named
 * beside it.
 */
#ifndef WEFT_NET_TCP_INTERNAL_H
#define WEFT_NET_TCP_INTERNAL_H

#include "engine/net/connect.h"

#define TCP_RECEIVE_BYTES (64u << 10)
#define TCP_HEAD_MAX      (sizeof(struct wire_frame) + WIRE_FIXED_MAX)
#define TCP_NO_SLOT       UINT32_MAX
#define TCP_RUNS          4u /* those that are being sent at once */
#define TCP_RUN_REST      (WIRE_RUN_MAX * (sizeof(uint64_t) + WIRE_PACKED_MAX))

/* ---- a link's sending half ---------------------------------------------------------- */

/* The head of several frames that leave as one. */
struct tcp_run {
	struct wire_frame head;
	struct wire_run run;
	uint8_t rest[TCP_RUN_REST]; /* offsets and messages */
};

/* A frame to be sent: its head is this node's, then data of the caller's. */
struct tcp_frame {
	uint8_t head[TCP_HEAD_MAX];
	uint16_t head_bytes; /* 0: the run's head has it */
	uint8_t type;
	struct tcp_run *leads; /* its head is the run's; or NULL */
	uint32_t data_bytes;
	const uint8_t *data;
	struct net_op *op; /* of a write, which ends when the frame is sent; or NULL */
};

struct tcp_send {
	struct tcp_frame *frames; /* NET_QUEUE_MAX */
	unsigned first;           /* in the ring; line.queued of them wait */
	unsigned prepared;        /* of these: credit is taken, the header filled in */
	size_t sent;              /* bytes of the first frame that are sent */
	uint32_t credits;         /* messages that the peer lets this node send */
	uint32_t window;          /* the peer's */
	bool sending;             /* a task is in the system call: it alone takes frames off */
	bool blocked;             /* the socket took fewer bytes than there were */
	bool moved;               /* bytes were sent since the last tick */
	struct tcp_run run[TCP_RUNS]; /* used in turn */
	unsigned runs, next_run;      /* in use; the next */
	struct wire_frame ping;            /* goes out before the next frame */
	unsigned ping_left;                /* its bytes that are left */
	uint32_t replies;                  /* reads and atomics that the peer waits for */
	struct net_op *slots[NET_OPS_MAX]; /* reads and atomics that this node waits for */
	uint64_t slots_used[NET_OPS_MAX / 64];
};

/* ---- a link's receiving half: all under event_lock ----------------------------------- */

struct tcp_receive {
	uint8_t *buffer; /* TCP_RECEIVE_BYTES */
	unsigned first, end;
	/* Data of a frame that goes to its place at once. */
	uint8_t *data;
	uint32_t data_left;
	struct net_op *op; /* the read that receives it; or NULL */
	bool long_ones;    /* the last frame with data was a long one, or a run */
	/* A run: the data behind `data`, and the messages that follow it. */
	struct {
		uint8_t *to;
		struct net_message message;
	} run[WIRE_RUN_MAX];
	unsigned run_at, run_count; /* run_at: the entry that `data` belongs to */
	uint32_t run_length;
};

struct tcp_peer {
	struct connect_peer line;
	/* The link: changed under both locks. */
	struct net_stream stream;
	struct tcp_send send;
	struct tcp_receive receive;
	_Atomic uint32_t owed;     /* messages taken whose credits are not given back */
	_Atomic uint32_t allowed;  /* messages that the peer may still send */
	_Atomic bool heard, spoke; /* since the last tick */
	unsigned silent_ticks, stuck_ticks;
	bool want_write; /* send_lock: the poller reports when there is room */
};

static inline struct tcp_peer *tcp_peer_of(struct net_peer *peer)
{
	return container_of(peer, struct tcp_peer, line.base);
}

/* Adds one piece. A piece that lies behind the last one extends it, since the kernel copies long
 * pieces faster. */
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

/* For any task that does not hold send_lock. The progress task then ends the link. */
void tcp_cut(struct net_peer *peer, int code);
/* The same with send_lock held. */
void tcp_cut_locked(struct connect_peer *line, int code);
void tcp_watch(struct tcp_peer *peer, bool want_write);

/* ---- tcp_send.c ---------------------------------------------------------------------------- */

int tcp_send(struct net_peer *peer, const struct net_message *m, unsigned flags);
int tcp_post(struct net_peer *peer, struct net_op *op, unsigned flags);
/* With send_lock held; drops it. */
void tcp_flush(struct connect_peer *line, unsigned flags);
/* Sends as much as it can, because credits have come, or the socket has room. Handlers may run.
 * With `ping` the peer hears from this node in any case. */
void tcp_push(struct tcp_peer *peer, bool ping);
void tcp_credits_came(struct tcp_peer *peer, uint32_t n);
/* Answer the peer. If there is no room, they cut the link, and return -ENOTCONN. */
int tcp_reply_read(struct tcp_peer *peer, const struct wire_read *r, const uint8_t *data);
int tcp_reply_refuse(struct tcp_peer *peer, uint8_t type, uint32_t op);
int tcp_reply_atomic(struct tcp_peer *peer, uint32_t op, uint64_t value);
/* Takes the op that waits out of that slot, if it is of that type. Else returns NULL. */
struct net_op *tcp_slot_take(struct tcp_peer *peer, uint32_t slot, bool atomic);
/* Sends the last frame of a link, if that works at once. */
void tcp_bye(struct tcp_peer *peer, uint32_t reason);
/* Returns all ops that had not ended, linked by `next`. The queue is empty then. No task is
 * sending. */
struct net_op *tcp_send_reset(struct tcp_peer *peer, uint32_t window);

/* ---- tcp_receive.c -------------------------------------------------------------------------- */

/* Takes the bytes that have arrived, under event_lock. Returns true if there may be more. Handlers
 * run. Wrong bytes cut the link. */
bool tcp_receive(struct tcp_peer *peer);
/* The same; takes event_lock. */
void tcp_receive_some(struct tcp_peer *peer);
int tcp_wait(struct net *net, struct net_peer *likely, _Atomic uint32_t *word,
	uint32_t expected, uint64_t deadline_ns);

#endif
