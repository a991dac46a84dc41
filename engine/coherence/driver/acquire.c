/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The requests of the cache to the driver (coherence.h): for pages, for leave to give them up, and
 * for persisting images. The requests of a call go out together, and it waits once for all of them.
 * Evictions and shipments do the same.
 *
 * A page of this shard without a record is granted at once: no other node has a part in it.
 */
#include "engine/coherence/driver/driver_internal.h"

void batch_one_done(struct page_driver *d, struct batch *b)
{
	if (atomic_fetch_sub_explicit(&b->left, 1, memory_order_release) == 1)
		net_wake(d->o.net, &b->left, INT32_MAX);
}

/* Notes the node whose answer is likely to end the wait: this node asks it now. */
static void batch_asks(struct page_driver *d, struct batch *b, const struct page_record *p)
{
	if (p->at.home != d->o.self)
		b->likely = p->at.home;
	else if (p->hold.phase == PHASE_GATHERING && p->hold.need)
		b->likely = (unsigned)__builtin_ctzll(p->hold.need);
}

static void batch_wait(struct page_driver *d, struct batch *b)
{
	struct net_peer *likely = NULL;
	uint32_t left;

	net_flush(d->o.net);
	if (b->likely != NODE_NONE)
		likely = net_peer_find(d->o.net, (uint16_t)b->likely);
	while ((left = atomic_load_explicit(&b->left, memory_order_acquire)) != 0)
		net_wait(d->o.net, likely, &b->left, left, RT_FOREVER);
}

/* The link to the page's home, if its queue has no room for requests. Answers do not count. */
static struct net_peer *home_crowded(struct page_driver *d, page_id pid)
{
	unsigned home = d->o.home(d->o.owner, pid_shard(pid));
	struct net_peer *peer = NULL;

	if (home != d->o.self && home < PAGE_NODES_MAX)
		peer = net_peer_find(d->o.net, (uint16_t)home);
	return peer && !net_has_room(peer) ? peer : NULL;
}

/* Waits for room for the i-th of several pages; one look is for some. */
static void room_await(struct page_driver *d, page_id pid, unsigned i)
{
	struct net_peer *peer = NULL;

	if (i % ROOM_LOOK_EVERY == 0)
		peer = home_crowded(d, pid);
	if (peer)
		(void)net_wait_room(peer, RT_FOREVER); /* without a link: it is void */
}

static uint32_t request_number(struct page_driver *d)
{
	return atomic_fetch_add_explicit(&d->next_request, 1, memory_order_relaxed);
}

/* ---- pending ------------------------------------------------------------------------------- */

void pending_done(struct page_driver *d, struct page_record *p, int result)
{
	struct pending_request *w = p->pending;

	if (!w || w->done)
		return;
	w->done = true;
	w->result = result;
	p->arrived_ns = rt_now_ns();
	batch_one_done(d, w->batch);
}

/* The right is here. The state of the frame does not matter. */
static void pending_of_owner(struct page_driver *d, struct page_record *p, struct page_actions *out)
{
	struct coherence_request *r = p->pending->request;
	bool blank = r->held_hollow || r->held == PAGE_INVALID;

	if (!blank && r->held != PAGE_EXCLUSIVE && p->deferred)
		return; /* the frame was revoked for one of those: first that */
	p->pending->asked = true;
	if (!blank) {
		p->got = GOT_HELD; /* the cache makes it another incarnation's */
		pending_done(d, p, 0);
	} else if (p->at.home == d->o.self) {
		p->got = GOT_STORE;
		pending_done(d, p, 0);
	} else {
		(void)requester_fetch(
			&p->hold, &p->at, place_of(d, r->image), request_number(d), out);
	}
}

void page_used(struct page_driver *d, struct page_record *p)
{
	struct page_actions out;

	out.count = 0;
	if (!requester_used(&p->hold, &p->at, &out))
		page_perform(d, p, NULL, &out);
}

void pending_start(struct page_driver *d, struct page_record *p)
{
	struct pending_request *w = p->pending;
	struct page_actions out;

	if (!w || w->asked || w->done || record_persists(p) || p->unsettled)
		return;
	out.count = 0;
	if (atomic_load_explicit(&d->failed, memory_order_relaxed)) {
		pending_done(d, p, -EIO);
		return;
	}
	if (!view_ready(d, p->at.home)) {
		/* away: other waiters wait without the frame. Otherwise they wait for this
		 * request. */
		if (p->at.home != d->o.self && !view_connected(d, p->at.home)) {
			w->away = node_bit(p->at.home);
			pending_done(d, p, -EHOSTUNREACH);
		}
		return;
	}
	if (p->at.home == d->o.self && !p->has_entry) {
		if (p->work != WORK_OPENING && page_open(d, p, NULL))
			pending_done(d, p, -ENOMEM);
		return;
	}
	/* it arrived for another operation here, which has had it by now */
	page_used(d, p);
	if (p->hold.phase != PHASE_QUIET)
		return;
	if (w->filled && w->request->wanted == PAGE_SHARED) {
		w->asked = true;
		p->got = GOT_PEER;
		pending_done(d, p, 0);
		return;
	}
	if (p->hold.hold == RIGHT_SOURCE && w->request->held == PAGE_INVALID &&
		!w->filled) {
		pending_done(d, p, -EIO);
		return;
	}
	if (p->hold.hold == RIGHT_SOURCE && w->request->held_hollow &&
		w->request->wanted == PAGE_SHARED) {
		/* the image went into this frame for a node that has asked meanwhile */
		w->asked = true;
		if (p->got != GOT_ZEROS)
			p->got = GOT_PEER;
		pending_done(d, p, 0);
		return;
	}
	if (p->hold.hold == RIGHT_EXCLUSIVE) {
		pending_of_owner(d, p, &out);
		page_perform(d, p, NULL, &out);
		return;
	}
	if (p->hold.hold == RIGHT_SHARED && w->request->wanted == PAGE_SHARED) {
		/* its image was lost: given up, and asked for again */
		if (!holder_evict(&p->hold, &p->at, 0, request_number(d), &out))
			page_perform(d, p, NULL, &out);
		out.count = 0;
	}
	w->asked = true;
	WEFT_ASSERT(!requester_want(&p->hold, &p->at, w->request->wanted,
		w->request->incarnation, w->request->alone ? PAGE_ALONE : 0,
		place_of(d, w->request->image), view_unconnected(d), request_number(d), &out));
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
 * Notes that the frame is hollow. This request has the frame latched, so no other task sees it.
 * Another node may take the page before the image has been asked for. It must not be given the
 * bytes in the frame.
 */
static void note_hollow(struct page_driver *d, struct page_record *p)
{
	const struct coherence_request *r = p->pending->request;
	const struct page_hold *h = &p->hold;

	if (!r->held_hollow || h->hold != RIGHT_EXCLUSIVE ||
		(h->phase != PHASE_QUIET && h->phase != PHASE_ARRIVED))
		return;
	holder_observe_hollow(
		&p->hold, place_of(d, r->image), r->held_incarnation, r->held_version);
}

/*
 * Returns true if no other node has a part in a page of this shard. If there is no record, no other
 * node has one. A home to which not all nodes have reported does not know, except for pages that
 * its own frame says are exclusive. That must not wait for page_open: the frame can only be looked
 * at when this request, which has it latched, has ended.
 */
static bool own_alone(
	struct page_driver *d, const struct page_record *p, const struct coherence_request *r)
{
	if (!coherence_home_here(&d->base, r->pid) || (p && p->work != WORK_OPENING))
		return false;
	return r->held == PAGE_EXCLUSIVE || (!(p && p->reported) && view_all_reported(d));
}

static void acquire_begin(struct page_driver *d, struct pending_request *w)
{
	page_id pid = w->request->pid;
	struct page_record *p = page_lock(d, pid);
	bool own = own_alone(d, p, w->request);

	taken_back(d, pid, w->request->wanted == PAGE_EXCLUSIVE);
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
		WEFT_ASSERT(!p->pending);
		p->pending = w;
		p->got = GOT_STORE;
		note_hollow(d, p);
		if (own) /* has a record only for nodes that ask while the call waits */
			pending_done(d, p, 0);
		pending_start(d, p);
		batch_asks(d, w->batch, p);
	}
	page_unlock_more(d, pid, p);
}

static void acquire_result(const struct page_record *p, struct coherence_request *r, int result)
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
	/* A blank frame that was given this node's own image. Or the image of a hollow one came
	 * while this request waited: another node had asked for a copy. */
	if ((p->pending->filled || r->held_hollow) && p->got == GOT_HELD)
		from = PAGE_FROM_PEER;
	r->result = result;
	r->away = p->pending->away;
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

/* A page that was fetched ahead, to be read, goes as soon as other nodes ask for it. */
static void acquired_ahead(
	struct page_driver *d, struct page_record *p, struct coherence_request *r)
{
	if (r->result || !r->arrived || p->hold.hold != RIGHT_SHARED ||
		r->source != PAGE_FROM_PEER)
		return;
	page_used(d, p);
	r->arrived = false;
}

static void acquire_end(struct page_driver *d, struct pending_request *w)
{
	page_id pid = w->request->pid;
	struct page_record *p = page_lock(d, pid);

	bool failed = atomic_load_explicit(&d->failed, memory_order_relaxed);

	WEFT_ASSERT(p && p->pending == w && w->done);
	/* The home refused the request. Meanwhile this node's own image was put into its frame,
	 * with a right to it (rebuild_reinstate). */
	if (w->result == -EHOSTUNREACH && w->filled && p->hold.hold != RIGHT_NONE) {
		w->result = 0;
		p->got = GOT_PEER;
	}
	/* The frame will be another page's, and is still being read. Or an image is on its way into
	 * it for a node that has asked meanwhile, or from another node to the store. */
	while ((p->ops && (w->result || p->hold.hold == RIGHT_NONE)) ||
		record_persists(p) || (p->unsettled && !failed) ||
		(!w->result && p->hold.phase == PHASE_GATHERING)) {
		p->refs++;
		page_unlock(d, pid, p);
		rt_sleep_ns(REVOKE_POLL_NS);
		page_relock(d, p);
		p->refs--;
	}
	if (p->has_entry || p->at.home != d->o.self)
		acquire_result(p, w->request, w->result);
	else if (w->result)
		acquire_failed(w->request, w->result);
	else
		acquire_own(w->request);
	p->pending = NULL;
	if (w->result && p->hold.hold != RIGHT_NONE && w->request->held == PAGE_INVALID)
		record_set(p, RECORD_LOST); /* granted, but there is no image to be had */
	if (w->request->ahead)
		acquired_ahead(d, p, w->request);
	page_unlock_more(d, pid, p);
}

static void driver_acquire(
	struct coherence *c, struct coherence_request *requests, unsigned count)
{
	struct page_driver *d = driver_of(c);
	struct pending_request one,
		*pending = count == 1 ? &one : rt_alloc(count * sizeof(*pending));
	struct batch batch = {.left = count, .count = count, .likely = NODE_NONE};

	if (!pending) { /* one after the other, then; other nodes that ask get the earlier ones */
		for (unsigned i = 0; i < count; i++) {
			acquire_failed(&requests[i], -ENOMEM);
		}
		return;
	}
	for (unsigned i = 0; i < count; i++) {
		pending[i] = (struct pending_request){.request = &requests[i], .batch = &batch};
		room_await(d, requests[i].pid, i);
		acquire_begin(d, &pending[i]);
	}
	batch_wait(d, &batch);
	for (unsigned i = 0; i < count; i++)
		if (pending[i].request)
			acquire_end(d, &pending[i]);
	net_flush(d->o.net);
	if (pending != &one)
		rt_free(pending);
}

/* Of other homes' pages that is not known here. */
static bool driver_has_others(struct coherence *c, page_id pid)
{
	struct page_driver *d = driver_of(c);
	struct page_record *p;
	bool others;

	if (!coherence_home_here(c, pid))
		return true;
	p = page_lock(d, pid);
	others = p && (!p->has_entry || p->entry.holders & ~node_bit(d->o.self));
	page_unlock(d, pid, p);
	return others;
}

static void driver_used(struct coherence *c, page_id pid)
{
	struct page_driver *d = driver_of(c);
	struct page_record *p = page_lock(d, pid);

	if (p)
		page_used(d, p);
	page_unlock(d, pid, p);
}

/*
 * Delivers the messages that were deferred for the page, on the task that has dropped it from the
 * kernel. So every message that awaits an invalidation still has one ahead of it
 * (docs/nodes/driver.md). Never waits.
 */
static void driver_kernel_invalidated(struct coherence *c, page_id pid)
{
	struct page_driver *d = driver_of(c);
	struct page_record *p = page_lock(d, pid);

	if (p && p->awaiting_invalidation) {
		page_invalidation_end(d, p);
		p->replay = true;
	}
	page_unlock(d, pid, p);
	revokers_retry(d);
}

/* ---- giving up --------------------------------------------------------------------------- */

/* Returns true if this node holds the page and nothing is under way with it. That includes
 * requests, deferred messages, operations on its frame, evictions, and changes of the epoch. */
static bool record_is_idle(const struct page_record *p)
{
	return !p->pending && !p->deferred && !p->ops && !p->evicting &&
	       !(p->frame & RECORD_LEAVING) && !p->unsettled &&
	       p->hold.phase == PHASE_QUIET && p->hold.hold != RIGHT_NONE;
}

/*
 * The frame is clean. Its image is the persisted one, or zeros of a later incarnation that nobody
 * has changed. Images that other nodes owe are of an earlier incarnation then. They must not become
 * the page again.
 */
static bool release_own(struct page_driver *d, struct page_record *p, uint64_t incarnation)
{
	bool zeros = incarnation > p->entry.stored_incarnation;
	struct page_actions out = {0};
	struct frame_image has = {.place = p->hold.place,
		.incarnation = zeros ? incarnation : p->entry.stored_incarnation,
		.version = zeros ? 0 : p->entry.stored_version};

	holder_observe(&p->hold, &has);
	if (holder_evict(&p->hold, &p->at, 0, request_number(d), &out))
		return false;
	page_perform(d, p, NULL, &out);
	return p->hold.hold == RIGHT_NONE;
}

/*
 * The page's home has been away since before this epoch. No node is sent here for the page, and the
 * home makes its entry from reports when it is back. Without this, a node with many pages of that
 * home would be left without frames.
 */
static bool release_unasked(struct page_driver *d, struct page_record *p)
{
	struct page_actions out = {0};

	holder_observe_clean(&p->hold);
	if (holder_forget(&p->hold, &out))
		return false;
	page_perform(d, p, NULL, &out);
	return p->hold.hold == RIGHT_NONE;
}

/*
 * A link was lost, and the epoch that tells what was lost with it has not begun. A shared copy may
 * be the newest image that is left.
 */
static bool may_be_last_copy(const struct page_driver *d, const struct page_record *p)
{
	return p->hold.hold == RIGHT_SHARED && view_epoch_due(d);
}

static bool release_page(
	struct page_driver *d, struct page_record *p, uint64_t incarnation, bool spare)
{
	bool unasked = spare && !view_in_epoch(d, p->at.home);
	struct page_actions out;
	bool released = false;

	out.count = 0;

	if (!record_is_idle(p) || (!view_ready(d, p->at.home) && !unasked) ||
		(p->has_entry && p->entry.mode == HOME_REBUILDING) ||
		(!unasked && home_crowded(d, p->at.pid)) ||
		(!spare && may_be_last_copy(d, p)))
		return false;
	if (p->hold.hold == RIGHT_SOURCE && (p->hold.flags & HOLD_DIRTY))
		return false; /* it has become so since the frame was looked at */
	record_set(p, RECORD_RELEASING);
	if (unasked) {
		released = release_unasked(d, p);
	} else if (p->hold.hold == RIGHT_SHARED) {
		holder_observe_clean(&p->hold);
		released = !holder_evict(
			&p->hold, &p->at, 0, request_number(d), &out);
		page_perform(d, p, NULL, &out);
	} else if (p->has_entry) {
		released = release_own(d, p, incarnation);
	}
	record_clear(p, RECORD_RELEASING);
	return released;
}

static bool driver_release(struct coherence *c, page_id pid, enum page_mode held,
	uint64_t incarnation, bool spare)
{
	struct page_driver *d = driver_of(c);
	struct page_record *p = page_lock(d, pid);
	bool released =
		!p || p->work == WORK_OPENING || release_page(d, p, incarnation, spare);

	page_unlock_more(d, pid, p); /* a DROP is not urgent: it goes with the next messages */
	return released;
}

/* The page has arrived for a task that never came for it. */
static void use_unused(struct page_driver *d, struct page_record *p)
{
	if (p->hold.phase != PHASE_ARRIVED || rt_now_ns() < p->arrived_ns + UNUSED_NS)
		return;
	DCOUNT(d, forced);
	page_used(d, p);
}

/* Takes the page out of use here, before its home is asked. */
static bool evict_prepare(
	struct page_driver *d, page_id pid, struct batch *b, lsn_t *flush_to)
{
	struct page_record *p = page_lock(d, pid);
	struct coherence_image image;
	bool ready = false;

	if (p)
		use_unused(d, p);
	if (p && record_is_idle(p) && !(p->frame & RECORD_LOST) && !p->has_entry &&
		view_ready(d, p->at.home) && !may_be_last_copy(d, p) &&
		d->base.frames->revoke(d->base.cache, pid, PAGE_INVALID, &image) == 0) {
		ready = true;
		record_set(p, RECORD_LEAVING);
		p->evicting = b;
		p->asked_evict = false;
		page_take_image(d, p, &image);
		*flush_to = MAX(*flush_to, image.flush_to);
		b->left++;
	}
	page_unlock(d, pid, p);
	return ready;
}

void evict_answered(struct page_driver *d, struct page_record *p, bool accepted)
{
	struct batch *b = p->evicting;

	p->evicting = NULL;
	if (!accepted && (p->frame & RECORD_LEAVING) && p->hold.hold != RIGHT_NONE) {
		enum page_mode mode =
			p->hold.hold == RIGHT_EXCLUSIVE ? PAGE_EXCLUSIVE : PAGE_SHARED;

		record_clear(p, RECORD_LEAVING);
		d->base.frames->restore(d->base.cache, p->at.pid, mode);
	}
	if (b)
		batch_one_done(d, b);
}

/* The log is durable, or not (`failed`): asks the home. */
static void evict_ask(struct page_driver *d, page_id pid, struct batch *b, bool failed)
{
	struct page_record *p = page_lock(d, pid);
	struct page_actions out = {0};

	/* meanwhile a node that asked for it may have got it */
	if (!p || p->evicting != b || p->asked_evict) {
		page_unlock_more(d, pid, p);
		return;
	}
	p->asked_evict = true;
	failed |= !view_ready(d, p->at.home);
	if (failed || p->hold.phase != PHASE_QUIET || p->hold.hold == RIGHT_NONE) {
		evict_answered(d, p, false);
		p->replay = true;
	} else if (!holder_evict(&p->hold, &p->at, p->hold.place,
			   request_number(d), &out)) {
		page_perform(d, p, NULL, &out);
		if (p->hold.phase == PHASE_QUIET) /* a sharer is not answered */
			evict_answered(d, p, true);
	}
	page_unlock_more(d, pid, p);
}

void page_drop_freed(struct page_driver *d, struct page_record *p, uint64_t incarnation)
{
	struct page_actions out = {0};
	struct coherence_image image;

	if (!record_is_idle(p) || (p->frame & RECORD_LOST) || p->hold.hold != RIGHT_SHARED ||
		p->hold.incarnation > incarnation || !view_ready(d, p->at.home) ||
		may_be_last_copy(d, p) ||
		d->base.frames->revoke(d->base.cache, p->at.pid, PAGE_INVALID, &image))
		return;
	record_set(p, RECORD_LEAVING);
	page_take_image(d, p, &image);
	WEFT_ASSERT(!holder_evict(&p->hold, &p->at, 0, request_number(d), &out));
	page_perform(d, p, NULL, &out);
}

static void driver_evict(struct coherence *c, const page_id *pids, unsigned count)
{
	struct page_driver *d = driver_of(c);
	struct batch batch = {.left = 0, .count = count, .likely = NODE_NONE};
	uint64_t taken[4] = {0}; /* a map; the cache gives 128 at the most */
	lsn_t flush_to = 0;
	int rc;

	WEFT_ASSERT(count <= 256);
	for (unsigned i = 0; i < count; i++)
		if (evict_prepare(d, pids[i], &batch, &flush_to))
			taken[i / 64] |= 1ull << i % 64;
	rc = flush_to ? log_flush(d->o.log, flush_to) : 0;
	for (unsigned i = 0; i < count; i++)
		room_await(d, pids[i], i);
	for (unsigned i = 0; i < count; i++)
		if (taken[i / 64] & 1ull << i % 64)
			evict_ask(d, pids[i], &batch, rc);
	batch_wait(d, &batch);
	for (unsigned i = 0; i < count; i++) /* the task that woke this one may use the batch */
		page_await_unlock(d, pids[i]);
}

/* Downgrades an idle exclusive page to shared, as it is persisted. If this node is lost then, the
 * other nodes have the page from its home (nodes/driver.md, "Idle downgrade"). */
static void page_downgrade(struct page_driver *d, struct page_record *p)
{
	struct coherence_image image;
	struct page_actions out;

	out.count = 0;
	if (!record_is_idle(p) || (p->frame & RECORD_LOST) || p->has_entry ||
		p->at.home == d->o.self || p->hold.hold != RIGHT_EXCLUSIVE ||
		!view_ready(d, p->at.home) || home_crowded(d, p->at.pid))
		return;
	if (d->base.frames->revoke(d->base.cache, p->at.pid, PAGE_SHARED, &image))
		return;
	page_take_image(d, p, &image);
	if (!holder_downgrade(&p->hold, &p->at, request_number(d), &out))
		DCOUNT(d, downgrades);
	else /* Changed meanwhile. If its frame is latched, the hold says less than there is: a
	      * task that wants to change it asks here. */
		(void)d->base.frames->strengthen(d->base.cache, p->at.pid);
	page_perform(d, p, NULL, &out);
}

static void driver_downgrade(struct coherence *c, const page_id *pids, unsigned count)
{
	struct page_driver *d = driver_of(c);

	for (unsigned i = 0; i < count; i++) {
		struct page_record *p = page_lock(d, pids[i]);

		if (p)
			page_downgrade(d, p);
		page_unlock_more(d, pids[i], p);
	}
	net_flush(d->o.net);
}

/* ---- images for the home ------------------------------------------------------------------- */

void ships_persisted(struct page_driver *d, struct page_record *p, uint64_t incarnation,
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

static int ship_send(struct page_driver *d, struct page_record *p, struct ship_wait *w)
{
	const struct coherence_ship *s = w->ship;
	struct page_actions out = {0};
	int rc = 0;

	if (atomic_load_explicit(&d->failed, memory_order_relaxed))
		return -EIO;
	/* it is away, or has to rebuild first, for which it may need this very image; or nobody
	 * here serves any more */
	if (!view_ready(d, p->at.home) ||
		atomic_load_explicit(&d->stopping, memory_order_acquire))
		return -EHOSTDOWN;
	if (p->at.home == d->o.self && !p->has_entry && p->work != WORK_OPENING)
		rc = page_open(d, p, NULL); /* it knows the persisted version */
	if (rc)
		return rc;
	holder_ship(&p->hold, &p->at, s->incarnation, s->version, place_of(d, s->image),
		request_number(d), &out);
	w->next = p->ships;
	p->ships = w;
	page_perform(d, p, NULL, &out);
	return 0;
}

static void ship_begin(struct page_driver *d, struct ship_wait *w)
{
	page_id pid = w->ship->pid;
	struct page_record *p = page_lock(d, pid);
	int rc = -ENOMEM;

	if (!p)
		p = page_new(d, pid);
	if (p)
		rc = ship_send(d, p, w);
	if (rc) {
		w->ship->result = rc;
		batch_one_done(d, w->batch);
	}
	page_unlock_more(d, pid, p);
}

static void driver_ship(
	struct coherence *c, struct coherence_ship *ships, unsigned count)
{
	struct page_driver *d = driver_of(c);
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
	for (unsigned i = 0; i < count; i++) /* the task that woke this one may use the batch */
		page_await_unlock(d, ships[i].pid);
	rt_free(waits);
}

static void driver_persisted(struct coherence *c, page_id pid, uint64_t incarnation,
	uint64_t version, bool more)
{
	struct page_driver *d = driver_of(c);
	struct page_record *p = page_lock(d, pid);
	struct page_actions out = {0};

	if (p && p->work == WORK_OPENING &&
		page_order(p->stored_incarnation, p->stored_version, incarnation,
			version) < 0) {
		p->stored_incarnation = incarnation;
		p->stored_version = version;
	}
	if (p && p->has_entry && !record_persists(p)) {
		home_wrote(&p->entry, &p->hold, &p->at, incarnation, version, &out);
		page_note_may(p);
		page_perform(d, p, NULL, &out);
	}
	page_unlock_more(d, pid, p);
	if (!more)
		net_flush(d->o.net);
}

static unsigned driver_home(const struct coherence *c, page_id pid)
{
	const struct page_driver *d = (const struct page_driver *)c;

	return d->o.home(d->o.owner, pid_shard(pid));
}

static void driver_close(struct coherence *c)
{
	struct page_driver *d = driver_of(c);

	home_images_close(d);
	page_table_close(d);
	rt_free(d);
}

const struct coherence_ops driver_ops = {
	.acquire = driver_acquire,
	.has_others = driver_has_others,
	.used = driver_used,
	.freed = driver_freed,
	.release = driver_release,
	.evict = driver_evict,
	.downgrade = driver_downgrade,
	.ship = driver_ship,
	.persisted = driver_persisted,
	.kernel_invalidated = driver_kernel_invalidated,
	.memory = driver_memory,
	.home = driver_home,
	.close = driver_close,
	.peers = &driver_peers_ops,
};
