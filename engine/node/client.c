/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Clients leave while other nodes work (docs/nodes/clients.md). A client that leaves in good order
 * has nothing left. Its changes are persisted, its groups have no owner, its pages are given back,
 * and its log says so last. It tells the nodes that it is connected with (LEFT). The others ask its
 * host for the state of the log when their link with it is down. Until the log says so, all pages
 * that the client may hold wait for it.
 */
#include "engine/node/node_internal.h"

#include "engine/cache/cache.h"

#define SETTLE_TRIES 1000u
#define SETTLE_NS    5000000ull

/* ---- what they have left ---------------------------------------------------------------- */

/* Of a client that is not connected. 0: `*incarnation` and all before it have left nothing. */
static int state_of(struct local_node *self, unsigned node, uint64_t *incarnation)
{
	const struct cluster_member *c = cluster_member(self->o.cluster, node);
	const uint64_t ask[NET_CALL_WORDS] = {node};
	uint64_t answer[NET_CALL_WORDS] = {0};
	enum log_state state;
	int rc;

	if (self->clients && c->host == self->o.node) {
		rc = clients_state(self->clients, node, &state, incarnation);
	} else {
		rc = net_call(self->calls, c->host, NET_CALL_LOG_STATE, ask, answer);
		state = (enum log_state)answer[0];
		*incarnation = answer[1];
	}
	return rc ? rc : state == LOG_STATE_VACANT ? 0 : -EBUSY;
}

bool node_vacant(void *arg, unsigned node)
{
	struct local_node *self = arg;
	const struct cluster_member *c = cluster_member(self->o.cluster, node);
	uint64_t incarnation;

	/* the host itself answers: to change anything since, the client would have attached */
	return c && c->role == CLUSTER_CLIENT && !node_connected(self, node) &&
	       state_of(self, node, &incarnation) == 0;
}

void node_client_look(struct local_node *self, unsigned node)
{
	struct other *other = &self->other[node];
	uint64_t incarnation;

	/* of a start later than the log's, nothing is known yet */
	if (state_of(self, node, &incarnation) ||
		incarnation < cluster_incarnation(self->o.cluster, node))
		return;
	rt_mutex_lock(&self->lock);
	if (!other->link.connected) {
		other->vacant = true;
		/* under the lock: a link that comes up is told after it */
		coherence_vacant(self->coherence, node);
	}
	rt_mutex_unlock(&self->lock);
}

/* ---- leaving ---------------------------------------------------------------------------- */

/*
 * No operation runs. Homes persist the images that this node has dirty or owes, also of pages that
 * other nodes have by now. Then clean pages are given back, so that no entry names this node, and
 * its links end without an epoch. When nothing is left the links are cut, so that nothing can come
 * back. Pages that could not be given back are void then.
 */
int node_client_settle(struct local_node *self, struct volume *v)
{
	int rc = space_leave(v->space, !v->recovery.was_clean);

	for (unsigned tries = 0; !rc && tries < SETTLE_TRIES; tries++) {
		if (tries)
			rt_sleep_ns(SETTLE_NS);
		rc = volume_sync(v);
		if (!cache_keeps(v->cache) || atomic_load(&self->cut))
			break;
	}
	/* its log proves the same, for longer: no home needs to note it on its disk */
	if (!rc && !cache_keeps(v->cache) && !atomic_load(&self->cut))
		node_give_back(self, v, false);
	coherence_give_up(self->coherence);
	cache_stop(v->cache);
	coherence_stop(self->coherence);
	return rc ? rc : cache_keeps(v->cache) ? -EBUSY : 0;
}
