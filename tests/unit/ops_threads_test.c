/* SPDX-License-Identifier: Apache-2.0 */
/* The crowds of the directory tests on real threads and a real disk. */
#include <unistd.h>

#include "tests/unit/ops_crowd.h"

static struct fs_test disk = {NULL, 256 << 20, 4 << 20, NULL};

static void crowds(void **state)
{
	struct store_format format = {.checksum_kind = DISK_CHECKSUM_GMAC};
	char path[] = "/tmp/weft-ops-threads-XXXXXX";
	struct weft_error err = {0};
	struct rt_disk *d;
	struct fs *fs;
	int fd = mkstemp(path);

	HOLDS(fd >= 0);
	OK(ftruncate(fd, (off_t)disk.disk_bytes));
	OK(close(fd));
	OK(rt_real_start());
	disk.disk_name = path;
	OK(rt_disk_open(&d, path, 0, &err));
	OK(volume_format(d, &format, 0, 0, &err));
	rt_disk_close(d);

	fs = test_fs_open(&disk);
	jostle_begin(fs);
	move_dirs_begin(fs);
	for (unsigned round = 0; round < 15; round++) {
		crew(fs, 8, jostle);
		crew(fs, 6, move_dirs);
		check_tree(fs, 0);
	}
	test_fs_close(fs);
	fs = test_fs_open(&disk);
	check_tree(fs, 0);
	test_fs_close(fs);
	OK(unlink(path));
}

static void crowds_leave_everything_in_place(void **state)
{
	crowds(state);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(crowds_leave_everything_in_place),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
