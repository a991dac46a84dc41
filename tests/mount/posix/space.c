/* SPDX-License-Identifier: Apache-2.0 */
/* fallocate, holes, and what stat and statfs say of them. */
#include "tests/mount/posix/posix.h"

#include <linux/falloc.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>

#define PUNCH (FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE)
#define K     1024ll

static int filled(const char *path, size_t len, int byte)
{
	char *buf = malloc(len);
	int fd = posix_open(path, O_CREAT | O_TRUNC | O_RDWR);

	assert_non_null(buf);
	memset(buf, byte, len);
	assert_int_equal(must(write(fd, buf, len)), len);
	free(buf);
	return fd;
}

static void fallocate_takes_space(void **state)
{
	int fd = posix_open("f", O_CREAT | O_RDWR);

	must(fallocate(fd, 0, 0, 100 * K));
	assert_int_equal(posix_fstat(fd).st_size, 100 * K);
	assert_true(posix_fstat(fd).st_blocks >= 200);
	posix_assert_bytes(fd, 0, 100 * K, 0);
	must(fallocate(fd, FALLOC_FL_KEEP_SIZE, 100 * K, 100 * K));
	assert_int_equal(posix_fstat(fd).st_size, 100 * K);
	assert_true(posix_fstat(fd).st_blocks >= 400);
	must(pwrite(fd, "x", 1, 150 * K));
	posix_assert_bytes(fd, 100 * K, 50 * K, 0);
	posix_assert_bytes(fd, 150 * K, 1, 'x');
	must(fallocate(fd, 0, 0, 10)); /* what is there stays */
	posix_assert_bytes(fd, 150 * K, 1, 'x');
	/* space held behind the end goes with a truncation to the size */
	must(ftruncate(fd, 8 * K));
	assert_int_equal(posix_fstat(fd).st_blocks, 16);
	assert_int_equal(posix_fallocate(fd, 0, 300 * K), 0);
	assert_int_equal(posix_fstat(fd).st_size, 300 * K);
	must(close(fd));
}

static void fallocate_refuses(void **state)
{
	int fd = posix_open("f", O_CREAT | O_RDWR), r = posix_open("f", O_RDONLY),
	    dir = posix_open(".", O_RDONLY), pipes[2];

	must(pipe2(pipes, O_CLOEXEC));
	refuses(EINVAL, fallocate(fd, 0, 0, 0));
	refuses(EINVAL, fallocate(fd, 0, -1, 10));
	refuses(EINVAL, fallocate(fd, 0, 0, -1));
	refuses(EOPNOTSUPP, fallocate(fd, FALLOC_FL_PUNCH_HOLE, 0, 10));
	refuses(EOPNOTSUPP, fallocate(fd, 0x4000, 0, 10));
	refuses(EBADF, fallocate(r, 0, 0, 10));
	refuses(EBADF, fallocate(dir, 0, 0, 10));
	refuses(ESPIPE, fallocate(pipes[1], 0, 0, 10));
	refuses(EFBIG, fallocate(fd, 0, INT64_MAX, 1));
	refuses(EFBIG, fallocate(fd, 0, INT64_MAX - 5, 10));
	assert_int_equal(posix_fallocate(fd, 0, 0), EINVAL);
	assert_int_equal(posix_fallocate(r, 0, 10), EBADF);
	assert_int_equal(posix_fstat(fd).st_size, 0);
	must(close(fd));
	must(close(r));
	must(close(dir));
	must(close(pipes[0]));
	must(close(pipes[1]));
}

static void punched_holes_are_zeros(void **state)
{
	static const struct {
		off_t from, len;
	} holes[] = {{0, 1}, {0, 4096}, {1, 4095}, {100, 10}, {4096, 8192}, {5000, 20000},
		{4095, 2}, {60 * K, 10 * K}, {99 * K, 100 * K}, {200 * K, 10 * K},
		{0, 1 << 30}};

	for (size_t i = 0; i < sizeof(holes) / sizeof(holes[0]); i++) {
		int fd = filled("f", 100 * K, 'f');
		off_t end = holes[i].from + holes[i].len;

		must(fallocate(fd, PUNCH, holes[i].from, holes[i].len));
		assert_int_equal(posix_fstat(fd).st_size, 100 * K);
		if (holes[i].from > 0)
			posix_assert_bytes(fd, 0,
				(size_t)(holes[i].from < 100 * K ? holes[i].from
								 : 100 * K),
				'f');
		if (end > 100 * K)
			end = 100 * K;
		if (holes[i].from < end)
			posix_assert_bytes(
				fd, holes[i].from, (size_t)(end - holes[i].from), 0);
		if (end < 100 * K)
			posix_assert_bytes(fd, end, (size_t)(100 * K - end), 'f');
		must(close(fd));
	}
	int fd = filled("f", 100 * K, 'f');
	blkcnt_t before = posix_fstat(fd).st_blocks;

	must(fsync(fd));
	must(fallocate(fd, PUNCH, 10 * K, 41 * K));
	assert_true(posix_fstat(fd).st_blocks <= before - 72); /* 12K .. 48K at least */
	must(fallocate(fd, PUNCH, 0, 100 * K));
	assert_int_equal(posix_fstat(fd).st_blocks, 0);
	must(close(fd));
}

static void zeroed_ranges_are_zeros_and_keep_space(void **state)
{
	int fd = filled("f", 100 * K, 'f');

	must(fallocate(fd, FALLOC_FL_ZERO_RANGE, 5000, 50000));
	posix_assert_bytes(fd, 0, 5000, 'f');
	posix_assert_bytes(fd, 5000, 50000, 0);
	posix_assert_bytes(fd, 55000, 100 * K - 55000, 'f');
	assert_true(posix_fstat(fd).st_blocks >= 200);
	must(fallocate(fd, FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE, 99 * K, 50 * K));
	assert_int_equal(posix_fstat(fd).st_size, 100 * K);
	posix_assert_bytes(fd, 99 * K, K, 0);
	must(fallocate(fd, FALLOC_FL_ZERO_RANGE, 99 * K, 50 * K));
	assert_int_equal(posix_fstat(fd).st_size, 149 * K);
	posix_assert_bytes(fd, 99 * K, 50 * K, 0);
	must(close(fd));
}

static void data_and_holes_are_found(void **state)
{
	int fd = posix_open("f", O_CREAT | O_RDWR),
	    empty = posix_open("e", O_CREAT | O_RDWR);
	char page[4096];

	memset(page, 'p', sizeof(page));
	refuses(ENXIO, lseek(empty, 0, SEEK_DATA));
	refuses(ENXIO, lseek(empty, 0, SEEK_HOLE));
	must(pwrite(fd, page, 4096, 64 * K));
	must(pwrite(fd, page, 4096, 1024 * K));
	must(ftruncate(fd, 2048 * K));
	assert_int_equal(must(lseek(fd, 0, SEEK_DATA)), 64 * K);
	assert_int_equal(must(lseek(fd, 0, SEEK_HOLE)), 0);
	assert_int_equal(must(lseek(fd, 64 * K, SEEK_DATA)), 64 * K);
	assert_int_equal(must(lseek(fd, 64 * K + 5, SEEK_DATA)), 64 * K + 5);
	assert_int_equal(must(lseek(fd, 64 * K + 5, SEEK_HOLE)), 68 * K);
	assert_int_equal(must(lseek(fd, 68 * K, SEEK_DATA)), 1024 * K);
	refuses(ENXIO, lseek(fd, 1028 * K, SEEK_DATA));
	assert_int_equal(must(lseek(fd, 1028 * K, SEEK_HOLE)), 1028 * K);
	refuses(ENXIO, lseek(fd, 2048 * K, SEEK_DATA));
	refuses(ENXIO, lseek(fd, 2048 * K, SEEK_HOLE));
	refuses(ENXIO, lseek(fd, -1, SEEK_DATA));
	refuses(ENXIO, lseek(fd, -1, SEEK_HOLE));
	/* a file without holes has one at its end */
	must(pwrite(empty, "abc", 3, 0));
	assert_int_equal(must(lseek(empty, 0, SEEK_HOLE)), 3);
	assert_int_equal(must(lseek(empty, 1, SEEK_DATA)), 1);
	/* the offset moves with it */
	assert_int_equal(must(lseek(fd, 0, SEEK_DATA)), 64 * K);
	assert_int_equal(must(lseek(fd, 0, SEEK_CUR)), 64 * K);
	/* allocated and never written: may be a hole, reads as zeros */
	must(fallocate(fd, 0, 512 * K, 64 * K));
	must(pwrite(fd, page, 4096, 540 * K));
	assert_true(must(lseek(fd, 512 * K, SEEK_DATA)) <= 540 * K);
	must(fallocate(fd, PUNCH, 64 * K, 4096));
	assert_true(must(lseek(fd, 0, SEEK_DATA)) >= 512 * K);
	must(close(fd));
	must(close(empty));
}

static void statfs_follows_use(void **state)
{
	struct statfs a, b, c;
	struct statvfs v;
	int fd;

	must(statfs(".", &a));
	fd = filled("f", 20 << 20, 'f');
	must(fsync(fd));
	must(statfs(".", &b));
	assert_true((a.f_bfree - b.f_bfree) * a.f_bsize >= 20 << 20);
	assert_true((a.f_bfree - b.f_bfree) * a.f_bsize < 24 << 20);
	assert_true(b.f_bavail <= b.f_bfree && b.f_bfree < b.f_blocks);
	must(close(fd));
	must(unlink("f"));
	must(syncfs((fd = posix_open(".", O_RDONLY))));
	must(close(fd));
	must(statfs(".", &c));
	assert_true(c.f_bfree * c.f_bsize + (1 << 20) >= a.f_bfree * a.f_bsize);
	must(statvfs(".", &v));
	assert_int_equal(v.f_namemax, 255);
	assert_true(v.f_ffree > 0 && v.f_ffree < v.f_files);
	assert_int_equal(v.f_frsize, 4096);
}

static void blocks_are_counted(void **state)
{
	int fd = filled("f", 100 * K, 'f');

	must(fsync(fd));
	assert_int_equal(posix_fstat(fd).st_blocks, 200);
	assert_int_equal(posix_fstat(fd).st_blksize, 4096);
	must(ftruncate(fd, 50 * K));
	must(fsync(fd));
	assert_int_equal(posix_fstat(fd).st_blocks, 104);
	must(ftruncate(fd, 1 << 30));
	assert_int_equal(posix_fstat(fd).st_blocks, 104);
	must(ftruncate(fd, 0));
	assert_int_equal(posix_fstat(fd).st_blocks, 0);
	must(close(fd));
}

static const struct CMUnitTest tests[] = {
	posix_test(fallocate_takes_space),
	posix_test(fallocate_refuses),
	posix_test(punched_holes_are_zeros),
	posix_test(zeroed_ranges_are_zeros_and_keep_space),
	posix_test(data_and_holes_are_found),
	posix_test(statfs_follows_use),
	posix_test(blocks_are_counted),
};
POSIX_TOPIC(space, tests);
