/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Several nodes have one volume open: each has a store with a shard, and they share tree
 * and space over the simulated network. Transactions on any node count items up, give each
 * new pages and free the old ones, wherever those lie. Nothing is lost or counted twice,
 * a page has what was written for the item that names it, and in the end the groups' pages
 * say exactly what the tree uses.
 *
 *   WEFT_SIM_SEED=7 build/tests/sim/volumes_test     one seed
 *   WEFT_SIM_SEEDS=1000                              so many
 */
#include "tests/unit/volume_fixture.h"

#include "engine/cache/cache_internal.h"
#include "engine/coherence/protocol/protocol.h"
#include "tests/sim/seeds.h"
#include "tests/world/check.h"

#define NODES    3u
#define TASKS    3u
#define STEPS    80u
#define LIVES    2u
#define BARRIERS 7u /* of a life */
#define ITEMS    300u
#define SEEDS    20u
#define PAGES    3u /* of an item, at most */
#define EPOCH    7
#define BYTES    (16 * MIB)
#define FRAMES   256u

struct item {
	uint64_t count, pid, incarnation;
	uint32_t length, pad;
	uint8_t filler[400]; /* so that the tree has more than a leaf */
};

struct node {
	unsigned id, life;
	struct volume *v;
	struct net *net;
	struct coherence *coherence;
	struct shards shards;
	char disk[16];
	_Atomic uint32_t ups;
};

static struct node nodes[NODES];
static uint64_t counted[ITEMS], page_counts[NODES];
static _Atomic uint32_t arrived;

/* All nodes come to the n-th barrier before any goes on. */
static void barrier(const struct node *n, unsigned nth)
{
	uint32_t parties = (n->life * BARRIERS + nth) * NODES;
	uint32_t seen = atomic_fetch_add(&arrived, 1) + 1;

	rt_wake(&arrived, INT32_MAX);
	while (seen < parties) {
		rt_wait(&arrived, seen, RT_FOREVER);
		seen = atomic_load(&arrived);
	}
}

/* ---- what a node gives its volume --------------------------------------------------- */

static unsigned home_of(void *owner, uint16_t shard)
{
	return shard < NODES ? shard + 1u : NODE_NONE;
}

static void on_message(void *owner, struct net_peer *peer, const struct net_message *m)
{
	coherence_message(((struct node *)owner)->coherence, peer, m);
	look_message(m);
}

static void on_event(void *owner, struct net_peer *peer, const struct net_event *event)
{
	struct node *n = owner;

	if (event->kind == NET_LINK_UP) {
		atomic_fetch_add(&n->ups, 1);
		net_wake(n->net, &n->ups, INT32_MAX);
	}
	coherence_event(n->coherence, peer, event);
}

static void address_of(char out[32], unsigned id)
{
	snprintf(out, 32, "node%u:7000", id);
}

static int peers_open(
	void *arg, struct volume *v, struct coherence_options *out, struct weft_error *err)
{
	struct node *n = arg;
	char address[32];
	struct net_options no = {
		.transport = "sim",
		.self = {.incarnation = 1,
			.node = (uint16_t)n->id,
			.role = NET_ROLE_STORAGE},
		.listen = address,
		.handlers = {n, on_message, on_event},
		.retry_ns = 50000000,
	};

	address_of(address, n->id);
	memset(no.self.volume_uuid, 0x11, NET_UUID_BYTES);
	memset(no.self.cluster_uuid, 0x22, NET_UUID_BYTES);
	memset(no.self.node_uuid, 0x30 + (int)n->id, NET_UUID_BYTES);
	OK(net_open(&n->net, &no, NULL));
	for (unsigned i = 0; i < NODES; i++)
		OK(shards_set(&n->shards, (uint16_t)i, page_counts[i]));
	*out = (struct coherence_options){
		.self = (uint8_t)n->id,
		.shard = n->id - 1,
		.home = home_of,
		.net = n->net,
		.store = v->store,
		.log = v->log,
		.shards = &n->shards,
		.cluster_epoch = EPOCH,
	};
	return 0;
}

static int peers_start(void *arg, struct volume *v, struct weft_error *err)
{
	struct node *n = arg;
	char address[32];
	uint32_t ups;

	n->coherence = v->coherence;
	look_up(n->id, n->coherence);
	OK(coherence_start(n->coherence));
	for (unsigned id = 1; id <= NODES; id++) {
		struct net_peer_options po = {.node = (uint16_t)id, .address = address};
		struct net_peer *peer;

		address_of(address, id);
		if (id != n->id)
			OK(net_peer_add(&peer, n->net, &po, NULL));
	}
	OK(net_start(n->net, NULL));
	while ((ups = atomic_load(&n->ups)) < NODES - 1)
		net_wait(n->net, NULL, &n->ups, ups, RT_FOREVER);
	return 0;
}

/* Nobody goes before all have what is theirs. */
static void peers_stop(void *arg, struct volume *v)
{
	struct node *n = arg;

	barrier(n, BARRIERS);
	look_down(n->id);
	coherence_stop(v->coherence);
	net_close(n->net);
}

/* ---- what it does ---------------------------------------------------------------------- */

static struct disk_key key_of(unsigned i)
{
	return disk_key(100 + i, DISK_ITEM_LINK, 0);
}

/* The pages of the item have what was written with it; -EAGAIN: they are gone, as it is. */
static int pages_check(struct volume *v, const struct item *it, unsigned i)
{
	int rc = 0;

	for (uint32_t k = 0; k < it->length && rc == 0; k++) {
		struct guard g;

		rc = guard_shared(v->cache, it->pid + k, it->incarnation, &g);
		if (rc == -ESTALE)
			return -EAGAIN;
		OK(rc);
		if (((const uint64_t *)g.image)[0] != i ||
			((const uint64_t *)g.image)[1] != it->count)
			rc = -EUCLEAN; /* unless it was read too late: the commit says */
		guard_release(v->cache, &g);
	}
	return rc;
}

/* One attempt, with `run` reserved. */
static int count_body(
	struct volume *v, struct txn *x, unsigned i, const struct space_run *run)
{
	uint64_t words[2] = {i};
	struct item it = {0};
	int rc = txn_read(x, key_of(i), &it, sizeof(it)), sound = 0;

	if (rc < 0 && rc != -ENOENT)
		return rc;
	if (rc > 0) {
		sound = pages_check(v, &it, i);
		if (sound == -EAGAIN)
			return sound;
		rc = txn_free(x, it.pid, it.length, it.incarnation);
		if (rc)
			return rc;
	}
	words[1] = ++it.count;
	it.pid = run->pid;
	it.length = run->length;
	it.incarnation = run->incarnation;
	memset(it.filler, (int)i, sizeof(it.filler));
	OK(txn_take(x, run));
	for (uint32_t k = 0; k < run->length; k++) {
		rc = txn_page(
			x, run->pid + k, run->incarnation, 0, words, sizeof(words), true);
		if (rc)
			return rc;
	}
	OK(txn_write(x, key_of(i), &it, sizeof(it)));
	rc = txn_commit(x, NULL);
	CHECK(rc || !sound);
	return rc;
}

static void count_one(struct volume *v, unsigned i)
{
	struct space_run run;
	struct txn *x;
	int rc;

	OK(space_reserve(v->space, PID_NONE, 1 + (uint32_t)pick(PAGES), 0, &run));
	OK(txn_begin(v->tree, false, &x));
	while ((rc = count_body(v, x, i, &run)) == -EAGAIN)
		txn_restart(x);
	OK(rc);
	txn_end(x);
	counted[i]++;
}

static void task_main(void *arg)
{
	struct node *n = arg;

	for (unsigned step = 0; step < STEPS; step++)
		count_one(n->v, (unsigned)(pick(2) ? pick(ITEMS) : pick(8)));
}

/* Everything dirty reaches its home; what is owed has by then. */
static void settle(struct node *n)
{
	for (unsigned tries = 0; tries < 200; tries++) {
		OK(cache_checkpoint(n->v->cache));
		owed_ship(n->v->cache, LSN_MAX, false);
		if (!n->v->cache->revoke.owed_count && !cache_dirty_pages(n->v->cache))
			return;
		rt_sleep_ns(1000000);
	}
	abort();
}

/* ---- what must hold in the end ----------------------------------------------------------- */

static bool tree_in_shard[NODES];

static uint64_t used_by_tree(struct volume *v, page_id pid)
{
	struct disk_inner *n = rt_alloc_pages(PAGE_SIZE);
	uint64_t used = 1;
	struct guard g;

	tree_in_shard[pid_shard(pid)] = true;
	OK(guard_shared(v->cache, pid, 0, &g));
	memcpy(n, g.image, PAGE_SIZE);
	guard_release(v->cache, &g);
	for (unsigned i = 0; n->node.level && i < n->node.count; i++)
		used += used_by_tree(v, n->child[i]);
	rt_free_pages(n, PAGE_SIZE);
	return used;
}

static uint64_t used_by_items(struct volume *v)
{
	uint64_t used = 0;

	for (unsigned i = 0; i < ITEMS; i++) {
		struct item it;
		int rc = tree_read(v->tree, key_of(i), &it, sizeof(it));

		CHECK(rc == (counted[i] ? (int)sizeof(it) : -ENOENT));
		if (rc < 0)
			continue;
		CHECK(it.count == counted[i]);
		OK(pages_check(v, &it, i));
		used += it.length;
	}
	return used;
}

static uint64_t used_in_groups(struct volume *v)
{
	uint64_t used = 0;

	for (unsigned s = 0; s < NODES; s++) {
		for (uint64_t g = 0; g < space_layout_groups(page_counts[s]); g++) {
			const struct disk_group *d;
			struct guard guard;

			OK(guard_shared(v->cache,
				pid_make((uint16_t)s, disk_group_slot(g)), 0, &guard));
			d = (const struct disk_group *)guard.image;
			OK(space_check_page(d, page_counts[s], g, &fixture_error));
			CHECK(d->owner == s + 1);
			used += space_layout_pages(page_counts[s], g) - d->free_pages;
			guard_release(v->cache, &guard);
		}
	}
	return used;
}

static void node_life(struct node *n)
{
	struct volume_peers peers = {
		.open = peers_open, .start = peers_start, .stop = peers_stop, .arg = n};
	struct volume_options o = {.cache.cache_bytes = FRAMES * PAGE_SIZE,
		.background = true,
		.node = (uint16_t)n->id,
		.shard = (uint16_t)(n->id - 1),
		.peers = &peers};
	struct rt_task *task[TASKS];

	OK(volume_open(&n->v, disk_open(n->disk, 0), &o, &fixture_error));
	CHECK(n->v->recovery.was_clean);
	barrier(n, 1);
	for (unsigned i = 0; i < TASKS; i++)
		OK(rt_task_spawn(&task[i], "counts", task_main, n));
	for (unsigned i = 0; i < TASKS; i++)
		rt_task_join(task[i]);
	barrier(n, 2);
	CHECK(used_by_tree(n->v, n->v->catalog.root_pid) + used_by_items(n->v) ==
		used_in_groups(n->v));
	barrier(n, 3);
	settle(n);
	barrier(n, 4);
	settle(n);
	barrier(n, 5);
	if (n->id == 1)
		look_directory(NODES);
	barrier(n, 6);
	OK(volume_close(n->v));
}

static void node_main(void *arg)
{
	struct node *n = arg;

	for (n->life = 0; n->life < LIVES; n->life++) {
		atomic_store(&n->ups, 0);
		n->shards.count = 0;
		node_life(n);
	}
}

static int run_world(void *arg)
{
	unsigned sim[NODES];

	pick_seed(*(uint64_t *)arg);
	look_begin(1);
	memset(nodes, 0, sizeof(nodes));
	memset(counted, 0, sizeof(counted));
	memset(tree_in_shard, 0, sizeof(tree_in_shard));
	atomic_store(&arrived, 0);
	for (unsigned i = 0; i < NODES; i++) {
		struct store_format f = {.log_bytes = 4 * MIB,
			.checksum_kind = DISK_CHECKSUM_GMAC,
			.volume_uuid = {0x11},
			.node = (uint16_t)(i + 1),
			.shard = (uint16_t)i};
		struct rt_sim_disk *sim_disk;
		struct disk_superblock sb;
		struct rt_disk *disk;

		nodes[i].id = i + 1;
		snprintf(nodes[i].disk, sizeof(nodes[i].disk), "disk%u", i);
		sim_disk = rt_sim_disk_create(nodes[i].disk, BYTES, NULL);
		disk = disk_open(nodes[i].disk, 0);
		OK(volume_format(disk, &f, 0, 0, &fixture_error));
		rt_disk_close(disk);
		rt_sim_disk_peek(sim_disk, 0, &sb, sizeof(sb));
		page_counts[i] = sb.page_count;
	}
	for (unsigned i = 0; i < NODES; i++) {
		sim[i] = rt_sim_node_new(nodes[i].disk);
		OK(rt_sim_spawn_on(sim[i], "node", node_main, &nodes[i]));
	}
	for (unsigned i = 0; i < NODES; i++)
		CHECK(!rt_sim_node_wait(sim[i]));
	for (unsigned i = 0; i < NODES; i++)
		CHECK(tree_in_shard[i]);
	return 0;
}

static void nodes_share_tree_and_space(void **state)
{
	for (uint64_t seed = seeds_first(), left = seeds_count(SEEDS); left--; seed++)
		OK(rt_sim_run(seed, NULL, run_world, &seed));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(nodes_share_tree_and_space),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
