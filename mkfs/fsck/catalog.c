/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pass 0: the catalog. Assumes that the log was replayed.
 *
 * Checks:
 *
 * - Its page can be read and fits its checksum.
 * - Magic, version and volume are right.
 * - The root is a page of the tree that covers all keys.
 * - The next inode numbers are not in use (which only pass 1 can tell).
 *
 * A lost catalog is made anew. The root is at the place that mkfs uses, or else it is the highest
 * page of the tree that covers all keys. The key of the names' hashes is lost for ever. A new one
 * is made, and pass 2 then moves each entry to its place.
 */
#include "mkfs/fsck/fsck_internal.h"

/* For a volume of one store the shard has no meaning. */
static page_id catalog_page(const struct fsck *f)
{
	return pid_make(f->store[0].sb.shard, DISK_CATALOG_SLOT);
}

static const char *catalog_fault(struct fsck *f, const struct disk_catalog *c)
{
	if (c->magic != DISK_MAGIC_CATALOG)
		return "it is none";
	if (c->disk_version != DISK_VERSION)
		return "its version is not the superblock's";
	if (memcmp(c->volume_uuid, f->store[0].sb.volume_uuid, sizeof(c->volume_uuid)) !=
		0)
		return "it belongs to another volume";
	if (!page_usable(f, c->root_pid))
		return "the root that it names cannot be one";
	return NULL;
}

/* Returns level + 1 of a page that could be the root; 0: it could not. */
static unsigned root_level(struct fsck *f, page_id pid)
{
	struct disk_node *n = rt_alloc(PAGE_SIZE);
	unsigned level = 0;

	if (n && page_copy(f, pid, n, NULL, NULL) == 0 && n->magic == DISK_MAGIC_NODE &&
		tree_check_page(n, pid, NULL) == 0 && key_wide(n->low_fence) == 0 &&
		key_wide(n->high_fence) == KEY_MAX)
		level = n->level + 1u;
	rt_free(n);
	return level;
}

static void root_look(
	struct fsck *f, const struct fsck_store *s, page_id *best, unsigned *highest)
{
	for (uint64_t slot = 2; slot < s->sb.page_count; slot++) {
		page_id pid = pid_make(s->sb.shard, slot);
		struct page_descriptor d;
		unsigned level;

		if (slot % 4096 == 0)
			fsck_progress(f, 0, slot, s->sb.page_count);
		if (!page_usable(f, pid) || page_descriptor_get(f, pid, &d) ||
			!d.incarnation)
			continue;
		level = root_level(f, pid);
		if (level > *highest) {
			*highest = level;
			*best = pid;
		}
	}
}

/* Looks at the place that mkfs uses, then everywhere. */
static page_id root_find(struct fsck *f)
{
	page_id usual = pid_make(f->store[0].sb.shard, disk_group_slot(0) + 1);
	page_id best = usual;
	unsigned highest = root_level(f, usual);

	for (unsigned i = 0; !highest && i < f->store_count; i++)
		root_look(f, &f->store[i], &best, &highest);
	return best;
}

int catalog_rewrite(struct fsck *f)
{
	f->v->catalog = f->catalog;
	return page_rewrite(f, catalog_page(f), &f->catalog);
}

static int catalog_rebuild(struct fsck *f, const char *why, bool usable, bool *stop)
{
	struct disk_catalog *c = &f->catalog;

	if (!fsck_found(f, 30, "the catalog (page %#" PRIx64 "): %s%s", catalog_page(f),
		    why, usable ? "; its content is sound" : "")) {
		*stop = !usable;
		return 0;
	}
	if (!usable) {
		memset(c, 0, sizeof(*c));
		c->magic = DISK_MAGIC_CATALOG;
		c->disk_version = DISK_VERSION;
		memcpy(c->volume_uuid, f->store[0].sb.volume_uuid,
			sizeof(c->volume_uuid));
		c->root_pid = root_find(f);
		c->next_inode_range = 1; /* pass 1 finds the right one */
		rt_random_bytes(c->hash_key, sizeof(c->hash_key));
	}
	return fsck_repaired(f, catalog_rewrite(f));
}

int catalog_check(struct fsck *f, bool *stop)
{
	const char *fault;
	int rc = page_copy(f, catalog_page(f), &f->catalog, NULL, NULL);
	int unread = rc;

	if (rc && rc != -EUCLEAN && rc != -EIO)
		return rc;
	if (unread)
		rc = page_raw(f, catalog_page(f), &f->catalog);
	fault = rc ? "cannot be read" : catalog_fault(f, &f->catalog);
	if (unread) {
		f->elsewhere = 0; /* the bytes may be anything */
		return catalog_rebuild(f,
			unread == -EIO ? "cannot be read" : "its checksum is wrong",
			!fault, stop);
	}
	rc = elsewhere_check(f);
	if (rc)
		return rc;
	if (fault)
		return catalog_rebuild(f, fault, false, stop);
	f->v->catalog = f->catalog;
	return 0;
}
