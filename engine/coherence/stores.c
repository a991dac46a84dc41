/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Coherence of a volume for tools that have all its stores. One cache has the pages of all shards,
 * and no other node has any, so every request is granted in X at once. The cache reads pages of its
 * own store. This file reads those of other stores into the frame. A cache of such a store persists
 * its dirty pages through its own log, as a home does. Keeps no state.
 */
#include "engine/coherence/coherence.h"

#include "engine/log/log.h"
#include "engine/rt/rt.h"
#include "engine/store/store.h"

#define READS_MAX 32u

struct stores {
	struct coherence base;
	struct shards shards;
	unsigned count;
	struct coherence_store store[SHARDS_MAX];
	struct log *log;
};

static const struct coherence_store *store_of(const struct stores *s, page_id pid)
{
	for (unsigned i = 0; i < s->count; i++)
		if (store_superblock(s->store[i].store)->shard == pid_shard(pid))
			return &s->store[i];
	return NULL;
}

static void grant_request(struct coherence_request *r, enum page_source source)
{
	r->result = 0;
	r->granted = PAGE_EXCLUSIVE;
	r->source = source;
	r->arrived = r->dirty = false;
}

/* Answers with the page of its store: the image, or with `hollow` the descriptor alone. */
static void answer_request(struct coherence_request *r, const struct store_read *read)
{
	if (read->result < 0) {
		r->result = read->result;
		return;
	}
	grant_request(r, read->result == STORE_ZEROS ? PAGE_FROM_ZEROS : PAGE_FROM_PEER);
	r->found_incarnation = read->found_incarnation;
	r->version = read->version;
}

/* So many of the requests, from the first on, as the same other store answers at once. */
static unsigned acquire_run(
	struct stores *s, struct coherence_request *requests, unsigned count)
{
	const struct coherence_store *store = store_of(s, requests[0].pid);
	struct store_read read[READS_MAX];
	unsigned n = 0;

	if (!store) {
		requests[0].result = -EIO;
		return 1;
	}
	while (n < count && n < READS_MAX && store_of(s, requests[n].pid) == store) {
		read[n] = (struct store_read){
			.pid = requests[n].pid,
			.incarnation = requests[n].incarnation,
			.image = requests[n].hollow ? NULL : requests[n].image,
		};
		n++;
	}
	store_read_pages(store->store, read, n);
	for (unsigned i = 0; i < n; i++)
		answer_request(&requests[i], &read[i]);
	return n;
}

static void stores_acquire(
	struct coherence *c, struct coherence_request *requests, unsigned count)
{
	struct stores *s = (struct stores *)c;

	for (unsigned i = 0; i < count;) {
		struct coherence_request *r = &requests[i];

		if (r->held != PAGE_INVALID || coherence_home_here(c, r->pid)) {
			grant_request(r, r->held == PAGE_INVALID ? PAGE_FROM_STORE
							 : PAGE_FROM_HELD);
			i++;
		} else {
			i += acquire_run(s, r, count - i);
		}
	}
}

static void stores_used(struct coherence *c, page_id pid)
{
}

static bool stores_release(struct coherence *c, page_id pid, enum page_mode held,
	uint64_t incarnation, bool spare)
{
	return true;
}

static void stores_ship(struct coherence *c, struct coherence_ship *ships, unsigned count)
{
	const struct stores *s = (const struct stores *)c;

	for (unsigned i = 0, n; i < count; i += n) {
		const struct coherence_store *store = store_of(s, ships[i].pid);
		int rc = store ? -EROFS : -EIO;

		for (n = 1; i + n < count && store_of(s, ships[i + n].pid) == store;)
			n++;
		if (store && store->home)
			rc = store->home->frames->persist(
				store->home->cache, &ships[i], n);
		for (unsigned k = i; k < i + n; k++)
			ships[k].result = rc;
	}
}

/* Nobody else wants the page. It leaves when its store has its dirty image. */
static void evict_one(struct coherence *c, page_id pid)
{
	struct coherence_image image;
	int rc = 0;

	if (c->frames->revoke(c->cache, pid, PAGE_INVALID, &image))
		return;
	if (image.dirty) {
		struct coherence_ship ship = {.pid = pid,
			.incarnation = image.incarnation,
			.version = image.version,
			.image = image.image};

		rc = log_flush(((struct stores *)c)->log, image.flush_to);
		if (!rc) {
			stores_ship(c, &ship, 1);
			rc = ship.result;
		}
	}
	if (rc)
		c->frames->restore(c->cache, pid, PAGE_EXCLUSIVE);
	else
		c->frames->vacate(c->cache, pid, false);
}

/* The redone pages of a read-only volume stay in the cache. */
static void stores_evict(struct coherence *c, const page_id *pids, unsigned count)
{
	for (unsigned i = 0; i < count; i++) {
		const struct coherence_store *store =
			store_of((struct stores *)c, pids[i]);

		if (store && store->home)
			evict_one(c, pids[i]);
	}
}

static void stores_persisted(struct coherence *c, page_id pid, uint64_t incarnation,
	uint64_t version, bool more)
{
}

static void stores_close(struct coherence *c)
{
	rt_free(c);
}

static const struct coherence_ops stores_ops = {
	.acquire = stores_acquire,
	.used = stores_used,
	.release = stores_release,
	.evict = stores_evict,
	.ship = stores_ship,
	.persisted = stores_persisted,
	.close = stores_close,
};

int coherence_stores_open(struct coherence **out, uint32_t shard, struct log *log,
	const struct coherence_store *others, unsigned count)
{
	struct stores *s = rt_alloc(sizeof(*s));
	int rc = s ? shards_set(&s->shards, (uint16_t)shard, 0) : -ENOMEM;

	for (unsigned i = 0; i < count && !rc; i++) {
		const struct disk_superblock *sb = store_superblock(others[i].store);

		rc = shards_set(&s->shards, sb->shard, sb->page_count);
		if (!rc)
			s->store[s->count++] = others[i];
	}
	if (rc) {
		rt_free(s);
		return rc;
	}
	s->log = log;
	s->base = (struct coherence){
		.ops = &stores_ops, .shard = shard, .shards = &s->shards};
	*out = &s->base;
	return 0;
}
