/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which page ids a volume has: its shards, each with as many slots as its store has pages.
 * The one place that is asked when a page id comes from a page, a record or a message
 * (invariant 9).
 *
 * A volume of one store has that store's shard. Where it has several, the coherence
 * provider says which; how large another node's store is is known when that node was
 * heard, and in any case before it grants a page. Until then any slot may be one.
 *
 * Shards are listed before the volume's cache is opened; only sizes become known later.
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

/* NULL: the volume has no such shard. */
static inline const struct shard *shards_find(const struct shards *s, uint16_t id)
{
	for (unsigned i = 0; i < s->count; i++)
		if (s->shard[i].id == id)
			return &s->shard[i];
	return NULL;
}

/* Its slots; 0: not known yet, or no such shard. */
static inline uint64_t shards_pages(const struct shards *s, uint16_t id)
{
	const struct shard *shard = shards_find(s, id);

	return shard ? atomic_load_explicit(&shard->page_count, memory_order_relaxed) : 0;
}

/* May these pages be of the volume? */
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

/*
 * Where the volume's shards are not known, but one of its stores is: could the page be in
 * another store of its cluster?
 */
static inline bool shards_elsewhere(const struct disk_superblock *sb, page_id pid)
{
	return sb->node && pid_shard(pid) != sb->shard && pid_shard(pid) < SHARDS_MAX;
}

/* How large a listed shard is, once it is known. -EINVAL: there is none, it cannot be so
 * large, or is of another size. */
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

/* Adds a shard, or says how large it is. -ENOSPC: there are too many. */
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
