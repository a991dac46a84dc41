/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The store: page images and their descriptors on a file or block device.
 *
 * It has the superblock, the descriptor table and the page slots, but does not read the log's
 * records. Keeps invariant 9 for all data that it reads. The caller decides which page may be
 * written when (log before image): engine/cache/writeback.c.
 *
 * The blocks of the descriptor table are cached within a bound (options). A block is dirty if it
 * has newer descriptors than the table on disk. It stays in memory until store_table_write.
 */
#ifndef WEFT_STORE_H
#define WEFT_STORE_H

#include "engine/common/format.h"
#include "engine/rt/rt.h"

struct store;

/* two chunks: the least that engine/log needs to make progress */
#define STORE_LOG_MIN (2ull << 20)
/* Size of a client's store without its log: superblocks, table, alignment. */
#define STORE_CLIENT_BYTES (3ull << 20)
#define STORE_AREA_MIN     (STORE_LOG_MIN + STORE_CLIENT_BYTES)
#define STORE_MACHINES     4u           /* that may run one node */
#define STORE_ELSEWHERE    (STORE_MACHINES + 1) /* number of all others, which may fence it */
#define STORE_COUNTER_MAX  (1ull << 62) /* limit of generations and incarnations */

struct store_options {
	bool read_only;             /* never writes, not even the incarnation */
	/* This machine's number among those that may run the node, from 1 to STORE_ELSEWHERE. Each
	 * has incarnations of its own. 0: one machine alone may run it. */
	unsigned machine;
	size_t table_cache_bytes;   /* bound of the descriptor cache in bytes; 0: 16 MiB */
	const uint8_t *volume_uuid; /* 16 bytes: refuses another volume; NULL: any */
	/*
	 * The expected owner: the node of the cluster file with this id and shard, and the key made
	 * from the cluster's. The key has 32 bytes; NULL: any. Node 0: a store of no cluster, with
	 * any shard.
	 */
	uint16_t node, shard;
	const uint8_t *key;
	/* The cluster file, and a map of the nodes that it names. All nodes that the store knows
	 * must be among them. NULL: not checked. */
	const char *file;
	uint64_t nodes;
	bool any_node; /* for tools: none of these four is checked */
};

/* The choices of mkfs. Zero fields mean the default. */
struct store_format {
	uint64_t store_bytes; /* 0: the whole device */
	uint64_t log_bytes;   /* 0: 1/32 of the store, 4 MiB .. 1 GiB */
	enum disk_checksum checksum_kind;
	char label[64];
	uint8_t volume_uuid[16]; /* zeros: a fresh one */
	uint16_t shard;
	uint16_t node;   /* id in the cluster file; 0: of no cluster */
	uint8_t key[32]; /* of the checksums; zeros: a fresh one */
	/* Number and size of areas for clients' logs, at the end of the store. If the size is 0, an
	 * area has the size of this store's own log, 5 MiB .. 64 MiB. */
	uint32_t area_count;
	uint64_t area_bytes;
	/* Most further areas that are made, as far as 1/32 of the store has room. */
	uint32_t area_spare;
	/* Bytes already allocated for the file, if the disk only stands in for it. */
	uint64_t allocated_bytes;
};

/* ---- checksums ---------------------------------------------------------------- */

/* Returns a checksum of 64 bits over `iov`, bound to a place (for a page: PID, incarnation,
 * version). */
uint64_t store_checksum(struct store *s, uint64_t place0, uint64_t place1,
	uint64_t place2, const struct iovec *iov, unsigned iov_count);
uint64_t store_page_checksum(struct store *s, page_id pid, uint64_t incarnation,
	uint64_t version, const void *image);
/* Returns the value of a table block's field `checksum`. */
uint64_t store_table_checksum(struct store *s, const struct disk_table_block *b);

/* ---- format, open, close -------------------------------------------------------- */

/* Computes the layout that store_format_write would make. Returns 0, or -EINVAL with a text if
 * there is none (store too small, log too large). */
int store_format_plan(struct rt_disk *disk, const struct store_format *f,
	struct disk_superblock *out, struct weft_error *err);
/*
 * Writes an empty store of that layout, without its superblocks. Wipes their places, flushes, then
 * writes log heads (clean, tail at the first LSN: format.h), a zeroed ring and the first copies of
 * the table. The pages of an empty volume come from volume_format. Returns 0 or a negative errno.
 * Waits.
 */
int store_format_write(
	struct rt_disk *disk, struct disk_superblock *sb, struct weft_error *err);
/* Opens this store for writing its first pages and descriptors, while it has no superblock. So an
 * interrupted mkfs leaves nothing that opens. Close it with store_close. */
int store_format_open(struct store **out, struct rt_disk *disk,
	const struct disk_superblock *sb, struct weft_error *err);
/* Flushes, then writes both superblocks and flushes: the last step. Returns 0 or a negative errno.
 * Waits. */
int store_format_finish(struct store *s, struct weft_error *err);

/*
 * Opens a store. Reads and checks the superblocks, and increments and writes the node's
 * incarnation. With write access, one bad copy is repaired from the other. Nothing is written
 * before all checks have passed. Each error has a text of its own. Waits. Returns 0 or:
 *
 * - -EMEDIUMTYPE: not a weft store;
 * - -EPROTONOSUPPORT: unknown version or features;
 * - -EXDEV: of another volume or node, or it knows nodes that the cluster file does not name;
 * - -EKEYREJECTED: another cluster key;
 * - -EUCLEAN: damaged: both copies bad, copies of different stores, or a device shorter than the
 *   superblock says;
 * - -EROFS, -EIO, -ENOMEM.
 */
int store_open(struct store **out, struct rt_disk *disk, const struct store_options *o,
	struct weft_error *err);
/* Closes the store and drops dirty table blocks. The caller has checkpointed, or simulates a
 * crash. */
void store_close(struct store *s);

/* Returns true if this is a valid copy of a superblock (magic, checksum, possible layout). For
 * tools. */
bool store_superblock_whole(const struct disk_superblock *sb);
/* Sets the checksum of a superblock. */
void store_superblock_seal(struct disk_superblock *sb);

const struct disk_superblock *store_superblock(struct store *s);
struct rt_disk *store_disk(struct store *s);
/* Notes in the superblock that a node has left, or is dead (`left`). `incarnation` is not 0 then.
 * Durable when it returns 0. Waits. */
int store_left_set(struct store *s, unsigned node, uint64_t incarnation);
int store_dead_set(struct store *s, unsigned node, uint64_t incarnation);
/* Returns the incarnation of store_left_set. 0: the node has not left and is not dead, or was met
 * since. */
uint64_t store_left(struct store *s, unsigned node);
uint64_t store_dead(struct store *s, unsigned node);
/* Notes that this node is to have a link with the node: it is known for ever, and counts as neither
 * left nor dead. Durable when it returns 0. Waits. */
int store_node_met(struct store *s, unsigned node);
bool store_node_known(struct store *s, unsigned node);
/* Checks that the cluster file names all nodes that this store knows. Returns 0, or -EXDEV with a
 * text. */
int store_nodes_check(const struct disk_superblock *sb, const char *file, uint64_t nodes,
	struct weft_error *err);
/* Reads the incarnation that is in the store now, possibly of a later start. Returns 0 or a
 * negative errno. Waits. */
int store_incarnation_read(struct store *s, uint64_t *incarnation);

/* ---- pages ------------------------------------------------------------------------ */

/* result of a read: the image is older than expected, or was never written, and is zeros */
#define STORE_ZEROS 1

struct store_read {
	page_id pid;
	uint64_t incarnation; /* expected incarnation; 0: any */
	void *image;          /* 4096 bytes, page aligned; NULL: descriptor only */
	/* out */
	int result; /* 0, STORE_ZEROS, -EIO (device), -EUCLEAN (damaged: logged with PID)
		     */
	uint64_t version; /* 0 with STORE_ZEROS */
	uint64_t found_incarnation;
};
/* Reads all pages at once, adjacent slots with one request. Verifies checksums. Waits. */
void store_read_pages(struct store *s, struct store_read *reads, unsigned count);

struct store_write {
	page_id pid;
	const void *image; /* stays unchanged until the call returns */
	struct page_descriptor descriptor;
};
/*
 * Writes images in place, adjacent slots together. Does not flush and does not write descriptors.
 * The caller has made the log records of these descriptors durable. Returns 0 or a negative errno.
 * Waits.
 */
int store_write_pages(struct store *s, const struct store_write *writes, unsigned count);
/*
 * Flush the device, and note that a flush of it failed. A failed flush may have dropped any earlier
 * writes, and a later flush that succeeds does not show this. So each task that flushes the device
 * reports a failure (lost), and after a success checks that there never was one. The log ends in
 * that case.
 */
int store_flush(struct store *s);
void store_flush_lost(struct store *s);
bool store_flush_failed(struct store *s);

/* Returns true if a power cut could tear an image that is overwritten in place. */
bool store_writes_tear(struct store *s);

/* ---- descriptors ----------------------------------------------------------------- */

/* Reads the current descriptor of a page. Returns 0 or a negative errno. Waits if the table must be
 * read. */
int store_descriptor_get(struct store *s, page_id pid, struct page_descriptor *out);
/* Works as store_descriptor_get, but never waits. Returns -EAGAIN if the descriptor must first be
 * read or decided. */
int store_descriptor_try(struct store *s, page_id pid, struct page_descriptor *out);
/*
 * Puts a descriptor into the table, in memory: the page's image with it is durable. The block is
 * written even if it already has the descriptor. `lsn`: the start of the log record with the
 * descriptor. Waits if the table's block must be read.
 */
int store_descriptor_install(
	struct store *s, page_id pid, const struct page_descriptor *d, lsn_t lsn);
/* Reads the blocks of the table that the descriptors of these writes go to, adjacent blocks with
 * one request. Best effort: store_descriptor_install reads the missing ones, and reports errors.
 * Waits. */
void store_descriptors_load(
	struct store *s, const struct store_write *writes, unsigned count);
/* States that no slot in [first, first + count) has ever had a descriptor, neither in the table nor
 * in the log. Blocks of the table that describe only such slots are not read. Never waits. */
void store_slots_unused(struct store *s, uint64_t first, uint64_t count);
/* Returns the oldest LSN whose record dirty table blocks still need in the log; LSN_MAX if none is
 * dirty. */
lsn_t store_table_oldest(struct store *s);
/* Returns the number of dirty table blocks. The caller writes them before the bound is reached. */
unsigned store_table_dirty(struct store *s);
bool store_table_crowded(struct store *s); /* more than half of the bound is dirty */
/* Writes dirty table blocks whose oldest LSN is below `upto` to their other copies, and flushes.
 * The log must be durable past every installed descriptor. Returns 0 or a negative errno. Waits. */
int store_table_write(struct store *s, lsn_t upto);

/*
 * Adds a candidate during recovery: an image of the page with this descriptor may have been
 * written. Candidates are tried when the page is first read. The match is installed (at `lsn`).
 * Returns 0 or a negative errno.
 */
int store_candidate_add(
	struct store *s, page_id pid, const struct page_descriptor *d, lsn_t lsn);
/* Reads all pages with candidates and decides them now. A page that matches none keeps the table's
 * descriptor. Returns 0 or a negative errno. Waits. */
int store_candidates_resolve(struct store *s);

/*
 * The states of redoing the log. Redo restores the descriptors of a torn table block. A page whose
 * descriptor may be lost that way reads by the table's other copy.
 *
 * The newest copy of a block need not be durable, if the flush after it failed while the power
 * stayed. It is written again when it is read. It is flushed before its other copy is written, or
 * store_table_write returns.
 */
enum store_redo {
	STORE_REDO_NONE,
	STORE_REDO_DESCRIPTORS, /* the descriptors in the log are being read */
	STORE_REDO_RUNNING,     /* an image that a power cut left half written is expected */
	STORE_REDO_KEPT,        /* done, but the table of a read-only store never takes it */
};
void store_redo(struct store *s, enum store_redo stage);

/* ---- scrub: reading all of the store for damage ------------------------------------ */

/* Returns how far the last scrub of this store is, as store_scrub_set has noted it. Never waits. */
void store_scrub_get(struct store *s, struct disk_scrub *out);
/* Notes it in the superblock. Durable when it returns 0. Returns -ESTALE if a later start of the
 * node has the store, and -EROFS in a store that is never written. Waits. */
int store_scrub_set(struct store *s, const struct disk_scrub *scrub);
/*
 * Works as store_read_pages, but neither logs nor counts damage. A page that is written meanwhile
 * may read as damaged: the image changes before the descriptor. It was damaged if, after all writes
 * that were under way have ended, the page still has the descriptor that was read
 * (`found_incarnation` and `version`).
 */
void store_scrub_pages(struct store *s, struct store_read *reads, unsigned count);

#define STORE_SCRUB_BLOCKS 3u /* of the table, in one call */
/* Returns the number of blocks of the table. */
uint64_t store_table_blocks(struct store *s);
/*
 * Reads both copies of `count` blocks of the table, at most STORE_SCRUB_BLOCKS, and checks them.
 * `bad`: for each block, bit n if copy n is damaged, and bit 2 if the device does not give them.
 * A block that waits to be written, or is being written, counts by the copy that is not replaced.
 * `memory`: 2 * count pages, page aligned. Waits.
 */
void store_scrub_table(
	struct store *s, uint64_t first, unsigned count, void *memory, uint8_t *bad);

struct store_counters {
	_Atomic uint64_t pages_read, pages_written, read_requests, write_requests,
		flushes;
	_Atomic uint64_t table_reads, table_writes, checksum_failures;
};
struct store_counters *store_counters(struct store *s);

#endif
