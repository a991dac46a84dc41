/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fsync and syncfs.
 *
 * fsync takes the inode's dirty ranges and maps them to pages. The cache makes these durable
 * together with the log. All changes before the call are covered. A writer adds its range before it
 * answers. Metadata are in the one log, which is flushed up to its current end. If fsync fails, the
 * ranges go back. The next fsync then tries again, and cannot succeed without them.
 *
 * Changes by other nodes are in their logs and frames, and those nodes must make them durable. The
 * inode names them (`writers`), in the same transaction as the change. fsync asks them first. A
 * node that was asked leaves `writers` on two conditions. It has no write under way that it might
 * have missed, and the inode has not changed since it was read. A node that serves such a request
 * does not ask another one. A node that asks holds no lock.
 */
#include "fs/ops/data_internal.h"

#define SYNC_REFS_FEW 64u
#define SYNC_REFS_MAX 8192u /* number of pages in one batch: 32 MiB of file data */

static int hand_sync(struct page_batch *b)
{
	return cache_sync(b->fs->volume->cache, b->refs, b->count, b->lsn);
}

static uint64_t set_pages(const struct dirty_set *set)
{
	const struct dirty_range *r = dirty_ranges(set);
	uint64_t pages = 0;

	for (uint32_t i = 0; i < set->count; i++)
		pages += r[i].end - r[i].first;
	return pages;
}

static int sync_set(struct fs *fs, uint64_t ino, const struct dirty_set *set, lsn_t lsn)
{
	struct page_ref few[SYNC_REFS_FEW];
	struct page_batch b = {.fs = fs,
		.refs = few,
		.capacity = SYNC_REFS_FEW,
		.hand = hand_sync,
		.lsn = lsn};
	struct page_ref *many = NULL;
	int rc = 0;

	if (set_pages(set) > SYNC_REFS_FEW) {
		many = rt_alloc(SYNC_REFS_MAX * sizeof(*many));
		if (many) {
			b.refs = many;
			b.capacity = SYNC_REFS_MAX;
		}
	}
	for (uint32_t i = 0; i < set->count && rc == 0; i++)
		rc = page_batch_add(
			&b, ino, dirty_ranges(set)[i].first, dirty_ranges(set)[i].end);
	if (rc == 0)
		rc = page_batch_end(&b);
	rt_free(many);
	return rc;
}

/* Under `sync`. *quiet: no write was under way at the start. */
static int state_sync(struct fs *fs, struct inode_state *st, bool *quiet)
{
	struct dirty_set set;
	bool unknown;
	lsn_t lsn;
	int rc;

	*quiet = atomic_load_explicit(&st->writing, memory_order_acquire) == 0;
	rt_mutex_lock(&st->lock);
	dirty_move(&set, &st->dirty);
	unknown = st->dirty_unknown;
	rt_mutex_unlock(&st->lock);
	if (unknown)
		dirty_add(&set, 0, BLOCK_END);
	lsn = log_end(fs->volume->log);
	rc = sync_set(fs, st->ino, &set, lsn);
	if (rc == 0)
		rc = log_flush(fs->volume->log, lsn);
	/* A failed log drops appended records. Its end then proves nothing about them. */
	if (rc == 0 && volume_failed(fs->volume))
		rc = -EIO;
	rt_mutex_lock(&st->lock);
	if (rc < 0)
		dirty_merge(&st->dirty, &set);
	else
		st->dirty_unknown = false;
	rt_mutex_unlock(&st->lock);
	dirty_clear(&set);
	return rc;
}

/* Does this node's part. `fetch`: also for stores that the kernel has not written back. For its own
 * requests it has done that. */
static int sync_here(struct fs *fs, uint64_t ino, bool data_only, bool fetch, bool *quiet)
{
	struct inode_state *st;
	int rc = state_get(fs, ino, &st);

	if (rc < 0)
		return rc;
	if (fetch)
		kcache_fetch_stores(fs->kcache, &st->kcache);
	rc = kcache_stores_await(fs->kcache, &st->kcache);
	if (rc == 0 && !fetch)
		rc = stores_error(st, true);
	rt_mutex_lock(&st->sync);
	if (rc == 0 && !data_only)
		rc = state_settle(fs, st);
	if (rc == 0)
		rc = state_sync(fs, st, quiet);
	rt_mutex_unlock(&st->sync);
	state_put(fs, st);
	return rc == -EROFS ? -EIO : rc; /* the volume failed under the caller */
}

static int syncfs_here(struct fs *fs)
{
	uint32_t forgotten = forgotten_mark(fs);
	int rc;

	rc = kcache_stores_await(fs->kcache, NULL);
	if (rc < 0)
		return rc;
	states_settle(fs);
	rc = volume_sync(fs->volume);
	if (rc == 0 && volume_failed(fs->volume))
		rc = -EIO;
	if (rc == 0)
		forgotten_clear(fs, forgotten);
	return rc;
}

/* ---- the part of other nodes ------------------------------------------------------ */

/* Between attempts to reach a node that is away. */
#define AWAY_NS 20000000ull

/* The request: persist all pages that the node holds, whichever node changed them. */
#define SYNC_HELD 1u

/* -EAGAIN: the request is not served. If the log has failed, this node leaves, and others wait for
 * it as for a crashed one. */
static int serve_result(struct fs *fs, int rc)
{
	if (!rc)
		return 0;
	return volume_failed(fs->volume) ? -EAGAIN : -EIO;
}

static int serve_sync(void *owner, unsigned from, const uint64_t ask[NET_CALL_WORDS],
	uint64_t answer[NET_CALL_WORDS])
{
	struct fs *fs = owner;
	bool quiet = false;
	int rc;

	if (ask[0] > DISK_INO_MAX)
		return -EINVAL;
	if (fs->volume->read_only)
		return 0;
	if (ask[1] == SYNC_HELD)
		return serve_result(fs, volume_persist(fs->volume));
	if (atomic_load(&fs->volume->returned))
		return -EAGAIN;
	if (ask[0]) {
		rc = sync_here(fs, ask[0], false, true, &quiet);
	} else {
		states_fetch(fs);
		rc = syncfs_here(fs);
	}
	answer[0] = quiet;
	return serve_result(fs, rc);
}

/*
 * Has a node do its part. If it is away, waits for it, because its changes may exist nowhere else.
 * The wait ends when the node is back, or has left with all changes durable. It also ends when this
 * node leaves, and no longer waits for nodes that are away.
 */
static int sync_node(struct fs *fs, unsigned node, uint64_t ino, bool *quiet)
{
	const uint64_t ask[NET_CALL_WORDS] = {ino};
	uint64_t answer[NET_CALL_WORDS];

	for (;;) {
		int rc = net_call(fs->volume->calls, node, NET_CALL_SYNC, ask, answer);

		if (rc != -EAGAIN && rc != -ENOTCONN && rc != -ECONNRESET) {
			rt_task_awaits(0);
			rt_task_needs(RT_NEEDS_NOTHING, 0);
			*quiet = rc == 0 && answer[0];
			return rc ? -EIO : 0;
		}
		if (volume_failed(fs->volume) || atomic_load(&fs->sync_leaving))
			return -EIO;
		/* It left with all changes durable. */
		if (volume_left(fs->volume, node) || volume_vacant(fs->volume, node)) {
			*quiet = true;
			return 0;
		}
		if (rt_task_unwanted())
			return -EINTR;
		rt_task_awaits(1ull << node);
		rt_task_needs(RT_NEEDS_ANSWER, node);
		rt_sleep_ns(AWAY_NS);
	}
}

/* Returns the bits of the nodes asked. *clean loses nodes that must be asked again. */
static int sync_nodes(struct fs *fs, uint64_t nodes, uint64_t ino, uint64_t *clean)
{
	nodes &= volume_others(fs->volume);
	for (unsigned node = 0; nodes >> node; node++) {
		bool quiet;
		int rc;

		if (!(nodes >> node & 1))
			continue;
		rc = sync_node(fs, node, ino, &quiet);
		if (rc < 0)
			return rc;
		if (!quiet)
			*clean &= ~(1ull << node);
		if (node == DISK_NODE_MAX)
			break;
	}
	return 0;
}

struct cleaning {
	uint64_t ino, changes, clean;
};

/* Does not count as a change of the inode: no node has to make it durable. */
static int clean_body(struct txn *x, void *arg)
{
	const struct cleaning *c = arg;
	struct disk_inode inode;
	int rc = inode_read(x, c->ino, &inode);

	if (rc < 0 || inode.changes != c->changes || !(inode.writers & c->clean))
		return rc;
	inode.writers &= ~c->clean;
	return txn_write(x, disk_key(c->ino, DISK_ITEM_INODE, 0), &inode, sizeof(inode));
}

/* ---- after a crash ------------------------------------------------------------------- */

/*
 * Persists changes that this node made before it crashed and that other nodes had by then. They
 * need not be in its log. The other nodes have them, dirty or owed, and fsync covers them. So this
 * node asks all nodes to persist their pages before it reports its own part as durable.
 */

/* Returns false if the operations are closed and the node cannot be reached. */
static bool held_ask(struct fs *fs, unsigned node)
{
	const uint64_t ask[NET_CALL_WORDS] = {0, SYNC_HELD};
	uint64_t answer[NET_CALL_WORDS];

	while (net_call(fs->volume->calls, node, NET_CALL_SYNC, ask, answer)) {
		if (volume_left(fs->volume, node) || volume_vacant(fs->volume, node))
			break;
		if (atomic_load(&fs->sync_closing) || volume_failed(fs->volume))
			return false;
		rt_sleep_ns(AWAY_NS);
	}
	return true;
}

/* If the epoch has changed, asks all once more. A node may have crashed with the image. Another
 * one, asked before, may have had a copy, which is then the newest. */
static void held_main(void *arg)
{
	struct fs *fs = arg;
	uint64_t others = volume_others(fs->volume), epoch;

	do {
		epoch = volume_cluster_epoch(fs->volume);
		for (unsigned node = 0; node <= DISK_NODE_MAX; node++)
			if ((others >> node & 1) && !held_ask(fs, node))
				return;
	} while (volume_cluster_epoch(fs->volume) != epoch);
	atomic_store(&fs->volume->returned, false);
}

/* For callers of this node. */
static int held_await(struct fs *fs)
{
	while (atomic_load(&fs->volume->returned)) {
		if (volume_failed(fs->volume) || atomic_load(&fs->sync_leaving))
			return -EIO;
		if (rt_task_unwanted())
			return -EINTR;
		rt_sleep_ns(AWAY_NS);
	}
	return 0;
}

void fs_leave(struct fs *fs)
{
	atomic_store(&fs->sync_leaving, true);
}

int sync_open(struct fs *fs)
{
	int rc = 0;

	if (!fs->volume->calls)
		return 0;
	if (atomic_load(&fs->volume->returned))
		rc = rt_task_spawn(&fs->sync_task, "returned", held_main, fs);
	if (rc == 0)
		net_calls_serve(fs->volume->calls, NET_CALL_SYNC, serve_sync, fs);
	return rc;
}

void sync_close(struct fs *fs)
{
	if (!fs->volume->calls)
		return;
	net_calls_serve(fs->volume->calls, NET_CALL_SYNC, NULL, NULL);
	atomic_store(&fs->sync_closing, true);
	if (fs->sync_task)
		rt_task_join(fs->sync_task);
}

int ops_fsync(struct fs *fs, uint64_t ino, bool data_only)
{
	struct cleaning c = {.ino = ino, .clean = UINT64_MAX};
	struct disk_inode inode = {0};
	bool quiet = false;
	int rc = 0;

	ops_count(fs, OPS_CALL_FSYNC);
	if (fs->volume->read_only)
		return 0;
	/* For a file that is gone, and open, only this node's part matters. */
	if (fs->volume->calls)
		rc = inode_get(fs, ino, &inode);
	if (rc == 0)
		rc = sync_nodes(fs, inode.writers, ino, &c.clean);
	if (rc == 0 && (inode.writers & fs_writer(fs)))
		rc = held_await(fs);
	if (rc == 0 || rc == -ENOENT)
		rc = sync_here(fs, ino, data_only, false, &quiet);
	if (rc < 0 || !(inode.writers & ~fs_writer(fs)))
		return rc;
	c.changes = inode.changes;
	if (!quiet)
		c.clean &= ~fs_writer(fs);
	/* The file is durable. If other nodes are asked once more without need, that is no
	 * error. */
	(void)ops_run(fs, 0, clean_body, &c, NULL);
	return 0;
}

int ops_syncfs(struct fs *fs)
{
	uint64_t unused = 0;
	int rc;

	ops_count(fs, OPS_CALL_SYNCFS);
	if (fs->volume->read_only)
		return 0;
	rc = sync_nodes(fs, UINT64_MAX, 0, &unused);
	if (rc == 0)
		rc = held_await(fs);
	return rc ? rc : syncfs_here(fs);
}
