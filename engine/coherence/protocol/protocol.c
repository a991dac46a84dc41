/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The page protocol's entry: a message goes to the function that handles it. Before that page_takes
 * names the right that it would take from the node's frame. If the frame cannot be revoked to that
 * yet, page_decline delivers the message in its place. Also the names of messages and states, for
 * logs and tests.
 *
 * Keeps invariant 5: a frame of which the kernel has something is not revoked. So nothing that a
 * message would take leaves before the kernel's copy is dropped.
 */
#include "engine/coherence/protocol/protocol.h"

#include <errno.h>

int page_on_message(struct home_entry *e, struct page_hold *h, const struct page_at *at,
	const struct page_message *m, struct page_actions *out)
{
	switch (m->type) {
	case PAGE_REQUEST:
		return home_on_request(e, h, at, m, true, out);
	case PAGE_DROP:
		return home_on_drop(e, at, m, out);
	case PAGE_FETCH:
		return home_on_fetch(e, at, m, out);
	case PAGE_SHIP:
		return home_on_ship(e, at, m, out);
	case PAGE_GRANT:
		return requester_on_grant(h, at, m, out);
	case PAGE_GIVEN:
		return requester_on_given(h, at, m, out);
	case PAGE_COPY:
	case PAGE_MOVE:
	case PAGE_INVALIDATE:
		return holder_on_ask(h, at, m, out);
	case PAGE_EVICTED:
		return holder_on_evicted(h, at, m, out);
	case PAGE_PERSISTED:
		return holder_on_persisted(h, at, m, out);
	case PAGE_REINSTATE:
		return holder_on_reinstate(h, at, m, out);
	default:
		return -EPROTO;
	}
}

/* ---- what a message takes ---------------------------------------------------------- */

enum page_mode page_takes(const struct home_entry *e, const struct page_hold *h,
	const struct page_at *at, const struct page_message *m)
{
	struct page_hold after = *h;
	struct home_entry entry = *e;
	struct page_actions unused;

	if (h->hold == RIGHT_NONE)
		return PAGE_EXCLUSIVE;
	unused.count = 0;
	/* the frame knows better whether it has an image, and is about to say so */
	if (h->phase == PHASE_QUIET || h->phase == PHASE_LEAVING)
		after.flags &= (uint16_t)~HOLD_HOLLOW;
	if (page_on_message(&entry, &after, at, m, &unused))
		return PAGE_EXCLUSIVE; /* to be refused */
	if (after.hold == RIGHT_NONE)
		return PAGE_INVALID;
	if (after.hold == RIGHT_SOURCE && h->hold == RIGHT_EXCLUSIVE)
		return PAGE_SHARED;
	return PAGE_EXCLUSIVE;
}

int page_decline(struct home_entry *e, struct page_hold *h, const struct page_at *at,
	const struct page_message *m, struct page_actions *out)
{
	if (m->type == PAGE_REQUEST)
		return home_on_request(e, h, at, m, false, out);
	if (m->type != PAGE_COPY && m->type != PAGE_MOVE && m->type != PAGE_INVALIDATE)
		return -EPROTO;
	page_act(out, PAGE_DEFER)->m = *m;
	return 0;
}

/* ---- names ------------------------------------------------------------------------------ */

#define X(name) #name,
static const char *const message_names[] = {PAGE_MESSAGES(X)};
static const char *const right_names[] = {PAGE_RIGHTS(X)};
static const char *const phase_names[] = {PAGE_PHASES(X)};
static const char *const home_names[] = {PAGE_HOMES(X)};
#undef X

static const char *name_in(const char *const *names, size_t count, unsigned i)
{
	return i < count ? names[i] : "?";
}

const char *page_message_name(unsigned type)
{
	return name_in(message_names, ARRAY_SIZE(message_names), type - PAGE_MESSAGE_FIRST);
}

const char *page_right_name(unsigned right)
{
	return name_in(right_names, ARRAY_SIZE(right_names), right);
}

const char *page_phase_name(unsigned phase)
{
	return name_in(phase_names, ARRAY_SIZE(phase_names), phase);
}

const char *home_mode_name(unsigned mode)
{
	return name_in(home_names, ARRAY_SIZE(home_names), mode);
}
