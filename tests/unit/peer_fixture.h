/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A volume with a second node, for tests of the layers above the cache: a coherence
 * provider that is that node as well. It has the pages of its shard in memory, takes
 * pages of this node's and changes them. Whoever has a page has it in X; what leaves this
 * node is checked as tests of the cache do (cache_modes_test.c).
 */
#ifndef WEFT_TESTS_PEER_FIXTURE_H
#define WEFT_TESTS_PEER_FIXTURE_H

#include "engine/cache/cache_internal.h"
#include "tests/unit/volume_fixture.h"

#define PEER_PAGES 8192u /* a power of two; all that were ever asked for */
#define PEER_NODE  2u

struct peer_page {
	page_id pid; /* with `used` */
	bool used;
	bool busy;  /* changes hands */
	bool here;  /* this node has it, in X */
	bool there; /* the peer has it, in X; a page of its own shard it has if not here */
	bool dirty; /* there: newer than what its home has */
	uint64_t incarnation, version;
	uint64_t persisted; /* of this node's shard: version, of this incarnation */
	uint8_t image[PAGE_SIZE];
};

/* What outlives this node. */
static struct peer_page peer_pages[PEER_PAGES];

struct peer {
	struct coherence base;
	struct shards shards;
	struct volume *v;
	bool started, stopped;
	int refuses; /* an error of start */
};

static inline struct peer_page *peer_page(page_id pid)
{
	uint32_t at = (uint32_t)((pid * 0x9e3779b97f4a7c15ull) >> 40);

	for (unsigned i = 0; i < PEER_PAGES; i++) {
		struct peer_page *p = &peer_pages[(at + i) % PEER_PAGES];

		if (!p->used) {
			p->used = true;
			p->pid = pid;
		}
		if (p->pid == pid)
			return p;
	}
	abort();
}

static inline bool peer_is_home(const struct peer *w, page_id pid)
{
	return !coherence_home_here(&w->base, pid);
}

/* ---- what the cache asks ------------------------------------------------------------- */

static void peer_grant_image(
	struct peer *w, struct peer_page *p, struct coherence_request *r)
{
	if (r->incarnation && p->incarnation > r->incarnation) {
		r->result = -ESTALE;
		return;
	}
	if (!p->incarnation || p->incarnation < r->incarnation) {
		r->source = PAGE_FROM_ZEROS;
		return;
	}
	r->source = PAGE_FROM_PEER;
	r->found_incarnation = p->incarnation;
	r->version = p->version;
	r->dirty = p->dirty && !peer_is_home(w, p->pid);
	r->hollow &= !r->dirty;
	if (!r->hollow)
		memcpy(r->image, p->image, PAGE_SIZE);
}

static void peer_grant(struct peer *w, struct coherence_request *r)
{
	struct peer_page *p = peer_page(r->pid);

	while (p->busy)
		rt_sleep_ns(1000);
	CHECK((r->held != PAGE_INVALID) == p->here);
	r->result = 0;
	r->dirty = r->arrived = false;
	r->granted = PAGE_EXCLUSIVE;
	if (p->here && !r->held_hollow)
		r->source = PAGE_FROM_HELD;
	else if (p->there || peer_is_home(w, r->pid))
		peer_grant_image(w, p, r);
	else
		r->source = PAGE_FROM_STORE;
	if (r->result)
		return;
	p->here = true;
	p->there = p->dirty = false;
}

static void peer_acquire(
	struct coherence *c, struct coherence_request *requests, unsigned count)
{
	for (unsigned i = 0; i < count; i++) {
		if (rt_random() % 4 == 0)
			rt_sleep_ns(rt_random() % 20000);
		peer_grant(container_of(c, struct peer, base), &requests[i]);
	}
}

static void peer_used(struct coherence *c, page_id pid)
{
}

static bool peer_release(struct coherence *c, page_id pid, enum page_mode held,
	uint64_t incarnation, bool spare)
{
	struct peer_page *p = peer_page(pid);

	if (p->busy || !coherence_home_here(c, pid))
		return false;
	p->here = false;
	return true;
}

/*
 * The page leaves this node: its log is durable as far as it has to be (invariant 3), and
 * what it leaves behind is owed until it is persisted. False: not now.
 */
static bool peer_pull(struct peer *w, struct peer_page *p)
{
	const struct coherence_frames *frames = w->base.frames;
	struct coherence_image image;

	if (p->busy || !p->here)
		return false;
	p->busy = true;
	if (frames->revoke(w->base.cache, p->pid, PAGE_INVALID, &image)) {
		p->busy = false;
		return false;
	}
	if (image.hollow) {
		frames->restore(w->base.cache, p->pid, PAGE_EXCLUSIVE);
		p->busy = false;
		return false;
	}
	OK(log_flush(w->v->log, image.flush_to));
	rt_sleep_ns(rt_random() % 20000);
	memcpy(p->image, image.image, PAGE_SIZE);
	p->incarnation = image.incarnation;
	p->version = image.version;
	p->here = false;
	p->there = true;
	p->dirty = image.dirty && !peer_is_home(w, p->pid);
	frames->vacate(w->base.cache, p->pid, true);
	if (image.dirty && peer_is_home(w, p->pid))
		frames->persisted(w->base.cache, p->pid, p->incarnation, p->version);
	p->busy = false;
	return true;
}

static void peer_evict(struct coherence *c, const page_id *pids, unsigned count)
{
	for (unsigned i = 0; i < count; i++)
		if (!coherence_home_here(c, pids[i]))
			peer_pull(container_of(c, struct peer, base), peer_page(pids[i]));
}

/* What this node owes, or has dirty: to the peer's memory, or back to its own store. */
static void peer_ship(struct coherence *c, struct coherence_ship *ships, unsigned count)
{
	for (unsigned i = 0; i < count; i++) {
		struct coherence_ship *s = &ships[i];
		struct peer_page *p = peer_page(s->pid);

		s->result = 0;
		if (coherence_home_here(c, s->pid)) {
			/* owed; what the peer has is newer, or as it is */
			s->result = p->here || p->busy ? -EAGAIN : 0;
			if (s->result || s->version <= p->persisted)
				continue;
			p->busy = true;
			s->result = c->frames->persist(c->cache, s, 1);
			p->busy = false;
		} else if (page_order(p->incarnation, p->version, s->incarnation,
				   s->version) < 0) {
			memcpy(p->image, s->image, PAGE_SIZE);
			p->incarnation = s->incarnation;
			p->version = s->version;
		}
	}
}

static void peer_persisted(struct coherence *c, page_id pid, uint64_t incarnation,
	uint64_t version, bool more)
{
	peer_page(pid)->persisted = version;
	c->frames->persisted(c->cache, pid, incarnation, version);
}

static void peer_close(struct coherence *c)
{
}

static const struct coherence_ops peer_ops = {
	.acquire = peer_acquire,
	.used = peer_used,
	.release = peer_release,
	.evict = peer_evict,
	.ship = peer_ship,
	.persisted = peer_persisted,
	.close = peer_close,
};

/* ---- what the peer does --------------------------------------------------------------- */

/* Has the page to itself, until peer_done. */
static inline struct peer_page *peer_hold(struct peer *w, page_id pid)
{
	struct peer_page *p = peer_page(pid);
	struct page_ref ref = {.pid = pid};

	for (;;) {
		if (!p->busy && (p->there || (!p->here && peer_is_home(w, pid)))) {
			p->busy = true;
			return p;
		}
		/* of this node's shard, and nobody's yet: by way of this node */
		if (!p->here && !p->busy)
			OK(cache_fetch(w->v->cache, &ref, 1));
		if (!peer_pull(w, p))
			rt_sleep_ns(1000 + rt_random() % 20000);
	}
}

static inline void peer_done(struct peer *w, struct peer_page *p, bool changed)
{
	p->there = true;
	p->version += changed;
	p->dirty |= changed && !peer_is_home(w, p->pid);
	p->busy = false;
}

/* The peer gives back what it has of this node's shard, persisted. */
static inline void peer_leave(struct peer *w)
{
	for (unsigned i = 0; i < PEER_PAGES; i++) {
		struct peer_page *p = &peer_pages[i];
		struct coherence_ship s = {.pid = p->pid,
			.incarnation = p->incarnation,
			.version = p->version,
			.image = p->image};

		if (!p->used || !p->there || peer_is_home(w, p->pid))
			continue;
		if (p->dirty)
			OK(w->base.frames->persist(w->base.cache, &s, 1));
		p->there = p->dirty = false;
	}
}

/* ---- groups, as the peer sees them ---------------------------------------------------- */

/* The group pages of the peer's shard as its mkfs makes them; all but `room` pages of
 * each are in use. */
static inline void peer_format(
	uint16_t shard, uint64_t pages, uint16_t owner, uint32_t room)
{
	for (uint64_t g = 0; g < space_layout_groups(pages); g++) {
		struct peer_page *p = peer_page(pid_make(shard, disk_group_slot(g)));
		struct disk_group *d = (struct disk_group *)p->image;

		memset(d, 0, sizeof(*d));
		p->incarnation = p->version = 1;
		d->magic = DISK_MAGIC_GROUP;
		d->group = (uint32_t)g;
		d->next_incarnation = 1;
		d->owner = owner;
		d->free_pages = MIN(room, space_layout_pages(pages, g));
		memset(d->bitmap, 0xff, sizeof(d->bitmap));
		for (uint32_t i = 0; i < d->free_pages; i++)
			d->bitmap[i / 8] &= (uint8_t) ~(1u << i % 8);
	}
}

static inline void peer_set_owner(struct peer *w, page_id group, uint16_t owner)
{
	struct peer_page *p = peer_hold(w, group);

	((struct disk_group *)p->image)->owner = owner;
	peer_done(w, p, true);
}

static inline page_id peer_group_of(page_id pid)
{
	return pid - (pid_slot(pid) - 1) % (1 + DISK_GROUP_PAGES);
}

/* With its group held: marks the run free, or in use. */
static inline void peer_mark(
	struct peer_page *p, page_id pid, uint32_t length, bool in_use)
{
	struct disk_group *d = (struct disk_group *)p->image;

	for (uint32_t i = 0; i < length; i++) {
		uint64_t at = pid + i - p->pid - 1;
		uint8_t bit = (uint8_t)(1u << at % 8);

		CHECK(!(d->bitmap[at / 8] & bit) == in_use);
		d->bitmap[at / 8] ^= bit;
	}
	d->free_pages += in_use ? -length : length;
}

static inline void peer_free(struct peer *w, page_id pid, uint32_t length)
{
	struct peer_page *p = peer_hold(w, peer_group_of(pid));

	peer_mark(p, pid, length, false);
	peer_done(w, p, true);
}

/* ---- the volume ------------------------------------------------------------------------- */

static inline void peer_forget(void)
{
	memset(peer_pages, 0, sizeof(peer_pages));
}

/* A store of the cluster's node with that shard; what the peer has is forgotten. */
static inline void peer_volume_make(const char *name, uint16_t node, uint16_t shard)
{
	struct store_format f = {.log_bytes = 2 * MIB,
		.checksum_kind = DISK_CHECKSUM_GMAC,
		.node = node,
		.shard = shard};
	struct rt_disk *disk = disk_open(name, 0);

	OK(volume_format(disk, &f, 1000, 100, &fixture_error));
	rt_disk_close(disk);
}

/* This node's earlier life is over: it has nothing. */
static inline void peer_bereaved(void)
{
	for (unsigned i = 0; i < PEER_PAGES; i++) {
		CHECK(!peer_pages[i].there || !peer_pages[i].dirty);
		peer_pages[i].here = peer_pages[i].there = peer_pages[i].busy = false;
	}
}

/* A provider that is asked for by name, in place of the peer; NULL: none. */
static const char *peer_named;

static int peer_provide(struct coherence **out, const struct coherence_options *o)
{
	struct peer *w = o->owner;

	*out = &w->base;
	return 0;
}

static int peer_open(
	void *arg, struct volume *v, struct coherence_options *out, struct weft_error *err)
{
	static const struct coherence_provider provider = {"peer", peer_provide};
	struct peer *w = arg;

	CHECK(v->store && v->log && !v->cache && !w->started);
	w->v = v;
	*out = (struct coherence_options){
		.own = peer_named ? NULL : &provider,
		.provider = peer_named,
		.owner = w,
		.shards = &w->shards,
	};
	return 0;
}

static int peer_start(void *arg, struct volume *v, struct weft_error *err)
{
	struct peer *w = arg;

	CHECK(v->cache && !v->space && !v->tree);
	for (unsigned i = 0; i < PEER_PAGES; i++)
		CHECK(!peer_is_home(w, peer_pages[i].pid) || !peer_pages[i].here);
	w->started = true;
	return w->refuses ? weft_error(err, w->refuses, "no") : 0;
}

static void peer_stop(void *arg, struct volume *v)
{
	struct peer *w = arg;

	CHECK((v->cache || peer_named) && !w->stopped);
	w->stopped = true;
}

static struct volume_peers the_volume_peers = {
	.open = peer_open, .start = peer_start, .stop = peer_stop};

/* With the peer, whose shard has so many pages. */
static inline int peer_volume_open(struct peer *w, const char *name, uint16_t node,
	uint16_t shard, uint16_t peer_shard, uint64_t peer_page_count, int refuses,
	struct weft_error *err)
{
	struct volume_options o = {.cache = {.cache_bytes = 512 * PAGE_SIZE},
		.background = true,
		.peers = &the_volume_peers,
		.node = node,
		.shard = shard};
	int rc;

	*w = (struct peer){
		.refuses = refuses, .base = {.ops = &peer_ops, .shard = shard}};
	w->base.shards = &w->shards;
	the_volume_peers.arg = w;
	peer_bereaved();
	OK(shards_set(&w->shards, shard, 0));
	OK(shards_set(&w->shards, peer_shard, peer_page_count));
	rc = volume_open(&w->v, disk_open(name, 0), &o, err);
	CHECK(rc || (w->started && !w->stopped));
	return rc;
}

#endif
