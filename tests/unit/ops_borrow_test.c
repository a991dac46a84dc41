/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hidden opens: requests borrow handles, whose number is bounded. What an inode without links has
 * is kept until its forget, whatever happens to its handle, and no longer.
 */
#include "fs/ops/data_internal.h"
#include "tests/unit/ops_account.h"

#define ROOT  DISK_INO_ROOT
#define FILES 3000u

struct kernel {
	unsigned drops;
	uint64_t last;
};

static void drop_first(void *owner, uint64_t ino)
{
	struct kernel *k = owner;

	k->drops++;
	k->last = ino;
}

static struct fs *hiding(struct fs *plain, unsigned atime, struct kernel *k)
{
	struct ops_options o = {.atime = atime, .caller_forgets = true};
	struct weft_error err = {0};
	struct fs *fs;

	OK(fs_open(&fs, fs_volume(plain), &o, &err));
	HOLDS(!fs_opens_hidden(fs));
	OK(fs_hide_opens(fs, drop_first, k));
	HOLDS(fs_opens_hidden(fs));
	return fs;
}

static uint64_t make_file(struct fs *fs, unsigned n)
{
	char name[32];
	struct ops_attr a;

	sprintf(name, "f%u", n);
	OK(ops_mknod(fs, ROOT, nm(name), &root_user, S_IFREG | 0644, 0, 0, &a));
	return a.ino;
}

static void put(struct fs *fs, uint64_t ino, const char *text)
{
	struct ops_file *f;

	OK(ops_borrow(fs, ino, &f));
	EQ(ops_write(fs, f, &root_user, 0, text, strlen(text), 0), strlen(text));
	ops_give_back(fs, ino, f);
}

struct got {
	char bytes[64];
};

static int take(void *arg, const struct iovec *iov, unsigned count, size_t total)
{
	struct got *g = arg;

	HOLDS(total < sizeof(g->bytes) && count <= 1);
	if (count)
		memcpy(g->bytes, iov->iov_base, total);
	g->bytes[total] = '\0';
	return (int)total;
}

static void holds_text(struct fs *fs, uint64_t ino, const char *text)
{
	struct ops_file *f;
	struct got g;

	OK(ops_borrow(fs, ino, &f));
	EQ(ops_read_borrowed(fs, f, 0, 60, true, take, &g), strlen(text));
	HOLDS(strcmp(g.bytes, text) == 0);
	ops_give_back(fs, ino, f);
}

static unsigned handles(struct fs *fs, const uint64_t *ino, unsigned count)
{
	unsigned n = 0;

	for (unsigned i = 0; i < count; i++)
		n += file_is_open(fs, ino[i]);
	return n;
}

static void do_bounded(struct fs *plain)
{
	static uint64_t ino[FILES];
	struct kernel k = {0};
	struct fs *fs = hiding(plain, OPS_NOATIME, &k);

	for (unsigned i = 0; i < FILES; i++) {
		ino[i] = make_file(fs, i);
		put(fs, ino[i], "some bytes");
	}
	rt_sleep_ns(100000000);
	HOLDS(handles(fs, ino, FILES) <= 512 && handles(fs, ino, FILES) > 256);
	rt_sleep_ns(3000000000);
	EQ(handles(fs, ino, FILES), 0); /* they are idle */
	for (unsigned i = 0; i < FILES; i++)
		holds_text(fs, ino[i], "some bytes");
	EQ(k.drops, 0); /* noatime */
	fs_close(fs);
}

static void handles_are_bounded_and_closed_when_idle(void **state)
{
	with_fs(do_bounded);
}

static void do_unlinked(struct fs *plain)
{
	struct kernel k = {0};
	struct fs *fs = hiding(plain, OPS_NOATIME, &k);
	uint64_t ino = make_file(fs, 1);
	struct ops_file *f, *more;
	struct disk_inode inode;
	uint64_t before;

	put(fs, ino, "kept");
	OK(ops_unlink(fs, ROOT, nm("f1")));
	HOLDS(ops_awaits_forget(fs, ino));
	rt_sleep_ns(5000000000);
	HOLDS(!file_is_open(fs, ino));
	holds_text(fs, ino, "kept"); /* with a new handle */
	put(fs, ino, "more");
	/* the forget comes while a request has it */
	OK(ops_borrow(fs, ino, &f));
	OK(ops_borrow(fs, ino, &more));
	HOLDS(f == more);
	ops_forget(fs, ino);
	rt_sleep_ns(2000000000);
	OK(inode_get(fs, ino, &inode));
	ops_give_back(fs, ino, more);
	rt_sleep_ns(2000000000);
	OK(inode_get(fs, ino, &inode));
	ops_give_back(fs, ino, f);
	rt_sleep_ns(2000000000);
	EQ(inode_get(fs, ino, &inode), -ENOENT);
	EQ(ops_borrow(fs, ino, &f), -ENOENT);
	/* the handle is idle when the forget comes */
	before = ino = make_file(fs, 2);
	put(fs, ino, "gone");
	OK(ops_unlink(fs, ROOT, nm("f2")));
	ops_forget(fs, ino);
	rt_sleep_ns(500000000);
	EQ(inode_get(fs, before, &inode), -ENOENT);
	EQ(pages_over(fs), 0);
	fs_close(fs);
}

static void an_unlinked_inode_lives_until_its_forget(void **state)
{
	with_fs(do_unlinked);
}

static void do_tmpfile(struct fs *plain)
{
	struct kernel k = {0};
	struct fs *fs = hiding(plain, OPS_NOATIME, &k);
	struct disk_inode inode;
	struct ops_file *f;
	struct ops_attr a;
	uint64_t other;

	OK(ops_tmpfile(fs, ROOT, &root_user, 0600, O_RDWR, &f, &a));
	ops_hand_over(fs, a.ino, f);
	put(fs, a.ino, "text");
	rt_sleep_ns(3000000000);
	HOLDS(!file_is_open(fs, a.ino));
	holds_text(fs, a.ino, "text");
	rt_sleep_ns(3000000000);
	OK(ops_link(fs, a.ino, ROOT, nm("named"), &a));
	EQ(a.inode.nlink, 1);
	ops_forget(fs, a.ino); /* the reference of the file without a name */
	rt_sleep_ns(3000000000);
	holds_text(fs, a.ino, "text");
	EQ(ino_of(fs, ROOT, "named"), a.ino);
	OK(ops_tmpfile(fs, ROOT, &root_user, 0600, O_RDWR, &f, &a));
	ops_hand_over(fs, a.ino, f);
	other = a.ino;
	ops_forget(fs, other);
	EQ(ops_link(fs, other, ROOT, nm("late"), &a), -ENOENT);
	rt_sleep_ns(1000000000);
	EQ(inode_get(fs, other, &inode), -ENOENT);
	fs_close(fs);
}

static void a_tmpfile_can_be_named_without_a_handle(void **state)
{
	with_fs(do_tmpfile);
}

static void do_atime(struct fs *plain)
{
	struct kernel k = {0};
	struct fs *fs = hiding(plain, OPS_RELATIME, &k);
	uint64_t ino = make_file(fs, 1);
	struct disk_inode before, after;

	put(fs, ino, "bytes");
	EQ(k.drops, 0);
	rt_sleep_ns(3000000000);
	HOLDS(k.drops == 1 && k.last == ino);
	before = attr_of(fs, ino);
	holds_text(fs, ino, "bytes"); /* the kernel asks */
	after = attr_of(fs, ino);
	HOLDS(after.atime_ns > before.atime_ns);
	rt_sleep_ns(3000000000);
	EQ(k.drops, 1); /* it is not due any more */
	put(fs, ino, "again");
	rt_sleep_ns(3000000000);
	EQ(k.drops, 2);
	ops_touch(fs, ino);
	rt_sleep_ns(3000000000);
	EQ(k.drops, 3);
	fs_close(fs);
}

static void the_kernel_drops_a_page_if_the_atime_is_due(void **state)
{
	with_fs(do_atime);
}

static void do_ahead(struct fs *plain)
{
	struct kernel k = {0};
	struct fs *fs = hiding(plain, OPS_NOATIME, &k);
	uint64_t ino = make_file(fs, 1);
	static uint8_t bytes[64 * 1024];
	struct statvfs s;
	struct ops_file *f;
	uint64_t free_pages;

	OK(ops_statfs(fs, &s));
	free_pages = s.f_bfree;
	OK(ops_borrow(fs, ino, &f));
	for (unsigned i = 0; i < 8; i++)
		EQ(ops_write(
			   fs, f, &root_user, i * sizeof(bytes), bytes, sizeof(bytes), 0),
			sizeof(bytes));
	ops_give_back(fs, ino, f);
	OK(ops_statfs(fs, &s)); /* does not count what is reserved ahead */
	HOLDS(free_pages - s.f_bfree >= 128 && free_pages - s.f_bfree < 128 + 8);
	fs_close(fs);
}

static void idle_files_hold_no_space(void **state)
{
	with_fs(do_ahead);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(handles_are_bounded_and_closed_when_idle),
		cmocka_unit_test(an_unlinked_inode_lives_until_its_forget),
		cmocka_unit_test(a_tmpfile_can_be_named_without_a_handle),
		cmocka_unit_test(the_kernel_drops_a_page_if_the_atime_is_due),
		cmocka_unit_test(idle_files_hold_no_space),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
