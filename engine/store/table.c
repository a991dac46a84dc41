/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The descriptor table's cache: which descriptor a page has.
 *
 * Blocks are cached within a bound (invariant 10) and evicted by a clock. A block with descriptors
 * that no durable copy on disk has is dirty. It stays, and its oldest LSN pins the log, until
 * table_io.c has written it. Dirty blocks may go beyond the bound, so that taking a descriptor does
 * not wait for a checkpoint. (Nothing needed for persisting may wait for persisting.) At four times
 * the bound the task that needs a block writes the dirty ones itself. This needs nothing but the
 * device.
 *
 * One lock guards all of it; it is held for moments and never across a request.
 */
#include "engine/store/store_internal.h"

#include <errno.h>

#define TABLE_DEFAULT_BYTES (16u << 20)
#define TABLE_BOUND_MIN     4u
#define TABLE_OVERFLOW      4u /* the limit is so many times the bound */

/* ---- entries ----------------------------------------------------------------------- */

static uint32_t *table_bucket(struct table *t, uint64_t block)
{
	uint64_t hash = block * 0x9e3779b97f4a7c15ull;

	return &t->buckets[(hash >> 32) & t->bucket_mask];
}

struct table_entry *table_entry_find(struct table *t, uint64_t block)
{
	uint32_t index = *table_bucket(t, block);

	while (index != TABLE_NONE && t->entries[index].block != block)
		index = t->entries[index].hash_next;
	return index == TABLE_NONE ? NULL : &t->entries[index];
}

static uint32_t entry_index(const struct table *t, const struct table_entry *e)
{
	return (uint32_t)(e - t->entries);
}

static bool block_is_unused(const struct table *t, uint64_t block)
{
	return t->unused[block / 64] >> block % 64 & 1;
}

/* Takes a clean block out; its entry is free. */
void table_forget(struct table *t, struct table_entry *e)
{
	uint32_t index = entry_index(t, e);
	uint32_t *link = table_bucket(t, e->block);

	WEFT_ASSERT(!e->dirty && e->state != TABLE_FREE);
	while (*link != index)
		link = &t->entries[*link].hash_next;
	*link = e->hash_next;
	if (e->state == TABLE_LOADING)
		t->loading--;
	t->in_use--;
	e->state = TABLE_FREE;
	if (index < t->bound) {
		e->hash_next = t->free_base;
		t->free_base = index;
	} else {
		rt_free_pages(e->image, PAGE_SIZE);
		e->image = NULL;
		e->hash_next = t->free_overflow;
		t->free_overflow = index;
		t->overflow--;
	}
}

void table_mark_dirty(struct table *t, struct table_entry *e)
{
	if (e->dirty)
		return;
	e->dirty = true;
	e->dirty_prev = TABLE_NONE;
	e->dirty_next = t->dirty_head;
	if (t->dirty_head != TABLE_NONE)
		t->entries[t->dirty_head].dirty_prev = entry_index(t, e);
	t->dirty_head = entry_index(t, e);
	t->dirty_count++;
}

void table_unmark_dirty(struct table *t, struct table_entry *e)
{
	WEFT_ASSERT(e->dirty && e->lsn == LSN_MAX && e->writing_lsn == LSN_MAX);
	e->dirty = false;
	if (e->dirty_prev == TABLE_NONE)
		t->dirty_head = e->dirty_next;
	else
		t->entries[e->dirty_prev].dirty_next = e->dirty_next;
	if (e->dirty_next != TABLE_NONE)
		t->entries[e->dirty_next].dirty_prev = e->dirty_prev;
	t->dirty_count--;
}

/* Evicts one clean block: the clock passes over those used since it came by last. */
static bool evict_one(struct table *t)
{
	if (t->in_use == t->loading + t->dirty_count)
		return false;
	for (;;) {
		struct table_entry *e = &t->entries[t->hand];

		t->hand = (t->hand + 1) % (t->overflow ? t->limit : t->bound);
		if (e->dirty || (e->state != TABLE_VALID && e->state != TABLE_DAMAGED))
			continue;
		if (e->referenced) {
			e->referenced = false;
			continue;
		}
		table_forget(t, e);
		return true;
	}
}

void table_trim(struct table *t)
{
	for (uint32_t i = t->bound; t->overflow && i < t->limit; i++) {
		struct table_entry *e = &t->entries[i];

		if (!e->dirty && (e->state == TABLE_VALID || e->state == TABLE_DAMAGED))
			table_forget(t, e);
	}
}

/* Takes a free entry with an image, for loading `block`. `must`: the caller needs one, so the bound
 * may be passed. Returns NULL if there is none now. From then on the block on disk may change, so
 * it does not count as unused. */
static struct table_entry *entry_take(struct table *t, uint64_t block, bool must)
{
	uint32_t *bucket = table_bucket(t, block);
	struct table_entry *e;

	while (t->free_base == TABLE_NONE && evict_one(t))
		;
	if (t->free_base != TABLE_NONE) {
		e = &t->entries[t->free_base];
		t->free_base = e->hash_next;
	} else {
		if (!must || t->free_overflow == TABLE_NONE)
			return NULL;
		e = &t->entries[t->free_overflow];
		e->image = rt_alloc_pages(PAGE_SIZE);
		if (!e->image)
			return NULL;
		t->free_overflow = e->hash_next;
		t->overflow++;
	}
	*e = (struct table_entry){.block = block,
		.image = e->image,
		.state = TABLE_LOADING,
		.lsn = LSN_MAX,
		.writing_lsn = LSN_MAX,
		.hash_next = *bucket};
	*bucket = entry_index(t, e);
	t->unused[block / 64] &= ~(1ull << block % 64);
	t->in_use++;
	t->loading++;
	return e;
}

/* Makes an unused block as mkfs wrote it. Returns NULL if the block must be read, or there is no
 * room for it now. */
static struct table_entry *entry_make(struct table *t, uint64_t block)
{
	struct table_entry *e =
		block_is_unused(t, block) ? entry_take(t, block, true) : NULL;

	if (!e)
		return NULL;
	memset(e->image, 0, sizeof(*e->image));
	e->image->magic = DISK_MAGIC_TABLE;
	e->image->block = block;
	e->image->generation = e->generation = TABLE_FIRST_GENERATION;
	e->state = TABLE_VALID;
	t->loading--;
	return e;
}

/* ---- requests -------------------------------------------------------------------- */

static void settled_get(const struct candidate_set *c, struct table_request *r)
{
	for (uint32_t i = candidates_first(c, r->pid); i != CANDIDATE_NONE;
		i = candidates_next(c, i)) {
		const struct candidate *e = &c->entries[i];

		if (!e->settled)
			r->undecided = true;
		else if (page_order(e->d.incarnation, e->d.version, r->d.incarnation,
				 r->d.version) > 0)
			r->d = e->d;
	}
}

static void serve_get(struct table *t, struct table_entry *e, struct table_request *r)
{
	const struct disk_descriptor *d =
		&e->image->slot[pid_slot(r->pid) % DISK_TABLE_SLOTS];

	r->d = (struct page_descriptor){.incarnation = d->incarnation,
		.version = d->version,
		.checksum = d->checksum};
	/* After a torn write of the block the log brings back the descriptors of the lost copy. */
	r->suspect = e->suspect && !e->dirty && t->candidates.live == 0 && !t->redo;
	r->undecided = false;
	settled_get(&t->candidates, r);
}

static void serve_install(struct store *s, struct table_entry *e, struct table_request *r)
{
	struct table *t = &s->table;
	struct disk_descriptor *d = &e->image->slot[pid_slot(r->pid) % DISK_TABLE_SLOTS];
	int order =
		page_order(d->incarnation, d->version, r->d.incarnation, r->d.version);

	if (!s->read_only)
		candidates_drop_until(&t->candidates, r->pid, &r->d);
	/*
	 * Recovery meets records that are older than the table's descriptor, and skips them. If the
	 * table has the record's descriptor already, its block need not be durable: the flush may
	 * have failed. While the log still has the record, nobody has said that the flush
	 * succeeded. So the block is written again.
	 */
	if (order > 0 || (order == 0 && s->read_only))
		return;
	if (s->read_only) {
		r->result = candidates_settle(&t->candidates, r->pid, &r->d);
		return;
	}
	*d = (struct disk_descriptor){.incarnation = r->d.incarnation,
		.version = r->d.version,
		.checksum = r->d.checksum};
	e->lsn = MIN(e->lsn, r->lsn);
	table_mark_dirty(t, e);
}

static void serve_request(struct store *s, struct table_entry *e, struct table_request *r)
{
	e->referenced |= !r->scan;
	r->pending = false;
	r->result = e->state == TABLE_DAMAGED ? -EUCLEAN : 0;
	if (r->result)
		return;
	if (r->install)
		serve_install(s, e, r);
	else
		serve_get(&s->table, e, r);
}

enum pass_result { PASS_DONE, PASS_LOAD, PASS_WAIT, PASS_FULL };

/* Starts reading a block into *load; takes memory for reads with the first one. */
static bool start_load(struct table *t, uint64_t block, struct table_load **load)
{
	struct table_load *l = *load ? *load : t->free_loads;
	struct table_entry *e;

	if (!l || l->count == TABLE_LOAD_MAX)
		return false;
	e = entry_take(t, block, l->count == 0);
	if (!e)
		return false;
	if (!*load) {
		t->free_loads = l->next;
		*load = l;
	}
	l->entry[l->count++] = entry_index(t, e);
	return true;
}

/* Serves requests from the cache, and collects the blocks that must be read. */
static enum pass_result table_pass(struct store *s, struct table_request *requests,
	unsigned n, struct table_load **load)
{
	struct table *t = &s->table;
	bool pending = false, full = false;

	for (unsigned i = 0; i < n; i++) {
		struct table_request *r = &requests[i];
		uint64_t block = pid_slot(r->pid) / DISK_TABLE_SLOTS;
		struct table_entry *e;

		if (!r->pending)
			continue;
		e = table_entry_find(t, block);
		if (!e)
			e = entry_make(t, block);
		if (e && e->state != TABLE_LOADING) {
			serve_request(s, e, r);
			continue;
		}
		pending = true;
		if (!e && !start_load(t, block, load) && !*load && t->free_loads)
			full = true;
	}
	if (*load)
		return PASS_LOAD;
	if (full && t->dirty_count)
		return PASS_FULL;
	return pending ? PASS_WAIT : PASS_DONE;
}

/* A block could not be read, or there is no room for it. */
static void fail_requests(
	struct table_request *requests, unsigned n, const uint64_t *block, int rc)
{
	for (unsigned i = 0; i < n; i++) {
		if (!requests[i].pending ||
			(block && pid_slot(requests[i].pid) / DISK_TABLE_SLOTS != *block))
			continue;
		requests[i].pending = false;
		requests[i].result = rc;
	}
}

/* Reads, and tells the requests whose block the device does not give. */
static void run_loads(
	struct store *s, struct table_load *l, struct table_request *requests, unsigned n)
{
	struct table *t = &s->table;

	table_load_run(s, l);
	for (unsigned i = 0; i < l->count; i++) {
		struct table_entry *e = &t->entries[l->entry[i]];

		if (!l->result[i])
			continue;
		fail_requests(requests, n, &e->block, l->result[i]);
		table_forget(t, e);
	}
	l->count = 0;
	l->next = t->free_loads;
	t->free_loads = l;
	rt_cond_broadcast(&t->change);
}

void table_run(struct store *s, struct table_request *requests, unsigned n)
{
	struct table *t = &s->table;
	int rc;

	for (unsigned i = 0; i < n; i++) {
		requests[i].pending = page_id_valid(s, requests[i].pid);
		requests[i].result = requests[i].pending ? 0 : -EUCLEAN;
	}
	rt_mutex_lock(&t->lock);
	for (;;) {
		struct table_load *load = NULL;

		switch (table_pass(s, requests, n, &load)) {
		case PASS_LOAD:
			run_loads(s, load, requests, n);
			continue;
		case PASS_WAIT:
			rt_cond_wait(&t->change, &t->lock, RT_FOREVER);
			continue;
		case PASS_FULL:
			rt_mutex_unlock(&t->lock);
			rc = store_table_write(s, LSN_MAX);
			rt_mutex_lock(&t->lock);
			if (rc)
				fail_requests(requests, n, NULL, rc);
			continue;
		case PASS_DONE:
			break;
		}
		break;
	}
	rt_mutex_unlock(&t->lock);
}

bool table_try(struct store *s, struct table_request *r)
{
	struct table *t = &s->table;
	struct table_entry *e;
	bool there;

	rt_mutex_lock(&t->lock);
	e = table_entry_find(t, pid_slot(r->pid) / DISK_TABLE_SLOTS);
	there = e && e->state != TABLE_LOADING;
	if (there)
		serve_request(s, e, r);
	rt_mutex_unlock(&t->lock);
	return there;
}

/* ---- the interface --------------------------------------------------------------- */

void store_slots_unused(struct store *s, uint64_t first, uint64_t count)
{
	struct table *t = &s->table;
	uint64_t block = DIV_UP(first, (uint64_t)DISK_TABLE_SLOTS);
	uint64_t end = (first + count) / DISK_TABLE_SLOTS;

	WEFT_ASSERT(first + count <= s->sb.page_count);
	rt_mutex_lock(&t->lock);
	for (; block < end; block++)
		if (!table_entry_find(t, block))
			t->unused[block / 64] |= 1ull << block % 64;
	rt_mutex_unlock(&t->lock);
}

void store_descriptors_load(struct store *s, const struct store_write *writes, unsigned n)
{
	struct table *t = &s->table;
	struct table_load *load = NULL;

	rt_mutex_lock(&t->lock);
	for (unsigned i = 0; i < n;) {
		uint64_t block = pid_slot(writes[i].pid) / DISK_TABLE_SLOTS;

		if (table_entry_find(t, block) || block_is_unused(t, block) ||
			start_load(t, block, &load)) {
			i++;
			continue;
		}
		if (!load)
			break;
		run_loads(s, load, NULL, 0);
		load = NULL;
	}
	if (load)
		run_loads(s, load, NULL, 0);
	rt_mutex_unlock(&t->lock);
}

int store_descriptor_install(
	struct store *s, page_id pid, const struct page_descriptor *d, lsn_t lsn)
{
	struct table_request r = {.pid = pid, .install = true, .d = *d, .lsn = lsn};

	table_run(s, &r, 1);
	return r.result;
}

int store_candidate_add(
	struct store *s, page_id pid, const struct page_descriptor *d, lsn_t lsn)
{
	int rc;

	if (!page_id_valid(s, pid))
		return -EUCLEAN;
	rt_mutex_lock(&s->table.lock);
	rc = candidates_add(&s->table.candidates, pid, d, lsn);
	rt_mutex_unlock(&s->table.lock);
	return rc;
}

lsn_t store_table_oldest(struct store *s)
{
	struct table *t = &s->table;
	lsn_t oldest = LSN_MAX;

	rt_mutex_lock(&t->lock);
	for (struct table_entry *e = table_dirty_first(t); e; e = table_dirty_after(t, e))
		oldest = MIN(oldest, MIN(e->lsn, e->writing_lsn));
	rt_mutex_unlock(&t->lock);
	return oldest;
}

unsigned store_table_dirty(struct store *s)
{
	unsigned dirty;

	rt_mutex_lock(&s->table.lock);
	dirty = s->table.dirty_count;
	rt_mutex_unlock(&s->table.lock);
	return dirty;
}

bool store_table_crowded(struct store *s)
{
	return store_table_dirty(s) > s->table.bound / 2;
}

/* ---- set-up ---------------------------------------------------------------------- */

static int table_alloc_loads(struct table *t)
{
	const size_t second_bytes = (size_t)TABLE_LOAD_MAX * PAGE_SIZE;

	t->loads = rt_alloc(TABLE_LOAD_SPACES * sizeof(*t->loads));
	t->load_memory = rt_alloc_pages(TABLE_LOAD_SPACES * second_bytes);
	if (!t->loads || !t->load_memory)
		return -ENOMEM;
	for (unsigned i = 0; i < TABLE_LOAD_SPACES; i++) {
		t->loads[i].second = t->load_memory + i * second_bytes;
		t->loads[i].next = t->free_loads;
		t->free_loads = &t->loads[i];
	}
	return 0;
}

static int table_alloc_writes(struct table *t)
{
	t->write_memory = rt_alloc_pages((size_t)TABLE_WRITE_MAX * PAGE_SIZE);
	t->write_batch = rt_alloc(sizeof(*t->write_batch));
	return t->write_memory && t->write_batch ? 0 : -ENOMEM;
}

static void table_free_lists(struct table *t)
{
	t->free_base = t->free_overflow = t->dirty_head = TABLE_NONE;
	for (uint32_t i = t->limit; i-- > 0;) {
		uint32_t *list = i < t->bound ? &t->free_base : &t->free_overflow;
		struct table_entry *e = &t->entries[i];

		e->hash_next = *list;
		*list = i;
		if (i < t->bound)
			e->image = (void *)(t->images + (size_t)i * PAGE_SIZE);
	}
}

int table_init(struct store *s, size_t cache_bytes)
{
	struct table *t = &s->table;
	uint64_t blocks = layout_table_blocks(&s->sb);
	uint64_t bound = (cache_bytes ? cache_bytes : TABLE_DEFAULT_BYTES) / PAGE_SIZE;
	uint32_t buckets = 1;
	int rc;

	bound = MIN(MAX(bound, TABLE_BOUND_MIN), 1u << 24);
	t->bound = (uint32_t)MIN(bound, blocks);
	t->limit = (uint32_t)MIN(bound * TABLE_OVERFLOW, blocks);
	while (buckets < t->limit)
		buckets *= 2;
	t->bucket_mask = buckets - 1;
	candidates_init(&t->candidates);
	t->unused = rt_alloc(DIV_UP(blocks, 64u) * sizeof(*t->unused));
	t->entries = rt_alloc(t->limit * sizeof(*t->entries));
	t->buckets = rt_alloc(buckets * sizeof(*t->buckets));
	t->images = rt_alloc_pages((size_t)t->bound * PAGE_SIZE);
	if (!t->unused || !t->entries || !t->buckets || !t->images)
		return -ENOMEM;
	memset(t->buckets, 0xff, buckets * sizeof(*t->buckets));
	table_free_lists(t);
	rc = table_alloc_loads(t);
	return rc || s->read_only ? rc : table_alloc_writes(t);
}

void table_destroy(struct store *s)
{
	struct table *t = &s->table;

	for (uint32_t i = t->bound; t->entries && i < t->limit; i++)
		if (t->entries[i].image)
			rt_free_pages(t->entries[i].image, PAGE_SIZE);
	if (t->images)
		rt_free_pages(t->images, (size_t)t->bound * PAGE_SIZE);
	if (t->load_memory)
		rt_free_pages(t->load_memory,
			(size_t)TABLE_LOAD_SPACES * TABLE_LOAD_MAX * PAGE_SIZE);
	if (t->write_memory)
		rt_free_pages(t->write_memory, (size_t)TABLE_WRITE_MAX * PAGE_SIZE);
	rt_free(t->unused);
	rt_free(t->entries);
	rt_free(t->buckets);
	rt_free(t->loads);
	rt_free(t->write_batch);
	candidates_destroy(&t->candidates);
}

void store_redo(struct store *s, enum store_redo stage)
{
	rt_mutex_lock(&s->table.lock);
	s->table.redo = stage;
	rt_mutex_unlock(&s->table.lock);
}
