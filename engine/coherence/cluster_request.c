/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the cache asks of the driver (coherence.h): pages, leave to give them up, images
 * persisted. Requests of a call go out together, and it waits once for all of them; so do
 * evictions and shipments.
 *
 * A page of this shard without a record is granted at once: nobody else has a part in it.
 */
#include "engine/coherence/cluster_internal.h"

void batch_one_done(struct cluster *d, struct batch *b)
{
	if (atomic_fetch_sub_explicit(&b->left, 1, memory_order_release) == 1)
		net_wake(d->o.net, &b->left, INT32_MAX);
}

/* Whoever is asked by this node now, and answers, is likely to end the wait. */
static void batch_asks(struct cluster *d, struct batch *b, const struct dpage *p)
{
	if (p->at.home != d->o.self)
		b->likely = p->at.home;
	else if (p->hold.phase == PHASE_GATHERING && p->hold.need)
		b->likely = (unsigned)__builtin_ctzll(p->hold.need);
}

static void batch_wait(struct cluster *d, struct batch *b)
{
	struct net_peer *likely = NULL;
	uint32_t left;

	net_flush(d->o.net);
	if (b->likely != NODE_NONE)
		likely = net_peer_find(d->o.net, (uint16_t)b->likely);
	while ((left = atomic_load_explicit(&b->left, memory_order_acquire)) != 0)
		net_wait(d->o.net, likely, &b->left, left, RT_FOREVER);
}

/* The link to the page's home, if its queue has no room for what is no answer. */
static struct net_peer *home_crowded(struct cluster *d, page_id pid)
{
	unsigned home = d->o.home(d->o.owner, pid_shard(pid));
	struct net_peer *peer = NULL;

	if (home != d->o.self && home < PAGE_NODES_MAX)
		peer = net_peer_find(d->o.net, (uint16_t)home);
	return peer && !net_has_room(peer) ? peer : NULL;
}

/* Waits for room for the i-th of several pages; one look is for some. */
static void room_await(struct cluster *d, page_id pid, unsigned i)
{
	struct net_peer *peer = NULL;

	if (i % ROOM_LOOK_EVERY == 0)
		peer = home_crowded(d, pid);
	if (peer)
		(void)net_wait_room(peer, RT_FOREVER); /* without a link: it is void */
}

static uint32_t request_number(struct cluster *d)
{
	return atomic_fetch_add_explicit(&d->next_request, 1, memory_order_relaxed);
}

/* ---- wishes ------------------------------------------------------------------------------- */

void wish_done(struct cluster *d, struct dpage *p, int result)
{
	struct wish *w = p->wish;

	if (!w || w->done)
		return;
	w->done = true;
	w->result = result;
	p->arrived_ns = rt_now_ns();
	batch_one_done(d, w->batch);
}

/* The right is here, whatever the frame says. */
static void wish_of_owner(struct cluster *d, struct dpage *p, struct page_actions *out)
{
	struct coherence_request *r = p->wish->request;
	bool blank = r->held_hollow || r->held == PAGE_INVALID;

	if (!blank && r->held != PAGE_EXCLUSIVE && p->deferred)
		return; /* the frame was weakened for one of those: first that */
	p->wish->asked = true;
	if (!blank) {
		p->got = GOT_HELD; /* the cache makes it another incarnation's */
		wish_done(d, p, 0);
	} else if (p->at.home == d->o.self) {
		p->got = GOT_STORE;
		wish_done(d, p, 0);
	} else {
		(void)requester_fetch(
			&p->hold, &p->at, place_of(d, r->image), request_number(d), out);
	}
}

void page_used(struct cluster *d, struct dpage *p)
{
	struct page_actions out;

	out.count = 0;
	if (!requester_used(&p->hold, &p->at, &out))
		page_perform(d, p, NULL, &out);
}

void wish_start(struct cluster *d, struct dpage *p)
{
	struct wish *w = p->wish;
	struct page_actions out;

	if (!w || w->asked || w->done || p->persisting || p->unsettled)
		return;
	out.count = 0;
	if (atomic_load_explicit(&d->failed, memory_order_relaxed)) {
		wish_done(d, p, -EIO);
		return;
	}
	if (!view_ready(d, p->at.home)) {
		/* away: whoever asks waits by itself, without the frame; else: till then */
		if (p->at.home != d->o.self && !view_joined(d, p->at.home)) {
			w->away = node_bit(p->at.home);
			wish_done(d, p, -EHOSTUNREACH);
		}
		return;
	}
	if (p->at.home == d->o.self && !p->has_entry) {
		if (!p->opening && page_open(d, p, NULL))
			wish_done(d, p, -ENOMEM);
		return;
	}
	/* it arrived for another operation here, which has had it by now */
	page_used(d, p);
	if (p->hold.phase != PHASE_QUIET)
		return;
	if (w->filled && w->request->wanted == PAGE_SHARED) {
		w->asked = true;
		p->got = GOT_PEER;
		wish_done(d, p, 0);
		return;
	}
	if (p->hold.hold == RIGHT_SOURCE && w->request->held == PAGE_INVALID &&
		!w->filled) {
		wish_done(d, p, -EIO);
		return;
	}
	if (p->hold.hold == RIGHT_SOURCE && w->request->held_hollow &&
		w->request->wanted == PAGE_SHARED) {
		/* it was fetched into this frame for who asked meanwhile */
		w->asked = true;
		if (p->got != GOT_ZEROS)
			p->got = GOT_PEER;
		wish_done(d, p, 0);
		return;
	}
	if (p->hold.hold == RIGHT_EXCLUSIVE) {
		wish_of_owner(d, p, &out);
		page_perform(d, p, NULL, &out);
		return;
	}
	if (p->hold.hold == RIGHT_SHARED && w->request->wanted == PAGE_SHARED) {
		/* its image was lost: given up, and asked for again */
		if (!holder_evict(&p->hold, &p->at, false, 0, request_number(d), &out))
			page_perform(d, p, NULL, &out);
		out.count = 0;
	}
	w->asked = true;
	WEFT_ASSERT(!requester_want(&p->hold, &p->at, w->request->wanted,
		w->request->incarnation, w->request->alone ? PAGE_ALONE : 0,
		place_of(d, w->request->image), request_number(d), &out));
	out.list[0].m.version = view_unheard(d);
	page_perform(d, p, NULL, &out);
}

/* ---- acquire -------------------------------------------------------------------------------- */

/* Granted without a word: nobody else has a part in it yet. */
static void acquire_own(struct coherence_request *r)
{
	bool blank = r->held == PAGE_INVALID || r->held_hollow;

	r->source = blank ? PAGE_FROM_STORE : PAGE_FROM_HELD;
	r->granted = PAGE_EXCLUSIVE;
	r->result = 0;
	r->arrived = r->dirty = r->lost = false;
}

static void acquire_failed(struct coherence_request *r, int result)
{
	r->result = result;
	r->away = 0;
	r->lost = false;
}

/*
 * What the frame says, which nobody else can look at while this request has it latched: who
 * takes the page before the image has been asked for must not be given what lies in the frame.
 */
static void note_hollow(struct cluster *d, struct dpage *p)
{
	const struct coherence_request *r = p->wish->request;
	struct page_hold *h = &p->hold;

	if (!r->held_hollow || h->hold != RIGHT_EXCLUSIVE ||
		(h->phase != PHASE_QUIET && h->phase != PHASE_ARRIVED))
		return;
	h->flags |= HOLD_HOLLOW;
	h->place = place_of(d, r->image);
	h->incarnation = r->held_incarnation;
	h->version = r->held_version;
}

/*
 * Has nobody else a part in a page of this shard? So it is where no record says otherwise. A
 * home that has not heard all does not know; but for what this node has alone, as its frame
 * says. That must not wait to be found out (page_open): the frame can only be looked at when
 * this request, which has it latched, has ended.
 */
static bool own_alone(
	struct cluster *d, const struct dpage *p, const struct coherence_request *r)
{
	if (!coherence_home_here(&d->base, r->pid) || (p && !p->opening))
		return false;
	return r->held == PAGE_EXCLUSIVE || (!(p && p->reported) && view_all_heard(d));
}

static void acquire_begin(struct cluster *d, struct wish *w)
{
	page_id pid = w->request->pid;
	struct dpage *p = page_lock(d, pid);
	bool own = own_alone(d, p, w->request);

	if (own && w->batch->count == 1) {
		acquire_own(w->request);
		w->request = NULL;
		batch_one_done(d, w->batch);
		page_unlock_more(d, pid, p);
		return;
	}
	if (!p)
		p = page_new(d, pid);
	if (!p) {
		acquire_failed(w->request, -ENOMEM);
		w->request = NULL;
		batch_one_done(d, w->batch);
	} else {
		WEFT_ASSERT(!p->wish);
		p->wish = w;
		p->got = GOT_STORE;
		note_hollow(d, p);
		if (own) /* has a record only for who asks while the call waits */
			wish_done(d, p, 0);
		wish_start(d, p);
		batch_asks(d, w->batch, p);
	}
	page_unlock_more(d, pid, p);
}

static void acquire_result(const struct dpage *p, struct coherence_request *r, int result)
{
	static const enum page_source source[] = {
		[GOT_HELD] = PAGE_FROM_HELD,
		[GOT_PEER] = PAGE_FROM_PEER,
		[GOT_STORE] = PAGE_FROM_STORE,
		[GOT_ZEROS] = PAGE_FROM_ZEROS,
	};
	const struct page_hold *h = &p->hold;
	enum page_source from = source[p->got];

	if (!result && h->hold == RIGHT_NONE)
		result = -EAGAIN;
	/* a blank frame that was given this node's own image */
	if (p->wish->filled && p->got == GOT_HELD)
		from = PAGE_FROM_PEER;
	r->result = result;
	r->away = p->wish->away;
	r->lost = result && r->held != PAGE_INVALID && h->hold == RIGHT_NONE;
	if (result)
		return;
	r->source = from;
	r->granted = h->hold == RIGHT_EXCLUSIVE ? PAGE_EXCLUSIVE : PAGE_SHARED;
	r->arrived = h->phase == PHASE_ARRIVED;
	r->dirty = h->flags & HOLD_DIRTY;
	r->found_incarnation = h->incarnation;
	r->version = h->version;
	if (p->got == GOT_PEER || p->got == GOT_HELD)
		r->hollow = false;
}

/* What has come ahead of its use, to be read, goes as soon as others ask for it. */
static void acquired_ahead(
	struct cluster *d, struct dpage *p, struct coherence_request *r)
{
	if (r->result || !r->arrived || p->hold.hold != RIGHT_SHARED ||
		r->source != PAGE_FROM_PEER)
		return;
	page_used(d, p);
	r->arrived = false;
}

static void acquire_end(struct cluster *d, struct wish *w)
{
	page_id pid = w->request->pid;
	struct dpage *p = page_lock(d, pid);

	bool failed = atomic_load_explicit(&d->failed, memory_order_relaxed);

	WEFT_ASSERT(p && p->wish == w && w->done);
	/* refused what it wanted; but meanwhile this node's own image was put into its frame,
	 * with a right to it (rebuild_reinstate) */
	if (w->result == -EHOSTUNREACH && w->filled && p->hold.hold != RIGHT_NONE) {
		w->result = 0;
		p->got = GOT_PEER;
	}
	/* the frame will be another page's, and is still being read; or an image is on its
	 * way into it for who asked meanwhile, or from elsewhere to the store */
	while ((p->ops && (w->result || p->hold.hold == RIGHT_NONE)) || p->persisting ||
		(p->unsettled && !failed) ||
		(!w->result && p->hold.phase == PHASE_GATHERING)) {
		p->refs++;
		page_unlock(d, pid, p);
		rt_sleep_ns(GIVE_POLL_NS);
		WEFT_ASSERT(page_lock(d, pid) == p);
		p->refs--;
	}
	if (p->has_entry || p->at.home != d->o.self)
		acquire_result(p, w->request, w->result);
	else if (w->result)
		acquire_failed(w->request, w->result);
	else
		acquire_own(w->request);
	p->wish = NULL;
	if (w->result && p->hold.hold != RIGHT_NONE && w->request->held == PAGE_INVALID)
		p->no_frame = true; /* granted, but there is no image to be had */
	if (w->request->ahead)
		acquired_ahead(d, p, w->request);
	page_unlock_more(d, pid, p);
}

static void cluster_acquire(
	struct coherence *c, struct coherence_request *requests, unsigned count)
{
	struct cluster *d = cluster_of(c);
	struct wish one, *wishes = count == 1 ? &one : rt_alloc(count * sizeof(*wishes));
	struct batch batch = {.left = count, .count = count, .likely = NODE_NONE};

	if (!wishes) { /* one after the other, then; whoever asks gets the earlier ones */
		for (unsigned i = 0; i < count; i++) {
			acquire_failed(&requests[i], -ENOMEM);
		}
		return;
	}
	for (unsigned i = 0; i < count; i++) {
		wishes[i] = (struct wish){.request = &requests[i], .batch = &batch};
		room_await(d, requests[i].pid, i);
		acquire_begin(d, &wishes[i]);
	}
	batch_wait(d, &batch);
	for (unsigned i = 0; i < count; i++)
		if (wishes[i].request)
			acquire_end(d, &wishes[i]);
	net_flush(d->o.net);
	if (wishes != &one)
		rt_free(wishes);
}

/* Of other homes' pages that is not known here. */
static bool cluster_has_others(struct coherence *c, page_id pid)
{
	struct cluster *d = cluster_of(c);
	struct dpage *p;
	bool others;

	if (!coherence_home_here(c, pid))
		return true;
	p = page_lock(d, pid);
	others = p && (!p->has_entry || p->entry.holders & ~node_bit(d->o.self));
	page_unlock(d, pid, p);
	return others;
}

static void cluster_used(struct coherence *c, page_id pid)
{
	struct cluster *d = cluster_of(c);
	struct dpage *p = page_lock(d, pid);

	if (p)
		page_used(d, p);
	page_unlock(d, pid, p);
}

/* Delivers what was deferred for it, on the task that has dropped it: no other need wake. So
 * each ask that is deferred as EASING has its drop still before it (many-nodes.md, "The driver").
 */
static void cluster_eased(struct coherence *c, page_id pid)
{
	struct cluster *d = cluster_of(c);
	struct giver_list *g = &d->givers;
	struct dpage *p = page_lock(d, pid);

	if (p && p->easing) {
		page_ease_end(d, p);
		p->replay = true;
	}
	page_unlock(d, pid, p);
	/* Whoever polls has counted itself before it looks at the word. */
	atomic_fetch_add(&g->eased, 1);
	if (atomic_load(&g->polling))
		rt_wake(&g->eased, INT32_MAX);
}

/* ---- giving up -------------------------------------------------------------------------------- */

/*
 * The frame is clean: what it has is what is persisted; or zeros of a later incarnation that
 * nobody has changed. What others owe is of one before that, and must not become the page
 * again.
 */
static bool release_own(struct cluster *d, struct dpage *p, uint64_t incarnation)
{
	bool zeros = incarnation > p->entry.stored_incarnation;
	struct page_actions out = {0};

	p->hold.incarnation = zeros ? incarnation : p->entry.stored_incarnation;
	p->hold.version = zeros ? 0 : p->entry.stored_version;
	p->hold.flags &= (uint16_t) ~(HOLD_DIRTY | HOLD_HOLLOW);
	if (holder_evict(&p->hold, &p->at, false, 0, request_number(d), &out))
		return false;
	page_perform(d, p, NULL, &out);
	return p->hold.hold == RIGHT_NONE;
}

/*
 * Its home is away since before this epoch: nobody is sent here for the page, and the home makes its
 * entry from reports when it is back. Else who has much of a node's pages would be left without
 * frames when that node goes.
 */
static bool release_unheard(struct cluster *d, struct dpage *p)
{
	struct page_actions out = {0};

	p->hold.flags &= (uint16_t) ~(HOLD_DIRTY | HOLD_HOLLOW);
	if (holder_forget(&p->hold, &out))
		return false;
	page_perform(d, p, NULL, &out);
	return p->hold.hold == RIGHT_NONE;
}

static bool release_page(
	struct cluster *d, struct dpage *p, uint64_t incarnation, bool spare)
{
	bool unheard = spare && view_without(d, p->at.home);
	struct page_actions out;
	bool released = false;

	out.count = 0;

	if (p->wish || p->deferred || p->ops || p->evicting || p->leaving ||
		p->hold.phase != PHASE_QUIET || p->hold.hold == RIGHT_NONE ||
		p->unsettled || (!view_ready(d, p->at.home) && !unheard) ||
		(p->has_entry && p->entry.mode == HOME_REBUILDING) ||
		(!unheard && home_crowded(d, p->at.pid)))
		return false;
	if (p->hold.hold == RIGHT_SOURCE && (p->hold.flags & HOLD_DIRTY))
		return false; /* it has become so since the frame was looked at */
	p->releasing = true;
	if (unheard) {
		released = release_unheard(d, p);
	} else if (p->hold.hold == RIGHT_SHARED) {
		p->hold.flags &= (uint16_t)~HOLD_DIRTY;
		released = !holder_evict(
			&p->hold, &p->at, false, 0, request_number(d), &out);
		page_perform(d, p, NULL, &out);
	} else if (p->has_entry) {
		released = release_own(d, p, incarnation);
	}
	p->releasing = false;
	return released;
}

static bool cluster_release(struct coherence *c, page_id pid, enum page_mode held,
	uint64_t incarnation, bool spare)
{
	struct cluster *d = cluster_of(c);
	struct dpage *p = page_lock(d, pid);
	bool released = !p || p->opening || release_page(d, p, incarnation, spare);

	page_unlock_more(d, pid, p); /* a DROP is not urgent: it goes with what follows */
	return released;
}

/* It has arrived for somebody who never came for it. */
static void use_unused(struct cluster *d, struct dpage *p)
{
	if (p->hold.phase != PHASE_ARRIVED || rt_now_ns() < p->arrived_ns + UNUSED_NS)
		return;
	DCOUNT(d, forced);
	page_used(d, p);
}

/* Takes the page out of use here, before its home is asked. */
static bool evict_prepare(
	struct cluster *d, page_id pid, struct batch *b, lsn_t *flush_to)
{
	struct dpage *p = page_lock(d, pid);
	struct coherence_image image;
	bool ready = false;

	if (p)
		use_unused(d, p);
	if (p && !p->wish && !p->deferred && !p->ops && !p->evicting && !p->leaving &&
		!p->no_frame && p->hold.phase == PHASE_QUIET &&
		p->hold.hold != RIGHT_NONE && !p->has_entry && !p->unsettled &&
		view_ready(d, p->at.home) &&
		d->base.frames->weaken(d->base.cache, pid, PAGE_INVALID, &image) == 0) {
		struct page_hold *h = &p->hold;

		ready = p->leaving = true;
		p->evicting = b;
		p->asked_evict = false;
		h->place = place_of(d, image.image);
		h->incarnation = image.incarnation;
		h->version = image.version;
		h->flags &= (uint16_t) ~(HOLD_DIRTY | HOLD_HOLLOW);
		h->flags |=
			(image.dirty ? HOLD_DIRTY : 0) | (image.hollow ? HOLD_HOLLOW : 0);
		*flush_to = MAX(*flush_to, image.flush_to);
		b->left++;
	}
	page_unlock(d, pid, p);
	return ready;
}

void evict_answered(struct cluster *d, struct dpage *p, bool accepted)
{
	struct batch *b = p->evicting;

	p->evicting = NULL;
	if (!accepted && p->leaving && p->hold.hold != RIGHT_NONE) {
		enum page_mode mode =
			p->hold.hold == RIGHT_EXCLUSIVE ? PAGE_EXCLUSIVE : PAGE_SHARED;

		p->leaving = false;
		d->base.frames->restore(d->base.cache, p->at.pid, mode);
	}
	if (b)
		batch_one_done(d, b);
}

/* The log is durable, or not (`failed`): asks the home. */
static void evict_ask(struct cluster *d, page_id pid, struct batch *b, bool failed)
{
	struct dpage *p = page_lock(d, pid);
	struct page_actions out = {0};

	/* meanwhile it may have been given to who asked for it */
	if (!p || p->evicting != b || p->asked_evict) {
		page_unlock_more(d, pid, p);
		return;
	}
	p->asked_evict = true;
	failed |= !view_ready(d, p->at.home);
	if (failed || p->hold.phase != PHASE_QUIET || p->hold.hold == RIGHT_NONE) {
		evict_answered(d, p, false);
		p->replay = true;
	} else if (!holder_evict(&p->hold, &p->at, false, p->hold.place,
			   request_number(d), &out)) {
		page_perform(d, p, NULL, &out);
		if (p->hold.phase == PHASE_QUIET) /* a sharer is not answered */
			evict_answered(d, p, true);
	}
	page_unlock_more(d, pid, p);
}

static void cluster_evict(struct coherence *c, const page_id *pids, unsigned count)
{
	struct cluster *d = cluster_of(c);
	struct batch batch = {.left = 0, .count = count, .likely = NODE_NONE};
	uint64_t taken[4] = {0}; /* a map; the cache gives 128 at the most */
	lsn_t flush_to = 0;
	int e;

	WEFT_ASSERT(count <= 256);
	for (unsigned i = 0; i < count; i++)
		if (evict_prepare(d, pids[i], &batch, &flush_to))
			taken[i / 64] |= 1ull << i % 64;
	e = flush_to ? log_flush(d->o.log, flush_to) : 0;
	for (unsigned i = 0; i < count; i++)
		room_await(d, pids[i], i);
	for (unsigned i = 0; i < count; i++)
		if (taken[i / 64] & 1ull << i % 64)
			evict_ask(d, pids[i], &batch, e);
	batch_wait(d, &batch);
	for (unsigned i = 0; i < count; i++) /* who woke us has let go of the batch */
		page_unlock(d, pids[i], page_lock(d, pids[i]));
}

/*
 * What this node has alone and has not changed for long it shares from now on: as it is persisted. If
 * this node is lost then, the others have it from its home (many-nodes.md, "Pages at rest").
 */
static void page_downgrade(struct cluster *d, struct dpage *p)
{
	struct coherence_image image;
	struct page_actions out;

	out.count = 0;
	if (p->wish || p->deferred || p->ops || p->evicting || p->leaving ||
		p->no_frame || p->has_entry || p->unsettled || p->at.home == d->o.self ||
		p->hold.phase != PHASE_QUIET || p->hold.hold != RIGHT_EXCLUSIVE ||
		!view_ready(d, p->at.home) || home_crowded(d, p->at.pid))
		return;
	if (d->base.frames->weaken(d->base.cache, p->at.pid, PAGE_SHARED, &image))
		return;
	page_take_image(d, p, &image);
	if (!holder_downgrade(&p->hold, &p->at, request_number(d), &out))
		DCOUNT(d, downgrades);
	else /* changed meanwhile; where its frame is latched that says less than there is:
		who wants to change it asks here */
		(void)d->base.frames->strengthen(d->base.cache, p->at.pid);
	page_perform(d, p, NULL, &out);
}

static void cluster_downgrade(struct coherence *c, const page_id *pids, unsigned count)
{
	struct cluster *d = cluster_of(c);

	for (unsigned i = 0; i < count; i++) {
		struct dpage *p = page_lock(d, pids[i]);

		if (p)
			page_downgrade(d, p);
		page_unlock_more(d, pids[i], p);
	}
	net_flush(d->o.net);
}

/* ---- images for the home ------------------------------------------------------------------- */

void ships_persisted(struct cluster *d, struct dpage *p, uint64_t incarnation,
	uint64_t version, int result)
{
	struct ship_wait **at = &p->ships;

	while (*at) {
		struct ship_wait *w = *at;

		if (!result && page_order(w->ship->incarnation, w->ship->version,
				       incarnation, version) > 0) {
			at = &w->next;
			continue;
		}
		*at = w->next;
		w->ship->result = result;
		batch_one_done(d, w->batch);
	}
}

static int ship_send(struct cluster *d, struct dpage *p, struct ship_wait *w)
{
	const struct coherence_ship *s = w->ship;
	struct page_message m = {
		.type = PAGE_SHIP,
		.sender = d->o.self,
		.request = request_number(d),
		.pid = s->pid,
		.incarnation = s->incarnation,
		.version = s->version,
		.place = place_of(d, s->image),
		.flags = PAGE_DIRTY,
		.source = NODE_NONE,
	};
	int e = 0;

	if (atomic_load_explicit(&d->failed, memory_order_relaxed))
		return -EIO;
	/* it is away, or has to rebuild first, for which it may need this very image; or nobody here
	 * serves any more */
	if (!view_ready(d, p->at.home) ||
		atomic_load_explicit(&d->stopping, memory_order_acquire))
		return -EHOSTDOWN;
	if (p->at.home == d->o.self && !p->has_entry && !p->opening)
		e = page_open(d, p, NULL); /* it knows what is persisted */
	if (e)
		return e;
	if (home_newest(p, s->incarnation, s->version))
		m.epoch = p->hold.epoch;
	else
		m.flags |= PAGE_OWED;
	w->next = p->ships;
	p->ships = w;
	if (p->at.home == d->o.self)
		page_deliver(d, p, &m);
	else
		wire_send(d, p->at.home, &m);
	return 0;
}

static void ship_begin(struct cluster *d, struct ship_wait *w)
{
	page_id pid = w->ship->pid;
	struct dpage *p = page_lock(d, pid);
	int e = -ENOMEM;

	if (!p)
		p = page_new(d, pid);
	if (p)
		e = ship_send(d, p, w);
	if (e) {
		w->ship->result = e;
		batch_one_done(d, w->batch);
	}
	page_unlock_more(d, pid, p);
}

static void cluster_ship(
	struct coherence *c, struct coherence_ship *ships, unsigned count)
{
	struct cluster *d = cluster_of(c);
	struct ship_wait *waits = rt_alloc(count * sizeof(*waits));
	struct batch batch = {.left = count, .count = count, .likely = NODE_NONE};

	for (unsigned i = 0; !waits && i < count; i++)
		ships[i].result = -ENOMEM;
	if (!waits)
		return;
	for (unsigned i = 0; i < count; i++) {
		waits[i] = (struct ship_wait){.ship = &ships[i], .batch = &batch};
		room_await(d, ships[i].pid, i);
		ship_begin(d, &waits[i]);
	}
	batch_wait(d, &batch);
	for (unsigned i = 0; i < count; i++) /* who woke us has let go of the batch */
		page_unlock(d, ships[i].pid, page_lock(d, ships[i].pid));
	rt_free(waits);
}

static void cluster_persisted(struct coherence *c, page_id pid, uint64_t incarnation,
	uint64_t version, bool more)
{
	struct cluster *d = cluster_of(c);
	struct dpage *p = page_lock(d, pid);
	struct page_actions out = {0};
	struct page_message m = {
		.type = PAGE_SHIP,
		.sender = d->o.self,
		.pid = pid,
		.incarnation = incarnation,
		.version = version,
	};

	if (p && p->opening &&
		page_order(p->stored_incarnation, p->stored_version, incarnation,
			version) < 0) {
		p->stored_incarnation = incarnation;
		p->stored_version = version;
	}
	if (p && p->has_entry && !p->persisting) {
		if (home_newest(p, incarnation, version))
			m.epoch = p->hold.epoch;
		else
			m.flags |= PAGE_OWED;
		WEFT_ASSERT(!home_persisted(&p->entry, &p->at, &m, &out));
		page_note_may(p);
		page_perform(d, p, &m, &out);
	}
	page_unlock_more(d, pid, p);
	if (!more)
		net_flush(d->o.net);
}

static unsigned cluster_home(const struct coherence *c, page_id pid)
{
	const struct cluster *d = (const struct cluster *)c;

	return d->o.home(d->o.owner, pid_shard(pid));
}

static void cluster_close(struct coherence *c)
{
	struct cluster *d = cluster_of(c);

	page_table_close(d);
	rt_free(d);
}

const struct coherence_ops cluster_ops = {
	.acquire = cluster_acquire,
	.has_others = cluster_has_others,
	.used = cluster_used,
	.release = cluster_release,
	.evict = cluster_evict,
	.downgrade = cluster_downgrade,
	.ship = cluster_ship,
	.persisted = cluster_persisted,
	.eased = cluster_eased,
	.memory = cluster_memory,
	.home = cluster_home,
	.close = cluster_close,
};
