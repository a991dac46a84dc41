/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Giving space back: sparse pages join a sibling, a root with one child takes its
 * content.
 *
 * Best effort, after a commit that removed items: every failure, a lost race included,
 * leaves a whole tree with a sparse page in it, which the next removal there tries again.
 * Nothing is waited for while latches are held (invariant 6): a page that is latched, or that this node
 * has not got for itself, ends the try. It is asked for when nothing is held, and the next try begins
 * with a descent. Nodes that are away are not waited for at all.
 *
 * A page that dies is changed once more (its magic becomes zero), so that whoever read it
 * optimistically fails to validate, also a transaction that read it long ago.
 */
#include <errno.h>

#include "engine/tree/tree_internal.h"

/* Lost races before a join gives up: others may take one of its pages while the next is asked for. */
#define MERGE_TRIES 8u
#define MERGE_PAGES 4u /* parent, two children, the group of the one that dies */

/* Two children of one parent that may become one. */
struct merging {
	struct tree *t;
	struct mtr *mtr;
	struct descent d; /* of the sparse page */
	struct guard left, right;
	page_id left_pid, right_pid;
	unsigned right_slot;
	tree_key over; /* the division that is to go; 0: none */
	/* what is to be this node's, and not latched, before the next try */
	page_id needs[MERGE_PAGES];
	unsigned need_count;
};

/* ---- sizes ----------------------------------------------------------------------- */

static bool counts_sparse(struct node_counts c)
{
	return c.level == 0 ? leaf_is_sparse(leaf_used(c))
			    : c.count < DISK_INNER_CHILDREN / 4;
}

/* Both fit, with room to spare so that the next insert does not split them again; an
 * empty leaf goes with any sibling. */
static bool counts_fit(struct node_counts a, struct node_counts b)
{
	if (a.level > 0)
		return a.count + b.count <= DISK_INNER_CHILDREN * 3 / 4;
	if (a.count == 0 || b.count == 0)
		return true;
	return leaf_used(a) + leaf_used(b) <= LEAF_CAPACITY * 3 / 4;
}

/* ---- finding --------------------------------------------------------------------- */

/* As tree_descend, but -EHOSTUNREACH where that would wait for a node that is away. */
static int descend_reached(
	struct tree *t, tree_key key, unsigned level, struct descent *d)
{
	int r = tree_descend_once(t, key, level, d);
	tree_key end;

	if (r != -EAGAIN)
		return r;
	r = tree_reach(t, key, level, &end);
	return r ? r : tree_descend_once(t, key, level, d);
}

static void needs(struct merging *m, page_id pid)
{
	WEFT_ASSERT(m->need_count < MERGE_PAGES);
	m->needs[m->need_count++] = pid;
}

static bool is_checked(const struct guard *g)
{
	return atomic_load_explicit(&g->frame->flags, memory_order_relaxed) &
	       FRAME_CHECKED;
}

/* A page just loaded is checked by a descent to it, which waits for nothing. */
static bool sibling_checked(const struct merging *m, unsigned slot, const struct guard *g)
{
	if (!is_checked(g)) {
		tree_key key = tree_key_load(m->d.parent.image + INNER_KEY(slot));
		struct descent d;

		(void)tree_descend_once(m->t, key, m->d.counts.level, &d);
	}
	return is_checked(g);
}

/* The sibling's guard; the parent proves that it is one. */
static int sibling_guard(struct merging *m, unsigned slot, page_id *pid, struct guard *g)
{
	int r;

	*pid = page_load_u64(m->d.parent.image + INNER_CHILD(slot));
	if (!guard_valid(&m->d.parent))
		return -EAGAIN;
	r = guard_try_optimistic(m->t->cache, *pid, NULL, g);
	if (r == -EAGAIN)
		needs(m, *pid);
	if (r)
		return r;
	if (!sibling_checked(m, slot, g))
		return guard_valid(g) ? -ENOENT : -EAGAIN;
	return guard_valid(&m->d.parent) ? 0 : -EAGAIN;
}

/* What is on the two sides are different nodes' (tree_divide): the sibling is not even
 * looked at, since it would have to come from there. */
static bool divided(const struct merging *m, unsigned right_slot)
{
	tree_key at = tree_key_load(m->d.parent.image + INNER_KEY(right_slot));

	return at != m->over && m->d.counts.level <= m->t->step &&
	       cache_has_peers(m->t->cache) && disk_key_divides(tree_key_disk(at));
}

/* Looks at the sibling on one side. -ENOENT: there is none that fits. */
static int sibling_try(struct merging *m, bool on_right)
{
	const struct descent *d = &m->d;
	struct node_counts other;
	struct guard g;
	page_id pid;
	int r;

	if (on_right ? d->slot + 1 >= d->parent_count : d->slot == 0)
		return -ENOENT;
	if (divided(m, on_right ? d->slot + 1 : d->slot))
		return -ENOENT;
	r = sibling_guard(m, on_right ? d->slot + 1 : d->slot - 1, &pid, &g);
	if (r)
		return r;
	other = node_counts_load(g.image);
	if (other.level != d->counts.level || !counts_fit(d->counts, other))
		return -ENOENT;
	m->left = on_right ? d->node : g;
	m->left_pid = on_right ? d->pid : pid;
	m->right = on_right ? g : d->node;
	m->right_pid = on_right ? pid : d->pid;
	m->right_slot = on_right ? d->slot + 1 : d->slot;
	return 0;
}

/* ---- changes --------------------------------------------------------------------- */

/* The page is free with this mtr. Nothing is changed when it fails. */
static int page_free(struct merging *m, page_id pid)
{
	int r = 0;

	if (!mtr_latch(m->mtr, space_group_of(m->t->space, pid), 0, &r))
		return r;
	return space_free(m->t->space, m->mtr, pid, 1);
}

static void freed_commit(struct merging *m, struct mtr_page *dead, page_id pid)
{
	struct page_ref ref = {.pid = pid, .incarnation = dead->guard.frame->incarnation};
	struct log_position pos;

	mtr_write_u64(dead, NODE_MAGIC, 0);
	pos = mtr_commit(m->mtr);
	/* Out of the cache first: once settled the page may be reserved anew. */
	cache_discard(m->t->cache, &ref, 1);
	space_committed(m->t->space, pid, 1, true, pos.end);
	tree_count(m->t, merges);
}

static int join(struct merging *m)
{
	struct mtr_page *parent, *left = NULL, *right = NULL;
	uint8_t image[PAGE_SIZE];
	int r = mtr_begin(m->mtr, m->t->cache, MERGE_PAGES);

	if (r)
		return r;
	needs(m, m->d.parent_pid);
	needs(m, m->left_pid);
	needs(m, m->right_pid);
	needs(m, space_group_of(m->t->space, m->right_pid));
	parent = mtr_upgrade(m->mtr, &m->d.parent, &r);
	if (parent)
		left = mtr_upgrade(m->mtr, &m->left, &r);
	if (left)
		right = mtr_upgrade(m->mtr, &m->right, &r);
	if (right)
		r = page_free(m, m->right_pid);
	if (r) {
		mtr_abort(m->mtr);
		return r;
	}
	memcpy(image, left->guard.image, PAGE_SIZE);
	if (m->d.counts.level == 0)
		leaf_join(image, right->guard.image);
	else
		inner_join(image, right->guard.image);
	mtr_write(left, 0, image, PAGE_SIZE);
	guard_expose_like(m->t->cache, &right->guard, &left->guard);
	inner_remove(&(struct node_edit){.image = parent->guard.image, .page = parent},
		m->right_slot);
	tree_hints_shift(m->t, parent->guard.frame, m->right_slot, -1);
	freed_commit(m, right, m->right_pid);
	cache_rest_soon(m->t->cache, m->d.parent_pid);
	if (m->d.counts.level > 0)
		cache_rest_soon(m->t->cache, m->left_pid);
	return 0;
}

/* A page's only child, in m->d.node, moves into it: the root's, or of one that has grown where
 * it is. */
static int collapse(struct merging *m)
{
	struct mtr_page *parent, *child = NULL;
	uint8_t image[PAGE_SIZE];
	int r = mtr_begin(m->mtr, m->t->cache, 3);

	if (r)
		return r;
	needs(m, m->d.parent_pid);
	needs(m, m->d.pid);
	needs(m, space_group_of(m->t->space, m->d.pid));
	parent = mtr_upgrade(m->mtr, &m->d.parent, &r);
	if (parent)
		child = mtr_upgrade(m->mtr, &m->d.node, &r);
	if (child)
		r = page_free(m, m->d.pid);
	if (r) {
		mtr_abort(m->mtr);
		return r;
	}
	memcpy(image, child->guard.image, PAGE_SIZE);
	memcpy(image + NODE_PID, &m->d.parent_pid, sizeof(page_id));
	mtr_write(parent, 0, image, PAGE_SIZE);
	guard_expose_like(m->t->cache, &child->guard, &parent->guard);
	freed_commit(m, child, m->d.pid);
	if (m->d.counts.level > 0)
		cache_rest_soon(m->t->cache, m->d.parent_pid);
	return 0;
}

/* The page above has grown where it is: there is one where a level is left out. */
static bool has_grown(const struct merging *m)
{
	return m->d.parent_level - m->d.counts.level < m->t->step;
}

/* ---- the loop -------------------------------------------------------------------- */

/* One try at one level. 0: joined, look at the parent; -ENOENT: nothing to do. */
static int merge_once(tree_key key, unsigned level, struct merging *m)
{
	int r = descend_reached(m->t, key, level, &m->d);

	if (r)
		return r;
	if (m->d.parent.kind == GUARD_NONE)
		return -ENOENT;
	if (m->d.parent_count == 1)
		return m->d.parent_pid == m->t->root || has_grown(m) ? collapse(m)
								     : -EDOM;
	if (!counts_sparse(m->d.counts))
		return -ENOENT;
	/* a division is on the left of what begins there */
	r = sibling_try(m, !m->over);
	if (r == -ENOENT)
		r = sibling_try(m, m->over);
	return r ? r : join(m);
}

/* Holding nothing. Pages that are this node's already cost no message. */
static int needs_fetch(const struct merging *m, unsigned tries)
{
	struct page_ref refs[MERGE_PAGES];

	tree_back_off(tries);
	for (unsigned i = 0; i < m->need_count; i++)
		refs[i] = (struct page_ref){.pid = m->needs[i]};
	return cache_fetch_reached(m->t->cache, refs, m->need_count);
}

static void merge_from(struct tree *t, tree_key key, struct mtr *mtr, tree_key over)
{
	unsigned tries = 0;
	unsigned level = 0;

	for (unsigned round = 0; round < 2 * TREE_LEVELS_MAX && tries < MERGE_TRIES;
		round++) {
		struct merging m = {.t = t, .mtr = mtr, .over = over};
		int r = merge_once(key, level, &m);

		if (r == -EAGAIN) {
			tries++;
			/* another time, where one is away that has it: nothing waits for this */
			if (needs_fetch(&m, tries))
				return;
			continue;
		}
		/* An only child has no sibling until its parent has found one. */
		if (r != 0 && r != -EDOM)
			return;
		/* Below the root look again: it may be down to one child now. */
		if (m.d.parent_pid != t->root)
			level = m.d.parent_level;
		tries = 0;
	}
}

void tree_merge(struct tree *t, tree_key key, struct mtr *mtr)
{
	merge_from(t, key, mtr, 0);
}

bool tree_undivide(struct tree *t, struct disk_key at)
{
	struct mtr *mtr = rt_alloc(sizeof(*mtr));
	tree_key key = tree_key_of(at);
	bool joined = false;
	struct descent d;

	/* where the pages above are divided, too, they are the first to be joined */
	for (unsigned i = 0; mtr && !joined && i < 2; i++) {
		merge_from(t, key, mtr, key);
		joined = descend_reached(t, key, 0, &d) == 0 && d.low != key;
	}
	rt_free(mtr);
	return joined;
}

void tree_tidy(struct tree *t, struct disk_key from, struct disk_key to)
{
	struct mtr *mtr = rt_alloc(sizeof(*mtr));
	tree_key at = tree_key_of(from), end = tree_key_of(to);
	struct descent d;

	while (mtr && at <= end && descend_reached(t, at, 0, &d) == 0) {
		merge_from(t, at, mtr, 0);
		if (d.high == TREE_KEY_MAX)
			break;
		at = d.high;
	}
	rt_free(mtr);
}
