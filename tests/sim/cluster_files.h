/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For tests whose nodes crash: files that all nodes make, write and read, and what of them
 * cannot be lost.
 */
#ifndef WEFT_TEST_CLUSTER_FILES_H
#define WEFT_TEST_CLUSTER_FILES_H

#include "tests/sim/cluster_world.h"

#define TASKS 2u
#define FILES 24u
#define PAGES 6u /* of a file */

/* A file's pages are all of one generation, or of two while it is written, or after a
 * crash. 0: there may be no file, or no page. */
struct file_model {
	unsigned users;               /* readers; UINT32_MAX: a writer */
	unsigned user[NODES_MAX + 1]; /* of these, each node's */
	uint32_t last;                /* begun to be written */
	uint32_t durable;
	uint32_t
		by[NODES_MAX + 1]; /* the last that each node has written, in this life */
};

static struct file_model files[FILES];
static _Atomic bool over;

/* What nobody can have lost. */
static uint32_t safe(const struct file_model *f)
{
	uint32_t gen = f->durable;

	for (unsigned id = 1; id <= NODES_MAX; id++)
		gen = MAX(gen, f->by[id]);
	return gen;
}

static uint64_t word_of(unsigned i, uint32_t gen, unsigned at)
{
	return (uint64_t)i << 48 | (uint64_t)gen << 16 | at;
}

/* ---- what tasks do ------------------------------------------------------------------------ */

static void name_of(char name[16], unsigned i)
{
	snprintf(name, 16, "file%u", i);
}

static struct ops_file *file_open(struct node *n, unsigned i, bool make)
{
	struct ops_file *f = NULL;
	struct ops_attr a;
	char name[16];
	int rc;

	name_of(name, i);
	rc = ops_lookup(n->fs, DISK_INO_ROOT, nm(name), &a);
	if (rc == -ENOENT && make) {
		rc = ops_create(
			n->fs, DISK_INO_ROOT, nm(name), &root_user, 0644, O_RDWR, &f, &a);
	} else if (!rc) {
		rc = ops_open(n->fs, a.ino, &root_user, O_RDWR, &f, &a);
	}
	if (rc != -ENOENT)
		OK(rc);
	return rc ? NULL : f;
}

static void write_file(struct node *n, unsigned i)
{
	struct file_model *m = &files[i];
	uint32_t gen = ++m->last;
	struct ops_file *f = file_open(n, i, true);
	uint64_t *bytes = (uint64_t *)rt_alloc_pages(PAGES * PAGE_SIZE);

	for (unsigned w = 0; w < PAGES * PAGE_SIZE / 8; w++)
		bytes[w] = word_of(i, gen, w);
	EQ(ops_write(n->fs, f, &root_user, 0, bytes, PAGES * PAGE_SIZE, false),
		PAGES * PAGE_SIZE);
	m->by[n->id] = gen;
	if (pick(3) == 0) {
		OK(ops_fsync(n->fs, ops_file_ino(f), false));
		m->durable = gen;
	}
	ops_close(n->fs, f);
	rt_free_pages(bytes, PAGES * PAGE_SIZE);
}

struct seen {
	const struct node *n;
	unsigned i;
	uint32_t low, high;
	uint64_t page; /* the next */
};

static void see_page(struct seen *s, const uint64_t *words, size_t count)
{
	uint32_t gen = (uint32_t)(words[0] >> 16);
	unsigned at = (unsigned)(s->page * (PAGE_SIZE / 8));
	/* who wrote it may have crashed since the call began */
	uint32_t low = MIN(s->low, safe(&files[s->i]));
	bool whole = gen >= low && gen <= s->high;

	for (unsigned w = 0; w < count && whole; w++)
		whole = words[w] == (gen ? word_of(s->i, gen, at + w) : 0);
	if (!whole) {
		print_message("node %u: file %u, page %" PRIu64 ": %" PRIx64
			      " is none of generation %u to %u\n",
			s->n->id, s->i, s->page, words[0], s->low, s->high);
		print_message("  durable %u; by nodes %u %u %u\n", files[s->i].durable,
			files[s->i].by[1], files[s->i].by[2], files[s->i].by[3]);
		abort();
	}
	s->page++;
}

static int see(void *arg, const struct iovec *iov, unsigned count, size_t total)
{
	for (unsigned i = 0; i < count; i++)
		for (size_t at = 0; at < iov[i].iov_len; at += PAGE_SIZE) {
			HOLDS(iov[i].iov_len - at >= PAGE_SIZE);
			see_page((struct seen *)arg,
				(const uint64_t *)((const char *)iov[i].iov_base + at),
				PAGE_SIZE / 8);
		}
	return (int)(total / PAGE_SIZE);
}

static void read_file(struct node *n, unsigned i)
{
	struct file_model *m = &files[i];
	uint32_t low = safe(m);
	struct ops_file *f = file_open(n, i, false);
	struct seen s = {.n = n, .i = i};
	int rc;

	if (!f) {
		if (low > safe(m)) /* who wrote it has crashed meanwhile */
			low = safe(m);
		if (low)
			print_message("node %u: there is no file %u\n", n->id, i);
		HOLDS(!low);
		return;
	}
	do {
		s.low = MIN(low, safe(m));
		s.high = m->last;
		rc = ops_read(n->fs, f, s.page * PAGE_SIZE, (PAGES - s.page) * PAGE_SIZE,
			see, &s);
		HOLDS(rc >= 0);
	} while (rc && s.page < PAGES);
	HOLDS(s.page == PAGES || !MIN(low, safe(m)));
	ops_close(n->fs, f);
}

static bool enter(struct node *n, unsigned i, bool writes)
{
	struct file_model *m = &files[i];

	if (m->users == UINT32_MAX || (writes && m->users))
		return false;
	m->users = writes ? UINT32_MAX : m->users + 1;
	m->user[n->id]++;
	return true;
}

static void leave(struct node *n, unsigned i)
{
	struct file_model *m = &files[i];

	m->users = m->users == UINT32_MAX ? 0 : m->users - 1;
	m->user[n->id]--;
}

/* What a task does until it is to end. */
static void work_on(struct node *n, const _Atomic bool *ends)
{
	while (!atomic_load(ends)) {
		unsigned i = pick(FILES);
		bool writes = pick(2);

		if (!enter(n, i, writes)) {
			rt_sleep_ns(100000);
			continue;
		}
		if (writes)
			write_file(n, i);
		else
			read_file(n, i);
		leave(n, i);
	}
}

/* The node has lost its power. */
static void files_crashed(const struct node *n)
{
	for (unsigned i = 0; i < FILES; i++) {
		struct file_model *m = &files[i];

		m->by[n->id] = 0;
		if (m->user[n->id])
			m->users = m->users == UINT32_MAX ? 0 : m->users - m->user[n->id];
		m->user[n->id] = 0;
	}
}

#endif
