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

const char *mount_user(uid_t user, char out[MOUNT_USER])
{
	struct passwd *known = getpwuid(user);

	if (known)
		snprintf(out, MOUNT_USER, "%s", known->pw_name);
	else
		snprintf(out, MOUNT_USER, "#%u", user); /* as sudo -u takes it */
	return out;
}
