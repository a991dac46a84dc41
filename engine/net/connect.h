/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connections between nodes over the runtime's sockets: listening, dialing, greetings, and time.
 * The transports consist of such connections, or begin with them. One progress task does this work,
 * and sleeps in the poller. The transport defines the link (struct connect_ops). Only the progress
 * task uses a field, unless another task or a lock is named beside it.
 */
#ifndef WEFT_NET_CONNECT_H
#define WEFT_NET_CONNECT_H

#include "engine/net/net_internal.h"
#include "engine/rt/rt_socket.h"

struct net_tls;

#define CONNECT_PLACES_MAX 16u
#define CONNECT_FROM_BYTES 160u

/* Where a node listens: one of its addresses, or one address that a name among them resolves to. */
struct connect_place {
	struct rt_address at;
	unsigned written; /* which of the node's addresses it is */
	char text[NET_ADDRESS_BYTES];
};

/* The best place is first. */
struct connect_places {
	unsigned count;
	struct connect_place place[CONNECT_PLACES_MAX];
};

/* A connection's stream of bytes: a socket, and TLS if the cluster uses it (stream.c). */
struct net_stream {
	struct rt_socket *socket;
	struct net_tls *tls; /* NULL: without TLS */
};

enum connect_source_kind {
	CONNECT_LISTENER,
	CONNECT_CONNECTION,
	CONNECT_LINK,
	CONNECT_DEVICE /* the transport's own, for connect_ops.device_ready */
};

/* The poller's tags point to these. */
struct connect_source {
	enum connect_source_kind kind;
};

enum connect_stage {
	CONNECT_DIALING, /* the socket is not connected yet */
	CONNECT_TLS,     /* the TLS handshake is under way */
	CONNECT_HELLO,   /* reads the other end's HELLO */
	CONNECT_PROOF,
	CONNECT_MEMORY, /* shm: a listener reads the memory that the dialer shares */
	CONNECT_OFFER,  /* verbs: a dialer reads the place of the queue pairs */
	CONNECT_KEYS,   /* verbs: both ends read the keys of the regions that they may reach */
};

struct connect_listener {
	struct connect_source source;
	struct rt_socket *socket; /* NULL: listening there has failed so far */
};

/* The outcome of the places that were dialed since the attempt began. */
struct connect_attempt {
	int code;      /* 0: none yet */
	uint32_t mark; /* a different number for a different outcome */
	bool refused;  /* a greeting was refused */
	bool nobody;   /* at one place no process listened */
	bool again;    /* the attempt has begun once more */
	char text[NET_WHY_BYTES];
};

/* A connection that is being made. */
struct net_connection {
	struct connect_source source;
	struct net_greeting greeting;
	enum connect_stage stage;
	unsigned
		place; /* a dialed one: the peer's place; else: this end's place */
	struct net_stream stream;
	uint64_t deadline;
	uint8_t in[WIRE_GREETING_MAX];
	unsigned in_bytes;
	bool gone;     /* freed at the end of the round */
	void *offer;   /* the transport's: the memory that this end shares; NULL: none yet */
	char why[448]; /* the transport's text for a failure; empty: the text of the code */
	char from[CONNECT_FROM_BYTES]; /* of an incoming one: the address of its other end */
	struct net_connection *next;
};

/* Why a stranger's connection is refused: an enum wire_refusal, or one of these. */
enum connect_cause_kind {
	CONNECT_GARBAGE = WIRE_REFUSALS, /* the bytes are no greeting of a node */
	CONNECT_CHANGED,                 /* a greeting with a wrong checksum */
	CONNECT_CAUSES
};

#define CONNECT_LINE_BYTES 512u

/* The state of the log messages about one cause (stranger.c). */
struct connect_cause {
	uint64_t until; /* the end of its minute; 0: no minute has begun */
	unsigned said, more;
	char last[CONNECT_LINE_BYTES]; /* the latest of `more` */
};

struct connect_net;
struct connect_peer;

/* The functions of a transport. The progress task calls them, unless another task is named. */
struct connect_ops {
	/* Begins to listen at that place beside the socket, if it does not yet. May be NULL.
	 * Returns 0, or an error that explains why no node can connect there. */
	int (*listen)(struct connect_net *net, unsigned place, struct weft_error *err);
	/* Begins the session of a peer that is down and has proven its identity. Always takes the
	 * stream. Calls connect_link_began, and tells the owner. Returns -errno if no link is made.
	 */
	int (*link_up)(struct connect_peer *peer, struct net_connection *c);
	/* Ends the session, if there is one. */
	void (*link_down)(struct connect_peer *peer, int code);
	/* Handles the poller's events of the link's socket. */
	void (*link_ready)(struct connect_peer *peer, unsigned events);
	/* A tick. The link tolerates silence for CONNECT_SILENT_TICKS ticks. */
	void (*link_tick)(struct connect_peer *peer);
	/* Ends the link in order. link_down follows. */
	void (*link_bye)(struct connect_peer *peer);
	/* With send_lock held: makes the link end with that code. */
	void (*cut_locked)(struct connect_peer *peer, int code);
	/* With send_lock held; drops it. Sends the messages that were held back. `flags` as in
	 * net_send: with NET_URGENT `done` may be called here. */
	void (*flush)(struct connect_peer *peer, unsigned flags);
	/* Makes a task of the transport call net_queue_call_all soon. Any task may call it. */
	void (*call_done_soon)(struct connect_net *net);
	/* Ends the wait of the link's leader, the present or the next one. Any task may call it.
	 * The link stays. */
	void (*kick)(struct connect_peer *peer);
	/* Called after every round of the poller. May be NULL. */
	void (*round)(struct connect_net *net);
	/*
	 * Sends memory of this end with a greeting; NULL: the transport shares none. Returns false
	 * if the connection cannot be used. `leave`: frees the offer of a connection that is given
	 * up.
	 */
	bool (*share)(struct connect_net *net, struct net_connection *c, const void *what,
		size_t bytes);
	void (*leave)(struct net_connection *c);
	/*
	 * For a transport that makes its links beside the connection, and then keeps the
	 * connection. It continues by itself, with connect_made and connect_failed. NULL: the
	 * connection is made after the proofs. `offer`: a listener sends its place behind its
	 * proof. `offered`: the dialer has received the offer. `keys`: the last greeting of the
	 * other end has arrived.
	 */
	bool (*offer)(struct connect_net *net, struct net_connection *c);
	int (*offered)(struct connect_net *net, struct net_connection *c,
		const struct wire_offer *offer);
	int (*keys)(struct connect_net *net, struct net_connection *c,
		const struct wire_keys *keys);
	/* Handles the poller's events of a source of the transport's own. */
	void (*device_ready)(struct connect_net *net, struct connect_source *source);
};

#define CONNECT_SILENT_TICKS 4u
#define CONNECT_INCOMING_MAX 64u /* that have not proven their identity */

/* Transports' own structures begin with these two. */
struct connect_net {
	struct net base;
	const struct connect_ops *links;
	struct connect_places here; /* empty: it does not listen */
	struct connect_listener listener[CONNECT_PLACES_MAX];
	uint64_t listen_at;       /* when it tries again the places where listening failed */
	struct rt_poller *poller; /* any task may kick it */
	struct rt_task *progress;
	_Atomic bool stopping;
	_Atomic bool peers_changed;         /* any task sets it: check all peers */
	struct net_connection *connections; /* newest first */
	unsigned incoming;
	uint64_t next_due, next_tick;
	uint64_t deaf_until; /* 0: listens. Else no more sockets were available */
	struct connect_cause cause[CONNECT_CAUSES];
	void *tls;                 /* context; NULL: no TLS */
	_Atomic bool held;         /* NET_MORE has held back messages of a peer */
	_Atomic bool ended;        /* a peer has ops whose `done` is due */
	_Atomic uint32_t leaders;  /* tasks that wait for the messages of a link */
	_Atomic uint32_t sleepers; /* tasks in net_wait that sleep on their word */
};

struct connect_peer {
	struct net_peer base;
	struct connect_source source;
	struct connect_places there;
	struct connect_attempt attempt;
	struct net_connection *dialing;
	uint64_t dial_at, backoff_ns, up_since;
	struct rt_mutex event_lock; /* held while handlers run for this peer */
	_Atomic int cut_code;       /* why the link must end; 0: it stays. The first code stays */
	/* The sending half (queue.c): under send_lock. */
	struct rt_mutex send_lock;
	struct rt_cond
		room;         /* signalled when the queue is short again, or the link is down */
	unsigned queued;      /* entries that wait to be sent: NET_QUEUE_MAX at most */
	bool held;            /* NET_MORE has left entries in the queue */
	struct net_op *ended; /* ops with `done` due; linked by `next` */
	unsigned calling;     /* tasks that call `done` of ops that were in it */
	/* Any task uses these. They say which task leads the link: it waits for the link's
	 * messages, beside the transport's tasks. */
	struct rt_mutex kick_lock;             /* the link stays while its leader is kicked */
	_Atomic uint32_t leader;               /* 1: a task leads, and the link stays */
	_Atomic uint32_t closing;              /* the leader must end */
	_Atomic(_Atomic uint32_t *) leads_for; /* while it sleeps: its word */
};

static inline struct connect_net *connect_net_of(struct net *net)
{
	return container_of(net, struct connect_net, base);
}

static inline struct connect_peer *connect_peer_of(struct net_peer *peer)
{
	return container_of(peer, struct connect_peer, base);
}

/* ---- connect.c: the progress task ------------------------------------------------------ */

int connect_open(
	struct connect_net *net, const struct connect_ops *links, struct weft_error *err);
/* Listens and starts the progress task. */
int connect_start(struct connect_net *net, struct weft_error *err);
/* Makes the task end all links, and then itself. */
void connect_shutdown(struct net *net);
/* The same, and waits for the end of the task. */
void connect_stop(struct connect_net *net);
void connect_close(struct connect_net *net);
int connect_peer_add(struct connect_peer *peer, struct weft_error *err);
void connect_peer_added(struct net_peer *peer);
/* Makes the progress task wake at that time at the latest. */
void connect_due(struct connect_net *net, uint64_t at);
/* link_up and link_down call them. */
void connect_link_began(struct connect_peer *peer);
void connect_link_ended(struct connect_peer *peer);

/* ---- places.c: addresses, and listening at them ------------------------------------------ */

/* Looks up a node's list of addresses, as in net_options. Waits. If some names resolve, logs those
 * that do not. Fails if none does. */
int connect_places_find(struct connect_places *out, const char *list, unsigned node,
	struct weft_error *err);
/* Listens at all places where it can. Fails if there is none. */
int connect_listen(struct connect_net *net, struct weft_error *err);
/* Listens at the places where it has failed before. */
void connect_listen_again(struct connect_net *net);
/* Turns on or off that incoming connections are accepted. */
void connect_hear(struct connect_net *net, bool on);
void connect_listen_end(struct connect_net *net);
void connect_address(struct net *net, char out[NET_ADDRESS_BYTES]);

/* ---- connection.c: connections that are being made --------------------------------------- */

void connect_dial(struct connect_peer *peer);
/* For a transport that makes its links beside the connection. The first function sends a
 * greeting. */
bool connect_say(struct net_connection *c, const void *what, size_t bytes);
void connect_made(struct connect_net *net, struct net_connection *c);
void connect_failed(struct connect_net *net, struct net_connection *c, int code);
void connect_accept_all(struct connect_net *net, struct connect_listener *listener);
void connect_ready(struct connect_net *net, struct net_connection *c);
/* Ends connections after their deadline. Returns the earliest deadline that is left. */
uint64_t connect_expire(struct connect_net *net, uint64_t now);
/* Frees the connections that are `gone`; with `all`, every one. */
void connect_bury(struct connect_net *net, bool all);

/* ---- stranger.c: refusals of connections without a proof ---------------------------------- */

/* Logs the refusal, or counts it. */
void connect_stranger(
	struct connect_net *net, enum connect_cause_kind cause, const char *line);
/* Logs the refusals that were only counted, when their minute is over. Returns the earliest time
 * that is left. */
uint64_t connect_strangers_due(struct connect_net *net, uint64_t now);

/* ---- queue.c: all but those that say otherwise with send_lock held ------------------------ */

#define NET_QUEUE_SHORT 1024u

/* Makes room for n more. On an error the lock is dropped. */
int net_queue_reserve(struct connect_peer *peer, unsigned n, unsigned flags);
/* Notes that one entry has left the queue. */
void net_queue_left(struct connect_peer *peer);
void net_queue_reset(struct connect_peer *peer);
void net_queue_hold(struct connect_peer *peer);
void net_queue_ended(struct connect_peer *peer, struct net_op *op, int result);
/* Drops the lock. Calls `done` here if handlers may run here. */
void net_queue_unlock(struct connect_peer *peer, unsigned flags);
/* Without the lock: calls `done`. */
void net_queue_call_done(struct connect_peer *peer);
void net_queue_call_all(struct connect_net *net);
/* Without the lock: sets `up` to 0. When no task uses the link, calls `done` of the ops that have
 * ended. */
void net_queue_close(struct connect_peer *peer, bool (*in_use)(struct connect_peer *));
/* Without the lock: as in net.h. */
int net_queue_wait(struct net_peer *peer, uint64_t deadline_ns);
bool net_queue_has_room(struct net_peer *peer);
/* `flags`: NET_URGENT if handlers have run. */
void net_queue_flush(struct net *net, unsigned flags);

/* ---- lead.c ------------------------------------------------------------------------------- */

int net_lead_sleep(struct connect_net *net, _Atomic uint32_t *word, uint32_t expected,
	uint64_t deadline_ns);
/* Returns false if another task leads, or if there is no link. */
bool net_lead_begin(struct connect_peer *peer);
void net_lead_end(struct connect_peer *peer);
/* Whether the leader must end. */
static inline bool net_lead_over(struct connect_peer *peer)
{
	return atomic_load(&peer->cut_code) || atomic_load(&peer->closing);
}
void net_lead_wake(struct net *net, _Atomic uint32_t *word, int count);
/* For the progress task: when it returns, no task leads, and none will. */
void net_lead_leave(struct connect_peer *peer);
/* `up` is 0 already. When it returns, no task kicks any more. */
void net_lead_gone(struct connect_peer *peer);

/* ---- stream.c ---------------------------------------------------------------------------- */

ssize_t net_stream_send(struct net_stream *s, const struct iovec *iov, unsigned count);
ssize_t net_stream_recv(struct net_stream *s, const struct iovec *iov, unsigned count);
/* TLS has taken bytes that have not gone to the socket. The caller sends again, even without
 * data. */
bool net_stream_pending(struct net_stream *s);
void net_stream_close(struct net_stream *s);
/* Continues without TLS. */
void net_tls_drop(struct net_stream *s);
int net_tls_open(struct connect_net *net, struct weft_error *err);
void net_tls_close(struct connect_net *net);
/* Begins TLS on a connected stream. */
int net_tls_begin(struct connect_net *net, struct net_stream *s, bool dialer);
/* Returns 0 when the handshake is done, and -EAGAIN while it is under way. Returns -EPROTOTYPE if
 * the other end has no TLS, -EPROTO for garbage, or another error. */
int net_tls_shake(struct net_stream *s, unsigned *wanted);

#endif
