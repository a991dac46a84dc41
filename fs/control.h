/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The daemon's control socket: one JSON object per line asks, one per line answers.
 *
 * {"cmd":"status"} gives everything there is to know, {"cmd":"identify"} what is mounted
 * where,
 * {"cmd":"sync"} answers when all that was done is durable; it keeps no other connection
 * waiting.
 * {"cmd":"reload"} has the daemon read its cluster file again, and take in nodes that were
 * added; it keeps no other connection waiting either.
 * {"cmd":"dead","node":N} declares that node dead (engine/volume/member_dead.c), likewise.
 * {"cmd":"leave"} has a daemon that is unmounted, and serves its store on for other nodes,
 * do so no longer (fs/takeover.h).
 * A connection that is kept open ends when the daemon has closed the volume: that is how
 * `weft umount` and the umount helper know that the store is free.
 */
#ifndef WEFT_FS_CONTROL_H
#define WEFT_FS_CONTROL_H

#include <jansson.h>

#include "engine/common/base.h"

struct control;

/* Makes an answer (a new reference); NULL when there is no memory. */
typedef json_t *(*control_fn)(void *arg);
typedef json_t *(*control_node_fn)(void *arg, unsigned node);

struct control_source {
	control_fn status;
	control_fn identify;
	control_fn leave;
	/* may wait for long: they run on tasks of their own */
	control_fn sync;
	control_fn reload;
	control_node_fn dead;
	void *arg;
};

#define CONTROL_FOLDER_MAX 54 /* of its path, so that a socket's fits an address */

/*
 * Where the sockets of this user's daemons are. Root's are in /run/weft. Those of others are in
 * the first of these folders that belongs to the user and that nobody else may write:
 * $XDG_RUNTIME_DIR, /run/user/UID, the home folder. A daemon listens in folder 0; daemons that
 * were started in another environment may be in a later one. Returns false if there are no
 * more.
 */
bool control_folder(unsigned which, char buf[CONTROL_FOLDER_MAX]);
bool control_is_socket(const char *name);
/*
 * Makes folder 0 where it is missing, and puts its name into `buf`. 0, or -errno with a text.
 */
int control_folder_make(char buf[CONTROL_FOLDER_MAX], struct weft_error *err);
/*
 * Locks the folder until the descriptor that it returns is closed. -EPERM if it is not the
 * user's alone; else -errno. Waits, but nobody holds the lock for long.
 */
int control_folder_lock(const char *folder, struct weft_error *err);
/* Removes the sockets that nobody listens on; `locked` is of control_folder_lock. */
void control_sweep(const char *folder, int locked);

/*
 * Listens on FOLDER/UUID.sock (0600) and starts the task that serves it. Where a daemon
 * does so already its store is a copy, since ours is locked by us: then on
 * FOLDER/UUID-PID.sock. The source is asked for nothing but `leave` before control_attach.
 */
int control_open(struct control **out, const uint8_t store_uuid[16],
	const struct control_source *source, struct weft_error *err);
/* The volume is open: the source may be asked for everything. */
void control_attach(struct control *c);
/* Removes the socket and uses the source no more; connections stay. The caller still
 * holds the store: the socket of its next daemon would have the same name. Waits
 * for answers that are being made. Nothing the second time. */
void control_detach(struct control *c);
/* Says a word to all connections that there are, soon. Takes the reference; NULL: no memory. */
void control_say(struct control *c, json_t *word);
/*
 * Says a last word to all connections that there are, and ends them, soon. Takes the
 * reference; NULL: no memory, and nothing is said.
 */
void control_dismiss(struct control *c, json_t *word);
/* Ends all connections; after control_detach. NULL is fine. */
void control_close(struct control *c);

#endif
