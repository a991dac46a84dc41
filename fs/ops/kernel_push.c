/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sizes of open files that other nodes change (docs/many-nodes.md, "Sizes that are pushed"). The kernel goes by
 * its size of a file without a request: for a page fault, sendfile, splice. So when a leaf of a file that is
 * open here was given up, a task looks at the file again, and tells the kernel the size.
 *
 * Keeps: while a file is open, its inode's leaf is exposed, and the kernel was told the size that stands there;
 * or the file is in the list, or being pushed. A drop of the leaf puts it there before the leaf is given up.
 *
 * Locks: `lock` is a leaf, held for looks at the list; a stripe's comes before it. Who pushes holds nothing.
 */
#include "fs/ops/kernel_internal.h"

/* The leaf is given up a moment after the drop; */
#define FIRST_NS 50000ull
/* should it still be there, it is looked at again, later each time. */
#define AGAIN_MAX_NS 3000000ull
/* Between two looks at a file, so that other nodes which go on changing it are seldom held up: */
#define GAP_NS 5000000ull
/* What waits for a node that is away is looked for so often. */
#define AWAY_NS 100000000ull
/* At most so long who was given a lock waits for nodes that do not answer, and are not known to be away. */
#define AWAIT_NS 1000000000ull
#define RUNS_MAX 16u

/* A push under way. */
struct run {
	uint64_t ino, number; /* 0: none */
};

struct pushes {
	struct kernel *kernel;
	struct rt_mutex lock;
	struct rt_cond work, pushed;
	struct inode_state *first,
		**end;   /* files that are open here, in the order of listing */
	uint64_t number; /* of the last that was listed */
	struct run run[RUNS_MAX];
	bool stopping;
	struct rt_task *task;
};

/* ---- the list (under the lock) -------------------------------------------------------- */

static void list_add(struct pushes *p, struct inode_state *st, uint64_t due_ns)
{
	st->push.listed = true;
	st->push.number = ++p->number;
	st->push.due_ns = due_ns;
	st->push.next = NULL;
	*p->end = st;
	p->end = &st->push.next;
}

static void list_remove(struct pushes *p, struct inode_state *st)
{
	struct inode_state **at = &p->first;

	while (*at != st)
		at = &(*at)->push.next;
	*at = st->push.next;
	if (!*at)
		p->end = at;
	st->push.listed = false;
}

/* That of the inode; of 0: a free one. NULL: there is none. */
static struct run *run_of(struct pushes *p, uint64_t ino)
{
	for (unsigned i = 0; i < RUNS_MAX; i++)
		if (p->run[i].ino == ino)
			return &p->run[i];
	return NULL;
}

/*
 * The first file that is to be pushed now, or NULL; then *until_ns says when to look again. `before`: whether
 * due or not, of those that were listed up to that number; 0: those that are due.
 */
static struct inode_state *list_due(struct pushes *p, uint64_t before, uint64_t *until_ns)
{
	uint64_t now = rt_now_ns();

	*until_ns = RT_FOREVER;
	for (struct inode_state *st = p->first; st && run_of(p, 0); st = st->push.next) {
		if (run_of(p, st->ino))
			continue;
		if (before ? st->push.number <= before : st->push.due_ns <= now)
			return st;
		*until_ns = MIN(*until_ns, st->push.due_ns);
	}
	return NULL;
}

/* Is one of those under way that were listed up to that number? */
static bool runs_before(const struct pushes *p, uint64_t number)
{
	for (unsigned i = 0; i < RUNS_MAX; i++)
		if (p->run[i].ino && p->run[i].number <= number)
			return true;
	return false;
}

/* ---- one push --------------------------------------------------------------------------- */

/* False: not now. */
static bool size_tell(struct kernel *k, struct ops_size *size)
{
	if (size->size == 0)
		return true;
	if (!ops_size_begin(k->fs, size))
		return false;
	k->ops->tell_size(k->owner, size->ino, size->size);
	ops_size_end(k->fs, size);
	return true;
}

/* `asker`: a thread, which has taken in what it was told; or 0. -EAGAIN: the leaf is about to be given up. */
static int size_push(struct kernel *k, uint64_t ino, uint32_t asker)
{
	struct tree_exposure e = {.kinds = EXPOSE_ATTRIBUTES};
	struct ops_size size = ops_size_look(k->fs, ino);
	struct ops_attr attr;
	int rc = inode_attr_exposed(k->fs, &e, ino, &attr);

	if (rc)
		return rc;
	size.size = attr.inode.size;
	if (!size_is_had(k, asker, &attr) && !size_tell(k, &size))
		return -EAGAIN;
	return e.exposed ? 0 : -EAGAIN;
}

/* What is known of the file after a push that said `rc`: when it is looked at again. */
static void push_note(struct pushes *p, uint64_t ino, int rc)
{
	struct rt_mutex *stripe;
	struct inode_state *st = state_open_peek(p->kernel->fs, ino, &stripe);
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

/* Under the lock, which it lets go of. */
static void push_run(struct pushes *p, struct inode_state *st)
{
	struct kernel *k = p->kernel;
	struct run *run = run_of(p, 0);
	uint64_t ino = st->ino;
	int rc;

	*run = (struct run){ino, st->push.number};
	list_remove(p, st);
	rt_mutex_unlock(&p->lock);
	rc = tree_is_near(k->fs->tree, disk_key(ino, DISK_ITEM_INODE, 0))
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
		struct inode_state *st = list_due(p, 0, &until_ns);

		if (st)
			push_run(p, st);
		else
			(void)rt_cond_wait(&p->work, &p->lock, until_ns);
	}
	rt_mutex_unlock(&p->lock);
}

/* ---- who asks for it ------------------------------------------------------------------------ */

void kernel_push(struct kernel *k, uint64_t ino)
{
	struct pushes *p = k->pushes;
	struct rt_mutex *stripe;
	struct inode_state *st = state_open_peek(k->fs, ino, &stripe);
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

void kernel_push_closed(struct kernel *k, struct inode_state *st)
{
	struct pushes *p = k->pushes;

	rt_mutex_lock(&p->lock);
	if (st->push.listed)
		list_remove(p, st);
	rt_mutex_unlock(&p->lock);
}

void ops_kernel_opened(struct fs *fs, struct ops_file *file, uint32_t asker)
{
	if (fs->kernel && size_push(fs->kernel, file->state->ino, asker) == -EAGAIN)
		kernel_push(fs->kernel, file->state->ino);
}

void ops_sizes_await(struct fs *fs)
{
	uint64_t number, until_ns = rt_now_ns() + AWAIT_NS, due_ns;
	struct pushes *p = fs->kernel ? fs->kernel->pushes : NULL;
	struct inode_state *st;

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

int kernel_pushes_start(struct kernel *k)
{
	struct pushes *p = rt_alloc(sizeof(*p));
	int e;

	if (!p)
		return -ENOMEM;
	p->kernel = k;
	p->end = &p->first;
	k->pushes = p;
	e = rt_task_spawn(&p->task, "weft-sizes", push_main, p);
	if (e)
		p->task = NULL;
	return e;
}

void kernel_pushes_stop(struct kernel *k)
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
