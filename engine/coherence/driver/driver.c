/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The driver of the page protocol for one node of several (docs/nodes/driver.md, "The driver"):
 * opened and started here. Events of a page are in deliver.c, the cache's requests in acquire.c,
 * the home's work in home_*.c. Links that end and come back are in epoch.c and epoch_rebuild.c.
 */
#include "engine/coherence/driver/driver_internal.h"

int page_driver_open(struct coherence **out, const struct coherence_options *o)
{
	struct page_driver *d;

	if (o->self >= PAGE_NODES_MAX)
		return -EINVAL;
	d = rt_alloc(sizeof(*d));
	if (!d)
		return -ENOMEM;
	d->base.ops = &driver_ops;
	d->base.shard = o->shard;
	d->base.shards = o->shards;
	d->o = *o;
	d->home_jobs.end = &d->home_jobs.first;
	d->persist_jobs.end = &d->persist_jobs.first;
	d->home_jobs.tasks = HOME_TASKS;
	d->persist_jobs.tasks = PERSIST_TASKS;
	d->revokers.end = &d->revokers.first;
	d->revokers.look_ns = RT_FOREVER;
	if (page_table_open(d, PAGE_BUCKETS)) {
		page_table_close(d);
		rt_free(d);
		return -ENOMEM;
	}
	view_open(d);
	*out = &d->base;
	return 0;
}

int driver_memory(struct coherence *c, unsigned area, size_t size_bytes, void **out)
{
	struct page_driver *d = driver_of(c);
	/* as many as frames: of this shard there may be as many records again, of which a
	 * small cache knows nothing */
	uint64_t covers = MAX(size_bytes, MIN(16 * size_bytes, 256ull << 20));
	uint32_t buckets = PAGE_BUCKETS;
	int rc;

	if (area != d->areas || area == AREAS_MAX)
		return -EINVAL;
	while (area == 0 && buckets < 1u << 20 &&
		(uint64_t)buckets * PAGE_PARTITIONS * PAGE_SIZE < covers)
		buckets *= 2;
	if (buckets > d->buckets) {
		page_table_close(d);
		if (page_table_open(d, buckets))
			return -ENOMEM;
	}
	rc = net_region_create(d->o.net, area, size_bytes,
		NET_REMOTE_READ | (area == 0 ? NET_REMOTE_WRITE : 0), out);
	if (!rc && area == 0)
		rc = home_images_open(d, (uint32_t)(size_bytes / PAGE_SIZE));
	if (rc)
		return rc;
	d->area[area].base = *out;
	d->area[area].size = size_bytes;
	d->areas++;
	return 0;
}

/* Takes over the images of other nodes' pages that recovery has found in the log. */
static int owed_adopt(struct page_driver *d)
{
	struct coherence_image image;
	page_id pid;

	for (unsigned i = 0; !d->base.frames->owed_at(d->base.cache, i, &pid, &image);
		i++) {
		struct page_record *p = page_lock(d, pid);

		if (!p)
			p = page_new(d, pid);
		if (p)
			holder_owes(&p->hold, image.incarnation, image.version, true);
		page_unlock(d, pid, p);
		if (!p)
			return -ENOMEM;
	}
	return 0;
}

static void wake_word(_Atomic uint32_t *word)
{
	atomic_fetch_add_explicit(word, 1, memory_order_release);
	rt_wake(word, INT32_MAX);
}

static void jobs_free(struct job_queue *q)
{
	while (q->first) {
		struct job *j = q->first;

		q->first = j->next;
		rt_free(j);
	}
	q->end = &q->first;
}

static void driver_stop(struct coherence *c)
{
	struct page_driver *d = driver_of(c);

	log_on_failure(d->o.log, NULL, NULL);
	atomic_store_explicit(&d->stopping, true, memory_order_release);
	wake_word(&d->home_jobs.word);
	wake_word(&d->persist_jobs.word);
	wake_word(&d->revokers.word);
	wake_word(&d->discards.word);
	view_wake(d);
	while (d->tasks)
		rt_task_join(d->task[--d->tasks]);
	jobs_free(&d->home_jobs);
	jobs_free(&d->persist_jobs);
}

static void log_has_failed(void *owner)
{
	view_wake(owner);
}

static int driver_start(struct coherence *c)
{
	static const struct {
		const char *name;
		void (*main)(void *);
		unsigned count;
	} kinds[] = {
		{"page-home", home_main, HOME_TASKS},
		{"page-persist", persist_main, PERSIST_TASKS},
		{"page-revoke", revoker_main, REVOKER_TASKS},
		{"page-view", view_main, 1},
		{"page-discard", discard_main, 1},
	};
	struct page_driver *d = driver_of(c);
	int rc = owed_adopt(d);

	atomic_store_explicit(&d->started, true, memory_order_release);
	for (unsigned k = 0; k < ARRAY_SIZE(kinds) && !rc; k++)
		for (unsigned i = 0; i < kinds[k].count && !rc; i++) {
			rc = rt_task_spawn(
				&d->task[d->tasks], kinds[k].name, kinds[k].main, d);
			d->tasks += !rc;
		}
	log_on_failure(d->o.log, log_has_failed, d);
	if (rc)
		driver_stop(c);
	return rc;
}

/* ---- links ---------------------------------------------------------------------------------- */

static void page_fail(struct page_driver *d, struct page_record *p)
{
	pending_done(d, p, -EIO);
	ships_persisted(d, p, 0, 0, -EIO);
	if (p->evicting && p->asked_evict) {
		batch_one_done(d, p->evicting);
		p->evicting = NULL;
	}
}

/* Nobody may write to this node's memory any more: no link is left, and none will be. */
static void fail_all(struct page_driver *d)
{
	page_all_lock(d);
	page_each_expanded(d, page_fail);
	page_all_unlock(d);
}

static bool any_link(struct page_driver *d)
{
	bool linked = false;

	rt_mutex_lock(&d->view.lock);
	for (unsigned n = 0; n < PAGE_NODES_MAX; n++)
		linked |= d->view.member[n].link != LINK_AWAY;
	rt_mutex_unlock(&d->view.lock);
	return linked;
}

static void driver_give_up(struct coherence *c)
{
	struct page_driver *d = driver_of(c);

	rt_mutex_lock(&d->view.lock);
	atomic_store_explicit(&d->failed, true, memory_order_release);
	rt_mutex_unlock(&d->view.lock);
	for (uint16_t n = 0; n < PAGE_NODES_MAX; n++) {
		struct net_peer *peer = net_peer_find(d->o.net, n);

		if (peer)
			net_cut(peer, -ESHUTDOWN);
	}
	if (!any_link(d))
		fail_all(d);
}

void driver_log_check(struct page_driver *d)
{
	if (!log_failed(d->o.log) ||
		atomic_load_explicit(&d->failed, memory_order_relaxed))
		return;
	weft_log(3,
		"node %u: its log has failed (errno %d): it persists nothing any more, "
		"and leaves the cluster as if it had crashed; others wait for it until "
		"it is started again",
		d->o.self, -log_failed(d->o.log));
	driver_give_up(&d->base);
	net_shutdown(d->o.net); /* the links do not come back, those of clients neither */
}

static void driver_event(
	struct coherence *c, struct net_peer *peer, const struct net_event *event)
{
	struct page_driver *d = driver_of(c);
	unsigned node = net_peer_node(peer);
	bool failed = atomic_load_explicit(&d->failed, memory_order_acquire);

	if (event->kind == NET_LINK_REFUSED || node >= PAGE_NODES_MAX)
		return;
	if (event->kind == NET_LINK_UP && failed)
		return; /* it hears nothing, and goes on without this node */
	view_link(d, node, event->kind == NET_LINK_UP);
	if (failed && !any_link(d))
		fail_all(d);
}

static void driver_lend(struct coherence *c)
{
	atomic_store_explicit(&driver_of(c)->lends, true, memory_order_relaxed);
}

static int driver_left(struct coherence *c, unsigned node)
{
	return node < PAGE_NODES_MAX ? view_left(driver_of(c), node) : -EINVAL;
}

static void driver_vacant(struct coherence *c, unsigned node)
{
	if (node < PAGE_NODES_MAX)
		view_vacant(driver_of(c), node);
}

static void driver_dead(struct coherence *c, unsigned node)
{
	if (node < PAGE_NODES_MAX)
		view_dead(driver_of(c), node);
}

static uint64_t driver_epoch(struct coherence *c, bool *served)
{
	struct page_driver *d = driver_of(c);

	*served = view_ready(d, d->o.self) && view_all_reported(d);
	return view_epoch(d);
}

void page_dump(const struct page_driver *d, const struct page_record *p)
{
	const struct page_hold *h = &p->hold;

	weft_log(4,
		"node %u page %u:%llu: %s %s e%u f%x next e%u need %llx v%llu.%llu owes "
		"v%llu.%llu; "
		"%s e%u copies %u source %u holders %llx owing %llx stored v%llu.%llu; "
		"deferred "
		"%u pending %s ops %u refs %u%s%s%s%s%s%s%s",
		d->o.self, pid_shard(p->at.pid), (unsigned long long)pid_slot(p->at.pid),
		page_right_name(h->hold), page_phase_name(h->phase), h->epoch, h->flags,
		h->grant_epoch, (unsigned long long)h->need,
		(unsigned long long)h->incarnation, (unsigned long long)h->version,
		(unsigned long long)h->owed_incarnation,
		(unsigned long long)h->owed_version,
		p->has_entry ? home_mode_name(p->entry.mode) : "no entry", p->entry.epoch,
		p->entry.copies, p->entry.source, (unsigned long long)p->entry.holders,
		(unsigned long long)p->entry.owing,
		(unsigned long long)p->entry.stored_incarnation,
		(unsigned long long)p->entry.stored_version, p->deferred_count,
		!p->pending        ? "none"
		: p->pending->done ? "done"
				   : "waits",
		p->ops, p->refs, p->work == WORK_OPENING ? " opening" : "",
		p->revoking ? " revoker" : "",
		p->awaiting_invalidation ? " awaiting-invalidation" : "",
		(p->frame & RECORD_LEAVING) ? " leaving" : "",
		record_persists(p) ? " persisting" : "", p->evicting ? " evicting" : "",
		(p->frame & RECORD_LOST) ? " no frame" : "");
	for (const struct deferred *f = p->deferred; f; f = f->next)
		weft_log(4, "  deferred %s of node %u, e%u copies %u",
			page_message_name(f->m.type), f->m.sender, f->m.epoch,
			f->m.copies);
}

static void dump_busy(struct page_driver *d, struct page_record *p)
{
	if (p->hold.phase != PHASE_QUIET || p->deferred || p->pending || p->refs || p->ships)
		page_dump(d, p);
}

static void driver_dump(struct coherence *c)
{
	page_each_expanded(driver_of(c), dump_busy);
}

static const struct coherence_counters *driver_counters(struct coherence *c)
{
	return &driver_of(c)->counters;
}

const struct coherence_peers_ops driver_peers_ops = {
	.message_first = PAGE_MESSAGE_FIRST,
	.message_end = PAGE_MESSAGE_END,
	.message_name = page_message_name,
	.message = driver_message,
	.event = driver_event,
	.start = driver_start,
	.stop = driver_stop,
	.give_up = driver_give_up,
	.lend = driver_lend,
	.left = driver_left,
	.vacant = driver_vacant,
	.dead = driver_dead,
	.epoch = driver_epoch,
	.change = driver_change,
	.records = driver_records,
	.counters = driver_counters,
	.directory = driver_directory,
	.awaited = driver_awaited,
	.dump = driver_dump,
};
