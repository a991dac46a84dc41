/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Notifications to the kernel about its cache.
 *
 * Pages and attributes use FUSE_NOTIFY_INVAL_INODE. For attributes it never blocks. For pages it
 * waits for pages that are locked. Names use FUSE_NOTIFY_INVAL_ENTRY with EXPIRE_ONLY. It keeps
 * mounts on them, and waits for the directory's lock. A kernel without EXPIRE_ONLY keeps no names.
 *
 * An error means that the kernel does not have the inode, or that the mount is gone. There is then
 * no copy to drop.
 */
#define FUSE_USE_VERSION 314
#include <fuse_lowlevel.h>

#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <stdio.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "fs/thread_state.h"
#include "fs/dead_cache.h"
#include "fs/own_mount.h"
#include "fs/session_internal.h"
#include "fs/notify.h"

#define STORE_MAX (1u << 30) /* limit that a notification can give */

static void drop_pages(
	void *owner, uint64_t ino, uint64_t first, uint64_t end, _Atomic uint32_t *by)
{
	struct session *s = owner;
	off_t len = end == UINT64_MAX ? 0 : (off_t)((end - first) * PAGE_SIZE);

	atomic_store_explicit(by, (uint32_t)gettid(), memory_order_relaxed);
	(void)fuse_lowlevel_notify_inval_inode(
		s->fuse, ino, (off_t)(first * PAGE_SIZE), len);
}

/* Returns true if the thread sleeps and no signal would wake it: it waits for a page's lock.
 * Between unmapping pages and notifying processors Linux does not sleep, but may be preempted. */
static bool drop_waits(void *owner, const _Atomic uint32_t *by)
{
	char path[64], text[64];
	const char *state;
	ssize_t got;
	int fd;

	snprintf(path, sizeof(path), "/proc/self/task/%u/stat",
		atomic_load_explicit(by, memory_order_relaxed));
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return false;
	got = read(fd, text, sizeof(text) - 1);
	close(fd);
	text[MAX(got, 0)] = 0;
	state = strrchr(text, ')'); /* behind the thread's name */
	return state && strncmp(state, ") D", 3) == 0;
}

/* Returns false if the kernel does not have the inode, only for -ENOENT. After another error it has
 * dropped the inode with all others. */
static bool drop_attributes(void *owner, uint64_t ino)
{
	struct session *s = owner;

	return fuse_lowlevel_notify_inval_inode(s->fuse, ino, -1, 0) != -ENOENT;
}

static bool requester_returned(void *owner, uint32_t thread, struct kcache_seen *seen)
{
	return thread_returned(thread, seen);
}

/* The kernel takes the name with its NUL. */
static void expire_name(void *owner, uint64_t dir, struct ops_name name)
{
	struct session *s = owner;
	struct wire_notify_inval_entry what = {
		.parent = dir, .namelen = (uint32_t)name.len, .flags = WIRE_EXPIRE_ONLY};
	struct fuse_out_header out = {.error = FUSE_NOTIFY_INVAL_ENTRY};
	char text[DISK_NAME_MAX + 1] = {0};
	struct iovec parts[] = {
		{&out, sizeof(out)}, {&what, sizeof(what)}, {text, name.len + 1}};

	WEFT_ASSERT(name.len <= DISK_NAME_MAX);
	memcpy(text, name.bytes, name.len);
	out.len = (uint32_t)(sizeof(out) + sizeof(what) + name.len + 1);
	rt_about_to_wait();
	(void)!writev(
		s->device, parts, ARRAY_SIZE(parts)); /* ENOENT: the kernel has no such name */
}

static int look_up_name(void *owner, const struct ops_attr *dir, struct ops_name name)
{
	return own_mount_look(owner, dir->ino, dir->inode.generation, name);
}

static bool is_own(void *owner, uint32_t thread)
{
	return own_mount_is_own(thread);
}

static enum kcache_walk requester_walks(void *owner, uint32_t thread)
{
	return thread_walks(thread);
}

/* Sends FUSE_NOTIFY_STORE for the last bytes. The kernel takes over the size at once and locks the
 * first page of them. It then finds that the bytes cannot be read, and stores none. */
static void grow_from(struct session *s, uint64_t ino, uint64_t size, uint64_t offset)
{
	struct fuse_notify_store_out store = {.nodeid = ino, .offset = offset};
	struct fuse_out_header out = {.error = FUSE_NOTIFY_STORE};
	struct iovec parts[] = {{&out, sizeof(out)}, {&store, sizeof(store)}, {NULL, 0}};

	store.size = (uint32_t)(size - store.offset);
	out.len = (uint32_t)(sizeof(out) + sizeof(store)) + store.size;
	parts[2].iov_len = store.size;
	if (writev(s->device, parts, ARRAY_SIZE(parts)) < 0 && errno != EFAULT &&
		errno != ENOENT)
		weft_log(4, "the kernel does not take a size: %s", strerror(errno));
}

/* The bytes begin in a page that is not locked for a READ, which may wait for long. */
static void notify_size(struct session *s, uint64_t ino, uint64_t size)
{
	uint64_t block = (size - 1) / PAGE_SIZE;
	uint64_t offset;

	if (!kcache_unread(fs_kcache(s->fs), ino, &block))
		return;
	offset = MIN(size - 1, block * PAGE_SIZE + PAGE_SIZE - 1);
	rt_about_to_wait(); /* or no worker might serve a READ that has locked the page since */
	if (size - offset <= STORE_MAX)
		grow_from(s, ino, size, offset);
}

/*
 * For volumes of one node. The bytes begin as early as they may. A locked page is usually one of
 * the last, for a READ or WRITE that is not answered. Such a request never needs a worker that
 * waits here.
 */
static void grow_alone(struct session *s, const struct kcache_size *size)
{
	uint64_t offset = size->size > STORE_MAX ? size->size - STORE_MAX : 0;

	rt_about_to_wait();
	if (size->drops)
		(void)fuse_lowlevel_notify_inval_inode(
			s->fuse, size->ino, (off_t)(size->drop_from * PAGE_SIZE), 0);
	grow_from(s, size->ino, size->size, offset);
}

void notify_told(struct session *s, struct kcache_size *size, const struct ops_attr *attr,
	bool keeps)
{
	const bool alone = !session_shared(s);

	size->size = attr->inode.size;
	if (!(alone || s->keeps) || !S_ISREG(attr->inode.mode) || size->size == 0 ||
		!ops_goes_by_size(s->fs, attr->ino, keeps && !alone) ||
		!kcache_size_begin(fs_sizes(s->fs), size))
		return;
	if (alone)
		grow_alone(s, size);
	else
		notify_size(s, size->ino, size->size);
	kcache_size_end(fs_sizes(s->fs), size);
}

static void tell_size(void *owner, uint64_t ino, uint64_t size)
{
	notify_size(owner, ino, size);
}

static const struct kcache_ops notify_ops = {
	.tell_size = tell_size,
	.drop_pages = drop_pages,
	.drop_waits = drop_waits,
	.drop_attributes = drop_attributes,
	.expire_name = expire_name,
	.walks = requester_walks,
	.look = look_up_name,
	.is_own = is_own,
	.returned = requester_returned,
};

void notify_start(struct session *s)
{
	int rc;

	if (!session_shared(s) ||
		cache_batch_max(fs_volume(s->fs)->cache) * PAGE_SIZE < FUSE_IO_MAX)
		return;
	rc = fs_kernel_start(s->fs, &notify_ops, s, s->noted);
	s->keeps = !rc;
	if (rc)
		weft_log(4, "the kernel caches nothing of this mount: %s", strerror(-rc));
}

/* A mount that was only detached still has users. */
void notify_stop(struct session *s)
{
	if (s->keeps && s->noted && !session_ended(s))
		dead_cache_drop(s->device, s->noted);
	if (s->keeps)
		fs_kernel_stop(s->fs);
}

/* Returns false for requests that the kernel may send for a thread that waits for another request,
 * or for none. */
static bool is_waited_for(uint32_t opcode)
{
	switch (opcode) {
	case FUSE_LOOKUP:
	case FUSE_GETATTR:
	case FUSE_OPEN:
	case FUSE_CREATE:
	case FUSE_FLUSH:
	case FUSE_UNLINK:
	case FUSE_OPENDIR:
	case FUSE_READDIR:
	case FUSE_READLINK:
	case FUSE_GETXATTR:
	case FUSE_LISTXATTR:
		return true;
	default:
		return false;
	}
}

void notify_heard(struct session *s, const struct fuse_in_header *in)
{
	if (s->keeps && in->pid && is_waited_for(in->opcode))
		kcache_heard(fs_kcache(s->fs), in->pid);
}

bool notify_looks_at(struct session *s, uint32_t thread)
{
	int known = atomic_load_explicit(&s->looks, memory_order_relaxed);

	if (!thread || !s->keeps || known < 0)
		return false;
	if (unlikely(!known)) {
		known = thread_seen(thread);
		atomic_store_explicit(&s->looks, known, memory_order_relaxed);
	}
	return known > 0;
}

/* A name may be in an answer that a thread has not taken in yet. It expires after that. So the
 * state of threads must be readable. */
bool notify_keeps_names(struct session *s)
{
	return (s->shim.offered & WIRE_HAS_EXPIRE_ONLY) &&
	       atomic_load_explicit(&s->looks, memory_order_relaxed) > 0;
}

/* From Linux 6.13 on, the kernel rejects data of an inode that was forgotten and returns with an
 * older answer. The first protocol version after that is 7.42. */
bool notify_keeps_named(struct session *s)
{
	return s->shim.minor >= 42 &&
	       atomic_load_explicit(&s->looks, memory_order_relaxed) > 0;
}
