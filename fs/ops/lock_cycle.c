/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Deadlocks of fcntl locks, across files and nodes: does one that waits wait for itself?
 *
 * From a request to those who hold what is in its way, to what they wait for, and so on.
 * This looks at one thing after the other while all goes on. But whoever is found waiting
 * for the same thing, by its ticket, in two walks, has waited from the first to the
 * second; so has then every owner of the circle, and none of them could let go.
 */
#include "fs/ops/lock_internal.h"

#define STEPS_MAX 64u
#define WALKS_MAX 4u

struct step {
	struct lock_edge edge;
	unsigned from; /* whose way its owner is in; the first one's: itself */
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

static bool seen(const struct walk *w, const struct disk_lock *owner)
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

/* Those who are in the way of step i. True: the first of all is. */
static bool look(struct walk *w, unsigned i)
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
		if (w->count < STEPS_MAX && !seen(w, r) &&
			lock_nodes_wait_of(w->k, r, &w->step[w->count].edge))
			w->step[w->count++].from = i;
	}
	return false;
}

static bool walk(struct walk *w, const struct lock_edge *start)
{
	memset(&w->circle, 0, sizeof(w->circle));
	w->step[0] = (struct step){.edge = *start};
	w->count = 1;
	for (unsigned i = 0; i < w->count; i++)
		if (look(w, i))
			return true;
	return false;
}

/* The one with the highest number gives up, if several see it. */
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
	for (unsigned walks = 0; walks < WALKS_MAX && !found && walk(w, start); walks++) {
		found = walks > 0 && circle_same(&w->circle, &w->before);
		w->before = w->circle;
	}
	*other = found && other_gives_up(w, start);
	rt_free(w);
	return found;
}
