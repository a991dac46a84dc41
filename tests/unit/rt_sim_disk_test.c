/* SPDX-License-Identifier: Apache-2.0 */
/* Simulated disks: what requests do, what a power cut leaves, faults. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <string.h>

#include "engine/rt/rt_sim.h"

/* Inside a simulation a failed check aborts, which prints the seed. */
#define CHECK  WEFT_ASSERT
#define SECTOR 512u

/* ---- requests -------------------------------------------------------------------- */

static int request_world(void *arg)
{
	struct rt_sim_disk *sim_disk = rt_sim_disk_create("d", 1ull << 30, NULL);
	uint8_t *p = rt_alloc_pages(8 * PAGE_SIZE);
	uint64_t end = 1ull << 30;
	struct rt_disk *disk, *second;
	struct rt_disk_info info;
	struct rt_io ios[6];

	CHECK(rt_disk_open(&disk, "none", 0, NULL) == -ENOENT);
	CHECK(rt_disk_open(&disk, "d", RT_DISK_EXCLUSIVE, NULL) == 0);
	CHECK(rt_disk_open(&second, "d", RT_DISK_EXCLUSIVE, NULL) == -EBUSY);
	CHECK(rt_disk_open(&second, "d", RT_DISK_READ_ONLY, NULL) == 0);
	CHECK(rt_disk_write(second, 0, p, PAGE_SIZE) == -EBADF);
	rt_disk_close(second);
	rt_disk_info(disk, &info);
	CHECK(info.size_bytes == end && info.atomic_write_bytes == SECTOR &&
		!info.read_only);

	memset(p, 1, PAGE_SIZE);
	CHECK(rt_disk_write(disk, end - PAGE_SIZE, p, PAGE_SIZE) == 0);
	CHECK(rt_disk_write(disk, end, p, PAGE_SIZE) == -ENOSPC);
	CHECK(rt_disk_read(disk, end - PAGE_SIZE, p + PAGE_SIZE, 2 * PAGE_SIZE) == -EIO);
	CHECK(rt_disk_read(disk, 100, p, PAGE_SIZE) == -EINVAL);
	CHECK(rt_disk_read(disk, 0, p + 1, SECTOR) == -EINVAL);
	CHECK(rt_disk_read(disk, UINT64_MAX - 511, p, SECTOR) == -EIO);
	CHECK(rt_disk_read(disk, end - PAGE_SIZE, p + PAGE_SIZE, PAGE_SIZE) == 0);
	CHECK(memcmp(p, p + PAGE_SIZE, PAGE_SIZE) == 0);
	CHECK(rt_sim_disk_volatile_bytes(sim_disk) == PAGE_SIZE);
	CHECK(rt_disk_flush(disk) == 0 && rt_sim_disk_volatile_bytes(sim_disk) == 0);

	/* 0 writes, 1 reads it back, 2 fails, 3 and 4 are cancelled, 5 is on its own */
	rt_io_set(&ios[0], RT_IO_WRITE, PAGE_SIZE, p, PAGE_SIZE);
	rt_io_set(&ios[1], RT_IO_READ, PAGE_SIZE, p + 4 * PAGE_SIZE, PAGE_SIZE);
	rt_io_set(&ios[2], RT_IO_READ, end, p, PAGE_SIZE);
	rt_io_set(&ios[3], RT_IO_WRITE, PAGE_SIZE, p + 5 * PAGE_SIZE, PAGE_SIZE);
	rt_io_set(&ios[4], RT_IO_FLUSH, 0, NULL, 0);
	rt_io_set(&ios[5], RT_IO_FLUSH, 0, NULL, 0);
	for (unsigned i = 1; i < 5; i++)
		ios[i].after_previous = true;
	rt_disk_submit(disk, ios, 6);
	rt_disk_wait(disk, ios, 6);
	for (unsigned i = 0; i < 6; i++)
		CHECK(ios[i].result == (i == 2                    ? -EIO
					       : i == 3 || i == 4 ? -ECANCELED
								  : 0));
	CHECK(memcmp(p + 4 * PAGE_SIZE, p, PAGE_SIZE) == 0);
	CHECK(rt_disk_read(disk, PAGE_SIZE, p + 4 * PAGE_SIZE, PAGE_SIZE) == 0);
	CHECK(memcmp(p + 4 * PAGE_SIZE, p, PAGE_SIZE) == 0);

	rt_sim_disk_copy("copy", sim_disk);
	rt_sim_disk_poke(sim_disk, PAGE_SIZE + 3, "xyz", 3);
	rt_sim_disk_peek(sim_disk, PAGE_SIZE + 2, p, 5);
	CHECK(memcmp(p, "\1xyz\1", 5) == 0);
	CHECK(rt_disk_open(&second, "copy", 0, NULL) == 0);
	CHECK(rt_disk_read(second, PAGE_SIZE, p, PAGE_SIZE) == 0 && p[3] == 1);
	rt_disk_close(second);
	CHECK(rt_sim_disk_ops(sim_disk) == 16);
	rt_disk_close(disk);
	rt_sim_disk_destroy(sim_disk);
	return rt_disk_open(&disk, "d", 0, NULL) == -ENOENT ? 0 : 1;
}

static void requests_do_what_they_say(void **state)
{
	for (uint64_t seed = 0; seed < 20; seed++)
		assert_int_equal(rt_sim_run(seed, NULL, request_world, NULL), 0);
}

/* Requests submitted together end in different orders, and take virtual time. */
static int order_world(void *arg)
{
	uint8_t *p = rt_alloc_pages(2 * PAGE_SIZE);
	struct rt_disk *disk;
	struct rt_io ios[2];
	uint64_t start = rt_now_ns();

	rt_sim_disk_create("d", PAGE_SIZE, NULL);
	CHECK(rt_disk_open(&disk, "d", 0, NULL) == 0);
	memset(p, 1, PAGE_SIZE);
	memset(p + PAGE_SIZE, 2, PAGE_SIZE);
	for (unsigned i = 0; i < 2; i++)
		rt_io_set(&ios[i], RT_IO_WRITE, 0, p + i * PAGE_SIZE, PAGE_SIZE);
	rt_disk_run(disk, ios, 2);
	CHECK(rt_now_ns() - start >= 20000);
	CHECK(rt_disk_read(disk, 0, p, PAGE_SIZE) == 0);
	return p[0];
}

static void completion_order_varies(void **state)
{
	unsigned count[3] = {0};

	for (uint64_t seed = 0; seed < 100; seed++)
		count[rt_sim_run(seed, NULL, order_world, NULL)]++;
	assert_true(count[1] > 10 && count[2] > 10);
}

/* ---- power cuts ------------------------------------------------------------------ */

#define SECTORS     64u
#define HISTORY_MAX 4096u

/*
 * What each sector may hold: the value that a flush made durable, or any written since.
 * Kept by the harness, outside the node, so it outlives the cut.
 */
static struct {
	uint32_t durable[SECTORS];
	uint32_t since[HISTORY_MAX]; /* values */
	uint8_t at[HISTORY_MAX];     /* sectors */
	unsigned history;
	uint32_t newest[SECTORS]; /* of completed writes */
	uint32_t next_value;
} model;

static void model_write(unsigned sector, uint32_t value)
{
	CHECK(model.history < HISTORY_MAX);
	model.since[model.history] = value;
	model.at[model.history++] = (uint8_t)sector;
}

static void model_flushed(void)
{
	memcpy(model.durable, model.newest, sizeof(model.durable));
	model.history = 0;
}

static bool model_allows(unsigned sector, uint32_t value)
{
	bool allowed = model.durable[sector] == value;

	for (unsigned i = 0; i < model.history && !allowed; i++)
		allowed = model.at[i] == sector && model.since[i] == value;
	return allowed;
}

static void fill_sector(uint8_t *sector, uint32_t value)
{
	for (unsigned i = 0; i < SECTOR; i += 4)
		memcpy(sector + i, &value, 4);
}

/* The value of a sector that must be whole. */
static uint32_t sector_value(const uint8_t *sector)
{
	uint32_t value, other;

	memcpy(&value, sector, 4);
	for (unsigned i = 0; i < SECTOR; i += 4) {
		memcpy(&other, sector + i, 4);
		CHECK(other == value);
	}
	return value;
}

/* One to four writes at once, of disjoint ranges or not, then perhaps a flush. */
static void write_at_random(void *arg)
{
	uint8_t *memory = rt_alloc_pages(SECTORS * SECTOR);
	struct rt_disk *disk;

	CHECK(memory && rt_disk_open(&disk, "d", RT_DISK_EXCLUSIVE, NULL) == 0);
	for (;;) {
		struct rt_io ios[4];
		unsigned n = 1 + (unsigned)(rt_random() % 4), slot = 0;

		for (unsigned i = 0; i < n; i++) {
			unsigned count = 1 + (unsigned)(rt_random() % 12);
			unsigned first = i * 16 + (unsigned)(rt_random() % (17 - count));

			rt_io_set(&ios[i], RT_IO_WRITE, first * SECTOR,
				memory + slot * SECTOR, count * SECTOR);
			for (unsigned k = 0; k < count; k++) {
				fill_sector(memory + slot++ * SECTOR, ++model.next_value);
				model_write(first + k, model.next_value);
			}
		}
		rt_disk_run(disk, ios, n);
		for (unsigned i = 0; i < n; i++) {
			CHECK(ios[i].result == 0);
			for (unsigned k = 0; k < ios[i].one.iov_len / SECTOR; k++)
				model.newest[ios[i].offset / SECTOR + k] = sector_value(
					(uint8_t *)ios[i].one.iov_base + k * SECTOR);
		}
		if (rt_random() % 4 == 0) {
			CHECK(rt_disk_flush(disk) == 0);
			model_flushed();
		}
	}
}

static unsigned outcomes_durable, outcomes_newer;

static int cut_world(void *arg)
{
	struct rt_sim_disk *disk = rt_sim_disk_create("d", SECTORS * SECTOR, NULL);
	static uint8_t image[SECTORS * SECTOR];

	memset(&model, 0, sizeof(model));
	for (unsigned life = 0; life < 5; life++) {
		unsigned node = rt_sim_node_new("node");

		CHECK(rt_sim_spawn_on(node, "writer", write_at_random, NULL) == 0);
		if (rt_random() % 2) {
			rt_sim_disk_cut_after(disk, 1 + rt_random() % 30);
		} else {
			rt_sleep_ns(rt_random() % 5000000);
			rt_sim_node_kill(node);
		}
		CHECK(rt_sim_node_wait(node));
		CHECK(rt_sim_disk_volatile_bytes(disk) == 0);
		rt_sim_disk_peek(disk, 0, image, sizeof(image));
		for (unsigned s = 0; s < SECTORS; s++) {
			uint32_t value = sector_value(image + s * SECTOR);

			CHECK(model_allows(s, value));
			if (model.durable[s] == value)
				outcomes_durable++;
			else
				outcomes_newer++;
			model.newest[s] = value;
		}
		model_flushed(); /* what the next life finds is durable */
	}
	return 0;
}

static void cut_leaves_the_durable_or_something_newer(void **state)
{
	outcomes_durable = outcomes_newer = 0;
	for (uint64_t seed = 0; seed < 400; seed++)
		rt_sim_run(seed, NULL, cut_world, NULL);
	assert_true(outcomes_durable > 1000 && outcomes_newer > 1000);
}

/* ---- every outcome happens ------------------------------------------------------- */

struct one_write {
	struct rt_sim_disk_options options;
	bool complete, close; /* wait for the write before the cut; close the disk too */
	unsigned kept_units;  /* out: of eight sectors, a bit each */
};

static void write_one_page(void *arg)
{
	struct one_write *w = arg;
	uint8_t *p = rt_alloc_pages(PAGE_SIZE);
	struct rt_disk *disk;
	struct rt_io io;

	memset(p, 1, PAGE_SIZE);
	CHECK(rt_disk_open(&disk, "d", 0, NULL) == 0);
	rt_io_set(&io, RT_IO_WRITE, 0, p, PAGE_SIZE);
	rt_disk_submit(disk, &io, 1);
	if (w->complete)
		rt_disk_wait(disk, &io, 1);
	if (w->close)
		rt_disk_close(disk);
	rt_sim_node_kill(rt_sim_node());
}

static int one_write_world(void *arg)
{
	struct one_write *w = arg;
	struct rt_sim_disk *disk = rt_sim_disk_create("d", PAGE_SIZE, &w->options);
	unsigned node = rt_sim_node_new("node");
	uint8_t page[PAGE_SIZE];

	CHECK(rt_sim_spawn_on(node, "writer", write_one_page, w) == 0);
	CHECK(rt_sim_node_wait(node));
	rt_sim_disk_peek(disk, 0, page, sizeof(page));
	w->kept_units = 0;
	for (unsigned s = 0; s < PAGE_SIZE / SECTOR; s++)
		w->kept_units |= (unsigned)page[s * SECTOR] << s;
	return 0;
}

static void expect_outcomes(struct one_write w, bool torn)
{
	unsigned lost = 0, kept = 0, partly = 0;

	for (uint64_t seed = 0; seed < 200; seed++) {
		rt_sim_run(seed, NULL, one_write_world, &w);
		if (w.kept_units == 0)
			lost++;
		else if (w.kept_units == 0xff)
			kept++;
		else
			partly++;
	}
	assert_true(lost > 20 && kept > 20);
	assert_true(torn ? partly > 20 : partly == 0);
}

static void unflushed_write_is_lost_kept_or_torn(void **state)
{
	expect_outcomes((struct one_write){.complete = true}, true);
	expect_outcomes((struct one_write){.complete = false}, true);
	expect_outcomes((struct one_write){.complete = true, .close = true}, true);
}

static void atomic_units_are_not_torn(void **state)
{
	struct rt_sim_disk_options options = {.atomic_write_bytes = PAGE_SIZE};

	expect_outcomes((struct one_write){.options = options, .complete = true}, false);
	expect_outcomes((struct one_write){.options = options, .complete = false}, false);
}

/* A flush covers only what had completed when it was submitted. */
static void write_during_flush(void *arg)
{
	uint8_t *p = rt_alloc_pages(PAGE_SIZE);
	struct rt_disk *disk;
	struct rt_io ios[2];

	memset(p, 1, PAGE_SIZE);
	CHECK(rt_disk_open(&disk, "d", 0, NULL) == 0);
	rt_io_set(&ios[0], RT_IO_FLUSH, 0, NULL, 0);
	rt_io_set(&ios[1], RT_IO_WRITE, 0, p, PAGE_SIZE);
	rt_disk_run(disk, ios, 2);
	rt_sim_node_kill(rt_sim_node());
}

static int flush_race_world(void *arg)
{
	struct rt_sim_disk *disk = rt_sim_disk_create("d", PAGE_SIZE, NULL);
	unsigned node = rt_sim_node_new("node");
	uint8_t page[PAGE_SIZE];

	CHECK(rt_sim_spawn_on(node, "writer", write_during_flush, NULL) == 0);
	CHECK(rt_sim_node_wait(node));
	rt_sim_disk_peek(disk, 0, page, sizeof(page));
	return page[0];
}

static void flush_does_not_cover_what_is_in_flight(void **state)
{
	unsigned kept = 0;

	for (uint64_t seed = 0; seed < 200; seed++)
		kept += (unsigned)rt_sim_run(seed, NULL, flush_race_world, NULL);
	assert_true(kept > 20 && kept < 180);
}

/* ---- faults ---------------------------------------------------------------------- */

static int fault_world(void *arg)
{
	struct rt_sim_disk *d = rt_sim_disk_create("d", 16 * PAGE_SIZE, NULL);
	uint8_t *p = rt_alloc_pages(PAGE_SIZE);
	struct rt_disk *disk;

	CHECK(rt_disk_open(&disk, "d", 0, NULL) == 0);
	rt_sim_disk_fail(d, &(struct rt_sim_fail){.ops = RT_SIM_FAIL_READ, .n = 2});
	CHECK(rt_disk_read(disk, 0, p, PAGE_SIZE) == 0);
	CHECK(rt_disk_write(disk, 0, p, PAGE_SIZE) == 0);
	CHECK(rt_disk_read(disk, 0, p, PAGE_SIZE) == -EIO);
	CHECK(rt_disk_read(disk, 0, p, PAGE_SIZE) == 0);

	rt_sim_disk_fail(
		d, &(struct rt_sim_fail){.ops = RT_SIM_FAIL_READ | RT_SIM_FAIL_WRITE,
			   .n = 1,
			   .sticky = true,
			   .offset = 4 * PAGE_SIZE,
			   .length = PAGE_SIZE});
	CHECK(rt_disk_read(disk, 3 * PAGE_SIZE, p, PAGE_SIZE) == 0);
	CHECK(rt_disk_read(disk, 5 * PAGE_SIZE, p, PAGE_SIZE) == 0);
	CHECK(rt_disk_read(disk, 4 * PAGE_SIZE, p, PAGE_SIZE) == -EIO);
	CHECK(rt_disk_write(disk, 4 * PAGE_SIZE + SECTOR, p, SECTOR) == -EIO);
	CHECK(rt_disk_flush(disk) == 0);
	rt_sim_disk_fail(d, &(struct rt_sim_fail){0});
	CHECK(rt_disk_read(disk, 4 * PAGE_SIZE, p, PAGE_SIZE) == 0);
	rt_disk_close(disk);
	return 0;
}

static void chosen_requests_fail(void **state)
{
	for (uint64_t seed = 0; seed < 20; seed++)
		rt_sim_run(seed, NULL, fault_world, NULL);
}

static void flush_twice(void *arg)
{
	uint8_t *p = rt_alloc_pages(PAGE_SIZE);
	struct rt_disk *disk;

	memset(p, 1, PAGE_SIZE);
	CHECK(rt_disk_open(&disk, "d", 0, NULL) == 0);
	CHECK(rt_disk_write(disk, 0, p, PAGE_SIZE) == 0);
	CHECK(rt_disk_flush(disk) == -EIO);
	CHECK(rt_disk_flush(disk) == 0);
	CHECK(rt_disk_read(disk, 0, p, PAGE_SIZE) == 0 && p[0] == 1);
	rt_sim_node_kill(rt_sim_node());
}

static int failed_flush_world(void *arg)
{
	struct rt_sim_disk *d = rt_sim_disk_create("d", PAGE_SIZE, NULL);
	unsigned node = rt_sim_node_new("node");
	uint8_t page[PAGE_SIZE];

	rt_sim_disk_fail(d, &(struct rt_sim_fail){.ops = RT_SIM_FAIL_FLUSH, .n = 1});
	CHECK(rt_sim_spawn_on(node, "flusher", flush_twice, NULL) == 0);
	CHECK(rt_sim_node_wait(node));
	rt_sim_disk_peek(d, 0, page, sizeof(page));
	return page[0];
}

static void failed_flush_is_not_mended_by_the_next(void **state)
{
	unsigned kept = 0;

	for (uint64_t seed = 0; seed < 200; seed++)
		kept += (unsigned)rt_sim_run(seed, NULL, failed_flush_world, NULL);
	assert_true(kept > 20 && kept < 180);
}

/* ---- a part of a disk --------------------------------------------------------------- */

static int part_world(void *arg)
{
	uint8_t *p = rt_alloc_pages(4 * PAGE_SIZE);
	struct rt_disk *disk, *part;
	struct rt_disk_info info;
	struct rt_io ios[3];

	rt_sim_disk_create("d", 16 * PAGE_SIZE, NULL);
	CHECK(rt_disk_open(&disk, "d", 0, NULL) == 0);
	CHECK(rt_disk_part(&part, disk, 15 * PAGE_SIZE, 2 * PAGE_SIZE) == -EINVAL);
	CHECK(rt_disk_part(&part, disk, UINT64_MAX - 511, 512) == -EINVAL);
	CHECK(rt_disk_part(&part, disk, 4 * PAGE_SIZE, 2 * PAGE_SIZE) == 0);
	rt_disk_info(part, &info);
	CHECK(info.size_bytes == 2 * PAGE_SIZE);
	memset(p, 7, PAGE_SIZE);
	CHECK(rt_disk_write(part, PAGE_SIZE, p, PAGE_SIZE) == 0);
	CHECK(rt_disk_read(disk, 5 * PAGE_SIZE, p + PAGE_SIZE, PAGE_SIZE) == 0);
	CHECK(memcmp(p, p + PAGE_SIZE, PAGE_SIZE) == 0);
	CHECK(rt_disk_write(part, 2 * PAGE_SIZE, p, PAGE_SIZE) == -EINVAL);
	CHECK(rt_disk_write(part, PAGE_SIZE, p, 2 * PAGE_SIZE) == -EINVAL);
	CHECK(rt_disk_read(part, UINT64_MAX - 511, p, 512) == -EINVAL);
	CHECK(rt_disk_flush(part) == 0);
	/* what follows one that failed does not happen */
	rt_io_set(&ios[0], RT_IO_READ, 0, p, PAGE_SIZE);
	rt_io_set(&ios[1], RT_IO_READ, 2 * PAGE_SIZE, p, PAGE_SIZE);
	rt_io_set(&ios[2], RT_IO_FLUSH, 0, NULL, 0);
	ios[1].after_previous = ios[2].after_previous = true;
	rt_disk_submit(part, ios, 3);
	rt_disk_wait(part, ios, 3);
	CHECK(ios[0].result == 0 && ios[1].result == -EINVAL &&
		ios[2].result == -ECANCELED);
	rt_disk_close(part);
	CHECK(rt_disk_read(disk, 0, p, PAGE_SIZE) == 0);
	rt_disk_close(disk);
	rt_free_pages(p, 4 * PAGE_SIZE);
	return 0;
}

static void a_part_of_a_disk_is_nothing_but_that(void **state)
{
	assert_int_equal(rt_sim_run(1, NULL, part_world, NULL), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(requests_do_what_they_say),
		cmocka_unit_test(a_part_of_a_disk_is_nothing_but_that),
		cmocka_unit_test(completion_order_varies),
		cmocka_unit_test(cut_leaves_the_durable_or_something_newer),
		cmocka_unit_test(unflushed_write_is_lost_kept_or_torn),
		cmocka_unit_test(atomic_units_are_not_torn),
		cmocka_unit_test(flush_does_not_cover_what_is_in_flight),
		cmocka_unit_test(chosen_requests_fail),
		cmocka_unit_test(failed_flush_is_not_mended_by_the_next),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
