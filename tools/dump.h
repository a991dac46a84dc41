/* SPDX-License-Identifier: Apache-2.0 */
/* Declarations that the files of weft dump share. */
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
	struct volume *v; /* if another store's cache reads it */
};

struct dump {
	const char *path; /* of the store; for all stores, the path that was given */
	struct cluster *cluster;
	struct dump_store *store; /* with a cluster file: all of its stores */
	unsigned store_count;
	const struct view *view;
	const char *word; /* the argument, as given */
	uint64_t number;  /* the same, if it is a number */
	/* Of the current store; for all stores, the one with shard 0: */
	struct rt_disk *disk;
	struct volume *v;
	struct disk_superblock sb;
	bool keys; /* tree: prints items, too */
	bool failed;
};

/* Reports that a part could not be read. The exit code shows it. */
void dump_unreadable(struct dump *d, const char *what, int rc);
/* Opens the tree in d->v->tree, above the open layers, in the ordinary way. Returns 0, or an error
 * that was reported. */
int tree_get(struct dump *d);
/* Prints an inode of the tree and all its items. */
void show_inode(struct dump *d, uint64_t ino);

/* ---- dump_stores.c --------------------------------------------------------------- */

/* Opens a disk. Locks it if that is possible, so that it does not change meanwhile. */
int dump_disk_open(const char *path, struct rt_disk **out, struct weft_error *err);
/* Opens the stores of all storage nodes, in d->store. */
int dump_cluster_open(struct dump *d, struct weft_error *err);
void dump_disks_close(struct dump *d);
/* Opens d->v: the current store, its log replayed in memory. With `all`, opens the volume; d->disk
 * is then the store with shard 0. Returns 0, or an error that was reported. */
int dump_volume_get(struct dump *d, bool all);
void dump_volumes_close(struct dump *d);

/* ---- dump_files.c ---------------------------------------------------------------- */

/* Prints the file at d->word, from the root, with each name on the way. */
void dump_path(struct dump *d);
void dump_files(struct dump *d);

/* ---- dump_text.c ----------------------------------------------------------------- */

/* Prints a line of a field and its value. */
void print_uuid(const char *label, const uint8_t u[16]);
void print_u64(const char *label, uint64_t value);
void print_time(const char *label, int64_t ns);
/* Prints bytes readably, without a newline. */
void print_text(const void *bytes, size_t len);
void print_hex(const uint8_t *p, size_t len);
/* Prints items. A value that does not fit its key is printed as malformed or in hex. */
void print_item(struct disk_key key, const uint8_t *value, size_t len);
/* For pages that have passed tree_check_page. */
void print_node(const struct disk_node *n);
void print_leaf(const struct disk_leaf *leaf);

#endif
