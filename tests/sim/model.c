/* SPDX-License-Identifier: Apache-2.0 */
/* The model: operations on names, attributes and pages. model.h has the rules. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "tests/sim/model.h"

bool model_trace;

/* ---- what numbers stand for ------------------------------------------------------ */

void model_name(const struct model_task *t, int dir, unsigned name, char *buf)
{
	/* a long one now and then; the shared directory's begin with the task's letter */
	snprintf(buf, DISK_NAME_MAX + 1, name % 5 == 4 ? "%c%0200u" : "%c%u", t->letter,
		name);
}

const char *model_xattr_name(unsigned which)
{
	static const char *const names[MODEL_XATTRS] = {
		"user.a", "trusted.b", "user.large one", "security.c"};

	return names[which];
}

void model_xattr_value(const struct model_xattr *x, uint8_t *buf)
{
	for (uint32_t i = 0; i < x->len; i++)
		buf[i] = (uint8_t)(x->seed + i * 13 + i / 256);
}

void model_target(uint32_t len, char *buf)
{
	for (uint32_t i = 0; i < len; i++)
		buf[i] = (char)('a' + (i + len) % 26);
	buf[len] = '\0';
}

/* user::, user:1001:, group::, mask::, other::; the default one is always the same. */
void model_acl(const struct model_node *n, bool is_default, uint8_t *buf)
{
	uint32_t mode = is_default ? 0775 : n->mode;
	const struct {
		uint16_t tag, perm;
		uint32_t id;
	} entry[5] = {
		{0x01, mode >> 6 & 7, UINT32_MAX},
		{0x02, 6, 1001},
		{0x04, 5, UINT32_MAX},
		{0x10, mode >> 3 & 7, UINT32_MAX},
		{0x20, mode & 7, UINT32_MAX},
	};
	const uint32_t version = 2;

	_Static_assert(
		sizeof(version) + sizeof(entry) == MODEL_ACL_BYTES, "an ACL's layout");
	memcpy(buf, &version, sizeof(version));
	memcpy(buf + sizeof(version), entry, sizeof(entry));
}

void model_stamp(
	struct model_file *f, uint32_t write, uint64_t offset, uint8_t *buf, size_t len)
{
	for (size_t i = 0; i < len; i++) {
		uint64_t at = offset + i;
		uint64_t word = 0xa5ull << 56 | (uint64_t)(f->serial & 0xffff) << 40 |
				(uint64_t)(write & 0xffffff) << 16 | (at >> 3 & 0xffff);

		buf[i] = (uint8_t)(word >> 8 * (at % 8));
	}
}

/* ---- the tasks ------------------------------------------------------------------- */

static void node_clear(struct model_node *n)
{
	*n = (struct model_node){.parent = -1};
	for (unsigned i = 0; i < MODEL_NAMES; i++)
		n->entry[i] = -1;
}

void model_init(struct model *m, unsigned tasks)
{
	m->tasks = tasks;
	m->clock = 1;
	for (unsigned i = 0; i < tasks; i++) {
		struct model_task *t = &m->task[i];

		t->letter = (char)('a' + i);
		for (unsigned n = 0; n < MODEL_NODES; n++)
			node_clear(&t->base.node[n]);
		for (unsigned n = MODEL_ROOT; n <= MODEL_SHARED; n++) {
			t->base.node[n].used = true;
			t->base.node[n].mode = S_IFDIR | 0755;
			t->base.node[n].nlink = 2;
		}
		t->now = t->base;
	}
}

void model_forget_images(struct model_file *f)
{
	for (unsigned p = 0; p < MODEL_PAGES; p++) {
		struct model_page *page = &f->page[p];

		for (uint32_t i = 0; i < page->count; i++)
			free(page->image[i].bytes);
		free(page->image);
		*page = (struct model_page){.mapped = MAPPED_UNKNOWN};
	}
}

void model_free(struct model *m)
{
	for (unsigned i = 0; i < m->tasks; i++)
		for (unsigned f = 0; f < m->task[i].files; f++) {
			model_forget_images(m->task[i].file[f]);
			free(m->task[i].file[f]);
		}
}

int model_node_new(const struct model_task *t)
{
	for (int i = MODEL_SHARED + 1; i < (int)MODEL_NODES; i++)
		if (!t->now.node[i].used)
			return i;
	return -1;
}

unsigned model_file_new(struct model *m, struct model_task *t)
{
	struct model_file *f = calloc(1, sizeof(*f));

	WEFT_ASSERT(f && t->files < MODEL_FILES);
	f->serial = ++m->serial;
	for (unsigned p = 0; p < MODEL_PAGES; p++)
		f->page[p].mapped = MAPPED_HOLE;
	t->file[t->files] = f;
	return t->files++;
}

/* ---- applying an operation ------------------------------------------------------- */

static bool is_dir(const struct model_node *n)
{
	return S_ISDIR(n->mode);
}

static void put(struct model_state *s, int dir, int name, int node)
{
	struct model_node *d = &s->node[dir], *n = &s->node[node];

	WEFT_ASSERT(d->entry[name] < 0);
	d->entry[name] = node;
	d->entries++;
	d->mtime_known = false;
	if (is_dir(n)) {
		n->parent = dir;
		d->nlink++;
	}
}

static int take(struct model_state *s, int dir, int name)
{
	struct model_node *d = &s->node[dir];
	int node = d->entry[name];

	WEFT_ASSERT(node >= 0);
	d->entry[name] = -1;
	d->entries--;
	d->mtime_known = false;
	if (is_dir(&s->node[node]))
		d->nlink--;
	return node;
}

static void drop(struct model_node *n)
{
	n->nlink = is_dir(n) ? 0 : n->nlink - 1;
	/* open ones are kept by whoever has them open: workload.c */
}

static void apply_create(struct model_state *s, const struct model_op *op)
{
	struct model_node *n = &s->node[op->node];
	/* a tmpfile inherits too; its directory is in dir2 */
	const struct model_node *d = &s->node[op->dir >= 0 ? op->dir : op->dir2];

	node_clear(n);
	n->used = true;
	n->ino = op->ino;
	n->mode = op->mode;
	n->uid = op->uid;
	n->gid = op->gid;
	n->rdev = op->rdev;
	n->nlink = is_dir(n) ? 2 : op->dir >= 0;
	n->target_len = op->target_len;
	n->file = op->file;
	if (d->acl_default && !S_ISLNK(n->mode)) {
		n->mode &= ~0777u | 0775;
		n->acl = true;
		n->acl_default = is_dir(n);
	}
	if (op->dir >= 0)
		put(s, op->dir, op->name, op->node);
}

static void apply_rename(struct model_state *s, const struct model_op *op)
{
	int node = take(s, op->dir, op->name), victim = -1;

	if (s->node[op->dir2].entry[op->name2] >= 0) {
		victim = take(s, op->dir2, op->name2);
		if (op->flags == RENAME_EXCHANGE)
			put(s, op->dir, op->name, victim);
		else
			drop(&s->node[victim]);
	}
	put(s, op->dir2, op->name2, node);
}

static void apply_attr(struct model_node *n, const struct model_op *op)
{
	if (op->flags & MODEL_SET_MODE)
		n->mode = (n->mode & S_IFMT) | op->mode;
	if (op->flags & MODEL_SET_UID)
		n->uid = op->uid;
	if (op->flags & MODEL_SET_GID)
		n->gid = op->gid;
	if (op->flags & MODEL_SET_MTIME) {
		n->mtime_known = true;
		n->mtime = op->mtime;
	}
}

static void apply_acl(struct model_node *n, const struct model_op *op)
{
	if (op->which) {
		n->acl_default = op->xattr.set;
		return;
	}
	n->acl = op->xattr.set;
	if (op->xattr.set)
		n->mode = (n->mode & ~0777u) | (op->mode & 0777);
}

void model_apply(struct model_state *s, const struct model_op *op)
{
	struct model_node *n = op->node >= 0 ? &s->node[op->node] : NULL;

	switch (op->kind) {
	case MODEL_CREATE:
		apply_create(s, op);
		break;
	case MODEL_REMOVE:
		drop(&s->node[take(s, op->dir, op->name)]);
		break;
	case MODEL_RENAME:
		apply_rename(s, op);
		break;
	case MODEL_LINK:
		n->nlink++;
		put(s, op->dir, op->name, op->node);
		break;
	case MODEL_ATTR:
		apply_attr(n, op);
		break;
	case MODEL_SIZE:
	case MODEL_DATA:
		n->size = op->size;
		n->mtime_known = false;
		break;
	case MODEL_XATTR:
		n->xattr[op->which] = op->xattr;
		break;
	case MODEL_ACL:
		apply_acl(n, op);
		break;
	}
}

struct model_op *model_begin(
	struct model *m, struct model_task *t, const struct model_op *op)
{
	struct model_op *mine = &t->op[t->ops];

	WEFT_ASSERT(t->ops < MODEL_OPS);
	t->ops++;
	*mine = *op;
	mine->start = m->clock++;
	mine->end = 0;
	if (model_trace)
		fprintf(stderr, "%c%u: %s node %d (%d/%d %d/%d) size %llu from %llu\n",
			t->letter, t->ops, op->what, op->node, op->dir, op->name,
			op->dir2, op->name2, (unsigned long long)op->size,
			(unsigned long long)op->size_before);
	return mine;
}

void model_done(struct model *m, struct model_task *t, uint64_t ino)
{
	struct model_op *op = &t->op[t->ops - 1];

	op->end = m->clock++;
	if (op->kind == MODEL_CREATE)
		op->ino = ino;
	model_apply(&t->now, op);
}

/* ---- pages ----------------------------------------------------------------------- */

static void page_add(struct model_task *t, struct model_page *p,
	enum model_page_kind kind, const uint8_t *bytes)
{
	uint8_t *copy = NULL;

	if (p->count + 2 > p->capacity) {
		p->capacity = p->capacity ? p->capacity * 2 : 4;
		p->image = realloc(p->image, p->capacity * sizeof(*p->image));
		WEFT_ASSERT(p->image);
	}
	if (p->count == 0)
		p->image[p->count++] = (struct model_image){.kind = PAGE_BASE};
	if (bytes) {
		copy = malloc(PAGE_SIZE);
		WEFT_ASSERT(copy);
		memcpy(copy, bytes, PAGE_SIZE);
	}
	p->image[p->count++] =
		(struct model_image){.op = t->ops, .kind = kind, .bytes = copy};
}

const uint8_t *model_page_now(const struct model_file *f, unsigned page)
{
	const struct model_page *p = &f->page[page];

	return p->count ? p->image[p->count - 1].bytes : NULL;
}

static void page_copy_now(const struct model_file *f, unsigned page, uint8_t *buf)
{
	const uint8_t *bytes = model_page_now(f, page);

	if (bytes)
		memcpy(buf, bytes, PAGE_SIZE);
	else
		memset(buf, 0, PAGE_SIZE);
}

void model_read(const struct model_task *t, unsigned file, uint64_t offset, uint8_t *buf,
	size_t len)
{
	uint8_t page[PAGE_SIZE];

	for (size_t done = 0; done < len;) {
		uint64_t at = offset + done;
		size_t within = at % PAGE_SIZE, n = MIN(len - done, PAGE_SIZE - within);

		page_copy_now(t->file[file], (unsigned)(at / PAGE_SIZE), page);
		memcpy(buf + done, page + within, n);
		done += n;
	}
}

void model_write(struct model_task *t, unsigned file, uint64_t offset,
	const uint8_t *bytes, size_t len)
{
	struct model_file *f = t->file[file];
	uint8_t page[PAGE_SIZE];

	if (model_trace)
		fprintf(stderr, "   %llu + %zu\n", (unsigned long long)offset, len);
	for (size_t done = 0; done < len;) {
		uint64_t at = offset + done;
		size_t within = at % PAGE_SIZE, n = MIN(len - done, PAGE_SIZE - within);
		struct model_page *p = &f->page[at / PAGE_SIZE];
		bool in_place =
			p->mapped == MAPPED_WRITTEN || p->mapped == MAPPED_UNKNOWN;

		WEFT_ASSERT(at / PAGE_SIZE < MODEL_PAGES);
		page_copy_now(f, (unsigned)(at / PAGE_SIZE), page);
		memcpy(page + within, bytes + done, n);
		page_add(t, p, in_place ? PAGE_OVERWRITTEN : PAGE_PUBLISHED, page);
		p->mapped = MAPPED_WRITTEN;
		done += n;
	}
}

/* Zeroes a part of a page with a transaction. */
static void page_zero_part(struct model_task *t, struct model_file *f, unsigned page,
	unsigned from, unsigned to)
{
	uint8_t bytes[PAGE_SIZE];

	if (from == to || !model_page_now(f, page))
		return;
	page_copy_now(f, page, bytes);
	memset(bytes + from, 0, to - from);
	page_add(t, &f->page[page], PAGE_CHANGED, bytes);
}

static void page_free(
	struct model_task *t, struct model_page *p, enum model_mapped mapped)
{
	if (p->mapped != MAPPED_HOLE && p->count)
		page_add(t, p, PAGE_FREED, NULL);
	p->mapped = mapped;
}

void model_cut(struct model_task *t, unsigned file, uint64_t size, uint64_t size_before)
{
	struct model_file *f = t->file[file];

	if (size > size_before)
		return;
	if (size % PAGE_SIZE && size < size_before)
		page_zero_part(
			t, f, (unsigned)(size / PAGE_SIZE), size % PAGE_SIZE, PAGE_SIZE);
	for (unsigned p = (unsigned)DIV_UP(size, PAGE_SIZE); p < MODEL_PAGES; p++)
		page_free(t, &f->page[p], MAPPED_HOLE);
}

void model_punch(
	struct model_task *t, unsigned file, uint64_t offset, uint64_t end, bool zero)
{
	struct model_file *f = t->file[file];
	unsigned first = (unsigned)(offset / PAGE_SIZE),
		 last = (unsigned)(end / PAGE_SIZE);
	unsigned from = offset % PAGE_SIZE, to = end % PAGE_SIZE;

	if (model_trace)
		fprintf(stderr, "   %s %llu to %llu\n", zero ? "zero" : "punch",
			(unsigned long long)offset, (unsigned long long)end);
	if (first == last) {
		page_zero_part(t, f, first, from, to);
	} else {
		if (from)
			page_zero_part(t, f, first, from, PAGE_SIZE);
		if (to)
			page_zero_part(t, f, last, 0, to);
		for (unsigned p = first + (from > 0); p < last; p++)
			page_free(t, &f->page[p], zero ? MAPPED_UNWRITTEN : MAPPED_HOLE);
	}
	if (zero)
		model_allocate(t, file, offset, end);
}

void model_allocate(struct model_task *t, unsigned file, uint64_t offset, uint64_t end)
{
	for (unsigned p = (unsigned)(offset / PAGE_SIZE); p < DIV_UP(end, PAGE_SIZE);
		p++) {
		struct model_page *page = &t->file[file]->page[p];

		if (page->mapped == MAPPED_HOLE)
			page->mapped = MAPPED_UNWRITTEN;
	}
}

/* The operation did not happen: so says who looked. */
void model_undone(struct model_task *t)
{
	for (unsigned f = 0; f < t->files; f++)
		for (unsigned p = 0; p < MODEL_PAGES; p++) {
			struct model_page *page = &t->file[f]->page[p];

			while (page->count && page->image[page->count - 1].op == t->ops) {
				free(page->image[--page->count].bytes);
				page->mapped = MAPPED_UNKNOWN;
			}
		}
	t->ops--;
}

/* ---- what is durable ------------------------------------------------------------- */

void model_cover(const struct model *m, struct model_cover *c)
{
	for (unsigned i = 0; i < m->tasks; i++) {
		const struct model_task *t = &m->task[i];

		c->ops[i] = t->ops - (t->ops && t->op[t->ops - 1].end == 0);
	}
}

void model_names_durable(struct model *m, const struct model_cover *c)
{
	for (unsigned i = 0; i < m->tasks; i++)
		m->task[i].durable = MAX(m->task[i].durable, c->ops[i]);
}

void model_file_durable(struct model_task *t, unsigned file, uint32_t ops)
{
	for (unsigned p = 0; p < MODEL_PAGES; p++) {
		struct model_page *page = &t->file[file]->page[p];

		while (page->durable + 1 < page->count &&
			page->image[page->durable + 1].op <= ops)
			page->durable++;
	}
}

void model_all_durable(struct model *m, const struct model_cover *c)
{
	model_names_durable(m, c);
	for (unsigned i = 0; i < m->tasks; i++)
		for (unsigned f = 0; f < m->task[i].files; f++)
			model_file_durable(&m->task[i], f, c->ops[i]);
}
