/* SPDX-License-Identifier: Apache-2.0 */
/* Folders of control sockets: of users whom nobody else can be in the way of. */
#include "fs/control.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define USER 54321 /* without an entry in the user database, and so without a home */

static char top[] = "/tmp/weft-ctl.XXXXXX";

/* A folder in `top`, and what XDG_RUNTIME_DIR says of it. */
static void runtime_is(uid_t owner, mode_t mode)
{
	char path[64];

	snprintf(path, sizeof(path), "%s/run", top);
	assert_true(mkdir(path, 0700) == 0 || errno == EEXIST);
	assert_int_equal(chmod(path, mode), 0);
	assert_int_equal(chown(path, owner, 0), 0);
	setenv("XDG_RUNTIME_DIR", path, 1);
}

/* Runs as the user, in a process of its own: failed checks are its exit code. */
static void as_user(int (*check)(void))
{
	int status;
	pid_t pid = fork();

	assert_true(pid >= 0);
	if (pid == 0)
		_exit(setresuid(USER, USER, USER) ? 99 : check());
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
}

#define CHECK(x)                                                                         \
	do {                                                                             \
		if (!(x)) {                                                              \
			fprintf(stderr, "%d: %s\n", __LINE__, #x);                       \
			return 1;                                                        \
		}                                                                        \
	} while (0)

static int is_in_runtime(void)
{
	char folder[CONTROL_FOLDER_MAX], wanted[64];
	int fd;

	snprintf(wanted, sizeof(wanted), "%s/run/weft", top);
	CHECK(control_folder(0, folder) && strcmp(folder, wanted) == 0);
	CHECK(!control_folder(1, folder));
	CHECK(control_folder_make(folder, NULL) == 0);
	CHECK(control_folder_make(folder, NULL) == 0);
	fd = control_folder_lock(folder, NULL);
	CHECK(fd >= 0);
	close(fd);
	CHECK(rmdir(folder) == 0);
	return 0;
}

static int is_nowhere(void)
{
	char folder[CONTROL_FOLDER_MAX] = "";
	struct weft_error err = {0};

	CHECK(!control_folder(0, folder) && !*folder);
	CHECK(control_folder_make(folder, &err) == -ENOENT);
	CHECK(strstr(err.text, "set XDG_RUNTIME_DIR"));
	return 0;
}

static int is_refused(void)
{
	char folder[CONTROL_FOLDER_MAX];
	struct weft_error err = {0};

	CHECK(control_folder_make(folder, NULL) == 0);
	CHECK(control_folder_lock(folder, &err) == -EPERM);
	CHECK(strstr(err.text, folder) && strstr(err.text, "0700"));
	return 0;
}

static void a_folder_of_the_users_is_taken(void **state)
{
	runtime_is(USER, 0700);
	as_user(is_in_runtime);
	runtime_is(USER, 0755);
	as_user(is_in_runtime);
}

static void one_that_others_may_write_or_own_is_passed_over(void **state)
{
	runtime_is(USER, 01777);
	as_user(is_nowhere);
	runtime_is(USER, 0770);
	as_user(is_nowhere);
	runtime_is(0, 0700);
	as_user(is_nowhere);
	setenv("XDG_RUNTIME_DIR", "/tmp", 1);
	as_user(is_nowhere);
	setenv("XDG_RUNTIME_DIR", "run", 1);
	as_user(is_nowhere);
	setenv("XDG_RUNTIME_DIR", "/a/path/that/is/longer/than/the/address/of/a/socket",
		1);
	as_user(is_nowhere);
	unsetenv("XDG_RUNTIME_DIR");
	as_user(is_nowhere);
}

static void what_is_there_of_others_is_refused(void **state)
{
	char folder[64];

	runtime_is(USER, 0700);
	snprintf(folder, sizeof(folder), "%s/run/weft", top);
	assert_int_equal(mkdir(folder, 0700), 0); /* root's */
	as_user(is_refused);
	assert_int_equal(chown(folder, USER, 0), 0);
	assert_int_equal(chmod(folder, 0777), 0);
	as_user(is_refused);
	assert_int_equal(rmdir(folder), 0);
}

static void roots_is_in_run(void **state)
{
	char folder[CONTROL_FOLDER_MAX];

	runtime_is(0, 0700);
	assert_true(control_folder(0, folder));
	assert_string_equal(folder, "/run/weft");
	assert_false(control_folder(1, folder));
}

static int make_top(void **state)
{
	return !mkdtemp(top) || chmod(top, 0755);
}

static int remove_top(void **state)
{
	char path[64];

	snprintf(path, sizeof(path), "%s/run", top);
	rmdir(path);
	return rmdir(top);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_folder_of_the_users_is_taken),
		cmocka_unit_test(one_that_others_may_write_or_own_is_passed_over),
		cmocka_unit_test(what_is_there_of_others_is_refused),
		cmocka_unit_test(roots_is_in_run),
	};

	if (geteuid() != 0) {
		puts("skipped: needs root, to be another user");
		return 0;
	}
	return cmocka_run_group_tests(tests, make_top, remove_top);
}
