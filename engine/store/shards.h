/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The page ids of a volume: its shards, each with as many slots as its store has pages. All page
 * ids from pages, records and messages are checked here (invariant 9).
 *
 * A volume of one store has that store's shard. With several stores the coherence provider lists
 * the shards. The size of another node's store is known when that node was heard, and always before
 * it grants a page. Until then each slot is taken as possible.
 *
 * Shards are listed before the volume's cache is opened. Only sizes become known later.
 */
#ifndef WEFT_SHARDS_H
#define WEFT_SHARDS_H

#include <errno.h>
#include <stdatomic.h>

#include "engine/common/format.h"

#define SHARDS_MAX DISK_NODE_MAX

struct shard {
	uint16_t id;
	_Atomic uint64_t page_count; /* slots; 0: not known yet */
};

struct shards {
	unsigned count;
	struct shard shard[SHARDS_MAX];
};

/* Returns the shard, or NULL if the volume has no such shard. */
static inline const struct shard *shards_find(const struct shards *s, uint16_t id)
{
	for (unsigned i = 0; i < s->count; i++)
		if (s->shard[i].id == id)
			return &s->shard[i];
	return NULL;
}

/* Returns the number of slots; 0: not known yet, or no such shard. */
static inline uint64_t shards_pages(const struct shards *s, uint16_t id)
{
	const struct shard *shard = shards_find(s, id);

	return shard ? atomic_load_explicit(&shard->page_count, memory_order_relaxed) : 0;
}

/* Returns true if these pages may belong to the volume. */
static inline bool shards_have(const struct shards *s, page_id pid, uint64_t length)
{
	const struct shard *shard = shards_find(s, pid_shard(pid));
	uint64_t pages;

	if (!shard)
		return false;
	pages = atomic_load_explicit(&shard->page_count, memory_order_relaxed);
	if (!pages)
		pages = 1ull << PID_SLOT_BITS;
	return pid_slot(pid) < pages && length <= pages - pid_slot(pid);
}

/* Returns true if the page could be in another store of the cluster. For callers that know one
 * store, but not the shards of the volume. */
static inline bool shards_elsewhere(const struct disk_superblock *sb, page_id pid)
{
	return sb->node && pid_shard(pid) != sb->shard && pid_shard(pid) < SHARDS_MAX;
}

/* Notes the size of a listed shard. Returns 0. Returns -EINVAL if there is no such shard, the size
 * is too large, or another size is known. */
static inline int shards_learn(struct shards *s, uint16_t id, uint64_t page_count)
{
	struct shard *shard = (struct shard *)shards_find(s, id);
	uint64_t unknown = 0;

	if (!shard || !page_count || page_count > 1ull << PID_SLOT_BITS)
		return -EINVAL;
	if (!atomic_compare_exchange_strong_explicit(&shard->page_count, &unknown,
		    page_count, memory_order_relaxed, memory_order_relaxed) &&
		unknown != page_count)
		return -EINVAL;
	return 0;
}

/* Adds a shard, or notes its size. Returns 0, or -ENOSPC if there are too many. */
static inline int shards_set(struct shards *s, uint16_t id, uint64_t page_count)
{
	unsigned i = 0;

	while (i < s->count && s->shard[i].id != id)
		i++;
	if (i == SHARDS_MAX)
		return -ENOSPC;
	s->shard[i].id = id;
	atomic_store_explicit(&s->shard[i].page_count, page_count, memory_order_relaxed);
	if (i == s->count)
		s->count++;
	return 0;
}

#endif
