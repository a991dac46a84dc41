/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The runtime: tasks, wait queues, time, randomness, memory, disks.
 *
 * Only the code behind this header uses threads, clocks, sockets or rings. There are two runtimes.
 * A process chooses one before anything else runs. The real one (rt_real_start) has threads,
 * futexes and io_uring. The simulated one (rt_sim.h) has one thread, cooperative tasks, virtual
 * time, seeded randomness, and disks that fail. The layers above behave the same on both.
 *
 * Tasks of the simulated runtime share a thread. So no layer above may use __thread across a call
 * that can wait; use rt_task_index() instead.
 *
 * Functions that can wait say so. Errors are negative errno values.
 */
#ifndef WEFT_RT_H
#define WEFT_RT_H

#include <stdatomic.h>
#include <sys/uio.h>

#include "engine/common/base.h"

/* ---- start and stop ---------------------------------------------------- */

/* Selects the real runtime. Call it once. Returns 0 or a negative errno. */
int rt_real_start(void);
/*
 * Opens the descriptors 0, 1 and 2 on /dev/null where they were closed. Call it first in a main.
 * Otherwise a store could get number 2, and messages would be written to it. Returns 0 or a
 * negative errno.
 */
int rt_stdio_open(void);

/* ---- time and randomness ------------------------------------------------ */

uint64_t rt_now_ns(void);                    /* monotonic */
int64_t rt_wall_ns(void);                    /* since 1970, UTC; never decreases in a process */
uint64_t rt_random(void);                    /* fast, not for keys */
void rt_random_bytes(void *buf, size_t len); /* for keys and UUIDs */

/*
 * ---- memory -------------------------------------------------------------- The layers above take
 * all memory from here. The simulator frees the memory of a crashed node, and fails chosen
 * allocations. The functions return NULL if there is no memory.
 */
void *rt_alloc(size_t size_bytes); /* zeroed, 64-byte aligned */
void rt_free(void *p);             /* NULL is allowed */
void *rt_alloc_pages(
	size_t size_bytes); /* zeroed, page aligned, for I/O; may be huge pages */
void rt_free_pages(void *p, size_t size_bytes);
/*
 * Registers a function that frees a library's own memory, beside rt memory (an OpenSSL context).
 * The simulator calls fn(arg) when the caller's node loses power. fn must not wait. Forget the same
 * pair when the memory is released in order. The real runtime ignores both.
 */
void rt_on_crash(void (*fn)(void *), void *arg);
void rt_on_crash_forget(void (*fn)(void *), void *arg);

/* ---- tasks ---------------------------------------------------------------- */

struct rt_task;

/* Starts fn(arg) as a task. The name (copied, 15 bytes) shows in tools. Returns 0 or a negative
 * errno. */
int rt_task_spawn(struct rt_task **out, const char *name, void (*fn)(void *), void *arg);
/* Waits until the task's function has returned and frees it. */
void rt_task_join(struct rt_task *task);
/* Returns a small number that is constant for the life of the calling task, for striping. */
unsigned rt_task_index(void);
/*
 * Sets a function that runs once, before the next wait of the calling task in the runtime (for a
 * word, a disk, time). The function must not wait; NULL removes it. For a task that serves others,
 * and hands that over before it waits. Not in the simulator.
 */
void rt_task_before_wait(void (*fn)(void *), void *arg);
/* Sets a function that returns true when the user of the calling task's work has gone away. It must
 * not wait. NULL: there is no user, or the work must be completed. Not in the simulator. */
void rt_task_serves(bool (*gone)(void *arg), void *arg);
/* Returns true if nobody waits any more for the calling task's work. A wait that may never end,
 * holds nothing and can fail, polls this and ends with -EINTR. */
bool rt_task_unwanted(void);
/* The thing that a task waits for; `which` of it is in rt_shown. */
enum rt_need {
	RT_NEEDS_NOTHING,
	RT_NEEDS_PAGE,      /* the id of a page of metadata, or of any page */
	RT_NEEDS_FILE_PAGE, /* the id of a page of a file */
	RT_NEEDS_ANSWER,    /* the id of the node that was called */
	RT_NEEDS_LOG_ROOM,  /* 0 */
	RT_NEEDS_LOG_FLUSH, /* 0: its own records are to be durable */
};
/* What a task shows to other tasks while it works for a user. Begins as zeros. */
struct rt_shown {
	_Atomic uint64_t nodes; /* map of the nodes that are away and that it waits for */
	_Atomic uint64_t which;
	_Atomic uint32_t need; /* enum rt_need */
	/* pages that it has taken back from other nodes, to change or to read them; only rise */
	_Atomic uint32_t retaken_changed, retaken_read;
};
/* Sets where the calling task shows its waits; NULL: nowhere. Not in the simulator. */
void rt_task_shows(struct rt_shown *shown);
/* Shows that the calling task waits for these nodes (a map of ids); 0: for none any more. */
void rt_task_awaits(uint64_t nodes);
/* Shows that the calling task begins to wait for this. RT_NEEDS_NOTHING: the wait has ended. Call
 * it where a task is about to wait anyhow. Never waits. */
void rt_task_needs(enum rt_need need, uint64_t which);
/* Counts a page that the calling task takes back from another node. Never waits. */
void rt_task_retakes(bool to_change);
/* Reads what a task needs. Returns RT_NEEDS_NOTHING if that changes just now. Never waits. */
enum rt_need rt_shown_need(struct rt_shown *shown, uint64_t *which);
/* Returns the time of the next poll of such a wait; RT_FOREVER if no user can go away. */
uint64_t rt_task_asks_ns(void);
/* Runs the function of rt_task_before_wait. All waits in the runtime call it first, and so does a
 * task before a system call that may wait. */
void rt_about_to_wait(void);
/*
 * Keeps the calling task on that processor; RT_ANY_CPU undoes that. A hint, for a task that serves
 * callers on that processor. It has no effect where the process may not use the processor, nor in
 * the simulator.
 */
#define RT_ANY_CPU UINT32_MAX
void rt_task_on_cpu(unsigned cpu);
void rt_yield(void);
void rt_sleep_ns(uint64_t ns); /* waits */

/* ---- wait queues ---------------------------------------------------------- */

#define RT_FOREVER UINT64_MAX

/* Waits while *word == expected, until rt_wake(word), or until deadline_ns (of rt_now_ns). May
 * return early: callers loop. Returns 0 or -ETIMEDOUT. Waits. */
int rt_wait(_Atomic uint32_t *word, uint32_t expected, uint64_t deadline_ns);
/* Wakes up to `count` waiters of the word. Never waits. */
void rt_wake(_Atomic uint32_t *word, int count);

extern bool rt_simulated; /* set once at start */

/* Tells the simulator that a task holds a thing that other tasks may need. The simulator can check
 * that no task waits while it holds such (rt_sim_watch_waits). Costs nothing in the real runtime.
 */
void rt_holds_slow(const void *what, bool (*may)(const void *what));
void rt_lets_go_slow(const void *what);
void rt_awaits_slow(const void *what);
void rt_may_wait_slow(void);
/* Notes that the task holds it. If may(what) is true, the task may wait all the same. Mutexes do
 * this themselves. */
static inline void rt_holds(const void *what, bool (*may)(const void *what))
{
	if (unlikely(rt_simulated))
		rt_holds_slow(what, may);
}
/* Notes that it is released, perhaps by another task. */
static inline void rt_lets_go(const void *what)
{
	if (unlikely(rt_simulated))
		rt_lets_go_slow(what);
}
/* Notes that the next waits are for a lock that is held only for a moment, such as a mutex; NULL:
 * no more. */
static inline void rt_awaits(const void *what)
{
	if (unlikely(rt_simulated))
		rt_awaits_slow(what);
}
/* Notes that the caller may have to wait in a call below, though not now. */
static inline void rt_may_wait(void)
{
	if (unlikely(rt_simulated))
		rt_may_wait_slow();
}
/* For rt_holds: the task must not wait. */
static inline bool rt_never(const void *what)
{
	return false;
}

/* Three-state futex mutex: 0 free, 1 held, 2 held with waiters. Zero-initialised. */
struct rt_mutex {
	_Atomic uint32_t state;
};
void rt_mutex_lock_slow(struct rt_mutex *m); /* may wait */
void rt_mutex_unlock_slow(struct rt_mutex *m);
void rt_sched_point_slow(void);

/* A point at which the simulator may run another task (seeded). Latches call it when they are
 * taken, validated and released. Costs nothing in the real runtime. */
static inline void rt_sched_point(void)
{
	if (unlikely(rt_simulated))
		rt_sched_point_slow();
}

static inline bool rt_mutex_trylock(struct rt_mutex *m)
{
	uint32_t free_state = 0;
	bool taken;

	rt_sched_point();
	taken = atomic_compare_exchange_strong_explicit(
		&m->state, &free_state, 1, memory_order_acquire, memory_order_relaxed);
	if (unlikely(rt_simulated) && taken)
		rt_holds_slow(m, NULL);
	return taken;
}

static inline void rt_mutex_lock(struct rt_mutex *m)
{
	if (unlikely(!rt_mutex_trylock(m)))
		rt_mutex_lock_slow(m);
}

static inline void rt_mutex_unlock(struct rt_mutex *m)
{
	rt_lets_go(m);
	if (unlikely(atomic_exchange_explicit(&m->state, 0, memory_order_release) == 2))
		rt_mutex_unlock_slow(m);
}

/* A condition variable: a sequence word. Signal under or after the mutex. Zero-initialised. */
struct rt_cond {
	_Atomic uint32_t sequence;
};
/* Waits for a signal. Releases the mutex and takes it again; may return early. Returns 0 or
 * -ETIMEDOUT. Waits. */
int rt_cond_wait(struct rt_cond *c, struct rt_mutex *m, uint64_t deadline_ns);
void rt_cond_signal(struct rt_cond *c);
void rt_cond_broadcast(struct rt_cond *c);

/*
 * Returns true while a task that sleeps on a word must go on. Reads the word before it reads
 * `stopping`, because the stopping task changes it afterwards. A word read after the check may be
 * the changed one already.
 */
static inline bool rt_goes_on(
	const _Atomic bool *stopping, const _Atomic uint32_t *word, uint32_t *seen)
{
	*seen = atomic_load_explicit(word, memory_order_acquire);
	return !atomic_load_explicit(stopping, memory_order_acquire);
}

/*
 * A gate: at most `width` tasks are inside, in order of arrival. Use it for a resource that is held
 * long and taken again at once. The mutex above is not fair: the task that releases it may take it
 * again before a waiter is awake. All calls for a gate give the same width. Zero-initialised. It
 * must outlive each rt_gate_leave.
 */
struct rt_gate {
	_Atomic uint32_t tickets; /* tickets given; tasks enter in their order */
	_Atomic uint32_t left;    /* tasks that have left */
};
void rt_gate_wait(struct rt_gate *g, uint32_t ticket, uint32_t width); /* may wait */

/* Returns true if it is this ticket's turn. Later tickets may have gone through before its task
 * checks. */
static inline bool rt_gate_open(struct rt_gate *g, uint32_t ticket, uint32_t width)
{
	return (int32_t)(ticket - atomic_load_explicit(&g->left, memory_order_seq_cst)) <
	       (int32_t)width;
}

/* Enters the gate. Waits. */
static inline void rt_gate_enter(struct rt_gate *g, uint32_t width)
{
	uint32_t ticket = atomic_fetch_add_explicit(&g->tickets, 1, memory_order_seq_cst);

	rt_sched_point();
	if (unlikely(!rt_gate_open(g, ticket, width)))
		rt_gate_wait(g, ticket, width);
}

/* seq_cst: either this sees the ticket of the task that waits for `left` to change, or that task
 * sees the change. */
static inline void rt_gate_leave(struct rt_gate *g, uint32_t width)
{
	uint32_t left = atomic_fetch_add_explicit(&g->left, 1, memory_order_seq_cst) + 1;

	if (unlikely((int32_t)(atomic_load_explicit(&g->tickets, memory_order_seq_cst) -
			       left) >= (int32_t)width))
		rt_wake(&g->left, INT32_MAX);
	rt_sched_point();
}

/*
 * One step of a spin loop; `spins` counts up from 0 in the caller. Pauses, then
 * yields; in the simulator lets another task run at once.
 */
void rt_spin(unsigned *spins);

/*
 * ---- disks ---------------------------------------------------------------- A file or block
 * device opened O_DIRECT. Offsets, lengths and addresses are multiples of 512; pages use multiples
 * of 4096.
 */
struct rt_disk;

#define RT_DISK_READ_ONLY (1u << 0)
/* fail with -EBUSY if it is in use (flock, O_EXCL on devices) */
#define RT_DISK_EXCLUSIVE (1u << 1)

struct rt_disk_info {
	uint64_t size_bytes;
	uint32_t atomic_write_bytes; /* aligned writes of this size are never torn; at least 512 */
	bool is_block_device;
	bool read_only;
	/* Of a regular file, at the open: bytes that are allocated for it or free in its
	 * filesystem. If 0, that is not known, or it is no regular file. */
	uint64_t room_bytes;
};

/* If a flush of a real disk has failed, all later ones fail: it is not known which writes were
 * lost. */
enum rt_io_op { RT_IO_READ, RT_IO_WRITE, RT_IO_FLUSH };

/* One request. It and its memory belong to the caller, but must stay until rt_disk_wait returns. */
struct rt_io {
	enum rt_io_op op;
	bool after_previous; /* starts only when the previous request of the array has succeeded */
	uint64_t offset;     /* bytes */
	struct iovec *iov;   /* up to 256; total length a multiple of 512 */
	unsigned iov_count;
	int result; /* 0 or -errno; a short transfer is -EIO */
	/* internal to the runtime */
	struct iovec one; /* for rt_io_set */
	_Atomic uint32_t done;
	uint32_t expected;
	void *owner;
	struct rt_io *next;
};

int rt_disk_open(
	struct rt_disk **out, const char *path, unsigned flags, struct weft_error *err);
void rt_disk_close(struct rt_disk *disk);
void rt_disk_info(struct rt_disk *disk, struct rt_disk_info *out);
/* Registers memory of rt_alloc_pages for I/O (io_uring fixed buffers). A hint: failure is harmless.
 * The memory becomes resident; rt_free_pages ends this. */
void rt_disk_register(struct rt_disk *disk, void *base, size_t size_bytes);
/*
 * Starts all requests at once, in order of the array. They complete in any order, except in a chain
 * (after_previous). If a request of a chain fails, the later ones end with -ECANCELED. A chain has
 * at most 64 requests, and does not include the first of the array. Waits only for queue space.
 */
void rt_disk_submit(struct rt_disk *disk, struct rt_io *ios, unsigned count);
/* Waits until all requests have ended. Each has its result. Any task may wait for any request. */
void rt_disk_wait(struct rt_disk *disk, struct rt_io *ios, unsigned count);

/* Submits and waits. The cheapest way for one request or one chain: it runs on the calling task,
 * one system call for each request, without a queue. Waits. */
void rt_disk_run(struct rt_disk *disk, struct rt_io *ios, unsigned count);

/*
 * A disk that consists of functions, for example one behind a network. `run` does one request and
 * returns its result. It may wait, and is called by several tasks at a time. `close` frees the
 * owner.
 */
struct rt_disk_functions {
	int (*run)(void *owner, enum rt_io_op op, uint64_t offset,
		const struct iovec *iov, unsigned count);
	void (*close)(void *owner);
};
/* Makes such a disk. Returns 0 or -ENOMEM: then the owner stays the caller's. */
int rt_disk_make(struct rt_disk **out, const struct rt_disk_info *info,
	const struct rt_disk_functions *functions, void *owner);
/* Makes a disk of the bytes [offset, offset + size) of another one, which stays open for longer.
 * Returns 0, -ENOMEM or -EINVAL. */
int rt_disk_part(struct rt_disk **out, struct rt_disk *whole, uint64_t offset,
	uint64_t size_bytes);

/* Fills a request for one buffer. */
static inline void rt_io_set(
	struct rt_io *io, enum rt_io_op op, uint64_t offset, void *buf, size_t len_bytes)
{
	*io = (struct rt_io){.op = op, .offset = offset};
	io->one.iov_base = buf;
	io->one.iov_len = len_bytes;
	io->iov = NULL; /* NULL means &one */
	io->iov_count = op == RT_IO_FLUSH ? 0 : 1;
}

/* Do one request. Return 0 or a negative errno. Wait. */
int rt_disk_read(struct rt_disk *disk, uint64_t offset, void *buf, size_t len_bytes);
int rt_disk_write(
	struct rt_disk *disk, uint64_t offset, const void *buf, size_t len_bytes);
int rt_disk_flush(struct rt_disk *disk);

#endif
