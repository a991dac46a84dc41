/* SPDX-License-Identifier: Apache-2.0 */
/* Structures and functions that the files of the simulated runtime share. There is one thread:
 * nothing here is locked. */
#ifndef WEFT_RT_SIM_INTERNAL_H
#define WEFT_RT_SIM_INTERNAL_H

#include "engine/rt/rt_internal.h"
#include "engine/rt/rt_sim.h"

/* ---- stacks and contexts (sim_switch.c) ------------------------------------------ */

struct sim_context {
	void *sp;           /* while switched away from */
	char *stack;        /* from the pool; NULL: the thread's own */
	const void *bottom; /* of the stack, for AddressSanitizer */
	size_t bottom_size;
	void *fake_stack; /* AddressSanitizer's */
	void *fiber;      /* ThreadSanitizer's */
	void *ucontext;   /* on processors without a switch by hand */
};

/* A new context on a stack of its own, which calls entry() at the first switch. */
int sim_context_make(struct sim_context *c, void (*entry)(void));
/* Frees a context that does not run, and will not run again. */
void sim_context_free(struct sim_context *c);
/* Makes the context of the thread itself, for the way back. */
void sim_context_main(struct sim_context *c);
void sim_context_main_done(struct sim_context *c);
/* `dying`: `from` will never be switched to again. */
void sim_context_switch(struct sim_context *from, struct sim_context *to, bool dying);
/* Called first in entry(). `from` is the context that was switched away from. */
void sim_context_entered(struct sim_context *self, struct sim_context *from);
/* Gives pooled stacks back to the kernel. */
void sim_stacks_free(void);

/* ---- timers, tasks (sim_sched.c) ------------------------------------------------- */

struct sim_timer {
	uint64_t at;
	uint64_t order; /* among equal times */
	size_t slot;    /* in the heap, from 1; 0: not set */
	void (*fire)(struct sim_timer *timer);
};

void sim_timer_set(
	struct sim_timer *timer, uint64_t at, void (*fire)(struct sim_timer *));
void sim_timer_cancel(struct sim_timer *timer);

enum sim_task_state { SIM_RUNNING, SIM_RUNNABLE, SIM_BLOCKED, SIM_ENDED };

struct sim_task {
	struct rt_task base;
	enum sim_task_state state;
	bool detached; /* freed at its end, not by a join */
	bool timed_out;
	unsigned node;
	uint64_t id;
	size_t run_slot; /* in the array of runnable tasks */
	struct sim_context context;
	void (*fn)(void *);
	void *arg;
	struct sim_task *joiner;
	struct sim_timer timer;
	/* While blocked: the reason, and for rt_wait the word and the links of its bucket. */
	const char *reason;
	_Atomic uint32_t *word;
	uint32_t expected;
	struct sim_task *wait_next, **wait_link;
	struct sim_hold *holds; /* sim_hold.c */
	unsigned hold_count, hold_room;
	const void *awaits; /* a lock */
	/* All tasks of the node. */
	struct sim_task *node_next, **node_link;
};

struct sim_rng {
	uint64_t state;
};

uint64_t sim_rng_next(struct sim_rng *rng);
/* Draws evenly among 0 .. n - 1. */
uint64_t sim_rng_below(struct sim_rng *rng, uint64_t n);

/* ---- locks that tasks hold (sim_hold.c) ------------------------------------------ */

struct sim_hold;
void sim_holds(const void *what, bool (*may)(const void *what), const void *from);
void sim_lets_go(const void *what);
void sim_awaits(const void *what);
/* The current task waits, or may have to. Aborts if it must not. */
void sim_about_to_wait(void);
/* The task has ended, or was killed. */
void sim_holds_forget(struct sim_task *task);

/* ---- nodes and memory (sim_node.c) ----------------------------------------------- */

struct sim_crash_fn {
	void (*fn)(void *);
	void *arg;
	struct sim_crash_fn *next;
};

struct sim_chunk;

#define SIM_TASKS_MAX 4096u

struct sim_node {
	char name[RT_TASK_NAME_BYTES];
	bool dead;
	struct sim_task *tasks;
	unsigned running_tasks;   /* not ended */
	_Atomic uint32_t changed; /* rises when the node dies or its last task ends */
	struct sim_chunk *chunks;
	size_t memory_bytes;
	struct sim_crash_fn *crash_fns; /* newest first */
	uint64_t index_used[SIM_TASKS_MAX / 64];
};

void *sim_alloc(size_t size);
void sim_free(void *p);
void *sim_alloc_pages(size_t size);
void sim_free_pages(void *p, size_t size);
void sim_on_crash(void (*fn)(void *), void *arg);
void sim_on_crash_forget(void (*fn)(void *), void *arg);
/* Runs crash functions. Frees the memory, and all tasks except the current one. */
void sim_node_clear(unsigned node);

/* ---- disks (sim_disk.c, sim_image.c) --------------------------------------------- */

int sim_disk_open(
	struct rt_disk **out, const char *path, unsigned flags, struct weft_error *err);
void sim_disk_close(struct rt_disk *disk);
void sim_disk_register(struct rt_disk *disk, void *base, size_t size);
void sim_disk_submit(struct rt_disk *disk, struct rt_io *ios, unsigned count);
void sim_disk_wait(struct rt_disk *disk, struct rt_io *ios, unsigned count);
void sim_disk_run(struct rt_disk *disk, struct rt_io *ios, unsigned count);
/* The node loses power: its requests and handles vanish, and the disks that it used settle. */
void sim_disks_power_cut(unsigned node);
void sim_disks_free(void);

/* The bytes of a disk. Bytes that were never written are zeros and take no memory. */
struct sim_image {
	uint64_t size;
	uint8_t ***leaves;
};

int sim_image_make(struct sim_image *image, uint64_t size);
void sim_image_free(struct sim_image *image);
void sim_image_read(
	const struct sim_image *image, uint64_t offset, void *buf, size_t len);
/* buf NULL: zeros */
void sim_image_write(
	struct sim_image *image, uint64_t offset, const void *buf, size_t len);
/* Makes `to`, of the same size, equal to `from`. */
void sim_image_copy(struct sim_image *to, const struct sim_image *from);

/* ---- streams (sim_socket.c) ------------------------------------------------------------ */

struct sim_net;
/* The node loses power: its sockets vanish. */
void sim_sockets_power_cut(unsigned node);
void sim_net_free(void);

/* ---- the world ------------------------------------------------------------------- */

#define SIM_WAIT_BUCKETS 256u

struct sim {
	uint64_t seed;
	struct rt_sim_options options;
	/* Separate sequences, so that one more disk request does not change all that
	 * follows. */
	struct sim_rng schedule_rng, disk_rng, task_rng;
	uint64_t now, steps, trace;

	struct sim_context main;
	struct sim_task *current; /* NULL while clearing up */
	struct sim_task
		*grave; /* ended or killed on its own stack: freed after the switch */
	struct sim_context *switched_from;
	bool looking; /* the current task looks at the world: no other runs */
	uint64_t last_task_id;
	struct sim_task **runnable;
	size_t runnable_count, runnable_room;
	struct sim_timer **timers; /* a binary heap from 1 */
	size_t timer_count, timer_room;
	uint64_t timer_order;
	struct sim_task *waiting[SIM_WAIT_BUCKETS];
	bool watches;      /* checks the locks that tasks hold while they wait */
	unsigned awaiting; /* tasks that wait for locks */

	int (*fn)(void *);
	void *arg;
	int result;

	struct sim_node *nodes[RT_SIM_NODES_MAX];
	unsigned node_count;
	unsigned crashing; /* while crash functions run: the node; else UINT32_MAX */
	uint64_t allocs, alloc_fail_at;
	struct rt_sim_disk *disks;
	struct sim_net *net; /* NULL until a socket is made */
};

extern struct sim *sim;

/* The node that the running code belongs to. */
unsigned sim_current_node(void);
/* Creates a runnable task. */
int sim_task_new(struct sim_task **out, unsigned node, const char *name,
	void (*fn)(void *), void *arg);
/* Runs tasks until one of them switches back to `from`. */
void sim_sched_start(struct sim_context *from);
/* Frees a task that will not run again. */
void sim_task_free(struct sim_task *task);
/* Gives the processor away for good; the current task is freed. */
_Noreturn void sim_task_vanish(void);
int sim_wait(_Atomic uint32_t *word, uint32_t expected, uint64_t deadline_ns);
int sim_wake_quietly(_Atomic uint32_t *word, int count);
void sim_task_on_cpu(unsigned cpu);
void sim_yield(void);
/* malloc that the simulator itself cannot do without. */
void *sim_own_alloc(size_t size);

#endif
