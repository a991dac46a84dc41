/* SPDX-License-Identifier: Apache-2.0 */
/* The declarations that the files of engine/volume share. Nobody else includes it. */
#ifndef WEFT_VOLUME_INTERNAL_H
#define WEFT_VOLUME_INTERNAL_H

#include <errno.h>

#include "engine/volume/volume.h"

/* The incarnation and version of every page that volume_format writes. The catalog and the group
 * pages keep the incarnation for ever. The root page's is the first of its group. */
#define FORMAT_INCARNATION 1u
#define FORMAT_VERSION     1u

static inline page_id volume_catalog_pid(void)
{
	return pid_make(DISK_CATALOG_SHARD, DISK_CATALOG_SLOT);
}

/* Returns true if a page of this store may have this id. While the log is being read, the store's
 * own state counts. */
static inline bool volume_pid_here(struct volume *v, page_id pid)
{
	const struct disk_superblock *sb = store_superblock(v->store);

	return pid_shard(pid) == sb->shard && pid_slot(pid) < sb->page_count;
}

/* ---- range.c: inode numbers and the tree's leaves ---- */

/* This node has taken the range. A failure only makes work slower. Both wait. */
void volume_range_divide(struct volume *v, uint64_t range);
/* This node takes no more numbers from the range; 0: none. */
void volume_range_undivide(struct volume *v, uint64_t range);

/* ---- recovery.c ---- */

/* Pass 1: descriptors. Nothing but the store and the log are open. Waits. */
int recovery_descriptors(struct volume *v, struct weft_error *err);
/* Pass 2: redo, through the cache. Waits. */
int recovery_redo(struct volume *v, struct weft_error *err);

/* ---- gaps.c: pages whose chain of changes in the log has a gap ---- */

#define GAPS_MAX 4096

struct gap {
	page_id pid;
	uint64_t incarnation;
};

struct gaps {
	struct gap *entries; /* GAPS_MAX; NULL until the first */
	unsigned count;
};

/* Notes a gap. Returns 0; -ENOMEM; -EUCLEAN with a text: too many. */
int gaps_add(
	struct gaps *gaps, page_id pid, uint64_t incarnation, struct weft_error *err);
/* Notes a record that changes a page. Forgets gaps of pages that it frees, or has the full image
 * of. */
void gaps_visit(struct gaps *gaps, const struct disk_log_page *part);
/* Call it at the end of redo. Returns 0, or -EUCLEAN with the text of the first gap that is
 * left. */
int gaps_end(struct gaps *gaps, struct weft_error *err);
void gaps_close(struct gaps *gaps);

#endif
