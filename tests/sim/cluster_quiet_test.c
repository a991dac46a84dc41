/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A node that works in its own directories, on its own files, sends nothing: three nodes of
 * one volume create, write, read, rename, cut, link and unlink files, each in directories
 * that it has made, with attributes, symlinks and fsync, while write-back, checkpoints and
 * reclaiming go on. After a while, in which each gets what it needs, messages are counted,
 * by the counters of the links.
 *
 *   WEFT_SIM_SEED=7 build/tests/sim/cluster_quiet_test     one seed
 *   WEFT_SIM_SEEDS=1000                                    so many
 */
#define FRAMES 1500 /* all that a node uses stays */
#include "tests/sim/cluster_world.h"

#define DIRECTORIES 3
#define FILES       12 /* in each */
#define QUIET_SEEDS 10

struct quiet_file {
	uint64_t ino;
	uint32_t size;
};

static struct quiet_place {
	uint64_t dir[DIRECTORIES];
	struct quiet_file file[DIRECTORIES][FILES];
} places[NODES_MAX];

static uint64_t steady_messages, steady_steps;

static int drop_bytes(void *arg, const struct iovec *iov, unsigned count, size_t total)
{
	return (int)total;
}

static struct ops_name file_name(char out[8], unsigned i)
{
	snprintf(out, 8, "f%u", i);
	return nm(out);
}

static void create(struct node *n, uint64_t dir, unsigned i, struct quiet_file *f)
{
	struct ops_file *open;
	struct ops_attr a;
	char text[8];

	OK(ops_create(n->fs, dir, file_name(text, i), &root_user, 0644, O_RDWR | O_EXCL,
		&open, &a));
	ops_close(n->fs, open);
	*f = (struct quiet_file){.ino = a.ino};
}

static void write_one(struct node *n, struct quiet_file *f)
{
	uint32_t at = pick(f->size + 1), len = 1 + pick(pick(4) ? 300 : 30000);
	uint8_t *bytes = rt_alloc(len);
	struct ops_file *open;
	struct ops_attr a;

	OK(ops_open(n->fs, f->ino, &root_user, O_RDWR, &open, &a));
	EQ(ops_write(n->fs, open, &root_user, at, bytes, len, pick(3) == 0), len);
	ops_close(n->fs, open);
	rt_free(bytes);
	f->size = attr_of(n->fs, f->ino).size;
	if (pick(4) == 0)
		OK(ops_fsync(n->fs, f->ino, pick(2)));
}

static void read_one(struct node *n, const struct quiet_file *f)
{
	struct ops_file *open;
	struct ops_attr a;

	OK(ops_open(n->fs, f->ino, &root_user, O_RDONLY, &open, &a));
	HOLDS(ops_read(n->fs, open, 0, 1 << 16, drop_bytes, NULL) >= 0);
	ops_close(n->fs, open);
}

static void cut_one(struct node *n, struct quiet_file *f)
{
	struct ops_setattr set = {.set = OPS_SET_SIZE, .size = pick(f->size + 1)};
	struct ops_attr a;

	OK(ops_setattr(n->fs, f->ino, &root_user, &set, &a));
	f->size = (uint32_t)set.size;
}

static int count_entry(void *arg, const struct ops_dirent *entry)
{
	++*(unsigned *)arg;
	return 0;
}

/* To another name, also of another directory; what was there goes. */
static void rename_one(struct node *n, struct quiet_place *q, unsigned d, unsigned i)
{
	unsigned to_d = pick(DIRECTORIES), to = pick(FILES);
	struct quiet_file moved = q->file[d][i];
	char a[8], b[8];

	OK(ops_rename(
		n->fs, q->dir[d], file_name(a, i), q->dir[to_d], file_name(b, to), 0));
	if (d == to_d && i == to)
		return;
	q->file[d][i] = (struct quiet_file){0};
	q->file[to_d][to] = moved;
}

static void work_step(struct node *n, struct quiet_place *q)
{
	unsigned d = pick(DIRECTORIES), i = pick(FILES), entries = 0;
	struct quiet_file *f = &q->file[d][i];
	struct ops_attr a;
	char text[8];

	if (!f->ino) {
		create(n, q->dir[d], i, f);
		return;
	}
	switch (pick(9)) {
	case 0 ... 1:
		write_one(n, f);
		break;
	case 2 ... 3:
		read_one(n, f);
		break;
	case 4:
		OK(ops_lookup(n->fs, q->dir[d], file_name(text, i), &a));
		EQ(a.ino, f->ino);
		break;
	case 5:
		OK(ops_readdir(n->fs, q->dir[d], 0, 0, count_entry, &entries));
		HOLDS(entries > 2);
		break;
	case 6:
		cut_one(n, f);
		break;
	case 7:
		rename_one(n, q, d, i);
		break;
	default:
		OK(ops_unlink(n->fs, q->dir[d], file_name(text, i)));
		*f = (struct quiet_file){0};
	}
}

/* Of the page protocol, and all others. */
static uint64_t sent_by(const struct node *n)
{
	struct net_counters c;
	uint64_t sum = 0;

	for (unsigned id = 1; id <= n->w->nodes; id++)
		if (id != n->id) {
			net_counters(net_peer_find(n->net, (uint16_t)id), &c);
			sum += c.messages_out + c.reads_out + c.writes_out +
			       c.atomics_out;
		}
	return sum;
}

static void quiet_work(struct node *n)
{
	struct quiet_place *q = &places[n->id - 1];
	char text[16];
	uint64_t before;

	memset(q, 0, sizeof(*q));
	for (unsigned d = 0; d < DIRECTORIES; d++) {
		snprintf(text, sizeof(text), "own%u.%u", n->id, d);
		q->dir[d] = mk_dir(n->fs, DISK_INO_ROOT, text);
	}
	barrier(n);
	for (unsigned i = 0; i < n->w->steps; i++)
		work_step(n, q);
	barrier(n);
	node_settle(n);
	rt_sleep_ns(50000000); /* what nobody waits for arrives, too */
	barrier(n);
	before = sent_by(n);
	for (unsigned i = 0; i < n->w->steps; i++)
		work_step(n, q);
	steady_messages += sent_by(n) - before;
	steady_steps += n->w->steps;
	barrier(n);
}

static void quiet_check(struct node *n)
{
}

static void nodes_work_in_their_own_directories(void **state)
{
	struct world *w = (struct world *)calloc(1, sizeof(*w));
	uint64_t seeds = seeds_count(QUIET_SEEDS);
	struct rt_sim_options o = {.time_limit_ns = 600ull * 1000000000};

	assert_non_null(w);
	for (uint64_t seed = seeds_first(); seeds--; seed++) {
		memset(w, 0, sizeof(*w));
		w->nodes = 3;
		w->steps = 300 * (unsigned)setting("WEFT_SIM_LONGER", 1);
		w->work = quiet_work;
		w->check = quiet_check;
		assert_int_equal(rt_sim_run(seed, &o, run_world, w), 0);
	}
	print_message("%" PRIu64 " messages in %" PRIu64 " steps\n", steady_messages,
		steady_steps);
	assert_int_equal(steady_messages, 0);
	free(w);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(nodes_work_in_their_own_directories),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
