/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Asks by the control socket, as weft does (fs/control.h): the socket's name is the store's
 * UUID, which is read from the store without opening it.
 */
#include "fs/takeover.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "engine/rt/rt.h"
#include "engine/store/store.h"
#include "fs/control.h"

#define ANSWER_MAX       1024
#define ANSWER_TIMEOUT_S 10
/* What the daemon that leaves takes to write back and to say goodbye; it gives up itself. */
#define LEAVE_WAIT_MS 60000

int takeover_store_uuid(const char *store, uint8_t uuid[16])
{
	struct disk_superblock *sb = malloc(sizeof(*sb));
	int fd = open(store, O_RDONLY | O_CLOEXEC);
	int rc = -EBUSY;

	if (sb && fd >= 0 && pread(fd, sb, sizeof(*sb), 0) == sizeof(*sb) &&
		store_superblock_whole(sb)) {
		memcpy(uuid, sb->store_uuid, 16);
		rc = 0;
	}
	if (fd >= 0)
		close(fd);
	free(sb);
	return rc;
}

static int daemon_connect(const char *folder, const char *uuid)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	struct timeval timeout = {.tv_sec = ANSWER_TIMEOUT_S};
	struct ucred peer = {0};
	socklen_t len = sizeof(peer);
	int fd;

	snprintf(address.sun_path, sizeof(address.sun_path), "%s/%s.sock", folder, uuid);
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -errno;
	if (setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout)) < 0 ||
		setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout)) < 0 ||
		connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0 ||
		getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) < 0 ||
		peer.uid != geteuid()) {
		close(fd);
		return -ESRCH;
	}
	return fd;
}

/* The daemon's answer to "leave": 0, it does; -EBUSY; -ESRCH: none, it has ended. */
static int daemon_leaves(int fd)
{
	static const char request[] = "{\"cmd\":\"leave\"}\n";
	char line[ANSWER_MAX];
	size_t used = 0;
	json_t *answer;
	int rc;

	if (send(fd, request, sizeof(request) - 1, MSG_NOSIGNAL) < 0)
		return -ESRCH;
	while (used < sizeof(line) && !memchr(line, '\n', used)) {
		ssize_t n = recv(fd, line + used, sizeof(line) - used, 0);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			break;
		used += (size_t)n;
	}
	if (used == 0)
		return -ESRCH;
	answer = json_loadb(line, used, 0, NULL);
	rc = json_is_true(json_object_get(answer, "leaves")) ? 0 : -EBUSY;
	json_decref(answer);
	return rc;
}

/* The connection ends when the store is free (fs/control.h). */
static bool end_await(int fd)
{
	struct pollfd end = {.fd = fd, .events = POLLIN};
	uint64_t until = rt_now_ns() + LEAVE_WAIT_MS * 1000000ull;
	char bytes[64];
	ssize_t n = 1;

	while (n > 0 || (n < 0 && (errno == EINTR || errno == EAGAIN))) {
		uint64_t now = rt_now_ns();

		if (now >= until)
			return false;
		if (poll(&end, 1, (int)((until - now) / 1000000 + 1)) > 0)
			n = recv(fd, bytes, sizeof(bytes), MSG_DONTWAIT);
	}
	return true;
}

int takeover_wait(const char *store, struct weft_error *err)
{
	char uuid[UUID_TEXT], folder[CONTROL_FOLDER_MAX];
	uint8_t bytes[16];
	int rc = takeover_store_uuid(store, bytes);
	int fd;

	if (rc < 0)
		return rc;
	uuid_print(bytes, uuid);
	fd = -ESRCH;
	for (unsigned i = 0; fd < 0 && control_folder(i, folder); i++)
		fd = daemon_connect(folder, uuid);
	if (fd < 0)
		return fd;
	rc = daemon_leaves(fd);
	if (rc == 0 && !end_await(fd))
		rc = weft_error(err, -EBUSY,
			"%s is in use: the weftd of an earlier mount still serves it "
			"to other nodes, %d s after a request to end; unmount those "
			"nodes, or end that weftd",
			store, LEAVE_WAIT_MS / 1000);
	close(fd);
	return rc;
}
