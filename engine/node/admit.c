/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which nodes know which, and when a client may begin. A client uses its log for the first time
 * when all nodes that are at work know it. To a node that does not, the client's locks would be
 * void. That node would not ask the client for the pages that it has open. The client's host asks
 * the others. A node whose cluster file lacks a node that others know does not begin, either.
 *
 * A task does that. It also finds out whether clients that are away have left anything (client.c).
 * Servers of calls cannot: they must not call other nodes themselves.
 */
#include "engine/node/node_internal.h"

#define LOOK_NS 1000000000ull /* between two looks at a client's log */

/* ---- who knows whom -------------------------------------------------------------------------- */

int node_known_to(struct local_node *self, unsigned node, uint64_t *nodes)
{
	const uint64_t ask[NET_CALL_WORDS] = {0};
	uint64_t answer[NET_CALL_WORDS] = {0};
	int rc = net_call(self->calls, node, NET_CALL_NODES, ask, answer);

	*nodes = answer[0];
	return rc;
}

void node_reloaded(struct local_node *self)
{
	atomic_store(&self->known, atomic_load(&self->volume->nodes));
	node_changed(self);
}

/* Words back: bits, the ids of all nodes that this one knows. */
int node_serve_nodes(void *owner, unsigned from, const uint64_t ask[NET_CALL_WORDS],
	uint64_t answer[NET_CALL_WORDS])
{
	struct local_node *self = owner;

	answer[0] = atomic_load(&self->known);
	return 0;
}

int node_same_nodes(struct local_node *self, struct weft_error *err)
{
	const uint64_t mine = cluster_node_bits(self->o.cluster);
	const struct cluster_member *c = NULL;
	uint64_t nodes;

	while ((c = node_next_other(self, c))) {
		int rc = node_known_to(self, c->id, &nodes);

		/* a link that has ended: a node that is waited for at a start has to say it */
		if ((rc == -ENOTCONN || rc == -ECONNRESET || rc == -EAGAIN) &&
			c->role == CLUSTER_STORAGE && !volume_left(self->volume, c->id) &&
			!self->other[c->id].dead)
			return -EAGAIN;
		if (rc || !(nodes & ~mine))
			continue;
		return weft_error(err, -EXDEV,
			"node %u knows node %d, which %s does not name: copy the cluster "
			"file from there",
			c->id, __builtin_ctzll(nodes & ~mine),
			cluster_path(self->o.cluster));
	}
	return 0;
}

/* ---- admitting clients ----------------------------------------------------------------------- */

/* In a server of calls, which may ask nobody: that is done by a task (vacancies). */
int node_admits(void *owner, unsigned client, unsigned *by)
{
	struct local_node *self = owner;
	struct other *other = &self->other[client];
	int rc;

	rt_mutex_lock(&self->lock);
	rc = other->known_to_all ? 0 : other->known_not ? -EUNATCH : -EAGAIN;
	*by = other->known_not ? other->known_not : other->awaited;
	other->known_not =
		0; /* by now that node may know the client: a client that tries again asks again */
	other->asked = rc == -EAGAIN;
	rt_mutex_unlock(&self->lock);
	if (rc == -EAGAIN)
		node_changed(self);
	return rc;
}

/* 0; -EUNATCH: it does not know the client; -EAGAIN: it cannot be asked now. */
static int ask_knows(struct local_node *self, const struct cluster_member *c, unsigned client)
{
	uint64_t nodes;

	if (node_connected(self, c->id)) {
		if (node_known_to(self, c->id, &nodes))
			return -EAGAIN;
		return nodes >> client & 1 ? 0 : -EUNATCH;
	}
	/* the client itself has to meet all that have stores */
	return c->role == CLUSTER_STORAGE || node_vacant(self, c->id) ? 0 : -EAGAIN;
}

/* Finds out the answer to node_admits. Returns false if not all nodes could be asked. */
static bool find_out(struct local_node *self, unsigned client)
{
	struct other *other = &self->other[client];
	const struct cluster_member *c = NULL;
	unsigned by = 0;
	bool asked;
	int rc = atomic_load(&self->known) >> client & 1 ? 0 : -EAGAIN;

	rt_mutex_lock(&self->lock);
	asked = other->asked;
	rt_mutex_unlock(&self->lock);
	if (!asked)
		return true;
	while (!rc && (c = node_next_other(self, c))) {
		if (c->id == client)
			continue;
		rc = ask_knows(self, c, client);
		by = rc ? c->id : 0;
	}
	rt_mutex_lock(&self->lock);
	other->asked = rc == -EAGAIN;
	other->known_to_all = rc == 0;
	other->known_not = rc == -EUNATCH ? by : 0;
	other->awaited = rc == -EAGAIN ? by : 0;
	rt_mutex_unlock(&self->lock);
	return rc != -EAGAIN;
}

/* ---- the task -------------------------------------------------------------------------------- */

/* Returns true if the node is away and is not known to be vacant. */
static bool may_be_vacant(struct local_node *self, unsigned node)
{
	bool open;

	rt_mutex_lock(&self->lock);
	open = !self->other[node].link.connected && !self->other[node].vacant;
	rt_mutex_unlock(&self->lock);
	return open;
}

static void vacancies_main(void *arg)
{
	struct local_node *self = arg;
	uint32_t word;

	while (rt_goes_on(&self->stopping, &self->changed, &word)) {
		const struct cluster_member *c = NULL;
		bool open = false;

		while ((c = node_next_other(self, c))) {
			if (c->role != CLUSTER_CLIENT)
				continue;
			open |= !find_out(self, c->id);
			if (!may_be_vacant(self, c->id))
				continue;
			node_client_look(self, c->id);
			open |= may_be_vacant(self, c->id);
		}
		net_wait(self->net, NULL, &self->changed, word,
			open ? rt_now_ns() + LOOK_NS : RT_FOREVER);
	}
}

int node_vacancies_start(struct local_node *self)
{
	const struct cluster_member *c = NULL;
	bool any = false;

	while ((c = node_next_other(self, c)))
		any |= c->role == CLUSTER_CLIENT;
	if (!any || self->vacancies || node_is_client(self)) /* only homes ask whether others
							      * have left anything */
		return 0;
	return rt_task_spawn(&self->vacancies, "vacancies", vacancies_main, self);
}

void node_vacancies_end(struct local_node *self)
{
	atomic_store(&self->stopping, true);
	if (self->net)
		node_changed(self);
}
