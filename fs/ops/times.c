/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Times of files that are read and overwritten, without a transaction for each.
 *
 * Overwriting bytes in place changes nothing in the tree except the times. If they are within a
 * second of the tree's, the inode's state keeps them. They are exact, and file_overlay shows them.
 * The next transaction on the file, fsync, setattr or the last close writes them to the tree. A
 * power cut therefore sets a file's times back by a second at most.
 *
 * Other nodes read the tree. On a volume of several nodes a write stores its times there before it
 * is answered. So does a read that bypasses the kernel's cache. For a read into that cache, a task
 * writes the atime when the file has not changed for a moment. Otherwise readers on several nodes
 * would at once take the inode, and their kernels' copies, from each other after each change
 * (docs/nodes/sizes.md, "Sizes"). Until then this node shows the atime. A time that any node sets
 * meanwhile stands.
 */
#include "fs/ops/data_internal.h"

#define TIMES_LAG_NS 1000000000ll
#define ATIME_LAG_NS 250000000ull /* with other nodes */
#define ATIMES_MAX   1024u        /* noted at a time; more are written at once */

struct atimes {
	struct fs *fs;
	struct rt_task *task;
	struct rt_mutex lock; /* a leaf */
	struct rt_cond changed;
	_Atomic bool stopping;
	unsigned count, held; /* held: places for inodes that may come back from `due` */
	uint64_t ino[ATIMES_MAX], due[ATIMES_MAX];
};

int inode_modified(struct fs *fs, struct txn *x, uint64_t ino, struct disk_inode *inode,
	const struct ops_caller *c, int64_t now)
{
	ops_kill_setid(inode, c);
	inode->mtime_ns = inode->ctime_ns = now;
	return xattr_drop_caps(fs, x, ino, inode);
}

void state_times_written(struct inode_state *st, int64_t mtime_ns)
{
	rt_mutex_lock(&st->lock);
	if (st->mtime_ns <= mtime_ns)
		st->mtime_ns = 0;
	rt_mutex_unlock(&st->lock);
}

/* Lays times from memory over the tree's; 0: there is none. */
static void times_lay(struct disk_inode *inode, int64_t mtime_ns, int64_t atime_ns)
{
	if (mtime_ns) {
		inode->mtime_ns = MAX(inode->mtime_ns, mtime_ns);
		inode->ctime_ns = MAX(inode->ctime_ns, mtime_ns);
	}
	if (atime_ns)
		inode->atime_ns = atime_ns;
}

/* With other nodes: returns the noted atime if it still follows the one that it moved. */
static int64_t atime_standing(const struct fs *fs, const struct disk_inode *inode,
	int64_t noted_ns, int64_t was_ns)
{
	return fs_has_peers(fs) && inode->atime_ns != was_ns ? 0 : noted_ns;
}

struct settle {
	struct fs *fs;
	uint64_t ino;
	int64_t mtime_ns, atime_ns, atime_was_ns;
};

static int settle_body(struct txn *x, void *arg)
{
	const struct settle *s = arg;
	struct disk_inode inode;
	int rc = inode_read(x, s->ino, &inode);
	int64_t atime_ns;

	if (rc < 0)
		return rc;
	atime_ns = atime_standing(s->fs, &inode, s->atime_ns, s->atime_was_ns);
	if (!atime_ns && !s->mtime_ns)
		return 0;
	times_lay(&inode, s->mtime_ns, atime_ns);
	return s->mtime_ns ? inode_write(x, s->ino, &inode)
			   : inode_write_atime(x, s->ino, &inode);
}

int state_settle(struct fs *fs, struct inode_state *st)
{
	struct settle s = {.fs = fs, .ino = st->ino};
	int rc;

	rt_mutex_lock(&st->lock);
	s.mtime_ns = st->mtime_ns;
	s.atime_ns = st->atime_ns;
	s.atime_was_ns = st->atime_was_ns;
	rt_mutex_unlock(&st->lock);
	if (s.mtime_ns == 0 && s.atime_ns == 0)
		return 0;
	/* For an atime this does not wait for a node that is away, because a reader must not wait
	 * for that. Such a node may have read the inode. The atime is given up then. */
	rc = ops_run(fs, s.mtime_ns ? 0 : OPS_RUN_REACHED, settle_body, &s, NULL);
	if (rc < 0 && rc != -ENOENT && (s.mtime_ns || rc != -EHOSTUNREACH))
		return rc;
	/* If this node is lost, an inode that it has only read must not block readers. */
	if (rc == 0 && !s.mtime_ns)
		tree_downgrade_soon(fs->tree, disk_key(st->ino, DISK_ITEM_INODE, 0));
	rt_mutex_lock(&st->lock);
	if (st->mtime_ns == s.mtime_ns)
		st->mtime_ns = 0;
	if (st->atime_ns == s.atime_ns)
		st->atime_ns = 0;
	rt_mutex_unlock(&st->lock);
	return 0;
}

static void state_overlay(struct fs *fs, struct inode_state *st, struct disk_inode *inode)
{
	rt_mutex_lock(&st->lock);
	times_lay(inode, st->mtime_ns,
		atime_standing(fs, inode, st->atime_ns, st->atime_was_ns));
	rt_mutex_unlock(&st->lock);
}

void file_overlay(struct fs *fs, uint64_t ino, struct disk_inode *inode)
{
	struct inode_state *st = state_find(fs, ino);

	if (!st)
		return;
	state_overlay(fs, st, inode);
	state_put(fs, st);
}

int file_settle(struct fs *fs, uint64_t ino)
{
	struct inode_state *st = state_find(fs, ino);
	int rc;

	if (!st)
		return 0;
	rc = state_settle(fs, st);
	state_put(fs, st);
	return rc;
}

/* ---- times written later, on a volume of several nodes ----------------------------------- */

static void listed_settle(struct fs *fs, struct inode_state *st)
{
	rt_mutex_lock(&st->lock);
	st->times_listed = false; /* a read or store from here on is listed again */
	rt_mutex_unlock(&st->lock);
	(void)state_settle(fs, st); /* after a failure the next one tries again */
}

static bool just_changed(struct fs *fs, uint64_t ino)
{
	struct disk_inode inode;

	return inode_get(fs, ino, &inode) == 0 &&
	       MAX(inode.mtime_ns, inode.ctime_ns) > rt_wall_ns() - (int64_t)ATIME_LAG_NS;
}

/* Returns true if the file must stay on the list. */
static bool listed_stays(struct fs *fs, uint64_t ino, bool last)
{
	struct inode_state *st = state_find(fs, ino);
	bool later;

	if (!st)
		return false;
	later = !last && just_changed(fs, ino);
	if (!later)
		listed_settle(fs, st);
	state_put(fs, st);
	return later;
}

/* Under the lock, which it releases meanwhile. */
static void atimes_settle(struct atimes *a)
{
	unsigned count = a->count, later = 0;

	memcpy(a->due, a->ino, count * sizeof(*a->ino));
	a->count = 0;
	a->held = count;
	rt_mutex_unlock(&a->lock);
	for (unsigned i = 0; i < count; i++)
		if (listed_stays(a->fs, a->due[i], atomic_load(&a->stopping)))
			a->due[later++] = a->due[i];
	rt_mutex_lock(&a->lock);
	memcpy(a->ino + a->count, a->due, later * sizeof(*a->ino));
	a->count += later;
	a->held = 0;
}

static void atimes_main(void *arg)
{
	struct atimes *a = arg;

	rt_mutex_lock(&a->lock);
	while (!a->stopping) {
		uint64_t due_ns = a->count ? rt_now_ns() + ATIME_LAG_NS : RT_FOREVER;

		while (!a->stopping && rt_cond_wait(&a->changed, &a->lock, due_ns) == 0 &&
			due_ns != RT_FOREVER)
			;
		if (due_ns != RT_FOREVER)
			atimes_settle(a);
	}
	rt_mutex_unlock(&a->lock);
}

int atimes_open(struct fs *fs)
{
	struct atimes *a;
	int rc;

	if (!fs_has_peers(fs) || fs->volume->read_only)
		return 0;
	a = rt_alloc(sizeof(*a));
	if (!a)
		return -ENOMEM;
	a->fs = fs;
	rc = rt_task_spawn(&a->task, "weft-atimes", atimes_main, a);
	if (rc)
		rt_free(a);
	else
		fs->atimes = a;
	return rc;
}

void atimes_close(struct fs *fs)
{
	struct atimes *a = fs->atimes;

	if (!a)
		return;
	rt_mutex_lock(&a->lock);
	a->stopping = true;
	rt_mutex_unlock(&a->lock);
	rt_cond_broadcast(&a->changed);
	rt_task_join(a->task);
	fs->atimes = NULL;
	rt_free(a);
}

/* Returns false if too many are on the list. */
static bool list_add(struct fs *fs, uint64_t ino)
{
	struct atimes *a = fs->atimes;
	bool first, listed;

	if (!a)
		return false;
	rt_mutex_lock(&a->lock);
	listed = a->count + a->held < ATIMES_MAX;
	first = listed && a->count == 0;
	if (listed)
		a->ino[a->count++] = ino;
	rt_mutex_unlock(&a->lock);
	if (first)
		rt_cond_signal(&a->changed);
	return listed;
}

void state_settle_later(struct fs *fs, struct inode_state *st)
{
	bool listed;

	rt_mutex_lock(&st->lock);
	listed = st->times_listed;
	st->times_listed = true;
	rt_mutex_unlock(&st->lock);
	if (!listed && !list_add(fs, st->ino))
		listed_settle(fs, st);
}

/* `inode`: as in the tree. */
static void state_accessed_shared(struct fs *fs, struct inode_state *st,
	const struct disk_inode *inode, int64_t now, bool kept)
{
	rt_mutex_lock(&st->lock);
	st->atime_ns = now;
	st->atime_was_ns = inode->atime_ns;
	rt_mutex_unlock(&st->lock);
	if (kept)
		state_settle_later(fs, st);
	else
		(void)state_settle(fs, st);
}

bool state_accessed(
	struct fs *fs, struct inode_state *st, const struct disk_inode *inode, bool kept)
{
	struct disk_inode shown = *inode;
	int64_t now = rt_wall_ns();

	state_overlay(fs, st, &shown);
	if (!atime_due(fs, &shown, now))
		return false;
	if (fs_has_peers(fs)) {
		state_accessed_shared(fs, st, inode, now, kept);
		return true;
	}
	rt_mutex_lock(&st->lock);
	st->atime_ns = now;
	rt_mutex_unlock(&st->lock);
	/* An atime that cannot be written is no reason to fail a read. */
	if (inode->atime_ns > now || inode->atime_ns <= now - TIMES_LAG_NS)
		(void)state_settle(fs, st);
	return true;
}

bool file_atime_due(struct fs *fs, struct ops_file *file)
{
	struct disk_inode inode;

	if (inode_get(fs, file->state->ino, &inode) < 0 || inode.size == 0)
		return false;
	state_overlay(fs, file->state, &inode);
	return atime_due(fs, &inode, rt_wall_ns());
}

struct modified {
	struct fs *fs;
	uint64_t ino;
	const struct ops_caller *c;
	int64_t now;
};

static int modified_body(struct txn *x, void *arg)
{
	struct modified *m = arg;
	struct disk_inode inode;
	int rc = inode_read(x, m->ino, &inode);

	/* Of two writes, the one that commits last has the later time. */
	m->now = rt_wall_ns();
	if (rc == 0)
		rc = inode_modified(m->fs, x, m->ino, &inode, m->c, m->now);
	return rc ? rc : inode_write(x, m->ino, &inode);
}

int state_modified(struct fs *fs, struct inode_state *st, const struct disk_inode *inode,
	const struct ops_caller *c)
{
	struct modified m = {.fs = fs, .ino = st->ino, .c = c, .now = rt_wall_ns()};
	struct disk_inode probe = *inode;
	int rc;

	if (!fs_has_peers(fs) && !ops_kill_setid(&probe, c) &&
		!(inode->flags & DISK_INODE_HAS_CAPS) &&
		(inode->writers & fs_writer(fs)) && m.now >= inode->mtime_ns &&
		m.now >= inode->ctime_ns && inode->mtime_ns > m.now - TIMES_LAG_NS) {
		rt_mutex_lock(&st->lock);
		if (m.now > st->mtime_ns)
			st->mtime_ns = m.now;
		rt_mutex_unlock(&st->lock);
		return 0;
	}
	inode_claim(fs, st->ino);
	rc = ops_run(fs, 0, modified_body, &m, NULL);
	if (rc == 0)
		state_times_written(st, m.now);
	return rc;
}
