/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The FUSE handlers: decode a request, call an operation, reply. Internal to fs/.
 *
 * Inode numbers are stable and never used twice, so the kernel's lookup counts need no
 * bookkeeping. On a volume of one node this kernel is the only client, so what it caches
 * of names, attributes and data stays true for as long as it likes. On one that other nodes
 * have too (session_shared) it is told when something of it may change (session_keeps), or
 * caches nothing: then names and attributes are asked for each time, and all opens are for
 * direct I/O.
 */
#ifndef WEFT_FS_HANDLERS_H
#define WEFT_FS_HANDLERS_H

#ifndef FUSE_USE_VERSION
#define FUSE_USE_VERSION 314
#endif
#include <fuse_lowlevel.h>

#include "fs/session.h"

/*
 * How long the kernel may believe a name or attributes, seconds, that it gets in passing:
 * where other nodes have the volume it is to ask for each by itself.
 */
static inline double kernel_timeout_s(struct session *s)
{
	return session_shared(s) ? 0 : 3600;
}
#define KEPT_S 3600 /* what it is told of when it may change */
/* How long it may believe these, that it gets with a name or with its own change. */
double passing_timeout_s(struct session *s, const struct ops_attr *attr);
/*
 * Gets attributes that the thread asks for, and answers, perhaps by another task once this has returned. ret:
 * 0 or a negative errno. Waits.
 */
typedef void (*attr_reply)(struct session *s, void *request, int ret,
	struct ops_size *size, const struct ops_attr *attr, double timeout_s);
void attr_answer(struct session *s, uint64_t ino, uint32_t thread, attr_reply reply,
	void *request);
/* For a name that was looked up, and is absent. */
double absent_name_timeout_s(struct session *s, uint64_t dir, struct ops_name name,
	const struct ops_looked *looked);
/* For one that this mount has just made. Waits. */
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

/* ---- what they share (handlers.c) ------------------------------------------------- */

struct fs *request_fs(fuse_req_t req);
/* Who asks. Setuid and setgid bits are kept unless the kernel says otherwise. */
struct ops_caller request_caller(fuse_req_t req);
/*
 * Who asks: UINT32_MAX if that is not known. Where mounts may be idmapped the kernel says it of requests that
 * create alone, which own what they create; of others it is looked up. Through an idmapped mount it is not the
 * user that the volume knows.
 */
uint32_t request_uid(fuse_req_t req);
/*
 * 0, or -EROFS when the volume takes no changes: it is read-only, or its log has failed.
 * What changes something asks first. Logs the first failure.
 */
int session_may_change(struct session *s);
int request_may_change(fuse_req_t req);
/* The answer tells the kernel these attributes besides, which it may not keep. */
void told_in_passing(fuse_req_t req, const struct ops_attr *attr);
/*
 * For what is asked of an inode by its number: one that is gone is -ESTALE. The kernel
 * then walks the path anew, and so finds what has taken the name meanwhile.
 */
int gone_is_stale(int ret);
/* Replies with a negative errno, or 0. */
void reply_status(fuse_req_t req, int ret);
void reply_entry(
	fuse_req_t req, int ret, const struct ops_attr *attr, double name_timeout);
/* The same for a name of `dir` that was just looked up: name and attributes may be kept. */
void reply_found(fuse_req_t req, int ret, fuse_ino_t dir, const char *name,
	const struct ops_attr *attr, const struct ops_looked *looked);
/* Before an answer (ret 0) by which the kernel has a directory under that name. */
void note_directory(struct session *s, int ret, fuse_ino_t dir, const char *name,
	const struct ops_attr *attr, bool moved, bool keeps);
/* Name or attributes may be kept: ops_kernel_named, or ops_kernel_made, has said so. */
void reply_named(fuse_req_t req, const struct ops_attr *attr, double name_timeout,
	const struct ops_named *named);
/* May the kernel keep the attributes of what the request has made? *attr is what they are by then;
 * ops_kernel_named_told follows the answer. */
bool made_attributes_kept(fuse_req_t req, struct ops_attr *attr, struct ops_named *named);
void reply_attr(
	fuse_req_t req, int ret, const struct ops_attr *attr, double attr_timeout);

void attr_to_stat(const struct ops_attr *attr, struct stat *st);
void attr_to_entry(
	fuse_req_t req, const struct ops_attr *attr, struct fuse_entry_param *entry);
struct ops_name name_of(const char *text);

#endif
