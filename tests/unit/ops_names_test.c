/* SPDX-License-Identifier: Apache-2.0 */
/* Names: each operation's effects and each of its errors. */
#include <dirent.h>

#include "tests/unit/ops_fixture.h"

#define ROOT DISK_INO_ROOT

/* ---- lookup ----------------------------------------------------------------------- */

static void lookups(struct fs *fs)
{
	char longest[DISK_NAME_MAX + 2];
	uint64_t d, e, f;

	d = mk_dir(fs, ROOT, "d");
	e = mk_dir(fs, d, "e");
	f = mk_file(fs, d, "f");
	EQ(ino_of(fs, d, "."), d);
	EQ(ino_of(fs, d, ".."), ROOT);
	EQ(ino_of(fs, e, ".."), d);
	EQ(ino_of(fs, ROOT, ".."), ROOT);
	EQ(ino_of(fs, d, "f"), f);
	EQ(try_lookup(fs, d, "g"), -ENOENT);
	EQ(try_lookup(fs, f, "g"), -ENOTDIR);
	EQ(ino_of(fs, f, "."), f);
	EQ(try_lookup(fs, f, ".."), -ENOTDIR);
	EQ(try_lookup(fs, 999999, "."), -ENOENT);
	EQ(try_lookup(fs, 999999, "g"), -ENOENT);
	EQ(try_lookup(fs, 0, "g"), -ENOENT);
	EQ(try_lookup(fs, UINT64_MAX, "g"), -ENOENT);
	EQ(try_lookup(fs, d, ""), -EINVAL);
	EQ(try_lookup(fs, d, "a/b"), -EINVAL);

	memset(longest, 'x', sizeof(longest));
	longest[DISK_NAME_MAX + 1] = '\0';
	EQ(try_lookup(fs, d, longest), -ENAMETOOLONG);
	EQ(try_file(fs, d, longest), -ENAMETOOLONG);
	longest[DISK_NAME_MAX] = '\0';
	f = mk_file(fs, d, longest);
	EQ(ino_of(fs, d, longest), f);
	OK(ops_unlink(fs, d, nm(longest)));
	EQ(try_lookup(fs, d, longest), -ENOENT);
}

static void lookup_says_what_is_there(void **state)
{
	with_fs(lookups);
}

/* ---- making ----------------------------------------------------------------------- */

static void makes(struct fs *fs)
{
	struct disk_inode root = attr_of(fs, ROOT), i;
	struct ops_attr a;
	uint64_t d;

	OK(ops_mkdir(fs, ROOT, nm("d"), &plain_user, 0777, &a));
	d = a.ino;
	i = attr_of(fs, d);
	HOLDS(memcmp(&i, &a.inode, sizeof(i)) == 0);
	EQ(i.mode, S_IFDIR | 0755);
	EQ(i.uid, 1000);
	EQ(i.gid, 1000);
	EQ(i.nlink, 2);
	EQ(i.size, 0);
	EQ(i.parent, ROOT);
	HOLDS(i.btime_ns > 0 && i.btime_ns == i.mtime_ns && i.btime_ns == i.ctime_ns &&
		i.btime_ns == i.atime_ns);
	EQ(attr_of(fs, ROOT).nlink, root.nlink + 1);
	EQ(attr_of(fs, ROOT).size, root.size + 1);
	HOLDS(attr_of(fs, ROOT).mtime_ns >= i.btime_ns);

	EQ(try_mkdir(fs, ROOT, "d"), -EEXIST);
	EQ(try_file(fs, ROOT, "d"), -EEXIST);
	EQ(try_mkdir(fs, ROOT, "."), -EEXIST);
	EQ(try_mkdir(fs, ROOT, ".."), -EEXIST);
	EQ(try_mkdir(fs, 4711, "x"), -ENOENT);
	EQ(try_mkdir(fs, mk_file(fs, d, "file"), "x"), -ENOTDIR);

	OK(ops_mknod(fs, d, nm("null"), &plain_user, S_IFCHR | 0666, 1, 3, &a));
	EQ(a.inode.mode, S_IFCHR | 0644);
	EQ(a.inode.rdev_major, 1);
	EQ(a.inode.rdev_minor, 3);
	EQ(a.inode.nlink, 1);
	OK(ops_mknod(fs, d, nm("fifo"), &plain_user, S_IFIFO | 0600, 1, 3, &a));
	EQ(a.inode.rdev_major, 0);
	OK(ops_mknod(fs, d, nm("sock"), &plain_user, S_IFSOCK | 0600, 0, 0, &a));
	OK(ops_mknod(fs, d, nm("plain"), &plain_user, 0600, 0, 0, &a));
	EQ(a.inode.mode, S_IFREG | 0600);
	EQ(ops_mknod(fs, d, nm("x"), &plain_user, S_IFDIR | 0600, 0, 0, &a), -EPERM);
	EQ(ops_mknod(fs, d, nm("x"), &plain_user, S_IFLNK | 0600, 0, 0, &a), -EINVAL);
	EQ(attr_of(fs, d).size, 5);
	EQ(attr_of(fs, d).nlink, 2);
}

static void what_is_made_is_as_asked_for(void **state)
{
	with_fs(makes);
}

static void inherits_group(struct fs *fs)
{
	struct ops_setattr set = {
		.set = OPS_SET_MODE | OPS_SET_GID, .mode = 02775, .gid = 77};
	uint64_t d = mk_dir(fs, ROOT, "d");
	struct ops_attr a;

	OK(ops_setattr(fs, d, &root_user, &set, &a));
	EQ(a.inode.mode, S_IFDIR | 02775);
	OK(ops_mkdir(fs, d, nm("e"), &plain_user, 0755, &a));
	EQ(a.inode.mode, S_IFDIR | 02755);
	EQ(a.inode.gid, 77);
	OK(ops_mknod(fs, d, nm("f"), &plain_user, S_IFREG | 0644, 0, 0, &a));
	EQ(a.inode.mode, S_IFREG | 0644);
	EQ(a.inode.gid, 77);
	OK(ops_symlink(fs, d, nm("l"), &plain_user, "f", &a));
	EQ(a.inode.gid, 77);
}

static void a_setgid_directory_hands_its_group_down(void **state)
{
	with_fs(inherits_group);
}

static void symlinks(struct fs *fs)
{
	static const size_t lengths[] = {
		1, 2, 999, 1000, 1001, 2000, 3999, 4000, 4001, 4095};
	char target[4097], got[5000], name[16];
	uint64_t l;

	for (size_t i = 0; i < sizeof(target); i++)
		target[i] = (char)('a' + i % 23);
	for (size_t i = 0; i < ARRAY_SIZE(lengths); i++) {
		char cut = target[lengths[i]];

		target[lengths[i]] = '\0';
		snprintf(name, sizeof(name), "l%zu", lengths[i]);
		OK(try_symlink(fs, ROOT, name, target));
		l = ino_of(fs, ROOT, name);
		EQ(attr_of(fs, l).mode, S_IFLNK | 0777);
		EQ(attr_of(fs, l).size, lengths[i]);
		EQ(ops_readlink(fs, l, got, sizeof(got)), lengths[i]);
		HOLDS(memcmp(got, target, lengths[i]) == 0);
		memset(got, 0, sizeof(got));
		EQ(ops_readlink(fs, l, got, lengths[i] - 1), lengths[i] - 1);
		HOLDS(got[lengths[i] - 1] == 0);
		OK(ops_unlink(fs, ROOT, nm(name)));
		EQ(ops_readlink(fs, l, got, sizeof(got)), -ENOENT);
		target[lengths[i]] = cut;
	}
	EQ(try_symlink(fs, ROOT, "l", ""), -ENOENT);
	target[4096] = '\0';
	EQ(try_symlink(fs, ROOT, "l", target), -ENAMETOOLONG);
	EQ(ops_readlink(fs, ROOT, got, sizeof(got)), -EINVAL);
	OK(try_symlink(fs, ROOT, "l", "x"));
	EQ(try_symlink(fs, ROOT, "l", "y"), -EEXIST);
}

static void symlinks_keep_targets_of_any_length(void **state)
{
	with_fs(symlinks);
}

/* ---- link, unlink, rmdir ---------------------------------------------------------- */

static void links(struct fs *fs)
{
	uint64_t d = mk_dir(fs, ROOT, "d"), f = mk_file(fs, ROOT, "f");
	struct disk_inode before = attr_of(fs, f), i;
	struct ops_attr a;

	OK(ops_link(fs, f, d, nm("g"), &a));
	EQ(a.ino, f);
	EQ(a.inode.nlink, 2);
	HOLDS(a.inode.ctime_ns >= before.ctime_ns);
	EQ(a.inode.mtime_ns, before.mtime_ns);
	EQ(ino_of(fs, d, "g"), f);
	EQ(attr_of(fs, d).size, 1);
	EQ(try_link(fs, f, d, "g"), -EEXIST);
	EQ(try_link(fs, d, ROOT, "h"), -EPERM);
	EQ(try_link(fs, 4711, d, "h"), -ENOENT);
	EQ(try_link(fs, f, 4711, "h"), -ENOENT);
	EQ(try_link(fs, f, f, "h"), -ENOTDIR);
	EQ(try_link(fs, f, d, "."), -EEXIST);

	OK(ops_unlink(fs, ROOT, nm("f")));
	i = attr_of(fs, f);
	EQ(i.nlink, 1);
	EQ(ops_unlink(fs, ROOT, nm("f")), -ENOENT);
	OK(try_link(fs, f, d, "h"));
	OK(ops_unlink(fs, d, nm("g")));
	OK(ops_unlink(fs, d, nm("h")));
	EQ(ops_getattr(fs, f, &a), -ENOENT);
	EQ(try_link(fs, f, d, "h"), -ENOENT);
	EQ(attr_of(fs, d).size, 0);
}

static void hard_links_are_counted(void **state)
{
	with_fs(links);
}

static void many_links(struct fs *fs)
{
	uint64_t d = mk_dir(fs, ROOT, "d"), f = mk_file(fs, ROOT, "f");
	char name[16];

	for (unsigned i = 1; i < DISK_LINK_MAX; i++) {
		snprintf(name, sizeof(name), "%u", i);
		OK(try_link(fs, f, d, name));
	}
	EQ(attr_of(fs, f).nlink, DISK_LINK_MAX);
	EQ(try_link(fs, f, d, "more"), -EMLINK);
	OK(ops_unlink(fs, d, nm("1")));
	OK(try_link(fs, f, d, "more"));
}

static void one_link_too_many_is_emlink(void **state)
{
	with_fs(many_links);
}

static void removals(struct fs *fs)
{
	uint64_t d = mk_dir(fs, ROOT, "d"), e = mk_dir(fs, d, "e"),
		 f = mk_file(fs, d, "f");
	struct ops_attr a;

	EQ(ops_unlink(fs, ROOT, nm("d")), -EISDIR);
	EQ(ops_unlink(fs, ROOT, nm(".")), -EISDIR);
	EQ(ops_unlink(fs, d, nm("x")), -ENOENT);
	EQ(ops_unlink(fs, f, nm("x")), -ENOTDIR);
	EQ(ops_rmdir(fs, d, nm("f")), -ENOTDIR);
	EQ(ops_rmdir(fs, ROOT, nm("d")), -ENOTEMPTY);
	EQ(ops_rmdir(fs, d, nm(".")), -EINVAL);
	EQ(ops_rmdir(fs, d, nm("..")), -ENOTEMPTY);
	EQ(ops_rmdir(fs, d, nm("x")), -ENOENT);
	EQ(attr_of(fs, d).nlink, 3);
	OK(ops_rmdir(fs, d, nm("e")));
	EQ(attr_of(fs, d).nlink, 2);
	EQ(attr_of(fs, d).size, 1);
	EQ(try_file(fs, e, "late"), -ENOENT);
	EQ(try_lookup(fs, e, "late"), -ENOENT);
	EQ(try_lookup(fs, e, ".."), -ENOENT);
	EQ(ops_getattr(fs, e, &a), -ENOENT);
	EQ(ops_rmdir(fs, ROOT, nm("d")), -ENOTEMPTY);
	OK(ops_unlink(fs, d, nm("f")));
	OK(ops_rmdir(fs, ROOT, nm("d")));
	EQ(attr_of(fs, ROOT).nlink, 2);
	EQ(attr_of(fs, ROOT).size, 0);
}

static void removing_follows_posix(void **state)
{
	with_fs(removals);
}

/* ---- create and tmpfile ----------------------------------------------------------- */

static void creates(struct fs *fs)
{
	uint64_t d = mk_dir(fs, ROOT, "d");
	struct ops_file *file, *again;
	struct ops_attr a, b;

	OK(ops_create(fs, d, nm("f"), &plain_user, 0666, O_RDWR | O_EXCL, &file, &a));
	EQ(a.inode.mode, S_IFREG | 0644);
	EQ(a.inode.nlink, 1);
	EQ(ops_file_ino(file), a.ino);
	EQ(ops_create(fs, d, nm("f"), &plain_user, 0666, O_RDWR | O_EXCL, &again, &b),
		-EEXIST);
	OK(ops_create(fs, d, nm("f"), &plain_user, 0600, O_RDWR, &again, &b));
	EQ(a.ino, b.ino);
	EQ(b.inode.mode, S_IFREG | 0644);
	ops_close(fs, again);
	mk_dir(fs, d, "dir");
	OK(try_symlink(fs, d, "link", "f"));
	EQ(ops_create(fs, d, nm("dir"), &plain_user, 0600, O_RDWR, &again, &b), -EISDIR);
	EQ(ops_create(fs, d, nm("link"), &plain_user, 0600, O_RDWR, &again, &b), -ELOOP);
	EQ(ops_create(fs, 4711, nm("f"), &plain_user, 0600, O_RDWR, &again, &b), -ENOENT);

	/* unlinked and open: there until the last close */
	OK(ops_unlink(fs, d, nm("f")));
	EQ(attr_of(fs, a.ino).nlink, 0);
	EQ(try_link(fs, a.ino, d, "back"), -ENOENT);
	ops_close(fs, file);
	EQ(ops_getattr(fs, a.ino, &b), -ENOENT);
}

static void create_makes_and_opens(void **state)
{
	with_fs(creates);
}

static void tmpfiles(struct fs *fs)
{
	uint64_t d = mk_dir(fs, ROOT, "d");
	struct ops_file *file;
	struct ops_attr a;

	OK(ops_tmpfile(fs, d, &plain_user, 0666, O_RDWR, &file, &a));
	EQ(a.inode.nlink, 0);
	EQ(attr_of(fs, d).size, 0);
	OK(try_link(fs, a.ino, d, "named"));
	EQ(attr_of(fs, a.ino).nlink, 1);
	ops_close(fs, file);
	EQ(ino_of(fs, d, "named"), a.ino);

	/* only the first name may come to a file without one */
	OK(ops_tmpfile(fs, d, &plain_user, 0666, O_RDWR, &file, &a));
	OK(try_link(fs, a.ino, d, "once"));
	OK(ops_unlink(fs, d, nm("once")));
	EQ(try_link(fs, a.ino, d, "again"), -ENOENT);
	ops_close(fs, file);
	EQ(ops_getattr(fs, a.ino, &a), -ENOENT);

	OK(ops_tmpfile(fs, d, &plain_user, 0666, O_RDWR | O_EXCL, &file, &a));
	EQ(try_link(fs, a.ino, d, "x"), -ENOENT);
	ops_close(fs, file);
	EQ(ops_getattr(fs, a.ino, &a), -ENOENT);

	OK(ops_tmpfile(fs, d, &plain_user, 0666, O_RDWR, &file, &a));
	ops_close(fs, file);
	EQ(ops_getattr(fs, a.ino, &a), -ENOENT);
	EQ(ops_tmpfile(fs, ino_of(fs, d, "named"), &plain_user, 0666, O_RDWR, &file, &a),
		-ENOTDIR);
}

static void a_tmpfile_gets_a_name_or_goes(void **state)
{
	with_fs(tmpfiles);
}

/* ---- rename ----------------------------------------------------------------------- */

static void renames(struct fs *fs)
{
	uint64_t a = mk_dir(fs, ROOT, "a"), b = mk_dir(fs, ROOT, "b");
	uint64_t f = mk_file(fs, a, "f"), g = mk_file(fs, a, "g"),
		 sub = mk_dir(fs, a, "sub");
	uint64_t full = mk_dir(fs, b, "full");
	struct ops_attr attr;

	mk_file(fs, full, "x");
	/* plain, in place, and away */
	OK(try_rename(fs, a, "f", a, "f2", 0));
	EQ(try_lookup(fs, a, "f"), -ENOENT);
	EQ(ino_of(fs, a, "f2"), f);
	OK(try_rename(fs, a, "f2", b, "f3", 0));
	EQ(ino_of(fs, b, "f3"), f);
	EQ(attr_of(fs, a).size, 2);
	EQ(attr_of(fs, b).size, 2);
	OK(try_rename(fs, b, "f3", b, "f3", 0));
	EQ(ino_of(fs, b, "f3"), f);

	/* errors */
	EQ(try_rename(fs, a, "none", b, "x", 0), -ENOENT);
	EQ(try_rename(fs, a, "none", b, "f3", RENAME_NOREPLACE), -ENOENT);
	EQ(try_rename(fs, a, "g", b, "f3", RENAME_NOREPLACE), -EEXIST);
	EQ(try_rename(fs, a, "g", b, "none", RENAME_EXCHANGE), -ENOENT);
	EQ(try_rename(fs, a, "g", b, "f3", RENAME_EXCHANGE | RENAME_NOREPLACE), -EINVAL);
	EQ(try_rename(fs, a, "g", b, "f3", RENAME_EXCHANGE | RENAME_WHITEOUT), -EINVAL);
	EQ(try_rename(fs, a, "g", b, "f3", 8), -EINVAL);
	EQ(try_rename(fs, a, "sub", b, "f3", 0), -ENOTDIR);
	EQ(try_rename(fs, a, "g", b, "full", 0), -EISDIR);
	EQ(try_rename(fs, a, "sub", b, "full", 0), -ENOTEMPTY);
	EQ(try_rename(fs, a, ".", b, "x", 0), -EBUSY);
	EQ(try_rename(fs, a, "g", b, "..", 0), -EBUSY);
	EQ(try_rename(fs, f, "g", b, "x", 0), -ENOTDIR);
	EQ(try_rename(fs, a, "g", f, "x", 0), -ENOTDIR);
	EQ(try_rename(fs, a, "g", 4711, "x", 0), -ENOENT);
	EQ(try_rename(fs, ROOT, "a", a, "x", 0), -EINVAL);
	EQ(try_rename(fs, ROOT, "a", sub, "x", 0), -EINVAL);
	EQ(try_rename(fs, a, "sub", ROOT, "a", RENAME_EXCHANGE), -EINVAL);
	EQ(try_rename(fs, a, "sub", ROOT, "a", 0), -ENOTEMPTY);

	/* over a file: the victim loses its link */
	OK(try_link(fs, g, ROOT, "g-too"));
	OK(try_rename(fs, b, "f3", a, "g", 0));
	EQ(ino_of(fs, a, "g"), f);
	EQ(attr_of(fs, g).nlink, 1);
	OK(ops_unlink(fs, ROOT, nm("g-too")));
	EQ(ops_getattr(fs, g, &attr), -ENOENT);

	/* two names of one file: nothing happens */
	OK(try_link(fs, f, b, "f-too"));
	OK(try_rename(fs, a, "g", b, "f-too", 0));
	EQ(ino_of(fs, a, "g"), f);
	EQ(ino_of(fs, b, "f-too"), f);
	EQ(attr_of(fs, f).nlink, 2);
	EQ(try_rename(fs, a, "g", b, "f-too", RENAME_NOREPLACE), -EEXIST);
	OK(try_rename(fs, a, "g", b, "f-too", RENAME_EXCHANGE));
}

static void rename_follows_posix(void **state)
{
	with_fs(renames);
}

static void renames_dirs(struct fs *fs)
{
	uint64_t a = mk_dir(fs, ROOT, "a"), b = mk_dir(fs, ROOT, "b"),
		 c = mk_dir(fs, a, "c");
	uint64_t empty = mk_dir(fs, b, "empty"), f = mk_file(fs, b, "f");
	struct ops_attr attr;

	OK(try_rename(fs, a, "c", b, "c2", 0));
	EQ(attr_of(fs, a).nlink, 2);
	EQ(attr_of(fs, b).nlink, 4);
	EQ(attr_of(fs, c).parent, b);
	EQ(ino_of(fs, c, ".."), b);

	/* over an empty directory */
	OK(try_rename(fs, b, "c2", b, "empty", 0));
	EQ(attr_of(fs, b).nlink, 3);
	EQ(attr_of(fs, b).size, 2);
	EQ(ops_getattr(fs, empty, &attr), -ENOENT);
	EQ(ino_of(fs, b, "empty"), c);

	/* exchange a directory with a file elsewhere */
	mk_file(fs, a, "g");
	OK(try_rename(fs, a, "g", b, "empty", RENAME_EXCHANGE));
	EQ(ino_of(fs, a, "g"), c);
	EQ(attr_of(fs, c).parent, a);
	EQ(attr_of(fs, a).nlink, 3);
	EQ(attr_of(fs, b).nlink, 2);
	EQ(attr_of(fs, a).size, 1);
	EQ(attr_of(fs, b).size, 2);

	/* and two directories */
	empty = mk_dir(fs, b, "e2");
	OK(try_rename(fs, b, "e2", a, "g", RENAME_EXCHANGE));
	EQ(attr_of(fs, c).parent, b);
	EQ(attr_of(fs, empty).parent, a);
	EQ(attr_of(fs, a).nlink, 3);
	EQ(attr_of(fs, b).nlink, 3);
	OK(try_rename(fs, b, "e2", b, "f", RENAME_EXCHANGE));
	EQ(ino_of(fs, b, "f"), c);
	EQ(ino_of(fs, b, "e2"), f);
}

static void renaming_directories_keeps_the_tree(void **state)
{
	with_fs(renames_dirs);
}

static void renames_deep(struct fs *fs)
{
	uint64_t dir = ROOT, top = 0, ino;

	for (unsigned depth = 0; depth < 1000; depth++) {
		dir = mk_dir(fs, dir, "d");
		if (depth == 0)
			top = dir;
	}
	EQ(try_rename(fs, ROOT, "d", dir, "loop", 0), -EINVAL);
	ino = mk_dir(fs, ROOT, "other");
	OK(try_rename(fs, ROOT, "other", dir, "deep", 0));
	EQ(attr_of(fs, ino).parent, dir);
	OK(try_rename(fs, dir, "deep", ROOT, "other", 0));
	OK(try_rename(fs, ROOT, "d", ino, "moved", 0));
	EQ(attr_of(fs, top).parent, ino);
	EQ(try_rename(fs, ROOT, "other", dir, "loop", 0), -EINVAL);
}

static void loops_are_found_at_any_depth(void **state)
{
	with_fs(renames_deep);
}

/* ---- names that share an item ----------------------------------------------------- */

static void collides(struct fs *fs)
{
	uint64_t d = mk_dir(fs, ROOT, "d"), ino[16];
	char name[16], longest[DISK_NAME_MAX + 1];
	unsigned n = 0;

	fs->hash_mask = 0;
	d = mk_dir(fs, d, "all-in-one");
	for (; n < 16; n++) {
		snprintf(name, sizeof(name), "n%u", n);
		ino[n] = mk_file(fs, d, name);
	}
	EQ(try_file(fs, d, "n16"), -ENOSPC);
	EQ(attr_of(fs, d).size, 16);
	OK(ops_unlink(fs, d, nm("n3")));
	OK(try_rename(fs, d, "n5", d, "n6", 0));
	OK(try_rename(fs, d, "n1", d, "n2", RENAME_EXCHANGE));
	OK(try_rename(fs, d, "n15", d, "renamed", 0));
	EQ(ino_of(fs, d, "n6"), ino[5]);
	EQ(ino_of(fs, d, "n1"), ino[2]);
	EQ(ino_of(fs, d, "n2"), ino[1]);
	EQ(ino_of(fs, d, "renamed"), ino[15]);
	EQ(ino_of(fs, d, "n14"), ino[14]);
	EQ(try_lookup(fs, d, "n3"), -ENOENT);
	EQ(try_lookup(fs, d, "n5"), -ENOENT);
	EQ(attr_of(fs, d).size, 14);
	OK(try_file(fs, d, "again"));

	d = mk_dir(fs, d, "long");
	memset(longest, 'x', sizeof(longest));
	longest[DISK_NAME_MAX] = '\0';
	for (n = 0; n < 3; n++) {
		longest[0] = (char)('a' + n);
		OK(try_file(fs, d, longest));
	}
	longest[0] = 'z';
	EQ(try_file(fs, d, longest), -ENOSPC);
	for (n = 0; n < 3; n++) {
		longest[0] = (char)('a' + n);
		OK(ops_unlink(fs, d, nm(longest)));
	}
	EQ(attr_of(fs, d).size, 0);
}

static void names_of_one_hash_live_together(void **state)
{
	with_fs(collides);
}

/* ---- a full volume ---------------------------------------------------------------- */

/* Fills what is left with names; returns how many. */
static unsigned fill_up(struct fs *fs, uint64_t dir)
{
	static char target[4001];
	char name[32];
	unsigned n = 0;
	int rc;

	memset(target, 't', sizeof(target) - 1);
	for (;; n++) {
		snprintf(name, sizeof(name), "link %u", n);
		rc = try_symlink(fs, dir, name, target);
		if (rc)
			break;
	}
	EQ(rc, -ENOSPC);
	EQ(try_lookup(fs, dir, name), -ENOENT);
	EQ(attr_of(fs, dir).size, n);
	return n;
}

static void fills_up(struct fs *fs)
{
	struct ops_setattr set = {.set = OPS_SET_MODE, .mode = 0700};
	unsigned first = 0;
	struct ops_attr a;
	char name[32];

	for (unsigned round = 0; round < 3; round++) {
		uint64_t d = mk_dir(fs, ROOT, "d");
		unsigned n = fill_up(fs, d);

		HOLDS(n > 500);
		if (round == 0)
			first = n;
		HOLDS(n > first - first / 10);
		OK(ops_setattr(fs, d, &root_user, &set, &a));
		for (unsigned i = 0; i < n; i++) {
			snprintf(name, sizeof(name), "link %u", i);
			OK(ops_unlink(fs, d, nm(name)));
		}
		EQ(attr_of(fs, d).size, 0);
		OK(ops_rmdir(fs, ROOT, nm("d")));
	}
}

static void a_full_volume_can_be_emptied(void **state)
{
	with_fs_sized(1, 24, 4, fills_up);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(lookup_says_what_is_there),
		cmocka_unit_test(what_is_made_is_as_asked_for),
		cmocka_unit_test(a_setgid_directory_hands_its_group_down),
		cmocka_unit_test(symlinks_keep_targets_of_any_length),
		cmocka_unit_test(hard_links_are_counted),
		cmocka_unit_test(one_link_too_many_is_emlink),
		cmocka_unit_test(removing_follows_posix),
		cmocka_unit_test(create_makes_and_opens),
		cmocka_unit_test(a_tmpfile_gets_a_name_or_goes),
		cmocka_unit_test(rename_follows_posix),
		cmocka_unit_test(renaming_directories_keeps_the_tree),
		cmocka_unit_test(loops_are_found_at_any_depth),
		cmocka_unit_test(names_of_one_hash_live_together),
		cmocka_unit_test(a_full_volume_can_be_emptied),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
