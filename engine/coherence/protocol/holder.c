/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The holder's side of the page protocol (docs/protocol.md, "The holder's table"). It gives copies
 * and the page away when asked, in the order of the conflict epochs (ScaleStore §3.4.3, owner
 * stability). It asks for leave to give the page up (§4.2).
 *
 * Keeps invariant 2: a dirty image that is given up is owed until it is persisted. Invariant 5 (the
 * kernel's pages go first) is kept by the frame, which is revoked before (frame.c).
 */
#include "engine/coherence/protocol/protocol.h"

#include <errno.h>

/* ---- which hold an ask means ------------------------------------------------------- */

enum verdict {
	NOW,   /* the present hold, and it is its turn */
	LATER, /* its turn comes */
	STALE, /* for a hold that was dropped: GIVEN without an image */
	NEVER, /* cannot be */
};

/* Checks if an ask is about the present hold. The epoch alone tells. The copies tell whether it has
 * overtaken some. NEVER: it is about another hold. */
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

/* The answer needs no image: the home has persisted it. */
static bool spares_image(const struct page_message *m)
{
	return m->type == PAGE_INVALIDATE ||
	       (m->type == PAGE_MOVE && (m->flags & PAGE_CURRENT));
}

/*
 * Judges a COPY of the persisted image. It takes nothing from the hold. It waits only for the home,
 * which answers requests and evictions whatever other nodes do. It must not wait for an image that
 * this node awaits from a third one: that may wait for the asking node.
 */
static enum verdict judge_persisted_copy(
	const struct page_hold *h, const struct page_message *m)
{
	bool meant = h->hold != RIGHT_NONE && h->epoch == m->epoch;

	if (meant && h->phase == PHASE_LEAVING)
		return LATER;
	if (meant && h->hold != RIGHT_EXCLUSIVE && !(h->flags & HOLD_DAMAGED))
		return NOW;
	return h->phase == PHASE_ASKED ? LATER : STALE;
}

static enum verdict judge_ask(const struct page_hold *h, const struct page_message *m)
{
	enum verdict v = present_hold(h, m);
	bool past;

	if (m->type == PAGE_COPY && (m->flags & PAGE_CURRENT))
		return judge_persisted_copy(h, m);

	/* ARRIVED: used first; LEAVING: stands still until the home has answered */
	if (v == NOW && (h->phase == PHASE_ARRIVED || h->phase == PHASE_LEAVING))
		return LATER;
	if (v == NOW)
		return NOW;
	past = spares_image(m) &&
	       (h->hold == RIGHT_NONE || epoch_after(m->epoch, h->epoch) <= 0);
	if (h->phase == PHASE_ASKED)
		return past && h->hold != RIGHT_NONE ? STALE : LATER;
	if (h->phase == PHASE_GATHERING) {
		int32_t after = epoch_after(m->epoch, h->grant_epoch);

		if (v == LATER || after > 0 ||
			(after == 0 && h->granted == RIGHT_SOURCE &&
				m->type == PAGE_COPY))
			return LATER;
		return spares_image(m) && after < 0 ? STALE : NEVER;
	}
	return v == LATER ? LATER : past ? STALE : NEVER;
}

/* ---- giving -------------------------------------------------------------------------- */

static struct page_message *send_given(
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
	struct page_message *g = send_given(at, m, out);

	out->list[out->count - 1].image = IMAGE_FRAME;
	g->incarnation = h->incarnation;
	g->version = h->version;
	g->flags = PAGE_IMAGE;
	if (m->type == PAGE_MOVE && (h->flags & HOLD_DIRTY))
		g->flags |= PAGE_DIRTY;
	if (h->flags & HOLD_DAMAGED)
		g->flags |= PAGE_DAMAGED;
}

/* The hold ends. A dirty image is owed (invariant 2). A newer image holds all the changes of an
 * older one that this node owed. */
static void hold_end(struct page_hold *h, struct page_actions *out)
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

/* Another node needs the bytes of the page, which this node never had. */
static void act_fetch(struct page_hold *h, const struct page_at *at, struct page_actions *out)
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
	act_fetch(h, at, out);
	return 0;
}

static void act_defer(const struct page_message *m, struct page_actions *out)
{
	page_act(out, PAGE_DEFER)->m = *m;
}

int holder_on_ask(struct page_hold *h, const struct page_at *at,
	const struct page_message *m, struct page_actions *out)
{
	if (m->sender >= PAGE_NODES_MAX || m->sender == at->self)
		return -EPROTO;
	switch (judge_ask(h, m)) {
	case NEVER:
		return -EPROTO;
	case LATER:
		act_defer(m, out);
		return 0;
	case STALE:
		send_given(at, m, out);
		return 0;
	case NOW:
		break;
	}
	if ((h->flags & HOLD_HOLLOW) && m->type != PAGE_INVALIDATE) {
		/* deferred first: a fetch that begins here may end before this returns */
		act_defer(m, out);
		act_fetch(h, at, out);
		return 0;
	}
	if (m->type == PAGE_COPY && (m->flags & PAGE_CURRENT)) {
		given_image(h, at, m, out);
		return 0;
	}
	if (m->type == PAGE_COPY) {
		given_image(h, at, m, out);
		h->served = h->hold == RIGHT_SOURCE ? copies_next(h->served) : 1;
		h->hold = RIGHT_SOURCE;
		h->epoch = m->epoch;
	} else {
		if (m->type == PAGE_MOVE &&
			!((m->flags & PAGE_CURRENT) && (h->flags & HOLD_DAMAGED)))
			given_image(h, at, m, out);
		else
			send_given(at, m, out);
		hold_end(h, out);
	}
	page_act(out, PAGE_REPLAY); /* messages that came after it may have been here before */
	return 0;
}

/* ---- giving up unasked (ScaleStore §4.2) --------------------------------------------- */

int holder_evict(struct page_hold *h, const struct page_at *at, uint64_t place,
	uint32_t request, struct page_actions *out)
{
	struct page_message *m;

	if (h->phase != PHASE_QUIET || h->hold == RIGHT_NONE)
		return -EBUSY;
	m = page_send(out, at, node_bit(at->home),
		h->hold == RIGHT_SHARED ? PAGE_DROP : PAGE_EVICT);
	m->incarnation = h->incarnation;
	m->version = h->version;
	m->request = request;
	if (h->hold == RIGHT_SHARED) {
		hold_end(h, out);
		return 0;
	}
	m->epoch = h->epoch;
	m->copies = h->hold == RIGHT_SOURCE ? h->served : 0;
	m->place = place;
	if (h->flags & HOLD_DIRTY)
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
	hold_end(h, out);
	return 0;
}

int holder_downgrade(struct page_hold *h, const struct page_at *at, uint32_t request,
	struct page_actions *out)
{
	struct page_message *m;

	if (h->phase != PHASE_QUIET || h->hold != RIGHT_EXCLUSIVE ||
		(h->flags & (HOLD_DIRTY | HOLD_HOLLOW | HOLD_DAMAGED)))
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
		hold_end(h, out);
	}
	page_act(out, PAGE_REPLAY);
	return 0;
}

/* ---- persisting ------------------------------------------------------------------------ */

bool holder_newest(const struct page_hold *h, uint64_t incarnation, uint64_t version)
{
	int order = page_order(incarnation, version, h->incarnation, h->version);

	/* an owner's version may be past that of the hold; a source's is exact */
	return h->hold == RIGHT_EXCLUSIVE ? order >= 0
	       : h->hold == RIGHT_SOURCE  ? order == 0
					  : false;
}

void holder_ship(const struct page_hold *h, const struct page_at *at, uint64_t incarnation,
	uint64_t version, uint64_t place, uint32_t request, struct page_actions *out)
{
	struct page_message *m = page_send(out, at, node_bit(at->home), PAGE_SHIP);
	bool newest = holder_newest(h, incarnation, version);

	m->incarnation = incarnation;
	m->version = version;
	m->epoch = newest ? h->epoch : 0;
	m->flags = PAGE_DIRTY | (newest ? 0 : PAGE_OWED);
	m->place = place;
	m->request = request;
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

void page_report(
	const struct page_hold *h, const struct page_at *at, struct page_actions *out)
{
	struct page_message *m;

	if (h->hold != RIGHT_NONE) {
		m = page_send(out, at, node_bit(at->home), PAGE_REPORT);
		m->mode = h->hold;
		m->incarnation = h->incarnation;
		m->version = h->version;
		m->flags = h->flags & HOLD_DIRTY ? PAGE_DIRTY : 0;
	}
	if (h->owed_incarnation || h->owed_version) {
		m = page_send(out, at, node_bit(at->home), PAGE_REPORT);
		m->incarnation = h->owed_incarnation;
		m->version = h->owed_version;
		m->flags = PAGE_OWED | (h->logged ? PAGE_LOGGED : 0);
	}
}

/* A log has a later image than ours (rebuild.c). */
static int let_go_older(struct page_hold *h, const struct page_at *at,
	const struct page_message *m, struct page_actions *out)
{
	if ((h->hold != RIGHT_SHARED && h->hold != RIGHT_SOURCE) ||
		page_order(h->incarnation, h->version, m->incarnation, m->version))
		return -EPROTO;
	hold_end(h, out);
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
