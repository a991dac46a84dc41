/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pages that were freed, and are used again (docs/nodes/driver.md, "Freed pages"). Node 1 writes a
 * file into its own shard, and the others read it. One of them removes it. Soon the others have
 * none of its pages any more, so node 1 can write as much again without a message. If node 1 does
 * not wait for that, or links break meanwhile, the new file is right all the same.
 *
 *   WEFT_SIM_SEED=7 build/tests/sim/cluster_freed_test     one seed
 *   WEFT_SIM_SEEDS=1000                                    so many of each kind
 */
#define FRAMES 4096 /* a store fits */
#include "tests/sim/cluster_world.h"
#include "tests/world/weather.h"

#define STORE_BYTES (9ull << 20) /* one group of a thousand pages */
#define FREED_SEEDS 2
#define NODES       3u
#define CHUNK_PAGES 64u
#define ROUNDS      4u /* of files, one after the other */
#define TREE_PAGES  64u /* pages of node 1's shard that others may keep: the tree */
/* Longer than an inode stays unlinked that other nodes may have open, and links stay down. */
#define QUIET_NS 4000000000ull

static unsigned remover;   /* the node that removes the file */
static unsigned file_pages; /* more than half of node 1's shard */
static bool in_weather;

static uint64_t told_of(const struct node *n, enum page_message_type type)
{
	return atomic_load(
		&coherence_counters(n->coherence)->sent[type - PAGE_MESSAGE_FIRST]);
}

/* Pages of node 1's shard that this node has. */
static unsigned pages_of_first(struct node *n)
{
	struct cache_census of[SHARDS_MAX] = {0};

	cache_census(n->v->cache, of);
	return (unsigned)(of[0].exclusive + of[0].shared);
}

/* ---- files --------------------------------------------------------------------------------- */

static uint64_t stamp_of(unsigned round, uint64_t page)
{
	return (uint64_t)(round + 1) << 32 | page;
}

static struct ops_name name_of(char out[16], unsigned round)
{
	snprintf(out, 16, "file%u", round);
	return nm(out);
}

/* Room may be short until the nodes that may have a removed file open have been asked. */
static void write_all(
	struct node *n, struct ops_file *f, uint64_t offset, const uint8_t *bytes, size_t len)
{
	while (len) {
		int64_t done = ops_write(n->fs, f, &root_user, offset, bytes, len, false);

		HOLDS(done > 0 || (in_weather && done == -ENOSPC));
		if (done <= 0) {
			rt_sleep_ns(WEATHER_STALL_NS);
			continue;
		}
		offset += (uint64_t)done;
		bytes += done;
		len -= (size_t)done;
	}
}

static void write_pages(
	struct node *n, struct ops_file *f, unsigned round, unsigned first, unsigned pages)
{
	static uint64_t chunk[CHUNK_PAGES * PAGE_SIZE / sizeof(uint64_t)];

	for (unsigned done = 0; done < pages;) {
		unsigned count = MIN(pages - done, CHUNK_PAGES);
		size_t bytes = count * (size_t)PAGE_SIZE;

		for (unsigned i = 0; i < count; i++)
			for (unsigned at = 0; at < PAGE_SIZE / sizeof(uint64_t); at++)
				chunk[i * (PAGE_SIZE / sizeof(uint64_t)) + at] =
					stamp_of(round, first + done + i);
		write_all(n, f, (uint64_t)(first + done) * PAGE_SIZE, (const uint8_t *)chunk,
			bytes);
		done += count;
	}
}

static struct ops_file *create_file(struct node *n, unsigned round, struct ops_attr *a)
{
	struct ops_file *f;
	char text[16];

	OK(ops_create(n->fs, DISK_INO_ROOT, name_of(text, round), &root_user, 0644, O_RDWR, &f,
		a));
	return f;
}

struct sight {
	uint64_t offset;
	unsigned round;
};

static int see_pages(void *arg, const struct iovec *iov, unsigned count, size_t total)
{
	const struct sight *s = (const struct sight *)arg;
	uint64_t at = s->offset, said;

	for (unsigned i = 0; i < count; i++)
		for (size_t k = 0; k < iov[i].iov_len; k += sizeof(said), at += sizeof(said)) {
			memcpy(&said, (const uint8_t *)iov[i].iov_base + k, sizeof(said));
			EQ(said, stamp_of(s->round, at / PAGE_SIZE));
		}
	return (int)total;
}

/* Reads the whole file, which must be that round's. */
static void read_file(struct node *n, unsigned round)
{
	struct ops_file *f;
	struct ops_attr a;
	char text[16];

	OK(ops_lookup(n->fs, DISK_INO_ROOT, name_of(text, round), &a));
	EQ(a.inode.size, (uint64_t)file_pages * PAGE_SIZE);
	OK(ops_open(n->fs, a.ino, &root_user, O_RDONLY, &f, &a));
	for (unsigned page = 0; page < file_pages; page += CHUNK_PAGES) {
		struct sight s = {(uint64_t)page * PAGE_SIZE, round};

		HOLDS(ops_read(n->fs, f, s.offset, CHUNK_PAGES * PAGE_SIZE, see_pages, &s) > 0);
	}
	ops_close(n->fs, f);
}

static void remove_file(struct node *n, unsigned round)
{
	char text[16];

	OK(ops_unlink(n->fs, DISK_INO_ROOT, name_of(text, round)));
	ops_settle(n->fs);
}

/* ---- used again when all have been told ------------------------------------------------------ */

/* More than half of the shard: the second file needs pages of the first one. */
static void write_first(struct node *n)
{
	struct space_stat s;
	struct ops_file *f;
	struct ops_attr a;

	space_stat(n->v->space, &s);
	file_pages = (unsigned)s.available_pages * 2 / 3;
	f = create_file(n, 0, &a);
	write_pages(n, f, 0, 0, file_pages);
	OK(ops_fsync(n->fs, a.ino, false));
	ops_close(n->fs, f);
}

/* The file's first page takes what the tree needs. The others cost no message. */
static void write_again(struct node *n)
{
	struct ops_attr a;
	struct ops_file *f = create_file(n, 1, &a);
	uint64_t before;

	write_pages(n, f, 1, 0, 1);
	before = node_sent(n);
	write_pages(n, f, 1, 1, file_pages - 1);
	EQ(node_sent(n) - before, 0);
	ops_close(n->fs, f);
}

static void told_work(struct node *n)
{
	if (n->id == 1)
		write_first(n);
	barrier(n);
	if (n->id != 1) {
		read_file(n, 0);
		HOLDS(pages_of_first(n) >= file_pages);
	}
	barrier(n);
	if (n->id == remover)
		remove_file(n, 0);
	barrier(n);
	rt_sleep_ns(QUIET_NS);
	if (n->id != 1)
		HOLDS(pages_of_first(n) <= TREE_PAGES);
	if (n->id == 1) /* nobody was told twice */
		HOLDS(told_of(n, PAGE_DISCARD) <= (NODES - 1) * (uint64_t)file_pages);
	barrier(n);
	if (n->id == 1)
		write_again(n);
	barrier(n);
	if (n->id != 1)
		read_file(n, 1);
}

/* ---- used again at once, in any weather ------------------------------------------------------ */

static void write_round(struct node *n, unsigned round)
{
	struct ops_attr a;
	struct ops_file *f = create_file(n, round, &a);

	write_pages(n, f, round, 0, file_pages);
	if (pick(2))
		OK(ops_fsync(n->fs, a.ino, false));
	ops_close(n->fs, f);
}

/* Each round's file is removed while others may still be told of the one before. */
static void hasty_work(struct node *n)
{
	if (n->id == 1)
		write_first(n);
	barrier(n);
	if (n->id == 1 && in_weather)
		weather_begin(n->w, 20000000);
	for (unsigned round = 1; round < ROUNDS; round++) {
		if (n->id != 1)
			read_file(n, round - 1);
		barrier(n);
		if (n->id == 1 + round % NODES)
			remove_file(n, round - 1);
		barrier(n);
		if (n->id == 1)
			write_round(n, round);
		barrier(n);
	}
	if (n->id == 1 && in_weather)
		weather_end();
	barrier(n);
	read_file(n, ROUNDS - 1);
}

static void last_check(struct node *n)
{
	barrier(n);
}

/* ---- runs ------------------------------------------------------------------------------------ */

static void run_with(void (*work)(struct node *), unsigned clients)
{
	struct world *w = (struct world *)calloc(1, sizeof(*w));
	struct rt_sim_options o = {.time_limit_ns = 600ull * 1000000000};
	uint64_t seeds = seeds_count(FREED_SEEDS);

	assert_non_null(w);
	for (uint64_t seed = seeds_first(); seeds--; seed++) {
		memset(w, 0, sizeof(*w));
		w->nodes = NODES;
		w->clients = clients;
		w->disk_bytes = STORE_BYTES;
		w->stall_ns = in_weather ? WEATHER_STALL_NS : 0;
		w->work = work;
		w->check = last_check;
		assert_int_equal(rt_sim_run(seed, &o, run_world, w), 0);
	}
	free(w);
}

static void the_home_removes_and_writes_again_without_a_message(void **state)
{
	remover = 1;
	run_with(told_work, 0);
}

static void another_node_removes_what_the_home_writes_again(void **state)
{
	remover = 2;
	run_with(told_work, 0);
}

static void a_client_removes_what_the_home_writes_again(void **state)
{
	remover = 3;
	run_with(told_work, 1);
}

static void pages_are_used_again_before_all_are_told(void **state)
{
	run_with(hasty_work, 0);
	run_with(hasty_work, 1);
}

static void links_break_while_nodes_are_told(void **state)
{
	in_weather = true;
	weather.cuts = weather.silent = 0;
	run_with(hasty_work, 0);
	run_with(hasty_work, 1);
	in_weather = false;
	print_message("%u links broke, %u were silent\n", weather.cuts, weather.silent);
	assert_true(weather.cuts + weather.silent > 0);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_home_removes_and_writes_again_without_a_message),
		cmocka_unit_test(another_node_removes_what_the_home_writes_again),
		cmocka_unit_test(a_client_removes_what_the_home_writes_again),
		cmocka_unit_test(pages_are_used_again_before_all_are_told),
		cmocka_unit_test(links_break_while_nodes_are_told),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
