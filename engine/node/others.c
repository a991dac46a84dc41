/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The other nodes of the cluster: lists them, connects with them, and says which of them a
 * condition holds for. All files of this folder use it, and it uses none of them.
 */
#include "engine/node/node_internal.h"

const struct cluster_member *node_next_other(
	const struct local_node *self, const struct cluster_member *after)
{
	do {
		after = cluster_next(self->o.cluster, after);
	} while (after && after->id == self->o.node);
	return after;
}

void node_address(const struct local_node *self, unsigned node, char out[NET_ADDRESS_BYTES])
{
	const struct cluster_member *c = cluster_member(self->o.cluster, node);

	if (self->o.address)
		self->o.address(self->o.owner, node, out);
	else
		cluster_addresses_print(c, node == self->o.node ? self->o.machine : 0, out,
			NET_ADDRESS_BYTES);
}

bool node_connected(void *owner, unsigned node)
{
	struct local_node *self = owner;
	bool up;

	rt_mutex_lock(&self->lock);
	up = self->other[node].link.connected;
	rt_mutex_unlock(&self->lock);
	return up;
}

void node_changed(struct local_node *self)
{
	atomic_fetch_add(&self->changed, 1);
	net_wake(self->net, &self->changed, INT32_MAX);
}

enum node_patience node_patience(struct local_node *self)
{
	return self->o.patience ? self->o.patience(self->o.owner) : NODE_WAITS;
}

unsigned node_list_others(struct local_node *self,
	bool (*is)(const struct local_node *, unsigned node), char *out, size_t cap)
{
	const struct cluster_member *c = NULL;
	unsigned count = 0;
	size_t used = 0;

	out[0] = '\0';
	rt_mutex_lock(&self->lock);
	while ((c = node_next_other(self, c))) {
		char address[NET_ADDRESS_BYTES];

		if (!is(self, c->id))
			continue;
		node_address(self, c->id, address);
		if (used < cap)
			used += (size_t)snprintf(out + used, cap - used,
				"%snode %u (%.100s)", count ? ", " : "", c->id, address);
		count++;
	}
	rt_mutex_unlock(&self->lock);
	return count;
}

void node_keeper_wake(struct local_node *self)
{
	uint32_t was = atomic_load(&self->keeping), next;

	do { /* its end stays its end */
		next = was == KEEP_END ? KEEP_END : (was + 1) % KEEP_END;
	} while (!atomic_compare_exchange_weak(&self->keeping, &was, next));
	rt_wake(&self->keeping, 1);
}

int node_peers_add(struct local_node *self, struct weft_error *err)
{
	const struct cluster_member *c = NULL;
	char address[NET_ADDRESS_BYTES];
	int rc = 0;

	while (!rc && (c = node_next_other(self, c))) {
		struct net_peer_options o = {.node = (uint16_t)c->id,
			.incarnation = MAX(store_left(self->volume->store, c->id),
				self->other[c->id].dead ? self->other[c->id].dead + 1 : 0),
			.address = address};
		struct weft_error why = {0};
		struct net_peer *peer;

		if (net_peer_find(self->net, (uint16_t)c->id))
			continue;
		node_address(self, c->id, address);
		self->other[c->id].link.since_ns = rt_now_ns();
		rc = net_peer_add(&peer, self->net, &o, &why);
		if (rc && self->o.address)
			weft_error(err, rc, "node %u: %s", c->id, why.text);
		else if (rc)
			weft_error(err, rc,
				"%s:%u: node %u's address: %s; mend the name service or "
				"/etc/hosts, or write its IP address",
				cluster_path(self->o.cluster), c->address_line, c->id,
				why.text);
	}
	return rc;
}
