/* SPDX-License-Identifier: Apache-2.0 */
/* Short words for locks, and requests that wait. */
#ifndef WEFT_TEST_LOCKS_FIXTURE_H
#define WEFT_TEST_LOCKS_FIXTURE_H

#include "fs/ops/lock_internal.h"
#include "tests/unit/ops_fixture.h"

static inline struct ops_file *open_file(struct fs *fs, uint64_t ino)
{
	struct ops_file *f;
	struct ops_attr a;

	OK(ops_open(fs, ino, &root_user, O_RDWR, &f, &a));
	return f;
}

static inline struct ops_lock posix(
	uint64_t owner, enum ops_lock_type type, uint64_t first, uint64_t last)
{
	return (struct ops_lock){.kind = OPS_LOCK_POSIX,
		.type = type,
		.owner = owner,
		.first = first,
		.last = last,
		.pid = (uint32_t)owner};
}

static inline struct ops_lock whole(uint64_t owner, enum ops_lock_type type)
{
	return (struct ops_lock){.kind = OPS_LOCK_FLOCK, .type = type, .owner = owner};
}

static inline int set(struct fs *fs, struct ops_file *f, struct ops_lock lock)
{
	return ops_lock(fs, f, &lock);
}

/* In the file's list. */
static inline unsigned records(struct fs *fs, uint64_t ino)
{
	struct lock_list l = {0};
	unsigned count;

	OK(lock_list_get(fs, ino, &l));
	count = l.count;
	lock_list_free(&l);
	return count;
}

/* ---- requests that wait -------------------------------------------------------------------- */

struct waiter {
	struct ops_lock_wait wait;
	_Atomic uint32_t over;
	int result;
	unsigned place; /* in the order of ending */
};
static _Atomic unsigned places;

static inline void waiter_done(void *arg, int result)
{
	struct waiter *w = (struct waiter *)arg;

	w->result = result;
	w->place = atomic_fetch_add(&places, 1);
	atomic_store(&w->over, 1);
	rt_wake(&w->over, 1);
}

/* What ops_lock_start returns. */
static inline int start(
	struct fs *fs, struct ops_file *f, struct waiter *w, struct ops_lock l)
{
	*w = (struct waiter){.wait = {.lock = l, .done = waiter_done}};
	w->wait.arg = w;
	return ops_lock_start(fs, f, &w->wait);
}

static inline int finish(struct waiter *w)
{
	while (!atomic_load(&w->over))
		rt_wait(&w->over, 0, RT_FOREVER);
	return w->result;
}

static inline bool is_over(struct waiter *w, uint64_t within_ns)
{
	uint64_t until = rt_now_ns() + within_ns;

	while (!atomic_load(&w->over) && rt_now_ns() < until)
		rt_wait(&w->over, 0, until);
	return atomic_load(&w->over);
}

/* Waits for the lock as long as it takes. */
static inline int lock_waiting(struct fs *fs, struct ops_file *f, struct ops_lock l)
{
	struct waiter w;
	int rc = start(fs, f, &w, l);

	return rc == -EINPROGRESS ? finish(&w) : rc;
}

#endif
