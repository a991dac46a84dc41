/* SPDX-License-Identifier: Apache-2.0 */
/* Page images: batches, damage, failing devices, and what recovery makes of candidates.
 */
#include "tests/unit/store_test.h"

#define SIM_SEEDS  3
#define DISK_BYTES (32 * MIB)
#define MANY       600u

static struct rt_sim_disk *disk;
static struct disk_superblock made;

static struct store *make(enum disk_checksum kind)
{
	const struct store_format f = {.checksum_kind = kind};

	disk = rt_sim_disk_create("d", DISK_BYTES, NULL);
	store_make("d", &f, &made);
	return store_open_named("d", 0);
}

static uint64_t place(page_id pid)
{
	return made.pages_offset + pid_slot(pid) * PAGE_SIZE;
}

static void shuffle(uint32_t *numbers, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		numbers[i] = i;
	for (unsigned i = n - 1; i > 0; i--) {
		unsigned k = (unsigned)(rt_random() % (i + 1));
		uint32_t t = numbers[i];

		numbers[i] = numbers[k];
		numbers[k] = t;
	}
}

/* Pages first .. first + n, version 1, in any order. */
static void write_many(struct store *s, page_id first, unsigned n)
{
	struct store_write *writes = rt_alloc(n * sizeof(*writes));
	uint8_t *images = rt_alloc_pages((size_t)n * PAGE_SIZE);
	uint32_t *order = rt_alloc(n * sizeof(*order));

	shuffle(order, n);
	for (unsigned i = 0; i < n; i++) {
		writes[i].pid = first + order[i];
		writes[i].image = images + (size_t)order[i] * PAGE_SIZE;
		writes[i].descriptor = descriptor_make(s, writes[i].pid, 1, 1);
		image_fill((void *)writes[i].image, writes[i].pid, 1, 1);
	}
	CHECK(store_write_pages(s, writes, n) == 0);
	CHECK(store_flush(s) == 0);
	for (unsigned i = 0; i < n; i++)
		CHECK(store_descriptor_install(
			      s, writes[i].pid, &writes[i].descriptor, 100) == 0);
	rt_free(writes);
	rt_free(order);
	rt_free_pages(images, (size_t)n * PAGE_SIZE);
}

/* Reads them in any order; the results by page. */
static void read_many(struct store *s, page_id first, unsigned n, int *results)
{
	struct store_read *reads = rt_alloc(n * sizeof(*reads));
	uint8_t *images = rt_alloc_pages((size_t)n * PAGE_SIZE);
	uint32_t *order = rt_alloc(n * sizeof(*order));

	shuffle(order, n);
	for (unsigned i = 0; i < n; i++)
		reads[i] = (struct store_read){
			.pid = first + order[i], .image = images + (size_t)i * PAGE_SIZE};
	store_read_pages(s, reads, n);
	for (unsigned i = 0; i < n; i++) {
		results[order[i]] = reads[i].result;
		if (reads[i].result == 0)
			CHECK(image_is(reads[i].image, reads[i].pid, 1, 1));
	}
	rt_free(reads);
	rt_free(order);
	rt_free_pages(images, (size_t)n * PAGE_SIZE);
}

SIM_TEST(a_batch_in_any_order_costs_a_request_per_megabyte)
{
	struct store *s = make(0);
	int results[MANY];
	uint64_t before;

	before = store_counters(s)->write_requests;
	write_many(s, 40, MANY);
	/* Two batches of up to 512 pages in an order of their own: no worse than singles.
	 */
	CHECK(store_counters(s)->write_requests - before <= MANY);
	CHECK(store_counters(s)->pages_written == MANY);
	before = store_counters(s)->write_requests;
	write_many(s, 1000, 512);
	CHECK(store_counters(s)->write_requests - before == 2);
	read_many(s, 1000, 1, results); /* the table's blocks */
	read_many(s, 1511, 1, results);
	read_many(s, 1200, 1, results);
	before = store_counters(s)->read_requests;
	read_many(s, 1000, 512, results);
	CHECK(store_counters(s)->read_requests - before <= 4);
	for (unsigned i = 0; i < 512; i++)
		CHECK(results[i] == 0);
	read_many(s, 40, MANY, results);
	for (unsigned i = 0; i < MANY; i++)
		CHECK(results[i] == 0);
	store_close_disk(s);
	return 0;
}

SIM_TEST(each_kind_of_checksum_finds_damage)
{
	for (int kind = DISK_CHECKSUM_GMAC; kind <= DISK_CHECKSUM_BLAKE2B; kind++) {
		struct store *s = make((enum disk_checksum)kind);
		uint8_t byte;

		page_persist(s, 7, 1, 1, 100);
		CHECK(page_get(s, 7, 1).result == 0);
		for (unsigned i = 0; i < 20; i++) {
			uint64_t at = place(7) + rt_random() % PAGE_SIZE;

			rt_sim_disk_peek(disk, at, &byte, 1);
			byte ^= (uint8_t)(1u << rt_random() % 8);
			rt_sim_disk_poke(disk, at, &byte, 1);
			CHECK(page_get(s, 7, 1).result == -EUCLEAN);
			rt_sim_disk_peek(disk, at, &byte, 1);
			CHECK(page_put(s, 7, 1, 1) == 0);
			CHECK(page_get(s, 7, 1).result == 0);
		}
		store_close_disk(s);
		rt_sim_disk_destroy(disk);
	}
	return 0;
}

SIM_TEST(checksums_depend_on_every_part_of_the_place_and_are_never_zero)
{
	struct store *s = make(0);
	uint64_t image[PAGE_SIZE / 8];

	image_fill(image, 1, 1, 1);
	for (unsigned i = 0; i < 200; i++) {
		uint64_t p = rt_random(), inc = rt_random(), v = rt_random();
		uint64_t sum = store_page_checksum(s, p, inc, v, image);
		struct iovec iov[3] = {{image, 1000}, {(uint8_t *)image + 1000, 1},
			{(uint8_t *)image + 1001, PAGE_SIZE - 1001}};

		CHECK(sum && sum == store_checksum(s, p, inc, v, iov, 3));
		CHECK(sum != store_page_checksum(s, p + 1, inc, v, image));
		CHECK(sum != store_page_checksum(s, p, inc + 1, v, image));
		CHECK(sum != store_page_checksum(s, p, inc, v + 1, image));
	}
	store_close_disk(s);
	return 0;
}

SIM_TEST(misdirected_and_lost_writes_are_found)
{
	struct store *s = make(0);
	uint8_t image[PAGE_SIZE];

	page_persist(s, 3, 1, 1, 100);
	page_persist(s, 4, 1, 1, 100);
	rt_sim_disk_peek(disk, place(3), image, PAGE_SIZE);
	rt_sim_disk_poke(disk, place(4), image, PAGE_SIZE);
	CHECK(page_get(s, 3, 1).result == 0);
	CHECK(page_get(s, 4, 1).result == -EUCLEAN);
	CHECK(page_install(s, 3, 1, 2, 200) == 0); /* the device lost the image */
	CHECK(page_get(s, 3, 1).result == -EUCLEAN);
	CHECK(store_counters(s)->checksum_failures >= 2);
	store_close_disk(s);
	return 0;
}

SIM_TEST(incarnations_decide_what_is_zeros)
{
	struct store *s = make(0);
	struct store_read r;

	r = page_get(s, 9, 0);
	CHECK(r.result == STORE_ZEROS && r.found_incarnation == 0);
	page_persist(s, 9, 5, 3, 100);
	uint64_t requests = store_counters(s)->read_requests;
	r = page_get(s, 9, 6);
	CHECK(r.result == STORE_ZEROS && r.found_incarnation == 5 && r.version == 0);
	CHECK(store_counters(s)->read_requests == requests); /* not read at all */
	r = page_get(s, 9, 5);
	CHECK(r.result == 0 && r.version == 3);
	r = page_get(s, 9, 4);
	CHECK(r.result == 0 && r.found_incarnation == 5);
	r = (struct store_read){.pid = 9, .incarnation = 5};
	store_read_pages(s, &r, 1); /* the descriptor alone */
	CHECK(r.result == 0 && r.version == 3 && r.found_incarnation == 5);
	store_close_disk(s);
	return 0;
}

SIM_TEST(pages_that_do_not_exist_are_refused)
{
	struct store *s = make(0);
	const page_id bad[] = {made.page_count, PID_NONE, pid_make(1, 0), PID_SLOT_MASK};
	uint8_t *image = rt_alloc_pages(PAGE_SIZE);
	struct page_descriptor d = {.incarnation = 1};

	for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
		struct store_write w = {.pid = bad[i], .image = image};

		CHECK(page_get(s, bad[i], 1).result == -EUCLEAN);
		CHECK(store_write_pages(s, &w, 1) == -EUCLEAN);
		CHECK(store_descriptor_get(s, bad[i], &d) == -EUCLEAN);
		CHECK(store_descriptor_install(s, bad[i], &d, 1) == -EUCLEAN);
		CHECK(store_candidate_add(s, bad[i], &d, 1) == -EUCLEAN);
	}
	CHECK(page_get(s, made.page_count - 1, 1).result == STORE_ZEROS);
	page_persist(s, made.page_count - 1, 1, 1, 1);
	CHECK(page_get(s, made.page_count - 1, 1).result == 0);
	rt_free_pages(image, PAGE_SIZE);
	store_close_disk(s);
	return 0;
}

SIM_TEST(a_bad_sector_fails_its_page_alone)
{
	struct store *s = make(0);
	int results[100];

	write_many(s, 500, 100);
	rt_sim_disk_fail(disk, &(struct rt_sim_fail){.ops = RT_SIM_FAIL_READ,
				       .n = 1,
				       .sticky = true,
				       .offset = place(542),
				       .length = 512});
	read_many(s, 500, 100, results);
	for (unsigned i = 0; i < 100; i++)
		CHECK(results[i] == (i == 42 ? -EIO : 0));
	rt_sim_disk_fail(disk, &(struct rt_sim_fail){0});
	read_many(s, 500, 100, results);
	CHECK(results[42] == 0);
	rt_sim_disk_fail(disk, &(struct rt_sim_fail){.ops = RT_SIM_FAIL_WRITE, .n = 1});
	CHECK(page_put(s, 500, 1, 2) == -EIO);
	rt_sim_disk_fail(disk, &(struct rt_sim_fail){.ops = RT_SIM_FAIL_FLUSH, .n = 1});
	CHECK(store_flush(s) == -EIO);
	store_close_disk(s);
	return 0;
}

static void starved_task(void *arg)
{
	struct store *s = store_open_named("d", 0);

	for (unsigned n = 1; n <= 5; n++) {
		struct store_read reads[40];
		uint8_t *images =
			rt_alloc_pages(sizeof(reads) / sizeof(reads[0]) * PAGE_SIZE);

		for (unsigned i = 0; i < 40; i++)
			reads[i] = (struct store_read){
				.pid = 500 + i, .image = images + i * PAGE_SIZE};
		rt_sim_alloc_fail(n);
		store_read_pages(s, reads, 40);
		rt_sim_alloc_fail(0);
		for (unsigned i = 0; i < 40; i++)
			CHECK(reads[i].result == 0 &&
				image_is(reads[i].image, 500 + i, 1, 1));
		rt_free_pages(images, sizeof(reads) / sizeof(reads[0]) * PAGE_SIZE);
	}
	store_close_disk(s);
}

SIM_TEST(a_large_read_without_memory_is_slower_only)
{
	struct store *s = make(0);
	unsigned node = rt_sim_node_new("n");

	write_many(s, 500, 40);
	CHECK(store_table_write(s, LSN_MAX) == 0);
	store_close_disk(s);
	CHECK(rt_sim_spawn_on(node, "starved", starved_task, NULL) == 0);
	rt_sim_node_wait(node);
	return 0;
}

/* ---- candidates ------------------------------------------------------------------ */

static void candidate(
	struct store *s, page_id pid, uint64_t incarnation, uint64_t version)
{
	struct page_descriptor d = descriptor_make(s, pid, incarnation, version);

	CHECK(store_candidate_add(s, pid, &d, 300) == 0);
}

static void destroy(page_id pid)
{
	uint8_t image[PAGE_SIZE];

	memset(image, 0x5a, sizeof(image));
	rt_sim_disk_poke(disk, place(pid), image, PAGE_SIZE);
}

static void expect(struct store *s, page_id pid, uint64_t wanted, int result,
	uint64_t incarnation, uint64_t version)
{
	struct store_read r = page_get(s, pid, wanted);

	CHECK(r.result == result);
	if (result >= 0)
		CHECK(r.found_incarnation == incarnation && r.version == version);
}

SIM_TEST(the_candidate_that_the_image_has_is_found_and_installed)
{
	struct store *s = make(0);
	struct page_descriptor d;

	page_persist(s, 9, 1, 4, 100);
	for (uint64_t v = 3; v <= 8; v++)
		candidate(s, 9, 1, v);
	CHECK(page_put(s, 9, 1, 6) == 0);
	expect(s, 9, 1, 0, 1, 6);
	CHECK(s->table.candidates.live == 0);
	CHECK(store_table_oldest(s) <= 300);
	CHECK(store_table_write(s, LSN_MAX) == 0 && store_table_oldest(s) == LSN_MAX);
	store_close_disk(s);
	s = store_open_named("d", 0);
	CHECK(store_descriptor_get(s, 9, &d) == 0 && d.version == 6);
	expect(s, 9, 1, 0, 1, 6);
	store_close_disk(s);
	return 0;
}

SIM_TEST(a_write_that_never_began_keeps_the_tables_descriptor)
{
	struct store *s = make(0);
	struct page_descriptor d;

	page_persist(s, 9, 1, 4, 100);
	candidate(s, 9, 1, 5);
	CHECK(store_descriptor_get(s, 9, &d) == 0 && d.version == 4);
	CHECK(s->table.candidates.live == 0);
	candidate(s, 9, 2, 1); /* the page was freed and taken again */
	expect(s, 9, 2, STORE_ZEROS, 1, 0);
	expect(s, 9, 1, 0, 1, 4);
	store_close_disk(s);
	return 0;
}

SIM_TEST(a_torn_first_image_of_an_incarnation_is_zeros_a_torn_overwrite_is_damage)
{
	struct store *s = make(0);

	page_persist(s, 9, 1, 4, 100);
	candidate(s, 9, 2, 1);
	candidate(s, 9, 2, 2);
	destroy(9);
	expect(s, 9, 2, STORE_ZEROS, 1, 0);
	expect(s, 9, 0, STORE_ZEROS, 1, 0);
	expect(s, 9, 1, -EUCLEAN, 0, 0);

	candidate(s, 10, 1, 1); /* never in the table */
	destroy(10);
	expect(s, 10, 1, STORE_ZEROS, 0, 0);

	page_persist(s, 11, 1, 4, 100);
	candidate(s, 11, 1, 5);
	candidate(s, 11, 2, 1);
	destroy(11);
	expect(s, 11, 1, -EUCLEAN, 0, 0);
	CHECK(store_candidates_resolve(s) == 0 && s->table.candidates.live == 0);
	expect(s, 9, 2, STORE_ZEROS, 1, 0);
	expect(s, 11, 1, -EUCLEAN, 0, 0);
	/* A later image mends it. */
	page_persist(s, 11, 1, 6, 400);
	expect(s, 11, 1, 0, 1, 6);
	store_close_disk(s);
	return 0;
}

SIM_TEST(an_older_candidate_never_beats_the_table)
{
	struct store *s = make(0);

	page_persist(s, 9, 2, 4, 100);
	candidate(s, 9, 1, 9);
	candidate(s, 9, 2, 3);
	CHECK(page_put(s, 9, 2, 3) == 0); /* a lost write's predecessor */
	expect(s, 9, 2, -EUCLEAN, 0, 0);
	CHECK(page_put(s, 9, 2, 4) == 0);
	expect(s, 9, 2, 0, 2, 4);
	store_close_disk(s);
	return 0;
}

SIM_TEST(an_install_decides_what_is_not_newer)
{
	struct store *s = make(0);

	candidate(s, 9, 1, 1);
	candidate(s, 9, 1, 2);
	candidate(s, 9, 1, 3);
	CHECK(page_install(s, 9, 1, 2, 50) == 0);
	CHECK(s->table.candidates.live == 1);
	CHECK(page_put(s, 9, 1, 3) == 0);
	expect(s, 9, 1, 0, 1, 3);
	store_close_disk(s);
	return 0;
}

SIM_TEST(resolving_decides_thousands_of_pages_at_once)
{
	struct store *s = make(0);
	const unsigned pages = 1500;
	uint64_t *version = rt_alloc(pages * sizeof(*version));
	uint64_t requests;

	for (unsigned i = 0; i < pages; i++) {
		for (uint64_t v = 1; v <= 1 + i % 3; v++)
			candidate(s, 100 + i, 1, v);
		version[i] = rt_random() % (2 + i % 3);
		if (version[i])
			CHECK(page_put(s, 100 + i, 1, version[i]) == 0);
	}
	CHECK(store_flush(s) == 0);
	requests = store_counters(s)->read_requests;
	CHECK(store_candidates_resolve(s) == 0);
	CHECK(s->table.candidates.live == 0);
	CHECK(store_counters(s)->read_requests - requests < 400);
	for (unsigned i = 0; i < pages; i++)
		expect(s, 100 + i, 1, version[i] ? 0 : STORE_ZEROS, version[i] ? 1 : 0,
			version[i]);
	rt_free(version);
	store_close_disk(s);
	return 0;
}

SIM_TEST(resolving_on_a_failing_device_says_so_and_loses_nothing)
{
	struct store *s = make(0);

	candidate(s, 20, 1, 1);
	candidate(s, 21, 1, 1);
	CHECK(page_put(s, 20, 1, 1) == 0 && page_put(s, 21, 1, 1) == 0);
	rt_sim_disk_fail(disk, &(struct rt_sim_fail){.ops = RT_SIM_FAIL_READ,
				       .n = 1,
				       .sticky = true,
				       .offset = place(21),
				       .length = 4096});
	CHECK(store_candidates_resolve(s) == -EIO);
	expect(s, 20, 1, 0, 1, 1);
	rt_sim_disk_fail(disk, &(struct rt_sim_fail){0});
	expect(s, 21, 1, 0, 1, 1);
	store_close_disk(s);
	return 0;
}

SIM_TEST(a_read_only_store_decides_in_memory)
{
	struct store *s = make(0);
	const struct store_options ro = {.read_only = true};
	struct page_descriptor d;

	page_persist(s, 9, 1, 4, 100);
	CHECK(store_table_write(s, LSN_MAX) == 0);
	CHECK(page_put(s, 9, 1, 5) == 0 && page_put(s, 10, 1, 1) == 0);
	CHECK(store_flush(s) == 0);
	store_close_disk(s);
	CHECK(store_open(&s, disk_open("d", RT_DISK_READ_ONLY), &ro, NULL) == 0);
	expect(s, 9, 1, -EUCLEAN, 0, 0);
	candidate(s, 9, 1, 5);
	candidate(s, 9, 1, 6);
	CHECK(page_install(s, 10, 1, 1, 100) == 0);
	CHECK(store_candidates_resolve(s) == 0);
	expect(s, 9, 1, 0, 1, 5);
	expect(s, 10, 1, 0, 1, 1);
	CHECK(store_descriptor_get(s, 9, &d) == 0 && d.version == 5);
	CHECK(store_table_dirty(s) == 0 && store_table_oldest(s) == LSN_MAX);
	CHECK(rt_sim_disk_volatile_bytes(disk) == 0);
	store_close_disk(s);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_batch_in_any_order_costs_a_request_per_megabyte),
		cmocka_unit_test(each_kind_of_checksum_finds_damage),
		cmocka_unit_test(
			checksums_depend_on_every_part_of_the_place_and_are_never_zero),
		cmocka_unit_test(misdirected_and_lost_writes_are_found),
		cmocka_unit_test(incarnations_decide_what_is_zeros),
		cmocka_unit_test(pages_that_do_not_exist_are_refused),
		cmocka_unit_test(a_bad_sector_fails_its_page_alone),
		cmocka_unit_test(a_large_read_without_memory_is_slower_only),
		cmocka_unit_test(the_candidate_that_the_image_has_is_found_and_installed),
		cmocka_unit_test(a_write_that_never_began_keeps_the_tables_descriptor),
		cmocka_unit_test(
			a_torn_first_image_of_an_incarnation_is_zeros_a_torn_overwrite_is_damage),
		cmocka_unit_test(an_older_candidate_never_beats_the_table),
		cmocka_unit_test(an_install_decides_what_is_not_newer),
		cmocka_unit_test(resolving_decides_thousands_of_pages_at_once),
		cmocka_unit_test(resolving_on_a_failing_device_says_so_and_loses_nothing),
		cmocka_unit_test(a_read_only_store_decides_in_memory),
	};

	weft_log_sink = quiet_log;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
