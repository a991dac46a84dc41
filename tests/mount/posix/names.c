/* SPDX-License-Identifier: Apache-2.0 */
/* Names: making, linking and removing, and every error that POSIX gives a path. */
#include "tests/mount/posix/posix.h"

#include <limits.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/statfs.h>
#include <sys/sysmacros.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <sys/xattr.h>

/* ---- errors that every call on a path shares ------------------------------------ */

/* Calls each system call that takes a path on `path`; creating ones too if `creates`. */
static void all_refuse(int error, const char *path, bool creates)
{
	struct stat st;
	struct statfs fs;
	char buf[16];

	refuses(error, stat(path, &st));
	refuses(error, lstat(path, &st));
	refuses(error, open(path, O_RDONLY));
	refuses(error, open(path, O_WRONLY));
	refuses(error, open(path, O_RDONLY | O_DIRECTORY));
	refuses(error, chmod(path, 0644));
	refuses(error, chown(path, 1, 1));
	refuses(error, lchown(path, 1, 1));
	refuses(error, truncate(path, 10));
	refuses(error, unlink(path));
	refuses(error, rmdir(path));
	refuses(error, readlink(path, buf, sizeof(buf)));
	refuses(error, utimensat(AT_FDCWD, path, NULL, 0));
	refuses(error, access(path, F_OK));
	refuses(error, rename(path, "elsewhere"));
	refuses(error, link(path, "elsewhere"));
	refuses(error, chdir(path));
	refuses(error, statfs(path, &fs));
	refuses(error, getxattr(path, "user.x", buf, sizeof(buf)));
	refuses(error, listxattr(path, buf, sizeof(buf)));
	refuses(error, setxattr(path, "user.x", "", 0, 0));
	if (!creates)
		return;
	posix_file("source", "x");
	refuses(error, open(path, O_CREAT | O_WRONLY, 0644));
	refuses(error, open(path, O_CREAT | O_EXCL | O_WRONLY, 0644));
	refuses(error, mkdir(path, 0755));
	refuses(error, mkfifo(path, 0644));
	refuses(error, mknod(path, S_IFREG | 0644, 0));
	refuses(error, symlink("target", path));
	refuses(error, link("source", path));
	refuses(error, rename("source", path));
	must(unlink("source"));
}

static void absent_names_are_enoent(void **state)
{
	all_refuse(ENOENT, "absent", false);
	all_refuse(ENOENT, "absent/below", true);
	all_refuse(ENOENT, "", true);
	must(symlink("nowhere", "dangling"));
	refuses(ENOENT, open("dangling", O_RDONLY));
	refuses(ENOENT, truncate("dangling", 0));
	refuses(EEXIST, mkdir("dangling", 0755));
	refuses(EEXIST, open("dangling", O_CREAT | O_EXCL | O_RDWR, 0644));
	must(close((int)must(open("dangling", O_CREAT | O_RDWR, 0644))));
	assert_true(S_ISREG(posix_stat("nowhere").st_mode));
}

static void a_component_that_is_no_directory_is_enotdir(void **state)
{
	posix_file("file", "x");
	must(mkfifo("fifo", 0644));
	all_refuse(ENOTDIR, "file/below", true);
	all_refuse(ENOTDIR, "fifo/below", true);
	all_refuse(ENOTDIR, "file/.", false);
	refuses(ENOTDIR, open("file/", O_RDONLY));
	refuses(ENOTDIR, open("file", O_RDONLY | O_DIRECTORY));
	refuses(ENOTDIR, rmdir("file"));
	refuses(ENOTDIR, unlink("file/"));
	refuses(ENOTDIR, open("file", O_TMPFILE | O_RDWR, 0600));
}

static void long_names_are_enametoolong(void **state)
{
	char name[300];
	char path[PATH_MAX + 16];

	memset(name, 'n', sizeof(name));
	name[256] = 0;
	all_refuse(ENAMETOOLONG, name, true);
	name[255] = 0;
	posix_file(name, "x");
	must(unlink(name));
	must(mkdir(name, 0755));
	must(rmdir(name));
	must(symlink(name, "s"));
	must(rename("s", name));
	must(unlink(name));
	/* PATH_MAX counts the NUL */
	memset(path, '/', sizeof(path));
	memcpy(path, "./", 2);
	for (size_t i = 2; i < PATH_MAX; i += 2)
		memcpy(path + i, "./", 2);
	path[PATH_MAX] = 0;
	all_refuse(ENAMETOOLONG, path, true);
	path[PATH_MAX - 1] = 0;
	posix_stat(path);
}

static void symlink_targets_reach_path_max(void **state)
{
	char target[PATH_MAX + 1], back[PATH_MAX + 1];

	memset(target, 't', sizeof(target));
	target[PATH_MAX] = 0;
	refuses(ENAMETOOLONG, symlink(target, "link"));
	refuses(ENOENT, symlink("", "link"));
	for (size_t len = 1; len < PATH_MAX; len = len < 4000 ? len * 3 + 1 : len + 19) {
		target[len] = 0;
		must(symlink(target, "link"));
		assert_int_equal(posix_stat("link").st_size, len);
		assert_int_equal(must(readlink("link", back, sizeof(back))), len);
		assert_memory_equal(target, back, len);
		assert_int_equal(must(readlink("link", back, len)), len);
		if (len > 1)
			assert_int_equal(must(readlink("link", back, 1)), 1);
		must(unlink("link"));
		target[len] = 't';
	}
	target[PATH_MAX - 1] = 0;
	must(symlink(target, "link"));
	assert_int_equal(must(readlink("link", back, sizeof(back))), PATH_MAX - 1);
	refuses(EINVAL, readlink(".", back, sizeof(back)));
}

static void loops_of_symlinks_are_eloop(void **state)
{
	struct stat st;

	must(symlink("b", "a"));
	must(symlink("a", "b"));
	refuses(ELOOP, stat("a", &st));
	refuses(ELOOP, open("a", O_RDONLY));
	refuses(ELOOP, open("a/x", O_CREAT | O_WRONLY, 0644));
	refuses(ELOOP, mkdir("a/x", 0755));
	refuses(ELOOP, chmod("a", 0644));
	refuses(ELOOP, chown("a", 1, 1));
	refuses(ELOOP, truncate("a", 0));
	refuses(ELOOP, unlink("a/x"));
	refuses(ELOOP, rename("a/x", "y"));
	refuses(ELOOP, link("a/x", "y"));
	refuses(ELOOP, symlink("t", "a/x"));
	refuses(ELOOP, utimensat(AT_FDCWD, "a", NULL, 0));
	posix_file("file", "x");
	must(symlink("file", "to-file"));
	refuses(ELOOP, open("to-file", O_RDONLY | O_NOFOLLOW));
	must(close((int)must(open("to-file", O_RDONLY))));
}

static void what_exists_is_eexist(void **state)
{
	const char *const kinds[] = {"file", "dir", "fifo", "link", "dev", "sock"};

	posix_file("file", "x");
	must(mkdir("dir", 0755));
	must(mkfifo("fifo", 0644));
	must(symlink("nowhere", "link"));
	must(mknod("dev", S_IFCHR | 0644, makedev(1, 3)));
	must(mknod("sock", S_IFSOCK | 0644, 0));
	for (size_t i = 0; i < 6; i++) {
		refuses(EEXIST, mkdir(kinds[i], 0755));
		refuses(EEXIST, mkfifo(kinds[i], 0644));
		refuses(EEXIST, mknod(kinds[i], S_IFREG | 0644, 0));
		refuses(EEXIST, mknod(kinds[i], S_IFBLK | 0644, makedev(1, 2)));
		refuses(EEXIST, symlink("t", kinds[i]));
		refuses(EEXIST, link("file", kinds[i]));
		refuses(EEXIST, open(kinds[i], O_CREAT | O_EXCL | O_WRONLY, 0644));
	}
	refuses(EISDIR, open("dir", O_WRONLY));
	refuses(EISDIR, open("dir", O_RDWR));
	refuses(EISDIR, open("dir", O_RDONLY | O_TRUNC));
	refuses(EISDIR, open("dir", O_CREAT | O_RDONLY, 0644));
	refuses(EISDIR, truncate("dir", 0));
	refuses(EISDIR, unlink("dir"));
	refuses(EPERM, link("dir", "other"));
	refuses(ENXIO, open("sock", O_RDONLY));
	refuses(ENXIO, open("fifo", O_WRONLY | O_NONBLOCK));
	refuses(EINVAL, rmdir("dir/."));
	refuses(ENOTEMPTY, rmdir("dir/.."));
	refuses(EINVAL, truncate("fifo", 0));
}

/* ---- making ---------------------------------------------------------------------- */

static void kinds_are_what_they_were_made(void **state)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = "bound"};
	struct stat st;
	int s;

	must(mknod("c", S_IFCHR | 0640, makedev(1, 3)));
	st = posix_stat("c");
	assert_true(S_ISCHR(st.st_mode));
	assert_int_equal(st.st_rdev, makedev(1, 3));
	must(mknod("b", S_IFBLK | 0640, makedev(259, 70000)));
	st = posix_stat("b");
	assert_true(S_ISBLK(st.st_mode));
	assert_int_equal(st.st_rdev, makedev(259, 70000));
	must(mknod("r", 0640, 0));
	assert_true(S_ISREG(posix_stat("r").st_mode));
	refuses(EPERM, mknod("d", S_IFDIR | 0755, 0));
	refuses(EINVAL, mknod("l", S_IFLNK | 0755, 0));
	must(mkfifo("f", 0604));
	assert_int_equal(posix_stat("f").st_mode, S_IFIFO | 0604);
	s = (int)must(socket(AF_UNIX, SOCK_STREAM, 0));
	must(bind(s, (struct sockaddr *)&address, sizeof(address)));
	assert_true(S_ISSOCK(posix_stat("bound").st_mode));
	must(close(s));
	s = (int)must(socket(AF_UNIX, SOCK_STREAM, 0));
	refuses(EADDRINUSE, bind(s, (struct sockaddr *)&address, sizeof(address)));
	must(close(s));
	s = posix_open("c", O_WRONLY);
	assert_int_equal(must(write(s, "xyz", 3)), 3);
	must(close(s));
}

static void umask_takes_bits_off(void **state)
{
	umask(0237);
	must(close((int)must(open("f", O_CREAT | O_RDWR, 0777))));
	must(mkdir("d", 01777));
	must(mkfifo("p", 0666));
	must(mknod("n", S_IFREG | 0666, 0));
	must(symlink("x", "s"));
	umask(022);
	assert_int_equal(posix_mode("f"), 0540);
	assert_int_equal(posix_mode("d"), 01540);
	assert_int_equal(posix_mode("p"), 0440);
	assert_int_equal(posix_mode("n"), 0440);
	assert_int_equal(posix_mode("s"), 0777);
	/* O_CREAT's mode does not bind the descriptor it makes */
	int fd = (int)must(open("w", O_CREAT | O_RDWR, 0));

	assert_int_equal(must(write(fd, "x", 1)), 1);
	must(close(fd));
	assert_int_equal(posix_mode("w"), 0);
}

static void every_byte_may_stand_in_a_name(void **state)
{
	char name[4] = "n?x";
	unsigned seen = 0;
	struct dirent *e;
	DIR *d;

	for (int byte = 1; byte < 256; byte++) {
		if (byte == '/')
			continue;
		name[1] = (char)byte;
		posix_file(name, name);
	}
	d = opendir(".");
	assert_non_null(d);
	while ((e = readdir(d)) != NULL) {
		if (e->d_name[0] == '.')
			continue;
		assert_int_equal(strlen(e->d_name), 3);
		posix_stat(e->d_name);
		seen++;
	}
	closedir(d);
	assert_int_equal(seen, 254);
	/* names that differ in case are different names */
	posix_file("NAME", "1");
	refuses(ENOENT, access("name", F_OK));
}

static void a_file_may_have_65000_links(void **state)
{
	struct stat st;
	char name[32];
	unsigned links = 1;

	posix_file("file", "x");
	must(mkdir("links", 0755));
	for (;; links++) {
		snprintf(name, sizeof(name), "links/%u", links);
		if (link("file", name) < 0)
			break;
		if (links > 70000)
			fail_msg("no limit");
	}
	assert_int_equal(errno, EMLINK);
	assert_int_equal(links, 65000);
	st = posix_stat("file");
	assert_int_equal(st.st_nlink, 65000);
	must(unlink("links/1"));
	must(link("file", "again"));
	refuses(EMLINK, link("file", "once-more"));
	must(rename("links/2", "links/3")); /* the same file: nothing happens */
	posix_stat("links/2");
}

static void links_are_counted(void **state)
{
	struct stat before, after;

	posix_file("a", "hello");
	must(symlink("a", "s"));
	must(mkfifo("f", 0644));
	before = posix_stat("a");
	assert_int_equal(before.st_nlink, 1);
	must(link("a", "b"));
	after = posix_stat("b");
	assert_int_equal(after.st_nlink, 2);
	assert_int_equal(after.st_ino, before.st_ino);
	must(link("s", "s2")); /* the link itself */
	assert_true(S_ISLNK(posix_stat("s2").st_mode));
	assert_int_equal(posix_stat("s").st_nlink, 2);
	must(linkat(AT_FDCWD, "s", AT_FDCWD, "c", AT_SYMLINK_FOLLOW));
	assert_int_equal(posix_stat("a").st_nlink, 3);
	must(link("f", "f2"));
	assert_int_equal(posix_stat("f").st_nlink, 2);
	must(unlink("f"));
	assert_int_equal(posix_stat("f2").st_nlink, 1);
	must(unlink("a"));
	must(unlink("b"));
	assert_int_equal(posix_stat("c").st_nlink, 1);
	refuses(ENOENT, open("s", O_RDONLY));
}

static void directories_count_their_subdirectories(void **state)
{
	must(mkdir("d", 0755));
	assert_int_equal(posix_stat("d").st_nlink, 2);
	must(mkdir("d/a", 0755));
	must(mkdir("d/b", 0755));
	posix_file("d/file", "");
	assert_int_equal(posix_stat("d").st_nlink, 4);
	must(mkdir("e", 0755));
	must(rename("d/a", "e/a"));
	assert_int_equal(posix_stat("d").st_nlink, 3);
	assert_int_equal(posix_stat("e").st_nlink, 3);
	must(rmdir("d/b"));
	assert_int_equal(posix_stat("d").st_nlink, 2);
	refuses(ENOTEMPTY, rmdir("d"));
	refuses(ENOTEMPTY, rmdir("e"));
	must(unlink("d/file"));
	must(rmdir("d"));
	refuses(ENOENT, rmdir("d"));
}

static void other_filesystems_are_exdev(void **state)
{
	posix_file("file", "x");
	refuses(EXDEV, link("file", "/dev/shm/weft-posix-link"));
	refuses(EXDEV, rename("file", "/dev/shm/weft-posix-link"));
	refuses(EXDEV, rename("/proc/self/stat", "file2"));
	refuses(EBUSY, rmdir("/dev/shm"));
	refuses(EBUSY, rename("/dev/shm", "/dev/shm2"));
}

static void a_program_that_runs_is_etxtbsy(void **state)
{
	char byte;
	int in, out, pipes[2];
	char buf[65536];
	ssize_t n;
	pid_t child;

	in = posix_open("/bin/sleep", O_RDONLY);
	out = (int)must(open("sleep", O_CREAT | O_WRONLY | O_CLOEXEC, 0755));
	while ((n = must(read(in, buf, sizeof(buf)))) > 0)
		assert_int_equal(must(write(out, buf, (size_t)n)), n);
	must(close(in));
	/* open for writing: cannot be run */
	refuses(ETXTBSY, execl("./sleep", "sleep", "0", NULL));
	must(close(out));
	must(pipe2(pipes, O_CLOEXEC));
	fflush(NULL);
	child = (pid_t)must(fork());
	if (child == 0) {
		execl("./sleep", "sleep", "30", NULL);
		_exit(1);
	}
	must(close(pipes[1]));
	assert_int_equal(must(read(pipes[0], &byte, 1)), 0); /* closed by exec */
	must(close(pipes[0]));
	refuses(ETXTBSY, open("sleep", O_WRONLY));
	refuses(ETXTBSY, truncate("sleep", 0));
	must(close((int)must(open("sleep", O_RDONLY))));
	must(kill(child, SIGKILL));
	must(waitpid(child, NULL, 0));
	must(close((int)must(open("sleep", O_WRONLY))));
}

static void open_flags_are_obeyed(void **state)
{
	char byte;
	int fd;

	posix_file("file", "content");
	fd = posix_open("file", O_RDONLY);
	refuses(EBADF, write(fd, "x", 1));
	refuses(EINVAL, ftruncate(fd, 0));
	must(close(fd));
	fd = posix_open("file", O_WRONLY);
	refuses(EBADF, read(fd, &byte, 1));
	must(close(fd));
	fd = posix_open("file", O_PATH);
	refuses(EBADF, read(fd, &byte, 1));
	refuses(EBADF, fchmod(fd, 0600));
	posix_fstat(fd);
	must(close(fd));
	fd = posix_open("file", O_RDONLY | O_TRUNC); /* Linux truncates here too */
	assert_int_equal(posix_fstat(fd).st_size, 0);
	must(close(fd));
	fd = posix_open(".", O_RDONLY);
	refuses(EISDIR, read(fd, &byte, 1));
	refuses(EINVAL, ftruncate(fd, 0));
	must(fsync(fd));
	must(fdatasync(fd));
	must(syncfs(fd));
	refuses(ENOENT, openat(fd, "absent", O_RDONLY));
	refuses(ENOTDIR, openat((int)must(open("file", O_RDONLY)), "x", O_RDONLY));
	must(close(fd));
}

static void statx_tells_the_birth(void **state)
{
	struct statx a, b;

	posix_file("file", "x");
	must(statx(AT_FDCWD, "file", 0, STATX_ALL, &a));
	assert_true(a.stx_mask & STATX_BTIME);
	posix_tick();
	posix_file("file", "more");
	must(chmod("file", 0600));
	must(rename("file", "other"));
	must(statx(AT_FDCWD, "other", AT_STATX_FORCE_SYNC, STATX_ALL, &b));
	assert_int_equal(a.stx_btime.tv_sec, b.stx_btime.tv_sec);
	assert_int_equal(a.stx_btime.tv_nsec, b.stx_btime.tv_nsec);
	assert_true(b.stx_ctime.tv_sec > b.stx_btime.tv_sec ||
		    b.stx_ctime.tv_nsec > b.stx_btime.tv_nsec);
	assert_int_equal(b.stx_size, 4);
	must(statx(AT_FDCWD, "other", 0, STATX_BTIME, &b));
	assert_int_equal(a.stx_btime.tv_nsec, b.stx_btime.tv_nsec);
}

static const struct CMUnitTest tests[] = {
	posix_test(absent_names_are_enoent),
	posix_test(a_component_that_is_no_directory_is_enotdir),
	posix_test(long_names_are_enametoolong),
	posix_test(symlink_targets_reach_path_max),
	posix_test(loops_of_symlinks_are_eloop),
	posix_test(what_exists_is_eexist),
	posix_test(kinds_are_what_they_were_made),
	posix_test(umask_takes_bits_off),
	posix_test(every_byte_may_stand_in_a_name),
	posix_test(a_file_may_have_65000_links),
	posix_test(links_are_counted),
	posix_test(directories_count_their_subdirectories),
	posix_test(other_filesystems_are_exdev),
	posix_test(a_program_that_runs_is_etxtbsy),
	posix_test(open_flags_are_obeyed),
	posix_test(statx_tells_the_birth),
};
POSIX_TOPIC(names, tests);
