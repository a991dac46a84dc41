/* SPDX-License-Identifier: Apache-2.0 */
/* The model of a node's kernel: its caches, the READs on their way, and the notifications. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>
#include <errno.h>
#include <inttypes.h>

#include "engine/rt/rt_sim.h"
#include "tests/world/expect.h"
#include "tests/world/kernel.h"

struct kernel_model kernels[NODES_MAX];
bool kernel_stores;
unsigned kernel_places;
_Atomic uint64_t kernel_noted[NODES_MAX][PLACES_MAX];

void kernel_start(struct node *n, const struct kcache_ops *ops, struct kernel_model *k)
{
	struct kcache_noted noted = {kernel_noted[n->id - 1], kernel_places};

	memset((void *)noted.ino, 0, sizeof(kernel_noted[0]));
	OK(fs_kernel_start(n->fs, ops, k, kernel_places ? &noted : NULL));
}

/* ---- dropping ------------------------------------------------------------------------------ */

static struct kernel_file *kernel_file_of(struct kernel_model *k, uint64_t ino)
{
	for (unsigned i = 0; i < FILES; i++)
		if (k->file[i].ino == ino)
			return &k->file[i];
	return NULL;
}

void kernel_attributes_drop(struct kernel_model *k, struct kernel_file *f)
{
	f->known = false;
	f->version = ++k->version;
}

/* Taken out: who still loads does so from what is no page of the file any more. */
static void kernel_page_out(struct kernel_model *k, struct kernel_page *p)
{
	k->drops += p->good;
	p->good = false;
	p->earlier = p->loaded;
}

/* Of no mapping, and processors know it. */
static void kernel_page_gone(struct kernel_model *k, struct kernel_page *p)
{
	k->drops += p->good;
	p->good = p->mapped = p->loaded = p->dirty = false;
}

/*
 * Under the lock, which it lets go of: a page that is not locked is, until what was stored in it
 * has been written back. Nobody has it mapped to store into by then.
 */
static void kernel_write_back(
	struct kernel_model *k, struct kernel_file *f, struct kernel_page *p)
{
	uint64_t words[PAGE_SIZE / 8], at = (uint64_t)(p - f->page) * PAGE_SIZE;
	struct ops_file *file = k->open[f - k->file];

	if (!p->dirty)
		return;
	p->locked = true;
	p->dirty = false;
	while (f->keeps_stores)
		rt_cond_wait(&k->changed, &k->lock, RT_FOREVER);
	f->writes++;
	for (unsigned i = 0; i < PAGE_SIZE / 8; i++)
		words[i] = p->word;
	rt_mutex_unlock(&k->lock);
	rt_sleep_ns(pick(3) ? pick(2000) : pick(100000));
	EQ(ops_store(k->n->fs, file, at, words, PAGE_SIZE), PAGE_SIZE);
	rt_mutex_lock(&k->lock);
	f->writes--;
	p->locked = false;
	rt_cond_broadcast(&k->changed);
}

void kernel_write_range(
	struct kernel_model *k, struct kernel_file *f, uint64_t first, uint64_t end)
{
	for (uint64_t i = first; i < MIN(end, (uint64_t)BLOCKS); i++) {
		while (f->page[i].locked)
			rt_cond_wait(&k->changed, &k->lock, RT_FOREVER);
		kernel_write_back(k, f, &f->page[i]);
	}
}

/*
 * Nobody has pages from `first` on mapped, and then processors are told. That is not done under a
 * lock: who finds a page that is mapped no more takes it out meanwhile, and tells nobody.
 */
static void kernel_unmap(
	struct kernel_model *k, struct kernel_file *f, uint64_t first, uint64_t end)
{
	bool was[BLOCKS];

	for (uint64_t i = first; i < end; i++) {
		was[i] = f->page[i].mapped;
		f->page[i].mapped = false;
	}
	rt_mutex_unlock(&k->lock);
	rt_sleep_ns(pick(3) ? pick(2000) : pick(100000));
	rt_mutex_lock(&k->lock);
	for (uint64_t i = first; i < end; i++)
		if (was[i])
			f->page[i].loaded = false;
}

/*
 * As invalidate_inode_pages2_range() does it. Under the lock, which it lets go of while it waits,
 * and between unmapping and telling. *waits: for a page that is locked.
 */
static void kernel_pages_drop(struct kernel_model *k, struct kernel_file *f,
	uint64_t first, uint64_t end, _Atomic uint32_t *waits)
{
	bool unmapped = false;

	end = MIN(end, (uint64_t)BLOCKS);
	for (uint64_t i = first; i < end; i++) {
		struct kernel_page *p = &f->page[i];

		if (p->mapped && !unmapped) {
			kernel_unmap(k, f, i, end);
			unmapped = true;
		}
		while (p->locked) {
			atomic_store(waits, 1);
			rt_cond_wait(&k->changed, &k->lock, RT_FOREVER);
		}
		atomic_store(waits, 0);
		if (p->mapped) /* again */
			p->mapped = p->loaded = false;
		if (p->dirty) {
			atomic_store(waits, 1);
			kernel_write_back(k, f, p);
			atomic_store(waits, 0);
		}
		kernel_page_out(k, p);
	}
}

void kernel_own_drop(
	struct kernel_model *k, struct kernel_file *f, uint64_t first, uint64_t end)
{
	for (uint64_t i = first; i < MIN(end, (uint64_t)BLOCKS); i++) {
		while (f->page[i].locked)
			rt_cond_wait(&k->changed, &k->lock, RT_FOREVER);
		kernel_page_gone(k, &f->page[i]);
	}
}

void kernel_drop_itself(struct kernel_model *k, struct kernel_file *f, uint64_t block)
{
	struct kernel_page *p = &f->page[block];

	while (p->locked || p->dirty) {
		if (p->locked)
			rt_cond_wait(&k->changed, &k->lock, RT_FOREVER);
		else
			kernel_write_back(k, f, p);
	}
	if (p->mapped)
		p->mapped = p->loaded = false;
	kernel_page_out(k, p);
}

static void on_drop_pages(
	void *owner, uint64_t ino, uint64_t first, uint64_t end, _Atomic uint32_t *by)
{
	struct kernel_model *k = (struct kernel_model *)owner;
	struct kernel_file *f = kernel_file_of(k, ino);

	if (!f)
		return;
	rt_mutex_lock(&k->lock);
	kernel_attributes_drop(k, f);
	kernel_pages_drop(k, f, first, end, by);
	rt_mutex_unlock(&k->lock);
}

static void on_tell_size(void *owner, uint64_t ino, uint64_t size)
{
	struct kernel_model *k = (struct kernel_model *)owner;
	struct kernel_file *f = kernel_file_of(k, ino);

	if (!f)
		return;
	rt_sleep_ns(pick(3) ? pick(2000) : pick(100000));
	rt_mutex_lock(&k->lock);
	if (size > f->size) {
		kernel_attributes_drop(k, f);
		f->size = size;
	}
	rt_mutex_unlock(&k->lock);
}

bool kernel_drop_waits(void *owner, const _Atomic uint32_t *by)
{
	(void)owner;
	return atomic_load(by);
}

static bool on_drop_attributes(void *owner, uint64_t ino)
{
	struct kernel_model *k = (struct kernel_model *)owner;
	struct kernel_file *f = kernel_file_of(k, ino);
	bool there;

	rt_mutex_lock(&k->lock);
	if (!f) { /* a directory */
		k->dir_known = false;
		k->dir_version = ++k->version;
		rt_mutex_unlock(&k->lock);
		return true;
	}
	there = !f->absent;
	if (there)
		kernel_attributes_drop(k, f);
	k->dropped_absent += !there;
	rt_mutex_unlock(&k->lock);
	return there;
}

/* The daemon may look when the thread does something that shows it, or not. */
static bool on_gone_on(void *owner, uint32_t thread, struct kcache_seen *seen)
{
	const struct kernel_model *k = (const struct kernel_model *)owner;

	(void)seen;
	for (unsigned i = 0; i < TASKS; i++)
		if (k->taking[i] == thread)
			return false;
	return pick(4);
}

static void on_expire_name(void *owner, uint64_t dir, struct ops_name name)
{
	struct kernel_model *k = (struct kernel_model *)owner;
	unsigned i = name.bytes[0] == 'l' && name.len == 2 ? (unsigned)name.bytes[1] - '0'
							   : LINKS;

	(void)dir;
	rt_mutex_lock(&k->dir);
	rt_sleep_ns(pick(2000));
	rt_mutex_lock(&k->lock);
	if (i < LINKS && k->name[i])
		k->name[i]->known = false;
	k->dir_known = false;
	k->expired++;
	rt_mutex_unlock(&k->lock);
	rt_mutex_unlock(&k->dir);
}

enum kcache_walk kernel_walks(void *owner, uint32_t thread)
{
	const struct kernel_model *k = (const struct kernel_model *)owner;

	for (unsigned i = 0; i < TASKS; i++)
		if (k->walking[i] == thread)
			return KCACHE_WALK_INTO;
		else if (k->locking[i] == thread)
			return KCACHE_WALK_NONE;
	return KCACHE_WALK_UNKNOWN;
}

/* No directory moves in these tests. */
static int on_look(void *owner, const struct ops_attr *dir, struct ops_name name)
{
	(void)owner;
	(void)dir;
	(void)name;
	return -ENOSYS;
}

static bool on_is_own(void *owner, uint32_t thread)
{
	(void)owner;
	(void)thread;
	return false;
}

const struct kcache_ops kernel_ops = {
	.tell_size = on_tell_size,
	.drop_pages = on_drop_pages,
	.drop_waits = kernel_drop_waits,
	.drop_attributes = on_drop_attributes,
	.expire_name = on_expire_name,
	.walks = kernel_walks,
	.look = on_look,
	.is_own = on_is_own,
	.returned = on_gone_on,
};

/* ---- pages --------------------------------------------------------------------------------- */

int kernel_answer(void *arg, const struct iovec *iov, unsigned count, size_t total)
{
	struct kernel_request *r = (struct kernel_request *)arg;
	uint64_t word = 0;

	r->got = total;
	for (unsigned i = 0; i < count; i++) {
		const uint64_t *at = (const uint64_t *)iov[i].iov_base;

		HOLDS(iov[i].iov_len == PAGE_SIZE);
		word = at[0];
		for (unsigned w = 0; w < PAGE_SIZE / 8; w++)
			EQ(at[w], word); /* a page is one write's */
		r->word[i] = word;
	}
	return (int)total;
}

static void kernel_take_in(struct kernel_model *k, struct kernel_request *r)
{
	struct kernel_file *f = &k->file[r->file];

	for (unsigned i = 0; i < r->count; i++) {
		struct kernel_page *p = &f->page[r->first + i];

		p->word = i * PAGE_SIZE < r->got ? r->word[i] : WORD_HOLE;
		p->good = true;
		p->locked = false;
	}
	if (r->got < r->count * PAGE_SIZE && f->version <= r->version && !f->sets_size)
		f->size = MIN(f->size, r->first * PAGE_SIZE + r->got);
	r->done = true;
	rt_cond_broadcast(&k->changed);
}

void kernel_main(void *arg)
{
	struct kernel_model *k = (struct kernel_model *)arg;

	rt_mutex_lock(&k->lock);
	while (!k->stopping || k->answers) {
		struct kernel_request *r = k->answers;

		if (!r) {
			rt_cond_wait(&k->answered, &k->lock, RT_FOREVER);
			continue;
		}
		k->answers = r->next;
		rt_mutex_unlock(&k->lock);
		rt_sleep_ns(pick(3) ? pick(2000) : pick(100000));
		rt_mutex_lock(&k->lock);
		kernel_take_in(k, r);
	}
	rt_mutex_unlock(&k->lock);
}

struct kernel_asking {
	struct kernel_model *k;
	struct kernel_request *r;
};

/* Called while the pages are latched: from here on the daemon is out of it. */
static int kernel_sink(void *arg, const struct iovec *iov, unsigned count, size_t total)
{
	struct kernel_asking *a = (struct kernel_asking *)arg;

	kernel_answer(a->r, iov, count, total);
	rt_mutex_lock(&a->k->lock);
	a->r->next = a->k->answers;
	a->k->answers = a->r;
	rt_mutex_unlock(&a->k->lock);
	rt_cond_broadcast(&a->k->answered);
	return (int)total;
}

static void kernel_unlock_pages(struct kernel_model *k, const struct kernel_request *r)
{
	for (unsigned i = 0; i < r->count; i++)
		k->file[r->file].page[r->first + i].locked = false;
	rt_cond_broadcast(&k->changed);
}

/* Under the lock: asks for the page, and for some that follow. */
static int kernel_ask_some(
	struct kernel_model *k, unsigned file, unsigned block, unsigned most)
{
	struct kernel_file *f = &k->file[file];
	struct kernel_request r = {.file = file, .first = block, .version = k->version};
	struct kernel_asking a = {k, &r};
	int rc;

	while (r.count < most && block + r.count < BLOCKS) {
		struct kernel_page *p = &f->page[block + r.count];

		if (p->locked || p->good)
			break;
		p->locked = true;
		r.count++;
	}
	k->reads_asked++;
	rt_mutex_unlock(&k->lock);
	rc = ops_read_kept(k->n->fs, k->open[file], block * PAGE_SIZE,
		r.count * PAGE_SIZE, kernel_sink, &a);
	rt_mutex_lock(&k->lock);
	if (rc < 0)
		kernel_unlock_pages(k, &r);
	while (rc >= 0 && !r.done)
		rt_cond_wait(&k->changed, &k->lock, RT_FOREVER);
	return rc;
}

/* False: there is nothing to map behind the end. */
static bool kernel_ask_pages(struct kernel_model *k, unsigned file, unsigned block)
{
	int rc = kernel_ask_some(k, file, block, 1 + pick(4));
	const struct kernel_page *p = &k->file[file].page[block];

	if (rc == -EBUSY && !p->locked && !p->good) /* for the one that is needed, then */
		rc = kernel_ask_some(k, file, block, 1);
	HOLDS(rc >= 0 || (kernel_stores && (rc == -EIO || rc == -EBUSY)));
	return rc != -EIO;
}

/* ---- attributes ------------------------------------------------------------------------------ */

uint32_t kernel_thread(const struct kernel_model *k)
{
	return k->processes * 1000 + rt_task_index() + 1;
}

void kernel_heard(struct kernel_model *k)
{
	kcache_heard(fs_kcache(k->n->fs), kernel_thread(k));
}

/* A moment after the answer. False: dropped since they were asked for, so not taken in. */
static bool kernel_take_attributes(struct kernel_model *k, struct kernel_file *f,
	const struct ops_attr *a, bool keep, uint64_t version)
{
	bool stale;

	rt_sleep_ns(pick(3) ? pick(2000) : pick(100000));
	rt_mutex_lock(&k->lock);
	stale = f->version > version;
	if (!stale) {
		f->known = keep;
		f->size = a->inode.size;
		for (unsigned i = 0; i < BLOCKS; i++) /* those behind the new end */
			if (i * PAGE_SIZE >= f->size && !f->page[i].locked)
				kernel_page_gone(k, &f->page[i]);
	}
	rt_mutex_unlock(&k->lock);
	return !stale;
}

uint64_t kernel_ask_stat(struct kernel_model *k, unsigned file, bool *stale)
{
	struct kernel_file *f = &k->file[file];
	struct ops_attr a;
	uint64_t version, size;
	bool keep;

	*stale = false;
	rt_mutex_lock(&k->lock);
	k->stats++;
	if (f->known) {
		size = f->size;
		rt_mutex_unlock(&k->lock);
		return size;
	}
	version = k->version;
	k->stats_asked++;
	rt_mutex_unlock(&k->lock);
	kernel_heard(k);
	OK(ops_getattr_kept(k->n->fs, f->ino, kernel_thread(k), &a, &keep));
	*stale = !kernel_take_attributes(k, f, &a, keep, version);
	return a.inode.size;
}

void kernel_forget_attributes(struct kernel_model *k, unsigned file)
{
	rt_mutex_lock(&k->lock);
	k->file[file].known = false;
	rt_mutex_unlock(&k->lock);
	kcache_resized(fs_kcache(k->n->fs), k->file[file].ino);
}

/* The inode comes with a name: the thread uses it from here on. */
static void kernel_take_inode(struct kernel_model *k, struct kernel_file *f,
	const struct ops_attr *a, bool keep, uint64_t evictions)
{
	rt_mutex_lock(&k->lock);
	f->used++;
	if (f->absent) {
		f->absent = false;
		f->known = keep && evictions == k->evictions;
		f->size = a->inode.size;
		f->version = ++k->version;
	}
	rt_mutex_unlock(&k->lock);
}

void kernel_let_go(struct kernel_model *k, struct kernel_file *f)
{
	rt_mutex_lock(&k->lock);
	f->used--;
	rt_mutex_unlock(&k->lock);
}

void kernel_evict(struct kernel_model *k, struct kernel_file *f)
{
	bool evicts;

	rt_mutex_lock(&k->lock);
	evicts = !f->used && !f->absent;
	if (evicts) {
		f->absent = true;
		f->known = false;
		k->evictions++;
		k->evicted++;
	}
	rt_mutex_unlock(&k->lock);
	if (!evicts)
		return;
	rt_sleep_ns(pick(3) ? pick(2000) : pick(100000));
	ops_forget(k->n->fs, f->ino);
}

/* The same, by who has made it: not compared with what is there by then. */
static void kernel_take_made(struct kernel_model *k, struct kernel_file *f,
	const struct ops_attr *a, bool keep)
{
	rt_mutex_lock(&k->lock);
	f->used++;
	f->absent = false;
	f->known = keep;
	f->size = a->inode.size;
	f->version = ++k->version;
	f->making--;
	rt_mutex_unlock(&k->lock);
}

void kernel_await_made(struct kernel_model *k, unsigned file)
{
	rt_mutex_lock(&k->lock);
	while (k->file[file].making) {
		rt_mutex_unlock(&k->lock);
		rt_sleep_ns(1000);
		rt_mutex_lock(&k->lock);
	}
	rt_mutex_unlock(&k->lock);
}

/* What the daemon says to LOOKUP, or (`made`) to CREATE, as if it had just made the file. True:
 * to be kept. */
static bool kernel_named(struct kernel_model *k, uint64_t dir, unsigned file, bool made,
	struct ops_attr *a, struct kcache_named *named)
{
	uint32_t thread = kernel_thread(k);
	struct kcache_looked looked;
	char text[8];
	bool keep;

	if (made) {
		OK(ops_getattr(k->n->fs, k->file[file].ino, a));
		keep = kcache_made(fs_kcache(k->n->fs), thread, a, named);
	} else {
		snprintf(text, sizeof(text), "f%u", file);
		OK(ops_lookup_kept(k->n->fs, dir, (struct ops_name){text, strlen(text)},
			a, &looked));
		keep = kcache_named(fs_kcache(k->n->fs), dir, thread, a, &looked, named);
	}
	if (!keep)
		kcache_told(fs_kcache(k->n->fs), thread, a);
	return keep;
}

uint64_t kernel_find(struct kernel_model *k, uint64_t dir, unsigned file, bool may_make)
{
	struct kernel_file *f = &k->file[file];
	uint32_t thread = kernel_thread(k), *taking = &k->taking[rt_task_index() % TASKS];
	struct kcache_named named;
	struct ops_attr a;
	uint64_t version, evictions;
	bool keep, there, made;

	rt_mutex_lock(&k->lock);
	version = k->version;
	evictions = k->evictions;
	k->finds++;
	made = may_make && f->absent && pick(2);
	f->making += made;
	rt_mutex_unlock(&k->lock);
	kernel_heard(k);
	keep = kernel_named(k, dir, file, made, &a, &named);
	rt_sleep_ns(
		pick(3) ? pick(2000) : pick(50000)); /* until the daemon has said it */
	HOLDS(!*taking);
	*taking = thread;
	if (keep)
		kcache_named_told(fs_kcache(k->n->fs), &named, true);
	keep = keep && named.attributes;
	k->finds_kept += keep;
	rt_sleep_ns(pick(3) ? pick(2000) : pick(100000));
	k->makes_kept += keep && made;
	rt_mutex_lock(&k->lock);
	there = !f->absent && !made;
	f->used += there;
	rt_mutex_unlock(&k->lock);
	if (made)
		kernel_take_made(k, f, &a, keep);
	else if (there)
		kernel_take_attributes(k, f, &a, keep, version);
	else
		kernel_take_inode(k, f, &a, keep, evictions);
	*taking = 0;
	return a.inode.size;
}

uint64_t kernel_stat(struct kernel_model *k, unsigned file)
{
	bool stale;

	return kernel_ask_stat(k, file, &stale);
}

uint64_t kernel_read_block(struct kernel_model *k, unsigned file, unsigned block)
{
	struct kernel_file *f = &k->file[file];
	struct kernel_page *p = &f->page[block];
	bool stale = true, maps = kernel_stores || pick(2);
	uint64_t word;

	/* Linux asks once, and goes on with the size that it had: docs/nodes/sizes.md */
	while (stale)
		(void)kernel_ask_stat(k, file, &stale);
	rt_mutex_lock(&k->lock);
	k->reads++;
	for (;;) {
		if (block * PAGE_SIZE >= f->size) {
			word = WORD_END;
			break;
		}
		if (maps && p->loaded) {
			word = p->is;
			break;
		}
		if (p->locked) {
			rt_cond_wait(&k->changed, &k->lock, RT_FOREVER);
		} else if (!p->good) {
			if (kernel_ask_pages(k, file, block))
				continue;
			word = WORD_END;
			break;
		} else {
			word = p->word;
			break;
		}
	}
	if (maps && !p->loaded && p->good) {
		p->mapped = p->loaded = true;
		p->earlier = false;
		p->is = p->word;
	}
	rt_mutex_unlock(&k->lock);
	return word;
}

bool kernel_store(struct kernel_model *k, unsigned file, unsigned block, uint64_t word)
{
	struct kernel_page *p = &k->file[file].page[block];
	bool has = true;

	rt_mutex_lock(&k->lock);
	while (has && (p->locked || !p->good)) {
		if (p->locked)
			rt_cond_wait(&k->changed, &k->lock, RT_FOREVER);
		else
			has = kernel_ask_pages(k, file, block);
	}
	if (has) {
		HOLDS(!p->loaded || !p->earlier);
		p->word = p->is = word;
		p->dirty = p->mapped = p->loaded = true;
		p->earlier = false;
	}
	rt_mutex_unlock(&k->lock);
	return has;
}

/* ---- names -------- */

struct ops_name kernel_link_name(char out[8], unsigned i)
{
	snprintf(out, 8, "l%u", i);
	return (struct ops_name){out, strlen(out)};
}

void kernel_enter(struct kernel_model *k, uint64_t dir, bool locked)
{
	uint32_t *asks = &(locked ? k->locking : k->walking)[rt_task_index() % TASKS];
	struct ops_attr a;
	uint64_t version;
	bool keep, known;

	rt_mutex_lock(&k->lock);
	known = k->dir_known;
	version = k->version;
	rt_mutex_unlock(&k->lock);
	if (known)
		return;
	HOLDS(!*asks);
	*asks = kernel_thread(k);
	kernel_heard(k);
	OK(ops_getattr_kept(k->n->fs, dir, kernel_thread(k), &a, &keep));
	*asks = 0;
	rt_sleep_ns(pick(3) ? pick(2000) : pick(100000));
	rt_mutex_lock(&k->lock);
	if (k->dir_version <= version)
		k->dir_known = keep;
	rt_mutex_unlock(&k->lock);
}

/* Under the lock: a new dentry of the name. */
static void kernel_name_set(struct kernel_model *k, unsigned i, bool known, uint64_t ino)
{
	struct kernel_name *e = &k->dentry[k->dentries++ % DENTRIES];

	*e = (struct kernel_name){known, ino};
	k->name[i] = e;
}

/* LOOKUP: the inode, or 0; *keep. */
static uint64_t kernel_ask_name(
	struct kernel_model *k, uint64_t dir, unsigned i, bool *keep)
{
	uint32_t thread = kernel_thread(k), *taking = &k->taking[rt_task_index() % TASKS];
	struct kcache_looked looked;
	struct kcache_named named;
	struct ops_attr a;
	bool noted = false;
	char text[8];
	int rc;

	kernel_heard(k);
	rc = ops_lookup_kept(k->n->fs, dir, kernel_link_name(text, i), &a, &looked);
	HOLDS(rc == 0 || rc == -ENOENT);
	if (rc)
		*keep = kcache_absent(
			fs_kcache(k->n->fs), dir, kernel_link_name(text, i), &looked);
	else
		noted = kcache_named(
			fs_kcache(k->n->fs), dir, thread, &a, &looked, &named);
	if (!rc)
		*keep = noted && named.name;
	rt_sleep_ns(
		pick(3) ? pick(2000) : pick(50000)); /* until the daemon has said it */
	HOLDS(!*taking);
	*taking = thread;
	if (noted)
		kcache_named_told(fs_kcache(k->n->fs), &named, true);
	rt_sleep_ns(pick(3) ? pick(2000) : pick(100000));
	return rc ? 0 : a.ino;
}

/* One that is there is asked for again without the directory's lock; one that is not, with it. */
static uint64_t kernel_look_again(
	struct kernel_model *k, uint64_t dir, unsigned i, struct kernel_name *e)
{
	bool again = e && e->ino, keep;
	uint64_t ino;

	if (!again)
		rt_mutex_lock(&k->dir);
	ino = kernel_ask_name(k, dir, i, &keep);
	rt_mutex_lock(&k->lock);
	if (!again)
		kernel_name_set(k, i, keep, ino);
	else if (e->ino == ino)
		e->known = keep;
	else if (k->name[i] == e)
		k->name[i] = NULL;
	k->taking[rt_task_index() % TASKS] = 0;
	rt_mutex_unlock(&k->lock);
	if (!again)
		rt_mutex_unlock(&k->dir);
	return ino;
}

uint64_t kernel_look(struct kernel_model *k, uint64_t dir, unsigned i)
{
	struct kernel_name *e;

	kernel_enter(k, dir, false);
	if (pick(4) == 0)
		rt_sleep_ns(pick(20000));
	rt_mutex_lock(&k->lock);
	k->looks++;
	e = k->name[i];
	if (e && e->known) {
		uint64_t ino = e->ino;

		rt_mutex_unlock(&k->lock);
		return ino;
	}
	k->looks_asked++;
	rt_mutex_unlock(&k->lock);
	return kernel_look_again(k, dir, i, e);
}
