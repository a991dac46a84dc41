/* SPDX-License-Identifier: Apache-2.0 */
/* Shared memory of the real runtime: memfds and futexes that are not private. A seal keeps a
 * process from cutting a memfd short under another's mapping. */
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "engine/rt/real.h"
#include "engine/rt/rt_shared.h"

#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

struct rt_shared {
	int fd;
	void *base;
	size_t bytes;
	bool writable;
};

static int map_shared(struct rt_shared *s, bool writable)
{
	s->writable = writable;
	s->base = mmap(NULL, s->bytes, PROT_READ | (writable ? PROT_WRITE : 0),
		MAP_SHARED, s->fd, 0);
	if (s->base == MAP_FAILED)
		return -errno;
	madvise(s->base, s->bytes, MADV_HUGEPAGE); /* a hint */
	return 0;
}

int real_shared_create(struct rt_shared **out, size_t size_bytes, bool others_write)
{
	struct rt_shared *s = calloc(1, sizeof(*s));
	int rc;

	if (!s)
		return -ENOMEM;
	s->bytes = ALIGN_UP(size_bytes, (size_t)PAGE_SIZE);
	s->fd = memfd_create("weft", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (s->fd < 0) {
		rc = -errno;
		goto out_free;
	}
	if (ftruncate(s->fd, (off_t)s->bytes)) {
		rc = -errno;
		goto out_close;
	}
	rc = map_shared(s, true);
	if (rc)
		goto out_close;
	/* This process's earlier mappings can still be written. */
	if (fcntl(s->fd, F_ADD_SEALS, SEALS | (others_write ? 0 : F_SEAL_FUTURE_WRITE))) {
		rc = -errno;
		goto out_unmap;
	}
	*out = s;
	return 0;

out_unmap:
	munmap(s->base, s->bytes);
out_close:
	close(s->fd);
out_free:
	free(s);
	return rc;
}

void rt_shared_free(struct rt_shared *s)
{
	if (!s)
		return;
	real_disks_forget(s->base, s->bytes);
	WEFT_ASSERT(munmap(s->base, s->bytes) == 0);
	close(s->fd);
	free(s);
}

void *rt_shared_base(struct rt_shared *s)
{
	return s->base;
}

size_t rt_shared_bytes(const struct rt_shared *s)
{
	return s->bytes;
}

bool rt_shared_writable(const struct rt_shared *s)
{
	return s->writable;
}

int real_shared_fd(const struct rt_shared *s)
{
	return s->fd;
}

int real_shared_adopt(struct rt_shared **out, int fd)
{
	struct rt_shared *s;
	struct stat st;
	int seals = fcntl(fd, F_GET_SEALS), r;

	if (seals < 0 || (seals & SEALS) != SEALS || fstat(fd, &st) || st.st_size <= 0)
		return -EPERM;
	s = calloc(1, sizeof(*s));
	if (!s)
		return -ENOMEM;
	s->fd = fd;
	s->bytes = (size_t)st.st_size;
	r = map_shared(s, !(seals & (F_SEAL_FUTURE_WRITE | F_SEAL_WRITE)));
	if (r) {
		free(s);
		return r;
	}
	*out = s;
	return 0;
}

int rt_shared_wait(_Atomic uint32_t *word, uint32_t expected, uint64_t deadline_ns)
{
	struct timespec until = {.tv_sec = (time_t)(deadline_ns / 1000000000u),
		.tv_nsec = (long)(deadline_ns % 1000000000u)};

	rt_about_to_wait();
	if (syscall(SYS_futex, word, FUTEX_WAIT_BITSET, expected,
		    deadline_ns == RT_FOREVER ? NULL : &until, NULL,
		    FUTEX_BITSET_MATCH_ANY) == 0)
		return 0;
	WEFT_ASSERT(errno == ETIMEDOUT || errno == EAGAIN || errno == EINTR);
	return errno == ETIMEDOUT ? -ETIMEDOUT : 0;
}

void rt_shared_wake(_Atomic uint32_t *word, int count)
{
	syscall(SYS_futex, word, FUTEX_WAKE, count, NULL, NULL, 0);
}
