/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For tests that cut the power of all nodes: what is durable of each page, in whichever log
 * or store, by the rule of recovery that the newest image wins. It recovers nothing and needs
 * no node, so it also judges what a recovery has to find.
 */
#ifndef WEFT_TEST_ALL_THAT_LASTS_H
#define WEFT_TEST_ALL_THAT_LASTS_H

#include "engine/log/log.h"
#include "tests/unit/ops_fixture.h"

#define LASTS_BUCKETS 4096u

struct lasting {
	struct lasting *next;
	page_id pid;
	uint64_t incarnation, version;
	uint8_t *image; /* page aligned */
};

struct lasts {
	struct lasting *bucket[LASTS_BUCKETS];
};

static inline struct lasting **lasts_find(struct lasts *l, page_id pid)
{
	struct lasting **at = &l->bucket[pid * 0x9e3779b97f4a7c15ull >> 52];

	while (*at && (*at)->pid != pid)
		at = &(*at)->next;
	return at;
}

static inline void lasts_set(struct lasts *l, page_id pid, uint64_t incarnation,
	uint64_t version, const void *image)
{
	struct lasting **at = lasts_find(l, pid);

	if (!*at) {
		*at = (struct lasting *)calloc(1, sizeof(**at));
		HOLDS(*at);
		(*at)->pid = pid;
		(*at)->image = (uint8_t *)aligned_alloc(PAGE_SIZE, PAGE_SIZE);
	}
	(*at)->incarnation = incarnation;
	(*at)->version = version;
	memcpy((*at)->image, image, PAGE_SIZE);
}

/* The same if it is newer. */
static inline void lasts_add(struct lasts *l, page_id pid, uint64_t incarnation,
	uint64_t version, const void *image)
{
	const struct lasting *has = *lasts_find(l, pid);

	if (!has || incarnation > has->incarnation ||
		(incarnation == has->incarnation && version > has->version))
		lasts_set(l, pid, incarnation, version, image);
}

static inline void lasts_clear(struct lasts *l)
{
	for (unsigned i = 0; i < LASTS_BUCKETS; i++)
		while (l->bucket[i]) {
			struct lasting *p = l->bucket[i];

			l->bucket[i] = p->next;
			free(p->image);
			free(p);
		}
}

/* ---- one node's log ---------------------------------------------------------------------- */

struct lasts_scan {
	struct store *store;
	struct lasts *chains; /* of this log */
};

static inline void lasts_ranges(struct lasting *p, const struct disk_log_page *part)
{
	const struct disk_log_move *move = disk_log_moves(part);
	const struct disk_log_range *range = disk_log_ranges(part);
	const uint8_t *from = disk_log_bytes(part);

	for (unsigned i = 0; i < part->move_count; i++)
		memmove(p->image + move[i].to, p->image + move[i].from, move[i].length);
	for (unsigned i = 0; i < part->range_count; i++) {
		memcpy(p->image + range[i].offset, from, range[i].length);
		from += range[i].length;
	}
	p->version = part->version;
}

static inline void lasts_part(struct lasts *chains, const struct disk_log_page *part)
{
	struct lasting *p = *lasts_find(chains, part->pid);

	if (part->kind == DISK_LOG_FULL)
		lasts_add(chains, part->pid, part->incarnation, part->version, part + 1);
	else if (p && p->incarnation == part->incarnation &&
		 p->version + 1 == part->version)
		lasts_ranges(p, part);
}

static inline int lasts_visit(void *arg, const struct log_entry *entry)
{
	struct lasts_scan *s = (struct lasts_scan *)arg;
	const struct disk_log_record *r = entry->record;
	const struct disk_log_page *part = (const struct disk_log_page *)(r + 1);
	const struct disk_log_descriptor *d =
		(const struct disk_log_descriptor *)((const uint64_t *)(r + 1) + 1);

	for (unsigned i = 0; r->type == DISK_LOG_CHANGE && i < r->count; i++) {
		lasts_part(s->chains, part);
		part = (const struct disk_log_page *)((const uint8_t *)part +
						      part->part_bytes);
	}
	for (unsigned i = 0; r->type == DISK_LOG_DESCRIPTORS && i < r->count; i++) {
		const struct page_descriptor want = {
			d[i].incarnation, d[i].version, d[i].checksum};

		OK(store_candidate_add(s->store, d[i].pid, &want, entry->start));
	}
	return 0;
}

/* ---- one node's store -------------------------------------------------------------------- */

static inline void lasts_store(struct lasts *l, struct store *s)
{
	const struct disk_superblock *sb = store_superblock(s);
	uint8_t *image = (uint8_t *)rt_alloc_pages(PAGE_SIZE);

	for (uint64_t slot = 0; slot < sb->page_count; slot++) {
		struct store_read r = {.pid = pid_make(sb->shard, slot)};

		store_read_pages(s, &r, 1);
		if (r.result || !r.found_incarnation)
			continue;
		r.image = image;
		store_read_pages(s, &r, 1);
		if (!r.result) /* else the log has it */
			lasts_add(l, r.pid, r.found_incarnation, r.version, image);
	}
	rt_free_pages(image, PAGE_SIZE);
}

/* Adds what the disk has. */
static inline void lasts_disk(struct lasts *l, const char *name)
{
	struct lasts *chains = (struct lasts *)calloc(1, sizeof(*chains));
	const struct store_options so = {.read_only = true, .any_node = true};
	const struct log_options lo = {0};
	struct lasts_scan scan = {.chains = chains};
	struct weft_error err = {0};
	struct rt_disk *disk;
	struct log *log;
	bool clean;

	OK(rt_disk_open(&disk, name, 0, &err));
	OK(store_open(&scan.store, disk, &so, &err));
	OK(log_open(&log, scan.store, &lo, &clean, &err));
	if (!clean)
		OK(log_scan(log, lasts_visit, &scan));
	OK(store_candidates_resolve(scan.store));
	lasts_store(l, scan.store);
	for (unsigned i = 0; i < LASTS_BUCKETS; i++)
		for (struct lasting *p = chains->bucket[i]; p; p = p->next)
			lasts_add(l, p->pid, p->incarnation, p->version, p->image);
	log_close(log);
	store_close(scan.store);
	rt_disk_close(disk);
	lasts_clear(chains);
	free(chains);
}

/* A page of which this is part; NULL: there is none. */
static inline const struct lasting *lasts_with(
	const struct lasts *l, const void *bytes, size_t len)
{
	for (unsigned i = 0; i < LASTS_BUCKETS; i++)
		for (const struct lasting *p = l->bucket[i]; p; p = p->next)
			if (memmem(p->image, PAGE_SIZE, bytes, len))
				return p;
	return NULL;
}

#endif
