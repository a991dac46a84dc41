/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For tests whose nodes lose their power and come back: a life of a node begins by opening the
 * volume when it has met all others, and those that are left leave together.
 */
#ifndef WEFT_TEST_CLUSTER_LIVES_H
#define WEFT_TEST_CLUSTER_LIVES_H

#include "tests/sim/cluster_world.h"

static uint64_t frames = FRAMES; /* of a cache */
static uint64_t dirty_age_ms = 40;

static void crash_leave(void *arg, struct volume *v)
{
	struct node *n = (struct node *)arg;

	if (n->fs) /* else it could not be opened */
		barrier(n);
	look_down(n->id);
	net_calls_stop(n->calls);
	coherence_cluster_stop(n->coherence);
	net_close(n->net);
	net_calls_close(n->calls);
	n->coherence = NULL;
}

static void crash_open(struct node *n)
{
	struct volume_options vo = {
		.background = true,
		.cache = {.cache_bytes = frames * PAGE_SIZE, .dirty_age_ms = dirty_age_ms},
		.node = (uint16_t)n->id,
		.shard = (uint16_t)(n->id - 1),
		.peers = &n->peers,
	};
	struct ops_options oo = {.atime = OPS_RELATIME, .mmap = n->w->mmap};
	struct weft_error err = {0};
	struct rt_disk *disk;

	atomic_store(&n->ups, 0);
	n->fs = NULL;
	n->peers = (struct volume_peers){.open = node_provide,
		.start = node_join,
		.stop = crash_leave,
		.settle = node_settle_closed,
		.arg = n};
	n->shards.count = 0;
	for (unsigned i = 0; i < n->w->nodes; i++)
		OK(shards_set(&n->shards, (uint16_t)i, 0));
	OK(rt_disk_open(&disk, n->disk, 0, &err));
	if (volume_open(&n->v, disk, &vo, &err) || fs_open(&n->fs, n->v, &oo, &err)) {
		print_message("node %u: %s\n", n->id, err.text);
		abort();
	}
}

/* All that are left do so together. */
static inline void crash_close(struct node *n)
{
	fs_close(n->fs);
	barrier(n);
	node_settle(n);
	OK(volume_close(n->v));
}

#endif
