/* SPDX-License-Identifier: Apache-2.0 */
/* The functions of rt.h, passed on to the selected runtime. From the start of the process that is
 * the real one. rt_sim_run selects the simulated one while it runs. */
#include "engine/rt/rt_internal.h"

static const struct rt_ops *selected = &rt_real_ops;
bool rt_simulated;

void rt_select(const struct rt_ops *ops, bool simulated)
{
	selected = ops;
	rt_simulated = simulated;
}

const struct rt_ops *rt_selected(void)
{
	return selected;
}

uint64_t rt_now_ns(void)
{
	return selected->now_ns();
}

int64_t rt_wall_ns(void)
{
	return selected->wall_ns();
}

uint64_t rt_random(void)
{
	return selected->random();
}

void rt_random_bytes(void *buf, size_t len)
{
	selected->random_bytes(buf, len);
}

void *rt_alloc(size_t size_bytes)
{
	return selected->alloc(size_bytes);
}

void rt_free(void *p)
{
	if (p)
		selected->free(p);
}

void *rt_alloc_pages(size_t size_bytes)
{
	return selected->alloc_pages(size_bytes);
}

void rt_free_pages(void *p, size_t size_bytes)
{
	if (p)
		selected->free_pages(p, size_bytes);
}

void rt_on_crash(void (*fn)(void *), void *arg)
{
	selected->on_crash(fn, arg);
}

void rt_on_crash_forget(void (*fn)(void *), void *arg)
{
	selected->on_crash_forget(fn, arg);
}

int rt_task_spawn(struct rt_task **out, const char *name, void (*fn)(void *), void *arg)
{
	return selected->task_spawn(out, name, fn, arg);
}

void rt_task_join(struct rt_task *task)
{
	selected->task_join(task);
}

unsigned rt_task_index(void)
{
	return selected->task_index();
}

void rt_task_on_cpu(unsigned cpu)
{
	selected->task_on_cpu(cpu);
}

void rt_yield(void)
{
	selected->yield();
}

/* The function that the calling task must run before it waits. Real tasks are threads. */
static __thread struct {
	void (*fn)(void *);
	void *arg;
} before_wait;

void rt_task_before_wait(void (*fn)(void *), void *arg)
{
	before_wait.fn = fn;
	before_wait.arg = arg;
}

void rt_about_to_wait(void)
{
	void (*fn)(void *) = before_wait.fn;

	if (likely(!fn))
		return;
	before_wait.fn = NULL;
	fn(before_wait.arg);
}

#define ASKS_NS 250000000ull

static __thread struct {
	bool (*gone)(void *arg);
	void *arg;
} served;

void rt_task_serves(bool (*gone)(void *arg), void *arg)
{
	served.gone = gone;
	served.arg = arg;
}

bool rt_task_unwanted(void)
{
	return served.gone && served.gone(served.arg);
}

static __thread struct rt_shown *shown_by;

void rt_task_shows(struct rt_shown *shown)
{
	shown_by = shown;
}

void rt_task_awaits(uint64_t nodes)
{
	if (shown_by)
		atomic_store_explicit(&shown_by->nodes, nodes, memory_order_relaxed);
}

/* A reader that sees the new `which` sees, by the release of it, that the old need is over. */
void rt_task_needs(enum rt_need need, uint64_t which)
{
	if (!shown_by)
		return;
	atomic_store_explicit(&shown_by->need, RT_NEEDS_NOTHING, memory_order_relaxed);
	atomic_store_explicit(&shown_by->which, which, memory_order_release);
	atomic_store_explicit(&shown_by->need, need, memory_order_release);
}

void rt_task_retakes(bool to_change)
{
	_Atomic uint32_t *count;

	if (!shown_by)
		return;
	count = to_change ? &shown_by->retaken_changed : &shown_by->retaken_read;
	atomic_store_explicit(count,
		atomic_load_explicit(count, memory_order_relaxed) + 1,
		memory_order_relaxed);
}

enum rt_need rt_shown_need(struct rt_shown *shown, uint64_t *which)
{
	uint32_t need = atomic_load_explicit(&shown->need, memory_order_acquire);

	*which = atomic_load_explicit(&shown->which, memory_order_acquire);
	return atomic_load_explicit(&shown->need, memory_order_relaxed) == need
		       ? (enum rt_need)need
		       : RT_NEEDS_NOTHING;
}

uint64_t rt_task_asks_ns(void)
{
	return served.gone ? rt_now_ns() + ASKS_NS : RT_FOREVER;
}

void rt_sleep_ns(uint64_t ns)
{
	rt_about_to_wait();
	selected->sleep_ns(ns);
}

void rt_spin(unsigned *spins)
{
	selected->spin(spins);
}

void rt_sched_point_slow(void)
{
	selected->sched_point();
}

void rt_holds_slow(const void *what, bool (*may)(const void *what))
{
	selected->holds(what, may, __builtin_return_address(0));
}

void rt_lets_go_slow(const void *what)
{
	selected->lets_go(what);
}

void rt_awaits_slow(const void *what)
{
	selected->awaits(what);
}

void rt_may_wait_slow(void)
{
	selected->may_wait();
}

int rt_wait(_Atomic uint32_t *word, uint32_t expected, uint64_t deadline_ns)
{
	rt_about_to_wait();
	return selected->wait(word, expected, deadline_ns);
}

void rt_wake(_Atomic uint32_t *word, int count)
{
	selected->wake(word, count);
}

int rt_wake_counted(_Atomic uint32_t *word, int count)
{
	return selected->wake(word, count);
}

int rt_disk_open(
	struct rt_disk **out, const char *path, unsigned flags, struct weft_error *err)
{
	return selected->disk_open(out, path, flags, err);
}

void rt_disk_close(struct rt_disk *disk)
{
	if (disk && disk->functions)
		rt_made_close(disk);
	else if (disk)
		selected->disk_close(disk);
}

void rt_disk_info(struct rt_disk *disk, struct rt_disk_info *out)
{
	*out = disk->info;
}

void rt_disk_register(struct rt_disk *disk, void *base, size_t size_bytes)
{
	if (!disk->functions)
		selected->disk_register(disk, base, size_bytes);
}

void rt_disk_submit(struct rt_disk *disk, struct rt_io *ios, unsigned count)
{
	rt_about_to_wait();
	if (disk->functions)
		rt_made_run(disk, ios, count);
	else
		selected->disk_submit(disk, ios, count);
}

void rt_disk_wait(struct rt_disk *disk, struct rt_io *ios, unsigned count)
{
	rt_about_to_wait();
	if (!disk->functions)
		selected->disk_wait(disk, ios, count);
}

void rt_disk_run(struct rt_disk *disk, struct rt_io *ios, unsigned count)
{
	rt_about_to_wait();
	if (disk->functions)
		rt_made_run(disk, ios, count);
	else
		selected->disk_run(disk, ios, count);
}

static int disk_one(
	struct rt_disk *disk, enum rt_io_op op, uint64_t offset, void *buf, size_t len)
{
	struct rt_io io;

	rt_io_set(&io, op, offset, buf, len);
	rt_disk_run(disk, &io, 1);
	return io.result;
}

int rt_disk_read(struct rt_disk *disk, uint64_t offset, void *buf, size_t len_bytes)
{
	return disk_one(disk, RT_IO_READ, offset, buf, len_bytes);
}

int rt_disk_write(
	struct rt_disk *disk, uint64_t offset, const void *buf, size_t len_bytes)
{
	return disk_one(disk, RT_IO_WRITE, offset, (void *)buf, len_bytes);
}

int rt_disk_flush(struct rt_disk *disk)
{
	return disk_one(disk, RT_IO_FLUSH, 0, NULL, 0);
}
