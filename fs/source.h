/* SPDX-License-Identifier: Apache-2.0 */
/* The source of a mount: a single store, or the store that a cluster file names for this node. */
#ifndef WEFT_FS_SOURCE_H
#define WEFT_FS_SOURCE_H

#include <jansson.h>

#include "engine/cluster/cluster.h"
#include "engine/volume/volume.h"
#include "fs/options.h"

struct source {
	struct cluster *cluster; /* NULL: a single store */
	unsigned node;           /* id of this node */
	unsigned machine; /* which of the node's several this is; 0: it has one, or none is here */
	uint8_t key[CLUSTER_KEY_BYTES];
};

/* Sets o->cache_bytes if no option did, and o->store is a cluster file that gives this
 * node's cache. Reports nothing, since source_open does. Waits for the name service. */
void source_cache(struct mount_options *o);
/* Examines o->store. If it is a cluster file, finds the node (o->node, or by this machine's
 * addresses) and sets o->cluster_file, o->node and o->store. Waits for the name service. */
int source_open(struct source *s, struct mount_options *o, struct weft_error *err);
/* As source_open, for a short use of the store on any machine that reaches it. `at` is its path;
 * NULL: as the cluster file says. */
int source_open_at(struct source *s, struct mount_options *o, const char *at,
	struct weft_error *err);
/* Returns true if other nodes may use the volume. */
bool source_shared(const struct source *s);
/* Returns true if this node has no store. */
bool source_is_client(const struct source *s);
/* Stores in *out how to make a client's log that has never been used. It includes the key of the
 * volume. */
void source_format(const struct source *s, struct store_format *out);
/* Sets in *o which volume and node the store must belong to. */
void source_expect(const struct source *s, struct volume_options *o);
void source_close(struct source *s);

/* Describes a cluster as JSON. Returns a new reference. */
json_t *cluster_describe(const struct cluster *c);

#endif
