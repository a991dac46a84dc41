/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random operations on names and attributes against a model in memory: the same results
 * and errors, the same tree afterwards, also after closing and opening again.
 */
#include <dirent.h>
#include <sys/xattr.h>

#include "tests/unit/ops_fixture.h"

#define NODES_MAX   4000u
#define ENTRIES_MAX 24u /* different names in a directory */
#define XATTRS      4u

struct node;

struct name {
	bool used;
	struct node *node;
};

struct node {
	uint64_t ino;
	uint32_t mode, uid, nlink;
	struct node *parent;
	struct name entry[ENTRIES_MAX];
	unsigned entries;
	unsigned target_len;
	struct {
		bool set;
		unsigned len, seed;
	} xattr[XATTRS];
};

static struct {
	struct node node[NODES_MAX];
	unsigned count;
	uint8_t *value, *got;
} m;

static struct node *root(void)
{
	return &m.node[0];
}

static bool is_dir(const struct node *n)
{
	return S_ISDIR(n->mode);
}

/* Gone, all of it. */
static bool is_dead(const struct node *n)
{
	return n->nlink == 0;
}

static const char *name_of(unsigned i)
{
	static char buf[4][DISK_NAME_MAX + 1];
	static unsigned turn;
	char *b = buf[turn++ % 4];

	/* a long one now and then */
	snprintf(b, sizeof(buf[0]), i % 5 ? "name%u" : "name%0200u", i);
	return b;
}

/* The longer a target, the rarer. */
static void target_of(char *buf, unsigned len)
{
	for (unsigned i = 0; i < len; i++)
		buf[i] = (char)('a' + (i + len) % 26);
	buf[len] = '\0';
}

static const char *xattr_name(unsigned i)
{
	static const char *const names[XATTRS] = {
		"user.a", "trusted.b", "security.capability", "user.another one"};

	return names[i];
}

static uint64_t rnd(uint64_t below)
{
	return (rt_random() >> 11) % below;
}

static struct node *any_node(void)
{
	/* the young ones are more interesting */
	unsigned back = (unsigned)rnd(rnd(4) ? MIN(m.count, 60) : m.count);

	return &m.node[m.count - 1 - back];
}

static struct node *any_dir(void)
{
	for (unsigned tries = 0; tries < 30; tries++) {
		struct node *n = any_node();

		if (is_dir(n) && (!is_dead(n) || tries == 7))
			return n;
	}
	return root();
}

/* ---- changes to the model --------------------------------------------------------- */

static void drop_link(struct node *n)
{
	if (is_dir(n))
		n->nlink = 0;
	else
		n->nlink--;
}

static void put(struct node *dir, unsigned name, struct node *n)
{
	HOLDS(!dir->entry[name].used);
	dir->entry[name] = (struct name){true, n};
	dir->entries++;
	if (is_dir(n)) {
		n->parent = dir;
		dir->nlink++;
	}
}

static void take(struct node *dir, unsigned name)
{
	struct node *n = dir->entry[name].node;

	HOLDS(dir->entry[name].used);
	dir->entry[name].used = false;
	dir->entries--;
	if (is_dir(n))
		dir->nlink--;
}

/* ---- operations ------------------------------------------------------------------- */

static void op_make(struct fs *fs)
{
	static const uint32_t types[] = {
		S_IFREG, S_IFREG, S_IFDIR, S_IFDIR, S_IFLNK, S_IFIFO};
	uint32_t type = types[rnd(ARRAY_SIZE(types))], mode = (uint32_t)rnd(01000);
	struct node *dir = any_dir(), *n = &m.node[m.count];
	unsigned name = (unsigned)rnd(ENTRIES_MAX), len = 0;
	int want = is_dead(dir) ? -ENOENT : dir->entry[name].used ? -EEXIST : 0, rc;
	struct ops_name bytes = nm(name_of(name));
	struct ops_file *file;
	struct ops_attr a;
	char target[4096];

	if (m.count == NODES_MAX)
		return;
	switch (type) {
	case S_IFDIR:
		rc = ops_mkdir(fs, dir->ino, bytes, &root_user, mode, &a);
		break;
	case S_IFLNK:
		len = 1 + (unsigned)rnd(1 + rnd(4095));
		target_of(target, len);
		mode = 0777;
		rc = ops_symlink(fs, dir->ino, bytes, &root_user, target, &a);
		break;
	case S_IFREG:
		if (rnd(2)) {
			rc = ops_create(fs, dir->ino, bytes, &root_user, mode,
				O_RDWR | O_EXCL, &file, &a);
			if (rc == 0)
				ops_close(fs, file);
			break;
		}
		/* fall through */
	default:
		rc = ops_mknod(fs, dir->ino, bytes, &root_user, type | mode, 0, 0, &a);
	}
	EQ(rc, want);
	if (rc)
		return;
	*n = (struct node){.ino = a.ino, .mode = type | mode, .target_len = len};
	n->nlink = type == S_IFDIR ? 2 : 1;
	if (type == S_IFDIR)
		n->mode |= dir->mode & S_ISGID;
	put(dir, name, n);
	m.count++;
}

static void op_remove(struct fs *fs)
{
	struct node *dir = any_dir(), *n;
	unsigned name = (unsigned)rnd(ENTRIES_MAX);
	bool rmdir = rnd(2);
	int want = 0, rc;

	n = dir->entry[name].node;
	if (is_dead(dir) || !dir->entry[name].used)
		want = -ENOENT;
	else if (!rmdir)
		want = is_dir(n) ? -EISDIR : 0;
	else if (!is_dir(n))
		want = -ENOTDIR;
	else if (n->entries)
		want = -ENOTEMPTY;
	rc = rmdir ? ops_rmdir(fs, dir->ino, nm(name_of(name)))
		   : ops_unlink(fs, dir->ino, nm(name_of(name)));
	EQ(rc, want);
	if (rc)
		return;
	take(dir, name);
	drop_link(n);
}

static void op_link(struct fs *fs)
{
	struct node *dir = any_dir(), *n = any_node();
	unsigned name = (unsigned)rnd(ENTRIES_MAX);
	int want = 0, rc;

	if (is_dead(dir))
		want = -ENOENT;
	else if (dir->entry[name].used)
		want = -EEXIST;
	else if (is_dead(n))
		want = -ENOENT;
	else if (is_dir(n))
		want = -EPERM;
	rc = try_link(fs, n->ino, dir->ino, name_of(name));
	EQ(rc, want);
	if (rc)
		return;
	n->nlink++;
	put(dir, name, n);
}

static bool hangs_below(const struct node *n, const struct node *above)
{
	for (; n != above; n = n->parent)
		if (n == root())
			return false;
	return true;
}

static int rename_want(struct node *from, unsigned name, struct node *to,
	unsigned new_name, unsigned flags)
{
	struct node *n = from->entry[name].node, *v = to->entry[new_name].node;
	bool there = to->entry[new_name].used;

	if (is_dead(from) || is_dead(to) || !from->entry[name].used)
		return -ENOENT;
	if (flags == RENAME_EXCHANGE && !there)
		return -ENOENT;
	if (flags == RENAME_NOREPLACE && there)
		return -EEXIST;
	if (there && n == v)
		return 1;
	if (is_dir(n) && from != to && hangs_below(to, n))
		return -EINVAL;
	if (flags == RENAME_EXCHANGE)
		return is_dir(v) && from != to && hangs_below(from, v) ? -EINVAL : 0;
	if (!there)
		return 0;
	if (is_dir(n) != is_dir(v))
		return is_dir(n) ? -ENOTDIR : -EISDIR;
	return is_dir(v) && v->entries ? -ENOTEMPTY : 0;
}

static void op_rename(struct fs *fs)
{
	static const unsigned all_flags[] = {0, 0, RENAME_NOREPLACE, RENAME_EXCHANGE};
	struct node *from = any_dir(), *to = rnd(3) ? any_dir() : from, *n, *v;
	unsigned name = (unsigned)rnd(ENTRIES_MAX), new_name = (unsigned)rnd(ENTRIES_MAX);
	unsigned flags = all_flags[rnd(ARRAY_SIZE(all_flags))];
	int want = rename_want(from, name, to, new_name, flags);

	EQ(try_rename(fs, from->ino, name_of(name), to->ino, name_of(new_name), flags),
		MIN(want, 0));
	if (want)
		return;
	n = from->entry[name].node;
	v = to->entry[new_name].used ? to->entry[new_name].node : NULL;
	take(from, name);
	if (v) {
		take(to, new_name);
		if (flags == RENAME_EXCHANGE)
			put(from, name, v);
		else
			drop_link(v);
	}
	put(to, new_name, n);
}

static void value_of(unsigned seed, unsigned len)
{
	for (unsigned i = 0; i < len; i++)
		m.value[i] = (uint8_t)(seed + i * 13 + i / 256);
}

static void op_xattr(struct fs *fs)
{
	struct node *n = any_node();
	unsigned which = (unsigned)rnd(XATTRS), seed = (unsigned)rnd(256), len;
	bool user = strncmp(xattr_name(which), "user.", 5) == 0;
	int want = 0;

	len = (unsigned)rnd(rnd(3) ? 600 : 1 + rnd(DISK_XATTR_VALUE_MAX));
	if (is_dead(n))
		want = -ENOENT;
	else if (user && !S_ISREG(n->mode) && !is_dir(n))
		want = -EPERM;
	if (rnd(3) == 0) {
		if (!want && !n->xattr[which].set)
			want = -ENODATA;
		EQ(ops_removexattr(fs, n->ino, xattr_name(which)), want);
		if (!want)
			n->xattr[which].set = false;
		return;
	}
	value_of(seed, len);
	EQ(ops_setxattr(fs, n->ino, &root_user, xattr_name(which), m.value, len, 0),
		want);
	if (want)
		return;
	n->xattr[which].set = true;
	n->xattr[which].len = len;
	n->xattr[which].seed = seed;
}

static void op_attr(struct fs *fs)
{
	struct ops_setattr set = {.set = rnd(2) ? OPS_SET_MODE : OPS_SET_UID};
	struct node *n = any_node();
	struct ops_attr a;
	int want;

	set.mode = (uint32_t)rnd(010000);
	set.uid = (uint32_t)rnd(1000);
	if (set.set == OPS_SET_MODE)
		want = is_dead(n) ? -ENOENT : S_ISLNK(n->mode) ? -EOPNOTSUPP : 0;
	else
		want = is_dead(n) ? -ENOENT : 0;
	EQ(ops_setattr(fs, n->ino, &root_user, &set, &a), want);
	if (want)
		return;
	if (set.set == OPS_SET_MODE) {
		n->mode = (n->mode & S_IFMT) | set.mode;
		return;
	}
	n->uid = set.uid;
	if (is_dir(n))
		return;
	n->mode &= ~(uint32_t)S_ISUID;
	if (n->mode & S_IXGRP)
		n->mode &= ~(uint32_t)S_ISGID;
	n->xattr[2].set = false; /* capabilities */
}

/* ---- comparing -------------------------------------------------------------------- */

struct dir_check {
	struct node *dir;
	unsigned found;
};

static int check_entry(void *arg, const struct ops_dirent *e)
{
	struct dir_check *c = (struct dir_check *)arg;
	char text[DISK_NAME_MAX + 1];
	unsigned name;

	if (e->cookie <= 2)
		return 0;
	HOLDS(e->name_len <= DISK_NAME_MAX);
	memcpy(text, e->name, e->name_len);
	text[e->name_len] = '\0';
	EQ(sscanf(text, "name%u", &name), 1);
	HOLDS(name < ENTRIES_MAX && c->dir->entry[name].used);
	EQ(e->ino, c->dir->entry[name].node->ino);
	EQ(e->type, IFTODT(c->dir->entry[name].node->mode));
	EQ(e->attr->inode.nlink, c->dir->entry[name].node->nlink);
	c->found++;
	return 0;
}

static void check_xattrs(
	struct fs *fs, const struct node *n, const struct disk_inode *inode)
{
	uint64_t pages = 0;
	int names = 0;

	for (unsigned i = 0; i < XATTRS; i++) {
		unsigned len = n->xattr[i].len;
		int rc = ops_getxattr(
			fs, n->ino, xattr_name(i), m.got, DISK_XATTR_VALUE_MAX);

		if (!n->xattr[i].set) {
			EQ(rc, -ENODATA);
			continue;
		}
		names += (int)strlen(xattr_name(i)) + 1;
		EQ(rc, len);
		value_of(n->xattr[i].seed, len);
		HOLDS(memcmp(m.got, m.value, len) == 0);
		if (len > DISK_XATTR_INLINE_MAX)
			pages += DIV_UP(len, PAGE_SIZE);
	}
	EQ(ops_listxattr(fs, n->ino, NULL, 0), names);
	EQ(inode->blocks, pages);
	EQ(!!(inode->flags & DISK_INODE_HAS_XATTR), names > 0);
}

static void check_node(struct fs *fs, struct node *n)
{
	struct dir_check c = {.dir = n};
	char target[4096];
	struct disk_inode inode;
	struct ops_attr a;
	int rc = ops_getattr(fs, n->ino, &a);

	if (is_dead(n)) {
		EQ(rc, -ENOENT);
		return;
	}
	OK(rc);
	inode = a.inode;
	EQ(inode.mode, n->mode);
	EQ(inode.uid, n->uid);
	EQ(inode.nlink, n->nlink);
	check_xattrs(fs, n, &inode);
	if (is_dir(n)) {
		EQ(inode.size, n->entries);
		EQ(inode.parent, n->parent->ino);
		OK(ops_readdir(fs, n->ino, 0, OPS_READDIR_PLUS, check_entry, &c));
		EQ(c.found, n->entries);
		for (unsigned i = 0; i < ENTRIES_MAX; i++)
			EQ(try_lookup(fs, n->ino, name_of(i)),
				n->entry[i].used ? 0 : -ENOENT);
	} else if (S_ISLNK(n->mode)) {
		target_of(target, n->target_len);
		EQ(ops_readlink(fs, n->ino, (char *)m.got, 8192), n->target_len);
		HOLDS(memcmp(m.got, target, n->target_len) == 0);
	}
}

static void check_all(struct fs *fs)
{
	for (unsigned i = 0; i < m.count; i++)
		check_node(fs, &m.node[i]);
}

/* ---- runs ------------------------------------------------------------------------- */

static void some_operations(struct fs *fs, unsigned count)
{
	for (unsigned i = 0; i < count; i++) {
		switch (rnd(12)) {
		case 0 ... 4:
			op_make(fs);
			break;
		case 5 ... 6:
			op_remove(fs);
			break;
		case 7:
			op_link(fs);
			break;
		case 8 ... 9:
			op_rename(fs);
			break;
		case 10:
			op_xattr(fs);
			break;
		default:
			op_attr(fs);
		}
	}
}

static void remove_all(struct fs *fs, struct node *dir)
{
	for (unsigned i = 0; i < ENTRIES_MAX; i++) {
		struct node *n = dir->entry[i].node;

		if (!dir->entry[i].used)
			continue;
		if (is_dir(n)) {
			remove_all(fs, n);
			OK(ops_rmdir(fs, dir->ino, nm(name_of(i))));
		} else {
			OK(ops_unlink(fs, dir->ino, nm(name_of(i))));
		}
		take(dir, i);
		drop_link(n);
	}
}

/* Without a file there is nothing left but the tree's own pages. */
static void check_no_leak(struct fs *fs, uint64_t free_at_first)
{
	struct statvfs s;

	OK(ops_statfs(fs, &s));
	HOLDS(s.f_bfree + 64 >= free_at_first);
}

static int model_run(void *arg)
{
	const struct fs_test *t = (const struct fs_test *)arg;
	struct fs *fs;

	for (unsigned life = 0; life < 4; life++) {
		fs = test_fs_open(t);
		if (life == 0) {
			struct disk_inode inode = attr_of(fs, DISK_INO_ROOT);

			*root() = (struct node){.ino = DISK_INO_ROOT,
				.mode = inode.mode,
				.nlink = 2,
				.parent = root()};
			m.count = 1;
		}
		check_all(fs);
		for (unsigned round = 0; round < 3; round++) {
			some_operations(fs, 500);
			check_all(fs);
		}
		test_fs_close(fs);
	}
	return 0;
}

static int model_main(void *arg)
{
	struct fs_test *t = (struct fs_test *)arg;
	struct statvfs first;
	struct fs *fs;

	m.value = (uint8_t *)rt_alloc(DISK_XATTR_VALUE_MAX);
	m.got = (uint8_t *)rt_alloc(DISK_XATTR_VALUE_MAX);
	HOLDS(m.value && m.got);
	test_sim_disk(t->disk_name, t->disk_bytes, 0);
	fs = test_fs_open(t);
	OK(ops_statfs(fs, &first));
	test_fs_close(fs);

	model_run(t);

	fs = test_fs_open(t);
	remove_all(fs, root());
	check_all(fs);
	check_no_leak(fs, first.f_bfree);
	test_fs_close(fs);
	return 0;
}

static void runs_like_the_model(uint64_t cache_bytes, uint64_t first_seed, unsigned seeds)
{
	struct fs_test t = {"disk", 256 << 20, cache_bytes, NULL};

	for (uint64_t seed = first_seed; seed < first_seed + seeds; seed++)
		OK(rt_sim_run(seed, NULL, model_main, &t));
}

static void random_operations_do_as_the_model_says(void **state)
{
	runs_like_the_model(16 << 20, 1, 6);
}

static void with_a_tiny_cache_as_well(void **state)
{
	runs_like_the_model(64 * PAGE_SIZE, 100, 6);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(random_operations_do_as_the_model_says),
		cmocka_unit_test(with_a_tiny_cache_as_well),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
