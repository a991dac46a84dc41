/* SPDX-License-Identifier: Apache-2.0 */
/* The store under real threads and a real file: what ThreadSanitizer is to judge. */
#include "tests/unit/store_test.h"
#include "tests/world/test_file.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#define THREADS     4u
#define ROUNDS      300u
#define PAGES       6000u
#define STORE_BYTES (40 * MIB)

static struct test_file file;
static struct store *s;
static _Atomic uint64_t next_lsn = 1;
static _Atomic uint32_t running;
static uint64_t version[PAGES];

static int make_file(void **state)
{
	test_file_make(&file, NULL, STORE_BYTES);
	if (rt_real_start() != 0)
		return -1;
	store_make(file.path, NULL, NULL);
	return 0;
}

static int remove_file(void **state)
{
	test_file_drop(&file);
	return 0;
}

static void user(void *arg)
{
	unsigned task = (unsigned)(uintptr_t)arg;

	for (unsigned i = 0; i < ROUNDS; i++) {
		page_id pid = rt_random() % (PAGES / THREADS) * THREADS + task;

		if (i % 3 == 0) {
			CHECK(page_put(s, pid, 1, version[pid] + 1) == 0);
			version[pid]++;
			CHECK(page_install(s, pid, 1, version[pid],
				      atomic_fetch_add(&next_lsn, 1)) == 0);
		}
		struct store_read r = page_get(s, pid, 1);
		CHECK(r.result == (version[pid] ? 0 : STORE_ZEROS) &&
			r.version == version[pid]);
	}
	atomic_fetch_sub(&running, 1);
}

static void writer(void *arg)
{
	while (atomic_load(&running)) {
		CHECK(store_table_write(s, LSN_MAX) == 0);
		(void)store_table_oldest(s);
	}
}

static void threads_share_the_table_and_the_device(void **state)
{
	struct rt_task *users[THREADS], *w;

	s = store_open_named(file.path, 4 * PAGE_SIZE);
	running = THREADS;
	for (unsigned i = 0; i < THREADS; i++)
		assert_int_equal(
			rt_task_spawn(&users[i], "user", user, (void *)(uintptr_t)i), 0);
	assert_int_equal(rt_task_spawn(&w, "writer", writer, NULL), 0);
	for (unsigned i = 0; i < THREADS; i++)
		rt_task_join(users[i]);
	rt_task_join(w);
	assert_int_equal(store_table_write(s, LSN_MAX), 0);
	store_close_disk(s);
	s = store_open_named(file.path, 0);
	for (page_id pid = 0; pid < PAGES; pid++)
		assert_int_equal(page_get(s, pid, 1).version, version[pid]);
	store_close_disk(s);
}

static void summer(void *arg)
{
	uint64_t image[PAGE_SIZE / 8];
	uint64_t *expected = arg;

	for (uint64_t i = 0; i < 2000; i++) {
		image_fill(image, i % 16, 1, 1);
		CHECK(store_page_checksum(s, i % 16, 1, 1, image) == expected[i % 16]);
	}
}

static void checksums_are_the_same_from_every_thread(void **state)
{
	struct rt_task *tasks[THREADS];
	uint64_t expected[16], image[PAGE_SIZE / 8];

	s = store_open_named(file.path, 0);
	for (uint64_t i = 0; i < 16; i++) {
		image_fill(image, i, 1, 1);
		expected[i] = store_page_checksum(s, i, 1, 1, image);
	}
	for (unsigned i = 0; i < THREADS; i++)
		assert_int_equal(rt_task_spawn(&tasks[i], "sum", summer, expected), 0);
	for (unsigned i = 0; i < THREADS; i++)
		rt_task_join(tasks[i]);
	store_close_disk(s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(threads_share_the_table_and_the_device),
		cmocka_unit_test(checksums_are_the_same_from_every_thread),
	};

	weft_log_sink = quiet_log;
	return cmocka_run_group_tests(tests, make_file, remove_file);
}
