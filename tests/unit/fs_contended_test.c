/* SPDX-License-Identifier: Apache-2.0 */
/* The inodes that nodes contend for are found among many others, and forgotten in time. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "fs/contended.h"

#define SECOND 1000000000ull

static uint64_t seed = 42;

static uint64_t draw(uint64_t below)
{
	seed = seed * 6364136223846793005ull + 1442695040888963407ull;
	return (seed >> 33) % below;
}

/* Of all that are noted, a twentieth each is for inodes 1, 2 and 3. */
static void frequent_inodes_are_listed_among_a_hundred_thousand(void **state)
{
	struct contended *c = calloc(1, sizeof(*c));
	struct contended_inode list[CONTENDED_MAX];
	uint64_t pages[4] = {0}, since, all = 0;
	unsigned count, found = 0;

	for (unsigned i = 0; i < 50000; i++) {
		uint64_t ino = draw(20) < 3 ? 1 + draw(3) : 100 + draw(100000);

		contended_note(c, 5 * SECOND, ino, 1, 1, 1000);
		all += 2;
		if (ino < 4)
			pages[ino] += 2;
	}
	count = contended_list(c, 6 * SECOND, list, CONTENDED_MAX, &since);
	assert_int_equal(count, CONTENDED_MAX);
	assert_int_equal(since, 5 * SECOND);
	for (unsigned i = 0; i < count; i++) {
		uint64_t ino = list[i].ino;

		assert_true(list[i].error <= all / CONTENDED_MAX);
		assert_true(i == 0 || list[i - 1].changed >= list[i].changed);
		assert_int_equal(list[i].changed, list[i].read);
		if (ino >= 4)
			continue;
		found++;
		assert_true(i < 3);
		assert_true(list[i].changed + list[i].read + list[i].error >= pages[ino]);
		assert_true(list[i].changed + list[i].read <= pages[ino]);
	}
	assert_int_equal(found, 3);
	free(c);
}

static void an_inode_is_forgotten_after_two_windows(void **state)
{
	struct contended *c = calloc(1, sizeof(*c));
	struct contended_inode list[4];
	uint64_t since;

	assert_int_equal(contended_list(c, 100 * SECOND, list, 4, &since), 0);
	contended_note(c, 101 * SECOND, 7, 3, 0, 5);
	contended_note(c, 120 * SECOND, 7, 1, 0, 5);
	/* in the next window it is the past one's */
	contended_note(c, 140 * SECOND, 8, 0, 9, 9);
	contended_note(c, 140 * SECOND, 7, 2, 0, 5);
	assert_int_equal(contended_list(c, 141 * SECOND, list, 4, &since), 2);
	assert_int_equal(list[0].ino, 7);
	assert_int_equal(list[0].changed, 6);
	assert_int_equal(list[0].requests, 3);
	assert_int_equal(list[0].took_ns, 15);
	assert_int_equal(list[1].ino, 8); /* it only read more */
	assert_int_equal(list[1].read, 9);
	assert_int_equal(since, 100 * SECOND);
	/* the first one's have gone */
	assert_int_equal(contended_list(c, 175 * SECOND, list, 4, &since), 2);
	assert_int_equal(list[0].changed, 2);
	assert_int_equal(contended_list(c, 175 * SECOND, list, 1, &since), 1);
	/* and all, when there was nothing for long */
	assert_int_equal(contended_list(c, 1000 * SECOND, list, 4, &since), 0);
	contended_note(c, 1001 * SECOND, 9, 1, 0, 1);
	assert_int_equal(contended_list(c, 1001 * SECOND, list, 4, &since), 1);
	free(c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(frequent_inodes_are_listed_among_a_hundred_thousand),
		cmocka_unit_test(an_inode_is_forgotten_after_two_windows),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
