/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A store whose disk is full, as a sparse file on a filesystem without room: programs are told, and
 * the close of the volume says what of their data waits in the log and what is lost.
 */
#include <linux/falloc.h>

#include "tests/unit/ops_data_crews.h"

static const struct fs_test disk = {"disk", 64 << 20, 8 << 20, NULL};
static struct rt_sim_disk *sim_disk;

#define FULL_PAGES 1024u

/* Of the page images, and nothing else: log and table are written when the store is made. */
static void disk_fills(struct fs *fs, bool full)
{
	const struct disk_superblock *sb = store_superblock(fs->volume->store);

	rt_sim_disk_fail(
		sim_disk, &(struct rt_sim_fail){.ops = full ? RT_SIM_FAIL_WRITE : 0,
				  .error = -ENOSPC,
				  .n = 1,
				  .sticky = true,
				  .offset = sb->pages_offset,
				  .length = sb->page_count * (uint64_t)PAGE_SIZE});
}

static int64_t write_page(struct fs *fs, struct ops_file *f, unsigned page, uint8_t byte)
{
	static uint8_t bytes[PAGE_SIZE];

	memset(bytes, byte, sizeof(bytes));
	return ops_write(
		fs, f, &root_user, (uint64_t)page * PAGE_SIZE, bytes, PAGE_SIZE, false);
}

static unsigned pages_without(struct fs *fs, uint64_t ino, unsigned count, uint8_t byte)
{
	struct ops_file *f = open_ino(fs, ino, O_RDONLY);
	static uint8_t bytes[PAGE_SIZE];
	unsigned others = 0;

	for (unsigned i = 0; i < count; i++) {
		EQ(read_at(fs, f, (uint64_t)i * PAGE_SIZE, bytes, PAGE_SIZE), PAGE_SIZE);
		for (unsigned at = 1; at < PAGE_SIZE; at++)
			HOLDS(bytes[at] == bytes[0]);
		others += bytes[0] != byte;
	}
	ops_close(fs, f);
	return others;
}

static struct fs *disk_full_close(struct fs *fs, struct volume_rest *rest)
{
	struct volume *v = fs_volume(fs);

	HOLDS(cache_write_error(v->cache) == -ENOSPC);
	HOLDS(atomic_load(&cache_counters(v->cache)->write_failures) > 0);
	fs_close(fs);
	EQ(volume_close_rest(v, rest), -ENOSPC);
	rt_sim_disk_fail(sim_disk, &(struct rt_sim_fail){0});
	return test_fs_open(&disk);
}

/* New pages are refused as soon as it is known; what was taken before is in the log. */
static int new_pages_work(void *arg)
{
	struct volume_rest rest;
	unsigned count = 0;
	struct ops_file *f;
	struct fs *fs;
	uint64_t ino;
	int64_t rc;

	sim_disk = test_sim_disk(disk.disk_name, disk.disk_bytes, 0);
	fs = test_fs_open(&disk);
	ino = mk_file(fs, DISK_INO_ROOT, "f");
	f = open_ino(fs, ino, O_RDWR);
	disk_fills(fs, true);
	for (; (rc = write_page(fs, f, count, 'n')) == PAGE_SIZE; count++) {
		HOLDS(count < 20 * FULL_PAGES);
		rt_sleep_ns(100000000);
	}
	EQ(rc, -ENOSPC);
	HOLDS(count > 0);
	EQ(ops_fallocate(fs, f, &root_user, 0, (uint64_t)count * PAGE_SIZE, PAGE_SIZE),
		-ENOSPC);
	EQ(write_page(fs, f, 0, 'n'), PAGE_SIZE);
	ops_close(fs, f);
	fs = disk_full_close(fs, &rest);
	EQ(rest.lost, 0);
	HOLDS(rest.kept >= count);
	EQ(pages_without(fs, ino, count, 'n'), 0);
	test_fs_close(fs);
	return 0;
}

/* More than the log has room for: the close says how much is lost, at most. */
static int overwritten_work(void *arg)
{
	struct volume_rest rest;
	unsigned lost;
	struct ops_file *f;
	struct fs *fs;
	uint64_t ino;

	sim_disk = test_sim_disk(disk.disk_name, disk.disk_bytes, 2 << 20);
	fs = test_fs_open(&disk);
	ino = mk_file(fs, DISK_INO_ROOT, "f");
	f = open_ino(fs, ino, O_RDWR);
	for (unsigned i = 0; i < FULL_PAGES; i++)
		EQ(write_page(fs, f, i, 'a'), PAGE_SIZE);
	OK(volume_sync(fs->volume));
	disk_fills(fs, true);
	for (unsigned i = 0; i < FULL_PAGES; i++)
		EQ(write_page(fs, f, i, 'b'), PAGE_SIZE);
	EQ(ops_fsync(fs, ino, false), -ENOSPC);
	ops_close(fs, f);
	fs = disk_full_close(fs, &rest);
	HOLDS(rest.lost > 0 && rest.kept > 0);
	lost = pages_without(fs, ino, FULL_PAGES, 'b');
	HOLDS(lost > 0 && lost <= rest.lost);
	test_fs_close(fs);
	return 0;
}

/* The file that met the full disk is removed, and room is made: nothing dirty is left to be tried. */
static int again_work(void *arg)
{
	unsigned count = 0;
	struct ops_file *f;
	struct fs *fs;

	sim_disk = test_sim_disk(disk.disk_name, disk.disk_bytes, 0);
	fs = test_fs_open(&disk);
	f = open_ino(fs, mk_file(fs, DISK_INO_ROOT, "f"), O_RDWR);
	disk_fills(fs, true);
	while (write_page(fs, f, count++, 'n') == PAGE_SIZE)
		rt_sleep_ns(100000000);
	ops_close(fs, f);
	OK(ops_unlink(fs, DISK_INO_ROOT, nm("f")));
	disk_fills(fs, false);
	f = open_ino(fs, mk_file(fs, DISK_INO_ROOT, "g"), O_RDWR);
	for (count = 0; write_page(fs, f, 0, 'n') != PAGE_SIZE; count++) {
		HOLDS(count < 100);
		rt_sleep_ns(100000000);
	}
	ops_close(fs, f);
	OK(volume_sync(fs->volume));
	EQ(cache_write_error(fs->volume->cache), 0);
	test_fs_close(fs);
	return 0;
}

/* Changes that the log takes go on; when the log is full they wait, and go on when there is room. */
static void stays_full(void *arg)
{
	struct fs *fs = (struct fs *)arg;

	rt_sleep_ns(30000000000ull);
	disk_fills(fs, false);
}

static int log_fills_work(void *arg)
{
	struct rt_task *task;
	struct ops_file *f;
	struct fs *fs;
	char name[16];

	sim_disk = test_sim_disk(disk.disk_name, disk.disk_bytes, 2 << 20);
	fs = test_fs_open(&disk);
	f = open_ino(fs, mk_file(fs, DISK_INO_ROOT, "f"), O_RDWR);
	disk_fills(fs, true);
	OK(rt_task_spawn(&task, "room", stays_full, fs));
	while (write_page(fs, f, 0, 'n') != PAGE_SIZE)
		rt_sleep_ns(100000000);
	for (unsigned i = 0; i < 20000; i++) {
		struct ops_attr a;

		snprintf(name, sizeof(name), "n%u", i % 8);
		OK(ops_mknod(fs, DISK_INO_ROOT, nm(name), &root_user, S_IFREG | 0644, 0,
			0, &a));
		OK(ops_unlink(fs, DISK_INO_ROOT, nm(name)));
	}
	rt_task_join(task);
	ops_close(fs, f);
	OK(volume_sync(fs->volume));
	test_fs_close(fs);
	return 0;
}

static void room_that_is_made_is_used(void **state)
{
	for (uint64_t seed = 1; seed <= 3; seed++) {
		assert_int_equal(rt_sim_run(seed, NULL, again_work, NULL), 0);
		assert_int_equal(rt_sim_run(seed, NULL, log_fills_work, NULL), 0);
	}
}

static void a_full_store_says_so_and_its_close_what_is_lost(void **state)
{
	for (uint64_t seed = 1; seed <= 5; seed++) {
		assert_int_equal(rt_sim_run(seed, NULL, new_pages_work, NULL), 0);
		assert_int_equal(rt_sim_run(seed, NULL, overwritten_work, NULL), 0);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_full_store_says_so_and_its_close_what_is_lost),
		cmocka_unit_test(room_that_is_made_is_used),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
