/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writing an empty store.
 *
 * Old superblocks go first and new ones come last, each with a flush between. So a format that is
 * cut short leaves nothing that opens. Log and table are written in full. So nothing of an earlier
 * store can pass for this one's, and the blocks of a regular file are allocated before the log
 * needs them. Zeros of the device's own making would do for the log only. A block of the table has
 * a checksum, so zeros are damage.
 */
#include "engine/store/store_internal.h"

#include <errno.h>

#define FORMAT_PIECE_BYTES (1u << 20)
#define FORMAT_PIECES      8u /* in flight */

struct format {
	struct rt_disk *disk;
	const struct disk_superblock *sb;
	struct checksummer *checksums;
	uint8_t *memory; /* FORMAT_PIECES pieces */
	struct rt_io ios[FORMAT_PIECES];
	uint64_t position; /* of the next piece */
};

static int format_error(struct weft_error *err, int rc, const char *what)
{
	return weft_error(err, rc, "%s: %s", what, strerrordesc_np(-rc));
}

static void fill_head(struct format *f, void *page)
{
	struct disk_log_head *h = page;

	h->magic = DISK_MAGIC_LOGHEAD;
	h->generation = 1;
	h->tail_lsn = layout_ring_bytes(f->sb);
	h->clean = 1;
	h->epoch = f->sb->incarnation;
	h->checksum = checksummer_sum_head(f->checksums, h);
}

static void fill_table(struct format *f, void *page, uint64_t block)
{
	struct disk_table_block *b = page;

	b->magic = DISK_MAGIC_TABLE;
	b->block = block;
	b->generation = TABLE_FIRST_GENERATION;
	b->checksum = checksummer_sum_table(f->checksums, b);
}

/* Fills in the 4096 bytes at this offset: zeros except for the first head and first copies. */
static void fill_page(struct format *f, void *page, uint64_t offset)
{
	const struct disk_superblock *sb = f->sb;
	const uint64_t pair = 2 * sizeof(struct disk_table_block);

	memset(page, 0, PAGE_SIZE);
	if (offset == sb->log_offset)
		fill_head(f, page);
	else if (offset >= sb->table_offset &&
		 offset < sb->table_offset + sb->table_bytes &&
		 (offset - sb->table_offset) % pair == 0)
		fill_table(f, page, (offset - sb->table_offset) / pair);
}

static void submit_piece(struct format *f, unsigned i)
{
	uint8_t *buffer = f->memory + (size_t)i * FORMAT_PIECE_BYTES;
	size_t len = MIN(FORMAT_PIECE_BYTES, f->sb->pages_offset - f->position);

	for (size_t at = 0; at < len; at += PAGE_SIZE)
		fill_page(f, buffer + at, f->position + at);
	rt_io_set(&f->ios[i], RT_IO_WRITE, f->position, buffer, len);
	rt_disk_submit(f->disk, &f->ios[i], 1);
	f->position += len;
}

/* Log and table, from the log's first byte up to the pages. */
static int write_areas(struct format *f)
{
	bool flying[FORMAT_PIECES] = {false};
	int rc = 0;

	f->position = f->sb->log_offset;
	for (unsigned i = 0;; i = (i + 1) % FORMAT_PIECES) {
		bool more = !rc && f->position < f->sb->pages_offset;

		if (flying[i]) {
			rt_disk_wait(f->disk, &f->ios[i], 1);
			flying[i] = false;
			if (f->ios[i].result && !rc)
				rc = f->ios[i].result;
			more = more && !rc;
		}
		if (more) {
			submit_piece(f, i);
			flying[i] = true;
			continue;
		}
		if (memchr(flying, true, sizeof(flying)) == NULL)
			return rc;
	}
}

/* The end of the store that was here before, if one was: its second superblock. */
static uint64_t old_second_superblock(struct format *f, uint64_t size_bytes)
{
	struct disk_superblock *old = (struct disk_superblock *)f->memory;

	if (rt_disk_read(f->disk, 0, old, sizeof(*old)) ||
		old->magic != DISK_MAGIC_SUPER || old->store_bytes < 2 * PAGE_SIZE ||
		old->store_bytes > size_bytes || old->store_bytes % PAGE_SIZE)
		return 0;
	return old->store_bytes - PAGE_SIZE;
}

static int wipe_superblocks(struct format *f)
{
	struct rt_disk_info info;
	uint64_t places[4];
	int rc = 0;

	rt_disk_info(f->disk, &info);
	places[0] = 0;
	places[1] = old_second_superblock(f, info.size_bytes);
	places[2] = info.size_bytes - info.size_bytes % PAGE_SIZE - PAGE_SIZE;
	places[3] = layout_second_superblock(f->sb);
	memset(f->memory, 0, PAGE_SIZE);
	for (unsigned i = 0; !rc && i < ARRAY_SIZE(places); i++)
		rc = rt_disk_write(f->disk, places[i], f->memory, PAGE_SIZE);
	for (unsigned i = 0; !rc && i < 2 * f->sb->area_count; i++) {
		uint64_t end = f->sb->areas_offset + (i / 2 + 1) * f->sb->area_bytes;

		rc = rt_disk_write(f->disk,
			i % 2 ? end - PAGE_SIZE : end - f->sb->area_bytes, f->memory,
			PAGE_SIZE);
	}
	return rc ? rc : rt_disk_flush(f->disk);
}

int store_format_write(
	struct rt_disk *disk, struct disk_superblock *sb, struct weft_error *err)
{
	const size_t memory_bytes = (size_t)FORMAT_PIECES * FORMAT_PIECE_BYTES;
	struct format *f;
	int rc = layout_check(sb, err);

	if (rc)
		return rc;
	f = rt_alloc(sizeof(*f));
	if (!f)
		return format_error(err, -ENOMEM, "formatting");
	f->disk = disk;
	f->sb = sb;
	f->memory = rt_alloc_pages(memory_bytes);
	rc = f->memory ? checksummer_open(&f->checksums, sb->checksum_kind, sb->key)
		       : -ENOMEM;
	if (rc) {
		format_error(err, rc, "formatting");
		goto out_free;
	}
	rc = wipe_superblocks(f);
	if (rc) {
		format_error(err, rc, "wiping the superblocks");
		goto out_free;
	}
	rc = write_areas(f);
	if (rc)
		format_error(err, rc, "writing log and descriptor table");
out_free:
	checksummer_close(f->checksums);
	if (f->memory)
		rt_free_pages(f->memory, memory_bytes);
	rt_free(f);
	return rc;
}

int store_format_open(struct store **out, struct rt_disk *disk,
	const struct disk_superblock *sb, struct weft_error *err)
{
	const struct store_options options = {.read_only = false};
	int rc = layout_check(sb, err);

	return rc ? rc : store_assemble(out, disk, sb, &options, err);
}

int store_format_finish(struct store *s, struct weft_error *err)
{
	const uint64_t places[2] = {0, layout_second_superblock(&s->sb)};
	int rc = store_flush(s);

	if (rc)
		return format_error(err, rc, "flushing the new store");
	s->sb.checksum = superblock_sum(&s->sb);
	for (unsigned i = 0; !rc && i < ARRAY_SIZE(places); i++)
		rc = superblock_write(s->disk, places[i], &s->sb);
	return rc ? format_error(err, rc, "writing the superblocks") : 0;
}
