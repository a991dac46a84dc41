/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Guards: the only way to a page (ScaleStore §5).
 *
 * The hot path is a lookup in the translation table (or a hint), one latch operation and three
 * comparisons. These are the frame's PID, its mode and its incarnation. A miss, a page of another
 * incarnation, or too weak a mode leaves the hot path.
 */
#include "engine/cache/cache_internal.h"

static inline void count_hit(struct cache *c)
{
	atomic_fetch_add_explicit(&c->stripe[rt_task_index() % COUNTER_STRIPES].hits, 1,
		memory_order_relaxed);
}

void frame_used_slow(struct cache *c, struct frame *f)
{
	page_id pid = atomic_load_explicit(&f->pid, memory_order_relaxed);
	uint32_t was = atomic_fetch_and_explicit(
		&f->flags, (uint16_t)~FRAME_ARRIVED, memory_order_relaxed);

	if (was & FRAME_ARRIVED)
		c->coherence->ops->used(c->coherence, pid);
}

#define WRITING_NS 20000ull /* a write-back under way is looked at so often */

/* Unlatches a frame that is not to be used. `changed`: reads of it do not stand. */
static void frame_leave(struct cache *c, struct frame *f, bool changed)
{
	if (frame_flags(f) & FRAME_HOLLOW)
		frame_drop(c, f);
	else
		latch_release_exclusive(c, f, changed);
}

void frame_request(struct cache *c, struct frame *f, const struct page_ref *ref,
	enum page_mode wanted, bool blind, struct coherence_request *out)
{
	*out = (struct coherence_request){
		.pid = ref->pid,
		.incarnation = ref->incarnation,
		.wanted = wanted,
		.held = frame_right(f),
		.held_hollow = frame_flags(f) & FRAME_HOLLOW && !blind,
		.held_dirty = frame_flags(f) & FRAME_DIRTY,
		.held_incarnation = f->incarnation,
		.held_version = f->version,
		.held_flush_to = atomic_load_explicit(
			&c->revoke.ship_lsn[f - c->frames.frame], memory_order_relaxed),
		.alone = wanted == PAGE_SHARED && !c->options.read_only,
		.hollow = blind,
		.frame = cache_frame_index(c, f),
		.image = frame_image(c, f),
	};
	frame_set(f, FRAME_ASKING);
}

int frame_answered(struct cache *c, struct frame *f, const struct page_ref *ref,
	const struct coherence_request *r)
{
	if (!r->lost) /* else it stands in the table with its old mode until it is freed */
		frame_clear(f, FRAME_ASKING);
	if (!r->result)
		return fetch_granted(c, f, ref, r);
	if (r->lost) {
		/* Dirty only if its home has persisted it while this task waited. The home could
		 * not say so to a latched frame (give_persisted). The owed image is a copy. */
		frame_mark_clean(c, f);
		atomic_store_explicit(&f->rec_lsn, LSN_NONE, memory_order_relaxed);
		frame_free(c, f);
	} else {
		/* reads of it stand: a transaction that they restart would not meet the error */
		frame_leave(c, f,
			f->incarnation != r->held_incarnation || f->version != r->held_version);
	}
	return r->result;
}

/* Asks for the stronger mode that the frame lacks, or for the image of a hollow one. */
static int frame_strengthen(struct cache *c, struct frame *f, const struct page_ref *ref,
	enum page_mode wanted, bool blind, unsigned flags)
{
	struct coherence_request r;
	int rc;

	if (frame_flags(f) & FRAME_HOLLOW && blind && f->held >= wanted) {
		/* it has all that is wanted */
		frame_set_mode(f, (enum page_mode)f->held);
		return 0;
	}
	if (frame_flags(f) & FRAME_WRITING) { /* its writer latches it again */
		frame_leave(c, f, true);
		rt_sleep_ns(WRITING_NS);
		return -EAGAIN;
	}
	frame_request(c, f, ref, wanted, blind, &r);
	page_needed(ref);
	c->coherence->ops->acquire(c->coherence, &r, 1);
	rc = frame_answered(c, f, ref, &r);
	if (rc == -EHOSTUNREACH && !(flags & FETCH_REACHED))
		return unreached_wait(c, r.away) ? -EINTR : -EAGAIN;
	page_came();
	if (!rc && r.granted < wanted) { /* it came back to this node by a rebuild */
		frame_leave(c, f, true);
		return -EAGAIN;
	}
	return rc;
}

/*
 * Adapts a frame that has the PID, but too weak a mode, no content, or an older incarnation, or
 * that is about to leave. It is latched exclusively, and stays so if the result is 0. Otherwise it
 * is unlatched: -EAGAIN, look for the page again; or an error. The image of an older incarnation is
 * void. The page was freed and allocated again, and its new image is zeros until it is written
 * (invariant 8).
 */
static int frame_adapt(struct cache *c, struct frame *f, uint64_t incarnation,
	enum page_mode wanted, bool blind, unsigned flags)
{
	struct page_ref ref = {
		.pid = atomic_load_explicit(&f->pid, memory_order_relaxed),
		.incarnation = incarnation,
	};
	bool newer = incarnation && f->incarnation < incarnation;
	int rc;

	if (frame_flags(f) & FRAME_LEAVING) {
		leaving_wait(c, f);
		return rt_task_unwanted() ? -EINTR : -EAGAIN;
	}
	if (incarnation && f->incarnation > incarnation) {
		frame_leave(c, f, true);
		return -ESTALE;
	}
	if (newer) /* the home must know: the images of other nodes are void */
		wanted = PAGE_EXCLUSIVE;
	if (newer || !mode_allows(f, wanted)) {
		rc = frame_strengthen(c, f, &ref, wanted, blind, flags);
		if (rc)
			return rc;
		if (incarnation && f->incarnation > incarnation) {
			frame_leave(c, f, true);
			return -ESTALE;
		}
	}
	if (incarnation && f->incarnation < incarnation)
		frame_reinit(c, f, incarnation);
	return 0;
}

static inline void guard_fill_in(
	struct cache *c, struct guard *g, struct frame *f, enum guard_kind kind)
{
	g->frame = f;
	g->image = frame_image(c, f);
	g->kind = kind;
}

static inline void guard_set(
	struct cache *c, struct guard *g, struct frame *f, enum guard_kind kind)
{
	guard_fill_in(c, g, f, kind);
	frame_touch(c, f);
}

/* `scan`: the use by a sequential reader, which leaves a page of its scan as cold as it was. */
static inline void guard_set_shared(
	struct cache *c, struct guard *g, struct frame *f, bool scan)
{
	guard_fill_in(c, g, f, GUARD_SHARED);
	if (!scan || !frame_scanned(f))
		frame_touch(c, f);
}

/* The frame of the page, fetched if need be; it may be gone again when used. */
static int find_or_fetch(struct cache *c, page_id pid, uint64_t incarnation,
	unsigned flags, struct frame **out)
{
	struct page_ref ref = {.pid = pid, .incarnation = incarnation};

	while (!(*out = table_find(c, pid))) {
		int rc = fetch_pages(c, &ref, 1, flags, NULL);

		if (rc)
			return rc;
	}
	return 0;
}

int guard_exclusive(struct cache *c, page_id pid, uint64_t incarnation, struct guard *g)
{
	struct frame *f;
	int rc;

	g->kind = GUARD_NONE;
	for (;;) {
		rc = find_or_fetch(c, pid, incarnation, FETCH_EXCLUSIVE, &f);
		if (rc)
			return rc;
		if (!latch_exclusive_wanted(c, f, pid)) {
			if (rt_task_unwanted())
				return -EINTR;
			continue;
		}
		if (likely(mode_allows(f, PAGE_EXCLUSIVE) &&
			    (!incarnation || f->incarnation == incarnation)))
			break;
		rc = frame_adapt(c, f, incarnation, PAGE_EXCLUSIVE, false, 0);
		if (!rc)
			break;
		if (rc != -EAGAIN)
			return rc;
	}
	g->latch = atomic_load_explicit(&f->latch, memory_order_relaxed);
	guard_set(c, g, f, GUARD_EXCLUSIVE);
	count_hit(c);
	return 0;
}

int frame_own(struct cache *c, page_id pid, uint64_t incarnation, unsigned flags)
{
	uint64_t was_of, was;
	struct frame *f;
	bool blank;
	int rc;

	do {
		rc = find_or_fetch(c, pid, incarnation, flags | FETCH_EXCLUSIVE, &f);
		if (rc)
			return rc;
		if (!latch_exclusive_wanted(c, f, pid)) {
			rc = rt_task_unwanted() ? -EINTR : -EAGAIN;
			continue;
		}
		was_of = f->incarnation;
		was = f->version;
		blank = frame_flags(f) & FRAME_HOLLOW;
		if (!mode_allows(f, PAGE_EXCLUSIVE) ||
			(incarnation && f->incarnation != incarnation))
			rc = frame_adapt(c, f, incarnation, PAGE_EXCLUSIVE, false, flags);
	} while (rc == -EAGAIN);
	if (!rc)
		latch_release_exclusive(
			c, f, blank || f->incarnation != was_of || f->version != was);
	return rc;
}

int guard_own(struct cache *c, page_id pid, uint64_t incarnation)
{
	return frame_own(c, pid, incarnation, 0);
}

static int shared_wait(
	struct cache *c, page_id pid, uint64_t incarnation, bool scan, struct guard *g)
{
	struct frame *f;
	int rc;

	g->kind = GUARD_NONE;
	for (;;) {
		rc = find_or_fetch(c, pid, incarnation, scan ? FETCH_SCAN : 0, &f);
		if (rc)
			return rc;
		if (!latch_shared_wanted(c, f, pid)) {
			if (rt_task_unwanted())
				return -EINTR;
			continue;
		}
		if (likely(mode_allows(f, PAGE_SHARED) &&
			    (!incarnation || f->incarnation == incarnation)))
			break;
		latch_release_shared(c, f);
		if (!latch_exclusive_wanted(c, f, pid))
			continue;
		rc = frame_adapt(c, f, incarnation, PAGE_SHARED, false, 0);
		if (!rc)
			latch_release_exclusive(c, f, true);
		else if (rc != -EAGAIN)
			return rc;
	}
	g->latch = atomic_load_explicit(&f->latch, memory_order_relaxed);
	guard_set_shared(c, g, f, scan);
	count_hit(c);
	return 0;
}

int guard_shared(struct cache *c, page_id pid, uint64_t incarnation, struct guard *g)
{
	return shared_wait(c, pid, incarnation, false, g);
}

static inline int shared_try(
	struct cache *c, page_id pid, uint64_t incarnation, bool scan, struct guard *g)
{
	struct frame *f = table_find(c, pid);

	g->kind = GUARD_NONE;
	if (!f || !latch_try_shared(f))
		return -EAGAIN;
	if (atomic_load_explicit(&f->pid, memory_order_relaxed) != pid ||
		!mode_allows(f, PAGE_SHARED) ||
		(incarnation && f->incarnation != incarnation)) {
		latch_release_shared(c, f);
		return -EAGAIN;
	}
	g->latch = atomic_load_explicit(&f->latch, memory_order_relaxed);
	guard_set_shared(c, g, f, scan);
	count_hit(c);
	return 0;
}

int guard_try_shared(struct cache *c, page_id pid, uint64_t incarnation, struct guard *g)
{
	return shared_try(c, pid, incarnation, false, g);
}

int guard_try_exclusive(
	struct cache *c, page_id pid, uint64_t incarnation, struct guard *g)
{
	struct frame *f = table_find(c, pid);

	g->kind = GUARD_NONE;
	if (!f || !latch_try_exclusive(f, &g->latch))
		return -EAGAIN;
	if (atomic_load_explicit(&f->pid, memory_order_relaxed) != pid ||
		!mode_allows(f, PAGE_EXCLUSIVE) ||
		(incarnation && f->incarnation != incarnation)) {
		latch_release_exclusive(c, f, false);
		return -EAGAIN;
	}
	guard_set(c, g, f, GUARD_EXCLUSIVE);
	return 0;
}

/* ---- optimistic -------------------------------------------------------------------- */

static inline bool optimistic_on(
	struct cache *c, struct frame *f, page_id pid, struct guard *g)
{
	uint64_t w = atomic_load_explicit(&f->latch, memory_order_acquire);

	if ((w & LATCH_EXCLUSIVE) ||
		atomic_load_explicit(&f->pid, memory_order_relaxed) != pid ||
		!mode_allows(f, PAGE_SHARED))
		return false;
	g->latch = w;
	guard_set(c, g, f, GUARD_OPTIMISTIC);
	return guard_valid(g); /* so that the PID belongs to this latch word */
}

/* The hot path, in one piece: a hint or a look-up, one load of the latch, three
 * comparisons. */
static inline bool optimistic_hit(
	struct cache *c, page_id pid, struct frame *hint, struct guard *g)
{
	struct frame *f = hint;

	if (!f || atomic_load_explicit(&f->pid, memory_order_relaxed) != pid)
		f = table_find(c, pid);
	return likely(f) && likely(optimistic_on(c, f, pid, g));
}

int guard_try_optimistic(
	struct cache *c, page_id pid, struct frame *hint, struct guard *g)
{
	if (optimistic_hit(c, pid, hint, g))
		return 0;
	g->kind = GUARD_NONE;
	return -EAGAIN;
}

bool cache_is_here(struct cache *c, page_id pid)
{
	struct frame *f = table_find(c, pid);

	return f && mode_allows(f, PAGE_SHARED);
}

/* Fetches the page, or waits until its frame can be used. *out: the frame, NULL if there was none.
 * Returns 0 if the caller may look again. */
static int fetch_or_wait(struct cache *c, page_id pid, struct frame **out)
{
	struct page_ref ref = {.pid = pid};
	struct frame *f = *out = table_find(c, pid);
	int rc = 0;

	if (!f)
		return fetch_pages(c, &ref, 1, 0, NULL);
	latch_wait_open(c, f);
	if (rt_task_unwanted())
		return -EINTR;
	if (!mode_allows(f, PAGE_SHARED) && latch_exclusive_wanted(c, f, pid)) {
		rc = frame_adapt(c, f, 0, PAGE_SHARED, false, 0);
		if (!rc)
			latch_release_exclusive(c, f, true);
	}
	return rc == -EAGAIN ? 0 : rc;
}

int cache_fetch_once(struct cache *c, page_id pid)
{
	struct frame *f;

	return fetch_or_wait(c, pid, &f);
}

static __attribute__((noinline)) int optimistic_wait(
	struct cache *c, page_id pid, struct guard *g)
{
	struct frame *f = NULL;

	do {
		int rc = fetch_or_wait(c, pid, &f);

		g->kind = GUARD_NONE;
		if (rc)
			return rc;
	} while (!optimistic_hit(c, pid, f, g));
	return 0;
}

int guard_optimistic(struct cache *c, page_id pid, struct frame *hint, struct guard *g)
{
	return optimistic_hit(c, pid, hint, g) ? 0 : optimistic_wait(c, pid, g);
}

int guard_try_upgrade(struct cache *c, struct guard *g)
{
	struct frame *f = g->frame;
	uint64_t seen;

	WEFT_ASSERT(g->kind == GUARD_OPTIMISTIC);
	g->kind = GUARD_NONE;
	if (!latch_try_exclusive(f, &seen))
		return -EAGAIN;
	/* the version covers the PID: frames change theirs only under the latch */
	if (((seen ^ g->latch) & LATCH_VERSION_MASK) || !mode_allows(f, PAGE_EXCLUSIVE)) {
		latch_release_exclusive(c, f, false);
		return -EAGAIN;
	}
	g->kind = GUARD_EXCLUSIVE;
	return 0;
}

/* ---- without the image ----------------------------------------------------------- */

enum blind_kind {
	BLIND_FRESH, /* just allocated, to be zeros */
	BLIND_FILL,  /* just allocated, to be filled by the caller */
	BLIND_OVERWRITE,
};

static int guard_blind(struct cache *c, page_id pid, uint64_t incarnation,
	enum blind_kind kind, struct guard *g)
{
	struct page_ref ref = {.pid = pid, .incarnation = incarnation};
	struct frame *f;
	int rc;

	WEFT_ASSERT(incarnation);
	g->kind = GUARD_NONE;
	for (;;) {
		f = table_find(c, pid);
		if (f && !latch_exclusive_wanted(c, f, pid)) {
			if (rt_task_unwanted())
				return -EINTR;
			continue;
		}
		if (!f) {
			rc = fetch_pages(c, &ref, 1,
				kind == BLIND_OVERWRITE ? FETCH_NO_IMAGE : FETCH_FRESH,
				&f);
			if (rc)
				return rc;
			if (!f)
				continue;
		}
		rc = frame_adapt(c, f, incarnation, PAGE_EXCLUSIVE, true, 0);
		if (!rc)
			break;
		if (rc != -EAGAIN)
			return rc;
	}
	if (kind == BLIND_FRESH) {
		frame_reinit(c, f, incarnation);
	} else if (kind == BLIND_FILL) {
		frame_renew(c, f, incarnation);
		frame_set(f, FRAME_HOLLOW);
	}
	g->latch = atomic_load_explicit(&f->latch, memory_order_relaxed);
	guard_set(c, g, f, GUARD_EXCLUSIVE);
	return 0;
}

int guard_fresh(struct cache *c, page_id pid, uint64_t incarnation, struct guard *g)
{
	return guard_blind(c, pid, incarnation, BLIND_FRESH, g);
}

int guard_fill(struct cache *c, page_id pid, uint64_t incarnation, struct guard *g)
{
	return guard_blind(c, pid, incarnation, BLIND_FILL, g);
}

int guard_overwrite(struct cache *c, page_id pid, uint64_t incarnation, struct guard *g)
{
	return guard_blind(c, pid, incarnation, BLIND_OVERWRITE, g);
}

/* ---- release --------------------------------------------------------------------- */

void guard_mark_checked(const struct guard *g)
{
	frame_set(g->frame, FRAME_CHECKED);
}

void guard_mark_data(const struct guard *g)
{
	frame_set(g->frame, FRAME_DATA);
}

void guard_release(struct cache *c, struct guard *g)
{
	if (g->kind == GUARD_SHARED) {
		frame_used(c, g->frame);
		latch_release_shared(c, g->frame);
	} else if (g->kind == GUARD_EXCLUSIVE) {
		frame_used(c, g->frame);
		if (unlikely(frame_flags(g->frame) & FRAME_HOLLOW))
			frame_drop(c, g->frame);
		else
			latch_release_exclusive(c, g->frame, true);
	}
	g->kind = GUARD_NONE;
}

void guard_store(const struct guard *g, unsigned from, const void *bytes, size_t len)
{
	WEFT_ASSERT(g->kind == GUARD_EXCLUSIVE && from + len <= PAGE_SIZE);
	page_store(g->image + from, bytes, len);
}

void guard_release_dirty(struct cache *c, struct guard *g, bool unpublished)
{
	struct frame *f = g->frame;

	WEFT_ASSERT(g->kind == GUARD_EXCLUSIVE && !c->options.read_only);
	f->version++;
	if (!(frame_flags(f) &
		    FRAME_DIRTY)) /* the log need not keep the records of a clean page any more */
		atomic_store_explicit(&f->rec_lsn, LSN_NONE, memory_order_relaxed);
	frame_clear(f, FRAME_LOGGED | FRAME_AGED | FRAME_HOLLOW);
	frame_mark_dirty(c, f, FRAME_DATA | (unpublished ? FRAME_UNPUBLISHED : 0));
	cache_watched(c, f, CACHE_CHANGED, LSN_NONE);
	frame_used(c, f);
	latch_release_exclusive(c, f, true);
	g->kind = GUARD_NONE;
}

/* ---- many at once ---------------------------------------------------------------- */

#define BATCH_GIVE_UP 512 /* an eighth of a second, by the pauses below */
#define SCAN_LOSSES   16  /* of fewer a page that is on its way may be the cause */
#define BATCH_LOSSES  4   /* then page by page, with growing pauses */

static void release_all(struct cache *c, struct guard *guards, unsigned count)
{
	for (unsigned i = 0; i < count; i++)
		guard_release(c, &guards[i]);
}

/* An error of the page itself, or 0 when another try may succeed. */
static int why_not(struct cache *c, const struct page_ref *ref, bool scan)
{
	struct guard g;
	int rc = shared_wait(c, ref->pid, ref->incarnation, scan, &g);

	guard_release(c, &g);
	return rc;
}

int guard_shared_batch(struct cache *c, const struct page_ref *refs, unsigned count,
	bool scan, struct guard *guards)
{
	unsigned flags = scan ? FETCH_READ | FETCH_SCAN : FETCH_READ, i;
	int rc;

	WEFT_ASSERT(count <= c->frames.batch_max);
	for (unsigned losses = 0;; losses++) {
		/* The pages may be evicted for each other, since all of them are cold. From here on
		 * they are pages like all others. */
		if (losses == SCAN_LOSSES) {
			scan = false;
			flags = FETCH_READ;
		}
		for (i = 0; i < count; i++)
			if (shared_try(c, refs[i].pid, refs[i].incarnation, scan,
				    &guards[i]))
				break;
		if (i == count)
			return 0;
		release_all(c, guards, i);
		rc = losses < BATCH_LOSSES ? fetch_pages(c, refs, count, flags, NULL) : 0;
		if (!rc)
			rc = why_not(c, &refs[i], scan);
		if (rc)
			return rc;
		/* Nothing dirty can leave any more. The frames that are left may not hold them all
		 * at once. */
		if (losses > BATCH_GIVE_UP && log_failed(c->log))
			return -EIO;
		if (losses > BATCH_LOSSES) /* other nodes keep taking the fetched pages: let them
					    * finish */
			rt_sleep_ns(1000 * (uint64_t)MIN(losses, 1000u));
		else
			rt_yield();
	}
}
