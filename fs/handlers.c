/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of handlers, what is agreed with the kernel at INIT, and what all handlers
 * share.
 *
 * What is missing from the table is meant to be missing. access: the kernel checks
 * permissions (default_permissions). forget: the receive loop does it.
 */
#include "fs/handlers.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include "fs/asker.h"
#include "fs/mount.h"
#include "fs/sharer.h"

static const struct fuse_lowlevel_ops table = {
	.init = handle_init,
	.lookup = handle_lookup,
	.getattr = handle_getattr,
	.setattr = handle_setattr,
	.readlink = handle_readlink,
	.mknod = handle_mknod,
	.mkdir = handle_mkdir,
	.unlink = handle_unlink,
	.rmdir = handle_rmdir,
	.symlink = handle_symlink,
	.rename = handle_rename,
	.link = handle_link,
	.open = handle_open,
	.create = handle_create,
	.read = handle_read,
	.write = handle_write,
	.flush = handle_flush,
	.release = handle_release,
	.fsync = handle_fsync,
	.opendir = handle_opendir,
	.readdir = handle_readdir,
	.readdirplus = handle_readdirplus,
	.fsyncdir = handle_fsync,
	.statfs = handle_statfs,
	.setxattr = handle_setxattr,
	.getxattr = handle_getxattr,
	.listxattr = handle_listxattr,
	.removexattr = handle_removexattr,
	.fallocate = handle_fallocate,
	.copy_file_range = handle_copy_file_range,
	.lseek = handle_lseek,
	.getlk = handle_getlk,
	.setlk = handle_setlk,
	.flock = handle_flock,
	.ioctl = handle_ioctl,
};

const struct fuse_lowlevel_ops *handlers_table(void)
{
	return &table;
}

/*
 * On one node EXPLICIT_INVAL_DATA instead of AUTO_INVAL_DATA: a changed mtime or size is this
 * kernel's own doing and must not drop its pages. On several it may be another node's, and a
 * read(2) that meets another size must ask for it (docs/many-nodes.md, "Sizes"). No
 * WRITEBACK_CACHE: the kernel would keep its own sizes, which ends with the second node. No
 * splice: replies leave from the frames as they are. What libfuse does not know is added by the
 * shim. Locks of this kernel's processes are all there are on one node, so there the kernel keeps
 * them itself.
 */
void handle_init(void *session, struct fuse_conn_info *conn)
{
	const unsigned locks = FUSE_CAP_POSIX_LOCKS | FUSE_CAP_FLOCK_LOCKS;
	const bool asked = ops_locks_shared(session_fs(session));
	const unsigned wanted =
		(asked ? locks : 0) | FUSE_CAP_ASYNC_READ | FUSE_CAP_ATOMIC_O_TRUNC |
		FUSE_CAP_EXPORT_SUPPORT | FUSE_CAP_DONT_MASK | FUSE_CAP_READDIRPLUS |
		FUSE_CAP_READDIRPLUS_AUTO | FUSE_CAP_ASYNC_DIO |
		FUSE_CAP_PARALLEL_DIROPS | FUSE_CAP_POSIX_ACL | FUSE_CAP_CACHE_SYMLINKS |
		FUSE_CAP_NO_OPENDIR_SUPPORT | FUSE_CAP_EXPLICIT_INVAL_DATA;
	const unsigned unwanted = FUSE_CAP_AUTO_INVAL_DATA | FUSE_CAP_WRITEBACK_CACHE |
				  FUSE_CAP_SPLICE_READ | FUSE_CAP_SPLICE_WRITE |
				  FUSE_CAP_SPLICE_MOVE | FUSE_CAP_HANDLE_KILLPRIV |
				  FUSE_CAP_NO_OPEN_SUPPORT | (asked ? 0 : locks);

	conn->want = (conn->want | (conn->capable & wanted)) & ~unwanted;
	if (session_keeps(session)) { /* and attributes in passing are not kept */
		conn->want &=
			~(unsigned)(FUSE_CAP_EXPLICIT_INVAL_DATA | FUSE_CAP_READDIRPLUS |
				    FUSE_CAP_READDIRPLUS_AUTO);
		conn->want |= conn->capable & FUSE_CAP_AUTO_INVAL_DATA;
	}
	conn->max_write = FUSE_IO_MAX;
	conn->max_readahead = FUSE_READ_AHEAD;
	conn->max_background = 128;
	conn->congestion_threshold = 96;
	conn->time_gran = 1;
}

/* ---- requests -------------------------------------------------------------- */

struct fs *request_fs(fuse_req_t req)
{
	return session_fs(fuse_req_userdata(req));
}

struct ops_caller request_caller(fuse_req_t req)
{
	const struct fuse_ctx *ctx = fuse_req_ctx(req);

	/*
	 * in_group: setgid was taken off a chmod by the kernel, where the caller is not.
	 */
	return (struct ops_caller){
		.uid = ctx->uid,
		.gid = ctx->gid,
		.umask = ctx->umask,
		.keeps_setid = true,
		.in_group = true,
	};
}

uint32_t request_uid(fuse_req_t req)
{
	const struct fuse_ctx *ctx = fuse_req_ctx(req);

	return ctx->uid == UINT32_MAX ? asker_uid((uint32_t)ctx->pid) : ctx->uid;
}

int session_may_change(struct session *s)
{
	static _Atomic bool told;
	struct volume *v = fs_volume(session_fs(s));
	int failure = volume_failed(v);

	if (likely(failure == 0))
		return v->read_only ? -EROFS : 0;
	if (!atomic_exchange(&told, true))
		weft_log(3,
			"the store cannot be written (%s): this mount takes no more "
			"changes; "
			"unmount it, see to the device, run fsck.weft, mount again",
			strerror(failure < 0 ? -failure : failure));
	return -EROFS;
}

int request_may_change(fuse_req_t req)
{
	return session_may_change(fuse_req_userdata(req));
}

/* ---- replies --------------------------------------------------------------------- */

struct ops_name name_of(const char *text)
{
	return (struct ops_name){.bytes = text, .len = strlen(text)};
}

static struct timespec time_of(int64_t ns)
{
	struct timespec t = {.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};

	if (t.tv_nsec < 0) {
		t.tv_nsec += 1000000000;
		t.tv_sec--;
	}
	return t;
}

void attr_to_stat(const struct ops_attr *attr, struct stat *st)
{
	const struct disk_inode *inode = &attr->inode;

	*st = (struct stat){
		.st_ino = attr->ino,
		.st_mode = inode->mode,
		.st_nlink = inode->nlink,
		.st_uid = inode->uid,
		.st_gid = inode->gid,
		.st_rdev = makedev(inode->rdev_major, inode->rdev_minor),
		.st_size = (off_t)inode->size,
		.st_blksize = PAGE_SIZE,
		.st_blocks = (blkcnt_t)(inode->blocks * (PAGE_SIZE / 512)),
		.st_atim = time_of(inode->atime_ns),
		.st_mtim = time_of(inode->mtime_ns),
		.st_ctim = time_of(inode->ctime_ns),
	};
}

void attr_to_entry(
	fuse_req_t req, const struct ops_attr *attr, struct fuse_entry_param *entry)
{
	struct session *s = fuse_req_userdata(req);

	*entry = (struct fuse_entry_param){
		.ino = attr->ino,
		.generation = attr->inode.generation,
		.attr_timeout = passing_timeout_s(s, attr),
		.entry_timeout = kernel_timeout_s(s),
	};
	attr_to_stat(attr, &entry->attr);
}

void told_in_passing(fuse_req_t req, const struct ops_attr *attr)
{
	ops_kernel_told(request_fs(req), (uint32_t)fuse_req_ctx(req)->pid, attr);
}

int gone_is_stale(int ret)
{
	return ret == -ENOENT ? -ESTALE : ret;
}

void reply_status(fuse_req_t req, int ret)
{
	fuse_reply_err(req, ret < 0 ? -ret : 0);
}

double passing_timeout_s(struct session *s, const struct ops_attr *attr)
{
	return ops_blocks_hidden(session_fs(s), attr) ? 0 : kernel_timeout_s(s);
}

double absent_name_timeout_s(struct session *s, uint64_t dir, struct ops_name name,
	const struct ops_looked *looked)
{
	if (!session_keeps(s))
		return kernel_timeout_s(s);
	return sharer_keeps_names(s) &&
			       ops_kernel_absent(session_fs(s), dir, name, looked)
		       ? KEPT_S
		       : 0;
}

double new_name_timeout_s(struct session *s, uint64_t dir, const char *name, uint64_t ino)
{
	if (!session_keeps(s))
		return kernel_timeout_s(s);
	return sharer_keeps_names(s) &&
			       ops_expose_renamed(session_fs(s), dir, name_of(name), ino)
		       ? KEPT_S
		       : 0;
}

void reply_entry(
	fuse_req_t req, int ret, const struct ops_attr *attr, double name_timeout)
{
	struct fs *fs = request_fs(req);
	struct fuse_entry_param entry;

	if (ret < 0) {
		fuse_reply_err(req, -ret);
		return;
	}
	attr_to_entry(req, attr, &entry);
	entry.entry_timeout = name_timeout;
	told_in_passing(req, attr);
	if (fuse_reply_entry(req, &entry) < 0)
		ops_kernel_resized(fs, attr->ino);
}

void reply_named(fuse_req_t req, const struct ops_attr *attr, double name_timeout,
	const struct ops_named *named)
{
	struct fs *fs = request_fs(req); /* which the answer ends */
	struct fuse_entry_param entry;
	bool taken;

	attr_to_entry(req, attr, &entry);
	entry.entry_timeout = name_timeout;
	entry.attr_timeout = named->attributes ? KEPT_S : 0;
	taken = fuse_reply_entry(req, &entry) == 0;
	ops_kernel_named_told(fs, named, taken);
}

bool made_attributes_kept(fuse_req_t req, struct ops_attr *attr, struct ops_named *named)
{
	uint32_t thread = (uint32_t)fuse_req_ctx(req)->pid;
	struct session *s = fuse_req_userdata(req);

	return sharer_looks_at(s, thread) && sharer_keeps_named(s) &&
	       ops_kernel_made(session_fs(s), thread, attr, named);
}

void note_directory(struct session *s, int ret, fuse_ino_t dir, const char *name,
	const struct ops_attr *attr, bool moved, bool keeps)
{
	bool dots = strcmp(name, ".") == 0 || strcmp(name, "..") == 0;

	if (ret == 0 && S_ISDIR(attr->inode.mode) && !dots && session_keeps(s) &&
		sharer_keeps_names(s))
		ops_dir_placed(
			session_fs(s), attr->ino, dir, name_of(name), moved, keeps);
}

void reply_found(fuse_req_t req, int ret, fuse_ino_t dir, const char *name,
	const struct ops_attr *attr, const struct ops_looked *looked)
{
	uint32_t thread = (uint32_t)fuse_req_ctx(req)->pid;
	struct session *s = fuse_req_userdata(req);
	struct ops_looked keeps = *looked;
	struct ops_named named;
	bool kept;

	keeps.name &= sharer_looks_at(s, thread) && sharer_keeps_names(s);
	keeps.attributes &= sharer_looks_at(s, thread) && sharer_keeps_named(s);
	kept = ret == 0 && session_keeps(s) &&
	       ops_kernel_named(session_fs(s), dir, thread, attr, &keeps, &named);
	note_directory(s, ret, dir, name, attr, false, kept && named.name);
	if (kept)
		reply_named(req, attr, named.name ? KEPT_S : 0, &named);
	else
		reply_entry(req, ret, attr, kernel_timeout_s(s));
}

void reply_attr(fuse_req_t req, int ret, const struct ops_attr *attr, double attr_timeout)
{
	struct fs *fs = request_fs(req);
	struct stat st;

	if (ret < 0) {
		fuse_reply_err(req, -ret);
		return;
	}
	attr_to_stat(attr, &st);
	if (fuse_reply_attr(req, &st, attr_timeout) < 0)
		ops_kernel_resized(fs, attr->ino);
}
