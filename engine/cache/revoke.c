/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pages that leave this node for others, and owed images (docs/nodes/driver.md, "What leaves a
 * frame"). This is the cache's side of coherence.h, struct coherence_frames.
 *
 * Invariants:
 *
 * - 1: A page is revoked under its latch before its image leaves. From then on no guard here
 *   changes (SHARED) or uses (INVALID, the frame is LEAVING) the image. So it is read without the
 *   latch while it travels.
 * - 2: A dirty image that is given up stays in its frame, which is then in no table. It stays until
 *   its home has persisted it or a later one. Its rec_lsn still holds the log's tail.
 * - 3: The sender asks the log first: flush_to covers all records that changed the page together
 *   with others.
 * - 10: Owed images, and dirty images that are leaving, never exceed owed_max frames.
 *
 * Locks: owed_lock is a leaf, taken under latches.
 */
#include "engine/cache/cache_internal.h"

#define SHIP_MAX     64u /* owed images shipped at once */
#define OWED_DIVISOR 8u  /* of the frames, at most one in so many is owed */

/* ---- revoke, restore ----------------------------------------------------------------- */

/* Other nodes ask for pages in a row, and let go of them. Prefetches the memory that the look for
 * the next pages will read. */
static void pages_expect(struct cache *c, page_id pid)
{
	table_expect(c, pid + TABLE_AHEAD);
	frame_expect(c, pid + TABLE_AHEAD / 2);
}

/* Latches the page's frame. 0; -ENOENT: it has none; -EAGAIN without `wait`. */
static int latch_page(struct cache *c, page_id pid, bool wait, struct frame **out)
{
	uint64_t seen;

	for (;;) {
		struct frame *f = table_find(c, pid);

		if (!f)
			f = table_insert(c, pid, NULL);
		if (!f)
			return -ENOENT;
		*out = f;
		if (wait) { /* it is leaving: any task that latches it lets go at once */
			bool latched;

			rt_awaits(&f->latch);
			latched = latch_exclusive(c, f, pid);
			rt_awaits(NULL);
			if (latched)
				return 0;
			continue;
		}
		if (!latch_try_exclusive(f, &seen))
			return -EAGAIN;
		if (atomic_load_explicit(&f->pid, memory_order_relaxed) == pid)
			return 0;
		latch_release_exclusive(c, f, false);
	}
}

static bool owed_reserve(struct cache *c)
{
	bool room;

	rt_mutex_lock(&c->revoke.lock);
	room = c->revoke.owed_count + c->revoke.reserved < c->revoke.owed_max;
	c->revoke.reserved += room;
	rt_mutex_unlock(&c->revoke.lock);
	return room;
}

static void owed_unreserve(struct cache *c)
{
	rt_mutex_lock(&c->revoke.lock);
	WEFT_ASSERT(c->revoke.reserved);
	c->revoke.reserved--;
	rt_mutex_unlock(&c->revoke.lock);
}

static void describe_image(struct cache *c, struct frame *f, struct coherence_image *out)
{
	uint32_t flags = frame_flags(f);

	*out = (struct coherence_image){
		.frame = cache_frame_index(c, f),
		.image = frame_image(c, f),
		.incarnation = f->incarnation,
		.version = f->version,
		.dirty = flags & FRAME_DIRTY,
		.hollow = flags & FRAME_HOLLOW,
		.flush_to = atomic_load_explicit(
			&c->revoke.ship_lsn[f - c->frames.frame], memory_order_relaxed),
	};
}

/* Makes the latched frame leave. -ENOBUFS: it is dirty and too much is owed. */
static int make_leave(struct cache *c, struct frame *f)
{
	if (frame_flags(f) & FRAME_LEAVING)
		return 0;
	if ((frame_flags(f) & FRAME_DIRTY) && !owed_reserve(c)) {
		provider_wake(c);
		return -ENOBUFS;
	}
	f->held = (uint8_t)frame_right(f);
	frame_set(f, FRAME_LEAVING);
	frame_set_mode(f, PAGE_INVALID);
	return 0;
}

static int revoke_frame(
	void *cache, page_id pid, enum page_mode to, struct coherence_image *out)
{
	struct cache *c = cache;
	struct frame *f;
	int rc;

	pages_expect(c, pid);
	if (to == PAGE_SHARED)
		image_expect(c, pid + IMAGE_AHEAD);
	rc = latch_page(c, pid, false, &f);
	if (rc)
		return rc;
	if ((frame_flags(f) & FRAME_UNPUBLISHED) ||
		(to == PAGE_INVALID && (frame_flags(f) & FRAME_WRITING))) {
		latch_release_exclusive(c, f, false);
		return -EAGAIN;
	}
	out->min_hold_until_ns = min_hold_until(c, f);
	if (out->min_hold_until_ns) {
		latch_release_exclusive(c, f, false);
		return -ETIME;
	}
	if (!kernel_free(c, f, to)) {
		rc = kernel_drops(c, f) ? -EBUSY : -EAGAIN;
		latch_release_exclusive(c, f, false);
		return rc;
	}
	if (to == PAGE_INVALID)
		rc = make_leave(c, f);
	else if (mode_allows(f, PAGE_EXCLUSIVE))
		frame_set_mode(f, PAGE_SHARED);
	describe_image(c, f, out);
	/* reads of a page that is only shared from now on stand */
	latch_release_exclusive(c, f, to == PAGE_INVALID);
	return rc;
}

/* The frame is latched by its request. */
static bool give_not_kcached(void *cache, page_id pid)
{
	struct cache *c = cache;
	struct frame *f = table_insert(c, pid, NULL);

	return !f || kernel_free(c, f, PAGE_INVALID);
}

static void give_restore(void *cache, page_id pid, enum page_mode mode)
{
	struct cache *c = cache;
	struct frame *f;

	WEFT_ASSERT(
		latch_page(c, pid, true, &f) == 0 && (frame_flags(f) & FRAME_LEAVING));
	if (frame_flags(f) & FRAME_DIRTY)
		owed_unreserve(c);
	f->held = (uint8_t)mode;
	frame_clear(f, FRAME_LEAVING);
	frame_set_mode(f, frame_flags(f) & FRAME_HOLLOW ? PAGE_INVALID : mode);
	latch_release_exclusive(c, f, true);
	latch_wake(c, f);
}

static int give_strengthen(void *cache, page_id pid)
{
	struct cache *c = cache;
	struct frame *f;
	int rc;

	pages_expect(c, pid);
	rc = latch_page(c, pid, false, &f);
	if (rc)
		return -EAGAIN;
	if (frame_right(f) != PAGE_SHARED ||
		(frame_flags(f) & (FRAME_LEAVING | FRAME_HOLLOW)))
		rc = -EAGAIN;
	else
		frame_set_mode(f, PAGE_EXCLUSIVE);
	/* reads of it stand */
	latch_release_exclusive(c, f, false);
	return rc;
}

void leaving_wait(struct cache *c, struct frame *f)
{
	_Atomic uint32_t *word = latch_parking(c, f);
	uint32_t sequence = atomic_load_explicit(word, memory_order_acquire);

	/* the task that ends the leaving takes the latch before it wakes */
	latch_release_exclusive(c, f, false);
	rt_wait(word, sequence, rt_task_asks_ns());
}

/* ---- owed images ----------------------------------------------------------------------- */

/* An owed frame's image is needed no more. */
static void owed_free(struct cache *c, uint32_t frame)
{
	struct frame *f = &c->frames.frame[frame];

	latch_free_frame(f);
	atomic_store_explicit(&f->rec_lsn, LSN_NONE, memory_order_relaxed);
	atomic_store_explicit(&f->flags, 0, memory_order_relaxed);
	frame_put(c, f);
}

static void lower_rec(struct frame *f, uint64_t rec)
{
	uint64_t has = atomic_load_explicit(&f->rec_lsn, memory_order_relaxed);

	if (rec != LSN_NONE && (has == LSN_NONE || rec < has))
		atomic_store_explicit(&f->rec_lsn, rec, memory_order_seq_cst);
}

/*
 * Lists a frame whose flags say OWED already. It contains any earlier image of the page. But the
 * log that made the earlier one is needed as long. The later one may come from another node, which
 * may crash together with this one. Then no other log has the earlier changes durably.
 */
static void owed_add(struct cache *c, page_id pid, struct frame *f)
{
	uint32_t index = cache_frame_index(c, f), old = UINT32_MAX;
	struct owed *o;

	rt_mutex_lock(&c->revoke.lock);
	WEFT_ASSERT(c->revoke.reserved);
	c->revoke.reserved--;
	o = owed_list_find(c, pid);
	while (o && o->shipping)
		o = owed_list_next(c, o);
	if (o) {
		old = o->frame;
		lower_rec(f, atomic_load_explicit(&c->frames.frame[old].rec_lsn,
				     memory_order_relaxed));
		o->frame = index;
	} else {
		owed_list_add(c, pid, index);
	}
	/* a pin went from one frame to another: a task that looks at all frames looks again */
	atomic_fetch_add_explicit(&c->revoke.handovers, 1, memory_order_seq_cst);
	rt_mutex_unlock(&c->revoke.lock);
	if (old != UINT32_MAX)
		owed_free(c, old);
}

static void give_vacate(void *cache, page_id pid, bool owe)
{
	struct cache *c = cache;
	uint16_t logged;
	struct frame *f;
	bool dirty;

	WEFT_ASSERT(
		latch_page(c, pid, true, &f) == 0 && (frame_flags(f) & FRAME_LEAVING));
	dirty = frame_flags(f) & FRAME_DIRTY;
	logged = frame_flags(f) & FRAME_LOGGED;
	if (dirty && owe) {
		frame_set(f, FRAME_OWED); /* before DIRTY goes: the pin stays in sight */
		frame_mark_clean(c, f);
		atomic_store_explicit(
			&f->flags, FRAME_OWED | logged, memory_order_relaxed);
		/* Before it leaves the table: a task that misses it there finds it here
		 * (owed_sync). A task that frees it waits for the latch. */
		owed_add(c, pid, f);
		table_remove(c, f);
		latch_release_exclusive(c, f, true);
	} else {
		if (dirty)
			owed_unreserve(c);
		frame_mark_clean(c, f);
		atomic_store_explicit(&f->rec_lsn, LSN_NONE, memory_order_relaxed);
		frame_free(c, f);
	}
	latch_wake(c, f);
}

static int give_owe_copy(void *cache, page_id pid)
{
	struct cache *c = cache;
	struct frame *f = table_insert(c, pid, NULL), *copy;
	int unused;

	WEFT_ASSERT(f);
	if (!(frame_flags(f) & FRAME_DIRTY))
		return 0;
	if (!owed_reserve(c)) {
		provider_wake(c);
		return -ENOBUFS;
	}
	copy = frame_get(c, false, &unused);
	if (!copy) {
		owed_unreserve(c);
		provider_wake(c);
		return -EAGAIN;
	}
	racy_copy(frame_image(c, copy), frame_image(c, f), PAGE_SIZE);
	copy->incarnation = f->incarnation;
	copy->version = f->version;
	atomic_store_explicit(&copy->rec_lsn,
		atomic_load_explicit(&f->rec_lsn, memory_order_relaxed),
		memory_order_seq_cst);
	atomic_store_explicit(&copy->flags, FRAME_OWED | (frame_flags(f) & FRAME_LOGGED),
		memory_order_release);
	owed_add(c, pid, copy);
	latch_release_exclusive(c, copy, true);
	frame_mark_clean(c, f);
	atomic_store_explicit(&f->rec_lsn, LSN_NONE, memory_order_relaxed);
	return 0;
}

/* Takes the page's owed images up to the version off the list. Returns the frame, or -1. */
static int64_t owed_take(
	struct cache *c, page_id pid, uint64_t incarnation, uint64_t version)
{
	int64_t frame = -1;

	rt_mutex_lock(&c->revoke.lock);
	for (struct owed *o = owed_list_find(c, pid); o; o = owed_list_next(c, o)) {
		const struct frame *f = &c->frames.frame[o->frame];

		if (!o->shipping &&
			page_order(f->incarnation, f->version, incarnation, version) <= 0) {
			frame = o->frame;
			owed_list_remove(c, o);
			break;
		}
	}
	rt_mutex_unlock(&c->revoke.lock);
	return frame;
}

static void give_persisted(
	void *cache, page_id pid, uint64_t incarnation, uint64_t version)
{
	struct cache *c = cache;
	struct frame *f = table_find(c, pid);
	int64_t frame;

	while ((frame = owed_take(c, pid, incarnation, version)) >= 0)
		owed_free(c, (uint32_t)frame);
	/* a writer of it learns it from its own answer */
	if (!f || !latch_try_shared(f))
		return;
	if (atomic_load_explicit(&f->pid, memory_order_relaxed) == pid &&
		f->incarnation == incarnation && f->version == version &&
		(frame_flags(f) & FRAME_DIRTY) &&
		!(frame_flags(f) & (FRAME_WRITING | FRAME_LEAVING))) {
		frame_set(f, FRAME_PERSISTED | FRAME_NEED_FULL);
		frame_mark_clean(c, f);
		atomic_store_explicit(&f->rec_lsn, LSN_NONE, memory_order_relaxed);
	}
	latch_release_shared(c, f);
}

/* An image that redo has made, of another home's page. */
static bool redone_elsewhere(const struct cache *c, const struct frame *f)
{
	page_id pid = atomic_load_explicit(&f->pid, memory_order_relaxed);

	return pid != PID_NONE && (frame_flags(f) & FRAME_UNPUBLISHED) &&
	       !coherence_home_here(c->coherence, pid);
}

int owed_from_redo(struct cache *c)
{
	uint32_t count = 0;

	for (uint32_t i = 0; i < c->frames.count; i++)
		count += redone_elsewhere(c, &c->frames.frame[i]);
	if (owed_list_open(c, count))
		return -ENOMEM;
	for (uint32_t i = 0; i < c->frames.count; i++) {
		struct frame *f = &c->frames.frame[i];
		page_id pid = atomic_load_explicit(&f->pid, memory_order_relaxed);

		if (!redone_elsewhere(c, f))
			continue;
		latch_free_frame(f);
		table_remove(c, f);
		frame_mark_clean(c, f);
		atomic_store_explicit(&f->flags, FRAME_OWED, memory_order_relaxed);
		owed_list_add(c, pid, i);
		latch_release_exclusive(c, f, true);
	}
	return 0;
}

static int give_owed_at(
	void *cache, unsigned at, page_id *pid, struct coherence_image *out)
{
	struct cache *c = cache;
	int rc = -ENOENT;

	rt_mutex_lock(&c->revoke.lock);
	if (at < c->revoke.owed_count) {
		*pid = c->revoke.owed[at].pid;
		describe_image(c, &c->frames.frame[c->revoke.owed[at].frame], out);
		rc = 0;
	}
	rt_mutex_unlock(&c->revoke.lock);
	return rc;
}

bool owed_crowded(struct cache *c)
{
	bool crowded;

	rt_mutex_lock(&c->revoke.lock);
	crowded = c->revoke.owed_count + c->revoke.reserved > c->revoke.owed_max / 2;
	rt_mutex_unlock(&c->revoke.lock);
	return crowded;
}

uint64_t owed_mark(struct cache *c)
{
	uint64_t mark;

	rt_mutex_lock(&c->revoke.lock);
	mark = c->revoke.newest;
	rt_mutex_unlock(&c->revoke.lock);
	return mark;
}

bool owed_older(struct cache *c, uint64_t mark)
{
	bool older = false;

	rt_mutex_lock(&c->revoke.lock);
	for (uint32_t i = 0; i < c->revoke.owed_count && !older; i++)
		older = c->revoke.owed[i].since <= mark;
	rt_mutex_unlock(&c->revoke.lock);
	return older;
}

uint64_t owed_shards(struct cache *c)
{
	uint64_t shards = 0;

	rt_mutex_lock(&c->revoke.lock);
	for (uint32_t i = 0; i < c->revoke.owed_count; i++)
		shards |= 1ull << MIN(pid_shard(c->revoke.owed[i].pid), 63u);
	rt_mutex_unlock(&c->revoke.lock);
	return shards;
}

bool cache_owes(struct cache *c)
{
	bool owes;

	rt_mutex_lock(&c->revoke.lock);
	owes = c->revoke.owed_count + c->revoke.reserved > 0;
	rt_mutex_unlock(&c->revoke.lock);
	return owes;
}

bool cache_keeps(struct cache *c)
{
	return cache_owes(c) ||
	       atomic_load_explicit(&c->writeback.dirty, memory_order_acquire);
}

/* One round of owed_ship. */
struct owed_round {
	unsigned ships, returned;
	struct coherence_ship ship[SHIP_MAX];
	struct page_ref back[SHIP_MAX]; /* pages that this node has again, dirty */
};

static bool has_dirty(struct cache *c, page_id pid)
{
	const struct frame *f = table_find(c, pid);

	return f && (frame_flags(f) & FRAME_DIRTY);
}

/* Images that pin the log below `upto` (LSN_MAX: any), from the `*at`th on. */
static void owed_pick(struct cache *c, lsn_t upto, uint32_t *at, struct owed_round *r)
{
	r->ships = r->returned = 0;
	rt_mutex_lock(&c->revoke.lock);
	for (; *at < c->revoke.owed_count && r->ships < SHIP_MAX &&
		r->returned < SHIP_MAX;
		++*at) {
		struct owed *o = &c->revoke.owed[*at];
		struct frame *f = &c->frames.frame[o->frame];
		lsn_t rec = atomic_load_explicit(&f->rec_lsn, memory_order_relaxed);

		if (o->shipping || (upto != LSN_MAX && (rec == LSN_NONE || rec >= upto)))
			continue;
		if (has_dirty(c, o->pid)) {
			r->back[r->returned++] = (struct page_ref){.pid = o->pid};
			continue;
		}
		o->shipping = true;
		r->ship[r->ships++] = (struct coherence_ship){.pid = o->pid,
			.incarnation = f->incarnation,
			.version = f->version,
			.image = frame_image(c, f)};
	}
	rt_mutex_unlock(&c->revoke.lock);
}

/* The shipping of an image has ended. */
static void owed_shipped(struct cache *c, const struct coherence_ship *s)
{
	uint32_t frame = (uint32_t)(((uint8_t *)s->image - c->frames.image) / PAGE_SIZE);

	rt_mutex_lock(&c->revoke.lock);
	for (struct owed *o = owed_list_find(c, s->pid); o; o = owed_list_next(c, o))
		if (o->frame == frame)
			o->shipping = false;
	rt_mutex_unlock(&c->revoke.lock);
	if (!s->result)
		give_persisted(c, s->pid, s->incarnation, s->version);
}

/*
 * Writes back pages of this home of which an earlier image is owed and pins the log. The later
 * image in the frame need not pin it. So a task that looks for pins passes the frame by, also if
 * its image had to be logged.
 */
static void owed_returned(struct cache *c, const struct owed_round *r)
{
	int rc = 0;

	for (unsigned i = 0; i < r->returned && !rc; i++)
		if (coherence_home_here(c->coherence, r->back[i].pid))
			rc = writeback_own(c, r->back[i].pid);
}

void owed_ship(struct cache *c, lsn_t upto, bool urgent)
{
	struct owed_round r;
	uint32_t at = 0;

	/* An entry that goes meanwhile is replaced from the end of the list. So some may be passed
	 * over until the next call. */
	for (;;) {
		owed_pick(c, upto, &at, &r);
		if (r.ships)
			c->coherence->ops->ship(c->coherence, r.ship, r.ships);
		for (unsigned i = 0; i < r.ships; i++)
			owed_shipped(c, &r.ship[i]);
		/* a failure is reported to the tasks that look after the frames themselves */
		if (r.returned)
			(void)writeback_pages(c, r.back, r.returned, urgent, NULL);
		if (urgent)
			owed_returned(c, &r);
		if (!r.ships && !r.returned)
			break;
	}
}

/* ---- the home's part ---------------------------------------------------------------------- */

static int give_place(void *cache, page_id pid, uint32_t *frame, void **image)
{
	struct cache *c = cache;
	int unused;
	struct frame *f;

	WEFT_ASSERT(coherence_home_here(c->coherence, pid));
	f = frame_get(c, false, &unused);
	if (!f) {
		provider_wake(c);
		return -EAGAIN;
	}
	frame_claim(c, f, 0);
	if (table_insert(c, pid, f)) {
		atomic_store_explicit(&f->flags, 0, memory_order_relaxed);
		frame_put(c, f);
		return -EEXIST;
	}
	*frame = cache_frame_index(c, f);
	*image = frame_image(c, f);
	rt_lets_go(&f->latch); /* it is for the task that ends that */
	return 0;
}

static void give_placed(void *cache, page_id pid, uint64_t incarnation, uint64_t version,
	enum page_mode mode)
{
	struct cache *c = cache;
	struct frame *f = table_insert(c, pid, NULL);

	WEFT_ASSERT(f && (frame_flags(f) & FRAME_LOADING));
	rt_holds(&f->latch, latch_may_wait);
	if (mode == PAGE_INVALID) {
		frame_free(c, f);
		return;
	}
	f->incarnation = incarnation;
	f->version = version;
	f->held = (uint8_t)mode;
	frame_set_mode(f, mode);
	/* it may be in the store in an earlier version: an overwrite could tear that */
	atomic_store_explicit(
		&f->flags, FRAME_NEED_FULL | FRAME_PERSISTED, memory_order_relaxed);
	frame_mark_dirty(c, f, 0);
	latch_release_exclusive(c, f, true);
}

static int give_look(void *cache, page_id pid, struct coherence_image *out)
{
	struct cache *c = cache;
	struct frame *f;
	int rc;

	rc = latch_page(c, pid, false, &f);
	if (rc)
		return rc;
	describe_image(c, f, out);
	latch_release_exclusive(c, f, false);
	return 0;
}

static const void *give_owed(
	void *cache, page_id pid, uint64_t *incarnation, uint64_t *version)
{
	struct cache *c = cache;
	const struct frame *newest = NULL;

	rt_mutex_lock(&c->revoke.lock);
	for (const struct owed *o = owed_list_find(c, pid); o; o = owed_list_next(c, o)) {
		const struct frame *f = &c->frames.frame[o->frame];

		if (!newest || page_order(f->incarnation, f->version, newest->incarnation,
				       newest->version) > 0)
			newest = f;
	}
	if (newest) {
		*incarnation = newest->incarnation;
		*version = newest->version;
	}
	rt_mutex_unlock(&c->revoke.lock);
	return newest ? frame_image(c, newest) : NULL;
}

/* Takes the image of that version off the list; its place stays reserved. Returns NULL if there is
 * none that is not being shipped. */
static struct frame *owed_unlist(
	struct cache *c, page_id pid, uint64_t incarnation, uint64_t version)
{
	struct frame *f = NULL;

	rt_mutex_lock(&c->revoke.lock);
	for (struct owed *o = owed_list_find(c, pid); o; o = owed_list_next(c, o)) {
		struct frame *of = &c->frames.frame[o->frame];

		if (o->shipping || of->incarnation != incarnation || of->version != version)
			continue;
		f = of;
		owed_list_remove(c, o);
		c->revoke.reserved++;
		break;
	}
	rt_mutex_unlock(&c->revoke.lock);
	return f;
}

static int give_reown(
	void *cache, page_id pid, uint64_t incarnation, uint64_t version, void **image)
{
	struct cache *c = cache;
	struct frame *f = owed_unlist(c, pid, incarnation, version);

	if (!f)
		return -EAGAIN;
	latch_free_frame(f);
	if (table_insert(c, pid, f)) {
		owed_add(c, pid, f);
		latch_release_exclusive(c, f, true);
		return -EAGAIN;
	}
	owed_unreserve(c);
	f->held = PAGE_SHARED;
	frame_set_mode(f, PAGE_SHARED);
	/* dirty before OWED goes: the pin stays in sight */
	frame_mark_dirty(c, f, FRAME_NEED_FULL | FRAME_PERSISTED);
	frame_clear(f, FRAME_OWED);
	frame_touch(c, f);
	*image = frame_image(c, f);
	latch_release_exclusive(c, f, true);
	return 0;
}

static int give_adopt(void *cache, page_id pid, bool latched)
{
	struct cache *c = cache;
	struct frame *f;
	int rc;

	if (latched) { /* by a request, which does not look at it before it ends */
		f = table_insert(c, pid, NULL);
		WEFT_ASSERT(f);
		frame_mark_dirty(c, f, 0);
		return 0;
	}
	rc = latch_page(c, pid, false, &f);
	if (rc)
		return -EAGAIN;
	if (frame_flags(f) & (FRAME_HOLLOW | FRAME_LEAVING))
		rc = -EAGAIN;
	else
		frame_mark_dirty(c, f, 0);
	latch_release_exclusive(c, f, true);
	return rc;
}

static void give_filled(void *cache, page_id pid, uint64_t incarnation, uint64_t version)
{
	struct cache *c = cache;
	struct frame *f;

	WEFT_ASSERT(
		latch_page(c, pid, true, &f) == 0 && (frame_flags(f) & FRAME_LEAVING));
	frame_renew(c, f, incarnation);
	f->version = version;
	frame_set(f, FRAME_PERSISTED);
	latch_release_exclusive(c, f, true);
}

static int give_write_back(void *cache, page_id pid)
{
	return writeback_own(cache, pid);
}

static const struct coherence_frames give_frames = {
	.revoke = revoke_frame,
	.not_kcached = give_not_kcached,
	.restore = give_restore,
	.strengthen = give_strengthen,
	.owe_copy = give_owe_copy,
	.vacate = give_vacate,
	.persisted = give_persisted,
	.place = give_place,
	.placed = give_placed,
	.persist = writeback_shipped,
	.look = give_look,
	.adopt = give_adopt,
	.owed = give_owed,
	.owed_at = give_owed_at,
	.reown = give_reown,
	.filled = give_filled,
	.write_back = give_write_back,
};

int give_open(struct cache *c)
{
	c->revoke.owed_max = MAX(c->frames.count / OWED_DIVISOR, 4u);
	c->revoke.ship_lsn =
		rt_alloc_pages(c->frames.count * sizeof(*c->revoke.ship_lsn));
	if (owed_list_open(c, c->revoke.owed_max) || !c->revoke.ship_lsn)
		return -ENOMEM;
	c->coherence->frames = &give_frames;
	c->coherence->cache = c;
	return 0;
}

void give_close(struct cache *c)
{
	if (c->revoke.ship_lsn)
		rt_free_pages(c->revoke.ship_lsn,
			c->frames.count * sizeof(*c->revoke.ship_lsn));
	owed_list_close(c);
	c->revoke.ship_lsn = NULL;
}
