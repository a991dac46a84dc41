/* SPDX-License-Identifier: Apache-2.0 */
/* The subcommands of `weft`, and their connections with running daemons. Internal to tools/. */
#ifndef WEFT_TOOLS_H
#define WEFT_TOOLS_H

#include <getopt.h>
#include <jansson.h>
#include <limits.h>

#include "engine/common/base.h"

/* Each gets "weft NAME" as argv[0] and returns the exit code. */
int weft_mount(int argc, char **argv);
int weft_umount(int argc, char **argv);
int weft_status(int argc, char **argv);
int weft_waits(int argc, char **argv);
int weft_top(int argc, char **argv);
int weft_sync(int argc, char **argv);
int weft_scrub(int argc, char **argv);
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
/* Prints an error in one line. Returns EXIT_USAGE. */
int weft_wrong(const char *who, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));
/* Prints that `word` is none of `known`, which NULL ends, and the nearest of them. `what`: a noun
 * for the words, as "command". Returns EXIT_USAGE. */
int weft_wrong_word(
	const char *who, const char *what, const char *word, const char *const *known);
/* For values of getopt_long that the caller does not know. 'h' prints the usage and returns 0. '?'
 * prints the nearest option and returns EXIT_USAGE. */
int weft_option(const char *usage, int c, char **argv, const struct option *words);
/* Returns 0 if `least` to `most` words follow the options. Otherwise prints the extra or the
 * missing word, and returns EXIT_USAGE. */
int weft_operands(const char *usage, int argc, char **argv, int least, int most,
	const char *expected);

/* Exit code for a volume that is not served, or a request that fails. Wrong usage and failed mounts
 * have those of mount(8) (fs/daemonize.h). */
#define EXIT_FAILED 2

/* For mount(8) and umount(8): mount.weft SOURCE DIR [-sfnv] [-N ns] [-o OPTIONS]. */
int mount_helper(int argc, char **argv);
int umount_helper(int argc, char **argv);

/* Runs weftd with these arguments. args[0] is replaced (mount.c). */
_Noreturn void exec_weftd(char **args);
/* Reads the id of a node. Returns 0 or -EINVAL (node.c). */
int node_number(const char *text, unsigned *out);
int node_start_here(int argc, char **argv); /* weft node start (node_start.c) */
/* weft node fence --without-store (node_dead.c). Returns 0, or -errno with a text. */
int node_dead(const char *file, unsigned node, bool yes, struct weft_error *err);

/* ---- values of an answer, for people (values.c) -------------------------- */

double client_number(const json_t *o, const char *key);
const char *format_bytes(char buf[16], double n);
const char *format_duration(char buf[16], double ns);
/* Formats a count and its noun ("1 page", "2 pages"), in one of a few buffers. */
const char *format_count(double n, const char *noun);

/* ---- files by their inodes (inode_path.c) ------------------------------- */

/* Paths that are known: an object, of paths by the inodes' numbers. */
/* Returns the path, or NULL. */
const char *inode_path(const json_t *paths, json_int_t ino);
void inode_path_set(json_t *paths, json_int_t ino, const char *path);
/*
 * Finds the paths of inodes of the mount on `directory`, device "MAJOR:MINOR". Finds those that a
 * process has open or works in, if this user may look at it. Asks the kernel alone, never the
 * mount.
 */
void inode_paths_find(json_t *paths, const char *directory, const char *device,
	const json_int_t *inodes, unsigned count);
/* Adds paths that a daemon has told, below the root of its volume. */
void inode_paths_add(json_t *paths, const char *directory, const json_t *told);

/* ---- mounts, by the kernel's table (mounts.c) ------------------------------ */

struct weft_mount {
	const char *directory;
	const char *type; /* of the filesystem */
	bool ours;        /* a mount of weft */
	uid_t user;       /* the user that made it */
};

/* Visits all mounts of this mount namespace, upper ones after lower ones, until `fn` returns
 * true. */
void mounts_each(bool (*fn)(void *arg, const struct weft_mount *m), void *arg);
/*
 * Finds the mount of weft that a path lies in. Compares its text with the mount table: asks no
 * mount, and follows no symbolic links. Stores the absolute path and the mount. Returns false if
 * `name` does not begin with / or ., or lies in no mount of weft.
 */
bool mount_inside(const char *name, char path[PATH_MAX], char mount[PATH_MAX]);
#define MOUNT_USER 64
/* Returns the user's name, or "#UID". */
const char *mount_user(uid_t user, char out[MOUNT_USER]);

/* ---- running daemons (client.c) -------------------------------------------- */

struct client {
	int fd;
	json_t *identity; /* answer to "identify" */
};

/* Sends a request to a running daemon. Returns a new reference, or NULL with a text: the daemon
 * does not answer (-ETIMEDOUT), has ended, or answers with an error (-EREMOTEIO). */
json_t *client_ask(int fd, const char *cmd, struct weft_error *err);
/* As client_ask, about a node of its volume. */
json_t *client_ask_of(int fd, const char *cmd, unsigned node, struct weft_error *err);
/* As client_ask, with a whole request: JSON, and the end of the line. */
json_t *client_ask_line(int fd, const char *line, struct weft_error *err);
/*
 * Visits all daemons of this user, in the order of their answers, until `fn` returns true. `fn` may
 * keep the client's fd by setting it to -1. Prints the daemons that do not answer, and removes the
 * sockets of ended ones.
 */
void client_each(bool (*fn)(void *arg, struct client *c), void *arg);
/*
 * Finds the daemon of `name`: a mount point, else a store or cluster file, else a UUID, else a
 * label. Returns the connection's fd, which the caller closes. Returns -ENOENT, or -ENOTUNIQ if
 * there are several, with a text.
 */
int client_find(const char *name, json_t **identity, struct weft_error *err);
/* As client_find. `name` may also be any path within a mount, which is not asked about it. */
int client_find_inside(const char *name, json_t **identity, struct weft_error *err);
/* Returns `name` without final slashes, made absolute if it exists. NULL: no memory. */
char *client_path(const char *name);
#define CLIENT_DEVICE 32
/* Stores the device that is mounted there, "MAJOR:MINOR", as the kernel knows it. Makes no request:
 * the daemon might have to wait for a node that is away, which is when this is used. */
bool client_device(const char *path, char out[CLIENT_DEVICE]);
/* Returns a member that is a string; "" if there is none. */
const char *client_text(const json_t *o, const char *key);
#define CLIENT_SECONDS 10 /* limit of each answer, unless client_limit sets another */
/* From here on waits so long for each whole answer; 0: without a limit. */
void client_limit(int fd, unsigned seconds);
/* Replaces control characters in all strings of an answer by '?', since a terminal would obey
 * them. Names of files, for example, may have any. */
void client_clean(json_t *o);
#define CLIENT_LAST_BYTES 1024
/* Waits until the daemon has closed its volume and ends the connection. Returns false if the time
 * is over before; timeout_ms < 0: no limit. Adds the daemon's messages to `last`. */
bool client_wait_end(int fd, int timeout_ms, char last[CLIENT_LAST_BYTES]);

#endif
