/* SPDX-License-Identifier: Apache-2.0 */
/* Into the background once ready; see daemonize.h. */
#include "fs/daemonize.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/wait.h>
#include <syslog.h>
#include <unistd.h>

static int ready_fd = -1; /* the child's end of the pipe */

/* The sink is installed before any thread exists; in_background then switches it. */
static void (*foreground_sink)(int level, const char *line);
static _Atomic bool in_background;

static void log_sink(int level, const char *line)
{
	if (!atomic_load_explicit(&in_background, memory_order_acquire))
		foreground_sink(level, line);
	else if (level <= LOG_INFO)
		syslog(level, "%s", line);
}

/* Waits for the child's word, or its end. The child has printed what went wrong. */
static _Noreturn void parent_wait(int fd, pid_t child)
{
	char word;
	ssize_t n;
	int status;

	do {
		n = read(fd, &word, 1);
	} while (n < 0 && errno == EINTR);
	if (n == 1)
		_exit(0);
	while (waitpid(child, &status, 0) < 0)
		if (errno != EINTR)
			_exit(EXIT_MOUNT);
	_exit(WIFEXITED(status) && WEXITSTATUS(status) ? WEXITSTATUS(status)
						       : EXIT_MOUNT);
}

static void sink_install(void)
{
	foreground_sink = weft_log_sink;
	weft_log_sink = log_sink;
}

static void sink_to_background(void)
{
	openlog("weftd", LOG_PID, LOG_DAEMON);
	atomic_store_explicit(&in_background, true, memory_order_release);
}

void daemonize_unheard(void)
{
	sink_install();
	sink_to_background();
}

int daemonize_begin(void)
{
	int fds[2];
	pid_t child;

	if (pipe2(fds, O_CLOEXEC) < 0)
		return -errno;
	child = fork();
	if (child < 0) {
		int rc = -errno;

		close(fds[0]);
		close(fds[1]);
		return rc;
	}
	if (child > 0) {
		close(fds[1]);
		parent_wait(fds[0], child);
	}
	close(fds[0]);
	ready_fd = fds[1];
	if (!foreground_sink)
		sink_install();
	return 0;
}

void daemonize_ready(void)
{
	int null;

	if (ready_fd < 0)
		return;
	sink_to_background();
	setsid(); /* fails only for a leader, and a forked child is none */
	if (chdir("/") < 0)
		weft_log(4, "cannot leave the working directory: %s", strerror(errno));
	null = open("/dev/null", O_RDWR | O_CLOEXEC);
	if (null >= 0) {
		dup2(null, STDIN_FILENO);
		dup2(null, STDOUT_FILENO);
		dup2(null, STDERR_FILENO);
		close(null);
	}
	if (write(ready_fd, "r", 1) < 0)
		weft_log(4, "cannot report to the process that started this weftd: %s",
			strerror(errno));
	close(ready_fd);
	ready_fd = -1;
}
