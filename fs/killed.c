/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Looks at interrupted requests. A worker says which request it serves, and for whom, in
 * words of its own; the task reads them, and asks the kernel for the thread's state.
 */
#include "fs/killed.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fs/session_internal.h"

#define LOOK_NS 200000000ull

bool killed_in_status(const char *status)
{
	const char *line = strstr(status, "\nSigPnd:");

	/* Whatever fatal signal it was: to the threads of a process that ends all are
	 * SIGKILL. */
	return line && (strtoull(line + 8, NULL, 16) >> (SIGKILL - 1) & 1);
}

/* Of a thread that has gone or cannot be seen nothing is known. */
static bool thread_is_killed(uint32_t thread)
{
	char path[32], status[4096];
	ssize_t length;
	int fd;

	snprintf(path, sizeof(path), "/proc/%u/status", thread);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return false;
	length = read(fd, status, sizeof(status) - 1);
	close(fd);
	status[MAX(length, 0)] = '\0';
	return killed_in_status(status);
}

/* The worker goes on to its next request at any moment: then the number is another. */
static bool worker_look(struct session *s, struct worker *w)
{
	uint64_t unique = atomic_load(&w->interrupted);

	if (!unique)
		return false;
	if (atomic_load(&w->serving) == unique &&
		!thread_is_killed(atomic_load(&w->asker)))
		return true;
	if (atomic_load(&w->serving) == unique)
		shim_reply(s, unique, -EINTR, NULL, 0);
	atomic_compare_exchange_strong(&w->interrupted, &unique, 0);
	return false;
}

static void killed_main(void *arg)
{
	struct session *s = arg;

	while (!atomic_load(&s->killed_stopping)) {
		uint32_t seen = atomic_load(&s->interrupts);
		bool some = false;

		for (unsigned i = 0; i < SESSION_WORKERS_MAX; i++)
			some |= worker_look(s, &s->workers[i]);
		if (!atomic_load(&s->killed_stopping))
			rt_wait(&s->interrupts, seen,
				some ? rt_now_ns() + LOOK_NS : RT_FOREVER);
	}
}

void killed_interrupt(struct session *s, uint64_t unique)
{
	if (!s->killed)
		return;
	for (unsigned i = 0; i < SESSION_WORKERS_MAX; i++)
		if (atomic_load(&s->workers[i].serving) == unique)
			atomic_store(&s->workers[i].interrupted, unique);
	atomic_fetch_add(&s->interrupts, 1);
	rt_wake(&s->interrupts, INT_MAX);
}

int killed_start(struct session *s)
{
	return rt_task_spawn(&s->killed, "weft-killed", killed_main, s);
}

void killed_stop(struct session *s)
{
	if (!s->killed)
		return;
	atomic_store(&s->killed_stopping, true);
	atomic_fetch_add(&s->interrupts, 1);
	rt_wake(&s->interrupts, INT_MAX);
	rt_task_join(s->killed);
	s->killed = NULL;
}
