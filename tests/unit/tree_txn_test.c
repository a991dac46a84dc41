/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transactions: what one sees of itself, what others may not do to it, and that any
 * interleaving is as good as some order. The concurrent ones run on the simulator, seed
 * by seed, and on threads.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#include "engine/rt/rt_sim.h"
#include "tests/unit/tree_fixture.h"

#define MUST(expr)                                                                       \
	do {                                                                             \
		if (!(expr)) {                                                           \
			fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__,       \
				#expr);                                                  \
			abort();                                                         \
		}                                                                        \
	} while (0)

static struct disk_key key_at(uint64_t high, uint64_t low)
{
	return (struct disk_key){.high = high, .low = low};
}

static uint64_t next_random(uint64_t *seed)
{
	*seed ^= *seed << 13;
	*seed ^= *seed >> 7;
	*seed ^= *seed << 17;
	return *seed;
}

/* ---- one transaction ------------------------------------------------------------- */

static struct tree_fixture one;

static int open_one(void **state)
{
	fixture_open_file(&one, 64u << 20, 0, 8u << 20);
	for (uint64_t i = 0; i < 600; i++)
		FIXTURE_MUST(fixture_put(one.tree, key_at(i / 10, i % 10), &i, 8));
	return 0;
}

static int close_one(void **state)
{
	fixture_close(&one);
	return 0;
}

static void a_transaction_sees_its_own_writes(void **state)
{
	struct disk_key found;
	struct txn *x;
	uint64_t v;

	assert_int_equal(txn_begin(one.tree, false, &x), 0);
	v = 1000;
	assert_int_equal(txn_write(x, key_at(5, 3), &v, 8), 0);
	assert_int_equal(txn_delete(x, key_at(5, 4)), 0);
	assert_int_equal(txn_delete(x, key_at(5, 5)), 0);
	assert_int_equal(txn_write(x, key_at(5, 77), &v, 4), 0);
	v = 0;
	assert_int_equal(txn_read(x, key_at(5, 3), &v, 8), 8);
	assert_int_equal(v, 1000);
	assert_int_equal(txn_read(x, key_at(5, 4), &v, 8), -ENOENT);
	assert_int_equal(txn_read(x, key_at(5, 77), &v, 3), -ERANGE);
	assert_int_equal(txn_read(x, key_at(5, 77), &v, 8), 4);
	assert_int_equal(tree_read(one.tree, key_at(5, 4), &v, 8), 8);

	assert_int_equal(txn_next(x, key_at(5, 4), key_at(6, 0), &found, &v, 8), 8);
	assert_int_equal(found.low, 6);
	assert_int_equal(txn_next(x, key_at(5, 3), key_at(6, 0), &found, &v, 8), 8);
	assert_true(found.low == 3 && v == 1000);
	assert_int_equal(txn_next(x, key_at(5, 10), key_at(6, 0), &found, &v, 8), 4);
	assert_int_equal(found.low, 77);
	assert_int_equal(
		txn_next(x, key_at(5, 78), key_at(6, 0), &found, &v, 8), -ENOENT);
	assert_int_equal(txn_floor(x, key_at(5, 5), key_at(5, 0), &found, &v, 8), 8);
	assert_int_equal(found.low, 3);
	assert_int_equal(txn_floor(x, key_at(5, 99), key_at(5, 0), &found, &v, 8), 4);
	assert_int_equal(found.low, 77);
	assert_int_equal(
		txn_floor(x, key_at(5, 5), key_at(5, 4), &found, &v, 8), -ENOENT);

	/* a rewrite takes back a deletion, a deletion a write */
	assert_int_equal(txn_write(x, key_at(5, 4), &v, 2), 0);
	assert_int_equal(txn_read(x, key_at(5, 4), &v, 8), 2);
	assert_int_equal(txn_delete(x, key_at(5, 77)), 0);
	assert_int_equal(txn_floor(x, key_at(5, 99), key_at(5, 0), &found, &v, 8), 8);
	assert_int_equal(found.low, 9);
	assert_int_equal(txn_commit(x, NULL), 0);
	txn_end(x);
	assert_int_equal(tree_read(one.tree, key_at(5, 4), &v, 8), 2);
	assert_int_equal(tree_read(one.tree, key_at(5, 5), &v, 8), -ENOENT);
	assert_int_equal(tree_read(one.tree, key_at(5, 77), &v, 8), -ENOENT);
}

static void an_ended_transaction_leaves_nothing(void **state)
{
	struct space_stat before, after;
	struct space_run run;
	struct txn *x;
	uint64_t v = 1;

	space_stat(one.space, &before);
	assert_int_equal(space_reserve(one.space, PID_NONE, 5, 0, &run), 0);
	assert_int_equal(txn_begin(one.tree, false, &x), 0);
	assert_int_equal(txn_write(x, key_at(900, 0), &v, 8), 0);
	assert_int_equal(txn_take(x, &run), 0);
	txn_end(x);
	space_stat(one.space, &after);
	assert_int_equal(after.free_pages, before.free_pages);
	assert_int_equal(after.available_pages, before.available_pages);
	assert_int_equal(tree_read(one.tree, key_at(900, 0), &v, 8), -ENOENT);
}

static void bounds_are_kept(void **state)
{
	static uint8_t big[DISK_VALUE_MAX + 1];
	struct space_run run = {.pid = 5, .length = 1, .incarnation = 1};
	struct txn *x;
	unsigned n;

	assert_int_equal(txn_begin(one.tree, false, &x), 0);
	assert_int_equal(txn_write(x, key_at(1, 0), big, sizeof(big)), -EINVAL);
	for (n = 0; n < TXN_WRITES_MAX; n++)
		assert_int_equal(txn_write(x, key_at(901, n), big, 8), 0);
	assert_int_equal(txn_write(x, key_at(901, n), big, 8), -E2BIG);
	assert_int_equal(txn_delete(x, key_at(901, n)), -E2BIG);
	assert_int_equal(txn_write(x, key_at(901, 7), big, 9), 0);
	for (n = 0; n < TXN_RUNS_MAX; n++)
		assert_int_equal(txn_free(x, run.pid, 1, 1), 0);
	assert_int_equal(txn_take(x, &run), -E2BIG);
	assert_int_equal(txn_free(x, run.pid, 1, 1), -E2BIG);
	/* the same page freed many times: damage, found before anything changes */
	assert_int_equal(txn_commit(x, NULL), -EUCLEAN);
	txn_end(x);
	assert_int_equal(tree_read(one.tree, key_at(901, 0), big, 8), -ENOENT);
}

static void pages_and_runs_commit_with_the_items(void **state)
{
	struct space_stat before, after;
	struct log_position pos = {0};
	struct space_run run;
	struct guard g;
	struct txn *x;
	int r;

	space_stat(one.space, &before);
	assert_int_equal(space_reserve(one.space, PID_NONE, 1, 0, &run), 0);
	assert_int_equal(txn_begin(one.tree, false, &x), 0);
	assert_int_equal(txn_take(x, &run), 0);
	assert_int_equal(txn_page(x, run.pid, run.incarnation, 100, "hello", 5, true), 0);
	assert_int_equal(txn_page(x, run.pid, run.incarnation, 102, NULL, 1, false), 0);
	assert_int_equal(txn_write(x, key_at(902, 0), &run, sizeof(run)), 0);
	assert_int_equal(txn_commit(x, &pos), 0);
	txn_end(x);
	assert_true(pos.end > 0);
	space_stat(one.space, &after);
	assert_int_equal(after.free_pages, before.free_pages - 1);
	assert_int_equal(guard_shared(one.cache, run.pid, run.incarnation, &g), 0);
	assert_memory_equal(g.image + 99, "\0he\0lo", 6);
	guard_release(one.cache, &g);

	assert_int_equal(txn_begin(one.tree, true, &x), 0);
	do {
		assert_int_equal(txn_free(x, run.pid, 1, run.incarnation), 0);
		assert_int_equal(txn_delete(x, key_at(902, 0)), 0);
		r = txn_commit(x, NULL);
		if (r == -EAGAIN)
			txn_restart(x);
	} while (r == -EAGAIN);
	assert_int_equal(r, 0);
	txn_end(x);
	space_stat(one.space, &after);
	assert_int_equal(after.free_pages, before.free_pages);
	/* free already */
	assert_int_equal(txn_begin(one.tree, true, &x), 0);
	assert_int_equal(txn_free(x, run.pid, 1, run.incarnation), 0);
	assert_int_equal(txn_commit(x, NULL), -EUCLEAN);
	txn_end(x);
}

/* Recovery and read-ahead fetch pages without asking for an incarnation. */
static void a_page_cached_of_another_incarnation_holds_nobody_up(void **state)
{
	struct space_run run;
	struct guard g;
	struct txn *x;

	assert_int_equal(space_reserve(one.space, PID_NONE, 1, 0, &run), 0);
	assert_int_equal(txn_begin(one.tree, false, &x), 0);
	assert_int_equal(txn_take(x, &run), 0);
	assert_int_equal(txn_commit(x, NULL), 0);
	txn_end(x);
	assert_int_equal(guard_shared(one.cache, run.pid, 0, &g), 0);
	assert_true(g.frame->incarnation < run.incarnation);
	guard_release(one.cache, &g);

	/* an older one's image is nobody's: zeros */
	assert_int_equal(txn_begin(one.tree, false, &x), 0);
	assert_int_equal(txn_page(x, run.pid, run.incarnation, 1, "new", 3, false), 0);
	assert_int_equal(txn_commit(x, NULL), 0);
	txn_end(x);
	assert_int_equal(guard_shared(one.cache, run.pid, run.incarnation, &g), 0);
	assert_memory_equal(g.image, "\0new\0", 5);
	guard_release(one.cache, &g);

	/* a newer one under what was read and stands: damage */
	assert_int_equal(txn_begin(one.tree, false, &x), 0);
	assert_int_equal(
		txn_page(x, run.pid, run.incarnation - 1, 1, "old", 3, false), 0);
	assert_int_equal(txn_commit(x, NULL), -EUCLEAN);
	txn_end(x);
	assert_int_equal(guard_shared(one.cache, run.pid, run.incarnation, &g), 0);
	assert_memory_equal(g.image, "\0new\0", 5);
	guard_release(one.cache, &g);
}

/* What another writes between a reading and the commit. */
static int commit_after(int (*reading)(struct txn *), struct disk_key key, bool deletes)
{
	uint64_t v = 4711;
	struct txn *x;
	int r;

	MUST(txn_begin(one.tree, false, &x) == 0);
	MUST(reading(x) >= -ENOENT);
	FIXTURE_MUST(fixture_put(one.tree, key, deletes ? NULL : &v, 8));
	MUST(txn_write(x, key_at(5000, 0), &v, 8) == 0);
	r = txn_commit(x, NULL);
	txn_end(x);
	return r;
}

static int read_item(struct txn *x)
{
	uint64_t v;

	return txn_read(x, key_at(30, 3), &v, 8);
}

static int read_absent(struct txn *x)
{
	uint64_t v;

	return txn_read(x, key_at(30, 33), &v, 8) == -ENOENT ? 0 : -EIO;
}

static int read_range(struct txn *x)
{
	struct disk_key found;
	uint64_t v;

	return txn_next(x, key_at(30, 10), key_at(31, 0), &found, &v, 8) == -ENOENT
		       ? 0
		       : -EIO;
}

static int read_below(struct txn *x)
{
	struct disk_key found;
	uint64_t v;

	return txn_floor(x, key_at(30, 99), key_at(30, 10), &found, &v, 8) == -ENOENT
		       ? 0
		       : -EIO;
}

static void what_was_read_must_stand_at_commit(void **state)
{
	assert_int_equal(commit_after(read_item, key_at(30, 3), false), -EAGAIN);
	assert_int_equal(commit_after(read_absent, key_at(30, 33), false), -EAGAIN);
	assert_int_equal(fixture_put(one.tree, key_at(30, 33), NULL, 0), 0);
	assert_int_equal(commit_after(read_range, key_at(30, 20), false), -EAGAIN);
	assert_int_equal(fixture_put(one.tree, key_at(30, 20), NULL, 0), 0);
	assert_int_equal(commit_after(read_below, key_at(30, 20), false), -EAGAIN);
	assert_int_equal(fixture_put(one.tree, key_at(30, 20), NULL, 0), 0);
	assert_int_equal(commit_after(read_item, key_at(30, 3), true), -EAGAIN);
	/* far away: no conflict */
	assert_int_equal(commit_after(read_range, key_at(59, 0), false), 0);
}

static void a_later_read_notices_that_an_earlier_one_fell(void **state)
{
	uint64_t v = 9;
	struct txn *x;

	assert_int_equal(txn_begin(one.tree, false, &x), 0);
	assert_int_equal(txn_read(x, key_at(0, 1), &v, 8), 8);
	assert_int_equal(fixture_put(one.tree, key_at(0, 1), &v, 4), 0);
	assert_int_equal(txn_read(x, key_at(58, 1), &v, 8), -EAGAIN);
	txn_restart(x);
	assert_int_equal(txn_read(x, key_at(0, 1), &v, 8), 4);
	assert_int_equal(txn_read(x, key_at(58, 1), &v, 8), 8);
	assert_int_equal(txn_commit(x, NULL), 0);
	txn_end(x);
}

/* ---- many ------------------------------------------------------------------------ */

#define WORKERS_MAX 8

struct crowd {
	struct tree_fixture fixture;
	unsigned workers, rounds;
	uint64_t cache_bytes;
	void (*work)(struct crowd *c, unsigned me, uint64_t seed);
	void (*check)(struct crowd *c);
	uint64_t seed;
	_Atomic uint32_t inside; /* a scenario's own */
	uint64_t conflicts;      /* met */
};

struct worker {
	struct crowd *crowd;
	unsigned me;
};

static void worker_main(void *arg)
{
	struct worker *w = arg;

	w->crowd->work(w->crowd, w->me, w->crowd->seed * 1000003 + w->me * 77 + 1);
}

static void crowd_run(struct crowd *c)
{
	struct rt_task *task[WORKERS_MAX];
	struct worker worker[WORKERS_MAX];
	uint64_t pages;

	for (unsigned i = 0; i < c->workers; i++) {
		worker[i] = (struct worker){c, i};
		MUST(rt_task_spawn(&task[i], "worker", worker_main, &worker[i]) == 0);
	}
	for (unsigned i = 0; i < c->workers; i++)
		rt_task_join(task[i]);
	c->conflicts = atomic_load(&tree_counters(c->fixture.tree)->conflicts) +
		       atomic_load(&tree_counters(c->fixture.tree)->restarts);
	fixture_check_all(&c->fixture, &pages);
	if (c->check)
		c->check(c);
}

/* Begins again until it commits or decides not to. */
typedef int (*body)(struct txn *x, void *arg);

static int transact(struct tree *t, body run, void *arg)
{
	struct txn *x;
	int r;

	MUST(txn_begin(t, false, &x) == 0);
	do {
		r = run(x, arg);
		if (r == 0)
			r = txn_commit(x, NULL);
		if (r == -EAGAIN)
			txn_restart(x);
	} while (r == -EAGAIN);
	txn_end(x);
	return r;
}

/* -- transfers --------------------------------------------------------------------- */

#define ACCOUNTS 40u
#define BALANCE  1000

static struct disk_key account(unsigned i)
{
	return key_at(10 + i, 0);
}

struct transfer {
	unsigned from, to;
	int64_t amount;
};

static int transfer_body(struct txn *x, void *arg)
{
	struct transfer *t = arg;
	int64_t a, b;
	int r = txn_read(x, account(t->from), &a, 8);

	if (r == 8)
		r = txn_read(x, account(t->to), &b, 8);
	if (r != 8)
		return r;
	a -= t->amount;
	b += t->amount;
	r = txn_write(x, account(t->from), &a, 8);
	return r ? r : txn_write(x, account(t->to), &b, 8);
}

static int sum_body(struct txn *x, void *arg)
{
	struct disk_key at = account(0), found;
	int64_t sum = 0, v;
	unsigned n = 0;
	int r;

	while ((r = txn_next(x, at, account(ACCOUNTS), &found, &v, 8)) == 8) {
		sum += v;
		n++;
		at = key_at(found.high + 1, 0); /* past the filling */
	}
	if (r != -ENOENT)
		return r;
	/* even before the commit: a transaction never sees a mixture */
	MUST(n == ACCOUNTS);
	MUST(sum == (int64_t)ACCOUNTS * BALANCE);
	return 0;
}

static void transfers_work(struct crowd *c, unsigned me, uint64_t seed)
{
	static const uint8_t filling[200];

	for (unsigned i = 0; i < c->rounds; i++) {
		struct transfer t = {
			.from = (unsigned)(next_random(&seed) % ACCOUNTS),
			.amount = (int64_t)(next_random(&seed) % 50),
		};

		t.to = (t.from + 1 + (unsigned)(next_random(&seed) % (ACCOUNTS - 1))) %
		       ACCOUNTS;
		if (i % 8 == me % 8)
			MUST(transact(c->fixture.tree, sum_body, NULL) == 0);
		else
			MUST(transact(c->fixture.tree, transfer_body, &t) == 0);
		/* splits and merges among the accounts */
		FIXTURE_MUST(fixture_put(c->fixture.tree,
			key_at(10 + next_random(&seed) % ACCOUNTS,
				1 + next_random(&seed) % 8),
			next_random(&seed) % 2 ? filling : NULL, sizeof(filling)));
	}
}

static void transfers_check(struct crowd *c)
{
	MUST(transact(c->fixture.tree, sum_body, NULL) == 0);
}

static void transfers_setup(struct crowd *c)
{
	int64_t v = BALANCE;

	for (unsigned i = 0; i < ACCOUNTS; i++)
		FIXTURE_MUST(fixture_put(c->fixture.tree, account(i), &v, 8));
	c->work = transfers_work;
	c->check = transfers_check;
}

/* -- write skew: of two doctors one stays on call ---------------------------------- */

static int leave_body(struct txn *x, void *arg)
{
	unsigned me = *(unsigned *)arg;
	uint8_t mine, other;
	int r = txn_read(x, key_at(1 + me * 50, 0), &mine, 1);

	if (r == 1)
		r = txn_read(x, key_at(1 + !me * 50, 0), &other, 1);
	if (r != 1)
		return r;
	MUST(mine || other);
	if (!mine) {
		mine = 1;
		return txn_write(x, key_at(1 + me * 50, 0), &mine, 1);
	}
	if (!other)
		return 0;
	mine = 0;
	return txn_write(x, key_at(1 + me * 50, 0), &mine, 1);
}

static void skew_work(struct crowd *c, unsigned me, uint64_t seed)
{
	unsigned doctor = me % 2;

	for (unsigned i = 0; i < c->rounds; i++)
		MUST(transact(c->fixture.tree, leave_body, &doctor) == 0);
}

static void skew_setup(struct crowd *c)
{
	static const uint8_t filling[100] = {1};

	for (unsigned i = 0; i < 100; i++)
		FIXTURE_MUST(fixture_put(
			c->fixture.tree, key_at(i, 0), filling, i % 50 == 1 ? 1 : 100));
	c->work = skew_work;
}

/* -- phantoms: a range that holds one item at most --------------------------------- */

static int claim_body(struct txn *x, void *arg)
{
	uint64_t low = *(uint64_t *)arg;
	struct disk_key found;
	uint8_t v;
	int r = txn_next(x, key_at(500, 0), key_at(501, 0), &found, &v, 1);

	if (r == 1)
		return 1; /* someone is there */
	return r == -ENOENT ? txn_write(x, key_at(500, low), "x", 1) : r;
}

static void phantom_work(struct crowd *c, unsigned me, uint64_t seed)
{
	for (unsigned i = 0; i < c->rounds; i++) {
		uint64_t low = next_random(&seed);
		int r = transact(c->fixture.tree, claim_body, &low);

		MUST(r == 0 || r == 1);
		if (r == 1)
			continue;
		MUST(atomic_fetch_add(&c->inside, 1) == 0);
		rt_yield();
		MUST(atomic_fetch_sub(&c->inside, 1) == 1);
		FIXTURE_MUST(fixture_put(c->fixture.tree, key_at(500, low), NULL, 0));
	}
}

static void phantom_setup(struct crowd *c)
{
	static const uint8_t filling[900];

	/* the range spans leaves: fill it and empty it again, and have neighbours */
	for (uint64_t i = 0; i < 8; i++) {
		FIXTURE_MUST(fixture_put(c->fixture.tree, key_at(499, i), filling, 900));
		FIXTURE_MUST(fixture_put(c->fixture.tree, key_at(501, i), filling, 900));
		FIXTURE_MUST(
			fixture_put(c->fixture.tree, key_at(500, i << 60), filling, 900));
	}
	for (uint64_t i = 0; i < 8; i++)
		FIXTURE_MUST(fixture_put(c->fixture.tree, key_at(500, i << 60), NULL, 0));
	c->work = phantom_work;
}

/* -- everyone has its own keys, side by side in the same leaves -------------------- */

#define OWN_KEYS 400u

static int count_visit(void *arg, struct disk_key key, const void *value, size_t len)
{
	unsigned *me_and_count = arg;
	uint64_t low = 0;

	if (key.low % WORKERS_MAX == me_and_count[0])
		me_and_count[1]++;
	MUST(len >= 8);
	memcpy(&low, value, sizeof(low));
	MUST(low == key.low);
	return 0;
}

static void own_work(struct crowd *c, unsigned me, uint64_t seed)
{
	struct tree *t = c->fixture.tree;
	uint64_t value[16];
	bool there[OWN_KEYS] = {false};
	unsigned mine = 0;

	for (unsigned i = 0; i < c->rounds; i++) {
		unsigned k = (unsigned)(next_random(&seed) % OWN_KEYS);
		uint64_t low = (uint64_t)k * WORKERS_MAX + me;
		/* grow and shrink in turn */
		bool removes = next_random(&seed) % 100 <
			       (i / (c->rounds / 4 + 1) % 2 ? 85u : 15u);
		size_t len = 8 + next_random(&seed) % 120;
		int r;

		value[0] = low;
		FIXTURE_MUST(fixture_put(t, key_at(7, low), removes ? NULL : value, len));
		mine += !removes - there[k];
		there[k] = !removes;
		k = (unsigned)(next_random(&seed) % OWN_KEYS);
		low = (uint64_t)k * WORKERS_MAX + me;
		r = tree_read(t, key_at(7, low), value, sizeof(value));
		MUST(there[k] ? r >= 8 && value[0] == low : r == -ENOENT);
		if (i % 50 == 0) {
			unsigned count[2] = {me, 0};

			MUST(tree_scan(t, key_at(0, 0), key_at(UINT64_MAX, UINT64_MAX),
				     false, count_visit, count) == 0);
			MUST(count[1] == mine);
		}
	}
}

static void own_setup(struct crowd *c)
{
	c->work = own_work;
}

/* ---- where crowds run ------------------------------------------------------------ */

typedef void (*setup)(struct crowd *c);

struct simulation {
	setup set_up;
	struct crowd crowd;
};

static int simulate_main(void *arg)
{
	struct simulation *s = arg;
	struct rt_disk *disk;

	rt_sim_disk_create("d", 64u << 20, NULL);
	FIXTURE_MUST(rt_disk_open(&disk, "d", 0, &fixture_error));
	fixture_format(disk, 4u << 20);
	fixture_open(&s->crowd.fixture, disk, s->crowd.cache_bytes);
	s->set_up(&s->crowd);
	crowd_run(&s->crowd);
	fixture_close(&s->crowd.fixture);
	return 0;
}

static void simulate(setup set_up, unsigned seeds, unsigned workers, unsigned rounds)
{
	uint64_t conflicts = 0;
	const char *only = getenv("WEFT_SEED");

	for (uint64_t seed = 1; seed <= seeds; seed++) {
		struct rt_sim_options options = {.switch_one_in = seed % 2 ? 4 : 32};
		struct simulation s = {
			.set_up = set_up,
			.crowd =
				{
					.workers = workers,
					.rounds = rounds,
					.seed = seed,
					/* every third in a cache that the tree does not
					   fit in */
					.cache_bytes =
						seed % 3 ? 4u << 20 : 64 * PAGE_SIZE,
				},
		};

		if (only && strtoull(only, NULL, 0) != seed)
			continue;
		assert_int_equal(rt_sim_run(seed, &options, simulate_main, &s), 0);
		conflicts += s.crowd.conflicts;
	}
	/* else the seeds have not been at each other's throats and prove little */
	assert_true(only || conflicts > seeds);
}

static void on_threads(setup set_up, unsigned workers, unsigned rounds)
{
	struct crowd c = {.workers = workers, .rounds = rounds, .seed = 5};

	fixture_open_file(&c.fixture, 64u << 20, 0, 8u << 20);
	set_up(&c);
	crowd_run(&c);
	fixture_close(&c.fixture);
}

static void transfers_keep_the_sum_simulated(void **state)
{
	simulate(transfers_setup, 60, 4, 40);
}

static void write_skew_is_prevented_simulated(void **state)
{
	simulate(skew_setup, 60, 4, 60);
}

static void phantoms_are_prevented_simulated(void **state)
{
	simulate(phantom_setup, 60, 4, 40);
}

static void neighbours_do_not_disturb_each_other_simulated(void **state)
{
	simulate(own_setup, 30, 4, 500);
}

static void transfers_keep_the_sum_on_threads(void **state)
{
	on_threads(transfers_setup, 4, 4000);
}

static void write_skew_is_prevented_on_threads(void **state)
{
	on_threads(skew_setup, 4, 10000);
}

static void phantoms_are_prevented_on_threads(void **state)
{
	on_threads(phantom_setup, 4, 8000);
}

static void neighbours_do_not_disturb_each_other_on_threads(void **state)
{
	on_threads(own_setup, 4, 20000);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest simulated[] = {
		cmocka_unit_test(transfers_keep_the_sum_simulated),
		cmocka_unit_test(write_skew_is_prevented_simulated),
		cmocka_unit_test(phantoms_are_prevented_simulated),
		cmocka_unit_test(neighbours_do_not_disturb_each_other_simulated),
	};
	const struct CMUnitTest real[] = {
		cmocka_unit_test(a_transaction_sees_its_own_writes),
		cmocka_unit_test(an_ended_transaction_leaves_nothing),
		cmocka_unit_test(bounds_are_kept),
		cmocka_unit_test(pages_and_runs_commit_with_the_items),
		cmocka_unit_test(a_page_cached_of_another_incarnation_holds_nobody_up),
		cmocka_unit_test(what_was_read_must_stand_at_commit),
		cmocka_unit_test(a_later_read_notices_that_an_earlier_one_fell),
	};
	const struct CMUnitTest threads[] = {
		cmocka_unit_test(transfers_keep_the_sum_on_threads),
		cmocka_unit_test(write_skew_is_prevented_on_threads),
		cmocka_unit_test(phantoms_are_prevented_on_threads),
		cmocka_unit_test(neighbours_do_not_disturb_each_other_on_threads),
	};
	int failed = 0;

	if (!getenv("WEFT_NO_SIM"))
		failed += cmocka_run_group_tests(simulated, NULL, NULL);
	if (rt_real_start())
		return 1;
	failed += cmocka_run_group_tests(real, open_one, close_one);
	failed += cmocka_run_group_tests(threads, NULL, NULL);
	return failed;
}
