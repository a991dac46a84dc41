/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Clients that are added while others work (docs/many-nodes.md, "A node that is added"). To
 * those who take it in such a node is one that was there and has left nothing: vacant.
 *
 * Keeps: no client begins while a node that is at work does not know it, since to that one
 * its locks would be void, and nobody would be asked for what it has open. So before a
 * client uses its log for the first time its host asks all others which nodes they know; and
 * who starts with a file that lacks a node which others know does not begin.
 */
#include "engine/volume/member_internal.h"

#include <sys/socket.h>

/* Bits: the nodes that another knows. */
static int known_to(struct member *m, unsigned node, uint64_t *nodes)
{
	const uint64_t ask[NET_CALL_WORDS] = {0};
	uint64_t answer[NET_CALL_WORDS] = {0};
	int rc = net_call(m->calls, node, NET_CALL_NODES, ask, answer);

	*nodes = answer[0];
	return rc;
}

/* ---- taking in -------------------------------------------------------------------------- */

/*
 * Whether there is room for its log only its host can tell, and what was taken in stays: so the
 * host is the first. (Of several clients with different hosts all of these are.)
 */
static int host_check(struct member *m, const struct cluster *newer, uint64_t added,
	struct weft_error *err)
{
	const struct cluster_member *c = NULL;
	uint64_t nodes;
	int rc = 0;

	while ((c = cluster_next(newer, c)))
		if (added >> c->id & 1 && c->host == m->o.node)
			return 0;
	while (!rc && (c = cluster_next(newer, c))) {
		if (!(added >> c->id & 1))
			continue;
		rc = known_to(m, c->host, &nodes);
		if (rc)
			weft_error(err, rc,
				"%s:%u: [node %u]: node %u, which is to have its log, "
				"cannot be asked: %s",
				cluster_path(newer), c->line, c->id, c->host,
				strerrordesc_np(-rc));
		else if (!(nodes >> c->id & 1))
			rc = weft_error(err, -EUNATCH,
				"%s:%u: [node %u]: node %u, which is to have its log, "
				"does "
				"not know it yet: run `weft cluster reload` there first",
				cluster_path(newer), c->line, c->id, c->host);
	}
	return rc;
}

/* Before anything changes: can it be reached, and kept? */
static int reload_check(struct member *m, const struct cluster *newer, uint64_t added,
	struct weft_error *err)
{
	struct sockaddr_storage address[4 * CLUSTER_ADDRESSES_MAX];
	const struct cluster_member *c = NULL;
	int rc = 0;

	while (rc >= 0 && !m->o.address && (c = cluster_next(newer, c)))
		if (added >> c->id & 1)
			rc = cluster_resolve(
				newer, c->id, address, ARRAY_SIZE(address), err);
	if (rc < 0)
		return rc;
	rc = m->clients ? clients_room(m->clients, newer, added, err) : 0;
	return rc ? rc : host_check(m, newer, added, err);
}

/* No link of it is there before it has a peer, and nobody heard of it. */
static void node_take(struct member *m, const struct cluster *newer, unsigned node)
{
	rt_mutex_lock(&m->lock);
	m->other[node].vacant = true;
	rt_mutex_unlock(&m->lock);
	cluster_add(m->o.cluster, newer, node);
	atomic_fetch_or(&m->volume->nodes, 1ull << node);
	weft_log(5, "node %u is known now", node);
}

int member_reload(struct member *m, const struct cluster *newer, uint64_t *added,
	struct weft_error *err)
{
	int rc = cluster_compare(m->o.cluster, newer, added, err);

	if (!rc)
		rc = reload_check(m, newer, *added, err);
	if (rc)
		return rc;
	for (unsigned node = 1; node <= CLUSTER_NODE_MAX; node++)
		if (*added >> node & 1)
			node_take(m, newer, node);
	rc = member_peers_add(m, err);
	if (!rc && m->clients)
		rc = clients_peers_add(m->clients, err);
	if (!rc) {
		rc = member_vacancies_start(m);
		if (rc)
			weft_error(
				err, rc, "cannot start a task: %s", strerrordesc_np(-rc));
	}
	member_changed(m);
	return rc;
}

void member_reloaded(struct member *m)
{
	atomic_store(&m->known, atomic_load(&m->volume->nodes));
	member_changed(m);
}

/* ---- who knows whom ---------------------------------------------------------------------- */

/* Words back: bits, the ids of all nodes that this one knows. */
int member_serve_nodes(void *owner, unsigned from, const uint64_t ask[NET_CALL_WORDS],
	uint64_t answer[NET_CALL_WORDS])
{
	struct member *m = owner;

	answer[0] = atomic_load(&m->known);
	return 0;
}

int member_same_nodes(struct member *m, struct weft_error *err)
{
	const uint64_t mine = cluster_node_bits(m->o.cluster);
	const struct cluster_member *c = NULL;
	uint64_t nodes;

	while ((c = member_next_other(m, c))) {
		int rc = known_to(m, c->id, &nodes);

		/* a link that has ended: who is waited for at a start has to say it */
		if ((rc == -ENOTCONN || rc == -ECONNRESET || rc == -EAGAIN) &&
			c->role == CLUSTER_STORAGE && !volume_left(m->volume, c->id) &&
			!m->other[c->id].dead)
			return -EAGAIN;
		if (rc || !(nodes & ~mine))
			continue;
		return weft_error(err, -EXDEV,
			"node %u knows node %d, which %s does not name: copy the cluster "
			"file from there",
			c->id, __builtin_ctzll(nodes & ~mine),
			cluster_path(m->o.cluster));
	}
	return 0;
}

/* In a server of calls, which may ask nobody: that is done by a task (vacancies). */
int member_admits(void *owner, unsigned client, unsigned *by)
{
	struct member *m = owner;
	struct other *other = &m->other[client];
	int rc;

	rt_mutex_lock(&m->lock);
	rc = other->known_to_all ? 0 : other->known_not ? -EUNATCH : -EAGAIN;
	*by = other->known_not ? other->known_not : other->awaited;
	other->known_not =
		0; /* it may have been told since: who tries again asks again */
	other->asked = rc == -EAGAIN;
	rt_mutex_unlock(&m->lock);
	if (rc == -EAGAIN)
		member_changed(m);
	return rc;
}

/* 0; -EUNATCH: it does not know the client; -EAGAIN: it cannot be asked now. */
static int knows(struct member *m, const struct cluster_member *c, unsigned client)
{
	uint64_t nodes;
	bool up;

	rt_mutex_lock(&m->lock);
	up = m->other[c->id].link.up;
	rt_mutex_unlock(&m->lock);
	if (up) {
		if (known_to(m, c->id, &nodes))
			return -EAGAIN;
		return nodes >> client & 1 ? 0 : -EUNATCH;
	}
	/* the client itself has to meet all that have stores */
	return c->role == CLUSTER_STORAGE || member_vacant(m, c->id) ? 0 : -EAGAIN;
}

bool member_admit(struct member *m, unsigned client)
{
	struct other *other = &m->other[client];
	const struct cluster_member *c = NULL;
	unsigned by = 0;
	bool asked;
	int rc = atomic_load(&m->known) >> client & 1 ? 0 : -EAGAIN;

	rt_mutex_lock(&m->lock);
	asked = other->asked;
	rt_mutex_unlock(&m->lock);
	if (!asked)
		return true;
	while (!rc && (c = member_next_other(m, c))) {
		if (c->id == client)
			continue;
		rc = knows(m, c, client);
		by = rc ? c->id : 0;
	}
	rt_mutex_lock(&m->lock);
	other->asked = rc == -EAGAIN;
	other->known_to_all = rc == 0;
	other->known_not = rc == -EUNATCH ? by : 0;
	other->awaited = rc == -EAGAIN ? by : 0;
	rt_mutex_unlock(&m->lock);
	return rc != -EAGAIN;
}
