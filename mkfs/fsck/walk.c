/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads the tree without trusting it (invariant 9).
 *
 * A walk goes from leaf to leaf by their ranges. Each page is checked by itself (tree_check_page)
 * and against its parent: a lower level, fences equal to the parent's keys. So no page can be in
 * two places and no walk can loop. A page that fails is reported to pass 1's function, and its
 * range is skipped. If only the checksum of a page is wrong, it is read as it is: later passes
 * check its items.
 *
 * Pages are copied. Nothing is held between calls, and the tree may change meanwhile. The walk then
 * goes down again from the root to its place.
 */
#include "mkfs/fsck/fsck_internal.h"

#define AHEAD_MAX 64u

struct fsck_store *store_of(struct fsck *f, page_id pid)
{
	for (unsigned i = 0; i < f->store_count; i++)
		if (f->store[i].sb.shard == pid_shard(pid))
			return &f->store[i];
	return NULL;
}

bool run_usable(struct fsck *f, page_id pid, uint64_t length)
{
	const struct fsck_store *s = store_of(f, pid);
	uint64_t slot = pid_slot(pid), first;

	if (!s && !f->o->all_stores && shards_elsewhere(&f->store[0].sb, pid))
		f->elsewhere = pid;
	if (!s || slot < 2 || slot >= s->sb.page_count || length == 0 ||
		length > DISK_GROUP_PAGES)
		return false;
	first = disk_group_slot(page_group(pid)) + 1;
	return slot >= first && slot - first + length <= DISK_GROUP_PAGES &&
	       slot + length <= s->sb.page_count;
}

bool page_usable(struct fsck *f, page_id pid)
{
	return run_usable(f, pid, 1);
}

int elsewhere_check(struct fsck *f)
{
	if (!f->elsewhere)
		return 0;
	return weft_error(f->err, -EOPNOTSUPP,
		"page %#" PRIx64 ", which the tree or the catalog names, is in the store "
		"with shard %u, which is missing: give all stores of the volume. If it "
		"has none with that shard, give its cluster file",
		f->elsewhere, pid_shard(f->elsewhere));
}

int page_copy(struct fsck *f, page_id pid, void *image, uint64_t *incarnation,
	uint64_t *version)
{
	struct guard g;
	int rc = guard_shared(f->v->cache, pid, 0, &g);

	if (rc)
		return rc;
	memcpy(image, g.image, PAGE_SIZE);
	if (incarnation)
		*incarnation = g.frame->incarnation;
	if (version)
		*version = g.frame->version;
	guard_release(f->v->cache, &g);
	return 0;
}

int page_descriptor_get(struct fsck *f, page_id pid, struct page_descriptor *out)
{
	return store_descriptor_get(store_of(f, pid)->v->store, pid, out);
}

int page_raw(struct fsck *f, page_id pid, void *image)
{
	const struct fsck_store *s = store_of(f, pid);
	void *buf = rt_alloc_pages(PAGE_SIZE);
	int rc = -ENOMEM;

	if (buf) {
		rc = rt_disk_read(s->in.disk,
			s->sb.pages_offset + pid_slot(pid) * PAGE_SIZE, buf, PAGE_SIZE);
		memcpy(image, buf, PAGE_SIZE);
		rt_free_pages(buf, PAGE_SIZE);
	}
	return rc;
}

/* ---- one page of the tree -------------------------------------------------------- */

/* The parent's data about a page. */
struct expected {
	page_id pid;
	unsigned level; /* its highest possible level; LEVELS_MAX: the root */
	unsigned usual; /* its level, unless the tree has grown in place */
	wide_key low, high;
};

static int node_matches(
	const struct disk_node *n, const struct expected *e, struct weft_error *err)
{
	if (n->level > e->level)
		return weft_error(err, -ESTALE, "it is of level %u", n->level);
	if (key_wide(n->low_fence) != e->low || key_wide(n->high_fence) != e->high)
		return weft_error(err, -ESTALE, "its range of keys is another one");
	return 0;
}

/*
 * Reads and checks a page. Returns 0: sound. 1: sound except for its checksum. -EIO, -EUCLEAN:
 * unreadable. -EBADMSG: not a sound page. -ESTALE: not the page that the parent names. `err` has
 * the reason.
 */
static int node_read(struct fsck *f, const struct expected *e, void *image,
	uint64_t *incarnation, struct weft_error *err)
{
	struct weft_error why = {0};
	int unread, rc;

	*incarnation = 0;
	if (!page_usable(f, e->pid))
		return weft_error(err, -ESTALE, "it cannot be a page of the tree");
	unread = page_copy(f, e->pid, image, incarnation, NULL);
	if (unread && unread != -EUCLEAN)
		return weft_error(err, unread, "%s", strerrordesc_np(-unread));
	if (unread && page_raw(f, e->pid, image))
		return weft_error(err, -EIO, "%s", strerrordesc_np(EIO));
	rc = tree_check_page(image, e->pid, &why);
	if (rc)
		return unread ? weft_error(err, unread, "its checksum is wrong")
			      : weft_error(err, -EBADMSG, "%s", why.text);
	rc = node_matches(image, e, err);
	if (rc)
		return unread ? weft_error(err, unread, "its checksum is wrong") : rc;
	return unread ? weft_error(err, 1, "its checksum is wrong") : 0;
}

/* ---- the walk -------------------------------------------------------------------- */

struct walk *walk_open(struct fsck *f, struct disk_key from)
{
	struct walk *w = rt_alloc(sizeof(*w));

	if (!w)
		return NULL;
	w->f = f;
	w->next = key_wide(from);
	w->edits = f->edits;
	w->height = LEVELS_MAX;
	return w;
}

void walk_close(struct walk *w)
{
	rt_free(w);
}

static void walk_forget(struct walk *w)
{
	for (unsigned i = 0; i < LEVELS_MAX; i++)
		w->level[i].valid = false;
	w->height = LEVELS_MAX;
	w->edits = w->f->edits;
}

static unsigned child_find(const struct disk_inner *p, wide_key key)
{
	unsigned at = 0;

	while (at + 1u < p->node.count && key_wide(p->key[at + 1]) <= key)
		at++;
	return at;
}

static void child_expected(
	const struct fsck *f, const struct disk_inner *p, unsigned at, struct expected *e)
{
	unsigned step = disk_level_step(f->store[0].sb.flags);

	*e = (struct expected){
		.pid = p->child[at],
		.level = p->node.level - 1u,
		.usual = p->node.level - MIN(p->node.level, step),
		.low = key_wide(p->key[at]),
		.high = at + 1u < p->node.count ? key_wide(p->key[at + 1])
						: key_wide(p->node.high_fence),
	};
}

/* Reads the next leaves together. */
static void children_fetch(struct walk *w, struct walk_level *l, unsigned at)
{
	struct page_ref refs[AHEAD_MAX];
	unsigned max = MIN(AHEAD_MAX, cache_batch_max(w->f->v->cache)), n = 0;

	if (at < l->fetched && l->fetched != 0)
		return;
	for (unsigned i = at; i < l->page.node.count && n < max; i++)
		if (page_usable(w->f, l->page.child[i]))
			refs[n++] = (struct page_ref){.pid = l->page.child[i]};
	l->fetched = MIN(at + max, l->page.node.count);
	if (n > 1)
		(void)cache_fetch(
			w->f->v->cache, refs, n); /* errors are met again, with a name */
}

/* Skips the range of a bad page. */
static void walk_skip(struct walk *w, const struct expected *e)
{
	w->done = e->high == KEY_MAX;
	w->next = e->high;
}

static void walk_damaged(struct walk *w, const struct walk_level *parent, unsigned slot,
	const struct expected *e, int rc, const char *why)
{
	struct damage d = {
		.parent = parent ? parent->pid : PID_NONE,
		.slot = slot,
		.pid = e->pid,
		.level = e->usual,
		.low = e->low,
		.high = e->high,
		.sound = rc == 1,
	};

	if (w->damage)
		w->damage(w->f, &d, rc, why);
	if (rc < 0)
		walk_skip(w, e);
}

/* Enters the expected page, below `parent`. Returns 0 with the page in w. Returns -ESTALE if its
 * range was skipped, -EOPNOTSUPP if it is in a store that is not given, or -ENOMEM. */
static int walk_enter(struct walk *w, const struct walk_level *parent, unsigned slot,
	const struct expected *e, unsigned *level)
{
	struct weft_error why = {0};
	uint64_t incarnation;
	uint8_t image[PAGE_SIZE] __attribute__((aligned(8)));
	const struct disk_node *n = (const struct disk_node *)image;
	int rc = node_read(w->f, e, image, &incarnation, &why);

	if (rc == -ENOMEM)
		return rc;
	if (elsewhere_check(w->f))
		return -EOPNOTSUPP;
	if (rc)
		walk_damaged(w, parent, slot, e, rc, why.text);
	if (rc < 0)
		return -ESTALE;
	*level = n->level;
	if (w->page)
		w->page(w->f, e->pid, n->level, incarnation);
	if (n->level == 0) {
		memcpy(&w->leaf, image, PAGE_SIZE);
		w->leaf_pid = e->pid;
		return 0;
	}
	w->level[n->level].valid = true;
	w->level[n->level].pid = e->pid;
	w->level[n->level].fetched = 0;
	memcpy(&w->level[n->level].page, image, PAGE_SIZE);
	return 0;
}

static int walk_root(struct walk *w, unsigned *level)
{
	struct expected e = {.pid = w->f->catalog.root_pid,
		.level = LEVELS_MAX,
		.low = 0,
		.high = KEY_MAX};
	int rc = walk_enter(w, NULL, 0, &e, level);

	if (rc == 0)
		w->height = *level;
	return rc;
}

/* Returns the lowest level whose kept page covers the next key. */
static unsigned walk_kept(const struct walk *w)
{
	for (unsigned l = 1; l <= w->height && w->height < LEVELS_MAX; l++) {
		const struct disk_inner *p = &w->level[l].page;

		if (w->level[l].valid && w->next >= key_wide(p->node.low_fence) &&
			(w->next < key_wide(p->node.high_fence) ||
				key_wide(p->node.high_fence) == KEY_MAX))
			return l;
	}
	return LEVELS_MAX;
}

int walk_leaf(struct walk *w)
{
	while (!w->done) {
		unsigned level;
		int rc = 0;

		if (w->edits != w->f->edits)
			walk_forget(w);
		level = walk_kept(w);
		if (level == LEVELS_MAX)
			rc = walk_root(w, &level);
		while (rc == 0 && level > 0) {
			struct walk_level *l = &w->level[level];
			struct expected e;

			l->slot = child_find(&l->page, w->next);
			if (level <= disk_level_step(w->f->store[0].sb.flags))
				children_fetch(w, l, l->slot);
			child_expected(w->f, &l->page, l->slot, &e);
			rc = walk_enter(w, l, l->slot, &e, &level);
		}
		if (rc == -ESTALE)
			continue;
		if (rc)
			return rc;
		w->done = key_wide(w->leaf.node.high_fence) == KEY_MAX;
		w->next = key_wide(w->leaf.node.high_fence);
		return 1;
	}
	return 0;
}

/* ---- items ----------------------------------------------------------------------- */

/* Visits items of w->leaf in [from, to). *again: the tree changed; continue at *from. */
static int leaf_visit(struct walk *w, wide_key *from, wide_key to, item_visit visit,
	void *arg, bool *again)
{
	uint64_t edits = w->f->edits;

	*again = false;
	for (unsigned i = 0; i < w->leaf.node.count; i++) {
		const struct disk_leaf_slot *s = &w->leaf.slot[i];
		int rc;

		if (key_wide(s->key) < *from)
			continue;
		if (key_wide(s->key) >= to)
			break;
		*from = key_wide(s->key) + 1;
		rc = visit(w->f, arg, s->key, (const uint8_t *)&w->leaf + s->offset,
			s->length);
		if (rc)
			return rc;
		if (w->f->edits != edits) {
			*again = true;
			return 0;
		}
	}
	return 0;
}

int items_scan(struct fsck *f, struct disk_key from, struct disk_key to, unsigned pass,
	item_visit visit, void *arg)
{
	struct walk *w = walk_open(f, from);
	wide_key at = key_wide(from), end = key_wide(to);
	uint64_t leaves = 0;
	int rc = 0;

	if (!w)
		return -ENOMEM;
	while (rc == 0 && at < end && w->next < end) {
		bool again;

		rc = walk_leaf(w);
		if (rc <= 0)
			break;
		rc = leaf_visit(w, &at, end, visit, arg, &again);
		if (again) {
			w->next = at;
			w->done = false;
		}
		if (++leaves % 64 == 0 && pass)
			fsck_progress(f, pass, leaves, f->out->tree_pages);
	}
	walk_close(w);
	return rc;
}

struct next_item {
	struct disk_key key;
	void *buf;
	size_t cap;
	int result;
};

static int next_visit(
	struct fsck *f, void *arg, struct disk_key key, const void *value, size_t len)
{
	struct next_item *n = arg;

	n->key = key;
	n->result = len > n->cap ? -ERANGE : (int)len;
	if (n->result > 0)
		memcpy(n->buf, value, len);
	return 1;
}

int item_next(struct fsck *f, struct disk_key from, struct disk_key to,
	struct disk_key *found, void *buf, size_t cap)
{
	struct next_item n = {.buf = buf, .cap = cap, .result = -ENOENT};
	int rc = items_scan(f, from, to, 0, next_visit, &n);

	*found = n.key;
	return rc < 0 ? rc : n.result;
}

int item_get(struct fsck *f, struct disk_key key, void *buf, size_t cap)
{
	struct disk_key found;

	return item_next(f, key, key_narrow(key_wide(key) + 1), &found, buf, cap);
}
