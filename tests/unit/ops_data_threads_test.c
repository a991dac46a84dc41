/* SPDX-License-Identifier: Apache-2.0 */
/* The crews of the file data tests on real threads and a real disk. */
#include "tests/unit/ops_account.h"
#include "tests/unit/ops_data_crews.h"

static void remove_file(struct fs *fs, const char *name)
{
	OK(ops_unlink(fs, DISK_INO_ROOT, nm(name)));
}

static void round_of_crews(struct fs *fs)
{
	char name[8];

	crew(fs, 6, fsx_run);
	for (unsigned i = 0; i < 6; i++) {
		snprintf(name, sizeof(name), "fsx%u", i);
		remove_file(fs, name);
	}
	set_size(fs, mk_file(fs, DISK_INO_ROOT, "shared"), 6 * SLICE);
	crew(fs, 6, slice_run);
	remove_file(fs, "shared");
	mk_file(fs, DISK_INO_ROOT, "churn");
	crew(fs, 6, churn_run);
	remove_file(fs, "churn");
	mk_file(fs, DISK_INO_ROOT, "log");
	crew(fs, 4, append_run);
	EQ(attr_of(fs, ino_of(fs, DISK_INO_ROOT, "log")).size, 4 * 40 * 900);
	remove_file(fs, "log");
	EQ(pages_over(fs), 0);
}

static void crews(const struct fs_test *disk)
{
	for (unsigned round = 0; round < 2; round++) {
		struct fs *fs = test_fs_open(disk);

		round_of_crews(fs);
		test_fs_close(fs);
	}
}

static void crews_on_threads_find_what_they_wrote(void **state)
{
	with_real_disk(
		(struct fs_test){.disk_bytes = 128 << 20, .cache_bytes = 2 << 20}, crews);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(crews_on_threads_find_what_they_wrote),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
