/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Appends of several calls: a kernel sends a large write(2) in pieces (docs/many-nodes.md, "Operations").
 *
 * Keeps: other nodes do not get the leaf of the inode from a call's commit to the next call, and nobody moves
 * the end without the leaf. It is kept for KEEP_NS between two calls, and for CACHE_KEEP_NS in all: what takes
 * longer is a stream, for which nothing is kept. Best effort, as cache_keep is.
 *
 * All here is under `structure`.
 */
#include "fs/ops/data_internal.h"

#define KEEP_NS    20000000ull
#define YIELD_NS   100000ull
#define YIELDS_MAX 20u

static struct disk_key inode_key(const struct inode_state *st)
{
	return disk_key(st->ino, DISK_ITEM_INODE, 0);
}

static void keep(struct fs *fs, const struct inode_state *st, uint64_t for_ns)
{
	uint64_t now;

	if (likely(!st->appending_ns))
		return;
	now = rt_now_ns();
	if (now - st->appending_ns < CACHE_KEEP_NS)
		tree_keep(fs->tree, inode_key(st), now + for_ns);
}

/* Whom the last append has kept waiting gets the leaf before the next one begins: else that one might not end
 * before the leaf must be given up. */
static void yield(struct fs *fs, const struct inode_state *st)
{
	for (unsigned i = 0; i < YIELDS_MAX && tree_keep_refused(fs->tree, inode_key(st));
		i++)
		rt_sleep_ns(YIELD_NS);
}

bool append_begin(struct fs *fs, struct inode_state *st, bool more)
{
	if (!fs_has_peers(fs))
		return false;
	if (st->appending_ns && rt_now_ns() >= st->appending_until_ns)
		st->appending_ns = 0;
	keep(fs, st, CACHE_KEEP_NS);
	if (!more || st->appending_ns)
		return false;
	yield(fs, st);
	return true;
}

/* The time begins here for the first: to get the leaf may have taken long. */
void append_commits(struct fs *fs, struct inode_state *st, bool first)
{
	if (first)
		st->appending_ns = rt_now_ns();
	keep(fs, st, CACHE_KEEP_NS);
}

void append_end(struct fs *fs, struct inode_state *st, bool more)
{
	if (!st->appending_ns)
		return;
	if (more) {
		st->appending_until_ns = rt_now_ns() + KEEP_NS;
		keep(fs, st, KEEP_NS);
	} else {
		tree_keep(fs->tree, inode_key(st), 0);
		st->appending_ns = 0;
	}
}
