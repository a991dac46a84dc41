/* SPDX-License-Identifier: Apache-2.0 */
/* rename, renameat2 and what they say. */
#include "tests/mount/posix/posix.h"

static int rename2(const char *from, const char *to, unsigned flags)
{
	return renameat2(AT_FDCWD, from, AT_FDCWD, to, flags);
}

static void a_file_replaces_a_file(void **state)
{
	struct stat from, to;
	int fd;

	posix_file("from", "from");
	posix_file("to", "to");
	from = posix_stat("from");
	fd = posix_open("to", O_RDONLY);
	must(rename("from", "to"));
	to = posix_stat("to");
	assert_int_equal(from.st_ino, to.st_ino);
	assert_int_equal(to.st_nlink, 1);
	refuses(ENOENT, access("from", F_OK));
	/* the replaced file lives on where it is open */
	assert_int_equal(posix_fstat(fd).st_nlink, 0);
	posix_assert_bytes(fd, 0, 1, 't');
	must(close(fd));
}

static void kinds_must_match(void **state)
{
	posix_file("file", "");
	must(mkdir("dir", 0755));
	must(mkdir("full", 0755));
	posix_file("full/x", "");
	must(symlink("dir", "link"));
	refuses(EISDIR, rename("file", "dir"));
	refuses(ENOTDIR, rename("dir", "file"));
	refuses(ENOTDIR, rename("dir", "link"));
	refuses(ENOTEMPTY, rename("dir", "full"));
	refuses(EISDIR, rename("link", "dir"));
	refuses(ENOTDIR, rename("file", "new/"));
	refuses(ENOTDIR, rename("file/", "new"));
	must(rename("full", "dir"));
	assert_true(S_ISREG(posix_stat("dir/x").st_mode));
	refuses(ENOENT, access("full", F_OK));
	must(rename("link", "file"));
	assert_true(S_ISLNK(posix_stat("file").st_mode));
	must(rename("dir", "moved/"));
	must(mkfifo("fifo", 0644));
	must(rename("fifo", "file"));
	assert_true(S_ISFIFO(posix_stat("file").st_mode));
}

static void a_directory_cannot_move_below_itself(void **state)
{
	must(mkdir("a", 0755));
	must(mkdir("a/b", 0755));
	must(mkdir("a/b/c", 0755));
	refuses(EINVAL, rename("a", "a/x"));
	refuses(EINVAL, rename("a", "a/b/x"));
	refuses(EINVAL, rename("a", "a/b/c"));
	refuses(ENOTEMPTY, rename("a/b/c", "a"));
	refuses(ENOTEMPTY, rename("a/b", "a"));
	refuses(EINVAL, rename2("a", "a/b/c", RENAME_EXCHANGE));
	refuses(EINVAL, rename2("a/b/c", "a", RENAME_EXCHANGE));
	refuses(EBUSY, rename("a/.", "x"));
	refuses(EBUSY, rename("a/..", "x"));
	refuses(EBUSY, rename("a", "a/."));
	must(rename("a/b", "b"));
	must(rename("a", "b/c/a"));
	posix_stat("b/c/a");
}

static void the_parent_follows_a_directory(void **state)
{
	struct stat x, up;

	must(mkdir("x", 0755));
	must(mkdir("y", 0755));
	must(mkdir("x/d", 0755));
	must(rename("x/d", "y/e"));
	up = posix_stat("y/e/..");
	x = posix_stat("y");
	assert_int_equal(up.st_ino, x.st_ino);
	must(rename2("x", "y/e", RENAME_EXCHANGE));
	up = posix_stat("y/e/..");
	assert_int_equal(up.st_ino, x.st_ino);
	up = posix_stat("x/..");
	assert_int_equal(up.st_ino, posix_stat(".").st_ino);
	assert_int_equal(posix_stat("y").st_nlink, 3);
}

static void hard_links_to_one_file_stay_as_they_are(void **state)
{
	struct stat before, after;

	posix_file("a", "x");
	must(link("a", "b"));
	before = posix_stat("a");
	must(rename("a", "b"));
	must(rename("a", "a"));
	after = posix_stat("a");
	assert_int_equal(after.st_nlink, 2);
	assert_true(posix_same(before.st_ctim, after.st_ctim));
	posix_stat("b");
	refuses(EEXIST, rename2("a", "b", RENAME_NOREPLACE));
	must(rename2("a", "b", RENAME_EXCHANGE));
}

static void noreplace_does_not_replace(void **state)
{
	posix_file("a", "a");
	posix_file("b", "b");
	must(mkdir("d", 0755));
	must(symlink("nowhere", "s"));
	refuses(EEXIST, rename2("a", "b", RENAME_NOREPLACE));
	refuses(EEXIST, rename2("a", "d", RENAME_NOREPLACE));
	refuses(EEXIST, rename2("d", "a", RENAME_NOREPLACE));
	refuses(EEXIST, rename2("a", "s", RENAME_NOREPLACE));
	refuses(ENOENT, rename2("absent", "x", RENAME_NOREPLACE));
	must(rename2("a", "c", RENAME_NOREPLACE));
	refuses(EINVAL, rename2("b", "c", RENAME_NOREPLACE | RENAME_EXCHANGE));
	refuses(EINVAL, rename2("b", "c", 1u << 10));
}

static void exchange_swaps_anything(void **state)
{
	const char *const names[] = {"file", "dir", "full", "link", "fifo"};
	struct stat a, b;

	posix_file("file", "x");
	must(mkdir("dir", 0755));
	must(mkdir("full", 0755));
	must(mkdir("full/sub", 0755));
	must(symlink("nowhere", "link"));
	must(mkfifo("fifo", 0644));
	must(mkdir("other", 0755));
	for (size_t i = 0; i < 5; i++) {
		for (size_t j = 0; j < 5; j++) {
			a = posix_stat(names[i]);
			b = posix_stat(names[j]);
			must(rename2(names[i], names[j], RENAME_EXCHANGE));
			assert_int_equal(posix_stat(names[i]).st_ino, b.st_ino);
			assert_int_equal(posix_stat(names[j]).st_ino, a.st_ino);
			must(rename2(names[i], names[j], RENAME_EXCHANGE));
		}
		posix_file("other/x", "x");
		a = posix_stat(names[i]);
		must(rename2(names[i], "other/x", RENAME_EXCHANGE));
		assert_int_equal(
			posix_stat("other").st_nlink, S_ISDIR(a.st_mode) ? 3 : 2);
		must(rename2(names[i], "other/x", RENAME_EXCHANGE));
		must(unlink("other/x"));
	}
	refuses(ENOENT, rename2("file", "absent", RENAME_EXCHANGE));
	refuses(ENOENT, rename2("absent", "file", RENAME_EXCHANGE));
	assert_int_equal(posix_stat("other").st_nlink, 2);
}

static void whiteouts_stay_behind(void **state)
{
	struct stat st;
	ino_t ino;

	must(mkdir("d", 0755));
	posix_file("d/f", "x");
	posix_file("d/g", "y");
	must(mkdir("d/sub", 0755));
	ino = posix_stat("d/f").st_ino;
	must(rename2("d/f", "h", RENAME_WHITEOUT));
	assert_int_equal(posix_stat("h").st_ino, ino);
	st = posix_stat("d/f");
	assert_int_equal(st.st_mode, S_IFCHR);
	assert_int_equal(st.st_rdev, 0);
	assert_int_equal(st.st_nlink, 1);
	refuses(EEXIST, rename2("d/g", "h", RENAME_WHITEOUT | RENAME_NOREPLACE));
	must(rename2("d/g", "h", RENAME_WHITEOUT));
	assert_int_equal(posix_stat("d").st_nlink, 3);
	must(rename2("d/sub", "d/other", RENAME_WHITEOUT));
	assert_int_equal(posix_stat("d").st_nlink, 3);
	assert_true(S_ISCHR(posix_stat("d/sub").st_mode));
	must(rename2("d/other", "sub", RENAME_WHITEOUT));
	assert_int_equal(posix_stat("d").st_nlink, 2);
	refuses(EINVAL, rename2("h", "sub", RENAME_WHITEOUT | RENAME_EXCHANGE));
	must(unlink("d/f"));
	must(unlink("d/g"));
	must(unlink("d/sub"));
	refuses(ENOTEMPTY, rmdir("d"));
	must(unlink("d/other"));
	must(rmdir("d"));
	/* it is the caller's, who need not be root */
	must(chmod(".", 0777));
	posix_act_as(ALICE, ALICE, 0);
	posix_file("mine", "");
	must(rename2("mine", "moved", RENAME_WHITEOUT));
	assert_int_equal(posix_stat("mine").st_uid, ALICE);
}

static void times_follow_a_rename(void **state)
{
	struct stat file, dir, other;

	must(mkdir("d", 0755));
	must(mkdir("e", 0755));
	posix_file("d/f", "x");
	file = posix_stat("d/f");
	dir = posix_stat("d");
	other = posix_stat("e");
	posix_tick();
	must(rename("d/f", "e/g"));
	assert_true(posix_before(dir.st_mtim, posix_stat("d").st_mtim));
	assert_true(posix_before(dir.st_ctim, posix_stat("d").st_ctim));
	assert_true(posix_before(other.st_mtim, posix_stat("e").st_mtim));
	assert_true(posix_before(file.st_ctim, posix_stat("e/g").st_ctim));
	assert_true(posix_same(file.st_mtim, posix_stat("e/g").st_mtim));
	assert_true(posix_same(file.st_atim, posix_stat("e/g").st_atim));
	/* what loses its name has its ctime changed */
	must(link("e/g", "h"));
	posix_file("x", "");
	file = posix_stat("h");
	posix_tick();
	must(rename("x", "e/g"));
	assert_true(posix_before(file.st_ctim, posix_stat("h").st_ctim));
	assert_int_equal(posix_stat("h").st_nlink, 1);
	/* a refusal leaves everything */
	must(mkdir("full", 0755));
	posix_file("full/x", "");
	dir = posix_stat(".");
	file = posix_stat("e");
	posix_tick();
	refuses(ENOTEMPTY, rename("e", "full"));
	assert_true(posix_same(dir.st_mtim, posix_stat(".").st_mtim));
	assert_true(posix_same(file.st_ctim, posix_stat("e").st_ctim));
}

static void sticky_directories_keep_names(void **state)
{
	must(mkdir("sticky", 0777));
	must(chmod("sticky", 01777));
	must(mkdir("open", 0777));
	must(chmod("open", 0777));
	posix_act_as(ALICE, ALICE, 0);
	posix_file("sticky/alice", "");
	posix_file("open/alice", "");
	must(mkdir("sticky/dir", 0777));
	posix_act_as(BOB, BOB, 0);
	posix_file("sticky/bob", "");
	refuses(EPERM, unlink("sticky/alice"));
	refuses(EPERM, rmdir("sticky/dir"));
	refuses(EPERM, rename("sticky/alice", "open/x"));
	refuses(EPERM, rename("sticky/bob", "sticky/alice"));
	refuses(EPERM, rename("open/alice", "sticky/alice"));
	refuses(EPERM, rename2("sticky/bob", "sticky/alice", RENAME_EXCHANGE));
	must(rename("open/alice", "open/bob"));
	must(rename("sticky/bob", "open/b"));
	posix_act_as(ALICE, ALICE, 0);
	must(unlink("sticky/alice"));
	must(rmdir("sticky/dir"));
	as_root();
	/* the owner of the sticky directory may */
	must(chown("sticky", BOB, BOB));
	posix_act_as(ALICE, ALICE, 0);
	posix_file("sticky/alice", "");
	posix_act_as(BOB, BOB, 0);
	must(unlink("sticky/alice"));
}

static void renames_need_write_permission_on_both_sides(void **state)
{
	must(mkdir("mine", 0755));
	must(mkdir("theirs", 0755));
	must(chown("mine", ALICE, ALICE));
	posix_file("theirs/f", "");
	must(mkdir("theirs/d", 0755));
	posix_act_as(ALICE, ALICE, 0);
	posix_file("mine/f", "");
	must(mkdir("mine/d", 0555));
	refuses(EACCES, rename("mine/f", "theirs/g"));
	refuses(EACCES, rename("theirs/f", "mine/g"));
	refuses(EACCES, link("mine/f", "theirs/g"));
	refuses(EACCES, unlink("theirs/f"));
	refuses(EACCES, rmdir("theirs/d"));
	refuses(EACCES, mkdir("theirs/e", 0755));
	refuses(EACCES, symlink("x", "theirs/e"));
	refuses(EACCES, mkfifo("theirs/e", 0644));
	refuses(EACCES, open("theirs/e", O_CREAT | O_RDWR, 0644));
	refuses(EACCES, open("theirs", O_TMPFILE | O_RDWR, 0644));
	must(mkdir("mine/e", 0755));
	/* a directory that changes its parent has its ".." written */
	refuses(EACCES, rename("mine/d", "mine/e/d"));
	must(rename("mine/d", "mine/d2"));
}

static const struct CMUnitTest tests[] = {
	posix_test(a_file_replaces_a_file),
	posix_test(kinds_must_match),
	posix_test(a_directory_cannot_move_below_itself),
	posix_test(the_parent_follows_a_directory),
	posix_test(hard_links_to_one_file_stay_as_they_are),
	posix_test(noreplace_does_not_replace),
	posix_test(exchange_swaps_anything),
	posix_test(whiteouts_stay_behind),
	posix_test(times_follow_a_rename),
	posix_test(sticky_directories_keep_names),
	posix_test(renames_need_write_permission_on_both_sides),
};
POSIX_TOPIC(rename, tests);
