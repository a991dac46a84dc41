/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The mounts of weft that the kernel knows, with who has made them: also those whose daemons
 * this user may not ask.
 */
#include <mntent.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/tools.h"

void mounts_each(bool (*fn)(void *arg, const struct weft_mount *m), void *arg)
{
	FILE *mounts = setmntent("/proc/self/mounts", "re");
	struct mntent entry;
	bool enough = false;
	char buf[8192];

	while (mounts && !enough && getmntent_r(mounts, &entry, buf, sizeof(buf))) {
		const char *user = hasmntopt(&entry, "user_id");
		struct weft_mount m = {
			.directory = entry.mnt_dir, .type = entry.mnt_type};

		m.ours = strcmp(entry.mnt_type, "fuse.weft") == 0;
		m.user = user && user[7] == '=' ? (uid_t)strtoul(user + 8, NULL, 10) : 0;
		enough = fn(arg, &m);
	}
	if (mounts)
		endmntent(mounts);
}

/* Appends the components of `path` to the absolute path in `out`. Returns false if it is too
 * long. */
static bool append_components(char out[PATH_MAX], const char *path)
{
	while (*path) {
		size_t len = strcspn(path, "/"), used = strlen(out);

		if (len == 2 && memcmp(path, "..", 2) == 0) {
			while (used && out[--used] != '/')
				;
			out[used] = '\0';
		} else if (len && !(len == 1 && *path == '.')) {
			if (used + 1 + len >= PATH_MAX)
				return false;
			out[used] = '/';
			memcpy(out + used + 1, path, len);
			out[used + 1 + len] = '\0';
		}
		path += len + (path[len] == '/');
	}
	return true;
}

struct inside {
	char path[PATH_MAX];
	char mount[PATH_MAX];
	bool ours;
};

/* The deepest mount wins, and of several on one directory the upper one, which comes last. */
static bool note_deepest(void *arg, const struct weft_mount *m)
{
	struct inside *i = arg;
	size_t len = strlen(m->directory);

	if (len >= PATH_MAX || len < strlen(i->mount) ||
		(len > 1 && (strncmp(i->path, m->directory, len) != 0 ||
				    (i->path[len] && i->path[len] != '/'))))
		return false;
	strcpy(i->mount, m->directory);
	i->ours = m->ours;
	return false;
}

bool mount_inside(const char *name, char path[PATH_MAX], char mount[PATH_MAX])
{
	struct inside i = {0};

	if (*name != '.' && !strchr(name, '/')) /* a label, or a name in this directory */
		return false;
	if (*name != '/' && !getcwd(i.path, sizeof(i.path)))
		return false;
	if (strcmp(i.path, "/") == 0)
		i.path[0] = '\0';
	if (!append_components(i.path, name))
		return false;
	mounts_each(note_deepest, &i);
	strcpy(path, i.path);
	strcpy(mount, i.mount);
	return i.ours;
}

const char *mount_user(uid_t user, char out[MOUNT_USER])
{
	struct passwd *known = getpwuid(user);

	if (known)
		snprintf(out, MOUNT_USER, "%s", known->pw_name);
	else
		snprintf(out, MOUNT_USER, "#%u", user); /* as sudo -u takes it */
	return out;
}
