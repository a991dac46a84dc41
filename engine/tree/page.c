/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One page of the tree: searching and editing.
 *
 * Searches are branch-free and read with relaxed loads. They may run on an image that changes. Then
 * they give any index within their count, and never touch anything outside the page. Edits run
 * under the exclusive latch and go through edit_write and edit_move. So a mini-transaction logs the
 * changed ranges and nothing else (invariant 4).
 *
 * A leaf: slots grow upwards behind the header, values downwards from the page's end. Bytes of
 * dropped values are counted in heap_dead. leaf_compact regains them when room is short.
 */
#include "engine/tree/tree_internal.h"

/* ---- search ---------------------------------------------------------------------- */

unsigned inner_search(const uint8_t *image, unsigned count, tree_key key)
{
	const uint8_t *keys = image + INNER_KEY(0);
	size_t at = 0;
	size_t n = count;

	while (n > 1) {
		size_t half = n / 2;
		size_t rest = n - half;

		__builtin_prefetch(keys + (at + rest / 2) * sizeof(struct disk_key));
		__builtin_prefetch(
			keys + (at + half + rest / 2) * sizeof(struct disk_key));
		at += half &
		      -(size_t)(tree_key_load(image + INNER_KEY(at + half)) <= key);
		n = rest;
	}
	return (unsigned)at;
}

/* The index of the key if keys are spread evenly between the fences, as hashes are. It is only a
 * hint for a prefetch, so any number up to `count` will do. */
static size_t leaf_guess(const uint8_t *image, unsigned count, tree_key key)
{
	tree_key low = tree_key_load(image + NODE_LOW);
	tree_key span = tree_key_load(image + NODE_HIGH) - low;
	tree_key into = key - low;
	uint64_t top = (uint64_t)(span >> 64), bottom = (uint64_t)span;
	unsigned bits = top ? 128 - (unsigned)__builtin_clzll(top)
			    : 64 - (unsigned)__builtin_clzll(bottom | 1);
	unsigned shift = bits > 32 ? bits - 32 : 0; /* the remaining bits fit 32 */

	if (into > span)
		return 0;
	return (size_t)((uint64_t)(into >> shift) * count /
			((uint64_t)(span >> shift) + 1));
}

bool leaf_has_key(const uint8_t *image, page_id pid, tree_key key)
{
	return page_load_u64(image + NODE_MAGIC) == DISK_MAGIC_NODE &&
	       page_load_u64(image + NODE_PID) == pid &&
	       node_counts_load(image).level == 0 &&
	       tree_key_within(key, tree_key_load(image + NODE_LOW),
		       tree_key_load(image + NODE_HIGH));
}

/* Leaves are the level that misses the processor's caches. The lines that the first three steps may
 * touch are fetched together. So are the lines that remain then. */
unsigned leaf_search(const uint8_t *image, unsigned count, tree_key key)
{
	const uint8_t *slots = image + LEAF_SLOT(0);
	size_t at = 0;
	size_t n = count;

	if (n > 16) {
		uintptr_t guess = (uintptr_t)slots +
				  leaf_guess(image, count, key) * LEAF_SLOT_BYTES;

		for (unsigned i = 1; i < 8; i++)
			__builtin_prefetch(slots + (n * i / 8) * LEAF_SLOT_BYTES);
		for (int line = -2; line <= 2; line++)
			__builtin_prefetch(
				(const void *)(guess + (uintptr_t)(line * CACHE_LINE)));
	}
	while (n > 1) {
		size_t half = n / 2;
		bool wide = n > 24;

		at += half &
		      -(size_t)(tree_key_load(slots + (at + half - 1) * LEAF_SLOT_BYTES) <
				key);
		n -= half;
		if (wide && n <= 24) {
			for (size_t i = 0; i < n * LEAF_SLOT_BYTES; i += CACHE_LINE)
				__builtin_prefetch(slots + at * LEAF_SLOT_BYTES + i);
		}
	}
	if (n == 1)
		at += tree_key_load(slots + at * LEAF_SLOT_BYTES) < key;
	return (unsigned)at;
}

/* ---- editing: ways in ------------------------------------------------------------ */

void edit_write(const struct node_edit *e, size_t offset, const void *src, size_t len)
{
	WEFT_ASSERT(offset + len <= PAGE_SIZE);
	if (len == 0)
		return;
	if (e->page)
		mtr_write(e->page, (unsigned)offset, src, (unsigned)len);
	else
		memcpy(e->image + offset, src, len);
}

static void edit_move(const struct node_edit *e, size_t to, size_t from, size_t len)
{
	WEFT_ASSERT(to + len <= PAGE_SIZE && from + len <= PAGE_SIZE);
	if (len == 0)
		return;
	if (e->page)
		mtr_move(e->page, (unsigned)to, (unsigned)from, (unsigned)len);
	else
		memmove(e->image + to, e->image + from, len);
}

static void edit_counts(const struct node_edit *e, struct node_counts c)
{
	edit_write(e, NODE_COUNTS, &c, sizeof(c));
}

static void edit_high_fence(const struct node_edit *e, tree_key high)
{
	struct disk_key k = tree_key_disk(high);

	edit_write(e, NODE_HIGH, &k, sizeof(k));
}

void node_init(uint8_t *image, page_id pid, unsigned level, tree_key low, tree_key high)
{
	struct disk_node node = {
		.magic = DISK_MAGIC_NODE,
		.level = (uint16_t)level,
		.heap_begin = PAGE_SIZE,
		.pid = pid,
		.low_fence = tree_key_disk(low),
		.high_fence = tree_key_disk(high),
	};

	memset(image, 0, PAGE_SIZE);
	memcpy(image, &node, sizeof(node));
}

/* ---- leaves ---------------------------------------------------------------------- */

/* Packs the values at the page's end; the value of slot `drop` (or none: count) is let
 * go. */
static void leaf_compact(const struct node_edit *e, unsigned drop)
{
	struct node_counts c = node_counts_load(e->image);
	uint8_t packed[PAGE_SIZE];
	size_t begin = PAGE_SIZE;

	memcpy(packed, e->image, LEAF_SLOT(c.count));
	for (unsigned i = 0; i < c.count; i++) {
		struct leaf_place place = leaf_place_load(e->image, i);

		if (i == drop)
			place.length = 0;
		begin -= place.length;
		memcpy(packed + begin, e->image + place.offset, place.length);
		place.offset = (uint16_t)begin;
		memcpy(packed + LEAF_PLACE(i), &place, sizeof(place));
	}
	c.heap_begin = (uint16_t)begin;
	c.heap_dead = 0;
	edit_write(e, LEAF_SLOT(0), packed + LEAF_SLOT(0),
		LEAF_SLOT(c.count) - LEAF_SLOT(0));
	edit_write(e, begin, packed + begin, PAGE_SIZE - begin);
	edit_counts(e, c);
}

/* Puts a value into the heap; the room below it is there. */
static struct leaf_place heap_put(
	const struct node_edit *e, struct node_counts *c, const void *value, unsigned len)
{
	c->heap_begin = (uint16_t)(c->heap_begin - len);
	edit_write(e, c->heap_begin, value, len);
	return (struct leaf_place){c->heap_begin, (uint16_t)len};
}

/* Lets go of a value's bytes. */
static void heap_drop(struct node_counts *c, struct leaf_place place)
{
	if (place.offset == c->heap_begin)
		c->heap_begin = (uint16_t)(c->heap_begin + place.length);
	else
		c->heap_dead = (uint16_t)(c->heap_dead + place.length);
}

static void leaf_insert(const struct node_edit *e, unsigned at, tree_key key,
	const void *value, unsigned len)
{
	struct node_counts c = node_counts_load(e->image);
	struct disk_leaf_slot slot = {.key = tree_key_disk(key)};
	struct leaf_place place;

	if (LEAF_SLOT(c.count + 1u) + len > c.heap_begin) {
		leaf_compact(e, c.count);
		c = node_counts_load(e->image);
	}
	WEFT_ASSERT(c.count < LEAF_SLOTS_MAX &&
		    LEAF_SLOT(c.count + 1u) + len <= c.heap_begin);
	place = heap_put(e, &c, value, len);
	slot.offset = place.offset;
	slot.length = place.length;
	edit_move(e, LEAF_SLOT(at + 1), LEAF_SLOT(at),
		(size_t)(c.count - at) * LEAF_SLOT_BYTES);
	edit_write(e, LEAF_SLOT(at), &slot, sizeof(slot));
	c.count++;
	edit_counts(e, c);
}

/* Same length: only the words that differ are written, and logged. */
static void value_patch(
	const struct node_edit *e, size_t offset, const uint8_t *value, size_t len)
{
	size_t i = 0;

	while (i < len) {
		size_t word = MIN(len - i, sizeof(uint64_t));
		size_t start = i;

		while (i < len && memcmp(e->image + offset + i, value + i, word) != 0) {
			i += word;
			word = MIN(len - i, sizeof(uint64_t));
		}
		if (i > start)
			edit_write(e, offset + start, value + start, i - start);
		else
			i += word;
	}
}

static void leaf_replace(
	const struct node_edit *e, unsigned at, const void *value, unsigned len)
{
	struct node_counts c = node_counts_load(e->image);
	struct leaf_place place = leaf_place_load(e->image, at);

	if (len == place.length) {
		value_patch(e, place.offset, value, len);
		return;
	}
	if (len < place.length) {
		c.heap_dead = (uint16_t)(c.heap_dead + place.length - len);
		place.length = (uint16_t)len;
		value_patch(e, place.offset, value, len);
	} else {
		if (LEAF_SLOT(c.count) + len > c.heap_begin) {
			leaf_compact(e, at);
			c = node_counts_load(e->image);
		} else {
			heap_drop(&c, place);
		}
		WEFT_ASSERT(LEAF_SLOT(c.count) + len <= c.heap_begin);
		place = heap_put(e, &c, value, len);
	}
	edit_write(e, LEAF_PLACE(at), &place, sizeof(place));
	edit_counts(e, c);
}

void leaf_set(const struct node_edit *e, tree_key key, const void *value, unsigned len)
{
	struct node_counts c = node_counts_load(e->image);
	unsigned at = leaf_search(e->image, c.count, key);

	WEFT_ASSERT(len <= DISK_VALUE_MAX);
	if (at < c.count && leaf_key_load(e->image, at) == key)
		leaf_replace(e, at, value, len);
	else
		leaf_insert(e, at, key, value, len);
}

void leaf_remove(const struct node_edit *e, tree_key key)
{
	struct node_counts c = node_counts_load(e->image);
	unsigned at = leaf_search(e->image, c.count, key);

	if (at == c.count || leaf_key_load(e->image, at) != key)
		return;
	heap_drop(&c, leaf_place_load(e->image, at));
	edit_move(e, LEAF_SLOT(at), LEAF_SLOT(at + 1),
		(size_t)(c.count - at - 1) * LEAF_SLOT_BYTES);
	c.count--;
	if (c.count == 0) {
		c.heap_begin = PAGE_SIZE;
		c.heap_dead = 0;
	}
	edit_counts(e, c);
}

void leaf_join(uint8_t *left, const uint8_t *right)
{
	struct node_edit e = {.image = left};
	struct node_counts from = node_counts_load(right);

	for (unsigned i = 0; i < from.count; i++) {
		struct leaf_place place = leaf_place_load(right, i);

		leaf_insert(&e, node_counts_load(left).count, leaf_key_load(right, i),
			right + place.offset, place.length);
	}
	edit_high_fence(&e, tree_key_load(right + NODE_HIGH));
}

void leaf_split(
	const struct node_edit *e, uint8_t *right, page_id right_pid, tree_key separator)
{
	struct node_edit to = {.image = right};
	struct node_counts c = node_counts_load(e->image);
	unsigned at = leaf_search(e->image, c.count, separator);

	node_init(right, right_pid, 0, separator, tree_key_load(e->image + NODE_HIGH));
	for (unsigned i = at; i < c.count; i++) {
		struct leaf_place place = leaf_place_load(e->image, i);

		leaf_insert(&to, i - at, leaf_key_load(e->image, i),
			e->image + place.offset, place.length);
		heap_drop(&c, place);
	}
	c.count = (uint16_t)at;
	if (at == 0) {
		c.heap_begin = PAGE_SIZE;
		c.heap_dead = 0;
	}
	edit_counts(e, c);
	edit_high_fence(e, separator);
}

/* ---- inner pages ----------------------------------------------------------------- */

void inner_insert(const struct node_edit *e, unsigned at, tree_key key, page_id child)
{
	struct node_counts c = node_counts_load(e->image);
	struct disk_key k = tree_key_disk(key);

	WEFT_ASSERT(c.count < DISK_INNER_CHILDREN && at <= c.count);
	edit_move(
		e, INNER_KEY(at + 1), INNER_KEY(at), (size_t)(c.count - at) * sizeof(k));
	edit_write(e, INNER_KEY(at), &k, sizeof(k));
	edit_move(e, INNER_CHILD(at + 1), INNER_CHILD(at),
		(size_t)(c.count - at) * sizeof(child));
	edit_write(e, INNER_CHILD(at), &child, sizeof(child));
	c.count++;
	edit_counts(e, c);
}

void inner_remove(const struct node_edit *e, unsigned at)
{
	struct node_counts c = node_counts_load(e->image);
	unsigned behind = c.count - at - 1;

	WEFT_ASSERT(at > 0 && at < c.count); /* the first child's key is the low fence */
	edit_move(e, INNER_KEY(at), INNER_KEY(at + 1), behind * sizeof(struct disk_key));
	edit_move(e, INNER_CHILD(at), INNER_CHILD(at + 1), behind * sizeof(uint64_t));
	c.count--;
	edit_counts(e, c);
}

void inner_split(
	const struct node_edit *e, uint8_t *right, page_id right_pid, unsigned at)
{
	struct node_counts c = node_counts_load(e->image);
	tree_key separator = tree_key_load(e->image + INNER_KEY(at));
	struct node_counts to;

	WEFT_ASSERT(at > 0 && at < c.count);
	node_init(right, right_pid, c.level, separator,
		tree_key_load(e->image + NODE_HIGH));
	to = node_counts_load(right);
	to.count = (uint16_t)(c.count - at);
	memcpy(right + NODE_COUNTS, &to, sizeof(to));
	memcpy(right + INNER_KEY(0), e->image + INNER_KEY(at),
		to.count * sizeof(struct disk_key));
	memcpy(right + INNER_CHILD(0), e->image + INNER_CHILD(at),
		to.count * sizeof(uint64_t));
	c.count = (uint16_t)at;
	edit_counts(e, c);
	edit_high_fence(e, separator);
}

void inner_join(uint8_t *left, const uint8_t *right)
{
	struct node_edit e = {.image = left};
	struct node_counts c = node_counts_load(left);
	struct node_counts from = node_counts_load(right);

	WEFT_ASSERT(c.level == from.level && c.count + from.count <= DISK_INNER_CHILDREN);
	memcpy(left + INNER_KEY(c.count), right + INNER_KEY(0),
		from.count * sizeof(struct disk_key));
	memcpy(left + INNER_CHILD(c.count), right + INNER_CHILD(0),
		from.count * sizeof(uint64_t));
	c.count = (uint16_t)(c.count + from.count);
	edit_counts(&e, c);
	edit_high_fence(&e, tree_key_load(right + NODE_HIGH));
}

/* ---- images that nobody else sees (mkfs) ----------------------------------------- */

void tree_format_root(void *image, page_id pid)
{
	node_init(image, pid, 0, 0, TREE_KEY_MAX);
}

bool tree_format_insert(void *image, struct disk_key key, const void *value, size_t len)
{
	struct node_edit e = {.image = image};
	struct node_counts c = node_counts_load(image);
	tree_key k = tree_key_of(key);
	unsigned at = leaf_search(image, c.count, k);
	unsigned used = leaf_used(c);

	if (len > DISK_VALUE_MAX)
		return false;
	if (at < c.count && leaf_key_load(image, at) == k)
		used -= LEAF_SLOT_BYTES + leaf_place_load(image, at).length;
	if (used + LEAF_SLOT_BYTES + len > LEAF_CAPACITY)
		return false;
	leaf_set(&e, k, value, (unsigned)len);
	return true;
}
