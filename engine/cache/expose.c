/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What this node's kernel has of the pages in its cache (docs/many-nodes.md, "The kernel").
 *
 * Keeps invariant 5: a page is given up, or its frame evicted, only when kernel_free() says
 * so under the frame's latch. What was exposed is dropped by tasks of this file, which
 * hold no latch meanwhile; who wants the page comes again. Nothing is exposed between the
 * drop and the giving up.
 *
 * A frame's exposure is one word, changed by compare and swap: whoever exposes has the
 * frame latched, shared or more; whoever begins a drop has it exclusively, but for one
 * that finds a page in another place of a file. The generation tells an exposure from those
 * before it and from those of other pages of the frame.
 */
#include "engine/cache/cache_internal.h"

#define KINDS_BITS   4u
#define KINDS        0xfull                /* EXPOSE_* */
#define MORE         (KINDS << KINDS_BITS) /* those that came with items, while dropping */
#define DROPPING     (1ull << 8)           /* nothing is exposed */
#define QUEUED       (1ull << 9) /* a drop is under way: kinds are what it drops */
#define GENERATION   (1ull << 32)
#define DROPS_MAX    64u
#define DROP_TASKS   4u
#define ABANDONED_NS 2000000ull /* so long after a drop somebody comes for the page */

_Static_assert((EXPOSE_ALL & ~KINDS) == 0, "kinds fit their bits");

struct exposure {
	_Atomic uint64_t word;
	_Atomic uint64_t ino, block; /* EXPOSE_BLOCK: where the page is */
	_Atomic uint64_t dropped_ns; /* when the last drop was done */
};

struct drop {
	struct drop *next;
	uint32_t frame, generation;
	struct cache_exposed what;
	uint8_t image[PAGE_SIZE]; /* of a leaf */
};

struct cache_kernel {
	const struct cache_kernel_ops *ops;
	void *owner;
	struct exposure *exposure; /* by frame */
	_Atomic bool on;           /* there is a kernel */
	struct rt_mutex lock;      /* a leaf: the lists below */
	_Atomic uint32_t word;     /* changes with what is queued and at stop */
	struct drop *drops, *unused, *first, **end;
	bool closed; /* nothing is queued any more */
	struct rt_task *task[DROP_TASKS];
	struct kernel_counters counters;
};

static struct exposure *exposure_of(struct cache *c, const struct frame *f)
{
	return &c->kernel->exposure[f - c->frames];
}

static uint32_t generation_of(uint64_t word)
{
	return (uint32_t)(word >> 32);
}

/* ---- exposing -------------------------------------------------------------------------- */

/* The page is somewhere else in the kernel's cache already. */
static bool elsewhere(const struct exposure *x, uint64_t word, unsigned kinds,
	uint64_t ino, uint64_t block)
{
	return (kinds & word & EXPOSE_BLOCK) &&
	       (atomic_load_explicit(&x->ino, memory_order_relaxed) != ino ||
		       atomic_load_explicit(&x->block, memory_order_relaxed) != block);
}

/* May something be exposed? A drop that nobody has come for is over after a while. */
static bool may_expose(const struct exposure *x, uint64_t word)
{
	if (likely(!(word & DROPPING)))
		return true;
	return !(word & (QUEUED | KINDS)) &&
	       rt_now_ns() > atomic_load_explicit(&x->dropped_ns, memory_order_relaxed) +
				     ABANDONED_NS;
}

int guard_expose(struct cache *c, const struct guard *g, unsigned kinds, uint64_t ino,
	uint64_t block, struct cache_exposure *out)
{
	struct exposure *x = exposure_of(c, g->frame);
	uint64_t word = atomic_load_explicit(&x->word, memory_order_acquire), next;

	WEFT_ASSERT(g->kind == GUARD_SHARED || g->kind == GUARD_EXCLUSIVE);
	do {
		if (!may_expose(x, word))
			return -EAGAIN;
		if (unlikely(elsewhere(x, word, kinds, ino, block))) {
			(void)kernel_free(c, g->frame);
			return -EAGAIN;
		}
		if (kinds & ~word & EXPOSE_BLOCK) {
			atomic_store_explicit(&x->ino, ino, memory_order_relaxed);
			atomic_store_explicit(&x->block, block, memory_order_relaxed);
		}
		next = (word & ~DROPPING) | kinds;
	} while (next != word &&
		 !atomic_compare_exchange_weak_explicit(&x->word, &word, next,
			 memory_order_seq_cst, memory_order_acquire));
	if (out)
		*out = (struct cache_exposure){
			cache_frame_index(c, g->frame), generation_of(next)};
	return 0;
}

bool cache_exposure_stands(struct cache *c, const struct cache_exposure *e)
{
	uint64_t word = atomic_load_explicit(
		&c->kernel->exposure[e->frame].word, memory_order_seq_cst);

	return !(word & DROPPING) && generation_of(word) == e->generation;
}

void guard_expose_like(struct cache *c, const struct guard *from, const struct guard *to)
{
	struct exposure *x;
	uint64_t word, kinds, next;

	if (likely(!c->kernel))
		return;
	WEFT_ASSERT(from->kind == GUARD_EXCLUSIVE && to->kind == GUARD_EXCLUSIVE);
	kinds = atomic_load_explicit(
		&exposure_of(c, from->frame)->word, memory_order_acquire);
	kinds = (kinds | kinds >> KINDS_BITS) & KINDS;
	if (!kinds)
		return;
	x = exposure_of(c, to->frame);
	word = atomic_load_explicit(&x->word, memory_order_relaxed);
	do /* a drop under way may have seen the leaf without the items */
		next = word | (word & QUEUED ? kinds << KINDS_BITS : kinds);
	while (!atomic_compare_exchange_weak_explicit(
		&x->word, &word, next, memory_order_seq_cst, memory_order_relaxed));
}

/* ---- dropping -------------------------------------------------------------------------- */

static struct drop *drop_get(struct cache_kernel *k)
{
	struct drop *d;

	rt_mutex_lock(&k->lock);
	d = k->unused;
	if (d)
		k->unused = d->next;
	rt_mutex_unlock(&k->lock);
	return d;
}

static void drop_put(struct cache_kernel *k, struct drop *d)
{
	rt_mutex_lock(&k->lock);
	d->next = k->unused;
	k->unused = d;
	rt_mutex_unlock(&k->lock);
}

/* False: the kernel has gone meanwhile. */
static bool drop_queue(struct cache_kernel *k, struct drop *d)
{
	bool open;

	d->next = NULL;
	rt_mutex_lock(&k->lock);
	open = !k->closed;
	if (open) {
		*k->end = d;
		k->end = &d->next;
	}
	rt_mutex_unlock(&k->lock);
	if (!open)
		return false;
	atomic_fetch_add_explicit(&k->word, 1, memory_order_release);
	rt_wake(&k->word, 1);
	return true;
}

static struct drop *drop_take(struct cache_kernel *k)
{
	struct drop *d;

	rt_mutex_lock(&k->lock);
	d = k->first;
	if (d)
		k->first = d->next;
	if (!k->first)
		k->end = &k->first;
	rt_mutex_unlock(&k->lock);
	return d;
}

/* The latch is held: nothing of the page changes. False: somebody else has begun it. */
static bool drop_fill(struct cache *c, struct frame *f, struct drop *d)
{
	struct exposure *x = exposure_of(c, f);
	uint64_t word = atomic_load_explicit(&x->word, memory_order_acquire), next;

	do {
		if ((word & QUEUED) || !(word & KINDS))
			return false;
		next = (word | DROPPING | QUEUED) + GENERATION;
	} while (!atomic_compare_exchange_weak_explicit(
		&x->word, &word, next, memory_order_seq_cst, memory_order_acquire));
	d->frame = cache_frame_index(c, f);
	d->generation = generation_of(next);
	d->what = (struct cache_exposed){
		.pid = atomic_load_explicit(&f->pid, memory_order_relaxed),
		.kinds = (unsigned)(word & KINDS),
		.ino = atomic_load_explicit(&x->ino, memory_order_relaxed),
		.block = atomic_load_explicit(&x->block, memory_order_relaxed),
		.image = d->image,
	};
	if (d->what.kinds & ~EXPOSE_BLOCK)
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
	struct exposure *x = exposure_of(c, f);

	if ((word & (KINDS | DROPPING)) != EXPOSE_BLOCK ||
		k->ops->has_pages(
			k->owner, atomic_load_explicit(&x->ino, memory_order_relaxed)))
		return false;
	atomic_store_explicit(&x->dropped_ns, rt_now_ns(), memory_order_relaxed);
	return atomic_compare_exchange_strong_explicit(&x->word, &word,
		((word & ~KINDS) | DROPPING) + GENERATION, memory_order_seq_cst,
		memory_order_relaxed);
}

bool kernel_free(struct cache *c, struct frame *f)
{
	struct cache_kernel *k = c->kernel;
	uint64_t word;
	struct drop *d;

	if (likely(!k))
		return true;
	word = atomic_load_explicit(&exposure_of(c, f)->word, memory_order_acquire);
	if (!(word & KINDS) || !atomic_load_explicit(&k->on, memory_order_acquire))
		return true;
	if (word & QUEUED)
		return false;
	if (gone_with_file(c, f, word))
		return true;
	d = drop_get(k);
	if (!d) /* many are under way: later */
		return false;
	if (drop_fill(c, f, d) && drop_queue(k, d))
		return false;
	drop_put(k, d);
	return !atomic_load_explicit(&k->on, memory_order_acquire);
}

bool kernel_drops(struct cache *c, struct frame *f)
{
	return atomic_load_explicit(&exposure_of(c, f)->word, memory_order_acquire) &
	       QUEUED;
}

bool kernel_has(struct cache *c, struct frame *f)
{
	return c->kernel &&
	       (atomic_load_explicit(&exposure_of(c, f)->word, memory_order_acquire) &
		       (KINDS | QUEUED));
}

void exposure_reset(struct cache *c, struct frame *f)
{
	struct exposure *x;
	uint64_t word;

	if (likely(!c->kernel))
		return;
	x = exposure_of(c, f);
	word = atomic_load_explicit(&x->word, memory_order_relaxed);
	while ((uint32_t)word && !atomic_compare_exchange_weak_explicit(&x->word, &word,
					 (uint64_t)(generation_of(word) + 1) << 32,
					 memory_order_seq_cst, memory_order_relaxed))
		;
}

/* The kernel has nothing any more of what the drop was about. */
static void drop_done(struct cache *c, const struct drop *d)
{
	struct exposure *x = &c->kernel->exposure[d->frame];
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

/* Whoever was refused the page because of it hears of its end. */
static void drop_end(struct cache *c, struct drop *d)
{
	page_id pid = d->what.pid;

	drop_put(c->kernel, d);
	if (c->coherence->ops->eased)
		c->coherence->ops->eased(c->coherence, pid);
}

static void drop_main(void *arg)
{
	struct cache *c = arg;
	struct cache_kernel *k = c->kernel;

	while (atomic_load_explicit(&k->on, memory_order_acquire)) {
		uint32_t word = atomic_load_explicit(&k->word, memory_order_acquire);
		struct drop *d = drop_take(k);

		if (!d) {
			rt_wait(&k->word, word, RT_FOREVER);
			continue;
		}
		k->ops->drop(k->owner, &d->what);
		atomic_fetch_add_explicit(&k->counters.kernel_drops, 1, memory_order_relaxed);
		drop_done(c, d);
		drop_end(c, d);
	}
}

/* ---- the kernel comes and goes ---------------------------------------------------------- */

static int kernel_open(struct cache *c)
{
	struct cache_kernel *k = rt_alloc(sizeof(*k));

	if (!k)
		return -ENOMEM;
	k->end = &k->first;
	k->drops = rt_alloc_pages(DROPS_MAX * sizeof(*k->drops));
	k->exposure = rt_alloc_pages(c->frame_count * sizeof(*k->exposure));
	for (unsigned i = 0; k->drops && i < DROPS_MAX; i++)
		drop_put(k, &k->drops[i]);
	c->kernel = k;
	return k->drops && k->exposure ? 0 : -ENOMEM;
}

void kernel_close(struct cache *c)
{
	struct cache_kernel *k = c->kernel;

	if (!k)
		return;
	cache_kernel_stop(c);
	c->kernel = NULL;
	if (k->drops)
		rt_free_pages(k->drops, DROPS_MAX * sizeof(*k->drops));
	if (k->exposure)
		rt_free_pages(k->exposure, c->frame_count * sizeof(*k->exposure));
	rt_free(k);
}

int cache_kernel_start(struct cache *c, const struct cache_kernel_ops *ops, void *owner)
{
	int e = kernel_open(c);

	if (e) {
		kernel_close(c);
		return e;
	}
	c->kernel->ops = ops;
	c->kernel->owner = owner;
	atomic_store_explicit(&c->kernel->on, true, memory_order_release);
	for (unsigned i = 0; i < DROP_TASKS && !e; i++)
		e = rt_task_spawn(&c->kernel->task[i], "weft-drop", drop_main, c);
	if (e)
		cache_kernel_stop(c);
	return e;
}

void cache_kernel_stop(struct cache *c)
{
	struct cache_kernel *k = c->kernel;
	struct drop *d;

	if (!k)
		return;
	atomic_store_explicit(&k->on, false, memory_order_release);
	atomic_fetch_add_explicit(&k->word, 1, memory_order_release);
	rt_wake(&k->word, INT32_MAX);
	for (unsigned i = 0; i < DROP_TASKS; i++)
		if (k->task[i])
			rt_task_join(k->task[i]);
	memset(k->task, 0, sizeof(k->task));
	rt_mutex_lock(&k->lock);
	k->closed = true;
	rt_mutex_unlock(&k->lock);
	while ((d = drop_take(k)))
		drop_end(c, d);
}

struct kernel_counters *cache_kernel_counters(struct cache *c)
{
	return c->kernel ? &c->kernel->counters : NULL;
}
