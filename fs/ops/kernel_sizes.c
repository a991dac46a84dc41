/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sizes that the caller's kernel goes by without a request, and how it is told of them.
 *
 * A size may be told with attributes before the kernel goes by it: Linux takes no size from attributes while
 * a call here makes the file longer. So whoever answers with attributes tells the size itself first.
 *
 * Keeps: no size from before a cut is told once that cut was answered. Who tells has a place in a list, which
 * it gets only if nothing was cut since it looked (`cuts`); a cut counts, then waits for those in the list.
 * (Should one of them stay for long, the kernel asks for the attributes of what it was told after the cut.)
 *
 * Locks: `lock` is a leaf, held for looks at the list.
 */
#include "fs/ops/kernel.h"

/* At most so long one waits for a place: it has a worker, and those in the list may need one; */
#define PLACE_WAIT_NS 10000000ull
/* and a cut for those: one may wait for a page that is written back, and the kernel does not while it cuts. */
#define CUT_WAIT_NS 20000000ull

static _Atomic uint32_t *cuts_of(struct fs *fs, uint64_t ino)
{
	uint64_t hash = ino * 0x9e3779b97f4a7c15ull;

	return &fs->sizes.cuts[(hash >> 32) % SIZE_CUTS];
}

struct ops_size ops_size_look(struct fs *fs, uint64_t ino)
{
	return (struct ops_size){
		.ino = ino,
		.cuts = atomic_load_explicit(cuts_of(fs, ino), memory_order_acquire),
	};
}

/* Under the lock. A place without an inode, or NULL. */
static struct inode_state **telling_place(struct fs_sizes *s)
{
	for (unsigned i = 0; i < SIZE_PLACES; i++)
		if (!s->place[i])
			return &s->place[i];
	return NULL;
}

/* Under the lock. On one node the kernel has every size that it was told, but for cuts. */
static bool size_is_news(
	struct fs *fs, const struct inode_state *st, const struct ops_size *size)
{
	return size->cuts ==
		       atomic_load_explicit(cuts_of(fs, st->ino), memory_order_relaxed) &&
	       (fs_has_peers(fs) || size->size > st->told_size);
}

bool ops_size_begin(struct fs *fs, struct ops_size *size)
{
	uint64_t until_ns = rt_now_ns() + PLACE_WAIT_NS;
	struct inode_state *st = state_find(fs, size->ino), **place = NULL;
	struct fs_sizes *s = &fs->sizes;

	if (!st)
		return false;
	rt_mutex_lock(&s->lock);
	while (size_is_news(fs, st, size) && !(place = telling_place(s)) &&
		rt_cond_wait(&s->changed, &s->lock, until_ns) == 0)
		;
	if (place) {
		*place = st;
		size->place = (unsigned)(place - s->place);
		size->drops = !fs_has_peers(fs) && st->passed;
		size->drop_from = st->told_size / PAGE_SIZE;
	}
	rt_mutex_unlock(&s->lock);
	if (!place)
		state_put(fs, st);
	return place;
}

void ops_size_end(struct fs *fs, const struct ops_size *size)
{
	struct fs_sizes *s = &fs->sizes;
	struct inode_state *st;

	rt_mutex_lock(&s->lock);
	st = s->place[size->place];
	s->place[size->place] = NULL;
	if (size->cuts ==
		atomic_load_explicit(cuts_of(fs, st->ino), memory_order_relaxed))
		st->told_size = MAX(st->told_size, size->size);
	rt_mutex_unlock(&s->lock);
	rt_cond_broadcast(&s->changed);
	state_put(fs, st);
}

/* Under the lock. */
static bool size_is_told(const struct fs_sizes *s, const struct inode_state *st)
{
	for (unsigned i = 0; i < SIZE_PLACES; i++)
		if (s->place[i] == st)
			return true;
	return false;
}

void sizes_cut(struct fs *fs, struct inode_state *st, uint64_t size)
{
	uint64_t until_ns = rt_now_ns() + CUT_WAIT_NS;
	struct fs_sizes *s = &fs->sizes;

	rt_mutex_lock(&s->lock);
	atomic_fetch_add_explicit(cuts_of(fs, st->ino), 1, memory_order_acq_rel);
	st->told_size = MIN(st->told_size, size);
	while (size_is_told(s, st) && rt_cond_wait(&s->changed, &s->lock, until_ns) == 0)
		;
	rt_mutex_unlock(&s->lock);
}

void ops_passes_pages(struct fs *fs, struct ops_file *file)
{
	if (fs_has_peers(fs) ||
		atomic_load_explicit(&file->state->passed, memory_order_relaxed))
		return;
	rt_mutex_lock(&fs->sizes.lock);
	file->state->passed = true;
	rt_mutex_unlock(&fs->sizes.lock);
}
