/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Handles for a caller that does not tell which files it has open (docs/design.md, "Hidden
 * opens").
 *
 * A request borrows the handle of its inode and gives it back. The first request opens it. It
 * stays open between requests, so that read-ahead, pages reserved ahead and times are kept, as
 * between the requests of one open file. It is closed:
 *
 * - when the kernel has forgotten the inode,
 * - when no request has used it for IDLE_NS,
 * - when its place is needed for another inode.
 *
 * A task closes it in the last two cases. If a read would move the access time then, the task has
 * the kernel drop the first page of the file. So the next program that reads the file from its
 * beginning makes a request, which moves the access time.
 *
 * Keeps: memory is bounded (invariant 10): PARTS * PLACES handles, CLOSING_MAX for the task to
 * close, and one for each request that finds no place. A handle says nothing about the life of an
 * inode without links: that ends with its forget (orphan.c).
 *
 * Order of locks: `lock` of a part, a stripe of the table of files. No task waits under it.
 */
#include "fs/ops/data_internal.h"

#define PARTS   64u
#define PLACES  8u
#define IDLE_NS 1000000000ull
/* More handles than these are closed by the request that needs the place. */
#define CLOSING_MAX 4096u

struct place_held {
	struct ops_file *file; /* NULL: free */
	uint64_t ino, used_ns;
	unsigned users;
	bool forgotten; /* close it when it is given back */
};

struct part {
	struct rt_mutex lock;
	struct place_held place[PLACES]; /* under the lock */
} __attribute__((aligned(CACHE_LINE)));

struct borrowed {
	struct fs *fs;
	struct rt_task *task;
	_Atomic unsigned held; /* number of places in use */
	ops_drop_first drop_first;
	void *owner;
	struct rt_mutex lock; /* for all below; a leaf */
	struct rt_cond work;
	struct ops_file *closing; /* for the task */
	unsigned closing_count;
	bool stopping;
	struct part part[PARTS];
};

static struct part *part_of(struct borrowed *b, uint64_t ino)
{
	return &b->part[(ino * 0x9e3779b97f4a7c15ull) >> 58];
}
_Static_assert(PARTS == 1u << (64 - 58), "the hash names a part");

/* Returns the inode's place, or NULL. Under the lock. */
static struct place_held *place_of(struct part *p, uint64_t ino)
{
	for (unsigned i = 0; i < PLACES; i++)
		if (p->place[i].file && p->place[i].ino == ino)
			return &p->place[i];
	return NULL;
}

/* Empties the place. Returns its handle, which the caller closes without the lock. */
static struct ops_file *place_empty(struct borrowed *b, struct place_held *at)
{
	struct ops_file *file = at->file;

	*at = (struct place_held){.file = NULL};
	atomic_fetch_sub_explicit(&b->held, 1, memory_order_relaxed);
	return file;
}

/* Returns a free place, or the one whose handle was not used for longest; NULL: all are in use.
 * Under the lock. */
static struct place_held *place_choose(struct part *p)
{
	struct place_held *best = NULL;

	for (unsigned i = 0; i < PLACES; i++) {
		struct place_held *at = &p->place[i];

		if (!at->file)
			return at;
		if (at->users == 0 && (!best || at->used_ns < best->used_ns))
			best = at;
	}
	return best;
}

/* Has the task close the handle, soon. Waits if the task has too many. */
static void close_later(struct borrowed *b, struct ops_file *file)
{
	bool taken;

	rt_mutex_lock(&b->lock);
	taken = b->closing_count < CLOSING_MAX;
	if (taken) {
		file->closing = b->closing;
		b->closing = file;
		if (b->closing_count++ == 0)
			rt_cond_signal(&b->work);
	}
	rt_mutex_unlock(&b->lock);
	if (!taken)
		ops_close(b->fs, file);
}

/* Wakes the task for the first handle. */
static void count_held(struct borrowed *b)
{
	if (atomic_fetch_add_explicit(&b->held, 1, memory_order_relaxed) > 0)
		return;
	rt_mutex_lock(&b->lock);
	rt_cond_signal(&b->work);
	rt_mutex_unlock(&b->lock);
}

/* Gives the new handle a place, with `users` users. If another task has opened the inode meanwhile,
 * returns its handle. Waits. */
static struct ops_file *hold_file(
	struct fs *fs, uint64_t ino, struct ops_file *file, unsigned users)
{
	struct borrowed *b = fs_borrowed(fs);
	struct part *p = part_of(b, ino);
	struct ops_file *old = NULL, *use = file;
	struct place_held *at;
	bool added = false;

	rt_mutex_lock(&p->lock);
	at = place_of(p, ino);
	if (at) {
		use = at->file;
		at->users += users;
	} else if ((at = place_choose(p))) {
		if (at->file)
			old = place_empty(b, at);
		*at = (struct place_held){
			.file = file, .ino = ino, .used_ns = rt_now_ns(), .users = users};
		added = true;
	}
	rt_mutex_unlock(&p->lock);
	if (added)
		count_held(b);
	if (old)
		close_later(b, old);
	if (use != file || (!at && users == 0))
		ops_close(fs, file);
	return use;
}

int ops_borrow(struct fs *fs, uint64_t ino, struct ops_file **out)
{
	struct part *p = part_of(fs_borrowed(fs), ino);
	struct ops_file *file = NULL;
	struct place_held *at;
	int rc;

	rt_mutex_lock(&p->lock);
	at = place_of(p, ino);
	if (at) {
		at->users++;
		file = at->file;
	}
	rt_mutex_unlock(&p->lock);
	if (!file) {
		rc = file_open_hidden(fs, ino, &file);
		if (rc < 0)
			return rc;
		file = hold_file(fs, ino, file, 1);
	}
	*out = file;
	return 0;
}

void ops_give_back(struct fs *fs, uint64_t ino, struct ops_file *file)
{
	struct borrowed *b = fs_borrowed(fs);
	struct part *p = part_of(b, ino);
	struct place_held *at;
	bool closes = true;

	rt_mutex_lock(&p->lock);
	at = place_of(p, ino);
	if (at && at->file == file) {
		at->used_ns = rt_now_ns();
		closes = --at->users == 0 && at->forgotten;
		if (closes)
			(void)place_empty(b, at);
	}
	rt_mutex_unlock(&p->lock);
	if (closes)
		ops_close(fs, file);
}

void ops_touch(struct fs *fs, uint64_t ino)
{
	struct ops_file *file;

	if (ops_borrow(fs, ino, &file) == 0)
		ops_give_back(fs, ino, file);
}

void ops_hand_over(struct fs *fs, uint64_t ino, struct ops_file *file)
{
	(void)hold_file(fs, ino, file, 0);
}

void borrowed_forget(struct fs *fs, uint64_t ino)
{
	struct borrowed *b = fs_borrowed(fs);
	struct ops_file *file = NULL;
	struct place_held *at;
	struct part *p;

	if (!b)
		return;
	p = part_of(b, ino);
	rt_mutex_lock(&p->lock);
	at = place_of(p, ino);
	if (at && at->users == 0)
		file = place_empty(b, at);
	else if (at)
		at->forgotten = true;
	rt_mutex_unlock(&p->lock);
	if (file)
		ops_close(fs, file);
}

/* Closes a handle that no request uses. Waits, also for the kernel. */
static void close_idle(struct borrowed *b, struct ops_file *file)
{
	if (file_atime_due(b->fs, file))
		b->drop_first(b->owner, ops_file_ino(file));
	ops_close(b->fs, file);
}

/* Closes the handles that no request has used since `before_ns`. */
static void close_unused(struct borrowed *b, uint64_t before_ns)
{
	for (unsigned i = 0; i < PARTS * PLACES; i++) {
		struct part *p = &b->part[i / PLACES];
		struct place_held *at = &p->place[i % PLACES];
		struct ops_file *file = NULL;

		rt_mutex_lock(&p->lock);
		if (at->file && at->users == 0 && at->used_ns <= before_ns)
			file = place_empty(b, at);
		rt_mutex_unlock(&p->lock);
		if (file)
			close_idle(b, file);
	}
}

/* Closes the handles whose places were needed. Under the lock, which it releases meanwhile. */
static void close_listed(struct borrowed *b)
{
	struct ops_file *file, *next = b->closing;

	b->closing = NULL;
	b->closing_count = 0;
	rt_mutex_unlock(&b->lock);
	while ((file = next)) {
		next = file->closing;
		close_idle(b, file);
	}
	rt_mutex_lock(&b->lock);
}

static void borrowed_main(void *arg)
{
	struct borrowed *b = arg;
	uint64_t look_ns = rt_now_ns();

	rt_mutex_lock(&b->lock);
	while (!b->stopping || b->closing) {
		bool held = atomic_load_explicit(&b->held, memory_order_relaxed) > 0;

		if (b->closing) {
			close_listed(b);
		} else if (held && rt_now_ns() >= look_ns) {
			rt_mutex_unlock(&b->lock);
			close_unused(b, rt_now_ns() - IDLE_NS);
			look_ns = rt_now_ns() + IDLE_NS;
			rt_mutex_lock(&b->lock);
		} else {
			rt_cond_wait(&b->work, &b->lock, held ? look_ns : RT_FOREVER);
		}
	}
	rt_mutex_unlock(&b->lock);
}

void borrowed_settle(struct fs *fs)
{
	struct borrowed *b = fs_borrowed(fs);

	for (unsigned i = 0; b && i < PARTS * PLACES; i++) {
		struct part *p = &b->part[i / PLACES];
		struct place_held *at = &p->place[i % PLACES];
		struct inode_state *st = NULL;

		rt_mutex_lock(&p->lock);
		if (at->file && at->users == 0)
			st = state_find(fs, at->ino);
		rt_mutex_unlock(&p->lock);
		if (!st)
			continue;
		ahead_release(fs, st);
		state_put(fs, st);
	}
}

int fs_hide_opens(struct fs *fs, ops_drop_first drop_first, void *owner)
{
	struct borrowed *b;
	int rc;

	WEFT_ASSERT(!fs_has_peers(fs) && fs->options.caller_forgets);
	b = rt_alloc(sizeof(*b));
	if (!b)
		return -ENOMEM;
	b->fs = fs;
	b->drop_first = drop_first;
	b->owner = owner;
	rc = rt_task_spawn(&b->task, "weft-idle-files", borrowed_main, b);
	if (rc)
		rt_free(b);
	else
		atomic_store_explicit(&fs->borrowed, b, memory_order_release);
	return rc;
}

void fs_opens_end(struct fs *fs)
{
	struct borrowed *b = fs_borrowed(fs);

	if (!b || !b->task)
		return;
	rt_mutex_lock(&b->lock);
	b->stopping = true;
	rt_cond_broadcast(&b->work);
	rt_mutex_unlock(&b->lock);
	rt_task_join(b->task);
	b->task = NULL;
}

void borrowed_close(struct fs *fs)
{
	struct borrowed *b = fs_borrowed(fs);

	if (!b)
		return;
	fs_opens_end(fs);
	for (unsigned i = 0; i < PARTS * PLACES; i++) {
		struct place_held *at = &b->part[i / PLACES].place[i % PLACES];

		WEFT_ASSERT(at->users == 0);
		if (at->file)
			ops_close(fs, place_empty(b, at));
	}
	while (b->closing) {
		struct ops_file *file = b->closing;

		b->closing = file->closing;
		ops_close(fs, file);
	}
	atomic_store_explicit(&fs->borrowed, NULL, memory_order_release);
	rt_free(b);
}
