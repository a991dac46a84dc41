/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gaps in a page's chain of changes: damage, unless the page was freed.
 *
 * A freed page's frame is dropped unwritten, and once its free is durable nothing holds the log's
 * tail for it any more. So the log may begin in the midst of its chain. But then the record that
 * freed it is behind the chain's end, thus in the log. A gap is forgiven when a later record clears
 * the page's bit in its group. The group's page may already be newer than that record: only the
 * record counts.
 *
 * A later full image forgives as well: it begins a chain of its own. An earlier recovery that was
 * cut short may have left the page half written. Then changes before that image do not find the
 * version that they follow.
 */
#include "engine/volume/volume_internal.h"

int gaps_add(struct gaps *gaps, page_id pid, uint64_t incarnation, struct weft_error *err)
{
	for (unsigned i = 0; i < gaps->count; i++)
		if (gaps->entries[i].pid == pid &&
			gaps->entries[i].incarnation == incarnation)
			return 0;
	if (!gaps->entries) {
		gaps->entries = rt_alloc(GAPS_MAX * sizeof(*gaps->entries));
		if (!gaps->entries)
			return weft_error(err, -ENOMEM, "no memory to recover the log");
	}
	if (gaps->count == GAPS_MAX)
		return gaps_end(gaps, err);
	gaps->entries[gaps->count++] =
		(struct gap){.pid = pid, .incarnation = incarnation};
	return 0;
}

/* A byte of the page after the change: its value, or -1 if the part says nothing of it.
 */
static int part_byte(const struct disk_log_page *part, unsigned offset)
{
	const struct disk_log_range *range = disk_log_ranges(part);
	const uint8_t *bytes = disk_log_bytes(part);

	if (part->kind == DISK_LOG_FULL)
		return ((const uint8_t *)(part + 1))[offset];
	for (unsigned i = 0; i < part->range_count; i++) {
		if (offset >= range[i].offset &&
			offset - range[i].offset < range[i].length)
			return bytes[offset - range[i].offset];
		bytes += range[i].length;
	}
	return -1;
}

/* Returns true if the part, of a group's page, marks this page free. */
static bool part_frees(const struct disk_log_page *part, page_id pid)
{
	uint64_t index;
	int byte;

	if (pid <= part->pid || pid > part->pid + DISK_GROUP_PAGES)
		return false;
	index = pid - part->pid - 1;
	byte = part_byte(
		part, (unsigned)(offsetof(struct disk_group, bitmap) + index / 8));
	return byte >= 0 && !(byte >> index % 8 & 1);
}

void gaps_visit(struct gaps *gaps, const struct disk_log_page *part)
{
	uint64_t slot = pid_slot(part->pid);
	bool is_group = slot && (slot - 1) % (1 + DISK_GROUP_PAGES) == 0;
	unsigned kept = 0;

	for (unsigned i = 0; i < gaps->count; i++) {
		const struct gap *gap = &gaps->entries[i];

		if (is_group && part_frees(part, gap->pid))
			continue;
		if (part->pid == gap->pid && part->kind == DISK_LOG_FULL &&
			part->incarnation >= gap->incarnation)
			continue;
		gaps->entries[kept++] = *gap;
	}
	gaps->count = kept;
}

int gaps_end(struct gaps *gaps, struct weft_error *err)
{
	if (!gaps->count)
		return 0;
	return weft_error(err, -EUCLEAN,
		"the log does not fit the store: changes are missing between the "
		"stored image of page %llx (incarnation %llu) and its first record in "
		"the log, and of %u more pages; run fsck.weft",
		(unsigned long long)gaps->entries[0].pid,
		(unsigned long long)gaps->entries[0].incarnation, gaps->count - 1);
}

void gaps_close(struct gaps *gaps)
{
	rt_free(gaps->entries);
	gaps->entries = NULL;
	gaps->count = 0;
}
