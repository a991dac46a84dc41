/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading the log after a start: where it ends, whether it is damaged, its records.
 *
 * The log is the chain of valid chunks from the tail. Each lies at the LSN where the one before it
 * ended. Or it lies at the ring's start, if it says that it follows that LSN with a skip. Its epoch
 * is not lower. The first that is missing is the torn end. If a later chunk says that the log was
 * durable beyond, it is damage. Nothing read is trusted (invariant 9).
 */
#include <errno.h>
#include <string.h>

#include "engine/log/log_internal.h"

/* ---- a window on the ring -------------------------------------------------------- */

/* Of the window at most; it starts with one part and grows as long as it is read in
 * order. */
#define WINDOW_PARTS 8u
#define PART_BYTES   DISK_CHUNK_MAX_BYTES /* of one request */
#define WINDOW_BYTES ((uint64_t)WINDOW_PARTS * PART_BYTES)

struct log_reader {
	struct log *log;
	uint8_t *window; /* WINDOW_BYTES */
	lsn_t lsn;       /* of its first byte */
	uint64_t bytes;  /* valid in it; never past the ring's end */
	uint64_t want;   /* how many to have in it after the next read */
	int error;       /* of the device */
};

static int reader_open(struct log_reader *r, struct log *log)
{
	*r = (struct log_reader){
		.log = log, .window = rt_alloc_pages(WINDOW_BYTES), .want = PART_BYTES};
	return r->window ? 0 : -ENOMEM;
}

static void reader_close(struct log_reader *r)
{
	rt_free_pages(r->window, WINDOW_BYTES);
}

/* Reads [r->lsn + r->bytes, r->lsn + until), in requests that overlap. */
static int window_read(struct log_reader *r, uint64_t until)
{
	struct rt_io ios[WINDOW_PARTS + 1];
	unsigned count = 0;

	for (uint64_t at = r->bytes; at < until; at += PART_BYTES)
		rt_io_set(&ios[count++], RT_IO_READ, ring_place(r->log, r->lsn + at),
			r->window + at, MIN(until - at, (uint64_t)PART_BYTES));
	rt_disk_run(r->log->disk, ios, count);
	for (unsigned i = 0; i < count; i++)
		if (ios[i].result)
			return ios[i].result;
	return 0;
}

/* Moves the window to lsn. The bytes that it has from there on are kept. */
static void window_move(struct log_reader *r, lsn_t lsn)
{
	uint64_t skipped = lsn - r->lsn, until;

	if (lsn >= r->lsn && lsn <= r->lsn + r->bytes && r->bytes > 0) {
		r->bytes -= skipped;
		memmove(r->window, r->window + skipped, r->bytes);
		r->want = MIN(r->want * 2, WINDOW_BYTES);
	} else {
		r->bytes = 0;
		r->want = PART_BYTES;
	}
	r->lsn = lsn;
	until = MIN(ring_rest(r->log, lsn), r->want);
	r->error = until > r->bytes ? window_read(r, until) : 0;
	r->bytes = r->error ? 0 : MAX(until, r->bytes);
}

/* The `bytes` (<= 1 MiB, not past the ring's end) from lsn; NULL with r->error. Waits. */
static const uint8_t *reader_bytes(struct log_reader *r, lsn_t lsn, uint64_t bytes)
{
	if (lsn < r->lsn || lsn + bytes > r->lsn + r->bytes) {
		window_move(r, lsn);
		if (r->error)
			return NULL;
		WEFT_ASSERT(bytes <= r->bytes);
	}
	return r->window + (lsn - r->lsn);
}

/* ---- one chunk --------------------------------------------------------------------- */

static bool chunk_plausible(struct log *log, const struct disk_log_chunk *c, lsn_t lsn)
{
	return c->magic == DISK_MAGIC_CHUNK && c->lsn == lsn && c->shard == log->shard &&
	       c->chunk_bytes % BLOCK == 0 && c->chunk_bytes >= BLOCK &&
	       c->chunk_bytes <= DISK_CHUNK_MAX_BYTES &&
	       c->chunk_bytes <= ring_rest(log, lsn) && c->payload_bytes > 0 &&
	       c->payload_bytes % 8 == 0 &&
	       c->payload_bytes <= c->chunk_bytes - CHUNK_HEADER &&
	       c->epoch <= log->incarnation && c->durable_lsn <= lsn &&
	       c->durable_lsn % BLOCK == 0 && c->follows_lsn <= lsn &&
	       lsn - c->follows_lsn < log->skip_max;
}

static uint64_t chunk_checksum(struct log *log, const struct disk_log_chunk *chunk)
{
	struct disk_log_chunk header = *chunk;
	struct iovec iov[2] = {{&header, sizeof(header)}, {(void *)(chunk + 1), 0}};

	header.checksum = 0;
	iov[1].iov_len = chunk->payload_bytes;
	return store_checksum(
		log->store, DISK_PLACE_LOG, chunk->lsn, chunk->epoch, iov, 2);
}

/* The chunk at lsn, whole and checked; NULL if there is none, or with r->error. Waits. */
static const struct disk_log_chunk *reader_chunk(struct log_reader *r, lsn_t lsn)
{
	const struct disk_log_chunk *chunk = (const void *)reader_bytes(r, lsn, BLOCK);

	if (!chunk || !chunk_plausible(r->log, chunk, lsn))
		return NULL;
	chunk = (const void *)reader_bytes(r, lsn, chunk->chunk_bytes);
	if (!chunk || chunk_checksum(r->log, chunk) != chunk->checksum)
		return NULL;
	return chunk;
}

/* The chunk that continues the log at lsn, here or behind a skip. The chunk before the one at the
 * tail is gone, and may have ended before a skip. */
static const struct disk_log_chunk *reader_next(
	struct log_reader *r, lsn_t lsn, uint64_t epoch_min)
{
	const struct disk_log_chunk *chunk = reader_chunk(r, lsn);
	uint64_t rest = ring_rest(r->log, lsn);

	if (chunk && (chunk->follows_lsn == lsn || lsn == log_tail(r->log)) &&
		chunk->epoch >= epoch_min)
		return chunk;
	if (r->error || rest >= r->log->skip_max)
		return NULL;
	chunk = reader_chunk(r, lsn + rest);
	if (chunk && chunk->follows_lsn == lsn && chunk->epoch >= epoch_min)
		return chunk;
	return NULL;
}

static int reader_failure(struct log_reader *r, lsn_t lsn, struct weft_error *err)
{
	return weft_error(err, r->error,
		"reading the log near store offset %llu (LSN %llu) failed",
		(unsigned long long)ring_place(r->log, lsn), (unsigned long long)lsn);
}

/* ---- the end of the log ---------------------------------------------------------- */

/* How far behind the end later chunks are looked for. */
#define DAMAGE_SEARCH_BYTES (64ull << 20)

int log_walk_chunks(
	struct log *log, uint64_t epoch, struct log_walk *out, struct weft_error *err)
{
	lsn_t tail = log_tail(log);
	const struct disk_log_chunk *chunk;
	struct log_reader r;

	*out = (struct log_walk){.end = tail, .records_end = tail, .proven = tail};
	if (reader_open(&r, log))
		return weft_error(err, -ENOMEM, "no memory to read the log");
	while ((chunk = reader_next(&r, out->end, epoch)) != NULL) {
		/* A skip over the tail would be a second lap. */
		if (chunk->lsn + chunk->chunk_bytes > tail + log->ring_bytes)
			break;
		if (chunk->lsn != out->end) {
			out->gap_start = out->end;
			out->gap_end = chunk->lsn;
		}
		starts_mark(log, chunk->lsn, chunk->chunk_bytes);
		epoch = chunk->epoch;
		out->proven = MAX(tail, chunk->durable_lsn);
		out->records_end = chunk->lsn + CHUNK_HEADER + chunk->payload_bytes;
		out->end = chunk->lsn + chunk->chunk_bytes;
		out->chunks++;
	}
	reader_close(&r);
	return r.error ? reader_failure(&r, out->end, err) : 0;
}

/*
 * Chunks in flight together with one that a power cut lost may have landed behind it. That is no
 * damage, as such chunks do not say that the lost one was durable. A chunk that was written after
 * `end` had been passed durably does. Chunks of earlier laps have lower LSNs.
 *
 * The first chunk of any later round says so, and it starts where the one before it ends. So it
 * lies near, unless all chunks over a long stretch are damaged. Looking further would cost each
 * mount after a crash as much time as reading the ring.
 */
int log_check_damage(struct log *log, lsn_t end, struct weft_error *err)
{
	lsn_t limit = MIN(log_tail(log) + log->ring_bytes, end + DAMAGE_SEARCH_BYTES);
	struct log_reader r;
	int error = 0;

	if (reader_open(&r, log))
		return weft_error(err, -ENOMEM, "no memory to read the log");
	for (lsn_t lsn = end; lsn < limit && !error; lsn += BLOCK) {
		const struct disk_log_chunk *chunk =
			(const void *)reader_bytes(&r, lsn, BLOCK);

		if (chunk && chunk->magic == DISK_MAGIC_CHUNK && chunk->lsn == lsn &&
			chunk->durable_lsn > end)
			chunk = reader_chunk(&r, lsn);
		else
			chunk = NULL;
		if (r.error)
			error = reader_failure(&r, lsn, err);
		else if (chunk)
			error = weft_error(err, -EUCLEAN,
				"the log is damaged at ring offset %llu (LSN %llu): no "
				"valid chunk "
				"there, but the one at LSN %llu says that all below LSN "
				"%llu was "
				"durable; run fsck.weft",
				(unsigned long long)(end % log->ring_bytes),
				(unsigned long long)end, (unsigned long long)lsn,
				(unsigned long long)chunk->durable_lsn);
	}
	reader_close(&r);
	return error;
}

int log_rewrite(struct log *log)
{
	lsn_t lsn = log->proven_lsn;
	struct log_reader r;
	int error = reader_open(&r, log);

	if (error)
		return error;
	while (lsn < log->life_lsn && !error) {
		uint64_t now = MIN(MIN(log->life_lsn - lsn, ring_rest(log, lsn)),
			DISK_CHUNK_MAX_BYTES);
		const uint8_t *bytes = reader_bytes(&r, lsn, now);

		error = bytes ? rt_disk_write(log->disk, ring_place(log, lsn), bytes, now)
			      : r.error;
		lsn += now;
	}
	reader_close(&r);
	return error;
}

/* ---- records --------------------------------------------------------------------- */

static int scan_chunk(const struct disk_log_chunk *chunk, log_visit visit, void *arg)
{
	const uint8_t *payload = (const uint8_t *)(chunk + 1);
	struct weft_error err = {0};
	int result = log_check_records(payload, chunk->payload_bytes, &err);

	if (result) {
		weft_log(3, "the log's chunk at LSN %llu is malformed: %s",
			(unsigned long long)chunk->lsn, err.text);
		return result;
	}
	for (uint32_t at = 0; at < chunk->payload_bytes && !result;) {
		const struct disk_log_record *record = (const void *)(payload + at);
		struct log_entry entry = {.start = chunk->lsn,
			.record = record,
			.bytes = chunk->payload_bytes - at};

		at += record->record_bytes;
		entry.end = chunk->lsn + CHUNK_HEADER + at;
		result = visit(arg, &entry);
	}
	return result;
}

int log_scan(struct log *log, log_visit visit, void *arg)
{
	lsn_t at = log_tail(log);
	struct log_reader r;
	int result = reader_open(&r, log);

	if (result)
		return result;
	while (at < log->life_lsn && !result) {
		const struct disk_log_chunk *chunk = reader_next(&r, at, 0);

		if (r.error) {
			weft_log(3, "reading the log at LSN %llu failed (errno %d)",
				(unsigned long long)at, -r.error);
			result = -EIO;
		} else if (!chunk) {
			weft_log(3,
				"the log's chunk at LSN %llu was valid and is not any "
				"more",
				(unsigned long long)at);
			result = -EUCLEAN;
		} else {
			at = chunk->lsn + chunk->chunk_bytes;
			result = scan_chunk(chunk, visit, arg);
		}
	}
	reader_close(&r);
	return result;
}
