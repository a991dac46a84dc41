/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Declarations that the files of file data share: the state of an open inode, the map from file
 * blocks to pages, dirty ranges, large changes.
 *
 * Order of locks, first to last: `alloc_gate` or `sync` of a state, a stripe of the table, `lock`
 * of a state. A task that waits for one of them holds no guard. A task that holds `lock` or a
 * stripe does not wait for a page, the log or space. No task holds two `alloc_gate`s.
 */
#ifndef WEFT_OPS_DATA_INTERNAL_H
#define WEFT_OPS_DATA_INTERNAL_H

#include <errno.h>
#include <fcntl.h>

#include "fs/ops/ops_internal.h"

#define FILE_SIZE_MAX ((uint64_t)INT64_MAX)
#define BLOCK_END     (1ull << 52) /* greater than every file block */

/* ---- dirty ranges (dirty.c) ------------------------------------------------------ */

#define DIRTY_INLINE 2
#define DIRTY_MAX    1024 /* number of ranges in one set */
/* number of ranges that all sets with one `heap` may have there: 16 MiB */
#define DIRTY_HEAP_MAX (1u << 20)

struct dirty_range {
	uint64_t first, end; /* file blocks [first, end) */
};

/* Sorted, disjoint, not touching. If there are more than DIRTY_MAX, or memory is short: one range
 * that covers all. */
struct dirty_set {
	struct dirty_range *range; /* NULL: `inlined` is used */
	uint32_t count, capacity;
	_Atomic uint32_t *heap; /* number of ranges on the heap; NULL: a short-lived set */
	struct dirty_range inlined[DIRTY_INLINE];
};

void dirty_add(struct dirty_set *set, uint64_t first, uint64_t end);
/* As dirty_add, if the set can name just these blocks. Else returns false, and the set stays as it
 * is. */
bool dirty_add_exact(struct dirty_set *set, uint64_t first, uint64_t end);
/* Moves all ranges of `from` to the empty `to`. */
void dirty_move(struct dirty_set *to, struct dirty_set *from);
/* Adds all ranges of `from` to `to`, and empties `from`. */
void dirty_merge(struct dirty_set *to, struct dirty_set *from);
/* Removes all blocks from `first` on. */
void dirty_cut(struct dirty_set *set, uint64_t first);
void dirty_clear(struct dirty_set *set);
static inline const struct dirty_range *dirty_ranges(const struct dirty_set *set)
{
	return set->range ? set->range : set->inlined;
}

/* ---- the state of an inode (file.c) ---------------------------------------------- */

struct inode_state {
	uint64_t ino;

	/* Protected by the stripe's lock. */
	struct inode_state *next;          /* in the same bucket */
	struct inode_state *older, *newer; /* in the list of idle states; used only if users == 0 */
	uint32_t users;                    /* number of handles and operations under way */
	uint32_t handles;                  /* number of opens, with those being checked */
	uint32_t confirmed;                /* number of opens that found the file */
	bool orphan;                       /* unlinked: the last close reclaims it */
	bool linkable; /* opened by O_TMPFILE without O_EXCL, and has never had a name */
	bool naming;   /* as linkable, but ops_link has been tried on it */
	bool reclaiming;
	struct ops_file *files;

	/*
	 * Held for a whole call that changes the file's mapping or size on this node. Transactions
	 * keep the items correct without it. It saves writers from useless conflicts, makes an
	 * append one piece, and holds the mapping still between its look-up and the transaction.
	 * Its waiters get it in the order of their requests, because it is held over I/O and a
	 * writer asks again at once.
	 */
	struct rt_gate alloc_gate; /* of width 1 */
	/* Under `alloc_gate`: the start of an append of several calls (0: none is under way), and
	 * its end if no further call comes (append.c). */
	uint64_t appending_ns, appending_until_ns;
	/* Odd while this node unmaps pages (map_view). Written under `alloc_gate`. */
	_Atomic uint32_t map_sequence;

	/* Lets one fsync in at a time: a second one must not miss pages that the first one has yet
	 * to write. */
	struct rt_mutex sync;

	/* Read-ahead, in file blocks. Hints only: races do no harm. */
	_Atomic uint64_t read_next;      /* where a sequential reader continues */
	_Atomic uint64_t prefetched;     /* requested up to this block */
	_Atomic uint32_t prefetch_pages; /* window in pages; 0: not sequential */

	/* Write-behind, in file blocks: where a stream of writes ends, and from where it is not yet
	 * on its way to the store. Hints only. */
	_Atomic uint64_t stream_from, stream_end;

	/* Number of writes under way: their bytes may be in the file and not yet in `dirty`. One
	 * more while `mapped`. */
	_Atomic uint32_t writing;

	struct kcache_file kcache;
	/* OPS_MMAP_LOCAL: the error of a write-back that was answered before it, for the next
	 * fsync. */
	_Atomic int store_error;
	_Atomic int64_t
		settled_ns; /* when the tree last got the times of stores */

	/* Volumes of one node: number of calls that gave the kernel pages, and that number when it
	 * last had none. */
	_Atomic uint64_t pages_given, pages_gone;
	/* If opens are hidden: number of direct writes since the kernel was last given pages, and
	 * pages_given at the latest one. Hints only. */
	_Atomic uint64_t pages_seen;
	_Atomic uint32_t direct_writes;

	struct rt_mutex lock;   /* for all below; innermost */
	struct dirty_set dirty; /* blocks that fsync has to write */
	bool dirty_unknown; /* add all other blocks: a state of this inode was dropped while
			     * dirty */
	int64_t mtime_ns;   /* newer than the tree's (ctime too); 0: none */
	int64_t atime_ns;
	int64_t atime_was_ns;   /* with other nodes: the tree's atime that atime_ns follows */
	bool times_listed;      /* on the list of the task that writes times */
	struct space_run ahead; /* pages reserved ahead of the end */
	uint32_t ahead_pages;   /* number of pages to reserve next */
	uint32_t pressure;      /* space_pressure when `ahead` was reserved */
};

struct ops_file {
	struct fs *fs;
	struct inode_state *state;
	struct ops_file *previous, *next; /* of the same state; under the stripe's lock */
	struct ops_file *closing;         /* the next one to close (borrow.c) */
	int flags;                        /* O_* of the open */
	bool confirmed;
	bool mappable;       /* counted in the state's `mappable` */
	bool accessed;       /* the open moved the atime */
	bool made;           /* the open created the inode */
	_Atomic bool locked; /* may have locks (lock_owner.c) */
};

/* file.c. Opens a file for ops_borrow: to read and write, whatever its flags allow. Waits. */
int file_open_hidden(struct fs *fs, uint64_t ino, struct ops_file **out);

/* Takes a reference to a state. Makes the state if there is none. Returns 0 or -ENOMEM. */
int state_get(struct fs *fs, uint64_t ino, struct inode_state **out);
/* As state_get, but returns NULL if there is no state. */
struct inode_state *state_find(struct fs *fs, uint64_t ino);
void state_put(struct fs *fs, struct inode_state *st);

/* Returns the state if the inode is open here, else NULL. Holds *lock in both cases: the inode
 * stays open until the caller unlocks it. */
struct inode_state *state_open_peek(struct fs *fs, uint64_t ino, struct rt_mutex **lock);
/* Returns true if the inode is open here. The last close then calls orphan_closed. */
bool file_leave_to_close(struct fs *fs, uint64_t ino);
/* Returns true if no handle and no operation here uses the inode, and it is not being given a
 * name. */
bool state_is_idle(struct fs *fs, uint64_t ino);
/* orphan.c. Notes that the last handle on an inode without links is closed. Waits. */
void orphan_closed(struct fs *fs, uint64_t ino);

/* Notes that inode_reclaim is at work: no link may be made, and no handle confirmed. */
void state_reclaiming(struct fs *fs, struct inode_state *st, bool reclaiming);
/* Writes the times of all files to the tree, as far as possible. Waits. */
void states_settle(struct fs *fs);
/* Brings the stores of programs on this node through mappings into their files. Waits, as
 * kcache_fetch_stores. */
void states_fetch(struct fs *fs);
/* Call these around making everything durable: states dropped dirty before `mark` need no fsync any
 * more. */
uint32_t forgotten_mark(struct fs *fs);
void forgotten_clear(struct fs *fs, uint32_t mark);

/* Releases the pages reserved ahead of the end. */
void ahead_release(struct fs *fs, struct inode_state *st);

/* Writes the state's times to the tree. Waits. */
int state_settle(struct fs *fs, struct inode_state *st);
/* As state_settle, but a moment later, when no program uses the file. */
void state_settle_later(struct fs *fs, struct inode_state *st);
/* Notes that a transaction has just written the inode with these times: older times are dropped. */
void state_times_written(struct inode_state *st, int64_t mtime_ns);
/* Notes a read. If the mount's rule asks for it, writes or notes the atime and returns true.
 * `kept`: the read is for the kernel's cache. */
bool state_accessed(
	struct fs *fs, struct inode_state *st, const struct disk_inode *inode, bool kept);
/* Returns true if a read would move the atime. Waits. */
bool file_atime_due(struct fs *fs, struct ops_file *file);
/* Notes that bytes were overwritten in place: writes mtime, ctime and setuid bits. `inode`: as read
 * before. */
int state_modified(struct fs *fs, struct inode_state *st, const struct disk_inode *inode,
	const struct ops_caller *c);
/* Returns this node's bit of disk_inode.writers. */
static inline uint64_t fs_writer(const struct fs *fs)
{
	return 1ull << store_superblock(fs->volume->store)->node;
}

/* Changes times, setuid bits and capabilities of an inode in memory, in a transaction that changes
 * the file's content. The caller writes the inode. */
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
 * The state from which a look-up of the mapping was derived. A caller looks a page up, latches it
 * by PID and incarnation, and calls map_view_stands under the latch. If that returns true, the page
 * was still the file's at that moment:
 *
 * - This node unmaps pages only while map_sequence of the state is odd.
 * - Another node unmaps a page by a change of the extent's leaf, or the inode's. Before that, it
 *   takes the leaf out of this node's frame. So if there are other nodes, the leaves must stand as
 *   well.
 *
 * If a page is unmapped later, then the read or overwrite has come before that.
 */
struct map_view {
	struct inode_state *st;
	uint32_t sequence;
	bool shared; /* other nodes may change the mapping */
	struct tree_seen seen;
};

/* Begins a view. If this node changes the mapping, waits for that with nothing held. `locked`: the
 * caller has `alloc_gate`. `again`: an earlier view did not stand. */
void map_view_begin(struct fs *fs, struct inode_state *st, bool locked, bool again,
	struct map_view *view);
/* Returns the record that look-ups of the view use. NULL: none is needed. */
static inline struct tree_seen *map_view_seen(struct map_view *view)
{
	return view->shared ? &view->seen : NULL;
}
bool map_view_stands(const struct map_view *view);
/* Ends a view, whether it stood or not. */
void map_view_end(struct fs *fs, const struct map_view *view);
/* Limits of views in a row that did not stand. Past them something is damaged, or makes no
 * progress. */
#define VIEWS_ALONE  16u
#define VIEWS_SHARED 4096u
static inline unsigned views_max(const struct fs *fs)
{
	return fs_has_peers(fs) ? VIEWS_SHARED : VIEWS_ALONE;
}
/* Lets other tasks proceed after this number of views that did not stand. Waits. */
void views_pause(const struct fs *fs, unsigned views);

/* Call both under `alloc_gate`, around a transaction that unmaps pages. */
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

/* `count` file blocks of one kind in a row. */
struct map_segment {
	uint64_t block;
	uint64_t count;
	enum map_kind kind;
	page_id pid; /* of the first block; PID_NONE in a hole */
	uint64_t incarnation;
};

#define MAP_SEGMENTS 24

/* Segments that cover [first, ...) without a gap: `count` blocks, or as many as `segment` has room
 * for. */
struct map {
	unsigned count;
	struct map_segment segment[MAP_SEGMENTS];
};

/* Looks file blocks up, without a transaction. Returns 0, -EUCLEAN or -EIO. Waits. */
int map_lookup(
	struct fs *fs, uint64_t ino, uint64_t first, uint64_t count, struct map *out);
/*
 * As map_lookup, for a result that depends on `seen` (tree.h; NULL: nothing). If -ESTALE: look all
 * up again. If -E2BIG, the extents lie in too many leaves: call map_tidy and look again.
 *
 * Waits.
 */
int map_lookup_seen(struct fs *fs, struct tree_seen *seen, uint64_t ino, uint64_t first,
	uint64_t count, struct map *out);
/* Joins the empty leaves up to the end of [first, end). They are left if several nodes remove many
 * extents at once. Best effort. Waits. */
void map_tidy(struct fs *fs, uint64_t ino, uint64_t first, uint64_t end);
/* Returns the first block behind the map. */
static inline uint64_t map_end(const struct map *map)
{
	const struct map_segment *last = &map->segment[map->count - 1];

	return last->block + last->count;
}
/* Collects the pages of written blocks and hands them on in batches: `hand` gets refs[0..count). An
 * error ends it, also one of `hand`. Waits. */
struct page_batch {
	struct fs *fs;
	struct page_ref *refs;
	unsigned count, capacity;
	int (*hand)(struct page_batch *b);
	lsn_t lsn; /* for `hand` */
};
/* Adds the pages of [first, end). Hands full batches on. */
int page_batch_add(struct page_batch *b, uint64_t ino, uint64_t first, uint64_t end);
/* Hands the remaining pages on. */
int page_batch_end(struct page_batch *b);
/* Returns the best place in the store for a new extent of this file block. */
page_id map_goal(struct fs *fs, uint64_t ino, uint64_t block);

/* For use in a transaction. -ESTALE: the blocks are not as assumed; look the mapping up again. */

/* Maps a hole to `extent`. */
int extent_insert(struct fs *fs, struct txn *x, uint64_t ino, uint64_t block,
	const struct disk_extent *extent);
/* Makes blocks of one unwritten extent, which names these pages, written. */
int extent_convert(struct fs *fs, struct txn *x, uint64_t ino, uint64_t block,
	const struct disk_extent *extent);
/* Frees the pages of [first, end), of at most EXTENTS_A_PIECE extents. `unwritten`: only those of
 * unwritten extents. *freed: number of pages. *next: where to continue; `end` if done. */
#define EXTENTS_A_PIECE 16
int extent_remove(struct fs *fs, struct txn *x, uint64_t ino, uint64_t first,
	uint64_t end, bool unwritten, uint64_t *freed, uint64_t *next);
/* Looks one block up in the transaction. */
int extent_at(struct fs *fs, struct txn *x, uint64_t ino, uint64_t block,
	struct map_segment *out);
/* Sets bytes [from, to) of a file block's page in the transaction, if the block is written. `src`
 * must live until the commit. NULL: sets zeros. */
int extent_set_bytes(struct fs *fs, struct txn *x, uint64_t ino, uint64_t block,
	unsigned from, unsigned to, const uint8_t *src);
static inline int extent_zero_bytes(struct fs *fs, struct txn *x, uint64_t ino,
	uint64_t block, unsigned from, unsigned to)
{
	return extent_set_bytes(fs, x, ino, block, from, to, NULL);
}

/* ---- pieces of large changes ----------------------------------------------------- */

/*
 * truncate.c. Both finish a truncation that any node has left, and are called under `alloc_gate`.
 * intent_finish does so only if the inode has an intent. A call that maps pages or extends the file
 * checks intent_is_due in its transaction. If that is true, it calls intent_work and starts over.
 * Wait.
 */
int intent_work(struct fs *fs, struct inode_state *st);
int intent_finish(struct fs *fs, struct inode_state *st);
static inline bool intent_is_due(const struct disk_inode *inode)
{
	return inode->flags & DISK_INODE_HAS_INTENT;
}
/*
 * Checks the page with the end before the size grows from `size` without a write to that page.
 * *dirty: bytes behind the end are not zeros. A crash or an error in the middle of an append can
 * leave such bytes. The caller holds `alloc_gate`. -ESTALE: the size has changed. Waits.
 */
int tail_check(struct fs *fs, struct inode_state *st, uint64_t size, bool *dirty);
/* As tail_check, for a page that the caller has latched. */
static inline bool tail_is_dirty(const uint8_t *image, unsigned within)
{
	return image[within] ||
	       memcmp(image + within, image + within + 1, PAGE_SIZE - within - 1) != 0;
}

/*
 * reclaim.c. Frees unlinked inodes with all their items and pages, unless they have links again.
 * Small ones are freed in one transaction. `changes`: NULL, or the change counts of the inodes from
 * before other nodes were asked; an inode whose count differs stays. Returns a bit for each inode
 * whose count differs. count <= 32. Waits.
 */
#define RECLAIM_BATCH 16u
uint32_t reclaim_many(
	struct fs *fs, const uint64_t *ino, const uint64_t *changes, unsigned count);

/* lock_owner.c. Frees the locks that were taken through the file, before its close. Waits. */
void locks_closing(struct fs *fs, struct ops_file *file);

/* ---- stores through mappings (stores.c) ---------------------------------------------- */

/* Note that a handle is opened or closed. The caller holds the stripe's lock. */
void stores_opened(struct fs *fs, struct ops_file *file);
void stores_closed(struct ops_file *file);
/* Writes the mtime of stores to the tree. Waits. */
void stores_settle(struct fs *fs, struct inode_state *st);
static inline bool stores_possible(const struct inode_state *st)
{
	return kcache_stores_possible(&st->kcache);
}
/*
 * Returns true if mappings on this node may hold stores for blocks without a page. Volumes of one
 * node: if the file is, or may be, open with O_RDWR. OPS_MMAP_LOCAL: if the kernel has got a page
 * to store into. Otherwise false: a hole gets a page first.
 */
bool stores_unseen(struct fs *fs, struct inode_state *st);
/* Makes this node one that an fsync on another node asks. Called before the kernel gets its first
 * page to store into. Waits. */
int stores_join(struct fs *fs, struct inode_state *st);
/* Returns the error of a write-back that was answered before it, or 0. `once`: clears it. */
int stores_error(struct inode_state *st, bool once);
/* data_write.c. Gives the block a page if it is a hole. Does nothing behind the end. Waits. */
int data_fill_hole(struct fs *fs, struct inode_state *st, uint64_t block);

/*
 * append.c. Call these around a call that appends, under `alloc_gate`. `more`: another call may
 * continue where it ends. append_begin returns true if the call may be the first of several, and
 * waits briefly. Call append_commits before the transaction.
 */
bool append_begin(struct fs *fs, struct inode_state *st, bool more);
void append_commits(struct fs *fs, struct inode_state *st, bool first);
void append_end(struct fs *fs, struct inode_state *st, bool more);

/* data_read.c. ops_read for a state. Updates the atime if `accessed`. */
int data_read(struct fs *fs, struct inode_state *st, uint64_t offset, size_t len,
	bool accessed, ops_sink sink, void *arg);
/* data_write.c. Latches a written page of the file to change it. `whole`: the old bytes are not
 * needed. Returns 0 or -errno. -ESTALE: the view does not stand; look again. Waits. */
int page_latch_viewed(struct fs *fs, const struct map_view *view, page_id pid,
	uint64_t incarnation, bool whole, struct guard *g);
/* data_merge.c. Writes the bytes of one page that differ from `was` to the file, but not behind its
 * end. Returns 1, -errno, or 0 if no byte differs or the bytes lie behind the end. Waits. */
int data_merge(struct fs *fs, struct inode_state *st, struct kcache_store *s,
	uint64_t offset, const uint8_t *bytes, const uint8_t *was, size_t len);
/* data_write.c. ops_write for a state, with `len` > 0. */
int64_t data_write(struct fs *fs, struct inode_state *st, const struct ops_caller *c,
	uint64_t offset, const void *buf, size_t len, unsigned append);

#endif
