/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Repairs the tree's structure, after pass 1.
 *
 * A damaged page is never written again. A new one replaces it in the parent (for the root, in the
 * catalog) in one mini-transaction. If the content is sound, the new page has it. Otherwise it is
 * empty: a leaf, or a chain of inner pages down to an empty leaf.
 *
 * Then the lost items are searched. Leaves below a lost inner page, or cut off in another way,
 * still exist. They are marked as in use, and pass 1 did not reach them. Sound ones have items of
 * lost ranges. These are inserted again unless their key exists, from the pages allocated last
 * first. Before them come the readable items of the damaged leaves themselves. Their old pages are
 * leaked in the next round.
 *
 * A crash between the two steps leaves these pages leaked and unfound. The volume is then as usable
 * as after the first step.
 */
#include <stdio.h>

#include "mkfs/fsck/fsck_internal.h"

#define INSERT_BATCH 24u

/* ---- new pages ------------------------------------------------------------------- */

struct fresh {
	unsigned count;
	struct space_run run[LEVELS_MAX];
	uint8_t (*image)[PAGE_SIZE]; /* image of each page */
};

static void fresh_give_back(struct fsck *f, struct fresh *n)
{
	for (unsigned i = 0; i < n->count; i++) {
		struct page_ref ref = {n->run[i].pid, n->run[i].incarnation};

		cache_discard(f->v->cache, &ref, 1);
		space_unreserve(f->v->space, &n->run[i]);
	}
	n->count = 0;
}

static int fresh_take(struct fsck *f, struct fresh *n, unsigned count, page_id near)
{
	int rc = 0;

	for (n->count = 0; n->count < count && rc == 0;) {
		struct space_run *run = &n->run[n->count];

		rc = space_reserve(
			f->v->space, near, 1, SPACE_METADATA | SPACE_PRIVILEGED, run);
		if (rc == 0)
			n->count++;
	}
	if (rc)
		fresh_give_back(f, n);
	return rc;
}

static void node_fill(void *image, page_id pid, unsigned level, const struct damage *d)
{
	struct disk_node *n = image;

	memset(image, 0, PAGE_SIZE);
	n->magic = DISK_MAGIC_NODE;
	n->level = (uint16_t)level;
	n->heap_begin = PAGE_SIZE;
	n->pid = pid;
	n->low_fence = key_narrow(d->low);
	n->high_fence = key_narrow(d->high);
}

/* Makes a leaf, and above it inner pages with one child each, up to the level of the lost page. */
static void chain_fill(struct fresh *n, const struct damage *d)
{
	for (unsigned i = 0; i < n->count; i++) {
		struct disk_inner *inner = (struct disk_inner *)n->image[i];

		node_fill(inner, n->run[i].pid, i, d);
		if (i == 0)
			continue;
		inner->node.heap_begin = 0;
		inner->node.count = 1;
		inner->key[0] = inner->node.low_fence;
		inner->child[0] = n->run[i - 1].pid;
	}
}

/* ---- putting them in place ------------------------------------------------------- */

/* Finds the word that names the damaged page. */
static void parent_word(
	struct fsck *f, const struct damage *d, page_id *page, unsigned *offset)
{
	*page = d->parent;
	*offset = (unsigned)(offsetof(struct disk_inner, child) +
			     d->slot * sizeof(uint64_t));
	if (d->parent == PID_NONE) {
		*page = pid_make(f->store[0].sb.shard, DISK_CATALOG_SLOT);
		*offset = offsetof(struct disk_catalog, root_pid);
	}
}

/* Tries once. -EAGAIN: a page was missing. */
static int replace_once(
	struct fsck *f, struct mtr *m, const struct damage *d, struct fresh *n)
{
	struct mtr_page *fresh[LEVELS_MAX], *parent;
	struct log_position pos;
	unsigned offset;
	page_id page;
	int rc = mtr_begin(m, f->v->cache, 2 * n->count + 1);

	if (rc)
		return rc;
	parent_word(f, d, &page, &offset);
	parent = mtr_latch(m, page, 0, &rc);
	if (parent && page_load_u64(parent->guard.image + offset) != d->pid)
		rc = -ESTALE;
	for (unsigned i = 0; i < n->count && rc == 0; i++) {
		fresh[i] = mtr_fresh(m, n->run[i].pid, n->run[i].incarnation, &rc);
		if (rc == 0)
			rc = space_check(f->v->space, m, n->run[i].pid, 1, false);
	}
	if (rc) {
		mtr_abort(m);
		return rc;
	}
	for (unsigned i = 0; i < n->count; i++) {
		mtr_write(fresh[i], 0, n->image[i], PAGE_SIZE);
		WEFT_ASSERT(space_take(f->v->space, m, &n->run[i]) == 0);
	}
	mtr_write_u64(parent, offset, n->run[n->count - 1].pid);
	pos = mtr_commit(m);
	for (unsigned i = 0; i < n->count; i++)
		space_committed(f->v->space, n->run[i].pid, 1, false, pos.end);
	return 0;
}

static int replace_fetch(struct fsck *f, const struct damage *d, struct fresh *n)
{
	struct page_ref ref;
	unsigned offset;
	int rc;

	parent_word(f, d, &ref.pid, &offset);
	ref.incarnation = 0;
	rc = cache_fetch_exclusive(f->v->cache, &ref, 1);
	for (unsigned i = 0; i < n->count && rc == 0; i++) {
		ref.pid = space_group_of(f->v->space, n->run[i].pid);
		rc = cache_fetch_exclusive(f->v->cache, &ref, 1);
		if (rc == 0)
			rc = mtr_prepare_fresh(
				f->v->cache, n->run[i].pid, n->run[i].incarnation);
	}
	return rc;
}

static int damage_replace(struct fsck *f, const struct damage *d)
{
	struct fresh n = {.image = rt_alloc(LEVELS_MAX * PAGE_SIZE)};
	struct mtr *m = rt_alloc(sizeof(*m));
	int rc = m && n.image ? 0 : -ENOMEM;

	if (rc == 0)
		rc = fresh_take(f, &n, d->sound ? 1 : d->level + 1,
			d->parent == PID_NONE ? PID_NONE : d->parent);
	if (rc == 0) {
		chain_fill(&n, d);
		if (d->sound) {
			rc = page_raw(f, d->pid, n.image[0]);
			memcpy(n.image[0] + offsetof(struct disk_node, pid),
				&n.run[0].pid, sizeof(page_id));
		}
	}
	if (rc == 0)
		rc = -EAGAIN;
	for (unsigned tries = 0; rc == -EAGAIN && tries < 100; tries++) {
		rc = replace_fetch(f, d, &n);
		if (rc == 0)
			rc = replace_once(f, m, d, &n);
	}
	if (rc == 0 && d->parent == PID_NONE) {
		f->catalog.root_pid = n.run[n.count - 1].pid;
		f->v->catalog.root_pid = f->catalog.root_pid;
	}
	if (rc)
		fresh_give_back(f, &n);
	rt_free(n.image);
	rt_free(m);
	f->edits++;
	return rc;
}

/* ---- lost items ------------------------------------------------------------------ */

/* A leaf that pass 1 did not reach. */
struct stray {
	uint64_t incarnation;
	page_id pid;
};

struct salvage {
	struct fsck *f;
	struct stray *stray;
	size_t count, max;
	uint64_t items, leaves;
	unsigned batch;               /* number of items in the current transaction */
	const struct disk_leaf *leaf; /* the current one */
	unsigned at, end;
};

static bool range_lost(const struct fsck *f, wide_key key)
{
	for (unsigned i = 0; i < f->damage_count; i++)
		if (!f->damage[i].sound && key >= f->damage[i].low &&
			key < f->damage[i].high)
			return true;
	return false;
}

static bool leaf_wanted(const struct fsck *f, const struct disk_leaf *leaf, page_id pid)
{
	if (leaf->node.magic != DISK_MAGIC_NODE || leaf->node.level ||
		tree_check_page(leaf, pid, NULL))
		return false;
	for (unsigned i = 0; i < leaf->node.count; i++)
		if (range_lost(f, key_wide(leaf->slot[i].key)))
			return true;
	return false;
}

static int strays_of_group(struct salvage *s, const struct fsck_store *store,
	uint64_t group, struct disk_group *d, struct disk_leaf *leaf)
{
	struct fsck *f = s->f;
	page_id base = pid_make(store->sb.shard, disk_group_slot(group));
	uint32_t pages = space_layout_pages(store->sb.page_count, group);
	int rc = page_copy(f, base, d, NULL, NULL);

	if (rc)
		return rc == -ENOMEM ? rc : 0;
	for (uint32_t i = 0; i < pages && s->count < s->max; i++) {
		page_id pid = base + 1 + i;
		uint64_t incarnation;

		if (!(d->bitmap[i / 8] >> i % 8 & 1) ||
			bit_test(store->claimed, pid_slot(pid)))
			continue;
		rc = page_copy(f, pid, leaf, &incarnation, NULL);
		if (rc == -ENOMEM)
			return rc;
		if (rc == 0 && leaf_wanted(f, leaf, pid))
			s->stray[s->count++] = (struct stray){incarnation, pid};
	}
	return 0;
}

static int stray_compare(const void *a, const void *b)
{
	const struct stray *x = a, *y = b;

	return x->incarnation > y->incarnation ? -1 : x->incarnation < y->incarnation;
}

/* Shell sort: in place, and without libc's memory. */
static void strays_sort(struct salvage *s)
{
	for (size_t gap = s->count / 2; gap > 0; gap /= 2) {
		for (size_t i = gap; i < s->count; i++) {
			struct stray x = s->stray[i];
			size_t j = i;

			for (; j >= gap && stray_compare(&s->stray[j - gap], &x) > 0;
				j -= gap)
				s->stray[j] = s->stray[j - gap];
			s->stray[j] = x;
		}
	}
}

static int insert_body(struct fsck *f, struct txn *x, void *arg)
{
	struct salvage *s = arg;

	s->batch = 0;
	for (unsigned i = s->at; i < s->end; i++) {
		const struct disk_leaf_slot *slot = &s->leaf->slot[i];
		uint8_t there[DISK_VALUE_MAX];
		int rc;

		if (!range_lost(f, key_wide(slot->key)) ||
			slot->length > DISK_VALUE_MAX ||
			slot->offset < sizeof(struct disk_node) ||
			slot->offset + slot->length > PAGE_SIZE)
			continue;
		rc = txn_read(x, slot->key, there, sizeof(there));
		if (rc == -ENOENT)
			rc = txn_write(x, slot->key,
				(const uint8_t *)s->leaf + slot->offset, slot->length);
		if (rc < 0)
			return rc;
		s->batch += rc == 0;
	}
	return 0;
}

static int leaf_insert(struct salvage *s, const struct disk_leaf *leaf)
{
	unsigned count = MIN(leaf->node.count, ARRAY_SIZE(leaf->slot));
	int rc = 0;

	s->leaf = leaf;
	s->leaves++;
	for (s->at = 0; rc == 0 && s->at < count; s->at = s->end) {
		s->end = MIN(s->at + INSERT_BATCH, count);
		s->batch = 0;
		rc = repair_run(s->f, insert_body, s);
		s->items += s->batch;
	}
	return rc;
}

/* Inserts the readable items of the damaged leaves themselves. Pass 2 checks each item. */
static int damaged_insert(struct salvage *s, struct disk_leaf *leaf)
{
	int rc = 0;

	for (unsigned i = 0; i < s->f->damage_count && rc == 0; i++) {
		const struct damage *d = &s->f->damage[i];

		if (!d->sound && d->level == 0 && page_usable(s->f, d->pid) &&
			page_raw(s->f, d->pid, leaf) == 0 &&
			leaf->node.magic == DISK_MAGIC_NODE && leaf->node.level == 0 &&
			leaf->node.pid == d->pid)
			rc = leaf_insert(s, leaf);
	}
	return rc;
}

static int salvage_run(struct salvage *s, struct disk_group *d, struct disk_leaf *leaf)
{
	int rc = 0;

	for (unsigned i = 0; i < s->f->store_count; i++) {
		const struct fsck_store *store = &s->f->store[i];

		for (uint64_t g = 0; g < store->group_count && rc == 0; g++) {
			fsck_progress(s->f, 1, g, store->group_count);
			rc = strays_of_group(s, store, g, d, leaf);
		}
	}
	if (rc)
		return rc;
	strays_sort(s);
	rc = damaged_insert(s, leaf);
	for (size_t i = 0; i < s->count && rc == 0; i++)
		if (page_copy(s->f, s->stray[i].pid, leaf, NULL, NULL) == 0)
			rc = leaf_insert(s, leaf);
	return rc;
}

static int salvage_leaves(struct fsck *f)
{
	struct salvage s = {.f = f, .max = f->memory_bytes / sizeof(struct stray)};
	struct disk_group *d = rt_alloc(PAGE_SIZE);
	struct disk_leaf *leaf = rt_alloc(PAGE_SIZE);
	int rc = -ENOMEM;

	s.max = MIN(s.max, f->out->total_pages);
	s.stray = rt_alloc(s.max * sizeof(*s.stray));
	if (d && leaf && s.stray)
		rc = salvage_run(&s, d, leaf);
	if (rc == 0 && s.items)
		fsck_note(f, 111,
			"%" PRIu64 " items of %" PRIu64 " tree pages were put back",
			s.items, s.leaves);
	rt_free(s.stray);
	rt_free(leaf);
	rt_free(d);
	return rc;
}

int rebuild_tree(struct fsck *f)
{
	bool lost = false;
	int rc = 0;

	for (unsigned i = 0; i < f->damage_count && rc == 0; i++) {
		const struct damage *d = &f->damage[i];

		f->code = d->code;
		damage_text(d, f->text, sizeof(f->text));
		rc = fsck_repaired(f, damage_replace(f, d));
		lost |= !d->sound;
	}
	if (rc == 0 && lost)
		rc = tree_get(f);
	return rc == 0 && lost && f->writable ? salvage_leaves(f) : rc;
}
