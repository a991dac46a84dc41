/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compact records. Most pages of other nodes are read now and then and no more. The same holds for
 * most of this node's pages at other nodes. Their records fit into a line of memory, or two at the
 * page's home. The other five lines describe work under way. So a record is expanded only while its
 * page is locked, or while work on it is under way. (record_table.c expands it, and makes it
 * compact.)
 *
 * Keeps: nothing is lost by it. A field that is not kept is zero if may_compact returns true, or
 * means nothing before it is set anew. The latter fields are named there.
 */
#include "engine/coherence/driver/driver_internal.h"

/*
 * These fields mean nothing in a compact record:
 *
 * - of a request or grant: hold.wanted, granted, grant_epoch, next_incarnation, next_version (the
 *   phase is QUIET);
 * - of an owed image: `logged`;
 * - of the opening: stored_incarnation, stored_version;
 * - of lists that the record is not in: awaiting_ns and links; and arrived_ns;
 * - of an entry that is not being rebuilt: `rebuild` and `report_void`;
 * - of an entry for which nothing was reported yet: `rebuild`, which is expanded as rebuild_begin
 *   leaves it.
 */
bool may_compact(const struct page_record *p)
{
	const struct page_hold *h = &p->hold;

	return h->phase == PHASE_QUIET && !h->need && !h->wanted_incarnation &&
	       !atomic_load_explicit(&p->revoke_ns, memory_order_relaxed) &&
	       !h->owed_incarnation && !h->owed_version && !p->replay && !p->frame &&
	       !p->readied && !p->reported && !p->awaited &&
	       p->reinstating == NODE_NONE &&
	       (p->has_entry ? !p->report_void || p->entry.mode != HOME_REBUILDING
			     : !(p->may | p->changed));
}

static void entry_from(struct page_compact_home *r, const struct page_record *p)
{
	const struct home_entry *e = &p->entry;

	r->compact.mode = e->mode;
	r->compact.current = e->current;
	r->source = e->source;
	r->copies = e->copies;
	r->epoch = e->epoch;
	r->holders = e->holders;
	r->owing = e->owing;
	r->incarnation = e->incarnation;
	r->stored_incarnation = e->stored_incarnation;
	r->stored_version = e->stored_version;
	r->may = p->may;
	r->changed = p->changed;
}

static void entry_into(struct page_record *p, const struct page_compact_home *r)
{
	p->entry = (struct home_entry){
		.mode = r->compact.mode,
		.source = r->source,
		.current = r->compact.current,
		.copies = r->copies,
		.epoch = r->epoch,
		.holders = r->holders,
		.owing = r->owing,
		.incarnation = r->incarnation,
		.stored_incarnation = r->stored_incarnation,
		.stored_version = r->stored_version,
	};
	p->may = r->may;
	p->changed = r->changed;
	if (r->compact.mode == HOME_REBUILDING) {
		struct home_entry unused = {0};

		rebuild_begin(&unused, &p->rebuild);
	}
}

void compact_from(struct page_compact *r, const struct page_record *p)
{
	const struct page_hold *h = &p->hold;

	r->place = h->place;
	r->incarnation = h->incarnation;
	r->version = h->version;
	r->flush_to = p->flush_to;
	r->epoch = h->epoch;
	r->request = h->request;
	r->served = h->served;
	r->flags = h->flags;
	r->hold = h->hold;
	r->got = p->got;
	r->has_entry = p->has_entry;
	r->unmade = p->unmade;
	r->home = p->at.home;
	if (p->has_entry)
		entry_from(container_of(r, struct page_compact_home, compact), p);
}

void compact_into(struct page_record *p, const struct page_compact *r)
{
	p->hold = (struct page_hold){
		.place = r->place,
		.incarnation = r->incarnation,
		.version = r->version,
		.epoch = r->epoch,
		.request = r->request,
		.served = r->served,
		.flags = r->flags,
		.hold = r->hold,
	};
	p->flush_to = r->flush_to;
	p->got = r->got;
	p->has_entry = r->has_entry;
	p->unmade = r->unmade;
	p->at.home = r->home;
	p->reinstating = NODE_NONE;
	p->deferred_end = &p->deferred;
	if (p->has_entry)
		entry_into(p, container_of(r, struct page_compact_home, compact));
}
