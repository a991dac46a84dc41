/* SPDX-License-Identifier: Apache-2.0 */
/* Reading, writing and their flags. */
#include "tests/mount/posix/posix.h"

#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/uio.h>
#include <sys/wait.h>

static char *pattern(size_t len, unsigned seed)
{
	char *p = malloc(len);

	assert_non_null(p);
	for (size_t i = 0; i < len; i++)
		p[i] = (char)((i * 31 + i / 4096 + seed) & 0xff);
	return p;
}

static void assert_file(const char *path, const char *want, size_t len)
{
	char *got = malloc(len + 1);
	int fd = posix_open(path, O_RDONLY);

	assert_non_null(got);
	assert_int_equal(must(pread(fd, got, len + 1, 0)), len);
	assert_memory_equal(got, want, len);
	must(close(fd));
	free(got);
}

/* An address that is not mapped; volatile, lest the compiler see it. */
static void *volatile nowhere = (void *)1;

static void offsets_behave(void **state)
{
	char buf[16];
	int fd = posix_open("f", O_CREAT | O_RDWR);

	assert_int_equal(must(write(fd, "hello", 5)), 5);
	assert_int_equal(must(lseek(fd, 0, SEEK_CUR)), 5);
	assert_int_equal(must(lseek(fd, 100, SEEK_END)), 105);
	assert_int_equal(must(read(fd, buf, 10)), 0);
	assert_int_equal(posix_fstat(fd).st_size, 5); /* seeking makes nothing longer */
	assert_int_equal(must(write(fd, "x", 1)), 1);
	assert_int_equal(posix_fstat(fd).st_size, 106);
	posix_assert_bytes(fd, 5, 100, 0);
	refuses(EINVAL, lseek(fd, -1, SEEK_SET));
	refuses(EINVAL, lseek(fd, -1000, SEEK_CUR));
	refuses(EINVAL, lseek(fd, 0, 77));
	refuses(EINVAL, pread(fd, buf, 1, -1));
	refuses(EINVAL, pwrite(fd, buf, 1, -1));
	assert_int_equal(must(pread(fd, buf, 10, 104)), 2);
	assert_int_equal(must(pread(fd, buf, 10, 106)), 0);
	assert_int_equal(must(pread(fd, buf, 10, INT64_MAX - 10)), 0);
	assert_int_equal(must(write(fd, "", 0)), 0);
	refuses(EFAULT, write(fd, nowhere, 10));
	refuses(EFAULT, pread(fd, nowhere, 10, 0));
	must(close(fd));
	refuses(EBADF, read(fd, buf, 1));
}

static void sizes_reach_the_limit(void **state)
{
	/* The last byte that a file may have lies before this. */
	const off_t max =
		posix_is_weft() ? INT64_MAX : 16ll * 1024 * 1024 * 1024 * 1024 - 4096;
	int fd = posix_open("f", O_CREAT | O_RDWR);
	char byte;

	must(ftruncate(fd, max));
	assert_int_equal(posix_fstat(fd).st_size, max);
	if (max < INT64_MAX) {
		refuses(EFBIG, ftruncate(fd, max + 1));
		refuses(EFBIG, truncate("f", INT64_MAX));
		refuses(EFBIG, pwrite(fd, "x", 1, max));
		assert_int_equal(must(pwrite(fd, "xyz", 3, max - 1)), 1);
	} else {
		refuses(EINVAL, pwrite(fd, "x", 1, max)); /* the kernel's own word */
		assert_int_equal(must(pwrite(fd, "x", 1, max - 1)), 1);
	}
	assert_int_equal(must(pread(fd, &byte, 1, max - 1)), 1);
	assert_int_equal(byte, 'x');
	assert_int_equal(must(pread(fd, &byte, 1, max / 2)), 1);
	assert_int_equal(byte, 0);
	assert_int_equal(posix_fstat(fd).st_size, max);
	assert_true(posix_fstat(fd).st_blocks < 64);
	assert_int_equal(must(lseek(fd, 0, SEEK_DATA)), (max - 1) & ~4095ll);
	refuses(EFBIG, fallocate(fd, 0, max, 1));
	refuses(EINVAL, truncate("f", -1));
	refuses(EINVAL, ftruncate(fd, -1));
	must(ftruncate(fd, 0));
	assert_int_equal(posix_fstat(fd).st_blocks, 0);
	must(close(fd));
}

static int write_past_limit(void *arg)
{
	const struct rlimit limit = {10000, 10000};
	int fd = open("f", O_RDWR);

	if (fd < 0 || setrlimit(RLIMIT_FSIZE, &limit) < 0)
		return 1;
	if (ftruncate(fd, 10001) == 0 || errno != EFBIG)
		return 2;
	if (pwrite(fd, "x", 1, 10000) >= 0 || errno != EFBIG)
		return 3;
	if (pwrite(fd, "xyz", 3, 9998) != 2)
		return 4;
	if (fallocate(fd, 0, 0, 20000) == 0 || errno != EFBIG)
		return 5;
	return 0;
}

static void the_size_limit_of_a_process_is_efbig(void **state)
{
	posix_file("f", "");
	assert_int_equal(posix_child(write_past_limit, NULL), 0);
	assert_int_equal(posix_stat("f").st_size, 10000);
}

static void truncation_leaves_zeros(void **state)
{
	static const off_t sizes[] = {
		0, 1, 100, 4095, 4096, 4097, 8192, 65535, 65537, 1000000};
	char *bytes = pattern(1000000, 1);
	int fd = posix_open("f", O_CREAT | O_RDWR);

	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		must(ftruncate(fd, 0));
		assert_int_equal(must(pwrite(fd, bytes, 1000000, 0)), 1000000);
		must(ftruncate(fd, sizes[i]));
		assert_file("f", bytes, (size_t)sizes[i]);
		must(ftruncate(fd, sizes[i] + 10000));
		posix_assert_bytes(fd, sizes[i], 10000, 0);
		/* and by a write behind the end */
		must(ftruncate(fd, sizes[i]));
		must(pwrite(fd, "x", 1, sizes[i] + 9999));
		posix_assert_bytes(fd, sizes[i], 9999, 0);
		assert_int_equal(posix_fstat(fd).st_size, sizes[i] + 10000);
	}
	must(close(fd));
	free(bytes);
}

static void a_file_opened_anew_has_its_bytes(void **state)
{
	char *bytes = pattern(3 << 20, 2);
	int fd = posix_open("f", O_CREAT | O_RDWR);

	for (size_t at = 0, n = 1; at < 3 << 20; at += n, n = n * 7 % 300007 + 1) {
		n = n < (3u << 20) - at ? n : (3u << 20) - at;
		assert_int_equal(must(write(fd, bytes + at, n)), n);
	}
	assert_file("f", bytes, 3 << 20);
	must(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED));
	assert_file("f", bytes, 3 << 20);
	must(close(fd));
	assert_file("f", bytes, 3 << 20);
	free(bytes);
}

#define APPENDERS 4
#define APPENDS   400

struct record {
	uint32_t who, which;
	char rest[92];
};

static int append_records(void *arg)
{
	struct record r = {.who = *(uint32_t *)arg};
	int fd = open("f", O_WRONLY | O_APPEND);

	memset(r.rest, (int)('a' + r.who), sizeof(r.rest));
	for (r.which = 0; r.which < APPENDS; r.which++)
		if (write(fd, &r, sizeof(r)) != sizeof(r))
			return 1;
	return 0;
}

static void appends_are_whole_and_in_order(void **state)
{
	uint32_t next[APPENDERS] = {0};
	pid_t children[APPENDERS];
	struct record r;
	int fd, status;

	posix_file("f", "");
	fflush(NULL);
	for (uint32_t i = 0; i < APPENDERS; i++) {
		children[i] = (pid_t)must(fork());
		if (children[i] == 0)
			_exit(append_records(&i));
	}
	for (size_t i = 0; i < APPENDERS; i++) {
		must(waitpid(children[i], &status, 0));
		assert_int_equal(status, 0);
	}
	assert_int_equal(posix_stat("f").st_size, APPENDERS * APPENDS * sizeof(r));
	fd = posix_open("f", O_RDONLY);
	while (must(read(fd, &r, sizeof(r))) == sizeof(r)) {
		assert_true(r.who < APPENDERS);
		assert_int_equal(r.which, next[r.who]++);
		for (size_t i = 0; i < sizeof(r.rest); i++)
			assert_int_equal(r.rest[i], 'a' + (int)r.who);
	}
	must(close(fd));
	/* O_APPEND writes at the end wherever the offset is; pwrite too, on Linux */
	fd = posix_open("f", O_WRONLY | O_APPEND | O_TRUNC);
	must(write(fd, "one", 3));
	must(lseek(fd, 0, SEEK_SET));
	must(write(fd, "two", 3));
	assert_int_equal(must(lseek(fd, 0, SEEK_CUR)), 6);
	must(pwrite(fd, "three", 5, 0));
	/* set and cleared while open */
	must(fcntl(fd, F_SETFL, 0));
	must(pwrite(fd, "O", 1, 0));
	must(fcntl(fd, F_SETFL, O_APPEND));
	must(write(fd, "!", 1));
	assert_file("f", "Onetwothree!", 12);
	must(close(fd));
}

static void direct_io_and_the_cache_see_the_same(void **state)
{
	char *bytes = pattern(1 << 20, 3);
	void *aligned;
	int direct, cached;

	aligned = posix_aligned(1 << 20);
	memcpy(aligned, bytes, 1 << 20);
	direct = posix_open("f", O_CREAT | O_RDWR | O_DIRECT);
	cached = posix_open("f", O_RDWR);
	assert_int_equal(must(pwrite(direct, aligned, 1 << 20, 0)), 1 << 20);
	assert_file("f", bytes, 1 << 20);
	must(pwrite(cached, "cached", 6, 5000));
	memset(aligned, 0, 1 << 20);
	assert_int_equal(must(pread(direct, aligned, 8192, 4096)), 8192);
	assert_memory_equal((char *)aligned + 904, "cached", 6);
	memset(aligned, 'd', 4096);
	assert_int_equal(must(pwrite(direct, aligned, 4096, 8192)), 4096);
	posix_assert_bytes(cached, 8192, 4096, 'd');
	/* reading past the end: what is there */
	must(ftruncate(cached, 10000));
	assert_int_equal(must(pread(direct, aligned, 65536, 8192)), 10000 - 8192);
	assert_int_equal(must(pread(direct, aligned, 4096, 12288)), 0);
	must(ftruncate(cached, 100));
	assert_int_equal(must(pread(direct, aligned, 4096, 0)), 100);
	/* unaligned: served, or refused with EINVAL */
	memset(aligned, 'u', 4096);
	if (pwrite(direct, (char *)aligned + 1, 511, 3) < 0)
		assert_int_equal(errno, EINVAL);
	else
		posix_assert_bytes(cached, 3, 511, 'u');
	must(close(direct));
	must(close(cached));
	free(aligned);
	free(bytes);
}

static void synchronous_writes_write(void **state)
{
	static const int flags[] = {
		O_SYNC, O_DSYNC, O_SYNC | O_APPEND, O_DSYNC | O_DIRECT};
	void *aligned;

	aligned = posix_aligned(8192);
	memset(aligned, 's', 8192);
	for (size_t i = 0; i < 4; i++) {
		int fd = posix_open("f", O_CREAT | O_RDWR | O_TRUNC | flags[i]);

		assert_int_equal(must(write(fd, aligned, 8192)), 8192);
		posix_assert_bytes(posix_open("f", O_RDONLY), 0, 8192, 's');
		must(close(fd));
	}
	int fd = posix_open("f", O_RDWR | O_TRUNC);
	struct iovec iov = {aligned, 100};

	assert_int_equal(must(pwritev2(fd, &iov, 1, 0, RWF_DSYNC)), 100);
	assert_int_equal(must(pwritev2(fd, &iov, 1, 100, RWF_SYNC)), 100);
	assert_int_equal(must(pwritev2(fd, &iov, 1, 0, RWF_APPEND)), 100);
	assert_int_equal(must(pwritev2(fd, &iov, 1, -1, 0)), 100); /* at the offset, 0 */
	assert_int_equal(posix_fstat(fd).st_size, 300);
	assert_int_equal(must(preadv2(fd, &iov, 1, 250, 0)), 50);
	refuses(EOPNOTSUPP, pwritev2(fd, &iov, 1, 0, 1 << 30));
	must(close(fd));
	free(aligned);
}

static void vectors_are_one_call(void **state)
{
	char a[5000], b[3], c[9000];
	const struct iovec out[3] = {{a, sizeof(a)}, {b, sizeof(b)}, {c, sizeof(c)}};
	struct iovec many[1025];
	char *all = malloc(1025 * 3);
	int fd = posix_open("f", O_CREAT | O_RDWR);

	memset(a, 'a', sizeof(a));
	memset(b, 'b', sizeof(b));
	memset(c, 'c', sizeof(c));
	assert_int_equal(must(writev(fd, out, 3)), 14003);
	posix_assert_bytes(fd, 0, 5000, 'a');
	posix_assert_bytes(fd, 5000, 3, 'b');
	posix_assert_bytes(fd, 5003, 9000, 'c');
	for (size_t i = 0; i < 1025; i++)
		many[i] = (struct iovec){all + i * 3, 3};
	assert_int_equal(must(preadv(fd, many, 1024, 4000)), 3072);
	assert_int_equal(all[999], 'a');
	assert_int_equal(all[1000], 'b');
	assert_int_equal(all[1003], 'c');
	refuses(EINVAL, readv(fd, many, 1025));
	must(close(fd));
	free(all);
}

static void bytes_copy_in_every_way(void **state)
{
	const size_t len = 700001;
	char *bytes = pattern(len, 4);
	loff_t in_at = 0, out_at = 0;
	int in = posix_open("in", O_CREAT | O_RDWR), out, pipes[2];
	ssize_t n;

	assert_int_equal(must(write(in, bytes, len)), len);
	out = posix_open("copied", O_CREAT | O_RDWR);
	while ((n = must(copy_file_range(in, &in_at, out, &out_at, len, 0))) > 0)
		;
	assert_int_equal(in_at, len);
	assert_file("copied", bytes, len);
	must(close(out));
	out = posix_open("sent", O_CREAT | O_RDWR);
	in_at = 0;
	while ((n = must(sendfile(out, in, &in_at, len))) > 0)
		;
	assert_file("sent", bytes, len);
	must(close(out));
	out = posix_open("spliced", O_CREAT | O_RDWR);
	must(pipe2(pipes, O_CLOEXEC));
	in_at = 0;
	while ((n = must(splice(in, &in_at, pipes[1], NULL, 65536, SPLICE_F_MOVE))) > 0)
		while (n > 0)
			n -= must(splice(
				pipes[0], NULL, out, NULL, (size_t)n, SPLICE_F_MOVE));
	assert_file("spliced", bytes, len);
	must(close(pipes[0]));
	must(close(pipes[1]));
	must(close(out));
	must(close(in));
	free(bytes);
}

static void copy_file_range_knows_its_cases(void **state)
{
	loff_t in_at, out_at;
	int f, g, r, a, d;

	posix_file("f", "0123456789");
	f = posix_open("f", O_RDWR);
	g = posix_open("g", O_CREAT | O_RDWR);
	r = posix_open("f", O_RDONLY);
	a = posix_open("g", O_WRONLY | O_APPEND);
	d = posix_open(".", O_RDONLY);
	in_at = 4, out_at = 100;
	assert_int_equal(must(copy_file_range(f, &in_at, g, &out_at, 100, 0)), 6);
	assert_int_equal(posix_fstat(g).st_size, 106);
	posix_assert_bytes(g, 0, 100, 0);
	in_at = 10, out_at = 0;
	assert_int_equal(must(copy_file_range(f, &in_at, g, &out_at, 100, 0)), 0);
	in_at = 0, out_at = 5;
	refuses(EINVAL, copy_file_range(f, &in_at, f, &out_at, 6, 0));
	assert_int_equal(must(copy_file_range(f, &in_at, f, &out_at, 5, 0)), 5);
	in_at = 0, out_at = 0;
	refuses(EBADF, copy_file_range(f, &in_at, r, &out_at, 5, 0));
	refuses(EBADF, copy_file_range(f, &in_at, a, &out_at, 5, 0));
	refuses(EISDIR, copy_file_range(f, &in_at, d, &out_at, 5, 0));
	refuses(EISDIR, copy_file_range(d, &in_at, g, &out_at, 5, 0));
	refuses(EINVAL, copy_file_range(f, &in_at, g, &out_at, 5, 1));
	out_at = INT64_MAX;
	refuses(EFBIG, copy_file_range(f, &in_at, g, &out_at, 5, 0));
	must(close(f));
	must(close(g));
	must(close(r));
	must(close(a));
	must(close(d));
}

static void reads_across_holes_are_zeros(void **state)
{
	int fd = posix_open("f", O_CREAT | O_RDWR);

	for (off_t at = 1 << 12; at < 1ll << 40; at *= 3)
		must(pwrite(fd, "data", 4, at));
	for (off_t at = 1 << 12; at < 1ll << 40; at *= 3) {
		posix_assert_bytes(fd, at - 1000, 1000, 0);
		posix_assert_bytes(fd, at, 1, 'd');
		if (at < 1ll << 38)
			posix_assert_bytes(fd, at + 4, 8000, 0);
	}
	assert_true(posix_fstat(fd).st_blocks * 512 < 1 << 20);
	must(close(fd));
}

static const struct CMUnitTest tests[] = {
	posix_test(offsets_behave),
	posix_test(sizes_reach_the_limit),
	posix_test(the_size_limit_of_a_process_is_efbig),
	posix_test(truncation_leaves_zeros),
	posix_test(a_file_opened_anew_has_its_bytes),
	posix_test(appends_are_whole_and_in_order),
	posix_test(direct_io_and_the_cache_see_the_same),
	posix_test(synchronous_writes_write),
	posix_test(vectors_are_one_call),
	posix_test(bytes_copy_in_every_way),
	posix_test(copy_file_range_knows_its_cases),
	posix_test(reads_across_holes_are_zeros),
};
POSIX_TOPIC(data, tests);
