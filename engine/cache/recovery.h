/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Redo: how the volume's recovery puts the log's images into the cache.
 *
 * Called by one task before anything else uses the cache. The pages become dirty as if they
 * had just been changed, so the normal write-back persists them. Both wait.
 */
#ifndef WEFT_CACHE_RECOVERY_H
#define WEFT_CACHE_RECOVERY_H

#include "engine/cache/cache.h"

/* Installs the image if (incarnation, version) is newer than what cache or store has. 1 if it
 * was installed, 0 if not newer, or -errno. */
int cache_recover_full(struct cache *cache, page_id pid, uint64_t incarnation, uint64_t version,
	const void *image, lsn_t start, lsn_t end);
/*
 * Applies ranges (bytes one behind the other) if version follows the known one; skips (0) what
 * is not newer; -EUCLEAN with a text on a gap (invariant 4). 1 if applied. -EBADMSG: the page's
 * own image is damaged. A write-back that an earlier recovery was cut off in can have torn it,
 * and has then logged its full image further on: visit the records of such pages again, after
 * all others, until nothing changes any more; what still gets -EBADMSG then is damage.
 */
int cache_recover_ranges(struct cache *cache, page_id pid, uint64_t incarnation,
	uint64_t version, const struct disk_log_range *ranges, unsigned range_count,
	const uint8_t *bytes, lsn_t start, lsn_t end, struct weft_error *err);
/*
 * Redo has come to `lsn`: no checkpoint moves the tail past it. LSN_MAX: redo has ended. Set
 * before cache_start; pages may be written back and checkpoints may run meanwhile.
 */
void cache_recover_floor(struct cache *cache, lsn_t lsn);

#endif
