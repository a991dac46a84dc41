/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transactions, up to their commit: the pool, reads, buffered writes.
 *
 * A transaction holds no latch between calls. Each leaf that it reads joins its read set. At that
 * moment everything that it has read so far must still stand. So it never computes with a mixture
 * of two states. Its objects have fixed room, and their number is limited (invariant 10).
 */
#include <errno.h>

#include "engine/tree/tree_internal.h"

/* How long others let a starving transaction pass, at most: it may itself wait for
 * something that one of them holds. */
#define FAVOUR_PATIENCE_NS 20000000ull

/* ---- pool ------------------------------------------------------------------------ */

static int pool_make(struct tree *t, unsigned pool)
{
	struct txn *txns = rt_alloc(TREE_TXNS * sizeof(*txns));

	if (!txns)
		return -ENOMEM;
	for (unsigned i = 0; i < TREE_TXNS; i++) {
		txns[i].tree = t;
		txns[i].number = pool * TREE_TXNS + i + 1;
	}
	atomic_store_explicit(&t->txns[pool], txns, memory_order_release);
	return 0;
}

static struct txn *pool_at(struct tree *t, unsigned pool)
{
	return atomic_load_explicit(&t->txns[pool], memory_order_acquire);
}

int txn_pool_open(struct tree *t)
{
	return pool_make(t, 0);
}

void txn_pool_close(struct tree *t)
{
	for (unsigned p = 0; p < TREE_TXN_POOLS; p++) {
		struct txn *txns = pool_at(t, p);

		for (unsigned i = 0; txns && i < TREE_TXNS; i++)
			WEFT_ASSERT(!atomic_load_explicit(
				&txns[i].busy, memory_order_acquire));
		rt_free(txns);
		atomic_store_explicit(&t->txns[p], NULL, memory_order_relaxed);
	}
}

static struct txn *pool_take_from(struct txn *txns)
{
	unsigned start = rt_task_index();

	for (unsigned i = 0; i < TREE_TXNS; i++) {
		struct txn *x = &txns[(start + i) % TREE_TXNS];
		uint32_t idle = 0;

		/* seq_cst: see txn_begin. */
		if (!atomic_load_explicit(&x->busy, memory_order_seq_cst) &&
			atomic_compare_exchange_strong_explicit(&x->busy, &idle, 1,
				memory_order_acquire, memory_order_relaxed))
			return x;
	}
	return NULL;
}

static struct txn *pool_take(struct tree *t)
{
	struct txn *x = NULL;

	for (unsigned p = 0; !x && p < TREE_TXN_POOLS && pool_at(t, p); p++)
		x = pool_take_from(pool_at(t, p));
	return x;
}

/* Takes one of another pool, unless other tasks have just made a pool or given theirs back. Returns
 * NULL if there is no more. */
static struct txn *pool_take_more(struct tree *t)
{
	struct txn *x;
	unsigned p = 1;

	if (!cache_has_peers(t->cache))
		return NULL;
	rt_mutex_lock(&t->txns_lock);
	x = pool_take(t);
	while (p < TREE_TXN_POOLS && pool_at(t, p))
		p++;
	if (!x && p < TREE_TXN_POOLS && pool_make(t, p) == 0)
		x = pool_take_from(pool_at(t, p));
	rt_mutex_unlock(&t->txns_lock);
	return x;
}

/* Forgets reads and writes; fields that need not be zeroed stay. */
static void txn_clear(struct txn *x)
{
	x->reads = (struct read_set){.seen = x->seen, .max = TXN_READS_MAX};
	x->write_count = 0;
	x->arena_used = 0;
	x->run_count = 0;
	x->page_count = 0;
	x->leaf_count = 0;
	x->conflict = PID_NONE;
}

int txn_begin(struct tree *t, bool privileged, struct txn **out)
{
	struct txn *x = pool_take(t);

	if (!x)
		x = pool_take_more(t);
	while (!x) {
		uint32_t seen = atomic_load_explicit(&t->txn_freed, memory_order_acquire);

		/* Announce first, look again, then wait. txn_end does it the other way round, all
		 * in one order. So one of the two sees the other. */
		atomic_fetch_add_explicit(&t->txn_waiters, 1, memory_order_seq_cst);
		x = pool_take(t);
		if (!x)
			rt_wait(&t->txn_freed, seen, RT_FOREVER);
		atomic_fetch_sub_explicit(&t->txn_waiters, 1, memory_order_relaxed);
		if (!x)
			x = pool_take(t);
	}
	txn_clear(x);
	x->privileged = privileged;
	x->lets_go = x->only_reached = false;
	x->restarts = 0;
	*out = x;
	return 0;
}

void txn_lets_go(struct txn *x)
{
	x->lets_go = true;
}

void txn_only_reached(struct txn *x)
{
	x->only_reached = true;
}

void txn_end(struct txn *x)
{
	struct tree *t = x->tree;

	for (unsigned i = 0; i < x->run_count; i++) {
		if (!x->run[i].frees)
			space_unreserve(t->space, &x->run[i].run);
	}
	x->run_count = 0;
	txn_unfavour(x);
	atomic_store_explicit(&x->busy, 0, memory_order_seq_cst);
	if (atomic_load_explicit(&t->txn_waiters, memory_order_seq_cst)) {
		atomic_fetch_add_explicit(&t->txn_freed, 1, memory_order_release);
		rt_wake(&t->txn_freed, 1);
	}
}

/* ---- starvation ------------------------------------------------------------------ */

static void txn_favour(struct txn *x)
{
	uint32_t nobody = 0;

	atomic_compare_exchange_strong_explicit(&x->tree->favoured, &nobody, x->number,
		memory_order_relaxed, memory_order_relaxed);
}

void txn_unfavour(struct txn *x)
{
	uint32_t me = x->number;

	if (atomic_load_explicit(&x->tree->favoured, memory_order_relaxed) != me)
		return;
	atomic_store_explicit(&x->tree->favoured, 0, memory_order_release);
	rt_wake(&x->tree->favoured, INT32_MAX);
}

void txn_let_pass(struct txn *x)
{
	uint32_t who = atomic_load_explicit(&x->tree->favoured, memory_order_relaxed);
	uint64_t deadline;

	if (likely(who == 0 || who == x->number))
		return;
	deadline = rt_now_ns() + FAVOUR_PATIENCE_NS;
	tree_count(x->tree, waits);
	while (atomic_load_explicit(&x->tree->favoured, memory_order_acquire) == who) {
		if (rt_wait(&x->tree->favoured, who, deadline) == -ETIMEDOUT)
			break;
		if (rt_now_ns() >= deadline)
			break;
	}
}

void txn_restart(struct txn *x)
{
	page_id conflict = x->conflict;

	x->restarts++;
	txn_clear(x);
	if (x->restarts >= TXN_FAVOUR_AFTER)
		txn_favour(x);
	/* The next attempt meets any error of that page, and reports it. */
	(void)tree_wait_page(x->tree, conflict, MIN(x->restarts, 12u));
}

/* ---- own writes ------------------------------------------------------------------ */

unsigned txn_write_search(const struct txn *x, tree_key key)
{
	unsigned low = 0, high = x->write_count;

	while (low < high) {
		unsigned middle = (low + high) / 2;

		if (x->write[middle].key < key)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

static struct txn_write *txn_write_of(struct txn *x, tree_key key)
{
	unsigned at = txn_write_search(x, key);

	return at < x->write_count && x->write[at].key == key ? &x->write[at] : NULL;
}

static int txn_write_value(
	const struct txn *x, const struct txn_write *w, void *buf, size_t cap)
{
	if (w->length > cap)
		return -ERANGE;
	memcpy(buf, x->arena + w->offset, w->length);
	return w->length;
}

/* The key's entry among the writes, with room for `len` bytes. */
static int txn_write_enter(
	struct txn *x, tree_key key, size_t len, struct txn_write **out)
{
	unsigned at = txn_write_search(x, key);
	struct txn_write *w = &x->write[at];
	bool known = at < x->write_count && w->key == key;

	if (!known && x->write_count == TXN_WRITES_MAX)
		return -E2BIG;
	if ((!known || w->room < len) && x->arena_used + len > TXN_ARENA_BYTES)
		return -E2BIG;
	if (!known) {
		memmove(w + 1, w, (x->write_count - at) * sizeof(*w));
		*w = (struct txn_write){.key = key};
		x->write_count++;
	}
	if (w->room < len) {
		w->offset = x->arena_used;
		w->room = (uint16_t)len;
		x->arena_used += (unsigned)len;
	}
	*out = w;
	return 0;
}

int txn_write(struct txn *x, struct disk_key key, const void *value, size_t len)
{
	struct txn_write *w;
	int rc;

	if (len > DISK_VALUE_MAX || tree_key_of(key) == TREE_KEY_MAX)
		return -EINVAL;
	rc = txn_write_enter(x, tree_key_of(key), len, &w);
	if (rc)
		return rc;
	w->deletes = false;
	w->length = (uint16_t)len;
	if (len > 0)
		memcpy(x->arena + w->offset, value, len);
	return 0;
}

int txn_delete(struct txn *x, struct disk_key key)
{
	struct txn_write *w;
	int rc = txn_write_enter(x, tree_key_of(key), 0, &w);

	if (rc)
		return rc;
	w->deletes = true;
	w->length = 0;
	return 0;
}

/* ---- reads ----------------------------------------------------------------------- */

int txn_read(struct txn *x, struct disk_key key, void *buf, size_t cap)
{
	struct txn_write *w = txn_write_of(x, tree_key_of(key));

	if (w)
		return w->deletes ? -ENOENT : txn_write_value(x, w, buf, cap);
	return read_exact(x->tree, &x->reads, tree_key_of(key), buf, cap);
}

/* The tree's next item that the transaction has not written itself. An item of the tree that is
 * longer than `cap`, but hidden by a write, must not end the search. Hence there is room for any.
 */
static int next_unwritten(
	struct txn *x, tree_key from, tree_key to, tree_key *found, void *any)
{
	for (;;) {
		int rc = read_next(
			x->tree, &x->reads, from, to, found, any, DISK_VALUE_MAX);

		if (rc < 0 || !txn_write_of(x, *found))
			return rc;
		from = *found + 1;
	}
}

static int floor_unwritten(
	struct txn *x, tree_key at, tree_key floor, tree_key *found, void *any)
{
	for (;;) {
		int rc = read_floor(
			x->tree, &x->reads, at, floor, found, any, DISK_VALUE_MAX);

		if (rc < 0 || !txn_write_of(x, *found))
			return rc;
		if (*found == 0)
			return -ENOENT;
		at = *found - 1;
	}
}

/* The nearer of the tree's item (length r, in `any`) and the transaction's own. */
static int take_nearer(struct txn *x, const struct txn_write *own, bool own_first, int rc,
	tree_key key, const void *any, struct disk_key *found, void *buf, size_t cap)
{
	if (own && (rc < 0 || own_first)) {
		*found = tree_key_disk(own->key);
		return txn_write_value(x, own, buf, cap);
	}
	if (rc < 0)
		return rc;
	*found = tree_key_disk(key);
	if ((size_t)rc > cap)
		return -ERANGE;
	memcpy(buf, any, (size_t)rc);
	return rc;
}

int txn_next(struct txn *x, struct disk_key from, struct disk_key to,
	struct disk_key *found, void *buf, size_t cap)
{
	tree_key low = tree_key_of(from), high = tree_key_of(to), key = 0;
	unsigned at = txn_write_search(x, low);
	uint8_t any[DISK_VALUE_MAX];
	const struct txn_write *own;
	int rc = next_unwritten(x, low, high, &key, any);

	if (rc < 0 && rc != -ENOENT)
		return rc;
	while (at < x->write_count && x->write[at].deletes)
		at++;
	own = at < x->write_count && x->write[at].key < high ? &x->write[at] : NULL;
	return take_nearer(x, own, own && own->key < key, rc, key, any, found, buf, cap);
}

int txn_floor(struct txn *x, struct disk_key at, struct disk_key floor,
	struct disk_key *found, void *buf, size_t cap)
{
	tree_key high = tree_key_of(at), low = tree_key_of(floor), key = 0;
	unsigned end =
		high == TREE_KEY_MAX ? x->write_count : txn_write_search(x, high + 1);
	uint8_t any[DISK_VALUE_MAX];
	const struct txn_write *own;
	int rc = floor_unwritten(x, high, low, &key, any);

	if (rc < 0 && rc != -ENOENT)
		return rc;
	while (end > 0 && x->write[end - 1].deletes)
		end--;
	own = end > 0 && x->write[end - 1].key >= low ? &x->write[end - 1] : NULL;
	return take_nearer(x, own, own && own->key > key, rc, key, any, found, buf, cap);
}

/* ---- space and file pages -------------------------------------------------------- */

int txn_take(struct txn *x, const struct space_run *run)
{
	if (x->run_count == TXN_RUNS_MAX)
		return -E2BIG;
	x->run[x->run_count++] = (struct txn_run){.run = *run};
	return 0;
}

int txn_free(struct txn *x, page_id pid, uint32_t length, uint64_t incarnation)
{
	if (x->run_count == TXN_RUNS_MAX)
		return -E2BIG;
	x->run[x->run_count++] = (struct txn_run){
		.run = {.pid = pid, .length = length, .incarnation = incarnation},
		.frees = true,
	};
	return 0;
}

unsigned txn_node(const struct txn *x)
{
	return store_superblock(cache_store(x->tree->cache))->node;
}

unsigned txn_runs_left(const struct txn *x)
{
	return TXN_RUNS_MAX - x->run_count;
}

unsigned txn_writes_left(const struct txn *x)
{
	return TXN_WRITES_MAX - x->write_count;
}

int txn_page(struct txn *x, page_id pid, uint64_t incarnation, unsigned offset,
	const void *src, unsigned len, bool fresh)
{
	int rc;

	if (offset > PAGE_SIZE || len > PAGE_SIZE - offset)
		return -EINVAL;
	if (x->page_count == TXN_PAGES_MAX)
		return -E2BIG;
	for (unsigned i = 0; i < x->page_count; i++) {
		if (x->page[i].pid == pid)
			fresh = false; /* the first change to it has made it so */
	}
	if (fresh)
		rc = mtr_prepare_fresh(x->tree->cache, pid, incarnation);
	else
		rc = cache_fetch_exclusive(x->tree->cache,
			&(struct page_ref){.pid = pid, .incarnation = incarnation}, 1);
	if (rc)
		return rc;
	x->page[x->page_count++] = (struct txn_page){
		.pid = pid,
		.incarnation = incarnation,
		.src = src,
		.offset = (uint16_t)offset,
		.length = (uint16_t)len,
		.fresh = fresh,
	};
	return 0;
}
