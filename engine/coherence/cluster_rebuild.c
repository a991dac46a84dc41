/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A new epoch, page by page (docs/many-nodes.md, "Failures"): what is under way ends, what
 * this node has is reported, entries of this shard are made from reports. The rules are
 * those of rebuild.c; this file brings them together with frames, and with nodes that are
 * away.
 *
 * Keeps: 1 (a page that a node which has not reported may have is not granted), 2 (what was
 * given up unsaved stays owed; the newest image left becomes the page's).
 */
#include "engine/coherence/cluster_internal.h"

/* ---- the old epoch ends ------------------------------------------------------------------------ */

static void rebuild_clear(struct dpage *p)
{
	struct home_entry unused = {0};

	rebuild_begin(&unused, &p->rebuild);
	p->reported = p->awaited = false;
	p->reinstating = NODE_NONE;
	p->gone = 0;
}

void page_enter(struct cluster *d, struct dpage *p)
{
	struct page_actions out = {0};

	page_forget_deferred(p);
	page_ease_end(d, p);
	p->replay = false;
	p->unsettled |= p->leaving || p->hold.phase == PHASE_ASKED ||
			p->hold.phase == PHASE_GATHERING;
	page_void(&p->hold, &p->at, &out);
	for (unsigned i = 0; i < out.count; i++) {
		if (out.list[i].kind == PAGE_KEEP_OWED)
			p->keep_owed = true;
		else if (out.list[i].kind == PAGE_DROP_FRAME)
			frame_dropped(d, p);
	}
	if (p->evicting && p->asked_evict)
		evict_answered(d, p, true);
	if (p->wish && !p->wish->done)
		p->wish->asked = false;
	rebuild_clear(p);
	if (p->has_entry)
		rebuild_begin(&p->entry, &p->rebuild);
}

/*
 * What the hold says is owed, the cache may not have: the image was another's, who keeps it,
 * or the page has been freed and allocated anew. It may have an earlier one, its own.
 */
static void owed_look(struct cluster *d, struct dpage *p)
{
	struct page_hold *h = &p->hold;
	uint64_t incarnation = 0, version = 0;

	if ((!h->owed_incarnation && !h->owed_version) || p->vacate)
		return;
	(void)d->base.frames->owed(d->base.cache, p->at.pid, &incarnation, &version);
	h->owed_incarnation = incarnation;
	h->owed_version = version;
}

void page_close(struct cluster *d, struct dpage *p)
{
	/* nobody reads what was shipped any more. It is shipped again later: the home may
	 * have to rebuild first, and need what is owed for that */
	ships_persisted(d, p, 0, 0, -EHOSTDOWN);
	owed_look(d, p);
	if (!p->unsettled)
		return;
	p->unsettled = false;
	if (!p->evicting)
		frame_stays(d, p);
}

/* ---- reports ------------------------------------------------------------------------------------- */

int report_list_grow(struct report_list *list)
{
	unsigned room = list->room ? 2 * list->room : 256;
	struct page_message *m;
	uint8_t *to;

	if (list->count + 2 <= list->room)
		return 0;
	m = rt_alloc(room * sizeof(*m));
	to = rt_alloc(room);
	if (!m || !to) {
		rt_free(m);
		rt_free(to);
		return -ENOMEM;
	}
	if (list->count) {
		memcpy(m, list->m, list->count * sizeof(*m));
		memcpy(to, list->to, list->count);
	}
	rt_free(list->m);
	rt_free(list->to);
	list->m = m;
	list->to = to;
	list->room = room;
	return 0;
}

void report_page(const struct dpage *p, struct report_list *list)
{
	struct page_actions out = {0};

	page_report(&p->hold, &p->at, &out);
	for (unsigned i = 0; i < out.count; i++) {
		list->to[list->count] = p->at.home;
		list->m[list->count++] = out.list[i].m;
	}
}

/* Sent as it was said under the page's lock. What has changed since, by what the home has
 * persisted meanwhile, the home knows better. */
static int report_send(
	struct cluster *d, uint64_t epoch, unsigned node, const struct page_message *m)
{
	struct net_peer *peer = net_peer_find(d->o.net, (uint16_t)node);
	struct net_message out;
	int e;

	memcpy(&out, m, sizeof(out));
	out.epoch = epoch;
	while (peer && view_joined(d, node)) {
		if (view_epoch(d) != epoch ||
			atomic_load_explicit(&d->stopping, memory_order_acquire))
			return -EAGAIN;
		e = net_send(peer, &out, m->type == PAGE_REPORT ? NET_MORE : 0);
		if (e != -EAGAIN)
			break; /* or its link is down, and it is told in the next epoch */
		net_flush(d->o.net);
		(void)net_wait_room(peer, rt_now_ns() + 100000000);
	}
	return 0;
}

int report_all(struct cluster *d, uint64_t epoch)
{
	struct report_list list = {0};
	struct page_message end = {.type = PAGE_REPORTED, .sender = d->o.self};
	int e = 0;

	for (unsigned at = 0; at < PAGE_PARTITIONS * d->buckets && !e; at++) {
		e = page_bucket_reports(d, at, epoch, &list);
		if (e == -ENOMEM) {
			rt_sleep_ns(GIVE_POLL_NS);
			e = 0;
			at--;
			continue;
		}
		for (unsigned i = 0; i < list.count && !e; i++)
			e = report_send(d, epoch, list.to[i], &list.m[i]);
		atomic_fetch_add_explicit(
			&d->view.pages_reported, list.count, memory_order_relaxed);
		list.count = 0;
	}
	for (unsigned n = 0; n < PAGE_NODES_MAX && !e; n++)
		e = report_send(d, epoch, n, &end);
	rt_free(list.m);
	rt_free(list.to);
	return e;
}

/* ---- entries ---------------------------------------------------------------------------------------- */

/* Shared as it is persisted: nobody can change it who is not granted it anew. Zeros of an
 * incarnation that was never written are not: only those who share them know of that, and
 * what others owe is of one before it. */
static bool as_persisted(const struct home_entry *e)
{
	return e->current && e->incarnation == e->stored_incarnation;
}

void page_note_may(struct dpage *p)
{
	const struct home_entry *e = &p->entry;

	if (!p->has_entry || e->mode == HOME_REBUILDING)
		return;
	/* nobody's: whoever let go of it last had it from all before */
	if (e->mode == HOME_NONE && !e->owing)
		p->may = 0;
	else
		p->may |= e->holders | e->owing;
	if (as_persisted(e))
		p->changed = e->owing;
	else
		p->changed |= e->holders | e->owing;
}

static void awaits(struct cluster *d, struct dpage *p, bool awaited)
{
	if (p->awaited == awaited)
		return;
	p->awaited = awaited;
	if (awaited) {
		atomic_fetch_add_explicit(&d->view.awaited, 1, memory_order_relaxed);
	} else {
		atomic_fetch_sub_explicit(&d->view.awaited, 1, memory_order_release);
		view_wake(d);
	}
}

void page_rebuild_opened(struct cluster *d, struct dpage *p)
{
	struct home_rebuild unused;

	if (!p->reported)
		rebuild_begin(&p->entry, &p->rebuild);
	else
		rebuild_begin(&p->entry, &unused);
	p->hold.epoch = 0;
	p->unmade = true;
	page_rebuild(d, p);
}

/* Who has not been heard, and may have something of the page. */
static node_map absent(const struct cluster *d, const struct dpage *p)
{
	const struct view *v = &d->view;
	node_map heard = atomic_load_explicit(&v->heard, memory_order_acquire);
	node_map left = atomic_load_explicit(&v->left, memory_order_acquire);
	node_map may = p->may | atomic_load_explicit(&v->unheard, memory_order_acquire);

	return may & ~((heard & ~p->gone) | left | node_bit(d->o.self));
}

/* Of these: who may still use what it has. A dead node's log may have something, its frames are gone. */
static node_map absent_sharers(const struct cluster *d, const struct dpage *p)
{
	return absent(d, p) & ~atomic_load_explicit(&d->view.dead, memory_order_acquire);
}

/* Of the absent: who may have something that is newer than what all others have. */
static node_map unknown(const struct cluster *d, const struct dpage *p)
{
	return absent(d, p) & (p->changed | atomic_load_explicit(&d->view.unheard,
						    memory_order_acquire));
}

/* Together with what this node itself has. */
static int all_reports(const struct dpage *p, struct home_rebuild *r)
{
	struct page_actions own = {0};
	int e = 0;

	*r = p->rebuild;
	page_report(&p->hold, &p->at, &own);
	for (unsigned i = 0; i < own.count && !e; i++)
		e = rebuild_on_report(r, &own.list[i].m);
	return e;
}

static void rebuilt(struct cluster *d, struct dpage *p, const struct home_entry *e,
	const struct page_actions *out)
{
	node_map away = absent(d, p);

	p->entry = *e;
	p->may = e->holders | e->owing | (e->mode == HOME_NONE ? 0 : away);
	/* who is away owes what it changed, until that or something later is persisted */
	if (as_persisted(e))
		p->changed = e->owing;
	else
		p->changed = e->owing | e->holders | (p->changed & away);
	p->reported = p->unmade = false;
	atomic_fetch_add_explicit(&d->view.pages_rebuilt, 1, memory_order_relaxed);
	page_perform(d, p, NULL, out);
	p->replay = true;
}

/* What this node's own hold comes to. (What it reports, all_reports adds each time.) */
static void perform_here(
	struct cluster *d, struct dpage *p, const struct page_actions *actions)
{
	struct page_actions out = {0};

	for (unsigned i = 0; i < actions->count; i++)
		if (actions->list[i].kind != PAGE_SEND)
			out.list[out.count++] = actions->list[i];
	page_perform(d, p, NULL, &out);
}

/* The newest image is with a node that has no right to it, or is no source; or what a node
 * has shared is older than the newest. */
static void reinstate(struct cluster *d, struct dpage *p, const struct page_actions *out)
{
	const struct page_action *a = &out->list[0];
	unsigned node = (unsigned)__builtin_ctzll(a->nodes);
	bool asked = p->reinstating == node;

	p->reinstating = (uint8_t)node;
	if (node == d->o.self) {
		struct page_actions here = {0};

		awaits(d, p, true);
		if (rebuild_reinstate(d, p, &a->m, &here)) {
			page_give_later(d, p); /* which comes back here */
			return;
		}
		p->reinstating = NODE_NONE;
		perform_here(d, p, &here);
		page_rebuild(d, p);
	} else if (view_joined(d, node)) {
		awaits(d, p, true);
		if (!asked)
			wire_send(d, node, &a->m);
	} else {
		awaits(d, p, false); /* until it is back */
		p->replay = true;    /* requests are refused till then */
	}
}

void page_rebuild(struct cluster *d, struct dpage *p)
{
	struct home_entry e = p->entry;
	struct page_actions out = {0};
	struct home_rebuild r;
	int rc;

	if (!atomic_load_explicit(&d->view.rebuilding, memory_order_acquire) ||
		!p->has_entry || e.mode != HOME_REBUILDING)
		return;
	/* What was shipped in an earlier epoch is still being written: it may be the newest
	 * image left, and who owes it is told so. Its end comes back here. */
	if (p->storing) {
		awaits(d, p, true);
		return;
	}
	rc = all_reports(p, &r);
	r.redone = p->unmade;
	if (!rc)
		rc = rebuild_end(&e, &r, &p->at, absent_sharers(d, p), &out);
	/* an owed image is the newest only if nobody else may have a later one */
	if (rc == -EAGAIN && (r.sharers || !unknown(d, p))) {
		reinstate(d, p, &out);
		return;
	}
	if (rc && rc != -EAGAIN) {
		weft_log(3,
			"what nodes report of this page contradicts each other, so it "
			"waits for the next epoch: owner %u, sharers %llx, source %u, "
			"v%llu.%llu; owed by %u v%llu.%llu",
			p->rebuild.owner, (unsigned long long)p->rebuild.sharers,
			p->rebuild.source, (unsigned long long)p->rebuild.incarnation,
			(unsigned long long)p->rebuild.version, p->rebuild.owed_by,
			(unsigned long long)p->rebuild.owed_incarnation,
			(unsigned long long)p->rebuild.owed_version);
		page_dump(d, p);
		DCOUNT(d, impossible);
	} else if (!rc && (r.owner != NODE_NONE || r.sharers || !unknown(d, p))) {
		rebuilt(d, p, &e, &out);
	}
	awaits(d, p, false);
	p->replay |= p->entry.mode == HOME_REBUILDING; /* requests are refused till then */
}

node_map rebuild_awaits(const struct cluster *d, const struct dpage *p)
{
	if (!atomic_load_explicit(&d->view.rebuilding, memory_order_acquire) ||
		!p->has_entry || p->entry.mode != HOME_REBUILDING || p->awaited)
		return 0;
	return unknown(d, p) ? unknown(d, p) : absent(d, p);
}

int rebuild_report(struct cluster *d, struct dpage *p, const struct page_message *m)
{
	int e;

	if (p->has_entry && p->entry.mode != HOME_REBUILDING) {
		/* the second report of who was reinstated; or of who was not told that it
		 * is persisted, of a page that is nobody's */
		struct page_message told = {.type = PAGE_PERSISTED,
			.sender = d->o.self,
			.pid = p->at.pid,
			.incarnation = p->entry.stored_incarnation,
			.version = p->entry.stored_version,
			.source = NODE_NONE};

		if (!(m->flags & PAGE_OWED))
			return -EPROTO;
		if (p->entry.mode != HOME_NONE)
			p->entry.owing |= node_bit(m->sender);
		wire_send(d, m->sender, &told);
		return 0;
	}
	if (!p->has_entry && !p->reported)
		rebuild_clear(p);
	e = rebuild_on_report(&p->rebuild, m);
	if (e)
		return e;
	p->reported = true;
	atomic_fetch_add_explicit(&d->view.pages_heard, 1, memory_order_relaxed);
	p->may |= node_bit(m->sender);
	p->changed |= node_bit(m->sender);
	if (p->reinstating == m->sender)
		p->reinstating = NODE_NONE;
	if (p->has_entry)
		page_rebuild(d, p);
	else
		awaits(d, p, true); /* it is being opened */
	return 0;
}

void rebuild_without(struct cluster *d, struct dpage *p, unsigned node)
{
	p->reinstating = NODE_NONE;
	if (p->rebuild.source == node)
		p->rebuild.source = NODE_NONE;
	if (p->rebuild.sharers & ~node_bit(node)) {
		p->rebuild.sharers &= ~node_bit(node); /* another has the same image */
		p->gone |= node_bit(node);
	}
	page_rebuild(d, p);
}

/* ---- reinstated: this node's image is the newest left -------------------------------------------------- */

/*
 * The page came for a call that waits for others, and went again, or was refused to it: that
 * call may be waiting for this very rebuild, with the only frame that the page can have, be it that
 * it had the page before (FETCH_HELD).
 */
static bool may_refill(const struct dpage *p)
{
	const struct wish *w = p->wish;

	return !p->ops && (!w->result || w->result == -EHOSTUNREACH);
}

/* The owed image's frame becomes the page's again; or the frame of a request for the page
 * gets the image. (A free frame might be had only by evictions that wait for the home.) */
static int frame_of_owed(struct cluster *d, struct dpage *p, const struct page_message *m)
{
	const struct coherence_frames *frames = d->base.frames;
	struct wish *w = p->wish;
	void *image;
	int e;

	if (p->vacate || p->unsettled) /* it becomes owed when that ends */
		return -EAGAIN;
	if (w && (!w->done || may_refill(p))) {
		uint64_t incarnation, version;
		const void *owed =
			frames->owed(d->base.cache, p->at.pid, &incarnation, &version);

		if (!owed || page_order(incarnation, version, m->incarnation, m->version))
			return -EAGAIN;
		memcpy(w->request->image, owed, PAGE_SIZE);
		w->filled = true;
		if (w->done)
			p->got = GOT_PEER;
		p->hold.place = place_of(d, w->request->image);
		return 0;
	}
	e = frames->reown(d->base.cache, p->at.pid, m->incarnation, m->version, &image);
	if (!e)
		p->hold.place = place_of(d, image);
	return e;
}

/* The frame of the shared copy becomes dirty. */
static int frame_of_copy(struct cluster *d, struct dpage *p)
{
	const struct wish *w = p->wish;

	if (p->unsettled)
		return -EAGAIN;
	if (w && w->request->held == PAGE_INVALID)
		return 0; /* its call is about to end, and hears it then */
	return d->base.frames->adopt(d->base.cache, p->at.pid, w != NULL);
}

int rebuild_reinstate(struct cluster *d, struct dpage *p, const struct page_message *m,
	struct page_actions *out)
{
	struct page_hold h = p->hold;
	struct page_actions unused = {0};
	bool busy = false;
	int e = holder_on_reinstate(&h, &p->at, m, &unused);

	if (e)
		return e;
	if (m->flags & PAGE_FREED) {
		/* a log has a later one: nothing needs to be owed, for which there may be no room */
		d->base.frames->persisted(
			d->base.cache, p->at.pid, m->incarnation, m->version);
		if (p->unsettled || !page_give_ready(d, p, m, &busy))
			return -EAGAIN;
		return holder_on_reinstate(&p->hold, &p->at, m, out);
	}
	if (m->mode == RIGHT_SHARED)
		return holder_on_reinstate(&p->hold, &p->at, m, out);
	if (p->hold.hold == RIGHT_NONE)
		e = frame_of_owed(d, p, m);
	else if (!p->no_frame)
		e = frame_of_copy(d, p);
	return e ? e : holder_on_reinstate(&p->hold, &p->at, m, out);
}
