/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Appends of several calls: a kernel sends a large write(2) in pieces (docs/nodes/semantics.md,
 * "Operations").
 *
 * Keeps: other nodes do not get the inode's leaf between the commit of one call and the next call.
 * Without the leaf, no node can move the end. The leaf is kept for KEEP_NS between two calls, and
 * for CACHE_KEEP_NS in all. A longer append is a stream, for which the leaf is not kept. Best
 * effort, as cache_keep is.
 *
 * All functions here are called under `alloc_gate`.
 */
#include "fs/ops/data_internal.h"

#define KEEP_NS    20000000ull
#define YIELD_NS   100000ull
#define YIELDS_MAX 20u

static struct disk_key inode_key(const struct inode_state *st)
{
	return disk_key(st->ino, DISK_ITEM_INODE, 0);
}

static void keep_leaf(struct fs *fs, const struct inode_state *st, uint64_t for_ns)
{
	uint64_t now;

	if (likely(!st->appending_ns))
		return;
	now = rt_now_ns();
	if (now - st->appending_ns < CACHE_KEEP_NS)
		tree_keep(fs->tree, inode_key(st), now + for_ns);
}

/* Gives the leaf to a node that the last append has kept waiting. Otherwise the next append might
 * have to give the leaf up before its end. */
static void yield_leaf(struct fs *fs, const struct inode_state *st)
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
	keep_leaf(fs, st, CACHE_KEEP_NS);
	if (!more || st->appending_ns)
		return false;
	yield_leaf(fs, st);
	return true;
}

/* For the first call the time begins here, because getting the leaf may have taken long. */
void append_commits(struct fs *fs, struct inode_state *st, bool first)
{
	if (first)
		st->appending_ns = rt_now_ns();
	keep_leaf(fs, st, CACHE_KEEP_NS);
}

void append_end(struct fs *fs, struct inode_state *st, bool more)
{
	if (!st->appending_ns)
		return;
	if (more) {
		st->appending_until_ns = rt_now_ns() + KEEP_NS;
		keep_leaf(fs, st, KEEP_NS);
	} else {
		tree_keep(fs->tree, inode_key(st), 0);
		st->appending_ns = 0;
	}
}
