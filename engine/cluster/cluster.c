/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Members, the map from shards to nodes, and the epoch. The members and the map are set before the
 * caller gets the cluster. Any task may raise the epoch at any time. A member that is added
 * (change.c) is seen when it is complete.
 */
#include "engine/cluster/cluster_internal.h"

#include "engine/rt/secret.h"

void cluster_close(struct cluster *c)
{
	if (!c)
		return;
	secret_free(c->key, CLUSTER_KEY_BYTES);
	rt_free(c);
}

/* ---- the contents -------------------------------------------------------------------- */

const char *cluster_path(const struct cluster *c)
{
	return c->path;
}

const char *cluster_name(const struct cluster *c)
{
	return c->name;
}

const uint8_t *cluster_volume_uuid(const struct cluster *c)
{
	return c->volume_uuid;
}

const char *cluster_key_path(const struct cluster *c)
{
	return c->key_path;
}

const char *cluster_kind(const struct cluster *c)
{
	return c->ops->kind;
}

bool cluster_tls(const struct cluster *c)
{
	return c->tls;
}

const char *cluster_transport(const struct cluster *c)
{
	return c->verbs ? "verbs" : "tcp";
}

uint64_t cluster_node_bits(const struct cluster *c)
{
	return atomic_load_explicit(&c->there, memory_order_acquire);
}

unsigned cluster_nodes(const struct cluster *c)
{
	return (unsigned)__builtin_popcountll(cluster_node_bits(c));
}

unsigned cluster_storage_nodes(const struct cluster *c)
{
	return c->storage_nodes;
}

const struct cluster_member *cluster_member(const struct cluster *c, unsigned node)
{
	return node <= CLUSTER_NODE_MAX && cluster_node_bits(c) >> node & 1
		       ? &c->member[node]
		       : NULL;
}

const struct cluster_member *cluster_next(
	const struct cluster *c, const struct cluster_member *after)
{
	for (unsigned id = after ? after->id + 1 : 1; id <= CLUSTER_NODE_MAX; id++)
		if (cluster_member(c, id))
			return &c->member[id];
	return NULL;
}

unsigned cluster_clients_of(const struct cluster *c, unsigned host)
{
	const struct cluster_member *m = NULL;
	unsigned count = 0;

	while ((m = cluster_next(c, m)))
		count += m->role == CLUSTER_CLIENT && m->host == host;
	return count;
}

unsigned cluster_machines(const struct cluster_member *m)
{
	unsigned count = 0;

	for (unsigned i = 1; i <= CLUSTER_MACHINES_MAX; i++)
		count += cluster_has_machine(m, i);
	return count;
}

bool cluster_has_machine(const struct cluster_member *m, unsigned machine)
{
	return machine == 1 ||
	       (machine <= CLUSTER_MACHINES_MAX && machine && m->machine[machine].line);
}

const char *cluster_store_at(const struct cluster_member *m, unsigned machine)
{
	WEFT_ASSERT(cluster_has_machine(m, machine));
	return *m->machine[machine].store ? m->machine[machine].store : m->store;
}

uint64_t cluster_cache_at(const struct cluster_member *m, unsigned machine)
{
	WEFT_ASSERT(cluster_has_machine(m, machine));
	return m->machine[machine].cache_bytes ? m->machine[machine].cache_bytes
					       : m->cache_bytes;
}

unsigned cluster_home(const struct cluster *c, uint16_t shard)
{
	return shard <= CLUSTER_SHARD_MAX ? c->home[shard] : CLUSTER_NODE_NONE;
}

const uint8_t *cluster_key(const struct cluster *c)
{
	return c->has_key ? c->key : NULL;
}

int cluster_resolve(const struct cluster *c, unsigned node, unsigned machine,
	struct sockaddr_storage *out, unsigned cap, struct weft_error *err)
{
	if (!cluster_member(c, node))
		return weft_error(err, -ENOENT, "%s names no node %u", c->path, node);
	if (!c->ops->resolve)
		return weft_error(err, -EOPNOTSUPP,
			"a cluster of kind %s knows no addresses", c->ops->kind);
	return c->ops->resolve(c, node, machine, out, cap, err);
}

/* ---- the epoch ------------------------------------------------------------------------- */

uint64_t cluster_incarnation(const struct cluster *c, unsigned node)
{
	if (!cluster_member(c, node))
		return 0;
	return atomic_load_explicit(&c->incarnation[node], memory_order_relaxed);
}

int cluster_heard(struct cluster *c, unsigned node, uint64_t incarnation)
{
	uint64_t known;

	if (!cluster_member(c, node))
		return -ENOENT;
	if (!incarnation)
		return -EINVAL;
	known = atomic_load_explicit(&c->incarnation[node], memory_order_relaxed);
	do {
		if (incarnation < known)
			return -ESTALE;
		if (incarnation == known)
			return 0;
	} while (!atomic_compare_exchange_weak_explicit(&c->incarnation[node], &known,
		incarnation, memory_order_relaxed, memory_order_relaxed));
	return 1;
}
