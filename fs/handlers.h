/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The FUSE handlers. Each decodes a request, calls an operation and replies. Internal to fs/.
 *
 * Inode numbers are stable and never used twice, so the kernel's lookup counts need no bookkeeping.
 * On a volume of one node this kernel is the only client. Its cache of names, attributes and data
 * stays valid without limit.
 *
 * A volume of several nodes (session_shared) has two cases. If session_keeps, the daemon notifies
 * the kernel before its cached data may change. Otherwise the kernel caches nothing: it requests
 * names and attributes each time, and all opens are for direct I/O.
 */
#ifndef WEFT_FS_HANDLERS_H
#define WEFT_FS_HANDLERS_H

#ifndef FUSE_USE_VERSION
#define FUSE_USE_VERSION 314
#endif
#include <fuse_lowlevel.h>

#include "fs/session.h"

/* Returns for how many seconds the kernel may use a name or attributes that another answer
 * includes. On a volume of several nodes that is 0: the kernel must request each by itself. */
static inline double kernel_timeout_s(struct session *s)
{
	return session_shared(s) ? 0 : 3600;
}
#define KEPT_S 3600 /* seconds; the daemon notifies the kernel before a change */
/* As kernel_timeout_s, for attributes that come with a name or with the kernel's own change. */
double passing_timeout_s(struct session *s, const struct ops_attr *attr);
/* Gets attributes for the requesting thread and passes them to `reply`. Another task may do that
 * after this has returned. `rc`: 0 or -errno. Waits. */
typedef void (*attr_reply)(struct session *s, void *request, int rc,
	struct kcache_size *size, const struct ops_attr *attr, double timeout_s);
void attr_answer(struct session *s, uint64_t ino, uint32_t thread, attr_reply reply,
	void *request);
/* As kernel_timeout_s, for a name that does not exist. */
double absent_name_timeout_s(struct session *s, uint64_t dir, struct ops_name name,
	const struct kcache_looked *looked);
/* As kernel_timeout_s, for a name that this mount has just made. Waits. */
double new_name_timeout_s(
	struct session *s, uint64_t dir, const char *name, uint64_t ino);

const struct fuse_lowlevel_ops *handlers_table(void);

/* handlers.c */
void handle_init(void *session, struct fuse_conn_info *conn);

/* handlers_attr.c */
void handle_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void handle_setattr(fuse_req_t req, fuse_ino_t ino, struct stat *st, int to_set,
	struct fuse_file_info *fi);
void handle_statfs(fuse_req_t req, fuse_ino_t ino);
void handle_setxattr(fuse_req_t req, fuse_ino_t ino, const char *name, const char *value,
	size_t size, int flags);
void handle_getxattr(fuse_req_t req, fuse_ino_t ino, const char *name, size_t size);
void handle_listxattr(fuse_req_t req, fuse_ino_t ino, size_t size);
void handle_removexattr(fuse_req_t req, fuse_ino_t ino, const char *name);

/* handlers_names.c */
void handle_lookup(fuse_req_t req, fuse_ino_t dir, const char *name);
void handle_mknod(
	fuse_req_t req, fuse_ino_t dir, const char *name, mode_t mode, dev_t rdev);
void handle_mkdir(fuse_req_t req, fuse_ino_t dir, const char *name, mode_t mode);
void handle_symlink(fuse_req_t req, const char *target, fuse_ino_t dir, const char *name);
void handle_readlink(fuse_req_t req, fuse_ino_t ino);
void handle_link(fuse_req_t req, fuse_ino_t ino, fuse_ino_t dir, const char *name);
void handle_unlink(fuse_req_t req, fuse_ino_t dir, const char *name);
void handle_rmdir(fuse_req_t req, fuse_ino_t dir, const char *name);
void handle_rename(fuse_req_t req, fuse_ino_t dir, const char *name, fuse_ino_t new_dir,
	const char *new_name, unsigned flags);
void handle_opendir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void handle_readdir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t offset,
	struct fuse_file_info *fi);
void handle_readdirplus(fuse_req_t req, fuse_ino_t ino, size_t size, off_t offset,
	struct fuse_file_info *fi);

/* handlers_file.c */
void handle_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void handle_create(fuse_req_t req, fuse_ino_t dir, const char *name, mode_t mode,
	struct fuse_file_info *fi);
void handle_release(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void handle_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t offset,
	struct fuse_file_info *fi);
void handle_write(fuse_req_t req, fuse_ino_t ino, const char *buf, size_t size,
	off_t offset, struct fuse_file_info *fi);
void handle_fsync(
	fuse_req_t req, fuse_ino_t ino, int data_only, struct fuse_file_info *fi);
void handle_ioctl(fuse_req_t req, fuse_ino_t ino, unsigned cmd, void *arg,
	struct fuse_file_info *fi, unsigned flags, const void *in, size_t in_bytes,
	size_t out_bytes);
void handle_fallocate(fuse_req_t req, fuse_ino_t ino, int mode, off_t offset,
	off_t length, struct fuse_file_info *fi);
void handle_lseek(fuse_req_t req, fuse_ino_t ino, off_t offset, int whence,
	struct fuse_file_info *fi);
void handle_copy_file_range(fuse_req_t req, fuse_ino_t ino_in, off_t offset_in,
	struct fuse_file_info *fi_in, fuse_ino_t ino_out, off_t offset_out,
	struct fuse_file_info *fi_out, size_t length, int flags);

/* handlers_lock.c */
void handle_getlk(
	fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi, struct flock *lock);
void handle_setlk(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi,
	struct flock *lock, int sleep);
void handle_flock(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi, int op);
void handle_flush(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);

/* ---- shared by the handlers (handlers.c) ----------------------------------------- */

struct fs *request_fs(fuse_req_t req);
/* Returns the caller of the request. It keeps setuid and setgid bits unless the kernel asks to
 * clear them. */
struct ops_caller request_caller(fuse_req_t req);
/*
 * Returns the user of the request, or UINT32_MAX if it is unknown. If mounts may be idmapped, the
 * kernel names the user only in requests that create inodes, as their owner. For other requests the
 * user is read from the thread. Through an idmapped mount it differs from the user that the volume
 * knows.
 */
uint32_t request_uid(fuse_req_t req);
/* Returns 0, or -EROFS if the volume is read-only or its log has failed. Handlers that change the
 * volume call it first. Logs the first failure. */
int session_may_change(struct session *s);
int request_may_change(fuse_req_t req);
/* Notes that an answer includes these attributes, which the kernel may not keep. */
void told_in_passing(fuse_req_t req, const struct ops_attr *attr);
/* Maps errors of a request for an inode by its number: a missing inode is -ESTALE. The kernel then
 * walks the path again and finds the inode that now has the name. */
int gone_is_stale(int rc);
/* Replies with 0 or a negative errno. */
void reply_status(fuse_req_t req, int rc);
void reply_entry(
	fuse_req_t req, int rc, const struct ops_attr *attr, double name_timeout);
/* Replies to a look-up of a name in `dir`. The kernel may keep name and attributes. */
void reply_found(fuse_req_t req, int rc, fuse_ino_t dir, const char *name,
	const struct ops_attr *attr, const struct kcache_looked *looked);
/* Call this before an answer (`rc` 0) that gives the kernel a directory under that name. */
void note_directory(struct session *s, int rc, fuse_ino_t dir, const char *name,
	const struct ops_attr *attr, bool moved, bool keeps);
/* Replies with a name. kcache_named or kcache_made has decided whether name and attributes may be
 * kept. */
void reply_named(fuse_req_t req, const struct ops_attr *attr, double name_timeout,
	const struct kcache_named *named);
/* Returns true if the kernel may keep the attributes of an inode that the request has made. *attr:
 * its current attributes. Call kcache_named_told after the answer. */
bool made_attributes_kept(
	fuse_req_t req, struct ops_attr *attr, struct kcache_named *named);
void reply_attr(
	fuse_req_t req, int rc, const struct ops_attr *attr, double attr_timeout);

void attr_to_stat(const struct ops_attr *attr, struct stat *st);
void attr_to_entry(
	fuse_req_t req, const struct ops_attr *attr, struct fuse_entry_param *entry);
struct ops_name name_of(const char *text);

#endif
