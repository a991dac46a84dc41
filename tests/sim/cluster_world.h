/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For cluster_test: some simulated nodes that have the same volume, each with its store,
 * the driver of the page protocol and the network; opened, settled and closed together.
 * And what a test expects to be in the volume, which all nodes of the simulation see.
 */
#ifndef WEFT_TEST_CLUSTER_WORLD_H
#define WEFT_TEST_CLUSTER_WORLD_H

#include <inttypes.h>
#include <signal.h>

#include "engine/coherence/cluster.h"
#include "tests/sim/check_fsck.h"
#include "tests/sim/look.h"
#include "tests/unit/ops_fixture.h"

#define NODES_MAX  SIM_NODES_MAX
#define DISK_BYTES (64ull << 20)
#ifndef LOG_BYTES
#define LOG_BYTES (4ull << 20)
#endif
#ifndef FRAMES
#define FRAMES 160
#endif
#ifndef LOOK_EVERY
#define LOOK_EVERY 1 /* of so many messages the page of one is looked at */
#endif
#define SEEDS    20
#define EPOCH    7
#define KEYS     400
#define SHARED   3  /* directories of all */
#define NAMES    10 /* in each */
#define MOVING   5  /* directories in each other */
#define FILE_MAX 40000u

/* ---- what files and directories should be ------------------------------------------------ */

struct thing {
	uint64_t ino; /* 0: there is none of this name */
	bool directory;
	uint32_t size;
	uint8_t *data;
	struct disk_inode left; /* as whoever changed it last has seen it */
};

/* Names from `first` on of a directory. */
struct place_model {
	uint64_t dir;
	unsigned first;
	struct thing thing[NAMES];
};

struct world;
struct node {
	struct world *w;
	unsigned id; /* from 1; its shard is one less */
	unsigned sim;
	struct net *net;
	struct net_calls *calls;
	struct shards shards;
	struct volume_peers peers;
	struct coherence *coherence;
	const struct coherence_ops *real; /* of `deaf`, which has an `eased` of its own */
	struct coherence_ops deaf;
	struct volume *v;
	struct fs *fs;
	char disk[16];
	struct rt_sim_disk *sim_disk;
	_Atomic uint32_t ups;
	struct place_model own, common;
	uint64_t appended_bytes; /* to w->appended, of large records */
};

struct world {
	unsigned nodes, steps;
	bool caller_forgets;   /* as in struct ops_options; this, too: */
	enum ops_mmap mmap;
	uint64_t dirty_age_ms; /* 0: 40 */
	uint64_t disk_bytes;   /* 0: DISK_BYTES */
	uint64_t log_bytes;    /* 0: LOG_BYTES */
	uint64_t stall_ns; /* a link that is silent so long is lost; 0: as everywhere */
	void (*work)(struct node *n);
	void (*check)(struct node *n);
	bool no_files;   /* it puts other things into the tree than fsck knows */
	uint64_t cut_ns; /* then all lose their power at once; 0: they do not */
	bool deaf;       /* most `eased` are lost on their way */
	bool cut_redone; /* of what was on disk then logs had to be redone */
	uint8_t uuid[16];
	struct node node[NODES_MAX];
	_Atomic uint32_t arrived; /* at a barrier, all in all */
	struct rt_mutex turn;
	struct place_model shared[SHARED];
	uint64_t common, appended, striped; /* inodes: a directory, files of all */
	uint64_t moving[MOVING];            /* directories that change places */
	_Atomic uint64_t begun[KEYS], committed[KEYS];
};

/* Over all seeds: that there was something to do with the others. */
static uint64_t sum_sent, sum_restarts, sum_unheard;
static struct world *running;
static char repeat_by[200]; /* a command; none is said if it is empty */
static void (*abort_before)(int);

static void on_abort(int signal_number)
{
	for (unsigned i = 0; running && i < running->nodes; i++)
		if (running->node[i].coherence)
			/* NOLINTNEXTLINE(bugprone-signal-handler): a task has aborted */
			coherence_cluster_dump(running->node[i].coherence);
	if (*repeat_by) /* NOLINTNEXTLINE(bugprone-signal-handler) */
		fprintf(stderr, "repeat: %s\n", repeat_by);
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
	bool called;

	rt_holds(n, rt_never); /* others are behind it: it does not wait */
	called = net_calls_message(n->calls, peer, m);
	if (!called)
		coherence_cluster_message(n->coherence, peer, m);
	rt_lets_go(n);
	if (called)
		return;
	/* of honest nodes none is cut off: it would heal, and hide that */
	HOLDS(!n->coherence || !coherence_cluster_counters(n->coherence)->impossible);
	look_message(m);
}

static void on_event(void *owner, struct net_peer *peer, const struct net_event *event)
{
	struct node *n = (struct node *)owner;

	if (event->kind == NET_LINK_UP) {
		atomic_fetch_add(&n->ups, 1);
		net_wake(n->net, &n->ups, INT32_MAX);
	}
	coherence_cluster_event(n->coherence, peer, event);
	net_calls_event(n->calls, peer, event);
}

static void address_of(char out[32], unsigned id)
{
	snprintf(out, 32, "node%u:7000", id);
}

static void eased_seldom(struct coherence *c, page_id pid)
{
	for (unsigned i = 0; i < running->nodes; i++)
		if (running->node[i].coherence == c && pick(4) == 0)
			running->node[i].real->eased(c, pid);
}

static int node_provide(
	void *arg, struct volume *v, struct coherence **out, struct weft_error *err)
{
	struct node *n = (struct node *)arg;
	char address[32];
	struct net_options no = {
		.transport = "sim",
		.self = {.incarnation = store_superblock(v->store)->incarnation,
			.node = (uint16_t)n->id,
			.role = NET_ROLE_STORAGE},
		.listen = address,
		.handlers = {n, on_message, on_event},
		.stall_ns = n->w->stall_ns,
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
	OK(net_calls_open(&n->calls, n->net));
	v->calls = n->calls;
	for (unsigned id = 1; id <= n->w->nodes; id++)
		v->nodes |= 1ull << id;
	co.net = n->net;
	OK(coherence_cluster_open(&n->coherence, &co));
	if (n->w->deaf) {
		n->real = n->coherence->ops;
		n->deaf = *n->real;
		n->deaf.eased = eased_seldom;
		n->coherence->ops = &n->deaf;
	}
	*out = n->coherence;
	return 0;
}

static int node_join(void *arg, struct volume *v, struct weft_error *err)
{
	struct node *n = (struct node *)arg;
	char address[32];
	uint32_t ups;

	look_up(n->id, n->coherence);
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
	sum_unheard += c->eased_unheard;
	HOLDS(n->w->deaf || !c->eased_unheard);
}

/* Nobody leaves before all are ready to. */
static void node_leave(void *arg, struct volume *v)
{
	struct node *n = (struct node *)arg;

	barrier(n);
	look_down(n->id);
	net_calls_stop(n->calls);
	coherence_cluster_stop(n->coherence);
	net_close(n->net);
	net_calls_close(n->calls);
	n->coherence = NULL; /* the volume closes it */
}

/* What is dirty anywhere is persisted at its home, and told to who owes it. */
static void node_settle(struct node *n)
{
	for (unsigned round = 0; round < 3; round++) {
		OK(volume_sync(n->v));
		barrier(n);
	}
	if (n->id == 1)
		look_directory(n->w->nodes);
	barrier(n);
}

/* The same once all are being closed: to join the range of inode numbers changes pages of others, too. */
static int node_settle_closed(void *arg, struct volume *v)
{
	struct node *n = (struct node *)arg;

	barrier(n);
	node_settle(n);
	return 0;
}

static void node_open(struct node *n)
{
	struct volume_options vo = {
		.background = true,
		.cache = {.cache_bytes = FRAMES * PAGE_SIZE,
			.dirty_age_ms = n->w->dirty_age_ms ? n->w->dirty_age_ms : 40},
		.node = (uint16_t)n->id,
		.shard = (uint16_t)(n->id - 1),
		.peers = &n->peers,
	};
	struct ops_options oo = {.atime = OPS_RELATIME,
		.caller_forgets = n->w->caller_forgets,
		.mmap = n->w->mmap};
	struct weft_error err = {0};
	struct rt_disk *disk;

	atomic_store(&n->ups, 0);
	n->peers = (struct volume_peers){.open = node_provide,
		.start = node_join,
		.stop = node_leave,
		.settle = node_settle_closed,
		.arg = n};
	for (unsigned i = 0; i < n->w->nodes; i++) /* how large: not known yet */
		OK(shards_set(&n->shards, (uint16_t)i, 0));
	OK(rt_disk_open(&disk, n->disk, 0, &err));
	if (volume_open(&n->v, disk, &vo, &err) || fs_open(&n->fs, n->v, &oo, &err)) {
		print_message("node %u: %s\n", n->id, err.text);
		abort();
	}
	barrier(n);
}

static void node_close(struct node *n)
{
	fs_close(n->fs);
	barrier(n);
	node_settle(n);
	node_counts(n);
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
		.log_bytes = n->w->log_bytes ? n->w->log_bytes : LOG_BYTES,
		.node = (uint16_t)n->id,
		.shard = (uint16_t)(n->id - 1)};
	struct weft_error err = {0};
	struct rt_disk *disk;

	memcpy(format.volume_uuid, n->w->uuid, sizeof(format.volume_uuid));
	n->sim_disk = rt_sim_disk_create(
		n->disk, n->w->disk_bytes ? n->w->disk_bytes : DISK_BYTES, NULL);
	OK(rt_disk_open(&disk, n->disk, 0, &err));
	OK(volume_format(disk, &format, 0, 0, &err));
	rt_disk_close(disk);
}

/*
 * Each store alone, and all of them together, of nodes that have ended in whatever way. True:
 * logs had to be redone.
 */
static inline bool stores_check(const struct world *w)
{
	const char *names[NODES_MAX];

	for (unsigned i = 0; i < w->nodes; i++) {
		names[w->nodes - 1 - i] = w->node[i].disk;
		if (w->nodes > 1)
			sim_check_store_alone(w->node[i].disk);
	}
	return sim_check_stores(names, w->nodes);
}

/* What all logs have is written, though the power goes again, and nothing is damaged. */
static inline void stores_recover(const struct world *w)
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

static inline void look_main(void *arg)
{
	struct node *n = (struct node *)arg;

	node_open(n);
	node_close(n);
}

static inline void nodes_run(struct world *w, void (*fn)(void *))
{
	for (unsigned i = 0; i < w->nodes; i++) {
		struct node *n = &w->node[i];

		n->sim = rt_sim_node_new(n->disk);
		OK(rt_sim_spawn_on(n->sim, "node", fn, n));
	}
}

static inline void nodes_await(const struct world *w, bool killed)
{
	for (unsigned i = 0; i < w->nodes; i++)
		HOLDS(!rt_sim_node_wait(w->node[i].sim) || killed);
}

/* Its nodes and their stores, and what an abort says of them. */
static inline void world_format(struct world *w)
{
	running = w;
	look_begin(LOOK_EVERY);
	abort_before = signal(SIGABRT, on_abort);
	memset(w->uuid, 0x11, sizeof(w->uuid));
	for (unsigned i = 0; i < w->nodes; i++) {
		struct node *n = &w->node[i];

		n->w = w;
		n->id = i + 1;
		snprintf(n->disk, sizeof(n->disk), "disk%u", n->id);
		node_format(n);
	}
}

static inline int run_world(void *arg)
{
	struct world *w = (struct world *)arg;

	world_format(w);
	nodes_run(w, node_main);
	if (w->cut_ns) {
		rt_sleep_ns(w->cut_ns);
		for (unsigned i = 0; i < w->nodes; i++)
			rt_sim_node_kill(w->node[i].sim);
	}
	nodes_await(w, w->cut_ns);
	running = NULL;
	if (!w->no_files)
		w->cut_redone = stores_check(w);
	if (w->cut_redone) {
		stores_recover(w);
		atomic_store(&w->arrived, 0);
		nodes_run(w, look_main);
		nodes_await(w, false);
		HOLDS(!stores_check(w));
	}
	HOLDS(!w->cut_redone || w->cut_ns);
	signal(SIGABRT, abort_before);
	return 0;
}

/* ---- what reads return ------------------------------------------------------------------------ */

struct bytes {
	uint8_t *to;
	size_t len;
};

static inline int take_bytes(
	void *arg, const struct iovec *iov, unsigned count, size_t total)
{
	struct bytes *b = (struct bytes *)arg;

	for (unsigned i = 0; i < count; i++) {
		memcpy(b->to + b->len, iov[i].iov_base, iov[i].iov_len);
		b->len += iov[i].iov_len;
	}
	return (int)total;
}

#endif
