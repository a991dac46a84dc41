/* SPDX-License-Identifier: Apache-2.0 */
/* The declarations that the files of this folder share. No other includes it. */
#ifndef WEFT_NODE_INTERNAL_H
#define WEFT_NODE_INTERNAL_H

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "engine/node/client_logs.h"
#include "engine/node/node.h"

#define PATIENCE_NS   100000000ull
#define FIRST_WORD_NS 500000000ull   /* nodes that start or end together wait in silence */
#define NEXT_WORD_NS  60000000000ull /* between two log messages of a long wait */
#define AGAIN_NS      10000000ull
#define AWAY_NS       10000000000ull /* a leaving node waits so long for a link */

#define STORE_AWAY_WORD_NS 2000000000ull  /* nodes that end together are not away */
#define STORE_AWAY_NS                                                                    \
	20000000000ull /* at the end a store that is away is waited for so long */

enum { WATCH_NOT, WATCH, WATCH_END };
#define KEEP_END UINT32_MAX

/* The stages of a node that leaves (docs/nodes/lifecycle.md, "Leaving"). They travel in calls. */
enum node_stage {
	STAGE_WORKS,
	STAGE_LEAVES,  /* the mount is not in use any more */
	STAGE_CLOSED,  /* no operation runs */
	STAGE_SETTLED, /* all pages that were dirty before are persisted; and two rounds more */
	STAGE_END = STAGE_SETTLED + 2,
};

/* The state of another node, as this node knows it. docs/glossary.md has the table of its
 * states. */
struct other {
	struct node_link link; /* without traffic */
	enum node_stage stage; /* of the start that was met last */
	enum node_stage told;  /* the last stage of this node that it has acknowledged */
	bool said_goodbye;     /* it has left, and did not come back */
	/* this node's store has the next three, too */
	bool known;         /* it was met: it may ever have had a page */
	bool left;          /* it has left, and has nothing that is waited for */
	uint64_t dead;      /* its last incarnation that is dead; 0: none, or it was met since */
	uint64_t told_dead; /* bits: the dead nodes that it was told of over this link */
	bool refused;       /* its link is cut until the store has been written */
	bool note_due;      /* the store must note that it was met */
	bool vacant;        /* a client that is away, and has left nothing */
	/* for a client of this host that was never here: whether all other nodes know it
	 * (admit.c) */
	bool asked;         /* the task must find it out */
	bool known_to_all;  /* all know it */
	unsigned known_not; /* a node that does not know it; 0: none */
	unsigned awaited;   /* a node that cannot be asked now; 0: none */
};

struct local_node {
	struct node_options o;
	struct volume_peers peers;
	struct volume *volume;
	struct net *net;
	struct net_calls *calls;
	struct coherence *coherence;
	struct shards shards;
	struct clients *clients; /* the clients with logs here; NULL: this node is a client
				  * itself */
	struct rt_task *vacancies;
	_Atomic bool stopping;
	_Atomic uint64_t known; /* bits: the nodes that all parts of this process know */
	/* for the next three; held briefly, outside of the page protocol's locks */
	struct rt_mutex lock;
	/* for the store's notes, and with them `left` and `dead` of others; taken before `lock` */
	struct rt_mutex noting;
	struct other other[CLUSTER_NODE_MAX + 1]; /* by id */
	struct weft_error refusal; /* of a link that this node tried to make; code 0: none */
	enum node_stage stage;     /* this node's */
	_Atomic uint32_t changed;  /* counts their changes */
	_Atomic bool met;          /* all others were there: the volume may be used */
	_Atomic bool alone;        /* does not wait any more until others leave */
	_Atomic bool cut;          /* nothing waits for others any more */
	_Atomic bool doubted;      /* another node says that a later start of this node was there */
	uint64_t told_left;        /* bits: nodes that were told that this one has left */
	struct rt_task *keeper;    /* keeper.c */
	_Atomic uint32_t keeping;  /* changes when the keeper has work; KEEP_END: it ends */
	_Atomic bool unused;       /* no node uses the volume any more */
	uint64_t store_away_ns;        /* the watcher's: when stores went away; 0: none is */
	unsigned store_away_said;  /* number of log messages about that */
	struct rt_task *watcher;   /* calls `patience`; NULL: there is none */
	_Atomic uint32_t watching; /* WATCH: it calls it; WATCH_END: it ends */
};

static inline bool node_is_client(const struct local_node *self)
{
	return cluster_member(self->o.cluster, self->o.node)->role == CLUSTER_CLIENT;
}

/* ---- others.c: the other nodes ---- */

/* Returns the next node of the cluster after `after` (NULL: the first) that is not this one. */
const struct cluster_member *node_next_other(
	const struct local_node *self, const struct cluster_member *after);
/* Writes the address at which the node listens. */
void node_address(
	const struct local_node *self, unsigned node, char out[NET_ADDRESS_BYTES]);
/* Returns true if there is a link with the node. `owner`: the local node. Never waits. */
bool node_connected(void *owner, unsigned node);
/* Connects with all nodes that it is not connected with yet. Returns 0, or -errno with a text. */
int node_peers_add(struct local_node *self, struct weft_error *err);
/* Lists the other nodes for which `is` holds, under the lock: "node 2 (beta:9338), node 3
 * (gamma:9338)". Returns their number. */
unsigned node_list_others(struct local_node *self,
	bool (*is)(const struct local_node *, unsigned node), char *out, size_t cap);
/* Wakes the tasks that wait for a change of fields under `lock`. Without the lock. Never waits. */
void node_changed(struct local_node *self);
enum node_patience node_patience(struct local_node *self);
/* Wakes the keeper for new work. Never waits. */
void node_keeper_wake(struct local_node *self);

/* ---- client.c: clients that leave ---- */

/* volume_peers.vacant */
bool node_vacant(void *arg, unsigned node);
/* Finds out whether a client that is away has left anything. Waits. */
void node_client_look(struct local_node *self, unsigned node);
/* A client's part of node_settle: it leaves by itself. Returns 0 or -errno. Waits. */
int node_client_settle(struct local_node *self, struct volume *v);

/* ---- admit.c: which nodes know which, and clients that may begin ---- */

/* Asks a node which nodes it knows (bits). Returns 0 or -errno. Waits. */
int node_known_to(struct local_node *self, unsigned node, uint64_t *nodes);
/*
 * Checks that this node knows all nodes that those it has met know. Returns:
 *
 * - 0;
 * - -EXDEV with a text;
 * - -EAGAIN: not all could be asked, meet them again.
 *
 * Waits.
 */
int node_same_nodes(struct local_node *self, struct weft_error *err);
int node_serve_nodes(void *owner, unsigned from, const uint64_t ask[NET_CALL_WORDS],
	uint64_t answer[NET_CALL_WORDS]);
/* clients_options.admits */
int node_admits(void *owner, unsigned client, unsigned *by);
/* Starts the task, once there are clients. Returns 0 or -errno. */
int node_vacancies_start(struct local_node *self);
void node_vacancies_end(struct local_node *self);

/* ---- leave.c: nodes that leave together ---- */

int node_watcher_start(struct local_node *self);
void node_watcher_end(struct local_node *self);

int node_serve_stage(void *owner, unsigned from, const uint64_t ask[NET_CALL_WORDS],
	uint64_t answer[NET_CALL_WORDS]);
/* volume_peers.settle */
int node_settle(void *arg, struct volume *v);

/* ---- peers_on_disk.c: what the store says of other nodes ---- */

/* Reads which nodes have left or are dead, before these are asked anything. */
void node_left_read(struct local_node *self);
int node_serve_left(void *owner, unsigned from, const uint64_t ask[NET_CALL_WORDS],
	uint64_t answer[NET_CALL_WORDS]);
/*
 * After leaving alone: gives back the pages that this node has of others. Then tells the nodes that
 * have got all of theirs. `durable`: no change of this node is owed, or to be persisted by others.
 * Waits.
 */
void node_give_back(struct local_node *self, struct volume *v, bool durable);
/* Refuses a link with a node that is dead or has left, or that the store does not know. Returns
 * true then: the link is cut, and must not be used. For the handler of events. Never waits. */
bool node_refuses_link(
	struct local_node *self, struct net_peer *peer, const struct net_event *event);
/* Makes durable that nodes were met. Returns false if the store could not be written. Waits. */
bool node_note_met(struct local_node *self);
/* Notes that the incarnation is dead. 0: the node lives, as far as is known. Under `lock`. */
void node_dead_set(struct local_node *self, unsigned node, uint64_t incarnation);

/* ---- keeper.c: a task for what handlers must not wait for ---- */

int node_keeper_start(struct local_node *self);
void node_keeper_end(struct local_node *self);
/* Another node has refused this one as an earlier start. For handlers. Never waits. */
void node_doubted(struct local_node *self);

/* ---- declare_dead.c: nodes that are dead ---- */

int node_serve_dead(void *owner, unsigned from, const uint64_t ask[NET_CALL_WORDS],
	uint64_t answer[NET_CALL_WORDS]);
/* Tells the connected nodes. Returns false if some were not told. For the keeper. Waits. */
bool node_dead_tell(struct local_node *self);

#endif
