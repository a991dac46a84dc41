/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Structures and functions that the files of the verbs transport share (docs/transports.md,
 * "verbs"; ScaleStore §3.5, §4.3).
 *
 * Locks, in order: event_lock of a link, then send_lock of any link, then kick_lock of any. Only
 * the progress task uses devices, and pairs that are no links yet.
 */
#ifndef WEFT_NET_VERBS_INTERNAL_H
#define WEFT_NET_VERBS_INTERNAL_H

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#include "engine/net/connect.h"
#include "engine/net/verbs_limits.h"

#define VERBS_DEVICES_MAX 8u
#define VERBS_CHAIN       32u /* work requests behind one doorbell */
#define VERBS_POLL        32u /* completions taken at once */
#define VERBS_SLOT_BYTES  1024u /* messages of one send, packed (wire.h) */

/* Immediate data: kind in the high 8 bits, messages taken so far in the low 24. */
enum verbs_kind { VERBS_MESSAGE = 1, VERBS_CONTROL = 2 };
#define VERBS_COUNT_MASK 0xffffffu

/* A device: a card, or software in place of one. */
struct verbs_device {
	struct connect_source source; /* its asynchronous events */
	struct ibv_context *context;  /* librdmacm's; NULL: none here */
	struct rt_socket *events;
	struct ibv_pd *pd;
	struct ibv_mr *region[NET_REGIONS_MAX];
	struct ibv_device_attr limits;
	unsigned pairs; /* pairs of this node */
	bool windows;   /* it has memory windows of type 2 */
	bool gone;      /* it was removed: no new pairs */
};

/* A queue pair with its memory. It is made beside a connection, which then becomes the pair's
 * link. */
struct verbs_pair {
	struct net_connection *connection; /* NULL: it belongs to a link */
	struct verbs_peer *peer;           /* the peer of its link; NULL: none yet */
	struct verbs_device *device;
	uint8_t token[WIRE_TOKEN_BYTES];
	struct rdma_cm_id *id;
	struct ibv_comp_channel *channel;
	struct rt_socket *bell; /* readable: the channel has an event */
	struct ibv_cq *cq;
	struct ibv_mw *window[NET_REGIONS_MAX];
	struct ibv_mr *own[NET_REGIONS_MAX]; /* for devices without windows */
	/* Receive slots, then slots to send from, then words for atomics' results. */
	uint8_t *memory;
	size_t memory_bytes;
	struct ibv_mr *memory_key;
	unsigned depth, receives, inline_bytes;
	uint32_t key[NET_REGIONS_MAX]; /* the keys that the other end gets */
	struct wire_keys theirs;
	bool connected, heard; /* our keys were sent; the other end's are here */
};

/* An entry that waits to be posted. */
struct verbs_entry {
	struct net_message m;
	struct net_op *op; /* NULL: the message */
};

/* An entry that was posted and has not ended. */
struct verbs_posted {
	struct net_op *op;  /* or NULL */
	struct ibv_mr *key; /* of its local memory, made for it; or NULL */
};

/* Under send_lock. */
struct verbs_send {
	struct verbs_entry *queue; /* a ring of NET_QUEUE_MAX; line.queued of them wait */
	unsigned first;
	struct verbs_posted posted[VERBS_DEPTH]; /* by sequence number */
	uint64_t head, tail;                     /* ended; posted */
	unsigned silent;      /* posted since the last one that reports its end */
	uint32_t window;      /* the peer's */
	uint32_t sent, given; /* messages; and those of them that the peer has taken */
	unsigned reads;       /* reads and atomics that wait to be posted, or were posted */
	bool control;         /* the next chain must report how many were taken */
	bool moved;           /* an entry has ended since the last tick */
	struct ibv_send_wr wr[VERBS_CHAIN];
	struct ibv_sge sge[VERBS_CHAIN];
};

struct verbs_peer {
	struct connect_peer line;
	struct net_stream stream; /* under send_lock; reading: the progress task */
	struct verbs_pair *pair;  /* changed under both locks */
	struct connect_source bell_source;
	struct verbs_send send;
	/* event_lock */
	bool armed; /* the next completion makes an event */
	uint8_t bye[sizeof(struct wire_last)];
	unsigned bye_bytes;
	_Atomic uint32_t taken, told; /* messages taken; how many of them the peer knows */
	_Atomic bool heard, spoke;    /* since the last tick */
	unsigned silent_ticks, stuck_ticks;
	unsigned luck, tries; /* the leader's: whether polling on pays */
};

struct verbs_net {
	struct connect_net lines;
	struct connect_source manager_source;
	struct rdma_event_channel *manager;
	struct rt_socket *manager_events;
	struct rdma_cm_id *listener[CONNECT_PLACES_MAX]; /* NULL: none at that place */
	struct verbs_device devices[VERBS_DEVICES_MAX];
};

static inline struct verbs_net *verbs_net_of(struct net *net)
{
	return container_of(net, struct verbs_net, lines.base);
}

static inline struct verbs_peer *verbs_peer_of(struct net_peer *peer)
{
	return container_of(peer, struct verbs_peer, line.base);
}

/* ---- verbs.c ------------------------------------------------------------------------------ */

void verbs_cut(struct net_peer *peer, int code);
void verbs_cut_locked(struct connect_peer *line, int code);

/* ---- verbs_device.c: cards, and pairs as objects ----------------------------------------- */

/* Returns the device behind that context, and makes it ready at its first use. NULL: `why` gives
 * the error. */
struct verbs_device *verbs_device_get(
	struct verbs_net *net, struct ibv_context *context, struct weft_error *why);
void verbs_device_event(struct verbs_net *net, struct verbs_device *device);
void verbs_devices_close(struct verbs_net *net);
/* The key of local memory that lies in a region; NULL: it does not. */
struct ibv_mr *verbs_region_key(const struct net *net, const struct verbs_device *device,
	const void *at, size_t bytes);
/* Makes the queues and the memory of a pair whose id is bound to a device, and posts receives. */
int verbs_pair_make(
	struct verbs_net *net, struct verbs_pair *pair, struct weft_error *why);
/* Makes keys for the other end. The pair is connected. */
int verbs_pair_open(
	struct verbs_net *net, struct verbs_pair *pair, struct weft_error *why);
/* When it returns, the device touches no memory for the pair. */
void verbs_pair_stop(struct verbs_pair *pair);
/* NULL is allowed. */
void verbs_pair_free(struct verbs_pair *pair);
int verbs_nonblocking(int fd);
/* The -errno of a completion that failed. */
int verbs_status(enum ibv_wc_status status);

/* ---- verbs_limits.c: what a device can do ------------------------------------------------ */

/* Reads and atomics that may be under way, for the end that requests and the end that serves
 * them. */
struct verbs_reads {
	uint8_t asked, served;
};

/* Whether the device is good for any link: 0, or -errno. */
int verbs_limits_device(const struct verbs_device *device, struct weft_error *why);
/* Sets the depth of a pair's queues. */
int verbs_limits_pair(struct verbs_pair *pair, struct weft_error *why);
/* The reads and atomics of a pair. `theirs`: those of the other end, as it sees them; NULL: not
 * known yet. */
struct verbs_reads verbs_limits_reads(
	const struct verbs_device *device, const struct verbs_reads *theirs);
/* NULL: `why` gives the error. */
struct ibv_mr *verbs_register(const struct verbs_device *device, void *at, size_t bytes,
	int access, struct weft_error *why);
/* Writes a text about the queue that could not be made, and how to mend it. Returns -e. */
int verbs_queue_error(
	const struct verbs_pair *pair, struct weft_error *why, int rc, const char *what);
int verbs_window_error(const struct verbs_device *device, struct weft_error *why, int rc);

/* ---- verbs_connect.c: librdmacm ---------------------------------------------------------- */

int verbs_manager_open(struct verbs_net *net, struct weft_error *err);
int verbs_manager_listen(struct connect_net *net, unsigned place, struct weft_error *err);
void verbs_manager_close(struct verbs_net *net);
void verbs_manager_event(struct verbs_net *net);
bool verbs_offer(struct connect_net *net, struct net_connection *c);
int verbs_offered(struct connect_net *net, struct net_connection *c,
	const struct wire_offer *offer);
int verbs_keys(
	struct connect_net *net, struct net_connection *c, const struct wire_keys *keys);
void verbs_leave(struct net_connection *c);

/* ---- verbs_send.c ------------------------------------------------------------------------ */

int verbs_send(struct net_peer *peer, const struct net_message *m, unsigned flags);
int verbs_post(struct net_peer *peer, struct net_op *op, unsigned flags);
/* With send_lock held; drops it. */
void verbs_flush(struct connect_peer *line, unsigned flags);
/* With `control` the peer hears from this node in any case. May call `done` of ops that have
 * ended. */
void verbs_push(struct verbs_peer *peer, bool control);
/* Handles the results of completions. All posted entries up to `sequence` have ended; UINT64_MAX:
 * unknown. With `counted` the peer has taken `taken` messages. */
void verbs_progress(
	struct verbs_peer *peer, uint64_t sequence, bool counted, uint32_t taken);
/* A link begins: its pair is there. */
void verbs_send_begin(struct verbs_peer *peer);
/* Returns all ops that had not ended, linked by `next`. The pair has stopped. */
struct net_op *verbs_send_reset(struct verbs_peer *peer);

/* ---- verbs_receive.c --------------------------------------------------------------------- */

/* Posts receives for slots of the pair. Returns 0 or -errno. */
int verbs_receives_post(struct verbs_pair *pair, const uint16_t *slots, unsigned count);
/* Takes the messages that have arrived, under event_lock. Returns true if there were any. Handlers
 * run. */
bool verbs_receive(struct verbs_peer *peer);
/* Receives until nothing is there. An event follows when there is more. For the progress task. */
void verbs_serve(struct verbs_peer *peer);
int verbs_wait(struct net *net, struct net_peer *likely, _Atomic uint32_t *word,
	uint32_t expected, uint64_t deadline_ns);

#endif
