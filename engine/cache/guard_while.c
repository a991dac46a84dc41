/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Waits for a page that end when a condition ends (guard_shared_while). A task of this file
 * requests the page, so that the waiting task may go. The requested page comes nevertheless, and
 * serves other tasks.
 *
 * Keeps: as many tasks as requests, up to TASKS_MAX, since each may wait for a request whose caller
 * has gone. A page is handed over latched, so that it is not lost in between.
 *
 * Locks: `lock` is a leaf.
 */
#include "engine/cache/cache_internal.h"

#define TASKS_MAX 256u
#define LOOK_NS   1000000ull /* so often it is asked whether it stands */

struct while_call {
	struct while_call *next;
	page_id pid;
	uint64_t incarnation;
	enum guard_kind kind;
	struct guard guard;
	int result;
	bool done, left; /* by the caller that asked for it: the task frees it */
};

struct guards_while {
	struct rt_mutex lock; /* all below */
	struct rt_cond work, answered;
	struct while_call *first, **end;
	unsigned queued, idle, tasks;
	bool stopping;
	struct rt_task *task[TASKS_MAX];
};

static void call_get(struct cache *c, struct while_call *a)
{
	a->result = a->kind == GUARD_EXCLUSIVE
			    ? guard_exclusive(c, a->pid, a->incarnation, &a->guard)
			    : guard_shared(c, a->pid, a->incarnation, &a->guard);
}

static struct while_call *call_take(struct guards_while *p)
{
	struct while_call *a = p->first;

	if (!a)
		return NULL;
	p->first = a->next;
	if (!p->first)
		p->end = &p->first;
	p->queued--;
	return a;
}

static void guard_while_main(void *arg)
{
	struct cache *c = arg;
	struct guards_while *p = c->guards_while;
	struct while_call *a;
	bool left;

	rt_mutex_lock(&p->lock);
	for (;;) {
		while (!(a = call_take(p)) && !p->stopping) {
			p->idle++;
			rt_cond_wait(&p->work, &p->lock, RT_FOREVER);
			p->idle--;
		}
		if (!a)
			break;
		rt_mutex_unlock(&p->lock);
		call_get(c, a);
		rt_mutex_lock(&p->lock);
		a->done = true;
		left = a->left;
		rt_mutex_unlock(&p->lock);
		if (left) {
			guard_release(c, &a->guard);
			rt_free(a);
		} else {
			rt_cond_broadcast(&p->answered);
		}
		rt_mutex_lock(&p->lock);
	}
	rt_mutex_unlock(&p->lock);
}

/* Under the lock. If there is no more: those there are must do. */
static int task_add(struct cache *c)
{
	struct guards_while *p = c->guards_while;
	int rc;

	if (p->queued <= p->idle || p->tasks == TASKS_MAX)
		return 0;
	rc = rt_task_spawn(&p->task[p->tasks], "weft-guards", guard_while_main, c);
	if (!rc)
		p->tasks++;
	return rc;
}

static void call_queue(struct cache *c, struct while_call *a)
{
	struct guards_while *p = c->guards_while;

	rt_mutex_lock(&p->lock);
	*p->end = a;
	p->end = &a->next;
	p->queued++;
	(void)task_add(c);
	rt_mutex_unlock(&p->lock);
	rt_cond_signal(&p->work);
}

/* Returns false if it does not stand any more. */
static bool call_await(struct cache *c, struct while_call *a, cache_stands *stands, void *arg)
{
	struct guards_while *p = c->guards_while;
	const struct page_ref ref = {.pid = a->pid, .incarnation = a->incarnation};
	bool done;

	page_needed(&ref);
	rt_mutex_lock(&p->lock);
	while (!a->done) {
		(void)rt_cond_wait(&p->answered, &p->lock, rt_now_ns() + LOOK_NS);
		if (a->done)
			break;
		rt_mutex_unlock(&p->lock);
		done = !stands(arg);
		rt_mutex_lock(&p->lock);
		if (done)
			break;
	}
	done = a->done;
	a->left = !done;
	rt_mutex_unlock(&p->lock);
	page_came();
	return done;
}

static int guard_while(struct cache *c, const struct while_call *what, cache_stands *stands,
	void *arg, struct guard *g)
{
	struct while_call *a = rt_alloc(sizeof(*a));
	int rc;

	g->kind = GUARD_NONE;
	if (!a)
		return -ENOMEM;
	*a = *what;
	call_queue(c, a);
	if (!call_await(c, a, stands, arg))
		return -EAGAIN;
	*g = a->guard;
	rc = a->result;
	rt_free(a);
	return rc;
}

int guard_shared_while(struct cache *c, page_id pid, uint64_t incarnation,
	cache_stands *stands, void *arg, struct guard *g)
{
	struct while_call what = {
		.pid = pid, .incarnation = incarnation, .kind = GUARD_SHARED};

	if (!c->guards_while)
		return guard_shared(c, pid, incarnation, g);
	return guard_try_shared(c, pid, incarnation, g) == 0
		       ? 0
		       : guard_while(c, &what, stands, arg, g);
}

int guard_exclusive_while(struct cache *c, page_id pid, uint64_t incarnation,
	cache_stands *stands, void *arg, struct guard *g)
{
	struct while_call what = {
		.pid = pid, .incarnation = incarnation, .kind = GUARD_EXCLUSIVE};

	if (!c->guards_while)
		return guard_exclusive(c, pid, incarnation, g);
	return guard_try_exclusive(c, pid, incarnation, g) == 0
		       ? 0
		       : guard_while(c, &what, stands, arg, g);
}

/* Starts with one task, so that there is always one. */
int cache_stores_start(struct cache *c)
{
	struct guards_while *p = rt_alloc(sizeof(*p));
	int rc;

	if (!p)
		return -ENOMEM;
	p->end = &p->first;
	c->guards_while = p;
	rc = rt_task_spawn(&p->task[0], "weft-guards", guard_while_main, c);
	if (rc) {
		c->guards_while = NULL;
		rt_free(p);
		return rc;
	}
	p->tasks = 1;
	return 0;
}

void guard_while_stop(struct cache *c)
{
	struct guards_while *p = c->guards_while;

	if (!p)
		return;
	rt_mutex_lock(&p->lock);
	p->stopping = true;
	rt_mutex_unlock(&p->lock);
	rt_cond_broadcast(&p->work);
	for (unsigned i = 0; i < p->tasks; i++)
		rt_task_join(p->task[i]);
	c->guards_while = NULL;
	rt_free(p);
}
