/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads files: maps the range, latches all its pages shared, and passes them to the sink.
 *
 * The size is read before the mapping, and the mapping before the pages, without a lock or a
 * transaction. Pages that are added, and a size that grows, do no harm in any order. Once the pages
 * are latched, map_view_stands shows whether pages were unmapped, on this node or another. If it
 * stands, all latched pages are still the file's, and stay so while the sink runs. Holes and
 * unwritten extents are read from a page of zeros that belongs to no file.
 */
#include "fs/ops/data_internal.h"

#define READ_PAGES_MAX 256u
#define READ_TRIES     8u /* without the lock; a page that stays stale with it is damaged */

#define PREFETCH_FIRST 64u   /* pages: 256 KiB */
#define PREFETCH_LAST  1024u /* 4 MiB */

static const uint8_t zero_page[PAGE_SIZE] __attribute__((aligned(PAGE_SIZE)));

struct read_batch {
	uint64_t offset;
	size_t len; /* clipped to the size */
	unsigned pages;
	unsigned refs_count;
	bool exclusive; /* latches, and the right to change them */
	bool scan;      /* the reader goes through the file */
	struct map_view view;
	struct page_ref refs[READ_PAGES_MAX];
	struct guard guards[READ_PAGES_MAX];
	struct iovec iov[READ_PAGES_MAX];
};

/* Cuts the batch to this number of pages. */
static void batch_clip(struct read_batch *b, unsigned pages)
{
	b->pages = pages;
	b->len = MIN(b->len, (size_t)pages * PAGE_SIZE - b->offset % PAGE_SIZE);
}

/* Fills refs with the written pages of the range, and iov with an entry for each page. If base is
 * NULL, the image of a guard comes there. */
static int batch_map(struct fs *fs, uint64_t ino, struct read_batch *b)
{
	uint64_t block = b->offset >> PAGE_SHIFT, end = block + b->pages;
	unsigned at = 0;

	b->refs_count = 0;
	while (block < end) {
		struct map map;
		int rc = map_lookup_seen(
			fs, map_view_seen(&b->view), ino, block, end - block, &map);

		if (rc == -E2BIG && at > 0) {
			batch_clip(b, at);
			return 0;
		}
		if (rc < 0)
			return rc;
		for (unsigned i = 0; i < map.count; i++) {
			const struct map_segment *s = &map.segment[i];

			for (uint64_t n = 0; n < s->count; n++, at++) {
				bool written = s->kind == MAP_WRITTEN;

				b->iov[at].iov_base = written ? NULL : (void *)zero_page;
				if (written)
					b->refs[b->refs_count++] = (struct page_ref){
						s->pid + n, s->incarnation};
			}
		}
		block = map_end(&map);
	}
	return 0;
}

static void batch_release(struct fs *fs, struct read_batch *b)
{
	for (unsigned i = 0; i < b->refs_count; i++)
		guard_release(fs->volume->cache, &b->guards[i]);
}

/* Points the iovecs at the latched images, and cuts the first and last to the range. */
static void batch_fill(struct read_batch *b)
{
	size_t left = b->len;
	unsigned within = b->offset % PAGE_SIZE, guard = 0;

	for (unsigned i = 0; i < b->pages; i++) {
		uint8_t *base = b->iov[i].iov_base;
		size_t len = MIN(left, (size_t)(PAGE_SIZE - within));

		if (!base)
			base = b->guards[guard++].image;
		b->iov[i].iov_base = base + within;
		b->iov[i].iov_len = len;
		left -= len;
		within = 0;
	}
	WEFT_ASSERT(left == 0 && guard == b->refs_count);
}

/* Latches all pages exclusively, with the right to change them. If a single page is not on this
 * node, requests it. -EBUSY: there are several pages, and some cannot be had at once. */
static int guards_exclusive(struct fs *fs, struct read_batch *b)
{
	struct cache *cache = fs->volume->cache;
	unsigned i = 0;

	if (b->pages == 1)
		return guard_exclusive(
			cache, b->refs[0].pid, b->refs[0].incarnation, &b->guards[0]);
	while (i < b->refs_count && !guard_try_exclusive(cache, b->refs[i].pid,
					    b->refs[i].incarnation, &b->guards[i]))
		i++;
	if (i == b->refs_count)
		return 0;
	while (i--)
		guard_release(cache, &b->guards[i]);
	return -EBUSY;
}

/* Latches the pages of the range as of one view of the mapping. Returns 0 with all latched and
 * *inode as old as the mapping or older. pages == 0: at or past the end. -ESTALE: look again. */
static int batch_latch_viewed(struct fs *fs, struct inode_state *st, size_t len,
	struct read_batch *b, struct disk_inode *inode)
{
	unsigned pages_max = MIN(cache_batch_max(fs->volume->cache), READ_PAGES_MAX);
	unsigned within = b->offset % PAGE_SIZE;
	int rc;

	b->pages = b->refs_count = 0;
	b->len = 0;
	rc = inode_get_seen(fs, map_view_seen(&b->view), st->ino, inode);
	if (rc < 0)
		return rc;
	if (b->offset >= inode->size)
		return 0;
	b->len = MIN(MIN((uint64_t)len, inode->size - b->offset),
		(uint64_t)pages_max * PAGE_SIZE - within);
	b->pages = (unsigned)DIV_UP(within + b->len, (size_t)PAGE_SIZE);
	rc = batch_map(fs, st->ino, b);
	if (rc < 0 || b->refs_count == 0)
		return rc ? rc : map_view_stands(&b->view) ? 0 : -ESTALE;
	rc = b->exclusive ? guards_exclusive(fs, b)
			  : guard_shared_batch(fs->volume->cache, b->refs, b->refs_count,
				    b->scan, b->guards);
	if (rc < 0)
		return rc;
	if (map_view_stands(&b->view))
		return 0;
	batch_release(fs, b);
	return -ESTALE;
}

/* `locked`: the caller has `alloc_gate`. `again`: an earlier view did not stand. */
static int batch_latch(struct fs *fs, struct inode_state *st, size_t len, bool locked,
	bool again, struct read_batch *b, struct disk_inode *inode)
{
	int rc;

	map_view_begin(fs, st, locked, again, &b->view);
	rc = batch_latch_viewed(fs, st, len, b, inode);
	map_view_end(fs, &b->view);
	return rc;
}

static int hand_prefetch(struct page_batch *b)
{
	cache_prefetch(b->fs->volume->cache, b->refs, b->count, true);
	return 0;
}

/* Requests the pages of [first, end), for a reader that goes through the file. */
static void prefetch_range(struct fs *fs, uint64_t ino, uint64_t first, uint64_t end)
{
	struct page_ref refs[READ_PAGES_MAX];
	struct page_batch b = {.fs = fs,
		.refs = refs,
		.capacity = MIN(cache_batch_max(fs->volume->cache), READ_PAGES_MAX),
		.hand = hand_prefetch};

	if (page_batch_add(&b, ino, first, end) == 0)
		(void)page_batch_end(&b);
}

/* If a reader continues where it was, requests the next pages. The window doubles whenever less
 * than half of it is left. It stays a small part of the cache. */
static void read_ahead(
	struct fs *fs, struct inode_state *st, uint64_t offset, size_t len, uint64_t size)
{
	uint64_t block = offset >> PAGE_SHIFT,
		 end = DIV_UP(offset + len, (uint64_t)PAGE_SIZE);
	uint64_t next =
		atomic_exchange_explicit(&st->read_next, end, memory_order_relaxed);
	uint32_t window = atomic_load_explicit(&st->prefetch_pages, memory_order_relaxed);
	uint64_t asked = atomic_load_explicit(&st->prefetched, memory_order_relaxed);
	uint64_t most = MIN(PREFETCH_LAST, cache_frame_count(fs->volume->cache) / 16),
		 target;

	if (end <= block || (block != next && block + 1 != next)) {
		if (window)
			atomic_store_explicit(
				&st->prefetch_pages, 0, memory_order_relaxed);
		return;
	}
	if (window == 0 || asked < end || asked > end + PREFETCH_LAST)
		asked = end;
	if (window && asked - end > window / 2)
		return;
	window = MIN(window ? window * 2 : PREFETCH_FIRST, most);
	target = MIN(end + window, DIV_UP(size, (uint64_t)PAGE_SIZE));
	atomic_store_explicit(&st->prefetch_pages, window, memory_order_relaxed);
	if (target <= asked)
		return;
	atomic_store_explicit(&st->prefetched, target, memory_order_relaxed);
	prefetch_range(fs, st->ino, asked, target);
}

/* Notes that the kernel gets the latched pages. All of them, and the mapping, stand. */
static bool batch_kcache(
	struct fs *fs, struct kcache_read *r, size_t len, struct read_batch *b)
{
	unsigned kinds = KCACHE_BLOCK, guard = 0;

	if (r->mappable)
		kinds |= r->stores ? KCACHE_STORES : KCACHE_COPY;
	for (unsigned i = 0; i < b->pages; i++) {
		if (b->iov[i].iov_base)
			continue;
		if (guard_kcache(fs->volume->cache, &b->guards[guard++], kinds, r->ino,
			    r->first + i, NULL))
			return false;
	}
	return kcache_read_answers(
		fs->kcache, r, b->len < len ? b->offset + b->len : UINT64_MAX);
}

/*
 * Checks pages that the kernel gets to change without a request. The file must have these pages, so
 * a hole gets one first. Several pages are given only if all are on this node; otherwise the kernel
 * requests the one that it needs. Pages behind the end cannot be mapped. Returns 0 with the pages
 * latched, or -EAGAIN with none: look again.
 */
static int batch_fits_stores(struct fs *fs, struct inode_state *st, struct kcache_read *r,
	struct read_batch *b)
{
	int rc;

	if (b->pages == r->end - r->first && b->refs_count == b->pages)
		return 0;
	batch_release(fs, b);
	if (r->end - r->first > 1)
		return -EBUSY;
	if (b->pages == 0)
		return r->maps ? -EIO : 0;
	rc = data_fill_hole(fs, st, r->first);
	return rc ? rc : -EAGAIN;
}

static int batch_latch_stores(struct fs *fs, struct inode_state *st, size_t len,
	bool locked, bool again, struct kcache_read *r, struct read_batch *b,
	struct disk_inode *inode)
{
	int rc = batch_latch(fs, st, len, locked, again, b, inode);

	return rc ? rc : batch_fits_stores(fs, st, r, b);
}

/* As batch_latch, for the kernel's cache: waits for drops under way. */
static int batch_latch_kept(struct fs *fs, struct inode_state *st, size_t len,
	bool locked, bool again, struct kcache_read *r, struct read_batch *b,
	struct disk_inode *inode)
{
	int rc;

	for (;;) {
		rc = kcache_read_leaves(fs->kcache, r);
		b->exclusive = r->stores;
		if (!rc && r->mappable)
			rc = stores_join(fs, st);
		if (!rc)
			rc = (r->stores ? batch_latch_stores(
						  fs, st, len, locked, again, r, b, inode)
					: batch_latch(
						  fs, st, len, locked, again, b, inode));
		if (!rc && batch_kcache(fs, r, len, b))
			return 0;
		if (!rc)
			batch_release(fs, b);
		else if (rc == -E2BIG && r->stores && r->end - r->first > 1)
			return -EBUSY; /* the page that is needed may be easier */
		else if (rc != -EAGAIN)
			return rc;
		kcache_read_wait(r);
	}
}

static int data_read_as(struct fs *fs, struct inode_state *st, uint64_t offset,
	size_t len, bool accessed, struct kcache_read *kept, ops_sink sink, void *arg)
{
	struct read_batch b;
	struct disk_inode inode;
	bool locked = false;
	int rc;

	b.offset = offset;
	b.exclusive = false;
	b.scan = atomic_load_explicit(&st->prefetch_pages, memory_order_relaxed) != 0;
	for (unsigned tries = 1;; tries++) {
		rc = kept ? batch_latch_kept(
				    fs, st, len, locked, tries > 1, kept, &b, &inode)
			  : batch_latch(fs, st, len, locked, tries > 1, &b, &inode);
		if (rc != -ESTALE && rc != -E2BIG)
			break;
		if (tries == views_max(fs)) {
			weft_log(3,
				"inode %llu: its extents name pages of older "
				"allocations; "
				"run fsck.weft",
				(unsigned long long)st->ino);
			rc = -EUCLEAN;
			break;
		}
		/* Not if a size may be set meanwhile. That would wait for the lock, so this must
		 * not wait for a page that another node cannot write back (docs/nodes/failures.md).
		 */
		if (tries == READ_TRIES && !locked && !stores_possible(st)) {
			rt_gate_enter(&st->alloc_gate, 1);
			locked = true;
		}
		if (rc == -E2BIG)
			map_tidy(fs, st->ino, offset >> PAGE_SHIFT,
				DIV_UP(offset + len, (uint64_t)PAGE_SIZE));
		views_pause(fs, tries);
	}
	if (locked)
		rt_gate_leave(&st->alloc_gate, 1);
	if (rc < 0)
		return rc;
	if (b.pages == 0)
		return sink(arg, NULL, 0, 0);
	batch_fill(&b);
	rc = sink(arg, b.iov, b.pages, b.len);
	batch_release(fs, &b);
	if (!b.exclusive)
		read_ahead(fs, st, offset, b.len, inode.size);
	if (accessed)
		(void)state_accessed(fs, st, &inode, kept != NULL);
	return rc;
}

int data_read(struct fs *fs, struct inode_state *st, uint64_t offset, size_t len,
	bool accessed, ops_sink sink, void *arg)
{
	return data_read_as(fs, st, offset, len, accessed, NULL, sink, arg);
}

static int file_read(struct fs *fs, struct ops_file *file, uint64_t offset, size_t len,
	bool accesses, struct kcache_read *kept, ops_sink sink, void *arg)
{
	struct inode_state *st;
	int rc;

	ops_count(fs, OPS_CALL_READ);
	if ((file->flags & O_ACCMODE) == O_WRONLY)
		return -EBADF;
	if (len == 0)
		return sink(arg, NULL, 0, 0);
	rc = kept ? 0 : kcache_stores_await(fs->kcache, &file->state->kcache);
	if (rc)
		return rc;
	/* Once the sink has answered, the file may be closed while this still reads ahead. */
	st = state_find(fs, file->state->ino);
	WEFT_ASSERT(st == file->state);
	rc = data_read_as(fs, st, offset, len, accesses, kept, sink, arg);
	state_put(fs, st);
	return rc;
}

int ops_read(struct fs *fs, struct ops_file *file, uint64_t offset, size_t len,
	ops_sink sink, void *arg)
{
	return file_read(
		fs, file, offset, len, !(file->flags & O_NOATIME), NULL, sink, arg);
}

int ops_read_borrowed(struct fs *fs, struct ops_file *file, uint64_t offset, size_t len,
	bool accesses, ops_sink sink, void *arg)
{
	return file_read(fs, file, offset, len, accesses, NULL, sink, arg);
}

int ops_read_kept(struct fs *fs, struct ops_file *file, uint64_t offset, size_t len,
	ops_sink sink, void *arg)
{
	struct kcache_read r;
	int rc;

	kcache_read_begin(fs->kcache, &r, &file->state->kcache, offset, len);
	r.maps = (file->flags & O_ACCMODE) == O_RDWR;
	rc = file_read(fs, file, offset, len, !(file->flags & O_NOATIME), &r, sink, arg);
	kcache_read_end(fs->kcache, &r);
	return rc;
}
