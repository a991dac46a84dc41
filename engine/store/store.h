/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The store: page images and their descriptors on a file or block device.
 *
 * Knows the superblock, the descriptor table and the page slots; not the log's
 * records. Keeps invariant 9 for everything it reads. Who may write which page
 * when (log before image) is the caller's: engine/cache/writeback.c.
 *
 * Descriptors: the table's blocks are cached within a bound (options). A block
 * with descriptors newer than the table's on disk ("dirty") stays in memory until
 * store_table_write.
 */
#ifndef WEFT_STORE_H
#define WEFT_STORE_H

#include "engine/common/format.h"
#include "engine/rt/rt.h"

struct store;

/* two chunks: what engine/log needs to move at all */
#define STORE_LOG_MIN (2ull << 20)
/* What a client's store needs beside its log: superblocks, table, alignment. */
#define STORE_CLIENT_BYTES (3ull << 20)
#define STORE_AREA_MIN     (STORE_LOG_MIN + STORE_CLIENT_BYTES)
#define STORE_COUNTER_MAX  (1ull << 62) /* generations and incarnations */

struct store_options {
	bool read_only;             /* never writes, not even the incarnation */
	size_t table_cache_bytes;   /* bound of the descriptor cache; 0: 16 MiB */
	const uint8_t *volume_uuid; /* 16 bytes: refuse another volume; NULL: any */
	/*
	 * Whose store it must be: the node's that the cluster file has at this place, with
	 * that shard and the key that was made from the cluster's (32 bytes; NULL: any). 0:
	 * a store of no cluster, with any shard.
	 */
	uint16_t node, shard;
	const uint8_t *key;
	/*
	 * The nodes (bits) that this cluster file names: all whom the store knows must be among
	 * them. NULL: not looked at.
	 */
	const char *file;
	uint64_t nodes;
	bool any_node; /* for tools: none of these four */
};

/* What mkfs decides. Zero fields mean the default. */
struct store_format {
	uint64_t store_bytes; /* 0: the whole device */
	uint64_t log_bytes;   /* 0: 1/32 of the store, 4 MiB .. 1 GiB */
	enum disk_checksum checksum_kind;
	char label[64];
	uint8_t volume_uuid[16]; /* zeros: a fresh one */
	uint16_t shard;
	uint16_t node;   /* id in the cluster file; 0: of no cluster */
	uint8_t key[32]; /* of the checksums; zeros: a fresh one */
	/* Room for so many logs of clients, at the end of the store, and for each; 0 bytes:
	 * as large as this store's own, 5 MiB .. 64 MiB */
	uint32_t area_count;
	uint64_t area_bytes;
	/* And for so many more at most, as fit into 1/32 of the store. */
	uint32_t area_spare;
	/* Bytes that the file has allocated already, if the disk only stands in for it. */
	uint64_t allocated_bytes;
};

/* ---- checksums ---------------------------------------------------------------- */

/* 64 bits over `iov`, bound to a place (for a page: PID, incarnation, version). */
uint64_t store_checksum(struct store *s, uint64_t place0, uint64_t place1,
	uint64_t place2, const struct iovec *iov, unsigned iov_count);
uint64_t store_page_checksum(struct store *s, page_id pid, uint64_t incarnation,
	uint64_t version, const void *image);
/* Of a block of the descriptor table, as its own field `checksum` has it. */
uint64_t store_table_checksum(struct store *s, const struct disk_table_block *b);

/* ---- format, open, close -------------------------------------------------------- */

/*
 * Computes the layout that store_format_write would make. -EINVAL with a text when
 * it cannot be made (too small, log too large).
 */
int store_format_plan(struct rt_disk *disk, const struct store_format *f,
	struct disk_superblock *out, struct weft_error *err);
/*
 * Writes an empty store of that layout but for its superblocks: wipes what is at their
 * places, flushes, then log heads (clean, tail at the first LSN: format.h), zeroed ring,
 * first copies of the table. Waits. The pages that make an empty volume come from
 * volume_format.
 */
int store_format_write(
	struct rt_disk *disk, struct disk_superblock *sb, struct weft_error *err);
/*
 * The same store, open for writing its first pages and descriptors, while no superblock
 * says that it is one: an mkfs that is cut short leaves nothing that opens. store_close
 * as usual.
 */
int store_format_open(struct store **out, struct rt_disk *disk,
	const struct disk_superblock *sb, struct weft_error *err);
/* Last: flushes, then writes both superblocks and flushes. Waits. */
int store_format_finish(struct store *s, struct weft_error *err);

/*
 * Reads and checks the superblocks (repairs one bad copy from the other when
 * writing is allowed), raises and writes the node's incarnation. Errors with their
 * own texts: not a weft store, unknown version, both copies bad, copies of
 * different stores, other volume, shorter than it says. -EMEDIUMTYPE: no store;
 * -EPROTONOSUPPORT: version or features; -EXDEV: other volume, another node's, or known
 * nodes that the cluster file does not name;
 * -EKEYREJECTED: other cluster key; -EUCLEAN: damaged; -EROFS, -EIO, -ENOMEM.
 * Nothing is written unless all is as it must be.
 */
int store_open(struct store **out, struct rt_disk *disk, const struct store_options *o,
	struct weft_error *err);
/* Table blocks that are dirty are dropped: the caller has checkpointed, or wants a crash.
 */
void store_close(struct store *s);

/* For tools: is this a whole copy of a superblock (magic, checksum, possible layout)? */
bool store_superblock_whole(const struct disk_superblock *sb);
/* Sets its checksum. */
void store_superblock_seal(struct disk_superblock *sb);

const struct disk_superblock *store_superblock(struct store *s);
struct rt_disk *store_disk(struct store *s);
/* The superblock's `left` of a node, which has left, or is dead; `incarnation` is not 0 then. Durable when it
 * returns 0. Waits. */
int store_left_set(struct store *s, unsigned node, uint64_t incarnation);
int store_dead_set(struct store *s, unsigned node, uint64_t incarnation);
/* 0: it is not so, or the node was met since. */
uint64_t store_left(struct store *s, unsigned node);
uint64_t store_dead(struct store *s, unsigned node);
/*
 * The node is to have a link with this one: it is known for ever, and not counted as one that
 * has left, or is dead. Durable when it returns 0. Waits.
 */
int store_node_met(struct store *s, unsigned node);
bool store_node_known(struct store *s, unsigned node);
/* Does the cluster file name all whom this store knows? 0, or -EXDEV with a text. */
int store_nodes_check(const struct disk_superblock *sb, const char *file, uint64_t nodes,
	struct weft_error *err);
/* The incarnation that is in the store now, whoever has written it. 0 or -errno. Waits. */
int store_incarnation_read(struct store *s, uint64_t *incarnation);

/* ---- pages ------------------------------------------------------------------------ */

/* result of a read: older than wanted or never written; the image is zeros */
#define STORE_ZEROS 1

struct store_read {
	page_id pid;
	uint64_t incarnation; /* wanted; 0: whichever the store has */
	void *image;          /* 4096 bytes, page aligned; NULL: descriptor only */
	/* out */
	int result; /* 0, STORE_ZEROS, -EIO (device), -EUCLEAN (damaged: logged with PID)
		     */
	uint64_t version; /* 0 with STORE_ZEROS */
	uint64_t found_incarnation;
};
/* Reads all at once (adjacent slots with one request each run). Verifies checksums.
 * Waits. */
void store_read_pages(struct store *s, struct store_read *reads, unsigned count);

struct store_write {
	page_id pid;
	const void *image; /* stays unchanged until the call returns */
	struct page_descriptor descriptor;
};
/*
 * Writes images in place, adjacent slots together. No flush, no descriptors. Waits.
 * The caller has made the log records of these descriptors durable. 0 or -errno.
 */
int store_write_pages(struct store *s, const struct store_write *writes, unsigned count);
/*
 * A flush that fails may have dropped anybody's writes, of which a later one, ending
 * well, tells nothing. So whoever flushes the device tells of a failure (lost) and asks
 * after a success whether there ever was one; the log ends then.
 */
int store_flush(struct store *s);
void store_flush_lost(struct store *s);
bool store_flush_failed(struct store *s);

/* True if an image overwritten in place could be torn by a power cut. */
bool store_writes_tear(struct store *s);

/* ---- descriptors ----------------------------------------------------------------- */

/* The current descriptor of a page. May wait for the table. 0 or -errno. */
int store_descriptor_get(struct store *s, page_id pid, struct page_descriptor *out);
/* The same without waiting. -EAGAIN: it must be read, or decided, first. */
int store_descriptor_try(struct store *s, page_id pid, struct page_descriptor *out);
/*
 * The page's image with this descriptor is durable: the table takes it (in memory), and
 * its block is written even if it has it already.
 * `lsn` is where the log record that holds it starts. May wait for the table's block.
 */
int store_descriptor_install(
	struct store *s, page_id pid, const struct page_descriptor *d, lsn_t lsn);
/* Oldest LSN that dirty table blocks still need in the log; LSN_MAX when none is dirty.
 */
lsn_t store_table_oldest(struct store *s);
/* Number of dirty table blocks; the caller writes them before the bound fills. */
unsigned store_table_dirty(struct store *s);
bool store_table_crowded(struct store *s); /* over half of the bound is dirty */
/*
 * Writes dirty table blocks whose oldest LSN is below `upto` to their other copy and
 * flushes. The log must be durable past every installed descriptor. Waits.
 */
int store_table_write(struct store *s, lsn_t upto);

/*
 * Recovery: an image of the page with this descriptor may have been written. Candidates
 * are tried when the page is first read; the match is installed (at `lsn`).
 */
int store_candidate_add(
	struct store *s, page_id pid, const struct page_descriptor *d, lsn_t lsn);
/* Decides all pages with candidates now (reads them). Pages that match none keep the
 * table's. */
int store_candidates_resolve(struct store *s);

/*
 * While the log is being redone it brings back whatever a torn block of the table had: a
 * page whose descriptor may be lost with one reads as the table's other copy says. And the
 * newest copy of a block need not be durable, if the flush behind it failed while the power
 * stayed: it is written once more when it is read, and flushed before its other copy is
 * written or store_table_write returns.
 */
enum store_redo {
	STORE_REDO_NONE,
	STORE_REDO_DESCRIPTORS, /* those in the log are looked at */
	STORE_REDO_RUNNING,     /* an image that a cut left half written is no news */
	STORE_REDO_KEPT,        /* done, but a read-only store's table never takes it */
};
void store_redo(struct store *s, enum store_redo stage);

struct store_counters {
	_Atomic uint64_t pages_read, pages_written, read_requests, write_requests,
		flushes;
	_Atomic uint64_t table_reads, table_writes, checksum_failures;
};
struct store_counters *store_counters(struct store *s);

#endif
