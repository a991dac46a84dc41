/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls: one node asks another something that is not about a page, and waits for the
 * answer. Five words each way (docs/protocol.md, "Calls").
 *
 * A call is served at least once or not at all: when the link ends meanwhile the caller
 * does not know which, and asks again if it must know. So servers are idempotent. They run
 * on tasks of their own and may wait, but not for what in the end waits for a call to be
 * answered; but for calls of earlier classes (below). Each node has few such tasks, and each
 * class its own of them.
 */
#ifndef WEFT_NET_CALLS_H
#define WEFT_NET_CALLS_H

#include "engine/net/net.h"

/* What is asked; who serves it says what the words mean. */
enum net_call_kind {
	NET_CALL_NONE,
	NET_CALL_PING, /* answered by every node with the words that were asked */
	NET_CALL_STAGE, /* how far the caller is with leaving (engine/volume/member_leave.c) */
	NET_CALL_LOCK_HELLO, /* the node has opened fs/ops in that incarnation */
	NET_CALL_LOCK_WAKE,  /* a blocked lock request may look again */
	NET_CALL_LOCK_WAITS, /* what an owner of locks waits for */
	NET_CALL_SYNC, /* makes what a node has changed of a file durable (fs/ops/sync.c) */
	NET_CALL_OPEN, /* which inodes without links the node has open (fs/ops/elsewhere.c) */
	NET_CALL_SPACE_GIVE, /* hands an allocation group over (engine/space/handover.c) */
	NET_CALL_SPACE_STAT, /* how much room there is in a node's groups */
	NET_CALL_LEFT, /* the caller has nothing of this volume any more (engine/volume) */
	/* a client's log in its host's store (engine/volume/clients.c) */
	NET_CALL_LOG_ATTACH, /* a start of the client begins to use it */
	NET_CALL_LOG_READ,
	NET_CALL_LOG_WRITE,
	NET_CALL_LOG_STATE, /* has the client left anything behind? */
	NET_CALL_NODES, /* which nodes the asked knows (engine/volume/member_reload.c) */
	NET_CALL_DEAD, /* a start of a node does not run any more (engine/volume/member_dead.c) */
	NET_CALL_TREE_SPLIT, /* splits a page of the tree, of the asked node's shard (engine/tree/home.c) */
	NET_CALL_TREE_NEAR, /* the caller's store will be away: keep what leads to one's own (engine/tree/home.c) */
	NET_CALL_KINDS
};

/*
 * By what their servers wait for, be it by way of others: so those of a class come to an end
 * when those before it do, and the first does by itself.
 */
enum net_call_class {
	NET_CALLS_LOCAL, /* this node's memory and disk, and no more */
	NET_CALLS_SPACE, /* pages too: for another node to give one its log must be durable, which a
			    client's is by LOG_WRITE */
	NET_CALLS_TREE, /* splits, which may wait for space */
	NET_CALLS_SYNC, /* operations of this node too, which may wait for space and splits */
	NET_CALL_CLASSES
};
/* A kind that is not known is of the first. */
enum net_call_class net_call_class_of(enum net_call_kind kind);

#define NET_CALL_ASK    0x200u
#define NET_CALL_ANSWER 0x201u
#define NET_CALL_WORDS  5u
/* Calls of one node to another that wait for an answer, of all classes; more of a class than
 * its share wait for their turn. */
#define NET_CALLS_MAX 64u

struct net_calls;

/* For an endpoint; before its handlers run. 0 or -errno. */
int net_calls_open(struct net_calls **out, struct net *net);
/*
 * Before net_close: calls end with -ESHUTDOWN, also those that wait, and when it returns
 * nothing is being served. Waits for servers.
 */
void net_calls_stop(struct net_calls *c);
/* After net_close, when no handler runs and no net_call. */
void net_calls_close(struct net_calls *c);

/* From the endpoint's handlers. True: the message was a call's, and is dealt with. */
bool net_calls_message(
	struct net_calls *c, struct net_peer *peer, const struct net_message *m);
void net_calls_event(
	struct net_calls *c, struct net_peer *peer, const struct net_event *event);

/*
 * Asks the node, which is not this one. What its server returned: 0 or -errno, with
 * `answer` (which may be `ask`). -EAGAIN: it does not serve this yet, or any more;
 * -EOPNOTSUPP: it knows no such kind; -ENOTCONN: there is no link; -ECONNRESET: it ended
 * meanwhile; -ESHUTDOWN. Waits; hold nothing.
 */
int net_call(struct net_calls *c, unsigned node, enum net_call_kind kind,
	const uint64_t ask[NET_CALL_WORDS], uint64_t answer[NET_CALL_WORDS]);

/* `answer` is zeros at first. */
typedef int (*net_call_server)(void *owner, unsigned from,
	const uint64_t ask[NET_CALL_WORDS], uint64_t answer[NET_CALL_WORDS]);
/*
 * Serves the kind from now on; NULL: no longer, and when it returns no such call is being
 * served (waits).
 */
void net_calls_serve(
	struct net_calls *c, enum net_call_kind kind, net_call_server serve, void *owner);

#endif
