/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Workloads: tasks that choose among what there is, the judgement of each answer, and
 * what the model is told of it. workload_ops.c has the operations.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/sim/workload_internal.h"

/* Node tasks vanish at a cut: what they use is the harness's. */
static struct worker workers[MODEL_TASKS];

_Noreturn void workload_die(const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	vfprintf(stderr, fmt, args);
	va_end(args);
	fputc('\n', stderr);
	abort();
}

uint64_t rnd(struct worker *w, uint64_t below)
{
	uint64_t z = w->rng += 0x9e3779b97f4a7c15ull;

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
	return (z ^ (z >> 31)) % below;
}

/* ---- outcomes -------------------------------------------------------------------- */

static bool arranged(const struct worker *w, int64_t rc)
{
	switch (rc) {
	case -EIO:
		return w->w->errors & WORKLOAD_EIO;
	case -EROFS:
		return (w->w->errors & WORKLOAD_EIO) && volume_failed(fs_volume(w->fs));
	case -ENOMEM:
		return w->w->errors & WORKLOAD_ENOMEM;
	case -ENOSPC:
		return w->w->errors & WORKLOAD_ENOSPC;
	default:
		return false;
	}
}

/* Pages that cannot be written fill the cache once the log has failed: no room to read.
 */
static bool choked(const struct worker *w)
{
	struct volume *v = fs_volume(w->fs);

	return volume_failed(v) &&
	       cache_dirty_pages(v->cache) > cache_frame_count(v->cache) / 4;
}

/* False: there is no more to be seen in this life. */
static bool look(struct worker *w)
{
	int rc = 0;

	for (unsigned tries = 0; tries < 3; tries++) {
		rc = model_look(w->m, w->task, w->fs, &w->seen);
		if (rc == 0)
			return true;
		if (rc > 0)
			workload_die("task %c sees: %s", w->t->letter, w->m->why);
		if (!arranged(w, rc))
			break;
		if (w->w->heal)
			w->w->heal();
		if (choked(w))
			return false;
	}
	workload_die("failed %d dirty %llu of %llu; task %c: looking at what it has: %s",
		volume_failed(fs_volume(w->fs)),
		(unsigned long long)cache_dirty_pages(fs_volume(w->fs)->cache),
		(unsigned long long)cache_frame_count(fs_volume(w->fs)->cache),
		w->t->letter, strerror(-rc));
}

void worker_audit(struct worker *w)
{
	if (!look(w))
		return;
	if (!model_is_now(w->m, w->task, &w->seen))
		workload_die("task %c: not what it made: %s", w->t->letter, w->m->why);
}

/* An operation in flight has returned one of the arranged errors, or less than was asked
 * for. */
void op_settle(struct worker *w, int64_t rc)
{
	const char *what = w->t->op[w->t->ops - 1].what;

	w->w->failed++;
	w->read_only |= rc == -EROFS;
	if (!look(w)) {
		/* it stays in flight for the model: it may have happened or not */
		w->choked = w->read_only = w->w->choked = true;
		return;
	}
	if (!model_settle(w->m, w->task, &w->seen))
		workload_die("task %c: %s returned %lld (%s), then: %s", w->t->letter,
			what, (long long)rc, rc < 0 ? strerror((int)-rc) : "short",
			w->m->why);
}

struct model_op *op_begin(struct worker *w, const struct model_op *op)
{
	return model_begin(w->m, w->t, op);
}

static bool is_open(const struct worker *w, int node)
{
	for (unsigned i = 0; i < HANDLES; i++)
		if (w->handle[i].file && w->handle[i].node == node)
			return true;
	return false;
}

/* Nodes without a name that nobody has open are gone. */
static void sweep(struct worker *w)
{
	for (int i = MODEL_SHARED + 1; i < (int)MODEL_NODES; i++)
		if (w->t->now.node[i].used && w->t->now.node[i].nlink == 0 &&
			!is_open(w, i))
			w->t->now.node[i].used = false;
}

/* The end of a call that had to succeed. True: it has. */
bool op_finish(struct worker *w, int64_t rc, uint64_t ino)
{
	if (rc == 0) {
		model_done(w->m, w->t, ino);
		sweep(w);
		return true;
	}
	if (!arranged(w, rc))
		workload_die("task %c: %s returned %lld (%s)", w->t->letter,
			w->t->op[w->t->ops - 1].what, (long long)rc, strerror((int)-rc));
	op_settle(w, rc);
	return false;
}

/* The end of one that had to fail, or that is no change. */
bool op_expect(struct worker *w, const char *what, int64_t rc, int64_t want)
{
	if (rc == want)
		return true;
	if (!arranged(w, rc))
		workload_die("task %c: %s returned %lld, not %lld", w->t->letter, what,
			(long long)rc, (long long)want);
	w->w->failed++;
	w->read_only |= rc == -EROFS;
	return false;
}

/* ---- choices --------------------------------------------------------------------- */

struct model_node *node_at(struct worker *w, int node)
{
	return &w->t->now.node[node];
}

int any_node(struct worker *w, bool (*fits)(const struct model_node *))
{
	unsigned start = (unsigned)rnd(w, MODEL_NODES);

	for (unsigned i = 0; i < MODEL_NODES; i++) {
		int node = (int)((start + i) % MODEL_NODES);
		const struct model_node *n = node_at(w, node);

		if (n->used && n->nlink > 0 && fits(n))
			return node;
	}
	return -1;
}

bool fits_any(const struct model_node *n)
{
	return n->parent >= 0 || !is_dir(n); /* not the two roots */
}

bool fits_dir(const struct model_node *n)
{
	return is_dir(n);
}

bool fits_file(const struct model_node *n)
{
	return S_ISREG(n->mode);
}

bool fits_link(const struct model_node *n)
{
	return S_ISLNK(n->mode);
}

int any_dir(struct worker *w)
{
	return rnd(w, 4) == 0 ? MODEL_ROOT : any_node(w, fits_dir);
}

uint64_t ino_of(struct worker *w, int node)
{
	return node_at(w, node)->ino;
}

struct ops_name name_at(struct worker *w, int dir, int name, char *buf)
{
	model_name(w->t, dir, (unsigned)name, buf);
	return (struct ops_name){buf, strlen(buf)};
}

static unsigned pages_held(const struct worker *w)
{
	unsigned pages = 0;

	for (unsigned i = 0; i < MODEL_NODES; i++) {
		const struct model_node *n = &w->t->now.node[i];

		if (!n->used)
			continue;
		if (S_ISREG(n->mode))
			pages += (unsigned)DIV_UP(n->size, PAGE_SIZE);
		for (unsigned x = 0; x < MODEL_XATTRS; x++)
			pages += n->xattr[x].set ? n->xattr[x].len / PAGE_SIZE : 0;
	}
	return pages;
}

bool may_grow(const struct worker *w)
{
	return w->w->large || pages_held(w) < TASK_PAGES;
}

/* ---- handles --------------------------------------------------------------------- */

void handle_close(struct worker *w, struct handle *h)
{
	if (!h->file)
		return;
	ops_close(w->fs, h->file);
	h->file = NULL;
	sweep(w);
}

/* A slot for another handle. */
struct handle *handle_free(struct worker *w)
{
	struct handle *h = &w->handle[rnd(w, HANDLES)];

	handle_close(w, h);
	return h;
}

/* Some file, open. NULL: none. */
struct handle *handle_any(struct worker *w)
{
	struct handle *h = &w->handle[rnd(w, HANDLES)];
	int node, rc;

	if (h->file && rnd(w, 4))
		return h;
	node = any_node(w, fits_file);
	if (node < 0)
		return NULL;
	for (unsigned i = 0; i < HANDLES; i++)
		if (w->handle[i].file && w->handle[i].node == node && rnd(w, 2))
			return &w->handle[i];
	handle_close(w, h);
	rc = ops_open(w->fs, ino_of(w, node), &caller, O_RDWR, &h->file, NULL);
	if (!op_expect(w, "open", rc, 0)) {
		h->file = NULL;
		return NULL;
	}
	h->node = node;
	return h;
}

/* ---- tasks ----------------------------------------------------------------------- */

/* The log has failed: nothing may change any more, everything can be read. */
static void read_only_end(struct worker *w)
{
	struct ops_attr a;
	int rc;

	for (unsigned i = 0; i < HANDLES; i++)
		handle_close(w, &w->handle[i]);
	rc = ops_mknod(w->fs, DISK_INO_ROOT, (struct ops_name){"never", 5}, &caller,
		S_IFREG | 0600, 0, 0, &a);
	if (rc != -EROFS)
		workload_die("a change after the log's failure returned %d", rc);
	worker_audit(w);
}

static void worker_main(void *arg)
{
	struct worker *w = arg;

	for (unsigned i = 0; i < w->w->ops && !w->read_only && w->t->ops < MODEL_OPS - 1;
		i++)
		any_op(w);
	if (w->read_only && !w->choked)
		read_only_end(w);
	for (unsigned i = 0; i < HANDLES; i++)
		handle_close(w, &w->handle[i]);
}

static void worker_make(struct workload *load, unsigned task)
{
	struct worker *w = &workers[task];

	model_seen_free(&w->seen);
	memset(w, 0, offsetof(struct worker, bytes));
	w->w = load;
	w->m = load->model;
	w->t = &load->model->task[task];
	w->task = task;
	w->fs = load->fs;
	w->rng = load->seed * 0x9e3779b97f4a7c15ull + task * 1000003;
}

void workload_run(struct workload *load)
{
	for (unsigned i = 0; i < load->tasks; i++)
		worker_make(load, i);
	for (unsigned i = 0; i < load->tasks; i++) {
		char name[8];
		int rc;

		snprintf(name, sizeof(name), "work%c", workers[i].t->letter);
		while ((rc = rt_task_spawn(&workers[i].rt, name, worker_main,
				&workers[i])) == -ENOMEM)
			;
		WEFT_ASSERT(rc == 0);
	}
	for (unsigned i = 0; i < load->tasks; i++)
		rt_task_join(workers[i].rt);
}

void workload_audit(struct workload *load, unsigned task)
{
	worker_make(load, task);
	worker_audit(&workers[task]);
}
