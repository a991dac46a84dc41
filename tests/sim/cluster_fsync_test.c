/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What fsync on one node covers: every change that was completed before it, on whatever node.
 *
 * All nodes change the same files and directories; then one of them calls fsync, and when it
 * returns all lose their power. What is durable then, in all logs and stores together
 * (all_that_lasts.h), has the file as the last change had left it; and so has the volume when
 * all have come back.
 *
 *   WEFT_SIM_SEED=7 build/tests/sim/cluster_fsync_test     one seed
 *   WEFT_SIM_SEEDS=1000                                    so many of each kind
 */
#include "fs/ops/data_internal.h"
#include "tests/sim/cluster_world.h"
#include "tests/sim/all_that_lasts.h"

#define FILES           4
#define FILE_BYTES      24000u
#define DIRS            3
#define NAMES_MADE      200u
#define RECORDS         250u
#define RECORDS_IN_PAGE 4u
#define CHURN_PAGES     120u /* most of a cache */

/* What the tests expect, of the volume that all nodes of a run have. */
static struct model {
	struct {
		uint64_t ino;
		uint32_t size;
		uint8_t data[FILE_BYTES];
		struct disk_inode left;
	} file[FILES];
	struct {
		uint64_t ino;
		unsigned count; /* of names made */
		struct disk_inode left;
	} dir[DIRS];
	uint64_t tag;        /* of this run's names and records */
	bool cut;            /* all lose their power */
	int of_file, of_dir; /* what was made durable; -1: nothing */

	uint64_t churn;                 /* a file whose pages drive others out */
	_Atomic bool crashed, returned; /* node 1 */

	/* records */
	uint64_t ino;
	_Atomic uint32_t written[NODES_MAX + 1]; /* by each node, completed */
	uint32_t durable[NODES_MAX + 1];
} m;

/* At once: from inside of a task of one of the nodes. */
static void cut_all(struct node *n)
{
	struct world *w = n->w;

	m.cut = true;
	for (unsigned i = 0; i < w->nodes; i++)
		if (&w->node[i] != n)
			rt_sim_node_kill(w->node[i].sim);
	rt_sim_node_kill(n->sim);
}

/* ---- changes ----------------------------------------------------------------------------- */

static void write_file(struct node *n, unsigned i)
{
	uint32_t at = pick(m.file[i].size + 1), len;
	bool append = pick(4) == 0;
	struct ops_file *f;

	if (append)
		at = m.file[i].size;
	if (at == FILE_BYTES)
		return;
	len = 1 + pick(MIN(FILE_BYTES - at, pick(2) ? 600u : 9000u));
	if (at + len > FILE_BYTES)
		return;
	for (uint32_t k = 0; k < len; k++)
		m.file[i].data[at + k] = (uint8_t)(1 + rt_random() % 255);
	OK(ops_open(n->fs, m.file[i].ino, &root_user, O_RDWR | O_NOATIME, &f, NULL));
	EQ(ops_write(n->fs, f, &root_user, append ? 0 : at, m.file[i].data + at, len,
		   append),
		len);
	ops_close(n->fs, f);
	m.file[i].size = MAX(m.file[i].size, at + len);
}

static void cut_file(struct node *n, unsigned i)
{
	struct ops_setattr set = {.set = OPS_SET_SIZE, .size = pick(m.file[i].size + 1)};
	struct ops_attr a;

	OK(ops_setattr(n->fs, m.file[i].ino, &root_user, &set, &a));
	memset(m.file[i].data + set.size, 0, FILE_BYTES - set.size);
	m.file[i].size = (uint32_t)set.size;
}

static void change_mode(struct node *n, unsigned i)
{
	struct ops_setattr set = {.set = OPS_SET_MODE, .mode = pick(01000)};
	struct ops_attr a;

	OK(ops_setattr(n->fs, m.file[i].ino, &root_user, &set, &a));
}

static void change_file(struct node *n, unsigned i)
{
	switch (pick(8)) {
	case 0:
		cut_file(n, i);
		break;
	case 1:
		change_mode(n, i);
		break;
	default:
		write_file(n, i);
	}
	m.file[i].left = attr_of(n->fs, m.file[i].ino);
}

static void name_text(char out[64], unsigned dir, unsigned number)
{
	snprintf(out, 64, "%016" PRIx64 "-%u-%u-", m.tag, dir, number);
}

static void add_name(struct node *n, unsigned i)
{
	char text[64];

	name_text(text, i, m.dir[i].count);
	mk_file(n->fs, m.dir[i].ino, text);
	m.dir[i].count++;
	m.dir[i].left = attr_of(n->fs, m.dir[i].ino);
}

static int drop_bytes(void *arg, const struct iovec *iov, unsigned count, size_t total)
{
	return (int)total;
}

/* Brings pages and leaves here, without a change. */
static void look(struct node *n, unsigned i)
{
	struct ops_file *f;
	uint8_t buf[8];

	OK(ops_open(n->fs, m.file[i].ino, &root_user, O_RDONLY | O_NOATIME, &f, NULL));
	HOLDS(ops_read(n->fs, f, pick(m.file[i].size + 1), sizeof(buf), drop_bytes,
		      buf) >= 0);
	ops_close(n->fs, f);
	attr_of(n->fs, m.dir[pick(DIRS)].ino);
}

/* What this node has of other nodes' pages goes back to them, be it dirty. */
static void churn(struct node *n)
{
	static uint8_t bytes[PAGE_SIZE];
	struct ops_file *f;

	OK(ops_open(n->fs, m.churn, &root_user, O_RDWR, &f, NULL));
	for (unsigned i = 0; i < CHURN_PAGES; i++)
		EQ(ops_write(n->fs, f, &root_user, (uint64_t)i * PAGE_SIZE, bytes,
			   PAGE_SIZE, false),
			PAGE_SIZE);
	ops_close(n->fs, f);
}

static void one_change(struct node *n)
{
	if (pick(40) == 0)
		churn(n);
	switch (pick(6)) {
	case 0 ... 2:
		change_file(n, pick(FILES));
		break;
	case 3:
		add_name(n, pick(DIRS));
		break;
	case 4:
		look(n, pick(FILES));
		break;
	default:
		/* of one that may be as the last fsync left it, or not */
		OK(ops_fsync(n->fs,
			pick(2) ? m.file[pick(FILES)].ino : m.dir[pick(DIRS)].ino,
			false));
	}
}

static void last_fsync(struct node *n)
{
	if (pick(3)) {
		m.of_file = (int)pick(FILES);
		OK(ops_fsync(n->fs, m.file[m.of_file].ino, pick(2)));
	} else if (pick(4)) {
		m.of_dir = (int)pick(DIRS);
		OK(ops_fsync(n->fs, m.dir[m.of_dir].ino, false));
	} else {
		m.of_file = (int)pick(FILES);
		m.of_dir = (int)pick(DIRS);
		OK(ops_syncfs(n->fs));
	}
	cut_all(n);
}

static void make_all(struct node *n)
{
	char text[32];

	for (unsigned i = 0; i < FILES; i++) {
		snprintf(text, sizeof(text), "file%u", i);
		m.file[i].ino = mk_file(n->fs, DISK_INO_ROOT, text);
		m.file[i].left = attr_of(n->fs, m.file[i].ino);
	}
	for (unsigned i = 0; i < DIRS; i++) {
		snprintf(text, sizeof(text), "dir%u", i);
		m.dir[i].ino = mk_dir(n->fs, DISK_INO_ROOT, text);
		m.dir[i].left = attr_of(n->fs, m.dir[i].ino);
	}
	m.churn = mk_file(n->fs, DISK_INO_ROOT, "churn");
	m.ino = mk_file(n->fs, DISK_INO_ROOT, "records");
}

static void turns_work(struct node *n)
{
	struct world *w = n->w;

	if (n->id == 1)
		make_all(n);
	barrier(n);
	for (;;) {
		rt_mutex_lock(&w->turn);
		if (w->steps-- == 0)
			last_fsync(n);
		one_change(n);
		rt_mutex_unlock(&w->turn);
		if (pick(2))
			rt_sleep_ns(1 + pick(200000));
	}
}

/* ---- what was given away ----------------------------------------------------------------- */

/* As a write does that comes to nothing: the pages are this node's, as they were. */
static void take_pages(struct node *n, uint64_t ino)
{
	struct page_ref refs[8];
	unsigned count = 0;
	struct map map;

	OK(map_lookup(n->fs, ino, 0, ARRAY_SIZE(refs), &map));
	for (unsigned i = 0; i < map.count; i++)
		for (unsigned k = 0; k < map.segment[i].count; k++)
			if (map.segment[i].kind == MAP_WRITTEN)
				refs[count++] = (struct page_ref){map.segment[i].pid + k,
					map.segment[i].incarnation};
	HOLDS(count > 0);
	OK(cache_fetch_exclusive(n->v->cache, refs, count));
}

/* One node has written, and it alone; another has the pages by then, and no part in it. */
static void given_work(struct node *n)
{
	unsigned turns = 4 + n->w->steps % 10;

	if (n->id == 1)
		make_all(n);
	barrier(n);
	for (unsigned i = 0; i < turns; i++) {
		if (n->id == 1)
			change_file(n, 0);
		barrier(n);
		if (n->id == 2)
			OK(ops_fsync(n->fs, m.file[0].ino, false));
		barrier(n);
	}
	for (unsigned i = 0; n->id == 2 && i < turns; i++)
		write_file(n, 0);
	m.file[0].left = attr_of(n->fs, m.file[0].ino);
	barrier(n);
	if (n->id == 1 && m.file[0].size)
		take_pages(n, m.file[0].ino);
	barrier(n);
	m.of_file = 0;
	if (n->id == 2) {
		OK(ops_fsync(n->fs, m.file[0].ino, pick(2)));
		cut_all(n);
	}
}

/* ---- a writer that crashes and returns --------------------------------------------------- */

/*
 * Node 1 writes, others take the pages, or some, and it loses its power: what it wrote is
 * with them, and in no log. When it has returned node 2 calls fsync.
 */
static void returned_writes(struct node *n)
{
	unsigned turns = 1 + n->w->steps % 10;

	for (unsigned i = 0; i < turns; i++)
		write_file(n, 0);
	m.file[0].left = attr_of(n->fs, m.file[0].ino);
}

static void returned_work(struct node *n)
{
	if (n->id == 1)
		make_all(n);
	barrier(n);
	if (n->id == 1)
		returned_writes(n);
	barrier(n);
	if (n->id == 2 || pick(2)) {
		attr_of(n->fs, m.file[0].ino);
		if (m.file[0].size)
			take_pages(n, m.file[0].ino);
	}
	barrier(n);
	/* some lose it to the third: it is dirty here, and owed there */
	if (n->id == 3 && m.file[0].size && pick(2))
		take_pages(n, m.file[0].ino);
	barrier(n);
	atomic_store(&m.crashed, n->id == 1 || atomic_load(&m.crashed));
	while (n->id != 2 || !atomic_load(&m.returned))
		rt_sleep_ns(1000000);
	m.of_file = 0;
	OK(ops_fsync(n->fs, m.file[0].ino, pick(2)));
	cut_all(n);
}

/* ---- what is left -------------------------------------------------------------------------- */

static void check_inode(const struct lasts *l, const struct disk_inode *left)
{
	if (lasts_with(l, left, offsetof(struct disk_inode, writers)))
		return;
	print_message("the inode of %" PRIu64 " bytes, mode %o, is not durable\n",
		left->size, left->mode);
	abort();
}

static void check_file(const struct lasts *l, unsigned i)
{
	check_inode(l, &m.file[i].left);
	for (uint32_t at = 0; at < m.file[i].size; at += PAGE_SIZE) {
		uint32_t len = MIN(m.file[i].size - at, (uint32_t)PAGE_SIZE);
		bool found = false;

		for (unsigned b = 0; b < LASTS_BUCKETS && !found; b++)
			for (const struct lasting *p = l->bucket[b]; p && !found;
				p = p->next)
				found = !memcmp(p->image, m.file[i].data + at, len);
		if (found)
			continue;
		print_message(
			"bytes %u to %u of file %u are not durable\n", at, at + len, i);
		abort();
	}
}

static void check_dir(const struct lasts *l, unsigned i)
{
	check_inode(l, &m.dir[i].left);
	for (unsigned k = 0; k < m.dir[i].count; k++) {
		char text[64];

		name_text(text, i, k);
		if (lasts_with(l, text, strlen(text)))
			continue;
		print_message("name %u of %u in directory %u is not durable\n", k,
			m.dir[i].count, i);
		abort();
	}
}

static void turns_check(const struct lasts *l)
{
	if (m.of_file >= 0)
		check_file(l, (unsigned)m.of_file);
	if (m.of_dir >= 0)
		check_dir(l, (unsigned)m.of_dir);
}

/* The bytes of the file, of `most` at most; the caller's to free. */
static struct bytes read_all(struct node *n, uint64_t ino, size_t most)
{
	struct bytes b = {.to = rt_alloc(most + PAGE_SIZE)};
	struct ops_file *f;
	int rc;

	OK(ops_open(n->fs, ino, &root_user, O_RDONLY | O_NOATIME, &f, NULL));
	do {
		rc = ops_read(n->fs, f, b.len, most - b.len, take_bytes, &b);
		HOLDS(rc >= 0);
	} while (rc > 0 && b.len < most);
	ops_close(n->fs, f);
	return b;
}

static void inode_again(const struct disk_inode *now, const struct disk_inode *left)
{
	EQ(memcmp(now, left, offsetof(struct disk_inode, writers)), 0);
}

static void file_again(struct node *n, unsigned i)
{
	struct disk_inode now = attr_of(n->fs, m.file[i].ino);
	struct bytes b = read_all(n, m.file[i].ino, FILE_BYTES);

	inode_again(&now, &m.file[i].left);
	EQ(b.len, m.file[i].size);
	EQ(memcmp(b.to, m.file[i].data, b.len), 0);
	rt_free(b.to);
}

static void dir_again(struct node *n, unsigned i)
{
	struct disk_inode now = attr_of(n->fs, m.dir[i].ino);

	inode_again(&now, &m.dir[i].left);
	for (unsigned k = 0; k < m.dir[i].count; k++) {
		struct ops_attr a;
		char text[64];

		name_text(text, i, k);
		OK(ops_lookup(n->fs, m.dir[i].ino, nm(text), &a));
	}
}

static void turns_again(struct node *n)
{
	if (m.of_file >= 0)
		file_again(n, (unsigned)m.of_file);
	if (m.of_dir >= 0)
		dir_again(n, (unsigned)m.of_dir);
	barrier(n);
}

/* ---- fsync while others write --------------------------------------------------------------- */

/*
 * Each node but the last writes records, all to the same pages of one file; the last one
 * calls fsync. What was completed before the last call of it must be durable.
 */
struct record {
	uint64_t tag;
	uint32_t node, number;
};

static uint64_t record_offset(unsigned node, uint32_t number)
{
	uint64_t page = number / RECORDS_IN_PAGE, at = number % RECORDS_IN_PAGE;

	return page * PAGE_SIZE + (at * NODES_MAX + node - 1) * sizeof(struct record);
}

static void write_records(struct node *n)
{
	struct ops_file *f;

	OK(ops_open(n->fs, m.ino, &root_user, O_RDWR, &f, NULL));
	for (uint32_t i = 0; i < RECORDS; i++) {
		uint64_t at = record_offset(n->id, i);
		struct record r = {.tag = m.tag, .node = n->id, .number = i};

		EQ(ops_write(n->fs, f, &root_user, at, &r, sizeof(r), false), sizeof(r));
		atomic_store(&m.written[n->id], i + 1);
		if (pick(3) == 0)
			rt_sleep_ns(1 + pick(300000));
	}
	ops_close(n->fs, f);
	while (!m.cut)
		rt_sleep_ns(1000000);
}

/* So that records are written in place, in every second run. */
static void make_room(struct node *n)
{
	uint64_t size = record_offset(1, RECORDS);
	uint8_t *zeros = rt_alloc(size);
	struct ops_file *f;

	OK(ops_open(n->fs, m.ino, &root_user, O_RDWR, &f, NULL));
	EQ(ops_write(n->fs, f, &root_user, 0, zeros, size, false), size);
	ops_close(n->fs, f);
	rt_free(zeros);
}

static void race_work(struct node *n)
{
	if (n->id == 1) {
		make_all(n);
		if (m.tag % 2)
			make_room(n);
	}
	barrier(n);
	if (n->id < n->w->nodes)
		write_records(n);
	for (unsigned i = 0;; i++) {
		for (unsigned k = 1; k < n->w->nodes; k++)
			m.durable[k] = atomic_load(&m.written[k]);
		OK(ops_fsync(n->fs, m.ino, pick(2)));
		if (i == n->w->steps)
			cut_all(n);
		rt_sleep_ns(1 + pick(2000000));
	}
}

static void race_check(const struct lasts *l)
{
	for (unsigned node = 1; node <= NODES_MAX; node++)
		for (uint32_t i = 0; i < m.durable[node]; i++) {
			struct record r = {.tag = m.tag, .node = node, .number = i};

			if (lasts_with(l, &r, sizeof(r)))
				continue;
			print_message("record %u of node %u is not durable\n", i, node);
			abort();
		}
}

static void race_again(struct node *n)
{
	struct bytes b = read_all(n, m.ino, record_offset(NODES_MAX, RECORDS));

	for (unsigned node = 1; node <= NODES_MAX; node++)
		for (uint32_t i = 0; i < m.durable[node]; i++) {
			struct record want = {.tag = m.tag, .node = node, .number = i};
			uint64_t at = record_offset(node, i);

			HOLDS(at + sizeof(want) <= b.len);
			EQ(memcmp(b.to + at, &want, sizeof(want)), 0);
		}
	rt_free(b.to);
	barrier(n);
}

/* The others are past all barriers. */
static void return_main(void *arg)
{
	struct node *n = (struct node *)arg;

	atomic_fetch_add(&n->w->arrived, n->w->nodes - 1);
	node_begin(n);
	atomic_store(&m.returned, true);
	for (;;)
		rt_sleep_ns(1000000000);
}

static void crash_and_return(struct node *n)
{
	while (!atomic_load(&m.crashed))
		rt_sleep_ns(100000);
	n->coherence = NULL;
	rt_sim_node_kill(n->sim);
	rt_sleep_ns(rt_random() % 20000000);
	n->sim = rt_sim_node_new(n->disk);
	OK(rt_sim_spawn_on(n->sim, "node", return_main, n));
}

/* ---- the runner ------------------------------------------------------------------------------ */

static void cut_main(void *arg)
{
	struct node *n = (struct node *)arg;

	node_begin(n);
	n->w->work(n);
}

static void (*check_lasts)(const struct lasts *l);
static void (*check_again)(struct node *n);

/* In another life: recovery has found it, too. */
static void again_main(void *arg)
{
	struct node *n = (struct node *)arg;

	node_begin(n);
	check_again(n);
	node_end(n);
}

static void run_again(struct world *w)
{
	world_watch(w);
	atomic_store(&w->arrived, 0);
	for (unsigned i = 0; i < w->nodes; i++) {
		w->node[i].sim = rt_sim_node_new(w->node[i].disk);
		OK(rt_sim_spawn_on(w->node[i].sim, "again", again_main, &w->node[i]));
	}
	for (unsigned i = 0; i < w->nodes; i++)
		HOLDS(!rt_sim_node_wait(w->node[i].sim));
	world_stopped();
	stores_check(w);
}

static int run_cut(void *arg)
{
	struct world *w = (struct world *)arg;
	struct lasts *l = (struct lasts *)calloc(1, sizeof(*l));

	cluster_format(w);
	m.tag = rt_random();
	m.of_file = m.of_dir = -1;
	for (unsigned i = 0; i < w->nodes; i++) {
		w->node[i].sim = rt_sim_node_new(w->node[i].disk);
		OK(rt_sim_spawn_on(w->node[i].sim, "node", cut_main, &w->node[i]));
	}
	if (w->work == returned_work)
		crash_and_return(&w->node[0]);
	for (unsigned i = 0; i < w->nodes; i++)
		HOLDS(rt_sim_node_wait(w->node[i].sim));
	world_stopped();
	for (unsigned i = 0; i < w->nodes; i++)
		lasts_disk(l, w->node[i].disk);
	check_lasts(l);
	lasts_clear(l);
	free(l);
	run_again(w);
	world_over();
	return 0;
}

static void run_seeds(unsigned nodes, unsigned steps, void (*work)(struct node *),
	void (*check)(const struct lasts *l), void (*again)(struct node *n))
{
	struct world *w = (struct world *)calloc(1, sizeof(*w));
	uint64_t seeds = seeds_count(SEEDS);
	struct rt_sim_options o = {.time_limit_ns = 600ull * 1000000000};

	assert_non_null(w);
	check_lasts = check;
	check_again = again;
	for (uint64_t seed = seeds_first(); seeds--; seed++) {
		memset(w, 0, sizeof(*w));
		memset(&m, 0, sizeof(m));
		w->nodes = nodes;
		w->steps = 1 + (unsigned)(seed * 7919 % steps);
		/* mostly, nothing is durable that nobody has asked for */
		w->dirty_age_ms = seed % 4 ? 60000 : 40;
		w->work = work;
		assert_int_equal(rt_sim_run(seed, &o, run_cut, w), 0);
	}
	free(w);
}

static void two_nodes_change_one_calls_fsync(void **state)
{
	run_seeds(2, 200, turns_work, turns_check, turns_again);
}

static void three_nodes_change_one_calls_fsync(void **state)
{
	run_seeds(3, 200, turns_work, turns_check, turns_again);
}

static void what_was_given_away_is_made_durable(void **state)
{
	run_seeds(2, 200, given_work, turns_check, turns_again);
}

static void what_a_node_wrote_before_its_crash_is_made_durable(void **state)
{
	run_seeds(2, 200, returned_work, turns_check, turns_again);
	run_seeds(3, 200, returned_work, turns_check, turns_again);
}

static void a_node_writes_while_another_calls_fsync(void **state)
{
	run_seeds(2, 10, race_work, race_check, race_again);
}

static void two_nodes_write_while_a_third_calls_fsync(void **state)
{
	run_seeds(3, 10, race_work, race_check, race_again);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(two_nodes_change_one_calls_fsync),
		cmocka_unit_test(three_nodes_change_one_calls_fsync),
		cmocka_unit_test(what_was_given_away_is_made_durable),
		cmocka_unit_test(what_a_node_wrote_before_its_crash_is_made_durable),
		cmocka_unit_test(a_node_writes_while_another_calls_fsync),
		cmocka_unit_test(two_nodes_write_while_a_third_calls_fsync),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
