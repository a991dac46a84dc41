/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How long a page stays with a node that changes it again and again while others ask for it
 * (docs/many-nodes.md, "Time to use"). Without that each change of a page that several nodes
 * change costs a handover, which takes many times as long as the change. And how long with one that
 * has asked for that, since it is about to change it again (cache_keep).
 *
 * Keeps: no ask waits longer than STAY_NS from the page's arrival on, and, where the page is kept,
 * CACHE_KEEP_NS from the first refusal on, whatever is noted here. So notes may be lost, or be another
 * page's: each page has one place, which it shares with others, and takes over when it arrives. They are
 * written under the page's latch, but for cache_keep; two pages may write one place at once.
 */
#include "engine/cache/cache_internal.h"

#define LOOK_NS  500000ull /* without a change it does not stay longer than this */
#define WORTH    3u        /* changes for which a stay pays */
#define SKIP_MIN 4u        /* so many stays are passed over after one that did not, */
#define SKIP_MAX 64u       /* and at most */

#define GET(s, field)    atomic_load_explicit(&(s)->field, memory_order_relaxed)
#define PUT(s, field, v) atomic_store_explicit(&(s)->field, v, memory_order_relaxed)

static struct stay *stay_of(struct cache *c, const struct frame *f)
{
	page_id pid = atomic_load_explicit(&f->pid, memory_order_relaxed);

	return &c->stay[table_hash(pid) % STAY_PLACES];
}

static void stay_take(struct stay *s, page_id pid)
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
	struct stay *s = &c->stay[table_hash(pid) % STAY_PLACES];

	if (until_ns)
		stay_take(s, pid);
	if (GET(s, pid) == pid)
		PUT(s, kept_ns, until_ns);
}

bool cache_keep_refused(struct cache *c, page_id pid)
{
	struct stay *s = &c->stay[table_hash(pid) % STAY_PLACES];

	return GET(s, pid) == pid && GET(s, refused_ns);
}

/* The page is kept until then; 0: it is not. */
static uint64_t kept_until(struct stay *s, uint64_t now)
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

void stay_begin(struct cache *c, const struct frame *f)
{
	page_id pid = atomic_load_explicit(&f->pid, memory_order_relaxed);
	struct stay *s = stay_of(c, f);

	stay_take(s, pid);
	PUT(s, refused_ns, 0);
	PUT(s, came_ns, rt_now_ns());
	PUT(s, came_version, f->version);
	PUT(s, look_version, f->version);
	PUT(s, look_ns, 0);
	PUT(s, open, true);
}

/* What the stay was good for says how many of those to come are passed over. */
static void stay_end(struct stay *s, const struct frame *f)
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

uint64_t stay_until(struct cache *c, const struct frame *f)
{
	page_id pid = atomic_load_explicit(&f->pid, memory_order_relaxed);
	struct stay *s = stay_of(c, f);
	uint64_t now, end, look;
	uint32_t left;

	if (GET(s, pid) != pid || frame_right(f) != PAGE_EXCLUSIVE)
		return 0;
	now = rt_now_ns();
	look = kept_until(s, now);
	if (look || !GET(s, open))
		return look;
	end = GET(s, came_ns) + STAY_NS;
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
		stay_end(s, f);
		return 0;
	}
	if (!look)
		COUNT(c, stays, 1);
	look = MIN(now + LOOK_NS, end);
	PUT(s, look_version, f->version);
	PUT(s, look_ns, look);
	return look;
}
