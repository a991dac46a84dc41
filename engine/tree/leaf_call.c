/* SPDX-License-Identifier: Apache-2.0 */
/*
 * LEAF: asking another node for the place of a key's leaf (docs/nodes/learned.md, "LEAF"; XStore
 * §5.2.1, where an invalid speculation is shipped to the server).
 *
 * An answer is a guess: the asking node proves it. It must not name an incarnation that a crash of
 * the asked node could give to a file. So the log is durable to the last change of the page above
 * the leaf before the answer is sent.
 */
#include <errno.h>

#include "engine/tree/tree_internal.h"

/* Words of an ask, and of its answer. */
enum { ASK_KEY_HIGH, ASK_KEY_LOW };
enum { TOLD_PID, TOLD_INCARNATION, TOLD_HOME };

/* The first node that is asked may name another one. */
#define ASK_HOPS 2u
/* Lost races before a server gives up. */
#define SERVE_TRIES 64u

int tree_ask_leaf(
	struct tree *t, unsigned home, tree_key key, struct learned_leaf *guess)
{
	uint64_t ask[NET_CALL_WORDS] = {
		[ASK_KEY_HIGH] = (uint64_t)(key >> 64), [ASK_KEY_LOW] = (uint64_t)key};
	uint64_t answer[NET_CALL_WORDS] = {0};
	int rc = -EREMOTE;

	for (unsigned hop = 0; rc == -EREMOTE && hop < ASK_HOPS; hop++) {
		if (!t->calls || home >= NET_NODES_MAX)
			return -ENOENT;
		tree_count(t, leaf_calls);
		rc = net_call(t->calls, home, NET_CALL_LEAF, ask, answer);
		home = (unsigned)MIN(answer[TOLD_HOME], COHERENCE_NO_NODE);
	}
	if (rc)
		return rc;
	*guess = (struct learned_leaf){
		.pid = answer[TOLD_PID], .incarnation = answer[TOLD_INCARNATION]};
	return guess->incarnation && shards_have(t->shards, guess->pid, 1) ? 0 : -EPROTO;
}

/* ---- serving ------------------------------------------------------------------------ */

/* Reads the incarnation of a page that is the leaf, or was it a moment ago, without fetching it.
 * The store's may be an earlier one. Returns -EREMOTE if another node must be asked. Waits for the
 * store. */
static int read_incarnation(struct tree *t, page_id pid, uint64_t *out)
{
	struct store *store = cache_store(t->cache);
	struct page_descriptor stored;
	struct guard g;
	int rc;

	if (guard_try_shared(t->cache, pid, 0, &g) == 0) {
		*out = g.frame->incarnation;
		guard_release(t->cache, &g);
		return 0;
	}
	if (pid_shard(pid) != store_superblock(store)->shard)
		return -EREMOTE;
	rc = store_descriptor_get(store, pid, &stored);
	if (rc == 0)
		*out = stored.incarnation;
	return rc;
}

/* Tells the place of the leaf if the pages above are here. Returns -EAGAIN if they are not, or
 * after a lost race. */
static int tell_leaf(struct tree *t, tree_key key, struct descent *d,
	uint64_t answer[NET_CALL_WORDS])
{
	int rc = tree_descend_once(t, key, 0, d);
	uint64_t incarnation = 0;
	lsn_t lsn;

	if (rc && rc != -EAGAIN)
		return rc;
	if (rc && (d->missing == PID_NONE || tree_misses_above(t, d)))
		return -EAGAIN;
	if (d->parent.kind == GUARD_NONE) /* the root is found without help */
		return rc ? rc : -ENOENT;
	if (rc && d->counts.level > t->step) /* a page above is latched */
		return -EAGAIN;
	rc = read_incarnation(t, d->pid, &incarnation);
	lsn = guard_lsn(&d->parent);
	/* it has named the leaf all the time */
	if (!guard_valid(&d->parent))
		return -EAGAIN;
	if (rc == -EREMOTE)
		answer[TOLD_HOME] = cache_home(t->cache, d->pid);
	if (rc)
		return rc;
	answer[TOLD_PID] = d->pid;
	answer[TOLD_INCARNATION] = incarnation;
	return incarnation ? log_flush(cache_log(t->cache), lsn) : -ENOENT;
}

static int serve_leaf(void *owner, unsigned from, const uint64_t ask[NET_CALL_WORDS],
	uint64_t answer[NET_CALL_WORDS])
{
	struct tree *t = owner;
	tree_key key = tree_key_of((struct disk_key){
		.high = ask[ASK_KEY_HIGH], .low = ask[ASK_KEY_LOW]});
	int rc = -EAGAIN;

	for (unsigned attempt = 0; rc == -EAGAIN && attempt < SERVE_TRIES; attempt++) {
		struct descent d;
		struct page_ref missing;

		rc = tell_leaf(t, key, &d, answer);
		if (rc != -EAGAIN)
			break;
		tree_back_off(attempt);
		missing = (struct page_ref){.pid = d.missing};
		if (tree_misses_above(t, &d) &&
			(rc = cache_fetch_near(t->cache, &missing, 1)) == 0)
			rc = -EAGAIN;
	}
	return rc;
}

void tree_serve_leaf(struct tree *t, bool serves)
{
	net_calls_serve(t->calls, NET_CALL_LEAF, serves ? serve_leaf : NULL, t);
}
