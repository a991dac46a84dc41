/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rules of a file's list of locks: conflicts, the order of waiters, and how the ranges of an
 * owner are set, merged and split.
 *
 * Keeps: POSIX locks of one owner do not overlap, and ranges of one type do not touch. An owner has
 * one record for flock. The order of the list has no meaning: `order` has.
 */
#include "fs/ops/lock_internal.h"

/* ---- records ----------------------------------------------------------------------- */

bool lock_same_owner(const struct disk_lock *a, const struct disk_lock *b)
{
	return a->owner == b->owner && a->node == b->node &&
	       a->incarnation == b->incarnation && a->kind == b->kind;
}

static bool locks_overlap(const struct disk_lock *a, const struct disk_lock *b)
{
	return a->first <= b->last && b->first <= a->last;
}

bool lock_conflicts(const struct disk_lock *a, const struct disk_lock *b)
{
	return a->kind == b->kind && locks_overlap(a, b) && !lock_same_owner(a, b) &&
	       (lock_type(a) == DISK_LOCK_EXCLUSIVE ||
		       lock_type(b) == DISK_LOCK_EXCLUSIVE);
}

/* ---- the list ------------------------------------------------------------------------ */

static void mark_changed(struct lock_list *l, unsigned i)
{
	bool *item = &l->changed[i / DISK_LOCKS_AN_ITEM];

	l->changes += !*item;
	*item = true;
}

void lock_list_free(struct lock_list *l)
{
	rt_free(l->at);
	l->at = NULL;
	l->count = l->room = 0;
}

/* Makes room for so many records in all. Returns 0 or -ENOMEM. */
static int list_grow(struct lock_list *l, unsigned count)
{
	unsigned room = MAX(l->room, DISK_LOCKS_AN_ITEM);
	struct disk_lock *at;

	if (count <= l->room)
		return 0;
	while (room < count)
		room *= 2;
	at = rt_alloc(room * sizeof(*at));
	if (!at)
		return -ENOMEM;
	if (l->count)
		memcpy(at, l->at, l->count * sizeof(*at));
	rt_free(l->at);
	l->at = at;
	l->room = room;
	return 0;
}

int lock_list_parse(struct lock_list *l, const void *value, size_t len)
{
	unsigned n = (unsigned)(len / sizeof(struct disk_lock));
	int rc;

	if (len % sizeof(struct disk_lock) || n == 0 || n > DISK_LOCKS_AN_ITEM ||
		n > LOCKS_A_FILE_MAX - l->count)
		return -EUCLEAN;
	rc = list_grow(l, l->count + n);
	if (rc)
		return rc;
	memcpy(&l->at[l->count], value, len);
	for (unsigned i = 0; i < n; i++)
		if (!disk_lock_valid(&l->at[l->count + i]))
			return -EUCLEAN;
	l->count += n;
	return 0;
}

int lock_list_add(struct lock_list *l, const struct disk_lock *r)
{
	int rc = l->count == LOCKS_A_FILE_MAX ? -ENOLCK : list_grow(l, l->count + 1);

	if (rc)
		return rc;
	mark_changed(l, l->count);
	l->at[l->count++] = *r;
	return 0;
}

void lock_list_remove(struct lock_list *l, unsigned i)
{
	WEFT_ASSERT(i < l->count);
	mark_changed(l, i);
	mark_changed(l, --l->count);
	l->at[i] = l->at[l->count];
}

/* ---- conflicts ------------------------------------------------------------------------ */

const struct disk_lock *lock_list_conflict(
	const struct lock_list *l, const struct disk_lock *want)
{
	for (unsigned i = 0; i < l->count; i++)
		if (!lock_waits(&l->at[i]) && lock_conflicts(&l->at[i], want))
			return &l->at[i];
	return NULL;
}

const struct disk_lock *lock_list_first(
	const struct lock_list *l, const struct disk_lock *want)
{
	const struct disk_lock *first = NULL;

	for (unsigned i = 0; i < l->count; i++)
		if (!lock_waits(&l->at[i]) && lock_conflicts(&l->at[i], want) &&
			(!first || l->at[i].first < first->first))
			first = &l->at[i];
	return first;
}

bool lock_list_has(const struct lock_list *l, const struct disk_lock *owner)
{
	for (unsigned i = 0; i < l->count; i++)
		if (!lock_waits(&l->at[i]) && lock_same_owner(&l->at[i], owner))
			return true;
	return false;
}

bool lock_list_must_queue(
	const struct lock_list *l, const struct disk_lock *want, uint64_t order)
{
	for (unsigned i = 0; i < l->count; i++)
		if (lock_waits(&l->at[i]) && l->at[i].order < order &&
			lock_conflicts(&l->at[i], want))
			return !lock_list_has(l, want);
	return false;
}

bool lock_list_blocked(const struct lock_list *l, const struct disk_lock *waiter)
{
	return lock_list_conflict(l, waiter) ||
	       lock_list_must_queue(l, waiter, waiter->order);
}

struct disk_lock *lock_list_waiter(
	struct lock_list *l, unsigned node, uint64_t incarnation, uint64_t ticket)
{
	for (unsigned i = 0; i < l->count; i++)
		if (lock_waits(&l->at[i]) && l->at[i].node == node &&
			l->at[i].incarnation == incarnation && l->at[i].ticket == ticket)
			return &l->at[i];
	return NULL;
}

uint64_t lock_list_order(const struct lock_list *l)
{
	uint64_t order = 0;

	for (unsigned i = 0; i < l->count; i++)
		order = MAX(order, l->at[i].order);
	return order + 1;
}

/* ---- setting --------------------------------------------------------------------------- */

/* Cuts the range out of a record. Leaves nothing, one piece or two. */
static int cut_record(struct lock_list *l, unsigned i, const struct disk_lock *range)
{
	struct disk_lock behind = l->at[i];

	if (behind.last > range->last) {
		behind.first = range->last + 1;
		if (l->at[i].first >= range->first) {
			l->at[i] = behind;
			mark_changed(l, i);
			return 0;
		}
	}
	if (l->at[i].first >= range->first) {
		lock_list_remove(l, i);
		return 0;
	}
	if (behind.last > range->last) {
		int rc = lock_list_add(l, &behind);

		if (rc)
			return rc;
	}
	l->at[i].last = range->first - 1;
	mark_changed(l, i);
	return 0;
}

/* Also returns true if one begins right behind the other. `last` is never UINT64_MAX. */
static bool locks_touch(const struct disk_lock *a, const struct disk_lock *b)
{
	return a->first <= b->last + 1 && b->first <= a->last + 1;
}

int lock_list_set(struct lock_list *l, const struct disk_lock *lock, unsigned type)
{
	struct disk_lock all = *lock;
	int rc = 0, more = 0;

	/* Backwards: the record that takes the place of a removed one has been visited, and a
	 * record added by a cut needs no visit. */
	for (unsigned i = l->count; i-- > 0 && rc == 0;) {
		struct disk_lock *r = &l->at[i];
		bool joins;

		if (lock_waits(r) || !lock_same_owner(r, lock))
			continue;
		joins = lock_type(r) == type && locks_touch(r, lock);
		if (!joins && !locks_overlap(r, lock))
			continue;
		if (lock_list_spent(l)) {
			more = 1;
			break;
		}
		if (joins) {
			all.first = MIN(all.first, r->first);
			all.last = MAX(all.last, r->last);
			lock_list_remove(l, i);
		} else {
			rc = cut_record(l, i, lock);
		}
	}
	all.type = (uint8_t)type;
	all.ticket = all.order = 0;
	if (rc == 0 && type)
		rc = lock_list_add(l, &all);
	return rc ? rc : more;
}

int lock_list_clear(struct lock_list *l, const struct disk_lock *owner)
{
	for (unsigned i = l->count; i-- > 0;) {
		if (lock_waits(&l->at[i]) || !lock_same_owner(&l->at[i], owner))
			continue;
		if (lock_list_spent(l))
			return 1;
		lock_list_remove(l, i);
	}
	return 0;
}
