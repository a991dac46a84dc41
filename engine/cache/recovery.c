/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Redo of the log's images into the cache. Runs before anything else uses the cache, by one
 * task; write-back may run beside it. Redoing what is already there changes nothing: older or
 * equal images are skipped, so recovery may itself be cut off and start over.
 */
#include "engine/cache/recovery.h"
#include "engine/cache/cache_internal.h"

void cache_recover_floor(struct cache *c, lsn_t lsn)
{
	atomic_store_explicit(&c->recover_floor, lsn, memory_order_release);
}

/* What is known of the page: the frame's state, or the store's descriptor. */
static int known_state(struct cache *c, page_id pid, uint64_t *incarnation, uint64_t *version)
{
	struct store_read r = {.pid = pid};
	struct frame *f = table_find(c, pid);

	if (f && latch_shared(c, f, pid)) {
		*incarnation = f->incarnation;
		*version = f->version;
		latch_release_shared(c, f);
		return 0;
	}
	store_read_pages(c->store, &r, 1);
	if (r.result < 0)
		return r.result;
	*incarnation = r.found_incarnation;
	*version = r.version;
	return 0;
}

static void mark_recovered(struct cache *c, struct frame *f, uint64_t version, lsn_t start, lsn_t end)
{
	f->version = version;
	atomic_store_explicit(&f->page_lsn, end, memory_order_relaxed);
	if (start)
		atomic_store_explicit(&f->rec_lsn, start, memory_order_relaxed);
	frame_clear(f, FRAME_NEED_FULL | FRAME_CHECKED | FRAME_LOGGED);
	frame_mark_dirty(c, f, 0);
}

int cache_recover_full(struct cache *c, page_id pid, uint64_t incarnation, uint64_t version,
	const void *image, lsn_t start, lsn_t end)
{
	uint64_t known_inc, known_ver;
	struct guard g;
	int e = known_state(c, pid, &known_inc, &known_ver);

	if (e == 0 && page_order(incarnation, version, known_inc, known_ver) <= 0)
		return 0;
	if (e && e != -EUCLEAN) /* a damaged image is made good by this one */
		return e;
	e = guard_overwrite(c, pid, incarnation, &g);
	if (e)
		return e;
	page_store(g.image, image, PAGE_SIZE);
	frame_clear(g.frame, FRAME_CUT);
	mark_recovered(c, g.frame, version, start, end);
	guard_release(c, &g);
	return 1;
}

int cache_recover_ranges(struct cache *c, page_id pid, uint64_t incarnation, uint64_t version,
	const struct disk_log_range *ranges, unsigned range_count, const uint8_t *bytes,
	lsn_t start, lsn_t end, struct weft_error *err)
{
	uint64_t known_inc, known_ver;
	struct guard g;
	int e = known_state(c, pid, &known_inc, &known_ver);

	if (e)
		return weft_error(err, e, "page %#llx: its descriptor cannot be read",
			(unsigned long long)pid);
	if (page_order(incarnation, version, known_inc, known_ver) <= 0)
		return 0;
	if (known_inc != incarnation || known_ver + 1 != version)
		return weft_error(err, -EUCLEAN,
			"page %#llx: the log changes version %llu.%llu to %llu.%llu, with a gap",
			(unsigned long long)pid, (unsigned long long)known_inc,
			(unsigned long long)known_ver, (unsigned long long)incarnation,
			(unsigned long long)version);
	e = guard_exclusive(c, pid, incarnation, &g);
	if (e == -EUCLEAN)
		return -EBADMSG;
	if (e)
		return weft_error(err, e, "page %#llx cannot be read for redo",
			(unsigned long long)pid);
	for (unsigned i = 0; i < range_count; i++) {
		page_store(g.image + ranges[i].offset, bytes, ranges[i].length);
		bytes += ranges[i].length;
	}
	/* A page that was written back during redo continues a chain whose full image may leave
	 * the log: its next overwrite in place must be safe against tearing by itself. */
	if (!(frame_flags(g.frame) & FRAME_DIRTY)) {
		atomic_store_explicit(&g.frame->rec_lsn, start, memory_order_relaxed);
		frame_set(g.frame, FRAME_CUT);
	}
	mark_recovered(c, g.frame, version, LSN_NONE, end);
	guard_release(c, &g);
	return 1;
}
