/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The log's own structures; only engine/log/ includes this.
 *
 * Positions. An LSN counts bytes of the endless log and is ring_bytes at birth. A *buffer position*
 * counts bytes that went through the buffer since log_open. Its place in the buffer is position &
 * (buffer_bytes - 1). Both are multiples of 4096 wherever a chunk starts. The chunks lie in the
 * buffer one behind the other, in order of their LSNs. They lie there exactly as they will be
 * written, header and padding included. A chunk may wrap in the buffer (two iovecs) but not in the
 * ring. Only the LSN, never the buffer position, skips at the ring's end.
 *
 * Locks, in the order in which they are taken:
 *
 * - head_lock: held while a head is written. Tasks wait under it.
 * - room_queue[]: held by the first of the waiting reservers. Tasks wait under it.
 * - flush_lock: the writer of the round, and the tasks that wait for it. Never held while waiting.
 * - append_lock: the open chunk and the index of starts. Never held while waiting.
 *
 * Appenders take append_lock only, so they never wait for a disk.
 */
#ifndef WEFT_LOG_INTERNAL_H
#define WEFT_LOG_INTERNAL_H

#include "engine/log/log.h"

#define BLOCK        4096u /* places and sizes of chunks are multiples of it */
#define CHUNK_HEADER ((uint32_t)sizeof(struct disk_log_chunk))
/* The bytes of a chunk beyond its records: the header, and padding to the block. */
#define CHUNK_OVERHEAD            (CHUNK_HEADER + BLOCK)
#define RING_MIN_BYTES            (512u << 10)
#define BUFFER_DEFAULT_BYTES      (8u << 20)
#define BUFFER_MAX_BYTES          (1u << 30)
#define FLUSH_INTERVAL_DEFAULT_MS 5000u
#define LSN_LIMIT                 (1ull << 60)

/* The background writer's state. It sleeps on this word. */
enum log_nap {
	NAP_AWAKE,
	NAP_TIMED, /* sleeps until the interval ends, or the buffer is half full */
	NAP_IDLE,  /* sleeps until something is appended: all is durable */
};

struct log {
	/* These are set at open, and constant afterwards. */
	struct store *store;
	struct rt_disk *disk;
	uint64_t heads_offset; /* in the store, bytes */
	uint64_t ring_offset;
	uint64_t ring_bytes;
	uint64_t incarnation; /* this life's epoch */
	uint64_t skip_max;    /* a skip at the ring's end is shorter */
	uint64_t buffer_bytes;
	uint32_t chunk_max;
	uint32_t record_max;
	uint16_t shard;
	uint64_t flush_interval_ns; /* RT_FOREVER: none */
	uint8_t *buffer;
	uint64_t buffer_limit[2]; /* the most that may be charged: [urgent] */
	uint64_t ring_limit[2];
	/* Found by log_open: log_scan reads [tail, life_lsn). */
	lsn_t life_lsn;   /* this life's chunks start here */
	lsn_t proven_lsn; /* the log below it was durable before this life */

	/* Room: see room.c. Own line: every reservation changes it. */
	_Alignas(CACHE_LINE) _Atomic uint64_t buffer_charged;
	_Atomic uint64_t ring_charged;
	_Atomic uint32_t room_waiters;
	_Atomic uint32_t ring_waiters; /* those of them that lack ring, not buffer */
	_Atomic uint32_t
		room_word;             /* changes when room is given back while a task waits */
	_Atomic uint32_t closed;       /* the log failed or was shut: no more room */
	_Atomic int failed;            /* negative errno; 0: no failure */
	_Atomic bool cut;              /* nobody waits for the ring any more */
	struct rt_mutex room_queue[2]; /* [urgent] */

	/* The open chunk. Under append_lock; the atomics are read without it. */
	_Alignas(CACHE_LINE) struct rt_mutex append_lock;
	uint32_t payload;     /* bytes of records in the open chunk; 0: none is open */
	uint32_t chunk_limit; /* the largest size of the open chunk: chunk_max, or up to the
			       * ring's end */
	bool pressed;      /* that the ring is half full was announced */
	bool stop;         /* the background writer must end */
	lsn_t chunk_lsn;   /* of the open chunk, or where the next one would start */
	lsn_t follows_lsn; /* end of the chunk before it */
	_Atomic uint64_t
		closed_position; /* of the open chunk: all chunks before it are closed */
	lsn_t gap_start,
		gap_end; /* the skip between the tail and the end, if there is one */
	_Atomic lsn_t end;
	_Atomic uint32_t nap; /* enum log_nap; changed under append_lock */
	uint64_t *starts;     /* a bit for each block of the ring: a chunk starts there */

	/* Writing. Under flush_lock; `ios`, `iov` belong to the task that set `writing`.
	 */
	_Alignas(CACHE_LINE) struct rt_mutex flush_lock;
	bool writing;
	bool head_waits;     /* the next write is a head's */
	uint32_t round;      /* counts writes */
	lsn_t round_lsn;     /* durable when the write under way has ended */
	lsn_t round_records; /* end of its last record */
	uint64_t round_position;
	_Atomic uint32_t round_word[2]; /* [round & 1]: waits for that round's end */
	_Atomic lsn_t durable;
	_Atomic lsn_t durable_records;     /* end of the last durable record */
	_Atomic uint64_t written_position; /* buffer before it is free */
	struct rt_io ios[3]; /* up to two stretches of the ring, and the device flush */
	struct iovec iov[4];

	/* The tail. `tail` and the fields behind it change under head_lock. */
	_Alignas(CACHE_LINE) struct rt_mutex head_lock;
	_Atomic lsn_t tail;
	struct disk_log_head *head; /* a page for I/O, as last written or read */
	unsigned head_copy;         /* the copy that has it */
	_Atomic uint32_t pressure;  /* log_pressure_word */

	/* The functions that are called when the log fails. */
	struct rt_mutex failure_lock; /* a leaf; held while it is told */
	void (*on_failure)(void *owner);
	void *failure_owner;

	struct rt_task *task;
	struct log_counters counters;
};

static inline bool log_is_failed(struct log *log)
{
	return atomic_load_explicit(&log->failed, memory_order_acquire) != 0;
}

/* Adds to a counter that only one task at a time changes: no locked instruction is needed. */
static inline void count_alone(_Atomic uint64_t *counter, uint64_t n)
{
	atomic_store_explicit(counter,
		atomic_load_explicit(counter, memory_order_relaxed) + n,
		memory_order_relaxed);
}

static inline void count_shared(_Atomic uint64_t *counter, uint64_t n)
{
	atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

/* Returns the bytes from lsn to the ring's end. */
static inline uint64_t ring_rest(const struct log *log, lsn_t lsn)
{
	return log->ring_bytes - lsn % log->ring_bytes;
}

static inline uint64_t ring_place(const struct log *log, lsn_t lsn)
{
	return log->ring_offset + lsn % log->ring_bytes;
}

/* Returns true if a record's end at `end` makes the ring half full. */
static inline bool ring_half_full(struct log *log, lsn_t end)
{
	lsn_t tail = log_tail(log);

	return end > tail && end - tail > log->ring_limit[false] / 2;
}

/* room.c */
void room_limits_set(struct log *log);
void room_give_back(struct log *log, uint64_t buffer_bytes, uint64_t ring_bytes);
void room_wake(struct log *log);

/* append.c. All under append_lock. */
void chunk_close(struct log *log);
void starts_mark(struct log *log, lsn_t lsn, uint32_t chunk_bytes);
lsn_t starts_at_or_below(struct log *log, lsn_t lsn, lsn_t lowest);

/* flush.c */
void log_fail(struct log *log, int error, const char *what, uint64_t offset);

void head_turn_begin(struct log *log);
void head_turn_end(struct log *log);

/* background.c */
int background_start(struct log *log);
void background_stop(struct log *log);

/* head.c. All under head_lock, or before the log is shared. */
int head_read(struct log *log, bool *other_bad, struct weft_error *err);
int head_write(struct log *log, lsn_t tail, bool clean);
int head_rewrite(struct log *log); /* writes the newest one again, as it is; no flush */
void tail_set(struct log *log, lsn_t tail);

/* read.c */
struct log_walk {
	lsn_t end;         /* behind the last chunk */
	lsn_t records_end; /* end of the last record */
	lsn_t proven;      /* the last chunk says that all below is durable */
	lsn_t gap_start, gap_end;
	uint64_t chunks;
};
/* Follows the chunks from the tail. `epoch` is the lowest that the first may have. */
int log_walk_chunks(
	struct log *log, uint64_t epoch, struct log_walk *out, struct weft_error *err);
/* Writes [proven_lsn, life_lsn) again as it is. No flush. */
int log_rewrite(struct log *log);
/* Returns -EUCLEAN if a chunk behind `end` proves that the log was durable further on. */
int log_check_damage(struct log *log, lsn_t end, struct weft_error *err);

#endif
