/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The network between the nodes of a cluster: messages of 64 bytes, and one-sided write, read,
 * compare-and-swap and fetch-and-add on registered memory of a peer.
 *
 * docs/transports.md has the promises (order, the effect of a cut) and the formats. The layers
 * above do not depend on the transport. This layer knows nothing of clusters: the caller gives this
 * node's identity, and the peers and their addresses.
 *
 * A `struct net` is this node's endpoint. A `struct net_peer` is another node, connected or not,
 * for as long as the endpoint lives. The network connects in the background, and again after a cut.
 * Functions that can wait say so.
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
#define NET_NODES_MAX     1024u      /* node ids are less than this */
#define NET_REGIONS_MAX   16u        /* region ids are less than this */
#define NET_TRANSFER_MAX  (1u << 20) /* most bytes of one write or read */
#define NET_OPS_MAX       256u       /* most reads and atomics in flight to one peer */
#define NET_QUEUE_MAX     16384u     /* most messages and ops that wait to be sent to one peer */
#define NET_RANGES_MAX    4u         /* most handlers by message type, for an endpoint */
#define NET_ADDRESSES_MAX 4u
#define NET_ADDRESS_BYTES 256u /* size of a list of addresses, with its NUL */

/* ---- the endpoint --------------------------------------------------------------- */

enum net_role { NET_ROLE_STORAGE = 1, NET_ROLE_CLIENT = 2 };

/* The identity of a node. */
struct net_identity {
	uint8_t volume_uuid[NET_UUID_BYTES];
	uint8_t cluster_uuid[NET_UUID_BYTES];
	uint8_t node_uuid[NET_UUID_BYTES]; /* the node's own; it never changes */
	uint64_t incarnation;              /* incremented at every start */
	uint16_t node;
	uint8_t role; /* enum net_role */
};

enum net_event_kind {
	NET_LINK_UP,   /* messages may be sent, and can arrive */
	NET_LINK_DOWN, /* no message arrives any more; all ops have ended; the peer has no access
		        * to memory */
	/* An attempt to connect ended; `code` and `text` have the cause. Another link may be up. */
	NET_LINK_REFUSED,
};

struct net_event {
	enum net_event_kind kind;
	int code;    /* cause: negative errno; 0 for UP */
	bool dialed; /* this node had connected. REFUSED: a stranger did not cause it */
	bool proven; /* REFUSED, not dialed: the other end has the key. If not, the network has
		      * logged it, and the sender may be anyone */
	uint64_t session;     /* number of the link with this peer */
	uint64_t incarnation; /* of the peer */
	enum net_role role;   /* of the peer */
	const char *
		address;  /* UP: the address at which the listening end was reached */
	const char *text; /* for people; valid during the call */
};

/*
 * Handles messages of a peer. Messages and events of one peer come one at a time, in order. They
 * come on a task of the network, or on a task that waits in net_wait. A handler must not wait. It
 * may call each function below that never waits, with NET_URGENT if it takes flags.
 */
typedef void (*net_message_handler)(
	void *owner, struct net_peer *peer, const struct net_message *m);
struct net_handlers {
	void *owner;
	/* Handles messages of types without another handler (net_handle). NULL: such messages cut
	 * the link with -EPROTO. */
	net_message_handler message;
	void (*event)(void *owner, struct net_peer *peer, const struct net_event *event);
};

struct net_options {
	const char *transport; /* "tcp", "verbs", "shm", "sim" */
	struct net_identity self;
	uint8_t key[NET_KEY_BYTES]; /* the cluster's key, which proves membership */
	/*
	 * Address of this node: "host:port" for tcp, verbs and sim, the path of a socket for shm.
	 * Or a list of at most NET_ADDRESSES_MAX, separated by commas. It listens at all of these
	 * that this machine has. NULL: it does not listen, and only connects to others.
	 */
	const char *listen;
	bool tls; /* tcp: encrypt; both ends must have the same */
	struct net_handlers handlers;
	/* 0 in any of these: the default */
	uint64_t clock_skew_ns; /* larger differences of the clocks are refused; 60 s */
	uint64_t handshake_ns;  /* a connection that takes longer is cut; 5 s */
	uint64_t stall_ns;      /* a link that is silent for this time is cut; 10 s */
	uint64_t retry_ns;      /* longest pause between two attempts to connect; 1 s */
};

/* Makes the endpoint; it does not listen yet. Returns 0 or a negative errno. */
int net_open(struct net **out, const struct net_options *o, struct weft_error *err);
/*
 * Registers a handler for the message types from `first` to before `end`. Call it before net_start;
 * the handler runs until net_close. Never waits. Returns 0 or:
 *
 * - -EINVAL: the types are not valid;
 * - -EEXIST: another handler has one of them;
 * - -ENOSPC: there are NET_RANGES_MAX handlers.
 */
int net_handle(struct net *net, uint16_t first, uint16_t end, net_message_handler handle,
	void *owner);
/* Starts to listen and connect. Call it once, when regions, handlers and peers are known. Returns 0
 * or a negative errno. */
int net_start(struct net *net, struct weft_error *err);
/* Writes the addresses where it listens, with real ports where `listen` had 0. Empty: it does not
 * listen. */
void net_address(struct net *net, char out[NET_ADDRESS_BYTES]);
/* Ends all links and makes none any more. NET_LINK_DOWN follows for each. For other nodes this node
 * has closed. Memory and all other state stay until net_close. Never waits. */
void net_shutdown(struct net *net);
/* Says goodbye to the peers, ends all links and frees the endpoint. No handler runs afterwards.
 * Waits. */
void net_close(struct net *net);

/* ---- peers ----------------------------------------------------------------------- */

struct net_peer_options {
	uint16_t node;
	uint8_t node_uuid[NET_UUID_BYTES]; /* zeros: taken from the first link */
	uint64_t incarnation; /* earlier starts of it are over; 0: any start is accepted */
	/*
	 * The addresses where it listens, as in net_options; the first that can be reached is used.
	 * NULL: it connects to this node. If both nodes listen, the one with the higher id
	 * connects.
	 */
	const char *address;
	void *owner; /* returned by net_peer_owner */
};

/* Adds a peer, also after net_start. It lives as long as the endpoint. Returns 0, -EEXIST, -ENOMEM
 * or -EINVAL. */
int net_peer_add(struct net_peer **out, struct net *net, const struct net_peer_options *o,
	struct weft_error *err);
/* Returns the peer with this id, or NULL. */
struct net_peer *net_peer_find(struct net *net, uint16_t node);
uint16_t net_peer_node(const struct net_peer *peer);
void *net_peer_owner(const struct net_peer *peer);
/* Refuses links of this start of the peer and of all earlier ones. An existing link stays. */
void net_peer_over(struct net_peer *peer, uint64_t incarnation);
struct net *net_of(const struct net_peer *peer);
/* Returns true if the link is up. It may have changed meanwhile. Never waits. */
bool net_peer_up(const struct net_peer *peer);
/* Ends the link, if there is one; NET_LINK_DOWN with `code` follows. The network then connects
 * again at once. Never waits. */
void net_cut(struct net_peer *peer, int code);
/* Drops the messages of a link that is new, until it ends. Call it in the handler of NET_LINK_UP,
 * and cut the link too. */
void net_peer_ignore(struct net_peer *peer);

/* ---- memory that peers may reach --------------------------------------------------- */

#define NET_REMOTE_READ   (1u << 0)
#define NET_REMOTE_WRITE  (1u << 1)
#define NET_REMOTE_ATOMIC (1u << 2)

/* Makes zeroed pages that peers address by (id, offset). Call it before net_start. They live as
 * long as the endpoint. Returns 0, -ENOMEM, -EEXIST or -EINVAL. */
int net_region_create(
	struct net *net, uint32_t id, size_t size_bytes, unsigned rights, void **base);

/* ---- bytes that were damaged on the way ---------------------------------------------- */

#define NET_CHECKSUM_TRIES                                                               \
	3u /* reads of the same data before the link is cut */

/*
 * Notes that data from the peer does not have the checksum that came with it. Counts it, and logs
 * it from time to time with the node's name. `what` names the data, as in "a page". The caller asks
 * again, or cuts the link with -EBADMSG. Never waits.
 */
void net_checksum_error(struct net_peer *peer, const char *what);

/* ---- messages ------------------------------------------------------------------------ */

/* More messages follow. The message may be held back until a call for the same peer without the
 * flag, or net_flush. */
#define NET_MORE (1u << 0)
/* For handlers: may use the room that is reserved for answers. */
#define NET_URGENT (1u << 1)
/* May also use that room, but not call the `done` of operations. If there is no room, it returns
 * -EAGAIN. */
#define NET_ANSWER (1u << 2)
/* For net_post: a write that ends before the return (shm) returns 1, without a call of `done`. */
#define NET_AT_ONCE (1u << 3)

/*
 * Copies the message and sends it, in the order of calls for this peer. Never waits. Returns 0 or:
 *
 * - -ENOTCONN: there is no link. A message that was taken before a cut may be lost without notice.
 * - -EAGAIN: the queue is full; see net_wait_room. If an urgent message finds no room, the link is
 *   cut, because the peer takes nothing.
 */
int net_send(struct net_peer *peer, const struct net_message *m, unsigned flags);
/* Sends all that NET_MORE held back, for all peers. */
void net_flush(struct net *net);
/* Returns true if the queue has room for messages other than answers. It may have changed
 * meanwhile. */
bool net_has_room(struct net_peer *peer);
/* Waits until the queue has room or the link is down. Returns 0, -ENOTCONN or -ETIMEDOUT. */
int net_wait_room(struct net_peer *peer, uint64_t deadline_ns);

/* ---- one-sided operations -------------------------------------------------------------- */

enum net_op_kind {
	NET_WRITE, /* writes local bytes to the region; `message`, if it has a type, follows them */
	NET_READ,  /* reads the region's bytes to local memory */
	NET_CAS,   /* sets the word to `operand` if it equals `compare`; `value`: the word before */
	NET_FAA,   /* adds `operand` to the word; `value`: the word before */
};

/* An operation. It and its local memory belong to the network until it is done. CAS and FAA act on
 * 64-bit words at multiples of 8. */
struct net_op {
	enum net_op_kind kind;
	uint32_t region;
	uint64_t offset;
	void *local;
	uint32_t length; /* 1 .. NET_TRANSFER_MAX; not used for CAS and FAA */
	uint64_t compare, operand;
	struct net_message message; /* with a write; type 0: none */
	/* Called once when the op is done, as handlers are. The op may be freed afterwards. May be
	 * NULL. */
	void (*done)(struct net_op *op);
	void *owner;
	/*
	 * 0 or an error. 0 of a write: the local memory is free again. The peer has the bytes when
	 * it answers a later message. 0 of the others: the value or the bytes have arrived. Errors:
	 *
	 * - -EACCES: the peer has no such memory or does not allow it; the link ends;
	 * - -ECONNRESET: the link ended first; the effect on the peer is not known;
	 * - -EOPNOTSUPP: the peer's device has no atomics.
	 */
	int result;
	uint64_t value;
	/* internal to the network */
	_Atomic uint32_t state; /* NET_OP_DONE when done */
	uint32_t slot;
	struct net_op *next;
};
#define NET_OP_PENDING 0u
#define NET_OP_DONE    1u

/*
 * Starts the operation. A write takes effect before messages and ops that are started after it for
 * this peer. Never waits. Returns 0, or 1 (see NET_AT_ONCE). Returns -ENOTCONN or -EAGAIN as
 * net_send does, or -EINVAL for an op that is never valid. After an error the op is not started,
 * and `done` is not called.
 */
int net_post(struct net_peer *peer, struct net_op *op, unsigned flags);
/* Waits until the op is done, and returns its result. For ops without `done`. */
int net_op_wait(struct net_peer *peer, struct net_op *op);

/* ---- waiting for an answer --------------------------------------------------------------- */

/*
 * Waits as rt_wait does, for a word that a handler changes. Meanwhile the task may serve the
 * network, and run handlers, so that an answer from `likely` needs no change of task. NULL: any
 * peer. The caller holds nothing that a handler may need. The task that changes the word wakes it
 * with net_wake. Returns 0 (also too early) or -ETIMEDOUT.
 */
int net_wait(struct net *net, struct net_peer *likely, _Atomic uint32_t *word,
	uint32_t expected, uint64_t deadline_ns);
void net_wake(struct net *net, _Atomic uint32_t *word, int count);

/* ---- counters ------------------------------------------------------------------------------ */

struct net_counters {
	uint64_t messages_out, messages_in;
	uint64_t sends_out, sends_in; /* frames, or sends of verbs, that carried messages */
	uint64_t writes_out, writes_in;
	uint64_t reads_out, reads_in;
	uint64_t atomics_out, atomics_in;
	uint64_t bytes_out, bytes_in; /* bytes of data, without messages and headers */
	uint64_t calls_out,
		calls_in;           /* system calls, or reads of a ring that found data */
	/* verbs: work requests posted (calls_out: doorbells); of these, with a completion;
	 * completions taken; registrations for one operation */
	uint64_t requests, signalled, completions, registered;
	uint64_t links, cuts;
	uint64_t checksum_errors; /* data from the peer with a wrong checksum */
};
void net_counters(const struct net_peer *peer, struct net_counters *out);

#endif
