/* SPDX-License-Identifier: Apache-2.0 */
/* Records read from disk are taken only if every length and bound in them holds. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "tests/unit/log_fixture.h"

static uint8_t payload[16384];
static size_t used;

static void put(const void *bytes, size_t len)
{
	memcpy(payload + used, bytes, len);
	used += len;
}

static void put_zeros(size_t len)
{
	memset(payload + used, 0, len);
	used += len;
}

static int check(void)
{
	struct weft_error err = {0};
	int result = log_check_records(payload, used, &err);

	assert_true(result == 0 || (result == -EUCLEAN && err.text[0]));
	assert_int_equal(log_check_records(payload, used, NULL), result);
	return result;
}

static void put_record(uint32_t bytes, uint16_t type, uint16_t count)
{
	struct disk_log_record record = {bytes, type, count};

	used = 0;
	put(&record, sizeof(record));
}

static struct disk_log_page *put_full(void)
{
	struct disk_log_page page = {.kind = DISK_LOG_FULL, .part_bytes = 32 + 4096};

	put_record(8 + 32 + 4096, DISK_LOG_CHANGE, 1);
	put(&page, sizeof(page));
	put_zeros(4096);
	return (struct disk_log_page *)(payload + 8);
}

/* Two ranges, of 3 and 10 bytes. */
static struct disk_log_range *put_ranges(void)
{
	struct disk_log_page page = {
		.kind = DISK_LOG_RANGES, .range_count = 2, .part_bytes = 32 + 8 + 16};
	struct disk_log_range ranges[2] = {{0, 3}, {4086, 10}};

	put_record(8 + 32 + 8 + 16, DISK_LOG_CHANGE, 1);
	put(&page, sizeof(page));
	put(ranges, sizeof(ranges));
	put_zeros(16);
	return (struct disk_log_range *)(payload + 8 + 32);
}

static void whole_records_pass(void **state)
{
	used = 0;
	assert_int_equal(check(), 0);
	put_full();
	assert_int_equal(check(), 0);
	put_ranges();
	assert_int_equal(check(), 0);
	put_record(8 + 8 + 64, DISK_LOG_DESCRIPTORS, 2);
	put_zeros(72);
	assert_int_equal(check(), 0);
	put_record(8 + 24, DISK_LOG_PERSISTED, 3);
	put_zeros(24);
	assert_int_equal(check(), 0);
}

static void every_cut_of_a_record_is_refused(void **state)
{
	put_ranges();
	for (size_t whole = used--; used > 0; used--) {
		assert_true(used < whole);
		assert_int_equal(check(), -EUCLEAN);
	}
}

static void ranges_stay_within_their_page(void **state)
{
	put_ranges()[1].offset = 4087;
	assert_int_equal(check(), -EUCLEAN);
	put_ranges()[0].length = 0;
	assert_int_equal(check(), -EUCLEAN);
	put_ranges()[0].offset = 65535;
	assert_int_equal(check(), -EUCLEAN);
	put_ranges()[0].length = 65535;
	assert_int_equal(check(), -EUCLEAN);
	put_ranges()[1] =
		(struct disk_log_range){0, 4096}; /* more bytes than the part has */
	assert_int_equal(check(), -EUCLEAN);
	put_ranges()[0].length = 11; /* still 24 with padding, the part has 16 */
	assert_int_equal(check(), -EUCLEAN);
}

static void parts_fill_their_record(void **state)
{
	put_full()->part_bytes = 32 + 4096 + 8;
	assert_int_equal(check(), -EUCLEAN);
	put_full()->part_bytes = 32;
	assert_int_equal(check(), -EUCLEAN);
	put_full()->part_bytes = 0;
	assert_int_equal(check(), -EUCLEAN);
	put_full()->range_count = 1;
	assert_int_equal(check(), -EUCLEAN);
	put_full()->kind = 3;
	assert_int_equal(check(), -EUCLEAN);
	put_full()->kind = DISK_LOG_RANGES;
	assert_int_equal(check(), -EUCLEAN);
	put_full();
	((struct disk_log_record *)payload)->count = 2;
	assert_int_equal(check(), -EUCLEAN);
	((struct disk_log_record *)payload)->count = 0;
	assert_int_equal(check(), -EUCLEAN);
}

static void lengths_and_types_are_checked(void **state)
{
	static const uint32_t lengths[] = {
		0, 4, 7, 12, 40, 1u << 31, UINT32_MAX, UINT32_MAX - 7};

	for (unsigned i = 0; i < ARRAY_SIZE(lengths); i++) {
		put_record(lengths[i], DISK_LOG_PERSISTED, 3);
		put_zeros(24);
		assert_int_equal(check(), -EUCLEAN);
	}
	for (unsigned type = 0; type < 70000; type += type < 8 ? 1 : 331) {
		put_record(32, (uint16_t)type, 3);
		put_zeros(24);
		assert_int_equal(
			check(), (uint16_t)type == DISK_LOG_PERSISTED ? 0 : -EUCLEAN);
	}
	put_record(8, DISK_LOG_DESCRIPTORS, 0);
	assert_int_equal(check(), -EUCLEAN);
	put_record(8 + 64, DISK_LOG_DESCRIPTORS, 2);
	put_zeros(64);
	assert_int_equal(check(), -EUCLEAN);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(whole_records_pass),
		cmocka_unit_test(every_cut_of_a_record_is_refused),
		cmocka_unit_test(ranges_stay_within_their_page),
		cmocka_unit_test(parts_fill_their_record),
		cmocka_unit_test(lengths_and_types_are_checked),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
