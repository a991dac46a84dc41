/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opening and closing a volume. The layers are opened from the lowest up, recovered on the way, and
 * taken apart from the top down. First come the parts of this node's store: superblock, log, and
 * the records of the log that are to be redone. Then, through the cache, the parts that may be in
 * any store of the volume: catalog, groups, the tree's root. Inode numbers are here, too, since
 * they belong to no layer.
 *
 * After a crash, or an open that fails half way, the store is as recoverable as before. The tail of
 * the log moves only over pages that are persisted.
 */
#include "engine/cache/recovery.h"
#include "engine/coherence/driver/driver.h"
#include "engine/volume/volume_internal.h"

#define MIB (1ull << 20)

/* ---- the catalog ----------------------------------------------------------------- */

static int catalog_check(
	struct volume *v, const struct disk_catalog *c, struct weft_error *err)
{
	const struct disk_superblock *sb = store_superblock(v->store);
	uint64_t at = pid_slot(c->root_pid);

	if (c->magic != DISK_MAGIC_CATALOG)
		return weft_error(err, -EUCLEAN,
			"the catalog page is not one (magic %016llx): the store was not "
			"formatted to the "
			"end, or is damaged; run fsck.weft",
			(unsigned long long)c->magic);
	if (c->disk_version != DISK_VERSION)
		return weft_error(err, -EUCLEAN,
			"the catalog has version %u where the superblock has %u; run "
			"fsck.weft",
			c->disk_version, DISK_VERSION);
	if (memcmp(c->volume_uuid, sb->volume_uuid, sizeof(c->volume_uuid)) != 0)
		return weft_error(err, -EUCLEAN,
			"the catalog belongs to another volume than the superblock; run "
			"fsck.weft");
	if (!shards_have(v->shards, c->root_pid, 1) || at < 2 ||
		(at - 1) % (1 + DISK_GROUP_PAGES) == 0)
		return weft_error(err, -EUCLEAN,
			"the catalog names page %llx as the tree's root, which cannot be "
			"one; run fsck.weft",
			(unsigned long long)c->root_pid);
	if (!c->next_inode_range ||
		c->next_inode_range > DISK_INO_MAX >> DISK_INODE_RANGE_BITS)
		return weft_error(err, -EUCLEAN,
			"the catalog's next range of inode numbers, %llu, is out of "
			"bounds; run fsck.weft",
			(unsigned long long)c->next_inode_range);
	return 0;
}

static int catalog_read(struct volume *v, struct weft_error *err)
{
	struct guard g;
	int rc;

	if (!shards_find(v->shards, DISK_CATALOG_SHARD))
		return weft_error(err, -EOPNOTSUPP,
			"the store holds shard %u, but the catalog is in shard %u, on "
			"another node; open the volume by its cluster file",
			store_superblock(v->store)->shard, DISK_CATALOG_SHARD);
	rc = guard_shared(v->cache, volume_catalog_pid(), 0, &g);
	if (rc)
		return weft_error(err, rc, "cannot read the catalog page: %s%s",
			strerrordesc_np(-rc), rc == -EUCLEAN ? "; run fsck.weft" : "");
	memcpy(&v->catalog, g.image, sizeof(v->catalog));
	guard_release(v->cache, &g);
	return catalog_check(v, &v->catalog, err);
}

/* ---- open ------------------------------------------------------------------------ */

/* Store and log; pass 1 of recovery, before anything reads a page through the cache. */
static int open_storage(
	struct volume *v, const struct volume_options *o, struct weft_error *err)
{
	struct store_options store_options = {
		.read_only = o->read_only,
		.volume_uuid = o->volume_uuid,
		.node = o->node,
		.shard = o->shard,
		.key = o->key,
		.file = o->file,
		.machine = o->machine,
		.nodes = o->nodes,
		.any_node = o->any_node,
	};
	int rc;

	rc = store_open(&v->store, v->disk, &store_options, err);
	if (!rc)
		rc = log_open(&v->log, v->store, &o->log, &v->recovery.was_clean, err);
	if (!rc && !v->recovery.was_clean)
		rc = recovery_descriptors(v, err);
	return rc;
}

/* The providers for a volume of several nodes, by name. The first is the default. */
static const struct coherence_provider providers[] = {
	{"directory", page_driver_open},
};

static int open_provider(
	struct volume *v, const struct coherence_options *o, struct weft_error *err)
{
	const struct coherence_provider *p = o->own;
	int rc;

	for (unsigned i = 0; i < ARRAY_SIZE(providers) && !p; i++)
		if (!o->provider || !strcmp(o->provider, providers[i].name))
			p = &providers[i];
	if (!p)
		return weft_error(err, -EOPNOTSUPP,
			"there is no coherence provider \"%s\" in this version of weft",
			o->provider);
	rc = p->open(&v->coherence, o);
	return rc ? weft_error(err, rc, "cannot run the page protocol: %s",
			    strerrordesc_np(-rc))
		  : 0;
}

static int open_peers(struct volume *v, struct weft_error *err)
{
	struct coherence_options o = {0};
	int rc = v->peers->open(v->peers->arg, v, &o, err);

	if (rc)
		return rc;
	v->peers_open = true;
	WEFT_ASSERT(o.shards);
	return open_provider(v, &o, err);
}

static int open_coherence(struct volume *v, struct weft_error *err)
{
	struct coherence_store others[SHARDS_MAX];

	for (unsigned i = 0; i < v->also_count; i++)
		others[i] = (struct coherence_store){
			v->also[i]->store, v->also[i]->coherence};
	if (v->also_count)
		return coherence_stores_open(&v->coherence,
			store_superblock(v->store)->shard, v->log, others, v->also_count);
	if (!v->peers)
		return coherence_single_open(
			&v->coherence, store_superblock(v->store)->shard);
	return open_peers(v, err);
}

/* Returns true if there is a log that was not closed cleanly. */
static bool logs_dirty(const struct volume *v)
{
	bool dirty = !v->recovery.was_clean;

	for (unsigned i = 0; i < v->also_count; i++)
		dirty |= !v->also[i]->recovery.was_clean;
	return dirty;
}

/* The log's images of other nodes' pages stay in the cache until their homes have them. A cache
 * that is smaller than that is made larger, for as long as this node runs now. */
static uint64_t cache_bytes_for(const struct volume *v, uint64_t asked)
{
	uint64_t has = asked ? asked : CACHE_DEFAULT_BYTES;
	uint64_t need = cache_recover_bytes(v->recovery.elsewhere);

	if (!v->recovery.elsewhere || need <= has)
		return asked;
	weft_log(5,
		"the log has %llu pages of other nodes, which stay in memory until "
		"these nodes have them: the cache is %llu MiB this time, not %llu",
		(unsigned long long)v->recovery.elsewhere,
		(unsigned long long)DIV_UP(need, MIB),
		(unsigned long long)DIV_UP(has, MIB));
	return need;
}

/* The cache; pass 2. Its tasks start when all is recovered (open_content). */
static int open_cache(
	struct volume *v, const struct volume_options *o, struct weft_error *err)
{
	struct cache_options cache_options = o->cache;
	int rc;

	cache_options.read_only = o->read_only;
	cache_options.cache_bytes = cache_bytes_for(v, o->cache.cache_bytes);
	rc = open_coherence(v, err);
	if (!rc)
		rc = cache_open(
			&v->cache, v->store, v->log, v->coherence, &cache_options);
	if (rc)
		return weft_error(err, rc, "cannot make a cache of %llu MiB: %s",
			(unsigned long long)(cache_options.cache_bytes >> 20),
			strerrordesc_np(-rc));
	v->shards = cache_shards(v->cache);
	if (!o->read_only)
		rc = log_start(v->log);
	if (!rc && logs_dirty(v) && !o->store_only)
		return recovery_redo(v, err);
	return rc ? weft_error(err, rc, "cannot start the log: %s", strerrordesc_np(-rc))
		  : 0;
}

/* A client gives all groups back before its log is marked clean. */
static bool owns_no_group(const struct volume *v)
{
	return v->recovery.was_clean && disk_shard_client(store_superblock(v->store)->shard);
}

static int open_content(
	struct volume *v, const struct volume_options *o, struct weft_error *err)
{
	int rc = catalog_read(v, err);

	if (!rc)
		rc = space_open(&v->space, v->cache, err);
	if (!rc && v->calls)
		space_connect(v->space, v->calls, &v->nodes, owns_no_group(v));
	if (!rc)
		rc = tree_open(&v->tree, v->cache, v->space, v->catalog.root_pid, err);
	if (!rc && v->calls && o->learned_bytes) {
		rc = tree_learn(v->tree, o->learned_bytes);
		if (rc)
			weft_error(err, rc, "cannot make a table of %llu KiB for places of leaves",
				(unsigned long long)(o->learned_bytes >> 10));
	}
	if (!rc && !o->read_only && o->background) {
		rc = cache_start(v->cache);
		if (rc)
			weft_error(err, rc, "cannot start the cache's tasks: %s",
				strerrordesc_np(-rc));
	}
	if (!rc && v->calls && !o->read_only)
		tree_connect(v->tree, v->calls);
	return rc;
}

/* Takes apart all open layers, from the top down; nothing is written. */
static void take_apart(struct volume *v)
{
	if (v->cache)
		cache_stop(v->cache);
	if (v->tree)
		tree_close(v->tree);
	if (v->space)
		space_close(v->space);
	if (v->peers_open)
		v->peers->stop(v->peers->arg, v);
	if (v->cache)
		cache_close(v->cache);
	if (v->coherence)
		v->coherence->ops->close(v->coherence);
	if (v->log)
		log_close(v->log);
	if (v->store)
		store_close(v->store);
	if (!v->disk_lent)
		rt_disk_close(v->disk);
	rt_free(v);
}

/* Redo on a read-only volume stays in memory, and every page that it changes has its full image in
 * the log. So a cache somewhat larger than the log always suffices. */
static int cache_too_small(struct volume *v, struct weft_error *err)
{
	uint64_t enough = log_used_bytes(v->log) / 4 * 5 + MIB;

	return weft_error(err, -ENOMEM,
		"the store was not closed cleanly, and the changes in its log do not "
		"fit the cache: mount it read-write once, or give it a cache of at "
		"least %llu MiB",
		(unsigned long long)DIV_UP(enough, MIB));
}

int volume_open(struct volume **out, struct rt_disk *disk, const struct volume_options *o,
	struct weft_error *err)
{
	struct volume *v = rt_alloc(sizeof(*v));
	struct weft_error why = {0};
	uint64_t started = rt_now_ns();
	int rc;

	*out = NULL;
	if (!v) {
		if (!o->disk_lent)
			rt_disk_close(disk);
		return weft_error(err, -ENOMEM, "no memory for a volume");
	}
	v->disk = disk;
	v->disk_lent = o->disk_lent;
	v->peers = o->peers;
	v->read_only = o->read_only;
	v->salvage = o->salvage;
	v->own_only = o->own_only;
	v->also = o->also;
	v->also_count = o->also_count;
	v->unredone = o->store_only;
	WEFT_ASSERT(o->read_only || !o->own_only);
	rc = open_storage(v, o, &why);
	if (!rc && !(o->store_only && o->read_only))
		rc = open_cache(v, o, &why);
	v->recovery.redone_ns = rt_now_ns() - started;
	if (!rc && v->peers)
		rc = v->peers->start(v->peers->arg, v, &why);
	v->recovery.met_ns = rt_now_ns() - started;
	if (!rc && !o->storage_only && !o->store_only)
		rc = open_content(v, o, &why);
	if (rc) {
		if (rc == -ENOMEM && v->cache && v->read_only && !v->recovery.was_clean)
			cache_too_small(v, err);
		weft_error(err, rc, "%s", why.text);
		take_apart(v);
		return rc;
	}
	for (unsigned i = 0; i < v->also_count; i++)
		v->also[i]->unredone = false;
	v->also = NULL; /* the caller's */
	v->also_count = 0;
	v->recovery.took_ns = rt_now_ns() - started;
	atomic_store(&v->returned, v->calls && !v->read_only && !v->recovery.was_clean);
	*out = v;
	return 0;
}

/* ---- close, sync ----------------------------------------------------------------- */

/* The store here, or other nodes, did not take all. The changes that the log has, and can still
 * take, are redone at the next start. */
static void leave_in_log(struct volume *v, struct volume_rest *rest)
{
	struct cache_census of[SHARDS_MAX];
	uint64_t elsewhere = 0;

	rest->lost = cache_save(v->cache);
	rest->kept = cache_dirty_pages(v->cache);
	rest->kept -= MIN(rest->kept, rest->lost);
	cache_census(v->cache, of);
	for (unsigned i = 0; i < SHARDS_MAX; i++)
		elsewhere += i == store_superblock(v->store)->shard
				     ? 0
				     : of[i].dirty + of[i].owed;
	if (elsewhere)
		weft_log(4,
			"%llu pages of other nodes were not persisted: their synced "
			"changes stay in this node's log; the next start sends them",
			(unsigned long long)elsewhere);
}

int volume_close(struct volume *v)
{
	struct volume_rest rest;

	return volume_close_rest(v, &rest);
}

int volume_close_rest(struct volume *v, struct volume_rest *rest)
{
	bool clean = !v->read_only && !v->unredone;
	int rc = 0;

	*rest = (struct volume_rest){0};
	if (v->tree)
		tree_disconnect(v->tree); /* others split by themselves */
	if (!v->read_only && !volume_failed(v))
		volume_range_undivide(v, v->inode_range);
	if (v->cache)
		cache_stop_work(v->cache);
	if (clean) {
		/* A log that failed stays as it is: recovery begins at its tail. */
		rc = volume_failed(v);
		if (!rc)
			rc = cache_checkpoint(v->cache);
	}
	if (clean && !rc && v->peers && v->peers->settle)
		rc = v->peers->settle(v->peers->arg, v);
	if (v->cache)
		cache_stop(v->cache);
	if (clean) {
		if (!rc && v->peers && v->peers->settle)
			rc = cache_checkpoint(v->cache);
		if (!rc && cache_owes(v->cache)) /* nothing else may have it */
			rc = -EHOSTDOWN;
		if (!rc)
			rc = log_shut(v->log);
		else
			leave_in_log(v, rest);
	}
	take_apart(v);
	return rc;
}

int volume_sync(struct volume *v)
{
	return v->read_only ? 0 : cache_checkpoint(v->cache);
}

int volume_persist(struct volume *v)
{
	return v->read_only ? 0 : cache_persist(v->cache);
}

uint64_t volume_cluster_epoch(struct volume *v)
{
	bool served;

	return coherence_epoch(v->coherence, &served);
}

int volume_failed(struct volume *v)
{
	return log_failed(v->log);
}

/* ---- nodes ------------------------------------------------------------------------ */

unsigned volume_node(const struct volume *v)
{
	return store_superblock(v->store)->node;
}

uint64_t volume_nodes(const struct volume *v)
{
	uint64_t nodes = atomic_load(&v->nodes);

	return nodes ? nodes : 1ull << volume_node(v);
}

uint64_t volume_others(const struct volume *v)
{
	return volume_nodes(v) & ~(1ull << volume_node(v));
}

bool volume_left(struct volume *v, unsigned node)
{
	return atomic_load(&v->left) >> node & 1;
}

bool volume_dead(struct volume *v, unsigned node)
{
	return atomic_load(&v->dead) >> node & 1;
}

bool volume_over(struct volume *v, unsigned node, uint64_t incarnation)
{
	return (volume_left(v, node) && incarnation <= store_left(v->store, node)) ||
	       (volume_dead(v, node) && incarnation <= store_dead(v->store, node));
}

bool volume_vacant(const struct volume *v, unsigned node)
{
	return v->peers && v->peers->vacant && v->peers->vacant(v->peers->arg, node);
}

/* ---- inode numbers --------------------------------------------------------------- */

/*
 * The next range from the catalog. Records are durable in their order, so no inode item
 * of the range can outlive a crash that this record does not.
 */
static int range_take(struct volume *v, uint64_t *range)
{
	const page_id pid = volume_catalog_pid();
	struct page_ref ref = {.pid = pid};
	struct mtr_page *p;
	struct mtr *m;
	int rc;

	m = rt_alloc(sizeof(*m));
	if (!m)
		return -ENOMEM;
	for (;;) {
		rc = mtr_begin(m, v->cache, 1);
		if (rc)
			break;
		p = mtr_latch(m, pid, 0, &rc);
		if (p) {
			const struct disk_catalog *c =
				(const struct disk_catalog *)p->guard.image;

			*range = c->next_inode_range;
			rc = *range > DISK_INO_MAX >> DISK_INODE_RANGE_BITS ? -ENOSPC : 0;
			if (!rc)
				mtr_write_u64(p,
					offsetof(struct disk_catalog, next_inode_range),
					*range + 1);
		}
		if (!rc) {
			mtr_commit(m);
			break;
		}
		mtr_abort(m);
		if (rc == -EAGAIN)
			rc = cache_fetch_exclusive(v->cache, &ref, 1);
		if (rc)
			break;
		rt_yield();
	}
	rt_free(m);
	return rc;
}

int volume_inode_number(struct volume *v, uint64_t *out)
{
	uint64_t range = 0, before = 0;
	int rc = 0;

	rt_mutex_lock(&v->inode_lock);
	while (v->inode_next == v->inode_end && !rc) {
		if (v->inode_refilling) {
			rt_cond_wait(&v->inode_refilled, &v->inode_lock, RT_FOREVER);
			continue;
		}
		v->inode_refilling = true;
		before = v->inode_range;
		rt_mutex_unlock(&v->inode_lock);
		rc = range_take(v, &range);
		if (!rc) {
			volume_range_divide(v, range);
			volume_range_undivide(v, before);
		}
		rt_mutex_lock(&v->inode_lock);
		v->inode_refilling = false;
		rt_cond_broadcast(&v->inode_refilled);
		if (!rc) {
			v->inode_range = range;
			v->inode_next = range << DISK_INODE_RANGE_BITS;
			v->inode_end = v->inode_next + (1ull << DISK_INODE_RANGE_BITS);
		}
	}
	if (!rc)
		*out = v->inode_next++;
	rt_mutex_unlock(&v->inode_lock);
	return rc;
}
