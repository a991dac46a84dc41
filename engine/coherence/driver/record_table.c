/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of the driver's records: it leads from a PID to the page's record. Also the memory of
 * records, and walks over all of them.
 *
 * Pages are asked for, given and let go of in rows. The records of one row of PAGE_RUN pages are
 * found by one look in one small block (struct page_row). That block also names the pages without a
 * record. A look fetches the next record of the row into the processor's cache. So only the first
 * pages of a row cost a look into cold memory. Chains are of rows, never through records, which lie
 * anywhere.
 *
 * A locked record is expanded: a struct page_record, of seven lines of memory. If its contents fit
 * into a line or two, the end of the lock makes it compact (record_compact.c). So few records are
 * expanded at a time. These lie where the last ones were, in the processor's cache.
 */
#include "engine/coherence/driver/driver_internal.h"

#define RECORD_AHEAD 2u    /* pages */
#define ROW_AHEAD    5u    /* the place in a row at which the next one's bucket is looked for */
#define EXPANDED_LINES  4u /* of an expanded record: most events read only these */
#define MEMORY_NS    1000000ull

/* The records of the pages first ... first + PAGE_RUN - 1. */
struct page_row {
	page_id first;
	struct page_row *next; /* of its bucket, or of the spare */
	uint32_t used;         /* records; and 1 for each walk over them */
	uint16_t compact;      /* a bit for each: its record is compact */
	struct record *record[PAGE_RUN];
};

/* Records that lie together. Of those that are not used only the `record` they begin with means
 * anything. */
struct record_chunk {
	struct record_chunk *next, **link; /* of those with a free record */
	unsigned used;
	struct record *free;
	_Alignas(64) uint8_t records[];
};

static const size_t record_bytes[] = {
	[RECORD_EXPANDED] = sizeof(struct page_record),
	[RECORD_COMPACT] = sizeof(struct page_compact),
	[RECORD_COMPACT_HOME] = sizeof(struct page_compact_home),
};

int page_table_open(struct page_driver *d, uint32_t buckets)
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

static struct partition *partition_of(struct page_driver *d, page_id pid)
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

static struct page_row **row_bucket(struct page_driver *d, page_id pid)
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

/* The memory behind the record's beginning keeps its earlier contents. Returns NULL if there is no
 * memory. */
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
	else if (kind != RECORD_EXPANDED) /* they are in the processor's cache */
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

static struct page_record *as_expanded(struct record *r)
{
	return container_of(r, struct page_record, record);
}

static struct page_compact *as_compact(struct record *r)
{
	return container_of(r, struct page_compact, record);
}

static enum record_kind compact_kind(bool has_entry)
{
	return has_entry ? RECORD_COMPACT_HOME : RECORD_COMPACT;
}

/* The page's record in its row. */
static bool is_compact(const struct page_row *row, unsigned i)
{
	return row->compact & 1u << i;
}

static enum record_kind kind_of(const struct page_row *row, unsigned i)
{
	return is_compact(row, i) ? compact_kind(as_compact(row->record[i])->has_entry)
			       : RECORD_EXPANDED;
}

static struct page_row *row_new(struct page_driver *d, page_id pid)
{
	struct page_row **bucket = row_bucket(d, pid);
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
static void row_leave(struct page_driver *d, struct page_row *row)
{
	struct page_row **at = row_bucket(d, row->first);

	if (--row->used)
		return;
	while (*at != row)
		at = &(*at)->next;
	*at = row->next;
	row_free(partition_of(d, row->first), row);
}

struct image_op *image_op_take(struct page_driver *d, struct page_record *p)
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
		if (kind == RECORD_EXPANDED)
			page_forget_deferred(as_expanded(row->record[i]));
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

void page_table_close(struct page_driver *d)
{
	for (unsigned i = 0; i < PAGE_PARTITIONS; i++)
		partition_close(&d->partition[i], d->buckets);
}

/* ---- one page ------------------------------------------------------------------------------- */

static struct page_row *row_find(struct page_driver *d, page_id pid)
{
	struct page_row *row = *row_bucket(d, pid);

	while (row && row->first != pid - pid % PAGE_RUN)
		row = row->next;
	return row;
}

/* Prefetches the memory that a look for the pages behind this one will read. */
static void row_expect(struct page_driver *d, const struct page_row *row, page_id pid)
{
	unsigned i = pid % PAGE_RUN + RECORD_AHEAD;

	if (i < PAGE_RUN && row && row->record[i])
		record_expect(row->record[i], is_compact(row, i)
						      ? sizeof(struct page_compact_home)
						      : EXPANDED_LINES * CACHE_LINE);
	if (pid % PAGE_RUN == ROW_AHEAD)
		__builtin_prefetch(row_bucket(d, pid + PAGE_RUN));
}

/* Returns a record for an expanded one. It cannot fail: without memory it waits for some, under the
 * lock. */
static struct record *record_await(struct page_driver *d, struct partition *t)
{
	struct record *r = record_new(t, RECORD_EXPANDED);

	if (!r)
		weft_log(3, "node %u: no memory for the record of a page; it is tried "
			"again",
			d->o.self);
	rt_lets_go(&t->bucket); /* a wait is allowed for this alone */
	while (!r) {
		rt_sleep_ns(MEMORY_NS);
		r = record_new(t, RECORD_EXPANDED);
	}
	rt_holds(&t->bucket, rt_never);
	return r;
}

static struct page_record *page_clear(struct record *r)
{
	struct page_record *p = as_expanded(r);

	*p = (struct page_record){.record.chunk = r->chunk};
	return p;
}

static struct page_record *row_expand(
	struct page_driver *d, struct partition *t, struct page_row *row, unsigned i)
{
	struct page_record *p = page_clear(record_await(d, t));
	struct record *r = row->record[i];

	p->row = row;
	p->at = (struct page_at){.pid = row->first + i, .self = d->o.self};
	compact_into(p, as_compact(r));
	row->record[i] = &p->record;
	row->compact &= (uint16_t) ~(1u << i);
	record_free(t, r, compact_kind(p->has_entry));
	return p;
}

/* Returns the page's record, expanded; NULL: it has none. */
static inline struct page_record *row_page(
	struct page_driver *d, struct partition *t, struct page_row *row, unsigned i)
{
	if (!row->record[i])
		return NULL;
	return is_compact(row, i) ? row_expand(d, t, row, i) : as_expanded(row->record[i]);
}

void page_compact(struct page_driver *d, struct page_record *p)
{
	unsigned i = p->at.pid % PAGE_RUN;
	struct partition *t;
	struct record *r;

	if (!may_compact(p))
		return;
	t = partition_of(d, p->at.pid);
	r = record_new(t, compact_kind(p->has_entry));
	if (!r)
		return; /* no memory: it stays expanded */
	compact_from(as_compact(r), p);
	p->row->record[i] = r;
	p->row->compact |= (uint16_t)(1u << i);
	record_free(t, &p->record, RECORD_EXPANDED);
}

struct page_record *page_lock(struct page_driver *d, page_id pid)
{
	struct partition *t = partition_of(d, pid);
	struct page_row *row;

	partition_lock(t);
	row = row_find(d, pid);
	row_expect(d, row, pid);
	return row ? row_page(d, t, row, pid % PAGE_RUN) : NULL;
}

void page_relock(struct page_driver *d, struct page_record *p)
{
	struct page_record *found = page_lock(d, p->at.pid);

	WEFT_ASSERT(found == p);
}

void page_await_unlock(struct page_driver *d, page_id pid)
{
	page_unlock(d, pid, page_lock(d, pid));
}

void page_partition_unlock(struct page_driver *d, page_id pid)
{
	partition_unlock(partition_of(d, pid));
}

struct page_record *page_new(struct page_driver *d, page_id pid)
{
	unsigned home = d->o.home(d->o.owner, pid_shard(pid));
	struct partition *t = partition_of(d, pid);
	struct page_row *row;
	struct record *r;
	struct page_record *p;

	if (home >= PAGE_NODES_MAX)
		return NULL;
	r = record_new(t, RECORD_EXPANDED);
	if (!r)
		return NULL;
	row = row_find(d, pid);
	if (!row)
		row = row_new(d, pid);
	if (!row) {
		record_free(t, r, RECORD_EXPANDED);
		return NULL;
	}
	p = page_clear(r);
	p->row = row;
	p->at = (struct page_at){.pid = pid, .self = d->o.self, .home = (uint16_t)home};
	p->deferred_end = &p->deferred;
	p->reinstating = NODE_NONE;
	row->record[pid % PAGE_RUN] = r;
	row->used++;
	return p;
}

void page_forget(struct page_driver *d, struct page_record *p)
{
	struct page_row *row = p->row;
	unsigned i = p->at.pid % PAGE_RUN;

	row->record[i] = NULL;
	record_free(partition_of(d, p->at.pid), &p->record, RECORD_EXPANDED);
	row_leave(d, row);
}

/* ---- all of them ---------------------------------------------------------------------------- */

/* `expand`: also compact records. */
static void row_each(struct page_driver *d, struct page_row *row,
	void (*fn)(struct page_driver *d, struct page_record *p, void *arg), void *arg,
	bool expand)
{
	struct partition *t = partition_of(d, row->first);

	row->used++; /* it stays, though they may be forgotten */
	for (unsigned i = 0; i < PAGE_RUN; i++) {
		struct page_record *p;

		if (!expand && is_compact(row, i))
			continue;
		p = row_page(d, t, row, i);
		if (p) {
			fn(d, p, arg);
			page_settle(d, p);
		}
	}
	row_leave(d, row);
}

static void rows_walk(struct page_driver *d,
	void (*fn)(struct page_driver *d, struct page_record *p, void *arg), void *arg,
	bool expand)
{
	for (unsigned i = 0; i < PAGE_PARTITIONS; i++) {
		struct partition *t = &d->partition[i];

		partition_lock(t);
		for (uint32_t b = 0; b < d->buckets; b++)
			for (struct page_row *row = t->bucket[b], *next; row;
				row = next) {
				next = row->next; /* other rows do not change */
				row_each(d, row, fn, arg, expand);
			}
		partition_unlock(t);
		net_flush(d->o.net);
	}
}

void page_each(struct page_driver *d,
	void (*fn)(struct page_driver *d, struct page_record *p, void *arg), void *arg)
{
	rows_walk(d, fn, arg, true);
}

void page_each_busy(struct page_driver *d,
	void (*fn)(struct page_driver *d, struct page_record *p, void *arg), void *arg)
{
	rows_walk(d, fn, arg, false);
}

static bool has_of_home(const struct page_record *p, unsigned home)
{
	const struct page_hold *h = &p->hold;

	return p->at.home == home &&
	       (h->hold != RIGHT_NONE || h->phase != PHASE_QUIET || h->owed_incarnation ||
		       h->owed_version || p->ships || p->evicting);
}

static bool row_any_of(const struct page_row *row, unsigned home)
{
	bool any = false;

	for (unsigned i = 0; i < PAGE_RUN && !any; i++) {
		struct record *r = row->record[i];

		if (r && is_compact(row, i))
			any = as_compact(r)->home == home && as_compact(r)->hold != RIGHT_NONE;
		else if (r)
			any = has_of_home(as_expanded(r), home);
	}
	return any;
}

bool page_any_of(struct page_driver *d, unsigned home)
{
	bool any = false;

	for (unsigned i = 0; i < PAGE_PARTITIONS && !any; i++) {
		struct partition *t = &d->partition[i];

		partition_lock(t);
		for (uint32_t b = 0; b < d->buckets && !any; b++)
			for (const struct page_row *row = t->bucket[b]; row && !any;
				row = row->next)
				any = row_any_of(row, home);
		partition_unlock(t);
	}
	return any;
}

void driver_records(struct coherence *c, struct coherence_records *out)
{
	struct page_driver *d = driver_of(c);

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
		out->expanded += t->pool[RECORD_EXPANDED].used;
		out->bytes += t->rows_all * sizeof(struct page_row);
		partition_unlock(t);
	}
}

bool driver_directory(
	struct coherence *c, page_id pid, struct coherence_directory *out)
{
	struct page_driver *d = driver_of(c);
	struct partition *t = partition_of(d, pid);
	struct page_record expanded = {0};
	const struct page_record *p = NULL;
	struct page_row *row;

	if (!rt_mutex_trylock(&t->lock))
		return false;
	row = row_find(d, pid);
	if (row && row->record[pid % PAGE_RUN]) {
		struct record *r = row->record[pid % PAGE_RUN];

		if (is_compact(row, pid % PAGE_RUN))
			compact_into(&expanded, as_compact(r));
		p = is_compact(row, pid % PAGE_RUN) ? &expanded : as_expanded(r);
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

/* A page with a request under way has an expanded record. */
uint64_t driver_awaited(struct coherence *c, page_id pid)
{
	struct page_driver *d = driver_of(c);
	struct partition *t = partition_of(d, pid);
	uint64_t nodes = 0;
	struct page_row *row;

	if (!rt_mutex_trylock(&t->lock))
		return 0;
	row = row_find(d, pid);
	if (row && row->record[pid % PAGE_RUN] && !is_compact(row, pid % PAGE_RUN)) {
		const struct page_record *p = as_expanded(row->record[pid % PAGE_RUN]);

		if (p->hold.phase == PHASE_GATHERING)
			nodes = p->hold.need;
		else if (p->hold.phase == PHASE_ASKED && p->at.home < PAGE_NODES_MAX)
			nodes = 1ull << p->at.home;
	}
	rt_mutex_unlock(&t->lock);
	return nodes;
}

/* `expand`: also compact records, which are compact again afterwards. */
static void row_each_locked(struct page_driver *d, struct page_row *row,
	void (*fn)(struct page_driver *d, struct page_record *p), bool expand)
{
	struct partition *t = partition_of(d, row->first);

	for (unsigned i = 0; i < PAGE_RUN; i++) {
		struct page_record *p;

		if (!row->record[i] || (!expand && is_compact(row, i)))
			continue;
		p = row_page(d, t, row, i);
		fn(d, p);
		if (expand && !page_busy(p))
			page_compact(d, p);
	}
}

static void each_locked(struct page_driver *d,
	void (*fn)(struct page_driver *d, struct page_record *p), bool expand)
{
	for (uint32_t at = 0; at < PAGE_PARTITIONS * d->buckets; at++)
		for (struct page_row *row =
				d->partition[at / d->buckets].bucket[at % d->buckets];
			row; row = row->next)
			row_each_locked(d, row, fn, expand);
}

void page_each_locked(
	struct page_driver *d, void (*fn)(struct page_driver *d, struct page_record *p))
{
	each_locked(d, fn, true);
}

void page_each_expanded(
	struct page_driver *d, void (*fn)(struct page_driver *d, struct page_record *p))
{
	each_locked(d, fn, false);
}

/* Adds the reports of the page to the list. A compact record stays compact. */
static int row_report(
	struct page_driver *d, struct page_row *row, unsigned i, struct report_list *list)
{
	struct record *r = row->record[i];
	struct page_record expanded;
	int rc;

	if ((is_compact(row, i) ? as_compact(r)->home : as_expanded(r)->at.home) == d->o.self)
		return 0;
	rc = report_list_grow(list);
	if (rc)
		return rc;
	if (!is_compact(row, i)) {
		report_page(as_expanded(r), list);
		return 0;
	}
	expanded = (struct page_record){.at = {.pid = row->first + i, .self = d->o.self}};
	compact_into(&expanded, as_compact(r));
	report_page(&expanded, list);
	return 0;
}

static int row_reports(struct page_driver *d, struct page_row *row, struct report_list *list)
{
	int rc = 0;

	for (unsigned i = 0; i < PAGE_RUN && !rc; i++)
		if (row->record[i])
			rc = row_report(d, row, i, list);
	return rc;
}

int page_bucket_reports(
	struct page_driver *d, unsigned at, uint64_t epoch, struct report_list *list)
{
	struct partition *t = &d->partition[at / d->buckets];
	unsigned had = list->count;
	int rc = 0;

	partition_lock(t);
	if (view_epoch(d) != epoch)
		rc = -EAGAIN;
	for (struct page_row *row = t->bucket[at % d->buckets]; row && !rc;
		row = row->next)
		rc = row_reports(d, row, list);
	if (rc)
		list->count = had;
	partition_unlock(t);
	return rc;
}

void page_all_lock(struct page_driver *d)
{
	for (unsigned i = 0; i < PAGE_PARTITIONS; i++)
		partition_lock(&d->partition[i]);
}

void page_all_unlock(struct page_driver *d)
{
	for (unsigned i = PAGE_PARTITIONS; i-- > 0;)
		partition_unlock(&d->partition[i]);
}
