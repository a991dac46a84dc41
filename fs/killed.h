/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests of processes that are being killed.
 *
 * On a volume of several nodes a request may wait for a node that is away, for as long as
 * that is. The kernel lets nobody go who waits for an answer, killed or not. So when it
 * says that a request's process got a signal (INTERRUPT), the request is looked at several
 * times a second, for as long as it is served: once a fatal signal is pending for its
 * thread the kernel gets EINTR. What serves it goes on, and its answer, when there is one,
 * is nobody's: the kernel refuses it with ENOENT, as that of any request that has ended. Nobody
 * alive ever sees that EINTR.
 *
 * Requests of the ring are answered by the thread that has them alone: for them it is
 * umount -f or the end of the daemon.
 */
#ifndef WEFT_FS_KILLED_H
#define WEFT_FS_KILLED_H

#include <stdbool.h>
#include <stdint.h>

struct session;

/* Starts the task that looks. 0 or -errno. */
int killed_start(struct session *s);
/* Ends it, if it runs. Waits. */
void killed_stop(struct session *s);
/* The kernel interrupts the request of this number. */
void killed_interrupt(struct session *s, uint64_t unique);

/* Is a fatal signal pending for the thread? For its /proc/ID/status. */
bool killed_in_status(const char *status);

#endif
