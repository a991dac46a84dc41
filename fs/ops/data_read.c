/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading: map the range, latch all its pages shared, hand them to the sink.
 *
 * The size is read before the mapping and the mapping before the pages, without a lock or
 * a transaction. What is only ever added to (pages, the size) may be read in any order;
 * whether anything was unmapped, here or on another node, is asked once the pages are
 * latched (map_view_stands): they are all still the file's then, and stay so while the sink
 * runs. Holes and unwritten extents are a page of zeros that belongs to nobody.
 */
#include "fs/ops/kernel.h"

#define READ_PAGES_MAX 256u
#define READ_TRIES     8u /* without the lock; a page that stays stale with it is damage */

#define PREFETCH_FIRST 64u   /* pages: 256 KiB */
#define PREFETCH_LAST  1024u /* 4 MiB */

static const uint8_t zero_page[PAGE_SIZE] __attribute__((aligned(PAGE_SIZE)));

struct read_batch {
	uint64_t offset;
	size_t len; /* clipped */
	unsigned pages;
	unsigned refs_count;
	bool exclusive; /* latches, and the right to change them */
	struct map_view view;
	struct page_ref refs[READ_PAGES_MAX];
	struct guard guards[READ_PAGES_MAX];
	struct iovec iov[READ_PAGES_MAX];
};

/* So many pages of it, not all. */
static void batch_clip(struct read_batch *b, unsigned pages)
{
	b->pages = pages;
	b->len = MIN(b->len, (size_t)pages * PAGE_SIZE - b->offset % PAGE_SIZE);
}

/* Fills refs with the written pages of the range and iov with what each page will be:
 * base NULL where a guard's image goes. */
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

/* Points the iovecs at the latched images and cuts the first and last to the range. */
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

/* All of them, with the right to change them: what this node has not got is asked for if it is
 * one page. -EBUSY: several, some of them not to be had at once. */
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

/*
 * Latches the pages of the range as of one view of the mapping. -ESTALE: look again. On success
 * everything is latched and *inode is as old as the mapping or older; pages == 0: at or
 * past the end.
 */
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
			  : guard_shared_batch(
				    fs->volume->cache, b->refs, b->refs_count, b->guards);
	if (rc < 0)
		return rc;
	if (map_view_stands(&b->view))
		return 0;
	batch_release(fs, b);
	return -ESTALE;
}

/* `locked`: with `structure`; `again`: an earlier view did not stand. */
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

/* The pages of [first, end), for a reader that goes through the file. */
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

/*
 * A reader that goes on where it was: asks for what follows, a window that doubles, again
 * whenever less than half of it is left. The window stays a small part of the cache.
 */
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

/* The latched pages are what the kernel gets: all of them, and the mapping, stand. */
static bool batch_expose(
	struct fs *fs, struct kernel_read *r, size_t len, struct read_batch *b)
{
	unsigned kinds = EXPOSE_BLOCK, guard = 0;

	if (r->mappable)
		kinds |= r->stores ? EXPOSE_STORES : EXPOSE_COPY;
	for (unsigned i = 0; i < b->pages; i++) {
		if (b->iov[i].iov_base)
			continue;
		if (guard_expose(fs->volume->cache, &b->guards[guard++], kinds, r->ino,
			    r->first + i, NULL))
			return false;
	}
	return kernel_read_answers(
		fs, r, b->len < len ? b->offset + b->len : UINT64_MAX);
}

/*
 * The kernel gets pages that it may change without a word: only such as the file has. A hole
 * gets a page first. Several are given only if they are all here: then it asks for the
 * one it needs. Nobody maps what lies behind the end. Latched, 0; or not, -EAGAIN: look again.
 */
static int batch_fits_stores(struct fs *fs, struct inode_state *st, struct kernel_read *r,
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
	bool locked, bool again, struct kernel_read *r, struct read_batch *b,
	struct disk_inode *inode)
{
	int rc = batch_latch(fs, st, len, locked, again, b, inode);

	return rc ? rc : batch_fits_stores(fs, st, r, b);
}

/* How many bytes there differ, or how many do not. */
static size_t run_of(const uint8_t *bytes, const uint8_t *was, size_t len, bool *differs)
{
	size_t run = 0;

	*differs = bytes[0] != was[0];
	while (run < len && (bytes[run] != was[run]) == *differs)
		run++;
	return run;
}

/* Into the latched page, what lies before `limit`. False: nothing differs. */
static bool page_merge(struct read_batch *b, uint64_t limit, uint64_t offset,
	const uint8_t *bytes, const uint8_t *was, size_t len)
{
	uint8_t *image = b->guards[0].image + offset % PAGE_SIZE;
	bool any = false, differs;
	size_t run;

	limit = MIN(limit, b->offset + b->len);
	if (offset >= limit)
		return false;
	len = MIN(len, limit - offset);
	for (size_t i = 0; i < len; i += run) {
		run = run_of(bytes + i, was + i, len - i, &differs);
		if (differs)
			page_store(image + i, bytes + i, run);
		any |= differs;
	}
	return any;
}

/* A hole gets a page first; what is cut off stays so. */
static int merge_once(struct fs *fs, struct inode_state *st, struct kernel_store *s,
	uint64_t offset, const uint8_t *bytes, const uint8_t *was, size_t len, bool again)
{
	struct read_batch b;
	struct disk_inode inode;
	int rc;

	b.offset = offset - offset % PAGE_SIZE;
	b.exclusive = true;
	rc = batch_latch(fs, st, PAGE_SIZE, false, again, &b, &inode);
	if (rc || b.pages == 0 || offset >= kernel_store_limit(fs, s)) {
		if (!rc)
			batch_release(fs, &b);
		return rc;
	}
	if (b.refs_count == 0) {
		/* the kernel has zeros, which stand for no page of this node */
		kernel_store_drop(fs, s, offset >> PAGE_SHIFT);
		rc = data_fill_hole(fs, st, offset >> PAGE_SHIFT);
		return rc ? rc : -ESTALE;
	}
	if (page_merge(&b, kernel_store_limit(fs, s), offset, bytes, was, len)) {
		guard_release_dirty(fs->volume->cache, &b.guards[0], false);
		return 1;
	}
	batch_release(fs, &b);
	return 0;
}

int data_merge(struct fs *fs, struct inode_state *st, struct kernel_store *s,
	uint64_t offset, const uint8_t *bytes, const uint8_t *was, size_t len)
{
	int rc;

	if (memcmp(bytes, was, len) == 0)
		return 0;
	for (unsigned tries = 1; tries <= views_max(fs); tries++) {
		rc = merge_once(fs, st, s, offset, bytes, was, len, tries > 1);
		if (rc == -E2BIG)
			map_tidy(fs, st->ino, offset >> PAGE_SHIFT,
				(offset >> PAGE_SHIFT) + 1);
		else if (rc != -ESTALE && rc != -EAGAIN)
			return rc;
		views_pause(fs, tries);
	}
	return -EUCLEAN;
}

/* batch_latch for the kernel's cache: waits for what is just being dropped from it. */
static int batch_latch_kept(struct fs *fs, struct inode_state *st, size_t len,
	bool locked, bool again, struct kernel_read *r, struct read_batch *b,
	struct disk_inode *inode)
{
	int rc;

	for (;;) {
		rc = kernel_read_expose(fs, r);
		b->exclusive = r->stores;
		if (!rc && r->mappable)
			rc = stores_join(fs, st);
		if (!rc)
			rc = (r->stores ? batch_latch_stores(
						  fs, st, len, locked, again, r, b, inode)
					: batch_latch(
						  fs, st, len, locked, again, b, inode));
		if (!rc && batch_expose(fs, r, len, b))
			return 0;
		if (!rc)
			batch_release(fs, b);
		else if (rc == -E2BIG && r->stores && r->end - r->first > 1)
			return -EBUSY; /* the one that is needed may be easier */
		else if (rc != -EAGAIN)
			return rc;
		kernel_read_wait(r);
	}
}

static int data_read_as(struct fs *fs, struct inode_state *st, uint64_t offset,
	size_t len, bool accessed, struct kernel_read *kept, ops_sink sink, void *arg)
{
	struct read_batch b;
	struct disk_inode inode;
	bool locked = false;
	int rc;

	b.offset = offset;
	b.exclusive = false;
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
		/* not where a size may be set meanwhile: that waits for the lock, so this must
		 * not wait for a page that another node cannot write back (many-nodes.md) */
		if (tries == READ_TRIES && !locked && !stores_possible(st)) {
			rt_gate_enter(&st->structure, 1);
			locked = true;
		}
		if (rc == -E2BIG)
			map_tidy(fs, st->ino, offset >> PAGE_SHIFT,
				DIV_UP(offset + len, (uint64_t)PAGE_SIZE));
		views_pause(fs, tries);
	}
	if (locked)
		rt_gate_leave(&st->structure, 1);
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
	struct kernel_read *kept, ops_sink sink, void *arg)
{
	struct inode_state *st;
	int rc;

	ops_count(fs, OPS_CALL_READ);
	if ((file->flags & O_ACCMODE) == O_WRONLY)
		return -EBADF;
	if (len == 0)
		return sink(arg, NULL, 0, 0);
	rc = kept ? 0 : kernel_stores_await(fs, file->state);
	if (rc)
		return rc;
	/* Once the sink has answered, the file may be closed while this still reads
	 * ahead. */
	st = state_find(fs, file->state->ino);
	WEFT_ASSERT(st == file->state);
	rc = data_read_as(
		fs, st, offset, len, !(file->flags & O_NOATIME), kept, sink, arg);
	state_put(fs, st);
	return rc;
}

int ops_read(struct fs *fs, struct ops_file *file, uint64_t offset, size_t len,
	ops_sink sink, void *arg)
{
	return file_read(fs, file, offset, len, NULL, sink, arg);
}

int ops_read_kept(struct fs *fs, struct ops_file *file, uint64_t offset, size_t len,
	ops_sink sink, void *arg)
{
	struct kernel_read r;
	int rc;

	kernel_read_begin(fs, &r, file->state, offset, len);
	r.maps = (file->flags & O_ACCMODE) == O_RDWR;
	rc = file_read(fs, file, offset, len, &r, sink, arg);
	kernel_read_end(fs, &r);
	return rc;
}
