/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Misses. Frames are put into the table latched and LOADING. All requests of a batch go out
 * together. The frames are unlatched when they are filled. Other tasks that need the same page wait
 * on its latch, so a page is read once for all of them.
 *
 * A batch waits for a free frame only while it has none. It takes later ones as they come. So tasks
 * that all fetch cannot starve each other with half-filled batches.
 *
 * A frame may have the page, but not the right to change it. It takes part in a batch if its latch
 * is free: no latch is waited for while others are held.
 */
#include "engine/cache/cache_internal.h"

#define FETCH_SMALL 4 /* so many pages need no allocation */

/* A fetch's working memory: arrays with room for all its pages. Those whose request says that
 * something is held were here before. */
struct fetch {
	unsigned count;
	struct frame **frame;
	struct page_ref *ref;
	struct coherence_request *request;
	struct store_read *read;
};

/* Free frames for the next pages of a claim, from one look at their list. */
struct supply {
	unsigned at, count;
	uint32_t index[FETCH_MAX];
};

/* A free one, latched, for the next of `left` pages; NULL as frame_get. */
static struct frame *supply_frame(
	struct cache *c, struct supply *s, unsigned left, bool wait, int *error)
{
	struct frame *f;

	if (s->at == s->count) {
		s->at = 0;
		s->count = frames_take(c, s->index, MIN(left, FETCH_MAX));
	}
	if (s->at == s->count)
		return frame_get(c, wait, error);
	f = &c->frames.frame[s->index[s->at++]];
	latch_free_frame(f);
	return f;
}

/* The frame has the page to be read alone: latched, and asked for with the others, if it can be at
 * once. `fresh`: the page was just allocated, and the frame may have an image of earlier use. */
static void claim_held(struct cache *c, struct fetch *x, struct frame *f,
	const struct page_ref *ref, bool fresh)
{
	const unsigned not_now = FRAME_LOADING | FRAME_WRITING | FRAME_HOLLOW |
				 FRAME_LEAVING | FRAME_OWED | FRAME_ASKING;
	uint64_t seen;

	if (mode_allows(f, PAGE_EXCLUSIVE) || !latch_try_exclusive(f, &seen))
		return;
	if (atomic_load_explicit(&f->pid, memory_order_relaxed) != ref->pid ||
		frame_flags(f) & not_now || frame_right(f) != PAGE_SHARED ||
		(ref->incarnation && f->incarnation != ref->incarnation &&
			!(fresh && f->incarnation < ref->incarnation))) {
		latch_release_exclusive(c, f, false);
		return;
	}
	x->frame[x->count] = f;
	x->ref[x->count] = *ref;
	frame_request(c, f, ref, PAGE_EXCLUSIVE, fresh, &x->request[x->count]);
	x->count++;
}

/* Puts empty frames into the table for as many of the missing pages as there are frames.
 */
static unsigned claim_frames(struct cache *c, struct fetch *x, const struct page_ref *refs,
	unsigned count, unsigned flags, int *error)
{
	struct supply supply;
	unsigned i;

	supply.at = supply.count = 0;
	x->count = 0;
	for (i = 0; i < count; i++) {
		struct frame *f;

		if (i + TABLE_AHEAD < count)
			table_expect(c, refs[i + TABLE_AHEAD].pid);
		f = table_find(c, refs[i].pid);
		if (f) {
			if (flags & FETCH_HELD && !c->options.read_only)
				claim_held(c, x, f, &refs[i], flags & FETCH_FRESH);
			continue;
		}
		f = supply_frame(c, &supply, count - i, x->count == 0, error);
		if (!f)
			break;
		frame_claim(c, f, refs[i].incarnation);
		if (table_insert(c, refs[i].pid, f)) {
			atomic_store_explicit(&f->flags, 0, memory_order_relaxed);
			frame_put(c, f); /* another task was faster */
			continue;
		}
		x->frame[x->count] = f;
		x->ref[x->count] = refs[i];
		x->request[x->count].held = PAGE_INVALID;
		x->count++;
	}
	frames_put_back(c, &supply.index[supply.at], supply.count - supply.at);
	return i;
}

/* Grants, then images: results in read[].result, modes in the frames. */
static void fetch_grants(struct cache *c, struct fetch *x, unsigned flags)
{
	bool exclusive = !c->options.read_only &&
			 (flags & (FETCH_EXCLUSIVE | FETCH_NO_IMAGE | FETCH_FRESH));

	for (unsigned i = 0; i < x->count; i++) {
		if (x->request[i].held != PAGE_INVALID)
			continue;
		x->request[i] = (struct coherence_request){
			.pid = x->ref[i].pid,
			.incarnation = x->ref[i].incarnation,
			.wanted = exclusive ? PAGE_EXCLUSIVE : PAGE_SHARED,
			.held = PAGE_INVALID,
			.alone =
				!exclusive && !c->options.read_only &&
				(!(flags & FETCH_READ) ||
					coherence_home_here(c->coherence, x->ref[i].pid)),
			.ahead = flags & FETCH_AHEAD,
			.hollow = flags & (FETCH_NO_IMAGE | FETCH_FRESH),
			.frame = cache_frame_index(c, x->frame[i]),
			.image = frame_image(c, x->frame[i]),
		};
	}
	c->coherence->ops->acquire(c->coherence, x->request, x->count);
}

/* Prepares the read of a granted page, or its result if the store is not needed. Returns true if
 * the page must be read from the store. */
static bool read_prepare(struct cache *c, struct fetch *x, unsigned i, unsigned flags)
{
	struct coherence_request *q = &x->request[i];
	struct store_read *r = &x->read[i];
	/* a requester that may only read it cannot allocate it anew; other nodes have its present
	 * image */
	bool enough = q->granted >= q->wanted;

	*r = (struct store_read){.pid = PID_NONE, .result = q->result};
	if (q->result || q->held != PAGE_INVALID)
		return false;
	if (!enough)
		q->hollow = false;
	if ((flags & FETCH_FRESH && enough) || q->source == PAGE_FROM_ZEROS) {
		r->result = STORE_ZEROS;
		if (q->source == PAGE_FROM_ZEROS)
			r->found_incarnation = q->found_incarnation;
		if (!q->hollow)
			racy_clear(q->image, PAGE_SIZE);
		return false;
	}
	if (q->source == PAGE_FROM_PEER) {
		r->version = q->version;
		r->found_incarnation = q->found_incarnation;
		return false;
	}
	*r = (struct store_read){
		.pid = x->ref[i].pid,
		.incarnation = x->ref[i].incarnation,
		.image = q->hollow ? NULL : frame_image(c, x->frame[i]),
	};
	return true;
}

/* Fetches the images of granted pages. The results are in read[].result. */
static void fetch_images(struct cache *c, struct fetch *x, unsigned flags)
{
	unsigned reads = 0;

	for (unsigned i = 0; i < x->count; i++)
		reads += read_prepare(c, x, i, flags);
	for (unsigned i = 0, n; reads; i += n + 1, reads -= n) {
		for (n = 0; i + n < x->count && x->read[i + n].pid != PID_NONE; n++)
			;
		if (n)
			store_read_pages(c->store, &x->read[i], n);
	}
}

/* Others may ask for it from now on. */
static void frame_arrived(struct cache *c, struct frame *f)
{
	frame_set(f, FRAME_ARRIVED);
	if (f->held == PAGE_EXCLUSIVE)
		min_hold_begin(c, f);
}

/* The frame becomes usable, or leaves the table again. Keeps the latch if `keep`. */
static int settle_frame(struct cache *c, struct frame *f, const struct fetch *x, unsigned i,
	unsigned flags, bool keep)
{
	const struct coherence_request *q = &x->request[i];
	const struct store_read *r = &x->read[i];
	uint32_t now = epoch_now(c);

	if (q->result) { /* -EAGAIN: it was here, and is another's already */
		frame_free(c, f);
		return q->result == -EAGAIN || q->result == -EHOSTUNREACH ? 0 : q->result;
	}
	f->held = (uint8_t)q->granted;
	if (r->result < 0) { /* granted, but there is no image to be had */
		atomic_store_explicit(&f->flags, FRAME_HOLLOW, memory_order_relaxed);
		frame_drop(c, f);
		return r->result;
	}
	f->incarnation = r->result == STORE_ZEROS
				 ? MAX(x->ref[i].incarnation, r->found_incarnation)
				 : r->found_incarnation;
	f->version = r->version;
	frame_set_mode(f, q->granted);
	if (q->granted == PAGE_EXCLUSIVE)
		flusher_note(c, f);
	if (flags & FETCH_SCAN)
		now = (now - SCAN_AGE) | EPOCH_SCAN;
	atomic_store_explicit(&f->epoch, now, memory_order_relaxed);
	atomic_store_explicit(&f->flags,
		(uint16_t)(FRAME_NEED_FULL |
			   (r->result == STORE_ZEROS ? 0 : FRAME_PERSISTED) |
			   (flags & FETCH_READ ? FRAME_READ : 0) |
			   (flags & FETCH_NO_IMAGE && q->hollow ? FRAME_HOLLOW : 0)),
		memory_order_relaxed);
	if (q->arrived)
		frame_arrived(c, f);
	if (q->source == PAGE_FROM_PEER && q->dirty)
		frame_mark_dirty(c, f, 0);
	if (!keep)
		latch_release_exclusive(c, f, true);
	return 0;
}

/* A frame that was here before is unlatched, and gets the right that was granted. Returns -EAGAIN
 * if the caller must look again. */
static int settle_held(
	struct cache *c, struct frame *f, const struct fetch *x, unsigned i)
{
	const struct coherence_request *q = &x->request[i];
	int rc = frame_answered(c, f, &x->ref[i], q);

	if (rc == 0)
		latch_release_exclusive(c, f,
			f->incarnation != q->held_incarnation ||
				f->version != q->held_version);
	return rc == -EAGAIN || rc == -EHOSTUNREACH ? 0 : rc;
}

int unreached_wait(struct cache *c, uint64_t nodes)
{
	uint32_t before =
		atomic_fetch_add_explicit(&c->fetch.unreached, 1, memory_order_relaxed);
	uint64_t now = rt_now_ns();
	uint64_t until = now + UNREACHED_NS * (1 + before / UNREACHED_AT_ONCE);
	int rc = rt_task_unwanted() ? -EINTR : 0;

	rt_task_awaits(nodes);
	while (!rc && now < until) {
		rt_sleep_ns(MIN(until, rt_task_asks_ns()) - now);
		rc = rt_task_unwanted() ? -EINTR : 0;
		now = rt_now_ns();
	}
	atomic_fetch_sub_explicit(&c->fetch.unreached, 1, memory_order_relaxed);
	return rc;
}

static int fetch_run(struct cache *c, struct fetch *x, const struct page_ref *refs,
	unsigned count, unsigned flags, struct frame **keep)
{
	int error = 0;

	while (count && !error) {
		unsigned done = claim_frames(c, x, refs, count, flags, &error), missing = 0;
		bool unreached = false;
		uint64_t away = 0;

		if (x->count) {
			page_needed(&x->ref[0]);
			fetch_grants(c, x, flags);
			fetch_images(c, x, flags);
			COUNT(c, fetch_requests, 1);
		}
		for (unsigned i = 0; i < x->count; i++) {
			const struct coherence_request *q = &x->request[i];
			bool held = q->held != PAGE_INVALID;
			/* less may be granted than was wanted: then it is looked at again */
			bool kept = keep && !q->result && q->granted >= q->wanted;
			int rc = held ? settle_held(c, x->frame[i], x, i)
				     : settle_frame(c, x->frame[i], x, i, flags, kept);

			missing += !held;

			if (rc && !error)
				error = rc;
			if (!rc && kept)
				*keep = x->frame[i];
			if (x->request[i].result == -EHOSTUNREACH) {
				page_needed(&x->ref[i]);
				unreached = true;
				away |= x->request[i].away;
			}
		}
		if (missing)
			COUNT(c, misses, missing);
		if (flags & FETCH_SCAN) /* once a fetch: the line of `epoch` is read at each use */
			atomic_fetch_add_explicit(
				&c->provider.scan_loads, missing, memory_order_relaxed);
		if (unreached && !error && (flags & FETCH_REACHED)) {
			error = -EHOSTUNREACH;
			page_came();
		} else if (unreached && unreached_wait(c, away) && !error) {
			error = -EINTR;
		} else if (!unreached) {
			page_came();
		}
		refs += done;
		count -= done;
	}
	return error;
}

static int fetch_small(struct cache *c, const struct page_ref *refs, unsigned count,
	unsigned flags, struct frame **keep)
{
	struct frame *frame[FETCH_SMALL];
	struct page_ref ref[FETCH_SMALL];
	struct coherence_request request[FETCH_SMALL];
	struct store_read read[FETCH_SMALL];
	struct fetch x = {.frame = frame, .ref = ref, .request = request, .read = read};

	return fetch_run(c, &x, refs, count, flags, keep);
}

static int fetch_large(
	struct cache *c, const struct page_ref *refs, unsigned count, unsigned flags)
{
	size_t each = sizeof(struct frame *) + sizeof(struct page_ref) +
		      sizeof(struct coherence_request) + sizeof(struct store_read);
	char *memory = rt_alloc(count * each);
	struct fetch x;
	int rc;

	if (!memory)
		return -ENOMEM;
	x.count = 0;
	x.request = (struct coherence_request *)memory;
	x.read = (struct store_read *)(x.request + count);
	x.ref = (struct page_ref *)(x.read + count);
	x.frame = (struct frame **)(x.ref + count);
	rc = fetch_run(c, &x, refs, count, flags, NULL);
	rt_free(memory);
	return rc;
}

int fetch_pages(struct cache *c, const struct page_ref *refs, unsigned count,
	unsigned flags, struct frame **keep)
{
	WEFT_ASSERT(count <= FETCH_MAX && (!keep || count == 1));
	if (keep)
		*keep = NULL;
	if (count <= FETCH_SMALL)
		return fetch_small(c, refs, count, flags, keep);
	return fetch_large(c, refs, count, flags);
}

int fetch_granted(struct cache *c, struct frame *f, const struct page_ref *ref,
	const struct coherence_request *request)
{
	struct coherence_request q = *request;
	struct page_ref wanted = *ref;
	struct store_read read;
	struct fetch x = {
		.count = 1, .frame = &f, .ref = &wanted, .request = &q, .read = &read};

	if (q.source == PAGE_FROM_HELD) {
		frame_set_mode(f, q.granted);
		f->held = (uint8_t)q.granted;
		if (q.granted == PAGE_EXCLUSIVE)
			flusher_note(c, f);
		if (q.arrived)
			frame_arrived(c, f);
		if (q.dirty)
			frame_mark_dirty(c, f, 0);
		return 0;
	}
	/* the copy that was there is another node's now: given up, with its part of the log */
	frame_renew(c, f, wanted.incarnation);
	frame_set(f, FRAME_LOADING); /* as one that was blank, until settle_frame() */
	q.held = PAGE_INVALID;
	fetch_images(c, &x, 0);
	return settle_frame(c, f, &x, 0, q.hollow ? FETCH_NO_IMAGE : 0, true);
}

static int fetch_and_await(
	struct cache *c, const struct page_ref *refs, unsigned count, unsigned flags)
{
	int rc;

	WEFT_ASSERT(count <= c->frames.batch_max);
	rc = fetch_pages(c, refs, count, flags, NULL);
	for (unsigned i = 0; i < count && !rc; i++) {
		struct frame *f = table_find(c, refs[i].pid);

		/* another task's request: a caller that came back now would only spin */
		if (f &&
			(atomic_load_explicit(&f->flags, memory_order_relaxed) &
				FRAME_LOADING) &&
			latch_shared_wanted(c, f, refs[i].pid))
			latch_release_shared(c, f);
		else if (rt_task_unwanted())
			rc = -EINTR;
	}
	return rc;
}

int cache_fetch(struct cache *c, const struct page_ref *refs, unsigned count)
{
	return fetch_and_await(c, refs, count, 0);
}

int cache_fetch_near(struct cache *c, const struct page_ref *refs, unsigned count)
{
	return fetch_and_await(c, refs, count, FETCH_REACHED);
}

/* Returns false if the copy that is here is only shared, or of an earlier incarnation. It looks
 * without waiting, so the answer may be wrong. */
static bool is_owned(struct cache *c, const struct page_ref *ref)
{
	struct frame *f = table_find(c, ref->pid);
	bool owned;

	if (!f || !mode_allows(f, PAGE_EXCLUSIVE))
		return !f;
	if (!ref->incarnation || !latch_try_shared(f))
		return true;
	owned = f->incarnation >= ref->incarnation ||
		atomic_load_explicit(&f->pid, memory_order_relaxed) != ref->pid;
	latch_release_shared(c, f);
	return owned;
}

bool cache_asks_to_own(struct cache *c, const struct page_ref *ref)
{
	struct frame *f = table_find(c, ref->pid);

	if (f)
		return !mode_allows(f, PAGE_EXCLUSIVE);
	return c->coherence->ops->has_others &&
	       c->coherence->ops->has_others(c->coherence, ref->pid);
}

void cache_claim(
	struct cache *c, page_id pid, uint64_t incarnation, unsigned count, bool fresh)
{
	unsigned max = MIN(c->frames.batch_max, FETCH_MAX), wanted = 0;
	struct page_ref refs[FETCH_MAX];

	if (!c->coherence->ops->has_others)
		return;
	for (unsigned i = 0; i < count && wanted < max; i++) {
		refs[wanted] = (struct page_ref){pid + i, incarnation};
		wanted += cache_asks_to_own(c, &refs[wanted]);
	}
	if (wanted > 1)
		(void)fetch_pages(c, refs, wanted,
			FETCH_EXCLUSIVE | FETCH_HELD | FETCH_REACHED |
				(fresh ? FETCH_FRESH | FETCH_NO_IMAGE : 0),
			NULL);
}

static int fetch_exclusive(
	struct cache *c, const struct page_ref *refs, unsigned count, unsigned flags)
{
	int rc = fetch_and_await(
		c, refs, count, flags | FETCH_EXCLUSIVE | (count > 1 ? FETCH_HELD : 0));

	for (unsigned i = 0; i < count && !rc; i++)
		if (!is_owned(c, &refs[i]))
			rc = frame_own(c, refs[i].pid, refs[i].incarnation, flags);
	return rc;
}

int cache_fetch_exclusive(struct cache *c, const struct page_ref *refs, unsigned count)
{
	return fetch_exclusive(c, refs, count, 0);
}

int cache_fetch_reached(struct cache *c, const struct page_ref *refs, unsigned count)
{
	return fetch_exclusive(c, refs, count, FETCH_REACHED);
}

/* ---- read-ahead ------------------------------------------------------------------ */

int queue_open(struct page_queue *q, unsigned slots)
{
	q->slot = rt_alloc_pages(slots * sizeof(*q->slot));
	q->slots = slots;
	return q->slot ? 0 : -ENOMEM;
}

void queue_close(struct page_queue *q)
{
	if (q->slot)
		rt_free_pages(q->slot, q->slots * sizeof(*q->slot));
	q->slot = NULL;
}

bool queue_put(
	struct page_queue *q, const struct page_ref *refs, unsigned count, bool scan)
{
	struct prefetch_slot *s;

	WEFT_ASSERT(count <= FETCH_MAX);
	rt_mutex_lock(&q->lock);
	if (q->count == q->slots) {
		rt_mutex_unlock(&q->lock);
		return false;
	}
	s = &q->slot[(q->head + q->count) % q->slots];
	s->count = count;
	s->scan = scan;
	memcpy(s->ref, refs, count * sizeof(*refs));
	q->count++;
	rt_mutex_unlock(&q->lock);
	atomic_fetch_add_explicit(&q->word, 1, memory_order_release);
	rt_wake(&q->word, 1);
	return true;
}

bool queue_take(struct page_queue *q, struct prefetch_slot *out)
{
	bool some;

	rt_mutex_lock(&q->lock);
	some = q->count > 0;
	if (some) {
		const struct prefetch_slot *s = &q->slot[q->head];

		out->count = s->count;
		out->scan = s->scan;
		memcpy(out->ref, s->ref, s->count * sizeof(s->ref[0]));
		q->head = (q->head + 1) % q->slots;
		q->count--;
	}
	rt_mutex_unlock(&q->lock);
	return some;
}

void prefetch_main(void *arg)
{
	struct cache *c = arg;
	struct prefetch_slot *slot = rt_alloc(sizeof(*slot));
	uint32_t word;

	while (slot && rt_goes_on(&c->stopping, &c->fetch.queue.word, &word)) {
		if (!queue_take(&c->fetch.queue, slot)) {
			rt_wait(&c->fetch.queue.word, word, RT_FOREVER);
			continue;
		}
		/* the task that needs the page will meet an error again, and report it */
		fetch_pages(c, slot->ref, slot->count,
			FETCH_AHEAD | (slot->scan ? FETCH_SCAN | FETCH_READ : 0), NULL);
		COUNT(c, prefetches, slot->count);
	}
	rt_free(slot);
}

void cache_prefetch(
	struct cache *c, const struct page_ref *refs, unsigned count, bool scan)
{
	struct page_ref missing[FETCH_MAX];
	unsigned n = 0;

	if (!c->started)
		return;
	for (unsigned i = 0; i < count && n < c->frames.batch_max; i++) {
		if (i + TABLE_AHEAD < count)
			table_expect(c, refs[i + TABLE_AHEAD].pid);
		if (!table_find(c, refs[i].pid))
			missing[n++] = refs[i];
	}
	if (n)
		queue_put(&c->fetch.queue, missing, n, scan);
}
