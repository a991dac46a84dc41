/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Clients that come with nothing and leave with nothing, while other nodes work (docs/protocol.md,
 * "A link that concerns nobody"). The nodes are put together by engine/node/join.c as the daemon
 * does it. The cluster epoch stays, and no node reports a page. A client that is killed makes an
 * epoch, as any node does, and another one when it is back. A home that starts again knows nothing of
 * the clients that have left, and needs no epoch to find out. And a volume of as many nodes as there
 * may be.
 *
 *   WEFT_SIM_SEED=7 build/tests/sim/cluster_visits_test    one seed
 *   WEFT_SIM_SEEDS=1000                                    so many
 */
#define LOG_BYTES (16ull << 20)
#include <unistd.h>

#include "engine/coherence/peers.h"
#include "engine/node/client_logs.h"
#include "engine/node/node.h"
#include "tests/sim/cluster_world.h"

#define AREA_BYTES   (5ull << 20) /* the least */
#define VISIT_FRAMES 400u
#define FILES        24u
#define PAGES        6u /* of a file */
#define VISITS       3u
#define VISIT_SEEDS  6u
#define ALL          DISK_NODE_MAX

static char folder[] = "/tmp/weft-visits.XXXXXX";
static char cluster_name_of[sizeof(folder) + 16], key_name_of[sizeof(folder) + 16];

/* A node, by its id. The first `stores` have stores, the others are clients. */
struct visitor {
	unsigned id, sim;
	char disk[16];
	struct cluster *cluster;
	struct local_node *node;
	struct volume *v;
	struct fs *fs;
	_Atomic bool serves;
};

static struct visitor nodes[ALL + 1];
static unsigned stores, clients;
static _Atomic bool over;
static _Atomic bool reads;
static _Atomic unsigned here; /* clients that have come */

/* A file's pages are all of one generation. */
static struct {
	unsigned users; /* readers; UINT32_MAX: a writer */
	uint64_t last;
} files[FILES];

/* ---- a node that opens and closes as the daemon does -------------------------------------- */

static bool is_client(const struct visitor *n)
{
	return n->id > stores;
}

static int disk_of(const struct visitor *n, struct rt_disk **out, struct weft_error *err)
{
	struct remote_log_options r = {.cluster = n->cluster,
		.node = n->id,
		.transport = "sim",
		.format = {.checksum_kind = DISK_CHECKSUM_GMAC}};

	if (!is_client(n))
		return rt_disk_open(out, n->disk, 0, err);
	memcpy(r.format.volume_uuid, world_uuid, sizeof(world_uuid));
	return remote_log_open(out, &r, err);
}

static void visit_begin(struct visitor *n)
{
	struct node_options mo = {.node = n->id, .transport = "sim"};
	struct ops_options oo = {.atime = OPS_RELATIME};
	struct weft_error err = {0};
	struct volume_options vo = {
		.background = true,
		.cache = {.cache_bytes = VISIT_FRAMES * PAGE_SIZE, .dirty_age_ms = 40},
		.learned_bytes = LEARNED_BYTES,
		.node = (uint16_t)n->id,
		.volume_uuid = world_uuid,
	};
	struct rt_disk *disk;
	int rc = cluster_open(&n->cluster, cluster_name_of, 0, &err);

	if (!rc) {
		mo.cluster = n->cluster;
		vo.shard = cluster_member(n->cluster, n->id)->shard;
		rc = node_open(&n->node, &mo, &err);
	}
	if (!rc) {
		vo.peers = node_volume_peers(n->node);
		rc = disk_of(n, &disk, &err);
	}
	if (!rc)
		rc = volume_open(&n->v, disk, &vo, &err);
	if (!rc)
		rc = fs_open(&n->fs, n->v, &oo, &err);
	if (rc) {
		print_message("node %u: %s\n", n->id, err.text);
		abort();
	}
	node_serving(n->node);
	atomic_store(&n->serves, true);
}

static void visit_end(struct visitor *n)
{
	atomic_store(&n->serves, false);
	node_leave(n->node);
	fs_close(n->fs);
	OK(volume_close(n->v));
	node_close(n->node);
	cluster_close(n->cluster);
}

/* ---- what they do -------------------------------------------------------------------------- */

static struct ops_file *file_open(const struct visitor *n, unsigned i)
{
	struct ops_file *f = NULL;
	struct ops_attr a;
	char name[16];
	int rc;

	snprintf(name, sizeof(name), "file%u", i);
	rc = ops_lookup(n->fs, DISK_INO_ROOT, nm(name), &a);
	if (rc == -ENOENT)
		rc = ops_create(
			n->fs, DISK_INO_ROOT, nm(name), &root_user, 0644, O_RDWR, &f, &a);
	else if (!rc)
		rc = ops_open(n->fs, a.ino, &root_user, O_RDWR, &f, &a);
	OK(rc);
	return f;
}

static void write_file(const struct visitor *n, unsigned i)
{
	struct ops_file *f = file_open(n, i);
	uint64_t *words = (uint64_t *)rt_alloc_pages(PAGES * PAGE_SIZE);
	uint64_t gen = ++files[i].last;

	for (unsigned w = 0; w < PAGES * PAGE_SIZE / 8; w++)
		words[w] = gen << 16 | i;
	EQ(ops_write(n->fs, f, &root_user, 0, words, PAGES * PAGE_SIZE, false),
		PAGES * PAGE_SIZE);
	ops_close(n->fs, f);
	rt_free_pages(words, PAGES * PAGE_SIZE);
}

static void read_file(const struct visitor *n, unsigned i)
{
	struct ops_file *f = file_open(n, i);
	uint64_t *words = (uint64_t *)rt_alloc_pages(PAGES * PAGE_SIZE);
	struct bytes b = {(uint8_t *)words, 0};

	while (b.len < PAGES * PAGE_SIZE &&
		ops_read(n->fs, f, b.len, PAGES * PAGE_SIZE - b.len, take_bytes, &b) > 0)
		;
	EQ(b.len, files[i].last ? PAGES * PAGE_SIZE : 0);
	for (unsigned w = 0; w < b.len / 8; w++)
		EQ(words[w], files[i].last << 16 | i);
	ops_close(n->fs, f);
	rt_free_pages(words, PAGES * PAGE_SIZE);
}

/* Reads or writes a file that no other task writes. */
static void use(struct visitor *n, unsigned i, bool writes)
{
	while (files[i].users == UINT32_MAX || (writes && files[i].users))
		rt_sleep_ns(100000);
	files[i].users = writes ? UINT32_MAX : files[i].users + 1;
	if (writes)
		write_file(n, i);
	else
		read_file(n, i);
	files[i].users = writes ? 0 : files[i].users - 1;
}

static void work(struct visitor *n, unsigned times)
{
	for (unsigned i = 0; i < times; i++)
		use(n, pick(FILES), !pick(4));
}

static void working_life(void *arg)
{
	struct visitor *n = (struct visitor *)arg;

	visit_begin(n);
	while (!atomic_load(&over)) {
		work(n, 1);
		rt_sleep_ns(1 + pick(2000000));
	}
	visit_end(n);
}

/* ---- worlds ------------------------------------------------------------------------------ */

static void file_make(const char *name, const char *text, mode_t mode)
{
	FILE *f = fopen(name, "w");

	HOLDS(f);
	HOLDS(fputs(text, f) >= 0);
	HOLDS(fclose(f) == 0);
	HOLDS(chmod(name, mode) == 0);
}

static void cluster_make(void)
{
	static char text[96 * (ALL + 2)];
	size_t used = (size_t)snprintf(text, sizeof(text),
		"[volume]\nname = v\nuuid = 11111111-1111-4111-9111-111111111111\n"
		"key = v.key\n");

	for (unsigned id = 1; id <= stores + clients; id++) {
		used += (size_t)snprintf(text + used, sizeof(text) - used,
			"[node %u]\naddress = node%u:7000\n", id, id);
		if (id <= stores)
			used += (size_t)snprintf(
				text + used, sizeof(text) - used, "store = /disk%u\n", id);
		else
			used += (size_t)snprintf(text + used, sizeof(text) - used,
				"role = client\nhost = %u\n", 1 + id % stores);
		HOLDS(used < sizeof(text));
	}
	file_make(cluster_name_of, text, 0644);
}

static void store_make(const struct visitor *n)
{
	unsigned areas = (clients + stores - 1) / stores;
	struct store_format format = {.checksum_kind = DISK_CHECKSUM_GMAC,
		.log_bytes = LOG_BYTES,
		.node = (uint16_t)n->id,
		.shard = (uint16_t)(n->id - 1),
		.area_count = areas,
		.area_bytes = AREA_BYTES};
	struct weft_error err = {0};
	struct rt_disk *disk;

	memcpy(format.volume_uuid, world_uuid, sizeof(world_uuid));
	HOLDS(rt_sim_disk_create(n->disk, DISK_BYTES + 2 * areas * AREA_BYTES, NULL));
	OK(rt_disk_open(&disk, n->disk, 0, &err));
	if (volume_format(disk, &format, 0, 0, &err)) {
		print_message("format: %s\n", err.text);
		abort();
	}
	rt_disk_close(disk);
}

static void nodes_make(void)
{
	for (unsigned id = 1; id <= stores + clients; id++) {
		struct visitor *n = &nodes[id];

		n->id = id;
		snprintf(n->disk, sizeof(n->disk), "disk%u", id);
		if (!is_client(n))
			store_make(n);
	}
}

static void spawn(struct visitor *n, void (*life)(void *))
{
	n->sim = rt_sim_node_new(n->disk);
	OK(rt_sim_spawn_on(n->sim, "node", life, n));
}

static void await_serving(unsigned first, unsigned last)
{
	for (unsigned id = first; id <= last; id++)
		while (!atomic_load(&nodes[id].serves))
			rt_sleep_ns(1000000);
}

static void all_end(void)
{
	const char *names[ALL];

	for (unsigned id = 1; id <= stores + clients; id++)
		HOLDS(!rt_sim_node_wait(nodes[id].sim));
	for (unsigned id = 1; id <= stores; id++)
		names[id - 1] = nodes[id].disk;
	HOLDS(!sim_check_stores(names, stores));
}

/* ---- visits ------------------------------------------------------------------------------ */

#define STORES  3u
#define WORKERS (STORES + 1) /* a client works, too */
#define VISITOR (WORKERS + 1)

static uint64_t epoch_of(const struct visitor *n)
{
	bool served;

	return coherence_epoch(n->v->coherence, &served);
}

/* Returns the pages that the node has reported and heard reports of in its epoch. */
static uint64_t reported(const struct visitor *n)
{
	struct coherence_change change;

	coherence_change(n->v->coherence, &change);
	return change.reported + change.received;
}

static void visits_life(void *arg)
{
	struct visitor *n = (struct visitor *)arg;

	for (unsigned i = 0; i < VISITS; i++) {
		visit_begin(n);
		work(n, 20);
		visit_end(n);
		rt_sleep_ns(1 + pick(2000000000)); /* its host is asked meanwhile, or not */
	}
	atomic_store(&over, true);
}

static int run_visits(void *arg)
{
	uint64_t epoch[WORKERS + 1], had[WORKERS + 1];

	nodes_make();
	for (unsigned id = 1; id <= WORKERS; id++)
		spawn(&nodes[id], working_life);
	await_serving(1, WORKERS);
	rt_sleep_ns(3000000000); /* the other client is vacant by now */
	for (unsigned id = 1; id <= WORKERS; id++) {
		epoch[id] = epoch_of(&nodes[id]);
		had[id] = reported(&nodes[id]);
	}
	spawn(&nodes[VISITOR], visits_life);
	HOLDS(!rt_sim_node_wait(nodes[VISITOR].sim));
	for (unsigned id = 1; id <= WORKERS; id++) {
		EQ(epoch_of(&nodes[id]), epoch[id]);
		EQ(reported(&nodes[id]), had[id]);
	}
	all_end();
	return 0;
}

/* It is killed, and comes back to pages that it had, and to its log. */
static void killed_life(void *arg)
{
	struct visitor *n = (struct visitor *)arg;

	visit_begin(n);
	for (unsigned i = 0; i < FILES; i++)
		use(n, i, false);
	atomic_store(&reads, true);
	while (!atomic_load(&over))
		rt_sleep_ns(1000000);
	visit_end(n);
}

static void await_epoch_after(uint64_t epoch)
{
	while (epoch_of(&nodes[1]) <= epoch)
		rt_sleep_ns(1000000);
}

static int run_killed(void *arg)
{
	struct visitor *n = &nodes[VISITOR];
	uint64_t epoch;

	nodes_make();
	for (unsigned id = 1; id <= WORKERS; id++)
		spawn(&nodes[id], working_life);
	await_serving(1, WORKERS);
	rt_sleep_ns(3000000000);
	spawn(n, killed_life);
	while (!atomic_load(&reads))
		rt_sleep_ns(1000000);
	epoch = epoch_of(&nodes[1]);
	rt_sim_node_kill(n->sim);
	atomic_store(&n->serves, false);
	await_epoch_after(epoch);
	epoch = epoch_of(&nodes[1]);
	spawn(n, killed_life);
	await_serving(VISITOR, VISITOR);
	await_epoch_after(epoch);
	atomic_store(&over, true);
	all_end();
	return 0;
}

/* ---- a home that starts while clients are vacant --------------------------------------------- */

#define RESTARTED 2u

static void visit_life(void *arg)
{
	struct visitor *n = (struct visitor *)arg;

	visit_begin(n);
	work(n, 10);
	visit_end(n);
}

/* A storage node is killed and started again. One epoch is for its lost links. Each of two that are
 * made anew begins one, or one at either end. None is for the clients that have left. */
static int run_restart(void *arg)
{
	struct visitor *n = &nodes[RESTARTED];
	uint64_t epoch;

	nodes_make();
	for (unsigned id = 1; id <= stores; id++)
		spawn(&nodes[id], id == RESTARTED ? killed_life : working_life);
	await_serving(1, stores);
	for (unsigned id = stores + 1; id <= stores + clients; id++)
		spawn(&nodes[id], visit_life);
	for (unsigned id = stores + 1; id <= stores + clients; id++)
		HOLDS(!rt_sim_node_wait(nodes[id].sim));
	while (!atomic_load(&reads))
		rt_sleep_ns(1000000);
	rt_sleep_ns(3000000000);
	epoch = epoch_of(&nodes[1]);
	rt_sim_node_kill(n->sim);
	atomic_store(&n->serves, false);
	await_epoch_after(epoch);
	spawn(n, killed_life);
	await_serving(RESTARTED, RESTARTED);
	rt_sleep_ns(5000000000); /* the clients are looked for once in a second */
	HOLDS(epoch_of(&nodes[1]) - epoch <= 5);
	atomic_store(&over, true);
	all_end();
	return 0;
}

/* ---- as many nodes as there may be --------------------------------------------------------- */

#define MANY_STORES 4u
#define MANY_USES   3u /* files that each client uses in a visit */

/* All are there together at some time. Some come twice. */
static void many_life(void *arg)
{
	struct visitor *n = (struct visitor *)arg;

	for (unsigned i = 0; i < 1 + (n->id % 8 == 0); i++) {
		rt_sleep_ns(1 + pick(50000000));
		visit_begin(n);
		work(n, MANY_USES);
		atomic_fetch_add(&here, 1);
		while (!i && atomic_load(&here) < clients)
			rt_sleep_ns(10000000);
		work(n, MANY_USES);
		visit_end(n);
	}
}

static int run_many(void *arg)
{
	nodes_make();
	for (unsigned id = 1; id <= stores; id++)
		spawn(&nodes[id], working_life);
	await_serving(1, stores);
	rt_sleep_ns(3000000000); /* the clients are vacant by now */
	for (unsigned id = stores + 1; id <= stores + clients; id++)
		spawn(&nodes[id], many_life);
	for (unsigned id = stores + 1; id <= stores + clients; id++)
		HOLDS(!rt_sim_node_wait(nodes[id].sim));
	atomic_store(&over, true);
	all_end();
	return 0;
}

/* ---- runs ------------------------------------------------------------------------------------ */

static void run_seeds(int (*fn)(void *), uint64_t otherwise, uint64_t most)
{
	struct rt_sim_options o = {.time_limit_ns = 200ull * 1000000000};
	uint64_t seeds = MIN(seeds_count(otherwise), most);

	cluster_make();
	for (uint64_t seed = seeds_first(); seeds--; seed++) {
		memset(nodes, 0, sizeof(nodes));
		memset(files, 0, sizeof(files));
		atomic_store(&over, false);
		atomic_store(&reads, false);
		atomic_store(&here, 0);
		assert_int_equal(rt_sim_run(seed, &o, fn, NULL), 0);
	}
}

static void clients_that_have_nothing_come_and_leave_without_an_epoch(void **state)
{
	stores = STORES;
	clients = 2;
	run_seeds(run_visits, VISIT_SEEDS, UINT64_MAX);
}

static void a_client_that_is_killed_makes_an_epoch_and_another_when_it_is_back(void **state)
{
	stores = STORES;
	clients = 2;
	run_seeds(run_killed, VISIT_SEEDS, UINT64_MAX);
}

static void a_home_that_starts_makes_no_epoch_for_vacant_clients(void **state)
{
	stores = STORES;
	for (clients = 4; clients <= 8; clients += 4)
		run_seeds(run_restart, VISIT_SEEDS, UINT64_MAX);
}

static void a_volume_has_as_many_nodes_as_there_may_be(void **state)
{
	stores = MANY_STORES;
	clients = ALL - MANY_STORES;
	run_seeds(run_many, 1, 1);
}

static int setup(void **state)
{
	char key[2 * CLUSTER_KEY_BYTES + 2];

	assert_non_null(mkdtemp(folder));
	snprintf(cluster_name_of, sizeof(cluster_name_of), "%s/v.cluster", folder);
	snprintf(key_name_of, sizeof(key_name_of), "%s/v.key", folder);
	memset(key, 'a', sizeof(key));
	strcpy(key + 2 * CLUSTER_KEY_BYTES, "\n");
	file_make(key_name_of, key, 0600);
	return 0;
}

static int teardown(void **state)
{
	unlink(cluster_name_of);
	unlink(key_name_of);
	rmdir(folder);
	return 0;
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(clients_that_have_nothing_come_and_leave_without_an_epoch),
		cmocka_unit_test(
			a_client_that_is_killed_makes_an_epoch_and_another_when_it_is_back),
		cmocka_unit_test(a_home_that_starts_makes_no_epoch_for_vacant_clients),
		cmocka_unit_test(a_volume_has_as_many_nodes_as_there_may_be),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, setup, teardown);
}
