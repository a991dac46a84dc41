/* SPDX-License-Identifier: Apache-2.0 */
/* Paths of inodes, by the files that processes have open. Follows links in /proc without walking
 * through the mount, and takes the inode's number that the kernel knows: a mount that hangs is not
 * asked. */
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "tools/tools.h"

struct wanted {
	const char *directory, *device;
	json_int_t ino;
	char *out; /* PATH_MAX bytes */
};

static bool is_below(const char *path, const char *directory)
{
	size_t len = strlen(directory);

	if (len == 1) /* "/" */
		return true;
	return strncmp(path, directory, len) == 0 && (!path[len] || path[len] == '/');
}

/* Looks at one link in /proc. The path is checked first, so that no other filesystem is asked. */
static bool link_matches(const struct wanted *w, const char *link)
{
	char device[CLIENT_DEVICE];
	ssize_t len = readlink(link, w->out, PATH_MAX - 1);
	struct statx st;

	if (len <= 0)
		return false;
	w->out[len] = '\0';
	if (!is_below(w->out, w->directory) ||
		statx(AT_FDCWD, link, AT_STATX_DONT_SYNC, STATX_INO, &st) < 0 ||
		(json_int_t)st.stx_ino != w->ino)
		return false;
	snprintf(device, sizeof(device), "%u:%u", st.stx_dev_major, st.stx_dev_minor);
	return strcmp(device, w->device) == 0;
}

static bool process_has(const struct wanted *w, const char *process)
{
	char path[300];
	struct dirent *d;
	bool found;
	DIR *dir;

	snprintf(path, sizeof(path), "/proc/%.20s/cwd", process);
	found = link_matches(w, path);
	snprintf(path, sizeof(path), "/proc/%.20s/fd", process);
	dir = found ? NULL : opendir(path);
	while (dir && !found && (d = readdir(dir))) {
		if (*d->d_name == '.')
			continue;
		snprintf(path, sizeof(path), "/proc/%.20s/fd/%.20s", process, d->d_name);
		found = link_matches(w, path);
	}
	if (dir)
		closedir(dir);
	return found;
}

bool inode_path(json_int_t process, const char *directory, const char *device, json_int_t ino,
	char out[PATH_MAX])
{
	const struct wanted w = {directory, device, ino, out};
	bool found = false;
	struct dirent *d;
	char text[24];
	DIR *dir;

	if (*directory != '/' || ino <= 0)
		return false;
	if (ino == 1) {
		snprintf(out, PATH_MAX, "%s", directory);
		return true;
	}
	if (process) {
		snprintf(text, sizeof(text), "%" JSON_INTEGER_FORMAT, process);
		return process_has(&w, text);
	}
	dir = opendir("/proc");
	while (dir && !found && (d = readdir(dir)))
		found = *d->d_name >= '1' && *d->d_name <= '9' && process_has(&w, d->d_name);
	if (dir)
		closedir(dir);
	return found;
}
