/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cluster epoch (docs/nodes/failures.md): a number that grows when a link is made anew, or
 * stays down. A link of two nodes that have nothing of each other leaves it alone. Connected nodes
 * agree on it without a coordinator: a node that receives a higher one enters it, and sends it on.
 *
 * Keeps:
 *
 * - Within an epoch, no message between two nodes is lost before one that arrives. The page
 *   protocol relies on this.
 * - A frame that a peer may still write, by a request of an earlier epoch, is not used for another
 *   purpose. An image that a peer may still read is not changed. (page_close comes when all nodes
 *   have said that they are in the epoch.)
 * - This shard's pages are granted only when all connected nodes have reported (invariants 1, 2,
 *   7).
 *
 * Locks: the view's, then those of partitions. An epoch is entered under all of them, so the
 * messages that follow from a page's event are sent in the epoch of the event.
 */
#include "engine/coherence/driver/driver_internal.h"

#define EPOCH_MAX (1ull << 62) /* no node that keeps the rules gets there */

void view_open(struct page_driver *d)
{
	struct view *v = &d->view;
	node_map members;

	for (unsigned shard = 0; shard < SHARDS_MAX; shard++) {
		unsigned home = d->o.home(d->o.owner, (uint16_t)shard);

		v->homes |= home < PAGE_NODES_MAX ? node_bit(home) : 0;
	}
	members = d->o.members ? d->o.members : v->homes;
	v->epoch = v->closed_epoch = v->reported_epoch = v->rebuilt_epoch =
		v->ready_epoch = d->o.cluster_epoch;
	v->left = d->o.left | ~members;
	if (!(v->homes & node_bit(d->o.self)))
		v->left = ~0ull; /* nobody has anything of no shard */
	v->left &= ~node_bit(d->o.self);
	v->unreported = members & ~node_bit(d->o.self) & ~v->left;
	v->dead = d->o.dead & ~node_bit(d->o.self);
	v->ready = v->resumed = v->in_epoch = node_bit(d->o.self);
	v->rebuilding = true;
	atomic_store_explicit(&v->look_ns, RT_FOREVER, memory_order_relaxed);
}

void view_wake(struct page_driver *d)
{
	atomic_fetch_add_explicit(&d->view.word, 1, memory_order_release);
	rt_wake(&d->view.word, INT32_MAX);
}

/* ---- what nodes say to each other ------------------------------------------------------------ */

static void epoch_send(struct page_driver *d, unsigned node, enum page_message_type type)
{
	struct net_peer *peer = net_peer_find(d->o.net, (uint16_t)node);
	struct page_message m = {
		.type = (uint16_t)type,
		.sender = d->o.self,
		.cluster_epoch = view_epoch(d),
	};
	struct net_message out;

	memcpy(&out, &m, sizeof(out));
	if (peer)
		(void)net_send(peer, &out, NET_URGENT); /* no room: cut, and told so */
}

static void epoch_send_all(struct page_driver *d, enum page_message_type type)
{
	for (unsigned n = 0; n < PAGE_NODES_MAX; n++)
		if (d->view.member[n].link != LINK_AWAY)
			epoch_send(d, n, type);
}

/* ---- entering ---------------------------------------------------------------------------- */

/* Under the view's lock, for status output. Epochs that begin before all nodes go on are one
 * change. */
static void change_begins(struct view *v)
{
	if (!v->began_ns || v->resumed_ns) {
		v->began_ns = rt_now_ns();
		v->resumed_ns = 0;
	}
	v->served_ns = 0;
	atomic_store_explicit(&v->pages_reported, 0, memory_order_relaxed);
	atomic_store_explicit(&v->pages_received, 0, memory_order_relaxed);
	atomic_store_explicit(&v->pages_rebuilt, 0, memory_order_relaxed);
}

/* Checks that all nodes that can be asked serve. A node without a shard says READY, too. */
static void change_ends(struct page_driver *d)
{
	struct view *v = &d->view;
	uint64_t epoch = view_epoch(d), received, reported;

	if (v->resumed_ns || v->ready_epoch != epoch)
		return;
	for (unsigned n = 0; n < PAGE_NODES_MAX; n++)
		if (v->member[n].link == LINK_GREETING ||
			(v->member[n].link == LINK_CONNECTED &&
				!(atomic_load_explicit(&v->ready, memory_order_relaxed) &
					node_bit(n))))
			return;
	v->resumed_ns = MAX(rt_now_ns() - v->began_ns, 1);
	received = atomic_load_explicit(&v->pages_received, memory_order_relaxed);
	reported = atomic_load_explicit(&v->pages_reported, memory_order_relaxed);
	if (received + reported)
		weft_log(6,
			"service resumed in cluster epoch %llu after %.2f s: %llu "
			"pages reported to other nodes, %llu by them; %llu entries "
			"rebuilt in %.2f s",
			(unsigned long long)epoch, (double)v->resumed_ns / 1e9,
			(unsigned long long)reported, (unsigned long long)received,
			(unsigned long long)atomic_load_explicit(
				&v->pages_rebuilt, memory_order_relaxed),
			(double)v->served_ns / 1e9);
}

void driver_change(struct coherence *c, struct coherence_change *out)
{
	struct page_driver *d = driver_of(c);
	struct view *v = &d->view;

	rt_mutex_lock(&v->lock);
	*out = (struct coherence_change){
		.epoch = view_epoch(d),
		.began_ns = v->began_ns,
		.served_ns = v->served_ns,
		.resumed_ns = v->resumed_ns,
		.reported =
			atomic_load_explicit(&v->pages_reported, memory_order_relaxed),
		.received = atomic_load_explicit(&v->pages_received, memory_order_relaxed),
		.rebuilt = atomic_load_explicit(&v->pages_rebuilt, memory_order_relaxed),
	};
	rt_mutex_unlock(&v->lock);
}

static void view_look_at(struct view *v, uint64_t ns)
{
	atomic_store_explicit(&v->look_ns, ns, memory_order_relaxed);
}

/* Under the view's lock. `connects`: the node that is connected from now on; or 0. */
static void view_enter(struct page_driver *d, uint64_t epoch, node_map connects)
{
	struct view *v = &d->view;

	/* a link that was lost before needs no epoch of its own any more */
	for (unsigned n = 0; n < PAGE_NODES_MAX; n++)
		if (v->member[n].link != LINK_CONNECTED)
			v->member[n].epoch_due = false;
	page_all_lock(d);
	atomic_store_explicit(&v->epoch, epoch, memory_order_relaxed);
	atomic_store_explicit(&v->unasked, 0, memory_order_relaxed);
	change_begins(v); /* nobody reports for the epoch before any more */
	connects |= atomic_fetch_or_explicit(&v->connected, connects, memory_order_release);
	atomic_store_explicit(
		&v->in_epoch, connects | node_bit(d->o.self), memory_order_release);
	atomic_store_explicit(&v->reported, 0, memory_order_relaxed);
	atomic_store_explicit(&v->ready, 0, memory_order_relaxed);
	atomic_store_explicit(&v->resumed, 0, memory_order_relaxed);
	view_look_at(v, RT_FOREVER); /* nothing is due any more */
	atomic_store_explicit(&v->rebuilding, false, memory_order_relaxed);
	atomic_store_explicit(&v->awaited, 0, memory_order_relaxed);
	page_each_locked(d, page_enter);
	page_all_unlock(d);
	epoch_send_all(d, PAGE_EPOCH);
}

/*
 * Returns true if the two nodes have nothing of each other, and no page of this node waits for the
 * other one. Then no awaited message between them can be missing. So the link begins no epoch
 * (docs/protocol.md, "A link that concerns nobody").
 */
static bool link_concerns_nobody(struct page_driver *d, unsigned node)
{
	struct view *v = &d->view;
	const struct member *m = &v->member[node];

	return m->had_left && !m->epoch_due &&
	       !(atomic_load_explicit(&v->unasked, memory_order_acquire) & node_bit(node)) &&
	       !((v->homes & node_bit(node)) && page_any_of(d, node));
}

/* Takes the node into this epoch, and tells it the steps that this node has done. There is no page
 * of its shard to report. */
static void view_join(struct page_driver *d, unsigned node)
{
	struct view *v = &d->view;

	atomic_fetch_or_explicit(&v->in_epoch, node_bit(node), memory_order_release);
	atomic_fetch_or_explicit(&v->connected, node_bit(node), memory_order_release);
	epoch_send(d, node, PAGE_REPORTED);
	if (v->ready_epoch == view_epoch(d))
		epoch_send(d, node, PAGE_READY);
}

static void on_epoch(struct page_driver *d, unsigned node, uint64_t epoch)
{
	struct member *m = &d->view.member[node];
	uint64_t mine = view_epoch(d);
	bool joins;

	if (m->link == LINK_AWAY) /* given up */
		return;
	m->entered_epoch = epoch;
	if (m->link == LINK_GREETING) {
		joins = link_concerns_nobody(d, node);
		m->link = LINK_CONNECTED;
		m->epoch_due = false;
		if (!joins)
			view_enter(d, MAX(mine, epoch) + 1, node_bit(node));
		else if (epoch > mine)
			view_enter(d, epoch, node_bit(node));
		else
			view_join(d, node);
	} else if (epoch > mine) {
		view_enter(d, epoch, 0);
	}
}

void view_message(struct page_driver *d, unsigned node, const struct page_message *m)
{
	struct view *v = &d->view;
	uint64_t epoch = m->cluster_epoch;

	if (epoch >= EPOCH_MAX) {
		wire_cut(d, node, -EPROTO, "it sent an impossible", m);
		return;
	}
	rt_mutex_lock(&v->lock);
	if (m->type == PAGE_EPOCH) {
		on_epoch(d, node, epoch);
	} else if (v->member[node].link == LINK_CONNECTED && epoch == view_epoch(d)) {
		if (m->type == PAGE_REPORTED) {
			v->member[node].reported_epoch = epoch;
			atomic_fetch_or_explicit(
				&v->reported, node_bit(node), memory_order_release);
			atomic_fetch_and_explicit(
				&v->unreported, ~node_bit(node), memory_order_release);
		} else {
			atomic_fetch_or_explicit(
				&v->ready, node_bit(node), memory_order_release);
			change_ends(d);
		}
	}
	rt_mutex_unlock(&v->lock);
	view_wake(d);
}

/* ---- links ------------------------------------------------------------------------------- */

static bool defers_of(const struct page_record *p, unsigned node)
{
	for (const struct deferred *f = p->deferred; f; f = f->next)
		if (f->m.sender == node)
			return true;
	return false;
}

struct lost {
	unsigned node;
	bool awaited; /* a page here waits for an answer of the node, or the node for one of it */
};

/* Compact records have no work under way. */
static void link_lost(struct page_driver *d, struct page_record *p, void *arg)
{
	struct lost *l = arg;
	unsigned node = l->node;

	l->awaited |= p->hold.phase == PHASE_GATHERING && (p->hold.need & node_bit(node));
	l->awaited |= defers_of(p, node);
	if (p->reinstating == node)
		rebuild_without(d, p, node);
	if (p->at.home != node)
		return;
	l->awaited |= p->hold.phase == PHASE_ASKED;
	ships_persisted(d, p, 0, 0, -EHOSTDOWN);
	/* whether it has gone is not known before the home is back; nobody waits for that */
	if (p->evicting && p->asked_evict) {
		batch_one_done(d, p->evicting);
		p->evicting = NULL;
	}
}

void view_link(struct page_driver *d, unsigned node, bool up)
{
	struct view *v = &d->view;
	struct member *m = &v->member[node];
	struct lost lost = {.node = node};
	bool used;

	rt_mutex_lock(&v->lock);
	used = m->link == LINK_CONNECTED;
	/* of a link that was never used, nothing is due */
	if (!up && m->link == LINK_GREETING && m->had_left)
		atomic_fetch_or_explicit(&v->left, node_bit(node), memory_order_release);
	*m = (struct member){.link = up ? LINK_GREETING : LINK_AWAY,
		.epoch_due = m->epoch_due || m->link == LINK_CONNECTED,
		.had_left = atomic_load_explicit(&v->left, memory_order_relaxed) >> node & 1};
	if (up) {
		atomic_fetch_and_explicit(
			&v->left, ~node_bit(node), memory_order_release);
		atomic_fetch_and_explicit(
			&v->dead, ~node_bit(node), memory_order_release);
	}
	atomic_fetch_and_explicit(&v->connected, ~node_bit(node), memory_order_release);
	atomic_fetch_and_explicit(&v->ready, ~node_bit(node), memory_order_release);
	if (up)
		epoch_send(d, node, PAGE_EPOCH);
	else
		page_each_busy(d, link_lost, &lost);
	/* two nodes without shards only ask each other, and answer */
	if (!up && used && !lost.awaited && !(v->homes & (node_bit(node) | node_bit(d->o.self))))
		atomic_fetch_or_explicit(&v->left, node_bit(node), memory_order_release);
	if ((atomic_load_explicit(&v->left, memory_order_relaxed) & node_bit(node)) &&
		!lost.awaited)
		m->epoch_due = false;
	if (!up && m->epoch_due)
		view_look_at(v, MIN(v->look_ns, rt_now_ns() + LOST_NS));
	change_ends(d);
	rt_mutex_unlock(&v->lock);
	view_wake(d);
}

void view_unasked(struct page_driver *d, unsigned node)
{
	atomic_fetch_or_explicit(&d->view.unasked, node_bit(node), memory_order_release);
	view_wake(d);
}

/* A grant that was late may name a node that has left since. An epoch ends the wait for it: soon if
 * the node is away, at once if its link has come up meanwhile. */
static void unasked_look(struct page_driver *d)
{
	struct view *v = &d->view;
	node_map unasked = atomic_load_explicit(&v->unasked, memory_order_acquire);
	bool due = false;

	for (; unasked; unasked &= unasked - 1) {
		struct member *m = &v->member[__builtin_ctzll(unasked)];

		due |= m->link == LINK_CONNECTED;
		if (m->link != LINK_AWAY || m->epoch_due)
			continue;
		m->epoch_due = true;
		view_look_at(v, MIN(v->look_ns, rt_now_ns() + LOST_NS));
	}
	if (due)
		view_enter(d, view_epoch(d) + 1, 0);
}

/*
 * A link was lost a while ago, and not made anew. Tasks that wait for it hold frames, and keep
 * others behind them. Entries name a node that is away, though another one could give. A new epoch
 * ends that. Then requests for pages that the node may have are refused. Returns the time of the
 * next look.
 */
static uint64_t view_look(struct page_driver *d)
{
	struct view *v = &d->view;
	bool due = false;
	uint64_t next_ns;

	rt_mutex_lock(&v->lock);
	unasked_look(d);
	if (rt_now_ns() >= v->look_ns) {
		for (unsigned n = 0; n < PAGE_NODES_MAX; n++)
			due |= v->member[n].link == LINK_AWAY && v->member[n].epoch_due;
		if (due)
			view_enter(d, view_epoch(d) + 1, 0);
		view_look_at(v, RT_FOREVER);
	}
	next_ns = v->look_ns;
	rt_mutex_unlock(&v->lock);
	return next_ns;
}

struct leaving {
	unsigned node;
	bool holds;
};

static void look_left(struct page_driver *d, struct page_record *p, void *arg)
{
	struct leaving *l = arg;

	/* all holders have asked for a page that is being rebuilt */
	l->holds |= p->has_entry && p->entry.mode != HOME_REBUILDING &&
		    (p->entry.holders & node_bit(l->node));
	/* a message of it would come after it is back */
	l->holds |= defers_of(p, l->node);
}

/* Forgets the images that the node has said it owes, and the pages that it may have. */
static void forget_left(struct page_driver *d, struct page_record *p, void *arg)
{
	const struct leaving *l = arg;

	if (p->at.home != d->o.self)
		return;
	p->may &= ~node_bit(l->node);
	p->changed &= ~node_bit(l->node);
	if (p->has_entry)
		home_not_owed_by(&p->entry, l->node);
}

int view_left(struct page_driver *d, unsigned node)
{
	struct leaving l = {.node = node};
	struct view *v = &d->view;
	int rc = 0;

	rt_mutex_lock(&v->lock);
	if (v->member[node].link != LINK_CONNECTED)
		rc = -ENOTCONN;
	if (!rc)
		page_each(d, look_left, &l);
	if (l.holds)
		rc = -EBUSY;
	if (!rc) {
		atomic_fetch_or_explicit(&v->left, node_bit(node), memory_order_release);
		atomic_fetch_and_explicit(
			&v->unreported, ~node_bit(node), memory_order_release);
		page_each(d, forget_left, &l);
	}
	rt_mutex_unlock(&v->lock);
	return rc;
}

static void look_vacant(struct page_driver *d, struct page_record *p, void *arg)
{
	struct home_entry e = p->entry;
	struct leaving *l = arg;

	l->holds |= defers_of(p, l->node) ||
		    (p->has_entry && !home_shared_nothing(&e, &p->at, l->node));
}

static void forget_vacant(struct page_driver *d, struct page_record *p, void *arg)
{
	const struct leaving *l = arg;

	forget_left(d, p, arg);
	if (p->has_entry)
		(void)home_shared_nothing(&p->entry, &p->at, l->node);
}

void view_vacant(struct page_driver *d, unsigned node)
{
	struct leaving l = {.node = node};
	struct view *v = &d->view;

	rt_mutex_lock(&v->lock);
	if (v->member[node].link == LINK_AWAY &&
		!(atomic_load_explicit(&v->left, memory_order_relaxed) &
			node_bit(node))) {
		/* its reports may be in entries that are being made */
		l.holds = atomic_load_explicit(&v->reported, memory_order_relaxed) &
			  node_bit(node);
		if (!l.holds)
			page_each(d, look_vacant, &l);
		atomic_fetch_or_explicit(&v->left, node_bit(node), memory_order_release);
		atomic_fetch_and_explicit(
			&v->unreported, ~node_bit(node), memory_order_release);
		if (l.holds) {
			/* entries say so until they are made anew */
			view_enter(d, view_epoch(d) + 1, 0);
		} else {
			page_each(d, forget_vacant, &l);
			v->rebuild_anew = true; /* of pages that waited for this node */
		}
	}
	rt_mutex_unlock(&v->lock);
	view_wake(d);
}

void view_dead(struct page_driver *d, unsigned node)
{
	struct view *v = &d->view;
	node_map known;

	rt_mutex_lock(&v->lock);
	known = atomic_load_explicit(&v->left, memory_order_relaxed) |
		atomic_load_explicit(&v->dead, memory_order_relaxed);
	if (v->member[node].link == LINK_AWAY && !(known & node_bit(node))) {
		atomic_fetch_or_explicit(&v->dead, node_bit(node), memory_order_release);
		/* entries say that the node shares its pages until they are made anew */
		view_enter(d, view_epoch(d) + 1, 0);
	}
	rt_mutex_unlock(&v->lock);
	view_wake(d);
}

/* ---- what follows, by a task ------------------------------------------------------------- */

enum step { STEP_NONE, STEP_CLOSE, STEP_REPORT, STEP_REBUILD, STEP_READY, STEP_RESUME };

static bool all_entered(const struct view *v, uint64_t epoch)
{
	for (unsigned n = 0; n < PAGE_NODES_MAX; n++)
		if (v->member[n].link == LINK_CONNECTED && v->member[n].entered_epoch != epoch)
			return false;
	return true;
}

static bool all_reported(const struct view *v, uint64_t epoch)
{
	for (unsigned n = 0; n < PAGE_NODES_MAX; n++)
		if (v->member[n].link == LINK_CONNECTED && v->member[n].reported_epoch != epoch)
			return false;
	return true;
}

/* Returns the next step, under the view's lock. */
static enum step next_step(struct view *v, uint64_t epoch)
{
	if (v->closed_epoch != epoch)
		return all_entered(v, epoch) ? STEP_CLOSE : STEP_NONE;
	if (v->reported_epoch != epoch)
		return STEP_REPORT;
	if ((v->rebuilt_epoch != epoch || v->rebuild_anew) && all_reported(v, epoch))
		return STEP_REBUILD;
	if (v->rebuilt_epoch == epoch && v->ready_epoch != epoch &&
		!atomic_load_explicit(&v->awaited, memory_order_acquire))
		return STEP_READY;
	if (atomic_load_explicit(&v->ready, memory_order_relaxed) &
		~atomic_load_explicit(&v->resumed, memory_order_relaxed) & v->homes)
		return STEP_RESUME; /* nothing waits for a node without a shard */
	return STEP_NONE;
}

struct walk {
	uint64_t epoch;
	bool late; /* the epoch has changed since */
};

static void close_page(struct page_driver *d, struct page_record *p, void *arg)
{
	struct walk *w = arg;

	w->late |= view_epoch(d) != w->epoch;
	if (!w->late)
		page_close(d, p);
}

static void rebuild_page(struct page_driver *d, struct page_record *p, void *arg)
{
	struct walk *w = arg;

	w->late |= view_epoch(d) != w->epoch;
	if (!w->late && p->has_entry && p->entry.mode == HOME_REBUILDING)
		page_rebuild(d, p);
}

/* To be settled is all there is to do. */
static void resume_page(struct page_driver *d, struct page_record *p, void *arg)
{
}

static bool run_walk(struct page_driver *d, uint64_t epoch,
	void (*fn)(struct page_driver *d, struct page_record *p, void *arg))
{
	struct walk w = {.epoch = epoch};

	page_each(d, fn, &w);
	return !w.late;
}

/* Under the view's lock, if the epoch still is this one. */
static void step_done(struct page_driver *d, enum step step, uint64_t epoch)
{
	struct view *v = &d->view;

	switch (step) {
	case STEP_CLOSE:
		v->closed_epoch = epoch;
		break;
	case STEP_REPORT:
		v->reported_epoch = epoch;
		break;
	case STEP_REBUILD:
		v->rebuilt_epoch = epoch;
		break;
	case STEP_READY:
		v->ready_epoch = epoch;
		atomic_fetch_or_explicit(
			&v->ready, node_bit(d->o.self), memory_order_release);
		for (unsigned n = 0; n < PAGE_NODES_MAX; n++)
			if (v->member[n].link == LINK_CONNECTED)
				epoch_send(d, n, PAGE_READY);
		v->served_ns = MAX(rt_now_ns() - v->began_ns, 1);
		change_ends(d);
		break;
	default:
		break;
	}
}

static bool run_step(struct page_driver *d, enum step step, uint64_t epoch)
{
	switch (step) {
	case STEP_CLOSE:
		return run_walk(d, epoch, close_page);
	case STEP_REPORT:
		return !report_all(d, epoch);
	case STEP_REBUILD:
		return run_walk(d, epoch, rebuild_page);
	case STEP_RESUME:
		return run_walk(d, epoch, resume_page);
	default:
		return true;
	}
}

/* Takes one step. Returns false if there was nothing to do. */
static bool view_step(struct page_driver *d)
{
	struct view *v = &d->view;
	node_map ready;
	enum step step;
	uint64_t epoch;
	bool done;

	rt_mutex_lock(&v->lock);
	epoch = view_epoch(d);
	step = next_step(v, epoch);
	ready = atomic_load_explicit(&v->ready, memory_order_relaxed);
	if (step == STEP_RESUME)
		atomic_store_explicit(&v->resumed, ready, memory_order_relaxed);
	if (step == STEP_REBUILD) {
		atomic_store_explicit(&v->rebuilding, true, memory_order_release);
		v->rebuild_anew = false;
	}
	rt_mutex_unlock(&v->lock);
	if (step == STEP_NONE)
		return false;
	done = run_step(d, step, epoch);
	rt_mutex_lock(&v->lock);
	if (done && view_epoch(d) == epoch)
		step_done(d, step, epoch);
	rt_mutex_unlock(&v->lock);
	return true;
}

void view_main(void *arg)
{
	struct page_driver *d = arg;
	uint32_t word;

	while (rt_goes_on(&d->stopping, &d->view.word, &word)) {
		uint64_t look_ns = view_look(d);

		driver_log_check(d);
		if (!view_step(d))
			rt_wait(&d->view.word, word, look_ns);
	}
}
