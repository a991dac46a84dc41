/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of mkfs/fsck share. Nobody else includes it.
 *
 * run.c       opening, rounds of passes, the result
 * codes.c     the findings' codes; report.c tells findings and asks about them
 * super.c     pass 0: superblocks; logcheck.c: the log; table.c: the descriptor table;
 *             catalog.c: the catalog
 * walk.c      reading the tree without trusting it
 * pass1.c     the tree's structure; rebuild.c repairs it
 * pass2.c     items, inode by inode; xattr.c and entry.c know two kinds of items
 * pass3.c     links and connections; attach.c changes names
 * pass4.c     pages: used, free, used twice; groups.c: the allocation groups' own pages
 * pass5.c     file data
 * areas.c     logs of clients within stores
 * alone.c     one store of several, without the others
 * edit.c      transactions that repair
 *
 * Rounds. The passes run in order. A round that repaired something is followed by another
 * one, until a round finds nothing to repair: so repairs are checked like everything
 * else, may be simple (a repair that takes an item away leaves its pages leaked, and the
 * next round frees them), and what -y leaves is clean by construction. Without permission
 * to write there is one round.
 *
 * Stores. A volume of several is read and repaired through the cache of the one with
 * shard 0, which has pages of all of them (volume_options.also). Maps of pages are each
 * store's own.
 *
 * Memory. Two bits a page (64 MiB per TiB of store) say which pages are in use and which
 * twice; a third one is there while pages used twice are sorted out. 8 bytes a group.
 * Everything else is bounded by options: link counts are taken for as many inodes at once
 * as fit memory_bytes, with a scan of the directory entries for each such window.
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
#define FILE_BLOCK_END (1ull << 51) /* blocks of a file of 2^63 bytes */
#define STORE_NAME     200          /* so much of a store's name is in a finding's text */

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

/* A page of the tree that is not as it should be. */
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

/* One of the volume's stores. */
struct fsck_store {
	struct fsck_input in;
	char area_name[300]; /* an area of another store: closed by areas.c; else empty */
	struct disk_superblock sb;
	bool one_superblock; /* one copy only is whole: super_check_one */
	bool interrupted;    /* by the log: not shut since the store was last opened */
	bool was_clean;      /* the log was closed cleanly */
	struct volume *v;    /* the first's has the cache, and is f->v */
	uint64_t group_count;
	uint64_t *claimed, *twice; /* by slot */
	uint64_t *kept;        /* pass 4: pages used twice that have found their owner */
	uint64_t *group_high;  /* highest incarnation seen in each group */
	uint64_t *lost_blocks; /* blocks of the table that were made anew, ascending */
	unsigned lost_count;
};

struct fsck {
	const struct fsck_options *o;
	struct fsck_result *out;
	struct weft_error *err;
	unsigned store_count;
	struct fsck_store *store; /* from pass 0 on the one with shard 0 is the first */
	struct fsck_store *at;    /* what is looked at belongs to this one; else NULL */
	bool alone; /* one of several, which says little without the others (alone.c) */
	uint64_t memory_bytes;
	bool writable; /* repairs of the tree and of groups are possible */
	unsigned round;
	bool changed;       /* something was repaired in this round */
	bool keep;          /* what is found now is not to be repaired */
	uint64_t *declined; /* hashes of findings that were left */
	unsigned declined_count;
	unsigned code; /* the finding being repaired */
	char text[448];

	struct volume *v;
	struct disk_catalog catalog;
	uint64_t edits_known; /* edits when pass 1 had noted who uses what */
	uint64_t edits;       /* counts transactions: walks look again after one */
	uint64_t pages_total; /* for progress */

	bool any_twice;
	page_id elsewhere; /* is named, and in a store that is not here; 0: none is */
	uint64_t highest_ino;
	bool intents;          /* files that are being cut were met */
	uint64_t tree_left;    /* ranges of the tree that stay lost in this round */
	struct damage *damage; /* DAMAGE_MAX */
	unsigned damage_count;
	bool damage_more;
};

/* ---- report.c ---- */

/*
 * A finding. True: repair it, then call fsck_repaired with how that went. False: it was
 * reported as left.
 */
bool fsck_found(struct fsck *f, unsigned code, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
/* What became of the repair of the last finding. 0, or an error that ends the run. */
int fsck_repaired(struct fsck *f, int rc);
/* A finding that cannot be repaired. */
void fsck_left(struct fsck *f, unsigned code, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
void fsck_note(struct fsck *f, unsigned code, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
void fsck_progress(struct fsck *f, unsigned pass, uint64_t done, uint64_t total);
/* May findings of this code be repaired without loss? (codes.c) */
bool fsck_code_safe(unsigned code);

/* ---- run.c ---- */

/* (Re)opens the tree for transactions. Where it cannot be f->writable ends. */
int tree_get(struct fsck *f);

/* ---- pass 0 ---- */

/* *stop: nothing more can be checked. */
int super_check(struct fsck *f, bool *stop);
int log_check(struct fsck *f, bool *stop);
/* After the log, which knows whether there was a crash: a superblock that has no twin. */
int super_check_one(struct fsck *f);
int table_check(struct fsck *f, bool *stop);
int catalog_check(struct fsck *f, bool *stop);
/* Writes the catalog as in f->catalog: in place of a damaged one, or its two changing
 * fields. */
int catalog_rewrite(struct fsck *f);
/* Was the page's descriptor lost with its block of the table? */
bool table_lost(const struct fsck *f, page_id pid);

/* ---- pages (walk.c) ---- */

/* The store whose shard the page is of; NULL: none that is here. */
struct fsck_store *store_of(struct fsck *f, page_id pid);
/* May the tree or a file use this page? */
bool page_usable(struct fsck *f, page_id pid);
/* May a run of so many pages be used: of one group, without its own page? */
bool run_usable(struct fsck *f, page_id pid, uint64_t length);
/*
 * 0; -EOPNOTSUPP with a text: one of the pages that were asked for is in a store of the
 * volume that is not here. Nothing above the stores can be judged without that one.
 */
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
/* What the page's own store says of its image in place. */
int page_descriptor_get(struct fsck *f, page_id pid, struct page_descriptor *out);
/* A private copy through the cache. 0, -EUCLEAN, -EIO. */
int page_copy(struct fsck *f, page_id pid, void *image, uint64_t *incarnation,
	uint64_t *version);
/* The image in place, whatever its checksum. */
int page_raw(struct fsck *f, page_id pid, void *image);

/* ---- walking the tree (walk.c) ---- */

struct walk_level {
	bool valid;
	page_id pid;
	unsigned slot,
		fetched; /* child entered last; children asked for below this one */
	struct disk_inner page;
};

struct walk {
	struct fsck *f;
	wide_key next; /* the next leaf covers this key */
	bool done;
	uint64_t edits;
	unsigned height; /* level of the root, when valid */
	/* pass 1: each page reached, each damaged one; else NULL */
	void (*page)(struct fsck *f, page_id pid, unsigned level, uint64_t incarnation);
	void (*damage)(
		struct fsck *f, const struct damage *d, int error, const char *why);
	page_id leaf_pid;
	struct walk_level level[LEVELS_MAX];
	struct disk_leaf leaf;
};

struct walk *walk_open(struct fsck *f, struct disk_key from);
void walk_close(struct walk *w);
/* The next leaf that can be read, in w->leaf. 1; 0 at the end; -errno. */
int walk_leaf(struct walk *w);
/*
 * Visits items of [from, to) in key order, of whatever pages can be read. `visit` may
 * change the tree; what it writes behind the item at hand is visited as well.
 */
typedef int (*item_visit)(
	struct fsck *f, void *arg, struct disk_key key, const void *value, size_t len);
int items_scan(struct fsck *f, struct disk_key from, struct disk_key to, unsigned pass,
	item_visit visit, void *arg);
/* One item: its length, -ENOENT, -ERANGE. */
int item_get(struct fsck *f, struct disk_key key, void *buf, size_t cap);
/* The first item of [from, to): its length. */
int item_next(struct fsck *f, struct disk_key from, struct disk_key to,
	struct disk_key *found, void *buf, size_t cap);

/* ---- edit.c ---- */

typedef int (*repair_body)(struct fsck *f, struct txn *x, void *arg);
/* Runs body in a transaction, again on conflicts. -ECANCELED of the body: commit nothing.
 */
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

int pass1(struct fsck *f);
/* Claims pages for the tree (incarnation 0: as stored) or a file. */
void pages_claim(struct fsck *f, page_id pid, uint32_t length, uint64_t incarnation);
void damage_text(const struct damage *d, char *buf, size_t cap);
/* Repairs what f->damage lists. */
int rebuild_tree(struct fsck *f);

/* ---- groups.c ---- */

int groups_check(struct fsck *f);
/* Each group's page by itself; with -c, the images of the pages that it has in use. */
int groups_check_alone(struct fsck *f);
/* Writes a page anew that has no trustworthy image: logged in full. */
int page_rewrite(struct fsck *f, page_id pid, const void *image);

/* ---- pass 2 ---- */

int pass2(struct fsck *f);
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

struct entry_item {
	uint64_t ino;
	uint8_t type;
	uint8_t name_bytes;
	const char *name;
};
/* Steps through an entry item; false at the end or (*bad) at something malformed. */
bool entry_next(
	const void *value, size_t len, size_t *at, struct entry_item *out, bool *bad);
const char *name_fault(const char *name, unsigned len);
uint64_t name_place(const struct fsck *f, const char *name, unsigned len);
/* A name as it can be printed, in a static-sized buffer of the caller. */
#define NAME_TEXT 96
const char *name_text(char buf[NAME_TEXT], const char *name, unsigned len);
uint8_t mode_dt(uint32_t mode);

/* ---- pass 3, attach.c ---- */

int pass3(struct fsck *f);
/* Gives the inode a name in lost+found. */
int attach_lost(struct fsck *f, uint64_t ino);
/* Takes a name away; the directory's counts follow. The inode's own are not touched. */
int entry_drop(struct fsck *f, uint64_t dir, const struct entry_item *e);
/* Takes the names of `ino` in `dir` away. */
int entry_drop_ino(struct fsck *f, uint64_t dir, uint64_t ino);
/* Sets type or number of an entry. */
int entry_set_type(
	struct fsck *f, uint64_t dir, const struct entry_item *e, uint8_t type);

/* ---- pass 4, pass 5 ---- */

int pass4(struct fsck *f);
int pass5(struct fsck *f);

/* ---- areas.c ---- */

/* Adds the logs of clients to the stores. */
int areas_add(struct fsck *f);
void areas_close(struct fsck *f);

/* ---- alone.c ---- */

/* Instead of the passes from the catalog on. */
int alone_check(struct fsck *f);

#endif
