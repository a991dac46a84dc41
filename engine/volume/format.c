/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Making an empty volume: catalog, allocation groups, and a tree that holds the root directory. Or
 * one of its other stores, which begins with allocation groups only.
 *
 * The order is that of any write-back: images, flush, descriptors, flush. No log is needed since
 * the superblocks come last of all. A format that is cut short leaves nothing that opens.
 */
#include <sys/stat.h>

#include "engine/common/text.h"
#include "engine/volume/volume_internal.h"

#define FORMAT_BATCH 256u /* pages written together: 1 MiB */

struct formatter {
	struct store *store;
	const struct disk_superblock *sb;
	uint8_t *images; /* FORMAT_BATCH pages */
	struct store_write write[FORMAT_BATCH];
	unsigned count;
};

/* Writes the batch: images durable before the table takes their descriptors. */
static int batch_write(struct formatter *f)
{
	int rc;

	if (!f->count)
		return 0;
	for (unsigned i = 0; i < f->count; i++) {
		struct store_write *w = &f->write[i];

		w->descriptor.checksum = store_page_checksum(f->store, w->pid,
			w->descriptor.incarnation, w->descriptor.version, w->image);
	}
	rc = store_write_pages(f->store, f->write, f->count);
	if (!rc)
		rc = store_flush(f->store);
	for (unsigned i = 0; i < f->count && !rc; i++)
		rc = store_descriptor_install(
			f->store, f->write[i].pid, &f->write[i].descriptor, LSN_NONE);
	if (!rc && store_table_crowded(f->store))
		rc = store_table_write(f->store, LSN_MAX);
	f->count = 0;
	return rc;
}

/* Adds a page to the batch. *image: zeros, to be filled before the next call. */
static int batch_add(struct formatter *f, uint64_t slot, void **image)
{
	struct store_write *w;
	int rc = 0;

	if (f->count == FORMAT_BATCH)
		rc = batch_write(f);
	if (rc)
		return rc;
	w = &f->write[f->count];
	*image = f->images + (size_t)f->count * PAGE_SIZE;
	memset(*image, 0, PAGE_SIZE);
	*w = (struct store_write){
		.pid = pid_make(f->sb->shard, slot),
		.image = *image,
		.descriptor = {.incarnation = FORMAT_INCARNATION,
			.version = FORMAT_VERSION},
	};
	f->count++;
	return 0;
}

/* The catalog and the root directory are in one store of the volume. */
static bool has_root(const struct formatter *f)
{
	return f->sb->shard == DISK_CATALOG_SHARD;
}

static page_id root_pid(const struct disk_superblock *sb)
{
	return pid_make(sb->shard, disk_group_slot(0) + 1);
}

static int format_catalog(struct formatter *f)
{
	struct disk_catalog *c;
	int rc = batch_add(f, DISK_CATALOG_SLOT, (void **)&c);

	if (rc)
		return rc;
	c->magic = DISK_MAGIC_CATALOG;
	c->disk_version = DISK_VERSION;
	memcpy(c->volume_uuid, f->sb->volume_uuid, sizeof(c->volume_uuid));
	c->root_pid = root_pid(f->sb);
	c->next_inode_range = 1; /* range 0 holds the root directory alone */
	rt_random_bytes(c->hash_key, sizeof(c->hash_key));
	return 0;
}

/* All pages are free. The exception is the root's page, if there is one: the first of the first
 * group. */
static int format_groups(struct formatter *f)
{
	uint64_t groups = space_layout_groups(f->sb->page_count);

	for (uint64_t g = 0; g < groups; g++) {
		uint32_t pages = space_layout_pages(f->sb->page_count, g);
		struct disk_group *d;
		int rc = batch_add(f, disk_group_slot(g), (void **)&d);

		if (rc)
			return rc;
		d->magic = DISK_MAGIC_GROUP;
		d->group = (uint32_t)g;
		d->free_pages = pages;
		d->next_incarnation = FORMAT_INCARNATION;
		d->owner = f->sb->node;
		for (uint32_t i = pages; i < DISK_GROUP_PAGES; i++)
			d->bitmap[i / 8] |= (uint8_t)(1u << i % 8);
		if (g == 0 && has_root(f)) {
			d->free_pages--;
			d->next_incarnation = FORMAT_INCARNATION + 1;
			d->bitmap[0] |= 1;
		}
	}
	return 0;
}

static int format_root(struct formatter *f, uint32_t uid, uint32_t gid)
{
	struct disk_inode inode = {
		.mode = S_IFDIR | 0755,
		.uid = uid,
		.gid = gid,
		.nlink = 2,
		.parent = DISK_INO_ROOT,
	};
	void *image;
	int rc = batch_add(f, pid_slot(root_pid(f->sb)), &image);

	if (rc)
		return rc;
	inode.atime_ns = inode.mtime_ns = inode.ctime_ns = inode.btime_ns =
		f->sb->created_ns;
	tree_format_root(image, root_pid(f->sb));
	WEFT_ASSERT(tree_format_insert(image, disk_key(DISK_INO_ROOT, DISK_ITEM_INODE, 0),
		&inode, sizeof(inode)));
	return 0;
}

static int format_pages(struct formatter *f, uint32_t uid, uint32_t gid)
{
	int rc = 0;

	if (has_root(f))
		rc = format_catalog(f);
	if (!rc && has_root(f))
		rc = format_root(f, uid, gid);
	if (!rc)
		rc = format_groups(f);
	if (!rc)
		rc = batch_write(f);
	if (!rc)
		rc = store_table_write(f->store, LSN_MAX);
	return rc;
}

/* The bytes that volume_format writes: superblocks, log, table, and the pages of an empty
 * volume. */
static uint64_t format_bytes(const struct disk_superblock *sb)
{
	uint64_t pages = space_layout_groups(sb->page_count) +
			 (sb->shard == DISK_CATALOG_SHARD ? 2 : 0);

	return sb->pages_offset + (pages + 1 + 2 * (uint64_t)sb->area_count) * PAGE_SIZE;
}

/* Without this check a format that cannot end well would first fill the filesystem. */
static int check_room(struct rt_disk *disk, const struct store_format *sf,
	const struct disk_superblock *sb, struct weft_error *err)
{
	char size[SIZE_TEXT], needed[SIZE_TEXT], room[SIZE_TEXT];
	struct rt_disk_info info;

	rt_disk_info(disk, &info);
	if (!info.room_bytes || format_bytes(sb) <= info.room_bytes + sf->allocated_bytes)
		return 0;
	size_print(sb->store_bytes, size);
	size_print(format_bytes(sb), needed);
	size_print(info.room_bytes + sf->allocated_bytes, room);
	return weft_error(err, -ENOSPC,
		"a store of %s needs %s at once, for its log and table, and the "
		"filesystem has room for %s; make a smaller store, or free space",
		size, needed, room);
}

int volume_format_plan(struct rt_disk *disk, const struct store_format *sf,
	struct disk_superblock *sb, struct weft_error *err)
{
	int rc = store_format_plan(disk, sf, sb, err);

	if (rc)
		return rc;
	if (!disk_shard_client(sb->shard) && !space_layout_groups(sb->page_count))
		return weft_error(
			err, -EINVAL, "the store is too small for an empty volume");
	return check_room(disk, sf, sb, err);
}

int volume_format(struct rt_disk *disk, const struct store_format *sf, uint32_t uid,
	uint32_t gid, struct weft_error *err)
{
	struct disk_superblock *sb = rt_alloc(sizeof(*sb));
	struct formatter *f = rt_alloc(sizeof(*f));
	int rc = -ENOMEM;

	if (f)
		f->images = rt_alloc_pages(FORMAT_BATCH * PAGE_SIZE);
	if (!sb || !f || !f->images) {
		weft_error(err, rc, "no memory to format the store");
		goto out_free;
	}
	rc = volume_format_plan(disk, sf, sb, err);
	if (!rc)
		rc = store_format_write(disk, sb, err);
	if (!rc)
		rc = store_format_open(&f->store, disk, sb, err);
	if (rc)
		goto out_free;
	f->sb = store_superblock(f->store);
	rc = format_pages(f, uid, gid);
	if (rc)
		weft_error(err, rc, "cannot write the empty volume: %s",
			strerrordesc_np(-rc));
	else
		rc = store_format_finish(f->store, err);
	store_close(f->store);
out_free:
	if (f && f->images)
		rt_free_pages(f->images, FORMAT_BATCH * PAGE_SIZE);
	rt_free(f);
	rt_free(sb);
	return rc;
}
