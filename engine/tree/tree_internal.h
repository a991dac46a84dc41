/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The declarations that the files of engine/tree share: keys as integers, page editing, descents,
 * read sets, transactions. Only this folder includes it (and its own tests).
 *
 * - page.c: one page, and nothing else
 * - descent.c: finds pages
 * - learned.c, guess.c, leaf_call.c: find leaves without the pages above them
 * - read.c: reads leaves
 * - split.c, merge.c: change the structure
 * - txn.c, txn_commit.c: transactions
 */
#ifndef WEFT_TREE_INTERNAL_H
#define WEFT_TREE_INTERNAL_H

#include "engine/tree/tree.h"

/* ---- keys ------------------------------------------------------------------------ */

typedef unsigned __int128 tree_key;

#define TREE_KEY_MAX (~(tree_key)0)

static inline tree_key tree_key_of(struct disk_key k)
{
	return (tree_key)k.high << 64 | k.low;
}

static inline struct disk_key tree_key_disk(tree_key k)
{
	return (struct disk_key){.low = (uint64_t)k, .high = (uint64_t)(k >> 64)};
}

/* Reads a key from an image that may be changing. */
static inline tree_key tree_key_load(const void *p)
{
	return (tree_key)page_load_u64((const uint8_t *)p + 8) << 64 | page_load_u64(p);
}

/* Returns true if [low, high) holds the key. A high of all ones is no bound. */
static inline bool tree_key_within(tree_key key, tree_key low, tree_key high)
{
	return key >= low && (key < high || high == TREE_KEY_MAX);
}

/* ---- pages ----------------------------------------------------------------------- */

/* The most levels of a tree, with that of the leaves: far more than a store can fill. */
#define TREE_LEVELS_MAX 16

#define NODE_HEAD_BYTES sizeof(struct disk_node)
#define NODE_MAGIC      offsetof(struct disk_node, magic)
/* level, count, begin, dead: a word */
#define NODE_COUNTS    offsetof(struct disk_node, level)
#define NODE_PID       offsetof(struct disk_node, pid)
#define NODE_LOW       offsetof(struct disk_node, low_fence)
#define NODE_HIGH      offsetof(struct disk_node, high_fence)
#define LEAF_SLOT(i)   (NODE_HEAD_BYTES + (size_t)(i) * sizeof(struct disk_leaf_slot))
#define LEAF_PLACE(i)  (LEAF_SLOT(i) + offsetof(struct disk_leaf_slot, offset))
#define LEAF_SLOTS_MAX 168u
/* bytes for slots and values */
#define LEAF_CAPACITY   (PAGE_SIZE - (unsigned)NODE_HEAD_BYTES)
#define LEAF_SLOT_BYTES ((unsigned)sizeof(struct disk_leaf_slot))
#define INNER_KEY(i)                                                                     \
	(offsetof(struct disk_inner, key) + (size_t)(i) * sizeof(struct disk_key))
#define INNER_CHILD(i)                                                                   \
	(offsetof(struct disk_inner, child) + (size_t)(i) * sizeof(uint64_t))

/* The word at NODE_COUNTS. It is loaded and stored as one. */
struct node_counts {
	uint16_t level;
	uint16_t count;
	uint16_t heap_begin;
	uint16_t heap_dead;
};

static inline struct node_counts node_counts_load(const uint8_t *image)
{
	uint64_t word = page_load_u64(image + NODE_COUNTS);
	struct node_counts c;

	memcpy(&c, &word, sizeof(c));
	return c;
}

/* The place of a value. Read optimistically it may be nonsense. */
struct leaf_place {
	uint16_t offset;
	uint16_t length;
};

static inline struct leaf_place leaf_place_load(const uint8_t *image, unsigned index)
{
	uint32_t word = page_load_u32(image + LEAF_PLACE(index));

	return (struct leaf_place){(uint16_t)word, (uint16_t)(word >> 16)};
}

static inline tree_key leaf_key_load(const uint8_t *image, unsigned index)
{
	return tree_key_load(image + LEAF_SLOT(index));
}

/* Returns the bytes that slots and values of a leaf take. */
static inline unsigned leaf_used(struct node_counts c)
{
	return c.count * LEAF_SLOT_BYTES + PAGE_SIZE - c.heap_begin - c.heap_dead;
}

/* An image that is changed by its only user. The change goes through a mini-transaction; if `page`
 * is NULL, nobody else sees the image. */
struct node_edit {
	uint8_t *image;
	struct mtr_page *page;
};

/* Search for a key. `count` must not exceed the page's bound. Safe on images that change. */
unsigned inner_search(
	const uint8_t *image, unsigned count, tree_key key); /* last <= key, or 0 */
unsigned leaf_search(
	const uint8_t *image, unsigned count, tree_key key); /* first >= key */
/* Returns true if the image is that of the leaf of the key, on that page. */
bool leaf_has_key(const uint8_t *image, page_id pid, tree_key key);

void node_init(uint8_t *image, page_id pid, unsigned level, tree_key low, tree_key high);
void edit_write(const struct node_edit *e, size_t offset, const void *src, size_t len);

/* Sets or inserts an item. The caller has checked that the result fits (leaf_used). */
void leaf_set(const struct node_edit *e, tree_key key, const void *value, unsigned len);
/* Removes the item, if there is one. */
void leaf_remove(const struct node_edit *e, tree_key key);
/* Moves items >= separator to `right`, an empty image whose fences are set here. */
void leaf_split(
	const struct node_edit *e, uint8_t *right, page_id right_pid, tree_key separator);
/* Appends all items of `right` and takes its high fence. `left` is an unshared image. */
void leaf_join(uint8_t *left, const uint8_t *right);

void inner_insert(const struct node_edit *e, unsigned at, tree_key key, page_id child);
void inner_remove(const struct node_edit *e, unsigned at);
void inner_split(
	const struct node_edit *e, uint8_t *right, page_id right_pid, unsigned at);
void inner_join(uint8_t *left, const uint8_t *right);

/* ---- the tree -------------------------------------------------------------------- */

#define TREE_STRIPES 16
#define TREE_TXNS    64
/* With other nodes there are so many times TREE_TXNS transactions: each may wait for a node that is
 * away. They are made when they are needed, and kept. */
#define TREE_TXN_POOLS 40

/* Swizzling hints of one inner frame (LeanStore §III-A without addresses in the image): likely
 * frames of its children. All are relaxed. A wrong hint costs a look-up in the translation table.
 */
struct tree_hints {
	_Atomic uint32_t frame; /* index of the owner; UINT32_MAX: none */
	_Atomic uint64_t pid;   /* the owner's PID when it got this */
	_Atomic uint32_t child[DISK_INNER_CHILDREN];
};

struct tree_stripe {
	struct tree_counters counters;
	char pad[128 - sizeof(struct tree_counters) % 128];
} __attribute__((aligned(CACHE_LINE)));

/* A page that could not be changed, since a node that is away may have it. The last one of its hash
 * is kept. */
#define TREE_REFUSED 8
struct tree_refused {
	page_id pid;
	uint64_t since_ns, last_ns;
};

struct tree {
	struct cache *cache;
	struct space *space;
	page_id root;
	const struct shards *shards; /* children are pages of these shards */
	struct net_calls *calls;     /* NULL: there are no other nodes */
	struct learned *learned;     /* the leaves that were seen; NULL: none are noted */
	uint32_t frame_count;
	_Atomic uint32_t root_frame;  /* hint */
	_Atomic uint32_t height;      /* the result of tree_height's last call */
	unsigned step;                /* disk_level_step: with 2 a page can grow where it is */
	struct rt_mutex refused_lock; /* a leaf */
	struct tree_refused refused[TREE_REFUSED];

	struct tree_hints *hints;
	uint32_t hint_count;
	struct rt_mutex hint_lock; /* allocation of hints; only tried, never waited for */
	uint32_t hint_hand;

	struct txn *_Atomic txns[TREE_TXN_POOLS]; /* of TREE_TXNS each; the first from the start */
	struct rt_mutex txns_lock;                /* held while they are made */
	_Atomic uint32_t txn_freed; /* changes when a transaction object is given back */
	_Atomic uint32_t txn_waiters;
	/* The number of the starving transaction that others let pass; 0: none. */
	_Atomic uint32_t favoured;

	struct tree_stripe stripe[TREE_STRIPES]; /* counters of tasks */
	struct tree_counters sum;                /* the sum that tree_counters made last */
};

#define tree_count(t, what)                                                              \
	atomic_fetch_add_explicit(                                                       \
		&(t)->stripe[rt_task_index() % TREE_STRIPES].counters.what, 1,           \
		memory_order_relaxed)

/* ---- descents -------------------------------------------------------------------- */

/* The end of a descent: a page at the requested level, and its parent. */
struct descent {
	struct guard node;   /* optimistic */
	struct guard parent; /* optimistic; GUARD_NONE if the node is the root */
	struct guard
		held; /* shared guard on the node after repeated losses, or GUARD_NONE */
	page_id pid;
	page_id parent_pid;
	unsigned slot;         /* of the node in its parent */
	unsigned parent_count; /* children of the parent */
	unsigned parent_level;
	struct node_counts counts;
	tree_key low, high;
	bool waited; /* a page had to be fetched or waited for */
	page_id missing;
	/* The incarnation of a leaf that was found by a guess; 0: its parent has named the page. */
	uint64_t guessed;
};

/* Finds the page of `level` that covers the key. The content seen counts only after
 * guard_valid(&d->node). Returns -ENOENT if no page of that level is on the way. Waits. */
int tree_descend(struct tree *t, tree_key key, unsigned level, struct descent *d);
/* Finds the leaf, for callers that need no page above it. If one of these is not here, guesses
 * first (guess.c). Then d->parent is GUARD_NONE. Waits. */
int tree_find_leaf(struct tree *t, tree_key key, struct descent *d);
/* The same. After several lost attempts it holds the leaf shared, for progress
 * (ScaleStore §3.2). tree_leaf_done ends it, and returns true if all that was seen stands. */
int tree_leaf_open(struct tree *t, tree_key key, unsigned attempt, struct descent *d);
bool tree_leaf_done(struct tree *t, struct descent *d);
/* Works as tree_leaf_done, but the leaf does not yet count as used. */
bool tree_leaf_close(struct tree *t, struct descent *d);
/* One try without waiting. Returns -EAGAIN with d->missing set, or PID_NONE if it lost a race. */
int tree_descend_once(struct tree *t, tree_key key, unsigned level, struct descent *d);
/* Returns true if the descent ended at a page above the leaves that is not here. (A page that has
 * grown where it is counts as a leaf.) Never waits. */
bool tree_misses_above(struct tree *t, const struct descent *d);
/* Brings in the pages that lead to the key's page, without waiting for nodes that are away:
 * -EHOSTUNREACH. Then, and with 0, *end is the end of the keys that the page covers. */
int tree_reach(struct tree *t, tree_key key, unsigned level, tree_key *end);
/* Waits, holding nothing, until the page is there and not latched. Then backs off. */
int tree_wait_page(struct tree *t, page_id pid, unsigned attempt);
/* The same for a page that is to be latched exclusively. First gets the right to it. */
int tree_wait_exclusive(struct tree *t, page_id pid, unsigned attempt);
/* The same. Returns -EHOSTUNREACH if that waits for a node that is away. */
int tree_wait_reached(struct tree *t, page_id pid, unsigned attempt);
void tree_back_off(unsigned attempt);

/* ---- leaves without the pages above (docs/nodes/learned.md) ------------------------- */

/* A page that was a leaf, with the keys between its fences. The incarnation is 0 if they are known
 * to be elsewhere now. */
struct learned_leaf {
	tree_key low, high;
	page_id pid;
	uint64_t incarnation;
};

/* The table of such leaves (learned.c). None of its functions waits. */
struct learned;
/* Makes a table of that size. Returns 0, -ENOMEM, or -EINVAL if no entry fits. */
int learned_open(struct learned **out, uint64_t size_bytes);
void learned_close(struct learned *l);
/* Return the number of entries, and the size of the table. */
unsigned learned_count(struct learned *l);
uint64_t learned_bytes(const struct learned *l);
/* Finds the entry whose keys include this one. Returns false if there is none. */
bool learned_find(struct learned *l, tree_key key, struct learned_leaf *out);
/* Finds the last entry that begins at the key or below. Returns false if there is none. */
bool learned_floor(struct learned *l, tree_key key, struct learned_leaf *out);
/* Enters a leaf. Entries that overlap it lose its keys. Of their other keys, those above the leaf
 * are from now on known to be elsewhere. */
void learned_note(struct learned *l, const struct learned_leaf *leaf);
/* Notes that the keys of the entry that learned_floor finds are elsewhere, if it is of this page.
 * learned_forget removes that entry. */
void learned_doubt(struct learned *l, tree_key key, page_id pid);
void learned_forget(struct learned *l, tree_key key, page_id pid);

/* Notes the leaf in `g`, a shared guard. It has been proven to be one. Never waits. */
void tree_note_leaf(struct tree *t, page_id pid, const struct guard *g);
/*
 * Finds the leaf by at most two guesses: the table's, and the answer of another node. `away`: the
 * pages above cannot be had, so another node is asked even if the table lacks the key. Returns 0
 * with *d, or a negative errno: find the leaf by a descent. Waits, but for no node that is away.
 */
int tree_guess_leaf(struct tree *t, tree_key key, bool away, struct descent *d);
/* Asks a node for the place of the key's leaf: *guess, without its keys. Returns 0 or a negative
 * errno. Waits; call it with nothing held. (leaf_call.c) */
int tree_ask_leaf(
	struct tree *t, unsigned home, tree_key key, struct learned_leaf *guess);
/* Serves such questions, or ends that; then it waits. */
void tree_serve_leaf(struct tree *t, bool serves);
/* Returns the page that the table names for the key. PID_NONE: none, or it is elsewhere by now. */
page_id tree_guess_page(struct tree *t, tree_key key);
/* Returns true if the shared guard `g` has the leaf of the key, found as `d` says. */
bool tree_guess_stands(const struct descent *d, const struct guard *g, tree_key key);
/*
 * For simulations: descents to leaves begin with guesses, although the pages above are here. Called
 * with each guess of a table. *known: the table has the key. The function may put any guess there
 * that a node ever made. NULL elsewhere.
 */
extern void (*tree_guess_watch)(
	struct tree *t, tree_key key, bool *known, struct learned_leaf *guess);

int tree_hints_open(struct tree *t);
void tree_hints_close(struct tree *t);
/* Notes that the children from `at` on have moved by one (`by` +1 or -1). `f` is latched
 * exclusively. */
void tree_hints_shift(struct tree *t, struct frame *f, unsigned at, int by);

/* ---- reading --------------------------------------------------------------------- */

/* The leaves that were read, each with the latch word seen. */
struct read_set {
	struct guard *seen;
	unsigned count;
	unsigned max;
	bool keeps; /* leaves do not count as used when they have been read */
};

/* Finds the leaf of the key without a descent, if it is one of the last that were read. It is as it
 * was then. Validate it like a descent. */
bool read_set_find(const struct read_set *rs, tree_key key, struct descent *d);
/* As the functions of tree.h. The leaves that are read join the set, and all of the set stands at
 * that moment. (So a transaction never sees a mixture.) Returns -EAGAIN if it does not. */
int read_exact(struct tree *t, struct read_set *rs, tree_key key, void *buf, size_t cap);
int leaf_kcache(struct tree *t, tree_key key, unsigned kinds, struct cache_kcopy *out,
	tree_key *high);
int read_next(struct tree *t, struct read_set *rs, tree_key from, tree_key to,
	tree_key *found, void *buf, size_t cap);
int read_floor(struct tree *t, struct read_set *rs, tree_key at, tree_key floor,
	tree_key *found, void *buf, size_t cap);

/* ---- transactions ---------------------------------------------------------------- */

#define TXN_ARENA_BYTES  (TXN_WRITES_MAX * 256u)
#define TXN_FAVOUR_AFTER 6u  /* restarts after which a transaction is let pass */
#define TXN_COMMIT_TRIES 16u /* within one txn_commit, while its reads stand */

struct txn_write {
	tree_key key;
	uint32_t offset; /* of the value in the arena */
	uint16_t length;
	uint16_t room; /* bytes of the arena for this write */
	bool deletes;
};

struct txn_run {
	struct space_run run;
	bool frees;
};

struct txn_page {
	page_id pid;
	uint64_t incarnation;
	const void *src;
	uint16_t offset;
	uint16_t length;
	bool fresh;
	struct mtr_page *page; /* during commit */
};

struct txn_leaf {
	struct guard guard; /* consumed by the upgrade */
	struct frame *frame;
	page_id pid;
	uint64_t seen; /* latch word */
	struct mtr_page *page;
	uint16_t first; /* the first write to this leaf */
	uint16_t count;
	bool sparse; /* worth merging afterwards */
};

struct txn {
	_Atomic uint32_t busy;
	struct tree *tree;
	uint32_t number; /* from 1 on */
	bool privileged;
	bool only_reached; /* does not wait for nodes that are away */
	bool lets_go; /* lets go of waiting for a file's page, as soon as one of its reads is
		       * changed */
	unsigned restarts;
	page_id conflict; /* page that the last attempt failed to latch, or PID_NONE */

	struct read_set reads;
	unsigned write_count;
	unsigned arena_used;
	unsigned run_count;
	unsigned page_count;
	unsigned leaf_count;

	struct guard seen[TXN_READS_MAX];
	struct txn_write write[TXN_WRITES_MAX]; /* sorted by key */
	struct txn_run run[TXN_RUNS_MAX];
	struct txn_page page[TXN_PAGES_MAX];
	struct txn_leaf leaf[MTR_PAGES_MAX];
	struct mtr mtr;
	uint8_t arena[TXN_ARENA_BYTES];
};

/* Returns the index of the first write at or above the key. */
unsigned txn_write_search(const struct txn *x, tree_key key);
int txn_pool_open(struct tree *t);
void txn_pool_close(struct tree *t);
/* Lets the favoured transaction pass, for a bounded time. Hold nothing. Waits. */
void txn_let_pass(struct txn *x);
void txn_unfavour(struct txn *x);

/* ---- structure ------------------------------------------------------------------- */

/* Returns the bytes of a leaf after the writes that fall into it, and their number in *taken. */
unsigned leaf_after(const uint8_t *image, struct node_counts counts, tree_key high,
	const struct txn_write *writes, unsigned count, unsigned *taken);
/* Splits the leaf of the first write if the writes that fall into it do not fit. Returns 0: look
 * again; -ENOSPC and others leave everything as it was. `mtr`: for its use, not begun. Waits. */
int tree_make_room(struct tree *t, const struct txn_write *writes, unsigned count,
	bool privileged, struct mtr *mtr);

/* The requests of a node to the home of a page (home.c). */
enum tree_split_kind {
	TREE_SPLIT_ROOM, /* the page of that level above the leaves splits, if it is full */
	TREE_SPLIT_GROW, /* the root, if it is of that level, gets another level */
	TREE_SPLIT_AT,   /* tree_divide, with parents */
};
/* Asks the home for it. Returns 0 if it is done, or there was no need. Waits, but not for nodes
 * that are away. Hold nothing. */
int tree_ask_split(struct tree *t, unsigned home, enum tree_split_kind kind, tree_key key,
	unsigned level, bool privileged);
/* Does it here, for another node, and asks none itself. Returns -EHOSTUNREACH if it would have to
 * wait for a node that is away. */
int tree_split_for(struct tree *t, enum tree_split_kind kind, tree_key key,
	unsigned level, bool privileged);
/* Joins the leaf of the key with a sibling, and its ancestors, if they are sparse. Best effort.
 * Waits. */
void tree_merge(struct tree *t, tree_key key, struct mtr *mtr);
static inline bool leaf_is_sparse(unsigned used)
{
	return used < LEAF_CAPACITY / 4;
}

#endif
