/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Several nodes of one volume on the real runtime, over tcp, shm or verbs: in one process, each
 * with tasks of its own, or (benchmarks) each a process. A node's store is a file without a
 * name. What is opened above store and log is the test's: it calls node_provide once those
 * are open, node_join once the cache is, node_leave before it is closed.
 */
#ifndef WEFT_TEST_NODES_FIXTURE_H
#define WEFT_TEST_NODES_FIXTURE_H

#include <inttypes.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/coherence/cluster.h"
#include "engine/rt/rt.h"
#include "engine/rt/rt_shared.h"
#include "tests/unit/test_file.h"

#define NODES_MAX     8
#define NODES_EPOCH   7
#define NODES_SECONDS 300 /* longer, and it hangs */

struct nodes;
struct node {
	struct nodes *w;
	unsigned id; /* from 1; its shard is one less */
	struct test_file file;
	char address[NET_ADDRESS_BYTES]; /* once it listens */
	struct shards shards;
	struct net *net;
	struct coherence *coherence;
	_Atomic uint32_t ups;
	struct rt_task *task;
	void *engine; /* the test's */
};

struct nodes {
	const char *transport;
	unsigned count;
	char folder[128];
	_Atomic uint32_t arrived; /* at barriers, all in all */
	/* A test's own: true, and it has taken the message, which goes no further by itself. */
	bool (*takes)(struct node *n, struct net_peer *peer, const struct net_message *m);
	struct node node[NODES_MAX];
};

static struct nodes *nodes_running;

/* Who says nothing for so long: what everybody waits for. */
static inline void nodes_on_signal(int signal_number)
{
	/* NOLINTBEGIN(bugprone-signal-handler): the test has failed */
	for (unsigned i = 0; nodes_running && i < nodes_running->count; i++)
		if (nodes_running->node[i].coherence)
			coherence_cluster_dump(nodes_running->node[i].coherence);
	/* NOLINTEND(bugprone-signal-handler) */
	signal(SIGABRT, SIG_DFL);
	raise(SIGABRT);
}

static inline void nodes_ok(int r, const char *what, const char *text)
{
	if (!r)
		return;
	fprintf(stderr, "%s is %d %s\n", what, r, text);
	abort();
}
#define NODES_OK(expr) nodes_ok(expr, #expr, "")

/* All nodes come to it before any goes on; each comes to as many as the others. */
static inline void nodes_barrier(struct node *n)
{
	struct nodes *w = n->w;
	uint32_t seen = atomic_fetch_add(&w->arrived, 1) + 1;
	uint32_t whole = (seen + w->count - 1) / w->count * w->count;

	rt_shared_wake(&w->arrived, INT32_MAX);
	while (seen < whole) {
		rt_shared_wait(&w->arrived, seen, RT_FOREVER);
		seen = atomic_load(&w->arrived);
	}
}

static inline unsigned node_home_of(void *owner, uint16_t shard)
{
	const struct nodes *w = (const struct nodes *)owner;

	return shard < w->count ? shard + 1u : NODE_NONE;
}

static inline void node_on_message(
	void *owner, struct net_peer *peer, const struct net_message *m)
{
	struct node *n = (struct node *)owner;

	if (!n->w->takes || !n->w->takes(n, peer, m))
		coherence_cluster_message(n->coherence, peer, m);
}

static inline void node_on_event(
	void *owner, struct net_peer *peer, const struct net_event *event)
{
	struct node *n = (struct node *)owner;

	if (event->kind == NET_LINK_UP) {
		atomic_fetch_add(&n->ups, 1);
		net_wake(n->net, &n->ups, INT32_MAX);
	}
	coherence_cluster_event(n->coherence, peer, event);
}

/* Of an RDMA device, where there is one to test with (tests/rdma/run). */
static inline const char *nodes_ip(void)
{
	const char *ip = getenv("WEFT_RDMA_ADDRESS");

	return ip ? ip : "127.0.0.1";
}

static inline struct coherence *node_provide(
	struct node *n, struct store *store, struct log *log)
{
	struct net_options no = {
		.transport = n->w->transport,
		.self = {.incarnation = 1,
			.node = (uint16_t)n->id,
			.role = NET_ROLE_STORAGE},
		.listen = n->address,
		.handlers = {n, node_on_message, node_on_event},
	};
	struct coherence_cluster_options co = {
		.self = (uint8_t)n->id,
		.shard = n->id - 1,
		.home = node_home_of,
		.owner = n->w,
		.store = store,
		.log = log,
		.cluster_epoch = NODES_EPOCH,
		.shards = &n->shards,
	};
	struct weft_error err = {0};

	if (!strcmp(no.transport, "shm"))
		snprintf(n->address, sizeof(n->address), "%s/%u", n->w->folder, n->id);
	else
		snprintf(n->address, sizeof(n->address), "%s:0", nodes_ip());
	memset(no.self.volume_uuid, 0x11, NET_UUID_BYTES);
	memset(no.self.cluster_uuid, 0x22, NET_UUID_BYTES);
	memset(no.self.node_uuid, 0x30 + (int)n->id, NET_UUID_BYTES);
	atomic_store(&n->ups, 0);
	nodes_ok(net_open(&n->net, &no, &err), "net_open", err.text);
	co.net = n->net;
	for (unsigned i = 0; i < n->w->count; i++) /* how large: not known yet */
		NODES_OK(shards_set(&n->shards, (uint16_t)i, 0));
	NODES_OK(coherence_cluster_open(&n->coherence, &co));
	return n->coherence;
}

static inline void node_peer_add(struct node *n, const struct node *other)
{
	struct net_peer_options po = {.node = (uint16_t)other->id};
	struct weft_error err = {0};
	struct net_peer *peer;

	if (other->id < n->id) /* the one with the higher id connects */
		po.address = other->address;
	nodes_ok(net_peer_add(&peer, n->net, &po, &err), "net_peer_add", err.text);
}

/* All nodes are linked when it returns. */
static inline void node_join(struct node *n)
{
	struct weft_error err = {0};
	uint32_t ups;

	NODES_OK(coherence_cluster_start(n->coherence));
	for (unsigned i = n->id; i < n->w->count; i++)
		node_peer_add(n, &n->w->node[i]);
	nodes_ok(net_start(n->net, &err), "net_start", err.text);
	net_address(n->net, n->address);
	nodes_barrier(n);
	for (unsigned i = 0; i + 1 < n->id; i++)
		node_peer_add(n, &n->w->node[i]);
	while ((ups = atomic_load(&n->ups)) < n->w->count - 1)
		net_wait(n->net, NULL, &n->ups, ups, RT_FOREVER);
	nodes_barrier(n);
}

/* Nobody leaves before all are ready to. The provider is closed by who has the cache. */
static inline void node_leave(struct node *n)
{
	nodes_barrier(n);
	coherence_cluster_stop(n->coherence);
	nodes_barrier(n);
	net_close(n->net);
	n->coherence = NULL;
	n->net = NULL;
}

static inline uint64_t node_sent(const struct node *n)
{
	const struct coherence_cluster_counters *c =
		coherence_cluster_counters(n->coherence);
	uint64_t sum = 0;

	for (unsigned type = 0; type < ARRAY_SIZE(c->sent); type++)
		sum += c->sent[type];
	return sum;
}

static inline void nodes_make(struct nodes *w, const char *transport, unsigned count,
	const char *folder, uint64_t disk_bytes)
{
	const char *tmp = folder ? folder : getenv("WEFT_TMP");

	memset(w, 0, sizeof(*w));
	w->transport = transport;
	w->count = count;
	snprintf(
		w->folder, sizeof(w->folder), "%s/weft-nodes-XXXXXX", tmp ? tmp : "/tmp");
	if (!mkdtemp(w->folder)) {
		perror(w->folder);
		abort();
	}
	for (unsigned i = 0; i < count; i++) {
		w->node[i].w = w;
		w->node[i].id = i + 1;
		test_file_make(&w->node[i].file, folder, disk_bytes);
	}
}

static inline void nodes_drop(struct nodes *w)
{
	for (unsigned i = 0; i < w->count; i++)
		test_file_drop(&w->node[i].file);
	rmdir(w->folder); /* each socket has been taken away by who made it */
}

/* Runs `run` for each node, in a task of its own, and waits for all. */
static inline void nodes_run(struct nodes *w, void (*run)(void *node))
{
	nodes_running = w;
	signal(SIGABRT, nodes_on_signal);
	signal(SIGALRM, nodes_on_signal);
	alarm(NODES_SECONDS * (getenv("WEFT_LONGER") ? 4 : 1));
	for (unsigned i = 0; i < w->count; i++)
		NODES_OK(rt_task_spawn(&w->node[i].task, "node", run, &w->node[i]));
	for (unsigned i = 0; i < w->count; i++)
		rt_task_join(w->node[i].task);
	alarm(0);
	nodes_running = NULL;
}

#endif
