/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A new epoch, page by page (docs/nodes/failures.md). Work under way ends, this node reports its
 * pages, and entries of this shard are made from reports. The rules are those of rebuild.c. This
 * file applies them to frames, and to nodes that are away.
 *
 * Keeps invariant 1: a page that an unreported node may have is not granted. Keeps invariant 2: an
 * image that was given up unpersisted stays owed, and the newest remaining image becomes the
 * page's.
 */
#include "engine/coherence/driver/driver_internal.h"

/* ---- the old epoch ends ------------------------------------------------------------------ */

static void rebuild_clear(struct page_record *p)
{
	struct home_entry unused = {0};

	rebuild_begin(&unused, &p->rebuild);
	p->reported = p->awaited = false;
	p->reinstating = NODE_NONE;
	p->report_void = 0;
}

void page_enter(struct page_driver *d, struct page_record *p)
{
	struct page_actions out = {0};

	page_forget_deferred(p);
	page_invalidation_end(d, p);
	p->replay = false;
	p->unsettled |= (p->frame & RECORD_LEAVING) || p->hold.phase == PHASE_ASKED ||
			p->hold.phase == PHASE_GATHERING;
	page_void(&p->hold, &p->at, &out);
	for (unsigned i = 0; i < out.count; i++) {
		if (out.list[i].kind == PAGE_KEEP_OWED)
			record_set(p, RECORD_KEEP_OWED);
		else if (out.list[i].kind == PAGE_DROP_FRAME)
			frame_dropped(d, p);
	}
	if (p->evicting && p->asked_evict)
		evict_answered(d, p, true);
	if (p->pending && !p->pending->done)
		p->pending->asked = false;
	rebuild_clear(p);
	if (p->has_entry)
		rebuild_begin(&p->entry, &p->rebuild);
}

/*
 * Checks that the cache has the image that the hold says is owed. The image may have been another
 * node's, which keeps it. Or the page has been freed and allocated anew. The cache may have an
 * earlier image of its own.
 */
static void owed_look(struct page_driver *d, struct page_record *p)
{
	const struct page_hold *h = &p->hold;
	uint64_t incarnation = 0, version = 0;

	if ((!h->owed_incarnation && !h->owed_version) || (p->frame & RECORD_VACATE))
		return;
	(void)d->base.frames->owed(d->base.cache, p->at.pid, &incarnation, &version);
	holder_owes(&p->hold, incarnation, version, h->logged);
}

void page_close(struct page_driver *d, struct page_record *p)
{
	/* Nobody reads the shipped image any more. It is shipped again later: the home may have to
	 * rebuild first, and needs the owed image for that. */
	ships_persisted(d, p, 0, 0, -EHOSTDOWN);
	owed_look(d, p);
	if (!p->unsettled)
		return;
	p->unsettled = false;
	if (!p->evicting)
		frame_stays(d, p);
}

/* ---- reports ----------------------------------------------------------------------------- */

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

void report_page(const struct page_record *p, struct report_list *list)
{
	struct page_actions out = {0};

	page_report(&p->hold, &p->at, &out);
	for (unsigned i = 0; i < out.count; i++) {
		list->to[list->count] = p->at.home;
		list->m[list->count++] = out.list[i].m;
	}
}

/* Sends the report as it was under the page's lock. Later changes come from images that the home
 * has persisted meanwhile. The home knows these better. */
static int report_send(
	struct page_driver *d, uint64_t epoch, unsigned node, const struct page_message *m)
{
	struct net_peer *peer = net_peer_find(d->o.net, (uint16_t)node);
	struct net_message out;
	int rc;

	memcpy(&out, m, sizeof(out));
	out.epoch = epoch;
	while (peer && view_connected(d, node)) {
		if (view_epoch(d) != epoch ||
			atomic_load_explicit(&d->stopping, memory_order_acquire))
			return -EAGAIN;
		rc = net_send(peer, &out, m->type == PAGE_REPORT ? NET_MORE : 0);
		if (rc != -EAGAIN)
			break; /* or its link is down, and it is told in the next epoch */
		net_flush(d->o.net);
		(void)net_wait_room(peer, rt_now_ns() + 100000000);
	}
	return 0;
}

int report_all(struct page_driver *d, uint64_t epoch)
{
	struct report_list list = {0};
	struct page_message end = {.type = PAGE_REPORTED, .sender = d->o.self};
	int rc = 0;

	for (unsigned at = 0; at < PAGE_PARTITIONS * d->buckets && !rc; at++) {
		rc = page_bucket_reports(d, at, epoch, &list);
		if (rc == -ENOMEM) {
			rt_sleep_ns(REVOKE_POLL_NS);
			rc = 0;
			at--;
			continue;
		}
		for (unsigned i = 0; i < list.count && !rc; i++)
			rc = report_send(d, epoch, list.to[i], &list.m[i]);
		atomic_fetch_add_explicit(
			&d->view.pages_reported, list.count, memory_order_relaxed);
		list.count = 0;
	}
	for (unsigned n = 0; n < PAGE_NODES_MAX && !rc; n++)
		rc = report_send(d, epoch, n, &end);
	rt_free(list.m);
	rt_free(list.to);
	return rc;
}

/* ---- entries ----------------------------------------------------------------------------- */

/*
 * Returns true if the page is shared as it is persisted. Then a node must be granted it anew to
 * change it. Zeros of an incarnation that was never written do not count. Only their sharers know
 * of them. Images that other nodes owe are of an earlier incarnation.
 */
static bool as_persisted(const struct home_entry *e)
{
	return e->current && e->incarnation == e->stored_incarnation;
}

void page_note_may(struct page_record *p)
{
	const struct home_entry *e = &p->entry;

	if (!p->has_entry || e->mode == HOME_REBUILDING)
		return;
	/* unowned: the last holder had it from all the others before */
	if (e->mode == HOME_NONE && !e->owing)
		p->may = 0;
	else
		p->may |= e->holders | e->owing;
	if (as_persisted(e))
		p->changed = e->owing;
	else
		p->changed |= e->holders | e->owing;
}

static void set_awaited(struct page_driver *d, struct page_record *p, bool awaited)
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

void page_rebuild_opened(struct page_driver *d, struct page_record *p)
{
	struct home_rebuild unused;

	if (!p->reported)
		rebuild_begin(&p->entry, &p->rebuild);
	else
		rebuild_begin(&p->entry, &unused);
	p->unmade = true;
	page_rebuild(d, p);
}

/* Returns the nodes that may have something of the page and have not reported in this epoch. */
static node_map unreported_nodes(const struct page_driver *d, const struct page_record *p)
{
	const struct view *v = &d->view;
	node_map reported = atomic_load_explicit(&v->reported, memory_order_acquire);
	node_map left = atomic_load_explicit(&v->left, memory_order_acquire);
	node_map may = p->may | atomic_load_explicit(&v->unreported, memory_order_acquire);

	return may & ~((reported & ~p->report_void) | left | node_bit(d->o.self));
}

/* Of these, the nodes that may still read it. A dead node has no frames, only a log. */
static node_map unreported_readers(const struct page_driver *d, const struct page_record *p)
{
	return unreported_nodes(d, p) & ~atomic_load_explicit(&d->view.dead, memory_order_acquire);
}

/* Of these, the nodes that may have a newer image than all others have. */
static node_map unreported_writers(const struct page_driver *d, const struct page_record *p)
{
	return unreported_nodes(d, p) & (p->changed | atomic_load_explicit(&d->view.unreported,
						    memory_order_acquire));
}

/* Adds the reports of all nodes, with that of this node itself. */
static int all_reports(const struct page_record *p, struct home_rebuild *r)
{
	struct page_actions own = {0};
	int rc = 0;

	*r = p->rebuild;
	page_report(&p->hold, &p->at, &own);
	for (unsigned i = 0; i < own.count && !rc; i++)
		rc = rebuild_on_report(r, &own.list[i].m);
	return rc;
}

static void take_rebuilt(struct page_driver *d, struct page_record *p, const struct home_entry *e,
	const struct page_actions *out)
{
	node_map away = unreported_nodes(d, p);

	p->entry = *e;
	p->may = e->holders | e->owing | (e->mode == HOME_NONE ? 0 : away);
	/* a node that is away owes its changes until that image or a later one is persisted */
	if (as_persisted(e))
		p->changed = e->owing;
	else
		p->changed = e->owing | e->holders | (p->changed & away);
	p->reported = p->unmade = false;
	atomic_fetch_add_explicit(&d->view.pages_rebuilt, 1, memory_order_relaxed);
	page_perform(d, p, NULL, out);
	p->replay = true;
}

/* Performs the actions of this node's own hold. (all_reports adds its reports each time.) */
static void perform_here(
	struct page_driver *d, struct page_record *p, const struct page_actions *actions)
{
	struct page_actions out = {0};

	for (unsigned i = 0; i < actions->count; i++)
		if (actions->list[i].kind != PAGE_SEND)
			out.list[out.count++] = actions->list[i];
	page_perform(d, p, NULL, &out);
}

/* Reinstates the node with the newest image. It has no right to the page, or is no source, or a
 * node shares an older image. */
static void reinstate_newest(struct page_driver *d, struct page_record *p,
	const struct page_actions *out)
{
	const struct page_action *a = &out->list[0];
	unsigned node = (unsigned)__builtin_ctzll(a->nodes);
	bool asked = p->reinstating == node;

	p->reinstating = (uint16_t)node;
	if (node == d->o.self) {
		struct page_actions here = {0};

		set_awaited(d, p, true);
		if (rebuild_reinstate(d, p, &a->m, &here)) {
			page_revoke_later(d, p); /* which comes back here */
			return;
		}
		p->reinstating = NODE_NONE;
		perform_here(d, p, &here);
		page_rebuild(d, p);
	} else if (view_connected(d, node)) {
		set_awaited(d, p, true);
		if (!asked)
			wire_send(d, node, &a->m);
	} else {
		set_awaited(d, p, false); /* until it is back */
		p->replay = true;         /* requests are refused until then */
	}
}

void page_rebuild(struct page_driver *d, struct page_record *p)
{
	struct home_entry e = p->entry;
	struct page_actions out = {0};
	struct home_rebuild r;
	int rc;

	if (!atomic_load_explicit(&d->view.rebuilding, memory_order_acquire) ||
		!p->has_entry || e.mode != HOME_REBUILDING)
		return;
	/*
	 * An image that was shipped in an earlier epoch is still being written. It may be the
	 * newest image left, and the node that owes it is told so. The end of the write comes back
	 * here.
	 */
	if (p->work == WORK_STORING) {
		set_awaited(d, p, true);
		return;
	}
	rc = all_reports(p, &r);
	r.redone = p->unmade;
	if (!rc)
		rc = rebuild_end(&e, &r, &p->at, unreported_readers(d, p), &out);
	/* an owed image is the newest only if nobody else may have a later one */
	if (rc == -EAGAIN && (r.sharers || !unreported_writers(d, p))) {
		reinstate_newest(d, p, &out);
		return;
	}
	if (rc && rc != -EAGAIN) {
		weft_log(3,
			"the nodes' reports about this page contradict each other, so "
			"it waits for the next epoch: owner %u, sharers %llx, source "
			"%u, v%llu.%llu; image awaited from %u v%llu.%llu",
			p->rebuild.owner, (unsigned long long)p->rebuild.sharers,
			p->rebuild.source, (unsigned long long)p->rebuild.incarnation,
			(unsigned long long)p->rebuild.version, p->rebuild.owed_by,
			(unsigned long long)p->rebuild.owed_incarnation,
			(unsigned long long)p->rebuild.owed_version);
		page_dump(d, p);
		DCOUNT(d, impossible);
	} else if (!rc && (r.owner != NODE_NONE || r.sharers || !unreported_writers(d, p))) {
		take_rebuilt(d, p, &e, &out);
	}
	set_awaited(d, p, false);
	p->replay |= p->entry.mode == HOME_REBUILDING; /* requests are refused until then */
}

node_map rebuild_awaits(const struct page_driver *d, const struct page_record *p)
{
	if (!atomic_load_explicit(&d->view.rebuilding, memory_order_acquire) ||
		!p->has_entry || p->entry.mode != HOME_REBUILDING || p->awaited)
		return 0;
	return unreported_writers(d, p) ? unreported_writers(d, p) : unreported_nodes(d, p);
}

int rebuild_report(struct page_driver *d, struct page_record *p, const struct page_message *m)
{
	int rc;

	if (p->has_entry && p->entry.mode != HOME_REBUILDING) {
		/* The second report of a node that was reinstated. Or the report of a node that was
		 * not told that the image is persisted, of a page without holders. */
		struct page_message told = {.type = PAGE_PERSISTED,
			.sender = d->o.self,
			.pid = p->at.pid,
			.incarnation = p->entry.stored_incarnation,
			.version = p->entry.stored_version,
			.source = NODE_NONE};

		if (!(m->flags & PAGE_OWED))
			return -EPROTO;
		if (p->entry.mode != HOME_NONE)
			home_owed_by(&p->entry, m->sender);
		wire_send(d, m->sender, &told);
		return 0;
	}
	if (!p->has_entry && !p->reported)
		rebuild_clear(p);
	rc = rebuild_on_report(&p->rebuild, m);
	if (rc)
		return rc;
	p->reported = true;
	atomic_fetch_add_explicit(&d->view.pages_received, 1, memory_order_relaxed);
	p->may |= node_bit(m->sender);
	p->changed |= node_bit(m->sender);
	if (p->reinstating == m->sender)
		p->reinstating = NODE_NONE;
	if (p->has_entry)
		page_rebuild(d, p);
	else
		set_awaited(d, p, true); /* it is being opened */
	return 0;
}

void rebuild_without(struct page_driver *d, struct page_record *p, unsigned node)
{
	p->reinstating = NODE_NONE;
	if (p->rebuild.source == node)
		p->rebuild.source = NODE_NONE;
	if (p->rebuild.sharers & ~node_bit(node)) {
		p->rebuild.sharers &= ~node_bit(node); /* another has the same image */
		p->report_void |= node_bit(node);
	}
	page_rebuild(d, p);
}

/* ---- reinstated: this node's image is the newest left ------------------------------------ */

/*
 * Returns true if the page may be fetched once more. It came for a call that waits for other nodes,
 * and went again, or was refused to that call. The call may be waiting for this very rebuild, with
 * the only frame that the page can have. That includes a frame that had the page before
 * (FETCH_HELD).
 */
static bool may_refill(const struct page_record *p)
{
	const struct pending_request *w = p->pending;

	return !p->ops && (!w->result || w->result == -EHOSTUNREACH);
}

/* The owed image's frame becomes the page's again; or the frame of a request for the page
 * gets the image. (A free frame might be had only by evictions that wait for the home.) */
static int frame_of_owed(struct page_driver *d, struct page_record *p, const struct page_message *m)
{
	const struct coherence_frames *frames = d->base.frames;
	struct pending_request *w = p->pending;
	void *image;
	int rc;

	if ((p->frame & RECORD_VACATE) ||
		p->unsettled) /* it becomes owed when that ends */
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
		holder_placed(&p->hold, place_of(d, w->request->image));
		return 0;
	}
	rc = frames->reown(d->base.cache, p->at.pid, m->incarnation, m->version, &image);
	if (!rc)
		holder_placed(&p->hold, place_of(d, image));
	return rc;
}

/* The frame of the shared copy becomes dirty. */
static int frame_of_copy(struct page_driver *d, struct page_record *p)
{
	const struct pending_request *w = p->pending;

	if (p->unsettled)
		return -EAGAIN;
	if (w && w->request->held == PAGE_INVALID)
		return 0; /* its call is about to end, and hears it then */
	return d->base.frames->adopt(d->base.cache, p->at.pid, w != NULL);
}

int rebuild_reinstate(struct page_driver *d, struct page_record *p, const struct page_message *m,
	struct page_actions *out)
{
	struct page_hold h = p->hold;
	struct page_actions unused = {0};
	bool busy = false;
	int rc = holder_on_reinstate(&h, &p->at, m, &unused);

	if (rc)
		return rc;
	if (m->flags & PAGE_FREED) {
		/* a log has a later one: nothing needs to be owed, for which there may be no
		 * room */
		d->base.frames->persisted(
			d->base.cache, p->at.pid, m->incarnation, m->version);
		if (p->unsettled || !page_revoke_ready(d, p, m, &busy))
			return -EAGAIN;
		return holder_on_reinstate(&p->hold, &p->at, m, out);
	}
	if (m->mode == RIGHT_SHARED)
		return holder_on_reinstate(&p->hold, &p->at, m, out);
	if (p->hold.hold == RIGHT_NONE)
		rc = frame_of_owed(d, p, m);
	else if (!(p->frame & RECORD_LOST))
		rc = frame_of_copy(d, p);
	return rc ? rc : holder_on_reinstate(&p->hold, &p->at, m, out);
}
