/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The layout of a store: superblock, log, descriptor table, page slots, areas for the logs of
 * clients, superblock.
 *
 * mkfs plans it, every open checks it (invariant 9). Each field is checked against its own bounds
 * and against the others, in an order in which no sum can overflow. Code may compute freely with a
 * layout that passed.
 */
#include "engine/common/text.h"
#include "engine/store/store_internal.h"

#include <errno.h>

#define CLIENT_LOG_DEFAULT_MAX (64ull << 20)
#define CLIENT_PAGES           2u /* the catalog's slot and a group's, without a group */

/* Whole pages that lie within [from, to). */
static bool area_fits(uint64_t offset, uint64_t length, uint64_t from, uint64_t to)
{
	return offset % PAGE_SIZE == 0 && length % PAGE_SIZE == 0 && offset >= from &&
	       offset <= to && length <= to - offset;
}

static int layout_error(struct weft_error *err, const char *what)
{
	return weft_error(err, -EUCLEAN,
		"the superblock is whole but makes no sense (%s): it was not written by "
		"weft; "
		"restore the store from a copy, or make it anew with mkfs.weft --force",
		what);
}

/* A client's has no page that anybody names; the least that a store can have. */
static uint64_t pages_min(const struct disk_superblock *sb)
{
	return disk_shard_client(sb->shard) ? CLIENT_PAGES : STORE_PAGES_MIN;
}

/* The end of the pages: where the areas begin, or the second superblock. */
static int areas_check(
	const struct disk_superblock *sb, uint64_t *end, struct weft_error *err)
{
	if (!(sb->flags & DISK_SUPER_AREAS)) {
		if (sb->area_count || sb->areas_offset || sb->area_bytes)
			return layout_error(err, "areas of clients");
		return 0;
	}
	if (!sb->area_count || sb->area_count > STORE_AREAS_MAX ||
		sb->area_bytes < STORE_AREA_MIN ||
		sb->area_bytes > *end / sb->area_count ||
		!area_fits(sb->areas_offset, sb->area_count * sb->area_bytes, PAGE_SIZE,
			*end) ||
		sb->area_bytes % PAGE_SIZE)
		return layout_error(err, "areas of clients");
	*end = sb->areas_offset;
	return 0;
}

int layout_check(const struct disk_superblock *sb, struct weft_error *err)
{
	uint64_t end;
	int rc;

	if (sb->store_bytes % PAGE_SIZE || sb->store_bytes > STORE_BYTES_MAX ||
		sb->store_bytes < STORE_LOG_MIN)
		return layout_error(err, "size of the store");
	if (sb->flags & ~(uint32_t)(DISK_SUPER_AREAS | DISK_SUPER_LEVELS))
		return weft_error(err, -EPROTONOSUPPORT,
			"the store uses features that this weft does not know (flags "
			"%#x): use a "
			"newer weft",
			sb->flags);
	end = sb->store_bytes - PAGE_SIZE;
	rc = areas_check(sb, &end, err);
	if (rc)
		return rc;
	if (!area_fits(sb->log_offset, sb->log_bytes, PAGE_SIZE, end) ||
		sb->log_bytes < STORE_LOG_MIN)
		return layout_error(err, "place of the log");
	if (!area_fits(sb->table_offset, sb->table_bytes, sb->log_offset + sb->log_bytes,
		    end))
		return layout_error(err, "place of the descriptor table");
	if (!area_fits(sb->pages_offset, 0, sb->table_offset + sb->table_bytes, end))
		return layout_error(err, "place of the pages");
	if (sb->page_count < pages_min(sb) || sb->page_count > STORE_PAGES_MAX ||
		sb->page_count > (end - sb->pages_offset) / PAGE_SIZE)
		return layout_error(err, "number of pages");
	if (layout_table_blocks(sb) >
		sb->table_bytes / (2 * sizeof(struct disk_table_block)))
		return layout_error(err, "size of the descriptor table");
	if (sb->shard > STORE_SHARD_MAX)
		return layout_error(err, "shard");
	if (sb->node > DISK_NODE_MAX)
		return layout_error(err, "node");
	if (!checksum_name(sb->checksum_kind))
		return layout_error(err, "kind of checksum");
	if (sb->generation > STORE_COUNTER_MAX || sb->incarnation > STORE_COUNTER_MAX)
		return layout_error(err, "generation or incarnation");
	for (unsigned i = 0; i < ARRAY_SIZE(sb->left); i++)
		if ((sb->left[i] & ~DISK_LEFT_DEAD) > STORE_COUNTER_MAX ||
			sb->left[i] == DISK_LEFT_DEAD)
			return layout_error(err, "incarnation that left");
	if (sb->known & (1ull | 1ull << sb->node) ||
		(sb->known && (!sb->node || disk_shard_client(sb->shard))))
		return layout_error(err, "nodes that it knows");
	if (sb->atomic_write_bytes < 512 || sb->atomic_write_bytes % 512)
		return layout_error(err, "atomic write size");
	if (!memchr(sb->label, 0, sizeof(sb->label)))
		return layout_error(err, "label");
	return 0;
}

/* How many, with their table in front of them. */
static uint64_t pages_that_fit(uint64_t bytes)
{
	const uint64_t block = 2 * sizeof(struct disk_table_block);
	const uint64_t full = DISK_TABLE_SLOTS * (uint64_t)PAGE_SIZE + block;
	uint64_t pages = bytes / full * DISK_TABLE_SLOTS;
	uint64_t rest = bytes % full;

	if (rest > block)
		pages += (rest - block) / PAGE_SIZE;
	return pages;
}

static int plan_log(
	struct disk_superblock *sb, const struct store_format *f, struct weft_error *err)
{
	uint64_t bytes = f->log_bytes;

	if (!bytes)
		bytes = MIN(MAX(sb->store_bytes / 32, STORE_LOG_DEFAULT_MIN),
			STORE_LOG_DEFAULT_MAX);
	if (bytes < STORE_LOG_MIN)
		return weft_error(err, -EINVAL,
			"a log of %llu bytes is too small: at least %llu",
			(unsigned long long)bytes, (unsigned long long)STORE_LOG_MIN);
	if (bytes > sb->store_bytes / 2 && f->log_bytes && !disk_shard_client(f->shard))
		return weft_error(err, -EINVAL,
			"a log of %llu bytes is too large for a store of %llu: at most "
			"half of it",
			(unsigned long long)bytes, (unsigned long long)sb->store_bytes);
	sb->log_offset = PAGE_SIZE;
	sb->log_bytes = ALIGN_UP(bytes, PAGE_SIZE);
	return 0;
}

/* At the end; *end: the end of the space that is left. */
static int plan_clients(struct disk_superblock *sb, const struct store_format *f,
	uint64_t *end, struct weft_error *err)
{
	uint64_t bytes = f->area_bytes ? f->area_bytes
				       : MIN(sb->log_bytes, CLIENT_LOG_DEFAULT_MAX);
	uint32_t count;

	*end = sb->store_bytes - PAGE_SIZE;
	if (f->area_count > STORE_AREAS_MAX)
		return weft_error(err, -EINVAL,
			"a store has room for the logs of at most %u clients",
			STORE_AREAS_MAX);
	if (f->area_bytes && f->area_bytes < STORE_AREA_MIN)
		return weft_error(err, -EINVAL,
			"%llu bytes are too few for a client's log: at least %llu",
			(unsigned long long)f->area_bytes,
			(unsigned long long)STORE_AREA_MIN);
	bytes = MAX(bytes, STORE_AREA_MIN);
	if ((f->area_count || f->area_bytes) && bytes > *end / 2 / MAX(f->area_count, 1u))
		return weft_error(err, -EINVAL,
			"logs of %u clients, of %llu bytes each, are too large for a "
			"store of %llu: at most half of it",
			f->area_count, (unsigned long long)bytes,
			(unsigned long long)sb->store_bytes);
	bytes = ALIGN_UP(bytes, PAGE_SIZE);
	count = MIN(f->area_count +
			    (uint32_t)MIN(f->area_spare, sb->store_bytes / 32 / bytes),
		STORE_AREAS_MAX);
	if (!count)
		return 0;
	sb->flags |= DISK_SUPER_AREAS;
	sb->area_count = count;
	sb->area_bytes = bytes;
	*end -= count * bytes;
	sb->areas_offset = *end;
	return 0;
}

static int plan_areas(
	struct disk_superblock *sb, const struct store_format *f, struct weft_error *err)
{
	uint64_t align = sb->store_bytes >= STORE_ALIGN_FROM_BYTES ? 1u << 20 : PAGE_SIZE;
	uint64_t pages, end;
	int rc = plan_clients(sb, f, &end, err);

	if (rc)
		return rc;

	sb->table_offset = ALIGN_UP(sb->log_offset + sb->log_bytes, align);
	/* Half a MiB is lost on average where the pages are aligned behind their table.
	 */
	if (sb->table_offset + align >= end)
		pages = 0;
	else
		pages = pages_that_fit(end - sb->table_offset - (align - PAGE_SIZE));
	if (pages < pages_min(sb))
		return weft_error(err, -EINVAL,
			"%llu bytes are too few for a log of %llu and at least %u pages: "
			"use a "
			"larger store",
			(unsigned long long)sb->store_bytes,
			(unsigned long long)sb->log_bytes, STORE_PAGES_MIN);
	sb->page_count = MIN(pages, STORE_PAGES_MAX);
	if (disk_shard_client(sb->shard))
		sb->page_count = CLIENT_PAGES;
	sb->table_bytes = layout_table_blocks(sb) * 2 * sizeof(struct disk_table_block);
	sb->pages_offset = ALIGN_UP(sb->table_offset + sb->table_bytes, align);
	return 0;
}

static void uuid_make(uint8_t uuid[UUID_BYTES])
{
	rt_random_bytes(uuid, UUID_BYTES);
	uuid_of_random(uuid);
}

static int plan_size(struct disk_superblock *sb, const struct rt_disk_info *info,
	const struct store_format *f, struct weft_error *err)
{
	uint64_t bytes = f->store_bytes ? f->store_bytes : info->size_bytes;

	if (bytes > info->size_bytes)
		return weft_error(err, -EINVAL,
			"a store of %llu bytes does not fit in %llu",
			(unsigned long long)bytes, (unsigned long long)info->size_bytes);
	bytes -= bytes % PAGE_SIZE;
	if (bytes > STORE_BYTES_MAX)
		return weft_error(err, -EINVAL, "a store has at most %llu bytes",
			(unsigned long long)STORE_BYTES_MAX);
	if (bytes < STORE_LOG_MIN + STORE_PAGES_MIN * PAGE_SIZE)
		return weft_error(err, -EINVAL,
			"%llu bytes are too few for a store: use a larger one",
			(unsigned long long)bytes);
	sb->store_bytes = bytes;
	return 0;
}

int store_format_plan(struct rt_disk *disk, const struct store_format *f,
	struct disk_superblock *out, struct weft_error *err)
{
	struct disk_superblock *sb = out;
	struct rt_disk_info info;
	int rc;

	memset(sb, 0, sizeof(*sb));
	rt_disk_info(disk, &info);
	sb->flags = DISK_SUPER_LEVELS;
	sb->shard = f->shard;
	sb->node = f->node;
	rc = plan_size(sb, &info, f, err);
	if (!rc)
		rc = plan_log(sb, f, err);
	if (!rc)
		rc = plan_areas(sb, f, err);
	if (rc)
		return rc;
	if (!memchr(f->label, 0, sizeof(f->label)))
		return weft_error(err, -EINVAL,
			"the label is too long: at most %zu bytes", sizeof(f->label) - 1);
	sb->magic = DISK_MAGIC_SUPER;
	sb->disk_version = DISK_VERSION;
	sb->checksum_kind = f->checksum_kind ? f->checksum_kind : DISK_CHECKSUM_GMAC;
	if (!checksum_name(sb->checksum_kind))
		return weft_error(
			err, -EINVAL, "unknown kind of checksum: %u", sb->checksum_kind);
	memcpy(sb->volume_uuid, f->volume_uuid, sizeof(sb->volume_uuid));
	if (bytes_are_zero(sb->volume_uuid, sizeof(sb->volume_uuid)))
		uuid_make(sb->volume_uuid);
	uuid_make(sb->store_uuid);
	sb->incarnation = 1;
	sb->generation = 1;
	sb->created_ns = rt_wall_ns();
	memcpy(sb->key, f->key, sizeof(sb->key));
	if (bytes_are_zero(sb->key, sizeof(sb->key)))
		rt_random_bytes(sb->key, sizeof(sb->key));
	strcpy(sb->label, f->label);
	sb->atomic_write_bytes = info.atomic_write_bytes;
	sb->checksum = superblock_sum(sb);
	return layout_check(sb, err);
}
