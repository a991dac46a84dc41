/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Drops: the kernel is made to forget pages and attributes (docs/nodes/kernel-cache.md).
 *
 * Keeps: (5) a dropped page is gone from the kernel, and from the mappings of all processors. A
 * READ that is pending has no readable copy in the kernel, so a drop never waits for one. If a READ
 * asks for blocks of a range that is being dropped, that drop is left to itself. The rest of the
 * range is dropped anew. Drops of one page run one after the other, except for these.
 *
 * A task of the page cache that drops a copy (engine/cache/kcached.c) calls the kernel itself. When
 * it may have to wait for a READ, another task begins its drop anew.
 *
 * Locks: kcache.lock is a leaf, held for looks at lists.
 */
#include "fs/kcache/kcache_internal.h"

#define CUT_NS 20000000ull /* so long a drop waits for a call that sets the size */
/* ---- parts of ranges ----------------------------------------------------------------------- */

static bool part_has(const struct part *p, const struct kcache_read *r)
{
	return p->ino == r->ino && p->first < r->end && r->first < p->end;
}

/* The task that drops it may wait for long. If it is one of the cache, its drop is begun anew. */
static void part_leave(struct kcache *k, struct part *p)
{
	if (p->of && !p->anew)
		p->anew = cache_drop_anew(k->cache, p->of);
}

/* The blocks of the READ will not be dropped before it is answered. */
static void list_touch(struct kcache *k, struct part *list, const struct kcache_read *r)
{
	for (struct part *p = list; p; p = p->next)
		if (part_has(p, r)) {
			p->touched = true;
			part_leave(k, p);
		}
}

void kcache_parts_touch(struct kcache *k, const struct kcache_read *r)
{
	list_touch(k, k->queue, r);
	list_touch(k, k->under_way, r);
}

void kcache_parts_cut(struct kcache *k, uint64_t ino)
{
	for (struct part *p = k->under_way; p; p = p->next)
		if (p->ino == ino)
			part_leave(k, p);
}

static void part_put(struct part *p)
{
	if (--p->users == 0)
		rt_free(p);
}

static void under_way_remove(struct kcache *k, struct part *p)
{
	struct part **at = &k->under_way;

	while (*at != p)
		at = &(*at)->next;
	*at = p->next;
}

/* Is there one up to `end` that it would run beside? One that waits for a READ is not waited
 * for. */
static bool part_behind(
	const struct part *list, const struct part *end, const struct part *p)
{
	for (const struct part *q = list; q != end; q = q->next)
		if (!q->touched && q->ino == p->ino && q->first < p->end &&
			p->first < q->end)
			return true;
	return false;
}

/* The first of them that has some of the blocks, or NULL. */
static struct part *part_of(struct part *list, uint64_t ino, uint64_t first, uint64_t end)
{
	while (list && (list->ino != ino || list->first >= end || first >= list->end))
		list = list->next;
	return list;
}

bool kcache_dropping(const struct kcache *k, uint64_t ino, uint64_t first, uint64_t end)
{
	return part_of(k->queue, ino, first, end) ||
	       part_of(k->under_way, ino, first, end);
}

static void part_begin(struct kcache *k, struct part *p)
{
	p->next = k->under_way;
	k->under_way = p;
	p->told = ++k->moment;
}

/* Under the lock, which it lets go of. */
static void part_run(struct kcache *k, struct part *p)
{
	if (!p->touched) { /* else nobody waits for it */
		rt_mutex_unlock(&k->lock);
		k->ops->drop_pages(k->owner, p->ino, p->first, p->end, &p->by);
		rt_mutex_lock(&k->lock);
		p->done = true;
	}
	under_way_remove(k, p);
	part_put(p);
	rt_cond_broadcast(&k->changed);
	if (k->queue)
		rt_cond_broadcast(&k->work);
}

/* NULL: none that may begin. */
static struct part *part_take(struct kcache *k)
{
	struct part **at = &k->queue, *p;

	while (*at &&
		(part_behind(k->under_way, NULL, *at) || part_behind(k->queue, *at, *at)))
		at = &(*at)->next;
	p = *at;
	if (!p)
		return NULL;
	*at = p->next;
	if (!*at)
		k->queue_end = at;
	k->queued--;
	part_begin(k, p);
	return p;
}

void kcache_part_main(void *arg)
{
	struct kcache *k = arg;

	rt_mutex_lock(&k->lock);
	for (;;) {
		struct part *p;

		while (!(p = part_take(k)) && !(k->stopping && !k->queue)) {
			k->idle++;
			rt_cond_wait(&k->work, &k->lock, RT_FOREVER);
			k->idle--;
		}
		if (!p)
			break;
		part_run(k, p);
	}
	rt_mutex_unlock(&k->lock);
}

/* Under the lock: somebody is there, or will be, for each part that is queued. */
static int task_add(struct kcache *k)
{
	int rc;

	if (k->queued <= k->idle || k->tasks == TASKS_MAX)
		return 0;
	rc = rt_task_spawn(&k->task[k->tasks], "weft-notify", kcache_part_main, k);
	if (!rc)
		k->tasks++;
	return rc;
}

static struct part *part_queue(
	struct kcache *k, uint64_t ino, uint64_t first, uint64_t end)
{
	struct part *p = rt_alloc(sizeof(*p));

	if (!p)
		return NULL;
	*p = (struct part){.ino = ino, .first = first, .end = end, .users = 2};
	*k->queue_end = p;
	k->queue_end = &p->next;
	k->queued++;
	if (k->stores)
		rt_cond_signal(&k->late);
	(void)task_add(k); /* if not: those there are must do */
	rt_cond_signal(&k->work);
	return p;
}

/* Under the lock, which it lets go of. Returns true if a drop of the range sleeps: pages are
 * locked, or are being written back. */
static bool part_sleeps(struct kcache *k, const struct part *p)
{
	struct part *q = part_of(k->under_way, p->ino, p->first, p->end);
	bool sleeps;

	if (!q)
		return false;
	q->users++;
	rt_mutex_unlock(&k->lock);
	sleeps = k->ops->drop_waits(k->owner, &q->by);
	rt_mutex_lock(&k->lock);
	part_put(q);
	return sleeps;
}

/* Under the lock. Returns false if a call that sets the size may be waiting for the caller. */
static bool part_await(struct kcache *k, const struct part *p, bool leaf)
{
	uint64_t deadline = rt_now_ns() + CUT_NS;

	while (!p->done && !p->touched) {
		bool bound = leaf && kcache_cutting(k, p->ino);

		if (bound && rt_now_ns() >= deadline) {
			if (part_sleeps(k, p)) {
				known_keep_pages(k, p->ino);
				return false;
			}
			deadline = rt_now_ns() + WAIT_LAST_NS;
			continue;
		}
		(void)rt_cond_wait(&k->changed, &k->lock, bound ? deadline : RT_FOREVER);
	}
	return true;
}

/*
 * Under the lock: drops it, unless a READ touches it. True: it is done, or, with
 * `leaf`, is done as soon as a size is set that somebody here is just setting.
 */
static bool part_drop(
	struct kcache *k, uint64_t ino, uint64_t first, uint64_t end, bool leaf)
{
	struct part *p = part_queue(k, ino, first, end);
	bool done;

	if (!p) { /* no memory: a moment later */
		rt_mutex_unlock(&k->lock);
		rt_sleep_ns(WAIT_LAST_NS);
		rt_mutex_lock(&k->lock);
		return false;
	}
	done = !part_await(k, p, leaf) || p->done;
	part_put(p);
	return done;
}

/*
 * Under the lock: for a task of the cache, which drops it itself. Returns false if it must be
 * queued. Then a drop of the same pages comes first, a call sets the size, or memory is short.
 * *anew: another task has begun the drop anew.
 */
static bool part_run_here(struct kcache *k, uint64_t ino, uint64_t first, uint64_t end,
	const struct cache_kcached *of, bool *anew)
{
	struct part probe = {.ino = ino, .first = first, .end = end}, *p;

	if (kcache_sizing(k, ino) || part_behind(k->under_way, NULL, &probe) ||
		part_behind(k->queue, NULL, &probe))
		return false;
	p = rt_alloc(sizeof(*p));
	if (!p)
		return false;
	*p = (struct part){.ino = ino, .first = first, .end = end, .users = 2, .of = of};
	part_begin(k, p);
	part_run(k, p);
	*anew = p->anew;
	part_put(p);
	return true;
}

/* Which may not have told all processors since then. */
static struct part *part_untold(
	struct kcache *k, uint64_t ino, uint64_t first, uint64_t end, uint64_t moment)
{
	struct part *p = k->under_way;

	while (p && (p->told >= moment || p->ino != ino || p->first >= end ||
			    first >= p->end))
		p = p->next;
	return p;
}

/*
 * Under the lock, when the range has been dropped, except for drops that were left to themselves.
 * If one of those has unmapped a page, another drop takes it out at once, and finds nothing to tell
 * processors of. So this waits until each of them has told the processors. They end soon, unless
 * they wait for a READ.
 */
void kcache_range_told(struct kcache *k, uint64_t ino, uint64_t first, uint64_t end)
{
	uint64_t moment = ++k->moment;
	struct part *p;

	while ((p = part_untold(k, ino, first, end, moment))) {
		uint64_t now = ++k->moment;
		bool waits;

		p->users++;
		rt_mutex_unlock(&k->lock);
		waits = k->ops->drop_waits(k->owner, &p->by);
		if (!waits)
			rt_sleep_ns(WAIT_FIRST_NS);
		rt_mutex_lock(&k->lock);
		if (waits)
			p->told = MAX(p->told, now);
		part_put(p);
	}
}

/* `leaf`: the leaf that maps them is given up, not the pages. */
bool kcache_drop_range(struct kcache *k, uint64_t ino, uint64_t first, uint64_t end,
	bool leaf, const struct cache_kcached *of)
{
	bool anew = false;

	rt_mutex_lock(&k->lock);
	for (uint64_t at = first; at < end && !anew;) {
		bool covered;
		uint64_t to = kcache_read_covers(k, ino, at, end, &covered);

		if (covered || (of && part_run_here(k, ino, at, to, of, &anew)) ||
			part_drop(k, ino, at, to, leaf))
			at = to;
	}
	if (!anew)
		kcache_range_told(k, ino, first, end);
	rt_mutex_unlock(&k->lock);
	return !anew;
}

/* ---- attributes ----------------------------------------------------------------------------- */

/*
 * An answer with a name, on its way to a thread, may bring the inode after a drop that found
 * nothing. Then the attributes are dropped again, when the thread has taken the answer in. The
 * thread needs no other task for that.
 */
void kcache_attributes_drop(struct kcache *k, uint64_t ino)
{
	uint64_t wait_ns = WAIT_FIRST_NS;
	bool taken_in, made, there;

	for (;;) {
		rt_mutex_lock(&k->lock);
		taken_in = known_taken_in(k, ino, &made);
		rt_mutex_unlock(&k->lock);
		there = k->ops->drop_attributes(k->owner, ino);
		if (taken_in || (there && !made) || atomic_load(&k->gone))
			return;
		rt_sleep_ns(wait_ns);
		wait_ns = MIN(wait_ns * 2, WAIT_LAST_NS);
	}
}

bool kcache_drop_inode(
	struct kcache *k, uint64_t ino, bool pages, const struct cache_kcached *of)
{
	bool attributes, has_pages;
	uint32_t stamp;

	rt_mutex_lock(&k->lock);
	has_pages = known_drop(k, ino, &attributes, &stamp);
	rt_mutex_unlock(&k->lock);
	if (attributes)
		kcache_attributes_drop(k, ino);
	if (!pages || !has_pages)
		return true;
	if (!kcache_drop_range(k, ino, 0, UINT64_MAX, true, of))
		return false;
	rt_mutex_lock(&k->lock);
	if (!kcache_read_pending(k, ino))
		known_forget_pages(k, ino, stamp);
	rt_mutex_unlock(&k->lock);
	return true;
}
