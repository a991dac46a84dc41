/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sizes of open files that other nodes change (docs/nodes/sizes.md, "Sizes that are pushed"). The
 * kernel uses its size of a file without a request in a page fault, sendfile and splice. If a leaf
 * of a file that is open here is given up, a task reads the size again and sends it to the kernel.
 *
 * Keeps: each open file has one of two states. Its inode's leaf is kernel-cached, and the kernel
 * was told the size in it. Or the file is in the list, or being pushed. A drop of the leaf adds the
 * file to the list before the leaf is given up.
 *
 * Locks: `lock` is a leaf, held to access the list. A stripe's lock comes before it. A task that
 * pushes holds nothing.
 */
#include "fs/kcache/kcache_internal.h"

/* From the drop to the first push: the leaf is given up a moment after the drop. */
#define FIRST_NS 50000ull
/* If the leaf is still there, the next try follows, later each time. */
#define AGAIN_MAX_NS 3000000ull
/* Between two pushes of a file. Other nodes that go on changing it are therefore rarely delayed. */
#define GAP_NS 5000000ull
/* Between two pushes of a file that needs a node that is away. */
#define AWAY_NS 100000000ull
/* Limit of the wait after a lock was granted, for nodes that do not answer and are not known to be
 * away. */
#define AWAIT_NS 1000000000ull
#define RUNS_MAX 16u

/* A push under way. */
struct run {
	uint64_t ino, number; /* 0: none */
};

struct pushes {
	struct kcache *kcache;
	struct rt_mutex lock;
	struct rt_cond work, pushed;
	struct kcache_file *first,
		**end;   /* files that are open here, in the order of listing */
	uint64_t number; /* of the file listed last */
	struct run run[RUNS_MAX];
	bool stopping;
	struct rt_task *task;
};

/* ---- the list (under the lock) -------------------------------------------------------- */

static void list_add(struct pushes *p, struct kcache_file *st, uint64_t due_ns)
{
	st->push.listed = true;
	st->push.number = ++p->number;
	st->push.due_ns = due_ns;
	st->push.next = NULL;
	*p->end = st;
	p->end = &st->push.next;
}

static void list_remove(struct pushes *p, struct kcache_file *st)
{
	struct kcache_file **at = &p->first;

	while (*at != st)
		at = &(*at)->push.next;
	*at = st->push.next;
	if (!*at)
		p->end = at;
	st->push.listed = false;
}

/* Returns the run of the inode; 0: a free one. NULL: there is none. */
static struct run *run_of(struct pushes *p, uint64_t ino)
{
	for (unsigned i = 0; i < RUNS_MAX; i++)
		if (p->run[i].ino == ino)
			return &p->run[i];
	return NULL;
}

/* Returns the first file to push now, or NULL; then *until_ns is the time for the next look.
 * `before`: files listed up to that number, whether due or not; 0: only files that are due. */
static struct kcache_file *list_due(struct pushes *p, uint64_t before, uint64_t *until_ns)
{
	uint64_t now = rt_now_ns();

	*until_ns = RT_FOREVER;
	for (struct kcache_file *st = p->first; st && run_of(p, 0); st = st->push.next) {
		if (run_of(p, st->ino))
			continue;
		if (before ? st->push.number <= before : st->push.due_ns <= now)
			return st;
		*until_ns = MIN(*until_ns, st->push.due_ns);
	}
	return NULL;
}

/* Returns true if a run is under way for a file listed up to that number. */
static bool runs_before(const struct pushes *p, uint64_t number)
{
	for (unsigned i = 0; i < RUNS_MAX; i++)
		if (p->run[i].ino && p->run[i].number <= number)
			return true;
	return false;
}

/* ---- one push --------------------------------------------------------------------------- */

/* Returns false if this is not possible now. */
static bool size_tell(struct kcache *k, struct kcache_size *size)
{
	if (size->size == 0)
		return true;
	if (!kcache_size_begin(k->sizes, size))
		return false;
	k->ops->tell_size(k->owner, size->ino, size->size);
	kcache_size_end(k->sizes, size);
	return true;
}

/* Pushes a size. `thread`: a thread that has taken in its earlier answers; or 0. -EAGAIN: the leaf
 * is about to be given up. */
static int size_push(struct kcache *k, uint64_t ino, uint32_t thread)
{
	struct tree_kcopy e = {.kinds = KCACHE_ATTRIBUTES};
	struct kcache_size size = kcache_size_look(k->sizes, ino);
	struct ops_attr attr;
	int rc = k->source->attr(k->source_owner, &e, ino, &attr);

	if (rc)
		return rc;
	size.size = attr.inode.size;
	if (!known_has_size(k, thread, &attr) && !size_tell(k, &size))
		return -EAGAIN;
	return e.kcached ? 0 : -EAGAIN;
}

/* Sets the time of the next push after one that returned `rc`. */
static void push_note(struct pushes *p, uint64_t ino, int rc)
{
	struct rt_mutex *stripe;
	struct kcache_file *st =
		p->kcache->source->peek(p->kcache->source_owner, ino, &stripe);
	uint64_t now = rt_now_ns();

	rt_mutex_lock(&p->lock);
	if (st) {
		st->push.pushed_ns = now;
		if (rc != -EAGAIN)
			st->push.tries = 0;
		if (rc == -EAGAIN)
			now += MIN(FIRST_NS << MIN(st->push.tries++, 10u), AGAIN_MAX_NS);
		else if (rc == -EHOSTUNREACH)
			now += AWAY_NS;
		if ((rc == -EAGAIN || rc == -EHOSTUNREACH) && !st->push.listed &&
			!p->stopping)
			list_add(p, st, now);
	}
	rt_mutex_unlock(&p->lock);
	rt_mutex_unlock(stripe);
}

/* Called under the lock. Releases it meanwhile. */
static void push_run(struct pushes *p, struct kcache_file *st)
{
	struct kcache *k = p->kcache;
	struct run *run = run_of(p, 0);
	uint64_t ino = st->ino;
	int rc;

	*run = (struct run){ino, st->push.number};
	list_remove(p, st);
	rt_mutex_unlock(&p->lock);
	rc = tree_is_near(k->tree, disk_key(ino, DISK_ITEM_INODE, 0))
		     ? size_push(k, ino, 0)
		     : -EHOSTUNREACH;
	push_note(p, ino, rc);
	rt_mutex_lock(&p->lock);
	*run = (struct run){0};
	rt_cond_broadcast(&p->pushed);
	rt_cond_signal(&p->work);
}

static void push_main(void *arg)
{
	struct pushes *p = arg;

	rt_mutex_lock(&p->lock);
	while (!p->stopping) {
		uint64_t until_ns;
		struct kcache_file *st = list_due(p, 0, &until_ns);

		if (st)
			push_run(p, st);
		else
			(void)rt_cond_wait(&p->work, &p->lock, until_ns);
	}
	rt_mutex_unlock(&p->lock);
}

/* ---- calls that need a push ---------------------------------------------------------- */

void kcache_push(struct kcache *k, uint64_t ino)
{
	struct pushes *p = k->pushes;
	struct rt_mutex *stripe;
	struct kcache_file *st = k->source->peek(k->source_owner, ino, &stripe);
	bool listed = false;

	if (st) {
		rt_mutex_lock(&p->lock);
		listed = !st->push.listed && !p->stopping;
		if (listed)
			list_add(p, st,
				MAX(rt_now_ns() + FIRST_NS, st->push.pushed_ns + GAP_NS));
		rt_mutex_unlock(&p->lock);
	}
	rt_mutex_unlock(stripe);
	if (listed)
		rt_cond_signal(&p->work);
}

void kcache_push_closed(struct kcache *k, struct kcache_file *st)
{
	struct pushes *p = k->pushes;

	rt_mutex_lock(&p->lock);
	if (st->push.listed)
		list_remove(p, st);
	rt_mutex_unlock(&p->lock);
}

void kcache_opened(struct kcache *k, uint64_t ino, uint32_t thread)
{
	if (k && size_push(k, ino, thread) == -EAGAIN)
		kcache_push(k, ino);
}

void kcache_sizes_await(struct kcache *k)
{
	uint64_t number, until_ns = rt_now_ns() + AWAIT_NS, due_ns;
	struct pushes *p = k ? k->pushes : NULL;
	struct kcache_file *st;

	if (!p)
		return;
	rt_mutex_lock(&p->lock);
	number = p->number;
	while (number && rt_now_ns() < until_ns) {
		st = list_due(p, number, &due_ns);
		if (st)
			push_run(p, st);
		else if (runs_before(p, number))
			(void)rt_cond_wait(&p->pushed, &p->lock, until_ns);
		else
			break;
	}
	rt_mutex_unlock(&p->lock);
}

/* ---- the kernel comes and goes -------------------------------------------------------------- */

int kcache_pushes_start(struct kcache *k)
{
	struct pushes *p = rt_alloc(sizeof(*p));
	int rc;

	if (!p)
		return -ENOMEM;
	p->kcache = k;
	p->end = &p->first;
	k->pushes = p;
	rc = rt_task_spawn(&p->task, "weft-sizes", push_main, p);
	if (rc)
		p->task = NULL;
	return rc;
}

void kcache_pushes_stop(struct kcache *k)
{
	struct pushes *p = k->pushes;

	if (!p)
		return;
	rt_mutex_lock(&p->lock);
	p->stopping = true;
	rt_mutex_unlock(&p->lock);
	rt_cond_broadcast(&p->work);
	if (p->task)
		rt_task_join(p->task);
	rt_mutex_lock(&p->lock);
	while (p->first)
		list_remove(p, p->first);
	rt_mutex_unlock(&p->lock);
}
