/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernel copies of leaves, by key (docs/nodes/kernel-cache.md).
 *
 * A leaf answers for all keys between its fences, also for keys that are absent. The kernel copy
 * follows items to other leaves: split.c and merge.c see to that.
 */
#include <errno.h>

#include "engine/tree/tree_internal.h"

#define LEAF_TRIES 64u

/* It has been kernel-cached before, mostly: then nothing is latched. */
static bool leaf_kcached(struct tree *t, const struct descent *d, unsigned kinds,
	struct cache_kcopy *out)
{
	if (!guard_kcached(t->cache, &d->node, kinds, out) || !guard_valid(&d->node))
		return false;
	guard_used(t->cache, &d->node);
	return true;
}

int leaf_kcache(struct tree *t, tree_key key, unsigned kinds, struct cache_kcopy *out,
	tree_key *high)
{
	int rc = -EAGAIN;

	for (unsigned tries = 0; tries < LEAF_TRIES; tries++) {
		struct descent d;
		struct guard g;

		rc = tree_find_leaf(t, key, &d);
		if (rc)
			return rc;
		*high = d.high;
		if (leaf_kcached(t, &d, kinds, out))
			return 0;
		rc = guard_shared(t->cache, d.pid, 0, &g);
		if (rc == 0 && (d.guessed ? tree_guess_stands(&d, &g, key)
					  : leaf_has_key(g.image, d.pid, key))) {
			*high = tree_key_load(g.image + NODE_HIGH);
			rc = guard_kcache(t->cache, &g, kinds, 0, 0, out);
			guard_release(t->cache, &g);
			return rc;
		}
		guard_release(t->cache, &g);
		tree_back_off(tries); /* it has left the tree, or was split */
	}
	return rc ? rc : -EAGAIN;
}

int tree_kcache(struct tree *t, struct disk_key from, struct disk_key to, unsigned kinds,
	struct cache_kcopy *out, unsigned max)
{
	tree_key at = tree_key_of(from), end = tree_key_of(to);
	unsigned count = 0;

	while (at <= end) {
		tree_key high;
		int rc;

		if (count == max)
			return -E2BIG;
		rc = leaf_kcache(t, at, kinds, &out[count], &high);
		if (rc)
			return rc;
		count++;
		if (high == TREE_KEY_MAX)
			break;
		at = high;
	}
	return (int)count;
}

static uint64_t key_ino(tree_key key)
{
	return (uint64_t)(key >> 72);
}

static bool is_leaf(const uint8_t *image)
{
	return page_load_u64(image + NODE_MAGIC) == DISK_MAGIC_NODE &&
	       node_counts_load(image).level == 0;
}

bool tree_leaf_range(const void *image, struct tree_leaf_range *out)
{
	if (!is_leaf(image))
		return false;
	out->low = tree_key_disk(tree_key_load((const uint8_t *)image + NODE_LOW));
	out->high = tree_key_disk(tree_key_load((const uint8_t *)image + NODE_HIGH));
	return true;
}

void tree_leaf_items(const void *image, tree_item_visit visit, void *arg)
{
	struct node_counts c = node_counts_load(image);

	if (!is_leaf(image))
		return;
	for (unsigned i = 0; i < MIN(c.count, LEAF_SLOTS_MAX); i++) {
		struct leaf_place place = leaf_place_load(image, i);

		if (place.offset + place.length <= PAGE_SIZE)
			visit(arg, tree_key_disk(leaf_key_load(image, i)),
				(const uint8_t *)image + place.offset, place.length);
	}
}

void tree_leaf_inodes(const void *image, tree_ino_visit visit, void *arg)
{
	struct node_counts c = node_counts_load(image);
	uint64_t last;

	if (!is_leaf(image))
		return;
	/* an inode whose items end in the leaf before: this leaf says which of its items are
	 * absent */
	last = key_ino(tree_key_load((const uint8_t *)image + NODE_LOW));
	visit(arg, last);
	for (unsigned i = 0; i < MIN(c.count, LEAF_SLOTS_MAX); i++) {
		uint64_t ino = key_ino(leaf_key_load(image, i));

		if (ino == last)
			continue;
		visit(arg, ino);
		last = ino;
	}
}
