/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranges of inode numbers and the tree: where several nodes have the volume, leaves are
 * divided at the edges of the range that a node takes, so that working on inodes of its own
 * costs it no message (docs/many-nodes.md, "Leaves and nodes").
 */
#include "engine/volume/volume_internal.h"

/*
 * Where the tree's leaves are divided for a range: its inodes, and what names them among
 * the items of the system, are this node's own, beside others' of the same kind. A page that a division
 * makes is of this node's shard, and what is on its left stays where it was: so ends are no
 * starts of what comes next, or that would be in pages of this node.
 */
#define RANGE_EDGES 7
static unsigned range_edges(uint64_t range, struct disk_key out[RANGE_EDGES])
{
	uint64_t first = range << DISK_INODE_RANGE_BITS;
	uint64_t last = ((range + 1) << DISK_INODE_RANGE_BITS) - 1;

	out[0] = (struct disk_key){.high = first << 8};
	out[1] = disk_key(DISK_INO_SYSTEM, DISK_ITEM_ORPHAN, first);
	out[2] = disk_key(DISK_INO_SYSTEM, DISK_ITEM_ORPHAN, last);
	out[3] = disk_key(DISK_INO_SYSTEM, DISK_ITEM_INTENT, first);
	out[4] = disk_key(DISK_INO_SYSTEM, DISK_ITEM_INTENT, last);
	out[5] = disk_key(DISK_INO_SYSTEM, DISK_ITEM_OPENERS, first);
	out[6] = disk_key(DISK_INO_SYSTEM, DISK_ITEM_OPENERS, last);
	return RANGE_EDGES;
}

void volume_range_divide(struct volume *v, uint64_t range)
{
	struct disk_key edge[RANGE_EDGES];
	unsigned count = range_edges(range, edge);

	if (!v->peers || !v->tree)
		return;
	for (unsigned i = 0; i < count; i++)
		(void)tree_divide(v->tree, edge[i], true);
}

void volume_range_undivide(struct volume *v, uint64_t range)
{
	struct disk_key edge[RANGE_EDGES];
	unsigned count = range_edges(range, edge);

	for (unsigned i = 0; range && v->peers && v->tree && i < count; i++)
		tree_undivide(v->tree, edge[i]);
}
