/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Several nodes have the same volume: each opens it with a store of its own, the driver of
 * the page protocol and the simulated network, and changes what the others change too.
 *
 * The tree: items that all nodes count up in transactions lose no count, and nobody reads
 * less than was committed before it looked. The operations: directories that all nodes
 * use, one operation at a time, where each must find what the last one left, on whatever
 * node that was; meanwhile each node works in a directory of its own. In the end every
 * node sees the same, also after closing and opening again.
 *
 * Not here: failures, locks, files that are open while another node unlinks them
 * (docs/many-nodes.md, "What is not built yet").
 *
 *   WEFT_SIM_SEED=7 build/tests/sim/cluster_test     one seed
 *   WEFT_SIM_SEEDS=1000                              so many of each kind
 *   WEFT_SIM_LONGER=10                               each so many times as long
 */
#include <inttypes.h>
#include <signal.h>

#include "engine/coherence/cluster.h"
#include "tests/unit/ops_fixture.h"

#define NODES_MAX  3
#define DISK_BYTES (64ull << 20)
#define LOG_BYTES  (4ull << 20)
#define FRAMES     160
#define SEEDS      20
#define EPOCH      7
#define KEYS       400
#define SHARED     3  /* directories of all */
#define NAMES      10 /* in each */
#define FILE_MAX   40000u

/* ---- what files and directories should be ------------------------------------------------ */

struct thing {
	uint64_t ino; /* 0: there is none of this name */
	bool directory;
	uint32_t size;
	uint8_t *data;
};

struct place_model {
	uint64_t dir;
	struct thing thing[NAMES];
};

struct world;
struct node {
	struct world *w;
	unsigned id; /* from 1; its shard is one less */
	unsigned sim;
	struct net *net;
	struct shards shards;
	struct volume_peers peers;
	struct coherence *coherence;
	struct volume *v;
	struct fs *fs;
	char disk[16];
	_Atomic uint32_t ups;
	struct place_model own;
};

struct world {
	unsigned nodes, steps;
	void (*work)(struct node *n);
	void (*check)(struct node *n);
	uint8_t uuid[16];
	struct node node[NODES_MAX];
	_Atomic uint32_t arrived; /* at a barrier, all in all */
	struct rt_mutex turn;
	struct place_model shared[SHARED];
	_Atomic uint64_t begun[KEYS], committed[KEYS];
};

/* Over all seeds: that there was something to do with the others. */
static uint64_t sum_sent, sum_restarts;
static struct world *running;
static void (*abort_before)(int);

static void on_abort(int signal_number)
{
	for (unsigned i = 0; running && i < running->nodes; i++)
		if (running->node[i].coherence)
			/* NOLINTNEXTLINE(bugprone-signal-handler): a task has aborted */
			coherence_cluster_dump(running->node[i].coherence);
	signal(signal_number, abort_before); /* the simulator's, which says the seed */
	raise(signal_number);
}

static unsigned pick(unsigned n)
{
	return (unsigned)(rt_random() % n);
}

/* ---- a node ------------------------------------------------------------------------------ */

/* All nodes come to it before any goes on; each comes to as many as the others. */
static void barrier(struct node *n)
{
	struct world *w = n->w;
	uint32_t seen = atomic_fetch_add(&w->arrived, 1) + 1;
	uint32_t whole = (seen + w->nodes - 1) / w->nodes * w->nodes;

	rt_wake(&w->arrived, INT32_MAX);
	while (seen < whole) {
		rt_wait(&w->arrived, seen, RT_FOREVER);
		seen = atomic_load(&w->arrived);
	}
}

static unsigned home_of(void *owner, uint16_t shard)
{
	const struct world *w = (const struct world *)owner;

	return shard < w->nodes ? shard + 1u : NODE_NONE;
}

static void on_message(void *owner, struct net_peer *peer, const struct net_message *m)
{
	struct node *n = (struct node *)owner;

	coherence_cluster_message(n->coherence, peer, m);
}

static void on_event(void *owner, struct net_peer *peer, const struct net_event *event)
{
	struct node *n = (struct node *)owner;

	if (event->kind == NET_LINK_UP) {
		atomic_fetch_add(&n->ups, 1);
		net_wake(n->net, &n->ups, INT32_MAX);
	}
	coherence_cluster_event(n->coherence, peer, event);
}

static void address_of(char out[32], unsigned id)
{
	snprintf(out, 32, "node%u:7000", id);
}

static int node_provide(
	void *arg, struct volume *v, struct coherence **out, struct weft_error *err)
{
	struct node *n = (struct node *)arg;
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
	struct coherence_cluster_options co = {
		.self = (uint8_t)n->id,
		.shard = n->id - 1,
		.home = home_of,
		.owner = n->w,
		.store = v->store,
		.log = v->log,
		.shards = &n->shards,
		.cluster_epoch = EPOCH,
	};

	address_of(address, n->id);
	memcpy(no.self.volume_uuid, n->w->uuid, sizeof(n->w->uuid));
	memset(no.self.cluster_uuid, 0x22, NET_UUID_BYTES);
	memset(no.self.node_uuid, 0x30 + (int)n->id, NET_UUID_BYTES);
	OK(net_open(&n->net, &no, NULL));
	co.net = n->net;
	OK(coherence_cluster_open(&n->coherence, &co));
	*out = n->coherence;
	return 0;
}

static int node_join(void *arg, struct volume *v, struct weft_error *err)
{
	struct node *n = (struct node *)arg;
	char address[32];
	uint32_t ups;

	OK(coherence_cluster_start(n->coherence));
	for (unsigned id = 1; id <= n->w->nodes; id++) {
		struct net_peer_options po = {.node = (uint16_t)id, .address = address};
		struct net_peer *peer;

		address_of(address, id);
		if (id != n->id)
			OK(net_peer_add(&peer, n->net, &po, NULL));
	}
	OK(net_start(n->net, NULL));
	while ((ups = atomic_load(&n->ups)) < n->w->nodes - 1)
		net_wait(n->net, NULL, &n->ups, ups, RT_FOREVER);
	return 0;
}

static void node_counts(const struct node *n)
{
	const struct coherence_cluster_counters *c =
		coherence_cluster_counters(n->coherence);

	for (unsigned i = 0; i < ARRAY_SIZE(c->sent); i++)
		sum_sent += c->sent[i];
	sum_restarts += tree_counters(n->v->tree)->restarts;
}

/* Nobody leaves before all are ready to. */
static void node_leave(void *arg, struct volume *v)
{
	struct node *n = (struct node *)arg;

	barrier(n);
	node_counts(n);
	coherence_cluster_stop(n->coherence);
	net_close(n->net);
	n->coherence = NULL; /* the volume closes it */
}

static void node_open(struct node *n)
{
	struct volume_options vo = {
		.background = true,
		.cache = {.cache_bytes = FRAMES * PAGE_SIZE, .dirty_age_ms = 40},
		.node = (uint16_t)n->id,
		.shard = (uint16_t)(n->id - 1),
		.peers = &n->peers,
	};
	struct ops_options oo = {.atime = OPS_RELATIME};
	struct weft_error err = {0};
	struct rt_disk *disk;

	atomic_store(&n->ups, 0);
	n->peers = (struct volume_peers){node_provide, node_join, node_leave, n};
	for (unsigned i = 0; i < n->w->nodes; i++) /* how large: not known yet */
		OK(shards_set(&n->shards, (uint16_t)i, 0));
	OK(rt_disk_open(&disk, n->disk, 0, &err));
	if (volume_open(&n->v, disk, &vo, &err) || fs_open(&n->fs, n->v, &oo, &err)) {
		print_message("node %u: %s\n", n->id, err.text);
		abort();
	}
	barrier(n);
}

/* What is dirty anywhere is persisted at its home, and told to who owes it. */
static void node_settle(struct node *n)
{
	for (unsigned round = 0; round < 3; round++) {
		OK(volume_sync(n->v));
		barrier(n);
	}
}

static void node_close(struct node *n)
{
	fs_close(n->fs);
	barrier(n);
	node_settle(n);
	OK(volume_close(n->v));
	barrier(n);
}

static void node_main(void *arg)
{
	struct node *n = (struct node *)arg;

	node_open(n);
	n->w->work(n);
	barrier(n);
	n->w->check(n);
	node_close(n);
	node_open(n);
	n->w->check(n);
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

	memcpy(format.volume_uuid, n->w->uuid, sizeof(format.volume_uuid));
	rt_sim_disk_create(n->disk, DISK_BYTES, NULL);
	OK(rt_disk_open(&disk, n->disk, 0, &err));
	OK(volume_format(disk, &format, 0, 0, &err));
	rt_disk_close(disk);
}

static int run_world(void *arg)
{
	struct world *w = (struct world *)arg;

	running = w;
	abort_before = signal(SIGABRT, on_abort);
	memset(w->uuid, 0x11, sizeof(w->uuid));
	for (unsigned i = 0; i < w->nodes; i++) {
		struct node *n = &w->node[i];

		n->w = w;
		n->id = i + 1;
		snprintf(n->disk, sizeof(n->disk), "disk%u", n->id);
		node_format(n);
	}
	for (unsigned i = 0; i < w->nodes; i++) {
		struct node *n = &w->node[i];

		n->sim = rt_sim_node_new(n->disk);
		OK(rt_sim_spawn_on(n->sim, "node", node_main, n));
	}
	for (unsigned i = 0; i < w->nodes; i++)
		HOLDS(!rt_sim_node_wait(w->node[i].sim));
	running = NULL;
	signal(SIGABRT, abort_before);
	return 0;
}

/* ---- the tree ---------------------------------------------------------------------------- */

static struct disk_key key_of(unsigned k)
{
	return disk_key(1000 + k * 7919 % KEYS, DISK_ITEM_LINK, 0);
}

struct count_item {
	uint64_t count;
	uint8_t filler[150]; /* so that there are some leaves */
};

static int count_up(struct txn *x, unsigned k)
{
	struct count_item item = {0};
	int rc = txn_read(x, key_of(k), &item, sizeof(item));

	if (rc < 0 && rc != -ENOENT)
		return rc;
	HOLDS(rc == -ENOENT || rc == sizeof(item));
	item.count++;
	return txn_write(x, key_of(k), &item, sizeof(item));
}

/* One or two items of the tree, together. */
static void count_some(struct node *n)
{
	unsigned k[2] = {pick(KEYS), pick(KEYS)}, count = 1 + pick(2);
	struct txn *x;
	int rc;

	if (k[0] == k[1])
		count = 1;
	OK(txn_begin(n->v->tree, false, &x));
	for (unsigned i = 0; i < count; i++)
		atomic_fetch_add(&n->w->begun[k[i]], 1);
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
		atomic_fetch_add(&n->w->committed[k[i]], 1);
}

static void count_look(struct node *n, unsigned k)
{
	uint64_t least = atomic_load(&n->w->committed[k]);
	struct count_item item = {0};
	int rc = tree_read(n->v->tree, key_of(k), &item, sizeof(item));

	HOLDS(rc == -ENOENT || rc == sizeof(item));
	if (item.count < least || item.count > atomic_load(&n->w->begun[k])) {
		print_message("node %u: item %u is %" PRIu64 ", not %" PRIu64
			      " or more\n",
			n->id, k, item.count, least);
		abort();
	}
}

static void tree_work(struct node *n)
{
	for (unsigned step = 0; step < n->w->steps; step++) {
		if (pick(3))
			count_some(n);
		else
			count_look(n, pick(KEYS));
	}
}

static void tree_check(struct node *n)
{
	for (unsigned k = 0; k < KEYS; k++)
		count_look(n, k);
}

/* ---- operations -------------------------------------------------------------------------- */

struct bytes {
	uint8_t *to;
	size_t len;
};

static int take_bytes(void *arg, const struct iovec *iov, unsigned count, size_t total)
{
	struct bytes *b = (struct bytes *)arg;

	for (unsigned i = 0; i < count; i++) {
		memcpy(b->to + b->len, iov[i].iov_base, iov[i].iov_len);
		b->len += iov[i].iov_len;
	}
	return (int)total;
}

static struct ops_name name_of(char out[8], unsigned i)
{
	snprintf(out, 8, "n%u", i);
	return nm(out);
}

static void check_data(struct node *n, const struct thing *t)
{
	uint8_t *buf = rt_alloc(FILE_MAX + PAGE_SIZE);
	struct bytes b = {.to = buf};
	struct ops_file *f;
	struct ops_attr a;
	int rc;

	OK(ops_open(n->fs, t->ino, &root_user, O_RDONLY, &f, &a));
	EQ(a.inode.size, t->size);
	do {
		rc = ops_read(n->fs, f, b.len, FILE_MAX + 1 - b.len, take_bytes, &b);
		HOLDS(rc >= 0);
	} while (rc > 0 && b.len <= FILE_MAX);
	ops_close(n->fs, f);
	EQ(b.len, t->size);
	for (uint32_t i = 0; i < t->size; i++)
		if (buf[i] != t->data[i]) {
			print_message("node %u: inode %" PRIu64
				      ", byte %u of %u: %u, not %u\n",
				n->id, t->ino, i, t->size, buf[i], t->data[i]);
			abort();
		}
	rt_free(buf);
}

static void check_thing(struct node *n, const struct place_model *p, unsigned i)
{
	const struct thing *t = &p->thing[i];
	struct ops_attr a;
	char text[8];
	int rc = ops_lookup(n->fs, p->dir, name_of(text, i), &a);

	EQ(rc, t->ino ? 0 : -ENOENT);
	if (!t->ino)
		return;
	EQ(a.ino, t->ino);
	EQ(S_ISDIR(a.inode.mode), t->directory);
	EQ(a.inode.nlink, t->directory ? 2 : 1);
	if (!t->directory)
		check_data(n, t);
}

struct listing {
	const struct place_model *p;
	unsigned count;
};

static int list_one(void *arg, const struct ops_dirent *entry)
{
	struct listing *l = (struct listing *)arg;
	unsigned i;

	if (entry->name[0] == '.')
		return 0;
	HOLDS(sscanf(entry->name, "n%u", &i) == 1 && i < NAMES);
	EQ(entry->ino, l->p->thing[i].ino);
	l->count++;
	return 0;
}

static void check_listing(struct node *n, const struct place_model *p)
{
	struct listing l = {.p = p};
	unsigned want = 0;

	for (unsigned i = 0; i < NAMES; i++)
		want += p->thing[i].ino != 0;
	OK(ops_readdir(n->fs, p->dir, 0, 0, list_one, &l));
	EQ(l.count, want);
}

static void forget(struct thing *t)
{
	free(t->data);
	*t = (struct thing){0};
}

static void make_file(struct node *n, struct place_model *p, unsigned i)
{
	struct thing *t = &p->thing[i];
	struct ops_file *f;
	struct ops_attr a;
	char text[8];
	int rc = ops_create(n->fs, p->dir, name_of(text, i), &root_user, 0644,
		O_RDWR | O_EXCL, &f, &a);

	EQ(rc, t->ino ? -EEXIST : 0);
	if (rc)
		return;
	ops_close(n->fs, f);
	*t = (struct thing){.ino = a.ino, .data = (uint8_t *)calloc(1, FILE_MAX)};
}

static void make_dir(struct node *n, struct place_model *p, unsigned i)
{
	struct thing *t = &p->thing[i];
	struct ops_attr a;
	char text[8];
	int rc = ops_mkdir(n->fs, p->dir, name_of(text, i), &root_user, 0755, &a);

	EQ(rc, t->ino ? -EEXIST : 0);
	if (!rc)
		*t = (struct thing){.ino = a.ino, .directory = true};
}

static void write_some(struct node *n, struct thing *t)
{
	uint32_t at = pick(FILE_MAX - 1), len = 1 + pick(FILE_MAX - at);
	uint8_t seed = (uint8_t)rt_random();
	struct ops_file *f;
	struct ops_attr a;

	if (pick(2))
		len = MIN(len, 500u);
	OK(ops_open(n->fs, t->ino, &root_user, O_RDWR, &f, &a));
	for (uint32_t i = 0; i < len; i++)
		t->data[at + i] = (uint8_t)(seed + i * 7 + i / 251);
	EQ(ops_write(n->fs, f, &root_user, at, t->data + at, len, false), len);
	t->size = MAX(t->size, at + len);
	if (pick(4) == 0)
		OK(ops_fsync(n->fs, t->ino, pick(2)));
	ops_close(n->fs, f);
}

static void cut(struct node *n, struct thing *t)
{
	struct ops_setattr set = {.set = OPS_SET_SIZE, .size = pick(FILE_MAX)};
	struct ops_attr a;

	OK(ops_setattr(n->fs, t->ino, &root_user, &set, &a));
	EQ(a.inode.size, set.size);
	if (set.size < t->size)
		memset(t->data + set.size, 0, t->size - set.size);
	t->size = (uint32_t)set.size;
}

static void take_away(struct node *n, struct place_model *p, unsigned i)
{
	struct thing *t = &p->thing[i];
	char text[8];

	if (t->directory)
		OK(ops_rmdir(n->fs, p->dir, name_of(text, i)));
	else
		EQ(ops_unlink(n->fs, p->dir, name_of(text, i)), t->ino ? 0 : -ENOENT);
	forget(t);
}

static void move(struct node *n, struct place_model *p, unsigned i, struct place_model *q,
	unsigned k)
{
	struct thing *from = &p->thing[i], *to = &q->thing[k];
	char a[8], b[8];
	int want = 0;

	if (!from->ino)
		want = -ENOENT;
	else if (to->ino && from != to && from->directory != to->directory)
		want = to->directory ? -EISDIR : -ENOTDIR;
	EQ(ops_rename(n->fs, p->dir, name_of(a, i), q->dir, name_of(b, k), 0), want);
	if (want || from == to)
		return;
	forget(to);
	*to = *from;
	*from = (struct thing){0};
}

static void step(struct node *n, struct place_model *p, struct place_model *q)
{
	unsigned i = pick(NAMES);
	struct thing *t = &p->thing[i];

	switch (pick(10)) {
	case 0 ... 1:
		make_file(n, p, i);
		break;
	case 2:
		make_dir(n, p, i);
		break;
	case 3:
		take_away(n, p, i);
		break;
	case 4:
		move(n, p, i, q, pick(NAMES));
		break;
	case 5:
		check_listing(n, p);
		break;
	case 6:
		if (t->ino && !t->directory)
			cut(n, t);
		break;
	case 7 ... 8:
		if (t->ino && !t->directory)
			write_some(n, t);
		break;
	default:
		check_thing(n, p, i);
	}
}

static void own_main(void *arg)
{
	struct node *n = (struct node *)arg;

	for (unsigned i = 0; i < n->w->steps; i++)
		step(n, &n->own, &n->own);
}

static void shared_main(void *arg)
{
	struct node *n = (struct node *)arg;
	struct world *w = n->w;

	for (unsigned i = 0; i < w->steps; i++) {
		rt_mutex_lock(&w->turn);
		step(n, &w->shared[pick(SHARED)], &w->shared[pick(SHARED)]);
		rt_mutex_unlock(&w->turn);
		rt_sleep_ns(pick(100000));
	}
}

static void ops_work(struct node *n)
{
	struct rt_task *task[2];
	char text[16];

	if (n->id == 1)
		for (unsigned i = 0; i < SHARED; i++) {
			snprintf(text, sizeof(text), "shared%u", i);
			n->w->shared[i].dir = mk_dir(n->fs, DISK_INO_ROOT, text);
		}
	snprintf(text, sizeof(text), "own%u", n->id);
	n->own.dir = mk_dir(n->fs, DISK_INO_ROOT, text);
	barrier(n);
	OK(rt_task_spawn(&task[0], "own", own_main, n));
	OK(rt_task_spawn(&task[1], "shared", shared_main, n));
	rt_task_join(task[0]);
	rt_task_join(task[1]);
}

static void check_place(struct node *n, const struct place_model *p)
{
	check_listing(n, p);
	for (unsigned i = 0; i < NAMES; i++)
		check_thing(n, p, i);
}

static void ops_check(struct node *n)
{
	for (unsigned i = 0; i < SHARED; i++)
		check_place(n, &n->w->shared[i]);
	for (unsigned i = 0; i < n->w->nodes; i++)
		check_place(n, &n->w->node[i].own);
}

/* ---- the runner -------------------------------------------------------------------------- */

static uint64_t setting(const char *name, uint64_t otherwise)
{
	const char *text = getenv(name);

	return text && *text ? strtoull(text, NULL, 0) : otherwise;
}

static void place_clear(struct place_model *p)
{
	for (unsigned i = 0; i < NAMES; i++)
		forget(&p->thing[i]);
}

static void run_seeds(unsigned nodes, unsigned steps, void (*work)(struct node *),
	void (*check)(struct node *))
{
	struct world *w = (struct world *)calloc(1, sizeof(*w));
	uint64_t one = setting("WEFT_SIM_SEED", 0);
	uint64_t seeds = one ? 1 : setting("WEFT_SIM_SEEDS", SEEDS);
	struct rt_sim_options o = {.time_limit_ns = 600ull * 1000000000};

	assert_non_null(w);
	sum_sent = sum_restarts = 0;
	for (uint64_t seed = one ? one : 1; seeds--; seed++) {
		memset(w, 0, sizeof(*w));
		w->nodes = nodes;
		w->steps = steps * (unsigned)setting("WEFT_SIM_LONGER", 1);
		w->work = work;
		w->check = check;
		assert_int_equal(rt_sim_run(seed, &o, run_world, w), 0);
		for (unsigned i = 0; i < SHARED; i++)
			place_clear(&w->shared[i]);
		for (unsigned i = 0; i < nodes; i++)
			place_clear(&w->node[i].own);
	}
	print_message(
		"%" PRIu64 " messages, %" PRIu64 " restarts\n", sum_sent, sum_restarts);
	assert_true(sum_sent > 0);
	free(w);
}

static void two_nodes_change_a_tree(void **state)
{
	run_seeds(2, 300, tree_work, tree_check);
}

static void three_nodes_change_a_tree(void **state)
{
	run_seeds(3, 200, tree_work, tree_check);
}

static void two_nodes_have_a_filesystem(void **state)
{
	run_seeds(2, 120, ops_work, ops_check);
}

static void three_nodes_have_a_filesystem(void **state)
{
	run_seeds(3, 80, ops_work, ops_check);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(two_nodes_change_a_tree),
		cmocka_unit_test(three_nodes_change_a_tree),
		cmocka_unit_test(two_nodes_have_a_filesystem),
		cmocka_unit_test(three_nodes_have_a_filesystem),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
