/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the log's tests share: a disk that holds nothing but a log, the three functions of
 * the store that the log calls, and records whose content tells which they are.
 */
#ifndef WEFT_TESTS_LOG_FIXTURE_H
#define WEFT_TESTS_LOG_FIXTURE_H

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "engine/log/log.h"

struct store {
	struct disk_superblock sb;
	struct rt_disk *disk;
};

const struct disk_superblock *store_superblock(struct store *s)
{
	return &s->sb;
}

struct rt_disk *store_disk(struct store *s)
{
	return s->disk;
}

static inline uint64_t mix(uint64_t x)
{
	x ^= x >> 32;
	x *= 0xd6e8feb86659fd93ull;
	x ^= x >> 32;
	x *= 0xd6e8feb86659fd93ull;
	return x ^ x >> 32;
}

/* The same value however the bytes are split into pieces (multiples of 8). */
uint64_t store_checksum(struct store *s, uint64_t place0, uint64_t place1,
	uint64_t place2, const struct iovec *iov, unsigned iov_count)
{
	uint64_t sum = mix(place0 ^ mix(place1 ^ mix(place2 + 1)));

	(void)s;
	for (unsigned i = 0; i < iov_count; i++) {
		WEFT_ASSERT(iov[i].iov_len % 8 == 0);
		for (size_t at = 0; at < iov[i].iov_len; at += 8) {
			uint64_t word;

			memcpy(&word, (const uint8_t *)iov[i].iov_base + at, 8);
			sum = (sum ^ word) * 0x9e3779b97f4a7c15ull;
			sum ^= sum >> 29;
		}
	}
	return sum;
}

/* The store's other flushes never fail here; the log's own end it. */
void store_flush_lost(struct store *s)
{
}

bool store_flush_failed(struct store *s)
{
	return false;
}

/* The log's place on the test disk. */
#define FIXTURE_LOG_OFFSET 4096ull

static inline void fixture_store(struct store *s, uint64_t ring_bytes)
{
	*s = (struct store){0};
	s->sb.log_offset = FIXTURE_LOG_OFFSET;
	s->sb.log_bytes = DISK_LOG_HEADS_BYTES + ring_bytes;
	s->sb.shard = 3;
	s->sb.incarnation = 1;
}

static inline uint64_t fixture_disk_bytes(uint64_t ring_bytes)
{
	return FIXTURE_LOG_OFFSET + DISK_LOG_HEADS_BYTES + ring_bytes;
}

/* As mkfs leaves it: the first head only. */
static inline void fixture_head_make(struct store *s, struct disk_log_head *head)
{
	struct iovec iov = {head, offsetof(struct disk_log_head, checksum)};

	*head = (struct disk_log_head){
		.magic = DISK_MAGIC_LOGHEAD,
		.generation = 1,
		.tail_lsn = s->sb.log_bytes - DISK_LOG_HEADS_BYTES,
		.clean = 1,
	};
	head->checksum = store_checksum(s, DISK_PLACE_LOG_HEAD, 1, 0, &iov, 1);
}

static inline void fixture_format(struct store *s)
{
	struct disk_log_head *head = rt_alloc_pages(sizeof(*head));

	WEFT_ASSERT(head);
	fixture_head_make(s, head);
	WEFT_ASSERT(rt_disk_write(s->disk, s->sb.log_offset, head, sizeof(*head)) == 0);
	WEFT_ASSERT(rt_disk_flush(s->disk) == 0);
	rt_free_pages(head, sizeof(*head));
}

/* ---- records --------------------------------------------------------------------- */

/* A PERSISTED record of `bytes` (>= 24, multiple of 8): sequence number, salt, pattern.
 */
static inline void record_fill(
	uint64_t *words, uint32_t bytes, uint64_t sequence, uint64_t salt)
{
	struct disk_log_record record = {
		bytes, DISK_LOG_PERSISTED, (uint16_t)(bytes / 8 - 1)};

	memcpy(words, &record, sizeof(record));
	words[1] = sequence;
	words[2] = salt;
	for (uint32_t i = 3; i < bytes / 8; i++)
		words[i] = (sequence << 20 ^ salt << 44) + i;
}

static inline bool record_intact(const struct disk_log_record *record)
{
	const uint64_t *words = (const uint64_t *)record;

	for (uint32_t i = 3; i < record->record_bytes / 8; i++)
		if (words[i] != (words[1] << 20 ^ words[2] << 44) + i)
			return false;
	return record->record_bytes >= 24;
}

/* Appends from a room, in pieces cut at odd places. */
static inline struct log_position record_append_room(struct log *log,
	struct log_room *room, uint32_t bytes, uint64_t sequence, uint64_t salt)
{
	uint64_t *words = rt_alloc(bytes);
	struct iovec iov[3] = {{words, 8}, {(uint8_t *)words + 8, 3},
		{(uint8_t *)words + 11, bytes - 11}};
	struct log_position at;

	WEFT_ASSERT(words);
	record_fill(words, bytes, sequence, salt);
	at = log_append(log, room, iov, 3);
	rt_free(words);
	return at;
}

static inline struct log_position record_append(
	struct log *log, uint32_t bytes, uint64_t sequence, uint64_t salt)
{
	struct log_room room;
	struct log_position at = {0};

	if (log_reserve(log, bytes, false, &room) == 0) {
		at = record_append_room(log, &room, bytes, sequence, salt);
		log_release(log, &room);
	}
	return at;
}

/* ---- what a scan sees ------------------------------------------------------------ */

struct seen {
	uint64_t count, first, last;
	uint64_t salt_last;
	lsn_t end;
	bool in_order, intact;
};

static inline int seen_visit(void *arg, const struct log_entry *entry)
{
	const uint64_t *words = (const uint64_t *)entry->record;
	struct seen *seen = arg;

	if (seen->count == 0)
		seen->first = words[1];
	else if (words[1] != seen->last + 1 || entry->end <= seen->end)
		seen->in_order = false;
	if (!record_intact(entry->record) || entry->start >= entry->end)
		seen->intact = false;
	seen->last = words[1];
	seen->salt_last = words[2];
	seen->end = entry->end;
	seen->count++;
	return 0;
}

static inline struct seen seen_scan(struct log *log)
{
	struct seen seen = {.in_order = true, .intact = true};

	WEFT_ASSERT(log_scan(log, seen_visit, &seen) == 0);
	WEFT_ASSERT(seen.in_order && seen.intact);
	return seen;
}

#endif
