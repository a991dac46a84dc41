/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading items: one by key, the next, the last before, all of a range.
 *
 * Every leaf is read optimistically: copied out with clamped bounds, then validated, and only then
 * believed. Fence keys lead from leaf to leaf, so no page points sideways. A reading that crosses
 * leaves keeps the latch words of all of them, and checks at the end that all stand. So its result
 * is of one moment. Transactions keep them until commit.
 */
#include <errno.h>
#include <stdlib.h>

#include "engine/tree/tree_internal.h"

/* The most leaves that one reading outside transactions crosses as one moment. Empty leaves are
 * merged away, so more than a few in a row are rare. A longer way is checked leaf by leaf only. */
#define CROSSED_MAX 32

/* Pages asked for ahead of a scan that met a missing one. */
#define SCAN_AHEAD 8

/* ---- read sets ------------------------------------------------------------------- */

static bool guard_same(const struct guard *a, const struct guard *b)
{
	return ((a->latch ^ b->latch) & LATCH_VERSION_MASK) == 0;
}

/* Adds a leaf that has just been validated, and checks that the others stand. */
static int read_set_add(struct read_set *rs, const struct guard *g)
{
	bool known = false;

	for (unsigned i = 0; i < rs->count; i++) {
		const struct guard *seen = &rs->seen[i];

		if (seen->frame == g->frame) {
			if (!guard_same(seen, g))
				return -EAGAIN;
			known = true;
		} else if (!guard_valid(seen)) {
			return -EAGAIN;
		}
	}
	if (known)
		return 0;
	if (rs->count == rs->max)
		return -E2BIG;
	rs->seen[rs->count] = *g;
	rs->seen[rs->count++].kind = GUARD_OPTIMISTIC;
	return 0;
}

/* An operation's items lie in a few leaves, which it comes back to. */
#define FIND_LAST 4u

/* A leaf that has not changed since it was seen still covers the keys between its fences. */
bool read_set_find(const struct read_set *rs, tree_key key, struct descent *d)
{
	for (unsigned n = 1; n <= MIN(rs->count, FIND_LAST); n++) {
		const struct guard *seen = &rs->seen[rs->count - n];
		const uint8_t *image = seen->image;

		d->low = tree_key_load(image + NODE_LOW);
		d->high = tree_key_load(image + NODE_HIGH);
		if (!tree_key_within(key, d->low, d->high))
			continue;
		d->pid = page_load_u64(image + NODE_PID);
		d->counts = node_counts_load(image);
		if (!guard_valid(seen))
			continue;
		d->node = *seen;
		d->parent.kind = d->held.kind = GUARD_NONE;
		d->waited = false;
		d->guessed = 0;
		return true;
	}
	return false;
}

/* The leaf to read from. The leaf that the set names may be lost: then a descent finds it. */
static int leaf_open(struct tree *t, const struct read_set *rs, tree_key key,
	unsigned attempt, struct descent *d)
{
	if (rs && attempt == 0 && read_set_find(rs, key, d))
		return 0;
	return tree_leaf_open(t, key, attempt, d);
}

/* Ends the reading of a leaf. -EAGAIN with *lost: only this leaf, read it again. */
static int leaf_finish(struct tree *t, struct read_set *rs, struct descent *d, bool *lost)
{
	struct guard seen = d->node;

	*lost = !(rs && rs->keeps ? tree_leaf_close(t, d) : tree_leaf_done(t, d));
	if (unlikely(*lost)) {
		tree_count(t, restarts);
		return -EAGAIN;
	}
	return rs ? read_set_add(rs, &seen) : 0;
}

/* ---- values ---------------------------------------------------------------------- */

/* Copies a value out. Its length; -ERANGE; -EUCLEAN for a place that no sound page has.
 */
static int value_copy(const uint8_t *image, unsigned index, void *buf, size_t cap)
{
	struct leaf_place place = leaf_place_load(image, index);

	if (place.length > DISK_VALUE_MAX || place.offset + place.length > PAGE_SIZE)
		return -EUCLEAN;
	if (place.length > cap)
		return -ERANGE;
	page_copy_out(buf, image + place.offset, place.length);
	return place.length;
}

/* With e: also whether its kinds were kernel-cached before it was read. */
static int read_leaf(struct tree *t, struct read_set *rs, struct tree_kcopy *e,
	tree_key key, void *buf, size_t cap)
{
	for (unsigned attempt = 0;; attempt++) {
		struct descent d;
		bool lost;
		unsigned at;
		int result = -ENOENT;
		int rc = leaf_open(t, rs, key, attempt, &d);

		if (rc == -EAGAIN)
			continue;
		if (rc)
			return rc;
		if (e)
			e->kcached = guard_kcached(t->cache, &d.node, e->kinds, &e->leaf);
		at = leaf_search(d.node.image, d.counts.count, key);
		if (at < d.counts.count && leaf_key_load(d.node.image, at) == key)
			result = value_copy(d.node.image, at, buf, cap);
		rc = leaf_finish(t, rs, &d, &lost);
		if (likely(rc == 0))
			return result;
		if (!lost)
			return rc;
	}
}

int read_exact(struct tree *t, struct read_set *rs, tree_key key, void *buf, size_t cap)
{
	tree_count(t, lookups);
	return read_leaf(t, rs, NULL, key, buf, cap);
}

/* ---- next and floor -------------------------------------------------------------- */

/* The answer of one leaf to a search that may go on in another. */
struct leaf_answer {
	int result; /* length, or an error; -ENOENT: nothing here */
	tree_key found;
	tree_key edge; /* where to go on */
	bool last;     /* there is nowhere to go on */
};

static void answer_next(const struct descent *d, tree_key from, tree_key to, void *buf,
	size_t cap, struct leaf_answer *a)
{
	const uint8_t *image = d->node.image;
	unsigned at = leaf_search(image, d->counts.count, from);

	*a = (struct leaf_answer){.result = -ENOENT, .edge = d->high};
	a->last = d->high >= to || d->high == TREE_KEY_MAX;
	if (at >= d->counts.count)
		return;
	a->found = leaf_key_load(image, at);
	if (a->found < to)
		a->result = value_copy(image, at, buf, cap);
	else
		a->last = true;
}

static void answer_floor(const struct descent *d, tree_key at_most, tree_key floor,
	void *buf, size_t cap, struct leaf_answer *a)
{
	const uint8_t *image = d->node.image;
	unsigned at = leaf_search(image, d->counts.count, at_most);

	*a = (struct leaf_answer){.result = -ENOENT, .edge = d->low - 1};
	a->last = d->low <= floor || d->low == 0;
	/* `at` is the first key at or above: the one wanted is it, or the one before it.
	 */
	if (at >= d->counts.count || leaf_key_load(image, at) != at_most) {
		if (at == 0)
			return;
		at--;
	}
	a->found = leaf_key_load(image, at);
	if (a->found >= floor)
		a->result = value_copy(image, at, buf, cap);
	else
		a->last = true;
}

typedef void (*leaf_ask)(const struct descent *d, tree_key start, tree_key bound,
	void *buf, size_t cap, struct leaf_answer *a);

/* Asks leaf after leaf from `start` on until one answers. */
static int read_across(struct tree *t, struct read_set *rs, leaf_ask ask, tree_key start,
	tree_key bound, tree_key *found, void *buf, size_t cap)
{
	unsigned attempt = 0;

	for (;;) {
		struct leaf_answer a;
		struct descent d;
		bool lost;
		int rc = leaf_open(t, rs, start, attempt, &d);

		if (rc == -EAGAIN) {
			attempt++;
			continue;
		}
		if (rc)
			return rc;
		ask(&d, start, bound, buf, cap, &a);
		rc = leaf_finish(t, rs, &d, &lost);
		if (lost) {
			attempt++;
			continue;
		}
		if (rc)
			return rc;
		if (a.result != -ENOENT) {
			*found = a.found;
			return a.result;
		}
		if (a.last)
			return -ENOENT;
		start = a.edge;
		attempt = 0;
	}
}

/* Outside transactions: with a set of its own, and again from the start when it breaks.
 */
static int read_alone(struct tree *t, leaf_ask ask, tree_key start, tree_key bound,
	tree_key *found, void *buf, size_t cap)
{
	struct guard seen[CROSSED_MAX];

	for (unsigned attempt = 0;; attempt++) {
		struct read_set rs = {.seen = seen, .max = CROSSED_MAX};
		int rc = read_across(t, &rs, ask, start, bound, found, buf, cap);

		if (rc == -E2BIG)
			rc = read_across(t, NULL, ask, start, bound, found, buf, cap);
		if (rc != -EAGAIN)
			return rc;
		tree_back_off(attempt);
	}
}

int read_next(struct tree *t, struct read_set *rs, tree_key from, tree_key to,
	tree_key *found, void *buf, size_t cap)
{
	if (from >= to)
		return -ENOENT;
	return rs ? read_across(t, rs, answer_next, from, to, found, buf, cap)
		  : read_alone(t, answer_next, from, to, found, buf, cap);
}

int read_floor(struct tree *t, struct read_set *rs, tree_key at, tree_key floor,
	tree_key *found, void *buf, size_t cap)
{
	if (at < floor)
		return -ENOENT;
	return rs ? read_across(t, rs, answer_floor, at, floor, found, buf, cap)
		  : read_alone(t, answer_floor, at, floor, found, buf, cap);
}

/* ---- the public functions -------------------------------------------------------- */

bool tree_seen_stands(const struct tree_seen *seen)
{
	for (unsigned i = 0; i < seen->count; i++)
		if (!guard_valid(&seen->leaf[i]))
			return false;
	return true;
}

void tree_seen_used(struct tree *t, const struct tree_seen *seen)
{
	for (unsigned i = 0; i < seen->count; i++)
		if (guard_valid(&seen->leaf[i]))
			guard_used(t->cache, &seen->leaf[i]);
}

static struct read_set seen_set(struct tree_seen *seen)
{
	return (struct read_set){.seen = seen->leaf,
		.count = seen->count,
		.max = TREE_SEEN_MAX,
		.keeps = seen->keeps};
}

int tree_read_seen(struct tree *t, struct tree_seen *seen, struct disk_key key, void *buf,
	size_t cap)
{
	struct read_set rs;
	int rc;

	if (!seen)
		return tree_read(t, key, buf, cap);
	rs = seen_set(seen);
	rc = read_exact(t, &rs, tree_key_of(key), buf, cap);
	seen->count = rs.count;
	return rc;
}

int tree_floor_seen(struct tree *t, struct tree_seen *seen, struct disk_key at,
	struct disk_key floor, struct disk_key *found, void *buf, size_t cap)
{
	struct read_set rs;
	tree_key key = 0;
	int rc;

	if (!seen)
		return tree_floor(t, at, floor, found, buf, cap);
	rs = seen_set(seen);
	rc = read_floor(t, &rs, tree_key_of(at), tree_key_of(floor), &key, buf, cap);
	seen->count = rs.count;
	if (rc >= 0)
		*found = tree_key_disk(key);
	return rc;
}

int tree_read(struct tree *t, struct disk_key key, void *buf, size_t cap)
{
	return read_exact(t, NULL, tree_key_of(key), buf, cap);
}

int tree_read_kcached(struct tree *t, struct tree_kcopy *e, struct disk_key key,
	void *buf, size_t cap)
{
	tree_key at = tree_key_of(key), high;
	int rc;

	tree_count(t, lookups);
	rc = read_leaf(t, NULL, e, at, buf, cap);
	if ((rc < 0 && rc != -ENOENT) || e->kcached ||
		leaf_kcache(t, at, e->kinds, &e->leaf, &high))
		return rc;
	return read_leaf(t, NULL, e, at, buf, cap);
}

int tree_next(struct tree *t, struct disk_key from, struct disk_key to,
	struct disk_key *found, void *buf, size_t cap)
{
	tree_key key = 0;
	int rc = read_next(t, NULL, tree_key_of(from), tree_key_of(to), &key, buf, cap);

	if (rc >= 0)
		*found = tree_key_disk(key);
	return rc;
}

int tree_next_near(struct tree *t, struct disk_key from, struct disk_key to,
	struct disk_key *found, void *buf, size_t cap)
{
	tree_key start = tree_key_of(from), bound = tree_key_of(to), at = start, end;
	int rc = -ENOENT;

	for (; rc == -ENOENT && start < bound; start = end) {
		rc = tree_reach(t, start, 0, &end);
		at = end;
		if (rc == 0)
			rc = read_next(t, NULL, start, MIN(end, bound), &at, buf, cap);
	}
	*found = tree_key_disk(at);
	return rc;
}

bool tree_is_near(struct tree *t, struct disk_key key)
{
	tree_key end;

	return tree_reach(t, tree_key_of(key), 0, &end) == 0;
}

int tree_floor(struct tree *t, struct disk_key at, struct disk_key floor,
	struct disk_key *found, void *buf, size_t cap)
{
	tree_key key = 0;
	int rc = read_floor(t, NULL, tree_key_of(at), tree_key_of(floor), &key, buf, cap);

	if (rc >= 0)
		*found = tree_key_disk(key);
	return rc;
}

/* Asks for the leaves that follow the one in d, which was guessed, as far as they are noted. */
static void scan_ahead_noted(
	struct tree *t, const struct descent *d, unsigned ahead, bool hint)
{
	struct page_ref refs[SCAN_AHEAD] = {0};
	struct learned_leaf next = {.high = d->high};
	unsigned count = 0;

	while (count < ahead && next.high != TREE_KEY_MAX &&
		learned_find(t->learned, next.high, &next) && next.incarnation)
		refs[count++].pid = next.pid;
	if (count > 0)
		cache_prefetch(t->cache, refs, count, hint);
}

/* Asks for the leaves that follow the one in d, as far as its parent names them. */
static void scan_ahead(struct tree *t, const struct descent *d, unsigned ahead, bool hint)
{
	struct page_ref refs[SCAN_AHEAD] = {0};
	unsigned count = 0;

	if (d->guessed)
		scan_ahead_noted(t, d, ahead, hint);
	if (d->parent.kind == GUARD_NONE)
		return;
	for (unsigned i = d->slot + 1; i < d->parent_count && count < ahead; i++)
		refs[count++].pid = page_load_u64(d->parent.image + INNER_CHILD(i));
	if (count > 0 && guard_valid(&d->parent))
		cache_prefetch(t->cache, refs, count, hint);
}

/* Copies the leaf in d out. The bytes between slots and heap are unused. */
static void leaf_copy_out(uint8_t copy[PAGE_SIZE], const struct descent *d)
{
	size_t head = LEAF_SLOT(d->counts.count);

	page_copy_out(copy, d->node.image, head);
	if (d->counts.heap_begin >= head && d->counts.heap_begin < PAGE_SIZE)
		page_copy_out(copy + d->counts.heap_begin,
			d->node.image + d->counts.heap_begin,
			PAGE_SIZE - d->counts.heap_begin);
}

/* A leaf as of one moment, into `copy`. */
static int scan_leaf(struct tree *t, struct read_set *rs, tree_key from, bool hint,
	uint8_t copy[PAGE_SIZE], struct descent *d)
{
	for (unsigned attempt = 0;; attempt++) {
		int rc = tree_leaf_open(t, from, attempt, d);
		bool lost;

		if (rc == -EAGAIN)
			continue;
		if (rc)
			return rc;
		if (d->waited)
			scan_ahead(t, d, SCAN_AHEAD, hint);
		leaf_copy_out(copy, d);
		rc = leaf_finish(t, rs, d, &lost);
		if (!lost)
			return rc;
	}
}

/* Visits the items of a copied leaf from `at` on. Returns true if the scan goes on in the next
 * leaf. Otherwise *said is its result. */
static bool visit_leaf(const uint8_t copy[PAGE_SIZE], const struct descent *d, tree_key at,
	tree_key end, tree_visit visit, void *arg, int *said)
{
	*said = 0;
	for (unsigned i = leaf_search(copy, d->counts.count, at); i < d->counts.count; i++) {
		tree_key key = leaf_key_load(copy, i);
		struct leaf_place place = leaf_place_load(copy, i);

		if (key >= end)
			return false;
		if (place.length > DISK_VALUE_MAX || place.offset + place.length > PAGE_SIZE)
			*said = -EUCLEAN;
		else
			*said = visit(arg, tree_key_disk(key), copy + place.offset,
				place.length);
		if (*said)
			return false;
	}
	return d->high != TREE_KEY_MAX && d->high < end;
}

static int scan_leaves(struct tree *t, struct read_set *rs, struct disk_key from,
	struct disk_key to, bool scan_hint, tree_visit visit, void *arg)
{
	uint8_t copy[PAGE_SIZE];
	tree_key at = tree_key_of(from);
	tree_key end = tree_key_of(to);
	struct descent d;

	while (at < end) {
		int rc = scan_leaf(t, rs, at, scan_hint, copy, &d);

		if (rc || !visit_leaf(copy, &d, at, end, visit, arg, &rc))
			return rc;
		at = d.high;
	}
	return 0;
}

int tree_scan(struct tree *t, struct disk_key from, struct disk_key to, bool scan_hint,
	tree_visit visit, void *arg)
{
	return scan_leaves(t, NULL, from, to, scan_hint, visit, arg);
}

int tree_scan_seen(struct tree *t, struct tree_seen *seen, struct disk_key from,
	struct disk_key to, bool scan_hint, tree_visit visit, void *arg)
{
	struct read_set rs;
	int rc;

	if (!seen)
		return scan_leaves(t, NULL, from, to, scan_hint, visit, arg);
	rs = seen_set(seen);
	rc = scan_leaves(t, &rs, from, to, scan_hint, visit, arg);
	seen->count = rs.count;
	return rc;
}

/* ---- reading ahead --------------------------------------------------------------- */

bool tree_is_here(struct tree *t, struct disk_key key)
{
	struct descent d;

	return tree_descend_once(t, tree_key_of(key), 0, &d) != -EAGAIN ||
	       d.missing == PID_NONE;
}

static int keys_compare(const void *a, const void *b)
{
	tree_key x = tree_key_of(*(const struct disk_key *)a);
	tree_key y = tree_key_of(*(const struct disk_key *)b);

	return (x > y) - (x < y);
}

void tree_prefetch(struct tree *t, struct disk_key *keys, unsigned count)
{
	struct page_ref refs[TREE_PREFETCH_MAX] = {0};
	unsigned n = 0;
	struct descent d;

	WEFT_ASSERT(count <= TREE_PREFETCH_MAX);
	qsort(keys, count, sizeof(*keys), keys_compare);
	for (unsigned i = 0; i < count; i++) {
		page_id leaf;

		if (tree_descend_once(t, tree_key_of(keys[i]), 0, &d) != -EAGAIN ||
			d.missing == PID_NONE)
			continue;
		leaf = tree_misses_above(t, &d) ? tree_guess_page(t, tree_key_of(keys[i]))
						: PID_NONE;
		if (leaf == PID_NONE)
			leaf = d.missing;
		/* keys of one leaf follow each other now */
		if (n == 0 || refs[n - 1].pid != leaf)
			refs[n++].pid = leaf;
	}
	if (n > 0)
		cache_prefetch(t->cache, refs, n, false);
}

struct disk_key tree_prefetch_next(struct tree *t, struct disk_key key, unsigned ahead)
{
	struct descent d;
	int rc = tree_descend_once(t, tree_key_of(key), 0, &d);
	unsigned last = MIN(d.slot + ahead, d.parent_count - 1);
	tree_key half;

	/* if the leaf is missing, d.counts are its parent's */
	if (rc && (rc != -EAGAIN || d.missing == PID_NONE || d.counts.level > t->step))
		return key;
	if (d.parent.kind == GUARD_NONE || last <= d.slot)
		return key;
	half = tree_key_load(d.parent.image + INNER_KEY((d.slot + last + 1) / 2));
	if (!guard_valid(&d.parent))
		return key;
	scan_ahead(t, &d, last - d.slot, false);
	return tree_key_disk(half);
}

int tree_scan_here(struct tree *t, struct disk_key from, struct disk_key to,
	tree_visit visit, void *arg)
{
	uint8_t copy[PAGE_SIZE];
	tree_key at = tree_key_of(from), end = tree_key_of(to);
	struct descent d;
	int rc = 0;

	while (at < end) {
		if (tree_descend_once(t, at, 0, &d))
			return -EAGAIN;
		leaf_copy_out(copy, &d);
		if (!guard_valid(&d.node))
			return -EAGAIN;
		if (!visit_leaf(copy, &d, at, end, visit, arg, &rc))
			return rc;
		at = d.high;
	}
	return 0;
}

/* Returns the leaf of the key if it is not here; with `here`, also if it is. PID_NONE: otherwise,
 * or if that is not known. *guess: the table says so, because a page above is missing; NULL: the
 * table is not asked. */
static page_id claim_leaf(struct tree *t, struct disk_key key, bool here, bool *guess)
{
	struct descent d;
	int rc = tree_descend_once(t, tree_key_of(key), 0, &d);

	if (rc == 0 && here)
		return d.pid;
	if (rc != -EAGAIN || d.missing == PID_NONE)
		return PID_NONE;
	/* the missing page is a leaf, or has grown from one: all nodes use the pages above */
	if (d.parent.kind != GUARD_NONE && d.counts.level <= t->step)
		return d.missing;
	if (!guess || !tree_misses_above(t, &d))
		return PID_NONE;
	*guess = true;
	return tree_guess_page(t, tree_key_of(key));
}

void tree_downgrade_soon(struct tree *t, struct disk_key key)
{
	struct descent d;

	if (tree_descend_once(t, tree_key_of(key), 0, &d) == 0 && guard_valid(&d.node))
		cache_downgrade_soon_spare(t->cache, d.pid);
}

void tree_claim(struct tree *t, struct disk_key key)
{
	bool guess = false;
	struct page_ref leaf = {.pid = claim_leaf(t, key, false, &guess)};

	if (leaf.pid == PID_NONE)
		return;
	/* what a guess names may be a page that a node has which is away, and no leaf */
	(void)(guess ? cache_fetch_reached(t->cache, &leaf, 1)
		     : cache_fetch_exclusive(t->cache, &leaf, 1));
}

void tree_claim_with(
	struct tree *t, struct disk_key key, struct page_ref *refs, unsigned count)
{
	page_id leaf = claim_leaf(t, key, true, NULL);

	if (leaf != PID_NONE)
		refs[count++] = (struct page_ref){.pid = leaf};
	(void)cache_fetch_exclusive(t->cache, refs, count);
}

void tree_keep(struct tree *t, struct disk_key key, uint64_t until_ns)
{
	page_id leaf = claim_leaf(t, key, true, NULL);

	if (leaf != PID_NONE)
		cache_keep(t->cache, leaf, until_ns);
}

bool tree_keep_refused(struct tree *t, struct disk_key key)
{
	page_id leaf = claim_leaf(t, key, true, NULL);

	return leaf != PID_NONE && cache_keep_refused(t->cache, leaf);
}
