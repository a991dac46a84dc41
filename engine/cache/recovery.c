/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Redo of the log's images into the cache. Runs before anything else uses the cache, by one task,
 * which evicts where it must. Redoing an image twice changes nothing: older or equal images are
 * skipped. So recovery may itself be cut off and start over. An image that was cut off in writing
 * matches no descriptor then; the full image in the log makes it good.
 */
#include "engine/cache/recovery.h"
#include "engine/cache/cache_internal.h"

#define REDO_FRAMES 64u /* beside those of pages that stay */

/* For a page of another store: the state in its descriptor, as its provider knows it. */
static int state_elsewhere(
	struct cache *c, page_id pid, uint64_t *incarnation, uint64_t *version)
{
	struct coherence_request r = {
		.pid = pid, .wanted = PAGE_SHARED, .held = PAGE_INVALID, .hollow = true};

	c->coherence->ops->acquire(c->coherence, &r, 1);
	*incarnation = r.found_incarnation;
	*version = r.version;
	return r.result;
}

/* The known state of the page: the frame's, or that of the store's descriptor. */
static int known_state(
	struct cache *c, page_id pid, uint64_t *incarnation, uint64_t *version)
{
	struct store_read r = {.pid = pid};
	struct frame *f = table_find(c, pid);

	if (f && latch_shared(c, f, pid)) {
		*incarnation = f->incarnation;
		*version = f->version;
		latch_release_shared(c, f);
		return 0;
	}
	if (!coherence_home_here(c->coherence, pid))
		return state_elsewhere(c, pid, incarnation, version);
	store_read_pages(c->store, &r, 1);
	if (r.result < 0)
		return r.result;
	*incarnation = r.found_incarnation;
	*version = r.version;
	return 0;
}

static void mark_recovered(
	struct cache *c, struct frame *f, uint64_t version, lsn_t start, lsn_t end)
{
	f->version = version;
	atomic_store_explicit(&f->page_lsn, end, memory_order_relaxed);
	if (start)
		atomic_store_explicit(&f->rec_lsn, start, memory_order_relaxed);
	frame_clear(f, FRAME_NEED_FULL | FRAME_CHECKED | FRAME_LOGGED | FRAME_HOLLOW);
	frame_mark_dirty(c, f, 0);
}

/* ---- mending
 * ------------------------------------------------------------------------------- A cut
 * in a write-back leaves an image that fits no descriptor. If the page's full image in
 * the log is not newer than the table's descriptor, it is installed nevertheless, as the
 * base for the changes that follow it; until they have brought it to the descriptor's
 * version the frame stays (UNPUBLISHED: neither written nor evicted). What has not come
 * so far at the end is damaged by other causes: it is dropped, and reads report it.
 */
struct mend {
	page_id pid;
	uint64_t incarnation, version; /* to be reached */
};

static int mend_add(struct cache *c, struct frame *f, page_id pid, uint64_t incarnation,
	uint64_t version)
{
	if (c->recovery.mend_count == c->frames.count / 2) {
		weft_log(
			3, "recovery: over %u pages are damaged", c->recovery.mend_count);
		return -EUCLEAN;
	}
	c->recovery.mends[c->recovery.mend_count++] =
		(struct mend){.pid = pid, .incarnation = incarnation, .version = version};
	frame_set(f, FRAME_UNPUBLISHED);
	return 0;
}

/* The frame has got newer: checks that it is whole now. */
static void mend_check(struct cache *c, struct frame *f, page_id pid)
{
	for (unsigned i = 0; i < c->recovery.mend_count; i++) {
		const struct mend *m = &c->recovery.mends[i];

		if (m->pid != pid || page_order(f->incarnation, f->version,
					     m->incarnation, m->version) < 0)
			continue;
		frame_clear(f, FRAME_UNPUBLISHED);
		c->recovery.mends[i] = c->recovery.mends[--c->recovery.mend_count];
		return;
	}
}

/* Drops its frame in any state; other nodes have not been told of it yet. */
static void mend_drop(struct cache *c, const struct mend *m)
{
	struct frame *f = table_find(c, m->pid);

	if (!f || !latch_exclusive(c, f, m->pid))
		return;
	if (f->incarnation != m->incarnation) {
		latch_release_exclusive(c, f, false);
		return;
	}
	frame_mark_clean(c, f);
	frame_drop(c, f);
}

static void mends_end(struct cache *c)
{
	for (unsigned i = 0; i < c->recovery.mend_count; i++) {
		const struct mend *m = &c->recovery.mends[i];

		weft_log(3,
			"recovery: page %#llx (incarnation %llu) is damaged, and the log "
			"does not "
			"reach its version %llu; run fsck.weft",
			(unsigned long long)m->pid, (unsigned long long)m->incarnation,
			(unsigned long long)m->version);
		mend_drop(c, m);
	}
	c->recovery.mend_count = 0;
}

/* ---- redo ------------------------------------------------------------------------ */

int cache_recover_full(struct cache *c, page_id pid, uint64_t incarnation,
	uint64_t version, const void *image, lsn_t start, lsn_t end)
{
	uint64_t known_inc = 0, known_ver = 0;
	bool mend = false;
	struct guard g;
	int rc = known_state(c, pid, &known_inc, &known_ver);

	if (rc == 0 && page_order(incarnation, version, known_inc, known_ver) <= 0) {
		/* not newer than the descriptor: checks that this image is whole */
		rc = guard_shared(c, pid, 0, &g);
		if (!rc)
			guard_release(c, &g);
		if (rc != -EUCLEAN || incarnation < known_inc)
			return rc == -EUCLEAN ? 0 : rc;
		mend = version < known_ver;
	}
	if (rc && rc != -EUCLEAN) /* a damaged image is made good by this one */
		return rc;
	rc = guard_overwrite(c, pid, incarnation, &g);
	if (rc) /* -ESTALE: a damaged image of a newer incarnation, which is not ours to
		  mend */
		return rc == -ESTALE ? 0 : rc;
	page_store(g.image, image, PAGE_SIZE);
	mark_recovered(c, g.frame, version, start, end);
	if (mend)
		rc = mend_add(c, g.frame, pid, incarnation, known_ver);
	else if (c->recovery.mend_count)
		mend_check(c, g.frame, pid);
	guard_release(c, &g);
	return rc ? rc : 1;
}

static void redo_ranges(uint8_t *image, const struct disk_log_page *part)
{
	const struct disk_log_move *move = disk_log_moves(part);
	const struct disk_log_range *range = disk_log_ranges(part);
	const uint8_t *bytes = disk_log_bytes(part);

	for (unsigned i = 0; i < part->move_count; i++)
		page_move(image + move[i].to, image + move[i].from, move[i].length);
	for (unsigned i = 0; i < part->range_count; i++) {
		page_store(image + range[i].offset, bytes, range[i].length);
		bytes += range[i].length;
	}
}

int cache_recover_ranges(struct cache *c, const struct disk_log_page *part, lsn_t start,
	lsn_t end, struct weft_error *err)
{
	uint64_t incarnation = part->incarnation, version = part->version;
	uint64_t known_inc, known_ver;
	page_id pid = part->pid;
	struct guard g;
	int rc = known_state(c, pid, &known_inc, &known_ver);

	if (rc)
		return weft_error(err, rc, "page %#llx: its descriptor cannot be read",
			(unsigned long long)pid);
	if (page_order(incarnation, version, known_inc, known_ver) <= 0)
		return 0;
	if (known_inc != incarnation || known_ver + 1 != version)
		return weft_error(err, -EUCLEAN,
			"page %#llx: the log changes version %llu.%llu to %llu.%llu, "
			"with a gap",
			(unsigned long long)pid, (unsigned long long)known_inc,
			(unsigned long long)known_ver, (unsigned long long)incarnation,
			(unsigned long long)version);
	rc = guard_exclusive(c, pid, incarnation, &g);
	if (rc)
		return weft_error(err, rc, "page %#llx cannot be read for redo",
			(unsigned long long)pid);
	redo_ranges(g.image, part);
	/* A page that was evicted during redo continues a chain whose full image lies before this
	 * record. The tail does not move before all is persisted (cache_recover_end). */
	if (!(frame_flags(g.frame) & FRAME_DIRTY))
		atomic_store_explicit(&g.frame->rec_lsn, start, memory_order_relaxed);
	mark_recovered(c, g.frame, version, LSN_NONE, end);
	if (c->recovery.mend_count)
		mend_check(c, g.frame, pid);
	guard_release(c, &g);
	return 1;
}

/* ---- pages of other homes -------------------------------------------------------------- */

/* They may be seven of eight frames. */
uint64_t cache_recover_bytes(uint64_t owed)
{
	return ((owed / 7 + 1) * 8 + REDO_FRAMES) * PAGE_SIZE;
}

/* A frame for the page. It stays: UNPUBLISHED. */
static struct frame *owed_claim(struct cache *c, const struct disk_log_page *part,
	int *error, struct weft_error *err)
{
	struct frame *f = NULL;

	if (c->recovery.owed < c->frames.count / 8 * 7)
		f = frame_get(c, true, error);
	else
		*error = -ENOMEM;
	if (!f) {
		weft_error(err, *error,
			"the log has changes of more than %u pages of other nodes: open "
			"the volume with a larger cache",
			c->recovery.owed);
		return NULL;
	}
	frame_claim(c, f, part->incarnation);
	WEFT_ASSERT(!table_insert(c, part->pid, f));
	atomic_store_explicit(&f->flags, 0, memory_order_relaxed);
	c->recovery.owed++;
	return f;
}

int cache_recover_owed(struct cache *c, const struct disk_log_page *part, lsn_t start,
	lsn_t end, struct weft_error *err)
{
	struct frame *f = table_insert(c, part->pid, NULL);
	bool full = part->kind == DISK_LOG_FULL;
	int rc = 0;

	if (!f && !full)
		return 0;
	if (!f) {
		f = owed_claim(c, part, &rc, err);
		if (!f)
			return rc;
	} else {
		latch_free_frame(f);
		if (page_order(part->incarnation, part->version, f->incarnation,
			    f->version) <= 0) {
			latch_release_exclusive(c, f, false);
			return 0;
		}
	}
	if (full) {
		page_store(frame_image(c, f), part + 1, PAGE_SIZE);
		atomic_store_explicit(&f->rec_lsn, start, memory_order_relaxed);
	} else if (part->incarnation == f->incarnation &&
		   part->version == f->version + 1) {
		redo_ranges(frame_image(c, f), part);
	} else {
		rc = weft_error(err, -EUCLEAN,
			"page %#llx of another node: the log changes version %llu.%llu "
			"to "
			"%llu.%llu, with a gap",
			(unsigned long long)part->pid, (unsigned long long)f->incarnation,
			(unsigned long long)f->version,
			(unsigned long long)part->incarnation,
			(unsigned long long)part->version);
	}
	if (!rc) {
		f->incarnation = part->incarnation;
		f->version = part->version;
		atomic_store_explicit(&f->page_lsn, end, memory_order_relaxed);
		frame_mark_dirty(c, f, FRAME_UNPUBLISHED);
	}
	latch_release_exclusive(c, f, true);
	return rc ? rc : 1;
}

/* All is persisted: other nodes may have later images of these pages. */
static void drop_all(struct cache *c)
{
	for (uint32_t i = 0; i < c->frames.count; i++) {
		struct frame *f = &c->frames.frame[i];

		if (atomic_load_explicit(&f->pid, memory_order_relaxed) == PID_NONE)
			continue;
		WEFT_ASSERT(!(frame_flags(f) & FRAME_DIRTY));
		latch_free_frame(f);
		WEFT_ASSERT(frame_drop(c, f)); /* nobody else has asked for it yet */
	}
}

/* ---- reading ahead of redo
 * ------------------------------------------------------------------ Redo goes from
 * record to record; a page at a time, a cache that has been evicted from, or one that
 * starts empty, would cost a round trip to the device for each page.
 */
#define AHEAD_SLOTS (4 * FETCH_MAX) /* of the table of pages met; a power of two */

struct ahead {
	struct cache *cache;
	unsigned count, max;
	const struct disk_log_page *part[FETCH_MAX]; /* the first of each page */
	struct store_read read[FETCH_MAX];
	struct page_ref ref[FETCH_MAX];
	uint16_t slot[AHEAD_SLOTS]; /* 1 + index of the part */
};

/* Returns false if it is full. */
static bool ahead_add(struct ahead *a, const struct disk_log_page *part)
{
	unsigned at = (part->pid * 0x9e3779b97f4a7c15ull) >> 32 & (AHEAD_SLOTS - 1);

	if (table_find(a->cache, part->pid) ||
		!coherence_home_here(a->cache->coherence, part->pid))
		return true;
	for (; a->slot[at]; at = (at + 1) & (AHEAD_SLOTS - 1))
		if (a->part[a->slot[at] - 1]->pid == part->pid)
			return true;
	if (a->count == a->max)
		return false;
	a->read[a->count] = (struct store_read){.pid = part->pid};
	a->part[a->count++] = part;
	a->slot[at] = (uint16_t)a->count;
	return true;
}

/* Adds the parts of one record. Returns false if not all of them fit. */
static bool ahead_record(struct ahead *a, const struct disk_log_record *record)
{
	const struct disk_log_page *part = (const struct disk_log_page *)(record + 1);

	if (record->type != DISK_LOG_CHANGE)
		return true;
	for (unsigned i = 0; i < record->count; i++) {
		if (!ahead_add(a, part))
			return false;
		part = (const struct disk_log_page *)((const uint8_t *)part +
						      part->part_bytes);
	}
	return true;
}

/* A newer full image needs no other, and a change that is not newer will be skipped. */
static bool ahead_needs_image(
	const struct disk_log_page *part, const struct store_read *r)
{
	bool newer = page_order(part->incarnation, part->version, r->found_incarnation,
			     r->version) > 0;

	return r->result >= 0 && newer != (part->kind == DISK_LOG_FULL);
}

/* Descriptors first, then the images that are needed. */
static void ahead_fetch(struct ahead *a)
{
	unsigned count = 0;

	if (!a->count)
		return;
	store_read_pages(a->cache->store, a->read, a->count);
	for (unsigned i = 0; i < a->count; i++)
		if (ahead_needs_image(a->part[i], &a->read[i]))
			a->ref[count++] = (struct page_ref){.pid = a->read[i].pid};
	if (count)
		(void)cache_fetch(a->cache, a->ref, count);
}

size_t cache_recover_ahead(
	struct cache *c, const struct disk_log_record *records, size_t bytes)
{
	const uint8_t *begin = (const uint8_t *)records;
	struct ahead *a = c->recovery.ahead;
	bool room = true;
	size_t at = 0;

	a->cache = c;
	a->count = 0;
	a->max = MIN(cache_batch_max(c), (unsigned)FETCH_MAX);
	memset(a->slot, 0, sizeof(a->slot));
	while (room && at < bytes) {
		const struct disk_log_record *record = (const void *)(begin + at);

		room = ahead_record(a, record);
		if (room || at == 0)
			at += record->record_bytes;
	}
	ahead_fetch(a);
	return at;
}

static void recover_free(struct cache *c)
{
	rt_free(c->recovery.mends);
	rt_free(c->recovery.ahead);
	c->recovery.mends = NULL;
	c->recovery.ahead = NULL;
}

int cache_recover_begin(struct cache *c)
{
	WEFT_ASSERT(!c->started && !c->recovery.redo);
	c->recovery.mends = rt_alloc(c->frames.count / 2 * sizeof(*c->recovery.mends));
	c->recovery.ahead = rt_alloc(sizeof(*c->recovery.ahead));
	if (!c->recovery.mends || !c->recovery.ahead) {
		recover_free(c);
		return -ENOMEM;
	}
	c->recovery.redo = true;
	store_redo(c->store, STORE_REDO_RUNNING);
	return 0;
}

int cache_recover_end(struct cache *c, bool well)
{
	int rc = 0;

	if (well) {
		mends_end(c);
		rc = owed_from_redo(c);
		if (!rc && !c->options.read_only)
			rc = cache_checkpoint(c);
		if (!rc && !c->options.read_only)
			WEFT_ASSERT(!atomic_load_explicit(
				&c->writeback.dirty, memory_order_relaxed));
		if (!rc && !c->options.read_only && cache_has_peers(c))
			drop_all(c);
	}
	/* the redone state of a read-only store never gets into its table */
	store_redo(c->store, c->options.read_only ? STORE_REDO_KEPT : STORE_REDO_NONE);
	recover_free(c);
	c->recovery.redo = false;
	return rc;
}
