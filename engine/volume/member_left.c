/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the store says of other nodes, so that it holds over a start of this one.
 *
 * Which of them it has met: before it has anything to do with a node for the first time that is
 * noted, for ever, so it is never home again without knowing it (docs/many-nodes.md, "A node
 * that is added").
 *
 * Which have left alone, and are not waited for ("Leaving"): before such a node says goodbye it
 * gives back what it has of others' pages, and tells each home that it has nothing of its shard
 * (LEFT). The home notes that; and takes it back before it has anything to do with the node
 * again. So what the superblock says is never too much.
 *
 * Which are dead (member_dead.c), likewise.
 */
#include "engine/volume/member_internal.h"

#define TELL_TIMES    100u
#define TELL_PAUSE_NS 20000000ull
#define KEEP_PAUSE_NS 1000000000ull

/* ---- what is known of others ---------------------------------------------------------- */

static void set_left(struct member *m, unsigned node, bool left)
{
	m->other[node].left = left;
	if (left)
		atomic_fetch_or(&m->volume->left, 1ull << node);
	else
		atomic_fetch_and(&m->volume->left, ~(1ull << node));
}

void member_dead_set(struct member *m, unsigned node, uint64_t incarnation)
{
	m->other[node].dead = incarnation;
	if (incarnation)
		atomic_fetch_or(&m->volume->dead, 1ull << node);
	else
		atomic_fetch_and(&m->volume->dead, ~(1ull << node));
}

void member_left_read(struct member *m)
{
	const struct cluster_member *c = NULL;

	while ((c = member_next_other(m, c))) {
		m->other[c->id].known = store_node_known(m->volume->store, c->id);
		set_left(m, c->id, store_left(m->volume->store, c->id) != 0);
		member_dead_set(m, c->id, store_dead(m->volume->store, c->id));
	}
}

/* Words: the caller's incarnation; 1: nothing that it has changed is undurable. */
int member_serve_left(void *owner, unsigned from, const uint64_t ask[NET_CALL_WORDS],
	uint64_t answer[NET_CALL_WORDS])
{
	struct member *m = owner;
	bool known;
	int rc;

	if (from > CLUSTER_NODE_MAX)
		return -EINVAL;
	rt_mutex_lock(&m->lock);
	known = m->other[from].link.up && m->other[from].link.incarnation == ask[0];
	rt_mutex_unlock(&m->lock);
	if (!known)
		return -ESTALE;
	rc = coherence_cluster_left(m->coherence, from);
	if (rc || !ask[1])
		return rc;
	rt_mutex_lock(&m->noting);
	rc = store_left_set(m->volume->store, from, ask[0]);
	rt_mutex_lock(&m->lock);
	if (!rc)
		set_left(m, from, true);
	rt_mutex_unlock(&m->lock);
	rt_mutex_unlock(&m->noting);
	return rc ? -EIO : 0;
}

/* ---- who comes, and comes back -------------------------------------------------------------- */

/*
 * The link is cut: when the keeper has made it durable that the node may have something,
 * the next one is used.
 */
bool member_barred(struct member *m, struct net_peer *peer, const struct net_event *event)
{
	struct other *other = &m->other[net_peer_node(peer)];
	bool barred;

	if (event->kind == NET_LINK_REFUSED)
		return false;
	rt_mutex_lock(&m->lock);
	barred = other->barred;
	if (event->kind == NET_LINK_DOWN)
		other->barred = false;
	else if (other->dead && event->incarnation <= other->dead)
		barred = other->barred = true;
	else if (other->left || other->dead || !other->known)
		barred = other->barred = other->returns = true;
	rt_mutex_unlock(&m->lock);
	if (barred && event->kind == NET_LINK_UP) {
		net_cut(peer, -EAGAIN);
		member_keeper_wake(m);
	}
	return barred;
}

/* False: a store could not be written. */
static bool note_met(struct member *m)
{
	const struct cluster_member *c = NULL;
	bool well = true;

	while ((c = member_next_other(m, c))) {
		struct other *other = &m->other[c->id];
		bool back;

		rt_mutex_lock(&m->lock);
		back = other->returns;
		rt_mutex_unlock(&m->lock);
		if (!back)
			continue;
		rt_mutex_lock(&m->noting);
		if (store_node_met(m->volume->store, c->id)) {
			rt_mutex_unlock(&m->noting);
			well = false;
			continue;
		}
		rt_mutex_lock(&m->lock);
		other->returns = false;
		other->known = true;
		set_left(m, c->id, false);
		member_dead_set(m, c->id, 0);
		rt_mutex_unlock(&m->lock);
		rt_mutex_unlock(&m->noting);
	}
	return well;
}

void member_keeper_wake(struct member *m)
{
	uint32_t was = atomic_load(&m->keeping), next;

	do { /* its end stays its end */
		next = was == KEEP_END ? KEEP_END : (was + 1) % KEEP_END;
	} while (!atomic_compare_exchange_weak(&m->keeping, &was, next));
	rt_wake(&m->keeping, 1);
}

void member_doubted(struct member *m)
{
	atomic_store(&m->doubted, true);
	member_keeper_wake(m);
}

/*
 * What a peer says that may not have proven who it is is a hint. Whether it is so the store
 * tells: every start is written there first.
 */
static void doubt_look(struct member *m)
{
	uint64_t mine = cluster_incarnation(m->o.cluster, m->o.node), there;

	if (!atomic_exchange(&m->doubted, false) || !m->o.superseded)
		return;
	if (store_incarnation_read(m->volume->store, &there) || there <= mine)
		return;
	m->o.superseded(m->o.owner, "a later start of this node has been there: it was "
				    "fenced, or started elsewhere");
}

static void keep(void *arg)
{
	struct member *m = arg;
	uint32_t word;

	while ((word = atomic_load(&m->keeping)) != KEEP_END) {
		bool well = note_met(m);

		doubt_look(m);
		well &= member_dead_tell(m);
		rt_wait(&m->keeping, word,
			well ? RT_FOREVER : rt_now_ns() + KEEP_PAUSE_NS);
	}
}

uint64_t member_told_left(const struct member *m)
{
	return m->told_left;
}

int member_keeper_start(struct member *m)
{
	atomic_store(&m->keeping, 0);
	return rt_task_spawn(&m->keeper, "returns", keep, m);
}

void member_keeper_end(struct member *m)
{
	atomic_store(&m->keeping, KEEP_END);
	rt_wake(&m->keeping, 1);
	if (m->keeper)
		rt_task_join(m->keeper);
	m->keeper = NULL;
}

/* ---- leaving ------------------------------------------------------------------------------- */

/* -EBUSY: what was given back last is still on its way within the home. */
static int tell_left(struct member *m, unsigned node, bool durable)
{
	const uint64_t ask[NET_CALL_WORDS] = {
		cluster_incarnation(m->o.cluster, m->o.node), durable};
	uint64_t answer[NET_CALL_WORDS];
	int rc = -EAGAIN;

	for (unsigned i = 0; i < TELL_TIMES && (rc == -EAGAIN || rc == -EBUSY); i++) {
		if (i)
			rt_sleep_ns(TELL_PAUSE_NS);
		if (atomic_load(&m->cut))
			return -EINTR;
		rc = net_call(m->calls, node, NET_CALL_LEFT, ask, answer);
	}
	return rc;
}

void member_give_back(struct member *m, struct volume *v, bool durable)
{
	const struct cluster_member *c = NULL;
	uint64_t has = cache_give_back(v->cache);

	durable &= !has && !atomic_load(&v->returned) && !volume_failed(v);
	while ((c = member_next_other(m, c))) {
		bool up;
		int rc;

		rt_mutex_lock(&m->lock);
		up = m->other[c->id].link.up;
		rt_mutex_unlock(&m->lock);
		if (!up || (c->role == CLUSTER_STORAGE && has >> c->shard & 1))
			continue;
		rc = tell_left(m, c->id, durable);
		if (!rc && durable)
			m->told_left |= 1ull << c->id;
		if (rc)
			weft_log(4, "node %u goes on waiting for this one: %s", c->id,
				strerrordesc_np(-rc));
	}
}
