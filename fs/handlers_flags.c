/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Handlers for the flags of files and directories: lsattr(1) and chattr(1), by FS_IOC_GETFLAGS and
 * FS_IOC_FSGETXATTR and what sets them. Linux has looked at who may set them: the owner, and those
 * that keep others from changing the file with CAP_LINUX_IMMUTABLE alone.
 */
#include <errno.h>
#include <linux/fs.h>
#include <string.h>

#include "fs/handlers.h"

static const struct {
	uint32_t disk;
	uint32_t flag;  /* FS_*_FL */
	uint32_t xflag; /* FS_XFLAG_* */
} known[] = {
	{DISK_INODE_IMMUTABLE, FS_IMMUTABLE_FL, FS_XFLAG_IMMUTABLE},
	{DISK_INODE_APPEND_ONLY, FS_APPEND_FL, FS_XFLAG_APPEND},
	{DISK_INODE_NODUMP, FS_NODUMP_FL, FS_XFLAG_NODUMP},
	{DISK_INODE_NOATIME, FS_NOATIME_FL, FS_XFLAG_NOATIME},
};

/* Replies with `value`, or the error. */
static void reply_value(fuse_req_t req, int ret, const void *value, size_t len)
{
	if (ret < 0)
		fuse_reply_err(req, -gone_is_stale(ret));
	else
		fuse_reply_ioctl(req, 0, value, len);
}

static void get_flags(fuse_req_t req, fuse_ino_t ino, bool xflags, size_t out_bytes)
{
	struct fsxattr x = {.fsx_xflags = 0};
	struct ops_attr attr;
	uint32_t flags = 0;
	int ret = ops_getattr(request_fs(req), ino, &attr);

	for (size_t i = 0; ret == 0 && i < ARRAY_SIZE(known); i++)
		if (attr.inode.flags & known[i].disk) {
			flags |= known[i].flag;
			x.fsx_xflags |= known[i].xflag;
		}
	if (out_bytes < (xflags ? sizeof(x) : sizeof(flags)))
		ret = -EINVAL;
	if (xflags)
		reply_value(req, ret, &x, sizeof(x));
	else
		reply_value(req, ret, &flags, sizeof(flags));
}

/* What is left of the flags is not known here. */
static uint32_t to_disk(uint32_t *flags, bool xflags)
{
	uint32_t disk = 0;

	for (size_t i = 0; i < ARRAY_SIZE(known); i++) {
		uint32_t one = xflags ? known[i].xflag : known[i].flag;

		if (*flags & one)
			disk |= known[i].disk;
		*flags &= ~one;
	}
	return disk;
}

static void set_flags(
	fuse_req_t req, fuse_ino_t ino, bool xflags, const void *in, size_t in_bytes)
{
	struct session *s = fuse_req_userdata(req);
	struct fsxattr x = {.fsx_xflags = 0};
	uint32_t flags = 0, disk;
	int ret = request_may_change(req);

	if (ret == 0 && in_bytes < (xflags ? sizeof(x) : sizeof(flags)))
		ret = -EINVAL;
	if (ret == 0 && xflags) {
		memcpy(&x, in, sizeof(x));
		flags = x.fsx_xflags;
	} else if (ret == 0) {
		memcpy(&flags, in, sizeof(flags));
	}
	disk = to_disk(&flags, xflags);
	if (ret == 0 && (flags || x.fsx_extsize || x.fsx_projid || x.fsx_cowextsize))
		ret = -EOPNOTSUPP;
	if (ret == 0)
		ret = ops_setflags(session_fs(s), ino, disk);
	if (ret == 0) /* the ctime has moved */
		fuse_lowlevel_notify_inval_inode(session_fuse(s), ino, -1, 0);
	reply_value(req, ret, NULL, 0);
}

void handle_ioctl(fuse_req_t req, fuse_ino_t ino, unsigned cmd, void *arg,
	struct fuse_file_info *fi, unsigned flags, const void *in, size_t in_bytes,
	size_t out_bytes)
{
	switch (cmd) {
	case FS_IOC_GETFLAGS:
		get_flags(req, ino, false, out_bytes);
		break;
	case FS_IOC_FSGETXATTR:
		get_flags(req, ino, true, out_bytes);
		break;
	case FS_IOC_SETFLAGS:
		set_flags(req, ino, false, in, in_bytes);
		break;
	case FS_IOC_FSSETXATTR:
		set_flags(req, ino, true, in, in_bytes);
		break;
	default:
		fuse_reply_err(req, ENOTTY);
	}
}
