/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Locks of several nodes: nobody has what is in conflict; who waits is woken, by whatever
 * node lets go, by a close, by a cancel before it; a circle over nodes and files is broken;
 * what a node has left that has started anew is void, and who waits for it goes on. A
 * wake-up that is lost leaves tasks that wait for ever, which the simulator reports.
 *
 *   WEFT_SIM_SEED=7 build/tests/sim/cluster_locks_test     one seed
 *   WEFT_SIM_SEEDS=1000                                    so many of each kind
 */
#include "tests/sim/cluster_world.h"
#include "tests/unit/locks_fixture.h"

#define PLACES 5 /* to be locked in a file; the last one is the rest of it */
#define TASKS  3 /* of a node */
#define FILES  3

static struct {
	uint64_t ino[FILES];
	int inside[FILES][2][PLACES]; /* by kind; -1: one alone; else how many */
	unsigned granted, waited, cancelled, deadlocks, closed;
} all;

struct locker {
	struct node *n;
	unsigned number; /* an owner on its node */
	struct rt_task *task;
	void (*work)(struct locker *l);
};

static void locker_main(void *arg)
{
	struct locker *l = (struct locker *)arg;

	l->work(l);
}

/* The files, and so many tasks on each node that do the work. */
static void work_with(struct node *n, void (*work)(struct locker *l))
{
	struct locker l[TASKS];

	if (n->id == 1) {
		memset(&all, 0, sizeof(all));
		for (unsigned i = 0; i < FILES; i++) {
			char name[8];

			snprintf(name, sizeof(name), "f%u", i);
			all.ino[i] = mk_file(n->fs, DISK_INO_ROOT, name);
		}
	}
	barrier(n);
	for (unsigned i = 0; i < TASKS; i++) {
		l[i] = (struct locker){.n = n, .number = i + 1, .work = work};
		OK(rt_task_spawn(&l[i].task, "locker", locker_main, &l[i]));
	}
	for (unsigned i = 0; i < TASKS; i++)
		rt_task_join(l[i].task);
	barrier(n);
	for (unsigned i = 0; i < FILES; i++)
		EQ(records(n->fs, all.ino[i]), 0);
	EQ(n->fs->locks->owners, 0);
	barrier(n);
}

/* ---- nobody has what is in conflict -------------------------------------------------------- */

static uint64_t last_byte(unsigned place)
{
	return place == PLACES - 1 ? OPS_LOCK_END : place;
}

static int *inside(unsigned file, const struct ops_lock *l)
{
	return all.inside[file][l->kind == OPS_LOCK_FLOCK];
}

/* From when it has the lock until before it lets go. */
static void enter(unsigned file, const struct ops_lock *l, unsigned first, unsigned end)
{
	int *in = inside(file, l);

	for (unsigned i = first; i < end; i++) {
		HOLDS(l->type == OPS_LOCK_EXCLUSIVE ? in[i] == 0 : in[i] >= 0);
		in[i] = l->type == OPS_LOCK_EXCLUSIVE ? -1 : in[i] + 1;
	}
	all.granted++;
}

static void leave(unsigned file, const struct ops_lock *l, unsigned first, unsigned end)
{
	int *in = inside(file, l);

	for (unsigned i = first; i < end; i++)
		in[i] = l->type == OPS_LOCK_EXCLUSIVE ? 0 : in[i] - 1;
}

/* As whoever asks does: tries, waits, or waits and gives up. */
static int ask(struct node *n, struct ops_file *f, struct ops_lock l)
{
	struct waiter w;
	int rc;

	if (pick(4) == 0)
		return set(n->fs, f, l);
	rc = start(n->fs, f, &w, l);
	if (rc != -EINPROGRESS)
		return rc;
	all.waited++;
	if (pick(3) == 0 && !is_over(&w, pick(pick(2) ? 3000000 : 300000000)))
		ops_lock_cancel(n->fs, &w.wait);
	return finish(&w);
}

static void let_go(struct locker *l, struct ops_file *f, struct ops_lock lock)
{
	struct fs *fs = l->n->fs;

	if (pick(3) == 0) { /* the process has closed the file, or was the last to */
		all.closed++;
		if (lock.kind == OPS_LOCK_POSIX)
			OK(ops_flush(fs, f, lock.owner));
		return;
	}
	lock.type = OPS_LOCK_NONE;
	OK(set(fs, f, lock));
}

static void exclusion_step(struct locker *l)
{
	unsigned file = pick(FILES), a = pick(PLACES), b = pick(PLACES);
	unsigned first = MIN(a, b), end = MAX(a, b) + 1;
	struct ops_file *f = open_file(l->n->fs, all.ino[file]);
	enum ops_lock_type type = pick(2) ? OPS_LOCK_EXCLUSIVE : OPS_LOCK_SHARED;
	struct ops_lock lock = posix(l->number, type, first, last_byte(end - 1));
	int rc;

	if (pick(3) == 0) {
		lock = whole(l->number, type);
		first = 0;
		end = PLACES;
	}
	rc = ask(l->n, f, lock);
	all.cancelled += rc == -EINTR;
	if (rc == 0) {
		enter(file, &lock, first, end);
		rt_sleep_ns(pick(pick(2) ? 100 : 2000000));
		leave(file, &lock, first, end);
		let_go(l, f, lock);
	} else {
		HOLDS(rc == -EAGAIN || rc == -EINTR);
	}
	ops_close(l->n->fs, f);
}

static void exclusion(struct locker *l)
{
	for (unsigned i = 0; i < l->n->w->steps; i++)
		exclusion_step(l);
}

static void exclusion_work(struct node *n)
{
	work_with(n, exclusion);
	HOLDS(all.granted > n->w->steps && all.waited > 0);
}

static void nothing(struct locker *l)
{
}

/* The same while links break: what was told over them is told again. */
static _Atomic bool cutting;

static void cutter(void *arg)
{
	struct node *n = (struct node *)arg;

	while (atomic_load(&cutting)) {
		unsigned from = pick(n->w->nodes), to = pick(n->w->nodes);

		rt_sleep_ns(pick(30000000));
		if (from != to && atomic_load(&cutting))
			rt_sim_net_cut(n->w->node[from].sim, n->w->node[to].sim);
	}
}

static void cut_work(struct node *n)
{
	struct rt_task *task = NULL;

	barrier(n);
	if (n->id == 1) {
		atomic_store(&cutting, true);
		OK(rt_task_spawn(&task, "cutter", cutter, n));
	}
	exclusion_work(n);
	atomic_store(&cutting, false);
	if (task)
		rt_task_join(task);
	barrier(n);
}

/*
 * One node lets go of what another waits for while the two do not hear each other. That takes
 * nothing from the other node, so it ends at once, and the wake-up cannot be told then. Nobody
 * else comes by who would wake the waiter.
 */
static void let_go_apart(struct node *n, struct node *from, struct ops_file *f)
{
	struct ops_lock lock = posix(1, OPS_LOCK_EXCLUSIVE, 0, 0);
	struct ops_lock aside = posix(1, OPS_LOCK_EXCLUSIVE, 9, 9);

	while (records(n->fs, all.ino[0]) < 2) /* the waiter's is one */
		rt_sleep_ns(100000);
	OK(set(n->fs, f, aside)); /* its leaf is this node's by then */
	aside.type = lock.type = OPS_LOCK_NONE;
	OK(set(n->fs, f, aside));
	rt_sim_net_block(n->sim, from->sim, true);
	rt_sim_net_block(from->sim, n->sim, true);
	rt_sim_net_cut(n->sim, from->sim);
	rt_sleep_ns(5000000);
	OK(set(n->fs, f, lock));
	rt_sleep_ns(pick(2) ? 0 : pick(200000000));
	rt_sim_net_block(n->sim, from->sim, false);
	rt_sim_net_block(from->sim, n->sim, false);
}

static void apart_round(struct node *n, unsigned a, unsigned b)
{
	struct ops_file *f = open_file(n->fs, all.ino[0]);
	struct ops_lock lock = posix(1, OPS_LOCK_EXCLUSIVE, 0, 0);
	struct waiter w;

	if (n->id == a)
		OK(set(n->fs, f, lock));
	barrier(n);
	if (n->id == b)
		EQ(start(n->fs, f, &w, lock), -EINPROGRESS);
	barrier(n);
	if (n->id == a)
		let_go_apart(n, &n->w->node[b - 1], f);
	if (n->id == b) {
		HOLDS(is_over(&w, 20000000000));
		OK(finish(&w));
		lock.type = OPS_LOCK_NONE;
		OK(set(n->fs, f, lock));
	}
	barrier(n);
	EQ(records(n->fs, all.ino[0]), 0);
	ops_close(n->fs, f);
	barrier(n);
}

static void apart_work(struct node *n)
{
	work_with(n, nothing);
	for (unsigned i = 0; i < n->w->steps; i++) {
		unsigned a = i % n->w->nodes,
			 by = 1 + i / n->w->nodes % (n->w->nodes - 1);

		apart_round(n, a + 1, (a + by) % n->w->nodes + 1);
	}
}

/* ---- circles ---------------------------------------------------------------------------------- */

/* Two places in any order, of any files; who is told of a circle starts over. */
static void circles_step(struct locker *l)
{
	struct fs *fs = l->n->fs;
	unsigned file[2] = {pick(FILES), pick(FILES)}, place[2] = {pick(2), pick(2)};
	struct ops_file *f[2] = {
		open_file(fs, all.ino[file[0]]), open_file(fs, all.ino[file[1]])};
	unsigned got = 0;

	if (file[0] == file[1] && place[0] == place[1])
		place[1] = 1 - place[1];
	while (got < 2) {
		struct ops_lock lock =
			posix(l->number, OPS_LOCK_EXCLUSIVE, place[got], place[got]);
		int rc = lock_waiting(fs, f[got], lock);

		if (rc == 0) {
			enter(file[got], &lock, place[got], place[got] + 1);
			got++;
			rt_sleep_ns(pick(1000000));
			continue;
		}
		EQ(rc, -EDEADLK);
		EQ(got, 1);
		all.deadlocks++;
		lock = posix(l->number, OPS_LOCK_EXCLUSIVE, place[0], place[0]);
		leave(file[0], &lock, place[0], place[0] + 1);
		OK(ops_flush(fs, f[0], l->number));
		got = 0;
		rt_sleep_ns(pick(20000000));
	}
	for (unsigned i = 0; i < 2; i++) {
		struct ops_lock lock =
			posix(l->number, OPS_LOCK_EXCLUSIVE, place[i], place[i]);

		leave(file[i], &lock, place[i], place[i] + 1);
	}
	for (unsigned i = 0; i < 2; i++) {
		OK(ops_flush(fs, f[i], l->number));
		ops_close(fs, f[i]);
	}
}

static void circles(struct locker *l)
{
	for (unsigned i = 0; i < l->n->w->steps / 2; i++)
		circles_step(l);
}

static void circles_work(struct node *n)
{
	work_with(n, circles);
}

/* ---- nodes that have gone ---------------------------------------------------------------------- */

/* What nobody frees: a lock that no owner here is known to have. */
static void restart_work(struct node *n)
{
	struct ops_lock lock = posix(77, OPS_LOCK_EXCLUSIVE, n->id, n->id);
	struct disk_lock r;
	struct ops_lock_held held;
	bool behind;

	work_with(n, nothing);
	r = lock_record(n->fs->locks, &lock, 0);
	OK(lock_try(n->fs, all.ino[0], &r, false, &behind, &held));
	barrier(n);
	EQ(records(n->fs, all.ino[0]), n->w->nodes);
}

/* The first time they are held still; the second time, after a start, they are void. */
static void restart_check(struct node *n)
{
	struct ops_file *f = open_file(n->fs, all.ino[0]);
	struct ops_lock lock = posix(1, OPS_LOCK_EXCLUSIVE, 0, OPS_LOCK_END);
	bool again = all.waited > 0;
	struct waiter w;
	int rc;

	barrier(n);
	rc = start(n->fs, f, &w, lock);
	if (!again) {
		EQ(rc, -EINPROGRESS);
		HOLDS(!is_over(&w, 500000000));
		ops_lock_cancel(n->fs, &w.wait);
		EQ(finish(&w), -EINTR);
		barrier(n);
		EQ(records(n->fs, all.ino[0]), n->w->nodes);
	} else {
		OK(rc == -EINPROGRESS ? finish(&w) : rc);
		OK(ops_flush(n->fs, f, 1));
		barrier(n);
		EQ(records(n->fs, all.ino[0]), 0);
	}
	barrier(n);
	all.waited = 1;
	ops_close(n->fs, f);
}

/* ---- the runner -------------------------------------------------------------------------- */

static void check_nothing(struct node *n)
{
}

static void run_seeds(unsigned nodes, unsigned steps, void (*work)(struct node *),
	void (*check)(struct node *))
{
	struct world *w = (struct world *)calloc(1, sizeof(*w));
	uint64_t seeds = seeds_count(SEEDS);
	struct rt_sim_options o = {.time_limit_ns = 600ull * 1000000000};
	unsigned deadlocks = 0, cancelled = 0, closed = 0;

	assert_non_null(w);
	for (uint64_t seed = seeds_first(); seeds--; seed++) {
		memset(w, 0, sizeof(*w));
		w->nodes = nodes;
		w->steps = steps;
		w->work = work;
		w->check = check;
		assert_int_equal(rt_sim_run(seed, &o, run_world, w), 0);
		deadlocks += all.deadlocks;
		cancelled += all.cancelled;
		closed += all.closed;
	}
	print_message("%u circles, %u cancelled, %u ended by a close\n", deadlocks,
		cancelled, closed);
	assert_true(work != circles_work || deadlocks > 0);
	assert_true(work != exclusion_work || (cancelled > 0 && closed > 0));
	free(w);
}

static void nodes_whose_links_break_exclude_each_other(void **state)
{
	run_seeds(3, 25, cut_work, check_nothing);
}

static void who_waits_is_told_when_the_link_is_back(void **state)
{
	run_seeds(2, 4, apart_work, check_nothing);
	run_seeds(3, 6, apart_work, check_nothing);
}

static void two_nodes_exclude_each_other(void **state)
{
	run_seeds(2, 40, exclusion_work, check_nothing);
}

static void three_nodes_exclude_each_other(void **state)
{
	run_seeds(3, 25, exclusion_work, check_nothing);
}

static void circles_of_two_nodes_are_broken(void **state)
{
	run_seeds(2, 20, circles_work, check_nothing);
}

static void circles_of_three_nodes_are_broken(void **state)
{
	run_seeds(3, 16, circles_work, check_nothing);
}

static void what_a_gone_node_had_is_void(void **state)
{
	run_seeds(2, 1, restart_work, restart_check);
	run_seeds(3, 1, restart_work, restart_check);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(two_nodes_exclude_each_other),
		cmocka_unit_test(three_nodes_exclude_each_other),
		cmocka_unit_test(nodes_whose_links_break_exclude_each_other),
		cmocka_unit_test(who_waits_is_told_when_the_link_is_back),
		cmocka_unit_test(circles_of_two_nodes_are_broken),
		cmocka_unit_test(circles_of_three_nodes_are_broken),
		cmocka_unit_test(what_a_gone_node_had_is_void),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
