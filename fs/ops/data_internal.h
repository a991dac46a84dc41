/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of the data half of fs/ops share: the in-memory state of inodes, the map
 * from file blocks to pages, dirty ranges, and the pieces that large changes are worked
 * off in.
 *
 * Order of locks, first to last: a state's `structure` or `sync`, a stripe of the table,
 * a state's `lock`. No guard is held while one of them is waited for, and `lock` and the
 * stripes' are never held across anything that waits for a page, the log or space. No
 * task holds two `structure`s.
 */
#ifndef WEFT_OPS_DATA_INTERNAL_H
#define WEFT_OPS_DATA_INTERNAL_H

#include <errno.h>
#include <fcntl.h>

#include "fs/ops/ops_internal.h"

#define FILE_SIZE_MAX ((uint64_t)INT64_MAX)
#define BLOCK_END     (1ull << 52) /* above every file block */

/* ---- dirty ranges (dirty.c) ------------------------------------------------------ */

#define DIRTY_INLINE 2
#define DIRTY_MAX    1024 /* ranges of one set */
/* ranges that all sets with one `heap` may have there: 16 MiB */
#define DIRTY_HEAP_MAX (1u << 20)

struct dirty_range {
	uint64_t first, end; /* file blocks [first, end) */
};

/* Sorted, disjoint, not touching. Past DIRTY_MAX, or without memory: one that covers all.
 */
struct dirty_set {
	struct dirty_range *range; /* NULL: the inline ones */
	uint32_t count, capacity;
	_Atomic uint32_t *heap; /* counts ranges on the heap; NULL: a short-lived set */
	struct dirty_range inlined[DIRTY_INLINE];
};

void dirty_add(struct dirty_set *set, uint64_t first, uint64_t end);
/* The same if the set can name just these blocks; false: it stays as it is. */
bool dirty_add_exact(struct dirty_set *set, uint64_t first, uint64_t end);
/* Moves all of `from` to the empty `to`. */
void dirty_move(struct dirty_set *to, struct dirty_set *from);
/* Adds all of `from` to `to`; `from` is empty then. */
void dirty_merge(struct dirty_set *to, struct dirty_set *from);
/* Forgets what lies at or past `first`. */
void dirty_cut(struct dirty_set *set, uint64_t first);
void dirty_clear(struct dirty_set *set);
static inline const struct dirty_range *dirty_ranges(const struct dirty_set *set)
{
	return set->range ? set->range : set->inlined;
}

/* ---- the state of an inode (file.c) ---------------------------------------------- */

struct inode_state {
	uint64_t ino;

	/* Under the stripe's lock. */
	struct inode_state *next;          /* in its bucket */
	struct inode_state *older, *newer; /* idle list; only with users == 0 */
	uint32_t users;                    /* handles, and operations under way */
	uint32_t handles;                  /* opens, those being checked included */
	uint32_t confirmed;                /* opens that found the file */
	bool orphan;                       /* unlinked: the last close reclaims */
	bool linkable; /* O_TMPFILE without O_EXCL that never had a name */
	bool naming;   /* such a file was given its name, or that was tried */
	bool reclaiming;
	struct ops_file *files;

	/*
	 * Held by whoever changes the file's mapping or size here, for a whole call. Not
	 * needed for correct items (transactions see to that): it keeps writers from
	 * useless conflicts, makes an append one piece, and holds the mapping still
	 * between its look-up and the transaction. Had in the order of asking, as it is
	 * held over I/O and a writer asks again at once.
	 */
	struct rt_gate structure; /* of width 1 */
	/* Under `structure`: an append of several calls has been under way since then, and is until then, if
	 * no call of it comes (append.c). 0: none is. */
	uint64_t appending_ns, appending_until_ns;
	/* Odd while this node unmaps pages, changed by it (map_view). Written under
	 * `structure`. */
	_Atomic uint32_t map_sequence;

	/* One fsync at a time: the second must not miss what the first has not finished.
	 */
	struct rt_mutex sync;

	/* Read-ahead: hints, races do no harm. File blocks. */
	_Atomic uint64_t read_next;      /* where a sequential reader goes on */
	_Atomic uint64_t prefetched;     /* asked for up to here */
	_Atomic uint32_t prefetch_pages; /* window; 0: not sequential */

	/* Write-behind: a stream of writes, and from where on it is not on its way to the
	 * store. Hints, as well. File blocks. */
	_Atomic uint64_t stream_from, stream_end;

	/* Writes under way, whose bytes may be in the file and not in `dirty` yet. One more
	 * while `mapped`. */
	_Atomic uint32_t writing;

	/* Handles that may be mapped to store into; and the inode names this node among its
	 * writers for that (stores.c). */
	_Atomic uint32_t mappable;
	/* OPS_MMAP_LOCAL: WRITEs that bring back what was stored, and are not in the file yet; an error
	 * of one that had been answered, for who asks next. */
	_Atomic uint32_t storing;
	_Atomic int store_error;
	_Atomic bool mapped;
	_Atomic int64_t
		settled_ns; /* when times of stores were last brought into the tree */

	/* On one node, under the lock of kernel_sizes.c: the kernel has this size, or a larger one; bytes
	 * come into the file past its pages. */
	uint64_t told_size;
	_Atomic bool passed;

	/* One node: calls that gave the kernel pages; and so many when it had none. */
	_Atomic uint64_t pages_given, pages_gone;

	/* With other nodes, while it is open: its size is to be told to the kernel. Under the lock of
	 * kernel_push.c. */
	struct {
		struct inode_state *next;
		bool listed;
		unsigned tries;
		uint64_t number, due_ns, pushed_ns;
	} push;

	struct rt_mutex lock;   /* for all below; innermost */
	struct dirty_set dirty; /* what fsync has to look at */
	bool dirty_unknown; /* and all else: a state of this inode was dropped dirty */
	int64_t mtime_ns;   /* newer than the tree's (ctime too); 0: none */
	int64_t atime_ns;
	int64_t atime_was_ns;   /* with other nodes: the tree's that atime_ns follows */
	bool times_listed;      /* the task of times comes to it */
	struct space_run ahead; /* reserved for what follows the end */
	uint32_t ahead_pages;   /* how much to reserve next */
	uint32_t pressure;      /* space_pressure when `ahead` was reserved */
};

struct ops_file {
	struct fs *fs;
	struct inode_state *state;
	struct ops_file *previous, *next; /* of the state's; under the stripe's lock */
	int flags;                        /* O_* of the open */
	bool confirmed;
	bool mappable;       /* counted in the state's */
	bool accessed;       /* opening it moved the atime */
	bool made;           /* with the inode */
	_Atomic bool locked; /* it may have locks (lock_owner.c) */
};

/* Takes a reference, making the state if need be. 0 or -ENOMEM. */
int state_get(struct fs *fs, uint64_t ino, struct inode_state **out);
/* The same if there is one already; else NULL. */
struct inode_state *state_find(struct fs *fs, uint64_t ino);
void state_put(struct fs *fs, struct inode_state *st);

/* The state if the inode is open here, and stays so until *lock is let go of; else NULL, and that is held, too. */
struct inode_state *state_open_peek(struct fs *fs, uint64_t ino, struct rt_mutex **lock);
/* If the inode is open here: leaves it to the last close, which calls orphan_closed. */
bool file_leave_to_close(struct fs *fs, uint64_t ino);
/* Returns true if no handle and no operation here uses the inode, and it is not being given a
 * name. */
bool state_is_idle(struct fs *fs, uint64_t ino);
/* orphan.c. The last handle on an inode without links is gone. Waits. */
void orphan_closed(struct fs *fs, uint64_t ino);

/* inode_reclaim is at work: no link may be made, no handle confirmed. */
void state_reclaiming(struct fs *fs, struct inode_state *st, bool reclaiming);
/* Brings the times of all files into the tree, as far as that works. Waits. */
void states_settle(struct fs *fs);
/* Brings what programs here have stored into files through mappings. Waits, as kernel_fetch_stores. */
void states_fetch(struct fs *fs);
/* Around making everything durable: what was forgotten before `mark` no longer matters.
 */
uint32_t forgotten_mark(struct fs *fs);
void forgotten_clear(struct fs *fs, uint32_t mark);

/* Gives the write-ahead reservation back. */
void ahead_release(struct fs *fs, struct inode_state *st);

/* Times that the tree does not have yet. `settle` writes them; Waits. */
int state_settle(struct fs *fs, struct inode_state *st);
/* The same a moment later, when the file is at rest. */
void state_settle_later(struct fs *fs, struct inode_state *st);
/* A transaction has just written the inode with these times: what is older is not needed.
 */
void state_times_written(struct inode_state *st, int64_t mtime_ns);
/* A read happened: writes or notes the atime, if the mount's rule asks for it (then
 * true). `kept`: for the kernel's cache. */
bool state_accessed(
	struct fs *fs, struct inode_state *st, const struct disk_inode *inode, bool kept);
/* Bytes were overwritten in place: mtime, ctime, setuid bits. `inode`: as read before. */
int state_modified(struct fs *fs, struct inode_state *st, const struct disk_inode *inode,
	const struct ops_caller *c);
/* This node's bit of disk_inode.writers. */
static inline uint64_t fs_writer(const struct fs *fs)
{
	return 1ull << store_superblock(fs->volume->store)->node;
}

/* In a transaction that changes the file's content and writes the inode: its times, setuid
 * bits and capabilities. */
int inode_modified(struct fs *fs, struct txn *x, uint64_t ino, struct disk_inode *inode,
	const struct ops_caller *c, int64_t now);

static inline void state_dirty(struct inode_state *st, uint64_t first, uint64_t end)
{
	rt_mutex_lock(&st->lock);
	dirty_add(&st->dirty, first, end);
	rt_mutex_unlock(&st->lock);
}

/* ---- mapping changes ------------------------------------------------------------- */

/*
 * What a look-up of the mapping was derived from. A page that is latched after the look-up,
 * by PID and incarnation, was still the file's when map_view_stands said so under its latch:
 *
 * - this node unmaps pages only with the state's map_sequence odd;
 * - another node changes the leaf of the extent, or of the inode, and has taken it out of this
 *   node's frame before. So where there are other nodes the leaves must stand as well.
 *
 * Who unmaps it after that does so after the reading, or the overwrite, has taken place.
 */
struct map_view {
	struct inode_state *st;
	uint32_t sequence;
	bool shared; /* other nodes may change the mapping */
	struct tree_seen seen;
};

/* Begins one. Waits, holding nothing, for a change of this node's that is under way;
 * `locked`: the caller has `structure`. `again`: an earlier one did not stand. */
void map_view_begin(struct fs *fs, struct inode_state *st, bool locked, bool again,
	struct map_view *view);
/* For what is looked up in it. */
static inline struct tree_seen *map_view_seen(struct map_view *view)
{
	return view->shared ? &view->seen : NULL;
}
bool map_view_stands(const struct map_view *view);
/* It has served its purpose, or did not stand. */
void map_view_end(struct fs *fs, const struct map_view *view);
/* After so many views that did not stand something is damaged, or makes no progress. */
#define VIEWS_ALONE  16u
#define VIEWS_SHARED 4096u
static inline unsigned views_max(const struct fs *fs)
{
	return fs_has_peers(fs) ? VIEWS_SHARED : VIEWS_ALONE;
}
/* Lets others get done, when so many did not stand. Waits. */
void views_pause(const struct fs *fs, unsigned views);

/* Both under `structure`, around a transaction that unmaps pages. */
static inline void map_change_begin(struct inode_state *st)
{
	atomic_fetch_add_explicit(&st->map_sequence, 1, memory_order_seq_cst);
}
static inline void map_change_end(struct inode_state *st)
{
	atomic_fetch_add_explicit(&st->map_sequence, 1, memory_order_seq_cst);
}
/* ---- extents (extent.c) ---------------------------------------------------------- */

enum map_kind { MAP_HOLE = 0, MAP_UNWRITTEN, MAP_WRITTEN };

/* `count` file blocks in a row that are alike. */
struct map_segment {
	uint64_t block;
	uint64_t count;
	enum map_kind kind;
	page_id pid; /* of the first; PID_NONE in a hole */
	uint64_t incarnation;
};

#define MAP_SEGMENTS 24

/* Segments that cover [first, ...) without a gap, `count` blocks or as many as `segment`
 * has room for. */
struct map {
	unsigned count;
	struct map_segment segment[MAP_SEGMENTS];
};

/* Without a transaction. 0, -EUCLEAN, -EIO. Waits. */
int map_lookup(
	struct fs *fs, uint64_t ino, uint64_t first, uint64_t count, struct map *out);
/* The same, for what is derived from it (tree.h; NULL: nothing): -ESTALE, look at all again;
 * -E2BIG, it lies in too many leaves: map_tidy, and look again. */
int map_lookup_seen(struct fs *fs, struct tree_seen *seen, uint64_t ino, uint64_t first,
	uint64_t count, struct map *out);
/* Many extents that went, on several nodes at once, leave a way of empty leaves: joins those up to
 * where [first, end) lies. Best effort. Waits. */
void map_tidy(struct fs *fs, uint64_t ino, uint64_t first, uint64_t end);
/* First block behind what the map covers. */
static inline uint64_t map_end(const struct map *map)
{
	const struct map_segment *last = &map->segment[map->count - 1];

	return last->block + last->count;
}
/*
 * The pages of written blocks, handed on in batches: `hand` gets refs[0..count). Errors,
 * its own too, end it. Waits.
 */
struct page_batch {
	struct fs *fs;
	struct page_ref *refs;
	unsigned count, capacity;
	int (*hand)(struct page_batch *b);
	lsn_t lsn; /* for `hand` */
};
/* Those of [first, end); full batches are handed on. */
int page_batch_add(struct page_batch *b, uint64_t ino, uint64_t first, uint64_t end);
/* Hands on what is left. */
int page_batch_end(struct page_batch *b);
/* Where in the store a new extent for this file block would best go. */
page_id map_goal(struct fs *fs, uint64_t ino, uint64_t block);

/* In a transaction. -ESTALE: the blocks are not as assumed, look the mapping up again. */

/* The blocks are a hole; they become `extent`. */
int extent_insert(struct fs *fs, struct txn *x, uint64_t ino, uint64_t block,
	const struct disk_extent *extent);
/* The blocks are part of one unwritten extent that names these pages; they become
 * written. */
int extent_convert(struct fs *fs, struct txn *x, uint64_t ino, uint64_t block,
	const struct disk_extent *extent);
/*
 * Frees the pages of [first, end), at most EXTENTS_A_PIECE extents of it; `unwritten`: only
 * those that nothing was written to. *freed: pages; *next: where to go on, `end` when done.
 */
#define EXTENTS_A_PIECE 16
int extent_remove(struct fs *fs, struct txn *x, uint64_t ino, uint64_t first,
	uint64_t end, bool unwritten, uint64_t *freed, uint64_t *next);
/* What a block is, in the transaction. */
int extent_at(struct fs *fs, struct txn *x, uint64_t ino, uint64_t block,
	struct map_segment *out);
/* Sets [from, to) of a file block's page with the transaction, if it has written content.
 * src NULL: to zeros; else it must live until the commit. */
int extent_set_bytes(struct fs *fs, struct txn *x, uint64_t ino, uint64_t block,
	unsigned from, unsigned to, const uint8_t *src);
static inline int extent_zero_bytes(struct fs *fs, struct txn *x, uint64_t ino,
	uint64_t block, unsigned from, unsigned to)
{
	return extent_set_bytes(fs, x, ino, block, from, to, NULL);
}

/* ---- pieces of large changes ----------------------------------------------------- */

/*
 * truncate.c. Under `structure`: works off what a truncation, on any node, has left to do; or
 * does so if the inode says that there is something. Whoever grows or maps asks intent_is_due
 * in the transaction that does so, and starts over with this where it is. Wait.
 */
int intent_work(struct fs *fs, struct inode_state *st);
int intent_finish(struct fs *fs, struct inode_state *st);
static inline bool intent_is_due(const struct disk_inode *inode)
{
	return inode->flags & DISK_INODE_HAS_INTENT;
}
/*
 * Before the size grows from `size` without a write into its last page: *dirty says
 * whether bytes behind the end are not zeros, which a crash or an error in the middle of
 * an append can leave. Under `structure`. -ESTALE: the end is elsewhere by now. Waits.
 */
int tail_check(struct fs *fs, struct inode_state *st, uint64_t size, bool *dirty);
/* The same of the page at hand, latched. */
static inline bool tail_is_dirty(const uint8_t *image, unsigned within)
{
	return image[within] ||
	       memcmp(image + within, image + within + 1, PAGE_SIZE - within - 1) != 0;
}

/*
 * reclaim.c. Frees unlinked inodes and all they have, unless they have links again. Small ones
 * go in one transaction. `changes` is NULL, or the inodes' change counts from before the other
 * nodes were asked: an inode that has another one by now stays. Returns these, a bit for each.
 * count <= 32. Waits.
 */
#define RECLAIM_BATCH 16u
uint32_t reclaim_many(
	struct fs *fs, const uint64_t *ino, const uint64_t *changes, unsigned count);

/* lock_owner.c. The file is about to be closed: what was locked through it is freed.
 * Waits. */
void locks_closing(struct fs *fs, struct ops_file *file);

/* ---- stores through mappings (stores.c) ---------------------------------------------- */

/* A handle has come, goes: under the stripe's lock. */
void stores_opened(struct fs *fs, struct ops_file *file);
void stores_closed(struct ops_file *file);
/* Brings the mtime of stores into the tree. Waits. */
void stores_settle(struct fs *fs, struct inode_state *st);
/* May programs here store into the file without a word? Then the kernel gets its pages
 * exclusively. */
static inline bool stores_possible(const struct inode_state *st)
{
	return atomic_load_explicit(&st->mappable, memory_order_seq_cst) > 0;
}
/* May mappings here hold stores into what the file has no page for? On a volume of one node: it is open with
 * O_RDWR. With OPS_MMAP_LOCAL: the kernel has got a page to store into. Else a hole gets a page first. */
bool stores_unseen(struct fs *fs, struct inode_state *st);
/* Before the kernel gets the first such page: whoever calls fsync elsewhere asks this node from
 * now on. Waits. */
int stores_join(struct fs *fs, struct inode_state *st);
/* An error of one that had been answered. `once`: from here on there is none. */
int stores_error(struct inode_state *st, bool once);
/* data_write.c. The block is no hole any more; behind the end nothing happens. Waits. */
int data_fill_hole(struct fs *fs, struct inode_state *st, uint64_t block);

/* kernel_sizes.c. A cut has been committed, and is not answered: no larger size is told from here on. Waits. */
void sizes_cut(struct fs *fs, struct inode_state *st, uint64_t size);

/*
 * append.c: around a call that appends, under `structure`. `more`: another one may go on where it ends. True:
 * it may be the first of several. append_commits comes before its transaction. append_begin waits a little.
 */
bool append_begin(struct fs *fs, struct inode_state *st, bool more);
void append_commits(struct fs *fs, struct inode_state *st, bool first);
void append_end(struct fs *fs, struct inode_state *st, bool more);

/* data_read.c. ops_read on a state; the atime follows if `accessed`. */
int data_read(struct fs *fs, struct inode_state *st, uint64_t offset, size_t len,
	bool accessed, ops_sink sink, void *arg);
/* data_write.c. ops_write on a state, of one byte or more. */
int64_t data_write(struct fs *fs, struct inode_state *st, const struct ops_caller *c,
	uint64_t offset, const void *buf, size_t len, unsigned append);

#endif
