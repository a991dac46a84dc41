/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Committing a transaction.
 *
 * 1. Gather: find the leaf of every write optimistically, keeping the latch word seen. Make room
 * where the writes do not fit (split.c). Holds nothing, may wait.
 *
 * 2. Latch: reserve log room. Then latch leaves (only if their words still stand), allocation
 * groups and file pages in a mini-transaction. It waits for none of them (invariant 6).
 *
 * 3. Validate the reads. From here to the end nothing can fail. All latches are held, so this is
 * the moment at which the transaction takes place. (ScaleStore §8 leaves the protocol open. This is
 * optimistic validation of page versions. It also sees phantoms, since a range read is a set of
 * leaves read.)
 *
 * 4. Apply, log one record, release. Settle space, drop freed pages, merge sparse leaves.
 *
 * A lost race in step 2 is tried again here while the reads stand. After that it is the caller's.
 */
#include <errno.h>

#include "engine/tree/tree_internal.h"

#define DISCARD_BATCH 64u

/* ---- 1. gather ------------------------------------------------------------------- */

static bool latch_same(uint64_t latch_a, uint64_t latch_b)
{
	return ((latch_a ^ latch_b) & LATCH_VERSION_MASK) == 0;
}

/* Checks that all leaves of the read set stand which this transaction does not latch. Read and
 * write must have seen the latched ones at the same version. */
static bool reads_stand(const struct txn *x)
{
	for (unsigned i = 0; i < x->reads.count; i++) {
		const struct guard *seen = &x->seen[i];
		bool own = false;

		for (unsigned l = 0; l < x->leaf_count && !own; l++) {
			if (x->leaf[l].frame != seen->frame)
				continue;
			if (!latch_same(x->leaf[l].seen, seen->latch))
				return false;
			own = true;
		}
		if (!own && !guard_valid(seen))
			return false;
	}
	return true;
}

static bool leaf_needs_room(const struct txn *x, const struct descent *d, unsigned first,
	unsigned *taken, unsigned *used)
{
	*used = leaf_after(d->node.image, d->counts, d->high, &x->write[first],
		x->write_count - first, taken);
	return *used > LEAF_CAPACITY;
}

/* Finds the leaf of the write `first` and how many writes go there. */
static int gather_leaf(struct txn *x, unsigned first)
{
	for (unsigned attempt = 0; attempt < TXN_COMMIT_TRIES;) {
		struct txn_leaf *leaf = &x->leaf[x->leaf_count];
		unsigned taken, used;
		struct descent d;
		bool full;
		int rc = 0;

		if (attempt > 0 || !read_set_find(&x->reads, x->write[first].key, &d))
			rc = tree_find_leaf(x->tree, x->write[first].key, &d);
		if (rc)
			return rc;
		full = leaf_needs_room(x, &d, first, &taken, &used);
		if (!guard_valid(&d.node)) {
			attempt++;
			tree_count(x->tree, restarts);
			tree_back_off(attempt);
			continue;
		}
		if (!full) {
			*leaf = (struct txn_leaf){
				.guard = d.node,
				.frame = d.node.frame,
				.pid = d.pid,
				.seen = d.node.latch,
				.first = (uint16_t)first,
				.count = (uint16_t)taken,
				.sparse = leaf_is_sparse(used) &&
					  used < leaf_used(d.counts),
			};
			x->leaf_count++;
			return 0;
		}
		rc = tree_make_room(
			x->tree, &x->write[first], taken, x->privileged, &x->mtr);
		if (rc)
			return rc;
	}
	return -EAGAIN;
}

static int gather_pages(struct txn *x, unsigned leaves_max)
{
	unsigned first = 0;

	x->leaf_count = 0;
	while (first < x->write_count) {
		int rc = x->leaf_count < leaves_max ? gather_leaf(x, first) : -E2BIG;

		if (rc)
			return rc;
		first += x->leaf[x->leaf_count - 1].count;
	}
	return 0;
}

/* ---- 2. latch -------------------------------------------------------------------- */

static bool runs_overlap(const struct space_run *a, const struct space_run *b)
{
	return a->pid < b->pid + b->length && b->pid < a->pid + a->length;
}

/* Damaged extents may name a page twice: that must be found before anything is changed.
 */
static int runs_check(const struct txn *x)
{
	for (unsigned i = 1; i < x->run_count; i++) {
		for (unsigned k = 0; k < i; k++) {
			if (!runs_overlap(&x->run[i].run, &x->run[k].run))
				continue;
			weft_log(3, "pages %#llx + %u are named twice; run fsck.weft",
				(unsigned long long)x->run[i].run.pid,
				x->run[i].run.length);
			return -EUCLEAN;
		}
	}
	return 0;
}

/* Allocation groups that the runs lie in; at most as many as runs. */
static unsigned groups_count(const struct txn *x)
{
	page_id group[TXN_RUNS_MAX];
	unsigned count = 0;

	for (unsigned i = 0; i < x->run_count; i++) {
		page_id g = space_group_of(x->tree->space, x->run[i].run.pid);
		unsigned k = 0;

		while (k < count && group[k] != g)
			k++;
		if (k == count)
			group[count++] = g;
	}
	return count;
}

static int latch_leaves(struct txn *x)
{
	int rc = 0;

	for (unsigned i = 0; i < x->leaf_count; i++) {
		struct txn_leaf *leaf = &x->leaf[i];

		leaf->page = mtr_upgrade(&x->mtr, &leaf->guard, &rc);
		if (!leaf->page) {
			x->conflict = leaf->pid;
			return rc;
		}
	}
	return 0;
}

static int latch_runs(struct txn *x)
{
	for (unsigned i = 0; i < x->run_count; i++) {
		const struct txn_run *run = &x->run[i];
		int rc = space_check(x->tree->space, &x->mtr, run->run.pid,
			run->run.length, run->frees);

		if (rc == -EAGAIN)
			x->conflict = space_group_of(x->tree->space, run->run.pid);
		if (rc)
			return rc;
	}
	return 0;
}

static int latch_pages(struct txn *x)
{
	int rc = 0;

	for (unsigned i = 0; i < x->page_count; i++) {
		struct txn_page *page = &x->page[i];

		page->page =
			page->fresh
				? mtr_fresh(&x->mtr, page->pid, page->incarnation, &rc)
				: mtr_latch(&x->mtr, page->pid, page->incarnation, &rc);
		if (!page->page) {
			x->conflict = page->pid;
			return rc;
		}
	}
	return 0;
}

/* Everything latched and validated, or nothing held. -EAGAIN: x->conflict may name the
 * page. */
static int latch_all(struct txn *x, unsigned pages)
{
	int rc = mtr_begin(&x->mtr, x->tree->cache, pages);

	if (rc)
		return rc;
	rc = latch_leaves(x);
	/* Stale reads name runs that are free by now: no damage, so not to be judged as
	 * such. */
	if (rc == 0 && x->run_count && !reads_stand(x))
		rc = -EAGAIN;
	if (rc == 0)
		rc = latch_runs(x);
	if (rc == 0)
		rc = latch_pages(x);
	if (rc == 0 && !reads_stand(x))
		rc = -EAGAIN;
	if (rc)
		mtr_abort(&x->mtr);
	return rc;
}

static bool still_stands(void *arg)
{
	return reads_stand(arg);
}

/*
 * Holding nothing: waits until the file page can be latched, in the cache and of its incarnation.
 * It may have been evicted. Recovery or a read-ahead may have fetched an older incarnation's image.
 * An incarnation that is newer than the one that was read belongs to another file.
 */
static int wait_file_page(struct txn *x, const struct txn_page *page)
{
	struct cache *cache = x->tree->cache;
	struct guard g;
	int rc;

	if (page->fresh)
		return mtr_prepare_fresh(cache, page->pid, page->incarnation);
	rc = x->lets_go ? guard_exclusive_while(cache, page->pid, page->incarnation,
				 still_stands, x, &g)
		       : guard_exclusive(cache, page->pid, page->incarnation, &g);
	guard_release(cache, &g);
	if (rc != -ESTALE)
		return rc;
	if (!reads_stand(x))
		return -EAGAIN;
	weft_log(3, "page %#llx is newer than its extent; run fsck.weft",
		(unsigned long long)page->pid);
	return -EUCLEAN;
}

/* After a lost race, holding nothing: wait until the page can be latched. */
static int wait_conflict(struct txn *x)
{
	for (unsigned i = 0; i < x->page_count; i++)
		if (x->page[i].pid == x->conflict)
			return wait_file_page(x, &x->page[i]);
	return x->only_reached ? tree_wait_reached(x->tree, x->conflict, 0)
			       : tree_wait_exclusive(x->tree, x->conflict, 0);
}

/* If other nodes have some of the pages that the commit latches, it gets all of them at once before
 * it tries again. That is one round of messages, not one for each page. */
static int fetch_all(struct txn *x)
{
	struct page_ref refs[MTR_PAGES_MAX];
	unsigned max = MIN((unsigned)MTR_PAGES_MAX, cache_batch_max(x->tree->cache));
	unsigned count = 0;

	for (unsigned i = 0; i < x->leaf_count && count < max; i++)
		refs[count++] = (struct page_ref){.pid = x->leaf[i].pid};
	for (unsigned i = 0; i < x->run_count && count < max; i++) {
		page_id group = space_group_of(x->tree->space, x->run[i].run.pid);
		unsigned k = 0;

		while (k < count && refs[k].pid != group)
			k++;
		if (k == count)
			refs[count++] = (struct page_ref){.pid = group};
	}
	if (x->only_reached)
		return cache_fetch_reached(x->tree->cache, refs, count);
	/* an error of a page that is still needed comes again, and is reported, there */
	(void)cache_fetch_exclusive(x->tree->cache, refs, count);
	return 0;
}

/* ---- 4. apply -------------------------------------------------------------------- */

static unsigned old_length(const uint8_t *image, tree_key key, bool *present)
{
	struct node_counts c = node_counts_load(image);
	unsigned at = leaf_search(image, c.count, key);

	*present = at < c.count && leaf_key_load(image, at) == key;
	return *present ? leaf_place_load(image, at).length : 0;
}

/* Writes that shrink the leaf come first. So each step fits if the whole does. */
static void apply_leaf(struct txn *x, struct txn_leaf *leaf)
{
	struct node_edit e = {.image = leaf->page->guard.image, .page = leaf->page};

	for (unsigned growing = 0; growing < 2; growing++) {
		for (unsigned i = leaf->first; i < leaf->first + leaf->count; i++) {
			const struct txn_write *w = &x->write[i];
			bool present, grows;

			if (w->deletes) {
				if (!growing)
					leaf_remove(&e, w->key);
				continue;
			}
			grows = w->length > old_length(e.image, w->key, &present) ||
				!present;
			/* In the second round the items that have shrunk are already as they should
			 * be. */
			if (grows == (bool)growing)
				leaf_set(&e, w->key, x->arena + w->offset, w->length);
		}
	}
}

static void apply_page(const struct txn_page *page)
{
	guard_mark_data(&page->page->guard);
	page->page->full = true;
	page->page->changed |= page->fresh;
	if (page->src)
		mtr_write(page->page, page->offset, page->src, page->length);
	else
		mtr_zero(page->page, page->offset, page->length);
}

static void apply_writes(struct txn *x)
{
	struct space *sp = x->tree->space;

	for (unsigned i = 0; i < x->run_count; i++) {
		const struct txn_run *run = &x->run[i];
		int rc = run->frees
				? space_free(sp, &x->mtr, run->run.pid, run->run.length)
				: space_take(sp, &x->mtr, &run->run);

		WEFT_ASSERT(rc ==
			    0); /* latch_runs has checked it under the latch still held */
	}
	for (unsigned i = 0; i < x->leaf_count; i++)
		apply_leaf(x, &x->leaf[i]);
	for (unsigned i = 0; i < x->page_count; i++)
		apply_page(&x->page[i]);
}

static void discard_run(struct tree *t, const struct space_run *run)
{
	struct page_ref refs[DISCARD_BATCH];

	for (uint32_t done = 0; done < run->length;) {
		unsigned count = MIN(run->length - done, DISCARD_BATCH);

		for (unsigned i = 0; i < count; i++)
			refs[i] = (struct page_ref){.pid = run->pid + done + i,
				.incarnation = run->incarnation};
		cache_discard(t->cache, refs, count);
		done += count;
	}
}

/* The record exists, nothing is held: the work that follows from it. */
static void settle_after(struct txn *x, struct log_position pos)
{
	struct tree *t = x->tree;

	for (unsigned i = 0; i < x->run_count; i++) {
		const struct txn_run *run = &x->run[i];

		/* Out of the cache first: once settled the pages may be reserved anew. */
		if (run->frees)
			discard_run(t, &run->run);
		space_committed(
			t->space, run->run.pid, run->run.length, run->frees, pos.end);
		if (run->frees)
			cache_freed(t->cache, run->run.pid, run->run.incarnation,
				run->run.length);
	}
	x->run_count = 0; /* committed: no longer the transaction's to give back */
	txn_unfavour(x);
	for (unsigned i = 0; i < x->leaf_count; i++) {
		if (x->leaf[i].sparse)
			tree_merge(t, x->write[x->leaf[i].first].key, &x->mtr);
	}
}

/* ---- the whole ------------------------------------------------------------------- */

/* One attempt. -EAGAIN: nothing happened; x->conflict may name the page in the way. */
static int commit_once(struct txn *x, unsigned others, struct log_position *pos)
{
	int rc;

	x->conflict = PID_NONE;
	rc = gather_pages(x, MTR_PAGES_MAX - others);
	if (rc == 0)
		rc = latch_all(x, x->leaf_count + others);
	if (rc)
		return rc;
	apply_writes(x);
	*pos = mtr_commit(&x->mtr);
	return 0;
}

/* Conflicts are worth another attempt here only while the reads stand. The pause comes before the
 * fetch: a page that has arrived from other nodes stays only for a moment unused. */
static int commit_loop(struct txn *x, struct log_position *pos)
{
	unsigned others = groups_count(x) + x->page_count;
	int rc;

	if (others > MTR_PAGES_MAX)
		return -E2BIG;
	for (unsigned attempt = 1;; attempt++) {
		rc = commit_once(x, others, pos);
		if (rc != -EAGAIN)
			return rc;
		tree_count(x->tree, conflicts);
		tree_back_off(attempt);
		rc = fetch_all(x);
		x->leaf_count = 0;
		if (rc)
			return rc;
		if (attempt == TXN_COMMIT_TRIES || !reads_stand(x))
			return -EAGAIN;
		rc = wait_conflict(x);
		if (rc)
			return rc;
	}
}

static int validate_only(struct txn *x, struct log_position *pos)
{
	x->leaf_count = 0;
	x->conflict = PID_NONE;
	if (!reads_stand(x)) {
		tree_count(x->tree, conflicts);
		return -EAGAIN;
	}
	pos->start = pos->end = log_end(cache_log(x->tree->cache));
	return 0;
}

int txn_commit(struct txn *x, struct log_position *pos)
{
	struct log_position at = {0, 0};
	int rc = 0;

	if (x->write_count + x->run_count + x->page_count == 0) {
		rc = validate_only(x, &at);
	} else {
		txn_let_pass(x);
		rc = runs_check(x);
		if (rc == 0)
			rc = commit_loop(x, &at);
		if (rc == 0)
			settle_after(x, at);
	}
	if (rc)
		return rc;
	for (unsigned i = 0; i < x->reads.count; i++)
		guard_used(x->tree->cache, &x->seen[i]);
	tree_count(x->tree, commits);
	if (pos)
		*pos = at;
	return 0;
}
