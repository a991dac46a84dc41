/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Redo of the log's images into the cache. Runs before anything else uses the cache, by one
 * task, which evicts where it must. Redoing what is already there changes nothing: older or
 * equal images are skipped, so recovery may itself be cut off and start over. An image that was
 * cut off in writing matches no descriptor then; the full image in the log makes it good.
 */
#include "engine/cache/recovery.h"
#include "engine/cache/cache_internal.h"

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
	if (e) /* -ESTALE: a damaged image of a newer incarnation, which is not ours to mend */
		return e == -ESTALE ? 0 : e;
	page_store(g.image, image, PAGE_SIZE);
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
	if (e)
		return weft_error(err, e, "page %#llx cannot be read for redo",
			(unsigned long long)pid);
	for (unsigned i = 0; i < range_count; i++) {
		page_store(g.image + ranges[i].offset, bytes, ranges[i].length);
		bytes += ranges[i].length;
	}
	/* A page that was evicted during redo continues a chain whose full image lies before this
	 * record: the tail does not move before all is persisted (cache_recover_end). */
	if (!(frame_flags(g.frame) & FRAME_DIRTY))
		atomic_store_explicit(&g.frame->rec_lsn, start, memory_order_relaxed);
	mark_recovered(c, g.frame, version, LSN_NONE, end);
	guard_release(c, &g);
	return 1;
}

void cache_recover_begin(struct cache *c)
{
	WEFT_ASSERT(!c->started);
	c->redo = true;
}

int cache_recover_end(struct cache *c)
{
	int e = c->options.read_only ? 0 : cache_checkpoint(c);

	if (!e && !c->options.read_only)
		WEFT_ASSERT(!atomic_load_explicit(&c->dirty, memory_order_relaxed));
	c->redo = false;
	return e;
}
