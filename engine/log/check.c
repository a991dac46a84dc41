/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks the shape of log records before anything looks into them (invariant 9).
 *
 * A checksum says that the bytes are those that were written, not that they make sense.
 * Nothing here depends on the volume: whether a page exists is the visitor's question.
 */
#include <errno.h>
#include <string.h>

#include "engine/log/log.h"

/* The ranges of a part of DISK_LOG_RANGES: their bytes, or 0 when one is out of its page.
 */
static uint64_t ranges_bytes(const uint8_t *ranges, unsigned count)
{
	uint64_t sum = 0;

	for (unsigned i = 0; i < count; i++) {
		struct disk_log_range range;

		memcpy(&range, ranges + i * sizeof(range), sizeof(range));
		if (range.length == 0 ||
			(uint32_t)range.offset + range.length > PAGE_SIZE)
			return 0;
		sum += range.length;
	}
	return sum;
}

static bool moves_fit(const uint8_t *moves, unsigned count)
{
	for (unsigned i = 0; i < count; i++) {
		struct disk_log_move move;

		memcpy(&move, moves + i * sizeof(move), sizeof(move));
		if (move.length == 0 || (uint32_t)move.from + move.length > PAGE_SIZE ||
			(uint32_t)move.to + move.length > PAGE_SIZE)
			return false;
	}
	return true;
}

/* Length of the page's part at `part`, of which `left` bytes exist; 0 when it is wrong.
 */
static uint32_t part_check(const uint8_t *part, uint64_t left)
{
	struct disk_log_page page;
	uint64_t moves, table, sum;

	if (left < sizeof(page))
		return 0;
	memcpy(&page, part, sizeof(page));
	if (page.part_bytes > left)
		return 0;
	if (page.kind == DISK_LOG_FULL)
		return page.range_count == 0 && page.move_count == 0 &&
				       page.part_bytes == sizeof(page) + PAGE_SIZE
			       ? page.part_bytes
			       : 0;
	if (page.kind != DISK_LOG_RANGES || page.range_count + page.move_count == 0)
		return 0;
	moves = page.move_count * sizeof(struct disk_log_move);
	table = ALIGN_UP((uint64_t)page.range_count * sizeof(struct disk_log_range), 8);
	if (sizeof(page) + moves + table > page.part_bytes ||
		!moves_fit(part + sizeof(page), page.move_count))
		return 0;
	sum = ranges_bytes(part + sizeof(page) + moves, page.range_count);
	return (sum > 0 || page.range_count == 0) &&
			       page.part_bytes ==
				       sizeof(page) + moves + table + ALIGN_UP(sum, 8)
		       ? page.part_bytes
		       : 0;
}

static bool change_check(const uint8_t *body, uint64_t bytes, unsigned count)
{
	uint64_t at = 0;

	for (unsigned i = 0; i < count; i++) {
		uint32_t part = part_check(body + at, bytes - at);

		if (part == 0)
			return false;
		at += part;
	}
	return at == bytes;
}

static bool record_check(const struct disk_log_record *record, const uint8_t *body)
{
	uint64_t bytes = record->record_bytes - sizeof(*record);

	switch (record->type) {
	case DISK_LOG_CHANGE:
		return change_check(body, bytes, record->count);
	case DISK_LOG_DESCRIPTORS:
		return bytes == 8 + record->count * sizeof(struct disk_log_descriptor);
	case DISK_LOG_PERSISTED:
		return bytes == record->count * sizeof(uint64_t);
	default:
		return false;
	}
}

int log_check_records(const void *payload, size_t bytes, struct weft_error *err)
{
	const uint8_t *at = payload;
	size_t left = bytes;

	while (left > 0) {
		struct disk_log_record record;

		if (left < sizeof(record))
			return weft_error(err, -EUCLEAN,
				"%zu bytes are left where a record should start", left);
		memcpy(&record, at, sizeof(record));
		if (record.record_bytes < sizeof(record) ||
			record.record_bytes % 8 != 0 || record.record_bytes > left)
			return weft_error(err, -EUCLEAN,
				"the record at byte %zu is said to have %u bytes of %zu "
				"left",
				bytes - left, record.record_bytes, left);
		if (!record_check(&record, at + sizeof(record)))
			return weft_error(err, -EUCLEAN,
				"the record at byte %zu (type %u, count %u, %u bytes) is "
				"malformed",
				bytes - left, record.type, record.count,
				record.record_bytes);
		at += record.record_bytes;
		left -= record.record_bytes;
	}
	return 0;
}
