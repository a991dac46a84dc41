/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Structures and functions that the files of engine/cluster share. No other layer includes this.
 *
 * - cluster.c has the members, the map, and the epoch.
 * - change.c checks a file that is read anew, and adds its new nodes.
 * - file.c reads the text of a cluster file, with libinih.
 * - host.c asks the machine for files, names and interfaces.
 * - key.c reads the key file's text, and derives the volume's key.
 * - pairs.c checks the sections of a file against each other.
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
	_Atomic uint64_t incarnation[CLUSTER_NODE_MAX + 1]; /* only rise; they order no other
							     * memory */
};

/* Writes the line, section and key at the beginning of a message. */
int cluster_file_error(struct weft_error *err, const char *path, unsigned line,
	const char *section, const char *key, const char *fmt, ...)
	__attribute__((format(printf, 6, 7)));

/* Writes "node N", or "node N machine M". */
void cluster_section_print(
	const struct cluster_member *m, unsigned machine, char *out, size_t cap);
/* Returns the line of the machine's addresses. */
static inline unsigned cluster_address_line(const struct cluster_member *m, unsigned machine)
{
	return machine > 1 ? m->machine[machine].address_line : m->address_line;
}

/* The member is complete: from here on all tasks may see it. */
static inline void cluster_member_is_there(struct cluster *c, unsigned node)
{
	atomic_fetch_or_explicit(&c->there, 1ull << node, memory_order_release);
}

/* Checks the key file's text. Messages give `path` as its name. */
int cluster_key_parse(struct cluster *c, const char *text, size_t length,
	const char *path, struct weft_error *err);

extern const struct cluster_ops cluster_file_ops;

#endif
