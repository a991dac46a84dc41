/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of the driver's records: PID to what is known of the page, its memory, and walks
 * over all of it.
 *
 * Pages are asked for, given and let go of in rows: what is found of one row of PAGE_RUN pages
 * is found by one look in one small block (struct page_row), which tells also of those that
 * have no record; and a look fetches the next record of the row into the processor's cache.
 * So of pages in a row only the first ones cost a look into cold memory. Chains are of rows,
 * never through records, which are of seven lines and lie anywhere.
 */
#include "engine/coherence/cluster_internal.h"

#define RECORD_AHEAD 2u /* pages */
#define ROW_AHEAD    5u /* the place in a row at which the next one's bucket is looked for */
#define RECORD_LINES 4u /* of a record: what most events look at */

/* What is known of the pages first ... first + PAGE_RUN - 1. */
struct page_row {
	page_id first;
	struct page_row *next; /* of its bucket, or of the spare */
	uint32_t used;         /* records; and 1 for who walks over them */
	struct dpage *page[PAGE_RUN];
};

int page_table_open(struct cluster *d, uint32_t buckets)
{
	d->buckets = buckets;
	for (unsigned i = 0; i < PAGE_PARTITIONS; i++) {
		d->partition[i].bucket =
			rt_alloc(buckets * sizeof(*d->partition[i].bucket));
		if (!d->partition[i].bucket)
			return -ENOMEM;
	}
	return 0;
}

static uint64_t row_hash(page_id pid)
{
	return (pid / PAGE_RUN * 0x9e3779b97f4a7c15ull) >> 32;
}

static struct partition *partition_of(struct cluster *d, page_id pid)
{
	return &d->partition[row_hash(pid) % PAGE_PARTITIONS];
}

static struct page_row **bucket_of(struct cluster *d, page_id pid)
{
	uint64_t at = row_hash(pid) / PAGE_PARTITIONS;

	return &partition_of(d, pid)->bucket[at & (d->buckets - 1)];
}

/* ---- their memory --------------------------------------------------------------------------- */

static void chunk_link(struct partition *t, struct page_chunk *k)
{
	k->next = t->chunks;
	k->link = &t->chunks;
	if (k->next)
		k->next->link = &k->next;
	t->chunks = k;
}

static void chunk_unlink(struct page_chunk *k)
{
	*k->link = k->next;
	if (k->next)
		k->next->link = k->link;
}

static struct page_chunk *chunk_new(struct partition *t)
{
	struct page_chunk *k = rt_alloc(sizeof(*k));

	if (!k)
		return NULL;
	for (unsigned i = PAGE_CHUNK; i-- > 0;) {
		k->page[i].next = k->free;
		k->free = &k->page[i];
	}
	chunk_link(t, k);
	t->idle++;
	return k;
}

static void record_expect(const struct dpage *p, unsigned lines)
{
	for (unsigned line = 0; line < lines; line++)
		__builtin_prefetch((const char *)p + line * CACHE_LINE);
}

static struct dpage *record_new(struct partition *t)
{
	struct page_chunk *k = t->chunks ? t->chunks : chunk_new(t);
	struct dpage *p;

	if (!k)
		return NULL;
	p = k->free;
	k->free = p->next;
	t->idle -= k->used == 0;
	k->used++;
	if (k->free)
		record_expect(k->free, sizeof(*k->free) / CACHE_LINE);
	else
		chunk_unlink(k);
	*p = (struct dpage){.chunk = k};
	return p;
}

static void record_free(struct partition *t, struct dpage *p)
{
	struct page_chunk *k = p->chunk;

	page_forget_deferred(p);
	if (!k->free)
		chunk_link(t, k);
	p->next = k->free;
	k->free = p;
	if (--k->used)
		return;
	if (t->idle < CHUNKS_IDLE) { /* pages come and go: their memory is used again */
		t->idle++;
		return;
	}
	chunk_unlink(k);
	rt_free(k);
}

static struct page_row *row_new(struct cluster *d, page_id pid)
{
	struct page_row **bucket = bucket_of(d, pid);
	struct partition *t = partition_of(d, pid);
	struct page_row *row = t->rows;

	if (row) {
		t->rows = row->next;
		t->rows_spare--;
	} else {
		row = rt_alloc(sizeof(*row));
	}
	if (!row)
		return NULL;
	*row = (struct page_row){.first = pid - pid % PAGE_RUN, .next = *bucket};
	*bucket = row;
	return row;
}

static void row_free(struct partition *t, struct page_row *row)
{
	if (t->rows_spare == ROWS_SPARE) {
		rt_free(row);
		return;
	}
	row->next = t->rows;
	t->rows = row;
	t->rows_spare++;
}

/* One user less; forgotten without any. */
static void row_leave(struct cluster *d, struct page_row *row)
{
	struct page_row **at = bucket_of(d, row->first);

	if (--row->used)
		return;
	while (*at != row)
		at = &(*at)->next;
	*at = row->next;
	row_free(partition_of(d, row->first), row);
}

struct image_op *image_op_take(struct cluster *d, struct dpage *p)
{
	struct partition *t = partition_of(d, p->at.pid);
	struct image_op *x = t->spare;

	if (x)
		t->spare = x->next;
	else
		x = rt_alloc(sizeof(*x));
	if (x)
		*x = (struct image_op){.d = d, .p = p, .epoch = view_epoch(d)};
	return x;
}

void image_op_put(struct image_op *x)
{
	struct partition *t = partition_of(x->d, x->p->at.pid);

	x->next = t->spare;
	t->spare = x;
}

static void row_close(struct partition *t, struct page_row *row)
{
	for (unsigned i = 0; i < PAGE_RUN; i++)
		if (row->page[i])
			record_free(t, row->page[i]);
	rt_free(row);
}

static void partition_close(struct partition *t, uint32_t buckets)
{
	for (uint32_t b = 0; t->bucket && b < buckets; b++)
		while (t->bucket[b]) {
			struct page_row *row = t->bucket[b];

			t->bucket[b] = row->next;
			row_close(t, row);
		}
	while (t->rows) {
		struct page_row *row = t->rows;

		t->rows = row->next;
		rt_free(row);
	}
	while (t->spare) {
		struct image_op *x = t->spare;

		t->spare = x->next;
		rt_free(x);
	}
	while (t->chunks) {
		struct page_chunk *k = t->chunks;

		chunk_unlink(k);
		rt_free(k);
	}
	rt_free(t->bucket);
	t->bucket = NULL;
	t->idle = t->rows_spare = 0;
}

void page_table_close(struct cluster *d)
{
	for (unsigned i = 0; i < PAGE_PARTITIONS; i++)
		partition_close(&d->partition[i], d->buckets);
}

/* ---- one page ------------------------------------------------------------------------------- */

static struct page_row *row_find(struct cluster *d, page_id pid)
{
	struct page_row *row = *bucket_of(d, pid);

	while (row && row->first != pid - pid % PAGE_RUN)
		row = row->next;
	return row;
}

/* What a look for the pages behind this one will read. */
static void row_expect(struct cluster *d, const struct page_row *row, page_id pid)
{
	unsigned i = pid % PAGE_RUN + RECORD_AHEAD;

	if (i < PAGE_RUN && row && row->page[i])
		record_expect(row->page[i], RECORD_LINES);
	if (pid % PAGE_RUN == ROW_AHEAD)
		__builtin_prefetch(bucket_of(d, pid + PAGE_RUN));
}

struct dpage *page_lock(struct cluster *d, page_id pid)
{
	struct page_row *row;

	rt_mutex_lock(&partition_of(d, pid)->lock);
	row = row_find(d, pid);
	row_expect(d, row, pid);
	return row ? row->page[pid % PAGE_RUN] : NULL;
}

void page_partition_unlock(struct cluster *d, page_id pid)
{
	rt_mutex_unlock(&partition_of(d, pid)->lock);
}

struct dpage *page_new(struct cluster *d, page_id pid)
{
	unsigned home = d->o.home(d->o.owner, pid_shard(pid));
	struct page_row *row;
	struct dpage *p;

	if (home >= PAGE_NODES_MAX)
		return NULL;
	p = record_new(partition_of(d, pid));
	if (!p)
		return NULL;
	p->deferred_end = &p->deferred;
	row = row_find(d, pid);
	if (!row)
		row = row_new(d, pid);
	if (!row) {
		record_free(partition_of(d, pid), p);
		return NULL;
	}
	p->at = (struct page_at){.pid = pid, .self = d->o.self, .home = (uint8_t)home};
	p->reinstating = NODE_NONE;
	row->page[pid % PAGE_RUN] = p;
	row->used++;
	DCOUNT(d, pages);
	return p;
}

void page_forget(struct cluster *d, struct dpage *p)
{
	page_id pid = p->at.pid;
	struct page_row *row = row_find(d, pid);

	atomic_fetch_sub_explicit(&d->counters.pages, 1, memory_order_relaxed);
	row->page[pid % PAGE_RUN] = NULL;
	record_free(partition_of(d, pid), p);
	row_leave(d, row);
}

/* ---- all of them ---------------------------------------------------------------------------- */

static void row_each(struct cluster *d, struct page_row *row,
	void (*fn)(struct cluster *d, struct dpage *p, void *arg), void *arg)
{
	row->used++; /* it stays, though they may be forgotten */
	for (unsigned i = 0; i < PAGE_RUN; i++)
		if (row->page[i]) {
			fn(d, row->page[i], arg);
			page_settle(d, row->page[i]);
		}
	row_leave(d, row);
}

void page_each(struct cluster *d,
	void (*fn)(struct cluster *d, struct dpage *p, void *arg), void *arg)
{
	for (unsigned i = 0; i < PAGE_PARTITIONS; i++) {
		struct partition *t = &d->partition[i];

		rt_mutex_lock(&t->lock);
		for (uint32_t b = 0; b < d->buckets; b++)
			for (struct page_row *row = t->bucket[b], *next; row;
				row = next) {
				next = row->next; /* other rows do not change */
				row_each(d, row, fn, arg);
			}
		rt_mutex_unlock(&t->lock);
		net_flush(d->o.net);
	}
}

void page_each_locked(struct cluster *d, void (*fn)(struct cluster *d, struct dpage *p))
{
	for (uint32_t at = 0; at < PAGE_PARTITIONS * d->buckets; at++)
		for (struct page_row *row =
				d->partition[at / d->buckets].bucket[at % d->buckets];
			row; row = row->next)
			for (unsigned i = 0; i < PAGE_RUN; i++)
				if (row->page[i])
					fn(d, row->page[i]);
}

static int row_reports(
	struct cluster *d, const struct page_row *row, struct report_list *list)
{
	int e = 0;

	for (unsigned i = 0; i < PAGE_RUN && !e; i++) {
		const struct dpage *p = row->page[i];

		if (!p || p->at.home == d->o.self)
			continue;
		e = report_list_grow(list);
		if (!e)
			report_page(p, list);
	}
	return e;
}

int page_bucket_reports(
	struct cluster *d, unsigned at, uint64_t epoch, struct report_list *list)
{
	struct partition *t = &d->partition[at / d->buckets];
	unsigned had = list->count;
	int e = 0;

	rt_mutex_lock(&t->lock);
	if (view_epoch(d) != epoch)
		e = -EAGAIN;
	for (const struct page_row *row = t->bucket[at % d->buckets]; row && !e;
		row = row->next)
		e = row_reports(d, row, list);
	if (e)
		list->count = had;
	rt_mutex_unlock(&t->lock);
	return e;
}

void page_all_lock(struct cluster *d)
{
	for (unsigned i = 0; i < PAGE_PARTITIONS; i++)
		rt_mutex_lock(&d->partition[i].lock);
}

void page_all_unlock(struct cluster *d)
{
	for (unsigned i = PAGE_PARTITIONS; i-- > 0;)
		rt_mutex_unlock(&d->partition[i].lock);
}
