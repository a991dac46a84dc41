/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opening, starting and closing the log.
 *
 * A life of the log: log_open finds the log of the last life. Before the first append, log_start
 * says in the head that the log is not clean. log_shut says that it is.
 */
#include <errno.h>

#include "engine/log/log_internal.h"

/* ---- open -------------------------------------------------------------------------- */

static uint64_t power_of_two_up(uint64_t x)
{
	uint64_t p = 1;

	while (p < x)
		p <<= 1;
	return p;
}

static int sizes_set(struct log *log, const struct log_options *o, struct weft_error *err)
{
	const struct disk_superblock *sb = store_superblock(log->store);
	uint64_t buffer_bytes =
		o && o->buffer_bytes ? o->buffer_bytes : BUFFER_DEFAULT_BYTES;
	uint64_t interval_ms = o && o->flush_interval_ms ? o->flush_interval_ms
							 : FLUSH_INTERVAL_DEFAULT_MS;

	if (sb->log_bytes < DISK_LOG_HEADS_BYTES + RING_MIN_BYTES ||
		sb->log_bytes % BLOCK != 0 || sb->log_bytes > LSN_LIMIT)
		return weft_error(err, -EUCLEAN,
			"the superblock gives the log %llu bytes",
			(unsigned long long)sb->log_bytes);
	log->shard = sb->shard;
	log->incarnation = sb->incarnation;
	log->heads_offset = sb->log_offset;
	log->ring_offset = sb->log_offset + DISK_LOG_HEADS_BYTES;
	log->ring_bytes = sb->log_bytes - DISK_LOG_HEADS_BYTES;
	/* The limits of chunks and skips depend on the ring alone. The next life, with other
	 * options, must read them and go on behind them. */
	buffer_bytes = MIN(MAX(buffer_bytes, DISK_CHUNK_MAX_BYTES), BUFFER_MAX_BYTES);
	log->buffer_bytes = power_of_two_up(MIN(buffer_bytes, log->ring_bytes / 4));
	log->chunk_max = MIN(log->ring_bytes / 4, DISK_CHUNK_MAX_BYTES);
	log->chunk_max -= log->chunk_max % BLOCK;
	log->record_max = MIN(LOG_RECORD_MAX, log->chunk_max - CHUNK_HEADER);
	log->skip_max = ALIGN_UP(CHUNK_HEADER + log->record_max, BLOCK);
	log->flush_interval_ns =
		interval_ms >= RT_FOREVER / 1000000 ? RT_FOREVER : interval_ms * 1000000;
	room_limits_set(log);
	return 0;
}

static size_t starts_bytes(const struct log *log)
{
	return DIV_UP(log->ring_bytes / BLOCK, 64) * sizeof(uint64_t);
}

static int memory_get(struct log *log, struct weft_error *err)
{
	log->buffer = rt_alloc_pages(log->buffer_bytes);
	log->starts = rt_alloc(starts_bytes(log));
	log->head = rt_alloc_pages(sizeof(*log->head));
	if (!log->buffer || !log->starts || !log->head)
		return weft_error(err, -ENOMEM,
			"no memory for the log's buffer of %llu bytes",
			(unsigned long long)log->buffer_bytes);
	rt_disk_register(log->disk, log->buffer, log->buffer_bytes);
	return 0;
}

/*
 * The end of the log of the last life. A clean head stands only until the next life's first head is
 * durable, and that one precedes every chunk. Chunks of a later epoch than a clean head allows for
 * mean that the newer head got lost. Then the log is not clean.
 */
static int end_find(
	struct log *log, bool *clean, struct log_walk *walk, struct weft_error *err)
{
	bool other_bad;
	int error = head_read(log, &other_bad, err);

	if (error)
		return error;
	*clean = log->head->clean;
	atomic_store_explicit(&log->tail, log->head->tail_lsn, memory_order_relaxed);
	error = log_walk_chunks(log, log->head->epoch + *clean, walk, err);
	if (error)
		return error;
	if (walk->chunks > 0 && *clean) {
		weft_log(4, "the log's newest head is lost; recovering from the one "
			    "before it");
		*clean = false;
	}
	return *clean && !other_bad ? 0 : log_check_damage(log, walk->end, err);
}

static void positions_set(struct log *log, const struct log_walk *walk)
{
	lsn_t tail = log_tail(log);

	log->life_lsn = walk->end;
	log->proven_lsn = walk->proven;
	log->chunk_lsn = walk->end;
	log->follows_lsn = walk->end;
	log->round_lsn = walk->end;
	log->gap_start = walk->gap_start;
	log->gap_end = walk->gap_end;
	atomic_store_explicit(&log->end, walk->end, memory_order_relaxed);
	atomic_store_explicit(&log->durable, walk->end, memory_order_relaxed);
	atomic_store_explicit(
		&log->durable_records, walk->records_end, memory_order_relaxed);
	atomic_store_explicit(&log->ring_charged,
		walk->end - tail - (walk->gap_end - walk->gap_start),
		memory_order_relaxed);
	log->pressed = ring_half_full(log, walk->end);
}

int log_open(struct log **out, struct store *s, const struct log_options *o, bool *clean,
	struct weft_error *err)
{
	struct log *log = rt_alloc(sizeof(*log));
	struct log_walk walk;
	int error;

	*out = NULL;
	if (!log)
		return weft_error(err, -ENOMEM, "no memory for the log");
	log->store = s;
	log->disk = store_disk(s);
	/* Nobody may append before log_start. */
	atomic_store_explicit(&log->closed, 1, memory_order_relaxed);
	error = sizes_set(log, o, err);
	if (!error)
		error = memory_get(log, err);
	if (!error)
		error = end_find(log, clean, &walk, err);
	if (error) {
		log_close(log);
		return error;
	}
	positions_set(log, &walk);
	*out = log;
	return 0;
}

/* ---- start and end --------------------------------------------------------------- */

/*
 * The bytes that recovery read may be in a device's cache only. If a flush has failed there, no
 * later flush need make them durable. So bytes that no chunk calls durable are written once more,
 * the same, and flushed before this life builds on them. They are at most those that were under way
 * together.
 */
static int recovered_secure(struct log *log)
{
	int error = log_rewrite(log);

	if (!error)
		error = head_rewrite(log);
	if (!error)
		error = rt_disk_flush(log->disk);
	return error;
}

int log_start(struct log *log)
{
	int error = recovered_secure(log);

	if (error)
		return error;
	/* Also makes the epoch ours if nothing is left to recover. */
	rt_mutex_lock(&log->head_lock);
	error = head_write(log, log_tail(log), false);
	rt_mutex_unlock(&log->head_lock);
	if (error)
		return error;
	error = background_start(log);
	if (error)
		return error;
	atomic_store_explicit(&log->closed, 0, memory_order_release);
	return 0;
}

int log_shut(struct log *log)
{
	lsn_t end;
	int error;

	atomic_store_explicit(&log->closed, 1, memory_order_seq_cst);
	room_wake(log);
	background_stop(log);
	error = log_flush(log, log_end(log));
	if (error || log_is_failed(log))
		return -EIO;
	end = log_durable(log);
	rt_mutex_lock(&log->head_lock);
	error = head_write(log, end, true);
	if (!error)
		tail_set(log, end);
	rt_mutex_unlock(&log->head_lock);
	return error;
}

void log_close(struct log *log)
{
	if (!log)
		return;
	background_stop(log);
	if (log->head)
		rt_free_pages(log->head, sizeof(*log->head));
	if (log->buffer)
		rt_free_pages(log->buffer, log->buffer_bytes);
	rt_free(log->starts);
	rt_free(log);
}

/* ---- what others ask ------------------------------------------------------------- */

lsn_t log_end(struct log *log)
{
	return atomic_load_explicit(&log->end, memory_order_acquire);
}

lsn_t log_durable(struct log *log)
{
	return atomic_load_explicit(&log->durable, memory_order_acquire);
}

int log_failed(struct log *log)
{
	return atomic_load_explicit(&log->failed, memory_order_acquire);
}

lsn_t log_tail(struct log *log)
{
	return atomic_load_explicit(&log->tail, memory_order_acquire);
}

uint64_t log_used_bytes(struct log *log)
{
	/* The tail first: it may pass the end of the last record by that chunk's padding.
	 */
	lsn_t tail = log_tail(log);
	lsn_t end = log_end(log);

	return end > tail ? end - tail : 0;
}

uint64_t log_ring_bytes(struct log *log)
{
	return log->ring_bytes;
}

bool log_wants_checkpoint(struct log *log)
{
	return ring_half_full(log, log_end(log)) ||
	       atomic_load_explicit(&log->ring_waiters, memory_order_acquire) > 0;
}

_Atomic uint32_t *log_pressure_word(struct log *log)
{
	return &log->pressure;
}

struct log_counters *log_counters(struct log *log)
{
	return &log->counters;
}
