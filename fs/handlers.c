/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of handlers, the flags of INIT, and functions that all handlers share.
 *
 * Some handlers are left out on purpose. access: the kernel checks permissions
 * (default_permissions). forget: the receive loop does it.
 */
#include "fs/handlers.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include "fs/aside.h"
#include "fs/thread_state.h"
#include "fs/mount.h"
#include "fs/notify.h"

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

static void drop_first(void *session, uint64_t ino)
{
	(void)aside_fetch(session, ino, 0, 1);
}

/* Decides at INIT whether the kernel opens files without a request, until the mount ends. With
 * strictatime it does not, since each open may move the access time. */
static bool hides_opens(struct session *s, const struct fuse_conn_info *conn)
{
	struct fs *fs = session_fs(s);
	int rc;

	if (session_shared(s) || fs_sets_each_atime(fs) ||
		!(conn->capable & FUSE_CAP_NO_OPEN_SUPPORT))
		return false;
	rc = fs_hide_opens(fs, drop_first, s);
	if (rc < 0)
		weft_log(5, "the kernel asks for each open of a file: %s", strerror(-rc));
	return rc == 0;
}

/*
 * Answers INIT. Reasons for the flags:
 *
 * - On one node, EXPLICIT_INVAL_DATA instead of AUTO_INVAL_DATA: this kernel itself has changed the
 *   mtime or size, so its pages must stay. On several nodes another node may have changed them, and
 *   a read(2) that meets another size must request it (docs/nodes/sizes.md, "Sizes").
 * - No WRITEBACK_CACHE: the kernel would keep its own sizes, which is wrong with a second node.
 * - No splice: replies leave from the frames as they are.
 *
 * - No ATOMIC_O_TRUNC if opens are hidden: the truncation then comes as SETATTR. With the flag it
 *   would come with OPEN, and be lost.
 *
 * The shim adds the flags that libfuse does not know. On one node, all locks are of this kernel's
 * processes, so the kernel keeps them itself.
 */
void handle_init(void *session, struct fuse_conn_info *conn)
{
	const unsigned locks = FUSE_CAP_POSIX_LOCKS | FUSE_CAP_FLOCK_LOCKS;
	const bool asked = ops_locks_shared(session_fs(session));
	const bool hidden = hides_opens(session, conn);
	const unsigned wanted =
		(asked ? locks : 0) | FUSE_CAP_ASYNC_READ |
		(hidden ? FUSE_CAP_NO_OPEN_SUPPORT : FUSE_CAP_ATOMIC_O_TRUNC) |
		FUSE_CAP_EXPORT_SUPPORT | FUSE_CAP_DONT_MASK | FUSE_CAP_READDIRPLUS |
		FUSE_CAP_READDIRPLUS_AUTO | FUSE_CAP_ASYNC_DIO |
		FUSE_CAP_PARALLEL_DIROPS | FUSE_CAP_POSIX_ACL | FUSE_CAP_CACHE_SYMLINKS |
		FUSE_CAP_NO_OPENDIR_SUPPORT | FUSE_CAP_EXPLICIT_INVAL_DATA;
	const unsigned unwanted =
		FUSE_CAP_AUTO_INVAL_DATA | FUSE_CAP_WRITEBACK_CACHE |
		FUSE_CAP_SPLICE_READ | FUSE_CAP_SPLICE_WRITE | FUSE_CAP_SPLICE_MOVE |
		FUSE_CAP_HANDLE_KILLPRIV |
		(hidden ? FUSE_CAP_ATOMIC_O_TRUNC : FUSE_CAP_NO_OPEN_SUPPORT) |
		(asked ? 0 : locks);

	conn->want = (conn->want | (conn->capable & wanted)) & ~unwanted;
	if (session_keeps(session)) { /* attributes in other answers are not kept */
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

	/* in_group: if the caller is not in the group, the kernel has removed setgid from a
	 * chmod. */
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

	return ctx->uid == UINT32_MAX ? thread_uid((uint32_t)ctx->pid) : ctx->uid;
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
	kcache_told(fs_kcache(request_fs(req)), (uint32_t)fuse_req_ctx(req)->pid, attr);
}

int gone_is_stale(int rc)
{
	return rc == -ENOENT ? -ESTALE : rc;
}

void reply_status(fuse_req_t req, int rc)
{
	fuse_reply_err(req, rc < 0 ? -rc : 0);
}

double passing_timeout_s(struct session *s, const struct ops_attr *attr)
{
	return ops_blocks_hidden(session_fs(s), attr) ? 0 : kernel_timeout_s(s);
}

double absent_name_timeout_s(struct session *s, uint64_t dir, struct ops_name name,
	const struct kcache_looked *looked)
{
	if (!session_keeps(s))
		return kernel_timeout_s(s);
	return notify_keeps_names(s) &&
			       kcache_absent(fs_kcache(session_fs(s)), dir, name, looked)
		       ? KEPT_S
		       : 0;
}

double new_name_timeout_s(struct session *s, uint64_t dir, const char *name, uint64_t ino)
{
	if (!session_keeps(s))
		return kernel_timeout_s(s);
	return notify_keeps_names(s) &&
			       ops_renamed_kept(session_fs(s), dir, name_of(name), ino)
		       ? KEPT_S
		       : 0;
}

void reply_entry(
	fuse_req_t req, int rc, const struct ops_attr *attr, double name_timeout)
{
	struct fs *fs = request_fs(req);
	struct fuse_entry_param entry;

	if (rc < 0) {
		fuse_reply_err(req, -rc);
		return;
	}
	attr_to_entry(req, attr, &entry);
	entry.entry_timeout = name_timeout;
	told_in_passing(req, attr);
	if (fuse_reply_entry(req, &entry) < 0)
		kcache_resized(fs_kcache(fs), attr->ino);
}

void reply_named(fuse_req_t req, const struct ops_attr *attr, double name_timeout,
	const struct kcache_named *named)
{
	struct fs *fs = request_fs(req); /* invalid after the answer */
	struct fuse_entry_param entry;
	bool taken;

	attr_to_entry(req, attr, &entry);
	entry.entry_timeout = name_timeout;
	entry.attr_timeout = named->attributes ? KEPT_S : 0;
	taken = fuse_reply_entry(req, &entry) == 0;
	kcache_named_told(fs_kcache(fs), named, taken);
}

bool made_attributes_kept(
	fuse_req_t req, struct ops_attr *attr, struct kcache_named *named)
{
	uint32_t thread = (uint32_t)fuse_req_ctx(req)->pid;
	struct session *s = fuse_req_userdata(req);

	return notify_looks_at(s, thread) && notify_keeps_named(s) &&
	       kcache_made(fs_kcache(session_fs(s)), thread, attr, named);
}

void note_directory(struct session *s, int rc, fuse_ino_t dir, const char *name,
	const struct ops_attr *attr, bool moved, bool keeps)
{
	bool dots = strcmp(name, ".") == 0 || strcmp(name, "..") == 0;

	if (rc == 0 && S_ISDIR(attr->inode.mode) && !dots && session_keeps(s) &&
		notify_keeps_names(s))
		kcache_dir_placed(fs_kcache(session_fs(s)), attr->ino, dir, name_of(name),
			moved, keeps);
}

void reply_found(fuse_req_t req, int rc, fuse_ino_t dir, const char *name,
	const struct ops_attr *attr, const struct kcache_looked *looked)
{
	uint32_t thread = (uint32_t)fuse_req_ctx(req)->pid;
	struct session *s = fuse_req_userdata(req);
	struct kcache_looked keeps = *looked;
	const bool seen = notify_looks_at(s, thread);
	struct kcache_named named;
	bool kept;

	keeps.name &= seen && notify_keeps_names(s);
	keeps.attributes &= seen && notify_keeps_named(s);
	kept = rc == 0 && session_keeps(s) &&
	       kcache_named(fs_kcache(session_fs(s)), dir, thread, attr, &keeps, &named);
	note_directory(s, rc, dir, name, attr, false, kept && named.name);
	if (kept)
		reply_named(req, attr, named.name ? KEPT_S : 0, &named);
	else
		reply_entry(req, rc, attr, kernel_timeout_s(s));
}

void reply_attr(fuse_req_t req, int rc, const struct ops_attr *attr, double attr_timeout)
{
	struct fs *fs = request_fs(req);
	struct stat st;

	if (rc < 0) {
		fuse_reply_err(req, -rc);
		return;
	}
	attr_to_stat(attr, &st);
	if (fuse_reply_attr(req, &st, attr_timeout) < 0)
		kcache_resized(fs_kcache(fs), attr->ino);
}
