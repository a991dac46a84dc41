/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Making room: splits, and the root growing a level, each a mini-transaction of its own.
 *
 * A split latches the parent, the page, the new page and the allocation group, and waits for none
 * of them (invariant 6). The page is reserved and its frame prepared before. A split that loses a
 * race lets go of everything and begins again. A full parent is split first. At every moment the
 * tree is a whole one, so a transaction that gives up after a split has done no harm.
 *
 * The root's PID never changes: its content moves down into a new page.
 *
 * So does the content of a page whose parent cannot be changed, since a node that is away may have
 * the parent. The page grows where it is, and is split as a child of itself
 * (docs/nodes/semantics.md, "Splits while a node is away"). The level for that was left out when
 * the parent was made.
 */
#include <errno.h>

#include "engine/tree/tree_internal.h"

/* So often homes are asked within a split: more would say that it is of no use. */
#define SPLIT_ASKS 4u
/* Lost races before a split gives up with -EAGAIN. */
#define SPLIT_TRIES 64u
/* A node may be back soon, and a page that has grown stays so. A later split does not wait anew. */
#define GROW_AFTER_NS 1000000000ull
#define GROW_LOOK_NS  20000000ull

/* The purpose of a split. */
struct splitting {
	struct tree *t;
	struct mtr *mtr; /* the caller's, not begun */
	tree_key key;
	unsigned level;
	const struct txn_write *writes; /* at level 0: the writes that have to fit */
	unsigned write_count;
	bool divide; /* exactly at the key */
	bool privileged;
	struct space_run run; /* the new page; length 0: none yet */
	bool waits;           /* for nodes that are away, too */
	bool asked;           /* by a split below, which has another way */
	bool grows;           /* only that the root, of this level, grows */
	unsigned asks_left;   /* so often homes may yet be asked to do it */
	page_id unreached;    /* it is above, and a node that is away may have it; PID_NONE: none */
	uint64_t refused_ns;  /* since when something is; 0: not yet */
};

/* ---- sizes ----------------------------------------------------------------------- */

/* A leaf's items and the writes that will go there, as one sequence in key order. */
struct merged {
	const uint8_t *image;
	unsigned count;
	unsigned at;
	const struct txn_write *write, *end;
	/* the item stepped to */
	tree_key key;
	unsigned size; /* slot and value; 0: deleted */
};

static bool merged_step(struct merged *m)
{
	bool item = m->at < m->count;
	tree_key key = item ? leaf_key_load(m->image, m->at) : 0;

	if (!item && m->write == m->end)
		return false;
	if (m->write != m->end && (!item || m->write->key <= key)) {
		m->key = m->write->key;
		m->size = m->write->deletes ? 0 : LEAF_SLOT_BYTES + m->write->length;
		if (item && m->write->key == key)
			m->at++;
		m->write++;
		return true;
	}
	m->key = key;
	m->size = LEAF_SLOT_BYTES + leaf_place_load(m->image, m->at).length;
	m->at++;
	return true;
}

static unsigned writes_below(
	const struct txn_write *writes, unsigned count, tree_key high)
{
	unsigned n = 0;

	while (n < count && (writes[n].key < high || high == TREE_KEY_MAX))
		n++;
	return n;
}

unsigned leaf_after(const uint8_t *image, struct node_counts counts, tree_key high,
	const struct txn_write *writes, unsigned count, unsigned *taken)
{
	unsigned used = leaf_used(counts);

	*taken = writes_below(writes, count, high);
	for (unsigned i = 0; i < *taken; i++) {
		unsigned at = leaf_search(image, counts.count, writes[i].key);

		if (at < counts.count && leaf_key_load(image, at) == writes[i].key)
			used -= LEAF_SLOT_BYTES + leaf_place_load(image, at).length;
		if (!writes[i].deletes)
			used += LEAF_SLOT_BYTES + writes[i].length;
	}
	return used;
}

/*
 * Where to split a leaf that the writes overfill. If the keys come behind all others, the left page
 * is filled to the brim, and they go on in the right one. So ascending inserts leave full pages.
 * Otherwise the halves weigh the same.
 */
static tree_key leaf_separator(
	const uint8_t *image, const struct txn_write *writes, unsigned count)
{
	struct node_counts c = node_counts_load(image);
	struct merged m = {
		.image = image, .count = c.count, .write = writes, .end = writes + count};
	bool append = c.count == 0 || writes[0].key > leaf_key_load(image, c.count - 1u);
	unsigned total = 0, before = 0;
	tree_key last = 0;

	while (merged_step(&m))
		total += m.size;
	m.at = 0;
	m.write = writes;
	for (unsigned i = 0; merged_step(&m); i++) {
		if (i > 0 && m.size > 0) {
			last = m.key;
			if (append ? before + m.size > LEAF_CAPACITY
				   : 2 * before + m.size >= total)
				return m.key;
		}
		before += m.size;
	}
	return last;
}

/* ---- steps ----------------------------------------------------------------------- */

/* Reserves the new page and puts a zeroed frame for it into the cache. */
static int page_prepare(struct splitting *s, page_id near)
{
	unsigned flags = SPACE_METADATA | (s->privileged ? SPACE_PRIVILEGED : 0);
	int rc = 0;

	if (s->run.length == 0)
		rc = space_reserve(s->t->space, near, 1, flags, &s->run);
	if (rc) {
		s->run.length = 0;
		return rc;
	}
	return mtr_prepare_fresh(s->t->cache, s->run.pid, s->run.incarnation);
}

static void page_give_back(struct splitting *s)
{
	struct page_ref ref = {.pid = s->run.pid, .incarnation = s->run.incarnation};

	if (s->run.length == 0)
		return;
	cache_discard(s->t->cache, &ref, 1);
	space_unreserve(s->t->space, &s->run);
	s->run.length = 0;
}

/* The new page and its group, latched into the mtr and taken. */
static int page_take(struct splitting *s, struct mtr_page **fresh, page_id *busy)
{
	struct mtr *m = s->mtr;
	int rc = 0;

	*busy = s->run.pid;
	*fresh = mtr_fresh(m, s->run.pid, s->run.incarnation, &rc);
	if (!*fresh)
		return rc;
	*busy = space_group_of(s->t->space, s->run.pid);
	if (!mtr_latch(m, *busy, 0, &rc))
		return rc;
	*busy = PID_NONE;
	return space_take(s->t->space, m, &s->run);
}

/* The new page's image is complete. */
static void page_fill(struct mtr_page *fresh, const uint8_t *image)
{
	mtr_write(fresh, 0, image, PAGE_SIZE);
	guard_mark_checked(&fresh->guard);
}

static void split_commit(struct splitting *s)
{
	struct log_position pos = mtr_commit(s->mtr);

	space_committed(s->t->space, s->run.pid, 1, false, pos.end);
	s->run.length = 0;
	tree_count(s->t, splits);
}

/* The page's content moves into the new one; the page becomes its only parent, of this level. */
static int page_grow(
	struct splitting *s, struct descent *d, unsigned level, page_id *busy)
{
	struct mtr_page *page, *fresh;
	uint8_t image[PAGE_SIZE];
	page_id pid = s->run.pid;
	tree_key low, high;
	int rc = 0;

	rc = mtr_begin(s->mtr, s->t->cache, 3);
	if (rc)
		return rc;
	*busy = d->pid;
	page = mtr_upgrade(s->mtr, &d->node, &rc);
	if (page)
		rc = page_take(s, &fresh, busy);
	if (rc) {
		mtr_abort(s->mtr);
		return rc;
	}
	memcpy(image, page->guard.image, PAGE_SIZE);
	memcpy(image + NODE_PID, &pid, sizeof(pid));
	page_fill(fresh, image);
	guard_kcache_like(s->t->cache, &page->guard, &fresh->guard);

	low = tree_key_load(image + NODE_LOW);
	high = tree_key_load(image + NODE_HIGH);
	node_init(image, d->pid, level, low, high);
	inner_insert(&(struct node_edit){.image = image}, 0, low, pid);
	mtr_write(page, 0, image, PAGE_SIZE);
	split_commit(s);
	cache_downgrade_soon(s->t->cache, d->pid);
	return 0;
}

static int root_grow(struct splitting *s, struct descent *d, page_id *busy)
{
	unsigned level = MIN(d->counts.level + s->t->step, TREE_LEVELS_MAX - 1u);

	return level > d->counts.level ? page_grow(s, d, level, busy) : -ENOSPC;
}

/* Everything is latched: move the upper part of the page to the new one. */
static void split_apply(struct splitting *s, struct mtr_page *parent,
	struct mtr_page *node, struct mtr_page *fresh, unsigned slot)
{
	struct node_edit e = {.image = node->guard.image, .page = node};
	struct node_edit up = {.image = parent->guard.image, .page = parent};
	struct node_counts c = node_counts_load(e.image);
	uint8_t image[PAGE_SIZE];
	tree_key separator;

	if (s->level == 0) {
		unsigned n = writes_below(
			s->writes, s->write_count, tree_key_load(e.image + NODE_HIGH));

		separator = s->divide ? s->key : leaf_separator(e.image, s->writes, n);
		leaf_split(&e, image, s->run.pid, separator);
		guard_kcache_like(s->t->cache, &node->guard, &fresh->guard);
	} else {
		/* Ascending inserts arrive at the last child: leave the left page full.
		 */
		unsigned found = inner_search(e.image, c.count, s->key), at = found;

		if (!s->divide)
			at = found == c.count - 1u ? found : c.count / 2u;
		separator = tree_key_load(e.image + INNER_KEY(at));
		inner_split(&e, image, s->run.pid, at);
	}
	page_fill(fresh, image);
	inner_insert(&up, slot + 1, separator, s->run.pid);
	tree_hints_shift(s->t, parent->guard.frame, slot + 1, 1);
}

static int node_split(struct splitting *s, struct descent *d, page_id *busy)
{
	struct mtr_page *parent, *node = NULL, *fresh = NULL;
	int rc = mtr_begin(s->mtr, s->t->cache, 4);

	if (rc)
		return rc;
	*busy = d->parent_pid;
	parent = mtr_upgrade(s->mtr, &d->parent, &rc);
	if (parent) {
		*busy = d->pid;
		node = mtr_upgrade(s->mtr, &d->node, &rc);
	}
	if (node)
		rc = page_take(s, &fresh, busy);
	if (rc) {
		mtr_abort(s->mtr);
		return rc;
	}
	split_apply(s, parent, node, fresh, d->slot);
	split_commit(s);
	cache_downgrade_soon(s->t->cache, d->parent_pid);
	if (s->level > 0)
		cache_downgrade_soon(s->t->cache, d->pid);
	return 0;
}

/* ---- the loop -------------------------------------------------------------------- */

/* Whether the page that d found has to be split; counts only while d->node stands. */
static bool split_needed(const struct splitting *s, const struct descent *d)
{
	unsigned taken;

	if (s->grows)
		return d->parent.kind == GUARD_NONE;
	if (s->divide)
		return d->low != s->key;
	if (s->level > 0)
		return d->counts.count >= DISK_INNER_CHILDREN;
	return leaf_after(d->node.image, d->counts, d->high, s->writes, s->write_count,
		       &taken) > LEAF_CAPACITY;
}

static int split_level(struct splitting *s);

/* Returns true if another node, the page's home, has done it. Then the new page is in its shard,
 * too. Otherwise this node does it. Nothing is held. */
static bool home_does(
	struct splitting *s, page_id pid, enum tree_split_kind kind, unsigned level)
{
	unsigned home = cache_home(s->t->cache, pid);
	bool done;

	if (home == COHERENCE_NO_NODE || !s->asks_left)
		return false;
	done = !tree_ask_split(s->t, home, kind, s->key, level, s->privileged);
	s->asks_left = done ? s->asks_left - 1 : 0;
	return done;
}

static int split_parent(struct splitting *s, page_id pid, unsigned level)
{
	struct splitting up = {
		.t = s->t,
		.mtr = s->mtr,
		.key = s->key,
		.level = level,
		.privileged = s->privileged,
		.waits = s->waits,
		.asked = true,
		.unreached = PID_NONE,
	};
	int rc;

	if (home_does(s, pid, TREE_SPLIT_ROOM, level))
		return 0;
	up.asks_left = s->asks_left;
	rc = split_level(&up);
	if (rc == -EHOSTUNREACH)
		s->unreached = up.unreached;
	return rc;
}

/* The page above cannot be changed. The node that holds this page keeps the level of the one above
 * from falling: it is that of a page with this child. It does not matter where its content goes. */
static int below_grow(struct splitting *s, struct descent *d, page_id *busy)
{
	int rc;

	if (d->counts.level + 1u >= d->parent_level)
		return -EHOSTUNREACH;
	if (s->run.length == 0)
		return page_prepare(s, d->pid);
	rc = page_grow(s, d, d->counts.level + 1u, busy);
	if (rc == 0) {
		tree_count(s->t, grown);
		s->unreached = PID_NONE; /* no longer the page above */
	}
	return rc;
}

/* One try. Returns 0 with *done, or 0 to look again. -EAGAIN: lost a race for page *busy.
 * -EHOSTUNREACH: it would have to wait for s->unreached. */
static int split_once(struct splitting *s, bool *done, page_id *busy, page_id *above)
{
	struct descent d;
	bool needed;
	int rc = tree_descend(s->t, s->key, s->level, &d);

	*busy = PID_NONE;
	*above = d.parent_pid;
	if (rc == -ENOENT) { /* the tree has no such level here now: nothing to split */
		*done = true;
		return 0;
	}
	if (rc)
		return rc;
	needed = split_needed(s, &d);
	if (!guard_valid(&d.node))
		return -EAGAIN;
	if (!needed) {
		*done = true;
		return 0;
	}
	if (d.parent.kind != GUARD_NONE && s->unreached != PID_NONE)
		return below_grow(s, &d, busy);
	if (d.parent.kind != GUARD_NONE && d.parent_count >= DISK_INNER_CHILDREN)
		return split_parent(s, d.parent_pid, d.parent_level);
	if (d.parent.kind == GUARD_NONE &&
		home_does(s, d.pid, TREE_SPLIT_GROW, d.counts.level))
		return 0;
	if (s->run.length == 0)
		return page_prepare(s, d.pid);
	if (d.parent.kind == GUARD_NONE)
		return root_grow(s, &d, busy);
	return node_split(s, &d, busy);
}

/* Returns true if the page has been refused for so long, to this split or to an earlier one. */
static bool refused_long(struct splitting *s, page_id pid)
{
	struct tree_refused *r = &s->t->refused[pid % TREE_REFUSED];
	uint64_t now = rt_now_ns();
	bool is_long;

	if (!s->refused_ns)
		s->refused_ns = now;
	rt_mutex_lock(&s->t->refused_lock);
	if (r->pid != pid || now - r->last_ns > GROW_AFTER_NS)
		r->since_ns = now;
	r->pid = pid;
	r->last_ns = now;
	is_long = now - MIN(r->since_ns, s->refused_ns) >= GROW_AFTER_NS;
	rt_mutex_unlock(&s->t->refused_lock);
	return is_long;
}

/*
 * A page was latched, or is not this node's, or a node that is away may have it. If the last is
 * true of a page above, the caller must know it. Waits for the page itself and its group, unless a
 * page below can grow instead.
 */
static int split_wait(struct splitting *s, page_id busy, page_id above, unsigned *tries)
{
	int rc;

	if (busy != PID_NONE && busy == s->run.pid)
		return page_prepare(s, busy); /* its frame got lost */
	if (s->waits)
		return tree_wait_exclusive(s->t, busy, *tries);
	rc = tree_wait_reached(s->t, busy, *tries);
	if (rc != -EHOSTUNREACH)
		return rc;
	if (busy != above && !s->asked)
		return tree_wait_exclusive(s->t, busy, 0);
	if (!refused_long(s, busy)) {
		rt_sleep_ns(GROW_LOOK_NS);
		(*tries)--;
		return rt_task_unwanted() ? -EINTR : 0;
	}
	s->unreached = busy;
	return busy == above ? 0 : -EHOSTUNREACH;
}

/* Splits the page of s->key at s->level until it has room. Recursion is bounded by
 * levels. */
static int split_level(struct splitting *s)
{
	bool done = false;
	int rc = 0;

	if (s->level >= TREE_LEVELS_MAX)
		return -ENOSPC;
	for (unsigned tries = 0; !done && tries < SPLIT_TRIES;) {
		page_id busy, above;

		rc = split_once(s, &done, &busy, &above);
		if (rc == -EHOSTUNREACH && !s->asked && s->unreached != PID_NONE) {
			/* no level is left */
			busy = s->unreached;
			s->unreached = PID_NONE;
			rc = tree_wait_exclusive(s->t, busy, 0);
		} else if (rc == -EAGAIN) {
			tries++;
			tree_count(s->t, restarts);
			rc = split_wait(s, busy, above, &tries);
		}
		if (rc && rc != -EAGAIN)
			break;
	}
	page_give_back(s);
	return done ? 0 : rc ? rc : -EAGAIN;
}

int tree_make_room(struct tree *t, const struct txn_write *writes, unsigned count,
	bool privileged, struct mtr *mtr)
{
	struct splitting s = {
		.t = t,
		.mtr = mtr,
		.key = writes[0].key,
		.writes = writes,
		.write_count = count,
		.privileged = privileged,
		.asks_left = SPLIT_ASKS,
		.unreached = PID_NONE,
	};

	return split_level(&s);
}

static int divide_level(
	struct tree *t, tree_key key, unsigned level, bool for_other, struct mtr *mtr)
{
	struct splitting s = {
		.t = t,
		.mtr = mtr,
		.key = key,
		.level = level,
		.divide = true,
		.waits = !for_other,
		.asked = for_other,
		.asks_left = for_other ? 0 : SPLIT_ASKS,
		.unreached = PID_NONE,
	};

	return split_level(&s);
}

/* The leaf first: then a child of the page above begins at the key. */
static int divide_at(
	struct tree *t, tree_key key, bool parents, bool for_other, struct mtr *mtr)
{
	struct descent d;
	int rc = divide_level(t, key, 0, for_other, mtr);

	if (rc == 0 && parents)
		rc = tree_descend(t, key, 0, &d);
	if (rc == 0 && parents && d.parent.kind != GUARD_NONE)
		rc = divide_level(t, key, d.parent_level, for_other, mtr);
	return rc;
}

int tree_divide(struct tree *t, struct disk_key at, bool parents)
{
	struct mtr *mtr = rt_alloc(sizeof(*mtr));
	int rc = mtr ? divide_at(t, tree_key_of(at), parents, false, mtr) : -ENOMEM;

	rt_free(mtr);
	return rc;
}

int tree_divide_there(struct tree *t, struct disk_key at)
{
	tree_key key = tree_key_of(at);
	unsigned home = COHERENCE_NO_NODE;
	struct descent d;

	if (!tree_descend(t, key, 0, &d))
		home = cache_home(t->cache, d.pid);
	if (home != COHERENCE_NO_NODE &&
		!tree_ask_split(t, home, TREE_SPLIT_AT, key, 0, false))
		return 0;
	return tree_divide(t, at, true);
}

int tree_split_for(struct tree *t, enum tree_split_kind kind, tree_key key,
	unsigned level, bool privileged)
{
	struct mtr *mtr = rt_alloc(sizeof(*mtr));
	struct splitting s = {
		.t = t,
		.mtr = mtr,
		.key = key,
		.level = level,
		.privileged = privileged,
		.asked = true,
		.grows = kind == TREE_SPLIT_GROW,
		.unreached = PID_NONE,
	};
	int rc = -ENOMEM;

	if (mtr)
		rc = kind == TREE_SPLIT_AT ? divide_at(t, key, true, true, mtr)
					  : split_level(&s);
	rt_free(mtr);
	return rc;
}
