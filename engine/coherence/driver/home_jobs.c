/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The home's work that waits for its store. That is reads for other nodes (home_reads.c), and
 * shipped images that are persisted (home_persists.c). A message queues a job. A task takes all
 * jobs that wait, as far as they fit into a batch, and does them together.
 *
 * Images on their way between the store and other nodes lie in registered memory, so no transport
 * copies or registers them. If that is used up, other memory takes its place.
 */
#include "engine/coherence/driver/driver_internal.h"

/* ---- images ------------------------------------------------------------------------------ */

int home_images_open(struct page_driver *d, uint32_t frames)
{
	struct image_pool *pool = &d->images;
	uint32_t wanted = MAX(frames / HOME_IMAGES_PER, HOME_IMAGES_MIN);
	uint32_t pages = MIN(wanted, HOME_IMAGES_MAX);
	void *base;
	int rc;

	if (d->o.shard == COHERENCE_NO_SHARD)
		return 0;
	rc = net_region_create(d->o.net, HOME_REGION,
		(pages + PERSIST_TASKS * PERSIST_BATCH) * (size_t)PAGE_SIZE,
		NET_REMOTE_READ, &base);
	if (rc)
		return rc;
	pool->spare = rt_alloc(pages * sizeof(pool->spare[0]));
	if (!pool->spare)
		return -ENOMEM;
	pool->base = base;
	pool->pages = pages;
	for (uint32_t i = 0; i < pages; i++)
		pool->spare[pool->count++] = pages - 1 - i;
	return 0;
}

void home_images_close(struct page_driver *d)
{
	WEFT_ASSERT(d->images.count == d->images.pages);
	rt_free(d->images.spare);
}

void *home_image_take(struct page_driver *d)
{
	struct image_pool *pool = &d->images;
	void *image = NULL;

	rt_mutex_lock(&pool->lock);
	if (pool->count)
		image = pool->base + (size_t)pool->spare[--pool->count] * PAGE_SIZE;
	rt_mutex_unlock(&pool->lock);
	return image ? image : rt_alloc_pages(PAGE_SIZE);
}

void home_image_put(struct page_driver *d, void *image)
{
	struct image_pool *pool = &d->images;
	size_t offset = (size_t)((uint8_t *)image - pool->base);

	if (!pool->pages || (uint8_t *)image < pool->base ||
		offset >= (size_t)pool->pages * PAGE_SIZE) {
		rt_free_pages(image, PAGE_SIZE);
		return;
	}
	rt_mutex_lock(&pool->lock);
	pool->spare[pool->count++] = (uint32_t)(offset / PAGE_SIZE);
	rt_mutex_unlock(&pool->lock);
}

void *home_images_take_batch(struct page_driver *d)
{
	struct image_pool *pool = &d->images;
	uint32_t batch = atomic_fetch_add(&pool->batches, 1);

	WEFT_ASSERT(batch < PERSIST_TASKS);
	if (!pool->base)
		return NULL;
	return pool->base + (pool->pages + (size_t)batch * PERSIST_BATCH) * PAGE_SIZE;
}

/* ---- jobs -------------------------------------------------------------------------------- */

/* Wakes a task if none works, or if many jobs wait. */
static void wake_if_due(struct job_queue *q)
{
	uint32_t asleep = atomic_load(&q->asleep);

	if (q->woken || !q->count || (asleep < q->tasks && q->count < JOBS_PER_TASK))
		return;
	q->woken = true;
	if (asleep)
		rt_wake(&q->word, 1);
}

void job_put(struct job_queue *q, struct job *j)
{
	j->next = NULL;
	rt_mutex_lock(&q->lock);
	*q->end = j;
	q->end = &j->next;
	q->count++;
	atomic_fetch_add(&q->word, 1);
	wake_if_due(q);
	rt_mutex_unlock(&q->lock);
}

unsigned jobs_take(struct job_queue *q, struct job **jobs, unsigned max)
{
	unsigned count = 0;

	rt_mutex_lock(&q->lock);
	for (; q->first && count < max; q->first = q->first->next)
		jobs[count++] = q->first;
	if (!q->first)
		q->end = &q->first;
	q->count -= count;
	q->woken = false;
	wake_if_due(q);
	rt_mutex_unlock(&q->lock);
	return count;
}

/* A job that is put before `asleep` is raised changes the word: the wait ends at once. */
void jobs_wait(struct job_queue *q, uint32_t word)
{
	atomic_fetch_add(&q->asleep, 1);
	rt_wait(&q->word, word, RT_FOREVER);
	atomic_fetch_sub(&q->asleep, 1);
}

int job_later(struct page_driver *d, struct page_record *p, enum job_kind kind,
	unsigned node, uint64_t place, const struct page_message *m)
{
	struct job *j = rt_alloc(sizeof(*j));

	if (!j)
		return -ENOMEM;
	j->kind = kind;
	j->p = p;
	j->node = node;
	j->place = place;
	j->epoch = view_epoch(d);
	if (m)
		j->m = *m;
	p->refs++;
	job_put(kind == JOB_PERSIST ? &d->persist_jobs : &d->home_jobs, j);
	return 0;
}

struct page_record *job_page(struct page_driver *d, struct job *j)
{
	page_relock(d, j->p);
	return j->p;
}
