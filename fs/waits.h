/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests that wait for a node that is away.
 *
 * On a volume of several nodes a request may wait as long as the node is away. The kernel does not
 * let the requesting thread go before the answer, even if it is killed. The daemon therefore
 * answers before the worker does, in these cases:
 *
 * - EINTR, once a fatal signal is pending for the requesting thread. INTERRUPT from the kernel
 *   names the request to check. No running program sees this EINTR.
 * - EIO, with the option soft, if the request has waited longer than the option timeout. Not if it
 *   waits for a lock.
 * - Success, to a FLUSH of an ending program that has waited for a second. Nothing interrupts a
 *   FLUSH, so the program would stay. The work of the close is still done.
 *
 * The worker goes on and may still complete the request. If it waits for a node that is away, it
 * gives up (rt_task_unwanted) and becomes free. The kernel refuses its answer with ENOENT, as for
 * any request that has ended.
 *
 * Waiting requests are counted by node for the status. The log reports that requests wait for a
 * node, when the first has waited for some seconds. It reports again when none waits any more.
 *
 * Only the thread that has a request of the ring can answer it. Such requests end by umount -f or
 * with the daemon. The option soft does not use the ring.
 */
#ifndef WEFT_FS_WAITS_H
#define WEFT_FS_WAITS_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include "engine/rt/rt.h"

struct session;
struct fuse_in_header;

/* Starts the task that checks. `soft_ns`: longest time that a request may wait; 0: no limit.
 * Returns 0 or -errno. */
int waits_start(struct session *s, uint64_t soft_ns);
/* Ends the task, if it runs. Waits. */
void waits_stop(struct session *s);
/* Notes that the kernel interrupts the request of this number. */
void waits_interrupt(struct session *s, uint64_t unique);

/* Requests that wait for one node. */
struct waits_for {
	unsigned requests;
	uint64_t since_ns; /* start of the first one, by rt_now_ns */
};
#define WAITS_NODES 64u
/* Counts the requests under way that wait for nodes that are away, by the node's id. Never
 * waits. */
void waits_count(struct session *s, struct waits_for out[WAITS_NODES]);

/* A request under way, for people. */
struct waits_request {
	uint64_t since_ns; /* rt_now_ns */
	uint64_t ino;      /* the inode that it is about, or the directory of `name`; 0: none */
	uint64_t away;     /* map of the nodes that are away and that it waits for */
	uint64_t which;    /* of `need` */
	enum rt_need need;
	uint32_t opcode, thread; /* thread 0: none, or in another namespace of processes */
	char name[NAME_MAX + 1]; /* "": it names none, or has not waited yet */
};
/*
 * Lists the requests that have been under way for `longer_ns`, oldest first, up to `max` of them.
 * Leaves out those that were answered early, and those of io_uring. Returns the number of all.
 * Never waits.
 */
unsigned waits_list(
	struct session *s, uint64_t longer_ns, struct waits_request *out, unsigned max);

#define WAITS_COMMAND 64
/* Returns the id of the thread's process, and the thread's name; 0 and "" if it has ended or cannot
 * be seen. */
uint32_t waits_process(uint32_t thread, char command[WAITS_COMMAND]);

/* Notes the inodes whose handles the request uses. */
void waits_note_nodes(_Atomic uint64_t node[2], const struct fuse_in_header *in);
/*
 * Returns when no worker uses a handle of the inode any more. The kernel releases a handle when all
 * its requests have been answered, but workers may still serve requests that were answered early.
 * Waits.
 */
void waits_before_release(struct session *s, uint64_t node);

#endif
