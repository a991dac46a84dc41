/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libFuzzer: what log_check_records lets pass can be walked without leaving the payload.
 *
 *	clang -std=gnu17 -D_GNU_SOURCE -I. -g -fsanitize=fuzzer,address,undefined \
 *		tests/fuzz/log_fuzz.c engine/log/check.c engine/common/base.c -o log_fuzz
 */
#include <stdlib.h>
#include <string.h>

#include "engine/log/log.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static volatile uint8_t sink;

static void touch(const uint8_t *from, size_t len)
{
	for (size_t i = 0; i < len; i++)
		sink ^= from[i];
}

/* Reads a page's part as redo does: ranges into an image. Returns its length. */
static size_t redo_part(const uint8_t *part, uint8_t *image)
{
	const struct disk_log_page *page = (const void *)part;
	const struct disk_log_move *move = disk_log_moves(page);
	const struct disk_log_range *range = disk_log_ranges(page);
	const uint8_t *from = disk_log_bytes(page);

	if (page->kind == DISK_LOG_FULL) {
		memcpy(image, part + sizeof(*page), PAGE_SIZE);
		return page->part_bytes;
	}
	for (unsigned i = 0; i < page->move_count; i++)
		memmove(image + move[i].to, image + move[i].from, move[i].length);
	for (unsigned i = 0; i < page->range_count; i++) {
		memcpy(image + range[i].offset, from, range[i].length);
		from += range[i].length;
	}
	return page->part_bytes;
}

static void redo_record(const struct disk_log_record *record)
{
	uint8_t *image = malloc(PAGE_SIZE);
	size_t at = sizeof(*record);

	if (!image)
		abort();
	memset(image, 0, PAGE_SIZE);
	if (record->type == DISK_LOG_CHANGE) {
		for (unsigned i = 0; i < record->count; i++)
			at += redo_part((const uint8_t *)record + at, image);
		if (at != record->record_bytes)
			abort();
		touch(image, PAGE_SIZE);
	} else {
		touch((const uint8_t *)record, record->record_bytes);
	}
	free(image);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct weft_error err = {0};
	uint8_t *payload =
		malloc(size + 1); /* exact, aligned: the sanitizer sees the end */

	if (!payload)
		return 0;
	memcpy(payload, data, size);
	if (log_check_records(payload, size, &err) == 0) {
		for (size_t at = 0; at < size;) {
			const struct disk_log_record *record =
				(const void *)(payload + at);

			redo_record(record);
			at += record->record_bytes;
		}
	} else if (err.text[0] == '\0') {
		abort();
	}
	free(payload);
	return 0;
}
