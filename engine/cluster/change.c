/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A cluster file that is read anew while its volume is in use (docs/nodes/lifecycle.md, "A node
 * that is added"). Clients may have been added. Comments and the order may differ. No other change
 * is allowed. The homes of shards are in pages, logs and superblocks, and addresses are in links. A
 * node that the file does not name any more may hold pages.
 */
#include "engine/cluster/cluster_internal.h"

#include <stdio.h>

#define SECTION_BYTES 32u

struct compare {
	const struct cluster *c, *newer;
	struct weft_error *err;
	int rc;
};

/* The first difference counts. */
#define DIFFERS(k, line, section, key, ...)                                              \
	((k)->rc ? (k)->rc                                                               \
		 : ((k)->rc = cluster_file_error((k)->err, (k)->newer->path, (line),     \
			    (section), (key), __VA_ARGS__)))

static void compare_volume(struct compare *k)
{
	const struct cluster *c = k->c, *n = k->newer;
	char mine[UUID_TEXT];

	uuid_print(c->volume_uuid, mine);
	if (memcmp(c->volume_uuid, n->volume_uuid, UUID_BYTES) != 0)
		DIFFERS(k, n->uuid_line, "volume", "uuid",
			"it is the file of another volume: the volume in use has %s", mine);
	if (strcmp(c->name, n->name) != 0)
		DIFFERS(k, n->name_line, "volume", "name",
			"\"%s\" cannot become \"%s\" while the volume is in use", c->name,
			n->name);
	if (c->has_key && n->has_key && memcmp(c->key, n->key, CLUSTER_KEY_BYTES) != 0)
		DIFFERS(k, n->key_line, "volume", "key",
			"it is not the key that the volume is in use with");
	if (c->tls != n->tls)
		DIFFERS(k, n->tls_line ? n->tls_line : n->volume_line, "volume", "tls",
			"%s cannot become %s while the volume is in use",
			c->tls ? "yes" : "no", n->tls ? "yes" : "no");
	if (c->verbs != n->verbs)
		DIFFERS(k, n->transport_line ? n->transport_line : n->volume_line,
			"volume", "transport",
			"%s cannot become %s while the volume is in use",
			cluster_transport(c), cluster_transport(n));
}

static void compare_addresses(struct compare *k, const struct cluster_member *was,
	const struct cluster_member *is, const char *section)
{
	bool same = was->address_count == is->address_count;

	for (unsigned i = 0; same && i < was->address_count; i++)
		same = was->address[i].port == is->address[i].port &&
		       was->address[i].machine == is->address[i].machine &&
		       strcmp(was->address[i].host, is->address[i].host) == 0;
	if (!same)
		DIFFERS(k, is->address_line, section, "address",
			"addresses cannot change while the volume is in use: unmount it "
			"on all nodes, and mount it with this file");
}

/* A machine's cache may change: it is asked for when the node starts there. */
static void compare_machines(struct compare *k, const struct cluster_member *was,
	const struct cluster_member *is)
{
	char section[SECTION_BYTES];

	for (unsigned i = 2; i <= CLUSTER_MACHINES_MAX; i++) {
		cluster_section_print(is, i, section, sizeof(section));
		if (cluster_has_machine(was, i) != cluster_has_machine(is, i))
			DIFFERS(k, is->machine[i].line, section, NULL,
				"%s: the machines of a node cannot change while the volume "
				"is in use; unmount it on all nodes, and mount it with this "
				"file",
				cluster_has_machine(was, i) ? "is not there any more"
							    : "was not there before");
		else if (cluster_has_machine(is, i) &&
			 strcmp(cluster_store_at(was, i), cluster_store_at(is, i)) != 0)
			DIFFERS(k, is->machine[i].store_line ? is->machine[i].store_line
							     : is->machine[i].line,
				section, "store", "%s is in use: it cannot become %.80s",
				cluster_store_at(was, i), cluster_store_at(is, i));
	}
}

static void compare_node(struct compare *k, const struct cluster_member *was)
{
	const struct cluster_member *is = cluster_member(k->newer, was->id);
	char section[SECTION_BYTES];

	snprintf(section, sizeof(section), "node %u", was->id);
	if (!is) {
		DIFFERS(k, 0, section, NULL,
			"is not there any more: a node cannot be removed while the "
			"volume is in use");
		return;
	}
	if (was->role != is->role)
		DIFFERS(k, is->role_line ? is->role_line : is->line, section, "role",
			"%s",
			is->role == CLUSTER_CLIENT ? "a storage node stays one"
						   : "a client stays one");
	if (was->role == CLUSTER_STORAGE && was->shard != is->shard)
		DIFFERS(k, is->shard_line ? is->shard_line : is->line, section, "shard",
			"%u cannot become %u: pages have it in their ids", was->shard,
			is->shard);
	if (strcmp(was->store, is->store) != 0)
		DIFFERS(k, is->store_line, section, "store",
			"%s is in use: it cannot become %.80s", was->store, is->store);
	if (was->host != is->host)
		DIFFERS(k, is->host_line ? is->host_line : is->line, section, "host",
			"node %u has this client's log: it cannot become node %u",
			was->host, is->host);
	compare_machines(k, was, is);
	compare_addresses(k, was, is, section);
}

static void compare_new(struct compare *k, const struct cluster_member *is)
{
	char section[SECTION_BYTES];

	snprintf(section, sizeof(section), "node %u", is->id);
	if (is->role != CLUSTER_CLIENT)
		DIFFERS(k, is->line, section, NULL,
			"only a client can be added while the volume is in use: write "
			"role = client, or unmount on all nodes and mount with this "
			"file");
}

int cluster_compare(const struct cluster *c, const struct cluster *newer, uint64_t *added,
	struct weft_error *err)
{
	struct compare k = {.c = c, .newer = newer, .err = err};
	const struct cluster_member *m = NULL;

	*added = 0;
	compare_volume(&k);
	while ((m = cluster_next(c, m)))
		compare_node(&k, m);
	while ((m = cluster_next(newer, m)))
		if (!cluster_member(c, m->id))
			compare_new(&k, m);
	if (!k.rc)
		*added = cluster_node_bits(newer) & ~cluster_node_bits(c);
	return k.rc;
}

void cluster_add(struct cluster *c, const struct cluster *newer, unsigned node)
{
	WEFT_ASSERT(!cluster_member(c, node) && cluster_member(newer, node) &&
		    newer->member[node].role == CLUSTER_CLIENT);
	c->member[node] = newer->member[node];
	cluster_member_is_there(c, node);
}
