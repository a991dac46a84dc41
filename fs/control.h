/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The daemon's control socket. A request is one JSON object on a line, and so is an answer.
 *
 * - {"cmd":"status"} returns the whole status.
 * - {"cmd":"waits"} returns the requests that wait, and for which nodes (status_waits.c).
 * - {"cmd":"look"} looks up which locks are in the way of lock requests, for the next "waits". It
 *   returns paths of directories that other answers name by their inodes.
 * - {"cmd":"identify"} returns the source and the mount point.
 * - {"cmd":"sync"} answers when all completed operations are durable.
 * - {"cmd":"reload"} reads the cluster file again and adds new nodes.
 * - {"cmd":"dead","node":N} declares node N dead (engine/node/declare_dead.c).
 * - {"cmd":"scrub"} begins a scrub, or goes on with one. "rate":BYTES a second; "anew":true begins
 *   from the start; "stop":true stops it instead. Answers as the member `scrub` of the status.
 * - {"cmd":"leave"} is for an unmounted daemon that still serves its store to other nodes: it stops
 *   serving (fs/takeover.h).
 *
 * `sync`, `reload`, `dead` and `look` do not delay other connections. An open connection ends when
 * the daemon has closed the volume. By this, `weft umount` and the umount helper learn that the
 * store is free.
 */
#ifndef WEFT_FS_CONTROL_H
#define WEFT_FS_CONTROL_H

#include <jansson.h>

#include "engine/common/base.h"

struct control;

/* Returns an answer as a new reference, or NULL without memory. */
typedef json_t *(*control_fn)(void *arg);
typedef json_t *(*control_node_fn)(void *arg, unsigned node);

struct control_scrub {
	uint64_t rate_bytes; /* 0: not given */
	bool anew, stop;
};
typedef json_t *(*control_scrub_fn)(void *arg, const struct control_scrub *how);

struct control_source {
	control_fn status;
	control_fn waits;
	control_fn identify;
	control_fn leave;
	control_scrub_fn scrub;
	/* These may wait for long: they run on tasks of their own. */
	control_fn look;
	control_fn sync;
	control_fn reload;
	control_node_fn dead;
	void *arg;
};

#define CONTROL_FOLDER_MAX 54 /* number of bytes of its path, so that the path of a socket fits
			       * an address */

/*
 * Returns the folders of sockets of this user's daemons. For root it is /run/weft. For other users,
 * candidates are $XDG_RUNTIME_DIR, /run/user/UID and the home folder, in this order. A folder
 * counts if it belongs to the user and no other user may write to it. A daemon listens in folder 0.
 * Daemons started in another environment may be in a later one. Returns false if there are no more.
 */
bool control_folder(unsigned which, char buf[CONTROL_FOLDER_MAX]);
bool control_is_socket(const char *name);
/* Makes folder 0 if it is missing, and stores its name in `buf`. Returns 0, or -errno with a
 * text. */
int control_folder_make(char buf[CONTROL_FOLDER_MAX], struct weft_error *err);
/* Locks the folder until the returned descriptor is closed. Returns -EPERM if another user may use
 * the folder, or another -errno. Waits briefly. */
int control_folder_lock(const char *folder, struct weft_error *err);
/* Removes sockets without a listener. `locked` comes from control_folder_lock. */
void control_sweep(const char *folder, int locked);

/*
 * Listens on FOLDER/UUID.sock (0600) and starts the task that serves it. If a daemon listens there
 * already, its store is a copy, because this daemon has locked its own store. Then listens on
 * FOLDER/UUID-PID.sock. Before control_attach, only `leave` of the source is called.
 */
int control_open(struct control **out, const uint8_t store_uuid[16],
	const struct control_source *source, struct weft_error *err);
/* Notes that the volume is open: all functions of the source may be called. */
void control_attach(struct control *c);
/*
 * Removes the socket, and calls the source no more. Connections stay. The caller must still have
 * the store locked, because the socket of the next daemon has the same name. Does nothing the
 * second time. Waits for answers under way.
 */
void control_detach(struct control *c);
/* Sends a message to all open connections, soon. Takes the reference. NULL: no memory. */
void control_say(struct control *c, json_t *word);
/* Sends a last message to all open connections and ends them, soon. Takes the reference. NULL: no
 * memory, and no message is sent. */
void control_dismiss(struct control *c, json_t *word);
/* Ends all connections. Call it after control_detach. NULL is allowed. */
void control_close(struct control *c);

#endif
