/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A reader that goes through a file of many times the cache does not take the cache from the pages
 * that others use (LeanStore §IV-I, hinting): on a volume of one node, of this node's file, and of
 * another node's file.
 *
 *   WEFT_SIM_SEED=7 build/tests/sim/cluster_scan_test     one seed
 */
#define FRAMES     1024
#define LOOK_EVERY 4096
#include "tests/sim/cluster_world.h"

#define HOT_PAGES  384u /* 3 of 8 frames */
#define SCAN_PAGES (6u * FRAMES)
#define PIECE      32u              /* pages of one read */
#define LOST_MAX   (HOT_PAGES / 20) /* 5 % */
#define SCAN_SEEDS 3

static uint64_t scanned[SIM_NODES_MAX + 1]; /* by node: the file that it made */

static void write_pages(struct fs *fs, struct ops_file *f, uint32_t pages)
{
	uint8_t *bytes = rt_alloc(PIECE * PAGE_SIZE);

	HOLDS(bytes);
	for (uint32_t at = 0; at < pages; at += PIECE) {
		for (uint32_t i = 0; i < PIECE; i++) {
			uint64_t said = at + i + 1;

			memcpy(bytes + i * PAGE_SIZE, &said, sizeof(said));
		}
		EQ(ops_write(fs, f, &root_user, (uint64_t)at * PAGE_SIZE, bytes,
			   PIECE * PAGE_SIZE, false),
			PIECE * PAGE_SIZE);
	}
	OK(ops_fsync(fs, ops_file_ino(f), false));
	rt_free(bytes);
}

static uint64_t make_pages(struct fs *fs, const char *name, uint32_t pages)
{
	struct ops_file *f;
	struct ops_attr a;

	OK(ops_create(fs, DISK_INO_ROOT, nm(name), &root_user, 0644, O_RDWR, &f, &a));
	write_pages(fs, f, pages);
	ops_close(fs, f);
	return a.ino;
}

static void read_pages(struct fs *fs, struct ops_file *f, uint32_t at, uint32_t pages)
{
	uint8_t *bytes = rt_alloc(PIECE * PAGE_SIZE);
	struct bytes b = {.to = bytes};

	HOLDS(bytes);
	EQ(ops_read(fs, f, (uint64_t)at * PAGE_SIZE, (size_t)pages * PAGE_SIZE,
		   take_bytes, &b),
		pages * PAGE_SIZE);
	for (uint32_t i = 0; i < pages; i++) {
		uint64_t said;

		memcpy(&said, bytes + i * PAGE_SIZE, sizeof(said));
		EQ(said, at + i + 1);
	}
	rt_free(bytes);
}

static struct ops_file *open_pages(struct fs *fs, uint64_t ino)
{
	struct ops_file *f;
	struct ops_attr a;

	OK(ops_open(fs, ino, &root_user, O_RDONLY | O_NOATIME, &f, &a));
	return f;
}

/* The pages of the file in an order that is none of a sequential reader. Returns the misses. */
static uint64_t use_hot(struct fs *fs, struct ops_file *f)
{
	struct cache_counters *c = cache_counters(fs_volume(fs)->cache);
	uint64_t before = c->misses;

	for (uint32_t i = 0; i < HOT_PAGES; i++)
		read_pages(fs, f, i * 211 % HOT_PAGES, 1);
	return c->misses - before;
}

static void scan_and_use(struct fs *fs, uint64_t hot, uint64_t scan)
{
	struct ops_file *h = open_pages(fs, hot), *s = open_pages(fs, scan);
	uint64_t lost;

	use_hot(fs, h);
	EQ(use_hot(fs, h), 0);
	for (uint32_t at = 0; at < SCAN_PAGES; at += PIECE)
		read_pages(fs, s, at, PIECE);
	lost = use_hot(fs, h);
	if (lost > LOST_MAX)
		print_message("%" PRIu64 " of %u hot pages were lost\n", lost, HOT_PAGES);
	HOLDS(lost <= LOST_MAX);
	ops_close(fs, s);
	ops_close(fs, h);
}

/* ---- one node ------------------------------------------------------------------------------ */

static void scan_alone(struct fs *fs)
{
	uint64_t scan = make_pages(fs, "scan", SCAN_PAGES);

	scan_and_use(fs, make_pages(fs, "hot", HOT_PAGES), scan);
}

static void a_scan_leaves_the_pages_in_use(void **state)
{
	uint64_t seeds = seeds_count(SCAN_SEEDS);

	for (uint64_t seed = seeds_first(); seeds--; seed++)
		with_fs_sized(seed, 128, FRAMES * PAGE_SIZE >> 20, scan_alone);
}

/* ---- two nodes ------------------------------------------------------------------------------ */

static void scan_work(struct node *n)
{
	char name[16];
	uint64_t hot;

	snprintf(name, sizeof(name), "scan%u", n->id);
	scanned[n->id] = make_pages(n->fs, name, SCAN_PAGES);
	snprintf(name, sizeof(name), "hot%u", n->id);
	hot = make_pages(n->fs, name, HOT_PAGES);
	barrier(n);
	if (n->id == 1)
		scan_and_use(n->fs, hot, scanned[1]);
	barrier(n);
	if (n->id == 1)
		scan_and_use(n->fs, hot, scanned[2]);
	barrier(n);
}

static void scan_check(struct node *n)
{
}

static void a_scan_of_another_nodes_file_leaves_them_too(void **state)
{
	struct world *w = (struct world *)calloc(1, sizeof(*w));
	uint64_t seeds = seeds_count(SCAN_SEEDS);
	struct rt_sim_options o = {.time_limit_ns = 600ull * 1000000000};

	assert_non_null(w);
	for (uint64_t seed = seeds_first(); seeds--; seed++) {
		memset(w, 0, sizeof(*w));
		w->nodes = 2;
		w->work = scan_work;
		w->check = scan_check;
		assert_int_equal(rt_sim_run(seed, &o, run_world, w), 0);
	}
	free(w);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_scan_leaves_the_pages_in_use),
		cmocka_unit_test(a_scan_of_another_nodes_file_leaves_them_too),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
