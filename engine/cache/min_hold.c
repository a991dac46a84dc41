/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The minimum hold time of a page that a node changes repeatedly while others request it
 * (docs/nodes/driver.md, "Time to use"). Without it each change of such a page costs a handover,
 * which takes many times as long as the change. This file also handles cache_keep, for a node that
 * is about to change a page again.
 *
 * Keeps: no ask waits longer than MIN_HOLD_NS from the page's arrival on. If the page is kept, no
 * ask waits longer than CACHE_KEEP_NS from the first refusal on. This holds for any content of the
 * notes, so notes may be lost, or belong to another page. Each page has one place, which it shares
 * with others, and takes over when it arrives. Places are written under the page's latch, except by
 * cache_keep. Two pages may write one place at once.
 */
#include "engine/cache/cache_internal.h"

#define LOOK_NS  500000ull /* without a change it does not stay longer than this */
#define WORTH    3u        /* changes for which a stay pays */
#define SKIP_MIN 4u        /* so many stays are passed over after one that did not, */
#define SKIP_MAX 64u       /* and at most */

#define GET(s, field)    atomic_load_explicit(&(s)->field, memory_order_relaxed)
#define PUT(s, field, v) atomic_store_explicit(&(s)->field, v, memory_order_relaxed)

static struct min_hold *min_hold_of(struct cache *c, const struct frame *f)
{
	page_id pid = atomic_load_explicit(&f->pid, memory_order_relaxed);

	return &c->min_hold[table_hash(pid) % MIN_HOLD_PLACES];
}

static void min_hold_take(struct min_hold *s, page_id pid)
{
	if (GET(s, pid) == pid)
		return;
	PUT(s, pid, pid);
	PUT(s, skip, 0);
	PUT(s, skips_left, 0);
	PUT(s, open, false);
	PUT(s, kept_ns, 0);
	PUT(s, refused_ns, 0);
}

void cache_keep(struct cache *c, page_id pid, uint64_t until_ns)
{
	struct min_hold *s = &c->min_hold[table_hash(pid) % MIN_HOLD_PLACES];

	if (until_ns)
		min_hold_take(s, pid);
	if (GET(s, pid) == pid)
		PUT(s, kept_ns, until_ns);
}

bool cache_keep_refused(struct cache *c, page_id pid)
{
	struct min_hold *s = &c->min_hold[table_hash(pid) % MIN_HOLD_PLACES];

	return GET(s, pid) == pid && GET(s, refused_ns);
}

/* The page is kept until then; 0: it is not. */
static uint64_t kept_until(struct min_hold *s, uint64_t now)
{
	uint64_t kept = GET(s, kept_ns), refused = GET(s, refused_ns);

	if (now >= kept) {
		PUT(s, refused_ns, 0);
		return 0;
	}
	if (!refused) {
		refused = now;
		PUT(s, refused_ns, refused);
	}
	if (now >= refused + CACHE_KEEP_NS)
		return 0;
	return MIN(MIN(kept, now + LOOK_NS), refused + CACHE_KEEP_NS);
}

void min_hold_begin(struct cache *c, const struct frame *f)
{
	page_id pid = atomic_load_explicit(&f->pid, memory_order_relaxed);
	struct min_hold *s = min_hold_of(c, f);

	min_hold_take(s, pid);
	PUT(s, refused_ns, 0);
	PUT(s, came_ns, rt_now_ns());
	PUT(s, came_version, f->version);
	PUT(s, look_version, f->version);
	PUT(s, look_ns, 0);
	PUT(s, open, true);
}

/* The use that the hold time had decides how many of the next ones are passed over. */
static void min_hold_end(struct min_hold *s, const struct frame *f)
{
	uint32_t skip = GET(s, skip);

	PUT(s, open, false);
	if (!GET(s, look_ns))
		return; /* nobody was kept waiting */
	if (f->version - GET(s, came_version) >= WORTH)
		skip = 0;
	else
		skip = MIN(MAX(2 * skip, SKIP_MIN), SKIP_MAX);
	PUT(s, skip, skip);
	PUT(s, skips_left, skip);
}

uint64_t min_hold_until(struct cache *c, const struct frame *f)
{
	page_id pid = atomic_load_explicit(&f->pid, memory_order_relaxed);
	struct min_hold *s = min_hold_of(c, f);
	uint64_t now, end, look;
	uint32_t left;

	if (GET(s, pid) != pid || frame_right(f) != PAGE_EXCLUSIVE)
		return 0;
	now = rt_now_ns();
	look = kept_until(s, now);
	if (look || !GET(s, open))
		return look;
	end = GET(s, came_ns) + MIN_HOLD_NS;
	look = GET(s, look_ns);
	if (now < look)
		return look;
	left = GET(s, skips_left);
	if (!look && left) {
		PUT(s, skips_left, left - 1);
		PUT(s, open, false);
		return 0;
	}
	if (now >= end || GET(s, look_version) == f->version) {
		min_hold_end(s, f);
		return 0;
	}
	if (!look)
		COUNT(c, stays, 1);
	look = MIN(now + LOOK_NS, end);
	PUT(s, look_version, f->version);
	PUT(s, look_ns, look);
	return look;
}
