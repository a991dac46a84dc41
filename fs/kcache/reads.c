/* SPDX-License-Identifier: Apache-2.0 */
/*
 * READs for the kernel's cache, while they are pending (docs/nodes/kernel-cache.md).
 *
 * Keeps: (5) the kernel has no readable copy of a page that a pending READ asks for. A READ leaves
 * the list only to be answered.
 */
#include "fs/kcache/kcache_internal.h"

/* ---- pending READs ------------------------------------------------------------------------ */

/* Another READ of the same pages: the kernel has taken the earlier one for answered, since its
 * process was killed. */
static void reads_outlive(struct kcache_read *list, const struct kcache_read *by)
{
	for (struct kcache_read *r = list; r; r = r->next)
		if (r->ino == by->ino && r->first < by->end && by->first < r->end)
			r->stale = true;
}

static void read_list(struct kcache *k, struct kcache_read *r)
{
	struct kcache_read **head = &k->reads[kcache_ino_hash(r->ino) % READ_BUCKETS];
	bool waiting;

	rt_mutex_lock(&k->lock);
	r->noted = known_note_pages(k, r->ino);
	if (!r->stale) {
		reads_outlive(*head, r);
		kcache_parts_touch(k, r);
	}
	r->next = *head;
	*head = r;
	r->pending = true;
	waiting = k->queue;
	rt_mutex_unlock(&k->lock);
	rt_cond_broadcast(&k->changed);
	if (waiting) /* no task waits for a part that was touched */
		rt_cond_broadcast(&k->work);
}

/* Returns true if it cannot be answered now: a call here changes the blocks, or the inode has no
 * place in the table. */
static bool read_refused(struct kcache *k, struct kcache_read *r)
{
	bool refused;

	rt_mutex_lock(&k->lock);
	refused = kcache_changing(k, r->ino, r->first, r->end);
	r->hungry |= refused && r->wait_ns == WAIT_LAST_NS;
	r->noted = r->noted || known_note_pages(k, r->ino);
	refused |= !r->noted;
	rt_mutex_unlock(&k->lock);
	return refused;
}

/* Under the lock. */
static void read_unlist(struct kcache *k, struct kcache_read *r)
{
	struct kcache_read **at = &k->reads[kcache_ino_hash(r->ino) % READ_BUCKETS];
	bool had = r->noted;

	while (*at != r)
		at = &(*at)->next;
	*at = r->next;
	if (had) /* the kernel gets pages now */
		r->noted = known_note_pages(k, r->ino);
	WEFT_ASSERT(r->noted || !had);
	r->pending = false;
}

bool kcache_read_pending(const struct kcache *k, uint64_t ino)
{
	const struct kcache_read *r = k->reads[kcache_ino_hash(ino) % READ_BUCKETS];

	while (r && r->ino != ino)
		r = r->next;
	return r;
}

/* A pending READ that has the block, or NULL. */
static const struct kcache_read *read_of_block(
	const struct kcache *k, uint64_t ino, uint64_t block)
{
	const struct kcache_read *r = k->reads[kcache_ino_hash(ino) % READ_BUCKETS];

	while (r && (r->ino != ino || r->stale || block < r->first || block >= r->end))
		r = r->next;
	return r;
}

bool kcache_unread(struct kcache *k, uint64_t ino, uint64_t *block)
{
	const struct kcache_read *r;
	bool first = false;

	rt_mutex_lock(&k->lock);
	while (!first && (r = read_of_block(k, ino, *block))) {
		first = r->first == 0;
		*block = r->first - !first;
	}
	rt_mutex_unlock(&k->lock);
	return !first;
}

void kcache_read_begin(struct kcache *k, struct kcache_read *r, struct kcache_file *st,
	uint64_t offset, size_t len)
{
	*r = (struct kcache_read){.file = st,
		.ino = st->ino,
		.first = offset / PAGE_SIZE,
		.end = DIV_UP(offset + len, (uint64_t)PAGE_SIZE)};
	read_list(k, r);
}

void kcache_read_end(struct kcache *k, struct kcache_read *r)
{
	if (!r->pending)
		return;
	rt_mutex_lock(&k->lock);
	read_unlist(k, r);
	rt_mutex_unlock(&k->lock);
}

void kcache_read_wait(struct kcache_read *r)
{
	r->wait_ns = MIN(MAX(r->wait_ns * 2, WAIT_FIRST_NS), WAIT_LAST_NS);
	rt_sleep_ns(r->wait_ns);
}

/*
 * A drop under way may have unmapped an earlier copy of these pages, and not yet told processors.
 * The kernel may have taken that copy out by itself meanwhile. No program gets newer bytes before
 * processors know.
 */
static void read_awaits_told(struct kcache *k, struct kcache_read *r)
{
	if (r->told)
		return;
	rt_mutex_lock(&k->lock);
	kcache_range_told(k, r->ino, r->first, r->end);
	rt_mutex_unlock(&k->lock);
	r->told = true;
}

static int kcache_leaves(struct kcache *k, struct kcache_read *r, struct disk_key from,
	struct disk_key to, unsigned kinds)
{
	int n = tree_kcache(k->tree, from, to, kinds, r->leaf + r->leaves,
		KCACHE_READ_LEAVES - r->leaves);

	if (n > 0)
		r->leaves += (unsigned)n;
	return MIN(n, 0);
}

int kcache_read_leaves(struct kcache *k, struct kcache_read *r)
{
	struct disk_key inode = disk_key(r->ino, DISK_ITEM_INODE, 0);
	struct disk_key from = disk_key(r->ino, DISK_ITEM_EXTENT, r->first);
	struct disk_key none = disk_key(r->ino, DISK_ITEM_EXTENT, 0);
	struct disk_extent e;
	int rc;

	WEFT_ASSERT(r->pending);
	if (read_refused(k, r))
		return -EAGAIN;
	read_awaits_told(k, r);
	r->mappable = kcache_stores_possible(r->file);
	r->stores = r->mappable && k->maps_alone;
	r->leaves = 0;
	rc = kcache_leaves(k, r, inode, inode, KCACHE_FILES);
	if (rc)
		return rc;
	/* the extent that covers the first block may be in a leaf before */
	rc = tree_floor(k->tree, from, none, &from, &e, sizeof(e));
	if (rc == -ENOENT)
		from = none;
	else if (rc < 0)
		return rc == -ERANGE ? -EUCLEAN : rc;
	return kcache_leaves(
		k, r, from, disk_key(r->ino, DISK_ITEM_EXTENT, r->end), KCACHE_FILES);
}

/* Under the lock: the leaves that it was looked up in stand, and no call here changes the
 * blocks. */
static bool read_stands(struct kcache *k, const struct kcache_read *r)
{
	if (!r->mappable && kcache_stores_possible(r->file))
		return false;
	for (unsigned i = 0; i < r->leaves; i++)
		if (!cache_kcopy_stands(k->cache, &r->leaf[i]))
			return false;
	return !kcache_changing(k, r->ino, r->first, r->end);
}

/*
 * A READ leaves the list only to be answered. While it is listed, no drop begins that would wait
 * for its pages in the kernel. A drop of a leaf marks the leaf before it looks at the list, so one
 * of the two sees the other.
 */
bool kcache_read_answers(struct kcache *k, struct kcache_read *r, uint64_t end)
{
	bool stands;

	rt_mutex_lock(&k->lock);
	stands = read_stands(k, r);
	if (stands)
		read_unlist(k, r);
	if (stands && end != UINT64_MAX)
		known_end_size(k, r->ino, end);
	rt_mutex_unlock(&k->lock);
	return stands;
}

/* From `at` on: where the next pending READ begins, or where the one that covers it ends. */
uint64_t kcache_read_covers(
	struct kcache *k, uint64_t ino, uint64_t at, uint64_t end, bool *covered)
{
	uint64_t next = end;

	*covered = false;
	for (const struct kcache_read *r = k->reads[kcache_ino_hash(ino) % READ_BUCKETS];
		r; r = r->next) {
		if (r->ino != ino || r->stale || r->end <= at)
			continue;
		if (r->first <= at) {
			*covered = true;
			return MIN(r->end, end);
		}
		next = MIN(next, r->first);
	}
	return next;
}
