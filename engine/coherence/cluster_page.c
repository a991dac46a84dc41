/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The driver's records of pages (cluster_record.c has their table): made when a page becomes
 * anything that the frames do not say, forgotten when it is that no more. A page of this
 * shard without a record is nobody's, or this node's alone: its frame says which. So what
 * only the home uses costs nothing here but a look at the table at a miss.
 *
 * Invariant 7: all of it is soft state. Epochs of forgotten entries are not used again:
 * new ones start at the highest of them.
 */
#include "engine/coherence/cluster_internal.h"

void page_forget_deferred(struct dpage *p)
{
	while (p->deferred) {
		struct deferred *f = p->deferred;

		p->deferred = f->next;
		rt_free(f);
	}
	p->deferred_end = &p->deferred;
	p->deferred_count = 0;
}

void page_defer(struct cluster *d, struct dpage *p, const struct page_message *m)
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

/* ---- whose a page is -------------------------------------------------------------------- */

/*
 * The usual beginning: somebody wants to read what this home has alone. Its frame is looked at
 * and weakened at once, so that the request need not be tried first (page_give_ready).
 */
static bool look_for_reader(struct cluster *d, struct dpage *p,
	const struct page_message *m, struct coherence_image *image)
{
	if (!m || m->type != PAGE_REQUEST || m->mode != PAGE_SHARED || p->reported ||
		!view_all_heard(d) ||
		d->base.frames->weaken(d->base.cache, p->at.pid, PAGE_SHARED, image))
		return false;
	p->flush_to = image->flush_to;
	p->readied = !image->hollow && m->incarnation <= image->incarnation &&
		     log_durable(d->o.log) >= p->flush_to;
	return true;
}

/* Where neither the table's block must be read nor the frame is latched. */
static bool page_open_now(
	struct cluster *d, struct dpage *p, const struct page_message *m)
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
	p->opening = true;
	page_opened(d, p, look ? NULL : &image);
	return true;
}

int page_open_later(struct cluster *d, struct dpage *p)
{
	int e = job_later(d, p, JOB_OPEN, 0, 0, NULL);

	WEFT_ASSERT(p->at.home == d->o.self && !p->has_entry);
	p->opening = !e;
	return e;
}

int page_open(struct cluster *d, struct dpage *p, const struct page_message *m)
{
	WEFT_ASSERT(p->at.home == d->o.self && !p->has_entry && !p->opening);
	return page_open_now(d, p, m) ? 0 : page_open_later(d, p);
}

/* This node has the page already, and nobody else. */
static void page_opened_here(struct dpage *p, const struct coherence_image *image,
	uint32_t epoch, uint64_t place)
{
	p->hold.hold = RIGHT_EXCLUSIVE;
	p->hold.epoch = epoch;
	p->hold.place = place;
	p->hold.incarnation = image->incarnation;
	p->hold.version = image->version;
	p->hold.flags = image->dirty ? HOLD_DIRTY : 0;
	p->entry.mode = HOME_EXCLUSIVE;
	p->entry.current = false;
	p->entry.holders = p->entry.owing = node_bit(p->at.self);
	p->entry.incarnation = MAX(p->entry.incarnation, image->incarnation);
}

void page_opened(struct cluster *d, struct dpage *p, const struct coherence_image *image)
{
	uint32_t floor = atomic_load_explicit(&d->epoch_floor, memory_order_relaxed);

	WEFT_ASSERT(p->opening && p->hold.hold == RIGHT_NONE);
	home_entry_init(&p->entry, floor, p->stored_incarnation, p->stored_version);
	p->opening = false;
	p->has_entry = true;
	p->replay = true;
	if (image)
		page_opened_here(p, image, floor, place_of(d, image->image));
	/* others have told of it, or may have it: as after a change of the epoch */
	if (p->reported || !view_all_heard(d))
		page_rebuild_opened(d, p);
	else
		page_note_may(p);
}

/* ---- the end of a change ------------------------------------------------------------------ */

static void page_replay(struct cluster *d, struct dpage *p)
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

bool page_busy(const struct dpage *p)
{
	return p->opening || p->deferred || p->wish || p->ships || p->evicting ||
	       p->refs || p->ops || p->persisting || p->leaving || p->vacate ||
	       p->no_frame || p->easing || p->unsettled || (p->reported && !p->has_entry);
}

/* Others had it shared, and have let go of it: it is this home's as before they asked. */
static void page_alone(struct cluster *d, struct dpage *p)
{
	if (!p->has_entry || !home_is_alone(&p->entry, &p->hold, &p->at) ||
		d->base.frames->strengthen(d->base.cache, p->at.pid))
		return;
	home_alone(&p->entry, &p->hold);
	page_note_may(p);
	DCOUNT(d, alone_again);
}

/* The record, of a page that is not busy, says nothing that would not be so without it. */
static bool page_idle(const struct dpage *p)
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
static void forget(struct cluster *d, struct dpage *p)
{
	uint32_t floor = atomic_load_explicit(&d->epoch_floor, memory_order_relaxed);

	while (p->has_entry && epoch_after(p->entry.epoch, floor) > 0 &&
		!atomic_compare_exchange_weak_explicit(&d->epoch_floor, &floor,
			p->entry.epoch, memory_order_relaxed, memory_order_relaxed))
		;
	page_forget(d, p);
}

void page_settle(struct cluster *d, struct dpage *p)
{
	do {
		while (p->replay)
			page_replay(d, p);
		wish_start(d, p);
	} while (p->replay);
	if (page_busy(p))
		return;
	page_alone(d, p);
	if (page_idle(p))
		forget(d, p);
	else
		page_rest(d, p);
}

void page_unlock_more(struct cluster *d, page_id pid, struct dpage *p)
{
	if (p)
		page_settle(d, p);
	page_partition_unlock(d, pid);
}

void page_unlock(struct cluster *d, page_id pid, struct dpage *p)
{
	page_unlock_more(d, pid, p);
	net_flush(d->o.net);
}
