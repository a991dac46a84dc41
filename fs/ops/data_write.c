/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes bytes into files.
 *
 * A write stores its bytes into pages first. If the mapping or the size changes, one transaction
 * then publishes a piece of the call: its extents, size, blocks and times.
 *
 * A write to existing pages within the file takes no lock. It latches each page by PID and
 * incarnation. Under the latch it checks that the page is still the file's (map_view_stands). Every
 * other write holds `alloc_gate` until its end. An append is therefore one piece to all other calls
 * on this node. A piece assumes a size, holes and unwritten extents. Its transaction checks them.
 *
 * Fresh pages are zeros except for the bytes written (invariant 8). A write never names a page of
 * another file: its extents name the incarnation that was reserved for them.
 *
 * The `alloc_gate` of a node means nothing to other nodes. On a volume of several nodes, two rules
 * follow:
 *
 * - A piece has no written page except the one with the end of the file. All others are overwritten
 *   as above.
 * - The pages of an unwritten extent are the same for all nodes. The piece latches such a page and
 *   then checks the view, as for a written page. The node that fills the page first gives it away
 *   only after it has published it. The next node then finds the extent changed.
 *
 * A piece may store bytes behind the end into the last page before its transaction. They are not
 * visible. If the transaction fails, or a crash loses it, they stay in the page. The end never
 * moves over them. To overwrite them in memory is not enough, because the next crash could show
 * them. If a piece finds such bytes, its transaction writes the rest of the page and the piece's
 * bytes in it, and moves the end.
 */
#include "fs/ops/data_internal.h"

#define WRITE_PAGES_MAX 256u
#define PIECE_PAGES_MAX 257u /* the most that a kernel asks for at once, at any offset */
#define WRITE_PARTS_MAX 32u
#define OVERWRITE_TRIES 8u    /* without the lock */
#define BEHIND_PAGES    1024u /* a stream goes to the store in pieces of 4 MiB */
#define AHEAD_PAGES_MIN 16u
#define AHEAD_PAGES_MAX 4096u /* 16 MiB */

struct write_call {
	struct fs *fs;
	struct inode_state *st;
	const struct ops_caller *c; /* NULL if `holes` */
	struct disk_inode inode;    /* as last looked up */
	struct map_view *view;      /* of the inode and the mapping */
	unsigned stale;             /* number of views in a row that did not stand */
	bool locked;
	bool append; /* the bytes go to the end only */
	bool more;   /* another append may follow at its end */
	bool first;  /* no append was under way before it (append.c) */
	/* Only gives pages to holes within the file. Bytes do not change. If -EAGAIN, the node must
	 * get `absent` first. */
	bool holes;
	struct page_ref absent;
	bool modified; /* overwrote bytes without a transaction */
};

/* Blocks of one kind in a row within a piece. */
struct write_part {
	uint64_t block;
	uint32_t count;
	enum map_kind kind;
	page_id pid;
	uint64_t incarnation;
};

/* The part of a write that one transaction publishes. */
struct write_piece {
	struct write_call *call;
	uint64_t offset;
	const uint8_t *bytes;
	size_t len;
	uint64_t size_before; /* assumed by the fill */
	bool tail_dirty;      /* bytes behind the old end must become zeros */
	bool tail_held;       /* publish latches the page and writes this piece's bytes into it */
	int64_t now;
	unsigned part_count, taken; /* taken: number of parts whose runs the transaction has */
	struct write_part part[WRITE_PARTS_MAX];
	unsigned fresh_count;
	struct page_ref fresh[PIECE_PAGES_MAX];
};

static uint64_t blocks_end(uint64_t bytes)
{
	return DIV_UP(bytes, (uint64_t)PAGE_SIZE);
}

/* ---- one page -------------------------------------------------------------------- */

/* Where bytes [offset, offset + len) lie in a file block. */
struct page_span {
	unsigned from, to; /* within the page */
	const uint8_t *bytes;
};

static struct page_span span_in(
	uint64_t block, uint64_t offset, const uint8_t *bytes, size_t len)
{
	uint64_t start = block << PAGE_SHIFT;
	uint64_t from = MAX(offset, start), to = MIN(offset + len, start + PAGE_SIZE);

	return (struct page_span){.from = (unsigned)(from - start),
		.to = (unsigned)(to - start),
		.bytes = bytes + (from - offset)};
}

/* Latches a written page to be overwritten. Reads it only if some of its bytes stay. */
static int page_latch_written(
	struct fs *fs, page_id pid, uint64_t incarnation, bool whole, struct guard *g)
{
	if (whole)
		return guard_overwrite(fs->volume->cache, pid, incarnation, g);
	return guard_exclusive(fs->volume->cache, pid, incarnation, g);
}

int page_latch_viewed(struct fs *fs, const struct map_view *view, page_id pid,
	uint64_t incarnation, bool whole, struct guard *g)
{
	int rc = page_latch_written(fs, pid, incarnation, whole, g);

	if (rc < 0 || map_view_stands(view))
		return rc;
	guard_release(fs->volume->cache, g);
	return -ESTALE;
}

/* ---- overwriting ----------------------------------------------------------------- */

/* Overwrites the written pages of a segment. Returns the number of pages, or an error if there are
 * none. */
static int overwrite_segment(struct write_call *w, const struct map_segment *s,
	uint64_t offset, const uint8_t *bytes, size_t len)
{
	struct fs *fs = w->fs;
	unsigned n;
	int rc = 0;

	for (n = 0; n < s->count; n++) {
		struct page_span span = span_in(s->block + n, offset, bytes, len);
		struct guard g;

		rc = page_latch_viewed(fs, w->view, s->pid + n, s->incarnation,
			span.to - span.from == PAGE_SIZE, &g);
		if (rc < 0)
			break;
		guard_store(&g, span.from, span.bytes, span.to - span.from);
		guard_release_dirty(fs->volume->cache, &g, false);
	}
	if (n > 0) {
		state_dirty(w->st, s->block, s->block + n);
		w->modified = true;
	}
	return n > 0 ? (int)n : rc;
}

/* Requests the pages of the range that other nodes hold or may change. In the same round of
 * messages it requests the leaf of the inode, whose times will change. Best effort. */
static void claim_written(struct write_call *w, const struct map *map)
{
	struct page_ref refs[WRITE_PAGES_MAX + 1];
	struct cache *cache = w->fs->volume->cache;
	unsigned max = MIN(cache_batch_max(cache) - 1, WRITE_PAGES_MAX), count = 0;

	for (unsigned i = 0; i < map->count && map->segment[i].kind == MAP_WRITTEN; i++) {
		const struct map_segment *s = &map->segment[i];

		for (uint64_t n = 0; n < s->count && count < max; n++) {
			refs[count] = (struct page_ref){s->pid + n, s->incarnation};
			count += cache_asks_to_own(cache, &refs[count]);
		}
	}
	if (count)
		tree_claim_with(w->fs->tree, disk_key(w->st->ino, DISK_ITEM_INODE, 0),
			refs, count);
}

/* Checks the flags of the inode as it is now. They may have changed since the open. */
static int write_allowed(const struct write_call *w)
{
	if (likely(!inode_is_fixed(&w->inode)) || w->holes || w->c->stored)
		return 0;
	return (w->inode.flags & DISK_INODE_IMMUTABLE) || !w->append ? -EPERM : 0;
}

static int64_t overwrite_viewed(
	struct write_call *w, uint64_t offset, const uint8_t *bytes, size_t len)
{
	uint64_t first = offset >> PAGE_SHIFT, done = first;
	struct map map;
	int rc;

	rc = inode_get_seen(w->fs, map_view_seen(w->view), w->st->ino, &w->inode);
	if (rc == 0)
		rc = write_allowed(w);
	if (rc < 0)
		return rc;
	if (offset + len > w->inode.size) {
		uint64_t whole = w->inode.size / PAGE_SIZE * PAGE_SIZE;

		if (!w->view->shared || offset >= whole)
			return 0;
		len = whole - offset;
	}
	len = MIN(len, (size_t)WRITE_PAGES_MAX * PAGE_SIZE - offset % PAGE_SIZE);
	rc = map_lookup_seen(w->fs, map_view_seen(w->view), w->st->ino, first,
		blocks_end(offset + len) - first, &map);
	if (rc < 0)
		return rc;
	if (w->view->shared)
		claim_written(w, &map);
	for (unsigned i = 0; i < map.count && map.segment[i].kind == MAP_WRITTEN; i++) {
		rc = overwrite_segment(w, &map.segment[i], offset, bytes, len);
		if (rc < 0)
			break;
		done += (unsigned)rc;
		if ((unsigned)rc < map.segment[i].count)
			break;
	}
	if (done == first)
		return rc < 0 ? rc : 0;
	return (int64_t)(MIN(done << PAGE_SHIFT, offset + len) - offset);
}

/*
 * Overwrites the written pages at the start of the range, if all of the range is within the file.
 * If other nodes use the volume, the range may pass the end: its whole pages within the file are
 * overwritten. Returns the number of bytes. 0: the caller must write a piece. -ESTALE: look again.
 */
static int64_t overwrite_blocks(
	struct write_call *w, uint64_t offset, const uint8_t *bytes, size_t len)
{
	int64_t rc;

	inode_claim(w->fs, w->st->ino); /* its times change in any case */
	map_view_begin(w->fs, w->st, w->locked, w->stale > 0, w->view);
	rc = overwrite_viewed(w, offset, bytes, len);
	map_view_end(w->fs, w->view);
	return rc;
}

/* ---- space for fresh pages ------------------------------------------------------- */

/* Reserves 1 to `want` fresh pages. If the file grows, takes them from the pages reserved ahead of
 * its end. If there are none, reserves twice as many ahead as the last time. If opens are hidden,
 * nobody tells that a file has been written to its end. So its first write reserves nothing ahead:
 * many small files in a row then lie side by side. */
static int run_get(struct write_call *w, uint64_t block, uint32_t want, bool growing,
	struct space_run *run)
{
	struct inode_state *st = w->st;
	struct space_run rest;
	uint32_t pressure = space_pressure(w->fs->volume->space), next = 0, extra;
	bool first;
	int rc;

	if (!growing)
		return run_reserve(w->fs, map_goal(w->fs, st->ino, block), want, run);
	rt_mutex_lock(&st->lock);
	if (st->ahead.length && st->pressure == pressure) {
		*run = st->ahead;
		run->length = MIN(want, run->length);
		st->ahead.pid += run->length;
		st->ahead.length -= run->length;
		rt_mutex_unlock(&st->lock);
		return 0;
	}
	first = st->ahead_pages == 0;
	if (st->pressure == pressure)
		next = MIN(MAX(st->ahead_pages * 2, MAX(want, AHEAD_PAGES_MIN)),
			AHEAD_PAGES_MAX);
	rt_mutex_unlock(&st->lock);
	extra = first && fs_opens_hidden(w->fs) ? 0 : next;
	ahead_release(w->fs, st);
	rc = run_reserve(w->fs, map_goal(w->fs, st->ino, block), want + extra, run);
	if (rc < 0)
		return rc;
	rest = *run;
	run->length = MIN(want, run->length);
	rest.pid += run->length;
	rest.length -= run->length;
	rt_mutex_lock(&st->lock);
	st->ahead = rest;
	st->ahead_pages = next;
	st->pressure = pressure;
	rt_mutex_unlock(&st->lock);
	return 0;
}

static void part_unreserve(struct fs *fs, const struct write_part *part)
{
	const struct space_run run = {.pid = part->pid,
		.length = part->count,
		.incarnation = part->incarnation};

	if (part->kind == MAP_HOLE)
		space_unreserve(fs->volume->space, &run);
}

/* ---- planning a piece ------------------------------------------------------------ */

/* Returns true if the old end lies within the block and the piece moves it. */
static bool moves_end_in(const struct write_piece *p, uint64_t block)
{
	return p->size_before % PAGE_SIZE && p->size_before >> PAGE_SHIFT == block &&
	       p->offset + p->len > p->size_before;
}

/* Adds the blocks of a segment, with runs reserved for a hole. Returns 0 if it has added them
 * all. */
static int plan_segment(
	struct write_piece *p, const struct map_segment *s, unsigned *pages)
{
	uint64_t block = s->block, left = s->count;
	bool growing = s->kind == MAP_HOLE && block >= blocks_end(p->size_before),
	     cut = false;

	if (s->kind != MAP_WRITTEN && cache_store_full(p->call->fs->volume->cache))
		return p->part_count ? -E2BIG : -ENOSPC;
	if (s->kind == MAP_WRITTEN && p->call->holes)
		return p->part_count ? -E2BIG : -EEXIST;
	if (s->kind == MAP_WRITTEN && p->call->view->shared) {
		if (!moves_end_in(p, block)) /* overwritten, or unmapped meanwhile */
			return p->part_count ? -E2BIG : -ESTALE;
		cut = left > 1;
		left = 1;
	}
	while (left > 0) {
		struct write_part *part = &p->part[p->part_count];
		struct space_run run;
		int rc;

		if (p->part_count == WRITE_PARTS_MAX || *pages == 0)
			return -E2BIG;
		*part = (struct write_part){.block = block,
			.count = (uint32_t)MIN(left, *pages),
			.kind = s->kind,
			.pid = s->pid + (block - s->block),
			.incarnation = s->incarnation};
		if (s->kind == MAP_HOLE) {
			rc = run_get(p->call, block, part->count, growing, &run);
			if (rc < 0)
				return rc;
			part->pid = run.pid;
			part->count = run.length;
			part->incarnation = run.incarnation;
		}
		p->part_count++;
		block += part->count;
		left -= part->count;
		*pages -= part->count;
	}
	return cut ? -E2BIG : 0;
}

/*
 * Returns the number of pages that a piece may have unpublished. The number leaves room for several
 * writers at once. An append on a volume of several nodes may use half of the room, so that it more
 * often is one piece.
 */
static unsigned piece_pages(const struct write_call *w)
{
	struct cache *cache = w->fs->volume->cache;
	unsigned pages = cache_batch_max(cache) / 2;

	if (w->append && w->view->shared)
		pages = MAX(pages, cache_fill_max(cache) / 2);
	return MIN(MAX(pages, 1), PIECE_PAGES_MAX);
}

/* Decides which pages the bytes go to. Cuts the piece to the parts that one transaction can publish
 * and to the free space. Returns an error only if nothing remains. */
static int plan_piece(struct write_piece *p)
{
	struct write_call *w = p->call;
	uint64_t first = p->offset >> PAGE_SHIFT, end;
	unsigned pages = piece_pages(w);
	struct map map;
	int rc;

	rc = map_lookup_seen(w->fs, map_view_seen(w->view), w->st->ino, first,
		MIN(blocks_end(p->offset + p->len) - first, pages), &map);
	if (rc < 0)
		return rc;
	for (unsigned i = 0; i < map.count && rc == 0; i++)
		rc = plan_segment(p, &map.segment[i], &pages);
	if (p->part_count == 0)
		return rc;
	end = p->part[p->part_count - 1].block + p->part[p->part_count - 1].count;
	p->len = MIN(p->len, (end << PAGE_SHIFT) - p->offset);
	return 0;
}

/* ---- filling --------------------------------------------------------------------- */

/* Stores zeros around the bytes in a page that is not fresh in the cache. */
static void zero_around(const struct guard *g, const struct page_span *span)
{
	static const uint8_t zeros[PAGE_SIZE];

	guard_store(g, 0, zeros, span->from);
	guard_store(g, span->to, zeros, PAGE_SIZE - span->to);
}

static int fill_page(struct write_piece *p, const struct write_part *part, unsigned n)
{
	struct fs *fs = p->call->fs;
	uint64_t block = part->block + n;
	struct page_span span = span_in(block, p->offset, p->bytes, p->len);
	bool fresh = part->kind != MAP_WRITTEN, whole = span.to - span.from == PAGE_SIZE,
	     has_tail = !fresh && moves_end_in(p, block),
	     common = part->kind == MAP_UNWRITTEN && p->call->view->shared;
	struct cache *cache = fs->volume->cache;
	page_id pid = part->pid + n;
	struct guard g;
	int rc;

	if (common && p->call->holes) {
		rc = guard_try_exclusive(cache, pid, part->incarnation, &g);
		if (rc == -EAGAIN)
			p->call->absent = (struct page_ref){pid, part->incarnation};
	} else if (common)
		rc = guard_exclusive(cache, pid, part->incarnation, &g);
	else if (fresh && whole)
		rc = guard_fill(cache, pid, part->incarnation, &g);
	else if (fresh)
		rc = guard_fresh(cache, pid, part->incarnation, &g);
	else
		rc = page_latch_written(
			fs, pid, part->incarnation, whole && !has_tail, &g);
	if (rc < 0)
		return rc;
	if (common && !map_view_stands(p->call->view)) {
		guard_release(cache, &g);
		return -ESTALE;
	}
	if (common)
		zero_around(&g, &span);
	/* If other nodes use the volume, one of them may be about to write the bytes behind the
	 * end. They are this node's only after it has moved the end. */
	if (has_tail && (p->call->view->shared ||
				tail_is_dirty(g.image, p->size_before % PAGE_SIZE))) {
		guard_release(cache, &g);
		p->tail_dirty = p->tail_held = true;
		return 0;
	}
	guard_store(&g, span.from, span.bytes, span.to - span.from);
	guard_release_dirty(cache, &g, fresh);
	if (fresh)
		p->fresh[p->fresh_count++] = (struct page_ref){pid, part->incarnation};
	return 0;
}

/* Cuts the piece before page n of part i. */
static void piece_cut(struct write_piece *p, unsigned i, unsigned n)
{
	uint64_t end = p->part[i].block + n;

	for (unsigned k = i; k < p->part_count; k++) {
		struct write_part rest = p->part[k];
		unsigned kept = k == i ? n : 0;

		rest.pid += kept;
		rest.count -= kept;
		part_unreserve(p->call->fs, &rest);
	}
	p->part[i].count = n;
	p->part_count = n ? i + 1 : i;
	p->len = (end << PAGE_SHIFT) - p->offset;
}

/* Other nodes may have images of earlier use of the pages, or be their home. */
static void claim_fresh(const struct write_piece *p, const struct write_part *part)
{
	if (part->kind != MAP_WRITTEN && p->call->view->shared && !p->call->holes)
		cache_claim(p->call->fs->volume->cache, part->pid, part->incarnation,
			part->count, part->kind == MAP_HOLE);
}

static int fill_piece(struct write_piece *p)
{
	for (unsigned i = 0; i < p->part_count; i++)
		claim_fresh(p, &p->part[i]);
	for (unsigned i = 0; i < p->part_count; i++)
		for (unsigned n = 0; n < p->part[i].count; n++) {
			int rc = fill_page(p, &p->part[i], n);

			if (rc == -ESTALE && i + n > 0) {
				piece_cut(p, i, n);
				return 0;
			}
			if (rc < 0)
				return rc;
		}
	return 0;
}

/* ---- publishing ------------------------------------------------------------------ */

static int publish_part(struct write_piece *p, struct txn *x,
	const struct write_part *part, struct disk_inode *inode)
{
	struct fs *fs = p->call->fs;
	uint64_t ino = p->call->st->ino;
	const struct disk_extent extent = {.pid = part->pid,
		.length = part->count,
		.incarnation = part->incarnation};
	const struct space_run run = {.pid = part->pid,
		.length = part->count,
		.incarnation = part->incarnation};
	int rc;

	if (part->kind == MAP_UNWRITTEN)
		return extent_convert(fs, x, ino, part->block, &extent);
	if (part->kind == MAP_WRITTEN)
		return 0;
	rc = extent_insert(fs, x, ino, part->block, &extent);
	if (rc == 0)
		rc = txn_take(x, &run);
	if (rc == 0)
		inode->blocks += part->count;
	return rc;
}

static int publish_tail(struct write_piece *p, struct txn *x)
{
	struct fs *fs = p->call->fs;
	uint64_t ino = p->call->st->ino, block = p->size_before >> PAGE_SHIFT;
	struct page_span span;
	int rc = extent_zero_bytes(
		fs, x, ino, block, p->size_before % PAGE_SIZE, PAGE_SIZE);

	if (rc < 0 || !p->tail_held)
		return rc;
	span = span_in(block, p->offset, p->bytes, p->len);
	return extent_set_bytes(fs, x, ino, block, span.from, span.to, span.bytes);
}

static int publish_body(struct txn *x, void *arg)
{
	struct write_piece *p = arg;
	uint64_t ino = p->call->st->ino;
	struct disk_inode inode;
	int rc;

	p->taken = 0;
	rc = inode_read(x, ino, &inode);
	if (rc < 0)
		return rc;
	if (inode.size != p->size_before || intent_is_due(&inode))
		return -ESTALE;
	for (unsigned i = 0; i < p->part_count; i++) {
		rc = publish_part(p, x, &p->part[i], &inode);
		if (rc < 0)
			return rc;
		p->taken = i + 1;
	}
	if (p->tail_dirty) {
		rc = publish_tail(p, x);
		if (rc < 0)
			return rc;
	}
	inode.size = MAX(inode.size, p->offset + p->len);
	if (!p->call->holes) {
		rc = inode_modified(p->call->fs, x, ino, &inode, p->call->c, p->now);
		if (rc < 0)
			return rc;
	}
	return inode_write(x, ino, &inode);
}

/* Releases the pages that a failed piece has filled, and the runs that it has reserved. */
static void piece_abandon(struct write_piece *p)
{
	struct fs *fs = p->call->fs;

	if (p->fresh_count)
		cache_discard(fs->volume->cache, p->fresh, p->fresh_count);
	for (unsigned i = p->taken; i < p->part_count; i++)
		part_unreserve(fs, &p->part[i]);
}

static int piece_run(struct write_piece *p)
{
	struct write_call *w = p->call;
	struct log_position pos;
	unsigned fresh_pages = 0;
	int rc;

	for (unsigned i = 0; i < p->part_count; i++)
		if (p->part[i].kind != MAP_WRITTEN)
			fresh_pages += p->part[i].count;
	if (fresh_pages)
		cache_fill_begin(w->fs->volume->cache, fresh_pages);
	rc = fill_piece(p);
	if (w->append)
		append_commits(w->fs, w->st, w->first);
	if (rc == 0)
		rc = ops_run(w->fs, 0, publish_body, p, &pos);
	if (rc == 0)
		cache_publish(w->fs->volume->cache, p->fresh, p->fresh_count, pos.end);
	else
		piece_abandon(p);
	/* Not earlier: an fsync in between would skip the unpublished pages and consider the range
	 * clean. Written pages have changed even if the piece failed. */
	state_dirty(w->st, p->part[0].block, blocks_end(p->offset + p->len));
	if (fresh_pages)
		cache_fill_end(w->fs->volume->cache, fresh_pages);
	return rc;
}

/* Writes the start of the range to blocks of any kind. The caller holds `alloc_gate`. Returns the
 * number of bytes; -ESTALE: look again. */
static int64_t write_piece_viewed(
	struct write_call *w, uint64_t offset, const uint8_t *bytes, size_t len)
{
	struct write_piece p = {.call = w, .offset = offset, .bytes = bytes, .len = len};
	int rc;

	rc = inode_get_seen(w->fs, map_view_seen(w->view), w->st->ino, &w->inode);
	if (rc == 0 && intent_is_due(&w->inode)) {
		rc = intent_work(w->fs, w->st);
		rc = rc ? rc : -ESTALE;
	}
	if (rc == 0)
		rc = write_allowed(w);
	if (rc < 0)
		return rc;
	p.size_before = w->inode.size;
	if (w->holes && offset >= p.size_before)
		return (int64_t)len;
	if (w->holes)
		p.len = MIN(p.len, p.size_before - offset);
	if (w->append && p.size_before != offset)
		return -ESTALE;
	p.now = rt_wall_ns();
	if (offset >> PAGE_SHIFT > p.size_before >> PAGE_SHIFT) {
		rc = tail_check(w->fs, w->st, p.size_before, &p.tail_dirty);
		if (rc < 0)
			return rc;
	}
	rc = plan_piece(&p);
	if (rc < 0)
		return rc;
	rc = piece_run(&p);
	if (rc < 0)
		return rc;
	if (!w->holes) /* the times of earlier stores are not yet written otherwise */
		state_times_written(w->st, p.now);
	w->modified = false;
	return (int64_t)p.len;
}

static int64_t write_piece(
	struct write_call *w, uint64_t offset, const uint8_t *bytes, size_t len)
{
	int64_t rc;

	inode_claim(w->fs, w->st->ino);
	map_view_begin(w->fs, w->st, true, w->stale > 0, w->view);
	rc = write_piece_viewed(w, offset, bytes, len);
	map_view_end(w->fs, w->view);
	return rc;
}

/* ---- behind a stream ------------------------------------------------------------- */

static int hand_behind(struct page_batch *b)
{
	cache_write_behind(b->fs->volume->cache, b->refs, b->count);
	return 0;
}

static void behind_range(struct fs *fs, uint64_t ino, uint64_t first, uint64_t end)
{
	struct page_ref refs[WRITE_PAGES_MAX];
	struct page_batch b = {
		.fs = fs, .refs = refs, .capacity = WRITE_PAGES_MAX, .hand = hand_behind};

	if (page_batch_add(&b, ino, first, end) == 0)
		(void)page_batch_end(&b);
}

/*
 * Hands whole pages of a long sequential write to the store. The device then works while the writer
 * does, and fsync has less to write. Races between writers of one file do no harm: pages that are
 * not written behind are written later.
 */
static void write_behind(
	struct fs *fs, struct inode_state *st, uint64_t offset, size_t len)
{
	uint64_t first = offset >> PAGE_SHIFT, end = (offset + len) >> PAGE_SHIFT;
	uint64_t next =
		atomic_exchange_explicit(&st->stream_end, end, memory_order_relaxed);
	uint64_t from = atomic_load_explicit(&st->stream_from, memory_order_relaxed);

	if (first != next || from > first) {
		atomic_store_explicit(&st->stream_from, first, memory_order_relaxed);
		return;
	}
	if (end - from < BEHIND_PAGES)
		return;
	atomic_store_explicit(&st->stream_from, end, memory_order_relaxed);
	behind_range(fs, st->ino, from, end);
}

/* ---- the call -------------------------------------------------------------------- */

static void call_lock(struct write_call *w)
{
	if (w->locked)
		return;
	rt_gate_enter(&w->st->alloc_gate, 1);
	w->locked = true;
}

static int64_t write_all(
	struct write_call *w, uint64_t offset, const uint8_t *bytes, size_t len)
{
	size_t done = 0;
	bool full = false;

	while (done < len) {
		int64_t rc = 0;

		if (!w->append && !w->holes)
			rc = overwrite_blocks(w, offset + done, bytes + done, len - done);
		if (rc == 0) {
			call_lock(w);
			rc = write_piece(w, offset + done, bytes + done, len - done);
		}
		if (rc > 0) {
			done += (size_t)rc;
			w->stale = 0;
			continue;
		}
		if (!full && space_exhausted(w->fs->volume->space, (int)rc)) {
			/* Try once more, without the reservations ahead and the unlinked files. The
			 * tree itself may be out of pages for its items. */
			full = true;
			ahead_release_all(w->fs);
			(void)orphans_settle(w->fs, true);
			continue;
		}
		if (rc == -E2BIG) {
			map_tidy(w->fs, w->st->ino, (offset + done) >> PAGE_SHIFT,
				DIV_UP(offset + len, (uint64_t)PAGE_SIZE));
			rc = -ESTALE;
		}
		if (rc != -ESTALE || w->append)
			return done ? (int64_t)done : rc;
		if (++w->stale == views_max(w->fs))
			return done ? (int64_t)done : -EUCLEAN;
		if (w->stale == OVERWRITE_TRIES)
			call_lock(w);
		views_pause(w->fs, w->stale);
	}
	return (int64_t)done;
}

/* Writes at the given offset. This node's kernel has no copy of the range meanwhile. If a hole only
 * gets a page, the kernel keeps its copies, because no byte changes. */
static int64_t write_at(
	struct write_call *w, uint64_t offset, const uint8_t *bytes, size_t len)
{
	struct kcache_change change;
	int64_t rc;

	if (offset >= FILE_SIZE_MAX)
		return -EFBIG;
	len = MIN(len, FILE_SIZE_MAX - offset);
	if (w->holes)
		return write_all(w, offset, bytes, len);
	kcache_change_begin(w->fs->kcache, &change, &w->st->kcache, offset, len);
	rc = write_all(w, offset, bytes, len);
	kcache_change_end(w->fs->kcache, &change);
	return rc;
}

/* Writes at the end, wherever it is by now. Other nodes move it, too. If the append takes several
 * pieces and another node appends between two, this is a short write. */
static int64_t append_all(
	struct write_call *w, uint64_t *offset, const uint8_t *bytes, size_t len)
{
	int64_t rc = -ESTALE;

	call_lock(w);
	w->append = true;
	w->first = append_begin(w->fs, w->st, w->more);
	for (unsigned tries = 0; rc == -ESTALE; tries++) {
		if (tries == views_max(w->fs)) {
			rc = -EUCLEAN;
			break;
		}
		if (tries)
			rt_yield();
		w->stale = tries;
		views_pause(w->fs, tries);
		inode_claim(w->fs, w->st->ino);
		rc = inode_get(w->fs, w->st->ino, &w->inode);
		if (rc < 0)
			break;
		*offset = w->inode.size;
		rc = write_at(w, *offset, bytes, len);
	}
	append_end(w->fs, w->st, w->more && rc == (int64_t)len);
	return rc;
}

static int64_t call_run(
	struct write_call *w, uint64_t offset, const void *buf, size_t len, bool append)
{
	struct fs *fs = w->fs;
	struct inode_state *st = w->st;
	struct map_view view; /* large, and begun before it is used */
	int64_t done;
	int rc;

	w->view = &view;
	atomic_fetch_add_explicit(&st->writing, 1, memory_order_relaxed);
	if (append)
		done = append_all(w, &offset, buf, len);
	else
		done = write_at(w, offset, buf, len);
	if (w->modified && done > 0) {
		rc = state_modified(fs, st, &w->inode, w->c);
		if (rc < 0)
			done = rc;
	}
	/* After the last state_dirty. */
	atomic_fetch_sub_explicit(&st->writing, 1, memory_order_release);
	if (w->locked)
		rt_gate_leave(&st->alloc_gate, 1);
	if (done > 0)
		write_behind(fs, st, offset, (size_t)done);
	return done;
}

int64_t data_write(struct fs *fs, struct inode_state *st, const struct ops_caller *c,
	uint64_t offset, const void *buf, size_t len, unsigned append)
{
	struct write_call w = {
		.fs = fs, .st = st, .c = c, .more = append & OPS_APPEND_MORE};

	return call_run(&w, offset, buf, len, append & OPS_APPEND);
}

/*
 * Called for a READ, and for a page that a mapping needs. No byte changes, so times and
 * capabilities stay: a store sets the times when it is written back. While it holds `alloc_gate`,
 * it does not wait for a page of unwritten space. Another node may have given bytes to that page
 * and be unable to write them back. A change of the size here waits for `alloc_gate`, and the
 * stores of programs on this node wait with it (nodes/mappings.md, "Mappings").
 */
int data_fill_hole(struct fs *fs, struct inode_state *st, uint64_t block)
{
	static const uint8_t zeros[PAGE_SIZE];
	struct write_call w = {.fs = fs, .st = st, .holes = true};
	int64_t rc = call_run(&w, block << PAGE_SHIFT, zeros, PAGE_SIZE, false);

	if (rc == -EAGAIN && w.absent.incarnation)
		(void)guard_own(fs->volume->cache, w.absent.pid, w.absent.incarnation);
	return rc < 0 && rc != -EEXIST ? (int)rc : 0;
}

int64_t ops_write(struct fs *fs, struct ops_file *file, const struct ops_caller *c,
	uint64_t offset, const void *buf, size_t len, unsigned append)
{
	int rc;

	ops_count(fs, OPS_CALL_WRITE);
	if ((file->flags & O_ACCMODE) == O_RDONLY)
		return -EBADF;
	rc = fs_check_writable(fs);
	if (rc < 0 || len == 0)
		return rc;
	rc = kcache_stores_await(fs->kcache, &file->state->kcache);
	if (rc < 0)
		return rc;
	if (file->flags & O_APPEND)
		append |= OPS_APPEND;
	return data_write(fs, file->state, c, offset, buf, len, append);
}
