/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Handlers for the flags of files and directories (lsattr(1) and chattr(1)): FS_IOC_GETFLAGS,
 * FS_IOC_FSGETXATTR and their setters. Linux has checked the caller. The owner may set flags. Flags
 * that keep other users from changing the file also need CAP_LINUX_IMMUTABLE.
 */
#include <errno.h>
#include <linux/fs.h>
#include <string.h>

#include "fs/aside.h"
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
static void reply_value(fuse_req_t req, int rc, const void *value, size_t len)
{
	if (rc < 0)
		fuse_reply_err(req, -gone_is_stale(rc));
	else
		fuse_reply_ioctl(req, 0, value, len);
}

static void get_flags(fuse_req_t req, fuse_ino_t ino, bool xflags, size_t out_bytes)
{
	struct fsxattr x = {.fsx_xflags = 0};
	struct ops_attr attr;
	uint32_t flags = 0;
	int rc = ops_getattr(request_fs(req), ino, &attr);

	for (size_t i = 0; rc == 0 && i < ARRAY_SIZE(known); i++)
		if (attr.inode.flags & known[i].disk) {
			flags |= known[i].flag;
			x.fsx_xflags |= known[i].xflag;
		}
	if (out_bytes < (xflags ? sizeof(x) : sizeof(flags)))
		rc = -EINVAL;
	if (xflags)
		reply_value(req, rc, &x, sizeof(x));
	else
		reply_value(req, rc, &flags, sizeof(flags));
}

/* Converts flags, and removes them from *flags. The remaining ones are unknown here. */
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

static void set_now(fuse_req_t req, fuse_ino_t ino, uint32_t disk)
{
	struct session *s = fuse_req_userdata(req);
	int rc = ops_setflags(session_fs(s), ino, disk);

	if (rc == 0) /* the ctime has moved */
		fuse_lowlevel_notify_inval_inode(session_fuse(s), ino, -1, 0);
	reply_value(req, rc, NULL, 0);
}

struct flags_job {
	struct aside_job job;
	fuse_req_t req;
	fuse_ino_t ino;
	uint32_t disk;
};

static void flags_run(struct session *s, struct aside_job *job)
{
	struct flags_job *j = (struct flags_job *)job;

	(void)ops_fetched(session_fs(s), j->ino, aside_fetch, s);
	set_now(j->req, j->ino, j->disk);
	rt_free(j);
}

/* If opens are hidden, stores of mappings are refused as soon as the file has such flags. So the
 * stores from before are fetched first. Returns false if they cannot be. */
static bool set_aside(fuse_req_t req, fuse_ino_t ino, uint32_t disk)
{
	struct session *s = fuse_req_userdata(req);
	struct flags_job *j;

	if (!fs_opens_hidden(session_fs(s)) ||
		!(disk & (DISK_INODE_IMMUTABLE | DISK_INODE_APPEND_ONLY)))
		return false;
	j = rt_alloc(sizeof(*j));
	if (!j)
		return false;
	*j = (struct flags_job){
		.job.run = flags_run, .req = req, .ino = ino, .disk = disk};
	if (aside_run(s, &j->job))
		return true;
	rt_free(j);
	return false;
}

static void set_flags(
	fuse_req_t req, fuse_ino_t ino, bool xflags, const void *in, size_t in_bytes)
{
	struct fsxattr x = {.fsx_xflags = 0};
	uint32_t flags = 0, disk;
	int rc = request_may_change(req);

	if (rc == 0 && in_bytes < (xflags ? sizeof(x) : sizeof(flags)))
		rc = -EINVAL;
	if (rc == 0 && xflags) {
		memcpy(&x, in, sizeof(x));
		flags = x.fsx_xflags;
	} else if (rc == 0) {
		memcpy(&flags, in, sizeof(flags));
	}
	disk = to_disk(&flags, xflags);
	if (rc == 0 && (flags || x.fsx_extsize || x.fsx_projid || x.fsx_cowextsize))
		rc = -EOPNOTSUPP;
	if (rc < 0)
		reply_value(req, rc, NULL, 0);
	else if (!set_aside(req, ino, disk))
		set_now(req, ino, disk);
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
