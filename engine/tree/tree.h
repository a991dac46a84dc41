/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The metadata tree: a B+-tree with 16-byte keys over guards, and transactions on it.
 *
 * Readers are optimistic (latch versions, LeanStore §IV-F). Inner frames carry swizzling
 * hints to their children's frames beside the image, never in it.
 *
 * A transaction reads optimistically, remembers each leaf's latch version, and buffers its writes.
 * At commit it latches the leaves, group pages and file pages that it changes, without waiting.
 * It checks that everything it has read still stands, changes the pages, logs one record, and
 * unlatches. On any conflict commit returns -EAGAIN with everything let go, and the caller starts
 * over with txn_restart. Mini-transactions of their own make room for inserts (splits).
 *
 * Transactions are serializable. Each read checks all earlier ones, so a transaction never sees a
 * mixture of two states, even if it will not commit.
 */
#ifndef WEFT_TREE_H
#define WEFT_TREE_H

#include "engine/space/space.h"

struct tree;

/* Opens the tree. `root`: the page id of the root, which never changes: when the root splits, its
 * content moves down. Returns 0, or a negative errno with a text. */
int tree_open(struct tree **out, struct cache *cache, struct space *space, page_id root,
	struct weft_error *err);
void tree_close(struct tree *t);
/*
 * Connects the tree to the volume's other nodes. From now on the home of a page above the leaves
 * splits it, if that node answers. This node does the same for other nodes. Then tree_disconnect
 * ends that; it waits.
 */
void tree_connect(struct tree *t, struct net_calls *calls);
void tree_disconnect(struct tree *t);
/*
 * Has the tree note where leaves are, in a table of `size_bytes` (XStore §5;
 * docs/nodes/learned.md). Leaves are then found without the pages above them, if these are not in
 * the cache. For a volume with other nodes, before tree_connect. Call it at most once. Returns 0,
 * -ENOMEM, or -EINVAL if the size is too small for one leaf.
 */
int tree_learn(struct tree *t, uint64_t size_bytes);
struct cache *tree_cache(struct tree *t);

static inline int disk_key_compare(struct disk_key a, struct disk_key b)
{
	unsigned __int128 x = (unsigned __int128)a.high << 64 | a.low;
	unsigned __int128 y = (unsigned __int128)b.high << 64 | b.low;

	return x < y ? -1 : x > y;
}

/* Fills an empty leaf image (root of an empty tree, mkfs). */
void tree_format_root(void *image, page_id pid);
/* Inserts into a leaf image that is private to the caller (mkfs). Returns false if there is no
 * room. */
bool tree_format_insert(void *image, struct disk_key key, const void *value, size_t len);
/*
 * Checks a tree page's image by itself: magic, page id, fences, key order, slots within bounds and
 * disjoint, children in range. Returns 0, or -EUCLEAN with a text. The tree calls it once for each
 * page that it loads (invariant 9); so do fsck and the fuzzers. Never waits.
 */
int tree_check_page(const void *image, page_id pid, struct weft_error *err);

/*
 * ---- reading without a transaction
 *
 * Each call is atomic by itself. They return the item's length, -ENOENT, -ERANGE if `cap` is
 * smaller than the item, or another -errno. All wait.
 */
int tree_read(struct tree *t, struct disk_key key, void *buf, size_t cap);
/* Reads the first item with from <= key < to. *found: its key. */
int tree_next(struct tree *t, struct disk_key from, struct disk_key to,
	struct disk_key *found, void *buf, size_t cap);
/* Works as tree_next, but waits for no node that is away. Returns -EHOSTUNREACH instead. *found is
 * then the key after the missing leaf, from which the caller can go on. */
int tree_next_near(struct tree *t, struct disk_key from, struct disk_key to,
	struct disk_key *found, void *buf, size_t cap);
/* Fetches the leaf of the key, unless that must wait for a node that is away. Returns true if the
 * leaf is here. Waits for other nodes. */
bool tree_is_near(struct tree *t, struct disk_key key);
/* Reads the last item with floor <= key <= at. */
int tree_floor(struct tree *t, struct disk_key at, struct disk_key floor,
	struct disk_key *found, void *buf, size_t cap);
/*
 * Visits the items of [from, to) in order, many per leaf, each leaf as of one moment. `visit` gets
 * a private copy, and nothing is held while it runs. If it returns non-zero, the scan stops and
 * returns that. `scan_hint`: the pages should not displace others from the cache.
 */
typedef int (*tree_visit)(void *arg, struct disk_key key, const void *value, size_t len);
int tree_scan(struct tree *t, struct disk_key from, struct disk_key to, bool scan_hint,
	tree_visit visit, void *arg);
/*
 * The leaves that readings outside transactions went through, each as it was seen. All values read
 * through one tree_seen are of one moment. A reading returns -EAGAIN if an earlier leaf no longer
 * stands. It returns -E2BIG if `seen` has no room for all leaves; its content stands then.
 *
 * While tree_seen_stands returns true, none of these leaves has changed on any node. A node that
 * changes a leaf takes it out of this node's frame first. So the caller can check, under the latch
 * of a page that an item named, that the item still names it.
 *
 * `keeps`: a leaf that came from another node counts as used only by tree_seen_used, or a
 * millisecond later. A caller that has lost the leaf before then need not lose it again.
 */
#define TREE_SEEN_MAX 32
struct tree_seen {
	unsigned count;
	bool keeps;
	struct guard leaf[TREE_SEEN_MAX];
};
static inline void tree_seen_begin(struct tree_seen *seen, bool keeps)
{
	seen->count = 0;
	seen->keeps = keeps;
}
bool tree_seen_stands(const struct tree_seen *seen);
/* Tells that the caller has used the values that it read. */
void tree_seen_used(struct tree *t, const struct tree_seen *seen);
/* tree_read, tree_floor and tree_scan that note the leaves in `seen`, which may be NULL. */
int tree_read_seen(struct tree *t, struct tree_seen *seen, struct disk_key key, void *buf,
	size_t cap);
int tree_floor_seen(struct tree *t, struct tree_seen *seen, struct disk_key at,
	struct disk_key floor, struct disk_key *found, void *buf, size_t cap);
int tree_scan_seen(struct tree *t, struct tree_seen *seen, struct disk_key from,
	struct disk_key to, bool scan_hint, tree_visit visit, void *arg);

/*
 * Walks over the pages of one level in the order of keys, for a tree that may be damaged. Each
 * function may be NULL; if one returns non-zero, the walk ends with that.
 *
 * - `page`: a page of the level.
 * - `unread`: a page on the way to that level, or of it, which cannot be read (-EIO, -EUCLEAN).
 *   The walk passes over its keys.
 * - `item`: with level 0, the items of leaves, as in tree_scan.
 *
 * Returns 0 or a negative errno; that of the root, if it cannot be read. Waits.
 */
#define TREE_WALK_LEVELS 16u /* levels are below it */
struct tree_walker {
	int (*page)(void *arg, page_id pid);
	int (*unread)(void *arg, page_id pid, int why);
	tree_visit item;
	void *arg;
};
int tree_walk(struct tree *t, unsigned level, const struct tree_walker *to);

/*
 * For reading ahead. None of these waits, and none fetches a page that is here.
 *
 * tree_prefetch: fetches the leaves of the keys in the background, in one batch. At most
 * TREE_PREFETCH_MAX keys, which it sorts. Where the page above a leaf is missing, it fetches that.
 *
 * tree_prefetch_next: fetches the leaves that follow the key's leaf, as far as they have the same
 * parent, and up to `ahead` of them. Returns a key half-way, or the given one if it has none.
 *
 * tree_scan_here: works as tree_scan, as far as leaves are here. Returns -EAGAIN at the first leaf
 * that is not.
 */
#define TREE_PREFETCH_MAX 256u
bool tree_is_here(struct tree *t, struct disk_key key);
void tree_prefetch(struct tree *t, struct disk_key *keys, unsigned count);
struct disk_key tree_prefetch_next(struct tree *t, struct disk_key key, unsigned ahead);
int tree_scan_here(struct tree *t, struct disk_key from, struct disk_key to,
	tree_visit visit, void *arg);
/*
 * Gives the exclusive right to the key's leaf back within seconds. Does so if the leaf is of
 * another home and does not change any more (docs/nodes/driver.md, "Idle downgrade"). A hint. Never
 * waits.
 */
void tree_downgrade_soon(struct tree *t, struct disk_key key);
/*
 * Fetches the leaf of an item that is about to be changed exclusively, if it is not here at all.
 * Otherwise it would be fetched shared and then requested a second time. Best effort. Waits.
 */
void tree_claim(struct tree *t, struct disk_key key);
/*
 * Works as tree_claim, for a caller that is about to change these pages, too. Requests the
 * exclusive right to the pages and the leaf in one round, also to shared ones. Fewer than
 * cache_batch_max pages; `refs` has room for one more.
 */
void tree_claim_with(
	struct tree *t, struct disk_key key, struct page_ref *refs, unsigned count);
/* Keeps the leaf of the key from other nodes until `until_ns` (cache_keep); 0: no longer. Never
 * waits. */
void tree_keep(struct tree *t, struct disk_key key, uint64_t until_ns);
bool tree_keep_refused(struct tree *t, struct disk_key key);

/*
 * Notes that this node's kernel may cache values from the leaves of [from, to] (`kinds`: KCACHE_*,
 * cache.h). Values read afterwards may be given to the kernel while all of the leaves stand. Waits.
 * Returns the number of leaves, at most `max`, each in *out, or:
 *
 * - -EAGAIN: one is about to be given up; wait a little;
 * - -E2BIG.
 */
int tree_kcache(struct tree *t, struct disk_key from, struct disk_key to, unsigned kinds,
	struct cache_kcopy *out, unsigned max);
/* The kernel copy of one leaf, noted together with a reading. */
struct tree_kcopy {
	unsigned kinds;
	bool kcached;
	struct cache_kcopy leaf;
};

/*
 * Works as tree_read, but first notes `kinds` for the leaf. If e->kcached is true, the kernel may
 * cache the result, also -ENOENT, while the leaf stands. If not, the leaf is about to be given up:
 * the kernel may get the result, but not cache it. One descent, except for the first note of the
 * leaf. Waits.
 */
int tree_read_kcached(struct tree *t, struct tree_kcopy *e, struct disk_key key,
	void *buf, size_t cap);
/* Visits the inodes that a leaf may have items of. Never waits. */
typedef void (*tree_ino_visit)(void *arg, uint64_t ino);
void tree_leaf_inodes(const void *image, tree_ino_visit visit, void *arg);
/* The keys [low, high) of a leaf, present or absent. */
struct tree_leaf_range {
	struct disk_key low, high;
};
/* Returns false if the image is no leaf. */
bool tree_leaf_range(const void *image, struct tree_leaf_range *out);
/* Visits the items of a leaf in key order; `value` is valid during the call. */
typedef void (*tree_item_visit)(
	void *arg, struct disk_key key, const void *value, size_t len);
void tree_leaf_items(const void *image, tree_item_visit visit, void *arg);

/* ---- transactions ---------------------------------------------------------------- */

#define TXN_READS_MAX  256 /* leaves read */
#define TXN_WRITES_MAX 128 /* items written or deleted */
#define TXN_RUNS_MAX   48  /* runs taken and freed */
#define TXN_PAGES_MAX  24  /* file pages changed with the transaction */

struct txn;

/*
 * Begins a transaction, from a bounded pool: waits if all are in use. A task has one at a time.
 * `privileged`: the transaction frees space and may use the last pages. 0 or -errno.
 */
int txn_begin(struct tree *t, bool privileged, struct txn **out);
/*
 * Until txn_end, a wait for a file's page that another node has (txn_page) checks the transaction's
 * reads. If one no longer stands, the transaction starts over. For a caller that other nodes may
 * wait for.
 */
void txn_lets_go(struct txn *x);
/* Until txn_end: if txn_commit would wait for a node that is away, it returns -EHOSTUNREACH and
 * changes nothing. For changes that can be left out. */
void txn_only_reached(struct txn *x);
/* Ends the transaction and releases all it holds. Gives back reservations of txn_take that were not
 * committed. */
void txn_end(struct txn *x);
/*
 * Starts over after -EAGAIN: forgets reads and writes, fetches the pages that were missing, backs
 * off. The runs of txn_take stay reserved and are the caller's again. After a few restarts the
 * commits of other transactions let this one pass, for a bounded time. Waits.
 */
void txn_restart(struct txn *x);

/* Work as tree_read, tree_next and tree_floor, and see the transaction's own writes. -EAGAIN:
 * restart. */
int txn_read(struct txn *x, struct disk_key key, void *buf, size_t cap);
int txn_next(struct txn *x, struct disk_key from, struct disk_key to,
	struct disk_key *found, void *buf, size_t cap);
int txn_floor(struct txn *x, struct disk_key at, struct disk_key floor,
	struct disk_key *found, void *buf, size_t cap);

/*
 * Inserts or replaces an item. The value, at most DISK_VALUE_MAX bytes, is copied. Returns 0 or:
 *
 * - -E2BIG: more than TXN_WRITES_MAX items, or more than 256 bytes each on average;
 * - -EINVAL: the highest possible key.
 */
int txn_write(struct txn *x, struct disk_key key, const void *value, size_t len);
/* Deletes an item, if there is one. */
int txn_delete(struct txn *x, struct disk_key key);

/* Take a reserved run (space_reserve), or free pages, with this transaction. The commit drops freed
 * pages from the cache. -E2BIG: more than TXN_RUNS_MAX runs. */
int txn_take(struct txn *x, const struct space_run *run);
int txn_free(struct txn *x, page_id pid, uint32_t length, uint64_t incarnation);
/* Returns the id of this node, as in the superblock. */
unsigned txn_node(const struct txn *x);
/* Return how many more runs, and how many more items, the transaction can take. */
unsigned txn_runs_left(const struct txn *x);
unsigned txn_writes_left(const struct txn *x);
/*
 * Changes file data with the transaction: zeros or writes [offset, offset + len) of a page, whose
 * full image goes into the record. `src`: the bytes, which are not copied and must live until the
 * commit; NULL: zeros. `fresh`: the page was just reserved, and the rest is zeros. Fetches the page
 * here. Waits.
 */
int txn_page(struct txn *x, page_id pid, uint64_t incarnation, unsigned offset,
	const void *src, unsigned len, bool fresh);

/*
 * Commits. A transaction without writes only checks that its reads stand. *pos (may be NULL): the
 * record. Waits. Returns 0 or:
 *
 * - -EAGAIN: nothing was changed; restart;
 * - -ENOSPC: there is no page for a split;
 * - -E2BIG: leaves, groups and file pages together are more than MTR_PAGES_MAX;
 * - -EUCLEAN: damage, which is logged;
 * - -EROFS, -EIO.
 */
int txn_commit(struct txn *x, struct log_position *pos);

/*
 * Divides the tree at a key, if other nodes use it, too. From now on no leaf has items on both
 * sides of `at`, and none is joined over it. A node on one side then takes no leaf from nodes on
 * the other. `parents`: the same for pages above the leaves, so that splits take none either. For
 * the first keys of a range of inode numbers (disk_key_divides). Returns 0 or a negative errno.
 * Waits.
 */
int tree_divide(struct tree *t, struct disk_key at, bool parents);
/*
 * Has the home of the leaf do tree_divide with `parents`, if that is another node and it answers.
 * The right side then stays in that node's shard; tree_divide would put it into this node's.
 * Returns 0 or a negative errno. Waits.
 */
int tree_divide_there(struct tree *t, struct disk_key at);
/*
 * Joins the leaf that begins at `at` with the one on its left, if it is sparse. Its range is not in
 * use any more. Joins over no other division. The left leaf stays in its shard. Best effort.
 * Returns false if a leaf still begins at `at`, as far as known. Waits.
 */
bool tree_undivide(struct tree *t, struct disk_key at);
/*
 * Joins sparse leaves from `from` to `to`, after a reading met too many of them between two items
 * (-E2BIG). Best effort: the caller reads again. Waits.
 */
void tree_tidy(struct tree *t, struct disk_key from, struct disk_key to);

struct tree_counters {
	_Atomic uint64_t lookups, restarts, splits, merges, commits, conflicts, waits,
		grown, split_elsewhere;
	/* pages guessed to be the key's leaf: that were it; that were not; that could not be had,
	 * or not soon */
	_Atomic uint64_t guesses_right, guesses_wrong, guesses_refused;
	_Atomic uint64_t leaf_calls; /* questions to other nodes for the place of a leaf */
};
struct tree_counters *tree_counters(struct tree *t);
/* Return the number of leaves in the table of tree_learn, and its size. */
unsigned tree_learned(struct tree *t);
uint64_t tree_learned_bytes(struct tree *t);
/* Returns the number of levels, without pages that have grown in place. If the root is latched, or
 * not in the cache, it is the number that was last seen. Never waits. */
unsigned tree_height(struct tree *t);

#endif
