/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The log's heads: where recovery starts. There are two copies, written in turn. The valid one with
 * the higher generation counts, so a torn write leaves the one before it.
 *
 * The space below the tail is given up only after a head with that tail is durable. The tail never
 * passes the durable end. So recovery from either copy finds a whole log.
 */
#include <errno.h>
#include <string.h>

#include "engine/log/log_internal.h"

static uint64_t head_checksum(struct log *log, const struct disk_log_head *head)
{
	struct iovec iov = {(void *)head, offsetof(struct disk_log_head, checksum)};

	return store_checksum(
		log->store, DISK_PLACE_LOG_HEAD, head->generation, 0, &iov, 1);
}

static bool head_valid(struct log *log, const struct disk_log_head *head)
{
	return head->magic == DISK_MAGIC_LOGHEAD &&
	       head_checksum(log, head) == head->checksum && head->generation > 0 &&
	       head->tail_lsn % BLOCK == 0 && head->tail_lsn >= log->ring_bytes &&
	       head->tail_lsn < LSN_LIMIT && head->clean <= 1 &&
	       head->epoch <= log->incarnation;
}

/* mkfs writes the first copy only. */
static bool head_never_written(
	const struct disk_log_head *head, const struct disk_log_head *other)
{
	static const struct disk_log_head zeros;

	return other->generation == 1 && memcmp(head, &zeros, sizeof(zeros)) == 0;
}

/* Sets log->head to the newest valid one. `other_bad`: the other copy is not readable as
 * a head, so a newer one may have been there. */
int head_read(struct log *log, bool *other_bad, struct weft_error *err)
{
	uint8_t *both = rt_alloc_pages(DISK_LOG_HEADS_BYTES);
	const struct disk_log_head *head[2];
	bool valid[2];
	int error;

	if (!both)
		return weft_error(err, -ENOMEM, "no memory to read the log's heads");
	error = rt_disk_read(log->disk, log->heads_offset, both, DISK_LOG_HEADS_BYTES);
	if (error) {
		weft_error(err, error,
			"reading the log's heads at store offset %llu failed",
			(unsigned long long)log->heads_offset);
		goto out;
	}
	for (int i = 0; i < 2; i++) {
		head[i] = (const void *)(both + i * sizeof(struct disk_log_head));
		valid[i] = head_valid(log, head[i]);
	}
	if (!valid[0] && !valid[1]) {
		error = weft_error(err, -EUCLEAN,
			"both heads of the log (store offsets %llu and %llu) are "
			"damaged: "
			"where recovery starts is not known; run fsck.weft",
			(unsigned long long)log->heads_offset,
			(unsigned long long)log->heads_offset +
				sizeof(struct disk_log_head));
		goto out;
	}
	log->head_copy =
		!valid[0] || (valid[1] && head[1]->generation > head[0]->generation);
	memcpy(log->head, head[log->head_copy], sizeof(*log->head));
	*other_bad = !valid[!log->head_copy] &&
		     !head_never_written(head[!log->head_copy], log->head);
out:
	rt_free_pages(both, DISK_LOG_HEADS_BYTES);
	return error;
}

/*
 * Writes the other copy and flushes; a failure ends the log. Waits, in a head's turn.
 *
 * The epoch. An earlier life may have written a chunk past the end that recovery then found. It can
 * have the very LSN at which this life goes on. Along the log its epoch shows it: it is lower than
 * that of the chunk before it. At the tail the head must say which epoch is too low. At or past the
 * start of this life that is any epoch but ours. Below it the chunk at the tail is one that
 * recovery found, and the bound so far is as good.
 */
static int head_write_now(struct log *log, lsn_t tail, bool clean)
{
	struct disk_log_head *head = log->head;
	unsigned copy = !log->head_copy;
	uint64_t offset = log->heads_offset + copy * sizeof(*head);
	struct rt_io ios[2];

	head->generation++;
	head->tail_lsn = tail;
	head->clean = clean;
	if (tail >= log->life_lsn)
		head->epoch = log->incarnation;
	head->checksum = head_checksum(log, head);
	rt_io_set(&ios[0], RT_IO_WRITE, offset, head, sizeof(*head));
	rt_io_set(&ios[1], RT_IO_FLUSH, 0, NULL, 0);
	ios[1].after_previous = true;
	rt_disk_run(log->disk, ios, 2);
	for (int i = 0; i < 2; i++) {
		if (ios[i].result == 0)
			continue;
		if (i)
			store_flush_lost(log->store);
		log_fail(log, ios[i].result, i ? "the flush of a head" : "writing a head",
			offset);
		return -EIO;
	}
	if (store_flush_failed(log->store)) {
		log_fail(
			log, -EIO, "a device flush beside the writing of a head", offset);
		return -EIO;
	}
	log->head_copy = copy;
	return 0;
}

int head_write(struct log *log, lsn_t tail, bool clean)
{
	int error = -EIO;

	head_turn_begin(log);
	if (!log_is_failed(log))
		error = head_write_now(log, tail, clean);
	head_turn_end(log);
	return error;
}

int head_rewrite(struct log *log)
{
	return rt_disk_write(log->disk,
		log->heads_offset + log->head_copy * sizeof(*log->head), log->head,
		sizeof(*log->head));
}

/* The head at `tail` is durable: frees the ring below it. */
void tail_set(struct log *log, lsn_t tail)
{
	lsn_t before = log_tail(log);
	uint64_t freed = tail - before;

	rt_mutex_lock(&log->append_lock);
	/* Skips are not charged (room.c). The tail is never inside of one. */
	if (log->gap_start >= before && tail >= log->gap_end && log->gap_end > before) {
		freed -= log->gap_end - log->gap_start;
		log->gap_start = log->gap_end = LSN_NONE;
	}
	atomic_store_explicit(&log->tail, tail, memory_order_release);
	log->pressed = ring_half_full(log, log_end(log));
	rt_mutex_unlock(&log->append_lock);
	room_give_back(log, 0, freed);
}

int log_advance_tail(struct log *log, lsn_t lsn)
{
	int error = 0;
	lsn_t durable, tail;

	rt_mutex_lock(&log->head_lock);
	tail = log_tail(log);
	durable = log_durable(log); /* before durable_records: see round_write */
	if (lsn >= atomic_load_explicit(&log->durable_records, memory_order_acquire)) {
		lsn = durable;
	} else {
		rt_mutex_lock(&log->append_lock);
		lsn = starts_at_or_below(log, MIN(lsn, durable), tail);
		rt_mutex_unlock(&log->append_lock);
	}
	if (log_is_failed(log)) {
		error = -EIO;
	} else if (lsn > tail) {
		error = head_write(log, lsn, false);
		if (!error)
			tail_set(log, lsn);
	}
	rt_mutex_unlock(&log->head_lock);
	return error;
}
