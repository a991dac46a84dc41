/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Taking and freeing runs: changes of group pages inside mini-transactions. Memory notes them
 * before (`changes`, `freeing`) and after (space_committed).
 *
 * The group's lock is taken while its page is latched. It is a leaf, held for a few words' work,
 * never while anything waits (invariant 6).
 */
#include "engine/space/space_internal.h"

_Static_assert(offsetof(struct disk_group, next_incarnation) ==
		       offsetof(struct disk_group, free_pages) + sizeof(uint32_t),
	"counter and incarnation change as one range");

/* A group's page in an mtr, with the run's place. */
struct place {
	struct mtr_page *page;
	struct disk_group *disk;
	uint64_t group; /* GROUP_NONE: memory knows nothing of it */
	uint32_t index;
};

/* Pages of the group, which may be of a shard that nothing was known of at open. */
static uint32_t place_pages(const struct space *sp, const struct place *p, page_id pid)
{
	if (p->group != GROUP_NONE)
		return group_at(sp, p->group)->pages;
	return space_layout_pages(shards_pages(sp->shards, pid_shard(pid)),
		(pid_slot(pid) - 1) / (1 + DISK_GROUP_PAGES));
}

/* Others may have changed the page since this node saw it last. */
static int place_look(struct space *sp, const struct place *p)
{
	uint64_t version = p->page->guard.frame->version;
	const struct group *g = group_at(sp, p->group);

	/* its own changes, made in this mtr: looked at before */
	if (p->page->changed || !g->owned || (g->version == version && !g->stale))
		return 0;
	return group_look(sp, p->group, p->disk, version);
}

/* The mtr's change is this node's own: the picture becomes that of the changed page. With the
 * lock. */
static void group_changed(struct group *g, const struct place *p, uint32_t free_pages)
{
	g->version = p->page->guard.frame->version + 1;
	g->page_free = free_pages;
}

/* Latches and checks; changes nothing. */
static int place_find(struct space *sp, struct mtr *m, page_id pid, uint32_t length,
	bool in_use, struct place *out)
{
	uint64_t map[GROUP_WORDS];
	uint64_t number = (pid_slot(pid) - 1) / (1 + DISK_GROUP_PAGES);
	bool fits;
	int rc = 0;

	if (!space_locate(sp, pid, length, &out->group, &out->index)) {
		weft_log(3,
			"pages %llx + %u are not a run of any allocation group; run "
			"fsck.weft",
			(unsigned long long)pid, length);
		return -EUCLEAN;
	}
	out->page = mtr_latch(m, pid - out->index - 1, 0, &rc);
	if (!out->page)
		return rc;
	out->disk = (struct disk_group *)out->page->guard.image;
	memcpy(map, out->disk->bitmap, sizeof(map));
	if (in_use)
		fits = bitmap_all_set(map, out->index, length) &&
		       out->disk->free_pages + length <= place_pages(sp, out, pid);
	else
		fits = bitmap_all_clear(map, out->index, length) &&
		       out->disk->free_pages >= length;
	/* Once more: with the page came how large its shard is. */
	if (out->disk->magic != DISK_MAGIC_GROUP || out->disk->group != number || !fits ||
		!shards_have(sp->shards, pid, length)) {
		weft_log(3,
			"allocation group %llu: pages %llx + %u are not %s as they "
			"should be; run fsck.weft",
			(unsigned long long)number, (unsigned long long)pid, length,
			in_use ? "in use" : "free");
		return -EUCLEAN;
	}
	return out->group == GROUP_NONE ? 0 : place_look(sp, out);
}

int space_check(
	struct space *sp, struct mtr *m, page_id pid, uint32_t length, bool in_use)
{
	struct place place;

	return place_find(sp, m, pid, length, in_use, &place);
}

/* Writes the bytes of the bitmap that the run touches, in one range. */
static void place_mark(struct place *p, uint32_t length, bool in_use)
{
	uint64_t map[GROUP_WORDS];
	uint32_t first = p->index / 8;
	uint32_t bytes = (p->index + length - 1) / 8 - first + 1;

	memcpy(map, p->disk->bitmap, sizeof(map));
	if (in_use)
		bitmap_set(map, p->index, length);
	else
		bitmap_clear(map, p->index, length);
	mtr_write(p->page, offsetof(struct disk_group, bitmap) + first,
		(uint8_t *)map + first, bytes);
}

int space_take(struct space *sp, struct mtr *m, const struct space_run *run)
{
	struct {
		uint32_t free_pages;
		uint64_t next_incarnation;
	} __attribute__((packed)) counters;
	struct place p;
	struct group *g;
	int rc;

	rc = place_find(sp, m, run->pid, run->length, false, &p);
	if (rc)
		return rc;
	WEFT_ASSERT(p.group != GROUP_NONE);
	g = group_at(sp, p.group);
	rt_mutex_lock(&g->lock);
	WEFT_ASSERT(g->owned && p.disk->owner == sp->node);
	WEFT_ASSERT(
		g->overlay && bitmap_all_set(g->overlay->reserved, p.index, run->length));
	WEFT_ASSERT(run->incarnation && run->incarnation < g->next_incarnation);
	g->changes++;
	group_changed(g, &p, p.disk->free_pages - run->length);
	rt_mutex_unlock(&g->lock);

	place_mark(&p, run->length, true);
	counters.free_pages = p.disk->free_pages - run->length;
	counters.next_incarnation = p.disk->next_incarnation;
	if (counters.next_incarnation > run->incarnation) {
		mtr_write_u32(p.page, offsetof(struct disk_group, free_pages),
			counters.free_pages);
		return 0;
	}
	counters.next_incarnation = run->incarnation + 1;
	mtr_write(p.page, offsetof(struct disk_group, free_pages), &counters,
		sizeof(counters));
	return 0;
}

/* As long as one is under way that is not, the group does not become known. */
static bool free_is_known(struct space *sp, struct place *p, page_id pid, uint32_t length)
{
	if (p->group != GROUP_NONE)
		return true;
	rt_mutex_lock(&sp->grow_lock);
	WEFT_ASSERT(space_locate(sp, pid, length, &p->group, &p->index));
	if (p->group == GROUP_NONE)
		sp->frees_unknown++;
	rt_mutex_unlock(&sp->grow_lock);
	return p->group != GROUP_NONE;
}

int space_free(struct space *sp, struct mtr *m, page_id pid, uint32_t length)
{
	struct place p;
	struct group *g;
	int rc;

	rc = place_find(sp, m, pid, length, true, &p);
	if (rc)
		return rc;
	if (free_is_known(sp, &p, pid, length)) {
		g = group_at(sp, p.group);
		/* Before the bits change: from here on nobody takes a copy of the page. */
		rt_mutex_lock(&g->lock);
		g->changes++;
		g->freeing += length;
		if (g->owned)
			group_changed(g, &p, p.disk->free_pages + length);
		rt_mutex_unlock(&g->lock);
	}

	place_mark(&p, length, false);
	mtr_write_u32(p.page, offsetof(struct disk_group, free_pages),
		p.disk->free_pages + length);
	return 0;
}

static void settle_taken(
	struct space *sp, struct group *g, uint32_t index, uint32_t length)
{
	rt_mutex_lock(&g->lock);
	WEFT_ASSERT(g->overlay && bitmap_all_set(g->overlay->reserved, index, length));
	bitmap_clear(g->overlay->reserved, index, length);
	g->reserved -= length;
	rt_mutex_unlock(&g->lock);
	count_free(sp, g, -(uint64_t)length);
}

static void settle_freed(
	struct space *sp, struct group *g, uint32_t index, uint32_t length, lsn_t end)
{
	uint64_t seen = atomic_load_explicit(&sp->freed_lsn, memory_order_relaxed);

	rt_mutex_lock(&g->lock);
	WEFT_ASSERT(g->freeing >= length);
	g->freeing -= length;
	if (!g->owned) { /* its owner's to know */
		rt_mutex_unlock(&g->lock);
		return;
	}
	group_quarantine(g, index, length, end);
	atomic_store_explicit(&g->room,
		atomic_load_explicit(&g->room, memory_order_relaxed) + length,
		memory_order_relaxed);
	/* Until a search finds out: else a group known to be full would be passed over.
	 */
	atomic_store_explicit(&g->longest, g->pages, memory_order_relaxed);
	rt_mutex_unlock(&g->lock);
	while (seen < end && !atomic_compare_exchange_weak_explicit(&sp->freed_lsn, &seen,
				     end, memory_order_release, memory_order_relaxed))
		;
	count_free(sp, g, length);
	atomic_fetch_add_explicit(&sp->budget, length, memory_order_relaxed);
}

void space_committed(
	struct space *sp, page_id pid, uint32_t length, bool freed, lsn_t end)
{
	uint64_t group;
	uint32_t index;

	WEFT_ASSERT(space_locate(sp, pid, length, &group, &index));
	if (group == GROUP_NONE) { /* its owner's to know */
		rt_mutex_lock(&sp->grow_lock);
		WEFT_ASSERT(freed && sp->frees_unknown);
		sp->frees_unknown--;
		rt_mutex_unlock(&sp->grow_lock);
	} else if (freed)
		settle_freed(sp, group_at(sp, group), index, length, end);
	else
		settle_taken(sp, group_at(sp, group), index, length);
}
