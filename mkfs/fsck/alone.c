/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One store of a volume of several, without the others.
 *
 * Checks what it can answer for: after pass 0, its groups' pages by themselves (what they
 * are, their counts) and, with -c, that the images of the pages which they have in use fit
 * their descriptors. The log is replayed in memory, as far as it is of this store's pages:
 * nothing of that is written, since what other logs have of these pages may be newer.
 *
 * Leaves alone what only the tree tells, which is all stores' together: files, names, and
 * who uses which page. In particular a page that nobody here uses is no finding.
 */
#include "mkfs/fsck/fsck_internal.h"

int alone_check(struct fsck *f)
{
	const struct disk_superblock *sb = &f->store[0].sb;

	fsck_note(f, 0,
		"it is node %u's store (shard %u) of a volume of several: its "
		"superblocks, log, "
		"table of descriptors and groups%s are checked. Files, names and who "
		"uses "
		"which page are not: for these give all stores of the volume, or its "
		"cluster "
		"file",
		sb->node, sb->shard,
		f->o->check_data ? ", and the checksums of all its pages," : "");
	return groups_check_alone(f);
}
