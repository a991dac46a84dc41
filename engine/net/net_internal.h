/* SPDX-License-Identifier: Apache-2.0 */
/* What the transports share. Only engine/net includes this. */
#ifndef WEFT_NET_INTERNAL_H
#define WEFT_NET_INTERNAL_H

#include "engine/net/net.h"
#include "engine/net/wire.h"
#include "engine/rt/rt.h"

/*
 * A transport. Functions mean what those of net.h mean; what is checked there (bounds of
 * arguments) is checked before they are called. NULL: EOPNOTSUPP, or nothing to do.
 */
struct net_ops {
	const char *name;
	int (*open)(struct net *net, struct weft_error *err);
	int (*start)(struct net *net, struct weft_error *err);
	void (*address)(struct net *net, char out[NET_ADDRESS_BYTES]);
	void (*shutdown)(struct net *net);
	/* Frees what open made; handlers have run for the last time. */
	void (*close)(struct net *net);
	/* Before the peer is in the table. */
	int (*peer_add)(struct net_peer *peer, struct weft_error *err);
	/* It is in the table. */
	void (*peer_added)(struct net_peer *peer);
	void (*peer_free)(struct net_peer *peer);
	int (*region_create)(
		struct net *net, uint32_t id, size_t size, unsigned rights, void **base);
	int (*region_adopt)(struct net *net, uint32_t id, void *base, size_t size);
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
	uint8_t *base; /* NULL: none of that id */
	uint64_t bytes;
	unsigned rights; /* NET_REMOTE_* */
	bool ours;       /* made by region_create */
};

/* Transports' own structures begin with these. */
struct net {
	struct net_ops ops;
	struct net_options options; /* without the key */
	uint8_t *key;               /* NET_KEY_BYTES of secret_alloc */
	char listen[NET_ADDRESS_BYTES]; /* empty: does not listen */
	uint8_t instance[NET_UUID_BYTES];
	bool started;
	struct net_region regions[NET_REGIONS_MAX];      /* fixed once started */
	struct rt_mutex peers_lock;                      /* adding to the two below */
	_Atomic(struct net_peer *) peers[NET_NODES_MAX]; /* by node id */
	struct net_peer *list[NET_NODES_MAX];            /* in order of adding */
	_Atomic unsigned list_count;
};

/* What became of links so far, for who connects or is connected. The connecting task's. */
struct net_known {
	bool any; /* the rest is set */
	uint8_t node_uuid[NET_UUID_BYTES];
	uint8_t instance[NET_UUID_BYTES];
	uint64_t incarnation;
	uint8_t role;
};

/* Of whose attempts: one kind does not make another kind's news of what was told. */
enum net_refused_kind {
	NET_REFUSED_DIALED, /* ours */
	NET_REFUSED_PROVEN, /* the peer's */
	NET_REFUSED_STRANGER,
	NET_REFUSED_KINDS
};

struct net_refused {
	int code;        /* 0: none */
	uint32_t reason; /* tells apart those of one code */
};

struct net_peer_counters {
	/* by who sends */
	_Alignas(64) _Atomic uint64_t messages_out, writes_out, reads_out, atomics_out,
		bytes_out, calls_out, runs_out, requests, signalled, registered;
	/* by who receives */
	_Alignas(64) _Atomic uint64_t messages_in, writes_in, reads_in, atomics_in,
		bytes_in, calls_in, runs_in, completions, links, cuts, checksum_errors;
};

struct net_peer {
	struct net *net;
	uint16_t node;
	bool uuid_given;
	_Atomic uint64_t least_incarnation; /* earlier ones are refused */
	void *owner;
	char address[NET_ADDRESS_BYTES]; /* empty: it connects to us */
	struct net_known known;
	uint64_t session;
	char reached[NET_ADDRESS_BYTES]; /* by what address the last link was made */
	bool dialed;                     /* and by whom */
	struct net_refused refused[NET_REFUSED_KINDS]; /* the last ones told, until UP */
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

/* Who of the two connects. */
static inline bool net_peer_dials(const struct net_peer *peer)
{
	return peer->address[0] &&
	       (!peer->net->listen[0] || peer->net->options.self.node > peer->node);
}

#define NET_WHY_BYTES 768u /* what became of an attempt, for people */

/* What one end of a connection says and hears while it is made (connect.c). */
struct net_greeting {
	struct net_peer *peer; /* NULL: not known yet */
	bool dialer;
	bool proven; /* the other end has the key: it is a member */
	struct wire_hello ours, theirs;
};

/* 0, or an enum wire_refusal with its detail. May find out the peer. */
int net_greeting_hello(struct net *net, struct net_greeting *g, uint32_t *detail);
/* Their proof is here: 0, or a refusal. The peer's identity is known from now on. */
int net_greeting_proof(struct net *net, struct net_greeting *g,
	const struct wire_proof *proof, uint32_t *detail);
void net_refuse_make(struct wire_refuse *r, uint32_t reason, uint32_t detail);

/*
 * Both ends of a link in one process, as in tests: ThreadSanitizer sees neither that what
 * comes from a socket was sent before, nor that two mappings of a ring are one. It is told
 * in words of its own what the link orders.
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

/* Tell the owner. */
void net_tell_up(struct net_peer *peer);
void net_tell_down(struct net_peer *peer, int code);
/* An attempt of the peer's, or of who says that it is the peer: `text` says so. */
void net_tell_refused(
	struct net_peer *peer, uint32_t reason, bool proven, const char *text);
/* One of ours: what became of each address. `mark` tells apart what has the same code. */
void net_tell_failed(struct net_peer *peer, int code, uint32_t mark, const char *why);

/* Ends an operation: wakes who waits for it, or calls `done`. The op may be gone then. */
void net_op_end(struct net *net, struct net_op *op, int result);
/* All of a list, by `next`. */
void net_ops_end(struct net *net, struct net_op *list, int result);

#endif
