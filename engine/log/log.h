/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The node's redo log: append, group commit, scan (docs/design.md).
 *
 * Records are appended to a buffer in memory, which never waits. Room in the buffer and in the ring
 * is reserved before, while no latch is held (invariant 6). A call of log_flush makes the log
 * durable up to an LSN. One device flush serves all tasks that wait. The callers keep invariant 3:
 * they flush before they write images.
 *
 * An LSN is the position of a record's end in the endless log. A record is durable if log_durable()
 * >= its LSN. The LSN that pins the tail is the earliest possible start of the record's chunk. Both
 * are returned by log_append.
 */
#ifndef WEFT_LOG_H
#define WEFT_LOG_H

#include "engine/store/store.h"

struct log;

struct log_options {
	size_t buffer_bytes; /* 0: 8 MiB. From 1 MiB to a quarter of the ring, rounded to a power
			      * of two */
	uint64_t flush_interval_ms; /* interval of background flushes; 0: 5000; UINT64_MAX: none */
};

/* Longest record with its header, in rings of at least 4 MiB (the smallest that mkfs makes). */
#define LOG_RECORD_MAX (512u << 10)

/*
 * Checks a sequence of records byte by byte: types, lengths, the bounds of each part and of each
 * range. `payload` needs no alignment. Returns 0, or -EUCLEAN with a text. Pure: has no side
 * effects.
 */
int log_check_records(const void *payload, size_t bytes, struct weft_error *err);

/* One record that log_scan visits. The memory is valid during the call. */
struct log_entry {
	lsn_t start; /* LSN of its chunk: pins the tail */
	lsn_t end;   /* LSN of the record */
	const struct disk_log_record *record; /* the bounds of the record and of its parts are
					       * checked */
	size_t bytes; /* of checked records in memory, from this one on */
};
/* Visits a record. If it returns a value other than 0, the scan stops with that value. */
typedef int (*log_visit)(void *arg, const struct log_entry *entry);

/*
 * Reads the heads and finds the log's end; writes nothing. *clean: the log was closed cleanly.
 * Returns 0 or a negative errno. -EUCLEAN has a text: both heads are bad, or a chunk is bad that a
 * later chunk calls durable. Waits.
 */
int log_open(struct log **out, struct store *s, const struct log_options *o, bool *clean,
	struct weft_error *err);
/* Visits each record in order, from the tail to the end found at open. Can be repeated until the
 * tail is advanced. Returns 0, -EUCLEAN (logged) for a malformed record, -EIO or -ENOMEM. Waits. */
int log_scan(struct log *log, log_visit visit, void *arg);
/* Makes all recovered records durable and starts the background writer. Appends may follow, and
 * writes of recovered images. Not for read-only stores. Returns 0 or a negative errno. Waits. */
int log_start(struct log *log);
/* Closes the log without a flush: records that are not durable are lost. For a clean end, call
 * log_shut before. */
void log_close(struct log *log);
/* Marks the log empty and clean. The caller has persisted all pages and appends nothing any more.
 * Returns 0 or a negative errno. Waits. */
int log_shut(struct log *log);

/* ---- room ---- */

struct log_room {
	uint32_t bytes;
	uint32_t records; /* records that may still be appended from it */
	uint32_t charge;  /* internal to the log */
};
/* Most records that may be appended from one room of this size in bytes. */
#define LOG_ROOM_RECORDS(bytes) (4u + (bytes) / 16384u)
/*
 * Reserves room for `bytes` of records, headers included, and at most LOG_ROOM_RECORDS(bytes)
 * records. `urgent`: for descriptor and checkpoint records. May use the urgent reserve, so that
 * persisting does not wait for itself. Waits while the buffer or the ring is full; call it with
 * nothing held, no other room either. Returns 0 or:
 *
 * - -EROFS: the log has failed or was shut;
 * - -E2BIG: more than log_room_max;
 * - -ENOBUFS: the urgent reserve is used up until the tail moves. (-ENOSPC is left to devices.)
 */
int log_reserve(struct log *log, uint32_t bytes, bool urgent, struct log_room *room);
/* Works as log_reserve without `urgent`, but does not wait for the ring: returns -ENOBUFS if it has
 * no room now. */
int log_reserve_now(struct log *log, uint32_t bytes, struct log_room *room);
/* Ends all waits for room in the ring, now and later: ordinary reservations end with -EIO. */
void log_reserve_cut(struct log *log);
/* Releases the remaining room. Call it even if all bytes are used. Does nothing for a zeroed room.
 * Never waits. */
void log_release(struct log *log, struct log_room *room);
/* Returns true if at least half of the urgent reserve is used. */
bool log_reserve_short(struct log *log);
/* Returns the bytes of the ring that ordinary reservations may take now. */
uint64_t log_room_left(struct log *log);
/* Returns the largest reservation in bytes that this log can ever grant. */
uint32_t log_room_max(struct log *log, bool urgent);

/* ---- append ---- */

struct log_position {
	lsn_t start; /* pins the tail */
	lsn_t end;   /* flush the log up to here */
};
/*
 * Appends one record that consists of the pieces. The first piece begins with a disk_log_record.
 * Its record_bytes is the total, a multiple of 8. Takes from `room`. Never waits and never fails.
 * After a device error the record is dropped (see log_failed), and a flush to its end fails.
 */
struct log_position log_append(struct log *log, struct log_room *room,
	const struct iovec *iov, unsigned iov_count);

/* ---- durability ---- */

lsn_t log_end(struct log *log);     /* end of the last appended record */
lsn_t log_durable(struct log *log); /* all records up to here are durable */
/*
 * Waits until the log is durable up to `lsn`. One flush serves all tasks that wait. `lsn` is at
 * most log_end, or the end of a dropped record. Returns 0, or -EIO if the log has failed and `lsn`
 * is not durable. Waits.
 */
int log_flush(struct log *log, lsn_t lsn);
/* Makes the log fail, as an error of its device does. For errors that keep the ring from being
 * freed, or that hit a client's log on the same device. */
void log_give_up(struct log *log, int error);
/* Returns the errno with which the device failed, or 0. */
int log_failed(struct log *log);
/* Sets a function that is called when the log fails, or at once if it has failed. Any task may call
 * it. It must not wait, and may be called twice. NULL: removes it; afterwards it does not run. */
void log_on_failure(struct log *log, void (*fn)(void *owner), void *owner);

/* ---- the tail ---- */

lsn_t log_tail(struct log *log);
uint64_t log_used_bytes(struct log *log);
uint64_t log_ring_bytes(struct log *log);
/* Returns true if a checkpoint is due. Then more than half of the ring for ordinary reservations is
 * in use, or one waits for room in it. */
bool log_wants_checkpoint(struct log *log);
/* Returns a word for rt_wait. It changes when log_wants_checkpoint becomes true, or when a
 * reservation begins to wait. */
_Atomic uint32_t *log_pressure_word(struct log *log);
/*
 * Frees ring space below `lsn`, when the head is durable. Any value is allowed. The tail moves to
 * the last chunk that starts at or below `lsn`. If all durable records lie below, it moves to their
 * end. It never moves back. Returns 0 or a negative errno. Waits.
 */
int log_advance_tail(struct log *log, lsn_t lsn);

struct log_counters {
	_Atomic uint64_t records, record_bytes, chunks, chunk_bytes, flushes, flush_waits,
		reserve_waits;
};
struct log_counters *log_counters(struct log *log);

#endif
