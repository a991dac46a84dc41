/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Allocations, reads and writes that fail, each in turn, while names change: the caller
 * gets an errno that says so, what is left is whole, and no memory is.
 */
#include <linux/falloc.h>
#include <sys/xattr.h>

#include "tests/unit/ops_crowd.h"

static const struct fs_test disk = {"disk", 64 << 20, 1 << 20, NULL};
static struct rt_sim_disk *sim_disk;
static unsigned failures; /* calls that ended with an error that only a fault explains */

static void expect(int rc, int other)
{
	if (rc >= 0 || rc == other)
		return;
	if (rc != -ENOMEM && rc != -EIO && rc != -EROFS) {
		fprintf(stderr, "unexpected error %d\n", rc);
		abort();
	}
	failures++;
}

/* A little of everything. The names' fates are uncertain once something has failed. */
static void mixture(struct fs *fs)
{
	static uint8_t value[20000];
	struct ops_setattr set = {
		.set = OPS_SET_MODE | OPS_SET_UID, .mode = 0700, .uid = 3};
	struct ops_file *file;
	struct ops_attr a, d = {.ino = ROOT}, o = {.ino = ROOT};
	struct list l = {.seen = NULL, .stop_at = 0};

	expect(ops_mkdir(fs, ROOT, nm("d"), &root_user, 0755, &d), 0);
	expect(ops_mkdir(fs, ROOT, nm("o"), &root_user, 0755, &o), 0);
	if (d.ino == ROOT || o.ino == ROOT)
		return;
	a.ino = d.ino;
	if (ops_create(fs, d.ino, nm("f"), &root_user, 0644, O_RDWR, &file, &a) == 0) {
		expect(try_link(fs, a.ino, o.ino, "g"), 0);
		ops_close(fs, file);
	}
	expect(ops_setxattr(fs, a.ino, &root_user, "user.big", value, sizeof(value), 0),
		0);
	expect(ops_setxattr(fs, a.ino, &root_user, "user.small", value, 100, 0), 0);
	expect(ops_getxattr(fs, a.ino, "user.big", value, sizeof(value)), -ENODATA);
	expect(try_symlink(fs, d.ino, "l", "target"), 0);
	expect(try_mkdir(fs, d.ino, "sub"), 0);
	expect(try_rename(fs, d.ino, "sub", o.ino, "moved", 0), -ENOENT);
	expect(try_rename(fs, d.ino, "l", o.ino, "moved", RENAME_EXCHANGE), -ENOENT);
	expect(ops_setattr(fs, a.ino, &root_user, &set, &a), 0);
	expect(ops_readdir(fs, d.ino, 0, OPS_READDIR_PLUS, collect, &l), 0);
	expect(try_rename(fs, d.ino, "f", o.ino, "g", 0), -ENOENT);
	expect(ops_unlink(fs, o.ino, nm("g")), -ENOENT);
	if (ops_tmpfile(fs, d.ino, &root_user, 0600, O_RDWR, &file, &a) == 0)
		ops_close(fs, file);
	expect(ops_removexattr(fs, a.ino, "user.big"), -ENOENT);
	expect(ops_unlink(fs, d.ino, nm("f")), -ENOENT);
}

static void work(void *arg)
{
	struct volume_options vo = {
		.background = true, .cache.cache_bytes = disk.cache_bytes};
	struct ops_options oo = {.atime = OPS_RELATIME};
	struct weft_error err = {0};
	struct rt_disk *d;
	struct volume *v;
	struct fs *fs;

	if (rt_disk_open(&d, disk.disk_name, 0, &err)) {
		failures++;
		return;
	}
	if (volume_open(&v, d, &vo, &err)) {
		failures++;
		return;
	}
	if (fs_open(&fs, v, &oo, &err) == 0) {
		mixture(fs);
		fs_close(fs);
	}
	if (volume_close(v))
		failures++;
}

/* The n-th chance of the kind fails; false when there were not so many. */
static bool one_fault(struct rt_sim_disk *blank, unsigned ops, uint64_t n)
{
	struct rt_sim_fail fail = {.ops = ops, .n = n};
	unsigned node = rt_sim_node_new("faulty");
	uint64_t allocs = rt_sim_allocs();
	bool had;
	struct fs *fs;

	failures = 0;
	sim_disk = rt_sim_disk_copy(disk.disk_name, blank);
	HOLDS(sim_disk);
	if (ops)
		rt_sim_disk_fail(sim_disk, &fail);
	else
		rt_sim_alloc_fail(n);
	OK(rt_sim_spawn_on(node, "work", work, NULL));
	(void)rt_sim_node_wait(node);
	EQ(rt_sim_node_memory(node), 0);
	had = ops ? failures > 0 : rt_sim_allocs() - allocs >= n;
	rt_sim_node_kill(node);
	rt_sim_alloc_fail(0);
	rt_sim_disk_fail(sim_disk, &(struct rt_sim_fail){.ops = 0});
	fs = test_fs_open(&disk);
	check_tree(fs, 0);
	test_fs_close(fs);
	rt_sim_disk_destroy(sim_disk);
	return had;
}

static int alloc_faults(void *arg)
{
	struct rt_sim_disk *blank = test_sim_disk("blank", disk.disk_bytes, 4 << 20);
	uint64_t n = 1;

	while (one_fault(blank, 0, n))
		n++;
	HOLDS(n > 20);
	return 0;
}

static int disk_faults(void *arg)
{
	const unsigned *ops = (const unsigned *)arg;
	struct rt_sim_disk *blank = test_sim_disk("blank", disk.disk_bytes, 4 << 20);
	unsigned had = 0;

	for (uint64_t n = 1; n < 60; n++)
		had += one_fault(blank, *ops, n);
	HOLDS(had > 2);
	return 0;
}

static void an_allocation_that_fails_harms_nothing(void **state)
{
	OK(rt_sim_run(1, NULL, alloc_faults, NULL));
}

static void a_read_that_fails_harms_nothing(void **state)
{
	unsigned ops = RT_SIM_FAIL_READ;

	OK(rt_sim_run(2, NULL, disk_faults, &ops));
}

static void a_write_that_fails_harms_nothing(void **state)
{
	unsigned ops = RT_SIM_FAIL_WRITE;

	OK(rt_sim_run(3, NULL, disk_faults, &ops));
}

static void a_flush_that_fails_harms_nothing(void **state)
{
	unsigned ops = RT_SIM_FAIL_FLUSH;

	OK(rt_sim_run(4, NULL, disk_faults, &ops));
}

/* ---- fallocate ------------------------------------------------------------------- */

#define BLOCKS   80u /* every second one is written, the others are holes */
#define HOLD_MAX 64u /* runs that keep the volume full */
#define ROOM     30u /* pages that are left */

static uint64_t fault_at;
static bool fault_met;

static int page_out(void *arg, const struct iovec *iov, unsigned n, size_t total)
{
	EQ(n, 1);
	memcpy(arg, iov[0].iov_base, total);
	return (int)total;
}

/* Reserves all pages but ROOM; how many runs that are. */
static unsigned hold_space(struct space *sp, struct space_run *run)
{
	unsigned count = 0;

	while (space_reserve(sp, PID_NONE, DISK_EXTENT_MAX, 0, &run[count]) == 0)
		HOLDS(++count < HOLD_MAX);
	HOLDS(count > 0 && run[0].length > ROOM);
	run[0].length -= ROOM;
	space_unreserve(sp, &(struct space_run){.pid = run[0].pid + run[0].length,
				    .length = ROOM,
				    .incarnation = run[0].incarnation});
	return count;
}

static void fallocate_fails(struct fs *fs, struct ops_file *f)
{
	struct space *sp = fs->volume->space;
	struct space_run run[HOLD_MAX];
	unsigned count = hold_space(sp, run);
	uint64_t allocs = rt_sim_allocs();

	rt_sim_alloc_fail(fault_at);
	EQ(ops_fallocate(fs, f, &root_user, 0, 0, BLOCKS * PAGE_SIZE), -ENOSPC);
	rt_sim_alloc_fail(0);
	fault_met = rt_sim_allocs() - allocs >= fault_at;
	while (count > 0)
		space_unreserve(sp, &run[--count]);
}

/* What is zeroed before there is no space has changed the file. */
static void zero_range_fails(struct fs *fs)
{
	struct space *sp = fs->volume->space;
	struct space_run run[HOLD_MAX];
	struct ops_attr a, b;
	struct ops_file *f;
	uint8_t page[PAGE_SIZE];
	unsigned count;

	OK(ops_create(fs, ROOT, nm("z"), &root_user, 0644, O_RDWR, &f, &a));
	memset(page, 'z', sizeof(page));
	for (unsigned i = 0; i < 10; i++)
		EQ(ops_write(fs, f, &root_user, i * PAGE_SIZE, page, PAGE_SIZE, false),
			PAGE_SIZE);
	OK(ops_getattr(fs, a.ino, &a));
	rt_sleep_ns(1000);
	count = hold_space(sp, run);
	EQ(ops_fallocate(fs, f, &root_user, FALLOC_FL_ZERO_RANGE, 100, 60 * PAGE_SIZE),
		-ENOSPC);
	while (count > 0)
		space_unreserve(sp, &run[--count]);
	EQ(ops_read(fs, f, 0, PAGE_SIZE, page_out, page), PAGE_SIZE);
	EQ(page[99], 'z');
	EQ(page[100], 0);
	OK(ops_getattr(fs, a.ino, &b));
	EQ(b.inode.size, 10 * PAGE_SIZE);
	EQ(b.inode.blocks, 1);
	HOLDS(b.inode.mtime_ns > a.inode.mtime_ns);
	HOLDS(b.inode.ctime_ns == b.inode.mtime_ns);
	ops_close(fs, f);
}

static void a_range_that_is_zeroed_without_space_is_a_change(void **state)
{
	with_fs_sized(6, 64, 4, zero_range_fails);
}

static void fallocate_work(void *arg)
{
	struct fs *fs = test_fs_open(&disk);
	uint8_t in[PAGE_SIZE], out[PAGE_SIZE];
	struct ops_file *f;
	struct ops_attr a;

	OK(ops_create(fs, ROOT, nm("f"), &root_user, 0644, O_RDWR, &f, &a));
	for (uint64_t b = 0; b < BLOCKS; b += 2) {
		memset(in, (int)b + 1, sizeof(in));
		EQ(ops_write(fs, f, &root_user, b * PAGE_SIZE, in, PAGE_SIZE, false),
			PAGE_SIZE);
	}
	fallocate_fails(fs, f);
	for (uint64_t b = 0; b < BLOCKS; b += 2) {
		memset(in, (int)b + 1, sizeof(in));
		EQ(ops_read(fs, f, b * PAGE_SIZE, PAGE_SIZE, page_out, out), PAGE_SIZE);
		EQ(memcmp(in, out, PAGE_SIZE), 0);
	}
	ops_close(fs, f);
	test_fs_close(fs);
}

static int fallocate_faults(void *arg)
{
	struct rt_sim_disk *blank = test_sim_disk("blank", disk.disk_bytes, 4 << 20);

	fault_met = true;
	for (fault_at = 1; fault_met; fault_at++) {
		unsigned node = rt_sim_node_new("faulty");

		sim_disk = rt_sim_disk_copy(disk.disk_name, blank);
		HOLDS(sim_disk);
		fault_met = false;
		OK(rt_sim_spawn_on(node, "work", fallocate_work, NULL));
		(void)rt_sim_node_wait(node);
		rt_sim_node_kill(node);
		rt_sim_disk_destroy(sim_disk);
	}
	HOLDS(fault_at > 2);
	return 0;
}

static void a_fallocate_without_space_or_memory_harms_nothing(void **state)
{
	OK(rt_sim_run(5, NULL, fallocate_faults, NULL));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(an_allocation_that_fails_harms_nothing),
		cmocka_unit_test(a_read_that_fails_harms_nothing),
		cmocka_unit_test(a_write_that_fails_harms_nothing),
		cmocka_unit_test(a_flush_that_fails_harms_nothing),
		cmocka_unit_test(a_range_that_is_zeroed_without_space_is_a_change),
		cmocka_unit_test(a_fallocate_without_space_or_memory_harms_nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
