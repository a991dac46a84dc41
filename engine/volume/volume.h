/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A volume as one node has it: store, log, coherence, cache, space and tree put together,
 * recovered, and taken apart again.
 */
#ifndef WEFT_VOLUME_H
#define WEFT_VOLUME_H

#include "engine/net/calls.h"
#include "engine/tree/tree.h"

struct volume_peers;

struct volume {
	struct rt_disk *disk;
	bool disk_lent, salvage, own_only; /* as the options said */
	struct volume *const *also;        /* while it is opened */
	unsigned also_count;
	bool unredone; /* its log has what its store may lack: it is not shut */
	const struct volume_peers *peers;
	struct store *store;
	struct log *log;
	struct coherence *coherence;
	/* where it has other nodes, both set by volume_peers.open: */
	struct net_calls *calls; /* to ask them; theirs who made it. NULL: alone */
	/* bits: ids of those that take part, this one among them; some may come (member_reload) */
	_Atomic uint64_t nodes;
	/* bits: those of them that have left with nothing undurable, and were not met since:
	 * nobody waits for them but who needs their shards */
	_Atomic uint64_t left;
	/* bits: those that do not run any more, whose logs are not known: nobody waits for what they
	 * shared or locked */
	_Atomic uint64_t dead;
	const struct shards *shards; /* which pages it has */
	struct cache *cache;
	struct space *space;
	struct tree *tree;
	struct disk_catalog
		catalog; /* as read at open; fields that change are read from the page */
	bool read_only;
	/*
	 * An earlier start of this node has ended in a crash, and others may have changes of
	 * it that are nowhere else: they have not been asked to persist these (fs/ops/sync.c).
	 */
	_Atomic bool returned;
	struct {
		bool was_clean;
		uint64_t log_bytes, records, pages;
		uint64_t elsewhere; /* pages of other nodes that the log has images of */
		uint64_t
			redone_ns; /* store and log opened, and what the log has redone */
		uint64_t met_ns;   /* and the other nodes met */
		uint64_t took_ns;  /* until the volume was open */
		uint64_t left_out; /* with salvage: what did not fit */
	} recovery;
	/* inode numbers: a range from the catalog */
	struct rt_mutex
		inode_lock; /* the four below; not held while a range is fetched */
	uint64_t inode_next, inode_end;
	uint64_t inode_range; /* the one that the tree is divided for; 0: none */
	bool inode_refilling;
	struct rt_cond inode_refilled;
};

/*
 * What a volume of several nodes needs of who opens it, and has the network. 0, or -errno
 * with a text: then the volume is not opened. All may wait.
 */
struct volume_peers {
	/*
	 * Makes the coherence provider, which lists the volume's shards (coherence.h), and
	 * sets the volume's `calls` and `nodes`. Its store and log are open, and nothing
	 * else is.
	 */
	int (*open)(void *arg, struct volume *v, struct coherence **out,
		struct weft_error *err);
	/*
	 * This node's store is recovered, and nothing was asked of other nodes yet. From
	 * here on they may have its pages.
	 */
	int (*start)(void *arg, struct volume *v, struct weft_error *err);
	/*
	 * After open, whether started or not: nothing is asked of other nodes any more, and
	 * when it returns none uses this node's frames. Provider and cache are closed next.
	 */
	void (*stop)(void *arg, struct volume *v);
	void *arg;
	/*
	 * The volume is to be closed: no operation runs any more, and all that was dirty was
	 * persisted once. Sees to it that the same is so on the other nodes, and that nobody
	 * has anything dirty of other shards when it returns, nor uses this node's store:
	 * it may call volume_sync. The checkpointer runs; it calls cache_stop when nobody needs that
	 * any more, before it stops what persists for others. 0 or -errno: then the log is not marked clean. NULL: who
	 * closes the volume has seen to it.
	 */
	int (*settle)(void *arg, struct volume *v);
	/*
	 * The node is no longer there, and has left nothing that is not durable: nobody
	 * needs to ask it. May wait. NULL: that cannot be said of any.
	 */
	bool (*vacant)(void *arg, unsigned node);
};

struct volume_options {
	bool read_only;  /* a dirty log is replayed in memory only (never written) */
	bool background; /* run page provider and checkpointer; false for tools */
	struct cache_options cache;
	struct log_options log;
	/* whose store it must be, as in struct store_options */
	const uint8_t *volume_uuid;
	uint16_t node, shard;
	const uint8_t *key;
	const char *file;
	uint64_t nodes;
	bool any_node;
	/* where other nodes have pages of the volume; NULL: this node is alone */
	const struct volume_peers *peers;
	/* for fsck.weft: */
	bool storage_only; /* recover, but leave catalog, space and tree unread (NULL) */
	bool salvage;      /* pass over what of the log does not fit the store */
	bool disk_lent;    /* the disk stays the caller's, and open */
	/*
	 * All stores of a volume of several by one cache: each of the others is opened with
	 * `store_only`, its log not redone (read-only, also without a cache); the last gets
	 * them as `also`, redoes all logs and has pages of all stores. All are read-only,
	 * or none. Those others are closed after it; their logs are marked clean only if
	 * the last could be opened, since all is redone then.
	 */
	bool store_only;
	struct volume *const *also;
	unsigned also_count;
	/* Read-only: what the log has of other stores' pages is passed over. */
	bool own_only;
};

/*
 * store_format_plan for volume_format, which makes the same checks. Also -EINVAL if the store
 * is too small for a volume, and -ENOSPC if the disk is a file whose filesystem lacks the
 * room for what volume_format writes.
 */
int volume_format_plan(struct rt_disk *disk, const struct store_format *f,
	struct disk_superblock *sb, struct weft_error *err);
/*
 * Makes an empty volume on the disk: store_format_write, then groups, and in shard 0 the
 * catalog and a tree with the root directory (mode 0755, `uid`, `gid`). Waits.
 */
int volume_format(struct rt_disk *disk, const struct store_format *f, uint32_t uid,
	uint32_t gid, struct weft_error *err);

/*
 * Opens and recovers. Takes the disk: volume_close closes it, also when open fails.
 * Waits.
 */
int volume_open(struct volume **out, struct rt_disk *disk, const struct volume_options *o,
	struct weft_error *err);
/* Clean: checkpoints, marks the log clean. Returns the first error met, closes in any
 * case. */
int volume_close(struct volume *v);
/* What a close that failed leaves behind, in pages. */
struct volume_rest {
	uint64_t lost; /* of file data, not synced: not in the log, nor known to be in a store */
	uint64_t kept; /* in the log: the next open that may write does so */
};
int volume_close_rest(struct volume *v, struct volume_rest *rest);
/* Makes everything done so far durable. Waits. */
int volume_sync(struct volume *v);
/* Has what this node has of others' changes persisted, too. Waits, for homes that are away
 * as well. */
int volume_persist(struct volume *v);
/* The cluster's epoch as this node knows it; it has other nodes. */
uint64_t volume_cluster_epoch(struct volume *v);
/* Never used before, never again. A transaction of its own when the range is used up.
 * Waits. */
int volume_inode_number(struct volume *v, uint64_t *out);
/* This node's id; 0: the node of a volume without a cluster. */
unsigned volume_node(const struct volume *v);
/* Bits: ids of all nodes that take part; of those but this one: 0, it is alone. */
uint64_t volume_nodes(const struct volume *v);
uint64_t volume_others(const struct volume *v);
/* Has the node left, with nothing that others wait for but its shard? */
bool volume_left(struct volume *v, unsigned node);
/* Does the node not run any more, with what its log may have unknown? */
bool volume_dead(struct volume *v, unsigned node);
/* Is that start of the node one that has left, or is dead, or before it? It may be back by a later one. */
bool volume_over(struct volume *v, unsigned node, uint64_t incarnation);
/* As volume_peers.vacant. Waits. */
bool volume_vacant(const struct volume *v, unsigned node);
/* The errno that turned the volume read-only at run time, or 0. */
int volume_failed(struct volume *v);

#endif
