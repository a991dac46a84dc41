/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Overlays: the state of a group in memory, beyond the group's page.
 *
 * A group has one while it is allocated from. `busy` starts as a copy of the page's bitmap and
 * stays a superset of it. A taken page was reserved before. A freed one is quarantined until the
 * record that freed it is durable (invariant 3). A group without an overlay has no reservations.
 * Its quarantine is one LSN, before which its page must not be copied.
 *
 * A copy must not be older than the last change. So the page is copied under its latch. It is taken
 * only if no mtr changed the group since before that (`changes`), or is about to be settled
 * (`freeing`). Nor may it be older than the version that the group's counters are of (owner.c).
 */
#include "engine/space/space_internal.h"

void group_settle(struct group *g, lsn_t durable)
{
	struct overlay *ov = g->overlay;

	if (!g->quarantined)
		return;
	if (!ov) {
		if (durable < g->loadable)
			return;
		g->quarantined = 0;
		atomic_store_explicit(&g->longest, g->pages, memory_order_relaxed);
		return;
	}
	/* Twice: the pages that move from [1] to [0] may be durable as well. */
	for (int turn = 0; turn < 2; turn++) {
		if (ov->freed_pages[0]) {
			if (durable < ov->freed_lsn[0])
				return;
			for (unsigned i = 0; i < GROUP_WORDS; i++)
				ov->busy[i] &= ~ov->freed[0][i];
			g->quarantined -= ov->freed_pages[0];
			atomic_store_explicit(
				&g->longest, g->pages, memory_order_relaxed);
		}
		ov->freed_pages[0] = ov->freed_pages[1];
		ov->freed_lsn[0] = ov->freed_lsn[1];
		memcpy(ov->freed[0], ov->freed[1], sizeof(ov->freed[0]));
		if (!ov->freed_pages[1])
			return;
		ov->freed_pages[1] = 0;
		ov->freed_lsn[1] = 0;
		memset(ov->freed[1], 0, sizeof(ov->freed[1]));
	}
}

void group_quarantine(struct group *g, uint32_t index, uint32_t length, lsn_t end)
{
	struct overlay *ov = g->overlay;

	g->quarantined += length;
	if (!ov) {
		g->loadable = MAX(g->loadable, end);
		return;
	}
	WEFT_ASSERT(bitmap_all_set(ov->busy, index, length));
	bitmap_set(ov->freed[1], index, length);
	ov->freed_lsn[1] = MAX(ov->freed_lsn[1], end);
	ov->freed_pages[1] += length;
}

/* Takes the overlay of a group that can do without. With overlay_lock. */
static bool overlay_steal(struct space *sp, struct overlay *ov)
{
	struct group *g = group_at(sp, ov->group);
	bool idle;

	rt_mutex_lock(&g->lock);
	idle = !g->reserved && !g->freeing && !ov->used;
	ov->used = false;
	if (idle) {
		g->overlay = NULL;
		for (int i = 0; i < 2; i++)
			if (ov->freed_pages[i])
				g->loadable = MAX(g->loadable, ov->freed_lsn[i]);
	}
	rt_mutex_unlock(&g->lock);
	return idle;
}

/* An overlay that nobody uses, of any content. -EAGAIN: others are loading all that there
 * may be. */
static int overlay_obtain(struct space *sp, struct overlay **out)
{
	struct overlay *ov = NULL;
	uint64_t turns = 0;
	int rc = -EAGAIN;

	rt_mutex_lock(&sp->overlay_lock);
	/* The clock goes round twice at most: the first round clears `used`. */
	if (sp->overlay_count >= MIN(sp->overlay_places, sp->overlays_soft_max))
		turns = 2 * sp->overlay_count;
	for (uint64_t i = 0; i < turns && !ov; i++) {
		struct overlay *at = sp->overlays[sp->overlay_hand];

		sp->overlay_hand = (sp->overlay_hand + 1) % sp->overlay_count;
		if (at->group != GROUP_NONE && overlay_steal(sp, at))
			ov = at;
	}
	if (!ov && sp->overlay_count < sp->overlay_places) {
		rc = -ENOMEM;
		ov = rt_alloc(sizeof(*ov));
		if (ov)
			sp->overlays[sp->overlay_count++] = ov;
	}
	if (ov) {
		ov->group = GROUP_NONE;
		rc = 0;
	}
	rt_mutex_unlock(&sp->overlay_lock);
	*out = ov;
	return rc;
}

/* Gives one back that was obtained for nothing. */
static void overlay_drop(struct space *sp, struct overlay *ov)
{
	rt_mutex_lock(&sp->overlay_lock);
	for (uint64_t i = 0; i < sp->overlay_count; i++) {
		if (sp->overlays[i] != ov)
			continue;
		sp->overlays[i] = sp->overlays[--sp->overlay_count];
		break;
	}
	if (sp->overlay_hand >= sp->overlay_count)
		sp->overlay_hand = 0;
	rt_mutex_unlock(&sp->overlay_lock);
	rt_free(ov);
}

void overlays_close(struct space *sp)
{
	for (uint64_t i = 0; i < sp->overlay_count; i++)
		rt_free(sp->overlays[i]);
	sp->overlay_count = 0;
}

/* Copies the bitmap of the group's page; *version is the page's. */
static int overlay_fill(
	struct space *sp, uint64_t group, struct overlay *ov, uint64_t *version)
{
	const struct disk_group *d;
	struct guard guard;
	int rc;

	rc = guard_shared(sp->cache, group_pid(sp, group), 0, &guard);
	if (rc)
		return rc;
	d = (const struct disk_group *)guard.image;
	*version = guard.frame->version;
	rc = group_check(sp, group, d, NULL);
	if (!rc)
		rc = group_look(sp, group, d, *version);
	if (!rc) {
		memcpy(ov->busy, d->bitmap, sizeof(ov->busy));
		memset(ov->reserved, 0, sizeof(ov->reserved));
		memset(ov->freed, 0, sizeof(ov->freed));
		memset(ov->freed_lsn, 0, sizeof(ov->freed_lsn));
		memset(ov->freed_pages, 0, sizeof(ov->freed_pages));
	}
	guard_release(sp->cache, &guard);
	return rc;
}

int overlay_load(struct space *sp, uint64_t group)
{
	struct group *g = group_at(sp, group);
	struct overlay *ov;
	uint64_t version;
	uint32_t changes;
	bool taken;
	int rc;

	rt_mutex_lock(&g->lock);
	changes = g->changes;
	rt_mutex_unlock(&g->lock);

	rc = overlay_obtain(sp, &ov);
	if (rc == -EAGAIN) {
		struct page_ref page = {.pid = group_pid(sp, group)};

		/* the others wait for this one, most likely */
		rc = cache_fetch(sp->cache, &page, 1);
		return rc ? rc : -EAGAIN;
	}
	if (rc)
		return rc;
	rc = overlay_fill(sp, group, ov, &version);
	if (rc) {
		overlay_drop(sp, ov);
		return rc;
	}
	rt_mutex_lock(&sp->overlay_lock);
	rt_mutex_lock(&g->lock);
	taken = g->owned && !g->overlay && !g->freeing && !g->quarantined &&
		g->changes == changes && g->version == version;
	if (taken) {
		g->overlay = ov;
		ov->group = group;
		ov->used = true;
	}
	rc = g->overlay ? 0 : -EAGAIN;
	rt_mutex_unlock(&g->lock);
	rt_mutex_unlock(&sp->overlay_lock);
	if (!taken)
		overlay_drop(sp, ov);
	return rc;
}
