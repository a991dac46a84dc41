/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Freed pages. Nodes that share them drop them before they are used again, so that their next user
 * need not ask anybody (docs/nodes/driver.md, "Freed pages"). The node that has freed pages tells
 * their home, and the home tells the sharers. A task does both, in the background.
 *
 * No state depends on it. A sharer may drop a page at any time, and so it does here. A page that
 * is told too late, or not at all, costs the messages that it would have cost anyway.
 *
 * The list is bounded (invariant 10): runs that find it full are not told. The task may wait for
 * room in a queue, so handlers only add to the list.
 */
#include "engine/coherence/driver/driver_internal.h"

#define DISCARD_BATCH 64u /* pages between two looks for room; messages that leave together */
#define DISCARD_MAX   (1u << 20) /* pages of a run that others may be added to */

/* Returns true if the page continues the run. */
static bool run_goes_on(const struct discard_run *r, page_id pid, uint64_t incarnation)
{
	return r->incarnation == incarnation && r->pid + r->count == pid &&
	       r->count < DISCARD_MAX;
}

/* Adds pages to the list, if there is room. Never waits. */
static void discard_add(
	struct page_driver *d, page_id pid, uint64_t incarnation, unsigned count)
{
	struct discard_list *l = &d->discards;
	struct discard_run *last;
	bool first;

	rt_mutex_lock(&l->lock);
	first = !l->count; /* else the task has not come to its end yet */
	last = &l->run[(l->first + l->count - 1) % DISCARD_RUNS];
	if (l->count && run_goes_on(last, pid, incarnation))
		last->count += count;
	else if (l->count < DISCARD_RUNS)
		l->run[(l->first + l->count++) % DISCARD_RUNS] =
			(struct discard_run){pid, incarnation, count};
	rt_mutex_unlock(&l->lock);
	if (!first)
		return;
	atomic_fetch_add_explicit(&l->word, 1, memory_order_release);
	rt_wake(&l->word, 1);
}

/* Takes the next pages off the list. Returns false if there are none. */
static bool discard_take(struct discard_list *l, struct discard_run *out)
{
	struct discard_run *r;

	rt_mutex_lock(&l->lock);
	r = &l->run[l->first];
	*out = *r;
	out->count = l->count ? MIN(r->count, DISCARD_BATCH) : 0;
	r->pid += out->count;
	r->count -= out->count;
	if (l->count && !r->count) {
		l->first = (l->first + 1) % DISCARD_RUNS;
		l->count--;
	}
	rt_mutex_unlock(&l->lock);
	return out->count;
}

/* Waits until the queue to each node has room. */
static void room_await_all(struct page_driver *d)
{
	node_map left = ~view_unconnected(d) & ~node_bit(d->o.self);

	for (; left; left &= left - 1) {
		struct net_peer *peer =
			net_peer_find(d->o.net, (uint16_t)__builtin_ctzll(left));

		if (peer && !net_has_room(peer))
			(void)net_wait_room(peer, RT_FOREVER); /* without a link: it is void */
	}
}

/*
 * Returns the nodes that are to be told. At the home: those that share the page, in the freed
 * incarnation or an earlier one. A source stays, since its image may be the newest. Elsewhere: the
 * home, unless this node has the page alone.
 */
static node_map discard_nodes(
	struct page_driver *d, const struct page_record *p, unsigned home, uint64_t incarnation)
{
	const struct home_entry *e;
	node_map nodes;

	if (home != d->o.self)
		return view_ready(d, home) && !(p && p->hold.hold == RIGHT_EXCLUSIVE)
			       ? node_bit(home)
			       : 0;
	if (!p || !p->has_entry)
		return 0;
	e = &p->entry;
	if (e->mode != HOME_SHARED || e->incarnation > incarnation)
		return 0;
	nodes = e->holders & ~node_bit(d->o.self) & ~view_unconnected(d);
	return e->source == NODE_NONE ? nodes : nodes & ~node_bit(e->source);
}

static void discard_page(struct page_driver *d, page_id pid, uint64_t incarnation)
{
	struct page_message m = {.type = PAGE_DISCARD,
		.sender = d->o.self,
		.pid = pid,
		.incarnation = incarnation,
		.source = NODE_NONE};
	unsigned home = d->o.home(d->o.owner, pid_shard(pid));
	struct page_record *p;
	node_map left;

	if (home >= PAGE_NODES_MAX)
		return;
	p = page_lock(d, pid);
	for (left = discard_nodes(d, p, home, incarnation); left; left &= left - 1)
		wire_send(d, (unsigned)__builtin_ctzll(left), &m);
	page_unlock_more(d, pid, p);
}

void discard_main(void *arg)
{
	struct page_driver *d = arg;
	struct discard_run r;
	unsigned told = 0; /* pages since the last flush */
	uint32_t word;

	while (rt_goes_on(&d->stopping, &d->discards.word, &word)) {
		bool some = discard_take(&d->discards, &r);

		if (some)
			room_await_all(d);
		for (unsigned i = 0; i < r.count; i++)
			discard_page(d, r.pid + i, r.incarnation);
		told += r.count;
		if (!some || told >= DISCARD_BATCH) {
			net_flush(d->o.net);
			told = 0;
		}
		if (!some)
			rt_wait(&d->discards.word, word, RT_FOREVER);
	}
}

void driver_freed(struct coherence *c, page_id pid, uint64_t incarnation, unsigned count)
{
	struct page_driver *d = driver_of(c);

	if (atomic_load_explicit(&d->started, memory_order_relaxed))
		discard_add(d, pid, incarnation, count);
}

/* From a node that has freed the page, to this home. Or from the home, to this sharer. */
void discard_message(struct page_driver *d, const struct page_message *m)
{
	unsigned home = d->o.home(d->o.owner, pid_shard(m->pid));
	struct page_record *p;

	if (home >= PAGE_NODES_MAX || (home != d->o.self && home != m->sender)) {
		wire_cut(d, m->sender, -EPROTO, "it sent an impossible", m);
		return;
	}
	if (m->cluster_epoch != view_epoch(d) || !view_connected(d, m->sender))
		return;
	if (home == d->o.self) {
		discard_add(d, m->pid, m->incarnation, 1);
		return;
	}
	p = page_lock(d, m->pid);
	if (p)
		page_drop_freed(d, p, m->incarnation);
	page_unlock_more(d, m->pid, p);
}
