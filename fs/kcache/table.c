/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The inodes that the kernel may cache (docs/nodes/kernel-cache.md, "The inodes that the kernel
 * knows"). A place becomes free when the kernel has forgotten its inode. If few places are free, a
 * task makes the kernel drop all copies of the inodes that were noted longest ago.
 *
 * Keeps: (5) an inode leaves the table only when the kernel has no copy of it, and no answer on its
 * way brings one. (10) The places are a share of the cache.
 *
 * Locks: the kernel's. The task releases it while it notifies the kernel.
 */
#include "fs/kcache/kcache_internal.h"

#define TRIM_FEW      16u /* if fewer than one of this many places is free: free more, */
#define TRIM_ENOUGH   8u  /* until one of this many is free */
#define TRIM_LOOKS    16u
#define TRIM_PAUSE_NS 200000ull

static uint32_t *known_bucket(struct known_table *t, uint64_t ino)
{
	return &t->bucket[kcache_ino_hash(ino) & (t->buckets - 1)];
}

static struct known *known_at(struct known_table *t, uint32_t link)
{
	return link ? &t->place[link - 1] : NULL;
}

static uint32_t link_of(const struct known_table *t, const struct known *n)
{
	return (uint32_t)(n - t->place) + 1;
}

struct known *known_find(struct kcache *k, uint64_t ino)
{
	struct known_table *t = &k->known;
	struct known *n = known_at(t, *known_bucket(t, ino));

	while (n && n->ino != ino)
		n = known_at(t, n->next);
	return n;
}

uint32_t known_moment(struct kcache *k)
{
	return ++k->known.moments;
}

/* ---- by age --------------------------------------------------------------------------- */

static void age_unlink(struct known_table *t, const struct known *n)
{
	*(n->older ? &known_at(t, n->older)->newer : &t->oldest) = n->newer;
	*(n->newer ? &known_at(t, n->newer)->older : &t->newest) = n->older;
}

static void age_youngest(struct known_table *t, struct known *n)
{
	n->older = t->newest;
	n->newer = 0;
	*(t->newest ? &known_at(t, t->newest)->newer : &t->oldest) = link_of(t, n);
	t->newest = link_of(t, n);
}

static void known_renew(struct known_table *t, struct known *n)
{
	if (t->newest == link_of(t, n))
		return;
	age_unlink(t, n);
	age_youngest(t, n);
}

/* ---- places --------------------------------------------------------------------------- */

static void used_set(struct known_table *t, uint32_t used)
{
	t->used = used;
	atomic_store_explicit(&t->counters->kernel_inodes, used, memory_order_relaxed);
}

static void noted_set(struct known_table *t, const struct known *n, uint64_t ino)
{
	if (t->noted)
		atomic_store_explicit(&t->noted[n - t->place], ino, memory_order_relaxed);
}

/* Returns a free place, or NULL. */
static struct known *known_place(struct known_table *t, uint64_t ino)
{
	struct known *n = known_at(t, t->unused);
	uint32_t *bucket = known_bucket(t, ino);

	if (n)
		t->unused = n->next;
	else if (t->fresh < t->places)
		n = &t->place[t->fresh++];
	else
		return NULL;
	*n = (struct known){.ino = ino, .next = *bucket};
	*bucket = link_of(t, n);
	age_youngest(t, n);
	used_set(t, t->used + 1);
	noted_set(t, n, ino);
	return n;
}

static void known_free(struct known_table *t, struct known *n)
{
	uint32_t *at = known_bucket(t, n->ino);

	while (known_at(t, *at) != n)
		at = &known_at(t, *at)->next;
	*at = n->next;
	age_unlink(t, n);
	noted_set(t, n, 0);
	*n = (struct known){.next = t->unused};
	t->unused = link_of(t, n);
	used_set(t, t->used - 1);
}

struct known *known_note(struct kcache *k, uint64_t ino)
{
	struct known_table *t = &k->known;
	struct known *n = known_find(k, ino);

	if (n)
		known_renew(t, n);
	else
		n = known_place(t, ino);
	if (n)
		n->note = known_moment(k);
	if (!t->trimming && t->places - t->used <= t->places / TRIM_FEW) {
		t->trimming = true;
		rt_cond_signal(&t->few);
	}
	return n;
}

/* Returns true if no READ will note the inode, and no thread takes in an answer that brings it. */
static bool is_idle(struct kcache *k, struct known *n)
{
	return !kcache_read_pending(k, n->ino) && known_looker_done(k, n);
}

/* ---- the kernel lets go of an inode ------------------------------------------------------- */

/*
 * Handles a FORGET. The kernel may still have the inode: the FORGET may come from a look-up that
 * was not used, or the inode was looked up again. The kernel is therefore sent a notification,
 * which it refuses if it does not have the inode. Later answers are noted before they are sent.
 */
void kcache_forgot(struct kcache *k, uint64_t ino)
{
	bool has = false;
	uint32_t note = 0;
	struct known *n;

	if (!k)
		return;
	kcache_dir_forgotten(k, ino);
	rt_mutex_lock(&k->lock);
	n = known_find(k, ino);
	if (n && is_idle(k, n)) {
		note = n->note;
		has = n->pages || n->attributes;
		if (!has)
			known_free(&k->known, n);
	}
	rt_mutex_unlock(&k->lock);
	if (!has || k->ops->drop_attributes(k->owner, ino))
		return;
	rt_mutex_lock(&k->lock);
	n = known_find(k, ino);
	if (n && n->note == note && is_idle(k, n))
		known_free(&k->known, n);
	rt_mutex_unlock(&k->lock);
}

/* ---- the table is full ------------------------------------------------------------------- */

/* Returns the oldest inode without work under way. NULL: there is none among the first few. */
static struct known *trim_pick(struct kcache *k)
{
	struct known_table *t = &k->known;

	for (unsigned i = 0; i < TRIM_LOOKS; i++) {
		struct known *n = known_at(t, t->oldest);

		if (!n || is_idle(k, n))
			return n;
		known_renew(t, n);
	}
	return NULL;
}

/* Drops the inode as if its leaf was given up. Under the lock, which it releases meanwhile. */
static void trim_one(struct kcache *k, uint64_t ino, uint32_t note)
{
	struct known *n;

	rt_mutex_unlock(&k->lock);
	(void)kcache_drop_inode(k, ino, true, NULL);
	rt_mutex_lock(&k->lock);
	n = known_find(k, ino);
	if (!n)
		return;
	if (n->note != note || n->pages || n->attributes || !is_idle(k, n)) {
		known_renew(&k->known, n);
		return;
	}
	known_free(&k->known, n);
	atomic_fetch_add_explicit(
		&k->known.counters->kernel_inodes_dropped, 1, memory_order_relaxed);
}

static void trim_main(void *arg)
{
	struct kcache *k = arg;
	struct known_table *t = &k->known;

	rt_mutex_lock(&k->lock);
	while (!atomic_load(&k->gone)) {
		struct known *n = t->trimming ? trim_pick(k) : NULL;

		if (n)
			trim_one(k, n->ino, n->note);
		else
			(void)rt_cond_wait(&t->few, &k->lock,
				t->trimming ? rt_now_ns() + TRIM_PAUSE_NS : RT_FOREVER);
		t->trimming &= t->places - t->used <= t->places / TRIM_ENOUGH;
	}
	rt_mutex_unlock(&k->lock);
}

/* ---- from the start to the end ----------------------------------------------------------- */

int known_open(struct kcache *k, const struct kcache_noted *noted)
{
	struct known_table *t = &k->known;
	uint64_t frames = cache_frame_count(k->cache);

	t->places = kcache_inodes(frames);
	if (noted)
		t->places = MIN(t->places, noted->count);
	t->noted = noted ? noted->ino : NULL;
	for (t->buckets = 1; t->buckets < t->places;)
		t->buckets *= 2;
	t->place = rt_alloc_pages(t->places * sizeof(*t->place));
	t->bucket = rt_alloc_pages(t->buckets * sizeof(*t->bucket));
	return t->place && t->bucket ? 0 : -ENOMEM;
}

void known_close(struct kcache *k)
{
	struct known_table *t = &k->known;

	if (t->place)
		rt_free_pages(t->place, t->places * sizeof(*t->place));
	if (t->bucket)
		rt_free_pages(t->bucket, t->buckets * sizeof(*t->bucket));
}

int known_start(struct kcache *k)
{
	k->known.counters = cache_kernel_counters(k->cache);
	return rt_task_spawn(&k->known.trimmer, "weft-trim", trim_main, k);
}

void known_stop(struct kcache *k)
{
	if (!k->known.trimmer)
		return;
	rt_mutex_lock(&k->lock); /* the task has seen `gone`, or sleeps */
	rt_mutex_unlock(&k->lock);
	rt_cond_broadcast(&k->known.few);
	rt_task_join(k->known.trimmer);
	k->known.trimmer = NULL;
}
