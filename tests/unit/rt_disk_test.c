/* SPDX-License-Identifier: Apache-2.0 */
/* Disks of the real runtime: with O_DIRECT through io_uring, and through the page cache.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/rt/rt.h"
#include "tests/world/test_file.h"

#define TASKS      6
#define AREA_PAGES 64u
#define DISK_BYTES ((uint64_t)TASKS * AREA_PAGES * PAGE_SIZE)

struct fixture {
	struct test_file file;
	struct rt_disk *disk;
	uint8_t *memory; /* AREA_PAGES for each task */
	size_t memory_bytes;
};

static void set_up_in(void **state, const char *folder)
{
	struct fixture *f = calloc(1, sizeof(*f));

	assert_non_null(f);
	test_file_make(&f->file, folder, DISK_BYTES);
	assert_int_equal(
		rt_disk_open(&f->disk, f->file.path, RT_DISK_EXCLUSIVE, NULL), 0);
	f->memory_bytes = DISK_BYTES;
	f->memory = rt_alloc_pages(f->memory_bytes);
	assert_non_null(f->memory);
	*state = f;
}

static int set_up_direct(void **state)
{
	set_up_in(state, NULL);
	return 0;
}

static int set_up_registered(void **state)
{
	struct fixture *f;

	set_up_in(state, NULL);
	f = *state;
	rt_disk_register(f->disk, f->memory, f->memory_bytes);
	return 0;
}

static int set_up_buffered(void **state)
{
	set_up_in(state, "/dev/shm");
	return 0;
}

static int tear_down(void **state)
{
	struct fixture *f = *state;

	rt_free_pages(f->memory, f->memory_bytes);
	rt_disk_close(f->disk);
	test_file_drop(&f->file);
	free(f);
	return 0;
}

/* ---- opening ----------------------------------------------------------------------- */

static void expect_open_error(
	const char *path, unsigned flags, int code, const char *text)
{
	struct rt_disk *disk;
	struct weft_error err = {0};

	assert_int_equal(rt_disk_open(&disk, path, flags, &err), code);
	assert_int_equal(err.code, code);
	assert_non_null(strstr(err.text, path));
	assert_non_null(strstr(err.text, text));
}

static void open_says_what_is_wrong(void **state)
{
	struct fixture *f = *state;
	struct rt_disk_info info;

	expect_open_error("/tmp/weft-none/none", 0, -ENOENT, "does not exist");
	expect_open_error("/tmp", 0, -EISDIR, "is a directory");
	expect_open_error("/dev/null", 0, -EINVAL, "neither");
	expect_open_error(f->file.path, RT_DISK_EXCLUSIVE, -EBUSY, "in use");
	rt_disk_info(f->disk, &info);
	assert_int_equal(info.size_bytes, DISK_BYTES);
	assert_true(info.atomic_write_bytes >= 512);
	assert_false(info.is_block_device);
	assert_false(info.read_only);
}

/* A process takes the lock and ends; what it has left behind keeps it for longer than a lock of the
 * living is waited for. */
static void lock_that_an_ended_process_has_left_is_waited_for(void **state)
{
	struct fixture *f = *state;
	struct rt_disk *disk;
	siginfo_t ended;
	int status, end[2];
	pid_t pid;

	rt_disk_close(f->disk);
	assert_int_equal(pipe(end), 0);
	pid = fork();
	if (pid == 0) {
		int fd = open(f->file.path, O_RDWR);

		if (fd < 0 || flock(fd, LOCK_EX | LOCK_NB) < 0)
			_exit(1);
		if (fork() == 0) {
			sleep(2);
			close(fd);
			_exit(0);
		}
		_exit(0);
	}
	close(end[1]);
	/* not yet reaped, so that /proc/locks names it in any namespace */
	assert_int_equal(waitid(P_PID, (id_t)pid, &ended, WEXITED | WNOWAIT), 0);
	assert_int_equal(ended.si_status, 0);
	assert_int_equal(rt_disk_open(&disk, f->file.path, RT_DISK_EXCLUSIVE, NULL), 0);
	f->disk = disk;
	assert_int_equal(waitpid(pid, &status, 0), pid);
	/* the one that had it left */
	assert_int_equal(read(end[0], &status, 1), 0);
	close(end[0]);
}

static void read_only_disk_refuses_writes(void **state)
{
	struct fixture *f = *state;
	struct rt_disk *disk;
	struct rt_disk_info info;

	assert_int_equal(rt_disk_open(&disk, f->file.path, RT_DISK_READ_ONLY, NULL), 0);
	rt_disk_info(disk, &info);
	assert_true(info.read_only);
	assert_int_equal(rt_disk_read(disk, 0, f->memory, PAGE_SIZE), 0);
	assert_int_equal(rt_disk_write(disk, 0, f->memory, PAGE_SIZE), -EBADF);
	rt_disk_close(disk);
}

/* ---- requests ---------------------------------------------------------------------- */

static void what_is_written_is_read(void **state)
{
	struct fixture *f = *state;
	struct iovec iov[3];
	struct rt_io io;

	memset(f->memory, 'a', PAGE_SIZE);
	memset(f->memory + PAGE_SIZE, 'b', PAGE_SIZE);
	memset(f->memory + 2 * PAGE_SIZE, 'c', PAGE_SIZE);
	for (unsigned i = 0; i < 3; i++)
		iov[i] = (struct iovec){f->memory + (2 - i) * PAGE_SIZE, PAGE_SIZE};
	rt_io_set(&io, RT_IO_WRITE, PAGE_SIZE, NULL, 0);
	io.iov = iov;
	io.iov_count = 3;
	rt_disk_submit(f->disk, &io, 1);
	rt_disk_wait(f->disk, &io, 1);
	assert_int_equal(io.result, 0);
	assert_int_equal(rt_disk_flush(f->disk), 0);
	memset(f->memory, 0, 4 * PAGE_SIZE);
	assert_int_equal(rt_disk_read(f->disk, PAGE_SIZE, f->memory, 3 * PAGE_SIZE), 0);
	assert_int_equal(f->memory[0], 'c');
	assert_int_equal(f->memory[PAGE_SIZE], 'b');
	assert_int_equal(f->memory[3 * PAGE_SIZE - 1], 'a');
}

static void read_past_the_end_fails(void **state)
{
	struct fixture *f = *state;
	struct rt_io ios[2];

	assert_int_equal(rt_disk_read(f->disk, DISK_BYTES, f->memory, PAGE_SIZE), -EIO);
	rt_io_set(&ios[0], RT_IO_READ, DISK_BYTES - PAGE_SIZE, f->memory, 2 * PAGE_SIZE);
	rt_io_set(&ios[1], RT_IO_READ, DISK_BYTES - PAGE_SIZE, f->memory, PAGE_SIZE);
	rt_disk_run(f->disk, ios, 2);
	assert_int_equal(ios[0].result, -EIO);
	assert_int_equal(ios[1].result, 0);
}

/* A chain that fails in the middle, between two that do not, run and submitted. */
static void failed_request_cancels_its_chain_only(void **state)
{
	struct fixture *f = *state;

	for (unsigned round = 0; round < 20; round++) {
		struct rt_io ios[7];

		for (unsigned i = 0; i < 7; i++)
			rt_io_set(&ios[i], i == 6 ? RT_IO_FLUSH : RT_IO_READ,
				i * PAGE_SIZE, f->memory + i * PAGE_SIZE, PAGE_SIZE);
		ios[2].offset = DISK_BYTES;
		ios[2].after_previous = ios[3].after_previous = ios[4].after_previous =
			true;
		ios[6].after_previous = true;
		rt_disk_submit(f->disk, ios, 7);
		rt_disk_wait(f->disk, ios, 7);
		for (unsigned i = 0; i < 7; i++)
			assert_int_equal(ios[i].result, i == 2             ? -EIO
							: i == 3 || i == 4 ? -ECANCELED
									   : 0);
		rt_disk_run(f->disk, ios + 1, 4);
		for (unsigned i = 1; i < 5; i++)
			assert_int_equal(ios[i].result, i == 1   ? 0
							: i == 2 ? -EIO
								 : -ECANCELED);
	}
}

static void chain_runs_in_order(void **state)
{
	struct fixture *f = *state;
	struct rt_io ios[64];

	for (unsigned i = 0; i < 64; i += 2) {
		memset(f->memory + i * PAGE_SIZE, (int)i + 1, PAGE_SIZE);
		rt_io_set(&ios[i], RT_IO_WRITE, 0, f->memory + i * PAGE_SIZE, PAGE_SIZE);
		rt_io_set(&ios[i + 1], RT_IO_READ, 0, f->memory + (i + 1) * PAGE_SIZE,
			PAGE_SIZE);
		ios[i].after_previous = i > 0;
		ios[i + 1].after_previous = true;
	}
	rt_disk_submit(f->disk, ios, 64);
	rt_disk_wait(f->disk, ios, 64);
	for (unsigned i = 0; i < 64; i += 2) {
		assert_int_equal(ios[i].result, 0);
		assert_int_equal(ios[i + 1].result, 0);
		assert_memory_equal(f->memory + i * PAGE_SIZE,
			f->memory + (i + 1) * PAGE_SIZE, PAGE_SIZE);
	}
}

/* More than the queues hold, waited for only at the end. */
static void more_requests_than_the_queue_holds(void **state)
{
	struct fixture *f = *state;
	unsigned count = 6000;
	struct rt_io *ios = rt_alloc(count * sizeof(*ios));

	for (unsigned i = 0; i < count; i++)
		rt_io_set(&ios[i], RT_IO_READ, (i % AREA_PAGES) * PAGE_SIZE,
			f->memory + (i % AREA_PAGES) * PAGE_SIZE, PAGE_SIZE);
	rt_disk_submit(f->disk, ios, count);
	rt_disk_wait(f->disk, ios, count);
	for (unsigned i = 0; i < count; i++)
		assert_int_equal(ios[i].result, 0);
	rt_free(ios);
}

/* ---- many tasks ------------------------------------------------------------------ */

static struct fixture *shared;
static _Atomic uint32_t failures;

#define EXPECT(e)                                                                        \
	do {                                                                             \
		if (!(e))                                                                \
			atomic_fetch_add(&failures, 1);                                  \
	} while (0)

/* Writes and reads pages of its own area in every way there is, against what it knows. */
static void exercise_area(void *arg)
{
	uint64_t base = (uintptr_t)arg * AREA_PAGES * PAGE_SIZE;
	uint8_t *memory = shared->memory + base;
	uint8_t known[AREA_PAGES] = {0};

	for (unsigned round = 0; round < 150; round++) {
		unsigned n = 1 + (unsigned)(rt_random() % 12), first;
		struct rt_io ios[13];
		bool write = rt_random() % 2, flush = rt_random() % 8 == 0;

		first = (unsigned)(rt_random() % (AREA_PAGES - n));
		for (unsigned i = 0; i < n; i++) {
			unsigned p = first + i;

			if (write)
				known[p] = (uint8_t)rt_random();
			memset(memory + p * PAGE_SIZE, write ? known[p] : 0xee,
				PAGE_SIZE);
			rt_io_set(&ios[i], write ? RT_IO_WRITE : RT_IO_READ,
				base + p * PAGE_SIZE, memory + p * PAGE_SIZE, PAGE_SIZE);
		}
		if (flush) {
			rt_io_set(&ios[n], RT_IO_FLUSH, 0, NULL, 0);
			ios[n].after_previous = rt_random() % 2;
		}
		if (rt_random() % 2) {
			rt_disk_run(shared->disk, ios, n + flush);
		} else {
			rt_disk_submit(shared->disk, ios, n + flush);
			rt_disk_wait(shared->disk, ios, n + flush);
		}
		for (unsigned i = 0; i < n + flush; i++)
			EXPECT(ios[i].result == 0);
		for (unsigned i = 0; i < n; i++)
			EXPECT(memory[(first + i) * PAGE_SIZE] == known[first + i] &&
				memory[(first + i + 1) * PAGE_SIZE - 1] ==
					known[first + i]);
	}
}

static void run_tasks(struct fixture *f, void (*fn)(void *), unsigned n)
{
	struct rt_task *tasks[TASKS];

	shared = f;
	failures = 0;
	for (unsigned i = 0; i < n; i++)
		assert_int_equal(
			rt_task_spawn(&tasks[i], "disk", fn, (void *)(uintptr_t)i), 0);
	for (unsigned i = 0; i < n; i++)
		rt_task_join(tasks[i]);
	assert_int_equal(failures, 0);
}

static void tasks_share_the_disk(void **state)
{
	run_tasks(*state, exercise_area, TASKS);
}

/* One task submits, all others wait for the same requests; then someone forgets to wait.
 */
static struct rt_io common[32];
static _Atomic uint32_t round_word, finished;

static void wait_for_common(void *arg)
{
	for (uint32_t round = 1; round <= 200; round++) {
		for (uint32_t v; (v = round_word) < round;)
			rt_wait(&round_word, v, RT_FOREVER);
		rt_disk_wait(shared->disk, common, ARRAY_SIZE(common));
		for (unsigned i = 0; i < ARRAY_SIZE(common); i++)
			EXPECT(common[i].result == 0);
		if (atomic_fetch_add(&finished, 1) + 1 == (TASKS - 1) * round)
			rt_wake(&finished, INT32_MAX);
	}
}

static void submit_or_wait_common(void *arg)
{
	if ((uintptr_t)arg) {
		wait_for_common(arg);
		return;
	}
	for (uint32_t round = 1; round <= 200; round++) {
		for (unsigned i = 0; i < ARRAY_SIZE(common); i++)
			rt_io_set(&common[i], RT_IO_READ, i * PAGE_SIZE,
				shared->memory + i * PAGE_SIZE, PAGE_SIZE);
		rt_disk_submit(shared->disk, common, ARRAY_SIZE(common));
		atomic_store(&round_word, round);
		rt_wake(&round_word, INT32_MAX);
		for (uint32_t v; (v = finished) < (TASKS - 1) * round;)
			rt_wait(&finished, v, RT_FOREVER);
	}
}

static void any_task_may_wait_for_any_request(void **state)
{
	round_word = finished = 0;
	run_tasks(*state, submit_or_wait_common, TASKS);
}

static void requests_nobody_waits_for_yet_are_not_lost(void **state)
{
	struct fixture *f = *state;
	struct rt_io early[16], late[16];

	for (unsigned round = 0; round < 50; round++) {
		for (unsigned i = 0; i < 16; i++) {
			rt_io_set(&early[i], RT_IO_READ, i * PAGE_SIZE,
				f->memory + i * PAGE_SIZE, PAGE_SIZE);
			rt_io_set(&late[i], RT_IO_READ, (i + 16) * PAGE_SIZE,
				f->memory + (i + 16) * PAGE_SIZE, PAGE_SIZE);
		}
		rt_disk_submit(f->disk, early, 16);
		rt_disk_submit(f->disk, late, 16);
		rt_disk_wait(f->disk, late, 16);
		rt_disk_wait(f->disk, early, 16);
		for (unsigned i = 0; i < 16; i++)
			assert_true(early[i].result == 0 && late[i].result == 0);
	}
}

/* Memory that was registered, freed and mapped anew must not be read through the old
 * pages. */
static void freed_memory_is_no_longer_registered(void **state)
{
	struct fixture *f = *state;

	for (unsigned round = 0; round < 100; round++) {
		uint8_t *p = rt_alloc_pages(16 * PAGE_SIZE);
		struct rt_io ios[2];

		rt_disk_register(f->disk, p, 16 * PAGE_SIZE);
		memset(p, (int)round, PAGE_SIZE);
		rt_io_set(&ios[0], RT_IO_WRITE, 0, p, PAGE_SIZE);
		rt_disk_submit(f->disk, ios, 1);
		rt_disk_wait(f->disk, ios, 1);
		rt_io_set(&ios[0], RT_IO_READ, 0, p + PAGE_SIZE, PAGE_SIZE);
		rt_disk_submit(f->disk, ios, 1);
		rt_disk_wait(f->disk, ios, 1);
		assert_int_equal(ios[0].result, 0);
		assert_memory_equal(p, p + PAGE_SIZE, PAGE_SIZE);
		rt_free_pages(p, 16 * PAGE_SIZE);
	}
}

/* libc's, for all of this program. */
static _Atomic int flushes_to_fail;

int fdatasync(int fd)
{
	if (atomic_load(&flushes_to_fail) > 0 &&
		atomic_fetch_sub(&flushes_to_fail, 1) > 0) {
		errno = EIO;
		return -1;
	}
	return fsync(fd);
}

/* The kernel reports a failure once; whoever flushes next must learn of it, too. */
static void a_failed_flush_is_remembered(void **state)
{
	struct fixture *f = *state;
	struct rt_disk *other;
	struct rt_io ios[3];
	struct test_file file;

	assert_int_equal(rt_disk_flush(f->disk), 0);
	atomic_store(&flushes_to_fail, 1);
	assert_int_equal(rt_disk_flush(f->disk), -EIO);
	assert_int_equal(rt_disk_flush(f->disk), -EIO);
	rt_io_set(&ios[0], RT_IO_WRITE, 0, f->memory, PAGE_SIZE);
	rt_io_set(&ios[1], RT_IO_FLUSH, 0, NULL, 0);
	ios[1].after_previous = true;
	rt_disk_run(f->disk, ios, 2);
	assert_int_equal(ios[0].result, 0);
	assert_int_equal(ios[1].result, -EIO);
	/* through the queue, if there is one */
	rt_io_set(&ios[0], RT_IO_READ, 0, f->memory, PAGE_SIZE);
	rt_io_set(&ios[1], RT_IO_READ, PAGE_SIZE, f->memory + PAGE_SIZE, PAGE_SIZE);
	rt_io_set(&ios[2], RT_IO_FLUSH, 0, NULL, 0);
	rt_disk_run(f->disk, ios, 3);
	assert_int_equal(ios[0].result, 0);
	assert_int_equal(ios[1].result, 0);
	assert_int_equal(ios[2].result, -EIO);
	/* other disks are not concerned */
	test_file_make(&file, NULL, 1 << 20);
	assert_int_equal(rt_disk_open(&other, file.path, 0, NULL), 0);
	assert_int_equal(rt_disk_flush(other), 0);
	rt_disk_close(other);
	test_file_drop(&file);
}

#define WITH(set_up, fn)                                                                 \
	{                                                                                \
#fn " (" #set_up ")", fn, set_up, tear_down, NULL                        \
	}
#define ALL(fn)                                                                          \
	WITH(set_up_direct, fn), WITH(set_up_registered, fn), WITH(set_up_buffered, fn)

int main(void)
{
	const struct CMUnitTest tests[] = {
		WITH(set_up_direct, open_says_what_is_wrong),
		WITH(set_up_direct, lock_that_an_ended_process_has_left_is_waited_for),
		ALL(read_only_disk_refuses_writes),
		ALL(what_is_written_is_read),
		ALL(read_past_the_end_fails),
		ALL(failed_request_cancels_its_chain_only),
		ALL(chain_runs_in_order),
		ALL(more_requests_than_the_queue_holds),
		ALL(tasks_share_the_disk),
		ALL(any_task_may_wait_for_any_request),
		ALL(requests_nobody_waits_for_yet_are_not_lost),
		ALL(freed_memory_is_no_longer_registered),
		ALL(a_failed_flush_is_remembered),
	};

	if (rt_real_start())
		return 1;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
