/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A walk over a tree that may be damaged: pages in the order of keys, one level at a time. It
 * passes over pages that cannot be read, and names them.
 *
 * Each page is as of one moment. Other tasks split and join pages meanwhile, as they do during a
 * scan. A key that stays in the tree is met once.
 */
#include <errno.h>

#include "engine/tree/tree_internal.h"

_Static_assert(TREE_WALK_LEVELS == TREE_LEVELS_MAX, "all levels are walked");

#define WALK_TRIES 64u /* lost races, and pages that could not be fetched, at one key */

struct walk {
	struct tree *t;
	unsigned level;
	const struct tree_walker *to;
	uint8_t *copy; /* of a leaf */
	tree_key at;   /* goes on here */
	bool over;
};

/* The page that the descent ended at cannot be read, or is not sound. Goes on behind it. */
static int walk_pass_over(struct walk *w, const struct descent *d, int why)
{
	page_id pid = d->missing != PID_NONE ? d->missing : d->pid;
	tree_key next;

	if (d->parent.kind == GUARD_NONE)
		return why; /* the root */
	next = d->slot + 1 < d->parent_count
		       ? tree_key_load(d->parent.image + INNER_KEY(d->slot + 1))
		       : tree_key_load(d->parent.image + NODE_HIGH);
	if (!guard_valid(&d->parent))
		return -EAGAIN;
	w->over = next == TREE_KEY_MAX || next <= w->at;
	w->at = next;
	return w->to->unread ? w->to->unread(w->to->arg, pid, why) : 0;
}

static int walk_items(struct walk *w, unsigned count)
{
	for (unsigned i = 0; i < count; i++) {
		struct leaf_place place = leaf_place_load(w->copy, i);
		int rc;

		if (place.length > DISK_VALUE_MAX || place.offset + place.length > PAGE_SIZE)
			return 0; /* tree_check_page has said so */
		rc = w->to->item(w->to->arg, tree_key_disk(leaf_key_load(w->copy, i)),
			w->copy + place.offset, place.length);
		if (rc)
			return rc;
	}
	return 0;
}

/* The descent ended at a sound page, of the level or below. */
static int walk_visit(struct walk *w, const struct descent *d)
{
	bool items = w->to->item && w->level == 0 && d->counts.level == 0;
	int rc = 0;

	if (items)
		page_copy_out(w->copy, d->node.image, PAGE_SIZE);
	if (!guard_valid(&d->node))
		return -EAGAIN;
	w->at = d->high;
	w->over = d->high == TREE_KEY_MAX;
	if (w->to->page && d->counts.level == w->level)
		rc = w->to->page(w->to->arg, d->pid);
	if (!rc && items)
		rc = walk_items(w, d->counts.count);
	return rc;
}

/* One page. -EAGAIN: once more. `why`: the error of the last try to fetch the missing page. */
static int walk_step(struct walk *w, unsigned attempt, int *why)
{
	struct descent d;
	int rc = tree_descend_once(w->t, w->at, w->level, &d);

	if (rc == 0 || rc == -ENOENT)
		return walk_visit(w, &d);
	if (rc != -EAGAIN)
		return walk_pass_over(w, &d, rc);
	if (d.missing == PID_NONE) {
		tree_back_off(attempt);
		return -EAGAIN;
	}
	if (*why)
		return walk_pass_over(w, &d, *why);
	rc = tree_wait_page(w->t, d.missing, attempt);
	if (rc == -EIO || rc == -EUCLEAN)
		*why = rc;
	else if (rc && rc != -EAGAIN && rc != -ESTALE)
		return rc;
	return -EAGAIN;
}

int tree_walk(struct tree *t, unsigned level, const struct tree_walker *to)
{
	struct walk w = {.t = t, .level = level, .to = to};
	int rc = 0;

	w.copy = rt_alloc(PAGE_SIZE);
	if (!w.copy)
		return -ENOMEM;
	while (!rc && !w.over) {
		unsigned attempt = 0;
		int why = 0;

		do
			rc = walk_step(&w, attempt, &why);
		while (rc == -EAGAIN && ++attempt < WALK_TRIES);
	}
	rt_free(w.copy);
	return rc;
}
