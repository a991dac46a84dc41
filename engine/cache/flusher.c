/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The flusher. It writes back pages that have been dirty for long. It gives back the exclusive
 * right to pages of other homes that have been clean for long. If all nodes need a page, it does so
 * much sooner (docs/nodes/driver.md, "Idle downgrade").
 */
#include "engine/cache/cache_internal.h"

#define DOWNGRADES 64            /* asked of their homes at once */
#define SOON_NS    1000000000ull /* between checks of pages to be downgraded soon */
#define SOON_LOOKS 8u            /* checks of each of them */

void flusher_wake(struct cache *c)
{
	atomic_fetch_add_explicit(&c->flusher.word, 1, memory_order_release);
	rt_wake(&c->flusher.word, 1);
}

/* ---- what has been as it is for long --------------------------------------------- */

/* Returns true if this node has a page of another home exclusively. */
static bool may_be_idle(struct cache *c, const struct frame *f, page_id pid)
{
	return pid != PID_NONE && mode_allows(f, PAGE_EXCLUSIVE) &&
	       !coherence_home_here(c->coherence, pid);
}

/* And that is as it is persisted. */
static bool is_idle(struct cache *c, struct frame *f, uint32_t flags)
{
	const uint32_t busy = FRAME_DIRTY | FRAME_LOADING | FRAME_UNPUBLISHED |
			      FRAME_WRITING | FRAME_HOLLOW | FRAME_LEAVING | FRAME_OWED |
			      FRAME_ASKING;

	return !(flags & busy) && !kernel_may_store(c, f);
}

void flusher_note(struct cache *c, const struct frame *f)
{
	if (!c->coherence->ops->downgrade ||
		coherence_home_here(c->coherence,
			atomic_load_explicit(&f->pid, memory_order_relaxed)))
		return;
	/* the frame says so by now: either the tick sees it, or this sees the tick */
	if (!atomic_exchange(&c->flusher.idle_pages, true))
		flusher_wake(c);
}

/* Writes the pages that were dirty at the last tick, and marks those that are dirty now. */
static void tick_dirty(struct cache *c)
{
	unsigned n = 0;

	for (uint32_t i = 0; i < c->frames.count; i++) {
		struct frame *f = &c->frames.frame[i];
		uint32_t flags = frame_flags(f);

		if (!(flags & FRAME_DIRTY) || (flags & FRAME_UNPUBLISHED))
			continue;
		if (flags & FRAME_AGED)
			c->flusher.refs[n++] =
				(struct page_ref){.pid = atomic_load_explicit(
							  &f->pid, memory_order_relaxed)};
		else
			frame_set(f, FRAME_AGED);
		if (n == c->writeback.pages) {
			writeback_pages(c, c->flusher.refs, n, false, NULL);
			n = 0;
		}
	}
	if (n)
		writeback_pages(c, c->flusher.refs, n, false, NULL);
}

/* Downgrades pages that were idle at the last tick too, and marks those that are idle now. */
static void tick_idle(struct cache *c)
{
	page_id pids[DOWNGRADES];
	unsigned n = 0;
	bool some = false;

	atomic_exchange(&c->flusher.idle_pages, false);
	for (uint32_t i = 0; i < c->frames.count; i++) {
		struct frame *f = &c->frames.frame[i];
		page_id pid = atomic_load_explicit(&f->pid, memory_order_relaxed);
		uint32_t flags = frame_flags(f);

		if (!may_be_idle(c, f, pid))
			continue;
		some = true;
		if (!is_idle(c, f, flags))
			continue;
		if (flags & FRAME_AGED) {
			frame_clear(f, FRAME_AGED);
			pids[n++] = pid;
		} else {
			frame_set(f, FRAME_AGED);
		}
		if (n == DOWNGRADES) {
			c->coherence->ops->downgrade(c->coherence, pids, n);
			n = 0;
		}
	}
	if (n)
		c->coherence->ops->downgrade(c->coherence, pids, n);
	if (some)
		atomic_store_explicit(&c->flusher.idle_pages, true, memory_order_relaxed);
}

/* ---- pages to be downgraded soon --------------------------------------------------------- */

/* Returns true if the list was empty: the flusher has to be woken. */
static bool soon_add(struct cache *c, const struct soon_page *s, unsigned max)
{
	bool there = false, first;

	rt_mutex_lock(&c->flusher.soon_lock);
	first = !c->flusher.soon_count;
	for (unsigned i = 0; i < c->flusher.soon_count; i++)
		there |= c->flusher.soon[i].pid == s->pid;
	if (!there && c->flusher.soon_count <
			      max) /* else it is downgraded like any other page */
		c->flusher.soon[c->flusher.soon_count++] = *s;
	rt_mutex_unlock(&c->flusher.soon_lock);
	return first;
}

static unsigned soon_take(struct cache *c, struct soon_page list[SOON_MAX])
{
	unsigned n;

	rt_mutex_lock(&c->flusher.soon_lock);
	n = c->flusher.soon_count;
	memcpy(list, c->flusher.soon, n * sizeof(*list));
	c->flusher.soon_count = 0;
	rt_mutex_unlock(&c->flusher.soon_lock);
	return n;
}

static bool soon_any(struct cache *c)
{
	bool any;

	rt_mutex_lock(&c->flusher.soon_lock);
	any = c->flusher.soon_count > 0;
	rt_mutex_unlock(&c->flusher.soon_lock);
	return any;
}

static void downgrade_soon(struct cache *c, page_id pid, unsigned max)
{
	struct soon_page s = {.pid = pid};
	const struct frame *f;

	if (!c->coherence->ops->downgrade || coherence_home_here(c->coherence, pid))
		return;
	f = table_find(c, pid);
	if (!f || !mode_allows(f, PAGE_EXCLUSIVE))
		return;
	if (soon_add(c, &s, max))
		flusher_wake(c);
}

void cache_downgrade_soon(struct cache *c, page_id pid)
{
	downgrade_soon(c, pid, SOON_MAX);
}

void cache_downgrade_soon_spare(struct cache *c, page_id pid)
{
	downgrade_soon(c, pid, SOON_MAX / 2);
}

enum soon { SOON_OVER, SOON_LATER, SOON_WRITE, SOON_DOWNGRADE };

/* Returns the next step for the page, and notes which image it has. */
static enum soon soon_check(struct cache *c, struct soon_page *s)
{
	struct frame *f = table_find(c, s->pid);
	enum soon what = SOON_LATER;
	uint32_t flags;

	if (!f || !may_be_idle(c, f, s->pid))
		return SOON_OVER;
	if (!latch_try_shared(f))
		return SOON_LATER;
	flags = frame_flags(f);
	if (atomic_load_explicit(&f->pid, memory_order_relaxed) != s->pid)
		what = SOON_OVER;
	else if (flags & FRAME_DIRTY)
		what = SOON_WRITE;
	else if (is_idle(c, f, flags) && s->incarnation == f->incarnation &&
		 s->version == f->version)
		what = SOON_DOWNGRADE;
	s->incarnation = f->incarnation;
	s->version = f->version;
	latch_release_shared(c, f);
	return what;
}

/*
 * Writes back dirty pages. Downgrades persisted pages that have not changed since the last check,
 * at once: there is no time in which they could change. All are checked again.
 */
static void tick_soon(struct cache *c)
{
	struct soon_page list[SOON_MAX];
	struct page_ref dirty[SOON_MAX];
	page_id idle[SOON_MAX];
	unsigned n = soon_take(c, list), writes = 0, idles = 0;

	for (unsigned i = 0; i < n; i++) {
		enum soon what = soon_check(c, &list[i]);

		if (what == SOON_WRITE)
			dirty[writes++] = (struct page_ref){.pid = list[i].pid};
		if (what == SOON_DOWNGRADE)
			idle[idles++] = list[i].pid;
		if (what != SOON_OVER && ++list[i].looks < SOON_LOOKS)
			(void)soon_add(c, &list[i], SOON_MAX); /* the flusher is here */
	}
	if (idles)
		c->coherence->ops->downgrade(c->coherence, idle, idles);
	if (writes)
		writeback_pages(c, dirty, writes, false, NULL);
}

/* ---- the task ---------------------------------------------------------------------- */

static bool has_work(struct cache *c)
{
	return atomic_load_explicit(&c->writeback.dirty, memory_order_relaxed) ||
	       atomic_load_explicit(&c->flusher.idle_pages, memory_order_relaxed);
}

/* The time of the next look, counted from the first page to look at. More pages do not put that
 * off, or bring it nearer. */
static void next_set(uint64_t *next_ns, bool any, uint64_t after_ns)
{
	if (*next_ns == RT_FOREVER && any)
		*next_ns = rt_now_ns() + after_ns;
}

static bool next_is_due(uint64_t *next_ns)
{
	if (*next_ns == RT_FOREVER || rt_now_ns() < *next_ns)
		return false;
	*next_ns = RT_FOREVER;
	return true;
}

void flusher_main(void *arg)
{
	struct cache *c = arg;
	uint64_t tick_ns = c->options.dirty_age_ms * 1000000ull / 2;
	uint64_t tick = RT_FOREVER, soon = RT_FOREVER;
	uint32_t word;

	while (rt_goes_on(&c->stopping, &c->flusher.word, &word)) {
		next_set(&tick, has_work(c), tick_ns);
		next_set(&soon, soon_any(c), MIN(tick_ns, SOON_NS));
		if (next_is_due(&soon)) {
			tick_soon(c);
		} else if (next_is_due(&tick)) {
			tick_dirty(c);
			if (atomic_load_explicit(
				    &c->flusher.idle_pages, memory_order_relaxed))
				tick_idle(c);
		} else {
			rt_wait(&c->flusher.word, word, MIN(tick, soon));
		}
	}
}
