/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pages that leave this node for others, and images that it owes (docs/many-nodes.md,
 * "What leaves a frame"): the cache's side of coherence.h, struct coherence_frames.
 *
 * Invariants. (1) A page is weakened under its latch before anything of it leaves: from
 * then on no guard here changes (SHARED) or uses (INVALID, the frame is LEAVING) the image,
 * so it is read without the latch while it travels. (2) A dirty image given up stays in its
 * frame, which is in no table then, until its home has persisted it or a later one; its
 * rec_lsn goes on holding the log's tail. (3) Whoever sends asks the log first: flush_to
 * covers all records that changed the page together with others. (10) What is owed, with
 * what is leaving dirty, never exceeds owed_max frames.
 *
 * Locks: owed_lock is a leaf, taken under latches.
 */
#include "engine/cache/cache_internal.h"

#define SHIP_MAX     64u /* owed images shipped at once */
#define OWED_DIVISOR 8u  /* of the frames, at most one in so many is owed */

/* ---- weaken, restore ----------------------------------------------------------------- */

/* Others ask for pages in a row, and let go of them: what a look for the next ones will read. */
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
		if (wait) { /* it is leaving: whoever latches it lets go at once */
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

	rt_mutex_lock(&c->owed_lock);
	room = c->owed_count + c->owed_reserved < c->owed_max;
	c->owed_reserved += room;
	rt_mutex_unlock(&c->owed_lock);
	return room;
}

static void owed_unreserve(struct cache *c)
{
	rt_mutex_lock(&c->owed_lock);
	WEFT_ASSERT(c->owed_reserved);
	c->owed_reserved--;
	rt_mutex_unlock(&c->owed_lock);
}

static void describe(struct cache *c, struct frame *f, struct coherence_image *out)
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
			&c->ship_lsn[f - c->frames], memory_order_relaxed),
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

static int give_weaken(
	void *cache, page_id pid, enum page_mode to, struct coherence_image *out)
{
	struct cache *c = cache;
	struct frame *f;
	int e;

	pages_expect(c, pid);
	if (to == PAGE_SHARED)
		image_expect(c, pid + IMAGE_AHEAD);
	e = latch_page(c, pid, false, &f);
	if (e)
		return e;
	if ((frame_flags(f) & FRAME_UNPUBLISHED) ||
		(to == PAGE_INVALID && (frame_flags(f) & FRAME_WRITING))) {
		latch_release_exclusive(c, f, false);
		return -EAGAIN;
	}
	out->stays_until_ns = stay_until(c, f);
	if (out->stays_until_ns) {
		latch_release_exclusive(c, f, false);
		return -ETIME;
	}
	if (!kernel_free(c, f, to)) {
		e = kernel_drops(c, f) ? -EBUSY : -EAGAIN;
		latch_release_exclusive(c, f, false);
		return e;
	}
	if (to == PAGE_INVALID)
		e = make_leave(c, f);
	else if (mode_allows(f, PAGE_EXCLUSIVE))
		frame_set_mode(f, PAGE_SHARED);
	describe(c, f, out);
	/* what was read of a page that is only shared from now on stands */
	latch_release_exclusive(c, f, to == PAGE_INVALID);
	return e;
}

/* The frame is latched by its request. */
static bool give_unexposed(void *cache, page_id pid)
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
	int e;

	pages_expect(c, pid);
	e = latch_page(c, pid, false, &f);
	if (e)
		return -EAGAIN;
	if (frame_right(f) != PAGE_SHARED ||
		(frame_flags(f) & (FRAME_LEAVING | FRAME_HOLLOW)))
		e = -EAGAIN;
	else
		frame_set_mode(f, PAGE_EXCLUSIVE);
	/* what was read of it stands */
	latch_release_exclusive(c, f, false);
	return e;
}

void leaving_wait(struct cache *c, struct frame *f)
{
	_Atomic uint32_t *word = latch_parking(c, f);
	uint32_t sequence = atomic_load_explicit(word, memory_order_acquire);

	/* whoever ends the leaving takes the latch before it wakes */
	latch_release_exclusive(c, f, false);
	rt_wait(word, sequence, rt_task_asks_ns());
}

/* ---- owed images ----------------------------------------------------------------------- */

/* An owed frame's image is needed no more. */
static void owed_free(struct cache *c, uint32_t frame)
{
	struct frame *f = &c->frames[frame];

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
 * Lists a frame whose flags say OWED already. An earlier image of the page is contained in
 * it; but the log that made that one is needed for as long: where the later one came from
 * another node, which may crash together with this one, nothing else has it durably.
 */
static void owed_add(struct cache *c, page_id pid, struct frame *f)
{
	uint32_t index = cache_frame_index(c, f), old = UINT32_MAX;

	rt_mutex_lock(&c->owed_lock);
	WEFT_ASSERT(c->owed_reserved && c->owed_count < c->owed_room);
	c->owed_reserved--;
	for (uint32_t i = 0; i < c->owed_count; i++) {
		struct owed *o = &c->owed[i];

		if (o->pid != pid || o->shipping)
			continue;
		old = o->frame;
		lower_rec(f, atomic_load_explicit(
				     &c->frames[old].rec_lsn, memory_order_relaxed));
		o->frame = index;
		break;
	}
	if (old == UINT32_MAX)
		c->owed[c->owed_count++] = (struct owed){
			.pid = pid, .frame = index, .since = ++c->owed_newest};
	/* a pin went from one frame to another: who looks at all of them looks again */
	atomic_fetch_add_explicit(&c->handovers, 1, memory_order_seq_cst);
	rt_mutex_unlock(&c->owed_lock);
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
		/* Before it leaves the table: who misses it there finds it here
		 * (owed_sync). Whoever frees it waits for the latch. */
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

/* Takes what is owed of the page up to the version off the list. The frame, or -1. */
static int64_t owed_take(
	struct cache *c, page_id pid, uint64_t incarnation, uint64_t version)
{
	int64_t frame = -1;

	rt_mutex_lock(&c->owed_lock);
	for (uint32_t i = 0; i < c->owed_count && frame < 0; i++) {
		const struct owed *o = &c->owed[i];
		const struct frame *f = &c->frames[o->frame];

		if (o->pid == pid && !o->shipping &&
			page_order(f->incarnation, f->version, incarnation, version) <=
				0) {
			frame = o->frame;
			c->owed[i] = c->owed[--c->owed_count];
		}
	}
	rt_mutex_unlock(&c->owed_lock);
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
	/* whoever is writing it learns it from its own answer */
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
	struct owed *owed;

	for (uint32_t i = 0; i < c->frame_count; i++)
		count += redone_elsewhere(c, &c->frames[i]);
	if (count > c->owed_room) {
		owed = rt_alloc(count * sizeof(*owed));
		if (!owed)
			return -ENOMEM;
		rt_free(c->owed);
		c->owed = owed;
		c->owed_room = count;
	}
	for (uint32_t i = 0; i < c->frame_count; i++) {
		struct frame *f = &c->frames[i];
		page_id pid = atomic_load_explicit(&f->pid, memory_order_relaxed);

		if (!redone_elsewhere(c, f))
			continue;
		latch_free_frame(f);
		table_remove(c, f);
		frame_mark_clean(c, f);
		atomic_store_explicit(&f->flags, FRAME_OWED, memory_order_relaxed);
		c->owed[c->owed_count++] =
			(struct owed){.pid = pid, .frame = i, .since = ++c->owed_newest};
		latch_release_exclusive(c, f, true);
	}
	return 0;
}

static int give_owed_at(
	void *cache, unsigned at, page_id *pid, struct coherence_image *out)
{
	struct cache *c = cache;
	int e = -ENOENT;

	rt_mutex_lock(&c->owed_lock);
	if (at < c->owed_count) {
		*pid = c->owed[at].pid;
		describe(c, &c->frames[c->owed[at].frame], out);
		e = 0;
	}
	rt_mutex_unlock(&c->owed_lock);
	return e;
}

bool owed_crowded(struct cache *c)
{
	bool crowded;

	rt_mutex_lock(&c->owed_lock);
	crowded = c->owed_count + c->owed_reserved > c->owed_max / 2;
	rt_mutex_unlock(&c->owed_lock);
	return crowded;
}

uint64_t owed_mark(struct cache *c)
{
	uint64_t mark;

	rt_mutex_lock(&c->owed_lock);
	mark = c->owed_newest;
	rt_mutex_unlock(&c->owed_lock);
	return mark;
}

bool owed_older(struct cache *c, uint64_t mark)
{
	bool older = false;

	rt_mutex_lock(&c->owed_lock);
	for (uint32_t i = 0; i < c->owed_count && !older; i++)
		older = c->owed[i].since <= mark;
	rt_mutex_unlock(&c->owed_lock);
	return older;
}

uint64_t owed_shards(struct cache *c)
{
	uint64_t shards = 0;

	rt_mutex_lock(&c->owed_lock);
	for (uint32_t i = 0; i < c->owed_count; i++)
		shards |= 1ull << MIN(pid_shard(c->owed[i].pid), 63u);
	rt_mutex_unlock(&c->owed_lock);
	return shards;
}

bool cache_owes(struct cache *c)
{
	bool owes;

	rt_mutex_lock(&c->owed_lock);
	owes = c->owed_count + c->owed_reserved > 0;
	rt_mutex_unlock(&c->owed_lock);
	return owes;
}

bool cache_keeps(struct cache *c)
{
	return cache_owes(c) || atomic_load_explicit(&c->dirty, memory_order_acquire);
}

/* What one round of owed_ship is about. */
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
	rt_mutex_lock(&c->owed_lock);
	for (; *at < c->owed_count && r->ships < SHIP_MAX && r->returned < SHIP_MAX;
		++*at) {
		struct owed *o = &c->owed[*at];
		struct frame *f = &c->frames[o->frame];
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
	rt_mutex_unlock(&c->owed_lock);
}

/* The shipping of an image has ended. */
static void owed_shipped(struct cache *c, const struct coherence_ship *s)
{
	uint32_t frame = (uint32_t)(((uint8_t *)s->image - c->images) / PAGE_SIZE);

	rt_mutex_lock(&c->owed_lock);
	for (uint32_t i = 0; i < c->owed_count; i++)
		if (c->owed[i].frame == frame)
			c->owed[i].shipping = false;
	rt_mutex_unlock(&c->owed_lock);
	if (!s->result)
		give_persisted(c, s->pid, s->incarnation, s->version);
}

/*
 * Pages of this home of which an earlier image is owed and pins the log, as the later one in the frame
 * need not: so those who look for what pins it pass the frame by where its image had to be logged, too.
 */
static void owed_returned(struct cache *c, const struct owed_round *r)
{
	int e = 0;

	for (unsigned i = 0; i < r->returned && !e; i++)
		if (coherence_home_here(c->coherence, r->back[i].pid))
			e = writeback_own(c, r->back[i].pid);
}

void owed_ship(struct cache *c, lsn_t upto, bool urgent)
{
	struct owed_round r;
	uint32_t at = 0;

	/* what goes meanwhile is replaced from the end of the list: some may be passed
	 * over until the next call */
	for (;;) {
		owed_pick(c, upto, &at, &r);
		if (r.ships)
			c->coherence->ops->ship(c->coherence, r.ship, r.ships);
		for (unsigned i = 0; i < r.ships; i++)
			owed_shipped(c, &r.ship[i]);
		/* a failure is told to those who look after the frames themselves */
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
	rt_lets_go(&f->latch); /* it is for whoever ends that */
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
	int e;

	e = latch_page(c, pid, false, &f);
	if (e)
		return e;
	describe(c, f, out);
	latch_release_exclusive(c, f, false);
	return 0;
}

static const void *give_owed(
	void *cache, page_id pid, uint64_t *incarnation, uint64_t *version)
{
	struct cache *c = cache;
	const struct frame *newest = NULL;

	rt_mutex_lock(&c->owed_lock);
	for (uint32_t i = 0; i < c->owed_count; i++) {
		const struct frame *f = &c->frames[c->owed[i].frame];

		if (c->owed[i].pid == pid &&
			(!newest || page_order(f->incarnation, f->version,
					    newest->incarnation, newest->version) > 0))
			newest = f;
	}
	if (newest) {
		*incarnation = newest->incarnation;
		*version = newest->version;
	}
	rt_mutex_unlock(&c->owed_lock);
	return newest ? frame_image(c, newest) : NULL;
}

/* Takes the image of that version off the list; its place stays reserved. NULL: there is
 * none that is not being shipped. */
static struct frame *owed_unlist(
	struct cache *c, page_id pid, uint64_t incarnation, uint64_t version)
{
	struct frame *f = NULL;

	rt_mutex_lock(&c->owed_lock);
	for (uint32_t i = 0; i < c->owed_count && !f; i++) {
		const struct owed *o = &c->owed[i];
		struct frame *of = &c->frames[o->frame];

		if (o->pid != pid || o->shipping || of->incarnation != incarnation ||
			of->version != version)
			continue;
		f = of;
		c->owed[i] = c->owed[--c->owed_count];
		c->owed_reserved++;
	}
	rt_mutex_unlock(&c->owed_lock);
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
	int e;

	if (latched) { /* by a request, which does not look at it before it ends */
		f = table_insert(c, pid, NULL);
		WEFT_ASSERT(f);
		frame_mark_dirty(c, f, 0);
		return 0;
	}
	e = latch_page(c, pid, false, &f);
	if (e)
		return -EAGAIN;
	if (frame_flags(f) & (FRAME_HOLLOW | FRAME_LEAVING))
		e = -EAGAIN;
	else
		frame_mark_dirty(c, f, 0);
	latch_release_exclusive(c, f, true);
	return e;
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
	.weaken = give_weaken,
	.unexposed = give_unexposed,
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
	c->owed_room = c->owed_max = MAX(c->frame_count / OWED_DIVISOR, 4u);
	c->owed = rt_alloc(c->owed_max * sizeof(*c->owed));
	c->ship_lsn = rt_alloc_pages(c->frame_count * sizeof(*c->ship_lsn));
	if (!c->owed || !c->ship_lsn)
		return -ENOMEM;
	c->coherence->frames = &give_frames;
	c->coherence->cache = c;
	return 0;
}

void give_close(struct cache *c)
{
	if (c->ship_lsn)
		rt_free_pages(c->ship_lsn, c->frame_count * sizeof(*c->ship_lsn));
	rt_free(c->owed);
	c->ship_lsn = NULL;
	c->owed = NULL;
}
