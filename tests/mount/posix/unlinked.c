/* SPDX-License-Identifier: Apache-2.0 */
/* What lives on without a name: open files and directories, O_TMPFILE, file handles. */
#include "tests/mount/posix/posix.h"

#include <sys/xattr.h>

static void reopen_path(char *buf, size_t cap, int fd)
{
	snprintf(buf, cap, "/proc/self/fd/%d", fd);
}

static void an_open_file_lives_without_a_name(void **state)
{
	char path[64], byte;
	int fd, again;

	posix_file("f", "content");
	fd = posix_open("f", O_RDWR);
	must(unlink("f"));
	assert_int_equal(posix_fstat(fd).st_nlink, 0);
	assert_int_equal(posix_fstat(fd).st_size, 7);
	must(pwrite(fd, "more", 4, 100000));
	assert_int_equal(posix_fstat(fd).st_size, 100004);
	must(fchmod(fd, 0600));
	must(fchown(fd, 1, 1));
	must(fsetxattr(fd, "user.x", "1", 1, 0));
	assert_int_equal(must(fgetxattr(fd, "user.x", &byte, 1)), 1);
	must(ftruncate(fd, 50));
	must(fsync(fd));
	reopen_path(path, sizeof(path), fd);
	again = posix_open(path, O_RDWR);
	must(close(fd));
	assert_int_equal(must(pread(again, &byte, 1, 0)), 1);
	assert_int_equal(byte, 'c');
	assert_int_equal(posix_fstat(again).st_mode & 07777, 0600);
	/* its name is free */
	posix_file("f", "new");
	assert_int_not_equal(posix_stat("f").st_ino, posix_fstat(again).st_ino);
	reopen_path(path, sizeof(path), again);
	refuses(ENOENT, linkat(AT_FDCWD, path, AT_FDCWD, "back", AT_SYMLINK_FOLLOW));
	must(close(again));
}

static void an_open_path_lives_without_a_name(void **state)
{
	int file, link_fd, fifo, dev;
	struct stat before;
	char buf[16];

	posix_file("f", "x");
	must(symlink("target", "s"));
	must(mkfifo("p", 0644));
	must(mknod("c", S_IFCHR | 0644, 0x103));
	before = posix_stat("f");
	file = posix_open("f", O_PATH);
	link_fd = posix_open("s", O_PATH | O_NOFOLLOW);
	fifo = posix_open("p", O_RDONLY | O_NONBLOCK);
	dev = posix_open("c", O_RDWR);
	must(unlink("f"));
	must(unlink("s"));
	must(unlink("p"));
	must(unlink("c"));
	assert_int_equal(posix_fstat(file).st_nlink, 0);
	assert_int_equal(posix_fstat(file).st_ino, before.st_ino);
	assert_int_equal(posix_fstat(file).st_size, 1);
	assert_int_equal(posix_fstat(link_fd).st_nlink, 0);
	assert_int_equal(must(readlinkat(link_fd, "", buf, sizeof(buf))), 6);
	assert_int_equal(posix_fstat(fifo).st_nlink, 0);
	assert_true(S_ISFIFO(posix_fstat(fifo).st_mode));
	assert_int_equal(posix_fstat(dev).st_nlink, 0);
	must(fchmod(fifo, 0600));
	assert_int_equal(posix_fstat(fifo).st_mode & 07777, 0600);
	must(close(file));
	must(close(link_fd));
	must(close(fifo));
	must(close(dev));
}

static void an_open_directory_lives_without_a_name(void **state)
{
	struct stat st;
	struct dirent *e;
	DIR *d;
	int fd;

	must(mkdir("d", 0750));
	fd = posix_open("d", O_RDONLY);
	must(rmdir("d"));
	st = posix_fstat(fd);
	assert_int_equal(st.st_nlink, 0);
	assert_int_equal(st.st_mode, S_IFDIR | 0750);
	refuses(ENOENT, openat(fd, "x", O_CREAT | O_RDWR, 0644));
	refuses(ENOENT, mkdirat(fd, "x", 0755));
	refuses(ENOENT, symlinkat("x", fd, "x"));
	refuses(ENOENT, openat(fd, "x", O_RDONLY));
	refuses(ENOENT, unlinkat(fd, "x", 0));
	must(fsync(fd));
	must(fchmod(fd, 0700));
	assert_int_equal(posix_fstat(fd).st_mode & 07777, 0700);
	must(mkdir("d", 0755)); /* another one */
	assert_int_equal(posix_fstat(fd).st_nlink, 0);
	assert_int_not_equal(posix_stat("d").st_ino, st.st_ino);
	d = fdopendir(fd);
	assert_non_null(d);
	errno = 0;
	while ((e = readdir(d)) != NULL)
		assert_int_equal(e->d_name[0], '.');
	closedir(d);
}

static void a_replaced_directory_lives_while_open(void **state)
{
	int fd;

	must(mkdir("a", 0755));
	must(mkdir("b", 0755));
	fd = posix_open("b", O_RDONLY);
	must(rename("a", "b"));
	assert_int_equal(posix_fstat(fd).st_nlink, 0);
	refuses(ENOENT, mkdirat(fd, "x", 0755));
	must(close(fd));
	posix_file("x", "x");
	posix_file("y", "y");
	fd = posix_open("y", O_RDWR);
	must(rename("x", "y"));
	assert_int_equal(posix_fstat(fd).st_nlink, 0);
	must(close(fd));
}

static void the_working_directory_may_go(void **state)
{
	char buf[256];
	struct stat st;
	int up = posix_open(".", O_RDONLY);

	must(mkdir("cwd", 0755));
	must(mkdir("cwd/below", 0755));
	must(chdir("cwd/below"));
	must(unlinkat(up, "cwd/below", AT_REMOVEDIR));
	must(stat(".", &st));
	assert_int_equal(st.st_nlink, 0);
	refuses(ENOENT, getcwd(buf, sizeof(buf)) ? 0 : -1);
	refuses(ENOENT, open("f", O_CREAT | O_RDWR, 0644));
	refuses(ENOENT, mkdir("d", 0755));
	refuses(ENOENT, rename("f", "g"));
	must(fchdir(up));
	must(close(up));
}

static void tmpfiles_can_be_named(void **state)
{
	char path[64], byte;
	struct stat st;
	int fd = (int)must(open(".", O_TMPFILE | O_RDWR, 0640));

	st = posix_fstat(fd);
	assert_int_equal(st.st_nlink, 0);
	assert_int_equal(st.st_mode, S_IFREG | 0640);
	must(write(fd, "content", 7));
	must(fsync(fd));
	reopen_path(path, sizeof(path), fd);
	must(linkat(AT_FDCWD, path, AT_FDCWD, "named", AT_SYMLINK_FOLLOW));
	assert_int_equal(posix_fstat(fd).st_nlink, 1);
	assert_int_equal(posix_stat("named").st_ino, st.st_ino);
	must(linkat(fd, "", AT_FDCWD, "again", AT_EMPTY_PATH));
	assert_int_equal(posix_stat("named").st_nlink, 2);
	must(close(fd));
	must(unlink("again"));
	fd = posix_open("named", O_RDONLY);
	assert_int_equal(must(read(fd, &byte, 1)), 1);
	must(close(fd));
	fd = (int)must(open(".", O_TMPFILE | O_RDWR | O_EXCL, 0640));
	refuses(ENOENT, linkat(fd, "", AT_FDCWD, "excl", AT_EMPTY_PATH));
	must(close(fd));
	refuses(EINVAL, open(".", O_TMPFILE | O_RDONLY, 0640));
	refuses(ENOENT, open("absent", O_TMPFILE | O_RDWR, 0640));
}

static void handles_find_their_files(void **state)
{
	union {
		struct file_handle handle;
		char room[sizeof(struct file_handle) + MAX_HANDLE_SZ];
	} f, d;
	int base = posix_open(".", O_RDONLY), fd, id;
	char byte;

	posix_file("f", "content");
	must(mkdir("d", 0755));
	f.handle.handle_bytes = d.handle.handle_bytes = MAX_HANDLE_SZ;
	must(name_to_handle_at(AT_FDCWD, "f", &f.handle, &id, 0));
	must(name_to_handle_at(AT_FDCWD, "d", &d.handle, &id, 0));
	must(rename("f", "d/g"));
	fd = (int)must(open_by_handle_at(base, &f.handle, O_RDONLY));
	assert_int_equal(must(read(fd, &byte, 1)), 1);
	assert_int_equal(byte, 'c');
	must(unlink("d/g"));
	must(close((int)must(
		open_by_handle_at(base, &f.handle, O_RDONLY)))); /* still open */
	must(close(fd));
	/* the last close may take effect a moment later */
	for (int i = 0; i < 500; i++) {
		fd = open_by_handle_at(base, &f.handle, O_RDONLY);
		if (fd < 0)
			break;
		must(close(fd));
		posix_tick();
	}
	refuses(ESTALE, open_by_handle_at(base, &f.handle, O_RDONLY));
	fd = (int)must(open_by_handle_at(base, &d.handle, O_RDONLY | O_DIRECTORY));
	must(close(fd));
	must(rmdir("d"));
	refuses(ESTALE, open_by_handle_at(base, &d.handle, O_RDONLY));
	must(close(base));
}

static void space_comes_back_with_the_last_close(void **state)
{
	char *buf = calloc(1, 1 << 20);
	int fd = posix_open("f", O_CREAT | O_RDWR);

	assert_non_null(buf);
	for (int i = 0; i < 8; i++)
		assert_int_equal(must(write(fd, buf, 1 << 20)), 1 << 20);
	must(unlink("f"));
	for (int i = 0; i < 8; i++)
		posix_assert_bytes(fd, (off_t)i << 20, 1 << 20, 0);
	must(close(fd));
	free(buf);
}

static const struct CMUnitTest tests[] = {
	posix_test(an_open_file_lives_without_a_name),
	posix_test(an_open_path_lives_without_a_name),
	posix_test(an_open_directory_lives_without_a_name),
	posix_test(a_replaced_directory_lives_while_open),
	posix_test(the_working_directory_may_go),
	posix_test(tmpfiles_can_be_named),
	posix_test(handles_find_their_files),
	posix_test(space_comes_back_with_the_last_close),
};
POSIX_TOPIC(unlinked, tests);
