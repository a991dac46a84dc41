/* SPDX-License-Identifier: Apache-2.0 */
/* Mappings, and that they and read and write see the same bytes. */
#include "tests/mount/posix/posix.h"

#include <linux/aio_abi.h>
#include <linux/falloc.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
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

/* The file has data in [from, to) and nowhere else, by each descriptor. */
static void only_data(int fd, off_t from, off_t to)
{
	int other = posix_open("f", O_RDONLY);
	const int both[] = {fd, other};

	for (size_t i = 0; i < 2; i++) {
		assert_int_equal(must(lseek(both[i], 0, SEEK_HOLE)), from ? 0 : to);
		assert_int_equal(must(lseek(both[i], 0, SEEK_DATA)), from);
		assert_int_equal(must(lseek(both[i], from, SEEK_HOLE)), to);
		refuses(ENXIO, lseek(both[i], to, SEEK_DATA));
	}
	must(close(other));
}

static void is_copied(int fd, char byte)
{
	int to = posix_open("copy", O_CREAT | O_RDWR);
	char got = 0;

	for (off_t at = 0; at < LEN;)
		must(copy_file_range(fd, &at, to, &(off_t){at}, LEN - at, 0));
	must(pread(to, &got, 1, 70000));
	assert_int_equal(got, byte);
	must(close(to));
	must(unlink("copy"));
}

/* What a program has stored into a hole is data before it is written back. */
static void stores_into_holes_are_data(void **state)
{
	int fd = posix_open("f", O_CREAT | O_RDWR);
	char *p;

	must(ftruncate(fd, LEN));
	p = map(fd, LEN, MAP_SHARED);
	refuses(ENXIO, lseek(fd, 0, SEEK_DATA));
	p[70000] = 'a';
	only_data(fd, 69632, 73728);
	p[70000] = 'b'; /* which the kernel has written back once */
	only_data(fd, 69632, 73728);
	p[70000] = 'c';
	is_copied(fd, 'c');
	p[0] = 'd';
	assert_int_equal(must(lseek(fd, 0, SEEK_HOLE)), 4096);
	assert_int_equal(p[0], 'd');
	assert_int_equal(p[70000], 'c');
	must(munmap(p, LEN));
	must(close(fd));
}

/* So it is in allocated space; what else is data there a filesystem may say as it likes. */
static void stores_into_allocated_space_are_data(void **state)
{
	int fd = posix_open("f", O_CREAT | O_RDWR), other;
	char *p;

	must(fallocate(fd, 0, 0, LEN));
	p = map(fd, LEN, MAP_SHARED);
	p[70000] = 'a';
	other = posix_open("f", O_RDONLY);
	assert_int_equal(must(lseek(other, 69632, SEEK_DATA)), 69632);
	p[200000] = 'b';
	assert_int_equal(must(lseek(fd, 196608, SEEK_DATA)), 196608);
	is_copied(fd, 'a');
	must(munmap(p, LEN));
	must(close(fd));
	must(close(other));
}

/* Programs take a file without blocks for one without data. */
static void stores_into_a_file_without_blocks_give_it_some(void **state)
{
	int fd = posix_open("f", O_CREAT | O_RDWR);
	char *p;

	must(ftruncate(fd, LEN));
	p = map(fd, LEN, MAP_SHARED);
	must(close(fd)); /* the mapping stays */
	assert_int_equal(posix_stat("f").st_blocks, 0);
	p[70000] = 'a';
	assert_true(posix_stat("f").st_blocks > 0);
	must(munmap(p, LEN));
}

/* Looks at the first byte of the file all the time, through the mapping or by read(2). */
static pid_t start_looking(int fd, const char *p)
{
	pid_t pid = must(fork());
	char byte;

	if (pid)
		return pid;
	for (;;) {
		if (p)
			(void)*(volatile const char *)p;
		else if (pread(fd, &byte, 1, 0) != 1)
			_exit(1);
		else
			continue;
		(void)madvise((void *)(uintptr_t)p, 4096, MADV_DONTNEED);
	}
}

static bool write_async(aio_context_t context, int fd, const void *bytes)
{
	struct iocb c = {.aio_fildes = (unsigned)fd,
		.aio_lio_opcode = IOCB_CMD_PWRITE,
		.aio_buf = (uintptr_t)bytes,
		.aio_nbytes = 4096};
	struct iocb *one = &c;
	struct io_event event;

	return syscall(SYS_io_submit, context, 1, &one) == 1 &&
	       syscall(SYS_io_getevents, context, 1, 1, &event, NULL) == 1 &&
	       event.res == 4096;
}

/* The last round of so many after which all who look see what was written. */
static int rounds_seen(int direct, int fd, const volatile char *p, char *bytes)
{
	aio_context_t context = 0;
	int round, rounds = 1500;
	char byte;

	must(syscall(SYS_io_setup, 1, &context));
	for (round = 0; round < rounds; round++) {
		memset(bytes, round, 4096);
		if (!write_async(context, direct, bytes) || pread(fd, &byte, 1, 0) != 1 ||
			byte != (char)round || *p != (char)round)
			break;
	}
	must(syscall(SYS_io_destroy, context));
	return round == rounds ? -1 : round;
}

/* What was read into the cache while an asynchronous direct write was under way is not there when that has
 * ended. */
static void asynchronous_direct_writes_leave_nothing_old(void **state)
{
	int fd = posix_open("f", O_CREAT | O_RDWR), direct, failed;
	char *bytes = posix_aligned(4096), *p;

	must(pwrite(fd, bytes, 4096, 0));
	direct = posix_open("f", O_RDWR | O_DIRECT);
	p = map(direct, 4096, MAP_SHARED);
	for (int mapped = 0; mapped < 2; mapped++) {
		pid_t pid = start_looking(fd, mapped ? p : NULL);

		failed = rounds_seen(direct, fd, p, bytes);
		must(kill(pid, SIGKILL));
		must(waitpid(pid, NULL, 0));
		if (failed >= 0)
			fail_msg("round %d, %s: what was there before", failed,
				mapped ? "mapped" : "read");
	}
	must(munmap(p, 4096));
	must(close(fd));
	must(close(direct));
	free(bytes);
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
	posix_test(asynchronous_direct_writes_leave_nothing_old),
	posix_test(stores_into_holes_are_data),
	posix_test(stores_into_allocated_space_are_data),
	posix_test(stores_into_a_file_without_blocks_give_it_some),
};
POSIX_TOPIC(mappings, tests);
