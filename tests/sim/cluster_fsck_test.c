/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fsck of several stores: what it says of damage that only shows when they are looked at
 * together, and what of one of them alone.
 *
 * Three simulated nodes make files on one volume and leave. Each case works on copies of
 * their stores: it changes a page, checksums and all, asks for the findings, and for
 * repairs, which are also cut by losses of power and made again.
 *
 *   WEFT_SIM_SEED=7 build/tests/sim/cluster_fsck_test     one seed of those
 *   WEFT_SIM_SEEDS=1000                                   so many
 */
#include "mkfs/fsck/fsck.h"
#include "tests/sim/cluster_world.h"

#define NODES      3u
#define FILES_EACH 40u
#define PAGES_MAX  12u

/* ---- the volume -------------------------------------------------------------------------- */

static void make_files(struct node *n)
{
	static uint8_t bytes[PAGES_MAX * PAGE_SIZE];
	uint64_t dir;
	char name[16];

	snprintf(name, sizeof(name), "own%u", n->id);
	dir = mk_dir(n->fs, DISK_INO_ROOT, name);
	for (unsigned i = 0; i < FILES_EACH; i++) {
		size_t len = (1 + pick(PAGES_MAX)) * PAGE_SIZE;
		struct ops_file *f;
		struct ops_attr a;

		snprintf(name, sizeof(name), "file%u", i);
		OK(ops_open(
			n->fs, mk_file(n->fs, dir, name), &root_user, O_RDWR, &f, &a));
		memset(bytes, (int)(n->id + i), len);
		EQ(ops_write(n->fs, f, &root_user, 0, bytes, len, false), len);
		ops_close(n->fs, f);
	}
}

static void check_nothing(struct node *n)
{
}

/* ---- copies of the stores, and pages of them --------------------------------------------- */

static struct copies {
	struct rt_sim_disk *from[NODES], *sim[NODES];
	char name[NODES][16];
	struct disk_superblock sb[NODES];
} copies;

static void copies_make(void)
{
	for (unsigned i = 0; i < NODES; i++) {
		snprintf(copies.name[i], sizeof(copies.name[i]), "copy%u", i + 1);
		copies.sim[i] = rt_sim_disk_copy(copies.name[i], copies.from[i]);
		rt_sim_disk_peek(copies.sim[i], 0, &copies.sb[i], PAGE_SIZE);
	}
}

static void copies_drop(void)
{
	for (unsigned i = 0; i < NODES; i++)
		rt_sim_disk_destroy(copies.sim[i]);
}

static uint64_t image_place(page_id pid)
{
	return copies.sb[pid_shard(pid)].pages_offset + pid_slot(pid) * PAGE_SIZE;
}

static void image_get(page_id pid, void *image)
{
	rt_sim_disk_peek(copies.sim[pid_shard(pid)], image_place(pid), image, PAGE_SIZE);
}

/* With checksums: the image's in its descriptor, and the descriptor's block's. */
static void image_put(page_id pid, const void *image)
{
	unsigned shard = pid_shard(pid);
	const struct disk_superblock *sb = &copies.sb[shard];
	uint64_t block = pid_slot(pid) / DISK_TABLE_SLOTS, at;
	struct disk_table_block *pair = rt_alloc(sizeof(*pair) * 2), *b;
	struct weft_error err = {0};
	struct disk_descriptor *d;
	struct rt_disk *disk;
	struct store *s;

	OK(rt_disk_open(&disk, copies.name[shard], 0, &err));
	OK(store_format_open(&s, disk, sb, &err));
	rt_sim_disk_poke(copies.sim[shard], image_place(pid), image, PAGE_SIZE);
	at = sb->table_offset + 2 * block * PAGE_SIZE;
	rt_sim_disk_peek(copies.sim[shard], at, pair, sizeof(*pair) * 2);
	b = &pair[pair[1].magic == DISK_MAGIC_TABLE &&
		  pair[1].generation > pair[0].generation];
	d = &b->slot[pid_slot(pid) % DISK_TABLE_SLOTS];
	d->checksum = store_page_checksum(s, pid, d->incarnation, d->version, image);
	b->checksum = store_table_checksum(s, b);
	rt_sim_disk_poke(copies.sim[shard], at, pair, sizeof(*pair) * 2);
	store_close(s);
	rt_disk_close(disk);
	rt_free(pair);
}

static void image_flip(page_id pid)
{
	uint8_t image[PAGE_SIZE];

	image_get(pid, image);
	image[100] ^= 0x40;
	rt_sim_disk_poke(copies.sim[pid_shard(pid)], image_place(pid), image, PAGE_SIZE);
}

static page_id group_of(unsigned shard)
{
	return pid_make((uint16_t)shard, disk_group_slot(0));
}

static bool in_use(page_id pid)
{
	struct disk_group g;
	uint64_t i = pid - group_of(pid_shard(pid)) - 1;

	image_get(group_of(pid_shard(pid)), &g);
	return g.bitmap[i / 8] >> i % 8 & 1;
}

/* ---- extents --------------------------------------------------------------------------------- */

struct extent_place {
	page_id leaf;
	unsigned offset; /* of the extent in it */
	struct disk_extent e;
};

/* An extent of a page in this shard. */
static bool leaf_extent(
	const struct disk_leaf *leaf, unsigned shard, struct extent_place *p)
{
	for (unsigned i = 0; i < leaf->node.count; i++) {
		const struct disk_leaf_slot *s = &leaf->slot[i];

		if ((s->key.high & 0xff) != DISK_ITEM_EXTENT)
			continue;
		memcpy(&p->e, (const uint8_t *)leaf + s->offset, sizeof(p->e));
		p->offset = s->offset;
		if (pid_shard(p->e.pid) == shard && !(p->e.flags & DISK_EXTENT_UNWRITTEN))
			return true;
	}
	return false;
}

static void extent_find(unsigned shard, struct extent_place *p)
{
	struct disk_leaf leaf;

	for (unsigned in = 0; in < NODES; in++) {
		page_id group = group_of(in);

		for (p->leaf = group + 1; pid_slot(p->leaf) < copies.sb[in].page_count;
			p->leaf++) {
			image_get(p->leaf, &leaf);
			if (leaf.node.magic == DISK_MAGIC_NODE && !leaf.node.level &&
				leaf.node.pid == p->leaf && in_use(p->leaf) &&
				leaf_extent(&leaf, shard, p))
				return;
		}
	}
	HOLDS(!"no extent in this shard");
}

static void extent_put(const struct extent_place *p)
{
	uint8_t image[PAGE_SIZE];

	image_get(p->leaf, image);
	memcpy(image + p->offset, &p->e, sizeof(p->e));
	image_put(p->leaf, image);
}

/* ---- asking --------------------------------------------------------------------------------- */

static struct answer {
	char codes[200]; /* as " F0401 F0406", notes left out */
	char texts[2000];
	struct fsck_result result;
	struct weft_error err;
	int rc;
} said;

static void note(void *arg, unsigned code, const char *text, enum fsck_outcome outcome)
{
	size_t length = strlen(said.codes), texts = strlen(said.texts);

	snprintf(said.texts + texts, sizeof(said.texts) - texts, "%s\n", text);
	if (outcome != FSCK_NOTE)
		snprintf(said.codes + length, sizeof(said.codes) - length, " F%04u%s",
			code, outcome == FSCK_FIXED ? "!" : "");
}

/* Of these nodes' stores, by bits, the first in the lowest. */
static void ask(unsigned which, bool repair)
{
	struct fsck_options o = {.repair = repair,
		.force = true,
		.check_data = true,
		.cache_bytes = 1 << 20,
		.finding = note};
	struct fsck_input in[NODES];
	unsigned count = 0;

	said = (struct answer){.rc = 0};
	for (unsigned i = NODES; i-- > 0;) {
		if (!(which >> i & 1))
			continue;
		in[count] = (struct fsck_input){.name = copies.name[i]};
		OK(rt_disk_open(&in[count++].disk, copies.name[i],
			repair ? 0 : RT_DISK_READ_ONLY, &said.err));
	}
	said.rc = fsck_run_stores(in, count, &o, &said.result, &said.err);
}

static void expect(const char *codes)
{
	if (said.rc || strcmp(said.codes, codes) != 0) {
		fprintf(stderr, "fsck: %d %s:%s, not%s\n%s", said.rc, said.err.text,
			said.codes, codes, said.texts);
		abort();
	}
}

static void expect_error(int rc, const char *text)
{
	if (said.rc != rc || !strstr(said.err.text, text)) {
		fprintf(stderr, "fsck: %d %s, not %d %s\n", said.rc, said.err.text, rc,
			text);
		abort();
	}
	EQ(said.result.exit_code, FSCK_EXIT_OPERATIONAL);
}

/* Each store alone, and what they say. */
static void expect_alone(const char *first, const char *second, const char *third)
{
	const char *codes[NODES] = {first, second, third};

	for (unsigned i = 0; i < NODES; i++) {
		ask(1u << i, false);
		expect(codes[i]);
		HOLDS(said.result.alone);
	}
}

/* ---- the cases ---------------------------------------------------------------------------- */

/* Repaired, and then nothing is left. */
static void expect_repaired(void)
{
	ask(7, true);
	if (said.rc || said.result.left || !said.result.fixed) {
		fprintf(stderr, "fsck: %d %s:%s\n%s", said.rc, said.err.text, said.codes,
			said.texts);
		abort();
	}
	ask(7, false);
	expect("");
	HOLDS(!said.result.replayed);
}

static void expect_sound(void)
{
	ask(7, true);
	if (said.rc || said.result.left) {
		fprintf(stderr, "fsck: %d %s:%s\n%s", said.rc, said.err.text, said.codes,
			said.texts);
		abort();
	}
	ask(7, false);
	expect("");
	HOLDS(!said.result.replayed);
}

static void sound(void)
{
	ask(7, false);
	expect("");
	HOLDS(!said.result.alone && !said.result.replayed);
	EQ(said.result.inodes, 1 + NODES + NODES * FILES_EACH);
	expect_alone("", "", "");
}

static void leak_page(void)
{
	struct disk_group g;

	image_get(group_of(1), &g);
	g.free_pages--;
	g.bitmap[2000 / 8] |= 1;
	image_put(group_of(1), &g);
}

static void page_leaked(void)
{
	leak_page();
	ask(7, false);
	expect(" F0406");
	HOLDS(strstr(said.texts, "copy2: allocation group 0: 1 unused pages"));
	expect_alone("", "", "");
	expect_repaired();
}

/* A file of one shard gets pages of a file in another. */
static void use_twice(void)
{
	struct extent_place from, to;

	extent_find(2, &from);
	extent_find(1, &to);
	to.e.pid = from.e.pid;
	to.e.length = MIN(to.e.length, from.e.length);
	to.e.incarnation = from.e.incarnation;
	extent_put(&to);
}

static void page_used_twice(void)
{
	use_twice();
	ask(7, false);
	HOLDS(strstr(said.codes, "F0407") && strstr(said.codes, "F0406"));
	HOLDS(strstr(said.texts, "copy2: allocation group 0"));
	expect_alone("", "", "");
	expect_repaired();
}

static void pass_the_end(void)
{
	struct extent_place p;

	extent_find(1, &p);
	p.e.pid = pid_make(2, copies.sb[2].page_count - 1);
	p.e.length = 2;
	extent_put(&p);
}

static void extent_past_the_end(void)
{
	pass_the_end();
	ask(7, false);
	expect(" F0211 F0406");
	expect_alone("", "", "");
	expect_repaired();
}

static void flip_data(void)
{
	struct extent_place p;

	extent_find(2, &p);
	image_flip(p.e.pid);
}

static void data_flipped(void)
{
	flip_data();
	ask(7, false);
	expect(" F0501");
	expect_alone("", "", " F0410");
	expect_repaired();
}

static void flip_group(void)
{
	image_flip(group_of(1));
}

static void group_flipped(void)
{
	flip_group();
	ask(7, false);
	expect(" F0401");
	expect_alone("", " F0401", "");
	ask(2, true);
	expect(" F0401");
	EQ(said.result.exit_code, FSCK_EXIT_LEFT);
	expect_repaired();
}

/* What is one store's own is repaired alone, too. */
static void superblock_flipped(void)
{
	uint8_t byte = 0xff;

	rt_sim_disk_poke(copies.sim[1], 200, &byte, 1);
	ask(7, false);
	expect(" F0001");
	ask(2, true);
	expect(" F0001!");
	ask(7, false);
	expect("");
}

static uint64_t head_generation(unsigned i)
{
	uint64_t generation;

	rt_sim_disk_peek(copies.sim[1],
		copies.sb[1].log_offset + i * sizeof(struct disk_log_head) +
			offsetof(struct disk_log_head, generation),
		&generation, sizeof(generation));
	return generation;
}

/* The older one first: only the last that was written says that the log was closed cleanly. */
static void log_head_flipped(void)
{
	unsigned older = head_generation(0) > head_generation(1);

	for (unsigned i = 0; i < 2; i++) {
		uint64_t at = copies.sb[1].log_offset + (older ^ i) * PAGE_SIZE + 100;
		uint8_t byte = 0xff;

		rt_sim_disk_poke(copies.sim[1], at, &byte, 1);
		ask(7, false);
		expect(" F0010");
		ask(2, true);
		expect(" F0010!");
		ask(7, false);
		expect("");
	}
}

static void lose_table(void)
{
	static const uint8_t zeros[2 * PAGE_SIZE];

	rt_sim_disk_poke(copies.sim[1], copies.sb[1].table_offset, zeros, sizeof(zeros));
}

static void table_lost(void)
{
	lose_table();
	ask(2, true);
	expect(" F0020");
	expect_repaired();
}

/* A leaf of the tree in another store than the catalog's. */
static void lose_leaf(void)
{
	static const uint8_t zeros[PAGE_SIZE];
	struct extent_place p;

	extent_find(2, &p);
	HOLDS(pid_shard(p.leaf));
	rt_sim_disk_poke(
		copies.sim[pid_shard(p.leaf)], image_place(p.leaf), zeros, sizeof(zeros));
}

static void leaf_lost(void)
{
	lose_leaf();
	ask(7, false);
	expect(" F0101");
	expect_repaired();
}

static void store_missing(void)
{
	ask(3, false);
	expect_error(-EOPNOTSUPP, "shard 2");
	ask(6, false);
	expect_error(-ENOENT, "shard 0");
	HOLDS(strstr(said.err.text, "missing"));
}

static void store_of_another_volume(void)
{
	struct store_format format = {.node = 2, .shard = 1, .label = "other"};
	struct weft_error err = {0};
	struct rt_disk *disk;

	OK(rt_disk_open(&disk, copies.name[1], 0, &err));
	OK(volume_format(disk, &format, 0, 0, &err));
	rt_disk_close(disk);
	ask(7, false);
	expect_error(-EXDEV, "copy2 is the store of another volume");
}

/* Both nodes' superblocks say that they have shard 1. */
static void store_twice(void)
{
	uint8_t page[PAGE_SIZE];

	for (uint64_t at = 0; at < DISK_BYTES; at += PAGE_SIZE) {
		rt_sim_disk_peek(copies.sim[1], at, page, sizeof(page));
		rt_sim_disk_poke(copies.sim[2], at, page, sizeof(page));
	}
	ask(7, false);
	expect_error(-EEXIST, "are both the store of node 2");
}

static void (*const cases[])(void) = {sound, page_leaked, page_used_twice,
	extent_past_the_end, data_flipped, group_flipped, superblock_flipped,
	log_head_flipped, table_lost, leaf_lost, store_missing, store_of_another_volume,
	store_twice};

static void case_main(void *arg)
{
	(*(void (*const *)(void))arg)();
}

/* On a node of its own. True: it lost its power. */
static bool run_one(void (*const *fn)(void))
{
	unsigned node = rt_sim_node_new("fsck");
	bool dead;

	OK(rt_sim_spawn_on(node, "case", case_main, (void *)fn));
	dead = rt_sim_node_wait(node);
	rt_sim_node_kill(node);
	return dead;
}

static void volume_make(struct world *w)
{
	OK(run_world(w));
	for (unsigned i = 0; i < NODES; i++)
		copies.from[i] = w->node[i].sim_disk;
}

static int run_cases(void *arg)
{
	volume_make((struct world *)arg);
	for (unsigned i = 0; i < ARRAY_SIZE(cases); i++) {
		copies_make();
		HOLDS(!run_one(&cases[i]));
		copies_drop();
	}
	return 0;
}

/* ---- repairs that are cut --------------------------------------------------------- */

static void repair(void)
{
	ask(7, true);
}

static void (*const damages[])(void) = {
	leak_page, use_twice, pass_the_end, flip_data, flip_group, lose_table, lose_leaf};
static void (*const repairs)(void) = repair;
static void (*const last_repair)(void) = expect_sound;
static unsigned cuts_made;

static int run_cuts(void *arg)
{
	volume_make((struct world *)arg);
	for (unsigned i = 0; i < ARRAY_SIZE(damages); i++) {
		copies_make();
		HOLDS(!run_one(&damages[i]));
		HOLDS(!run_one(&damages[pick(3)]));
		for (unsigned tries = 0; tries < 5; tries++) {
			struct rt_sim_disk *disk = copies.sim[pick(NODES)];

			rt_sim_disk_cut_after(disk, 1 + pick(250));
			cuts_made += run_one(&repairs);
			rt_sim_disk_cut_after(disk, 0);
		}
		HOLDS(!run_one(&last_repair));
		copies_drop();
	}
	return 0;
}

/* ---- the runner ------------------------------------------------------------------- */

static void run_seed(uint64_t seed, int (*fn)(void *))
{
	struct world *w = (struct world *)calloc(1, sizeof(*w));

	assert_non_null(w);
	w->nodes = NODES;
	w->work = make_files;
	w->check = check_nothing;
	assert_int_equal(rt_sim_run(seed, NULL, fn, w), 0);
	free(w);
}

static void damage_of_three_stores_is_found(void **state)
{
	run_seed(1, run_cases);
}

static void repairs_that_are_cut_can_be_made_again(void **state)
{
	uint64_t seed = seeds_first(), seeds = seeds_count(SEEDS);

	for (; seeds--; seed++)
		run_seed(seed, run_cuts);
	print_message("%u cuts\n", cuts_made);
	assert_true(cuts_made > 0);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(damage_of_three_stores_is_found),
		cmocka_unit_test(repairs_that_are_cut_can_be_made_again),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
