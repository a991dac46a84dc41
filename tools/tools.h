/* SPDX-License-Identifier: Apache-2.0 */
/* The subcommands of `weft`, and how they reach running daemons. Internal to tools/. */
#ifndef WEFT_TOOLS_H
#define WEFT_TOOLS_H

#include <jansson.h>

#include "engine/common/base.h"

/* Each gets its own name as argv[0] and returns the exit code. */
int weft_mount(int argc, char **argv);
int weft_umount(int argc, char **argv);
int weft_status(int argc, char **argv);
int weft_sync(int argc, char **argv);
int weft_dump(int argc, char **argv) __attribute__((weak));
int weft_bench(int argc, char **argv) __attribute__((weak));

/* What mount(8) and umount(8) run: mount.weft SOURCE DIR [-sfnv] [-N ns] [-o OPTIONS]. */
int mount_helper(int argc, char **argv);
int umount_helper(int argc, char **argv);

/* ---- running daemons (client.c) -------------------------------------------- */

struct client {
	int fd;
	json_t *identity; /* answer to "identify" */
};

/*
 * Asks a running daemon. A new reference, or NULL when it does not answer with an object.
 */
json_t *client_ask(int fd, const char *cmd);
/* Visits every daemon of this user that answers; `fn` may keep the client's fd by setting
 * it to -1. Stops when fn returns non-zero, and returns that; else 0. */
int client_each(int (*fn)(void *arg, struct client *c), void *arg);
/*
 * Finds the daemon that `name` means: a mount point, a store, a label or a UUID. The
 * connection's fd (the caller closes it), or -ENOENT.
 */
int client_find(const char *name, json_t **identity);
/* From here on answers may take as long as they like. */
void client_be_patient(int fd);
/* Waits until the daemon has closed its volume and ends the connection. */
void client_wait_end(int fd);

#endif
