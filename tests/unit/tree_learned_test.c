/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Leaves that are found by a guess (docs/nodes/learned.md): the table of places, and the proof that
 * a guessed page is the leaf. Each guess here is given by the test, before a descent is tried. (With
 * other nodes, and with pages that die: tests/sim/cluster_learned_test.c.)
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#include "tests/unit/tree_fixture.h"

#define ITEMS 3000u
#define BYTES 100u

static struct tree_fixture f;
static bool has_guess;
static struct learned_leaf the_guess;

static void give_guess(
	struct tree *t, tree_key key, bool *known, struct learned_leaf *guess)
{
	*known = has_guess;
	*guess = the_guess;
}

static struct disk_key key_at(unsigned i)
{
	return disk_key(1000 + i, DISK_ITEM_LINK, 0);
}

static void put(unsigned i, uint8_t byte)
{
	uint8_t value[BYTES];

	memset(value, byte, sizeof(value));
	FIXTURE_MUST(fixture_put(f.tree, key_at(i), value, sizeof(value)));
}

static uint8_t byte_of(unsigned i)
{
	return (uint8_t)(i % 251 + 1);
}

static void must_read(unsigned i)
{
	uint8_t value[BYTES];

	assert_int_equal(tree_read(f.tree, key_at(i), value, sizeof(value)), BYTES);
	assert_int_equal(value[0], byte_of(i));
	assert_int_equal(value[BYTES - 1], byte_of(i));
}

/* The leaf that has the item now, by a descent. */
static struct learned_leaf leaf_of(unsigned i)
{
	struct learned_leaf leaf;
	struct descent d;
	struct guard g;

	FIXTURE_MUST(tree_descend(f.tree, tree_key_of(key_at(i)), 0, &d));
	FIXTURE_MUST(guard_shared(f.cache, d.pid, 0, &g));
	leaf = (struct learned_leaf){d.low, d.high, d.pid, g.frame->incarnation};
	guard_release(f.cache, &g);
	return leaf;
}

static uint64_t right(void)
{
	return tree_counters(f.tree)->guesses_right;
}

static uint64_t wrong(void)
{
	return tree_counters(f.tree)->guesses_wrong;
}

static int open_tree(void **state)
{
	fixture_open_file(&f, 64u << 20, 0, 8u << 20);
	FIXTURE_MUST(tree_learn(f.tree, 64u << 10));
	for (unsigned i = 0; i < ITEMS; i++)
		put(i, byte_of(i));
	tree_guess_watch = give_guess;
	return 0;
}

static int close_tree(void **state)
{
	tree_guess_watch = NULL;
	fixture_close(&f);
	return 0;
}

/* ---- the table ------------------------------------------------------------------------- */

#define SPACE 400u /* keys of the model */

/* The model's keys: each with its entry. */
static struct model_key {
	unsigned entry; /* 0: none */
	page_id pid;
	uint64_t incarnation;
} model[SPACE];

/* Enters a leaf into the model. The rest of other entries above it is elsewhere. */
static void model_note(const struct learned_leaf *leaf, unsigned entry)
{
	bool overlapped[2 * SPACE] = {false};
	unsigned above = entry + 1;

	for (unsigned k = (unsigned)leaf->low; k < leaf->high; k++) {
		for (unsigned i = 0; model[k].entry && i < SPACE; i++)
			overlapped[i] |= model[i].entry == model[k].entry;
	}
	for (unsigned k = 0; k < SPACE; k++) {
		if (k >= leaf->low && k < leaf->high)
			model[k] = (struct model_key){entry, leaf->pid, leaf->incarnation};
		else if (overlapped[k] && k >= leaf->high)
			model[k] = (struct model_key){above, model[k].pid, 0};
	}
}

/* Removes the entry that begins last, at the key or below; or its keys are elsewhere now. */
static void model_lose(unsigned key, page_id pid, bool forget)
{
	unsigned at = key, entry;

	while (at > 0 && !model[at].entry)
		at--;
	entry = model[at].entry;
	for (unsigned k = 0; entry && model[at].pid == pid && k < SPACE; k++) {
		if (model[k].entry != entry)
			continue;
		model[k].incarnation = 0;
		if (forget && k != at)
			model[k].entry = 0;
	}
	if (forget && entry && model[at].pid == pid)
		model[at].entry = 0;
}

static void must_find_as_model(struct learned *l, unsigned k)
{
	struct learned_leaf found = {0};
	unsigned low = k, high = k;

	assert_int_equal(learned_find(l, k, &found), model[k].entry != 0);
	if (!model[k].entry)
		return;
	assert_int_equal(found.pid, model[k].pid);
	assert_int_equal(found.incarnation, model[k].incarnation);
	while (low > 0 && model[low - 1].entry == model[k].entry)
		low--;
	while (high < SPACE && model[high].entry == model[k].entry)
		high++;
	assert_int_equal(found.low, low);
	assert_int_equal(found.high, high);
}

/* Random notes and removals, and a plain array that says which entry has each key. */
static void entries_take_keys_from_those_they_overlap(void **state)
{
	struct learned *l;

	FIXTURE_MUST(learned_open(&l, (SPACE + 2) * 64));
	for (unsigned step = 0; step < 20000; step++) {
		unsigned low = (unsigned)(rt_random() % SPACE);
		unsigned high = low + 1 + (unsigned)(rt_random() % (step % 7 ? 5 : 60));
		struct learned_leaf leaf = {low, MIN(high, SPACE), step + 1, 1 + step % 3};

		if (step % 8 == 3) {
			learned_forget(l, low, model[low].pid);
			model_lose(low, model[low].pid, true);
		} else if (step % 8 == 7) {
			learned_doubt(l, low, model[low].pid);
			model_lose(low, model[low].pid, false);
		} else {
			learned_note(l, &leaf);
			model_note(&leaf, 1 + 2 * step);
		}
		for (unsigned k = 0; step % 50 == 0 && k < SPACE; k++)
			must_find_as_model(l, k);
	}
	assert_true(learned_count(l) > 10 && learned_count(l) <= SPACE);
	learned_close(l);
}

/* The entries that are found stay while others come and go; the size is a bound. */
static void a_full_table_keeps_the_entries_that_are_found(void **state)
{
	struct learned_leaf found;
	struct learned *l;

	assert_int_equal(learned_open(&l, 100), -EINVAL);
	FIXTURE_MUST(learned_open(&l, 65 * 64));
	assert_int_equal(learned_bytes(l), 65 * 64);
	for (unsigned i = 0; i < 10000; i++) {
		struct learned_leaf leaf = {i * 10, i * 10 + 10, i + 1, 1};

		learned_note(l, &leaf);
		assert_int_equal(learned_count(l), MIN(i + 1, 64u));
		for (unsigned k = 0; k < MIN(i + 1, 16u); k++) {
			assert_true(learned_find(l, k * 10 + 5, &found));
			assert_int_equal(found.pid, k + 1);
		}
	}
	assert_true(learned_floor(l, TREE_KEY_MAX, &found));
	assert_int_equal(found.pid, 10000);
	learned_close(l);
}

/* ---- the proof -------------------------------------------------------------------------- */

static void a_leaf_is_found_by_its_guess(void **state)
{
	uint64_t before = right();
	struct descent d;

	for (unsigned i = 0; i < ITEMS; i += 17) {
		has_guess = false;
		the_guess = leaf_of(i);
		has_guess = true;
		FIXTURE_MUST(tree_find_leaf(f.tree, tree_key_of(key_at(i)), &d));
		assert_int_equal(d.pid, the_guess.pid);
		assert_int_equal(d.parent.kind, GUARD_NONE);
		assert_true(guard_valid(&d.node));
		must_read(i);
	}
	assert_int_equal(right() - before, 2 * ((ITEMS + 16) / 17));
	has_guess = false;
}

/* Transactions read and write leaves that were guessed, and scans go on from them. */
static void all_readings_take_guessed_leaves(void **state)
{
	uint8_t value[BYTES];
	struct disk_key found;
	struct txn *x;

	the_guess = leaf_of(500);
	has_guess = true;
	put(500, byte_of(500));
	FIXTURE_MUST(txn_begin(f.tree, false, &x));
	assert_int_equal(txn_read(x, key_at(500), value, sizeof(value)), BYTES);
	FIXTURE_MUST(txn_commit(x, NULL));
	txn_end(x);
	assert_int_equal(
		tree_next(f.tree, key_at(500), key_at(900), &found, value, BYTES), BYTES);
	assert_int_equal(value[0], byte_of(500));
	assert_int_equal(
		tree_floor(f.tree, key_at(500), key_at(2), &found, value, BYTES), BYTES);
	assert_int_equal(value[0], byte_of(500));
	has_guess = false;
}

static void a_leaf_that_was_split_has_fewer_keys(void **state)
{
	struct learned_leaf old = leaf_of(100), now;
	unsigned last = 100;

	while (tree_key_of(key_at(last + 1)) < old.high)
		last++;
	/* Items between those that are there. */
	for (unsigned i = 0; leaf_of(last).pid == old.pid; i++) {
		struct disk_key key = disk_key(1000 + 100, DISK_ITEM_LINK, 1 + i);
		uint8_t value[BYTES] = {0};

		FIXTURE_MUST(fixture_put(f.tree, key, value, sizeof(value)));
	}
	learned_note(f.tree->learned, &old);
	the_guess = old;
	has_guess = true;
	must_read(100);
	must_read(last);
	assert_true(wrong() > 0);
	/* the table was told how far the leaf goes now */
	assert_true(learned_find(f.tree->learned, old.low, &now));
	assert_int_equal(now.pid, old.pid);
	assert_true(now.high < old.high);
	/* the rest is elsewhere, and there is no other node that could say where */
	assert_false(learned_find(f.tree->learned, old.high - 1, &now));
	has_guess = false;
}

/* A leaf that has grown keeps its page and its incarnation. */
static void a_page_above_the_leaves_is_no_leaf(void **state)
{
	struct descent d;
	struct guard g;
	uint64_t before = wrong();

	FIXTURE_MUST(tree_descend(f.tree, tree_key_of(key_at(700)), 0, &d));
	FIXTURE_MUST(guard_shared(f.cache, d.parent_pid, 0, &g));
	the_guess = (struct learned_leaf){
		0, TREE_KEY_MAX, d.parent_pid, g.frame->incarnation};
	guard_release(f.cache, &g);
	has_guess = true;
	must_read(700);
	assert_int_equal(wrong(), before + 1);
	has_guess = false;
}

/* A page of a file, filled so that it looks like a leaf, or like nothing at all. */
static void data_page(const struct space_run *run, page_id pid, const uint8_t *image)
{
	struct guard g;

	FIXTURE_MUST(guard_fill(f.cache, pid, run->incarnation, &g));
	guard_store(&g, 0, image, PAGE_SIZE);
	guard_mark_data(&g);
	guard_release_dirty(f.cache, &g, false);
}

/* The page is not in use any more, and that is durable: reserves it for a file. */
static struct space_run reserve_page(page_id pid)
{
	static struct space_run tried[4096];
	unsigned count = 0;
	struct space_run run = {0};

	FIXTURE_MUST(log_flush(f.log, log_end(f.log)));
	while (run.pid != pid && count < ARRAY_SIZE(tried)) {
		FIXTURE_MUST(space_reserve(f.space, pid, 1, 0, &run));
		tried[count++] = run;
	}
	assert_int_equal(run.pid, pid);
	for (unsigned i = 0; i + 1 < count; i++)
		space_unreserve(f.space, &tried[i]);
	return run;
}

/*
 * A leaf is joined away, and its page becomes a file's. A user fills it with a leaf that has the
 * keys, the page id and all else of the one that was, and items of the user's own.
 */
static void a_forged_leaf_is_not_read(void **state)
{
	struct learned_leaf old = leaf_of(2000), now;
	uint8_t *forged = rt_alloc_pages(PAGE_SIZE), own[BYTES];
	struct space_run run;
	uint64_t before = wrong();

	memset(own, 0xee, sizeof(own));
	tree_format_root(forged, old.pid);
	memcpy(forged + NODE_LOW, &old.low, sizeof(old.low));
	memcpy(forged + NODE_HIGH, &old.high, sizeof(old.high));
	assert_true(tree_format_insert(forged, key_at(2000), own, sizeof(own)));
	FIXTURE_MUST(tree_check_page(forged, old.pid, &fixture_error));

	for (unsigned i = 1000; i < 2900; i++)
		FIXTURE_MUST(fixture_put(f.tree, key_at(i), NULL, 0));
	put(2000, byte_of(2000));
	now = leaf_of(2000);
	assert_int_not_equal(now.pid, old.pid);
	run = reserve_page(old.pid);
	assert_true(run.incarnation > old.incarnation);
	data_page(&run, old.pid, forged);

	the_guess = old;
	has_guess = true;
	must_read(2000);
	assert_int_equal(wrong(), before + 1);
	/* nor is anything that has the right incarnation, and is no page of the tree */
	memset(forged, 0x77, PAGE_SIZE);
	data_page(&run, old.pid, forged);
	the_guess.incarnation = run.incarnation;
	must_read(2000);
	assert_int_equal(wrong(), before + 2);
	has_guess = false;
	rt_free_pages(forged, PAGE_SIZE);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(entries_take_keys_from_those_they_overlap),
		cmocka_unit_test(a_full_table_keeps_the_entries_that_are_found),
		cmocka_unit_test(a_leaf_is_found_by_its_guess),
		cmocka_unit_test(all_readings_take_guessed_leaves),
		cmocka_unit_test(a_leaf_that_was_split_has_fewer_keys),
		cmocka_unit_test(a_page_above_the_leaves_is_no_leaf),
		cmocka_unit_test(a_forged_leaf_is_not_read),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, open_tree, close_tree);
}
