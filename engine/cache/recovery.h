/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Redo: the volume's recovery puts the log's images into the cache.
 *
 * One task calls these functions before any other use of the cache, and after log_start (unless
 * read-only). The pages become dirty, like changed ones. All functions wait.
 */
#ifndef WEFT_CACHE_RECOVERY_H
#define WEFT_CACHE_RECOVERY_H

#include "engine/cache/cache.h"

/* Installs the image if (incarnation, version) is newer than in cache and store. Returns 1 if it
 * was installed, 0 if it is not newer, or a negative errno. */
int cache_recover_full(struct cache *cache, page_id pid, uint64_t incarnation,
	uint64_t version, const void *image, lsn_t start, lsn_t end);
/*
 * Applies a RANGES part if its version follows the known one. Returns 1 if it was applied, 0 if it
 * is not newer, or a negative errno. The error -EUCLEAN has a text: a gap (invariant 4) or a
 * damaged image. It stands, unless a later full image of the page or the page's free follows.
 */
int cache_recover_ranges(struct cache *cache, const struct disk_log_page *part,
	lsn_t start, lsn_t end, struct weft_error *err);
/*
 * Does the same for a part of a page of another home: its image becomes one that this node owes, if
 * it is complete. Ranges without an earlier full image are skipped, because the persisted image has
 * them. Returns also -ENOMEM with a text: the cache is too small.
 */
/* Returns the cache size in bytes that has room for `owed` pages of other stores, and for redo. */
uint64_t cache_recover_bytes(uint64_t owed);
int cache_recover_owed(struct cache *cache, const struct disk_log_page *part, lsn_t start,
	lsn_t end, struct weft_error *err);
/*
 * Reads the pages that the redo of these records (log_entry.bytes) will need from the store. The
 * misses are in flight together, as many as the cache has room for. Returns the bytes of the
 * records that it has handled, at least the first. Leaves errors to redo. Waits.
 */
size_t cache_recover_ahead(
	struct cache *cache, const struct disk_log_record *records, size_t bytes);
/*
 * Bracket redo. Between them pages may be evicted, but nothing is appended to the log, and its tail
 * stays. (An interrupted recovery starts again from the same log.) So redo needs no room in the
 * ring, however small the cache is. The end writes all pages back and empties the log, except for
 * owed images. It writes nothing if the cache is read-only, or redo has failed. If there are other
 * nodes, no page stays in the cache, since they may have it. Then call cache_start. Wait.
 */
int cache_recover_begin(struct cache *cache);
int cache_recover_end(struct cache *cache, bool well);

#endif
