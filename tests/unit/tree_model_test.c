/* SPDX-License-Identifier: Apache-2.0 */
/* The whole tree against a model that is an array: every operation, in large and small
 * caches. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#include "tests/unit/tree_fixture.h"

#define KEYS      20000u
#define MAX_BYTES 64u

static uint64_t seed = 88172645463325252ull;

static uint64_t rnd(void)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	seed ^= seed << 17;
	return seed;
}

/* Sorted by construction: index i has the i-th key. Length -1: absent. */
struct model {
	int16_t length[KEYS];
	uint8_t value[KEYS][MAX_BYTES];
	unsigned count;
};

static struct disk_key key_at(unsigned i)
{
	return (struct disk_key){
		.high = 100 + i / 700, .low = (uint64_t)(i % 700) * 1000 + 7};
}

static struct disk_key between(unsigned i)
{
	struct disk_key k = key_at(i);

	k.low += 1 + rnd() % 900;
	return k;
}

static int model_next(const struct model *m, unsigned from, unsigned to)
{
	for (unsigned i = from; i < to; i++) {
		if (m->length[i] >= 0)
			return (int)i;
	}
	return -1;
}

static int model_floor(const struct model *m, int at, int floor)
{
	for (int i = at; i >= floor; i--) {
		if (m->length[i] >= 0)
			return i;
	}
	return -1;
}

static void put(struct tree *t, struct model *m, unsigned i, unsigned length)
{
	for (unsigned b = 0; b < length; b++)
		m->value[i][b] = (uint8_t)rnd();
	m->count += m->length[i] < 0;
	m->length[i] = (int16_t)length;
	assert_int_equal(fixture_put(t, key_at(i), m->value[i], length), 0);
}

static void drop(struct tree *t, struct model *m, unsigned i)
{
	m->count -= m->length[i] >= 0;
	m->length[i] = -1;
	assert_int_equal(fixture_put(t, key_at(i), NULL, 0), 0);
}

static void look(struct tree *t, const struct model *m, unsigned i)
{
	uint8_t buf[DISK_VALUE_MAX];
	int r = tree_read(t, key_at(i), buf, sizeof(buf));

	assert_int_equal(r, m->length[i] < 0 ? -ENOENT : m->length[i]);
	if (r > 0) {
		assert_memory_equal(buf, m->value[i], (size_t)r);
		assert_int_equal(tree_read(t, key_at(i), buf, (size_t)r - 1), -ERANGE);
	}
	assert_int_equal(tree_read(t, between(i), buf, sizeof(buf)), -ENOENT);
}

static void found_is(
	const struct model *m, int want, int r, struct disk_key found, const uint8_t *buf)
{
	if (want < 0) {
		assert_int_equal(r, -ENOENT);
		return;
	}
	assert_int_equal(r, m->length[want]);
	assert_int_equal(disk_key_compare(found, key_at((unsigned)want)), 0);
	assert_memory_equal(buf, m->value[want], (size_t)r);
}

static void walk(struct tree *t, const struct model *m)
{
	unsigned a = (unsigned)(rnd() % KEYS), b = (unsigned)(rnd() % KEYS);
	unsigned low = MIN(a, b), high = MAX(a, b);
	uint8_t buf[DISK_VALUE_MAX];
	struct disk_key found;
	int r;

	r = tree_next(t, key_at(low), key_at(high), &found, buf, sizeof(buf));
	found_is(m, model_next(m, low, high), r, found, buf);
	r = tree_next(t, between(low), key_at(high), &found, buf, sizeof(buf));
	found_is(m, low < high ? model_next(m, low + 1, high) : -1, r, found, buf);
	r = tree_floor(t, key_at(high), key_at(low), &found, buf, sizeof(buf));
	found_is(m, model_floor(m, (int)high, (int)low), r, found, buf);
	r = tree_floor(t, between(high), between(low), &found, buf, sizeof(buf));
	if (low < high)
		found_is(m, model_floor(m, (int)high, (int)low + 1), r, found, buf);
	r = tree_floor(t, key_at(low), (struct disk_key){0}, &found, buf, sizeof(buf));
	found_is(m, model_floor(m, (int)low, 0), r, found, buf);
}

struct scanning {
	const struct model *m;
	int at, end;
	unsigned left; /* stop after so many */
};

static int visit(void *arg, struct disk_key key, const void *value, size_t len)
{
	struct scanning *s = arg;

	assert_true(s->at >= 0);
	found_is(s->m, s->at, (int)len, key, value);
	s->at = model_next(s->m, (unsigned)s->at + 1, (unsigned)s->end);
	return --s->left == 0 ? 42 : 0;
}

static void scan(
	struct tree *t, const struct model *m, unsigned low, unsigned high, unsigned most)
{
	struct scanning s = {
		.m = m, .at = model_next(m, low, high), .end = (int)high, .left = most};
	struct disk_key to =
		high == KEYS ? (struct disk_key){UINT64_MAX, UINT64_MAX} : key_at(high);
	int r = tree_scan(t, key_at(low), to, rnd() & 1, visit, &s);

	assert_true(r == 0 || r == 42);
	if (r == 0)
		assert_int_equal(s.at, -1);
	else
		assert_int_equal(s.left, 0);
}

static void run_mixed(
	struct tree_fixture *x, struct model *m, unsigned steps, unsigned removing)
{
	for (unsigned n = 0; n < steps; n++) {
		unsigned i = (unsigned)(rnd() % KEYS);

		if (rnd() % 100 < removing)
			drop(x->tree, m, i);
		else if (m->length[i] >= 0 && rnd() % 2)
			put(x->tree, m, i, (unsigned)m->length[i]);
		else
			put(x->tree, m, i, (unsigned)(rnd() % MAX_BYTES));
		if (n % 4 == 0)
			look(x->tree, m, (unsigned)(rnd() % KEYS));
		if (n % 64 == 0)
			walk(x->tree, m);
		if (n % 1024 == 0) {
			unsigned low = (unsigned)(rnd() % KEYS);

			scan(x->tree, m, low, low + (unsigned)(rnd() % (KEYS - low)),
				1000);
		}
	}
}

static void must_be_whole(struct tree_fixture *x, const struct model *m, uint64_t *pages)
{
	assert_int_equal(fixture_check_all(x, pages), m->count);
	scan(x->tree, m, 0, KEYS, UINT32_MAX);
	for (unsigned i = 0; i < KEYS; i++)
		look(x->tree, m, i);
}

static void model_with(uint64_t cache_bytes, unsigned steps)
{
	static struct model m;
	struct tree_fixture x;
	struct space_stat before, after;
	uint64_t pages;

	memset(&m, 0, sizeof(m));
	memset(m.length, 0xff, sizeof(m.length));
	fixture_open_file(&x, 128u << 20, 0, cache_bytes);
	space_stat(x.space, &before);
	must_be_whole(&x, &m, &pages);
	run_mixed(&x, &m, steps, 20);
	must_be_whole(&x, &m, &pages);
	assert_true(tree_height(x.tree) >= 3);
	run_mixed(&x, &m, steps, 80);
	must_be_whole(&x, &m, &pages);
	space_stat(x.space, &after);
	assert_int_equal(before.free_pages - after.free_pages, pages - 1);
	/* nothing is lost when everything goes */
	for (unsigned i = 0; i < KEYS; i++)
		drop(x.tree, &m, (i * 7919) % KEYS);
	must_be_whole(&x, &m, &pages);
	space_stat(x.space, &after);
	assert_int_equal(before.free_pages - after.free_pages, pages - 1);
	assert_true(pages <= 3);
	assert_true(atomic_load(&tree_counters(x.tree)->splits) > 100);
	assert_true(atomic_load(&tree_counters(x.tree)->merges) > 100);
	fixture_close(&x);
}

static void the_tree_is_the_model_in_a_large_cache(void **state)
{
	model_with(64u << 20, 150000);
}

static void the_tree_is_the_model_in_a_small_cache(void **state)
{
	model_with(PAGE_SIZE * 128, 30000);
}

static bool page_begins_at(struct tree *t, struct disk_key key, unsigned level)
{
	struct descent d;

	assert_int_equal(tree_descend(t, tree_key_of(key), level, &d), 0);
	return d.low == tree_key_of(key);
}

/* Also where there is nothing, once and again; and what is asked for stands at that moment. */
static void a_tree_is_divided_where_asked(void **state)
{
	static struct model m;
	struct tree_fixture x;
	uint64_t pages;

	memset(&m, 0, sizeof(m));
	memset(m.length, 0xff, sizeof(m.length));
	fixture_open_file(&x, 128u << 20, 0, 16u << 20);
	assert_int_equal(tree_divide(x.tree, key_at(KEYS / 2), false), 0);
	assert_true(page_begins_at(x.tree, key_at(KEYS / 2), 0));
	assert_int_equal(tree_height(x.tree), 2);
	assert_int_equal(tree_divide(x.tree, key_at(KEYS / 2), true), 0);
	assert_true(page_begins_at(x.tree, key_at(KEYS / 2), 2));
	assert_int_equal(tree_height(x.tree), 3);
	must_be_whole(&x, &m, &pages);
	for (unsigned round = 0; round < 300; round++) {
		unsigned i = (unsigned)(rnd() % KEYS);
		struct disk_key at = rnd() % 2 ? key_at(i) : between(i);
		bool parents = rnd() % 2;

		run_mixed(&x, &m, 100, round / 100 % 2 ? 80 : 20);
		assert_int_equal(tree_divide(x.tree, at, parents), 0);
		assert_true(page_begins_at(x.tree, at, 0));
		assert_true(!parents || page_begins_at(x.tree, at, 2));
		if (round % 3 == 0)
			tree_undivide(x.tree, at);
		if (round % 50 == 0)
			must_be_whole(&x, &m, &pages);
	}
	must_be_whole(&x, &m, &pages);
	for (unsigned i = 0; i < KEYS; i++)
		drop(x.tree, &m, (i * 7919) % KEYS);
	must_be_whole(&x, &m, &pages);
	assert_true(pages <= 8);
	fixture_close(&x);
}

static void ascending_inserts_leave_full_pages(void **state)
{
	struct tree_fixture x;
	uint64_t pages, items = 100000;

	fixture_open_file(&x, 256u << 20, 0, 64u << 20);
	for (uint64_t i = 0; i < items; i++)
		assert_int_equal(
			fixture_put(x.tree,
				(struct disk_key){.high = i / 100, .low = i % 100}, &i,
				8),
			0);
	assert_int_equal(fixture_check_all(&x, &pages), items);
	/* 126 items of 24 + 8 bytes fill a leaf */
	assert_true(pages < items / 126 + items / 126 / 100 + 8);
	fixture_close(&x);
}

static void a_transaction_may_write_more_than_a_leaf_holds(void **state)
{
	static uint8_t value[DISK_VALUE_MAX] = {5};
	struct tree_fixture x;
	uint64_t pages;

	fixture_open_file(&x, 128u << 20, 0, 16u << 20);
	for (unsigned round = 0; round < 40; round++) {
		struct txn *t;
		int r;

		assert_int_equal(txn_begin(x.tree, false, &t), 0);
		do {
			for (unsigned i = 0; i < 31; i++)
				assert_int_equal(
					txn_write(t,
						(struct disk_key){.low = i * 100 + round},
						value, i % 4 ? 1024 : 900),
					0);
			assert_int_equal(txn_write(t, (struct disk_key){.low = 99999},
						 value, 1024),
				0);
			assert_int_equal(txn_write(t, (struct disk_key){.low = 99998},
						 value, 1024),
				-E2BIG);
			r = txn_commit(t, NULL);
			if (r == -EAGAIN)
				txn_restart(t);
		} while (r == -EAGAIN);
		assert_int_equal(r, 0);
		txn_end(t);
	}
	assert_int_equal(fixture_check_all(&x, &pages), 40 * 31 + 1);
	fixture_close(&x);
}

static void a_full_volume_refuses_splits_and_stays_whole(void **state)
{
	static uint8_t value[1000];
	struct tree_fixture x;
	struct space_stat stat;
	uint64_t pages, done = 0, before;
	int r = 0;

	fixture_open_file(&x, 24u << 20, 4u << 20, 16u << 20);
	while (r == 0 && done < 100000) {
		r = fixture_put(
			x.tree, (struct disk_key){.high = rnd(), .low = 1}, value, 1000);
		done += r == 0;
	}
	assert_int_equal(r, -ENOSPC);
	space_stat(x.space, &stat);
	before = stat.free_pages;
	assert_int_equal(fixture_check_all(&x, &pages), done);
	for (unsigned i = 0; i < 50; i++)
		fixture_put(
			x.tree, (struct disk_key){.high = rnd(), .low = 2}, value, 1000);
	space_stat(x.space, &stat);
	assert_true(stat.free_pages <= before);
	fixture_check_all(&x, &pages);
	fixture_close(&x);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_tree_is_the_model_in_a_large_cache),
		cmocka_unit_test(the_tree_is_the_model_in_a_small_cache),
		cmocka_unit_test(a_tree_is_divided_where_asked),
		cmocka_unit_test(ascending_inserts_leave_full_pages),
		cmocka_unit_test(a_transaction_may_write_more_than_a_leaf_holds),
		cmocka_unit_test(a_full_volume_refuses_splits_and_stays_whole),
	};

	if (rt_real_start())
		return 1;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
