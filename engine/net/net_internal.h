/* SPDX-License-Identifier: Apache-2.0 */
/* Structures and functions that the transports share. Only engine/net includes this. */
#ifndef WEFT_NET_INTERNAL_H
#define WEFT_NET_INTERNAL_H

#include "engine/net/net.h"
#include "engine/net/wire.h"
#include "engine/rt/rt.h"

/* A transport. The functions mean the same as those of net.h. net.c checks the bounds of arguments
 * before it calls them. NULL: EOPNOTSUPP, or nothing to do. */
struct net_ops {
	const char *name;
	int (*open)(struct net *net, struct weft_error *err);
	int (*start)(struct net *net, struct weft_error *err);
	void (*address)(struct net *net, char out[NET_ADDRESS_BYTES]);
	void (*shutdown)(struct net *net);
	/* Frees the memory of open. Handlers have run for the last time. */
	void (*close)(struct net *net);
	/* Called before the peer is in the table. */
	int (*peer_add)(struct net_peer *peer, struct weft_error *err);
	/* Called when it is in the table. */
	void (*peer_added)(struct net_peer *peer);
	void (*peer_free)(struct net_peer *peer);
	int (*region_create)(
		struct net *net, uint32_t id, size_t size, unsigned rights, void **base);
	int (*send)(struct net_peer *peer, const struct net_message *m, unsigned flags);
	int (*post)(struct net_peer *peer, struct net_op *op, unsigned flags);
	void (*flush)(struct net *net, unsigned flags);
	bool (*has_room)(struct net_peer *peer);
	int (*wait_room)(struct net_peer *peer, uint64_t deadline_ns);
	int (*wait)(struct net *net, struct net_peer *likely, _Atomic uint32_t *word,
		uint32_t expected, uint64_t deadline_ns);
	void (*wake)(struct net *net, _Atomic uint32_t *word, int count);
	void (*cut)(struct net_peer *peer, int code);
	size_t net_bytes, peer_bytes; /* of the transport's structures */
	enum wire_transport wire;
};

extern const struct net_ops net_tcp_ops;
extern const struct net_ops net_shm_ops;
extern const struct net_ops net_verbs_ops;

struct net_region {
	uint8_t *base; /* NULL: no region of that id */
	uint64_t bytes;
	unsigned rights; /* NET_REMOTE_* */
};

/* The message types from `first` to before `end`, and their receiver (incoming.c). */
struct net_range {
	uint16_t first, end;
	net_message_handler handle;
	void *owner;
};

/* Transports' own structures begin with these. */
struct net {
	struct net_ops ops;
	struct net_options options;     /* without the key */
	uint8_t *key;                   /* NET_KEY_BYTES of secret_alloc */
	char listen[NET_ADDRESS_BYTES]; /* empty: does not listen */
	uint8_t instance[NET_UUID_BYTES];
	bool started;
	struct net_region regions[NET_REGIONS_MAX]; /* fixed once started */
	struct net_range range[NET_RANGES_MAX];     /* likewise */
	unsigned range_count;
	struct rt_mutex peers_lock;                      /* for adding to the two below */
	_Atomic(struct net_peer *) peers[NET_NODES_MAX]; /* by node id */
	struct net_peer *list[NET_NODES_MAX];            /* in order of adding */
	_Atomic unsigned list_count;
};

/* The outcome of the links so far, for both directions. Only the connecting task uses it. */
struct net_known {
	bool any; /* the rest is set */
	uint8_t node_uuid[NET_UUID_BYTES];
	uint8_t instance[NET_UUID_BYTES];
	uint64_t incarnation;
	uint8_t role;
};

/* The kinds of refused attempts. Each kind has its own state, so that a refusal of one kind is
 * logged although one of another kind was. */
enum net_refused_kind {
	NET_REFUSED_DIALED, /* those of this node */
	NET_REFUSED_PROVEN, /* those of the peer */
	NET_REFUSED_STRANGER,
	NET_REFUSED_KINDS
};

struct net_refused {
	int code;        /* 0: none */
	uint32_t reason; /* distinguishes refusals of one code */
};

struct net_peer_counters {
	/* by the sender */
	_Alignas(64) _Atomic uint64_t messages_out, writes_out, reads_out, atomics_out,
		bytes_out, calls_out, sends_out, requests, signalled, registered;
	/* by the receiver */
	_Alignas(64) _Atomic uint64_t messages_in, writes_in, reads_in, atomics_in,
		bytes_in, calls_in, sends_in, completions, links, cuts, checksum_errors;
};

struct net_peer {
	struct net *net;
	uint16_t node;
	bool uuid_given;
	_Atomic uint64_t least_incarnation; /* earlier ones are refused */
	void *owner;
	char address[NET_ADDRESS_BYTES]; /* empty: the peer connects to this node */
	struct net_known known;
	uint64_t session;
	char reached[NET_ADDRESS_BYTES]; /* the address by which the last link was made */
	bool dialed;                     /* this node dialed that link */
	bool ignored;                    /* messages of this link are dropped; changes in events */
	struct net_refused refused[NET_REFUSED_KINDS]; /* the last ones that were logged, until
						        * UP */
	_Atomic uint32_t up;
	_Atomic uint64_t
		checksum_log_ns; /* no log line of a checksum error before that */
	struct net_peer_counters counters;
};

static inline void net_count(_Atomic uint64_t *counter, uint64_t n)
{
	atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

static inline unsigned net_peer_count(struct net *net)
{
	return atomic_load_explicit(&net->list_count, memory_order_acquire);
}

/* Whether this node dials the peer, or the peer this node. */
static inline bool net_peer_dials(const struct net_peer *peer)
{
	return peer->address[0] &&
	       (!peer->net->listen[0] || peer->net->options.self.node > peer->node);
}

#define NET_WHY_BYTES 768u /* the outcome of an attempt, for operators */

/* The state of the greetings at one end of a connection that is being made (connect.c). */
struct net_greeting {
	struct net_peer *peer; /* NULL: not known yet */
	bool dialer;
	bool proven; /* the other end has the key: it is a member */
	struct wire_hello ours, theirs;
};

/* Checks the other end's HELLO. Returns 0, or an enum wire_refusal with its detail. May find the
 * peer. */
int net_greeting_hello(struct net *net, struct net_greeting *g, uint32_t *detail);
/* The other end's proof is here: returns 0, or a refusal. From now on the peer's identity is
 * known. */
int net_greeting_proof(struct net *net, struct net_greeting *g,
	const struct wire_proof *proof, uint32_t *detail);
void net_refuse_make(struct wire_refuse *r, uint32_t reason, uint32_t detail);

/*
 * In tests both ends of a link are in one process. ThreadSanitizer does not see that bytes of a
 * socket were sent before they arrive. Nor does it see that two mappings of a ring are one. These
 * functions tell it the order that the link gives, by words of their own.
 */
#if defined(__SANITIZE_THREAD__)
extern _Atomic uint32_t net_order[NET_NODES_MAX];

static inline void net_before_send(const struct net_peer *to)
{
	unsigned from = to->net->options.self.node;

	atomic_fetch_add(&net_order[(from * 31 + to->node) % NET_NODES_MAX], 1);
}

static inline void net_after_receive(const struct net_peer *from)
{
	unsigned to = from->net->options.self.node;

	(void)atomic_load(&net_order[(from->node * 31 + to) % NET_NODES_MAX]);
}
#else
static inline void net_before_send(const struct net_peer *to)
{
}

static inline void net_after_receive(const struct net_peer *from)
{
}
#endif

/* Hands a message that has arrived to its handler. The transports call it. Never waits. */
void net_deliver(struct net_peer *peer, const struct net_message *m);

/* These tell the owner. */
void net_tell_up(struct net_peer *peer);
void net_tell_down(struct net_peer *peer, int code);
/* An attempt was refused. It was the peer's, or a stranger's that claims to be the peer: `text`
 * says so. */
void net_tell_refused(
	struct net_peer *peer, uint32_t reason, bool proven, const char *text);
/* An attempt of this node failed. `why` has the outcome of each address. `mark` distinguishes
 * outcomes of the same code. */
void net_tell_failed(struct net_peer *peer, int code, uint32_t mark, const char *why);

/* Ends an operation: wakes the task that waits for it, or calls `done`. The op may be gone then. */
void net_op_end(struct net *net, struct net_op *op, int result);
/* Ends all ops of a list, linked by `next`. */
void net_ops_end(struct net *net, struct net_op *list, int result);

#endif
