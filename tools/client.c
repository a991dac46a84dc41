/* SPDX-License-Identifier: Apache-2.0 */
/* Talking to running daemons through their control sockets (fs/control.h). */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "fs/control.h"
#include "tools/tools.h"

#define ANSWER_MAX       (1u << 20)
#define ANSWER_TIMEOUT_S 10

static int client_connect(const char *folder, const char *name)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	struct timeval timeout = {.tv_sec = ANSWER_TIMEOUT_S};
	int fd;
	int n;

	n = snprintf(address.sun_path, sizeof(address.sun_path), "%s/%s", folder, name);
	if (n < 0 || (size_t)n >= sizeof(address.sun_path))
		return -ENAMETOOLONG;
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -errno;
	if (setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout)) < 0 ||
		connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0) {
		int ret = -errno;

		close(fd);
		return ret;
	}
	return fd;
}

json_t *client_ask(int fd, const char *cmd)
{
	char request[64];
	int len = snprintf(request, sizeof(request), "{\"cmd\":\"%s\"}\n", cmd);
	char *buf = malloc(ANSWER_MAX);
	size_t used = 0;
	json_t *out = NULL;

	if (!buf)
		return NULL;
	if (send(fd, request, (size_t)len, MSG_NOSIGNAL) != len)
		goto out_free;
	while (used < ANSWER_MAX) {
		ssize_t n = recv(fd, buf + used, ANSWER_MAX - used, 0);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			goto out_free;
		used += (size_t)n;
		if (buf[used - 1] == '\n')
			break;
	}
	out = json_loadb(buf, used, 0, NULL);
	if (out && (!json_is_object(out) || json_object_get(out, "error"))) {
		json_decref(out);
		out = NULL;
	}
out_free:
	free(buf);
	return out;
}

static int visit(const char *folder, const char *name, int (*fn)(void *, struct client *),
	void *arg)
{
	struct client c;
	int ret = 0;

	c.fd = client_connect(folder, name);
	if (c.fd < 0)
		return 0; /* a dead daemon's socket */
	c.identity = client_ask(c.fd, "identify");
	if (c.identity)
		ret = fn(arg, &c);
	json_decref(c.identity);
	if (c.fd >= 0)
		close(c.fd);
	return ret;
}

int client_each(int (*fn)(void *arg, struct client *c), void *arg)
{
	char folder[64];
	struct dirent *d;
	DIR *dir;
	int ret = 0;

	control_folder(folder, sizeof(folder));
	dir = opendir(folder);
	if (!dir)
		return 0;
	while (ret == 0 && (d = readdir(dir))) {
		size_t len = strlen(d->d_name);

		if (len > 5 && strcmp(d->d_name + len - 5, ".sock") == 0)
			ret = visit(folder, d->d_name, fn, arg);
	}
	closedir(dir);
	return ret;
}

struct search {
	const char *name;
	const char *path; /* name made absolute, or NULL */
	int fd;
	json_t *identity;
};

static int search_visit(void *arg, struct client *c)
{
	static const char *const keys[] = {
		"mount_point", "store", "label", "volume_uuid", "store_uuid"};
	struct search *s = arg;

	for (size_t i = 0; i < ARRAY_SIZE(keys); i++) {
		const char *value =
			json_string_value(json_object_get(c->identity, keys[i]));

		if (!value || !*value)
			continue;
		if (strcmp(value, s->name) != 0 &&
			(!s->path || strcmp(value, s->path) != 0))
			continue;
		s->fd = c->fd;
		s->identity = json_incref(c->identity);
		c->fd = -1;
		return 1;
	}
	return 0;
}

/*
 * A path without a final slash: asking the mount itself is left out, it may not answer.
 */
static char *absolute_text(const char *name)
{
	char *real = realpath(name, NULL);
	char *copy;
	size_t len;

	if (real)
		return real;
	if (*name != '/')
		return NULL;
	copy = strdup(name);
	for (len = copy ? strlen(copy) : 0; len > 1 && copy[len - 1] == '/'; len--)
		copy[len - 1] = '\0';
	return copy;
}

int client_find(const char *name, json_t **identity)
{
	char *path = absolute_text(name);
	struct search s = {.name = name, .path = path, .fd = -ENOENT};

	client_each(search_visit, &s);
	free(path);
	if (s.fd >= 0)
		*identity = s.identity;
	return s.fd;
}

void client_be_patient(int fd)
{
	struct timeval forever = {0};

	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &forever, sizeof(forever));
}

void client_wait_end(int fd)
{
	char byte;
	ssize_t n;

	client_be_patient(fd);
	do {
		n = recv(fd, &byte, 1, 0);
	} while (n > 0 || (n < 0 && errno == EINTR));
}
