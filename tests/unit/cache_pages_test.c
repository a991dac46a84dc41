/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Guards, eviction, write-back and discards on the simulator: many tasks on a cache far
 * smaller than their pages must read what they wrote, at every interleaving a seed makes.
 */
#include "tests/unit/cache_fixture.h"

#include "engine/rt/rt_sim.h"

#define DISK   "cache-test"
#define FRAMES 64
#define PAGES  600
#define TASKS  5
#define STEPS  400
#define SEEDS  20
/* pages: with what is logged of each more than the log of 4 MiB has */
#define OVERWRITTEN 1200

struct world {
	struct engine e;
	uint64_t incarnation[PAGES]; /* 0: never written */
	uint64_t stamp[PAGES];       /* what its owner wrote last */
	_Atomic uint32_t running;
	_Atomic uint32_t finished;
	uint64_t next_incarnation;
};

static page_id page_of(unsigned i)
{
	return pid_make(0, 10 + i);
}

static void write_page(struct world *w, unsigned i)
{
	struct page_ref ref = {.pid = page_of(i), .incarnation = w->incarnation[i]};
	bool fresh = !w->incarnation[i];
	struct guard g;

	if (fresh) {
		ref.incarnation = ++w->next_incarnation;
		cache_fill_begin(w->e.cache, 1);
		/* who gives up leaves nothing; the next one starts anew */
		OK(guard_fill(w->e.cache, ref.pid, ref.incarnation, &g));
		if (rt_random() % 2) {
			guard_release(w->e.cache, &g);
			HOLDS(guard_try_shared(w->e.cache, ref.pid, 0, &g) == -EAGAIN);
			OK(guard_fresh(w->e.cache, ref.pid, ref.incarnation, &g));
		}
	} else if (rt_random() % 2) {
		OK(guard_overwrite(w->e.cache, ref.pid, ref.incarnation, &g));
	} else {
		OK(guard_exclusive(w->e.cache, ref.pid, ref.incarnation, &g));
		HOLDS(filled(g.image, ref.pid, w->stamp[i]));
	}
	w->incarnation[i] = ref.incarnation;
	w->stamp[i]++;
	fill(g.image, ref.pid, w->stamp[i]);
	guard_release_dirty(w->e.cache, &g, fresh);
	if (fresh) {
		cache_publish(w->e.cache, &ref, 1, log_end(w->e.log));
		cache_fill_end(w->e.cache, 1);
	}
}

static void read_page(struct world *w, unsigned i)
{
	struct guard g;

	OK(guard_shared(w->e.cache, page_of(i), w->incarnation[i], &g));
	HOLDS(filled(g.image, page_of(i), w->stamp[i]));
	guard_release(w->e.cache, &g);
}

/* The page is freed; allocated again it must be zeros, whatever the store still has. */
static void recycle_page(struct world *w, unsigned i)
{
	struct page_ref ref = {.pid = page_of(i), .incarnation = w->incarnation[i]};
	static const uint8_t zeros[PAGE_SIZE];
	struct guard g;

	cache_discard(w->e.cache, &ref, 1);
	w->incarnation[i] = ++w->next_incarnation;
	OK(guard_shared(w->e.cache, ref.pid, w->incarnation[i], &g));
	HOLDS(memcmp(g.image, zeros, PAGE_SIZE) == 0);
	guard_release(w->e.cache, &g);
	OK(guard_exclusive(w->e.cache, ref.pid, w->incarnation[i], &g));
	w->stamp[i]++;
	fill(g.image, ref.pid, w->stamp[i]);
	guard_release_dirty(w->e.cache, &g, false);
	/* who still has the old mapping is told to look again */
	HOLDS(guard_shared(w->e.cache, ref.pid, ref.incarnation, &g) == -ESTALE);
}

static void read_batch(struct world *w, unsigned first)
{
	struct page_ref refs[8];
	struct guard guards[8];
	unsigned n = 0;

	for (unsigned i = first; i < PAGES && n < 8; i += TASKS)
		if (w->incarnation[i])
			refs[n++] = (struct page_ref){page_of(i), w->incarnation[i]};
	if (!n)
		return;
	OK(guard_shared_batch(w->e.cache, refs, n, false, guards));
	for (unsigned i = 0; i < n; i++) {
		unsigned page = (unsigned)(pid_slot(refs[i].pid) - 10);

		HOLDS(filled(guards[i].image, refs[i].pid, w->stamp[page]));
		guard_release(w->e.cache, &guards[i]);
	}
}

static void sync_page(struct world *w, unsigned i)
{
	struct page_ref ref = {.pid = page_of(i), .incarnation = w->incarnation[i]};

	OK(cache_sync(w->e.cache, &ref, 1, 0));
}

struct worker {
	struct world *w;
	unsigned first;
};

/* Each task has its own pages (i % TASKS == first), so it knows what they must hold. */
static void worker_main(void *arg)
{
	struct worker *me = arg;
	struct world *w = me->w;

	for (unsigned step = 0; step < STEPS; step++) {
		unsigned i =
			me->first + TASKS * (unsigned)(rt_random() % (PAGES / TASKS));

		if (!w->incarnation[i])
			write_page(w, i);
		switch (rt_random() % 16) {
		case 0 ... 5:
			write_page(w, i);
			break;
		case 6:
			recycle_page(w, i);
			break;
		case 7:
			sync_page(w, i);
			break;
		case 8 ... 9:
			read_batch(w, i);
			break;
		default:
			read_page(w, i);
			break;
		}
	}
	if (atomic_fetch_sub(&w->running, 1) == 1) {
		atomic_store(&w->finished, 1);
		rt_wake(&w->finished, 1);
	}
}

static int run_world(void *arg)
{
	struct world *w = rt_alloc(sizeof(*w));
	struct worker workers[TASKS];
	struct rt_task *task[TASKS];

	rt_sim_disk_create(DISK, 64 << 20, NULL);
	engine_format(DISK, 4 << 20);
	engine_open(&w->e, DISK, FRAMES);
	OK(cache_start(w->e.cache));
	atomic_store(&w->running, TASKS);
	for (unsigned i = 0; i < TASKS; i++) {
		workers[i] = (struct worker){w, i};
		OK(rt_task_spawn(&task[i], "worker", worker_main, &workers[i]));
	}
	while (!atomic_load(&w->finished))
		rt_wait(&w->finished, 0, RT_FOREVER);
	for (unsigned i = 0; i < TASKS; i++)
		rt_task_join(task[i]);
	/* everything persisted: a new cache must find it in the store */
	cache_stop(w->e.cache);
	OK(cache_checkpoint(w->e.cache));
	HOLDS(cache_dirty_pages(w->e.cache) == 0);
	HOLDS(log_tail(w->e.log) == log_durable(w->e.log));
	engine_close(&w->e);
	engine_open(&w->e, DISK, FRAMES);
	for (unsigned i = 0; i < PAGES; i++)
		if (w->incarnation[i])
			read_page(w, i);
	engine_close(&w->e);
	rt_free(w);
	return 0;
}

static void pages_hold_what_was_written(void **state)
{
	for (uint64_t seed = 1; seed <= SEEDS; seed++)
		assert_int_equal(rt_sim_run(seed, NULL, run_world, NULL), 0);
}

/* ---- mini-transactions ------------------------------------------------------------ */

static int run_ranges(void *arg)
{
	struct engine *e = rt_alloc(sizeof(*e));
	struct mtr *m = rt_alloc(sizeof(*m));
	uint8_t model[PAGE_SIZE] = {0}, bytes[64];
	page_id pid = page_of(1);
	struct guard g;

	rt_sim_disk_create(DISK, 64 << 20, NULL);
	engine_format(DISK, 4 << 20);
	engine_open(e, DISK, FRAMES);
	OK(mtr_prepare_fresh(e->cache, pid, 1));
	for (unsigned round = 0; round < 200; round++) {
		struct mtr_page *p;
		int error;

		OK(mtr_begin(m, e->cache, 2));
		p = round ? mtr_latch(m, pid, 1, &error) : mtr_fresh(m, pid, 1, &error);
		HOLDS(p);
		for (unsigned n = rt_random() % 60; n; n--) {
			unsigned len = 1 + (unsigned)(rt_random() % 60);
			unsigned at = (unsigned)(rt_random() % (PAGE_SIZE - len));
			unsigned to = (unsigned)(rt_random() % (PAGE_SIZE - len));

			if (rt_random() % 4) {
				memset(bytes, (int)rt_random(), len);
				mtr_write(p, at, bytes, len);
				memcpy(model + at, bytes, len);
			} else {
				mtr_move(p, to, at, len);
				memmove(model + to, model + at, len);
			}
		}
		/* ranges are sorted, disjoint, and cover every difference */
		for (unsigned i = 1; i < p->range_count; i++)
			HOLDS(p->range[i - 1].offset + p->range[i - 1].length <
				p->range[i].offset);
		mtr_commit(m);
	}
	OK(guard_shared(e->cache, pid, 1, &g));
	HOLDS(memcmp(g.image, model, PAGE_SIZE) == 0);
	guard_release(e->cache, &g);
	OK(log_flush(e->log, log_end(e->log)));
	engine_close(e);
	rt_free(m);
	/* what the log has redoes to the same image */
	memcpy(arg, model, PAGE_SIZE);
	rt_free(e);
	return 0;
}

struct redo {
	struct engine e;
	unsigned full, ranges, moves;
};

static int redo_record(void *arg, const struct log_entry *entry)
{
	struct redo *r = arg;
	const struct disk_log_page *p = (const void *)(entry->record + 1);
	const uint8_t *body = (const void *)(p + 1);
	struct weft_error err = {0};
	int e;

	HOLDS(entry->record->type == DISK_LOG_CHANGE && entry->record->count == 1);
	if (p->kind == DISK_LOG_FULL) {
		r->full++;
		e = cache_recover_full(r->e.cache, p->pid, p->incarnation, p->version,
			body, entry->start, entry->end);
	} else {
		r->ranges++;
		r->moves += p->move_count;
		e = cache_recover_ranges(r->e.cache, p, entry->start, entry->end, &err);
	}
	return e < 0 ? e : 0;
}

static int run_redo(void *arg)
{
	struct redo *r = rt_alloc(sizeof(*r));
	uint8_t model[PAGE_SIZE];
	struct guard g;

	run_ranges(model);
	engine_open(&r->e, DISK, FRAMES);
	OK(log_scan(r->e.log, redo_record, r));
	HOLDS(r->full >= 1 && r->ranges > 0 && r->moves > 0 &&
		r->full + r->ranges <= 200);
	OK(guard_shared(r->e.cache, page_of(1), 1, &g));
	HOLDS(memcmp(g.image, model, PAGE_SIZE) == 0);
	guard_release(r->e.cache, &g);
	/* again: everything is there, nothing changes */
	OK(log_scan(r->e.log, redo_record, r));
	OK(guard_shared(r->e.cache, page_of(1), 1, &g));
	HOLDS(memcmp(g.image, model, PAGE_SIZE) == 0);
	guard_release(r->e.cache, &g);
	engine_close(&r->e);
	rt_free(r);
	return 0;
}

static void ranges_redo_to_the_same_image(void **state)
{
	for (uint64_t seed = 1; seed <= 10; seed++)
		assert_int_equal(rt_sim_run(seed, NULL, run_redo, NULL), 0);
}

/* ---- the redo of pages that were freed ----------------------------------------------
 */

/* Changes a page of its own in an mtr, so that the log has its redo. */
static page_id logged_page(struct engine *e, struct mtr *m, unsigned i)
{
	page_id pid = page_of(i);
	struct mtr_page *p;
	int error;

	OK(mtr_prepare_fresh(e->cache, pid, 1));
	OK(mtr_begin(m, e->cache, 1));
	p = mtr_fresh(m, pid, 1, &error);
	HOLDS(p);
	mtr_write(p, 0, "redo", 4);
	mtr_commit(m);
	return pid;
}

static lsn_t rec_lsn_of(struct engine *e, page_id pid)
{
	return atomic_load(&table_find(e->cache, pid)->rec_lsn);
}

/*
 * A page is made and freed in each round, as one who unlinks without a pause does; the
 * log is durable to the middle of the round whenever the tail is looked at.
 */
static int run_discards(void *arg)
{
	struct engine *e = rt_alloc(sizeof(*e));
	struct mtr *m = rt_alloc(sizeof(*m));
	lsn_t rec[20];

	rt_sim_disk_create(DISK, 64 << 20, NULL);
	engine_format(DISK, 4 << 20);
	engine_open(e, DISK, FRAMES);
	for (unsigned i = 0; i < ARRAY_SIZE(rec); i++) {
		struct page_ref ref = {.pid = logged_page(e, m, i), .incarnation = 1};

		rec[i] = rec_lsn_of(e, ref.pid);
		if (i == 0)
			HOLDS(checkpoint_horizon(e->cache) <= rec[0]);
		OK(log_flush(e->log, log_end(e->log)));
		logged_page(e, m, 100 + i); /* stands for the record that frees it */
		cache_discard(e->cache, &ref, 1);
		/* not durably freed: needed */
		HOLDS(checkpoint_horizon(e->cache) <= rec[i]);
		ref.pid = page_of(100 + i);
		cache_discard(e->cache, &ref, 1);
		/* freed durably for some rounds: not needed, whatever came since */
		if (i >= 3)
			HOLDS(checkpoint_horizon(e->cache) > rec[i - 3]);
	}
	OK(log_flush(e->log, log_end(e->log)));
	HOLDS(checkpoint_horizon(e->cache) == log_durable(e->log));
	engine_close(e);
	rt_free(m);
	rt_free(e);
	return 0;
}

static void steady_freeing_does_not_hold_the_logs_tail(void **state)
{
	assert_int_equal(rt_sim_run(1, NULL, run_discards, NULL), 0);
}

/* ---- write-back ----------------------------------------------------------------------
 */

struct queuer {
	struct world *w;
	unsigned page, *finished, place;
};

static void write_back_one(struct world *w, unsigned i)
{
	struct page_ref ref = {.pid = page_of(i)};
	unsigned written;

	OK(writeback_pages(w->e.cache, &ref, 1, false, &written));
	HOLDS(written == 1);
}

static void queuer_main(void *arg)
{
	struct queuer *q = arg;

	write_back_one(q->w, q->page);
	q->place = (*q->finished)++;
}

/* All buffers are in use; those who come while they are, write in the order in which they
 * came, and before one who comes when they are given back. */
static int run_queue(void *arg)
{
	struct world *w = rt_alloc(sizeof(*w));
	struct rt_gate *gate;
	struct rt_task *task[TASKS];
	struct queuer queuer[TASKS];
	unsigned finished = 0;

	rt_sim_disk_create(DISK, 64 << 20, NULL);
	engine_format(DISK, 4 << 20);
	engine_open(&w->e, DISK, FRAMES);
	gate = &w->e.cache->writeback.region_gate;
	for (unsigned i = 0; i <= TASKS; i++)
		write_page(w, i);
	for (unsigned i = 0; i < WB_REGIONS; i++)
		rt_gate_enter(gate, WB_REGIONS);
	for (unsigned i = 0; i < TASKS; i++) {
		queuer[i] = (struct queuer){w, i, &finished, 0};
		OK(rt_task_spawn(&task[i], "queuer", queuer_main, &queuer[i]));
		while (atomic_load(&gate->tickets) < WB_REGIONS + 1 + i)
			rt_sleep_ns(1000);
	}
	rt_gate_leave(gate, WB_REGIONS);
	write_back_one(w, TASKS);
	HOLDS(finished == TASKS);
	rt_gate_leave(gate, WB_REGIONS);
	for (unsigned i = 0; i < TASKS; i++) {
		rt_task_join(task[i]);
		HOLDS(queuer[i].place == i);
	}
	engine_close(&w->e);
	rt_free(w);
	return 0;
}

static void batches_are_written_in_the_order_of_asking(void **state)
{
	for (uint64_t seed = 1; seed <= SEEDS; seed++)
		assert_int_equal(rt_sim_run(seed, NULL, run_queue, NULL), 0);
}

/*
 * Who wants a later incarnation of a page that is here, with the right to change it, gets that:
 * zeros (invariant 8). It is so where the page was allocated anew and that image was lost.
 */
static int run_later_incarnation(void *unused)
{
	struct engine *e = rt_alloc(sizeof(*e));
	struct mtr *m = rt_alloc(sizeof(*m));
	struct page_ref ref = {.pid = page_of(1), .incarnation = 1};
	struct mtr_page *p;
	struct guard g;
	int error;

	rt_sim_disk_create(DISK, 64 << 20, NULL);
	engine_format(DISK, 4 << 20);
	engine_open(e, DISK, FRAMES);
	OK(guard_fresh(e->cache, ref.pid, ref.incarnation, &g));
	memset(g.image, 7, PAGE_SIZE);
	guard_release_dirty(e->cache, &g, false);
	ref.incarnation = 2;
	OK(cache_fetch_exclusive(e->cache, &ref, 1));
	OK(mtr_begin(m, e->cache, 1));
	p = mtr_latch(m, ref.pid, ref.incarnation, &error);
	HOLDS(p && p->guard.image[0] == 0 && p->guard.image[PAGE_SIZE - 1] == 0);
	mtr_abort(m);
	engine_close(e);
	rt_free(m);
	rt_free(e);
	return 0;
}

static void a_later_incarnation_is_had_to_be_changed(void **state)
{
	assert_int_equal(rt_sim_run(1, NULL, run_later_incarnation, NULL), 0);
}

/*
 * Who closes is the only one left to make room in the log: the last checkpoint comes to an end
 * also where there is none but the reserve.
 */
static int run_full_log(void *unused)
{
	struct engine *e = rt_alloc(sizeof(*e));
	struct mtr *m = rt_alloc(sizeof(*m));
	uint8_t bytes[3000];
	unsigned pages = 16;
	int error;

	rt_sim_disk_create(DISK, 64 << 20, NULL);
	engine_format(DISK, 4 << 20);
	engine_open(e, DISK, FRAMES);
	memset(bytes, 5, sizeof(bytes));
	for (unsigned i = 0; log_room_left(e->log) > 64u << 10; i++) {
		page_id pid = page_of(i % pages);
		struct mtr_page *p;

		if (i < pages)
			OK(mtr_prepare_fresh(e->cache, pid, 1));
		OK(mtr_begin(m, e->cache, 1));
		p = i < pages ? mtr_fresh(m, pid, 1, &error)
			      : mtr_latch(m, pid, 1, &error);
		HOLDS(p);
		bytes[0] = (uint8_t)i;
		mtr_write(p, 100, bytes, sizeof(bytes));
		mtr_commit(m);
	}
	OK(cache_checkpoint(e->cache));
	HOLDS(cache_dirty_pages(e->cache) == 0 && log_room_left(e->log) > 2 << 20);
	engine_close(e);
	rt_free(m);
	rt_free(e);
	return 0;
}

/*
 * Overwritten file pages are logged in full where the store may tear, and pin nothing: more of them
 * than the log has room for are persisted in the end only if somebody moves its tail meanwhile.
 */
static int run_overwritten(void *unused)
{
	struct engine *e = rt_alloc(sizeof(*e));
	struct guard g;

	rt_sim_disk_create(DISK, 64 << 20, NULL);
	engine_format(DISK, 4 << 20);
	engine_open(e, DISK, 2 * OVERWRITTEN);
	HOLDS(store_writes_tear(e->store));
	OK(cache_start(e->cache));
	for (unsigned round = 0; round < 2; round++) {
		for (unsigned i = 0; i < OVERWRITTEN; i++) {
			OK(round ? guard_overwrite(e->cache, page_of(i), 1, &g)
				 : guard_fresh(e->cache, page_of(i), 1, &g));
			memset(g.image, (int)round, PAGE_SIZE);
			guard_release_dirty(e->cache, &g, false);
		}
		if (round)
			cache_stop_work(e->cache);
		OK(cache_checkpoint(e->cache));
	}
	cache_stop(e->cache);
	HOLDS(cache_dirty_pages(e->cache) == 0);
	engine_close(e);
	rt_free(e);
	return 0;
}

static void the_last_checkpoint_ends_where_the_log_is_full(void **state)
{
	assert_int_equal(rt_sim_run(1, NULL, run_full_log, NULL), 0);
	assert_int_equal(rt_sim_run(1, NULL, run_overwritten, NULL), 0);
}

/*
 * The log has failed, so nothing is written any more: what is not here is had in frames that are clean,
 * until only so few of these are left that pages which are needed together would push out each other.
 */
static int run_few_frames(void *arg)
{
	unsigned dirty = *(unsigned *)arg, pages = 2 * FRAMES, failed = 0;
	struct engine *e = rt_alloc(sizeof(*e));
	struct guard g;

	rt_sim_disk_create(DISK, 64 << 20, NULL);
	engine_format(DISK, 4 << 20);
	engine_open(e, DISK, FRAMES);
	for (unsigned i = 0; i < pages; i++) {
		OK(guard_fresh(e->cache, page_of(i), 1, &g));
		fill(g.image, page_of(i), 1);
		guard_release_dirty(e->cache, &g, false);
	}
	OK(cache_checkpoint(e->cache));
	for (unsigned i = 0; i < dirty; i++) {
		OK(guard_exclusive(e->cache, page_of(i), 1, &g));
		fill(g.image, page_of(i), 2);
		guard_release_dirty(e->cache, &g, false);
	}
	HOLDS(cache_dirty_pages(e->cache) == dirty);
	log_give_up(e->log, -EIO);
	for (unsigned i = dirty; i < pages; i++) {
		int r = guard_shared(e->cache, page_of(i), 1, &g);

		HOLDS(r == 0 || r == -EIO);
		if (r == 0)
			guard_release(e->cache, &g);
		failed += r != 0;
	}
	HOLDS((failed > 0) == (dirty > FRAMES - 8));
	for (unsigned i = 0; i < dirty; i++) { /* what is here is still to be had */
		OK(guard_shared(e->cache, page_of(i), 1, &g));
		HOLDS(filled(g.image, page_of(i), 2));
		guard_release(e->cache, &g);
	}
	engine_close(e);
	rt_free(e);
	return 0;
}

static void with_a_failed_log_and_few_clean_frames_reads_fail(void **state)
{
	unsigned some = FRAMES - 8, nearly_all = FRAMES - 1;

	assert_int_equal(rt_sim_run(1, NULL, run_few_frames, &some), 0);
	assert_int_equal(rt_sim_run(1, NULL, run_few_frames, &nearly_all), 0);
}

/*
 * Nearly all frames are dirty and cannot be written. The few others serve everything else: a page of
 * the tree that is used all the time stays.
 */
static int run_tree_stays(void *arg)
{
	const unsigned dirty = FRAMES - 16, pages = 4 * FRAMES;
	const page_id tree = page_of(pages);
	struct engine *e = rt_alloc(sizeof(*e));
	struct guard g;

	rt_sim_disk_create(DISK, 64 << 20, NULL);
	engine_format(DISK, 4 << 20);
	engine_open(e, DISK, FRAMES);
	for (unsigned i = 0; i <= pages; i++) {
		OK(guard_fresh(e->cache, page_of(i), 1, &g));
		fill(g.image, page_of(i), 1);
		guard_release_dirty(e->cache, &g, false);
	}
	OK(cache_checkpoint(e->cache));
	for (unsigned i = 0; i < dirty; i++) {
		OK(guard_exclusive(e->cache, page_of(i), 1, &g));
		fill(g.image, page_of(i), 2);
		guard_release_dirty(e->cache, &g, false);
	}
	log_give_up(e->log, -EIO);
	for (unsigned i = dirty; i < pages; i++) {
		HOLDS(i == dirty || table_find(e->cache, tree));
		OK(guard_shared(e->cache, tree, 1, &g));
		guard_mark_checked(&g);
		guard_release(e->cache, &g);
		OK(guard_shared(e->cache, page_of(i), 1, &g));
		guard_release(e->cache, &g);
	}
	engine_close(e);
	rt_free(e);
	return 0;
}

static void a_page_of_the_tree_that_is_in_use_goes_last(void **state)
{
	for (uint64_t seed = 1; seed <= 20; seed++)
		assert_int_equal(rt_sim_run(seed, NULL, run_tree_stays, NULL), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(pages_hold_what_was_written),
		cmocka_unit_test(ranges_redo_to_the_same_image),
		cmocka_unit_test(steady_freeing_does_not_hold_the_logs_tail),
		cmocka_unit_test(batches_are_written_in_the_order_of_asking),
		cmocka_unit_test(a_later_incarnation_is_had_to_be_changed),
		cmocka_unit_test(the_last_checkpoint_ends_where_the_log_is_full),
		cmocka_unit_test(with_a_failed_log_and_few_clean_frames_reads_fail),
		cmocka_unit_test(a_page_of_the_tree_that_is_in_use_goes_last),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
