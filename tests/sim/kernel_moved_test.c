/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A directory that one node moves follows in the kernel of another, which has it
 * (docs/nodes/names.md, "Directories that move"): before attributes of it are answered, and before
 * its old name is said to be absent. The kernel is a model that has one directory, and moves it
 * when the daemon looks at where it is; not each time.
 *
 *   WEFT_SIM_SEED=7 build/tests/sim/kernel_moved_test      one seed
 */
#include "tests/sim/cluster_world.h"

#define ROUNDS 24
#define OWN    99u /* a thread of the daemon */
#define ASKER  7u

static uint64_t parents[2], job;
static char name[8]; /* of the directory, in parents[at] */
static unsigned at;

static struct {
	struct node *n;
	uint64_t dir;
	char name[8];
	unsigned task;  /* of the program */
	unsigned looks; /* on its behalf */
	unsigned busy;
	bool always_busy;
} kernel;

static int on_look(void *owner, const struct ops_attr *dir, struct ops_name n)
{
	struct ops_attr a;

	(void)owner;
	kernel.looks += rt_task_index() == kernel.task;
	rt_sleep_ns(pick(100000));
	if (kernel.always_busy || pick(3) == 0) {
		kernel.busy++;
		return -ESTALE;
	}
	if (ops_lookup(kernel.n->fs, dir->ino, n, &a) || a.ino != job)
		return -ENOENT;
	kernel.dir = dir->ino;
	snprintf(kernel.name, sizeof(kernel.name), "%.*s", (int)n.len, n.bytes);
	return 0;
}

static bool on_is_own(void *owner, uint32_t thread)
{
	(void)owner;
	return thread == OWN;
}

static bool on_drop_attributes(void *owner, uint64_t ino)
{
	(void)owner;
	(void)ino;
	return true;
}

static void on_expire_name(void *owner, uint64_t dir, struct ops_name n)
{
	(void)owner;
	(void)dir;
	(void)n;
	rt_sleep_ns(pick(20000));
}

static enum kcache_walk on_walks(void *owner, uint32_t thread)
{
	(void)owner;
	(void)thread;
	return KCACHE_WALK_INTO;
}

static bool on_gone_on(void *owner, uint32_t thread, struct kcache_seen *seen)
{
	(void)owner;
	(void)thread;
	(void)seen;
	return true;
}

static const struct kcache_ops moved_ops = {
	.drop_attributes = on_drop_attributes,
	.expire_name = on_expire_name,
	.walks = on_walks,
	.look = on_look,
	.is_own = on_is_own,
	.returned = on_gone_on,
};

/* To the other parent, or to another name in the same. */
static void move(struct node *n, unsigned round)
{
	unsigned to = pick(2);
	char next[8];

	snprintf(next, sizeof(next), "n%u", round);
	OK(ops_rename(n->fs, parents[at], nm(name), parents[to], nm(next), 0));
	at = to;
	memcpy(name, next, sizeof(name));
}

/* A walk into the directory in which the kernel has it asks for that one's attributes first. */
static void old_name_is_asked_for(struct node *n)
{
	struct ops_attr a;
	bool keep;

	OK(ops_getattr_kept(n->fs, kernel.dir, ASKER, &a, &keep));
	EQ(kernel.dir, parents[at]);
	EQ(strcmp(kernel.name, name), 0);
}

static void attributes_are_asked_for(struct node *n)
{
	struct ops_attr a;
	bool keep;

	OK(ops_getattr_kept(n->fs, job, ASKER, &a, &keep));
	EQ(kernel.dir, parents[at]);
}

/* What the daemon's own look asks moves nothing: it would wait for itself. */
static void own_threads_do_not_look(struct node *n)
{
	unsigned looks = kernel.looks;
	struct ops_attr a;
	bool keep;

	OK(ops_getattr_kept(n->fs, job, OWN, &a, &keep));
	OK(ops_getattr_kept(n->fs, kernel.dir, OWN, &a, &keep));
	EQ(kernel.looks, looks);
}

static void look_for_it(struct node *n)
{
	if (pick(4) == 0)
		own_threads_do_not_look(n);
	if (pick(2))
		attributes_are_asked_for(n);
	else
		old_name_is_asked_for(n);
}

/* Nobody walks there: a moment after its name was dropped the kernel has moved it all the same. */
static void it_follows_by_itself(struct node *n)
{
	for (unsigned i = 0; i < 1000 && strcmp(kernel.name, name) != 0; i++)
		rt_sleep_ns(1000000);
	EQ(strcmp(kernel.name, name), 0);
	EQ(kernel.dir, parents[at]);
}

/* The kernel keeps the name again, so that it will be dropped. */
static void keep_name(struct node *n)
{
	struct kcache_looked looked;
	struct kcache_named named;
	struct ops_attr a;

	for (unsigned i = 0; i < 100; i++) {
		OK(ops_lookup_kept(n->fs, parents[at], nm(name), &a, &looked));
		if (kcache_named(
			    fs_kcache(n->fs), parents[at], ASKER, &a, &looked, &named)) {
			kcache_named_told(fs_kcache(n->fs), &named, true);
			if (named.name)
				return;
		}
		rt_sleep_ns(1000000);
	}
	HOLDS(false);
}

/* Somebody has a lock all the time: the answer comes. Then it is removed: nobody looks for it. */
static void the_answer_comes_in_any_case(struct node *n)
{
	uint64_t dir = kernel.dir;
	struct ops_attr a;
	unsigned looks;
	bool keep;

	keep_name(n);
	kernel.always_busy = true;
	barrier(n);
	barrier(n);
	kernel.busy = 0;
	OK(ops_getattr_kept(n->fs, dir, ASKER, &a, &keep));
	HOLDS(kernel.busy > 1 && !keep);
	kernel.always_busy = false;
	barrier(n);
	barrier(n);
	OK(ops_getattr_kept(n->fs, dir, ASKER, &a, &keep));
	looks = kernel.looks;
	OK(ops_getattr_kept(n->fs, dir, ASKER, &a, &keep));
	EQ(kernel.looks, looks);
}

static void moved_work(struct node *n)
{
	if (n->id == 1) {
		parents[0] = mk_dir(n->fs, DISK_INO_ROOT, "p0");
		parents[1] = mk_dir(n->fs, DISK_INO_ROOT, "p1");
		job = mk_dir(n->fs, parents[0], "n");
		strcpy(name, "n");
		at = 0;
	}
	barrier(n);
	if (n->id == 2) {
		memset(&kernel, 0, sizeof(kernel));
		kernel.n = n;
		kernel.task = rt_task_index();
		kernel.dir = parents[0];
		strcpy(kernel.name, "n");
		OK(fs_kernel_start(n->fs, &moved_ops, n, NULL));
		kcache_dir_placed(
			fs_kcache(n->fs), job, parents[0], nm("n"), false, true);
	}
	for (unsigned i = 0; i < ROUNDS; i++) {
		if (n->id == 2)
			keep_name(n);
		barrier(n);
		if (n->id == 1)
			move(n, i);
		barrier(n);
		if (n->id != 2)
			continue;
		if (i % 4 == 3)
			it_follows_by_itself(n);
		else
			look_for_it(n);
	}
	if (n->id == 2) {
		the_answer_comes_in_any_case(n);
		fs_kernel_stop(n->fs);
	} else {
		barrier(n);
		move(n, ROUNDS);
		barrier(n);
		barrier(n);
		OK(ops_rmdir(n->fs, parents[at], nm(name)));
		barrier(n);
	}
	barrier(n);
}

static void moved_check(struct node *n)
{
}

static void a_directory_follows_in_the_kernel(void **state)
{
	struct world *w = (struct world *)calloc(1, sizeof(*w));
	struct rt_sim_options o = {.time_limit_ns = 600ull * 1000000000};

	assert_true(w);
	for (uint64_t seed = seeds_first(), seeds = seeds_count(SEEDS); seeds--; seed++) {
		memset(w, 0, sizeof(*w));
		w->nodes = 2;
		w->work = moved_work;
		w->check = moved_check;
		assert_int_equal(rt_sim_run(seed, &o, run_world, w), 0);
	}
	free(w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_directory_follows_in_the_kernel),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
