/* SPDX-License-Identifier: Apache-2.0 */
/*
 * OPS_MMAP_LOCAL: stores through mappings, from the kernel's WRITE until they are in the file
 * (docs/nodes/mappings.md, "Mappings for one node"). To bring them in, this node waits for others.
 * Those may wait for the kernel to drop the same pages, and it drops them only when its WRITE is
 * answered.
 *
 * Keeps: a WRITE is answered once a task waits for a drop of its pages, or after ANSWER_NS. Its
 * bytes stay listed until they are in the file. Meanwhile these calls wait for them, or include
 * them: READs for the kernel's cache, and calls here that read, change or sync the file. Stores of
 * one page are brought in in their order. Setting a size waits for none of them.
 */
#include "fs/kcache/kcache_internal.h"

#define ANSWER_NS 1000000000ull
#define LOOK_NS   100000000ull /* interval at which a waiting task checks that its request is
			        * still wanted */

/* Returns true if the store must be answered now. Under the lock. */
static bool store_due(const struct kcache *k, const struct kcache_store *s, uint64_t now)
{
	const struct kcache_change *c = &s->change;

	return now >= s->since_ns + ANSWER_NS ||
	       kcache_dropping(k, c->ino, c->first, c->end);
}

/* Returns a store to answer. NULL: none is due; *until_ns: look again then. Under the lock. */
static struct kcache_store *store_to_answer(struct kcache *k, uint64_t *until_ns)
{
	uint64_t now = rt_now_ns();

	*until_ns = RT_FOREVER;
	for (struct kcache_store *s = k->stores; s; s = s->next) {
		if (s->answered || !s->compared)
			continue;
		if (store_due(k, s, now))
			return s;
		*until_ns = MIN(*until_ns, s->since_ns + ANSWER_NS);
	}
	return NULL;
}

static void answer_main(void *arg)
{
	struct kcache *k = arg;

	rt_mutex_lock(&k->lock);
	while (!k->stopping) {
		uint64_t until_ns;
		struct kcache_store *s = store_to_answer(k, &until_ns);

		if (!s) {
			(void)rt_cond_wait(&k->late, &k->lock, until_ns);
			continue;
		}
		s->answered = s->answering = true;
		rt_mutex_unlock(&k->lock);
		s->answer(s->arg);
		rt_mutex_lock(&k->lock);
		s->answering = false;
		rt_cond_broadcast(&k->changed);
	}
	rt_mutex_unlock(&k->lock);
}

int kcache_stores_start(struct kcache *k)
{
	if (!k->maps_local)
		return 0;
	return rt_task_spawn(&k->answering, "weft-stores", answer_main, k);
}

/* Called when the kernel writes nothing back any more. */
void kcache_stores_stop(struct kcache *k)
{
	WEFT_ASSERT(!k->stores);
	if (!k->answering)
		return;
	rt_cond_broadcast(&k->late);
	rt_task_join(k->answering);
	k->answering = NULL;
}

/* ---- one of them ----------------------------------------------------------------------- */

/* Handles earlier stores of the same blocks. If `was` is NULL, they stay until this is called again
 * with `was`. Then their bytes, which may not be in the file yet, are laid over it. Under the lock.
 */
static void stores_before(
	const struct kcache *k, const struct kcache_store *s, uint8_t *was)
{
	uint64_t first = s->change.first * PAGE_SIZE, end = s->change.end * PAGE_SIZE;

	for (struct kcache_store *e = k->stores; e != s; e = e->next) {
		uint64_t from = MAX(first, e->offset), to = MIN(end, e->offset + e->len);

		if (e->change.ino != s->change.ino || from >= to)
			continue;
		if (was) {
			memcpy(was + (from - first), e->bytes + (from - e->offset),
				to - from);
			e->needed--;
		} else {
			e->needed++;
		}
	}
}

/* Copies the bytes that the kernel was given. This node has them as long as the kernel does. */
static void copies_take(struct kcache *k, const struct kcache_change *c, uint8_t *was)
{
	for (uint64_t block = c->first; block < c->end; block++, was += PAGE_SIZE)
		if (!cache_copied(k->cache, c->ino, block, was))
			memset(was, 0, PAGE_SIZE);
}

void kcache_store_begin(
	struct kcache *k, struct kcache_store *s, struct kcache_file *st, uint8_t *was)
{
	s->change = (struct kcache_change){.file = st,
		.ino = st->ino,
		.first = s->offset / PAGE_SIZE,
		.end = DIV_UP(s->offset + s->len, (uint64_t)PAGE_SIZE)};
	s->since_ns = rt_now_ns();
	s->cut = UINT64_MAX;
	rt_mutex_lock(&k->lock);
	kcache_change_list(k, &s->change);
	s->number = k->store_number++;
	*k->stores_end = s;
	k->stores_end = &s->next;
	stores_before(k, s, NULL);
	rt_mutex_unlock(&k->lock);
	copies_take(k, &s->change, was);
	rt_mutex_lock(&k->lock);
	stores_before(k, s, was);
	s->compared = true;
	rt_mutex_unlock(&k->lock);
	rt_cond_broadcast(&k->changed);
	rt_cond_signal(&k->late);
}

/* Returns true if the list has one of these blocks, in a store before that number. Inode 0: any
 * inode. Under the lock. */
static bool stores_of(const struct kcache *k, uint64_t before, uint64_t ino,
	uint64_t first, uint64_t end)
{
	const struct kcache_store *s = k->stores;

	while (s && s->number < before &&
		((ino && s->change.ino != ino) || s->change.first >= end ||
			first >= s->change.end))
		s = s->next;
	return s && s->number < before;
}

/* Waits until there is none. Under the lock, which it releases meanwhile. */
static int others_await(
	struct kcache *k, uint64_t before, uint64_t ino, uint64_t first, uint64_t end)
{
	int rc = 0;

	while (!rc && stores_of(k, before, ino, first, end)) {
		(void)rt_cond_wait(&k->changed, &k->lock, rt_now_ns() + LOOK_NS);
		rc = rt_task_unwanted() ? -EINTR : 0;
	}
	return rc;
}

int kcache_store_turn(struct kcache *k, struct kcache_store *s)
{
	const struct kcache_change *c = &s->change;
	int rc;

	rt_mutex_lock(&k->lock);
	rc = others_await(k, s->number, c->ino, c->first, c->end);
	rt_mutex_unlock(&k->lock);
	return rc;
}

void kcache_store_drop(struct kcache *k, struct kcache_store *s, uint64_t block)
{
	(void)kcache_drop_range(
		k, s->change.ino, block, block + 1, false, NULL);
}

uint64_t kcache_store_limit(struct kcache *k, struct kcache_store *s)
{
	uint64_t limit;

	rt_mutex_lock(&k->lock);
	limit = s->cut;
	rt_mutex_unlock(&k->lock);
	return limit;
}

bool kcache_store_end(struct kcache *k, struct kcache_store *s)
{
	struct kcache_store **at = &k->stores;
	bool answered;

	rt_mutex_lock(&k->lock);
	while (s->answering || s->needed)
		(void)rt_cond_wait(&k->changed, &k->lock, RT_FOREVER);
	while (*at != s)
		at = &(*at)->next;
	*at = s->next;
	if (!*at)
		k->stores_end = at;
	answered = s->answered;
	kcache_change_unlist(k, &s->change);
	rt_mutex_unlock(&k->lock);
	rt_cond_broadcast(&k->changed);
	return answered;
}

/* ---- calls that wait for stores ----------------------------------------------------- */

int kcache_stores_await(struct kcache *k, const struct kcache_file *st)
{
	int rc;

	if (!k || !k->maps_local ||
		(st && !atomic_load_explicit(&st->storing, memory_order_acquire)))
		return 0;
	rt_mutex_lock(&k->lock);
	rc = others_await(k, k->store_number, st ? st->ino : 0, 0, UINT64_MAX);
	rt_mutex_unlock(&k->lock);
	return rc;
}

void kcache_stores_cut(struct kcache *k, uint64_t ino, uint64_t size)
{
	if (!k || !k->maps_local)
		return;
	rt_mutex_lock(&k->lock);
	for (struct kcache_store *s = k->stores; s; s = s->next)
		if (s->change.ino == ino)
			s->cut = MIN(s->cut, size);
	rt_mutex_unlock(&k->lock);
}
