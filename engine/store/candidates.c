/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Candidates: descriptors that the log holds and the table may not, by page.
 *
 * After a crash the image of a page may have any of them or the table's (design,
 * Recovery). The set grows while the log is scanned, at most to what the log can hold
 * (invariant 10), and shrinks as pages are decided. All under the table's lock.
 */
#include "engine/store/store_internal.h"

#include <errno.h>

#define CANDIDATES_FIRST 64u
#define CANDIDATES_MAX   (1u << 28)

void candidates_init(struct candidate_set *c)
{
	*c = (struct candidate_set){.free = CANDIDATE_NONE};
}

void candidates_destroy(struct candidate_set *c)
{
	rt_free(c->entries);
	rt_free(c->buckets);
	candidates_init(c);
}

static uint32_t *candidate_bucket(const struct candidate_set *c, page_id pid)
{
	uint64_t hash = pid * 0x9e3779b97f4a7c15ull;

	return &c->buckets[(hash >> 32) & (c->capacity - 1)];
}

static void link_entry(struct candidate_set *c, uint32_t index)
{
	uint32_t *bucket = candidate_bucket(c, c->entries[index].pid);

	c->entries[index].next = *bucket;
	*bucket = index;
}

static int candidates_grow(struct candidate_set *c)
{
	uint32_t capacity = c->capacity ? c->capacity * 2 : CANDIDATES_FIRST;
	struct candidate *entries;
	uint32_t *buckets;

	if (capacity > CANDIDATES_MAX)
		return -ENOMEM;
	entries = rt_alloc((size_t)capacity * sizeof(*entries));
	buckets = rt_alloc((size_t)capacity * sizeof(*buckets));
	if (!entries || !buckets) {
		rt_free(entries);
		rt_free(buckets);
		return -ENOMEM;
	}
	if (c->high)
		memcpy(entries, c->entries, (size_t)c->high * sizeof(*entries));
	memset(buckets, 0xff, (size_t)capacity * sizeof(*buckets));
	rt_free(c->entries);
	rt_free(c->buckets);
	c->entries = entries;
	c->buckets = buckets;
	c->capacity = capacity;
	c->free = CANDIDATE_NONE;
	for (uint32_t i = 0; i < c->high; i++) {
		if (entries[i].used) {
			link_entry(c, i);
		} else {
			entries[i].next = c->free;
			c->free = i;
		}
	}
	return 0;
}

static int entry_new(struct candidate_set *c, page_id pid,
	const struct page_descriptor *d, lsn_t lsn, bool settled)
{
	uint32_t index = c->free;

	if (index == CANDIDATE_NONE && c->high == c->capacity) {
		int rc = candidates_grow(c);

		if (rc)
			return rc;
	}
	if (index != CANDIDATE_NONE)
		c->free = c->entries[index].next;
	else
		index = c->high++;
	c->entries[index] = (struct candidate){
		.pid = pid, .d = *d, .lsn = lsn, .used = true, .settled = settled};
	link_entry(c, index);
	c->live++;
	return 0;
}

static uint32_t skip_others(const struct candidate_set *c, uint32_t index, page_id pid)
{
	while (index != CANDIDATE_NONE && c->entries[index].pid != pid)
		index = c->entries[index].next;
	return index;
}

uint32_t candidates_first(const struct candidate_set *c, page_id pid)
{
	return c->live ? skip_others(c, *candidate_bucket(c, pid), pid) : CANDIDATE_NONE;
}

uint32_t candidates_next(const struct candidate_set *c, uint32_t index)
{
	return skip_others(c, c->entries[index].next, c->entries[index].pid);
}

int candidates_add(
	struct candidate_set *c, page_id pid, const struct page_descriptor *d, lsn_t lsn)
{
	for (uint32_t i = candidates_first(c, pid); i != CANDIDATE_NONE;
		i = candidates_next(c, i)) {
		struct candidate *e = &c->entries[i];
		int order = page_order(
			e->d.incarnation, e->d.version, d->incarnation, d->version);

		if (e->settled && order >= 0)
			return 0; /* known to be newer */
		if (!e->settled && order == 0 && e->d.checksum == d->checksum) {
			e->lsn = MIN(e->lsn, lsn);
			return 0;
		}
	}
	return entry_new(c, pid, d, lsn, false);
}

/* Drops candidates: if `d` is NULL those that are not settled, otherwise those that are not
 * newer. */
static void drop_candidates(struct candidate_set *c, page_id pid, const struct page_descriptor *d)
{
	uint32_t *link;

	if (!c->live)
		return;
	link = candidate_bucket(c, pid);
	while (*link != CANDIDATE_NONE) {
		uint32_t index = *link;
		struct candidate *e = &c->entries[index];
		bool keep = d ? page_order(e->d.incarnation, e->d.version, d->incarnation,
					d->version) > 0
			      : e->settled;

		if (e->pid != pid || keep) {
			link = &e->next;
			continue;
		}
		*link = e->next;
		*e = (struct candidate){.next = c->free};
		c->free = index;
		c->live--;
	}
}

void candidates_drop_until(
	struct candidate_set *c, page_id pid, const struct page_descriptor *d)
{
	drop_candidates(c, pid, d);
}

void candidates_drop_undecided(struct candidate_set *c, page_id pid)
{
	drop_candidates(c, pid, NULL);
}

int candidates_settle(
	struct candidate_set *c, page_id pid, const struct page_descriptor *d)
{
	for (uint32_t i = candidates_first(c, pid); i != CANDIDATE_NONE;
		i = candidates_next(c, i)) {
		struct candidate *e = &c->entries[i];

		if (e->settled && page_order(e->d.incarnation, e->d.version,
					  d->incarnation, d->version) >= 0)
			return 0;
	}
	drop_candidates(c, pid, d);
	return entry_new(c, pid, d, LSN_MAX, true);
}
