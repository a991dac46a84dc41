/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Recovery: two passes over the log, from its tail to its end (docs/design.md, "Recovery").
 *
 * Pass 1 settles which images are in place. A DESCRIPTORS record names the images that a batch was
 * about to write. A PERSISTED record names the batches that are durable. Several batches are in
 * flight at once, so a PERSISTED record may come long after its DESCRIPTORS. Or it may name a batch
 * whose DESCRIPTORS the tail has passed already (the table has them then). Batches that did not
 * persist leave candidates. One of them may be in place, or the image of the table's descriptor;
 * reading decides.
 *
 * Pass 2 redoes CHANGE records through the cache, in the log's order. Nothing is appended and the
 * tail stays until all is redone and persisted. So recovery may itself be cut anywhere and be done
 * again. Redo applies only changes that follow the known version (invariant 4). A full image mends
 * a page that the cut left half written.
 *
 * A page whose home is another node is redone for itself. The image becomes one that this node
 * owes, and is reported to the home when it is connected. A tool that has all stores of the volume
 * (volume_options.also) redoes all logs, one after the other, into one cache. In each log a page's
 * changes begin with a full image. So the newest one by (incarnation, version) remains, in any
 * order of the logs.
 *
 * Batch numbers are unique within a log. The cache counts them up from the node's incarnation <<
 * 32, and that rises with every start.
 */
#include "engine/volume/volume_internal.h"

#include "engine/cache/recovery.h"

/* With salvage a malformed record ends the log. */
static int log_end_salvaged(struct volume *v, int rc)
{
	if (rc != -EUCLEAN || !v->salvage)
		return rc;
	v->recovery.left_out++;
	return 0;
}

/* ---- pass 1 ---------------------------------------------------------------------- */

#define BATCH_BUCKETS 1024u

/* A DESCRIPTORS record whose PERSISTED has not been seen yet. */
struct batch {
	struct batch *next;
	uint64_t number;
	lsn_t start;
	unsigned count;
	struct disk_log_descriptor descriptor[];
};

/* Open addressing. 0: empty; page 0, if there is one, is not counted. */
struct page_set {
	page_id *pid;
	uint32_t room, count; /* room: a power of two */
};

/* Memory is bounded by the log: each batch is a record of it, each page has an image. */
struct descriptor_pass {
	struct volume *v;
	struct weft_error *err;
	struct batch *bucket[BATCH_BUCKETS];
	struct page_set elsewhere; /* pages of other stores that have an image here */
};

static struct batch **batch_find(struct descriptor_pass *p, uint64_t number)
{
	struct batch **link = &p->bucket[number % BATCH_BUCKETS];

	while (*link && (*link)->number != number)
		link = &(*link)->next;
	return link;
}

/* -EUCLEAN; with salvage 0: the record is passed over. */
static int damaged_record(
	struct volume *v, struct weft_error *err, lsn_t lsn, const char *what)
{
	if (v->salvage) {
		v->recovery.left_out++;
		return 0;
	}
	return weft_error(err, -EUCLEAN, "log record at LSN %llu: %s; run fsck.weft",
		(unsigned long long)lsn, what);
}

static int visit_descriptors(struct descriptor_pass *p, const struct log_entry *entry)
{
	const struct disk_log_record *r = entry->record;
	const uint64_t *number = (const uint64_t *)(r + 1);
	const struct disk_log_descriptor *d =
		(const struct disk_log_descriptor *)(number + 1);
	size_t bytes = r->count * sizeof(*d);
	struct batch **link = batch_find(p, *number);
	struct batch *b;

	if (*link)
		return damaged_record(
			p->v, p->err, entry->end, "its batch number was used before");
	for (unsigned i = 0; i < r->count; i++)
		if (!volume_pid_here(p->v, d[i].pid) || !d[i].incarnation)
			return damaged_record(p->v, p->err, entry->end,
				"describes a page that cannot be of this store");
	b = rt_alloc(sizeof(*b) + bytes);
	if (!b)
		return weft_error(p->err, -ENOMEM, "no memory to recover the log");
	b->number = *number;
	b->start = entry->start;
	b->count = r->count;
	memcpy(b->descriptor, d, bytes);
	*link = b;
	return 0;
}

static void batch_remove(struct batch **link)
{
	struct batch *b = *link;

	*link = b->next;
	rt_free(b);
}

/* The batch's images are durable in place. The table takes them, unless it has newer ones. It takes
 * those that it has already as well, since its block may not be durable. */
static int batch_install(struct descriptor_pass *p, const struct batch *b)
{
	struct store *s = p->v->store;
	int rc = 0;

	for (unsigned i = 0; i < b->count && !rc; i++) {
		const struct disk_log_descriptor *d = &b->descriptor[i];
		struct page_descriptor want = {d->incarnation, d->version, d->checksum};
		struct page_descriptor has;

		rc = store_descriptor_get(s, d->pid, &has);
		if (!rc && page_order(has.incarnation, has.version, d->incarnation,
				   d->version) <= 0)
			rc = store_descriptor_install(s, d->pid, &want, b->start);
		/* All of the log is durable, so the table may be written at any time. */
		if (!rc && !p->v->read_only && store_table_crowded(s))
			rc = store_table_write(s, LSN_MAX);
	}
	return rc;
}

static int visit_persisted(struct descriptor_pass *p, const struct log_entry *entry)
{
	const uint64_t *number = (const uint64_t *)(entry->record + 1);
	int rc = 0;

	for (unsigned i = 0; i < entry->record->count && !rc; i++) {
		struct batch **link = batch_find(p, number[i]);

		if (!*link)
			continue; /* its DESCRIPTORS are below the tail */
		rc = batch_install(p, *link);
		batch_remove(link);
	}
	return rc;
}

static page_id *page_set_at(const struct page_set *s, page_id pid)
{
	uint32_t at = (uint32_t)((pid * 0x9e3779b97f4a7c15ull) >> 32);

	for (;; at++) {
		page_id *slot = &s->pid[at & (s->room - 1)];

		if (!*slot || *slot == pid)
			return slot;
	}
}

static int page_set_grow(struct page_set *s)
{
	struct page_set larger = {.room = s->room ? 2 * s->room : 1024};

	larger.pid = rt_alloc(larger.room * sizeof(*larger.pid));
	if (!larger.pid)
		return -ENOMEM;
	for (uint32_t i = 0; i < s->room; i++)
		if (s->pid[i])
			*page_set_at(&larger, s->pid[i]) = s->pid[i];
	larger.count = s->count;
	rt_free(s->pid);
	*s = larger;
	return 0;
}

static int page_set_add(struct page_set *s, page_id pid)
{
	page_id *slot;

	if (2 * s->count >= s->room && page_set_grow(s))
		return -ENOMEM;
	slot = page_set_at(s, pid);
	s->count += !*slot;
	*slot = pid;
	return 0;
}

static const struct disk_log_page *part_next(const struct disk_log_page *part)
{
	return (const struct disk_log_page *)((const uint8_t *)part + part->part_bytes);
}

/* Images of other stores' pages: pass 2 needs a frame for each. */
static int visit_images(struct descriptor_pass *p, const struct log_entry *entry)
{
	const struct disk_log_record *r = entry->record;
	const struct disk_log_page *part = (const struct disk_log_page *)(r + 1);

	for (unsigned i = 0; i < r->count; i++, part = part_next(part))
		if (part->kind == DISK_LOG_FULL && part->pid &&
			shards_elsewhere(store_superblock(p->v->store), part->pid) &&
			page_set_add(&p->elsewhere, part->pid))
			return weft_error(
				p->err, -ENOMEM, "no memory to recover the log");
	return 0;
}

static int visit_pass_1(void *arg, const struct log_entry *entry)
{
	struct descriptor_pass *p = arg;

	p->v->recovery.records++;
	p->v->recovery.log_bytes += entry->record->record_bytes;
	switch (entry->record->type) {
	case DISK_LOG_DESCRIPTORS:
		return visit_descriptors(p, entry);
	case DISK_LOG_PERSISTED:
		return visit_persisted(p, entry);
	case DISK_LOG_CHANGE:
		return p->v->peers && !p->v->read_only ? visit_images(p, entry) : 0;
	default:
		return 0;
	}
}

/* The remaining batches did not persist, as far as the log says. Frees everything. */
static int add_candidates(struct descriptor_pass *p)
{
	int rc = 0;

	for (unsigned i = 0; i < BATCH_BUCKETS; i++) {
		while (p->bucket[i]) {
			const struct batch *b = p->bucket[i];

			for (unsigned n = 0; n < b->count && !rc; n++) {
				const struct disk_log_descriptor *d = &b->descriptor[n];
				struct page_descriptor want = {
					d->incarnation, d->version, d->checksum};

				rc = store_candidate_add(
					p->v->store, d->pid, &want, b->start);
			}
			batch_remove(&p->bucket[i]);
		}
	}
	return rc;
}

static void batches_free(struct descriptor_pass *p)
{
	for (unsigned i = 0; i < BATCH_BUCKETS; i++)
		while (p->bucket[i])
			batch_remove(&p->bucket[i]);
}

int recovery_descriptors(struct volume *v, struct weft_error *err)
{
	struct descriptor_pass *p = rt_alloc(sizeof(*p));
	int rc;

	if (!p)
		return weft_error(err, -ENOMEM, "no memory to recover the log");
	p->v = v;
	p->err = err;
	store_redo(v->store, STORE_REDO_DESCRIPTORS);
	rc = log_end_salvaged(v, log_scan(v->log, visit_pass_1, p));
	if (!rc)
		rc = add_candidates(p);
	if (!rc)
		rc = store_candidates_resolve(v->store);
	store_redo(v->store, STORE_REDO_NONE);
	batches_free(p);
	v->recovery.elsewhere = p->elsewhere.count;
	rt_free(p->elsewhere.pid);
	rt_free(p);
	if (rc)
		weft_error(err, rc,
			"recovery: cannot settle which pages were written: %s",
			strerrordesc_np(-rc));
	return rc;
}

/* ---- pass 2 ---------------------------------------------------------------------- */

struct redo_pass {
	struct volume *v;
	struct weft_error *err;
	const uint8_t *ahead; /* the pages of the records before it were requested */
	lsn_t ahead_chunk;    /* in this chunk */
	bool other_log;       /* LSNs are not those of the cache's log, and pin nothing in it */
	struct gaps gaps;
};

/*
 * The page's home is another node, and this one changed it. Its holder, or its home, has that
 * change or lacks it. So the image is owed. The home asks for it when it is the newest
 * (docs/nodes/failures.md).
 */
static int part_elsewhere(struct redo_pass *p, const struct log_entry *entry,
	const struct disk_log_page *part)
{
	struct weft_error why = {0};
	int rc;

	if (p->v->read_only) /* its store does without */
		return 0;
	if (!p->v->peers)
		return weft_error(p->err, -EOPNOTSUPP,
			"log record at LSN %llu changes a page of shard %u, in another "
			"node's store; mount the volume on this node first, so that "
			"the other node gets the change",
			(unsigned long long)entry->end, pid_shard(part->pid));
	rc = cache_recover_owed(p->v->cache, part, entry->start, entry->end, &why);
	if (rc == -EUCLEAN)
		return gaps_add(&p->gaps, part->pid, part->incarnation, p->err);
	if (rc < 0)
		weft_error(p->err, rc, "%s", why.text);
	if (rc > 0)
		p->v->recovery.pages++;
	return MIN(rc, 0);
}

/* Returns true if its changes may be redone here. */
static bool part_known(struct volume *v, page_id pid)
{
	return v->also_count ? shards_have(v->shards, pid, 1) : volume_pid_here(v, pid);
}

/* A page's part of a CHANGE record. */
static int redo_part(struct redo_pass *p, const struct log_entry *entry,
	const struct disk_log_page *part)
{
	lsn_t start = p->other_log ? LSN_NONE : entry->start;
	lsn_t end = p->other_log ? LSN_NONE : entry->end;
	struct weft_error gap = {0};
	int rc;

	if (!part_known(p->v, part->pid)) {
		if (p->v->own_only)
			return 0;
		if (shards_elsewhere(store_superblock(p->v->store), part->pid))
			return part_elsewhere(p, entry, part);
	}
	/* version 0 are the zeros of a page that was allocated and not written: never ranges */
	if (!part_known(p->v, part->pid) || !part->incarnation ||
		(!part->version && part->kind != DISK_LOG_FULL))
		return damaged_record(p->v, p->err, entry->end,
			"changes a page that cannot be of this store");
	if (part->kind == DISK_LOG_FULL) {
		rc = cache_recover_full(p->v->cache, part->pid, part->incarnation,
			part->version, part + 1, start, end);
	} else {
		rc = cache_recover_ranges(p->v->cache, part, start, end, &gap);
		if (rc == -EUCLEAN && p->v->salvage) {
			p->v->recovery.left_out++;
			rc = 0;
		}
		if (rc == -EUCLEAN)
			return gaps_add(&p->gaps, part->pid, part->incarnation, p->err);
	}
	if (rc > 0)
		p->v->recovery.pages++;
	return MIN(rc, 0);
}

static int visit_pass_2(void *arg, const struct log_entry *entry)
{
	const struct disk_log_record *r = entry->record;
	const struct disk_log_page *part = (const struct disk_log_page *)(r + 1);
	struct redo_pass *p = arg;
	int rc = 0;

	if (r->type != DISK_LOG_CHANGE)
		return 0;
	if (entry->start != p->ahead_chunk || (const uint8_t *)r >= p->ahead) {
		p->ahead = (const uint8_t *)r +
			   cache_recover_ahead(p->v->cache, r, entry->bytes);
		p->ahead_chunk = entry->start;
	}
	for (unsigned i = 0; i < r->count && !rc; i++, part = part_next(part))
		rc = redo_part(p, entry, part);
	if (rc || !p->gaps.count)
		return rc;
	/* Behind the changes: a page may be changed and freed by one record, in any
	 * order. */
	part = (const struct disk_log_page *)(r + 1);
	for (unsigned i = 0; i < r->count; i++, part = part_next(part))
		gaps_visit(&p->gaps, part);
	return 0;
}

/* A tool's other stores. Their redone pages are written as this store's are, past their logs, which
 * stand still meanwhile. Read-only ones have no cache. */
static int also_begin(struct volume *v)
{
	int rc = 0;

	for (unsigned i = 0; i < v->also_count; i++) {
		struct volume *also = v->also[i];

		if (also->cache)
			rc = rc ? rc : cache_recover_begin(also->cache);
		else if (!also->recovery.was_clean)
			store_redo(also->store, STORE_REDO_RUNNING);
	}
	return rc;
}

/* `well`: everything of all logs is in place, so these logs may end. */
static int also_end(struct volume *v, bool well)
{
	int rc = 0;

	for (unsigned i = 0; i < v->also_count; i++) {
		struct volume *also = v->also[i];

		if (also->cache)
			rc = rc ? rc : cache_recover_end(also->cache, well && !rc);
		else if (!also->recovery.was_clean)
			store_redo(also->store, STORE_REDO_KEPT);
	}
	return rc;
}

static int redo_logs(struct redo_pass *p)
{
	struct volume *v = p->v;
	int rc = log_end_salvaged(v, log_scan(v->log, visit_pass_2, p));

	for (unsigned i = 0; i < v->also_count && !rc; i++) {
		p->ahead = NULL;
		p->other_log = true;
		rc = log_end_salvaged(v, log_scan(v->also[i]->log, visit_pass_2, p));
	}
	return rc;
}

int recovery_redo(struct volume *v, struct weft_error *err)
{
	struct redo_pass p = {.v = v, .err = err};
	int rc;

	rc = cache_recover_begin(v->cache);
	if (!rc) {
		int end;

		rc = also_begin(v);
		if (!rc)
			rc = redo_logs(&p);
		if (!rc)
			rc = gaps_end(&p.gaps, err);
		end = cache_recover_end(v->cache, !rc);
		rc = rc ? rc : end;
		end = also_end(v, !rc);
		rc = rc ? rc : end;
		if (v->recovery.was_clean) /* nothing of this store's table was redone */
			store_redo(v->store, STORE_REDO_NONE);
	}
	gaps_close(&p.gaps);
	if (rc)
		weft_error(err, rc, "recovery: cannot redo the log: %s",
			strerrordesc_np(-rc));
	return rc;
}
