/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Clients: nodes without a store (docs/many-nodes.md, "Clients"). Such a node has a log
 * all the same, in an area of another node's store, its host's. Here is how the two get
 * together: the host serves the area's bytes, the client has them as a disk.
 *
 * They talk over a link of their own, in which the client goes by another id, since its
 * incarnation is in the area: it is not known before the link is there.
 */
#ifndef WEFT_CLIENTS_H
#define WEFT_CLIENTS_H

#include "engine/cluster/cluster.h"
#include "engine/net/calls.h"
#include "engine/rt/rt.h"
#include "engine/store/store.h"

/* By what id a client reaches for its log; nodes' own are below. */
#define LOG_PEER(client) ((uint16_t)(CLUSTER_NODE_MAX + 1 + (client)))
/* Memory of the host's where what is written or read lies meanwhile; a slot for each area. */
#define LOG_REGION     15u
#define LOG_SLOT_BYTES (256u << 10)

/* What is asked of an area's state. */
enum log_state {
	LOG_STATE_USED, /* by a start of the client that may not be over, or that crashed */
	LOG_STATE_VACANT, /* that start has left nothing; or there was none */
};

/* ---- the host ------------------------------------------------------------------------- */

struct clients;

struct clients_options {
	const struct cluster *cluster;
	unsigned node; /* this one */
	struct store *store;
	struct log *log; /* the host's own */
	struct net *net; /* not started yet */
	struct net_calls *calls;
	/* Is the node connected, by the link that nodes have with each other? */
	bool (*connected)(void *owner, unsigned node);
	/*
	 * May the client, which was never here, use its area? 0; -EUNATCH: node *by does not
	 * know it; -EAGAIN: that is being asked, of *by (0: of all). Never waits. NULL: yes.
	 */
	int (*admits)(void *owner, unsigned client, unsigned *by);
	void *owner;
};

/* Also where the store has no such area: it says so to who asks. 0, or -errno. */
int clients_open(
	struct clients **out, const struct clients_options *o, struct weft_error *err);
/*
 * Is there room for the logs of all clients that `newer` has with this node, and have those of
 * `added` left nothing behind? 0, or -errno with a text. Waits.
 */
int clients_room(struct clients *c, const struct cluster *newer, uint64_t added,
	struct weft_error *err);
/* Lets those reach for their logs that the cluster has by now. 0, or -errno with a text. */
int clients_peers_add(struct clients *c, struct weft_error *err);
/* From the network's handlers: the link by which a client reaches for its log. */
void clients_event(
	struct clients *c, struct net_peer *peer, const struct net_event *event);
/* What the client's log says; *incarnation: of that start. 0 or -errno. Waits. */
int clients_state(
	struct clients *c, unsigned client, enum log_state *state, uint64_t *incarnation);
/* No call is served any more. */
void clients_close(struct clients *c);

/* ---- the client ----------------------------------------------------------------------- */

struct remote_log_options {
	const struct cluster *cluster;
	unsigned node;         /* this one: a client */
	const char *transport; /* as in struct member_options */
	void (*address)(void *owner, unsigned node, char out[NET_ADDRESS_BYTES]);
	/* Asked a few times a second while the host is away: false, it is not waited for
	 * any more, and all fails. NULL: for ever. */
	bool (*waits)(void *owner);
	void *owner;
	struct store_format
		format; /* for one that was never used; sizes are not looked at */
};

/*
 * The log's area as a disk, for volume_open. Waits for the host. Where it goes away later,
 * what is written waits for it, and is sent again: a write that has ended is durable.
 */
int remote_log_open(
	struct rt_disk **out, const struct remote_log_options *o, struct weft_error *err);

#endif
