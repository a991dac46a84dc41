/* SPDX-License-Identifier: Apache-2.0 */
/* The crowds of the directory tests on real threads and a real disk. */
#include "tests/unit/ops_crowd.h"

static void crowds(const struct fs_test *disk)
{
	struct fs *fs = test_fs_open(disk);

	jostle_begin(fs);
	move_dirs_begin(fs);
	for (unsigned round = 0; round < 15; round++) {
		crew(fs, 8, jostle);
		crew(fs, 6, move_dirs);
		check_tree(fs, 0);
	}
	test_fs_close(fs);
	fs = test_fs_open(disk);
	check_tree(fs, 0);
	test_fs_close(fs);
}

static void crowds_leave_everything_in_place(void **state)
{
	with_real_disk((struct fs_test){.disk_bytes = 256 << 20, .cache_bytes = 4 << 20},
		crowds);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(crowds_leave_everything_in_place),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
