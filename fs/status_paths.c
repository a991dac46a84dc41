/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Paths of directories, for people: by their parents, whose entries are searched for them. A file
 * has no parent in the tree. Runs on a task that may be given up (rt_task_serves).
 */
#include <limits.h>
#include <string.h>

#include "fs/daemon.h"

#define ENTRIES_MAX 10000u /* of a directory that are searched */
#define LEVELS_MAX  100u

struct search {
	uint64_t ino; /* that is searched; of note_parent: the parent */
	unsigned seen;
	bool found;
	char *path; /* the path behind it; grows to the left */
	size_t room;
};

static int note_parent(void *arg, const struct ops_dirent *entry)
{
	struct search *s = arg;

	s->ino = entry->ino;
	return 1;
}

/* Puts the entry's name before the path. Stops the search if it is found, or takes too long. */
static int find_entry(void *arg, const struct ops_dirent *entry)
{
	struct search *s = arg;

	if (entry->ino != s->ino)
		return ++s->seen == ENTRIES_MAX || rt_task_unwanted();
	if (entry->name_len + 1 > s->room)
		return 1;
	s->found = true;
	s->room -= entry->name_len + 1;
	s->path -= entry->name_len + 1;
	s->path[0] = '/';
	memcpy(s->path + 1, entry->name, entry->name_len);
	return 1;
}

bool status_path(struct fs *fs, uint64_t ino, char out[PATH_MAX])
{
	struct search s = {.path = out + PATH_MAX - 1, .room = PATH_MAX - 1};

	*s.path = '\0';
	for (unsigned level = 0; ino != DISK_INO_ROOT; level++) {
		struct search parent = {0};

		/* behind ".": a listing from its start would set the access time */
		if (level == LEVELS_MAX || rt_task_unwanted() ||
			ops_readdir(fs, ino, 1, 0, note_parent, &parent) < 0 || !parent.ino)
			return false;
		s.ino = ino;
		s.seen = 0;
		s.found = false;
		if (ops_readdir(fs, parent.ino, 2, 0, find_entry, &s) < 0 || !s.found)
			return false;
		ino = parent.ino;
	}
	memmove(out, s.path, strlen(s.path) + 1);
	return true;
}
