/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernel copies of this node's pages (docs/nodes/kernel-cache.md).
 *
 * Keeps invariant 5: a page is given up, or its frame evicted, only when kernel_free() allows it
 * under the frame's latch. Tasks of this file drop kernel copies, with no latch held; a request for
 * the page is tried again later. Between the drop and the giving up, nothing is kernel-cached.
 *
 * The kernel may have unreported stores in a page (KCACHE_STORES). Such a page is dropped also
 * before it is given up to SHARED. The drop makes the kernel write the stores back. They are found
 * by the file's block, and go straight to the frame (cache_stores). The frame cannot leave
 * meanwhile, and no look-up is needed that another node could block.
 *
 * A frame's kernel copy is one word, changed by compare and swap. A task that lets the kernel cache
 * has the frame latched, at least shared. A task that begins a drop has it latched exclusively,
 * except for a page that has moved within a file. The generation distinguishes a kernel copy from
 * earlier ones, and from those of other pages of the frame.
 */
#include "engine/cache/cache_internal.h"

#define KINDS_BITS   6u
#define KINDS        0x3full               /* KCACHE_* */
#define MORE         (KINDS << KINDS_BITS) /* those that came with items, while dropping */
#define OF_BLOCK     ((uint64_t)(KCACHE_BLOCK | KCACHE_STORES | KCACHE_COPY))
#define DROPPING     (1ull << 12) /* nothing is kernel-cached */
#define QUEUED       (1ull << 13) /* a drop is under way: `kinds` are those that it drops */
#define GENERATION   (1ull << 32)
#define DROPS_MAX    64u
#define TASKS_MAX    4096u /* one for each drop, and those whose drops were begun anew */
#define ABANDONED_NS 2000000ull /* a drop is over after so long, if no task came for the page */
#define STORES_NS                                                                        \
	300000ull /* so long a task that wants to store has, once the page is there */

_Static_assert((KCACHE_ALL & ~KINDS) == 0, "kinds fit their bits");

struct kcopy {
	_Atomic uint64_t word;
	_Atomic uint64_t ino, block; /* KCACHE_BLOCK: where the page is */
	_Atomic uint64_t dropped_ns; /* when the last drop was done */
	_Atomic uint64_t stores_ns;  /* KCACHE_STORES: since when */
	uint32_t next;               /* in the index: 1 + frame; under the kernel's lock */
	uint32_t bucket;             /* 1 + where it is in it; 0: nowhere */
};

struct drop {
	struct drop *next;
	uint32_t frame, generation;
	struct cache_kcached what;
	uint8_t image[PAGE_SIZE]; /* of a leaf */
};

/*
 * Drops of one sort: of leaves, or of blocks alone. A drop of blocks may wait for a call that waits
 * for a leaf (docs/nodes/mappings.md, "Mappings"). So the two sorts share nothing, and there are as
 * many tasks as drops. Tasks whose drops were begun anew are not among these.
 */
struct drop_queue {
	struct cache *c;
	struct drop *drops, *unused, *first, **end; /* under the kernel's lock */
	unsigned queued, idle, tasks;               /* as well */
	_Atomic uint32_t word;                      /* changes with the queue and at stop */
	struct rt_task *task[TASKS_MAX];
};

struct cache_kernel {
	const struct cache_kernel_ops *ops;
	void *owner;
	struct kcopy *kcopy;  /* by frame */
	_Atomic bool on;      /* there is a kernel */
	struct rt_mutex lock; /* a leaf: the lists below, the index */
	uint32_t *index;      /* frames of blocks with stores, and of some without */
	struct drop_queue leaves, blocks;
	bool closed; /* nothing is queued any more */
	struct kernel_counters counters;
};

static struct kcopy *kcopy_of(struct cache *c, const struct frame *f)
{
	return &c->kernel->kcopy[f - c->frames.frame];
}

static uint32_t generation_of(uint64_t word)
{
	return (uint32_t)(word >> 32);
}

/* ---- where the kernel may have stores ---------------------------------------------------- */

static uint32_t block_bucket(const struct cache *c, uint64_t ino, uint64_t block)
{
	uint64_t h = (ino * 0x9e3779b97f4a7c15ull + block) * 0x9e3779b97f4a7c15ull;

	return (uint32_t)(h >> 32) % c->frames.count;
}

/* Under the lock. */
static void index_remove(struct cache *c, struct kcopy *x)
{
	uint32_t *at = &c->kernel->index[x->bucket - 1];

	while (&c->kernel->kcopy[*at - 1] != x)
		at = &c->kernel->kcopy[*at - 1].next;
	*at = x->next;
	x->bucket = 0;
}

static bool is_at(const struct kcopy *x, uint64_t ino, uint64_t block)
{
	return atomic_load_explicit(&x->ino, memory_order_relaxed) == ino &&
	       atomic_load_explicit(&x->block, memory_order_relaxed) == block;
}

/* The frame, latched, has the block. A page that had it before was freed meanwhile. The kernel has
 * nothing of that page, since it would not have asked otherwise. */
static void index_add(
	struct cache *c, const struct frame *f, uint64_t ino, uint64_t block)
{
	struct cache_kernel *k = c->kernel;
	struct kcopy *x = kcopy_of(c, f);
	uint32_t bucket = block_bucket(c, ino, block) + 1;

	rt_mutex_lock(&k->lock);
	if (x->bucket)
		index_remove(c, x);
	for (uint32_t at = k->index[bucket - 1], next; at; at = next) {
		next = k->kcopy[at - 1].next;
		if (is_at(&k->kcopy[at - 1], ino, block))
			index_remove(c, &k->kcopy[at - 1]);
	}
	x->bucket = bucket;
	x->next = k->index[bucket - 1];
	k->index[bucket - 1] = cache_frame_index(c, f) + 1;
	rt_mutex_unlock(&k->lock);
}

static bool has_block(
	const struct kcopy *x, unsigned kind, uint64_t ino, uint64_t block)
{
	return (atomic_load_explicit(&x->word, memory_order_acquire) & kind) &&
	       is_at(x, ino, block);
}

/* `kind`: STORES or COPY. */
static struct frame *index_find(
	struct cache *c, unsigned kind, uint64_t ino, uint64_t block)
{
	struct cache_kernel *k = c->kernel;
	uint32_t at;

	rt_mutex_lock(&k->lock);
	at = k->index[block_bucket(c, ino, block)];
	while (at && !has_block(&k->kcopy[at - 1], kind, ino, block))
		at = k->kcopy[at - 1].next;
	rt_mutex_unlock(&k->lock);
	return at ? &c->frames.frame[at - 1] : NULL;
}

int cache_stores(struct cache *c, uint64_t ino, uint64_t block, unsigned from,
	const void *bytes, size_t len)
{
	struct frame *f = index_find(c, KCACHE_STORES, ino, block);
	struct guard g = {.frame = f, .kind = GUARD_EXCLUSIVE};
	page_id pid;

	if (!f)
		return -ENOENT;
	g.image = frame_image(c, f);
	pid = atomic_load_explicit(&f->pid, memory_order_relaxed);
	if (pid == PID_NONE || !latch_exclusive(c, f, pid))
		return -ENOENT; /* freed */
	if (!has_block(kcopy_of(c, f), KCACHE_STORES, ino, block) ||
		!mode_allows(f, PAGE_EXCLUSIVE)) { /* the kernel is gone */
		latch_release_exclusive(c, f, false);
		return -ENOENT;
	}
	guard_store(&g, from, bytes, len);
	guard_release_dirty(c, &g, false);
	return 0;
}

/*
 * Without the latch. Its holder may be waiting for another node, which waits for the drop that
 * brings this task here. The image here is changed only after the kernel has dropped the page, or
 * by bytes that the kernel has already.
 */
bool cache_copied(struct cache *c, uint64_t ino, uint64_t block, void *out)
{
	struct frame *f = index_find(c, KCACHE_COPY, ino, block);

	if (!f)
		return false;
	page_copy_out(out, frame_image(c, f), PAGE_SIZE);
	atomic_thread_fence(memory_order_acquire);
	return has_block(kcopy_of(c, f), KCACHE_COPY, ino, block);
}

/* ---- noting -------------------------------------------------------------------------- */

/* The page is somewhere else in the kernel's cache already. */
static bool kcopy_is_elsewhere(const struct kcopy *x, uint64_t word, unsigned kinds,
	uint64_t ino, uint64_t block)
{
	return (kinds & word & KCACHE_BLOCK) &&
	       (atomic_load_explicit(&x->ino, memory_order_relaxed) != ino ||
		       atomic_load_explicit(&x->block, memory_order_relaxed) != block);
}

/* Returns true if something may be kernel-cached. A drop that no task has come for is over after a
 * while, also if items have brought kinds since. */
static bool may_kcache(const struct kcopy *x, uint64_t word)
{
	if (likely(!(word & DROPPING)))
		return true;
	return !(word & QUEUED) &&
	       rt_now_ns() > atomic_load_explicit(&x->dropped_ns, memory_order_relaxed) +
				     ABANDONED_NS;
}

int guard_kcache(struct cache *c, const struct guard *g, unsigned kinds, uint64_t ino,
	uint64_t block, struct cache_kcopy *out)
{
	struct kcopy *x = kcopy_of(c, g->frame);
	uint64_t word = atomic_load_explicit(&x->word, memory_order_acquire), next;

	WEFT_ASSERT(g->kind == GUARD_SHARED || g->kind == GUARD_EXCLUSIVE);
	WEFT_ASSERT(!(kinds & KCACHE_STORES) || g->kind == GUARD_EXCLUSIVE);
	do {
		if (!may_kcache(x, word))
			return -EAGAIN;
		if (unlikely(kcopy_is_elsewhere(x, word, kinds, ino, block))) {
			(void)kernel_free(c, g->frame, PAGE_INVALID);
			return -EAGAIN;
		}
		if (kinds & ~word & KCACHE_BLOCK) {
			atomic_store_explicit(&x->ino, ino, memory_order_relaxed);
			atomic_store_explicit(&x->block, block, memory_order_relaxed);
		}
		next = (word & ~DROPPING) | kinds;
	} while (next != word &&
		 !atomic_compare_exchange_weak_explicit(&x->word, &word, next,
			 memory_order_seq_cst, memory_order_acquire));
	if (kinds & KCACHE_STORES)
		atomic_store_explicit(&x->stores_ns, rt_now_ns(), memory_order_relaxed);
	if (kinds & (KCACHE_STORES | KCACHE_COPY))
		index_add(c, g->frame, ino, block);
	if (out)
		*out = (struct cache_kcopy){
			cache_frame_index(c, g->frame), generation_of(next)};
	return 0;
}

/* While the guard stands no task has had the latch and changed the page. So a read after the word
 * counts as a read after guard_kcache. A drop that has begun meanwhile has another generation. */
bool guard_kcached(struct cache *c, const struct guard *g, unsigned kinds,
	struct cache_kcopy *out)
{
	uint64_t word = atomic_load_explicit(
		&kcopy_of(c, g->frame)->word, memory_order_acquire);

	if ((word & (kinds | DROPPING)) != kinds)
		return false;
	*out = (struct cache_kcopy){
		cache_frame_index(c, g->frame), generation_of(word)};
	return true;
}

bool cache_kcopy_stands(struct cache *c, const struct cache_kcopy *e)
{
	uint64_t word = atomic_load_explicit(
		&c->kernel->kcopy[e->frame].word, memory_order_seq_cst);

	return !(word & DROPPING) && generation_of(word) == e->generation;
}

void guard_kcache_like(struct cache *c, const struct guard *from, const struct guard *to)
{
	struct kcopy *x;
	uint64_t word, kinds, next;

	if (likely(!c->kernel))
		return;
	WEFT_ASSERT(from->kind == GUARD_EXCLUSIVE && to->kind == GUARD_EXCLUSIVE);
	kinds = atomic_load_explicit(
		&kcopy_of(c, from->frame)->word, memory_order_acquire);
	kinds = (kinds | kinds >> KINDS_BITS) & KINDS;
	if (!kinds)
		return;
	x = kcopy_of(c, to->frame);
	word = atomic_load_explicit(&x->word, memory_order_relaxed);
	do /* a drop under way may have seen the leaf without the items */
		next = word | (word & QUEUED ? kinds << KINDS_BITS : kinds);
	while (!atomic_compare_exchange_weak_explicit(
		&x->word, &word, next, memory_order_seq_cst, memory_order_relaxed));
}

/* ---- dropping -------------------------------------------------------------------------- */

static struct drop *drop_get(struct cache_kernel *k, struct drop_queue *q)
{
	struct drop *d;

	rt_mutex_lock(&k->lock);
	d = q->unused;
	if (d)
		q->unused = d->next;
	rt_mutex_unlock(&k->lock);
	return d;
}

static void drop_put(struct cache_kernel *k, struct drop_queue *q, struct drop *d)
{
	rt_mutex_lock(&k->lock);
	d->next = q->unused;
	q->unused = d;
	rt_mutex_unlock(&k->lock);
}

static void drop_main(void *arg);

/* Under the lock. If there is no more: those there are must do. */
static int drop_task_add(struct drop_queue *q)
{
	int rc;

	if (q->queued <= q->idle || q->tasks == TASKS_MAX)
		return 0;
	rc = rt_task_spawn(&q->task[q->tasks], "weft-drop", drop_main, q);
	if (!rc)
		q->tasks++;
	return rc;
}

/* Returns false if the kernel has gone meanwhile. */
static bool drop_queue(struct cache_kernel *k, struct drop_queue *q, struct drop *d)
{
	bool open;

	d->next = NULL;
	rt_mutex_lock(&k->lock);
	open = !k->closed;
	if (open) {
		*q->end = d;
		q->end = &d->next;
		q->queued++;
		if (atomic_load_explicit(&k->on, memory_order_relaxed))
			(void)drop_task_add(q);
	}
	rt_mutex_unlock(&k->lock);
	if (!open)
		return false;
	atomic_fetch_add_explicit(&q->word, 1, memory_order_release);
	rt_wake(&q->word, 1);
	return true;
}

/* Returns NULL if none is queued; the task is idle until it takes one. */
static struct drop *drop_take(struct cache_kernel *k, struct drop_queue *q, bool *idle)
{
	struct drop *d;

	rt_mutex_lock(&k->lock);
	d = q->first;
	if (d) {
		q->first = d->next;
		q->queued--;
	}
	if (!q->first)
		q->end = &q->first;
	if (*idle != !d)
		q->idle += d ? -1u : 1u;
	*idle = !d;
	rt_mutex_unlock(&k->lock);
	return d;
}

/* The latch is held, so nothing of the page changes. Returns false if another task has begun the
 * drop. */
static bool drop_fill(struct cache *c, struct frame *f, struct drop *d)
{
	struct kcopy *x = kcopy_of(c, f);
	uint64_t word = atomic_load_explicit(&x->word, memory_order_acquire), next;

	do {
		if ((word & QUEUED) || !(word & KINDS))
			return false;
		next = (word | DROPPING | QUEUED) + GENERATION;
	} while (!atomic_compare_exchange_weak_explicit(
		&x->word, &word, next, memory_order_seq_cst, memory_order_acquire));
	d->frame = cache_frame_index(c, f);
	d->generation = generation_of(next);
	d->what = (struct cache_kcached){
		.pid = atomic_load_explicit(&f->pid, memory_order_relaxed),
		.kinds = (unsigned)(word & KINDS),
		.ino = atomic_load_explicit(&x->ino, memory_order_relaxed),
		.block = atomic_load_explicit(&x->block, memory_order_relaxed),
		.image = d->image,
	};
	if (d->what.kinds & ~OF_BLOCK)
		page_copy_out(d->image, frame_image(c, f), PAGE_SIZE);
	return true;
}

/*
 * The kernel has dropped all pages of the file meanwhile: as after a drop of this one. The latch
 * is held exclusively, so no READ is about to be answered with it.
 */
static bool gone_with_file(struct cache *c, struct frame *f, uint64_t word)
{
	struct cache_kernel *k = c->kernel;
	struct kcopy *x = kcopy_of(c, f);

	if ((word & (KINDS | DROPPING)) != KCACHE_BLOCK ||
		k->ops->has_pages(
			k->owner, atomic_load_explicit(&x->ino, memory_order_relaxed)))
		return false;
	atomic_store_explicit(&x->dropped_ns, rt_now_ns(), memory_order_relaxed);
	return atomic_compare_exchange_strong_explicit(&x->word, &word,
		((word & ~KINDS) | DROPPING) + GENERATION, memory_order_seq_cst,
		memory_order_relaxed);
}

/* The task that waits for the page to store in it has not had the time to. */
static bool just_came(const struct kcopy *x, uint64_t word)
{
	return (word & KCACHE_STORES) &&
	       rt_now_ns() < atomic_load_explicit(&x->stores_ns, memory_order_relaxed) +
				     STORES_NS;
}

bool kernel_free(struct cache *c, struct frame *f, enum page_mode to)
{
	struct cache_kernel *k = c->kernel;
	struct drop_queue *q;
	uint64_t word;
	struct drop *d;

	if (likely(!k))
		return true;
	word = atomic_load_explicit(&kcopy_of(c, f)->word, memory_order_acquire);
	if (!(word & (to == PAGE_INVALID ? KINDS : (uint64_t)KCACHE_STORES)) ||
		!atomic_load_explicit(&k->on, memory_order_acquire))
		return true;
	if ((word & QUEUED) || just_came(kcopy_of(c, f), word))
		return false;
	if (gone_with_file(c, f, word))
		return true;
	q = word & KINDS & ~OF_BLOCK ? &k->leaves : &k->blocks;
	d = drop_get(k, q);
	if (!d) /* many are under way: later */
		return false;
	if (drop_fill(c, f, d) && drop_queue(k, q, d))
		return false;
	drop_put(k, q, d);
	return !atomic_load_explicit(&k->on, memory_order_acquire);
}

bool kernel_may_store(struct cache *c, struct frame *f)
{
	return c->kernel &&
	       (atomic_load_explicit(&kcopy_of(c, f)->word, memory_order_acquire) &
		       (uint64_t)KCACHE_STORES);
}

bool kernel_drops(struct cache *c, struct frame *f)
{
	return atomic_load_explicit(&kcopy_of(c, f)->word, memory_order_acquire) &
	       QUEUED;
}

bool kernel_has(struct cache *c, struct frame *f)
{
	return c->kernel &&
	       (atomic_load_explicit(&kcopy_of(c, f)->word, memory_order_acquire) &
		       (KINDS | QUEUED));
}

void kcopy_reset(struct cache *c, struct frame *f)
{
	struct kcopy *x;
	uint64_t word;

	if (likely(!c->kernel))
		return;
	x = kcopy_of(c, f);
	word = atomic_load_explicit(&x->word, memory_order_relaxed);
	while ((uint32_t)word && !atomic_compare_exchange_weak_explicit(&x->word, &word,
					 (uint64_t)(generation_of(word) + 1) << 32,
					 memory_order_seq_cst, memory_order_relaxed))
		;
}

/* The kernel has nothing more of the pages that the drop named. */
static void drop_done(struct cache *c, const struct drop *d)
{
	struct kcopy *x = &c->kernel->kcopy[d->frame];
	uint64_t word = atomic_load_explicit(&x->word, memory_order_relaxed), next;

	atomic_store_explicit(&x->dropped_ns, rt_now_ns(), memory_order_relaxed);
	do {
		if (generation_of(word) !=
			d->generation) /* the frame is another page's */
			return;
		next = (word & ~(KINDS | MORE | QUEUED)) | ((word & MORE) >> KINDS_BITS);
	} while (!atomic_compare_exchange_weak_explicit(
		&x->word, &word, next, memory_order_seq_cst, memory_order_relaxed));
}

/* Tells the end of the drop to the requesters that were refused the page because of it. */
static void drop_end(struct cache *c, struct drop_queue *q, struct drop *d)
{
	page_id pid = d->what.pid;

	drop_put(c->kernel, q, d);
	if (c->coherence->ops->kernel_invalidated)
		c->coherence->ops->kernel_invalidated(c->coherence, pid);
}

bool cache_drop_anew(struct cache *c, const struct cache_kcached *what)
{
	struct drop *d = what->drop;
	struct drop_queue *q =
		d->what.kinds & ~OF_BLOCK ? &c->kernel->leaves : &c->kernel->blocks;

	return drop_queue(c->kernel, q, d);
}

/* Returns false if another task has it: it may be free by now. So this uses a copy. */
static bool drop_run(struct cache_kernel *k, struct drop *d)
{
	struct cache_kcached what = d->what;
	uint8_t image[PAGE_SIZE];

	what.drop = d;
	what.image = image;
	if (what.kinds & ~OF_BLOCK)
		memcpy(image, d->image, PAGE_SIZE);
	return k->ops->drop(k->owner, &what);
}

static void drop_main(void *arg)
{
	struct drop_queue *q = arg;
	struct cache *c = q->c;
	struct cache_kernel *k = c->kernel;
	bool idle = false;

	for (;;) {
		uint32_t word = atomic_load_explicit(&q->word, memory_order_acquire);
		struct drop *d;

		/* behind the word, as in rt_goes_on */
		if (!atomic_load_explicit(&k->on, memory_order_acquire))
			return;
		d = drop_take(k, q, &idle);
		if (!d) {
			rt_wait(&q->word, word, RT_FOREVER);
			continue;
		}
		if (!drop_run(k, d))
			continue;
		atomic_fetch_add_explicit(
			&k->counters.kernel_drops, 1, memory_order_relaxed);
		drop_done(c, d);
		drop_end(c, q, d);
	}
}

/* ---- the kernel comes and goes ---------------------------------------------------------- */

static int queue_of_drops_open(struct cache *c, struct cache_kernel *k, struct drop_queue *q)
{
	q->c = c;
	q->end = &q->first;
	q->drops = rt_alloc_pages(DROPS_MAX * sizeof(*q->drops));
	for (unsigned i = 0; q->drops && i < DROPS_MAX; i++)
		drop_put(k, q, &q->drops[i]);
	return q->drops ? 0 : -ENOMEM;
}

static void queue_of_drops_stop(struct drop_queue *q)
{
	atomic_fetch_add_explicit(&q->word, 1, memory_order_release);
	rt_wake(&q->word, INT32_MAX);
	for (unsigned i = 0; i < q->tasks; i++)
		rt_task_join(q->task[i]);
	q->tasks = 0;
}

/* Ends the queued drops undone, and tells `kernel_invalidated`. */
static void queue_of_drops_end(struct cache *c, struct drop_queue *q)
{
	bool idle = false;
	struct drop *d;

	while ((d = drop_take(c->kernel, q, &idle)))
		drop_end(c, q, d);
}

static void kernel_give_back(const struct cache *c, struct cache_kernel *k)
{
	if (k->leaves.drops)
		rt_free_pages(k->leaves.drops, DROPS_MAX * sizeof(*k->leaves.drops));
	if (k->blocks.drops)
		rt_free_pages(k->blocks.drops, DROPS_MAX * sizeof(*k->blocks.drops));
	if (k->index)
		rt_free_pages(k->index, c->frames.count * sizeof(*k->index));
	if (k->kcopy)
		rt_free_pages(k->kcopy, c->frames.count * sizeof(*k->kcopy));
	rt_free(k);
}

/* Other tasks revoke pages already. They find nothing of it before it is complete. */
static int kernel_open(
	struct cache *c, const struct cache_kernel_ops *ops, void *owner)
{
	struct cache_kernel *k = rt_alloc(sizeof(*k));
	int rc;

	if (!k)
		return -ENOMEM;
	k->ops = ops;
	k->owner = owner;
	k->kcopy = rt_alloc_pages(c->frames.count * sizeof(*k->kcopy));
	k->index = rt_alloc_pages(c->frames.count * sizeof(*k->index));
	rc = k->kcopy && k->index ? 0 : -ENOMEM;
	if (!rc)
		rc = queue_of_drops_open(c, k, &k->leaves);
	if (!rc)
		rc = queue_of_drops_open(c, k, &k->blocks);
	if (rc)
		kernel_give_back(c, k);
	else
		c->kernel = k;
	return rc;
}

void kernel_close(struct cache *c)
{
	struct cache_kernel *k = c->kernel;

	if (!k)
		return;
	cache_kernel_stop(c);
	c->kernel = NULL;
	kernel_give_back(c, k);
}

/* Starts the first task, so that there is always one. */
static int drop_task_first(struct cache_kernel *k, struct drop_queue *q)
{
	int rc;

	rt_mutex_lock(&k->lock);
	q->queued++;
	rc = drop_task_add(q);
	q->queued--;
	rt_mutex_unlock(&k->lock);
	return rc;
}

int cache_kernel_start(struct cache *c, const struct cache_kernel_ops *ops, void *owner)
{
	int rc = kernel_open(c, ops, owner);

	if (rc)
		return rc;
	atomic_store_explicit(&c->kernel->on, true, memory_order_release);
	rc = drop_task_first(c->kernel, &c->kernel->leaves);
	if (!rc)
		rc = drop_task_first(c->kernel, &c->kernel->blocks);
	if (rc)
		cache_kernel_stop(c);
	return rc;
}

void cache_kernel_stop(struct cache *c)
{
	struct cache_kernel *k = c->kernel;

	if (!k)
		return;
	guard_while_stop(c);
	rt_mutex_lock(&k->lock); /* no task is added from here on */
	atomic_store_explicit(&k->on, false, memory_order_release);
	rt_mutex_unlock(&k->lock);
	queue_of_drops_stop(&k->leaves);
	queue_of_drops_stop(&k->blocks);
	rt_mutex_lock(&k->lock);
	k->closed = true;
	rt_mutex_unlock(&k->lock);
	queue_of_drops_end(c, &k->leaves);
	queue_of_drops_end(c, &k->blocks);
}

struct kernel_counters *cache_kernel_counters(struct cache *c)
{
	return c->kernel ? &c->kernel->counters : NULL;
}
