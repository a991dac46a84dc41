/* SPDX-License-Identifier: Apache-2.0 */
/*
 * OPS_MMAP_LOCAL: what programs have stored through mappings, while the kernel writes it back and it
 * is brought into the file (docs/many-nodes.md, "Mappings for one node"). For that other nodes are
 * waited for, who may be waiting for the kernel to be rid of the same pages, which it is only when
 * its WRITE is answered.
 *
 * Keeps: a WRITE is answered as soon as somebody waits for a drop of its pages, or it has waited for
 * ANSWER_NS; what it brought stays listed until it is in the file, and till then no READ for the
 * kernel's cache is answered without it, nor does a call here that reads, changes or syncs the file
 * go on. Those of a page are brought in in their order. Setting a size waits for none of them.
 */
#include "fs/ops/kernel_internal.h"

#define ANSWER_NS 1000000000ull
#define LOOK_NS   100000000ull /* so often who waits looks whether it is still wanted */

/* Under the lock. */
static bool store_due(const struct kernel *k, const struct kernel_store *s, uint64_t now)
{
	const struct kernel_change *c = &s->change;

	return now >= s->since_ns + ANSWER_NS ||
	       kernel_dropping(k, c->ino, c->first, c->end);
}

/* Under the lock. NULL: none is due; *until_ns: look again then. */
static struct kernel_store *store_to_answer(struct kernel *k, uint64_t *until_ns)
{
	uint64_t now = rt_now_ns();

	*until_ns = RT_FOREVER;
	for (struct kernel_store *s = k->stores; s; s = s->next) {
		if (s->answered || !s->compared)
			continue;
		if (store_due(k, s, now))
			return s;
		*until_ns = MIN(*until_ns, s->since_ns + ANSWER_NS);
	}
	return NULL;
}

static void answer_main(void *arg)
{
	struct kernel *k = arg;

	rt_mutex_lock(&k->lock);
	while (!k->stopping) {
		uint64_t until_ns;
		struct kernel_store *s = store_to_answer(k, &until_ns);

		if (!s) {
			(void)rt_cond_wait(&k->late, &k->lock, until_ns);
			continue;
		}
		s->answered = s->answering = true;
		rt_mutex_unlock(&k->lock);
		s->answer(s->arg);
		rt_mutex_lock(&k->lock);
		s->answering = false;
		rt_cond_broadcast(&k->changed);
	}
	rt_mutex_unlock(&k->lock);
}

int kernel_stores_start(struct kernel *k)
{
	if (k->fs->options.mmap != OPS_MMAP_LOCAL)
		return 0;
	return rt_task_spawn(&k->answering, "weft-stores", answer_main, k);
}

/* Nobody writes anything back any more. */
void kernel_stores_stop(struct kernel *k)
{
	WEFT_ASSERT(!k->stores);
	if (!k->answering)
		return;
	rt_cond_broadcast(&k->late);
	rt_task_join(k->answering);
	k->answering = NULL;
}

/* ---- one of them ----------------------------------------------------------------------- */

/*
 * Under the lock: those that began before, and have the same blocks. Where `was` is NULL they stay until
 * this is called again, with it: their bytes, which may not be in the file yet, are laid over it.
 */
static void stores_before(
	const struct kernel *k, const struct kernel_store *s, uint8_t *was)
{
	uint64_t first = s->change.first * PAGE_SIZE, end = s->change.end * PAGE_SIZE;

	for (struct kernel_store *e = k->stores; e != s; e = e->next) {
		uint64_t from = MAX(first, e->offset), to = MIN(end, e->offset + e->len);

		if (e->change.ino != s->change.ino || from >= to)
			continue;
		if (was) {
			memcpy(was + (from - first), e->bytes + (from - e->offset),
				to - from);
			e->needed--;
		} else {
			e->needed++;
		}
	}
}

/* What the kernel was given, which this node has as long as the kernel has it. */
static void copies_take(struct fs *fs, const struct kernel_change *c, uint8_t *was)
{
	for (uint64_t block = c->first; block < c->end; block++, was += PAGE_SIZE)
		if (!cache_copied(fs->volume->cache, c->ino, block, was))
			memset(was, 0, PAGE_SIZE);
}

void kernel_store_begin(
	struct fs *fs, struct kernel_store *s, struct inode_state *st, uint8_t *was)
{
	struct kernel *k = fs->kernel;

	s->change = (struct kernel_change){.st = st,
		.ino = st->ino,
		.first = s->offset / PAGE_SIZE,
		.end = DIV_UP(s->offset + s->len, (uint64_t)PAGE_SIZE)};
	s->since_ns = rt_now_ns();
	s->cut = UINT64_MAX;
	rt_mutex_lock(&k->lock);
	kernel_change_list(k, &s->change);
	s->number = k->store_number++;
	*k->stores_end = s;
	k->stores_end = &s->next;
	stores_before(k, s, NULL);
	rt_mutex_unlock(&k->lock);
	copies_take(fs, &s->change, was);
	rt_mutex_lock(&k->lock);
	stores_before(k, s, was);
	s->compared = true;
	rt_mutex_unlock(&k->lock);
	rt_cond_broadcast(&k->changed);
	rt_cond_signal(&k->late);
}

/* Under the lock: is one of these blocks listed, of those before that number? Inode 0: of any. */
static bool stores_of(const struct kernel *k, uint64_t before, uint64_t ino,
	uint64_t first, uint64_t end)
{
	const struct kernel_store *s = k->stores;

	while (s && s->number < before &&
		((ino && s->change.ino != ino) || s->change.first >= end ||
			first >= s->change.end))
		s = s->next;
	return s && s->number < before;
}

/* Under the lock, which it lets go of, until there is none. */
static int others_await(
	struct kernel *k, uint64_t before, uint64_t ino, uint64_t first, uint64_t end)
{
	int e = 0;

	while (!e && stores_of(k, before, ino, first, end)) {
		(void)rt_cond_wait(&k->changed, &k->lock, rt_now_ns() + LOOK_NS);
		e = rt_task_unwanted() ? -EINTR : 0;
	}
	return e;
}

int kernel_store_turn(struct fs *fs, struct kernel_store *s)
{
	const struct kernel_change *c = &s->change;
	struct kernel *k = fs->kernel;
	int e;

	rt_mutex_lock(&k->lock);
	e = others_await(k, s->number, c->ino, c->first, c->end);
	rt_mutex_unlock(&k->lock);
	return e;
}

void kernel_store_drop(struct fs *fs, struct kernel_store *s, uint64_t block)
{
	kernel_drop(fs->kernel, s->change.ino, block, block + 1);
}

uint64_t kernel_store_limit(struct fs *fs, struct kernel_store *s)
{
	struct kernel *k = fs->kernel;
	uint64_t limit;

	rt_mutex_lock(&k->lock);
	limit = s->cut;
	rt_mutex_unlock(&k->lock);
	return limit;
}

bool kernel_store_end(struct fs *fs, struct kernel_store *s)
{
	struct kernel *k = fs->kernel;
	struct kernel_store **at = &k->stores;
	bool answered;

	rt_mutex_lock(&k->lock);
	while (s->answering || s->needed)
		(void)rt_cond_wait(&k->changed, &k->lock, RT_FOREVER);
	while (*at != s)
		at = &(*at)->next;
	*at = s->next;
	if (!*at)
		k->stores_end = at;
	answered = s->answered;
	kernel_change_unlist(k, &s->change);
	rt_mutex_unlock(&k->lock);
	rt_cond_broadcast(&k->changed);
	return answered;
}

/* ---- who needs them --------------------------------------------------------------------- */

int kernel_stores_await(struct fs *fs, const struct inode_state *st)
{
	struct kernel *k = fs->kernel;
	int e;

	if (fs->options.mmap != OPS_MMAP_LOCAL || !k ||
		(st && !atomic_load_explicit(&st->storing, memory_order_acquire)))
		return 0;
	rt_mutex_lock(&k->lock);
	e = others_await(k, k->store_number, st ? st->ino : 0, 0, UINT64_MAX);
	rt_mutex_unlock(&k->lock);
	return e;
}

void kernel_stores_cut(struct fs *fs, uint64_t ino, uint64_t size)
{
	struct kernel *k = fs->kernel;

	if (fs->options.mmap != OPS_MMAP_LOCAL || !k)
		return;
	rt_mutex_lock(&k->lock);
	for (struct kernel_store *s = k->stores; s; s = s->next)
		if (s->change.ino == ino)
			s->cut = MIN(s->cut, size);
	rt_mutex_unlock(&k->lock);
}
