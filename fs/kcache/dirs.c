/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tracks where this kernel has the dentries of directories, and moves them after directories that
 * other nodes move (docs/nodes/names.md, "Directories that move").
 *
 * Keeps two invariants:
 *
 * - A walk through a directory that has moved to another parent, also by "..", finds the new
 *   parent.
 * - An answer never shows that a directory has another place than in the kernel, before the kernel
 *   has moved it. Linux would detach mounts there.
 *
 * Tasks of this file look directories up. A look makes requests of its own, which move nothing. It
 * may need a lock of the thread that made a request, so no request waits for it without a limit.
 *
 * Locks: `lock` is a leaf.
 */
#include <errno.h>
#include <string.h>

#include "fs/kcache/kcache_internal.h"

#define GIVE_UP_NS                                                                       \
	2000000000ull              /* time for which moving a dentry is tried, and a walk waits */
#define UNKNOWN_NS     50000000ull /* time that a thread waits that may have a lock */
#define MOVE_FIRST_NS  50000ull
#define MOVE_LAST_NS   2000000ull
#define CHECK_FIRST_NS 5000000ull   /* time from the expiry of a name to the first check */
#define CHECK_LAST_NS  200000000ull /* time from one check to the next */
#define PLACE_SHARE    4u           /* share of the cache's frames: directories that are noted */

/* A directory that the kernel has, and its place there. */
struct dir_place {
	RB_ENTRY(dir_place) by_ino, by_doubt;
	struct dir_place *older, *newer;
	uint64_t ino, dir, hash;
	bool doubt; /* its name has expired, so another node may have moved it */
};

static int ino_compare(const struct dir_place *a, const struct dir_place *b)
{
	return a->ino < b->ino ? -1 : a->ino > b->ino;
}

static int doubt_compare(const struct dir_place *a, const struct dir_place *b)
{
	return a->dir != b->dir ? (a->dir < b->dir ? -1 : 1) : ino_compare(a, b);
}

RB_PROTOTYPE(dir_ino_tree, dir_place, by_ino, ino_compare)
RB_GENERATE(dir_ino_tree, dir_place, by_ino, ino_compare)
RB_PROTOTYPE(dir_doubt_tree, dir_place, by_doubt, doubt_compare)
RB_GENERATE(dir_doubt_tree, dir_place, by_doubt, doubt_compare)

/* ---- places (under the lock) ------------------------------------------------------------- */

static struct dir_place *dir_place_of(struct kcache_dirs *d, uint64_t ino)
{
	struct dir_place wanted = {.ino = ino};

	return RB_FIND(dir_ino_tree, &d->by_ino, &wanted);
}

/* Returns a child of the directory that is in doubt, behind `p` (NULL: the first), or NULL. */
static struct dir_place *doubt_of(
	struct kcache_dirs *d, uint64_t dir, struct dir_place *p)
{
	struct dir_place least = {.dir = dir};

	p = p ? RB_NEXT(dir_doubt_tree, &d->by_doubt, p)
	      : RB_NFIND(dir_doubt_tree, &d->by_doubt, &least);
	return p && p->dir == dir ? p : NULL;
}

static void doubt_begin(struct kcache_dirs *d, struct dir_place *p)
{
	p->doubt = true;
	RB_INSERT(dir_doubt_tree, &d->by_doubt, p);
	atomic_fetch_add(&d->doubts, 1);
}

static void doubt_end(struct kcache_dirs *d, struct dir_place *p)
{
	if (!p->doubt)
		return;
	RB_REMOVE(dir_doubt_tree, &d->by_doubt, p);
	p->doubt = false;
	atomic_fetch_sub(&d->doubts, 1);
}

static void dir_place_free(struct kcache_dirs *d, struct dir_place *p)
{
	RB_REMOVE(dir_ino_tree, &d->by_ino, p);
	doubt_end(d, p);
	*(p->older ? &p->older->newer : &d->oldest) = p->newer;
	*(p->newer ? &p->newer->older : &d->newest) = p->older;
	d->count--;
	rt_free(p);
}

static void dir_place_add(
	struct kcache_dirs *d, uint64_t ino, uint64_t dir, uint64_t hash)
{
	struct dir_place *p = ino == DISK_INO_ROOT ? NULL : rt_alloc(sizeof(*p));

	if (!p) /* treat it as one that has not been seen */
		return;
	if (d->count >= d->max && d->oldest)
		dir_place_free(d, d->oldest);
	p->ino = ino;
	p->dir = dir;
	p->hash = hash;
	RB_INSERT(dir_ino_tree, &d->by_ino, p);
	p->older = d->newest;
	*(p->older ? &p->older->newer : &d->oldest) = p;
	d->newest = p;
	d->count++;
}

/* Sets the place that the kernel has: the one in its first answer, until it is known to have moved
 * the directory. */
static void dir_place_set(
	struct kcache *k, uint64_t ino, uint64_t dir, uint64_t hash, bool moved)
{
	struct kcache_dirs *d = &k->dirs;
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

static void dir_place_forget(struct kcache *k, uint64_t ino)
{
	struct dir_place *p;

	rt_mutex_lock(&k->dirs.lock);
	p = dir_place_of(&k->dirs, ino);
	if (p)
		dir_place_free(&k->dirs, p);
	rt_mutex_unlock(&k->dirs.lock);
}

void kcache_dir_forgotten(struct kcache *k, uint64_t ino)
{
	bool noted;

	rt_mutex_lock(&k->dirs.lock);
	noted = dir_place_of(&k->dirs, ino);
	rt_mutex_unlock(&k->dirs.lock);
	if (noted && !k->ops->drop_attributes(k->owner, ino))
		dir_place_forget(k, ino);
}

/* ---- making the kernel move a directory -------------------------------------------------- */

/* Returns -EAGAIN if the directory has moved again meanwhile, -ESTALE if not now. */
static int look_up_dir(struct kcache *k, uint64_t ino, const struct ops_attr *parent,
	struct ops_name name)
{
	int rc = k->ops->look(k->owner, parent, name);

	if (rc == -ENOENT)
		return -EAGAIN;
	if (rc)
		return rc;
	dir_place_set(
		k, ino, parent->ino, k->source->name_hash(k->source_owner, name), true);
	/* The answer may have had no timeout, or its leaf was given up before this. */
	kcache_dir_doubt(k, ino, parent->ino);
	(void)k->ops->drop_attributes(k->owner, parent->ino);
	return 0;
}

static void doubt_drop(struct kcache *k, uint64_t ino)
{
	struct dir_place *p;

	rt_mutex_lock(&k->dirs.lock);
	p = dir_place_of(&k->dirs, ino);
	if (p)
		doubt_end(&k->dirs, p);
	rt_mutex_unlock(&k->dirs.lock);
}

/* Tries for a limited time. */
static void follow_now(struct kcache *k, uint64_t ino)
{
	uint64_t wait_ns = MOVE_FIRST_NS, until = rt_now_ns() + GIVE_UP_NS;
	char name[DISK_NAME_MAX];
	struct ops_attr parent;
	size_t len;
	int rc;

	for (;;) {
		rc = k->source->locate(k->source_owner, ino, &parent, name, &len);
		if (rc == -ENOENT)
			dir_place_forget(k, ino);
		else if (!rc)
			rc = look_up_dir(k, ino, &parent, (struct ops_name){name, len});
		if (rc && rc != -ESTALE && rc != -EAGAIN && rc != -EINTR)
			doubt_drop(k, ino); /* it cannot be moved */
		if ((rc != -ESTALE && rc != -EAGAIN) || rt_now_ns() >= until ||
			atomic_load(&k->gone))
			return;
		rt_sleep_ns(wait_ns);
		wait_ns = MIN(wait_ns * 2, MOVE_LAST_NS);
	}
}

/* ---- tasks for that --------------------------------------------------------------------- */

/* A directory that may have to be moved. */
struct dir_job {
	struct dir_job *next; /* next job that has not ended, in order */
	uint64_t ino;
	unsigned users; /* number of references: the list, and threads that wait */
	bool checks;    /* first checks, a moment later, whether the directory is in place */
	bool begun, done;
};

static void job_put(struct dir_job *j)
{
	if (--j->users == 0)
		rt_free(j);
}

/* Returns a check that has not begun, or a move that has not ended. Under the lock. */
static struct dir_job *job_of(struct kcache_dirs *d, uint64_t ino, bool checks)
{
	struct dir_job *j = d->jobs;

	while (j && (j->ino != ino || j->checks != checks || (checks && j->begun)))
		j = j->next;
	return j;
}

static void dirs_main(void *arg);

/* Adds a job. Returns NULL if there is no memory, or too many jobs. Under the lock. */
static struct dir_job *job_add(struct kcache *k, uint64_t ino, bool checks)
{
	struct kcache_dirs *d = &k->dirs;
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

/* Returns how long the thread may wait for a look, which may need any directory's lock. */
static uint64_t patience_ns(struct kcache *k, uint32_t thread)
{
	enum kcache_walk walk;

	if (k->ops->is_own(k->owner, thread))
		return 0;
	walk = k->ops->walks(k->owner, thread);
	return walk == KCACHE_WALK_INTO   ? GIVE_UP_NS
	       : walk == KCACHE_WALK_NONE ? 0
					  : UNKNOWN_NS;
}

/* Waits until the kernel has moved the directory to its current place, but only for a limited time.
 * The thread that waits may have a lock that the look needs. */
static void dir_follow(struct kcache *k, uint64_t ino, uint64_t most_ns)
{
	struct kcache_dirs *d = &k->dirs;
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

void kcache_dir_placed(struct kcache *k, uint64_t ino, uint64_t dir, struct ops_name name,
	bool moved, bool keeps)
{
	dir_place_set(k, ino, dir, k->source->name_hash(k->source_owner, name), moved);
	if (keeps)
		return;
	kcache_dir_doubt(k, ino, dir);
	(void)k->ops->drop_attributes(k->owner, dir);
}

void kcache_dir_follow(struct kcache *k, const struct ops_attr *attr, uint32_t thread)
{
	const struct dir_place *p;
	bool moved;

	rt_mutex_lock(&k->dirs.lock);
	p = dir_place_of(&k->dirs, attr->ino);
	moved = p && p->dir != attr->inode.parent;
	rt_mutex_unlock(&k->dirs.lock);
	if (moved)
		dir_follow(k, attr->ino, patience_ns(k, thread));
}

/* ---- names that were expired ------------------------------------------------------------- */

void kcache_dir_doubt(struct kcache *k, uint64_t ino, uint64_t dir)
{
	struct kcache_dirs *d = &k->dirs;
	struct dir_place *p;

	rt_mutex_lock(&d->lock);
	p = dir_place_of(d, ino);
	if (p && p->dir == dir && !p->doubt) {
		doubt_begin(d, p);
		if (!job_of(d, ino,
			    true)) /* without room, the next walk finds it */
			(void)job_add(k, ino, true);
	}
	rt_mutex_unlock(&d->lock);
}

bool kcache_dir_doubted(struct kcache *k, uint64_t dir)
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
 * Checks that the name under which the kernel has the directory is still its name. Returns 1, 0, or
 * -EAGAIN if it cannot be known now. With `kcache`, 1 holds until the name expires again. Does not
 * wait for a node that is away.
 */
static int in_place(struct kcache *k, uint64_t ino, struct tree_kcopy *kcache)
{
	struct kcache_dirs *d = &k->dirs;
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
	if (!tree_is_near(k->tree, key))
		return -EAGAIN;
	len = kcache ? tree_read_kcached(k->tree, kcache, key, value, sizeof(value))
		     : tree_read(k->tree, key, value, sizeof(value));
	if ((len < 0 && len != -ENOENT) || (kcache && !kcache->kcached))
		return -EAGAIN;
	while (len > 0 && disk_entry_step(value, (size_t)len, &at, &e, &error))
		found |= e->ino == ino;
	return found;
}

/* Before a walk into the directory: checks that the kernel has its subdirectories in place. */
static bool dirs_verify(struct kcache *k, uint64_t dir, uint64_t until)
{
	struct kcache_dirs *d = &k->dirs;
	struct tree_kcopy e;
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
		e = (struct tree_kcopy){.kinds = KCACHE_NAMES};
		there = in_place(k, ino, &e);
		now = rt_now_ns();
		if (!there && now < until)
			dir_follow(k, ino, until - now);
		rt_mutex_lock(&d->lock);
		p = dir_place_of(d, ino);
		/* A drop that has begun since finds it in doubt, and leaves it so. */
		if (p && p->dir == dir && there == 1 &&
			cache_kcopy_stands(k->cache, &e.leaf))
			doubt_end(d, p);
		rt_mutex_unlock(&d->lock);
		if (now >= until || rt_task_unwanted())
			return false;
		if (there != 1)
			rt_sleep_ns(MOVE_FIRST_NS);
	}
}

void kcache_dir_verify(struct kcache *k, uint64_t dir, uint32_t thread)
{
	uint64_t patience;

	if (likely(!kcache_dir_doubted(k, dir)))
		return;
	patience = patience_ns(k, thread);
	if (patience)
		(void)dirs_verify(k, dir, rt_now_ns() + patience);
}

/* Runs a job. A check keeps the path of getcwd(2) valid even if no program walks there. At the
 * first look, the other node may not have changed the name yet for which it took the leaf. */
static void job_run(struct kcache *k, const struct dir_job *j)
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

/* Returns the first job that has not begun, or NULL. Threads wait for moves, so checks come behind
 * them, and have half of the tasks at most. Under the lock. */
static struct dir_job *job_take(struct kcache_dirs *d)
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

static void job_end(struct kcache_dirs *d, struct dir_job *j)
{
	struct dir_job **at = &d->jobs;

	while (*at != j)
		at = &(*at)->next;
	*at = j->next;
	d->count_jobs--;
	d->checks -= j->checks;
	d->checking -= j->checks && j->begun;
	if (j->checks)
		rt_cond_signal(&d->work); /* for a job that waited for its task */
	j->done = true;
	job_put(j);
	rt_cond_broadcast(&d->ended);
}

static void dirs_main(void *arg)
{
	struct kcache *k = (struct kcache *)arg;
	struct kcache_dirs *d = &k->dirs;

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

/* ---- the kernel comes and goes ----------------------------------------------------------- */

void kcache_dirs_start(struct kcache *k)
{
	k->dirs.max = (unsigned)(cache_frame_count(k->cache) / PLACE_SHARE);
}

void kcache_dirs_stop(struct kcache *k)
{
	struct kcache_dirs *d = &k->dirs;

	rt_mutex_lock(&d->lock);
	d->stopping = true;
	rt_mutex_unlock(&d->lock);
	rt_cond_broadcast(&d->work);
	for (unsigned i = 0; i < d->tasks; i++)
		rt_task_join(d->task[i]);
	while (d->jobs) /* without any task */
		job_end(d, d->jobs);
	while (d->oldest)
		dir_place_free(d, d->oldest);
}
