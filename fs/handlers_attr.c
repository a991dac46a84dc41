/* SPDX-License-Identifier: Apache-2.0 */
/* Handlers for attributes, extended attributes and the filesystem's own numbers. */
#include <errno.h>
#include <string.h>

#include "fs/aside.h"
#include "fs/handlers.h"
#include "fs/notify.h"
#include "fs/shim.h"

static int attr_get(struct session *s, uint64_t ino, uint32_t thread,
	struct ops_attr *out, double *timeout_s)
{
	bool keeps;
	int rc;

	*timeout_s = kernel_timeout_s(s);
	if (!session_keeps(s))
		return ops_getattr(session_fs(s), ino, out);
	rc = ops_getattr_kept(session_fs(s), ino, thread, out, &keeps);
	*timeout_s = keeps ? KEPT_S : 0;
	return rc;
}

/* Attributes of a file without blocks: the stores of mappings are fetched first. */
struct attr_job {
	struct aside_job job;
	uint64_t ino;
	attr_reply reply;
	void *request;
};

static void attr_run(struct session *s, struct aside_job *job)
{
	struct attr_job *j = (struct attr_job *)job;
	int rc = ops_fetched(session_fs(s), j->ino, aside_fetch, s);
	struct kcache_size size = kcache_size_look(fs_sizes(session_fs(s)), j->ino);
	struct ops_attr attr;

	if (rc == 0)
		rc = ops_getattr(session_fs(s), j->ino, &attr);
	j->reply(s, j->request, rc, &size, &attr, 0);
	rt_free(j);
}

/* On several nodes a worker may wait for the kernel. Returns false if `attr` is the best answer. */
static bool attr_aside(struct session *s, uint64_t ino, attr_reply reply, void *request)
{
	struct attr_job *j = rt_alloc(sizeof(*j));

	if (!j)
		return false;
	*j = (struct attr_job){
		.job.run = attr_run, .ino = ino, .reply = reply, .request = request};
	if (session_shared(s))
		attr_run(s, &j->job);
	else if (!aside_run(s, &j->job)) {
		rt_free(j);
		return false;
	}
	return true;
}

void attr_answer(
	struct session *s, uint64_t ino, uint32_t thread, attr_reply reply, void *request)
{
	struct kcache_size size = kcache_size_look(fs_sizes(session_fs(s)), ino);
	struct ops_attr attr;
	double timeout;
	int rc = attr_get(s, ino, thread, &attr, &timeout);

	if (rc == 0 && unlikely(ops_blocks_hidden(session_fs(s), &attr))) {
		if (attr_aside(s, ino, reply, request))
			return;
		attr.inode.blocks = 1; /* so that programs do not consider it empty */
		timeout = 0;
	}
	reply(s, request, rc, &size, &attr, timeout);
}

static void reply_getattr(struct session *s, void *request, int rc,
	struct kcache_size *size, const struct ops_attr *attr, double timeout_s)
{
	if (!rc)
		notify_told(s, size, attr, timeout_s > 0);
	reply_attr(request, gone_is_stale(rc), attr, timeout_s);
}

void handle_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	attr_answer(fuse_req_userdata(req), ino, (uint32_t)fuse_req_ctx(req)->pid,
		reply_getattr, req);
}

/* Limits times to those that 64 bits of nanoseconds can hold. */
static int64_t ns_of(const struct timespec *t)
{
	int64_t ns;

	if (__builtin_mul_overflow((int64_t)t->tv_sec, 1000000000ll, &ns) ||
		__builtin_add_overflow(ns, (int64_t)t->tv_nsec, &ns))
		return t->tv_sec < 0 ? INT64_MIN : INT64_MAX;
	return ns;
}

/* The first page is dropped before the answer: the next read may have to move the atime. */
struct atime_job {
	struct aside_job job;
	fuse_req_t req;
	struct ops_attr attr;
};

static void atime_run(struct session *s, struct aside_job *job)
{
	struct atime_job *j = (struct atime_job *)job;

	(void)aside_fetch(s, j->attr.ino, 0, 1);
	reply_attr(j->req, 0, &j->attr, passing_timeout_s(s, &j->attr));
	rt_free(j);
}

/*
 * If opens are hidden, reads from the kernel's cache move no atime. If a program has set the atime
 * alone, the kernel drops the file's first page at once. If it has set other times, too, as
 * programs do that copy, the task that closes idle files looks at it. Returns true if it answers.
 */
static bool atime_aside(fuse_req_t req, const struct ops_attr *attr, unsigned set)
{
	struct session *s = fuse_req_userdata(req);
	struct atime_job *j;

	if (!(set & OPS_SET_ATIME) || !S_ISREG(attr->inode.mode) ||
		!fs_opens_hidden(session_fs(s)))
		return false;
	if (set & (OPS_SET_MTIME | OPS_SET_MTIME_NOW)) {
		ops_touch(session_fs(s), attr->ino);
		return false;
	}
	j = rt_alloc(sizeof(*j));
	if (!j)
		return false;
	*j = (struct atime_job){.job.run = atime_run, .req = req, .attr = *attr};
	if (aside_run(s, &j->job))
		return true;
	rt_free(j);
	return false;
}

void handle_setattr(fuse_req_t req, fuse_ino_t ino, struct stat *st, int to_set,
	struct fuse_file_info *fi)
{
	static const struct {
		int fuse;
		unsigned ops;
	} bits[] = {
		{FUSE_SET_ATTR_MODE, OPS_SET_MODE},
		{FUSE_SET_ATTR_UID, OPS_SET_UID},
		{FUSE_SET_ATTR_GID, OPS_SET_GID},
		{FUSE_SET_ATTR_SIZE, OPS_SET_SIZE},
		{FUSE_SET_ATTR_ATIME, OPS_SET_ATIME},
		{FUSE_SET_ATTR_MTIME, OPS_SET_MTIME},
		{FUSE_SET_ATTR_ATIME_NOW, OPS_SET_ATIME_NOW},
		{FUSE_SET_ATTR_MTIME_NOW, OPS_SET_MTIME_NOW},
		{FUSE_SET_ATTR_CTIME, OPS_SET_CTIME},
	};
	struct ops_caller caller = request_caller(req);
	bool kills = shim_request_kills_setid();
	struct ops_setattr set = {
		.mode = st->st_mode & 07777,
		.uid = st->st_uid,
		.gid = st->st_gid,
		.size = (uint64_t)st->st_size,
		.atime_ns = ns_of(&st->st_atim),
		.mtime_ns = ns_of(&st->st_mtim),
		.ctime_ns = ns_of(&st->st_ctim),
	};
	struct ops_attr attr;
	int rc = request_may_change(req);

	for (size_t i = 0; i < ARRAY_SIZE(bits); i++)
		if (to_set & bits[i].fuse)
			set.set |= bits[i].ops;
	/* The kernel sets the plain bit along with "now". */
	if (set.set & OPS_SET_ATIME_NOW)
		set.set &= ~OPS_SET_ATIME;
	if (set.set & OPS_SET_MTIME_NOW)
		set.set &= ~OPS_SET_MTIME;
	if ((set.set & OPS_SET_SIZE) && kills)
		set.set |= OPS_KILL_SETID;
	/* chown(2) with uid and gid both -1. Or a write, fallocate or copy follows that removes
	 * setuid, setgid or capabilities itself. The kernel has not checked the caller's right. */
	if (set.set == 0) {
		set.set = OPS_CHOWN_NO_ONE;
		caller.uid = request_uid(req);
	}
	caller.keeps_setid = !kills;
	if (rc == 0)
		rc = ops_setattr(request_fs(req), ino, &caller, &set, &attr);
	if (rc == 0)
		told_in_passing(req, &attr);
	if (rc == 0 && atime_aside(req, &attr, set.set))
		return;
	/* The kernel keeps these attributes even if it was notified meanwhile. */
	reply_attr(req, gone_is_stale(rc), &attr,
		rc ? 0 : passing_timeout_s(fuse_req_userdata(req), &attr));
}

void handle_statfs(fuse_req_t req, fuse_ino_t ino)
{
	struct statvfs st;
	int rc = ops_statfs(request_fs(req), &st);

	if (rc < 0)
		fuse_reply_err(req, -rc);
	else
		fuse_reply_statfs(req, &st);
}

/* ---- extended attributes --------------------------------------------------- */

/* Used only if the kernel does not agree to SETXATTR_EXT. Otherwise the shim answers SETXATTR. */
void handle_setxattr(fuse_req_t req, fuse_ino_t ino, const char *name, const char *value,
	size_t size, int flags)
{
	struct ops_caller caller = request_caller(req);
	int rc = request_may_change(req);

	if (rc == 0)
		rc = ops_setxattr(
			request_fs(req), ino, &caller, name, value, size, flags);
	reply_status(req, gone_is_stale(rc));
}

/* Removes the names of the trusted namespace from a list. Returns its new length. */
static size_t list_hide_trusted(char *list, size_t len)
{
	static const char hidden[] = "trusted.";
	size_t kept = 0, entry;

	for (size_t at = 0; at < len; at += entry) {
		entry = strnlen(list + at, len - at - 1) + 1;
		if (strncmp(list + at, hidden, sizeof(hidden) - 1) == 0)
			continue;
		memmove(list + kept, list + at, entry);
		kept += entry;
	}
	return kept;
}

/* Replies with the list for a caller without CAP_SYS_ADMIN. The kernel knows which caller has it; a
 * request only names the user. */
static void reply_list_hiding(fuse_req_t req, fuse_ino_t ino, size_t size)
{
	char *buf = rt_alloc(DISK_XATTR_VALUE_MAX);
	int rc;

	if (!buf) {
		fuse_reply_err(req, ENOMEM);
		return;
	}
	rc = ops_listxattr(request_fs(req), ino, buf, DISK_XATTR_VALUE_MAX);
	if (rc > 0)
		rc = (int)list_hide_trusted(buf, (size_t)rc);
	if (rc > 0 && size > 0 && (size_t)rc > size)
		rc = -ERANGE;
	if (rc < 0)
		fuse_reply_err(req, -gone_is_stale(rc));
	else if (size == 0)
		fuse_reply_xattr(req, (size_t)rc);
	else
		fuse_reply_buf(req, buf, (size_t)rc);
	rt_free(buf);
}

/* The common part of getxattr and listxattr. `name` NULL: lists. */
static void reply_xattr(fuse_req_t req, fuse_ino_t ino, const char *name, size_t size)
{
	struct fs *fs = request_fs(req);
	char *buf = NULL;
	int rc;

	size = MIN(size, DISK_XATTR_VALUE_MAX);
	if (size) {
		buf = rt_alloc(size);
		if (!buf) {
			fuse_reply_err(req, ENOMEM);
			return;
		}
	}
	rc = name ? ops_getxattr(fs, ino, name, buf, size)
		   : ops_listxattr(fs, ino, buf, size);
	if (rc < 0)
		fuse_reply_err(req, -gone_is_stale(rc));
	else if (!buf)
		fuse_reply_xattr(req, (size_t)rc);
	else
		fuse_reply_buf(req, buf, (size_t)rc);
	rt_free(buf);
}

/* The kernel keeps ACLs as attributes, but has no timeout for them. */
static void acl_kcached(struct session *s, fuse_ino_t ino)
{
	if (!kcache_acl(fs_kcache(session_fs(s)), ino))
		fuse_lowlevel_notify_inval_inode(session_fuse(s), ino, -1, 0);
}

void handle_getxattr(fuse_req_t req, fuse_ino_t ino, const char *name, size_t size)
{
	struct session *s = fuse_req_userdata(req);

	if (session_keeps(s) && strncmp(name, "system.posix_acl_", 17) == 0)
		acl_kcached(s, ino);
	reply_xattr(req, ino, name, size);
}

void handle_listxattr(fuse_req_t req, fuse_ino_t ino, size_t size)
{
	if (fuse_req_ctx(req)->uid == 0)
		reply_xattr(req, ino, NULL, size);
	else
		reply_list_hiding(req, ino, size);
}

void handle_removexattr(fuse_req_t req, fuse_ino_t ino, const char *name)
{
	int rc = request_may_change(req);

	if (rc == 0)
		rc = ops_removexattr(request_fs(req), ino, name);
	reply_status(req, gone_is_stale(rc));
}
