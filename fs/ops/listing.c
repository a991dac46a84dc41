/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads ahead for programs that list a directory and then look at each file.
 *
 * Such a program looks the names up in one of two orders. As they were listed (ls, scandir), the
 * hashes of the names rise. GNU find sorts them by inode. Lookups alone show both, so nothing is
 * kept of listings and handles. A few directories in which a lookup had to wait for its inode are
 * watched. After a few lookups in order, the leaves of the following inodes are requested in one
 * batch.
 *
 * All of it is a hint. The pages are shared as those of any reading. Nothing here waits.
 */
#include "fs/ops/ops_internal.h"

#define RUN_LEAST  4u  /* lookups in order, before anything is requested */
#define GAP_MAX    3u  /* entries between two lookups as listed: of another kind, or known */
#define INODES_GAP 8u  /* numbers between two lookups by inode */
#define LEAVES     8u  /* requested by inode */
#define WINDOW_MIN 32u /* entries, as listed */
#define WINDOW_MAX TREE_PREFETCH_MAX

_Static_assert(WINDOW_MAX % WINDOW_MIN == 0, "doubling ends at the most");

/* The entries that follow a lookup in the directory's listing. */
struct following {
	unsigned count, max;
	uint64_t hash; /* of the last one that was taken */
	uint64_t half; /* of the one half-way */
	uint64_t ino[WINDOW_MAX];
};

static void count_up(_Atomic uint64_t *counter, uint64_t by)
{
	atomic_fetch_add_explicit(counter, by, memory_order_relaxed);
}

static int take_inode(void *arg, struct disk_key key, const void *value, size_t len)
{
	struct following *f = arg;
	const struct disk_entry *e;
	size_t at = 0;
	int error;

	if (f->count == f->max)
		return 1;
	/* of names with the same hash the first is enough: they share a key */
	if (!disk_entry_step(value, len, &at, &e, &error))
		return error;
	if (f->count == f->max / 2)
		f->half = key.low;
	f->ino[f->count++] = e->ino;
	f->hash = key.low;
	return 0;
}

static struct disk_key entry_key(uint64_t dir, uint64_t hash)
{
	return disk_key(dir, DISK_ITEM_ENTRY, hash);
}

/* The entries behind `hash`, as far as their leaves are here. Returns as tree_scan_here. */
static int entries_following(struct fs *fs, uint64_t dir, uint64_t hash, struct following *f)
{
	f->count = 0;
	f->hash = f->half = hash;
	return tree_scan_here(fs->tree, entry_key(dir, hash + 1),
		disk_key(dir, DISK_ITEM_EXTENT, 0), take_inode, f);
}

/* Requests the leaves of the next window's inodes. Also requests the leaf of the next entry if it
 * is not here. */
static void request_window(struct fs *fs, struct lookup_run *r)
{
	uint64_t dir = atomic_load_explicit(&r->dir, memory_order_relaxed);
	struct following f = {.max = r->window - 1};
	struct disk_key key[WINDOW_MAX];
	unsigned count = 0;
	int rc;

	rc = entries_following(fs, dir, r->asked, &f);
	for (unsigned i = 0; i < f.count; i++)
		key[count++] = disk_key(f.ino[i], DISK_ITEM_INODE, 0);
	if (rc == -EAGAIN)
		key[count++] = entry_key(dir, f.hash + 1);
	tree_prefetch(fs->tree, key, count);
	r->asked = rc == 0 ? UINT64_MAX : f.hash; /* 0: that was all */
	r->half = rc == 0 || f.count <= f.max / 2 ? r->asked : f.half;
	/* not if more than a quarter of those before were read in vain */
	if (f.count == f.max && 4 * r->looked >= 3 * r->due)
		r->window = MIN(2 * r->window, r->window_max);
	r->due = r->requested / 2 + f.count / 2;
	r->requested = f.count;
	r->looked = 0;
	count_up(&fs->counters.listed_ahead, f.count);
}

static void count_look(struct fs *fs, struct lookup_run *r)
{
	if (r->hash > r->asked)
		return;
	r->looked++;
	count_up(&fs->counters.listed_ahead_used, 1);
}

static void asked_nothing(struct lookup_run *r)
{
	r->listed = 0;
	r->asked = r->half = 0;
	r->requested = r->due = r->looked = 0;
	r->window = MIN(WINDOW_MIN, r->window_max);
}

static bool follows_closely(struct fs *fs, uint64_t dir, uint64_t last, uint64_t hash)
{
	struct following f = {.max = GAP_MAX + 1};

	entries_following(fs, dir, last, &f);
	return f.count > 0 && hash <= f.hash;
}

/* The lookup goes on with the listing's order, or begins anew. */
static void looked_as_listed(struct fs *fs, struct lookup_run *r, uint64_t hash, bool here)
{
	uint64_t dir = atomic_load_explicit(&r->dir, memory_order_relaxed);

	if (hash <= r->hash || (!here && !follows_closely(fs, dir, r->hash, hash))) {
		asked_nothing(r);
	} else if (!here && r->listed < RUN_LEAST) {
		r->listed++;
	}
	r->hash = hash;
	count_look(fs, r);
	if (r->listed < RUN_LEAST || hash < r->half)
		return;
	r->asked = MAX(r->asked, hash);
	request_window(fs, r);
}

static void looked_by_inode(struct fs *fs, struct lookup_run *r, uint64_t ino)
{
	struct disk_key next;

	if (ino <= r->ino || ino - r->ino > INODES_GAP)
		r->by_inode = r->ino_half = 0;
	else if (r->by_inode < RUN_LEAST)
		r->by_inode++;
	r->ino = ino;
	if (r->by_inode < RUN_LEAST || ino < r->ino_half)
		return;
	next = tree_prefetch_next(fs->tree, disk_key(ino, DISK_ITEM_INODE, 0), LEAVES);
	r->ino_half = next.high >> 8;
}

static void run_begin(struct fs *fs, struct lookup_run *r, uint64_t dir)
{
	atomic_store_explicit(&r->dir, dir, memory_order_relaxed);
	r->window_max = MIN(WINDOW_MAX, cache_batch_max(fs->volume->cache));
	r->by_inode = 0;
	r->ino_half = 0;
	asked_nothing(r);
	r->hash = r->ino = UINT64_MAX;
}

void listing_looked(struct fs *fs, uint64_t dir, struct ops_name name, uint64_t ino)
{
	struct lookup_run *r =
		&fs->lookup_runs[dir * 0x9e3779b97f4a7c15ull >> 32 & (LOOKUP_RUNS - 1)];
	bool here = tree_is_here(fs->tree, disk_key(ino, DISK_ITEM_INODE, 0));

	if (here && atomic_load_explicit(&r->dir, memory_order_relaxed) != dir)
		return;
	if (!rt_mutex_trylock(&r->lock))
		return;
	if (atomic_load_explicit(&r->dir, memory_order_relaxed) != dir)
		run_begin(fs, r, dir);
	looked_as_listed(fs, r, name_hash(fs, name), here);
	looked_by_inode(fs, r, ino);
	rt_mutex_unlock(&r->lock);
}
