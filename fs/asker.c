/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A thread that has been given the answer that it slept for runs on: it takes the answer in, in the kernel,
 * and sleeps there for locks and memory at most, which no signal ends (state D). So one that is seen in another
 * sleep, stopped, or to have spent time in its program, is past that.
 */
#include "fs/asker.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

/* Length, or -errno. */
static ssize_t proc_read(uint32_t thread, const char *what, char *text, size_t room)
{
	char path[64];
	ssize_t got;
	int fd;

	snprintf(path, sizeof(path), "/proc/%u/task/%u/%s", thread, thread, what);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	got = read(fd, text, room - 1);
	if (got < 0)
		got = -errno;
	close(fd);
	text[got < 0 ? 0 : got] = 0;
	return got;
}

/*
 * Off the processor's queue, so asleep: Linux names where. Of one that is about to sleep, or was woken
 * and has not run yet, it does not, though its state may say that it sleeps.
 */
static bool sleeps(uint32_t thread)
{
	char place[128];

	return proc_read(thread, "wchan", place, sizeof(place)) > 0 && *place != '0';
}

/* /proc is that of the threads' numbers, and shows everybody's. */
static bool may_look(void)
{
	char self[32];
	ssize_t got = readlink("/proc/self", self, sizeof(self) - 1);

	if (got < 0)
		return false;
	self[got] = 0;
	return strtol(self, NULL, 10) == getpid() && geteuid() == 0 &&
	       prctl(PR_CAPBSET_READ, CAP_SYS_PTRACE, 0, 0, 0) == 1;
}

int asker_seen(uint32_t thread)
{
	if (!may_look())
		return -1;
	return sleeps(thread);
}

/* From the third word of /proc/[pid]/stat, the state, to the fourteenth: the time spent in the program. */
static bool ran(const char *state, uint64_t *seen)
{
	const char *at = state;
	uint64_t user;
	bool more;

	for (unsigned i = 3; i < 14 && at; i++) {
		at = strchr(at, ' ');
		at = at ? at + 1 : NULL;
	}
	if (!at)
		return false;
	user = strtoull(at, NULL, 10) + 1;
	more = *seen && user > *seen;
	if (!*seen)
		*seen = user;
	return more;
}

bool asker_gone_on(uint32_t thread, uint64_t *seen)
{
	char text[512];
	ssize_t got = proc_read(thread, "stat", text, sizeof(text));
	const char *state;

	if (got < 0)
		return got == -ENOENT || got == -ESRCH;
	state = strrchr(text, ')'); /* behind the thread's name */
	if (!state || strlen(state) < 3)
		return false;
	state += 2;
	if (*state == 'D' || *state == 'R')
		return ran(state, seen);
	return *state != 'S' || sleeps(thread);
}
