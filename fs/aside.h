/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tasks for requests that wait for the kernel, on a volume of one node. A drop of cached pages
 * waits for READs of these pages, and for the WRITEs that bring stores of mappings. Internal to
 * fs/.
 */
#ifndef WEFT_FS_ASIDE_H
#define WEFT_FS_ASIDE_H

#include "fs/session.h"

struct aside_job {
	/* Answers the request and frees the job. */
	void (*run)(struct session *s, struct aside_job *job);
	struct aside_job *next;
};

int aside_start(struct session *s);
/* Returns when all jobs have run. Waits. */
void aside_stop(struct session *s);
/*
 * Has a task that serves no request run the job. A request of the ring must be answered by its
 * thread: then runs the job in the caller. Returns false if too many jobs wait; the caller keeps
 * the job.
 */
bool aside_run(struct session *s, struct aside_job *job);
/* As aside_run, for a job that answers no request. Never runs it in the caller. */
bool aside_queue(struct session *s, struct aside_job *job);

/* The ops_fetch for jobs; `owner` is the session. Also drops the kernel's pages of the blocks. */
int aside_fetch(void *owner, uint64_t ino, uint64_t first, uint64_t end);

#endif
