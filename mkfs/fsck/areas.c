/* SPDX-License-Identifier: Apache-2.0 */
/* The logs of clients, in areas of the volume's stores. Each area that was ever used is checked and
 * redone as one more store. */
#include <stdio.h>

#include "mkfs/fsck/fsck_internal.h"

/* Returns 1 if the area was ever used, 0 if not, or -errno. */
static int area_used(struct rt_disk *area, uint64_t bytes, uint8_t *page)
{
	bool used = false;

	for (unsigned n = 0; n < 2; n++) {
		int rc = rt_disk_read(area, n ? bytes - PAGE_SIZE : 0, page, PAGE_SIZE);

		if (rc)
			return rc;
		used |= page[0] || memcmp(page, page + 1, PAGE_SIZE - 1) != 0;
	}
	return used;
}

/* Adds an area as a store of its own, with a log and hardly any page. It is checked as such. */
static int area_add(
	struct fsck *f, const struct fsck_store *in, uint64_t offset, uint8_t *page)
{
	const struct disk_superblock *sb = &in->sb;
	struct fsck_store *s = &f->store[f->store_count];
	struct rt_disk *disk;
	int rc = rt_disk_part(&disk, in->in.disk, offset, sb->area_bytes);

	if (rc)
		return rc;
	rc = area_used(disk, sb->area_bytes, page);
	if (rc <= 0 || f->store_count == SHARDS_MAX) {
		rt_disk_close(disk);
		return rc < 0 ? rc : rc ? -ENOSPC : 0;
	}
	snprintf(s->area_name, sizeof(s->area_name),
		"%.200s (log of a client at byte %" PRIu64 ")", in->in.name, offset);
	s->in = (struct fsck_input){.disk = disk, .name = s->area_name};
	f->store_count++;
	return 0;
}

/* Reads the superblock, as far as needed here. Pass 0 reports its damage. */
static bool super_peek(struct fsck_store *s, uint8_t *page)
{
	struct rt_disk_info info;
	uint64_t places[2] = {0, 0};

	rt_disk_info(s->in.disk, &info);
	places[1] = info.size_bytes - info.size_bytes % PAGE_SIZE - PAGE_SIZE;
	for (unsigned n = 0; n < 2 && info.size_bytes >= PAGE_SIZE; n++) {
		if (rt_disk_read(s->in.disk, places[n], page, PAGE_SIZE))
			continue;
		memcpy(&s->sb, page, sizeof(s->sb));
		if (store_superblock_whole(&s->sb))
			return true;
	}
	return false;
}

/* Changes that clients have made durable are the volume's. */
int areas_add(struct fsck *f)
{
	uint8_t *page = rt_alloc_pages(PAGE_SIZE);
	/* The check of one of several stores does not use logs. */
	unsigned count = f->store_count > 1 || f->o->all_stores ? f->store_count : 0;
	int rc = page ? 0 : -ENOMEM;

	for (unsigned i = 0; i < count && rc == 0; i++) {
		struct fsck_store *s = &f->store[i];

		if (!super_peek(s, page))
			continue;
		for (unsigned n = 0; n < s->sb.area_count && rc == 0; n++)
			rc = area_add(
				f, s, s->sb.areas_offset + n * s->sb.area_bytes, page);
	}
	if (page)
		rt_free_pages(page, PAGE_SIZE);
	return rc;
}

void areas_close(struct fsck *f)
{
	for (unsigned i = 0; i < f->store_count; i++)
		if (f->store[i].area_name[0])
			rt_disk_close(f->store[i].in.disk);
}
