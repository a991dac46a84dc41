/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The holder's side of the page protocol (docs/protocol.md, "The holder's table"): gives
 * copies and the page away when asked, in the order of the conflict epochs (ScaleStore
 * §3.4.3, owner stability), and asks to be rid of it (§4.2).
 *
 * Keeps invariant 2 (a dirty image that is given up is owed until persisted) and 5 (the
 * kernel's pages go first).
 */
#include "engine/coherence/protocol.h"

#include <errno.h>

/* ---- which hold an ask means ------------------------------------------------------- */

enum verdict {
	NOW,   /* the present hold, and it is its turn */
	LATER, /* its turn comes */
	STALE, /* INVALIDATE for a hold that was dropped */
	NEVER, /* cannot be */
};

/* An ask of the present hold? The epoch alone tells; copies tell whether it has overtaken
 * some. NEVER: of another one. */
static enum verdict present_hold(const struct page_hold *h, const struct page_message *m)
{
	int32_t after = epoch_after(m->epoch, h->epoch);

	if (m->type == PAGE_COPY) {
		if ((h->hold == RIGHT_SOURCE && after == 0) ||
			(h->hold == RIGHT_EXCLUSIVE && after == 1))
			return NOW;
		return NEVER;
	}
	switch (h->hold) {
	case RIGHT_SHARED:
		return after == 1 && m->copies == 0 ? NOW : NEVER;
	case RIGHT_SOURCE:
		if (after != 1)
			return NEVER;
		return m->copies == h->served ? NOW : LATER;
	case RIGHT_EXCLUSIVE:
		/* with copies before it, which have taken an epoch of their own. Their
		 * number may have wrapped to zero: the epoch says it too. */
		if (after == 2)
			return LATER;
		return after == 1 && m->copies == 0 ? NOW : NEVER;
	default:
		return NEVER;
	}
}

static enum verdict judge(const struct page_hold *h, const struct page_message *m)
{
	enum verdict v = present_hold(h, m);
	bool past;

	/* ARRIVED: used first; LEAVING: stands still until the home has answered */
	if (v == NOW && (h->phase == PHASE_ARRIVED || h->phase == PHASE_LEAVING))
		return LATER;
	if (v == NOW)
		return NOW;
	past = m->type == PAGE_INVALIDATE &&
	       (h->hold == RIGHT_NONE || epoch_after(m->epoch, h->epoch) <= 0);
	if (h->phase == PHASE_ASKED)
		return past && h->hold != RIGHT_NONE ? STALE : LATER;
	if (h->phase == PHASE_GATHERING) {
		int32_t after = epoch_after(m->epoch, h->grant_epoch);

		if (v == LATER || after > 0 ||
			(after == 0 && h->granted == RIGHT_SOURCE &&
				m->type == PAGE_COPY))
			return LATER;
		return m->type == PAGE_INVALIDATE && after < 0 ? STALE : NEVER;
	}
	return v == LATER ? LATER : past ? STALE : NEVER;
}

/* ---- giving -------------------------------------------------------------------------- */

static struct page_message *given(
	const struct page_at *at, const struct page_message *m, struct page_actions *out)
{
	struct page_message *g = page_send(out, at, node_bit(m->sender), PAGE_GIVEN);

	g->request = m->request;
	g->epoch = m->epoch;
	g->place = m->place;
	return g;
}

static void given_image(const struct page_hold *h, const struct page_at *at,
	const struct page_message *m, struct page_actions *out)
{
	struct page_message *g = given(at, m, out);

	out->list[out->count - 1].image = IMAGE_FRAME;
	g->incarnation = h->incarnation;
	g->version = h->version;
	g->flags = PAGE_IMAGE;
	if (m->type == PAGE_MOVE && (h->flags & HOLD_DIRTY))
		g->flags |= PAGE_DIRTY;
	if (h->flags & HOLD_DAMAGED)
		g->flags |= PAGE_DAMAGED;
}

/* The hold ends. What was dirty is owed (invariant 2); a newer image holds all that an
 * older one owed by this node did. */
static void let_go(struct page_hold *h, struct page_actions *out)
{
	if (h->flags & HOLD_DIRTY)
		page_owe(h, out);
	page_act(out, PAGE_DROP_FRAME);
	h->hold = RIGHT_NONE;
	h->flags &= (uint16_t) ~(HOLD_DIRTY | HOLD_HOLLOW | HOLD_DAMAGED);
	h->epoch = 0;
	h->served = 0;
	h->incarnation = h->version = 0;
}

/* The kernel must not have more of the page than this (invariant 5). True: it has not. */
static bool kernel_has_at_most(
	struct page_hold *h, enum page_exposure level, struct page_actions *out)
{
	if (h->exposed <= level)
		return true;
	if (!(h->flags & HOLD_DROPPING))
		page_act(out, PAGE_DROP_KERNEL);
	h->flags |= HOLD_DROPPING;
	return false;
}

/* The page is wanted by somebody who needs its bytes, which this node never had. */
static void fetch(struct page_hold *h, const struct page_at *at, struct page_actions *out)
{
	struct page_message *m;

	if (h->phase != PHASE_QUIET)
		return;
	m = page_send(out, at, node_bit(at->home), PAGE_FETCH);
	m->epoch = h->epoch;
	m->incarnation = h->incarnation;
	m->place = h->place;
	h->phase = PHASE_GATHERING;
	h->granted = RIGHT_EXCLUSIVE;
	h->grant_epoch = h->epoch;
	/* it may be allocated anew, and the home not have heard of it: then it is zeros */
	h->wanted_incarnation = h->incarnation;
	h->need = node_bit(at->home);
	h->flags |= HOLD_NEED_IMAGE;
}

int requester_fetch(struct page_hold *h, const struct page_at *at, uint64_t place,
	uint32_t request, struct page_actions *out)
{
	if (h->phase != PHASE_QUIET || h->hold != RIGHT_EXCLUSIVE)
		return -EBUSY;
	h->flags |= HOLD_HOLLOW | HOLD_WANTED;
	h->place = place;
	h->request = request;
	fetch(h, at, out);
	return 0;
}

static void defer(const struct page_message *m, struct page_actions *out)
{
	page_act(out, PAGE_DEFER)->m = *m;
}

int holder_on_ask(struct page_hold *h, const struct page_at *at,
	const struct page_message *m, struct page_actions *out)
{
	enum page_exposure level;
	bool hollow;

	if (m->sender >= PAGE_NODES_MAX || m->sender == at->self)
		return -EPROTO;
	switch (judge(h, m)) {
	case NEVER:
		return -EPROTO;
	case LATER:
		defer(m, out);
		return 0;
	case STALE:
		given(at, m, out);
		return 0;
	case NOW:
		break;
	}
	level = m->type == PAGE_COPY ? EXPOSED_READABLE : EXPOSED_NOT;
	hollow = (h->flags & HOLD_HOLLOW) && m->type != PAGE_INVALIDATE;
	if (h->exposed > level || hollow) {
		/* deferred first: what is begun here may end before this returns */
		defer(m, out);
		if (kernel_has_at_most(h, level, out))
			fetch(h, at, out);
		return 0;
	}
	if (m->type == PAGE_COPY) {
		given_image(h, at, m, out);
		h->served = h->hold == RIGHT_SOURCE ? copies_next(h->served) : 1;
		h->hold = RIGHT_SOURCE;
		h->epoch = m->epoch;
	} else {
		if (m->type == PAGE_MOVE)
			given_image(h, at, m, out);
		else
			given(at, m, out);
		let_go(h, out);
	}
	page_act(out, PAGE_REPLAY); /* what came after it may have been here before */
	return 0;
}

/* ---- giving up unasked (ScaleStore §4.2) --------------------------------------------- */

int holder_evict(struct page_hold *h, const struct page_at *at, bool freed,
	uint64_t place, uint32_t request, struct page_actions *out)
{
	struct page_message *m;

	if (h->phase != PHASE_QUIET || h->hold == RIGHT_NONE)
		return -EBUSY;
	if (!kernel_has_at_most(h, EXPOSED_NOT, out))
		return 0;
	m = page_send(out, at, node_bit(at->home),
		h->hold == RIGHT_SHARED ? PAGE_DROP : PAGE_EVICT);
	m->incarnation = h->incarnation;
	m->version = h->version;
	m->request = request;
	if (h->hold == RIGHT_SHARED) {
		let_go(h, out);
		return 0;
	}
	m->epoch = h->epoch;
	m->copies = h->hold == RIGHT_SOURCE ? h->served : 0;
	m->place = place;
	if (freed)
		m->flags |= PAGE_FREED;
	else if (h->flags & HOLD_DIRTY)
		m->flags |= PAGE_DIRTY;
	if (h->flags & HOLD_HOLLOW)
		m->flags |= PAGE_HOLLOW;
	h->phase = PHASE_LEAVING;
	h->request = request;
	return 0;
}

int holder_forget(struct page_hold *h, struct page_actions *out)
{
	if (h->phase != PHASE_QUIET || h->hold == RIGHT_NONE ||
		(h->flags & (HOLD_DIRTY | HOLD_HOLLOW)))
		return -EBUSY;
	if (kernel_has_at_most(h, EXPOSED_NOT, out))
		let_go(h, out);
	return 0;
}

int holder_downgrade(struct page_hold *h, const struct page_at *at, uint32_t request,
	struct page_actions *out)
{
	struct page_message *m;

	if (h->phase != PHASE_QUIET || h->hold != RIGHT_EXCLUSIVE ||
		h->exposed == EXPOSED_WRITABLE ||
		(h->flags & (HOLD_DIRTY | HOLD_HOLLOW | HOLD_DAMAGED | HOLD_DROPPING)))
		return -EBUSY;
	m = page_send(out, at, node_bit(at->home), PAGE_EVICT);
	m->incarnation = h->incarnation;
	m->version = h->version;
	m->request = request;
	m->epoch = h->epoch;
	m->flags = PAGE_HELD;
	h->phase = PHASE_LEAVING;
	h->flags |= HOLD_STAYS;
	h->request = request;
	return 0;
}

int holder_on_evicted(struct page_hold *h, const struct page_at *at,
	const struct page_message *m, struct page_actions *out)
{
	bool accepted = m->flags & PAGE_ACCEPTED, stays = h->flags & HOLD_STAYS;

	if (m->sender != at->home || h->phase != PHASE_LEAVING ||
		m->request != h->request ||
		(accepted && stays != !!(m->flags & PAGE_HELD)))
		return -EPROTO;
	h->phase = PHASE_QUIET;
	h->request = 0;
	h->flags &= (uint16_t)~HOLD_STAYS;
	if (accepted && stays) {
		h->hold = RIGHT_SHARED;
	} else if (accepted) {
		if (!(m->flags & PAGE_DIRTY)) /* persisted, or freed */
			h->flags &= (uint16_t)~HOLD_DIRTY;
		let_go(h, out);
	}
	page_act(out, PAGE_REPLAY);
	return 0;
}

/* ---- persisting ------------------------------------------------------------------------ */

int holder_ship(struct page_hold *h, const struct page_at *at, bool owed, uint64_t place,
	uint32_t request, struct page_actions *out)
{
	struct page_message *m;

	if (owed ? !h->owed_incarnation && !h->owed_version
		 : h->hold == RIGHT_NONE || !(h->flags & HOLD_DIRTY))
		return -ENOENT;
	/* the home may have it already, and its epoch be of another hold */
	if (!owed && h->phase == PHASE_LEAVING)
		return -EBUSY;
	m = page_send(out, at, node_bit(at->home), PAGE_SHIP);
	m->incarnation = owed ? h->owed_incarnation : h->incarnation;
	m->version = owed ? h->owed_version : h->version;
	m->epoch = owed ? 0 : h->epoch;
	m->flags = PAGE_DIRTY | (owed ? PAGE_OWED : 0);
	m->place = place;
	m->request = request;
	return 0;
}

int holder_on_persisted(struct page_hold *h, const struct page_at *at,
	const struct page_message *m, struct page_actions *out)
{
	if (m->sender != at->home)
		return -EPROTO;
	if ((h->owed_incarnation || h->owed_version) &&
		page_order(h->owed_incarnation, h->owed_version, m->incarnation,
			m->version) <= 0) {
		h->owed_incarnation = h->owed_version = 0;
		page_act(out, PAGE_RELEASE_OWED);
	}
	if (h->hold != RIGHT_NONE &&
		page_order(h->incarnation, h->version, m->incarnation, m->version) == 0)
		h->flags &= (uint16_t)~HOLD_DIRTY;
	return 0;
}

/* A log has a later image than ours (rebuild.c). */
static int let_go_older(struct page_hold *h, const struct page_at *at,
	const struct page_message *m, struct page_actions *out)
{
	if ((h->hold != RIGHT_SHARED && h->hold != RIGHT_SOURCE) ||
		page_order(h->incarnation, h->version, m->incarnation, m->version))
		return -EPROTO;
	let_go(h, out);
	page_send(out, at, node_bit(at->home), PAGE_REPORT)->mode = RIGHT_NONE;
	return 0;
}

/* Our image is the newest that is left (rebuild.c). */
int holder_on_reinstate(struct page_hold *h, const struct page_at *at,
	const struct page_message *m, struct page_actions *out)
{
	bool shared = h->hold == RIGHT_SHARED;

	if (m->sender == at->home && m->mode == RIGHT_SHARED) {
		/* one of several sources: a sharer, whose image another gives */
		if (h->hold == RIGHT_SOURCE && h->served == 0)
			h->hold = RIGHT_SHARED;
		return 0;
	}
	if (m->sender != at->home || (h->phase != PHASE_QUIET && h->phase != PHASE_ASKED))
		return -EPROTO;
	if (m->flags & PAGE_FREED)
		return let_go_older(h, at, m, out);
	if (page_order(shared ? h->incarnation : h->owed_incarnation,
		    shared ? h->version : h->owed_version, m->incarnation, m->version) ||
		(h->hold != RIGHT_NONE && !shared))
		return -EPROTO;
	if (!shared)
		page_act(out, PAGE_TAKE_OWED);
	h->hold = RIGHT_SOURCE;
	h->flags |= HOLD_DIRTY;
	h->incarnation = m->incarnation;
	h->version = m->version;
	h->epoch = 0;
	h->served = 0;
	page_report(h, at, out);
	return 0;
}

/* ---- local use (ScaleStore §3.2) ---------------------------------------------------------- */

bool holder_may_read(const struct page_hold *h)
{
	return h->hold != RIGHT_NONE && !(h->flags & (HOLD_HOLLOW | HOLD_DROPPING)) &&
	       (h->phase == PHASE_QUIET || h->phase == PHASE_ARRIVED ||
		       (h->phase == PHASE_LEAVING && (h->flags & HOLD_STAYS)));
}

bool holder_may_change(const struct page_hold *h)
{
	return h->hold == RIGHT_EXCLUSIVE && !(h->flags & HOLD_DROPPING) &&
	       (h->phase == PHASE_QUIET || h->phase == PHASE_ARRIVED);
}

void holder_changed(struct page_hold *h)
{
	WEFT_ASSERT(holder_may_change(h));
	h->version++;
	h->flags |= HOLD_DIRTY;
	h->flags &= (uint16_t) ~(HOLD_HOLLOW | HOLD_DAMAGED);
}

void holder_fresh(struct page_hold *h, uint64_t incarnation)
{
	WEFT_ASSERT(holder_may_change(h) && incarnation > h->incarnation);
	h->incarnation = incarnation;
	h->version = 0;
	h->flags &= (uint16_t) ~(HOLD_DIRTY | HOLD_HOLLOW | HOLD_DAMAGED);
}

bool holder_expose(struct page_hold *h, enum page_exposure level)
{
	if (!holder_may_read(h) || (level == EXPOSED_WRITABLE && !holder_may_change(h)))
		return false;
	h->exposed = MAX(h->exposed, (uint8_t)level);
	return true;
}

int holder_kernel_dropped(
	struct page_hold *h, const struct page_at *at, struct page_actions *out)
{
	h->exposed = EXPOSED_NOT;
	h->flags &= (uint16_t)~HOLD_DROPPING;
	page_act(out, PAGE_REPLAY);
	return 0;
}
