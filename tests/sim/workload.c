/* SPDX-License-Identifier: Apache-2.0 */
/* Mixes of operations, told to the model. */
#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/xattr.h>

#include "tests/sim/workload.h"

#define HANDLES     4u
#define WRITE_PAGES 24u
#define FILE_BYTES  ((uint64_t)MODEL_PAGES * PAGE_SIZE)
/* What a task's files may have together, so that a volume holds it. */
#define TASK_PAGES 500u

static const struct ops_caller caller = {.keeps_setid = true, .in_group = true};

struct handle {
	struct ops_file *file;
	int node;
};

struct worker {
	struct workload *w;
	struct model *m;
	struct model_task *t;
	struct fs *fs;
	unsigned task;
	uint64_t rng;
	struct handle handle[HANDLES];
	bool read_only; /* the log has failed */
	bool choked;    /* and the cache is full of what it kept from being written */
	struct model_seen seen;
	struct rt_task *rt;
	uint8_t bytes[(WRITE_PAGES + 2) * PAGE_SIZE];
	uint8_t value[DISK_XATTR_VALUE_MAX];
	char target[MODEL_TARGET_MAX + 1];
};

/* Node tasks vanish at a cut: what they use is the harness's. */
static struct worker workers[MODEL_TASKS];

_Noreturn void workload_die(const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	vfprintf(stderr, fmt, args);
	va_end(args);
	fputc('\n', stderr);
	abort();
}

static uint64_t rnd(struct worker *w, uint64_t below)
{
	uint64_t z = w->rng += 0x9e3779b97f4a7c15ull;

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
	return (z ^ (z >> 31)) % below;
}

/* ---- outcomes -------------------------------------------------------------------- */

static bool arranged(const struct worker *w, int64_t rc)
{
	switch (rc) {
	case -EIO:
		return w->w->errors & WORKLOAD_EIO;
	case -EROFS:
		return (w->w->errors & WORKLOAD_EIO) && volume_failed(fs_volume(w->fs));
	case -ENOMEM:
		return w->w->errors & WORKLOAD_ENOMEM;
	case -ENOSPC:
		return w->w->errors & WORKLOAD_ENOSPC;
	default:
		return false;
	}
}

/* Pages that cannot be written fill the cache once the log has failed: no room to read.
 */
static bool choked(const struct worker *w)
{
	struct volume *v = fs_volume(w->fs);

	return volume_failed(v) &&
	       cache_dirty_pages(v->cache) > cache_frame_count(v->cache) / 4;
}

/* False: there is no more to be seen in this life. */
static bool look(struct worker *w)
{
	int rc = 0;

	for (unsigned tries = 0; tries < 3; tries++) {
		rc = model_look(w->m, w->task, w->fs, &w->seen);
		if (rc == 0)
			return true;
		if (rc > 0)
			workload_die("task %c sees: %s", w->t->letter, w->m->why);
		if (!arranged(w, rc))
			break;
		if (w->w->heal)
			w->w->heal();
		if (choked(w))
			return false;
	}
	workload_die("failed %d dirty %llu of %llu; task %c: looking at what it has: %s",
		volume_failed(fs_volume(w->fs)),
		(unsigned long long)cache_dirty_pages(fs_volume(w->fs)->cache),
		(unsigned long long)cache_frame_count(fs_volume(w->fs)->cache),
		w->t->letter, strerror(-rc));
}

static void audit(struct worker *w)
{
	if (!look(w))
		return;
	if (!model_is_now(w->m, w->task, &w->seen))
		workload_die("task %c: not what it made: %s", w->t->letter, w->m->why);
}

/* An operation in flight has returned one of the arranged errors, or less than was asked
 * for. */
static void settle(struct worker *w, int64_t rc)
{
	const char *what = w->t->op[w->t->ops - 1].what;

	w->w->failed++;
	w->read_only |= rc == -EROFS;
	if (!look(w)) {
		/* it stays in flight for the model: it may have happened or not */
		w->choked = w->read_only = w->w->choked = true;
		return;
	}
	if (!model_settle(w->m, w->task, &w->seen))
		workload_die("task %c: %s returned %lld (%s), then: %s", w->t->letter,
			what, (long long)rc, rc < 0 ? strerror((int)-rc) : "short",
			w->m->why);
}

static struct model_op *begin(struct worker *w, const struct model_op *op)
{
	return model_begin(w->m, w->t, op);
}

static bool is_open(const struct worker *w, int node)
{
	for (unsigned i = 0; i < HANDLES; i++)
		if (w->handle[i].file && w->handle[i].node == node)
			return true;
	return false;
}

/* Nodes without a name that nobody has open are gone. */
static void sweep(struct worker *w)
{
	for (int i = MODEL_SHARED + 1; i < (int)MODEL_NODES; i++)
		if (w->t->now.node[i].used && w->t->now.node[i].nlink == 0 &&
			!is_open(w, i))
			w->t->now.node[i].used = false;
}

/* The end of a call that had to succeed. True: it has. */
static bool finish(struct worker *w, int64_t rc, uint64_t ino)
{
	if (rc == 0) {
		model_done(w->m, w->t, ino);
		sweep(w);
		return true;
	}
	if (!arranged(w, rc))
		workload_die("task %c: %s returned %lld (%s)", w->t->letter,
			w->t->op[w->t->ops - 1].what, (long long)rc, strerror((int)-rc));
	settle(w, rc);
	return false;
}

/* The end of one that had to fail, or that is no change. */
static bool expect(struct worker *w, const char *what, int64_t rc, int64_t want)
{
	if (rc == want)
		return true;
	if (!arranged(w, rc))
		workload_die("task %c: %s returned %lld, not %lld", w->t->letter, what,
			(long long)rc, (long long)want);
	w->w->failed++;
	w->read_only |= rc == -EROFS;
	return false;
}

/* ---- choices --------------------------------------------------------------------- */

static struct model_node *node_at(struct worker *w, int node)
{
	return &w->t->now.node[node];
}

static bool is_dir(const struct model_node *n)
{
	return S_ISDIR(n->mode);
}

static int any_node(struct worker *w, bool (*fits)(const struct model_node *))
{
	unsigned start = (unsigned)rnd(w, MODEL_NODES);

	for (unsigned i = 0; i < MODEL_NODES; i++) {
		int node = (int)((start + i) % MODEL_NODES);
		const struct model_node *n = node_at(w, node);

		if (n->used && n->nlink > 0 && fits(n))
			return node;
	}
	return -1;
}

static bool fits_any(const struct model_node *n)
{
	return n->parent >= 0 || !is_dir(n); /* not the two roots */
}

static bool fits_dir(const struct model_node *n)
{
	return is_dir(n);
}

static bool fits_file(const struct model_node *n)
{
	return S_ISREG(n->mode);
}

static bool fits_link(const struct model_node *n)
{
	return S_ISLNK(n->mode);
}

static int any_dir(struct worker *w)
{
	return rnd(w, 4) == 0 ? MODEL_ROOT : any_node(w, fits_dir);
}

static uint64_t ino_of(struct worker *w, int node)
{
	return node_at(w, node)->ino;
}

static struct ops_name name_at(struct worker *w, int dir, int name, char *buf)
{
	model_name(w->t, dir, (unsigned)name, buf);
	return (struct ops_name){buf, strlen(buf)};
}

static unsigned pages_held(const struct worker *w)
{
	unsigned pages = 0;

	for (unsigned i = 0; i < MODEL_NODES; i++) {
		const struct model_node *n = &w->t->now.node[i];

		if (!n->used)
			continue;
		if (S_ISREG(n->mode))
			pages += (unsigned)DIV_UP(n->size, PAGE_SIZE);
		for (unsigned x = 0; x < MODEL_XATTRS; x++)
			pages += n->xattr[x].set ? n->xattr[x].len / PAGE_SIZE : 0;
	}
	return pages;
}

static bool may_grow(const struct worker *w)
{
	return w->w->large || pages_held(w) < TASK_PAGES;
}

/* ---- handles --------------------------------------------------------------------- */

static void handle_close(struct worker *w, struct handle *h)
{
	if (!h->file)
		return;
	ops_close(w->fs, h->file);
	h->file = NULL;
	sweep(w);
}

/* A slot for another handle. */
static struct handle *handle_free(struct worker *w)
{
	struct handle *h = &w->handle[rnd(w, HANDLES)];

	handle_close(w, h);
	return h;
}

/* Some file, open. NULL: none. */
static struct handle *handle_any(struct worker *w)
{
	struct handle *h = &w->handle[rnd(w, HANDLES)];
	int node, rc;

	if (h->file && rnd(w, 4))
		return h;
	node = any_node(w, fits_file);
	if (node < 0)
		return NULL;
	for (unsigned i = 0; i < HANDLES; i++)
		if (w->handle[i].file && w->handle[i].node == node && rnd(w, 2))
			return &w->handle[i];
	handle_close(w, h);
	rc = ops_open(w->fs, ino_of(w, node), &caller, O_RDWR, &h->file, NULL);
	if (!expect(w, "open", rc, 0)) {
		h->file = NULL;
		return NULL;
	}
	h->node = node;
	return h;
}

/* ---- names ----------------------------------------------------------------------- */

static int make_call(struct worker *w, struct model_op *op, uint64_t dir,
	struct ops_name name, uint64_t *ino)
{
	struct handle *h = &w->handle[0];
	struct ops_attr a = {0};
	int rc;

	switch (op->mode & S_IFMT) {
	case S_IFDIR:
		rc = ops_mkdir(w->fs, dir, name, &caller, op->mode, &a);
		break;
	case S_IFLNK:
		model_target(op->target_len, w->target);
		rc = ops_symlink(w->fs, dir, name, &caller, w->target, &a);
		break;
	case S_IFREG:
		if (op->flags) {
			rc = ops_create(w->fs, dir, name, &caller, op->mode,
				O_RDWR | O_EXCL, &h->file, &a);
			h->node = op->node;
			if (rc)
				h->file = NULL;
			break;
		}
		/* fall through */
	default:
		rc = ops_mknod(w->fs, dir, name, &caller, op->mode, op->rdev, 0, &a);
	}
	*ino = a.ino;
	return rc;
}

static void op_make(struct worker *w)
{
	static const uint32_t types[] = {S_IFREG, S_IFREG, S_IFREG, S_IFREG, S_IFDIR,
		S_IFDIR, S_IFLNK, S_IFIFO, S_IFCHR};
	struct model_op op = {.kind = MODEL_CREATE,
		.what = "make",
		.dir = any_dir(w),
		.name = (int)rnd(w, MODEL_NAMES),
		.node = model_node_new(w->t)};
	uint32_t type = types[rnd(w, ARRAY_SIZE(types))];
	char buf[DISK_NAME_MAX + 1];
	uint64_t ino = 0;
	int rc;

	if (op.node < 0 || w->t->files >= MODEL_FILES - 1)
		return;
	op.mode = type | (type == S_IFLNK ? 0777 : (uint32_t)rnd(w, 01000));
	if (type == S_IFLNK)
		op.target_len = 1 + (uint32_t)rnd(w, 1 + rnd(w, MODEL_TARGET_MAX));
	if (type == S_IFCHR)
		op.rdev = (uint32_t)rnd(w, 100);
	op.flags = type == S_IFREG && rnd(w, 2);
	if (op.flags)
		handle_close(w, &w->handle[0]);
	if (node_at(w, op.dir)->entry[op.name] >= 0) {
		rc = make_call(w, &op, ino_of(w, op.dir),
			name_at(w, op.dir, op.name, buf), &ino);
		expect(w, "make over a name", rc, -EEXIST);
		return;
	}
	if (type == S_IFREG)
		op.file = model_file_new(w->m, w->t);
	begin(w, &op);
	rc = make_call(w, &op, ino_of(w, op.dir), name_at(w, op.dir, op.name, buf), &ino);
	finish(w, rc, ino);
}

static void op_tmpfile(struct worker *w)
{
	struct model_op op = {.kind = MODEL_CREATE,
		.what = "tmpfile",
		.dir = -1,
		.dir2 = any_dir(w),
		.node = model_node_new(w->t),
		.mode = S_IFREG | (uint32_t)rnd(w, 01000)};
	struct handle *h;
	struct ops_attr a = {0};
	int rc;

	if (op.node < 0 || w->t->files >= MODEL_FILES - 1)
		return;
	h = handle_free(w);
	op.file = model_file_new(w->m, w->t);
	begin(w, &op);
	rc = ops_tmpfile(
		w->fs, ino_of(w, op.dir2), &caller, op.mode, O_RDWR, &h->file, &a);
	h->node = op.node;
	if (rc)
		h->file = NULL;
	finish(w, rc, a.ino);
}

static void op_remove(struct worker *w)
{
	struct model_op op = {.kind = MODEL_REMOVE,
		.what = "remove",
		.dir = any_dir(w),
		.name = (int)rnd(w, MODEL_NAMES),
		.node = -1};
	int node = node_at(w, op.dir)->entry[op.name], want = 0, rc;
	struct ops_name name;
	char buf[DISK_NAME_MAX + 1];
	bool rmdir = node >= 0 ? is_dir(node_at(w, node)) : rnd(w, 2);

	if (rnd(w, 10) == 0)
		rmdir = !rmdir;
	if (node < 0)
		want = -ENOENT;
	else if (!rmdir)
		want = is_dir(node_at(w, node)) ? -EISDIR : 0;
	else if (!is_dir(node_at(w, node)))
		want = -ENOTDIR;
	else if (node_at(w, node)->entries)
		want = -ENOTEMPTY;
	if (want == 0)
		begin(w, &op);
	name = name_at(w, op.dir, op.name, buf);
	rc = rmdir ? ops_rmdir(w->fs, ino_of(w, op.dir), name)
		   : ops_unlink(w->fs, ino_of(w, op.dir), name);
	if (want)
		expect(w, "remove", rc, want);
	else
		finish(w, rc, 0);
}

static void op_link(struct worker *w)
{
	struct model_op op = {.kind = MODEL_LINK,
		.what = "link",
		.dir = any_dir(w),
		.name = (int)rnd(w, MODEL_NAMES),
		.node = any_node(w, fits_any)};
	struct handle *h = &w->handle[rnd(w, HANDLES)];
	char buf[DISK_NAME_MAX + 1];
	struct ops_attr a;
	int want = 0, rc;

	/* a tmpfile gets its name; one that had names never does again */
	if (h->file && node_at(w, h->node)->nlink == 0 && rnd(w, 2)) {
		op.node = h->node;
		want = -EAGAIN; /* not known here */
	}
	if (op.node < 0)
		return;
	if (node_at(w, op.dir)->entry[op.name] >= 0)
		want = -EEXIST;
	else if (is_dir(node_at(w, op.node)))
		want = -EPERM;
	if (want == 0 || want == -EAGAIN)
		begin(w, &op);
	rc = ops_link(w->fs, ino_of(w, op.node), ino_of(w, op.dir),
		name_at(w, op.dir, op.name, buf), &a);
	if (want == -EAGAIN && rc == -ENOENT)
		model_undone(w->t);
	else if (want == 0 || want == -EAGAIN)
		finish(w, rc, 0);
	else
		expect(w, "link", rc, want);
}

static bool hangs_below(struct worker *w, int node, int above)
{
	for (; node != above; node = node_at(w, node)->parent)
		if (node < 0 || node_at(w, node)->parent < 0)
			return false;
	return true;
}

/* 1: a success that changes nothing. */
static int rename_want(struct worker *w, const struct model_op *op)
{
	int n = node_at(w, op->dir)->entry[op->name],
	    v = node_at(w, op->dir2)->entry[op->name2];
	bool dir = n >= 0 && is_dir(node_at(w, n)),
	     vdir = v >= 0 && is_dir(node_at(w, v));

	if (n < 0 || (op->flags == RENAME_EXCHANGE && v < 0))
		return -ENOENT;
	if (op->flags == RENAME_NOREPLACE && v >= 0)
		return -EEXIST;
	if (n == v)
		return 1;
	if (dir && op->dir != op->dir2 && hangs_below(w, op->dir2, n))
		return -EINVAL;
	if (op->flags == RENAME_EXCHANGE)
		return vdir && op->dir != op->dir2 && hangs_below(w, op->dir, v) ? -EINVAL
										 : 0;
	if (v < 0)
		return 0;
	if (dir != vdir)
		return dir ? -ENOTDIR : -EISDIR;
	return vdir && node_at(w, v)->entries ? -ENOTEMPTY : 0;
}

static void op_rename(struct worker *w)
{
	static const unsigned all_flags[] = {0, 0, RENAME_NOREPLACE, RENAME_EXCHANGE};
	struct model_op op = {.kind = MODEL_RENAME,
		.what = "rename",
		.dir = any_dir(w),
		.name = (int)rnd(w, MODEL_NAMES),
		.dir2 = any_dir(w),
		.name2 = (int)rnd(w, MODEL_NAMES),
		.node = -1,
		.flags = all_flags[rnd(w, ARRAY_SIZE(all_flags))]};
	char from[DISK_NAME_MAX + 1], to[DISK_NAME_MAX + 1];
	int want, rc;

	if (rnd(w, 3) == 0)
		op.dir2 = op.dir;
	want = rename_want(w, &op);
	if (want == 0)
		begin(w, &op);
	rc = ops_rename(w->fs, ino_of(w, op.dir), name_at(w, op.dir, op.name, from),
		ino_of(w, op.dir2), name_at(w, op.dir2, op.name2, to), op.flags);
	if (want)
		expect(w, "rename", rc, MIN(want, 0));
	else
		finish(w, rc, 0);
}

/* ---- attributes ------------------------------------------------------------------ */

static void op_attr(struct worker *w)
{
	struct model_op op = {
		.kind = MODEL_ATTR, .what = "setattr", .node = any_node(w, fits_any)};
	struct ops_setattr set = {0};
	struct ops_attr a;

	if (op.node < 0)
		return;
	op.flags = 1u + (unsigned)rnd(w, 15);
	if (S_ISLNK(node_at(w, op.node)->mode))
		op.flags &= ~MODEL_SET_MODE;
	set.mode = op.mode = (uint32_t)rnd(w, 01000);
	set.uid = op.uid = (uint32_t)rnd(w, 1000);
	set.gid = op.gid = (uint32_t)rnd(w, 1000);
	set.mtime_ns = op.mtime = (int64_t)rnd(w, 1ull << 60);
	if (op.flags & MODEL_SET_MODE)
		set.set |= OPS_SET_MODE;
	if (op.flags & MODEL_SET_UID)
		set.set |= OPS_SET_UID;
	if (op.flags & MODEL_SET_GID)
		set.set |= OPS_SET_GID;
	if (op.flags & MODEL_SET_MTIME)
		set.set |= OPS_SET_MTIME;
	begin(w, &op);
	finish(w, ops_setattr(w->fs, ino_of(w, op.node), &caller, &set, &a), 0);
}

static void xattr_set(struct worker *w, struct model_op *op)
{
	uint32_t len = (uint32_t)rnd(w, 600);
	const char *name = model_xattr_name(op->which);

	if (op->which == 2 && may_grow(w))
		len = (uint32_t)rnd(w, rnd(w, 3) ? 9000 : DISK_XATTR_VALUE_MAX + 1);
	op->xattr = (struct model_xattr){true, len, len ? (uint32_t)rnd(w, 256) : 0};
	model_xattr_value(&op->xattr, w->value);
	begin(w, op);
	finish(w,
		ops_setxattr(w->fs, ino_of(w, op->node), &caller, name, w->value, len, 0),
		0);
}

static void op_xattr(struct worker *w)
{
	struct model_op op = {.kind = MODEL_XATTR,
		.what = "xattr",
		.node = any_node(w, fits_any),
		.which = (unsigned)rnd(w, MODEL_XATTRS)};
	const char *name = model_xattr_name(op.which);
	const struct model_node *n;

	if (op.node < 0)
		return;
	n = node_at(w, op.node);
	if (strncmp(name, "user.", 5) == 0 && !S_ISREG(n->mode) && !is_dir(n)) {
		expect(w, "user xattr",
			ops_setxattr(w->fs, n->ino, &caller, name, "x", 1, 0), -EPERM);
		return;
	}
	if (!n->xattr[op.which].set || rnd(w, 2)) {
		if (n->xattr[op.which].set && rnd(w, 8) == 0)
			expect(w, "xattr again",
				ops_setxattr(w->fs, n->ino, &caller, name, "x", 1,
					XATTR_CREATE),
				-EEXIST);
		else
			xattr_set(w, &op);
		return;
	}
	begin(w, &op);
	finish(w, ops_removexattr(w->fs, n->ino, name), 0);
}

static void op_acl(struct worker *w)
{
	struct model_op op = {.kind = MODEL_ACL,
		.what = "acl",
		.node = any_node(w, fits_any),
		.mode = (uint32_t)rnd(w, 01000),
		.xattr.set = rnd(w, 3) != 0};
	const char *name = "system.posix_acl_access";
	struct model_node like, *n;
	int rc;

	if (op.node < 0)
		return;
	n = node_at(w, op.node);
	if (S_ISLNK(n->mode))
		return;
	if (is_dir(n) && rnd(w, 2)) {
		op.which = 1;
		name = "system.posix_acl_default";
	}
	like = *n;
	like.mode = op.mode;
	model_acl(&like, op.which, w->value);
	begin(w, &op);
	if (op.xattr.set)
		rc = ops_setxattr(
			w->fs, n->ino, &caller, name, w->value, MODEL_ACL_BYTES, 0);
	else
		rc = ops_removexattr(w->fs, n->ino, name);
	finish(w, rc, 0);
}

/* ---- file data ------------------------------------------------------------------- */

/* The end of one that returns a length. */
static void finish_bytes(struct worker *w, struct handle *h, int64_t rc, int64_t want)
{
	int node = h->node;

	if (rc > 0 && rc < want && w->w->errors)
		settle(w, rc);
	else if (!finish(w, rc == want ? 0 : rc > 0 ? -EINPROGRESS : rc, 0))
		;
	else
		return;
	/* of a file without a name the model cannot know what happened */
	for (unsigned i = 0; i < HANDLES && node_at(w, node)->nlink == 0; i++)
		if (w->handle[i].node == node)
			handle_close(w, &w->handle[i]);
}

static size_t any_length(struct worker *w)
{
	switch (rnd(w, w->w->large ? 2 : 6)) {
	case 0:
		return PAGE_SIZE * (1 + (size_t)rnd(w, WRITE_PAGES));
	case 1:
		return 1 + (size_t)rnd(w, WRITE_PAGES * PAGE_SIZE);
	case 2:
		return PAGE_SIZE;
	default:
		return 1 + (size_t)rnd(w, 6000);
	}
}

static uint64_t any_offset(struct worker *w, const struct model_node *n)
{
	uint64_t offset = rnd(w, MAX(n->size, 1));

	if (rnd(w, 4) == 0)
		offset = n->size + rnd(w, 3 * PAGE_SIZE); /* over a gap */
	return rnd(w, 3) == 0 ? offset / PAGE_SIZE * PAGE_SIZE : offset;
}

static void op_write(struct worker *w)
{
	struct model_op op = {.kind = MODEL_DATA, .what = "write", .pieces = true};
	struct handle *h = handle_any(w);
	size_t len = any_length(w);
	bool append = rnd(w, 4) == 0;
	struct model_node *n;
	struct model_file *f;
	uint64_t offset;

	if (!h)
		return;
	op.node = h->node;
	n = node_at(w, op.node);
	f = w->t->file[n->file];
	offset = append || rnd(w, 5) == 0 ? n->size : any_offset(w, n);
	if (offset >= FILE_BYTES || (offset + len > n->size && !may_grow(w)))
		return;
	len = MIN(len, FILE_BYTES - offset);
	op.size_before = n->size;
	op.size = MAX(n->size, offset + len);
	model_stamp(f, ++f->writes, offset, w->bytes, len);
	begin(w, &op);
	model_write(w->t, n->file, offset, w->bytes, len);
	finish_bytes(w, h,
		ops_write(w->fs, h->file, &caller, append ? 0 : offset, w->bytes, len,
			append),
		(int64_t)len);
}

static void op_truncate(struct worker *w)
{
	struct model_op op = {.kind = MODEL_SIZE, .what = "truncate"};
	struct handle *h = handle_any(w);
	struct ops_setattr set = {.set = OPS_SET_SIZE};
	struct model_node *n;
	struct ops_attr a;

	if (!h)
		return;
	op.node = h->node;
	n = node_at(w, op.node);
	op.size_before = n->size;
	switch (rnd(w, 4)) {
	case 0:
		op.size = 0;
		break;
	case 1:
		op.size = n->size + rnd(w, 5 * PAGE_SIZE);
		op.size = MIN(op.size, FILE_BYTES);
		break;
	default:
		op.size = rnd(w, n->size + 1);
	}
	set.size = op.size;
	begin(w, &op);
	model_cut(w->t, n->file, op.size, n->size);
	finish_bytes(w, h, ops_setattr(w->fs, n->ino, &caller, &set, &a), 0);
}

static void op_fallocate(struct worker *w)
{
	static const int modes[] = {0, FALLOC_FL_KEEP_SIZE,
		FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
		FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, FALLOC_FL_ZERO_RANGE,
		FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE};
	struct model_op op = {.kind = MODEL_DATA, .what = "fallocate", .pieces = true};
	int mode = modes[rnd(w, ARRAY_SIZE(modes))];
	struct handle *h = handle_any(w);
	uint64_t offset, len = any_length(w);
	struct model_node *n;

	if (!h)
		return;
	op.node = h->node;
	n = node_at(w, op.node);
	offset = any_offset(w, n);
	if (offset >= FILE_BYTES || (!(mode & FALLOC_FL_PUNCH_HOLE) && !may_grow(w)))
		return;
	len = MIN(len, FILE_BYTES - offset);
	op.size = op.size_before = n->size;
	if (!(mode & FALLOC_FL_KEEP_SIZE))
		op.size = MAX(n->size, offset + len);
	begin(w, &op);
	if (mode & (FALLOC_FL_PUNCH_HOLE | FALLOC_FL_ZERO_RANGE))
		model_punch(
			w->t, n->file, offset, offset + len, mode & FALLOC_FL_ZERO_RANGE);
	else
		model_allocate(w->t, n->file, offset, offset + len);
	finish_bytes(w, h, ops_fallocate(w->fs, h->file, &caller, mode, offset, len), 0);
}

static void op_copy(struct worker *w)
{
	struct model_op op = {.kind = MODEL_DATA, .what = "copy", .pieces = true};
	struct handle *from = handle_any(w), *to;
	uint64_t offset_from, offset_to;
	struct model_node *n;
	int source;
	size_t len = any_length(w);

	if (!from || !may_grow(w))
		return;
	source = from->node;
	to = handle_any(w);
	if (!to || !from->file || from->node != source || to->node == source ||
		node_at(w, source)->size == 0)
		return;
	op.node = to->node;
	n = node_at(w, op.node);
	offset_from = rnd(w, node_at(w, source)->size);
	offset_to = any_offset(w, n);
	if (offset_to >= FILE_BYTES)
		return;
	len = MIN(
		len, MIN(FILE_BYTES - offset_to, node_at(w, source)->size - offset_from));
	model_read(w->t, node_at(w, source)->file, offset_from, w->bytes, len);
	op.size_before = n->size;
	op.size = MAX(n->size, offset_to + len);
	begin(w, &op);
	model_write(w->t, n->file, offset_to, w->bytes, len);
	finish_bytes(w, to,
		ops_copy_range(w->fs, from->file, offset_from, to->file, offset_to, len,
			&caller),
		(int64_t)len);
}

/* ---- reading --------------------------------------------------------------------- */

struct read_check {
	struct worker *w;
	unsigned file;
	uint64_t offset, bad;
};

static int check_sink(void *arg, const struct iovec *iov, unsigned count, size_t total)
{
	struct read_check *c = arg;
	uint8_t want[PAGE_SIZE];

	for (unsigned i = 0; i < count; i++)
		for (size_t at = 0; at < iov[i].iov_len;) {
			size_t n = MIN(iov[i].iov_len - at, sizeof(want));

			model_read(c->w->t, c->file, c->offset, want, n);
			if (memcmp(want, (uint8_t *)iov[i].iov_base + at, n) && !c->bad)
				c->bad = c->offset + 1;
			c->offset += n;
			at += n;
		}
	return (int)total;
}

static void op_read(struct worker *w)
{
	struct handle *h = handle_any(w);
	struct read_check c = {.w = w};
	const struct model_node *n;
	uint64_t offset;
	size_t len = any_length(w);
	int rc;

	if (!h)
		return;
	n = node_at(w, h->node);
	c.file = n->file;
	c.offset = offset = rnd(w, n->size + 10);
	rc = ops_read(w->fs, h->file, offset, len, check_sink, &c);
	if (rc < 0) {
		expect(w, "read", rc, 0);
		return;
	}
	if (c.bad)
		workload_die("task %c: inode %llu: a read at %llu of %zu is wrong from "
			     "%llu on",
			w->t->letter, (unsigned long long)n->ino,
			(unsigned long long)offset, len, (unsigned long long)c.bad - 1);
	len = offset < n->size ? MIN(len, n->size - offset) : 0;
	if ((len > 0) != (rc > 0) || (size_t)rc > len)
		workload_die("task %c: inode %llu: a read at %llu returned %d of %zu",
			w->t->letter, (unsigned long long)n->ino,
			(unsigned long long)offset, rc, len);
}

static void op_look(struct worker *w)
{
	struct statvfs s;
	int node = any_node(w, fits_link);

	if (node >= 0) {
		int rc = ops_readlink(
			w->fs, ino_of(w, node), w->target, sizeof(w->target));

		expect(w, "readlink", rc, node_at(w, node)->target_len);
	}
	expect(w, "statfs", ops_statfs(w->fs, &s), 0);
	if (rnd(w, 4) == 0)
		audit(w);
}

/* ---- syncs ----------------------------------------------------------------------- */

static void op_fsync(struct worker *w)
{
	int node = any_node(w, rnd(w, 3) ? fits_file : fits_dir);
	struct handle *h = &w->handle[rnd(w, HANDLES)];
	struct model_cover cover;

	if (h->file && rnd(w, 2))
		node = h->node;
	if (node < 0)
		return;
	model_cover(w->m, &cover);
	if (!expect(w, "fsync", ops_fsync(w->fs, ino_of(w, node), rnd(w, 2)), 0))
		return;
	w->w->syncs++;
	if (model_trace)
		fprintf(stderr, "%c: fsync of node %d covers %u\n", w->t->letter, node,
			cover.ops[w->task]);
	model_names_durable(w->m, &cover);
	if (S_ISREG(node_at(w, node)->mode))
		model_file_durable(w->t, node_at(w, node)->file, cover.ops[w->task]);
}

static void op_syncfs(struct worker *w)
{
	struct model_cover cover;

	model_cover(w->m, &cover);
	if (!expect(w, "syncfs", ops_syncfs(w->fs), 0))
		return;
	w->w->syncs++;
	if (model_trace)
		fprintf(stderr, "%c: syncfs covers %u\n", w->t->letter,
			cover.ops[w->task]);
	model_all_durable(w->m, &cover);
}

static void op_pause(struct worker *w)
{
	rt_sleep_ns(rnd(w, 200) ? rnd(w, 3000000) : 6000000000ull);
}

/* ---- the mix --------------------------------------------------------------------- */

static const struct {
	unsigned weight;
	void (*op)(struct worker *w);
} mix[] = {
	{18, op_make},
	{2, op_tmpfile},
	{8, op_remove},
	{5, op_link},
	{10, op_rename},
	{5, op_attr},
	{6, op_xattr},
	{3, op_acl},
	{24, op_write},
	{6, op_truncate},
	{5, op_fallocate},
	{3, op_copy},
	{8, op_read},
	{3, op_look},
	{8, op_fsync},
	{1, op_syncfs},
	{6, op_pause},
};

static void any_op(struct worker *w)
{
	unsigned total = 0, at;

	for (unsigned i = 0; i < ARRAY_SIZE(mix); i++)
		total += mix[i].weight;
	at = (unsigned)rnd(w, total);
	for (unsigned i = 0; i < ARRAY_SIZE(mix); i++) {
		if (at < mix[i].weight) {
			mix[i].op(w);
			return;
		}
		at -= mix[i].weight;
	}
}

/* The log has failed: nothing may change any more, everything can be read. */
static void read_only_end(struct worker *w)
{
	struct ops_attr a;
	int rc;

	for (unsigned i = 0; i < HANDLES; i++)
		handle_close(w, &w->handle[i]);
	rc = ops_mknod(w->fs, DISK_INO_ROOT, (struct ops_name){"never", 5}, &caller,
		S_IFREG | 0600, 0, 0, &a);
	if (rc != -EROFS)
		workload_die("a change after the log's failure returned %d", rc);
	audit(w);
}

static void worker_main(void *arg)
{
	struct worker *w = arg;

	for (unsigned i = 0; i < w->w->ops && !w->read_only && w->t->ops < MODEL_OPS - 1;
		i++)
		any_op(w);
	if (w->read_only && !w->choked)
		read_only_end(w);
	for (unsigned i = 0; i < HANDLES; i++)
		handle_close(w, &w->handle[i]);
}

static void worker_make(struct workload *load, unsigned task)
{
	struct worker *w = &workers[task];

	model_seen_free(&w->seen);
	memset(w, 0, offsetof(struct worker, bytes));
	w->w = load;
	w->m = load->model;
	w->t = &load->model->task[task];
	w->task = task;
	w->fs = load->fs;
	w->rng = load->seed * 0x9e3779b97f4a7c15ull + task * 1000003;
}

void workload_run(struct workload *load)
{
	for (unsigned i = 0; i < load->tasks; i++)
		worker_make(load, i);
	for (unsigned i = 0; i < load->tasks; i++) {
		char name[8];
		int rc;

		snprintf(name, sizeof(name), "work%c", workers[i].t->letter);
		while ((rc = rt_task_spawn(&workers[i].rt, name, worker_main,
				&workers[i])) == -ENOMEM)
			;
		WEFT_ASSERT(rc == 0);
	}
	for (unsigned i = 0; i < load->tasks; i++)
		rt_task_join(workers[i].rt);
}

void workload_audit(struct workload *load, unsigned task)
{
	worker_make(load, task);
	audit(&workers[task]);
}
