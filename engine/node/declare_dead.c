/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A node that does not run any more and has lost its store (docs/nodes/fencing.md, "A node that is
 * dead"), as an operator declares. Only this is known of it: its frames, its kernel's cache and its
 * locks are gone. So the other nodes may change again the pages that it shared with them. Pages
 * that it may have changed wait for its log.
 *
 * Order, at each node. First no link with that start is made any more, and a link with a later
 * start is not used meanwhile (`dead`). Then the store says so. Then the page protocol is told. A
 * node that knows it tells all nodes with which it has a link (the keeper does).
 *
 * A home may have shared pages with a start that the other nodes have not met. It may have
 * forgotten that by a start of its own. So a home trusts another node's word only if it has met the
 * dead node itself since its start. If not, it goes on waiting for that node.
 */
#include "engine/node/node_internal.h"

/* ---- what this node knows --------------------------------------------------------------- */

struct knows {
	uint64_t incarnation; /* of the last start that was heard of; 0: none was */
	bool connected;       /* there is a link with it, or will be in a moment */
};

static struct knows knows_of(struct local_node *self, unsigned node)
{
	struct other *other = &self->other[node];
	struct knows k = {.incarnation = cluster_incarnation(self->o.cluster, node)};

	rt_mutex_lock(&self->lock);
	k.incarnation = MAX(k.incarnation, other->dead);
	k.connected = other->link.connected || other->refused || other->note_due;
	rt_mutex_unlock(&self->lock);
	return k;
}

/* Returns true if this node has granted nothing to a later start. */
static bool may_judge(struct local_node *self, unsigned node)
{
	return node_is_client(self) || !self->other[node].known || self->other[node].dead ||
	       cluster_incarnation(self->o.cluster, node);
}

/* Under `lock`. 0: it is to be noted; 1: nothing is. */
static int begin_dead(struct local_node *self, unsigned node, uint64_t incarnation)
{
	struct other *other = &self->other[node];

	if (other->link.connected || other->note_due)
		return -EAGAIN;
	if (other->left || other->dead >= incarnation)
		return 1;
	if (!may_judge(self, node))
		return -EUNATCH;
	node_dead_set(self, node, incarnation);
	return 0;
}

/* Under `noting`, which keeps away that it is noted as one that was met. */
static int note_dead(struct local_node *self, unsigned node, uint64_t incarnation)
{
	uint64_t before = self->other[node].dead;
	int rc;

	rt_mutex_lock(&self->lock);
	rc = begin_dead(self, node, incarnation);
	rt_mutex_unlock(&self->lock);
	if (rc)
		return MIN(rc, 0);
	rc = store_dead_set(self->volume->store, node, incarnation);
	rt_mutex_lock(&self->lock);
	if (rc)
		node_dead_set(self, node, before);
	else
		/* under the lock: a link that comes up is told after it */
		coherence_dead(self->coherence, node);
	rt_mutex_unlock(&self->lock);
	return rc ? -EIO : 0;
}

/* Returns 0: the node is dead, or was, and a later start was met; -EAGAIN: its link is being ended;
 * -EUNATCH: this node cannot tell. */
static int take_dead(struct local_node *self, unsigned node, uint64_t incarnation)
{
	struct net_peer *peer = net_peer_find(self->net, (uint16_t)node);
	int rc;

	if (!peer)
		return -ENOENT;
	if (cluster_incarnation(self->o.cluster, node) > incarnation)
		return 0;
	net_peer_over(peer, incarnation);
	rt_mutex_lock(&self->noting);
	rc = note_dead(self, node, incarnation);
	rt_mutex_unlock(&self->noting);
	if (rc == -EAGAIN && knows_of(self, node).incarnation <= incarnation)
		net_cut(peer, -ESTALE);
	if (rc)
		return rc;
	weft_log(
		5, "node %u is dead: requests for pages that it only shared go on, "
			"those for its changes wait", node);
	if (self->o.dead)
		self->o.dead(self->o.owner, node, incarnation);
	node_keeper_wake(self);
	node_changed(self);
	return 0;
}

/* ---- what others are told ---------------------------------------------------------------- */

/* Words: node, incarnation, 1: it is dead, 0: asks for the known state. Back: incarnation, 1: there
 * is a link. */
int node_serve_dead(void *owner, unsigned from, const uint64_t ask[NET_CALL_WORDS],
	uint64_t answer[NET_CALL_WORDS])
{
	struct local_node *self = owner;
	struct knows k;

	if (ask[0] > CLUSTER_NODE_MAX || !ask[1] != !ask[2] || ask[1] > STORE_COUNTER_MAX)
		return -EINVAL;
	if (ask[0] == self->o.node)
		return -EBUSY;
	if (!cluster_member(self->o.cluster, (unsigned)ask[0]))
		return -ENOENT;
	if (ask[2])
		return take_dead(self, (unsigned)ask[0], ask[1]);
	k = knows_of(self, (unsigned)ask[0]);
	answer[0] = k.incarnation;
	answer[1] = k.connected;
	return 0;
}

/* Under `lock`. */
static uint64_t dead_nodes(const struct local_node *self)
{
	uint64_t nodes = 0;

	for (unsigned n = 0; n <= CLUSTER_NODE_MAX; n++)
		if (self->other[n].dead)
			nodes |= 1ull << n;
	return nodes;
}

static int declare_to(struct local_node *self, unsigned to, unsigned node)
{
	struct other *other = &self->other[to];
	uint64_t ask[NET_CALL_WORDS] = {node, 0, 1}, answer[NET_CALL_WORDS], session;
	int rc;

	rt_mutex_lock(&self->lock);
	ask[1] = self->other[node].dead;
	session = other->link.since_ns;
	rt_mutex_unlock(&self->lock);
	rc = ask[1] ? net_call(self->calls, to, NET_CALL_DEAD, ask, answer) : 0;
	rt_mutex_lock(&self->lock);
	if ((!rc || rc == -EUNATCH) && ask[1] && other->link.connected &&
		other->link.since_ns == session)
		other->told_dead |= 1ull << node;
	rt_mutex_unlock(&self->lock);
	return rc;
}

bool node_dead_tell(struct local_node *self)
{
	const struct cluster_member *c = NULL;
	bool well = true;

	while (atomic_load(&self->volume->dead) && (c = node_next_other(self, c))) {
		uint64_t nodes;

		rt_mutex_lock(&self->lock);
		nodes = self->other[c->id].link.connected
				? dead_nodes(self) & ~self->other[c->id].told_dead
				: 0;
		rt_mutex_unlock(&self->lock);
		for (unsigned n = 0; nodes >> n; n++) {
			if (nodes >> n & 1) {
				int rc = declare_to(self, c->id, n);

				well &= !rc || rc == -EUNATCH || rc == -ENOTCONN ||
					rc == -ECONNRESET;
			}
			if (n == CLUSTER_NODE_MAX)
				break;
		}
	}
	return well;
}

/* ---- somebody's word ----------------------------------------------------------------------- */

/* Asks all connected nodes for the last start of the node that they have met. */
static int look_around(
	struct local_node *self, unsigned node, uint64_t *incarnation, struct weft_error *err)
{
	const struct cluster_member *c = NULL;
	struct knows k = knows_of(self, node);

	*incarnation = k.incarnation;
	if (k.connected)
		return weft_error(
			err, -EBUSY, "node %u is up: this node has a link with it", node);
	while ((c = node_next_other(self, c))) {
		const uint64_t ask[NET_CALL_WORDS] = {node};
		uint64_t answer[NET_CALL_WORDS];
		int rc;

		if (c->id == node)
			continue;
		rc = net_call(self->calls, c->id, NET_CALL_DEAD, ask, answer);
		if (rc == -ENOTCONN || rc == -ECONNRESET)
			continue;
		if (rc)
			return weft_error(err, rc, "cannot send a request to node %u: "
				"%s", c->id,
				strerrordesc_np(-rc));
		if (answer[1])
			return weft_error(err, -EBUSY,
				"node %u is up: node %u has a link with it", node, c->id);
		*incarnation = MAX(*incarnation, answer[0]);
	}
	if (*incarnation)
		return 0;
	return weft_error(err, -ENODATA,
		"none of the nodes that are up has met node %u since they were "
		"started: its log may hold the newest version of any page; use "
		"--store, with its store",
		node);
}

static uint64_t declare_to_all(struct local_node *self, unsigned node)
{
	const struct cluster_member *c = NULL;
	uint64_t untold = 0;

	while ((c = node_next_other(self, c))) {
		if (c->id == node)
			continue;
		if ((!node_connected(self, c->id) || declare_to(self, c->id, node)) &&
			c->role == CLUSTER_STORAGE && !volume_left(self->volume, c->id) &&
			!volume_dead(self->volume, c->id))
			untold |= 1ull << c->id;
	}
	return untold;
}

int node_declare_dead(struct local_node *self, unsigned node, uint64_t *untold,
	struct weft_error *err)
{
	uint64_t incarnation;
	int rc;

	*untold = 0;
	if (node == self->o.node || !cluster_member(self->o.cluster, node))
		return weft_error(err, -EINVAL, "node %u is not another node of %s", node,
			cluster_path(self->o.cluster));
	if (volume_left(self->volume, node))
		return weft_error(err, -EALREADY,
			"node %u has left on its own: only requests for data in its "
			"store wait for it",
			node);
	rc = look_around(self, node, &incarnation, err);
	if (rc)
		return rc;
	rc = take_dead(self, node, incarnation);
	if (rc)
		return weft_error(err, rc, "node %u: %s", node,
			rc == -EAGAIN    ? "it has just come back"
			: rc == -EUNATCH ? "this node has not met it since its own "
					   "start, and does not know which pages it "
					   "had; run the command on a node that has "
					   "met it"
					 : strerrordesc_np(-rc));
	*untold = declare_to_all(self, node);
	return 0;
}
