/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The requester's side of the page protocol (ScaleStore §3.3; docs/protocol.md, "The requester's
 * table"). It asks the home, then the nodes that the home names, and resolves the conflict itself.
 * Between GRANT and arrival the node still answers for its old hold (holder.c).
 *
 * A sharer that is asked for a persisted image may have dropped it. Then the requester fetches the
 * image from the home.
 *
 * Keeps invariant 1: a grant becomes a hold only when all named nodes have given.
 */
#include "engine/coherence/protocol/protocol.h"

#include <errno.h>

static void act_wake(struct page_hold *h, struct page_actions *out, int status)
{
	if (h->flags & HOLD_WANTED)
		page_act(out, PAGE_WAKE)->m.status = (int16_t)status;
	h->flags &= (uint16_t)~HOLD_WANTED;
	page_act(out, PAGE_REPLAY);
}

int requester_want(struct page_hold *h, const struct page_at *at, enum page_mode wanted,
	uint64_t incarnation, unsigned flags, uint64_t place, node_map unconnected,
	uint32_t request, struct page_actions *out)
{
	struct page_message *m;

	if (h->phase != PHASE_QUIET)
		return -EBUSY;
	WEFT_ASSERT(wanted == PAGE_SHARED || wanted == PAGE_EXCLUSIVE);
	WEFT_ASSERT(h->hold == RIGHT_NONE ||
		    (wanted == PAGE_EXCLUSIVE && h->hold != RIGHT_EXCLUSIVE));
	h->phase = PHASE_ASKED;
	h->wanted = (uint8_t)wanted;
	h->flags |= HOLD_WANTED;
	h->place = place;
	h->request = request;
	h->wanted_incarnation = incarnation;
	m = page_send(out, at, node_bit(at->home), PAGE_REQUEST);
	m->mode = (uint8_t)wanted;
	m->incarnation = incarnation;
	m->flags = (uint16_t)(flags & (PAGE_HOLLOW | PAGE_ALONE));
	m->place = place;
	m->version = unconnected;
	m->request = request;
	return 0;
}

/* All nodes have given, the image is here: the granted right becomes the hold. */
static void hold_arrive(struct page_hold *h, struct page_actions *out)
{
	unsigned flags = h->flags;
	bool held = flags & HOLD_NEXT_HELD;

	if ((held ? h->incarnation : h->next_incarnation) < h->wanted_incarnation) {
		/* it was freed and allocated again since (invariant 8) */
		held = false;
		h->next_incarnation = h->wanted_incarnation;
		h->next_version = 0;
		flags &= ~HOLD_NEXT_MASK;
		flags |= HOLD_NEXT_ZEROS;
	}
	if (!held && h->hold != RIGHT_NONE && (flags & HOLD_DIRTY))
		page_owe(h, out); /* of an incarnation that is past */
	if (!held) {
		flags &= ~(HOLD_DIRTY | HOLD_HOLLOW | HOLD_DAMAGED);
		h->incarnation = h->next_incarnation;
		h->version = h->next_version;
	}
	if (flags & HOLD_NEXT_ZEROS)
		page_act(out, PAGE_ZERO);
	flags |= (flags & HOLD_NEXT_DIRTY ? HOLD_DIRTY : 0) |
		 (flags & HOLD_NEXT_HOLLOW ? HOLD_HOLLOW : 0) |
		 (flags & HOLD_NEXT_DAMAGED ? HOLD_DAMAGED : 0);
	h->flags = (uint16_t)(flags & ~HOLD_NEXT_MASK);
	h->next_incarnation = h->next_version = 0;
	if (!(held && h->granted == RIGHT_SHARED)) { /* else: it has the right already */
		h->hold = h->granted;
		h->epoch = h->grant_epoch;
		h->served = 0;
	}
	h->granted = RIGHT_NONE;
	h->grant_epoch = 0;
	h->wanted = PAGE_INVALID;
	h->wanted_incarnation = 0;
	h->phase = h->flags & HOLD_WANTED ? PHASE_ARRIVED : PHASE_QUIET;
	act_wake(h, out, h->flags & HOLD_DAMAGED ? -EIO : 0);
}

/* The asks of a grant: the source's with the count of copies, the others' without. The
 * home has asked its own hold (ScaleStore §3.3, "Handling shared conflicts"). */
static void send_asks(const struct page_hold *h, const struct page_at *at,
	const struct page_message *grant, struct page_actions *out)
{
	node_map nodes = grant->place & ~node_bit(at->home);
	node_map source =
		grant->source == NODE_NONE ? 0 : node_bit(grant->source) & nodes;

	if (source) {
		enum page_message_type type = PAGE_INVALIDATE;
		struct page_message *m;

		if (grant->flags & PAGE_ASK_SOURCE)
			type = h->granted == RIGHT_EXCLUSIVE ? PAGE_MOVE : PAGE_COPY;
		m = page_send(out, at, source, type);
		m->epoch = grant->epoch;
		m->copies = grant->copies;
		m->flags = grant->flags & PAGE_CURRENT;
		m->place = h->place;
		m->request = h->request;
	}
	if (nodes & ~source) {
		struct page_message *m =
			page_send(out, at, nodes & ~source, PAGE_INVALIDATE);

		m->epoch = grant->epoch;
		m->request = h->request;
	}
}

static bool grant_makes_sense(
	const struct page_hold *h, const struct page_at *at, const struct page_message *m)
{
	unsigned have = m->flags & (PAGE_IMAGE | PAGE_HELD | PAGE_ZEROS | PAGE_STORE |
					   PAGE_HOLLOW | PAGE_DAMAGED);

	if (m->sender != at->home || h->phase != PHASE_ASKED || m->request != h->request)
		return false;
	if (m->status < 0)
		return true;
	if (m->mode != PAGE_SHARED && m->mode != PAGE_EXCLUSIVE)
		return false;
	if (m->mode < h->wanted || (m->place & node_bit(at->self)))
		return false;
	if ((m->flags & PAGE_HELD) && h->hold == RIGHT_NONE && m->mode != PAGE_SHARED)
		return false;
	if (m->source != NODE_NONE && m->source >= PAGE_NODES_MAX)
		return false;
	return have || m->place; /* an image that is not here must come from another node */
}

int requester_on_grant(struct page_hold *h, const struct page_at *at,
	const struct page_message *m, struct page_actions *out)
{
	unsigned flags = 0;
	int status = m->status;

	if (!grant_makes_sense(h, at, m))
		return -EPROTO;
	/* reinstated after it had asked, and the page taken again before this came */
	if ((m->flags & PAGE_HELD) && h->hold == RIGHT_NONE && !status)
		status = -EAGAIN;
	if (status < 0) {
		h->phase = PHASE_QUIET;
		h->wanted = PAGE_INVALID;
		h->wanted_incarnation = 0;
		act_wake(h, out, status);
		return 0;
	}
	h->phase = PHASE_GATHERING;
	h->granted = m->mode == PAGE_EXCLUSIVE ? RIGHT_EXCLUSIVE : RIGHT_SHARED;
	h->grant_epoch = m->epoch;
	h->need = m->place;
	h->next_incarnation = m->incarnation;
	h->next_version = m->version;
	flags |= m->flags & PAGE_HELD ? HOLD_NEXT_HELD : 0;
	flags |= m->flags & PAGE_ZEROS ? HOLD_NEXT_ZEROS : 0;
	flags |= m->flags & PAGE_HOLLOW ? HOLD_NEXT_HOLLOW : 0;
	flags |= m->flags & PAGE_DAMAGED ? HOLD_NEXT_DAMAGED : 0;
	if (!flags && !(m->flags & (PAGE_IMAGE | PAGE_STORE)))
		flags |= HOLD_NEED_IMAGE;
	flags |= m->flags & PAGE_DIRTY ? HOLD_NEXT_DIRTY : 0;
	flags |= m->flags & PAGE_CURRENT ? HOLD_NEXT_CURRENT : 0;
	h->flags |= (uint16_t)flags;
	if (!h->need) {
		hold_arrive(h, out);
		return 0;
	}
	send_asks(h, at, m, out);
	page_act(out, PAGE_REPLAY); /* now it is known which hold they mean */
	return 0;
}

/* The sharer that was asked has no image any more. The home's is the newest as long as this grant
 * stands: the next writer waits for this node. */
static void fetch_persisted(
	struct page_hold *h, const struct page_at *at, struct page_actions *out)
{
	struct page_message *m = page_send(out, at, node_bit(at->home), PAGE_FETCH);

	m->epoch = h->grant_epoch;
	m->incarnation = h->next_incarnation;
	m->place = h->place;
	m->request = h->request;
	h->need = node_bit(at->home);
	h->flags &= (uint16_t)~HOLD_NEXT_CURRENT;
}

int requester_on_given(struct page_hold *h, const struct page_at *at,
	const struct page_message *m, struct page_actions *out)
{
	bool last, missing, image = m->flags & PAGE_IMAGE;

	/* the home's own hold gave while the image for the GRANT was read from its store */
	if (h->phase == PHASE_ASKED && m->sender == at->home && !image) {
		page_act(out, PAGE_DEFER)->m = *m;
		return 0;
	}
	if (h->phase != PHASE_GATHERING || m->sender >= PAGE_NODES_MAX ||
		!(h->need & node_bit(m->sender)) || m->epoch != h->grant_epoch)
		return -EPROTO;
	last = h->need == node_bit(m->sender);
	if (image && !(h->flags & HOLD_NEED_IMAGE))
		return -EPROTO;
	missing = last && !image && (h->flags & HOLD_NEED_IMAGE);
	if (missing && !(h->flags & HOLD_NEXT_CURRENT))
		return -EPROTO;
	/* a node that took our old hold before us has been given it */
	if (last && h->hold != RIGHT_NONE &&
		!(h->flags & (HOLD_NEXT_HELD | HOLD_NEXT_ZEROS | HOLD_HOLLOW)))
		return -EPROTO;
	h->need &= ~node_bit(m->sender);
	if (image) {
		h->flags &= (uint16_t)~HOLD_NEED_IMAGE;
		h->next_incarnation = m->incarnation;
		h->next_version = m->version;
		h->flags |= m->flags & PAGE_DIRTY ? HOLD_NEXT_DIRTY : 0;
		h->flags |= m->flags & PAGE_DAMAGED ? HOLD_NEXT_DAMAGED : 0;
	}
	if (missing)
		fetch_persisted(h, at, out);
	else if (last)
		hold_arrive(h, out);
	return 0;
}

int requester_used(
	struct page_hold *h, const struct page_at *at, struct page_actions *out)
{
	if (h->phase != PHASE_ARRIVED)
		return -EBUSY;
	h->phase = PHASE_QUIET;
	page_act(out, PAGE_REPLAY);
	return 0;
}
