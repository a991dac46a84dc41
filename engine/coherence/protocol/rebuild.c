/* SPDX-License-Identifier: Apache-2.0 */
/*
 * After a change of the cluster epoch (docs/protocol.md, "Change of the cluster's epoch"). Work
 * under way is void on every node. Then homes rebuild their entries from the holds and owed images
 * of the surviving nodes, and from their stores. The newest (incarnation, version) wins. Keeps
 * invariants 2 and 7.
 */
#include "engine/coherence/protocol/protocol.h"

#include <errno.h>

/* ---- the survivors' side ------------------------------------------------------------ */

static void void_hold(struct page_hold *h, struct page_actions *out)
{
	if (h->flags & HOLD_DIRTY)
		page_owe(h, out);
	page_act(out, PAGE_DROP_FRAME);
	h->hold = RIGHT_NONE;
	h->flags &= (uint16_t) ~(HOLD_DIRTY | HOLD_HOLLOW | HOLD_DAMAGED);
	h->incarnation = h->version = 0;
}

void page_void(struct page_hold *h, const struct page_at *at, struct page_actions *out)
{
	if (h->flags & HOLD_WANTED && h->phase != PHASE_ARRIVED)
		page_act(out, PAGE_WAKE)->m.status = -EAGAIN;
	/* LEAVING: the home may have it already, and have changed it since */
	if (h->hold != RIGHT_NONE && h->phase == PHASE_LEAVING) {
		if (h->flags & HOLD_STAYS)
			h->hold = RIGHT_SHARED;
		else
			void_hold(h, out);
	}
	h->phase = PHASE_QUIET;
	h->flags &= (uint16_t) ~(HOLD_NEXT_MASK | HOLD_WANTED | HOLD_STAYS);
	h->wanted = PAGE_INVALID;
	h->granted = RIGHT_NONE;
	h->epoch = h->grant_epoch = h->request = h->served = 0;
	h->need = 0;
	h->wanted_incarnation = h->next_incarnation = h->next_version = 0;
}

/* ---- the home's side ------------------------------------------------------------------ */

void rebuild_begin(struct home_entry *e, struct home_rebuild *r)
{
	home_entry_init(e, 0, e->stored_incarnation, e->stored_version);
	e->mode = HOME_REBUILDING;
	*r = (struct home_rebuild){
		.owner = NODE_NONE, .source = NODE_NONE, .owed_by = NODE_NONE};
}

static int report_of_owed(struct home_rebuild *r, const struct page_message *m)
{
	r->owing |= node_bit(m->sender);
	if (r->owed_by == NODE_NONE ||
		page_order(m->incarnation, m->version, r->owed_incarnation,
			r->owed_version) > 0) {
		r->owed_by = m->sender;
		r->owed_incarnation = m->incarnation;
		r->owed_version = m->version;
		r->owed_logged = m->flags & PAGE_LOGGED;
	}
	return 0;
}

/* Told to let go, it has. */
static int report_of_none(struct home_rebuild *r, node_map sender)
{
	if (!(r->sharers & sender))
		return -EPROTO;
	r->sharers &= ~sender;
	r->sources &= ~sender;
	if (r->source != NODE_NONE && node_bit(r->source) == sender)
		r->source = NODE_NONE;
	if (!r->sharers)
		r->incarnation = r->version = 0;
	return 0;
}

int rebuild_on_report(struct home_rebuild *r, const struct page_message *m)
{
	node_map sender;

	if (m->sender >= PAGE_NODES_MAX)
		return -EPROTO;
	if (m->flags & PAGE_OWED)
		return report_of_owed(r, m);
	sender = node_bit(m->sender);
	if (m->mode == RIGHT_NONE)
		return report_of_none(r, sender);
	/* one writer: nobody else holds it then, and within an epoch of sharers all
	 * images are the same */
	if (m->mode == RIGHT_EXCLUSIVE ? (r->sharers & ~sender) || r->owner != NODE_NONE
				       : r->owner != NODE_NONE)
		return -EPROTO;
	if (r->sharers &&
		page_order(m->incarnation, m->version, r->incarnation, r->version))
		return -EPROTO;
	r->incarnation = m->incarnation;
	r->version = m->version;
	if (m->mode == RIGHT_EXCLUSIVE)
		r->owner = m->sender;
	else
		r->sharers |= sender;
	/* several, where one that was reinstated was away when another was */
	if (m->mode == RIGHT_SOURCE && r->source == NODE_NONE)
		r->source = m->sender;
	if (m->mode == RIGHT_SOURCE)
		r->sources |= sender;
	if (m->flags & PAGE_DIRTY)
		r->owing |= sender;
	return 0;
}

static int send_reinstate(const struct page_at *at, unsigned node, uint64_t incarnation,
	uint64_t version, struct page_actions *out)
{
	struct page_message *m = page_send(out, at, node_bit(node), PAGE_REINSTATE);

	m->incarnation = incarnation;
	m->version = version;
	return -EAGAIN;
}

/*
 * The sharers have an older image than a log had. A live node had the later image, and did not
 * report it when these nodes became sharers. So it knew of an incarnation after it, which nobody
 * wrote. Both images are of a past incarnation, and void. The later one still becomes the page's,
 * since that loses nothing. The nodes with the other image let go of it.
 */
static int revoke_sharers(
	const struct page_at *at, const struct home_rebuild *r, struct page_actions *out)
{
	struct page_message *m;
	int again = send_reinstate(at, (unsigned)__builtin_ctzll(r->sharers), r->incarnation,
		r->version, out);

	m = &out->list[out->count - 1].m;
	m->flags = PAGE_FREED;
	return again;
}

int rebuild_end(struct home_entry *e, struct home_rebuild *r, const struct page_at *at,
	node_map unreported, struct page_actions *out)
{
	bool held = r->owner != NODE_NONE || r->sharers;
	int against_store = page_order(
		r->incarnation, r->version, e->stored_incarnation, e->stored_version);

	/* An owed image is one that its node gave up. A holder of the page has it or a later one.
	 * (An owner goes on changing it while it is reported.) */
	if (r->sharers && r->owed_by != NODE_NONE &&
		page_order(r->incarnation, r->version, r->owed_incarnation,
			r->owed_version) < 0)
		return r->owed_logged ? revoke_sharers(at, r, out) : -EPROTO;
	if (r->sharers && r->version && against_store < 0)
		return r->redone ? revoke_sharers(at, r, out) : -EPROTO;
	/* zeros that nobody has changed are nothing to be saved */
	if (r->sharers && r->version && against_store > 0 && r->source == NODE_NONE)
		return send_reinstate(at, (unsigned)__builtin_ctzll(r->sharers),
			r->incarnation, r->version, out);
	if (!held && r->owed_by != NODE_NONE &&
		page_order(r->owed_incarnation, r->owed_version, e->stored_incarnation,
			e->stored_version) > 0)
		return send_reinstate(
			at, r->owed_by, r->owed_incarnation, r->owed_version, out);

	home_entry_init(e, 0, e->stored_incarnation, e->stored_version);
	page_act(out, PAGE_REPLAY); /* requests that came too early */
	e->owing = r->owing;
	if (r->owing) { /* the old epoch may have ended before they were told */
		struct page_message *m = page_send(out, at, r->owing, PAGE_PERSISTED);

		m->incarnation = e->stored_incarnation;
		m->version = e->stored_version;
	}
	if (r->source != NODE_NONE && r->sources & ~node_bit(r->source)) {
		struct page_message *m = page_send(
			out, at, r->sources & ~node_bit(r->source), PAGE_REINSTATE);

		m->mode = RIGHT_SHARED; /* another is the source */
		m->incarnation = r->incarnation;
		m->version = r->version;
	}
	if (!held) {
		e->owing = 0;
		e->mode = unreported ? HOME_SHARED : HOME_NONE;
		e->holders = unreported;
		return 0;
	}
	e->incarnation = MAX(e->incarnation, r->incarnation);
	e->current = against_store == 0 || !r->version;
	if (r->owner != NODE_NONE) {
		e->mode = HOME_EXCLUSIVE;
		e->holders = node_bit(r->owner);
		e->owing |= e->holders;
		e->current = false;
	} else {
		e->mode = HOME_SHARED;
		e->holders = r->sharers | unreported;
		e->source = r->source;
	}
	return 0;
}
