/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranges of inode numbers and the tree. If several nodes have the volume, leaves are divided at the
 * edges of the range that a node takes. So work on inodes of its own costs the node no message
 * (docs/nodes/semantics.md, "Leaves and nodes").
 */
#include "engine/volume/volume_internal.h"

/*
 * Edges at which the tree's leaves are divided for a range. Its inodes, and their names among the
 * items of the system, are this node's own. They lie beside other nodes' items of the same kind. A
 * division makes a page on its right, of the shard of the node that divides. At ends that is the
 * home of the divided page, and they come first. So the items behind the range stay in that shard.
 */
struct range_edge {
	struct disk_key key;
	bool ends; /* the items on its right are not of the range */
};

#define RANGE_EDGES 7
static unsigned range_edges(uint64_t range, struct range_edge out[RANGE_EDGES])
{
	static const enum disk_item_type kind[] = {
		DISK_ITEM_ORPHAN, DISK_ITEM_INTENT, DISK_ITEM_OPENERS};
	uint64_t first = range << DISK_INODE_RANGE_BITS;
	uint64_t last = ((range + 1) << DISK_INODE_RANGE_BITS) - 1;
	unsigned n = 0;

	out[n++] = (struct range_edge){.key = {.high = first << 8}};
	for (unsigned i = 0; i < ARRAY_SIZE(kind); i++) {
		out[n++] = (struct range_edge){
			disk_key(DISK_INO_SYSTEM, kind[i], last), true};
		out[n++] = (struct range_edge){
			disk_key(DISK_INO_SYSTEM, kind[i], first), false};
	}
	return n;
}

void volume_range_divide(struct volume *v, uint64_t range)
{
	struct range_edge edge[RANGE_EDGES];
	unsigned count = range_edges(range, edge);

	if (!v->peers || !v->tree)
		return;
	for (unsigned i = 0; i < count; i++)
		if (edge[i].ends)
			(void)tree_divide_there(v->tree, edge[i].key);
		else
			(void)tree_divide(v->tree, edge[i].key, true);
}

void volume_range_undivide(struct volume *v, uint64_t range)
{
	struct range_edge edge[RANGE_EDGES];
	unsigned count = range_edges(range, edge);
	bool joined = false;

	if (!range || !v->peers || !v->tree)
		return;
	/* Beginnings first: the left page of two is the one that stays. If the range's own items
	 * have not gone, the items behind it must not get into it. */
	for (unsigned i = count; i-- > 0;)
		if (!edge[i].ends || joined)
			joined = tree_undivide(v->tree, edge[i].key);
}
