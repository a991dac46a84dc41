/* SPDX-License-Identifier: Apache-2.0 */
/*
 * File data: what is read is what was written, whatever the cache, the neighbours and the
 * mapping do; space is accounted for to the page; what was synced survives a power cut.
 */
#include "fs/ops/data_internal.h"
#include "tests/unit/ops_account.h"
#include "tests/unit/ops_data_crews.h"

#include <linux/falloc.h>
#include <unistd.h>

static uint64_t free_pages(struct fs *fs)
{
	struct space_stat stat;

	space_stat(fs->volume->space, &stat);
	return stat.free_pages;
}

static unsigned extent_count(struct fs *fs, uint64_t ino)
{
	struct disk_key at = disk_key(ino, DISK_ITEM_EXTENT, 0), found;
	const struct disk_key end = disk_key(ino, DISK_ITEM_EXTENT + 1, 0);
	struct disk_extent e;
	unsigned n = 0;

	while (tree_next(fs->tree, at, end, &found, &e, sizeof(e)) >= 0) {
		n++;
		at = found;
		at.low++;
	}
	return n;
}

/* A file of many extents: every second block. */
static void scatter(struct fs *fs, struct ops_file *f, unsigned blocks)
{
	uint8_t page[PAGE_SIZE];

	for (unsigned b = 0; b < blocks; b += 2) {
		fill(page, sizeof(page), b);
		write_at(fs, f, (uint64_t)b * PAGE_SIZE, page, sizeof(page));
	}
}

/* ---- reading and writing --------------------------------------------------------- */

static void do_small_files(struct fs *fs)
{
	uint8_t in[3 * PAGE_SIZE], out[4 * PAGE_SIZE];
	uint64_t ino;
	struct ops_file *f = make_file(fs, "a", &ino);

	EQ(read_at(fs, f, 0, out, sizeof(out)), 0);
	fill(in, sizeof(in), 1);
	write_at(fs, f, 0, in, 100);
	EQ(read_at(fs, f, 0, out, sizeof(out)), 100);
	EQ(memcmp(in, out, 100), 0);
	EQ(read_at(fs, f, 40, out, 20), 20);
	EQ(memcmp(in + 40, out, 20), 0);
	write_at(fs, f, 100, in + 100, sizeof(in) - 100);
	EQ(read_at(fs, f, 0, out, sizeof(out)), sizeof(in));
	EQ(memcmp(in, out, sizeof(in)), 0);
	EQ(attr_of(fs, ino).size, sizeof(in));
	EQ(attr_of(fs, ino).blocks, 3);
	EQ(read_at(fs, f, sizeof(in), out, 1), 0);
	EQ(read_at(fs, f, UINT64_MAX / 2, out, 1), 0);
	EQ(ops_write(fs, f, &root_user, 0, in, 0, false), 0);
	ops_close(fs, f);
}

static void small_files_read_back(void **state)
{
	with_fs(do_small_files);
}

static void do_holes(struct fs *fs)
{
	uint8_t out[8 * PAGE_SIZE], one[PAGE_SIZE];
	uint64_t ino;
	struct ops_file *f = make_file(fs, "a", &ino);

	fill(one, sizeof(one), 3);
	write_at(fs, f, 5 * PAGE_SIZE + 10, one, 20);
	EQ(attr_of(fs, ino).blocks, 1);
	EQ(read_at(fs, f, 0, out, sizeof(out)), 5 * PAGE_SIZE + 30);
	HOLDS(zeros(out, 5 * PAGE_SIZE + 10));
	EQ(memcmp(out + 5 * PAGE_SIZE + 10, one, 20), 0);
	EQ(ops_lseek(fs, f, 0, SEEK_DATA, NULL, NULL), 5 * PAGE_SIZE);
	EQ(ops_lseek(fs, f, 0, SEEK_HOLE, NULL, NULL), 0);
	EQ(ops_lseek(fs, f, 5 * PAGE_SIZE + 7, SEEK_DATA, NULL, NULL), 5 * PAGE_SIZE + 7);
	EQ(ops_lseek(fs, f, 5 * PAGE_SIZE + 7, SEEK_HOLE, NULL, NULL),
		5 * PAGE_SIZE + 30);
	EQ(ops_lseek(fs, f, 5 * PAGE_SIZE + 30, SEEK_HOLE, NULL, NULL), -ENXIO);
	EQ(ops_lseek(fs, f, 0, SEEK_SET, NULL, NULL), -EINVAL);
	/* as far out as a file goes */
	EQ(ops_write(fs, f, &root_user, INT64_MAX - 1, one, 5, false), 1);
	EQ(attr_of(fs, ino).size, INT64_MAX);
	EQ(ops_write(fs, f, &root_user, INT64_MAX, one, 5, false), -EFBIG);
	EQ(read_at(fs, f, INT64_MAX - 3, out, 100), 3);
	HOLDS(out[0] == 0 && out[1] == 0 && out[2] == one[0]);
	EQ(ops_lseek(fs, f, 6 * PAGE_SIZE, SEEK_DATA, NULL, NULL), INT64_MAX & ~4095ll);
	ops_close(fs, f);
}

static void holes_are_zeros_and_hold_no_space(void **state)
{
	with_fs(do_holes);
}

static void do_extents(struct fs *fs)
{
	size_t len = 4 << 20;
	uint8_t *in = malloc(len), *out = malloc(len);
	uint64_t ino[2];
	struct ops_file *f[2];

	f[0] = make_file(fs, "a", &ino[0]);
	f[1] = make_file(fs, "b", &ino[1]);
	fill(in, len, 5);
	for (size_t at = 0; at < len; at += 65536)
		for (int i = 0; i < 2; i++)
			write_at(fs, f[i], at, in + at, 65536);
	/* side by side, yet each in a few extents */
	for (int i = 0; i < 2; i++) {
		HOLDS(extent_count(fs, ino[i]) <= 10);
		EQ(read_at(fs, f[i], 0, out, len), len);
		EQ(memcmp(in, out, len), 0);
		ops_close(fs, f[i]);
		EQ(attr_of(fs, ino[i]).blocks, len / PAGE_SIZE);
	}
	EQ(pages_over(fs), 0);
	free(in);
	free(out);
}

static void files_written_side_by_side_stay_contiguous(void **state)
{
	with_fs(do_extents);
}

static void do_appends(struct fs *fs)
{
	unsigned counts[4] = {0};
	size_t len = 4 * 40 * 900;
	uint8_t *out = malloc(len + 1);
	uint64_t ino;
	struct ops_file *f = make_file(fs, "log", &ino);

	crew(fs, 4, append_run);
	EQ(read_at(fs, f, 0, out, len + 1), len);
	for (size_t at = 0; at < len; at += 900) {
		for (size_t i = 1; i < 900; i++)
			EQ(out[at + i], out[at]);
		counts[out[at] - 'a']++;
	}
	for (int i = 0; i < 4; i++)
		EQ(counts[i], 40);
	free(out);
	ops_close(fs, f);
	EQ(pages_over(fs), 0);
}

static void appends_of_many_tasks_are_whole_and_none_is_lost(void **state)
{
	for (unsigned seed = 1; seed <= 5; seed++)
		with_fs_sized(seed, 64, 1, do_appends);
}

/* ---- crews ----------------------------------------------------------------------- */

static void do_fsx(struct fs *fs)
{
	crew(fs, 4, fsx_run);
	EQ(pages_over(fs), 0);
}

static void random_operations_match_a_shadow(void **state)
{
	for (unsigned seed = 1; seed <= 12; seed++)
		with_fs_sized(seed, 64, 1, do_fsx);
}

static void do_slices(struct fs *fs)
{
	uint64_t ino = mk_file(fs, DISK_INO_ROOT, "shared");

	set_size(fs, ino, 6 * SLICE);
	crew(fs, 6, slice_run);
	EQ(pages_over(fs), 0);
}

static void tasks_that_share_a_file_do_not_disturb_each_other(void **state)
{
	for (unsigned seed = 1; seed <= 10; seed++)
		with_fs_sized(seed, 64, 1, do_slices);
}

static void do_churn(struct fs *fs)
{
	mk_file(fs, DISK_INO_ROOT, "churn");
	crew(fs, 4, churn_run);
	EQ(pages_over(fs), 0);
}

static void readers_never_see_pages_that_are_not_the_files(void **state)
{
	for (unsigned seed = 1; seed <= 20; seed++)
		with_fs_sized(seed, 64, 1, do_churn);
}

/* ---- sizes, space ---------------------------------------------------------------- */

static void do_tail(struct fs *fs)
{
	uint8_t in[2 * PAGE_SIZE], out[4 * PAGE_SIZE];
	uint64_t ino;
	struct ops_file *f = make_file(fs, "a", &ino);

	fill(in, sizeof(in), 9);
	write_at(fs, f, 0, in, sizeof(in));
	set_size(fs, ino, 1000);
	EQ(attr_of(fs, ino).blocks, 1);
	set_size(fs, ino, 3000);
	EQ(read_at(fs, f, 0, out, sizeof(out)), 3000);
	EQ(memcmp(in, out, 1000), 0);
	HOLDS(zeros(out + 1000, 2000));
	write_at(fs, f, 3 * PAGE_SIZE, in, 1);
	EQ(read_at(fs, f, 0, out, sizeof(out)), 3 * PAGE_SIZE + 1);
	HOLDS(zeros(out + 1000, 3 * PAGE_SIZE - 1000));
	EQ(attr_of(fs, ino).blocks, 2);
	ops_close(fs, f);
}

static void growing_shows_zeros_where_bytes_were_cut_off(void **state)
{
	with_fs(do_tail);
}

/* What a cut in the middle of an append can leave: bytes behind the end of the file. */
static void leave_bytes_behind_the_end(struct fs *fs, uint64_t ino)
{
	uint64_t size = attr_of(fs, ino).size;
	struct disk_extent e;
	struct guard g;

	EQ(tree_read(fs->tree, disk_key(ino, DISK_ITEM_EXTENT, 0), &e, sizeof(e)),
		sizeof(e));
	OK(guard_exclusive(fs->volume->cache, e.pid, e.incarnation, &g));
	memset(g.image + size, 'g', PAGE_SIZE - size);
	guard_release_dirty(fs->volume->cache, &g, false);
}

static void do_garbage(struct fs *fs)
{
	uint8_t in[PAGE_SIZE], out[3 * PAGE_SIZE];

	fill(in, sizeof(in), 4);
	for (int how = 0; how < 5; how++) {
		uint64_t ino, from = 1000;
		struct ops_file *f = make_file(fs, "a", &ino);
		size_t got;

		write_at(fs, f, 0, in, 1000);
		leave_bytes_behind_the_end(fs, ino);
		switch (how) {
		case 0:
			set_size(fs, ino, 2 * PAGE_SIZE);
			break;
		case 1:
			write_at(fs, f, 3000, in, 1);
			set_size(fs, ino, 2 * PAGE_SIZE);
			break;
		case 2:
			write_at(fs, f, 2 * PAGE_SIZE, in, 1);
			break;
		case 3:
			OK(ops_fallocate(fs, f, &root_user, 0, 0, 2 * PAGE_SIZE));
			break;
		default:
			EQ(ops_write(fs, f, &root_user, 0, in + 1000, 500, true), 500);
			from = 1500;
			EQ(ops_copy_range(fs, f, 0, f, 2 * PAGE_SIZE, 10, &root_user),
				10);
			break;
		}
		got = read_at(fs, f, 0, out, sizeof(out));
		HOLDS(got >= 2 * PAGE_SIZE);
		EQ(memcmp(out, in, from), 0);
		for (size_t i = from; i < 2 * PAGE_SIZE; i++)
			EQ(out[i], how == 1 && i == 3000 ? in[0] : 0);
		ops_close(fs, f);
		OK(ops_unlink(fs, DISK_INO_ROOT, nm("a")));
	}
}

static void growing_shows_zeros_whatever_a_cut_left_behind_the_end(void **state)
{
	with_fs(do_garbage);
}

static void do_intents(struct fs *fs)
{
	uint64_t before = free_pages(fs), ino;
	struct ops_file *f = make_file(fs, "a", &ino);

	scatter(fs, f, 400);
	HOLDS(extent_count(fs, ino) >= 150);
	EQ(attr_of(fs, ino).blocks, 200);
	set_size(fs, ino, 100 * PAGE_SIZE);
	EQ(attr_of(fs, ino).blocks, 50);
	set_size(fs, ino, 400 * PAGE_SIZE);
	EQ(ops_lseek(fs, f, 100 * PAGE_SIZE, SEEK_DATA, NULL, NULL), -ENXIO);
	OK(ops_fallocate(fs, f, &root_user, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
		400 * PAGE_SIZE));
	EQ(attr_of(fs, ino).blocks, 0);
	EQ(pages_over(fs), 0);
	scatter(fs, f, 400);
	ops_close(fs, f);
	OK(ops_unlink(fs, DISK_INO_ROOT, nm("a")));
	EQ(pages_over(fs), 0);
	HOLDS(free_pages(fs) + 20 >= before); /* but for pages of the tree */
}

static void files_of_many_extents_are_cut_in_pieces(void **state)
{
	with_fs_sized(1, 64, 2, do_intents);
}

static void do_fallocate(struct fs *fs)
{
	uint8_t in[PAGE_SIZE], out[PAGE_SIZE];
	struct space_stat stat;
	uint64_t ino, before;
	struct ops_file *f = make_file(fs, "a", &ino);

	OK(ops_fallocate(fs, f, &root_user, 0, 100, 100 * PAGE_SIZE));
	EQ(attr_of(fs, ino).blocks, 101);
	EQ(attr_of(fs, ino).size, 100 + 100 * PAGE_SIZE);
	EQ(ops_lseek(fs, f, 0, SEEK_DATA, NULL, NULL), -ENXIO);
	fill(in, sizeof(in), 1);
	write_at(fs, f, 50 * PAGE_SIZE + 5, in, 100);
	EQ(attr_of(fs, ino).blocks, 101);
	EQ(read_at(fs, f, 50 * PAGE_SIZE, out, PAGE_SIZE), PAGE_SIZE);
	HOLDS(zeros(out, 5) && !memcmp(out + 5, in, 100) &&
		zeros(out + 105, PAGE_SIZE - 105));
	EQ(ops_lseek(fs, f, 0, SEEK_DATA, NULL, NULL), 50 * PAGE_SIZE);
	EQ(ops_lseek(fs, f, 50 * PAGE_SIZE, SEEK_HOLE, NULL, NULL), 51 * PAGE_SIZE);
	OK(ops_fallocate(fs, f, &root_user, FALLOC_FL_KEEP_SIZE, 0, 300 * PAGE_SIZE));
	EQ(attr_of(fs, ino).blocks, 300);
	EQ(attr_of(fs, ino).size, 100 + 100 * PAGE_SIZE);
	set_size(fs, ino, attr_of(fs, ino).size);
	EQ(attr_of(fs, ino).blocks, 101);

	EQ(ops_fallocate(fs, f, &root_user, 0, 0, 0), -EINVAL);
	EQ(ops_fallocate(fs, f, &root_user, 0, INT64_MAX, 1), -EFBIG);
	EQ(ops_fallocate(fs, f, &root_user, FALLOC_FL_PUNCH_HOLE, 0, 1), -EOPNOTSUPP);
	EQ(ops_fallocate(fs, f, &root_user, FALLOC_FL_COLLAPSE_RANGE, 0, 4096),
		-EOPNOTSUPP);
	before = free_pages(fs);
	EQ(ops_fallocate(fs, f, &root_user, 0, 0, 1ull << 50), -ENOSPC);
	EQ(free_pages(fs), before);
	space_stat(fs->volume->space, &stat);
	EQ(ops_fallocate(
		   fs, f, &root_user, 0, 1 << 30, (stat.available_pages + 1) * PAGE_SIZE),
		-ENOSPC);
	EQ(free_pages(fs), before);
	ops_close(fs, f);
	EQ(pages_over(fs), 0);
}

static void fallocate_holds_space_and_reads_as_zeros(void **state)
{
	with_fs_sized(1, 64, 2, do_fallocate);
}

static void do_full(struct fs *fs)
{
	size_t len = 1 << 20;
	uint8_t *buf = malloc(len);
	uint64_t at[2], ino;

	fill(buf, len, 7);
	for (int round = 0; round < 3; round++) {
		struct ops_file *f = make_file(fs, "full", &ino), *held;
		uint64_t held_ino, end = 0;
		int64_t rc;

		held = make_file(fs, "held", &held_ino); /* holds space ahead */
		write_at(fs, held, 0, buf, 300000);
		while ((rc = ops_write(fs, f, &root_user, end, buf, len, false)) > 0)
			end += (uint64_t)rc;
		EQ(rc, -ENOSPC);
		EQ(attr_of(fs, ino).size, end);
		at[round > 0] = end;
		EQ(pages_over(fs), 0);
		EQ(ops_write(fs, f, &root_user, 0, buf, len, false), len); /* in place */
		OK(ops_fsync(fs, ino, false));
		ops_close(fs, held);
		ops_close(fs, f);
		OK(ops_unlink(fs, DISK_INO_ROOT, nm("held")));
		OK(ops_unlink(fs, DISK_INO_ROOT, nm("full")));
		EQ(pages_over(fs), 0);
		if (round > 0)
			HOLDS(at[1] + 64 * PAGE_SIZE >=
				at[0]); /* pages of the tree may stay */
	}
	free(buf);
}

static void a_full_volume_can_be_emptied_and_filled_again(void **state)
{
	with_fs_sized(1, 32, 2, do_full);
}

/* ---- handles --------------------------------------------------------------------- */

static void do_orphans(struct fs *fs)
{
	uint8_t in[5000], out[5000];
	uint64_t ino, before = free_pages(fs);
	struct ops_file *f = make_file(fs, "a", &ino), *g, *h;
	struct ops_attr a;

	fill(in, sizeof(in), 2);
	write_at(fs, f, 0, in, sizeof(in));
	OK(ops_unlink(fs, DISK_INO_ROOT, nm("a")));
	EQ(attr_of(fs, ino).nlink, 0);
	EQ(read_at(fs, f, 0, out, sizeof(out)), sizeof(in));
	EQ(memcmp(in, out, sizeof(in)), 0);
	write_at(fs, f, 5000, in, sizeof(in));
	g = open_ino(fs, ino, O_RDONLY); /* open here already */
	ops_close(fs, f);
	EQ(read_at(fs, g, 5000, out, sizeof(out)), sizeof(in));
	ops_close(fs, g);
	EQ(ops_getattr(fs, ino, &a), -ENOENT);
	EQ(ops_open(fs, ino, &root_user, O_RDONLY, &g, &a), -ENOENT);
	EQ(free_pages(fs), before);

	OK(ops_tmpfile(fs, DISK_INO_ROOT, &root_user, 0600, O_RDWR | O_TMPFILE, &f, &a));
	write_at(fs, f, 0, in, sizeof(in));
	ops_close(fs, f);
	EQ(ops_getattr(fs, a.ino, &a), -ENOENT);
	EQ(free_pages(fs), before);

	OK(ops_tmpfile(fs, DISK_INO_ROOT, &root_user, 0600, O_RDWR | O_TMPFILE, &f, &a));
	write_at(fs, f, 0, in, sizeof(in));
	OK(try_link(fs, a.ino, DISK_INO_ROOT, "named"));
	ops_close(fs, f);
	h = open_ino(fs, ino_of(fs, DISK_INO_ROOT, "named"), O_RDONLY);
	EQ(read_at(fs, h, 0, out, sizeof(out)), sizeof(in));
	ops_close(fs, h);
	EQ(pages_over(fs), 0);
}

static void unlinked_files_live_until_the_last_close(void **state)
{
	with_fs(do_orphans);
}

static void do_flags(struct fs *fs)
{
	uint8_t buf[100] = {1};
	struct copy c = {buf, sizeof(buf)};
	struct ops_file *f, *g;
	struct ops_attr a;
	uint64_t ino;

	f = make_file(fs, "a", &ino);
	write_at(fs, f, 0, buf, sizeof(buf));
	g = open_ino(fs, ino, O_RDONLY);
	EQ(ops_write(fs, g, &root_user, 0, buf, 1, false), -EBADF);
	EQ(ops_fallocate(fs, g, &root_user, 0, 0, 1), -EBADF);
	ops_close(fs, g);
	g = open_ino(fs, ino, O_WRONLY | O_TRUNC);
	EQ(attr_of(fs, ino).size, 0);
	EQ(attr_of(fs, ino).blocks, 0);
	EQ(ops_read(fs, g, 0, 1, copy_out, &c), -EBADF);
	ops_close(fs, g);
	EQ(ops_open(fs, DISK_INO_ROOT, &root_user, O_RDONLY, &g, &a), -EISDIR);
	EQ(ops_open(fs, 424242, &root_user, O_RDONLY, &g, &a), -ENOENT);
	ops_close(fs, f);
}

static void flags_of_the_open_are_kept(void **state)
{
	with_fs(do_flags);
}

#define QUEUE 6

static void append_letter(void *arg)
{
	struct crew_member *m = arg;
	struct ops_file *f =
		open_ino(m->fs, ino_of(m->fs, DISK_INO_ROOT, "log"), O_WRONLY | O_APPEND);
	char letter = (char)('a' + m->n);

	EQ(ops_write(m->fs, f, &root_user, 0, &letter, 1, false), 1);
	ops_close(m->fs, f);
}

/* They come while another call is at the file; that caller's next one comes last. */
static void do_queue(struct fs *fs)
{
	struct crew_member m[QUEUE];
	struct inode_state *st;
	char text[QUEUE + 1];
	uint64_t ino;
	struct ops_file *f = make_file(fs, "log", &ino);

	OK(state_get(fs, ino, &st));
	rt_gate_enter(&st->alloc_gate, 1);
	for (unsigned i = 0; i < QUEUE; i++) {
		m[i] = (struct crew_member){.fs = fs, .n = i};
		OK(rt_task_spawn(&m[i].task, "appender", append_letter, &m[i]));
		while (atomic_load(&st->alloc_gate.tickets) < 2 + i)
			rt_sleep_ns(1000);
	}
	rt_gate_leave(&st->alloc_gate, 1);
	state_put(fs, st);
	EQ(ops_write(fs, f, &root_user, 0, "!", 1, true), 1);
	EQ(read_at(fs, f, 0, text, sizeof(text)), sizeof(text));
	EQ(memcmp(text, "abcdef!", sizeof(text)), 0);
	for (unsigned i = 0; i < QUEUE; i++)
		rt_task_join(m[i].task);
	ops_close(fs, f);
}

static void calls_that_change_a_file_are_served_in_the_order_of_asking(void **state)
{
	for (uint64_t seed = 1; seed <= 20; seed++)
		with_fs_sized(seed, 64, 2, do_queue);
}

static void do_setid(struct fs *fs)
{
	struct ops_setattr set = {.set = OPS_SET_MODE, .mode = 06755};
	uint8_t byte = 1;
	struct ops_attr a;
	struct ops_file *f;
	uint64_t ino;

	f = make_file(fs, "a", &ino);
	for (int i = 0; i < 3; i++) {
		OK(ops_setattr(fs, ino, &root_user, &set, &a));
		write_at(fs, f, 0, &byte, 1);
		EQ(attr_of(fs, ino).mode & 07777, 06755);
		if (i < 2) /* extends, then overwrites */
			EQ(ops_write(
				   fs, f, &plain_user, i == 0 ? 10 : 0, &byte, 1, false),
				1);
		else
			OK(ops_fallocate(fs, f, &plain_user, 0, 0, 100000));
		EQ(attr_of(fs, ino).mode & 07777, 0755);
	}
	ops_close(fs, f);
}

static void writing_clears_setuid_and_setgid(void **state)
{
	with_fs(do_setid);
}

static void do_caps(struct fs *fs)
{
	static const char name[] = "security.capability";
	uint8_t byte = 1;
	struct ops_file *f;
	uint64_t ino;

	f = make_file(fs, "a", &ino);
	write_at(fs, f, 0, &byte, 1);
	for (int i = 0; i < 3; i++) {
		OK(ops_setxattr(fs, ino, &root_user, name, "caps", 4, 0));
		EQ(ops_getxattr(fs, ino, name, NULL, 0), 4);
		if (i < 2) /* overwrites, then extends */
			write_at(fs, f, i == 0 ? 0 : 10, &byte, 1);
		else
			OK(ops_fallocate(fs, f, &root_user, 0, 0, 100000));
		EQ(ops_getxattr(fs, ino, name, NULL, 0), -ENODATA);
		EQ(attr_of(fs, ino).flags, 0);
	}
	ops_close(fs, f);
}

static void writing_takes_capabilities_away(void **state)
{
	with_fs(do_caps);
}

static void do_times(struct fs *fs)
{
	struct ops_setattr set = {.set = OPS_SET_MTIME, .mtime_ns = 12345};
	struct disk_inode before, after;
	uint8_t byte = 1, out;
	struct ops_attr a;
	struct ops_file *f;
	uint64_t ino;

	f = make_file(fs, "a", &ino);
	write_at(fs, f, 0, &byte, 1);
	for (int i = 0; i < 5; i++) {
		before = attr_of(fs, ino);
		rt_sleep_ns(300000000);
		write_at(fs, f, 0, &byte, 1);
		after = attr_of(fs, ino);
		HOLDS(after.mtime_ns >= before.mtime_ns + 300000000);
		HOLDS(after.ctime_ns >= before.ctime_ns + 300000000);
	}
	OK(ops_setattr(fs, ino, &root_user, &set, &a));
	EQ(attr_of(fs, ino).mtime_ns, 12345);
	ops_close(fs, f);
	EQ(attr_of(fs, ino).mtime_ns, 12345);

	f = open_ino(fs, ino, O_RDWR);
	write_at(fs, f, 0, &byte, 1);
	rt_sleep_ns(1000);
	EQ(read_at(fs, f, 0, &out, 1), 1);
	after = attr_of(fs, ino);
	HOLDS(after.atime_ns >= after.mtime_ns);
	ops_close(fs, f);
	EQ(attr_of(fs, ino).atime_ns, after.atime_ns);
	EQ(attr_of(fs, ino).mtime_ns, after.mtime_ns);

	/* a change that is newer than the last write makes the next read count */
	f = open_ino(fs, ino, O_RDWR);
	write_at(fs, f, 0, &byte, 1);
	rt_sleep_ns(1000);
	write_at(fs, f, 0, &byte, 1);
	rt_sleep_ns(1000);
	EQ(read_at(fs, f, 0, &out, 1), 1);
	rt_sleep_ns(1000);
	OK(try_rename(fs, DISK_INO_ROOT, "a", DISK_INO_ROOT, "b", 0));
	rt_sleep_ns(1000);
	EQ(read_at(fs, f, 0, &out, 1), 1);
	after = attr_of(fs, ino);
	HOLDS(after.atime_ns > after.ctime_ns);
	ops_close(fs, f);
}

static void times_follow_reads_and_writes(void **state)
{
	with_fs(do_times);
}

static void do_copy_times(struct fs *fs)
{
	struct ops_file *in, *quiet, *out;
	uint64_t from, to;
	uint8_t byte = 1;
	int64_t before;

	in = make_file(fs, "in", &from);
	out = make_file(fs, "out", &to);
	quiet = open_ino(fs, from, O_RDONLY | O_NOATIME);
	rt_sleep_ns(1000);
	write_at(fs, in, 0, &byte, 1);
	before = attr_of(fs, from).atime_ns;
	EQ(ops_copy_range(fs, quiet, 0, out, 0, 1, &root_user), 1);
	EQ(attr_of(fs, from).atime_ns, before);
	EQ(ops_copy_range(fs, in, 0, out, 0, 1, &root_user), 1);
	HOLDS(attr_of(fs, from).atime_ns > before);
	ops_close(fs, quiet);
	ops_close(fs, out);
	ops_close(fs, in);
}

/* Each call that shows attributes shows the same. */
static void do_cut_times(struct fs *fs)
{
	struct ops_file *f, *g;
	struct ops_attr a;
	uint8_t byte = 1;
	uint64_t ino;

	f = make_file(fs, "a", &ino);
	write_at(fs, f, 0, &byte, 1);
	rt_sleep_ns(1000);
	EQ(read_at(fs, f, 0, &byte, 1), 1);
	rt_sleep_ns(1000);
	OK(ops_create(
		fs, DISK_INO_ROOT, nm("a"), &root_user, 0600, O_RDWR | O_TRUNC, &g, &a));
	EQ(a.inode.atime_ns, attr_of(fs, ino).atime_ns);
	EQ(a.inode.mtime_ns, attr_of(fs, ino).mtime_ns);
	HOLDS(a.inode.mtime_ns > a.inode.atime_ns);
	ops_close(fs, g);
	ops_close(fs, f);
	EQ(a.inode.atime_ns, attr_of(fs, ino).atime_ns);
}

static void a_cut_shows_the_times_that_are_known(void **state)
{
	with_fs(do_cut_times);
}

static void copying_is_reading(void **state)
{
	with_fs(do_copy_times);
}

static void do_old_times(struct fs *fs)
{
	static const int64_t old[] = {-1, -1000000000000000, INT64_MIN};
	struct disk_inode inode;
	uint8_t byte = 1, out;
	struct ops_file *f;
	struct ops_attr a;
	uint64_t ino;

	f = make_file(fs, "a", &ino);
	write_at(fs, f, 0, &byte, 1);
	for (size_t i = 0; i < ARRAY_SIZE(old); i++) {
		struct ops_setattr set = {.set = OPS_SET_MTIME | OPS_SET_ATIME,
			.mtime_ns = old[i],
			.atime_ns = old[i]};

		OK(ops_setattr(fs, ino, &root_user, &set, &a));
		EQ(attr_of(fs, ino).mtime_ns, old[i]);
		EQ(read_at(fs, f, 0, &out, 1), 1);
		OK(ops_fsync(fs, ino, false));
		OK(inode_get(fs, ino, &inode));
		EQ(inode.mtime_ns, old[i]);
		HOLDS(inode.atime_ns > 0);
		write_at(fs, f, 0, &byte, 1);
		OK(inode_get(fs, ino, &inode));
		HOLDS(inode.mtime_ns > 0);
	}
	ops_close(fs, f);
}

static void times_before_1970_are_times(void **state)
{
	with_fs(do_old_times);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(small_files_read_back),
		cmocka_unit_test(holes_are_zeros_and_hold_no_space),
		cmocka_unit_test(files_written_side_by_side_stay_contiguous),
		cmocka_unit_test(growing_shows_zeros_where_bytes_were_cut_off),
		cmocka_unit_test(growing_shows_zeros_whatever_a_cut_left_behind_the_end),
		cmocka_unit_test(files_of_many_extents_are_cut_in_pieces),
		cmocka_unit_test(fallocate_holds_space_and_reads_as_zeros),
		cmocka_unit_test(a_full_volume_can_be_emptied_and_filled_again),
		cmocka_unit_test(unlinked_files_live_until_the_last_close),
		cmocka_unit_test(flags_of_the_open_are_kept),
		cmocka_unit_test(
			calls_that_change_a_file_are_served_in_the_order_of_asking),
		cmocka_unit_test(writing_clears_setuid_and_setgid),
		cmocka_unit_test(writing_takes_capabilities_away),
		cmocka_unit_test(times_before_1970_are_times),
		cmocka_unit_test(copying_is_reading),
		cmocka_unit_test(a_cut_shows_the_times_that_are_known),
		cmocka_unit_test(times_follow_reads_and_writes),
		cmocka_unit_test(appends_of_many_tasks_are_whole_and_none_is_lost),
		cmocka_unit_test(random_operations_match_a_shadow),
		cmocka_unit_test(tasks_that_share_a_file_do_not_disturb_each_other),
		cmocka_unit_test(readers_never_see_pages_that_are_not_the_files),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
