/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scrub: pages that are written while it reads are no damage, damaged ones are, and a power cut
 * loses neither its place nor its count.
 */
#include "engine/volume/scrub.h"
#include "tests/unit/volume_fixture.h"

#define SEEDS 40u

static struct {
	struct rt_sim_disk *disk;
	bool written; /* the writer has ended, or the reader is to end */
	uint64_t pages, damaged, healed;
	uint64_t table_at, pages_at;
	uint64_t alone_ns, beside_ns;
} run;

/* Changes the page of the group, and writes it back, over and over. */
static void keep_writing(void *arg)
{
	struct volume *v = arg;
	struct space_run taken;

	for (unsigned i = 0; i < 60; i++) {
		OK(space_reserve(v->space, PID_NONE, 1, 0, &taken));
		runs_take(v, &taken, 1);
		OK(cache_page_persist(v->cache, space_group_of(v->space, taken.pid)));
		if (i % 8 == 7)
			OK(cache_checkpoint(v->cache));
	}
	run.written = true;
}

static void scrub_once(struct scrub *s)
{
	struct scrub_status st;

	OK(scrub_start(s, 1ull << 40, true));
	do {
		rt_sleep_ns(10000);
		scrub_status(s, &st);
	} while (st.progress.state == DISK_SCRUB_RUNNING);
	run.pages += st.progress.pages;
	run.damaged += st.progress.damaged;
	run.healed += st.healed;
}

static void scrub_beside_writer(void *arg)
{
	struct volume *v = volume_must("d", (struct open_how){.background = true});
	struct rt_task *writer;
	struct scrub *s;

	(void)arg;
	OK(scrub_open(&s, v));
	OK(rt_task_spawn(&writer, "writer", keep_writing, v));
	while (!run.written)
		scrub_once(s);
	rt_task_join(writer);
	scrub_close(s);
	OK(volume_close(v));
}

static int race_once(void *arg)
{
	(void)arg;
	run.written = false;
	run.disk = rt_sim_disk_create("d", 8 * MIB, NULL);
	volume_make("d", 2 * MIB);
	CHECK(!node_run(scrub_beside_writer, NULL));
	return 0;
}

static void pages_and_descriptors_that_are_being_written_are_no_damage(void **state)
{
	(void)state;
	run.pages = run.damaged = run.healed = 0;
	for (uint64_t seed = 1; seed <= SEEDS; seed++)
		assert_int_equal(rt_sim_run(seed, NULL, race_once, NULL), 0);
	assert_true(run.pages > SEEDS);
	assert_int_equal(run.damaged, 0);
	/* nothing was even looked at as damage that an image in memory heals */
	assert_int_equal(run.healed, 0);
}

/* ---- after a power cut --------------------------------------------------------- */

static void write_to_a_cut(void *arg)
{
	struct volume *v = volume_must("d", (struct open_how){.background = true});

	(void)arg;
	rt_sim_disk_cut_after(run.disk, 1 + pick(200));
	for (;;)
		keep_writing(v);
}

static void scrub_what_is_left(void *arg)
{
	struct volume *v = volume_must("d", (struct open_how){.background = true});
	struct scrub *s;

	(void)arg;
	OK(scrub_open(&s, v));
	scrub_once(s);
	scrub_close(s);
	OK(volume_close(v));
}

static int tear_once(void *arg)
{
	(void)arg;
	run.disk = rt_sim_disk_create("d", 8 * MIB, NULL);
	volume_make("d", 2 * MIB);
	CHECK(node_run(write_to_a_cut, NULL));
	rt_sim_disk_cut_after(run.disk, 0);
	CHECK(!node_run(scrub_what_is_left, NULL));
	return 0;
}

static void what_a_power_cut_has_torn_is_no_damage(void **state)
{
	(void)state;
	run.damaged = 0;
	for (uint64_t seed = 1; seed <= 5 * SEEDS; seed++) {
		pick_seed(seed);
		assert_int_equal(rt_sim_run(seed, NULL, tear_once, NULL), 0);
	}
	assert_int_equal(run.damaged, 0);
}

/* ---- damage ---------------------------------------------------------------------- */

static void poke(uint64_t at)
{
	const uint64_t other = 0x1234567812345678;

	rt_sim_disk_poke(run.disk, at, &other, sizeof(other));
}

static void layout_note(struct volume *v)
{
	const struct disk_superblock *sb = store_superblock(v->store);

	run.table_at = sb->table_offset;
	run.pages_at = sb->pages_offset;
}

/* The page of the root: the one tree page of a new volume. */
static void damage_each(void *arg)
{
	struct volume *v = volume_must("d", (struct open_how){.background = true});
	char text[SCRUB_TEXT_MAX];
	struct scrub *s;

	(void)arg;
	layout_note(v);
	OK(scrub_open(&s, v));
	scrub_once(s);
	CHECK(run.damaged == 0);
	poke(run.pages_at + pid_slot(v->catalog.root_pid) * PAGE_SIZE + 3000);
	poke(run.pages_at + 3000);                  /* the catalog */
	poke(run.pages_at + PAGE_SIZE + 8);         /* the group */
	poke(run.table_at + 2 * 2 * PAGE_SIZE + 8); /* block 2: its slots are free */
	scrub_once(s);
	CHECK(run.damaged == 4);
	CHECK(scrub_finding(s, 0, text) && strstr(text, "block 2 of the table): both copies"));
	CHECK(scrub_finding(s, 1, text) && strstr(text, "the catalog, page 0:0"));
	CHECK(scrub_finding(s, 2, text) && strstr(text, "an allocation group, page 0:1"));
	CHECK(scrub_finding(s, 3, text) && strstr(text, "the metadata tree, page 0:2"));
	CHECK(!scrub_finding(s, 4, text));
	scrub_close(s);
	volume_close(v);
}

static int damage_once(void *arg)
{
	(void)arg;
	run.disk = rt_sim_disk_create("d", 8 * MIB, NULL);
	volume_make("d", 2 * MIB);
	CHECK(!node_run(damage_each, NULL));
	return 0;
}

static void each_kind_of_damage_is_named(void **state)
{
	(void)state;
	run.damaged = 0;
	assert_int_equal(rt_sim_run(1, NULL, damage_once, NULL), 0);
}

/* ---- images that nothing reads --------------------------------------------------- */

#define FILE_INO 77u

/* The file's first extent names the run with this incarnation; 0: no more. */
static void extent_set(struct volume *v, const struct space_run *to, uint64_t incarnation,
	bool take)
{
	struct disk_extent e = {.pid = to->pid, .length = 1, .incarnation = incarnation};
	struct disk_key key = disk_key(FILE_INO, DISK_ITEM_EXTENT, 5);
	struct txn *x;
	int rc;

	OK(txn_begin(v->tree, false, &x));
	for (;;) {
		if (take)
			OK(txn_take(x, to));
		OK(incarnation ? txn_write(x, key, &e, sizeof(e)) : txn_delete(x, key));
		rc = txn_commit(x, NULL);
		if (rc != -EAGAIN)
			break;
		txn_restart(x);
	}
	OK(rc);
	txn_end(x);
}

static void page_fill(struct volume *v, const struct space_run *to)
{
	struct guard g;

	OK(guard_fill(v->cache, to->pid, to->incarnation, &g));
	memset(g.image, 'x', PAGE_SIZE);
	guard_mark_data(&g);
	guard_release_dirty(v->cache, &g, false);
	OK(cache_page_persist(v->cache, to->pid));
}

/* Returns the findings of a scrub. */
static uint64_t damage_of(struct scrub *s)
{
	run.damaged = 0;
	scrub_once(s);
	return run.damaged;
}

static void damage_a_file(void *arg)
{
	struct volume *v = volume_must("d", (struct open_how){.background = true});
	char text[SCRUB_TEXT_MAX];
	struct space_run page;
	struct scrub *s;

	(void)arg;
	layout_note(v);
	OK(scrub_open(&s, v));
	OK(space_reserve(v->space, PID_NONE, 1, 0, &page));
	extent_set(v, &page, page.incarnation, true);
	page_fill(v, &page);
	CHECK(damage_of(s) == 0);
	rt_sim_disk_fail(run.disk,
		&(struct rt_sim_fail){.ops = RT_SIM_FAIL_READ,
			.n = 1,
			.sticky = true,
			.offset = run.pages_at + pid_slot(page.pid) * PAGE_SIZE,
			.length = PAGE_SIZE});
	CHECK(damage_of(s) == 1);
	CHECK(scrub_finding(s, 0, text) && strstr(text, "the device does not give it"));
	rt_sim_disk_fail(run.disk, &(struct rt_sim_fail){0});
	poke(run.pages_at + pid_slot(page.pid) * PAGE_SIZE + 8);
	CHECK(damage_of(s) == 1);
	CHECK(scrub_finding(s, 0, text) && strstr(text, "inode 77, bytes 20480 to 24575,"));

	/* as after a cut that lost the descriptor of a newer image: it reads as zeros */
	extent_set(v, &page, page.incarnation + 1, false);
	CHECK(damage_of(s) == 0);
	/* as a page that is reserved, or was freed */
	extent_set(v, &page, 0, false);
	CHECK(damage_of(s) == 0);
	scrub_close(s);
	OK(volume_close(v));
}

static int file_once(void *arg)
{
	(void)arg;
	run.disk = rt_sim_disk_create("d", 8 * MIB, NULL);
	volume_make("d", 2 * MIB);
	CHECK(!node_run(damage_a_file, NULL));
	return 0;
}

static void an_image_that_nothing_reads_is_no_damage(void **state)
{
	(void)state;
	assert_int_equal(rt_sim_run(1, NULL, file_once, NULL), 0);
}

/* ---- other users of the device --------------------------------------------------- */

/* Reads the catalog, over and over. */
static void keep_reading(void *arg)
{
	struct volume *v = arg;
	void *image = rt_alloc_pages(PAGE_SIZE);

	while (!run.written) {
		struct store_read r = {.pid = pid_make(0, 0), .image = image};

		store_read_pages(v->store, &r, 1);
		OK(r.result);
		rt_sleep_ns(10000);
	}
	rt_free_pages(image, PAGE_SIZE);
}

static uint64_t time_of(struct scrub *s)
{
	uint64_t began_ns = rt_now_ns();

	scrub_once(s);
	return rt_now_ns() - began_ns;
}

static void scrub_beside_reader(void *arg)
{
	struct volume *v = volume_must("d", (struct open_how){.background = true});
	struct rt_task *reader;
	struct scrub *s;

	(void)arg;
	OK(scrub_open(&s, v));
	scrub_once(s);
	run.alone_ns += time_of(s);
	run.written = false;
	OK(rt_task_spawn(&reader, "reader", keep_reading, v));
	run.beside_ns += time_of(s);
	run.written = true;
	rt_task_join(reader);
	scrub_close(s);
	OK(volume_close(v));
}

static int rest_once(void *arg)
{
	(void)arg;
	run.disk = rt_sim_disk_create("d", 256 * MIB, NULL);
	volume_make("d", 2 * MIB);
	CHECK(!node_run(scrub_beside_reader, NULL));
	return 0;
}

static void a_scrub_rests_while_others_use_the_device(void **state)
{
	(void)state;
	for (uint64_t seed = 1; seed <= SEEDS / 4; seed++)
		assert_int_equal(rt_sim_run(seed, NULL, rest_once, NULL), 0);
	assert_true(run.beside_ns > 3 * run.alone_ns / 2);
}

/* ---- the position ---------------------------------------------------------------- */

/* Runs slowly, until the store knows of some way, and loses the power. */
static void scrub_to_a_cut(void *arg)
{
	struct volume *v = volume_must("d", (struct open_how){.background = true});
	struct disk_scrub noted = {0};
	struct scrub *s;

	(void)arg;
	layout_note(v);
	poke(run.table_at + 2 * 2 * PAGE_SIZE + 8);
	OK(scrub_open(&s, v));
	OK(scrub_start(s, SCRUB_RATE_MIN, false));
	while (noted.pages == 0) {
		rt_sleep_ns(1000000000);
		store_scrub_get(v->store, &noted);
	}
	rt_sim_node_kill(rt_sim_node());
}

static void scrub_to_the_end(void *arg)
{
	struct volume *v = volume_must("d", (struct open_how){.background = true});
	struct scrub_status st;
	struct scrub *s;

	(void)arg;
	OK(scrub_open(&s, v)); /* it goes on by itself */
	do {
		rt_sleep_ns(1000000000);
		scrub_status(s, &st);
		CHECK(st.progress.state != DISK_SCRUB_STOPPED);
	} while (st.progress.state == DISK_SCRUB_RUNNING);
	CHECK(st.progress.state == DISK_SCRUB_ENDED && st.progress.damaged == 1);
	scrub_close(s);
	volume_close(v);

	v = volume_must("d", (struct open_how){.read_only = true});
	store_scrub_get(v->store, &st.progress);
	CHECK(st.progress.state == DISK_SCRUB_ENDED && st.progress.damaged == 1);
	OK(volume_close(v));
}

static int cut_once(void *arg)
{
	(void)arg;
	run.disk = rt_sim_disk_create("d", 8 * MIB, NULL);
	volume_make("d", 2 * MIB);
	CHECK(node_run(scrub_to_a_cut, NULL));
	CHECK(!node_run(scrub_to_the_end, NULL));
	return 0;
}

static void a_scrub_goes_on_after_a_power_cut_and_counts_damage_once(void **state)
{
	(void)state;
	for (uint64_t seed = 1; seed <= SEEDS; seed++)
		assert_int_equal(rt_sim_run(seed, NULL, cut_once, NULL), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(pages_and_descriptors_that_are_being_written_are_no_damage),
		cmocka_unit_test(what_a_power_cut_has_torn_is_no_damage),
		cmocka_unit_test(each_kind_of_damage_is_named),
		cmocka_unit_test(an_image_that_nothing_reads_is_no_damage),
		cmocka_unit_test(a_scrub_rests_while_others_use_the_device),
		cmocka_unit_test(a_scrub_goes_on_after_a_power_cut_and_counts_damage_once),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
