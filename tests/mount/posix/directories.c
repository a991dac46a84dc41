/* SPDX-License-Identifier: Apache-2.0 */
/* Reading directories, also while they change; deep trees; watching. */
#include "tests/mount/posix/posix.h"

#include <poll.h>
#include <sys/inotify.h>
#include <sys/syscall.h>

#define MANY 3000

static void fill(const char *dir, int count)
{
	char name[64];

	must(mkdir(dir, 0755));
	for (int i = 0; i < count; i++) {
		snprintf(name, sizeof(name), "%s/entry-%d", dir, i);
		must(close((int)must(open(name, O_CREAT | O_WRONLY, 0644))));
	}
}

/* The number in an entry's name, or -1. */
static int number_of(const struct dirent *e)
{
	int i;

	return sscanf(e->d_name, "entry-%d", &i) == 1 ? i : -1;
}

static void each_entry_is_listed_once(void **state)
{
	unsigned char *seen = calloc(MANY, 1);
	int dots = 0, i;
	struct dirent *e;
	DIR *d;

	assert_non_null(seen);
	fill("d", MANY);
	for (int round = 0; round < 3; round++) {
		memset(seen, 0, MANY);
		dots = 0;
		d = opendir("d");
		assert_non_null(d);
		while ((e = readdir(d)) != NULL) {
			i = number_of(e);
			if (i < 0) {
				dots++;
				assert_int_equal(e->d_type, DT_DIR);
				assert_int_equal(e->d_ino,
					posix_stat(
						strcmp(e->d_name, ".") == 0 ? "d" : ".")
						.st_ino);
				continue;
			}
			assert_int_equal(seen[i]++, 0);
			assert_int_equal(e->d_type, DT_REG);
			if (i % 100 == 0) {
				char path[300];

				snprintf(path, sizeof(path), "d/%s", e->d_name);
				assert_int_equal(posix_stat(path).st_ino, e->d_ino);
			}
		}
		closedir(d);
		assert_int_equal(dots, 2);
		for (i = 0; i < MANY; i++)
			assert_int_equal(seen[i], 1);
	}
	free(seen);
}

static void types_are_told(void **state)
{
	struct dirent *e;
	DIR *d;

	must(mkdir("d", 0755));
	posix_file("d/r", "");
	must(mkdir("d/d", 0755));
	must(symlink("x", "d/l"));
	must(mkfifo("d/p", 0644));
	must(mknod("d/s", S_IFSOCK | 0644, 0));
	must(mknod("d/c", S_IFCHR | 0644, 0x103));
	must(mknod("d/b", S_IFBLK | 0644, 0x103));
	d = opendir("d");
	assert_non_null(d);
	while ((e = readdir(d)) != NULL) {
		static const struct {
			char name;
			unsigned char type;
		} types[] = {{'r', DT_REG}, {'d', DT_DIR}, {'l', DT_LNK}, {'p', DT_FIFO},
			{'s', DT_SOCK}, {'c', DT_CHR}, {'b', DT_BLK}, {'.', DT_DIR}};

		for (size_t i = 0; i < 8; i++)
			if (e->d_name[0] == types[i].name)
				assert_int_equal(e->d_type, types[i].type);
	}
	closedir(d);
}

static void positions_can_be_returned_to(void **state)
{
	enum { COUNT = 500 };
	static long where[COUNT + 2];
	static char names[COUNT + 2][32];
	struct dirent *e;
	int n = 0;
	DIR *d;

	fill("d", COUNT);
	d = opendir("d");
	assert_non_null(d);
	for (;;) {
		long at = telldir(d);

		e = readdir(d);
		if (!e)
			break;
		assert_true(n < COUNT + 2);
		where[n] = at;
		snprintf(names[n++], 32, "%.31s", e->d_name);
	}
	assert_int_equal(n, COUNT + 2);
	for (int i = 0; i < n; i++) {
		int j = (i * 137) % n;

		seekdir(d, where[j]);
		e = readdir(d);
		assert_non_null(e);
		assert_string_equal(e->d_name, names[j]);
	}
	rewinddir(d);
	e = readdir(d);
	assert_non_null(e);
	assert_string_equal(e->d_name, names[0]);
	closedir(d);
}

/* Entries that are there throughout are listed exactly once, whatever else happens. */
static void change_while_listing_disturbs_nothing(void **state)
{
	enum { COUNT = 2000 };
	unsigned char *seen = calloc(COUNT, 1);
	struct dirent *e;
	char name[64];
	int n = 0;
	DIR *d;

	assert_non_null(seen);
	fill("d", COUNT);
	d = opendir("d");
	assert_non_null(d);
	while ((e = readdir(d)) != NULL) {
		int i = number_of(e);

		if (i >= 0)
			assert_int_equal(seen[i]++, 0);
		if (n >= COUNT)
			continue;
		/* odd ones go, others come, even ones stay */
		if (n % 2) {
			snprintf(name, sizeof(name), "d/entry-%d", n);
			must(unlink(name));
		}
		snprintf(name, sizeof(name), "d/new-%d", n++);
		posix_file(name, "");
	}
	closedir(d);
	for (int i = 0; i < COUNT; i += 2)
		assert_int_equal(seen[i], 1);
	/* rewinding shows the present */
	free(seen);
}

static void rewinding_shows_what_came(void **state)
{
	struct dirent *e;
	unsigned n = 0;
	DIR *d;

	fill("d", 10);
	d = opendir("d");
	assert_non_null(d);
	while (readdir(d))
		;
	posix_file("d/late", "");
	must(unlink("d/entry-3"));
	rewinddir(d);
	while ((e = readdir(d)) != NULL) {
		n++;
		assert_string_not_equal(e->d_name, "entry-3");
	}
	assert_int_equal(n, 12);
	closedir(d);
}

static void removing_while_listing_empties(void **state)
{
	char name[300];
	struct dirent *e;
	DIR *d;

	fill("d", MANY);
	d = opendir("d");
	assert_non_null(d);
	while ((e = readdir(d)) != NULL) {
		if (e->d_name[0] == '.')
			continue;
		snprintf(name, sizeof(name), "d/%s", e->d_name);
		must(unlink(name));
	}
	closedir(d);
	must(rmdir("d"));
}

static void small_buffers_do(void **state)
{
	char buf[300], name[256];
	int n = 0, fd;
	long len;

	must(mkdir("d", 0755));
	for (int i = 0; i < 50; i++) {
		memset(name, 'a' + i % 26, sizeof(name));
		memcpy(name, "d/", 2);
		name[2] = (char)('0' + i / 26);
		name[i < 25 ? 255 : 10] = 0;
		posix_file(name, "");
	}
	fd = posix_open("d", O_RDONLY);
	while ((len = must(syscall(SYS_getdents64, fd, buf, sizeof(buf)))) > 0)
		for (long at = 0; at < len; n++)
			at += *(unsigned short *)(buf + at + 16);
	assert_int_equal(n, 52);
	must(lseek(fd, 0, SEEK_SET));
	refuses(EINVAL, syscall(SYS_getdents64, fd, buf, 20));
	must(close(fd));
	fd = posix_open("file", O_CREAT | O_RDWR);
	refuses(ENOTDIR, syscall(SYS_getdents64, fd, buf, sizeof(buf)));
	must(close(fd));
}

static void trees_may_be_deep(void **state)
{
	enum { DEPTH = 1500 };
	struct stat st;
	ino_t bottom;

	for (int i = 0; i < DEPTH; i++) {
		must(mkdir("deeper-and-deeper", 0755));
		must(chdir("deeper-and-deeper"));
	}
	posix_file("bottom", "x");
	bottom = posix_stat(".").st_ino;
	for (int i = 0; i < DEPTH; i++)
		must(chdir(".."));
	must(stat("deeper-and-deeper", &st));
	for (int i = 0; i < DEPTH; i++)
		must(chdir("deeper-and-deeper"));
	assert_int_equal(posix_stat(".").st_ino, bottom);
	must(unlink("bottom"));
	for (int i = 0; i < DEPTH; i++) {
		must(chdir(".."));
		must(rmdir("deeper-and-deeper"));
	}
}

static void changes_can_be_watched(void **state)
{
	static const uint32_t want[] = {IN_CREATE, IN_MODIFY, IN_CLOSE_WRITE, IN_ATTRIB,
		IN_MOVED_FROM, IN_MOVED_TO, IN_DELETE};
	char buf[4096];
	uint32_t got = 0;
	struct pollfd p;

	must(mkdir("d", 0755));
	p.fd = (int)must(inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
	p.events = POLLIN;
	must(inotify_add_watch(p.fd, "d", IN_ALL_EVENTS));
	posix_file("d/f", "content");
	must(chmod("d/f", 0600));
	must(rename("d/f", "d/g"));
	must(unlink("d/g"));
	while (must(poll(&p, 1, 0)) > 0) {
		ssize_t len = must(read(p.fd, buf, sizeof(buf)));

		for (ssize_t at = 0; at < len;) {
			const struct inotify_event *e = (const void *)(buf + at);

			got |= e->mask;
			at += (ssize_t)sizeof(*e) + e->len;
		}
	}
	for (size_t i = 0; i < sizeof(want) / sizeof(want[0]); i++)
		assert_true(got & want[i]);
	must(close(p.fd));
}

static const struct CMUnitTest tests[] = {
	posix_test(each_entry_is_listed_once),
	posix_test(types_are_told),
	posix_test(positions_can_be_returned_to),
	posix_test(change_while_listing_disturbs_nothing),
	posix_test(rewinding_shows_what_came),
	posix_test(removing_while_listing_empties),
	posix_test(small_buffers_do),
	posix_test(trees_may_be_deep),
	posix_test(changes_can_be_watched),
};
POSIX_TOPIC(directories, tests);
