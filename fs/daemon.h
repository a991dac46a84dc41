/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of one weftd. weftd_main.c connects them, status.c describes them. */
#ifndef WEFT_FS_DAEMON_H
#define WEFT_FS_DAEMON_H

#include <limits.h>
#include <sys/types.h>

#include <jansson.h>

#include "engine/common/text.h"
#include "engine/node/node.h"
#include "engine/volume/scrub.h"
#include "fs/control.h"
#include "fs/guardian.h"
#include "fs/options.h"
#include "fs/remount.h"
#include "fs/session.h"
#include "fs/source.h"

struct daemon {
	struct mount_options options;
	/* Protects the options that a remount changes. Only the main task changes them. */
	struct rt_mutex options_lock;
	struct remount remount;
	struct rt_mutex
		fs_lock; /* for tasks that use `fs` and cannot know whether it is open */
	bool fs_open;
	struct rt_mutex reload_lock; /* serializes reads of the cluster file */
	struct guardian guardian;
	int unguarded; /* -errno that kept the guardian from the mount, or 0 */
	struct source source;
	struct local_node *node; /* NULL: the volume has no other nodes */
	struct volume *volume;
	struct fs *fs;
	struct session *session;
	struct scrub *scrub; /* NULL: the node has no store */
	struct control *control;
	struct metrics_server *metrics; /* NULL: not requested */
	dev_t device;                   /* st_dev of the mount */
	uint64_t started_ns;            /* rt_now_ns */
	bool unmounted;             /* from the start: this daemon only serves other nodes */
	bool stays;                 /* unmounted: until a signal, whoever else there is */
	char **again;               /* arguments with which the guardian restarts a killed daemon */
	_Atomic bool leaving;       /* unmounted: the daemon waits for other nodes */
	_Atomic bool dismissed;     /* `leave` was requested: the store will be mounted again */
	_Atomic bool served;        /* the mount has been established */
	_Atomic uint64_t signal_at; /* rt_now_ns of the first signal; 0: none yet */
	int ended_fd;
	int signal_fd;
};

/* For the control socket. `arg` is the struct daemon. Returns a new reference, or NULL. */
json_t *status_build(void *arg);
/* The same without cluster.nodes[].cached, for which all frames are looked at. */
json_t *status_counters(void *arg);
json_t *status_identify(void *arg);
/* status_paths.c. Finds the path of a directory, below the root of the volume ("": the root).
 * Returns false if it is none, or cannot be found soon. Waits. */
bool status_path(struct fs *fs, uint64_t ino, char out[PATH_MAX]);
/* status_waits.c. The second one waits, for a second at most if a node is away. */
json_t *status_waits(void *arg);
json_t *status_look(void *arg);
/* The numbers of requests that wait, for the status. Never waits. */
json_t *status_waiting(struct daemon *d);
/* The name of a kind of request, by its FUSE opcode; NULL: it has none. */
const char *status_request_name(uint32_t opcode);
json_t *status_sync(void *arg);
json_t *status_leave(void *arg);
/* ---- reports.c: for the log, waiting programs, the service manager ---- */

/* `arg` is the struct daemon. */

/* The node waits for other nodes to open the volume. */
void report_waits(void *arg, const char *who);
/* The mount is gone, and the store will not be free soon. */
void report_serves_on(void *arg, const char *who);
/* Closing waits for other nodes, for so long. */
void report_awaited(void *arg, const char *who, unsigned seconds);
/* The mount answers, or the store is served. */
void report_mounted(const struct daemon *d);
/* The volume is closed, and some changes could not be written. */
void report_unwritten(struct daemon *d, int why, const struct volume_rest *rest);

/* reload.c */
json_t *reload_cluster(void *arg);
/* scrub.c */
/* Makes the task of scrub, unless the node is a client. Returns 0, or -errno with a text. */
int scrub_attach(struct daemon *d, struct weft_error *err);
json_t *scrub_describe(struct daemon *d);
json_t *scrub_command(void *arg, const struct control_scrub *how);
/* declare.c */
json_t *declare_dead(void *arg, unsigned node);

/* ---- away.c: nodes that are away, told to people ---- */

#define AWAY_REMEDY_BYTES (2 * PATH_MAX + 200)

/* session_options.waits. `owner` is the struct daemon. */
void away_told(void *owner, unsigned node, unsigned requests, uint64_t for_ns);
/* Names the command that ends waiting for the node, if a start of the node does not end it. Returns
 * false if the node is not away, or if there is no such command. */
bool away_remedy(const struct daemon *d, unsigned node, const struct node_link *l,
	char out[AWAY_REMEDY_BYTES]);

#endif
