/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tasks for jobs that wait for the kernel, and so for other requests. See aside.h.
 *
 * Keeps: a request that waits for another one does not take the place in which that one would be
 * served. A worker of the device passes the job on and serves the next request. A thread of the
 * ring cannot, because only its entry takes the answer. It waits only while the queue has another
 * entry whose request does not wait.
 *
 * Memory (invariant 10): JOBS_MAX jobs, TASKS_MAX tasks. Jobs that wait for a task delay nothing
 * else.
 */
#define FUSE_USE_VERSION 314
#include <fuse_lowlevel.h>

#include <limits.h>

#include "fs/aside.h"
#include "fs/session_internal.h"

#define TASKS_MAX 16u
#define JOBS_MAX  4096u

struct aside {
	struct session *session;
	struct rt_mutex lock; /* for all below; innermost, held briefly */
	struct rt_cond work;
	struct aside_job *queue, **queue_end;
	unsigned jobs;   /* queued or running */
	unsigned queued; /* not begun */
	unsigned idle, tasks;
	bool stopping;
	struct rt_task *task[TASKS_MAX];
};

static void aside_main(void *arg)
{
	struct aside *a = arg;

	rt_mutex_lock(&a->lock);
	for (;;) {
		struct aside_job *job;

		while (!(job = a->queue) && !a->stopping) {
			a->idle++;
			rt_cond_wait(&a->work, &a->lock, RT_FOREVER);
			a->idle--;
		}
		if (!job)
			break;
		a->queue = job->next;
		if (!a->queue)
			a->queue_end = &a->queue;
		a->queued--;
		rt_mutex_unlock(&a->lock);
		job->run(a->session, job);
		session_release(a->session);
		rt_mutex_lock(&a->lock);
		a->jobs--;
	}
	rt_mutex_unlock(&a->lock);
}

/* Adds a task. After a failure the job is left to the existing tasks. Under the lock. */
static int task_add(struct aside *a)
{
	int rc;

	if (a->queued <= a->idle || a->tasks == TASKS_MAX)
		return 0;
	rc = rt_task_spawn(&a->task[a->tasks], "weft-aside", aside_main, a);
	if (!rc)
		a->tasks++;
	return rc;
}

int aside_start(struct session *s)
{
	struct aside *a = rt_alloc(sizeof(*a));

	if (!a)
		return -ENOMEM;
	a->session = s;
	a->queue_end = &a->queue;
	s->aside = a;
	return 0;
}

void aside_stop(struct session *s)
{
	struct aside *a = s->aside;

	if (!a)
		return;
	rt_mutex_lock(&a->lock);
	a->stopping = true;
	rt_mutex_unlock(&a->lock);
	rt_cond_broadcast(&a->work);
	for (unsigned i = 0; i < a->tasks; i++)
		rt_task_join(a->task[i]);
	rt_free(a);
	s->aside = NULL;
}

bool aside_queue(struct session *s, struct aside_job *job)
{
	struct aside *a = s->aside;
	bool taken;

	rt_mutex_lock(&a->lock);
	a->queued++;
	taken = a->jobs < JOBS_MAX && (task_add(a) == 0 || a->tasks > 0);
	if (taken) {
		session_hold(s);
		job->next = NULL;
		*a->queue_end = job;
		a->queue_end = &job->next;
		a->jobs++;
	} else {
		a->queued--;
	}
	rt_mutex_unlock(&a->lock);
	if (taken)
		rt_cond_signal(&a->work);
	return taken;
}

bool aside_run(struct session *s, struct aside_job *job)
{
	if (!uring_serves())
		return aside_queue(s, job);
	if (!uring_wait_begin())
		return false;
	rt_about_to_wait();
	job->run(s, job);
	uring_wait_end();
	return true;
}

/* An error means that the kernel does not have the inode, or that the mount is gone. */
int aside_fetch(void *owner, uint64_t ino, uint64_t first, uint64_t end)
{
	struct session *s = owner;
	off_t len = end == UINT64_MAX ? 0 : (off_t)((end - first) * PAGE_SIZE);

	(void)fuse_lowlevel_notify_inval_inode(
		s->fuse, ino, (off_t)(first * PAGE_SIZE), len);
	return 0;
}
