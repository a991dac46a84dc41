/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Groups and their owners: only the node that a group's page names may reserve pages in it
 * (docs/nodes/space.md).
 *
 * Keeps: no page is handed out by two nodes. A node makes itself the owner under X, by a
 * mini-transaction, and only of a group without an owner. The state of a group in memory begins
 * then, with the page as it is under that latch.
 *
 * Others free pages in this node's groups by changing the page alone. The state in memory has the
 * version of the page that it was made from. Each change of this node adds one to both. Where they
 * differ, others have freed pages. A delay in seeing that costs room and nothing else: the busy
 * pages here include all that the page has in use.
 */
#include "engine/space/space_internal.h"

/* Attempts to latch a group's page that others want too, with pauses. */
#define TAKE_TRIES 256u
#define TAKE_NS    20000ull
/* The same to look at one. */
#define NEAR_TRIES 16u
#define NEAR_NS    20000ull

int group_check(
	const struct space *sp, uint64_t group, const void *image, struct weft_error *err)
{
	const struct span *span = group_span(sp, group);

	return space_check_page(image, span->page_count, group - span->first, err);
}

int group_near(struct space *sp, uint64_t group, struct guard *g)
{
	struct page_ref ref = {.pid = group_pid(sp, group)};
	int rc = -EAGAIN;

	for (unsigned tries = 0; rc == -EAGAIN && tries < NEAR_TRIES; tries++) {
		if (tries)
			rt_sleep_ns(NEAR_NS * tries);
		rc = cache_fetch_near(sp->cache, &ref, 1);
		if (!rc)
			rc = guard_try_shared(sp->cache, ref.pid, 0, g);
	}
	return rc;
}

void group_adopt(struct space *sp, struct group *g, const struct disk_group *d,
	uint64_t version, uint32_t longest)
{
	uint64_t free_pages = d->free_pages;

	WEFT_ASSERT(!g->owned && !g->overlay && !g->reserved);
	/* wraps where it fell: sums of it are right again */
	count_free(sp, g, free_pages - g->page_free);
	g->owned = true;
	g->owner = sp->node;
	g->passed_until = 0;
	g->stale = false;
	g->version = version;
	g->page_free = d->free_pages;
	g->next_incarnation = d->next_incarnation;
	atomic_store_explicit(&g->room, d->free_pages, memory_order_relaxed);
	atomic_store_explicit(&g->longest, longest, memory_order_relaxed);
}

/* ---- what others have freed ------------------------------------------------------- */

/* A page that is free in the group's page and not otherwise in use is free here. With the group's
 * lock. */
static void overlay_renew(struct group *g, const struct disk_group *d)
{
	struct overlay *ov = g->overlay;
	uint64_t map[GROUP_WORDS];

	memcpy(map, d->bitmap, sizeof(map));
	for (unsigned i = 0; i < GROUP_WORDS; i++)
		ov->busy[i] =
			map[i] | ov->reserved[i] | ov->freed[0][i] | ov->freed[1][i];
}

int group_look(
	struct space *sp, uint64_t group, const struct disk_group *d, uint64_t version)
{
	struct group *g = group_at(sp, group);
	uint64_t gained;
	int rc = 0;

	rt_mutex_lock(&g->lock);
	if (!g->owned || g->broken || (g->version == version && !g->stale))
		goto out_unlock;
	rc = group_check(sp, group, d, NULL);
	if (rc || d->owner != sp->node ||
		(sp->has_peers && d->free_pages < g->page_free)) {
		weft_log(3,
			"allocation group %llu of shard %u: others may only free pages "
			"in it, but changed more; run fsck.weft",
			(unsigned long long)(group - group_span(sp, group)->first),
			group_span(sp, group)->shard);
		rc = -EUCLEAN;
		goto out_unlock;
	}
	/* These wrap where fsck has marked pages as used: the sums are right. */
	gained = (uint64_t)d->free_pages - g->page_free;
	g->version = version;
	g->page_free = d->free_pages;
	atomic_fetch_add_explicit(&g->room, (uint32_t)gained, memory_order_relaxed);
	atomic_store_explicit(&g->longest, g->pages, memory_order_relaxed);
	count_free(sp, g, gained);
	atomic_fetch_add_explicit(&sp->budget, gained, memory_order_relaxed);
	/* Pages that this node has just freed itself are not in quarantine yet. */
	g->stale = g->overlay && g->freeing;
	if (g->overlay && !g->freeing)
		overlay_renew(g, d);
out_unlock:
	rt_mutex_unlock(&g->lock);
	return rc;
}

void groups_look(struct space *sp)
{
	for (uint64_t group = 0; group < groups_known(sp); group++) {
		struct group *g = group_at(sp, group);
		struct guard guard;
		bool full;

		rt_mutex_lock(&g->lock);
		full = !g->owned || g->broken || (!g->stale && g->page_free == g->pages);
		rt_mutex_unlock(&g->lock);
		/* A task that needs an unreadable page finds that out, and reports it. */
		if (full || guard_shared(sp->cache, group_pid(sp, group), 0, &guard))
			continue;
		(void)group_look(sp, group, (const struct disk_group *)guard.image,
			guard.frame->version);
		guard_release(sp->cache, &guard);
	}
}

/* ---- taking a group ------------------------------------------------------------------ */

static void freed_raise(struct space *sp, lsn_t end)
{
	uint64_t seen = atomic_load_explicit(&sp->freed_lsn, memory_order_relaxed);

	while (seen < end && !atomic_compare_exchange_weak_explicit(&sp->freed_lsn, &seen,
				     end, memory_order_release, memory_order_relaxed))
		;
}

/*
 * With its page in the mtr. Returns:
 *
 * - 0: this node owns it, and no page of it can be taken before group_taken;
 * - -EEXIST: this node has owned it before;
 * - -ENOSPC: another node owns it, or it is full;
 * - -EAGAIN: pages that this node has freed in it are not settled.
 */
static int group_claim(struct space *sp, uint64_t group, struct mtr_page *p)
{
	const struct disk_group *d = (const struct disk_group *)p->guard.image;
	struct group *g = group_at(sp, group);
	struct weft_error err = {0};
	bool news = d->owner != sp->node;
	int rc = group_check(sp, group, d, &err);

	if (rc) {
		weft_log(3, "%s", err.text);
		return rc;
	}
	rt_mutex_lock(&g->lock);
	if (g->owned)
		rc = -EEXIST;
	else if (news && (d->owner != DISK_OWNER_NOBODY || !d->free_pages))
		rc = -ENOSPC;
	else if (g->freeing)
		rc = -EAGAIN;
	if (rc == 0) {
		group_adopt(sp, g, d, p->guard.frame->version + news, g->pages);
		g->quarantined = 1; /* all of it */
		g->loadable = LSN_MAX;
	}
	rt_mutex_unlock(&g->lock);
	if (rc == 0 && news)
		mtr_write(p, offsetof(struct disk_group, owner), &sp->node,
			sizeof(sp->node));
	return rc;
}

/* Pages that this node has freed there before may be reserved once that is durable; the
 * record is behind all of theirs. */
static void group_taken(struct space *sp, uint64_t group, lsn_t end)
{
	struct group *g = group_at(sp, group);
	uint32_t room;

	rt_mutex_lock(&g->lock);
	g->loadable = end;
	room = atomic_load_explicit(&g->room, memory_order_relaxed);
	rt_mutex_unlock(&g->lock);
	freed_raise(sp, end);
	atomic_fetch_sub_explicit(&sp->unowned, 1, memory_order_relaxed);
	atomic_fetch_add_explicit(&sp->budget, room, memory_order_relaxed);
}

void group_pass(struct space *sp, uint64_t group)
{
	struct group *g = group_at(sp, group);

	rt_mutex_lock(&g->lock);
	g->passed_until = rt_now_ns() + GROUP_PASSED_NS;
	rt_mutex_unlock(&g->lock);
}

/* 0: it is this node's. -ENOSPC: it is not to be had. Waits. */
static int group_take(struct space *sp, uint64_t group, struct mtr *m)
{
	struct page_ref ref = {.pid = group_pid(sp, group)};
	lsn_t end;
	int rc = -EAGAIN;

	for (unsigned tries = 0; rc == -EAGAIN && tries < TAKE_TRIES; tries++) {
		struct mtr_page *p;

		if (tries)
			rt_sleep_ns(TAKE_NS * MIN(tries, 50u));
		rc = cache_fetch_reached(sp->cache, &ref, 1);
		if (!rc)
			rc = mtr_begin(m, sp->cache, 1);
		if (rc)
			break;
		p = mtr_latch(m, ref.pid, 0, &rc);
		if (p)
			rc = group_claim(sp, group, p);
		if (rc) {
			mtr_abort(m);
			continue;
		}
		/* Nothing is written where it owned the group in an earlier life. */
		end = mtr_commit(m).end;
		group_taken(sp, group, end ? end : log_end(sp->log));
	}
	if (rc && rc != -EEXIST)
		group_pass(sp, group);
	return rc == -EEXIST ? 0 : rc;
}

/* A look that takes the page from nobody. The task that takes an unreadable page finds that out. */
static bool group_is_to_be_had(struct space *sp, uint64_t group)
{
	const struct disk_group *d;
	struct guard guard;
	int rc = group_near(sp, group, &guard);
	bool had;

	if (rc)
		return rc != -EHOSTUNREACH && rc != -EAGAIN;
	d = (const struct disk_group *)guard.image;
	had = d->owner == sp->node ||
	      (d->owner == DISK_OWNER_NOBODY && d->free_pages > 0);
	guard_release(sp->cache, &guard);
	return had;
}

/* Groups of this node's shard come first. */
int groups_take(struct space *sp, bool everywhere)
{
	uint64_t end = everywhere ? groups_known(sp) : sp->span[0].count;
	struct mtr *m;
	int rc = -ENOSPC;

	if (!atomic_load_explicit(&sp->unowned, memory_order_relaxed))
		return rc;
	m = rt_alloc(sizeof(*m));
	if (!m)
		return -ENOMEM;
	for (uint64_t group = 0; group < end && rc; group++) {
		struct group *g = group_at(sp, group);
		bool passed;

		rt_mutex_lock(&g->lock);
		passed = g->owned || g->broken || rt_now_ns() < g->passed_until;
		rt_mutex_unlock(&g->lock);
		if (passed)
			continue;
		if (group_is_to_be_had(sp, group))
			rc = group_take(sp, group, m);
		else
			group_pass(sp, group);
	}
	rt_free(m);
	return rc;
}

int group_had(struct space *sp, uint64_t group)
{
	struct mtr *m = rt_alloc(sizeof(*m));
	int rc = m ? group_take(sp, group, m) : -ENOMEM;

	rt_free(m);
	return rc;
}

int space_more(struct space *sp, bool alone)
{
	uint64_t had = atomic_load_explicit(&sp->budget, memory_order_relaxed);
	int rc;

	if (sp->has_peers) {
		spans_grow(sp);
		groups_look(sp);
		if (atomic_load_explicit(&sp->budget, memory_order_relaxed) > had)
			return 0;
	}
	rc = groups_take(sp, false);
	return rc && !alone ? space_ask(sp) : rc;
}
