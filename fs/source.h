/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is mounted: a store by itself, or the store that a cluster file names for this
 * node.
 */
#ifndef WEFT_FS_SOURCE_H
#define WEFT_FS_SOURCE_H

#include <jansson.h>

#include "engine/cluster/cluster.h"
#include "engine/volume/volume.h"
#include "fs/options.h"

struct source {
	struct cluster *cluster; /* NULL: a store by itself */
	unsigned node;           /* this one's id */
	uint8_t key[CLUSTER_KEY_BYTES];
};

/*
 * Looks at o->store. Of a cluster file finds the node (o->node, or by this machine's own
 * addresses) and sets o->cluster_file, o->node and o->store. Waits for the name service.
 */
int source_open(struct source *s, struct mount_options *o, struct weft_error *err);
/* The same where the node's store is not where the cluster file says. at: NULL, it is. */
int source_open_at(struct source *s, struct mount_options *o, const char *at,
	struct weft_error *err);
/* Do other nodes have the volume too? */
bool source_shared(const struct source *s);
/* Has this node no store? */
bool source_is_client(const struct source *s);
/* What a client's log is to be made with, if nobody has used it. Has the volume's key. */
void source_format(const struct source *s, struct store_format *out);
/* Whose store the volume's must be. */
void source_expect(const struct source *s, struct volume_options *o);
void source_close(struct source *s);

/* What is known of a cluster, as JSON: a new reference. */
json_t *cluster_describe(const struct cluster *c);

#endif
