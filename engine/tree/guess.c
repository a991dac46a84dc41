/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finding a leaf without the pages above it: a guess, and its proof (docs/nodes/learned.md, "When a
 * guessed page is the leaf"; XStore §5.2).
 *
 * A guess is a page and an incarnation that were a leaf's. The frame's incarnation is compared
 * before the image is read: the page may have become a user's data, which can look like a leaf.
 * Then the image must be a sound page of the tree (invariant 9), a leaf, and have the key between
 * its fences. All this under the shared latch. A guess that fails is stale, never damage. Nothing
 * is held while the page is fetched (invariant 6).
 */
#include <errno.h>

#include "engine/tree/tree_internal.h"

/* Lost races for a guessed page before the guess is given up. */
#define GUESS_TRIES 64u

void (*tree_guess_watch)(
	struct tree *t, tree_key key, bool *known, struct learned_leaf *guess);

int tree_learn(struct tree *t, uint64_t size_bytes)
{
	return learned_open(&t->learned, size_bytes);
}

void tree_note_leaf(struct tree *t, page_id pid, const struct guard *g)
{
	struct learned_leaf leaf = {
		.low = tree_key_load(g->image + NODE_LOW),
		.high = tree_key_load(g->image + NODE_HIGH),
		.pid = pid,
		.incarnation = g->frame->incarnation,
	};

	if (t->learned && pid != t->root)
		learned_note(t->learned, &leaf);
}

bool tree_guess_stands(const struct descent *d, const struct guard *g, tree_key key)
{
	return g->frame->incarnation == d->guessed && leaf_has_key(g->image, d->pid, key);
}

/* Returns true if the image, which is of the guessed incarnation, is that of a sound leaf. Checks
 * it unless that was done since it was loaded. Pages above the leaves are left to descents, which
 * check more of them. */
static bool leaf_is_sound(struct tree *t, page_id pid, const struct guard *g)
{
	struct weft_error err = {0};

	if (guard_checked(g))
		return page_load_u64(g->image + NODE_MAGIC) == DISK_MAGIC_NODE &&
		       node_counts_load(g->image).level == 0;
	if (tree_check_page(g->image, pid, &err) || node_counts_load(g->image).level > 0)
		return false;
	guard_mark_checked(g);
	return true;
}

/* The guessed page is latched shared. Returns true with *d if it is the leaf of the key. If not,
 * the table is corrected. */
static bool prove_leaf(struct tree *t, tree_key key, const struct learned_leaf *guess,
	const struct guard *g, struct descent *d)
{
	*d = (struct descent){.pid = guess->pid,
		.parent_pid = PID_NONE,
		.missing = PID_NONE,
		.waited = true,
		.guessed = guess->incarnation};
	if (g->frame->incarnation != guess->incarnation ||
		!leaf_is_sound(t, guess->pid, g)) {
		learned_doubt(t->learned, key, guess->pid);
		return false;
	}
	tree_note_leaf(t, guess->pid, g); /* its keys are fewer after a split, more after a join */
	if (!tree_guess_stands(d, g, key) ||
		guard_try_optimistic(t->cache, guess->pid, g->frame, &d->node))
		return false;
	d->counts = node_counts_load(g->image);
	d->low = tree_key_load(g->image + NODE_LOW);
	d->high = tree_key_load(g->image + NODE_HIGH);
	return true;
}

/* Tries one guess. Returns 0 with *d, -ENOENT if the guess is wrong, or another negative errno if
 * the page cannot be had now. */
static int try_guess(struct tree *t, tree_key key, const struct learned_leaf *guess,
	struct descent *d)
{
	struct page_ref ref = {.pid = guess->pid};
	int rc = -EAGAIN;

	for (unsigned attempt = 0; attempt < GUESS_TRIES; attempt++) {
		struct guard g;
		bool right;

		if (guard_try_shared(t->cache, guess->pid, 0, &g) == 0) {
			right = prove_leaf(t, key, guess, &g, d);
			guard_release(t->cache, &g);
			if (right)
				tree_count(t, guesses_right);
			else
				tree_count(t, guesses_wrong);
			return right ? 0 : -ENOENT;
		}
		tree_back_off(attempt);
		/* without the incarnation: a request that names a later one than there is would
		 * void the page */
		rc = cache_fetch_near(t->cache, &ref, 1);
		if (rc)
			break;
	}
	tree_count(t, guesses_refused);
	return rc ? rc : -EAGAIN;
}

int tree_guess_leaf(struct tree *t, tree_key key, bool away, struct descent *d)
{
	struct learned_leaf guess;
	bool known = learned_find(t->learned, key, &guess);
	page_id had;
	int rc;

	if (unlikely(tree_guess_watch))
		tree_guess_watch(t, key, &known, &guess);
	if (!known && (!away || !learned_floor(t->learned, key, &guess)))
		return -ENOENT;
	rc = known && guess.incarnation ? try_guess(t, key, &guess, d) : -ENOENT;
	if (rc != -ENOENT)
		return rc;
	/* The leaf was split, joined or moved. Its home has the neighbours, too, mostly. */
	had = guess.pid;
	rc = tree_ask_leaf(t, cache_home(t->cache, had), key, &guess);
	if (rc == 0)
		return try_guess(t, key, &guess, d);
	if (known && (rc == -ENOENT || rc == -EOPNOTSUPP)) /* it can never tell */
		learned_forget(t->learned, key, had);
	return rc;
}

page_id tree_guess_page(struct tree *t, tree_key key)
{
	struct learned_leaf guess;

	return t->learned && learned_find(t->learned, key, &guess) && guess.incarnation
		       ? guess.pid
		       : PID_NONE;
}
