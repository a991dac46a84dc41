/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The network between the nodes of a cluster: messages of 64 bytes, and one-sided write,
 * read, compare-and-swap and fetch-and-add on registered memory of a peer.
 *
 * docs/protocol.md, "Transports", says what is promised (order, what a cut does) and what
 * travels. Nothing above depends on which transport runs. This layer knows nothing of
 * clusters: the caller says who it is, who the peers are and where.
 *
 * One `struct net` is this node's endpoint; one `struct net_peer` is another node, for as
 * long as the endpoint lives, connected or not. Connecting, and connecting again after a
 * cut, goes on in the background. Functions that can wait say so.
 */
#ifndef WEFT_NET_H
#define WEFT_NET_H

#include <stdatomic.h>

#include "engine/common/base.h"
#include "engine/net/message.h"

struct net;
struct net_peer;

#define NET_KEY_BYTES     32u
#define NET_UUID_BYTES    16u
#define NET_NODES_MAX     1024u      /* node ids are below */
#define NET_REGIONS_MAX   16u        /* region ids are below */
#define NET_TRANSFER_MAX  (1u << 20) /* bytes of one write or read */
#define NET_OPS_MAX       256u       /* reads and atomics in flight to one peer */
#define NET_QUEUE_MAX     16384u /* messages and ops of one peer that wait to be sent */
#define NET_ADDRESSES_MAX 4u
#define NET_ADDRESS_BYTES 256u /* of a list of them, with the end */

/* ---- the endpoint --------------------------------------------------------------- */

enum net_role { NET_ROLE_STORAGE = 1, NET_ROLE_CLIENT = 2 };

/* Who a node says it is. */
struct net_identity {
	uint8_t volume_uuid[NET_UUID_BYTES];
	uint8_t cluster_uuid[NET_UUID_BYTES];
	uint8_t node_uuid[NET_UUID_BYTES]; /* the node's own, for good */
	uint64_t incarnation;              /* raised at every start */
	uint16_t node;
	uint8_t role; /* enum net_role */
};

enum net_event_kind {
	NET_LINK_UP,   /* messages may be sent, and follow */
	NET_LINK_DOWN, /* none follow; all ops have ended; the peer's access is over */
	/* An attempt to connect ended, perhaps another's than the one that is up: `code` and
	 * `text` say why. */
	NET_LINK_REFUSED,
};

struct net_event {
	enum net_event_kind kind;
	int code; /* why: negative errno; 0 for UP */
	bool dialed; /* it was this node that connected. REFUSED: so it is no stranger's doing */
	bool proven; /* REFUSED, not dialed: the other end has the key. If not, the network has told
			the log of it, and anybody may have sent it */
	uint64_t session;     /* counts the links with this peer */
	uint64_t incarnation; /* the peer's */
	enum net_role role;   /* the peer's */
	const char *
		address; /* UP: by which of its addresses the listening end was reached */
	const char *text; /* for people; valid during the call */
};

/*
 * Messages and events of one peer come one at a time, in order. They come on a task of
 * the network's, or on one that waits in net_wait, and must not wait themselves; they may
 * call every function below that does not wait, with NET_URGENT where it takes flags.
 */
struct net_handlers {
	void *owner;
	void (*message)(void *owner, struct net_peer *peer, const struct net_message *m);
	void (*event)(void *owner, struct net_peer *peer, const struct net_event *event);
};

struct net_options {
	const char *transport; /* "tcp", "verbs", "shm", "sim" */
	struct net_identity self;
	uint8_t key[NET_KEY_BYTES]; /* the cluster's: who has it is a member */
	/*
	 * Where peers find this node: "host:port" for tcp, verbs and sim, a path of a socket for
	 * shm; or a list of NET_ADDRESSES_MAX at most, separated by commas. It listens at all that
	 * this machine has. NULL: nobody connects to it, it connects to others only.
	 */
	const char *listen;
	bool tls; /* tcp: encrypt; both ends must want it */
	struct net_handlers handlers;
	/* 0 in each: the default */
	uint64_t clock_skew_ns; /* clocks further apart are refused; 60 s */
	uint64_t handshake_ns;  /* a connection that takes longer is cut; 5 s */
	uint64_t stall_ns;      /* a link that says nothing for so long is cut; 10 s */
	uint64_t retry_ns;      /* longest time between two attempts to connect; 1 s */
};

/* Makes the endpoint; nothing listens yet. 0 or -errno. */
int net_open(struct net **out, const struct net_options *o, struct weft_error *err);
/* Listens and connects from now on. Call once, when regions and peers are known. */
int net_start(struct net *net, struct weft_error *err);
/* Where it listens now, with real ports where `listen` had 0; empty: it does not. */
void net_address(struct net *net, char out[NET_ADDRESS_BYTES]);
/*
 * Ends all links, for each of which NET_LINK_DOWN follows, and makes none any more: to others
 * this node has closed. Memory, and all else, stays until net_close. Never waits.
 */
void net_shutdown(struct net *net);
/* Says goodbye, ends all links and frees all. No handler runs after it. Waits. */
void net_close(struct net *net);

/* ---- peers ----------------------------------------------------------------------- */

struct net_peer_options {
	uint16_t node;
	uint8_t node_uuid[NET_UUID_BYTES]; /* zeros: taken from the first link */
	uint64_t incarnation; /* earlier starts of it are over; 0: any may be */
	/*
	 * Where it listens, as in net_options: the first that it is reached at is used. NULL:
	 * it connects to us. Of two nodes that both listen, the one with the higher id
	 * connects.
	 */
	const char *address;
	void *owner; /* for net_peer_owner */
};

/* Also after net_start. Lives as long as the endpoint. -EEXIST, -ENOMEM, -EINVAL. */
int net_peer_add(struct net_peer **out, struct net *net, const struct net_peer_options *o,
	struct weft_error *err);
/* NULL: there is none of that id. */
struct net_peer *net_peer_find(struct net *net, uint16_t node);
uint16_t net_peer_node(const struct net_peer *peer);
void *net_peer_owner(const struct net_peer *peer);
/* That start of it, and all before, are let in no more. A link that there is stays. */
void net_peer_over(struct net_peer *peer, uint64_t incarnation);
struct net *net_of(const struct net_peer *peer);
/* A look from outside: may have changed when it returns. */
bool net_peer_up(const struct net_peer *peer);
/*
 * Ends the link, if there is one; NET_LINK_DOWN with `code` follows. It is made anew at
 * once.
 */
void net_cut(struct net_peer *peer, int code);

/* ---- memory that peers may reach --------------------------------------------------- */

#define NET_REMOTE_READ   (1u << 0)
#define NET_REMOTE_WRITE  (1u << 1)
#define NET_REMOTE_ATOMIC (1u << 2)

/*
 * Zeroed pages that peers reach as (id, offset). Before net_start, and for as long as the
 * endpoint lives. -ENOMEM, -EEXIST, -EINVAL.
 */
int net_region_create(
	struct net *net, uint32_t id, size_t size_bytes, unsigned rights, void **base);
/* The same with memory that is there. -EOPNOTSUPP where peers need memory of ours (shm).
 */
int net_region_adopt(
	struct net *net, uint32_t id, void *base, size_t size_bytes, unsigned rights);

/* ---- bytes that were changed on the way ---------------------------------------------- */

#define NET_CHECKSUM_TRIES                                                               \
	3u /* for data that can be read again, before the link is cut */

/*
 * What the peer sent, or what was read from it, does not have the checksum that came with it.
 * Counts it, and logs it once in a while with the node's name. `what`: as in "a page". The
 * caller asks again, or cuts the link with -EBADMSG. Never waits.
 */
void net_checksum_error(struct net_peer *peer, const char *what);

/* ---- messages ------------------------------------------------------------------------ */

/*
 * More follows: the peer need not get it before the next call for it without the flag, or
 * net_flush.
 */
#define NET_MORE (1u << 0)
/* From a handler: may use the room that is kept for answers. */
#define NET_URGENT (1u << 1)
/*
 * Also may use that room, but holds what the `done` of operations needs: none is called
 * here, and no room is -EAGAIN.
 */
#define NET_ANSWER (1u << 2)
/* net_post: a write that is done before it returns (shm) is not told to `done`: 1. */
#define NET_AT_ONCE (1u << 3)

/*
 * Copies the message and sends it, in the order of calls for this peer. Never waits. 0;
 * -ENOTCONN: no link (a message handed over before a cut may be lost without notice);
 * -EAGAIN: the queue is full, see net_wait_room. An urgent message that finds no room
 * cuts the link: the peer takes nothing.
 */
int net_send(struct net_peer *peer, const struct net_message *m, unsigned flags);
/* What NET_MORE held back goes out now, for all peers. */
void net_flush(struct net *net);
/* Has the queue room for what is no answer? A look: may have changed when it returns. */
bool net_has_room(struct net_peer *peer);
/* Waits until the queue has room or the link is down. 0, -ENOTCONN, -ETIMEDOUT. */
int net_wait_room(struct net_peer *peer, uint64_t deadline_ns);

/* ---- one-sided operations -------------------------------------------------------------- */

enum net_op_kind {
	NET_WRITE, /* local bytes to the region; the message follows them if it has a type */
	NET_READ, /* the region's bytes to local */
	NET_CAS,  /* if the word equals `compare` it becomes `operand`; `value`: before */
	NET_FAA,  /* adds `operand`; `value`: before */
};

/*
 * An operation. It and its local memory are the network's until it is done. Words of CAS
 * and FAA are 64 bits, at multiples of 8.
 */
struct net_op {
	enum net_op_kind kind;
	uint32_t region;
	uint64_t offset;
	void *local;
	uint32_t length; /* 1 .. NET_TRANSFER_MAX; of CAS and FAA not used */
	uint64_t compare, operand;
	struct net_message message; /* with a write: type 0 is none */
	/* Called once when done, as handlers are, before the op may be freed. May be NULL. */
	void (*done)(struct net_op *op);
	void *owner;
	/*
	 * 0. A write: local is free again (that the peer has the bytes is known when it
	 * answers what came after them). The others: value or bytes are here.
	 * -EACCES: the peer has no such memory or does not allow it; the link ends.
	 * -ECONNRESET: the link ended first; what the peer did is not known.
	 * -EOPNOTSUPP: the peer's device has no atomics.
	 */
	int result;
	uint64_t value;
	/* the network's own */
	_Atomic uint32_t state; /* NET_OP_DONE when done */
	uint32_t slot;
	struct net_op *next;
};
#define NET_OP_PENDING 0u
#define NET_OP_DONE    1u

/*
 * Starts it: a write is there before messages and other ops that are started after it for
 * this peer. Never waits. 0, -ENOTCONN, -EAGAIN as net_send; the op is
 * not started then and `done` not called. -EINVAL: it can never be. 1: see NET_AT_ONCE.
 */
int net_post(struct net_peer *peer, struct net_op *op, unsigned flags);
/* Waits until it is done; its result. For ops without `done`. */
int net_op_wait(struct net_peer *peer, struct net_op *op);

/* ---- waiting for an answer --------------------------------------------------------------- */

/*
 * As rt_wait, for a word that a handler changes. Meanwhile the task may serve the
 * network, handlers included, so that an answer from `likely` comes without a change of
 * task; NULL: from anyone. The caller holds nothing that a handler may need. Who changes
 * the word wakes it by net_wake. 0 (also early), or -ETIMEDOUT.
 */
int net_wait(struct net *net, struct net_peer *likely, _Atomic uint32_t *word,
	uint32_t expected, uint64_t deadline_ns);
void net_wake(struct net *net, _Atomic uint32_t *word, int count);

/* ---- counters ------------------------------------------------------------------------------ */

struct net_counters {
	uint64_t messages_out, messages_in;
	uint64_t writes_out, writes_in;
	uint64_t reads_out, reads_in;
	uint64_t atomics_out, atomics_in;
	uint64_t bytes_out, bytes_in; /* of data: messages and headers not counted */
	uint64_t calls_out,
		calls_in; /* system calls, or looks at a ring that found something */
	uint64_t runs_out, runs_in; /* frames that carried several writes (tcp) */
	/* verbs: work requests posted (calls_out: doorbells), those that ask for a completion,
	 * completions taken, registrations for one operation */
	uint64_t requests, signalled, completions, registered;
	uint64_t links, cuts;
	uint64_t checksum_errors; /* what came from the peer was not what it had sent */
};
void net_counters(const struct net_peer *peer, struct net_counters *out);

#endif
