/* SPDX-License-Identifier: Apache-2.0 */
/* Extended attributes: names, values, flags, namespaces, limits. */
#include "tests/mount/posix/posix.h"

#include <sys/xattr.h>

static void assert_value(const char *path, const char *name, const void *want, size_t len)
{
	char *got = malloc(len + 1);

	assert_non_null(got);
	assert_int_equal(must(lgetxattr(path, name, NULL, 0)), len);
	assert_int_equal(must(lgetxattr(path, name, got, len + 1)), len);
	assert_memory_equal(got, want, len);
	free(got);
}

static void values_are_kept(void **state)
{
	const char *const kinds[] = {"f", "d"};
	char bytes[1000];
	int fd;

	for (size_t i = 0; i < sizeof(bytes); i++)
		bytes[i] = (char)i;
	posix_file("f", "x");
	must(mkdir("d", 0755));
	for (size_t k = 0; k < 2; k++) {
		must(setxattr(kinds[k], "user.a", "value", 5, 0));
		must(setxattr(kinds[k], "user.empty", "", 0, 0));
		must(setxattr(kinds[k], "user.bytes", bytes, sizeof(bytes), 0));
		must(setxattr(kinds[k], "trusted.t", "t", 1, 0));
		must(setxattr(kinds[k], "security.s", "s", 1, 0));
		assert_value(kinds[k], "user.a", "value", 5);
		assert_value(kinds[k], "user.empty", "", 0);
		assert_value(kinds[k], "user.bytes", bytes, sizeof(bytes));
		assert_value(kinds[k], "trusted.t", "t", 1);
		assert_value(kinds[k], "security.s", "s", 1);
		must(setxattr(kinds[k], "user.a", "longer value", 12, 0));
		assert_value(kinds[k], "user.a", "longer value", 12);
		must(setxattr(kinds[k], "user.a", "x", 1, 0));
		assert_value(kinds[k], "user.a", "x", 1);
		must(removexattr(kinds[k], "user.a"));
		refuses(ENODATA, getxattr(kinds[k], "user.a", NULL, 0));
		refuses(ENODATA, removexattr(kinds[k], "user.a"));
	}
	fd = posix_open("f", O_RDONLY);
	must(fsetxattr(fd, "user.fd", "1", 1, 0));
	assert_int_equal(must(fgetxattr(fd, "user.fd", bytes, 10)), 1);
	must(fremovexattr(fd, "user.fd"));
	must(close(fd));
	must(rename("f", "g"));
	must(link("g", "h"));
	assert_value("h", "user.empty", "", 0);
}

static void flags_are_obeyed(void **state)
{
	posix_file("f", "x");
	refuses(ENODATA, setxattr("f", "user.a", "1", 1, XATTR_REPLACE));
	must(setxattr("f", "user.a", "1", 1, XATTR_CREATE));
	refuses(EEXIST, setxattr("f", "user.a", "2", 1, XATTR_CREATE));
	assert_value("f", "user.a", "1", 1);
	must(setxattr("f", "user.a", "2", 1, XATTR_REPLACE));
	assert_value("f", "user.a", "2", 1);
	refuses(EINVAL, setxattr("f", "user.a", "2", 1, 8));
	refuses(EEXIST, setxattr("f", "user.a", "2", 1, XATTR_CREATE | XATTR_REPLACE));
}

static void sizes_have_limits(void **state)
{
	const size_t biggest = posix_is_weft() ? 65536 : 3500;
	char *value = malloc(70000), *back = malloc(70000), name[300];

	assert_non_null(value);
	assert_non_null(back);
	posix_file("f", "x");
	memset(value, 'v', 70000);
	for (size_t len = 1; len <= biggest; len = len * 5 / 3 + 1) {
		must(setxattr("f", "user.v", value, len, 0));
		assert_value("f", "user.v", value, len);
	}
	must(setxattr("f", "user.v", value, biggest, 0));
	assert_value("f", "user.v", value, biggest);
	refuses(E2BIG, setxattr("f", "user.v", value, 65537, 0));
	refuses(ERANGE, getxattr("f", "user.v", back, biggest - 1));
	assert_int_equal(must(getxattr("f", "user.v", back, 70000)), biggest);
	must(removexattr("f", "user.v"));
	/* names: 255 bytes with the namespace */
	memset(name, 'n', sizeof(name));
	memcpy(name, "user.", 5);
	name[255] = 0;
	must(setxattr("f", name, "x", 1, 0));
	assert_value("f", name, "x", 1);
	must(removexattr("f", name));
	name[255] = 'n';
	name[256] = 0;
	refuses(ERANGE, setxattr("f", name, "x", 1, 0));
	refuses(ERANGE, getxattr("f", name, back, 10));
	refuses(ERANGE, setxattr("f", "", "x", 1, 0));
	refuses(EINVAL, setxattr("f", "user.", "x", 1, 0));
	refuses(EOPNOTSUPP, setxattr("f", "nonsense.x", "x", 1, 0));
	refuses(EOPNOTSUPP, setxattr("f", "noname", "x", 1, 0));
	refuses(EOPNOTSUPP, getxattr("f", "nonsense.x", back, 10));
	free(value);
	free(back);
}

static void lists_name_each_once(void **state)
{
	enum { COUNT = 60 };
	char name[64], list[8192], value[32];
	bool seen[COUNT] = {false};
	ssize_t len, at;

	posix_file("f", "x");
	assert_int_equal(must(listxattr("f", list, sizeof(list))), 0);
	for (int i = 0; i < COUNT; i++) {
		snprintf(name, sizeof(name), "user.name-%d", i);
		snprintf(value, sizeof(value), "%d", i);
		must(setxattr("f", name, value, strlen(value), 0));
	}
	must(setxattr("f", "trusted.t", "", 0, 0));
	len = must(listxattr("f", NULL, 0));
	refuses(ERANGE, listxattr("f", list, (size_t)len - 1));
	refuses(ERANGE, listxattr("f", list, 1));
	assert_int_equal(must(listxattr("f", list, sizeof(list))), len);
	for (at = 0; at < len; at += (ssize_t)strlen(list + at) + 1) {
		int i;

		if (strcmp(list + at, "trusted.t") == 0)
			continue;
		assert_int_equal(sscanf(list + at, "user.name-%d", &i), 1);
		assert_false(seen[i]);
		seen[i] = true;
		snprintf(value, sizeof(value), "%d", i);
		assert_value("f", list + at, value, strlen(value));
	}
	for (int i = 0; i < COUNT; i++)
		assert_true(seen[i]);
	/* trusted ones are root's to see */
	must(chmod("f", 0644));
	posix_act_as(ALICE, ALICE, 0);
	len = must(listxattr("f", list, sizeof(list)));
	for (at = 0; at < len; at += (ssize_t)strlen(list + at) + 1)
		assert_string_not_equal(list + at, "trusted.t");
}

static void namespaces_have_owners(void **state)
{
	char buf[16];

	posix_file("f", "x");
	must(setxattr("f", "user.a", "1", 1, 0));
	must(setxattr("f", "trusted.t", "1", 1, 0));
	must(chmod("f", 0644));
	posix_act_as(ALICE, ALICE, 0);
	assert_int_equal(must(getxattr("f", "user.a", buf, sizeof(buf))), 1);
	refuses(EACCES, setxattr("f", "user.a", "2", 1, 0));
	refuses(EACCES, removexattr("f", "user.a"));
	refuses(EPERM, setxattr("f", "trusted.t", "2", 1, 0));
	refuses(EPERM, setxattr("f", "security.s", "2", 1, 0));
	refuses(ENODATA, getxattr("f", "trusted.t", buf, sizeof(buf)));
	as_root();
	must(chmod("f", 0600));
	posix_act_as(ALICE, ALICE, 0);
	refuses(EACCES, getxattr("f", "user.a", buf, sizeof(buf)));
	as_root();
	/* user.* is for files and directories; a sticky directory's for its owner */
	must(symlink("f", "s"));
	must(mkfifo("p", 0666));
	refuses(EPERM, lsetxattr("s", "user.a", "1", 1, 0));
	refuses(EPERM, setxattr("p", "user.a", "1", 1, 0));
	must(lsetxattr("s", "trusted.t", "link", 4, 0));
	must(setxattr("p", "trusted.t", "fifo", 4, 0));
	assert_value("s", "trusted.t", "link", 4);
	assert_value("p", "trusted.t", "fifo", 4);
	must(mkdir("d", 0777));
	must(chmod("d", 01777));
	posix_act_as(ALICE, ALICE, 0);
	refuses(EPERM, setxattr("d", "user.a", "1", 1, 0));
}

static void many_values_fit_until_enospc(void **state)
{
	char name[32], value[1000];
	int i;

	posix_file("f", "x");
	memset(value, 'v', sizeof(value));
	for (i = 0; i < 100000; i++) {
		snprintf(name, sizeof(name), "user.%d", i);
		if (setxattr("f", name, value, i % 1000, 0) < 0)
			break;
	}
	if (i < 100000)
		assert_int_equal(errno, ENOSPC);
	assert_true(i > 5);
	if (posix_is_weft())
		assert_true(i > 4000);
	assert_value("f", "user.5", value, 5);
	must(unlink("f"));
}

static const struct CMUnitTest tests[] = {
	posix_test(values_are_kept),
	posix_test(flags_are_obeyed),
	posix_test(sizes_have_limits),
	posix_test(lists_name_each_once),
	posix_test(namespaces_have_owners),
	posix_test(many_values_fit_until_enospc),
};
POSIX_TOPIC(xattrs, tests);
