/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where this kernel has the dentries of directories, and how they follow directories that other
 * nodes move (docs/many-nodes.md, "Directories that move").
 *
 * Keeps: a walk through a directory that has moved to another parent, also by "..", finds the new
 * parent; and no answer says that a directory is not where the kernel has it before the kernel
 * has moved it, since Linux would detach what is mounted there.
 *
 * A look is made by tasks of this file, and makes requests of its own, which move nothing. It
 * may need a lock that the thread has which asked: so nobody waits for it without a bound.
 *
 * Locks: `lock` is a leaf.
 */
#include <errno.h>
#include <string.h>

#include "fs/ops/kernel_internal.h"

#define GIVE_UP_NS                                                                       \
	2000000000ull /* so long a dentry is tried to be moved, and a walk waits */
#define UNKNOWN_NS     50000000ull /* so long a thread waits that may have a lock */
#define WAIT_FIRST_NS  50000ull
#define WAIT_LAST_NS   2000000ull
#define CHECK_FIRST_NS 5000000ull /* so long after its name was expired it is looked at */
#define CHECK_LAST_NS  200000000ull /* and so much later again */
#define PLACE_SHARE    4u /* of the cache's frames: directories that are noted */

/* A directory that the kernel has, and where. */
struct dir_place {
	struct dir_place *by_ino, *by_doubt; /* next of the buckets */
	struct dir_place *older, *newer;
	uint64_t ino, dir, hash;
	bool doubt; /* its name was expired, so another node may have moved it */
};

/* ---- places (under the lock) ------------------------------------------------------------- */

static struct dir_place **ino_bucket(struct kernel_dirs *d, uint64_t ino)
{
	return &d->by_ino[ino_hash(ino) % DIR_BUCKETS];
}

/* Those in doubt, by where they were. */
static struct dir_place **doubt_bucket(struct kernel_dirs *d, uint64_t dir)
{
	return &d->by_doubt[ino_hash(dir) % DIR_BUCKETS];
}

static struct dir_place *dir_place_of(struct kernel_dirs *d, uint64_t ino)
{
	struct dir_place *p = *ino_bucket(d, ino);

	while (p && p->ino != ino)
		p = p->by_ino;
	return p;
}

/* One of the directory's that is in doubt, behind `p` (NULL: the first), or NULL. */
static struct dir_place *doubt_of(
	struct kernel_dirs *d, uint64_t dir, struct dir_place *p)
{
	p = p ? p->by_doubt : *doubt_bucket(d, dir);
	while (p && p->dir != dir)
		p = p->by_doubt;
	return p;
}

static void doubt_begin(struct kernel_dirs *d, struct dir_place *p)
{
	struct dir_place **head = doubt_bucket(d, p->dir);

	p->doubt = true;
	p->by_doubt = *head;
	*head = p;
	atomic_fetch_add(&d->doubts, 1);
}

static void doubt_end(struct kernel_dirs *d, struct dir_place *p)
{
	struct dir_place **at = doubt_bucket(d, p->dir);

	if (!p->doubt)
		return;
	while (*at != p)
		at = &(*at)->by_doubt;
	*at = p->by_doubt;
	p->doubt = false;
	atomic_fetch_sub(&d->doubts, 1);
}

static void dir_place_free(struct kernel_dirs *d, struct dir_place *p)
{
	struct dir_place **at = ino_bucket(d, p->ino);

	while (*at != p)
		at = &(*at)->by_ino;
	*at = p->by_ino;
	doubt_end(d, p);
	*(p->older ? &p->older->newer : &d->oldest) = p->newer;
	*(p->newer ? &p->newer->older : &d->newest) = p->older;
	d->count--;
	rt_free(p);
}

static void dir_place_add(
	struct kernel_dirs *d, uint64_t ino, uint64_t dir, uint64_t hash)
{
	struct dir_place *p = ino == DISK_INO_ROOT ? NULL : rt_alloc(sizeof(*p));
	struct dir_place **head = ino_bucket(d, ino);

	if (!p) /* it is as one that has not been seen */
		return;
	if (d->count >= d->max && d->oldest)
		dir_place_free(d, d->oldest);
	p->ino = ino;
	p->dir = dir;
	p->hash = hash;
	p->by_ino = *head;
	*head = p;
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
		doubt_end(d, p);
		p->dir = dir;
		p->hash = hash;
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
static int look(struct kernel *k, uint64_t ino, const struct ops_attr *parent,
	struct ops_name name)
{
	int rc = k->ops->look(k->owner, parent, name);

	if (rc == -ENOENT)
		return -EAGAIN;
	if (rc)
		return rc;
	dir_place_set(k, ino, parent->ino, name_hash(k->fs, name), true);
	/* the answer may have carried no timeout, or its leaf was given up before this */
	kernel_dir_doubt(k, ino, parent->ino);
	(void)k->ops->drop_attributes(k->owner, parent->ino);
	return 0;
}

static void doubt_drop(struct kernel *k, uint64_t ino)
{
	struct dir_place *p;

	rt_mutex_lock(&k->dirs.lock);
	p = dir_place_of(&k->dirs, ino);
	if (p)
		doubt_end(&k->dirs, p);
	rt_mutex_unlock(&k->dirs.lock);
}

/* Tries for a while. */
static void follow_now(struct kernel *k, uint64_t ino)
{
	uint64_t wait_ns = WAIT_FIRST_NS, until = rt_now_ns() + GIVE_UP_NS;
	struct ops_attr parent;
	struct sought s;
	int rc;

	for (;;) {
		rc = seek(k->fs, ino, &parent, &s);
		if (rc == -ENOENT)
			dir_place_forget(k, ino);
		else if (!rc)
			rc = look(k, ino, &parent, (struct ops_name){s.name, s.len});
		if (rc && rc != -ESTALE && rc != -EAGAIN && rc != -EINTR)
			doubt_drop(k, ino); /* it cannot be moved */
		if ((rc != -ESTALE && rc != -EAGAIN) || rt_now_ns() >= until ||
			atomic_load(&k->gone))
			return;
		rt_sleep_ns(wait_ns);
		wait_ns = MIN(wait_ns * 2, WAIT_LAST_NS);
	}
}

/* ---- tasks that do so --------------------------------------------------------------------------- */

/* A directory that may have to be moved. */
struct dir_job {
	struct dir_job *next; /* of those that have not ended, in order */
	uint64_t ino;
	unsigned users; /* the list, and threads that wait */
	bool checks;    /* first looks whether it is in place, a moment later */
	bool begun, done;
};

static void job_put(struct dir_job *j)
{
	if (--j->users == 0)
		rt_free(j);
}

/* Under the lock: one that has not begun, or not ended. */
static struct dir_job *job_of(struct kernel_dirs *d, uint64_t ino, bool checks)
{
	struct dir_job *j = d->jobs;

	while (j && (j->ino != ino || j->checks != checks || (checks && j->begun)))
		j = j->next;
	return j;
}

static void dirs_main(void *arg);

/* Under the lock. NULL: no memory, or too many. */
static struct dir_job *job_add(struct kernel *k, uint64_t ino, bool checks)
{
	struct kernel_dirs *d = &k->dirs;
	struct dir_job *j, **at = &d->jobs;

	if (d->count_jobs == DIR_JOBS_MAX || d->stopping ||
		(checks && d->checks == DIR_JOBS_MAX / 2))
		return NULL;
	j = rt_alloc(sizeof(*j));
	if (!j)
		return NULL;
	*j = (struct dir_job){.ino = ino, .users = 1, .checks = checks};
	while (*at)
		at = &(*at)->next;
	*at = j;
	d->count_jobs++;
	d->checks += checks;
	if (++d->queued > d->idle && d->tasks < DIR_TASKS_MAX &&
		!rt_task_spawn(&d->task[d->tasks], "weft-dirs", dirs_main, k))
		d->tasks++;
	rt_cond_signal(&d->work);
	return j;
}

/* How long may the thread wait for a look, which may need any directory's lock? */
static uint64_t patience_ns(struct kernel *k, uint32_t asker)
{
	enum ops_walk walk;

	if (k->ops->is_own(k->owner, asker))
		return 0;
	walk = k->ops->walks(k->owner, asker);
	return walk == OPS_WALK_INTO   ? GIVE_UP_NS
	       : walk == OPS_WALK_NONE ? 0
				       : UNKNOWN_NS;
}

/* The kernel has the directory somewhere else than it is: waits until it is moved, but not for long. Whoever
 * waits may have a lock that the look needs. */
static void follow(struct kernel *k, uint64_t ino, uint64_t most_ns)
{
	struct kernel_dirs *d = &k->dirs;
	uint64_t until = rt_now_ns() + most_ns;
	struct dir_job *j;

	if (!most_ns)
		return;
	rt_mutex_lock(&d->lock);
	j = job_of(d, ino, false);
	if (!j)
		j = job_add(k, ino, false);
	if (j) {
		j->users++;
		while (!j->done && rt_now_ns() < until && !rt_task_unwanted())
			(void)rt_cond_wait(
				&d->ended, &d->lock, MIN(until, rt_task_asks_ns()));
		job_put(j);
	}
	rt_mutex_unlock(&d->lock);
}

void ops_dir_placed(struct fs *fs, uint64_t ino, uint64_t dir, struct ops_name name,
	bool moved, bool keeps)
{
	struct kernel *k = fs->kernel;

	dir_place_set(k, ino, dir, name_hash(fs, name), moved);
	if (keeps)
		return;
	kernel_dir_doubt(k, ino, dir);
	(void)k->ops->drop_attributes(k->owner, dir);
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
	if (moved)
		follow(k, attr->ino, patience_ns(k, asker));
}

/* ---- names that were expired ------------------------------------------------------------------- */

void kernel_dir_doubt(struct kernel *k, uint64_t ino, uint64_t dir)
{
	struct kernel_dirs *d = &k->dirs;
	struct dir_place *p;

	rt_mutex_lock(&d->lock);
	p = dir_place_of(d, ino);
	if (p && p->dir == dir && !p->doubt) {
		doubt_begin(d, p);
		if (!job_of(d, ino,
			    true)) /* where there is no room the next walk finds it */
			(void)job_add(k, ino, true);
	}
	rt_mutex_unlock(&d->lock);
}

bool kernel_dir_doubted(struct kernel *k, uint64_t dir)
{
	bool doubted;

	if (likely(!atomic_load(&k->dirs.doubts)))
		return false;
	rt_mutex_lock(&k->dirs.lock);
	doubted = doubt_of(&k->dirs, dir, NULL);
	rt_mutex_unlock(&k->dirs.lock);
	return doubted;
}

/*
 * Does the name under which the kernel has it say so still? 1, 0, or -EAGAIN: it cannot be known
 * now. With `expose` 1 stands until the name is expired again. Waits for no node that is away.
 */
static int in_place(struct kernel *k, uint64_t ino, struct tree_exposure *expose)
{
	struct kernel_dirs *d = &k->dirs;
	uint8_t value[DISK_VALUE_MAX];
	const struct disk_entry *e;
	struct disk_key key = {0};
	struct dir_place *p;
	bool found = false;
	size_t at = 0;
	int error, len;

	rt_mutex_lock(&d->lock);
	p = dir_place_of(d, ino);
	if (p)
		key = disk_key(p->dir, DISK_ITEM_ENTRY, p->hash);
	rt_mutex_unlock(&d->lock);
	if (!p)
		return 1;
	if (!tree_is_near(k->fs->tree, key))
		return -EAGAIN;
	len = expose ? tree_read_exposed(k->fs->tree, expose, key, value, sizeof(value))
		     : tree_read(k->fs->tree, key, value, sizeof(value));
	if ((len < 0 && len != -ENOENT) || (expose && !expose->exposed))
		return -EAGAIN;
	while (len > 0 && entry_step(value, (size_t)len, &at, &e, &error))
		found |= e->ino == ino;
	return found;
}

/* A walk into the directory waits: has the kernel what it has below it in place? */
static bool verify(struct kernel *k, uint64_t dir, uint64_t until)
{
	struct kernel_dirs *d = &k->dirs;
	struct tree_exposure e;
	struct dir_place *p;
	uint64_t ino, now;
	int there;

	for (;;) {
		rt_mutex_lock(&d->lock);
		p = doubt_of(d, dir, NULL);
		ino = p ? p->ino : 0;
		rt_mutex_unlock(&d->lock);
		if (!ino)
			return true;
		e = (struct tree_exposure){.kinds = EXPOSE_NAMES};
		there = in_place(k, ino, &e);
		now = rt_now_ns();
		if (!there && now < until)
			follow(k, ino, until - now);
		rt_mutex_lock(&d->lock);
		p = dir_place_of(d, ino);
		/* a drop that has begun since finds it in doubt, and leaves it so */
		if (p && p->dir == dir && there == 1 &&
			cache_exposure_stands(k->fs->volume->cache, &e.leaf))
			doubt_end(d, p);
		rt_mutex_unlock(&d->lock);
		if (now >= until || rt_task_unwanted())
			return false;
		if (there != 1)
			rt_sleep_ns(WAIT_FIRST_NS);
	}
}

void kernel_dir_verify(struct kernel *k, uint64_t dir, uint32_t asker)
{
	uint64_t patience;

	if (likely(!kernel_dir_doubted(k, dir)))
		return;
	patience = patience_ns(k, asker);
	if (patience)
		(void)verify(k, dir, rt_now_ns() + patience);
}

/* A check makes getcwd(2) name a path that exists, though nobody walks there. The call elsewhere that wanted
 * the name may not have changed it at the first look. */
static void job_run(struct kernel *k, const struct dir_job *j)
{
	static const uint64_t pauses[] = {CHECK_FIRST_NS, CHECK_LAST_NS};

	for (unsigned i = 0; j->checks && i < ARRAY_SIZE(pauses); i++) {
		rt_sleep_ns(pauses[i]);
		if (!in_place(k, j->ino, NULL))
			break;
		if (i + 1 == ARRAY_SIZE(pauses) || atomic_load(&k->gone))
			return;
	}
	follow_now(k, j->ino);
}

/*
 * Under the lock: the first that has not begun, or NULL. Somebody waits for those that are no checks: checks
 * come behind them, and have half of the tasks at most.
 */
static struct dir_job *job_take(struct kernel_dirs *d)
{
	struct dir_job *j = d->jobs, *check = NULL;

	while (j && (j->begun || j->checks)) {
		if (!check && !j->begun)
			check = j;
		j = j->next;
	}
	if (!j && d->checking < DIR_TASKS_MAX / 2)
		j = check;
	if (j) {
		j->begun = true;
		d->queued--;
		d->checking += j->checks;
	}
	return j;
}

static void job_end(struct kernel_dirs *d, struct dir_job *j)
{
	struct dir_job **at = &d->jobs;

	while (*at != j)
		at = &(*at)->next;
	*at = j->next;
	d->count_jobs--;
	d->checks -= j->checks;
	d->checking -= j->checks && j->begun;
	if (j->checks)
		rt_cond_signal(&d->work); /* for one that waited for its task */
	j->done = true;
	job_put(j);
	rt_cond_broadcast(&d->ended);
}

static void dirs_main(void *arg)
{
	struct kernel *k = (struct kernel *)arg;
	struct kernel_dirs *d = &k->dirs;

	rt_mutex_lock(&d->lock);
	for (;;) {
		struct dir_job *j = job_take(d);

		if (!j && d->stopping)
			break;
		if (!j) {
			d->idle++;
			rt_cond_wait(&d->work, &d->lock, RT_FOREVER);
			d->idle--;
			continue;
		}
		rt_mutex_unlock(&d->lock);
		if (!atomic_load(&k->gone))
			job_run(k, j);
		rt_mutex_lock(&d->lock);
		job_end(d, j);
	}
	rt_mutex_unlock(&d->lock);
}

/* ---- the kernel comes and goes ------------------------------------------------------------------ */

void kernel_dirs_start(struct kernel *k)
{
	k->dirs.max = (unsigned)(cache_frame_count(k->fs->volume->cache) / PLACE_SHARE);
}

void kernel_dirs_stop(struct kernel *k)
{
	struct kernel_dirs *d = &k->dirs;

	rt_mutex_lock(&d->lock);
	d->stopping = true;
	rt_mutex_unlock(&d->lock);
	rt_cond_broadcast(&d->work);
	for (unsigned i = 0; i < d->tasks; i++)
		rt_task_join(d->task[i]);
	while (d->jobs) /* no task could be had */
		job_end(d, d->jobs);
	while (d->oldest)
		dir_place_free(d, d->oldest);
}
