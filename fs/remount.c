/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a remount changes is read from the kernel's mount table, proc(5)'s mountinfo.
 *
 * The kernel keeps the flags of a mount to itself, but some are the daemon's to follow: when
 * reading sets access times, and whether a change of names is durable at once. The mount is
 * known by its id, so neither moving it nor mounting over it misleads.
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

/* Takes the words in; either of a line's two lists may say "ro". */
static void take_list(struct mount_options *now, char *list)
{
	bool read_only = now->read_only;
	const char *word;

	now->read_only = false;
	while ((word = strsep(&list, ",")))
		(void)mount_options_parse(now, word, NULL); /* some are FUSE's own */
	now->read_only |= read_only;
}

/*
 * ID PARENT DEVICE ROOT POINT OPTIONS [TAG...] - TYPE SOURCE SUPER-OPTIONS
 * False: another mount's line, or none at all.
 */
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

/* What the table says of our mount; false: nothing. */
static bool read_table(const struct remount *r, struct mount_options *now)
{
	FILE *f = fopen(TABLE, "re");
	char *line = NULL;
	size_t room = 0;
	bool found = false;

	/* The table has no word for strictatime. */
	*now = (struct mount_options){.atime = OPS_STRICTATIME};
	while (f && !found && getline(&line, &room, f) >= 0)
		found = take_line(line, r->mount_id, now);
	free(line);
	if (f)
		fclose(f);
	return found;
}

static void remember(struct remount *r, const struct mount_options *now)
{
	r->read_only = now->read_only;
	r->atime = now->atime;
	r->flags = now->flags;
}

/* Of the mount that the path leads to; 0: not known. Asks no filesystem. */
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
		remember(r, &now);
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
	remember(r, &now);
	return true;
}
