/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads changes by a remount from the kernel's mount table, mountinfo of proc(5).
 *
 * The kernel does not send the flags of a mount to the daemon. Two of them concern the daemon: when
 * reading sets access times, and whether a change of names is durable at once. The mount is
 * identified by its id, so moving it or mounting over it does no harm.
 */
#include "fs/remount.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define TABLE "/proc/self/mountinfo"

/* Applies the options. "ro" may be in either of a line's two lists. */
static void take_list(struct mount_options *now, char *list)
{
	bool read_only = now->read_only;
	const char *word;

	now->read_only = false;
	while ((word = strsep(&list, ",")))
		(void)mount_options_parse(now, word, NULL); /* some options are FUSE's own */
	now->read_only |= read_only;
}

/* ID PARENT DEVICE ROOT POINT OPTIONS [TAG...] - TYPE SOURCE SUPER-OPTIONS Returns false for a line
 * of another mount, or one that is none. */
static bool take_line(const char *line, uint64_t mount_id, struct mount_options *now)
{
	const char *second = strstr(line, " - "); /* spaces within fields are escaped */
	char *own = NULL, *super = NULL;
	unsigned long long id;
	bool ours = second && sscanf(line, "%llu", &id) == 1 && id == mount_id &&
		    sscanf(line, "%*s %*s %*s %*s %*s %ms", &own) == 1 &&
		    sscanf(second, " - %*s %*s %ms", &super) == 1;

	if (ours) {
		take_list(now, own);
		take_list(now, super);
	}
	free(own);
	free(super);
	return ours;
}

/* Reads the mount's options from the table. Returns false if it is not there. */
static bool read_table(const struct remount *r, struct mount_options *now)
{
	FILE *f = fopen(TABLE, "re");
	char *line = NULL;
	size_t room = 0;
	bool found = false;

	/* The table does not show strictatime. */
	*now = (struct mount_options){.atime = OPS_STRICTATIME};
	while (f && !found && getline(&line, &room, f) >= 0)
		found = take_line(line, r->mount_id, now);
	free(line);
	if (f)
		fclose(f);
	return found;
}

static void remember_options(struct remount *r, const struct mount_options *now)
{
	r->read_only = now->read_only;
	r->atime = now->atime;
	r->flags = now->flags;
}

/* Returns the id of the mount to which the path leads; 0: not known. Makes no request to a
 * filesystem. */
static uint64_t mount_id_of(const char *directory)
{
	struct statx st;

	if (statx(AT_FDCWD, directory, AT_NO_AUTOMOUNT | AT_STATX_DONT_SYNC, STATX_MNT_ID,
		    &st) < 0 ||
		!(st.stx_mask & STATX_MNT_ID))
		return 0;
	return st.stx_mnt_id;
}

bool remount_is_there(const struct remount *r, const char *directory)
{
	return r->mount_id == 0 || mount_id_of(directory) == r->mount_id;
}

void remount_watch(struct remount *r, const char *directory)
{
	struct mount_options now;

	*r = (struct remount){.table = -1, .mount_id = mount_id_of(directory)};
	if (r->mount_id == 0)
		return;
	r->table = open(TABLE, O_RDONLY | O_CLOEXEC);
	if (r->table >= 0 && read_table(r, &now)) {
		remember_options(r, &now);
		return;
	}
	weft_log(7, TABLE " does not tell of %s: %s", directory, strerror(errno));
	if (r->table >= 0)
		close(r->table);
	r->table = -1;
}

bool remount_look(struct remount *r, struct mount_options *o)
{
	struct mount_options now;

	if (!read_table(r, &now) ||
		(now.read_only == r->read_only && now.atime == r->atime &&
			now.flags == r->flags))
		return false;
	if (now.read_only != r->read_only)
		o->read_only = now.read_only;
	if (now.atime != r->atime)
		o->atime = now.atime;
	o->flags ^= now.flags ^ r->flags;
	remember_options(r, &now);
	return true;
}
