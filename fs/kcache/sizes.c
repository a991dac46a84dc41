/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sizes that the caller's kernel uses without a request, and the notifications that set them.
 *
 * Attributes may bring a size before the kernel uses it: Linux ignores the size in attributes while
 * a call on this node extends the file. A task that answers with attributes therefore notifies the
 * kernel of the size first.
 *
 * Keeps: no size from before a cut is sent once that cut was answered. A task that sends a size
 * needs a place in a list. It gets the place only if no cut has come since it read the size
 * (`cuts`). A cut counts first, and then waits for the tasks in the list. If one of them stays for
 * long, the kernel requests the attributes again after the cut.
 *
 * Locks: `lock` is a leaf, held to access the list.
 */
#include "fs/kcache/pending.h"

/* Limit of the wait for a place. The task has a worker, and tasks in the list may need one. */
#define PLACE_WAIT_NS 10000000ull
/* Limit of a cut's wait for them. One may wait for the write-back of a page, and the kernel writes
 * nothing back while it cuts. */
#define CUT_WAIT_NS 20000000ull

static _Atomic uint32_t *cuts_of(struct kcache_sizes *s, uint64_t ino)
{
	uint64_t hash = ino * 0x9e3779b97f4a7c15ull;

	return &s->cuts[(hash >> 32) % KCACHE_SIZE_CUTS];
}

struct kcache_size kcache_size_look(struct kcache_sizes *s, uint64_t ino)
{
	return (struct kcache_size){
		.ino = ino,
		.cuts = atomic_load_explicit(cuts_of(s, ino), memory_order_acquire),
	};
}

/* Returns a place without an inode, or NULL. Under the lock. */
static struct kcache_file **telling_place(struct kcache_sizes *s)
{
	for (unsigned i = 0; i < KCACHE_SIZE_PLACES; i++)
		if (!s->place[i])
			return &s->place[i];
	return NULL;
}

/* On one node, the kernel has every size that it was sent, except after cuts. Under the lock. */
static bool size_is_news(struct kcache_sizes *s, const struct kcache_file *st,
	const struct kcache_size *size)
{
	return size->cuts ==
		       atomic_load_explicit(cuts_of(s, st->ino), memory_order_relaxed) &&
	       (s->shared || size->size > st->told_size);
}

bool kcache_size_begin(struct kcache_sizes *s, struct kcache_size *size)
{
	uint64_t until_ns = rt_now_ns() + PLACE_WAIT_NS;
	struct kcache_file *st = s->source->find(s->owner, size->ino), **place = NULL;

	if (!st)
		return false;
	rt_mutex_lock(&s->lock);
	while (size_is_news(s, st, size) && !(place = telling_place(s)) &&
		rt_cond_wait(&s->changed, &s->lock, until_ns) == 0)
		;
	if (place) {
		*place = st;
		size->place = (unsigned)(place - s->place);
		size->drops = !s->shared && st->passed;
		size->drop_from = st->told_size / PAGE_SIZE;
	}
	rt_mutex_unlock(&s->lock);
	if (!place)
		s->source->put(s->owner, st);
	return place;
}

void kcache_size_end(struct kcache_sizes *s, const struct kcache_size *size)
{
	struct kcache_file *st;

	rt_mutex_lock(&s->lock);
	st = s->place[size->place];
	s->place[size->place] = NULL;
	if (size->cuts == atomic_load_explicit(cuts_of(s, st->ino), memory_order_relaxed))
		st->told_size = MAX(st->told_size, size->size);
	rt_mutex_unlock(&s->lock);
	rt_cond_broadcast(&s->changed);
	s->source->put(s->owner, st);
}

/* Under the lock. */
static bool size_is_told(const struct kcache_sizes *s, const struct kcache_file *st)
{
	for (unsigned i = 0; i < KCACHE_SIZE_PLACES; i++)
		if (s->place[i] == st)
			return true;
	return false;
}

void kcache_sizes_cut(struct kcache_sizes *s, struct kcache_file *st, uint64_t size)
{
	uint64_t until_ns = rt_now_ns() + CUT_WAIT_NS;

	rt_mutex_lock(&s->lock);
	atomic_fetch_add_explicit(cuts_of(s, st->ino), 1, memory_order_acq_rel);
	st->told_size = MIN(st->told_size, size);
	while (size_is_told(s, st) && rt_cond_wait(&s->changed, &s->lock, until_ns) == 0)
		;
	rt_mutex_unlock(&s->lock);
}

void kcache_sizes_pass(struct kcache_sizes *s, struct kcache_file *st)
{
	if (s->shared || atomic_load_explicit(&st->passed, memory_order_relaxed))
		return;
	rt_mutex_lock(&s->lock);
	st->passed = true;
	rt_mutex_unlock(&s->lock);
}
