/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The driver's records of pages: made when a page becomes anything that the frames do not
 * say, forgotten when it is that no more. A page of this shard without a record is
 * nobody's, or this node's alone: its frame says which. So what only the home uses costs
 * nothing here but a look at the table at a miss.
 *
 * Invariant 7: all of it is soft state. Epochs of forgotten entries are not used again:
 * new ones start at the highest of them.
 */
#include "engine/coherence/cluster_internal.h"

int page_table_open(struct cluster *d, uint32_t buckets)
{
	d->buckets = buckets;
	for (unsigned i = 0; i < PAGE_PARTITIONS; i++) {
		d->partition[i].bucket =
			rt_alloc(buckets * sizeof(*d->partition[i].bucket));
		if (!d->partition[i].bucket)
			return -ENOMEM;
	}
	return 0;
}

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

/* Pages in a row are asked for together: their buckets are too, and one lock is theirs. */
static uint64_t page_hash(page_id pid)
{
	return (pid / PAGE_RUN * 0x9e3779b97f4a7c15ull) >> 32;
}

static struct partition *partition_of(struct cluster *d, page_id pid)
{
	return &d->partition[page_hash(pid) % PAGE_PARTITIONS];
}

static struct dpage **bucket_of(struct cluster *d, page_id pid)
{
	uint64_t at = page_hash(pid) / PAGE_PARTITIONS * PAGE_RUN + pid % PAGE_RUN;

	return &partition_of(d, pid)->bucket[at % d->buckets];
}

/* ---- their memory --------------------------------------------------------------------------- */

static void chunk_link(struct partition *t, struct page_chunk *k)
{
	k->next = t->chunks;
	k->link = &t->chunks;
	if (k->next)
		k->next->link = &k->next;
	t->chunks = k;
}

static void chunk_unlink(struct page_chunk *k)
{
	*k->link = k->next;
	if (k->next)
		k->next->link = k->link;
}

static struct page_chunk *chunk_new(struct partition *t)
{
	struct page_chunk *k = rt_alloc(sizeof(*k));

	if (!k)
		return NULL;
	for (unsigned i = PAGE_CHUNK; i-- > 0;) {
		k->page[i].next = k->free;
		k->free = &k->page[i];
	}
	chunk_link(t, k);
	t->idle++;
	return k;
}

static struct dpage *record_new(struct partition *t)
{
	struct page_chunk *k = t->chunks ? t->chunks : chunk_new(t);
	struct dpage *p;

	if (!k)
		return NULL;
	p = k->free;
	k->free = p->next;
	t->idle -= k->used == 0;
	k->used++;
	if (!k->free)
		chunk_unlink(k);
	*p = (struct dpage){.chunk = k};
	return p;
}

static void page_free(struct partition *t, struct dpage *p)
{
	struct page_chunk *k = p->chunk;

	page_forget_deferred(p);
	if (!k->free)
		chunk_link(t, k);
	p->next = k->free;
	k->free = p;
	if (--k->used)
		return;
	if (t->idle < CHUNKS_IDLE) { /* pages come and go: their memory is used again */
		t->idle++;
		return;
	}
	chunk_unlink(k);
	rt_free(k);
}

struct image_op *image_op_take(struct cluster *d, struct dpage *p)
{
	struct partition *t = partition_of(d, p->at.pid);
	struct image_op *x = t->spare;

	if (x)
		t->spare = x->next;
	else
		x = rt_alloc(sizeof(*x));
	if (x)
		*x = (struct image_op){.d = d, .p = p, .epoch = view_epoch(d)};
	return x;
}

void image_op_put(struct image_op *x)
{
	struct partition *t = partition_of(x->d, x->p->at.pid);

	x->next = t->spare;
	t->spare = x;
}

/* ---- the table ------------------------------------------------------------------------------ */

void page_table_close(struct cluster *d)
{
	for (unsigned i = 0; i < PAGE_PARTITIONS; i++) {
		struct partition *t = &d->partition[i];

		for (unsigned b = 0; t->bucket && b < d->buckets; b++)
			while (t->bucket[b]) {
				struct dpage *p = t->bucket[b];

				t->bucket[b] = p->next;
				page_free(t, p);
			}
		while (t->spare) {
			struct image_op *x = t->spare;

			t->spare = x->next;
			rt_free(x);
		}
		while (t->chunks) {
			struct page_chunk *k = t->chunks;

			chunk_unlink(k);
			rt_free(k);
		}
		rt_free(t->bucket);
		t->bucket = NULL;
		t->idle = 0;
	}
}

struct dpage *page_lock(struct cluster *d, page_id pid)
{
	struct dpage *p;

	rt_mutex_lock(&partition_of(d, pid)->lock);
	for (p = *bucket_of(d, pid); p && p->at.pid != pid; p = p->next)
		;
	return p;
}

struct dpage *page_new(struct cluster *d, page_id pid)
{
	unsigned home = d->o.home(d->o.owner, pid_shard(pid));
	struct dpage **bucket = bucket_of(d, pid);
	struct dpage *p = NULL;

	if (home < PAGE_NODES_MAX)
		p = record_new(partition_of(d, pid));
	if (!p)
		return NULL;
	p->at = (struct page_at){.pid = pid, .self = d->o.self, .home = (uint8_t)home};
	p->deferred_end = &p->deferred;
	p->reinstating = NODE_NONE;
	p->next = *bucket;
	*bucket = p;
	DCOUNT(d, pages);
	return p;
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

/* Where neither the table's block must be read nor the frame is latched. */
static bool page_open_now(struct cluster *d, struct dpage *p)
{
	struct page_descriptor stored;
	struct coherence_image image;
	int look;

	if (store_descriptor_try(d->o.store, p->at.pid, &stored))
		return false;
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

int page_open(struct cluster *d, struct dpage *p)
{
	WEFT_ASSERT(p->at.home == d->o.self && !p->has_entry && !p->opening);
	return page_open_now(d, p) ? 0 : page_open_later(d, p);
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

/* Something is under way that has, or will look for, the record. */
static bool page_busy(const struct dpage *p)
{
	return p->opening || p->deferred || p->wish || p->ships || p->evicting ||
	       p->refs || p->ops || p->persisting || p->leaving || p->vacate ||
	       p->no_frame || p->easing || p->unsettled || (p->reported && !p->has_entry);
}

/* Others had it shared, and have let go of it: it is this home's as before they asked. */
static void page_alone(struct cluster *d, struct dpage *p)
{
	if (!p->has_entry || !home_is_alone(&p->entry, &p->hold, &p->at) ||
		page_busy(p) || d->base.frames->strengthen(d->base.cache, p->at.pid))
		return;
	home_alone(&p->entry, &p->hold);
	page_note_may(p);
	DCOUNT(d, alone_again);
}

/* The record says nothing that would not be so without it. */
static bool page_idle(const struct dpage *p)
{
	const struct page_hold *h = &p->hold;
	node_map self = node_bit(p->at.self);

	if (page_busy(p))
		return false;
	if (h->phase != PHASE_QUIET || h->owed_incarnation || h->owed_version)
		return false;
	if (!p->has_entry)
		return h->hold == RIGHT_NONE;
	if (p->entry.mode == HOME_EXCLUSIVE)
		return p->entry.holders == self && !(p->entry.owing & ~self) &&
		       h->hold == RIGHT_EXCLUSIVE && !(h->flags & HOLD_HOLLOW);
	return home_entry_idle(&p->entry) && h->hold == RIGHT_NONE;
}

static void page_forget(struct cluster *d, struct dpage *p)
{
	struct dpage **at = bucket_of(d, p->at.pid);
	uint32_t floor = atomic_load_explicit(&d->epoch_floor, memory_order_relaxed);

	while (p->has_entry && epoch_after(p->entry.epoch, floor) > 0 &&
		!atomic_compare_exchange_weak_explicit(&d->epoch_floor, &floor,
			p->entry.epoch, memory_order_relaxed, memory_order_relaxed))
		;
	while (*at != p)
		at = &(*at)->next;
	*at = p->next;
	atomic_fetch_sub_explicit(&d->counters.pages, 1, memory_order_relaxed);
	page_free(partition_of(d, p->at.pid), p);
}

void page_settle(struct cluster *d, struct dpage *p)
{
	do {
		while (p->replay)
			page_replay(d, p);
		wish_start(d, p);
	} while (p->replay);
	page_alone(d, p);
	if (page_idle(p))
		page_forget(d, p);
}

void page_unlock_more(struct cluster *d, page_id pid, struct dpage *p)
{
	if (p)
		page_settle(d, p);
	rt_mutex_unlock(&partition_of(d, pid)->lock);
}

void page_unlock(struct cluster *d, page_id pid, struct dpage *p)
{
	page_unlock_more(d, pid, p);
	net_flush(d->o.net);
}

/* ---- all of them ---------------------------------------------------------------------------- */

void page_each(struct cluster *d,
	void (*fn)(struct cluster *d, struct dpage *p, void *arg), void *arg)
{
	for (unsigned i = 0; i < PAGE_PARTITIONS; i++) {
		struct partition *t = &d->partition[i];

		rt_mutex_lock(&t->lock);
		for (unsigned b = 0; b < d->buckets; b++)
			for (struct dpage *p = t->bucket[b], *next; p; p = next) {
				next = p->next; /* nothing else of the partition changes */
				fn(d, p, arg);
				page_settle(d, p);
			}
		rt_mutex_unlock(&t->lock);
		net_flush(d->o.net);
	}
}

void page_each_locked(struct cluster *d, void (*fn)(struct cluster *d, struct dpage *p))
{
	for (unsigned i = 0; i < PAGE_PARTITIONS; i++)
		for (unsigned b = 0; b < d->buckets; b++)
			for (struct dpage *p = d->partition[i].bucket[b]; p; p = p->next)
				fn(d, p);
}

int page_bucket_reports(
	struct cluster *d, unsigned at, uint64_t epoch, struct report_list *list)
{
	struct partition *t = &d->partition[at / d->buckets];
	unsigned had = list->count;
	int e = 0;

	rt_mutex_lock(&t->lock);
	if (view_epoch(d) != epoch)
		e = -EAGAIN;
	for (struct dpage *p = t->bucket[at % d->buckets]; p && !e; p = p->next) {
		e = report_list_grow(list);
		if (!e && p->at.home != d->o.self)
			report_page(p, list);
	}
	if (e)
		list->count = had;
	rt_mutex_unlock(&t->lock);
	return e;
}

void page_all_lock(struct cluster *d)
{
	for (unsigned i = 0; i < PAGE_PARTITIONS; i++)
		rt_mutex_lock(&d->partition[i].lock);
}

void page_all_unlock(struct cluster *d)
{
	for (unsigned i = PAGE_PARTITIONS; i-- > 0;)
		rt_mutex_unlock(&d->partition[i].lock);
}
