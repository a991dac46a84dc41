/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opening: every group page is read and checked (invariant 9) before any page is handed out. So a
 * damaged group is reported at once, and counters can be trusted from then on. That holds for the
 * groups of this node's shard. Groups of other shards are looked at when room is searched
 * (owner.c).
 */
#include "engine/space/space_internal.h"

/* Kept back for transactions that free space: 1/1024 of the store, at least 64 pages and at most
 * 4096. Never over a quarter of a very small store. */
#define KEPT_MIN 64u
#define KEPT_MAX 4096u
/* Space is tight with less than 1/64 left, or 256 MiB. */
#define TIGHT_MAX 65536u

int space_check_page(
	const void *image, uint64_t page_count, uint64_t group, struct weft_error *err)
{
	const struct disk_group *d = image;
	uint64_t map[GROUP_WORDS];
	uint32_t pages = space_layout_pages(page_count, group);
	uint32_t used;

	if (d->magic != DISK_MAGIC_GROUP)
		return weft_error(err, -EUCLEAN,
			"allocation group %llu: no group page at slot %llu (magic "
			"%016llx); run fsck.weft",
			(unsigned long long)group,
			(unsigned long long)disk_group_slot(group),
			(unsigned long long)d->magic);
	if (d->group != group)
		return weft_error(err, -EUCLEAN,
			"allocation group %llu: its page says that it is group %u; run "
			"fsck.weft",
			(unsigned long long)group, d->group);
	memcpy(map, d->bitmap, sizeof(map));
	if (pages < DISK_GROUP_PAGES &&
		!bitmap_all_set(map, pages, DISK_GROUP_PAGES - pages))
		return weft_error(err, -EUCLEAN,
			"allocation group %llu: pages past the end of the store are "
			"marked free; run fsck.weft",
			(unsigned long long)group);
	used = bitmap_count(map, pages);
	if (d->free_pages != pages - used)
		return weft_error(err, -EUCLEAN,
			"allocation group %llu: counts %u free pages where its bitmap "
			"has %u; run fsck.weft",
			(unsigned long long)group, d->free_pages, pages - used);
	if (d->owner > DISK_NODE_MAX)
		return weft_error(err, -EUCLEAN,
			"allocation group %llu: its owner is node %u, which cannot be; "
			"run fsck.weft",
			(unsigned long long)group, d->owner);
	if (!d->next_incarnation)
		return weft_error(err, -EUCLEAN,
			"allocation group %llu: next incarnation is 0; run fsck.weft",
			(unsigned long long)group);
	return 0;
}

/*
 * Tells the store of slots that no run has ever had: none of them has a descriptor. The record that
 * takes a run raises next_incarnation, and is durable before a descriptor of the run is (invariant
 * 3). The root's page has its incarnation from mkfs. A store of a cluster is left out: another node
 * may have taken a run, and its log may be lost (`weft node fence --without-store`).
 */
static void unused_tell(struct space *sp, uint64_t group, const struct disk_group *d)
{
	const struct group *g = group_at(sp, group);
	page_id pid = group_pid(sp, group);
	bool has_root = group == 0 && pid_shard(pid) == DISK_CATALOG_SHARD;

	if (sp->has_peers || sp->node || d->next_incarnation > 1u + has_root ||
		d->free_pages + has_root != g->pages)
		return;
	store_slots_unused(cache_store(sp->cache), pid_slot(pid) + 1 + has_root,
		g->pages - has_root);
}

/* Takes over the state in a group's page. */
static int group_open(struct space *sp, uint64_t group, struct weft_error *err)
{
	struct group *g = group_at(sp, group);
	const struct disk_group *d;
	uint64_t map[GROUP_WORDS];
	struct guard guard;
	uint32_t unused;
	int rc;

	rc = guard_shared(sp->cache, group_pid(sp, group), 0, &guard);
	if (rc)
		return weft_error(err, rc,
			"allocation group %llu: cannot read its page at slot %llu%s",
			(unsigned long long)group,
			(unsigned long long)disk_group_slot(group),
			rc == -EUCLEAN ? " (damaged); run fsck.weft" : "");
	d = (const struct disk_group *)guard.image;
	rc = group_check(sp, group, d, err);
	/* a node alone can have a group that nobody owns, but not one of another node */
	if (!rc && (sp->has_peers || d->owner == sp->node ||
			   d->owner == DISK_OWNER_NOBODY)) {
		g->counted = true;
		g->owner = d->owner;
		g->page_free = d->free_pages;
		sp->total_pages += g->pages;
		sp->free_pages += d->free_pages;
	}
	if (!rc)
		unused_tell(sp, group, d);
	if (!rc && d->owner == sp->node) {
		memcpy(map, d->bitmap, sizeof(map));
		group_adopt(sp, g, d, guard.frame->version,
			bitmap_find(map, 0, g->pages, g->pages, &unused));
		sp->budget += d->free_pages;
		sp->unowned--;
	}
	guard_release(sp->cache, &guard);
	return rc;
}

static int groups_open(struct space *sp, struct weft_error *err)
{
	unsigned batch = cache_batch_max(sp->cache);
	struct page_ref *refs = rt_alloc(batch * sizeof(*refs));
	int rc = 0;

	if (!refs)
		return weft_error(err, -ENOMEM, "no memory to read allocation groups");
	for (uint64_t at = 0; at < sp->span[0].count && !rc; at += batch) {
		unsigned n = (unsigned)MIN((uint64_t)batch, sp->span[0].count - at);

		for (unsigned i = 0; i < n; i++)
			refs[i] = (struct page_ref){.pid = group_pid(sp, at + i)};
		/* An error comes again below, where it has a name. */
		(void)cache_fetch(sp->cache, refs, n);
		for (unsigned i = 0; i < n && !rc; i++)
			rc = group_open(sp, at + i, err);
	}
	rt_free(refs);
	return rc;
}

static int overlays_grow(struct space *sp, uint64_t places)
{
	struct overlay **more = rt_alloc(places * sizeof(struct overlay *));

	if (!more)
		return -ENOMEM;
	rt_mutex_lock(&sp->overlay_lock);
	if (sp->overlay_count)
		memcpy(more, sp->overlays, sp->overlay_count * sizeof(*more));
	rt_free(sp->overlays);
	sp->overlays = more;
	sp->overlay_places = places;
	rt_mutex_unlock(&sp->overlay_lock);
	return 0;
}

/* A shard too small for a group has none. A client's shard is listed all the same, since the first
 * is this node's. With grow_lock; a reader without it sees the group's count last. */
static int span_add(struct space *sp, uint16_t shard, uint64_t page_count)
{
	uint64_t groups = space_layout_groups(page_count), first = groups_known(sp);
	struct span *span = &sp->span[sp->span_count];

	if (!groups && !disk_shard_client(shard))
		return 0;
	*span = (struct span){.shard = shard,
		.page_count = page_count,
		.first = first,
		.count = groups,
		.groups = rt_alloc(MAX(groups, 1) * sizeof(*span->groups))};
	if (!span->groups || overlays_grow(sp, MAX(first + groups, 1))) {
		rt_free(span->groups);
		return -ENOMEM;
	}
	for (uint64_t i = 0; i < groups; i++)
		span->groups[i].pages = (uint16_t)space_layout_pages(page_count, i);
	atomic_fetch_add_explicit(&sp->unowned, groups, memory_order_relaxed);
	atomic_store_explicit(&sp->group_count, first + groups, memory_order_release);
	atomic_fetch_add_explicit(&sp->span_count, 1, memory_order_release);
	return 0;
}

static bool span_known(const struct space *sp, uint16_t shard)
{
	for (unsigned i = 0; i < sp->span_count; i++)
		if (sp->span[i].shard == shard)
			return true;
	return false;
}

/*
 * Not while pages are being freed there: a free that began in a group that was not known
 * ends in one.
 */
void spans_grow(struct space *sp)
{
	rt_mutex_lock(&sp->grow_lock);
	for (unsigned i = 0; i < sp->shards->count && !sp->frees_unknown; i++) {
		uint16_t shard = sp->shards->shard[i].id;
		uint64_t pages = shards_pages(sp->shards, shard);

		/* without memory they stay unknown until the next time */
		if (pages && !span_known(sp, shard))
			(void)span_add(sp, shard, pages);
	}
	rt_mutex_unlock(&sp->grow_lock);
}

int space_open(struct space **out, struct cache *cache, struct weft_error *err)
{
	const struct disk_superblock *sb = store_superblock(cache_store(cache));
	struct space *sp = rt_alloc(sizeof(*sp));
	uint64_t kept, total = 0;
	int rc;

	if (!sp)
		return weft_error(err, -ENOMEM, "no memory for free space");
	sp->cache = cache;
	sp->log = cache_log(cache);
	sp->shards = cache_shards(cache);
	sp->has_peers = cache_has_peers(cache);
	sp->node = sb->node;
	rc = span_add(sp, sb->shard, sb->page_count);
	if (rc) {
		space_close(sp);
		return weft_error(err, rc, "no memory for allocation groups");
	}
	if (!sp->group_count && !disk_shard_client(sb->shard)) {
		rt_free(sp);
		return weft_error(
			err, -EUCLEAN, "the store has no room for an allocation group");
	}
	spans_grow(sp);
	rc = groups_open(sp, err);
	if (rc) {
		space_close(sp);
		return rc;
	}
	sp->overlays_soft_max = OVERLAYS_SOFT_MAX;
	for (uint64_t group = 0; group < sp->span[0].count; group++)
		total += group_at(sp, group)->pages;
	kept = MIN(MAX(total / 1024, (uint64_t)KEPT_MIN), (uint64_t)KEPT_MAX);
	sp->kept_pages = MIN(kept, total / 4);
	if (disk_shard_client(sb->shard)) /* its groups are other nodes' to begin with */
		sp->kept_pages = KEPT_MIN;
	sp->tight_pages = sp->kept_pages + MIN(total / 64, (uint64_t)TIGHT_MAX);
	sp->stripe_count = (unsigned)MIN((uint64_t)STRIPES_MAX, MAX(sp->group_count, 1));
	for (unsigned i = 0; i < sp->stripe_count; i++)
		sp->stripe[i] = i;
	choose_begin(sp);
	*out = sp;
	return 0;
}

void space_close(struct space *sp)
{
	if (!sp)
		return;
	space_disconnect(sp);
	overlays_close(sp);
	rt_free(sp->overlays);
	for (unsigned i = 0; i < sp->span_count; i++)
		rt_free(sp->span[i].groups);
	rt_free(sp);
}

bool space_locate(const struct space *sp, page_id pid, uint32_t length, uint64_t *group,
	uint32_t *index)
{
	uint64_t slot = pid_slot(pid), at = (slot - 1) % (1 + DISK_GROUP_PAGES);
	const struct span *span = sp->span;
	const struct span *end =
		span + atomic_load_explicit(&sp->span_count, memory_order_acquire);

	/* no catalog, no group's own page */
	if (slot < 2 || !at || !length || length > DISK_GROUP_PAGES - (at - 1) ||
		!shards_have(sp->shards, pid, length))
		return false;
	*index = (uint32_t)at - 1;
	while (span < end && span->shard != pid_shard(pid))
		span++;
	*group = span < end ? span->first + (slot - 1) / (1 + DISK_GROUP_PAGES)
			    : GROUP_NONE;
	return true;
}

page_id space_group_of(struct space *sp, page_id pid)
{
	uint64_t group;
	uint32_t index;

	return space_locate(sp, pid, 1, &group, &index) ? pid - index - 1 : PID_NONE;
}

void space_stat(struct space *sp, struct space_stat *out)
{
	uint64_t free_pages = atomic_load_explicit(&sp->free_pages, memory_order_relaxed);

	*out = (struct space_stat){
		.total_pages =
			atomic_load_explicit(&sp->total_pages, memory_order_relaxed),
		.free_pages = free_pages,
		.available_pages =
			free_pages > sp->kept_pages ? free_pages - sp->kept_pages : 0,
	};
}

uint32_t space_pressure(struct space *sp)
{
	return atomic_load_explicit(&sp->pressure, memory_order_relaxed);
}
