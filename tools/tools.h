/* SPDX-License-Identifier: Apache-2.0 */
/* The subcommands of `weft`, and how they reach running daemons. Internal to tools/. */
#ifndef WEFT_TOOLS_H
#define WEFT_TOOLS_H

#include <getopt.h>
#include <jansson.h>

#include "engine/common/base.h"

/* Each gets "weft NAME" as argv[0] and returns the exit code. */
int weft_mount(int argc, char **argv);
int weft_umount(int argc, char **argv);
int weft_status(int argc, char **argv);
int weft_sync(int argc, char **argv);
int weft_dump(int argc, char **argv);
int weft_probe(int argc, char **argv);
int weft_bench(int argc, char **argv);
int bench_net(int argc, char **argv); /* weft bench net */
int weft_node(int argc, char **argv);
int weft_net(int argc, char **argv);
int weft_cluster(int argc, char **argv);
int cluster_new(int argc, char **argv);      /* weft cluster new */
int cluster_add_node(int argc, char **argv); /* weft cluster add */
int cluster_reload(int argc, char **argv);   /* weft cluster reload */
extern const char cluster_usage[];

/* ---- wrong command lines (usage.c); `who`: the command, "weft cluster" ------- */

/* Prints the usage: on stdout for -h and --help (0), else on stderr (EXIT_USAGE). */
int weft_usage(const char *text, bool asked_for);
/* Prints what is wrong, in one line. Returns EXIT_USAGE. */
int weft_wrong(const char *who, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));
/* Prints that `word` is none of `known`, which NULL ends, and the nearest of them. `what` the
 * words are: "command". Returns EXIT_USAGE. */
int weft_wrong_word(
	const char *who, const char *what, const char *word, const char *const *known);
/* For what getopt_long returns and the caller does not know: 'h' prints the usage (0), '?'
 * says which option is near (EXIT_USAGE). */
int weft_option(const char *usage, int c, char **argv, const struct option *words);
/* Returns 0 if `least` to `most` words follow the options; else prints which is one too many,
 * or what was expected, and returns EXIT_USAGE. */
int weft_operands(const char *usage, int argc, char **argv, int least, int most,
	const char *expected);

/* Exit code of what is asked of a volume that nobody serves, or fails. Wrong usage and
 * failed mounts have those of mount(8) (fs/daemonize.h). */
#define EXIT_FAILED 2

/* What mount(8) and umount(8) run: mount.weft SOURCE DIR [-sfnv] [-N ns] [-o OPTIONS]. */
int mount_helper(int argc, char **argv);
int umount_helper(int argc, char **argv);

/* weft node fence --without-store (node_dead.c). 0, or -errno with a text. */
int node_dead(const char *file, unsigned node, bool yes, struct weft_error *err);

/* ---- what is mounted, by the kernel's table (mounts.c) --------------------- */

struct weft_mount {
	const char *directory;
	const char *type; /* of the filesystem */
	bool ours;        /* a mount of weft */
	uid_t user;       /* who has made it */
};

/* Visits every mount of this mount namespace, upper ones after lower ones, until `fn` says that
 * it has seen enough. */
void mounts_each(bool (*fn)(void *arg, const struct weft_mount *m), void *arg);
#define MOUNT_USER 64
/* The user's name, or "#UID". */
const char *mount_user(uid_t user, char out[MOUNT_USER]);

/* ---- running daemons (client.c) -------------------------------------------- */

struct client {
	int fd;
	json_t *identity; /* answer to "identify" */
};

/* Asks a running daemon. A new reference; NULL with a text when it does not answer
 * (-ETIMEDOUT), has gone, or answers with an error (-EREMOTEIO). */
json_t *client_ask(int fd, const char *cmd, struct weft_error *err);
/* The same about a node of its volume. */
json_t *client_ask_of(int fd, const char *cmd, unsigned node, struct weft_error *err);
/* Visits every daemon of this user, as they answer, until `fn` says that it has seen enough; it
 * may keep the client's fd by setting it to -1. Says which do not answer, and takes away the
 * sockets of dead ones. */
void client_each(bool (*fn)(void *arg, struct client *c), void *arg);
/*
 * Finds the daemon that `name` means: a mount point, else a store or cluster file, else a
 * UUID, else a label. The connection's fd (the caller closes it); -ENOENT, or -ENOTUNIQ when it means
 * several, with a text.
 */
int client_find(const char *name, json_t **identity, struct weft_error *err);
/* `name` made absolute, if it exists, and without final slashes; NULL: no memory. */
char *client_path(const char *name);
#define CLIENT_DEVICE 32
/*
 * The device that is mounted there, "MAJOR:MINOR", by what the kernel knows: were it asked anew, the
 * daemon might have to wait for a node that is away, and that is when this is wanted.
 */
bool client_device(const char *path, char out[CLIENT_DEVICE]);
/* A member that is a string; "" when there is none. */
const char *client_text(const json_t *o, const char *key);
/* From here on answers may take as long as they like. */
void client_be_patient(int fd);
#define CLIENT_LAST_BYTES 1024
/*
 * Waits until the daemon has closed its volume and ends the connection. False when it
 * has not within the time; timeout_ms < 0: for ever. What it says meanwhile is added to
 * `last`.
 */
bool client_wait_end(int fd, int timeout_ms, char last[CLIENT_LAST_BYTES]);

#endif
