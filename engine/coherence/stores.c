/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Coherence of a volume whose stores are all at hand, for tools: one cache has the pages of
 * all shards, and nobody else has any, so every request is granted in X at once. Pages of
 * the cache's own store are read by it; those of the others are brought into the frame
 * from here. Keeps no state, and writes nothing: the cache is a read-only one.
 */
#include "engine/coherence/coherence.h"

#include "engine/rt/rt.h"
#include "engine/store/store.h"

#define READS_MAX 32u

struct stores {
	struct coherence base;
	struct shards shards;
	unsigned count;
	struct store *store[SHARDS_MAX];
};

static struct store *store_of(const struct stores *s, page_id pid)
{
	for (unsigned i = 0; i < s->count; i++)
		if (store_superblock(s->store[i])->shard == pid_shard(pid))
			return s->store[i];
	return NULL;
}

static void grant(struct coherence_request *r, enum page_source source)
{
	r->result = 0;
	r->granted = PAGE_EXCLUSIVE;
	r->source = source;
	r->arrived = r->dirty = false;
}

/* What its store has of the page: image, or with `hollow` descriptor alone. */
static void answer(struct coherence_request *r, const struct store_read *read)
{
	if (read->result < 0) {
		r->result = read->result;
		return;
	}
	grant(r, read->result == STORE_ZEROS ? PAGE_FROM_ZEROS : PAGE_FROM_PEER);
	r->found_incarnation = read->found_incarnation;
	r->version = read->version;
}

/* So many of the requests, from the first on, as the same other store answers at once. */
static unsigned acquire_run(
	struct stores *s, struct coherence_request *requests, unsigned count)
{
	struct store *store = store_of(s, requests[0].pid);
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
	store_read_pages(store, read, n);
	for (unsigned i = 0; i < n; i++)
		answer(&requests[i], &read[i]);
	return n;
}

static void stores_acquire(
	struct coherence *c, struct coherence_request *requests, unsigned count)
{
	struct stores *s = (struct stores *)c;

	for (unsigned i = 0; i < count;) {
		struct coherence_request *r = &requests[i];

		if (r->held != PAGE_INVALID || coherence_home_here(c, r->pid)) {
			grant(r, r->held == PAGE_INVALID ? PAGE_FROM_STORE
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

static bool stores_release(struct coherence *c, page_id pid, enum page_mode held)
{
	return true;
}

/* What was redone stays in the cache. */
static void stores_evict(struct coherence *c, const page_id *pids, unsigned count)
{
}

static void stores_ship(struct coherence *c, struct coherence_ship *ships, unsigned count)
{
	for (unsigned i = 0; i < count; i++)
		ships[i].result = -EROFS;
}

static void stores_persisted(
	struct coherence *c, page_id pid, uint64_t incarnation, uint64_t version)
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

int coherence_stores_open(struct coherence **out, uint32_t shard,
	struct store *const *others, unsigned count)
{
	struct stores *s = rt_alloc(sizeof(*s));
	int rc = s ? shards_set(&s->shards, (uint16_t)shard, 0) : -ENOMEM;

	for (unsigned i = 0; i < count && !rc; i++) {
		const struct disk_superblock *sb = store_superblock(others[i]);

		rc = shards_set(&s->shards, sb->shard, sb->page_count);
		if (!rc)
			s->store[s->count++] = others[i];
	}
	if (rc) {
		rt_free(s);
		return rc;
	}
	s->base = (struct coherence){
		.ops = &stores_ops, .shard = shard, .shards = &s->shards};
	*out = &s->base;
	return 0;
}
