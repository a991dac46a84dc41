/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The folder of the control sockets: who may use it, and what dead daemons left in it.
 *
 * A socket is made and a dead one removed only while the folder is locked (flock), so a
 * socket that refuses connections under the lock has no daemon: not one that is about to
 * listen either. A daemon removes its own while it still holds its store.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "fs/control.h"

void control_folder(char buf[CONTROL_FOLDER_MAX])
{
	const char *runtime = getenv("XDG_RUNTIME_DIR");

	if (geteuid() == 0)
		snprintf(buf, CONTROL_FOLDER_MAX, "/run/weft");
	else if (runtime && *runtime == '/' &&
		 strlen(runtime) + sizeof("/weft") <= CONTROL_FOLDER_MAX)
		snprintf(buf, CONTROL_FOLDER_MAX, "%s/weft", runtime);
	else
		snprintf(buf, CONTROL_FOLDER_MAX, "/tmp/weft-%u", geteuid());
}

bool control_is_socket(const char *name)
{
	size_t len = strlen(name);

	return len > 5 && strcmp(name + len - 5, ".sock") == 0;
}

int control_folder_lock(struct weft_error *err)
{
	char folder[CONTROL_FOLDER_MAX];
	struct stat st;
	int fd;
	int ret;

	control_folder(folder);
	fd = open(folder, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0)
		return weft_error(
			err, -errno, "cannot open %s: %s", folder, strerror(errno));
	if (fstat(fd, &st) < 0 || st.st_uid != geteuid() || (st.st_mode & 022)) {
		close(fd);
		return weft_error(err, -EPERM,
			"%s must be a folder of this user's that nobody else can write",
			folder);
	}
	while (flock(fd, LOCK_EX) < 0) {
		if (errno == EINTR)
			continue;
		ret = weft_error(
			err, -errno, "cannot lock %s: %s", folder, strerror(errno));
		close(fd);
		return ret;
	}
	return fd;
}

/* Nobody listens there. Under the folder's lock; never waits. */
static bool is_dead(const char *folder, const char *name)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int n = snprintf(
		address.sun_path, sizeof(address.sun_path), "%s/%s", folder, name);
	bool dead;
	int fd;

	if (n < 0 || (size_t)n >= sizeof(address.sun_path))
		return false;
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return false;
	dead = connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0 &&
	       errno == ECONNREFUSED;
	close(fd);
	return dead;
}

void control_sweep(int locked)
{
	char folder[CONTROL_FOLDER_MAX];
	struct dirent *d;
	struct stat st;
	DIR *dir;

	control_folder(folder);
	dir = opendir(folder);
	while (dir && (d = readdir(dir)))
		if (control_is_socket(d->d_name) &&
			fstatat(locked, d->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
			S_ISSOCK(st.st_mode) && is_dead(folder, d->d_name))
			unlinkat(locked, d->d_name, 0);
	if (dir)
		closedir(dir);
}
