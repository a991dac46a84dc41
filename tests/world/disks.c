/* SPDX-License-Identifier: Apache-2.0 */
/* The simulated disks of the nodes: made, checked and recovered. */
#include <stdio.h>

#include "engine/rt/rt_sim.h"
#include "tests/sim/check_fsck.h"
#include "tests/world/expect.h"
#include "tests/world/world.h"

/* A store without a volume in it. */
static void store_make(struct rt_disk *disk, const struct store_format *format)
{
	struct weft_error err = {0};
	struct disk_superblock sb;
	struct store *s;

	OK(store_format_plan(disk, format, &sb, &err));
	OK(store_format_write(disk, &sb, &err));
	OK(store_format_open(&s, disk, &sb, &err));
	OK(store_format_finish(s, &err));
	store_close(s);
}

void disk_format(struct node *n)
{
	struct store_format format = {.checksum_kind = DISK_CHECKSUM_GMAC,
		.log_bytes = n->w->log_bytes,
		.node = (uint16_t)n->id,
		.shard = world_shard(n)};
	static const struct rt_sim_disk_options slow = {
		.latency_min_ns = 100000, .latency_max_ns = 5000000};
	uint64_t bytes = n->w->disk_bytes ? n->w->disk_bytes : DISK_BYTES;
	struct weft_error err = {0};
	struct rt_disk *disk;

	if (world_client(n)) {
		bytes = n->w->log_bytes + STORE_CLIENT_BYTES;
		format.store_bytes = bytes;
	}
	if (n->w->depth != WORLD_PAGES) /* there each store draws one */
		memcpy(format.volume_uuid, world_uuid, sizeof(world_uuid));
	n->sim_disk = rt_sim_disk_create(n->disk, bytes, n->w->slow_disks ? &slow : NULL);
	OK(rt_disk_open(&disk, n->disk, 0, &err));
	if (n->w->depth == WORLD_PAGES)
		store_make(disk, &format);
	else
		OK(volume_format(disk, &format, 0, 0, &err));
	rt_disk_close(disk);
}

bool stores_check(const struct world *w)
{
	const char *names[NODES_MAX];
	unsigned stores = world_stores(w);

	for (unsigned i = 0; i < stores; i++) {
		names[stores - 1 - i] = w->node[i].disk;
		if (w->nodes > 1)
			sim_check_store_alone(w->node[i].disk);
	}
	return sim_check_stores(names, stores);
}

void stores_recover(const struct world *w)
{
	const char *names[NODES_MAX];
	unsigned cuts = pick(4);

	for (unsigned i = 0; i < w->nodes; i++)
		names[i] = w->node[i].disk;
	look_forget();
	for (; cuts; cuts--) {
		struct rt_sim_disk *disk = w->node[pick(w->nodes)].sim_disk;

		rt_sim_disk_cut_after(disk, 1 + pick(100));
		if (!sim_recover_stores(names, w->nodes))
			stores_check(w);
		rt_sim_disk_cut_after(disk, 0);
	}
	HOLDS(sim_recover_stores(names, w->nodes));
	HOLDS(!stores_check(w));
}
