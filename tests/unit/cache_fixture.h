/* SPDX-License-Identifier: Apache-2.0 */
/* A store, a log and a cache on a small disk of the current runtime, for tests of the
 * cache. */
#ifndef WEFT_TEST_CACHE_FIXTURE_H
#define WEFT_TEST_CACHE_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>
#include <errno.h>

#include "engine/cache/cache_internal.h"
#include "engine/cache/recovery.h"
#include "tests/world/expect.h"

struct engine {
	struct rt_disk *disk;
	struct store *store;
	struct log *log;
	struct coherence *coherence;
	struct cache *cache;
};

/* Each page has its own bytes for each stamp. */
static inline void fill(uint8_t *image, page_id pid, uint64_t stamp)
{
	uint64_t words[PAGE_SIZE / 8];

	for (unsigned i = 0; i < PAGE_SIZE / 8; i++)
		words[i] = pid * 1000003 + stamp * 31 + i;
	page_store(image, words, sizeof(words));
}

static inline bool filled(const uint8_t *image, page_id pid, uint64_t stamp)
{
	uint8_t want[PAGE_SIZE];

	fill(want, pid, stamp);
	return memcmp(image, want, PAGE_SIZE) == 0;
}

static inline void engine_format_shard(
	const char *path, uint64_t log_bytes, uint16_t shard)
{
	struct store_format f = {.log_bytes = log_bytes,
		.checksum_kind = DISK_CHECKSUM_GMAC,
		.shard = shard};
	struct weft_error err = {0};
	struct disk_superblock sb;
	struct rt_disk *disk;
	struct store *s;

	OK(rt_disk_open(&disk, path, 0, &err));
	if (store_format_plan(disk, &f, &sb, &err) ||
		store_format_write(disk, &sb, &err) ||
		store_format_open(&s, disk, &sb, &err) || store_format_finish(s, &err)) {
		fprintf(stderr, "format: %s\n", err.text);
		abort();
	}
	store_close(s);
	rt_disk_close(disk);
}

static inline void engine_format(const char *path, uint64_t log_bytes)
{
	engine_format_shard(path, log_bytes, 0);
}

/* The store and the log alone. */
static inline void engine_open_log(struct engine *e, const char *path)
{
	struct store_options so = {.read_only = false};
	struct log_options lo = {.flush_interval_ms = UINT64_MAX};
	struct weft_error err = {0};
	bool clean;

	OK(rt_disk_open(&e->disk, path, 0, &err));
	if (store_open(&e->store, e->disk, &so, &err) ||
		log_open(&e->log, e->store, &lo, &clean, &err)) {
		fprintf(stderr, "open: %s\n", err.text);
		abort();
	}
	OK(log_start(e->log));
}

/* `coherence`: the provider, which stays the caller's; NULL: that of a single node. */
static inline void engine_open_with(
	struct engine *e, const char *path, uint64_t frames, struct coherence *coherence)
{
	struct cache_options co = {.cache_bytes = frames * PAGE_SIZE};

	engine_open_log(e, path);
	e->coherence = coherence;
	if (!coherence)
		OK(coherence_single_open(
			&e->coherence, store_superblock(e->store)->shard));
	OK(cache_open(&e->cache, e->store, e->log, e->coherence, &co));
}

static inline void engine_open(struct engine *e, const char *path, uint64_t frames)
{
	engine_open_with(e, path, frames, NULL);
}

/* Drops everything that is not durable, as a crash would. */
static inline void engine_close(struct engine *e)
{
	cache_stop(e->cache);
	cache_close(e->cache);
	e->coherence->ops->close(e->coherence);
	log_close(e->log);
	store_close(e->store);
	rt_disk_close(e->disk);
}

#endif
