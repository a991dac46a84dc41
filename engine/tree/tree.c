/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opening and closing a tree, and its numbers.
 *
 * The tree takes all its memory here (invariant 10): hints for inner frames, transaction objects,
 * counters. The exception is transactions that wait for nodes which are away (txn.c).
 */
#include <errno.h>

#include "engine/tree/tree_internal.h"

_Static_assert(
	sizeof(struct tree_counters) % sizeof(uint64_t) == 0, "counters are words");

int tree_open(struct tree **out, struct cache *cache, struct space *space, page_id root,
	struct weft_error *err)
{
	struct tree *t = rt_alloc(sizeof(*t));
	struct descent d;
	int rc;

	if (!t)
		return weft_error(err, -ENOMEM, "no memory for the tree");
	t->cache = cache;
	t->space = space;
	t->root = root;
	t->shards = cache_shards(cache);
	t->step = disk_level_step(store_superblock(cache_store(cache))->flags);
	t->frame_count = (uint32_t)cache_frame_count(cache);
	rc = tree_hints_open(t);
	if (rc == 0)
		rc = txn_pool_open(t);
	if (rc) {
		weft_error(err, rc, "no memory for the tree's hints and transactions");
		goto out_free;
	}
	/* Only the root is checked now. So a volume without a tree is refused at once, and one with
	 * damage further down is not. */
	rc = tree_descend(t, 0, TREE_LEVELS_MAX - 1, &d);
	if (rc == -ENOENT) { /* few trees are that high */
		atomic_store(&t->height, d.counts.level / t->step + 1u);
		rc = 0;
	}
	if (rc) {
		weft_error(err, rc,
			"cannot read the root of the metadata tree, page %#llx: %s",
			(unsigned long long)root,
			rc == -EUCLEAN ? "it is damaged; run fsck.weft"
				      : "error of the store");
		goto out_free;
	}
	*out = t;
	return 0;

out_free:
	txn_pool_close(t);
	tree_hints_close(t);
	rt_free(t);
	return rc;
}

void tree_close(struct tree *t)
{
	if (!t)
		return;
	tree_disconnect(t);
	learned_close(t->learned);
	txn_pool_close(t);
	tree_hints_close(t);
	rt_free(t);
}

struct cache *tree_cache(struct tree *t)
{
	return t->cache;
}

struct tree_counters *tree_counters(struct tree *t)
{
	const size_t words = sizeof(struct tree_counters) / sizeof(uint64_t);
	_Atomic uint64_t *sum = (_Atomic uint64_t *)&t->sum;

	for (size_t w = 0; w < words; w++) {
		uint64_t total = 0;

		for (unsigned i = 0; i < TREE_STRIPES; i++)
			total += atomic_load_explicit(
				(_Atomic uint64_t *)&t->stripe[i].counters + w,
				memory_order_relaxed);
		atomic_store_explicit(&sum[w], total, memory_order_relaxed);
	}
	return &t->sum;
}

unsigned tree_learned(struct tree *t)
{
	return t->learned ? learned_count(t->learned) : 0;
}

uint64_t tree_learned_bytes(struct tree *t)
{
	return t->learned ? learned_bytes(t->learned) : 0;
}

unsigned tree_height(struct tree *t)
{
	struct guard g;

	while (guard_try_optimistic(t->cache, t->root, NULL, &g) == 0) {
		unsigned height = node_counts_load(g.image).level / t->step + 1u;

		if (guard_valid(&g)) {
			atomic_store(&t->height, height);
			break;
		}
	}
	return atomic_load(&t->height);
}
