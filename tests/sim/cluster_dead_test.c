/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A node that is dead (docs/nodes/fencing.md): three nodes make files, and all look at all of them. One
 * loses its power, so what it has looked at nobody may change. Then the others are told that it is
 * dead, and change it; what it had changed itself just before still waits, and what it had changed a while
 * before is read at once ("Idle downgrade"). It comes back, with what it had synced, and the volume is whole.
 *
 *   WEFT_SIM_SEED=7 build/tests/sim/cluster_dead_test     one seed
 *   WEFT_SIM_SEEDS=1000                                   so many
 */
#define LOG_BYTES (16ull << 20)
#define FRAMES    2000
#include "tests/sim/cluster_world.h"
#include "tests/sim/phases.h"

#define DEAD_SEEDS 12
#define LIVE       3u   /* nodes */
#define FILES      120u /* of each */
#define SIZE       100u
/* Files that others change, and the victim; their inodes are in different leaves. */
#define COMMON  1u
#define CHANGED 60u
#define WAIT_NS 2000000000ull
#define REST_NS 500000000ull

enum { TOGETHER, ALONE, LOOK, AGAIN }; /* phases */

static struct own {
	uint64_t dir, file[FILES];
	bool crashed;
} own[LIVE];

static _Atomic uint32_t finished, reached;
static unsigned ended, victim, sum_waited;
static bool rested; /* what it changed, when it was lost */

static void make_all(struct node *n, struct own *o)
{
	char text[16], bytes[SIZE];

	snprintf(text, sizeof(text), "own%u", n->id);
	o->dir = mk_dir(n->fs, DISK_INO_ROOT, text);
	memset(bytes, 'a', sizeof(bytes));
	for (unsigned i = 0; i < FILES; i++) {
		struct ops_file *open;
		struct ops_attr a;

		snprintf(text, sizeof(text), "f%u", i);
		OK(ops_create(n->fs, o->dir, nm(text), &root_user, 0644, O_RDWR | O_EXCL,
			&open, &a));
		EQ(ops_write(n->fs, open, &root_user, 0, bytes, SIZE, false), SIZE);
		ops_close(n->fs, open);
		o->file[i] = a.ino;
	}
}

static void look_at(struct node *n, const struct own *o)
{
	struct ops_attr a;
	char text[16];

	for (unsigned i = 0; i < FILES; i++) {
		snprintf(text, sizeof(text), "f%u", i);
		OK(ops_lookup(n->fs, o->dir, nm(text), &a));
		EQ(a.inode.size, SIZE);
	}
}

static void fill(struct node *n, uint64_t ino, char with)
{
	struct ops_file *open;
	struct ops_attr a;
	char bytes[SIZE];

	memset(bytes, with, SIZE);
	OK(ops_open(n->fs, ino, &root_user, O_RDWR, &open, &a));
	EQ(ops_write(n->fs, open, &root_user, 0, bytes, SIZE, false), SIZE);
	ops_close(n->fs, open);
}

struct seen {
	char bytes[SIZE];
	size_t len;
};

static int take(void *arg, const struct iovec *iov, unsigned count, size_t total)
{
	struct seen *seen = (struct seen *)arg;

	seen->len = 0;
	for (unsigned i = 0; i < count; i++) {
		HOLDS(seen->len + iov[i].iov_len <= SIZE);
		memcpy(seen->bytes + seen->len, iov[i].iov_base, iov[i].iov_len);
		seen->len += iov[i].iov_len;
	}
	return 0;
}

static void is_filled(struct node *n, uint64_t ino, char with)
{
	struct ops_file *open;
	struct ops_attr a;
	struct seen seen;

	OK(ops_open(n->fs, ino, &root_user, O_RDONLY, &open, &a));
	OK(ops_read(n->fs, open, 0, SIZE, take, &seen));
	EQ(seen.len, SIZE);
	for (unsigned i = 0; i < SIZE; i++)
		EQ(seen.bytes[i], with);
	ops_close(n->fs, open);
}

/* True: so many have come so far in that time. */
static bool await(unsigned nodes, uint64_t for_ns)
{
	uint64_t end = rt_now_ns() + for_ns;

	while (atomic_load(&finished) < nodes && rt_now_ns() < end)
		rt_sleep_ns(1000000);
	return atomic_load(&finished) == nodes;
}

/* What the victim has looked at as well. */
static void change_shared(struct node *n)
{
	char text[16];

	for (unsigned i = 0; i < LIVE; i++) {
		if (own[i].crashed)
			continue;
		snprintf(text, sizeof(text), "of%u", n->id);
		mk_dir(n->fs, own[i].dir, text);
		fill(n, own[i].file[COMMON], 'c');
	}
	atomic_fetch_add(&finished, 1);
}

/* What it has changed alone: not before its log is there, unless it was at rest. */
static void read_changed(void *arg)
{
	struct node *n = (struct node *)arg;

	is_filled(n, own[n->id - 1].file[CHANGED], 'z');
	HOLDS(rested ? atomic_load(&phase) == ALONE : atomic_load(&phase) == AGAIN);
	atomic_fetch_add(&reached, 1);
}

static void first_life(struct node *n, struct own *o)
{
	struct rt_task *reader;

	make_all(n, o);
	barrier(n);
	for (unsigned i = 0; i < LIVE; i++)
		look_at(n, &own[i]);
	OK(volume_sync(n->v));
	barrier(n);
	if (o == &own[victim]) {
		for (unsigned i = 0; i < LIVE; i++)
			fill(n, own[i].file[CHANGED], 'z');
		for (unsigned i = 0; i < LIVE; i++)
			OK(ops_fsync(n->fs, own[i].file[CHANGED], false));
	}
	barrier(n);
	/* what says who has opened files is changed by each first open, and shared again here */
	if (o != &own[victim])
		for (unsigned i = 0; i < LIVE; i++)
			is_filled(n, own[i].file[COMMON], 'a');
	barrier(n);
	come_to(ALONE);
	OK(rt_task_spawn(&reader, "reader", read_changed, n));
	change_shared(n);
	come_to(LOOK);
	for (unsigned i = 0; i < LIVE; i++)
		if (!own[i].crashed)
			is_filled(n, own[i].file[COMMON], 'c');
	rt_task_join(reader);
}

static void dead_life(void *arg)
{
	struct node *n = (struct node *)arg;
	struct own *o = &own[n->id - 1];

	crash_open(n);
	if (!o->crashed)
		first_life(n, o);
	come_to(AGAIN);
	barrier(n);
	for (unsigned i = 0; i < LIVE; i++) {
		look_at(n, &own[i]);
		is_filled(n, own[i].file[CHANGED], 'z');
		is_filled(n, own[i].file[COMMON], own[i].crashed ? 'a' : 'c');
	}
	barrier(n);
	fill(n, own[n->id % LIVE].file[COMMON], 'd');
	crash_close(n);
	ended++;
}

static void life_begin(struct node *n)
{
	n->sim = rt_sim_node_new(n->disk);
	OK(rt_sim_spawn_on(n->sim, "node", dead_life, n));
}

/* Who has a link with it is not to be told: its end is noticed after some seconds. */
static void tell_dead(struct world *w)
{
	for (unsigned i = 0; i < w->nodes; i++)
		if (i != victim)
			coherence_dead(w->node[i].coherence, victim + 1);
}

static int run_dead(void *arg)
{
	struct world *w = (struct world *)arg;
	struct node *lost = &w->node[victim];

	cluster_format(w);
	for (unsigned i = 0; i < w->nodes; i++)
		life_begin(&w->node[i]);
	while (atomic_load(&w->arrived) < 4 * LIVE)
		rt_sleep_ns(1000000);
	rt_sleep_ns((rested ? REST_NS : 20000000) + rt_random() % 50000000);
	lost->coherence = NULL;
	rt_sim_node_kill(lost->sim);
	own[victim].crashed = true;
	go_on_to(ALONE);
	sum_waited += !await(LIVE - 1, WAIT_NS);
	EQ(atomic_load(&reached), rested ? LIVE - 1 : 0);
	for (unsigned tries = 0; !await(LIVE - 1, WAIT_NS); tries++) {
		HOLDS(tries < 30);
		tell_dead(w);
	}
	go_on_to(LOOK);
	rt_sleep_ns(WAIT_NS);
	EQ(atomic_load(&reached), rested ? LIVE - 1 : 0);
	go_on_to(AGAIN);
	life_begin(lost);
	for (unsigned i = 0; i < w->nodes; i++)
		HOLDS(!rt_sim_node_wait(w->node[i].sim));
	HOLDS(ended == w->nodes);
	EQ(atomic_load(&reached), LIVE - 1);
	world_stopped();
	stores_check(w);
	world_over();
	return 0;
}

/* What is changed has its home at nodes that are there: what needs another home waits. */
static void lose_one(bool rests)
{
	struct rt_sim_options o = {.time_limit_ns = 600ull * 1000000000};
	uint64_t seeds = seeds_count(DEAD_SEEDS), count = seeds;

	rested = rests;
	sum_waited = 0;
	for (uint64_t seed = seeds_first(); seeds--; seed++) {
		struct world *w = (struct world *)calloc(1, sizeof(*w));

		assert_non_null(w);
		w->nodes = LIVE;
		w->disk_bytes = 128ull << 20;
		w->dirty_age_ms = rests ? 40 : 30000;
		memset(own, 0, sizeof(own));
		atomic_store(&phase, TOGETHER);
		atomic_store(&finished, 0);
		atomic_store(&reached, 0);
		ended = 0;
		victim = 1 + seed % (LIVE - 1);
		assert_int_equal(rt_sim_run(seed, &o, run_dead, w), 0);
		free(w);
	}
	print_message("%u of %" PRIu64 " waited before it was known to be dead\n",
		sum_waited, count);
	assert_int_equal(sum_waited, count);
}

static void what_a_dead_node_shared_is_changed(void **state)
{
	lose_one(false);
}

static void what_rested_is_read_while_its_node_is_away(void **state)
{
	lose_one(true);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_a_dead_node_shared_is_changed),
		cmocka_unit_test(what_rested_is_read_while_its_node_is_away),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
