/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of the driver's records: PID to what is known of the page, its memory, and walks
 * over all of it.
 *
 * Pages are asked for, given and let go of in rows: what is found of one row of PAGE_RUN pages
 * is found by one look in one small block (struct page_row), which tells also of those that
 * have no record; and a look fetches the next record of the row into the processor's cache.
 * So of pages in a row only the first ones cost a look into cold memory. Chains are of rows,
 * never through records, which lie anywhere.
 *
 * A record that is locked is awake: a struct dpage, of seven lines. One that says no more than a line
 * or two can hold is put to rest by the end of the lock (cluster_rest.c). So few are awake at a time,
 * and these are where the last ones were, in the processor's cache.
 */
#include "engine/coherence/cluster_internal.h"

#define RECORD_AHEAD 2u /* pages */
#define ROW_AHEAD    5u /* the place in a row at which the next one's bucket is looked for */
#define AWAKE_LINES  4u /* of a record that is awake: what most events look at */
#define MEMORY_NS    1000000ull

/* What is known of the pages first ... first + PAGE_RUN - 1. */
struct page_row {
	page_id first;
	struct page_row *next; /* of its bucket, or of the spare */
	uint32_t used;         /* records; and 1 for who walks over them */
	uint16_t rest;         /* a bit for each: it is at rest */
	struct record *record[PAGE_RUN];
};

/* Records that lie together. Of those that are not used only the `record` they begin with means anything. */
struct record_chunk {
	struct record_chunk *next, **link; /* of those with a free record */
	unsigned used;
	struct record *free;
	_Alignas(64) uint8_t records[];
};

static const size_t record_bytes[] = {
	[RECORD_AWAKE] = sizeof(struct dpage),
	[RECORD_REST] = sizeof(struct page_rest),
	[RECORD_REST_HOME] = sizeof(struct page_rest_home),
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

/* Nobody waits under it (invariant 6): messages are served under it. */
static void partition_lock(struct partition *t)
{
	rt_mutex_lock(&t->lock);
	rt_holds(&t->bucket, rt_never);
}

static void partition_unlock(struct partition *t)
{
	rt_lets_go(&t->bucket);
	rt_mutex_unlock(&t->lock);
}

static struct page_row **bucket_of(struct cluster *d, page_id pid)
{
	uint64_t at = row_hash(pid) / PAGE_PARTITIONS;

	return &partition_of(d, pid)->bucket[at & (d->buckets - 1)];
}

/* ---- their memory --------------------------------------------------------------------------- */

static void chunk_link(struct record_pool *pool, struct record_chunk *k)
{
	k->next = pool->chunks;
	k->link = &pool->chunks;
	if (k->next)
		k->next->link = &k->next;
	pool->chunks = k;
}

static void chunk_unlink(struct record_chunk *k)
{
	*k->link = k->next;
	if (k->next)
		k->next->link = k->link;
}

static struct record_chunk *chunk_new(struct record_pool *pool, size_t bytes)
{
	struct record_chunk *k = rt_alloc(sizeof(*k) + PAGE_CHUNK * bytes);

	if (!k)
		return NULL;
	for (unsigned i = PAGE_CHUNK; i-- > 0;) {
		struct record *r = (struct record *)(k->records + i * bytes);

		r->chunk = k;
		r->next = k->free;
		k->free = r;
	}
	chunk_link(pool, k);
	pool->idle++;
	pool->all++;
	return k;
}

static void record_expect(const struct record *r, size_t bytes)
{
	for (size_t at = 0; at < bytes; at += CACHE_LINE)
		__builtin_prefetch((const char *)r + at);
}

/* What is behind its beginning is what was there before. NULL: no memory. */
static struct record *record_new(struct partition *t, enum record_kind kind)
{
	struct record_pool *pool = &t->pool[kind];
	struct record_chunk *k = pool->chunks;
	struct record *r;

	if (!k)
		k = chunk_new(pool, record_bytes[kind]);
	if (!k)
		return NULL;
	r = k->free;
	k->free = r->next;
	pool->idle -= k->used == 0;
	k->used++;
	pool->used++;
	if (!k->free)
		chunk_unlink(k);
	else if (kind != RECORD_AWAKE) /* they are in the processor's cache */
		record_expect(k->free, record_bytes[kind]);
	return r;
}

static void record_free(struct partition *t, struct record *r, enum record_kind kind)
{
	struct record_pool *pool = &t->pool[kind];
	struct record_chunk *k = r->chunk;

	if (!k->free)
		chunk_link(pool, k);
	r->next = k->free;
	k->free = r;
	pool->used--;
	if (--k->used)
		return;
	if (pool->idle < CHUNKS_IDLE) {
		pool->idle++; /* pages come and go: their memory is used again */
		return;
	}
	chunk_unlink(k);
	pool->all--;
	rt_free(k);
}

static struct dpage *as_awake(struct record *r)
{
	return container_of(r, struct dpage, record);
}

static struct page_rest *as_rest(struct record *r)
{
	return container_of(r, struct page_rest, record);
}

static enum record_kind rest_kind(bool has_entry)
{
	return has_entry ? RECORD_REST_HOME : RECORD_REST;
}

/* The page's record in its row. */
static bool at_rest(const struct page_row *row, unsigned i)
{
	return row->rest & 1u << i;
}

static enum record_kind kind_of(const struct page_row *row, unsigned i)
{
	return at_rest(row, i) ? rest_kind(as_rest(row->record[i])->has_entry)
			       : RECORD_AWAKE;
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
		t->rows_all += row != NULL;
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
		t->rows_all--;
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
	for (unsigned i = 0; i < PAGE_RUN; i++) {
		enum record_kind kind;

		if (!row->record[i])
			continue;
		kind = kind_of(row, i);
		if (kind == RECORD_AWAKE)
			page_forget_deferred(as_awake(row->record[i]));
		record_free(t, row->record[i], kind);
	}
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
	for (unsigned kind = 0; kind < RECORD_KINDS; kind++) {
		struct record_pool *pool = &t->pool[kind];

		while (pool->chunks) {
			struct record_chunk *k = pool->chunks;

			chunk_unlink(k);
			rt_free(k);
		}
		pool->idle = pool->all = 0;
	}
	rt_free(t->bucket);
	t->bucket = NULL;
	t->rows_spare = t->rows_all = 0;
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

	if (i < PAGE_RUN && row && row->record[i])
		record_expect(row->record[i], at_rest(row, i)
						      ? sizeof(struct page_rest_home)
						      : AWAKE_LINES * CACHE_LINE);
	if (pid % PAGE_RUN == ROW_AHEAD)
		__builtin_prefetch(bucket_of(d, pid + PAGE_RUN));
}

/* A record for one that wakes, for which there is no way to say no: without memory it waits
 * for some, under the lock. */
static struct record *record_await(struct cluster *d, struct partition *t)
{
	struct record *r = record_new(t, RECORD_AWAKE);

	if (!r)
		weft_log(3, "node %u: no memory for the record of a page: waits for some",
			d->o.self);
	rt_lets_go(&t->bucket); /* but for this */
	while (!r) {
		rt_sleep_ns(MEMORY_NS);
		r = record_new(t, RECORD_AWAKE);
	}
	rt_holds(&t->bucket, rt_never);
	return r;
}

static struct dpage *page_clear(struct record *r)
{
	struct dpage *p = as_awake(r);

	*p = (struct dpage){.record.chunk = r->chunk};
	return p;
}

static struct dpage *row_wake(
	struct cluster *d, struct partition *t, struct page_row *row, unsigned i)
{
	struct dpage *p = page_clear(record_await(d, t));
	struct record *r = row->record[i];

	p->row = row;
	p->at = (struct page_at){.pid = row->first + i, .self = d->o.self};
	rest_into(p, as_rest(r));
	row->record[i] = &p->record;
	row->rest &= (uint16_t) ~(1u << i);
	record_free(t, r, rest_kind(p->has_entry));
	return p;
}

/* The row's page, awake. NULL: it has no record. */
static inline struct dpage *row_page(
	struct cluster *d, struct partition *t, struct page_row *row, unsigned i)
{
	if (!row->record[i])
		return NULL;
	return at_rest(row, i) ? row_wake(d, t, row, i) : as_awake(row->record[i]);
}

void page_rest(struct cluster *d, struct dpage *p)
{
	unsigned i = p->at.pid % PAGE_RUN;
	struct partition *t;
	struct record *r;

	if (!rest_may(p))
		return;
	t = partition_of(d, p->at.pid);
	r = record_new(t, rest_kind(p->has_entry));
	if (!r)
		return; /* no memory: it stays awake */
	rest_from(as_rest(r), p);
	p->row->record[i] = r;
	p->row->rest |= (uint16_t)(1u << i);
	record_free(t, &p->record, RECORD_AWAKE);
}

struct dpage *page_lock(struct cluster *d, page_id pid)
{
	struct partition *t = partition_of(d, pid);
	struct page_row *row;

	partition_lock(t);
	row = row_find(d, pid);
	row_expect(d, row, pid);
	return row ? row_page(d, t, row, pid % PAGE_RUN) : NULL;
}

void page_partition_unlock(struct cluster *d, page_id pid)
{
	partition_unlock(partition_of(d, pid));
}

struct dpage *page_new(struct cluster *d, page_id pid)
{
	unsigned home = d->o.home(d->o.owner, pid_shard(pid));
	struct partition *t = partition_of(d, pid);
	struct page_row *row;
	struct record *r;
	struct dpage *p;

	if (home >= PAGE_NODES_MAX)
		return NULL;
	r = record_new(t, RECORD_AWAKE);
	if (!r)
		return NULL;
	row = row_find(d, pid);
	if (!row)
		row = row_new(d, pid);
	if (!row) {
		record_free(t, r, RECORD_AWAKE);
		return NULL;
	}
	p = page_clear(r);
	p->row = row;
	p->at = (struct page_at){.pid = pid, .self = d->o.self, .home = (uint8_t)home};
	p->deferred_end = &p->deferred;
	p->reinstating = NODE_NONE;
	row->record[pid % PAGE_RUN] = r;
	row->used++;
	return p;
}

void page_forget(struct cluster *d, struct dpage *p)
{
	struct page_row *row = p->row;
	unsigned i = p->at.pid % PAGE_RUN;

	row->record[i] = NULL;
	record_free(partition_of(d, p->at.pid), &p->record, RECORD_AWAKE);
	row_leave(d, row);
}

/* ---- all of them ---------------------------------------------------------------------------- */

static void row_each(struct cluster *d, struct page_row *row,
	void (*fn)(struct cluster *d, struct dpage *p, void *arg), void *arg)
{
	struct partition *t = partition_of(d, row->first);

	row->used++; /* it stays, though they may be forgotten */
	for (unsigned i = 0; i < PAGE_RUN; i++) {
		struct dpage *p = row_page(d, t, row, i);

		if (p) {
			fn(d, p, arg);
			page_settle(d, p);
		}
	}
	row_leave(d, row);
}

void page_each(struct cluster *d,
	void (*fn)(struct cluster *d, struct dpage *p, void *arg), void *arg)
{
	for (unsigned i = 0; i < PAGE_PARTITIONS; i++) {
		struct partition *t = &d->partition[i];

		partition_lock(t);
		for (uint32_t b = 0; b < d->buckets; b++)
			for (struct page_row *row = t->bucket[b], *next; row;
				row = next) {
				next = row->next; /* other rows do not change */
				row_each(d, row, fn, arg);
			}
		partition_unlock(t);
		net_flush(d->o.net);
	}
}

void coherence_cluster_records(struct coherence *c, struct coherence_records *out)
{
	struct cluster *d = cluster_of(c);

	*out = (struct coherence_records){0};
	for (unsigned i = 0; i < PAGE_PARTITIONS; i++) {
		struct partition *t = &d->partition[i];

		partition_lock(t);
		for (unsigned kind = 0; kind < RECORD_KINDS; kind++) {
			const struct record_pool *pool = &t->pool[kind];

			out->pages += pool->used;
			out->bytes +=
				pool->all * (sizeof(struct record_chunk) +
						    PAGE_CHUNK * record_bytes[kind]);
		}
		out->awake += t->pool[RECORD_AWAKE].used;
		out->bytes += t->rows_all * sizeof(struct page_row);
		partition_unlock(t);
	}
}

bool coherence_cluster_directory(
	struct coherence *c, page_id pid, struct coherence_directory *out)
{
	struct cluster *d = cluster_of(c);
	struct partition *t = partition_of(d, pid);
	struct dpage woken = {0};
	const struct dpage *p = NULL;
	struct page_row *row;

	if (!rt_mutex_trylock(&t->lock))
		return false;
	row = row_find(d, pid);
	if (row && row->record[pid % PAGE_RUN]) {
		struct record *r = row->record[pid % PAGE_RUN];

		if (at_rest(row, pid % PAGE_RUN))
			rest_into(&woken, as_rest(r));
		p = at_rest(row, pid % PAGE_RUN) ? &woken : as_awake(r);
	}
	*out = (struct coherence_directory){.settled = true};
	if (p) {
		out->entry = p->has_entry;
		out->exclusive = p->entry.mode == HOME_EXCLUSIVE;
		out->settled = !page_busy(p) && p->entry.mode != HOME_REBUILDING;
		out->holders = p->has_entry ? p->entry.holders : 0;
		out->owing = p->has_entry ? p->entry.owing : 0;
	}
	rt_mutex_unlock(&t->lock);
	return true;
}

/* `wake`: also those at rest, which go back to it. */
static void row_each_locked(struct cluster *d, struct page_row *row,
	void (*fn)(struct cluster *d, struct dpage *p), bool wake)
{
	struct partition *t = partition_of(d, row->first);

	for (unsigned i = 0; i < PAGE_RUN; i++) {
		struct dpage *p;

		if (!row->record[i] || (!wake && at_rest(row, i)))
			continue;
		p = row_page(d, t, row, i);
		fn(d, p);
		if (wake && !page_busy(p))
			page_rest(d, p);
	}
}

static void each_locked(
	struct cluster *d, void (*fn)(struct cluster *d, struct dpage *p), bool wake)
{
	for (uint32_t at = 0; at < PAGE_PARTITIONS * d->buckets; at++)
		for (struct page_row *row =
				d->partition[at / d->buckets].bucket[at % d->buckets];
			row; row = row->next)
			row_each_locked(d, row, fn, wake);
}

void page_each_locked(struct cluster *d, void (*fn)(struct cluster *d, struct dpage *p))
{
	each_locked(d, fn, true);
}

void page_each_awake(struct cluster *d, void (*fn)(struct cluster *d, struct dpage *p))
{
	each_locked(d, fn, false);
}

/* What the page is to be reported as; at rest it stays so. */
static int row_report(
	struct cluster *d, struct page_row *row, unsigned i, struct report_list *list)
{
	struct record *r = row->record[i];
	struct dpage woken;
	int e;

	if ((at_rest(row, i) ? as_rest(r)->home : as_awake(r)->at.home) == d->o.self)
		return 0;
	e = report_list_grow(list);
	if (e)
		return e;
	if (!at_rest(row, i)) {
		report_page(as_awake(r), list);
		return 0;
	}
	woken = (struct dpage){.at = {.pid = row->first + i, .self = d->o.self}};
	rest_into(&woken, as_rest(r));
	report_page(&woken, list);
	return 0;
}

static int row_reports(struct cluster *d, struct page_row *row, struct report_list *list)
{
	int e = 0;

	for (unsigned i = 0; i < PAGE_RUN && !e; i++)
		if (row->record[i])
			e = row_report(d, row, i, list);
	return e;
}

int page_bucket_reports(
	struct cluster *d, unsigned at, uint64_t epoch, struct report_list *list)
{
	struct partition *t = &d->partition[at / d->buckets];
	unsigned had = list->count;
	int e = 0;

	partition_lock(t);
	if (view_epoch(d) != epoch)
		e = -EAGAIN;
	for (struct page_row *row = t->bucket[at % d->buckets]; row && !e;
		row = row->next)
		e = row_reports(d, row, list);
	if (e)
		list->count = had;
	partition_unlock(t);
	return e;
}

void page_all_lock(struct cluster *d)
{
	for (unsigned i = 0; i < PAGE_PARTITIONS; i++)
		partition_lock(&d->partition[i]);
}

void page_all_unlock(struct cluster *d)
{
	for (unsigned i = PAGE_PARTITIONS; i-- > 0;)
		partition_unlock(&d->partition[i]);
}
