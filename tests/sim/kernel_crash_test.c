/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What kernel_test does, while nodes lose their power and come back, each with a kernel that has
 * nothing, and links break or are silent. What was fsynced, and what a node has changed that has not
 * crashed since, is there for all; what a node had changed that has crashed is, or is not, but for
 * all alike (kernel_history.h). In the end fsck finds nothing.
 *
 *   WEFT_SIM_SEED=7 build/tests/sim/kernel_crash_test     one seed
 *   WEFT_SIM_SEEDS=1000                                   so many of each kind
 */
#define LOG_BYTES (16ull << 20)
#include "tests/sim/cluster_world.h"
#include "tests/world/weather.h"
#include "tests/sim/kernel_work.h"

#define CRASHES     4u
#define CRASH_SEEDS 6

static bool closed; /* nobody has the files open */
static bool up[NODES_MAX];
static unsigned lives[NODES_MAX], ended;
static unsigned sum_crashes, sum_settled, sum_lost;

/* ---- after a crash ------------------------------------------------------------------------- */

static bool all_up(const struct world *w)
{
	for (unsigned i = 0; i < w->nodes; i++)
		if (!up[i])
			return false;
	return true;
}

static void find_file(struct node *n, struct history *h, unsigned s)
{
	uint64_t ino = file_ino[h - files];
	struct kernel_request r;
	struct ops_file *f;
	struct ops_attr a;

	if (kernel_stores)
		kernel_stores_come(&kernels[n->id - 1], (unsigned)(h - files));
	OK(ops_open(n->fs, ino, &root_user, O_RDONLY, &f, &a));
	h->size[s] = a.inode.size;
	for (unsigned i = 0; i < BLOCKS; i++) {
		h->word[s][i] = WORD_END;
		if (i * PAGE_SIZE >= a.inode.size)
			continue;
		EQ(ops_read(n->fs, f, i * PAGE_SIZE, PAGE_SIZE, kernel_answer, &r),
			PAGE_SIZE);
		h->word[s][i] = r.word[0];
	}
	ops_close(n->fs, f);
}

static void find_names(struct node *n, unsigned s)
{
	struct ops_attr a;
	char text[8];

	for (unsigned i = 0; i < LINKS; i++) {
		int rc = ops_lookup(n->fs, links_dir, kernel_link_name(text, i), &a);

		HOLDS(rc == 0 || rc == -ENOENT);
		names->word[s][i] = rc ? 0 : a.ino;
	}
}

/* What was found is one of those that may be: from here on it is. */
static void settle_as(struct history *h, unsigned s)
{
	if (h != names)
		history_sizes(h, history_ask(h, SIZE), h->done, h->size[s]);
	for (unsigned at = 0; at < (h == names ? LINKS : BLOCKS); at++)
		history_says(h, history_ask(h, at), h->done, at, h->word[s][at]);
	for (unsigned at = 0; at < (h == names ? LINKS : BLOCKS); at++)
		sum_lost += h->word[s][at] != h->word[h->done][at];
	sum_settled++;
	h->begun = h->done = s;
	h->doubt = false;
}

static void settle_one(struct node *n, struct history *h)
{
	unsigned before, s;

	history_take(h, n->id);
	before = crashes;
	if (h->doubt && all_up(n->w)) {
		s = history_next(h);
		if (h == names)
			find_names(n, s);
		else
			find_file(n, h, s);
		if (crashes == before)
			settle_as(h, s);
	}
	history_let_go(h);
}

static bool any_doubt(void)
{
	for (unsigned i = 0; i <= FILES; i++)
		if (files[i].doubt)
			return true;
	return false;
}

static void settler_main(void *arg)
{
	struct kernel_model *k = (struct kernel_model *)arg;

	while (!atomic_load(&over) || any_doubt()) {
		for (unsigned i = 0; i <= FILES; i++)
			if (files[i].doubt && all_up(k->n->w))
				settle_one(k->n, &files[i]);
		rt_sleep_ns(pick(10000000));
	}
}

/* ---- lives of a node ----------------------------------------------------------------------- */

static void begin(struct node *n)
{
	make_files(n);
	OK(volume_sync(n->v));
	barrier(n);
}

static void node_life(void *arg)
{
	static void (*const open_mains[])(void *) = {reader_main, reader_main,
		writer_main, writer_main, namer_main, settler_main};
	static void (*const closed_mains[])(void *) = {closed_look_main, closed_look_main,
		closed_cut_main, closed_cut_main, namer_main, settler_main};
	struct node *n = (struct node *)arg;
	struct kernel_model *k = &kernels[n->id - 1];
	struct rt_task *task[ARRAY_SIZE(open_mains)], *answers;

	crash_open(n);
	if (++lives[n->id - 1] == 1)
		begin(n);
	if (closed)
		closed_open(k, n);
	else
		kernel_open(k, n);
	k->life = lives[n->id - 1];
	up[n->id - 1] = true;
	OK(rt_task_spawn(&answers, "kernel", kernel_main, k));
	for (unsigned i = 0; i < ARRAY_SIZE(task); i++)
		OK(rt_task_spawn(
			&task[i], "work", closed ? closed_mains[i] : open_mains[i], k));
	for (unsigned i = 0; i < ARRAY_SIZE(task); i++)
		rt_task_join(task[i]);
	barrier(n);
	kernel_shut(k, answers);
	kernel_check(n);
	crash_close(n);
	ended++;
}

static void crash_one(struct world *w)
{
	struct node *n = &w->node[pick(w->nodes)];

	n->coherence = NULL;
	rt_sim_node_kill(n->sim);
	crashes++;
	up[n->id - 1] = false;
	kernels[n->id - 1] = (struct kernel_model){0};
	for (unsigned i = 0; i <= FILES; i++)
		history_crashed(&files[i], n->id);
	if (pick(3))
		rt_sleep_ns(rt_random() % (pick(3) ? 100000000 : 1000000000));
	n->sim = rt_sim_node_new(n->disk);
	OK(rt_sim_spawn_on(n->sim, "node", node_life, n));
}

static int run_crashes(void *arg)
{
	struct world *w = (struct world *)arg;

	cluster_format(w);
	nodes_run(w, node_life);
	while (!all_up(w))
		rt_sleep_ns(1000000);
	weather_begin(w, 300000000);
	for (unsigned i = 0; i < CRASHES; i++) {
		rt_sleep_ns(rt_random() % 200000000);
		crash_one(w);
	}
	while (!all_up(w))
		rt_sleep_ns(1000000);
	rt_sleep_ns(rt_random() % 200000000);
	weather_end();
	rt_sleep_ns(100000000);
	atomic_store(&over, true);
	nodes_await(w, false);
	HOLDS(ended == w->nodes);
	sum_crashes += crashes;
	world_stopped();
	stores_check(w);
	world_over();
	return 0;
}

static void run_seeds(unsigned nodes, uint64_t seeds)
{
	struct world *w = (struct world *)calloc(1, sizeof(*w));
	struct rt_sim_options o = {.time_limit_ns = 600ull * 1000000000};

	seeds = seeds_count(seeds);
	files = (struct history *)calloc(FILES + 1, sizeof(*files));
	assert_true(w && files);
	names = &files[FILES];
	sum_crashes = sum_settled = sum_lost = 0;
	for (uint64_t seed = seeds_first(); seeds--; seed++) {
		memset(w, 0, sizeof(*w));
		memset(files, 0, (FILES + 1) * sizeof(*files));
		memset(kernels, 0, sizeof(kernels));
		memset(up, 0, sizeof(up));
		memset(lives, 0, sizeof(lives));
		next_word = neighbours = crashes = ended = 0;
		atomic_store(&over, false);
		w->nodes = seeds_nodes(nodes, seed);
		w->steps = 1u << 20; /* until it is over */
		w->mmap = kernel_stores ? OPS_MMAP_SHARED : OPS_MMAP_OFF;
		w->stall_ns = WEATHER_STALL_NS;
		assert_int_equal(rt_sim_run(seed, &o, run_crashes, w), 0);
	}
	print_message("%u crashes; of %u files, and names, that were in doubt %u changes "
		      "were lost\n",
		sum_crashes, sum_settled, sum_lost);
	assert_true(sum_crashes > 0 && sum_settled > 0);
	free(files);
	free(w);
}

static void two_and_three_kernels_are_never_behind(void **state)
{
	run_seeds(2, CRASH_SEEDS);
	run_seeds(3, CRASH_SEEDS);
}

static void five_and_eight_kernels_are_never_behind(void **state)
{
	run_seeds(5, 1);
	run_seeds(8, 1);
}

static void attributes_that_come_with_a_name_are_never_behind(void **state)
{
	closed = true;
	run_seeds(3, CRASH_SEEDS / 2);
	closed = false;
}

static void stores_of_two_and_three_kernels_are_seen(void **state)
{
	kernel_stores = true;
	run_seeds(2, CRASH_SEEDS / 2);
	run_seeds(3, CRASH_SEEDS / 2);
	kernel_stores = false;
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(two_and_three_kernels_are_never_behind),
		cmocka_unit_test(attributes_that_come_with_a_name_are_never_behind),
		cmocka_unit_test(stores_of_two_and_three_kernels_are_seen),
		cmocka_unit_test(five_and_eight_kernels_are_never_behind),
	};

	fsyncs = true;
	pause_ns = 4000000;
	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
