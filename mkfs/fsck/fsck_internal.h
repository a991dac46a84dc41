/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Declarations that the files of mkfs/fsck share. No other file includes it.
 *
 * - run.c: opening, rounds of passes, the result
 * - codes.c: the codes of findings
 * - report.c: reports of findings, and questions
 * - super.c, logcheck.c, table.c, catalog.c: pass 0
 * - walk.c: reading the tree without trusting it
 * - pass1.c: the tree's structure
 * - rebuild.c: its repair
 * - pass2.c: items, inode by inode
 * - xattr.c, entry.c: two kinds of items
 * - pass3.c: links and connections
 * - attach.c: changes of names
 * - pass4.c: pages that are used, free, or used twice
 * - groups.c: the allocation groups' own pages
 * - pass5.c: file data
 * - areas.c: logs of clients within stores
 * - alone.c: one store of several, without the others
 * - edit.c: transactions that repair
 *
 * Rounds. The passes run in order. After a round with repairs another one follows, until a round
 * has nothing to repair. So repairs are checked, too, and the result of -y is clean by
 * construction. Repairs may also be simple: one that removes an item leaks its pages, and the next
 * round frees them. Without permission to write there is one round.
 *
 * Stores. A volume of several stores is read and repaired through the cache of the store with shard
 * 0. It has pages of all of them (volume_options.also). Maps of pages are each store's own.
 *
 * Memory. Two bits a page (64 MiB per TiB of store) record the pages in use, and those used twice.
 * A third bit exists while pages used twice are repaired. A group takes 8 bytes. All other memory
 * is bounded by options. Link counts are taken for as many inodes at once as fit in memory_bytes.
 * Each such window needs a scan of the directory entries.
 */
#ifndef WEFT_FSCK_INTERNAL_H
#define WEFT_FSCK_INTERNAL_H

#include <errno.h>
#include <inttypes.h>
#include <sys/stat.h>

#include "mkfs/fsck/fsck.h"

#define ROUNDS_MAX     12
#define LEVELS_MAX     16   /* of a tree: more than a store can fill */
#define DAMAGE_MAX     4096 /* damaged tree pages of one round */
#define DECLINED_MAX   (1u << 16)
#define FILE_BLOCK_END (1ull << 51) /* number of blocks in a file of 2^63 bytes */
#define STORE_NAME     200          /* limit of a store's name in a finding's text */

typedef unsigned __int128 wide_key;

static inline wide_key key_wide(struct disk_key k)
{
	return (wide_key)k.high << 64 | k.low;
}

static inline struct disk_key key_narrow(wide_key k)
{
	return (struct disk_key){.low = (uint64_t)k, .high = (uint64_t)(k >> 64)};
}

#define KEY_MAX (~(wide_key)0)

static inline uint64_t key_ino(struct disk_key k)
{
	return k.high >> 8;
}

static inline unsigned key_type(struct disk_key k)
{
	return k.high & 0xff;
}

/* A damaged page of the tree. */
struct damage {
	page_id parent; /* PID_NONE: it is the root */
	unsigned slot;  /* in the parent */
	page_id pid;
	unsigned level;
	wide_key low, high;
	bool sound; /* its content may be kept */
	unsigned code;
	char why[120];
};

/* A store of the volume. */
struct fsck_store {
	struct fsck_input in;
	char area_name[300]; /* an area of another store: closed by areas.c; else empty */
	struct disk_superblock sb;
	bool one_superblock; /* only one copy is whole: super_check_one */
	bool interrupted;    /* by the log: not closed since the store was last opened */
	bool was_clean;      /* the log was closed cleanly */
	struct volume *v;    /* volume of the first store: it has the cache, and is f->v */
	uint64_t group_count;
	uint64_t *claimed, *twice; /* by slot */
	uint64_t *kept;            /* pass 4: pages used twice whose owner is known */
	uint64_t *group_high;      /* highest incarnation seen in each group */
	uint64_t *lost_blocks;     /* blocks of the table that were made anew, ascending */
	unsigned lost_count;
};

struct fsck {
	const struct fsck_options *o;
	struct fsck_result *out;
	struct weft_error *err;
	unsigned store_count;
	struct fsck_store *store; /* after pass 0, the first one has shard 0 */
	struct fsck_store *at;    /* the store of the current check; else NULL */
	bool alone;               /* one of several, without the others (alone.c) */
	uint64_t memory_bytes;
	bool writable; /* repairs of the tree and of groups are possible */
	unsigned round;
	bool changed;       /* this round has repaired something */
	bool keep;          /* current findings must not be repaired */
	uint64_t *declined; /* hashes of findings that were left */
	unsigned declined_count;
	unsigned code; /* the finding being repaired */
	char text[448];

	struct volume *v;
	struct disk_catalog catalog;
	uint64_t edits_known; /* edits when pass 1 had noted the users of pages */
	uint64_t edits;       /* number of transactions: walks look again after one */
	uint64_t pages_total; /* for progress */

	bool any_twice;
	page_id elsewhere; /* a named page in a store that is not given; 0: none */
	uint64_t highest_ino;
	bool intents;          /* there are files that are being cut */
	uint64_t tree_left;    /* number of ranges of the tree that stay lost in this round */
	struct damage *damage; /* DAMAGE_MAX */
	unsigned damage_count;
	bool damage_more;
};

/* ---- report.c ---- */

/* Reports a finding. Returns true if it must be repaired; the caller then calls fsck_repaired with
 * the result. Returns false if it was reported as left. */
bool fsck_found(struct fsck *f, unsigned code, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
/* Reports the result of the last repair. Returns 0, or an error that ends the run. */
int fsck_repaired(struct fsck *f, int rc);
/* Reports a finding that cannot be repaired. */
void fsck_left(struct fsck *f, unsigned code, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
void fsck_note(struct fsck *f, unsigned code, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
void fsck_progress(struct fsck *f, unsigned pass, uint64_t done, uint64_t total);
/* codes.c. Returns true if findings of this code can be repaired without loss. */
bool fsck_code_safe(unsigned code);

/* ---- run.c ---- */

/* Opens the tree for transactions, again if needed. If that fails, clears f->writable. */
int tree_get(struct fsck *f);

/* ---- pass 0 ---- */

/* stop: no further check is possible. */
int super_check(struct fsck *f, bool *stop);
int log_check(struct fsck *f, bool *stop);
/* Handles a superblock with one whole copy. Called after the log, which shows whether there was a
 * crash. */
int super_check_one(struct fsck *f);
int table_check(struct fsck *f, bool *stop);
int catalog_check(struct fsck *f, bool *stop);
/* Writes the catalog as in f->catalog: instead of a damaged one, or its two changing fields. */
int catalog_rewrite(struct fsck *f);
/* Returns true if the page's descriptor was lost with its block of the table. */
bool table_lost(const struct fsck *f, page_id pid);

/* ---- pages (walk.c) ---- */

/* Returns the store of the page's shard; NULL: it is not given. */
struct fsck_store *store_of(struct fsck *f, page_id pid);
/* Returns true if the tree or a file may use this page. */
bool page_usable(struct fsck *f, page_id pid);
/* Returns true if a run of this length may be used: within one group, without its own page. */
bool run_usable(struct fsck *f, page_id pid, uint64_t length);
/* Returns 0, or -EOPNOTSUPP with a text if a requested page is in a store of the volume that is not
 * given. The layers above the stores cannot be checked without that store. */
int elsewhere_check(struct fsck *f);
static inline uint64_t page_group(page_id pid)
{
	return (pid_slot(pid) - 1) / (1 + DISK_GROUP_PAGES);
}
static inline bool bit_test(const uint64_t *map, uint64_t at)
{
	return map[at / 64] >> at % 64 & 1;
}
static inline void bit_set(uint64_t *map, uint64_t at)
{
	map[at / 64] |= 1ull << at % 64;
}
/* Reads the page's descriptor in its own store. */
int page_descriptor_get(struct fsck *f, page_id pid, struct page_descriptor *out);
/* Copies a page through the cache. Returns 0, -EUCLEAN or -EIO. */
int page_copy(struct fsck *f, page_id pid, void *image, uint64_t *incarnation,
	uint64_t *version);
/* Reads the image in the store, with any checksum. */
int page_raw(struct fsck *f, page_id pid, void *image);

/* ---- walking the tree (walk.c) ---- */

struct walk_level {
	bool valid;
	page_id pid;
	unsigned slot,
		fetched; /* index of the current child; number of children requested */
	struct disk_inner page;
};

struct walk {
	struct fsck *f;
	wide_key next; /* the next leaf covers this key */
	bool done;
	uint64_t edits;
	unsigned height; /* level of the root, when valid */
	/* Pass 1: called for each page that is reached, and each damaged one. Else NULL. */
	void (*page)(struct fsck *f, page_id pid, unsigned level, uint64_t incarnation);
	void (*damage)(
		struct fsck *f, const struct damage *d, int error, const char *why);
	page_id leaf_pid;
	struct walk_level level[LEVELS_MAX];
	struct disk_leaf leaf;
};

struct walk *walk_open(struct fsck *f, struct disk_key from);
void walk_close(struct walk *w);
/* Reads the next readable leaf into w->leaf. Returns 1; 0 at the end; -errno. */
int walk_leaf(struct walk *w);
/* Visits items of [from, to) in key order, of all readable pages. `visit` may change the tree.
 * Items that it writes behind the current one are visited as well. */
typedef int (*item_visit)(
	struct fsck *f, void *arg, struct disk_key key, const void *value, size_t len);
int items_scan(struct fsck *f, struct disk_key from, struct disk_key to, unsigned pass,
	item_visit visit, void *arg);
/* Reads one item. Returns its length, -ENOENT or -ERANGE. */
int item_get(struct fsck *f, struct disk_key key, void *buf, size_t cap);
/* Reads the first item of [from, to). Returns its length. */
int item_next(struct fsck *f, struct disk_key from, struct disk_key to,
	struct disk_key *found, void *buf, size_t cap);

/* ---- edit.c ---- */

typedef int (*repair_body)(struct fsck *f, struct txn *x, void *arg);
/* Runs `body` in a transaction, again on conflicts. If `body` returns -ECANCELED, commits
 * nothing. */
int repair_run(struct fsck *f, repair_body body, void *arg);
int repair_write(struct fsck *f, struct disk_key key, const void *value, size_t len);
int repair_delete(struct fsck *f, struct disk_key key);
int repair_move(struct fsck *f, struct disk_key from, struct disk_key to,
	const void *value, size_t len);
int repair_delete_range(struct fsck *f, struct disk_key from, struct disk_key to);
/* Cuts pages [first, first + count) out of an extent item: they become a hole. */
int repair_cut_extent(struct fsck *f, struct disk_key key, const struct disk_extent *e,
	uint32_t first, uint32_t count);

/* ---- pass 1, rebuild.c ---- */

int fsck_pass1(struct fsck *f);
/* Claims pages for the tree (incarnation 0: as stored) or a file. */
void pages_claim(struct fsck *f, page_id pid, uint32_t length, uint64_t incarnation);
void damage_text(const struct damage *d, char *buf, size_t cap);
/* Repairs the pages in f->damage. */
int rebuild_tree(struct fsck *f);

/* ---- groups.c ---- */

int groups_check(struct fsck *f);
/* Checks each group's page by itself; with -c, also the images of its pages in use. */
int groups_check_alone(struct fsck *f);
/* Writes a page without a sound image anew: logged in full. */
int page_rewrite(struct fsck *f, page_id pid, const void *image);

/* ---- pass 2 ---- */

int fsck_pass2(struct fsck *f);
bool extent_valid(struct fsck *f, struct disk_key key, const void *value, size_t len,
	struct disk_extent *out);

struct xattr_item {
	struct disk_xattr head;
	const char *name;
	const uint8_t *runs; /* unaligned disk_extents, head.run_count of them */
	uint64_t pages;
};
bool xattr_valid(struct fsck *f, const void *value, size_t len, struct xattr_item *out);
uint32_t xattr_flags(const struct xattr_item *x);

const char *name_fault(const char *name, unsigned len);
uint64_t name_place(const struct fsck *f, const char *name, unsigned len);
/* A printable name, in the caller's buffer of this size. */
#define NAME_TEXT 96
const char *name_text(char buf[NAME_TEXT], const char *name, unsigned len);
uint8_t mode_dt(uint32_t mode);

/* ---- pass 3, attach.c ---- */

int fsck_pass3(struct fsck *f);
/* Gives the inode a name in lost+found. */
int attach_lost(struct fsck *f, uint64_t ino);
/* Removes a name, and changes the directory's counts. Does not change the named inode. */
int entry_drop(struct fsck *f, uint64_t dir, const struct disk_entry *e);
/* Removes the names of `ino` in `dir`. */
int entry_drop_ino(struct fsck *f, uint64_t dir, uint64_t ino);
/* Sets type or number of an entry. */
int entry_set_type(
	struct fsck *f, uint64_t dir, const struct disk_entry *e, uint8_t type);

/* ---- pass 4, pass 5 ---- */

int fsck_pass4(struct fsck *f);
int fsck_pass5(struct fsck *f);

/* ---- areas.c ---- */

/* Adds the logs of clients to the stores. */
int areas_add(struct fsck *f);
void areas_close(struct fsck *f);

/* ---- alone.c ---- */

/* Replaces the passes from the catalog on. */
int alone_check(struct fsck *f);

#endif
