/* SPDX-License-Identifier: Apache-2.0 */
/* Which call changes which timestamp, and setting them. */
#include "tests/mount/posix/posix.h"

#include <sys/xattr.h>

#define A 1u
#define M 2u
#define C 4u

/* Which times of `after` are later than those of `before`; all others must be the same.
 */
static unsigned moved(const struct stat *before, const struct stat *after)
{
	unsigned which = 0;

	if (posix_before(before->st_atim, after->st_atim))
		which |= A;
	else if (!posix_same(before->st_atim, after->st_atim))
		fail_msg("atime went back");
	if (posix_before(before->st_mtim, after->st_mtim))
		which |= M;
	else if (!posix_same(before->st_mtim, after->st_mtim))
		fail_msg("mtime went back");
	if (posix_before(before->st_ctim, after->st_ctim))
		which |= C;
	else if (!posix_same(before->st_ctim, after->st_ctim))
		fail_msg("ctime went back");
	return which;
}

/* `call` moves these times of `path`. */
#define moves(path, which, call)                                                         \
	do {                                                                             \
		struct stat moves_before = posix_stat(path), moves_after;                \
		unsigned moves_got;                                                      \
		posix_tick();                                                            \
		call;                                                                    \
		moves_after = posix_stat(path);                                          \
		moves_got = moved(&moves_before, &moves_after);                          \
		if (moves_got != (which))                                                \
			fail_msg("%s moved %s%s%s of %s", #call,                         \
				moves_got &A ? "atime " : "",                            \
				moves_got &M ? "mtime " : "",                            \
				moves_got &C ? "ctime" : "", path);                      \
	} while (0)

static void names_change_their_directory(void **state)
{
	must(mkdir("d", 0755));
	posix_file("f", "");
	moves("d", M | C, posix_file("d/a", ""));
	moves("d", M | C, must(mkdir("d/b", 0755)));
	moves("d", M | C, must(symlink("x", "d/s")));
	moves("d", M | C, must(mkfifo("d/p", 0644)));
	moves("d", M | C, must(link("f", "d/f")));
	moves("f", C, must(unlink("d/f")));
	moves("f", C, must(link("f", "d/f")));
	moves("d", M | C, must(unlink("d/f")));
	moves("d", M | C, must(rmdir("d/b")));
	moves("d", M | C, must(rename("d/a", "d/c")));
	moves("d", 0, refuses(EEXIST, mkdir("d/c", 0755)));
	moves("d", 0, refuses(ENOENT, unlink("d/none")));
	moves("d", 0, posix_file("d/c", "content")); /* there already */
	moves("d", 0, must(chmod("d/c", 0600)));
	moves("d", 0, must(close((int)must(open("d", O_TMPFILE | O_RDWR, 0600)))));
}

static void attributes_change_the_ctime(void **state)
{
	posix_file("f", "content");
	must(mkdir("d", 0755));
	must(symlink("f", "s"));
	moves("f", C, must(chmod("f", 0600)));
	moves("f", C, must(chmod("f", 0600))); /* to what it was */
	moves("f", C, must(chown("f", ALICE, ALICE)));
	moves("f", C, must(setxattr("f", "user.x", "1", 1, 0)));
	moves("f", C, must(removexattr("f", "user.x")));
	moves("f", 0, refuses(ENODATA, removexattr("f", "user.x")));
	moves("s", C, must(lchown("s", ALICE, ALICE)));
	moves("d", C, must(chmod("d", 0700)));
	posix_act_as(BOB, BOB, 0);
	moves("f", 0, refuses(EPERM, chmod("f", 0644)));
	moves("f", 0, refuses(EPERM, chown("f", BOB, BOB)));
}

static void new_things_have_the_present(void **state)
{
	struct stat dir, st;
	const char *const names[] = {"f", "d", "s", "p"};

	posix_file("before", "");
	posix_tick();
	posix_file("f", "");
	must(mkdir("d", 0755));
	must(symlink("x", "s"));
	must(mkfifo("p", 0644));
	dir = posix_stat("before");
	for (size_t i = 0; i < 4; i++) {
		st = posix_stat(names[i]);
		assert_true(posix_before(dir.st_ctim, st.st_ctim));
		assert_true(posix_same(st.st_ctim, st.st_mtim));
		assert_true(posix_same(st.st_ctim, st.st_atim));
	}
}

static void data_changes_mtime_and_ctime(void **state)
{
	int fd, other;

	posix_file("f", "content");
	fd = posix_open("f", O_RDWR);
	moves("f", M | C, must(pwrite(fd, "x", 1, 0)));
	moves("f", M | C, must(pwrite(fd, "x", 1, 0)));
	moves("f", M | C, must(pwrite(fd, "x", 1, 100000)));
	moves("f", 0, must(pwrite(fd, "", 0, 0)));
	moves("f", M | C, must(ftruncate(fd, 10)));
	moves("f", M | C, must(ftruncate(fd, 10)));
	moves("f", M | C, must(ftruncate(fd, 100000)));
	moves("f", M | C, must(truncate("f", 20)));
	moves("f", M | C, must(truncate("f", 20000)));
	moves("f", M | C, must(fallocate(fd, 0, 30000, 10000)));
	moves("f", 0, must(fsync(fd)));
	moves("f", 0, must(fdatasync(fd)));
	moves("f", 0, must(lseek(fd, 0, SEEK_END)));
	moves("f", 0, must(close(posix_open("f", O_RDWR))));
	moves("f", M | C, must(close(posix_open("f", O_RDWR | O_TRUNC))));
	moves("f", M | C,
		must(close(posix_open("f", O_RDWR | O_TRUNC)))); /* empty already */
	posix_file("g", "content");
	other = posix_open("g", O_RDONLY);
	moves("f", M | C, must(copy_file_range(other, NULL, fd, NULL, 5, 0)));
	must(close(other));
	must(close(fd));
	moves("f", 0, refuses(EINVAL, truncate("f", -1)));
}

static void times_can_be_set(void **state)
{
	const struct timespec set[2] = {{1000000001, 123456789}, {1500000000, 987654321}};
	const struct timespec none[2] = {{0, UTIME_OMIT}, {0, UTIME_OMIT}};
	const struct timespec only_m[2] = {{0, UTIME_OMIT}, {-5, 999999999}};
	const struct timespec only_a[2] = {{4000000000ll, 1}, {0, UTIME_OMIT}};
	const struct timespec wrong[2] = {{0, 1000000000}, {0, 0}};
	const struct timespec now[2] = {{0, UTIME_NOW}, {0, UTIME_NOW}};
	struct stat st, before;
	char byte;
	int fd;

	posix_file("f", "");
	must(mkdir("d", 0755));
	must(symlink("f", "s"));
	before = posix_stat("f");
	posix_tick();
	must(utimensat(AT_FDCWD, "f", set, 0));
	st = posix_stat("f");
	assert_true(posix_same(st.st_atim, set[0]) && posix_same(st.st_mtim, set[1]));
	assert_true(posix_before(before.st_ctim, st.st_ctim));
	moves("f", 0, must(utimensat(AT_FDCWD, "f", none, 0)));
	must(utimensat(AT_FDCWD, "f", only_m, 0));
	st = posix_stat("f");
	assert_true(posix_same(st.st_atim, set[0]) && posix_same(st.st_mtim, only_m[1]));
	must(utimensat(AT_FDCWD, "f", only_a, 0));
	st = posix_stat("f");
	assert_true(
		posix_same(st.st_atim, only_a[0]) && posix_same(st.st_mtim, only_m[1]));
	refuses(EINVAL, utimensat(AT_FDCWD, "f", wrong, 0));
	must(utimensat(AT_FDCWD, "s", set, AT_SYMLINK_NOFOLLOW));
	assert_true(posix_same(posix_stat("s").st_mtim, set[1]));
	assert_true(posix_same(posix_stat("f").st_mtim, only_m[1]));
	must(utimensat(AT_FDCWD, "d", set, 0));
	assert_true(posix_same(posix_stat("d").st_mtim, set[1]));
	must(utimensat(AT_FDCWD, "f", now, 0));
	st = posix_stat("f");
	assert_true(posix_before(before.st_mtim, st.st_mtim));
	assert_true(posix_same(st.st_mtim, st.st_atim));
	/* an open file's explicit times outlast its writes and its close */
	fd = posix_open("f", O_RDWR);
	must(write(fd, "x", 1));
	must(write(fd, "x", 1));
	must(futimens(fd, set));
	assert_true(posix_same(posix_stat("f").st_mtim, set[1]));
	must(close(fd));
	st = posix_stat("f");
	assert_true(posix_same(st.st_atim, set[0]) && posix_same(st.st_mtim, set[1]));
	/* and so do those from before 1970, when it is read */
	must(utimensat(AT_FDCWD, "f", only_m, 0));
	fd = posix_open("f", O_RDONLY);
	assert_int_equal(must(read(fd, &byte, 1)), 1);
	assert_true(posix_same(posix_fstat(fd).st_mtim, only_m[1]));
	must(close(fd));
	assert_true(posix_same(posix_stat("f").st_mtim, only_m[1]));
}

static void times_have_owners(void **state)
{
	const struct timespec set[2] = {{1, 2}, {3, 4}};
	const struct timespec one_now[2] = {{0, UTIME_NOW}, {0, UTIME_OMIT}};
	const struct timespec none[2] = {{0, UTIME_OMIT}, {0, UTIME_OMIT}};

	posix_file("f", "");
	must(chown("f", ALICE, ALICE));
	must(chmod("f", 0644));
	posix_act_as(BOB, BOB, 0);
	refuses(EACCES, utimensat(AT_FDCWD, "f", NULL, 0));
	refuses(EPERM, utimensat(AT_FDCWD, "f", set, 0));
	must(utimensat(AT_FDCWD, "f", none, 0));
	as_root();
	must(chmod("f", 0666));
	posix_act_as(BOB, BOB, 0);
	must(utimensat(AT_FDCWD, "f", NULL, 0));
	refuses(EPERM, utimensat(AT_FDCWD, "f", set, 0));
	refuses(EPERM, utimensat(AT_FDCWD, "f", one_now, 0));
	posix_act_as(ALICE, ALICE, 0);
	must(utimensat(AT_FDCWD, "f", set, 0));
	assert_int_equal(posix_stat("f").st_mtim.tv_sec, 3);
}

static void read_it(const char *path)
{
	char buf[8];
	int fd = posix_open(path, O_RDONLY);

	must(read(fd, buf, sizeof(buf)));
	must(close(fd));
}

static void reading_moves_the_atime_when_it_is_due(void **state)
{
	const struct timespec old[2] = {{1000000000, 0}, {1500000000, 0}};
	char buf[8];
	struct dirent *e;
	DIR *d;
	int fd;

	posix_file("f", "content");
	must(utimensat(AT_FDCWD, "f", old, 0));
	moves("f", A, read_it("f")); /* whether the open counts is not said */
	moves("f", 0, read_it("f")); /* relatime: not again */
	must(utimensat(AT_FDCWD, "f", old, 0));
	fd = posix_open("f", O_RDONLY | O_NOATIME);
	moves("f", 0, must(read(fd, buf, sizeof(buf))));
	must(close(fd));
	must(mkdir("d", 0755));
	must(utimensat(AT_FDCWD, "d", old, 0));
	d = opendir("d");
	assert_non_null(d);
	moves("d", A, while ((e = readdir(d)) != NULL));
	closedir(d);
}

static const struct CMUnitTest tests[] = {
	posix_test(names_change_their_directory),
	posix_test(attributes_change_the_ctime),
	posix_test(new_things_have_the_present),
	posix_test(data_changes_mtime_and_ctime),
	posix_test(times_can_be_set),
	posix_test(times_have_owners),
	posix_test(reading_moves_the_atime_when_it_is_due),
};
POSIX_TOPIC(times, tests);
