/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The background writer. It flushes records that no task flushes within the flush interval. It
 * drains the buffer when that is half full, so that reservers seldom wait.
 *
 * It sleeps without polling. An appender reads `nap` under the lock that it holds anyway. It wakes
 * the writer from its idle sleep, or from a timed one when the buffer is half full. The writer goes
 * idle under the same lock, and only if nothing waits to be written.
 */
#include "engine/log/log_internal.h"

static void nap_set(struct log *log, enum log_nap nap)
{
	atomic_store_explicit(&log->nap, nap, memory_order_relaxed);
}

/* How to sleep now; NAP_AWAKE: not at all. */
static enum log_nap nap_begin(struct log *log)
{
	enum log_nap nap = NAP_TIMED;
	uint64_t waiting;

	rt_mutex_lock(&log->append_lock);
	waiting = atomic_load_explicit(&log->closed_position, memory_order_relaxed) +
		  log->payload -
		  atomic_load_explicit(&log->written_position, memory_order_acquire);
	if (log->stop)
		nap = NAP_AWAKE;
	else if (log_is_failed(log) || waiting == 0)
		nap = NAP_IDLE;
	else if (waiting > log->buffer_bytes / 2)
		nap = NAP_AWAKE;
	nap_set(log, nap);
	rt_mutex_unlock(&log->append_lock);
	return nap;
}

/* Returns true if the writer must end. */
static bool nap_end(struct log *log)
{
	bool stop;

	rt_mutex_lock(&log->append_lock);
	nap_set(log, NAP_AWAKE);
	stop = log->stop;
	rt_mutex_unlock(&log->append_lock);
	return stop;
}

static void nap_sleep(struct log *log, enum log_nap nap)
{
	uint64_t deadline = RT_FOREVER;

	if (nap == NAP_TIMED && log->flush_interval_ns != RT_FOREVER)
		deadline = rt_now_ns() + log->flush_interval_ns;
	while (atomic_load_explicit(&log->nap, memory_order_acquire) == nap)
		if (rt_wait(&log->nap, nap, deadline) != 0)
			return;
}

static void background_run(void *arg)
{
	struct log *log = arg;

	for (;;) {
		enum log_nap nap = nap_begin(log);

		if (nap != NAP_AWAKE)
			nap_sleep(log, nap);
		if (nap_end(log))
			return;
		/* Woken from idle by the first record: its interval begins now. An error
		 * is logged where it happens, and the writer is idle from then on. */
		if (nap != NAP_IDLE)
			log_flush(log, log_end(log));
	}
}

int background_start(struct log *log)
{
	return rt_task_spawn(&log->task, "log", background_run, log);
}

void background_stop(struct log *log)
{
	if (!log->task)
		return;
	rt_mutex_lock(&log->append_lock);
	log->stop = true;
	nap_set(log, NAP_AWAKE);
	rt_mutex_unlock(&log->append_lock);
	rt_wake(&log->nap, 1);
	rt_task_join(log->task);
	log->task = NULL;
}
