/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pass 4, first half: the allocation groups' own pages, and pages in use that are marked free.
 *
 * Runs right after pass 1, and before any repair that needs new pages. From here on free space
 * allocates no page in use. Assumes that pass 1 has noted the users of pages.
 *
 * Checks:
 *
 * - Each group's page can be read and is the group's.
 * - Pages in use are marked so.
 * - Bits past the store's end are set.
 * - The count of free pages is right.
 * - The next incarnation is higher than all in the group's pages.
 *
 * An unreadable page is made anew. While parts of the tree are lost, they may be found again. Each
 * page that was ever written therefore stays marked as in use. The second half (pass4.c) frees the
 * pages that turn out to have no user.
 */
#include "mkfs/fsck/fsck_internal.h"

#define GROUP_WORDS  (DISK_GROUP_PAGES / 64)
#define IMAGES_AHEAD 64u

struct group_check {
	uint64_t group;
	page_id pid;
	uint32_t pages;
	struct disk_group disk;
	uint64_t used[GROUP_WORDS]; /* by pass 1 */
	bool rebuilt, changed;
};

static page_id group_page(const struct fsck *f, uint64_t group)
{
	return pid_make(f->at->sb.shard, disk_group_slot(group));
}

/* Writes the page with a new incarnation, so the old image does not matter. */
int page_rewrite(struct fsck *f, page_id pid, const void *image)
{
	struct cache *cache = f->v->cache;
	struct page_descriptor d;
	struct mtr_page *p = NULL;
	struct mtr *m = rt_alloc(sizeof(*m));
	int rc = m ? page_descriptor_get(f, pid, &d) : -ENOMEM;

	for (unsigned tries = 0; rc == 0 && !p && tries < 100; tries++) {
		rc = mtr_prepare_fresh(cache, pid, d.incarnation + 1);
		if (rc == 0)
			rc = mtr_begin(m, cache, 1);
		if (rc)
			break;
		p = mtr_fresh(m, pid, d.incarnation + 1, &rc);
		if (p) {
			mtr_write(p, 0, image, PAGE_SIZE);
			mtr_commit(m);
		} else {
			mtr_abort(m);
			rc = rc == -EAGAIN ? 0 : rc;
		}
	}
	rt_free(m);
	f->edits++;
	return rc ? rc : p ? 0 : -EIO;
}

/* Writes the fields that differ. */
static int group_update(struct fsck *f, const struct group_check *g)
{
	struct cache *cache = f->v->cache;
	struct page_ref ref = {.pid = g->pid};
	struct mtr *m = rt_alloc(sizeof(*m));
	bool done = false;
	int rc = m ? 0 : -ENOMEM;

	for (unsigned tries = 0; rc == 0 && !done && tries < 100; tries++) {
		struct mtr_page *p;

		rc = cache_fetch_exclusive(cache, &ref, 1);
		if (rc == 0)
			rc = mtr_begin(m, cache, 1);
		if (rc)
			break;
		p = mtr_latch(m, g->pid, 0, &rc);
		if (p) {
			mtr_write(p, 0, &g->disk, PAGE_SIZE);
			mtr_commit(m);
			done = true;
		} else {
			mtr_abort(m);
			rc = rc == -EAGAIN ? 0 : rc;
		}
	}
	rt_free(m);
	return rc ? rc : done ? 0 : -EIO;
}

static bool group_bit(const struct disk_group *d, uint32_t i)
{
	return d->bitmap[i / 8] >> i % 8 & 1;
}

static uint32_t free_count(const struct group_check *g)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < g->pages; i++)
		n += !group_bit(&g->disk, i);
	return n;
}

/* For a page of a damaged group: returns true if a lost part of the tree may use it. */
static bool ever_written(struct fsck *f, page_id pid)
{
	struct page_descriptor d;

	return page_descriptor_get(f, pid, &d) != 0 || d.incarnation != 0;
}

/* For a store alone that was not closed. A recovery of all stores that was cut may have left a
 * half-written image, which another store's log repairs. */
static bool others_may_know(const struct fsck *f)
{
	return f->alone && !f->store[0].was_clean;
}

#define OTHERS_TEXT                                                                      \
	"its store was not closed, and the log of another store may have the missing images"

static int group_rebuild(struct fsck *f, struct group_check *g, const char *why)
{
	struct disk_group *d = &g->disk;

	if (others_may_know(f)) {
		fsck_note(f, 401, "the page of allocation group %" PRIu64 ": %s; %s",
			g->group, why, OTHERS_TEXT);
		return -EUCLEAN;
	}
	if (!fsck_found(f, 401, "the page of allocation group %" PRIu64 ": %s", g->group,
		    why))
		return -EUCLEAN;
	memset(d, 0, sizeof(*d));
	d->magic = DISK_MAGIC_GROUP;
	d->group = (uint32_t)g->group;
	d->next_incarnation = f->at->group_high[g->group] + 1;
	d->owner = f->at->sb.node;
	for (uint32_t i = 0; i < DISK_GROUP_PAGES; i++) {
		bool used = i >= g->pages || (g->used[i / 64] >> i % 64 & 1);

		if (!used && f->damage_count)
			used = ever_written(f, g->pid + 1 + i);
		if (used)
			d->bitmap[i / 8] |= (uint8_t)(1u << i % 8);
	}
	d->free_pages = free_count(g);
	g->rebuilt = true;
	return fsck_repaired(f, page_rewrite(f, g->pid, d));
}

static int group_read(struct fsck *f, struct group_check *g)
{
	struct disk_group *d = &g->disk;
	int rc = page_copy(f, g->pid, d, NULL, NULL);

	if (rc && rc != -EUCLEAN && rc != -EIO)
		return rc;
	if (rc)
		return group_rebuild(
			f, g, rc == -EIO ? "cannot be read" : "its checksum is wrong");
	if (d->magic != DISK_MAGIC_GROUP || d->group != g->group)
		return group_rebuild(f, g, "it is no group's page, or another group's");
	return 0;
}

static void check_used(struct fsck *f, struct group_check *g)
{
	uint32_t wrong = 0, first = 0, before = free_count(g);

	for (uint32_t i = 0; i < g->pages; i++) {
		if (!(g->used[i / 64] >> i % 64 & 1) || group_bit(&g->disk, i))
			continue;
		if (!wrong++)
			first = i;
	}
	if (!wrong || !fsck_found(f, 402,
			      "allocation group %" PRIu64
			      ": %u pages in use are marked free, the first is %#" PRIx64,
			      g->group, wrong, g->pid + 1 + first))
		return;
	for (uint32_t i = 0; i < g->pages; i++)
		if (g->used[i / 64] >> i % 64 & 1)
			g->disk.bitmap[i / 8] |= (uint8_t)(1u << i % 8);
	if (g->disk.free_pages == before)
		g->disk.free_pages -= wrong;
	g->changed = true;
	fsck_repaired(f, 0);
}

static void check_end(struct fsck *f, struct group_check *g)
{
	bool wrong = false;

	for (uint32_t i = g->pages; i < DISK_GROUP_PAGES; i++)
		wrong |= !group_bit(&g->disk, i);
	if (!wrong || !fsck_found(f, 403,
			      "allocation group %" PRIu64
			      ": pages past the end of the store are marked free",
			      g->group))
		return;
	for (uint32_t i = g->pages; i < DISK_GROUP_PAGES; i++)
		g->disk.bitmap[i / 8] |= (uint8_t)(1u << i % 8);
	g->changed = true;
	fsck_repaired(f, 0);
}

/* The owner has no meaning while the volume is not in use. On a volume without a cluster it is
 * 0. */
static void check_owner(struct fsck *f, struct group_check *g)
{
	if (g->disk.owner <= (f->at->sb.node ? DISK_NODE_MAX : DISK_OWNER_NOBODY) ||
		!fsck_found(f, 408,
			"allocation group %" PRIu64
			": its owner is node %u, which is none of the volume's",
			g->group, g->disk.owner))
		return;
	g->disk.owner = f->at->sb.node;
	g->changed = true;
	fsck_repaired(f, 0);
}

static void check_counters(struct fsck *f, struct group_check *g)
{
	uint32_t has = free_count(g);

	if (has != g->disk.free_pages &&
		fsck_found(f, 404,
			"allocation group %" PRIu64
			": counts %u free pages where its bitmap has %u",
			g->group, g->disk.free_pages, has)) {
		g->disk.free_pages = has;
		g->changed = true;
		fsck_repaired(f, 0);
	}
	/* Other nodes may have raised it, and given pages away with it. */
	if (!f->alone && g->disk.next_incarnation <= f->at->group_high[g->group] &&
		fsck_found(f, 405,
			"allocation group %" PRIu64 ": its next incarnation is %" PRIu64
			", but its pages have up to %" PRIu64,
			g->group, g->disk.next_incarnation,
			f->at->group_high[g->group])) {
		g->disk.next_incarnation = f->at->group_high[g->group] + 1;
		g->changed = true;
		fsck_repaired(f, 0);
	}
}

static int group_check_one(struct fsck *f, struct group_check *g)
{
	uint64_t slot = disk_group_slot(g->group) + 1;
	int rc;

	g->pid = group_page(f, g->group);
	g->pages = space_layout_pages(f->at->sb.page_count, g->group);
	g->rebuilt = g->changed = false;
	memset(g->used, 0, sizeof(g->used));
	for (uint32_t i = 0; i < g->pages; i++)
		if (bit_test(f->at->claimed, slot + i))
			g->used[i / 64] |= 1ull << i % 64;
	rc = group_read(f, g);
	if (rc || g->rebuilt)
		return rc == -EUCLEAN ? 0 : rc;
	check_used(f, g);
	check_end(f, g);
	check_counters(f, g);
	check_owner(f, g);
	return g->changed ? group_update(f, g) : 0;
}

int groups_check(struct fsck *f)
{
	struct group_check *g = rt_alloc(sizeof(*g));
	int rc = g ? 0 : -ENOMEM;

	for (unsigned n = 0; n < f->store_count; n++) {
		f->at = &f->store[n];
		for (uint64_t i = 0; i < f->at->group_count && rc == 0; i++) {
			g->group = i;
			rc = group_check_one(f, g);
			if (i % 64 == 0)
				fsck_progress(f, 4, i, f->at->group_count);
		}
	}
	f->at = NULL;
	rt_free(g);
	return rc;
}

/* ---- of a store alone ------------------------------------------------------------ */

static bool image_bad(struct fsck *f, page_id pid, int *rc)
{
	struct page_descriptor d;
	struct guard g;

	*rc = page_descriptor_get(f, pid, &d);
	if (*rc || !d.incarnation)
		return false;
	*rc = guard_shared(f->v->cache, pid, 0, &g);
	if (*rc == 0)
		guard_release(f->v->cache, &g);
	if (*rc != -EUCLEAN && *rc != -EIO)
		return false;
	*rc = 0;
	return true;
}

/* Checks the images of the group's pages in use. */
static int images_check(struct fsck *f, const struct group_check *g)
{
	struct page_ref refs[IMAGES_AHEAD];
	unsigned ahead = MIN(IMAGES_AHEAD, cache_batch_max(f->v->cache));
	uint32_t bad = 0, first = 0;
	int rc = 0;

	for (uint32_t i = 0; i < g->pages && rc == 0; i++) {
		unsigned n = 0;

		for (uint32_t at = i; i % ahead == 0 && at < MIN(i + ahead, g->pages);
			at++)
			if (group_bit(&g->disk, at))
				refs[n++] = (struct page_ref){.pid = g->pid + 1 + at};
		if (n)
			(void)cache_fetch(f->v->cache, refs, n); /* errors are met again */
		if (group_bit(&g->disk, i) && image_bad(f, g->pid + 1 + i, &rc) && !bad++)
			first = i;
	}
	if (bad && others_may_know(f))
		fsck_note(f, 410,
			"allocation group %" PRIu64
			": %u pages in use cannot be read; %s",
			g->group, bad, OTHERS_TEXT);
	else if (bad)
		fsck_left(f, 410,
			"allocation group %" PRIu64
			": %u pages in use cannot be read, or "
			"do not fit their checksums; the first is %#" PRIx64,
			g->group, bad, g->pid + 1 + first);
	return rc;
}

int groups_check_alone(struct fsck *f)
{
	struct group_check *g = rt_alloc(sizeof(*g));
	int rc = g ? 0 : -ENOMEM;

	f->at = &f->store[0];
	for (uint64_t i = 0; i < f->at->group_count && rc == 0; i++) {
		uint64_t found = f->out->found;

		g->group = i;
		rc = group_check_one(f, g);
		if (rc == 0 && f->out->found == found && f->o->check_data)
			rc = images_check(f, g);
		fsck_progress(f, 4, i, f->at->group_count);
	}
	f->at = NULL;
	rt_free(g);
	return rc;
}
