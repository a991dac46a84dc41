/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connections between nodes over the runtime's sockets, for the transports that are made
 * of them or begin with them: listening, dialing, greetings, time. One progress task does
 * all that and sleeps in the poller; the transport says what a link is (struct
 * connect_ops). Everything here is the progress task's own, but for what has another name
 * beside it.
 */
#ifndef WEFT_NET_CONNECT_H
#define WEFT_NET_CONNECT_H

#include "engine/net/net_internal.h"
#include "engine/rt/rt_socket.h"

struct net_tls;

#define CONNECT_PLACES_MAX 16u
#define CONNECT_FROM_BYTES 160u

/* Where a node listens: an address of its, or one of those that a name among them stands for. */
struct connect_place {
	struct rt_address at;
	unsigned written; /* which of its addresses that is */
	char text[NET_ADDRESS_BYTES];
};

/* Best first. */
struct connect_places {
	unsigned count;
	struct connect_place place[CONNECT_PLACES_MAX];
};

/* A connection's bytes: a socket, and TLS where the cluster wants it (stream.c). */
struct net_stream {
	struct rt_socket *socket;
	struct net_tls *tls; /* NULL: none */
};

enum connect_source_kind {
	CONNECT_LISTENER,
	CONNECT_CONNECTION,
	CONNECT_LINK,
	CONNECT_DEVICE /* the transport's own, by connect_ops.device_ready */
};

/* What the poller's tags point to. */
struct connect_source {
	enum connect_source_kind kind;
};

enum connect_stage {
	CONNECT_DIALING, /* not connected yet */
	CONNECT_TLS,     /* shaking hands */
	CONNECT_HELLO,   /* reading that of the other end */
	CONNECT_PROOF,
	CONNECT_MEMORY, /* shm: a listener reads what the dialer shares */
	CONNECT_OFFER,  /* verbs: a dialer reads where the queue pairs are */
	CONNECT_KEYS,   /* verbs: either reads what it may reach */
};

struct connect_listener {
	struct connect_source source;
	struct rt_socket *socket; /* NULL: it could not be listened there yet */
};

/* What became of the places that were dialed since the attempt began. */
struct connect_attempt {
	int code;      /* 0: nothing yet */
	uint32_t mark; /* another one if anything else became of them */
	bool refused;  /* somebody spoke, who does not fit */
	bool nobody;   /* nobody listened at one of them */
	bool again;    /* it has begun once more */
	char text[NET_WHY_BYTES];
};

/* A connection that is being made. */
struct net_connection {
	struct connect_source source;
	struct net_greeting greeting;
	enum connect_stage stage;
	unsigned
		place; /* the peer's where it was dialed, or this end's where it came in */
	struct net_stream stream;
	uint64_t deadline;
	uint8_t in[WIRE_GREETING_MAX];
	unsigned in_bytes;
	bool gone;     /* freed at the end of the round */
	void *offer;   /* the transport's: what this end shares; NULL: nothing yet */
	char why[448]; /* the transport's words for a failure; empty: the code's */
	char from[CONNECT_FROM_BYTES]; /* of one that came in: who is at its other end */
	struct net_connection *next;
};

/* Why a stranger's connection is refused: an enum wire_refusal, or one of these. */
enum connect_cause_kind {
	CONNECT_GARBAGE = WIRE_REFUSALS, /* it does not say what a node says */
	CONNECT_CHANGED,                 /* a greeting with a wrong checksum */
	CONNECT_CAUSES
};

#define CONNECT_LINE_BYTES 512u

/* What the log is told of one cause (stranger.c). */
struct connect_cause {
	uint64_t until; /* the end of its minute; 0: none has begun */
	unsigned said, more;
	char last[CONNECT_LINE_BYTES]; /* of `more` */
};

struct connect_net;
struct connect_peer;

/* What a transport does. All on the progress task. */
struct connect_ops {
	/*
	 * What has to listen there beside the socket, if it does not yet; may be NULL. 0, or
	 * why nobody can connect there.
	 */
	int (*listen)(struct connect_net *net, unsigned place, struct weft_error *err);
	/*
	 * Begins the session of a peer that is down and has proven who it is. Takes the
	 * stream, in any case. Calls connect_link_began, and tells the owner. -errno: no
	 * link came of it.
	 */
	int (*link_up)(struct connect_peer *peer, struct net_connection *c);
	/* Ends it, if there is one. */
	void (*link_down)(struct connect_peer *peer, int code);
	/* The poller says so of the link's socket. */
	void (*link_ready)(struct connect_peer *peer, unsigned events);
	/* CONNECT_SILENT_TICKS of these are the time that silence is tolerated. */
	void (*link_tick)(struct connect_peer *peer);
	/* Orderly, before link_down at the end. */
	void (*link_bye)(struct connect_peer *peer);
	/* With send_lock held: the link is to end with that code. */
	void (*cut_locked)(struct connect_peer *peer, int code);
	/* With send_lock held, which it drops: what was held back goes out. `flags` as in
	 * net_send: NET_URGENT, `done` may be called here. */
	void (*flush)(struct connect_peer *peer, unsigned flags);
	/* A task of the transport's calls net_queue_call_all soon. By anyone. */
	void (*call_done_soon)(struct connect_net *net);
	/* Ends the wait of who leads the link, now or next. By anyone; the link stays. */
	void (*kick)(struct connect_peer *peer);
	/* After every round of the poller; may be NULL. */
	void (*round)(struct connect_net *net);
	/*
	 * Sends memory of this end with a greeting; NULL: the transport shares none. false:
	 * the connection cannot be used. `leave`: frees the offer of one that is given up.
	 */
	bool (*share)(struct connect_net *net, struct net_connection *c, const void *what,
		size_t bytes);
	void (*leave)(struct net_connection *c);
	/*
	 * For a transport whose links are made beside the connection, which it then keeps.
	 * It goes on by itself: connect_made, connect_failed. NULL: the proofs are all.
	 * `offer`: a listener says where, behind its proof. `offered`: the dialer heard that.
	 * `keys`: the last greeting of the other end has come.
	 */
	bool (*offer)(struct connect_net *net, struct net_connection *c);
	int (*offered)(struct connect_net *net, struct net_connection *c,
		const struct wire_offer *offer);
	int (*keys)(struct connect_net *net, struct net_connection *c,
		const struct wire_keys *keys);
	/* The poller says so of a source of the transport's own. */
	void (*device_ready)(struct connect_net *net, struct connect_source *source);
};

#define CONNECT_SILENT_TICKS 4u
#define CONNECT_INCOMING_MAX 64u /* that have not proven who they are */

/* Transports' own structures begin with these two. */
struct connect_net {
	struct net base;
	const struct connect_ops *links;
	struct connect_places here; /* none: it does not listen */
	struct connect_listener listener[CONNECT_PLACES_MAX];
	uint64_t listen_at;       /* is tried again where it could not be listened */
	struct rt_poller *poller; /* kicked by anyone */
	struct rt_task *progress;
	_Atomic bool stopping;
	_Atomic bool peers_changed;         /* anyone's: look at all peers */
	struct net_connection *connections; /* newest first */
	unsigned incoming;
	uint64_t next_due, next_tick;
	uint64_t deaf_until; /* 0: listening. No more sockets were to be had */
	struct connect_cause cause[CONNECT_CAUSES];
	void *tls;                 /* context; NULL: none */
	_Atomic bool held;         /* a peer has something that NET_MORE held back */
	_Atomic bool ended;        /* a peer has ops whose `done` is to be called */
	_Atomic uint32_t leaders;  /* tasks that wait for what a link brings */
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
	_Atomic int cut_code; /* why the link is to end; 0: it is not. The first stays */
	/* The sending half (queue.c): under send_lock. */
	struct rt_mutex send_lock;
	struct rt_cond
		room;    /* signalled when the queue is short again, or the link down */
	unsigned queued; /* what waits to be sent: NET_QUEUE_MAX at most */
	bool held;       /* NET_MORE left something in it */
	struct net_op *ended; /* whose `done` is to be called; by `next` */
	unsigned calling;     /* tasks that call `done` of what was in it */
	/* Anyone's: who waits for what this link brings, beside the transport's tasks. */
	struct rt_mutex kick_lock; /* the link stays while its leader is kicked */
	_Atomic uint32_t leader;   /* 1: a task leads, and the link stays */
	_Atomic uint32_t closing;  /* it is to go */
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
/* The task ends all links, then itself. */
void connect_shutdown(struct net *net);
/* The same, and waits for it. */
void connect_stop(struct connect_net *net);
void connect_close(struct connect_net *net);
int connect_peer_add(struct connect_peer *peer, struct weft_error *err);
void connect_peer_added(struct net_peer *peer);
/* Something is due at that time at the latest. */
void connect_due(struct connect_net *net, uint64_t at);
/* By link_up and link_down. */
void connect_link_began(struct connect_peer *peer);
void connect_link_ended(struct connect_peer *peer);

/* ---- places.c: addresses, and listening at them ------------------------------------------ */

/*
 * Looks up a list of addresses, as in net_options, of that node: waits. What does not resolve is
 * logged where others do.
 */
int connect_places_find(struct connect_places *out, const char *list, unsigned node,
	struct weft_error *err);
/* At all that it can; fails if there is none. */
int connect_listen(struct connect_net *net, struct weft_error *err);
/* At those where it could not before. */
void connect_listen_again(struct connect_net *net);
/* Whether those who knock are looked at. */
void connect_hear(struct connect_net *net, bool on);
void connect_listen_end(struct connect_net *net);
void connect_address(struct net *net, char out[NET_ADDRESS_BYTES]);

/* ---- connection.c: connections that are being made ---------------------------------------------- */

void connect_dial(struct connect_peer *peer);
/* By a transport whose links are made beside the connection. The first says a greeting. */
bool connect_say(struct net_connection *c, const void *what, size_t bytes);
void connect_made(struct connect_net *net, struct net_connection *c);
void connect_failed(struct connect_net *net, struct net_connection *c, int code);
void connect_accept_all(struct connect_net *net, struct connect_listener *listener);
void connect_ready(struct connect_net *net, struct net_connection *c);
/* Deadlines; the earliest that is left. */
uint64_t connect_expire(struct connect_net *net, uint64_t now);
/* Frees what is gone; all of them at the end. */
void connect_bury(struct connect_net *net, bool all);

/* ---- stranger.c: who is refused before he has proven anything ---------------------------------- */

/* Tells the log, or counts. */
void connect_stranger(
	struct connect_net *net, enum connect_cause_kind cause, const char *line);
/* Tells what was only counted, where its time has come; the earliest that is left. */
uint64_t connect_strangers_due(struct connect_net *net, uint64_t now);

/* ---- queue.c: all but those that say otherwise with send_lock held ------------------------ */

#define NET_QUEUE_SHORT 1024u

/* Room for n more; else an error, and the lock is dropped. */
int net_queue_reserve(struct connect_peer *peer, unsigned n, unsigned flags);
/* One has left. */
void net_queue_left(struct connect_peer *peer);
void net_queue_reset(struct connect_peer *peer);
void net_queue_hold(struct connect_peer *peer);
void net_queue_ended(struct connect_peer *peer, struct net_op *op, int result);
/* Drops the lock; `done` is called here if handlers may run here. */
void net_queue_unlock(struct connect_peer *peer, unsigned flags);
/* Without the lock: calls `done`. */
void net_queue_call_done(struct connect_peer *peer);
void net_queue_call_all(struct connect_net *net);
/* Without the lock: `up` is 0, and all that has ended is told, once nobody uses it. */
void net_queue_close(struct connect_peer *peer, bool (*in_use)(struct connect_peer *));
/* Without the lock: as net.h has them. */
int net_queue_wait(struct net_peer *peer, uint64_t deadline_ns);
bool net_queue_has_room(struct net_peer *peer);
/* `flags`: NET_URGENT where handlers have run. */
void net_queue_flush(struct net *net, unsigned flags);

/* ---- lead.c ------------------------------------------------------------------------------- */

int net_lead_sleep(struct connect_net *net, _Atomic uint32_t *word, uint32_t expected,
	uint64_t deadline_ns);
/* false: another leads, or there is no link. */
bool net_lead_begin(struct connect_peer *peer);
void net_lead_end(struct connect_peer *peer);
/* The leader must go. */
static inline bool net_lead_over(struct connect_peer *peer)
{
	return atomic_load(&peer->cut_code) || atomic_load(&peer->closing);
}
void net_lead_wake(struct net *net, _Atomic uint32_t *word, int count);
/* By the progress task: nobody leads when it returns, nor from then on. */
void net_lead_leave(struct connect_peer *peer);
/* `up` is 0 by now: nobody kicks any more when it returns. */
void net_lead_gone(struct connect_peer *peer);

/* ---- stream.c ---------------------------------------------------------------------------- */

ssize_t net_stream_send(struct net_stream *s, const struct iovec *iov, unsigned count);
ssize_t net_stream_recv(struct net_stream *s, const struct iovec *iov, unsigned count);
/* Bytes that were taken have not gone to the socket: send again, if only nothing. */
bool net_stream_pending(struct net_stream *s);
void net_stream_close(struct net_stream *s);
/* The rest is said without TLS. */
void net_tls_drop(struct net_stream *s);
int net_tls_open(struct connect_net *net, struct weft_error *err);
void net_tls_close(struct connect_net *net);
/* Begins TLS on a connected stream. */
int net_tls_begin(struct connect_net *net, struct net_stream *s, bool dialer);
/* 0: done; -EAGAIN: more is to come; -EPROTOTYPE: no TLS at the other end; -EPROTO: garbage; or it
 * failed. */
int net_tls_shake(struct net_stream *s, unsigned *wanted);

#endif
