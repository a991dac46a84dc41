/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests for locks, as one transaction each. See docs/nodes/locks.md.
 *
 * Keeps: a lock is added only by a transaction that found nothing held in its way.
 */
#include "fs/ops/lock_internal.h"

struct disk_lock lock_record(
	const struct locks *k, const struct ops_lock *lock, uint64_t ticket)
{
	bool whole = lock->kind == OPS_LOCK_FLOCK;

	return (struct disk_lock){
		.incarnation = k->incarnation,
		.owner = lock->owner,
		.first = whole ? 0 : lock->first,
		.last = whole ? OPS_LOCK_END : lock->last,
		.ticket = ticket,
		.pid = lock->pid,
		.node = (uint16_t)k->node,
		.kind = (uint8_t)lock->kind,
		.type = (uint8_t)lock->type,
	};
}
_Static_assert((int)OPS_LOCK_POSIX == (int)DISK_LOCK_POSIX &&
		       (int)OPS_LOCK_FLOCK == (int)DISK_LOCK_FLOCK,
	"kinds");
_Static_assert((int)OPS_LOCK_SHARED == (int)DISK_LOCK_SHARED &&
		       (int)OPS_LOCK_EXCLUSIVE == (int)DISK_LOCK_EXCLUSIVE,
	"types");

/* A file that is gone has no descriptor that could be locked. */
int lock_error(int rc)
{
	switch (rc) {
	case -ENOENT:
		return -EBADF;
	case -EROFS:
	case -ENOSPC:
	case -ENOMEM:
	case -E2BIG:
		return -ENOLCK;
	default:
		return rc;
	}
}

/* ---- what transactions do to the list -------------------------------------------------- */

static void waiter_remove(struct lock_list *l, const struct disk_lock *r)
{
	struct disk_lock *w =
		r->ticket ? lock_list_waiter(l, r->node, r->incarnation, r->ticket)
			  : NULL;

	if (w)
		lock_list_remove(l, (unsigned)(w - l->at));
}

/* Under its number, if it has one. */
static int waiter_record(struct lock_list *l, const struct disk_lock *r)
{
	struct disk_lock w = *r;
	int rc;

	if (lock_list_waiter(l, r->node, r->incarnation, r->ticket))
		return -EINPROGRESS;
	w.order = lock_list_order(l);
	w.type |= DISK_LOCK_WAITS;
	rc = lock_list_add(l, &w);
	return rc ? rc : -EINPROGRESS;
}

/* The owner's flock of another type. */
static void flock_drop(struct lock_list *l, const struct disk_lock *r)
{
	for (unsigned i = l->count; i-- > 0;)
		if (!lock_waits(&l->at[i]) && lock_same_owner(&l->at[i], r) &&
			lock_type(&l->at[i]) != lock_type(r))
			lock_list_remove(l, i);
}

struct ops_lock_held lock_list_held(
	const struct lock_list *l, const struct disk_lock *want)
{
	struct ops_lock_held held = {.looked_ns = rt_now_ns()};

	for (unsigned i = 0; i < l->count; i++) {
		const struct disk_lock *r = &l->at[i];

		if (lock_waits(r) || !lock_conflicts(r, want))
			continue;
		if (held.count++)
			continue;
		held.node = r->node;
		held.lock = (struct ops_lock){
			.kind = (enum ops_lock_kind)r->kind,
			.type = (enum ops_lock_type)lock_type(r),
			.owner = r->owner,
			.first = r->first,
			.last = r->last,
			.pid = r->pid,
		};
	}
	return held;
}

static int try_change(struct lock_list *l, struct lock_change *c)
{
	const struct disk_lock *r = c->lock, *w = NULL;
	uint64_t order = UINT64_MAX;

	if (r->ticket)
		w = lock_list_waiter(l, r->node, r->incarnation, r->ticket);
	if (w)
		order = w->order;
	if (r->kind == DISK_LOCK_FLOCK)
		flock_drop(l, r);
	c->behind = false;
	if (!lock_list_conflict(l, r)) {
		c->behind = c->patient && lock_list_must_queue(l, r, order);
		if (!c->behind) {
			waiter_remove(l, r);
			return lock_list_set(l, r, r->type);
		}
	}
	if (!c->waits)
		return -EAGAIN;
	c->held = lock_list_held(l, r);
	return waiter_record(l, r);
}

static int unlock_change(struct lock_list *l, struct lock_change *c)
{
	return lock_list_set(l, c->lock, 0);
}

static int clear_change(struct lock_list *l, struct lock_change *c)
{
	return lock_list_clear(l, c->lock);
}

static int unwait_change(struct lock_list *l, struct lock_change *c)
{
	waiter_remove(l, c->lock);
	return 0;
}

int lock_try(struct fs *fs, uint64_t ino, const struct disk_lock *r, bool patient,
	bool *behind, struct ops_lock_held *held)
{
	struct lock_change c = {.fs = fs,
		.ino = ino,
		.change = try_change,
		.lock = r,
		.waits = r->ticket != 0,
		.patient = patient};
	int rc = lock_list_change(&c, false);

	*behind = c.behind;
	*held = c.held;
	return lock_error(rc);
}

static int change_locks(struct fs *fs, uint64_t ino, const struct disk_lock *r,
	int (*what)(struct lock_list *l, struct lock_change *c))
{
	struct lock_change c = {.fs = fs, .ino = ino, .change = what, .lock = r};

	return lock_error(lock_list_change(&c, true));
}

int lock_unwait(struct fs *fs, uint64_t ino, const struct disk_lock *r)
{
	return change_locks(fs, ino, r, unwait_change);
}

int lock_clear(struct fs *fs, uint64_t ino, enum ops_lock_kind kind, uint64_t owner)
{
	const struct ops_lock lock = {.kind = kind, .owner = owner, .last = OPS_LOCK_END};
	struct disk_lock r = lock_record(fs->locks, &lock, 0);

	return change_locks(fs, ino, &r, clear_change);
}

/* ---- operations ------------------------------------------------------------------------- */

bool ops_locks_shared(struct fs *fs)
{
	return volume_others(fs->volume) != 0 && !fs->volume->read_only;
}

int lock_check(const struct ops_lock *lock)
{
	if (lock->kind != OPS_LOCK_POSIX && lock->kind != OPS_LOCK_FLOCK)
		return -EINVAL;
	if (lock->type > OPS_LOCK_EXCLUSIVE)
		return -EINVAL;
	if (lock->kind == OPS_LOCK_POSIX &&
		(lock->first > lock->last || lock->last > OPS_LOCK_END))
		return -EINVAL;
	return 0;
}

int ops_lock_test(struct fs *fs, struct ops_file *file, const struct ops_lock *want,
	struct ops_lock *found)
{
	struct disk_lock r = lock_record(fs->locks, want, 0);
	const struct disk_lock *hit = NULL;
	struct lock_list l = {0};
	int rc = lock_check(want);

	ops_count(fs, OPS_CALL_LOCK);
	if (rc)
		return rc;
	rc = lock_list_get(fs, file->state->ino, &l);
	for (unsigned i = l.count; rc == 0 && i-- > 0;)
		if (lock_void(fs->locks, l.at[i].node, l.at[i].incarnation))
			lock_list_remove(&l, i);
	if (rc == 0)
		hit = lock_list_first(&l, &r);
	*found = (struct ops_lock){.kind = want->kind, .type = OPS_LOCK_NONE};
	if (hit) {
		found->type = (enum ops_lock_type)lock_type(hit);
		found->owner = hit->owner;
		found->first = hit->first;
		found->last = hit->last;
		found->pid = hit->node == fs->locks->node ? hit->pid : 0;
	}
	lock_list_free(&l);
	return lock_error(rc);
}

static int unlock_range(struct fs *fs, struct ops_file *file, const struct ops_lock *lock)
{
	struct disk_lock r = lock_record(fs->locks, lock, 0);

	return change_locks(fs, file->state->ino, &r, unlock_change);
}

int ops_lock(struct fs *fs, struct ops_file *file, const struct ops_lock *lock)
{
	struct disk_lock r = lock_record(fs->locks, lock, 0);
	struct ops_lock_held held;
	struct lock_owner *owner;
	bool behind;
	int rc = lock_check(lock);

	ops_count(fs, OPS_CALL_LOCK);
	if (rc)
		return rc;
	if (lock->type == OPS_LOCK_NONE)
		return unlock_range(fs, file, lock);
	rc = lock_owner_enter(fs->locks, file, lock, &owner);
	if (rc)
		return rc;
	rc = lock_try(fs, file->state->ino, &r, false, &behind, &held);
	lock_owner_leave(fs->locks, owner);
	return rc;
}

/* ---- opening and closing ------------------------------------------------------------------ */

int locks_open(struct fs *fs)
{
	const struct disk_superblock *super = store_superblock(fs->volume->store);
	struct locks *k = rt_alloc(sizeof(*k));
	int rc;

	if (!k)
		return -ENOMEM;
	*k = (struct locks){
		.fs = fs, .node = super->node, .incarnation = super->incarnation};
	lock_waits_open(k);
	fs->locks = k;
	rc = ops_locks_shared(fs) ? lock_nodes_open(k) : 0;
	if (rc)
		locks_close(fs);
	return rc;
}

int fs_nodes_added(struct fs *fs)
{
	return ops_locks_shared(fs) ? lock_nodes_open(fs->locks) : 0;
}

void locks_close(struct fs *fs)
{
	struct locks *k = fs->locks;

	if (!k)
		return;
	ops_locks_end(fs);
	lock_nodes_stop(k);
	lock_waits_close(k);
	rt_free(k);
	fs->locks = NULL;
}
