/* SPDX-License-Identifier: Apache-2.0 */
/* The descriptor table: a cache of a few blocks against a model, power cuts, bad devices.
 */
#include "tests/unit/store_test.h"

#define DISK_BYTES  (64 * MIB)
#define SIM_SEEDS   3
#define SMALL_CACHE (4 * PAGE_SIZE)
#define PAGES       8000u /* in 48 blocks */

static struct rt_sim_disk *disk;
static struct disk_superblock made;

static void make(void)
{
	disk = rt_sim_disk_create("d", DISK_BYTES, NULL);
	store_make("d", NULL, &made);
	CHECK(made.page_count >= PAGES);
}

static uint64_t copy_place(uint64_t block, unsigned copy)
{
	return made.table_offset + (2 * block + copy) * PAGE_SIZE;
}

/* Descriptors need no real checksums here: the table does not look at them. */
static int install(struct store *s, page_id pid, uint64_t version, lsn_t lsn)
{
	struct page_descriptor d = {
		.incarnation = 1, .version = version, .checksum = pid * 1000 + version};

	return store_descriptor_install(s, pid, &d, lsn);
}

static uint64_t version_of(struct store *s, page_id pid)
{
	struct page_descriptor d;

	CHECK(store_descriptor_get(s, pid, &d) == 0);
	CHECK(d.incarnation == (d.version ? 1 : 0));
	CHECK(d.checksum == (d.version ? pid * 1000 + d.version : 0));
	return d.version;
}

SIM_TEST(a_few_cached_blocks_hold_what_a_model_says)
{
	uint64_t *model;
	struct store *s;
	lsn_t lsn = 1000;

	make();
	model = rt_alloc(PAGES * sizeof(*model));
	s = store_open_named("d", SMALL_CACHE);
	store_slots_unused(s, 1, PAGES - 1);
	for (unsigned i = 0; i < 6000; i++) {
		page_id pid = rt_random() % PAGES;

		switch (rt_random() % 8) {
		case 0:
		case 1:
		case 2:
			CHECK(install(s, pid, ++model[pid], ++lsn) == 0);
			break;
		case 3: /* older: no effect */
			if (model[pid] > 1)
				CHECK(install(s, pid, model[pid] - 1, ++lsn) == 0);
			break;
		default:
			CHECK(version_of(s, pid) == model[pid]);
		}
		if (rt_random() % 40 == 0) {
			lsn_t upto =
				rt_random() % 2 ? LSN_MAX : store_table_oldest(s) + 5;

			CHECK(store_table_write(s, upto) == 0);
			CHECK(store_table_oldest(s) >= upto);
		}
		if (rt_random() % 1000 == 0) {
			CHECK(store_table_write(s, LSN_MAX) == 0);
			CHECK(store_table_dirty(s) == 0 && !store_table_crowded(s));
			store_close_disk(s);
			s = store_open_named("d", SMALL_CACHE);
		}
		CHECK(s->table.in_use <= s->table.limit);
		CHECK(store_table_dirty(s) <= s->table.limit);
	}
	CHECK(store_table_write(s, LSN_MAX) == 0);
	store_close_disk(s);
	s = store_open_named("d", 0);
	for (page_id pid = 0; pid < PAGES; pid++)
		CHECK(version_of(s, pid) == model[pid]);
	store_close_disk(s);
	rt_free(model);
	return 0;
}

SIM_TEST(installs_beyond_every_bound_go_on_and_say_crowded)
{
	struct store *s;

	make();
	s = store_open_named("d", SMALL_CACHE);
	for (unsigned b = 0; b < 40; b++) {
		CHECK(install(s, b * DISK_TABLE_SLOTS, 1, 100 + b) == 0);
		CHECK(store_table_crowded(s) == (store_table_dirty(s) > 2));
		CHECK(store_table_oldest(s) >= 100 && store_table_oldest(s) <= 100 + b);
	}
	CHECK(store_table_dirty(s) <= 16);
	CHECK(store_table_write(s, LSN_MAX) == 0);
	CHECK(version_of(s, 40 * DISK_TABLE_SLOTS) == 0);
	CHECK(version_of(s, 41 * DISK_TABLE_SLOTS) == 0);
	CHECK(s->table.in_use <= s->table.bound); /* what went beyond was given back */
	for (unsigned b = 0; b < 40; b++)
		CHECK(version_of(s, b * DISK_TABLE_SLOTS) == 1);
	store_close_disk(s);
	return 0;
}

SIM_TEST(the_table_writes_what_is_older_than_asked_only)
{
	struct store *s;

	make();
	s = store_open_named("d", 0);
	CHECK(install(s, 0, 1, 500) == 0);
	CHECK(install(s, 1, 1, 400) == 0); /* the same block: the older one counts */
	CHECK(install(s, 1000, 1, 600) == 0);
	CHECK(store_table_oldest(s) == 400 && store_table_dirty(s) == 2);
	CHECK(store_table_write(s, 400) == 0);
	CHECK(store_table_oldest(s) == 400);
	CHECK(store_table_write(s, 401) == 0);
	CHECK(store_table_oldest(s) == 600 && store_table_dirty(s) == 1);
	CHECK(store_table_write(s, LSN_MAX) == 0);
	CHECK(store_table_oldest(s) == LSN_MAX && store_table_dirty(s) == 0);
	store_close_disk(s);
	return 0;
}

/* ---- reads ----------------------------------------------------------------------- */

static uint64_t table_reads(struct store *s)
{
	return atomic_load(&store_counters(s)->table_reads);
}

SIM_TEST(a_block_that_was_never_used_is_read_only_after_it_was_evicted)
{
	const unsigned first = 10, end = 30; /* blocks */
	struct store *s;

	make();
	s = store_open_named("d", SMALL_CACHE);
	/* the blocks at both ends describe other slots, too */
	store_slots_unused(
		s, first * DISK_TABLE_SLOTS - 1, (end - first) * DISK_TABLE_SLOTS + 2);
	for (unsigned b = first; b < end; b++) {
		CHECK(version_of(s, b * DISK_TABLE_SLOTS) == 0);
		CHECK(install(s, b * DISK_TABLE_SLOTS, 1, b) == 0);
		CHECK(store_table_write(s, LSN_MAX) == 0);
	}
	CHECK(table_reads(s) == 0);
	/* what was written meanwhile is not made again */
	for (unsigned b = first; b < end; b++)
		CHECK(version_of(s, b * DISK_TABLE_SLOTS) == 1);
	CHECK(table_reads(s) == end - first);
	CHECK(version_of(s, first * DISK_TABLE_SLOTS - 1) == 0);
	CHECK(version_of(s, end * DISK_TABLE_SLOTS) == 0);
	CHECK(table_reads(s) == end - first + 2);
	store_close_disk(s);
	s = store_open_named("d", 0);
	for (unsigned b = first; b < end; b++)
		CHECK(version_of(s, b * DISK_TABLE_SLOTS) == 1);
	store_close_disk(s);
	return 0;
}

/* `bad`: the first copy of this block cannot be read. TABLE_LOAD_MAX: all can. */
static void load_together(unsigned bad)
{
	struct store_write writes[TABLE_LOAD_MAX * 2];
	struct store *s = store_open_named("d", 0);
	uint64_t before = atomic_load(&store_counters(s)->read_requests);

	for (unsigned i = 0; i < ARRAY_SIZE(writes); i++)
		writes[i] = (struct store_write){
			.pid = i / 2 * DISK_TABLE_SLOTS + i % 2 * 100};
	if (bad < TABLE_LOAD_MAX)
		rt_sim_disk_fail(disk, &(struct rt_sim_fail){.ops = RT_SIM_FAIL_READ,
					       .n = 1,
					       .sticky = true,
					       .offset = copy_place(bad, 0),
					       .length = 512});
	store_descriptors_load(s, writes, ARRAY_SIZE(writes));
	CHECK(table_reads(s) == TABLE_LOAD_MAX);
	CHECK(atomic_load(&store_counters(s)->read_requests) == before + 1);
	rt_sim_disk_fail(disk, &(struct rt_sim_fail){0});
	for (unsigned b = 0; b < TABLE_LOAD_MAX; b++)
		CHECK(version_of(s, b * DISK_TABLE_SLOTS + 100) == b + 1);
	CHECK(table_reads(s) == TABLE_LOAD_MAX + (bad < TABLE_LOAD_MAX));
	store_close_disk(s);
}

SIM_TEST(adjacent_blocks_are_read_with_one_request)
{
	struct store *s;

	make();
	s = store_open_named("d", 0);
	for (unsigned b = 0; b < TABLE_LOAD_MAX; b++)
		CHECK(install(s, b * DISK_TABLE_SLOTS + 100, b + 1, 100) == 0);
	CHECK(store_table_write(s, LSN_MAX) == 0);
	store_close_disk(s);
	load_together(TABLE_LOAD_MAX);
	load_together(5);
	return 0;
}

/* ---- damage ---------------------------------------------------------------------- */

static void damage(uint64_t block, unsigned copy)
{
	uint64_t garbage = rt_random() | 1;

	rt_sim_disk_poke(
		disk, copy_place(block, copy) + 64 + rt_random() % 4000, &garbage, 8);
}

SIM_TEST(a_block_bad_in_both_copies_is_damage_never_empty)
{
	static const uint8_t zeros[PAGE_SIZE];
	struct store *s;
	struct page_descriptor d;

	make();
	rt_sim_disk_poke(disk, copy_place(3, 0), zeros, PAGE_SIZE);
	damage(5, 0);
	s = store_open_named("d", 0);
	for (unsigned b = 2; b <= 6; b++) {
		bool bad = b == 3 || b == 5;
		page_id pid = b * DISK_TABLE_SLOTS + 7;

		CHECK(page_get(s, pid, 1).result == (bad ? -EUCLEAN : STORE_ZEROS));
		CHECK(store_descriptor_get(s, pid, &d) == (bad ? -EUCLEAN : 0));
		CHECK(install(s, pid, 1, 100) == (bad ? -EUCLEAN : 0));
	}
	store_close_disk(s);
	return 0;
}

SIM_TEST(a_block_of_another_place_is_damage)
{
	uint8_t block[PAGE_SIZE];
	struct store *s;

	make();
	rt_sim_disk_peek(disk, copy_place(3, 0), block, PAGE_SIZE);
	rt_sim_disk_poke(disk, copy_place(4, 0), block, PAGE_SIZE);
	s = store_open_named("d", 0);
	CHECK(page_get(s, 4 * DISK_TABLE_SLOTS, 1).result == -EUCLEAN);
	CHECK(page_get(s, 3 * DISK_TABLE_SLOTS, 1).result == STORE_ZEROS);
	store_close_disk(s);
	return 0;
}

SIM_TEST(a_rotten_newer_copy_never_turns_pages_into_zeros)
{
	struct store *s;

	make();
	s = store_open_named("d", 0);
	page_persist(s, 10, 1, 1, 100);
	CHECK(store_table_write(s, LSN_MAX) == 0); /* to the second copy */
	store_close_disk(s);
	damage(0, 1);
	s = store_open_named("d", 0);
	CHECK(page_get(s, 10, 1).result == -EUCLEAN);
	/* In a recovery the log brings the lost descriptor back. */
	struct page_descriptor d = descriptor_make(s, 10, 1, 1);
	CHECK(store_candidate_add(s, 10, &d, 100) == 0);
	CHECK(page_get(s, 10, 1).result == 0);
	CHECK(page_get(s, 11, 1).result == STORE_ZEROS);
	CHECK(store_table_write(s, LSN_MAX) == 0);
	store_close_disk(s);
	s = store_open_named("d", 0);
	CHECK(page_get(s, 10, 1).result == 0 && page_get(s, 11, 1).result == STORE_ZEROS);
	store_close_disk(s);
	return 0;
}

SIM_TEST(a_failed_write_or_flush_keeps_the_block_dirty)
{
	const unsigned ops[] = {RT_SIM_FAIL_WRITE, RT_SIM_FAIL_FLUSH};
	struct store *s;

	make();
	s = store_open_named("d", 0);
	for (unsigned i = 0; i < 8; i++) {
		CHECK(install(s, 0, 2 * i + 1, 1000 + i) == 0);
		CHECK(install(s, 1000, 2 * i + 1, 1000 + i) == 0);
		rt_sim_disk_fail(disk, &(struct rt_sim_fail){.ops = ops[i % 2], .n = 1});
		CHECK(store_table_write(s, LSN_MAX) == -EIO);
		CHECK(store_table_oldest(s) == 1000 + i && store_table_dirty(s) >= 1);
		CHECK(install(s, 0, 2 * i + 2, 2000 + i) == 0);
		CHECK(store_table_oldest(s) == 1000 + i);
		rt_sim_disk_fail(disk, &(struct rt_sim_fail){0});
		CHECK(store_table_write(s, LSN_MAX) == 0 && store_table_dirty(s) == 0);
		if (i % 2)
			continue; /* after a failed flush the simulator forgets earlier
				     writes */
		store_close_disk(s);
		s = store_open_named("d", 0);
		CHECK(version_of(s, 0) == 2 * i + 2 && version_of(s, 1000) == 2 * i + 1);
	}
	store_close_disk(s);
	return 0;
}

SIM_TEST(a_block_that_cannot_be_read_is_an_error_of_its_pages_alone)
{
	struct store *s;
	struct page_descriptor d;

	make();
	s = store_open_named("d", SMALL_CACHE);
	rt_sim_disk_fail(disk, &(struct rt_sim_fail){.ops = RT_SIM_FAIL_READ,
				       .n = 1,
				       .sticky = true,
				       .offset = copy_place(2, 1),
				       .length = 512});
	struct store_read reads[5];
	for (unsigned i = 0; i < 5; i++)
		reads[i] = (struct store_read){
			.pid = i * DISK_TABLE_SLOTS, .incarnation = 1};
	store_read_pages(s, reads, 5);
	for (unsigned i = 0; i < 5; i++)
		CHECK(reads[i].result == (i == 2 ? -EIO : STORE_ZEROS));
	CHECK(install(s, 2 * DISK_TABLE_SLOTS, 1, 1) == -EIO);
	CHECK(store_descriptor_get(s, 2 * DISK_TABLE_SLOTS, &d) == -EIO);
	rt_sim_disk_fail(disk, &(struct rt_sim_fail){0});
	CHECK(version_of(s, 2 * DISK_TABLE_SLOTS) == 0);
	store_close_disk(s);
	return 0;
}

SIM_TEST(with_every_block_dirty_and_a_failing_device_nobody_hangs)
{
	struct store *s;
	unsigned done = 0;

	make();
	s = store_open_named("d", SMALL_CACHE);
	rt_sim_disk_fail(disk,
		&(struct rt_sim_fail){.ops = RT_SIM_FAIL_WRITE, .n = 1, .sticky = true});
	while (install(s, done * DISK_TABLE_SLOTS, 1, 100) == 0)
		done++;
	CHECK(done == s->table.limit);
	CHECK(page_get(s, 40 * DISK_TABLE_SLOTS, 1).result == -EIO);
	CHECK(page_get(s, 0, 1).result == -EUCLEAN); /* there, without an image */
	rt_sim_disk_fail(disk, &(struct rt_sim_fail){0});
	CHECK(install(s, done * DISK_TABLE_SLOTS, 1, 100) == 0);
	for (unsigned b = 0; b <= done; b++)
		CHECK(version_of(s, b * DISK_TABLE_SLOTS) == 1);
	store_close_disk(s);
	return 0;
}

/* ---- many tasks ------------------------------------------------------------------ */

#define TASKS 6u

static struct {
	struct store *s;
	uint64_t version[TASKS][PAGES / TASKS];
	_Atomic uint64_t lsn;
	bool stop;
} many;

static void many_task(void *arg)
{
	unsigned task = (unsigned)(uintptr_t)arg;

	for (unsigned i = 0; i < 800; i++) {
		unsigned own = (unsigned)(rt_random() % (PAGES / TASKS));
		page_id pid = own * TASKS + task;

		if (rt_random() % 3 == 0)
			CHECK(install(many.s, pid, ++many.version[task][own],
				      atomic_fetch_add(&many.lsn, 1)) == 0);
		else
			CHECK(version_of(many.s, pid) == many.version[task][own]);
		if (rt_random() % 4 == 0) {
			struct store_read reads[20];

			for (unsigned k = 0; k < 20; k++)
				reads[k] =
					(struct store_read){.pid = rt_random() % PAGES};
			store_read_pages(many.s, reads, 20);
			for (unsigned k = 0; k < 20; k++)
				CHECK(reads[k].result >= 0);
		}
	}
}

static void writer_task(void *arg)
{
	while (!many.stop) {
		lsn_t oldest = store_table_oldest(many.s);

		CHECK(store_table_write(
			      many.s, oldest == LSN_MAX ? oldest : oldest + 20) == 0);
		rt_sleep_ns(100000);
	}
}

SIM_TEST(tasks_that_share_a_tiny_cache_see_their_own_descriptors)
{
	struct rt_task *tasks[TASKS], *writer;

	make();
	memset(&many, 0, sizeof(many));
	many.lsn = 1;
	many.s = store_open_named("d", SMALL_CACHE);
	CHECK(rt_task_spawn(&writer, "writer", writer_task, NULL) == 0);
	for (unsigned i = 0; i < TASKS; i++)
		CHECK(rt_task_spawn(&tasks[i], "user", many_task, (void *)(uintptr_t)i) ==
			0);
	for (unsigned i = 0; i < TASKS; i++)
		rt_task_join(tasks[i]);
	many.stop = true;
	rt_task_join(writer);
	CHECK(store_table_write(many.s, LSN_MAX) == 0);
	store_close_disk(many.s);
	many.s = store_open_named("d", 0);
	for (page_id pid = 0; pid < PAGES / TASKS * TASKS; pid++)
		CHECK(version_of(many.s, pid) == many.version[pid % TASKS][pid / TASKS]);
	store_close_disk(many.s);
	return 0;
}

/* ---- power cuts
 * --------------------------------------------------------------------------------- The
 * log is a list of all installs; its tail is what store_table_oldest let go. After a cut,
 * every descriptor is an installed one, none is older than the tail says, and with the
 * log from the tail on all are the newest.
 */
#define CUT_LOG 3000u

static struct {
	uint32_t pid[CUT_LOG];
	uint64_t version[CUT_LOG];
	unsigned count; /* records; the LSN is the index */
	unsigned tail;
	uint64_t newest[PAGES], floor[PAGES];
} cut;

static void cut_replay(struct store *s)
{
	for (unsigned i = cut.tail; i < cut.count; i++)
		CHECK(install(s, cut.pid[i], cut.version[i], i) == 0);
}

static void cut_let_go(struct store *s)
{
	lsn_t oldest = store_table_oldest(s);
	unsigned tail = oldest == LSN_MAX ? cut.count : (unsigned)oldest;

	for (; cut.tail < tail; cut.tail++)
		cut.floor[cut.pid[cut.tail]] =
			MAX(cut.floor[cut.pid[cut.tail]], cut.version[cut.tail]);
}

static void cut_task(void *arg)
{
	struct store *s = store_open_named("d", SMALL_CACHE);

	if (cut.count == 1)
		store_slots_unused(s, 0, PAGES);
	cut_replay(s);
	for (;;) {
		uint32_t pid = (uint32_t)(rt_random() % 40 * (PAGES / 40));
		unsigned i = cut.count;

		if (i == CUT_LOG)
			return;
		cut.pid[i] = pid;
		cut.version[i] = ++cut.newest[pid];
		cut.count++;
		CHECK(install(s, pid, cut.version[i], i) == 0);
		if (rt_random() % 10 == 0) {
			CHECK(store_table_write(s, cut.tail + rt_random() % 30) == 0);
			cut_let_go(s);
		}
	}
}

static void cut_check(void)
{
	struct store *s = store_open_named("d", 0);

	for (page_id pid = 0; pid < PAGES; pid += PAGES / 40) {
		uint64_t version = version_of(s, pid);

		CHECK(version >= cut.floor[pid] && version <= cut.newest[pid]);
	}
	cut_replay(s);
	for (page_id pid = 0; pid < PAGES; pid += PAGES / 40)
		CHECK(version_of(s, pid) == cut.newest[pid]);
	store_close_disk(s);
}

static int cuts_run(void *arg)
{
	make();
	memset(&cut, 0, sizeof(cut));
	cut.count = cut.tail = 1;
	for (unsigned n = 0; n < 60 && cut.count < CUT_LOG; n++) {
		unsigned node = rt_sim_node_new("n");

		rt_sim_disk_cut_after(disk, 1 + rt_random() % 200);
		CHECK(rt_sim_spawn_on(node, "cut", cut_task, NULL) == 0);
		rt_sim_node_wait(node);
		rt_sim_node_kill(node);
		rt_sim_disk_cut_after(disk, 0);
		cut_check();
	}
	return 0;
}

static void power_cuts_leave_old_or_new_descriptors_never_neither(void **state)
{
	for (uint64_t seed = 1; seed <= 20; seed++)
		assert_int_equal(rt_sim_run(seed, NULL, cuts_run, NULL), 0);
}

/* ---- a flush that failed, and then a power cut -------------------------------------- */

/* Pages of one block, in different atomic units of it. */
static const page_id apart[] = {0, 60, 120};

/* Both copies of the block are durable, and the log has nothing of them any more; then the flush
 * behind a third fails, and the daemon ends. Its page alone is in the log still. */
static void unflushed_task(void *arg)
{
	static const struct rt_sim_fail flushes = {.ops = RT_SIM_FAIL_FLUSH, .n = 1};
	static const struct rt_sim_fail nothing = {0};
	struct store *s = store_open_named("d", SMALL_CACHE);

	for (unsigned i = 0; i < 2; i++) {
		CHECK(install(s, apart[i], 1, 1 + i) == 0);
		CHECK(store_table_write(s, LSN_MAX) == 0);
	}
	CHECK(install(s, apart[2], 1, 3) == 0);
	rt_sim_disk_fail(disk, &flushes);
	CHECK(store_table_write(s, LSN_MAX) == -EIO);
	rt_sim_disk_fail(disk, &nothing);
	store_close_disk(s);
}

static void recovered_task(void *arg)
{
	struct store *s = store_open_named("d", SMALL_CACHE);

	store_redo(s, STORE_REDO_DESCRIPTORS);
	CHECK(install(s, apart[2], 1, 3) == 0);
	store_redo(s, STORE_REDO_NONE);
	CHECK(store_table_write(s, LSN_MAX) == 0);
	*(bool *)arg = true;
	store_close_disk(s);
}

/* Recovery loses power at its n-th request. */
static int unflushed_run(void *arg)
{
	bool ended = false;

	for (unsigned n = 1; !ended; n++) {
		unsigned node = rt_sim_node_new("n");
		struct store *s;

		make();
		CHECK(rt_sim_spawn_on(node, "unflushed", unflushed_task, NULL) == 0);
		rt_sim_node_wait(node);
		node = rt_sim_node_new("m");
		rt_sim_disk_cut_after(disk, n);
		CHECK(rt_sim_spawn_on(node, "recovered", recovered_task, &ended) == 0);
		rt_sim_node_wait(node);
		rt_sim_disk_cut_after(disk, 0);
		rt_sim_node_kill(node);
		s = store_open_named("d", 0);
		CHECK(version_of(s, apart[0]) == 1 && version_of(s, apart[1]) == 1);
		CHECK(!ended || version_of(s, apart[2]) == 1);
		store_close_disk(s);
		rt_sim_disk_destroy(disk);
	}
	return 0;
}

static void a_copy_that_was_never_flushed_is_not_built_upon(void **state)
{
	for (uint64_t seed = 1; seed <= 20; seed++)
		assert_int_equal(rt_sim_run(seed, NULL, unflushed_run, NULL), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_copy_that_was_never_flushed_is_not_built_upon),
		cmocka_unit_test(a_few_cached_blocks_hold_what_a_model_says),
		cmocka_unit_test(installs_beyond_every_bound_go_on_and_say_crowded),
		cmocka_unit_test(
			a_block_that_was_never_used_is_read_only_after_it_was_evicted),
		cmocka_unit_test(adjacent_blocks_are_read_with_one_request),
		cmocka_unit_test(the_table_writes_what_is_older_than_asked_only),
		cmocka_unit_test(a_block_bad_in_both_copies_is_damage_never_empty),
		cmocka_unit_test(a_block_of_another_place_is_damage),
		cmocka_unit_test(a_rotten_newer_copy_never_turns_pages_into_zeros),
		cmocka_unit_test(a_failed_write_or_flush_keeps_the_block_dirty),
		cmocka_unit_test(
			a_block_that_cannot_be_read_is_an_error_of_its_pages_alone),
		cmocka_unit_test(
			with_every_block_dirty_and_a_failing_device_nobody_hangs),
		cmocka_unit_test(tasks_that_share_a_tiny_cache_see_their_own_descriptors),
		cmocka_unit_test(power_cuts_leave_old_or_new_descriptors_never_neither),
	};

	weft_log_sink = quiet_log;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
