/* SPDX-License-Identifier: Apache-2.0 */
/* What the store's tests share: simulated disks with a store, pages with known bytes. */
#ifndef WEFT_TESTS_STORE_TEST_H
#define WEFT_TESTS_STORE_TEST_H

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <cmocka.h>

#include "engine/rt/rt_sim.h"
#include "engine/store/store_internal.h"

#define MIB (1ull << 20)
/* In a simulated run a failure aborts, so that the seed is printed. */
#define CHECK(expr) WEFT_ASSERT(expr)

static inline struct rt_disk *disk_open(const char *name, unsigned flags)
{
	struct weft_error err = {0};
	struct rt_disk *disk = NULL;

	CHECK(rt_disk_open(&disk, name, flags, &err) == 0);
	return disk;
}

/* Formats the disk of that name as an empty store; its superblock in *sb (may be NULL).
 */
static inline void store_make(
	const char *name, const struct store_format *f, struct disk_superblock *sb)
{
	static const struct store_format defaults;
	struct rt_disk *disk = disk_open(name, 0);
	struct disk_superblock own;
	struct weft_error err = {0};
	struct store *s;

	sb = sb ? sb : &own;
	CHECK(store_format_plan(disk, f ? f : &defaults, sb, &err) == 0);
	CHECK(store_format_write(disk, sb, &err) == 0);
	CHECK(store_format_open(&s, disk, sb, &err) == 0);
	CHECK(store_format_finish(s, &err) == 0);
	store_close(s);
	rt_disk_close(disk);
}

static inline struct store *store_open_named(const char *name, size_t table_cache_bytes)
{
	const struct store_options o = {.table_cache_bytes = table_cache_bytes};
	struct weft_error err = {0};
	struct store *s = NULL;

	CHECK(store_open(&s, disk_open(name, 0), &o, &err) == 0);
	return s;
}

static inline void store_close_disk(struct store *s)
{
	struct rt_disk *disk = store_disk(s);

	store_close(s);
	rt_disk_close(disk);
}

/* The image that a page has at a version: every word tells which. */
static inline void image_fill(
	void *image, page_id pid, uint64_t incarnation, uint64_t version)
{
	uint64_t *words = image;

	for (size_t i = 0; i < PAGE_SIZE / 8; i++)
		words[i] = pid * 1000003 ^ incarnation << 40 ^ version << 20 ^ i;
}

static inline bool image_is(
	const void *image, page_id pid, uint64_t incarnation, uint64_t version)
{
	uint64_t expected[PAGE_SIZE / 8];

	image_fill(expected, pid, incarnation, version);
	return memcmp(image, expected, PAGE_SIZE) == 0;
}

static inline bool image_is_zeros(const void *image)
{
	static const uint8_t zeros[PAGE_SIZE];

	return memcmp(image, zeros, PAGE_SIZE) == 0;
}

static inline struct page_descriptor descriptor_make(
	struct store *s, page_id pid, uint64_t incarnation, uint64_t version)
{
	uint64_t image[PAGE_SIZE / 8];

	image_fill(image, pid, incarnation, version);
	return (struct page_descriptor){.incarnation = incarnation,
		.version = version,
		.checksum = store_page_checksum(s, pid, incarnation, version, image)};
}

/* Writes the image only. */
static inline int page_put(
	struct store *s, page_id pid, uint64_t incarnation, uint64_t version)
{
	void *image = rt_alloc_pages(PAGE_SIZE);
	struct store_write w = {.pid = pid, .image = image};
	int rc;

	CHECK(image);
	image_fill(image, pid, incarnation, version);
	w.descriptor = descriptor_make(s, pid, incarnation, version);
	rc = store_write_pages(s, &w, 1);
	rt_free_pages(image, PAGE_SIZE);
	return rc;
}

static inline int page_install(
	struct store *s, page_id pid, uint64_t incarnation, uint64_t version, lsn_t lsn)
{
	struct page_descriptor d = descriptor_make(s, pid, incarnation, version);

	return store_descriptor_install(s, pid, &d, lsn);
}

/* Writes image and descriptor. */
static inline void page_persist(
	struct store *s, page_id pid, uint64_t incarnation, uint64_t version, lsn_t lsn)
{
	CHECK(page_put(s, pid, incarnation, version) == 0);
	CHECK(store_flush(s) == 0);
	CHECK(page_install(s, pid, incarnation, version, lsn) == 0);
}

/* Reads a page; checks that its bytes are those of the version found, or zeros. */
static inline struct store_read page_get(struct store *s, page_id pid, uint64_t wanted)
{
	struct store_read r = {.pid = pid, .incarnation = wanted};

	r.image = rt_alloc_pages(PAGE_SIZE);
	CHECK(r.image);
	memset(r.image, 0xee, PAGE_SIZE);
	store_read_pages(s, &r, 1);
	if (r.result == 0)
		CHECK(image_is(r.image, pid, r.found_incarnation, r.version));
	if (r.result == STORE_ZEROS)
		CHECK(image_is_zeros(r.image) && r.version == 0);
	rt_free_pages(r.image, PAGE_SIZE);
	r.image = NULL;
	return r;
}

/* Damage is what these tests are about: only failed checks are shown. */
static inline void quiet_log(int level, const char *line)
{
	if (level <= 2)
		print_error("%s\n", line);
}

#define SIM_TEST(name)                                                                   \
	static int name##_run(void *arg);                                                \
	static void name(void **state)                                                   \
	{                                                                                \
		for (uint64_t seed = 1; seed <= SIM_SEEDS; seed++)                       \
			assert_int_equal(rt_sim_run(seed, NULL, name##_run, NULL), 0);   \
	}                                                                                \
	static int name##_run(void *arg)

#endif
