/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opens directories by their file handles. So no path is used that other programs could change
 * meanwhile, and mounts on the way do not hide them. No descriptor stays open: it would keep the
 * mount from being unmounted.
 */
#include "fs/own_mount.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "fs/session_internal.h"

/* The format of fuse_encode_fh(), without the parent. */
#define HANDLE_INO64_GEN 0x81
#define HANDLE_BYTES     12

static bool is_ours(struct session *s, int fd)
{
	struct statx st;

	return statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, 0, &st) == 0 &&
	       makedev(st.stx_dev_major, st.stx_dev_minor) == s->at_device;
}

/* Returns the mount's root, or -errno, also if the path leads elsewhere by now. */
static int root_open(struct session *s)
{
	int fd;

	if (!s->at)
		return -ENODEV;
	fd = open(s->at, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	if (is_ours(s, fd))
		return fd;
	close(fd);
	return -ENODEV;
}

/* Returns a descriptor of the directory, or -errno. */
static int directory_open(int root, uint64_t ino, uint32_t generation)
{
	union {
		struct file_handle handle;
		uint8_t room[sizeof(struct file_handle) + HANDLE_BYTES];
	} h = {.handle = {.handle_bytes = HANDLE_BYTES, .handle_type = HANDLE_INO64_GEN}};
	uint32_t words[] = {(uint32_t)(ino >> 32), (uint32_t)ino, generation};
	int fd;

	memcpy(h.room + sizeof(struct file_handle), words, sizeof(words));
	fd = open_by_handle_at(root, &h.handle, O_PATH | O_DIRECTORY | O_CLOEXEC);
	return fd < 0 ? -errno : fd;
}

static int stat_entry(int dir, struct ops_name name)
{
	char text[DISK_NAME_MAX + 1] = {0};
	struct stat st;

	if (name.len > DISK_NAME_MAX)
		return -ENAMETOOLONG;
	memcpy(text, name.bytes, name.len);
	return fstatat(dir, text, &st, AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT) < 0 ? -errno
										  : 0;
}

int own_mount_look(
	struct session *s, uint64_t dir, uint32_t generation, struct ops_name name)
{
	int root, fd, ret;

	rt_about_to_wait();
	root = root_open(s);
	if (root < 0)
		return root;
	fd = dir == DISK_INO_ROOT ? root : directory_open(root, dir, generation);
	ret = fd < 0 ? fd : stat_entry(fd, name);
	if (fd >= 0 && fd != root)
		close(fd);
	close(root);
	return ret;
}

bool own_mount_is_own(uint32_t thread)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/self/task/%u", thread);
	return access(path, F_OK) == 0;
}
