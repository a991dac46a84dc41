/* SPDX-License-Identifier: Apache-2.0 */
/*
 * This node as one of several that have a volume. Opens the network, meets the nodes that the
 * cluster names, and gives the volume its functions for other nodes (struct volume_peers). Reports
 * which nodes are connected, have left or are dead.
 *
 * Order: node_open; volume_open with node_volume_peers; ...; node_leave; volume_close; node_close.
 */
#ifndef WEFT_NODE_H
#define WEFT_NODE_H

#include "engine/cluster/cluster.h"
#include "engine/coherence/peers.h"
#include "engine/volume/volume.h"

struct local_node;

/* How long this node waits for others. Each value is less than the one before. */
enum node_patience {
	NODE_WAITS,
	NODE_ALONE, /* leaves without waiting for others to leave */
	NODE_CUT,   /* all that needs another node fails with EIO */
};

struct node_options {
	struct cluster *cluster; /* with its key; it belongs to the caller, and stays open until
				  * node_close */
	unsigned node;           /* the id of this node */
	unsigned machine;        /* on which of its machines it runs. 0: listens at all addresses */
	const char *transport;   /* NULL: the cluster file's */
	const char *coherence;   /* the provider (peers.h); NULL: the default */
	bool dials_only; /* no node can connect to it, since its address is of another machine */
	/* Writes the addresses where a node listens, as a list (net.h). NULL: those of the cluster.
	 * For "shm", whose nodes are at paths. */
	void (*address)(void *owner, unsigned node, char out[NET_ADDRESS_BYTES]);
	/*
	 * Returns how long this node waits for others. Called a few times a second, by any task,
	 * while the node opens or leaves, and after node_watch. NULL: NODE_WAITS.
	 */
	enum node_patience (*patience)(void *owner);
	/* Called when a later start of this node is in its store. This start must end at once
	 * without writing, because the store belongs to the later one. May be NULL. */
	void (*superseded)(void *owner, const char *text);
	/* Called when this incarnation of the node, and all earlier ones, are dead: their locks are
	 * void. Called by any task. May be NULL. */
	void (*dead)(void *owner, unsigned node, uint64_t incarnation);
	/* Called now and then while the volume is opened, if the nodes `who` are not there. May be
	 * NULL. */
	void (*waits)(void *owner, const char *who);
	/* Called when node_leave waits for the nodes `who`, which still use this node's store. May
	 * be NULL. */
	void (*serves_on)(void *owner, const char *who);
	/*
	 * Called while the volume closes, if persisting the rest needs the stores of the nodes
	 * `who`, which are away. They are waited for, for `seconds`. 0: until they are connected,
	 * since the log has no room for their pages. May be NULL.
	 */
	void (*awaits)(void *owner, const char *who, unsigned seconds);
	void *owner;
};

/* Opens this node. Returns 0, or a negative errno with a text. Never waits. */
int node_open(
	struct local_node **out, const struct node_options *o, struct weft_error *err);
/*
 * Returns the value for volume_options.peers. A client's volume is on the disk of remote_log_open
 * (client_logs.h).
 *
 * The volume is open when this node has met all storage nodes, except those that have left alone
 * (peers_on_disk.c). The log names the nodes that it waits for. If the nodes do not fit each other,
 * opening fails with a text that says what to do. Causes are another key, volume, id or version, or
 * clocks that are far apart.
 */
const struct volume_peers *node_volume_peers(struct local_node *self);
/* Tells that the volume is open: from now on all waits are unlimited, and `patience` is not
 * called. */
void node_serving(struct local_node *self);
/* Lets `patience` be called again at any time. */
void node_watch(struct local_node *self);
/*
 * Leaves: the volume is not in use on this node any more, though operations may still run. Waits
 * until all other nodes, which need this node's store until then, are as far or away, or patience
 * has ended. The volume is closed next. Optional, since volume_close waits, too.
 */
void node_leave(struct local_node *self);
/* Ends all waits for other nodes to leave, now and later. */
void node_alone(struct local_node *self);
/* Closes this node after the volume. NULL is allowed. */
void node_close(struct local_node *self);

/* Returns a map of the nodes that know that this node has left without undurable changes: they do
 * not wait for it. Call it after volume_close. */
uint64_t node_told_left(const struct local_node *self);

/*
 * Adds the nodes that are new in the cluster file, which was read anew. Call it while the volume is
 * open, from one task at a time. Returns 0, with a map of their ids in *added. Returns a negative
 * errno with a text if a change is not allowed, or is not possible now. Then nothing was added.
 * (-EHOSTUNREACH and -ENOMEM may come later: try again.) Waits.
 */
int node_reload(struct local_node *self, const struct cluster *newer, uint64_t *added,
	struct weft_error *err);
/* Lets the new nodes begin: all users of the volume at this node know them now. */
void node_reloaded(struct local_node *self);

/*
 * Declares a node dead: an operator says that it does not run any more, and that its store is lost.
 * No connected node waits any more for pages that it shared. Its log is waited for. Durable. Call
 * it while the volume is open. Waits.
 *
 * Returns 0, with a map of the storage nodes that could not be told in *untold. They are told when
 * they have a link with a node that was. Returns a negative errno with a text if nothing was done:
 *
 * - -EBUSY: a node has a link with it;
 * - -ENODATA: no node has met it.
 */
int node_declare_dead(struct local_node *self, unsigned node, uint64_t *untold,
	struct weft_error *err);

/* ---- for status -------------------------------------------------------------------------- */

struct node_link {
	bool connected;
	bool leaving;         /* the volume is unmounted there */
	bool left;            /* it has left: only users of its shard wait for it */
	bool dead;            /* it does not run any more, and its log is waited for */
	uint64_t since_ns;    /* rt_now_ns at which it was met, lost, or first looked for */
	uint64_t incarnation; /* of the last known start; 0: none */
	char text[800];       /* cause of the last failed attempt to connect; empty: none failed */
	/* While up: the address at which the listening end was reached. It is the other node's if
	 * this node has dialed. */
	char address[NET_ADDRESS_BYTES];
	bool dialed;
	struct net_counters traffic;
};

/* Reads the state of the link with another node. Returns 0, or -ENOENT if there is no such node.
 * Never waits. */
int node_link(struct local_node *self, unsigned node, struct node_link *out);

#endif
