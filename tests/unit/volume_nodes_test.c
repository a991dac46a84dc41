/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Nodes that have the same volume, on real threads, over tcp and over shm, or over the
 * RDMA device that has the address WEFT_RDMA_ADDRESS. Run it under
 * ThreadSanitizer. (The same on the simulated runtime, and operations as well:
 * tests/sim/cluster_test.c.)
 *
 * Tasks of all nodes count items up in transactions, one or two together; no count is lost,
 * nobody reads less than was committed before it looked. Between those items each node puts
 * in and takes out items of its own, so that leaves of all split and merge. In the end
 * every node scans the same, also after closing and opening again.
 *
 *   WEFT_LONGER=20 build/tests/unit/volume_nodes_test
 */
#include <errno.h>

#include "engine/volume/volume.h"
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "engine/coherence/protocol/protocol.h"
#include "tests/world/expect.h"
#include "tests/world/world.h"

#define LOG_BYTES  (4ull << 20)
#define TASKS      3
#define STEPS      600
#define SHARED     120 /* items that all count up */
#define OWN        200 /* of each task, there or not */
#define STRIDE     64  /* keys from one shared item to the next: room for own ones */


static struct world world;
static struct volume *volumes[NODES_MAX];
static _Atomic uint64_t begun[SHARED], committed[SHARED];
static bool own[NODES_MAX][TASKS][OWN];
static unsigned steps, frames;

struct item {
	uint64_t value;
	uint8_t filler[150]; /* so that there are some leaves */
};

static unsigned random_below(unsigned n)
{
	return (unsigned)(rt_random() % n);
}

static struct disk_key shared_key(unsigned k)
{
	return disk_key(1000 + (uint64_t)k * STRIDE, DISK_ITEM_LINK, 0);
}

/* Beside the shared ones, and those of other tasks. */
static struct disk_key own_key(unsigned node, unsigned task, unsigned i)
{
	unsigned at = i * world.nodes * TASKS + (node - 1) * TASKS + task;

	return disk_key(1000 + at / (STRIDE - 1) * STRIDE + 1 + at % (STRIDE - 1),
		DISK_ITEM_LINK, 0);
}

/* ---- what tasks do ------------------------------------------------------------------------ */

static int count_up(struct txn *x, unsigned k)
{
	struct item item = {0};
	int rc = txn_read(x, shared_key(k), &item, sizeof(item));

	if (rc < 0 && rc != -ENOENT)
		return rc;
	HOLDS(rc == -ENOENT || rc == sizeof(item));
	item.value++;
	return txn_write(x, shared_key(k), &item, sizeof(item));
}

static void count_some(struct tree *t)
{
	unsigned k[2] = {random_below(SHARED), random_below(SHARED)}, count = 1 + random_below(2);
	struct txn *x;
	int rc;

	if (k[0] == k[1])
		count = 1;
	OK(txn_begin(t, false, &x));
	for (unsigned i = 0; i < count; i++)
		atomic_fetch_add(&begun[k[i]], 1);
	for (;;) {
		rc = 0;
		for (unsigned i = 0; i < count && !rc; i++)
			rc = count_up(x, k[i]);
		if (!rc)
			rc = txn_commit(x, NULL);
		if (rc != -EAGAIN)
			break;
		txn_restart(x);
	}
	OK(rc);
	txn_end(x);
	for (unsigned i = 0; i < count; i++)
		atomic_fetch_add(&committed[k[i]], 1);
}

static void look(struct tree *t, unsigned k)
{
	uint64_t least = atomic_load(&committed[k]);
	struct item item = {0};
	int rc = tree_read(t, shared_key(k), &item, sizeof(item));

	HOLDS(rc == -ENOENT || rc == sizeof(item));
	if (item.value >= least && item.value <= atomic_load(&begun[k]))
		return;
	fprintf(stderr, "item %u is %" PRIu64 ", not %" PRIu64 " or more\n", k,
		item.value, least);
	abort();
}

/* Puts an item of the task's own in, or takes it out. */
static void change_own(struct tree *t, unsigned node, unsigned task, unsigned i)
{
	struct item item = {.value = i};
	bool *is = &own[node - 1][task][i];
	struct disk_key key = own_key(node, task, i);
	struct txn *x;
	int rc;

	HOLDS(tree_read(t, key, &item, sizeof(item)) ==
		(*is ? (int)sizeof(item) : -ENOENT));
	OK(txn_begin(t, false, &x));
	for (;;) {
		rc = *is ? txn_delete(x, key) : txn_write(x, key, &item, sizeof(item));
		if (!rc)
			rc = txn_commit(x, NULL);
		if (rc != -EAGAIN)
			break;
		txn_restart(x);
	}
	OK(rc);
	txn_end(x);
	*is = !*is;
}

struct worker {
	struct node *node;
	unsigned task;
};

static void worker_main(void *arg)
{
	struct worker *w = (struct worker *)arg;
	struct tree *t = volumes[w->node->id - 1]->tree;

	for (unsigned n = 0; n < steps; n++) {
		switch (random_below(4)) {
		case 0:
			look(t, random_below(SHARED));
			break;
		case 1:
			count_some(t);
			break;
		default: /* up and down: many, then few */
			change_own(t, w->node->id, w->task, n % OWN);
		}
	}
}

/* ---- what there is in the end --------------------------------------------------------------- */

struct census {
	unsigned shared, own;
	struct disk_key last;
};

static int count_item(void *arg, struct disk_key key, const void *value, size_t len)
{
	struct census *c = (struct census *)arg;
	struct item item;

	if (len != sizeof(item))
		return 0; /* the root directory's */
	memcpy(&item, value, sizeof(item));
	HOLDS(!c->last.high || disk_key_compare(c->last, key) < 0);
	c->last = key;
	for (unsigned k = 0; k < SHARED; k++)
		if (!disk_key_compare(key, shared_key(k))) {
			HOLDS(item.value == committed[k] && item.value == begun[k]);
			c->shared++;
			return 0;
		}
	c->own++;
	return 0;
}

static void check(struct node *n)
{
	struct tree *t = volumes[n->id - 1]->tree;
	struct census c = {0}, want = {0};

	for (unsigned k = 0; k < SHARED; k++)
		want.shared += committed[k] > 0;
	for (unsigned id = 1; id <= n->w->nodes; id++)
		for (unsigned task = 0; task < TASKS; task++)
			for (unsigned i = 0; i < OWN; i++) {
				struct item item;
				bool is = own[id - 1][task][i];

				want.own += is;
				HOLDS(tree_read(t, own_key(id, task, i), &item,
					      sizeof(item)) ==
					(is ? (int)sizeof(item) : -ENOENT));
			}
	OK(tree_scan(t, disk_key(0, 0, 0), disk_key(UINT64_MAX >> 8, 0, 0), false,
		count_item, &c));
	HOLDS(c.shared == want.shared && c.own == want.own);
	HOLDS(c.shared > SHARED / 2 && c.own > 10);
}

/* ---- a node ------------------------------------------------------------------------------- */

static int peers_open(
	void *arg, struct volume *v, struct coherence_options *out, struct weft_error *err)
{
	*out = node_network((struct node *)arg, v->store, v->log, 1);
	return 0;
}

static int peers_start(void *arg, struct volume *v, struct weft_error *err)
{
	((struct node *)arg)->coherence = v->coherence;
	node_join((struct node *)arg);
	return 0;
}

static void peers_stop(void *arg, struct volume *v)
{
	node_part_all((struct node *)arg);
}

static void node_open(struct node *n)
{
	struct volume_peers peers = {
		.open = peers_open, .start = peers_start, .stop = peers_stop, .arg = n};
	struct volume_options vo = {
		.background = true,
		.cache = {.cache_bytes = frames * PAGE_SIZE, .dirty_age_ms = 40},
		.learned_bytes = LEARNED_BYTES,
		.node = (uint16_t)n->id,
		.shard = (uint16_t)(n->id - 1),
		.peers = &peers,
	};
	struct weft_error err = {0};
	struct rt_disk *disk;

	n->engine = memcpy(rt_alloc(sizeof(peers)), &peers, sizeof(peers));
	vo.peers = (struct volume_peers *)n->engine;
	world_ok(rt_disk_open(&disk, n->file.path, 0, &err), "disk", err.text);
	world_ok(volume_open(&volumes[n->id - 1], disk, &vo, &err), "volume", err.text);
	barrier(n);
}

static void node_close(struct node *n)
{
	struct volume *v = volumes[n->id - 1];

	barrier(n);
	for (unsigned round = 0; round < 3; round++) {
		OK(volume_sync(v));
		barrier(n);
	}
	HOLDS(node_sent(n) > 0);
	OK(volume_close(v));
	rt_free(n->engine);
	barrier(n);
}

static void node_main(void *arg)
{
	struct node *n = (struct node *)arg;
	struct worker worker[TASKS];
	struct rt_task *task[TASKS];

	node_open(n);
	for (unsigned i = 0; i < TASKS; i++) {
		worker[i] = (struct worker){n, i};
		OK(rt_task_spawn(&task[i], "worker", worker_main, &worker[i]));
	}
	for (unsigned i = 0; i < TASKS; i++)
		rt_task_join(task[i]);
	barrier(n);
	check(n);
	node_close(n);
	node_open(n);
	check(n);
	node_close(n);
}

static void node_format(struct node *n)
{
	struct store_format format = {.checksum_kind = DISK_CHECKSUM_GMAC,
		.log_bytes = LOG_BYTES,
		.node = (uint16_t)n->id,
		.shard = (uint16_t)(n->id - 1)};
	struct weft_error err = {0};
	struct rt_disk *disk;

	memset(format.volume_uuid, 0x11, sizeof(format.volume_uuid));
	world_ok(rt_disk_open(&disk, n->file.path, 0, &err), "disk", err.text);
	world_ok(volume_format(disk, &format, 0, 0, &err), "format", err.text);
	rt_disk_close(disk);
}

static void share(const char *transport, unsigned nodes, unsigned with_frames)
{
	const char *longer = getenv("WEFT_LONGER");

	world_make_real(&world, transport, nodes, NULL, DISK_BYTES);
	frames = with_frames;
	steps = STEPS * (longer ? (unsigned)atoi(longer) : 1);
	memset(begun, 0, sizeof(begun));
	memset(committed, 0, sizeof(committed));
	memset(own, 0, sizeof(own));
	for (unsigned i = 0; i < nodes; i++)
		node_format(&world.node[i]);
	world_run_real(&world, node_main);
	world_drop_real(&world);
}

static void nodes_share_a_tree(void **state)
{
	share(*state, 3, 400);
}

static void nodes_share_a_tree_that_does_not_fit_their_caches(void **state)
{
	share(*state, 2, 100);
}

static char tcp[] = "tcp", shm[] = "shm", verbs[] = "verbs";

#define OVER(transport, test)                                                            \
	{                                                                                \
		.name = #test ", " #transport, .test_func = (test),                      \
		.initial_state = (transport)                                             \
	}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		OVER(tcp, nodes_share_a_tree),
		OVER(shm, nodes_share_a_tree),
		OVER(tcp, nodes_share_a_tree_that_does_not_fit_their_caches),
		OVER(shm, nodes_share_a_tree_that_does_not_fit_their_caches),
	};
	const struct CMUnitTest rdma[] = {
		OVER(verbs, nodes_share_a_tree),
		OVER(verbs, nodes_share_a_tree_that_does_not_fit_their_caches),
	};

	rt_real_start();
	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	if (getenv("WEFT_RDMA_ADDRESS"))
		return cmocka_run_group_tests(rdma, NULL, NULL);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
