/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The operations of a workload: each chooses its arguments, says what must come of them,
 * tells the model, calls, and has the answer judged (workload.c).
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <stdio.h>
#include <sys/xattr.h>

#include "tests/sim/workload_internal.h"

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
		op_expect(w, "make over a name", rc, -EEXIST);
		return;
	}
	if (type == S_IFREG)
		op.file = model_file_new(w->m, w->t);
	op_begin(w, &op);
	rc = make_call(w, &op, ino_of(w, op.dir), name_at(w, op.dir, op.name, buf), &ino);
	op_finish(w, rc, ino);
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
	op_begin(w, &op);
	rc = ops_tmpfile(
		w->fs, ino_of(w, op.dir2), &caller, op.mode, O_RDWR, &h->file, &a);
	h->node = op.node;
	if (rc)
		h->file = NULL;
	op_finish(w, rc, a.ino);
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
		op_begin(w, &op);
	name = name_at(w, op.dir, op.name, buf);
	rc = rmdir ? ops_rmdir(w->fs, ino_of(w, op.dir), name)
		   : ops_unlink(w->fs, ino_of(w, op.dir), name);
	if (want)
		op_expect(w, "remove", rc, want);
	else
		op_finish(w, rc, 0);
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
		op_begin(w, &op);
	rc = ops_link(w->fs, ino_of(w, op.node), ino_of(w, op.dir),
		name_at(w, op.dir, op.name, buf), &a);
	if (want == -EAGAIN && rc == -ENOENT)
		model_undone(w->t);
	else if (want == 0 || want == -EAGAIN)
		op_finish(w, rc, 0);
	else
		op_expect(w, "link", rc, want);
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
		op_begin(w, &op);
	rc = ops_rename(w->fs, ino_of(w, op.dir), name_at(w, op.dir, op.name, from),
		ino_of(w, op.dir2), name_at(w, op.dir2, op.name2, to), op.flags);
	if (want)
		op_expect(w, "rename", rc, MIN(want, 0));
	else
		op_finish(w, rc, 0);
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
	op_begin(w, &op);
	op_finish(w, ops_setattr(w->fs, ino_of(w, op.node), &caller, &set, &a), 0);
}

static void xattr_set(struct worker *w, struct model_op *op)
{
	uint32_t len = (uint32_t)rnd(w, 600);
	const char *name = model_xattr_name(op->which);

	if (op->which == 2 && may_grow(w))
		len = (uint32_t)rnd(w, rnd(w, 3) ? 9000 : DISK_XATTR_VALUE_MAX + 1);
	op->xattr = (struct model_xattr){true, len, len ? (uint32_t)rnd(w, 256) : 0};
	model_xattr_value(&op->xattr, w->value);
	op_begin(w, op);
	op_finish(w,
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
		op_expect(w, "user xattr",
			ops_setxattr(w->fs, n->ino, &caller, name, "x", 1, 0), -EPERM);
		return;
	}
	if (!n->xattr[op.which].set || rnd(w, 2)) {
		if (n->xattr[op.which].set && rnd(w, 8) == 0)
			op_expect(w, "xattr again",
				ops_setxattr(w->fs, n->ino, &caller, name, "x", 1,
					XATTR_CREATE),
				-EEXIST);
		else
			xattr_set(w, &op);
		return;
	}
	op_begin(w, &op);
	op_finish(w, ops_removexattr(w->fs, n->ino, name), 0);
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
	op_begin(w, &op);
	if (op.xattr.set)
		rc = ops_setxattr(
			w->fs, n->ino, &caller, name, w->value, MODEL_ACL_BYTES, 0);
	else
		rc = ops_removexattr(w->fs, n->ino, name);
	op_finish(w, rc, 0);
}

/* ---- file data ------------------------------------------------------------------- */

/* The end of one that returns a length. */
static void finish_bytes(struct worker *w, struct handle *h, int64_t rc, int64_t want)
{
	int node = h->node;

	if (rc > 0 && rc < want && w->w->errors)
		op_settle(w, rc);
	else if (!op_finish(w, rc == want ? 0 : rc > 0 ? -EINPROGRESS : rc, 0))
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
	op_begin(w, &op);
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
	op_begin(w, &op);
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
	op_begin(w, &op);
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
	op_begin(w, &op);
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
		op_expect(w, "read", rc, 0);
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

		op_expect(w, "readlink", rc, node_at(w, node)->target_len);
	}
	op_expect(w, "statfs", ops_statfs(w->fs, &s), 0);
	if (rnd(w, 4) == 0)
		worker_audit(w);
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
	if (!op_expect(w, "fsync", ops_fsync(w->fs, ino_of(w, node), rnd(w, 2)), 0))
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
	if (!op_expect(w, "syncfs", ops_syncfs(w->fs), 0))
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

void any_op(struct worker *w)
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
