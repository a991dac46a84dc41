/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A node that does not run any more, and whose store is not to be had (docs/many-nodes.md, "A node
 * that is dead"): its machine is broken, and the store with it. That its frames, its kernel's
 * cache and its locks are gone is all that can be known then, and it is somebody's word. So what it
 * shared with others they may change again; what it may have changed waits for its log.
 *
 * Order, at each node: no link with that start is made any more, and one of a later start is not used
 * meanwhile (`dead`); the store says so; then the page protocol is told. Who knows it tells all with
 * whom it has a link (the keeper does).
 *
 * A home may have shared pages with a start that whoever tells it has not heard of, and have forgotten
 * that by a start of its own. So it takes the word of a node only if it has met one itself since; else it
 * goes on waiting for the node.
 */
#include "engine/volume/member_internal.h"

/* ---- what this node knows --------------------------------------------------------------- */

struct knows {
	uint64_t incarnation; /* of the last start that was heard of; 0: none was */
	bool up;              /* there is a link with it, or will be in a moment */
};

static struct knows knows_of(struct member *m, unsigned node)
{
	struct other *other = &m->other[node];
	struct knows k = {.incarnation = cluster_incarnation(m->o.cluster, node)};

	rt_mutex_lock(&m->lock);
	k.incarnation = MAX(k.incarnation, other->dead);
	k.up = other->link.up || other->barred || other->returns;
	rt_mutex_unlock(&m->lock);
	return k;
}

/* Has it granted nothing to a later start? */
static bool may_judge(struct member *m, unsigned node)
{
	return member_is_client(m) || !m->other[node].known || m->other[node].dead ||
	       cluster_incarnation(m->o.cluster, node);
}

/* Under `lock`. 0: it is to be noted; 1: nothing is. */
static int begin_dead(struct member *m, unsigned node, uint64_t incarnation)
{
	struct other *other = &m->other[node];

	if (other->link.up || other->returns)
		return -EAGAIN;
	if (other->left || other->dead >= incarnation)
		return 1;
	if (!may_judge(m, node))
		return -EUNATCH;
	member_dead_set(m, node, incarnation);
	return 0;
}

/* Under `noting`, which keeps away that it is noted as one that was met. */
static int note_dead(struct member *m, unsigned node, uint64_t incarnation)
{
	uint64_t before = m->other[node].dead;
	int rc;

	rt_mutex_lock(&m->lock);
	rc = begin_dead(m, node, incarnation);
	rt_mutex_unlock(&m->lock);
	if (rc)
		return MIN(rc, 0);
	rc = store_dead_set(m->volume->store, node, incarnation);
	rt_mutex_lock(&m->lock);
	if (rc)
		member_dead_set(m, node, before);
	else
		/* under the lock: a link that comes up is told after it */
		coherence_cluster_dead(m->coherence, node);
	rt_mutex_unlock(&m->lock);
	return rc ? -EIO : 0;
}

/* 0: it is so, or was, and a later start was met; -EAGAIN: its link is being ended; -EUNATCH: this node cannot
 * tell. */
static int take_dead(struct member *m, unsigned node, uint64_t incarnation)
{
	struct net_peer *peer = net_peer_find(m->net, (uint16_t)node);
	int rc;

	if (!peer)
		return -ENOENT;
	if (cluster_incarnation(m->o.cluster, node) > incarnation)
		return 0;
	net_peer_over(peer, incarnation);
	rt_mutex_lock(&m->noting);
	rc = note_dead(m, node, incarnation);
	rt_mutex_unlock(&m->noting);
	if (rc == -EAGAIN && knows_of(m, node).incarnation <= incarnation)
		net_cut(peer, -ESTALE);
	if (rc)
		return rc;
	weft_log(
		5, "node %u is dead: what it shared is not waited for, its log is", node);
	if (m->o.dead)
		m->o.dead(m->o.owner, node, incarnation);
	member_keeper_wake(m);
	member_changed(m);
	return 0;
}

/* ---- what others are told ---------------------------------------------------------------- */

/* Words: node, incarnation, 1: it is so, 0: what do you know? Back: incarnation, 1: there is a link. */
int member_serve_dead(void *owner, unsigned from, const uint64_t ask[NET_CALL_WORDS],
	uint64_t answer[NET_CALL_WORDS])
{
	struct member *m = owner;
	struct knows k;

	if (ask[0] > CLUSTER_NODE_MAX || !ask[1] != !ask[2] || ask[1] > STORE_COUNTER_MAX)
		return -EINVAL;
	if (ask[0] == m->o.node)
		return -EBUSY;
	if (!cluster_member(m->o.cluster, (unsigned)ask[0]))
		return -ENOENT;
	if (ask[2])
		return take_dead(m, (unsigned)ask[0], ask[1]);
	k = knows_of(m, (unsigned)ask[0]);
	answer[0] = k.incarnation;
	answer[1] = k.up;
	return 0;
}

/* Under `lock`. */
static uint64_t dead_nodes(const struct member *m)
{
	uint64_t nodes = 0;

	for (unsigned n = 0; n <= CLUSTER_NODE_MAX; n++)
		if (m->other[n].dead)
			nodes |= 1ull << n;
	return nodes;
}

static int tell_one(struct member *m, unsigned to, unsigned node)
{
	struct other *other = &m->other[to];
	uint64_t ask[NET_CALL_WORDS] = {node, 0, 1}, answer[NET_CALL_WORDS], session;
	int rc;

	rt_mutex_lock(&m->lock);
	ask[1] = m->other[node].dead;
	session = other->link.since_ns;
	rt_mutex_unlock(&m->lock);
	rc = ask[1] ? net_call(m->calls, to, NET_CALL_DEAD, ask, answer) : 0;
	rt_mutex_lock(&m->lock);
	if ((!rc || rc == -EUNATCH) && ask[1] && other->link.up &&
		other->link.since_ns == session)
		other->told_dead |= 1ull << node;
	rt_mutex_unlock(&m->lock);
	return rc;
}

bool member_dead_tell(struct member *m)
{
	const struct cluster_member *c = NULL;
	bool well = true;

	while (atomic_load(&m->volume->dead) && (c = member_next_other(m, c))) {
		uint64_t nodes;

		rt_mutex_lock(&m->lock);
		nodes = m->other[c->id].link.up
				? dead_nodes(m) & ~m->other[c->id].told_dead
				: 0;
		rt_mutex_unlock(&m->lock);
		for (unsigned n = 0; nodes >> n; n++) {
			if (nodes >> n & 1) {
				int rc = tell_one(m, c->id, n);

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

/* What all who are connected know of it: the last start that was heard of. */
static int look_around(
	struct member *m, unsigned node, uint64_t *incarnation, struct weft_error *err)
{
	const struct cluster_member *c = NULL;
	struct knows k = knows_of(m, node);

	*incarnation = k.incarnation;
	if (k.up)
		return weft_error(
			err, -EBUSY, "node %u is up: this node has a link with it", node);
	while ((c = member_next_other(m, c))) {
		const uint64_t ask[NET_CALL_WORDS] = {node};
		uint64_t answer[NET_CALL_WORDS];
		int rc;

		if (c->id == node)
			continue;
		rc = net_call(m->calls, c->id, NET_CALL_DEAD, ask, answer);
		if (rc == -ENOTCONN || rc == -ECONNRESET)
			continue;
		if (rc)
			return weft_error(err, rc, "node %u cannot be asked: %s", c->id,
				strerrordesc_np(-rc));
		if (answer[1])
			return weft_error(err, -EBUSY,
				"node %u is up: node %u has a link with it", node, c->id);
		*incarnation = MAX(*incarnation, answer[0]);
	}
	if (*incarnation)
		return 0;
	return weft_error(err, -ENODATA,
		"none of the nodes that are up has met node %u since they were started: "
		"any page may be "
		"newest in its log, so without its store nothing can be said of it",
		node);
}

static uint64_t tell_all(struct member *m, unsigned node)
{
	const struct cluster_member *c = NULL;
	uint64_t untold = 0;

	while ((c = member_next_other(m, c))) {
		bool up;

		if (c->id == node)
			continue;
		rt_mutex_lock(&m->lock);
		up = m->other[c->id].link.up;
		rt_mutex_unlock(&m->lock);
		if ((!up || tell_one(m, c->id, node)) && c->role == CLUSTER_STORAGE &&
			!volume_left(m->volume, c->id) && !volume_dead(m->volume, c->id))
			untold |= 1ull << c->id;
	}
	return untold;
}

int member_dead(struct member *m, unsigned node, uint64_t *untold, struct weft_error *err)
{
	uint64_t incarnation;
	int rc;

	*untold = 0;
	if (node == m->o.node || !cluster_member(m->o.cluster, node))
		return weft_error(err, -EINVAL, "node %u is not another node of %s", node,
			cluster_path(m->o.cluster));
	if (volume_left(m->volume, node))
		return weft_error(err, -EALREADY,
			"node %u has left, and is waited for by nobody but who needs "
			"what lies in its store",
			node);
	rc = look_around(m, node, &incarnation, err);
	if (rc)
		return rc;
	rc = take_dead(m, node, incarnation);
	if (rc)
		return weft_error(err, rc, "node %u: %s", node,
			rc == -EAGAIN    ? "it has just come back"
			: rc == -EUNATCH ? "this node has not met it since its own "
					   "start, and cannot tell "
					   "what it had: say it on one that has"
					 : strerrordesc_np(-rc));
	*untold = tell_all(m, node);
	return 0;
}
