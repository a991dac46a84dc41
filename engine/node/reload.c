/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cluster file was read anew: takes in the clients that are new in it, while other nodes work
 * (docs/nodes/lifecycle.md, "A node that is added"). To the nodes that take it in, such a client
 * is one that was there and has left nothing. When a client may begin is in admit.c.
 */
#include "engine/node/node_internal.h"

#include <sys/socket.h>

/* Only its host can tell whether there is room for its log, and a change that was taken in stays.
 * So the host is the first. (Of several clients with different hosts all of these are.) */
static int host_check(struct local_node *self, const struct cluster *newer, uint64_t added,
	struct weft_error *err)
{
	const struct cluster_member *c = NULL;
	uint64_t nodes;
	int rc = 0;

	while ((c = cluster_next(newer, c)))
		if (added >> c->id & 1 && c->host == self->o.node)
			return 0;
	while (!rc && (c = cluster_next(newer, c))) {
		if (!(added >> c->id & 1))
			continue;
		rc = node_known_to(self, c->host, &nodes);
		if (rc)
			weft_error(err, rc,
				"%s:%u: [node %u]: cannot send a request to node %u, "
				"its host: %s",
				cluster_path(newer), c->line, c->id, c->host,
				strerrordesc_np(-rc));
		else if (!(nodes >> c->id & 1))
			rc = weft_error(err, -EUNATCH,
				"%s:%u: [node %u]: node %u, its host, does not know it "
				"yet: run `weft cluster reload` there first",
				cluster_path(newer), c->line, c->id, c->host);
	}
	return rc;
}

/* Before anything changes: checks that the new nodes' addresses resolve, and that there is room for
 * their logs. */
static int reload_check(struct local_node *self, const struct cluster *newer, uint64_t added,
	struct weft_error *err)
{
	struct sockaddr_storage address[4 * CLUSTER_ADDRESSES_MAX];
	const struct cluster_member *c = NULL;
	int rc = 0;

	while (rc >= 0 && !self->o.address && (c = cluster_next(newer, c)))
		if (added >> c->id & 1)
			rc = cluster_resolve(
				newer, c->id, 0, address, ARRAY_SIZE(address), err);
	if (rc < 0)
		return rc;
	rc = self->clients ? clients_room(self->clients, newer, added, err) : 0;
	return rc ? rc : host_check(self, newer, added, err);
}

/* No link of it is there before it has a peer, and nobody heard of it. */
static void node_take(struct local_node *self, const struct cluster *newer, unsigned node)
{
	rt_mutex_lock(&self->lock);
	self->other[node].vacant = true;
	rt_mutex_unlock(&self->lock);
	cluster_add(self->o.cluster, newer, node);
	atomic_fetch_or(&self->volume->nodes, 1ull << node);
	weft_log(5, "node %u is known now", node);
}

int node_reload(struct local_node *self, const struct cluster *newer, uint64_t *added,
	struct weft_error *err)
{
	int rc = cluster_compare(self->o.cluster, newer, added, err);

	if (!rc)
		rc = reload_check(self, newer, *added, err);
	if (rc)
		return rc;
	for (unsigned node = 1; node <= CLUSTER_NODE_MAX; node++)
		if (*added >> node & 1)
			node_take(self, newer, node);
	rc = node_peers_add(self, err);
	if (!rc && self->clients)
		rc = clients_peers_add(self->clients, err);
	if (!rc) {
		rc = node_vacancies_start(self);
		if (rc)
			weft_error(
				err, rc, "cannot start a task: %s", strerrordesc_np(-rc));
	}
	node_changed(self);
	return rc;
}
