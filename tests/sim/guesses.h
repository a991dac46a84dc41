/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For simulations: every descent to a leaf begins with a guess (docs/nodes/learned.md), although
 * the pages above are here. One in four is an older guess of the same life of the same node, for
 * whatever key that was; one in eight is left out.
 */
#ifndef WEFT_TEST_GUESSES_H
#define WEFT_TEST_GUESSES_H

#include "engine/tree/tree_internal.h"

#define GUESSES_KEPT 256u

static struct {
	struct old_guess {
		uint64_t life; /* of the node that made it */
		struct learned_leaf leaf;
	} old[GUESSES_KEPT];
	uint64_t made, swapped;
} guesses;

/* Another start of a node has other numbers: a guess of before may be of a page that never was. */
static uint64_t guesses_life(struct tree *t)
{
	const struct disk_superblock *sb = store_superblock(cache_store(t->cache));

	return (uint64_t)sb->node << 48 | sb->incarnation;
}

static void guess_anything(
	struct tree *t, tree_key key, bool *known, struct learned_leaf *guess)
{
	struct old_guess *old = &guesses.old[rt_random() % GUESSES_KEPT];

	if (*known)
		guesses.old[guesses.made++ % GUESSES_KEPT] =
			(struct old_guess){guesses_life(t), *guess};
	if (rt_random() % 8 == 0)
		*known = false;
	if (rt_random() % 4 || old->life != guesses_life(t))
		return;
	*guess = old->leaf;
	*known = true;
	guesses.swapped++;
}

static void guesses_begin(void)
{
	memset(&guesses, 0, sizeof(guesses));
	tree_guess_watch = guess_anything;
}

static void guesses_end(void)
{
	tree_guess_watch = NULL;
}

#endif
