/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tasks of the real runtime are threads. Also its clocks and random numbers.
 *
 * Threads of libfuse, and main, may use the runtime too. They get their task index at first use,
 * and give it back when they end.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "engine/rt/real.h"

#define NSEC_PER_SEC 1000000000ull
/* Address space only; sanitizers make frames several times as large. */
#define STACK_BYTES (4u << 20)

/* ---- clocks --------------------------------------------------------------- */

static uint64_t clock_ns(clockid_t clock)
{
	struct timespec t;

	WEFT_ASSERT(clock_gettime(clock, &t) == 0);
	return (uint64_t)t.tv_sec * NSEC_PER_SEC + (uint64_t)t.tv_nsec;
}

uint64_t real_now_ns(void)
{
	return clock_ns(CLOCK_MONOTONIC);
}

int64_t real_wall_ns(void)
{
	/* The latest time that was returned. If the clock is set back, the time stands still until
	 * the clock has passed it. */
	static _Atomic int64_t latest;
	int64_t now = (int64_t)clock_ns(CLOCK_REALTIME);
	int64_t seen = atomic_load_explicit(&latest, memory_order_relaxed);

	while (now > seen)
		if (atomic_compare_exchange_weak_explicit(&latest, &seen, now,
			    memory_order_relaxed, memory_order_relaxed))
			return now;
	return seen;
}

void real_sleep_ns(uint64_t ns)
{
	uint64_t now = real_now_ns();
	uint64_t until = ns > UINT64_MAX / 2 - now ? UINT64_MAX / 2 : now + ns;
	struct timespec t = {
		.tv_sec = (time_t)(until / NSEC_PER_SEC),
		.tv_nsec = (long)(until % NSEC_PER_SEC),
	};

	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR)
		;
}

/* ---- randomness ------------------------------------------------------------ */

void real_random_bytes(void *buf, size_t len)
{
	char *p = buf;

	while (len) {
		ssize_t n = getrandom(p, len, 0);

		if (n < 0) {
			WEFT_ASSERT(errno == EINTR);
			continue;
		}
		p += n;
		len -= (size_t)n;
	}
}

/* SplitMix64, one sequence per thread. */
uint64_t real_random(void)
{
	static __thread uint64_t state;
	static __thread bool seeded;
	uint64_t z;

	if (unlikely(!seeded)) {
		real_random_bytes(&state, sizeof(state));
		seeded = true;
	}
	z = state += 0x9e3779b97f4a7c15ull;
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
	return z ^ (z >> 31);
}

/* ---- task indexes: the smallest free number, reused --------------------------- */

#define INDEX_MAX  65536u
#define INDEX_NONE UINT32_MAX

static struct {
	pthread_mutex_t lock; /* protects used */
	uint64_t used[INDEX_MAX / 64];
	pthread_once_t once;
	pthread_key_t key; /* gives an index back at the end of its thread */
} indexes = {.lock = PTHREAD_MUTEX_INITIALIZER, .once = PTHREAD_ONCE_INIT};

static __thread unsigned own_index = INDEX_NONE;

static void index_give_back(void *value)
{
	unsigned index = (unsigned)((uintptr_t)value - 1);

	own_index = INDEX_NONE;
	pthread_mutex_lock(&indexes.lock);
	indexes.used[index / 64] &= ~(1ull << (index % 64));
	pthread_mutex_unlock(&indexes.lock);
}

static void index_key_create(void)
{
	WEFT_ASSERT(pthread_key_create(&indexes.key, index_give_back) == 0);
}

static unsigned index_take(void)
{
	unsigned index = INDEX_NONE;

	pthread_once(&indexes.once, index_key_create);
	pthread_mutex_lock(&indexes.lock);
	for (unsigned i = 0; i < INDEX_MAX / 64; i++) {
		if (indexes.used[i] == UINT64_MAX)
			continue;
		index = i * 64 + (unsigned)__builtin_ctzll(~indexes.used[i]);
		indexes.used[i] |= 1ull << (index % 64);
		break;
	}
	pthread_mutex_unlock(&indexes.lock);
	WEFT_ASSERT(index != INDEX_NONE);
	WEFT_ASSERT(
		pthread_setspecific(indexes.key, (void *)((uintptr_t)index + 1)) == 0);
	return index;
}

unsigned real_task_index(void)
{
	if (unlikely(own_index == INDEX_NONE))
		own_index = index_take();
	return own_index;
}

/* ---- tasks ------------------------------------------------------------------- */

struct real_task {
	struct rt_task base;
	pthread_t thread;
	void (*fn)(void *);
	void *arg;
};

static void *task_main(void *arg)
{
	struct real_task *task = arg;

	task->fn(task->arg);
	return NULL;
}

int real_task_spawn(struct rt_task **out, const char *name, void (*fn)(void *), void *arg)
{
	struct real_task *task = calloc(1, sizeof(*task));
	sigset_t all, old;
	pthread_attr_t attr;
	int rc;

	if (!task)
		return -ENOMEM;
	strncpy(task->base.name, name, sizeof(task->base.name) - 1);
	task->fn = fn;
	task->arg = arg;
	rc = pthread_attr_init(&attr);
	if (rc)
		goto out_free;
	rc = pthread_attr_setstacksize(&attr, STACK_BYTES);
	if (rc)
		goto out_attr;
	/* Signals are for the threads that want them, never for a task. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	rc = pthread_create(&task->thread, &attr, task_main, task);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (rc)
		goto out_attr;
	pthread_setname_np(task->thread, task->base.name);
	pthread_attr_destroy(&attr);
	*out = &task->base;
	return 0;

out_attr:
	pthread_attr_destroy(&attr);
out_free:
	free(task);
	return -rc;
}

void real_task_join(struct rt_task *base)
{
	struct real_task *task = container_of(base, struct real_task, base);

	WEFT_ASSERT(pthread_join(task->thread, NULL) == 0);
	free(task);
}

void real_task_on_cpu(unsigned cpu)
{
	/* The processors that the task could run on before it was first kept on one. */
	static __thread cpu_set_t before;
	static __thread bool kept;
	cpu_set_t only;

	if (!kept && (cpu == RT_ANY_CPU || sched_getaffinity(0, sizeof(before), &before)))
		return;
	CPU_ZERO(&only);
	if (cpu < CPU_SETSIZE && CPU_ISSET(cpu, &before))
		CPU_SET(cpu, &only);
	else
		only = before;
	kept = sched_setaffinity(0, sizeof(only), &only) == 0 && cpu != RT_ANY_CPU;
}

void real_yield(void)
{
	sched_yield();
}

/* Short waits stay on the processor. Longer ones give it to others, and at last sleep a little. */
void real_spin(unsigned *spins)
{
	unsigned n = (*spins)++;

	if (n < 64) {
#if defined(__x86_64__)
		__builtin_ia32_pause();
#elif defined(__aarch64__)
		__asm__ volatile("yield");
#endif
	} else if (n < 1024) {
		sched_yield();
	} else {
		real_sleep_ns(50000);
	}
}

/* ---- the table ------------------------------------------------------------------ */

static void ignore_crash(void (*fn)(void *), void *arg)
{
}

static void no_sched_point(void)
{
}

const struct rt_ops rt_real_ops = {
	.now_ns = real_now_ns,
	.wall_ns = real_wall_ns,
	.random = real_random,
	.random_bytes = real_random_bytes,
	.alloc = real_alloc,
	.free = real_free,
	.alloc_pages = real_alloc_pages,
	.free_pages = real_free_pages,
	.on_crash = ignore_crash,
	.on_crash_forget = ignore_crash,
	.task_spawn = real_task_spawn,
	.task_join = real_task_join,
	.task_index = real_task_index,
	.task_on_cpu = real_task_on_cpu,
	.yield = real_yield,
	.sleep_ns = real_sleep_ns,
	.spin = real_spin,
	.sched_point = no_sched_point,
	.wait = real_wait,
	.wake = real_wake,
	.disk_open = real_disk_open,
	.disk_close = real_disk_close,
	.disk_register = real_disk_register,
	.disk_submit = real_disk_submit,
	.disk_wait = real_disk_wait,
	.disk_run = real_disk_run,
	.sockets = &rt_real_socket_ops,
};

int rt_stdio_open(void)
{
	int fd;

	do {
		fd = open("/dev/null", O_RDWR);
		if (fd < 0)
			return -errno;
	} while (fd <= STDERR_FILENO);
	close(fd);
	return 0;
}

/* A task that polls waits for some microseconds. Linux may add 50 more, so that timers end
 * together. The tasks made from here on inherit the smaller slack. */
#define TIMER_SLACK_NS 1000ul

int rt_real_start(void)
{
	(void)prctl(PR_SET_TIMERSLACK, TIMER_SLACK_NS);
	rt_select(&rt_real_ops, false);
	return 0;
}
