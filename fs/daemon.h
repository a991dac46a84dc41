/* SPDX-License-Identifier: Apache-2.0 */
/* What one weftd consists of; weftd_main.c puts it together, status.c describes it. */
#ifndef WEFT_FS_DAEMON_H
#define WEFT_FS_DAEMON_H

#include <limits.h>
#include <sys/types.h>

#include <jansson.h>

#include "engine/common/text.h"
#include "engine/volume/member.h"
#include "fs/control.h"
#include "fs/guardian.h"
#include "fs/options.h"
#include "fs/remount.h"
#include "fs/session.h"
#include "fs/source.h"

struct daemon {
	struct mount_options options;
	/* For those options that a remount changes, which only the main task does. */
	struct rt_mutex options_lock;
	struct remount remount;
	struct rt_mutex
		fs_lock; /* for who uses `fs` and cannot know whether it is open */
	bool fs_open;
	struct rt_mutex reload_lock; /* one reads the cluster file again at a time */
	struct guardian guardian;
	int unguarded; /* the mount, -errno: why */
	struct source source;
	struct member *member; /* NULL: no other node has the volume */
	struct volume *volume;
	struct fs *fs;
	struct session *session;
	struct control *control;
	struct metrics_server *metrics; /* NULL: none was asked for */
	dev_t device;                   /* of the mount: st_dev */
	uint64_t started_ns;            /* rt_now_ns */
	bool unmounted;             /* from the beginning: it serves other nodes alone */
	char **again;               /* what the guardian starts when this was killed */
	_Atomic bool leaving;       /* unmounted: other nodes are waited for */
	_Atomic bool dismissed;     /* then: the store is to be mounted again */
	_Atomic bool served;        /* the mount was there */
	_Atomic uint64_t signal_at; /* rt_now_ns when one was seen; 0: none came */
	int ended_fd;
	int signal_fd;
};

/* For the control socket; arg is the struct daemon. New references, or NULL. */
json_t *status_build(void *arg);
json_t *status_identify(void *arg);
json_t *status_sync(void *arg);
json_t *status_leave(void *arg);
/* reload.c */
json_t *reload_cluster(void *arg);
/* declare.c */
json_t *declare_dead(void *arg, unsigned node);

/* ---- away.c: nodes that are away, told to people ---- */

#define AWAY_REMEDY_BYTES (2 * PATH_MAX + 200)

/* session_options.waits; the owner is the struct daemon. */
void away_told(void *owner, unsigned node, unsigned requests, uint64_t for_ns);
/*
 * Says which command ends that others wait for the node, where a start of it does not. False: it is not
 * away, or no command does.
 */
bool away_remedy(const struct daemon *d, unsigned node, const struct member_link *l,
	char out[AWAY_REMEDY_BYTES]);

#endif
