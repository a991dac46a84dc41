/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of engine/cluster share. Nobody else includes it.
 *
 * cluster.c  members, map, epoch
 * change.c   what a file that is read anew may say otherwise, and taking that in
 * file.c     the text of a cluster file, read with libinih
 * host.c     what is asked of the machine: files, names, interfaces
 * key.c      the key file's text, and the volume's key
 */
#ifndef WEFT_CLUSTER_INTERNAL_H
#define WEFT_CLUSTER_INTERNAL_H

#include <errno.h>
#include <stdatomic.h>
#include <string.h>

#include "engine/cluster/cluster.h"
#include "engine/rt/rt.h"

#define CLUSTER_PATH_BYTES 4096u

struct cluster {
	const struct cluster_ops *ops;
	char path[CLUSTER_PATH_BYTES];
	char key_path[CLUSTER_PATH_BYTES];
	char name[CLUSTER_NAME_BYTES];
	uint8_t volume_uuid[UUID_BYTES];
	bool has_key;
	uint8_t *key; /* CLUSTER_KEY_BYTES of secret_alloc */
	bool tls;
	bool verbs;
	/* lines of the file, for messages; 0: not given */
	unsigned volume_line, name_line, uuid_line, key_line, tls_line, transport_line;
	unsigned storage_nodes;
	/* Bits: ids of members. Set when the member is complete (release), never cleared. */
	_Atomic uint64_t there;
	struct cluster_member member[CLUSTER_NODE_MAX + 1]; /* by id */
	uint8_t home[CLUSTER_SHARD_MAX + 1];                /* node by shard */
	_Atomic uint64_t incarnation[CLUSTER_NODE_MAX + 1]; /* only rise; they order
							       nothing else */
};

/* The line, section and key at the beginning of a message. */
int cluster_file_error(struct weft_error *err, const char *path, unsigned line,
	const char *section, const char *key, const char *fmt, ...)
	__attribute__((format(printf, 6, 7)));

/* A member is complete: from here on all may see it. */
static inline void cluster_member_is_there(struct cluster *c, unsigned node)
{
	atomic_fetch_or_explicit(&c->there, 1ull << node, memory_order_release);
}

/* Checks the key file's text. `path` is what messages call it. */
int cluster_key_parse(struct cluster *c, const char *text, size_t length,
	const char *path, struct weft_error *err);

extern const struct cluster_ops cluster_file_ops;

#endif
