/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finding the page that covers a key: optimistic lock coupling (LeanStore §IV-F, ScaleStore §5.2).
 *
 * A descent holds nothing. It reads a page, validates it, takes the child's word, and validates the
 * page again. So the child was the right one at the moment its word was taken. A missing page is
 * fetched with no guard, and the descent starts over (invariant 6). The level falls with each step,
 * so damaged pages cannot make it loop. A page is checked once after each load before its content
 * is used (invariant 9).
 *
 * Swizzling: beside an inner frame lie hints to its children's frames. (LeanStore §III-A keeps them
 * in the page; here the image stays free of addresses.) A hint is proved by the frame's PID, in
 * guard_try_optimistic, so nothing depends on it being right.
 */
#include <errno.h>

#include "engine/tree/tree_internal.h"

#define NO_FRAME UINT32_MAX

/* Lost attempts after which a leaf is read under its shared latch. */
#define ATTEMPTS_OPTIMISTIC 8u
/* Failed fetches of a page that nothing confirms as part of the tree. */
#define FETCH_FAILURES_MAX 16u
/* Pages brought in, and lost races, before tree_reach gives up. */
#define REACH_TRIES 64u

/* ---- hints ----------------------------------------------------------------------- */

int tree_hints_open(struct tree *t)
{
	t->hint_count = t->frame_count / 64 + 16;
	t->hints = rt_alloc(t->hint_count * sizeof(*t->hints));
	if (!t->hints)
		return -ENOMEM;
	for (uint32_t i = 0; i < t->hint_count; i++)
		atomic_store_explicit(&t->hints[i].frame, NO_FRAME, memory_order_relaxed);
	atomic_store_explicit(&t->root_frame, NO_FRAME, memory_order_relaxed);
	return 0;
}

void tree_hints_close(struct tree *t)
{
	for (uint32_t i = 0; t->hints && i < t->hint_count; i++) {
		uint32_t owner =
			atomic_load_explicit(&t->hints[i].frame, memory_order_relaxed);

		if (owner != NO_FRAME)
			atomic_store_explicit(&cache_frame(t->cache, owner)->hints, 0,
				memory_order_relaxed);
	}
	rt_free(t->hints);
	t->hints = NULL;
}

static struct tree_hints *hints_of(struct tree *t, struct frame *f)
{
	uint32_t h = atomic_load_explicit(&f->hints, memory_order_relaxed);

	return h > 0 && h <= t->hint_count ? &t->hints[h - 1] : NULL;
}

/* Returns true if the array has no owner: its owner was given another array, or has another
 * page. */
static bool hints_unowned(struct tree *t, struct tree_hints *h)
{
	uint32_t owner = atomic_load_explicit(&h->frame, memory_order_relaxed);
	struct frame *f;

	if (owner == NO_FRAME)
		return true;
	f = cache_frame(t->cache, owner);
	return hints_of(t, f) != h ||
	       atomic_load_explicit(&f->pid, memory_order_relaxed) !=
		       atomic_load_explicit(&h->pid, memory_order_relaxed);
}

/* Gives the frame an array if one of the next few is free. */
static void hints_claim(struct tree *t, struct frame *f, page_id pid)
{
	if (!rt_mutex_trylock(&t->hint_lock))
		return;
	for (unsigned i = 0; i < 8 && !hints_of(t, f); i++) {
		uint32_t index = t->hint_hand;
		struct tree_hints *h = &t->hints[index];
		uint32_t mine = index + 1;
		uint32_t owner = atomic_load_explicit(&h->frame, memory_order_relaxed);

		t->hint_hand = (index + 1) % t->hint_count;
		if (!hints_unowned(t, h))
			continue;
		if (owner != NO_FRAME)
			atomic_compare_exchange_strong_explicit(
				&cache_frame(t->cache, owner)->hints, &mine, 0,
				memory_order_relaxed, memory_order_relaxed);
		for (unsigned c = 0; c < DISK_INNER_CHILDREN; c++)
			atomic_store_explicit(
				&h->child[c], NO_FRAME, memory_order_relaxed);
		atomic_store_explicit(&h->pid, pid, memory_order_relaxed);
		atomic_store_explicit(
			&h->frame, cache_frame_index(t->cache, f), memory_order_relaxed);
		atomic_store_explicit(&f->hints, index + 1, memory_order_relaxed);
	}
	rt_mutex_unlock(&t->hint_lock);
}

static struct frame *hint_frame(struct tree *t, _Atomic uint32_t *hint)
{
	uint32_t index = atomic_load_explicit(hint, memory_order_relaxed);

	return index < t->frame_count ? cache_frame(t->cache, index) : NULL;
}

static void hint_note(
	struct tree *t, _Atomic uint32_t *hint, struct frame *hinted, struct frame *found)
{
	if (hinted != found)
		atomic_store_explicit(
			hint, cache_frame_index(t->cache, found), memory_order_relaxed);
}

void tree_hints_shift(struct tree *t, struct frame *f, unsigned at, int by)
{
	struct tree_hints *h = hints_of(t, f);

	if (!h)
		return;
	if (by > 0) {
		for (unsigned i = DISK_INNER_CHILDREN - 1; i > at; i--)
			atomic_store_explicit(&h->child[i],
				atomic_load_explicit(
					&h->child[i - 1], memory_order_relaxed),
				memory_order_relaxed);
		atomic_store_explicit(&h->child[at], NO_FRAME, memory_order_relaxed);
		return;
	}
	for (unsigned i = at; i + 1 < DISK_INNER_CHILDREN; i++)
		atomic_store_explicit(&h->child[i],
			atomic_load_explicit(&h->child[i + 1], memory_order_relaxed),
			memory_order_relaxed);
}

/* ---- a page on its first visit --------------------------------------------------- */

/* Checks the image of d's page under its shared latch, once per load. A leaf is noted, if it is the
 * page that d's parent has named. -EAGAIN: lost a race. */
static int node_check(struct tree *t, const struct descent *d, struct weft_error *err)
{
	page_id pid = d->pid;
	bool inner;
	struct guard g;
	int rc = guard_try_shared(t->cache, pid, 0, &g);

	if (rc)
		return rc;
	rc = tree_check_page(g.image, pid, err);
	if (rc == 0 && node_counts_load(g.image).level > 0) {
		unsigned count = node_counts_load(g.image).count;

		for (unsigned i = 0; i < count && rc == 0; i++) {
			page_id child = page_load_u64(g.image + INNER_CHILD(i));

			if (!shards_have(t->shards, child, 1))
				rc = weft_error(err, -EUCLEAN,
					"tree page %#llx: child %#llx is not a page of "
					"the volume",
					(unsigned long long)pid,
					(unsigned long long)child);
		}
	}
	if (rc == 0)
		guard_mark_checked(&g);
	inner = rc == 0 && node_counts_load(g.image).level > 0;
	if (rc == 0 && !inner && guard_valid(&d->node))
		tree_note_leaf(t, pid, &g);
	guard_release(t->cache, &g);
	if (inner) /* it may have been granted to this node alone */
		cache_downgrade_soon(t->cache, pid);
	return rc;
}

static int node_first_visit(struct tree *t, struct descent *d)
{
	struct weft_error err = {0};
	int rc = node_check(t, d, &err);

	if (rc == -EAGAIN)
		d->missing = d->pid;
	if (rc != -EUCLEAN)
		return rc;
	if (!guard_valid(&d->node)) /* the page that was looked at has left the tree */
		return -EAGAIN;
	weft_log(3, "%s", err.text);
	return rc;
}

/* Reads the header of the page in d->node. Returns -EUCLEAN only if the guard still stands. Then
 * the page was reached by valid parents and is not the page that they say. */
static int node_enter(struct tree *t, tree_key key, unsigned level_max, struct descent *d)
{
	const uint8_t *image = d->node.image;
	bool sound;

	if (unlikely(!guard_checked(&d->node))) {
		int rc = node_first_visit(t, d);

		if (rc)
			return rc;
	}
	d->counts = node_counts_load(image);
	d->low = tree_key_load(image + NODE_LOW);
	d->high = tree_key_load(image + NODE_HIGH);
	sound = page_load_u64(image + NODE_MAGIC) == DISK_MAGIC_NODE &&
		page_load_u64(image + NODE_PID) == d->pid &&
		d->counts.level <= level_max && d->counts.count <= LEAF_SLOTS_MAX &&
		tree_key_within(key, d->low, d->high);
	if (likely(sound))
		return 0;
	if (!guard_valid(&d->node))
		return -EAGAIN;
	weft_log(3,
		"tree page %#llx is not where its keys and level %u belong; run "
		"fsck.weft",
		(unsigned long long)d->pid, d->counts.level);
	return -EUCLEAN;
}

/* ---- descents -------------------------------------------------------------------- */

/* From the inner page in d->node to its child. */
static int step_down(struct tree *t, tree_key key, struct descent *d)
{
	const uint8_t *image = d->node.image;
	unsigned level = d->counts.level;
	unsigned count = d->counts.count;
	unsigned slot = inner_search(image, count, key);
	page_id child = page_load_u64(image + INNER_CHILD(slot));
	struct tree_hints *hints = hints_of(t, d->node.frame);
	struct frame *hinted = hints ? hint_frame(t, &hints->child[slot]) : NULL;
	int rc;

	/* The child's header comes on its way together with its frame, which is looked at
	 * first. Images lie in the order of frames; a wrong guess would do no harm. */
	if (hinted)
		__builtin_prefetch((const void *)((uintptr_t)image +
						  (uintptr_t)((hinted - d->node.frame) *
							      (ptrdiff_t)PAGE_SIZE)));
	if (!guard_valid(&d->node))
		return -EAGAIN;
	d->parent = d->node;
	d->parent_pid = d->pid;
	d->parent_count = count;
	d->parent_level = level;
	d->slot = slot;
	d->pid = child;
	rc = guard_try_optimistic(t->cache, child, hinted, &d->node);
	if (rc) {
		d->missing = child;
		return rc;
	}
	if (hints)
		hint_note(t, &hints->child[slot], hinted, d->node.frame);
	else if ((rt_random() & 15) == 0)
		hints_claim(t, d->parent.frame, d->parent_pid);
	if (!guard_valid(&d->parent))
		return -EAGAIN;
	return node_enter(t, key, level - 1, d);
}

int tree_descend_once(struct tree *t, tree_key key, unsigned level, struct descent *d)
{
	struct frame *hinted = hint_frame(t, &t->root_frame);
	int rc;

	d->missing = PID_NONE;
	d->held.kind = GUARD_NONE;
	d->parent.kind = GUARD_NONE;
	d->parent_pid = PID_NONE;
	d->parent_count = 0;
	d->parent_level = 0;
	d->slot = 0;
	d->guessed = 0;
	d->pid = t->root;
	rc = guard_try_optimistic(t->cache, t->root, hinted, &d->node);
	if (rc) {
		d->missing = t->root;
		return rc;
	}
	hint_note(t, &t->root_frame, hinted, d->node.frame);
	rc = node_enter(t, key, TREE_LEVELS_MAX - 1, d);
	while (rc == 0 && d->counts.level > level)
		rc = step_down(t, key, d);
	if (rc == 0 && unlikely(d->counts.level < level))
		rc = guard_valid(&d->node) ? -ENOENT : -EAGAIN;
	return rc;
}

void tree_back_off(unsigned attempt)
{
	unsigned spins = 0;
	uint64_t steps;

	if (attempt == 0)
		return;
	/* Randomised and exponential, so that two that collided do not collide again. */
	steps = rt_random() % (2ull << MIN(attempt, 6u));
	while (spins < steps)
		rt_spin(&spins);
	if (attempt > 8)
		rt_sleep_ns(1000 + rt_random() % (20000ull << MIN(attempt - 8, 6u)));
}

/* First the pause: a page that arrives from another node waits for its use only so long. */
int tree_wait_page(struct tree *t, page_id pid, unsigned attempt)
{
	int rc = 0;

	tree_back_off(attempt);
	if (pid != PID_NONE) {
		struct guard g;

		tree_count(t, waits);
		rc = guard_optimistic(t->cache, pid, NULL, &g);
		if (rc == 0)
			guard_release(t->cache, &g);
	}
	return rc;
}

int tree_wait_exclusive(struct tree *t, page_id pid, unsigned attempt)
{
	struct page_ref ref = {.pid = pid};
	int rc;

	tree_back_off(attempt);
	rc = pid == PID_NONE ? 0 : cache_fetch_exclusive(t->cache, &ref, 1);
	return rc ? rc : tree_wait_page(t, pid, 0);
}

int tree_wait_reached(struct tree *t, page_id pid, unsigned attempt)
{
	struct page_ref ref = {.pid = pid};
	int rc;

	tree_back_off(attempt);
	rc = pid == PID_NONE ? 0 : cache_fetch_reached(t->cache, &ref, 1);
	return rc ? rc : tree_wait_page(t, pid, 0);
}

/* The use of guesses by one descent. */
struct guessing {
	bool done; /* no more, while the pages above can be had */
	bool away; /* a page above could not be had */
};

bool tree_misses_above(struct tree *t, const struct descent *d)
{
	if (d->missing == PID_NONE || cache_is_here(t->cache, d->missing))
		return false;
	return d->parent.kind == GUARD_NONE || d->counts.level > t->step;
}

/* A page above the leaf is missing: guesses, or else fetches the page. Returns 0 if the caller must
 * look again, also if a node is away that the page waits for. *found: the guess was right, and *d
 * is the leaf. */
static int guess_or_fetch(struct tree *t, tree_key key, struct guessing *g,
	struct descent *d, bool *found)
{
	page_id missing = d->missing;
	struct descent leaf;
	int rc;

	*found = !g->done && tree_guess_leaf(t, key, g->away, &leaf) == 0;
	if (*found) {
		*d = leaf;
		return 0;
	}
	tree_count(t, waits);
	rc = cache_fetch_once(t->cache, missing);
	/* if not, it waits for a node that is away, or another node has it again */
	g->away = !cache_is_here(t->cache, missing);
	g->done = !g->away;
	return rc;
}

/* A descent was lost, as *d says: waits for the missing page, and descends again. */
static __attribute__((noinline)) int descend_again(struct tree *t, tree_key key,
	unsigned level, bool may_guess, struct descent *d)
{
	struct guessing g = {.done = !may_guess};
	unsigned failures = 0;
	unsigned attempt = 0;
	bool waited = false;
	int rc = -EAGAIN;

	while (rc == -EAGAIN) {
		bool found = false;

		tree_count(t, restarts);
		waited |= d->missing != PID_NONE;
		if (may_guess && tree_misses_above(t, d))
			rc = guess_or_fetch(t, key, &g, d, &found);
		else
			rc = tree_wait_page(t, d->missing,
				d->missing == PID_NONE ? attempt++ : 0);
		if (found)
			return 0;
		/* The page may have left the tree meanwhile. Believe the error only if its parent
		 * still stands, or if it comes again and again. */
		if (rc && (d->parent.kind == GUARD_NONE || guard_valid(&d->parent) ||
				  ++failures >= FETCH_FAILURES_MAX))
			return rc == -EAGAIN ? -EIO : rc;
		rc = tree_descend_once(t, key, level, d);
		d->waited = waited;
	}
	return rc;
}

int tree_descend(struct tree *t, tree_key key, unsigned level, struct descent *d)
{
	int rc = tree_descend_once(t, key, level, d);

	d->waited = false;
	return likely(rc != -EAGAIN) ? rc : descend_again(t, key, level, false, d);
}

int tree_find_leaf(struct tree *t, tree_key key, struct descent *d)
{
	int rc;

	if (unlikely(tree_guess_watch) && t->learned &&
		tree_guess_leaf(t, key, false, d) == 0)
		return 0;
	rc = tree_descend_once(t, key, 0, d);
	d->waited = false;
	return likely(rc != -EAGAIN) ? rc : descend_again(t, key, 0, t->learned, d);
}

/* The missing child covers keys up to the beginning of the next child. Returns false if that is not
 * known. */
static bool missing_ends(const struct descent *d, tree_key *end)
{
	const struct guard *parent = &d->parent;

	*end = d->slot + 1 < d->parent_count
		       ? tree_key_load(parent->image + INNER_KEY(d->slot + 1))
		       : d->high;
	return parent->kind != GUARD_NONE && d->missing == d->pid && guard_valid(parent);
}

int tree_reach(struct tree *t, tree_key key, unsigned level, tree_key *end)
{
	struct descent d = {.high = TREE_KEY_MAX};

	*end = TREE_KEY_MAX;
	for (unsigned attempt = 0; attempt < REACH_TRIES; attempt++) {
		int rc = tree_descend_once(t, key, level, &d);
		struct page_ref ref = {.pid = d.missing};
		tree_key ends = d.high;

		if (rc == 0 && guard_valid(&d.node)) {
			*end = ends;
			return 0;
		}
		if (rc && rc != -EAGAIN)
			return rc;
		tree_back_off(attempt);
		rc = d.missing == PID_NONE ? 0 : cache_fetch_near(t->cache, &ref, 1);
		if (rc == -EHOSTUNREACH && missing_ends(&d, &ends))
			*end = ends;
		if (rc)
			return rc;
	}
	return -EAGAIN;
}

/* ---- leaves ---------------------------------------------------------------------- */

/* Holds the leaf that d found, shared, so that the next reading cannot be lost. */
static int leaf_hold(struct tree *t, tree_key key, struct descent *d)
{
	struct guard parent = d->parent;
	int rc = guard_shared(t->cache, d->pid, 0, &d->held);

	if (rc) {
		d->held.kind = GUARD_NONE;
		return parent.kind == GUARD_NONE || guard_valid(&parent) ? rc : -EAGAIN;
	}
	/* The page is still the leaf that was guessed, the parent's child, or the root and a leaf.
	 * From here on nothing about it can change. */
	if (d->guessed)
		rc = tree_guess_stands(d, &d->held, key) ? 0 : -EAGAIN;
	else if (parent.kind == GUARD_NONE ? node_counts_load(d->held.image).level > 0
					   : !guard_valid(&parent))
		rc = -EAGAIN;
	if (rc == 0)
		rc = guard_try_optimistic(t->cache, d->pid, d->held.frame, &d->node);
	if (rc == 0)
		rc = node_enter(t, key, 0, d);
	if (rc)
		guard_release(t->cache, &d->held);
	return rc;
}

int tree_leaf_open(struct tree *t, tree_key key, unsigned attempt, struct descent *d)
{
	int rc = tree_find_leaf(t, key, d);

	if (likely(rc != 0 || attempt < ATTEMPTS_OPTIMISTIC))
		return rc;
	return leaf_hold(t, key, d);
}

bool tree_leaf_close(struct tree *t, struct descent *d)
{
	bool stands = guard_valid(&d->node);

	if (unlikely(d->held.kind != GUARD_NONE))
		guard_release(t->cache, &d->held);
	return stands;
}

bool tree_leaf_done(struct tree *t, struct descent *d)
{
	bool stands = tree_leaf_close(t, d);

	if (stands)
		guard_used(t->cache, &d->node);
	return stands;
}
