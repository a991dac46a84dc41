/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The control socket's server: one task, a bounded number of connections, short lines.
 *
 * The socket is 0600, but its clients may still send any bytes. Lines are bounded and parsed with
 * care. A client that does not read is dropped (invariants 9, 10). A command that may take long has
 * a task of its own, at most one for each connection.
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
/* Pause before the next try if there is no descriptor for a new connection. */
#define ACCEPT_PAUSE_NS 100000000ull

/* The function of a command: one of the three. */
struct command {
	control_fn fn;
	control_node_fn node_fn;
	control_scrub_fn scrub_fn;
	unsigned node;
	struct control_scrub scrub;
};

struct connection {
	int fd; /* -1: none */
	size_t used;
	char line[LINE_MAX_BYTES];
	struct control *control;
	struct command command; /* command of the task */
	struct rt_task *task;   /* answers, and alone uses the connection; else NULL */
	_Atomic bool answered;  /* set by that task, which then wakes the server */
	int result;             /* its result: 0, or the connection must end */
};

struct control {
	struct control_source source;
	struct rt_mutex lock;  /* for the five below; held briefly */
	json_t *word;          /* message for all connections; or NULL */
	bool dismiss;          /* connections end after it */
	bool starting;         /* only `leave` may be called yet */
	bool attached;         /* the source may be called */
	unsigned using;        /* number of calls of the source under way */
	struct rt_cond unused; /* signals that there is none */
	struct rt_task *task;
	_Atomic bool stop;
	int wake; /* eventfd */
	int listener;
	char uuid[37];
	char path[108];
	struct connection connections[CONNECTIONS_MAX]; /* used by the task alone */
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

static const char *scrub_of(
	struct control *c, const json_t *request, struct command *out)
{
	json_int_t rate = json_integer_value(json_object_get(request, "rate"));

	if (rate < 0)
		return "expected \"rate\": a number of bytes";
	out->scrub_fn = c->source.scrub;
	out->scrub = (struct control_scrub){.rate_bytes = (uint64_t)rate,
		.anew = json_is_true(json_object_get(request, "anew")),
		.stop = json_is_true(json_object_get(request, "stop"))};
	return NULL;
}

/* Returns NULL, or the error message. */
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
	else if (strcmp(cmd, "waits") == 0)
		out->fn = c->source.waits;
	else if (strcmp(cmd, "look") == 0)
		out->fn = c->source.look;
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
	else if (strcmp(cmd, "scrub") == 0)
		return scrub_of(c, request, out);
	else
		return "unknown cmd";
	if (!out->node_fn)
		return NULL;
	if (json_integer_value(node) <= 0 || json_integer_value(node) > UINT16_MAX)
		return "expected \"node\": a number";
	out->node = (unsigned)json_integer_value(node);
	return NULL;
}

/* Calls the source for the answer. control_detach waits meanwhile. */
static json_t *source_ask(struct control *c, const struct command *command)
{
	json_t *out;

	rt_mutex_lock(&c->lock);
	if (!c->attached && !(c->starting && command->fn == c->source.leave)) {
		bool starting = c->starting;

		rt_mutex_unlock(&c->lock);
		if (command->fn == c->source.leave) /* it is leaving already */
			return json_pack("{s:b}", "leaves", 1);
		return json_pack("{s:s}", "error",
			starting ? "the volume is being opened"
				 : "the volume is being closed");
	}
	c->using ++;
	rt_mutex_unlock(&c->lock);
	if (command->fn)
		out = command->fn(c->source.arg);
	else if (command->scrub_fn)
		out = command->scrub_fn(c->source.arg, &command->scrub);
	else
		out = command->node_fn(c->source.arg, command->node);
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

/* Sends an answer, and drops the reference. */
static int connection_send(struct connection *conn, json_t *out)
{
	char *text = out ? json_dumps(out, JSON_COMPACT | JSON_REAL_PRECISION(6)) : NULL;
	int rc = -ENOMEM;

	if (text) {
		rc = send_all(conn->fd, text, strlen(text));
		if (rc == 0)
			rc = send_all(conn->fd, "\n", 1);
	}
	free(text);
	json_decref(out);
	return rc;
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
		command.fn != c->source.reload && command.fn != c->source.look)
		return connection_send(conn, source_ask(c, &command));
	conn->control = c;
	conn->command = command;
	atomic_store(&conn->answered, false);
	return rt_task_spawn(&conn->task, "weft-asked", slow_run, conn);
}

/* Answers the complete lines, up to one that needs a task of its own. */
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
		connection_end(conn); /* a line longer than any command */
}

/* Takes a connection back from a task that has answered. */
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

/* Makes the eventfd unreadable first. Then the reasons for the wake-up are read. */
static void wake_take(struct control *c)
{
	uint64_t count;

	if (read(c->wake, &count, sizeof(count)) < 0)
		weft_log(3, "reading an eventfd failed: %s", strerror(errno));
}

/* Connections of other tasks are left to them. */
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

/* Sockets of ended daemons have been removed. If the name exists, a running daemon has it. */
static int socket_listen(struct control *c, const char *folder)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	mode_t mask = umask(0177);
	int rc;

	snprintf(c->path, sizeof(c->path), "%s/%s.sock", folder, c->uuid);
	strcpy(address.sun_path, c->path);
	rc = bind(c->listener, (struct sockaddr *)&address, sizeof(address));
	if (rc < 0 && errno == EADDRINUSE) {
		snprintf(c->path, sizeof(c->path), "%s/%s-%d.sock", folder, c->uuid,
			getpid());
		strcpy(address.sun_path, c->path);
		rc = bind(c->listener, (struct sockaddr *)&address, sizeof(address));
	}
	umask(mask);
	return rc < 0 || listen(c->listener, CONNECTIONS_MAX) < 0 ? -errno : 0;
}

static int socket_open(struct control *c, const char *folder, struct weft_error *err)
{
	int locked = control_folder_lock(folder, err);
	int rc;

	if (locked < 0)
		return locked;
	control_sweep(folder, locked);
	c->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	rc = c->listener < 0 ? -errno : socket_listen(c, folder);
	if (rc < 0) {
		weft_error(err, rc, "cannot listen on %s: %s", c->path, strerror(-rc));
		if (c->listener >= 0)
			close(c->listener);
	}
	close(locked);
	return rc;
}

int control_open(struct control **out, const uint8_t store_uuid[16],
	const struct control_source *source, struct weft_error *err)
{
	struct control *c;
	char folder[CONTROL_FOLDER_MAX];
	int rc;

	rc = control_folder_make(folder, err);
	if (rc < 0)
		return rc;
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
		rc = weft_error(err, -errno, "eventfd: %s", strerror(errno));
		goto out_free;
	}
	rc = socket_open(c, folder, err);
	if (rc < 0)
		goto out_wake;
	rc = rt_task_spawn(&c->task, "weft-control", control_run, c);
	if (rc < 0) {
		weft_error(err, rc, "cannot start the control task: %s", strerror(-rc));
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
	return rc;
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
