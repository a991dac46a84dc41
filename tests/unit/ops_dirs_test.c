/* SPDX-License-Identifier: Apache-2.0 */
/* Directories: reading them while they change, large ones, many tasks in the same ones.
 */
#include "tests/unit/ops_crowd.h"

/* ---- reading ---------------------------------------------------------------------- */

static void reads(struct fs *fs)
{
	uint64_t d = mk_dir(fs, ROOT, "d"), f;
	struct seen *seen = list_new(600), *again = list_new(600);
	struct list l = {.seen = seen, .max = 600, .stop_at = 600};
	char name[32];

	OK(ops_readdir(fs, d, 0, OPS_READDIR_PLUS, collect, &l));
	EQ(l.count, 2);
	HOLDS(strcmp(seen[0].name, ".") == 0 && seen[0].ino == d && seen[0].cookie == 1);
	HOLDS(strcmp(seen[1].name, "..") == 0 && seen[1].ino == ROOT &&
		seen[1].cookie == 2);
	HOLDS(seen[0].type == DT_DIR && !seen[0].has_attr && !seen[1].has_attr);

	for (unsigned i = 0; i < 500; i++) {
		snprintf(name, sizeof(name), "a longer name %u", i);
		if (i % 3 == 0)
			mk_file(fs, d, name);
		else if (i % 3 == 1)
			mk_dir(fs, d, name);
		else
			OK(try_symlink(fs, d, name, "target"));
	}
	EQ(read_dir(fs, d, 0, 600, seen, 600), 502);
	for (unsigned i = 2; i < 502; i++) {
		unsigned n;

		EQ(sscanf(seen[i].name, "a longer name %u", &n), 1);
		EQ(seen[i].type, n % 3 == 0 ? DT_REG : n % 3 == 1 ? DT_DIR : DT_LNK);
		EQ(seen[i].ino, ino_of(fs, d, seen[i].name));
		HOLDS(seen[i].cookie > seen[i - 1].cookie && seen[i].cookie <= INT64_MAX);
		HOLDS(!seen[i].has_attr);
	}
	for (unsigned step = 1; step < 200; step += step / 3 + 1) {
		EQ(read_dir(fs, d, OPS_READDIR_PLUS, step, again, 600), 502);
		for (unsigned i = 0; i < 502; i++) {
			HOLDS(strcmp(again[i].name, seen[i].name) == 0);
			EQ(again[i].cookie, seen[i].cookie);
			EQ(again[i].has_attr, i >= 2);
		}
	}
	f = ino_of(fs, d, "a longer name 0");
	EQ(ops_readdir(fs, f, 0, 0, collect, &l), -ENOTDIR);
	EQ(ops_readdir(fs, 4711, 0, 0, collect, &l), -ENOENT);
	l.count = 0;
	OK(ops_readdir(fs, d, INT64_MAX, 0, collect, &l));
	OK(ops_readdir(fs, d, UINT64_MAX, 0, collect, &l));
	EQ(l.count, 0);
	rt_free(seen);
	rt_free(again);
}

static void every_entry_is_read_once_in_steps_of_any_size(void **state)
{
	with_fs(reads);
}

static void reads_shared_items(struct fs *fs)
{
	struct seen *seen = list_new(32);
	uint64_t d;
	char name[16];

	fs->hash_mask = 0x30;
	d = mk_dir(fs, ROOT, "d");
	for (unsigned i = 0; i < 20; i++) {
		snprintf(name, sizeof(name), "%u", i);
		mk_file(fs, d, name);
	}
	for (unsigned step = 1; step < 8; step++) {
		unsigned all = 0;

		EQ(read_dir(fs, d, 0, step, seen, 32), 22);
		for (unsigned i = 2; i < 22; i++)
			all |= 1u << atoi(seen[i].name);
		EQ(all, (1u << 20) - 1);
	}
	rt_free(seen);
}

static void entries_that_share_an_item_have_their_own_cookies(void **state)
{
	with_fs(reads_shared_items);
}

static void reads_atime(struct fs *fs)
{
	uint64_t d = mk_dir(fs, ROOT, "d");
	struct seen *seen = list_new(32);
	struct disk_inode first, i;

	rt_sleep_ns(1000000);
	mk_file(fs, d, "f");
	read_dir(fs, d, 0, 32, seen, 32);
	first = attr_of(fs, d);
	HOLDS(first.atime_ns > first.mtime_ns || first.atime_ns > first.btime_ns);
	rt_sleep_ns(1000000000);
	read_dir(fs, d, 0, 32, seen, 32);
	i = attr_of(fs, d);
	HOLDS(i.atime_ns == first.atime_ns || first.atime_ns <= first.mtime_ns);
	first = i;
	rt_sleep_ns(25ull * 3600 * 1000000000);
	read_dir(fs, d, 0, 32, seen, 32);
	HOLDS(attr_of(fs, d).atime_ns > first.atime_ns);
	rt_free(seen);
}

static void reading_sets_the_atime_relatively(void **state)
{
	struct fs_test t = {"disk", 64 << 20, 8 << 20, reads_atime};
	struct rt_sim_options o = {.time_limit_ns = 7ull * 24 * 3600 * 1000000000};

	OK(rt_sim_run(1, &o, test_fs_main, &t));
}

/* ---- while it changes ------------------------------------------------------------- */

#define STAYERS 300
static uint64_t busy_dir;
static _Atomic unsigned readers_left;

static void churn(struct fs *fs, unsigned n)
{
	char name[32], other[32];
	unsigned i = 0;

	while (atomic_load(&readers_left) > 0) {
		snprintf(name, sizeof(name), "passer %u %u", n, i++ % 400);
		snprintf(other, sizeof(other), "mover %u %u", n, i % 97);
		if (try_file(fs, busy_dir, name) == -EEXIST) {
			OK(ops_unlink(fs, busy_dir, nm(name)));
		} else if (i % 5 == 0) {
			OK(try_rename(fs, busy_dir, name, busy_dir, other, 0));
		}
	}
}

static void read_while_it_changes(struct fs *fs, unsigned n)
{
	struct seen *seen = list_new(4000);

	for (unsigned round = 0; round < 4; round++) {
		unsigned count = read_dir(fs, busy_dir, n & 1 ? OPS_READDIR_PLUS : 0,
			1 + n * 7, seen, 4000);
		unsigned times[STAYERS] = {0};

		for (unsigned i = 0; i < count; i++) {
			if (i > 0)
				HOLDS(seen[i].cookie > seen[i - 1].cookie);
			if (strncmp(seen[i].name, "stayer ", 7) == 0)
				times[atoi(seen[i].name + 7)]++;
		}
		for (unsigned i = 0; i < STAYERS; i++)
			EQ(times[i], 1);
	}
	rt_free(seen);
	atomic_fetch_sub(&readers_left, 1);
}

static void read_or_churn(struct fs *fs, unsigned n)
{
	if (n < 3)
		read_while_it_changes(fs, n);
	else
		churn(fs, n);
}

static void changes_under_readers(struct fs *fs)
{
	char name[32];

	busy_dir = mk_dir(fs, ROOT, "busy");
	for (unsigned i = 0; i < STAYERS; i++) {
		snprintf(name, sizeof(name), "stayer %u", i);
		mk_file(fs, busy_dir, name);
	}
	atomic_store(&readers_left, 3);
	crew(fs, 6, read_or_churn);
}

static void what_stays_is_seen_exactly_once(void **state)
{
	for (uint64_t seed = 1; seed <= 4; seed++)
		with_fs_sized(seed, 128, seed % 2 ? 16 : 1, changes_under_readers);
}

/* ---- many tasks in the same directories ------------------------------------------- */

static void jostles(struct fs *fs)
{
	jostle_begin(fs);
	crew(fs, 8, jostle);
	check_tree(fs, 0);
}

static void counts_are_right_after_a_crowd(void **state)
{
	for (uint64_t seed = 1; seed <= 10; seed++)
		with_fs_sized(seed, 128, seed % 3 ? 16 : 1, jostles);
}

/* Directories are moved into each other by all: nobody may close a loop. */
static void moves_dirs(struct fs *fs)
{
	move_dirs_begin(fs);
	crew(fs, 6, move_dirs);
	check_tree(fs, 1 + MOVERS_DIRS);
}

/* The link count of *arg says that there are no subdirectories. */
static int damage_links(struct txn *x, void *arg)
{
	const uint64_t *ino = arg;
	struct disk_inode inode;
	int rc = inode_read(x, *ino, &inode);

	inode.nlink = 2;
	return rc ? rc : inode_write(x, *ino, &inode);
}

static void wrong_links(struct fs *fs)
{
	uint64_t d = mk_dir(fs, ROOT, "d"), e = mk_dir(fs, ROOT, "e");
	static const char *const names[] = {"a", "b", "c", "v"};

	for (unsigned i = 0; i < ARRAY_SIZE(names); i++)
		mk_dir(fs, d, names[i]);
	mk_file(fs, e, "file");
	OK(ops_run(fs, 0, damage_links, &d, NULL));
	OK(ops_rmdir(fs, d, nm("a")));
	OK(try_rename(fs, d, "b", e, "b", 0));
	OK(try_rename(fs, d, "c", e, "file", RENAME_EXCHANGE));
	OK(try_rename(fs, e, "b", d, "v", 0));
	OK(try_file(fs, d, "still here"));
	EQ(attr_of(fs, d).nlink, 2);
	EQ(attr_of(fs, d).size, 3);
	EQ(attr_of(fs, e).nlink, 3);
}

static void a_damaged_link_count_removes_no_directory(void **state)
{
	with_fs(wrong_links);
}

static void directories_stay_one_tree(void **state)
{
	for (uint64_t seed = 1; seed <= 10; seed++)
		with_fs_sized(seed, 64, 8, moves_dirs);
}

static _Atomic uint64_t files_made;

/* One name, many makers: one wins each time. */
static void make_same(struct fs *fs, unsigned n)
{
	char name[16];

	for (unsigned i = 0; i < 200; i++) {
		int rc;

		snprintf(name, sizeof(name), "same%u", i);
		rc = try_file(fs, busy_dir, name);
		HOLDS(rc == 0 || rc == -EEXIST);
		if (rc == 0)
			atomic_fetch_add(&files_made, 1);
	}
}

static void makes_same(struct fs *fs)
{
	busy_dir = mk_dir(fs, ROOT, "busy");
	atomic_store(&files_made, 0);
	crew(fs, 8, make_same);
	EQ(atomic_load(&files_made), 200);
	EQ(attr_of(fs, busy_dir).size, 200);
	check_tree(fs, 2);
}

static void a_name_is_made_by_one(void **state)
{
	for (uint64_t seed = 1; seed <= 5; seed++)
		with_fs_sized(seed, 64, 8, makes_same);
}

/* ---- large ------------------------------------------------------------------------ */

#define MANY 200000u

static int count_entry(void *arg, const struct ops_dirent *e)
{
	unsigned *count = (unsigned *)arg;

	(*count)++;
	return 0;
}

static void many_entries(struct fs *fs)
{
	uint64_t d = mk_dir(fs, ROOT, "d");
	unsigned count = 0;
	char name[32];

	for (unsigned i = 0; i < MANY; i++) {
		snprintf(name, sizeof(name), "file-%u", i);
		OK(try_file(fs, d, name));
	}
	EQ(attr_of(fs, d).size, MANY);
	OK(ops_readdir(fs, d, 0, 0, count_entry, &count));
	EQ(count, MANY + 2);
	for (unsigned i = 0; i < MANY; i += 97) {
		snprintf(name, sizeof(name), "file-%u", i);
		OK(try_lookup(fs, d, name));
	}
	EQ(ops_rmdir(fs, ROOT, nm("d")), -ENOTEMPTY);
	for (unsigned i = 0; i < MANY; i++) {
		snprintf(name, sizeof(name), "file-%u", i);
		OK(ops_unlink(fs, d, nm(name)));
	}
	OK(ops_rmdir(fs, ROOT, nm("d")));
}

static void directories_of_many_entries_work(void **state)
{
	with_fs_sized(1, 1024, 64, many_entries);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_entry_is_read_once_in_steps_of_any_size),
		cmocka_unit_test(entries_that_share_an_item_have_their_own_cookies),
		cmocka_unit_test(reading_sets_the_atime_relatively),
		cmocka_unit_test(what_stays_is_seen_exactly_once),
		cmocka_unit_test(counts_are_right_after_a_crowd),
		cmocka_unit_test(directories_stay_one_tree),
		cmocka_unit_test(a_damaged_link_count_removes_no_directory),
		cmocka_unit_test(a_name_is_made_by_one),
		cmocka_unit_test(directories_of_many_entries_work),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
