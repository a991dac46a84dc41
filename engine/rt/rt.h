/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The runtime: tasks, wait queues, time, randomness, memory, disks.
 *
 * The only code that touches threads, clocks, sockets or rings is behind this
 * header. Two runtimes stand behind it, chosen once per process before anything
 * else runs: the real one (rt_real_start: threads, futexes, io_uring) and the
 * simulated one (rt_sim.h: one thread, cooperative tasks, virtual time, seeded
 * randomness, disks that fail). Everything above behaves the same on both.
 *
 * Tasks of the simulated runtime share a thread, so nothing above this layer
 * may use __thread across a call that can wait; use rt_task_index() instead.
 *
 * Functions that can wait say so. Errors are negative errno values.
 */
#ifndef WEFT_RT_H
#define WEFT_RT_H

#include <stdatomic.h>
#include <sys/uio.h>

#include "engine/common/base.h"

/* ---- start and stop ---------------------------------------------------- */

/* Selects the real runtime. Call once. Returns 0 or -errno. */
int rt_real_start(void);
/*
 * First thing in a main: descriptors 0, 1 and 2 exist, on /dev/null where they were closed.
 * Otherwise a store could get number 2, and messages would be written to it. 0 or -errno.
 */
int rt_stdio_open(void);

/* ---- time and randomness ------------------------------------------------ */

uint64_t rt_now_ns(void); /* monotonic */
int64_t rt_wall_ns(void); /* since 1970, UTC; never decreases per process */
uint64_t rt_random(void); /* fast, not for keys */
void rt_random_bytes(void *buf, size_t len); /* for keys and UUIDs */

/* ---- memory --------------------------------------------------------------
 * All memory above this layer comes from here: the simulator frees what a
 * crashed node left and fails chosen allocations. NULL when there is none.
 */
void *rt_alloc(size_t size_bytes); /* zeroed, 64-byte aligned */
void rt_free(void *p);             /* NULL is fine */
void *rt_alloc_pages(
	size_t size_bytes); /* zeroed, page aligned, for I/O; may be huge pages */
void rt_free_pages(void *p, size_t size_bytes);
/*
 * For what a library holds beside rt memory (an OpenSSL context): the simulator calls
 * fn(arg) when the caller's node loses power. fn must not wait. Forget the same pair
 * when it is released in order. The real runtime ignores both.
 */
void rt_on_crash(void (*fn)(void *), void *arg);
void rt_on_crash_forget(void (*fn)(void *), void *arg);

/* ---- tasks ---------------------------------------------------------------- */

struct rt_task;

/* Starts fn(arg) as a task. The name (copied, 15 bytes) shows in tools. */
int rt_task_spawn(struct rt_task **out, const char *name, void (*fn)(void *), void *arg);
/* Waits until the task's function has returned and frees it. */
void rt_task_join(struct rt_task *task);
/* A small number, the same for the whole life of the calling task, for striping. */
unsigned rt_task_index(void);
/*
 * fn(arg) runs once, when the calling task is next about to wait in the runtime (for a
 * word, a disk, time); it must not wait itself. NULL takes it back. For a task that
 * serves others and hands that over before it stands still. Not in the simulator.
 */
void rt_task_before_wait(void (*fn)(void *), void *arg);
/*
 * Whom the calling task serves may go away, which gone(arg) says; it must not wait. NULL: there
 * is nobody, or what the task does must end as it should. Not in the simulator.
 */
void rt_task_serves(bool (*gone)(void *arg), void *arg);
/*
 * Nobody waits any more for what the calling task does. What waits for something that may
 * never come, holds nothing, and can fail, asks now and then, and ends with -EINTR.
 */
bool rt_task_unwanted(void);
/*
 * The calling task's word for rt_task_awaits, which others may read; NULL: it has none. Not in the
 * simulator.
 */
void rt_task_shows(_Atomic uint64_t *word);
/* Shows that the calling task waits for these nodes (bits of their ids); 0: for none any more. */
void rt_task_awaits(uint64_t nodes);
/* When such a wait is to ask next: RT_FOREVER where there is nobody to go away. */
uint64_t rt_task_asks_ns(void);
/* What may wait in the runtime calls it first; so does a task before a system call that may. */
void rt_about_to_wait(void);
/*
 * Keeps the calling task on that processor; RT_ANY_CPU lets it go where it could before.
 * A hint, for a task that serves who asks on that processor: changes nothing where the
 * process may not use it, nor in the simulator.
 */
#define RT_ANY_CPU UINT32_MAX
void rt_task_on_cpu(unsigned cpu);
void rt_yield(void);
void rt_sleep_ns(uint64_t ns); /* waits */

/* ---- wait queues ---------------------------------------------------------- */

#define RT_FOREVER UINT64_MAX

/*
 * Waits while *word == expected, until rt_wake(word), or until deadline_ns (of
 * rt_now_ns). May return early: callers loop. 0, or -ETIMEDOUT.
 */
int rt_wait(_Atomic uint32_t *word, uint32_t expected, uint64_t deadline_ns);
/* Wakes up to `count` waiters of the word. */
void rt_wake(_Atomic uint32_t *word, int count);

extern bool rt_simulated; /* set once at start */

/*
 * What a task holds that others may need, for the simulator, which can watch that nobody waits
 * with it (rt_sim_watch_waits). Free in the real runtime.
 */
void rt_holds_slow(const void *what, bool (*may)(const void *what));
void rt_lets_go_slow(const void *what);
void rt_awaits_slow(const void *what);
void rt_may_wait_slow(void);
/* The task holds it; may(what): it may wait all the same. Mutexes say so by themselves. */
static inline void rt_holds(const void *what, bool (*may)(const void *what))
{
	if (unlikely(rt_simulated))
		rt_holds_slow(what, may);
}
/* It is let go of, maybe by another task. */
static inline void rt_lets_go(const void *what)
{
	if (unlikely(rt_simulated))
		rt_lets_go_slow(what);
}
/* The waits from here on are for what is held for a moment only, as a mutex; NULL: no more. */
static inline void rt_awaits(const void *what)
{
	if (unlikely(rt_simulated))
		rt_awaits_slow(what);
}
/* The caller may have to wait below, though not now. */
static inline void rt_may_wait(void)
{
	if (unlikely(rt_simulated))
		rt_may_wait_slow();
}
/* For rt_holds: it must not. */
static inline bool rt_never(const void *what)
{
	return false;
}

/* Three-state futex mutex: 0 free, 1 held, 2 held with waiters. Zero-initialised. */
struct rt_mutex {
	_Atomic uint32_t state;
};
void rt_mutex_lock_slow(struct rt_mutex *m); /* waits */
void rt_mutex_unlock_slow(struct rt_mutex *m);
void rt_sched_point_slow(void);

/*
 * A place where, in the simulator, another task may run (seeded). Latches call
 * it when they are taken, validated and released. Free in the real runtime.
 */
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

/* Condition: a sequence word. Signal under or after the mutex. Zero-initialised. */
struct rt_cond {
	_Atomic uint32_t sequence;
};
/* Waits; drops and retakes the mutex; may return early. 0 or -ETIMEDOUT. */
int rt_cond_wait(struct rt_cond *c, struct rt_mutex *m, uint64_t deadline_ns);
void rt_cond_signal(struct rt_cond *c);
void rt_cond_broadcast(struct rt_cond *c);

/*
 * For a task that works until `stopping`, and sleeps on a word: reads that first, since who stops it
 * changes it after. A word that is read behind the look may be the changed one already.
 */
static inline bool rt_goes_on(
	const _Atomic bool *stopping, const _Atomic uint32_t *word, uint32_t *seen)
{
	*seen = atomic_load_explicit(word, memory_order_acquire);
	return !atomic_load_explicit(stopping, memory_order_acquire);
}

/*
 * A gate: `width` tasks at the most are inside, let in in the order in which they came.
 * For what is held long and taken again at once: the mutex above is not fair, whoever
 * lets go of it may have it again before a waiter is awake. All calls for a gate give the
 * same width. Zero-initialised. It must outlive each rt_gate_leave.
 */
struct rt_gate {
	_Atomic uint32_t tickets; /* drawn; in their order tasks are let in */
	_Atomic uint32_t left;    /* tasks that have gone through */
};
void rt_gate_wait(struct rt_gate *g, uint32_t ticket, uint32_t width); /* waits */

/* Is this ticket's turn? Later ones may have gone through before its task looks. */
static inline bool rt_gate_open(struct rt_gate *g, uint32_t ticket, uint32_t width)
{
	return (int32_t)(ticket - atomic_load_explicit(&g->left, memory_order_seq_cst)) <
	       (int32_t)width;
}

/* Waits. */
static inline void rt_gate_enter(struct rt_gate *g, uint32_t width)
{
	uint32_t ticket = atomic_fetch_add_explicit(&g->tickets, 1, memory_order_seq_cst);

	rt_sched_point();
	if (unlikely(!rt_gate_open(g, ticket, width)))
		rt_gate_wait(g, ticket, width);
}

/*
 * seq_cst: either this finds the ticket of whoever waits for `left` to change, or its
 * task finds it changed.
 */
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

/* ---- disks ----------------------------------------------------------------
 * A file or block device opened O_DIRECT. Offsets, lengths and addresses are
 * multiples of 512; pages use multiples of 4096.
 */
struct rt_disk;

#define RT_DISK_READ_ONLY (1u << 0)
/* fail with -EBUSY when in use (flock, O_EXCL on devices) */
#define RT_DISK_EXCLUSIVE (1u << 1)

struct rt_disk_info {
	uint64_t size_bytes;
	uint32_t atomic_write_bytes; /* writes of this size, aligned, are never torn; 512
					at least */
	bool is_block_device;
	bool read_only;
	/* Of a regular file, at the open: bytes that its filesystem has allocated for it or
	 * has free for everyone. 0: not known, or not a regular file. */
	uint64_t room_bytes;
};

/* Once a flush of a real disk has failed, every later one fails: what it dropped is not
 * known. */
enum rt_io_op { RT_IO_READ, RT_IO_WRITE, RT_IO_FLUSH };

/* One request. The caller owns it and its memory until rt_disk_wait returns. */
struct rt_io {
	enum rt_io_op op;
	bool after_previous; /* starts only when the one before it in the array has ended
				well */
	uint64_t offset;     /* bytes */
	struct iovec *iov;   /* up to 256; total length a multiple of 512 */
	unsigned iov_count;
	int result; /* 0 or -errno; a short transfer is -EIO */
	/* the runtime's own */
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
/*
 * Registers memory of rt_alloc_pages for I/O (io_uring fixed buffers). A hint: failure is
 * harmless. It makes the memory resident; rt_free_pages takes it back.
 */
void rt_disk_register(struct rt_disk *disk, void *base, size_t size_bytes);
/*
 * Starts all requests at once, in order of the array; they complete in any order
 * except where after_previous says otherwise (a chain's later members end with
 * -ECANCELED when an earlier one failed; a chain has at most 64 members, and the
 * first of the array is in none). May wait for queue space only.
 */
void rt_disk_submit(struct rt_disk *disk, struct rt_io *ios, unsigned count);
/* Waits until all have ended; results are in each. Any task may wait for any request. */
void rt_disk_wait(struct rt_disk *disk, struct rt_io *ios, unsigned count);

/*
 * Submit and wait in one. The cheapest way for one request or one chain: it runs on the
 * calling task, one system call each, with no queue between.
 */
void rt_disk_run(struct rt_disk *disk, struct rt_io *ios, unsigned count);

/*
 * A disk that is made of functions: one behind a network, say. `run` does one request and
 * returns what became of it; it waits, and is called by several tasks at a time. `close`
 * ends the owner.
 */
struct rt_disk_functions {
	int (*run)(void *owner, enum rt_io_op op, uint64_t offset,
		const struct iovec *iov, unsigned count);
	void (*close)(void *owner);
};
/* 0 or -ENOMEM: then the owner stays the caller's. */
int rt_disk_make(struct rt_disk **out, const struct rt_disk_info *info,
	const struct rt_disk_functions *functions, void *owner);
/* Bytes [offset, offset + size) of another disk, which stays open for longer. 0, -ENOMEM,
 * -EINVAL. */
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

/* One request, waited for. 0 or -errno. All wait. */
int rt_disk_read(struct rt_disk *disk, uint64_t offset, void *buf, size_t len_bytes);
int rt_disk_write(
	struct rt_disk *disk, uint64_t offset, const void *buf, size_t len_bytes);
int rt_disk_flush(struct rt_disk *disk);

#endif
