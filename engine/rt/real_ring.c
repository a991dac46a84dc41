/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The io_uring of a disk, shared by all tasks.
 *
 * Submission: under a mutex, one system call per batch, and a chain is never split between two.
 * Completion: there is no thread for it. If no task leads, a waiter whose request is not done
 * becomes the leader. It reaps all completions, for all tasks. While its own requests are not done,
 * it waits in the kernel for more. The others (followers) sleep on the `done` word of their
 * request. A leader that leaves asks a follower to lead.
 *
 * Values of rt_io.done: pending; pending and a follower sleeps; pending and a follower is asked to
 * lead; done. Requests in flight are fewer than the completion queue holds (invariant 10). So a
 * completion that no task waits for stays in the queue: the kernel cannot lose it.
 */
#include <errno.h>
#include <liburing.h>
#include <stdlib.h>
#include <string.h>

#include "engine/rt/real.h"

#define SQ_ENTRIES       1024u
#define CQ_ENTRIES       4096u
#define BATCH_MAX        256u /* requests per system call; a power of two below SQ_ENTRIES */
#define REAP_MAX         64u  /* completions per look */
#define LEADER_BATCH     16u  /* completions a leader waits for when no other task waits */
#define REGION_BYTES_MAX (1ull << 30)
#define REGIONS_MAX      64u

enum { IO_PENDING, IO_DONE, IO_FOLLOWED, IO_LEAD };

struct region {
	char *base; /* NULL: the slot is free */
	size_t size;
};

/* A task that sleeps until a request is done. It is on that task's stack. */
struct follower {
	struct rt_io *io;
	struct follower *next;
	struct follower **link;
};

struct real_ring {
	struct io_uring ring;
	struct rt_mutex submit_lock; /* protects the submission queue and regions */
	struct rt_mutex
		follow_lock; /* protects the list of followers; never with the other */
	struct follower *followers;
	_Atomic uint32_t
		follower_count;     /* members of the list, and those about to join */
	_Atomic uint32_t leading;   /* 1: a task owns the completion queue's head */
	_Atomic uint32_t in_flight; /* submitted (or about to be) and not reaped */
	_Atomic int *flush_failed;  /* the disk's */
	bool sparse;                /* buffers can be registered one by one */
	struct region regions[REGIONS_MAX];
	unsigned region_count; /* slots ever used */
};

/* ---- open and close ------------------------------------------------------------- */

int real_ring_open(struct real_ring **out, int fd, _Atomic int *flush_failed)
{
	struct real_ring *ring = calloc(1, sizeof(*ring));
	struct io_uring_params params = {
		.flags = IORING_SETUP_CQSIZE | IORING_SETUP_SUBMIT_ALL,
		.cq_entries = CQ_ENTRIES,
	};
	int rc;

	if (!ring)
		return -ENOMEM;
	rc = io_uring_queue_init_params(SQ_ENTRIES, &ring->ring, &params);
	if (rc == -EINVAL) { /* before Linux 5.18 */
		params = (struct io_uring_params){
			.flags = IORING_SETUP_CQSIZE, .cq_entries = CQ_ENTRIES};
		rc = io_uring_queue_init_params(SQ_ENTRIES, &ring->ring, &params);
	}
	if (rc)
		goto out_free;
	rc = io_uring_register_files(&ring->ring, &fd, 1);
	if (rc)
		goto out_ring;
	ring->sparse = io_uring_register_buffers_sparse(&ring->ring, REGIONS_MAX) == 0;
	ring->flush_failed = flush_failed;
	*out = ring;
	return 0;

out_ring:
	io_uring_queue_exit(&ring->ring);
out_free:
	free(ring);
	return rc;
}

static unsigned reap_completions(struct real_ring *ring);

/* No other task uses the ring any more. */
void real_ring_close(struct real_ring *ring)
{
	while (atomic_load(&ring->in_flight)) {
		struct io_uring_cqe *cqe;

		if (reap_completions(ring) == 0)
			io_uring_wait_cqe(&ring->ring, &cqe);
	}
	io_uring_queue_exit(&ring->ring);
	free(ring);
}

/* ---- registered memory ------------------------------------------------------------ */

static bool region_update(struct real_ring *ring, unsigned slot, void *base, size_t size)
{
	struct iovec iov = {.iov_base = base, .iov_len = size};
	__u64 tag = 0;

	return io_uring_register_buffers_update_tag(&ring->ring, slot, &iov, &tag, 1) ==
	       1;
}

static bool region_add(struct real_ring *ring, char *base, size_t size)
{
	unsigned slot = 0;

	while (slot < ring->region_count && ring->regions[slot].base)
		slot++;
	if (slot == REGIONS_MAX || !region_update(ring, slot, base, size))
		return false;
	ring->regions[slot] = (struct region){base, size};
	if (slot == ring->region_count)
		ring->region_count++;
	return true;
}

void real_ring_register(struct real_ring *ring, void *memory, size_t size)
{
	char *base = memory;

	if (!ring->sparse)
		return;
	rt_mutex_lock(&ring->submit_lock);
	while (size) {
		size_t part = MIN(size, (size_t)REGION_BYTES_MAX);

		if (!region_add(ring, base, part))
			break;
		base += part;
		size -= part;
	}
	rt_mutex_unlock(&ring->submit_lock);
}

/* A slot that cannot be cleared is no longer used, which is as good. */
void real_ring_forget(struct real_ring *ring, void *memory, size_t size)
{
	char *base = memory;

	rt_mutex_lock(&ring->submit_lock);
	for (unsigned i = 0; i < ring->region_count; i++) {
		struct region *r = &ring->regions[i];

		if (!r->base || r->base >= base + size || base >= r->base + r->size)
			continue;
		if (region_update(ring, i, NULL, 0))
			r->base = NULL;
		r->size = 0;
	}
	rt_mutex_unlock(&ring->submit_lock);
}

static int region_of(const struct real_ring *ring, const struct iovec *iov)
{
	const char *p = iov->iov_base;

	for (unsigned i = 0; i < ring->region_count; i++) {
		const struct region *r = &ring->regions[i];

		if (p >= r->base && iov->iov_len <= r->size &&
			(size_t)(p - r->base) <= r->size - iov->iov_len)
			return (int)i;
	}
	return -1;
}

/* ---- completion -------------------------------------------------------------------- */

/* Marks the request done. Returns false if it must be submitted again. After the exchange the
 * request belongs to its owner again: only its address is used. */
static bool io_complete(struct real_ring *ring, struct rt_io *io, int result)
{
	_Atomic uint32_t *done = &io->done;

	/* Pairs with the release in sqe_prepare(). The kernel's order is not one of the C memory
	 * model. */
	(void)atomic_load_explicit(done, memory_order_acquire);
	/* The kernel lacked a resource for a moment. It has cancelled the later members of a chain,
	 * so a chain cannot be resumed. */
	if ((result == -EAGAIN || result == -EINTR) && !io->owner)
		return false;
	/* a short write found no room for the rest: the next one fails for that */
	if (result >= 0 && (uint32_t)result == io->expected)
		result = 0;
	else if (result >= 0)
		result = io->op == RT_IO_WRITE ? -ENOSPC : -EIO;
	if (io->op == RT_IO_FLUSH && result != -ECANCELED)
		result = real_flush_result(ring->flush_failed, result);
	io->result = result;
	if (atomic_exchange_explicit(done, IO_DONE, memory_order_acq_rel) != IO_PENDING)
		real_wake(done, INT32_MAX);
	return true;
}

static void submit_batch(struct real_ring *ring, struct rt_io *ios, unsigned count);

/* Only the leader calls this. Returns the number of completions that it found. */
static unsigned reap_completions(struct real_ring *ring)
{
	struct io_uring_cqe *cqes[REAP_MAX];
	struct rt_io *again = NULL;
	unsigned n, total = 0, ended = 0;

	do {
		n = io_uring_peek_batch_cqe(&ring->ring, cqes, REAP_MAX);
		for (unsigned i = 0; i < n; i++) {
			struct rt_io *io = io_uring_cqe_get_data(cqes[i]);

			if (io_complete(ring, io, cqes[i]->res)) {
				ended++;
			} else {
				io->next = again;
				again = io;
			}
		}
		io_uring_cq_advance(&ring->ring, n);
		total += n;
	} while (n == REAP_MAX);
	if (ended)
		atomic_fetch_sub(&ring->in_flight, ended);
	while (again) {
		struct rt_io *io = again;

		again = io->next;
		submit_batch(ring, io, 1);
	}
	return total;
}

static bool try_lead(struct real_ring *ring)
{
	return atomic_load_explicit(&ring->leading, memory_order_relaxed) == 0 &&
	       atomic_exchange(&ring->leading, 1) == 0;
}

/* A follower counts itself before it finds `leading` set. The leader clears that before it reads
 * the count. Both in one total order, so one of them sees the other. */
static void stop_leading(struct real_ring *ring)
{
	atomic_store(&ring->leading, 0);
	if (atomic_load(&ring->follower_count) == 0)
		return;
	rt_mutex_lock(&ring->follow_lock);
	for (struct follower *f = ring->followers; f; f = f->next) {
		uint32_t v = atomic_load(&f->io->done);

		while (v != IO_DONE &&
			!atomic_compare_exchange_weak(&f->io->done, &v, IO_LEAD))
			;
		if (v != IO_DONE) {
			real_wake(&f->io->done, INT32_MAX);
			break;
		}
	}
	rt_mutex_unlock(&ring->follow_lock);
}

static bool is_done(const struct rt_io *io)
{
	return atomic_load_explicit(&io->done, memory_order_acquire) == IO_DONE;
}

/* Waits in the kernel until a request has completed, or more of them if only the caller waits. */
static void wait_in_kernel(
	struct real_ring *ring, const struct rt_io *ios, unsigned count)
{
	unsigned wanted = 0;
	struct io_uring_cqe *cqe;

	if (atomic_load_explicit(&ring->follower_count, memory_order_relaxed) == 0)
		for (unsigned i = 0; i < count && wanted < LEADER_BATCH; i++)
			wanted += !is_done(&ios[i]);
	wanted = MAX(wanted, 1u);
	/* Errors (a signal, memory) end the wait early: the caller checks, and comes again. */
	io_uring_wait_cqes(&ring->ring, &cqe, wanted, NULL, NULL);
}

static void follow_leader(struct real_ring *ring, struct rt_io *io);

void real_ring_wait(struct real_ring *ring, struct rt_io *ios, unsigned count)
{
	for (unsigned i = 0; i < count;) {
		if (is_done(&ios[i])) {
			i++;
		} else if (try_lead(ring)) {
			while (i < count) {
				if (is_done(&ios[i]))
					i++;
				else if (reap_completions(ring) == 0)
					wait_in_kernel(ring, &ios[i], count - i);
			}
			stop_leading(ring);
		} else {
			follow_leader(ring, &ios[i]);
		}
	}
}

/* Sleeps until the request is done, or until the caller should try to lead. */
static void follow_leader(struct real_ring *ring, struct rt_io *io)
{
	struct follower self = {.io = io};

	atomic_fetch_add(&ring->follower_count, 1);
	rt_mutex_lock(&ring->follow_lock);
	self.next = ring->followers;
	self.link = &ring->followers;
	if (self.next)
		self.next->link = &self.next;
	ring->followers = &self;
	rt_mutex_unlock(&ring->follow_lock);

	while (atomic_load(&ring->leading)) {
		uint32_t v = atomic_load(&io->done);

		if (v == IO_DONE)
			break;
		if (v == IO_LEAD) { /* the task that clears it tries; others may, too */
			atomic_compare_exchange_strong(&io->done, &v, IO_PENDING);
			continue;
		}
		if (v == IO_PENDING &&
			!atomic_compare_exchange_strong(&io->done, &v, IO_FOLLOWED))
			continue;
		real_wait(&io->done, IO_FOLLOWED, RT_FOREVER);
	}

	rt_mutex_lock(&ring->follow_lock);
	*self.link = self.next;
	if (self.next)
		self.next->link = self.link;
	rt_mutex_unlock(&ring->follow_lock);
	atomic_fetch_sub(&ring->follower_count, 1);
}

/* ---- submission ------------------------------------------------------------------ */

static void sqe_prepare(
	struct real_ring *ring, struct io_uring_sqe *sqe, struct rt_io *io)
{
	const struct iovec *iov = rt_io_iov(io);
	int region;

	io->expected = (uint32_t)rt_io_bytes(io);
	if (io->op == RT_IO_FLUSH) {
		io_uring_prep_fsync(sqe, 0, IORING_FSYNC_DATASYNC);
	} else if (io->iov_count == 1 && (region = region_of(ring, iov)) >= 0) {
		if (io->op == RT_IO_READ)
			io_uring_prep_read_fixed(sqe, 0, iov->iov_base,
				(unsigned)iov->iov_len, io->offset, region);
		else
			io_uring_prep_write_fixed(sqe, 0, iov->iov_base,
				(unsigned)iov->iov_len, io->offset, region);
	} else if (io->op == RT_IO_READ) {
		io_uring_prep_readv(sqe, 0, iov, io->iov_count, io->offset);
	} else {
		io_uring_prep_writev(sqe, 0, iov, io->iov_count, io->offset);
	}
	sqe->flags |= IOSQE_FIXED_FILE;
	io_uring_sqe_set_data(sqe, io);
	/* A request that is submitted again may have followers. */
	atomic_fetch_add_explicit(&io->done, 0, memory_order_release);
}

/* Waits for room for n requests in flight. Reaps if no other task does. */
static void reserve_in_flight(struct real_ring *ring, unsigned n)
{
	uint32_t v = atomic_load(&ring->in_flight);
	unsigned spins = 0;

	for (;;) {
		if (v + n <= CQ_ENTRIES) {
			if (atomic_compare_exchange_weak(&ring->in_flight, &v, v + n))
				return;
			continue;
		}
		if (try_lead(ring)) {
			if (reap_completions(ring) == 0)
				wait_in_kernel(ring, NULL, 0);
			stop_leading(ring);
		} else {
			real_spin(&spins);
		}
		v = atomic_load(&ring->in_flight);
	}
}

static void submit_batch(struct real_ring *ring, struct rt_io *ios, unsigned count)
{
	bool linked;

	rt_mutex_lock(&ring->submit_lock);
	for (unsigned i = 0; i < count; i++) {
		/* The queue is empty whenever the lock is free, and a batch fits it. */
		struct io_uring_sqe *sqe = io_uring_get_sqe(&ring->ring);

		WEFT_ASSERT(sqe);
		linked = i + 1 < count && ios[i + 1].after_previous;
		ios[i].owner = linked || (i && ios[i].after_previous) ? ring : NULL;
		sqe_prepare(ring, sqe, &ios[i]);
		if (linked)
			sqe->flags |= IOSQE_IO_LINK;
	}
	while (io_uring_sq_ready(&ring->ring)) {
		int rc = io_uring_submit(&ring->ring);

		/* Out of memory for a moment, or a signal. No other error is possible on this ring,
		 * and a request must not get lost. */
		WEFT_ASSERT(rc >= 0 || rc == -EAGAIN || rc == -EBUSY || rc == -EINTR ||
			    rc == -ENOMEM);
		if (rc < 0)
			real_yield();
	}
	rt_mutex_unlock(&ring->submit_lock);
}

void real_ring_submit(struct real_ring *ring, struct rt_io *ios, unsigned count)
{
	while (count) {
		unsigned n = 0;

		while (n < count) {
			unsigned chain = rt_io_chain(ios + n, count - n);

			if (n + chain > BATCH_MAX)
				break;
			n += chain;
		}
		reserve_in_flight(ring, n);
		submit_batch(ring, ios, n);
		ios += n;
		count -= n;
	}
}
