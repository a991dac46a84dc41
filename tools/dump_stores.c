/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What weft dump looks at: a store, or all of a cluster file's. Disks, and volumes on them
 * that are read and never written.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "tools/dump.h"

#define CACHE_BYTES (64ull << 20)

/* ---- disks ----------------------------------------------------------------------- */

int dump_disk_open(const char *path, struct rt_disk **out, struct weft_error *err)
{
	struct weft_error why = {0};
	int rc = rt_disk_open(out, path, RT_DISK_READ_ONLY | RT_DISK_EXCLUSIVE, &why);

	if (rc == -EBUSY) {
		fprintf(stderr,
			"weft dump: %s is in use: the output may mix several moments\n",
			path);
		return rt_disk_open(out, path, RT_DISK_READ_ONLY, err);
	}
	return rc ? weft_error(err, rc, "%s", why.text) : 0;
}

int dump_cluster_open(struct dump *d, struct weft_error *err)
{
	const struct cluster_member *m = NULL;
	int rc = cluster_open(&d->cluster, d->path, CLUSTER_WITHOUT_KEY, err);

	if (rc)
		return rc;
	d->store = rt_alloc(SHARDS_MAX * sizeof(*d->store));
	if (!d->store)
		return -ENOMEM;
	while (rc == 0 && (m = cluster_next(d->cluster, m))) {
		struct dump_store *s = &d->store[d->store_count];

		if (m->role != CLUSTER_STORAGE)
			continue;
		s->path = cluster_store_here(d->cluster, m->id);
		s->node = m->id;
		rc = dump_disk_open(s->path, &s->disk, err);
		d->store_count += rc == 0;
	}
	return rc;
}

void dump_disks_close(struct dump *d)
{
	for (unsigned i = 0; i < d->store_count; i++)
		rt_disk_close(d->store[i].disk);
	if (!d->store && d->disk)
		rt_disk_close(d->disk);
	rt_free(d->store);
	cluster_close(d->cluster);
}

/* ---- volumes --------------------------------------------------------------------- */

void dump_volumes_close(struct dump *d)
{
	if (d->v)
		volume_close(d->v);
	d->v = NULL;
	for (unsigned i = 0; i < d->store_count; i++) {
		if (d->store[i].v)
			volume_close(d->store[i].v);
		d->store[i].v = NULL;
	}
}

static int volumes_open(struct dump *d, bool all, bool salvage, uint64_t cache_bytes,
	struct weft_error *err)
{
	struct volume *also[SHARDS_MAX];
	struct volume_options o = {.read_only = true,
		.store_only = true,
		.disk_lent = true,
		.any_node = true,
		.salvage = salvage};
	unsigned count = 0;
	int rc = 0;

	*err = (struct weft_error){0};
	for (unsigned i = 0; i < d->store_count && all && rc == 0; i++) {
		struct dump_store *s = &d->store[i];

		if (s->disk == d->disk)
			continue;
		rc = volume_open(&s->v, s->disk, &o, err);
		also[count++] = s->v;
	}
	o.store_only = false;
	o.storage_only = true;
	o.also = also;
	o.also_count = count;
	o.own_only = !o.also_count && d->sb.node;
	o.cache.cache_bytes = cache_bytes;
	if (rc == 0)
		rc = volume_open(&d->v, d->disk, &o, err);
	if (rc)
		dump_volumes_close(d);
	return rc;
}

int dump_volume_get(struct dump *d, bool all)
{
	uint64_t cache_bytes = CACHE_BYTES;
	struct weft_error err;
	int rc = volumes_open(d, all, false, cache_bytes, &err);

	if (rc == -ENOMEM) {
		cache_bytes += d->sb.log_bytes / 4 * 5 * (1 + d->store_count);
		rc = volumes_open(d, all, false, cache_bytes, &err);
	}
	if (rc == -EUCLEAN) {
		fprintf(stderr,
			"weft dump: %s: %s; the part of the log that does not fit is left out\n",
			d->path, err.text);
		rc = volumes_open(d, all, true, cache_bytes, &err);
	}
	if (rc)
		dump_unreadable(d, err.text, rc);
	return rc;
}
