/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The translation table: PID to frame. Buckets hold chains of frames linked through frame.next.
 * Changes happen under the bucket's partition lock. Readers walk without it (ScaleStore §6.2 shows
 * the cost of a locked table). A walk that races with a change may end in another chain and miss,
 * but never faults: frames are type-stable and the walk is bounded. A task that finds nothing asks
 * again under the lock (table_insert) before it acts on that.
 */
#include "engine/cache/cache_internal.h"

int table_open(struct cache *c)
{
	uint32_t buckets = 64;

	while (buckets < c->frames.count)
		buckets *= 2;
	c->table.mask = buckets - 1;
	c->table.bucket = rt_alloc_pages(buckets * sizeof(*c->table.bucket));
	return c->table.bucket ? 0 : -ENOMEM;
}

void table_close(struct cache *c)
{
	if (c->table.bucket)
		rt_free_pages(
			c->table.bucket, (c->table.mask + 1) * sizeof(*c->table.bucket));
	c->table.bucket = NULL;
}

struct frame *table_insert(struct cache *c, page_id pid, struct frame *f)
{
	uint32_t bucket = table_hash(pid) & c->table.mask;
	struct rt_mutex *lock = &c->table.partition[bucket % TABLE_PARTITIONS];
	struct frame *found = NULL;
	uint32_t link;

	rt_mutex_lock(lock);
	link = atomic_load_explicit(&c->table.bucket[bucket], memory_order_relaxed);
	for (uint32_t walk = link; walk;) {
		struct frame *g = &c->frames.frame[walk - 1];

		if (atomic_load_explicit(&g->pid, memory_order_relaxed) == pid) {
			found = g;
			break;
		}
		walk = atomic_load_explicit(&g->next, memory_order_relaxed);
	}
	if (!found && f) {
		atomic_store_explicit(&f->next, link, memory_order_relaxed);
		atomic_store_explicit(&f->pid, pid, memory_order_relaxed);
		atomic_store_explicit(&c->table.bucket[bucket],
			(uint32_t)(f - c->frames.frame) + 1, memory_order_release);
	}
	rt_mutex_unlock(lock);
	return found;
}

void table_remove(struct cache *c, struct frame *f)
{
	page_id pid = atomic_load_explicit(&f->pid, memory_order_relaxed);
	uint32_t bucket = table_hash(pid) & c->table.mask;
	struct rt_mutex *lock = &c->table.partition[bucket % TABLE_PARTITIONS];
	uint32_t self = (uint32_t)(f - c->frames.frame) + 1;
	_Atomic uint32_t *link = &c->table.bucket[bucket];

	kcopy_reset(c, f);
	rt_mutex_lock(lock);
	while (atomic_load_explicit(link, memory_order_relaxed) != self) {
		uint32_t at = atomic_load_explicit(link, memory_order_relaxed);

		WEFT_ASSERT(at);
		link = &c->frames.frame[at - 1].next;
	}
	atomic_store_explicit(link, atomic_load_explicit(&f->next, memory_order_relaxed),
		memory_order_release);
	/* f.next keeps its value: a reader that stands on f walks on */
	atomic_store_explicit(&f->pid, PID_NONE, memory_order_relaxed);
	rt_mutex_unlock(lock);
}
