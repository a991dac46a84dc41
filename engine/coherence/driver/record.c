/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The driver's records of pages (record_table.c has their table). A record is made when the page's
 * state needs more than its frame, and forgotten when it does not. A page of this shard without a
 * record is held by no node, or only by this one: its frame tells which. So a page that only the
 * home uses costs one look-up in the table at a miss.
 *
 * Invariant 7: all of it is soft state. Epochs of forgotten entries are not used again: new ones
 * start at the highest of them.
 */
#include "engine/coherence/driver/driver_internal.h"

void page_forget_deferred(struct page_record *p)
{
	while (p->deferred) {
		struct deferred *f = p->deferred;

		p->deferred = f->next;
		rt_free(f);
	}
	p->deferred_end = &p->deferred;
	p->deferred_count = 0;
}

void page_defer(struct page_driver *d, struct page_record *p, const struct page_message *m)
{
	struct deferred *f = NULL;

	if (p->deferred_count < DEFERRED_MAX)
		f = rt_alloc(sizeof(*f));
	if (!f) {
		wire_cut(d, m->sender, -ENOMEM, "no memory to keep", m);
		return;
	}
	f->m = *m;
	*p->deferred_end = f;
	p->deferred_end = &f->next;
	p->deferred_count++;
	DCOUNT(d, deferred);
}

void page_refuse_requests(struct page_driver *d, struct page_record *p, int error)
{
	struct deferred *f = p->deferred, *next;
	struct page_actions out;

	p->deferred = NULL;
	p->deferred_end = &p->deferred;
	for (; f; f = next) {
		next = f->next;
		if (f->m.type != PAGE_REQUEST) {
			f->next = NULL;
			*p->deferred_end = f;
			p->deferred_end = &f->next;
			continue;
		}
		out.count = 0;
		home_refuse(&p->at, &f->m, error, 0, &out);
		page_perform(d, p, &f->m, &out);
		p->deferred_count--;
		rt_free(f);
	}
}

/* ---- whose a page is -------------------------------------------------------------------- */

/* The usual beginning: a node requests, to read, a page that this home has alone. Its frame is
 * looked at and revoked at once, so that the request need not be tried first (page_revoke_ready).
 */
static bool look_for_reader(struct page_driver *d, struct page_record *p,
	const struct page_message *m, struct coherence_image *image)
{
	if (!m || m->type != PAGE_REQUEST || m->mode != PAGE_SHARED || p->reported ||
		!view_all_reported(d) ||
		d->base.frames->revoke(d->base.cache, p->at.pid, PAGE_SHARED, image))
		return false;
	taken_note(d, p->at.pid);
	p->flush_to = image->flush_to;
	p->readied = !image->hollow && m->incarnation <= image->incarnation &&
		     log_durable(d->o.log) >= p->flush_to;
	return true;
}

/* Opens the page at once, if the table's block need not be read and the frame is not latched. */
static bool page_open_now(
	struct page_driver *d, struct page_record *p, const struct page_message *m)
{
	struct page_descriptor stored;
	struct coherence_image image;
	int look = 0;

	if (store_descriptor_try(d->o.store, p->at.pid, &stored))
		return false;
	if (!look_for_reader(d, p, m, &image))
		look = d->base.frames->look(d->base.cache, p->at.pid, &image);
	if (look == -EAGAIN)
		return false;
	p->stored_incarnation = stored.incarnation;
	p->stored_version = stored.version;
	p->work = WORK_OPENING;
	page_opened(d, p, look ? NULL : &image);
	return true;
}

int page_open_later(struct page_driver *d, struct page_record *p)
{
	int rc = job_later(d, p, JOB_OPEN, 0, 0, NULL);

	WEFT_ASSERT(p->at.home == d->o.self && !p->has_entry);
	p->work = rc ? WORK_NONE : WORK_OPENING;
	return rc;
}

int page_open(struct page_driver *d, struct page_record *p, const struct page_message *m)
{
	WEFT_ASSERT(p->at.home == d->o.self && !p->has_entry && !p->work);
	return page_open_now(d, p, m) ? 0 : page_open_later(d, p);
}

void page_opened(struct page_driver *d, struct page_record *p, const struct coherence_image *image)
{
	uint32_t floor = atomic_load_explicit(&d->epoch_floor, memory_order_relaxed);
	/* others have told of it, or may have it: as after a change of the epoch */
	bool rebuilds = p->reported || !view_all_reported(d);

	WEFT_ASSERT(p->work == WORK_OPENING && p->hold.hold == RIGHT_NONE);
	home_entry_init(&p->entry, floor, p->stored_incarnation, p->stored_version);
	p->work = WORK_NONE;
	p->has_entry = true;
	p->replay = true;
	if (image) {
		struct frame_image has = page_frame_image(d, image);

		has.hollow = false;
		home_opened_alone(&p->entry, &p->hold, &p->at, rebuilds ? 0 : floor, &has);
	}
	if (rebuilds)
		page_rebuild_opened(d, p);
	else
		page_note_may(p);
}

/* ---- the end of a change ------------------------------------------------------------------ */

static void page_replay(struct page_driver *d, struct page_record *p)
{
	struct deferred *f = p->deferred;

	p->replay = false;
	p->deferred = NULL;
	p->deferred_end = &p->deferred;
	p->deferred_count = 0;
	while (f) {
		struct deferred *next = f->next;

		page_deliver(d, p, &f->m);
		rt_free(f);
		f = next;
	}
}

bool page_busy(const struct page_record *p)
{
	return p->work || p->deferred || p->pending || p->ships || p->evicting ||
	       p->refs || p->ops ||
	       (p->frame & (RECORD_LEAVING | RECORD_VACATE | RECORD_LOST)) ||
	       p->awaiting_invalidation || p->unsettled || (p->reported && !p->has_entry);
}

/* Others had it shared, and have let go of it: it is this home's as before they asked. */
static void page_alone(struct page_driver *d, struct page_record *p)
{
	if (!p->has_entry || !home_is_alone(&p->entry, &p->hold, &p->at) ||
		d->base.frames->strengthen(d->base.cache, p->at.pid))
		return;
	home_alone(&p->entry, &p->hold);
	page_note_may(p);
	DCOUNT(d, alone_again);
}

/* The record, of a page that is not busy, says nothing that would not be so without it. */
static bool page_idle(const struct page_record *p)
{
	const struct page_hold *h = &p->hold;
	node_map self = node_bit(p->at.self);

	if (h->phase != PHASE_QUIET || h->owed_incarnation || h->owed_version)
		return false;
	if (!p->has_entry)
		return h->hold == RIGHT_NONE;
	if (p->entry.mode == HOME_EXCLUSIVE)
		return p->entry.holders == self && !(p->entry.owing & ~self) &&
		       h->hold == RIGHT_EXCLUSIVE && !(h->flags & HOLD_HOLLOW);
	return home_entry_idle(&p->entry) && h->hold == RIGHT_NONE;
}

/* Epochs of forgotten entries are not used again. */
static void forget_record(struct page_driver *d, struct page_record *p)
{
	uint32_t floor = atomic_load_explicit(&d->epoch_floor, memory_order_relaxed);

	while (p->has_entry && epoch_after(p->entry.epoch, floor) > 0 &&
		!atomic_compare_exchange_weak_explicit(&d->epoch_floor, &floor,
			p->entry.epoch, memory_order_relaxed, memory_order_relaxed))
		;
	page_forget(d, p);
}

void page_settle(struct page_driver *d, struct page_record *p)
{
	do {
		while (p->replay)
			page_replay(d, p);
		pending_start(d, p);
	} while (p->replay);
	if (page_busy(p))
		return;
	page_alone(d, p);
	if (page_idle(p))
		forget_record(d, p);
	else
		page_compact(d, p);
}

void page_unlock_more(struct page_driver *d, page_id pid, struct page_record *p)
{
	if (p)
		page_settle(d, p);
	page_partition_unlock(d, pid);
}

void page_unlock(struct page_driver *d, page_id pid, struct page_record *p)
{
	page_unlock_more(d, pid, p);
	net_flush(d->o.net);
}
