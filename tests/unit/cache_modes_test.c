/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cache among others. Behind coherence.h stands a rival: one more holder of every page,
 * and the home of half of them, that takes pages away, changes them, gives them back,
 * refuses to take them back, and persists what it is sent when it likes. Whoever reads or
 * writes a page, here or there, must find what was written last (invariant 1), versions
 * grow by one per change (4), nothing leaves before its log (3), and what is given up
 * dirty is kept until it is persisted (2).
 */
#include "tests/unit/cache_fixture.h"

#include <inttypes.h>

#include "engine/rt/rt_sim.h"

#define DISK   "cache-test"
#define FRAMES 64
#define PAGES  160 /* the odd ones have their home at the rival's */
#define TASKS  4
#define RIVALS 2
#define STEPS  600
#define SEEDS  25

/* Whose a page is. */
#define STAY_MOST (MIN_HOLD_NS + CACHE_KEEP_NS)

struct page {
	enum page_mode here, there; /* rights */
	bool busy;                  /* changes hands */
	bool arrived;               /* and not used yet */
	bool source_here;           /* both have it, dirty: this node answers for it */
	bool known;                 /* was ever written */
	bool metadata;              /* changed by mini-transactions */
	uint64_t stayed_ns; /* since it came: when it was first refused with -ETIME */
	uint64_t stamp;     /* last written, anywhere */
	uint64_t version;
	lsn_t together; /* end of the last record that changed it with another */
	/* the rival's copy, and for its own pages what it has persisted */
	bool dirty_there;
	uint64_t persisted; /* version, at its home */
	uint8_t image[PAGE_SIZE], stored[PAGE_SIZE];
};

struct rival {
	struct coherence base;
	struct engine e;
	struct page page[PAGES];
	_Atomic uint32_t running;
	_Atomic uint32_t stop;
	uint64_t taken, owed, refused, shipped, evicted, upgrades, busy, full, stayed;
	/* Who asks for it exclusively is given less, once, and what there is of it; then that is
	 * looked at. NOTHING: each request for a stronger right fails. */
	enum { ENOUGH, LESS, LOOKS, NOTHING } grants;
};

static struct rival *rival_of(struct coherence *c)
{
	return container_of(c, struct rival, base);
}

static page_id pid_of(unsigned i)
{
	return pid_make(i % 2 ? 9 : 0, 10 + i);
}

static struct page *page_of(struct rival *w, page_id pid)
{
	return &w->page[pid_slot(pid) - 10];
}

/* ---- what the cache asks ------------------------------------------------------------- */

static void grant_image(struct page *p, struct coherence_request *r)
{
	r->source = p->known ? PAGE_FROM_PEER : PAGE_FROM_ZEROS;
	r->found_incarnation = 1;
	r->version = p->version;
	if (p->there) {
		r->dirty = p->dirty_there;
		if (r->dirty)
			r->hollow = false;
		memcpy(r->image, p->image, r->hollow ? 0 : PAGE_SIZE);
	} else {
		r->dirty = false;
		memcpy(r->image, p->stored, r->hollow ? 0 : PAGE_SIZE);
	}
}

/* One page; its frame is latched by the request. */
static void grant(struct rival *w, struct coherence_request *r)
{
	struct page *p = page_of(w, r->pid);
	bool exclusive;

	while (p->busy)
		rt_sleep_ns(1000);
	p->busy = true;
	WEFT_ASSERT(r->held == p->here);
	exclusive = r->wanted == PAGE_EXCLUSIVE || (r->alone && !p->there);
	if (w->grants == NOTHING && p->here) {
		r->result = -EIO;
		r->lost = false;
		p->busy = false;
		return;
	}
	if (w->grants == LESS) {
		exclusive = r->hollow = false;
		w->grants = LOOKS;
	} else if (w->grants == LOOKS) {
		HOLDS(r->held == PAGE_SHARED && filled(r->image, r->pid, p->stamp));
		w->grants = ENOUGH;
	}
	if (p->here && rt_random() % 8 == 0 && p->there && exclusive) {
		/* an upgrade that loses its copy: the rival was first */
		int e;

		while ((e = w->base.frames->owe_copy(w->base.cache, r->pid)) != 0)
			rt_sleep_ns(20000);
		memcpy(p->image, r->image, PAGE_SIZE);
		p->dirty_there |= p->source_here;
		p->here = PAGE_INVALID;
		w->upgrades++;
	}
	r->dirty = p->here && exclusive && p->dirty_there;
	if (p->here && !r->held_hollow)
		r->source = PAGE_FROM_HELD;
	else if (p->there || !coherence_home_here(&w->base, r->pid))
		grant_image(p, r);
	else
		r->source = PAGE_FROM_STORE;
	r->granted = exclusive ? PAGE_EXCLUSIVE : PAGE_SHARED;
	r->arrived = p->arrived = rt_random() % 2;
	p->stayed_ns = 0;
	r->result = 0;
	if (r->source == PAGE_FROM_PEER && r->dirty) /* who has it X is to see to it */
		p->source_here = true;
	if (exclusive) {
		p->there = PAGE_INVALID;
		p->dirty_there = false;
	} else if (p->there) {
		p->there = PAGE_SHARED;
		if (p->source_here)
			p->dirty_there = false;
	}
	p->here = r->granted;
	p->busy = false;
}

static void rival_acquire(
	struct coherence *c, struct coherence_request *requests, unsigned count)
{
	for (unsigned i = 0; i < count; i++) {
		if (rt_random() % 2)
			rt_sleep_ns(rt_random() % 20000);
		grant(rival_of(c), &requests[i]);
	}
}

static void rival_used(struct coherence *c, page_id pid)
{
	page_of(rival_of(c), pid)->arrived = false;
}

static bool rival_release(struct coherence *c, page_id pid, enum page_mode held,
	uint64_t incarnation, bool spare)
{
	struct rival *w = rival_of(c);
	struct page *p = page_of(w, pid);

	HOLDS(p->busy || held == p->here);
	if (p->busy || (held != PAGE_SHARED && !coherence_home_here(c, pid)) ||
		rt_random() % 4 == 0) {
		w->refused++;
		return false;
	}
	p->here = PAGE_INVALID;
	p->arrived = p->source_here = false;
	return true;
}

/* The image leaves this node for good: checked as it goes. */
static void leave(struct rival *w, struct page *p, page_id pid,
	const struct coherence_image *image, uint8_t *to)
{
	HOLDS(image->flush_to >= p->together || log_durable(w->e.log) >= p->together);
	HOLDS(!image->hollow);
	OK(log_flush(w->e.log, image->flush_to));
	rt_sleep_ns(rt_random() % 30000); /* it travels */
	HOLDS(filled(image->image, pid, p->stamp) && image->version == p->version);
	memcpy(to, image->image, PAGE_SIZE);
}

static void evict_one(struct rival *w, page_id pid)
{
	struct page *p = page_of(w, pid);
	struct coherence_image image;

	if (p->busy || !p->here || p->arrived)
		return;
	p->busy = true;
	if (w->base.frames->revoke(w->base.cache, pid, PAGE_INVALID, &image)) {
		p->busy = false;
		return;
	}
	if (rt_random() % 4 == 0) { /* declined */
		w->base.frames->restore(w->base.cache, pid, p->here);
	} else {
		if (image.dirty) {
			leave(w, p, pid, &image, p->stored);
			p->persisted = image.version;
		}
		p->here = PAGE_INVALID;
		p->source_here = false;
		w->base.frames->vacate(w->base.cache, pid, true);
		if (image.dirty)
			w->base.frames->persisted(w->base.cache, pid, 1, p->persisted);
		w->evicted++;
	}
	p->busy = false;
}

static void rival_evict(struct coherence *c, const page_id *pids, unsigned count)
{
	for (unsigned i = 0; i < count; i++)
		if (!coherence_home_here(c, pids[i]))
			evict_one(rival_of(c), pids[i]);
}

static void rival_ship(struct coherence *c, struct coherence_ship *ships, unsigned count)
{
	struct rival *w = rival_of(c);

	for (unsigned i = 0; i < count; i++) {
		struct page *p = page_of(w, ships[i].pid);

		rt_sleep_ns(rt_random() % 20000);
		ships[i].result = 0;
		if (coherence_home_here(
			    c, ships[i].pid)) { /* owed, home again meanwhile */
			if (p->here || p->busy || ships[i].version <= p->persisted) {
				ships[i].result =
					ships[i].version <= p->persisted ? 0 : -EAGAIN;
				continue;
			}
			p->busy = true;
			ships[i].result =
				w->base.frames->persist(w->base.cache, &ships[i], 1);
			p->busy = false;
		} else if (ships[i].version > p->persisted) {
			memcpy(p->stored, ships[i].image, PAGE_SIZE);
			p->persisted = ships[i].version;
		}
		w->shipped++;
	}
}

static void rival_persisted(struct coherence *c, page_id pid, uint64_t incarnation,
	uint64_t version, bool more)
{
	struct page *p = page_of(rival_of(c), pid);

	HOLDS(coherence_home_here(c, pid) && version <= p->version);
	p->persisted = MAX(p->persisted, version);
	if (version == p->version)
		p->dirty_there = p->source_here = false;
	c->frames->persisted(c->cache, pid, incarnation, version);
}

static void rival_close(struct coherence *c)
{
}

static const struct coherence_ops rival_ops = {
	.acquire = rival_acquire,
	.used = rival_used,
	.release = rival_release,
	.evict = rival_evict,
	.ship = rival_ship,
	.persisted = rival_persisted,
	.close = rival_close,
};

/* A page that came and is in use, or is kept, may stay for a while, and no longer. */
static void check_stay(struct rival *w, struct page *p, const struct coherence_image *i)
{
	uint64_t now = rt_now_ns();

	if (!p->stayed_ns)
		p->stayed_ns = now;
	HOLDS(now < p->stayed_ns + STAY_MOST && i->min_hold_until_ns > now &&
		i->min_hold_until_ns <= p->stayed_ns + STAY_MOST);
	w->stayed++;
}

/* ---- what the rival does by itself ---------------------------------------------------- */

static void take(struct rival *w, unsigned i, enum page_mode mode)
{
	struct page *p = &w->page[i];
	struct coherence_image image;
	page_id pid = pid_of(i);
	int e;

	if (p->busy || !p->here || p->arrived || !p->known ||
		(mode == PAGE_SHARED && p->here == PAGE_SHARED))
		return;
	p->busy = true;
	e = w->base.frames->revoke(w->base.cache, pid,
		mode == PAGE_SHARED ? PAGE_SHARED : PAGE_INVALID, &image);
	if (e) {
		HOLDS(e == -EAGAIN || e == -ENOBUFS || e == -ETIME);
		if (e == -ETIME)
			check_stay(w, p, &image);
		w->busy += e == -EAGAIN;
		w->full += e == -ENOBUFS;
		p->busy = false;
		return;
	}
	if (mode == PAGE_SHARED) {
		if (image.hollow) {
			p->busy = false;
			return;
		}
		leave(w, p, pid, &image, p->image);
		p->here = p->there = PAGE_SHARED;
		p->source_here = image.dirty;
	} else {
		if (image.hollow) {
			w->base.frames->restore(w->base.cache, pid, p->here);
			p->busy = false;
			return;
		}
		leave(w, p, pid, &image, p->image);
		p->dirty_there |= image.dirty;
		p->here = PAGE_INVALID;
		p->there = PAGE_EXCLUSIVE;
		p->source_here = false;
		w->owed += image.dirty;
		w->base.frames->vacate(w->base.cache, pid, true);
	}
	w->taken++;
	p->busy = false;
}

static void change_there(struct rival *w, unsigned i)
{
	struct page *p = &w->page[i];

	if (p->busy || p->there != PAGE_EXCLUSIVE)
		return;
	HOLDS(filled(p->image, pid_of(i), p->stamp));
	p->stamp++;
	p->version++;
	fill(p->image, pid_of(i), p->stamp);
	p->dirty_there = true;
}

/* What the rival has dirty becomes durable at the page's home. */
static void persist_there(struct rival *w, unsigned i)
{
	struct page *p = &w->page[i];
	struct coherence_ship s = {.pid = pid_of(i),
		.incarnation = 1,
		.version = p->version,
		.image = p->image};

	if (p->busy || !p->there || !p->dirty_there || p->here)
		return;
	p->busy = true;
	if (coherence_home_here(&w->base, s.pid)) {
		OK(w->base.frames->persist(w->base.cache, &s, 1));
		HOLDS(p->persisted >= s.version);
	} else {
		memcpy(p->stored, p->image, PAGE_SIZE);
		p->persisted = p->version;
		p->dirty_there = false;
		w->base.frames->persisted(w->base.cache, s.pid, 1, s.version);
	}
	p->busy = false;
}

static void rival_main(void *arg)
{
	struct rival *w = arg;

	while (!atomic_load(&w->stop)) {
		unsigned i = (unsigned)(rt_random() % PAGES);

		switch (rt_random() % 8) {
		case 0 ... 1:
			take(w, i, PAGE_EXCLUSIVE);
			break;
		case 2 ... 3:
			take(w, i, PAGE_SHARED);
			break;
		case 4 ... 5:
			change_there(w, i);
			break;
		case 6:
			persist_there(w, i);
			break;
		default: /* who waited for an operation that never came gives up waiting */
			w->page[i].arrived = false;
			break;
		}
		rt_sleep_ns(rt_random() % 5000);
	}
}

/* ---- what this node does --------------------------------------------------------------- */

static void write_data(struct rival *w, unsigned i)
{
	struct page *p = &w->page[i];
	page_id pid = pid_of(i);
	struct guard g;

	if (p->known && rt_random() % 2) {
		OK(guard_overwrite(w->e.cache, pid, 1, &g));
		if (rt_random() % 8 == 0) { /* changes its mind */
			guard_release(w->e.cache, &g);
			return;
		}
	} else {
		OK(guard_exclusive(w->e.cache, pid, 1, &g));
		HOLDS(!p->known || filled(g.image, pid, p->stamp));
	}
	HOLDS(p->here == PAGE_EXCLUSIVE && !p->there);
	p->known = true;
	p->stamp++;
	fill(g.image, pid, p->stamp);
	p->version++;
	guard_release_dirty(w->e.cache, &g, false);
}

/* Pages i and i + 2 together, or i alone. */
static void write_metadata(struct rival *w, unsigned i)
{
	struct mtr *m = rt_alloc(sizeof(*m));
	unsigned pages[2] = {i, (i + 4) % PAGES}, count = rt_random() % 2 ? 2 : 1;
	struct page_ref refs[2];
	struct mtr_page *held[2];
	int e = -EAGAIN;

	for (unsigned n = 0; n < count; n++)
		refs[n] = (struct page_ref){pid_of(pages[n]), 1};
	while (e == -EAGAIN) {
		OK(cache_fetch_exclusive(w->e.cache, refs, count));
		OK(mtr_begin(m, w->e.cache, count));
		for (unsigned n = 0; n < count; n++) {
			held[n] = mtr_latch(m, refs[n].pid, 1, &e);
			if (!held[n])
				break;
		}
		if (e)
			mtr_abort(m);
	}
	OK(e);
	for (unsigned n = 0; n < count; n++) {
		struct page *p = &w->page[pages[n]];
		uint8_t image[PAGE_SIZE];

		HOLDS(p->here == PAGE_EXCLUSIVE && !p->there);
		HOLDS(!p->known || filled(held[n]->guard.image, refs[n].pid, p->stamp));
		p->known = true;
		p->stamp++;
		p->version++;
		fill(image, refs[n].pid, p->stamp);
		mtr_write(held[n], 0, image, PAGE_SIZE);
	}
	for (unsigned n = 0; n < count;
		n++) /* a lower bound: the record exists from here on */
		if (count == 2)
			w->page[pages[n]].together = log_end(w->e.log) + 1;
	mtr_commit(m);
	rt_free(m);
}

static void read_one(struct rival *w, unsigned i)
{
	struct page *p = &w->page[i];
	struct guard g;
	int e;

	if (!p->known)
		return;
	if (rt_random() % 2) {
		OK(guard_shared(w->e.cache, pid_of(i), 1, &g));
		HOLDS(p->here && filled(g.image, pid_of(i), p->stamp));
		guard_release(w->e.cache, &g);
		return;
	}
	do {
		uint8_t copy[PAGE_SIZE];
		bool same;

		e = guard_optimistic(w->e.cache, pid_of(i), NULL, &g);
		OK(e);
		page_copy_out(copy, g.image, PAGE_SIZE);
		same = filled(copy, pid_of(i), p->stamp);
		if (!guard_valid(&g))
			continue;
		HOLDS(same);
		guard_used(w->e.cache, &g);
		return;
	} while (true);
}

static void sync_one(struct rival *w, unsigned i)
{
	struct page_ref ref = {.pid = pid_of(i), .incarnation = 1};

	if (w->page[i].known)
		OK(cache_sync(w->e.cache, &ref, 1, 0));
}

static void worker_main(void *arg)
{
	struct rival *w = arg;

	for (unsigned step = 0; step < STEPS; step++) {
		unsigned i = (unsigned)(rt_random() % PAGES);

		switch (rt_random() % 12) {
		case 0 ... 4:
			if (i % 4 < 2)
				write_data(w, i);
			else
				write_metadata(w, i);
			break;
		case 5:
			sync_one(w, i);
			break;
		default:
			read_one(w, i);
			break;
		}
	}
	atomic_fetch_sub(&w->running, 1);
	rt_wake(&w->running, INT32_MAX);
}

/* ---- the whole ----------------------------------------------------------------------------- */

/* Everything dirty reaches its home, wherever it is, and nothing is owed any more. */
static void settle(struct rival *w)
{
	for (unsigned i = 0; i < PAGES; i++)
		persist_there(w, i);
	for (unsigned tries = 0; tries < 100 && w->e.cache->revoke.owed_count; tries++) {
		owed_ship(w->e.cache, LSN_MAX, false);
		OK(cache_checkpoint(w->e.cache));
	}
	OK(cache_checkpoint(w->e.cache));
	HOLDS(w->e.cache->revoke.owed_count == 0 && w->e.cache->revoke.reserved == 0);
	HOLDS(cache_dirty_pages(w->e.cache) == 0);
	HOLDS(log_tail(w->e.log) == log_durable(w->e.log));
	for (unsigned i = 0; i < PAGES; i++) {
		struct page *p = &w->page[i];

		HOLDS(p->persisted == p->version);
		if (p->known && i % 2)
			HOLDS(filled(p->stored, pid_of(i), p->stamp));
	}
}

static int run_world(void *arg)
{
	struct rival *w = rt_alloc(sizeof(*w)), *sum = arg;
	struct rt_task *task[TASKS + RIVALS];
	uint32_t running;

	rt_sim_disk_create(DISK, 64 << 20, NULL);
	engine_format(DISK, 4 << 20);
	w->base.ops = &rival_ops;
	w->base.shard = 0;
	engine_open_with(&w->e, DISK, FRAMES, &w->base);
	OK(cache_start(w->e.cache));
	atomic_store(&w->running, TASKS);
	for (unsigned i = 0; i < TASKS; i++)
		OK(rt_task_spawn(&task[i], "worker", worker_main, w));
	for (unsigned i = 0; i < RIVALS; i++)
		OK(rt_task_spawn(&task[TASKS + i], "rival", rival_main, w));
	while ((running = atomic_load(&w->running)) != 0)
		rt_wait(&w->running, running, RT_FOREVER);
	atomic_store(&w->stop, 1);
	for (unsigned i = 0; i < TASKS + RIVALS; i++)
		rt_task_join(task[i]);
	cache_stop(w->e.cache);
	settle(w);
	sum->taken += w->taken;
	sum->owed += w->owed;
	sum->refused += w->refused;
	sum->shipped += w->shipped;
	sum->evicted += w->evicted;
	sum->upgrades += w->upgrades;
	sum->busy += w->busy;
	sum->full += w->full;
	sum->stayed += w->stayed;
	engine_close(&w->e);
	rt_free(w);
	return 0;
}

static void a_page_is_what_was_written_last_wherever_that_was(void **state)
{
	struct rival *sum = calloc(1, sizeof(*sum));

	assert_non_null(sum);
	for (uint64_t seed = 1; seed <= SEEDS; seed++) {
		if (rt_sim_run(seed, NULL, run_world, sum) != 0) {
			print_error("seed %llu\n", (unsigned long long)seed);
			fail();
		}
	}
	print_message("taken %" PRIu64 ", owed %" PRIu64 ", refused %" PRIu64
		      ", shipped %" PRIu64 ", evicted %" PRIu64 ", upgrades lost %" PRIu64
		      ", found latched %" PRIu64 ", too much owed %" PRIu64
		      ", stayed %" PRIu64 "\n",
		sum->taken, sum->owed, sum->refused, sum->shipped, sum->evicted,
		sum->upgrades, sum->busy, sum->full, sum->stayed);
	/* each of them must have had its chance */
	assert_true(sum->taken && sum->owed && sum->refused && sum->shipped &&
		    sum->evicted && sum->upgrades && sum->busy && sum->full &&
		    sum->stayed);
	free(sum);
}

/* ---- a log that an owed image pins --------------------------------------------------------- */

static void overwrite(struct rival *w, unsigned i)
{
	struct page *p = &w->page[i];
	struct guard g;

	OK(guard_exclusive(w->e.cache, pid_of(i), 1, &g));
	p->known = true;
	p->stamp++;
	p->version++;
	fill(g.image, pid_of(i), p->stamp);
	guard_release_dirty(w->e.cache, &g, false);
	p->arrived = false;
}

/*
 * The disk tears, so what was persisted before is not written anew unless the log has its image, and a
 * checkpoint in need writes only what pins the log. The page pins it, but not by what it is now.
 */
static int run_owed_and_back(void *arg)
{
	struct rival *w = rt_alloc(sizeof(*w));
	lsn_t pinned;

	rt_sim_disk_create(DISK, 64 << 20, NULL);
	engine_format(DISK, 4 << 20);
	w->base.ops = &rival_ops;
	w->base.shard = 0;
	engine_open_with(&w->e, DISK, FRAMES, &w->base);
	HOLDS(store_writes_tear(w->e.store));
	overwrite(w, 0);
	OK(cache_checkpoint(w->e.cache));
	overwrite(w, 0);
	sync_one(w, 0); /* by its image in the log */
	pinned = log_end(w->e.log);
	for (take(w, 0, PAGE_EXCLUSIVE); w->page[0].here; take(w, 0, PAGE_EXCLUSIVE))
		rt_sleep_ns(1000000); /* it stays for some milliseconds after it has come */
	HOLDS(w->e.cache->revoke.owed_count == 1);
	change_there(w, 0);
	overwrite(w, 0);
	OK(log_flush(w->e.log, log_end(w->e.log)));
	HOLDS(checkpoint_horizon(w->e.cache) < pinned);
	owed_ship(w->e.cache, log_end(w->e.log), true);
	OK(log_flush(w->e.log, log_end(w->e.log)));
	HOLDS(w->e.cache->revoke.owed_count == 0);
	HOLDS(w->page[0].persisted == w->page[0].version);
	OK(store_table_write(w->e.store, LSN_MAX));
	HOLDS(checkpoint_horizon(w->e.cache) >= pinned);
	engine_close(&w->e);
	rt_free(w);
	return 0;
}

static void what_is_owed_of_a_page_that_is_back_is_persisted_in_need(void **state)
{
	for (uint64_t seed = 1; seed <= SEEDS; seed++)
		assert_int_equal(rt_sim_run(seed, NULL, run_owed_and_back, NULL), 0);
}

/* ---- kept ----------------------------------------------------------------------------------- */

/* Here alone, and nothing else keeps it. */
static void have(struct rival *w)
{
	overwrite(w, 0);
	w->page[0].arrived = false;
	rt_sleep_ns(2 * MIN_HOLD_NS);
}

static bool is_taken(struct rival *w)
{
	take(w, 0, PAGE_EXCLUSIVE);
	return w->page[0].here == PAGE_INVALID;
}

/* So long it is refused. `again`: what keeps it is said anew each time. */
static uint64_t refused_for(struct rival *w, uint64_t keep_ns, bool again)
{
	uint64_t begin = rt_now_ns();

	cache_keep(w->e.cache, pid_of(0), begin + keep_ns);
	while (!is_taken(w)) {
		HOLDS(cache_keep_refused(w->e.cache, pid_of(0)));
		rt_sleep_ns(50000);
		if (again)
			cache_keep(w->e.cache, pid_of(0), rt_now_ns() + keep_ns);
	}
	return rt_now_ns() - begin;
}

static int run_kept(void *arg)
{
	struct rival *w = rt_alloc(sizeof(*w));
	uint64_t ns;

	rt_sim_disk_create(DISK, 64 << 20, NULL);
	engine_format(DISK, 4 << 20);
	w->base.ops = &rival_ops;
	w->base.shard = 0;
	engine_open_with(&w->e, DISK, FRAMES, &w->base);
	have(w);
	ns = refused_for(w, 5000000, false);
	HOLDS(ns >= 5000000 && ns < 6000000);
	HOLDS(!cache_keep_refused(w->e.cache, pid_of(0)));
	have(w);
	cache_keep(w->e.cache, pid_of(0), rt_now_ns() + 5000000);
	HOLDS(!is_taken(w));
	cache_keep(w->e.cache, pid_of(0), 0);
	HOLDS(is_taken(w));
	have(w);
	ns = refused_for(w, 10000000, true);
	HOLDS(ns >= CACHE_KEEP_NS && ns < CACHE_KEEP_NS + 1000000);
	OK(cache_checkpoint(w->e.cache));
	engine_close(&w->e);
	rt_free(w);
	return 0;
}

static void a_page_is_kept_for_a_bounded_time(void **state)
{
	for (uint64_t seed = 1; seed <= SEEDS; seed++)
		assert_int_equal(rt_sim_run(seed, NULL, run_kept, NULL), 0);
}

/* ---- allocated anew while it is not known whose it is ---------------------------------------- */

static int (*allocate)(
	struct cache *c, page_id pid, uint64_t incarnation, struct guard *g);

/*
 * What this node owes of a page that it allocates anew may be reinstated meanwhile, with no more
 * than the right to read it: then it is the page, and to be persisted, until all is granted.
 */
static int run_allocated_anew(void *arg)
{
	struct rival *w = rt_alloc(sizeof(*w));
	struct guard g;

	rt_sim_disk_create(DISK, 64 << 20, NULL);
	engine_format(DISK, 4 << 20);
	w->base.ops = &rival_ops;
	w->base.shard = 0;
	engine_open_with(&w->e, DISK, FRAMES, &w->base);
	for (unsigned i = 0; i < 2; i++) {
		overwrite(w, i);
		rt_sleep_ns(2 * MIN_HOLD_NS);
		take(w, i, PAGE_EXCLUSIVE);
		HOLDS(w->page[i].there);
		change_there(w, i);
		w->grants = LESS;
		OK(allocate(w->e.cache, pid_of(i), 2, &g));
		HOLDS(w->grants == ENOUGH && g.frame->incarnation == 2);
		guard_release_dirty(w->e.cache, &g, false);
		w->page[i].arrived = false;
	}
	OK(cache_checkpoint(w->e.cache));
	engine_close(&w->e);
	rt_free(w);
	return 0;
}

static void what_can_only_be_read_is_not_cleared(void **state)
{
	for (uint64_t seed = 1; seed <= SEEDS; seed++) {
		allocate = seed % 2 ? guard_fresh : guard_fill;
		assert_int_equal(rt_sim_run(seed, NULL, run_allocated_anew, NULL), 0);
	}
}

/* ---- refused --------------------------------------------------------------------------------- */

/*
 * A transaction that has read the page asks for it to change it. If what it has read did not stand
 * after the error, it would read again, ask again, and never report the error.
 */
static int run_refused(void *arg)
{
	struct rival *w = rt_alloc(sizeof(*w));
	const struct page_ref ref = {.pid = pid_of(0)};
	struct guard seen;

	rt_sim_disk_create(DISK, 64 << 20, NULL);
	engine_format(DISK, 4 << 20);
	w->base.ops = &rival_ops;
	w->base.shard = 0;
	engine_open_with(&w->e, DISK, FRAMES, &w->base);
	have(w);
	while (w->page[0].here != PAGE_SHARED) {
		take(w, 0, PAGE_SHARED);
		rt_sleep_ns(50000);
	}
	OK(guard_optimistic(w->e.cache, ref.pid, NULL, &seen));
	w->grants = NOTHING;
	EQ(cache_fetch_exclusive(w->e.cache, &ref, 1), -EIO);
	EQ(guard_own(w->e.cache, ref.pid, 0), -EIO);
	HOLDS(guard_valid(&seen));
	w->grants = ENOUGH;
	guard_release(w->e.cache, &seen);
	OK(cache_checkpoint(w->e.cache));
	engine_close(&w->e);
	rt_free(w);
	return 0;
}

static void reads_stand_when_a_stronger_right_is_refused(void **state)
{
	for (uint64_t seed = 1; seed <= SEEDS; seed++)
		assert_int_equal(rt_sim_run(seed, NULL, run_refused, NULL), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(reads_stand_when_a_stronger_right_is_refused),
		cmocka_unit_test(what_can_only_be_read_is_not_cleared),
		cmocka_unit_test(a_page_is_kept_for_a_bounded_time),
		cmocka_unit_test(a_page_is_what_was_written_last_wherever_that_was),
		cmocka_unit_test(
			what_is_owed_of_a_page_that_is_back_is_persisted_in_need),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
