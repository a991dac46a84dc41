/* SPDX-License-Identifier: Apache-2.0 */
/* Start and stop of the kernel's cache, and the drops that the page cache asks it for. */
#include "fs/kcache/kcache_internal.h"

/* ---- what the cache wants to be dropped ----------------------------------------------------- */

struct dropping {
	struct kcache *k;
	const struct cache_kcached *what;
	bool anew; /* another task has begun it anew */
};

static void drop_inode(void *arg, uint64_t ino)
{
	struct dropping *d = arg;

	if (!d->anew)
		d->anew = !kcache_drop_inode(
			d->k, ino, d->what->kinds & KCACHE_FILES, d->what);
}

static void push_inode(void *arg, uint64_t ino)
{
	kcache_push(arg, ino);
}

static bool drop_kcached(void *owner, const struct cache_kcached *what)
{
	struct dropping d = {owner, what, false};

	if (what->kinds & KCACHE_NAMES)
		kcache_names_drop(d.k, what->image);
	if (what->kinds & (KCACHE_ATTRIBUTES | KCACHE_FILES)) {
		tree_leaf_inodes(what->image, drop_inode, &d);
		if (d.anew)
			return false;
		tree_leaf_inodes(what->image, push_inode, d.k);
	}
	return !(what->kinds & KCACHE_BLOCK) ||
	       kcache_drop_range(
		       d.k, what->ino, what->block, what->block + 1, false, what);
}

static bool has_pages(void *owner, uint64_t ino)
{
	struct kcache *k = owner;
	bool has;

	rt_mutex_lock(&k->lock);
	has = known_has_pages(k, ino);
	rt_mutex_unlock(&k->lock);
	return has;
}

/* ---- the kernel comes and goes ----------------------------------------------------------- */

static const struct cache_kernel_ops drop_ops = {
	.drop = drop_kcached, .has_pages = has_pages};

static struct kcache *kcache_new(const struct kcache_config *config)
{
	struct kcache *k = rt_alloc(sizeof(*k));

	if (!k)
		return NULL;
	k->cache = config->cache;
	k->tree = config->tree;
	k->sizes = config->sizes;
	k->ops = config->ops;
	k->owner = config->ops_owner;
	k->source = config->source;
	k->source_owner = config->source_owner;
	k->maps_alone = config->maps_alone;
	k->maps_local = config->maps_local;
	k->queue_end = &k->queue;
	k->stores_end = &k->stores;
	return k;
}

int kcache_start(struct kcache **out, const struct kcache_config *config)
{
	struct kcache *k = kcache_new(config);
	int rc;

	WEFT_ASSERT(!*out);
	if (!k)
		return -ENOMEM;
	rc = known_open(k, config->noted);
	if (!rc)
		rc = rt_task_spawn(&k->task[0], "weft-notify", kcache_part_main, k);
	if (!rc) {
		k->tasks = 1;
		rc = kcache_pushes_start(k);
	}
	*out = k;
	if (!rc)
		rc = cache_kernel_start(k->cache, &drop_ops, k);
	if (!rc)
		rc = known_start(k);
	if (!rc && k->maps_alone)
		rc = cache_stores_start(k->cache);
	if (!rc)
		rc = kcache_stores_start(k);
	if (!rc)
		rc = kcache_names_start(k);
	kcache_dirs_start(k);
	if (rc)
		kcache_stop(out);
	return rc;
}

void kcache_stop(struct kcache **at)
{
	struct kcache *k = *at;

	if (!k)
		return;
	atomic_store(&k->gone, true);
	known_stop(k); /* which has parts dropped */
	cache_kernel_stop(k->cache);
	kcache_pushes_stop(k);
	*at = NULL;
	rt_mutex_lock(&k->lock);
	k->stopping = true;
	rt_mutex_unlock(&k->lock);
	rt_cond_broadcast(&k->work);
	kcache_stores_stop(k);
	kcache_names_stop(k);
	kcache_dirs_stop(k);
	for (unsigned i = 0; i < k->tasks; i++)
		rt_task_join(k->task[i]);
	known_close(k);
	rt_free(k->pushes);
	rt_free(k);
}
