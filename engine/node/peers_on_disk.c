/* SPDX-License-Identifier: Apache-2.0 */
/*
 * This node's store keeps facts about other nodes, so that they outlive a start of this one.
 *
 * Nodes that were met: noted for ever before this node has anything to do with them. So this node
 * is never home again without knowing them (docs/nodes/lifecycle.md, "A node that is added").
 *
 * Nodes that have left alone, and are not waited for ("Leaving"). Before such a node says goodbye
 * it gives back the pages that it has of others. It tells each home that it has nothing of its
 * shard (LEFT). The home notes that. It takes the note back before it has anything to do with the
 * node again. So the superblock never says too much.
 *
 * Nodes that are dead (declare_dead.c): likewise.
 */
#include "engine/node/node_internal.h"

#define TELL_TIMES    100u
#define TELL_PAUSE_NS 20000000ull

/* ---- what is known of others ---------------------------------------------------------- */

static void set_left(struct local_node *self, unsigned node, bool left)
{
	self->other[node].left = left;
	if (left)
		atomic_fetch_or(&self->volume->left, 1ull << node);
	else
		atomic_fetch_and(&self->volume->left, ~(1ull << node));
}

void node_dead_set(struct local_node *self, unsigned node, uint64_t incarnation)
{
	self->other[node].dead = incarnation;
	if (incarnation)
		atomic_fetch_or(&self->volume->dead, 1ull << node);
	else
		atomic_fetch_and(&self->volume->dead, ~(1ull << node));
}

void node_left_read(struct local_node *self)
{
	const struct cluster_member *c = NULL;

	while ((c = node_next_other(self, c))) {
		self->other[c->id].known = store_node_known(self->volume->store, c->id);
		set_left(self, c->id, store_left(self->volume->store, c->id) != 0);
		node_dead_set(self, c->id, store_dead(self->volume->store, c->id));
	}
}

/* Words: the caller's incarnation; 1: nothing that it has changed is undurable. */
int node_serve_left(void *owner, unsigned from, const uint64_t ask[NET_CALL_WORDS],
	uint64_t answer[NET_CALL_WORDS])
{
	struct local_node *self = owner;
	bool known;
	int rc;

	if (from > CLUSTER_NODE_MAX)
		return -EINVAL;
	rt_mutex_lock(&self->lock);
	known = self->other[from].link.connected && self->other[from].link.incarnation == ask[0];
	rt_mutex_unlock(&self->lock);
	if (!known)
		return -ESTALE;
	rc = coherence_left(self->coherence, from);
	if (rc || !ask[1])
		return rc;
	rt_mutex_lock(&self->noting);
	rc = store_left_set(self->volume->store, from, ask[0]);
	rt_mutex_lock(&self->lock);
	if (!rc)
		set_left(self, from, true);
	rt_mutex_unlock(&self->lock);
	rt_mutex_unlock(&self->noting);
	return rc ? -EIO : 0;
}

/* ---- who comes, and comes back -------------------------------------------------------------- */

/*
 * The link is cut: when the keeper has made it durable that the node may have something,
 * the next one is used.
 */
bool node_refuses_link(
	struct local_node *self, struct net_peer *peer, const struct net_event *event)
{
	struct other *other = &self->other[net_peer_node(peer)];
	bool refused;

	if (event->kind == NET_LINK_REFUSED)
		return false;
	rt_mutex_lock(&self->lock);
	refused = other->refused;
	if (event->kind == NET_LINK_DOWN)
		other->refused = false;
	else if (other->dead && event->incarnation <= other->dead)
		refused = other->refused = true;
	else if (other->left || other->dead || !other->known)
		refused = other->refused = other->note_due = true;
	rt_mutex_unlock(&self->lock);
	if (refused && event->kind == NET_LINK_UP) {
		net_peer_ignore(peer);
		net_cut(peer, -EAGAIN);
		node_keeper_wake(self);
	}
	return refused;
}

bool node_note_met(struct local_node *self)
{
	const struct cluster_member *c = NULL;
	bool well = true;

	while ((c = node_next_other(self, c))) {
		struct other *other = &self->other[c->id];
		bool back;

		rt_mutex_lock(&self->lock);
		back = other->note_due;
		rt_mutex_unlock(&self->lock);
		if (!back)
			continue;
		rt_mutex_lock(&self->noting);
		if (store_node_met(self->volume->store, c->id)) {
			rt_mutex_unlock(&self->noting);
			well = false;
			continue;
		}
		rt_mutex_lock(&self->lock);
		other->note_due = false;
		other->known = true;
		set_left(self, c->id, false);
		node_dead_set(self, c->id, 0);
		rt_mutex_unlock(&self->lock);
		rt_mutex_unlock(&self->noting);
	}
	return well;
}

/* ---- leaving ------------------------------------------------------------------------------- */

/* -EBUSY: a page that was given back last is still on its way within the home. */
static int tell_left(struct local_node *self, unsigned node, bool durable)
{
	const uint64_t ask[NET_CALL_WORDS] = {
		cluster_incarnation(self->o.cluster, self->o.node), durable};
	uint64_t answer[NET_CALL_WORDS];
	int rc = -EAGAIN;

	for (unsigned i = 0; i < TELL_TIMES && (rc == -EAGAIN || rc == -EBUSY); i++) {
		if (i)
			rt_sleep_ns(TELL_PAUSE_NS);
		if (atomic_load(&self->cut))
			return -EINTR;
		rc = net_call(self->calls, node, NET_CALL_LEFT, ask, answer);
	}
	return rc;
}

void node_give_back(struct local_node *self, struct volume *v, bool durable)
{
	const struct cluster_member *c = NULL;
	uint64_t has = cache_give_back(v->cache);

	durable &= !has && !atomic_load(&v->returned) && !volume_failed(v);
	while ((c = node_next_other(self, c))) {
		int rc;

		if (!node_connected(self, c->id) ||
			(c->role == CLUSTER_STORAGE && has >> c->shard & 1) ||
			(c->role == CLUSTER_CLIENT && node_is_client(self)))
			continue; /* clients have nothing of each other */
		rc = tell_left(self, c->id, durable);
		if (!rc && durable)
			self->told_left |= 1ull << c->id;
		if (rc)
			weft_log(4, "node %u goes on waiting for this one: %s", c->id,
				strerrordesc_np(-rc));
	}
}

uint64_t node_told_left(const struct local_node *self)
{
	return self->told_left;
}
