/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The guardian has two descriptors. One is of the connection's "abort" file in fusectl. It stands
 * for that connection alone, whose number may be reused a moment after its end. The other is of the
 * connection's device. By it the guardian tells the kernel to drop its cache. The kernel answers
 * from its cache even after an abort.
 *
 * The guardian learns of the daemon's end by the signal that Linux sends when the thread that has
 * forked ends (PR_SET_PDEATHSIG). A pidfd, or the other end of a pipe, does not show the end while
 * one of the daemon's threads is left. The main thread may be that one, in syncfs or umount. So a
 * task of its own forks, and then only waits for a word.
 */
#include "fs/guardian.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/pidfd.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/rt/rt_shared.h"
#include "fs/dead_cache.h"
#include "fs/mount.h"
#include "fs/ops/kept.h"

#define NAME "weft-guardian"
/* Sent when the daemon has ended. A service manager that stops services does not send it to all
 * processes. */
#define END_SIGNAL  SIGUSR1
#define CONNECTIONS "/sys/fs/fuse/connections"
/* Limit of restarts in succession after kills. After a daemon that has run for this time, the count
 * starts again. */
#define RESTARTS_MAX      5
#define RESTARTS_LIVED_NS 60000000000ull
#define RESTART_PAUSE_MS  500 /* doubles each time */
#define DYING_LOOK_MS     10

/* ---- the kernel's control of a connection --------------------------------------- */

/* Opens fusectl without a mounted path, or else at its usual mount point. */
static int control_folder_open(void)
{
	int context = fsopen("fusectl", FSOPEN_CLOEXEC);
	int folder = -1;

	if (context >= 0) {
		if (fsconfig(context, FSCONFIG_CMD_CREATE, NULL, NULL, 0) == 0)
			folder = fsmount(context, FSMOUNT_CLOEXEC, 0);
		close(context);
	}
	return folder >= 0 ? folder
			   : open(CONNECTIONS, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

/* Opens the file that ends a connection when it is written. Returns it, or -errno. */
static int abort_open(unsigned connection)
{
	int folder = control_folder_open();
	char name[32];
	int fd;

	if (folder < 0)
		return -errno;
	snprintf(name, sizeof(name), "%u/abort", connection);
	fd = openat(folder, name, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		fd = -errno;
	close(folder);
	return fd;
}

/* Memory shared by both processes. */
struct guardian_shared {
	_Atomic uint32_t restarts;
	_Atomic uint64_t noted[];
};

/* ---- restarts after the daemon's end ----------------------------------------------- */

static _Noreturn void exec_again(char *const *again)
{
	sigset_t none;

	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	execv("/proc/self/exe", again);
	_exit(127);
}

/* Returns false for a signal that asks the process to end. One that comes before the daemon handles
 * signals also kills it. */
static bool was_killed(int status)
{
	int by = WIFSIGNALED(status) ? WTERMSIG(status) : 0;

	return by && by != SIGTERM && by != SIGINT && by != SIGHUP;
}

/*
 * Restarts the daemon until it ends by itself: it will be mounted, no node needs it, it cannot
 * start, or it was asked to end. A daemon that is killed again and again is not restarted.
 * `daemon`: the pidfd of the first; -1: the kernel has none.
 */
static void restart_loop(const struct guardian *g, int daemon)
{
	struct pollfd end = {.fd = daemon, .events = POLLIN};
	unsigned failures = 0;

	/* Its store is free only after all threads have ended. After that another process may use
	 * the store. */
	while (daemon >= 0 && poll(&end, 1, -1) < 0 && errno == EINTR)
		;
	while (getppid() == g->daemon)
		poll(NULL, 0, DYING_LOOK_MS);
	while (failures < RESTARTS_MAX) {
		uint64_t begin = rt_now_ns();
		int status = 0;
		pid_t child = fork();

		if (child == 0)
			exec_again(g->again);
		if (child < 0 || waitpid(child, &status, 0) < 0 || !was_killed(status))
			return;
		failures = rt_now_ns() - begin >= RESTARTS_LIVED_NS ? 0 : failures + 1;
		poll(NULL, 0, RESTART_PAUSE_MS << failures);
	}
}

/* ---- the process ------------------------------------------------------------------ */

/* Writes the name over the daemon's arguments, as far as it fits. getopt has changed their
 * order. */
static void name_process(const struct guardian *g)
{
	char *begin = g->argv[0], *end = g->argv[0];
	const char *from = NAME;

	prctl(PR_SET_NAME, NAME);
	for (int i = 0; i < g->argc; i++) {
		begin = MIN(begin, g->argv[i]);
		end = MAX(end, g->argv[i] + strlen(g->argv[i]));
	}
	while (begin < end)
		*begin++ = *from ? *from++ : '\0';
}

struct mounted {
	int abort;  /* the file in fusectl */
	int device; /* open in the daemon, too; writes on it get no answer */
};

static bool mounted_receive(struct mounted *m, int socket)
{
	int abort = mount_receive_descriptor(socket), device;

	if (abort < 0)
		return false;
	device = mount_receive_descriptor(socket);
	if (device >= 0)
		*m = (struct mounted){abort, device};
	return device >= 0;
}

/* Returns true if the kernel now reports to programs only that the mount has gone. */
static bool mounted_end(const struct mounted *m, const struct guardian *g)
{
	if (m->device < 0 || write(m->abort, "1", 1) < 0)
		return false;
	dead_cache_drop(m->device, &g->noted);
	close(m->device);
	return true;
}

/* Forked while there are other threads, so it may only do things safe in a signal handler: no
 * memory, no locks. All signals are blocked here, as in the task that forked. */
static _Noreturn void process_run(const struct guardian *g, int socket)
{
	struct pollfd events[] = {{.events = POLLIN}, {.fd = socket, .events = POLLIN}};
	struct mounted m = {.abort = -1, .device = -1};
	bool ended = false;
	sigset_t set;
	int daemon;

	/* The guardian must not keep the daemon's pipes, terminal or folder open: other processes
	 * may wait for their end. */
	close_range(0, (unsigned)socket - 1, 0);
	close_range((unsigned)socket + 1, ~0u, 0);
	if (setsid() < 0 || chdir("/") < 0 || prctl(PR_SET_PDEATHSIG, END_SIGNAL) < 0)
		_exit(1);
	name_process(g);
	daemon = pidfd_open(g->daemon, 0); /* it runs, or the loop ends at once */
	sigemptyset(&set);
	sigaddset(&set, END_SIGNAL);
	events[0].fd = signalfd(-1, &set, SFD_CLOEXEC);
	while (!ended && getppid() == g->daemon) {
		if (poll(events, ARRAY_SIZE(events), -1) < 0)
			break;
		ended = events[0].revents;
		if (!ended && events[1].revents)
			ended = !mounted_receive(&m, socket);
	}
	/* After the restart other nodes may change the files. The kernel must not show its old
	 * cache then. */
	if (mounted_end(&m, g) && atomic_load(&g->shared->restarts))
		restart_loop(g, daemon);
	_exit(0);
}

/* ---- the daemon's side -------------------------------------------------------------- */

struct fork_call {
	struct guardian *guardian;
	int process_socket;
	_Atomic uint32_t done;
	int error;
};

static void guardian_task(void *arg)
{
	struct fork_call *call = arg;
	struct guardian *g = call->guardian;
	pid_t child = fork();

	if (child == 0)
		process_run(g, call->process_socket);
	call->error = child < 0 ? -errno : 0;
	atomic_store(&call->done, 1);
	rt_wake(&call->done, 1);
	while (!atomic_load(&g->ended))
		rt_wait(&g->ended, 0, RT_FOREVER);
}

int guardian_start(
	struct guardian *g, int argc, char **argv, char *const *again, uint32_t inodes)
{
	struct fork_call call = {.guardian = g};
	struct rt_shared *memory;
	int sockets[2];
	int rc;

	*g = (struct guardian){
		.daemon = getpid(), .argc = argc, .argv = argv, .again = again};
	rc = rt_shared_create(
		&memory, sizeof(*g->shared) + inodes * sizeof(*g->shared->noted), false);
	if (rc < 0)
		return rc;
	g->shared = rt_shared_base(memory); /* kept until this process ends */
	g->noted = (struct kcache_noted){g->shared->noted, inodes};
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) < 0)
		return -errno;
	g->socket = sockets[0];
	call.process_socket = sockets[1];
	rc = rt_task_spawn(&g->task, NAME, guardian_task, &call);
	if (rc < 0) {
		g->task = NULL;
		close(g->socket);
	}
	while (rc == 0 && !atomic_load(&call.done))
		rt_wait(&call.done, 0, RT_FOREVER);
	close(sockets[1]);
	if (rc == 0 && call.error < 0) {
		rc = call.error;
		guardian_stop(g);
	}
	return rc;
}

void guardian_restarts(struct guardian *g, bool restarts)
{
	if (g->shared)
		atomic_store(&g->shared->restarts, restarts);
}

const struct kcache_noted *guardian_noted(const struct guardian *g)
{
	return g->task ? &g->noted : NULL;
}

static int send_descriptor(int to, int fd)
{
	union {
		struct cmsghdr header;
		char space[CMSG_SPACE(sizeof(int))];
	} control = {0};
	char byte = 0;
	struct iovec iov = {&byte, 1};
	struct msghdr message = {
		.msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = &control,
		.msg_controllen = sizeof(control),
	};

	control.header.cmsg_level = SOL_SOCKET;
	control.header.cmsg_type = SCM_RIGHTS;
	control.header.cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(&control.header), &fd, sizeof(fd));
	return sendmsg(to, &message, MSG_NOSIGNAL) < 0 ? -errno : 0;
}

int guardian_connection(struct guardian *g, const char *directory, int device)
{
	struct statx st;
	int fd, ret;

	if (!g->task)
		return -ESRCH;
	/* Use the kernel's own data: the mount is not served yet. */
	if (statx(AT_FDCWD, directory, AT_STATX_DONT_SYNC | AT_NO_AUTOMOUNT, 0, &st) < 0)
		return -errno;
	fd = abort_open(st.stx_dev_minor);
	if (fd < 0)
		return fd;
	ret = send_descriptor(g->socket, fd);
	close(fd);
	if (ret == 0)
		ret = send_descriptor(g->socket, device);
	return ret;
}

void guardian_stop(struct guardian *g)
{
	guardian_restarts(g, false);
	if (!g->task)
		return;
	atomic_store(&g->ended, 1);
	rt_wake(&g->ended, 1);
	rt_task_join(g->task);
	close(g->socket);
	g->task = NULL;
}

/* ---- daemons whose guardians were killed, too ----------------------------------------------- */

/* Returns true for a daemon that has ended except for threads that have yet to end. */
static bool is_ended_daemon(const char *pid)
{
	char path[64], name[32] = "", state = 0;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%.20s/stat", pid);
	f = fopen(path, "re");
	if (!f)
		return false;
	if (fscanf(f, "%*d (%31[^)]) %c", name, &state) != 2)
		state = 0;
	fclose(f);
	return state == 'Z' && strcmp(name, "weftd") == 0;
}

/* Finds the connection of a FUSE device by its fdinfo. */
static void end_connection_of(const char *info, const char *pid)
{
	unsigned connection = 0;
	FILE *f = fopen(info, "re");
	char line[256];
	int fd;

	if (!f)
		return;
	while (!connection && fgets(line, sizeof(line), f))
		if (sscanf(line, "fuse_connection: %u", &connection) != 1)
			connection = 0;
	fclose(f);
	fd = connection ? abort_open(connection) : -ENOENT;
	if (fd < 0)
		return;
	if (write(fd, "1", 1) == 1)
		weft_log(5, "weftd %s was killed but could not exit: its guardian has "
			"ended the mount",
			pid);
	close(fd);
}

/* Calls fn(path, arg) for the entries of a folder whose names are numbers. */
static void each_number(const char *folder, void (*fn)(const char *path, const char *arg),
	const char *arg)
{
	DIR *d = opendir(folder);
	struct dirent *entry;
	char path[128];

	while (d && (entry = readdir(d))) {
		if (!isdigit((unsigned char)entry->d_name[0]))
			continue;
		snprintf(path, sizeof(path), "%.80s/%.20s", folder, entry->d_name);
		fn(path, arg ? arg : entry->d_name);
	}
	if (d)
		closedir(d);
}

static void sweep_thread(const char *thread, const char *pid)
{
	char path[128];

	snprintf(path, sizeof(path), "%.100s/fdinfo", thread);
	each_number(path, end_connection_of, pid);
}

static void sweep_process(const char *process, const char *pid)
{
	char path[128];

	if (!is_ended_daemon(pid))
		return;
	snprintf(path, sizeof(path), "%.100s/task", process);
	each_number(path, sweep_thread, pid);
}

void guardian_sweep(void)
{
	each_number("/proc", sweep_process, NULL);
}
