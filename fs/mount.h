/* SPDX-License-Identifier: Apache-2.0 */
/* Mounting and unmounting: /dev/fuse, mount(2), and fusermount3 for ordinary users. */
#ifndef WEFT_FS_MOUNT_H
#define WEFT_FS_MOUNT_H

#include "fs/options.h"

/* Largest READ and WRITE that the kernel sends, in bytes. */
#define FUSE_IO_MAX (1u << 20)
/* Size of the pages of the largest request, in bytes. The memory of a program may begin within a
 * page, so there is one page more. A kernel's page has up to 64 KiB. */
#define FUSE_PAYLOAD_MAX (FUSE_IO_MAX + (64u << 10))
/* Read-ahead asked of the kernel, in bytes: a few requests of the largest size. */
#define FUSE_READ_AHEAD (4u << 20)

/*
 * Mounts on o->directory; `label` is shown as the source when o->source is empty.
 * Returns the FUSE device's descriptor, or -errno with a text.
 */
int fuse_mount_open(
	const struct mount_options *o, const char *label, struct weft_error *err);
/*
 * Raises the read-ahead of the mounted filesystem, whose mount point must answer. A hint:
 * needs root and sysfs.
 */
void fuse_mount_tune(const struct mount_options *o);
/*
 * Unmounts: 0, -EBUSY (lazy makes that impossible), -EINVAL when not mounted, -EPERM when
 * it is not the caller's mount.
 */
int fuse_mount_close(const char *directory, bool lazy);

/* Waits for a message of one byte with a descriptor; that (close-on-exec), or -errno. */
int mount_receive_descriptor(int from);

#endif
