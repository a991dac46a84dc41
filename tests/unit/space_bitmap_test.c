/* SPDX-License-Identifier: Apache-2.0 */
/* Ranges of bits: against a model that looks at one bit after the other. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <cmocka.h>

#include "engine/space/space_internal.h"

#define BITS 512u

static uint64_t map[BITS / 64];
static bool model[BITS];

static void compare(void)
{
	for (uint32_t i = 0; i < BITS; i++)
		assert_int_equal(map[i / 64] >> i % 64 & 1, model[i]);
}

static void change(bool set)
{
	uint32_t first = (uint32_t)rand() % BITS;
	uint32_t most = rand() % 4 ? 9 : 300;
	uint32_t count = (uint32_t)rand() % MIN(BITS - first, most);

	(set ? bitmap_set : bitmap_clear)(map, first, count);
	for (uint32_t i = first; i < first + count; i++)
		model[i] = set;
}

static uint32_t model_run(uint32_t first, uint32_t end, uint32_t most)
{
	uint32_t n = 0;

	while (first + n < end && n < most && !model[first + n])
		n++;
	return n;
}

static void test_ranges_are_set_and_cleared_exactly(void **state)
{
	srand(1);
	memset(map, 0, sizeof(map));
	memset(model, 0, sizeof(model));
	for (unsigned i = 0; i < 20000; i++) {
		change(rand() % 2);
		compare();
	}
}

static void test_tests_and_counts_agree_with_the_bits(void **state)
{
	srand(2);
	for (unsigned i = 0; i < 20000; i++) {
		uint32_t first = (uint32_t)rand() % BITS;
		uint32_t count = (uint32_t)rand() % (BITS - first + 1);
		uint32_t set = 0, in_first = 0;

		change(rand() % 2);
		for (uint32_t n = 0; n < count; n++)
			set += model[first + n];
		for (uint32_t n = 0; n < first; n++)
			in_first += model[n];
		assert_int_equal(bitmap_all_set(map, first, count), set == count);
		assert_int_equal(bitmap_all_clear(map, first, count), set == 0);
		assert_int_equal(bitmap_count(map, first), in_first);
	}
}

static void test_find_takes_the_first_that_fits_else_the_longest(void **state)
{
	srand(3);
	for (unsigned i = 0; i < 50000; i++) {
		uint32_t end = 1 + (uint32_t)rand() % BITS;
		uint32_t from = (uint32_t)rand() % end;
		uint32_t want = 1 + (uint32_t)rand() % (rand() % 2 ? 8 : BITS);
		uint32_t best = 0, best_at = 0, found = UINT32_MAX;

		change(rand() % 16 != 0 ? true : false);
		if (rand() % 8 == 0)
			change(false);
		for (uint32_t at = from; at < end && best < want; at++) {
			if (model_run(at, end, want) > best) {
				best = model_run(at, end, want);
				best_at = at;
			}
		}
		assert_int_equal(bitmap_find(map, from, end, want, &found), best);
		if (best)
			assert_int_equal(found, best_at);
		assert_int_equal(
			bitmap_run(map, from, end, want), model_run(from, end, want));
		if (rand() % 64 == 0)
			change(false);
	}
}

static void test_find_down_takes_the_highest(void **state)
{
	srand(4);
	memset(map, 0, sizeof(map));
	memset(model, 0, sizeof(model));
	for (unsigned i = 0; i < 50000; i++) {
		uint32_t end = 1 + (uint32_t)rand() % BITS;
		uint32_t want = 1 + (uint32_t)rand() % (rand() % 2 ? 8 : BITS);
		uint32_t best = 0, best_at = 0, found = UINT32_MAX;

		change(rand() % 2);
		for (uint32_t last = end; last-- > 0 && best < want;) {
			uint32_t n = 0;

			while (n < want && n <= last && !model[last - n])
				n++;
			if (n > best) {
				best = n;
				best_at = last + 1 - n;
			}
		}
		assert_int_equal(bitmap_find_down(map, end, want, &found), best);
		if (best)
			assert_int_equal(found, best_at);
	}
}

static void test_groups_cover_every_slot_once(void **state)
{
	const uint64_t g = DISK_GROUP_PAGES + 1;

	assert_int_equal(space_layout_groups(0), 0);
	assert_int_equal(space_layout_groups(2), 0);
	assert_int_equal(space_layout_groups(3), 1);
	assert_int_equal(space_layout_pages(3, 0), 1);
	assert_int_equal(space_layout_groups(g + 1), 1);
	assert_int_equal(space_layout_pages(g + 1, 0), DISK_GROUP_PAGES);
	/* one slot behind a full group: it would be a group page without pages */
	assert_int_equal(space_layout_groups(g + 2), 1);
	assert_int_equal(space_layout_pages(g + 2, 0), DISK_GROUP_PAGES);
	assert_int_equal(space_layout_groups(g + 3), 2);
	assert_int_equal(space_layout_pages(g + 3, 1), 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_ranges_are_set_and_cleared_exactly),
		cmocka_unit_test(test_tests_and_counts_agree_with_the_bits),
		cmocka_unit_test(test_find_takes_the_first_that_fits_else_the_longest),
		cmocka_unit_test(test_find_down_takes_the_highest),
		cmocka_unit_test(test_groups_cover_every_slot_once),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
