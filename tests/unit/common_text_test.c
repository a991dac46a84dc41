/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes and numbers of command lines: what is one, what is none, and where they end. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <stddef.h>
#include <cmocka.h>

#include "engine/common/text.h"

#define UNTOUCHED 77u

static void is_size(const char *text, uint64_t bytes)
{
	uint64_t out = UNTOUCHED;

	assert_int_equal(size_parse(text, &out), 0);
	assert_int_equal(out, bytes);
}

static void test_sizes_have_a_unit_or_none(void **state)
{
	is_size("0", 0);
	is_size("4096", 4096);
	is_size("4096B", 4096);
	is_size("1k", 1024);
	is_size("64M", 64ull << 20);
	is_size("2GiB", 2ull << 30);
	is_size("3gB", 3ull << 30);
	is_size("5T", 5ull << 40);
	is_size("1P", 1ull << 50);
	is_size("18446744073709551615", UINT64_MAX);
	is_size("16383P", 16383ull << 50);
}

static void test_what_is_no_size_is_refused(void **state)
{
	static const char *const texts[] = {"", " 1", "-1", "+1", "M", "1X", "1MM", "1Mx",
		"1.5G", "1iB", "0x10", "18446744073709551616", "16384P",
		"99999999999999999999"};
	uint64_t out = UNTOUCHED;

	for (size_t i = 0; i < ARRAY_SIZE(texts); i++)
		assert_int_equal(size_parse(texts[i], &out), -EINVAL);
	assert_int_equal(out, UNTOUCHED);
}

static void test_numbers_are_decimal_or_hexadecimal(void **state)
{
	static const char *const none[] = {
		"", "-1", " 1", "1 ", "x1", "0x", "12a", "0xg", "18446744073709551616"};
	uint64_t out;

	assert_int_equal(number_parse("0", &out), 0);
	assert_int_equal(out, 0);
	assert_int_equal(number_parse("010", &out), 0);
	assert_int_equal(out, 10);
	assert_int_equal(number_parse("0xFf", &out), 0);
	assert_int_equal(out, 255);
	assert_int_equal(number_parse("0xffffffffffffffff", &out), 0);
	assert_true(out == UINT64_MAX);
	out = UNTOUCHED;
	for (size_t i = 0; i < ARRAY_SIZE(none); i++)
		assert_int_equal(number_parse(none[i], &out), -EINVAL);
	assert_int_equal(out, UNTOUCHED);
}

static void test_a_uuid_has_four_hyphens(void **state)
{
	const uint8_t uuid[16] = {0x00, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88,
		0x99, 0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xff};
	char text[37];

	uuid_print(uuid, text);
	assert_string_equal(text, "00112233-4455-6677-8899-aabbccddeeff");
}

static void test_uuids_go_to_text_and_back(void **state)
{
	uint8_t in[16], out[16];
	char text[UUID_TEXT];

	for (unsigned i = 0; i < 16; i++)
		in[i] = (uint8_t)(i * 17 + 3);
	uuid_print(in, text);
	assert_int_equal(strlen(text), 36);
	assert_true(uuid_parse(text, out));
	assert_memory_equal(in, out, 16);
	assert_true(uuid_parse("0D4F6F0E-6D8C-4C1F-9A57-0F5F3C0F2B11", out));
	uuid_print(out, text);
	assert_string_equal(text, "0d4f6f0e-6d8c-4c1f-9a57-0f5f3c0f2b11");
	memset(out, 7, sizeof(out));
	assert_false(uuid_parse("0d4f6f0e-6d8c-4c1f-9a57-0f5f3c0f2b1", out));
	assert_false(uuid_parse("0d4f6f0e06d8c-4c1f-9a57-0f5f3c0f2b11", out));
	assert_false(uuid_parse("0d4f6f0e-6d8c-4c1f-9a57-0f5f3c0f2b1g", out));
	assert_false(uuid_parse("", out));
	assert_int_equal(out[0], 7);
}

static void prints(uint64_t bytes, const char *text)
{
	char out[SIZE_TEXT];

	size_print(bytes, out);
	assert_string_equal(out, text);
}

static void test_sizes_print_with_a_unit(void **state)
{
	prints(0, "0 bytes");
	prints(1023, "1023 bytes");
	prints(1536, "1.5 KiB");
	prints(10ull << 40, "10.0 TiB");
	prints(UINT64_MAX, "16384.0 PiB");
}

static const char *nearest(const char *word, const char *const *candidates)
{
	struct text_nearest n = {.word = word, .bytes = strlen(word)};

	for (; *candidates; candidates++)
		text_nearest_try(&n, *candidates);
	return n.best;
}

static void test_the_nearest_word_is_found(void **state)
{
	static const char *const words[] = {"new", "show", "check", "add", "reload",
		"a word of exactly 32 bytes, yes!", "a word of more than 32 bytes, yes!",
		NULL};

	assert_string_equal(nearest("chekc", words), "check"); /* swapped */
	assert_string_equal(nearest("relaod", words), "reload");
	assert_string_equal(nearest("ad", words), "add");
	assert_string_equal(nearest("show", words), "show");
	assert_string_equal(nearest("shows", words), "show");
	assert_string_equal(nearest("nwe", words), "new");
	assert_string_equal(nearest("a word of exactly 32 bytes, yes?", words), words[5]);
	assert_null(nearest("", words));
	assert_null(nearest("x", words));
	assert_null(nearest("stop", words));
	assert_null(nearest("a word of more than 32 bytes, yes?", words));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_sizes_have_a_unit_or_none),
		cmocka_unit_test(test_what_is_no_size_is_refused),
		cmocka_unit_test(test_numbers_are_decimal_or_hexadecimal),
		cmocka_unit_test(test_a_uuid_has_four_hyphens),
		cmocka_unit_test(test_uuids_go_to_text_and_back),
		cmocka_unit_test(test_sizes_print_with_a_unit),
		cmocka_unit_test(test_the_nearest_word_is_found),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
