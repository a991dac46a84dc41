/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A store with an empty tree, on any disk of any runtime, for tests and benchmarks of
 * engine/tree.
 */
#ifndef WEFT_TESTS_TREE_FIXTURE_H
#define WEFT_TESTS_TREE_FIXTURE_H

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "engine/tree/tree_internal.h"
#include "tests/world/test_file.h"

struct tree_fixture {
	struct rt_disk *disk;
	struct store *store;
	struct log *log;
	struct coherence *coherence;
	struct cache *cache;
	struct space *space;
	struct tree *tree;
};

#define FIXTURE_MUST(expr)                                                               \
	do {                                                                             \
		int must_ = (expr);                                                      \
		if (must_) {                                                             \
			fprintf(stderr, "%s:%d: %s: %d %s\n", __FILE__, __LINE__, #expr, \
				must_, fixture_error.text);                              \
			abort();                                                         \
		}                                                                        \
	} while (0)

static struct weft_error fixture_error;

static inline page_id fixture_root(struct store *s)
{
	return pid_make(store_superblock(s)->shard, disk_group_slot(0) + 1);
}

static inline void fixture_write(struct store *s, page_id pid, const void *image)
{
	struct store_write w = {.pid = pid, .image = image, .descriptor = {1, 1, 0}};

	w.descriptor.checksum = store_page_checksum(s, pid, 1, 1, image);
	FIXTURE_MUST(store_write_pages(s, &w, 1));
	FIXTURE_MUST(store_flush(s));
	FIXTURE_MUST(store_descriptor_install(s, pid, &w.descriptor, LSN_NONE));
}

/* Groups and an empty root. */
static inline void fixture_format(struct rt_disk *disk, uint64_t log_bytes)
{
	struct store_format f = {
		.checksum_kind = DISK_CHECKSUM_GMAC, .log_bytes = log_bytes};
	struct disk_superblock *sb = rt_alloc(sizeof(*sb));
	uint8_t *image = rt_alloc_pages(PAGE_SIZE);
	struct store *s;

	rt_random_bytes(f.volume_uuid, sizeof(f.volume_uuid));
	FIXTURE_MUST(store_format_plan(disk, &f, sb, &fixture_error));
	FIXTURE_MUST(store_format_write(disk, sb, &fixture_error));
	FIXTURE_MUST(store_format_open(&s, disk, sb, &fixture_error));
	for (uint64_t g = 0; g < space_layout_groups(sb->page_count); g++) {
		uint32_t pages = space_layout_pages(sb->page_count, g);
		struct disk_group *d = (struct disk_group *)image;

		memset(image, 0, PAGE_SIZE);
		d->magic = DISK_MAGIC_GROUP;
		d->group = (uint32_t)g;
		d->free_pages = pages - (g == 0);
		d->next_incarnation = 2;
		for (uint32_t i = pages; i < DISK_GROUP_PAGES; i++)
			d->bitmap[i / 8] |= (uint8_t)(1u << i % 8);
		if (g == 0)
			d->bitmap[0] |= 1;
		fixture_write(s, pid_make(sb->shard, disk_group_slot(g)), image);
	}
	tree_format_root(image, fixture_root(s));
	fixture_write(s, fixture_root(s), image);
	FIXTURE_MUST(store_table_write(s, LSN_MAX));
	FIXTURE_MUST(store_format_finish(s, &fixture_error));
	store_close(s);
	rt_free_pages(image, PAGE_SIZE);
	rt_free(sb);
}

/* Opens what fixture_format made; takes the disk. */
static inline void fixture_open(
	struct tree_fixture *x, struct rt_disk *disk, uint64_t cache_bytes)
{
	struct cache_options options = {.cache_bytes = cache_bytes};
	bool clean;

	x->disk = disk;
	FIXTURE_MUST(
		store_open(&x->store, disk, &(struct store_options){0}, &fixture_error));
	FIXTURE_MUST(log_open(
		&x->log, x->store, &(struct log_options){0}, &clean, &fixture_error));
	FIXTURE_MUST(log_start(x->log));
	FIXTURE_MUST(
		coherence_single_open(&x->coherence, store_superblock(x->store)->shard));
	FIXTURE_MUST(cache_open(&x->cache, x->store, x->log, x->coherence, &options));
	FIXTURE_MUST(cache_start(x->cache));
	FIXTURE_MUST(space_open(&x->space, x->cache, &fixture_error));
	FIXTURE_MUST(tree_open(
		&x->tree, x->cache, x->space, fixture_root(x->store), &fixture_error));
}

static inline void fixture_close(struct tree_fixture *x)
{
	tree_close(x->tree);
	space_close(x->space);
	cache_stop(x->cache);
	cache_close(x->cache);
	log_close(x->log);
	x->coherence->ops->close(x->coherence);
	store_close(x->store);
	rt_disk_close(x->disk);
}

/* The same on a file that vanishes with the process (real runtime). */
static inline void fixture_open_file(struct tree_fixture *x, uint64_t store_bytes,
	uint64_t log_bytes, uint64_t cache_bytes)
{
	struct test_file file;
	struct rt_disk *disk;

	test_file_make(&file, NULL, store_bytes);
	FIXTURE_MUST(rt_disk_open(&disk, file.path, 0, &fixture_error));
	test_file_drop(&file);
	fixture_format(disk, log_bytes);
	fixture_open(x, disk, cache_bytes);
}

/* One write in a transaction of its own. */
static inline int fixture_put(
	struct tree *t, struct disk_key key, const void *value, size_t len)
{
	struct txn *x;
	int r;

	FIXTURE_MUST(txn_begin(t, false, &x));
	do {
		r = value ? txn_write(x, key, value, len) : txn_delete(x, key);
		if (r == 0)
			r = txn_commit(x, NULL);
		if (r == -EAGAIN)
			txn_restart(x);
	} while (r == -EAGAIN);
	txn_end(x);
	return r;
}

/* The whole tree, page by page: each sound, fences as the parent says, of a lower level. Returns
 * the number of items; pages are counted in *pages. Nothing may change meanwhile. */
static inline uint64_t fixture_check(struct tree_fixture *x, page_id pid, int level,
	tree_key low, tree_key high, uint64_t *pages)
{
	uint8_t *image = rt_alloc_pages(PAGE_SIZE);
	struct node_counts c;
	uint64_t items = 0;
	struct guard g;

	FIXTURE_MUST(guard_shared(x->cache, pid, 0, &g));
	memcpy(image, g.image, PAGE_SIZE);
	guard_release(x->cache, &g);
	FIXTURE_MUST(tree_check_page(image, pid, &fixture_error));
	c = node_counts_load(image);
	FIXTURE_MUST(level >= 0 && c.level > level);
	FIXTURE_MUST(tree_key_load(image + NODE_LOW) != low);
	FIXTURE_MUST(tree_key_load(image + NODE_HIGH) != high);
	(*pages)++;
	if (c.level == 0)
		items = c.count;
	for (unsigned i = 0; c.level > 0 && i < c.count; i++)
		items += fixture_check(x, page_load_u64(image + INNER_CHILD(i)),
			c.level - 1, tree_key_load(image + INNER_KEY(i)),
			i + 1u < c.count ? tree_key_load(image + INNER_KEY(i + 1)) : high,
			pages);
	rt_free_pages(image, PAGE_SIZE);
	return items;
}

/* The same from the root; also: no page is lost, none is used twice. */
static inline uint64_t fixture_check_all(struct tree_fixture *x, uint64_t *pages)
{
	struct space_stat stat;
	uint64_t items;

	*pages = 0;
	items = fixture_check(x, fixture_root(x->store), -1, 0, TREE_KEY_MAX, pages);
	space_stat(x->space, &stat);
	return items;
}

#endif
