/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Redo: how the volume's recovery puts the log's images into the cache.
 *
 * Called by one task before anything else uses the cache, log_start (unless read-only)
 * done. The pages become dirty as if they had just been changed. All wait.
 */
#ifndef WEFT_CACHE_RECOVERY_H
#define WEFT_CACHE_RECOVERY_H

#include "engine/cache/cache.h"

/* Installs the image if (incarnation, version) is newer than what cache or store has. 1
 * if it was installed, 0 if not newer, or -errno. */
int cache_recover_full(struct cache *cache, page_id pid, uint64_t incarnation,
	uint64_t version, const void *image, lsn_t start, lsn_t end);
/*
 * Applies a RANGES part if its version follows the known one; skips (0) what is not
 * newer; -EUCLEAN with a text on a gap (invariant 4) or a damaged image: it stands unless
 * a full image of the page follows further on, or the page's free. 1 if applied.
 */
int cache_recover_ranges(struct cache *cache, const struct disk_log_page *part,
	lsn_t start, lsn_t end, struct weft_error *err);
/*
 * The same for a part of a page whose home is another node: its image becomes one that
 * this node owes, if it is whole. Ranges that follow no full image are skipped: what is
 * persisted has them. -ENOMEM with a text: the cache is too small.
 */
/* The cache that has room for so many pages of other stores, and for redo beside them. */
uint64_t cache_recover_bytes(uint64_t owed);
int cache_recover_owed(struct cache *cache, const struct disk_log_page *part, lsn_t start,
	lsn_t end, struct weft_error *err);
/*
 * Reads what the redo of these records (log_entry.bytes) will need from the store, the
 * misses in flight together, as much as the cache can take at a time. Returns how many
 * bytes of records it has looked at, the first at least. Errors are left to redo, which
 * meets them again. Waits.
 */
size_t cache_recover_ahead(
	struct cache *cache, const struct disk_log_record *records, size_t bytes);
/*
 * Brackets redo. In between pages may be evicted, but nothing is appended to the log and
 * its tail stays (recovery that is cut short starts over from the same log): no room in
 * the ring is needed, however full it is and however small the cache. The end writes
 * everything back and empties the log, but for what is owed; on a read-only cache, or if
 * redo did not end well, it writes nothing. Where there are other nodes nothing stays in
 * the cache: they may have the pages. cache_start comes after it. Waits.
 */
int cache_recover_begin(struct cache *cache);
int cache_recover_end(struct cache *cache, bool well);

#endif
