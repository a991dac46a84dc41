/* SPDX-License-Identifier: Apache-2.0 */
/* Attributes, extended attributes and ACLs. */
#include <limits.h>
#include <sys/xattr.h>

#include "tests/unit/ops_fixture.h"

#define ROOT DISK_INO_ROOT

/* ---- setattr ---------------------------------------------------------------------- */

static struct disk_inode set_attr(
	struct fs *fs, uint64_t ino, const struct ops_caller *c, struct ops_setattr set)
{
	struct ops_attr a;
	struct disk_inode now;

	OK(ops_setattr(fs, ino, c, &set, &a));
	now = attr_of(fs, ino);
	HOLDS(memcmp(&now, &a.inode, sizeof(now)) == 0);
	return now;
}

static uint32_t chmod_of(
	struct fs *fs, uint64_t ino, const struct ops_caller *c, uint32_t mode)
{
	return set_attr(
		fs, ino, c, (struct ops_setattr){.set = OPS_SET_MODE, .mode = mode})
		.mode;
}

static uint32_t chown_of(
	struct fs *fs, uint64_t ino, const struct ops_caller *c, uint32_t uid)
{
	return set_attr(fs, ino, c, (struct ops_setattr){.set = OPS_SET_UID, .uid = uid})
		.mode;
}

static void modes(struct fs *fs)
{
	struct ops_caller outsider = {.uid = 5, .gid = 5},
			  member = {.uid = 5, .in_group = true};
	struct ops_setattr set = {.set = OPS_SET_MODE, .mode = 0700};
	uint64_t f = mk_file(fs, ROOT, "f"), d = mk_dir(fs, ROOT, "d");
	struct ops_attr a;

	EQ(chmod_of(fs, f, &root_user, 07777), S_IFREG | 07777);
	EQ(chmod_of(fs, f, &outsider, 02755), S_IFREG | 0755);
	EQ(chmod_of(fs, f, &member, 02755), S_IFREG | 02755);
	EQ(chmod_of(fs, d, &outsider, 02755), S_IFDIR | 0755);
	EQ(chmod_of(fs, f, &root_user, 0177777), S_IFREG | 07777);

	/* chown takes the bits, everyone's */
	EQ(chown_of(fs, f, &root_user, 7), S_IFREG | 01777);
	EQ(attr_of(fs, f).uid, 7);
	chmod_of(fs, f, &root_user, 06655);
	EQ(chown_of(fs, f, &member, 8), S_IFREG | 0655);
	chmod_of(fs, f, &root_user, 02645);
	EQ(chown_of(fs, f, &member, 8), S_IFREG | 02645);
	EQ(chown_of(fs, f, &outsider, 8), S_IFREG | 0645);
	chmod_of(fs, d, &root_user, 06755);
	EQ(chown_of(fs, d, &outsider, 8), S_IFDIR | 06755);

	OK(try_symlink(fs, ROOT, "l", "f"));
	EQ(ops_setattr(fs, ino_of(fs, ROOT, "l"), &root_user, &set, &a), -EOPNOTSUPP);
	EQ(ops_setattr(fs, 4711, &root_user, &set, &a), -ENOENT);
}

static void chmod_and_chown_mind_the_set_id_bits(void **state)
{
	with_fs(modes);
}

static const struct ops_setattr no_one = {.set = OPS_CHOWN_NO_ONE};

/* The mode after it, and the ctime has moved. */
static uint32_t chown_no_one_of(struct fs *fs, uint64_t ino, const struct ops_caller *c)
{
	int64_t before = attr_of(fs, ino).ctime_ns;

	rt_sleep_ns(1000000);
	HOLDS(set_attr(fs, ino, c, no_one).ctime_ns > before);
	return attr_of(fs, ino).mode;
}

/* -EPERM, and nothing has changed. */
static void chown_no_one_refused(struct fs *fs, uint64_t ino, const struct ops_caller *c)
{
	struct disk_inode before = attr_of(fs, ino), after;
	struct ops_attr a;

	EQ(ops_setattr(fs, ino, c, &no_one, &a), -EPERM);
	after = attr_of(fs, ino);
	HOLDS(memcmp(&before, &after, sizeof(after)) == 0);
}

static void chowns_to_no_one(struct fs *fs)
{
	/* as requests are: the kernel does not tell of groups */
	const struct ops_caller owner = {.uid = 5, .keeps_setid = true, .in_group = true},
				other = {.uid = 6, .keeps_setid = true, .in_group = true};
	uint64_t f = mk_file(fs, ROOT, "f"), d = mk_dir(fs, ROOT, "d");
	struct disk_inode before, after;
	struct ops_attr fifo;
	struct ops_file *h;
	char buf[8];

	OK(ops_mknod(fs, ROOT, nm("p"), &owner, S_IFIFO | 04755, 0, 0, &fifo));
	chown_of(fs, f, &root_user, 5);
	chown_of(fs, d, &root_user, 5);
	/* there is nothing to take: anybody's, and the ctime moves */
	EQ(chown_no_one_of(fs, f, &other), attr_of(fs, f).mode);
	chmod_of(fs, f, &root_user, 02745);
	EQ(chown_no_one_of(fs, f, &other), S_IFREG | 02745);
	chmod_of(fs, d, &root_user, 06755);
	EQ(chown_no_one_of(fs, d, &other), S_IFDIR | 06755);
	/* the owner's, and root's */
	chmod_of(fs, f, &root_user, 06755);
	OK(ops_setxattr(fs, f, &root_user, "security.capability", "caps", 4, 0));
	chown_no_one_refused(fs, f, &other);
	EQ(ops_getxattr(fs, f, "security.capability", buf, sizeof(buf)), 4);
	EQ(chown_no_one_of(fs, f, &owner), S_IFREG | 0755);
	EQ(ops_getxattr(fs, f, "security.capability", buf, sizeof(buf)), -ENODATA);
	chmod_of(fs, f, &root_user, 04644);
	chown_no_one_refused(fs, f, &other);
	EQ(chown_no_one_of(fs, f, &root_user), S_IFREG | 0644);
	chown_no_one_refused(fs, fifo.ino, &other);
	EQ(chown_no_one_of(fs, fifo.ino, &owner), S_IFIFO | 0755);
	/* it may be a write that follows: who is open to read does not write */
	chmod_of(fs, f, &root_user, 06755);
	OK(ops_open(fs, f, &other, O_RDONLY, &h, NULL));
	chown_no_one_refused(fs, f, &other);
	ops_close(fs, h);
	OK(ops_open(fs, f, &other, O_WRONLY, &h, NULL));
	before = attr_of(fs, f);
	after = set_attr(fs, f, &other, no_one);
	HOLDS(memcmp(&before, &after, sizeof(after)) == 0);
	EQ(chown_no_one_of(fs, f, &owner), S_IFREG | 0755);
	ops_close(fs, h);
}

static void chown_to_no_one_takes_nothing_of_others(void **state)
{
	with_fs(chowns_to_no_one);
}

static void times(struct fs *fs)
{
	uint64_t f = mk_file(fs, ROOT, "f");
	struct disk_inode before = attr_of(fs, f), i;

	rt_sleep_ns(1000000);
	i = set_attr(fs, f, &plain_user,
		(struct ops_setattr){.set = OPS_SET_ATIME | OPS_SET_MTIME,
			.atime_ns = -5,
			.mtime_ns = 123456789012345678});
	EQ(i.atime_ns, -5);
	EQ(i.mtime_ns, 123456789012345678);
	HOLDS(i.ctime_ns > before.ctime_ns);
	EQ(i.btime_ns, before.btime_ns);
	i = set_attr(fs, f, &plain_user, (struct ops_setattr){.set = OPS_SET_ATIME_NOW});
	HOLDS(i.atime_ns > before.atime_ns && i.mtime_ns == 123456789012345678);
	i = set_attr(fs, f, &plain_user, (struct ops_setattr){.set = OPS_SET_MTIME_NOW});
	HOLDS(i.mtime_ns == i.ctime_ns);
	i = set_attr(fs, f, &plain_user,
		(struct ops_setattr){.set = OPS_SET_CTIME, .ctime_ns = 77});
	EQ(i.ctime_ns, 77);
	i = set_attr(fs, f, &plain_user, (struct ops_setattr){.set = 0});
	EQ(i.ctime_ns, 77);
}

static void times_are_set_as_asked(void **state)
{
	with_fs(times);
}

static void sizes(struct fs *fs)
{
	struct ops_setattr set = {
		.set = OPS_SET_SIZE | OPS_SET_MODE, .size = 10000, .mode = 0600};
	uint64_t f = mk_file(fs, ROOT, "f");
	struct disk_inode before = attr_of(fs, f), i;
	struct ops_attr a;

	rt_sleep_ns(1000000);
	i = set_attr(fs, f, &plain_user, set);
	EQ(i.size, 10000);
	EQ(i.mode, S_IFREG | 0600);
	HOLDS(i.mtime_ns > before.mtime_ns && i.ctime_ns == i.mtime_ns);
	chmod_of(fs, f, &root_user, 06777);
	set = (struct ops_setattr){.set = OPS_SET_SIZE | OPS_KILL_SETID, .size = 1};
	EQ(set_attr(fs, f, &plain_user, set).mode, S_IFREG | 0777);
	EQ(ops_setattr(fs, ROOT, &root_user, &set, &a), -EISDIR);
}

static void a_size_is_set_with_all_that_follows(void **state)
{
	with_fs(sizes);
}

/* ---- xattrs ----------------------------------------------------------------------- */

static int set_x(struct fs *fs, uint64_t ino, const char *name, const char *value)
{
	return ops_setxattr(fs, ino, &root_user, name, value, strlen(value), 0);
}

static void xattr_errors(struct fs *fs)
{
	uint64_t f = mk_file(fs, ROOT, "f"), l, d = mk_dir(fs, ROOT, "d");
	char longest[DISK_NAME_MAX + 2], buf[64];

	OK(try_symlink(fs, ROOT, "l", "x"));
	l = ino_of(fs, ROOT, "l");
	EQ(set_x(fs, f, "", "v"), -ERANGE);
	memset(longest, 'x', sizeof(longest));
	memcpy(longest, "user.", 5);
	longest[DISK_NAME_MAX + 1] = '\0';
	EQ(set_x(fs, f, longest, "v"), -ERANGE);
	longest[DISK_NAME_MAX] = '\0';
	OK(set_x(fs, f, longest, "v"));
	EQ(ops_getxattr(fs, f, longest, buf, sizeof(buf)), 1);
	EQ(set_x(fs, f, "other.x", "v"), -EOPNOTSUPP);
	EQ(set_x(fs, f, "system.x", "v"), -EOPNOTSUPP);
	EQ(set_x(fs, f, "user.", "v"), -EINVAL);
	EQ(set_x(fs, l, "user.x", "v"), -EPERM);
	EQ(ops_removexattr(fs, l, "user.x"), -EPERM);
	EQ(ops_getxattr(fs, l, "user.x", buf, sizeof(buf)), -ENODATA);
	OK(set_x(fs, l, "trusted.x", "v"));
	OK(set_x(fs, l, "security.x", "v"));
	OK(set_x(fs, d, "user.x", "v"));
	EQ(set_x(fs, 4711, "user.x", "v"), -ENOENT);
	EQ(ops_getxattr(fs, 4711, "user.x", buf, 0), -ENOENT);
	EQ(ops_listxattr(fs, 4711, buf, 0), -ENOENT);

	EQ(ops_setxattr(fs, f, &root_user, "user.a", "1", 1, XATTR_REPLACE), -ENODATA);
	OK(ops_setxattr(fs, f, &root_user, "user.a", "1", 1, XATTR_CREATE));
	EQ(ops_setxattr(fs, f, &root_user, "user.a", "2", 1, XATTR_CREATE), -EEXIST);
	OK(ops_setxattr(fs, f, &root_user, "user.a", "33", 2, XATTR_REPLACE));
	EQ(ops_setxattr(fs, f, &root_user, "user.a", "2", 1, 8), -EINVAL);
	EQ(ops_getxattr(fs, f, "user.a", buf, 1), -ERANGE);
	EQ(ops_getxattr(fs, f, "user.a", NULL, 0), 2);
	EQ(ops_getxattr(fs, f, "user.a", buf, 2), 2);
	HOLDS(memcmp(buf, "33", 2) == 0);
	EQ(ops_setxattr(fs, f, &root_user, "user.a", buf, DISK_XATTR_VALUE_MAX + 1, 0),
		-E2BIG);
	EQ(ops_removexattr(fs, f, "user.b"), -ENODATA);
	OK(ops_removexattr(fs, f, "user.a"));
	EQ(ops_removexattr(fs, f, "user.a"), -ENODATA);
	HOLDS(attr_of(fs, f).flags == DISK_INODE_HAS_XATTR);
	OK(ops_removexattr(fs, f, longest));
	EQ(attr_of(fs, f).flags, 0);
	EQ(ops_removexattr(fs, f, longest), -ENODATA);
}

static void xattrs_fail_as_elsewhere(void **state)
{
	with_fs(xattr_errors);
}

static void fill(uint8_t *buf, size_t len, unsigned seed)
{
	for (size_t i = 0; i < len; i++)
		buf[i] = (uint8_t)(i * 7 + i / 251 + seed);
}

static void check_value(
	struct fs *fs, uint64_t ino, const char *name, const uint8_t *want, size_t len)
{
	uint8_t *got = (uint8_t *)rt_alloc(DISK_XATTR_VALUE_MAX);

	HOLDS(got);
	EQ(ops_getxattr(fs, ino, name, NULL, 0), len);
	if (len > 0)
		EQ(ops_getxattr(fs, ino, name, got, DISK_XATTR_VALUE_MAX), len);
	HOLDS(memcmp(got, want, len) == 0);
	if (len > 1)
		EQ(ops_getxattr(fs, ino, name, got, len - 1), -ERANGE);
	rt_free(got);
}

static uint64_t free_pages(struct fs *fs)
{
	struct statvfs s;

	OK(ops_statfs(fs, &s));
	return s.f_bfree;
}

static void xattr_sizes(struct fs *fs)
{
	static const size_t lengths[] = {0, 1, 511, 512, 513, 4095, 4096, 4097, 12288,
		65535, 65536, 3, 20000, 512, 65536, 0};
	uint64_t f = mk_file(fs, ROOT, "f"), before = free_pages(fs);
	uint8_t *value = (uint8_t *)rt_alloc(DISK_XATTR_VALUE_MAX);

	HOLDS(value);
	for (unsigned i = 0; i < ARRAY_SIZE(lengths); i++) {
		size_t pages = lengths[i] > 512 ? DIV_UP(lengths[i], PAGE_SIZE) : 0;

		fill(value, lengths[i], i);
		OK(ops_setxattr(fs, f, &root_user, "user.v", value, lengths[i], 0));
		check_value(fs, f, "user.v", value, lengths[i]);
		EQ(attr_of(fs, f).blocks, pages);
		EQ(free_pages(fs), before - pages);
	}
	fill(value, 65536, 99);
	OK(ops_setxattr(fs, f, &root_user, "user.v", value, 65536, 0));
	OK(ops_setxattr(fs, f, &root_user, "user.w", value, 5000, 0));
	check_value(fs, f, "user.v", value, 65536);
	OK(ops_removexattr(fs, f, "user.v"));
	check_value(fs, f, "user.w", value, 5000);
	EQ(attr_of(fs, f).blocks, 2);
	OK(ops_unlink(fs, ROOT, nm("f")));
	EQ(free_pages(fs), before);
	rt_free(value);
}

static void values_of_any_size_come_back(void **state)
{
	with_fs(xattr_sizes);
}

static void values_come_back_through_a_tiny_cache(void **state)
{
	struct fs_test t = {"disk", 64 << 20, 64 * PAGE_SIZE, xattr_sizes};

	OK(rt_sim_run(3, NULL, test_fs_main, &t));
}

static void xattr_lists(struct fs *fs)
{
	uint64_t f = mk_file(fs, ROOT, "f");
	static char list[XATTR_LIST_MAX], name[DISK_NAME_MAX + 1];
	unsigned n = 0, found = 0;
	int rc, len;

	EQ(ops_listxattr(fs, f, list, sizeof(list)), 0);
	OK(set_x(fs, f, "user.one", "1"));
	OK(set_x(fs, f, "trusted.two", "2"));
	EQ(ops_listxattr(fs, f, NULL, 0), 21);
	EQ(ops_listxattr(fs, f, list, 20), -ERANGE);
	EQ(ops_listxattr(fs, f, list, 21), 21);
	HOLDS(memmem(list, 21, "user.one", 9) && memmem(list, 21, "trusted.two", 12));
	OK(ops_removexattr(fs, f, "trusted.two"));
	OK(ops_removexattr(fs, f, "user.one"));

	/* as many as a list can name, and not one more */
	for (rc = 0; rc == 0; n++) {
		snprintf(name, sizeof(name), "user.%0200u", n);
		rc = set_x(fs, f, name, "v");
	}
	EQ(rc, -ENOSPC);
	n--;
	EQ(n, XATTR_LIST_MAX / 206);
	len = ops_listxattr(fs, f, list, sizeof(list));
	EQ(len, n * 206);
	for (const char *at = list; at < list + len; at += strlen(at) + 1, found++)
		EQ(ops_getxattr(fs, f, at, NULL, 0), 1);
	EQ(found, n);
}

static void lists_name_them_all(void **state)
{
	with_fs(xattr_lists);
}

static void xattr_collisions(struct fs *fs)
{
	uint64_t f;
	char name[32], value[32], got[32];

	fs->hash_mask = 0;
	f = mk_file(fs, ROOT, "f");
	for (unsigned i = 0; i < 8; i++) {
		snprintf(name, sizeof(name), "user.n%u", i);
		snprintf(value, sizeof(value), "value %u", i);
		OK(set_x(fs, f, name, value));
	}
	EQ(set_x(fs, f, "user.n8", "v"), -ENOSPC);
	OK(ops_removexattr(fs, f, "user.n0"));
	OK(ops_removexattr(fs, f, "user.n4"));
	for (unsigned i = 1; i < 8; i++) {
		snprintf(name, sizeof(name), "user.n%u", i);
		snprintf(value, sizeof(value), "value %u", i);
		EQ(ops_getxattr(fs, f, name, got, sizeof(got)), i == 4 ? -ENODATA : 7);
		if (i != 4)
			HOLDS(memcmp(got, value, 7) == 0);
	}
	OK(set_x(fs, f, "user.n7", "changed"));
	OK(set_x(fs, f, "user.n8", "v"));
	OK(set_x(fs, f, "user.n9", "v"));
	EQ(set_x(fs, f, "user.n10", "v"), -ENOSPC);
	EQ(ops_getxattr(fs, f, "user.n7", got, sizeof(got)), 7);
	HOLDS(memcmp(got, "changed", 7) == 0);
}

static void names_of_one_hash_are_told_apart(void **state)
{
	with_fs(xattr_collisions);
}

static void caps(struct fs *fs)
{
	struct ops_setattr set = {.set = OPS_SET_SIZE, .size = 5};
	uint64_t f = mk_file(fs, ROOT, "f");
	char buf[8];

	OK(set_x(fs, f, "security.capability", "caps"));
	HOLDS(attr_of(fs, f).flags & DISK_INODE_HAS_CAPS);
	OK(set_x(fs, f, "user.x", "v"));
	chmod_of(fs, f, &root_user, 0755);
	EQ(ops_getxattr(fs, f, "security.capability", buf, sizeof(buf)), 4);
	chown_of(fs, f, &root_user, 5);
	EQ(ops_getxattr(fs, f, "security.capability", buf, sizeof(buf)), -ENODATA);
	EQ(attr_of(fs, f).flags, DISK_INODE_HAS_XATTR);
	OK(set_x(fs, f, "security.capability", "caps"));
	set_attr(fs, f, &root_user, set);
	EQ(ops_getxattr(fs, f, "security.capability", buf, sizeof(buf)), -ENODATA);
	EQ(ops_getxattr(fs, f, "user.x", buf, sizeof(buf)), 1);
}

static void capabilities_go_with_a_change(void **state)
{
	with_fs(caps);
}

/* Readers of a big value that is being replaced see one value whole. */
static uint64_t shared_file;
static _Atomic bool writer_done;

static void swap_values(struct fs *fs, unsigned n)
{
	uint8_t *buf = (uint8_t *)rt_alloc(DISK_XATTR_VALUE_MAX);

	HOLDS(buf);
	if (n == 0) {
		for (unsigned i = 1; i < 60; i++) {
			size_t len = 600 + i * 1000;

			memset(buf, (int)i, len);
			OK(ops_setxattr(
				fs, shared_file, &root_user, "user.big", buf, len, 0));
		}
		atomic_store(&writer_done, true);
	}
	while (!atomic_load(&writer_done)) {
		int len = ops_getxattr(
			fs, shared_file, "user.big", buf, DISK_XATTR_VALUE_MAX);

		if (len == -ENODATA) {
			rt_yield();
			continue;
		}
		EQ(len, 600 + buf[0] * 1000);
		for (int i = 0; i < len; i++)
			EQ(buf[i], buf[0]);
		rt_yield();
	}
	rt_free(buf);
}

static void big_values_under_readers(struct fs *fs)
{
	shared_file = mk_file(fs, ROOT, "f");
	atomic_store(&writer_done, false);
	crew(fs, 4, swap_values);
}

static void a_big_value_is_seen_whole(void **state)
{
	for (uint64_t seed = 1; seed <= 5; seed++)
		with_fs_sized(seed, 64, 1, big_values_under_readers);
}

/* ---- ACLs ------------------------------------------------------------------------- */

struct ace {
	uint16_t tag, perm;
	uint32_t id;
};
#define NO_ID UINT32_MAX

static size_t acl_make(uint8_t *buf, const struct ace *e, size_t count)
{
	uint32_t version = 2;

	memcpy(buf, &version, 4);
	memcpy(buf + 4, e, count * sizeof(*e));
	return 4 + count * sizeof(*e);
}

static int set_acl(struct fs *fs, uint64_t ino, const char *name,
	const struct ops_caller *c, const struct ace *e, size_t count)
{
	uint8_t buf[4 + 128 * sizeof(*e)];

	return ops_setxattr(fs, ino, c, name, buf, acl_make(buf, e, count), 0);
}

static void expect_acl(
	struct fs *fs, uint64_t ino, const char *name, const struct ace *e, size_t count)
{
	uint8_t want[1024], got[1024];
	size_t len = acl_make(want, e, count);

	EQ(ops_getxattr(fs, ino, name, got, sizeof(got)), len);
	HOLDS(memcmp(want, got, len) == 0);
}

#define ACCESS  "system.posix_acl_access"
#define DEFAULT "system.posix_acl_default"

static void acl_checks(struct fs *fs)
{
	static const struct ace good[] = {
		{1, 7, NO_ID}, {2, 6, 5}, {4, 5, NO_ID}, {16, 7, NO_ID}, {32, 4, NO_ID}};
	uint64_t f = mk_file(fs, ROOT, "f"), d = mk_dir(fs, ROOT, "d"), l;
	struct ace bad[70];
	uint8_t buf[8];

	OK(set_acl(fs, f, ACCESS, &root_user, good, 5));
	expect_acl(fs, f, ACCESS, good, 5);
	EQ(attr_of(fs, f).mode, S_IFREG | 0774);
	HOLDS(attr_of(fs, f).flags & DISK_INODE_HAS_ACL);
	/* a mask is needed, each of the others once, in order, with sane bits */
	for (unsigned drop = 0; drop < 5; drop++) {
		unsigned n = 0;

		for (unsigned i = 0; i < 5; i++)
			if (i != drop)
				bad[n++] = good[i];
		EQ(set_acl(fs, f, ACCESS, &root_user, bad, 4), drop == 1 ? 0 : -EINVAL);
	}
	for (unsigned i = 0; i < 4; i++) {
		memcpy(bad, good, sizeof(good));
		bad[i] = good[i + 1];
		bad[i + 1] = good[i];
		EQ(set_acl(fs, f, ACCESS, &root_user, bad, 5), -EINVAL);
		memcpy(bad, good, sizeof(good));
		bad[i].perm = 8;
		EQ(set_acl(fs, f, ACCESS, &root_user, bad, 5), -EINVAL);
		bad[i] = good[i];
		bad[i].tag = 3;
		EQ(set_acl(fs, f, ACCESS, &root_user, bad, 5), -EINVAL);
	}
	EQ(ops_setxattr(fs, f, &root_user, ACCESS, "\1\0\0\0", 4, 0), -EOPNOTSUPP);
	EQ(ops_setxattr(fs, f, &root_user, ACCESS, "\2\0\0", 3, 0), -EINVAL);
	EQ(ops_setxattr(fs, f, &root_user, ACCESS, "\2\0\0\0xyz", 7, 0), -EINVAL);
	bad[0] = good[0];
	for (unsigned i = 1; i < 67; i++)
		bad[i] = (struct ace){2, 6, i};
	memcpy(bad + 67, good + 2, 3 * sizeof(*bad));
	EQ(set_acl(fs, f, ACCESS, &root_user, bad, 70), -ENOSPC);

	EQ(set_acl(fs, f, DEFAULT, &root_user, good, 5), -EACCES);
	OK(set_acl(fs, d, DEFAULT, &root_user, good, 5));
	OK(try_symlink(fs, ROOT, "l", "x"));
	l = ino_of(fs, ROOT, "l");
	EQ(set_acl(fs, l, ACCESS, &root_user, good, 5), -EOPNOTSUPP);
	OK(ops_removexattr(fs, d, DEFAULT));
	OK(ops_removexattr(fs, d, DEFAULT));
	EQ(attr_of(fs, d).flags, 0);
	EQ(ops_getxattr(fs, d, DEFAULT, buf, sizeof(buf)), -ENODATA);
}

static void acls_are_checked(void **state)
{
	with_fs(acl_checks);
}

static void acl_follows_mode(struct fs *fs)
{
	struct ace acl[] = {
		{1, 6, NO_ID}, {2, 7, 5}, {4, 4, NO_ID}, {16, 7, NO_ID}, {32, 0, NO_ID}};
	static const struct ace minimal[] = {
		{1, 7, NO_ID}, {4, 5, NO_ID}, {32, 1, NO_ID}};
	uint64_t f = mk_file(fs, ROOT, "f");
	uint8_t buf[64];

	chmod_of(fs, f, &root_user, 02755);
	OK(set_acl(fs, f, ACCESS, &root_user, acl, 5));
	EQ(attr_of(fs, f).mode, S_IFREG | 02670);
	EQ(chmod_of(fs, f, &root_user, 02751), S_IFREG | 02751);
	acl[0].perm = 7;
	acl[3].perm = 5;
	acl[4].perm = 1;
	expect_acl(fs, f, ACCESS, acl, 5);
	OK(set_acl(fs, f, ACCESS, &plain_user, acl, 5));
	EQ(attr_of(fs, f).mode, S_IFREG | 0751);
	/* what the mode can say needs no ACL */
	OK(set_acl(fs, f, ACCESS, &root_user, minimal, 3));
	EQ(attr_of(fs, f).mode, S_IFREG | 0751);
	EQ(ops_getxattr(fs, f, ACCESS, buf, sizeof(buf)), -ENODATA);
	EQ(attr_of(fs, f).flags, 0);
	/* removing leaves the mode alone */
	OK(set_acl(fs, f, ACCESS, &root_user, acl, 5));
	OK(ops_removexattr(fs, f, ACCESS));
	EQ(attr_of(fs, f).mode, S_IFREG | 0751);
}

static void the_mode_and_the_acl_agree(void **state)
{
	with_fs(acl_follows_mode);
}

static void acl_inherits(struct fs *fs)
{
	static const struct ace def[] = {
		{1, 7, NO_ID}, {2, 6, 5}, {4, 5, NO_ID}, {16, 7, NO_ID}, {32, 5, NO_ID}};
	static const struct ace file[] = {
		{1, 6, NO_ID}, {2, 6, 5}, {4, 5, NO_ID}, {16, 6, NO_ID}, {32, 4, NO_ID}};
	static const struct ace plain[] = {{1, 7, NO_ID}, {4, 5, NO_ID}, {32, 0, NO_ID}};
	uint64_t d = mk_dir(fs, ROOT, "d"), p = mk_dir(fs, ROOT, "p");
	struct ops_attr a;
	struct ops_file *h;
	uint8_t buf[64];

	OK(set_acl(fs, d, DEFAULT, &root_user, def, 5));
	OK(ops_mknod(fs, d, nm("f"), &plain_user, S_IFREG | 0666, 0, 0, &a));
	EQ(a.inode.mode, S_IFREG | 0664); /* the umask has no say */
	expect_acl(fs, a.ino, ACCESS, file, 5);
	EQ(ops_getxattr(fs, a.ino, DEFAULT, buf, sizeof(buf)), -ENODATA);
	OK(ops_create(fs, d, nm("g"), &plain_user, 0666, O_RDWR, &h, &a));
	expect_acl(fs, a.ino, ACCESS, file, 5);
	ops_close(fs, h);
	OK(ops_mkdir(fs, d, nm("s"), &plain_user, 0777, &a));
	EQ(a.inode.mode, S_IFDIR | 0775);
	expect_acl(fs, a.ino, ACCESS, def, 5);
	expect_acl(fs, a.ino, DEFAULT, def, 5);
	OK(ops_symlink(fs, d, nm("l"), &plain_user, "f", &a));
	EQ(a.inode.mode, S_IFLNK | 0777);
	EQ(a.inode.flags, 0);

	/* a default ACL of three entries only shapes the mode */
	OK(set_acl(fs, p, DEFAULT, &root_user, plain, 3));
	OK(ops_mknod(fs, p, nm("f"), &plain_user, S_IFREG | 0666, 0, 0, &a));
	EQ(a.inode.mode, S_IFREG | 0640);
	EQ(a.inode.flags, 0);
	OK(ops_unlink(fs, d, nm("f")));
	OK(ops_rmdir(fs, d, nm("s")));
	EQ(try_lookup(fs, d, "s"), -ENOENT);
}

static void new_files_inherit_default_acls(void **state)
{
	with_fs(acl_inherits);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(chmod_and_chown_mind_the_set_id_bits),
		cmocka_unit_test(chown_to_no_one_takes_nothing_of_others),
		cmocka_unit_test(times_are_set_as_asked),
		cmocka_unit_test(a_size_is_set_with_all_that_follows),
		cmocka_unit_test(xattrs_fail_as_elsewhere),
		cmocka_unit_test(values_of_any_size_come_back),
		cmocka_unit_test(values_come_back_through_a_tiny_cache),
		cmocka_unit_test(lists_name_them_all),
		cmocka_unit_test(names_of_one_hash_are_told_apart),
		cmocka_unit_test(capabilities_go_with_a_change),
		cmocka_unit_test(a_big_value_is_seen_whole),
		cmocka_unit_test(acls_are_checked),
		cmocka_unit_test(the_mode_and_the_acl_agree),
		cmocka_unit_test(new_files_inherit_default_acls),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
