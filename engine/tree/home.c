/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Splits by the home of the page that is split, so that the new page is of the same shard
 * (docs/nodes/semantics.md, "Leaves and nodes"). The pages above the leaves of all nodes then rest
 * with the root, and not with the node that needed the split.
 *
 * Best effort: if the home does not answer, or cannot split, the asking node does it itself. So a
 * server waits for no node that is away, and asks no other node. It may wait for space, which has a
 * class of calls of its own.
 */
#include <errno.h>

#include "engine/tree/tree_internal.h"

#define ABOVE_LEAVES 2u /* levels fall by two from a page to its children */

/* The first word of an ask is kind, level and whether it is privileged; the other two are the
 * key. */
#define ASK_LEVEL      8
#define ASK_PRIVILEGED 16
#define ASK_BITS       17
#define ASK_FIELD      0xffu
/* A home that is just being opened is asked again: for so long pages would be of other shards for
 * good. */
#define ASK_TRIES 20u
#define ASK_NS    10000000ull

int tree_ask_split(struct tree *t, unsigned home, enum tree_split_kind kind, tree_key key,
	unsigned level, bool privileged)
{
	uint64_t ask[NET_CALL_WORDS] = {(uint64_t)kind | (uint64_t)level << ASK_LEVEL |
						(uint64_t)privileged << ASK_PRIVILEGED,
		(uint64_t)(key >> 64), (uint64_t)key};
	uint64_t answer[NET_CALL_WORDS];
	int rc = t->calls ? -EAGAIN : -ENOTCONN;

	for (unsigned i = 0; rc == -EAGAIN && i < ASK_TRIES; i++) {
		if (i > 0)
			rt_sleep_ns(ASK_NS);
		rc = net_call(t->calls, home, NET_CALL_TREE_SPLIT, ask, answer);
	}
	if (rc == 0)
		tree_count(t, split_elsewhere);
	return rc;
}

static int serve_split(void *owner, unsigned from, const uint64_t ask[NET_CALL_WORDS],
	uint64_t answer[NET_CALL_WORDS])
{
	struct tree *t = owner;
	unsigned kind = ask[0] & ASK_FIELD, level = ask[0] >> ASK_LEVEL & ASK_FIELD;
	struct disk_key at = {.high = ask[1], .low = ask[2]};
	tree_key key = tree_key_of(at), end;
	int rc;

	if (kind > TREE_SPLIT_AT || ask[0] >> ASK_BITS || level >= TREE_LEVELS_MAX ||
		(kind == TREE_SPLIT_ROOM && level == 0) ||
		(kind == TREE_SPLIT_AT && (level > 0 || !disk_key_divides(at))))
		return -EINVAL;
	rc = tree_reach(t, key, level, &end);
	if (rc == -ENOENT) /* it has no page of that level now */
		return 0;
	return rc ? rc
		 : tree_split_for(t, (enum tree_split_kind)kind, key, level,
			   ask[0] >> ASK_PRIVILEGED & 1);
}

/* ---- a store that will be away ------------------------------------------------------- */

/* Bounds of one call: pages above the leaves, leaves of the root directory, time. */
#define NEAR_PAGES  65536u
#define NEAR_LEAVES 64u
#define NEAR_NS     5000000000ull

/* Brings in the pages of that level between the keys, at most `max`. Passes over pages that are
 * away. */
static void bring_near(struct tree *t, tree_key from, tree_key to, unsigned level,
	unsigned max, uint64_t until_ns)
{
	for (unsigned i = 0; i < max && from < to && rt_now_ns() < until_ns; i++) {
		tree_key end;
		int rc = tree_reach(t, from, level, &end);

		if ((rc && rc != -EHOSTUNREACH && rc != -EAGAIN) || end <= from)
			return;
		from = end;
	}
}

/* Without the pages above the leaves, and the root directory, a node does not find its own files.
 * They are copied here while their home still gives them. */
static int serve_near(void *owner, unsigned from, const uint64_t ask[NET_CALL_WORDS],
	uint64_t answer[NET_CALL_WORDS])
{
	struct tree *t = owner;
	unsigned frames = (unsigned)cache_frame_count(t->cache);
	uint64_t until_ns = rt_now_ns() + NEAR_NS;
	tree_key root = tree_key_of((struct disk_key){.high = DISK_INO_ROOT << 8});
	tree_key behind =
		tree_key_of((struct disk_key){.high = (DISK_INO_ROOT + 1) << 8});

	bring_near(t, root, behind, 0, MIN(NEAR_LEAVES, frames / 16), until_ns);
	bring_near(
		t, 0, TREE_KEY_MAX, ABOVE_LEAVES, MIN(NEAR_PAGES, frames / 8), until_ns);
	return 0;
}

void tree_connect(struct tree *t, struct net_calls *calls)
{
	t->calls = calls;
	net_calls_serve(calls, NET_CALL_TREE_SPLIT, serve_split, t);
	net_calls_serve(calls, NET_CALL_TREE_NEAR, serve_near, t);
	tree_serve_leaf(t, true);
}

void tree_disconnect(struct tree *t)
{
	if (!t->calls)
		return;
	net_calls_serve(t->calls, NET_CALL_TREE_SPLIT, NULL, NULL);
	net_calls_serve(t->calls, NET_CALL_TREE_NEAR, NULL, NULL);
	tree_serve_leaf(t, false);
}
