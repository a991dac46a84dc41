/* SPDX-License-Identifier: Apache-2.0 */
/* Mappings, and that they and read and write see the same bytes. */
#include "tests/mount/posix/posix.h"

#include <linux/falloc.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

#define LEN (256u << 10)

static char *map(int fd, size_t len, int flags)
{
	char *p = mmap(NULL, len, PROT_READ | PROT_WRITE, flags, fd, 0);

	if (p == MAP_FAILED)
		fail_msg("mmap: %s", strerror(errno));
	return p;
}

static void shared_mappings_are_the_file(void **state)
{
	int fd = posix_open("f", O_CREAT | O_RDWR);
	char *p, *q;

	must(ftruncate(fd, LEN));
	p = map(fd, LEN, MAP_SHARED);
	q = map(fd, LEN, MAP_SHARED);
	memset(p + 5000, 'm', 10000);
	assert_memory_equal(p + 5000, q + 5000, 10000);
	posix_assert_bytes(fd, 5000, 10000, 'm');
	must(pwrite(fd, "written", 7, 6000));
	assert_memory_equal(p + 6000, "written", 7);
	must(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 8192, 4096));
	assert_int_equal(p[8192], 0);
	assert_int_equal(p[8191], 'm');
	assert_int_equal(p[12288], 'm');
	must(fallocate(fd, FALLOC_FL_ZERO_RANGE, 12288, 100));
	assert_int_equal(q[12300], 0);
	must(msync(p, LEN, MS_SYNC));
	must(msync(p, LEN, MS_ASYNC));
	must(munmap(p, LEN));
	must(munmap(q, LEN));
	must(close(fd));
	fd = posix_open("f", O_RDONLY);
	posix_assert_bytes(fd, 5000, 1000, 'm');
	posix_assert_bytes(fd, 8192, 4096, 0);
	must(close(fd));
}

static void private_mappings_are_not(void **state)
{
	int fd = posix_open("f", O_CREAT | O_RDWR);
	char *p;

	must(ftruncate(fd, LEN));
	p = map(fd, LEN, MAP_PRIVATE);
	p[100] = 'p';
	posix_assert_bytes(fd, 0, 4096, 0);
	must(pwrite(fd, "x", 1, 100));
	assert_int_equal(p[100], 'p');
	must(munmap(p, LEN));
	must(close(fd));
	fd = posix_open("f", O_RDONLY);
	p = map(fd, LEN, MAP_PRIVATE);
	p[100] = 'q';
	posix_assert_bytes(fd, 100, 1, 'x');
	must(munmap(p, LEN));
	refuses(EACCES,
		mmap(NULL, LEN, PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED ? -1 : 0);
	must(close(fd));
}

static void a_mapping_outlives_its_descriptor_and_its_name(void **state)
{
	int fd = posix_open("f", O_CREAT | O_RDWR);
	char *p;

	must(ftruncate(fd, LEN));
	p = map(fd, LEN, MAP_SHARED);
	must(close(fd));
	for (size_t i = 0; i < LEN; i += 1000)
		p[i] = 'o';
	fd = posix_open("f", O_RDONLY);
	posix_assert_bytes(fd, 4000, 1, 'o');
	must(close(fd));
	must(unlink("f"));
	must(msync(p, LEN, MS_SYNC));
	for (size_t i = 0; i < LEN; i += 1000)
		assert_int_equal(p[i]++, 'o');
	must(munmap(p, LEN));
}

static void mappings_and_direct_io_agree(void **state)
{
	int fd = posix_open("f", O_CREAT | O_RDWR), direct;
	void *aligned;
	char *p;

	aligned = posix_aligned(8192);
	must(ftruncate(fd, LEN));
	direct = posix_open("f", O_RDWR | O_DIRECT);
	p = map(fd, LEN, MAP_SHARED);
	memset(p, 'm', 8192);
	assert_int_equal(must(pread(direct, aligned, 8192, 0)), 8192);
	assert_int_equal(((char *)aligned)[8191], 'm');
	memset(aligned, 'd', 8192);
	assert_int_equal(must(pwrite(direct, aligned, 8192, 4096)), 8192);
	assert_int_equal(p[4095], 'm');
	assert_int_equal(p[4096], 'd');
	assert_int_equal(p[12287], 'd');
	/* a direct write whose bytes come from a mapping of the file itself */
	memset(p, 's', 4096);
	assert_int_equal(must(pwrite(direct, p, 4096, 65536)), 4096);
	posix_assert_bytes(fd, 65536, 4096, 's');
	must(munmap(p, LEN));
	must(close(fd));
	must(close(direct));
	free(aligned);
}

static void a_write_may_come_from_a_mapping_of_its_file(void **state)
{
	int fd = posix_open("f", O_CREAT | O_RDWR);
	char *p;

	must(ftruncate(fd, LEN));
	p = map(fd, LEN, MAP_SHARED);
	memset(p, 's', 20000);
	must(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED));
	assert_int_equal(must(pwrite(fd, p, 20000, 100000)), 20000);
	posix_assert_bytes(fd, 100000, 20000, 's');
	assert_int_equal(must(pread(fd, p + 200000, 20000, 100000)), 20000);
	posix_assert_bytes(fd, 200000, 20000, 's');
	must(munmap(p, LEN));
	must(close(fd));
}

static int touch_behind_the_end(void *arg)
{
	int fd = open("f", O_RDWR);
	volatile char *p = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	if (arg)
		p[65535] = 1;
	else
		return p[40000];
	return 0;
}

static void behind_the_end_is_sigbus(void **state)
{
	int fd;

	posix_file("f", "x");
	assert_int_equal(posix_child(touch_behind_the_end, NULL), 128 + SIGBUS);
	assert_int_equal(posix_child(touch_behind_the_end, (void *)1), 128 + SIGBUS);
	/* a truncation takes pages away that were mapped */
	fd = posix_open("f", O_RDWR);
	must(ftruncate(fd, 65536));
	char *p = map(fd, 65536, MAP_SHARED);

	memset(p, 'x', 65536);
	must(ftruncate(fd, 100));
	for (size_t i = 100; i < 4096; i++)
		assert_int_equal(p[i], 0);
	must(ftruncate(fd, 65536));
	for (size_t i = 100; i < 65536; i++)
		assert_int_equal(p[i], 0);
	posix_assert_bytes(fd, 0, 100, 'x');
	must(munmap(p, 65536));
	must(close(fd));
	assert_int_equal(posix_child(touch_behind_the_end, (void *)1), 0);
}

/* What is stored behind the end in the last page is never in the file. */
static void the_rest_of_the_last_page_stays_out(void **state)
{
	int fd = posix_open("f", O_CREAT | O_RDWR);
	char *p;

	must(pwrite(fd, "0123456789", 10, 0));
	p = map(fd, 4096, MAP_SHARED);
	memset(p + 10, 'z', 4086);
	must(msync(p, 4096, MS_SYNC));
	must(munmap(p, 4096));
	assert_int_equal(posix_fstat(fd).st_size, 10);
	must(close(fd));
	fd = posix_open("f", O_RDWR);
	must(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED));
	must(ftruncate(fd, 8192));
	posix_assert_bytes(fd, 10, 8182, 0);
	must(close(fd));
}

static void stores_move_the_mtime(void **state)
{
	int fd = posix_open("f", O_CREAT | O_RDWR);
	struct stat before, after;
	char *p;

	must(ftruncate(fd, 4096));
	before = posix_fstat(fd);
	p = map(fd, 4096, MAP_SHARED);
	posix_tick();
	p[0] = 'x';
	must(msync(p, 4096, MS_SYNC));
	after = posix_stat("f");
	assert_true(posix_before(before.st_mtim, after.st_mtim));
	assert_true(posix_before(before.st_ctim, after.st_ctim));
	must(munmap(p, 4096));
	must(close(fd));
}

static int child_store(void *arg)
{
	((volatile char *)arg)[4096] = 'c';
	return 0;
}

static void processes_share_a_mapping(void **state)
{
	int fd = posix_open("f", O_CREAT | O_RDWR);
	char *p;

	must(ftruncate(fd, LEN));
	p = map(fd, LEN, MAP_SHARED);
	assert_int_equal(posix_child(child_store, p), 0);
	assert_int_equal(p[4096], 'c');
	posix_assert_bytes(fd, 4096, 1, 'c');
	must(munmap(p, LEN));
	must(close(fd));
}

static const struct CMUnitTest tests[] = {
	posix_test(shared_mappings_are_the_file),
	posix_test(private_mappings_are_not),
	posix_test(a_mapping_outlives_its_descriptor_and_its_name),
	posix_test(mappings_and_direct_io_agree),
	posix_test(a_write_may_come_from_a_mapping_of_its_file),
	posix_test(behind_the_end_is_sigbus),
	posix_test(the_rest_of_the_last_page_stays_out),
	posix_test(stores_move_the_mtime),
	posix_test(processes_share_a_mapping),
};
POSIX_TOPIC(mappings, tests);
