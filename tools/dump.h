/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of weft dump share. */
#ifndef WEFT_TOOLS_DUMP_H
#define WEFT_TOOLS_DUMP_H

#include "engine/cluster/cluster.h"
#include "engine/volume/volume.h"

struct view;

/* A store of the cluster file. */
struct dump_store {
	const char *path;
	unsigned node;
	struct rt_disk *disk;
	struct disk_superblock sb;
	struct volume *v; /* where it is read by another's cache */
};

struct dump {
	const char *path; /* of the store, or what was given where all are looked at */
	struct cluster *cluster;
	struct dump_store *store; /* with a cluster file: all of its stores */
	unsigned store_count;
	const struct view *view;
	const char *word; /* its argument, as it was given */
	uint64_t number;  /* the same, where it is one */
	/* of the store that is looked at; of all, the one with shard 0 */
	struct rt_disk *disk;
	struct volume *v;
	struct disk_superblock sb;
	bool keys; /* tree: items too */
	bool failed;
};

/* Says that something could not be read, which makes the exit code. */
void unreadable(struct dump *d, const char *what, int rc);
/* The tree as any reader has it, on top of what is open already: d->v->tree. 0, or an
 * error that was said. */
int tree_get(struct dump *d);
/* An inode and all its items, of the tree. */
void show_inode(struct dump *d, uint64_t ino);

/* ---- dump_stores.c --------------------------------------------------------------- */

/* Held, where that is possible, so that nothing changes meanwhile. */
int dump_disk_open(const char *path, struct rt_disk **out, struct weft_error *err);
/* Those of all storage nodes, in d->store. */
int dump_cluster_open(struct dump *d, struct weft_error *err);
void dump_disks_close(struct dump *d);
/*
 * d->v: the store at hand, its log replayed in memory; with `all` the volume, d->disk
 * being the store with shard 0. 0, or an error that was said.
 */
int dump_volume_get(struct dump *d, bool all);
void dump_volumes_close(struct dump *d);

/* ---- dump_files.c ---------------------------------------------------------------- */

/* The file at d->word, from the root; every name there is. */
void dump_path(struct dump *d);
void dump_files(struct dump *d);

/* ---- dump_text.c ----------------------------------------------------------------- */

/* A line of a field and its value. */
void print_uuid(const char *label, const uint8_t u[16]);
void print_u64(const char *label, uint64_t value);
void print_time(const char *label, int64_t ns);
/* Bytes as a person can read them, without a newline. */
void print_text(const void *bytes, size_t len);
void print_hex(const uint8_t *p, size_t len);
/* Items; a value that is not what its key says is shown as malformed or in hex. */
void print_item(struct disk_key key, const uint8_t *value, size_t len);
/* Of pages that have passed tree_check_page. */
void print_node(const struct disk_node *n);
void print_leaf(const struct disk_leaf *leaf);

#endif
