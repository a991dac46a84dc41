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
 * makes is on its right, and of the shard of whoever divides: at ends that is the home of what is divided,
 * and they come first, so what is behind the range stays in that shard.
 */
struct range_edge {
	struct disk_key key;
	bool ends; /* what is on its right is not of the range */
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
	/* Beginnings first: the left page of two is the one that stays. Where the range's own has not gone,
	 * what is behind it must not get into it. */
	for (unsigned i = count; i-- > 0;)
		if (!edge[i].ends || joined)
			joined = tree_undivide(v->tree, edge[i].key);
}
