/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Work for a request that waits for the kernel, on a volume of one node: a drop of cached pages waits
 * for READs of these pages, and for the WRITEs that bring what a mapping holds. Internal to fs/.
 */
#ifndef WEFT_FS_ASIDE_H
#define WEFT_FS_ASIDE_H

#include "fs/session.h"

struct aside_job {
	/* Answers the request, and frees the job. */
	void (*run)(struct session *s, struct aside_job *job);
	struct aside_job *next;
};

int aside_start(struct session *s);
/* All jobs have been run. */
void aside_stop(struct session *s);
/*
 * Has the job run by a task that serves no request. A request of the ring stays with its thread, so the
 * job is run here. False: too many wait; the job is still the caller's.
 */
bool aside_run(struct session *s, struct aside_job *job);
/* The same for a job that answers nothing: never run here. */
bool aside_queue(struct session *s, struct aside_job *job);

/* The ops_fetch of a job; `owner` is the session. The kernel drops its pages of the blocks. */
int aside_fetch(void *owner, uint64_t ino, uint64_t first, uint64_t end);

#endif
