/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Room of a volume that several nodes share: who has none gets that of the others, nobody
 * is told that there is none while there is, and statfs says the same on all. Leaves that one
 * node has filled and another has emptied take no room.
 *
 *   WEFT_SIM_SEED=7 build/tests/sim/cluster_space_test     one seed
 *   WEFT_SIM_SEEDS=1000                                    so many of each kind
 */
#include "tests/sim/cluster_world.h"

#define STORE_BYTES (14ull << 20) /* one group of some thousand pages */
#define CHUNK_PAGES 40u
#define OWN_FILES   6u
/* Kept back for what frees space, and what the tree may lack for a split. */
#define LEFT_MOST (64u + 16u)
#define SPOOLED   500u
/* Each node's part of the tree ends somewhere, and free space is told by counts of earlier moments. */
#define SPOOL_LEFT 60u
/* Longer than answers about room are kept. */
#define STALE_NS 2000000000ull

static uint8_t chunk[CHUNK_PAGES * PAGE_SIZE];
static uint64_t free_at_first;

static struct statvfs room(struct node *n)
{
	struct statvfs s;

	rt_sleep_ns(STALE_NS);
	OK(ops_statfs(n->fs, &s));
	return s;
}

static struct ops_file *open_own(struct node *n, unsigned number, uint64_t *size)
{
	struct ops_file *f;
	struct ops_attr a;
	char text[24];
	int rc;

	snprintf(text, sizeof(text), "own%u-%u", n->id, number);
	rc = ops_create(n->fs, DISK_INO_ROOT, nm(text), &root_user, 0644, O_RDWR, &f, &a);
	if (rc == -ENOSPC)
		return NULL;
	OK(rc);
	*size = a.inode.size;
	return f;
}

static int remove_own(struct node *n, unsigned number)
{
	char text[24];

	snprintf(text, sizeof(text), "own%u-%u", n->id, number);
	return ops_unlink(n->fs, DISK_INO_ROOT, nm(text));
}

/* Pages written; fewer than wanted: there is no room. */
static unsigned append(struct node *n, struct ops_file *f, uint64_t *size, unsigned pages)
{
	uint64_t want = (uint64_t)pages * PAGE_SIZE, done = 0;

	while (done < want) {
		int64_t rc = ops_write(n->fs, f, &root_user, *size, chunk,
			MIN(want - done, sizeof(chunk)), false);

		if (rc == -ENOSPC)
			break;
		HOLDS(rc > 0);
		done += (uint64_t)rc;
		*size += (uint64_t)rc;
	}
	return (unsigned)(done / PAGE_SIZE);
}

/* ---- one fills it all -------------------------------------------------------------------- */

static void fill_all(struct node *n)
{
	uint64_t size = 0, pages = 0, had = room(n).f_bfree;
	struct ops_file *f = open_own(n, 1, &size);
	unsigned done;

	HOLDS(f);
	while ((done = append(n, f, &size, CHUNK_PAGES)) == CHUNK_PAGES)
		pages += done;
	pages += done;
	ops_close(n->fs, f);
	print_message("%" PRIu64 " of %" PRIu64 " pages\n", pages, had);
	HOLDS(room(n).f_bfree <= LEFT_MOST);
	HOLDS(pages + LEFT_MOST >= had);
	EQ(room(n).f_bavail, 0);
}

static void fill_work(struct node *n)
{
	uint64_t size = 0, had = room(n).f_bfree;
	struct ops_file *f = open_own(n, 0, &size);

	/* all hold something ahead of an open file */
	HOLDS(f);
	EQ(append(n, f, &size, 30), 30);
	barrier(n);
	if (n->id == 2)
		fill_all(n);
	barrier(n);
	HOLDS(room(n).f_bfree <= LEFT_MOST);
	barrier(n);
	if (n->id == 2)
		OK(remove_own(n, 1));
	barrier(n);
	/* what was freed is there for all at once */
	if (n->id != 2)
		EQ(append(n, f, &size, 3 * CHUNK_PAGES), 3 * CHUNK_PAGES);
	barrier(n);
	ops_close(n->fs, f);
	OK(remove_own(n, 0));
	barrier(n);
	HOLDS(room(n).f_bfree + LEFT_MOST >= had);
}

static void fill_check(struct node *n)
{
}

/* ---- all of them, near the end ------------------------------------------------------------- */

static void look_for_room(struct node *n, unsigned missing)
{
	struct space_stat s;

	space_stat_all(n->v->space, 0, &s);
	if (s.free_pages <= LEFT_MOST)
		return;
	print_message("node %u: no room for %u pages, and %" PRIu64 " are free\n", n->id,
		missing, s.free_pages);
	abort();
}

static void space_step(struct node *n, struct ops_file *file[OWN_FILES],
	uint64_t size[OWN_FILES], bool alone)
{
	unsigned i = pick(OWN_FILES), want = 1 + pick(10 * CHUNK_PAGES), done = 0;

	if (!file[i])
		file[i] = open_own(n, i, &size[i]);
	if (!file[i])
		return;
	if (size[i] && pick(4) == 0) {
		ops_close(n->fs, file[i]);
		file[i] = NULL;
		OK(remove_own(n, i));
		return;
	}
	while (done < want) {
		unsigned pages = MIN(want - done, CHUNK_PAGES);
		unsigned got = append(n, file[i], &size[i], pages);

		done += got;
		if (got < pages) {
			if (alone)
				look_for_room(n, want - done);
			return;
		}
	}
}

static void steps_work(struct node *n, bool alone)
{
	struct ops_file *file[OWN_FILES] = {NULL};
	uint64_t size[OWN_FILES] = {0};
	uint64_t had = room(n).f_bfree;

	barrier(n);
	for (unsigned i = 0; i < n->w->steps; i++) {
		if (alone)
			rt_mutex_lock(&n->w->turn);
		space_step(n, file, size, alone);
		if (alone)
			rt_mutex_unlock(&n->w->turn);
		rt_sleep_ns(1 + pick(100000));
	}
	barrier(n);
	for (unsigned i = 0; i < OWN_FILES; i++)
		if (file[i]) {
			ops_close(n->fs, file[i]);
			OK(remove_own(n, i));
		}
	barrier(n);
	free_at_first = had;
	HOLDS(room(n).f_bfree + LEFT_MOST >= had);
}

static void turns_work(struct node *n)
{
	steps_work(n, true);
}

static void race_work(struct node *n)
{
	steps_work(n, false);
}

static void steps_check(struct node *n)
{
	struct statvfs s = room(n);

	HOLDS(s.f_bfree + LEFT_MOST >= free_at_first);
	HOLDS(s.f_bfree < s.f_blocks);
	barrier(n);
}

/* ---- a spool ----------------------------------------------------------------------------- */

static struct ops_name spooled_name(char out[24], unsigned i)
{
	snprintf(out, 24, "message-%06u", i);
	return nm(out);
}

static void spool_fill(struct node *n, uint64_t dir, unsigned count)
{
	struct ops_file *f;
	struct ops_attr a;
	char text[24];

	for (unsigned i = 0; i < count; i++) {
		OK(ops_create(n->fs, dir, spooled_name(text, i), &root_user, 0644,
			O_RDWR | O_EXCL, &f, &a));
		ops_close(n->fs, f);
	}
}

static void spool_empty(struct node *n, uint64_t dir, unsigned count)
{
	char text[24];

	for (unsigned i = 0; i < count; i++)
		OK(ops_unlink(n->fs, dir, spooled_name(text, i)));
}

/* One fills it, another empties it; who does which changes. */
static void spool_work(struct node *n)
{
	unsigned nodes = n->w->nodes;
	struct ops_attr a;
	uint64_t had;

	if (n->id == 1)
		mk_dir(n->fs, DISK_INO_ROOT, "spool");
	barrier(n);
	OK(ops_lookup(n->fs, DISK_INO_ROOT, nm("spool"), &a));
	for (unsigned id = 1; id <= nodes; id++) { /* all have inode numbers */
		if (n->id == id) {
			spool_fill(n, a.ino, 1);
			spool_empty(n, a.ino, 1);
		}
		barrier(n);
	}
	had = room(n).f_bfree;
	barrier(n);
	for (unsigned i = 0; i < n->w->steps; i++) {
		unsigned fills = i % nodes,
			 empties = (fills + 1 + i % (nodes - 1)) % nodes;

		if (n->id == fills + 1)
			spool_fill(n, a.ino, SPOOLED);
		barrier(n);
		if (n->id == empties + 1)
			spool_empty(n, a.ino, SPOOLED);
		barrier(n);
	}
	HOLDS(room(n).f_bfree + SPOOL_LEFT >= had);
}

/* ---- one that is killed --------------------------------------------------------------------- */

static _Atomic unsigned filled; /* pages, by the life before */
static _Atomic bool refilled;

/* Has the room of all in a file that is unlinked and open. Ends only by a kill. */
static void filling_life(void *arg)
{
	struct node *n = (struct node *)arg;
	struct ops_file *f;
	uint64_t size = 0;
	unsigned pages = 0, done;

	crash_open(n);
	f = open_own(n, 0, &size);
	HOLDS(f);
	while ((done = append(n, f, &size, CHUNK_PAGES)) == CHUNK_PAGES)
		pages += done;
	OK(remove_own(n, 0));
	OK(log_flush(n->v->log, log_end(n->v->log)));
	atomic_store(&filled, pages);
	for (;;)
		rt_sleep_ns(STALE_NS);
}

/* It comes back, and at once needs what nobody has open any more. */
static void refilling_life(void *arg)
{
	struct node *n = (struct node *)arg;
	unsigned pages = atomic_load(&filled) / 2;
	struct ops_file *f;
	uint64_t size = 0;

	crash_open(n);
	f = open_own(n, 1, &size);
	HOLDS(f);
	EQ(append(n, f, &size, pages), pages);
	ops_close(n->fs, f);
	atomic_store(&refilled, true);
	crash_close(n);
}

static void other_life(void *arg)
{
	struct node *n = (struct node *)arg;

	crash_open(n);
	while (!atomic_load(&refilled))
		rt_sleep_ns(STALE_NS / 100);
	crash_close(n);
}

static int run_killed(void *arg)
{
	struct world *w = (struct world *)arg;
	struct node *killed = &w->node[0];

	atomic_store(&filled, 0);
	atomic_store(&refilled, false);
	cluster_format(w);
	for (unsigned i = 0; i < w->nodes; i++) {
		struct node *n = &w->node[i];

		n->sim = rt_sim_node_new(n->disk);
		OK(rt_sim_spawn_on(n->sim, "node", i ? other_life : filling_life, n));
	}
	while (!atomic_load(&filled))
		rt_sleep_ns(STALE_NS);
	killed->coherence = NULL;
	rt_sim_node_kill(killed->sim);
	killed->sim = rt_sim_node_new(killed->disk);
	OK(rt_sim_spawn_on(killed->sim, "node", refilling_life, killed));
	for (unsigned i = 0; i < w->nodes; i++)
		HOLDS(!rt_sim_node_wait(w->node[i].sim));
	world_stopped();
	HOLDS(!stores_check(w));
	world_over();
	return 0;
}

/* ---- the runner ---------------------------------------------------------------------------- */

static void run_all(unsigned nodes, unsigned steps, int (*run)(void *world),
	void (*work)(struct node *), void (*check)(struct node *))
{
	struct world *w = (struct world *)calloc(1, sizeof(*w));
	uint64_t seeds = MAX(seeds_count(SEEDS) / 4, 1ull);
	struct rt_sim_options o = {.time_limit_ns = 600ull * 1000000000};

	assert_non_null(w);
	for (uint64_t seed = seeds_first(); seeds--; seed++) {
		memset(w, 0, sizeof(*w));
		w->nodes = nodes;
		w->steps = steps;
		w->disk_bytes = STORE_BYTES;
		w->work = work;
		w->check = check;
		assert_int_equal(rt_sim_run(seed, &o, run, w), 0);
	}
	free(w);
}

static void run_seeds(unsigned nodes, unsigned steps, void (*work)(struct node *),
	void (*check)(struct node *))
{
	run_all(nodes, steps, run_world, work, check);
}

static void one_node_has_the_room_of_all(void **state)
{
	run_seeds(3, 0, fill_work, fill_check);
}

static void nobody_lacks_room_while_there_is_some(void **state)
{
	run_seeds(2, 40, turns_work, steps_check);
	run_seeds(3, 30, turns_work, steps_check);
}

static void nodes_fill_and_free_at_the_same_time(void **state)
{
	run_seeds(2, 40, race_work, steps_check);
	run_seeds(3, 30, race_work, steps_check);
}

static void a_spool_takes_no_room_when_it_is_empty(void **state)
{
	run_seeds(2, 8, spool_work, fill_check);
	run_seeds(3, 12, spool_work, fill_check);
}

static void what_a_killed_node_had_open_is_room_when_it_is_back(void **state)
{
	run_all(2, 0, run_killed, NULL, NULL);
	run_all(3, 0, run_killed, NULL, NULL);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(one_node_has_the_room_of_all),
		cmocka_unit_test(nobody_lacks_room_while_there_is_some),
		cmocka_unit_test(nodes_fill_and_free_at_the_same_time),
		cmocka_unit_test(a_spool_takes_no_room_when_it_is_empty),
		cmocka_unit_test(what_a_killed_node_had_open_is_room_when_it_is_back),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
