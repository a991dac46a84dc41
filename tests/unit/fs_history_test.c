/* SPDX-License-Identifier: Apache-2.0 */
/* The history of a daemon's metrics: which samples it keeps, and the numbers that they have. */
#include "fs/history.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/common/base.h"
#include "engine/rt/rt.h"
#include "fs/latency.h"

/* Requests of which `fast` took below 1024 ns and `slow` from 2^20 to 2^21 ns. */
static json_t *request_counts(unsigned fast, unsigned slow)
{
	json_t *below = json_array();

	for (unsigned i = 0; i < LATENCY_POWERS; i++)
		json_array_append_new(
			below, json_integer(fast + (LATENCY_POWER_FIRST + i >= 21 ? slow : 0)));
	return json_pack("{s:i,s:o}", "count", fast + slow, "below", below);
}

/* Of node 1 of three: nodes 2 and 3 have traffic. */
static json_t *status_of(unsigned number)
{
	return json_pack("{s:{s:i},s:{s:o,s:o,s:o},s:{s:[{},{s:b,s:{s:i}},{s:b,s:{s:i}}]}}",
		"cache", "hits", number, "requests", "read", request_counts(number * 99, number),
		"fsync", request_counts(number, 0), "setlkw", request_counts(0, number * 1000),
		"cluster", "nodes", "up", 1, "traffic", "messages_out", number, "up", 0,
		"traffic", "messages_out", 5);
}

static void add_sample(struct history *h, unsigned number)
{
	json_t *status = status_of(number);

	history_add(h, number * 10000, status);
	json_decref(status);
}

static json_t *printed(const struct history *h, int64_t after_ms, unsigned now)
{
	json_t *status = status_of(now), *answer;
	char *text = NULL;
	size_t bytes = 0;
	FILE *to = open_memstream(&text, &bytes);

	history_print(to, h, after_ms, now * 10000, status);
	fclose(to);
	json_decref(status);
	answer = json_loadb(text, bytes, 0, NULL);
	free(text);
	assert_non_null(answer);
	return answer;
}

static size_t sample_count(const json_t *answer)
{
	return json_array_size(json_object_get(answer, "samples"));
}

/* The value of a series, or the time, in the sample at i. NULL: the sample has none. */
static const json_t *sample_value(const json_t *answer, size_t i, const char *name)
{
	const json_t *sample = json_array_get(json_object_get(answer, "samples"), i), *value;
	json_t *series;
	size_t at;

	json_array_foreach(json_object_get(answer, "series"), at, series)
	{
		if (strcmp(json_string_value(series), name) != 0)
			continue;
		value = json_array_get(sample, at + 1);
		assert_non_null(value);
		return json_is_null(value) ? NULL : value;
	}
	assert_string_equal(name, "at");
	return json_array_get(sample, 0);
}

static void check_value(const json_t *answer, size_t i, const char *name, double value)
{
	const json_t *found = sample_value(answer, i, name);

	assert_non_null(found);
	assert_float_equal(json_number_value(found), value, 1e-9);
}

static void an_hour_is_kept_and_the_last_sample_is_of_now(void **state)
{
	struct history *h = history_open();
	json_t *answer = printed(h, 0, 1);

	assert_int_equal(sample_count(answer), 1);
	json_decref(answer);
	for (unsigned i = 1; i <= 1000; i++)
		add_sample(h, i);
	answer = printed(h, 0, 1001);
	assert_int_equal(sample_count(answer), HISTORY_SAMPLES + 1);
	for (unsigned i = 0; i <= HISTORY_SAMPLES; i++) {
		check_value(answer, i, "at", (1001.0 - HISTORY_SAMPLES + i) * 10000);
		check_value(answer, i, "weft_cache_hits_total", 1001.0 - HISTORY_SAMPLES + i);
	}
	json_decref(answer);
	history_close(h);
}

static void only_later_samples_are_printed_if_asked(void **state)
{
	struct history *h = history_open();
	json_t *answer;

	for (unsigned i = 1; i <= 20; i++)
		add_sample(h, i);
	answer = printed(h, 170000, 21);
	assert_int_equal(sample_count(answer), 4);
	check_value(answer, 0, "at", 180000);
	json_decref(answer);
	answer = printed(h, INT64_MAX, 21);
	assert_int_equal(sample_count(answer), 1);
	check_value(answer, 0, "at", 210000);
	json_decref(answer);
	history_close(h);
}

static void numbers_of_other_nodes_are_summed_up_and_missing_ones_are_null(void **state)
{
	struct history *h = history_open();
	json_t *answer = printed(h, 0, 7);

	check_value(answer, 0, "weft_peer_messages_sent_total", 12);
	check_value(answer, 0, "weft_peer_up", 1);
	assert_null(sample_value(answer, 0, "weft_space_bytes"));
	assert_null(sample_value(answer, 0, "weft_peer_waiting_requests"));
	json_decref(answer);
	history_close(h);
}

static void response_times_are_of_the_requests_since_the_sample_before(void **state)
{
	struct history *h = history_open();
	json_t *answer;

	add_sample(h, 1);
	add_sample(h, 3);
	answer = printed(h, 0, 3);
	/* 198 fast ones and 2 slow ones: the 100th, the 198th */
	check_value(answer, 1, "read_count", 300);
	check_value(answer, 1, "read_p50_s", 1024e-9 * 100 / 198);
	check_value(answer, 1, "read_p99_s", 1024e-9);
	check_value(answer, 1, "sync_count", 3);
	check_value(answer, 1, "sync_p99_s", 1024e-9 * 0.99);
	/* a program that waits for another's lock is no slow request */
	check_value(answer, 1, "other_count", 0);
	assert_null(sample_value(answer, 1, "other_p50_s"));
	/* none since */
	assert_null(sample_value(answer, 2, "read_p50_s"));
	json_decref(answer);
	history_close(h);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(an_hour_is_kept_and_the_last_sample_is_of_now),
		cmocka_unit_test(only_later_samples_are_printed_if_asked),
		cmocka_unit_test(numbers_of_other_nodes_are_summed_up_and_missing_ones_are_null),
		cmocka_unit_test(response_times_are_of_the_requests_since_the_sample_before),
	};

	if (rt_real_start() < 0)
		return 1;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
