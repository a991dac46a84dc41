/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reserving: the path of every write that needs pages.
 *
 * There are two steps. First the pages are taken off the budget (free and not reserved). This
 * decides about -ENOSPC and about the pages kept back. Then a run is searched, and pages that were
 * not found go back. Pages in quarantine are in the budget. If a search finds nothing else the log
 * is flushed, which ends their quarantine (invariant 3). Pages of groups whose page cannot be read
 * are in the budget, too. If nothing else is left that is the error.
 *
 * Where: near the goal if there is one. Without a goal tasks are striped over a few groups, so that
 * tasks that commit at once latch different group pages. Within its group each goes on where the
 * last run ended. Pages that a file gives back at that place are used by the next one. So small
 * files written one after the other lie side by side. File data is searched upwards, tree pages
 * from the group's end downwards.
 */
#include "engine/space/space_internal.h"

/* A run that continues a file is taken if it is at least so long. */
#define CONTINUE_LEAST 8u
/* Searches repeated because a group was just changing or a quarantine just ended. */
#define TRIES_MAX 256
/* So many at once; then with pauses, as others may be waiting for the device. */
#define TRIES_QUICK 16
#define WAIT_NS     20000ull
/* More room was found so often, and was no more than before. */
#define VAIN_MAX 8u
/* After so many this node's groups are looked at again. */
#define TRIES_LOOK 32

struct search {
	uint32_t want;
	uint32_t least; /* a shorter run is not taken */
	bool metadata;
	uint64_t goal_group; /* GROUP_NONE: no goal */
	uint32_t goal_index; /* INDEX_NONE: the group is enough */
};

static void pressure_raise(struct space *sp)
{
	atomic_fetch_add_explicit(&sp->pressure, 1, memory_order_relaxed);
}

/* Takes 1 to `want` pages off the budget; 0 when there are none (that this caller may
 * use). */
static uint32_t budget_take(struct space *sp, uint32_t want, bool privileged)
{
	uint64_t kept = privileged ? 0 : sp->kept_pages;
	uint64_t has = atomic_load_explicit(&sp->budget, memory_order_relaxed);
	uint64_t n;

	do {
		n = has > kept ? MIN((uint64_t)want, has - kept) : 0;
		if (!n)
			break;
	} while (!atomic_compare_exchange_weak_explicit(
		&sp->budget, &has, has - n, memory_order_relaxed, memory_order_relaxed));
	if (n < want || (has >= sp->tight_pages && has - n < sp->tight_pages))
		pressure_raise(sp);
	return (uint32_t)n;
}

static void budget_return(struct space *sp, uint64_t pages)
{
	atomic_fetch_add_explicit(&sp->budget, pages, memory_order_relaxed);
}

/* Looks for file data's place: at the goal, then behind it, then from the group's start.
 */
static uint32_t pick_data(
	struct group *g, const struct search *s, bool goal_here, uint32_t *first)
{
	const uint64_t *busy = g->overlay->busy;
	uint32_t from = g->cursor;
	uint32_t length, wrapped, at = 0;

	if (goal_here && s->goal_index != INDEX_NONE) {
		from = s->goal_index;
		length = bitmap_run(busy, from, g->pages, s->want);
		*first = from;
		if (length && length >= MIN(s->want, CONTINUE_LEAST))
			return length;
	}
	length = bitmap_find(busy, from, g->pages, s->want, first);
	if (length == s->want || !from)
		return length;
	wrapped = bitmap_find(busy, 0, g->pages, s->want, &at);
	if (wrapped > length) {
		*first = at;
		return wrapped;
	}
	return length;
}

/* Reserves in a group that has an overlay. With its lock. The length, or 0. */
static uint32_t reserve_locked(
	struct space *sp, uint64_t group, const struct search *s, struct space_run *out)
{
	struct group *g = group_at(sp, group);
	bool goal_here = s->goal_group == group;
	uint32_t length, first = 0;

	if (s->metadata)
		length = bitmap_find_down(g->overlay->busy, g->pages, s->want, &first);
	else
		length = pick_data(g, s, goal_here, &first);
	/* While pages are in quarantine the group must be looked at again: that ends it.
	 */
	if (length < s->want && !g->quarantined)
		atomic_store_explicit(&g->longest, length, memory_order_relaxed);
	if (!length || length < s->least)
		return 0;
	bitmap_set(g->overlay->busy, first, length);
	bitmap_set(g->overlay->reserved, first, length);
	g->overlay->used = true;
	g->reserved += length;
	atomic_store_explicit(&g->room,
		atomic_load_explicit(&g->room, memory_order_relaxed) - length,
		memory_order_relaxed);
	if (!s->metadata && !goal_here)
		g->cursor = first + length < g->pages ? first + length : 0;
	*out = (struct space_run){
		.pid = group_pid(sp, group) + 1 + first,
		.length = length,
		.incarnation = g->next_incarnation++,
	};
	return length;
}

/* With the group's lock. */
static void group_break(struct space *sp, uint64_t group, int why)
{
	struct group *g = group_at(sp, group);

	if (g->broken)
		return;
	weft_log(3,
		"allocation group %llu: its page cannot be read (%d): its pages are not "
		"used",
		(unsigned long long)group, why);
	g->broken = why;
	atomic_fetch_add_explicit(&sp->broken_groups, 1, memory_order_relaxed);
}

static bool is_unreadable(int error)
{
	return error == -EIO || error == -EUCLEAN;
}

bool space_exhausted(struct space *sp, int error)
{
	return error == -ENOSPC ||
	       (is_unreadable(error) && atomic_load_explicit(&sp->broken_groups,
						memory_order_relaxed) > 0);
}

/* 0; -ENOSPC: nothing here now; -EAGAIN: perhaps in a moment; or why its page cannot be
 * read. */
static int reserve_in_group(
	struct space *sp, uint64_t group, const struct search *s, struct space_run *out)
{
	struct group *g = group_at(sp, group);
	lsn_t durable = log_durable(sp->log);
	int rc = -ENOSPC;

	rt_mutex_lock(&g->lock);
	group_settle(g, durable);
	if (g->broken)
		rc = g->broken;
	if (!g->owned || g->broken || (!g->overlay && g->quarantined))
		goto out_unlock;
	if (!g->overlay) {
		rt_mutex_unlock(&g->lock);
		rc = overlay_load(sp, group);
		rt_mutex_lock(&g->lock);
		if (is_unreadable(rc))
			group_break(sp, group, rc);
		if (rc)
			goto out_unlock;
		rc = -EAGAIN;
		if (!g->overlay) /* taken away again already */
			goto out_unlock;
	}
	rc = reserve_locked(sp, group, s, out) ? 0 : -ENOSPC;
out_unlock:
	rt_mutex_unlock(&g->lock);
	return rc;
}

/* Goes over the groups start, start + step, ... once. As reserve_in_group. A group's -EAGAIN counts
 * for more than an error that keeps another group from being used. */
static int reserve_in_groups(struct space *sp, uint64_t start, uint64_t step,
	const struct search *s, struct space_run *out)
{
	uint64_t group = start;
	int result = -ENOSPC;

	do {
		struct group *g = group_at(sp, group);
		int rc;

		if (atomic_load_explicit(&g->room, memory_order_relaxed) >= s->least &&
			atomic_load_explicit(&g->longest, memory_order_relaxed) >=
				s->least) {
			rc = reserve_in_group(sp, group, s, out);
			if (!rc)
				return 0;
			if (rc == -EAGAIN || (rc != -ENOSPC && result != -EAGAIN))
				result = rc;
		}
		group += step;
		if (group >= groups_known(sp))
			group = step == 1 ? 0 : start % step;
	} while (group != start);
	return result;
}

/* One search: first for a good run in the groups of this stripe, then anywhere, then
 * anything. */
static int search_groups(struct space *sp, struct search *s, struct space_run *out)
{
	unsigned stripe = rt_task_index() % sp->stripe_count;
	uint64_t start = s->goal_group;
	uint32_t good = DIV_UP(s->want, 4u), index;
	uint64_t found;
	int rc;

	if (start == GROUP_NONE)
		start = atomic_load_explicit(&sp->stripe[stripe], memory_order_relaxed);
	s->least = good;
	rc = reserve_in_groups(sp, start, sp->stripe_count, s, out);
	if (rc && sp->stripe_count > 1)
		rc = reserve_in_groups(sp, start, 1, s, out);
	if (rc && good > 1) {
		s->least = 1;
		rc = reserve_in_groups(sp, start, 1, s, out);
	}
	if (!rc && s->goal_group == GROUP_NONE &&
		space_locate(sp, out->pid, 1, &found, &index))
		atomic_store_explicit(&sp->stripe[stripe], found, memory_order_relaxed);
	return rc;
}

/* The same, looking for more room. Near the end nodes may hand the last groups round, none with as
 * much as any may use. So it ends if a round brings no more than there was. */
static uint32_t budget_ask(struct space *sp, uint32_t want, unsigned flags)
{
	uint64_t most = 0;
	uint32_t granted;

	for (unsigned vain = 0;;) {
		uint64_t has;

		granted = budget_take(sp, want, flags & SPACE_PRIVILEGED);
		if (granted || vain == VAIN_MAX || space_more(sp, flags & SPACE_ALONE))
			return granted;
		has = atomic_load_explicit(&sp->budget, memory_order_relaxed);
		vain = has > most ? 0 : vain + 1;
		most = MAX(most, has);
	}
}

int space_reserve(struct space *sp, page_id goal, uint32_t want, unsigned flags,
	struct space_run *out)
{
	struct search s = {
		.metadata = flags & SPACE_METADATA,
		.goal_group = GROUP_NONE,
		.goal_index = INDEX_NONE,
	};
	bool alone = flags & SPACE_ALONE;
	uint32_t granted;
	int rc = -ENOSPC;

	WEFT_ASSERT(want >= 1);
	*out = (struct space_run){.pid = PID_NONE};
	granted = budget_ask(sp, MIN(want, DISK_GROUP_PAGES), flags);
	if (!granted)
		return -ENOSPC;
	s.want = granted;
	if (goal != PID_NONE && !space_locate(sp, goal, 1, &s.goal_group, &s.goal_index))
		s.goal_group = GROUP_NONE; /* behind a group's or the store's last page */
	for (unsigned tries = 0; tries < TRIES_MAX; tries++) {
		lsn_t freed = atomic_load_explicit(&sp->freed_lsn, memory_order_acquire);

		rc = search_groups(sp, &s, out);
		if (!rc) {
			if (out->length < granted)
				budget_return(sp, granted - out->length);
			return 0;
		}
		if ((rc == -ENOSPC || is_unreadable(rc)) &&
			log_durable(sp->log) < freed) {
			/* Only pages in quarantine are left. */
			rc = log_flush(sp->log, freed);
			if (rc)
				break;
			continue;
		}
		/* Others have freed pages, or a group can be had in place of one that
		 * cannot be read. */
		if (tries % TRIES_LOOK == 0 && sp->has_peers)
			groups_look(sp);
		if (is_unreadable(rc) && space_more(sp, alone) == 0)
			continue;
		/* Pages are on their way: between an mtr and its settling, or their
		 * group's page is being read. Of unreadable groups' nothing need be. */
		if (rc != -EAGAIN && rc != -ENOSPC &&
			(!is_unreadable(rc) || tries >= TRIES_QUICK))
			break;
		if (tries < TRIES_QUICK)
			rt_yield();
		else
			rt_sleep_ns(WAIT_NS * MIN(tries, 50u));
	}
	budget_return(sp, granted);
	pressure_raise(sp);
	return rc == -EAGAIN || !rc ? -ENOSPC : rc;
}

void space_unreserve(struct space *sp, const struct space_run *run)
{
	struct group *g;
	uint64_t group;
	uint32_t index;

	if (!run->length)
		return;
	WEFT_ASSERT(space_locate(sp, run->pid, run->length, &group, &index));
	g = group_at(sp, group);
	rt_mutex_lock(&g->lock);
	WEFT_ASSERT(
		g->overlay && bitmap_all_set(g->overlay->reserved, index, run->length));
	bitmap_clear(g->overlay->reserved, index, run->length);
	bitmap_clear(g->overlay->busy, index, run->length);
	g->reserved -= run->length;
	atomic_store_explicit(&g->room,
		atomic_load_explicit(&g->room, memory_order_relaxed) + run->length,
		memory_order_relaxed);
	atomic_store_explicit(&g->longest, g->pages, memory_order_relaxed);
	if (index + run->length == g->cursor ||
		(!g->cursor && index + run->length == g->pages))
		g->cursor = index;
	rt_mutex_unlock(&g->lock);
	budget_return(sp, run->length);
}
