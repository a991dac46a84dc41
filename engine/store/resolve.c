/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Deciding, after a crash, which descriptor the image of a page has.
 *
 * Writes that were under way when the power went may have happened, or not, or in part. The
 * checksum is bound to incarnation and version, so the image itself tells. The newest match counts
 * among the log's candidates that are newer than the table's descriptor. It is installed.
 *
 * An image that can be read need not be durable. The device may have it only in a cache whose flush
 * failed before the daemon ended, without the power going. So recovery writes the image that it has
 * decided on once more, and flushes, before the table may take it. The same goes for the table's
 * block, if the descriptor was found there. Tearing does no harm there: if the device may tear, the
 * log has the image (engine/cache/writeback.c).
 */
#include "engine/store/store_internal.h"

#include <errno.h>

#define RESOLVE_BATCH 256u

static bool descriptor_is_newer(const struct page_descriptor *a, const struct page_descriptor *b)
{
	return page_order(a->incarnation, a->version, b->incarnation, b->version) > 0;
}

struct verdict {
	bool matched;
	bool any;              /* a candidate is newer than the table's descriptor */
	bool same_incarnation; /* a candidate may have torn the image that the table knows
				*/
	bool logged; /* one is the table's descriptor, of `lsn`: its block need not be durable */
	struct page_descriptor d;
	lsn_t lsn;
};

/* Tries the page's candidates on the image. */
static struct verdict try_candidates(struct store *s, page_id pid,
	const struct page_descriptor *known, const void *image)
{
	struct candidate_set *c = &s->table.candidates;
	struct verdict v = {.d = *known};

	rt_mutex_lock(&s->table.lock);
	for (uint32_t i = candidates_first(c, pid); i != CANDIDATE_NONE;
		i = candidates_next(c, i)) {
		const struct candidate *e = &c->entries[i];

		if (!e->settled && e->d.incarnation == known->incarnation &&
			e->d.version == known->version && !v.matched) {
			v.logged = true;
			v.lsn = e->lsn;
		}
		if (e->settled || !descriptor_is_newer(&e->d, known))
			continue;
		v.any = true;
		if (e->d.incarnation == known->incarnation)
			v.same_incarnation = true;
		if (descriptor_is_newer(&e->d, &v.d) &&
			e->d.checksum == store_page_checksum(s, pid, e->d.incarnation,
						 e->d.version, image)) {
			v.matched = true;
			v.d = e->d;
			v.lsn = e->lsn;
		}
	}
	rt_mutex_unlock(&s->table.lock);
	return v;
}

/* The page is decided: the table's descriptor holds, or the settled one. */
static void candidates_end(struct store *s, page_id pid)
{
	rt_mutex_lock(&s->table.lock);
	candidates_drop_undecided(&s->table.candidates, pid);
	rt_mutex_unlock(&s->table.lock);
}

int resolve_image(struct store *s, page_id pid, const struct page_descriptor *known,
	const void *image, struct page_descriptor *found)
{
	struct verdict v = try_candidates(s, pid, known, image);
	int rc;

	*found = v.d;
	if (v.matched) {
		rc = store_descriptor_install(s, pid, &v.d, v.lsn);
		if (!rc)
			candidates_end(s, pid);
		return rc;
	}
	if (known->incarnation &&
		known->checksum == store_page_checksum(s, pid, known->incarnation,
					   known->version, image)) {
		rc = v.logged ? store_descriptor_install(s, pid, known, v.lsn) : 0;
		if (!rc)
			candidates_end(s, pid);
		return rc;
	}
	return v.any && !v.same_incarnation ? STORE_ZEROS : -EUCLEAN;
}

/* ---- all at once ----------------------------------------------------------------- */

/* The next pages with candidates, from entry *cursor on; each page once, at its first
 * entry. */
static unsigned collect_candidates(
	struct store *s, uint32_t *cursor, struct store_read *reads, uint8_t *images)
{
	struct candidate_set *c = &s->table.candidates;
	unsigned n = 0;

	rt_mutex_lock(&s->table.lock);
	for (; *cursor < c->high && n < RESOLVE_BATCH; (*cursor)++) {
		const struct candidate *e = &c->entries[*cursor];

		if (!e->used || e->settled || candidates_first(c, e->pid) != *cursor)
			continue;
		reads[n] = (struct store_read){
			.pid = e->pid, .image = images + (size_t)n * PAGE_SIZE};
		n++;
	}
	rt_mutex_unlock(&s->table.lock);
	return n;
}

/* Writes the images that were decided on again. */
static int settle_again(struct store *s, const struct store_read *reads, unsigned n,
	struct store_write *writes)
{
	unsigned count = 0;
	int rc;

	for (unsigned i = 0; i < n; i++)
		if (reads[i].result == 0)
			writes[count++] = (struct store_write){
				.pid = reads[i].pid, .image = reads[i].image};
	if (s->read_only || !count)
		return 0;
	rc = store_write_pages(s, writes, count);
	return rc ? rc : store_flush(s);
}

int store_candidates_resolve(struct store *s)
{
	const size_t images_bytes = (size_t)RESOLVE_BATCH * PAGE_SIZE;
	struct store_read *reads = rt_alloc(RESOLVE_BATCH * sizeof(*reads));
	struct store_write *writes = rt_alloc(RESOLVE_BATCH * sizeof(*writes));
	uint8_t *images = rt_alloc_pages(images_bytes);
	uint32_t cursor = 0;
	unsigned n;
	int rc = 0;

	if (!reads || !writes || !images) {
		rc = -ENOMEM;
		goto out;
	}
	while ((n = collect_candidates(s, &cursor, reads, images)) > 0) {
		int again;

		pages_read(s, reads, n, PAGES_FOR_RECOVERY);
		again = settle_again(s, reads, n, writes);
		rc = rc ? rc : again;
		for (unsigned i = 0; i < n; i++) {
			if (reads[i].result >= 0 || reads[i].result == -EUCLEAN)
				candidates_end(s, reads[i].pid);
			else if (!rc)
				rc = reads[i].result;
		}
	}
out:
	if (images)
		rt_free_pages(images, images_bytes);
	rt_free(writes);
	rt_free(reads);
	return rc;
}
