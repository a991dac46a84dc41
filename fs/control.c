/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The control socket's server: one task, a bounded number of connections, short lines.
 *
 * Whoever may connect (the socket is 0600) may still send anything: lines are bounded and
 * parsed with care, and a reader that does not read is dropped (invariants 9, 10). What
 * may take long is answered by a task of its own, one to a connection at most.
 */
#include "fs/control.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "engine/common/text.h"
#include "engine/rt/rt.h"

#define CONNECTIONS_MAX 32
#define LINE_MAX_BYTES  1024
#define SEND_TIMEOUT_S  2
/* Without descriptors for a new connection: so long until the next try. */
#define ACCEPT_PAUSE_NS 100000000ull

/* What a line asks for: one of the two. */
struct command {
	control_fn fn;
	control_node_fn node_fn;
	unsigned node;
};

struct connection {
	int fd; /* -1: none */
	size_t used;
	char line[LINE_MAX_BYTES];
	struct control *control;
	struct command command; /* what the task is to answer with */
	struct rt_task *task;   /* answers, and has the connection to itself; else NULL */
	_Atomic bool answered;  /* by that task, which then wakes the server */
	int result;             /* then: 0, or the connection is to be ended */
};

struct control {
	struct control_source source;
	struct rt_mutex lock;  /* for the five below; held briefly */
	json_t *word;          /* to be said to all connections; or NULL */
	bool dismiss;          /* which then end */
	bool starting;         /* the source may only be asked to leave */
	bool attached;         /* the source may be used */
	unsigned using;        /* answers being made of it */
	struct rt_cond unused; /* none is */
	struct rt_task *task;
	_Atomic bool stop;
	int wake; /* eventfd */
	int listener;
	char uuid[37];
	char path[108];
	struct connection connections[CONNECTIONS_MAX]; /* the task's own */
};

/* ---- connections ----------------------------------------------------------- */

static void connection_end(struct connection *c)
{
	close(c->fd);
	c->fd = -1;
	c->used = 0;
}

static void connection_accept(struct control *c)
{
	struct timeval timeout = {.tv_sec = SEND_TIMEOUT_S};
	int fd = accept4(c->listener, NULL, NULL, SOCK_CLOEXEC);

	if (fd < 0) {
		if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED)
			rt_sleep_ns(ACCEPT_PAUSE_NS);
		return;
	}
	for (unsigned i = 0; i < CONNECTIONS_MAX; i++) {
		if (c->connections[i].fd >= 0)
			continue;
		if (setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout)) <
			0)
			break;
		c->connections[i].fd = fd;
		return;
	}
	close(fd);
}

/* NULL, or the reason why it cannot be had. */
static const char *command_of(
	struct control *c, const json_t *request, struct command *out)
{
	const char *cmd = json_string_value(json_object_get(request, "cmd"));
	const json_t *node = json_object_get(request, "node");

	*out = (struct command){0};
	if (!cmd)
		return "expected {\"cmd\":\"...\"}";
	if (strcmp(cmd, "status") == 0)
		out->fn = c->source.status;
	else if (strcmp(cmd, "identify") == 0)
		out->fn = c->source.identify;
	else if (strcmp(cmd, "leave") == 0)
		out->fn = c->source.leave;
	else if (strcmp(cmd, "sync") == 0)
		out->fn = c->source.sync;
	else if (strcmp(cmd, "reload") == 0)
		out->fn = c->source.reload;
	else if (strcmp(cmd, "dead") == 0)
		out->node_fn = c->source.dead;
	else
		return "unknown cmd";
	if (!out->node_fn)
		return NULL;
	if (json_integer_value(node) <= 0 || json_integer_value(node) > UINT16_MAX)
		return "expected \"node\": a number";
	out->node = (unsigned)json_integer_value(node);
	return NULL;
}

/* The answer; while it is made, control_detach waits. */
static json_t *source_ask(struct control *c, const struct command *command)
{
	json_t *out;

	rt_mutex_lock(&c->lock);
	if (!c->attached && !(c->starting && command->fn == c->source.leave)) {
		bool starting = c->starting;

		rt_mutex_unlock(&c->lock);
		if (command->fn == c->source.leave) /* it does so already */
			return json_pack("{s:b}", "leaves", 1);
		return json_pack("{s:s}", "error",
			starting ? "the volume is being opened"
				 : "the volume is being closed");
	}
	c->using ++;
	rt_mutex_unlock(&c->lock);
	out = command->fn ? command->fn(c->source.arg)
			  : command->node_fn(c->source.arg, command->node);
	rt_mutex_lock(&c->lock);
	if (--c->using == 0)
		rt_cond_broadcast(&c->unused);
	rt_mutex_unlock(&c->lock);
	return out;
}

static int send_all(int fd, const char *data, size_t len)
{
	while (len > 0) {
		ssize_t n = send(fd, data, len, MSG_NOSIGNAL);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return -EPIPE;
		data += n;
		len -= (size_t)n;
	}
	return 0;
}

/* Sends an answer and lets go of it. */
static int connection_send(struct connection *conn, json_t *out)
{
	char *text = out ? json_dumps(out, JSON_COMPACT | JSON_REAL_PRECISION(6)) : NULL;
	int ret = -ENOMEM;

	if (text) {
		ret = send_all(conn->fd, text, strlen(text));
		if (ret == 0)
			ret = send_all(conn->fd, "\n", 1);
	}
	free(text);
	json_decref(out);
	return ret;
}

static void slow_run(void *arg)
{
	struct connection *conn = arg;
	struct control *c = conn->control;
	uint64_t one = 1;

	conn->result = connection_send(conn, source_ask(c, &conn->command));
	atomic_store(&conn->answered, true);
	if (write(c->wake, &one, sizeof(one)) < 0)
		weft_log(3, "cannot wake the control task: %s", strerror(errno));
}

static int connection_answer(struct control *c, struct connection *conn)
{
	json_t *request = json_loads(conn->line, 0, NULL);
	struct command command;
	const char *why = command_of(c, request, &command);

	json_decref(request);
	if (why)
		return connection_send(conn, json_pack("{s:s}", "error", why));
	if (!command.node_fn && command.fn != c->source.sync &&
		command.fn != c->source.reload)
		return connection_send(conn, source_ask(c, &command));
	conn->control = c;
	conn->command = command;
	atomic_store(&conn->answered, false);
	return rt_task_spawn(&conn->task, "weft-asked", slow_run, conn);
}

/* Answers the lines that are there, up to one that a task of its own answers. */
static void connection_lines(struct control *c, struct connection *conn)
{
	char *end;

	while (!conn->task && (end = memchr(conn->line, '\n', conn->used))) {
		size_t taken = (size_t)(end - conn->line) + 1;

		*end = '\0';
		if (connection_answer(c, conn) < 0) {
			conn->task = NULL;
			connection_end(conn);
			return;
		}
		conn->used -= taken;
		memmove(conn->line, conn->line + taken, conn->used);
	}
	if (!conn->task && conn->used == LINE_MAX_BYTES)
		connection_end(conn); /* a line longer than any that we know */
}

/* Where a task of its own has answered, the server takes the connection back. */
static void connection_resume(struct control *c, struct connection *conn)
{
	if (!conn->task || !atomic_load(&conn->answered))
		return;
	rt_task_join(conn->task);
	conn->task = NULL;
	if (conn->result < 0)
		connection_end(conn);
	else
		connection_lines(c, conn);
}

static void connection_read(struct control *c, struct connection *conn)
{
	ssize_t n = recv(conn->fd, conn->line + conn->used, LINE_MAX_BYTES - conn->used,
		MSG_DONTWAIT);

	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (n <= 0) {
		connection_end(conn);
		return;
	}
	conn->used += (size_t)n;
	connection_lines(c, conn);
}

/* Back to not readable, before what it was written for is looked at. */
static void wake_take(struct control *c)
{
	uint64_t count;

	if (read(c->wake, &count, sizeof(count)) < 0)
		weft_log(3, "reading an eventfd failed: %s", strerror(errno));
}

/* Those that a task of its own has are left to it. */
static void connections_tell(struct control *c)
{
	json_t *word;
	bool dismiss;

	rt_mutex_lock(&c->lock);
	dismiss = c->dismiss;
	word = c->word;
	c->word = NULL;
	rt_mutex_unlock(&c->lock);
	for (unsigned i = 0; word && i < CONNECTIONS_MAX; i++) {
		struct connection *conn = &c->connections[i];

		if (conn->fd < 0 || conn->task)
			continue;
		if (connection_send(conn, json_incref(word)) < 0 || dismiss)
			connection_end(conn);
	}
	json_decref(word);
}

static void control_run(void *arg)
{
	struct control *c = arg;
	struct pollfd fds[2 + CONNECTIONS_MAX];

	while (!atomic_load(&c->stop)) {
		fds[0] = (struct pollfd){.fd = c->wake, .events = POLLIN};
		fds[1] = (struct pollfd){.fd = c->listener, .events = POLLIN};
		for (unsigned i = 0; i < CONNECTIONS_MAX; i++)
			fds[2 + i] = (struct pollfd){
				.fd = c->connections[i].task ? -1 : c->connections[i].fd,
				.events = POLLIN};
		if (poll(fds, ARRAY_SIZE(fds), -1) < 0)
			continue;
		if (fds[0].revents) {
			wake_take(c);
			connections_tell(c);
		}
		for (unsigned i = 0; i < CONNECTIONS_MAX; i++) {
			if (fds[2 + i].fd >= 0 && fds[2 + i].revents)
				connection_read(c, &c->connections[i]);
			connection_resume(c, &c->connections[i]);
		}
		if (fds[1].revents)
			connection_accept(c);
	}
}

/* ---- start and end --------------------------------------------------------------- */

/* Dead daemons' sockets have been taken away: what has the name is a living one's. */
static int socket_listen(struct control *c, const char *folder)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	mode_t mask = umask(0177);
	int ret;

	snprintf(c->path, sizeof(c->path), "%s/%s.sock", folder, c->uuid);
	strcpy(address.sun_path, c->path);
	ret = bind(c->listener, (struct sockaddr *)&address, sizeof(address));
	if (ret < 0 && errno == EADDRINUSE) {
		snprintf(c->path, sizeof(c->path), "%s/%s-%d.sock", folder, c->uuid,
			getpid());
		strcpy(address.sun_path, c->path);
		ret = bind(c->listener, (struct sockaddr *)&address, sizeof(address));
	}
	umask(mask);
	return ret < 0 || listen(c->listener, CONNECTIONS_MAX) < 0 ? -errno : 0;
}

static int socket_open(struct control *c, const char *folder, struct weft_error *err)
{
	int locked = control_folder_lock(folder, err);
	int ret;

	if (locked < 0)
		return locked;
	control_sweep(folder, locked);
	c->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	ret = c->listener < 0 ? -errno : socket_listen(c, folder);
	if (ret < 0) {
		weft_error(err, ret, "cannot listen on %s: %s", c->path, strerror(-ret));
		if (c->listener >= 0)
			close(c->listener);
	}
	close(locked);
	return ret;
}

int control_open(struct control **out, const uint8_t store_uuid[16],
	const struct control_source *source, struct weft_error *err)
{
	struct control *c;
	char folder[CONTROL_FOLDER_MAX];
	int ret;

	ret = control_folder_make(folder, err);
	if (ret < 0)
		return ret;
	c = rt_alloc(sizeof(*c));
	if (!c)
		return weft_error(err, -ENOMEM, "no memory for the control socket");
	c->source = *source;
	c->starting = true;
	for (unsigned i = 0; i < CONNECTIONS_MAX; i++)
		c->connections[i].fd = -1;
	uuid_print(store_uuid, c->uuid);
	c->wake = eventfd(0, EFD_CLOEXEC);
	if (c->wake < 0) {
		ret = weft_error(err, -errno, "eventfd: %s", strerror(errno));
		goto out_free;
	}
	ret = socket_open(c, folder, err);
	if (ret < 0)
		goto out_wake;
	ret = rt_task_spawn(&c->task, "weft-control", control_run, c);
	if (ret < 0) {
		weft_error(err, ret, "cannot start the control task: %s", strerror(-ret));
		goto out_socket;
	}
	*out = c;
	return 0;

out_socket:
	close(c->listener);
	unlink(c->path);
out_wake:
	close(c->wake);
out_free:
	rt_free(c);
	return ret;
}

static void word_set(struct control *c, json_t *word, bool dismiss)
{
	uint64_t one = 1;

	rt_mutex_lock(&c->lock);
	json_decref(c->word);
	c->word = word;
	c->dismiss = dismiss;
	rt_mutex_unlock(&c->lock);
	if (write(c->wake, &one, sizeof(one)) < 0)
		weft_log(3, "cannot wake the control task: %s", strerror(errno));
}

void control_say(struct control *c, json_t *word)
{
	word_set(c, word, false);
}

void control_dismiss(struct control *c, json_t *word)
{
	word_set(c, word, true);
}

void control_attach(struct control *c)
{
	rt_mutex_lock(&c->lock);
	c->starting = false;
	c->attached = true;
	rt_mutex_unlock(&c->lock);
}

void control_detach(struct control *c)
{
	rt_mutex_lock(&c->lock);
	if (c->starting || c->attached)
		unlink(c->path);
	c->starting = c->attached = false;
	while (c->using > 0)
		rt_cond_wait(&c->unused, &c->lock, RT_FOREVER);
	rt_mutex_unlock(&c->lock);
}

void control_close(struct control *c)
{
	uint64_t one = 1;

	if (!c)
		return;
	atomic_store(&c->stop, true);
	if (write(c->wake, &one, sizeof(one)) < 0)
		weft_log(3, "cannot stop the control task: %s", strerror(errno));
	rt_task_join(c->task);
	for (unsigned i = 0; i < CONNECTIONS_MAX; i++) {
		if (c->connections[i].task)
			rt_task_join(c->connections[i].task);
		if (c->connections[i].fd >= 0)
			connection_end(&c->connections[i]);
	}
	close(c->listener);
	close(c->wake);
	json_decref(c->word);
	rt_free(c);
}
