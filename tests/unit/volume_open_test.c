/* SPDX-License-Identifier: Apache-2.0 */
/* Format, open, close: round trips, what is refused and how, inode numbers. */
#include <sys/stat.h>

#include "tests/unit/volume_fixture.h"

static int test_empty_volume_has_a_root_directory(void *arg)
{
	struct disk_inode inode;
	struct space_stat st;
	struct volume *v;

	rt_sim_disk_create("d", 32 * MIB, NULL);
	volume_make("d", 0);
	for (int turn = 0; turn < 3; turn++) {
		v = volume_must("d", (struct open_how){.background = true});
		CHECK(v->recovery.was_clean);
		CHECK(tree_read(v->tree, disk_key(DISK_INO_ROOT, DISK_ITEM_INODE, 0),
			      &inode, sizeof(inode)) == sizeof(inode));
		CHECK(inode.mode == (S_IFDIR | 0755) && inode.uid == 1000 &&
			inode.gid == 100);
		CHECK(inode.nlink == 2 && inode.parent == DISK_INO_ROOT &&
			inode.size == 0);
		space_stat(v->space, &st);
		CHECK(st.total_pages == store_superblock(v->store)->page_count - 2);
		CHECK(st.free_pages == st.total_pages - 1);
		CHECK(st.available_pages == st.free_pages - 64);
		OK(volume_sync(v));
		OK(volume_close(v));
	}
	return 0;
}

static int test_store_of_many_groups_opens(void *arg)
{
	const uint64_t per_group = DISK_GROUP_PAGES + 1;
	struct volume *v;

	/* over two groups and a bit */
	rt_sim_disk_create("d", (2 * per_group + 3000) * PAGE_SIZE, NULL);
	volume_make("d", 2 * MIB);
	v = volume_must("d", (struct open_how){.background = false});
	CHECK(free_pages(v) ==
		store_superblock(v->store)->page_count - 2 -
			space_layout_groups(store_superblock(v->store)->page_count));
	OK(volume_close(v));
	return 0;
}

static int test_inode_numbers_are_never_given_twice(void *arg)
{
	uint64_t last = DISK_INO_ROOT, n;
	struct volume *v;

	rt_sim_disk_create("d", 32 * MIB, NULL);
	volume_make("d", 0);
	for (int turn = 0; turn < 3; turn++) {
		v = volume_must("d", (struct open_how){.background = false});
		for (unsigned i = 0; i < 70000; i++) {
			OK(volume_inode_number(v, &n));
			CHECK(n > last && n <= DISK_INO_MAX);
			last = n;
		}
		OK(volume_close(v));
	}
	return 0;
}

static uint64_t handed[4][30000];

static void take_numbers(void *arg)
{
	struct volume *v = *(struct volume **)arg;
	static unsigned next;
	uint64_t *mine = handed[next++ % 4];

	for (unsigned i = 0; i < 30000; i++)
		OK(volume_inode_number(v, &mine[i]));
}

static int compare_u64(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

static int test_tasks_get_different_numbers(void *arg)
{
	struct rt_task *tasks[4];
	struct volume *v;

	rt_sim_disk_create("d", 32 * MIB, NULL);
	volume_make("d", 0);
	v = volume_must("d", (struct open_how){.background = true});
	for (unsigned i = 0; i < 4; i++)
		OK(rt_task_spawn(&tasks[i], "numbers", take_numbers, &v));
	for (unsigned i = 0; i < 4; i++)
		rt_task_join(tasks[i]);
	qsort(handed, 4 * 30000ul, sizeof(uint64_t), compare_u64);
	for (unsigned i = 1; i < 4 * 30000; i++)
		CHECK((&handed[0][0])[i] != (&handed[0][0])[i - 1]);
	OK(volume_close(v));
	return 0;
}

/* ---- what does not open ---------------------------------------------------------- */

static int expect_refusal(const char *disk, int code, const char *text)
{
	struct weft_error err = {0};
	struct volume *v = NULL;
	int rc = volume_try(&v, disk, (struct open_how){.background = true}, &err);

	if (rc != code || !strstr(err.text, text)) {
		fprintf(stderr, "wanted %d \"%s\", got %d \"%s\"\n", code, text, rc,
			err.text);
		abort();
	}
	CHECK(v == NULL && err.code == rc);
	return 0;
}

/* Replaces a page, checksum and descriptor included: damage that only its content shows.
 */
static void page_forge(const char *name, uint64_t slot, void (*change)(void *image))
{
	struct store_options o = {0};
	struct rt_disk *disk = disk_open(name, 0);
	uint8_t *image = rt_alloc_pages(PAGE_SIZE);
	struct store_write w = {.image = image};
	struct store_read r = {.image = image};
	struct store *s;

	OK(store_open(&s, disk, &o, &fixture_error));
	r.pid = w.pid = pid_make(store_superblock(s)->shard, slot);
	store_read_pages(s, &r, 1);
	CHECK(r.result == 0);
	change(image);
	w.descriptor = (struct page_descriptor){r.found_incarnation, r.version + 1, 0};
	w.descriptor.checksum = store_page_checksum(
		s, w.pid, w.descriptor.incarnation, w.descriptor.version, image);
	OK(store_write_pages(s, &w, 1));
	OK(store_flush(s));
	OK(store_descriptor_install(s, w.pid, &w.descriptor, LSN_NONE));
	OK(store_table_write(s, LSN_MAX));
	store_close(s);
	rt_disk_close(disk);
	rt_free_pages(image, PAGE_SIZE);
}

#define CATALOG(field_change)                                                            \
	{                                                                                \
		struct disk_catalog *c = image;                                          \
		c->field_change;                                                         \
	}
#define GROUP(field_change)                                                              \
	{                                                                                \
		struct disk_group *g = image;                                            \
		g->field_change;                                                         \
	}
static void catalog_magic(void *image) CATALOG(magic ^= 1) static void catalog_version(
	void *image) CATALOG(disk_version = 99) static void catalog_uuid(void
		*image) CATALOG(volume_uuid[3] ^= 1) static void catalog_root_far(void
		*image) CATALOG(root_pid = 1ull << 40) static void catalog_root_shard(void
		*image) CATALOG(root_pid |= 1ull
					    << 50) static void catalog_root_is_group(void
		*image) CATALOG(root_pid = 1) static void catalog_root_is_catalog(void
		*image) CATALOG(root_pid = 0) static void catalog_range_zero(void *image)
	CATALOG(next_inode_range = 0) static void catalog_range_far(void *image) CATALOG(
		next_inode_range = UINT64_MAX) static void group_magic(void *image)
		GROUP(magic = 0) static void group_number(void *image) GROUP(
			group = 7) static void group_counter(void *image)
			GROUP(free_pages--) static void group_bits(void *image) GROUP(
				bitmap[10] |= 4) static void group_beyond(void *image)
				GROUP(bitmap[sizeof(g->bitmap) - 1] &=
					0x7f) static void group_incarnation(void
						*image) GROUP(next_incarnation = 0)

					static int test_forged_pages_are_refused_by_name(
						void *arg)
{
	static const struct {
		uint64_t slot;
		void (*change)(void *);
		const char *text;
	} cases[] = {
		{0, catalog_magic, "catalog page is not one"},
		{0, catalog_version, "version 99"},
		{0, catalog_uuid, "another volume"},
		{0, catalog_root_far, "tree's root"},
		{0, catalog_root_shard, "tree's root"},
		{0, catalog_root_is_group, "tree's root"},
		{0, catalog_root_is_catalog, "tree's root"},
		{0, catalog_range_zero, "inode numbers"},
		{0, catalog_range_far, "inode numbers"},
		{1, group_magic, "allocation group 0: no group page"},
		{1, group_number, "group 7"},
		{1, group_counter, "counts"},
		{1, group_bits, "counts"},
		{1, group_beyond, "past the end"},
		{1, group_incarnation, "incarnation"},
	};
	struct rt_sim_disk *good = rt_sim_disk_create("d", 16 * MIB, NULL), *bad;

	volume_make("d", 2 * MIB);
	for (unsigned i = 0; i < ARRAY_SIZE(cases); i++) {
		bad = rt_sim_disk_copy("bad", good);
		page_forge("bad", cases[i].slot, cases[i].change);
		expect_refusal("bad", -EUCLEAN, cases[i].text);
		rt_sim_disk_destroy(bad);
	}
	return 0;
}

static int test_damaged_pages_are_refused(void *arg)
{
	struct rt_sim_disk *d = rt_sim_disk_create("d", 16 * MIB, NULL), *bad;
	static const char *const text[] = {"catalog", "allocation group 0"};
	struct disk_superblock sb;
	uint8_t byte;

	volume_make("d", 2 * MIB);
	rt_sim_disk_peek(d, 0, &sb, sizeof(sb));
	for (unsigned slot = 0; slot < 2; slot++) {
		uint64_t at = sb.pages_offset + slot * PAGE_SIZE + 1000;

		bad = rt_sim_disk_copy("bad", d);
		rt_sim_disk_peek(bad, at, &byte, 1);
		byte ^= 1;
		rt_sim_disk_poke(bad, at, &byte, 1);
		expect_refusal("bad", -EUCLEAN, text[slot]);
		rt_sim_disk_destroy(bad);
	}
	return 0;
}

static int test_too_small_a_store_is_not_formatted(void *arg)
{
	struct store_format f = {.checksum_kind = DISK_CHECKSUM_GMAC};
	struct weft_error err = {0};
	struct rt_disk *disk;

	rt_sim_disk_create("d", 1 * MIB, NULL);
	disk = disk_open("d", 0);
	CHECK(volume_format(disk, &f, 0, 0, &err) == -EINVAL);
	CHECK(err.text[0]);
	rt_disk_close(disk);
	return 0;
}

/* Stores of other shards begin with free groups, and no catalog or root directory. */
static int test_a_store_of_another_shard_begins_empty(void *arg)
{
	struct store_format f = {
		.checksum_kind = DISK_CHECKSUM_GMAC, .node = 4, .shard = 3};
	struct volume_options o = {.node = 4, .shard = 3, .cache.cache_bytes = 1 * MIB};
	struct weft_error err = {0};
	struct space_stat st;
	struct volume *v;
	struct rt_disk *disk;

	rt_sim_disk_create("d", 16 * MIB, NULL);
	disk = disk_open("d", 0);
	OK(volume_format(disk, &f, 0, 0, &err));
	rt_disk_close(disk);
	CHECK(volume_open(&v, disk_open("d", 0), &o, &err) == -EOPNOTSUPP);
	CHECK(strstr(err.text, "the store holds shard 3"));
	o.storage_only = true;
	OK(volume_open(&v, disk_open("d", 0), &o, &fixture_error));
	OK(space_open(&v->space, v->cache, &fixture_error));
	space_stat(v->space, &st);
	CHECK(st.total_pages && st.free_pages == st.total_pages);
	OK(volume_close(v));
	return 0;
}

/* ---- what the log may say ----------------------------------------------------------- */

/* The volume as a crash leaves it behind this part, which no transaction makes. */
static struct rt_sim_disk *log_part(
	struct rt_sim_disk *d, const struct disk_log_page *part)
{
	static const uint8_t zeros[PAGE_SIZE];
	struct disk_log_record r = {.type = DISK_LOG_CHANGE,
		.count = 1,
		.record_bytes = (uint32_t)(sizeof(r) + part->part_bytes)};
	struct iovec iov[] = {{&r, sizeof(r)}, {(void *)part, sizeof(*part)},
		{(void *)zeros, PAGE_SIZE}};
	struct rt_sim_disk *crashed;
	struct log_room room;
	struct volume *v = volume_must("d", (struct open_how){.background = false});
	struct log_position pos;

	OK(log_reserve(v->log, r.record_bytes, false, &room));
	pos = log_append(v->log, &room, iov, ARRAY_SIZE(iov));
	log_release(v->log, &room);
	OK(log_flush(v->log, pos.end));
	crashed = rt_sim_disk_copy("crashed", d);
	OK(volume_close(v));
	return crashed;
}

/*
 * A page that was allocated and not written, which a home has been given by a survivor of a
 * change of epoch: version 0, in full. No page has incarnation 0.
 */
static int test_the_log_may_have_pages_that_were_never_written(void *arg)
{
	struct rt_sim_disk *d = rt_sim_disk_create("d", 16 * MIB, NULL);
	struct disk_log_page part = {.incarnation = 1,
		.kind = DISK_LOG_FULL,
		.part_bytes = sizeof(part) + PAGE_SIZE};
	struct rt_sim_disk *crashed;
	struct volume *v;
	struct guard g;

	volume_make("d", 2 * MIB);
	v = volume_must("d", (struct open_how){.background = false});
	part.pid = pid_make(0, store_superblock(v->store)->page_count - 1);
	OK(volume_close(v));
	crashed = log_part(d, &part);
	v = volume_must("crashed", (struct open_how){.background = false});
	CHECK(v->recovery.pages >= 1);
	OK(guard_shared(v->cache, part.pid, 1, &g));
	CHECK(g.frame->version == 0 && page_load_u64(g.image) == 0);
	guard_release(v->cache, &g);
	OK(volume_close(v));
	rt_sim_disk_destroy(crashed);
	part.incarnation = 0;
	(void)log_part(d, &part);
	return expect_refusal(
		"crashed", -EUCLEAN, "changes a page that cannot be of this store");
}

/* ---- cut and failing formats ----------------------------------------------------- */

static void format_node(void *arg)
{
	volume_make("d", 2 * MIB);
}

/* Only a superblock that is not there, or no longer: never half a volume. */
static void expect_no_volume(bool cut, uint64_t n, int rc, const char *text)
{
	if (cut && strstr(text, "superblock"))
		return;
	fprintf(stderr, "cut %d at %llu: %d \"%s\"\n", cut, (unsigned long long)n, rc,
		text);
	abort();
}

static int test_cut_format_leaves_no_volume(void *arg)
{
	unsigned cuts = 0;

	for (uint64_t n = 1;; n++) {
		struct rt_sim_disk *d = rt_sim_disk_create("d", 16 * MIB, NULL);
		struct weft_error err = {0};
		struct volume *v;
		bool cut;
		int rc;

		/* something was here before: it must not shine through */
		volume_make("d", 4 * MIB);
		rt_sim_disk_cut_after(d, n);
		cut = node_run(format_node, NULL);
		rt_sim_disk_cut_after(d, 0);
		rc = volume_try(&v, "d", (struct open_how){.background = false}, &err);
		if (!rc)
			OK(volume_close(v));
		else
			expect_no_volume(cut, n, rc, err.text);
		rt_sim_disk_destroy(d);
		if (!cut)
			break;
		cuts++;
	}
	CHECK(cuts > 10);
	return 0;
}

static int test_failing_format_reports_and_frees(void *arg)
{
	for (uint64_t n = 1;; n++) {
		struct rt_sim_fail fail = {
			.ops = RT_SIM_FAIL_WRITE | RT_SIM_FAIL_FLUSH, .n = n};
		struct rt_sim_disk *d = rt_sim_disk_create("d", 16 * MIB, NULL);
		struct store_format f = {
			.log_bytes = 2 * MIB, .checksum_kind = DISK_CHECKSUM_GMAC};
		struct weft_error err = {0};
		struct rt_disk *disk = disk_open("d", 0);
		int rc;

		rt_sim_disk_fail(d, &fail);
		rc = volume_format(disk, &f, 0, 0, &err);
		CHECK(rc == 0 || (rc == -EIO && err.code == rc));
		rt_disk_close(disk);
		rt_sim_disk_destroy(d);
		if (!rc)
			return 0;
		CHECK(n < 1000);
	}
}

static void open_close_node(void *arg)
{
	struct weft_error err = {0};
	struct volume *v;
	uint64_t ino;
	int rc;

	/* not through the fixture: each allocation of a node may fail */
	rc = rt_sim_node()
		     ? volume_try(&v, "d", (struct open_how){.background = true}, &err)
		     : 0;
	*(int *)arg = rc;
	if (rc)
		return;
	rc = volume_inode_number(v, &ino);
	CHECK(rc == 0 || rc == -ENOMEM);
	rc = volume_close(v);
	CHECK(rc == 0 || rc == -ENOMEM);
}

static int test_open_survives_each_failing_allocation(void *arg)
{
	struct rt_sim_disk *d = rt_sim_disk_create("good", 16 * MIB, NULL);

	volume_make("good", 2 * MIB);
	for (uint64_t n = 2;; n++) { /* the first is the opening of the disk itself */
		struct rt_sim_disk *copy = rt_sim_disk_copy("d", d);
		uint64_t before = rt_sim_allocs();
		int rc = 0;

		rt_sim_alloc_fail(n);
		CHECK(!node_run(open_close_node, &rc));
		rt_sim_alloc_fail(0);
		rt_sim_disk_destroy(copy);
		if (!rc && rt_sim_allocs() - before < n)
			return 0;
		CHECK(n < 10000);
	}
}

/* ---- main ------------------------------------------------------------------------ */

#define SIM(name)                                                                        \
	static void sim_##name(void **state)                                             \
	{                                                                                \
		for (uint64_t seed = 1; seed <= 3; seed++)                               \
			assert_int_equal(rt_sim_run(seed, NULL, name, NULL), 0);         \
	}
SIM(test_empty_volume_has_a_root_directory)
SIM(test_store_of_many_groups_opens)
SIM(test_inode_numbers_are_never_given_twice)
SIM(test_tasks_get_different_numbers)
SIM(test_forged_pages_are_refused_by_name)
SIM(test_damaged_pages_are_refused)
SIM(test_too_small_a_store_is_not_formatted)
SIM(test_a_store_of_another_shard_begins_empty)
SIM(test_the_log_may_have_pages_that_were_never_written)
SIM(test_cut_format_leaves_no_volume)
SIM(test_failing_format_reports_and_frees)
SIM(test_open_survives_each_failing_allocation)

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(sim_test_empty_volume_has_a_root_directory),
		cmocka_unit_test(sim_test_store_of_many_groups_opens),
		cmocka_unit_test(sim_test_inode_numbers_are_never_given_twice),
		cmocka_unit_test(sim_test_tasks_get_different_numbers),
		cmocka_unit_test(sim_test_forged_pages_are_refused_by_name),
		cmocka_unit_test(sim_test_damaged_pages_are_refused),
		cmocka_unit_test(sim_test_too_small_a_store_is_not_formatted),
		cmocka_unit_test(sim_test_a_store_of_another_shard_begins_empty),
		cmocka_unit_test(sim_test_the_log_may_have_pages_that_were_never_written),
		cmocka_unit_test(sim_test_cut_format_leaves_no_volume),
		cmocka_unit_test(sim_test_failing_format_reports_and_frees),
		cmocka_unit_test(sim_test_open_survives_each_failing_allocation),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
