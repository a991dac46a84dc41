/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Handlers for locks, where several nodes have the volume (else the kernel keeps them and
 * does not ask).
 *
 * A request that waits is *parked*: the handler returns, and whoever finds that the lock is
 * free replies. So it keeps no thread, and no others from being served. A signal ends it.
 */
#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>

#include "fs/handlers.h"

static struct ops_file *file_of(const struct fuse_file_info *fi)
{
	return (struct ops_file *)(uintptr_t)fi->fh;
}

struct parked {
	struct ops_lock_wait wait;
	struct fs *fs;
	fuse_req_t req;
};

/* Called by libfuse when the kernel says so, with the request's lock. */
static void parked_interrupt(fuse_req_t req, void *arg)
{
	struct parked *p = arg;

	ops_lock_cancel(p->fs, &p->wait);
}

/* When this has returned nothing interrupts it any more. */
static void parked_reply(struct parked *p, int result)
{
	fuse_req_interrupt_func(p->req, NULL, NULL);
	if (result == 0)
		kcache_sizes_await(fs_kcache(p->fs));
	reply_status(p->req, result);
	rt_free(p);
}

static void parked_done(void *arg, int result)
{
	parked_reply(arg, result);
}

static void lock_waiting(
	fuse_req_t req, struct fuse_file_info *fi, const struct ops_lock *lock)
{
	struct parked *p = rt_alloc(sizeof(*p));
	int result;

	if (!p) {
		fuse_reply_err(req, ENOLCK);
		return;
	}
	p->fs = request_fs(req);
	p->req = req;
	p->wait.lock = *lock;
	p->wait.done = parked_done;
	p->wait.arg = p;
	fuse_req_interrupt_func(req, parked_interrupt, p);
	result = ops_lock_start(p->fs, file_of(fi), &p->wait);
	if (result != -EINPROGRESS)
		parked_reply(p, result);
}

static void lock_set(fuse_req_t req, struct fuse_file_info *fi,
	const struct ops_lock *lock, bool waits)
{
	int result;

	if (waits && lock->type != OPS_LOCK_NONE) {
		lock_waiting(req, fi, lock);
		return;
	}
	result = ops_lock(request_fs(req), file_of(fi), lock);
	if (result == 0 && lock->type != OPS_LOCK_NONE)
		kcache_sizes_await(fs_kcache(request_fs(req)));
	reply_status(req, result);
}

static enum ops_lock_type type_of(int type)
{
	return type == F_RDLCK   ? OPS_LOCK_SHARED
	       : type == F_WRLCK ? OPS_LOCK_EXCLUSIVE
				 : OPS_LOCK_NONE;
}

/* libfuse has made the range start at a byte; l_len 0 is to the end. */
static struct ops_lock posix_of(const struct fuse_file_info *fi, const struct flock *lock)
{
	uint64_t first = (uint64_t)lock->l_start;

	return (struct ops_lock){
		.kind = OPS_LOCK_POSIX,
		.type = type_of(lock->l_type),
		.owner = fi->lock_owner,
		.first = first,
		.last = lock->l_len ? first + (uint64_t)lock->l_len - 1 : OPS_LOCK_END,
		.pid = (uint32_t)lock->l_pid,
	};
}

void handle_getlk(
	fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi, struct flock *lock)
{
	struct ops_lock want = posix_of(fi, lock), found;
	struct flock out = {.l_type = F_UNLCK, .l_whence = SEEK_SET};
	int rc = ops_lock_test(request_fs(req), file_of(fi), &want, &found);

	if (rc < 0) {
		fuse_reply_err(req, -rc);
		return;
	}
	if (found.type != OPS_LOCK_NONE) {
		out.l_type = found.type == OPS_LOCK_SHARED ? F_RDLCK : F_WRLCK;
		out.l_start = (off_t)found.first;
		out.l_len = found.last == OPS_LOCK_END
				    ? 0
				    : (off_t)(found.last - found.first + 1);
		out.l_pid = (pid_t)found.pid;
	}
	fuse_reply_lock(req, &out);
}

void handle_setlk(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi,
	struct flock *lock, int sleep)
{
	struct ops_lock l = posix_of(fi, lock);

	lock_set(req, fi, &l, sleep);
}

void handle_flock(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi, int op)
{
	int what = op & ~LOCK_NB;
	struct ops_lock l = {
		.kind = OPS_LOCK_FLOCK,
		.type = what == LOCK_SH   ? OPS_LOCK_SHARED
			: what == LOCK_EX ? OPS_LOCK_EXCLUSIVE
					  : OPS_LOCK_NONE,
		.owner = fi->lock_owner,
		.pid = (uint32_t)fuse_req_ctx(req)->pid,
	};

	lock_set(req, fi, &l, !(op & LOCK_NB));
}

/* A process has closed a descriptor. With one node: ENOSYS once, and the kernel never asks
 * again. */
void handle_flush(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct fs *fs = request_fs(req);

	if (ops_locks_shared(fs))
		reply_status(req, ops_flush(fs, file_of(fi), fi->lock_owner));
	else
		fuse_reply_err(req, ENOSYS);
}
