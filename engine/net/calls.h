/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls: one node asks another node a question that is not about a page, and waits for the answer.
 * A call has five words each way (docs/protocol.md, "Calls").
 *
 * A call is served at least once or not at all. If the link ends meanwhile, the caller does not
 * know which. If it must know, it asks again, so servers are idempotent. Servers run on tasks of
 * their own and may wait. They must not wait for the answer to a call, except one of an earlier
 * class (below). Each node has few such tasks, and each class its own.
 */
#ifndef WEFT_NET_CALLS_H
#define WEFT_NET_CALLS_H

#include "engine/net/net.h"

/* The question. The server defines the words. */
enum net_call_kind {
	NET_CALL_NONE,
	NET_CALL_PING,  /* every node answers with the words of the question */
	NET_CALL_STAGE, /* the caller's stage of leaving (engine/node/leave.c) */
	NET_CALL_LOCK_HELLO, /* the node has opened fs/ops in that incarnation */
	NET_CALL_LOCK_WAKE,  /* a blocked lock request may try again */
	NET_CALL_LOCK_WAITS, /* the lock that an owner of locks waits for */
	NET_CALL_SYNC, /* make a node's changes of a file durable (fs/ops/sync.c) */
	NET_CALL_OPEN, /* the inodes without links that the node has open (fs/ops/elsewhere.c) */
	NET_CALL_SPACE_GIVE, /* hand over an allocation group (engine/space/handover.c) */
	NET_CALL_SPACE_STAT, /* the room in a node's groups */
	NET_CALL_LEFT, /* the caller has nothing of this volume any more (engine/volume) */
	/* a client's log in its host's store (engine/node/client_logs.c) */
	NET_CALL_LOG_ATTACH, /* a start of the client begins to use it */
	NET_CALL_LOG_READ,
	NET_CALL_LOG_WRITE,
	NET_CALL_LOG_STATE, /* has the client left any records or pages? */
	NET_CALL_NODES,     /* the nodes that the asked node knows (engine/node/reload.c) */
	NET_CALL_DEAD,      /* a start of a node is over (engine/node/declare_dead.c) */
	/* split a page of the tree, of the asked node's shard (engine/tree/home.c) */
	NET_CALL_TREE_SPLIT,
	/* the caller's store will be away: keep the pages on the way to one's own
	 * (engine/tree/home.c) */
	NET_CALL_TREE_NEAR,
	NET_CALL_LEAF, /* the place of the leaf of a key (engine/tree/leaf_call.c) */
	NET_CALL_KINDS
};

/* The classes of calls, by the waits of their servers, direct or indirect. The first class ends by
 * itself. Calls of another class end when those of the classes before it do. */
enum net_call_class {
	NET_CALLS_LOCAL, /* only this node's memory and disk */
	NET_CALLS_PAGES, /* also pages of the tree: another node gives one when its log is
			  * durable, a client's by LOG_WRITE */
	NET_CALLS_SPACE, /* also pages of allocation groups, likewise */
	NET_CALLS_TREE, /* also splits, which may wait for space */
	NET_CALLS_SYNC, /* also operations of this node, which may wait for space and splits */
	NET_CALL_CLASSES
};
/* Returns the class of the kind. An unknown kind is of the first class. */
enum net_call_class net_call_class_of(enum net_call_kind kind);

#define NET_CALL_ASK    0x200u
#define NET_CALL_ANSWER 0x201u
#define NET_CALL_WORDS  5u
/* Most calls of one node to another that are under way, in all classes. Each class has a share;
 * further calls wait for their turn. */
#define NET_CALLS_MAX 64u

struct net_calls;

/* Opens the calls of an endpoint, before net_start. Takes their messages from it. Returns 0 or a
 * negative errno. */
int net_calls_open(struct net_calls **out, struct net *net);
/* Ends all calls with -ESHUTDOWN, waiting ones too. Afterwards no call is being served. Call it
 * before net_close. Waits for servers. */
void net_calls_stop(struct net_calls *c);
/* Frees the calls, after net_close, when no handler and no net_call runs. */
void net_calls_close(struct net_calls *c);

/* Handles an event of the endpoint, called from its handler. Never waits. */
void net_calls_event(
	struct net_calls *c, struct net_peer *peer, const struct net_event *event);

/*
 * Asks another node. Returns the server's result: 0 or a negative errno, with `answer` (which may
 * be `ask`). Waits; call it with nothing held. Other errors:
 *
 * - -EAGAIN: the node does not serve this kind yet, or any more;
 * - -EOPNOTSUPP: it does not know the kind;
 * - -ENOTCONN: there is no link;
 * - -ECONNRESET: the link ended meanwhile;
 * - -ESHUTDOWN.
 */
int net_call(struct net_calls *c, unsigned node, enum net_call_kind kind,
	const uint64_t ask[NET_CALL_WORDS], uint64_t answer[NET_CALL_WORDS]);

/* Serves one call. `answer` is zeros at first. */
typedef int (*net_call_server)(void *owner, unsigned from,
	const uint64_t ask[NET_CALL_WORDS], uint64_t answer[NET_CALL_WORDS]);
/* Serves the kind from now on. NULL: stops that, and waits until no such call is being served. */
void net_calls_serve(
	struct net_calls *c, enum net_call_kind kind, net_call_server serve, void *owner);

#endif
