/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fsck in the simulator: it finds nothing on volumes that were only used, whatever moment
 * they lost power in, whether it may repair or not; and a cut in the midst of its own
 * repairs does no harm.
 */
#include "engine/rt/rt_sim.h"
#include "mkfs/fsck/fsck.h"
#include "tests/unit/ops_fixture.h"

#define DISK     "fsck"
#define NAMES    24
#define DISK_MIB 64

struct crew_state {
	uint64_t seed;
	unsigned steps;
};

static uint64_t pick_state;

static uint64_t pick(uint64_t below)
{
	pick_state ^= pick_state << 13;
	pick_state ^= pick_state >> 7;
	pick_state ^= pick_state << 17;
	return pick_state % below;
}

static void print_finding(
	void *arg, unsigned code, const char *text, enum fsck_outcome outcome)
{
	fprintf(stderr, "F%04u %s (%d)\n", code, text, outcome);
}

static struct fsck_result check(bool repair)
{
	struct fsck_options o = {.repair = repair,
		.force = true,
		.check_data = true,
		.finding = print_finding,
		.cache_bytes = 8 << 20,
		.memory_bytes = 1 << 20};
	struct fsck_result result;
	struct weft_error err = {0};
	struct rt_disk *disk;

	OK(rt_disk_open(&disk, DISK, repair ? 0 : RT_DISK_READ_ONLY, &err));
	if (fsck_run(disk, &o, &result, &err)) {
		fprintf(stderr, "fsck: %s\n", err.text);
		abort();
	}
	return result;
}

/* ---- anything that a user may do ------------------------------------------------- */

static uint64_t a_directory(struct fs *fs)
{
	char name[8];
	struct ops_attr a;

	snprintf(name, sizeof(name), "d%d", (int)pick(4));
	if (pick(2) && ops_lookup(fs, DISK_INO_ROOT, nm(name), &a) == 0 &&
		S_ISDIR(a.inode.mode))
		return a.ino;
	return DISK_INO_ROOT;
}

static void write_some(struct fs *fs, uint64_t dir, struct ops_name name)
{
	static uint8_t bytes[300000];
	struct ops_file *file;
	struct ops_attr a;

	if (ops_create(fs, dir, name, &plain_user, 0644, O_RDWR, &file, &a))
		return;
	for (unsigned i = 0; i < 3; i++) {
		switch (pick(6)) {
		case 0:
			ops_fallocate(fs, file, &plain_user,
				pick(2) ? FALLOC_FL_KEEP_SIZE : 0, pick(1 << 21),
				1 + pick(1 << 19));
			break;
		case 1:
			ops_fallocate(fs, file, &plain_user,
				FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, pick(1 << 20),
				1 + pick(1 << 18));
			break;
		case 2:
			ops_fsync(fs, a.ino, pick(2));
			break;
		default:
			ops_write(fs, file, &plain_user, pick(1 << 20), bytes,
				1 + pick(sizeof(bytes)), pick(4) == 0);
		}
	}
	ops_close(fs, file);
}

static void set_some(struct fs *fs, uint64_t dir, struct ops_name name)
{
	static uint8_t value[30000];
	struct ops_setattr set = {.set = OPS_SET_SIZE, .size = pick(1 << 21)};
	struct ops_attr a;

	if (ops_lookup(fs, dir, name, &a))
		return;
	switch (pick(4)) {
	case 0:
		ops_setxattr(fs, a.ino, &plain_user, pick(2) ? "user.a" : "user.b", value,
			pick(sizeof(value)), 0);
		break;
	case 1:
		ops_removexattr(fs, a.ino, "user.a");
		break;
	default:
		if (S_ISREG(a.inode.mode))
			ops_setattr(fs, a.ino, &plain_user, &set, &a);
	}
}

static void step(struct fs *fs)
{
	char one[8], two[8];
	uint64_t dir = a_directory(fs), other = a_directory(fs);
	struct ops_attr a;

	snprintf(one, sizeof(one), "%c%d", pick(3) ? 'f' : 'd', (int)pick(NAMES));
	snprintf(two, sizeof(two), "%c%d", pick(3) ? 'f' : 'd', (int)pick(NAMES));
	switch (pick(10)) {
	case 0:
		ops_mkdir(fs, dir, nm(one), &plain_user, 0755, &a);
		break;
	case 1:
		ops_symlink(fs, dir, nm(one), &plain_user, "some/where/else", &a);
		break;
	case 2:
		ops_unlink(fs, dir, nm(one));
		break;
	case 3:
		ops_rmdir(fs, dir, nm(one));
		break;
	case 4:
		ops_rename(fs, dir, nm(one), other, nm(two), pick(4) ? 0 : 2);
		break;
	case 5:
		if (ops_lookup(fs, dir, nm(one), &a) == 0)
			ops_link(fs, a.ino, other, nm(two), &a);
		break;
	case 6:
		set_some(fs, dir, nm(one));
		break;
	case 7:
		if (pick(20) == 0)
			ops_syncfs(fs);
		break;
	default:
		write_some(fs, dir, nm(one));
	}
}

static void use(void *arg)
{
	const struct crew_state *s = (const struct crew_state *)arg;
	struct fs_test t = {DISK, DISK_MIB << 20, 4 << 20, NULL};
	struct fs *fs = test_fs_open(&t);

	pick_state = s->seed * 0x9e3779b97f4a7c15ull + 1;
	for (unsigned i = 0; i < s->steps; i++)
		step(fs);
	test_fs_close(fs);
}

/* As a node of its own, which may lose power. */
static void node_run(void (*fn)(void *), void *arg)
{
	unsigned node = rt_sim_node_new("n");

	OK(rt_sim_spawn_on(node, "main", fn, arg));
	rt_sim_node_wait(node);
	rt_sim_node_kill(node);
}

static int cut_and_check(void *arg)
{
	uint64_t seed = *(uint64_t *)arg;
	struct crew_state s = {.seed = seed, .steps = 250};
	struct rt_sim_disk *sim = test_sim_disk(DISK, DISK_MIB << 20, 4 << 20);

	pick_state = seed * 77 + 5;
	for (unsigned life = 0; life < 3; life++) {
		s.seed = seed * 10 + life;
		rt_sim_disk_cut_after(sim, 1 + pick(1500));
		node_run(use, &s);
		rt_sim_disk_cut_after(sim, 0);
		EQ(check(false).exit_code, 0);
	}
	EQ(check(true).exit_code, 0);
	EQ(check(false).exit_code, 0);
	return 0;
}

static void nothing_is_found_after_power_cuts(void **state)
{
	for (uint64_t seed = 1; seed <= 25; seed++)
		OK(rt_sim_run(seed, NULL, cut_and_check, &seed));
}

/* ---- repairs that are cut -------------------------------------------------------- */

static void repair_task(void *arg)
{
	struct fsck_result r = check(true);

	HOLDS(!(r.exit_code & FSCK_EXIT_LEFT));
}

/* Overwrites a page of the tree, the n-th found. */
static void damage(struct rt_sim_disk *sim, unsigned n)
{
	static uint8_t page[PAGE_SIZE];
	struct disk_superblock sb;
	struct disk_node *node = (struct disk_node *)page;

	rt_sim_disk_peek(sim, 0, &sb, sizeof(sb));
	for (uint64_t slot = sb.page_count - 1; slot > 1; slot--) {
		rt_sim_disk_peek(
			sim, sb.pages_offset + slot * PAGE_SIZE, page, PAGE_SIZE);
		if (node->magic != DISK_MAGIC_NODE || n--)
			continue;
		memset(page, 0x5a, PAGE_SIZE);
		rt_sim_disk_poke(
			sim, sb.pages_offset + slot * PAGE_SIZE, page, PAGE_SIZE);
		return;
	}
}

static int cut_repairs(void *arg)
{
	uint64_t seed = *(uint64_t *)arg;
	struct crew_state s = {.seed = seed, .steps = 400};
	struct rt_sim_disk *sim = test_sim_disk(DISK, DISK_MIB << 20, 4 << 20);

	pick_state = seed * 99 + 7;
	node_run(use, &s);
	damage(sim, (unsigned)pick(4));
	for (unsigned tries = 0; tries < 4; tries++) {
		rt_sim_disk_cut_after(sim, 1 + pick(300));
		node_run(repair_task, NULL);
		rt_sim_disk_cut_after(sim, 0);
	}
	repair_task(NULL);
	EQ(check(false).exit_code, 0);
	s.seed++;
	node_run(use, &s);
	EQ(check(false).exit_code, 0);
	return 0;
}

static void repairs_that_are_cut_can_be_made_again(void **state)
{
	for (uint64_t seed = 1; seed <= 20; seed++)
		OK(rt_sim_run(seed, NULL, cut_repairs, &seed));
}

/* ---- one store of several -------------------------------------------------------- */

/* A file of the volume has a page in shard 1; nothing else is wrong. */
static void name_page_elsewhere(uint16_t node)
{
	struct volume_options o = {.node = node, .cache.cache_bytes = 4 << 20};
	struct disk_extent e = {.pid = pid_make(1, 2), .length = 1, .incarnation = 1};
	struct weft_error err = {0};
	struct rt_disk *disk;
	struct volume *v;
	struct txn *x;

	OK(rt_disk_open(&disk, DISK, 0, &err));
	OK(volume_open(&v, disk, &o, &err));
	OK(txn_begin(v->tree, false, &x));
	OK(txn_write(x, disk_key(2, DISK_ITEM_EXTENT, 0), &e, sizeof(e)));
	OK(txn_commit(x, NULL));
	txn_end(x);
	OK(volume_close(v));
}

static int store_of_several(void *arg)
{
	struct fsck_options o = {.repair = true, .force = true, .cache_bytes = 8 << 20};
	struct fsck_result result;
	uint16_t node;

	for (node = 0; node < 2; node++) {
		struct store_format format = {
			.checksum_kind = DISK_CHECKSUM_GMAC, .node = node};
		struct weft_error err = {0};
		struct rt_disk *disk;
		int rc;

		if (node == 0)
			HOLDS(rt_sim_disk_create(DISK, 16 << 20, NULL));
		OK(rt_disk_open(&disk, DISK, 0, &err));
		OK(volume_format(disk, &format, 0, 0, &err));
		rt_disk_close(disk);
		name_page_elsewhere(node);
		OK(rt_disk_open(&disk, DISK, 0, &err));
		rc = fsck_run(disk, &o, &result, &err);
		OK(rc);
		EQ(result.alone, node != 0);
		if (node) { /* what its tree names is not for it alone to judge */
			EQ(result.exit_code, 0);
			OK(rt_disk_open(&disk, DISK, 0, &err));
			o.all_stores = true;
			OK(fsck_run(disk, &o, &result, &err));
			o.all_stores = false;
			HOLDS(!result.alone);
		}
		/* a volume that has no other store: that is damage */
		HOLDS(result.fixed > 0);
	}
	return 0;
}

static void one_store_of_several_is_not_judged_by_its_tree(void **state)
{
	OK(rt_sim_run(1, NULL, store_of_several, NULL));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(nothing_is_found_after_power_cuts),
		cmocka_unit_test(repairs_that_are_cut_can_be_made_again),
		cmocka_unit_test(one_store_of_several_is_not_judged_by_its_tree),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
