/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests that wait for a node that is away.
 *
 * On a volume of several nodes a request may wait for as long as that lasts, and the kernel lets
 * nobody go who waits for an answer, killed or not. So here an answer is given in place of
 * whoever serves the request:
 *
 * - EINTR, once a fatal signal is pending for the thread that asked. The kernel says
 *   (INTERRUPT) whose request is to be looked at. Nobody alive ever sees that EINTR.
 * - EIO, with the option soft, when it has waited for longer than the option timeout says.
 *   Not where it waits for a lock.
 * - Success, to a FLUSH that has waited for a second, of a program that ends: nothing interrupts
 *   that, and it would stay. What a close has to do is done still.
 *
 * What serves it goes on, and may still do what was asked; if it waits for a node that is away
 * it gives that up (rt_task_unwanted), so that its worker is free. Its answer is nobody's:
 * the kernel refuses it with ENOENT, as that of any request that has ended.
 *
 * What waits is counted by node, for people. The log says once that requests wait for a node, when the
 * first has for some seconds, and once that none does any more.
 *
 * Requests of the ring are answered by the thread that has them alone: for them it is
 * umount -f or the end of the daemon, and soft does without the ring.
 */
#ifndef WEFT_FS_WAITS_H
#define WEFT_FS_WAITS_H

#include <stdbool.h>
#include <stdint.h>

struct session;
struct fuse_in_header;

/* Starts the task that looks. soft_ns: 0, or how long a request may wait. 0 or -errno. */
int waits_start(struct session *s, uint64_t soft_ns);
/* Ends it, if it runs. Waits. */
void waits_stop(struct session *s);
/* The kernel interrupts the request of this number. */
void waits_interrupt(struct session *s, uint64_t unique);

/* Requests that wait for one node. */
struct waits_for {
	unsigned requests;
	uint64_t since_ns; /* rt_now_ns: when the first of them began */
};
#define WAITS_NODES 64u
/* Counts the requests under way that wait for nodes that are away, by the node's id. Never waits. */
void waits_count(struct session *s, struct waits_for out[WAITS_NODES]);

/* What the request has handles of. */
void waits_note_nodes(_Atomic uint64_t node[2], const struct fuse_in_header *in);
/*
 * The kernel lets go of a handle when all requests that used it have been answered: of those
 * answered early the workers may still be using it. Returns when none does. Waits.
 */
void waits_before_release(struct session *s, uint64_t node);

#endif
