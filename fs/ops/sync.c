/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fsync and syncfs.
 *
 * fsync takes the inode's dirty ranges, maps them to pages and has the cache make these
 * durable together with the log. What was changed before the call is covered: a writer
 * adds its range before it answers, and metadata are in the one log, of which everything
 * up to now is flushed. If it fails the ranges go back, so that the next fsync tries
 * again and cannot succeed by having forgotten.
 */
#include "fs/ops/data_internal.h"

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

/* Under `sync`. */
static int state_sync(struct fs *fs, struct inode_state *st)
{
	struct dirty_set set;
	bool unknown;
	lsn_t lsn;
	int rc;

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

int ops_fsync(struct fs *fs, uint64_t ino, bool data_only)
{
	struct inode_state *st;
	int rc;

	ops_count(fs, OPS_CALL_FSYNC);
	if (fs->volume->read_only)
		return 0;
	rc = state_get(fs, ino, &st);
	if (rc < 0)
		return rc;
	rt_mutex_lock(&st->sync);
	if (!data_only)
		rc = state_settle(fs, st);
	if (rc == 0)
		rc = state_sync(fs, st);
	rt_mutex_unlock(&st->sync);
	state_put(fs, st);
	return rc == -EROFS ? -EIO : rc; /* the volume failed under the caller */
}

int ops_syncfs(struct fs *fs)
{
	uint32_t forgotten = forgotten_mark(fs);
	int rc;

	ops_count(fs, OPS_CALL_SYNCFS);
	if (fs->volume->read_only)
		return 0;
	states_settle(fs);
	rc = volume_sync(fs->volume);
	if (rc == 0 && volume_failed(fs->volume))
		rc = -EIO;
	if (rc == 0)
		forgotten_clear(fs, forgotten);
	return rc;
}
