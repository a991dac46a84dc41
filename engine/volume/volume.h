/* SPDX-License-Identifier: Apache-2.0 */
/* A volume at one node: opens, recovers and closes store, log, coherence, cache, space and tree. */
#ifndef WEFT_VOLUME_H
#define WEFT_VOLUME_H

#include "engine/coherence/peers.h"
#include "engine/net/calls.h"
#include "engine/tree/tree.h"

struct volume_peers;

struct volume {
	struct rt_disk *disk;
	bool disk_lent, salvage, own_only; /* as in the options */
	struct volume *const *also;        /* set while it is opened */
	unsigned also_count;
	bool unredone; /* its log has changes that its store may lack: it is not shut */
	const struct volume_peers *peers;
	bool peers_open; /* `stop` must be called */
	struct store *store;
	struct log *log;
	struct coherence *coherence;
	/* with other nodes, both set by volume_peers.open: */
	struct net_calls *calls; /* for calls to other nodes; belongs to the opener. NULL: alone */
	/* node map of the nodes that take part, this one included; node_reload may add some */
	_Atomic uint64_t nodes;
	/* of these: nodes that have left without undurable changes, and were not met since. Only
	 * users of their shards wait for them */
	_Atomic uint64_t left;
	/* dead nodes, whose logs' contents are not known: their shared pages and locks are free */
	_Atomic uint64_t dead;
	const struct shards *shards; /* the pages that the volume has */
	struct cache *cache;
	struct space *space;
	struct tree *tree;
	struct disk_catalog
		catalog; /* as read at open; read fields that change from the page */
	bool read_only;
	/* An earlier start of this node ended in a crash. Other nodes may have changes of it that
	 * exist nowhere else, and have not been asked to persist them (fs/ops/sync.c). */
	_Atomic bool returned;
	struct {
		bool was_clean;
		uint64_t log_bytes, records, pages;
		uint64_t elsewhere; /* pages of other nodes of which the log has images */
		uint64_t
			redone_ns; /* duration until the store and the log were open; until the
				    * log was redone */
		uint64_t met_ns;   /* until the other nodes were met */
		uint64_t took_ns;  /* until the volume was open */
		uint64_t left_out; /* with salvage: records that did not fit */
	} recovery;
	/* inode numbers: a range from the catalog */
	struct rt_mutex
		inode_lock; /* of the four fields below; not held while a range is fetched */
	uint64_t inode_next, inode_end;
	uint64_t inode_range; /* the range that the tree is divided for; 0: none */
	bool inode_refilling;
	struct rt_cond inode_refilled;
};

/* Functions that the volume's opener, which has the network, gives a volume of several nodes. They
 * return 0, or a negative errno with a text, and then the volume is not opened. All may wait. */
struct volume_peers {
	/*
	 * Opens the network, and sets the volume's `calls` and `nodes`. Fills in the options of the
	 * coherence provider, which is opened next (zeros before). The options list the volume's
	 * shards. Only the store and the log are open.
	 */
	int (*open)(void *arg, struct volume *v, struct coherence_options *out,
		struct weft_error *err);
	/* Starts the volume's coherence provider: from now on other nodes may have its pages. This
	 * node's store is recovered, and no request was sent to other nodes yet. */
	int (*start)(void *arg, struct volume *v, struct weft_error *err);
	/*
	 * Ends all requests to other nodes. Afterwards no other node uses this node's frames. Stops
	 * the coherence provider, if there is one. Called after open, also without start. Provider
	 * and cache are closed next.
	 */
	void (*stop)(void *arg, struct volume *v);
	void *arg;
	/*
	 * Prepares the close of the volume. No operation runs any more, and all dirty pages were
	 * persisted once. Returns when the other nodes are as far, no node has dirty pages of other
	 * shards, and none uses this node's store. It may call volume_sync. The checkpointer runs.
	 * The function calls cache_stop when no node needs it any more, before it stops persisting
	 * for others. If it returns an error, the log is not marked clean. NULL: the closing task
	 * has done all this.
	 */
	int (*settle)(void *arg, struct volume *v);
	/* Returns true if the node is away and has left nothing that is not durable, so that it
	 * need not be asked. May wait. NULL: this is not known of any node. */
	bool (*vacant)(void *arg, unsigned node);
};

struct volume_options {
	bool read_only;  /* a dirty log is replayed in memory only, and never written */
	bool background; /* run the page provider and the checkpointer; false for tools */
	struct cache_options cache;
	/* memory for the places of leaves, if the volume has other nodes (tree_learn); 0: none */
	uint64_t learned_bytes;
	struct log_options log;
	/* the store's identity, as in struct store_options */
	const uint8_t *volume_uuid;
	uint16_t node, shard;
	const uint8_t *key;
	const char *file;
	uint64_t nodes;
	unsigned machine; /* of store_options */
	bool any_node;
	/* functions of the opener, if other nodes have pages of the volume; NULL: this node is
	 * alone */
	const struct volume_peers *peers;
	/* for fsck.weft: */
	bool storage_only; /* recover, but do not read catalog, space and tree (NULL) */
	bool salvage;      /* skip log records that do not fit the store */
	bool disk_lent;    /* the disk belongs to the caller and stays open */
	/*
	 * For tools that open all stores of a volume with one cache. Each store but the last is
	 * opened with `store_only`, and its log is not redone. (Read-only ones have no cache.) The
	 * last store gets them as `also`, redoes all logs, and has pages of all stores. All are
	 * read-only, or none is. The others are closed after the last. Their logs are marked clean
	 * only if the last could be opened, because all logs are redone then.
	 */
	bool store_only;
	struct volume *const *also;
	unsigned also_count;
	/* Read-only: records of other stores' pages are skipped. */
	bool own_only;
};

/*
 * Computes the layout for volume_format (store_format_plan), and makes the same checks. Returns 0
 * or a negative errno; also -EINVAL if the store is too small for a volume. Returns -ENOSPC if the
 * disk is a file whose filesystem lacks room for all that volume_format writes.
 */
int volume_format_plan(struct rt_disk *disk, const struct store_format *f,
	struct disk_superblock *sb, struct weft_error *err);
/* Makes an empty volume on the disk: calls store_format_write, then writes the groups. In shard 0
 * it writes the catalog and a tree with the root directory (mode 0755, `uid`, `gid`). Waits. */
int volume_format(struct rt_disk *disk, const struct store_format *f, uint32_t uid,
	uint32_t gid, struct weft_error *err);

/* Opens and recovers a volume. Takes the disk: volume_close closes it, and so does a failed open.
 * Returns 0 or a negative errno with a text. Waits. */
int volume_open(struct volume **out, struct rt_disk *disk, const struct volume_options *o,
	struct weft_error *err);
/* Closes the volume. Checkpoints and marks the log clean if possible. Returns the first error; the
 * volume is closed in any case. Waits. */
int volume_close(struct volume *v);
/* Pages that remain after a failed close. */
struct volume_rest {
	uint64_t lost; /* unsynced file data that is in neither the log nor, as far as known, a
		        * store */
	uint64_t kept; /* in the log: the next open with write access redoes them */
};
int volume_close_rest(struct volume *v, struct volume_rest *rest);
/* Makes all changes so far durable. Returns 0 or a negative errno. Waits. */
int volume_sync(struct volume *v);
/* Works as volume_sync, and persists other nodes' changes that this node has. Waits, also for homes
 * that are away. */
int volume_persist(struct volume *v);
/* Returns the cluster epoch that this node is in. The volume has other nodes. */
uint64_t volume_cluster_epoch(struct volume *v);
/* Returns a new inode number, which was never used and will not be reused. If the range is used up,
 * runs a transaction of its own. Waits. */
int volume_inode_number(struct volume *v, uint64_t *out);
/* Returns this node's id; 0: the node of a volume without a cluster. */
unsigned volume_node(const struct volume *v);
/* Return node maps: of all nodes that take part, and of those but this one (0: alone). */
uint64_t volume_nodes(const struct volume *v);
uint64_t volume_others(const struct volume *v);
/* Returns true if the node has left, so that others wait only for its shard. */
bool volume_left(struct volume *v, unsigned node);
/* Returns true if the node is dead, and the contents of its log are not known. */
bool volume_dead(struct volume *v, unsigned node);
/* Returns true if this start of the node has left or is dead, or is earlier than one that has. A
 * later start may run. */
bool volume_over(struct volume *v, unsigned node, uint64_t incarnation);
/* Returns true as volume_peers.vacant does. Waits. */
bool volume_vacant(const struct volume *v, unsigned node);
/* Returns the errno that made the volume read-only at run time, or 0. */
int volume_failed(struct volume *v);

#endif
