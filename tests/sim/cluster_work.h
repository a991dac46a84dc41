/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For tests of several nodes that all stay: what they do to a tree, and the operations that they do on
 * one filesystem, each of which must find what the last one left, on whatever node that was.
 */
#ifndef WEFT_TEST_CLUSTER_WORK_H
#define WEFT_TEST_CLUSTER_WORK_H

#include "tests/sim/cluster_world.h"

#define KEYS     400
#define SHARED   3  /* directories of all */
#define NAMES    10 /* in each */
#define MOVING   5  /* directories in each other */
#define FILE_MAX 40000u

/* ---- what files and directories should be ------------------------------------------------ */

struct thing {
	uint64_t ino; /* 0: there is none of this name */
	bool directory;
	uint32_t size;
	uint8_t *data;
	struct disk_inode left; /* as whoever changed it last has seen it */
};

/* Names from `first` on of a directory. */
struct place_model {
	uint64_t dir;
	unsigned first;
	struct thing thing[NAMES];
};

/* What must be in the volume. All nodes of a simulation see it. */
static struct {
	struct {
		struct place_model own, common;
		uint64_t appended_bytes; /* to `appended`, of large records */
	} node[NODES_MAX + 1]; /* by the node's id */
	struct place_model shared[SHARED];
	uint64_t common, appended, striped; /* inodes: a directory, files of all */
	uint64_t moving[MOVING];            /* directories that change places */
	_Atomic uint64_t begun[KEYS], committed[KEYS];
} model;

/* ---- the tree ---------------------------------------------------------------------------- */

static struct disk_key key_of(unsigned k)
{
	return disk_key(1000 + k * 7919 % KEYS, DISK_ITEM_LINK, 0);
}

struct count_item {
	uint64_t count;
	uint8_t filler[150]; /* so that there are some leaves */
};

static int count_up(struct txn *x, unsigned k)
{
	struct count_item item = {0};
	int rc = txn_read(x, key_of(k), &item, sizeof(item));

	if (rc < 0 && rc != -ENOENT)
		return rc;
	HOLDS(rc == -ENOENT || rc == sizeof(item));
	item.count++;
	return txn_write(x, key_of(k), &item, sizeof(item));
}

/* One or two items of the tree, together. */
static void count_some(struct node *n)
{
	unsigned k[2] = {pick(KEYS), pick(KEYS)}, count = 1 + pick(2);
	struct txn *x;
	int rc;

	if (k[0] == k[1])
		count = 1;
	OK(txn_begin(n->v->tree, false, &x));
	for (unsigned i = 0; i < count; i++)
		atomic_fetch_add(&model.begun[k[i]], 1);
	for (;;) {
		rc = 0;
		for (unsigned i = 0; i < count && !rc; i++)
			rc = count_up(x, k[i]);
		if (!rc)
			rc = txn_commit(x, NULL);
		if (rc != -EAGAIN)
			break;
		txn_restart(x);
	}
	OK(rc);
	txn_end(x);
	for (unsigned i = 0; i < count; i++)
		atomic_fetch_add(&model.committed[k[i]], 1);
}

static void count_look(struct node *n, unsigned k)
{
	uint64_t least = atomic_load(&model.committed[k]);
	struct count_item item = {0};
	int rc = tree_read(n->v->tree, key_of(k), &item, sizeof(item));

	HOLDS(rc == -ENOENT || rc == sizeof(item));
	if (item.count < least || item.count > atomic_load(&model.begun[k])) {
		print_message("node %u: item %u is %" PRIu64 ", not %" PRIu64
			      " or more\n",
			n->id, k, item.count, least);
		abort();
	}
}

static void tree_work(struct node *n)
{
	for (unsigned step = 0; step < n->w->steps; step++) {
		if (pick(3))
			count_some(n);
		else
			count_look(n, pick(KEYS));
	}
}

static void tree_check(struct node *n)
{
	for (unsigned k = 0; k < KEYS; k++)
		count_look(n, k);
}

/* ---- operations -------------------------------------------------------------------------- */

struct record {
	uint32_t node, number;
	uint8_t filler[90];
};

static struct ops_name name_of(char out[8], const struct place_model *p, unsigned i)
{
	snprintf(out, 8, "n%u", p->first + i);
	return nm(out);
}

static void check_data(struct node *n, const struct thing *t)
{
	uint8_t *buf = rt_alloc(FILE_MAX + PAGE_SIZE);
	struct bytes b = {.to = buf};
	struct ops_file *f;
	struct ops_attr a;
	int rc;

	OK(ops_open(n->fs, t->ino, &root_user, O_RDONLY, &f, &a));
	EQ(a.inode.size, t->size);
	do {
		rc = ops_read(n->fs, f, b.len, FILE_MAX + 1 - b.len, take_bytes, &b);
		HOLDS(rc >= 0);
	} while (rc > 0 && b.len <= FILE_MAX);
	ops_close(n->fs, f);
	EQ(b.len, t->size);
	for (uint32_t i = 0; i < t->size; i++)
		if (buf[i] != t->data[i]) {
			print_message("node %u: inode %" PRIu64
				      ", byte %u of %u: %u, not %u\n",
				n->id, t->ino, i, t->size, buf[i], t->data[i]);
			abort();
		}
	rt_free(buf);
}

static void check_thing(struct node *n, const struct place_model *p, unsigned i)
{
	const struct thing *t = &p->thing[i];
	struct ops_attr a;
	char text[8];
	int rc = ops_lookup(n->fs, p->dir, name_of(text, p, i), &a);

	EQ(rc, t->ino ? 0 : -ENOENT);
	if (!t->ino)
		return;
	EQ(a.ino, t->ino);
	EQ(S_ISDIR(a.inode.mode), t->directory);
	EQ(a.inode.nlink, t->directory ? 2 : 1);
	if (t->left.mtime_ns) {
		EQ(a.inode.size, t->left.size);
		EQ(a.inode.blocks, t->left.blocks);
		EQ(a.inode.mtime_ns, t->left.mtime_ns);
		EQ(a.inode.ctime_ns, t->left.ctime_ns);
	}
	if (!t->directory)
		check_data(n, t);
}

struct listing {
	const struct place_model *p;
	unsigned count;
};

static int list_one(void *arg, const struct ops_dirent *entry)
{
	struct listing *l = (struct listing *)arg;
	char name[8] = "";
	unsigned i;

	HOLDS(entry->name_len < sizeof(name));
	memcpy(name, entry->name, entry->name_len);
	if (name[0] != 'n') /* dots, and those of check_moving */
		return 0;
	HOLDS(sscanf(name, "n%u", &i) == 1);
	if (i < l->p->first || i >= l->p->first + NAMES)
		return 0;
	EQ(entry->ino, l->p->thing[i - l->p->first].ino);
	l->count++;
	return 0;
}

static void check_listing(struct node *n, const struct place_model *p)
{
	struct listing l = {.p = p};
	unsigned want = 0;

	for (unsigned i = 0; i < NAMES; i++)
		want += p->thing[i].ino != 0;
	OK(ops_readdir(n->fs, p->dir, 0, 0, list_one, &l));
	EQ(l.count, want);
}

static void forget(struct thing *t)
{
	free(t->data);
	*t = (struct thing){0};
}

static void make_file(struct node *n, struct place_model *p, unsigned i)
{
	struct thing *t = &p->thing[i];
	struct ops_file *f;
	struct ops_attr a;
	char text[8];
	int rc = ops_create(n->fs, p->dir, name_of(text, p, i), &root_user, 0644,
		O_RDWR | O_EXCL, &f, &a);

	EQ(rc, t->ino ? -EEXIST : 0);
	if (rc)
		return;
	ops_close(n->fs, f);
	*t = (struct thing){.ino = a.ino, .data = (uint8_t *)calloc(1, FILE_MAX)};
}

static void make_dir(struct node *n, struct place_model *p, unsigned i)
{
	struct thing *t = &p->thing[i];
	struct ops_attr a;
	char text[8];
	int rc = ops_mkdir(n->fs, p->dir, name_of(text, p, i), &root_user, 0755, &a);

	EQ(rc, t->ino ? -EEXIST : 0);
	if (!rc)
		*t = (struct thing){.ino = a.ino, .directory = true};
}

static void write_some(struct node *n, struct thing *t)
{
	uint32_t at = pick(FILE_MAX - 1), len = 1 + pick(FILE_MAX - at);
	uint8_t seed = (uint8_t)rt_random();
	struct ops_file *f;
	struct ops_attr a;

	if (pick(2))
		len = MIN(len, 500u);
	OK(ops_open(n->fs, t->ino, &root_user, O_RDWR, &f, &a));
	for (uint32_t i = 0; i < len; i++)
		t->data[at + i] = (uint8_t)(seed + i * 7 + i / 251);
	EQ(ops_write(n->fs, f, &root_user, at, t->data + at, len, false), len);
	t->size = MAX(t->size, at + len);
	if (pick(4) == 0)
		OK(ops_fsync(n->fs, t->ino, pick(2)));
	ops_close(n->fs, f);
}

static void cut(struct node *n, struct thing *t)
{
	struct ops_setattr set = {.set = OPS_SET_SIZE, .size = pick(FILE_MAX)};
	struct ops_attr a;

	OK(ops_setattr(n->fs, t->ino, &root_user, &set, &a));
	EQ(a.inode.size, set.size);
	if (set.size < t->size)
		memset(t->data + set.size, 0, t->size - set.size);
	t->size = (uint32_t)set.size;
}

static void take_away(struct node *n, struct place_model *p, unsigned i)
{
	struct thing *t = &p->thing[i];
	char text[8];

	if (t->directory)
		OK(ops_rmdir(n->fs, p->dir, name_of(text, p, i)));
	else
		EQ(ops_unlink(n->fs, p->dir, name_of(text, p, i)), t->ino ? 0 : -ENOENT);
	forget(t);
}

static void move(struct node *n, struct place_model *p, unsigned i, struct place_model *q,
	unsigned k)
{
	struct thing *from = &p->thing[i], *to = &q->thing[k];
	char a[8], b[8];
	int want = 0;

	if (!from->ino)
		want = -ENOENT;
	else if (to->ino && from != to && from->directory != to->directory)
		want = to->directory ? -EISDIR : -ENOTDIR;
	EQ(ops_rename(n->fs, p->dir, name_of(a, p, i), q->dir, name_of(b, q, k), 0),
		want);
	if (want || from == to)
		return;
	forget(to);
	*to = *from;
	*from = (struct thing){0};
}

static void note_attributes(struct node *n, struct place_model *p)
{
	for (unsigned i = 0; i < NAMES; i++)
		if (p->thing[i].ino)
			p->thing[i].left = attr_of(n->fs, p->thing[i].ino);
}

static void step(struct node *n, struct place_model *p, struct place_model *q)
{
	unsigned i = pick(NAMES);
	struct thing *t = &p->thing[i];

	switch (pick(10)) {
	case 0 ... 1:
		make_file(n, p, i);
		break;
	case 2:
		make_dir(n, p, i);
		break;
	case 3:
		take_away(n, p, i);
		break;
	case 4:
		move(n, p, i, q, pick(NAMES));
		break;
	case 5:
		check_listing(n, p);
		return;
	case 6:
		if (t->ino && !t->directory)
			cut(n, t);
		break;
	case 7 ... 8:
		if (t->ino && !t->directory)
			write_some(n, t);
		break;
	default:
		check_thing(n, p, i);
		return;
	}
	note_attributes(n, p);
	if (q != p)
		note_attributes(n, q);
}

static void own_main(void *arg)
{
	struct node *n = (struct node *)arg;

	for (unsigned i = 0; i < n->w->steps; i++)
		step(n, &model.node[n->id].own, &model.node[n->id].own);
}

static void common_main(void *arg)
{
	struct node *n = (struct node *)arg;

	for (unsigned i = 0; i < n->w->steps; i++)
		step(n, &model.node[n->id].common, &model.node[n->id].common);
}

/* A record at the end of the one file, and a page of the other. */
static void write_together(struct node *n, unsigned i)
{
	struct record r = {.node = n->id, .number = i};
	uint8_t page[PAGE_SIZE];
	struct ops_file *f;
	struct ops_attr a;

	memset(page, (int)(n->id * 50 + i % 50), sizeof(page));
	OK(ops_open(n->fs, model.appended, &root_user, O_RDWR, &f, &a));
	EQ(ops_write(n->fs, f, &root_user, 0, &r, sizeof(r), true), sizeof(r));
	ops_close(n->fs, f);
	OK(ops_open(n->fs, model.striped, &root_user, O_RDWR, &f, &a));
	EQ(ops_write(n->fs, f, &root_user, (i * n->w->nodes + n->id - 1) * 1000ull, page,
		   1000, false),
		1000);
	ops_close(n->fs, f);
}

static void together_main(void *arg)
{
	struct node *n = (struct node *)arg;

	for (unsigned i = 0; i < n->w->steps; i++)
		write_together(n, i);
}

/* Where each of the directories is, by whoever moved it last; the names are the same. */
static void move_about(struct node *n)
{
	unsigned i = pick(MOVING), into = pick(MOVING + 1);
	struct ops_attr a;
	uint64_t from, to;
	char text[8];
	int rc;

	snprintf(text, sizeof(text), "m%u", i);
	OK(ops_lookup(n->fs, model.moving[i], nm(".."), &a));
	from = a.ino;
	to = into == MOVING ? model.common : model.moving[into];
	rc = ops_rename(n->fs, from, nm(text), to, nm(text), 0);
	HOLDS(rc == 0 || rc == -EINVAL || rc == -ENOENT);
}

static void moving_main(void *arg)
{
	struct node *n = (struct node *)arg;

	for (unsigned i = 0; i < n->w->steps; i++)
		move_about(n);
}

/* All of them are still reached from the root. */
static void check_moving(struct node *n)
{
	for (unsigned i = 0; i < MOVING; i++) {
		uint64_t at = model.moving[i];
		unsigned steps = 0;
		struct ops_attr a;

		for (; at != model.common; at = a.ino, steps++) {
			OK(ops_lookup(n->fs, at, nm(".."), &a));
			HOLDS(steps < MOVING);
		}
	}
}

static uint8_t *read_all(struct node *n, uint64_t ino, size_t want)
{
	struct bytes b = {.to = rt_alloc(want + PAGE_SIZE)};
	struct ops_file *f;
	struct ops_attr a;
	int rc;

	OK(ops_open(n->fs, ino, &root_user, O_RDONLY, &f, &a));
	EQ(a.inode.size, want);
	do {
		rc = ops_read(n->fs, f, b.len, want - b.len, take_bytes, &b);
		HOLDS(rc > 0);
	} while (b.len < want);
	ops_close(n->fs, f);
	return b.to;
}

static void check_together(struct node *n)
{
	unsigned count = n->w->nodes * n->w->steps, next[NODES_MAX] = {0};
	struct record *r =
		(struct record *)read_all(n, model.appended, count * sizeof(*r));
	uint8_t *striped = read_all(n, model.striped, count * 1000ull);

	for (unsigned i = 0; i < count; i++) {
		HOLDS(r[i].node >= 1 && r[i].node <= n->w->nodes);
		EQ(r[i].number, next[r[i].node - 1]);
		next[r[i].node - 1]++;
		for (unsigned at = i * 1000; at < i * 1000 + 1000; at++)
			EQ(striped[at], (uint8_t)((i % n->w->nodes + 1) * 50 +
						  i / n->w->nodes % 50));
	}
	rt_free(r);
	rt_free(striped);
}

static void shared_main(void *arg)
{
	struct node *n = (struct node *)arg;
	struct world *w = n->w;

	for (unsigned i = 0; i < w->steps; i++) {
		rt_mutex_lock(&w->turn);
		step(n, &model.shared[pick(SHARED)], &model.shared[pick(SHARED)]);
		rt_mutex_unlock(&w->turn);
		rt_sleep_ns(pick(100000));
	}
}

static void ops_work(struct node *n)
{
	static void (*const mains[])(void *) = {
		own_main, common_main, together_main, moving_main, shared_main};
	struct rt_task *task[ARRAY_SIZE(mains)];
	char text[16];

	if (n->id == 1) {
		for (unsigned i = 0; i < SHARED; i++) {
			snprintf(text, sizeof(text), "shared%u", i);
			model.shared[i].dir = mk_dir(n->fs, DISK_INO_ROOT, text);
		}
		model.common = mk_dir(n->fs, DISK_INO_ROOT, "common");
		for (unsigned i = 0; i < MOVING; i++) {
			snprintf(text, sizeof(text), "m%u", i);
			model.moving[i] = mk_dir(n->fs, model.common, text);
		}
		model.appended = mk_file(n->fs, DISK_INO_ROOT, "appended");
		model.striped = mk_file(n->fs, DISK_INO_ROOT, "striped");
	}
	snprintf(text, sizeof(text), "own%u", n->id);
	model.node[n->id].own.dir = mk_dir(n->fs, DISK_INO_ROOT, text);
	barrier(n);
	model.node[n->id].common.dir = model.common;
	model.node[n->id].common.first = n->id * NAMES;
	for (unsigned i = 0; i < ARRAY_SIZE(mains); i++)
		OK(rt_task_spawn(&task[i], "work", mains[i], n));
	for (unsigned i = 0; i < ARRAY_SIZE(mains); i++)
		rt_task_join(task[i]);
}

static void check_place(struct node *n, const struct place_model *p)
{
	check_listing(n, p);
	for (unsigned i = 0; i < NAMES; i++)
		check_thing(n, p, i);
}

static void ops_check(struct node *n)
{
	for (unsigned i = 0; i < SHARED; i++)
		check_place(n, &model.shared[i]);
	for (unsigned i = 0; i < n->w->nodes; i++)
		check_place(n, &model.node[i + 1].own);
	for (unsigned i = 0; i < n->w->nodes; i++)
		check_place(n, &model.node[i + 1].common);
	check_together(n);
	check_moving(n);
}

static void place_clear(struct place_model *p)
{
	for (unsigned i = 0; i < NAMES; i++)
		forget(&p->thing[i]);
}

/* What ops_work expects, which is not the run's memory. */
static void places_clear(struct world *w)
{
	for (unsigned i = 0; i < SHARED; i++)
		place_clear(&model.shared[i]);
	for (unsigned i = 0; i < w->nodes; i++)
		place_clear(&model.node[i + 1].own);
	for (unsigned i = 0; i < w->nodes; i++)
		place_clear(&model.node[i + 1].common);
	memset((void *)&model, 0, sizeof(model));
}

#endif
