/* SPDX-License-Identifier: Apache-2.0 */
/* POSIX ACLs, through their extended attributes as libacl does. */
#include "tests/mount/posix/posix.h"

#include <linux/posix_acl.h>
#include <linux/posix_acl_xattr.h>
#include <sys/xattr.h>

#define ACCESS  "system.posix_acl_access"
#define DEFAULT "system.posix_acl_default"
#define NONE    0xffffffffu

struct acl {
	struct posix_acl_xattr_header header;
	struct posix_acl_xattr_entry entry[16];
};

/* Sets an ACL of `count` entries {tag, perm, id}. */
static int set_acl(
	const char *path, const char *name, const uint32_t (*entries)[3], size_t count)
{
	struct acl acl = {.header.a_version = POSIX_ACL_XATTR_VERSION};

	for (size_t i = 0; i < count; i++)
		acl.entry[i] = (struct posix_acl_xattr_entry){
			(uint16_t)entries[i][0], (uint16_t)entries[i][1], entries[i][2]};
	return setxattr(
		path, name, &acl, sizeof(acl.header) + count * sizeof(acl.entry[0]), 0);
}
#define SET(path, name, ...)                                                             \
	set_acl(path, name, (const uint32_t[][3])__VA_ARGS__,                            \
		sizeof((const uint32_t[][3])__VA_ARGS__) / 12)

/* The permissions of an entry of a path's ACL; -1: no such entry, -2: no ACL. */
static int perm_of(const char *path, const char *name, unsigned tag, uint32_t id)
{
	struct acl acl;
	ssize_t len = getxattr(path, name, &acl, sizeof(acl));

	if (len < 0)
		return -2;
	for (size_t i = 0; i < ((size_t)len - sizeof(acl.header)) / sizeof(acl.entry[0]);
		i++)
		if (acl.entry[i].e_tag == tag && acl.entry[i].e_id == id)
			return acl.entry[i].e_perm;
	return -1;
}

static bool may(uid_t uid, gid_t gid, const char *path, int how)
{
	bool ok;

	posix_act_as(uid, gid, 0);
	ok = faccessat(AT_FDCWD, path, how, AT_EACCESS) == 0;
	as_root();
	return ok;
}

static void named_users_and_groups_get_in(void **state)
{
	posix_file("f", "x");
	must(chown("f", 1, 1));
	must(chmod("f", 0600));
	must(SET("f", ACCESS,
		{{ACL_USER_OBJ, 6, NONE}, {ACL_USER, 4, ALICE}, {ACL_GROUP_OBJ, 0, NONE},
			{ACL_GROUP, 6, GROUP}, {ACL_MASK, 6, NONE},
			{ACL_OTHER, 0, NONE}}));
	assert_int_equal(posix_mode("f"), 0660); /* the group bits are the mask */
	assert_true(may(ALICE, ALICE, "f", R_OK));
	assert_false(may(ALICE, ALICE, "f", W_OK));
	assert_true(may(BOB, GROUP, "f", R_OK | W_OK));
	assert_false(may(BOB, BOB, "f", R_OK));
	/* chmod of the group bits moves the mask */
	must(chmod("f", 0640));
	assert_int_equal(perm_of("f", ACCESS, ACL_MASK, NONE), 4);
	assert_int_equal(perm_of("f", ACCESS, ACL_GROUP_OBJ, NONE), 0);
	assert_false(may(BOB, GROUP, "f", W_OK));
	assert_true(may(BOB, GROUP, "f", R_OK));
	must(chmod("f", 0613));
	assert_int_equal(perm_of("f", ACCESS, ACL_OTHER, NONE), 3);
	assert_false(may(ALICE, ALICE, "f", R_OK));
	must(chmod("f", 0644));
	must(removexattr("f", ACCESS));
	assert_int_equal(perm_of("f", ACCESS, ACL_MASK, NONE), -2);
	assert_true(may(ALICE, ALICE, "f", R_OK));
}

static void a_plain_acl_is_the_mode(void **state)
{
	posix_file("f", "x");
	must(SET("f", ACCESS,
		{{ACL_USER_OBJ, 7, NONE}, {ACL_GROUP_OBJ, 5, NONE},
			{ACL_OTHER, 1, NONE}}));
	assert_int_equal(posix_mode("f"), 0751);
	assert_int_equal(perm_of("f", ACCESS, ACL_USER_OBJ, NONE), -2);
	assert_int_equal(listxattr("f", NULL, 0), 0);
}

static void wrong_acls_are_refused(void **state)
{
	struct acl acl = {.header.a_version = POSIX_ACL_XATTR_VERSION};

	posix_file("f", "x");
	must(mkdir("d", 0755));
	refuses(EINVAL,
		SET("f", ACCESS, {{ACL_USER_OBJ, 7, NONE}, {ACL_OTHER, 1, NONE}}));
	refuses(EINVAL, SET("f", ACCESS,
				{{ACL_USER_OBJ, 7, NONE}, {ACL_USER, 7, 5},
					{ACL_GROUP_OBJ, 5, NONE}, {ACL_OTHER, 1, NONE}}));
	refuses(EINVAL, SET("f", ACCESS,
				{{ACL_GROUP_OBJ, 5, NONE}, {ACL_USER_OBJ, 7, NONE},
					{ACL_OTHER, 1, NONE}}));
	refuses(EINVAL, SET("f", ACCESS,
				{{ACL_USER_OBJ, 77, NONE}, {ACL_GROUP_OBJ, 5, NONE},
					{ACL_OTHER, 1, NONE}}));
	refuses(EINVAL, setxattr("f", ACCESS, &acl, 7, 0));
	acl.header.a_version = 1;
	refuses(EOPNOTSUPP, setxattr("f", ACCESS, &acl, sizeof(acl.header), 0));
	refuses(EACCES, SET("f", DEFAULT,
				{{ACL_USER_OBJ, 7, NONE}, {ACL_GROUP_OBJ, 5, NONE},
					{ACL_OTHER, 1, NONE}}));
	must(chown("f", ALICE, ALICE));
	posix_act_as(BOB, BOB, 0);
	refuses(EPERM, SET("f", ACCESS,
			       {{ACL_USER_OBJ, 7, NONE}, {ACL_GROUP_OBJ, 5, NONE},
				       {ACL_OTHER, 1, NONE}}));
}

static void default_acls_are_inherited(void **state)
{
	must(mkdir("d", 0755));
	must(SET("d", DEFAULT,
		{{ACL_USER_OBJ, 7, NONE}, {ACL_USER, 7, ALICE}, {ACL_GROUP_OBJ, 5, NONE},
			{ACL_MASK, 7, NONE}, {ACL_OTHER, 0, NONE}}));
	assert_int_equal(posix_mode("d"), 0755);
	umask(077); /* has no say where there is a default ACL */
	must(close((int)must(open("d/f", O_CREAT | O_RDWR, 0664))));
	must(mkdir("d/sub", 0775));
	must(mkfifo("d/p", 0666));
	must(symlink("x", "d/s"));
	int fd = (int)must(open("d", O_TMPFILE | O_RDWR, 0666));

	umask(022);
	assert_int_equal(posix_fstat(fd).st_mode & 0777, 0660);
	must(close(fd));
	assert_int_equal(posix_mode("d/f"), 0660);
	assert_int_equal(perm_of("d/f", ACCESS, ACL_USER, ALICE), 7);
	assert_int_equal(perm_of("d/f", ACCESS, ACL_MASK, NONE), 6);
	assert_int_equal(perm_of("d/f", DEFAULT, ACL_USER_OBJ, NONE), -2);
	assert_int_equal(posix_mode("d/p"), 0660);
	assert_int_equal(posix_mode("d/sub"), 0770);
	assert_int_equal(perm_of("d/sub", DEFAULT, ACL_USER, ALICE), 7);
	assert_int_equal(perm_of("d/sub", ACCESS, ACL_USER, ALICE), 7);
	assert_int_equal(perm_of("d/s", ACCESS, ACL_USER, ALICE), -2);
	assert_true(may(ALICE, ALICE, "d/f", R_OK | W_OK));
	assert_true(may(ALICE, ALICE, "d/sub", R_OK | W_OK | X_OK));
	must(removexattr("d", DEFAULT));
	posix_file("d/g", "");
	assert_int_equal(posix_mode("d/g"), 0644);
	assert_int_equal(perm_of("d/g", ACCESS, ACL_USER, ALICE), -2);
}

static void an_acl_by_no_member_takes_setgid_off(void **state)
{
	posix_file("f", "x");
	must(chown("f", ALICE, GROUP));
	must(chmod("f", 02755));
	posix_act_as(ALICE, ALICE, 0);
	must(SET("f", ACCESS,
		{{ACL_USER_OBJ, 7, NONE}, {ACL_USER, 7, BOB}, {ACL_GROUP_OBJ, 5, NONE},
			{ACL_MASK, 7, NONE}, {ACL_OTHER, 0, NONE}}));
	assert_int_equal(posix_mode("f"), 0770);
	as_root();
	must(chmod("f", 02755));
	posix_act_as(ALICE, ALICE, GROUP);
	must(SET("f", ACCESS,
		{{ACL_USER_OBJ, 7, NONE}, {ACL_USER, 7, BOB}, {ACL_GROUP_OBJ, 5, NONE},
			{ACL_MASK, 7, NONE}, {ACL_OTHER, 0, NONE}}));
	assert_int_equal(posix_mode("f"), 02770);
}

static const struct CMUnitTest tests[] = {
	posix_test(named_users_and_groups_get_in),
	posix_test(a_plain_acl_is_the_mode),
	posix_test(wrong_acls_are_refused),
	posix_test(default_acls_are_inherited),
	posix_test(an_acl_by_no_member_takes_setgid_off),
};
POSIX_TOPIC(acls, tests);
