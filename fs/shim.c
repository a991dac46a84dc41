/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The shim between the kernel and libfuse 3.14. It adds INIT flags, answers requests that libfuse
 * does not know, and keeps fields that it drops. See shim.h.
 *
 * Structures of newer protocol versions than Debian 12's <linux/fuse.h> are here under names with
 * "wire_". Lengths of all messages are checked before use (invariant 9).
 */
#include "fs/shim.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/stat.h>
#include <string.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "fs/handlers.h"
#include "fs/session_internal.h"
#include "fs/notify.h"
#include "fs/waits.h"

#define WIRE_STATX                52           /* opcode, protocol 7.39 */
#define WIRE_DIRECT_IO_ALLOW_MMAP (1ull << 36) /* INIT flag, protocol 7.39 */
/* INIT flag, protocol 7.41: idmapped mounts. Requests that create inodes then carry the mapped uid
 * and gid. Other requests carry neither (request_uid). */
#define WIRE_ALLOW_IDMAP (1ull << 40)

/* Number of requests that the kernel sends at a time. There is no limit if such requests write the
 * stores of mappings back, and other requests may wait for that. */
#define SHARED_BACKGROUND 128
#define MAPPED_BACKGROUND UINT16_MAX

struct wire_statx_in {
	uint32_t getattr_flags;
	uint32_t reserved;
	uint64_t fh;
	uint32_t sx_flags;
	uint32_t sx_mask;
};

struct wire_time {
	int64_t seconds;
	uint32_t nanoseconds;
	int32_t reserved;
};

struct wire_statx {
	uint32_t mask;
	uint32_t blksize;
	uint64_t attributes;
	uint32_t nlink;
	uint32_t uid;
	uint32_t gid;
	uint16_t mode;
	uint16_t spare0;
	uint64_t ino;
	uint64_t size;
	uint64_t blocks;
	uint64_t attributes_mask;
	struct wire_time atime, btime, ctime, mtime;
	uint32_t rdev_major, rdev_minor;
	uint32_t dev_major, dev_minor;
	uint64_t spare2[14];
};

struct wire_statx_out {
	uint64_t attr_valid;
	uint32_t attr_valid_nsec;
	uint32_t flags;
	uint64_t spare[2];
	struct wire_statx stat;
};
_Static_assert(sizeof(uintptr_t) == sizeof(uint64_t), "a request's number as a pointer");
_Static_assert(sizeof(struct wire_statx) == 256, "the kernel's struct fuse_statx");
_Static_assert(
	sizeof(struct wire_statx_out) == 288, "the kernel's struct fuse_statx_out");

/* Fields of this thread's request that libfuse drops. */
static __thread struct {
	bool kills_setid;
	bool is_writeback;
	bool opens; /* the reply ends with a struct fuse_open_out */
	bool is_direct;
	uint64_t unique;
} current_request;

bool shim_request_kills_setid(void)
{
	return current_request.kills_setid;
}

bool shim_request_is_writeback(void)
{
	return current_request.is_writeback;
}

uint64_t shim_request_unique(void)
{
	return current_request.unique;
}

bool shim_request_is_direct(void)
{
	return current_request.is_direct;
}

/* ---- replies --------------------------------------------------------------------- */

bool shim_reply(
	struct session *s, uint64_t unique, int error, const void *payload, size_t len)
{
	struct fuse_out_header out = {
		.len = (uint32_t)(sizeof(out) + len),
		.error = error,
		.unique = unique,
	};
	struct iovec iov[2] = {{&out, sizeof(out)}, {(void *)payload, len}};

	if (uring_take_reply(unique, iov, len ? 2 : 1))
		return true;
	if (writev(s->device, iov, len ? 2 : 1) >= 0)
		return true;
	/* ENOENT: the requesting thread was killed meanwhile. ENODEV: unmounted. */
	if (errno != ENOENT && errno != ENODEV)
		weft_log(4, "replying to the kernel failed: %s", strerror(errno));
	return false;
}

/* Returns true if the reply may offer io_uring: the kernel then waits until all entries are there.
 * All steps that could fail come before. */
static bool uring_wanted(struct session *s)
{
	struct uring *u;
	int rc;

	if (s->uring_mode == URING_OFF || !(s->shim.offered & WIRE_OVER_IO_URING))
		return false;
	rc = uring_open(&u, s);
	if (rc < 0) {
		weft_log(5, "FUSE without io_uring: %s", strerror(-rc));
		return false;
	}
	atomic_store_explicit(&s->uring, u, memory_order_release);
	return true;
}

/*
 * Adds flags to the INIT reply that the kernel offers and libfuse does not request. The minor
 * version stays libfuse's. The kernel uses the flags, and the minor only for layouts older than
 * 7.23.
 */
static void init_patch(struct session *s, struct fuse_init_out *init)
{
	uint64_t wanted = FUSE_PARALLEL_DIROPS | FUSE_EXPLICIT_INVAL_DATA |
			  FUSE_HANDLE_KILLPRIV_V2 | FUSE_SETXATTR_EXT | FUSE_INIT_EXT |
			  WIRE_ALLOW_IDMAP;
	uint64_t flags = init->flags | (uint64_t)init->flags2 << 32;

	flags = (flags | wanted) & s->shim.offered;
	if (flags & FUSE_HANDLE_KILLPRIV_V2)
		flags &= ~(uint64_t)FUSE_HANDLE_KILLPRIV;
	if (session_keeps(s)) /* the kernel checks the attributes before it reads */
		flags &= ~(uint64_t)FUSE_EXPLICIT_INVAL_DATA;
	if (session_keeps(s) && fs_maps_shared(s->fs))
		flags |= WIRE_DIRECT_IO_ALLOW_MMAP & s->shim.offered;
	if (session_shared(s)) {
		unsigned max = fs_maps_shared(s->fs) ? MAPPED_BACKGROUND
						     : SHARED_BACKGROUND;

		/* Read-ahead may wait for a node that is away, and delay other requests. */
		init->max_background = (uint16_t)max;
		init->congestion_threshold = (uint16_t)(max / 4 * 3);
	}
	if (uring_wanted(s))
		flags |= WIRE_OVER_IO_URING;
	init->flags = (uint32_t)flags;
	init->flags2 = (uint32_t)(flags >> 32);
	if (flags & FUSE_MAX_PAGES)
		init->max_pages = (uint16_t)(FUSE_IO_MAX / sysconf(_SC_PAGESIZE) + 1);
	atomic_store_explicit(&s->shim.agreed, flags, memory_order_relaxed);
	weft_log(7, "FUSE %u.%u, flags offered 0x%llx, agreed 0x%llx", init->major,
		init->minor, (unsigned long long)s->shim.offered,
		(unsigned long long)flags);
}

static ssize_t reply_init(
	struct session *s, int fd, const struct iovec *iov, struct fuse_init_out *init)
{
	struct iovec patched[2] = {iov[0], {init, sizeof(*init)}};
	ssize_t rc;

	init_patch(s, init);
	rc = writev(fd, patched, 2);
	if (s->uring)
		uring_start(s->uring, rc >= 0);
	return rc;
}

/* Adds open flags that libfuse does not know. The reply is in libfuse's memory. */
static void open_patch(struct session *s, const struct iovec *iov, int count)
{
	const struct fuse_out_header *out = iov[0].iov_base;
	struct fuse_open_out *open;

	if (likely(!current_request.opens) || !out->unique) /* 0: a notification */
		return;
	current_request.opens = false;
	if (!session_shared(s) || count != 2 || iov[1].iov_len < sizeof(*open))
		return;
	open = (struct fuse_open_out *)((char *)iov[1].iov_base + iov[1].iov_len) - 1;
	if (open->open_flags & FOPEN_DIRECT_IO)
		open->open_flags |= FOPEN_PARALLEL_DIRECT_WRITES;
}

ssize_t shim_writev(int fd, struct iovec *iov, int count, void *session)
{
	struct session *s = session;
	const struct fuse_out_header *out = iov[0].iov_base;
	struct fuse_init_out init;

	open_patch(s, iov, count);
	if (uring_take_reply(out->unique, iov, count))
		return out->len;
	if (likely(s->shim.init_unique == 0) || out->unique != s->shim.init_unique)
		return writev(fd, iov, count);
	s->shim.init_unique = 0;
	if (out->error != 0 || count != 2 || iov[1].iov_len != sizeof(init))
		return writev(fd, iov, count);
	memcpy(&init, iov[1].iov_base, sizeof(init));
	return reply_init(s, fd, iov, &init);
}

ssize_t shim_read(int fd, void *buf, size_t len, void *session)
{
	return read(fd, buf, len);
}

/* ---- requests -------------------------------------------------------------------- */

/* Returns the fixed part behind the header, or NULL if the message is too short for it. */
static const void *body_fixed(const struct fuse_in_header *in, size_t size)
{
	return in->len >= sizeof(*in) + size ? in + 1 : NULL;
}

/* Returns the string behind `offset` bytes of body, NUL-terminated within the message; else
 * NULL. */
static const char *body_string(const struct fuse_in_header *in, size_t offset)
{
	const char *text = (const char *)(in + 1) + offset;
	const char *end = (const char *)in + in->len;

	return text < end && memchr(text, '\0', (size_t)(end - text)) ? text : NULL;
}

static void init_note(struct session *s, const struct fuse_in_header *in)
{
	const struct fuse_init_in *init =
		body_fixed(in, offsetof(struct fuse_init_in, flags2));

	if (!init)
		return;
	s->shim.minor = init->minor;
	s->shim.offered = init->flags;
	if ((init->flags & FUSE_INIT_EXT) && body_fixed(in, sizeof(*init)))
		s->shim.offered |= (uint64_t)init->flags2 << 32;
	s->shim.init_unique = in->unique;
}

static struct wire_time wire_time_of(int64_t ns)
{
	int64_t seconds = ns / 1000000000;
	int64_t rest = ns % 1000000000;

	if (rest < 0) {
		rest += 1000000000;
		seconds--;
	}
	return (struct wire_time){.seconds = seconds, .nanoseconds = (uint32_t)rest};
}

/* STATX: the attributes of GETATTR, and the time of birth. */
static void reply_statx(struct session *s, void *request, int rc,
	struct kcache_size *size, const struct ops_attr *attr, double timeout_s)
{
	uint64_t unique = (uintptr_t)request;
	struct wire_statx_out out = {.attr_valid = (uint64_t)timeout_s};
	const struct disk_inode *inode = &attr->inode;

	if (rc < 0) {
		shim_reply(s, unique, gone_is_stale(rc), NULL, 0);
		return;
	}
	notify_told(s, size, attr, timeout_s > 0);
	out.stat = (struct wire_statx){
		.mask = STATX_BASIC_STATS | STATX_BTIME,
		.blksize = PAGE_SIZE,
		.nlink = inode->nlink,
		.uid = inode->uid,
		.gid = inode->gid,
		.mode = (uint16_t)inode->mode,
		.ino = attr->ino,
		.size = inode->size,
		.blocks = inode->blocks * (PAGE_SIZE / 512),
		.atime = wire_time_of(inode->atime_ns),
		.btime = wire_time_of(inode->btime_ns),
		.ctime = wire_time_of(inode->ctime_ns),
		.mtime = wire_time_of(inode->mtime_ns),
		.rdev_major = inode->rdev_major,
		.rdev_minor = inode->rdev_minor,
	};
	if (!shim_reply(s, unique, 0, &out, sizeof(out)))
		kcache_resized(fs_kcache(s->fs), attr->ino);
}

static void answer_statx(struct session *s, const struct fuse_in_header *in)
{
	if (body_fixed(in, sizeof(struct wire_statx_in)))
		attr_answer(s, in->nodeid, in->pid, reply_statx,
			(void *)(uintptr_t)in->unique);
	else
		shim_reply(s, in->unique, -EINVAL, NULL, 0);
}

static uint32_t kernel_dev(uint32_t major, uint32_t minor)
{
	return (minor & 0xff) | (major << 8) | ((minor & ~0xffu) << 12);
}

static void attr_to_wire(
	struct session *s, const struct ops_attr *attr, struct fuse_entry_out *out)
{
	uint64_t timeout_s = (uint64_t)kernel_timeout_s(s);
	struct wire_time atime = wire_time_of(attr->inode.atime_ns);
	struct wire_time mtime = wire_time_of(attr->inode.mtime_ns);
	struct wire_time ctime = wire_time_of(attr->inode.ctime_ns);

	*out = (struct fuse_entry_out){
		.nodeid = attr->ino,
		.generation = attr->inode.generation,
		.entry_valid = timeout_s,
		.attr_valid = timeout_s,
		.attr =
			{
				.ino = attr->ino,
				.size = attr->inode.size,
				.blocks = attr->inode.blocks * (PAGE_SIZE / 512),
				.atime = (uint64_t)atime.seconds,
				.mtime = (uint64_t)mtime.seconds,
				.ctime = (uint64_t)ctime.seconds,
				.atimensec = atime.nanoseconds,
				.mtimensec = mtime.nanoseconds,
				.ctimensec = ctime.nanoseconds,
				.mode = attr->inode.mode,
				.nlink = attr->inode.nlink,
				.uid = attr->inode.uid,
				.gid = attr->inode.gid,
				.rdev = kernel_dev(
					attr->inode.rdev_major, attr->inode.rdev_minor),
				.blksize = PAGE_SIZE,
			},
	};
}

/* On volumes of several nodes the kernel may do only direct I/O, with writes side by side. */
static uint32_t open_flags(struct session *s, uint32_t flags)
{
	if (!session_shared(s))
		return flags;
	if (ops_locks_shared(s->fs))
		flags &= ~(uint32_t)FOPEN_NOFLUSH;
	return (flags & ~(uint32_t)FOPEN_KEEP_CACHE) | FOPEN_DIRECT_IO |
	       FOPEN_PARALLEL_DIRECT_WRITES;
}

/* TMPFILE: message and reply of CREATE, for a file without a name. */
static void reply_tmpfile(struct session *s, const struct fuse_in_header *in)
{
	const struct fuse_create_in *arg = body_fixed(in, sizeof(*arg));
	struct {
		struct fuse_entry_out entry;
		struct fuse_open_out open;
	} out = {.open = {.open_flags = open_flags(s, FOPEN_KEEP_CACHE | FOPEN_NOFLUSH)}};
	struct ops_file *file;
	struct ops_attr attr;
	int rc = arg ? session_may_change(s) : -EINVAL;
	int flags = rc ? 0 : (int)arg->flags & ~O_APPEND;

	if (fs_opens_hidden(s->fs)) /* other openers use the handle, too */
		flags = (flags & ~O_ACCMODE) | O_RDWR;
	if (rc == 0) {
		struct ops_caller caller = {
			.uid = in->uid,
			.gid = in->gid,
			.umask = arg->umask,
			.keeps_setid = !(arg->open_flags & FUSE_OPEN_KILL_SUIDGID),
			.in_group = true,
		};

		rc = ops_tmpfile(s->fs, in->nodeid, &caller, arg->mode, flags,
			&file, &attr);
	}
	if (rc < 0) {
		shim_reply(s, in->unique, rc, NULL, 0);
		return;
	}
	attr_to_wire(s, &attr, &out.entry);
	if (fs_opens_hidden(s->fs)) { /* no release may follow */
		ops_hand_over(s->fs, attr.ino, file);
	} else {
		ops_opened_kept(s->fs, file, in->pid);
		out.open.fh = (uintptr_t)file;
	}
	if (shim_reply(s, in->unique, 0, &out, sizeof(out)))
		return;
	if (fs_opens_hidden(s->fs))
		ops_forget(s->fs, attr.ino); /* the kernel has not taken it in */
	else
		ops_close(s->fs, file);
}

/* SETXATTR in its longer form. Its flags tell whether an ACL must clear the setgid bit. */
static void reply_setxattr(struct session *s, const struct fuse_in_header *in)
{
	const struct fuse_setxattr_in *arg = body_fixed(in, sizeof(*arg));
	const char *name = arg ? body_string(in, sizeof(*arg)) : NULL;
	const char *value = name ? name + strlen(name) + 1 : NULL;
	int rc = -EINVAL;

	if (value && arg->size <= (size_t)((const char *)in + in->len - value))
		rc = session_may_change(s);
	if (rc == 0) {
		bool kills = arg->setxattr_flags & FUSE_SETXATTR_ACL_KILL_SGID;
		struct ops_caller caller = {
			.uid = in->uid,
			.gid = in->gid,
			.keeps_setid = !kills,
			.in_group = !kills,
		};

		rc = ops_setxattr(s->fs, in->nodeid, &caller, name, value, arg->size,
			(int)arg->flags);
	}
	shim_reply(s, in->unique, gone_is_stale(rc), NULL, 0);
}

/* Keeps fields that libfuse 3.14 drops from a request that it will decode. */
static void note_fields(const struct fuse_in_header *in)
{
	const struct fuse_setattr_in *setattr;
	const struct fuse_open_in *open;
	const struct fuse_create_in *create;
	const struct fuse_write_in *write;
	const struct fuse_read_in *read;

	current_request.kills_setid = current_request.is_writeback = false;
	current_request.opens = in->opcode == FUSE_OPEN || in->opcode == FUSE_CREATE;
	current_request.is_direct = false;
	current_request.unique = in->unique;
	switch (in->opcode) {
	case FUSE_SETATTR:
		setattr = body_fixed(in, sizeof(*setattr));
		current_request.kills_setid =
			setattr && (setattr->valid & FATTR_KILL_SUIDGID);
		break;
	case FUSE_OPEN:
		open = body_fixed(in, sizeof(*open));
		current_request.kills_setid =
			open && (open->open_flags & FUSE_OPEN_KILL_SUIDGID);
		break;
	case FUSE_CREATE:
		create = body_fixed(in, sizeof(*create));
		current_request.kills_setid =
			create && (create->open_flags & FUSE_OPEN_KILL_SUIDGID);
		break;
	case FUSE_READ: /* only those past the page cache have an owner of locks */
		read = body_fixed(in, sizeof(*read));
		current_request.is_direct =
			read && (read->read_flags & FUSE_READ_LOCKOWNER);
		break;
	case FUSE_WRITE:
		write = body_fixed(in, sizeof(*write));
		if (!write)
			break;
		current_request.kills_setid =
			write->write_flags & FUSE_WRITE_KILL_SUIDGID;
		current_request.is_writeback = write->write_flags & FUSE_WRITE_CACHE;
		current_request.is_direct = write->write_flags & FUSE_WRITE_LOCKOWNER;
		break;
	default:
		break;
	}
}

/* Returns true if the kernel has the inode. It waits for one that the kernel is dropping. */
static bool kernel_has(struct session *s, uint64_t ino)
{
	rt_about_to_wait();
	return fuse_lowlevel_notify_inval_inode(s->fuse, ino, -1, 0) != -ENOENT;
}

/* Handles FORGET. The kernel drops all its references to an inode, except for look-ups that it
 * could not use. So references are not counted. Only inodes without links wait for it. If opens are
 * hidden, such an inode may be open as long as the kernel has it. */
static void forget_inode(struct session *s, uint64_t ino)
{
	if (fs_opens_hidden(s->fs) && ops_awaits_forget(s->fs, ino) && kernel_has(s, ino))
		return;
	ops_forget(s->fs, ino);
}

static void forget_inodes(struct session *s, const struct fuse_in_header *in)
{
	const struct fuse_batch_forget_in *batch;
	const struct fuse_forget_one *one;
	size_t room;

	if (in->opcode == FUSE_FORGET) {
		forget_inode(s, in->nodeid);
		return;
	}
	batch = body_fixed(in, sizeof(*batch));
	if (!batch)
		return;
	one = (const struct fuse_forget_one *)(batch + 1);
	room = (in->len - sizeof(*in) - sizeof(*batch)) / sizeof(*one);
	for (size_t i = 0; i < batch->count && i < room; i++)
		forget_inode(s, one[i].nodeid);
}

/* Handles INTERRUPT. No operation waits for another process, so the request will be answered. But
 * that may take as long as another node is away. */
static void interrupt_request(struct session *s, const struct fuse_in_header *in)
{
	const struct fuse_interrupt_in *arg = body_fixed(in, sizeof(*arg));

	if (arg)
		waits_interrupt(s, arg->unique);
}

/* libfuse does not check the lengths inside a message. The kernel's are right. This costs a
 * comparison and keeps the rule that all input is checked. */
static bool is_whole(const struct fuse_in_header *in)
{
	const struct fuse_write_in *write;

	if (in->opcode != FUSE_WRITE)
		return true;
	write = body_fixed(in, sizeof(*write));
	return write && write->size <= in->len - sizeof(*in) - sizeof(*write);
}

bool shim_receive(struct session *s, const struct fuse_in_header *in)
{
	switch (in->opcode) {
	case FUSE_FORGET:
	case FUSE_BATCH_FORGET:
		forget_inodes(s, in);
		return true;
	case FUSE_INTERRUPT:
		interrupt_request(s, in);
		/* Only locks wait for another process. Other requests will be answered. */
		return !ops_locks_shared(s->fs);
	case FUSE_INIT:
		init_note(s, in);
		return false;
	case FUSE_STATFS: /* may overtake earlier closes and forgets of the kernel */
		if (session_uses_uring(s))
			ops_settle(s->fs);
		return false;
	case WIRE_STATX:
		answer_statx(s, in);
		return true;
	case FUSE_TMPFILE:
		reply_tmpfile(s, in);
		return true;
	case FUSE_SYNCFS:
		shim_reply(s, in->unique, ops_syncfs(s->fs), NULL, 0);
		return true;
	case FUSE_SETXATTR:
		if (!(session_init_flags(s) & FUSE_SETXATTR_EXT))
			return false;
		reply_setxattr(s, in);
		return true;
	default:
		if (!is_whole(in)) {
			shim_reply(s, in->unique, -EINVAL, NULL, 0);
			return true;
		}
		note_fields(in);
		return false;
	}
}
