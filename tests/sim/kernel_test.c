/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Several nodes have the same volume, and each node's kernel keeps what it is told
 * (docs/nodes/kernel-cache.md; tests/world/kernel.h). All read, stat and look up through these
 * kernels, while all write, truncate and punch the same files and move the same names. Each
 * answer must be what was so at some moment between the question and the answer; and when
 * nothing changes the nodes are not asked.
 *
 *   WEFT_SIM_SEED=7 build/tests/sim/kernel_test      one seed
 *   WEFT_SIM_SEEDS=1000                              so many of each kind
 *   WEFT_SIM_LONGER=10                               each so many times as long
 */
#include "tests/sim/kernel_work.h"

static uint64_t sum_kept, sum_made, sum_absent;

/* ---- nothing changes ------------------------------------------------------------------------ */

static void look_at_all(struct kernel_model *k)
{
	for (unsigned f = 0; f < FILES; f++) {
		kernel_stat(k, f);
		for (unsigned b = 0; b < BLOCKS; b++)
			kernel_read_block(k, f, b);
	}
	for (unsigned i = 0; i < LINKS; i++)
		kernel_look(k, links_dir, i);
}

static void visitor_main(void *arg)
{
	struct kernel_model *k = (struct kernel_model *)arg;

	for (unsigned f = 0; f < FILES; f++)
		kernel_stat(k, f);
	kernel_heard(k); /* its last question: nobody keeps that */
}

/* Each a new process, which asks for each file once: the kernel keeps what it was told. True: so
 * it was. */
static bool visitors(struct kernel_model *k)
{
	uint64_t asked = 0;
	struct rt_task *task;

	for (unsigned f = 0; f < FILES; f++)
		kernel_forget_attributes(k, f);
	for (unsigned i = 0; i < 6; i++) {
		if (i == 3)
			asked = k->stats_asked;
		k->processes++;
		OK(rt_task_spawn(&task, "visitor", visitor_main, k));
		rt_task_join(task);
	}
	return k->stats_asked == asked;
}

static bool nothing_asked(struct kernel_model *k)
{
	uint64_t asked = k->reads_asked + k->stats_asked + k->looks_asked;

	for (unsigned i = 0; i < 20; i++)
		look_at_all(k);
	return k->reads_asked + k->stats_asked + k->looks_asked == asked;
}

/*
 * After a few rounds the kernels have all there is: nothing is asked. What was removed may be freed
 * as late as that (orphan.c), which changes a leaf; so there are several tries.
 */
static void quiet_main(struct kernel_model *k)
{
	bool quiet = false;

	/* access times wait for their files to be at rest, one node's after the other's
	 * (times.c); a reclaim that was in vain comes again 1, 2, 4 s later, which makes
	 * eight (orphan.c), the next would be twice as far away */
	for (unsigned i = 0; i < 50; i++) {
		look_at_all(k);
		rt_sleep_ns(200000000);
	}
	barrier(k->n);
	for (unsigned tries = 0; tries < 5 && !quiet; tries++) {
		quiet = nothing_asked(k);
		quiet &= visitors(k);
		rt_sleep_ns(200000000);
	}
	HOLDS(quiet);
}

/* ---- a hot directory ------------------------------------------------------------------------ */

#define HOT_RENAMES 200
#define HOT_LOOKERS 3
#define HOT_MAX_NS  100000000ull

static bool hot_over;
static uint64_t hot_dir;

static void hot_look_main(void *arg)
{
	struct kernel_model *k = (struct kernel_model *)arg;

	while (!hot_over) {
		kernel_look(k, hot_dir, pick(2));
		rt_sleep_ns(1000 + pick(1000));
	}
}

static void hot_rename_main(void *arg)
{
	struct kernel_model *k = (struct kernel_model *)arg;
	char from[8], to[8];

	for (unsigned i = 0; i < HOT_RENAMES; i++) {
		uint64_t began = rt_now_ns();

		kernel_enter(k, hot_dir, false);
		rt_mutex_lock(&k->dir);
		kernel_enter(k, hot_dir, true);
		OK(ops_rename(k->n->fs, hot_dir, kernel_link_name(from, i % 2), hot_dir,
			kernel_link_name(to, !(i % 2)), 0));
		k->dir_known = false;
		rt_mutex_unlock(&k->dir);
		HOLDS(rt_now_ns() < began + HOT_MAX_NS);
		rt_sleep_ns(pick(20000));
	}
}

/* One node renames, the others' processes look all the time. */
static void hot_work(struct node *n)
{
	struct kernel_model *k = &kernels[n->id - 1];
	struct rt_task *task[HOT_LOOKERS];
	unsigned tasks = n->id == 1 ? 1 : HOT_LOOKERS;

	if (n->id == 1) {
		hot_dir = mk_dir(n->fs, DISK_INO_ROOT, "hot");
		mk_file(n->fs, hot_dir, "l0");
		hot_over = false;
	}
	*k = (struct kernel_model){.n = n};
	kernel_start(n, &kernel_ops, k);
	barrier(n);
	for (unsigned i = 0; i < tasks; i++)
		OK(rt_task_spawn(&task[i], "hot",
			n->id == 1 ? hot_rename_main : hot_look_main, k));
	for (unsigned i = 0; i < tasks; i++)
		rt_task_join(task[i]);
	hot_over = true;
	barrier(n);
	fs_kernel_stop(n->fs);
}

static void hot_check(struct node *n)
{
}

/* ---- files that nobody has open ------------------------------------------------------------- */

/* Each asked for once: with its name come attributes that are kept. */
static bool found_is_known(struct kernel_model *k)
{
	uint64_t asked = k->stats_asked;

	for (unsigned f = 0; f < FILES; f++) {
		kernel_evict(k, &k->file[f]);
		(void)kernel_find(k, DISK_INO_ROOT, f, false);
		(void)kernel_stat(k, f);
		kernel_let_go(k, &k->file[f]);
	}
	return k->stats_asked == asked;
}

/* ---- more files than there are places ------------------------------------------------------- */

#define MANY        100
#define MANY_PLACES 32
#define MANY_LAST   8 /* are looked at again */

static struct many_file {
	uint64_t ino;
	bool there, page, attributes; /* in the kernel of node 2 */
} many[MANY];
static uint64_t many_dir;

static struct many_file *many_of(uint64_t ino)
{
	for (unsigned i = 0; i < MANY; i++)
		if (many[i].ino == ino)
			return &many[i];
	return NULL;
}

static void many_drop_pages(
	void *owner, uint64_t ino, uint64_t first, uint64_t end, _Atomic uint32_t *by)
{
	struct many_file *f = many_of(ino);

	(void)owner, (void)first, (void)end, (void)by;
	rt_sleep_ns(pick(100000));
	if (f)
		f->page = f->attributes = false;
}

static bool many_drop_attributes(void *owner, uint64_t ino)
{
	struct many_file *f = many_of(ino);

	(void)owner;
	if (f)
		f->attributes = false;
	return !f || f->there;
}

static bool many_gone_on(void *owner, uint32_t thread, struct kcache_seen *seen)
{
	(void)owner, (void)thread, (void)seen;
	return true;
}

static void many_expire_name(void *owner, uint64_t dir, struct ops_name name)
{
	(void)owner, (void)dir, (void)name;
}

static const struct kcache_ops many_ops = {
	.drop_pages = many_drop_pages,
	.drop_waits = kernel_drop_waits,
	.drop_attributes = many_drop_attributes,
	.expire_name = many_expire_name,
	.walks = kernel_walks,
	.returned = many_gone_on,
};

static int many_sink(void *arg, const struct iovec *iov, unsigned count, size_t total)
{
	struct many_file *f = (struct many_file *)arg;

	(void)iov, (void)count;
	f->page = true;
	return (int)total;
}

static void many_make(struct node *n)
{
	char text[16];

	many_dir = mk_dir(n->fs, DISK_INO_ROOT, "many");
	for (unsigned i = 0; i < MANY; i++) {
		struct ops_file *file;
		struct ops_attr a;

		snprintf(text, sizeof(text), "many%u", i);
		many[i] = (struct many_file){mk_file(n->fs, many_dir, text), 0, 0, 0};
		OK(ops_open(n->fs, many[i].ino, &root_user, O_RDWR, &file, &a));
		EQ(ops_write(n->fs, file, &root_user, 0, "x", 1, false), 1);
		ops_close(n->fs, file);
	}
}

/* As a program that looks it up, opens, reads and closes it. */
static void many_read(struct kernel_model *k, unsigned i)
{
	struct kcache_looked looked;
	struct kcache_named named;
	struct ops_file *file;
	struct ops_attr a;
	char text[16];

	snprintf(text, sizeof(text), "many%u", i);
	kernel_heard(k);
	OK(ops_lookup_kept(k->n->fs, many_dir, nm(text), &a, &looked));
	many[i].there = true;
	if (kcache_named(fs_kcache(k->n->fs), many_dir, kernel_thread(k), &a, &looked,
		    &named)) {
		many[i].attributes = named.attributes;
		kcache_named_told(fs_kcache(k->n->fs), &named, true);
	}
	OK(ops_open(k->n->fs, many[i].ino, &root_user, O_RDONLY, &file, &a));
	HOLDS(ops_read_kept(k->n->fs, file, 0, PAGE_SIZE, many_sink, &many[i]) >= 0);
	ops_close(k->n->fs, file);
}

/* True: the kernel had the attributes. */
static bool many_stat(struct kernel_model *k, unsigned i)
{
	struct ops_attr a;
	bool had = many[i].attributes, keeps;

	kernel_heard(k);
	if (!had) {
		OK(ops_getattr_kept(k->n->fs, many[i].ino, kernel_thread(k), &a, &keeps));
		many[i].attributes = keeps;
	}
	return had;
}

/*
 * A READ that ends where the attributes have said the file ends tells the kernel nothing new. Linux asks for
 * the attributes when it has read, as the access time may have moved, and may keep these.
 */
static void many_ended(struct kernel_model *k)
{
	unsigned kept = 0;

	for (unsigned i = 0; i < MANY_PLACES; i++) {
		many_read(k, i);
		many[i].attributes = false;
		(void)many_stat(k, i);
		kept += many_stat(k, i);
	}
	HOLDS(kept > MANY_PLACES / 2);
}

static bool many_noted(struct node *n, uint64_t ino)
{
	for (unsigned i = 0; i < MANY_PLACES; i++)
		if (atomic_load(&kernel_noted[n->id - 1][i]) == ino)
			return true;
	return false;
}

/* What was read last is known for good, whatever was read before. */
static void many_quiet(struct kernel_model *k)
{
	bool quiet = false;

	for (unsigned tries = 0; tries < 50 && !quiet; tries++) {
		quiet = true;
		for (unsigned i = MANY - MANY_LAST; i < MANY; i++)
			quiet &= many_stat(k, i);
		rt_sleep_ns(200000000);
	}
	HOLDS(quiet);
}

static void many_forget(struct kernel_model *k)
{
	for (unsigned i = 0; i < MANY; i++) {
		HOLDS(many_noted(k->n, many[i].ino) ||
			!(many[i].page || many[i].attributes));
		if (i % 2) /* a look-up that was not used */
			ops_forget(k->n->fs, many[i].ino);
		HOLDS(many_noted(k->n, many[i].ino) ||
			!(many[i].page || many[i].attributes));
	}
	for (unsigned i = 0; i < MANY; i++) {
		many[i] = (struct many_file){many[i].ino, 0, 0, 0};
		ops_forget(k->n->fs, many[i].ino);
		HOLDS(!many_noted(k->n, many[i].ino));
	}
}

static void many_work(struct node *n)
{
	struct kernel_model *k = &kernels[n->id - 1];

	if (n->id == 1)
		many_make(n);
	barrier(n);
	if (n->id == 2) {
		*k = (struct kernel_model){.n = n};
		kernel_start(n, &many_ops, k);
		for (unsigned i = 0; i < MANY; i++)
			many_read(k, i);
		many_quiet(k);
		many_forget(k);
		many_ended(k);
		fs_kernel_stop(n->fs);
	}
	barrier(n);
}

/* ---- the runner -------------------------------------------------------------------------------- */

static void kernel_work(struct node *n)
{
	struct kernel_model *k = &kernels[n->id - 1];
	struct rt_task *answers;

	make_files(n);
	barrier(n);
	answers = open_run(k, n);
	barrier(n);
	sizes_are_pushed(k);
	barrier(n);
	/* pages that may be stored into have one reader */
	if (!kernel_stores && !kernel_places)
		quiet_main(k);
	barrier(n);
	kernel_shut(k, answers);
}

static void closed_work(struct node *n)
{
	struct kernel_model *k = &kernels[n->id - 1];
	bool known = false;

	make_files(n);
	barrier(n);
	closed_run(k, n);
	barrier(n);
	for (unsigned tries = 0; tries < 20 && !known; tries++) {
		rt_sleep_ns(200000000);
		known = found_is_known(k);
	}
	HOLDS(known || kernel_places);
	barrier(n);
	fs_kernel_stop(n->fs);
	sum_kept += k->finds_kept;
	sum_made += k->makes_kept;
	sum_absent += k->dropped_absent;
}

static bool few;  /* a tenth of the seeds */
static bool deaf; /* most ends of drops are not heard of */

static void run_seeds(unsigned nodes, unsigned steps)
{
	struct world *w = (struct world *)calloc(1, sizeof(*w));
	uint64_t seeds = seeds_count(few ? SEEDS / 10 : SEEDS);
	struct rt_sim_options o = {.time_limit_ns = 600ull * 1000000000};

	files = (struct history *)calloc(FILES + 1, sizeof(*files));
	assert_true(w && files);
	names = &files[FILES];
	sum_sent = sum_reads = sum_reads_asked = sum_drops = sum_unheard = 0;
	for (uint64_t seed = seeds_first(); seeds--; seed++) {
		memset(w, 0, sizeof(*w));
		memset(files, 0, (FILES + 1) * sizeof(*files));
		next_word = neighbours = 0;
		w->nodes = seeds_nodes(nodes, seed);
		w->steps = steps * (unsigned)setting("WEFT_SIM_LONGER", 1);
		w->deaf = deaf;
		w->mmap = kernel_stores ? OPS_MMAP_SHARED : OPS_MMAP_OFF;
		w->work = kernel_work;
		w->check = kernel_check;
		assert_int_equal(rt_sim_run(seed, &o, run_world, w), 0);
	}
	print_message("%" PRIu64 " messages, %" PRIu64 " reads, %" PRIu64
		      " asked, %" PRIu64 " pages dropped\n",
		sum_sent, sum_reads, sum_reads_asked, sum_drops);
	/* what a kernel has it reads without asking; but where others store into it with each
	 * look, it asks for a page each time, and again if that was refused */
	assert_true(sum_drops > 0);
	assert_true(
		kernel_places || sum_reads_asked < (kernel_stores ? 2 : 1) * sum_reads);
	free(files);
	free(w);
}

static void two_kernels_are_never_behind(void **state)
{
	run_seeds(2, 120);
}

static void three_kernels_are_never_behind(void **state)
{
	run_seeds(3, 80);
}

static void five_and_eight_kernels_are_never_behind(void **state)
{
	few = true;
	run_seeds(5, 40);
	run_seeds(8, 25);
	few = false;
}

/* What waits for a kernel is looked at now and then, should it not hear that it need not wait. */
static void what_a_kernel_has_dropped_is_given_though_nobody_hears_of_it(void **state)
{
	few = deaf = true;
	run_seeds(3, 20);
	few = deaf = false;
	assert_true(sum_unheard > 0);
}

static void stores_of_two_kernels_are_seen(void **state)
{
	kernel_stores = true;
	run_seeds(2, 120);
	kernel_stores = false;
}

static void stores_of_three_and_five_kernels_are_seen(void **state)
{
	kernel_stores = true;
	run_seeds(3, 80);
	few = true;
	run_seeds(5, 40);
	few = kernel_stores = false;
}

static void run_closed(unsigned nodes, unsigned steps)
{
	struct world *w = (struct world *)calloc(1, sizeof(*w));
	struct rt_sim_options o = {.time_limit_ns = 600ull * 1000000000};

	files = (struct history *)calloc(FILES + 1, sizeof(*files));
	assert_true(w && files);
	names = &files[FILES];
	sum_kept = sum_made = sum_absent = 0;
	for (uint64_t seed = seeds_first(), seeds = seeds_count(few ? SEEDS / 10 : SEEDS);
		seeds--; seed++) {
		memset(w, 0, sizeof(*w));
		memset(files, 0, (FILES + 1) * sizeof(*files));
		neighbours = 0;
		w->nodes = seeds_nodes(nodes, seed);
		w->steps = steps * (unsigned)setting("WEFT_SIM_LONGER", 1);
		w->work = closed_work;
		w->check = closed_check;
		assert_int_equal(rt_sim_run(seed, &o, run_world, w), 0);
	}
	print_message("%" PRIu64 " answers with attributes kept, %" PRIu64
		      " to who made the file, %" PRIu64
		      " drops of an inode that was not there\n",
		sum_kept, sum_made, sum_absent);
	assert_true(sum_kept > 0 && sum_made > 0 && sum_absent > 0);
	free(files);
	free(w);
}

/* An answer that is taken in when what it says was dropped is believed by nobody. */
static void attributes_that_come_with_a_name_are_never_behind(void **state)
{
	run_closed(2, 120);
	run_closed(3, 80);
}

static void run_work(unsigned nodes, void (*work)(struct node *n))
{
	struct world *w = (struct world *)calloc(1, sizeof(*w));
	uint64_t one = setting("WEFT_SIM_SEED", 0);
	uint64_t seeds = one ? 1 : setting("WEFT_SIM_SEEDS", SEEDS);
	struct rt_sim_options o = {.time_limit_ns = 600ull * 1000000000};

	assert_true(w);
	for (uint64_t seed = one ? one : 1; seeds--; seed++) {
		memset(w, 0, sizeof(*w));
		w->nodes = nodes;
		w->work = work;
		w->check = hot_check;
		assert_int_equal(rt_sim_run(seed, &o, run_world, w), 0);
	}
	free(w);
}

static void lookers_do_not_starve_a_rename(void **state)
{
	run_work(3, hot_work);
}

static void a_kernel_keeps_what_it_read_last_and_gives_back_what_it_forgot(void **state)
{
	kernel_places = MANY_PLACES;
	run_work(2, many_work);
	kernel_places = 0;
}

/* There are more files than that. */
static void kernels_with_too_few_places_are_never_behind(void **state)
{
	few = true;
	for (kernel_places = 1; kernel_places < FILES; kernel_places++) {
		run_closed(2, 80);
		run_seeds(2, 80);
		kernel_stores = true;
		run_seeds(3, 40);
		kernel_stores = false;
	}
	few = false;
	kernel_places = 0;
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(lookers_do_not_starve_a_rename),
		cmocka_unit_test(attributes_that_come_with_a_name_are_never_behind),
		cmocka_unit_test(
			a_kernel_keeps_what_it_read_last_and_gives_back_what_it_forgot),
		cmocka_unit_test(kernels_with_too_few_places_are_never_behind),
		cmocka_unit_test(two_kernels_are_never_behind),
		cmocka_unit_test(three_kernels_are_never_behind),
		cmocka_unit_test(five_and_eight_kernels_are_never_behind),
		cmocka_unit_test(
			what_a_kernel_has_dropped_is_given_though_nobody_hears_of_it),
		cmocka_unit_test(stores_of_two_kernels_are_seen),
		cmocka_unit_test(stores_of_three_and_five_kernels_are_seen),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
