/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The guardian of a daemon: a small process that ends the FUSE connection when the daemon is
 * killed, and starts it again for the other nodes (docs/many-nodes.md, "When the daemon is killed").
 *
 * A killed daemon's device is closed by its last thread. One that waits in the kernel for a page
 * which a request has locked that only the daemon could answer never comes to its end.
 */
#ifndef WEFT_FS_GUARDIAN_H
#define WEFT_FS_GUARDIAN_H

#include "fs/ops/ops.h"

struct guardian_shared;

struct guardian {
	struct rt_task *task;   /* NULL: there is no guardian */
	_Atomic uint32_t ended; /* the task's word */
	int socket;             /* to the process; its end is the guardian's end */
	pid_t daemon;
	int argc;
	char **argv;
	char *const *again;
	struct guardian_shared *shared; /* with the process; NULL: there is none */
	struct ops_noted noted;         /* in that memory */
};

/*
 * Starts the process. Early: it has a copy of what memory and files there are, and keeps the
 * memory. argc, argv are main's, whose place the process uses for a name of its own; `again` are
 * the arguments of what is started if the daemon was killed, in the foreground. `inodes` can be
 * noted for it. Without a guardian the daemon works; 0 or -errno.
 */
int guardian_start(
	struct guardian *g, int argc, char **argv, char *const *again, uint32_t inodes);
/* Whether it is, from here on; at first it is not. Nothing without a guardian. */
void guardian_restarts(struct guardian *g, bool restarts);
/* For fs_kernel_start: what is noted there is dropped when this process has ended. NULL: without a guardian. */
const struct ops_noted *guardian_noted(const struct guardian *g);
/*
 * The connection of the filesystem mounted on `directory`, and of `device`, which the guardian gets a copy of,
 * is to be ended with this process. 0 or -errno: the kernel's control of it cannot be reached.
 */
int guardian_connection(struct guardian *g, const char *directory, int device);
/* Ends the process, and first the connection, if that is there still. */
void guardian_stop(struct guardian *g);

/* To be called by weft's programs before they touch a mount point: ends the connections of daemons
 * of this machine that were killed together with their guardians. */
void guardian_sweep(void);

#endif
