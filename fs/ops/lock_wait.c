/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lock requests that wait. See docs/nodes/locks.md.
 *
 * The task that starts a request tries it. Then the request is *parked*. It becomes *ready* when it
 * is woken (by its ticket, or with all), is cancelled, or its patience ends. A *taker*, one of a
 * few tasks, then tries it again. So a request that waits for another owner has no task; one that
 * waits for a page has. Requests for one file are tried one after the other, because they would
 * only conflict.
 *
 * Keeps: one task at a time tries a request. The request can be found by its ticket before it is
 * recorded. If it is woken while it is tried, it is tried once more; so no wake-up is lost. A
 * request that has ended has no record.
 */
#include "fs/ops/lock_internal.h"

enum { WAIT_NEW, WAIT_TRIED, WAIT_PARKED, WAIT_READY, WAIT_OVER };

/* Time until a cycle that two requests have closed at the same moment is looked at again. */
#define CYCLE_PAUSE_NS 20000000ull

static struct ops_lock_wait **ticket_bucket(struct locks *k, uint64_t ticket)
{
	return &k->wait[ticket % LOCK_BUCKETS];
}

/* ---- takers ------------------------------------------------------------------------------ */

static void taker_main(void *arg);

/* Without a taker no parked request would end. Under the lock. */
static int taker_add(struct locks *k)
{
	int rc;

	if (k->takers == LOCK_TAKERS_MAX)
		return 0;
	rc = rt_task_spawn(&k->taker[k->takers], "locks", taker_main, k);
	k->takers += rc == 0;
	return k->takers ? 0 : rc;
}

/* Returns its place in the list, or the list's end if no taker works on the inode. Under the
 * lock. */
static unsigned taken_find(const struct locks *k, uint64_t ino)
{
	unsigned i = 0;

	while (i < k->takens && k->taken[i] != ino)
		i++;
	return i;
}

static bool is_taken(const struct locks *k, uint64_t ino)
{
	return taken_find(k, ino) < k->takens;
}

/* Wakes a taker, because there is work. Under the lock. */
static void taker_call(struct locks *k)
{
	if (k->idle == 0)
		(void)taker_add(k);
	rt_cond_signal(&k->work);
}

/* Under the lock. */
static void make_ready(struct locks *k, struct ops_lock_wait *w)
{
	if (w->own.state != WAIT_PARKED)
		return;
	w->own.state = WAIT_READY;
	k->deferred -= w->own.passes_ns != RT_FOREVER;
	w->own.next_ready = NULL;
	*k->ready_last = w;
	k->ready_last = &w->own.next_ready;
	if (!is_taken(k, w->own.ino))
		taker_call(k);
}

/* Returns a ready request of a file on which no taker works, or NULL. Under the lock. */
static struct ops_lock_wait *ready_find(struct locks *k, bool take)
{
	struct ops_lock_wait **at = &k->ready, *w;

	while (*at && is_taken(k, (*at)->own.ino))
		at = &(*at)->own.next_ready;
	w = *at;
	if (!w || !take)
		return w;
	*at = w->own.next_ready;
	if (!*at)
		k->ready_last = at;
	w->own.state = WAIT_TRIED;
	k->taken[k->takens++] = w->own.ino;
	return w;
}

/* Makes requests ready whose patience has ended. Returns the time when that of the next one ends.
 * Under the lock. */
static uint64_t deferred_look(struct locks *k)
{
	uint64_t now, next = RT_FOREVER;

	if (k->deferred == 0)
		return next;
	now = rt_now_ns();
	for (unsigned i = 0; i < LOCK_BUCKETS; i++)
		for (struct ops_lock_wait *w = k->wait[i]; w; w = w->own.next) {
			if (w->own.state != WAIT_PARKED)
				continue;
			if (w->own.passes_ns <= now)
				make_ready(k, w);
			else
				next = MIN(next, w->own.passes_ns);
		}
	return next;
}

/* ---- trying ------------------------------------------------------------------------------- */

static int wait_begin(struct locks *k, struct ops_lock_wait *w)
{
	int rc = 0;

	rt_mutex_lock(&k->lock);
	if (k->ending)
		rc = -ENOTCONN;
	else if (k->waits == LOCK_WAITS_MAX)
		rc = -ENOLCK;
	else if (k->takers == 0)
		rc = taker_add(k) ? -ENOLCK : 0;
	if (rc == 0) {
		w->own.ticket = ++k->ticket;
		w->own.state = WAIT_TRIED;
		w->own.next = *ticket_bucket(k, w->own.ticket);
		*ticket_bucket(k, w->own.ticket) = w;
		k->waits++;
	}
	rt_mutex_unlock(&k->lock);
	return rc;
}

/* From here on the request cannot be found. */
static void wait_end(struct locks *k, struct ops_lock_wait *w)
{
	struct ops_lock_wait **at = ticket_bucket(k, w->own.ticket);

	lock_owner_leave(k, w->own.owner);
	rt_mutex_lock(&k->lock);
	while (*at != w)
		at = &(*at)->own.next;
	*at = w->own.next;
	w->own.state = WAIT_OVER;
	rt_mutex_unlock(&k->lock);
}

static void wait_ended(struct locks *k)
{
	rt_mutex_lock(&k->lock);
	if (--k->waits == 0)
		rt_cond_broadcast(&k->ended);
	rt_mutex_unlock(&k->lock);
}

/* Returns true if no wake-up came during the try, and the request is parked. */
static bool wait_park(struct locks *k, struct ops_lock_wait *w)
{
	bool rests;

	rt_mutex_lock(&k->lock);
	rests = !w->own.woken && !w->own.cancelled;
	if (rests) {
		w->own.state = WAIT_PARKED;
		if (w->own.passes_ns != RT_FOREVER) {
			k->deferred++;
			rt_cond_signal(&k->work); /* a taker must wake at a time */
		}
	}
	rt_mutex_unlock(&k->lock);
	return rests;
}

/* Returns the error of a cancel, or 0. The next try covers all wake-ups up to here. */
static int look_up(struct locks *k, struct ops_lock_wait *w)
{
	int cancelled;

	rt_mutex_lock(&k->lock);
	cancelled = w->own.cancelled;
	w->own.woken = false;
	rt_mutex_unlock(&k->lock);
	return cancelled;
}

static void held_set(
	struct locks *k, struct ops_lock_wait *w, const struct ops_lock_held *held)
{
	rt_mutex_lock(&k->lock);
	w->own.held = *held;
	rt_mutex_unlock(&k->lock);
}

/* Sets the time until which it waits for requests that wait. */
static void be_patient(struct ops_lock_wait *w, bool behind)
{
	if (!behind)
		w->own.passes_ns = RT_FOREVER;
	else if (w->own.passes_ns == RT_FOREVER)
		w->own.passes_ns = rt_now_ns() + LOCK_PATIENCE_NS;
}

static bool is_patient(const struct ops_lock_wait *w)
{
	return w->own.passes_ns == RT_FOREVER || rt_now_ns() < w->own.passes_ns;
}

static bool is_deadlock(
	struct locks *k, struct ops_lock_wait *w, const struct disk_lock *r)
{
	struct lock_edge start = {w->own.ticket, w->own.ino, *r};
	bool other;

	if (w->lock.kind != OPS_LOCK_POSIX || !lock_cycle(k, &start, &other))
		return false;
	if (!other)
		return true;
	rt_sleep_ns(CYCLE_PAUSE_NS);
	return lock_cycle(k, &start, &other);
}

/* Tries until the request has the lock, fails, or is parked. -EINPROGRESS: another task may have
 * the request, or have freed it. */
static int try_it(struct locks *k, struct ops_lock_wait *w)
{
	struct disk_lock r = lock_record(k, &w->lock, w->own.ticket);

	for (;;) {
		struct ops_lock_held held;
		int rc = look_up(k, w);
		bool behind = false;

		if (rc == 0)
			rc = lock_try(k->fs, w->own.ino, &r, is_patient(w), &behind,
				&held);
		if (rc == -EINPROGRESS)
			held_set(k, w, &held);
		if (rc == -EINPROGRESS && !w->own.recorded) {
			w->own.recorded = true;
			if (is_deadlock(k, w, &r))
				rc = -EDEADLK;
		}
		if (rc != -EINPROGRESS) {
			if (rc && w->own.recorded)
				(void)lock_unwait(k->fs, w->own.ino, &r);
			return rc;
		}
		be_patient(w, behind);
		if (wait_park(k, w))
			return rc;
	}
}

static void taker_main(void *arg)
{
	struct locks *k = arg;

	rt_mutex_lock(&k->lock);
	for (;;) {
		uint64_t next = deferred_look(k);
		struct ops_lock_wait *w = ready_find(k, true);
		uint64_t ino;
		int rc;

		if (!w && k->stopping)
			break;
		if (!w) {
			k->idle++;
			rt_cond_wait(&k->work, &k->lock, next);
			k->idle--;
			continue;
		}
		ino = w->own.ino;
		/* This task may wait for a page. */
		if ((k->deferred && k->idle == 0) || ready_find(k, false))
			taker_call(k);
		rt_mutex_unlock(&k->lock);
		rc = try_it(k, w);
		if (rc != -EINPROGRESS) {
			wait_end(k, w);
			w->done(w->arg, rc);
			wait_ended(k);
		}
		rt_mutex_lock(&k->lock);
		k->taken[taken_find(k, ino)] = k->taken[k->takens - 1];
		k->takens--;
	}
	rt_mutex_unlock(&k->lock);
}

/* ---- operations ----------------------------------------------------------------------------- */

int ops_lock_start(struct fs *fs, struct ops_file *file, struct ops_lock_wait *w)
{
	struct locks *k = fs->locks;
	int rc;

	WEFT_ASSERT(w->own.state == WAIT_NEW);
	if (w->lock.type == OPS_LOCK_NONE)
		return ops_lock(fs, file, &w->lock);
	rc = lock_check(&w->lock);
	ops_count(fs, OPS_CALL_LOCK);
	if (rc)
		return rc;
	w->own.ino = file->state->ino;
	w->own.passes_ns = RT_FOREVER;
	w->own.began_ns = rt_now_ns();
	rc = lock_owner_enter(k, file, &w->lock, &w->own.owner);
	if (rc)
		return rc;
	rc = wait_begin(k, w);
	if (rc) {
		lock_owner_leave(k, w->own.owner);
		return rc;
	}
	rc = try_it(k, w);
	if (rc == -EINPROGRESS)
		return rc;
	wait_end(k, w);
	wait_ended(k);
	return rc;
}

/* Under the lock. */
static void wait_cancel(struct locks *k, struct ops_lock_wait *w, int why)
{
	if (!w->own.cancelled)
		w->own.cancelled = why;
	make_ready(k, w);
}

void ops_lock_cancel(struct fs *fs, struct ops_lock_wait *w)
{
	struct locks *k = fs->locks;

	rt_mutex_lock(&k->lock);
	wait_cancel(k, w, -EINTR);
	rt_mutex_unlock(&k->lock);
}

void ops_locks_end(struct fs *fs)
{
	struct locks *k = fs->locks;

	rt_mutex_lock(&k->lock);
	k->ending = true;
	for (unsigned i = 0; i < LOCK_BUCKETS; i++)
		for (struct ops_lock_wait *w = k->wait[i]; w; w = w->own.next)
			wait_cancel(k, w, -ENOTCONN);
	while (k->waits)
		rt_cond_wait(&k->ended, &k->lock, RT_FOREVER);
	rt_mutex_unlock(&k->lock);
	lock_owners_end(k);
}

/* ---- for people ------------------------------------------------------------------------------ */

/* Puts it in its place by age, if it is one of the `max` oldest. */
static void waiter_insert(struct ops_lock_waiter *list, unsigned count, unsigned max,
	const struct ops_lock_wait *w)
{
	unsigned at = MIN(count, max);

	while (at > 0 && list[at - 1].began_ns > w->own.began_ns)
		at--;
	if (at == max)
		return;
	memmove(&list[at + 1], &list[at], (MIN(count, max - 1) - at) * sizeof(*list));
	list[at] = (struct ops_lock_waiter){
		.ino = w->own.ino,
		.ticket = w->own.ticket,
		.began_ns = w->own.began_ns,
		.lock = w->lock,
		.held = w->own.held,
	};
}

unsigned ops_lock_waiters(struct fs *fs, struct ops_lock_waiter *out, unsigned max)
{
	struct locks *k = fs->locks;
	unsigned count = 0;

	rt_mutex_lock(&k->lock);
	for (unsigned i = 0; i < LOCK_BUCKETS; i++)
		for (struct ops_lock_wait *w = k->wait[i]; w; w = w->own.next)
			if (w->own.held.looked_ns)
				waiter_insert(out, count++, max, w);
	rt_mutex_unlock(&k->lock);
	return count;
}

/* Does nothing if the request has ended meanwhile. */
static void held_note(struct locks *k, uint64_t ticket, const struct ops_lock_held *held)
{
	rt_mutex_lock(&k->lock);
	for (struct ops_lock_wait *w = *ticket_bucket(k, ticket); w; w = w->own.next)
		if (w->own.ticket == ticket)
			w->own.held = *held;
	rt_mutex_unlock(&k->lock);
}

void ops_lock_waiters_look(struct fs *fs)
{
	struct ops_lock_waiter w[OPS_LOCK_LOOKS];
	struct locks *k = fs->locks;
	unsigned count = MIN(ops_lock_waiters(fs, w, OPS_LOCK_LOOKS), OPS_LOCK_LOOKS);

	for (unsigned i = 0; i < count; i++) {
		struct disk_lock want = lock_record(k, &w[i].lock, w[i].ticket);
		struct lock_list l = {0};
		struct ops_lock_held held;
		int rc = lock_list_get(fs, w[i].ino, &l);

		for (unsigned n = l.count; rc == 0 && n-- > 0;)
			if (lock_void(k, l.at[n].node, l.at[n].incarnation))
				lock_list_remove(&l, n);
		held = lock_list_held(&l, &want);
		lock_list_free(&l);
		if (rc == 0)
			held_note(k, w[i].ticket, &held);
		if (rt_task_unwanted())
			break;
	}
}

/* ---- for other files ----------------------------------------------------------------------- */

/* Under the lock. */
static void wait_wake(struct locks *k, struct ops_lock_wait *w)
{
	w->own.woken = true;
	make_ready(k, w);
}

int lock_wait_wake(struct locks *k, uint64_t ticket)
{
	bool found = ticket == 0;

	rt_mutex_lock(&k->lock);
	for (unsigned i = 0; i < LOCK_BUCKETS; i++) {
		if (ticket && i != ticket % LOCK_BUCKETS)
			continue;
		for (struct ops_lock_wait *w = k->wait[i]; w; w = w->own.next)
			if (ticket == 0 || w->own.ticket == ticket) {
				wait_wake(k, w);
				found = true;
			}
	}
	rt_mutex_unlock(&k->lock);
	return found ? 0 : -ENOENT;
}

bool lock_wait_of(struct locks *k, uint64_t owner, struct lock_edge *out)
{
	bool found = false;

	rt_mutex_lock(&k->lock);
	for (unsigned i = 0; i < LOCK_BUCKETS && !found; i++)
		for (struct ops_lock_wait *w = k->wait[i]; w && !found; w = w->own.next) {
			found = w->lock.kind == OPS_LOCK_POSIX && w->lock.owner == owner;
			if (found) {
				out->ticket = w->own.ticket;
				out->ino = w->own.ino;
				out->want = lock_record(k, &w->lock, w->own.ticket);
			}
		}
	rt_mutex_unlock(&k->lock);
	return found;
}

void lock_waits_open(struct locks *k)
{
	k->ready_last = &k->ready;
}

void lock_waits_close(struct locks *k)
{
	rt_mutex_lock(&k->lock);
	k->stopping = true;
	rt_cond_broadcast(&k->work);
	rt_mutex_unlock(&k->lock);
	for (unsigned i = 0; i < k->takers; i++)
		rt_task_join(k->taker[i]);
}
