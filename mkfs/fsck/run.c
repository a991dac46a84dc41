/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A run of fsck: opening what can be opened, rounds of passes, closing, the result.
 *
 * The layers are opened from the lowest up, each after its pass has let it through:
 * superblocks, log, descriptor table, then store, log and cache by volume_open with the
 * log replayed (in memory only where nothing may be written), catalog, and once pass 1
 * knows which pages are in use, free space and the tree, so that repairs are transactions
 * like any other.
 */
#include "mkfs/fsck/fsck_internal.h"

#define MEMORY_DEFAULT (256ull << 20)
#define MEMORY_MIN     (64ull << 10)
#define CACHE_DEFAULT  (64ull << 20)

/* ---- opening --------------------------------------------------------------------- */

static int memory_get(struct fsck *f)
{
	uint64_t words = DIV_UP(f->sb.page_count, 64) + 1;

	f->group_count = space_layout_groups(f->sb.page_count);
	f->claimed = rt_alloc(words * sizeof(uint64_t));
	f->twice = rt_alloc(words * sizeof(uint64_t));
	f->group_high = rt_alloc(f->group_count * sizeof(uint64_t));
	f->damage = rt_alloc(DAMAGE_MAX * sizeof(*f->damage));
	if (f->claimed && f->twice && f->group_high && f->damage)
		return 0;
	return weft_error(f->err, -ENOMEM, "no memory for the map of %llu pages",
		(unsigned long long)f->sb.page_count);
}

static void memory_put(struct fsck *f)
{
	rt_free(f->claimed);
	rt_free(f->twice);
	rt_free(f->group_high);
	rt_free(f->damage);
	rt_free(f->lost_blocks);
	rt_free(f->declined);
}

static int volume_try(
	struct fsck *f, uint64_t cache_bytes, bool salvage, struct weft_error *why)
{
	struct volume_options o = {
		.read_only = !f->o->repair,
		.storage_only = true,
		.disk_lent = true,
		.any_node = true,
		.salvage = salvage,
		.cache.cache_bytes = cache_bytes,
	};

	*why = (struct weft_error){0};
	return volume_open(&f->v, f->disk, &o, why);
}

/* Replays the log. */
static int volume_get(struct fsck *f, bool *stop)
{
	uint64_t cache_bytes = f->o->cache_bytes ? f->o->cache_bytes : CACHE_DEFAULT;
	struct weft_error why;
	int rc = volume_try(f, cache_bytes, false, &why);

	/* What is replayed in memory only has to fit. */
	if (rc == -ENOMEM && !f->o->repair) {
		cache_bytes += f->sb.log_bytes / 4 * 5;
		rc = volume_try(f, cache_bytes, false, &why);
	}
	if (rc == -EUCLEAN) {
		bool repair = fsck_found(f, 13, "%s", why.text);

		if (!repair && f->o->repair) {
			*stop = true;
			return 0;
		}
		rc = volume_try(f, cache_bytes, true, &why);
		if (repair && rc == 0)
			fsck_repaired(f, 0);
	}
	if (rc)
		return weft_error(f->err, rc, "%s", why.text);
	f->out->replayed = !f->v->recovery.was_clean;
	f->out->log_records = f->v->recovery.records;
	return f->o->repair ? cache_start(f->v->cache) : 0;
}

/* Free space and the tree as any user has them. Where they cannot be had nothing is
 * repaired. */
static int content_open(struct fsck *f)
{
	struct weft_error why = {0};
	int rc = 0;

	if (!f->writable)
		return 0;
	if (!f->v->space)
		rc = space_open(&f->v->space, f->v->cache, &why);
	if (rc == -EUCLEAN || rc == -EIO) {
		fsck_note(f, 401, "nothing further can be repaired: %s", why.text);
		f->writable = false;
		return 0;
	}
	return rc;
}

int tree_get(struct fsck *f)
{
	struct weft_error why = {0};
	int rc;

	if (!f->writable)
		return 0;
	if (f->v->tree)
		tree_close(f->v->tree);
	f->v->tree = NULL;
	rc = tree_open(&f->v->tree, f->v->cache, f->v->space, f->catalog.root_pid, &why);
	if (rc == -EUCLEAN || rc == -EIO) {
		fsck_note(f, 101, "nothing further can be repaired: %s", why.text);
		f->writable = false;
		return 0;
	}
	return rc;
}

/* ---- rounds ---------------------------------------------------------------------- */

static void round_begin(struct fsck *f)
{
	size_t bytes = (DIV_UP(f->sb.page_count, 64) + 1) * sizeof(uint64_t);

	memset(f->claimed, 0, bytes);
	memset(f->twice, 0, bytes);
	f->any_twice = false;
	f->tree_left = 0;
	f->damage_count = 0;
	f->damage_more = false;
	f->changed = false;
	f->highest_ino = 0;
	f->out->inodes = f->out->directories = f->out->data_pages = 0;
	f->out->tree_pages = f->out->used_pages = 0;
}

/* Numbers in use are not handed out again. */
static int check_numbers(struct fsck *f)
{
	uint64_t range = (f->highest_ino >> DISK_INODE_RANGE_BITS) + 1;

	if (f->catalog.next_inode_range >= range &&
		f->catalog.next_inode_range <= DISK_INO_MAX >> DISK_INODE_RANGE_BITS)
		return 0;
	if (!fsck_found(f, 31,
		    "the catalog's next range of inode numbers is %" PRIu64
		    ", the highest number in use is %" PRIu64,
		    f->catalog.next_inode_range, f->highest_ino))
		return 0;
	f->catalog.next_inode_range = range;
	return fsck_repaired(f, catalog_rewrite(f));
}

/* Passes that take the whole tree for granted. */
static int passes_above(struct fsck *f)
{
	int rc = pass2(f);

	if (rc == 0)
		rc = pass3(f);
	if (rc == 0)
		rc = pass4(f);
	if (rc == 0 && f->o->check_data && !f->changed)
		rc = pass5(f);
	return rc;
}

static int round_run(struct fsck *f)
{
	int rc;

	round_begin(f);
	rc = pass1(f);
	if (rc == 0)
		rc = groups_check(f);
	if (rc == 0)
		rc = check_numbers(f);
	if (rc == 0)
		rc = content_open(f);
	if (rc == 0 && f->damage_count)
		return f->writable ? rebuild_tree(f) : 0;
	if (rc == 0 && f->tree_left) {
		fsck_note(f, 110,
			"while parts of the tree are missing what is above it is not "
			"checked");
		return 0;
	}
	if (rc == 0)
		rc = tree_get(f);
	f->edits_known = f->edits;
	return rc ? rc : passes_above(f);
}

static int rounds(struct fsck *f)
{
	int rc = 0;

	for (f->round = 0; f->round < ROUNDS_MAX; f->round++) {
		rc = round_run(f);
		if (rc || !(f->changed || f->damage_more) || !f->writable)
			break;
	}
	return rc;
}

/* ---- all of it ------------------------------------------------------------------- */

static int check_storage(struct fsck *f, bool *stop)
{
	int rc = super_check(f, stop);

	memcpy(f->out->label, f->sb.label, sizeof(f->out->label));
	f->out->label[sizeof(f->out->label) - 1] = 0;
	f->out->total_pages = f->sb.page_count;
	/* What its pages are for only the catalog's tree knows. */
	if (rc == 0 && !*stop && f->sb.shard != DISK_CATALOG_SHARD)
		rc = weft_error(f->err, -EOPNOTSUPP,
			"it is the store of node %u, with shard %u of a volume of "
			"several "
			"stores; this version checks volumes of one store only",
			f->sb.node, f->sb.shard);
	if (rc == 0 && !*stop) {
		rc = log_check(f, stop);
		if (rc == 0)
			rc = super_check_one(f);
	}
	if (rc || *stop)
		return rc;
	if (f->out->was_clean && !f->o->force && !f->out->found) {
		f->out->skipped = *stop = true;
		return 0;
	}
	rc = memory_get(f);
	return rc ? rc : table_check(f, stop);
}

static int close_volume(struct fsck *f, int rc)
{
	int closed = f->v ? volume_close(f->v) : 0;

	if (rc == 0 && closed)
		rc = weft_error(f->err, closed, "writing what was repaired failed: %s",
			strerrordesc_np(-closed));
	return rc;
}

static int check_all(struct fsck *f)
{
	bool stop = false;
	int rc = check_storage(f, &stop);

	if (rc == 0 && !stop)
		rc = volume_get(f, &stop);
	if (rc == 0 && !stop)
		rc = catalog_check(f, &stop);
	if (rc == 0 && !stop)
		rc = rounds(f);
	return close_volume(f, rc);
}

int fsck_run(struct rt_disk *disk, const struct fsck_options *o, struct fsck_result *out,
	struct weft_error *err)
{
	struct weft_error why = {0};
	struct fsck *f = rt_alloc(sizeof(*f));
	int rc = -ENOMEM;

	*out = (struct fsck_result){0};
	if (f) {
		f->o = o;
		f->out = out;
		f->err = &why;
		f->disk = disk;
		f->writable = o->repair;
		f->memory_bytes = o->memory_bytes ? MAX(o->memory_bytes, MEMORY_MIN)
						  : MEMORY_DEFAULT;
		f->declined = rt_alloc(2 * DECLINED_MAX * sizeof(uint64_t));
		rc = f->declined ? check_all(f) : -ENOMEM;
		memory_put(f);
		rt_free(f);
	}
	rt_disk_close(disk);
	out->exit_code = (out->fixed ? FSCK_EXIT_FIXED : 0) |
			 (out->left ? FSCK_EXIT_LEFT : 0) |
			 (rc ? FSCK_EXIT_OPERATIONAL : 0);
	if (rc)
		weft_error(err, rc, "%s", why.code ? why.text : strerrordesc_np(-rc));
	return rc;
}
