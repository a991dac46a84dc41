/* SPDX-License-Identifier: Apache-2.0 */
/* The flags of chattr(1): immutable, append only, no dump, no atime. */
#include "tests/mount/posix/posix.h"

#include <linux/falloc.h>
#include <linux/fs.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <sys/xattr.h>

#define KNOWN (FS_IMMUTABLE_FL | FS_APPEND_FL | FS_NODUMP_FL | FS_NOATIME_FL)

static int get_flags(const char *path)
{
	int fd = (int)must(open(path, O_RDONLY)), flags = 0;

	must(ioctl(fd, FS_IOC_GETFLAGS, &flags));
	must(close(fd));
	return flags & KNOWN;
}

static int try_flags(const char *path, int flags)
{
	int fd = (int)must(open(path, O_RDONLY)), all = 0, ret, error;

	must(ioctl(fd, FS_IOC_GETFLAGS, &all));
	all = (all & ~KNOWN) | flags;
	ret = ioctl(fd, FS_IOC_SETFLAGS, &all);
	error = errno;
	must(close(fd));
	errno = error;
	return ret;
}

#define set_flags(path, flags) must(try_flags(path, flags))

static struct fsxattr get_xflags(const char *path)
{
	int fd = (int)must(open(path, O_RDONLY));
	struct fsxattr x;

	must(ioctl(fd, FS_IOC_FSGETXATTR, &x));
	must(close(fd));
	return x;
}

static void are_kept(void **state)
{
	struct fsxattr x;
	struct stat before;
	int fd;

	posix_file("f", "x");
	must(mkdir("d", 0755));
	assert_int_equal(get_flags("f"), 0);
	before = posix_stat("f");
	posix_tick();
	set_flags("f", FS_NODUMP_FL | FS_NOATIME_FL);
	assert_true(posix_before(before.st_ctim, posix_stat("f").st_ctim));
	assert_int_equal(get_flags("f"), FS_NODUMP_FL | FS_NOATIME_FL);
	x = get_xflags("f");
	assert_int_equal(x.fsx_xflags & (FS_XFLAG_NODUMP | FS_XFLAG_NOATIME),
		FS_XFLAG_NODUMP | FS_XFLAG_NOATIME);
	fd = posix_open("f", O_RDONLY);
	x.fsx_xflags = FS_XFLAG_NODUMP | FS_XFLAG_IMMUTABLE;
	must(ioctl(fd, FS_IOC_FSSETXATTR, &x));
	must(close(fd));
	assert_int_equal(get_flags("f"), FS_NODUMP_FL | FS_IMMUTABLE_FL);
	set_flags("f", 0);
	assert_int_equal(get_flags("f"), 0);
	/* what is made in a directory has those two of the directory */
	set_flags("d", FS_NODUMP_FL | FS_NOATIME_FL | FS_APPEND_FL);
	posix_file("d/f", "x");
	must(mkdir("d/d", 0755));
	assert_int_equal(get_flags("d/f"), FS_NODUMP_FL | FS_NOATIME_FL);
	assert_int_equal(get_flags("d/d"), FS_NODUMP_FL | FS_NOATIME_FL);
	set_flags("d", 0);
	fd = posix_open("f", O_RDONLY);
	if (posix_is_weft()) /* others know more of them */
		refuses(EOPNOTSUPP, ioctl(fd, FS_IOC_SETFLAGS, &(int){FS_SYNC_FL}));
	must(close(fd));
}

static void are_their_owners_and_some_roots_alone(void **state)
{
	posix_file("f", "x");
	must(chmod(".", 0777));
	must(chown("f", ALICE, GROUP));
	posix_act_as(ALICE, GROUP, 0);
	set_flags("f", FS_NODUMP_FL);
	refuses(EPERM, try_flags("f", FS_IMMUTABLE_FL));
	refuses(EPERM, try_flags("f", FS_APPEND_FL));
	posix_act_as(BOB, BOB, 0);
	refuses(EPERM, try_flags("f", FS_NODUMP_FL | FS_NOATIME_FL));
	as_root();
	set_flags("f", FS_NODUMP_FL | FS_APPEND_FL);
	posix_act_as(ALICE, GROUP, 0);
	refuses(EPERM, try_flags("f", FS_NODUMP_FL));
	as_root();
	set_flags("f", 0);
}

/* The file cannot be opened to write; or, on weft where the kernel opens files by itself, neither
 * written nor stored into. */
static void refuses_to_write(const char *f, int flags)
{
	int fd = open(f, flags);
	struct stat before = posix_stat(f);

	if (fd < 0 || !posix_is_weft()) {
		refuses(EPERM, fd);
		return;
	}
	refuses(EPERM, pwrite(fd, "x", 1, 0));
	assert_true(posix_same(before.st_mtim, posix_stat(f).st_mtim));
	must(close(fd));
}

/* Whatever changes an inode, but its bytes. */
static void refuses_changes(const char *f)
{
	struct timespec past[2] = {{.tv_sec = 1}, {.tv_sec = 2}};

	refuses(EPERM, chmod(f, 0600));
	refuses(EPERM, chown(f, ALICE, GROUP));
	refuses(EPERM, utimensat(AT_FDCWD, f, past, 0));
	refuses(EPERM, setxattr(f, "user.a", "b", 1, 0));
	refuses(EPERM, removexattr(f, "user.kept"));
	refuses(EPERM, truncate(f, 0));
	refuses(EPERM, unlink(f));
	refuses(EPERM, link(f, "other"));
	refuses(EPERM, rename(f, "other"));
	posix_file("over", "y");
	refuses(EPERM, rename("over", f));
	refuses(EPERM, open(f, O_WRONLY | O_TRUNC));
	refuses_to_write(f, O_RDWR);
}

static void an_immutable_file_changes_in_nothing(void **state)
{
	char byte;
	int fd, from;

	posix_file("f", "before");
	must(setxattr("f", "user.kept", "v", 1, 0));
	fd = posix_open("f", O_RDWR);
	from = posix_open("from", O_CREAT | O_RDWR);
	must(write(from, "abc", 3));
	set_flags("f", FS_IMMUTABLE_FL);
	refuses_changes("f");
	refuses_to_write("f", O_WRONLY | O_APPEND);
	refuses(EPERM, utimensat(AT_FDCWD, "f", NULL, 0));
	refuses(EPERM, pwrite(fd, "x", 1, 0)); /* by who opened it before, too */
	refuses(EPERM, pwrite(fd, "x", 1, 100));
	refuses(EPERM, fallocate(fd, 0, 0, 4096));
	refuses(EPERM, ftruncate(fd, 1));
	refuses(EPERM, copy_file_range(from, &(off_t){0}, fd, &(off_t){0}, 3, 0));
	refuses(EPERM, fsetxattr(fd, "user.a", "b", 1, 0));
	assert_int_equal(must(pread(fd, &byte, 1, 0)), 1);
	assert_int_equal(byte, 'b');
	assert_int_equal(must(getxattr("f", "user.kept", NULL, 0)), 1);
	assert_int_equal(posix_stat("f").st_size, 6);
	set_flags("f", 0);
	must(pwrite(fd, "x", 1, 0));
	must(close(fd));
	must(close(from));
	must(unlink("f"));
}

static void a_file_to_append_to_changes_at_its_end_alone(void **state)
{
	char bytes[16] = "";
	int fd, old;

	posix_file("f", "one");
	must(setxattr("f", "user.kept", "v", 1, 0));
	old = posix_open("f", O_RDWR);
	set_flags("f", FS_APPEND_FL);
	refuses_changes("f");
	refuses(EPERM, open("f", O_WRONLY | O_APPEND | O_TRUNC));
	fd = posix_open("f", O_RDWR | O_APPEND);
	must(write(fd, "two", 3));
	must(fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, 4096));
	refuses(EPERM, fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 1));
	refuses(EPERM, ftruncate(fd, 1));
	must(utimensat(AT_FDCWD, "f", NULL, 0));
	assert_int_equal(must(pread(fd, bytes, sizeof(bytes), 0)), 6);
	assert_string_equal(bytes, "onetwo");
	must(close(fd));
	set_flags("f", 0);
	must(pwrite(old, "x", 1, 0));
	must(close(old));
	must(unlink("f"));
}

static void directories_are_held_too(void **state)
{
	struct stat before;

	must(mkdir("d", 0755));
	must(mkdir("d/sub", 0755));
	posix_file("d/f", "x");
	posix_file("f", "x");
	set_flags("d", FS_APPEND_FL);
	must(link("f", "d/added"));
	must(mkdir("d/new", 0755));
	refuses(EPERM, unlink("d/f"));
	refuses(EPERM, rmdir("d/sub"));
	refuses(EPERM, rename("d/f", "gone"));
	refuses(EPERM, rename("d/f", "d/g"));
	refuses(EPERM, rename("f", "d/f"));
	must(rename("f", "d/moved"));
	refuses(EPERM, rmdir("d"));
	refuses(EPERM, chmod("d", 0700));
	posix_file("d/f", "changed");
	set_flags("d", FS_IMMUTABLE_FL);
	before = posix_stat("d");
	posix_file("f", "x");
	refuses(EPERM, open("d/x", O_CREAT | O_WRONLY, 0644));
	refuses(EPERM, open("d", O_TMPFILE | O_RDWR, 0644));
	refuses(EPERM, mkdir("d/x", 0755));
	refuses(EPERM, symlink("x", "d/x"));
	refuses(EPERM, mkfifo("d/x", 0644));
	refuses(EPERM, link("f", "d/x"));
	refuses(EPERM, rename("f", "d/x"));
	refuses(EPERM, unlink("d/f"));
	refuses(EPERM, rmdir("d/sub"));
	refuses(EPERM, rename("d/f", "x"));
	refuses(EPERM, rename("d", "e"));
	refuses(EEXIST, mkdir("d/sub", 0755));
	posix_file("d/f", "what is in it may change");
	assert_true(posix_same(before.st_mtim, posix_stat("d").st_mtim));
	assert_int_equal(posix_stat("d").st_nlink, before.st_nlink);
	set_flags("d", 0);
	must(rename("d", "e"));
}

/* What was stored through a mapping before is written back all the same. */
static void stores_from_before_are_kept(void **state)
{
	long page = sysconf(_SC_PAGESIZE);
	char *map, byte = 0;
	int fd;

	posix_file("f", "x");
	fd = posix_open("f", O_RDWR);
	must(ftruncate(fd, page));
	map = mmap(NULL, (size_t)page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	assert_true(map != MAP_FAILED);
	map[1] = 'm';
	set_flags("f", FS_IMMUTABLE_FL);
	must(msync(map, (size_t)page, MS_SYNC));
	must(munmap(map, (size_t)page));
	set_flags("f", 0);
	must(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED));
	must(pread(fd, &byte, 1, 1));
	assert_int_equal(byte, 'm');
	must(close(fd));
}

static void no_atime_is_followed(void **state)
{
	struct timespec past[2] = {{.tv_sec = 1000}, {.tv_sec = 2000}};
	char byte;
	int fd;

	posix_file("f", "x");
	set_flags("f", FS_NOATIME_FL);
	must(utimensat(AT_FDCWD, "f", past, 0));
	fd = posix_open("f", O_RDONLY);
	must(read(fd, &byte, 1));
	must(close(fd));
	assert_int_equal(posix_stat("f").st_atim.tv_sec, 1000);
}

static const struct CMUnitTest tests[] = {
	posix_test(are_kept),
	posix_test(are_their_owners_and_some_roots_alone),
	posix_test(an_immutable_file_changes_in_nothing),
	posix_test(a_file_to_append_to_changes_at_its_end_alone),
	posix_test(directories_are_held_too),
	posix_test(stores_from_before_are_kept),
	posix_test(no_atime_is_followed),
};
POSIX_TOPIC(flags, tests);
