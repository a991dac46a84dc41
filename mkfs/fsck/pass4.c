/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pass 4, second half: pages that are used twice, and unused pages that are marked as in use.
 *
 * Checks: no page belongs to two extents, or to an extent and the tree. Every page that is
 * marked as in use has a user. groups.c checks that pages in use are marked.
 *
 * Assumes that the tree could be read in full: then a page without a known user is unused.
 * A repair since pass 1 may have allocated pages. If there was one, the next round does this
 * pass.
 *
 * If several extents name a page, it belongs to the extent with the incarnation of the
 * page's descriptor. In the others it reads as zeros or fails, so they lose nothing when they
 * become holes. If no incarnation fits, the first extent in the tree's order keeps the page.
 * The tree keeps its own pages.
 */
#include "mkfs/fsck/fsck_internal.h"

/* ---- used twice ------------------------------------------------------------------ */

static void keep_tree_page(
	struct fsck *f, page_id pid, unsigned level, uint64_t incarnation)
{
	struct fsck_store *s = store_of(f, pid);

	if (bit_test(s->twice, pid_slot(pid)))
		bit_set(s->kept, pid_slot(pid));
}

static int keep_tree(struct fsck *f)
{
	struct walk *w = walk_open(f, (struct disk_key){0, 0});
	int rc;

	if (!w)
		return -ENOMEM;
	w->page = keep_tree_page;
	while ((rc = walk_leaf(w)) > 0)
		;
	walk_close(w);
	return rc;
}

/* True: this use of the page has to go. Otherwise it is the page's owner from now on. */
static bool must_go(struct fsck *f, page_id pid, uint64_t incarnation)
{
	struct fsck_store *s = store_of(f, pid);
	struct page_descriptor d;

	if (!bit_test(s->twice, pid_slot(pid)))
		return false;
	if (bit_test(s->kept, pid_slot(pid)))
		return true;
	if (page_descriptor_get(f, pid, &d) == 0 && d.incarnation &&
		d.incarnation != incarnation)
		return true;
	bit_set(s->kept, pid_slot(pid));
	return false;
}

static int share_extent(struct fsck *f, struct disk_key key, const struct disk_extent *e)
{
	for (uint32_t i = 0; i < e->length; i++) {
		uint32_t n = 0;

		while (i + n < e->length && must_go(f, e->pid + i + n, e->incarnation))
			n++;
		if (!n)
			continue;
		if (fsck_found(f, 407,
			    "inode %" PRIu64 ": %u pages from file block %" PRIu64
			    " on (%#" PRIx64 ") are used by another file or the tree too; "
			    "the repair makes a hole there",
			    key_ino(key), n, key.low + i, e->pid + i))
			return fsck_repaired(f, repair_cut_extent(f, key, e, i, n));
		i += n - 1;
	}
	return 0;
}

static int share_xattr(struct fsck *f, struct disk_key key, const void *value, size_t len)
{
	struct xattr_item x;
	char text[NAME_TEXT];
	bool go = false;

	if (!xattr_valid(f, value, len, &x))
		return 0;
	for (unsigned i = 0; i < x.head.run_count; i++) {
		struct disk_extent run;

		memcpy(&run, x.runs + i * sizeof(run), sizeof(run));
		for (uint32_t p = 0; p < run.length; p++)
			go |= must_go(f, run.pid + p, run.incarnation);
	}
	if (go && fsck_found(f, 407,
			  "inode %" PRIu64 ": pages of its extended attribute \"%s\" "
			  "are used by another file or the tree too; the repair "
			  "removes the attribute",
			  key_ino(key), name_text(text, x.name, x.head.name_bytes)))
		return fsck_repaired(f, repair_delete(f, key));
	return 0;
}

static int share_visit(
	struct fsck *f, void *arg, struct disk_key key, const void *value, size_t len)
{
	struct disk_extent e;

	if (key_type(key) == DISK_ITEM_EXTENT && extent_valid(f, key, value, len, &e))
		return share_extent(f, key, &e);
	if (key_type(key) == DISK_ITEM_XATTR)
		return share_xattr(f, key, value, len);
	return 0;
}

static int check_twice(struct fsck *f)
{
	int rc = 0;

	for (unsigned i = 0; i < f->store_count; i++) {
		struct fsck_store *s = &f->store[i];

		s->kept = rt_alloc(DIV_UP(s->sb.page_count, 64) * sizeof(uint64_t));
		if (!s->kept)
			rc = -ENOMEM;
	}
	if (rc == 0)
		rc = keep_tree(f);
	if (rc == 0)
		rc = items_scan(f, (struct disk_key){0, 0}, key_narrow(KEY_MAX), 4,
			share_visit, NULL);
	for (unsigned i = 0; i < f->store_count; i++) {
		rt_free(f->store[i].kept);
		f->store[i].kept = NULL;
	}
	return rc;
}

/* ---- unused ---------------------------------------------------------------------- */

static int run_free(struct fsck *f, page_id pid, uint32_t length)
{
	struct page_ref ref = {.pid = space_group_of(f->v->space, pid)};
	struct mtr *m = rt_alloc(sizeof(*m));
	int rc = m ? -EAGAIN : -ENOMEM;

	for (unsigned tries = 0; rc == -EAGAIN && tries < 100; tries++) {
		struct log_position pos;

		rc = cache_fetch_exclusive(f->v->cache, &ref, 1);
		if (rc == 0)
			rc = mtr_begin(m, f->v->cache, 1);
		if (rc)
			break;
		rc = space_free(f->v->space, m, pid, length);
		if (rc) {
			mtr_abort(m);
			continue;
		}
		pos = mtr_commit(m);
		space_committed(f->v->space, pid, length, true, pos.end);
	}
	rt_free(m);
	return rc;
}

static bool is_leaked(
	const struct fsck *f, const struct disk_group *d, page_id base, uint32_t i)
{
	return (d->bitmap[i / 8] >> i % 8 & 1) &&
	       !bit_test(f->at->claimed, pid_slot(base) + 1 + i);
}

static int check_leaks(struct fsck *f, uint64_t group, struct disk_group *d)
{
	page_id base = pid_make(f->at->sb.shard, disk_group_slot(group));
	uint32_t pages = space_layout_pages(f->at->sb.page_count, group);
	uint32_t count = 0, first = 0, length;
	bool repair;
	int rc = page_copy(f, base, d, NULL, NULL);

	if (rc)
		return rc == -ENOMEM ? rc : 0; /* groups.c has reported it */
	for (uint32_t i = 0; i < pages; i++)
		if (is_leaked(f, d, base, i) && !count++)
			first = i;
	if (!count)
		return 0;
	/* Damage that was left may hide their user. */
	f->keep = f->out->left > 0;
	repair = fsck_found(f, 406,
		"allocation group %" PRIu64 ": %u unused pages are marked as in use, "
		"the first is %#" PRIx64,
		group, count, base + 1 + first);
	f->keep = false;
	if (!repair)
		return 0;
	for (uint32_t i = first; i < pages && rc == 0; i += length) {
		bool free_it = is_leaked(f, d, base, i);

		for (length = 1; i + length < pages &&
				 is_leaked(f, d, base, i + length) == free_it;)
			length++;
		if (free_it)
			rc = run_free(f, base + 1 + i, length);
	}
	return fsck_repaired(f, rc);
}

int fsck_pass4(struct fsck *f)
{
	struct disk_group *d = rt_alloc(sizeof(*d));
	int rc = d ? 0 : -ENOMEM;

	if (rc == 0 && f->any_twice && f->edits == f->edits_known)
		rc = check_twice(f);
	for (unsigned i = 0; i < f->store_count; i++) {
		f->at = &f->store[i];
		for (uint64_t g = 0;
			g < f->at->group_count && rc == 0 && f->edits == f->edits_known;
			g++) {
			fsck_progress(f, 4, g, f->at->group_count);
			rc = check_leaks(f, g, d);
		}
	}
	f->at = NULL;
	rt_free(d);
	return rc;
}
