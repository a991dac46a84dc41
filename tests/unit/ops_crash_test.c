/* SPDX-License-Identifier: Apache-2.0 */
/* The power fails while many tasks change names: no operation is half done afterwards. */
#include "tests/sim/seeds.h"
#include "tests/unit/ops_crowd.h"

static const struct fs_test disk = {"disk", 128 << 20, 1 << 20, NULL};
static struct rt_sim_disk *sim_disk;

static void work(void *arg)
{
	struct fs *fs = test_fs_open(&disk);

	if (ops_lookup(fs, ROOT, nm("dir0"), &(struct ops_attr){0}) == -ENOENT) {
		jostle_begin(fs);
		move_dirs_begin(fs);
		OK(volume_sync(fs_volume(fs)));
	}
	for (;;) {
		crew(fs, 4, jostle);
		crew(fs, 3, move_dirs);
	}
}

static void remove_below(struct fs *fs, uint64_t dir)
{
	unsigned max = (unsigned)attr_of(fs, dir).size + 2;
	struct seen *seen = list_new(max + 1);

	EQ(read_dir(fs, dir, 0, max, seen, max), max);
	for (unsigned i = 2; i < max; i++) {
		if (seen[i].type == DT_DIR) {
			remove_below(fs, seen[i].ino);
			OK(ops_rmdir(fs, dir, nm(seen[i].name)));
		} else {
			OK(ops_unlink(fs, dir, nm(seen[i].name)));
		}
	}
	rt_free(seen);
}

static uint64_t pages_free(struct fs *fs)
{
	struct statvfs s;

	OK(ops_statfs(fs, &s));
	return s.f_bfree;
}

static int crashes(void *arg)
{
	uint64_t free_at_first;
	struct fs *fs;

	sim_disk = test_sim_disk(disk.disk_name, disk.disk_bytes, 4 << 20);
	fs = test_fs_open(&disk);
	free_at_first = pages_free(fs);
	test_fs_close(fs);
	for (unsigned life = 0; life < 6; life++) {
		unsigned node = rt_sim_node_new("life");

		OK(rt_sim_spawn_on(node, "work", work, NULL));
		/* the first life sets the scene before it can be cut */
		if (life > 0)
			rt_sim_disk_cut_after(sim_disk, 1 + rt_random() % 600);
		else
			rt_sleep_ns(400000000);
		while (life > 0 && !rt_sim_node_wait(node))
			;
		rt_sim_node_kill(node);
		rt_sim_disk_cut_after(sim_disk, 0);
		fs = test_fs_open(&disk);
		check_tree(fs, 0);
		test_fs_close(fs);
	}
	/* nothing is lost either: what is left without names are pages of the tree */
	fs = test_fs_open(&disk);
	remove_below(fs, ROOT);
	HOLDS(pages_free(fs) + 16 >= free_at_first);
	test_fs_close(fs);
	return 0;
}

static void a_power_cut_leaves_whole_operations(void **state)
{
	for (uint64_t seed = seeds_first(), left = seeds_count(12); left--; seed++)
		OK(rt_sim_run(seed, NULL, crashes, NULL));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_power_cut_leaves_whole_operations),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
