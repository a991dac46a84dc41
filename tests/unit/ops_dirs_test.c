/* SPDX-License-Identifier: Apache-2.0 */
/* Directories: reading them while they change, large ones, many tasks in the same ones. */
#include <dirent.h>

#include "tests/unit/ops_fixture.h"

#define ROOT DISK_INO_ROOT

/* ---- collecting ------------------------------------------------------------------------------------ */

struct seen {
	char name[DISK_NAME_MAX + 1];
	uint64_t ino, cookie;
	uint32_t type;
	bool has_attr;
};

struct list {
	struct seen *seen;
	unsigned count, max, stop_at;
};

static int collect(void *arg, const struct ops_dirent *e)
{
	struct list *l = (struct list *)arg;
	struct seen *s = &l->seen[l->count];

	if (l->count == l->stop_at)
		return 1;
	HOLDS(l->count < l->max && e->name_len <= DISK_NAME_MAX);
	memcpy(s->name, e->name, e->name_len);
	s->name[e->name_len] = '\0';
	s->ino = e->ino;
	s->cookie = e->cookie;
	s->type = e->type;
	s->has_attr = e->attr;
	if (e->attr)
		EQ(e->attr->ino, e->ino);
	l->count++;
	return 0;
}

/* `step` entries with each call, like a small buffer. */
static unsigned read_dir(struct fs *fs, uint64_t dir, unsigned flags, unsigned step,
	struct seen *seen, unsigned max)
{
	struct list l = {.seen = seen, .max = max};
	uint64_t cookie = 0;

	for (unsigned before = UINT32_MAX; before != l.count;) {
		before = l.count;
		l.stop_at = l.count + step;
		OK(ops_readdir(fs, dir, cookie, flags, collect, &l));
		if (l.count > 0)
			cookie = seen[l.count - 1].cookie;
	}
	return l.count;
}

static struct seen *list_new(unsigned max)
{
	struct seen *seen = (struct seen *)rt_alloc(max * sizeof(*seen));

	HOLDS(seen);
	return seen;
}

/* ---- reading --------------------------------------------------------------------------------------------- */

static void reads(struct fs *fs)
{
	uint64_t d = mk_dir(fs, ROOT, "d"), f;
	struct seen *seen = list_new(600), *again = list_new(600);
	struct list l = {.seen = seen, .max = 600, .stop_at = 600};
	char name[32];

	OK(ops_readdir(fs, d, 0, OPS_READDIR_PLUS, collect, &l));
	EQ(l.count, 2);
	HOLDS(strcmp(seen[0].name, ".") == 0 && seen[0].ino == d && seen[0].cookie == 1);
	HOLDS(strcmp(seen[1].name, "..") == 0 && seen[1].ino == ROOT && seen[1].cookie == 2);
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

/* ---- while it changes --------------------------------------------------------------------------------------- */

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
		unsigned count = read_dir(fs, busy_dir, n & 1 ? OPS_READDIR_PLUS : 0, 1 + n * 7,
			seen, 4000);
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

/* ---- checking the whole tree ----------------------------------------------------------------------------------- */

struct census {
	struct fs *fs;
	uint64_t dirs, files;
	struct {
		uint64_t ino;
		uint32_t links, nlink;
	} file[20000];
};

static void census_dir(struct census *c, uint64_t dir, uint64_t parent, unsigned depth)
{
	struct disk_inode inode = attr_of(c->fs, dir);
	unsigned max = (unsigned)inode.size + 2, subdirs = 0;
	struct seen *seen = list_new(max + 1);

	HOLDS(depth < 500);
	EQ(inode.parent, parent);
	EQ(read_dir(c->fs, dir, 0, max, seen, max), max);
	for (unsigned i = 2; i < max; i++) {
		struct disk_inode child = attr_of(c->fs, seen[i].ino);
		uint64_t at = 0;

		EQ(IFTODT(child.mode), seen[i].type);
		EQ(ino_of(c->fs, dir, seen[i].name), seen[i].ino);
		if (seen[i].type == DT_DIR) {
			subdirs++;
			census_dir(c, seen[i].ino, dir, depth + 1);
			continue;
		}
		while (at < c->files && c->file[at].ino != seen[i].ino)
			at++;
		HOLDS(at < ARRAY_SIZE(c->file));
		c->file[at].ino = seen[i].ino;
		c->file[at].nlink = child.nlink;
		c->file[at].links++;
		if (at == c->files)
			c->files++;
	}
	EQ(inode.nlink, 2 + subdirs);
	c->dirs++;
	rt_free(seen);
}

/* Parents, link counts and sizes agree with what the directories say. */
static void check_tree(struct fs *fs, uint64_t dirs)
{
	struct census *c = (struct census *)rt_alloc(sizeof(*c));

	HOLDS(c);
	c->fs = fs;
	census_dir(c, ROOT, ROOT, 0);
	for (uint64_t i = 0; i < c->files; i++)
		EQ(c->file[i].links, c->file[i].nlink);
	if (dirs)
		EQ(c->dirs, dirs);
	rt_free(c);
}

/* ---- many tasks in the same directories --------------------------------------------------------------------------- */

#define CREW_DIRS 6
static uint64_t crew_dir[CREW_DIRS];
static _Atomic uint64_t files_made;

static int allowed(int rc, const int *errors)
{
	for (; *errors; errors++)
		if (rc == *errors)
			return 1;
	return rc == 0;
}

static void jostle(struct fs *fs, unsigned n)
{
	static const int any[] = {-EEXIST, -ENOENT, -ENOTEMPTY, -EISDIR, -ENOTDIR, -EINVAL,
		-EPERM, 0};
	char a[16], b[16];

	for (unsigned i = 0; i < 300; i++) {
		uint64_t r = rt_random();
		uint64_t from = crew_dir[r % CREW_DIRS], to = crew_dir[r / 7 % CREW_DIRS];
		struct ops_attr attr;
		int rc;

		snprintf(a, sizeof(a), "n%u", (unsigned)(r >> 20) % 12);
		snprintf(b, sizeof(b), "n%u", (unsigned)(r >> 30) % 12);
		switch (r >> 40 & 7) {
		case 0:
		case 1:
			rc = try_file(fs, from, a);
			break;
		case 2:
			rc = try_mkdir(fs, from, a);
			break;
		case 3:
			rc = ops_unlink(fs, from, nm(a));
			break;
		case 4:
			rc = ops_rmdir(fs, from, nm(a));
			break;
		case 5:
			rc = ops_lookup(fs, from, nm(a), &attr);
			if (rc == 0)
				rc = try_link(fs, attr.ino, to, b);
			break;
		default:
			rc = try_rename(fs, from, a, to, b,
				r >> 50 & 1 ? RENAME_EXCHANGE : 0);
		}
		if (!allowed(rc, any)) {
			fprintf(stderr, "operation %u: %d\n", (unsigned)(r >> 40 & 7), rc);
			abort();
		}
	}
}

static void jostles(struct fs *fs)
{
	char name[16];

	for (unsigned i = 0; i < CREW_DIRS; i++) {
		snprintf(name, sizeof(name), "dir%u", i);
		/* one hangs below another */
		crew_dir[i] = mk_dir(fs, i > 3 ? crew_dir[i - 3] : ROOT, name);
	}
	crew(fs, 8, jostle);
	check_tree(fs, 0);
}

static void counts_are_right_after_a_crowd(void **state)
{
	for (uint64_t seed = 1; seed <= 10; seed++)
		with_fs_sized(seed, 128, seed % 3 ? 16 : 1, jostles);
}

/* Directories are moved into each other by all: nobody may close a loop. */
#define MOVERS_DIRS 8
static uint64_t mover_dir[MOVERS_DIRS];

static void move_dirs(struct fs *fs, unsigned n)
{
	char name[16];

	for (unsigned i = 0; i < 150; i++) {
		uint64_t r = rt_random();
		unsigned which = r % MOVERS_DIRS;
		uint64_t to = r >> 8 & 3 ? mover_dir[r / 31 % MOVERS_DIRS] : ROOT;
		struct ops_attr a;
		int rc;

		snprintf(name, sizeof(name), "m%u", which);
		rc = ops_getattr(fs, mover_dir[which], &a);
		OK(rc);
		rc = try_rename(fs, a.inode.parent, name, to, name, 0);
		HOLDS(rc == 0 || rc == -EINVAL || rc == -ENOENT);
	}
}

static void moves_dirs(struct fs *fs)
{
	char name[16];

	for (unsigned i = 0; i < MOVERS_DIRS; i++) {
		snprintf(name, sizeof(name), "m%u", i);
		mover_dir[i] = mk_dir(fs, ROOT, name);
	}
	crew(fs, 6, move_dirs);
	check_tree(fs, 1 + MOVERS_DIRS);
}

static void directories_stay_one_tree(void **state)
{
	for (uint64_t seed = 1; seed <= 10; seed++)
		with_fs_sized(seed, 64, 8, moves_dirs);
}

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

/* ---- large ------------------------------------------------------------------------------------------------------------ */

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
		cmocka_unit_test(a_name_is_made_by_one),
		cmocka_unit_test(directories_of_many_entries_work),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
