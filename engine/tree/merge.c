/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Giving space back: sparse pages join a sibling, and a root with one child takes its content.
 *
 * Best effort, after a commit that removed items. Every failure, a lost race included, leaves a
 * whole tree with a sparse page in it, which the next removal there tries again. While latches are
 * held, nothing waits (invariant 6). A page that is latched, or that this node does not hold
 * exclusively, ends the try. It is requested when nothing is held, and the next try begins with a
 * descent. Nodes that are away are not waited for at all.
 *
 * A page that dies is changed once more (its magic becomes zero). So an optimistic reader of it
 * fails to validate, also a transaction that read it long ago.
 */
#include <errno.h>

#include "engine/tree/tree_internal.h"

/* Lost races before a join gives up: others may take one of its pages while the next is asked
 * for. */
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
	/* pages that this node must have, and that must not be latched, before the next try */
	page_id needs[MERGE_PAGES];
	unsigned need_count;
};

/* ---- sizes ----------------------------------------------------------------------- */

static bool counts_sparse(struct node_counts c)
{
	return c.level == 0 ? leaf_is_sparse(leaf_used(c))
			    : c.count < DISK_INNER_CHILDREN / 4;
}

/* Both fit, with room to spare so that the next insert does not split them again. An empty leaf
 * goes with any sibling. */
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
	int rc = tree_descend_once(t, key, level, d);
	tree_key end;

	if (rc != -EAGAIN)
		return rc;
	rc = tree_reach(t, key, level, &end);
	return rc ? rc : tree_descend_once(t, key, level, d);
}

static void need_page(struct merging *m, page_id pid)
{
	WEFT_ASSERT(m->need_count < MERGE_PAGES);
	m->needs[m->need_count++] = pid;
}

/* A page just loaded is checked by a descent to it, which waits for nothing. */
static bool sibling_checked(const struct merging *m, unsigned slot, const struct guard *g)
{
	if (!guard_checked(g)) {
		tree_key key = tree_key_load(m->d.parent.image + INNER_KEY(slot));
		struct descent d;

		(void)tree_descend_once(m->t, key, m->d.counts.level, &d);
	}
	return guard_checked(g);
}

/* The sibling's guard; the parent proves that it is one. */
static int sibling_guard(struct merging *m, unsigned slot, page_id *pid, struct guard *g)
{
	int rc;

	*pid = page_load_u64(m->d.parent.image + INNER_CHILD(slot));
	if (!guard_valid(&m->d.parent))
		return -EAGAIN;
	rc = guard_try_optimistic(m->t->cache, *pid, NULL, g);
	if (rc == -EAGAIN)
		need_page(m, *pid);
	if (rc)
		return rc;
	if (!sibling_checked(m, slot, g))
		return guard_valid(g) ? -ENOENT : -EAGAIN;
	return guard_valid(&m->d.parent) ? 0 : -EAGAIN;
}

/* The two sides of the division are different nodes' (tree_divide). The sibling is not even looked
 * at, since it would have to come from the other node. */
static bool is_divided(const struct merging *m, unsigned right_slot)
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
	int rc;

	if (on_right ? d->slot + 1 >= d->parent_count : d->slot == 0)
		return -ENOENT;
	if (is_divided(m, on_right ? d->slot + 1 : d->slot))
		return -ENOENT;
	rc = sibling_guard(m, on_right ? d->slot + 1 : d->slot - 1, &pid, &g);
	if (rc)
		return rc;
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
	int rc = 0;

	if (!mtr_latch(m->mtr, space_group_of(m->t->space, pid), 0, &rc))
		return rc;
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

static int join_pages(struct merging *m)
{
	struct mtr_page *parent, *left = NULL, *right = NULL;
	uint8_t image[PAGE_SIZE];
	int rc = mtr_begin(m->mtr, m->t->cache, MERGE_PAGES);

	if (rc)
		return rc;
	need_page(m, m->d.parent_pid);
	need_page(m, m->left_pid);
	need_page(m, m->right_pid);
	need_page(m, space_group_of(m->t->space, m->right_pid));
	parent = mtr_upgrade(m->mtr, &m->d.parent, &rc);
	if (parent)
		left = mtr_upgrade(m->mtr, &m->left, &rc);
	if (left)
		right = mtr_upgrade(m->mtr, &m->right, &rc);
	if (right)
		rc = page_free(m, m->right_pid);
	if (rc) {
		mtr_abort(m->mtr);
		return rc;
	}
	memcpy(image, left->guard.image, PAGE_SIZE);
	if (m->d.counts.level == 0)
		leaf_join(image, right->guard.image);
	else
		inner_join(image, right->guard.image);
	mtr_write(left, 0, image, PAGE_SIZE);
	guard_kcache_like(m->t->cache, &right->guard, &left->guard);
	inner_remove(&(struct node_edit){.image = parent->guard.image, .page = parent},
		m->right_slot);
	tree_hints_shift(m->t, parent->guard.frame, m->right_slot, -1);
	freed_commit(m, right, m->right_pid);
	cache_downgrade_soon(m->t->cache, m->d.parent_pid);
	if (m->d.counts.level > 0)
		cache_downgrade_soon(m->t->cache, m->left_pid);
	return 0;
}

/* A page's only child, in m->d.node, moves into it: the root's, or of one that has grown where
 * it is. */
static int collapse_root(struct merging *m)
{
	struct mtr_page *parent, *child = NULL;
	uint8_t image[PAGE_SIZE];
	int rc = mtr_begin(m->mtr, m->t->cache, 3);

	if (rc)
		return rc;
	need_page(m, m->d.parent_pid);
	need_page(m, m->d.pid);
	need_page(m, space_group_of(m->t->space, m->d.pid));
	parent = mtr_upgrade(m->mtr, &m->d.parent, &rc);
	if (parent)
		child = mtr_upgrade(m->mtr, &m->d.node, &rc);
	if (child)
		rc = page_free(m, m->d.pid);
	if (rc) {
		mtr_abort(m->mtr);
		return rc;
	}
	memcpy(image, child->guard.image, PAGE_SIZE);
	memcpy(image + NODE_PID, &m->d.parent_pid, sizeof(page_id));
	mtr_write(parent, 0, image, PAGE_SIZE);
	guard_kcache_like(m->t->cache, &child->guard, &parent->guard);
	freed_commit(m, child, m->d.pid);
	if (m->d.counts.level > 0)
		cache_downgrade_soon(m->t->cache, m->d.parent_pid);
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
	int rc = descend_reached(m->t, key, level, &m->d);

	if (rc)
		return rc;
	if (m->d.parent.kind == GUARD_NONE)
		return -ENOENT;
	if (m->d.parent_count == 1)
		return m->d.parent_pid == m->t->root || has_grown(m) ? collapse_root(m)
								     : -EDOM;
	if (!counts_sparse(m->d.counts))
		return -ENOENT;
	/* a division is on the left of the keys that begin there */
	rc = sibling_try(m, !m->over);
	if (rc == -ENOENT)
		rc = sibling_try(m, m->over);
	return rc ? rc : join_pages(m);
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
		int rc = merge_once(key, level, &m);

		if (rc == -EAGAIN) {
			tries++;
			/* another time, where one is away that has it: nothing waits for this */
			if (needs_fetch(&m, tries))
				return;
			continue;
		}
		/* An only child has no sibling until its parent has found one. */
		if (rc != 0 && rc != -EDOM)
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
