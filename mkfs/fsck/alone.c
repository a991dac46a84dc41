/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks one store of a volume of several, without the others.
 *
 * After pass 0, checks each group's page by itself (its content and counts). With -c, also checks
 * that the images of pages in use fit their descriptors. Replays the log in memory, for pages of
 * this store only. None of that is written, because other logs may have newer changes of these
 * pages.
 *
 * Does not check the parts that only the tree shows, which belongs to all stores together: files,
 * names, and the users of pages. In particular a page without a user in this store is no finding.
 */
#include "mkfs/fsck/fsck_internal.h"

int alone_check(struct fsck *f)
{
	const struct disk_superblock *sb = &f->store[0].sb;

	fsck_note(f, 0,
		"it is node %u's store (shard %u) of a volume of several: its "
		"superblocks, log, table of descriptors and groups%s are checked. Files, "
		"names and the users of pages are not: for these give all stores of the "
		"volume, or its cluster file",
		sb->node, sb->shard,
		f->o->check_data ? ", and the checksums of all its pages," : "");
	return groups_check_alone(f);
}
