/* SPDX-License-Identifier: Apache-2.0 */
/*
 * While a node is away the others go on with what is theirs (docs/nodes/semantics.md, "Splits while a
 * node is away"): three nodes make and unlink files, each in its own directory. One loses its
 * power; the others make many more, so that the tree has to grow, and unlink most. Then it comes
 * back, and the volume is whole. And where one has been the last to change what is above all, and
 * is lost some seconds later, the others find what is theirs ("Idle downgrade"). What is above the parts
 * of all nodes is of one shard, whoever had it split ("Leaves and nodes").
 *
 *   WEFT_SIM_SEED=7 build/tests/sim/cluster_away_test     one seed
 *   WEFT_SIM_SEEDS=1000                                   so many
 */
#define LOG_BYTES (16ull << 20)
#define FRAMES    4000
#include "engine/cache/cache_internal.h"
#include "engine/tree/tree_internal.h"
#include "tests/sim/cluster_world.h"
#include "tests/sim/phases.h"

#define AWAY_SEEDS 4
#define LIVE       3u   /* nodes */
#define BEFORE     500u /* files of each */
#define AFTER      1500u
#define IN_ROOT    16000u

enum { TOGETHER, ALONE, AGAIN }; /* phases */

/* What a node has in its directory; that of one that has crashed nobody knows. */
static struct own {
	uint64_t dir;
	unsigned made, first; /* files `first` to `made` are there */
	bool crashed;
} own[LIVE];

static _Atomic uint32_t finished;
static unsigned ended, victim;
static uint64_t sum_grown, sum_alone, sum_split, sum_elsewhere;

static struct ops_name own_name(char out[16], unsigned i)
{
	snprintf(out, 16, "f%u", i);
	return nm(out);
}

static void make_one(struct node *n, struct own *o)
{
	struct ops_file *open;
	struct ops_attr a;
	char text[16], bytes[100];

	memset(bytes, (int)o->made, sizeof(bytes));
	OK(ops_create(n->fs, o->dir, own_name(text, o->made), &root_user, 0644,
		O_RDWR | O_EXCL, &open, &a));
	EQ(ops_write(n->fs, open, &root_user, 0, bytes, sizeof(bytes), false),
		sizeof(bytes));
	ops_close(n->fs, open);
	o->made++;
}

static void unlink_one(struct node *n, struct own *o)
{
	char text[16];

	OK(ops_unlink(n->fs, o->dir, own_name(text, o->first)));
	o->first++;
}

static void look_at(struct node *n, const struct own *o)
{
	struct ops_attr a;
	char text[16];

	for (unsigned i = o->first; i < o->made; i++) {
		OK(ops_lookup(n->fs, o->dir, own_name(text, i), &a));
		EQ(a.inode.size, 100);
	}
	EQ(ops_lookup(n->fs, o->dir, own_name(text, o->made), &a), -ENOENT);
}

/* All that live have come so far; they do not wait for who is away. */
static void await(unsigned nodes)
{
	uint64_t end = rt_now_ns() + 200ull * 1000000000;

	while (atomic_load(&finished) < nodes) {
		HOLDS(rt_now_ns() < end);
		rt_sleep_ns(1000000);
	}
	atomic_store(&finished, 0);
}

static void first_life(struct node *n, struct own *o)
{
	char text[16];

	snprintf(text, sizeof(text), "own%u", n->id);
	o->dir = mk_dir(n->fs, DISK_INO_ROOT, text);
	/* Who begins a range of inode numbers divides the leaf before it, and has that alone, if it is
	 * lost before its neighbour changes it: all begin theirs first. */
	barrier(n);
	while (o->made < BEFORE)
		make_one(n, o);
	OK(volume_sync(n->v));
	/* who opens the volume reads what all have unlinked, and once more if somebody is busy */
	rt_sleep_ns(3000000000);
	unlink_one(n, o);
	atomic_fetch_add(&finished, 1);
	while (atomic_load(&phase) == TOGETHER) {
		if (o == &own[victim])
			rt_sleep_ns(1000000);
		else
			make_one(n, o);
	}
	for (unsigned i = 0; i < AFTER; i++)
		make_one(n, o);
	while (o->made - o->first > BEFORE / 2)
		unlink_one(n, o);
	look_at(n, o);
	sum_grown += tree_counters(n->v->tree)->grown;
	atomic_fetch_add(&finished, 1);
}

static void away_life(void *arg)
{
	struct node *n = (struct node *)arg;
	struct own *o = &own[n->id - 1];

	crash_open(n);
	if (!o->crashed)
		first_life(n, o);
	come_to(AGAIN);
	barrier(n);
	for (unsigned i = 0; i < LIVE; i++)
		if (!own[i].crashed)
			look_at(n, &own[i]);
	barrier(n);
	while (!o->crashed && o->first < o->made) /* what has grown is joined again */
		unlink_one(n, o);
	crash_close(n);
	ended++;
}

/* What the i-th frame has, if it is a page above leaves: one of the tree says so, and its own number. */
static const uint8_t *inner_image(struct cache *c, uint32_t i, page_id *pid)
{
	const uint8_t *image = frame_image(c, &c->frames.frame[i]);

	*pid = atomic_load(&c->frames.frame[i].pid);
	return *pid != PID_NONE && page_load_u64(image + NODE_PID) == *pid &&
			       node_counts_load(image).level > 0
		       ? image
		       : NULL;
}

/* Pages above leaves, of other homes, that the node has alone. */
static unsigned inner_alone(struct node *n)
{
	struct cache *c = n->v->cache;
	unsigned alone = 0;
	page_id pid;

	for (uint32_t i = 0; i < c->frames.count; i++)
		alone += inner_image(c, i, &pid) &&
			 !coherence_home_here(c->coherence, pid) &&
			 mode_allows(&c->frames.frame[i], PAGE_EXCLUSIVE);
	return alone;
}

/* All make files; then the victim alone, which changes pages above with it. */
static void last_to_change_life(struct node *n)
{
	struct own *o = &own[n->id - 1];
	char text[16];

	snprintf(text, sizeof(text), "own%u", n->id);
	o->dir = mk_dir(n->fs, DISK_INO_ROOT, text);
	while (o->made < BEFORE)
		make_one(n, o);
	barrier(n);
	look_at(n, o); /* from here on the leaves that it needs are not another's alone */
	barrier(n);
	while (o == &own[victim] && o->made < 2 * BEFORE)
		make_one(n, o);
	barrier(n);
	sum_alone += inner_alone(n);
	rt_sleep_ns(3000000000);
	EQ(inner_alone(n), 0);
	atomic_fetch_add(&finished, 1);
	come_to(ALONE);
	look_at(n, o);
	atomic_fetch_add(&finished, 1);
}

static void rest_life(void *arg)
{
	struct node *n = (struct node *)arg;

	crash_open(n);
	if (!own[n->id - 1].crashed)
		last_to_change_life(n);
	come_to(AGAIN);
	barrier(n);
	crash_close(n);
	ended++;
}

/* ---- where pages are of ----------------------------------------------------------------- */

/* Is what begins there within a range of inode numbers that a node has taken? */
static bool of_range(struct disk_key low)
{
	const uint64_t within = (1ull << DISK_INODE_RANGE_BITS) - 1;
	uint64_t ino = low.high >> 8;

	if (ino == DISK_INO_SYSTEM)
		return low.low >> DISK_INODE_RANGE_BITS && (low.low & within) != within;
	return ino >> DISK_INODE_RANGE_BITS;
}

/*
 * Pages above leaves that are in no range, as the node has them: all of the root's shard. Of them,
 * those that begin in the root directory.
 */
static unsigned above_all(struct node *n)
{
	struct cache *c = n->v->cache;
	unsigned count = 0;

	for (uint32_t i = 0; i < c->frames.count; i++) {
		page_id pid;
		const uint8_t *image = inner_image(c, i, &pid);
		struct disk_key low;

		if (!image)
			continue;
		low = tree_key_disk(tree_key_load(image + NODE_LOW));
		if (of_range(low))
			continue;
		EQ(pid_shard(pid), 0);
		count += low.high >> 8 == DISK_INO_ROOT;
	}
	return count;
}

/* The victim makes the first files, and so many in the root directory that what is above it is split. */
static void above_life(void *arg)
{
	struct node *n = (struct node *)arg;
	struct own *o = &own[n->id - 1];
	bool first = o == &own[victim];
	char text[16];

	crash_open(n);
	for (unsigned turn = 0; turn < 2; turn++) {
		for (unsigned i = 0; turn == !first && i < (first ? IN_ROOT : BEFORE);
			i++) {
			struct ops_attr a;

			snprintf(text, sizeof(text), "%u-%u", n->id, i);
			OK(ops_mknod(n->fs, DISK_INO_ROOT, nm(text), &root_user,
				S_IFREG | 0644, 0, 0, &a));
		}
		barrier(n);
	}
	sum_split += above_all(n);
	sum_elsewhere += tree_counters(n->v->tree)->split_elsewhere;
	barrier(n);
	crash_close(n);
	ended++;
}

static void (*life)(void *);

static void life_begin(struct node *n)
{
	n->sim = rt_sim_node_new(n->disk);
	OK(rt_sim_spawn_on(n->sim, "node", life, n));
}

static void world_begin(struct world *w)
{
	cluster_format(w);
	for (unsigned i = 0; i < w->nodes; i++)
		life_begin(&w->node[i]);
}

static void world_end(struct world *w)
{
	for (unsigned i = 0; i < w->nodes; i++)
		HOLDS(!rt_sim_node_wait(w->node[i].sim));
	HOLDS(ended == w->nodes);
	world_stopped();
	stores_check(w);
	world_over();
}

static int run_away(void *arg)
{
	struct world *w = (struct world *)arg;
	struct node *lost = &w->node[victim];

	world_begin(w);
	await(LIVE);
	rt_sleep_ns(20000000 + rt_random() % 50000000);
	lost->coherence = NULL;
	rt_sim_node_kill(lost->sim);
	own[victim].crashed = true;
	go_on_to(ALONE);
	await(LIVE - 1);
	life_begin(lost);
	go_on_to(AGAIN);
	world_end(w);
	return 0;
}

static int run_together(void *arg)
{
	struct world *w = (struct world *)arg;

	world_begin(w);
	world_end(w);
	return 0;
}

/* The home of the tree's upper pages, node 1, is not lost: what needs that waits. */
static uint64_t dirty_age_ms; /* 0: as usual */

static void run_seeds(int (*run)(void *), void (*of_each)(void *))
{
	struct rt_sim_options o = {.time_limit_ns = 600ull * 1000000000};
	uint64_t seeds = seeds_count(AWAY_SEEDS);

	sum_grown = 0;
	life = of_each;
	for (uint64_t seed = seeds_first(); seeds--; seed++) {
		struct world *w = (struct world *)calloc(1, sizeof(*w));

		assert_non_null(w);
		w->nodes = LIVE;
		w->disk_bytes = 128ull << 20;
		w->dirty_age_ms = dirty_age_ms;
		memset(own, 0, sizeof(own));
		atomic_store(&phase, TOGETHER);
		atomic_store(&finished, 0);
		ended = 0;
		victim = 1 + seed % (LIVE - 1);
		assert_int_equal(rt_sim_run(seed, &o, run, w), 0);
		free(w);
	}
}

static void others_go_on_while_one_is_away(void **state)
{
	run_seeds(run_away, away_life);
	print_message("%" PRIu64 " pages grew where they are\n", sum_grown);
	assert_true(sum_grown > 0);
}

static void what_is_above_all_is_shared_again_within_seconds(void **state)
{
	dirty_age_ms = 60000;
	sum_alone = 0;
	run_seeds(run_away, rest_life);
	dirty_age_ms = 0;
	assert_true(sum_alone > 0); /* else there was nothing to share */
}

static void what_is_above_all_is_of_one_shard(void **state)
{
	sum_split = sum_elsewhere = 0;
	run_seeds(run_together, above_life);
	print_message("%" PRIu64 " splits by homes\n", sum_elsewhere);
	assert_true(sum_elsewhere > 0);
	assert_true(sum_split > 0); /* what is above the root directory, too */
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(others_go_on_while_one_is_away),
		cmocka_unit_test(what_is_above_all_is_shared_again_within_seconds),
		cmocka_unit_test(what_is_above_all_is_of_one_shard),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
