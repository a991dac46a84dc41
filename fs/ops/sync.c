/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fsync and syncfs.
 *
 * fsync takes the inode's dirty ranges, maps them to pages and has the cache make these
 * durable together with the log. What was changed before the call is covered: a writer
 * adds its range before it answers, and metadata are in the one log, of which everything
 * up to now is flushed. If it fails the ranges go back, so that the next fsync tries
 * again and cannot succeed by having forgotten.
 *
 * What other nodes have changed is in their logs and frames, and theirs to make durable:
 * the inode names them (`writers`), with the change itself, and fsync asks them first. Who
 * has been asked, and has no write under way that it might have missed, is taken out of
 * `writers` if the inode has not changed since it was read. No node asks another one while
 * it serves, nor holds a lock while it asks.
 */
#include "fs/ops/kernel.h"

#define SYNC_REFS_FEW 64u
#define SYNC_REFS_MAX 8192u /* one batch: 32 MiB of file data */

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

/* Under `sync`. *quiet: no write was under way when it began. */
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
	/* A log that has failed drops what is appended: then its end says nothing of our
	 * records. */
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

/* What this node has to do. `fetch`: also for what the kernel has not written back, as it has
 * before it asks itself. */
static int sync_here(struct fs *fs, uint64_t ino, bool data_only, bool fetch, bool *quiet)
{
	struct inode_state *st;
	int rc = state_get(fs, ino, &st);

	if (rc < 0)
		return rc;
	if (fetch)
		kernel_fetch_stores(fs, st);
	rc = kernel_stores_await(fs, st);
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

	rc = kernel_stores_await(fs, NULL);
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

/* ---- what other nodes have to do --------------------------------------------------- */

/* Between attempts to reach a node that is away. */
#define AWAY_NS 20000000ull

/* What is asked: that all that the asked has be persisted, whoever changed it. */
#define SYNC_HELD 1u

/* -EAGAIN says that it is not served: where the log has failed this node leaves, and is waited
 * for as one that has crashed. */
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
 * Waits for a node that is away, as all do who need something that only it has: what it
 * has changed may be nowhere else. Until it is back, or has left with all of it durable; or until
 * this node leaves, and waits for nobody that is away.
 */
static int sync_node(struct fs *fs, unsigned node, uint64_t ino, bool *quiet)
{
	const uint64_t ask[NET_CALL_WORDS] = {ino};
	uint64_t answer[NET_CALL_WORDS];

	for (;;) {
		int rc = net_call(fs->volume->calls, node, NET_CALL_SYNC, ask, answer);

		if (rc != -EAGAIN && rc != -ENOTCONN && rc != -ECONNRESET) {
			rt_task_awaits(0);
			*quiet = rc == 0 && answer[0];
			return rc ? -EIO : 0;
		}
		if (volume_failed(fs->volume) || atomic_load(&fs->sync_leaving))
			return -EIO;
		/* it left with everything durable */
		if (volume_left(fs->volume, node) || volume_vacant(fs->volume, node)) {
			*quiet = true;
			return 0;
		}
		if (rt_task_unwanted())
			return -EINTR;
		rt_task_awaits(1ull << node);
		rt_sleep_ns(AWAY_NS);
	}
}

/* Bits of the nodes asked; *clean loses those that have to be asked again. */
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

/* No change of the inode: nobody has to make it durable. */
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
 * What this node had changed when it crashed, and others had by then, need not be in its
 * log: it is with them, dirty or owed, and part of what an fsync covers. So this node asks
 * all of them to persist what they have, before it says that its own part is durable.
 */

/* False: the operations are closed, and the node is not to be had. */
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

/*
 * Once more if the epoch has changed: one of them may have crashed with the image, and
 * another, asked before, have had a copy, which is the newest then.
 */
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
	/* of a file that is gone, and open, this node's part is all there is to do */
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
	/* It is durable: that others are asked once more for nothing is no error. */
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
