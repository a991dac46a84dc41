/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The folder of the control sockets: its rights, and sockets of ended daemons.
 *
 * Sockets are made, and dead ones removed, only while the folder is locked (flock). So a socket
 * that refuses connections under the lock has no daemon, not even one that is about to listen. A
 * daemon removes its own socket while it still has its store locked.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "fs/control.h"

/* Candidates for a user's folder, without repetition. */
struct places {
	unsigned count;
	char folder[3][CONTROL_FOLDER_MAX];
	struct stat parent[3];
};

/* Adds a folder in `parent`, if that belongs to the user and no other user may write to it. Other
 * users then cannot interfere. */
static void place_add(struct places *p, const char *parent, const char *name)
{
	struct stat *st = &p->parent[p->count];

	if (!parent || *parent != '/' || stat(parent, st) < 0 || !S_ISDIR(st->st_mode) ||
		st->st_uid != geteuid() || (st->st_mode & 022))
		return;
	for (unsigned i = 0; i < p->count; i++)
		if (p->parent[i].st_dev == st->st_dev &&
			p->parent[i].st_ino == st->st_ino)
			return;
	if (snprintf(p->folder[p->count], CONTROL_FOLDER_MAX, "%s/%s", parent, name) <
		(int)CONTROL_FOLDER_MAX)
		p->count++;
}

/* Uses the user database, because sudo(8) and su(1) may leave another user's HOME. */
static void place_add_home(struct places *p)
{
	struct passwd user, *found = NULL;
	char text[1024];

	if (getpwuid_r(geteuid(), &user, text, sizeof(text), &found) == 0 && found)
		place_add(p, found->pw_dir, ".weft");
}

bool control_folder(unsigned which, char buf[CONTROL_FOLDER_MAX])
{
	struct places p = {0};
	char runtime[32];

	if (geteuid() == 0) {
		snprintf(buf, CONTROL_FOLDER_MAX, "/run/weft");
		return which == 0;
	}
	snprintf(runtime, sizeof(runtime), "/run/user/%u", geteuid());
	place_add(&p, getenv("XDG_RUNTIME_DIR"), "weft");
	place_add(&p, runtime, "weft");
	place_add_home(&p);
	if (which < p.count)
		strcpy(buf, p.folder[which]);
	return which < p.count;
}

int control_folder_make(char buf[CONTROL_FOLDER_MAX], struct weft_error *err)
{
	if (!control_folder(0, buf))
		return weft_error(err, -ENOENT,
			"there is no safe folder for the control socket: neither "
			"$XDG_RUNTIME_DIR nor /run/user/%u nor the home folder belongs "
			"to "
			"user %u and is closed to others' writes; set XDG_RUNTIME_DIR to "
			"one that does, with a path of at most %u bytes",
			geteuid(), geteuid(), CONTROL_FOLDER_MAX - 6);
	if (mkdir(buf, 0700) < 0 && errno != EEXIST)
		return weft_error(
			err, -errno, "cannot make %s: %s", buf, strerror(errno));
	return 0;
}

bool control_is_socket(const char *name)
{
	size_t len = strlen(name);

	return len > 5 && strcmp(name + len - 5, ".sock") == 0;
}

int control_folder_lock(const char *folder, struct weft_error *err)
{
	struct stat st;
	int fd;
	int rc;

	fd = open(folder, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0 && errno != EACCES && errno != ELOOP && errno != ENOTDIR)
		return weft_error(
			err, -errno, "cannot open %s: %s", folder, strerror(errno));
	if (fd < 0 || fstat(fd, &st) < 0 || st.st_uid != geteuid() ||
		(st.st_mode & 022)) {
		if (fd >= 0)
			close(fd);
		return weft_error(err, -EPERM,
			"%s is no folder of user %u's own that others cannot write; "
			"remove "
			"it, or correct its owner and mode (0700)",
			folder, geteuid());
	}
	while (flock(fd, LOCK_EX) < 0) {
		if (errno == EINTR)
			continue;
		rc = weft_error(
			err, -errno, "cannot lock %s: %s", folder, strerror(errno));
		close(fd);
		return rc;
	}
	return fd;
}

/* Returns true if the socket has no listener. Called under the folder's lock. Never waits. */
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

void control_sweep(const char *folder, int locked)
{
	struct dirent *d;
	struct stat st;
	DIR *dir;

	dir = opendir(folder);
	while (dir && (d = readdir(dir)))
		if (control_is_socket(d->d_name) &&
			fstatat(locked, d->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
			S_ISSOCK(st.st_mode) && is_dead(folder, d->d_name))
			unlinkat(locked, d->d_name, 0);
	if (dir)
		closedir(dir);
}
