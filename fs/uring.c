/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads, entries and rings of FUSE over io_uring. See uring.h.
 *
 * No request is lost or answered twice: at any time either the kernel or one thread owns an entry.
 * The kernel passes it on with a completion on the ring of the thread that submitted it. It writes
 * to the entry's memory only within that thread's system calls (IORING_SETUP_DEFER_TASKRUN). The
 * thread serves the request, and uring_take_reply stores the reply in the entry. One command
 * returns both and also waits for the next request.
 *
 * Home never serves requests (unless no thread can be made) and waits for nothing else. So the
 * kernel can always wake a thread for a spare entry. Home adds the new spare to a queue before it
 * starts the thread of the old one. In the other order the kernel could find the spare on top, and
 * each request would make a thread.
 *
 * Memory (invariant 10): the number of entries is bounded for a queue and in all. None is added
 * while SESSION_FAT_BUSY_MAX large requests are in work. Past that, requests wait in the kernel
 * until one of the same processor is answered. An entry's memory is resident where it was used.
 * After large requests it goes back to the system, at once for all except two entries, for these
 * after a second. Threads live as long as the mount, because the kernel cannot be made to forget an
 * entry.
 */
#include "fs/uring.h"

#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <linux/fuse.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fs/handlers.h"
#include "fs/session_internal.h"

/* Entries of a queue at the start, and its own share. */
#define QUEUE_ENTRIES_FIRST 2u
#define QUEUE_ENTRIES_OWN   3u
/* Shared by all queues: one more for each queue, and this number. */
#define ENTRIES_SHARED  16u
#define QUEUES_MAX      8192u
#define HOME_SQ_ENTRIES 64u
/* Number of requests that neither overlapped nor waited before a thread stays on a processor. */
#define ALONE_BEFORE_STAYING 32u
/* Time after a large request for which an entry's memory stays resident. */
#define FAT_IDLE_NS 1000000000u

/* ---- the kernel's structures, newer than Debian 12's <linux/fuse.h> ------------------ */

enum { WIRE_REGISTER = 1, WIRE_COMMIT_AND_FETCH = 2 };

struct wire_entry {
	uint64_t flags;
	uint64_t commit_id;
	uint32_t payload_bytes;
	uint32_t padding;
	uint64_t reserved;
};

/* in_out: fuse_in_header, or fuse_out_header of the reply. op: the request's fixed part. */
struct wire_header {
	uint8_t in_out[128];
	uint8_t op[128];
	struct wire_entry entry;
};

struct wire_command {
	uint64_t flags;
	uint64_t commit_id;
	uint16_t queue;
	uint8_t padding[6];
};
_Static_assert(sizeof(struct wire_header) == 288, "the kernel's fuse_uring_req_header");
_Static_assert(sizeof(struct wire_command) == 24, "the kernel's fuse_uring_cmd_req");

/* ---- queues, entries, threads -------------------------------------------------------- */

struct queue {
	unsigned number;          /* of the processor */
	_Atomic uint32_t entries; /* changed by home alone */
	_Atomic uint32_t busy;    /* number of requests in work */
	_Atomic uint32_t waiting; /* number of those that wait for other requests */
} __attribute__((aligned(CACHE_LINE)));

/* Memory: a page with the header at its start, and then the payload. A message is assembled in
 * front of the payload, in the page's last bytes, so a WRITE's data stay at their place. */
struct entry {
	struct queue *queue;
	struct wire_header *header;
	uint8_t *payload; /* FUSE_PAYLOAD_MAX */
	struct iovec iov[2];
	uint64_t commit_id;
	uint64_t unique; /* of the request to answer, or 0 */
	bool fat;        /* resident beyond SESSION_FAT_BYTES */
	struct entry *next;
};
#define ENTRY_BYTES (PAGE_SIZE + FUSE_PAYLOAD_MAX)
_Static_assert(
	sizeof(struct wire_header) + sizeof(struct fuse_in_header) + 128 <= PAGE_SIZE,
	"a message begins behind the header");

struct worker_ring {
	struct uring *uring;
	struct rt_task *task;
	struct io_uring ring;
	struct entry *entry;
	unsigned alone; /* number of requests in sequence that neither overlapped nor waited */
	bool stays;     /* bound to the queue's processor */
	struct worker_ring *next;
};

enum { HOME_WAITS, HOME_GOES, HOME_GIVES_UP };

struct uring {
	struct session *session;
	struct rt_task *task;
	struct io_uring ring; /* home's */
	_Atomic uint32_t go;
	_Atomic bool active;
	_Atomic uint64_t entry_count;
	_Atomic uint32_t fat_idle; /* number of entries that are resident in full and wait for a
				    * request */
	unsigned with_kernel;      /* number of entries on home's ring */
	unsigned queue_count;
	unsigned shared; /* number of entries beyond their queues' own */
	struct queue *queues;
	struct entry *entries;       /* home's list of all */
	struct worker_ring *workers; /* home's list of all */
};

static __thread struct entry *serving;
static __thread bool is_home; /* home must be there for entries that have no thread */

/* ---- support in the kernel ------------------------------------------------------------ */

int uring_check(struct weft_error *err)
{
	int fd = open("/sys/module/fuse/parameters/enable_uring", O_RDONLY | O_CLOEXEC);
	char on = 0;

	if (fd < 0)
		return weft_error(err, -EOPNOTSUPP,
			"option uring=on: this kernel has no FUSE over io_uring; it "
			"takes "
			"Linux 6.14 built with CONFIG_FUSE_IO_URING");
	if (read(fd, &on, 1) != 1)
		on = 0;
	close(fd);
	if (on != 'Y' && on != '1')
		return weft_error(err, -EOPNOTSUPP,
			"option uring=on: FUSE over io_uring is switched off in this "
			"kernel; as root: echo Y > "
			"/sys/module/fuse/parameters/enable_uring");
	return 0;
}

/* Returns the number of possible processors, from a list like "0-3,8"; 0: not known. */
static unsigned processors_possible(void)
{
	FILE *f = fopen("/sys/devices/system/cpu/possible", "re");
	unsigned count = 0, first, last;
	int c = ',';

	if (!f)
		return 0;
	while (c == ',' && fscanf(f, "%u", &first) == 1) {
		last = first;
		c = fgetc(f);
		if (c == '-' && fscanf(f, "%u", &last) == 1)
			c = fgetc(f);
		if (last < first || last > QUEUES_MAX) {
			count = 0;
			break;
		}
		count += last - first + 1;
	}
	fclose(f);
	return count <= QUEUES_MAX ? count : 0;
}

/* ---- rings ----------------------------------------------------------------------------- */

/* Opens a ring, disabled until the thread that uses it enables it. */
static int ring_open(struct io_uring *ring, unsigned sq_entries, unsigned cq_entries)
{
	struct io_uring_params params = {
		.flags = IORING_SETUP_SQE128 | IORING_SETUP_CQSIZE |
			 IORING_SETUP_R_DISABLED | IORING_SETUP_SINGLE_ISSUER |
			 IORING_SETUP_DEFER_TASKRUN,
		.cq_entries = cq_entries,
	};

	return io_uring_queue_init_params(sq_entries, ring, &params);
}

/* io_uring_enable_rings, which Debian 12's library does not export. */
static void ring_enable(struct io_uring *ring)
{
	int rc = io_uring_register(
		(unsigned)ring->ring_fd, IORING_REGISTER_ENABLE_RINGS, NULL, 0);

	WEFT_ASSERT(rc == 0);
}

static void command_prepare(
	struct io_uring *ring, int device, struct entry *e, uint32_t command)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(ring);
	struct wire_command *arg;

	WEFT_ASSERT(sqe);
	memset(sqe, 0, 2 * sizeof(*sqe));
	sqe->opcode = IORING_OP_URING_CMD;
	sqe->fd = device;
	sqe->cmd_op = command;
	sqe->user_data = (uintptr_t)e;
	if (command == WIRE_REGISTER) {
		sqe->addr = (uintptr_t)e->iov;
		sqe->len = 2;
	}
	arg = (struct wire_command *)sqe->cmd;
	arg->queue = (uint16_t)e->queue->number;
	arg->commit_id = e->commit_id;
}

static void submit_all(struct io_uring *ring)
{
	while (io_uring_sq_ready(ring)) {
		int rc = io_uring_submit(ring);

		WEFT_ASSERT(rc >= 0 || rc == -EINTR || rc == -EAGAIN ||
			    rc == -EBUSY || rc == -ENOMEM);
		if (rc < 0)
			rt_yield();
	}
}

/* Submits the prepared entries and waits for a completion. NULL: none came in time. If *result is
 * 0, the caller then owns the entry. */
static struct entry *next_entry(struct io_uring *ring, uint64_t timeout_ns, int *result)
{
	struct __kernel_timespec timeout = {
		.tv_sec = (long long)(timeout_ns / 1000000000u),
		.tv_nsec = (long long)(timeout_ns % 1000000000u),
	};
	struct io_uring_cqe *cqe;
	struct entry *e;

	while (io_uring_cq_ready(ring) == 0 || io_uring_sq_ready(ring)) {
		int rc = timeout_ns != RT_FOREVER
				  ? io_uring_submit_and_wait_timeout(
					    ring, &cqe, 1, &timeout, NULL)
				  : io_uring_submit_and_wait(ring, 1);

		WEFT_ASSERT(rc >= 0 || rc == -EINTR || rc == -EAGAIN ||
			    rc == -EBUSY || rc == -ENOMEM || rc == -ETIME);
		if (io_uring_cq_ready(ring))
			break;
		if (rc == -ETIME)
			return NULL;
		if (rc < 0)
			rt_yield();
	}
	WEFT_ASSERT(io_uring_peek_cqe(ring, &cqe) == 0);
	e = io_uring_cqe_get_data(cqe);
	*result = cqe->res;
	io_uring_cqe_seen(ring, cqe);
	return e;
}

static bool is_end(int result)
{
	return result == -ENOTCONN || result == -ECONNABORTED || result == -ENODEV ||
	       result == -ECANCELED;
}

/* ---- entries --------------------------------------------------------------------------- */

static struct entry *entry_add(struct uring *u, struct queue *q)
{
	struct entry *e = rt_alloc(sizeof(*e));
	uint8_t *memory = e ? rt_alloc_pages(ENTRY_BYTES) : NULL;

	if (!memory) {
		rt_free(e);
		return NULL;
	}
	e->queue = q;
	e->header = (struct wire_header *)memory;
	e->payload = memory + PAGE_SIZE;
	e->iov[0] = (struct iovec){e->header, sizeof(*e->header)};
	e->iov[1] = (struct iovec){e->payload, FUSE_PAYLOAD_MAX};
	e->next = u->entries;
	u->entries = e;
	atomic_fetch_add(&q->entries, 1);
	atomic_fetch_add_explicit(&u->entry_count, 1, memory_order_relaxed);
	return e;
}

static unsigned shared_max(const struct uring *u)
{
	return u->queue_count + ENTRIES_SHARED;
}

static unsigned entries_max(const struct uring *u)
{
	return u->queue_count * QUEUE_ENTRIES_OWN + shared_max(u);
}

static struct entry *entry_add_spare(struct uring *u, struct queue *q)
{
	bool own = atomic_load(&q->entries) < QUEUE_ENTRIES_OWN;
	struct entry *e;

	if (!own && (u->shared >= shared_max(u) ||
			    atomic_load(&u->session->fat_busy) >= SESSION_FAT_BUSY_MAX))
		return NULL;
	e = entry_add(u, q);
	if (e && !own)
		u->shared++;
	return e;
}

bool uring_take_reply(uint64_t unique, const struct iovec *iov, int count)
{
	struct entry *e = serving;
	struct fuse_out_header out;
	size_t done = 0;

	if (!e || e->unique != unique || unique == 0)
		return false;
	WEFT_ASSERT(iov[0].iov_len == sizeof(out));
	memcpy(&out, iov[0].iov_base, sizeof(out));
	for (int i = 1; i < count; i++) {
		if (iov[i].iov_len > FUSE_PAYLOAD_MAX - done) {
			weft_log(3, "a reply of more than %u bytes", FUSE_PAYLOAD_MAX);
			out.error = -EIO;
			done = 0;
			break;
		}
		memmove(e->payload + done, iov[i].iov_base, iov[i].iov_len);
		done += iov[i].iov_len;
	}
	if (done > SESSION_FAT_BYTES)
		e->fat = true;
	out.len = (uint32_t)(sizeof(out) + done);
	memcpy(e->header->in_out, &out, sizeof(out));
	e->header->entry.payload_bytes = (uint32_t)done;
	e->unique = 0;
	return true;
}

bool uring_serves(void)
{
	return serving != NULL;
}

bool uring_wait_begin(void)
{
	struct queue *q = serving->queue;

	if (is_home)
		return false;
	if (atomic_fetch_add(&q->waiting, 1) + 1 < atomic_load(&q->entries))
		return true;
	atomic_fetch_sub(&q->waiting, 1);
	return false;
}

void uring_wait_end(void)
{
	atomic_fetch_sub(&serving->queue->waiting, 1);
}

static void reply_error(struct entry *e, int error)
{
	struct fuse_out_header out = {.error = error, .unique = e->unique};
	struct iovec iov = {&out, sizeof(out)};

	uring_take_reply(e->unique, &iov, 1);
}

/* Returns the request in the device's format, or NULL. */
static struct fuse_in_header *message_of(struct entry *e)
{
	const struct wire_header *h = e->header;
	uint32_t payload_bytes = h->entry.payload_bytes;
	struct fuse_in_header in;
	uint8_t *message;
	size_t op_bytes;

	memcpy(&in, h->in_out, sizeof(in));
	e->commit_id = h->entry.commit_id;
	e->unique = in.unique;
	if (payload_bytes > FUSE_PAYLOAD_MAX || in.len < sizeof(in) + payload_bytes ||
		in.len - sizeof(in) - payload_bytes > sizeof(h->op)) {
		weft_log(3, "io_uring gave a message of %u bytes with %u of payload",
			in.len, payload_bytes);
		return NULL;
	}
	op_bytes = in.len - sizeof(in) - payload_bytes;
	message = e->payload - op_bytes - sizeof(in);
	memcpy(message, &in, sizeof(in));
	memcpy(message + sizeof(in), h->op, op_bytes);
	if (payload_bytes > SESSION_FAT_BYTES)
		e->fat = true;
	return (struct fuse_in_header *)message;
}

static bool is_large(const struct fuse_in_header *in)
{
	const struct fuse_read_in *read_in = (const struct fuse_read_in *)(in + 1);

	return in->len > SESSION_FAT_BYTES ||
	       (in->opcode == FUSE_READ && in->len >= sizeof(*in) + sizeof(*read_in) &&
		       read_in->size > SESSION_FAT_BYTES);
}

/* Serves the entry's request. The entry then has the reply. */
static void entry_serve(struct uring *u, struct entry *e)
{
	struct session *s = u->session;
	uint64_t begin = rt_now_ns();
	struct fuse_in_header *in = message_of(e);
	bool large = in && is_large(in);

	serving = e;
	if (large)
		atomic_fetch_add(&s->fat_busy, 1);
	if (in)
		session_serve(s, in, in->len, begin);
	if (large)
		atomic_fetch_sub(&s->fat_busy, 1);
	if (e->unique) {
		if (in)
			weft_log(3, "a request of kind %u was not answered", in->opcode);
		reply_error(e, -EIO);
	}
	serving = NULL;
	atomic_fetch_add_explicit(&s->counters.uring_requests, 1, memory_order_relaxed);
}

/* ---- workers --------------------------------------------------------------------------- */

static void worker_leaves(void *arg)
{
	struct worker_ring *w = arg;

	w->alone = 0;
	if (w->stays)
		rt_task_on_cpu(RT_ANY_CPU);
	w->stays = false;
}

/*
 * A lone client is served fastest by a thread that stays on its processor: to wake another, idle
 * processor takes longer than most requests. Requests that overlap or wait may run on any
 * processor: on a busy one they would wait a second time. So may large ones, because their copies
 * can be made while the client works.
 */
static void worker_place(struct worker_ring *w, bool spread)
{
	if (spread) {
		worker_leaves(w);
	} else if (!w->stays && w->alone++ >= ALONE_BEFORE_STAYING) {
		rt_task_on_cpu(w->entry->queue->number);
		w->stays = true;
	}
}

static void worker_serve(struct worker_ring *w)
{
	struct queue *q = w->entry->queue;

	uint32_t others = atomic_fetch_add_explicit(&q->busy, 1, memory_order_relaxed);

	worker_place(w, others || w->entry->fat);
	rt_task_before_wait(worker_leaves, w);
	entry_serve(w->uring, w->entry);
	rt_task_before_wait(NULL, NULL);
	atomic_fetch_sub_explicit(&q->busy, 1, memory_order_relaxed);
}

static void entry_slim(struct entry *e)
{
	e->fat = false;
	if (madvise(e->payload + SESSION_FAT_BYTES, FUSE_PAYLOAD_MAX - SESSION_FAT_BYTES,
		    MADV_DONTNEED) < 0)
		weft_log(7, "madvise: %s", strerror(errno));
}

/*
 * Waits for a request. A few entries that had large requests stay resident for a moment. More go
 * back to the system if no request comes at once. The kernel writes to the memory only within these
 * calls, and reports it by a completion.
 */
static struct entry *next_request(struct worker_ring *w, int *result)
{
	_Atomic uint32_t *idle = &w->uring->fat_idle;
	struct entry *e = NULL;

	if (w->entry->fat) {
		uint32_t others =
			atomic_fetch_add_explicit(idle, 1, memory_order_relaxed);

		e = next_entry(&w->ring, others < SESSION_FAT_IDLE_MAX ? FAT_IDLE_NS : 0,
			result);
		if (!e)
			entry_slim(w->entry);
		atomic_fetch_sub_explicit(idle, 1, memory_order_relaxed);
	}
	return e ? e : next_entry(&w->ring, RT_FOREVER, result);
}

/* Answers, and waits for the next request. Returns false if the connection has ended. */
static bool worker_exchange(struct worker_ring *w)
{
	struct entry *e = w->entry;
	int result;

	command_prepare(&w->ring, w->uring->session->device, e, WIRE_COMMIT_AND_FETCH);
	for (;;) {
		WEFT_ASSERT(next_request(w, &result) == e);
		if (result == 0)
			return true;
		if (result != -EAGAIN && result != -EINTR)
			break;
		rt_yield();
		command_prepare(
			&w->ring, w->uring->session->device, e, WIRE_COMMIT_AND_FETCH);
	}
	if (!is_end(result))
		weft_log(3, "the FUSE device took no answer through io_uring: %s",
			strerror(-result));
	return false;
}

static void worker_main(void *arg)
{
	struct worker_ring *w = arg;

	ring_enable(&w->ring);
	w->alone = ALONE_BEFORE_STAYING;
	do
		worker_serve(w);
	while (worker_exchange(w));
	io_uring_queue_exit(&w->ring);
	session_note_workers(w->uring->session, -1);
}

/* Starts a thread for an entry that has come to home with a request. */
static int worker_start(struct uring *u, struct entry *e)
{
	struct worker_ring *w = rt_alloc(sizeof(*w));
	char name[16];
	int rc;

	if (!w)
		return -ENOMEM;
	*w = (struct worker_ring){.uring = u, .entry = e, .next = u->workers};
	rc = ring_open(&w->ring, 1, 2);
	if (rc < 0)
		goto out_free;
	session_note_workers(u->session, 1);
	snprintf(name, sizeof(name), "weft-fuse-%u", e->queue->number);
	rc = rt_task_spawn(&w->task, name, worker_main, w);
	if (rc < 0)
		goto out_ring;
	u->workers = w;
	return 0;

out_ring:
	session_note_workers(u->session, -1);
	io_uring_queue_exit(&w->ring);
out_free:
	rt_free(w);
	return rc;
}

/* ---- home ------------------------------------------------------------------------------ */

static void home_register(struct uring *u, struct entry *e)
{
	if (io_uring_sq_space_left(&u->ring) == 0)
		submit_all(&u->ring);
	command_prepare(&u->ring, u->session->device, e, WIRE_REGISTER);
	u->with_kernel++;
}

static void home_dispatch(struct uring *u, struct entry *e)
{
	struct queue *q = e->queue;
	struct entry *spare = entry_add_spare(u, q);

	if (spare) {
		home_register(u, spare);
		submit_all(&u->ring);
	}
	if (worker_start(u, e) == 0)
		return;
	/* Without memory or threads: slow, but all requests are served. */
	entry_serve(u, e);
	command_prepare(&u->ring, u->session->device, e, WIRE_COMMIT_AND_FETCH);
	u->with_kernel++;
}

/* Registers all entries of the start. Refused entries have completed then. */
static void home_register_all(struct uring *u)
{
	for (struct entry *e = u->entries; e; e = e->next)
		home_register(u, e);
	submit_all(&u->ring);
	atomic_store(&u->active, io_uring_cq_ready(&u->ring) == 0);
}

static void home_main(void *arg)
{
	struct uring *u = arg;
	bool told = false;

	is_home = true;
	while (atomic_load_explicit(&u->go, memory_order_acquire) == HOME_WAITS)
		rt_wait(&u->go, HOME_WAITS, RT_FOREVER);
	if (atomic_load_explicit(&u->go, memory_order_acquire) == HOME_GOES) {
		ring_enable(&u->ring);
		home_register_all(u);
	}
	while (u->with_kernel) {
		int result;
		struct entry *e = next_entry(&u->ring, RT_FOREVER, &result);

		u->with_kernel--;
		if (result == 0) {
			home_dispatch(u, e);
		} else if (!is_end(result) && !told) {
			told = true;
			weft_log(4, "the FUSE device refuses io_uring: %s",
				strerror(-result));
		}
	}
}

/* ---- start and end ----------------------------------------------------------------------
 */

static void uring_free(struct uring *u)
{
	struct entry *next_e;
	struct worker_ring *next_w;

	for (struct entry *e = u->entries; e; e = next_e) {
		next_e = e->next;
		rt_free_pages(e->header, ENTRY_BYTES);
		rt_free(e);
	}
	for (struct worker_ring *w = u->workers; w; w = next_w) {
		next_w = w->next;
		rt_free(w);
	}
	rt_free(u->queues);
	rt_free(u);
}

static int queues_open(struct uring *u)
{
	u->queue_count = processors_possible();
	if (u->queue_count == 0)
		return -EOPNOTSUPP;
	u->queues = rt_alloc(u->queue_count * sizeof(*u->queues));
	if (!u->queues)
		return -ENOMEM;
	for (unsigned i = 0; i < u->queue_count; i++) {
		u->queues[i].number = i;
		for (unsigned n = 0; n < QUEUE_ENTRIES_FIRST; n++)
			if (!entry_add(u, &u->queues[i]))
				return -ENOMEM;
	}
	return 0;
}

int uring_open(struct uring **out, struct session *s)
{
	struct uring *u = rt_alloc(sizeof(*u));
	int rc;

	if (!u)
		return -ENOMEM;
	u->session = s;
	rc = queues_open(u);
	if (rc < 0)
		goto out_free;
	rc = ring_open(&u->ring, HOME_SQ_ENTRIES, MAX(HOME_SQ_ENTRIES, entries_max(u)));
	if (rc < 0)
		goto out_free;
	rc = rt_task_spawn(&u->task, "weft-fuse-home", home_main, u);
	if (rc < 0)
		goto out_ring;
	*out = u;
	return 0;

out_ring:
	io_uring_queue_exit(&u->ring);
out_free:
	uring_free(u);
	return rc;
}

static void home_tell(struct uring *u, uint32_t word)
{
	uint32_t waits = HOME_WAITS;

	if (atomic_compare_exchange_strong(&u->go, &waits, word))
		rt_wake(&u->go, 1);
}

void uring_start(struct uring *u, bool has_answer)
{
	home_tell(u, has_answer ? HOME_GOES : HOME_GIVES_UP);
}

bool uring_active(struct uring *u)
{
	return atomic_load(&u->active);
}

uint64_t uring_entries(struct uring *u)
{
	return atomic_load_explicit(&u->entry_count, memory_order_relaxed);
}

void uring_close(struct uring *u)
{
	home_tell(u, HOME_GIVES_UP);
	rt_task_join(u->task);
	for (struct worker_ring *w = u->workers; w; w = w->next)
		rt_task_join(w->task);
	io_uring_queue_exit(&u->ring);
	uring_free(u);
}
