/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Disks of the real runtime: opening, and requests that run on the calling task.
 *
 * A single request costs one system call here, less than through a ring. Requests that may overlap
 * go through the disk's ring (real_ring.c). Without io_uring all requests run here.
 *
 * A flush that fails may have dropped the writes of others. The kernel reports that once, and the
 * next flush would succeed (Rebello et al., "Can Applications Recover from fsync Failures?"). So a
 * disk remembers the failure, and every later flush of it fails.
 *
 * A file on a filesystem without O_DIRECT is used through the page cache, with a warning. A flush
 * makes it as durable, but the memory is spent twice.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "engine/rt/real.h"

#define LOCK_TRIES      100
#define LOCK_TRIES_LEFT 3000 /* while the process with the lock has ended */
#define LOCK_TRY_US     10000

struct real_disk {
	struct rt_disk base;
	int fd;
	_Atomic int flush_failed; /* the first failure's -errno, for ever; 0: none */
	struct real_ring *ring;   /* NULL: no io_uring */
	struct real_disk *next;   /* in the list of open disks */
};

/* All open disks, for memory that is freed while registered. */
static struct {
	pthread_mutex_t lock; /* protects first and the links; before a ring's locks */
	struct real_disk *first;
} disks = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* ---- open ------------------------------------------------------------------- */

static int open_error(struct weft_error *err, const char *path, int code)
{
	switch (code) {
	case ENOENT:
		return weft_error(err, -code, "%s does not exist", path);
	case EACCES:
	case EPERM:
		return weft_error(err, -code,
			"no permission to open %s: run as root or change its owner or "
			"mode",
			path);
	case EROFS:
		return weft_error(err, -code, "%s is read-only: open it read-only", path);
	case EBUSY:
	case EWOULDBLOCK:
		return weft_error(err, -EBUSY,
			"%s is in use: it is mounted, or another weft program has it "
			"open",
			path);
	case ETXTBSY:
		return weft_error(
			err, -EBUSY, "%s is in use as swap or as a program", path);
	default:
		return weft_error(err, -code, "cannot open %s: %s", path, strerror(code));
	}
}

/* Refuses a path that is no disk before open(2), which would wait on a FIFO. */
static int check_kind(const struct stat *st, const char *path, struct weft_error *err)
{
	if (S_ISREG(st->st_mode) || S_ISBLK(st->st_mode))
		return 0;
	if (S_ISDIR(st->st_mode))
		return weft_error(err, -EISDIR,
			"%s is a directory: a block device or a regular file is needed",
			path);
	return weft_error(
		err, -EINVAL, "%s is neither a block device nor a regular file", path);
}

static int open_direct(const char *path, int flags)
{
	int fd = open(path, flags | O_DIRECT);

	if (fd >= 0 || errno != EINVAL)
		return fd;
	fd = open(path, flags);
	if (fd >= 0)
		weft_log(4, "%s: its filesystem has no O_DIRECT, using the page cache",
			path);
	return fd;
}

/* The physical block size of the device under a file, as sysfs has it. 0: it is unknown. Overlay
 * and network filesystems have no device of their own. */
static unsigned physical_block(dev_t device)
{
	/* a partition has no queue of its own; its disk's lies above */
	static const char *const places[] = {
		"/sys/dev/block/%u:%u/queue/physical_block_size",
		"/sys/dev/block/%u:%u/../queue/physical_block_size",
	};
	unsigned block = 0;
	char path[96];

	for (unsigned i = 0; i < ARRAY_SIZE(places) && !block; i++) {
		FILE *f;

		snprintf(path, sizeof(path), places[i], major(device), minor(device));
		f = fopen(path, "re");
		if (!f)
			continue;
		if (fscanf(f, "%u", &block) != 1)
			block = 0;
		fclose(f);
	}
	return block;
}

/*
 * The atomic unit of writes as they are issued here. A device does not tear a physical block that
 * is written whole and aligned, because it programs the medium in these units. Larger atomic units
 * (statx STATX_WRITE_ATOMIC) hold only for requests with RWF_ATOMIC, which cannot span pages that
 * lie apart. A file has its filesystem's blocks, too. They are aligned to physical blocks if they
 * are no smaller.
 */
static uint32_t atomic_unit(int fd, const struct stat *st)
{
	unsigned block = 0;

	if (S_ISBLK(st->st_mode)) {
		if (ioctl(fd, BLKPBSZGET, &block) < 0)
			block = 0;
	} else {
		block = physical_block(st->st_dev);
		if (block > (unsigned)st->st_blksize)
			block = 0;
	}
	if (block < 512 || (block & (block - 1)))
		return 512;
	return MIN(block, 65536u);
}

/* Blocks that a filesystem reserves for root keep the machine running, so they do not count. A
 * filesystem that does not know its size reports 0 blocks. */
static void read_room(int fd, const struct stat *st, struct rt_disk_info *info)
{
	struct statvfs fs;

	if (!S_ISREG(st->st_mode) || fstatvfs(fd, &fs) < 0 || !fs.f_blocks)
		return;
	info->room_bytes =
		(uint64_t)st->st_blocks * 512 + (uint64_t)fs.f_bavail * fs.f_frsize;
}

static int read_info(int fd, const struct stat *st, bool read_only, const char *path,
	struct rt_disk_info *info, struct weft_error *err)
{
	int locked = 0;
	uint64_t size = (uint64_t)st->st_size;

	if (S_ISBLK(st->st_mode)) {
		if (ioctl(fd, BLKGETSIZE64, &size) < 0 ||
			ioctl(fd, BLKROGET, &locked) < 0)
			return weft_error(err, -errno, "cannot ask %s for its size: %s",
				path, strerror(errno));
		if (locked && !read_only)
			return open_error(err, path, EROFS);
	}
	*info = (struct rt_disk_info){
		.size_bytes = size,
		.atomic_write_bytes = atomic_unit(fd, st),
		.is_block_device = S_ISBLK(st->st_mode),
		.read_only = read_only,
	};
	read_room(fd, st, info);
	return 0;
}

/* The kernel tears down the rings of a process some time after its end, and the rings hold its
 * files. So a lock, or a claim on a block device, may outlive its process by some milliseconds. */
static int open_exclusive(const char *path, int open_flags)
{
	for (unsigned i = 0; i < LOCK_TRIES; i++) {
		int fd = open_direct(path, open_flags);

		if (fd >= 0 || errno != EBUSY)
			return fd;
		usleep(LOCK_TRY_US);
	}
	errno = EBUSY;
	return -1;
}

static bool process_ended(long pid)
{
	char path[64], state = 0;
	FILE *stat;

	snprintf(path, sizeof(path), "/proc/%ld/stat", pid);
	stat = fopen(path, "re");
	if (!stat)
		return errno == ENOENT;
	if (fscanf(stat, "%*d (%*[^)]) %c", &state) != 1)
		state = 0;
	fclose(stat);
	return state == 'Z';
}

/* The process that locked the file has ended. The kernel has not torn down its ring yet. */
static bool lock_is_left(int fd)
{
	FILE *locks = fopen("/proc/locks", "re");
	unsigned major, minor;
	unsigned long ino;
	bool left = false;
	struct stat st;
	char line[256];
	long pid;

	if (!locks)
		return false;
	while (fstat(fd, &st) == 0 && fgets(line, sizeof(line), locks)) {
		if (sscanf(line, "%*s FLOCK %*s %*s %ld %x:%x:%lu", &pid, &major, &minor,
			    &ino) == 4 &&
			ino == st.st_ino && makedev(major, minor) == st.st_dev)
			left = process_ended(pid);
	}
	fclose(locks);
	return left;
}

/* On a busy machine the kernel needs long to tear down a ring. */
static int lock_exclusive(int fd)
{
	unsigned living = 0;

	for (unsigned i = 0; i < LOCK_TRIES_LEFT && living < LOCK_TRIES; i++) {
		if (flock(fd, LOCK_EX | LOCK_NB) == 0)
			return 0;
		if (errno != EWOULDBLOCK && errno != EINTR)
			return -1;
		living += !lock_is_left(fd);
		usleep(LOCK_TRY_US);
	}
	errno = EWOULDBLOCK;
	return -1;
}

/* Opens, locks and describes the disk. Returns the descriptor or -errno. */
static int open_checked(const char *path, unsigned flags, struct rt_disk_info *info,
	struct weft_error *err)
{
	bool read_only = flags & RT_DISK_READ_ONLY;
	bool exclusive = flags & RT_DISK_EXCLUSIVE;
	int open_flags = (read_only ? O_RDONLY : O_RDWR) | O_CLOEXEC;
	struct stat st;
	int fd, r;

	if (stat(path, &st) < 0)
		return open_error(err, path, errno);
	r = check_kind(&st, path, err);
	if (r)
		return r;
	if (exclusive && S_ISBLK(st.st_mode))
		open_flags |= O_EXCL; /* fails if the device is mounted */
	fd = open_flags & O_EXCL ? open_exclusive(path, open_flags)
				 : open_direct(path, open_flags);
	if (fd < 0)
		return open_error(err, path, errno);
	if (fstat(fd, &st) < 0)
		r = open_error(err, path, errno);
	if (!r)
		r = check_kind(&st, path, err);
	if (!r && exclusive && lock_exclusive(fd) < 0)
		r = open_error(err, path, errno);
	if (!r)
		r = read_info(fd, &st, read_only, path, info, err);
	if (r) {
		close(fd);
		return r;
	}
	return fd;
}

int real_disk_open(
	struct rt_disk **out, const char *path, unsigned flags, struct weft_error *err)
{
	struct real_disk *disk = calloc(1, sizeof(*disk));
	int rc;

	if (!disk)
		return weft_error(err, -ENOMEM, "no memory to open %s", path);
	disk->fd = open_checked(path, flags, &disk->base.info, err);
	if (disk->fd < 0) {
		rc = disk->fd;
		free(disk);
		return rc;
	}
	rc = real_ring_open(&disk->ring, disk->fd, &disk->flush_failed);
	if (rc) {
		disk->ring = NULL;
		weft_log(4, "%s: no io_uring (%s), requests run one at a time per task",
			path, strerror(-rc));
	}
	pthread_mutex_lock(&disks.lock);
	disk->next = disks.first;
	disks.first = disk;
	pthread_mutex_unlock(&disks.lock);
	*out = &disk->base;
	return 0;
}

static struct real_disk *real_of(struct rt_disk *base)
{
	return container_of(base, struct real_disk, base);
}

void real_disk_close(struct rt_disk *base)
{
	struct real_disk *disk = real_of(base);
	struct real_disk **link = &disks.first;

	pthread_mutex_lock(&disks.lock);
	while (*link != disk)
		link = &(*link)->next;
	*link = disk->next;
	pthread_mutex_unlock(&disks.lock);
	if (disk->ring)
		real_ring_close(disk->ring);
	flock(disk->fd,
		LOCK_UN); /* at once: the ring may hold the file a little longer */
	close(disk->fd);
	free(disk);
}

/* ---- registered memory ---------------------------------------------------------- */

void real_disk_register(struct rt_disk *base, void *memory, size_t size)
{
	struct real_disk *disk = real_of(base);

	if (disk->ring)
		real_ring_register(disk->ring, memory, size);
}

void real_disks_forget(void *memory, size_t size)
{
	pthread_mutex_lock(&disks.lock);
	for (struct real_disk *d = disks.first; d; d = d->next)
		if (d->ring)
			real_ring_forget(d->ring, memory, size);
	pthread_mutex_unlock(&disks.lock);
}

/* ---- requests on the calling task ------------------------------------------------- */

/* These are the system calls themselves. ThreadSanitizer takes libc's preadv for a plain store into
 * a frame. An optimistic reader may still be reading the frame; its validation will fail. */
static ssize_t move_bytes(int fd, enum rt_io_op op, const struct iovec *iov,
	unsigned count, uint64_t offset)
{
	long call = op == RT_IO_READ ? SYS_preadv : SYS_pwritev;

	/* the last argument is the offset's upper half, without meaning if a long has 64 bits */
	return syscall(call, fd, iov, (unsigned long)count, offset, 0ul);
}

/* The kernel may move fewer bytes than asked (a signal, a limit per call). Zero is the end. */
static int transfer_iov(int fd, const struct rt_io *io)
{
	struct iovec iov[RT_IOV_MAX];
	struct iovec *at = iov;
	unsigned left = io->iov_count;
	uint64_t offset = io->offset;

	if (left > RT_IOV_MAX)
		return -EINVAL;
	memcpy(iov, rt_io_iov(io), left * sizeof(*iov));
	while (left) {
		ssize_t n = move_bytes(fd, io->op, at, left, offset);

		if (n < 0 && (errno == EINTR || errno == EAGAIN))
			continue;
		if (n < 0)
			return -errno;
		if (n == 0)
			return rt_io_bytes(io) == 0 ? 0 : -EIO;
		offset += (uint64_t)n;
		for (; left && (size_t)n >= at->iov_len; at++, left--)
			n -= (ssize_t)at->iov_len;
		if (left) {
			at->iov_base = (char *)at->iov_base + n;
			at->iov_len -= (size_t)n;
		}
	}
	return 0;
}

int real_flush_result(_Atomic int *failed, int result)
{
	int before = 0;

	if (result)
		atomic_compare_exchange_strong(failed, &before, result);
	else
		before = atomic_load(failed);
	return before ? before : result;
}

static int disk_flush(struct real_disk *disk)
{
	int rc = atomic_load_explicit(&disk->flush_failed, memory_order_relaxed);

	if (rc)
		return rc;
	do
		rc = fdatasync(disk->fd);
	while (rc < 0 && errno == EINTR);
	return real_flush_result(&disk->flush_failed, rc < 0 ? -errno : 0);
}

static void run_here(struct real_disk *disk, struct rt_io *ios, unsigned count)
{
	int result = 0;

	for (unsigned i = 0; i < count; i++) {
		struct rt_io *io = &ios[i];

		if (i && io->after_previous && result)
			result = -ECANCELED;
		else if (io->op == RT_IO_FLUSH)
			result = disk_flush(disk);
		else
			result = transfer_iov(disk->fd, io);
		io->result = result;
		/* A task that sees `done` also sees the result and the data. */
		if (atomic_exchange_explicit(&io->done, 1, memory_order_acq_rel) != 0)
			real_wake(&io->done, INT32_MAX);
	}
}

void real_disk_submit(struct rt_disk *base, struct rt_io *ios, unsigned count)
{
	struct real_disk *disk = real_of(base);

	for (unsigned i = 0; i < count; i++)
		atomic_store_explicit(&ios[i].done, 0, memory_order_relaxed);
	if (disk->ring)
		real_ring_submit(disk->ring, ios, count);
	else
		run_here(disk, ios, count);
}

void real_disk_wait(struct rt_disk *base, struct rt_io *ios, unsigned count)
{
	struct real_disk *disk = real_of(base);

	if (disk->ring)
		real_ring_wait(disk->ring, ios, count);
}

void real_disk_run(struct rt_disk *base, struct rt_io *ios, unsigned count)
{
	struct real_disk *disk = real_of(base);

	if (count == 0)
		return;
	if (!disk->ring || rt_io_chain(ios, count) == count) {
		run_here(disk, ios, count);
		return;
	}
	real_disk_submit(base, ios, count);
	real_disk_wait(base, ios, count);
}
