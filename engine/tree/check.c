/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks that a page is a sound page of the tree, by itself (invariant 9).
 *
 * After an image has passed, every function of page.c may trust its counts, offsets and order.
 * Checks that need two pages (fences against the parent's keys, levels) are made by descents as
 * they go, and by fsck in full.
 */
#include <errno.h>
#include <inttypes.h>

#include "engine/tree/tree_internal.h"

#define BAD(...) weft_error(err, -EUCLEAN, __VA_ARGS__)

/* Marks [offset, offset + length) of the page; false if a byte was marked already. */
static bool bytes_claim(uint64_t map[PAGE_SIZE / 64], unsigned offset, unsigned length)
{
	while (length > 0) {
		unsigned bit = offset % 64;
		unsigned n = MIN(length, 64 - bit);
		uint64_t mask = (n == 64 ? ~0ull : (1ull << n) - 1) << bit;

		if (map[offset / 64] & mask)
			return false;
		map[offset / 64] |= mask;
		offset += n;
		length -= n;
	}
	return true;
}

static int check_leaf(
	const uint8_t *image, const struct disk_node *n, struct weft_error *err)
{
	uint64_t claimed[PAGE_SIZE / 64] = {0};
	unsigned used = 0;

	if (n->count > LEAF_SLOTS_MAX || n->heap_begin > PAGE_SIZE ||
		LEAF_SLOT(n->count) > n->heap_begin)
		return BAD("tree page %#" PRIx64 ": %u slots reach into values at %u",
			n->pid, n->count, n->heap_begin);
	for (unsigned i = 0; i < n->count; i++) {
		struct leaf_place place = leaf_place_load(image, i);

		/* An empty value uses no byte, so its place says nothing. */
		if (place.length > DISK_VALUE_MAX ||
			place.offset + place.length > PAGE_SIZE ||
			(place.length > 0 && place.offset < n->heap_begin))
			return BAD("tree page %#" PRIx64
				   ": value %u (%u, %u bytes) out of bounds",
				n->pid, i, place.offset, place.length);
		if (!bytes_claim(claimed, place.offset, place.length))
			return BAD("tree page %#" PRIx64 ": value %u overlaps another",
				n->pid, i);
		used += place.length;
	}
	if (used + n->heap_dead != PAGE_SIZE - n->heap_begin)
		return BAD("tree page %#" PRIx64
			   ": %u bytes used and %u dead are not the heap",
			n->pid, used, n->heap_dead);
	return 0;
}

static int check_inner(
	const uint8_t *image, const struct disk_node *n, struct weft_error *err)
{
	if (n->count == 0 || n->count > DISK_INNER_CHILDREN)
		return BAD("tree page %#" PRIx64 ": %u children", n->pid, n->count);
	if (tree_key_load(image + INNER_KEY(0)) != tree_key_of(n->low_fence))
		return BAD(
			"tree page %#" PRIx64 ": first key is not the low fence", n->pid);
	for (unsigned i = 0; i < n->count; i++) {
		page_id child = page_load_u64(image + INNER_CHILD(i));

		if (child == PID_NONE || child == n->pid ||
			pid_slot(child) == DISK_CATALOG_SLOT)
			return BAD("tree page %#" PRIx64 ": child %u is %#" PRIx64,
				n->pid, i, child);
	}
	return 0;
}

int tree_check_page(const void *page, page_id pid, struct weft_error *err)
{
	const uint8_t *image = page;
	struct disk_node n;
	tree_key low, high, last = 0;

	memcpy(&n, image, sizeof(n));
	low = tree_key_of(n.low_fence);
	high = tree_key_of(n.high_fence);
	if (n.magic != DISK_MAGIC_NODE)
		return BAD("page %#" PRIx64 " is not a tree page (magic %#" PRIx64 ")",
			pid, n.magic);
	if (n.pid != pid)
		return BAD("tree page %#" PRIx64 " says it is %#" PRIx64, pid, n.pid);
	if (n.level >= TREE_LEVELS_MAX)
		return BAD("tree page %#" PRIx64 ": level %u", pid, n.level);
	if (low >= high)
		return BAD("tree page %#" PRIx64 ": empty range of keys", pid);
	if (n.level > 0 ? check_inner(image, &n, err) : check_leaf(image, &n, err))
		return -EUCLEAN;
	for (unsigned i = 0; i < n.count; i++) {
		tree_key key = n.level > 0 ? tree_key_load(image + INNER_KEY(i))
					   : leaf_key_load(image, i);

		/* The highest key of all is never stored: it stands for "no bound". */
		if (key < low || key >= high || (i > 0 && key <= last))
			return BAD(
				"tree page %#" PRIx64 ": key %u is out of order", pid, i);
		last = key;
	}
	return 0;
}
