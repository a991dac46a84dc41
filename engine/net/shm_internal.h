/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Structures and functions that the files of the shm transport share: the segments
 * (docs/transports.md, "shm"), and a node's state of a link.
 *
 * Locks, in order: event_lock of a link, then send_lock of any link, then kick_lock of any. The
 * other end may write anything into the segments: their words are read once and checked (invariant
 * 9).
 */
#ifndef WEFT_NET_SHM_INTERNAL_H
#define WEFT_NET_SHM_INTERNAL_H

#include "engine/net/connect.h"
#include "engine/rt/rt_shared.h"

#define SHM_VERSION 2u
#define SHM_SLOTS   WIRE_WINDOW
#define SHM_NODE    "WEFTSHMN"
#define SHM_LINK    "WEFTSHML"

/* One for each node, mapped by all its peers. */
struct shm_node {
	char magic[WIRE_MAGIC_BYTES];
	uint32_t version;
	uint32_t pad;
	_Alignas(64) _Atomic uint32_t bell; /* rises when it rings; a futex */
	/* Rises when the node's task goes to sleep at the bell (then odd), and when it wakes. */
	_Alignas(64) _Atomic uint64_t sleeps;
	_Alignas(64) _Atomic uint64_t beats; /* rises while the node lives */
};
_Static_assert(offsetof(struct shm_node, sleeps) == 128, "node segment layout");
_Static_assert(offsetof(struct shm_node, beats) == 192, "node segment layout");

static inline bool shm_sleeps(uint64_t sleeps)
{
	return sleeps % 2;
}

struct shm_region {
	uint64_t bytes; /* 0: no region */
	uint32_t rights;
	uint32_t pad[3];
};
_Static_assert(sizeof(struct shm_region) == 24, "region size");

/* The task that a ring must wake. */
enum shm_reader {
	SHM_TASK,   /* the node's task, if it sleeps */
	SHM_AWAKE,  /* none: a task polls it */
	SHM_ASLEEP, /* that task, at the link's bell */
};

/* One for each link and direction, made by the end that reads it. */
struct shm_link {
	char magic[WIRE_MAGIC_BYTES];
	uint32_t version;
	uint32_t slots;
	_Alignas(64) _Atomic uint32_t bell;   /* rises when it rings; a futex */
	_Alignas(64) _Atomic uint32_t reader; /* enum shm_reader */
	_Alignas(64) _Atomic uint64_t tail;   /* messages put in, by the writer */
	_Alignas(64) _Atomic uint64_t head;   /* messages taken out, by the reader */
	_Alignas(64) _Atomic uint32_t open;   /* 1: the writer may access the regions */
	_Atomic uint32_t busy;                /* accesses under way */
	_Atomic uint32_t full;                /* 1: the writer waits for room */
	_Atomic uint32_t bye;                 /* the writer's reason for ending the link: errno */
	_Alignas(64) struct shm_region regions[NET_REGIONS_MAX];
	_Alignas(4096) struct net_message messages[SHM_SLOTS];
};
_Static_assert(offsetof(struct shm_link, tail) == 192, "link segment layout");
_Static_assert(offsetof(struct shm_link, bye) == 332, "link segment layout");
_Static_assert(offsetof(struct shm_link, regions) == 384, "link segment layout");
_Static_assert(offsetof(struct shm_link, messages) == 4096, "link segment layout");

struct shm_send {
	struct net_message *queue; /* a ring of NET_QUEUE_MAX: messages that found no room */
	unsigned first;            /* line.queued of them wait */
	_Atomic bool waiting;      /* line.queued is not 0 */
	uint64_t tail;             /* of the other end's ring */
};

/* A task spins before it sleeps only while that pays. */
struct shm_spin {
	unsigned luck, tries;
};

struct shm_peer {
	struct connect_peer line;
	struct rt_socket *socket;
	/* This node's; under event_lock. */
	struct rt_shared *in_shared;
	struct shm_link *in;
	_Atomic uint64_t in_head; /* changed under event_lock */
	/* The other end's; kept while `users` is not 0. */
	struct rt_shared *out_shared, *node_shared, *region_shared[NET_REGIONS_MAX];
	struct shm_link *out;
	struct shm_node *node;
	struct net_region remote[NET_REGIONS_MAX];
	_Atomic uint32_t users; /* tasks that access remote memory without send_lock */
	struct shm_send send;
	struct shm_spin spin;  /* the leader's */
	_Atomic uint64_t rung; /* the sleep of `node` that this node has ended */
	/* Only the progress task uses these. */
	uint64_t beats_seen, head_seen;
	unsigned silent_ticks, stuck_ticks;
};

struct shm_net {
	struct connect_net lines;
	struct rt_shared *node_shared;
	struct shm_node *node;
	struct rt_shared *region_shared[NET_REGIONS_MAX];
	struct rt_task *task;  /* takes the messages of links without a leader */
	struct shm_spin spin;  /* the task's */
	_Atomic uint64_t rung; /* the sleep of the own `node` that this node has ended */
	_Atomic bool stopping;
};

static inline struct shm_net *shm_net_of(struct net *net)
{
	return container_of(net, struct shm_net, lines.base);
}

static inline struct shm_peer *shm_peer_of(struct net_peer *peer)
{
	return container_of(peer, struct shm_peer, line.base);
}

/* ---- shm.c ------------------------------------------------------------------------------ */

void shm_cut(struct net_peer *peer, int code);
void shm_cut_locked(struct connect_peer *line, int code);

/* ---- shm_send.c --------------------------------------------------------------------------- */

int shm_send(struct net_peer *peer, const struct net_message *m, unsigned flags);
int shm_post(struct net_peer *peer, struct net_op *op, unsigned flags);
/* With send_lock held; drops it. */
void shm_flush(struct connect_peer *line, unsigned flags);
/* Puts messages of the queue into the ring, as far as there is room. */
void shm_drain(struct shm_peer *peer);
/* No task sends any more, or none does yet. */
void shm_send_reset(struct shm_peer *peer);

/* ---- shm_receive.c ------------------------------------------------------------------------- */

/* Takes the messages in the ring, under event_lock. Returns true if there were any. Handlers
 * run. */
bool shm_receive(struct shm_peer *peer);
int shm_wait(struct net *net, struct net_peer *likely, _Atomic uint32_t *word,
	uint32_t expected, uint64_t deadline_ns);
/* The node's task. */
void shm_task(void *arg);
/* Wakes the node's task if it sleeps. `rung` belongs to the caller's process. */
void shm_ring_node(struct shm_node *node, _Atomic uint64_t *rung);

#endif
