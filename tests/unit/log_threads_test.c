/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The log under real threads and a real file: appenders, flushers and a checkpointer at
 * once on a ring that wraps many times. Run it under ThreadSanitizer.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/unit/log_fixture.h"
#include "tests/world/test_file.h"

#define TASKS 6

static struct test_file file;

static void disk_make(struct store *s, uint64_t ring_bytes)
{
	struct weft_error err = {0};

	test_file_make(&file, NULL, fixture_disk_bytes(ring_bytes));
	fixture_store(s, ring_bytes);
	assert_int_equal(rt_disk_open(&s->disk, file.path, 0, &err), 0);
	fixture_format(s);
}

static void disk_remove(struct store *s)
{
	rt_disk_close(s->disk);
	test_file_drop(&file);
}

static struct log *life_begin(struct store *s, bool *clean)
{
	struct weft_error err = {0};
	struct log *log;

	s->sb.incarnation++;
	if (log_open(&log, s, NULL, clean, &err))
		fail_msg("%s", err.text);
	return log;
}

struct worker {
	struct log *log;
	_Atomic uint64_t *done;
	unsigned number, count, flush_every;
	uint32_t bytes_max;
};

static void worker_run(void *arg)
{
	struct worker *w = arg;

	for (unsigned i = 1; i <= w->count; i++) {
		uint32_t bytes =
			24 + 8 * (uint32_t)(rt_random() % (w->bytes_max / 8 - 2));
		struct log_position at = record_append(w->log, bytes, i, w->number);

		WEFT_ASSERT(at.end > at.start);
		if (i % w->flush_every == 0) {
			WEFT_ASSERT(log_flush(w->log, at.end) == 0);
			WEFT_ASSERT(log_durable(w->log) >= at.end);
		}
	}
	atomic_fetch_add(w->done, 1);
	rt_wake(log_pressure_word(w->log), INT32_MAX);
}

static void checkpoint(struct log *log)
{
	uint64_t words[4];
	struct log_room room;
	struct iovec iov = {words, sizeof(words)};
	struct log_position at;

	record_fill(words, sizeof(words), 0, 0);
	WEFT_ASSERT(log_reserve(log, sizeof(words), true, &room) == 0);
	at = log_append(log, &room, &iov, 1);
	log_release(log, &room);
	WEFT_ASSERT(log_flush(log, at.end) == 0);
	WEFT_ASSERT(log_advance_tail(log, at.start) == 0);
}

static void workers_run(
	struct log *log, unsigned count, unsigned flush_every, uint32_t bytes_max)
{
	struct worker workers[TASKS];
	struct rt_task *tasks[TASKS];
	_Atomic uint64_t done = 0;

	for (unsigned i = 0; i < TASKS; i++) {
		workers[i] =
			(struct worker){log, &done, i, count, flush_every, bytes_max};
		assert_int_equal(
			rt_task_spawn(&tasks[i], "worker", worker_run, &workers[i]), 0);
	}
	while (atomic_load(&done) < TASKS) {
		uint32_t word = atomic_load(log_pressure_word(log));

		if (log_wants_checkpoint(log))
			checkpoint(log);
		else
			rt_wait(log_pressure_word(log), word, rt_now_ns() + 20000000);
	}
	for (unsigned i = 0; i < TASKS; i++)
		rt_task_join(tasks[i]);
}

static uint64_t expected[TASKS];

static int count_visit(void *arg, const struct log_entry *entry)
{
	const uint64_t *words = (const uint64_t *)entry->record;

	assert_true(record_intact(entry->record));
	if (words[1] > 0) { /* not a checkpoint's */
		assert_true(words[2] < TASKS);
		if (expected[words[2]])
			assert_int_equal(words[1], expected[words[2]] + 1);
		expected[words[2]] = words[1];
	}
	++*(uint64_t *)arg;
	return 0;
}

static void ring_wraps_under_many_appenders(void **state)
{
	struct store s;
	struct log *log;
	uint64_t seen = 0;
	bool clean;

	disk_make(&s, 1 << 20);
	log = life_begin(&s, &clean);
	assert_true(clean);
	assert_int_equal(log_start(log), 0);
	workers_run(log, 3000, 7, 6000);
	assert_true(log_end(log) > 20ull << 20);
	assert_int_equal(log_flush(log, log_end(log)), 0);
	log_close(log);

	memset(expected, 0, sizeof(expected));
	log = life_begin(&s, &clean);
	assert_false(clean);
	assert_int_equal(log_scan(log, count_visit, &seen), 0);
	assert_true(seen > 0);
	for (int i = 0; i < TASKS; i++)
		assert_true(expected[i] == 0 || expected[i] == 3000);
	log_close(log);
	disk_remove(&s);
}

static _Atomic bool device_is_slow;

/* libc's, for all of this program. */
int fdatasync(int fd)
{
	static const struct timespec a_while = {.tv_nsec = 300000};

	if (atomic_load(&device_is_slow))
		nanosleep(&a_while, NULL);
	return fsync(fd);
}

/* On a device that takes its time: one that flushes in no time may have done so before another task
 * gets the processor. */
static void flushes_are_shared(void **state)
{
	struct store s;
	struct log *log;
	bool clean;

	disk_make(&s, 8 << 20);
	log = life_begin(&s, &clean);
	assert_int_equal(log_start(log), 0);
	atomic_store(&device_is_slow, true);
	workers_run(log, 200, 1, 100);
	atomic_store(&device_is_slow, false);
	assert_true(log_counters(log)->flushes < TASKS * 200);
	assert_int_equal(log_shut(log), 0);
	log_close(log);

	log = life_begin(&s, &clean);
	assert_true(clean);
	assert_int_equal(log_used_bytes(log), 0);
	log_close(log);
	disk_remove(&s);
}

static void background_writer_flushes_what_nobody_asked_for(void **state)
{
	struct log_options o = {.flush_interval_ms = 20};
	struct weft_error err = {0};
	struct store s;
	struct log *log;
	bool clean;

	disk_make(&s, 4 << 20);
	s.sb.incarnation++;
	assert_int_equal(log_open(&log, &s, &o, &clean, &err), 0);
	assert_int_equal(log_start(log), 0);
	for (int i = 0; i < 3; i++) {
		lsn_t end = record_append(log, 64, 1, 1).end;
		uint64_t limit = rt_now_ns() + 20000000000ull;

		while (log_durable(log) < end && rt_now_ns() < limit)
			rt_sleep_ns(1000000);
		assert_true(log_durable(log) >= end);
	}
	log_close(log);
	disk_remove(&s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(ring_wraps_under_many_appenders),
		cmocka_unit_test(flushes_are_shared),
		cmocka_unit_test(background_writer_flushes_what_nobody_asked_for),
	};

	if (rt_real_start())
		return 1;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
