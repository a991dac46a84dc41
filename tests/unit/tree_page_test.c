/* SPDX-License-Identifier: Apache-2.0 */
/* One page of the tree: edits against a model, and what tree_check_page must refuse. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#include "engine/tree/tree_internal.h"

#define PID 77ull

static uint64_t seed = 0x9e3779b97f4a7c15ull;

static uint64_t rnd(void)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	seed ^= seed << 17;
	return seed;
}

static tree_key key_at(uint64_t high, uint64_t low)
{
	return (tree_key)high << 64 | low;
}

/* ---- a model: a dense array of small keys ---------------------------------------- */

#define MODEL_KEYS 400

struct model {
	bool there[MODEL_KEYS];
	uint16_t length[MODEL_KEYS];
	uint8_t value[MODEL_KEYS][DISK_VALUE_MAX];
	unsigned count, used;
};

static tree_key model_key(unsigned k)
{
	return key_at(5 + k / 50, (k % 50) * 3 + 1);
}

static void must_be_sound(const uint8_t *image)
{
	struct weft_error err = {0};

	if (tree_check_page(image, PID, &err))
		fail_msg("%s", err.text);
}

static void must_match(const uint8_t *image, const struct model *m)
{
	struct node_counts c = node_counts_load(image);
	unsigned at = 0;

	must_be_sound(image);
	assert_int_equal(c.count, m->count);
	assert_int_equal(leaf_used(c), m->used);
	for (unsigned k = 0; k < MODEL_KEYS; k++) {
		assert_int_equal(leaf_search(image, c.count, model_key(k)), at);
		if (!m->there[k])
			continue;
		assert_true(leaf_key_load(image, at) == model_key(k));
		assert_int_equal(leaf_place_load(image, at).length, m->length[k]);
		assert_memory_equal(image + leaf_place_load(image, at).offset,
			m->value[k], m->length[k]);
		at++;
	}
}

static unsigned random_length(unsigned limit)
{
	static const unsigned some[] = {0, 1, 7, 8, 24, 24, 24, 128, 128, 300, 1024};
	unsigned length = some[rnd() % ARRAY_SIZE(some)];

	return rnd() % 4 ? MIN(length, limit) : (unsigned)(rnd() % (limit + 1));
}

static void model_step(const struct node_edit *e, struct model *m, unsigned limit)
{
	unsigned k = (unsigned)(rnd() % MODEL_KEYS);
	unsigned old = m->there[k] ? LEAF_SLOT_BYTES + m->length[k] : 0;
	unsigned length = random_length(limit);

	if (rnd() % 5 < 2) {
		leaf_remove(e, model_key(k));
		m->count -= m->there[k];
		m->used -= old;
		m->there[k] = false;
		return;
	}
	if (m->there[k] && rnd() % 2)
		length = m->length[k]; /* the patch in place */
	if (m->used - old + LEAF_SLOT_BYTES + length > LEAF_CAPACITY)
		return;
	for (unsigned i = 0; i < length; i++) {
		if (rnd() % 3 == 0)
			m->value[k][i] = (uint8_t)rnd();
	}
	leaf_set(e, model_key(k), m->value[k], length);
	m->count += !m->there[k];
	m->used += LEAF_SLOT_BYTES + length - old;
	m->there[k] = true;
	m->length[k] = (uint16_t)length;
}

static void a_leaf_holds_what_was_put_into_it(void **state)
{
	static const unsigned limits[] = {0, 8, 24, 200, 1024};
	static struct model m;
	_Alignas(64) uint8_t image[PAGE_SIZE];
	struct node_edit e = {.image = image};

	for (unsigned l = 0; l < ARRAY_SIZE(limits); l++) {
		memset(&m, 0, sizeof(m));
		tree_format_root(image, PID);
		for (unsigned i = 0; i < 20000; i++) {
			model_step(&e, &m, limits[l]);
			if (i % 16 == 0 || i < 200)
				must_match(image, &m);
		}
	}
}

static void a_leaf_fills_to_the_last_byte(void **state)
{
	_Alignas(64) uint8_t image[PAGE_SIZE];
	uint8_t value[DISK_VALUE_MAX] = {1};
	unsigned n = 0;

	tree_format_root(image, PID);
	while (tree_format_insert(image, tree_key_disk(key_at(0, n)), NULL, 0))
		n++;
	assert_int_equal(n, LEAF_SLOTS_MAX);
	must_be_sound(image);
	tree_format_root(image, PID);
	assert_false(tree_format_insert(
		image, (struct disk_key){0}, value, sizeof(value) + 1));
	for (n = 0; tree_format_insert(image, tree_key_disk(key_at(0, n)), value, 1024);
		n++)
		;
	assert_int_equal(n, 3);
	assert_true(tree_format_insert(image, tree_key_disk(key_at(0, 9)), value,
		LEAF_CAPACITY - 3 * (1024 + LEAF_SLOT_BYTES) - LEAF_SLOT_BYTES));
	assert_int_equal(leaf_used(node_counts_load(image)), LEAF_CAPACITY);
	must_be_sound(image);
	/* replacing when full */
	assert_true(tree_format_insert(image, tree_key_disk(key_at(0, 1)), value, 1024));
	assert_true(tree_format_insert(image, tree_key_disk(key_at(0, 1)), value, 10));
	assert_true(tree_format_insert(image, tree_key_disk(key_at(0, 2)), value, 1000));
	assert_true(tree_format_insert(image, tree_key_disk(key_at(0, 1)), value, 1024));
	must_be_sound(image);
}

static void a_leaf_splits_and_joins_without_loss(void **state)
{
	static struct model m;
	_Alignas(64) uint8_t image[PAGE_SIZE], right[PAGE_SIZE];
	struct node_edit e = {.image = image};

	for (unsigned round = 0; round < 500; round++) {
		tree_key separator = model_key(1 + (unsigned)(rnd() % (MODEL_KEYS - 1)));
		struct node_counts l, r;

		memset(&m, 0, sizeof(m));
		tree_format_root(image, PID);
		for (unsigned i = 0; i < 300; i++)
			model_step(&e, &m, 100);
		leaf_split(&e, right, PID, separator);
		must_be_sound(image);
		must_be_sound(right);
		l = node_counts_load(image);
		r = node_counts_load(right);
		assert_int_equal(l.count + r.count, m.count);
		assert_int_equal(leaf_used(l) + leaf_used(r), m.used);
		assert_true(
			l.count == 0 || leaf_key_load(image, l.count - 1u) < separator);
		assert_true(r.count == 0 || leaf_key_load(right, 0) >= separator);
		leaf_join(image, right);
		must_match(image, &m);
	}
}

/* ---- inner pages ----------------------------------------------------------------- */

static void inner_new(uint8_t *image, unsigned count)
{
	struct node_edit e = {.image = image};

	node_init(image, PID, 1, 0, TREE_KEY_MAX);
	inner_insert(&e, 0, 0, 1000);
	for (unsigned i = 1; i < count; i++)
		inner_insert(&e, i, key_at(i, i), 1000 + i);
}

static void an_inner_page_finds_the_child_that_covers_a_key(void **state)
{
	_Alignas(64) uint8_t image[PAGE_SIZE];

	for (unsigned n = 1; n <= DISK_INNER_CHILDREN; n++) {
		inner_new(image, n);
		must_be_sound(image);
		for (unsigned i = 0; i < n; i++) {
			assert_int_equal(inner_search(image, n, key_at(i, i)), i);
			assert_int_equal(inner_search(image, n, key_at(i, i + 1)), i);
			if (i > 0)
				assert_int_equal(
					inner_search(image, n, key_at(i, i) - 1), i - 1);
		}
		assert_int_equal(inner_search(image, n, TREE_KEY_MAX), n - 1);
	}
}

static void an_inner_page_splits_joins_and_shrinks(void **state)
{
	_Alignas(64) uint8_t image[PAGE_SIZE], right[PAGE_SIZE], whole[PAGE_SIZE];
	struct node_edit e = {.image = image};

	for (unsigned at = 1; at < DISK_INNER_CHILDREN; at++) {
		inner_new(image, DISK_INNER_CHILDREN);
		memcpy(whole, image, PAGE_SIZE);
		inner_split(&e, right, PID, at);
		must_be_sound(image);
		must_be_sound(right);
		assert_int_equal(node_counts_load(right).count, DISK_INNER_CHILDREN - at);
		inner_join(image, right);
		assert_memory_equal(image, whole, PAGE_SIZE);
	}
	for (unsigned n = DISK_INNER_CHILDREN; n > 1; n--) {
		unsigned at = 1 + (unsigned)(rnd() % (n - 1));
		page_id next =
			at + 1 < n ? page_load_u64(image + INNER_CHILD(at + 1)) : 0;

		inner_remove(&e, at);
		must_be_sound(image);
		assert_int_equal(node_counts_load(image).count, n - 1);
		if (at + 1 < n)
			assert_int_equal(page_load_u64(image + INNER_CHILD(at)), next);
	}
}

/* ---- what is not trusted --------------------------------------------------------- */

static void refused(const uint8_t *good, unsigned offset, uint64_t value, unsigned len)
{
	_Alignas(64) uint8_t image[PAGE_SIZE];
	struct weft_error err = {0};

	memcpy(image, good, PAGE_SIZE);
	memcpy(image + offset, &value, len);
	assert_int_equal(tree_check_page(image, PID, &err), -EUCLEAN);
	assert_true(err.text[0] != 0);
	assert_int_equal(tree_check_page(image, PID, NULL), -EUCLEAN);
}

static void damaged_leaves_are_refused(void **state)
{
	_Alignas(64) uint8_t image[PAGE_SIZE];

	tree_format_root(image, PID);
	for (unsigned i = 1; i <= 20; i++)
		assert_true(tree_format_insert(
			image, tree_key_disk(key_at(i, 0)), "abcdefgh", 8));
	must_be_sound(image);
	assert_int_equal(tree_check_page(image, PID + 1, NULL), -EUCLEAN);
	refused(image, NODE_MAGIC, 1, 8);
	refused(image, NODE_PID, PID + 1, 8);
	refused(image, offsetof(struct disk_node, level), 1, 2);
	refused(image, offsetof(struct disk_node, level), TREE_LEVELS_MAX, 2);
	refused(image, offsetof(struct disk_node, count), 0, 2);
	refused(image, offsetof(struct disk_node, count), 21, 2);
	refused(image, offsetof(struct disk_node, count), 0xffff, 2);
	refused(image, offsetof(struct disk_node, heap_begin), 64, 2);
	refused(image, offsetof(struct disk_node, heap_begin), 0xffff, 2);
	refused(image, offsetof(struct disk_node, heap_dead), 8, 2);
	refused(image, NODE_LOW + 8, 2, 8);   /* above the first key */
	refused(image, NODE_HIGH + 8, 19, 8); /* not above the last key */
	refused(image, NODE_HIGH + 8, 0, 8);
	refused(image, LEAF_SLOT(3) + 8, 3, 8); /* equal to its neighbour */
	refused(image, LEAF_SLOT(3) + 8, 9, 8); /* out of order */
	refused(image, LEAF_PLACE(3), leaf_place_load(image, 4).offset,
		2); /* shared bytes */
	refused(image, LEAF_PLACE(3), leaf_place_load(image, 4).offset + 1, 2);
	refused(image, LEAF_PLACE(3), 64, 2);
	refused(image, LEAF_PLACE(3), 4090, 2);
	refused(image, LEAF_PLACE(3) + 2, 9, 2);
	refused(image, LEAF_PLACE(3) + 2, 0xffff, 2);
}

static void damaged_inner_pages_are_refused(void **state)
{
	_Alignas(64) uint8_t image[PAGE_SIZE];

	inner_new(image, 20);
	must_be_sound(image);
	refused(image, offsetof(struct disk_node, level), 0, 2);
	refused(image, offsetof(struct disk_node, count), 0, 2);
	refused(image, offsetof(struct disk_node, count), 21, 2);
	refused(image, offsetof(struct disk_node, count), DISK_INNER_CHILDREN + 1, 2);
	refused(image, INNER_KEY(0), 1, 8);
	refused(image, INNER_KEY(5) + 8, 3, 8);
	refused(image, INNER_KEY(5) + 8, 9, 8);
	refused(image, INNER_CHILD(5), PID, 8);
	refused(image, INNER_CHILD(5), PID_NONE, 8);
	refused(image, INNER_CHILD(5), DISK_CATALOG_SLOT, 8);
}

static void random_damage_never_gets_past_the_check_unsound(void **state)
{
	_Alignas(64) uint8_t good[PAGE_SIZE], image[PAGE_SIZE];
	static struct model m;
	struct node_edit e = {.image = good};

	tree_format_root(good, PID);
	for (unsigned i = 0; i < 300; i++)
		model_step(&e, &m, 100);
	for (unsigned round = 0; round < 200000; round++) {
		struct node_counts c;

		memcpy(image, good, PAGE_SIZE);
		for (unsigned i = 0; i <= rnd() % 3; i++)
			image[rnd() % (rnd() % 2 ? 64 : 1024)] = (uint8_t)rnd();
		if (tree_check_page(image, PID, NULL))
			continue;
		c = node_counts_load(image);
		if (c.level == 0) {
			struct node_edit to = {.image = image};

			if (leaf_used(c) > LEAF_SLOT_BYTES && c.count > 0)
				leaf_remove(&to, leaf_key_load(image, c.count / 2u));
			must_be_sound(image);
		}
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_leaf_holds_what_was_put_into_it),
		cmocka_unit_test(a_leaf_fills_to_the_last_byte),
		cmocka_unit_test(a_leaf_splits_and_joins_without_loss),
		cmocka_unit_test(an_inner_page_finds_the_child_that_covers_a_key),
		cmocka_unit_test(an_inner_page_splits_joins_and_shrinks),
		cmocka_unit_test(damaged_leaves_are_refused),
		cmocka_unit_test(damaged_inner_pages_are_refused),
		cmocka_unit_test(random_damage_never_gets_past_the_check_unsound),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
