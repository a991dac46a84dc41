/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The simulated runtime: a whole cluster in one thread, from a seed.
 *
 * rt_sim_run executes a function as the first task of a deterministic world: tasks are
 * cooperative, time is virtual and jumps to the next deadline when nothing can run, and
 * every choice (who runs, how long a request takes, what a power cut leaves of a write)
 * comes from the seed. The same seed and the same code give the same run.
 *
 * Tasks, memory and open disks belong to a node; node 0 is the harness, which creates
 * disks and nodes, cuts the power of nodes and looks at what is left. Disks outlive
 * nodes, within the run. Only tasks of a run may call the functions below rt_sim_run.
 */
#ifndef WEFT_RT_SIM_H
#define WEFT_RT_SIM_H

#include "engine/rt/rt.h"

struct rt_sim_options {
	unsigned switch_one_in; /* a scheduling point switches once in so many; 0: 16 */
	uint64_t time_limit_ns; /* virtual; past it the run aborts as stuck; 0: one day */
	uint64_t step_limit; /* task switches; past it the run aborts as stuck; 0: 2^32 */
};

/*
 * Runs fn(arg) as the first task, on node 0. When it returns, all other tasks, nodes,
 * memory and disks are gone. Returns what fn returned. `options` may be NULL. When the
 * process aborts inside, the seed is printed. Not to be nested.
 */
int rt_sim_run(uint64_t seed, const struct rt_sim_options *options, int (*fn)(void *),
	void *arg);

/* A number that sums up every choice made so far; equal runs have equal ones. */
uint64_t rt_sim_trace(void);

/*
 * While it is on the calling task looks at the world as it is at one moment: nobody else runs,
 * so nobody loses power, and no choice is taken. What would have to wait aborts: locks that
 * others may have are tried first.
 */
void rt_sim_look(bool on);

/*
 * From now on a task of this run that waits, for a message, a disk, time or another task, must hold
 * nothing that may be needed meanwhile (rt_holds), and no lock that one waits for who holds
 * such: else the run aborts, and says who waits and where (invariant 6). Before anything is held.
 */
void rt_sim_watch_waits(void);

/* ---- nodes ---------------------------------------------------------------------- */

#define RT_SIM_NODES_MAX 1024

/* A new node, without tasks. Node 0 is the harness. */
unsigned rt_sim_node_new(const char *name);
/* The node of the calling task. */
unsigned rt_sim_node(void);
/* Starts fn(arg) as a task of the node. Not joinable: see rt_sim_node_wait. 0 or -errno.
 */
int rt_sim_spawn_on(unsigned node, const char *name, void (*fn)(void *), void *arg);
/*
 * Cuts the node's power: its tasks vanish wherever they are, functions registered with
 * rt_on_crash run, the disks it used settle (see below), its memory is freed. A task may
 * kill its own node: then the call does not return. Killing a dead node does nothing.
 */
void rt_sim_node_kill(unsigned node);
bool rt_sim_node_dead(unsigned node);
/* Waits until the node is dead (true) or has no task left (false). */
bool rt_sim_node_wait(unsigned node);
/* Bytes that the node has from rt_alloc and rt_alloc_pages. */
size_t rt_sim_node_memory(unsigned node);

/* The n-th allocation from now on by a node other than 0 fails (1: the next); 0: none. */
void rt_sim_alloc_fail(uint64_t n);
/* Allocations made so far by nodes other than 0. */
uint64_t rt_sim_allocs(void);

/* ---- disks ------------------------------------------------------------------------
 * A write is seen by reads from its completion on. It is durable once a flush that was
 * submitted after that completion has ended well. When the power of a node goes, each
 * write on a disk that it used which is in flight or not durable is, independently,
 * lost, kept, or torn: any subset of its atomic units is kept.
 */
struct rt_sim_disk;

struct rt_sim_disk_options {
	uint32_t atomic_write_bytes; /* unit of tearing; 0: 512 */
	uint64_t latency_min_ns,
		latency_max_ns; /* of a read or write; 0, 0: 20 us to 400 us */
	bool read_only;         /* opens for writing get -EROFS */
};

/* A disk of zeros. Found by rt_disk_open(name). Memory is used for what is written only.
 */
struct rt_sim_disk *rt_sim_disk_create(
	const char *name, uint64_t size_bytes, const struct rt_sim_disk_options *options);
/* A new disk with what reads of `from` see now, all of it durable. */
struct rt_sim_disk *rt_sim_disk_copy(const char *name, struct rt_sim_disk *from);
/* Removes a disk that nobody has open. */
void rt_sim_disk_destroy(struct rt_sim_disk *disk);

/* Requests submitted so far (each of a chain counts). */
uint64_t rt_sim_disk_ops(struct rt_sim_disk *disk);
/*
 * At the n-th request from now on (1: the next) the node that submits it loses power; the
 * request itself is in flight then. 0: never. The node must not be 0.
 */
void rt_sim_disk_cut_after(struct rt_sim_disk *disk, uint64_t n);

#define RT_SIM_FAIL_READ  (1u << RT_IO_READ)
#define RT_SIM_FAIL_WRITE (1u << RT_IO_WRITE)
#define RT_SIM_FAIL_FLUSH (1u << RT_IO_FLUSH)

struct rt_sim_fail {
	unsigned ops; /* RT_SIM_FAIL_*; 0: no faults any more */
	int error;    /* negative errno; 0: -EIO */
	uint64_t n;   /* the n-th matching request from now on (1: the next) ends with it */
	bool sticky; /* and all later matching ones */
	uint64_t offset; /* only requests that touch this range; length 0: all */
	uint64_t length;
};
/*
 * Replaces the disk's fault. A failed write leaves any subset of its units behind. After
 * a failed flush no later one makes the writes before it durable; others that were under
 * way fail with it.
 */
void rt_sim_disk_fail(struct rt_sim_disk *disk, const struct rt_sim_fail *fail);

/* Copies bytes out of (what reads see) or into the disk, durably and at once. */
void rt_sim_disk_peek(
	struct rt_sim_disk *disk, uint64_t offset, void *buf, size_t len_bytes);
void rt_sim_disk_poke(
	struct rt_sim_disk *disk, uint64_t offset, const void *buf, size_t len_bytes);
/* Bytes written and not durable. */
uint64_t rt_sim_disk_volatile_bytes(struct rt_sim_disk *disk);

/* ---- streams (rt_socket.h) -------------------------------------------------------------
 * Addresses are "name:port"; a name is any text. What is sent arrives in order within a
 * stream. A node that loses power resets its streams or falls silent, as the seed says.
 */

/* How long bytes travel; the default is 5 us to 100 us, and 20 times that now and then. */
void rt_sim_net_delay(uint64_t min_ns, uint64_t max_ns);
/* Nothing gets from one node to the other until that is taken back; none of it is lost. */
void rt_sim_net_block(unsigned from, unsigned to, bool blocked);
/*
 * Who listens at that address is not reached, and what is sent on streams that were made by it
 * does not arrive, until that is taken back; none of it is lost.
 */
void rt_sim_net_lose(const char *address, bool lost);
/*
 * From now on a bit of one byte in so many, on average, arrives flipped, on all streams; 0: none. What
 * is sent first on a stream arrives as it is: all versions of a protocol know each other by that.
 * How many were flipped since the run began.
 */
void rt_sim_net_flip(uint64_t every_bytes);
uint64_t rt_sim_net_flips(void);
/* Resets all streams between the two; what was on its way is lost. */
void rt_sim_net_cut(unsigned a, unsigned b);

#endif
