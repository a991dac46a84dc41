/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Records at rest: most pages that a node has of others, and most that others have of it, are read
 * now and then and no more. What their records say fits into a line of memory, or two at the page's
 * home; the other five say what is under way. So a record is whole only while its page is locked, or
 * something goes on with it (cluster_record.c wakes it, and puts it to rest).
 *
 * Keeps: nothing is lost by it. What is not kept is zero when rest_may says yes, or means nothing
 * before it is set anew; the latter are named there.
 */
#include "engine/coherence/cluster_internal.h"

/*
 * Means nothing then: of a request or grant (hold.wanted, granted, grant_epoch, next_incarnation,
 * next_version: phase QUIET) or of what is owed (logged), of the opening (stored_incarnation,
 * stored_version), of lists that it is not in (easing_ns and links), and arrived_ns. Of an entry
 * that is not being rebuilt: `rebuild` and `gone`; of one for which nothing was reported yet:
 * `rebuild`, which wakes as it begins.
 */
bool rest_may(const struct dpage *p)
{
	const struct page_hold *h = &p->hold;

	return h->phase == PHASE_QUIET && !h->need && !h->exposed &&
	       !h->wanted_incarnation &&
	       !atomic_load_explicit(&p->give_ns, memory_order_relaxed) &&
	       !h->owed_incarnation && !h->owed_version && !p->replay && !p->releasing &&
	       !p->keep_owed && !p->readied && !p->storing && !p->reported &&
	       !p->awaited && p->reinstating == NODE_NONE &&
	       (p->has_entry ? !p->gone || p->entry.mode != HOME_REBUILDING
			     : !(p->may | p->changed));
}

static void entry_from(struct page_rest_home *r, const struct dpage *p)
{
	const struct home_entry *e = &p->entry;

	r->mode = e->mode;
	r->rest.current = e->current;
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

static void entry_into(struct dpage *p, const struct page_rest_home *r)
{
	p->entry = (struct home_entry){
		.mode = r->mode,
		.source = r->source,
		.current = r->rest.current,
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
	if (r->mode == HOME_REBUILDING) {
		struct home_entry unused = {0};

		rebuild_begin(&unused, &p->rebuild);
	}
}

void rest_from(struct page_rest *r, const struct dpage *p)
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
		entry_from(container_of(r, struct page_rest_home, rest), p);
}

void rest_into(struct dpage *p, const struct page_rest *r)
{
	p->hold.place = r->place;
	p->hold.incarnation = r->incarnation;
	p->hold.version = r->version;
	p->hold.epoch = r->epoch;
	p->hold.request = r->request;
	p->hold.served = r->served;
	p->hold.flags = r->flags;
	p->hold.hold = r->hold;
	p->flush_to = r->flush_to;
	p->got = r->got;
	p->has_entry = r->has_entry;
	p->unmade = r->unmade;
	p->at.home = r->home;
	p->reinstating = NODE_NONE;
	p->deferred_end = &p->deferred;
	if (p->has_entry)
		entry_into(p, container_of(r, struct page_rest_home, rest));
}
