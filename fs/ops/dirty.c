/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sets of file blocks that fsync must check.
 *
 * A set may name more blocks than are dirty, never fewer. A clean page costs fsync one look. The
 * number of ranges is bounded, for one set and for all sets of the table (invariant 10). Past
 * DIRTY_MAX ranges, or without memory, a set becomes the one range that covers all. The caller
 * serialises.
 */
#include "fs/ops/data_internal.h"

static struct dirty_range *dirty_ranges_of(struct dirty_set *set)
{
	return set->range ? set->range : set->inlined;
}

/* Takes ranges on the heap, within the limit of all sets. */
static bool heap_take(struct dirty_set *set, uint32_t count)
{
	if (!set->heap)
		return true;
	if (atomic_fetch_add_explicit(set->heap, count, memory_order_relaxed) + count <=
		DIRTY_HEAP_MAX)
		return true;
	atomic_fetch_sub_explicit(set->heap, count, memory_order_relaxed);
	return false;
}

static void heap_give(struct dirty_set *set, uint32_t count)
{
	if (set->heap)
		atomic_fetch_sub_explicit(set->heap, count, memory_order_relaxed);
}

static void ranges_free(struct dirty_set *set)
{
	if (set->range)
		heap_give(set, set->capacity);
	rt_free(set->range);
	set->range = NULL;
	set->capacity = 0;
}

/* Makes room for one more range. */
static bool dirty_set_grow(struct dirty_set *set)
{
	uint32_t capacity = set->range ? set->capacity : DIRTY_INLINE;
	struct dirty_range *more;

	if (set->count < capacity)
		return true;
	if (capacity >= DIRTY_MAX)
		return false;
	capacity = capacity < 16 ? 16 : capacity * 2;
	if (!heap_take(set, capacity))
		return false;
	more = rt_alloc(capacity * sizeof(*more));
	if (!more) {
		heap_give(set, capacity);
		return false;
	}
	memcpy(more, dirty_ranges_of(set), set->count * sizeof(*more));
	ranges_free(set);
	set->range = more;
	set->capacity = capacity;
	return true;
}

/* Returns the index of the first range that ends at or behind `block`. */
static uint32_t find_range(const struct dirty_set *set, uint64_t block)
{
	const struct dirty_range *r = dirty_ranges(set);
	uint32_t low = 0, high = set->count;

	while (low < high) {
		uint32_t middle = (low + high) / 2;

		if (r[middle].end < block)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

bool dirty_add_exact(struct dirty_set *set, uint64_t first, uint64_t end)
{
	struct dirty_range *r = dirty_ranges_of(set);
	uint32_t at = find_range(set, first), upto = at;

	WEFT_ASSERT(first < end);
	while (upto < set->count && r[upto].first <= end) {
		first = MIN(first, r[upto].first);
		end = MAX(end, r[upto].end);
		upto++;
	}
	if (upto == at) {
		if (!dirty_set_grow(set))
			return false;
		r = dirty_ranges_of(set);
		memmove(r + at + 1, r + at, (set->count - at) * sizeof(*r));
		set->count++;
	} else {
		memmove(r + at + 1, r + upto, (set->count - upto) * sizeof(*r));
		set->count -= upto - at - 1;
	}
	r[at] = (struct dirty_range){first, end};
	return true;
}

void dirty_add(struct dirty_set *set, uint64_t first, uint64_t end)
{
	struct dirty_range *r;

	if (dirty_add_exact(set, first, end))
		return;
	r = dirty_ranges_of(set);
	r[0].first = MIN(first, r[0].first);
	r[0].end = MAX(end, r[set->count - 1].end);
	set->count = 1;
}

void dirty_move(struct dirty_set *to, struct dirty_set *from)
{
	*to = *from;
	*from = (struct dirty_set){.heap = to->heap};
}

void dirty_merge(struct dirty_set *to, struct dirty_set *from)
{
	const struct dirty_range *r = dirty_ranges(from);

	if (to->count == 0) {
		dirty_clear(to);
		dirty_move(to, from);
		return;
	}
	for (uint32_t i = 0; i < from->count; i++)
		dirty_add(to, r[i].first, r[i].end);
	dirty_clear(from);
}

void dirty_cut(struct dirty_set *set, uint64_t first)
{
	struct dirty_range *r = dirty_ranges_of(set);

	while (set->count > 0 && r[set->count - 1].first >= first)
		set->count--;
	if (set->count > 0 && r[set->count - 1].end > first)
		r[set->count - 1].end = first;
	if (set->count == 0)
		dirty_clear(set);
}

void dirty_clear(struct dirty_set *set)
{
	ranges_free(set);
	set->count = 0;
}
