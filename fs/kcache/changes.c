/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls here that change bytes of a file past the kernel's pages (docs/nodes/writers.md).
 *
 * Keeps: a change is listed before the kernel's pages are dropped, and until its end. A READ that
 * finds it in the list is not answered.
 */
#include "fs/kcache/kcache_internal.h"

#define YIELD_NS   100000ull /* a change lets a READ go first that waits for long, */
#define YIELDS_MAX 10u       /* so often */

bool kcache_changing(const struct kcache *k, uint64_t ino, uint64_t first, uint64_t end)
{
	const struct kcache_change *c = k->changes[kcache_ino_hash(ino) % READ_BUCKETS];

	while (c && (c->ino != ino || c->first >= end || c->end <= first))
		c = c->next;
	return c;
}

/* May the kernel have stores that come back only when the size is set? */
static bool change_keeps(const struct kcache_change *c)
{
	return c->cuts && atomic_load_explicit(&c->file->mapped, memory_order_acquire);
}

/* Returns true if its size is being set: the kernel keeps stores in it until the answer. */
bool kcache_cutting(const struct kcache *k, uint64_t ino)
{
	const struct kcache_change *c = k->changes[kcache_ino_hash(ino) % READ_BUCKETS];

	while (c && (c->ino != ino || !change_keeps(c)))
		c = c->next;
	return c;
}

bool kcache_sizing(const struct kcache *k, uint64_t ino)
{
	const struct kcache_change *c = k->changes[kcache_ino_hash(ino) % READ_BUCKETS];

	while (c && (c->ino != ino || !c->cuts))
		c = c->next;
	return c;
}

/* ---- changed past the kernel's pages ------------------------------------------------------ */

/* Under the lock: is there a READ that has waited for long until nothing is changed? */
static bool change_yields(const struct kcache *k, const struct kcache_change *c)
{
	const struct kcache_read *r = k->reads[kcache_ino_hash(c->ino) % READ_BUCKETS];

	while (r && !(r->hungry && r->ino == c->ino && r->first < c->end &&
			    c->first < r->end))
		r = r->next;
	return r;
}

/* Under the lock, which it lets go of. */
void kcache_change_list(struct kcache *k, struct kcache_change *c)
{
	struct kcache_change **head = &k->changes[kcache_ino_hash(c->ino) % READ_BUCKETS];

	for (unsigned i = 0; i < YIELDS_MAX && change_yields(k, c); i++) {
		rt_mutex_unlock(&k->lock);
		rt_sleep_ns(YIELD_NS);
		rt_mutex_lock(&k->lock);
	}
	c->next = *head;
	*head = c;
	c->listed = true;
}

void kcache_change_unlist(struct kcache *k, struct kcache_change *c)
{
	struct kcache_change **at = &k->changes[kcache_ino_hash(c->ino) % READ_BUCKETS];

	while (*at != c)
		at = &(*at)->next;
	*at = c->next;
}

/*
 * The change is listed first. A READ that would be answered later finds it, and is not answered. A
 * READ that was answered before has left its list, so the drop waits for its pages in the kernel.
 * If such a READ lets the kernel store, it has said so in the state before.
 */
static void change_begin(struct kcache *k, struct kcache_change *c)
{
	bool attributes, pages;

	if (!k)
		return;
	rt_mutex_lock(&k->lock);
	kcache_change_list(k, c);
	if (c->cuts)
		kcache_parts_cut(k, c->ino);
	attributes = known_forget_attributes(k, c->ino);
	pages = known_has_pages(k, c->ino);
	rt_mutex_unlock(&k->lock);
	if (c->cuts)
		rt_cond_broadcast(&k->changed);
	if (attributes)
		kcache_attributes_drop(k, c->ino);
	if (pages && !change_keeps(c))
		(void)kcache_drop_range(k, c->ino, c->first, c->end, false, NULL);
}

void kcache_change_begin(struct kcache *k, struct kcache_change *c,
	struct kcache_file *st, uint64_t offset, uint64_t len)
{
	*c = (struct kcache_change){.file = st,
		.ino = st->ino,
		.first = offset / PAGE_SIZE,
		.end = UINT64_MAX};
	if (len < UINT64_MAX - offset)
		c->end = DIV_UP(offset + len, (uint64_t)PAGE_SIZE);
	change_begin(k, c);
}

void kcache_change_cuts(
	struct kcache *k, struct kcache_change *c, struct kcache_file *st, uint64_t size)
{
	*c = (struct kcache_change){.file = st,
		.ino = st->ino,
		.first = size / PAGE_SIZE,
		.end = UINT64_MAX,
		.cuts = true};
	change_begin(k, c);
}

void kcache_fetch_stores(struct kcache *k, struct kcache_file *st)
{
	if (k && atomic_load_explicit(&st->mapped, memory_order_acquire))
		(void)kcache_drop_range(k, st->ino, 0, UINT64_MAX, false, NULL);
}

int kcache_fetch_range(
	struct kcache *k, struct kcache_file *st, uint64_t first, uint64_t end)
{
	(void)kcache_drop_range(k, st->ino, first, end, false, NULL);
	return kcache_stores_await(k, st);
}

void kcache_change_end(struct kcache *k, struct kcache_change *c)
{
	if (!c->listed)
		return;
	kcache_resized(k, c->ino);
	rt_mutex_lock(&k->lock);
	kcache_change_unlist(k, c);
	rt_mutex_unlock(&k->lock);
	if (c->cuts)
		rt_cond_broadcast(&k->changed);
}
