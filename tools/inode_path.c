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
#include <unistd.h>

#include "tools/tools.h"

#define ROOT_INODE 1

struct search {
	const char *directory, *device;
	const json_int_t *inodes;
	unsigned count, missing;
	json_t *paths;
};

static void print_key(json_int_t ino, char out[24])
{
	snprintf(out, 24, "%" JSON_INTEGER_FORMAT, ino);
}

const char *inode_path(const json_t *paths, json_int_t ino)
{
	char key[24];

	print_key(ino, key);
	return json_string_value(json_object_get(paths, key));
}

void inode_path_set(json_t *paths, json_int_t ino, const char *path)
{
	char key[24];

	print_key(ino, key);
	json_object_set_new(paths, key, json_string(path));
}

static bool is_below(const char *path, const char *directory)
{
	size_t len = strlen(directory);

	if (len == 1) /* "/" */
		return true;
	return strncmp(path, directory, len) == 0 && (!path[len] || path[len] == '/');
}

/* Looks at one link in /proc. The path is checked first, so that no other filesystem is asked. */
static void look_at_link(struct search *s, const char *link)
{
	char device[CLIENT_DEVICE], path[PATH_MAX];
	ssize_t len = readlink(link, path, sizeof(path) - 1);
	struct statx st;

	if (len <= 0)
		return;
	path[len] = '\0';
	if (!is_below(path, s->directory) ||
		statx(AT_FDCWD, link, AT_STATX_DONT_SYNC, STATX_INO, &st) < 0)
		return;
	snprintf(device, sizeof(device), "%u:%u", st.stx_dev_major, st.stx_dev_minor);
	if (strcmp(device, s->device) != 0)
		return;
	for (unsigned i = 0; i < s->count; i++) {
		json_int_t ino = s->inodes[i];

		if (ino != (json_int_t)st.stx_ino || inode_path(s->paths, ino))
			continue;
		inode_path_set(s->paths, ino, path);
		s->missing--;
	}
}

static void look_at_process(struct search *s, const char *process)
{
	char path[64];
	struct dirent *d;
	DIR *dir;

	snprintf(path, sizeof(path), "/proc/%.20s/cwd", process);
	look_at_link(s, path);
	snprintf(path, sizeof(path), "/proc/%.20s/fd", process);
	dir = opendir(path);
	while (dir && s->missing && (d = readdir(dir))) {
		if (*d->d_name == '.')
			continue;
		snprintf(path, sizeof(path), "/proc/%.20s/fd/%.20s", process, d->d_name);
		look_at_link(s, path);
	}
	if (dir)
		closedir(dir);
}

void inode_paths_find(json_t *paths, const char *directory, const char *device,
	const json_int_t *inodes, unsigned count)
{
	struct search s = {directory, device, inodes, count, 0, paths};
	struct dirent *d;
	DIR *dir;

	if (*directory != '/')
		return;
	inode_path_set(paths, ROOT_INODE, directory);
	for (unsigned i = 0; i < count; i++)
		s.missing += !inode_path(paths, inodes[i]);
	dir = s.missing ? opendir("/proc") : NULL;
	while (dir && s.missing && (d = readdir(dir)))
		if (*d->d_name >= '1' && *d->d_name <= '9')
			look_at_process(&s, d->d_name);
	if (dir)
		closedir(dir);
}

void inode_paths_add(json_t *paths, const char *directory, const json_t *told)
{
	const char *ino;
	json_t *path;

	if (*directory != '/')
		return;
	json_object_foreach((json_t *)told, ino, path)
	{
		char whole[2 * PATH_MAX];

		snprintf(whole, sizeof(whole), "%s%s", strcmp(directory, "/") ? directory : "",
			json_string_value(path) ?: "");
		json_object_set_new(paths, ino, json_string(whole));
	}
}
