/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fsync: a file's pages become durable (docs/design.md, "fsync").
 *
 * Few dirty pages go into the log as full images, behind the metadata that names them:
 * one log write, one device flush. Many are written in place and end with one flush of
 * their own. Pages whose very version is in the log already (FRAME_LOGGED) cost nothing
 * again.
 */
#include "engine/cache/cache_internal.h"

#include <stdlib.h>

#define LOGGED_PAGES_MAX (CACHE_SYNC_LOGGED_MAX / PAGE_SIZE)
#define IMAGE_RECORD_BYTES                                                               \
	(uint32_t)(sizeof(struct disk_log_record) + sizeof(struct disk_log_page) +       \
		   PAGE_SIZE)

/* Finds out for certain if the page is here. A page that is missed is not made durable. */
static struct frame *sync_find(struct cache *c, page_id pid)
{
	struct frame *f = table_find(c, pid);

	return f ? f : table_insert(c, pid, NULL);
}

/* Returns the flags of the page's frame; 0: the page is missing. */
static uint32_t sync_flags(struct cache *c, const struct page_ref *ref)
{
	struct frame *f = sync_find(c, ref->pid);

	return f ? frame_flags(f) : 0;
}

static bool flags_need_sync(uint32_t flags)
{
	return (flags & (FRAME_DIRTY | FRAME_LOGGED | FRAME_UNPUBLISHED)) == FRAME_DIRTY;
}

static bool needs_sync(struct cache *c, const struct page_ref *ref)
{
	return flags_need_sync(sync_flags(c, ref));
}

/* The image of the frame, as it is. Pins the log for it first. Never waits. */
static struct log_position append_image(
	struct cache *c, struct frame *f, page_id pid, struct log_room *room)
{
	struct disk_log_page head = {.pid = pid,
		.incarnation = f->incarnation,
		.version = f->version,
		.kind = DISK_LOG_FULL,
		.part_bytes = sizeof(head) + PAGE_SIZE};
	struct disk_log_record record = {
		.record_bytes = IMAGE_RECORD_BYTES, .type = DISK_LOG_CHANGE, .count = 1};
	struct iovec iov[3] = {
		{.iov_base = &record, .iov_len = sizeof(record)},
		{.iov_base = &head, .iov_len = sizeof(head)},
		{.iov_base = frame_image(c, f), .iov_len = PAGE_SIZE},
	};
	uint64_t none = LSN_NONE;

	atomic_compare_exchange_strong_explicit(&f->rec_lsn, &none, log_durable(c->log),
		memory_order_seq_cst, memory_order_relaxed);
	return log_append(c->log, room, iov, 3);
}

/* `waits`: for room in the ring; else -ENOSPC where it has none. */
static int room_get(struct cache *c, bool waits, struct log_room *room)
{
	return waits ? log_reserve(c->log, IMAGE_RECORD_BYTES, false, room)
		     : log_reserve_now(c->log, IMAGE_RECORD_BYTES, room);
}

/* Appends the page's image. Holds its latch for the append only, which never waits. Returns -EBUSY
 * if the page is being requested from another node; that is not waited for either. */
static int log_image(struct cache *c, const struct page_ref *ref, bool waits)
{
	struct frame *f = sync_find(c, ref->pid);
	struct log_position pos;
	struct log_room room;
	int rc;

	if (!f)
		return 0;
	rc = room_get(c, waits, &room);
	if (rc)
		return rc;
	if (waits ? latch_shared(c, f, ref->pid) : latch_for_copy(c, f, ref->pid)) {
		uint32_t flags = frame_flags(f);

		if (flags_need_sync(flags) && f->incarnation == ref->incarnation) {
			pos = append_image(c, f, ref->pid, &room);
			if (flags &
				FRAME_DATA) { /* an older image of it is needed no more */
				atomic_store_explicit(
					&f->rec_lsn, pos.start, memory_order_release);
				frame_set(f, FRAME_LOGGED);
			}
		}
		latch_release_shared(c, f);
	} else if (!waits && needs_sync(c, ref)) {
		rc = -EBUSY;
	}
	log_release(c->log, &room);
	return rc;
}

/* ---- pages given to other nodes ----------------------------------------------------- */

/*
 * Another node may have a page by now that this node has changed. Then the changes are in the image
 * that this node owes, until the home has that or a later one. The log of the other node may have
 * none of them.
 */

static int compare_refs(const void *a, const void *b)
{
	page_id x = ((const struct page_ref *)a)->pid,
		y = ((const struct page_ref *)b)->pid;

	return x < y ? -1 : x > y;
}

/* Returns the next of the pages (`sorted` NULL: of all) from place *at on that is owed and not in
 * the log. NULL: there is none. With owed_lock. */
static struct frame *owed_next(struct cache *c, const struct page_ref *sorted,
	unsigned count, uint32_t *at, page_id *pid)
{
	for (; *at < c->revoke.owed_count; ++*at) {
		const struct page_ref wanted = {.pid = c->revoke.owed[*at].pid}, *ref;
		struct frame *f = &c->frames.frame[c->revoke.owed[*at].frame];

		if (frame_flags(f) & FRAME_LOGGED)
			continue;
		ref = sorted ? bsearch(&wanted, sorted, count, sizeof(*sorted),
				       compare_refs)
			     : NULL;
		if (!sorted || (ref && f->incarnation == ref->incarnation)) {
			*pid = wanted.pid;
			return f;
		}
	}
	return NULL;
}

/* Returns false if there is none. Without `room` it is only looked for. */
static bool owed_log_next(struct cache *c, const struct page_ref *sorted, unsigned count,
	uint32_t *at, struct log_room *room)
{
	struct frame *f;
	page_id pid;

	rt_mutex_lock(&c->revoke.lock);
	f = owed_next(c, sorted, count, at, &pid);
	if (f && room) {
		append_image(c, f, pid, room);
		frame_set(f, FRAME_LOGGED);
		COUNT(c, sync_logged, 1);
	}
	rt_mutex_unlock(&c->revoke.lock);
	return f != NULL;
}

/* An entry that leaves the list is replaced from its end. So the list is read until nothing is
 * found in all of it. If there is nothing to log, no room is needed: there may be none. */
static int owed_log(
	struct cache *c, const struct page_ref *sorted, unsigned count, bool waits)
{
	uint32_t at = 0;

	for (bool any = true; any; at = 0)
		for (any = false; owed_log_next(c, sorted, count, &at, NULL);) {
			struct log_room room;
			int rc = room_get(c, waits, &room);

			if (rc)
				return rc;
			any |= owed_log_next(c, sorted, count, &at, &room);
			log_release(c->log, &room);
		}
	return 0;
}

/* Behind the look at the frames: a page given away meanwhile is owed. *logged: the log may have an
 * image of one. */
static int owed_sync(
	struct cache *c, const struct page_ref *refs, unsigned count, bool *logged)
{
	struct page_ref *sorted;
	bool none;
	int rc;

	rt_mutex_lock(&c->revoke.lock);
	none = c->revoke.owed_count == 0;
	rt_mutex_unlock(&c->revoke.lock);
	if (none || !count)
		return 0;
	*logged = true;
	sorted = rt_alloc(count * sizeof(*sorted));
	if (!sorted)
		return -ENOMEM;
	memcpy(sorted, refs, count * sizeof(*sorted));
	qsort(sorted, count, sizeof(*sorted), compare_refs);
	rc = owed_log(c, sorted, count, true);
	rt_free(sorted);
	return rc;
}

/* Writes in place, until no page is dirty with its image of the time of the call. */
static int sync_in_place(struct cache *c, const struct page_ref *refs, unsigned count)
{
	struct page_ref *copy = rt_alloc(MIN(count, c->writeback.pages) * sizeof(*copy));
	unsigned away = 0;
	int rc = 0;

	if (!copy)
		return -ENOMEM;
	while (count && !rc) {
		unsigned n = MIN(count, c->writeback.pages);

		do {
			memcpy(copy, refs, n * sizeof(*copy));
			rc = writeback_pages(c, copy, n, false, NULL);
		} while (rc == -EHOSTDOWN && home_awaited(c, &away));
		refs += n;
		count -= n;
	}
	rt_free(copy);
	return rc;
}

/* Waits for writes that were on their way when sync_in_place came by. */
static void await_writing(struct cache *c, const struct page_ref *ref)
{
	unsigned spins = 0;
	struct frame *f;

	while ((f = table_find(c, ref->pid)) && (frame_flags(f) & FRAME_WRITING)) {
		if (spins < 50)
			rt_spin(&spins);
		else
			rt_sleep_ns(50000);
	}
}

bool home_awaited(struct cache *c, unsigned *times)
{
	if (atomic_load_explicit(&c->given_up, memory_order_acquire) ||
		(atomic_load_explicit(&c->stopping, memory_order_acquire) &&
			++*times > AWAY_STOPPING))
		return false;
	rt_sleep_ns(AWAY_POLL_NS);
	return true;
}

/* A clean page is durable in the store. So the end of the log matters only if a page is not clean:
 * the log has its image, from here or from another task. */
int cache_sync(struct cache *c, const struct page_ref *refs, unsigned count, lsn_t lsn)
{
	unsigned dirty = 0;
	bool logged = false;
	int rc = 0;

	for (unsigned i = 0; i < count; i++)
		dirty += needs_sync(c, &refs[i]);
	if (dirty > LOGGED_PAGES_MAX) {
		rc = sync_in_place(c, refs, count);
		COUNT(c, sync_in_place, dirty);
		/* left dirty: their older image was under way, or they changed again.
		 * Wait, then log */
		for (unsigned i = 0; i < count && !rc; i++)
			await_writing(c, &refs[i]);
	}
	for (unsigned i = 0; i < count && !rc; i++) {
		uint32_t flags = sync_flags(c, &refs[i]);

		logged |= flags & FRAME_DIRTY;
		if (flags_need_sync(flags)) {
			rc = log_image(c, &refs[i], true);
			COUNT(c, sync_logged, 1);
		}
	}
	if (!rc)
		rc = owed_sync(c, refs, count, &logged);
	if (!rc)
		rc = log_flush(c->log, logged ? MAX(lsn, log_end(c->log)) : lsn);
	return rc == -EROFS ? -EIO : rc;
}

/* ---- all at once -------------------------------------------------------------------- */

/* Returns true if fsync would log the page. Changes of other pages are in the log as they are
 * made. */
static bool needs_log(struct frame *f)
{
	const uint32_t mask =
		FRAME_DIRTY | FRAME_DATA | FRAME_LOGGED | FRAME_UNPUBLISHED;

	return (frame_flags(f) & mask) == (FRAME_DIRTY | FRAME_DATA);
}

/* Counts as if each image needed a chunk of its own. Some room is spare for the overhead that a
 * reservation is charged. So there is room for all, unless other tasks take it meanwhile. */
static bool all_fits(struct cache *c)
{
	uint64_t count = 0;

	rt_mutex_lock(&c->revoke.lock);
	for (uint32_t i = 0; i < c->revoke.owed_count; i++)
		count += !(frame_flags(&c->frames.frame[c->revoke.owed[i].frame]) &
			   FRAME_LOGGED);
	rt_mutex_unlock(&c->revoke.lock);
	for (uint32_t i = 0; i < c->frames.count; i++)
		count += needs_log(&c->frames.frame[i]);
	return !count || (count + 16) * 2 * PAGE_SIZE <= log_room_left(c->log);
}

/* Its image was appended, and the log failed before it was durable. */
static bool logged_in_vain(struct cache *c, struct frame *f)
{
	const uint32_t mask = FRAME_DIRTY | FRAME_DATA | FRAME_LOGGED;

	return log_failed(c->log) && (frame_flags(f) & mask) == mask &&
	       atomic_load_explicit(&f->rec_lsn, memory_order_relaxed) >=
		       log_durable(c->log);
}

/* The log has the changes of owed pages that pin it. Those of file data are full images. */
uint64_t cache_unlogged(struct cache *c)
{
	uint64_t count = 0;

	rt_mutex_lock(&c->revoke.lock);
	for (uint32_t i = 0; i < c->revoke.owed_count; i++) {
		struct frame *f = &c->frames.frame[c->revoke.owed[i].frame];

		count += atomic_load_explicit(&f->rec_lsn, memory_order_relaxed) ==
			 LSN_NONE;
	}
	rt_mutex_unlock(&c->revoke.lock);
	for (uint32_t i = 0; i < c->frames.count; i++)
		count += needs_log(&c->frames.frame[i]) ||
			 logged_in_vain(c, &c->frames.frame[i]);
	return count;
}

int log_all(struct cache *c)
{
	bool busy = false;
	int rc = 0, flushed;

	for (uint32_t i = 0; i < c->frames.count && !rc; i++) {
		struct frame *f = &c->frames.frame[i];
		struct page_ref ref;

		if (!needs_log(f))
			continue;
		ref.pid = atomic_load_explicit(&f->pid, memory_order_relaxed);
		ref.incarnation = f->incarnation;
		rc = log_image(c, &ref, false);
		busy |= rc == -EBUSY;
		rc = rc == -EBUSY ? 0 : rc;
	}
	if (!rc)
		rc = owed_log(c, NULL, 0, false);
	flushed = log_flush(c->log, log_end(c->log));
	rc = rc ? rc : flushed;
	return !rc && busy ? -EBUSY : rc;
}

int cache_log_dirty(struct cache *c)
{
	return all_fits(c) ? log_all(c) : -ENOBUFS;
}

void cache_give_up(struct cache *c)
{
	atomic_store_explicit(&c->given_up, true, memory_order_release);
	log_reserve_cut(c->log);
}
