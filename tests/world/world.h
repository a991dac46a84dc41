/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The world of tests of several nodes: nodes that share a volume, each with its store, a network
 * endpoint and the page driver. They are simulated, or run on a real machine.
 *
 * network.c joins a node to the others. Simulated: world.c opens, settles and closes the nodes;
 * disks.c makes and checks their stores; weather.c breaks the links between them; check.c has the
 * invariants of pages; kernel.c is a model of a kernel. Real: real.c. A test defines what nodes do
 * to the volume.
 */
#ifndef WEFT_TESTS_WORLD_WORLD_H
#define WEFT_TESTS_WORLD_WORLD_H

#include "engine/coherence/coherence.h"
#include "engine/net/calls.h"
#include "engine/volume/volume.h"
#include "fs/ops/ops.h"
#include "tests/sim/seeds.h"
#include "tests/world/check.h"
#include "tests/world/test_file.h"

#define NODES_MAX     SIM_NODES_MAX
#define WORLD_EPOCH   7
#define DISK_BYTES    (64ull << 20) /* of a store */
#define LEARNED_BYTES (64ull << 10) /* places of leaves */
#define WORLD_SECONDS 300 /* on a real machine: if a run takes longer, it hangs */

extern const uint8_t world_uuid[16]; /* the volume's: 11111111-1111-4111-9111-111111111111 */

/* What the nodes have. */
enum world_depth {
	WORLD_OPERATIONS, /* the volume with its operations */
	WORLD_PAGES,      /* the cache of pages alone, on an empty store */
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
	struct coherence *coherence;      /* NULL while it is closed */
	const struct coherence_ops *real; /* those that `deaf` stands before */
	struct coherence_ops deaf;        /* its `kernel_invalidated` loses calls */
	struct volume *v;
	struct fs *fs;
	char disk[16];
	char address[NET_ADDRESS_BYTES]; /* once it listens */
	struct rt_sim_disk *sim_disk;
	/* on a real machine: */
	struct test_file file;
	struct rt_task *task;
	void *engine;         /* the test's */
	_Atomic uint32_t ups; /* links that have come up */
	/* the test's, with WORLD_PAGES: */
	unsigned life, reached; /* times that it has lost its power; barriers */
	bool up;                /* its cache can be inspected */
};

/* What a test leaves 0 has the value named here, or is off. */
struct world {
	const char *transport; /* on a real machine; NULL: the nodes are simulated */
	char folder[128];      /* of a real machine's sockets */
	enum world_depth depth;
	unsigned nodes, steps;
	unsigned clients;      /* the last so many; their logs are on disks of their own */
	unsigned frames;       /* of a node's cache */
	uint64_t disk_bytes;   /* of a store: DISK_BYTES */
	uint64_t log_bytes;    /* of a log */
	uint64_t dirty_age_ms; /* 40 */
	uint64_t
		stall_ns; /* a link that is silent for so long is lost: as in the product */
	unsigned look_every; /* check.c looks at the page of one in so many messages: 1 */
	bool unlearned;      /* no places of leaves are noted */
	bool idle;           /* no page is persisted because of its age */
	bool slow_disks;     /* slower than lost links are connected again */
	bool others_away;    /* a node opens without waiting for its links */
	bool hostile; /* node 2 is a program of the test that breaks the protocol */
	bool caller_forgets; /* as in struct ops_options */
	enum ops_mmap mmap;  /* likewise */
	void (*work)(struct node *n);
	void (*check)(struct node *n);
	void (*parts)(struct node *
			n); /* before a node stops; NULL: all that are up stop together */
	void (*dump)(
		struct node *n); /* what an abort prints of a node; NULL: its directory */
	/* The test's own handler. Returns true if it has taken the message. */
	bool (*takes)(struct node *n, struct net_peer *peer, const struct net_message *m);
	/* After the driver has handled a message; NULL: nothing. */
	void (*handled)(struct node *n, const struct net_message *m);
	bool no_files;   /* `work` puts items into the tree that fsck does not know */
	uint64_t cut_ns; /* all nodes lose their power at this time */
	bool deaf;       /* most calls of `kernel_invalidated` are lost */
	bool cut_redone; /* set by world_run: logs had to be redone */
	struct node node[NODES_MAX];
	_Atomic uint32_t arrived; /* at barriers, in all */
	struct rt_mutex turn;     /* the test's */
};

/* Over all seeds: messages, transactions that started over, `kernel_invalidated` that were lost. */
extern uint64_t sum_sent, sum_restarts, sum_unheard;
/* A command that an abort prints, if it is not empty. */
extern char repeat_by[200];

/* Returns the number of nodes with a store: they are the first. */
unsigned world_stores(const struct world *w);
/* Returns true if the node has no store. */
bool world_client(const struct node *n);
/* Returns the node's shard. A client's has no page. */
uint16_t world_shard(const struct node *n);

/* Returns a number below n, by the seed. */
unsigned pick(unsigned n);
/* Waits until all nodes are here. Each node must come to as many barriers as the others. */
void barrier(struct node *n);

/* ---- runs ------------------------ */

/*
 * Runs a world that world_format has made: opens the nodes, calls `work`, then `check`, closes the
 * nodes, opens them again and calls `check` again. With `cut_ns` all nodes lose their
 * power, and their logs are redone. Checks the stores at the end.
 */
int world_run(struct world *w);
/* Makes the nodes and their stores, and watches for aborts: an abort dumps the nodes' pages. */
void world_format(struct world *w);
/* Watches the nodes again, after world_stopped. */
void world_watch(struct world *w);
/* No node runs any more. */
void world_stopped(void);
/* The run is over: aborts are the simulator's again. */
void world_over(void);

/* Starts a simulated node for each node, which runs fn(node). */
void nodes_run(struct world *w, void (*fn)(void *node));
/* Waits until all of them have ended. `killed`: they may end without success. */
void nodes_await(const struct world *w, bool killed);

/* ---- a node ------------------------ */

/* Opens the volume together with all other nodes. */
void node_begin(struct node *n);
/* Closes it together with all other nodes, once no page is dirty and the directories are right. */
void node_end(struct node *n);
/* The same for a node that may lose its power and come back: it waits for the other nodes' links,
 * and only nodes that are up close together. */
void crash_open(struct node *n);
void crash_close(struct node *n);
/* Persists all dirty pages of all nodes at their homes. All nodes must call it. */
void world_settle(struct node *n);

/* ---- a node among the others (network.c) ------------------------ */

/* Ends the test if `rc` is not 0; prints `what` and the text of the error. */
void world_ok(int rc, const char *what, const char *text);
/* What the node's endpoint is opened with; a hostile node has handlers of its own. */
struct net_options world_net_options(struct node *n, uint64_t incarnation);
/* Opens the node's endpoint. Returns the options for its page driver. */
struct coherence_options node_network(
	struct node *n, struct store *store, struct log *log, uint64_t incarnation);
/* Starts n->coherence and links the node with all others, unless they are away. Waits. */
void node_join(struct node *n);
/* Returns the number of messages that its page driver has sent. */
uint64_t node_sent(const struct node *n);

/* ---- on a real machine (real.c) ------------------------ */

/* Makes the nodes and their stores, in `folder`; NULL: in WEFT_TMP, or /tmp. */
void world_make_real(struct world *w, const char *transport, unsigned nodes,
	const char *folder, uint64_t disk_bytes);
void world_drop_real(struct world *w);
/* Runs `run` for each node, in a task of its own, and waits for all. */
void world_run_real(struct world *w, void (*run)(void *node));
/* node_network, and the page driver on it: once store and log are open. */
struct coherence *node_provide(struct node *n, struct store *store, struct log *log);
/* All nodes leave together. The test closes the page driver with its cache. */
void node_part_all(struct node *n);

/* ---- disks ------------------------ */

/* Makes the node's simulated disk, with an empty store. */
void disk_format(struct node *n);
/* Checks each store alone, and all together. Returns true if logs had to be redone. */
bool stores_check(const struct world *w);
/* Redoes all logs, with power cuts in between, and checks that nothing is damaged. */
void stores_recover(const struct world *w);

#endif
