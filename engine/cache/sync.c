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

#define LOGGED_PAGES_MAX (CACHE_SYNC_LOGGED_MAX / PAGE_SIZE)

static bool needs_sync(struct cache *c, const struct page_ref *ref)
{
	struct frame *f = table_find(c, ref->pid);

	return f && (frame_flags(f) & (FRAME_DIRTY | FRAME_LOGGED | FRAME_UNPUBLISHED)) ==
			    FRAME_DIRTY;
}

/* Appends the page's image. Holds its latch for the append only, which never waits. */
static int log_image(struct cache *c, const struct page_ref *ref)
{
	struct disk_log_page head = {.pid = ref->pid,
		.kind = DISK_LOG_FULL,
		.part_bytes = sizeof(head) + PAGE_SIZE};
	struct disk_log_record record = {
		.record_bytes = sizeof(record) + sizeof(head) + PAGE_SIZE,
		.type = DISK_LOG_CHANGE,
		.count = 1};
	struct frame *f = table_find(c, ref->pid);
	struct iovec iov[3] = {
		{.iov_base = &record, .iov_len = sizeof(record)},
		{.iov_base = &head, .iov_len = sizeof(head)},
		{.iov_len = PAGE_SIZE},
	};
	struct log_position pos;
	struct log_room room;
	uint64_t none = LSN_NONE;
	int e;

	if (!f)
		return 0;
	e = log_reserve(c->log, record.record_bytes, false, &room);
	if (e)
		return e == -EROFS ? -EIO : e;
	if (latch_shared(c, f, ref->pid)) {
		uint32_t flags = frame_flags(f);

		if ((flags & (FRAME_DIRTY | FRAME_LOGGED | FRAME_UNPUBLISHED)) ==
				FRAME_DIRTY &&
			f->incarnation == ref->incarnation) {
			head.incarnation = f->incarnation;
			head.version = f->version;
			iov[2].iov_base = frame_image(c, f);
			atomic_compare_exchange_strong_explicit(&f->rec_lsn, &none,
				log_durable(c->log), memory_order_seq_cst,
				memory_order_relaxed);
			pos = log_append(c->log, &room, iov, 3);
			if (flags &
				FRAME_DATA) { /* an older image of it is needed no more */
				atomic_store_explicit(
					&f->rec_lsn, pos.start, memory_order_release);
				frame_set(f, FRAME_LOGGED);
			}
		}
		latch_release_shared(c, f);
	}
	log_release(c->log, &room);
	return 0;
}

/* In place, until none of them is dirty with what was there at the call. */
static int sync_in_place(struct cache *c, const struct page_ref *refs, unsigned count)
{
	struct page_ref *copy = rt_alloc(MIN(count, c->wb_pages) * sizeof(*copy));
	unsigned away = 0;
	int e = 0;

	if (!copy)
		return -ENOMEM;
	while (count && !e) {
		unsigned n = MIN(count, c->wb_pages);

		do {
			memcpy(copy, refs, n * sizeof(*copy));
			e = writeback_pages(c, copy, n, false, NULL);
		} while (e == -EHOSTDOWN && home_awaited(c, &away));
		refs += n;
		count -= n;
	}
	rt_free(copy);
	return e;
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
	if (atomic_load_explicit(&c->stopping, memory_order_acquire) &&
		++*times > AWAY_STOPPING)
		return false;
	rt_sleep_ns(AWAY_POLL_NS);
	return true;
}

int cache_sync(struct cache *c, const struct page_ref *refs, unsigned count, lsn_t lsn)
{
	unsigned dirty = 0;
	int e = 0;

	for (unsigned i = 0; i < count; i++)
		dirty += needs_sync(c, &refs[i]);
	if (dirty > LOGGED_PAGES_MAX) {
		e = sync_in_place(c, refs, count);
		COUNT(c, sync_in_place, dirty);
		/* left dirty: their older image was under way, or they changed again.
		 * Wait, then log */
		for (unsigned i = 0; i < count && !e; i++)
			await_writing(c, &refs[i]);
	}
	for (unsigned i = 0; i < count && !e; i++)
		if (needs_sync(c, &refs[i])) {
			e = log_image(c, &refs[i]);
			COUNT(c, sync_logged, 1);
		}
	if (!e)
		e = log_flush(c->log, MAX(lsn, log_end(c->log)));
	return e == -EROFS ? -EIO : e;
}
