/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of the verbs transport share (docs/protocol.md, "verbs"; ScaleStore §3.5,
 * §4.3).
 *
 * Locks, in order: event_lock of a link, then send_lock of any link, then kick_lock of any.
 * Devices, and pairs that are no links yet, are the progress task's own.
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

/* Immediate data: kind in the high 8 bits, messages taken so far in the low 24. */
enum verbs_kind { VERBS_MESSAGE = 1, VERBS_CONTROL = 2 };
#define VERBS_COUNT_MASK 0xffffffu

/* A card, or what stands for one. */
struct verbs_device {
	struct connect_source source; /* its asynchronous events */
	struct ibv_context *context;  /* librdmacm's; NULL: none here */
	struct rt_socket *events;
	struct ibv_pd *pd;
	struct ibv_mr *region[NET_REGIONS_MAX];
	struct ibv_device_attr limits;
	unsigned pairs; /* of ours */
	bool windows;   /* it has memory windows of type 2 */
	bool gone;      /* it was removed: no new pairs */
};

/*
 * A queue pair and all that belongs to it. Made beside a connection, which then becomes
 * the link that has it.
 */
struct verbs_pair {
	struct net_connection *connection; /* NULL: it is a link's */
	struct verbs_peer *peer;           /* whose link; NULL: none yet */
	struct verbs_device *device;
	uint8_t token[WIRE_TOKEN_BYTES];
	struct rdma_cm_id *id;
	struct ibv_comp_channel *channel;
	struct rt_socket *bell; /* readable: the channel has an event */
	struct ibv_cq *cq;
	struct ibv_mw *window[NET_REGIONS_MAX];
	struct ibv_mr *own[NET_REGIONS_MAX]; /* where there are no windows */
	/* Receive slots, then slots to send from, then words for atomics' results. */
	uint8_t *memory;
	size_t memory_bytes;
	struct ibv_mr *memory_key;
	unsigned depth, receives, inline_bytes;
	uint32_t key[NET_REGIONS_MAX]; /* that the other end is told */
	struct wire_keys theirs;
	bool connected, heard; /* our keys were said; theirs are here */
};

/* What waits to be posted. */
struct verbs_entry {
	struct net_message m;
	struct net_op *op; /* NULL: the message */
};

/* What was posted and has not ended. */
struct verbs_posted {
	struct net_op *op;  /* or NULL */
	struct ibv_mr *key; /* of its local memory, made for it; or NULL */
};

/* Under send_lock. */
struct verbs_send {
	struct verbs_entry *queue; /* NET_QUEUE_MAX, a ring: line.queued of them wait */
	unsigned first;
	struct verbs_posted posted[VERBS_DEPTH]; /* by sequence number */
	uint64_t head, tail;                     /* ended; posted */
	unsigned silent;      /* posted since the last that will say when it ends */
	uint32_t window;      /* the peer's */
	uint32_t sent, given; /* messages; and those that the peer has taken of them */
	unsigned reads;       /* reads and atomics that wait to be posted, or were */
	bool control;         /* say how many were taken with the next chain */
	bool moved;           /* something has ended since the last tick */
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
	_Atomic uint32_t taken, told; /* messages; as far as the peer knows */
	_Atomic bool heard, spoke;    /* since the last tick */
	unsigned silent_ticks, stuck_ticks;
	unsigned luck, tries; /* the leader's: does looking on pay? */
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

/* ---- verbs_device.c: cards, and pairs as objects ---------------------------------------------- */

/* The device behind that context, made ready at its first use. NULL: why says so. */
struct verbs_device *verbs_device_get(
	struct verbs_net *net, struct ibv_context *context, struct weft_error *why);
void verbs_device_event(struct verbs_net *net, struct verbs_device *device);
void verbs_devices_close(struct verbs_net *net);
/* The key of local memory that lies in a region; NULL: it does not. */
struct ibv_mr *verbs_region_key(const struct net *net, const struct verbs_device *device,
	const void *at, size_t bytes);
/* Queues and memory of a pair whose id is bound to a device; receives are posted. */
int verbs_pair_make(
	struct verbs_net *net, struct verbs_pair *pair, struct weft_error *why);
/* Keys for the other end. The pair is connected. */
int verbs_pair_open(
	struct verbs_net *net, struct verbs_pair *pair, struct weft_error *why);
/* From here on the device touches no memory for it. */
void verbs_pair_stop(struct verbs_pair *pair);
/* NULL is fine. */
void verbs_pair_free(struct verbs_pair *pair);
int verbs_nonblocking(int fd);
/* -errno of a completion that failed. */
int verbs_status(enum ibv_wc_status status);

/* ---- verbs_limits.c: what a device can do ---------------------------------------------------------- */

/* Reads and atomics that may be under way, by who asks for them and by who serves them. */
struct verbs_reads {
	uint8_t asked, served;
};

/* Is it good for any link? 0, or -errno. */
int verbs_limits_device(const struct verbs_device *device, struct weft_error *why);
/* How deep a pair's queues are. */
int verbs_limits_pair(struct verbs_pair *pair, struct weft_error *why);
/* What the other end does, seen from there; NULL: not known yet. */
struct verbs_reads verbs_limits_reads(
	const struct verbs_device *device, const struct verbs_reads *theirs);
/* NULL: why says so. */
struct ibv_mr *verbs_register(const struct verbs_device *device, void *at, size_t bytes,
	int access, struct weft_error *why);
/* Words for what could not be made, and what to do; -e. */
int verbs_queue_error(
	const struct verbs_pair *pair, struct weft_error *why, int e, const char *what);
int verbs_window_error(const struct verbs_device *device, struct weft_error *why, int e);

/* ---- verbs_connect.c: librdmacm ----------------------------------------------------------------- */

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

/* ---- verbs_send.c --------------------------------------------------------------------------------- */

int verbs_send(struct net_peer *peer, const struct net_message *m, unsigned flags);
int verbs_post(struct net_peer *peer, struct net_op *op, unsigned flags);
/* With send_lock held, which it drops. */
void verbs_flush(struct connect_peer *line, unsigned flags);
/* With control: the peer hears from us in any case. `done` of what has ended may run. */
void verbs_push(struct verbs_peer *peer, bool control);
/*
 * What completions said: all up to `sequence` of what was posted have ended (UINT64_MAX:
 * nothing was said of that); with `counted`, the peer has taken `taken` messages.
 */
void verbs_progress(
	struct verbs_peer *peer, uint64_t sequence, bool counted, uint32_t taken);
/* A link begins: its pair is there. */
void verbs_send_begin(struct verbs_peer *peer);
/* All that had not ended, by `next`. The pair has stopped. */
struct net_op *verbs_send_reset(struct verbs_peer *peer);

/* ---- verbs_receive.c ------------------------------------------------------------------------------- */

/* Posts receives for slots of the pair: 0 or -errno. */
int verbs_receives_post(struct verbs_pair *pair, const uint16_t *slots, unsigned count);
/* Takes what has come, under event_lock: true if something had. Handlers run. */
bool verbs_receive(struct verbs_peer *peer);
/* Until nothing is there; an event follows when there is more. By the progress task. */
void verbs_serve(struct verbs_peer *peer);
int verbs_wait(struct net *net, struct net_peer *likely, _Atomic uint32_t *word,
	uint32_t expected, uint64_t deadline_ns);

#endif
