/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Group commit. If no flush is under way, a task that needs one writes all appended records, with
 * the device flush in the same submission. The other tasks wait.
 *
 * Writes go in rounds, one at a time. If a round is under way that covers a task's LSN, the task
 * waits for its end. Otherwise it waits for the end of the next one. The end of a round wakes the
 * tasks that it covers, and one of the others. That task writes the next round. It covers all
 * waiting tasks, since they appended before they waited.
 *
 * An error of the device ends the log for ever. The writes that a failed flush has dropped are not
 * known, and no later flush may claim them (invariant 3).
 */
#include <errno.h>

#include "engine/log/log_internal.h"

static void failure_tell(struct log *log)
{
	rt_mutex_lock(&log->failure_lock);
	if (log->on_failure)
		log->on_failure(log->failure_owner);
	rt_mutex_unlock(&log->failure_lock);
}

void log_on_failure(struct log *log, void (*fn)(void *owner), void *owner)
{
	rt_mutex_lock(&log->failure_lock);
	log->on_failure = fn;
	log->failure_owner = owner;
	rt_mutex_unlock(&log->failure_lock);
	if (log_is_failed(log))
		failure_tell(log);
}

void log_fail(struct log *log, int error, const char *what, uint64_t offset)
{
	int none = 0;

	if (!atomic_compare_exchange_strong_explicit(&log->failed, &none, error,
		    memory_order_acq_rel, memory_order_acquire))
		return;
	if (what)
		weft_log(3, "%s of the log at store offset %llu failed (errno %d)", what,
			(unsigned long long)offset, -error);
	else
		weft_log(3, "the device takes nothing (errno %d): the log ends", -error);
	weft_log(3, "the volume takes no more changes; check the device, then mount "
		    "again to recover");
	atomic_store_explicit(&log->closed, 1, memory_order_seq_cst);
	room_wake(log);
	for (int i = 0; i < 2; i++) {
		atomic_fetch_add_explicit(&log->round_word[i], 1, memory_order_release);
		rt_wake(&log->round_word[i], INT32_MAX);
	}
	atomic_fetch_add_explicit(&log->pressure, 1, memory_order_release);
	rt_wake(&log->pressure, INT32_MAX);
	failure_tell(log);
}

void log_give_up(struct log *log, int error)
{
	log_fail(log, error, NULL, 0);
}

/* ---- one round -------------------------------------------------------------------- */

/* One write request for buffer positions [from, to), in one or two pieces. */
static void round_request(
	struct log *log, unsigned n, lsn_t lsn, uint64_t from, uint64_t to)
{
	uint64_t place = from & (log->buffer_bytes - 1);
	uint64_t first = MIN(to - from, log->buffer_bytes - place);
	struct iovec *iov = &log->iov[2 * n];

	iov[0] = (struct iovec){log->buffer + place, first};
	iov[1] = (struct iovec){log->buffer, to - from - first};
	log->ios[n] = (struct rt_io){
		.op = RT_IO_WRITE,
		.after_previous = n > 0,
		.offset = ring_place(log, lsn),
		.iov = iov,
		.iov_count = to - from > first ? 2 : 1,
	};
}

static void chunk_seal(struct log *log, struct disk_log_chunk *chunk, uint64_t position)
{
	uint64_t place = position & (log->buffer_bytes - 1);
	uint64_t bytes = CHUNK_HEADER + chunk->payload_bytes;
	uint64_t first = MIN(bytes, log->buffer_bytes - place);
	struct iovec iov[2] = {
		{log->buffer + place, first}, {log->buffer, bytes - first}};

	chunk->epoch = log->incarnation;
	chunk->durable_lsn = atomic_load_explicit(&log->durable, memory_order_relaxed);
	chunk->checksum = 0;
	chunk->checksum = store_checksum(log->store, DISK_PLACE_LOG, chunk->lsn,
		chunk->epoch, iov, bytes > first ? 2 : 1);
}

/*
 * Seals the closed chunks in [from, to) of the buffer and makes requests of them: one for
 * each stretch of the ring. There are two at most, since the buffer is under half a ring.
 */
static unsigned round_prepare(struct log *log, uint64_t from, uint64_t to)
{
	lsn_t stretch_lsn = LSN_NONE, expected = LSN_NONE;
	uint64_t stretch = from, chunks = 0;
	unsigned n = 0;

	for (uint64_t at = from; at < to; chunks++) {
		struct disk_log_chunk *chunk =
			(void *)(log->buffer + (at & (log->buffer_bytes - 1)));

		WEFT_ASSERT(
			chunk->magic == DISK_MAGIC_CHUNK && chunk->chunk_bytes >= BLOCK);
		chunk_seal(log, chunk, at);
		/* A ring's start begins a new stretch even without a skip. */
		if (chunk->lsn != expected || chunk->lsn % log->ring_bytes == 0) {
			if (at > from) {
				WEFT_ASSERT(n == 0);
				round_request(log, n++, stretch_lsn, stretch, at);
			}
			stretch_lsn = chunk->lsn;
			stretch = at;
		}
		expected = chunk->lsn + chunk->chunk_bytes;
		at += chunk->chunk_bytes;
	}
	round_request(log, n++, stretch_lsn, stretch, to);
	log->ios[n] = (struct rt_io){.op = RT_IO_FLUSH, .after_previous = true};
	count_alone(&log->counters.chunks, chunks);
	count_alone(&log->counters.chunk_bytes, to - from);
	count_alone(&log->counters.flushes, 1);
	return n + 1;
}

/* Closes the open chunk and fixes the end of the round. Under flush_lock. */
static void round_begin(struct log *log)
{
	log->writing = true;
	rt_mutex_lock(&log->append_lock);
	if (log->payload > 0)
		chunk_close(log);
	log->round_lsn = log->chunk_lsn;
	log->round_records = atomic_load_explicit(&log->end, memory_order_relaxed);
	log->round_position =
		atomic_load_explicit(&log->closed_position, memory_order_relaxed);
	rt_mutex_unlock(&log->append_lock);
}

/* Waits. Holds nothing but `writing`. */
static void round_write(struct log *log)
{
	uint64_t from =
		atomic_load_explicit(&log->written_position, memory_order_relaxed);
	uint64_t to = log->round_position;
	unsigned count;

	if (from == to || log_is_failed(log))
		return;
	count = round_prepare(log, from, to);
	rt_disk_run(log->disk, log->ios, count);
	for (unsigned i = 0; i < count; i++) {
		if (log->ios[i].result == 0)
			continue;
		if (log->ios[i].op == RT_IO_FLUSH)
			store_flush_lost(log->store);
		log_fail(log, log->ios[i].result,
			log->ios[i].op == RT_IO_FLUSH ? "the device flush" : "a write",
			log->ios[i].offset);
		return;
	}
	/* the flush of a write-back that failed meanwhile may have dropped these chunks
	 */
	if (store_flush_failed(log->store)) {
		log_fail(log, -EIO, "a device flush beside the writes", 0);
		return;
	}
	atomic_store_explicit(
		&log->durable_records, log->round_records, memory_order_release);
	atomic_store_explicit(&log->durable, log->round_lsn, memory_order_release);
	atomic_store_explicit(&log->written_position, to, memory_order_release);
	room_give_back(log, to - from, 0);
}

/* Under flush_lock; drops it. */
static void round_end(struct log *log)
{
	_Atomic uint32_t *done = &log->round_word[log->round & 1];
	_Atomic uint32_t *next = &log->round_word[(log->round + 1) & 1];

	log->writing = false;
	log->round++;
	atomic_fetch_add_explicit(done, 1, memory_order_release);
	atomic_fetch_add_explicit(next, 1, memory_order_release);
	rt_mutex_unlock(&log->flush_lock);
	rt_wake(done, INT32_MAX);
	rt_wake(next, 1);
}

/*
 * A head's turn to write: as a round that covers no record. Heads and chunks are not under way
 * together. A flush that fails for the one may have dropped the other's bytes. The other's own
 * flush, ending well, would not tell that. Under head_lock. Waits.
 */
void head_turn_begin(struct log *log)
{
	rt_mutex_lock(&log->flush_lock);
	while (log->writing) {
		_Atomic uint32_t *word = &log->round_word[log->round & 1];
		uint32_t seen = atomic_load_explicit(word, memory_order_relaxed);

		log->head_waits = true; /* the turn after this one */
		rt_mutex_unlock(&log->flush_lock);
		rt_wait(word, seen, RT_FOREVER);
		rt_mutex_lock(&log->flush_lock);
	}
	log->head_waits = false;
	log->writing = true;
	log->round_lsn = log_durable(log);
	rt_mutex_unlock(&log->flush_lock);
}

void head_turn_end(struct log *log)
{
	rt_mutex_lock(&log->flush_lock);
	round_end(log);
}

int log_flush(struct log *log, lsn_t lsn)
{
	bool waited = false;

	while (log_durable(log) < lsn) {
		_Atomic uint32_t *word;
		uint32_t seen;

		if (log_is_failed(log)) /* a full device is said to be one */
			return log_failed(log) == -ENOSPC ? -ENOSPC : -EIO;
		WEFT_ASSERT(lsn <= log_end(log));
		rt_mutex_lock(&log->flush_lock);
		if (log_durable(log) >= lsn || log_is_failed(log)) {
			rt_mutex_unlock(&log->flush_lock);
			continue;
		}
		rt_task_needs(RT_NEEDS_LOG_FLUSH, 0);
		if (!log->writing && !log->head_waits) {
			round_begin(log);
			rt_mutex_unlock(&log->flush_lock);
			round_write(log);
			rt_task_needs(RT_NEEDS_NOTHING, 0);
			rt_mutex_lock(&log->flush_lock);
			round_end(log);
			continue;
		}
		word = &log->round_word[(log->round + (lsn > log->round_lsn)) & 1];
		seen = atomic_load_explicit(word, memory_order_relaxed);
		rt_mutex_unlock(&log->flush_lock);
		if (!waited)
			count_shared(&log->counters.flush_waits, 1);
		waited = true;
		rt_wait(word, seen, RT_FOREVER);
		rt_task_needs(RT_NEEDS_NOTHING, 0);
	}
	return 0;
}
