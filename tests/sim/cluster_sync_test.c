/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What nodes of one volume promise each other about a file that several have open: its times
 * and size, what fsync covers, and the room that is left.
 *
 * Times: nodes that keep one file open write to it, read it and set its attributes in turn;
 * after each call every node sees what that call has left.
 *
 *   WEFT_SIM_SEED=7 build/tests/sim/cluster_sync_test     one seed
 *   WEFT_SIM_SEEDS=1000                                   so many of each kind
 */
#include "tests/sim/cluster_world.h"

#define FILE_BYTES 20000u

static struct shared_file {
	uint64_t ino;
	struct disk_inode left; /* as whoever did something to it last has seen it */
} file;

/* ---- times ------------------------------------------------------------------------------- */

static int drop_bytes(void *arg, const struct iovec *iov, unsigned count, size_t total)
{
	return (int)total;
}

static void check_attributes(struct node *n)
{
	struct disk_inode now = attr_of(n->fs, file.ino);

	EQ(now.size, file.left.size);
	EQ(now.mode, file.left.mode);
	EQ(now.mtime_ns, file.left.mtime_ns);
	EQ(now.ctime_ns, file.left.ctime_ns);
	EQ(now.atime_ns, file.left.atime_ns);
}

static void write_held(struct node *n, struct ops_file *f)
{
	int64_t before = rt_wall_ns();
	uint32_t at = pick(FILE_BYTES), len = 1 + pick(pick(2) ? 300 : 9000);
	uint8_t *bytes = rt_alloc(len);

	EQ(ops_write(n->fs, f, &root_user, at, bytes, len, pick(4) == 0), len);
	rt_free(bytes);
	HOLDS(attr_of(n->fs, file.ino).mtime_ns >= before);
}

static void set_attributes(struct node *n)
{
	struct ops_setattr set = {.set = OPS_SET_MTIME | OPS_SET_ATIME,
		.mtime_ns = 1000 + pick(1000),
		.atime_ns = 1000 + pick(1000)};
	struct ops_attr a;

	if (pick(2))
		set = (struct ops_setattr){
			.set = OPS_SET_MODE, .mode = 0600 + pick(0100)};
	OK(ops_setattr(n->fs, file.ino, &root_user, &set, &a));
	if (set.set & OPS_SET_MTIME) {
		EQ(attr_of(n->fs, file.ino).mtime_ns, set.mtime_ns);
		EQ(attr_of(n->fs, file.ino).atime_ns, set.atime_ns);
	}
}

static void times_step(struct node *n, struct ops_file **f)
{
	check_attributes(n);
	switch (pick(6)) {
	case 0 ... 2:
		write_held(n, *f);
		break;
	case 3:
		HOLDS(ops_read(n->fs, *f, 0, 100, drop_bytes, NULL) >= 0);
		break;
	case 4:
		set_attributes(n);
		break;
	default:
		ops_close(n->fs, *f);
		OK(ops_open(n->fs, file.ino, &root_user, O_RDWR, f, NULL));
	}
	file.left = attr_of(n->fs, file.ino);
}

static void times_work(struct node *n)
{
	struct world *w = n->w;
	struct ops_file *f;

	if (n->id == 1) {
		file.ino = mk_file(n->fs, DISK_INO_ROOT, "file");
		file.left = attr_of(n->fs, file.ino);
	}
	barrier(n);
	OK(ops_open(n->fs, file.ino, &root_user, O_RDWR, &f, NULL));
	for (unsigned i = 0; i < w->steps; i++) {
		rt_mutex_lock(&w->turn);
		times_step(n, &f);
		rt_mutex_unlock(&w->turn);
		rt_sleep_ns(1 + pick(pick(2) ? 300000000 : 1000));
	}
	ops_close(n->fs, f);
	barrier(n);
	check_attributes(n);
}

static void times_check(struct node *n)
{
	check_attributes(n);
}

/* ---- the runner -------------------------------------------------------------------------- */

static void run_seeds(unsigned nodes, unsigned steps, void (*work)(struct node *),
	void (*check)(struct node *))
{
	struct world *w = (struct world *)calloc(1, sizeof(*w));
	uint64_t seeds = seeds_count(SEEDS);
	struct rt_sim_options o = {.time_limit_ns = 600ull * 1000000000};

	assert_non_null(w);
	for (uint64_t seed = seeds_first(); seeds--; seed++) {
		memset(w, 0, sizeof(*w));
		memset(&file, 0, sizeof(file));
		w->nodes = nodes;
		w->steps = steps;
		w->work = work;
		w->check = check;
		assert_int_equal(rt_sim_run(seed, &o, run_world, w), 0);
	}
	free(w);
}

static void times_are_the_same_on_two_nodes(void **state)
{
	run_seeds(2, 100, times_work, times_check);
}

static void times_are_the_same_on_three_nodes(void **state)
{
	run_seeds(3, 60, times_work, times_check);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(times_are_the_same_on_two_nodes),
		cmocka_unit_test(times_are_the_same_on_three_nodes),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
