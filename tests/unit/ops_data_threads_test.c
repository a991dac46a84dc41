/* SPDX-License-Identifier: Apache-2.0 */
/* The crews of the file data tests on real threads and a real disk. */
#include <unistd.h>

#include "tests/unit/ops_account.h"
#include "tests/unit/ops_data_crews.h"

static struct fs_test disk = {NULL, 128 << 20, 2 << 20, NULL};

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

static void crews_on_threads_find_what_they_wrote(void **state)
{
	struct store_format format = {.checksum_kind = DISK_CHECKSUM_GMAC};
	char path[] = "/tmp/weft-ops-data-XXXXXX";
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
	for (unsigned round = 0; round < 2; round++) {
		fs = test_fs_open(&disk);
		round_of_crews(fs);
		test_fs_close(fs);
	}
	OK(unlink(path));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(crews_on_threads_find_what_they_wrote),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
