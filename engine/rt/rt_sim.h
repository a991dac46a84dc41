/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The simulated runtime: a whole cluster in one thread, from a seed.
 *
 * rt_sim_run executes a function as the first task of a deterministic world. Tasks are cooperative.
 * Time is virtual, and jumps to the next deadline when no task can run. All choices come from the
 * seed: the next task, the duration of a request, the remains of a write after a power cut. The
 * same seed and the same code give the same run.
 *
 * Tasks, memory and open disks belong to a node. Node 0 is the harness. It creates disks and nodes,
 * cuts the power of nodes, and checks the results. Disks outlive nodes, within the run. Only tasks
 * of a run may call the functions below rt_sim_run.
 */
#ifndef WEFT_RT_SIM_H
#define WEFT_RT_SIM_H

#include "engine/rt/rt.h"

struct rt_sim_options {
	unsigned switch_one_in; /* a scheduling point switches once in this many; 0: 16 */
	uint64_t time_limit_ns; /* virtual; afterwards the run aborts as stuck; 0: one day */
	uint64_t step_limit;    /* task switches; afterwards the run aborts as stuck; 0: 2^32 */
};

/*
 * Runs fn(arg) as the first task, on node 0, and returns its result. Afterwards all other tasks,
 * nodes, memory and disks are gone. `options` may be NULL. If the process aborts inside, the seed
 * is printed. Must not be nested.
 */
int rt_sim_run(uint64_t seed, const struct rt_sim_options *options, int (*fn)(void *),
	void *arg);

/* Returns a hash of all choices so far; equal runs have equal ones. */
uint64_t rt_sim_trace(void);

/*
 * Lets the calling task inspect the world at one moment. While it is on, no other task runs, no
 * node loses power, and no choice is taken. A wait aborts, so try the locks first that other tasks
 * may hold.
 */
void rt_sim_look(bool on);

/*
 * Checks invariant 6 from now on. A task that waits, for a message, a disk, time or another task,
 * must hold nothing that others may need meanwhile (rt_holds). It must also hold no lock that a
 * holder of such may wait for. Otherwise the run aborts, and prints the task and the place. Call it
 * before anything is held.
 */
void rt_sim_watch_waits(void);

/* ---- nodes ---------------------------------------------------------------------- */

#define RT_SIM_NODES_MAX 1024

/* Makes a node without tasks, and returns its number. Node 0 is the harness. */
unsigned rt_sim_node_new(const char *name);
/* Returns the node of the calling task. */
unsigned rt_sim_node(void);
/* Starts fn(arg) as a task of the node. It cannot be joined; see rt_sim_node_wait. Returns 0 or a
 * negative errno. */
int rt_sim_spawn_on(unsigned node, const char *name, void (*fn)(void *), void *arg);
/*
 * Cuts the node's power. Its tasks vanish at any point, functions of rt_on_crash run, the disks
 * that it used settle (see below), and its memory is freed. A task may kill its own node: then the
 * call does not return. Killing a dead node does nothing.
 */
void rt_sim_node_kill(unsigned node);
bool rt_sim_node_dead(unsigned node);
/* Waits until the node is dead (true) or has no task left (false). */
bool rt_sim_node_wait(unsigned node);
/* Returns the bytes that the node has from rt_alloc and rt_alloc_pages. */
size_t rt_sim_node_memory(unsigned node);

/* Makes the n-th allocation from now on by a node other than 0 fail (1: the next); 0: none. */
void rt_sim_alloc_fail(uint64_t n);
/* Returns the allocations so far by nodes other than 0. */
uint64_t rt_sim_allocs(void);

/*
 * ---- disks ------------------------------------------------------------------------ Reads see a
 * write when it has completed. A write is durable when a flush that was submitted after its
 * completion has succeeded. When a node loses power, its disks settle. Each write in flight or not
 * durable is, independently, lost, kept or torn: any subset of its atomic units is kept.
 */
struct rt_sim_disk;

struct rt_sim_disk_options {
	uint32_t atomic_write_bytes; /* unit of tearing; 0: 512 */
	uint64_t latency_min_ns,
		latency_max_ns; /* of a read or write; 0, 0: 20 us to 400 us */
	bool read_only;         /* opens for writing get -EROFS */
};

/* Makes a disk of zeros, which rt_disk_open(name) opens. It takes memory only for written bytes. */
struct rt_sim_disk *rt_sim_disk_create(
	const char *name, uint64_t size_bytes, const struct rt_sim_disk_options *options);
/* Makes a disk with the bytes that reads of `from` see now, all of them durable. */
struct rt_sim_disk *rt_sim_disk_copy(const char *name, struct rt_sim_disk *from);
/* Removes a disk that is not open. */
void rt_sim_disk_destroy(struct rt_sim_disk *disk);

/* Returns the requests submitted so far (each of a chain counts). */
uint64_t rt_sim_disk_ops(struct rt_sim_disk *disk);
/* Cuts the power of the node that submits the n-th request from now on (1: the next). The request
 * itself is then in flight. 0: never. The node must not be 0. */
void rt_sim_disk_cut_after(struct rt_sim_disk *disk, uint64_t n);

#define RT_SIM_FAIL_READ  (1u << RT_IO_READ)
#define RT_SIM_FAIL_WRITE (1u << RT_IO_WRITE)
#define RT_SIM_FAIL_FLUSH (1u << RT_IO_FLUSH)

struct rt_sim_fail {
	unsigned ops;    /* RT_SIM_FAIL_*; 0: no more faults */
	int error;       /* negative errno; 0: -EIO */
	uint64_t n;      /* the n-th matching request from now on (1: the next) ends with `error` */
	bool sticky;     /* and so do all later matching ones */
	uint64_t offset; /* only requests that touch this range; length 0: all */
	uint64_t length;
};
/* Replaces the disk's fault. A failed write leaves any subset of its units behind. After a failed
 * flush, no later one makes the earlier writes durable. Other flushes under way fail with it. */
void rt_sim_disk_fail(struct rt_sim_disk *disk, const struct rt_sim_fail *fail);

/* Copy bytes out of the disk, as reads see them, or into it, durably and at once. */
void rt_sim_disk_peek(
	struct rt_sim_disk *disk, uint64_t offset, void *buf, size_t len_bytes);
void rt_sim_disk_poke(
	struct rt_sim_disk *disk, uint64_t offset, const void *buf, size_t len_bytes);
/* Returns the bytes that are written and not durable. */
uint64_t rt_sim_disk_volatile_bytes(struct rt_sim_disk *disk);

/* ---- streams (rt_socket.h) -------------------------------------------------------------
 * Addresses are "name:port"; a name is any text. What is sent arrives in order within a
 * stream. A node that loses power resets its streams or falls silent, as the seed says.
 */

/* Sets the delay of bytes. The default is 5 us to 100 us, and 20 times that now and then. */
void rt_sim_net_delay(uint64_t min_ns, uint64_t max_ns);
/* Holds back all bytes from one node to the other until that is undone; none are lost. */
void rt_sim_net_block(unsigned from, unsigned to, bool blocked);
/* Makes the listener at that address unreachable, and holds back bytes on streams made by that
 * address, until that is undone; none are lost. */
void rt_sim_net_lose(const char *address, bool lost);
/*
 * Flips a bit of one byte in `every_bytes`, on average, on all streams; 0: none. The first bytes of
 * a stream arrive unchanged, because all versions of a protocol recognise each other by them. The
 * second function returns how many bits were flipped since the run began.
 */
void rt_sim_net_flip(uint64_t every_bytes);
uint64_t rt_sim_net_flips(void);
/* Resets all streams between the two nodes; bytes on their way are lost. */
void rt_sim_net_cut(unsigned a, unsigned b);

#endif
