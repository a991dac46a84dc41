/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Talks to running daemons through their control sockets (fs/control.h).
 *
 * Trusts only daemons of this user, and of these only that they are not malicious: answers are
 * bounded in size and time. Waits for none longer than CLIENT_SECONDS, unless the caller asks for
 * it.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "fs/control.h"
#include "tools/tools.h"

#define ANSWER_MAX       (1u << 20)
#define BUSY_RETRY_MS    50
#define CLIENTS_MAX      256 /* of one user */
#define CLIENT_NAME_MAX  64  /* UUID-PID.sock */

const char *client_text(const json_t *o, const char *key)
{
	const char *s = json_string_value(json_object_get(o, key));

	return s ? s : "";
}

/* ---- one daemon ------------------------------------------------------------------ */

/* Returns true if the process that called listen(2) at the other end belongs to this user. */
static bool is_ours(int fd)
{
	struct ucred peer;
	socklen_t len = sizeof(peer);

	return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) == 0 &&
	       peer.uid == geteuid();
}

/* -EAGAIN: its queue of connections is full. */
static int client_connect(const char *folder, const char *name)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	struct timeval timeout = {.tv_sec = CLIENT_SECONDS};
	int n = snprintf(
		address.sun_path, sizeof(address.sun_path), "%s/%s", folder, name);
	int rc = 0;
	int fd;

	if (n < 0 || (size_t)n >= sizeof(address.sun_path))
		return -ENAMETOOLONG;
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return -errno;
	if (setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout)) < 0 ||
		setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout)) < 0 ||
		connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0 ||
		fcntl(fd, F_SETFL, 0) < 0)
		rc = -errno;
	else if (!is_ours(fd))
		rc = -EPERM;
	if (rc < 0)
		close(fd);
	return rc < 0 ? rc : fd;
}

static int64_t clock_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* Returns the time in which an answer must have come, in milliseconds; 0: there is no limit. */
static int64_t limit_of(int fd)
{
	struct timeval limit = {0};
	socklen_t len = sizeof(limit);

	if (getsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, &len) < 0)
		return CLIENT_SECONDS * 1000;
	return (int64_t)limit.tv_sec * 1000 + limit.tv_usec / 1000;
}

/* Reads up to the end of a line. The limit is for all of it. Returns its length, or -errno. */
static ssize_t receive_line(int fd, char *buf, size_t cap)
{
	int64_t limit_ms = limit_of(fd), until = clock_ms() + limit_ms;
	size_t used = 0;

	while (used < cap) {
		struct pollfd more = {.fd = fd, .events = POLLIN};
		int64_t left_ms = limit_ms ? MAX(until - clock_ms(), 0) : -1;
		ssize_t n = poll(&more, 1, (int)left_ms);

		if (n == 0)
			return -ETIMEDOUT;
		if (n > 0)
			n = recv(fd, buf + used, cap - used, 0);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return errno == EAGAIN ? -ETIMEDOUT : -errno;
		if (n == 0)
			return -EPIPE;
		used += (size_t)n;
		if (buf[used - 1] == '\n')
			return (ssize_t)used;
	}
	return -EMSGSIZE;
}

static bool send_request(int fd, const char *cmd)
{
	char request[64];
	int len = snprintf(request, sizeof(request), "{\"cmd\":\"%s\"}\n", cmd);

	return send(fd, request, (size_t)len, MSG_NOSIGNAL) == len;
}

static void error_set(json_t *answer, struct weft_error *err)
{
	client_clean(answer);
	if (strcmp(client_text(answer, "error"), "unknown cmd") == 0)
		weft_error(err, -EREMOTEIO,
			"its weftd is of another version, and does not know this command");
	else
		weft_error(err, -EREMOTEIO, "%s", client_text(answer, "error"));
}

/* Returns the answer to a request that was sent, or could not be. */
static json_t *hear_answer(int fd, bool sent, struct weft_error *err)
{
	char *buf = malloc(ANSWER_MAX);
	json_t *out = NULL;
	ssize_t n;

	if (!buf) {
		weft_error(err, -ENOMEM, "no memory for its answer");
		return NULL;
	}
	n = sent ? receive_line(fd, buf, ANSWER_MAX) : -EPIPE;
	if (n == -ETIMEDOUT)
		weft_error(err, -ETIMEDOUT, "its weftd has not answered for %d s",
			(int)(limit_of(fd) / 1000));
	else if (n < 0)
		weft_error(err, (int)n, "its weftd does not answer: %s",
			n == -EPIPE ? "it has ended" : strerror((int)-n));
	else
		out = json_loadb(buf, (size_t)n, 0, NULL);
	free(buf);
	if (n >= 0 && !json_is_object(out))
		weft_error(err, -EPROTO, "its weftd gave an answer that this weft cannot read");
	else if (!json_object_get(out, "error"))
		return out;
	else
		error_set(out, err);
	json_decref(out);
	return NULL;
}

json_t *client_ask(int fd, const char *cmd, struct weft_error *err)
{
	return hear_answer(fd, send_request(fd, cmd), err);
}

json_t *client_ask_of(int fd, const char *cmd, unsigned node, struct weft_error *err)
{
	char request[64];
	int len = snprintf(
		request, sizeof(request), "{\"cmd\":\"%s\",\"node\":%u}\n", cmd, node);

	return hear_answer(fd, send(fd, request, (size_t)len, MSG_NOSIGNAL) == len, err);
}

json_t *client_ask_line(int fd, const char *line, struct weft_error *err)
{
	size_t len = strlen(line);

	return hear_answer(fd, send(fd, line, len, MSG_NOSIGNAL) == (ssize_t)len, err);
}

void client_limit(int fd, unsigned seconds)
{
	struct timeval limit = {.tv_sec = seconds};

	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
}

/* Returns the length of the control character at `s`, of C0, C1 (in UTF-8) or DEL; or 0. */
static size_t control_length(const char *s)
{
	unsigned char first = (unsigned char)s[0], second = first ? (unsigned char)s[1] : 0;

	if (first < 0x20 || first == 0x7f)
		return 1;
	return first == 0xc2 && second >= 0x80 && second < 0xa0 ? 2 : 0;
}

static json_t *string_clean(const char *s)
{
	char *text = strdup(s), *to = text;
	json_t *out;

	while (text && *s) {
		size_t control = control_length(s);

		*to++ = control ? '?' : *s;
		s += control ?: 1;
	}
	if (text)
		*to = '\0';
	out = json_string(text ?: "");
	free(text);
	return out;
}

void client_clean(json_t *o)
{
	const char *key;
	json_t *value;
	void *next;
	size_t i;

	json_object_foreach_safe(o, next, key, value)
	{
		if (json_is_string(value))
			json_object_set_new(
				o, key, string_clean(json_string_value(value)));
		else
			client_clean(value);
	}
	json_array_foreach(o, i, value)
	{
		if (json_is_string(value))
			json_array_set_new(o, i, string_clean(json_string_value(value)));
		else
			client_clean(value);
	}
}

bool client_wait_end(int fd, int timeout_ms, char last[CLIENT_LAST_BYTES])
{
	size_t used = strlen(last);
	struct pollfd end = {.fd = fd, .events = POLLIN};
	char byte;
	ssize_t n;

	do {
		n = poll(&end, 1, timeout_ms);
		if (n == 0)
			return false;
		if (n > 0)
			n = recv(fd, &byte, 1, 0);
		if (n == 1 && used + 1 < CLIENT_LAST_BYTES) {
			last[used++] = byte;
			last[used] = '\0';
		}
	} while (n > 0 || (n < 0 && (errno == EINTR || errno == EAGAIN)));
	return true;
}

/* ---- all of them ----------------------------------------------------------------- */

/* All requests are sent before the first answer is waited for. A daemon that hangs, or is stopped,
 * then delays no other. */
struct asked {
	struct pollfd fds[CLIENTS_MAX];
	char name[CLIENTS_MAX][CLIENT_NAME_MAX];
	unsigned count;
	char busy[CLIENTS_MAX][CLIENT_NAME_MAX]; /* to be asked again */
	unsigned busy_count;
	bool dead; /* there is a socket without a listener */
};

static void ask_one(struct asked *a, const char *folder, const char *name)
{
	int fd = strlen(name) < CLIENT_NAME_MAX && a->count < CLIENTS_MAX
			 ? client_connect(folder, name)
			 : -ENAMETOOLONG;

	a->dead |= fd == -ECONNREFUSED;
	if (fd == -EAGAIN && a->busy_count < CLIENTS_MAX)
		strcpy(a->busy[a->busy_count++], name);
	if (fd < 0)
		return;
	if (!send_request(fd, "identify")) {
		close(fd);
		return;
	}
	strcpy(a->name[a->count], name);
	a->fds[a->count++] = (struct pollfd){.fd = fd, .events = POLLIN};
}

/* Returns true if no other answer is needed. */
static bool hear_one(struct pollfd *p, bool (*fn)(void *, struct client *), void *arg)
{
	struct weft_error err = {0};
	struct client c = {.fd = p->fd};
	bool enough;

	p->fd = -1;
	c.identity = hear_answer(c.fd, true, &err);
	enough = c.identity && fn(arg, &c);
	json_decref(c.identity);
	if (c.fd >= 0)
		close(c.fd);
	return enough;
}

static void ask_busy(struct asked *a, const char *folder)
{
	unsigned count = a->busy_count;

	a->busy_count = 0;
	for (unsigned i = 0; i < count; i++) {
		char name[CLIENT_NAME_MAX];

		strcpy(name, a->busy[i]);
		ask_one(a, folder, name);
	}
}

/* Hears answers until none has come for this time, or fn returns true. Returns true in the latter
 * case. */
static bool hear_all(struct asked *a, const char *folder,
	bool (*fn)(void *, struct client *), void *arg)
{
	unsigned heard = 0, silent_ms = 0;

	while (heard < a->count || a->busy_count) {
		unsigned wait_ms =
			a->busy_count ? BUSY_RETRY_MS : CLIENT_SECONDS * 1000;
		int n = poll(a->fds, a->count, (int)wait_ms);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return false;
		silent_ms = n ? 0 : silent_ms + wait_ms;
		if (silent_ms >= CLIENT_SECONDS * 1000)
			return false;
		if (!n)
			ask_busy(a, folder);
		for (unsigned i = 0; i < a->count; i++) {
			if (a->fds[i].fd < 0 || !a->fds[i].revents)
				continue;
			heard++;
			if (hear_one(&a->fds[i], fn, arg))
				return true;
		}
	}
	return false;
}

static void client_sweep(const char *folder)
{
	int locked = control_folder_lock(folder, NULL);

	if (locked < 0)
		return;
	control_sweep(folder, locked);
	close(locked);
}

/* Returns true if fn has returned true. */
static bool client_each_in(
	const char *folder, bool (*fn)(void *arg, struct client *c), void *arg)
{
	struct asked *a = calloc(1, sizeof(*a));
	struct dirent *d;
	bool enough;
	DIR *dir;

	dir = a ? opendir(folder) : NULL;
	while (dir && (d = readdir(dir)))
		if (control_is_socket(d->d_name))
			ask_one(a, folder, d->d_name);
	if (dir)
		closedir(dir);
	enough = a && hear_all(a, folder, fn, arg);
	for (unsigned i = 0; a && !enough && i < a->busy_count; i++)
		fprintf(stderr,
			"weft: %s/%s: its weftd has taken no connection for %d s\n",
			folder, a->busy[i], CLIENT_SECONDS);
	for (unsigned i = 0; a && i < a->count; i++) {
		if (a->fds[i].fd < 0)
			continue;
		if (!enough)
			fprintf(stderr,
				"weft: %s/%s: its weftd has not answered for %d s\n",
				folder, a->name[i], CLIENT_SECONDS);
		close(a->fds[i].fd);
	}
	if (a && a->dead)
		client_sweep(folder);
	free(a);
	return enough;
}

void client_each(bool (*fn)(void *arg, struct client *c), void *arg)
{
	char folder[CONTROL_FOLDER_MAX];

	for (unsigned i = 0; control_folder(i, folder); i++)
		if (client_each_in(folder, fn, arg))
			return;
}

/* ---- the daemon of a name -------------------------------------------------------- */

/* How well a daemon fits a name. The best fit wins. */
enum fit {
	FIT_MOUNT,
	FIT_MOUNT_BELOW,
	FIT_STORE,
	FIT_UUID,
	FIT_LABEL,
	FIT_INSIDE,
	FIT_NONE
};

struct search {
	const char *name;
	const char *path;  /* name made absolute */
	const char *mount; /* the mount that it lies in; or NULL */
	char device
		[CLIENT_DEVICE]; /* of the mount there now; "" if it does not answer */
	enum fit fit;
	unsigned count; /* number of daemons with the best fit */
	int fd;         /* connection with the first of them */
	json_t *identity;
};

static enum fit fit_of(const struct search *s, const json_t *identity)
{
	/* A daemon that is detached, or has another mount over it, does not fit. */
	if (strcmp(client_text(identity, "mount_point"), s->path) == 0)
		return strcmp(client_text(identity, "device_number"), s->device) == 0
			       ? FIT_MOUNT
			       : FIT_MOUNT_BELOW;
	if (strcmp(client_text(identity, "store"), s->path) == 0 ||
		strcmp(client_text(identity, "cluster_file"), s->path) == 0)
		return FIT_STORE;
	if (strcmp(client_text(identity, "volume_uuid"), s->name) == 0 ||
		strcmp(client_text(identity, "store_uuid"), s->name) == 0)
		return FIT_UUID;
	if (*s->name && strcmp(client_text(identity, "label"), s->name) == 0)
		return FIT_LABEL;
	if (s->mount && strcmp(client_text(identity, "mount_point"), s->mount) == 0 &&
		strcmp(client_text(identity, "device_number"), s->device) == 0)
		return FIT_INSIDE;
	return FIT_NONE;
}

/* The daemon of the mount there fits best. */
static bool search_visit(void *arg, struct client *c)
{
	struct search *s = arg;
	enum fit fit = fit_of(s, c->identity);

	if (fit == FIT_NONE || fit > s->fit)
		return false;
	if (fit == s->fit) {
		s->count++;
		return false;
	}
	if (s->fd >= 0)
		close(s->fd);
	json_decref(s->identity);
	s->fit = fit;
	s->count = 1;
	s->fd = c->fd;
	s->identity = json_incref(c->identity);
	c->fd = -1;
	return fit == FIT_MOUNT;
}

char *client_path(const char *name)
{
	char *plain = strdup(name), *real;

	/* With a final slash, realpath(3) would ask the mount itself. */
	for (size_t len = plain ? strlen(plain) : 0; len > 1 && plain[len - 1] == '/'; len--)
		plain[len - 1] = '\0';
	real = plain ? realpath(plain, NULL) : NULL;
	if (!real) /* the mount of a daemon that has ended does not answer */
		return plain;
	free(plain);
	return real;
}

bool client_device(const char *path, char out[CLIENT_DEVICE])
{
	struct statx st;

	if (statx(AT_FDCWD, path, AT_STATX_DONT_SYNC, 0, &st) < 0)
		return false;
	snprintf(out, CLIENT_DEVICE, "%u:%u", st.stx_dev_major, st.stx_dev_minor);
	return true;
}

/* `path`: the name made absolute; `mount`: the mount that it lies in, or NULL. */
static int find_named(const char *name, const char *path, const char *mount,
	json_t **identity, struct weft_error *err)
{
	struct search s = {.name = name, .path = path, .mount = mount, .fit = FIT_NONE, .fd = -1};

	client_device(mount ? mount : path, s.device);
	client_each(search_visit, &s);
	if (s.count == 1) {
		*identity = s.identity;
		return s.fd;
	}
	if (s.count == 0)
		return weft_error(err, -ENOENT,
			"no running weftd of this user serves it; `weft status` lists "
			"what is mounted%s",
			geteuid() ? ", `sudo weft status` what root has mounted" : "");
	close(s.fd);
	json_decref(s.identity);
	return weft_error(err, -ENOTUNIQ,
		"more than one mounted volume is called that; use the mount point");
}

int client_find(const char *name, json_t **identity, struct weft_error *err)
{
	char *path = client_path(name);
	int fd;

	if (!path)
		return weft_error(err, -ENOMEM, "no memory");
	fd = find_named(name, path, NULL, identity, err);
	free(path);
	return fd;
}

int client_find_inside(const char *name, json_t **identity, struct weft_error *err)
{
	char path[PATH_MAX], mount[PATH_MAX];

	if (!mount_inside(name, path, mount))
		return client_find(name, identity, err);
	return find_named(name, path, mount, identity, err);
}
