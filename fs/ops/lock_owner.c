/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The owners that may have locks here. So a close by an owner without locks does not read the tree,
 * and the close of an open file frees its locks.
 *
 * An open file owns its flock, and fcntl's locks of an open file. Such an owner uses one handle. A
 * process may use several handles, and each close ends all its locks in the file. So the handle
 * that it used last is not closed before it has flushed these. If locks are left when a handle
 * closes, they are the handle's.
 *
 * Keeps: an owner with a record in the tree is listed here, from before that transaction until
 * after the one that frees the lock.
 */
#include "fs/ops/data_internal.h"
#include "fs/ops/lock_internal.h"

static struct lock_owner **owner_bucket(struct locks *k, uint64_t ino)
{
	return &k->owner[lock_bucket(ino)];
}

/* Returns the place of the owner, or of the end. Under the lock. */
static struct lock_owner **owner_find(
	struct locks *k, uint64_t ino, enum ops_lock_kind kind, uint64_t owner)
{
	struct lock_owner **at = owner_bucket(k, ino);

	while (*at && ((*at)->ino != ino || (*at)->kind != kind || (*at)->owner != owner))
		at = &(*at)->next;
	return at;
}

int lock_owner_enter(struct locks *k, struct ops_file *file, const struct ops_lock *lock,
	struct lock_owner **out)
{
	uint64_t ino = file->state->ino;
	struct lock_owner **at, *o;
	int rc = 0;

	rt_mutex_lock(&k->owners_lock);
	at = owner_find(k, ino, lock->kind, lock->owner);
	o = *at;
	if (!o) {
		o = k->owners < LOCK_OWNERS_MAX ? rt_alloc(sizeof(*o)) : NULL;
		rc = o ? 0 : -ENOLCK;
		if (o) {
			o->ino = ino;
			o->kind = lock->kind;
			o->owner = lock->owner;
			*at = o;
			k->owners++;
		}
	}
	if (o) {
		o->requests++;
		o->file = file;
		atomic_store_explicit(&file->locked, true, memory_order_relaxed);
	}
	rt_mutex_unlock(&k->owners_lock);
	*out = o;
	return rc;
}

void lock_owner_leave(struct locks *k, struct lock_owner *owner)
{
	rt_mutex_lock(&k->owners_lock);
	WEFT_ASSERT(owner->requests > 0);
	if (--owner->requests == 0)
		rt_cond_broadcast(&k->owner_idle);
	rt_mutex_unlock(&k->owners_lock);
}

/* Under the lock. */
static void owner_drop(struct locks *k, struct lock_owner **at)
{
	struct lock_owner *o = *at;

	*at = o->next;
	k->owners--;
	rt_free(o);
}

static int owner_free(
	struct locks *k, uint64_t ino, enum ops_lock_kind kind, uint64_t owner)
{
	int rc = lock_clear(k->fs, ino, kind, owner);

	if (rc && rc != -EBADF)
		weft_log(4, "cannot free locks of inode %llu: %s",
			(unsigned long long)ino, strerror(-rc));
	return rc;
}

int ops_flush(struct fs *fs, struct ops_file *file, uint64_t owner)
{
	struct locks *k = fs->locks;
	uint64_t ino = file->state->ino;
	struct lock_owner **at;
	bool any;
	int rc, stored = 0;

	if (file->mappable) { /* the kernel has written the stores back */
		stored = kcache_stores_await(fs->kcache, &file->state->kcache);
		if (!stored)
			stored = stores_error(file->state, false);
		stores_settle(fs, file->state);
	}
	rt_mutex_lock(&k->owners_lock);
	any = *owner_find(k, ino, OPS_LOCK_POSIX, owner);
	rt_mutex_unlock(&k->owners_lock);
	if (!any)
		return stored;
	rc = owner_free(k, ino, OPS_LOCK_POSIX, owner);
	rt_mutex_lock(&k->owners_lock);
	at = owner_find(k, ino, OPS_LOCK_POSIX, owner);
	/* A request of another thread may lock after this. A later close then frees that lock. */
	if (rc == 0 && *at && (*at)->requests == 0)
		owner_drop(k, at);
	rt_mutex_unlock(&k->owners_lock);
	return rc ? rc : stored;
}

/* Removes an owner that used the file last. NULL: any owner. */
static bool owner_take(struct locks *k, unsigned bucket, const struct ops_file *file,
	struct lock_owner *out)
{
	struct lock_owner **at = &k->owner[bucket];
	bool found;

	rt_mutex_lock(&k->owners_lock);
	while (*at && file && (*at)->file != file)
		at = &(*at)->next;
	found = *at;
	if (found) {
		*out = **at;
		owner_drop(k, at);
	}
	rt_mutex_unlock(&k->owners_lock);
	return found;
}

void locks_closing(struct fs *fs, struct ops_file *file)
{
	struct locks *k = fs->locks;
	unsigned bucket = lock_bucket(file->state->ino);
	struct lock_owner o;

	while (owner_take(k, bucket, file, &o))
		(void)owner_free(k, o.ino, o.kind, o.owner);
}

void lock_owners_end(struct locks *k)
{
	struct lock_owner o;

	for (unsigned i = 0; i < LOCK_BUCKETS; i++)
		while (owner_take(k, i, NULL, &o))
			(void)owner_free(k, o.ino, o.kind, o.owner);
}
