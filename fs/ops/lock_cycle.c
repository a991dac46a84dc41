/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds deadlocks of fcntl locks, across files and nodes: an owner that waits for itself.
 *
 * The walk starts at a request. It goes to the owners of the locks that conflict with it, to the
 * requests with which these wait, and so on. It reads one item after the other, while others
 * change. But an owner may wait with the same ticket in two walks. It has then waited from the
 * first walk to the second. So have all owners of the cycle, and none of them could release a lock.
 */
#include "fs/ops/lock_internal.h"

#define STEPS_MAX 64u
#define WALKS_MAX 4u

struct step {
	struct lock_edge edge;
	unsigned from; /* the step whose request waits for its owner; for the first one: itself */
};

struct circle {
	unsigned count; /* 0: none */
	struct {
		unsigned node;
		uint64_t ticket;
	} at[STEPS_MAX];
};

struct walk {
	struct locks *k;
	struct lock_list list;
	unsigned count;
	struct step step[STEPS_MAX];
	struct circle circle, before;
};

static bool is_in_walk(const struct walk *w, const struct disk_lock *owner)
{
	for (unsigned i = 0; i < w->count; i++)
		if (lock_same_owner(&w->step[i].edge.want, owner))
			return true;
	return false;
}

static void close_circle(struct walk *w, unsigned last)
{
	struct circle *c = &w->circle;

	for (unsigned i = last;; i = w->step[i].from) {
		c->at[c->count].node = w->step[i].edge.want.node;
		c->at[c->count++].ticket = w->step[i].edge.ticket;
		if (i == 0)
			break;
	}
}

/* Follows the owners that block step i. Returns true if one is the first owner. */
static bool follow_edge(struct walk *w, unsigned i)
{
	const struct lock_edge *e = &w->step[i].edge;

	if (lock_list_get(w->k->fs, e->ino, &w->list))
		return false;
	for (unsigned n = 0; n < w->list.count; n++) {
		const struct disk_lock *r = &w->list.at[n];

		if (lock_waits(r) || !lock_conflicts(r, &e->want) ||
			lock_void(w->k, r->node, r->incarnation))
			continue;
		if (lock_same_owner(r, &w->step[0].edge.want)) {
			close_circle(w, i);
			return true;
		}
		if (w->count < STEPS_MAX && !is_in_walk(w, r) &&
			lock_nodes_wait_of(w->k, r, &w->step[w->count].edge))
			w->step[w->count++].from = i;
	}
	return false;
}

static bool walk_waits(struct walk *w, const struct lock_edge *start)
{
	memset(&w->circle, 0, sizeof(w->circle));
	w->step[0] = (struct step){.edge = *start};
	w->count = 1;
	for (unsigned i = 0; i < w->count; i++)
		if (follow_edge(w, i))
			return true;
	return false;
}

/* Returns true if another owner must give up: the one with the highest number does, if several see
 * the cycle. */
static bool other_gives_up(const struct walk *w, const struct lock_edge *start)
{
	for (unsigned i = 0; i < w->circle.count; i++)
		if (w->circle.at[i].ticket > start->ticket ||
			(w->circle.at[i].ticket == start->ticket &&
				w->circle.at[i].node > start->want.node))
			return true;
	return false;
}

static bool circle_same(const struct circle *a, const struct circle *b)
{
	for (unsigned i = 0; i < a->count && i < b->count; i++)
		if (a->at[i].node != b->at[i].node || a->at[i].ticket != b->at[i].ticket)
			return false;
	return a->count == b->count;
}

bool lock_cycle(struct locks *k, const struct lock_edge *start, bool *other)
{
	struct walk *w = rt_alloc(sizeof(*w));
	bool found = false;

	if (!w)
		return false;
	w->k = k;
	for (unsigned walks = 0; walks < WALKS_MAX && !found && walk_waits(w, start); walks++) {
		found = walks > 0 && circle_same(&w->circle, &w->before);
		w->before = w->circle;
	}
	*other = found && other_gives_up(w, start);
	lock_list_free(&w->list);
	rt_free(w);
	return found;
}
