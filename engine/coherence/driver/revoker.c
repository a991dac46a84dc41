/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Revokers: tasks that revoke frames of this node that could not be revoked at once (deliver.c). A
 * page is tried again in one of two ways.
 *
 * Three causes put the page into the list of the revokers. Its frame was latched, its image was
 * being written, or the log was not durable far enough. The revokers poll it, or wait until its
 * minimum hold time has passed.
 *
 * If this node's kernel had to drop something first, the page waits for `kernel_invalidated`
 * (coherence.h), and no task polls. Since a lost notification would block other nodes for ever, a
 * revoker checks such pages every INVALIDATION_CHECK_NS.
 *
 * Locks: the list's lock is a leaf, within that of a page's partition.
 */
#include "engine/coherence/driver/driver_internal.h"

/* ---- pages to be tried again --------------------------------------------------------------- */

void page_revoke_later(struct page_driver *d, struct page_record *p)
{
	struct revoker_list *g = &d->revokers;

	if (p->revoking)
		return;
	p->revoking = true;
	p->refs++;
	p->revoker_next = NULL;
	rt_mutex_lock(&g->lock);
	*g->end = p;
	g->end = &p->revoker_next;
	rt_mutex_unlock(&g->lock);
	atomic_fetch_add_explicit(&g->word, 1, memory_order_release);
	rt_wake(&g->word, 1);
}

/* Takes the first page whose time has come. Returns NULL if there is none; *next_ns is the time of
 * the next one. */
static struct page_record *revoker_pick(struct revoker_list *g, uint64_t *next_ns)
{
	struct page_record **at = &g->first, *p;
	uint64_t now = 0;

	*next_ns = RT_FOREVER;
	for (; (p = *at); at = &p->revoker_next) {
		uint64_t ns = atomic_load_explicit(&p->revoke_ns, memory_order_relaxed);

		if (ns && !now)
			now = rt_now_ns();
		if (ns <= now)
			break;
		*next_ns = MIN(*next_ns, ns);
	}
	if (!p)
		return NULL;
	*at = p->revoker_next;
	if (g->end == &p->revoker_next)
		g->end = at;
	return p;
}

/* Returns NULL if there is none. *next_ns: take again then. *look_ns: then check the pages that
 * wait for the kernel. */
static struct page_record *revoker_take(
	struct revoker_list *g, uint64_t *next_ns, uint64_t *look_ns)
{
	struct page_record *p;

	rt_mutex_lock(&g->lock);
	*look_ns = g->look_ns;
	p = revoker_pick(g, next_ns);
	rt_mutex_unlock(&g->lock);
	return p;
}

/* Nobody has used the page that arrived, and other nodes wait for it. */
static void use_by_force(struct page_driver *d, struct page_record *p)
{
	if (p->hold.phase != PHASE_ARRIVED)
		return;
	if (rt_now_ns() < p->arrived_ns + ARRIVED_NS) {
		page_revoke_later(d, p);
		return;
	}
	DCOUNT(d, forced);
	page_used(d, p);
}

/* Makes one try. Returns false if it was in vain. */
static bool revoke_again(struct page_driver *d, struct page_record *p)
{
	page_id pid = p->at.pid;
	uint64_t flush_to = 0;
	bool again;

	page_relock(d, p);
	p->revoking = false;
	atomic_store_explicit(&p->revoke_ns, 0, memory_order_relaxed);
	p->refs--;
	DCOUNT(d, gives_tried_again);
	if (p->deferred) {
		use_by_force(d, p);
		p->replay = true;
	}
	if (p->reinstating == d->o.self)
		page_rebuild(d, p);
	p->refs++;
	page_unlock(d, pid, p); /* delivers the deferred messages */
	page_relock(d, p);
	p->refs--;
	/* a page with a time of its own waits for that, and no other does */
	again = p->revoking && !atomic_load_explicit(&p->revoke_ns, memory_order_relaxed);
	flush_to = p->flush_to;
	page_unlock(d, pid, p);
	if (again && log_durable(d->o.log) < flush_to)
		(void)log_flush(d->o.log, flush_to); /* an error: the log is at its end */
	return !again;
}

/* A latch is let go of soon; a write to the device, or a request, takes much longer. */
static uint64_t revoke_pause_ns(unsigned in_vain)
{
	return REVOKE_POLL_NS << MIN(in_vain / 16, 4u);
}

/* ---- pages that wait for the kernel --------------------------------------------------------- */

void page_await_invalidation(struct page_driver *d, struct page_record *p)
{
	struct revoker_list *g = &d->revokers;
	bool watched;

	if (p->awaiting_invalidation)
		return;
	p->awaiting_invalidation = true;
	p->awaiting_ns = rt_now_ns();
	p->awaiting_link = &g->awaiting_invalidation;
	rt_mutex_lock(&g->lock);
	p->awaiting_next = g->awaiting_invalidation;
	if (p->awaiting_next)
		p->awaiting_next->awaiting_link = &p->awaiting_next;
	g->awaiting_invalidation = p;
	g->awaited_lately = true;
	watched = g->look_ns != RT_FOREVER;
	if (!watched)
		g->look_ns = p->awaiting_ns + INVALIDATION_CHECK_NS;
	rt_mutex_unlock(&g->lock);
	if (watched)
		return;
	atomic_fetch_add_explicit(&g->word, 1, memory_order_release);
	rt_wake(&g->word, 1);
}

void page_invalidation_end(struct page_driver *d, struct page_record *p)
{
	struct revoker_list *g = &d->revokers;

	if (!p->awaiting_invalidation)
		return;
	p->awaiting_invalidation = false;
	rt_mutex_lock(&g->lock);
	*p->awaiting_link = p->awaiting_next;
	if (p->awaiting_next)
		p->awaiting_next->awaiting_link = p->awaiting_link;
	rt_mutex_unlock(&g->lock);
}

/* Those that have been waited for long, if it is time to look. */
static unsigned invalidations_due(struct revoker_list *g, page_id *pids)
{
	unsigned count = 0;
	uint64_t now;

	rt_mutex_lock(&g->lock);
	now = rt_now_ns();
	if (now >= g->look_ns) {
		g->look_ns = g->awaited_lately ? now + INVALIDATION_CHECK_NS : RT_FOREVER;
		g->awaited_lately = g->awaiting_invalidation;
		for (const struct page_record *p = g->awaiting_invalidation;
			p && count < INVALIDATION_CHECK_MAX; p = p->awaiting_next)
			if (p->awaiting_ns + INVALIDATION_CHECK_NS <= now)
				pids[count++] = p->at.pid;
	}
	rt_mutex_unlock(&g->lock);
	return count;
}

/* Ends the page's wait, and delivers its messages. If they are not refused again, a notification
 * was lost. */
static void invalidation_check(struct page_driver *d, page_id pid)
{
	struct page_record *p = page_lock(d, pid);

	if (!p || !p->awaiting_invalidation) {
		page_unlock(d, pid, p);
		return;
	}
	DCOUNT(d, ease_looks);
	page_invalidation_end(d, p);
	p->replay = true;
	p->refs++;
	page_settle(d, p);
	p->refs--;
	if (!p->awaiting_invalidation && !p->revoking) /* else it was refused again */
		DCOUNT(d, eased_unheard);
	page_unlock(d, pid, p);
}

/* Checks that the kernel has dropped the pages that are waited for. So nobody waits for ever if a
 * notification was lost. */
static void invalidations_check_all(struct page_driver *d)
{
	page_id pids[INVALIDATION_CHECK_MAX];
	unsigned count = invalidations_due(&d->revokers, pids);

	for (unsigned i = 0; i < count; i++)
		invalidation_check(d, pids[i]);
}

/* ---- the tasks ----------------------------------------------------------------------------- */

void revokers_retry(struct page_driver *d)
{
	struct revoker_list *g = &d->revokers;

	/* A revoker that polls has counted itself before it looks at the word. */
	atomic_fetch_add(&g->invalidated, 1);
	if (atomic_load(&g->polling))
		rt_wake(&g->invalidated, INT32_MAX);
}

static void revoke_pause(struct revoker_list *g, uint32_t invalidated, uint64_t ns)
{
	atomic_fetch_add(&g->polling, 1);
	rt_wait(&g->invalidated, invalidated, rt_now_ns() + ns);
	atomic_fetch_sub(&g->polling, 1);
}

void revoker_main(void *arg)
{
	struct page_driver *d = arg;
	unsigned in_vain = 0; /* tries since the last that was not */
	uint32_t word;

	while (rt_goes_on(&d->stopping, &d->revokers.word, &word)) {
		uint32_t invalidated =
			atomic_load_explicit(&d->revokers.invalidated, memory_order_acquire);
		uint64_t next_ns, look_ns;
		struct page_record *p = revoker_take(&d->revokers, &next_ns, &look_ns);

		if (!p)
			rt_wait(&d->revokers.word, word, MIN(next_ns, look_ns));
		else if (revoke_again(d, p))
			in_vain = 0;
		else
			revoke_pause(&d->revokers, invalidated, revoke_pause_ns(in_vain++));
		if (look_ns != RT_FOREVER)
			invalidations_check_all(d);
	}
}
