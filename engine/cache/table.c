/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The translation table: PID to frame. Buckets hold chains of frames linked through
 * frame.next. Changes happen under the bucket's partition lock; readers walk without it
 * (ScaleStore §6.2 shows what a locked table costs). A walk that races with a change may
 * end in another chain and miss, never fault: frames are type-stable and the walk is
 * bounded. Whoever finds nothing asks again under the lock (table_insert) before acting
 * on it.
 */
#include "engine/cache/cache_internal.h"

int table_open(struct cache *c)
{
	uint32_t buckets = 64;

	while (buckets < c->frame_count)
		buckets *= 2;
	c->bucket_mask = buckets - 1;
	c->buckets = rt_alloc_pages(buckets * sizeof(*c->buckets));
	return c->buckets ? 0 : -ENOMEM;
}

void table_close(struct cache *c)
{
	if (c->buckets)
		rt_free_pages(c->buckets, (c->bucket_mask + 1) * sizeof(*c->buckets));
	c->buckets = NULL;
}

struct frame *table_insert(struct cache *c, page_id pid, struct frame *f)
{
	uint32_t bucket = table_hash(pid) & c->bucket_mask;
	struct rt_mutex *lock = &c->partition[bucket % TABLE_PARTITIONS];
	struct frame *found = NULL;
	uint32_t link;

	rt_mutex_lock(lock);
	link = atomic_load_explicit(&c->buckets[bucket], memory_order_relaxed);
	for (uint32_t walk = link; walk;) {
		struct frame *g = &c->frames[walk - 1];

		if (atomic_load_explicit(&g->pid, memory_order_relaxed) == pid) {
			found = g;
			break;
		}
		walk = atomic_load_explicit(&g->next, memory_order_relaxed);
	}
	if (!found && f) {
		atomic_store_explicit(&f->next, link, memory_order_relaxed);
		atomic_store_explicit(&f->pid, pid, memory_order_relaxed);
		atomic_store_explicit(&c->buckets[bucket], (uint32_t)(f - c->frames) + 1,
			memory_order_release);
	}
	rt_mutex_unlock(lock);
	return found;
}

void table_remove(struct cache *c, struct frame *f)
{
	page_id pid = atomic_load_explicit(&f->pid, memory_order_relaxed);
	uint32_t bucket = table_hash(pid) & c->bucket_mask;
	struct rt_mutex *lock = &c->partition[bucket % TABLE_PARTITIONS];
	uint32_t self = (uint32_t)(f - c->frames) + 1;
	_Atomic uint32_t *link = &c->buckets[bucket];

	exposure_reset(c, f);
	rt_mutex_lock(lock);
	while (atomic_load_explicit(link, memory_order_relaxed) != self) {
		uint32_t at = atomic_load_explicit(link, memory_order_relaxed);

		WEFT_ASSERT(at);
		link = &c->frames[at - 1].next;
	}
	atomic_store_explicit(link, atomic_load_explicit(&f->next, memory_order_relaxed),
		memory_order_release);
	/* f.next keeps its value: a reader that stands on f walks on */
	atomic_store_explicit(&f->pid, PID_NONE, memory_order_relaxed);
	rt_mutex_unlock(lock);
}
