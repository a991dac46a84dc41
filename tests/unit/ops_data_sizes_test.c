/* SPDX-License-Identifier: Apache-2.0 */
/* Files as large as they can be: where they end, nothing overflows and nothing is lost. And which sizes a
 * kernel is told of files that are cut meanwhile. */
#include "tests/unit/ops_account.h"
#include "tests/unit/ops_data_crews.h"

#include <linux/falloc.h>
#include <unistd.h>

static void do_largest(struct fs *fs)
{
	const uint64_t end = INT64_MAX, last = end - 1;
	const int punch = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
	uint8_t in[2] = {1, 2}, out[PAGE_SIZE];
	struct ops_file *f, *g;
	uint64_t ino, other;

	f = make_file(fs, "a", &ino);
	g = make_file(fs, "b", &other);
	set_size(fs, ino, end);
	EQ(ops_lseek(fs, f, 0, SEEK_DATA, NULL, NULL), -ENXIO);
	EQ(ops_lseek(fs, f, last, SEEK_HOLE, NULL, NULL), last);
	EQ(read_at(fs, f, last, out, sizeof(out)), 1);
	EQ(out[0], 0);
	EQ(ops_write(fs, f, &root_user, last, in, 2, false), 1);
	EQ(ops_write(fs, f, &root_user, end, in, 2, false), -EFBIG);
	EQ(ops_write(fs, f, &root_user, 0, in, 2, true), -EFBIG);
	EQ(read_at(fs, f, last - 1, out, sizeof(out)), 2);
	HOLDS(out[0] == 0 && out[1] == 1);
	EQ(ops_lseek(fs, f, 0, SEEK_DATA, NULL, NULL),
		ALIGN_UP(end, (uint64_t)PAGE_SIZE) - PAGE_SIZE);
	EQ(ops_lseek(fs, f, last, SEEK_HOLE, NULL, NULL), end);
	EQ(ops_lseek(fs, f, end, SEEK_HOLE, NULL, NULL), -ENXIO);
	EQ(ops_copy_range(fs, f, last, g, last - 5, 100, &root_user), 1);
	EQ(ops_copy_range(fs, f, last, g, last, 100, &root_user), 1);
	EQ(ops_copy_range(fs, f, last - 1, g, last, 100, &root_user), 1);
	EQ(ops_copy_range(fs, f, last, g, end, 1, &root_user), -EFBIG);
	EQ(attr_of(fs, other).size, end);
	EQ(attr_of(fs, other).blocks, 1);
	OK(ops_fsync(fs, ino, false));
	OK(ops_fallocate(fs, f, &root_user, punch, last, 1));
	EQ(read_at(fs, f, last, out, 1), 1);
	EQ(out[0], 0);
	OK(ops_fallocate(fs, f, &root_user, punch, 0, end));
	EQ(attr_of(fs, ino).blocks, 1); /* a page of which there is a byte too much */
	OK(ops_fallocate(fs, f, &root_user, 0, last, 1));
	EQ(ops_fallocate(fs, f, &root_user, 0, end, 1), -EFBIG);
	EQ(ops_fallocate(fs, f, &root_user, 0, 0, end), -ENOSPC);
	EQ(attr_of(fs, ino).blocks, 1);
	EQ(attr_of(fs, ino).size, end);
	set_size(fs, ino, 0);
	ops_close(fs, f);
	ops_close(fs, g);
	OK(ops_unlink(fs, DISK_INO_ROOT, nm("b")));
	EQ(pages_over(fs), 0);
}

static void the_largest_files_end_where_they_must(void **state)
{
	with_fs(do_largest);
}

/* ---- sizes that a kernel is told ------------------------------------------------------- */

struct cutting {
	struct fs *fs;
	uint64_t ino, size;
	_Atomic bool done;
};

static void cut_main(void *arg)
{
	struct cutting *c = arg;

	set_size(c->fs, c->ino, c->size);
	c->done = true;
}

static struct kcache_size size_told(struct fs *fs, uint64_t ino)
{
	struct kcache_size size = kcache_size_look(fs_sizes(fs), ino);

	size.size = attr_of(fs, ino).size;
	return size;
}

static void do_told(struct fs *fs)
{
	struct kcache_size size, before;
	struct cutting cut = {.fs = fs, .size = 10};
	struct rt_task *task;
	struct ops_file *f = make_file(fs, "a", &cut.ino);

	set_size(fs, cut.ino, 1000);
	size = size_told(fs, cut.ino);
	HOLDS(kcache_size_begin(fs_sizes(fs), &size));
	kcache_size_end(fs_sizes(fs), &size);
	HOLDS(!kcache_size_begin(fs_sizes(fs), &size)); /* the kernel has it */

	set_size(fs, cut.ino, 2000);
	before = size = size_told(fs, cut.ino);
	HOLDS(kcache_size_begin(fs_sizes(fs), &size));
	OK(rt_task_spawn(&task, "cut", cut_main, &cut));
	rt_sleep_ns(5000000);
	HOLDS(!cut.done); /* it is told, and the cut not answered before that */
	kcache_size_end(fs_sizes(fs), &size);
	rt_task_join(task);
	HOLDS(!kcache_size_begin(fs_sizes(fs), &before)); /* that was before the cut */

	set_size(fs, cut.ino, 1000);
	size = size_told(fs, cut.ino);
	HOLDS(kcache_size_begin(fs_sizes(fs), &size)); /* which took it from the kernel */
	cut.done = false;
	OK(rt_task_spawn(&task, "cut", cut_main, &cut));
	rt_task_join(task); /* it waits for nobody for long */
	kcache_size_end(fs_sizes(fs), &size);
	ops_close(fs, f);
}

static void no_size_from_before_a_cut_is_told(void **state)
{
	with_fs(do_told);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_largest_files_end_where_they_must),
		cmocka_unit_test(no_size_from_before_a_cut_is_told),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
