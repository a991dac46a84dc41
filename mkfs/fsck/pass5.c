/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pass 5, with -c: file data. Reads each page that an extent names as written, or that holds a
 * large extended attribute. Compares it with its checksum.
 *
 * Assumes passes 1 to 4. An unreadable page is reported with its file and place. The repair makes a
 * hole of it, so that reading returns zeros instead of an error. The lost bytes cannot be restored.
 * An extended attribute is removed.
 */
#include "mkfs/fsck/fsck_internal.h"

#define BATCH_MAX 128u

struct data_check {
	unsigned batch;
	struct page_ref refs[BATCH_MAX];
	uint64_t done;
};

/* Returns the code of a page's damage, or 0. */
static int page_fault(struct fsck *f, page_id pid, uint64_t incarnation, unsigned *code)
{
	struct guard g;
	int rc = guard_shared(f->v->cache, pid, incarnation, &g);

	*code = 0;
	if (rc == 0) {
		guard_release(f->v->cache, &g);
		if (table_lost(f, pid))
			*code = 504;
		return 0;
	}
	if (rc == -EUCLEAN)
		*code = 501;
	else if (rc == -EIO)
		*code = 502;
	else if (rc == -ESTALE)
		*code = 503;
	return *code ? 0 : rc;
}

/* Reads pages together. Errors are met again page by page. */
static void pages_fetch(struct fsck *f, struct data_check *c, page_id pid, uint32_t count,
	uint64_t incarnation)
{
	for (uint32_t i = 0; i < count; i++)
		c->refs[i] = (struct page_ref){pid + i, incarnation};
	(void)cache_fetch(f->v->cache, c->refs, count);
	c->done += count;
	fsck_progress(f, 5, c->done, f->out->data_pages);
}

/* Finds the first damaged run of an extent from page `from` on. */
static int extent_fault(struct fsck *f, struct data_check *c, const struct disk_extent *e,
	uint32_t from, uint32_t *first, uint32_t *count, unsigned *code)
{
	*count = 0;
	for (uint32_t i = from; i < e->length; i++) {
		unsigned fault;
		int rc;

		if ((i - from) % c->batch == 0)
			pages_fetch(f, c, e->pid + i, MIN(c->batch, e->length - i),
				e->incarnation);
		rc = page_fault(f, e->pid + i, e->incarnation, &fault);
		if (rc)
			return rc;
		if (*count && fault != *code)
			return 0;
		if (!fault)
			continue;
		if (!*count)
			*first = i;
		*code = fault;
		++*count;
	}
	return 0;
}

static int check_extent(struct fsck *f, struct data_check *c, struct disk_key key,
	const struct disk_extent *e)
{
	uint32_t from = 0, first, count;
	unsigned code;

	if (e->flags & DISK_EXTENT_UNWRITTEN)
		return 0;
	while (from < e->length) {
		int rc = extent_fault(f, c, e, from, &first, &count, &code);

		if (rc || !count)
			return rc;
		if (fsck_found(f, code,
			    "inode %" PRIu64 ": bytes %" PRIu64 " to %" PRIu64
			    ": %s (page %#" PRIx64 ")",
			    key_ino(key), (key.low + first) << PAGE_SHIFT,
			    ((key.low + first + count) << PAGE_SHIFT) - 1,
			    fsck_code_text(code), e->pid + first))
			return fsck_repaired(
				f, repair_cut_extent(f, key, e, first, count));
		from = first + count;
	}
	return 0;
}

static int check_xattr(struct fsck *f, struct disk_key key, const void *value, size_t len)
{
	unsigned code, worst = 0;
	struct xattr_item x;
	char text[NAME_TEXT];

	if (!xattr_valid(f, value, len, &x))
		return 0;
	for (unsigned i = 0; i < x.head.run_count; i++) {
		struct disk_extent run;

		memcpy(&run, x.runs + i * sizeof(run), sizeof(run));
		for (uint32_t p = 0; p < run.length; p++) {
			int rc = page_fault(f, run.pid + p, run.incarnation, &code);

			if (rc)
				return rc;
			worst = code ? code : worst;
		}
	}
	if (worst &&
		fsck_found(f, worst, "inode %" PRIu64 ": extended attribute \"%s\": %s",
			key_ino(key), name_text(text, x.name, x.head.name_bytes),
			fsck_code_text(worst)))
		return fsck_repaired(f, repair_delete(f, key));
	return 0;
}

static int data_visit(
	struct fsck *f, void *arg, struct disk_key key, const void *value, size_t len)
{
	struct disk_extent e;

	if (key_type(key) == DISK_ITEM_EXTENT && extent_valid(f, key, value, len, &e))
		return check_extent(f, arg, key, &e);
	if (key_type(key) == DISK_ITEM_XATTR)
		return check_xattr(f, key, value, len);
	return 0;
}

int fsck_pass5(struct fsck *f)
{
	struct data_check *c = rt_alloc(sizeof(*c));
	int rc = -ENOMEM;

	if (c) {
		c->batch = MIN(BATCH_MAX, cache_batch_max(f->v->cache));
		rc = items_scan(f, (struct disk_key){0, 0}, key_narrow(KEY_MAX), 0,
			data_visit, c);
	}
	rt_free(c);
	return rc;
}
