/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The metadata tree: a B+-tree with 16-byte keys over guards, and transactions on it.
 *
 * Readers are optimistic (latch versions, LeanStore §IV-F). Inner frames carry swizzling
 * hints to their children's frames beside the image, never in it.
 *
 * A transaction reads optimistically, remembering each leaf's latch version, buffers its
 * writes, and at commit latches the leaves, group pages and file pages it changes without
 * waiting, checks that everything it read still stands, changes, logs one record,
 * unlatches. On any conflict commit returns -EAGAIN with everything let go; the caller
 * starts over with txn_restart. Room for inserts (splits) is made by mini-transactions of
 * their own. Serializable, and each read checks all earlier ones: a transaction never
 * sees a mixture of two states, even one that will not commit.
 */
#ifndef WEFT_TREE_H
#define WEFT_TREE_H

#include "engine/space/space.h"

struct tree;

/* `root`: the root's PID, which never changes (the root's content moves down on a split).
 */
int tree_open(struct tree **out, struct cache *cache, struct space *space, page_id root,
	struct weft_error *err);
void tree_close(struct tree *t);
/*
 * The volume has other nodes: pages above the leaves are split by their homes, where these can be
 * asked, and this node does it for others, until tree_disconnect, which waits.
 */
void tree_connect(struct tree *t, struct net_calls *calls);
void tree_disconnect(struct tree *t);
struct space *tree_space(struct tree *t);
struct cache *tree_cache(struct tree *t);

static inline int disk_key_compare(struct disk_key a, struct disk_key b)
{
	unsigned __int128 x = (unsigned __int128)a.high << 64 | a.low;
	unsigned __int128 y = (unsigned __int128)b.high << 64 | b.low;

	return x < y ? -1 : x > y;
}

/* Fills an empty leaf image (root of an empty tree, mkfs). */
void tree_format_root(void *image, page_id pid);
/* Inserts into a leaf image that nobody else sees (mkfs). False: no room. */
bool tree_format_insert(void *image, struct disk_key key, const void *value, size_t len);
/*
 * Checks a tree page's image by itself: magic, own PID, fences, key order, slots within
 * bounds and disjoint, children in range. 0, or -EUCLEAN with a text. Used before any
 * image from outside is trusted (the tree checks each page once per load), by fsck and
 * the fuzzers.
 */
int tree_check_page(const void *image, page_id pid, struct weft_error *err);

/* ---- reading without a transaction
 * ------------------------------------------------------------ Each is atomic by itself.
 * Lengths returned are the item's; `cap` smaller than the item: -ERANGE. All wait.
 */
int tree_read(struct tree *t, struct disk_key key, void *buf, size_t cap);
/* First item with from <= key < to: its length, its key in *found. -ENOENT. */
int tree_next(struct tree *t, struct disk_key from, struct disk_key to,
	struct disk_key *found, void *buf, size_t cap);
/*
 * tree_next without waiting for nodes that are away: -EHOSTUNREACH where one would have to be waited for.
 * Then *found is where to go on behind what is not to be had.
 */
int tree_next_near(struct tree *t, struct disk_key from, struct disk_key to,
	struct disk_key *found, void *buf, size_t cap);
/* Is the leaf of the key to be had without waiting for such nodes? It is here, then. Waits for others. */
bool tree_is_near(struct tree *t, struct disk_key key);
/* Last item with floor <= key <= at. */
int tree_floor(struct tree *t, struct disk_key at, struct disk_key floor,
	struct disk_key *found, void *buf, size_t cap);
/*
 * Visits items of [from, to) in order, many per leaf, each leaf as of one moment. `visit`
 * gets a private copy, holds nothing while it runs, and stops the scan by returning
 * non-zero, which is returned. `scan_hint`: do not let the pages wash the cache out.
 */
typedef int (*tree_visit)(void *arg, struct disk_key key, const void *value, size_t len);
int tree_scan(struct tree *t, struct disk_key from, struct disk_key to, bool scan_hint,
	tree_visit visit, void *arg);
/*
 * What readings outside transactions were derived from: the leaves, each as it was seen. All
 * that was read through one is of one moment: -EAGAIN when an earlier leaf no longer stands,
 * -E2BIG when there are more than it has room for (its content stands then, too).
 *
 * While tree_seen_stands, nothing of it has changed, on no node: whoever changes a leaf takes
 * it out of this node's frame first. So it may be asked under the latch of a page that an item
 * named, and says whether the item still names it.
 *
 * `keeps`: a leaf that came from another node counts as used only with tree_seen_used (or a
 * millisecond later), so that who lost it too early before need not lose it again.
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
/* What was derived has served its purpose. */
void tree_seen_used(struct tree *t, const struct tree_seen *seen);
/* As those without `seen`, which may be NULL. */
int tree_read_seen(struct tree *t, struct tree_seen *seen, struct disk_key key, void *buf,
	size_t cap);
int tree_floor_seen(struct tree *t, struct tree_seen *seen, struct disk_key at,
	struct disk_key floor, struct disk_key *found, void *buf, size_t cap);
int tree_scan_seen(struct tree *t, struct tree_seen *seen, struct disk_key from,
	struct disk_key to, bool scan_hint, tree_visit visit, void *arg);

/* Asks for the leaf of a key to be brought in, in the background. */
void tree_prefetch(struct tree *t, struct disk_key key);
/*
 * Gives the exclusive right to the key's leaf back within seconds, if the leaf is of another home and does
 * not change any more ("Pages at rest"). A hint. Never waits.
 */
void tree_rest(struct tree *t, struct disk_key key);
/*
 * The item is about to be changed. If its leaf is not here at all it is asked for exclusively at
 * once: it would be had shared, and then asked for a second time. Best effort. Waits.
 */
void tree_claim(struct tree *t, struct disk_key key);
/* The same for who is about to change these pages, too: what this node may not change of them and of the
 * leaf is asked for in one round, also what is here to be read. count < cache_batch_max; refs has room for one more. */
void tree_claim_with(
	struct tree *t, struct disk_key key, struct page_ref *refs, unsigned count);
/* Others do not get the leaf of the key before that moment (cache_keep; 0: they do). Never waits. */
void tree_keep(struct tree *t, struct disk_key key, uint64_t until_ns);
bool tree_keep_refused(struct tree *t, struct disk_key key);

/*
 * This node's kernel may have, from here on, what it is told from the leaves of [from, to]
 * (EXPOSE_*; cache.h). At most `max` leaves, each in *out; their number. -EAGAIN: one is
 * about to be given up, wait a little; -E2BIG. Waits. What is read afterwards, while all of
 * them stand, may be told.
 */
int tree_expose(struct tree *t, struct disk_key from, struct disk_key to, unsigned kinds,
	struct cache_exposure *out, unsigned max);
/* What is exposed of one leaf with a reading. */
struct tree_exposure {
	unsigned kinds;
	bool exposed;
	struct cache_exposure leaf;
};

/*
 * tree_read of an item, or of that there is none, with `kinds` exposed before: if so (`exposed`) what was
 * read may be told while the leaf stands. Else it may be told, not kept: the leaf is about to be
 * given up. One descent, but for the first time that anything of the leaf is exposed. Waits.
 */
int tree_read_exposed(struct tree *t, struct tree_exposure *e, struct disk_key key,
	void *buf, size_t cap);
/* The inodes of which a leaf may say something. */
typedef void (*tree_ino_visit)(void *arg, uint64_t ino);
void tree_leaf_inodes(const void *image, tree_ino_visit visit, void *arg);
/* The keys [low, high) that a leaf answers for, present or absent. */
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

/* From a bounded pool: waits when all are in use; one per task at a time. `privileged`:
 * the transaction frees space and may use the last pages. */
int txn_begin(struct tree *t, bool privileged, struct txn **out);
/* Until txn_end: while it waits for a file's page (txn_page) that another node has it looks whether
 * what was read stands, and starts over if not. For who may be waited for itself. */
void txn_lets_go(struct txn *x);
/* Until txn_end: txn_commit ends with -EHOSTUNREACH, and nothing is changed, where it would wait for a node
 * that is away. For what can be done without. */
void txn_only_reached(struct txn *x);
/* Lets go of everything; gives back reservations handed to txn_take that did not commit.
 */
void txn_end(struct txn *x);
/* After -EAGAIN: forgets reads and writes, fetches what was missing, backs off. Waits.
 * The runs of txn_take stay reserved and are the caller's again. After a few restarts the
 * other transactions' commits let this one pass, for a bounded time. */
void txn_restart(struct txn *x);

/* As tree_*, seeing the transaction's own writes. -EAGAIN: restart. */
int txn_read(struct txn *x, struct disk_key key, void *buf, size_t cap);
int txn_next(struct txn *x, struct disk_key from, struct disk_key to,
	struct disk_key *found, void *buf, size_t cap);
int txn_floor(struct txn *x, struct disk_key at, struct disk_key floor,
	struct disk_key *found, void *buf, size_t cap);

/* Insert or replace; the value (<= DISK_VALUE_MAX) is copied. -E2BIG past TXN_WRITES_MAX,
 * or when the values are more than 256 bytes each on average. The highest key of all is
 * -EINVAL. */
int txn_write(struct txn *x, struct disk_key key, const void *value, size_t len);
int txn_delete(struct txn *x, struct disk_key key); /* absent is fine */

/* Take a reserved run (space_reserve) / free pages, with this transaction. After a
 * commit, freed pages are dropped from the cache. -E2BIG past the bounds. */
int txn_take(struct txn *x, const struct space_run *run);
int txn_free(struct txn *x, page_id pid, uint32_t length, uint64_t incarnation);
/* The id of the node that it runs on, as in the superblock. */
unsigned txn_node(const struct txn *x);
/* How many more runs, and how many more items, it can take. */
unsigned txn_runs_left(const struct txn *x);
unsigned txn_writes_left(const struct txn *x);
/*
 * Changes file data with the transaction (its full image goes into the record): zero or
 * write [offset, offset + len) of a page. src NULL: zeros; not copied, must live until
 * commit. `fresh`: just reserved, the rest is zeros. The page is fetched here (waits).
 */
int txn_page(struct txn *x, page_id pid, uint64_t incarnation, unsigned offset,
	const void *src, unsigned len, bool fresh);

/*
 * 0: done, *pos (may be NULL) is the record. Without writes it only validates what was
 * read. -EAGAIN: nothing happened. -ENOSPC: no page for a split. -E2BIG: leaves, groups
 * and file pages together are more than MTR_PAGES_MAX. -EUCLEAN: damage (logged). -EROFS,
 * -EIO.
 */
int txn_commit(struct txn *x, struct log_position *pos);

/*
 * Where other nodes use the tree, too: from now on no leaf has items on both sides of `at`,
 * and none is joined over it, so what one node does on its side takes nothing from those on
 * the other. `parents`: nor has a page above the leaves, so that splits take nothing,
 * either. For the first keys of a range of inode numbers (disk_key_divides). 0, or why
 * not. Both wait.
 */
int tree_divide(struct tree *t, struct disk_key at, bool parents);
/*
 * tree_divide with `parents`, by the home of the leaf if that is another node and answers: so what is
 * on the right stays in that node's shard, where tree_divide puts it into one of this node's.
 */
int tree_divide_there(struct tree *t, struct disk_key at);
/*
 * The range is in use no more: what begins at `at` is joined with what is on the left of it, if it is
 * sparse, and no other division is joined over. What is on the left stays in its shard. Best effort.
 * False: a leaf begins there still, as far as can be seen.
 */
bool tree_undivide(struct tree *t, struct disk_key at);
/*
 * Too many leaves were met from one item to the next (-E2BIG): those from `from` to `to` that are sparse
 * are joined. Best effort: who met them looks again. Waits.
 */
void tree_tidy(struct tree *t, struct disk_key from, struct disk_key to);

struct tree_counters {
	_Atomic uint64_t lookups, restarts, splits, merges, commits, conflicts, waits,
		grown, split_elsewhere;
};
struct tree_counters *tree_counters(struct tree *t);
/* Levels, without what has grown where it is. Never waits: as last seen here where the root is
 * latched, or not in the cache. */
unsigned tree_height(struct tree *t);

#endif
