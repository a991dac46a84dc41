/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Times of files that are read and overwritten, kept off the fast paths.
 *
 * Overwriting bytes in place changes nothing in the tree but the times. Within a second
 * of the tree's they are kept in the inode's state, exact, shown to whoever asks
 * (file_overlay), and brought into the tree by the next transaction on the file, by
 * fsync, by setattr and by the last close. So a power cut sets a file's times back by a
 * second at most.
 *
 * Other nodes ask the tree. So where there are any, a write, and a read that moves the
 * atime, bring the times there before they are answered, and no state has any.
 */
#include "fs/ops/data_internal.h"

#define TIMES_LAG_NS 1000000000ll

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

/* Lays times that were kept in memory over the tree's; 0: none was. */
static void times_lay(struct disk_inode *inode, int64_t mtime_ns, int64_t atime_ns)
{
	if (mtime_ns) {
		inode->mtime_ns = MAX(inode->mtime_ns, mtime_ns);
		inode->ctime_ns = MAX(inode->ctime_ns, mtime_ns);
	}
	if (atime_ns)
		inode->atime_ns = atime_ns;
}

struct settle {
	uint64_t ino;
	int64_t mtime_ns, atime_ns;
};

static int settle_body(struct txn *x, void *arg)
{
	const struct settle *s = arg;
	struct disk_inode inode;
	int rc = inode_read(x, s->ino, &inode);

	if (rc < 0)
		return rc;
	times_lay(&inode, s->mtime_ns, s->atime_ns);
	return inode_write(x, s->ino, &inode);
}

int state_settle(struct fs *fs, struct inode_state *st)
{
	struct settle s = {.ino = st->ino};
	int rc;

	rt_mutex_lock(&st->lock);
	s.mtime_ns = st->mtime_ns;
	s.atime_ns = st->atime_ns;
	rt_mutex_unlock(&st->lock);
	if (s.mtime_ns == 0 && s.atime_ns == 0)
		return 0;
	rc = ops_run(fs, 0, settle_body, &s, NULL);
	if (rc < 0 && rc != -ENOENT)
		return rc;
	rt_mutex_lock(&st->lock);
	if (st->mtime_ns == s.mtime_ns)
		st->mtime_ns = 0;
	if (st->atime_ns == s.atime_ns)
		st->atime_ns = 0;
	rt_mutex_unlock(&st->lock);
	return 0;
}

static void state_overlay(struct inode_state *st, struct disk_inode *inode)
{
	rt_mutex_lock(&st->lock);
	times_lay(inode, st->mtime_ns, st->atime_ns);
	rt_mutex_unlock(&st->lock);
}

void file_overlay(struct fs *fs, uint64_t ino, struct disk_inode *inode)
{
	struct inode_state *st = state_find(fs, ino);

	if (!st)
		return;
	state_overlay(st, inode);
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

struct accessed {
	struct fs *fs;
	uint64_t ino;
	int64_t now;
};

static int accessed_body(struct txn *x, void *arg)
{
	const struct accessed *a = arg;
	struct disk_inode inode;
	int rc = inode_read(x, a->ino, &inode);

	if (rc < 0 || !atime_due(a->fs, &inode, a->now))
		return rc;
	inode.atime_ns = a->now;
	return inode_write(x, a->ino, &inode);
}

bool state_accessed(struct fs *fs, struct inode_state *st, const struct disk_inode *inode)
{
	struct disk_inode shown = *inode;
	int64_t now = rt_wall_ns();

	state_overlay(st, &shown);
	if (!atime_due(fs, &shown, now))
		return false;
	if (fs_has_peers(fs)) {
		struct accessed a = {.fs = fs, .ino = st->ino, .now = now};

		inode_claim(fs, st->ino);
		(void)ops_run(fs, 0, accessed_body, &a, NULL);
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

	/* Of two writes the one that commits last has the later time. */
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
