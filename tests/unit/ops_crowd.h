/* SPDX-License-Identifier: Apache-2.0 */
/* Tasks that get in each other's way in the same directories, and a check of what they
 * leave. */
#ifndef WEFT_TEST_OPS_CROWD_H
#define WEFT_TEST_OPS_CROWD_H

#include <dirent.h>

#include "tests/unit/ops_fixture.h"

#define ROOT DISK_INO_ROOT

/* ---- collecting ------------------------------------------------------------------- */

struct seen {
	char name[DISK_NAME_MAX + 1];
	uint64_t ino, cookie;
	uint32_t type;
	bool has_attr;
};

struct list {
	struct seen *seen;
	unsigned count, max, stop_at;
};

static inline int collect(void *arg, const struct ops_dirent *e)
{
	struct list *l = (struct list *)arg;
	struct seen *s = &l->seen[l->count];

	if (l->count == l->stop_at)
		return 1;
	HOLDS(l->count < l->max && e->name_len <= DISK_NAME_MAX);
	memcpy(s->name, e->name, e->name_len);
	s->name[e->name_len] = '\0';
	s->ino = e->ino;
	s->cookie = e->cookie;
	s->type = e->type;
	s->has_attr = e->attr;
	if (e->attr)
		EQ(e->attr->ino, e->ino);
	l->count++;
	return 0;
}

/* `step` entries with each call, like a small buffer. */
static inline unsigned read_dir(struct fs *fs, uint64_t dir, unsigned flags,
	unsigned step, struct seen *seen, unsigned max)
{
	struct list l = {.seen = seen, .max = max};
	uint64_t cookie = 0;

	for (unsigned before = UINT32_MAX; before != l.count;) {
		before = l.count;
		l.stop_at = l.count + step;
		OK(ops_readdir(fs, dir, cookie, flags, collect, &l));
		if (l.count > 0)
			cookie = seen[l.count - 1].cookie;
	}
	return l.count;
}

static inline struct seen *list_new(unsigned max)
{
	struct seen *seen = (struct seen *)rt_alloc(max * sizeof(*seen));

	HOLDS(seen);
	return seen;
}

/* ---- checking the whole tree ------------------------------------------------------ */

struct census {
	struct fs *fs;
	uint64_t dirs, files;
	struct {
		uint64_t ino;
		uint32_t links, nlink;
	} file[20000];
};

static inline void census_dir(
	struct census *c, uint64_t dir, uint64_t parent, unsigned depth)
{
	struct disk_inode inode = attr_of(c->fs, dir);
	unsigned max = (unsigned)inode.size + 2, subdirs = 0;
	struct seen *seen = list_new(max + 1);

	HOLDS(depth < 500);
	EQ(inode.parent, parent);
	EQ(read_dir(c->fs, dir, 0, max, seen, max), max);
	for (unsigned i = 2; i < max; i++) {
		struct disk_inode child = attr_of(c->fs, seen[i].ino);
		uint64_t at = 0;

		EQ(IFTODT(child.mode), seen[i].type);
		EQ(ino_of(c->fs, dir, seen[i].name), seen[i].ino);
		if (seen[i].type == DT_DIR) {
			subdirs++;
			census_dir(c, seen[i].ino, dir, depth + 1);
			continue;
		}
		while (at < c->files && c->file[at].ino != seen[i].ino)
			at++;
		HOLDS(at < ARRAY_SIZE(c->file));
		c->file[at].ino = seen[i].ino;
		c->file[at].nlink = child.nlink;
		c->file[at].links++;
		if (at == c->files)
			c->files++;
	}
	EQ(inode.nlink, 2 + subdirs);
	c->dirs++;
	rt_free(seen);
}

/* Parents, link counts and sizes agree with what the directories say. */
static inline void check_tree(struct fs *fs, uint64_t dirs)
{
	struct census *c = (struct census *)rt_alloc(sizeof(*c));

	HOLDS(c);
	c->fs = fs;
	census_dir(c, ROOT, ROOT, 0);
	for (uint64_t i = 0; i < c->files; i++)
		EQ(c->file[i].links, c->file[i].nlink);
	if (dirs)
		EQ(c->dirs, dirs);
	rt_free(c);
}

/* ---- many tasks in the same directories ------------------------------------------- */

#define CREW_DIRS 6
static uint64_t crew_dir[CREW_DIRS];

static inline int allowed(int rc, const int *errors)
{
	for (; *errors; errors++)
		if (rc == *errors)
			return 1;
	return rc == 0;
}

static inline void jostle(struct fs *fs, unsigned n)
{
	static const int any[] = {
		-EEXIST, -ENOENT, -ENOTEMPTY, -EISDIR, -ENOTDIR, -EINVAL, -EPERM, 0};
	static const uint8_t big[9600];
	char a[16], b[16];

	for (unsigned i = 0; i < 300; i++) {
		uint64_t r = rt_random();
		uint64_t from = crew_dir[r % CREW_DIRS], to = crew_dir[r / 7 % CREW_DIRS];
		struct ops_attr attr;
		int rc;

		snprintf(a, sizeof(a), "n%u", (unsigned)(r >> 20) % 12);
		snprintf(b, sizeof(b), "n%u", (unsigned)(r >> 30) % 12);
		switch (r >> 40 & 7) {
		case 0:
		case 1:
			rc = try_file(fs, from, a);
			break;
		case 2:
			rc = try_mkdir(fs, from, a);
			break;
		case 3:
			rc = ops_unlink(fs, from, nm(a));
			break;
		case 4:
			rc = ops_rmdir(fs, from, nm(a));
			break;
		case 5:
			rc = ops_lookup(fs, from, nm(a), &attr);
			if (rc == 0)
				rc = try_link(fs, attr.ino, to, b);
			/* a value in pages, so that there is something to leak */
			if (rc == 0)
				rc = ops_setxattr(fs, attr.ino, &root_user, "trusted.v",
					big, 600 + r % 9000, 0);
			break;
		default:
			rc = try_rename(
				fs, from, a, to, b, r >> 50 & 1 ? RENAME_EXCHANGE : 0);
		}
		if (!allowed(rc, any)) {
			fprintf(stderr, "operation %u: %d\n", (unsigned)(r >> 40 & 7),
				rc);
			abort();
		}
	}
}

static inline void jostle_begin(struct fs *fs)
{
	char name[16];

	for (unsigned i = 0; i < CREW_DIRS; i++) {
		snprintf(name, sizeof(name), "dir%u", i);
		/* one hangs below another */
		crew_dir[i] = mk_dir(fs, i > 3 ? crew_dir[i - 3] : ROOT, name);
	}
}

/* Directories are moved into each other by all: nobody may close a loop. */
#define MOVERS_DIRS 8
static uint64_t mover_dir[MOVERS_DIRS];

static inline void move_dirs(struct fs *fs, unsigned n)
{
	char name[16];

	for (unsigned i = 0; i < 150; i++) {
		uint64_t r = rt_random();
		unsigned which = r % MOVERS_DIRS;
		uint64_t to = r >> 8 & 3 ? mover_dir[r / 31 % MOVERS_DIRS] : ROOT;
		struct ops_attr a;
		int rc;

		snprintf(name, sizeof(name), "m%u", which);
		rc = ops_getattr(fs, mover_dir[which], &a);
		OK(rc);
		rc = try_rename(fs, a.inode.parent, name, to, name, 0);
		HOLDS(rc == 0 || rc == -EINVAL || rc == -ENOENT);
	}
}

static inline void move_dirs_begin(struct fs *fs)
{
	char name[16];

	for (unsigned i = 0; i < MOVERS_DIRS; i++) {
		snprintf(name, sizeof(name), "m%u", i);
		mover_dir[i] = mk_dir(fs, ROOT, name);
	}
}

#endif
