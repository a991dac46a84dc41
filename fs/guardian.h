/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The guardian of a daemon. This small process ends the FUSE connection if the daemon is killed,
 * and restarts the daemon for the other nodes (docs/nodes/supervisor.md).
 *
 * The last thread of a killed daemon closes its FUSE device. A thread may wait in the kernel for a
 * page that a request has locked. Only the daemon could answer that request, so without the
 * guardian the thread would never end.
 */
#ifndef WEFT_FS_GUARDIAN_H
#define WEFT_FS_GUARDIAN_H

#include "fs/ops/kept.h"

struct guardian_shared;

struct guardian {
	struct rt_task *task;   /* NULL: there is no guardian */
	_Atomic uint32_t ended; /* set by the task at its end */
	int socket;             /* to the process; the guardian ends when it is closed */
	pid_t daemon;
	int argc;
	char **argv;
	char *const *again;
	struct guardian_shared *shared; /* memory shared with the process; NULL: there is none */
	struct kcache_noted noted;      /* in the shared memory */
};

/*
 * Starts the process. Call it early: the process has a copy of the caller's memory and files, and
 * keeps the memory.
 * - argc, argv: of main. The process writes its own name there.
 * - again: the arguments of the daemon that is started, in the foreground, if this one is killed.
 * - inodes: number of inodes that can be noted for it.
 *
 * Returns 0 or -errno. The daemon also works without a guardian.
 */
int guardian_start(
	struct guardian *g, int argc, char **argv, char *const *again, uint32_t inodes);
/* Sets whether a killed daemon is restarted; at first it is not. Does nothing without a
 * guardian. */
void guardian_restarts(struct guardian *g, bool restarts);
/* Returns memory for fs_kernel_start. The guardian drops the inodes noted there when this process
 * has ended. NULL: without a guardian. */
const struct kcache_noted *guardian_noted(const struct guardian *g);
/*
 * Has the guardian end the connection when this process ends. The connection is that of the mount
 * on `directory` and of `device`, of which the guardian gets a copy. Returns 0, or -errno if the
 * kernel's control files of the connection cannot be reached.
 */
int guardian_connection(struct guardian *g, const char *directory, int device);
/* Ends the connection, if it still exists, and then the process. */
void guardian_stop(struct guardian *g);

/* Ends connections of daemons on this machine that were killed together with their guardians. The
 * programs of weft call it before they touch a mount point. */
void guardian_sweep(void);

#endif
