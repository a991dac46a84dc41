/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pages with good checksums and bad content, as a forger or a bug would leave them: every
 * operation that meets one says -EUCLEAN and ends; what does not need the page goes on.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#include "tests/unit/tree_fixture.h"

#define ITEMS 30000u

static struct test_file file;
static struct tree_fixture x;
static unsigned complaints;

static void count_complaint(int level, const char *line)
{
	complaints += level <= 3;
}

static struct disk_key key_at(unsigned i)
{
	return (struct disk_key){.high = i + 1};
}

static void open_again(void)
{
	struct rt_disk *disk;

	FIXTURE_MUST(rt_disk_open(&disk, file.path, 0, &fixture_error));
	fixture_open(&x, disk, 8u << 20);
}

static int build(void **state)
{
	struct rt_disk *disk;

	test_file_make(&file, NULL, 64 << 20);
	FIXTURE_MUST(rt_disk_open(&disk, file.path, 0, &fixture_error));
	fixture_format(disk, 4u << 20);
	fixture_open(&x, disk, 8u << 20);
	for (uint64_t i = 0; i < ITEMS; i++)
		FIXTURE_MUST(fixture_put(x.tree, key_at((unsigned)i), &i, sizeof(i)));
	FIXTURE_MUST(tree_height(x.tree) != 3);
	FIXTURE_MUST(cache_checkpoint(x.cache));
	fixture_close(&x);
	weft_log_sink = count_complaint;
	return 0;
}

static int clean_up(void **state)
{
	test_file_drop(&file);
	return 0;
}

static void image_read(page_id pid, uint8_t *image)
{
	struct guard g;

	FIXTURE_MUST(guard_shared(x.cache, pid, 0, &g));
	memcpy(image, g.image, PAGE_SIZE);
	guard_release(x.cache, &g);
}

/* The page on the way to the key at this level, and its image. */
static page_id page_on_way(unsigned item, unsigned level, uint8_t *image)
{
	page_id pid = fixture_root(x.store);

	for (;;) {
		struct node_counts c;

		image_read(pid, image);
		c = node_counts_load(image);
		if (c.level == level)
			return pid;
		pid = page_load_u64(image + INNER_CHILD(inner_search(image, c.count,
						    tree_key_of(key_at(item)))));
	}
}

/* Puts an image into the store as if it were the page's newest. */
static void forge(page_id pid, const uint8_t *image)
{
	struct store_write w = {.pid = pid, .image = image};

	FIXTURE_MUST(store_descriptor_get(x.store, pid, &w.descriptor));
	w.descriptor.version++;
	w.descriptor.checksum = store_page_checksum(
		x.store, pid, w.descriptor.incarnation, w.descriptor.version, image);
	FIXTURE_MUST(store_write_pages(x.store, &w, 1));
	FIXTURE_MUST(store_flush(x.store));
	FIXTURE_MUST(store_descriptor_install(x.store, pid, &w.descriptor, LSN_NONE));
	FIXTURE_MUST(store_table_write(x.store, LSN_MAX));
}

static int ignore_item(void *arg, struct disk_key key, const void *value, size_t len)
{
	return 0;
}

/* With the forged page in place: the item cannot be reached, a far one can. */
static void must_refuse(unsigned item, unsigned far)
{
	struct disk_key all = {UINT64_MAX, UINT64_MAX}, found, key = key_at(item);
	struct txn *t;
	uint64_t v;

	open_again();
	complaints = 0;
	assert_int_equal(tree_read(x.tree, key_at(item), &v, 8), -EUCLEAN);
	assert_true(complaints > 0);
	assert_int_equal(tree_next(x.tree, key_at(item), all, &found, &v, 8), -EUCLEAN);
	assert_int_equal(
		tree_floor(x.tree, key_at(item), (struct disk_key){0}, &found, &v, 8),
		-EUCLEAN);
	assert_int_equal(
		tree_scan(x.tree, (struct disk_key){0}, all, false, ignore_item, NULL),
		-EUCLEAN);
	assert_int_equal(fixture_put(x.tree, key_at(item), &v, 8), -EUCLEAN);
	assert_int_equal(fixture_put(x.tree, key_at(item), NULL, 0), -EUCLEAN);
	tree_prefetch(x.tree, &key, 1);
	assert_int_equal(txn_begin(x.tree, false, &t), 0);
	assert_int_equal(txn_read(t, key_at(item), &v, 8), -EUCLEAN);
	assert_int_equal(txn_write(t, key_at(far), &v, 8), 0);
	assert_int_equal(txn_write(t, key_at(item), &v, 8), 0);
	assert_int_equal(txn_commit(t, NULL), -EUCLEAN);
	txn_end(t);
	assert_int_equal(tree_read(x.tree, key_at(far), &v, 8), 8);
	assert_int_equal(v, far);
	fixture_close(&x);
}

/* Damages the page of `level` on the way to the item, looks, and puts it back. */
static void with_forged(unsigned level, unsigned item, unsigned far,
	void (*damage)(uint8_t *image, page_id pid))
{
	_Alignas(PAGE_SIZE) static uint8_t good[PAGE_SIZE], bad[PAGE_SIZE];
	page_id pid;

	open_again();
	pid = page_on_way(item, level, good);
	memcpy(bad, good, PAGE_SIZE);
	damage(bad, pid);
	forge(pid, bad);
	fixture_close(&x);
	must_refuse(item, far);
	open_again();
	forge(pid, good);
	fixture_close(&x);
}

static void set_u64(uint8_t *image, size_t offset, uint64_t v)
{
	memcpy(image + offset, &v, sizeof(v));
}

static void zeros(uint8_t *image, page_id pid)
{
	memset(image, 0, PAGE_SIZE);
}

static void noise(uint8_t *image, page_id pid)
{
	for (unsigned i = NODE_HEAD_BYTES; i < PAGE_SIZE; i++)
		image[i] = (uint8_t)rt_random();
}

static void other_pid(uint8_t *image, page_id pid)
{
	set_u64(image, NODE_PID, pid + 1);
}

static void not_for_these_keys(uint8_t *image, page_id pid)
{
	tree_key high = tree_key_load(image + NODE_HIGH);

	/* sound by itself, but it covers what lies behind */
	node_init(image, pid, 0, high, TREE_KEY_MAX);
}

static void children_are_this_level(uint8_t *image, page_id pid)
{
	/* every child is the root: the way down would never end */
	for (unsigned i = 0; i < node_counts_load(image).count; i++)
		set_u64(image, INNER_CHILD(i), fixture_root(x.store));
}

static void children_are_outside(uint8_t *image, page_id pid)
{
	for (unsigned i = 0; i < node_counts_load(image).count; i++)
		set_u64(image, INNER_CHILD(i), 1ull << 40);
}

static void children_are_groups(uint8_t *image, page_id pid)
{
	for (unsigned i = 0; i < node_counts_load(image).count; i++)
		set_u64(image, INNER_CHILD(i), disk_group_slot(0));
}

static void too_many(uint8_t *image, page_id pid)
{
	uint16_t count = 0xffff;

	memcpy(image + offsetof(struct disk_node, count), &count, sizeof(count));
}

static void level_of_the_root(uint8_t *image, page_id pid)
{
	uint16_t level = 4;

	memcpy(image + offsetof(struct disk_node, level), &level, sizeof(level));
}

static void forged_leaves_are_refused(void **state)
{
	with_forged(0, 5, ITEMS - 1, zeros);
	with_forged(0, 5, ITEMS - 1, noise);
	with_forged(0, 5, ITEMS - 1, other_pid);
	with_forged(0, 5, ITEMS - 1, not_for_these_keys);
	with_forged(0, 5, ITEMS - 1, too_many);
}

static void forged_inner_pages_are_refused(void **state)
{
	with_forged(2, 5, ITEMS - 1, zeros);
	with_forged(2, 5, ITEMS - 1, noise);
	with_forged(2, 5, ITEMS - 1, other_pid);
	with_forged(2, 5, ITEMS - 1, children_are_this_level);
	with_forged(2, 5, ITEMS - 1, children_are_outside);
	with_forged(2, 5, ITEMS - 1, children_are_groups);
	with_forged(2, 5, ITEMS - 1, too_many);
	with_forged(2, 5, ITEMS - 1, level_of_the_root);
}

static void a_volume_with_a_forged_root_does_not_open(void **state)
{
	_Alignas(PAGE_SIZE) static uint8_t good[PAGE_SIZE], bad[PAGE_SIZE];
	struct weft_error err = {0};
	struct tree *t;
	page_id pid;

	open_again();
	pid = page_on_way(5, 4, good);
	memcpy(bad, good, PAGE_SIZE);
	set_u64(bad, INNER_CHILD(0), pid);
	forge(pid, bad);
	/* another tree on the same cache would not read it again: drop it */
	cache_discard(x.cache, &(struct page_ref){.pid = pid, .incarnation = 1}, 1);
	assert_int_equal(tree_open(&t, x.cache, x.space, pid, &err), -EUCLEAN);
	assert_true(err.text[0] != 0);
	forge(pid, good);
	fixture_close(&x);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(forged_leaves_are_refused),
		cmocka_unit_test(forged_inner_pages_are_refused),
		cmocka_unit_test(a_volume_with_a_forged_root_does_not_open),
	};

	if (rt_real_start())
		return 1;
	return cmocka_run_group_tests(tests, build, clean_up);
}
