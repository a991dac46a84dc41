/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Events of a page. Messages are handed to the protocol's functions, and actions are performed.
 * Before a right or an image is promised, the frame is made ready.
 *
 * page_takes() returns the right that an event would leave this node's frame. The frame is then
 * revoked to it, and reports its present image (the local hot path changes pages without the
 * driver). The log must be durable as far as the image needs (invariant 3). If this is not possible
 * at once, page_decline() delivers the event, and a revoker tries again.
 *
 * A frame that is latched by a request of this node (a pending request) is not revoked. The image
 * of an upgrade does not change, and is copied if it must be owed. A page may be granted to a call
 * that still waits for other pages. It is given away unused after a short time, so that two such
 * calls never wait for each other. So is a page that was refused to such a call.
 */
#include "engine/coherence/driver/driver_internal.h"

/* ---- what is taken from the frame --------------------------------------------------------- */

struct frame_image page_frame_image(
	const struct page_driver *d, const struct coherence_image *image)
{
	return (struct frame_image){.place = place_of(d, image->image),
		.incarnation = image->incarnation,
		.version = image->version,
		.dirty = image->dirty,
		.hollow = image->hollow};
}

void page_take_image(
	struct page_driver *d, struct page_record *p, const struct coherence_image *image)
{
	struct frame_image has = page_frame_image(d, image);

	holder_observe(&p->hold, &has);
}

/* Returns true if the frame of a refused request has the image of this node's hold. The request
 * has not changed it. */
static bool refused_has_image(const struct pending_request *w)
{
	return w->filled || (w->request->held == PAGE_SHARED && !w->request->held_hollow);
}

/*
 * The page was granted to a call that still waits for others, and not used. Or it was refused to
 * that call, and the node still has what it had before. The call does not keep that from other
 * nodes.
 */
static bool unused_ready(struct page_driver *d, struct page_record *p, enum page_mode to)
{
	const struct pending_request *w = p->pending;

	if (!atomic_load_explicit(&w->batch->left, memory_order_relaxed))
		return false; /* the call is about to return */
	if (w->result && (to != PAGE_INVALID || !refused_has_image(w)))
		return false;
	/* an upgrade's image may have been changed here before */
	if (to == PAGE_INVALID && (p->hold.flags & HOLD_DIRTY) &&
		d->base.frames->owe_copy(d->base.cache, p->at.pid))
		return false;
	DCOUNT(d, given_back);
	if (w->result) /* no image was granted */
		return true;
	if (p->got == GOT_STORE) /* it is to be fetched first */
		holder_observe_hollow(&p->hold, p->hold.place, p->hold.incarnation,
			p->hold.version);
	if (p->got == GOT_ZEROS) {
		racy_clear(w->request->image, PAGE_SIZE);
		p->got = GOT_PEER;
	}
	return true;
}

static bool latched_ready(struct page_driver *d, struct page_record *p, enum page_mode to)
{
	if (to == PAGE_INVALID && !d->base.frames->not_kcached(d->base.cache, p->at.pid))
		return false;
	/* it was revoked, and not given yet, before the request latched it */
	if (log_durable(d->o.log) < p->flush_to)
		return false;
	if (p->pending->done)
		return unused_ready(d, p, to);
	if (to == PAGE_SHARED)
		return true;
	return !(p->hold.flags & HOLD_DIRTY) ||
	       d->base.frames->owe_copy(d->base.cache, p->at.pid) == 0;
}

/* *busy: `kernel_invalidated` will say when to try again. */
static bool frame_ready(struct page_driver *d, struct page_record *p, enum page_mode to, bool *busy)
{
	const struct coherence_frames *frames = d->base.frames;
	struct coherence_image image;
	int rc;

	if (p->frame & RECORD_LOST)
		return true;
	if (p->pending)
		return latched_ready(d, p, to);
	rc = frames->revoke(d->base.cache, p->at.pid, to, &image);
	if (!rc && image.hollow && to == PAGE_SHARED) {
		to = PAGE_INVALID; /* its image must come first */
		rc = frames->revoke(d->base.cache, p->at.pid, to, &image);
	}
	if (rc == -ENOENT) {
		record_set(p, RECORD_LOST);
		holder_lost(&p->hold);
		return true;
	}
	*busy = rc == -EBUSY;
	if (rc == -ETIME)
		atomic_store_explicit(
			&p->revoke_ns, image.min_hold_until_ns, memory_order_relaxed);
	if (rc)
		return false;
	if (to == PAGE_INVALID)
		record_set(p, RECORD_LEAVING);
	taken_note(d, p->at.pid);
	page_take_image(d, p, &image);
	p->flush_to = image.flush_to;
	return log_durable(d->o.log) >= p->flush_to;
}

/* Revokes the frame to the right that the message leaves it. */
bool page_revoke_ready(
	struct page_driver *d, struct page_record *p, const struct page_message *m, bool *busy)
{
	enum page_mode to = page_takes(&p->entry, &p->hold, &p->at, m);

	return to == PAGE_EXCLUSIVE || frame_ready(d, p, to, busy);
}

static bool is_ask(const struct page_message *m)
{
	return m->type == PAGE_COPY || m->type == PAGE_MOVE || m->type == PAGE_INVALIDATE;
}

/* REQUEST, COPY, MOVE, INVALIDATE. */
static int deliver_taking(struct page_driver *d, struct page_record *p,
	const struct page_message *m, struct page_actions *out)
{
	bool busy = false;

	/* no frame: the image comes from the home */
	if (is_ask(m) && (m->flags & PAGE_CURRENT) && (p->frame & RECORD_LOST))
		holder_lost(&p->hold);
	if ((p->readied && p->hold.hold == RIGHT_EXCLUSIVE) ||
		page_revoke_ready(d, p, m, &busy))
		return page_on_message(&p->entry, &p->hold, &p->at, m, out);
	if (busy)
		page_await_invalidation(d, p);
	else
		page_revoke_later(d, p);
	return page_decline(&p->entry, &p->hold, &p->at, m, out);
}

/* ---- messages ------------------------------------------------------------------------------ */

/* Returns true if the message of any kind must wait. It is delivered again at the end of the work
 * under way. */
static bool must_wait(const struct page_record *p, const struct page_message *m)
{
	if (p->work == WORK_OPENING)
		return m->type != PAGE_REPORT;
	/* A grant whose image is being read from the store. The image from the home's own hold has
	 * overtaken it. */
	if (m->type == PAGE_GIVEN && p->hold.phase == PHASE_ASKED &&
		m->sender == p->at.home && m->request == p->hold.request)
		return true;
	return record_persists(p) &&
	       (m->type == PAGE_GIVEN || m->type == PAGE_GRANT || m->type == PAGE_EVICT ||
		       m->type == PAGE_SHIP);
}

static bool is_for_the_home(const struct page_message *m)
{
	return m->type == PAGE_REQUEST || m->type == PAGE_DROP || m->type == PAGE_EVICT ||
	       m->type == PAGE_FETCH || m->type == PAGE_SHIP;
}

static enum page_mode hold_mode(const struct page_hold *h)
{
	return h->hold == RIGHT_EXCLUSIVE ? PAGE_EXCLUSIVE
	       : h->hold == RIGHT_NONE    ? PAGE_INVALID
					  : PAGE_SHARED;
}

void frame_stays(struct page_driver *d, struct page_record *p)
{
	if ((p->frame & (RECORD_LEAVING | RECORD_LOST)) != RECORD_LEAVING ||
		p->hold.hold == RIGHT_NONE)
		return;
	record_clear(p, RECORD_LEAVING);
	d->base.frames->restore(d->base.cache, p->at.pid, hold_mode(&p->hold));
}

static void note_grant(struct page_record *p, const struct page_message *m)
{
	if (m->status && p->pending)
		p->pending->away = m->place;
	if (m->flags & PAGE_HELD)
		p->got = GOT_HELD;
	else if (m->flags & PAGE_STORE)
		p->got = GOT_STORE;
	else
		p->got = GOT_PEER;
}

/* An image that a hollow hold lacked has come. It is the held incarnation, or an older one, which
 * counts as zeros then (invariant 8). */
static void image_came(struct page_driver *d, struct page_record *p, const struct page_message *m)
{
	p->got = GOT_PEER;
	if (m->incarnation < p->hold.incarnation)
		racy_clear(place_memory(d, p->hold.place), PAGE_SIZE);
	if (!p->pending && (p->frame & RECORD_LEAVING))
		d->base.frames->filled(
			d->base.cache, p->at.pid, p->hold.incarnation, p->hold.version);
}

static int deliver_reinstate(struct page_driver *d, struct page_record *p,
	const struct page_message *m, struct page_actions *out)
{
	int rc = rebuild_reinstate(d, p, m, out);

	if (rc != -EAGAIN)
		return rc;
	page_act(out, PAGE_DEFER)->m = *m;
	page_revoke_later(d, p);
	return 0;
}

/* A home that leaves: a request of another node to read is granted as such, any other is
 * refused. */
static int deliver_lent(struct page_driver *d, struct page_record *p, const struct page_message *m,
	struct page_actions *out)
{
	struct page_message reads = *m;

	if (m->mode != PAGE_SHARED || m->incarnation > p->entry.incarnation) {
		home_refuse(&p->at, m, -EHOSTUNREACH, node_bit(d->o.self), out);
		return 0;
	}
	reads.flags &= (uint16_t)~PAGE_ALONE;
	return deliver_taking(d, p, &reads, out);
}

static int deliver_message(struct page_driver *d, struct page_record *p,
	const struct page_message *m, struct page_actions *out)
{
	bool hollow = m->type == PAGE_GIVEN && p->hold.hold == RIGHT_EXCLUSIVE;
	int rc;

	if (is_for_the_home(m) && !p->has_entry)
		return -EPROTO;
	if (is_for_the_home(m) && p->entry.mode == HOME_REBUILDING &&
		(m->type == PAGE_EVICT || m->type == PAGE_SHIP))
		return home_on_rebuilding(&p->entry, &p->at, m, out);
	if (m->type == PAGE_REQUEST && rebuild_awaits(d, p)) {
		home_refuse(&p->at, m, -EHOSTUNREACH, rebuild_awaits(d, p), out);
		return 0;
	}
	if (m->type == PAGE_REPORT)
		return rebuild_report(d, p, m);
	if (m->type == PAGE_REINSTATE)
		return deliver_reinstate(d, p, m, out);
	if (m->type == PAGE_EVICT)
		return home_evict(d, p, m, out);
	if (m->type == PAGE_REQUEST && m->sender != d->o.self &&
		atomic_load_explicit(&d->lends, memory_order_relaxed))
		return deliver_lent(d, p, m, out);
	if (m->type == PAGE_REQUEST || is_ask(m))
		return deliver_taking(d, p, m, out);
	rc = page_on_message(&p->entry, &p->hold, &p->at, m, out);
	if (!rc && m->type == PAGE_GRANT)
		note_grant(p, m);
	if (!rc && hollow)
		image_came(d, p, m);
	return rc;
}

void page_deliver(struct page_driver *d, struct page_record *p, const struct page_message *m)
{
	struct page_actions out;
	uint8_t was = p->hold.hold;
	int rc;

	if (must_wait(p, m)) {
		page_defer(d, p, m);
		return;
	}
	if (!wire_image_whole(d, p, m))
		return;
	out.count = 0;
	rc = deliver_message(d, p, m, &out);
	p->readied = false;
	if (rc) {
		page_dump(d, p);
		wire_cut(d, m->sender, rc, "cannot send", m);
		return;
	}
	if (m->type == PAGE_PERSISTED)
		d->base.frames->persisted(
			d->base.cache, p->at.pid, m->incarnation, m->version);
	page_note_may(p);
	page_perform(d, p, m, &out);
	if (m->type == PAGE_PERSISTED)
		ships_persisted(d, p, m->incarnation, m->version, 0);
	if (m->type == PAGE_EVICTED)
		evict_answered(d, p, m->flags & PAGE_ACCEPTED);
	else if (was == RIGHT_EXCLUSIVE && p->hold.hold == RIGHT_SOURCE && !p->evicting)
		frame_stays(d, p);
}

/* ---- actions -------------------------------------------------------------------------------- */

void page_frame_free(struct page_driver *d, struct page_record *p)
{
	bool owe;

	if (!(p->frame & RECORD_VACATE) || p->ops)
		return;
	owe = p->frame & RECORD_VACATE_OWE;
	record_clear(p, RECORD_VACATE | RECORD_VACATE_OWE);
	d->base.frames->vacate(d->base.cache, p->at.pid, owe);
}

void frame_dropped(struct page_driver *d, struct page_record *p)
{
	bool owe = p->frame & RECORD_KEEP_OWED;

	record_clear(p, RECORD_KEEP_OWED | RECORD_LEAVING);
	if (p->pending)
		p->pending->filled = false;
	if (p->evicting && !p->asked_evict) /* another event was faster: the page is gone */
		evict_answered(d, p, true);
	if (p->pending || (p->frame & (RECORD_RELEASING | RECORD_LOST))) {
		record_clear(p, RECORD_LOST);
		return;
	}
	record_clear(p, RECORD_VACATE_OWE);
	record_set(p, owe ? RECORD_VACATE | RECORD_VACATE_OWE : RECORD_VACATE);
	page_frame_free(d, p);
}

/* The home's frame may still be on its way from the store: then it is read once more. */
static bool frame_has_image(
	struct page_driver *d, const struct page_record *p, const struct page_message *m)
{
	struct coherence_image image;

	if (page_order(m->incarnation, m->version, p->entry.stored_incarnation,
		    p->entry.stored_version) != 0)
		return true;
	return d->base.frames->look(d->base.cache, p->at.pid, &image) == 0 &&
	       !image.hollow && image.incarnation == m->incarnation &&
	       image.version == m->version;
}

/* The frame is lost: the receiver takes nothing of its own for the image. */
static void send_without(struct page_driver *d, unsigned node, const struct page_message *m)
{
	struct page_message without = *m;

	without.flags |= PAGE_DAMAGED;
	wire_send(d, node, &without);
}

static void send_to(struct page_driver *d, struct page_record *p, unsigned node,
	const struct page_message *cause, const struct page_action *a)
{
	/* a GRANT's place is the map of the nodes that must give */
	uint64_t place = a->m.type == PAGE_GRANT ? cause->place : a->m.place;
	enum page_image image = a->image;

	if (image == IMAGE_FRAME && a->m.type == PAGE_GRANT &&
		!frame_has_image(d, p, &a->m))
		image = IMAGE_STORE;
	if (image == IMAGE_STORE && job_later(d, p, JOB_STORE, node, place, &a->m))
		wire_cut(d, node, -ENOMEM, "no memory to answer", cause);
	else if (image == IMAGE_FRAME && (p->frame & RECORD_LOST))
		send_without(d, node, &a->m);
	else if (image == IMAGE_FRAME)
		wire_send_image(d, p, node, &a->m, place, NULL);
	else if (image != IMAGE_STORE)
		wire_send(d, node, &a->m);
}

static void perform_send(struct page_driver *d, struct page_record *p,
	const struct page_message *cause, const struct page_action *a)
{
	for (node_map left = a->nodes; left; left &= left - 1) {
		unsigned node = (unsigned)__builtin_ctzll(left);

		if (node != d->o.self || a->image == IMAGE_STORE)
			send_to(d, p, node, cause, a);
		else
			page_deliver(d, p, &a->m);
	}
}

void page_perform(struct page_driver *d, struct page_record *p, const struct page_message *cause,
	const struct page_actions *out)
{
	for (unsigned i = 0; i < out->count; i++) {
		const struct page_action *a = &out->list[i];

		switch (a->kind) {
		case PAGE_SEND:
			perform_send(d, p, cause, a);
			break;
		case PAGE_DEFER:
			page_defer(d, p, &a->m);
			if (p->hold.phase == PHASE_ARRIVED)
				page_revoke_later(d, p);
			break;
		case PAGE_REPLAY:
			p->replay = true;
			break;
		case PAGE_WAKE:
			pending_done(d, p, a->m.status);
			break;
		case PAGE_ZERO:
			p->got = GOT_ZEROS;
			break;
		case PAGE_KEEP_OWED:
			record_set(p, RECORD_KEEP_OWED);
			break;
		case PAGE_DROP_FRAME:
			frame_dropped(d, p);
			break;
		case PAGE_PULL:
			home_pull(d, p, a);
			break;
		case PAGE_PERSIST:
			if (job_later(d, p, JOB_PERSIST, 0, 0, &a->m))
				wire_cut(d, a->m.sender, -ENOMEM, "no memory for", &a->m);
			break;
		case PAGE_RELEASE_OWED: /* the cache has been told */
		case PAGE_TAKE_OWED:    /* it has a frame by now */
			break;
		}
	}
}
