/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Splits by the home of the page that is split, so that the new page is of the same shard
 * (docs/many-nodes.md, "Leaves and nodes"): what is above the leaves of all nodes rests with the root, and
 * not with who happened to have it split.
 *
 * Best effort: who asks does it itself where the home does not answer, or cannot. So who serves waits
 * for no node that is away, and asks nobody. It may wait for space, which has a class of calls of its own.
 */
#include <errno.h>

#include "engine/tree/tree_internal.h"

/* The first word of an ask is kind, level and whether it is privileged; the other two are the key. */
#define ASK_LEVEL      8
#define ASK_PRIVILEGED 16
#define ASK_BITS       17
#define ASK_FIELD      0xffu
/* A home that is just being opened is asked again: for so long pages would be of other shards for good. */
#define ASK_TRIES 20u
#define ASK_NS    10000000ull

int tree_ask_split(struct tree *t, unsigned home, enum tree_split_kind kind, tree_key key,
	unsigned level, bool privileged)
{
	uint64_t ask[NET_CALL_WORDS] = {(uint64_t)kind | (uint64_t)level << ASK_LEVEL |
						(uint64_t)privileged << ASK_PRIVILEGED,
		(uint64_t)(key >> 64), (uint64_t)key};
	uint64_t answer[NET_CALL_WORDS];
	int r = t->calls ? -EAGAIN : -ENOTCONN;

	for (unsigned i = 0; r == -EAGAIN && i < ASK_TRIES; i++) {
		if (i > 0)
			rt_sleep_ns(ASK_NS);
		r = net_call(t->calls, home, NET_CALL_TREE_SPLIT, ask, answer);
	}
	if (r == 0)
		tree_count(t, split_elsewhere);
	return r;
}

static int serve_split(void *owner, unsigned from, const uint64_t ask[NET_CALL_WORDS],
	uint64_t answer[NET_CALL_WORDS])
{
	struct tree *t = owner;
	unsigned kind = ask[0] & ASK_FIELD, level = ask[0] >> ASK_LEVEL & ASK_FIELD;
	struct disk_key at = {.high = ask[1], .low = ask[2]};
	tree_key key = tree_key_of(at), end;
	int r;

	if (kind > TREE_SPLIT_AT || ask[0] >> ASK_BITS || level >= TREE_LEVELS_MAX ||
		(kind == TREE_SPLIT_ROOM && level == 0) ||
		(kind == TREE_SPLIT_AT && (level > 0 || !disk_key_divides(at))))
		return -EINVAL;
	r = tree_reach(t, key, level, &end);
	if (r == -ENOENT) /* it has no page of that level now */
		return 0;
	return r ? r
		 : tree_split_for(t, (enum tree_split_kind)kind, key, level,
			   ask[0] >> ASK_PRIVILEGED & 1);
}

void tree_connect(struct tree *t, struct net_calls *calls)
{
	t->calls = calls;
	net_calls_serve(calls, NET_CALL_TREE_SPLIT, serve_split, t);
}

void tree_disconnect(struct tree *t)
{
	if (t->calls)
		net_calls_serve(t->calls, NET_CALL_TREE_SPLIT, NULL, NULL);
}
