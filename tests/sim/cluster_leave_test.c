/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Nodes that open and leave a volume with logs that are full (docs/nodes/lifecycle.md, "Opening",
 * "Leaving"): two storage nodes, or three, put together by engine/node/join.c as the daemon
 * does it, and pages of both, without a tree. Each ends in bounded time; what was synced is there
 * when both are back.
 *
 *   WEFT_SIM_SEED=7 build/tests/sim/cluster_leave_test     one seed
 *   WEFT_SIM_SEEDS=1000                                    so many
 */
#define FRAMES 4096
#include <unistd.h>

#include "engine/cache/cache_internal.h"
#include "engine/node/node.h"
#include "tests/sim/cluster_world.h"
#include "tests/sim/phases.h"

#define NODES       2u   /* but one case has a third */
#define FIRST       10u  /* slot */
#define OWN         100u /* pages of node 1 */
#define GIVEN       20u  /* pages of node 2 that it takes over from node 1 */
#define OTHERS      30u  /* and does not */
#define MUCH        1200u /* pages: with what is logged of each more than a log has */
#define LEAVE_SEEDS 4u
#define ROOM_BYTES  (8u * PAGE_SIZE) /* what a task that waits for room might need */
#define SECOND      1000000000ull
#define ENDS_NS     (10 * SECOND) /* who is told to end has by then */

static const char cluster_text[] = "[volume]\n"
				   "name = v\n"
				   "uuid = 11111111-1111-4111-9111-111111111111\n"
				   "key = v.key\n"
				   "[node 1]\n"
				   "address = node1:7000\n"
				   "store = /disk1\n"
				   "[node 2]\n"
				   "address = node2:7000\n"
				   "store = /disk2\n";

static const char third_text[] = "[node 3]\n"
				 "address = node3:7000\n"
				 "store = /disk3\n";

static char folder[] = "/tmp/weft-leave.XXXXXX";
static char cluster_name_of[sizeof(folder) + 16], key_name_of[sizeof(folder) + 16];
static char three_name_of[sizeof(folder) + 16];

struct life {
	struct cluster *cluster;
	struct local_node *node;
	_Atomic int patience;
};

static struct life lives[NODES + 2];

/* What node 1 has beside what it owes to node 2, which is away. */
static struct {
	bool full;         /* its log is, as nothing moves the tail */
	bool waits;        /* a task that waits for room in it */
	bool own_dirty;    /* pages of its own, written and not synced */
	bool others_dirty; /* and of node 2 */
	bool no_signal;    /* it is unmounted */
} way;

static unsigned first_busy; /* nodes from this one on have much to be persisted */
static unsigned rounds, ended, said;
static void (*sink_before)(int level, const char *line);

static void note_line(int level, const char *line)
{
	said += strstr(line, "stay in this node's log") != NULL;
	if (getenv("WEFT_SIM_VERBOSE"))
		sink_before(level, line);
}

/* ---- a node that opens and closes as the daemon does -------------------------------------- */

static enum node_patience patience(void *owner)
{
	return (enum node_patience)atomic_load(&((struct life *)owner)->patience);
}

static void life_begin(struct node *n)
{
	struct life *l = &lives[n->id];
	struct node_options mo = {
		.node = n->id, .transport = "sim", .patience = patience, .owner = l};
	struct weft_error err = {0};
	struct volume_options vo = {
		.storage_only = true,
		.cache = {.cache_bytes = FRAMES * PAGE_SIZE, .dirty_age_ms = 1000000},
		.learned_bytes = LEARNED_BYTES,
		.node = (uint16_t)n->id,
		.shard = (uint16_t)(n->id - 1),
		.volume_uuid = world_uuid,
	};
	struct rt_disk *disk;
	int rc = cluster_open(&l->cluster,
		n->w->nodes > NODES ? three_name_of : cluster_name_of, 0, &err);

	atomic_store(&l->patience, NODE_WAITS);
	if (!rc) {
		mo.cluster = l->cluster;
		rc = node_open(&l->node, &mo, &err);
	}
	if (!rc) {
		vo.peers = look_peers(n->id, node_volume_peers(l->node));
		rc = rt_disk_open(&disk, n->disk, 0, &err);
	}
	if (!rc)
		rc = volume_open(&n->v, disk, &vo, &err);
	if (rc) {
		print_message("node %u: %s\n", n->id, err.text);
		abort();
	}
	OK(cache_start(n->v->cache));
	node_serving(l->node);
}

static int life_end(struct node *n)
{
	struct life *l = &lives[n->id];
	int rc;

	node_leave(l->node);
	rc = volume_close(n->v);
	node_close(l->node);
	cluster_close(l->cluster);
	*l = (struct life){0};
	return rc;
}

/* ---- pages ---------------------------------------------------------------------------------- */

static page_id page_of(unsigned node, unsigned i)
{
	return pid_make((uint16_t)(node - 1), FIRST + i);
}

static void write_page(struct node *n, page_id pid, uint64_t word)
{
	struct guard g;

	OK(guard_exclusive(n->v->cache, pid, 0, &g));
	for (unsigned i = 0; i < PAGE_SIZE / 8; i++)
		memcpy(g.image + 8u * i, &word, 8);
	guard_release_dirty(n->v->cache, &g, false);
}

static void make_page(struct node *n, page_id pid, uint64_t word)
{
	struct guard g;

	OK(guard_fresh(n->v->cache, pid, 1, &g));
	guard_release_dirty(n->v->cache, &g, false);
	write_page(n, pid, word);
}

static void expect_page(struct node *n, page_id pid, uint64_t word)
{
	struct guard g;
	uint64_t is;

	OK(guard_shared(n->v->cache, pid, 0, &g));
	memcpy(&is, g.image + 8, 8);
	guard_release(n->v->cache, &g);
	EQ(is, word);
}

/* ---- a home is away ------------------------------------------------------------------------- */

/* Node 2 takes over what node 1 has synced, which owes it then, and its log is needed for that. */
static void give_synced(struct node *n)
{
	struct cache_census of[SHARDS_MAX] = {0};

	for (unsigned i = 0; i < OWN; i++)
		make_page(n, page_of(1, i), 1000 + i);
	OK(cache_checkpoint(n->v->cache));
	for (unsigned i = 0; i < OTHERS && way.others_dirty; i++)
		make_page(n, page_of(2, GIVEN + i), GIVEN + i);
	for (unsigned i = 0; i < GIVEN; i++) {
		const struct page_ref ref = {page_of(2, i), 1};

		make_page(n, ref.pid, i);
		OK(cache_sync(n->v->cache, &ref, 1, 0));
	}
	go_on_to(1);
	come_to(2);
	cache_census(n->v->cache, of);
	EQ(of[1].owed, GIVEN);
	EQ(of[1].dirty, way.others_dirty ? OTHERS : 0);
}

/* Until the log is full; or until it waits for that, and is told that there is no room. */
static void fill_log(void *arg)
{
	struct node *n = (struct node *)arg;
	const struct page_ref ref = {page_of(1, 0), 1};
	int rc = 0;

	while (way.waits || log_room_left(n->v->log) > ROOM_BYTES) {
		write_page(n, ref.pid, 4000 + rounds);
		rc = cache_sync(n->v->cache, &ref, 1, 0);
		if (rc)
			break;
		rounds++;
	}
	EQ(rc, way.waits ? -EIO : 0);
}

static void leaving_life(void *arg)
{
	struct node *n = (struct node *)arg;
	struct rt_task *task = NULL;
	uint64_t told;

	life_begin(n);
	give_synced(n);
	for (unsigned i = 1; i < OWN && way.own_dirty; i++) {
		write_page(n, page_of(1, i), 2000 + i);
		make_page(n, page_of(1, OWN + i), 3000 + i);
	}
	if (way.full)
		OK(rt_task_spawn(&task, "fill", fill_log, n));
	rt_sleep_ns(5 * SECOND);
	HOLDS(!way.full || log_room_left(n->v->log) <= ROOM_BYTES);
	told = rt_now_ns();
	node_watch(lives[n->id].node);
	if (!way.no_signal)
		atomic_store(&lives[n->id].patience, NODE_CUT);
	if (task)
		rt_task_join(task);
	HOLDS(life_end(n)); /* its log is not marked clean */
	HOLDS(rt_now_ns() - told < (way.no_signal ? 4 : 1) * ENDS_NS);
	ended++;
}

static void lost_life(void *arg)
{
	struct node *n = (struct node *)arg;

	life_begin(n);
	come_to(1);
	for (unsigned i = 0; i < GIVEN; i++)
		OK(guard_own(n->v->cache, page_of(2, i), 0));
	go_on_to(2);
	come_to(3);
}

/* What was synced; and, where the log has room for it or needs none, what was not. */
static void later_life(void *arg)
{
	struct node *n = (struct node *)arg;
	unsigned others = GIVEN + (way.others_dirty && !way.full ? OTHERS : 0);

	life_begin(n);
	for (unsigned i = 0; i < others; i++)
		expect_page(n, page_of(2, i), i);
	for (unsigned i = 1; i < OWN && way.own_dirty; i++) {
		expect_page(n, page_of(1, OWN + i), 3000 + i);
		if (!way.full)
			expect_page(n, page_of(1, i), 2000 + i);
	}
	if (rounds && !way.waits)
		expect_page(n, page_of(1, 0), 4000 + rounds - 1);
	OK(life_end(n));
	ended++;
}

static void node_make(struct world *w, unsigned i)
{
	struct node *n = &w->node[i];

	n->w = w;
	n->id = i + 1;
	snprintf(n->disk, sizeof(n->disk), "disk%u", n->id);
	disk_format(n);
}

static void life_spawn(struct node *n, void (*life)(void *))
{
	n->sim = rt_sim_node_new(n->disk);
	OK(rt_sim_spawn_on(n->sim, "node", life, n));
}

static int run_away(void *arg)
{
	struct world *w = (struct world *)arg;
	struct node *lost = &w->node[1];

	look_begin(LOOK_EVERY);
	for (unsigned i = 0; i < NODES; i++)
		node_make(w, i);
	life_spawn(&w->node[0], leaving_life);
	life_spawn(lost, lost_life);
	while (atomic_load(&phase) < 2)
		rt_sleep_ns(1000);
	rt_sim_node_kill(lost->sim);
	lives[2] = (struct life){0};
	HOLDS(!rt_sim_node_wait(w->node[0].sim));
	for (unsigned i = 0; i < NODES; i++)
		life_spawn(&w->node[i], later_life);
	for (unsigned i = 0; i < NODES; i++)
		HOLDS(!rt_sim_node_wait(w->node[i].sim));
	EQ(ended, 1 + NODES);
	HOLDS(said);
	return 0;
}

/* ---- all leave ------------------------------------------------------------------------------ */

static _Atomic uint32_t ready;

/* All are at work until all are ready to leave. */
static void await_all(void)
{
	uint32_t seen = atomic_fetch_add(&ready, 1) + 1;

	rt_wake(&ready, INT32_MAX);
	for (; seen % NODES; seen = atomic_load(&ready))
		rt_wait(&ready, seen, RT_FOREVER);
}

/* Overwrites much of the other's shard: images that the other logs as it persists them. */
static void together_life(void *arg)
{
	struct node *n = (struct node *)arg;
	unsigned other = NODES + 1 - n->id;
	uint64_t told;

	life_begin(n);
	HOLDS(store_writes_tear(n->v->store));
	for (unsigned i = 0; i < MUCH; i++)
		make_page(n, page_of(other, i), i);
	OK(cache_checkpoint(n->v->cache));
	for (unsigned i = 0; i < MUCH && n->id >= first_busy; i++)
		write_page(n, page_of(other, i), 5000 + i);
	await_all();
	rt_sleep_ns(pick(3) ? 0 : rt_random() % SECOND);
	told = rt_now_ns();
	OK(life_end(n));
	HOLDS(rt_now_ns() - told < ENDS_NS);
	ended++;
}

static void later_together_life(void *arg)
{
	struct node *n = (struct node *)arg;

	life_begin(n);
	for (unsigned i = 0; i < MUCH; i++)
		expect_page(n, page_of(n->id, i),
			(NODES + 1 - n->id >= first_busy ? 5000 : 0) + i);
	OK(life_end(n));
	ended++;
}

static int run_together(void *arg)
{
	struct world *w = (struct world *)arg;
	void (*life[])(void *) = {together_life, later_together_life};

	atomic_store(&ready, 0);
	look_begin(LOOK_EVERY);
	for (unsigned i = 0; i < NODES; i++)
		node_make(w, i);
	for (unsigned k = 0; k < ARRAY_SIZE(life); k++) {
		for (unsigned i = 0; i < NODES; i++)
			life_spawn(&w->node[i], life[k]);
		for (unsigned i = 0; i < NODES; i++)
			HOLDS(!rt_sim_node_wait(w->node[i].sim));
	}
	EQ(ended, 2 * NODES);
	return 0;
}

/* ---- a home that is not open yet ------------------------------------------------------------- */

/* Pages of node 1, which is started again meanwhile, and waits to meet node 3. */
static void shipping_life(void *arg)
{
	struct node *n = (struct node *)arg;
	uint64_t since;

	life_begin(n);
	for (unsigned i = 0; i < MUCH; i++)
		make_page(n, page_of(1, i), i);
	OK(cache_checkpoint(n->v->cache));
	for (unsigned i = 0; i < MUCH; i++)
		write_page(n, page_of(1, i), 5000 + i);
	go_on_to(1);
	come_to(2);
	since = rt_now_ns();
	OK(cache_checkpoint(n->v->cache));
	HOLDS(rt_now_ns() - since < ENDS_NS);
	go_on_to(3);
	OK(life_end(n));
	ended++;
}

/* The first start is killed; so it is with node 3. */
static void plain_life(void *arg)
{
	struct node *n = (struct node *)arg;

	life_begin(n);
	come_to(3);
	OK(life_end(n));
	ended++;
}

static int run_opening(void *arg)
{
	struct world *w = (struct world *)arg;

	look_begin(LOOK_EVERY);
	for (unsigned i = 0; i < w->nodes; i++) {
		node_make(w, i);
		life_spawn(&w->node[i], i == 1 ? shipping_life : plain_life);
	}
	while (atomic_load(&phase) < 1)
		rt_sleep_ns(1000);
	for (unsigned i = 0; i < w->nodes; i += 2) {
		rt_sim_node_kill(w->node[i].sim);
		lives[i + 1] = (struct life){0};
	}
	life_spawn(&w->node[0], plain_life);
	rt_sleep_ns(SECOND);
	go_on_to(2);
	while (atomic_load(&phase) < 3)
		rt_sleep_ns(SECOND);
	life_spawn(&w->node[2], plain_life);
	for (unsigned i = 0; i < w->nodes; i++)
		HOLDS(!rt_sim_node_wait(w->node[i].sim));
	EQ(ended, w->nodes);
	return 0;
}

/* ---- runs ------------------------------------------------------------------------------------ */

static void run_seeds(int (*fn)(void *), unsigned nodes)
{
	struct rt_sim_options o = {.time_limit_ns = 120 * SECOND};

	sink_before = weft_log_sink;
	weft_log_sink = note_line;
	for (uint64_t seed = seeds_first(), seeds = seeds_count(LEAVE_SEEDS); seeds--;
		seed++) {
		struct world *w = (struct world *)calloc(1, sizeof(*w));

		assert_non_null(w);
		w->nodes = nodes;
		memset(lives, 0, sizeof(lives));
		atomic_store(&phase, 0);
		rounds = ended = said = 0;
		assert_int_equal(rt_sim_run(seed, &o, fn, w), 0);
		free(w);
	}
	weft_log_sink = sink_before;
	memset(&way, 0, sizeof(way));
}

static void what_is_owed_stays_in_a_log_that_is_not_clean(void **state)
{
	run_seeds(run_away, NODES);
	way.own_dirty = way.others_dirty = true;
	run_seeds(run_away, NODES);
}

static void who_is_unmounted_leaves_it_there_too(void **state)
{
	way.no_signal = true;
	run_seeds(run_away, NODES);
	way.no_signal = way.own_dirty = way.others_dirty = true;
	run_seeds(run_away, NODES);
	way.no_signal = way.full = true;
	run_seeds(run_away, NODES);
}

static void who_has_a_full_log_ends_without_the_home(void **state)
{
	way.full = true;
	run_seeds(run_away, NODES);
	way.full = way.others_dirty = true;
	run_seeds(run_away, NODES);
}

static void so_does_who_has_pages_of_its_own_to_write(void **state)
{
	way.full = way.own_dirty = true;
	run_seeds(run_away, NODES);
}

static void who_waits_for_room_is_told_that_there_is_none(void **state)
{
	way.full = way.waits = true;
	run_seeds(run_away, NODES);
	way.full = way.waits = way.own_dirty = way.others_dirty = true;
	run_seeds(run_away, NODES);
}

static void those_who_leave_together_persist_for_each_other(void **state)
{
	for (first_busy = 1; first_busy <= NODES; first_busy++)
		run_seeds(run_together, NODES);
}

static void a_home_that_is_not_open_yet_persists_for_others(void **state)
{
	run_seeds(run_opening, NODES + 1);
}

static void file_make(const char *name, const char *text, mode_t mode)
{
	FILE *f = fopen(name, "w");

	assert_non_null(f);
	assert_true(fputs(text, f) >= 0);
	assert_int_equal(fclose(f), 0);
	assert_int_equal(chmod(name, mode), 0);
}

static int setup(void **state)
{
	char key[2 * CLUSTER_KEY_BYTES + 2];
	char three[sizeof(cluster_text) + sizeof(third_text)];

	assert_non_null(mkdtemp(folder));
	snprintf(cluster_name_of, sizeof(cluster_name_of), "%s/v.cluster", folder);
	snprintf(key_name_of, sizeof(key_name_of), "%s/v.key", folder);
	memset(key, 'a', sizeof(key));
	strcpy(key + 2 * CLUSTER_KEY_BYTES, "\n");
	file_make(cluster_name_of, cluster_text, 0644);
	snprintf(three_name_of, sizeof(three_name_of), "%s/three.cluster", folder);
	snprintf(three, sizeof(three), "%s%s", cluster_text, third_text);
	file_make(three_name_of, three, 0644);
	file_make(key_name_of, key, 0600);
	return 0;
}

static int teardown(void **state)
{
	unlink(cluster_name_of);
	unlink(three_name_of);
	unlink(key_name_of);
	rmdir(folder);
	return 0;
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_is_owed_stays_in_a_log_that_is_not_clean),
		cmocka_unit_test(who_is_unmounted_leaves_it_there_too),
		cmocka_unit_test(who_has_a_full_log_ends_without_the_home),
		cmocka_unit_test(so_does_who_has_pages_of_its_own_to_write),
		cmocka_unit_test(those_who_leave_together_persist_for_each_other),
		cmocka_unit_test(a_home_that_is_not_open_yet_persists_for_others),
		cmocka_unit_test(who_waits_for_room_is_told_that_there_is_none),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, setup, teardown);
}
