/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Nodes that lose their power while all make, write and read files on one volume, and come
 * back. What was fsynced, and what a node has written that has not crashed since, is there
 * for all; nobody sees anything that was not written; operations of others wait, and go on;
 * in the end fsck finds nothing.
 *
 *   WEFT_SIM_SEED=7 build/tests/sim/cluster_crash_test     one seed
 *   WEFT_SIM_SEEDS=1000                                    so many
 */
#define LOG_BYTES (16ull << 20)
#include "tests/sim/cluster_world.h"

#define TASKS         2u
#define FILES         24u
#define PAGES         6u /* of a file */
#define CRASHES       4u
#define CRASHES_SEEDS 5u

/* A file's pages are all of one generation, or of two while it is written, or after a
 * crash. 0: there may be no file, or no page. */
struct file_model {
	unsigned users;               /* readers; UINT32_MAX: a writer */
	unsigned user[NODES_MAX + 1]; /* of these, each node's */
	uint32_t last;                /* begun to be written */
	uint32_t durable;
	uint32_t
		by[NODES_MAX + 1]; /* the last that each node has written, in this life */
};

static struct file_model files[FILES];
static _Atomic bool over;
static unsigned ended;

/* What nobody can have lost. */
static uint32_t safe(const struct file_model *f)
{
	uint32_t gen = f->durable;

	for (unsigned id = 1; id <= NODES_MAX; id++)
		gen = MAX(gen, f->by[id]);
	return gen;
}

static uint64_t word_of(unsigned i, uint32_t gen, unsigned at)
{
	return (uint64_t)i << 48 | (uint64_t)gen << 16 | at;
}

/* ---- what tasks do ------------------------------------------------------------------------ */

static void name_of(char name[16], unsigned i)
{
	snprintf(name, 16, "file%u", i);
}

static struct ops_file *file_open(struct node *n, unsigned i, bool make)
{
	struct ops_file *f = NULL;
	struct ops_attr a;
	char name[16];
	int rc;

	name_of(name, i);
	rc = ops_lookup(n->fs, DISK_INO_ROOT, nm(name), &a);
	if (rc == -ENOENT && make) {
		rc = ops_create(
			n->fs, DISK_INO_ROOT, nm(name), &root_user, 0644, O_RDWR, &f, &a);
	} else if (!rc) {
		rc = ops_open(n->fs, a.ino, &root_user, O_RDWR, &f, &a);
	}
	if (rc != -ENOENT)
		OK(rc);
	return rc ? NULL : f;
}

static void write_file(struct node *n, unsigned i)
{
	struct file_model *m = &files[i];
	uint32_t gen = ++m->last;
	struct ops_file *f = file_open(n, i, true);
	uint64_t *bytes = (uint64_t *)rt_alloc_pages(PAGES * PAGE_SIZE);

	for (unsigned w = 0; w < PAGES * PAGE_SIZE / 8; w++)
		bytes[w] = word_of(i, gen, w);
	EQ(ops_write(n->fs, f, &root_user, 0, bytes, PAGES * PAGE_SIZE, false),
		PAGES * PAGE_SIZE);
	m->by[n->id] = gen;
	if (pick(3) == 0) {
		OK(ops_fsync(n->fs, ops_file_ino(f), false));
		m->durable = gen;
	}
	ops_close(n->fs, f);
	rt_free_pages(bytes, PAGES * PAGE_SIZE);
}

struct seen {
	const struct node *n;
	unsigned i;
	uint32_t low, high;
	uint64_t page; /* the next */
};

static void see_page(struct seen *s, const uint64_t *words, size_t count)
{
	uint32_t gen = (uint32_t)(words[0] >> 16);
	unsigned at = (unsigned)(s->page * (PAGE_SIZE / 8));
	/* who wrote it may have crashed since the call began */
	uint32_t low = MIN(s->low, safe(&files[s->i]));
	bool whole = gen >= low && gen <= s->high;

	for (unsigned w = 0; w < count && whole; w++)
		whole = words[w] == (gen ? word_of(s->i, gen, at + w) : 0);
	if (!whole) {
		print_message("node %u: file %u, page %" PRIu64 ": %" PRIx64
			      " is none of generation %u to %u\n",
			s->n->id, s->i, s->page, words[0], s->low, s->high);
		print_message("  durable %u; by nodes %u %u %u\n", files[s->i].durable,
			files[s->i].by[1], files[s->i].by[2], files[s->i].by[3]);
		abort();
	}
	s->page++;
}

static int see(void *arg, const struct iovec *iov, unsigned count, size_t total)
{
	for (unsigned i = 0; i < count; i++)
		for (size_t at = 0; at < iov[i].iov_len; at += PAGE_SIZE) {
			HOLDS(iov[i].iov_len - at >= PAGE_SIZE);
			see_page((struct seen *)arg,
				(const uint64_t *)((const char *)iov[i].iov_base + at),
				PAGE_SIZE / 8);
		}
	return (int)(total / PAGE_SIZE);
}

static void read_file(struct node *n, unsigned i)
{
	struct file_model *m = &files[i];
	uint32_t low = safe(m);
	struct ops_file *f = file_open(n, i, false);
	struct seen s = {.n = n, .i = i};
	int rc;

	if (!f) {
		if (low > safe(m)) /* who wrote it has crashed meanwhile */
			low = safe(m);
		if (low)
			print_message("node %u: there is no file %u\n", n->id, i);
		HOLDS(!low);
		return;
	}
	do {
		s.low = MIN(low, safe(m));
		s.high = m->last;
		rc = ops_read(n->fs, f, s.page * PAGE_SIZE, (PAGES - s.page) * PAGE_SIZE,
			see, &s);
		HOLDS(rc >= 0);
	} while (rc && s.page < PAGES);
	HOLDS(s.page == PAGES || !MIN(low, safe(m)));
	ops_close(n->fs, f);
}

static bool enter(struct node *n, unsigned i, bool writes)
{
	struct file_model *m = &files[i];

	if (m->users == UINT32_MAX || (writes && m->users))
		return false;
	m->users = writes ? UINT32_MAX : m->users + 1;
	m->user[n->id]++;
	return true;
}

static void leave(struct node *n, unsigned i)
{
	struct file_model *m = &files[i];

	m->users = m->users == UINT32_MAX ? 0 : m->users - 1;
	m->user[n->id]--;
}

static void work(void *arg)
{
	struct node *n = (struct node *)arg;

	while (!atomic_load(&over)) {
		unsigned i = pick(FILES);
		bool writes = pick(2);

		if (!enter(n, i, writes)) {
			rt_sleep_ns(100000);
			continue;
		}
		if (writes)
			write_file(n, i);
		else
			read_file(n, i);
		leave(n, i);
	}
}

/* ---- lives of a node ----------------------------------------------------------------------- */

static void crash_leave(void *arg, struct volume *v)
{
	struct node *n = (struct node *)arg;

	if (n->fs) /* else it could not be opened */
		barrier(n);
	net_calls_stop(n->calls);
	coherence_cluster_stop(n->coherence);
	net_close(n->net);
	net_calls_close(n->calls);
	n->coherence = NULL;
}

static void crash_open(struct node *n)
{
	struct volume_options vo = {
		.background = true,
		.cache = {.cache_bytes = FRAMES * PAGE_SIZE, .dirty_age_ms = 40},
		.node = (uint16_t)n->id,
		.shard = (uint16_t)(n->id - 1),
		.peers = &n->peers,
	};
	struct ops_options oo = {.atime = OPS_RELATIME};
	struct weft_error err = {0};
	struct rt_disk *disk;

	atomic_store(&n->ups, 0);
	n->fs = NULL;
	n->peers = (struct volume_peers){
		.open = node_provide, .start = node_join, .stop = crash_leave, .arg = n};
	n->shards.count = 0;
	for (unsigned i = 0; i < n->w->nodes; i++)
		OK(shards_set(&n->shards, (uint16_t)i, 0));
	OK(rt_disk_open(&disk, n->disk, 0, &err));
	if (volume_open(&n->v, disk, &vo, &err) || fs_open(&n->fs, n->v, &oo, &err)) {
		print_message("node %u: %s\n", n->id, err.text);
		abort();
	}
}

static void node_life(void *arg)
{
	struct node *n = (struct node *)arg;
	struct rt_task *task[TASKS];

	crash_open(n);
	for (unsigned i = 0; i < TASKS; i++)
		OK(rt_task_spawn(&task[i], "work", work, n));
	for (unsigned i = 0; i < TASKS; i++)
		rt_task_join(task[i]);
	barrier(n);
	for (unsigned i = 0; i < FILES; i++)
		read_file(n, i);
	fs_close(n->fs);
	barrier(n);
	node_settle(n);
	OK(volume_close(n->v));
	ended++;
}

static void crash_one(struct world *w)
{
	struct node *n = &w->node[pick(w->nodes)];

	n->coherence = NULL;
	rt_sim_node_kill(n->sim);
	for (unsigned i = 0; i < FILES; i++) {
		struct file_model *m = &files[i];

		m->by[n->id] = 0;
		if (m->user[n->id])
			m->users = m->users == UINT32_MAX ? 0 : m->users - m->user[n->id];
		m->user[n->id] = 0;
	}
	if (pick(3))
		rt_sleep_ns(rt_random() % 100000000);
	n->sim = rt_sim_node_new(n->disk);
	OK(rt_sim_spawn_on(n->sim, "node", node_life, n));
}

static int run_crashes(void *arg)
{
	struct world *w = (struct world *)arg;

	running = w;
	abort_before = signal(SIGABRT, on_abort);
	memset(w->uuid, 0x11, sizeof(w->uuid));
	for (unsigned i = 0; i < w->nodes; i++) {
		struct node *n = &w->node[i];

		n->w = w;
		n->id = i + 1;
		snprintf(n->disk, sizeof(n->disk), "disk%u", n->id);
		node_format(n);
	}
	for (unsigned i = 0; i < w->nodes; i++) {
		struct node *n = &w->node[i];

		n->sim = rt_sim_node_new(n->disk);
		OK(rt_sim_spawn_on(n->sim, "node", node_life, n));
	}
	rt_sleep_ns(200000000);
	for (unsigned i = 0; i < CRASHES; i++) {
		rt_sleep_ns(rt_random() % 200000000);
		crash_one(w);
	}
	rt_sleep_ns(200000000);
	atomic_store(&over, true);
	for (unsigned i = 0; i < w->nodes; i++)
		HOLDS(!rt_sim_node_wait(w->node[i].sim));
	HOLDS(ended == w->nodes);
	running = NULL;
	stores_check(w);
	signal(SIGABRT, abort_before);
	return 0;
}

static void run_seeds(unsigned nodes, uint64_t seeds)
{
	struct rt_sim_options o = {.time_limit_ns = 60ull * 1000000000};

	seeds = seeds_count(seeds);
	for (uint64_t seed = seeds_first(); seeds--; seed++) {
		struct world *w = (struct world *)calloc(1, sizeof(*w));

		assert_non_null(w);
		w->nodes = seeds_nodes(nodes, seed);
		memset(files, 0, sizeof(files));
		atomic_store(&over, false);
		ended = 0;
		assert_int_equal(rt_sim_run(seed, &o, run_crashes, w), 0);
		free(w);
	}
}

static void what_is_fsynced_or_written_by_who_lives_is_not_lost(void **state)
{
	run_seeds(3, CRASHES_SEEDS);
}

static void so_it_is_on_five_and_eight_nodes(void **state)
{
	run_seeds(5, 1);
	run_seeds(8, 1);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_is_fsynced_or_written_by_who_lives_is_not_lost),
		cmocka_unit_test(so_it_is_on_five_and_eight_nodes),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
