/* SPDX-License-Identifier: Apache-2.0 */
/* Owners, modes, and the setuid, setgid and sticky bits. */
#include "tests/mount/posix/posix.h"

#include <sys/sendfile.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>

static void chmod_is_the_owners(void **state)
{
	posix_file("f", "");
	must(chown("f", ALICE, ALICE));
	posix_act_as(BOB, BOB, 0);
	refuses(EPERM, chmod("f", 0777));
	posix_act_as(ALICE, ALICE, 0);
	for (mode_t mode = 0; mode < 01000; mode += 0111) {
		must(chmod("f", mode));
		assert_int_equal(posix_mode("f"), mode);
	}
	must(chmod("f", 01644)); /* sticky: Linux lets anyone set it */
	assert_int_equal(posix_mode("f"), 01644);
	as_root();
	must(symlink("f", "s"));
	must(chmod("s", 0600)); /* through the link */
	assert_int_equal(posix_mode("f"), 0600);
	assert_int_equal(posix_mode("s"), 0777);
	must(chmod("f", 07777));
	assert_int_equal(posix_mode("f"), 07777);
}

static void setgid_needs_the_group(void **state)
{
	posix_file("f", "");
	must(mkdir("d", 0755));
	must(chown("f", ALICE, GROUP));
	must(chown("d", ALICE, GROUP));
	posix_act_as(ALICE, ALICE, 0);
	must(chmod("f", 02755));
	assert_int_equal(posix_mode("f"), 0755);
	must(chmod("d", 02755));
	assert_int_equal(posix_mode("d"), 0755);
	posix_act_as(ALICE, ALICE, GROUP);
	must(chmod("f", 06755));
	assert_int_equal(posix_mode("f"), 06755);
	must(chmod("d", 02755));
	assert_int_equal(posix_mode("d"), 02755);
}

static void chown_is_roots(void **state)
{
	struct stat st;

	posix_file("f", "");
	must(chown("f", ALICE, ALICE));
	posix_act_as(ALICE, ALICE, GROUP);
	refuses(EPERM, chown("f", BOB, (gid_t)-1));
	refuses(EPERM, chown("f", (uid_t)-1, BOB));
	must(chown("f", ALICE, GROUP));
	must(chown("f", (uid_t)-1, ALICE));
	must(chown("f", (uid_t)-1, (gid_t)-1));
	posix_act_as(BOB, BOB, 0);
	refuses(EPERM, chown("f", (uid_t)-1, BOB));
	refuses(EPERM, chown("f", ALICE, ALICE));
	as_root();
	must(symlink("f", "s"));
	must(lchown("s", BOB, GROUP));
	st = posix_stat("s");
	assert_int_equal(st.st_uid, BOB);
	assert_int_equal(st.st_gid, GROUP);
	assert_int_equal(posix_stat("f").st_uid, ALICE);
	must(chown("s", 4000000000u, 3000000000u));
	st = posix_stat("f");
	assert_int_equal(st.st_uid, 4000000000u);
	assert_int_equal(st.st_gid, 3000000000u);
}

static void chown_clears_setid(void **state)
{
	struct stat before;

	posix_file("f", "");
	must(mkdir("d", 0755));
	/* root, an executable: both go */
	must(chmod("f", 06755));
	must(chown("f", 1, 1));
	assert_int_equal(posix_mode("f"), 0755);
	/* setgid without group execution is kept by root (it marked mandatory locks) */
	must(chmod("f", 06745));
	must(chown("f", 2, 2));
	assert_int_equal(posix_mode("f"), 02745);
	/* a directory keeps its bits */
	must(chmod("d", 06755));
	must(chown("d", ALICE, GROUP));
	assert_int_equal(posix_mode("d"), 06755);
	/* the owner, in the group */
	must(chown("f", ALICE, ALICE));
	must(chmod("f", 06755));
	posix_act_as(ALICE, ALICE, GROUP);
	must(chown("f", (uid_t)-1, GROUP));
	assert_int_equal(posix_mode("f"), 0755);
	must(chmod("f", 06755));
	/* no change of owner at all, and still: the bits go, and the ctime moves */
	before = posix_stat("f");
	posix_tick();
	must(chown("f", (uid_t)-1, (gid_t)-1));
	assert_int_equal(posix_mode("f"), 0755);
	assert_true(posix_before(before.st_ctim, posix_stat("f").st_ctim));
	before = posix_stat("d");
	posix_tick();
	must(chown("d", (uid_t)-1, (gid_t)-1));
	assert_true(posix_before(before.st_ctim, posix_stat("d").st_ctim));
	assert_int_equal(posix_mode("d"), 06755);
}

/* Where the kernel opens files by itself, weft cannot tell this call from a part of a write. */
static void chown_nobody_or_nothing(int error, const char *f)
{
	int ret = chown(f, (uid_t)-1, (gid_t)-1);

	if (ret < 0)
		refuses(error, ret);
}

/* chown to no one of a file by this user: 0, or EPERM; what the mode is then. The ctime moves
 * with a success, and only then. */
static void chown_no_one(uid_t uid, int error, const char *f, mode_t before, mode_t after)
{
	struct stat then, now;

	must(chmod(f, before));
	then = posix_stat(f);
	posix_tick();
	posix_act_as(uid, uid, 0);
	if (error && posix_is_weft() && S_ISREG(then.st_mode))
		chown_nobody_or_nothing(error, f);
	else if (error)
		refuses(error, chown(f, (uid_t)-1, (gid_t)-1));
	else
		must(chown(f, (uid_t)-1, (gid_t)-1));
	as_root();
	now = posix_stat(f);
	if ((now.st_mode & 07777) != after)
		fail_msg("%s by %u: 0%o became 0%o", f, uid, before, now.st_mode & 07777);
	assert_int_equal(posix_before(then.st_ctim, now.st_ctim), error == 0);
}

static void chown_to_no_one_takes_the_bits_from_ones_own(void **state)
{
	static const struct {
		const char *name;
		mode_t type;
	} kinds[] = {{"f", S_IFREG}, {"p", S_IFIFO}, {"c", S_IFCHR}};

	for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
		const char *f = kinds[i].name;

		must(mknod(f, kinds[i].type | 0755, makedev(1, 3)));
		must(chown(f, ALICE, GROUP));
		chown_no_one(BOB, 0, f, 0755, 0755);
		chown_no_one(BOB, 0, f, 01755, 01755);
		chown_no_one(BOB, EPERM, f, 04644, 04644);
		chown_no_one(BOB, EPERM, f, 02755, 02755);
		chown_no_one(BOB, EPERM, f, 06777, 06777);
		chown_no_one(GROUP, EPERM, f, 06777, 06777);
		chown_no_one(ALICE, 0, f, 04644, 0644);
		chown_no_one(ALICE, 0, f, 06755, 0755);
		chown_no_one(0, 0, f, 06755, 0755);
		chown_no_one(0, 0, f, 06745, 02745);
	}
	must(mkdir("d", 0755));
	must(chown("d", ALICE, GROUP));
	chown_no_one(BOB, 0, "d", 06755, 06755);
	chown_no_one(ALICE, 0, "d", 06755, 06755);
	must(symlink("f", "s"));
	posix_act_as(BOB, BOB, 0);
	must(lchown("s", (uid_t)-1, (gid_t)-1));
}

static void chown_to_no_one_of_what_is_written_takes_nothing(void **state)
{
	int fd;

	posix_file("f", "content");
	must(chown("f", ALICE, GROUP));
	must(chmod("f", 06777));
	fd = posix_open("f", O_WRONLY);
	posix_act_as(BOB, BOB, 0);
	/* FUSE does not tell it from a write that follows, which must not fail */
	if (posix_is_weft())
		must(chown("f", (uid_t)-1, (gid_t)-1));
	else
		refuses(EPERM, chown("f", (uid_t)-1, (gid_t)-1));
	assert_int_equal(posix_mode("f"), 06777);
	must(write(fd, "x", 1));
	assert_int_equal(posix_mode("f"), 0777);
	as_root();
	must(close(fd));
}

/* Each way to change a file's bytes. */
static void change_by_write(const char *f)
{
	int fd = posix_open(f, O_WRONLY);

	must(write(fd, "x", 1));
	must(close(fd));
}

static void change_by_truncate(const char *f)
{
	must(truncate(f, 1));
}

static void change_by_ftruncate(const char *f)
{
	int fd = posix_open(f, O_WRONLY);

	must(ftruncate(fd, 100));
	must(close(fd));
}

static void change_by_open(const char *f)
{
	must(close(posix_open(f, O_WRONLY | O_TRUNC)));
}

static void change_by_fallocate(const char *f)
{
	int fd = posix_open(f, O_WRONLY);

	must(fallocate(fd, 0, 0, 10000));
	must(close(fd));
}

static void change_by_copy(const char *f)
{
	int in = posix_open("/etc/passwd", O_RDONLY);
	int fd = posix_open(f, O_WRONLY);

	must(sendfile(fd, in, NULL, 10));
	must(close(in));
	must(close(fd));
}

static void change_by_copy_range(const char *f)
{
	int in = posix_open("source", O_RDONLY);
	int fd = posix_open(f, O_WRONLY);

	must(copy_file_range(in, NULL, fd, NULL, 10, 0));
	must(close(in));
	must(close(fd));
}

static void change_by_append(const char *f)
{
	int fd = posix_open(f, O_WRONLY | O_APPEND);

	must(pwrite(fd, "xyz", 3, 0));
	must(close(fd));
}

static void change_by_direct(const char *f)
{
	int fd = posix_open(f, O_WRONLY | O_DIRECT);
	void *buf;

	buf = posix_aligned(4096);
	memset(buf, 'd', 4096);
	must(pwrite(fd, buf, 4096, 0));
	must(close(fd));
	free(buf);
}

static void changes_by_others_clear_setid(void **state)
{
	static const struct {
		void (*change)(const char *);
		const char *what;
	} ways[] = {
		{change_by_write, "write"},
		{change_by_truncate, "truncate"},
		{change_by_ftruncate, "ftruncate"},
		{change_by_open, "O_TRUNC"},
		{change_by_fallocate, "fallocate"},
		{change_by_copy, "sendfile"},
		{change_by_copy_range, "copy_file_range"},
		{change_by_append, "append"},
		{change_by_direct, "direct"},
	};
	static const struct {
		mode_t before, after;
	} modes[] = {{04777, 0777}, {02777, 0777}, {06777, 0777}, {06776, 0776},
		{01777, 01777}};

	posix_file("source", "0123456789abcdef");
	for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
		for (size_t m = 0; m < sizeof(modes) / sizeof(modes[0]); m++) {
			posix_file("f", "content");
			must(chown("f", ALICE, ALICE));
			must(chmod("f", modes[m].before));
			posix_act_as(BOB, BOB, 0);
			ways[i].change("f");
			as_root();
			if (posix_mode("f") != modes[m].after)
				fail_msg("%s: 0%o became 0%o", ways[i].what,
					modes[m].before, posix_mode("f"));
			/* root's changes keep them */
			must(chmod("f", modes[m].before));
			ways[i].change("f");
			if (posix_mode("f") != modes[m].before)
				fail_msg("%s by root: 0%o became 0%o", ways[i].what,
					modes[m].before, posix_mode("f"));
			must(unlink("f"));
		}
	}
	/*
	 * Setgid that is no group's to execute goes where the writer is not of the group.
	 * FUSE does not tell who is of which group.
	 */
	if (posix_is_weft())
		return;
	posix_file("f", "content");
	must(chown("f", ALICE, GROUP));
	must(chmod("f", 02666));
	posix_act_as(BOB, BOB, 0);
	change_by_write("f");
	assert_int_equal(posix_mode("f"), 0666);
}

static void capabilities_go_with_a_write(void **state)
{
	/* cap_net_raw=ep, revision 2 */
	const unsigned char cap[20] = {1, 0, 0, 2, 0, 0x20};
	char buf[32];

	posix_file("f", "x");
	must(setxattr("f", "security.capability", cap, sizeof(cap), 0));
	assert_int_equal(
		must(getxattr("f", "security.capability", buf, sizeof(buf))), 20);
	change_by_write("f");
	refuses(ENODATA, getxattr("f", "security.capability", buf, sizeof(buf)));
	must(setxattr("f", "security.capability", cap, sizeof(cap), 0));
	change_by_truncate("f");
	refuses(ENODATA, getxattr("f", "security.capability", buf, sizeof(buf)));
	must(setxattr("f", "security.capability", cap, sizeof(cap), 0));
	must(chown("f", ALICE, ALICE));
	refuses(ENODATA, getxattr("f", "security.capability", buf, sizeof(buf)));
}

static void setgid_directories_hand_down_their_group(void **state)
{
	must(mkdir("d", 0777));
	must(chown("d", ALICE, GROUP));
	must(chmod("d", 02777));
	posix_act_as(BOB, BOB, 0);
	posix_file("d/f", "");
	must(mkdir("d/d", 0755));
	must(mkfifo("d/p", 0644));
	must(symlink("x", "d/s"));
	assert_int_equal(posix_stat("d/f").st_gid, GROUP);
	assert_int_equal(posix_stat("d/d").st_gid, GROUP);
	assert_int_equal(posix_stat("d/p").st_gid, GROUP);
	assert_int_equal(posix_stat("d/s").st_gid, GROUP);
	assert_int_equal(posix_mode("d/d"), 02755);
	assert_int_equal(posix_mode("d/f"), 0644);
	/* setgid in the mode of a creation is for members */
	umask(0);
	must(close((int)must(open("d/g", O_CREAT | O_RDWR, 02775))));
	assert_int_equal(posix_mode("d/g"), 0775);
	must(mknod("d/n", S_IFREG | 02775, 0));
	assert_int_equal(posix_mode("d/n"), 0775);
	int fd = (int)must(open("d", O_TMPFILE | O_RDWR, 02775));
	assert_int_equal(posix_fstat(fd).st_mode & 07777, 0775);
	assert_int_equal(posix_fstat(fd).st_gid, GROUP);
	must(close(fd));
	posix_act_as(BOB, BOB, GROUP);
	must(close((int)must(open("d/h", O_CREAT | O_RDWR, 02775))));
	assert_int_equal(posix_mode("d/h"), 02775);
	/* elsewhere: the caller's own group */
	as_root();
	must(mkdir("e", 0777));
	must(chmod("e", 0777));
	posix_act_as(BOB, BOB, GROUP);
	posix_file("e/f", "");
	assert_int_equal(posix_stat("e/f").st_gid, BOB);
}

static void permission_bits_are_obeyed(void **state)
{
	char buf[8];

	must(mkdir("d", 0755));
	posix_file("d/f", "content");
	must(chown("d/f", ALICE, GROUP));
	for (unsigned bits = 0; bits < 8; bits++) {
		int read_error = bits & 4 ? 0 : EACCES,
		    write_error = bits & 2 ? 0 : EACCES;

		for (unsigned who = 0; who < 3; who++) {
			mode_t mode = bits << (who == 0 ? 6 : who == 1 ? 3 : 0);
			int fd;

			must(chmod("d/f", mode));
			posix_act_as(who == 0 ? ALICE : BOB, BOB, who == 1 ? GROUP : 0);
			fd = open("d/f", O_RDONLY);
			assert_int_equal(fd < 0 ? errno : 0, read_error);
			if (fd >= 0)
				must(close(fd));
			fd = open("d/f", O_WRONLY);
			assert_int_equal(fd < 0 ? errno : 0, write_error);
			if (fd >= 0)
				must(close(fd));
			assert_int_equal(truncate("d/f", 7) < 0 ? errno : 0, write_error);
			assert_int_equal(faccessat(AT_FDCWD, "d/f", X_OK, AT_EACCESS) < 0
						 ? errno
						 : 0,
				bits & 1 ? 0 : EACCES);
			as_root();
		}
	}
	/* search permission */
	must(chmod("d/f", 0666));
	must(chmod("d", 0644));
	posix_act_as(BOB, BOB, 0);
	refuses(EACCES, open("d/f", O_RDONLY));
	refuses(EACCES, faccessat(AT_FDCWD, "d/f", F_OK, AT_EACCESS));
	refuses(EACCES, readlink("d/f", buf, sizeof(buf)));
	refuses(EACCES, chdir("d"));
	must(close((int)must(open("d", O_RDONLY | O_DIRECTORY))));
	as_root();
	must(chmod("d", 0711));
	posix_act_as(BOB, BOB, 0);
	must(close((int)must(open("d/f", O_RDONLY))));
	refuses(EACCES, open("d", O_RDONLY | O_DIRECTORY));
	refuses(EACCES, open("d", O_TMPFILE | O_RDWR, 0600));
	refuses(EACCES, mknod("d/n", S_IFREG | 0644, 0));
}

static void noatime_is_the_owners(void **state)
{
	int fd;

	posix_file("f", "");
	must(chown("f", ALICE, ALICE));
	must(chmod("f", 0666));
	posix_act_as(BOB, BOB, 0);
	refuses(EPERM, open("f", O_RDONLY | O_NOATIME));
	posix_act_as(ALICE, ALICE, 0);
	fd = (int)must(open("f", O_RDONLY | O_NOATIME));
	must(close(fd));
}

static int run_it(void *path)
{
	execl(path, path, NULL);
	return errno;
}

static void programs_run_if_they_may(void **state)
{
	posix_file("script", "#!/bin/sh\nexit 7\n");
	assert_int_equal(posix_child(run_it, (void *)"./script"), EACCES);
	must(chmod("script", 0755));
	assert_int_equal(posix_child(run_it, (void *)"./script"), 7);
	posix_act_as(ALICE, ALICE, 0);
	assert_int_equal(posix_child(run_it, (void *)"./script"), 7);
	as_root();
	must(chmod("script", 0700));
	posix_act_as(ALICE, ALICE, 0);
	assert_int_equal(posix_child(run_it, (void *)"./script"), EACCES);
}

static const struct CMUnitTest tests[] = {
	posix_test(chmod_is_the_owners),
	posix_test(setgid_needs_the_group),
	posix_test(chown_is_roots),
	posix_test(chown_clears_setid),
	posix_test(chown_to_no_one_takes_the_bits_from_ones_own),
	posix_test(chown_to_no_one_of_what_is_written_takes_nothing),
	posix_test(changes_by_others_clear_setid),
	posix_test(capabilities_go_with_a_write),
	posix_test(setgid_directories_hand_down_their_group),
	posix_test(permission_bits_are_obeyed),
	posix_test(noatime_is_the_owners),
	posix_test(programs_run_if_they_may),
};
POSIX_TOPIC(permissions, tests);
