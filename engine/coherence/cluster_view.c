/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cluster's epoch (docs/many-nodes.md, "Failures"): a number that grows whenever a link
 * is made anew, or stays down. Nodes that are connected agree on it without a coordinator: who hears of a
 * higher one enters it, and says so.
 *
 * Keeps: within an epoch, no message between two nodes is missing before one that is heard
 * (what all the page protocol rests on); no frame that a peer may still write, by a request
 * of an earlier epoch, is used for anything else, and no image that one may still read is
 * changed (page_close comes when all have said that they are in the epoch); this shard's
 * pages are granted only when all who are connected have reported (1, 2, 7).
 *
 * Locks: the view's, then those of partitions. An epoch is entered under all of them, so
 * what follows from a page's event is sent in the epoch of the event.
 */
#include "engine/coherence/cluster_internal.h"

#define EPOCH_MAX (1ull << 62) /* nobody gets there who keeps the rules */

void view_open(struct cluster *d)
{
	struct view *v = &d->view;
	node_map members = d->o.members;

	if (!members)
		for (unsigned shard = 0; shard < SHARDS_MAX; shard++) {
			unsigned home = d->o.home(d->o.owner, (uint16_t)shard);

			members |= home < PAGE_NODES_MAX ? node_bit(home) : 0;
		}
	v->epoch = v->closed = v->reported = v->rebuilt = v->readied = d->o.cluster_epoch;
	v->left = d->o.left & ~node_bit(d->o.self);
	v->unheard = members & ~node_bit(d->o.self) & ~v->left;
	v->dead = d->o.dead & ~node_bit(d->o.self);
	v->ready = v->resumed = v->within = node_bit(d->o.self);
	v->rebuilding = true;
	v->look_ns = RT_FOREVER;
}

void view_wake(struct cluster *d)
{
	atomic_fetch_add_explicit(&d->view.word, 1, memory_order_release);
	rt_wake(&d->view.word, INT32_MAX);
}

/* ---- what nodes say to each other ------------------------------------------------------------ */

static void tell(struct cluster *d, unsigned node, enum page_message_type type)
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

static void tell_all(struct cluster *d, enum page_message_type type)
{
	for (unsigned n = 0; n < PAGE_NODES_MAX; n++)
		if (d->view.member[n].link != LINK_DOWN)
			tell(d, n, type);
}

/* ---- entering ---------------------------------------------------------------------------------- */

/* Under the view's lock, for people. What begins before all go on is one change. */
static void change_begins(struct view *v)
{
	if (!v->began_ns || v->resumed_ns) {
		v->began_ns = rt_now_ns();
		v->resumed_ns = 0;
	}
	v->served_ns = 0;
	atomic_store_explicit(&v->pages_reported, 0, memory_order_relaxed);
	atomic_store_explicit(&v->pages_heard, 0, memory_order_relaxed);
	atomic_store_explicit(&v->pages_rebuilt, 0, memory_order_relaxed);
}

/* Does everybody serve who can be asked? Who has no shard says READY, too. */
static void change_ends(struct cluster *d)
{
	struct view *v = &d->view;
	uint64_t epoch = view_epoch(d), heard, reported;

	if (v->resumed_ns || v->readied != epoch)
		return;
	for (unsigned n = 0; n < PAGE_NODES_MAX; n++)
		if (v->member[n].link == LINK_NEW ||
			(v->member[n].link == LINK_JOINED &&
				!(atomic_load_explicit(&v->ready, memory_order_relaxed) &
					node_bit(n))))
			return;
	v->resumed_ns = MAX(rt_now_ns() - v->began_ns, 1);
	heard = atomic_load_explicit(&v->pages_heard, memory_order_relaxed);
	reported = atomic_load_explicit(&v->pages_reported, memory_order_relaxed);
	if (heard + reported)
		weft_log(6,
			"all go on in cluster epoch %llu, after %.2f s: %llu pages "
			"reported to "
			"other nodes, %llu by them; %llu entries rebuilt in %.2f s",
			(unsigned long long)epoch, (double)v->resumed_ns / 1e9,
			(unsigned long long)reported, (unsigned long long)heard,
			(unsigned long long)atomic_load_explicit(
				&v->pages_rebuilt, memory_order_relaxed),
			(double)v->served_ns / 1e9);
}

void coherence_cluster_change(struct coherence *c, struct coherence_change *out)
{
	struct cluster *d = cluster_of(c);
	struct view *v = &d->view;

	rt_mutex_lock(&v->lock);
	*out = (struct coherence_change){
		.epoch = view_epoch(d),
		.began_ns = v->began_ns,
		.served_ns = v->served_ns,
		.resumed_ns = v->resumed_ns,
		.reported =
			atomic_load_explicit(&v->pages_reported, memory_order_relaxed),
		.heard = atomic_load_explicit(&v->pages_heard, memory_order_relaxed),
		.rebuilt = atomic_load_explicit(&v->pages_rebuilt, memory_order_relaxed),
	};
	rt_mutex_unlock(&v->lock);
}

/* Under the view's lock. `joins`: a node that hears what is sent from now on. */
static void view_enter(struct cluster *d, uint64_t epoch, node_map joins)
{
	struct view *v = &d->view;

	/* a link that was lost before needs no epoch of its own any more */
	for (unsigned n = 0; n < PAGE_NODES_MAX; n++)
		if (v->member[n].link != LINK_JOINED)
			v->member[n].lost = false;
	page_all_lock(d);
	atomic_store_explicit(&v->epoch, epoch, memory_order_relaxed);
	change_begins(v); /* nobody reports for the epoch before any more */
	joins |= atomic_fetch_or_explicit(&v->joined, joins, memory_order_release);
	atomic_store_explicit(
		&v->within, joins | node_bit(d->o.self), memory_order_release);
	atomic_store_explicit(&v->heard, 0, memory_order_relaxed);
	atomic_store_explicit(&v->ready, 0, memory_order_relaxed);
	atomic_store_explicit(&v->resumed, 0, memory_order_relaxed);
	atomic_store_explicit(&v->rebuilding, false, memory_order_relaxed);
	atomic_store_explicit(&v->awaited, 0, memory_order_relaxed);
	page_each_locked(d, page_enter);
	page_all_unlock(d);
	tell_all(d, PAGE_EPOCH);
}

static void on_epoch(struct cluster *d, unsigned node, uint64_t epoch)
{
	struct member *m = &d->view.member[node];
	uint64_t mine = view_epoch(d);

	if (m->link == LINK_DOWN) /* given up */
		return;
	m->entered = epoch;
	if (m->link == LINK_NEW) {
		m->link = LINK_JOINED;
		m->lost = false;
		view_enter(d, MAX(mine, epoch) + 1, node_bit(node));
	} else if (epoch > mine) {
		view_enter(d, epoch, 0);
	}
}

void view_message(struct cluster *d, unsigned node, const struct page_message *m)
{
	struct view *v = &d->view;
	uint64_t epoch = m->cluster_epoch;

	if (epoch >= EPOCH_MAX) {
		wire_cut(d, node, -EPROTO, "sends an impossible", m);
		return;
	}
	rt_mutex_lock(&v->lock);
	if (m->type == PAGE_EPOCH) {
		on_epoch(d, node, epoch);
	} else if (v->member[node].link == LINK_JOINED && epoch == view_epoch(d)) {
		if (m->type == PAGE_REPORTED) {
			v->member[node].reported = epoch;
			atomic_fetch_or_explicit(
				&v->heard, node_bit(node), memory_order_release);
			atomic_fetch_and_explicit(
				&v->unheard, ~node_bit(node), memory_order_release);
		} else {
			atomic_fetch_or_explicit(
				&v->ready, node_bit(node), memory_order_release);
			change_ends(d);
		}
	}
	rt_mutex_unlock(&v->lock);
	view_wake(d);
}

/* ---- links --------------------------------------------------------------------------------------- */

static void link_lost(struct cluster *d, struct dpage *p, void *arg)
{
	unsigned node = *(const unsigned *)arg;

	if (p->reinstating == node)
		rebuild_without(d, p, node);
	if (p->at.home != node)
		return;
	ships_persisted(d, p, 0, 0, -EHOSTDOWN);
	/* whether it has gone is not known before the home is back; nobody waits for that */
	if (p->evicting && p->asked_evict) {
		batch_one_done(d, p->evicting);
		p->evicting = NULL;
	}
}

void view_link(struct cluster *d, unsigned node, bool up)
{
	struct view *v = &d->view;
	struct member *m = &v->member[node];

	rt_mutex_lock(&v->lock);
	*m = (struct member){.link = up ? LINK_NEW : LINK_DOWN,
		.lost = m->lost || m->link == LINK_JOINED};
	if (up) {
		atomic_fetch_and_explicit(
			&v->left, ~node_bit(node), memory_order_release);
		atomic_fetch_and_explicit(
			&v->dead, ~node_bit(node), memory_order_release);
	}
	atomic_fetch_and_explicit(&v->joined, ~node_bit(node), memory_order_release);
	atomic_fetch_and_explicit(&v->ready, ~node_bit(node), memory_order_release);
	if (up)
		tell(d, node, PAGE_EPOCH);
	else
		page_each(d, link_lost, &node);
	if (atomic_load_explicit(&v->left, memory_order_relaxed) & node_bit(node))
		m->lost = false;
	if (!up && m->lost)
		v->look_ns = rt_now_ns() + LOST_NS;
	change_ends(d);
	rt_mutex_unlock(&v->lock);
	view_wake(d);
}

/*
 * A link was lost a while ago, and not made anew. What waits for it holds frames and keeps others
 * behind it, and entries name a node that is away where another one could give: a new epoch ends
 * that. Then what an absent node may have is refused. Returns when to look again.
 */
static uint64_t view_look(struct cluster *d)
{
	struct view *v = &d->view;
	bool lost = false;
	uint64_t next_ns;

	rt_mutex_lock(&v->lock);
	if (rt_now_ns() >= v->look_ns) {
		v->look_ns = RT_FOREVER;
		for (unsigned n = 0; n < PAGE_NODES_MAX; n++)
			lost |= v->member[n].link == LINK_DOWN && v->member[n].lost;
		if (lost)
			view_enter(d, view_epoch(d) + 1, 0);
	}
	next_ns = v->look_ns;
	rt_mutex_unlock(&v->lock);
	return next_ns;
}

struct leaving {
	unsigned node;
	bool holds;
};

static void look_left(struct cluster *d, struct dpage *p, void *arg)
{
	struct leaving *l = arg;

	/* a page that is being rebuilt has been asked for by all who have it */
	l->holds |= p->has_entry && p->entry.mode != HOME_REBUILDING &&
		    (p->entry.holders & node_bit(l->node));
}

/* What it has said that it owes, or may have, in this epoch or before, is over. */
static void forget_left(struct cluster *d, struct dpage *p, void *arg)
{
	const struct leaving *l = arg;

	if (p->at.home != d->o.self)
		return;
	p->may &= ~node_bit(l->node);
	p->changed &= ~node_bit(l->node);
	if (p->has_entry)
		p->entry.owing &= ~node_bit(l->node);
}

int view_left(struct cluster *d, unsigned node)
{
	struct leaving l = {.node = node};
	struct view *v = &d->view;
	int e = 0;

	rt_mutex_lock(&v->lock);
	if (v->member[node].link != LINK_JOINED)
		e = -ENOTCONN;
	if (!e)
		page_each(d, look_left, &l);
	if (l.holds)
		e = -EBUSY;
	if (!e) {
		atomic_fetch_or_explicit(&v->left, node_bit(node), memory_order_release);
		atomic_fetch_and_explicit(
			&v->unheard, ~node_bit(node), memory_order_release);
		page_each(d, forget_left, &l);
	}
	rt_mutex_unlock(&v->lock);
	return e;
}

void view_vacant(struct cluster *d, unsigned node)
{
	struct view *v = &d->view;

	rt_mutex_lock(&v->lock);
	if (v->member[node].link == LINK_DOWN &&
		!(atomic_load_explicit(&v->left, memory_order_relaxed) &
			node_bit(node))) {
		atomic_fetch_or_explicit(&v->left, node_bit(node), memory_order_release);
		atomic_fetch_and_explicit(
			&v->unheard, ~node_bit(node), memory_order_release);
		/* what it held, entries say until they are made anew */
		view_enter(d, view_epoch(d) + 1, 0);
	}
	rt_mutex_unlock(&v->lock);
	view_wake(d);
}

void view_dead(struct cluster *d, unsigned node)
{
	struct view *v = &d->view;
	node_map known;

	rt_mutex_lock(&v->lock);
	known = atomic_load_explicit(&v->left, memory_order_relaxed) |
		atomic_load_explicit(&v->dead, memory_order_relaxed);
	if (v->member[node].link == LINK_DOWN && !(known & node_bit(node))) {
		atomic_fetch_or_explicit(&v->dead, node_bit(node), memory_order_release);
		/* what it shared, entries say until they are made anew */
		view_enter(d, view_epoch(d) + 1, 0);
	}
	rt_mutex_unlock(&v->lock);
	view_wake(d);
}

/* ---- what follows, by a task ----------------------------------------------------------------------- */

enum step { STEP_NONE, STEP_CLOSE, STEP_REPORT, STEP_REBUILD, STEP_READY, STEP_RESUME };

static bool all_entered(const struct view *v, uint64_t epoch)
{
	for (unsigned n = 0; n < PAGE_NODES_MAX; n++)
		if (v->member[n].link == LINK_JOINED && v->member[n].entered != epoch)
			return false;
	return true;
}

static bool all_reported(const struct view *v, uint64_t epoch)
{
	for (unsigned n = 0; n < PAGE_NODES_MAX; n++)
		if (v->member[n].link == LINK_JOINED && v->member[n].reported != epoch)
			return false;
	return true;
}

/* What is to be done next, under the view's lock. */
static enum step next_step(struct view *v, uint64_t epoch)
{
	if (v->closed != epoch)
		return all_entered(v, epoch) ? STEP_CLOSE : STEP_NONE;
	if (v->reported != epoch)
		return STEP_REPORT;
	if (v->rebuilt != epoch && all_reported(v, epoch))
		return STEP_REBUILD;
	if (v->rebuilt == epoch && v->readied != epoch &&
		!atomic_load_explicit(&v->awaited, memory_order_acquire))
		return STEP_READY;
	if (atomic_load_explicit(&v->ready, memory_order_relaxed) &
		~atomic_load_explicit(&v->resumed, memory_order_relaxed))
		return STEP_RESUME;
	return STEP_NONE;
}

struct walk {
	uint64_t epoch;
	bool late; /* the epoch has changed since */
};

static void close_page(struct cluster *d, struct dpage *p, void *arg)
{
	struct walk *w = arg;

	w->late |= view_epoch(d) != w->epoch;
	if (!w->late)
		page_close(d, p);
}

static void rebuild_page(struct cluster *d, struct dpage *p, void *arg)
{
	struct walk *w = arg;

	w->late |= view_epoch(d) != w->epoch;
	if (!w->late && p->has_entry && p->entry.mode == HOME_REBUILDING)
		page_rebuild(d, p);
}

/* To be settled is all there is to do. */
static void resume_page(struct cluster *d, struct dpage *p, void *arg)
{
}

static bool run_walk(struct cluster *d, uint64_t epoch,
	void (*fn)(struct cluster *d, struct dpage *p, void *arg))
{
	struct walk w = {.epoch = epoch};

	page_each(d, fn, &w);
	return !w.late;
}

/* Under the view's lock, if the epoch still is this one. */
static void step_done(struct cluster *d, enum step step, uint64_t epoch)
{
	struct view *v = &d->view;

	switch (step) {
	case STEP_CLOSE:
		v->closed = epoch;
		break;
	case STEP_REPORT:
		v->reported = epoch;
		break;
	case STEP_REBUILD:
		v->rebuilt = epoch;
		break;
	case STEP_READY:
		v->readied = epoch;
		atomic_fetch_or_explicit(
			&v->ready, node_bit(d->o.self), memory_order_release);
		for (unsigned n = 0; n < PAGE_NODES_MAX; n++)
			if (v->member[n].link == LINK_JOINED)
				tell(d, n, PAGE_READY);
		v->served_ns = MAX(rt_now_ns() - v->began_ns, 1);
		change_ends(d);
		break;
	default:
		break;
	}
}

static bool run_step(struct cluster *d, enum step step, uint64_t epoch)
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

/* One step. False: there was nothing to do. */
static bool view_step(struct cluster *d)
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
	if (step == STEP_REBUILD)
		atomic_store_explicit(&v->rebuilding, true, memory_order_release);
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
	struct cluster *d = arg;
	uint32_t word;

	while (rt_goes_on(&d->stopping, &d->view.word, &word)) {
		uint64_t look_ns = view_look(d);

		cluster_log_look(d);
		if (!view_step(d))
			rt_wait(&d->view.word, word, look_ns);
	}
}
