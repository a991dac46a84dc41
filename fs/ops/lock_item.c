/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A file's list of locks in the tree, and the transaction that changes it.
 *
 * Keeps: all items of a list except the last are full. Each commit wakes the waiters that the old
 * list blocks and the new list does not. For the old list void records also block, because their
 * removal unblocks waiters.
 */
#include "fs/ops/lock_internal.h"

static struct disk_key item_key(uint64_t ino, uint64_t item)
{
	return disk_key(ino, DISK_ITEM_LOCK, item);
}

int lock_list_read(struct txn *x, uint64_t ino, struct lock_list *l)
{
	uint8_t value[DISK_VALUE_MAX];
	uint64_t item = 0;

	l->count = l->changes = 0;
	memset(l->changed, 0, sizeof(l->changed));
	do {
		int rc = txn_read(x, item_key(ino, item), value, sizeof(value));

		if (rc == -ENOENT)
			break;
		if (rc >= 0)
			rc = lock_list_parse(l, value, (size_t)rc);
		if (rc)
			return rc;
	} while (l->count == ++item * DISK_LOCKS_AN_ITEM && item < DISK_LOCK_ITEMS);
	return 0;
}

int lock_list_write(struct txn *x, uint64_t ino, const struct lock_list *l)
{
	int rc = 0;

	for (unsigned item = 0; item < DISK_LOCK_ITEMS && rc == 0; item++) {
		unsigned first = item * DISK_LOCKS_AN_ITEM;

		if (!l->changed[item])
			continue;
		if (first >= l->count)
			rc = txn_delete(x, item_key(ino, item));
		else
			rc = txn_write(x, item_key(ino, item), &l->at[first],
				MIN(l->count - first, DISK_LOCKS_AN_ITEM) *
					sizeof(l->at[0]));
	}
	return rc;
}

struct list_get {
	uint64_t ino;
	struct lock_list *list;
};

static int get_body(struct txn *x, void *arg)
{
	struct list_get *g = arg;

	return lock_list_read(x, g->ino, g->list);
}

int lock_list_get(struct fs *fs, uint64_t ino, struct lock_list *l)
{
	struct list_get g = {ino, l};

	return ops_run(fs, 0, get_body, &g, NULL);
}

/* ---- changing ------------------------------------------------------------------------ */

/* Drops void records. Each record names its node's incarnation. Returns 0; 1: there are more. */
static int drop_void(struct locks *k, struct lock_list *l)
{
	for (unsigned i = 0; i < l->count; i++)
		lock_heard(k, l->at[i].node, l->at[i].incarnation);
	for (unsigned i = l->count; i-- > 0;) {
		if (!lock_void(k, l->at[i].node, l->at[i].incarnation))
			continue;
		if (lock_list_spent(l))
			return 1;
		lock_list_remove(l, i);
	}
	return 0;
}

static void wake_add(struct lock_wakes *w, const struct disk_lock *r)
{
	if (w->count == LOCK_WAKES_MAX) {
		w->all[r->node] = MAX(w->all[r->node], r->incarnation);
		return;
	}
	w->at[w->count].node = r->node;
	w->at[w->count].incarnation = r->incarnation;
	w->at[w->count++].ticket = r->ticket;
}

struct blocked {
	struct disk_lock *waiter; /* waiters that are blocked */
	unsigned count;
};

static int blocked_find(const struct lock_list *l, struct blocked *b)
{
	unsigned waiters = 0;

	*b = (struct blocked){0};
	for (unsigned i = 0; i < l->count; i++)
		waiters += lock_waits(&l->at[i]);
	if (!waiters)
		return 0;
	b->waiter = rt_alloc(waiters * sizeof(*b->waiter));
	if (!b->waiter)
		return -ENOMEM;
	for (unsigned i = 0; i < l->count; i++)
		if (lock_waits(&l->at[i]) && lock_list_blocked(l, &l->at[i]))
			b->waiter[b->count++] = l->at[i];
	return 0;
}

/* Finds the waiters that are still in the list and can go on. */
static void wakes_find(
	struct lock_list *l, const struct blocked *b, struct lock_wakes *wakes)
{
	memset(wakes, 0, sizeof(*wakes));
	if (!l->changes)
		return;
	for (unsigned i = 0; i < b->count; i++) {
		const struct disk_lock *w = &b->waiter[i];

		w = lock_list_waiter(l, w->node, w->incarnation, w->ticket);
		if (w && !lock_list_blocked(l, w))
			wake_add(wakes, w);
	}
}

static int change_body(struct txn *x, void *arg)
{
	struct lock_change *c = arg;
	struct lock_list *l = &c->list;
	struct disk_inode inode;
	struct blocked was;
	int rc;

	rc = inode_read(x, c->ino, &inode);
	if (rc == 0)
		rc = lock_list_read(x, c->ino, l);
	if (rc == 0)
		rc = blocked_find(l, &was);
	if (rc)
		return rc;
	rc = drop_void(c->fs->locks, l);
	if (rc == 0)
		rc = c->change(l, c);
	c->said = rc;
	if (rc == 1 || rc == -EINPROGRESS || rc == -EAGAIN)
		rc = 0;
	if (rc == 0) {
		wakes_find(l, &was, &c->wakes);
		rc = lock_list_write(x, c->ino, l);
	}
	rt_free(was.waiter);
	return rc;
}

int lock_list_change(struct lock_change *c, bool frees)
{
	int rc;

	do {
		rc = ops_run(
			c->fs, frees ? OPS_RUN_PRIVILEGED : 0, change_body, c, NULL);
		if (rc == 0)
			lock_nodes_wake(c->fs->locks, c->ino, &c->wakes);
	} while (rc == 0 && c->said == 1);
	lock_list_free(&c->list);
	return rc ? rc : c->said;
}
