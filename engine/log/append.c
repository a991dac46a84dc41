/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Appending: records go into the open chunk, in the buffer, where they will be written
 * from.
 *
 * The path is hot and runs under latches: one short lock, one copy, no waiting
 * (invariant 6). That it fits was settled when the room was reserved (room.c).
 */
#include <errno.h>
#include <string.h>

#include "engine/log/log_internal.h"

/* ---- where chunks start ----------------------------------------------------------
 * One bit for each block of the ring, so that the tail can be set to the chunk that
 * holds any given LSN. Bits between tail and end are right; others are of no use.
 */

static void starts_clear(struct log *log, lsn_t lsn, uint64_t bytes)
{
	uint64_t block = lsn % log->ring_bytes / BLOCK;
	uint64_t end = block + bytes / BLOCK;

	for (; block < end; block++)
		log->starts[block / 64] &= ~(1ull << (block % 64));
}

void starts_mark(struct log *log, lsn_t lsn, uint32_t chunk_bytes)
{
	uint64_t block = lsn % log->ring_bytes / BLOCK;

	starts_clear(log, lsn, chunk_bytes);
	log->starts[block / 64] |= 1ull << (block % 64);
}

/* The last start in [lowest, lsn]; `lowest` itself when there is none. */
lsn_t starts_at_or_below(struct log *log, lsn_t lsn, lsn_t lowest)
{
	lsn -= lsn % BLOCK;
	/* A chunk and a skip are shorter than 1 MiB each: at most 512 steps. */
	for (; lsn > lowest; lsn -= BLOCK) {
		uint64_t block = lsn % log->ring_bytes / BLOCK;

		if (log->starts[block / 64] & 1ull << (block % 64))
			return lsn;
	}
	return lowest;
}

/* ---- the open chunk ---------------------------------------------------------------- */

static struct disk_log_chunk *chunk_header(struct log *log, uint64_t position)
{
	return (struct disk_log_chunk *)(log->buffer +
					 (position & (log->buffer_bytes - 1)));
}

/* Pads the open chunk and starts the next behind it. The writer fills in epoch, durable_lsn and
 * checksum. */
void chunk_close(struct log *log)
{
	uint64_t position =
		atomic_load_explicit(&log->closed_position, memory_order_relaxed);
	uint32_t used = CHUNK_HEADER + log->payload;
	uint32_t chunk_bytes = ALIGN_UP(used, BLOCK);
	uint64_t unused = log->payload + CHUNK_OVERHEAD - chunk_bytes;

	WEFT_ASSERT(log->payload > 0 && chunk_bytes <= log->chunk_limit);
	memset(log->buffer + ((position + used) & (log->buffer_bytes - 1)), 0,
		chunk_bytes - used);
	*chunk_header(log, position) = (struct disk_log_chunk){
		.magic = DISK_MAGIC_CHUNK,
		.lsn = log->chunk_lsn,
		.chunk_bytes = chunk_bytes,
		.payload_bytes = log->payload,
		.shard = log->shard,
		.follows_lsn = log->follows_lsn,
	};
	starts_mark(log, log->chunk_lsn, chunk_bytes);
	log->payload = 0;
	log->chunk_lsn += chunk_bytes;
	log->follows_lsn = log->chunk_lsn;
	atomic_store_explicit(
		&log->closed_position, position + chunk_bytes, memory_order_release);
	room_give_back(log, unused, unused);
}

/* Opens a chunk for a record; skips to the ring's start if it would not fit before its
 * end. */
static void chunk_open(struct log *log, uint32_t bytes)
{
	uint64_t rest = ring_rest(log, log->chunk_lsn);

	if (ALIGN_UP((uint64_t)CHUNK_HEADER + bytes, BLOCK) > rest) {
		WEFT_ASSERT(rest < log->skip_max);
		starts_clear(log, log->chunk_lsn, rest);
		log->gap_start = log->chunk_lsn;
		log->gap_end = log->chunk_lsn + rest;
		log->chunk_lsn = log->gap_end;
		rest = log->ring_bytes;
	}
	log->chunk_limit = MIN(rest, log->chunk_max);
	starts_mark(log, log->chunk_lsn, BLOCK);
}

/* Makes the open chunk one that has place for the record; true if it was opened for it.
 */
static bool chunk_prepare(struct log *log, uint32_t bytes)
{
	bool open = log->payload == 0;
	uint64_t position, need;

	if (!open && (uint64_t)CHUNK_HEADER + log->payload + bytes > log->chunk_limit) {
		chunk_close(log);
		open = true;
	}
	if (open)
		chunk_open(log, bytes);
	/* The other side of room.c's proof. */
	need = ALIGN_UP((uint64_t)CHUNK_HEADER + log->payload + bytes, BLOCK);
	position = atomic_load_explicit(&log->closed_position, memory_order_relaxed);
	WEFT_ASSERT(position + need -
			    atomic_load_explicit(
				    &log->written_position, memory_order_acquire) <=
		    log->buffer_bytes);
	WEFT_ASSERT(log->chunk_lsn + need - log_tail(log) <= log->ring_bytes);
	return open;
}

static void buffer_copy(
	struct log *log, uint64_t position, const struct iovec *iov, unsigned iov_count)
{
	for (unsigned i = 0; i < iov_count; i++) {
		const uint8_t *from = iov[i].iov_base;
		size_t left = iov[i].iov_len;

		while (left > 0) {
			uint64_t place = position & (log->buffer_bytes - 1);
			size_t now = MIN(left, log->buffer_bytes - place);

			memcpy(log->buffer + place, from, now);
			position += now;
			from += now;
			left -= now;
		}
	}
}

/* ---- appending ------------------------------------------------------------------- */

#define WAKE_BACKGROUND (1u << 0)
#define WAKE_PRESSURE   (1u << 1)

/* Returns the tasks that the record just appended wakes. */
static unsigned append_wakes(struct log *log, lsn_t end)
{
	uint32_t nap = atomic_load_explicit(&log->nap, memory_order_relaxed);
	unsigned wakes = 0;

	if (unlikely(nap != NAP_AWAKE)) {
		uint64_t waiting = atomic_load_explicit(
					   &log->closed_position, memory_order_relaxed) +
				   log->payload -
				   atomic_load_explicit(
					   &log->written_position, memory_order_relaxed);

		if (nap == NAP_IDLE || waiting > log->buffer_bytes / 2) {
			atomic_store_explicit(&log->nap, NAP_AWAKE, memory_order_relaxed);
			wakes |= WAKE_BACKGROUND;
		}
	}
	if (unlikely(!log->pressed && ring_half_full(log, end))) {
		log->pressed = true;
		wakes |= WAKE_PRESSURE;
	}
	return wakes;
}

static uint32_t record_bytes_checked(struct log *log, const struct log_room *room,
	const struct iovec *iov, unsigned iov_count)
{
	const struct disk_log_record *record = iov[0].iov_base;
	uint64_t bytes = 0;

	for (unsigned i = 0; i < iov_count; i++)
		bytes += iov[i].iov_len;
	WEFT_ASSERT(iov[0].iov_len >= sizeof(*record) && record->record_bytes == bytes);
	WEFT_ASSERT(bytes % 8 == 0 && bytes <= log->record_max);
	WEFT_ASSERT(bytes <= room->bytes && room->records > 0);
	return (uint32_t)bytes;
}

struct log_position log_append(struct log *log, struct log_room *room,
	const struct iovec *iov, unsigned iov_count)
{
	uint32_t bytes = record_bytes_checked(log, room, iov, iov_count);
	struct log_position at;
	unsigned wakes = 0;

	room->bytes -= bytes;
	room->records--;
	rt_mutex_lock(&log->append_lock);
	if (unlikely(log_is_failed(log))) {
		/*
		 * Dropped. A task that relies on the record must not find it durable. So it ends
		 * behind all that has been appended: a round that began before the failure gets to
		 * chunk_lsn at most.
		 */
		at.start = log->chunk_lsn;
		at.end = log->chunk_lsn + CHUNK_HEADER + log->payload + bytes;
	} else {
		bool opened = chunk_prepare(log, bytes);

		buffer_copy(log,
			atomic_load_explicit(
				&log->closed_position, memory_order_relaxed) +
				CHUNK_HEADER + log->payload,
			iov, iov_count);
		log->payload += bytes;
		room->charge -= bytes + (opened ? CHUNK_OVERHEAD : 0);
		at.start = log->chunk_lsn;
		at.end = log->chunk_lsn + CHUNK_HEADER + log->payload;
		atomic_store_explicit(&log->end, at.end, memory_order_release);
		count_alone(&log->counters.records, 1);
		count_alone(&log->counters.record_bytes, bytes);
		wakes = append_wakes(log, at.end);
	}
	rt_mutex_unlock(&log->append_lock);
	if (unlikely(wakes & WAKE_BACKGROUND))
		rt_wake(&log->nap, 1);
	if (unlikely(wakes & WAKE_PRESSURE)) {
		atomic_fetch_add_explicit(&log->pressure, 1, memory_order_release);
		rt_wake(&log->pressure, INT32_MAX);
	}
	if (room->bytes == 0)
		log_release(log, room);
	return at;
}
