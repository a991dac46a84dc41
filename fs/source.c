/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds the store for the path that the user gives.
 *
 * A store from a cluster file is opened only if it has that volume, node, shard and key. The store
 * layer compares them (store.h). If the file names other storage nodes, they use the volume, too
 * (engine/node/node.h).
 */
#include "fs/source.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int store_find(struct mount_options *o, const struct cluster *c,
	const struct cluster_member *m, unsigned machine, const char *at,
	struct weft_error *err)
{
	const char *said = at ? at : cluster_store_at(m, MAX(machine, 1));
	char *store;

	if (m->role == CLUSTER_CLIENT) { /* name of its log in messages */
		if (asprintf(&store, "node %u's log at node %u", m->id, m->host) < 0)
			return weft_error(err, -ENOMEM, "no memory");
		o->cluster_file = o->store;
		o->store = store;
		o->node = m->id;
		return 0;
	}
	store = realpath(said, NULL);
	if (!store && at)
		return weft_error(err, -errno, "node %u's store %s: %s", m->id, at,
			strerror(errno));
	if (!store)
		return weft_error(err, -errno, "%s:%u: node %u's store %s: %s",
			cluster_path(c),
			machine > 1 && m->machine[machine].store_line
				? m->machine[machine].store_line
				: m->store_line,
			m->id, said, strerror(errno));
	o->cluster_file = o->store;
	o->store = store;
	o->node = m->id;
	return 0;
}

/* Accepts a store. Otherwise returns an error for a path that is neither a store nor a cluster
 * file. */
static int not_a_file(const struct mount_options *o, struct weft_error *err)
{
	struct stat st;

	if (stat(o->store, &st) == 0 && S_ISREG(st.st_mode) &&
		st.st_size <= (off_t)CLUSTER_FILE_BYTES)
		return weft_error(err, -EMEDIUMTYPE,
			"%s: not a weft store: it has only %lld bytes; nor a cluster "
			"file: "
			"the first line of one is [volume] or [node N], or a comment",
			o->store, (long long)st.st_size);
	if (o->node)
		return weft_error(err, -EINVAL,
			"option node=%u is for cluster files, and %s is none", o->node,
			o->store);
	return 0;
}

static void cache_take(
	struct mount_options *o, const struct cluster_member *m, unsigned machine)
{
	uint64_t bytes = cluster_cache_at(m, machine);

	if (!bytes || o->cache_given)
		return;
	o->cache_bytes = bytes;
	o->cache_given = true;
}

void source_cache(struct mount_options *o)
{
	struct weft_error unused = {0};
	struct cluster *c;
	int node, machine;

	if (o->cache_given || !cluster_file_is(o->store) ||
		cluster_open(&c, o->store, CLUSTER_WITHOUT_KEY, &unused))
		return;
	node = cluster_self(c, o->node, "", &unused);
	machine = node > 0 ? cluster_machine_here(c, (unsigned)node, &unused) : 0;
	if (machine > 0)
		cache_take(o, cluster_member(c, (unsigned)node), (unsigned)machine);
	cluster_close(c);
}

/* The options check theirs. */
static int cache_check(const struct mount_options *o, const struct cluster *c,
	const struct cluster_member *m, unsigned machine, struct weft_error *err)
{
	uint64_t ram =
		(uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
	unsigned line = machine > 1 && m->machine[machine].cache_line
				? m->machine[machine].cache_line
				: m->cache_line;

	if (o->cache_bytes <= ram)
		return 0;
	return weft_error(err, -EINVAL,
		"%s:%u: node %u's cache: this machine has %llu MiB of memory, and %llu MiB are "
		"wanted",
		cluster_path(c), line, m->id, (unsigned long long)ram >> 20,
		(unsigned long long)o->cache_bytes >> 20);
}

/* `runs`: the node is to run here, so this must be one of its machines. */
static int source_find(struct source *s, struct mount_options *o, bool runs, const char *at,
	struct weft_error *err)
{
	struct weft_error nowhere = {0};
	int rc, node, machine;

	*s = (struct source){0};
	if (!cluster_file_is(o->store))
		return not_a_file(o, err);
	rc = cluster_open(&s->cluster, o->store, 0, err);
	if (rc)
		return rc;
	node = cluster_self(s->cluster, o->node, "-o node=N", err);
	rc = MIN(node, 0);
	if (!rc) {
		machine = cluster_machine_here(s->cluster, (unsigned)node, &nowhere);
		s->machine = machine > 0 && cluster_machines(cluster_member(s->cluster,
						     (unsigned)node)) > 1
				     ? (unsigned)machine
				     : 0;
		if (machine < 0 && runs)
			rc = weft_error(err, machine, "%s", nowhere.text);
	}
	if (!rc && runs)
		rc = cache_check(o, s->cluster, cluster_member(s->cluster, (unsigned)node),
			s->machine, err);
	if (!rc)
		rc = store_find(o, s->cluster, cluster_member(s->cluster, (unsigned)node),
			s->machine, at, err);
	if (!rc) {
		s->node = (unsigned)node;
		rc = cluster_volume_key(s->cluster, s->key);
		if (rc)
			weft_error(err, rc, "cannot make the volume's key: %s",
				strerror(-rc));
	}
	if (rc)
		source_close(s);
	return rc;
}

int source_open(struct source *s, struct mount_options *o, struct weft_error *err)
{
	return source_find(s, o, true, NULL, err);
}

int source_open_at(
	struct source *s, struct mount_options *o, const char *at, struct weft_error *err)
{
	return source_find(s, o, false, at, err);
}

bool source_shared(const struct source *s)
{
	return s->cluster && cluster_nodes(s->cluster) > 1;
}

bool source_is_client(const struct source *s)
{
	return s->cluster && cluster_member(s->cluster, s->node)->role == CLUSTER_CLIENT;
}

void source_format(const struct source *s, struct store_format *out)
{
	*out = (struct store_format){0};
	snprintf(out->label, sizeof(out->label), "%s", cluster_name(s->cluster));
	memcpy(out->volume_uuid, cluster_volume_uuid(s->cluster),
		sizeof(out->volume_uuid));
	memcpy(out->key, s->key, sizeof(out->key));
}

void source_expect(const struct source *s, struct volume_options *o)
{
	if (!s->cluster)
		return;
	o->volume_uuid = cluster_volume_uuid(s->cluster);
	o->node = (uint16_t)s->node;
	o->shard = cluster_member(s->cluster, s->node)->shard;
	o->machine = s->machine;
	if (!o->machine && cluster_machines(cluster_member(s->cluster, s->node)) > 1)
		o->machine = STORE_ELSEWHERE;
	o->key = s->key;
	o->file = cluster_path(s->cluster);
	o->nodes = cluster_node_bits(s->cluster);
}

void source_close(struct source *s)
{
	cluster_close(s->cluster);
	s->cluster = NULL;
	explicit_bzero(s->key, sizeof(s->key));
}

/* ---- showing it ------------------------------------------------------------------------ */

static json_t *machine_describe(const struct cluster_member *m, unsigned machine)
{
	json_t *o = json_object(), *addresses = json_array();
	char text[CLUSTER_VALUE_BYTES + 16];

	for (unsigned i = 0; i < m->address_count; i++) {
		if (m->address[i].machine != machine)
			continue;
		cluster_address_print(&m->address[i], text, sizeof(text));
		json_array_append_new(addresses, json_string(text));
	}
	json_object_set_new(o, "machine", json_integer(machine));
	json_object_set_new(o, "addresses", addresses);
	json_object_set_new(
		o, "store", json_string(cluster_store_at(m, machine)) ?: json_string("?"));
	if (cluster_cache_at(m, machine))
		json_object_set_new(o, "cache_bytes",
			json_integer((json_int_t)cluster_cache_at(m, machine)));
	return o;
}

static json_t *member_describe(const struct cluster *c, const struct cluster_member *m)
{
	json_t *o = json_object(), *addresses = json_array();
	uint64_t incarnation = cluster_incarnation(c, m->id);
	char text[CLUSTER_VALUE_BYTES + 16];

	for (unsigned i = 0; i < m->address_count; i++) {
		cluster_address_print(&m->address[i], text, sizeof(text));
		json_array_append_new(addresses, json_string(text));
	}
	json_object_set_new(o, "id", json_integer(m->id));
	json_object_set_new(o, "role",
		json_string(m->role == CLUSTER_STORAGE ? "storage" : "client"));
	json_object_set_new(o, "addresses", addresses);
	if (m->role == CLUSTER_STORAGE) {
		json_object_set_new(o, "shard", json_integer(m->shard));
		/* A path need not be UTF-8, which jansson requires. */
		json_object_set_new(
			o, "store", json_string(m->store) ?: json_string("?"));
	} else {
		json_object_set_new(o, "host", json_integer(m->host));
	}
	if (cluster_machines(m) > 1) {
		json_t *machines = json_array();

		for (unsigned i = 1; i <= CLUSTER_MACHINES_MAX; i++)
			if (cluster_has_machine(m, i))
				json_array_append_new(machines, machine_describe(m, i));
		json_object_set_new(o, "machines", machines);
	}
	if (incarnation)
		json_object_set_new(
			o, "incarnation", json_integer((json_int_t)incarnation));
	return o;
}

json_t *cluster_describe(const struct cluster *c)
{
	json_t *o = json_object(), *nodes = json_array();
	const struct cluster_member *m = NULL;
	char uuid[UUID_TEXT];

	uuid_print(cluster_volume_uuid(c), uuid);
	while ((m = cluster_next(c, m)))
		json_array_append_new(nodes, member_describe(c, m));
	json_object_set_new(o, "name", json_string(cluster_name(c)));
	json_object_set_new(o, "volume_uuid", json_string(uuid));
	json_object_set_new(o, "kind", json_string(cluster_kind(c)));
	json_object_set_new(o, "file", json_string(cluster_path(c)) ?: json_string("?"));
	json_object_set_new(
		o, "key_file", json_string(cluster_key_path(c)) ?: json_string("?"));
	json_object_set_new(o, "tls", json_boolean(cluster_tls(c)));
	json_object_set_new(o, "transport", json_string(cluster_transport(c)));
	json_object_set_new(o, "nodes", nodes);
	return o;
}
