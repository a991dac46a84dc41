/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is unlinked lives until it is closed and forgotten, in whatever order; nothing is
 * left of it then, nor after a power cut; and nothing of all this grows without bound.
 */
#include <sys/xattr.h>

#include "fs/ops/data_internal.h"
#include "tests/sim/seeds.h"
#include "tests/unit/ops_account.h"

#define ROOT DISK_INO_ROOT

static struct ops_name nm_of(char *buf, const char *what, unsigned n)
{
	sprintf(buf, "%s%u", what, n);
	return nm(buf);
}

/* A caller that forgets, on the volume of `fs`, which is closed for it. */
static struct fs *forgetting(struct fs *fs)
{
	struct ops_options o = {.atime = OPS_NOATIME, .caller_forgets = true};
	struct weft_error err = {0};
	struct fs *other;

	OK(fs_open(&other, fs_volume(fs), &o, &err));
	return other;
}

static bool exists(struct fs *fs, uint64_t ino)
{
	struct disk_inode inode;
	int rc = inode_get(fs, ino, &inode);

	HOLDS(rc == 0 || rc == -ENOENT);
	return rc == 0;
}

/* Whether all that was ready is gone shows in statfs, too. */
static bool gone(struct fs *fs, uint64_t ino)
{
	struct statvfs s;

	OK(ops_statfs(fs, &s));
	return !exists(fs, ino);
}

static uint64_t write_file(struct fs *fs, const char *name, unsigned pages)
{
	struct ops_file *f;
	struct ops_attr a;
	uint8_t page[PAGE_SIZE];

	memset(page, 'x', sizeof(page));
	OK(ops_create(fs, ROOT, nm(name), &root_user, 0644, O_RDWR, &f, &a));
	for (unsigned i = 0; i < pages; i++)
		EQ(ops_write(fs, f, &root_user, (uint64_t)i * PAGE_SIZE, page, PAGE_SIZE,
			   false),
			PAGE_SIZE);
	ops_close(fs, f);
	return a.ino;
}

/* ---- every type -------------------------------------------------------------------- */

static uint64_t make_any(struct fs *fs, unsigned type, const char *name)
{
	static const uint32_t modes[] = {S_IFREG, S_IFIFO, S_IFSOCK, S_IFCHR, S_IFBLK};
	struct ops_attr a;

	if (type < ARRAY_SIZE(modes))
		OK(ops_mknod(
			fs, ROOT, nm(name), &root_user, modes[type] | 0600, 1, 3, &a));
	else if (type == 5)
		OK(ops_mkdir(fs, ROOT, nm(name), &root_user, 0700, &a));
	else if (type == 6)
		OK(ops_symlink(fs, ROOT, nm(name), &root_user, "target", &a));
	else
		a.ino = write_file(fs, name, 3);
	return a.ino;
}

static void every_type(struct fs *plain)
{
	struct fs *fs = forgetting(plain);

	for (unsigned type = 0; type < 8; type++) {
		uint64_t ino = make_any(fs, type, "it");
		struct disk_inode i;
		char target[8];

		OK(type == 5 ? ops_rmdir(fs, ROOT, nm("it"))
			     : ops_unlink(fs, ROOT, nm("it")));
		EQ(try_lookup(fs, ROOT, "it"), -ENOENT);
		HOLDS(!gone(fs, ino));
		i = attr_of(fs, ino);
		EQ(i.nlink, 0);
		EQ(ino_of(fs, ino, "."), ino);
		if (type == 6)
			EQ(ops_readlink(fs, ino, target, sizeof(target)), 6);
		ops_forget(fs, ino);
		HOLDS(exists(fs, ino)); /* it lingers */
		EQ(try_lookup(fs, ino, "."), -ENOENT);
		HOLDS(gone(fs, ino));
		EQ(pages_over(fs), 0);
	}
	fs_close(fs);
}

static void every_type_lives_until_it_is_forgotten(void **state)
{
	with_fs(every_type);
}

static void removed_directory(struct fs *plain)
{
	struct fs *fs = forgetting(plain);
	uint64_t d = mk_dir(fs, ROOT, "d"), other = mk_file(fs, ROOT, "f");
	struct ops_attr a;

	OK(ops_rmdir(fs, ROOT, nm("d")));
	EQ(attr_of(fs, d).nlink, 0);
	EQ(attr_of(fs, ROOT).nlink, 2);
	EQ(try_lookup(fs, d, "x"), -ENOENT);
	EQ(try_file(fs, d, "x"), -ENOENT);
	EQ(try_mkdir(fs, d, "x"), -ENOENT);
	EQ(try_link(fs, other, d, "x"), -ENOENT);
	EQ(try_rename(fs, ROOT, "f", d, "x", 0), -ENOENT);
	EQ(ops_lookup(fs, d, nm("."), &a), 0);
	EQ(a.ino, d);
	ops_forget(fs, d);
	HOLDS(gone(fs, d));
	EQ(ops_getattr(fs, d, &a), -ENOENT);
	fs_close(fs);
}

static void a_removed_directory_can_be_looked_at(void **state)
{
	with_fs(removed_directory);
}

static void replaced(struct fs *plain)
{
	struct fs *fs = forgetting(plain);
	uint64_t old = mk_file(fs, ROOT, "to"), d = mk_dir(fs, ROOT, "d2");

	mk_file(fs, ROOT, "from");
	mk_dir(fs, ROOT, "d1");
	OK(try_rename(fs, ROOT, "from", ROOT, "to", 0));
	OK(try_rename(fs, ROOT, "d1", ROOT, "d2", 0));
	EQ(attr_of(fs, old).nlink, 0);
	EQ(attr_of(fs, d).nlink, 0);
	ops_forget(fs, old);
	ops_forget(fs, d);
	HOLDS(gone(fs, old) && gone(fs, d));
	/* two links: the first that goes says nothing */
	old = mk_file(fs, ROOT, "a");
	OK(try_link(fs, old, ROOT, "b"));
	OK(ops_unlink(fs, ROOT, nm("a")));
	ops_forget(fs, old);
	EQ(attr_of(fs, old).nlink, 1);
	OK(ops_unlink(fs, ROOT, nm("b")));
	HOLDS(!gone(fs, old));
	ops_forget(fs, old);
	HOLDS(gone(fs, old));
	fs_close(fs);
}

static void what_rename_replaces_lives_as_long(void **state)
{
	with_fs(replaced);
}

/* ---- open and forgotten, in any order ---------------------------------------------- */

static void orders(struct fs *plain)
{
	struct fs *fs = forgetting(plain);

	for (unsigned order = 0; order < 3; order++) {
		uint64_t ino = write_file(fs, "f", 5);
		struct ops_file *f, *g;

		OK(ops_open(fs, ino, &root_user, O_RDWR, &f, NULL));
		OK(ops_unlink(fs, ROOT, nm("f")));
		if (order == 0) { /* forgotten first */
			ops_forget(fs, ino);
			HOLDS(!gone(fs, ino));
			EQ(ops_write(fs, f, &root_user, 0, "y", 1, false), 1);
			ops_close(fs, f);
		} else { /* closed first; what is yet to be forgotten may be opened again
			  */
			ops_close(fs, f);
			HOLDS(!gone(fs, ino));
			OK(ops_open(fs, ino, &root_user, O_RDWR, &g, NULL));
			OK(ops_setxattr(fs, ino, &root_user, "user.x", "y", 1, 0));
			if (order == 1)
				ops_close(fs, g);
			ops_forget(fs, ino);
			HOLDS(gone(fs, ino) == (order == 1));
			if (order == 2)
				ops_close(fs, g);
		}
		HOLDS(gone(fs, ino));
		EQ(ops_open(fs, ino, &root_user, O_RDONLY, &f, NULL), -ENOENT);
		EQ(pages_over(fs), 0);
	}
	fs_close(fs);
}

static void the_later_of_close_and_forget_frees(void **state)
{
	with_fs(orders);
}

static void tmpfiles(struct fs *plain)
{
	struct fs *fs = forgetting(plain);
	struct ops_file *f;
	struct ops_attr a;

	OK(ops_tmpfile(fs, ROOT, &root_user, 0600, O_RDWR, &f, &a));
	ops_close(fs, f);
	HOLDS(!gone(fs, a.ino));
	ops_forget(fs, a.ino);
	HOLDS(gone(fs, a.ino));
	/* linked: forgetting it changes nothing */
	OK(ops_tmpfile(fs, ROOT, &root_user, 0600, O_RDWR, &f, &a));
	OK(try_link(fs, a.ino, ROOT, "named"));
	ops_close(fs, f);
	ops_forget(fs, a.ino);
	HOLDS(!gone(fs, a.ino));
	EQ(ino_of(fs, ROOT, "named"), a.ino);
	fs_close(fs);
}

static void tmpfiles_live_as_long(void **state)
{
	with_fs(tmpfiles);
}

struct reader {
	struct fs *fs;
	unsigned count;
};

/* Whoever reads the first entry removes the others. */
static int remove_others(void *arg, const struct ops_dirent *e)
{
	struct reader *r = arg;
	char name[16];

	if (!e->attr)
		return 0; /* "." and ".." */
	EQ(e->attr->inode.nlink, 1);
	for (unsigned i = 0; i < 8 && r->count == 0; i++) {
		struct ops_name n = nm_of(name, "f", i);

		if (n.len != e->name_len || memcmp(n.bytes, e->name, n.len) != 0)
			OK(ops_unlink(r->fs, ROOT, n));
	}
	r->count++;
	return 0;
}

static void readers(struct fs *plain)
{
	struct fs *fs = forgetting(plain);
	struct reader r = {.fs = fs};
	char name[16];

	for (unsigned i = 0; i < 8; i++)
		mk_file(fs, ROOT, nm_of(name, "f", i).bytes);
	OK(ops_readdir(fs, ROOT, 0, OPS_READDIR_PLUS, remove_others, &r));
	EQ(r.count, 1);
	fs_close(fs);
}

static void a_listing_shows_no_orphans(void **state)
{
	with_fs(readers);
}

/* ---- the end ----------------------------------------------------------------------- */

static void at_close(struct fs *plain)
{
	struct fs *fs = forgetting(plain);
	struct ops_file *f[3];
	uint64_t ino[60];
	char name[16];

	for (unsigned i = 0; i < 60; i++) {
		nm_of(name, "f", i);
		ino[i] = i % 3 ? mk_dir(fs, ROOT, name) : write_file(fs, name, i % 5);
	}
	for (unsigned i = 0; i < 3; i++)
		OK(ops_open(fs, ino[3 * i], &root_user, O_RDWR, &f[i], NULL));
	for (unsigned i = 0; i < 60; i++)
		OK(i % 3 ? ops_rmdir(fs, ROOT, nm_of(name, "f", i))
			 : ops_unlink(fs, ROOT, nm_of(name, "f", i)));
	for (unsigned i = 0; i < 60; i += 2)
		ops_forget(fs, ino[i]);
	for (unsigned i = 0; i < 60; i++)
		HOLDS(gone(fs, ino[i]) == (i % 2 == 0 && i != 0 && i != 6));
	fs_close(fs); /* three are open */
	for (unsigned i = 0; i < 60; i++)
		HOLDS(!exists(plain, ino[i]));
	EQ(pages_over(plain), 0);
}

static void closing_frees_what_was_never_forgotten(void **state)
{
	with_fs(at_close);
}

/* ---- bounds ------------------------------------------------------------------------ */

static void burst(struct fs *plain)
{
	const unsigned count = 4000;
	struct fs *fs = forgetting(plain);
	uint64_t first = 0;
	char name[16];

	for (unsigned i = 0; i < count; i++) {
		struct ops_attr a;

		OK(ops_mknod(
			fs, ROOT, nm_of(name, "f", i), &root_user, S_IFREG, 0, 0, &a));
		first = first ? first : a.ino;
	}
	for (unsigned i = 0; i < count; i++)
		OK(ops_unlink(fs, ROOT, nm_of(name, "f", i)));
	/* far more at once than the queue takes */
	for (unsigned i = 0; i < count; i++)
		ops_forget(fs, first + i);
	for (unsigned i = 0; i < count; i += 100)
		HOLDS(gone(fs, first + i));
	EQ(pages_over(fs), 0);
	fs_close(fs);
}

static void bursts_are_worked_off(void **state)
{
	with_fs(burst);
}

/* Big values, many extents, many links of one batch, in one go. */
static void all_sizes(struct fs *plain)
{
	static uint8_t value[65536];
	struct fs *fs = forgetting(plain);
	uint64_t ino[RECLAIM_BATCH];
	char name[16];

	for (unsigned i = 0; i < RECLAIM_BATCH; i++) {
		struct ops_file *f;

		ino[i] = write_file(fs, (nm_of(name, "f", i), name), i);
		if (i % 3 == 0) {
			OK(ops_open(fs, ino[i], &root_user, O_RDWR, &f, NULL));
			for (unsigned k = 0; k < 10 * i; k++)
				EQ(ops_write(fs, f, &root_user,
					   (uint64_t)k * 3 * PAGE_SIZE, "z", 1, false),
					1);
			ops_close(fs, f);
		}
		if (i % 4 == 1)
			for (unsigned k = 0; k < 3; k++)
				OK(ops_setxattr(fs, ino[i], &root_user,
					k == 0   ? "user.a"
					: k == 1 ? "user.b"
						 : "user.c",
					value, sizeof(value), 0));
	}
	for (unsigned i = 0; i < RECLAIM_BATCH; i++)
		OK(ops_unlink(fs, ROOT, nm_of(name, "f", i)));
	for (unsigned i = 0; i < RECLAIM_BATCH; i++)
		ops_forget(fs, ino[i]);
	for (unsigned i = 0; i < RECLAIM_BATCH; i++)
		HOLDS(gone(fs, ino[i]));
	EQ(pages_over(fs), 0);
	fs_close(fs);
}

static void a_batch_takes_all_sizes(void **state)
{
	with_fs(all_sizes);
}

/* ---- a full volume --------------------------------------------------------------- */

static uint64_t fill(struct fs *fs, const char *name)
{
	static uint8_t data[64 * PAGE_SIZE];
	struct ops_file *f;
	struct ops_attr a;
	int64_t n;

	OK(ops_create(fs, ROOT, nm(name), &root_user, 0644, O_RDWR, &f, &a));
	for (uint64_t at = 0;; at += (uint64_t)n) {
		n = ops_write(fs, f, &root_user, at, data, sizeof(data), false);
		if (n < 0)
			break;
	}
	EQ(n, -ENOSPC);
	ops_close(fs, f);
	return a.ino;
}

struct late {
	struct fs *fs;
	uint64_t ino;
};

static void forget_later(void *arg)
{
	struct late *l = arg;

	rt_sleep_ns(30000000);
	ops_forget(l->fs, l->ino);
}

static void full(struct fs *plain)
{
	struct fs *fs = forgetting(plain);
	uint64_t ino = fill(fs, "big");
	uint64_t size = attr_of(fs, ino).size;
	struct late late = {fs, ino};
	struct rt_task *task;

	OK(ops_unlink(fs, ROOT, nm("big")));
	ops_forget(fs, ino);
	ino = fill(fs, "again");
	HOLDS(attr_of(fs, ino).size + (1 << 20) >= size);
	/* and when the forget comes a moment after the unlink */
	OK(ops_unlink(fs, ROOT, nm("again")));
	late.ino = ino;
	OK(rt_task_spawn(&task, "late", forget_later, &late));
	ino = fill(fs, "third");
	rt_task_join(task);
	HOLDS(attr_of(fs, ino).size + (1 << 20) >= size);
	fs_close(fs);
}

static void what_is_unlinked_is_freed_before_there_is_no_space(void **state)
{
	with_fs_sized(1, 48, 8, full);
}

static void settling(struct fs *plain)
{
	struct fs *fs = forgetting(plain);
	uint64_t kept = write_file(fs, "kept", 4), before;
	struct late late = {fs, write_file(fs, "late", 4)};
	struct rt_task *task;
	struct statvfs v;

	OK(ops_statfs(fs, &v));
	before = v.f_bfree;
	ops_settle(fs); /* nothing is unlinked: at once */
	OK(ops_unlink(fs, ROOT, nm("late")));
	OK(rt_task_spawn(&task, "late", forget_later, &late));
	ops_settle(fs);
	OK(ops_statfs(fs, &v));
	HOLDS(v.f_bfree >= before + 4);
	rt_task_join(task);
	/* what the caller keeps is not waited for much longer than it takes to forget */
	OK(ops_unlink(fs, ROOT, nm("kept")));
	before = rt_now_ns();
	ops_settle(fs);
	HOLDS(rt_now_ns() - before < 1000000000ull);
	ops_forget(fs, kept);
	fs_close(fs);
}

static void settling_waits_for_the_forgets_of_what_was_just_unlinked(void **state)
{
	with_fs(settling);
}

/* All free pages but one are reserved, until the test ends. */
static void leave_one_page(struct fs *fs)
{
	struct space *sp = fs->volume->space;
	struct space_run run;
	page_id last = PID_NONE;
	uint64_t incarnation = 0;

	while (space_reserve(sp, PID_NONE, DISK_EXTENT_MAX, 0, &run) == 0) {
		last = run.pid;
		incarnation = run.incarnation;
	}
	if (last != PID_NONE)
		space_unreserve(sp,
			&(struct space_run){
				.pid = last, .length = 1, .incarnation = incarnation});
}

/* The page is for the data; what the tree needs to name it is what was unlinked. */
static void full_for_items(struct fs *plain, bool xattrs)
{
	const unsigned count = 200;
	struct fs *fs = forgetting(plain);
	char name[16], page[PAGE_SIZE];
	uint64_t ino[200];
	struct ops_file *f;
	struct ops_attr a;

	memset(page, 'x', sizeof(page));
	for (unsigned i = 0; i < count; i++)
		ino[i] = write_file(fs, nm_of(name, "p", i).bytes, 4);
	OK(ops_create(fs, ROOT, nm("f"), &root_user, 0600, O_RDWR, &f, &a));
	for (unsigned i = 0; i < count; i++) {
		OK(ops_unlink(fs, ROOT, nm_of(name, "p", i)));
		leave_one_page(fs);
		ops_forget(fs, ino[i]);
		if (xattrs)
			OK(ops_setxattr(fs, a.ino, &root_user,
				nm_of(name, "user.", i).bytes, page, sizeof(page), 0));
		else
			EQ(ops_write(fs, f, &root_user, 2ull * i * PAGE_SIZE, page,
				   PAGE_SIZE, false),
				PAGE_SIZE);
	}
	EQ(attr_of(fs, a.ino).blocks, count);
	ops_close(fs, f);
	fs_close(fs);
}

static void full_for_extents(struct fs *fs)
{
	full_for_items(fs, false);
}

static void full_for_large_xattrs(struct fs *fs)
{
	full_for_items(fs, true);
}

static void what_is_unlinked_is_freed_before_the_tree_finds_no_space(void **state)
{
	with_fs_sized(1, 48, 8, full_for_extents);
	with_fs_sized(1, 48, 8, full_for_large_xattrs);
}

static void full_for_xattrs(struct fs *plain)
{
	struct fs *fs = forgetting(plain);
	uint64_t small = mk_file(fs, ROOT, "small"), big = fill(fs, "big");
	char name[16], value[500] = {0};
	unsigned n = 0;
	int rc;

	do {
		sprintf(name, "user.%u", n++);
		rc = ops_setxattr(fs, small, &root_user, name, value, sizeof(value), 0);
	} while (rc == 0);
	EQ(rc, -ENOSPC);
	OK(ops_unlink(fs, ROOT, nm("big")));
	ops_forget(fs, big);
	HOLDS(exists(fs, big));
	OK(ops_setxattr(fs, small, &root_user, name, value, sizeof(value), 0));
	fs_close(fs);
}

static void what_is_unlinked_is_freed_before_xattrs_find_no_space(void **state)
{
	with_fs_sized(1, 48, 8, full_for_xattrs);
}

static void full_for_fallocate(struct fs *plain)
{
	struct fs *fs = forgetting(plain);
	uint64_t ino = fill(fs, "big");
	uint64_t size = attr_of(fs, ino).size;
	struct ops_file *f;
	struct ops_attr a;

	OK(ops_create(fs, ROOT, nm("held"), &root_user, 0600, O_RDWR, &f, &a));
	EQ(ops_fallocate(fs, f, &root_user, 0, 0, size / 2), -ENOSPC);
	OK(ops_unlink(fs, ROOT, nm("big")));
	ops_forget(fs, ino);
	HOLDS(exists(fs, ino));
	OK(ops_fallocate(fs, f, &root_user, 0, 0, size / 2));
	ops_close(fs, f);
	fs_close(fs);
}

static void what_is_unlinked_is_freed_before_fallocate_finds_no_space(void **state)
{
	with_fs_sized(1, 48, 8, full_for_fallocate);
}

/* ---- many tasks, and power cuts -------------------------------------------------- */

static struct {
	struct fs *fs;
	unsigned rounds;
	uint64_t forgotten[8];
} mix;

static void mix_task(struct fs *fs, unsigned n)
{
	char name[16];

	for (unsigned i = 0; i < mix.rounds; i++) {
		struct ops_file *f = NULL;
		struct ops_attr a;
		uint64_t dir;

		OK(ops_create(
			fs, ROOT, nm_of(name, "f", n), &root_user, 0600, O_RDWR, &f, &a));
		if (i % 2)
			EQ(ops_write(fs, f, &root_user, rt_random() % 100000, "abc", 3,
				   false),
				3);
		if (i % 3 == 0)
			ops_close(fs, f);
		OK(ops_unlink(fs, ROOT, nm(name)));
		if (i % 3 == 1)
			ops_close(fs, f);
		ops_forget(fs, a.ino);
		if (i % 3 == 2)
			ops_close(fs, f);
		OK(ops_mkdir(fs, ROOT, nm_of(name, "d", n), &root_user, 0700, &a));
		dir = a.ino;
		OK(ops_rmdir(fs, ROOT, nm(name)));
		/* some are held for some time, and a few for ever */
		if (mix.forgotten[n] && rt_random() % 8)
			ops_forget(fs, mix.forgotten[n]);
		mix.forgotten[n] = dir;
	}
}

static void crowd(struct fs *plain)
{
	struct fs *fs = forgetting(plain);

	memset(&mix, 0, sizeof(mix));
	mix.rounds = 150;
	crew(fs, 6, mix_task);
	fs_close(fs);
	EQ(attr_of(plain, ROOT).size, 0);
	EQ(pages_over(plain), 0);
}

static void crowds_leave_nothing(void **state)
{
	for (uint64_t seed = seeds_first(), left = seeds_count(10); left--; seed++)
		with_fs_sized(seed, 128, 2, crowd);
}

/* ---- truncations that were not finished ------------------------------------------ */

static int count_item(void *arg, struct disk_key key, const void *value, size_t len)
{
	++*(uint32_t *)arg;
	return 0;
}

static uint32_t unfinished(struct fs *fs)
{
	uint32_t count = 0;

	OK(tree_scan(fs->tree, disk_key(DISK_INO_SYSTEM, DISK_ITEM_INTENT, 0),
		disk_key(DISK_INO_SYSTEM, DISK_ITEM_INTENT + 1, 0), false, count_item,
		&count));
	return count;
}

static const struct fs_test small_cache = {"disk", 64 << 20, 1 << 20, NULL};

/* A file of extents that fill several leaves. */
static void scatter(struct fs *fs, struct ops_file *f)
{
	for (uint64_t page = 0; page < 600; page += 2)
		EQ(ops_write(fs, f, &root_user, page * PAGE_SIZE, "x", 1, false), 1);
}

static int look(void *arg, const struct iovec *iov, unsigned count, size_t total)
{
	return (int)total;
}

/* Fills the cache with other things, so that leaves must be read. */
static void wash(struct fs *fs, struct ops_file *large)
{
	OK(ops_syncfs(fs));
	for (uint64_t at = 0; at < 2 << 20; at += 1 << 16)
		EQ(ops_read(fs, large, at, 1 << 16, look, NULL), 1 << 16);
}

/* A file whose truncation has committed its size and no more, as a read failed. */
static uint64_t unfinished_file(struct fs *fs, struct rt_sim_disk *disk,
	struct ops_name name, struct ops_file *large, struct ops_file **f)
{
	struct ops_setattr set = {.set = OPS_SET_SIZE, .size = 0};
	uint32_t before = unfinished(fs);
	struct ops_attr a;

	OK(ops_create(fs, ROOT, name, &root_user, 0644, O_RDWR, f, &a));
	for (uint64_t n = 1; unfinished(fs) == before; n++) {
		struct rt_sim_fail fail = {.ops = RT_SIM_FAIL_READ, .n = n};
		struct ops_attr after;
		int rc;

		HOLDS(n < 50); /* else there was no such moment */
		scatter(fs, *f);
		wash(fs, large);
		rt_sim_disk_fail(disk, &fail);
		rc = ops_setattr(fs, a.ino, &root_user, &set, &after);
		rt_sim_disk_fail(disk, &(struct rt_sim_fail){0});
		HOLDS(rc == 0 || rc == -EIO);
	}
	HOLDS(unfinished(fs) == before + 1 && attr_of(fs, a.ino).blocks > 0);
	HOLDS(attr_of(fs, a.ino).flags & DISK_INODE_HAS_INTENT);
	return a.ino;
}

enum ending { GROWS, GOES_ALONE, GOES_IN_COMPANY };

static void end_intent(struct rt_sim_disk *disk, enum ending how)
{
	struct fs *plain = test_fs_open(&small_cache), *fs = forgetting(plain);
	struct ops_file *f, *large;
	uint64_t ino = write_file(fs, "large", 512);

	OK(ops_open(fs, ino, &root_user, O_RDONLY, &large, NULL));
	ino = unfinished_file(fs, disk, nm("f"), large, &f);
	ops_close(fs, large);
	if (how == GROWS)
		EQ(ops_write(fs, f, &root_user, 5 * PAGE_SIZE, "x", 1, false), 1);
	if (how != GOES_ALONE)
		ops_close(fs, f);
	if (how != GROWS) {
		OK(ops_unlink(fs, ROOT, nm("f")));
		ops_forget(fs, ino);
	}
	if (how == GOES_ALONE)
		ops_close(fs, f);
	HOLDS(gone(fs, ino) == (how != GROWS));
	HOLDS(how != GROWS || !attr_of(fs, ino).flags);
	EQ(unfinished(fs), 0);
	fs_close(fs);
	EQ(pages_over(plain), 0);
	test_fs_close(plain);
}

static int end_intent_main(void *arg)
{
	end_intent(test_sim_disk("disk", small_cache.disk_bytes, 0),
		*(const enum ending *)arg);
	return 0;
}

static void an_unfinished_truncation_is_looked_for_until_it_is_gone(void **state)
{
	for (enum ending how = GROWS; how <= GOES_IN_COMPANY; how++)
		OK(rt_sim_run(1, NULL, end_intent_main, &how));
}

static const struct fs_test cut_disk = {"disk", 128 << 20, 1 << 20, NULL};

static void cut_work(void *arg)
{
	struct fs *fs = forgetting(test_fs_open(&cut_disk));

	memset(&mix, 0, sizeof(mix));
	mix.rounds = 100000;
	crew(fs, 4, mix_task);
}

static int cuts(void *arg)
{
	struct rt_sim_disk *disk = test_sim_disk("disk", cut_disk.disk_bytes, 4 << 20);

	for (unsigned life = 0; life < 5; life++) {
		unsigned node = rt_sim_node_new("life");
		char name[16];
		struct fs *fs;

		rt_sim_disk_cut_after(disk, 30 + rt_random() % 400);
		OK(rt_sim_spawn_on(node, "work", cut_work, NULL));
		while (!rt_sim_node_wait(node))
			;
		rt_sim_node_kill(node);
		rt_sim_disk_cut_after(disk, 0);
		fs = test_fs_open(&cut_disk);
		EQ(pages_over(fs), 0); /* no orphan item is left either */
		for (unsigned n = 0; n < 4; n++) {
			int rc = ops_unlink(fs, ROOT, nm_of(name, "f", n));

			HOLDS(rc == 0 || rc == -ENOENT);
			rc = ops_rmdir(fs, ROOT, nm_of(name, "d", n));
			HOLDS(rc == 0 || rc == -ENOENT);
		}
		EQ(attr_of(fs, ROOT).size, 0);
		test_fs_close(fs);
	}
	return 0;
}

static void a_power_cut_leaves_no_orphans(void **state)
{
	for (uint64_t seed = seeds_first(), left = seeds_count(12); left--; seed++)
		OK(rt_sim_run(seed, NULL, cuts, NULL));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_type_lives_until_it_is_forgotten),
		cmocka_unit_test(a_removed_directory_can_be_looked_at),
		cmocka_unit_test(what_rename_replaces_lives_as_long),
		cmocka_unit_test(the_later_of_close_and_forget_frees),
		cmocka_unit_test(tmpfiles_live_as_long),
		cmocka_unit_test(a_listing_shows_no_orphans),
		cmocka_unit_test(closing_frees_what_was_never_forgotten),
		cmocka_unit_test(bursts_are_worked_off),
		cmocka_unit_test(a_batch_takes_all_sizes),
		cmocka_unit_test(what_is_unlinked_is_freed_before_there_is_no_space),
		cmocka_unit_test(
			settling_waits_for_the_forgets_of_what_was_just_unlinked),
		cmocka_unit_test(
			what_is_unlinked_is_freed_before_fallocate_finds_no_space),
		cmocka_unit_test(what_is_unlinked_is_freed_before_xattrs_find_no_space),
		cmocka_unit_test(
			what_is_unlinked_is_freed_before_the_tree_finds_no_space),
		cmocka_unit_test(crowds_leave_nothing),
		cmocka_unit_test(an_unfinished_truncation_is_looked_for_until_it_is_gone),
		cmocka_unit_test(a_power_cut_leaves_no_orphans),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
