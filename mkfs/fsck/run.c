/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A run of fsck: opens as many layers as possible, runs rounds of passes, closes, and makes the
 * result.
 *
 * If a volume has several stores, pass 0 checks them one after the other. From the catalog on there
 * is one volume. alone.c checks one of them without the others.
 *
 * Layers are opened from the lowest up, each after its pass has accepted it: superblocks, log,
 * descriptor table. Then volume_open opens store, log and cache, and replays the log (in memory
 * only if writing is not allowed). The catalog follows. Once pass 1 knows the pages in use, free
 * space and the tree are opened. Repairs are therefore ordinary transactions.
 */
#include "mkfs/fsck/fsck_internal.h"

#define MEMORY_DEFAULT (256ull << 20)
#define MEMORY_MIN     (64ull << 10)
#define CACHE_DEFAULT  (64ull << 20)
#define CACHE_OTHERS   (4ull << 20) /* of each other store, only for write-back */
/* With several stores only pages that were written back can be evicted. */
#define DIRTY_AGE_MS 50

/* ---- opening --------------------------------------------------------------------- */

static int store_memory_get(struct fsck *f, struct fsck_store *s)
{
	uint64_t words = DIV_UP(s->sb.page_count, 64) + 1;

	s->group_count = space_layout_groups(s->sb.page_count);
	s->claimed = rt_alloc(words * sizeof(uint64_t));
	s->twice = rt_alloc(words * sizeof(uint64_t));
	s->group_high = rt_alloc(MAX(s->group_count, 1) * sizeof(uint64_t));
	if (s->claimed && s->twice && s->group_high)
		return 0;
	return weft_error(f->err, -ENOMEM, "no memory for the map of %llu pages",
		(unsigned long long)s->sb.page_count);
}

static int memory_get(struct fsck *f)
{
	int rc = 0;

	f->damage = rt_alloc(DAMAGE_MAX * sizeof(*f->damage));
	if (!f->damage)
		rc = weft_error(f->err, -ENOMEM, "no memory");
	for (unsigned i = 0; i < f->store_count && rc == 0; i++)
		rc = store_memory_get(f, &f->store[i]);
	return rc;
}

static void memory_put(struct fsck *f)
{
	for (unsigned i = 0; f->store && i < f->store_count; i++) {
		rt_free(f->store[i].claimed);
		rt_free(f->store[i].twice);
		rt_free(f->store[i].group_high);
		rt_free(f->store[i].lost_blocks);
	}
	rt_free(f->store);
	rt_free(f->damage);
	rt_free(f->declined);
}

static int volumes_close(struct fsck *f)
{
	int rc = f->v ? volume_close(f->v) : 0;

	for (unsigned i = 0; i < f->store_count; i++) {
		if (i && f->store[i].v) {
			int e = volume_close(f->store[i].v);

			rc = rc ? rc : e;
		}
		f->store[i].v = NULL;
	}
	f->v = NULL;
	return rc;
}

/* Opens the first store, and before it the readers of the others. */
static int volumes_try(
	struct fsck *f, uint64_t cache_bytes, bool salvage, struct weft_error *why)
{
	struct volume *also[SHARDS_MAX];
	struct volume_options o = {
		.read_only = !f->writable,
		.disk_lent = true,
		.any_node = true,
		.salvage = salvage,
		.store_only = true,
		.cache = {.cache_bytes = CACHE_OTHERS, .dirty_age_ms = DIRTY_AGE_MS},
	};
	int rc = 0;

	*why = (struct weft_error){0};
	for (unsigned i = 1; i < f->store_count && rc == 0; i++) {
		rc = volume_open(&f->store[i].v, f->store[i].in.disk, &o, why);
		also[i - 1] = f->store[i].v;
	}
	o.store_only = false;
	o.storage_only = true;
	o.own_only = f->alone;
	o.also = also;
	o.also_count = f->store_count - 1;
	o.cache.cache_bytes = cache_bytes;
	if (f->store_count == 1)
		o.cache.dirty_age_ms = 0;
	if (rc == 0)
		rc = volume_open(&f->v, f->store[0].in.disk, &o, why);
	f->store[0].v = f->v;
	if (rc)
		volumes_close(f);
	return rc;
}

/* Replays the logs. */
static int volume_get(struct fsck *f, bool *stop)
{
	uint64_t cache_bytes = f->o->cache_bytes ? f->o->cache_bytes : CACHE_DEFAULT;
	struct weft_error why;
	int rc = volumes_try(f, cache_bytes, false, &why);

	/* A replay in memory must fit the cache. */
	if (rc == -ENOMEM && !f->writable) {
		for (unsigned i = 0; i < f->store_count; i++)
			cache_bytes += f->store[i].sb.log_bytes / 4 * 5;
		rc = volumes_try(f, cache_bytes, false, &why);
	}
	if (rc == -EUCLEAN) {
		bool repair = fsck_found(f, 13, "%s", why.text);

		if (!repair && f->writable) {
			*stop = true;
			return 0;
		}
		rc = volumes_try(f, cache_bytes, true, &why);
		if (repair && rc == 0)
			fsck_repaired(f, 0);
	}
	if (rc)
		return weft_error(f->err, rc, "%s", why.text);
	for (unsigned i = 0; i < f->store_count; i++) {
		f->out->replayed |= !f->store[i].v->recovery.was_clean;
		f->out->log_records += f->store[i].v->recovery.records;
	}
	rc = 0;
	for (unsigned i = 0; f->writable && i < f->store_count && rc == 0; i++)
		rc = cache_start(f->store[i].v->cache);
	return rc;
}

/* Opens free space and the tree in the ordinary way. If that fails, no repair is made. */
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
	for (unsigned i = 0; i < f->store_count; i++) {
		struct fsck_store *s = &f->store[i];
		size_t bytes = (DIV_UP(s->sb.page_count, 64) + 1) * sizeof(uint64_t);

		memset(s->claimed, 0, bytes);
		memset(s->twice, 0, bytes);
	}
	f->any_twice = false;
	f->tree_left = 0;
	f->damage_count = 0;
	f->damage_more = false;
	f->changed = false;
	f->highest_ino = 0;
	f->out->inodes = f->out->directories = f->out->data_pages = 0;
	f->out->tree_pages = f->out->used_pages = 0;
}

/* Checks that numbers in use are not allocated again. */
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

/* Passes that assume the whole tree. */
static int passes_above(struct fsck *f)
{
	int rc = fsck_pass2(f);

	if (rc == 0)
		rc = fsck_pass3(f);
	if (rc == 0)
		rc = fsck_pass4(f);
	if (rc == 0 && f->o->check_data && !f->changed)
		rc = fsck_pass5(f);
	return rc;
}

static int round_run(struct fsck *f)
{
	int rc;

	round_begin(f);
	rc = fsck_pass1(f);
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
			"parts of the tree are missing, so the rest of the volume is not "
			"checked");
		return 0;
	}
	if (rc == 0)
		rc = tree_get(f);
	f->edits_known = f->edits;
	return rc ? rc : passes_above(f);
}

static int run_rounds(struct fsck *f)
{
	int rc = 0;

	for (f->round = 0; f->round < ROUNDS_MAX; f->round++) {
		rc = round_run(f);
		if (rc || !(f->changed || f->damage_more) || !f->writable)
			break;
	}
	return rc;
}

/* ---- the stores ------------------------------------------------------------------- */

/* Checks that it is one of the requested stores. */
static int input_check(struct fsck *f, const struct fsck_store *s)
{
	const uint8_t *uuid =
		f->o->volume_uuid ? f->o->volume_uuid : f->store[0].sb.volume_uuid;
	struct weft_error why = {0};

	if (memcmp(s->sb.volume_uuid, uuid, sizeof(s->sb.volume_uuid)) != 0)
		return weft_error(f->err, -EXDEV,
			"%s is the store of another volume (\"%.63s\")%s%s", s->in.name,
			s->sb.label, f->o->volume_uuid ? "" : " than that of ",
			f->o->volume_uuid ? "" : f->store[0].in.name);
	if (s->in.node && s->in.node != s->sb.node)
		return weft_error(f->err, -EXDEV, "%s is the store of node %u, not %u",
			s->in.name, s->sb.node, s->in.node);
	/* If the file does not name a node, its pages would look like damage. */
	if (f->o->file && store_nodes_check(&s->sb, f->o->file, f->o->nodes, &why))
		return weft_error(f->err, why.code, "%s: %s", s->in.name, why.text);
	return 0;
}

static int inputs_check(struct fsck *f)
{
	int rc = 0;

	for (unsigned i = 0; i < f->store_count && rc == 0; i++) {
		const struct fsck_store *s = &f->store[i];

		rc = input_check(f, s);
		for (unsigned n = 0; n < i && rc == 0; n++) {
			const struct fsck_store *t = &f->store[n];

			if (s->sb.shard == t->sb.shard || s->sb.node == t->sb.node)
				rc = weft_error(f->err, -EEXIST,
					"%s and %s are both the store of %s %u",
					t->in.name, s->in.name,
					s->sb.node == t->sb.node ? "node" : "shard",
					s->sb.node == t->sb.node ? s->sb.node
								 : s->sb.shard);
		}
	}
	return rc;
}

/* Moves the store with the catalog to the first place. */
static int stores_order(struct fsck *f)
{
	unsigned first = 0;

	while (first < f->store_count && f->store[first].sb.shard != DISK_CATALOG_SHARD)
		first++;
	if (first == f->store_count)
		return weft_error(f->err, -ENOENT,
			"the store with shard %u, which has the catalog, is missing: "
			"give "
			"all stores of the volume",
			DISK_CATALOG_SHARD);
	if (first) {
		struct fsck_store s = f->store[0];

		f->store[0] = f->store[first];
		f->store[first] = s;
	}
	return 0;
}

/* Calls fn for each store. Errors name the store. */
static int each_store(
	struct fsck *f, int (*check)(struct fsck *f, bool *stop), bool *stop)
{
	struct weft_error *err = f->err, why = {0};
	int rc = 0;

	f->err = &why;
	for (unsigned i = 0; i < f->store_count && rc == 0; i++) {
		f->at = &f->store[i];
		rc = check(f, stop);
		if (rc)
			weft_error(err, rc, "%s%s%s",
				f->store_count > 1 ? f->at->in.name : "",
				f->store_count > 1 ? ": " : "",
				why.code ? why.text : strerrordesc_np(-rc));
	}
	f->err = err;
	f->at = NULL;
	return rc;
}

static int supers_check(struct fsck *f, bool *stop)
{
	const struct disk_superblock *sb = &f->store[0].sb;
	int rc = each_store(f, super_check, stop);

	if (rc || *stop)
		return rc;
	f->alone = f->store_count == 1 && !f->o->all_stores &&
		   (sb->node || sb->shard != DISK_CATALOG_SHARD);
	f->out->alone = f->alone;
	rc = inputs_check(f);
	if (rc == 0 && !f->alone)
		rc = stores_order(f);
	for (unsigned i = 0; i < f->store_count; i++)
		f->out->total_pages += disk_shard_client(f->store[i].sb.shard)
					       ? 0
					       : f->store[i].sb.page_count;
	memcpy(f->out->label, f->store[0].sb.label, sizeof(f->out->label));
	f->out->label[sizeof(f->out->label) - 1] = 0;
	return rc;
}

static int check_log(struct fsck *f, bool *stop)
{
	int rc = log_check(f, stop);

	return rc ? rc : super_check_one(f);
}

/* ---- all of it ------------------------------------------------------------------- */

static int check_storage(struct fsck *f, bool *stop)
{
	int rc = supers_check(f, stop);

	if (rc == 0 && !*stop)
		rc = each_store(f, check_log, stop);
	if (rc || *stop)
		return rc;
	f->out->was_clean = true;
	for (unsigned i = 0; i < f->store_count; i++)
		f->out->was_clean &= f->store[i].was_clean;
	if (f->out->was_clean && !f->o->force && !f->out->found) {
		f->out->skipped = *stop = true;
		return 0;
	}
	rc = memory_get(f);
	return rc ? rc : each_store(f, table_check, stop);
}

static int close_volume(struct fsck *f, int rc)
{
	int closed = volumes_close(f);

	if (rc == 0 && closed)
		rc = weft_error(f->err, closed, "writing what was repaired failed: %s",
			strerrordesc_np(-closed));
	return rc;
}

static int check_content(struct fsck *f)
{
	bool stop = false;
	int rc = catalog_check(f, &stop);

	return rc || stop ? rc : run_rounds(f);
}

static int check_all(struct fsck *f)
{
	bool stop = false;
	int rc = check_storage(f, &stop);

	if (f->alone) /* the layers above belong to all stores */
		f->writable = false;
	if (rc == 0 && !stop)
		rc = volume_get(f, &stop);
	if (rc == 0 && !stop)
		rc = f->alone ? alone_check(f) : check_content(f);
	return close_volume(f, rc);
}

static int fsck_open(struct fsck *f, const struct fsck_input *stores, unsigned count)
{
	if (!count || count > SHARDS_MAX)
		return weft_error(
			f->err, -EINVAL, "a volume has 1 to %u stores", SHARDS_MAX);
	f->store = rt_alloc(SHARDS_MAX * sizeof(*f->store)); /* with clients' logs */
	f->declined = rt_alloc(2 * DECLINED_MAX * sizeof(uint64_t));
	if (!f->store || !f->declined)
		return -ENOMEM;
	f->store_count = count;
	for (unsigned i = 0; i < count; i++)
		f->store[i].in = stores[i];
	return 0;
}

int fsck_run_stores(const struct fsck_input *stores, unsigned count,
	const struct fsck_options *o, struct fsck_result *out, struct weft_error *err)
{
	struct weft_error why = {0};
	struct fsck *f = rt_alloc(sizeof(*f));
	int rc = -ENOMEM;

	*out = (struct fsck_result){0};
	if (f) {
		f->o = o;
		f->out = out;
		f->err = &why;
		f->writable = o->repair;
		f->memory_bytes = o->memory_bytes ? MAX(o->memory_bytes, MEMORY_MIN)
						  : MEMORY_DEFAULT;
		rc = fsck_open(f, stores, count);
		if (rc == 0)
			rc = areas_add(f);
		if (rc == 0)
			rc = check_all(f);
		areas_close(f);
		memory_put(f);
		rt_free(f);
	}
	for (unsigned i = 0; i < count; i++)
		rt_disk_close(stores[i].disk);
	out->exit_code = (out->fixed ? FSCK_EXIT_FIXED : 0) |
			 (out->left ? FSCK_EXIT_LEFT : 0) |
			 (rc ? FSCK_EXIT_OPERATIONAL : 0);
	if (rc)
		weft_error(err, rc, "%s", why.code ? why.text : strerrordesc_np(-rc));
	return rc;
}

int fsck_run(struct rt_disk *disk, const struct fsck_options *o, struct fsck_result *out,
	struct weft_error *err)
{
	const struct fsck_input one = {.disk = disk, .name = "the store"};

	return fsck_run_stores(&one, 1, o, out, err);
}
