/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a life of the log leaves is what the next one finds: whole, cut off, damaged, with
 * heads lost, and with chunks of earlier lives lying about.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "tests/unit/log_fixture.h"
#include "tests/world/test_file.h"

#define RING (1ull << 20)
#define KIB  1024u

static struct test_file file;
static struct store store;
static uint64_t next_sequence;

static int disk_make(void **state)
{
	struct weft_error err = {0};

	test_file_make(&file, NULL, fixture_disk_bytes(5 * RING));
	fixture_store(&store, RING);
	if (rt_disk_open(&store.disk, file.path, 0, &err))
		return -1;
	fixture_format(&store);
	next_sequence = 1;
	return 0;
}

static int disk_remove(void **state)
{
	rt_disk_close(store.disk);
	test_file_drop(&file);
	return 0;
}

static void ring_set(uint64_t ring_bytes)
{
	struct rt_disk *disk = store.disk;

	fixture_store(&store, ring_bytes);
	store.disk = disk;
	fixture_format(&store);
}

static struct log *reopen(bool *clean)
{
	struct log_options o = {.flush_interval_ms = UINT64_MAX};
	struct weft_error err = {0};
	struct log *log;

	store.sb.incarnation++;
	if (log_open(&log, &store, &o, clean, &err))
		fail_msg("%s", err.text);
	return log;
}

static struct log *restart(bool *clean)
{
	struct log *log = reopen(clean);

	assert_int_equal(log_start(log), 0);
	return log;
}

static int open_error(struct weft_error *err)
{
	struct log *log;
	bool clean;
	int error;

	store.sb.incarnation++;
	error = log_open(&log, &store, NULL, &clean, err);
	if (!error)
		log_close(log);
	return error;
}

static struct log_position put(struct log *log, uint32_t bytes)
{
	return record_append(log, bytes, next_sequence++, store.sb.incarnation);
}

static struct log_position put_flushed(struct log *log, uint32_t bytes)
{
	struct log_position at = put(log, bytes);

	assert_int_equal(log_flush(log, at.end), 0);
	return at;
}

/* Turns bits of the byte at a store offset. */
static void damage(uint64_t offset)
{
	uint64_t block = offset - offset % 4096;
	uint8_t *page = rt_alloc_pages(4096);

	assert_int_equal(rt_disk_read(store.disk, block, page, 4096), 0);
	page[offset % 4096] ^= 0x5a;
	assert_int_equal(rt_disk_write(store.disk, block, page, 4096), 0);
	rt_free_pages(page, 4096);
}

static uint64_t place(lsn_t lsn)
{
	return FIXTURE_LOG_OFFSET + DISK_LOG_HEADS_BYTES +
	       lsn % (store.sb.log_bytes - DISK_LOG_HEADS_BYTES);
}

static void expect_records(struct log *log, uint64_t first, uint64_t last)
{
	struct seen seen = seen_scan(log);

	if (last < first) {
		assert_int_equal(seen.count, 0);
		return;
	}
	assert_int_equal(seen.first, first);
	assert_int_equal(seen.last, last);
}

/* ---- whole logs ----------------------------------------------------------------- */

static void records_of_all_sizes_come_back(void **state)
{
	static const uint32_t sizes[] = {
		24, 32, 4024, 4032, 4040, 4096, 8128, 65536, 131072, 252 * KIB - 64};
	struct log_room room;
	struct log *log;
	uint64_t last;
	bool clean;

	log = restart(&clean);
	assert_true(clean);
	for (unsigned i = 0; i < ARRAY_SIZE(sizes); i++) {
		if (sizes[i] > log_room_max(log, false))
			assert_int_equal(
				log_reserve(log, sizes[i], false, &room), -E2BIG);
		else
			put(log, sizes[i]);
	}
	last = next_sequence - 1;
	assert_int_equal(log_flush(log, log_end(log)), 0);
	put(log, 504); /* lost */
	log_close(log);

	log = reopen(&clean);
	assert_false(clean);
	expect_records(log, 1, last);
	expect_records(log, 1, last);
	log_close(log);
}

static void the_longest_record_fits_a_small_volume(void **state)
{
	struct log *log;
	bool clean;

	ring_set(4 * RING - DISK_LOG_HEADS_BYTES);
	log = restart(&clean);
	for (int i = 0; i < 40; i++) {
		put_flushed(log, LOG_RECORD_MAX);
		put(log, 24);
		if (log_wants_checkpoint(log))
			assert_int_equal(log_advance_tail(log, log_end(log)), 0);
	}
	assert_int_equal(log_flush(log, log_end(log)), 0);
	log_close(log);
	log = reopen(&clean);
	assert_int_equal(seen_scan(log).last, next_sequence - 1);
	log_close(log);
}

static void a_clean_end_leaves_an_empty_log(void **state)
{
	struct log *log;
	struct log_room room;
	bool clean;

	for (int life = 0; life < 5; life++) {
		log = restart(&clean);
		assert_true(clean);
		expect_records(log, 1, 0);
		put_flushed(log, 3000);
		put(log, 3000);
		assert_int_equal(log_shut(log), 0);
		assert_int_equal(log_reserve(log, 24, false, &room), -EROFS);
		log_close(log);
	}
	log = restart(&clean);
	log_close(log);
	log = reopen(&clean);
	assert_false(clean);
	log_close(log);
}

static void a_flush_is_one_chunk_and_one_device_flush(void **state)
{
	struct log_counters *c;
	struct log *log;
	bool clean;

	log = restart(&clean);
	c = log_counters(log);
	for (int i = 1; i < 20; i++) {
		put(log, 104);
		put_flushed(log, 104);
		assert_int_equal(c->chunks, i);
		assert_int_equal(c->flushes, i);
		assert_int_equal(c->chunk_bytes, i * 4096);
		assert_int_equal(log_flush(log, log_end(log)), 0);
	}
	log_close(log);
}

static void the_log_goes_on_over_many_lives_and_laps(void **state)
{
	uint64_t oldest = 1;
	struct log *log;
	bool clean;

	srand(7);
	for (int life = 0; life < 60; life++) {
		log = reopen(&clean);
		expect_records(log, oldest, next_sequence - 1);
		assert_int_equal(log_start(log), 0);
		for (int i = 0; i < 12; i++) {
			put(log, 24 + 8 * (uint32_t)(rand() % 1000));
			put_flushed(log, 24 + 8 * (uint32_t)(rand() % 6000));
			if (log_used_bytes(log) > RING / 3) {
				struct log_position at = put_flushed(log, 24);

				assert_int_equal(log_advance_tail(log, at.start), 0);
				assert_int_equal(log_tail(log), at.start);
				oldest = next_sequence - 1;
			}
		}
		log_close(log);
	}
	log = reopen(&clean);
	assert_true(log_end(log) > 15 * RING);
	log_close(log);
}

/* ---- the tail ---------------------------------------------------------------------- */

static void the_tail_goes_to_the_chunk_that_holds_an_lsn(void **state)
{
	struct log_position a, b, c;
	struct log *log;
	bool clean;

	log = restart(&clean);
	a = put_flushed(log, 10000);
	b = put_flushed(log, 10000);
	c = put(log, 104);
	assert_int_equal(log_advance_tail(log, a.end), 0);
	assert_int_equal(log_tail(log), a.start);
	assert_int_equal(log_advance_tail(log, b.start + 5000), 0);
	assert_int_equal(log_tail(log), b.start);
	assert_int_equal(log_advance_tail(log, a.start), 0);
	assert_int_equal(log_tail(log), b.start);
	assert_int_equal(log_advance_tail(log, LSN_MAX), 0);
	assert_int_equal(log_tail(log), c.start);
	assert_int_equal(log_flush(log, c.end), 0);
	assert_int_equal(log_advance_tail(log, log_end(log)), 0);
	assert_int_equal(log_used_bytes(log), 0);
	assert_true(log_tail(log) <= log_durable(log));
	log_close(log);
	log = reopen(&clean);
	expect_records(log, 1, 0);
	log_close(log);
}

struct filler {
	struct log *log;
	unsigned count;
	_Atomic uint32_t done;
};

static void filler_run(void *arg)
{
	struct filler *f = arg;

	for (unsigned i = 0; i < f->count; i++)
		WEFT_ASSERT(record_append(f->log, 8000, i, 0).end > 0);
	atomic_store(&f->done, 1);
}

static void reservers_wait_for_the_tail_and_urgent_ones_do_not(void **state)
{
	struct filler f = {.count = 300};
	struct rt_task *task;
	struct log_room room;
	uint32_t word;
	bool clean;

	f.log = restart(&clean);
	word = atomic_load(log_pressure_word(f.log));
	assert_int_equal(rt_task_spawn(&task, "filler", filler_run, &f), 0);
	while (!atomic_load(&f.done)) {
		while (!atomic_load(&f.done) &&
			atomic_load(log_pressure_word(f.log)) == word)
			rt_wait(log_pressure_word(f.log), word, rt_now_ns() + 1000000);
		word = atomic_load(log_pressure_word(f.log));
		assert_true(log_used_bytes(f.log) <= log_ring_bytes(f.log));
		assert_int_equal(log_reserve(f.log, 8192, true, &room), 0);
		record_append_room(f.log, &room, 4096, 1, 1);
		record_append_room(f.log, &room, 24, 1, 1);
		log_release(f.log, &room);
		assert_int_equal(log_flush(f.log, log_end(f.log)), 0);
		assert_int_equal(log_advance_tail(f.log, log_durable(f.log)), 0);
	}
	rt_task_join(task);
	assert_true(log_counters(f.log)->reserve_waits > 0);
	log_close(f.log);
}

/* Only who reserves urgently moves the tail: waiting for it would be for ever. */
static void an_urgent_reserver_is_told_when_its_reserve_is_used_up(void **state)
{
	struct log_room room;
	struct log *log;
	unsigned count = 0;
	bool clean;
	int error;

	log = restart(&clean);
	while ((error = log_reserve(log, 8192, true, &room)) == 0) {
		record_append_room(log, &room, 8192, 1, 1);
		log_release(log, &room);
		assert_int_equal(log_flush(log, log_end(log)), 0);
		assert_true(++count < log_ring_bytes(log) / 8192);
	}
	assert_int_equal(error, -ENOBUFS);
	assert_int_equal(log_advance_tail(log, log_durable(log)), 0);
	assert_int_equal(log_reserve(log, 8192, true, &room), 0);
	log_release(log, &room);
	log_close(log);
}

static void until_cut_run(void *arg)
{
	struct filler *f = arg;

	while (record_append(f->log, 8000, 0, 0).end)
		;
	atomic_store(&f->done, 1);
}

/* Who would wait for a tail that nobody moves any more is told so; the reserve is there all the same. */
static void nobody_waits_for_the_tail_once_that_is_cut(void **state)
{
	struct log_room room;
	struct rt_task *task;
	struct filler f = {0};
	bool clean;

	f.log = restart(&clean);
	assert_int_equal(log_reserve_now(f.log, 8192, &room), 0);
	record_append_room(f.log, &room, 8192, 1, 1);
	log_release(f.log, &room);
	assert_int_equal(log_reserve_now(f.log, LOG_RECORD_MAX * 4, &room), -E2BIG);
	assert_int_equal(rt_task_spawn(&task, "filler", until_cut_run, &f), 0);
	while (atomic_load(&log_counters(f.log)->reserve_waits) == 0)
		rt_sleep_ns(1000000);
	while (log_reserve_now(f.log, 8192, &room) == 0) {
		record_append_room(f.log, &room, 8192, 1, 1);
		log_release(f.log, &room);
	}
	assert_int_equal(log_reserve_now(f.log, 8192, &room), -ENOBUFS);
	assert_false(atomic_load(&f.done));
	log_reserve_cut(f.log);
	rt_task_join(task);
	assert_true(atomic_load(&f.done));
	assert_int_equal(log_reserve(f.log, 8192, false, &room), -EIO);
	assert_int_equal(log_reserve(f.log, 8192, true, &room), 0);
	log_release(f.log, &room);
	log_close(f.log);
}

static void released_room_is_all_given_back(void **state)
{
	struct log_room room[8];
	struct log *log;
	bool clean;

	log = restart(&clean);
	for (int round = 0; round < 2000; round++) {
		for (int i = 0; i < 8; i++)
			assert_int_equal(
				log_reserve(log, 104 + (uint32_t)i, false, &room[i]), 0);
		for (int i = 0; i < 8; i++) {
			if (round % 3)
				record_append_room(log, &room[i], 24, 1, 1);
			log_release(log, &room[i]);
			log_release(log, &room[i]);
		}
		if (round % 16 == 0) {
			assert_int_equal(log_flush(log, log_end(log)), 0);
			assert_int_equal(log_advance_tail(log, log_end(log)), 0);
		}
	}
	assert_int_equal(log_counters(log)->reserve_waits, 0);
	log_close(log);
}

/* ---- torn ends and damage -------------------------------------------------------- */

static void the_torn_end_is_cut_off(void **state)
{
	struct log_position last;
	struct log *log;
	bool clean;

	log = restart(&clean);
	put_flushed(log, 104);
	put_flushed(log, 9000);
	last = put_flushed(log, 20000);
	log_close(log);
	damage(place(last.start) + 12345);
	log = restart(&clean);
	expect_records(log, 1, 2);
	assert_int_equal(log_end(log), last.start);
	next_sequence = 3;
	put_flushed(log, 104);
	log_close(log);
	log = reopen(&clean);
	expect_records(log, 1, 3);
	log_close(log);
}

static void damage_below_a_durable_lsn_is_reported(void **state)
{
	static const unsigned places[] = {0, 8, 16, 32, 36, 48, 56, 70, 4000};
	struct log_position at[3];
	struct weft_error err;
	struct log *log;
	char text[32];
	bool clean;

	log = restart(&clean);
	for (int i = 0; i < 3; i++)
		at[i] = put_flushed(log, 9000);
	log_close(log);
	for (unsigned i = 0; i < ARRAY_SIZE(places); i++) {
		damage(place(at[1].start) + places[i]);
		err = (struct weft_error){0};
		assert_int_equal(open_error(&err), -EUCLEAN);
		snprintf(text, sizeof(text), "%llu", (unsigned long long)at[1].start);
		assert_non_null(strstr(err.text, text));
		damage(place(at[1].start) + places[i]);
	}
	log = reopen(&clean);
	expect_records(log, 1, 3);
	log_close(log);
}

static void a_head_may_be_torn_but_not_both(void **state)
{
	struct weft_error err = {0};
	struct log_position at;
	struct log *log;
	bool clean;

	log = restart(&clean);
	for (int i = 0; i < 4; i++) {
		at = put_flushed(log, 104);
		assert_int_equal(log_advance_tail(log, at.start), 0);
	}
	log_close(log);
	for (int copy = 0; copy < 2; copy++) {
		damage(FIXTURE_LOG_OFFSET + 4096u * (unsigned)copy + 17);
		log = reopen(&clean);
		assert_int_equal(seen_scan(log).last, 4);
		log_close(log);
		damage(FIXTURE_LOG_OFFSET + 4096u * (unsigned)copy + 17);
	}
	damage(FIXTURE_LOG_OFFSET + 17);
	damage(FIXTURE_LOG_OFFSET + 4096 + 2000);
	assert_int_equal(open_error(&err), -EUCLEAN);
	assert_non_null(strstr(err.text, "both heads"));
}

static void a_stale_clean_head_does_not_hide_the_log(void **state)
{
	struct log *log;
	bool clean;

	log = restart(&clean);
	assert_int_equal(log_shut(log), 0);
	log_close(log);
	log = restart(&clean);
	assert_true(clean);
	put_flushed(log, 104);
	log_close(log);
	/* One copy is the newest; with that one gone the clean one is left. */
	for (unsigned copy = 0; copy < 2; copy++) {
		damage(FIXTURE_LOG_OFFSET + 4096 * copy);
		log = reopen(&clean);
		assert_false(clean);
		expect_records(log, 1, 1);
		log_close(log);
		damage(FIXTURE_LOG_OFFSET + 4096 * copy);
	}
}

/* ---- chunks of earlier lives ----------------------------------------------------- */

/*
 * Two chunks in one flush, the first of which gets lost in the power cut; then a life
 * that writes a chunk of the same length in its place, so that the second one seems to
 * follow.
 */
static struct log *life_before_stale_chunk(void)
{
	struct log_position first, second;
	struct log *log;
	bool clean;

	ring_set(5 * RING); /* the buffer holds more than a chunk */
	log = restart(&clean);
	first = put(log, 400 * KIB);
	put(log, 400 * KIB);
	second = put(log, 400 * KIB);
	assert_true(second.start > first.start);
	assert_int_equal(log_flush(log, second.end), 0);
	assert_int_equal(log_counters(log)->flushes, 1);
	log_close(log);
	damage(place(first.start) + 5000);

	log = restart(&clean);
	expect_records(log, 1, 0);
	next_sequence = 100;
	assert_int_equal(put(log, 400 * KIB).start, first.start);
	put_flushed(log, 400 * KIB);
	assert_int_equal(log_durable(log), second.start);
	return log;
}

static void a_stale_chunk_is_no_continuation(void **state)
{
	struct log *log = life_before_stale_chunk();
	bool clean;

	log_close(log);
	log = reopen(&clean);
	expect_records(log, 100, 101);
	log_close(log);
}

static void a_stale_chunk_at_the_tail_is_no_log(void **state)
{
	struct log *log = life_before_stale_chunk();
	bool clean;

	assert_int_equal(log_advance_tail(log, log_durable(log)), 0);
	log_close(log);
	for (int i = 0; i < 3; i++) {
		log = restart(&clean);
		expect_records(log, 1, 0);
		log_close(log);
	}
}

static void a_chunk_behind_the_skip_needs_the_one_before_it(void **state)
{
	struct log_position small, large;
	struct log *log;
	bool clean;

	log = restart(&clean);
	while (RING - log_durable(log) % RING > 64 * KIB) {
		put_flushed(log, 20 * KIB);
		assert_int_equal(log_advance_tail(log, LSN_MAX), 0);
	}
	small = put(log, 24);
	large = put(log, 100 * KIB);
	assert_int_equal(large.start % RING, 0);
	assert_int_equal(log_flush(log, large.end), 0);
	log_close(log);
	log = reopen(&clean);
	expect_records(log, next_sequence - 2, next_sequence - 1);
	log_close(log);
	damage(place(small.start) + 64);
	log = reopen(&clean);
	expect_records(log, 1, 0);
	assert_int_equal(log_end(log), small.start);
	log_close(log);
}

#define LOG_TEST(f) cmocka_unit_test_setup_teardown(f, disk_make, disk_remove)

int main(void)
{
	const struct CMUnitTest tests[] = {
		LOG_TEST(records_of_all_sizes_come_back),
		LOG_TEST(the_longest_record_fits_a_small_volume),
		LOG_TEST(a_clean_end_leaves_an_empty_log),
		LOG_TEST(a_flush_is_one_chunk_and_one_device_flush),
		LOG_TEST(the_log_goes_on_over_many_lives_and_laps),
		LOG_TEST(the_tail_goes_to_the_chunk_that_holds_an_lsn),
		LOG_TEST(reservers_wait_for_the_tail_and_urgent_ones_do_not),
		LOG_TEST(an_urgent_reserver_is_told_when_its_reserve_is_used_up),
		LOG_TEST(nobody_waits_for_the_tail_once_that_is_cut),
		LOG_TEST(released_room_is_all_given_back),
		LOG_TEST(the_torn_end_is_cut_off),
		LOG_TEST(damage_below_a_durable_lsn_is_reported),
		LOG_TEST(a_head_may_be_torn_but_not_both),
		LOG_TEST(a_stale_clean_head_does_not_hide_the_log),
		LOG_TEST(a_stale_chunk_is_no_continuation),
		LOG_TEST(a_stale_chunk_at_the_tail_is_no_log),
		LOG_TEST(a_chunk_behind_the_skip_needs_the_one_before_it),
	};

	if (rt_real_start())
		return 1;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
