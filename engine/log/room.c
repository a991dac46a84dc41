/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Room for records: reserved before any latch is taken, so that appending never waits (invariants 6
 * and 10).
 *
 * Why an append after a reservation always fits. A reservation of b bytes for r records is charged
 * b + r * CHUNK_OVERHEAD, to the buffer and to the ring. Every chunk is opened by one record, and
 * that record passes CHUNK_OVERHEAD of its room on to the chunk. It covers the header (64) and the
 * padding at the close (at most 4095). The cause of the close does not matter. So at every time,
 * with `reserved` the sum of all rooms' charges:
 *
 *   buffer_charged = sizes of closed chunks not written yet
 *                  + the open chunk's records + CHUNK_OVERHEAD, if one is open
 *                  + reserved
 *
 *   ring_charged   = the same, with the closed chunks from the tail on
 *
 * Closing a chunk gives back the room that it did not need. Reservations keep buffer_charged <=
 * buffer_bytes, and chunks lie in the buffer without gaps (they wrap). So the end of the open
 * chunk's padding is never more than buffer_bytes ahead of the first unwritten byte.
 *
 * In the ring a chunk does not wrap. If the record that opens one does not fit before the ring's
 * end, the LSN skips g bytes. This is less than skip_max, the longest record with its header,
 * rounded up to the block. Skips are not charged. Instead ring_limit = ring_bytes - skip_max. That
 * is enough, as between tail and end there is never more than one skip.
 *
 * The proof. Suppose there is a skip of length g that ends at (k-1) * ring:
 *
 *   tail <= (k-1) * ring - g
 *
 * Suppose further that a record of n bytes, with header and padding, does not fit at h before k *
 * ring:
 *
 *   h + n > k * ring
 *
 * The bytes charged would be more than the limit:
 *
 *   h - tail - g + n > k * ring - (k-1) * ring + g - g = ring
 *
 * With at most one skip, end - tail <= charged + g <= ring_limit + skip_max = ring_bytes. A record
 * that does fit at the ring's end, or any chunk later on, is limited to the ring's end. So its
 * padding fits as well (the ring is a multiple of the block).
 *
 * Urgent reservations alone are charged to the urgent part of buffer and ring. They are for
 * persisting pages, which frees the ring. So tasks that wait for the ring cannot starve it.
 */
#include <errno.h>

#include "engine/log/log_internal.h"

#define URGENT_PART_BYTES (256u << 10)
/* So long an urgent reservation waits for other tasks to give back their room of the ring. */
#define URGENT_WAIT_NS 50000000ull

static uint64_t limit_without_urgent(uint64_t limit)
{
	return limit - MIN(MAX(limit / 16, (uint64_t)URGENT_PART_BYTES), limit / 4);
}

void room_limits_set(struct log *log)
{
	log->buffer_limit[true] = log->buffer_bytes;
	log->buffer_limit[false] = limit_without_urgent(log->buffer_bytes);
	log->ring_limit[true] = log->ring_bytes - log->skip_max;
	log->ring_limit[false] = limit_without_urgent(log->ring_limit[true]);
}

static uint64_t room_charge(uint32_t bytes)
{
	return ALIGN_UP((uint64_t)bytes, 8) +
	       LOG_ROOM_RECORDS((uint64_t)bytes) * CHUNK_OVERHEAD;
}

uint64_t log_room_left(struct log *log)
{
	uint64_t charged = atomic_load_explicit(&log->ring_charged, memory_order_relaxed);

	return log->ring_limit[false] - MIN(charged, log->ring_limit[false]);
}

uint32_t log_room_max(struct log *log, bool urgent)
{
	uint64_t limit = MIN(log->buffer_limit[urgent], log->ring_limit[urgent]);
	uint64_t fixed = 4 * CHUNK_OVERHEAD + 8;

	/* The inverse of room_charge, rounded down. */
	return limit > fixed ? (limit - fixed) / (16384 + CHUNK_OVERHEAD) * 16384 : 0;
}

/* Acquire and release: the reserver sees the writes of the task that gave the bytes back (the tail,
 * the written position). */
static bool charge_take(_Atomic uint64_t *charged, uint64_t bytes, uint64_t limit)
{
	uint64_t now = atomic_load_explicit(charged, memory_order_relaxed);

	do {
		if (now + bytes > limit)
			return false;
	} while (!atomic_compare_exchange_weak_explicit(
		charged, &now, now + bytes, memory_order_acq_rel, memory_order_relaxed));
	return true;
}

static void charge_give(_Atomic uint64_t *charged, uint64_t bytes)
{
	uint64_t before = atomic_fetch_sub_explicit(charged, bytes, memory_order_seq_cst);

	WEFT_ASSERT(before >= bytes);
}

/* Wakes reservers. A waiter counts itself before it looks, we look after we gave (both
 * sequentially consistent): one of the two sees the other. */
void room_wake(struct log *log)
{
	if (atomic_load_explicit(&log->room_waiters, memory_order_seq_cst) == 0)
		return;
	atomic_fetch_add_explicit(&log->room_word, 1, memory_order_release);
	rt_wake(&log->room_word, INT32_MAX);
}

void room_give_back(struct log *log, uint64_t buffer_bytes, uint64_t ring_bytes)
{
	if (buffer_bytes)
		charge_give(&log->buffer_charged, buffer_bytes);
	if (ring_bytes)
		charge_give(&log->ring_charged, ring_bytes);
	room_wake(log);
}

enum room_short { ROOM_TAKEN, ROOM_BUFFER_SHORT, ROOM_RING_SHORT };

static enum room_short room_take(struct log *log, uint64_t charge, bool urgent)
{
	if (!charge_take(&log->buffer_charged, charge, log->buffer_limit[urgent]))
		return ROOM_BUFFER_SHORT;
	if (charge_take(&log->ring_charged, charge, log->ring_limit[urgent]))
		return ROOM_TAKEN;
	room_give_back(log, charge, 0);
	return ROOM_RING_SHORT;
}

/* Returns the limit that stands in the way, and charges nothing. A waiter that charged the one, and
 * gave it back for lack of the other, would wake itself for ever. */
static enum room_short room_look(struct log *log, uint64_t charge, bool urgent)
{
	if (atomic_load_explicit(&log->buffer_charged, memory_order_seq_cst) + charge >
		log->buffer_limit[urgent])
		return ROOM_BUFFER_SHORT;
	if (atomic_load_explicit(&log->ring_charged, memory_order_seq_cst) + charge >
		log->ring_limit[urgent])
		return ROOM_RING_SHORT;
	return ROOM_TAKEN;
}

/* Takes the step that may end the shortage. Then waits for room given back since `word` was read.
 * `deadline` is for a shortage of the ring. */
static void room_wait(
	struct log *log, enum room_short what, uint32_t word, uint64_t deadline)
{
	lsn_t end = log_end(log);

	if (what == ROOM_BUFFER_SHORT && end > log_durable(log)) {
		log_flush(log,
			end); /* a failure closes the log, which the caller looks at */
		return;
	}
	rt_task_needs(RT_NEEDS_LOG_ROOM, 0);
	if (what == ROOM_BUFFER_SHORT) {
		rt_wait(&log->room_word, word, RT_FOREVER);
		rt_task_needs(RT_NEEDS_NOTHING, 0);
		return;
	}
	/* Counted before the checkpointer is woken: it asks log_wants_checkpoint. */
	atomic_fetch_add_explicit(&log->ring_waiters, 1, memory_order_release);
	atomic_fetch_add_explicit(&log->pressure, 1, memory_order_release);
	rt_wake(&log->pressure, INT32_MAX);
	rt_wait(&log->room_word, word, deadline);
	rt_task_needs(RT_NEEDS_NOTHING, 0);
	atomic_fetch_sub_explicit(&log->ring_waiters, 1, memory_order_relaxed);
}

/*
 * One task of each kind tries at a time. The others queue behind it on the mutex. New ones see
 * room_waiters and queue as well. So small reservations do not starve a large one.
 *
 * An urgent reserver moves the tail itself. So it must not wait for the ring for ever. After other
 * tasks have given back the room that they do not need, it would wait for itself.
 */
static int room_take_slow(struct log *log, uint64_t charge, bool urgent)
{
	uint64_t deadline = urgent ? rt_now_ns() + URGENT_WAIT_NS : RT_FOREVER;
	int error = -EROFS;

	count_shared(&log->counters.reserve_waits, 1);
	atomic_fetch_add_explicit(&log->room_waiters, 1, memory_order_seq_cst);
	rt_mutex_lock(&log->room_queue[urgent]);
	for (;;) {
		uint32_t word =
			atomic_load_explicit(&log->room_word, memory_order_seq_cst);
		enum room_short what;

		if (atomic_load_explicit(&log->closed, memory_order_acquire))
			break;
		what = room_look(log, charge, urgent);
		if (what == ROOM_RING_SHORT && urgent && rt_now_ns() >= deadline) {
			error = -ENOBUFS;
			break;
		}
		if (what == ROOM_RING_SHORT && !urgent &&
			atomic_load_explicit(&log->cut, memory_order_seq_cst)) {
			error = -EIO;
			break;
		}
		if (what != ROOM_TAKEN) {
			room_wait(log, what, word, deadline);
		} else if (room_take(log, charge, urgent) == ROOM_TAKEN) {
			error = 0;
			break;
		}
	}
	rt_mutex_unlock(&log->room_queue[urgent]);
	atomic_fetch_sub_explicit(&log->room_waiters, 1, memory_order_seq_cst);
	return error;
}

bool log_reserve_short(struct log *log)
{
	uint64_t kept = log->ring_limit[true] - log->ring_limit[false];

	return atomic_load_explicit(&log->ring_charged, memory_order_relaxed) + kept / 2 >
	       log->ring_limit[true];
}

int log_reserve(struct log *log, uint32_t bytes, bool urgent, struct log_room *room)
{
	uint64_t charge = room_charge(bytes);
	bool queue = !urgent &&
		     atomic_load_explicit(&log->room_waiters, memory_order_relaxed) > 0;
	int error;

	*room = (struct log_room){0};
	if (bytes > log_room_max(log, urgent))
		return -E2BIG;
	if (unlikely(atomic_load_explicit(&log->closed, memory_order_acquire)))
		return -EROFS;
	if (unlikely(queue || room_take(log, charge, urgent) != ROOM_TAKEN)) {
		error = room_take_slow(log, charge, urgent);
		if (error)
			return error;
	}
	*room = (struct log_room){ALIGN_UP(bytes, 8), LOG_ROOM_RECORDS(bytes), charge};
	return 0;
}

/* Goes past waiting tasks: they wait for the ring, or would not do so for long. */
int log_reserve_now(struct log *log, uint32_t bytes, struct log_room *room)
{
	uint64_t charge = room_charge(bytes);
	enum room_short what;

	*room = (struct log_room){0};
	if (bytes > log_room_max(log, false))
		return -E2BIG;
	do {
		uint32_t word =
			atomic_load_explicit(&log->room_word, memory_order_seq_cst);

		if (atomic_load_explicit(&log->closed, memory_order_acquire))
			return -EROFS;
		what = room_take(log, charge, false);
		if (what == ROOM_BUFFER_SHORT && log_end(log) == log_durable(log))
			rt_wait(&log->room_word, word, rt_now_ns() + URGENT_WAIT_NS);
		else if (what == ROOM_BUFFER_SHORT)
			log_flush(log, log_end(log));
	} while (what == ROOM_BUFFER_SHORT);
	if (what != ROOM_TAKEN)
		return -ENOBUFS;
	*room = (struct log_room){ALIGN_UP(bytes, 8), LOG_ROOM_RECORDS(bytes), charge};
	return 0;
}

/* A waiter has read the word before it looks at `cut`. */
void log_reserve_cut(struct log *log)
{
	atomic_store_explicit(&log->cut, true, memory_order_seq_cst);
	room_wake(log);
}

void log_release(struct log *log, struct log_room *room)
{
	uint32_t charge = room->charge;

	*room = (struct log_room){0};
	if (charge)
		room_give_back(log, charge, charge);
}
