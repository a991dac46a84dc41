/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cluster files from outside: each gives an error that names a line, or a cluster whose
 * members, map and names keep to their bounds.
 */
#include <string.h>

#include "engine/cluster/cluster_internal.h"
#include "engine/rt/rt_sim.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct input {
	const uint8_t *data;
	size_t size;
};

static void check_member(const struct cluster *c, const struct cluster_member *m)
{
	WEFT_ASSERT(m->id >= 1 && m->id <= CLUSTER_NODE_MAX);
	WEFT_ASSERT(m->address_count >= 1 && m->address_count <= CLUSTER_ADDRESSES_MAX);
	for (unsigned i = 0; i < m->address_count; i++) {
		WEFT_ASSERT(m->address[i].port && m->address[i].host[0]);
		WEFT_ASSERT(memchr(m->address[i].host, 0, CLUSTER_VALUE_BYTES));
		WEFT_ASSERT(cluster_has_machine(m, m->address[i].machine));
	}
	for (unsigned i = 1; i <= CLUSTER_MACHINES_MAX && m->role == CLUSTER_STORAGE; i++)
		if (cluster_has_machine(m, i))
			WEFT_ASSERT(cluster_store_at(m, i)[0] == '/');
	WEFT_ASSERT(memchr(m->store, 0, CLUSTER_VALUE_BYTES));
	if (m->role == CLUSTER_STORAGE)
		WEFT_ASSERT(m->store[0] == '/' && cluster_home(c, m->shard) == m->id);
	else
		WEFT_ASSERT(!m->store[0]);
}

static void check_cluster(struct cluster *c)
{
	unsigned nodes = 0;

	for (const struct cluster_member *m = NULL; (m = cluster_next(c, m)); nodes++)
		check_member(c, m);
	WEFT_ASSERT(nodes == cluster_nodes(c) && cluster_storage_nodes(c) >= 1);
	WEFT_ASSERT(cluster_member(c, cluster_home(c, 0)));
	WEFT_ASSERT(cluster_name(c)[0] && cluster_key_path(c)[0]);
}

static int run(void *arg)
{
	const struct input *in = arg;
	struct weft_error err = {0};
	struct cluster *c;
	int rc = cluster_parse(&c, (const char *)in->data, in->size, "dir/file", &err);

	if (rc) {
		WEFT_ASSERT(!c && err.code == rc);
		WEFT_ASSERT(rc != -EINVAL || strncmp(err.text, "dir/file:", 9) == 0);
	} else {
		check_cluster(c);
		cluster_close(c);
	}
	return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input in = {.data = data, .size = size};

	WEFT_ASSERT(rt_sim_run(1, NULL, run, &in) == 0);
	return 0;
}
