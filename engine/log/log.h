/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The node's redo log: append, group commit, scan (docs/design.md).
 *
 * Records are appended to a buffer in memory and never wait; room in the buffer and
 * in the ring is reserved beforehand, before any latch is taken (invariant 6).
 * log_flush makes everything up to an LSN durable; one device flush serves all who
 * wait. Invariant 3 is the callers': they flush before they write images.
 *
 * An LSN names a record's end in the endless log: a record is durable once
 * log_durable() >= its LSN. The LSN that pins the tail is where the record's chunk
 * can start at the earliest: log_append returns both.
 */
#ifndef WEFT_LOG_H
#define WEFT_LOG_H

#include "engine/store/store.h"

struct log;

struct log_options {
	size_t buffer_bytes; /* 0: 8 MiB. From 1 MiB to a quarter of the ring, made a
				power of two */
	uint64_t flush_interval_ms; /* background flush of appended records; 0: 5000;
				       UINT64_MAX: none */
};

/* Longest record, header included, in rings of 4 MiB (the least mkfs makes) and more. */
#define LOG_RECORD_MAX (512u << 10)

/*
 * Checks a sequence of records byte by byte: types, lengths, every part's bounds within
 * its record and every range's within its page. `payload` needs no alignment. 0, or
 * -EUCLEAN with a text. Pure.
 */
int log_check_records(const void *payload, size_t bytes, struct weft_error *err);

/* One record seen by log_scan. The memory is valid during the call. */
struct log_entry {
	lsn_t start;                          /* pins the tail: LSN of its chunk */
	lsn_t end;                            /* the record's LSN */
	const struct disk_log_record *record; /* bounds of record and parts are checked */
	size_t bytes; /* of checked records from this one on that follow each other in
			 memory */
};
/* Non-zero return stops the scan with that value. */
typedef int (*log_visit)(void *arg, const struct log_entry *entry);

/*
 * Reads the heads and finds the log's end. Nothing is written. `*clean` tells whether
 * the log was closed cleanly. -EUCLEAN with a text for damage: both heads bad, or a
 * bad chunk below an LSN that a later chunk says was durable.
 */
int log_open(struct log **out, struct store *s, const struct log_options *o, bool *clean,
	struct weft_error *err);
/* Visits every record from the tail to the end found at open, in order. Waits. Repeatable
 * until the tail is advanced. -EUCLEAN (logged) for a malformed record, -EIO, -ENOMEM. */
int log_scan(struct log *log, log_visit visit, void *arg);
/* Makes all that was recovered durable and starts the background writer; appends, and
 * writes that rest on what was recovered, may follow. Not for read-only stores. Waits. */
int log_start(struct log *log);
/* Flushes nothing: what is not durable is lost. Use log_shut for a clean end. */
void log_close(struct log *log);
/* Marks the log empty and clean; the caller has persisted everything and stopped
 * appending. */
int log_shut(struct log *log);

/* ---- room ---- */

struct log_room {
	uint32_t bytes;
	uint32_t records; /* how many may still be appended from it */
	uint32_t charge;  /* the log's own */
};
/* Records that may be appended from one room of so many bytes. */
#define LOG_ROOM_RECORDS(bytes) (4u + (bytes) / 16384u)
/*
 * Reserves room for `bytes` of records (headers included), at most
 * LOG_ROOM_RECORDS(bytes) of them. Waits while the buffer or the ring is full; call it
 * holding nothing, no room either. -EROFS once the log has failed or was shut, -E2BIG
 * above log_room_max. `urgent`: for descriptor and checkpoint records, may use the
 * reserve that keeps persisting from waiting for itself. -ENOBUFS: that reserve is used
 * up, too, until the tail moves. (-ENOSPC is left to devices.)
 */
int log_reserve(struct log *log, uint32_t bytes, bool urgent, struct log_room *room);
/* The same of an ordinary reservation, without waiting for the ring: -ENOBUFS where it has no room now. */
int log_reserve_now(struct log *log, uint32_t bytes, struct log_room *room);
/* From here on nobody waits for room in the ring: ordinary reservations end with -EIO instead. */
void log_reserve_cut(struct log *log);
/* What is left of it; to be called even if all bytes are used. No-op on a zeroed room. */
void log_release(struct log *log, struct log_room *room);
/* Is half of that reserve used, or more? */
bool log_reserve_short(struct log *log);
/* How much of the ring ordinary reservations may still take, now. */
uint64_t log_room_left(struct log *log);
/* The largest reservation that this log can ever grant. */
uint32_t log_room_max(struct log *log, bool urgent);

/* ---- append ---- */

struct log_position {
	lsn_t start; /* pins the tail */
	lsn_t end;   /* flush to here */
};
/*
 * Appends one record made of the pieces (the first begins with a disk_log_record whose
 * record_bytes is the total, a multiple of 8). Takes from `room`. Never waits, never
 * fails; after a device error the record is dropped (log_failed tells), and a flush to
 * its end fails.
 */
struct log_position log_append(struct log *log, struct log_room *room,
	const struct iovec *iov, unsigned iov_count);

/* ---- durability ---- */

lsn_t log_end(struct log *log);     /* end of the last record appended */
lsn_t log_durable(struct log *log); /* all below is durable */
/* Waits until durable >= lsn. One flush for all who wait. -EIO once the log has failed,
 * unless lsn is durable already. `lsn` is at most log_end, or a dropped record's end. */
int log_flush(struct log *log, lsn_t lsn);
/* Ends the log as an error of its device does: what it frees its ring by, or the log of a
 * client on the same device, cannot be written. */
void log_give_up(struct log *log, int error);
/* The errno with which the device failed, or 0. */
int log_failed(struct log *log);
/*
 * `fn` is told when the log fails, or if it has, by whichever task finds it: it must not
 * wait, and may be told twice. NULL: nobody is, and when this returns nobody is being told.
 */
void log_on_failure(struct log *log, void (*fn)(void *owner), void *owner);

/* ---- the tail ---- */

lsn_t log_tail(struct log *log);
uint64_t log_used_bytes(struct log *log);
uint64_t log_ring_bytes(struct log *log);
/* True when over half of the ring that ordinary reservations may use is in use, or one
 * waits for ring room: time to checkpoint. */
bool log_wants_checkpoint(struct log *log);
/* A word that changes when log_wants_checkpoint becomes true or a reserver waits (rt_wait
 * on it). */
_Atomic uint32_t *log_pressure_word(struct log *log);
/* Nothing below `lsn` is needed: frees ring space once the head is durable. Any value
 * will do: the tail goes to the last chunk that starts at or below it, to the end of what
 * is durable if all durable records lie below it, and never back. Waits. */
int log_advance_tail(struct log *log, lsn_t lsn);

struct log_counters {
	_Atomic uint64_t records, record_bytes, chunks, chunk_bytes, flushes, flush_waits,
		reserve_waits;
};
struct log_counters *log_counters(struct log *log);

#endif
