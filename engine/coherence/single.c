/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Coherence of a volume with one node. The home and only holder is this node. So every request is
 * granted in X at once, and the image comes from the store. It keeps no state: a directory with one
 * possible holder has nothing to remember. Invariants 1 and 7 hold trivially, and nobody ever asks
 * for a page.
 */
#include "engine/coherence/coherence.h"
#include "engine/rt/rt.h"

#include <errno.h>

static void single_acquire(
	struct coherence *c, struct coherence_request *requests, unsigned count)
{
	for (unsigned i = 0; i < count; i++) {
		struct coherence_request *r = &requests[i];

		r->result = 0;
		r->granted = PAGE_EXCLUSIVE;
		r->source = r->held == PAGE_INVALID ? PAGE_FROM_STORE : PAGE_FROM_HELD;
		r->arrived = r->dirty = false;
	}
}

static void single_used(struct coherence *c, page_id pid)
{
}

static bool single_release(struct coherence *c, page_id pid, enum page_mode held,
	uint64_t incarnation, bool spare)
{
	WEFT_ASSERT(held != PAGE_INVALID);
	return true;
}

/* Release never refuses, and every page's home is here. */
static void single_evict(struct coherence *c, const page_id *pids, unsigned count)
{
	WEFT_ASSERT(!count);
}

static void single_ship(struct coherence *c, struct coherence_ship *ships, unsigned count)
{
	WEFT_ASSERT(!count);
}

static void single_persisted(struct coherence *c, page_id pid, uint64_t incarnation,
	uint64_t version, bool more)
{
}

static void single_close(struct coherence *c)
{
	rt_free(c);
}

static const struct coherence_ops single_ops = {
	.acquire = single_acquire,
	.used = single_used,
	.release = single_release,
	.evict = single_evict,
	.ship = single_ship,
	.persisted = single_persisted,
	.close = single_close,
};

int coherence_single_open(struct coherence **out, uint32_t shard)
{
	struct coherence *c = rt_alloc(sizeof(*c));

	if (!c)
		return -ENOMEM;
	c->ops = &single_ops;
	c->shard = shard;
	*out = c;
	return 0;
}
