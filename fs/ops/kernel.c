/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The caller's kernel as a sharer of pages (docs/many-nodes.md, "The kernel"): which READs it
 * waits for, and how what it has is dropped.
 *
 * Keeps: (5) what was dropped is gone from the kernel, and from what processors load through
 * mappings; a READ that is pending has no readable copy there, so a drop never waits for one. A
 * part of a range that a READ touches while it is being dropped is left to itself, and the rest
 * dropped anew. Drops of a page run one after the other, but for such parts.
 *
 * Locks: `lock` is a leaf, held for looks at lists.
 */
#include "fs/ops/kernel_internal.h"

#define WAIT_FIRST_NS 10000ull
#define WAIT_LAST_NS  200000ull
#define YIELD_NS      100000ull   /* a change lets a READ go first that waits for long, */
#define YIELDS_MAX    10u         /* so often */
#define CUT_NS        20000000ull /* so long a drop waits for who sets a size */

/* ---- pending READs ------------------------------------------------------------------------ */

static bool part_has(const struct part *p, const struct kernel_read *r)
{
	return p->ino == r->ino && p->first < r->end && r->first < p->end;
}

/* What the READ is about will not be dropped before it is answered. */
static void touch(struct part *list, const struct kernel_read *r)
{
	for (struct part *p = list; p; p = p->next)
		if (part_has(p, r))
			p->touched = true;
}

/* Another READ of the same pages: the kernel has taken the earlier one for answered, since its
 * process was killed. */
static void outlive(struct kernel_read *list, const struct kernel_read *by)
{
	for (struct kernel_read *r = list; r; r = r->next)
		if (r->ino == by->ino && r->first < by->end && by->first < r->end)
			r->stale = true;
}

static void read_list(struct kernel *k, struct kernel_read *r)
{
	struct kernel_read **head = &k->reads[ino_hash(r->ino) % READ_BUCKETS];
	bool waiting;

	rt_mutex_lock(&k->lock);
	r->noted = pages_note(k, r->ino);
	if (!r->stale) {
		outlive(*head, r);
		touch(k->queue, r);
		touch(k->under_way, r);
	}
	r->next = *head;
	*head = r;
	r->pending = true;
	waiting = k->queue;
	rt_mutex_unlock(&k->lock);
	rt_cond_broadcast(&k->changed);
	if (waiting) /* for what was touched nobody waits */
		rt_cond_broadcast(&k->work);
}

bool kernel_changing(const struct kernel *k, uint64_t ino, uint64_t first, uint64_t end)
{
	const struct kernel_change *c = k->changes[ino_hash(ino) % READ_BUCKETS];

	while (c && (c->ino != ino || c->first >= end || c->end <= first))
		c = c->next;
	return c;
}

/* What it asks for is being changed here, or its inode has no place in the table: not now. */
static bool read_refused(struct kernel *k, struct kernel_read *r)
{
	bool refused;

	rt_mutex_lock(&k->lock);
	refused = kernel_changing(k, r->ino, r->first, r->end);
	r->hungry |= refused && r->wait_ns == WAIT_LAST_NS;
	r->noted = r->noted || pages_note(k, r->ino);
	refused |= !r->noted;
	rt_mutex_unlock(&k->lock);
	return refused;
}

/* Under the lock. */
static void read_unlist(struct kernel *k, struct kernel_read *r)
{
	struct kernel_read **at = &k->reads[ino_hash(r->ino) % READ_BUCKETS];
	bool had = r->noted;

	while (*at != r)
		at = &(*at)->next;
	*at = r->next;
	if (had) /* the kernel gets pages now */
		r->noted = pages_note(k, r->ino);
	WEFT_ASSERT(r->noted || !had);
	r->pending = false;
}

bool kernel_read_pending(const struct kernel *k, uint64_t ino)
{
	const struct kernel_read *r = k->reads[ino_hash(ino) % READ_BUCKETS];

	while (r && r->ino != ino)
		r = r->next;
	return r;
}

/* A pending READ that has the block, or NULL. */
static const struct kernel_read *read_of_block(
	const struct kernel *k, uint64_t ino, uint64_t block)
{
	const struct kernel_read *r = k->reads[ino_hash(ino) % READ_BUCKETS];

	while (r && (r->ino != ino || r->stale || block < r->first || block >= r->end))
		r = r->next;
	return r;
}

bool ops_kernel_unread(struct fs *fs, uint64_t ino, uint64_t *block)
{
	struct kernel *k = fs->kernel;
	const struct kernel_read *r;
	bool first = false;

	rt_mutex_lock(&k->lock);
	while (!first && (r = read_of_block(k, ino, *block))) {
		first = r->first == 0;
		*block = r->first - !first;
	}
	rt_mutex_unlock(&k->lock);
	return !first;
}

void kernel_read_begin(struct fs *fs, struct kernel_read *r, struct inode_state *st,
	uint64_t offset, size_t len)
{
	*r = (struct kernel_read){.st = st,
		.ino = st->ino,
		.first = offset / PAGE_SIZE,
		.end = DIV_UP(offset + len, (uint64_t)PAGE_SIZE)};
	read_list(fs->kernel, r);
}

void kernel_read_end(struct fs *fs, struct kernel_read *r)
{
	struct kernel *k = fs->kernel;

	if (!r->pending)
		return;
	rt_mutex_lock(&k->lock);
	read_unlist(k, r);
	rt_mutex_unlock(&k->lock);
}

void kernel_read_wait(struct kernel_read *r)
{
	r->wait_ns = MIN(MAX(r->wait_ns * 2, WAIT_FIRST_NS), WAIT_LAST_NS);
	rt_sleep_ns(r->wait_ns);
}

static void range_told(struct kernel *k, uint64_t ino, uint64_t first, uint64_t end);

/*
 * A drop under way may have unmapped an earlier copy of these pages and not yet told processors,
 * while the kernel took it out by itself for a program of its own: nobody gets what is newer
 * before that.
 */
static void read_awaits_told(struct kernel *k, struct kernel_read *r)
{
	if (r->told)
		return;
	rt_mutex_lock(&k->lock);
	range_told(k, r->ino, r->first, r->end);
	rt_mutex_unlock(&k->lock);
	r->told = true;
}

static int expose_leaves(struct fs *fs, struct kernel_read *r, struct disk_key from,
	struct disk_key to, unsigned kinds)
{
	int n = tree_expose(fs->tree, from, to, kinds, r->leaf + r->leaves,
		KERNEL_READ_LEAVES - r->leaves);

	if (n > 0)
		r->leaves += (unsigned)n;
	return MIN(n, 0);
}

int kernel_read_expose(struct fs *fs, struct kernel_read *r)
{
	struct disk_key inode = disk_key(r->ino, DISK_ITEM_INODE, 0);
	struct disk_key from = disk_key(r->ino, DISK_ITEM_EXTENT, r->first);
	struct disk_key none = disk_key(r->ino, DISK_ITEM_EXTENT, 0);
	struct disk_extent e;
	int rc;

	WEFT_ASSERT(r->pending);
	if (read_refused(fs->kernel, r))
		return -EAGAIN;
	read_awaits_told(fs->kernel, r);
	r->mappable = stores_possible(r->st);
	r->stores = r->mappable && fs_maps_alone(fs);
	r->leaves = 0;
	rc = expose_leaves(fs, r, inode, inode, EXPOSE_FILES);
	if (rc)
		return rc;
	/* the extent that covers the first block may be in a leaf before */
	rc = tree_floor(fs->tree, from, none, &from, &e, sizeof(e));
	if (rc == -ENOENT)
		from = none;
	else if (rc < 0)
		return rc == -ERANGE ? -EUCLEAN : rc;
	return expose_leaves(
		fs, r, from, disk_key(r->ino, DISK_ITEM_EXTENT, r->end), EXPOSE_FILES);
}

/* Under the lock: what it was looked up by is as it was, and nobody here is changing it. */
static bool read_stands(struct fs *fs, const struct kernel_read *r)
{
	if (!r->mappable && stores_possible(r->st))
		return false;
	for (unsigned i = 0; i < r->leaves; i++)
		if (!cache_exposure_stands(fs->volume->cache, &r->leaf[i]))
			return false;
	return !kernel_changing(fs->kernel, r->ino, r->first, r->end);
}

/*
 * A READ leaves the list only to be answered, for good: while it is on it no drop begins that
 * would wait for its pages in the kernel. Who drops a leaf says so in the leaf before it looks
 * at the list, so one of the two sees the other.
 */
bool kernel_read_answers(struct fs *fs, struct kernel_read *r, uint64_t end)
{
	struct kernel *k = fs->kernel;
	bool stands;

	rt_mutex_lock(&k->lock);
	stands = read_stands(fs, r);
	if (stands)
		read_unlist(k, r);
	if (stands && end != UINT64_MAX)
		size_ended(k, r->ino, end);
	rt_mutex_unlock(&k->lock);
	return stands;
}

/* ---- parts of ranges ----------------------------------------------------------------------- */

static void part_put(struct part *p)
{
	if (--p->users == 0)
		rt_free(p);
}

static void under_way_remove(struct kernel *k, struct part *p)
{
	struct part **at = &k->under_way;

	while (*at != p)
		at = &(*at)->next;
	*at = p->next;
}

/* Is there one up to `end` that it would run beside? One that waits for a READ is not waited for. */
static bool part_behind(
	const struct part *list, const struct part *end, const struct part *p)
{
	for (const struct part *q = list; q != end; q = q->next)
		if (!q->touched && q->ino == p->ino && q->first < p->end &&
			p->first < q->end)
			return true;
	return false;
}

/* The first of them that has some of the blocks, or NULL. */
static struct part *part_of(struct part *list, uint64_t ino, uint64_t first, uint64_t end)
{
	while (list && (list->ino != ino || list->first >= end || first >= list->end))
		list = list->next;
	return list;
}

bool kernel_dropping(const struct kernel *k, uint64_t ino, uint64_t first, uint64_t end)
{
	return part_of(k->queue, ino, first, end) ||
	       part_of(k->under_way, ino, first, end);
}

/* NULL: none that may begin. */
static struct part *part_take(struct kernel *k)
{
	struct part **at = &k->queue, *p;

	while (*at &&
		(part_behind(k->under_way, NULL, *at) || part_behind(k->queue, *at, *at)))
		at = &(*at)->next;
	p = *at;
	if (!p)
		return NULL;
	*at = p->next;
	if (!*at)
		k->queue_end = at;
	k->queued--;
	p->next = k->under_way;
	k->under_way = p;
	p->told = ++k->moment;
	return p;
}

static void part_main(void *arg)
{
	struct kernel *k = arg;

	rt_mutex_lock(&k->lock);
	for (;;) {
		struct part *p;

		while (!(p = part_take(k)) && !(k->stopping && !k->queue)) {
			k->idle++;
			rt_cond_wait(&k->work, &k->lock, RT_FOREVER);
			k->idle--;
		}
		if (!p)
			break;
		if (!p->touched) { /* else nobody waits for it */
			rt_mutex_unlock(&k->lock);
			k->ops->drop_pages(k->owner, p->ino, p->first, p->end, &p->by);
			rt_mutex_lock(&k->lock);
			p->done = true;
		}
		under_way_remove(k, p);
		part_put(p);
		rt_cond_broadcast(&k->changed);
		if (k->queue)
			rt_cond_broadcast(&k->work);
	}
	rt_mutex_unlock(&k->lock);
}

/* Under the lock: somebody is there, or will be, for each part that is queued. */
static int task_add(struct kernel *k)
{
	int e;

	if (k->queued <= k->idle || k->tasks == TASKS_MAX)
		return 0;
	e = rt_task_spawn(&k->task[k->tasks], "weft-notify", part_main, k);
	if (!e)
		k->tasks++;
	return e;
}

static struct part *part_queue(
	struct kernel *k, uint64_t ino, uint64_t first, uint64_t end)
{
	struct part *p = rt_alloc(sizeof(*p));

	if (!p)
		return NULL;
	*p = (struct part){.ino = ino, .first = first, .end = end, .users = 2};
	*k->queue_end = p;
	k->queue_end = &p->next;
	k->queued++;
	if (k->stores)
		rt_cond_signal(&k->late);
	(void)task_add(k); /* if not: those there are must do */
	rt_cond_signal(&k->work);
	return p;
}

/* May the kernel have stores that come back only when the size is set? */
static bool change_keeps(const struct kernel_change *c)
{
	return c->cuts && atomic_load_explicit(&c->st->mapped, memory_order_acquire);
}

/* Its size is being set: the kernel keeps what was stored in it until that is answered. */
static bool cutting(const struct kernel *k, uint64_t ino)
{
	const struct kernel_change *c = k->changes[ino_hash(ino) % READ_BUCKETS];

	while (c && (c->ino != ino || !change_keeps(c)))
		c = c->next;
	return c;
}

/* Under the lock, which it lets go of: does a drop of the range sleep, for what is locked or is to be
 * written back? */
static bool part_sleeps(struct kernel *k, const struct part *p)
{
	struct part *q = part_of(k->under_way, p->ino, p->first, p->end);
	bool sleeps;

	if (!q)
		return false;
	q->users++;
	rt_mutex_unlock(&k->lock);
	sleeps = k->ops->drop_waits(k->owner, &q->by);
	rt_mutex_lock(&k->lock);
	part_put(q);
	return sleeps;
}

/* Under the lock. False: whoever sets the size may be waiting for who wants this dropped. */
static bool part_await(struct kernel *k, const struct part *p, bool leaf)
{
	uint64_t deadline = rt_now_ns() + CUT_NS;

	while (!p->done && !p->touched) {
		bool bound = leaf && cutting(k, p->ino);

		if (bound && rt_now_ns() >= deadline) {
			if (part_sleeps(k, p)) {
				pages_stay(k, p->ino);
				return false;
			}
			deadline = rt_now_ns() + WAIT_LAST_NS;
			continue;
		}
		(void)rt_cond_wait(&k->changed, &k->lock, bound ? deadline : RT_FOREVER);
	}
	return true;
}

/*
 * Under the lock: drops it, unless a READ touches it. True: it is done, or, with
 * `leaf`, is done as soon as a size is set that somebody here is just setting.
 */
static bool part_drop(
	struct kernel *k, uint64_t ino, uint64_t first, uint64_t end, bool leaf)
{
	struct part *p = part_queue(k, ino, first, end);
	bool done;

	if (!p) { /* no memory: a moment later */
		rt_mutex_unlock(&k->lock);
		rt_sleep_ns(WAIT_LAST_NS);
		rt_mutex_lock(&k->lock);
		return false;
	}
	done = !part_await(k, p, leaf) || p->done;
	part_put(p);
	return done;
}

/* Which may not have told all processors since then. */
static struct part *part_untold(
	struct kernel *k, uint64_t ino, uint64_t first, uint64_t end, uint64_t moment)
{
	struct part *p = k->under_way;

	while (p && (p->told >= moment || p->ino != ino || p->first >= end ||
			    first >= p->end))
		p = p->next;
	return p;
}

/*
 * Under the lock, when the range has been dropped, but for what was left to itself. A page that one of
 * those has unmapped is taken out at once by another drop, which finds nothing to tell processors of:
 * waits until each has told them. They end soon, unless they wait for a READ.
 */
static void range_told(struct kernel *k, uint64_t ino, uint64_t first, uint64_t end)
{
	uint64_t moment = ++k->moment;
	struct part *p;

	while ((p = part_untold(k, ino, first, end, moment))) {
		uint64_t now = ++k->moment;
		bool waits;

		p->users++;
		rt_mutex_unlock(&k->lock);
		waits = k->ops->drop_waits(k->owner, &p->by);
		if (!waits)
			rt_sleep_ns(WAIT_FIRST_NS);
		rt_mutex_lock(&k->lock);
		if (waits)
			p->told = MAX(p->told, now);
		part_put(p);
	}
}

/* From `at` on: where the next pending READ begins, or where the one that covers it ends. */
static uint64_t read_covers(
	struct kernel *k, uint64_t ino, uint64_t at, uint64_t end, bool *covered)
{
	uint64_t next = end;

	*covered = false;
	for (const struct kernel_read *r = k->reads[ino_hash(ino) % READ_BUCKETS]; r;
		r = r->next) {
		if (r->ino != ino || r->stale || r->end <= at)
			continue;
		if (r->first <= at) {
			*covered = true;
			return MIN(r->end, end);
		}
		next = MIN(next, r->first);
	}
	return next;
}

/* `leaf`: since what says where they are is given up, not the pages. */
static void drop_range(
	struct kernel *k, uint64_t ino, uint64_t first, uint64_t end, bool leaf)
{
	rt_mutex_lock(&k->lock);
	for (uint64_t at = first; at < end;) {
		bool covered;
		uint64_t to = read_covers(k, ino, at, end, &covered);

		if (covered || part_drop(k, ino, at, to, leaf))
			at = to;
	}
	range_told(k, ino, first, end);
	rt_mutex_unlock(&k->lock);
}

void kernel_drop(struct kernel *k, uint64_t ino, uint64_t first, uint64_t end)
{
	drop_range(k, ino, first, end, false);
}

/* ---- attributes ----------------------------------------------------------------------------- */

/*
 * An answer with a name, on its way to a thread, may bring the inode only after it was dropped in vain:
 * then it is dropped again, when the thread has taken the answer in. It needs nobody for that.
 */
static void attributes_drop(struct kernel *k, uint64_t ino)
{
	uint64_t wait_ns = WAIT_FIRST_NS;
	bool taken_in, made, there;

	for (;;) {
		rt_mutex_lock(&k->lock);
		taken_in = names_taken_in(k, ino, &made);
		rt_mutex_unlock(&k->lock);
		there = k->ops->drop_attributes(k->owner, ino);
		if (taken_in || (there && !made) || atomic_load(&k->gone))
			return;
		rt_sleep_ns(wait_ns);
		wait_ns = MIN(wait_ns * 2, WAIT_LAST_NS);
	}
}

/* ---- what the cache wants to be dropped ----------------------------------------------------- */

struct dropping {
	struct kernel *k;
	unsigned kinds;
};

void kernel_drop_inode(struct kernel *k, uint64_t ino, bool pages)
{
	bool attributes, has_pages;
	uint32_t stamp;

	rt_mutex_lock(&k->lock);
	has_pages = known_drop(k, ino, &attributes, &stamp);
	rt_mutex_unlock(&k->lock);
	if (attributes)
		attributes_drop(k, ino);
	if (!pages || !has_pages)
		return;
	drop_range(k, ino, 0, UINT64_MAX, true);
	rt_mutex_lock(&k->lock);
	if (!kernel_read_pending(k, ino))
		pages_forget(k, ino, stamp);
	rt_mutex_unlock(&k->lock);
}

static void drop_inode(void *arg, uint64_t ino)
{
	const struct dropping *d = arg;

	kernel_drop_inode(d->k, ino, d->kinds & EXPOSE_FILES);
}

static void push_inode(void *arg, uint64_t ino)
{
	kernel_push(arg, ino);
}

static void drop(void *owner, const struct cache_exposed *what)
{
	struct dropping d = {owner, what->kinds};

	if (what->kinds & EXPOSE_NAMES)
		kernel_names_drop(d.k, what->image);
	if (what->kinds & (EXPOSE_ATTRIBUTES | EXPOSE_FILES)) {
		tree_leaf_inodes(what->image, drop_inode, &d);
		tree_leaf_inodes(what->image, push_inode, d.k);
	}
	if (what->kinds & EXPOSE_BLOCK)
		drop_range(d.k, what->ino, what->block, what->block + 1, false);
}

static bool has_pages(void *owner, uint64_t ino)
{
	struct kernel *k = owner;
	bool has;

	rt_mutex_lock(&k->lock);
	has = pages_known(k, ino);
	rt_mutex_unlock(&k->lock);
	return has;
}

/* ---- changed past the kernel's pages ------------------------------------------------------ */

/* Under the lock: is there a READ that has waited for long until nothing is changed? */
static bool change_yields(const struct kernel *k, const struct kernel_change *c)
{
	const struct kernel_read *r = k->reads[ino_hash(c->ino) % READ_BUCKETS];

	while (r && !(r->hungry && r->ino == c->ino && r->first < c->end &&
			    c->first < r->end))
		r = r->next;
	return r;
}

/* Under the lock, which it lets go of. */
void kernel_change_list(struct kernel *k, struct kernel_change *c)
{
	struct kernel_change **head = &k->changes[ino_hash(c->ino) % READ_BUCKETS];

	for (unsigned i = 0; i < YIELDS_MAX && change_yields(k, c); i++) {
		rt_mutex_unlock(&k->lock);
		rt_sleep_ns(YIELD_NS);
		rt_mutex_lock(&k->lock);
	}
	c->next = *head;
	*head = c;
	c->listed = true;
}

void kernel_change_unlist(struct kernel *k, struct kernel_change *c)
{
	struct kernel_change **at = &k->changes[ino_hash(c->ino) % READ_BUCKETS];

	while (*at != c)
		at = &(*at)->next;
	*at = c->next;
}

/*
 * Listed first: a READ that is answered later finds it and is not; one that was before has left its
 * list, so the drop waits for its pages in the kernel. If one of those lets the kernel store, it
 * has said so in the state before.
 */
static void change_begin(struct fs *fs, struct kernel_change *c)
{
	struct kernel *k = fs->kernel;
	bool attributes, pages;

	if (!k)
		return;
	rt_mutex_lock(&k->lock);
	kernel_change_list(k, c);
	attributes = attributes_forget(k, c->ino);
	pages = pages_known(k, c->ino);
	rt_mutex_unlock(&k->lock);
	if (c->cuts)
		rt_cond_broadcast(&k->changed);
	if (attributes)
		attributes_drop(k, c->ino);
	if (pages && !change_keeps(c))
		drop_range(k, c->ino, c->first, c->end, false);
}

void kernel_change_begin(struct fs *fs, struct kernel_change *c, struct inode_state *st,
	uint64_t offset, uint64_t len)
{
	*c = (struct kernel_change){
		.st = st, .ino = st->ino, .first = offset / PAGE_SIZE, .end = UINT64_MAX};
	if (len < UINT64_MAX - offset)
		c->end = DIV_UP(offset + len, (uint64_t)PAGE_SIZE);
	change_begin(fs, c);
}

void kernel_change_cuts(
	struct fs *fs, struct kernel_change *c, struct inode_state *st, uint64_t size)
{
	*c = (struct kernel_change){.st = st,
		.ino = st->ino,
		.first = size / PAGE_SIZE,
		.end = UINT64_MAX,
		.cuts = true};
	change_begin(fs, c);
}

void kernel_fetch_stores(struct fs *fs, struct inode_state *st)
{
	if (fs->kernel && atomic_load_explicit(&st->mapped, memory_order_acquire))
		drop_range(fs->kernel, st->ino, 0, UINT64_MAX, false);
}

int kernel_fetch_range(
	struct fs *fs, struct inode_state *st, uint64_t first, uint64_t end)
{
	drop_range(fs->kernel, st->ino, first, end, false);
	return kernel_stores_await(fs, st);
}

void kernel_change_end(struct fs *fs, struct kernel_change *c)
{
	struct kernel *k = fs->kernel;

	if (!c->listed)
		return;
	ops_kernel_resized(fs, c->ino);
	rt_mutex_lock(&k->lock);
	kernel_change_unlist(k, c);
	rt_mutex_unlock(&k->lock);
	if (c->cuts)
		rt_cond_broadcast(&k->changed);
}

/* ---- the kernel comes and goes ----------------------------------------------------------------- */

static const struct cache_kernel_ops drop_ops = {.drop = drop, .has_pages = has_pages};

int fs_kernel_start(struct fs *fs, const struct ops_kernel *ops, void *owner,
	const struct ops_noted *noted)
{
	struct kernel *k;
	int e;

	WEFT_ASSERT(!fs->kernel && fs_has_peers(fs));
	k = rt_alloc(sizeof(*k));
	if (!k)
		return -ENOMEM;
	k->fs = fs;
	k->ops = ops;
	k->owner = owner;
	k->queue_end = &k->queue;
	k->stores_end = &k->stores;
	e = known_open(k, noted);
	if (!e)
		e = rt_task_spawn(&k->task[0], "weft-notify", part_main, k);
	if (!e) {
		k->tasks = 1;
		e = kernel_pushes_start(k);
	}
	if (!e) {
		fs->kernel = k;
		e = cache_kernel_start(fs->volume->cache, &drop_ops, k);
	}
	if (!e)
		e = known_start(k);
	if (!e && fs_maps_alone(fs))
		e = cache_stores_start(fs->volume->cache);
	if (!e)
		e = kernel_stores_start(k);
	if (!e)
		e = kernel_names_start(k);
	kernel_dirs_start(k);
	if (e) {
		fs->kernel = k;
		fs_kernel_stop(fs);
	}
	return e;
}

void fs_kernel_stop(struct fs *fs)
{
	struct kernel *k = fs->kernel;

	if (!k)
		return;
	atomic_store(&k->gone, true);
	known_stop(k); /* which has parts dropped */
	cache_kernel_stop(fs->volume->cache);
	kernel_pushes_stop(k);
	fs->kernel = NULL;
	rt_mutex_lock(&k->lock);
	k->stopping = true;
	rt_mutex_unlock(&k->lock);
	rt_cond_broadcast(&k->work);
	kernel_stores_stop(k);
	kernel_names_stop(k);
	kernel_dirs_stop(k);
	for (unsigned i = 0; i < k->tasks; i++)
		rt_task_join(k->task[i]);
	known_close(k);
	rt_free(k->pushes);
	rt_free(k);
}
