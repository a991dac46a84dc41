/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The frame behind a hold. A node's operations and its kernel use the frame without the protocol
 * (ScaleStore §3.2). So the driver revokes the frame before a message takes a right from the hold.
 * The right that must go is that of page_takes (protocol.c). Then the driver tells the hold here
 * the state of the frame.
 */
#include "engine/coherence/protocol/protocol.h"

void holder_observe(struct page_hold *h, const struct frame_image *image)
{
	h->place = image->place;
	h->incarnation = image->incarnation;
	h->version = image->version;
	h->flags &= (uint16_t) ~(HOLD_DIRTY | HOLD_HOLLOW);
	h->flags |= (image->dirty ? HOLD_DIRTY : 0) | (image->hollow ? HOLD_HOLLOW : 0);
}

void holder_observe_hollow(
	struct page_hold *h, uint64_t place, uint64_t incarnation, uint64_t version)
{
	h->flags |= HOLD_HOLLOW;
	h->place = place;
	h->incarnation = incarnation;
	h->version = version;
}

void holder_observe_clean(struct page_hold *h)
{
	h->flags &= (uint16_t) ~(HOLD_DIRTY | HOLD_HOLLOW);
}

void holder_lost(struct page_hold *h)
{
	h->flags |= HOLD_DAMAGED;
	h->flags &= (uint16_t) ~(HOLD_DIRTY | HOLD_HOLLOW);
}

void holder_placed(struct page_hold *h, uint64_t place)
{
	h->place = place;
}

void holder_owes(struct page_hold *h, uint64_t incarnation, uint64_t version, bool logged)
{
	h->owed_incarnation = incarnation;
	h->owed_version = version;
	h->logged = logged;
}
