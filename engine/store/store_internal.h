/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The declarations that the files of engine/store/ share. Nobody else includes it.
 *
 * - checksum.c: the volume's checksum over bytes bound to a place
 * - layout.c: where everything is, planned by mkfs and checked at every open
 * - superblock.c: open, close, the node's incarnation
 * - format.c: writing an empty store
 * - table.c: the descriptor table's cache; table_io.c reads and writes its blocks
 * - candidates.c: descriptors that recovery has yet to decide between
 * - scrub.c: reads all of it for damage; where the last scrub of the store is
 * - pages.c: images; resolve.c decides which descriptor an image has
 * - sort.c: requests in the order of their places
 */
#ifndef WEFT_STORE_INTERNAL_H
#define WEFT_STORE_INTERNAL_H

#include <string.h>

#include "engine/store/store.h"

/* ---- bounds of the layout ------------------------------------------------------ */

#define STORE_BYTES_MAX       (1ull << 60) /* sums of offsets stay far from overflow */
#define STORE_LOG_DEFAULT_MIN (4ull << 20)
#define STORE_LOG_DEFAULT_MAX (1ull << 30)
#define STORE_PAGES_MIN       128u
#define STORE_AREAS_MAX       DISK_NODE_MAX
#define STORE_PAGES_MAX       (1ull << PID_SLOT_BITS)
#define STORE_SHARD_MAX       0xbfffu /* shards above it stand for places that are not pages */
/* larger stores align their areas to a MiB */
#define STORE_ALIGN_FROM_BYTES (1ull << 30)

/* ---- checksum.c ------------------------------------------------------------------- */

struct checksummer;

/* Returns 0, -ENOMEM, -EINVAL (unknown kind), or -ENOSYS (the library lacks it). */
int checksummer_open(
	struct checksummer **out, enum disk_checksum kind, const uint8_t key[32]);
void checksummer_close(struct checksummer *c);
/* Never returns 0. Any number of tasks may call it at once. Never waits. */
uint64_t checksummer_sum(struct checksummer *c, const uint64_t place[3],
	const struct iovec *iov, unsigned iov_count);
/* The sum that a table block has in it: `checksum` counts as 0. */
uint64_t checksummer_sum_table(struct checksummer *c, const struct disk_table_block *b);
uint64_t checksummer_sum_head(struct checksummer *c, const struct disk_log_head *h);
/* Returns the first 64 bits of SHA-256 of a superblock without its last field. */
uint64_t superblock_sum(const struct disk_superblock *sb);
const char *checksum_name(enum disk_checksum kind);

/* ---- layout.c -------------------------------------------------------------------- */

/* Checks every field against the others, so that nothing later computes out of bounds. */
int layout_check(const struct disk_superblock *sb, struct weft_error *err);

static inline uint64_t layout_second_superblock(const struct disk_superblock *sb)
{
	return sb->store_bytes - PAGE_SIZE;
}

static inline uint64_t layout_table_blocks(const struct disk_superblock *sb)
{
	return DIV_UP(sb->page_count, DISK_TABLE_SLOTS);
}

static inline uint64_t layout_ring_bytes(const struct disk_superblock *sb)
{
	return sb->log_bytes - DISK_LOG_HEADS_BYTES;
}

/* ---- sort.c
 * ---------------------------------------------------------------------------- Requests
 * are sorted by place before they are merged. Mostly they are sorted already.
 */
struct store_order {
	uint64_t place;
	uint32_t index;
};

void store_sort(struct store_order *items, unsigned count);

/* ---- candidates.c ---------------------------------------------------------------- */

#define CANDIDATE_NONE UINT32_MAX

/* A descriptor that the image of a page may have. Settled: it is known to be the page's. In a store
 * that may not write, recovery installs descriptors as settled ones, beside its table. */
struct candidate {
	page_id pid;
	struct page_descriptor d;
	lsn_t lsn;
	uint32_t next; /* in the bucket, or in the list of free entries */
	bool used;
	bool settled;
};

/* The set is bounded by the log: each entry stands for a disk_log_descriptor in it. */
struct candidate_set {
	struct candidate *entries;
	uint32_t *buckets; /* as many as entries; a power of two */
	uint32_t capacity, high, live, free;
};

void candidates_init(struct candidate_set *c);
void candidates_destroy(struct candidate_set *c);
/* Returns 0 or -ENOMEM. */
int candidates_add(
	struct candidate_set *c, page_id pid, const struct page_descriptor *d, lsn_t lsn);
int candidates_settle(
	struct candidate_set *c, page_id pid, const struct page_descriptor *d);
/* Drops the page's entries that are not newer than d. */
void candidates_drop_until(
	struct candidate_set *c, page_id pid, const struct page_descriptor *d);
/* Drops those that are not settled. */
void candidates_drop_undecided(struct candidate_set *c, page_id pid);
/* Walks over one page's entries. */
uint32_t candidates_first(const struct candidate_set *c, page_id pid);
uint32_t candidates_next(const struct candidate_set *c, uint32_t index);

/* ---- table.c, table_io.c --------------------------------------------------------- */

#define TABLE_NONE        UINT32_MAX
#define TABLE_LOAD_MAX    16u  /* blocks that one task reads at once */
#define TABLE_LOAD_SPACES 16u  /* tasks that read blocks at once */
#define TABLE_WRITE_MAX   128u /* blocks written together */
/* The state of a block that mkfs has written: its first copy has this generation, the second one is
 * empty. */
#define TABLE_FIRST_GENERATION 1u

enum table_state { TABLE_FREE, TABLE_LOADING, TABLE_VALID, TABLE_DAMAGED };
enum table_write { TABLE_IDLE, TABLE_WRITING, TABLE_WRITTEN, TABLE_WRITE_FAILED };

/* A cached block. Everything is under the table's lock, except the image while LOADING. */
struct table_entry {
	uint64_t block;
	uint64_t generation; /* of the newest copy on disk */
	lsn_t lsn;           /* oldest descriptor that no write has taken; LSN_MAX: none */
	lsn_t writing_lsn;   /* the same for the write under way; LSN_MAX: none */
	struct disk_table_block *image;
	uint32_t hash_next; /* or the next free entry */
	uint32_t dirty_prev, dirty_next;
	uint8_t state; /* enum table_state */
	uint8_t write; /* enum table_write */
	uint8_t copy;  /* the copy on disk that is the newest */
	bool dirty;    /* in the list of dirty blocks: one of the two LSNs is set */
	bool suspect;  /* the other copy is neither whole nor empty: it may have been the
			  newer one */
	bool referenced;
};

/* Memory for reading blocks. None is allocated later. */
struct table_load {
	struct table_load *next;
	uint8_t *second; /* second copies */
	unsigned count;
	uint32_t entry[TABLE_LOAD_MAX];
	int result[TABLE_LOAD_MAX];
	struct rt_io io[TABLE_LOAD_MAX];
	struct iovec iov[TABLE_LOAD_MAX][2];
};

/* Memory for writing blocks. None is allocated later. */
struct table_batch {
	unsigned count, io_count;
	struct store_order
		order[TABLE_WRITE_MAX];                  /* by place; index into the two below */
	struct disk_table_block *image[TABLE_WRITE_MAX]; /* the copy that is written */
	uint32_t entry[TABLE_WRITE_MAX];
	struct rt_io ios[TABLE_WRITE_MAX];
	struct iovec iov[TABLE_WRITE_MAX];
};

struct table {
	struct rt_mutex lock;  /* short: never held across a request */
	struct rt_cond change; /* a load has ended, memory for loads is free, or blocks are clean */
	struct table_entry *entries;
	uint32_t bound; /* entries with images of their own: the cache's size */
	uint32_t limit; /* with entries that dirty blocks may take beyond it */
	uint32_t in_use, loading, dirty_count, overflow, hand;
	uint32_t free_base, free_overflow, dirty_head;
	uint32_t *buckets;
	uint32_t bucket_mask;
	uint8_t *images;
	struct table_load *loads, *free_loads;
	uint8_t *load_memory;
	/* A bit for each block: it is as mkfs wrote it, and has not been cached since. */
	uint64_t *unused;
	struct candidate_set candidates;
	enum store_redo redo;
	bool written_again; /* found copies that are not flushed yet */

	/* Writing: one task at a time. A task that holds anything does not wait for it. */
	struct rt_mutex write_lock;
	uint8_t *write_memory;
	struct table_batch *write_batch;
};

int table_init(struct store *s, size_t cache_bytes);
void table_destroy(struct store *s);

/* A request for a page's descriptor. It is served once its block is there. */
struct table_request {
	page_id pid;
	bool install; /* d, lsn: taken if newer; else d is filled */
	bool scan;    /* the block is not likely to be used again soon */
	struct page_descriptor d;
	lsn_t lsn;
	/* out */
	int result;     /* 0, -EIO, -EUCLEAN */
	bool undecided; /* there are candidates */
	bool suspect;   /* a newer descriptor than d may have been lost */
	bool pending;
};
/* Serves all requests, and reads missing blocks together. Waits. */
void table_run(struct store *s, struct table_request *requests, unsigned count);
/* Serves one request, if its block is there. Never waits. */
bool table_try(struct store *s, struct table_request *r);

struct table_entry *table_entry_find(struct table *t, uint64_t block);
/* table_io.c. Where a copy of a block is, and what its bytes are. */
enum table_copy { TABLE_COPY_WHOLE, TABLE_COPY_EMPTY, TABLE_COPY_DAMAGED };
uint64_t table_block_place(const struct store *s, uint64_t block, unsigned copy);
enum table_copy table_copy_check(
	struct store *s, const struct disk_table_block *b, uint64_t block);
/* table_io.c. Called with the lock, which is dropped meanwhile. */
void table_load_run(struct store *s, struct table_load *l);
void table_mark_dirty(struct table *t, struct table_entry *e);
void table_unmark_dirty(struct table *t, struct table_entry *e);
void table_forget(struct table *t, struct table_entry *e);
/* Gives back the memory that clean blocks have beyond the bound. */
void table_trim(struct table *t);

static inline struct table_entry *table_dirty_first(struct table *t)
{
	return t->dirty_head == TABLE_NONE ? NULL : &t->entries[t->dirty_head];
}

static inline struct table_entry *table_dirty_after(
	struct table *t, struct table_entry *e)
{
	return e->dirty_next == TABLE_NONE ? NULL : &t->entries[e->dirty_next];
}

/* ---- pages.c, resolve.c ---------------------------------------------------------- */

/* Damage of pages that are read for use is logged and counted. Recovery mends it, and a scrub looks
 * again before it calls it damage. Blocks of the table that a scrub loads are the first to leave
 * the table's cache. */
enum pages_for { PAGES_FOR_USE, PAGES_FOR_RECOVERY, PAGES_FOR_SCRUB };
void pages_read(
	struct store *s, struct store_read *reads, unsigned count, enum pages_for how);
bool page_id_valid(const struct store *s, page_id pid);
/*
 * Decides which of the candidates and `known`, the table's descriptor, the image has. Returns:
 *
 * - 0: *found is it, and is now the page's;
 * - STORE_ZEROS: none. Every candidate is of a newer incarnation than the table's, so that
 *   incarnation was never persisted;
 * - -EUCLEAN: none;
 * - -EIO.
 */
int resolve_image(struct store *s, page_id pid, const struct page_descriptor *known,
	const void *image, struct page_descriptor *found);

/* ---- the store ------------------------------------------------------------------- */

struct store {
	struct rt_disk *disk;
	struct disk_superblock sb;
	struct rt_mutex sb_lock; /* for `left`, `known`, `scrub` and `generation`; nothing else
				  * changes */
	struct checksummer *checksums;
	struct table table;
	struct store_counters counters;
	bool read_only;
	bool tears;
	_Atomic bool flush_failed; /* for good: store_flush */
};

/* superblock.c. Writes one copy and flushes. */
int superblock_write(
	struct rt_disk *disk, uint64_t place, const struct disk_superblock *sb);
/* Takes the superblock as it is. Reads and writes nothing. */
int store_assemble(struct store **out, struct rt_disk *disk,
	const struct disk_superblock *sb, const struct store_options *o,
	struct weft_error *err);

/* Submits all requests together, and waits for them. A single one needs no queue. */
static inline void store_run(struct rt_disk *disk, struct rt_io *ios, unsigned count)
{
	if (count == 1) {
		rt_disk_run(disk, ios, 1);
		return;
	}
	rt_disk_submit(disk, ios, count);
	rt_disk_wait(disk, ios, count);
}

static inline void counter_add(_Atomic uint64_t *counter, uint64_t n)
{
	atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

#endif
