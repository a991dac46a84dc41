/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of the leaves that this node has seen (docs/nodes/learned.md, "The table"). Each entry
 * has a range of keys and the page of its leaf. The ranges do not overlap. The table only has
 * numbers: an entry proves nothing (guess.c does).
 *
 * It is a treap: a search tree by low keys, and a heap by hashes of the entries' places. So its
 * shape is random, and its depth is a small multiple of log2 of its size. The entries lie in one
 * array, which is allocated at the start (invariant 10). A full table gives up an entry that was
 * not found since the hand passed it last (second chance).
 *
 * Lock: `lock`, a leaf, for all of the table.
 */
#include <errno.h>

#include "engine/tree/tree_internal.h"

#define NO_ENTRY 0u /* place 0 is no entry's */

struct learned_entry {
	struct learned_leaf leaf;
	uint32_t left, right; /* places of the children; of a free entry: the next free one */
	bool found;           /* since the hand passed it last */
};
_Static_assert(sizeof(struct learned_entry) == 64, "an entry is a cache line");

struct learned {
	struct rt_mutex lock;
	struct learned_entry *entry;
	uint32_t places; /* of the array, with place 0 */
	uint32_t root;   /* of the treap */
	uint32_t free;   /* the first free entry that was used before */
	uint32_t unused; /* entries from here on were never used */
	uint32_t hand;   /* the place that loses its entry next */
	_Atomic uint32_t count;
};

int learned_open(struct learned **out, uint64_t size_bytes)
{
	struct learned *l = rt_alloc(sizeof(*l));
	uint64_t places = MIN(size_bytes / sizeof(struct learned_entry), UINT32_MAX);

	if (l && places > 1)
		l->entry = rt_alloc_pages(places * sizeof(*l->entry));
	if (!l || !l->entry) {
		rt_free(l);
		return places > 1 ? -ENOMEM : -EINVAL;
	}
	l->places = (uint32_t)places;
	l->unused = l->hand = 1;
	*out = l;
	return 0;
}

void learned_close(struct learned *l)
{
	if (!l)
		return;
	rt_free_pages(l->entry, l->places * sizeof(*l->entry));
	rt_free(l);
}

unsigned learned_count(struct learned *l)
{
	return atomic_load_explicit(&l->count, memory_order_relaxed);
}

uint64_t learned_bytes(const struct learned *l)
{
	return l->places * sizeof(*l->entry);
}

/* ---- the treap (under the lock) --------------------------------------------------- */

/* The priority of a place: a multiplicative hash. No two places have the same. */
static uint32_t place_priority(uint32_t place)
{
	place ^= place >> 15;
	place *= 0x2c1b3c6du;
	place ^= place >> 12;
	place *= 0x297a2d39u;
	return place ^ place >> 15;
}

/* Cuts the tree at `root` into the entries below the key and the others. */
static void treap_cut(
	struct learned *l, uint32_t root, tree_key key, uint32_t *below, uint32_t *rest)
{
	while (root != NO_ENTRY) {
		struct learned_entry *e = &l->entry[root];

		if (e->leaf.low < key) {
			*below = root;
			below = &e->right;
			root = e->right;
		} else {
			*rest = root;
			rest = &e->left;
			root = e->left;
		}
	}
	*below = *rest = NO_ENTRY;
}

/* Joins two trees. All keys of `a` are below those of `b`. */
static uint32_t treap_join(struct learned *l, uint32_t a, uint32_t b)
{
	uint32_t root, *at = &root;

	while (a != NO_ENTRY && b != NO_ENTRY) {
		if (place_priority(a) > place_priority(b)) {
			*at = a;
			at = &l->entry[a].right;
			a = *at;
		} else {
			*at = b;
			at = &l->entry[b].left;
			b = *at;
		}
	}
	*at = a != NO_ENTRY ? a : b;
	return root;
}

/* Returns the last entry that begins at or below the key. */
static uint32_t treap_floor(const struct learned *l, tree_key key)
{
	uint32_t at = l->root, found = NO_ENTRY;

	while (at != NO_ENTRY) {
		const struct learned_entry *e = &l->entry[at];

		if (e->leaf.low <= key)
			found = at;
		at = e->leaf.low <= key ? e->right : e->left;
	}
	return found;
}

static void treap_insert(struct learned *l, uint32_t place)
{
	uint32_t below, above;

	l->entry[place].left = l->entry[place].right = NO_ENTRY;
	treap_cut(l, l->root, l->entry[place].leaf.low, &below, &above);
	l->root = treap_join(l, treap_join(l, below, place), above);
}

static void treap_remove(struct learned *l, uint32_t place)
{
	uint32_t below, own, above;
	tree_key low = l->entry[place].leaf.low;

	treap_cut(l, l->root, low, &below, &own);
	treap_cut(l, own, low + 1, &own, &above);
	WEFT_ASSERT(own == place);
	l->root = treap_join(l, below, above);
}

/* ---- entries (under the lock) ----------------------------------------------------- */

static void entry_remove(struct learned *l, uint32_t place)
{
	struct learned_entry *e = &l->entry[place];

	treap_remove(l, place);
	e->found = false;
	e->left = l->free;
	l->free = place;
	atomic_fetch_sub_explicit(&l->count, 1, memory_order_relaxed);
}

/* Returns a free place. Takes one from an entry if there is none. */
static uint32_t entry_make(struct learned *l)
{
	uint32_t place;

	if (l->free == NO_ENTRY && l->unused < l->places)
		return l->unused++;
	while (l->free == NO_ENTRY) {
		place = l->hand;
		l->hand = l->hand + 1 < l->places ? l->hand + 1 : 1;
		if (!l->entry[place].found)
			entry_remove(l, place);
		l->entry[place].found = false;
	}
	place = l->free;
	l->free = l->entry[place].left;
	return place;
}

static void entry_enter(struct learned *l, const struct learned_leaf *leaf)
{
	uint32_t place = entry_make(l);

	l->entry[place].leaf = *leaf;
	treap_insert(l, place);
	atomic_fetch_add_explicit(&l->count, 1, memory_order_relaxed);
}

/* Takes the keys of `leaf` from the entries that overlap it. A leaf that was split keeps its lower
 * keys. The higher ones are elsewhere: its page is only noted as the one that had them. */
static void entries_trim(struct learned *l, const struct learned_leaf *leaf)
{
	struct learned_leaf below = {0}, above = {0};
	uint32_t at;

	while ((at = treap_floor(l, leaf->high - 1)) != NO_ENTRY &&
		l->entry[at].leaf.high > leaf->low) {
		struct learned_leaf old = l->entry[at].leaf;

		entry_remove(l, at);
		if (old.high > leaf->high) {
			above = old;
			above.low = leaf->high;
			above.incarnation = 0;
		}
		if (old.low < leaf->low) {
			below = old;
			below.high = leaf->low;
		}
	}
	if (below.pid)
		entry_enter(l, &below);
	if (above.pid)
		entry_enter(l, &above);
}

/* ---- the table --------------------------------------------------------------------- */

bool learned_find(struct learned *l, tree_key key, struct learned_leaf *out)
{
	uint32_t at;
	bool has;

	rt_mutex_lock(&l->lock);
	at = treap_floor(l, key);
	has = at != NO_ENTRY &&
	      tree_key_within(key, l->entry[at].leaf.low, l->entry[at].leaf.high);
	if (has) {
		l->entry[at].found = true;
		*out = l->entry[at].leaf;
	}
	rt_mutex_unlock(&l->lock);
	return has;
}

bool learned_floor(struct learned *l, tree_key key, struct learned_leaf *out)
{
	uint32_t at;

	rt_mutex_lock(&l->lock);
	at = treap_floor(l, key);
	if (at != NO_ENTRY)
		*out = l->entry[at].leaf;
	rt_mutex_unlock(&l->lock);
	return at != NO_ENTRY;
}

void learned_note(struct learned *l, const struct learned_leaf *leaf)
{
	uint32_t at;

	WEFT_ASSERT(leaf->low < leaf->high && leaf->pid);
	rt_mutex_lock(&l->lock);
	at = treap_floor(l, leaf->low);
	if (at != NO_ENTRY && l->entry[at].leaf.low == leaf->low &&
		l->entry[at].leaf.high == leaf->high) {
		l->entry[at].leaf = *leaf;
		l->entry[at].found = true;
	} else {
		entries_trim(l, leaf);
		entry_enter(l, leaf);
	}
	rt_mutex_unlock(&l->lock);
}

void learned_doubt(struct learned *l, tree_key key, page_id pid)
{
	uint32_t at;

	rt_mutex_lock(&l->lock);
	at = treap_floor(l, key);
	if (at != NO_ENTRY && l->entry[at].leaf.pid == pid)
		l->entry[at].leaf.incarnation = 0;
	rt_mutex_unlock(&l->lock);
}

void learned_forget(struct learned *l, tree_key key, page_id pid)
{
	uint32_t at;

	rt_mutex_lock(&l->lock);
	at = treap_floor(l, key);
	if (at != NO_ENTRY && l->entry[at].leaf.pid == pid)
		entry_remove(l, at);
	rt_mutex_unlock(&l->lock);
}
