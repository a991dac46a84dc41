/* SPDX-License-Identifier: Apache-2.0 */
/*
 * YCSB's workloads A, B and C (half, a twentieth, none of the operations are updates) on the
 * tree of a volume that several nodes have, each a process.
 *
 *	ycsb_bench tcp|shm NODES private|shared [MS [ITEMS]]
 *
 * Each node puts in ITEMS items (20000) of 16-byte keys and 100 bytes. Then it works on
 * those (private) or on those of all (shared), for MS milliseconds (500) of each workload,
 * with keys chosen uniformly, and by Zipf's law with exponent 0.99, the frequent ones spread
 * over all. A line for each: operations per second of all nodes; messages and bytes, sent
 * by anyone, for each operation.
 */
#include <errno.h>
#include <math.h>

#include "engine/volume/volume.h"
#include "tests/bench/nodes_processes.h"

#define VALUE_BYTES 100
#define STORE_BYTES (256ull << 20)
#define LOG_BYTES   (64ull << 20)
#define CACHE_BYTES (128ull << 20)
#define THETA       0.99

#define HOLDS(expr) WEFT_ASSERT(expr)

static struct bench {
	struct world w;
	bool private_range;
	uint64_t run_ms;
	unsigned items; /* of each node */
	struct {
		uint64_t operations, messages, bytes, ns;
		double processor_ns;
	} done[NODES_MAX];
} * bench;

/* ---- which key ------------------------------------------------------------------------------ */

/* Gray et al., "Quickly Generating Billion-Record Synthetic Databases", as YCSB has it. */
struct zipf {
	uint64_t items;
	double zeta, eta, alpha;
};

static double zeta(uint64_t items)
{
	double sum = 0;

	for (uint64_t i = 1; i <= items; i++)
		sum += 1 / pow((double)i, THETA);
	return sum;
}

static void zipf_begin(struct zipf *z, uint64_t items)
{
	z->items = items;
	z->zeta = zeta(items);
	z->alpha = 1 / (1 - THETA);
	z->eta = (1 - pow(2.0 / (double)items, 1 - THETA)) / (1 - zeta(2) / z->zeta);
}

static uint64_t mix(uint64_t x)
{
	x ^= x >> 30;
	x *= 0xbf58476d1ce4e5b9ull;
	x ^= x >> 27;
	x *= 0x94d049bb133111ebull;
	return x ^ x >> 31;
}

static uint64_t zipf_next(const struct zipf *z)
{
	double u = (double)(rt_random() >> 11) / (double)(1ull << 53), uz = u * z->zeta;
	uint64_t rank;

	if (uz < 1)
		rank = 0;
	else if (uz < 1 + pow(0.5, THETA))
		rank = 1;
	else
		rank = (uint64_t)((double)z->items *
				  pow(z->eta * u - z->eta + 1, z->alpha));
	return mix(rank + 1) % z->items; /* the frequent ones are not neighbours */
}

/* As inodes of ranges that the nodes have taken. */
static struct disk_key key_of(unsigned node, uint64_t i)
{
	return disk_key(
		((uint64_t)(100 + node) << DISK_INODE_RANGE_BITS) + i, DISK_ITEM_LINK, 0);
}

static struct disk_key pick_key(const struct node *n, const struct zipf *z, bool zipf)
{
	uint64_t all = bench->private_range ? bench->items
					    : (uint64_t)bench->items * bench->w.nodes;
	uint64_t i = zipf ? zipf_next(z) : rt_random() % all;

	if (bench->private_range)
		return key_of(n->id, i);
	return key_of(1 + (unsigned)(i / bench->items), i % bench->items);
}

/* ---- what is done ----------------------------------------------------------------------------- */

static void update(struct tree *t, struct disk_key key)
{
	uint8_t value[VALUE_BYTES];
	struct txn *x;
	int rc;

	memset(value, (int)rt_random(), sizeof(value));
	OK(txn_begin(t, false, &x));
	while ((rc = txn_write(x, key, value, sizeof(value))) == 0 &&
		(rc = txn_commit(x, NULL)) == -EAGAIN)
		txn_restart(x);
	OK(rc);
	txn_end(x);
}

static void read_one(struct tree *t, struct disk_key key)
{
	uint8_t value[VALUE_BYTES];

	HOLDS(tree_read(t, key, value, sizeof(value)) == sizeof(value));
}

static void run_one(struct node *n, struct tree *t, char workload,
	unsigned updates_percent, const struct zipf *z, bool zipf)
{
	struct net_counters before = node_traffic(n), after;
	uint64_t began, operations = 0, messages = 0, bytes = 0;
	double per_second = 0, worked;

	barrier(n);
	worked = processor_ns();
	began = rt_now_ns();
	while (rt_now_ns() < began + bench->run_ms * 1000000)
		for (unsigned k = 0; k < 16; k++, operations++) {
			struct disk_key key = pick_key(n, z, zipf);

			if (rt_random() % 100 < updates_percent)
				update(t, key);
			else
				read_one(t, key);
		}
	bench->done[n->id - 1].ns = rt_now_ns() - began;
	bench->done[n->id - 1].processor_ns = processor_ns() - worked;
	barrier(n);
	after = node_traffic(n);
	bench->done[n->id - 1].operations = operations;
	bench->done[n->id - 1].messages = after.messages_out - before.messages_out;
	bench->done[n->id - 1].bytes = after.bytes_out - before.bytes_out;
	barrier(n);
	if (n->id != 1)
		return;
	operations = 0;
	worked = 0;
	for (unsigned i = 0; i < bench->w.nodes; i++) {
		operations += bench->done[i].operations;
		messages += bench->done[i].messages;
		bytes += bench->done[i].bytes;
		worked += bench->done[i].processor_ns;
		per_second += (double)bench->done[i].operations * 1e9 /
			      (double)bench->done[i].ns;
	}
	printf("workload=%c keys=%s ops_per_second=%.0f messages_per_op=%.4f "
	       "bytes_per_op=%.1f processor_ns_per_op=%.0f\n",
		workload, zipf ? "zipf" : "uniform", per_second,
		(double)messages / (double)operations, (double)bytes / (double)operations,
		worked / (double)operations);
}

static void load(struct node *n, struct tree *t)
{
	OK(tree_divide(t, key_of(n->id, 0), true));
	for (unsigned i = 0; i < bench->items; i++)
		update(t, key_of(n->id, i));
}

/* Each item once, where it will be used. */
static void touch(struct node *n, struct tree *t)
{
	for (unsigned i = 0; i < bench->items; i++)
		read_one(t, key_of(n->id, i));
}

/* ---- a node ------------------------------------------------------------------------------------- */

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

static void format(struct node *n)
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

static void volume_run(struct node *n)
{
	struct volume_peers peers = {
		.open = peers_open, .start = peers_start, .stop = peers_stop, .arg = n};
	struct volume_options vo = {
		.background = true,
		.cache = {.cache_bytes = CACHE_BYTES},
		.node = (uint16_t)n->id,
		.shard = (uint16_t)(n->id - 1),
		.peers = &peers,
	};
	struct weft_error err = {0};
	struct rt_disk *disk;
	struct volume *v;
	struct zipf z;

	format(n);
	barrier(n);
	world_ok(rt_disk_open(&disk, n->file.path, 0, &err), "disk", err.text);
	world_ok(volume_open(&v, disk, &vo, &err), "volume", err.text);
	barrier(n);
	load(n, v->tree);
	barrier(n);
	touch(n, v->tree);
	zipf_begin(&z, bench->private_range ? bench->items
					    : (uint64_t)bench->items * bench->w.nodes);
	for (unsigned zipf = 0; zipf < 2; zipf++) {
		run_one(n, v->tree, 'A', 50, &z, zipf);
		run_one(n, v->tree, 'B', 5, &z, zipf);
		run_one(n, v->tree, 'C', 0, &z, zipf);
	}
	/* what is dirty anywhere is persisted at its home while all are there */
	for (unsigned round = 0; round < 3; round++) {
		barrier(n);
		OK(volume_sync(v));
	}
	barrier(n);
	OK(volume_close(v));
}

int main(int argc, char **argv)
{
	unsigned nodes = argc > 3 ? (unsigned)atoi(argv[2]) : 0;
	int failed;

	if (!nodes || nodes > NODES_MAX ||
		(strcmp(argv[1], "tcp") && strcmp(argv[1], "shm")) ||
		(strcmp(argv[3], "private") && strcmp(argv[3], "shared"))) {
		fprintf(stderr, "usage: ycsb_bench tcp|shm NODES private|shared [MS "
				"[ITEMS]]\n");
		return 2;
	}
	bench = (struct bench *)nodes_share(sizeof(*bench));
	bench->private_range = !strcmp(argv[3], "private");
	bench->run_ms = argc > 4 ? (uint64_t)atoi(argv[4]) : 500;
	bench->items = argc > 5 ? (unsigned)atoi(argv[5]) : 20000;
	world_make_real(&bench->w, argv[1], nodes, NULL, STORE_BYTES);
	failed = nodes_processes(&bench->w, volume_run);
	world_drop_real(&bench->w);
	return failed;
}
