/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The log in the simulator: power cuts at any disk request, failing disks, many tasks on
 * small rings. The harness (node 0) keeps the model of what must be there; each life of
 * the log is a node.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "engine/rt/rt_sim.h"
#include "tests/unit/log_fixture.h"

#define SEQUENCES_MAX 200000u

/* Survives the lives. Records are numbered from 1; salt_of says which life wrote one. */
struct model {
	char disk[16];
	struct rt_sim_disk *sim_disk;
	uint64_t ring_bytes;
	uint64_t incarnation;
	uint64_t appended;   /* last number */
	uint64_t durable;    /* numbers up to it were reported durable */
	uint64_t needed;     /* the first that the tail must keep; appended + 1: none */
	uint64_t lives_done; /* ended without a cut */
	unsigned tasks, steps;
	uint64_t salt_of[SEQUENCES_MAX];
};

static struct model model;

static void model_make(uint64_t ring_bytes)
{
	struct store s;
	struct disk_log_head head;

	memset(&model, 0, sizeof(model));
	strcpy(model.disk, "log");
	model.ring_bytes = ring_bytes;
	model.needed = 1;
	model.sim_disk =
		rt_sim_disk_create(model.disk, fixture_disk_bytes(ring_bytes), NULL);
	WEFT_ASSERT(model.sim_disk);
	fixture_store(&s, ring_bytes);
	fixture_head_make(&s, &head);
	rt_sim_disk_poke(model.sim_disk, FIXTURE_LOG_OFFSET, &head, sizeof(head));
}

/* ---- one life --------------------------------------------------------------------- */

struct life {
	struct store store;
	struct log *log;
	struct rt_mutex order; /* numbers are given in the order of the log */
	_Atomic uint32_t running;
	bool failed;
};

static int model_visit(void *arg, const struct log_entry *entry)
{
	const uint64_t *words = (const uint64_t *)entry->record;
	uint64_t *last = arg;

	WEFT_ASSERT(record_intact(entry->record));
	WEFT_ASSERT(*last == 0 || words[1] == *last + 1);
	WEFT_ASSERT(*last != 0 || words[1] <= model.needed);
	WEFT_ASSERT(words[1] <= model.appended && words[2] == model.salt_of[words[1]]);
	*last = words[1];
	return 0;
}

/* What is there is a run of records without a hole, with all that must be there. */
static void life_recover(struct life *life)
{
	struct log_options o = {.flush_interval_ms = 50};
	struct weft_error err = {0};
	uint64_t last = 0;
	bool clean;
	int error;

	fixture_store(&life->store, model.ring_bytes);
	life->store.sb.incarnation = ++model.incarnation;
	WEFT_ASSERT(rt_disk_open(&life->store.disk, model.disk, 0, &err) == 0);
	error = log_open(&life->log, &life->store, &o, &clean, &err);
	if (error)
		weft_log(3, "%s", err.text);
	WEFT_ASSERT(error == 0);
	WEFT_ASSERT(log_scan(life->log, model_visit, &last) == 0);
	WEFT_ASSERT(!clean || last == 0);
	if (last == 0)
		last = model.needed - 1;
	WEFT_ASSERT(last >= model.durable);
	model.appended = last;
	model.durable = last;
	model.needed = MIN(model.needed, last + 1);
}

static void life_durable(uint64_t number)
{
	model.durable = MAX(model.durable, number);
}

/* Advances the tail to a record just appended: everything before it may go. */
static int life_checkpoint(struct life *life)
{
	struct log_position at;
	struct log_room room;
	uint64_t number;
	int error;

	error = log_reserve(life->log, 64, true, &room);
	if (error)
		return error;
	rt_mutex_lock(&life->order);
	number = ++model.appended;
	model.salt_of[number] = model.incarnation;
	at = record_append_room(life->log, &room, 64, number, model.incarnation);
	rt_mutex_unlock(&life->order);
	log_release(life->log, &room);
	error = log_flush(life->log, at.end);
	if (error)
		return error;
	life_durable(number);
	/* Not needed any more from here on, whether or not the head gets written. */
	model.needed = MAX(model.needed, number);
	return log_advance_tail(life->log, at.start);
}

static int life_append(struct life *life, struct log_position *at, uint64_t *number)
{
	uint32_t bytes = rt_random() % 8 ? 24 + 8 * (uint32_t)(rt_random() % 500)
					 : 24 + 8 * (uint32_t)(rt_random() % 8000);
	struct log_room room;
	int error;

	bytes = MIN(bytes, log_room_max(life->log, false) - 16);
	error = log_reserve(life->log, bytes + 16, false, &room);
	WEFT_ASSERT(error == 0 || error == -EROFS);
	if (error)
		return error;
	if (rt_random() % 4 == 0)
		rt_sleep_ns(rt_random() % 1000000);
	rt_mutex_lock(&life->order);
	*number = ++model.appended;
	WEFT_ASSERT(*number < SEQUENCES_MAX);
	model.salt_of[*number] = model.incarnation;
	*at = record_append_room(life->log, &room, bytes, *number, model.incarnation);
	rt_mutex_unlock(&life->order);
	log_release(life->log, &room);
	return 0;
}

static void life_task(void *arg)
{
	struct life *life = arg;

	for (unsigned i = 0; i < model.steps && !life->failed; i++) {
		struct log_position at;
		uint64_t number;

		if (life_append(life, &at, &number)) {
			life->failed = true;
			break;
		}
		if (rt_random() % 4 == 0) {
			if (log_flush(life->log, at.end))
				life->failed = true;
			else
				life_durable(number);
		}
	}
	atomic_fetch_sub(&life->running, 1);
	atomic_fetch_add(log_pressure_word(life->log), 1);
	rt_wake(log_pressure_word(life->log), INT32_MAX);
}

static void life_run(void *arg)
{
	_Atomic uint32_t *pressure;
	struct rt_task *tasks[32];
	struct life *life = rt_alloc(sizeof(*life));

	(void)arg;
	WEFT_ASSERT(life);
	life_recover(life);
	if (log_start(life->log))
		goto out;
	pressure = log_pressure_word(life->log);
	atomic_store(&life->running, model.tasks);
	for (unsigned i = 0; i < model.tasks; i++)
		WEFT_ASSERT(rt_task_spawn(&tasks[i], "appender", life_task, life) == 0);
	while (atomic_load(&life->running) > 0) {
		uint32_t word = atomic_load(pressure);

		if (life->failed || !log_wants_checkpoint(life->log))
			rt_wait(pressure, word, rt_now_ns() + 5000000);
		else if (life_checkpoint(life))
			life->failed = true;
		WEFT_ASSERT(log_used_bytes(life->log) <= log_ring_bytes(life->log));
	}
	for (unsigned i = 0; i < model.tasks; i++)
		rt_task_join(tasks[i]);
	if (!life->failed && rt_random() % 2) {
		model.needed = model.appended + 1;
		if (log_shut(life->log) == 0)
			model.durable = model.appended;
	}
out:
	log_close(life->log);
	rt_disk_close(life->store.disk);
	rt_free(life);
	model.lives_done++;
}

/* True if the life ended by itself. */
static bool life_do(void)
{
	unsigned node = rt_sim_node_new("life");

	WEFT_ASSERT(rt_sim_spawn_on(node, "life", life_run, NULL) == 0);
	if (rt_sim_node_wait(node))
		return false;
	rt_sim_node_kill(node);
	return true;
}

/* ---- power cuts ------------------------------------------------------------------ */

/* A cut at every request of a short life, twice, so that the second one recovers it. */
static int cut_everywhere(void *arg)
{
	model_make(1 << 20);
	model.tasks = 3;
	model.steps = 6;
	for (uint64_t n = 1; n < 60; n++) {
		bool ended;

		rt_sim_disk_cut_after(model.sim_disk, n);
		ended = life_do();
		rt_sim_disk_cut_after(model.sim_disk, 0);
		if (ended && n > 50)
			break;
	}
	WEFT_ASSERT(life_do());
	return 0;
}

static int cut_anywhere(void *arg)
{
	model_make(*(uint64_t *)arg);
	model.tasks = 8;
	model.steps = 60;
	for (int life = 0; life < 12; life++) {
		rt_sim_disk_cut_after(model.sim_disk, 1 + rt_random() % 120);
		life_do();
	}
	rt_sim_disk_cut_after(model.sim_disk, 0);
	WEFT_ASSERT(life_do());
	return 0;
}

static void what_was_durable_survives_a_cut_at_any_request(void **state)
{
	for (uint64_t seed = 1; seed <= 20; seed++)
		assert_int_equal(rt_sim_run(seed, NULL, cut_everywhere, NULL), 0);
}

static void what_was_durable_survives_many_cuts_over_many_laps(void **state)
{
	for (uint64_t seed = 1; seed <= 25; seed++) {
		uint64_t ring_bytes = 512 * 1024 + seed % 5 * 28 * 4096;

		assert_int_equal(rt_sim_run(seed, NULL, cut_anywhere, &ring_bytes), 0);
	}
}

/* ---- failing disks --------------------------------------------------------------- */

static int fail_everywhere(void *arg)
{
	unsigned ops = *(unsigned *)arg;

	model_make(1 << 20);
	model.tasks = 4;
	model.steps = 8;
	for (uint64_t n = 1; n < 25; n++) {
		struct rt_sim_fail fail = {.ops = ops, .n = n};

		rt_sim_disk_fail(model.sim_disk, &fail);
		WEFT_ASSERT(life_do());
		fail.ops = 0;
		rt_sim_disk_fail(model.sim_disk, &fail);
		WEFT_ASSERT(life_do());
	}
	return 0;
}

static void log_sink_quiet(int level, const char *line)
{
	if (level < 3 || strstr(line, "damaged") || strstr(line, "heads"))
		fprintf(stderr, "%s\n", line);
}

static void what_was_durable_survives_an_error_of_any_request(void **state)
{
	unsigned ops[] = {RT_SIM_FAIL_WRITE, RT_SIM_FAIL_FLUSH,
		RT_SIM_FAIL_WRITE | RT_SIM_FAIL_FLUSH};
	void (*sink)(int, const char *) = weft_log_sink;

	weft_log_sink = log_sink_quiet;
	for (unsigned i = 0; i < 3 * 8; i++)
		assert_int_equal(rt_sim_run(i, NULL, fail_everywhere, &ops[i % 3]), 0);
	weft_log_sink = sink;
}

static struct log *plain_open(struct store *s)
{
	struct log_options o = {.flush_interval_ms = UINT64_MAX};
	struct weft_error err = {0};
	struct log *log;
	bool clean;

	model_make(1 << 20);
	fixture_store(s, model.ring_bytes);
	s->sb.incarnation = 2;
	WEFT_ASSERT(rt_disk_open(&s->disk, model.disk, 0, &err) == 0);
	WEFT_ASSERT(log_open(&log, s, &o, &clean, &err) == 0);
	WEFT_ASSERT(log_start(log) == 0);
	return log;
}

static void count_failure(void *owner)
{
	++*(unsigned *)owner;
}

static int fail_once(void *arg)
{
	struct rt_sim_fail fail = {.ops = RT_SIM_FAIL_FLUSH, .n = 1};
	unsigned told = 0, late = 0;
	struct store s;
	struct log *log = plain_open(&s);
	lsn_t good = record_append(log, 64, 1, 1).end, bad;
	struct log_room held, room;

	WEFT_ASSERT(log_flush(log, good) == 0);
	WEFT_ASSERT(log_reserve(log, 64, false, &held) == 0);
	log_on_failure(log, count_failure, &told);
	rt_sim_disk_fail(model.sim_disk, &fail);
	WEFT_ASSERT(!told);
	bad = record_append(log, 64, 2, 1).end;
	WEFT_ASSERT(log_flush(log, bad) == -EIO);
	WEFT_ASSERT(told == 1);
	log_on_failure(log, count_failure, &late); /* it has failed */
	log_on_failure(log, NULL, NULL);
	WEFT_ASSERT(told == 1 && late == 1);
	WEFT_ASSERT(log_failed(log) == -EIO);
	/* For ever, though the disk is well again; what was durable before still is. */
	WEFT_ASSERT(log_flush(log, bad) == -EIO && log_flush(log, good) == 0);
	WEFT_ASSERT(log_durable(log) < bad);
	WEFT_ASSERT(log_reserve(log, 64, false, &room) == -EROFS);
	WEFT_ASSERT(log_reserve(log, 64, true, &room) == -EROFS);
	record_append_room(log, &held, 64, 3, 1); /* dropped */
	log_release(log, &held);
	WEFT_ASSERT(log_end(log) == bad);
	WEFT_ASSERT(log_advance_tail(log, LSN_MAX) == -EIO && log_shut(log) == -EIO);
	log_close(log);
	rt_disk_close(s.disk);
	return 0;
}

/* All that was appended is durable when the log fails: what is dropped then is not. */
static int drop_after_flush(void *arg)
{
	struct store s;
	struct log *log = plain_open(&s);
	lsn_t good = record_append(log, 64, 1, 1).end;
	struct log_room held;

	WEFT_ASSERT(log_reserve(log, 256, false, &held) == 0);
	WEFT_ASSERT(log_flush(log, good) == 0);
	log_give_up(log, -EIO);
	for (uint64_t i = 0; i < 2; i++) {
		lsn_t dropped = record_append_room(log, &held, 64, 2 + i, 1).end;

		WEFT_ASSERT(dropped > log_durable(log));
		WEFT_ASSERT(log_flush(log, dropped) == -EIO);
	}
	log_release(log, &held);
	WEFT_ASSERT(log_flush(log, log_end(log)) == 0 && log_shut(log) == -EIO);
	log_close(log);
	rt_disk_close(s.disk);
	return 0;
}

static void a_dropped_record_is_never_durable(void **state)
{
	void (*sink)(int, const char *) = weft_log_sink;

	weft_log_sink = log_sink_quiet;
	assert_int_equal(rt_sim_run(1, NULL, drop_after_flush, NULL), 0);
	weft_log_sink = sink;
}

/* Nobody moves the tail: persisting is told so, and need not wait for itself. */
static int fill_urgently(void *arg)
{
	struct store s;
	struct log *log = plain_open(&s);
	struct log_room room;
	int error;

	while (!(error = log_reserve(log, 4096, true, &room))) {
		WEFT_ASSERT(log_used_bytes(log) <= log_ring_bytes(log));
		record_append_room(log, &room, 4096, 1, 1);
		log_release(log, &room);
		WEFT_ASSERT(log_flush(log, log_end(log)) == 0);
	}
	WEFT_ASSERT(error == -ENOBUFS && !log_failed(log));
	WEFT_ASSERT(log_advance_tail(log, log_durable(log)) == 0);
	WEFT_ASSERT(log_reserve(log, 4096, true, &room) == 0);
	log_release(log, &room);
	log_close(log);
	rt_disk_close(s.disk);
	return 0;
}

static void urgent_room_of_a_full_ring_is_refused(void **state)
{
	assert_int_equal(rt_sim_run(1, NULL, fill_urgently, NULL), 0);
}

static void an_error_ends_the_log_for_ever(void **state)
{
	void (*sink)(int, const char *) = weft_log_sink;

	weft_log_sink = log_sink_quiet;
	assert_int_equal(rt_sim_run(1, NULL, fail_once, NULL), 0);
	weft_log_sink = sink;
}

/* ---- cost and progress ----------------------------------------------------------- */

static int cost_of_one_flush(void *arg)
{
	struct store s;
	struct log *log = plain_open(&s);

	for (int i = 0; i < 10; i++) {
		uint64_t before = rt_sim_disk_ops(model.sim_disk);

		record_append(log, 64, 1, 1);
		WEFT_ASSERT(log_flush(log, record_append(log, 64, 1, 1).end) == 0);
		WEFT_ASSERT(rt_sim_disk_ops(model.sim_disk) - before == 2);
		WEFT_ASSERT(log_flush(log, log_end(log)) == 0);
		WEFT_ASSERT(rt_sim_disk_ops(model.sim_disk) - before == 2);
	}
	log_close(log);
	rt_disk_close(s.disk);
	return 0;
}

static void a_flush_is_one_write_and_one_device_flush(void **state)
{
	assert_int_equal(rt_sim_run(1, NULL, cost_of_one_flush, NULL), 0);
}

#define COMMITTERS 64u
#define COMMITS    20u

static void committer(void *arg)
{
	struct log *log = arg;

	for (unsigned i = 0; i < COMMITS; i++) {
		lsn_t end = record_append(log, 64, 1, 1).end;

		WEFT_ASSERT(log_flush(log, end) == 0 && log_durable(log) >= end);
	}
}

static int group_commit(void *arg)
{
	struct rt_task *tasks[COMMITTERS];
	struct store s;
	struct log *log = plain_open(&s);

	for (unsigned i = 0; i < COMMITTERS; i++)
		WEFT_ASSERT(rt_task_spawn(&tasks[i], "committer", committer, log) == 0);
	for (unsigned i = 0; i < COMMITTERS; i++)
		rt_task_join(tasks[i]);
	/* While one flush is under way all others gather for the next. */
	WEFT_ASSERT(log_counters(log)->records == COMMITTERS * COMMITS);
	WEFT_ASSERT(log_counters(log)->flushes <= 3 * COMMITS);
	log_close(log);
	rt_disk_close(s.disk);
	return 0;
}

static void one_flush_serves_all_who_wait(void **state)
{
	for (uint64_t seed = 1; seed <= 20; seed++)
		assert_int_equal(rt_sim_run(seed, NULL, group_commit, NULL), 0);
}

/* Stuck runs are aborted by the simulator; overflows by the log's assertions. */
static int crowd(void *arg)
{
	model_make(512 << 10);
	model.tasks = 32;
	model.steps = 150;
	WEFT_ASSERT(life_do());
	return 0;
}

static void a_crowd_on_a_small_ring_neither_sticks_nor_overflows(void **state)
{
	struct rt_sim_options o = {.switch_one_in = 3, .time_limit_ns = 600000000000ull};

	for (uint64_t seed = 1; seed <= 10; seed++)
		assert_int_equal(rt_sim_run(seed, &o, crowd, NULL), 0);
}

/* Appended and not asked for: durable within the interval, and then all is quiet. */
static int quiet_life(void *arg)
{
	struct log_options o = {.flush_interval_ms = 5000};
	struct weft_error err = {0};
	struct store s;
	struct log *log;
	uint64_t ops;
	bool clean;

	model_make(1 << 20);
	fixture_store(&s, model.ring_bytes);
	WEFT_ASSERT(rt_disk_open(&s.disk, model.disk, 0, &err) == 0);
	WEFT_ASSERT(log_open(&log, &s, &o, &clean, &err) == 0);
	WEFT_ASSERT(log_start(log) == 0);
	for (int i = 0; i < 5; i++) {
		lsn_t end = record_append(log, 64, 1, 1).end;

		rt_sleep_ns(5100000000ull);
		WEFT_ASSERT(log_durable(log) >= end);
		ops = rt_sim_disk_ops(model.sim_disk);
		rt_sleep_ns(100000000000ull);
		WEFT_ASSERT(rt_sim_disk_ops(model.sim_disk) == ops);
	}
	log_close(log);
	rt_disk_close(s.disk);
	return 0;
}

static void the_background_writer_flushes_within_its_interval(void **state)
{
	for (uint64_t seed = 1; seed <= 5; seed++)
		assert_int_equal(rt_sim_run(seed, NULL, quiet_life, NULL), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_flush_is_one_write_and_one_device_flush),
		cmocka_unit_test(one_flush_serves_all_who_wait),
		cmocka_unit_test(an_error_ends_the_log_for_ever),
		cmocka_unit_test(a_dropped_record_is_never_durable),
		cmocka_unit_test(urgent_room_of_a_full_ring_is_refused),
		cmocka_unit_test(what_was_durable_survives_an_error_of_any_request),
		cmocka_unit_test(what_was_durable_survives_a_cut_at_any_request),
		cmocka_unit_test(what_was_durable_survives_many_cuts_over_many_laps),
		cmocka_unit_test(a_crowd_on_a_small_ring_neither_sticks_nor_overflows),
		cmocka_unit_test(the_background_writer_flushes_within_its_interval),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
