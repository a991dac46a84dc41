/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a kernel was told from a leaf is dropped before the leaf is given up, wherever its items
 * are by then: leaves are split, joined, and become the root's content and the other way
 * round. On one node, with the cache asked as the driver of several would.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>

#include <cmocka.h>

#include "tests/unit/tree_fixture.h"

static struct tree_fixture f;
static _Atomic uint32_t drops, held; /* held: drops wait */
static _Atomic uint32_t stuck;       /* 1: the next drop gets stuck; 2: one is */
static _Atomic bool seen;            /* a drop has named the inode that was kernel-cached */
static uint64_t kcached;
static bool has_pages; /* the kernel has, of the file that blocks are kernel-cached of */

#define FILE_INO 77

static struct disk_key key_at(uint64_t ino)
{
	return disk_key(ino, DISK_ITEM_LINK, 0);
}

static void on_inode(void *arg, uint64_t ino)
{
	if (ino == kcached)
		atomic_store(&seen, true);
}

/* A drop that another task is to do, and that goes on only when that task has done it. */
static bool get_stuck(const struct cache_kcached *what)
{
	uint32_t before = atomic_load(&drops);

	atomic_store(&stuck, 2);
	WEFT_ASSERT(cache_drop_anew(tree_cache(f.tree), what));
	while (atomic_load(&drops) == before)
		rt_wait(&drops, before, RT_FOREVER);
	while (atomic_load(&stuck) == 2)
		rt_wait(&stuck, 2, RT_FOREVER);
	atomic_store(&seen, false);
	tree_leaf_inodes(what->image, on_inode, NULL); /* the image is its own */
	WEFT_ASSERT(atomic_load(&seen));
	atomic_store(&stuck, 4);
	rt_wake(&stuck, INT32_MAX);
	return false;
}

static bool on_drop(void *owner, const struct cache_kcached *what)
{
	if (atomic_load(&stuck) == 1)
		return get_stuck(what);
	WEFT_ASSERT(what->kinds == KCACHE_ATTRIBUTES || what->kinds == KCACHE_BLOCK);
	while (atomic_load(&held))
		rt_wait(&held, 1, RT_FOREVER);
	if (what->kinds == KCACHE_ATTRIBUTES)
		tree_leaf_inodes(what->image, on_inode, NULL);
	atomic_fetch_add(&drops, 1);
	rt_wake(&drops, INT32_MAX);
	return true;
}

static bool on_has_pages(void *owner, uint64_t ino)
{
	WEFT_ASSERT(ino == FILE_INO);
	return has_pages;
}

static const struct cache_kernel_ops kernel_ops = {
	.drop = on_drop, .has_pages = on_has_pages};

static int open_tree(void **state)
{
	fixture_open_file(&f, 64u << 20, 0, 8u << 20);
	FIXTURE_MUST(cache_kernel_start(tree_cache(f.tree), &kernel_ops, NULL));
	return 0;
}

static int close_tree(void **state)
{
	fixture_close(&f);
	return 0;
}

static void put(uint64_t ino)
{
	uint8_t value[100] = {0};

	FIXTURE_MUST(fixture_put(f.tree, key_at(ino), value, sizeof(value)));
}

static void take(uint64_t ino)
{
	struct txn *x;
	int r;

	FIXTURE_MUST(txn_begin(f.tree, true, &x));
	while ((r = txn_delete(x, key_at(ino))) == -EAGAIN ||
		(!r && (r = txn_commit(x, NULL)) == -EAGAIN))
		txn_restart(x);
	FIXTURE_MUST(r);
	txn_end(x);
}

/* After a drop for which nobody has come this takes a moment. */
static page_id leaf_of(uint64_t ino, unsigned kinds)
{
	struct cache_kcopy e;
	int r;

	kcached = kinds ? ino : kcached;
	while ((r = tree_kcache(f.tree, key_at(ino), key_at(ino), kinds, &e, 1)) ==
		-EAGAIN)
		rt_sleep_ns(1000000);
	assert_int_equal(r, 1);
	return atomic_load(&cache_frame(tree_cache(f.tree), e.frame)->pid);
}

/* As the driver asks before it gives the page away. */
static bool may_go(page_id pid)
{
	struct coherence *c = f.coherence;

	return c->frames->not_kcached(c->cache, pid);
}

/* The leaf that has the inode's item now goes only when the kernel was told. */
static void must_be_dropped(uint64_t ino)
{
	page_id pid = leaf_of(ino, 0);
	uint32_t before = atomic_load(&drops);

	atomic_store(&seen, false);
	assert_false(may_go(pid));
	while (atomic_load(&drops) == before)
		rt_wait(&drops, before, RT_FOREVER);
	while (!may_go(pid))
		rt_yield();
	assert_true(atomic_load(&seen));
}

static void what_is_kcached_is_dropped_once(void **state)
{
	put(1);
	assert_true(may_go(leaf_of(1, 0)));
	(void)leaf_of(1, KCACHE_ATTRIBUTES);
	must_be_dropped(1);
	assert_true(may_go(leaf_of(1, 0)));
}

static void while_it_is_dropped_nothing_is_kcached(void **state)
{
	page_id pid = leaf_of(1, KCACHE_ATTRIBUTES);
	struct cache_kcopy e, other;

	assert_int_equal(
		tree_kcache(f.tree, key_at(1), key_at(1), KCACHE_ATTRIBUTES, &e, 1), 1);
	assert_true(cache_kcopy_stands(tree_cache(f.tree), &e));
	atomic_store(&held, 1);
	assert_false(may_go(pid));
	assert_false(cache_kcopy_stands(tree_cache(f.tree), &e));
	assert_int_equal(
		tree_kcache(f.tree, key_at(1), key_at(1), KCACHE_ATTRIBUTES, &other, 1),
		-EAGAIN);
	assert_false(may_go(pid));
	atomic_store(&held, 0);
	rt_wake(&held, INT32_MAX);
	while (!may_go(pid))
		rt_yield();
	assert_false(cache_kcopy_stands(tree_cache(f.tree), &e));
}

/* The page goes although a task is stuck in its drop, and later drops are not held up. */
static void a_drop_that_is_stuck_is_begun_anew(void **state)
{
	uint32_t before = atomic_load(&drops);

	(void)leaf_of(1, KCACHE_ATTRIBUTES);
	atomic_store(&stuck, 1);
	must_be_dropped(1);
	assert_int_equal(atomic_load(&stuck), 2);
	assert_int_equal(atomic_load(&drops), before + 1);
	for (unsigned i = 0; i < 3; i++) {
		(void)leaf_of(1, KCACHE_ATTRIBUTES);
		must_be_dropped(1);
	}
	atomic_store(&stuck, 3);
	rt_wake(&stuck, INT32_MAX);
	while (atomic_load(&stuck) != 4)
		rt_wait(&stuck, 3, RT_FOREVER);
	(void)leaf_of(1, KCACHE_ATTRIBUTES);
	must_be_dropped(1);
	assert_int_equal(atomic_load(&drops), before + 5);
}

/* What is read is kernel-cached with it, also that there is nothing; not while the leaf is being dropped. */
static void what_is_read_is_kcached_before(void **state)
{
	struct tree_kcopy e = {.kinds = KCACHE_ATTRIBUTES}, none = e, later = e;
	struct cache *cache = tree_cache(f.tree);
	uint8_t value[100];
	page_id pid;

	put(50);
	pid = leaf_of(50, 0);
	do { /* after a drop for which nobody has come */
		rt_sleep_ns(1000000);
		assert_int_equal(tree_read_kcached(f.tree, &e, key_at(50), value,
					 sizeof(value)),
			sizeof(value));
	} while (!e.kcached);
	assert_true(cache_kcopy_stands(cache, &e.leaf));
	assert_int_equal(
		tree_read_kcached(f.tree, &none, key_at(51), value, sizeof(value)),
		-ENOENT);
	assert_true(none.kcached && none.leaf.generation == e.leaf.generation);
	kcached = 50;
	atomic_store(&seen, false);
	atomic_store(&held, 1);
	assert_false(may_go(pid));
	assert_false(cache_kcopy_stands(cache, &e.leaf));
	assert_int_equal(
		tree_read_kcached(f.tree, &later, key_at(50), value, sizeof(value)),
		sizeof(value));
	assert_false(later.kcached);
	atomic_store(&held, 0);
	rt_wake(&held, INT32_MAX);
	while (!may_go(pid))
		rt_yield();
	assert_true(atomic_load(&seen));
	assert_false(cache_kcopy_stands(cache, &none.leaf));
}

/* The inode is in the upper part of a leaf that is split, the root at first. */
static void an_kcopy_goes_with_items_that_a_split_moves(void **state)
{
	for (unsigned round = 0; round < 10; round++) {
		uint64_t base = 1000 + round * 10000;
		page_id before;

		for (uint64_t i = 0; i < 30; i++)
			put(base + i * 100);
		before = leaf_of(base + 2900, KCACHE_ATTRIBUTES);
		for (uint64_t i = 0; leaf_of(base + 2900, 0) == before && i < 90; i++)
			put(base + i * 30 + 1);
		assert_true(leaf_of(base + 2900, 0) != before);
		must_be_dropped(base + 2900);
	}
}

/* And with those of a leaf that is joined to the one before it. */
static void an_kcopy_goes_with_items_that_a_join_moves(void **state)
{
	unsigned joined = 0;

	for (unsigned round = 0; round < 10; round++) {
		uint64_t base = 1000 + round * 10000, last = base + 2900;
		page_id before = leaf_of(last, KCACHE_ATTRIBUTES);

		for (uint64_t i = 0; i < 2900; i++)
			if (i % 30 == 1 || i % 100 == 0)
				take(base + i);
		if (leaf_of(last, 0) == before)
			continue;
		joined++;
		must_be_dropped(last);
	}
	assert_true(joined > 0);
}

/* Items that come with what a kernel was told of them, as a join brings them. */
static void bring(page_id from, page_id to)
{
	struct guard a, b;

	FIXTURE_MUST(guard_exclusive(tree_cache(f.tree), from, 0, &a));
	FIXTURE_MUST(guard_exclusive(tree_cache(f.tree), to, 0, &b));
	guard_kcache_like(tree_cache(f.tree), &a, &b);
	guard_release(tree_cache(f.tree), &a);
	guard_release(tree_cache(f.tree), &b);
}

/* It was dropped, whoever asked has gone, and items have come to it since: it is kernel-cached again. */
static void a_leaf_that_nobody_has_come_for_is_kcached_again(void **state)
{
	const uint64_t base = 200000, last = base + 5900;
	struct cache_kcopy e;
	page_id pid;
	int r = -EAGAIN;

	for (uint64_t ino = base; ino <= last; ino += 100)
		put(ino);
	pid = leaf_of(base, KCACHE_ATTRIBUTES);
	assert_true(leaf_of(last, 0) != pid);
	must_be_dropped(base);
	(void)leaf_of(last, KCACHE_ATTRIBUTES);
	bring(leaf_of(last, 0), pid);
	for (unsigned tries = 0; r == -EAGAIN && tries < 5000; tries++) {
		r = tree_kcache(f.tree, key_at(base), key_at(base), KCACHE_ATTRIBUTES, &e,
			1);
		rt_sleep_ns(1000000);
	}
	assert_int_equal(r, 1);
	kcached = base;
	must_be_dropped(base);
}

/* Of any page, as a READ would. */
static bool kcache_block(page_id pid)
{
	struct guard g;
	int r;

	FIXTURE_MUST(guard_shared(tree_cache(f.tree), pid, 0, &g));
	r = guard_kcache(tree_cache(f.tree), &g, KCACHE_BLOCK, FILE_INO, 0, NULL);
	guard_release(tree_cache(f.tree), &g);
	return r == 0;
}

static void a_block_is_dropped_only_where_the_kernel_has_pages_of_its_file(void **state)
{
	page_id pid;
	uint32_t before;

	put(5);
	pid = leaf_of(5, 0);
	while (!kcache_block(pid)) /* after a drop for which nobody has come */
		rt_sleep_ns(1000000);
	has_pages = true;
	before = atomic_load(&drops);
	assert_false(may_go(pid));
	while (!may_go(pid))
		rt_yield();
	assert_int_equal(atomic_load(&drops), before + 1);

	while (!kcache_block(pid))
		rt_sleep_ns(1000000);
	has_pages = false;
	assert_true(may_go(pid));
	assert_int_equal(atomic_load(&drops), before + 1);
	assert_true(may_go(pid));
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_is_kcached_is_dropped_once),
		cmocka_unit_test(while_it_is_dropped_nothing_is_kcached),
		cmocka_unit_test(a_drop_that_is_stuck_is_begun_anew),
		cmocka_unit_test(what_is_read_is_kcached_before),
		cmocka_unit_test(an_kcopy_goes_with_items_that_a_split_moves),
		cmocka_unit_test(an_kcopy_goes_with_items_that_a_join_moves),
		cmocka_unit_test(a_leaf_that_nobody_has_come_for_is_kcached_again),
		cmocka_unit_test(
			a_block_is_dropped_only_where_the_kernel_has_pages_of_its_file),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, open_tree, close_tree);
}
