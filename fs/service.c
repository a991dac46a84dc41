/* SPDX-License-Identifier: Apache-2.0 */
/* Words to the service manager; see service.h. */
#include "fs/service.h"

#include <errno.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "engine/rt/rt.h"

/* The watchdog's interval holds so many words. */
#define WORDS_PER_INTERVAL 4

static struct sockaddr_un manager; /* sun_family is 0: there is none */
static socklen_t manager_bytes;
static uint64_t watchdog_ns; /* 0: nobody watches */
static bool begun;

static struct {
	struct rt_task *task;
	_Atomic uint32_t stopping;
	void (*works)(void *arg);
	void *arg;
} watchdog;

/* ---- the manager's variables ---------------------------------------------------- */

/* A path, or @NAME in the abstract namespace. Other kinds of sockets are for virtual machines. */
static void read_socket(const char *name)
{
	size_t len = name ? strlen(name) : 0;

	if (len < 2 || len >= sizeof(manager.sun_path) || !strchr("/@", *name))
		return;
	manager.sun_family = AF_UNIX;
	memcpy(manager.sun_path, name, len);
	manager_bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len);
	if (*name == '@')
		manager.sun_path[0] = '\0';
	else
		manager_bytes++;
}

/* WATCHDOG_PID is another process if that one was to be watched, and has started this one. */
static void read_watchdog(const char *usec, const char *pid)
{
	uint64_t us = usec ? strtoull(usec, NULL, 10) : 0;

	if (us && us < UINT64_MAX / 1000 && (!pid || strtoll(pid, NULL, 10) == getpid()))
		watchdog_ns = us * 1000;
}

void service_open(void)
{
	read_socket(getenv("NOTIFY_SOCKET"));
	read_watchdog(getenv("WATCHDOG_USEC"), getenv("WATCHDOG_PID"));
	unsetenv("NOTIFY_SOCKET");
	unsetenv("WATCHDOG_USEC");
	unsetenv("WATCHDOG_PID");
}

static void sink_with_level(int level, const char *line)
{
	if (level <= 6)
		fprintf(stderr, "<%d>%s\n", level, line);
}

void service_begin(void)
{
	if (!manager.sun_family)
		return;
	begun = true;
	weft_log_sink = sink_with_level;
}

bool service_managed(void)
{
	return begun;
}

/* ---- words ------------------------------------------------------------------------ */

void service_tell(const char *line)
{
	int fd;

	if (!begun)
		return;
	fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd < 0 || sendto(fd, line, strlen(line), MSG_NOSIGNAL,
			      (struct sockaddr *)&manager, manager_bytes) < 0)
		weft_log(4, "cannot reach the service manager: %s", strerror(errno));
	if (fd >= 0)
		close(fd);
}

void service_tell_status(const char *fmt, ...)
{
	char line[1024] = "STATUS=";
	const size_t begin = strlen(line);
	va_list args;

	va_start(args, fmt);
	vsnprintf(line + begin, sizeof(line) - begin, fmt, args);
	va_end(args);
	for (char *c = line; *c; c++)
		*c = *c == '\n' ? ' ' : *c;
	service_tell(line);
}

/* ---- the watchdog ------------------------------------------------------------------ */

static void watchdog_main(void *arg)
{
	while (!atomic_load(&watchdog.stopping)) {
		watchdog.works(watchdog.arg);
		service_tell("WATCHDOG=1");
		rt_wait(&watchdog.stopping, 0, rt_now_ns() + watchdog_ns / WORDS_PER_INTERVAL);
	}
}

int service_watchdog_start(void (*works)(void *arg), void *arg)
{
	if (!begun || !watchdog_ns)
		return 0;
	watchdog.works = works;
	watchdog.arg = arg;
	return rt_task_spawn(&watchdog.task, "weft-watchdog", watchdog_main, NULL);
}

void service_watchdog_stop(void)
{
	if (!watchdog.task)
		return;
	atomic_store(&watchdog.stopping, 1);
	rt_wake(&watchdog.stopping, 1);
	rt_task_join(watchdog.task);
	watchdog.task = NULL;
}
