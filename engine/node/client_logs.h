/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Clients: nodes without a store (docs/nodes/clients.md). A client's log is in an area of its
 * host's store. The host serves the bytes of the area, and the client uses them as a disk.
 *
 * They use a link of their own, in which the client has another id. The client's incarnation is in
 * the area, so it is not known before this link exists.
 */
#ifndef WEFT_CLIENT_LOGS_H
#define WEFT_CLIENT_LOGS_H

#include "engine/cluster/cluster.h"
#include "engine/net/calls.h"
#include "engine/rt/rt.h"
#include "engine/store/store.h"

/* The id of a client on the link for its log. Ids of nodes are below 512. */
#define LOG_PEER(client) ((uint16_t)(512 + (client)))
_Static_assert(CLUSTER_NODE_MAX < 512 && 512 + CLUSTER_NODE_MAX < NET_NODES_MAX, "ids of links");
/* Region of the host's memory for data on its way; one slot for each area. */
#define LOG_REGION     15u
#define LOG_SLOT_BYTES (256u << 10)

/* The state of an area. */
enum log_state {
	LOG_STATE_USED,   /* by a start of the client that may still run, or that crashed */
	LOG_STATE_VACANT, /* that start has left nothing, or there was none */
};

/* ---- the host ------------------------------------------------------------------------- */

struct clients;

struct clients_options {
	const struct cluster *cluster;
	unsigned node; /* this node */
	struct store *store;
	struct log *log; /* the host's own log */
	struct net *net; /* not started yet */
	struct net_calls *calls;
	/* Returns true if the node is connected by the link of nodes. */
	bool (*connected)(void *owner, unsigned node);
	/*
	 * Returns 0 if the client, which was never here, may use its area. Returns -EUNATCH if node
	 * *by does not know it, or -EAGAIN if *by (0: all nodes) is being asked. Never waits. NULL:
	 * always 0.
	 */
	int (*admits)(void *owner, unsigned client, unsigned *by);
	void *owner;
};

/* Opens the host's side. A store without an area needs it too, to say so to clients. Returns 0 or a
 * negative errno. */
int clients_open(
	struct clients **out, const struct clients_options *o, struct weft_error *err);
/* Checks that there is room for the logs of all clients that `newer` has with this node, and that
 * those of `added` are vacant. Returns 0, or a negative errno with a text. Waits. */
int clients_room(struct clients *c, const struct cluster *newer, uint64_t added,
	struct weft_error *err);
/* Adds the peers for clients that the cluster has now. Returns 0, or a negative errno with a
 * text. */
int clients_peers_add(struct clients *c, struct weft_error *err);
/* Handles an event of a link for a client's log, called by the network's handlers. Never waits. */
void clients_event(
	struct clients *c, struct net_peer *peer, const struct net_event *event);
/* Reads the state of the client's log; *incarnation: of its start. Returns 0 or a negative errno.
 * Waits. */
int clients_state(
	struct clients *c, unsigned client, enum log_state *state, uint64_t *incarnation);
/* Stops serving calls, and frees the clients. */
void clients_close(struct clients *c);

/* ---- the client ----------------------------------------------------------------------- */

struct remote_log_options {
	const struct cluster *cluster;
	unsigned node;         /* this node, a client */
	const char *transport; /* as in struct node_options */
	void (*address)(void *owner, unsigned node, char out[NET_ADDRESS_BYTES]);
	/* Called a few times a second while the host is away. Returns false to end the wait; all
	 * requests then fail. NULL: it waits for ever. */
	bool (*waits)(void *owner);
	void *owner;
	struct store_format
		format; /* for an area that was never used; sizes are ignored */
};

/* Opens the log's area as a disk, for volume_open. Waits for the host. If the host goes away later,
 * writes wait for it and are sent again. A write that has ended is durable. */
int remote_log_open(
	struct rt_disk **out, const struct remote_log_options *o, struct weft_error *err);

#endif
