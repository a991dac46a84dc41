/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stores through mappings with OPS_MMAP_LOCAL, as the kernel writes them back. The bytes that a
 * program has changed go into the file's page. All others stay (docs/nodes/mappings.md).
 */
#include "fs/ops/data_internal.h"

/* A part of one page that was written back. */
struct merge {
	struct fs *fs;
	struct inode_state *st;
	struct kcache_store *store;
	uint64_t offset;
	const uint8_t *bytes, *was;
	size_t len;
};

/* Returns the number of bytes at the start that all differ, or that are all equal. */
static size_t run_of(const uint8_t *bytes, const uint8_t *was, size_t len, bool *differs)
{
	size_t run = 0;

	*differs = bytes[0] != was[0];
	while (run < len && (bytes[run] != was[run]) == *differs)
		run++;
	return run;
}

/* Stores the bytes below `limit` that differ. Returns false if none does. */
static bool merge_bytes(const struct merge *m, uint64_t limit, const struct guard *g)
{
	bool any = false, differs;
	size_t len, run;

	if (m->offset >= limit)
		return false;
	len = MIN(m->len, limit - m->offset);
	for (size_t i = 0; i < len; i += run) {
		run = run_of(m->bytes + i, m->was + i, len - i, &differs);
		if (differs)
			guard_store(g, (unsigned)((m->offset + i) % PAGE_SIZE),
				m->bytes + i, run);
		any |= differs;
	}
	return any;
}

/* The kernel has zeros of a hole, which stand for no page of this node. */
static int merge_hole(const struct merge *m)
{
	int rc;

	kcache_store_drop(m->fs->kcache, m->store, m->offset >> PAGE_SHIFT);
	rc = data_fill_hole(m->fs, m->st, m->offset >> PAGE_SHIFT);
	return rc ? rc : -ESTALE;
}

/* Latches the page as of the view. *size: the file's. 1: latched; 0: a hole, or behind the end. */
static int merge_latch(
	const struct merge *m, struct map_view *view, uint64_t *size, struct guard *g)
{
	uint64_t block = m->offset >> PAGE_SHIFT;
	struct disk_inode inode;
	struct map map;
	int rc = inode_get_seen(m->fs, map_view_seen(view), m->st->ino, &inode);

	if (rc < 0)
		return rc;
	*size = inode.size;
	if (m->offset >= inode.size)
		return 0;
	rc = map_lookup_seen(m->fs, map_view_seen(view), m->st->ino, block, 1, &map);
	if (rc < 0)
		return rc;
	if (map.segment[0].kind != MAP_WRITTEN)
		return map_view_stands(view) ? 0 : -ESTALE;
	rc = page_latch_viewed(m->fs, view, map.segment[0].pid,
		map.segment[0].incarnation, false, g);
	return rc < 0 ? rc : 1;
}

/* A hole gets a page first. Bytes that are cut off stay so. */
static int merge_once(const struct merge *m, bool again)
{
	struct cache *cache = m->fs->volume->cache;
	struct map_view view;
	struct guard g;
	uint64_t size = 0, limit;
	int rc;

	map_view_begin(m->fs, m->st, false, again, &view);
	rc = merge_latch(m, &view, &size, &g);
	map_view_end(m->fs, &view);
	if (rc < 0)
		return rc;
	limit = MIN(size, kcache_store_limit(m->fs->kcache, m->store));
	if (rc == 0)
		return m->offset < limit ? merge_hole(m) : 0;
	if (merge_bytes(m, limit, &g)) {
		guard_release_dirty(cache, &g, false);
		return 1;
	}
	guard_release(cache, &g);
	return 0;
}

int data_merge(struct fs *fs, struct inode_state *st, struct kcache_store *s,
	uint64_t offset, const uint8_t *bytes, const uint8_t *was, size_t len)
{
	const struct merge m = {fs, st, s, offset, bytes, was, len};
	int rc;

	if (memcmp(bytes, was, len) == 0)
		return 0;
	for (unsigned tries = 1; tries <= views_max(fs); tries++) {
		rc = merge_once(&m, tries > 1);
		if (rc == -E2BIG)
			map_tidy(fs, st->ino, offset >> PAGE_SHIFT,
				(offset >> PAGE_SHIFT) + 1);
		else if (rc != -ESTALE && rc != -EAGAIN)
			return rc;
		views_pause(fs, tries);
	}
	return -EUCLEAN;
}
