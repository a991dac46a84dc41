/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Waiting for a page only as long as something stands (guard_shared_while): a task of this file
 * asks for it, and whoever wants it may go. What was asked for comes all the same, and is
 * given to whoever else wants it.
 *
 * Keeps: as many tasks as questions, up to TASKS_MAX, since each may wait for one that waits for
 * whoever has gone. A page is handed over latched, so that it is not lost in between.
 *
 * Locks: `lock` is a leaf.
 */
#include "engine/cache/cache_internal.h"

#define TASKS_MAX 256u
#define LOOK_NS   1000000ull /* so often it is asked whether it stands */

struct apart_call {
	struct apart_call *next;
	page_id pid;
	uint64_t incarnation;
	enum guard_kind kind;
	struct guard guard;
	int result;
	bool done, left; /* by whoever wanted it: the task frees it */
};

struct apart {
	struct rt_mutex lock; /* all below */
	struct rt_cond work, answered;
	struct apart_call *first, **end;
	unsigned queued, idle, tasks;
	bool stopping;
	struct rt_task *task[TASKS_MAX];
};

static void call_get(struct cache *c, struct apart_call *a)
{
	a->result = a->kind == GUARD_EXCLUSIVE
			    ? guard_exclusive(c, a->pid, a->incarnation, &a->guard)
			    : guard_shared(c, a->pid, a->incarnation, &a->guard);
}

static struct apart_call *call_take(struct apart *p)
{
	struct apart_call *a = p->first;

	if (!a)
		return NULL;
	p->first = a->next;
	if (!p->first)
		p->end = &p->first;
	p->queued--;
	return a;
}

static void apart_main(void *arg)
{
	struct cache *c = arg;
	struct apart *p = c->apart;
	struct apart_call *a;
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
	struct apart *p = c->apart;
	int e;

	if (p->queued <= p->idle || p->tasks == TASKS_MAX)
		return 0;
	e = rt_task_spawn(&p->task[p->tasks], "weft-apart", apart_main, c);
	if (!e)
		p->tasks++;
	return e;
}

static void call_queue(struct cache *c, struct apart_call *a)
{
	struct apart *p = c->apart;

	rt_mutex_lock(&p->lock);
	*p->end = a;
	p->end = &a->next;
	p->queued++;
	(void)task_add(c);
	rt_mutex_unlock(&p->lock);
	rt_cond_signal(&p->work);
}

/* False: it does not stand any more. */
static bool call_await(struct cache *c, struct apart_call *a, cache_stands *stands, void *arg)
{
	struct apart *p = c->apart;
	bool done;

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
	return done;
}

static int guard_while(struct cache *c, const struct apart_call *what, cache_stands *stands,
	void *arg, struct guard *g)
{
	struct apart_call *a = rt_alloc(sizeof(*a));
	int e;

	g->kind = GUARD_NONE;
	if (!a)
		return -ENOMEM;
	*a = *what;
	call_queue(c, a);
	if (!call_await(c, a, stands, arg))
		return -EAGAIN;
	*g = a->guard;
	e = a->result;
	rt_free(a);
	return e;
}

int guard_shared_while(struct cache *c, page_id pid, uint64_t incarnation,
	cache_stands *stands, void *arg, struct guard *g)
{
	struct apart_call what = {
		.pid = pid, .incarnation = incarnation, .kind = GUARD_SHARED};

	if (!c->apart)
		return guard_shared(c, pid, incarnation, g);
	return guard_try_shared(c, pid, incarnation, g) == 0
		       ? 0
		       : guard_while(c, &what, stands, arg, g);
}

int guard_exclusive_while(struct cache *c, page_id pid, uint64_t incarnation,
	cache_stands *stands, void *arg, struct guard *g)
{
	struct apart_call what = {
		.pid = pid, .incarnation = incarnation, .kind = GUARD_EXCLUSIVE};

	if (!c->apart)
		return guard_exclusive(c, pid, incarnation, g);
	return guard_try_exclusive(c, pid, incarnation, g) == 0
		       ? 0
		       : guard_while(c, &what, stands, arg, g);
}

/* With one task from the start, so that there is one whatever comes. */
int cache_stores_start(struct cache *c)
{
	struct apart *p = rt_alloc(sizeof(*p));
	int e;

	if (!p)
		return -ENOMEM;
	p->end = &p->first;
	c->apart = p;
	e = rt_task_spawn(&p->task[0], "weft-apart", apart_main, c);
	if (e) {
		c->apart = NULL;
		rt_free(p);
		return e;
	}
	p->tasks = 1;
	return 0;
}

void apart_stop(struct cache *c)
{
	struct apart *p = c->apart;

	if (!p)
		return;
	rt_mutex_lock(&p->lock);
	p->stopping = true;
	rt_mutex_unlock(&p->lock);
	rt_cond_broadcast(&p->work);
	for (unsigned i = 0; i < p->tasks; i++)
		rt_task_join(p->task[i]);
	c->apart = NULL;
	rt_free(p);
}
