/* SPDX-License-Identifier: Apache-2.0 */
/* The model: looking at a filesystem, and judging what was seen. model.h has the rules.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "tests/sim/life_memory.h"
#include "tests/sim/model.h"

/* model_look's answer for what no filesystem may show. */
#define BROKEN 1

/* Always false. */
static bool __attribute__((format(printf, 2, 3)))
complain(struct model *m, const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	vsnprintf(m->why, sizeof(m->why), fmt, args);
	va_end(args);
	return false;
}

/* ---- looking --------------------------------------------------------------------- */

struct look {
	struct model *m;
	struct model_task *t;
	struct fs *fs;
	struct model_seen *seen;
	uint8_t value[DISK_XATTR_VALUE_MAX];
	uint8_t want[DISK_XATTR_VALUE_MAX];
};

static struct ops_name name_of(const char *s)
{
	return (struct ops_name){s, strlen(s)};
}

static int broken(struct look *l, const char *what, uint64_t ino)
{
	complain(l->m, "task %c, inode %llu: %s", l->t->letter, (unsigned long long)ino,
		what);
	return BROKEN;
}

struct copy {
	uint8_t *to;
	size_t room;
};

static int copy_sink(void *arg, const struct iovec *iov, unsigned count, size_t total)
{
	struct copy *c = arg;

	WEFT_ASSERT(total <= c->room);
	for (unsigned i = 0; i < count; i++) {
		memcpy(c->to, iov[i].iov_base, iov[i].iov_len);
		c->to += iov[i].iov_len;
	}
	return (int)total;
}

static int look_data(struct look *l, int node)
{
	static const struct ops_caller caller = {.keeps_setid = true};
	struct model_node *n = &l->seen->state.node[node];
	uint8_t *data = calloc(1, MODEL_PAGES * PAGE_SIZE);
	struct ops_file *file;
	int rc;

	WEFT_ASSERT(data);
	l->seen->data[node] = data;
	if (n->size > MODEL_PAGES * PAGE_SIZE)
		return broken(l, "its size is none it ever had", n->ino);
	rc = ops_open(l->fs, n->ino, &caller, O_RDONLY | O_NOATIME, &file, NULL);
	for (uint64_t at = 0; rc == 0 && at < n->size;) {
		struct copy c = {data + at, (size_t)(n->size - at)};

		rc = ops_read(l->fs, file, at, c.room, copy_sink, &c);
		if (rc == 0)
			rc = broken(l, "a read ends before the end", n->ino);
		if (rc < 0)
			ops_close(l->fs, file);
		else if (rc > 0) {
			at += (uint64_t)rc;
			rc = 0;
		}
	}
	if (rc == 0)
		ops_close(l->fs, file);
	return rc;
}

static int look_link(struct look *l, struct model_node *n, uint64_t size)
{
	char target[MODEL_TARGET_MAX + 1];
	int rc = ops_readlink(l->fs, n->ino, (char *)l->value, sizeof(l->value));

	if (rc < 0)
		return rc;
	if ((uint64_t)rc != size || size > MODEL_TARGET_MAX)
		return broken(l, "a symlink's length is wrong", n->ino);
	n->target_len = (uint32_t)size;
	model_target(n->target_len, target);
	return memcmp(target, l->value, size)
		       ? broken(l, "a symlink's target is wrong", n->ino)
		       : 0;
}

static int look_xattrs(struct look *l, struct model_node *n)
{
	int names = 0, rc;

	for (unsigned i = 0; i < MODEL_XATTRS; i++) {
		struct model_xattr *x = &n->xattr[i];

		rc = ops_getxattr(
			l->fs, n->ino, model_xattr_name(i), l->value, sizeof(l->value));
		if (rc == -ENODATA)
			continue;
		if (rc < 0)
			return rc;
		*x = (struct model_xattr){true, (uint32_t)rc, rc ? l->value[0] : 0};
		model_xattr_value(x, l->want);
		if (memcmp(l->value, l->want, x->len))
			return broken(l, "an xattr's value is none it ever had", n->ino);
		names += (int)strlen(model_xattr_name(i)) + 1;
	}
	for (unsigned i = 0; i < 2 && !S_ISLNK(n->mode); i++) {
		const char *name =
			i ? "system.posix_acl_default" : "system.posix_acl_access";

		rc = ops_getxattr(l->fs, n->ino, name, l->value, sizeof(l->value));
		if (rc == -ENODATA)
			continue;
		if (rc < 0)
			return rc;
		model_acl(n, i, l->want);
		if (rc != (int)MODEL_ACL_BYTES ||
			memcmp(l->value, l->want, MODEL_ACL_BYTES))
			return broken(l, "an ACL is not what was set, or not as the mode",
				n->ino);
		*(i ? &n->acl_default : &n->acl) = true;
		names += (int)strlen(name) + 1;
	}
	rc = ops_listxattr(l->fs, n->ino, NULL, 0);
	if (rc < 0)
		return rc;
	return rc == names ? 0
			   : broken(l, "its list of xattrs is not what it has", n->ino);
}

static int look_dir(struct look *l, int node, uint64_t size);

static int look_inode(struct look *l, uint64_t ino, int parent, int *out)
{
	struct model_state *s = &l->seen->state;
	struct ops_attr a;
	struct model_node *n;
	int rc;

	for (unsigned i = MODEL_SHARED + 1; i < l->seen->count; i++)
		if (s->node[i].ino == ino) {
			*out = (int)i;
			return S_ISDIR(s->node[i].mode)
				       ? broken(l, "a directory has two names", ino)
				       : 0;
		}
	if (l->seen->count == MODEL_NODES)
		return broken(l, "there are more inodes than were made", ino);
	*out = (int)l->seen->count++;
	n = &s->node[*out];
	rc = ops_getattr(l->fs, ino, &a);
	if (rc == -ENOENT)
		return broken(l, "a name without an inode", ino);
	if (rc)
		return rc;
	n->used = true;
	n->ino = ino;
	n->mode = a.inode.mode;
	n->uid = a.inode.uid;
	n->gid = a.inode.gid;
	n->rdev = a.inode.rdev_major;
	n->nlink = a.inode.nlink;
	n->mtime = a.inode.mtime_ns;
	n->mtime_known = true;
	n->parent = parent;
	rc = look_xattrs(l, n);
	if (rc == 0 && S_ISREG(n->mode)) {
		n->size = a.inode.size;
		rc = look_data(l, *out);
	}
	if (rc == 0 && S_ISLNK(n->mode))
		rc = look_link(l, n, a.inode.size);
	if (rc == 0 && S_ISDIR(n->mode)) {
		if (a.inode.parent != s->node[parent].ino)
			return broken(l, "a directory's parent is wrong", ino);
		rc = look_dir(l, *out, a.inode.size);
	}
	return rc;
}

struct listing {
	struct look *l;
	int node;
	bool bad, twice;
	uint64_t ino[MODEL_NAMES];
	unsigned count;
};

static int list_entry(void *arg, const struct ops_dirent *e)
{
	struct listing *d = arg;
	char name[DISK_NAME_MAX + 1];

	if (e->cookie <= 2)
		return 0;
	if (d->node == MODEL_SHARED && e->name[0] != d->l->t->letter)
		return 0;
	for (unsigned i = 0; i < MODEL_NAMES; i++) {
		model_name(d->l->t, d->node, i, name);
		if (strlen(name) != e->name_len || memcmp(name, e->name, e->name_len))
			continue;
		d->twice |= d->ino[i] != 0;
		d->ino[i] = e->ino;
		d->count++;
		return 0;
	}
	d->bad = true;
	return 0;
}

static int look_dir(struct look *l, int node, uint64_t size)
{
	struct model_node *n = &l->seen->state.node[node];
	struct listing d = {.l = l, .node = node};
	char name[DISK_NAME_MAX + 1];
	int rc = ops_readdir(l->fs, n->ino, 0, 0, list_entry, &d);

	for (unsigned i = 0; i < MODEL_NAMES; i++)
		n->entry[i] = -1;
	if (rc)
		return rc;
	if (d.bad || d.twice)
		return broken(
			l, d.bad ? "a name that nobody gave" : "a name twice", n->ino);
	n->entries = d.count;
	if (node != MODEL_SHARED && d.count != size)
		return broken(
			l, "a directory's size is not the number of its names", n->ino);
	for (unsigned i = 0; i < MODEL_NAMES; i++) {
		struct ops_attr a;

		model_name(l->t, node, i, name);
		rc = ops_lookup(l->fs, n->ino, name_of(name), &a);
		if (rc && rc != -ENOENT)
			return rc;
		if ((rc == 0 ? a.ino : 0) != d.ino[i])
			return broken(l, "look-up and readdir disagree", n->ino);
		if (rc)
			continue;
		rc = look_inode(l, d.ino[i], node, &n->entry[i]);
		if (rc)
			return rc;
	}
	return 0;
}

static int look_root(struct look *l, int node, const char *name)
{
	struct model_node *n = &l->seen->state.node[node];
	struct ops_attr a;
	int rc = ops_lookup(l->fs, DISK_INO_ROOT, name_of(name), &a);

	if (rc)
		return rc;
	*n = (struct model_node){
		.used = true, .ino = a.ino, .mode = a.inode.mode, .parent = -1};
	rc = look_dir(l, node, a.inode.size);
	n->nlink = 2;
	for (unsigned i = 0; i < MODEL_NAMES && rc == 0; i++)
		if (n->entry[i] >= 0 && S_ISDIR(l->seen->state.node[n->entry[i]].mode))
			n->nlink++;
	if (rc == 0 && node == MODEL_ROOT && n->nlink != a.inode.nlink)
		rc = broken(l, "the task's directory has a wrong link count", n->ino);
	return rc;
}

int model_look(struct model *m, unsigned task, struct fs *fs, struct model_seen *seen)
{
	struct look *l = life_alloc(sizeof(*l));
	char name[8];
	int rc;

	model_seen_free(seen);
	*l = (struct look){.m = m, .t = &m->task[task], .fs = fs, .seen = seen};
	seen->count = MODEL_SHARED + 1;
	snprintf(name, sizeof(name), "dir%c", l->t->letter);
	rc = look_root(l, MODEL_ROOT, name);
	if (rc == 0)
		rc = look_root(l, MODEL_SHARED, "shared");
	life_free(l);
	return rc;
}

void model_seen_free(struct model_seen *seen)
{
	for (unsigned i = 0; i < MODEL_NODES; i++)
		free(seen->data[i]);
	memset(seen, 0, sizeof(*seen));
}

/* ---- comparing names ------------------------------------------------------------- */

struct comparison {
	struct model *m;
	const struct model_task *t;
	const struct model_state *want;
	const struct model_seen *seen;
	const struct model_op *last; /* may be half done, if of pieces; NULL: none */
	int node_of[MODEL_NODES];    /* by seen node: the model's, or -1 */
};

static bool size_fits(const struct comparison *c, int node, uint64_t size)
{
	const struct model_op *op = c->last;

	if (c->want->node[node].size == size)
		return true;
	return op && op->pieces && op->node == node &&
	       size >= MIN(op->size, op->size_before) &&
	       size <= MAX(op->size, op->size_before);
}

static bool xattrs_same(const struct model_node *a, const struct model_node *b)
{
	for (unsigned i = 0; i < MODEL_XATTRS; i++)
		if (a->xattr[i].set != b->xattr[i].set ||
			(a->xattr[i].set &&
				(a->xattr[i].len != b->xattr[i].len ||
					a->xattr[i].seed != b->xattr[i].seed)))
			return false;
	return a->acl == b->acl && a->acl_default == b->acl_default;
}

#define SAME(what, a, b)                                                                 \
	do {                                                                             \
		if ((a) != (b))                                                          \
			return complain(c->m, "inode %llu: its %s is %llu, not %llu",    \
				(unsigned long long)got->ino, what,                      \
				(unsigned long long)(b), (unsigned long long)(a));       \
	} while (0)

static bool node_same(struct comparison *c, int want_node, int seen_node)
{
	const struct model_node *want = &c->want->node[want_node];
	const struct model_node *got = &c->seen->state.node[seen_node];

	if (want->ino)
		SAME("number", want->ino, got->ino);
	SAME("mode", want->mode, got->mode);
	SAME("owner", want->uid, got->uid);
	SAME("group", want->gid, got->gid);
	SAME("device", want->rdev, got->rdev);
	SAME("link count", want->nlink, got->nlink);
	SAME("target's length", want->target_len, got->target_len);
	if (!size_fits(c, want_node, got->size))
		SAME("size", want->size, got->size);
	/* what may be half done may have set it or not */
	if (want->mtime_known && !(c->last && c->last->node == want_node))
		SAME("mtime", want->mtime, got->mtime);
	if (!xattrs_same(want, got))
		return complain(c->m, "inode %llu: its xattrs are others",
			(unsigned long long)got->ino);
	return true;
}

static bool dir_same(struct comparison *c, int want_dir, int seen_dir)
{
	const struct model_node *want = &c->want->node[want_dir];
	const struct model_node *got = &c->seen->state.node[seen_dir];

	for (unsigned i = 0; i < MODEL_NAMES; i++) {
		int a = want->entry[i], b = got->entry[i];

		if (a < 0 && b < 0)
			continue;
		if (a < 0 || b < 0)
			return complain(c->m, "directory %llu: name %u %s",
				(unsigned long long)got->ino, i,
				a < 0 ? "is there" : "is missing");
		if (c->node_of[b] >= 0) {
			if (c->node_of[b] != a)
				return complain(c->m,
					"directory %llu: name %u is of another inode",
					(unsigned long long)got->ino, i);
			continue;
		}
		for (unsigned k = 0; k < MODEL_NODES; k++)
			if (c->node_of[k] == a)
				return complain(c->m,
					"directory %llu: name %u is no link of another's "
					"inode",
					(unsigned long long)got->ino, i);
		c->node_of[b] = a;
		if (!node_same(c, a, b))
			return false;
		if (S_ISDIR(want->mode) && S_ISDIR(c->want->node[a].mode) &&
			!dir_same(c, a, b))
			return false;
	}
	return true;
}

static bool names_same(struct comparison *c)
{
	for (unsigned i = 0; i < MODEL_NODES; i++)
		c->node_of[i] = -1;
	for (int root = MODEL_ROOT; root <= MODEL_SHARED; root++) {
		c->node_of[root] = root;
		if (!dir_same(c, root, root))
			return false;
	}
	return node_same(c, MODEL_ROOT, MODEL_ROOT);
}

/* ---- comparing data -------------------------------------------------------------- */

static bool image_is(const uint8_t *image, const uint8_t *bytes, size_t len)
{
	for (size_t i = 0; !image && i < len; i++)
		if (bytes[i])
			return false;
	return !image || memcmp(image, bytes, len) == 0;
}

static bool page_allowed(
	const struct model_page *p, uint32_t k, const uint8_t *bytes, size_t len)
{
	uint32_t base = 0, last = p->count ? p->count - 1 : 0, from;

	for (uint32_t i = 1; i < p->count; i++) {
		if (p->image[i].kind == PAGE_OVERWRITTEN)
			continue;
		if (p->image[i].op > k) {
			last = i - 1;
			break;
		}
		base = i;
	}
	if (p->count == 0)
		return image_is(NULL, bytes, len);
	from = MAX(base, p->durable);
	for (uint32_t i = from; i <= last; i++)
		if (image_is(p->image[i].bytes, bytes, len))
			return true;
	return p->image[base].kind == PAGE_PUBLISHED && base > p->durable &&
	       image_is(NULL, bytes, len);
}

/* Says what the first byte that is wrong is instead. */
static bool data_complain(struct comparison *c, const struct model_file *f, unsigned page,
	uint32_t k, const uint8_t *bytes, size_t len, uint64_t ino)
{
	const struct model_page *p = &f->page[page];
	uint64_t word = 0;
	int at;

	memcpy(&word, bytes + (len >= 16 ? 8 : 0), MIN(len, sizeof(word)));
	at = snprintf(c->m->why, sizeof(c->m->why),
		"inode %llu (file %u): page %u has a word %016llx of file %llu, write "
		"%llu; k %u, "
		"durable from %u; contents:",
		(unsigned long long)ino, f->serial, page, (unsigned long long)word,
		(unsigned long long)(word >> 40 & 0xffff),
		(unsigned long long)(word >> 16 & 0xffffff), k, p->durable);
	for (uint32_t i = p->count > 8 ? p->count - 8 : 0; i < p->count; i++) {
		memset(&word, 0, sizeof(word));
		if (p->image[i].bytes)
			memcpy(&word, p->image[i].bytes + (len >= 16 ? 8 : 0),
				sizeof(word));
		if (at < (int)sizeof(c->m->why) - 40)
			at += snprintf(c->m->why + at, sizeof(c->m->why) - (size_t)at,
				" [%u: op %u kind %u write %llu]", i, p->image[i].op,
				p->image[i].kind,
				(unsigned long long)(word >> 16 & 0xffffff));
	}
	return false;
}

/* Files that were seen, as they may be behind the first k operations. */
static bool data_fits(struct comparison *c, uint32_t k)
{
	bool pieces = c->last && c->last->pieces;

	for (unsigned i = MODEL_SHARED + 1; i < c->seen->count; i++) {
		const struct model_node *got = &c->seen->state.node[i];
		const struct model_file *f;

		if (!S_ISREG(got->mode))
			continue;
		f = c->t->file[c->want->node[c->node_of[i]].file];
		for (unsigned p = 0; (uint64_t)p * PAGE_SIZE < got->size; p++) {
			const uint8_t *bytes = c->seen->data[i] + p * PAGE_SIZE;
			size_t len = MIN(got->size - (uint64_t)p * PAGE_SIZE, PAGE_SIZE);

			if (!page_allowed(&f->page[p], k, bytes, len) &&
				!(pieces && page_allowed(&f->page[p], k - 1, bytes, len)))
				return data_complain(c, f, p, k, bytes, len, got->ino);
		}
	}
	return true;
}

static bool data_is_now(struct comparison *c)
{
	for (unsigned i = MODEL_SHARED + 1; i < c->seen->count; i++) {
		const struct model_node *got = &c->seen->state.node[i];
		const struct model_file *f;

		if (!S_ISREG(got->mode))
			continue;
		f = c->t->file[c->want->node[c->node_of[i]].file];
		for (unsigned p = 0; (uint64_t)p * PAGE_SIZE < got->size; p++) {
			const uint8_t *bytes = c->seen->data[i] + p * PAGE_SIZE;
			size_t len = MIN(got->size - (uint64_t)p * PAGE_SIZE, PAGE_SIZE);

			if (!image_is(model_page_now(f, p), bytes, len))
				return data_complain(
					c, f, p, c->t->ops, bytes, len, got->ino);
		}
	}
	return true;
}

/* ---- verdicts -------------------------------------------------------------------- */

bool model_is_now(struct model *m, unsigned task, const struct model_seen *seen)
{
	struct comparison c = {
		.m = m, .t = &m->task[task], .want = &m->task[task].now, .seen = seen};

	return names_same(&c) && data_is_now(&c);
}

/* A new base: what was seen. */
static void task_rebase(struct model *m, struct model_task *t, struct model_seen *seen)
{
	for (unsigned f = 0; f < t->files; f++) {
		model_forget_images(t->file[f]);
		free(t->file[f]);
	}
	t->files = 0;
	t->ops = t->durable = 0;
	for (unsigned i = seen->count; i < MODEL_NODES; i++)
		for (unsigned e = 0; e < MODEL_NAMES; e++)
			seen->state.node[i].entry[e] = -1;
	for (unsigned i = 0; i < seen->count; i++) {
		struct model_node *n = &seen->state.node[i];
		struct model_file *file;

		if (!S_ISREG(n->mode))
			continue;
		n->file = model_file_new(m, t);
		file = t->file[n->file];
		for (unsigned p = 0; p < MODEL_PAGES; p++) {
			const uint8_t *bytes = seen->data[i] + p * PAGE_SIZE;
			struct model_page *page = &file->page[p];

			page->mapped = MAPPED_UNKNOWN;
			if (image_is(NULL, bytes, PAGE_SIZE))
				continue;
			page->mapped = MAPPED_WRITTEN;
			page->image = calloc(2, sizeof(*page->image));
			WEFT_ASSERT(page->image);
			page->capacity = 2;
			page->count = 1;
			page->image[0].bytes = malloc(PAGE_SIZE);
			WEFT_ASSERT(page->image[0].bytes);
			memcpy(page->image[0].bytes, bytes, PAGE_SIZE);
		}
	}
	t->base = t->now = seen->state;
}

struct fit {
	uint32_t least, most; /* k */
};

static bool task_fits(
	struct model *m, unsigned task, const struct model_seen *seen, struct fit *fit)
{
	struct model_task *t = &m->task[task];
	static struct model_state state;
	struct comparison c = {.m = m, .t = t, .want = &state, .seen = seen};
	char why[sizeof(m->why)] = "";
	bool found = false, data = false;

	state = t->base;
	for (uint32_t k = 0; k <= t->ops; k++) {
		if (k > 0)
			model_apply(&state, &t->op[k - 1]);
		if (k < t->durable)
			continue;
		c.last = k > 0 && t->op[k - 1].pieces ? &t->op[k - 1] : NULL;
		m->why[0] = '\0';
		if (!names_same(&c)) {
			if (model_trace)
				fprintf(stderr, "%c%u: %s\n", t->letter, k, m->why);
			if (!data && !found)
				snprintf(why, sizeof(why), "%.400s (behind %u: %s)",
					m->why, k, k ? t->op[k - 1].what : "nothing");
			continue;
		}
		if (!data_fits(&c, k)) {
			data = true;
			snprintf(why, sizeof(why), "%s", m->why);
			continue;
		}
		if (!found)
			fit->least = k;
		fit->most = k;
		found = true;
	}
	if (!found)
		complain(m, "task %c: no state from %u to %u fits: %.400s", t->letter,
			t->durable, t->ops, why);
	return found;
}

/* What had returned before an operation that has happened was begun has happened. */
static bool order_kept(struct model *m, const struct fit *fit)
{
	uint64_t seen = 0;

	for (unsigned i = 0; i < m->tasks; i++)
		if (fit[i].least > 0)
			seen = MAX(seen, m->task[i].op[fit[i].least - 1].start);
	for (unsigned i = 0; i < m->tasks; i++) {
		struct model_task *t = &m->task[i];
		uint32_t must = 0;

		while (must < t->ops && t->op[must].end && t->op[must].end < seen)
			must++;
		if (must > fit[i].most)
			return complain(m,
				"task %c: operation %u (%s) is missing, and one of "
				"another task that "
				"began after it is there",
				t->letter, must, t->op[must - 1].what);
	}
	return true;
}

bool model_recovered(struct model *m, struct model_seen seen[MODEL_TASKS])
{
	struct fit fit[MODEL_TASKS];

	for (unsigned i = 0; i < m->tasks; i++)
		if (!task_fits(m, i, &seen[i], &fit[i]))
			return false;
	if (!order_kept(m, fit))
		return false;
	for (unsigned i = 0; i < m->tasks; i++)
		task_rebase(m, &m->task[i], &seen[i]);
	return true;
}

/* ---- after an error -------------------------------------------------------------- */

/* Of what the operation in flight did to pages, keeps what was seen. */
static bool settle_pages(
	struct comparison *c, struct model_task *t, const struct model_op *op)
{
	struct model_file *f = t->file[t->now.node[op->node].file];
	const struct model_node *got = NULL;
	const uint8_t *data = NULL;

	for (unsigned i = MODEL_SHARED + 1; i < c->seen->count; i++)
		if (c->node_of[i] == op->node) {
			got = &c->seen->state.node[i];
			data = c->seen->data[i];
		}
	for (unsigned p = 0; p < MODEL_PAGES; p++) {
		struct model_page *page = &f->page[p];
		uint64_t start = (uint64_t)p * PAGE_SIZE;
		/* of an open file without a name nothing is seen: either will do */
		size_t len =
			got && got->size > start ? MIN(got->size - start, PAGE_SIZE) : 0;

		if (page->mapped != MAPPED_WRITTEN)
			page->mapped = MAPPED_UNKNOWN;
		if (page->count == 0 || page->image[page->count - 1].op != t->ops)
			continue;
		if (len &&
			image_is(page->image[page->count - 1].bytes, data + start, len)) {
			/* what it was to append is behind the end, and not content */
			if (page->image[page->count - 1].bytes)
				memset(page->image[page->count - 1].bytes + len, 0,
					PAGE_SIZE - len);
			continue;
		}
		page->mapped = MAPPED_UNKNOWN;
		free(page->image[--page->count].bytes);
	}
	return true;
}

bool model_settle(struct model *m, unsigned task, const struct model_seen *seen)
{
	struct model_task *t = &m->task[task];
	struct model_op *op = &t->op[t->ops - 1];
	bool data = op->kind == MODEL_DATA || op->kind == MODEL_SIZE;
	struct comparison c = {.m = m, .t = t, .want = &t->now, .seen = seen};

	WEFT_ASSERT(t->ops > 0 && op->end == 0);
	if (data)
		c.last = op;
	if (!names_same(&c))
		return false;
	if (!data) {
		model_undone(t);
		return data_is_now(&c);
	}
	for (unsigned i = MODEL_SHARED + 1; i < seen->count; i++)
		if (c.node_of[i] == op->node)
			op->size = seen->state.node[i].size;
	if (t->now.node[op->node].nlink == 0)
		op->size = t->now.node[op->node].size;
	if (!settle_pages(&c, t, op))
		return false;
	op->kind = MODEL_DATA;
	model_done(m, t, 0);
	return data_is_now(&c);
}
