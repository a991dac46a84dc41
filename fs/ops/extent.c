/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Extents: the pages of a file's blocks.
 *
 * The key of an extent item is its first file block. Extents of a file do not overlap. An extent
 * names pages of one incarnation (one reservation). If a page is latched by PID and incarnation, it
 * is the one that the extent names. Items come from disk, so all are checked (invariant 9).
 *
 * Look-ups without a transaction read items one after the other. An insertion or conversion may be
 * under way meanwhile. It never deletes the item of a written extent, so a block then appears as
 * before it. Changes that unmap pages are detected by map_view_stands.
 */
#include "fs/ops/data_internal.h"

static bool extent_valid(
	struct fs *fs, uint64_t block, const struct disk_extent *e, size_t len)
{
	return len == sizeof(*e) && e->length >= 1 && e->length <= DISK_EXTENT_MAX &&
	       (e->flags & ~DISK_EXTENT_UNWRITTEN) == 0 && e->incarnation != 0 &&
	       block < BLOCK_END - e->length &&
	       shards_have(fs->volume->shards, e->pid, e->length);
}

static int extent_damaged(uint64_t ino, uint64_t block)
{
	weft_log(3, "inode %llu: extent at file block %llu is damaged; run fsck.weft",
		(unsigned long long)ino, (unsigned long long)block);
	return -EUCLEAN;
}

static struct disk_key extent_key(uint64_t ino, uint64_t block)
{
	return disk_key(ino, DISK_ITEM_EXTENT, block);
}

/* ---- looking up ------------------------------------------------------------------ */

struct map_build {
	struct fs *fs;
	uint64_t ino;
	uint64_t cursor, end;
	struct map *map;
};

static bool map_add(struct map_build *b, uint64_t count, enum map_kind kind, page_id pid,
	uint64_t incarnation)
{
	if (b->map->count == MAP_SEGMENTS)
		return false;
	b->map->segment[b->map->count++] = (struct map_segment){.block = b->cursor,
		.count = count,
		.kind = kind,
		.pid = pid,
		.incarnation = incarnation};
	b->cursor += count;
	return true;
}

/* Adds the extent's blocks from the cursor on. */
static int map_visit(void *arg, struct disk_key key, const void *value, size_t len)
{
	struct map_build *b = arg;
	struct disk_extent e;
	uint64_t skip = 0, count;

	if (len != sizeof(e))
		return extent_damaged(b->ino, key.low);
	memcpy(&e, value, sizeof(e));
	if (!extent_valid(b->fs, key.low, &e, len))
		return extent_damaged(b->ino, key.low);
	if (key.low > b->cursor &&
		!map_add(b, MIN(key.low, b->end) - b->cursor, MAP_HOLE, PID_NONE, 0))
		return 1;
	if (b->cursor == b->end)
		return 1;
	skip = b->cursor - key.low;
	if (skip >= e.length)
		return 0;
	count = MIN(e.length - skip, b->end - b->cursor);
	if (!map_add(b, count,
		    e.flags & DISK_EXTENT_UNWRITTEN ? MAP_UNWRITTEN : MAP_WRITTEN,
		    e.pid + skip, e.incarnation))
		return 1;
	return b->cursor == b->end;
}

int map_lookup_seen(struct fs *fs, struct tree_seen *seen, uint64_t ino, uint64_t first,
	uint64_t count, struct map *out)
{
	struct map_build b = {
		.fs = fs, .ino = ino, .cursor = first, .end = first + count, .map = out};
	struct disk_extent e;
	struct disk_key found;
	int rc;

	WEFT_ASSERT(count > 0);
	out->count = 0;
	rc = tree_floor_seen(fs->tree, seen, extent_key(ino, first), extent_key(ino, 0),
		&found, &e, sizeof(e));
	if (rc >= 0)
		rc = map_visit(&b, found, &e, (size_t)rc);
	else if (rc == -ENOENT)
		rc = 0;
	else if (rc == -ERANGE)
		return extent_damaged(ino, first);
	if (rc == 0 && MAX(b.cursor, first + 1) < b.end)
		rc = tree_scan_seen(fs->tree, seen,
			extent_key(ino, MAX(b.cursor, first + 1)), extent_key(ino, b.end),
			false, map_visit, &b);
	if (rc == -E2BIG && out->count > 0)
		return 0; /* up to map_end */
	if (rc < 0)
		return seen && rc == -EAGAIN ? -ESTALE : rc;
	if (b.cursor < b.end)
		map_add(&b, b.end - b.cursor, MAP_HOLE, PID_NONE, 0);
	return 0;
}

void map_tidy(struct fs *fs, uint64_t ino, uint64_t first, uint64_t end)
{
	struct disk_key from = extent_key(ino, first), found;
	struct disk_extent e;

	if (tree_floor(fs->tree, from, extent_key(ino, 0), &found, &e, sizeof(e)) < 0)
		found = extent_key(ino, 0);
	tree_tidy(fs->tree, found, extent_key(ino, end));
}

int map_lookup(
	struct fs *fs, uint64_t ino, uint64_t first, uint64_t count, struct map *out)
{
	return map_lookup_seen(fs, NULL, ino, first, count, out);
}

int page_batch_end(struct page_batch *b)
{
	int rc = b->count ? b->hand(b) : 0;

	b->count = 0;
	return rc;
}

static int page_batch_add_segment(struct page_batch *b, const struct map_segment *s)
{
	for (uint64_t n = 0; n < s->count; n++) {
		if (b->count == b->capacity) {
			int rc = page_batch_end(b);

			if (rc < 0)
				return rc;
		}
		b->refs[b->count++] = (struct page_ref){s->pid + n, s->incarnation};
	}
	return 0;
}

int page_batch_add(struct page_batch *b, uint64_t ino, uint64_t first, uint64_t end)
{
	while (first < end) {
		struct map map;
		int rc = map_lookup(b->fs, ino, first, end - first, &map);

		for (unsigned i = 0; rc == 0 && i < map.count; i++)
			if (map.segment[i].kind == MAP_WRITTEN)
				rc = page_batch_add_segment(b, &map.segment[i]);
		if (rc < 0)
			return rc;
		first = map_end(&map);
	}
	return 0;
}

page_id map_goal(struct fs *fs, uint64_t ino, uint64_t block)
{
	struct disk_extent e;
	struct disk_key found;
	int rc;

	if (block == 0)
		return PID_NONE;
	rc = tree_floor(fs->tree, extent_key(ino, block - 1), extent_key(ino, 0), &found,
		&e, sizeof(e));
	if (rc < 0 || !extent_valid(fs, found.low, &e, (size_t)rc))
		return PID_NONE;
	return e.pid + e.length;
}

/* ---- changing, in a transaction -------------------------------------------------- */

/* Evaluates a look-up from `asked` on. Returns 0 and the start of the extent, or the error. */
static int extent_found(struct fs *fs, uint64_t ino, uint64_t asked, int len,
	const struct disk_key *found, const struct disk_extent *e, uint64_t *start)
{
	if (len == -ERANGE)
		return extent_damaged(ino, asked);
	if (len < 0)
		return len;
	if (!extent_valid(fs, found->low, e, (size_t)len))
		return extent_damaged(ino, found->low);
	*start = found->low;
	return 0;
}

/* Finds the last extent that begins at or before `block`. Returns 0 with *e, or -ENOENT. */
static int extent_floor(struct fs *fs, struct txn *x, uint64_t ino, uint64_t block,
	uint64_t *start, struct disk_extent *e)
{
	struct disk_key found;
	int len = txn_floor(
		x, extent_key(ino, block), extent_key(ino, 0), &found, e, sizeof(*e));

	return extent_found(fs, ino, block, len, &found, e, start);
}

/* Finds the first extent that begins in [from, to). Returns 0 with *e, or -ENOENT. */
static int extent_next(struct fs *fs, struct txn *x, uint64_t ino, uint64_t from,
	uint64_t to, uint64_t *start, struct disk_extent *e)
{
	struct disk_key found;
	int len;

	if (from >= to)
		return -ENOENT;
	len = txn_next(
		x, extent_key(ino, from), extent_key(ino, to), &found, e, sizeof(*e));
	return extent_found(fs, ino, from, len, &found, e, start);
}

static int extent_put(
	struct txn *x, uint64_t ino, uint64_t block, const struct disk_extent *e)
{
	return txn_write(x, extent_key(ino, block), e, sizeof(*e));
}

/* Writes an extent for blocks without an item. If the left neighbour continues into it, extends
 * that one. */
static int extent_append(struct fs *fs, struct txn *x, uint64_t ino, uint64_t block,
	const struct disk_extent *e)
{
	struct disk_extent left;
	uint64_t start;
	int rc;

	if (block > 0) {
		rc = extent_floor(fs, x, ino, block - 1, &start, &left);
		if (rc < 0 && rc != -ENOENT)
			return rc;
		if (rc == 0 && start + left.length == block &&
			left.pid + left.length == e->pid &&
			left.incarnation == e->incarnation && left.flags == e->flags &&
			left.length + e->length <= DISK_EXTENT_MAX) {
			left.length += e->length;
			return extent_put(x, ino, start, &left);
		}
	}
	return extent_put(x, ino, block, e);
}

int extent_insert(struct fs *fs, struct txn *x, uint64_t ino, uint64_t block,
	const struct disk_extent *extent)
{
	struct disk_extent other;
	uint64_t start;
	int rc;

	rc = extent_floor(fs, x, ino, block, &start, &other);
	if (rc == 0 && start + other.length > block)
		return -ESTALE;
	if (rc < 0 && rc != -ENOENT)
		return rc;
	rc = extent_next(fs, x, ino, block + 1, block + extent->length, &start, &other);
	if (rc == 0)
		return -ESTALE;
	if (rc != -ENOENT)
		return rc;
	return extent_append(fs, x, ino, block, extent);
}

int extent_convert(struct fs *fs, struct txn *x, uint64_t ino, uint64_t block,
	const struct disk_extent *extent)
{
	struct disk_extent old, rest;
	uint64_t start, before, after;
	int rc;

	rc = extent_floor(fs, x, ino, block, &start, &old);
	if (rc < 0)
		return rc == -ENOENT ? -ESTALE : rc;
	before = block - start;
	if (!(old.flags & DISK_EXTENT_UNWRITTEN) ||
		before + extent->length > old.length || old.pid + before != extent->pid ||
		old.incarnation != extent->incarnation)
		return -ESTALE;
	after = old.length - before - extent->length;
	rest = old;
	rest.length = (uint32_t)before;
	rc = before ? extent_put(x, ino, start, &rest)
		    : txn_delete(x, extent_key(ino, start));
	if (rc == 0 && after) {
		rest.pid = old.pid + before + extent->length;
		rest.length = (uint32_t)after;
		rc = extent_put(x, ino, block + extent->length, &rest);
	}
	if (rc == 0)
		rc = extent_append(fs, x, ino, block, extent);
	return rc;
}

/* Removes [first, end) from one extent that overlaps it. The parts outside stay. */
static int extent_cut(struct txn *x, uint64_t ino, uint64_t start,
	const struct disk_extent *e, uint64_t first, uint64_t end, uint64_t *freed)
{
	uint64_t stop = start + e->length;
	uint64_t from = MAX(start, first), to = MIN(stop, end);
	struct disk_extent rest = *e;
	int rc = 0;

	if (from > start) {
		rest.length = (uint32_t)(from - start);
		rc = extent_put(x, ino, start, &rest);
	} else {
		rc = txn_delete(x, extent_key(ino, start));
	}
	if (rc == 0 && to < stop) {
		rest.pid = e->pid + (to - start);
		rest.length = (uint32_t)(stop - to);
		rc = extent_put(x, ino, to, &rest);
	}
	if (rc == 0)
		rc = txn_free(x, e->pid + (from - start), (uint32_t)(to - from),
			e->incarnation);
	if (rc == 0)
		*freed += to - from;
	return rc;
}

int extent_remove(struct fs *fs, struct txn *x, uint64_t ino, uint64_t first,
	uint64_t end, bool unwritten, uint64_t *freed, uint64_t *next)
{
	struct disk_extent e;
	uint64_t start, at = first;
	int rc;

	*freed = 0;
	*next = end;
	rc = extent_floor(fs, x, ino, first, &start, &e);
	if (rc == 0 && start + e.length <= first)
		rc = -ENOENT;
	for (unsigned n = 0; n < EXTENTS_A_PIECE; n++) {
		if (rc == -ENOENT)
			rc = extent_next(fs, x, ino, at, end, &start, &e);
		if (rc < 0)
			return rc == -ENOENT ? 0 : rc;
		if (!unwritten || e.flags & DISK_EXTENT_UNWRITTEN)
			rc = extent_cut(x, ino, start, &e, first, end, freed);
		if (rc < 0)
			return rc;
		at = start + e.length;
		if (at >= end)
			return 0;
		rc = -ENOENT;
	}
	rc = extent_next(fs, x, ino, at, end, &start, &e);
	if (rc == 0)
		*next = start;
	return rc == -ENOENT ? 0 : rc;
}

int extent_at(struct fs *fs, struct txn *x, uint64_t ino, uint64_t block,
	struct map_segment *out)
{
	struct disk_extent e;
	uint64_t start;
	int rc = extent_floor(fs, x, ino, block, &start, &e);

	*out = (struct map_segment){.block = block, .count = 1, .pid = PID_NONE};
	if (rc == -ENOENT || (rc == 0 && start + e.length <= block))
		return 0;
	if (rc < 0)
		return rc;
	out->kind = e.flags & DISK_EXTENT_UNWRITTEN ? MAP_UNWRITTEN : MAP_WRITTEN;
	out->pid = e.pid + (block - start);
	out->incarnation = e.incarnation;
	return 0;
}

int extent_set_bytes(struct fs *fs, struct txn *x, uint64_t ino, uint64_t block,
	unsigned from, unsigned to, const uint8_t *src)
{
	struct map_segment segment;
	int rc;

	if (from >= to)
		return 0;
	rc = extent_at(fs, x, ino, block, &segment);
	if (rc < 0 || segment.kind != MAP_WRITTEN)
		return rc;
	return txn_page(x, segment.pid, segment.incarnation, from, src, to - from, false);
}
