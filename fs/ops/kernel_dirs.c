/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where this kernel has the dentries of directories, and how they follow directories that other
 * nodes move (docs/many-nodes.md, "Directories that move").
 *
 * Keeps: a walk through a directory that has moved to another parent, also by "..", finds the new
 * parent; and no answer says that a directory is not where the kernel has it before the kernel
 * has moved it, since Linux would detach what is mounted there.
 *
 * A look makes requests, which other tasks answer. These are never waited for in their turn:
 * requests of the daemon's own threads move nothing.
 *
 * Locks: `lock` is a leaf.
 */
#include <errno.h>
#include <string.h>

#include "fs/ops/kernel_internal.h"

#define GIVE_UP_NS    200000000ull /* so long a dentry is tried to be moved */
#define WAIT_FIRST_NS 50000ull
#define WAIT_LAST_NS  2000000ull
#define CHECK_NS                                                                         \
	2000000ull      /* a directory is looked at so long after its name was dropped */
#define PLACE_SHARE 16u /* of the cache's frames: directories that are noted */

/* A directory that the kernel has, and where. */
struct dir_place {
	struct dir_place *by_ino, *by_name; /* next of the buckets */
	struct dir_place *older, *newer;
	uint64_t ino, dir, hash;
};

/* ---- places (under the lock) ------------------------------------------------------------- */

static struct dir_place **ino_bucket(struct kernel_dirs *d, uint64_t ino)
{
	return &d->by_ino[ino_hash(ino) % DIR_BUCKETS];
}

static struct dir_place **name_bucket(struct kernel_dirs *d, uint64_t dir, uint64_t hash)
{
	return &d->by_name[ino_hash(dir ^ hash) % DIR_BUCKETS];
}

static struct dir_place *dir_place_of(struct kernel_dirs *d, uint64_t ino)
{
	struct dir_place *p = *ino_bucket(d, ino);

	while (p && p->ino != ino)
		p = p->by_ino;
	return p;
}

static struct dir_place *dir_place_at(struct kernel_dirs *d, uint64_t dir, uint64_t hash)
{
	struct dir_place *p = *name_bucket(d, dir, hash);

	while (p && (p->dir != dir || p->hash != hash))
		p = p->by_name;
	return p;
}

static void name_link(
	struct kernel_dirs *d, struct dir_place *p, uint64_t dir, uint64_t hash)
{
	struct dir_place **head = name_bucket(d, dir, hash);

	p->dir = dir;
	p->hash = hash;
	p->by_name = *head;
	*head = p;
}

static void name_unlink(struct kernel_dirs *d, struct dir_place *p)
{
	struct dir_place **at = name_bucket(d, p->dir, p->hash);

	while (*at != p)
		at = &(*at)->by_name;
	*at = p->by_name;
}

static void dir_place_free(struct kernel_dirs *d, struct dir_place *p)
{
	struct dir_place **at = ino_bucket(d, p->ino);

	while (*at != p)
		at = &(*at)->by_ino;
	*at = p->by_ino;
	name_unlink(d, p);
	*(p->older ? &p->older->newer : &d->oldest) = p->newer;
	*(p->newer ? &p->newer->older : &d->newest) = p->older;
	d->count--;
	rt_free(p);
}

static void dir_place_add(
	struct kernel_dirs *d, uint64_t ino, uint64_t dir, uint64_t hash)
{
	struct dir_place *p = rt_alloc(sizeof(*p)), **head = ino_bucket(d, ino);

	if (!p) /* it is as one that has not been seen */
		return;
	if (d->count >= d->max && d->oldest)
		dir_place_free(d, d->oldest);
	p->ino = ino;
	p->by_ino = *head;
	*head = p;
	name_link(d, p, dir, hash);
	p->older = d->newest;
	*(p->older ? &p->older->newer : &d->oldest) = p;
	d->newest = p;
	d->count++;
}

/* Where the kernel has it: as it was told first, until it is known to have moved it. */
static void dir_place_set(
	struct kernel *k, uint64_t ino, uint64_t dir, uint64_t hash, bool moved)
{
	struct kernel_dirs *d = &k->dirs;
	struct dir_place *p;

	rt_mutex_lock(&d->lock);
	p = dir_place_of(d, ino);
	if (!p) {
		dir_place_add(d, ino, dir, hash);
	} else if (moved) {
		name_unlink(d, p);
		name_link(d, p, dir, hash);
	}
	rt_mutex_unlock(&d->lock);
}

static void dir_place_forget(struct kernel *k, uint64_t ino)
{
	struct dir_place *p;

	rt_mutex_lock(&k->dirs.lock);
	p = dir_place_of(&k->dirs, ino);
	if (p)
		dir_place_free(&k->dirs, p);
	rt_mutex_unlock(&k->dirs.lock);
}

void kernel_dir_forgotten(struct kernel *k, uint64_t ino)
{
	bool noted;

	rt_mutex_lock(&k->dirs.lock);
	noted = dir_place_of(&k->dirs, ino);
	rt_mutex_unlock(&k->dirs.lock);
	if (noted && !k->ops->drop_attributes(k->owner, ino))
		dir_place_forget(k, ino);
}

/* ---- having the kernel move one -------------------------------------------------------------- */

/* The name under which a directory has another one. */
struct sought {
	uint64_t ino;
	size_t len;
	char name[DISK_NAME_MAX];
};

static int seek_name(void *arg, const struct ops_dirent *e)
{
	struct sought *s = (struct sought *)arg;

	if (e->ino != s->ino || e->name_len > sizeof(s->name))
		return 0;
	s->len = e->name_len;
	memcpy(s->name, e->name, e->name_len);
	return 1;
}

/* Where it is now. 0, -ENOENT: removed, or just being moved again; or another -errno. */
static int seek(struct fs *fs, uint64_t ino, struct ops_attr *parent, struct sought *s)
{
	struct ops_attr attr;
	int rc = inode_attr(fs, ino, &attr);

	if (rc)
		return rc;
	if (attr.inode.nlink == 0 || !S_ISDIR(attr.inode.mode))
		return -ENOENT;
	rc = inode_attr(fs, attr.inode.parent, parent);
	if (rc)
		return rc;
	*s = (struct sought){.ino = ino};
	rc = ops_readdir(fs, parent->ino, 2 /* behind ".." */, 0, seek_name, s);
	return rc ? rc : s->len ? 0 : -EAGAIN;
}

/* -EAGAIN: it has moved again meanwhile; -ESTALE: not now. */
static int look(
	struct fs *fs, uint64_t ino, const struct ops_attr *parent, struct ops_name name)
{
	struct kernel *k = fs->kernel;
	int rc = k->ops->look(k->owner, parent, name);

	if (rc == -ENOENT)
		return -EAGAIN;
	if (!rc)
		dir_place_set(k, ino, parent->ino, name_hash(fs, name), true);
	return rc;
}

/* The kernel has the directory somewhere else than it is. Tries for a while. */
static void follow(struct fs *fs, uint64_t ino)
{
	struct kernel *k = fs->kernel;
	uint64_t wait_ns = WAIT_FIRST_NS, until = rt_now_ns() + GIVE_UP_NS;
	struct ops_attr parent;
	struct sought s;
	int rc;

	for (;;) {
		rc = seek(fs, ino, &parent, &s);
		if (rc == -ENOENT)
			dir_place_forget(k, ino);
		else if (!rc)
			rc = look(fs, ino, &parent, (struct ops_name){s.name, s.len});
		if ((rc != -ESTALE && rc != -EAGAIN) || rt_now_ns() >= until ||
			rt_task_unwanted() || atomic_load(&k->gone))
			return;
		rt_sleep_ns(wait_ns);
		wait_ns = MIN(wait_ns * 2, WAIT_LAST_NS);
	}
}

void ops_dir_placed(
	struct fs *fs, uint64_t ino, uint64_t dir, struct ops_name name, bool moved)
{
	dir_place_set(fs->kernel, ino, dir, name_hash(fs, name), moved);
}

void ops_dir_found(
	struct fs *fs, uint64_t dir, struct ops_name name, uint64_t ino, uint32_t asker)
{
	struct kernel *k = fs->kernel;
	const struct dir_place *p;
	uint64_t there;

	rt_mutex_lock(&k->dirs.lock);
	p = dir_place_at(&k->dirs, dir, name_hash(fs, name));
	there = p ? p->ino : 0;
	rt_mutex_unlock(&k->dirs.lock);
	if (there && there != ino && !k->ops->is_own(k->owner, asker))
		follow(fs, there);
}

void kernel_dir_follow(struct fs *fs, const struct ops_attr *attr, uint32_t asker)
{
	struct kernel *k = fs->kernel;
	const struct dir_place *p;
	bool moved;

	rt_mutex_lock(&k->dirs.lock);
	p = dir_place_of(&k->dirs, attr->ino);
	moved = p && p->dir != attr->inode.parent;
	rt_mutex_unlock(&k->dirs.lock);
	if (moved && !k->ops->is_own(k->owner, asker))
		follow(fs, attr->ino);
}

/* ---- names that were dropped ------------------------------------------------------------------- */

void kernel_dir_dropped(struct kernel *k, uint64_t ino)
{
	struct kernel_dirs *d = &k->dirs;
	bool queued = false;

	rt_mutex_lock(&d->lock);
	for (unsigned i = 0; i < d->queued; i++)
		queued |= d->check[(d->first + i) % DIR_CHECKS_MAX] == ino;
	/* where there is no room the next walk finds it */
	if (!queued && d->queued < DIR_CHECKS_MAX && dir_place_of(d, ino)) {
		d->check[(d->first + d->queued++) % DIR_CHECKS_MAX] = ino;
		rt_cond_signal(&d->work);
	}
	rt_mutex_unlock(&d->lock);
}

/*
 * Does the name under which the kernel has it say so still? The leaf is exposed, so it is asked
 * again when that changes: the call elsewhere may not have changed it yet. Waits for no node that
 * is away.
 */
static bool in_place(struct fs *fs, uint64_t ino)
{
	struct kernel_dirs *d = &fs->kernel->dirs;
	struct tree_exposure exposure = {.kinds = EXPOSE_NAMES};
	uint8_t value[DISK_VALUE_MAX];
	const struct disk_entry *e;
	struct disk_key key = {0};
	struct dir_place *p;
	size_t at = 0;
	int error, len;

	rt_mutex_lock(&d->lock);
	p = dir_place_of(d, ino);
	if (p)
		key = disk_key(p->dir, DISK_ITEM_ENTRY, p->hash);
	rt_mutex_unlock(&d->lock);
	if (!p || !tree_is_near(fs->tree, key))
		return true; /* it cannot be known */
	len = tree_read_exposed(fs->tree, &exposure, key, value, sizeof(value));
	if (!exposure.exposed)
		kernel_dir_dropped(fs->kernel, ino);
	while (len > 0 && entry_step(value, (size_t)len, &at, &e, &error))
		if (e->ino == ino)
			return true;
	return len < 0 && len != -ENOENT;
}

/* So that getcwd(2) names a path that exists, though nobody walks there. */
static void check_main(void *arg)
{
	struct kernel *k = (struct kernel *)arg;
	struct kernel_dirs *d = &k->dirs;

	rt_mutex_lock(&d->lock);
	while (!d->stopping) {
		uint64_t ino;

		if (!d->queued) {
			rt_cond_wait(&d->work, &d->lock, RT_FOREVER);
			if (d->queued && !d->stopping) {
				rt_mutex_unlock(&d->lock);
				rt_sleep_ns(CHECK_NS);
				rt_mutex_lock(&d->lock);
			}
			continue;
		}
		ino = d->check[d->first];
		d->first = (d->first + 1) % DIR_CHECKS_MAX;
		d->queued--;
		rt_mutex_unlock(&d->lock);
		if (!in_place(k->fs, ino))
			follow(k->fs, ino);
		rt_mutex_lock(&d->lock);
	}
	rt_mutex_unlock(&d->lock);
}

/* ---- the kernel comes and goes ------------------------------------------------------------------ */

int kernel_dirs_start(struct kernel *k)
{
	struct kernel_dirs *d = &k->dirs;

	d->max = (unsigned)(cache_frame_count(k->fs->volume->cache) / PLACE_SHARE);
	return rt_task_spawn(&d->task, "weft-dirs", check_main, k);
}

void kernel_dirs_stop(struct kernel *k)
{
	struct kernel_dirs *d = &k->dirs;

	if (!d->task)
		return;
	rt_mutex_lock(&d->lock);
	d->stopping = true;
	rt_mutex_unlock(&d->lock);
	rt_cond_broadcast(&d->work);
	rt_task_join(d->task);
	while (d->oldest)
		dir_place_free(d, d->oldest);
}
