/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mounts without libfuse. libfuse 3.14 would read and write the device itself, but the shim
 * (shim.h) must see each message first, also INIT.
 *
 * Root mounts with mount(2). Other users mount with fusermount3, which is setuid and passes the
 * device over a socket.
 */
#include "fs/mount.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

static unsigned long mount_flags(const struct mount_options *o)
{
	static const unsigned long atime[] = {
		[OPS_RELATIME] = MS_RELATIME,
		[OPS_NOATIME] = MS_NOATIME,
		[OPS_STRICTATIME] = MS_STRICTATIME,
	};

	return o->flags | atime[o->atime] | (o->read_only ? MS_RDONLY : 0);
}

static int mount_as_root(
	const struct mount_options *o, const char *source, struct weft_error *err)
{
	char data[160];
	int fd;
	int rc;

	fd = open("/dev/fuse", O_RDWR | O_CLOEXEC);
	if (fd < 0) {
		rc = -errno;
		return weft_error(err, rc,
			"cannot open /dev/fuse: %s; is the fuse module loaded (modprobe "
			"fuse)?",
			strerror(-rc));
	}
	snprintf(data, sizeof(data),
		"fd=%d,rootmode=40000,user_id=%u,group_id=%u,default_permissions,max_"
		"read=%u%s",
		fd, getuid(), getgid(), FUSE_IO_MAX,
		o->allow_other ? ",allow_other" : "");
	if (mount(source, o->directory, "fuse.weft", mount_flags(o), data) < 0) {
		rc = -errno;
		close(fd);
		return weft_error(
			err, rc, "cannot mount on %s: %s", o->directory, strerror(-rc));
	}
	return fd;
}

int mount_receive_descriptor(int from)
{
	union {
		struct cmsghdr header;
		char space[CMSG_SPACE(sizeof(int))];
	} control;
	char byte;
	struct iovec iov = {&byte, 1};
	struct msghdr message = {
		.msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = &control,
		.msg_controllen = sizeof(control),
	};
	struct cmsghdr *part;
	ssize_t n;
	int fd;

	do {
		n = recvmsg(from, &message, MSG_CMSG_CLOEXEC);
	} while (n < 0 && errno == EINTR);
	part = n > 0 ? CMSG_FIRSTHDR(&message) : NULL;
	if (!part || part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS ||
		part->cmsg_len != CMSG_LEN(sizeof(int)))
		return -EPROTO;
	memcpy(&fd, CMSG_DATA(part), sizeof(fd));
	return fd;
}

static _Noreturn void exec_fusermount(int socket, char *const argv[])
{
	char number[16];

	snprintf(number, sizeof(number), "%d", socket);
	setenv("_FUSE_COMMFD", number, 1);
	execvp(argv[0], argv);
	fprintf(stderr, "weft: cannot run %s: %s; install the package fuse3\n", argv[0],
		strerror(errno));
	_exit(127);
}

static int wait_for(pid_t child)
{
	int status;

	while (waitpid(child, &status, 0) < 0)
		if (errno != EINTR)
			return -errno;
	return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : -EPERM;
}

/* Escapes a value for fusermount3: its commas and backslashes do not separate options. */
static char *escape_option(const char *text)
{
	char *copy = malloc(2 * strlen(text) + 1);
	char *p = copy;

	for (; copy && *text; text++) {
		if (*text == ',' || *text == '\\')
			*p++ = '\\';
		*p++ = *text;
	}
	if (copy)
		*p = '\0';
	return copy;
}

/* Returns the options for fusermount3 -o, or NULL without memory. The caller frees it. */
static char *user_options(const struct mount_options *o, const char *source)
{
	char *name = escape_option(source);
	char *options = NULL;

	if (name && asprintf(&options,
			    "fsname=%s,subtype=weft,default_permissions,max_read=%u%s%s%s"
			    "%s%s%s%s",
			    name, FUSE_IO_MAX, o->read_only ? ",ro" : "",
			    o->allow_other ? ",allow_other" : "",
			    o->flags & MS_NOEXEC ? ",noexec" : "",
			    o->flags & MS_SYNCHRONOUS ? ",sync" : "",
			    o->flags & MS_DIRSYNC ? ",dirsync" : "",
			    o->flags & MS_NOSYMFOLLOW ? ",nosymfollow" : "",
			    o->atime == OPS_NOATIME ? ",noatime" : "") < 0)
		options = NULL;
	free(name);
	return options;
}

/* Runs fusermount3 -o OPTIONS -- DIRECTORY and takes the device that it opens. */
static int run_fusermount(char *directory, char *options, struct weft_error *err)
{
	char *argv[] = {(char *)"fusermount3", (char *)"-o", options, (char *)"--",
		directory, NULL};
	int sockets[2];
	pid_t child;
	int fd;

	if (socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) < 0)
		return weft_error(
			err, -errno, "cannot make a socket pair: %s", strerror(errno));
	child = fork();
	if (child == 0) {
		close(sockets[0]);
		exec_fusermount(sockets[1], argv);
	}
	close(sockets[1]);
	if (child < 0) {
		close(sockets[0]);
		return weft_error(err, -EAGAIN, "cannot start fusermount3");
	}
	fd = mount_receive_descriptor(sockets[0]);
	close(sockets[0]);
	if (wait_for(child) < 0 || fd < 0) {
		if (fd >= 0)
			close(fd);
		return weft_error(err, -EPERM,
			"fusermount3 could not mount on %s (its own message says why)",
			directory);
	}
	return fd;
}

static int mount_as_user(
	const struct mount_options *o, const char *source, struct weft_error *err)
{
	char *options = user_options(o, source);
	int fd;

	if (!options)
		return weft_error(err, -ENOMEM, "no memory for the mount options");
	fd = run_fusermount(o->directory, options, err);
	free(options);
	return fd;
}

int fuse_mount_open(
	const struct mount_options *o, const char *label, struct weft_error *err)
{
	const char *source = o->source[0] ? o->source : label;

	return geteuid() == 0 ? mount_as_root(o, source, err)
			      : mount_as_user(o, source, err);
}

void fuse_mount_tune(const struct mount_options *o)
{
	struct stat st;
	char path[96];
	int fd;

	if (stat(o->directory, &st) < 0)
		return;
	/* INIT can only lower the kernel's 128 KiB. The device's own setting raises it. */
	snprintf(path, sizeof(path), "/sys/class/bdi/%u:%u/read_ahead_kb",
		major(st.st_dev), minor(st.st_dev));
	fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return;
	if (dprintf(fd, "%u\n", FUSE_READ_AHEAD >> 10) < 0)
		weft_log(7, "read-ahead of %s stays as it is: %s", o->directory,
			strerror(errno));
	close(fd);
}

static bool is_mount_point(const char *directory)
{
	char parent[4096];
	struct stat here, above;

	snprintf(parent, sizeof(parent), "%s/..", directory);
	/* The mount of an ended daemon does not answer, but is a mount. */
	if (stat(directory, &here) < 0 || stat(parent, &above) < 0)
		return true;
	return here.st_dev != above.st_dev;
}

/* Maps the message of a failed fusermount3 to an error, because its exit code does not differ. */
static int unmount_refused(const char *said)
{
	if (strstr(said, "busy"))
		return -EBUSY;
	return strstr(said, "not found") || strstr(said, "not permitted") ||
			       strstr(said, "denied")
		       ? -EPERM
		       : -EIO;
}

static _Noreturn void exec_unmount(int said, const char *directory, bool lazy)
{
	dup2(said, STDERR_FILENO);
	setenv("LC_ALL", "C", 1);
	execlp("fusermount3", "fusermount3", lazy ? "-uz" : "-u", "--", directory,
		(char *)NULL);
	dprintf(STDERR_FILENO, "cannot run it: %s\n", strerror(errno));
	_exit(127);
}

/* Reads until the other end is closed, as far as there is room. Makes a string. */
static void read_text(int fd, char *out, size_t cap)
{
	char rest[256];
	size_t len = 0;
	ssize_t n;

	while ((n = len + 1 < cap ? read(fd, out + len, cap - 1 - len)
				  : read(fd, rest, sizeof(rest))) > 0 ||
		(n < 0 && errno == EINTR))
		if (n > 0 && len + 1 < cap)
			len += (size_t)n;
	while (len && out[len - 1] == '\n')
		len--;
	out[len] = '\0';
}

static int unmount_as_user(const char *directory, bool lazy)
{
	char said[512];
	int ends[2];
	pid_t child;
	int rc;

	if (!is_mount_point(directory))
		return -EINVAL;
	if (pipe2(ends, O_CLOEXEC) < 0)
		return -errno;
	child = fork();
	if (child == 0)
		exec_unmount(ends[1], directory, lazy);
	close(ends[1]);
	rc = child < 0 ? -EAGAIN : 0;
	if (child > 0)
		read_text(ends[0], said, sizeof(said));
	close(ends[0]);
	if (child > 0 && wait_for(child) < 0) {
		rc = unmount_refused(said);
		weft_log(rc == -EBUSY ? 7 : 4, "%s", said);
	}
	return rc;
}

int fuse_mount_close(const char *directory, bool lazy)
{
	if (geteuid() != 0)
		return unmount_as_user(directory, lazy);
	if (umount2(directory, UMOUNT_NOFOLLOW | (lazy ? MNT_DETACH : 0)) < 0)
		return -errno;
	return 0;
}
