/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The receive loop and its elastic workers.
 *
 * Memory (invariant 10): a worker's buffer must have room for the largest WRITE, but is only
 * resident where it was used. At most fat_busy_max() requests with large payloads are in memory at
 * a time, plus the workers then idle. Further requests wait in the kernel. A request of a volume
 * never waits for another one, so this cannot deadlock.
 */
#define FUSE_USE_VERSION 314
#include <fuse_lowlevel.h>

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fs/aside.h"
#include "fs/handlers.h"
#include "fs/session_internal.h"
#include "fs/notify.h"
#include "fs/waits.h"

static void worker_run(void *arg);

/* ---- workers ------------------------------------------------------------------ */

void session_note_workers(struct session *s, int change)
{
	uint64_t now = atomic_fetch_add_explicit(&s->counters.workers,
			       (uint64_t)(int64_t)change, memory_order_relaxed) +
		       (uint64_t)(int64_t)change;

	if (now > atomic_load_explicit(&s->counters.workers_most, memory_order_relaxed))
		atomic_store_explicit(
			&s->counters.workers_most, now, memory_order_relaxed);
}

/* Returns a free slot, or NULL. A worker that has retired does not use the session any more. */
static struct worker *slot_take(struct session *s)
{
	unsigned max = session_shared(s) ? SESSION_WORKERS_MAX : SESSION_WORKERS_ALONE;

	for (unsigned i = 0; i < max; i++) {
		struct worker *w = &s->workers[i];

		if (w->state == WORKER_RETIRED) {
			rt_task_join(w->task);
			w->state = WORKER_NONE;
		}
		if (w->state == WORKER_NONE)
			return w;
	}
	return NULL;
}

/* Fails after the end: session_free goes through the slots once. */
static int worker_add(struct session *s)
{
	struct worker *w;
	int rc = -EAGAIN;

	rt_mutex_lock(&s->lock);
	w = session_ended(s) ? NULL : slot_take(s);
	if (!w)
		goto out_unlock;
	*w = (struct worker){.session = s};
	if (w >= s->workers + atomic_load(&s->slots))
		atomic_store(&s->slots, (uint32_t)(w - s->workers) + 1);
	w->buffer = rt_alloc_pages(SESSION_BUFFER_BYTES);
	if (!w->buffer) {
		rc = -ENOMEM;
		goto out_unlock;
	}
	w->state = WORKER_RUNNING;
	session_note_workers(s, 1);
	rc = rt_task_spawn(&w->task, "weft-fuse", worker_run, w);
	if (rc < 0) {
		session_note_workers(s, -1);
		w->state = WORKER_NONE;
		rt_free_pages(w->buffer, SESSION_BUFFER_BYTES);
	}
out_unlock:
	rt_mutex_unlock(&s->lock);
	return rc;
}

/* The worker's last act. */
static void worker_retire(struct worker *w)
{
	struct session *s = w->session;

	if (w->fat)
		atomic_fetch_sub(&s->fat_idle, 1);
	rt_free_pages(w->buffer, SESSION_BUFFER_BYTES);
	session_note_workers(s, -1);
	rt_mutex_lock(&s->lock);
	w->state = WORKER_RETIRED;
	rt_mutex_unlock(&s->lock);
}

static void buffer_in_use(struct worker *w, size_t length)
{
	struct session *s = w->session;

	if (w->fat)
		atomic_fetch_sub(&s->fat_idle, 1);
	else if (length > SESSION_FAT_BYTES)
		w->fat = true;
	if (w->fat)
		atomic_fetch_add(&s->fat_busy, 1);
}

static void buffer_idle(struct worker *w)
{
	struct session *s = w->session;
	struct worker *coldest = w;

	if (!w->fat)
		return;
	atomic_fetch_sub(&s->fat_busy, 1);
	if (atomic_fetch_add(&s->fat_idle, 1) < SESSION_FAT_IDLE_MAX)
		return;
	/* If enough buffers stay resident, the one longest unused goes back to the system. */
	rt_mutex_lock(&s->lock);
	for (struct worker *p = s->parked_last; p; p = p->below)
		if (p->fat)
			coldest = p;
	coldest->fat = false;
	if (madvise(coldest->buffer + SESSION_FAT_BYTES,
		    SESSION_BUFFER_BYTES - SESSION_FAT_BYTES, MADV_DONTNEED) < 0)
		weft_log(7, "madvise: %s", strerror(errno));
	rt_mutex_unlock(&s->lock);
	atomic_fetch_sub(&s->fat_idle, 1);
}

/* ---- requests ------------------------------------------------------------------- */

static uint64_t request_serve(
	struct session *s, struct fuse_in_header *in, size_t length, uint64_t begin)
{
	uint64_t end = begin;
	uint32_t opcode;

	if (length < sizeof(*in) || in->len != length) {
		weft_log(3, "the FUSE device gave %zu bytes of a message of %u", length,
			length < sizeof(*in) ? 0 : in->len);
		if (length >= sizeof(*in))
			shim_reply(s, in->unique, -EIO, NULL, 0);
		return end;
	}
	opcode = in->opcode < SESSION_OPCODES ? in->opcode : 0;
	notify_heard(s, in);
	if (!shim_receive(s, in)) {
		struct fuse_buf buf = {.mem = in, .size = length, .fd = -1};

		fuse_session_process_buf(s->fuse, &buf);
	}
	end = rt_now_ns();
	latency_add(&s->counters.latency[opcode], end - begin);
	atomic_fetch_add_explicit(&s->counters.requests, 1, memory_order_relaxed);
	return end;
}

/* `busy` is incremented before `closed` is read, and in session_quiesce the other way round (both
 * sequentially consistent). So one of the two sees the other. */
uint64_t session_serve(
	struct session *s, struct fuse_in_header *in, size_t length, uint64_t begin)
{
	uint64_t end = begin;

	atomic_fetch_add(&s->busy, 1);
	if (!atomic_load(&s->closed)) {
		end = request_serve(s, in, length, begin);
	} else if (length >= sizeof(*in) && in->opcode != FUSE_FORGET &&
		   in->opcode != FUSE_BATCH_FORGET && in->opcode != FUSE_INTERRUPT) {
		shim_reply(s, in->unique, -ENOTCONN, NULL, 0);
	}
	session_release(s);
	return end;
}

void session_hold(struct session *s)
{
	atomic_fetch_add(&s->busy, 1);
}

void session_release(struct session *s)
{
	atomic_fetch_sub(&s->busy, 1);
	if (atomic_load(&s->closed))
		rt_wake(&s->busy, INT_MAX);
}

/* Notes that the kernel has ended the connection. Each worker learns of it. Notifies the main task
 * once. */
static void session_note_end(struct session *s, int error)
{
	uint64_t one = 1;

	if (atomic_exchange(&s->ended, true))
		return;
	if (error != ENODEV)
		weft_log(3, "reading the FUSE device failed: %s", strerror(error));
	if (write(s->ended_fd, &one, sizeof(one)) < 0)
		weft_log(3, "cannot tell the main task of the end: %s", strerror(errno));
}

/* ---- the turn ---------------------------------------------------------------------- */

/* Takes the turn, or joins the workers that wait for it. Returns false if enough workers wait. */
static bool turn_ask(struct worker *w)
{
	struct session *s = w->session;
	bool stays = true;

	rt_mutex_lock(&s->lock);
	if (!s->turn_taken) {
		s->turn_taken = w->has_turn = true;
	} else if (s->parked < SESSION_PARKED_MAX) {
		atomic_store_explicit(&w->woken, 0, memory_order_relaxed);
		w->below = s->parked_last;
		s->parked_last = w;
		s->parked++;
	} else {
		stays = false;
	}
	rt_mutex_unlock(&s->lock);
	return stays;
}

/* Waits for the turn. A woken worker may find that another one has taken the turn. That delays no
 * request. Returns false if the worker is not needed. */
static bool turn_take(struct worker *w)
{
	while (!w->has_turn) {
		if (!turn_ask(w))
			return false;
		while (!w->has_turn &&
			!atomic_load_explicit(&w->woken, memory_order_acquire))
			rt_wait(&w->woken, 0, RT_FOREVER);
	}
	return true;
}

static uint32_t fat_busy_max(struct session *s)
{
	return session_shared(s) ? SESSION_FAT_BUSY_SHARED : SESSION_FAT_BUSY_MAX;
}

/* Keeps the name of the request for other tasks (waits.h). The message may have any length. Under
 * the lock. */
static void name_keep(struct worker *w)
{
	static const uint16_t header[SESSION_OPCODES] = {
		[FUSE_LOOKUP] = sizeof(struct fuse_in_header),
		[FUSE_UNLINK] = sizeof(struct fuse_in_header),
		[FUSE_RMDIR] = sizeof(struct fuse_in_header),
		[FUSE_SYMLINK] = sizeof(struct fuse_in_header),
		[FUSE_MKNOD] = sizeof(struct fuse_in_header) + sizeof(struct fuse_mknod_in),
		[FUSE_MKDIR] = sizeof(struct fuse_in_header) + sizeof(struct fuse_mkdir_in),
		[FUSE_LINK] = sizeof(struct fuse_in_header) + sizeof(struct fuse_link_in),
		[FUSE_RENAME] = sizeof(struct fuse_in_header) + sizeof(struct fuse_rename_in),
		[FUSE_RENAME2] = sizeof(struct fuse_in_header) + sizeof(struct fuse_rename2_in),
		[FUSE_CREATE] = sizeof(struct fuse_in_header) + sizeof(struct fuse_create_in),
	};
	const struct fuse_in_header *in = (const struct fuse_in_header *)w->buffer;
	size_t at = in->opcode < SESSION_OPCODES ? header[in->opcode] : 0;
	size_t length = at && at < in->len ? MIN(in->len - at, sizeof(w->name) - 1) : 0;

	length = length ? strnlen((const char *)w->buffer + at, length) : 0;
	memcpy(w->name, w->buffer + at, length);
	w->name[length] = '\0';
}

/* Also called before the worker's task waits. Must wait only for `lock`. */
static void turn_pass(void *arg)
{
	struct worker *w = arg, *next;
	struct session *s = w->session;

	if (!w->has_turn)
		return;
	rt_mutex_lock(&s->lock);
	w->named = atomic_load_explicit(&w->serving, memory_order_relaxed);
	if (w->named)
		name_keep(w);
	w->has_turn = s->turn_taken = false;
	next = s->parked_last;
	if (next) {
		s->parked_last = next->below;
		s->parked--;
		atomic_store_explicit(&next->woken, 1, memory_order_release);
	}
	rt_mutex_unlock(&s->lock);
	if (next)
		rt_wake(&next->woken, 1);
	else if (atomic_load(&s->fat_busy) < fat_busy_max(s))
		worker_add(s); /* at the limit, or without memory, the existing workers must do */
}

/* Returns true for requests that use a processor for long without waiting. */
static bool request_is_long(const struct worker *w, size_t length)
{
	const struct fuse_in_header *in = (const struct fuse_in_header *)w->buffer;
	const struct fuse_read_in *read_in = (const struct fuse_read_in *)(in + 1);

	if (length < sizeof(*in) || length > SESSION_FAT_BYTES)
		return true;
	switch (in->opcode) {
	case FUSE_READ:
		return length < sizeof(*in) + sizeof(*read_in) ||
		       read_in->size > SESSION_FAT_BYTES;
	case FUSE_SETATTR:
	case FUSE_FALLOCATE:
	case FUSE_COPY_FILE_RANGE:
	case FUSE_READDIR:
	case FUSE_READDIRPLUS:
		return true;
	case FUSE_BATCH_FORGET: /* may notify the kernel of each inode */
		return w->session->keeps || fs_opens_hidden(w->session->fs);
	default:
		return false;
	}
}

/* Returns true if another request waits already, so that one more worker has work. Checked only if
 * this request did not have to be waited for: the next one of a lone client has to be. */
static bool more_waits(const struct worker *w, uint64_t begin)
{
	struct pollfd p = {.fd = w->session->device, .events = POLLIN};

	if (begin - w->served_ns > SESSION_BACKLOG_NS)
		return false;
	return poll(&p, 1, 0) > 0 && (p.revents & POLLIN);
}

/* With a ring, the device brings almost only FORGETs, one for each unlink. They collect for a
 * moment, and then many come in one message. */
static void forgets_gather(struct session *s, uint32_t opcode)
{
	if ((opcode == FUSE_FORGET || opcode == FUSE_BATCH_FORGET) &&
		session_uses_uring(s))
		rt_sleep_ns(SESSION_GATHER_NS);
}

/* Stores the worker's request and its thread (waits.h). Called before the turn is passed: the next
 * reader may get the INTERRUPT, which is sent once. `in` NULL: none. Without other nodes the words
 * are only reported. */
static void worker_says(struct worker *w, const struct fuse_in_header *in, uint64_t begin)
{
	bool watched = w->session->waits;

	if (in) {
		if (watched)
			waits_note_nodes(w->node, in);
		else
			atomic_store_explicit(
				&w->node[0], in->nodeid, memory_order_relaxed);
		atomic_store_explicit(&w->since_ns, begin, memory_order_relaxed);
		atomic_store_explicit(&w->opcode, in->opcode, memory_order_relaxed);
		atomic_store_explicit(&w->thread, in->pid, memory_order_relaxed);
	} else if (atomic_load_explicit(&w->shown.nodes, memory_order_relaxed)) {
		rt_task_awaits(0);
		rt_task_needs(RT_NEEDS_NOTHING, 0);
	}
	if (watched)
		atomic_store(&w->serving, in ? in->unique : 0);
	else
		atomic_store_explicit(
			&w->serving, in ? in->unique : 0, memory_order_release);
}

/* The request has ended. Counts the pages that it had to take back from other nodes. */
static void retaken_count(struct worker *w)
{
	uint32_t changed =
		atomic_load_explicit(&w->shown.retaken_changed, memory_order_relaxed);
	uint32_t read = atomic_load_explicit(&w->shown.retaken_read, memory_order_relaxed);

	if (likely(changed == w->retaken_changed && read == w->retaken_read))
		return;
	contended_note(&w->session->contended, w->served_ns,
		atomic_load_explicit(&w->node[0], memory_order_relaxed),
		changed - w->retaken_changed, read - w->retaken_read,
		w->served_ns - atomic_load_explicit(&w->since_ns, memory_order_relaxed));
	w->retaken_changed = changed;
	w->retaken_read = read;
}

/*
 * Returns true if the request may end with an error, as if a page could not be read. That is done
 * once its answer is not needed and it waits for another node. False for requests that complete
 * earlier events (a close, stores in the kernel), and for locks, which do not wait here. With
 * mmap=local, stores wait for other nodes, so they must end with the mount.
 */
static bool may_be_unwanted(
	const struct session *s, const struct fuse_in_header *in, size_t length)
{
	const struct fuse_write_in *write_in = (const struct fuse_write_in *)(in + 1);

	if (length < sizeof(*in))
		return false;
	switch (in->opcode) {
	case FUSE_INIT:
	case FUSE_DESTROY:
	case FUSE_FORGET:
	case FUSE_BATCH_FORGET:
	case FUSE_FLUSH:
	case FUSE_RELEASE:
	case FUSE_RELEASEDIR:
	case FUSE_GETLK:
	case FUSE_SETLK:
	case FUSE_SETLKW:
	case FUSE_SYNCFS:
		return false;
	case FUSE_WRITE:
		return length >= sizeof(*in) + sizeof(*write_in) &&
		       (!(write_in->write_flags & FUSE_WRITE_CACHE) ||
			       !fs_maps_alone(s->fs));
	default:
		return true;
	}
}

static bool is_unwanted(void *arg)
{
	const struct worker *w = arg;

	return atomic_load(&w->unwanted) == atomic_load(&w->serving) ||
	       session_ended(w->session);
}

/*
 * Looks for the next request for a moment, before read() puts the worker to sleep. A client that
 * makes one request after the other then need not wake it. Only if the last request came soon, and
 * where processors are free. After another thread has had this one for long, there is no look for a
 * while. After a look in vain the next ones are passed over, more each time.
 */
static void look_for_next(struct worker *w)
{
	struct pollfd p = {.fd = w->session->device, .events = POLLIN};
	uint64_t now = rt_now_ns(), until = now + SESSION_LOOK_NS, before;

	if (!w->soon || now < w->look_from_ns || (w->looks_skipped && w->looks_skipped--))
		return;
	while (poll(&p, 1, 0) == 0) {
		before = now;
		now = rt_now_ns();
		if (now - before > SESSION_SLICE_NS)
			w->look_from_ns = now + SESSION_CROWDED_NS;
		if (now < until)
			continue;
		w->looks_skip = MIN(2 * w->looks_skip + 1, SESSION_SKIP_MAX);
		w->looks_skipped = w->looks_skip;
		return;
	}
	w->looks_skip = 0;
	if (rt_now_ns() - now > SESSION_SLICE_NS)
		w->look_from_ns = now + SESSION_CROWDED_NS;
}

/* Reads with the turn, and serves. Returns false if the connection has ended. */
static bool worker_step(struct worker *w)
{
	struct session *s = w->session;
	struct fuse_in_header *in = (struct fuse_in_header *)w->buffer;
	ssize_t length;
	uint32_t opcode;
	uint64_t begin;

	look_for_next(w);
	length = read(s->device, w->buffer, SESSION_BUFFER_BYTES);
	if (length < 0) {
		/* ENOENT: the request was interrupted before it was read. */
		if (errno == EINTR || errno == EAGAIN || errno == ENOENT)
			return true;
		/* The kernel could not fill the buffer and failed that request itself. */
		if (errno == ENOMEM) {
			rt_sleep_ns(SESSION_MEMORY_PAUSE_NS);
			return true;
		}
		session_note_end(s, errno);
		return false;
	}
	begin = rt_now_ns();
	w->soon = s->processors > 1 && begin - w->served_ns < SESSION_SOON_NS;
	opcode = (size_t)length >= sizeof(*in) ? in->opcode : 0;
	buffer_in_use(w, (size_t)length);
	worker_says(w, (size_t)length >= sizeof(*in) ? in : NULL, begin);
	if (s->waits && may_be_unwanted(s, in, (size_t)length))
		rt_task_serves(is_unwanted, w);
	if (request_is_long(w, (size_t)length) || more_waits(w, begin))
		turn_pass(w);
	else
		rt_task_before_wait(turn_pass, w);
	if (opcode == FUSE_RELEASE || opcode == FUSE_RELEASEDIR)
		waits_before_release(s, in->nodeid);
	w->served_ns = session_serve(s, in, (size_t)length, begin);
	rt_task_serves(NULL, NULL);
	retaken_count(w);
	worker_says(w, NULL, 0);
	rt_task_before_wait(NULL, NULL);
	buffer_idle(w);
	forgets_gather(s, opcode);
	return true;
}

static void worker_run(void *arg)
{
	struct worker *w = arg;

	rt_task_shows(&w->shown);
	while (turn_take(w))
		if (!worker_step(w))
			break;
	turn_pass(w); /* after the end, so that the next worker learns of it */
	worker_retire(w);
}

/* ---- start and end ---------------------------------------------------------------- */

static const struct fuse_custom_io custom_io = {
	.read = shim_read,
	.writev = shim_writev,
};

int session_start(struct session **out, struct fs *fs, int device,
	const struct session_options *o, struct weft_error *err)
{
	char name[] = "weftd";
	char *argv[] = {name, NULL};
	struct fuse_args args = FUSE_ARGS_INIT(1, argv);
	struct session *s;
	int rc;

	s = rt_alloc(sizeof(*s));
	if (!s) {
		close(device);
		return weft_error(err, -ENOMEM, "no memory for the FUSE session");
	}
	s->fs = fs;
	s->shared = fs_volume(fs)->peers != NULL; /* workers use it after fs has gone */
	s->device = device;
	s->processors = sysconf(_SC_NPROCESSORS_ONLN);
	s->ended_fd = o->ended_fd;
	s->noted = o->noted;
	s->waits_told = o->waits;
	s->waits_owner = o->owner;
	s->uring_mode = o->uring;
	if (o->soft_ns && session_shared(s))
		s->uring_mode = URING_OFF; /* other threads cannot answer requests of a ring */
	s->fuse = fuse_session_new(
		&args, handlers_table(), sizeof(struct fuse_lowlevel_ops), s);
	fuse_opt_free_args(&args); /* libfuse copies the arguments that it keeps, and adds to
				    * these */
	if (!s->fuse) {
		rc = weft_error(err, -ENOMEM, "libfuse cannot start a session");
		close(device);
		goto out_free;
	}
	/* From here on fuse_session_destroy closes the device. */
	rc = fuse_session_custom_io(s->fuse, &custom_io, device);
	if (rc != 0) {
		rc = weft_error(err, -EINVAL, "libfuse refuses the device: %d", rc);
		close(device);
		goto out_destroy;
	}
	if (o->uring != URING_ON)
		notify_start(s);
	if (s->keeps) /* an answer would leave after later messages of its handler */
		s->uring_mode = URING_OFF;
	rc = session_shared(s) ? waits_start(s, o->soft_ns) : aside_start(s);
	if (rc == 0)
		rc = worker_add(s);
	if (rc < 0) {
		notify_stop(s);
		weft_error(err, rc, "cannot start a worker: %s", strerror(-rc));
		goto out_destroy;
	}
	*out = s;
	return 0;

out_destroy:
	aside_stop(s);
	waits_stop(s);
	fuse_session_destroy(s->fuse);
out_free:
	rt_free(s);
	return rc;
}

bool session_ended(struct session *s)
{
	return atomic_load(&s->ended);
}

void session_quiesce(struct session *s)
{
	uint32_t busy;

	atomic_store(&s->closed, true);
	ops_locks_end(s->fs); /* also of requests whose handlers have returned */
	while ((busy = atomic_load(&s->busy)) != 0)
		rt_wait(&s->busy, busy, RT_FOREVER);
	fs_opens_end(s->fs);
	notify_stop(s);
	aside_stop(s);
}

void session_free(struct session *s)
{
	if (!session_ended(s))
		return;
	for (unsigned i = 0; i < SESSION_WORKERS_MAX; i++) {
		struct worker *w = &s->workers[i];
		enum worker_state state;

		rt_mutex_lock(&s->lock);
		state = w->state;
		rt_mutex_unlock(&s->lock);
		if (state != WORKER_NONE)
			rt_task_join(w->task);
	}
	waits_stop(s);
	if (s->uring)
		uring_close(s->uring);
	fuse_session_destroy(s->fuse);
	rt_free(s);
}

struct fs *session_fs(struct session *s)
{
	return s->fs;
}

bool session_shared(struct session *s)
{
	return s->shared;
}

void session_answers(struct session *s, const char *directory, dev_t device)
{
	s->at_device = device;
	s->at = directory;
}

bool session_keeps(struct session *s)
{
	return s->keeps;
}

struct fuse_session *session_fuse(struct session *s)
{
	return s->fuse;
}

struct contended *session_contended(struct session *s)
{
	return &s->contended;
}

struct session_counters *session_counters(struct session *s)
{
	return &s->counters;
}

uint64_t session_init_flags(struct session *s)
{
	return atomic_load_explicit(&s->shim.agreed, memory_order_relaxed);
}

bool session_uses_uring(struct session *s)
{
	struct uring *u = atomic_load_explicit(&s->uring, memory_order_acquire);

	return u && uring_active(u);
}

uint64_t session_uring_entries(struct session *s)
{
	struct uring *u = atomic_load_explicit(&s->uring, memory_order_acquire);

	return u ? uring_entries(u) : 0;
}
