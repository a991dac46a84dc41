/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The names that this kernel keeps, and their expiry (docs/nodes/names.md, "Names").
 *
 * Keeps: (5) when a leaf with names leaves this node, no path walk that begins later uses one of
 * its names without a request. First each directory of the leaf gets a gate. The kernel has no
 * attributes of the directory then, so each walk into it requests them, and the answer waits. A
 * task of this file then expires the names and opens the gate. It may have to wait for a call that
 * has the directory locked. Expiry does not invalidate a name, so mounts on it stay.
 *
 * Locks: `lock` is a leaf, and taken under kcache.lock.
 */
#include <dirent.h>
#include <errno.h>
#include <string.h>

#include "fs/kcache/kcache_internal.h"

#define LOOK_NS      200000ull     /* time that a walk waits before its thread is checked */
#define UNKNOWN_NS   1000000000ull /* time that a walk waits if its thread's state is unknown */
#define ABSENT_SHARE 64u           /* share of the cache's bytes: absent names that are noted */

/* An absent name that the kernel keeps. They are listed by age, and in a tree by their keys. */
struct absent {
	RB_ENTRY(absent) by_key;
	struct absent *next; /* of a list that has been taken */
	struct absent *older, *newer;
	uint64_t dir, hash, number;
	uint8_t len;
	char name[];
};

static int absent_compare(const struct absent *a, const struct absent *b)
{
	if (a->dir != b->dir)
		return a->dir < b->dir ? -1 : 1;
	if (a->hash != b->hash)
		return a->hash < b->hash ? -1 : 1;
	return a->number < b->number ? -1 : a->number > b->number;
}

RB_PROTOTYPE(absent_tree, absent, by_key, absent_compare)
RB_GENERATE(absent_tree, absent, by_key, absent_compare)

/* A leaf that has been given up. */
struct names_leaf {
	unsigned users; /* number of jobs */
	uint8_t image[PAGE_SIZE];
};

/* Names of one directory in one leaf that must expire. Each directory may make its task wait. */
struct names_job {
	struct names_job *next;
	struct kcache_gate gate;
	struct names_leaf *leaf;
};

static uint64_t key_ino(struct disk_key key)
{
	return key.high >> 8;
}

static unsigned key_type(struct disk_key key)
{
	return key.high & 0xff;
}

/* ---- gates (under the lock) ------------------------------------------------------------- */

static struct kcache_gate **gate_bucket(struct kcache_names *n, uint64_t dir)
{
	return &n->gates[kcache_ino_hash(dir) % GATE_BUCKETS];
}

static void gate_shut(struct kcache_names *n, struct kcache_gate *g, uint64_t dir)
{
	struct kcache_gate **head = gate_bucket(n, dir);

	*g = (struct kcache_gate){.next = *head, .dir = dir, .number = ++n->gate_number};
	*head = g;
	atomic_fetch_add(&n->gated, 1);
}

static void gate_open(struct kcache_names *n, struct kcache_gate *g)
{
	struct kcache_gate **at = gate_bucket(n, g->dir);

	while (*at != g)
		at = &(*at)->next;
	*at = g->next;
	g->dir = 0;
	atomic_fetch_sub(&n->gated, 1);
}

/* Returns true if the directory has a gate that was shut up to that number. */
static bool gate_before(struct kcache_names *n, uint64_t dir, uint64_t number)
{
	const struct kcache_gate *g = *gate_bucket(n, dir);

	while (g && (g->dir != dir || g->number > number))
		g = g->next;
	return g;
}

bool kcache_names_gated(struct kcache *k, uint64_t dir)
{
	struct kcache_names *n = &k->names;
	bool gated;

	if (likely(!atomic_load(&n->gated)))
		return false;
	rt_mutex_lock(&n->lock);
	gated = gate_before(n, dir, UINT64_MAX);
	rt_mutex_unlock(&n->lock);
	return gated;
}

/*
 * Waits for the gates that are shut when the walk arrives. A walk that began before a later gate
 * may use its results. If the thread has the directory locked, it is answered: names expire under
 * that lock.
 */
int kcache_gate_pass(struct kcache *k, uint64_t dir, uint32_t thread)
{
	struct kcache_names *n = &k->names;
	enum kcache_walk walk = KCACHE_WALK_UNKNOWN;
	uint64_t number, until, now;
	bool looked = false, own = false;
	int rc = 0;

	if (likely(!atomic_load(&n->gated)))
		return 0;
	rt_mutex_lock(&n->lock);
	number = n->gate_number;
	until = rt_now_ns() + LOOK_NS;
	while (!rc && gate_before(n, dir, number)) {
		now = rt_now_ns();
		if (now >= until && own) /* a look is tried again, or given up */
			rc = -EINTR;
		else if (now >= until && looked && walk == KCACHE_WALK_UNKNOWN)
			break;
		else if (now >= until && !looked) {
			rt_mutex_unlock(&n->lock);
			walk = k->ops->walks(k->owner, thread);
			own = walk != KCACHE_WALK_NONE &&
			      k->ops->is_own(k->owner, thread);
			rt_mutex_lock(&n->lock);
			looked = true;
			until = own || walk == KCACHE_WALK_UNKNOWN ? now + UNKNOWN_NS
								   : RT_FOREVER;
		} else if (looked && walk == KCACHE_WALK_NONE) {
			break;
		} else {
			rt_cond_wait(&n->opened, &n->lock, MIN(until, rt_task_asks_ns()));
			rc = rt_task_unwanted() ? -EINTR : 0;
		}
	}
	rt_mutex_unlock(&n->lock);
	return rc;
}

/* ---- absent names (under the lock) -------------------------------------------------------- */

static size_t absent_bytes(const struct absent *a)
{
	return sizeof(*a) + a->len;
}

static void absent_remove(struct kcache_names *n, struct absent *a)
{
	RB_REMOVE(absent_tree, &n->absent, a);
	*(a->older ? &a->older->newer : &n->oldest) = a->newer;
	*(a->newer ? &a->newer->older : &n->newest) = a->older;
	n->absent_bytes -= absent_bytes(a);
}

static void absent_add(struct kcache_names *n, struct absent *a)
{
	a->number = ++n->absent_number;
	a->older = n->newest;
	*(a->older ? &a->older->newer : &n->oldest) = a;
	n->newest = a;
	n->absent_bytes += absent_bytes(a);
	RB_INSERT(absent_tree, &n->absent, a);
}

/* Returns the first name of the directory in the range of keys, or NULL. */
static struct absent *absent_first(
	struct kcache_names *n, uint64_t dir, const struct tree_leaf_range *range)
{
	struct disk_key from = disk_key(dir, DISK_ITEM_ENTRY, 0);
	struct absent least = {.dir = dir}, *a;

	if (disk_key_compare(from, range->low) < 0)
		from = range->low;
	if (key_ino(from) != dir || key_type(from) != DISK_ITEM_ENTRY)
		return NULL;
	least.hash = from.low;
	a = RB_NFIND(absent_tree, &n->absent, &least);
	if (!a || a->dir != dir)
		return NULL;
	from.low = a->hash;
	return disk_key_compare(from, range->high) < 0 ? a : NULL;
}

/* Removes the names of the directory in the range of keys from the table, and returns them as a
 * list. */
static struct absent *absent_take(
	struct kcache_names *n, uint64_t dir, const struct tree_leaf_range *range)
{
	struct absent *a, *list = NULL;

	while ((a = absent_first(n, dir, range))) {
		absent_remove(n, a);
		a->next = list;
		list = a;
	}
	return list;
}

static struct absent *absent_take_oldest(struct kcache_names *n)
{
	struct absent *a = n->oldest;

	if (a)
		absent_remove(n, a);
	return a;
}

static bool absent_crowded(const struct kcache_names *n)
{
	return n->absent_bytes > n->absent_max - n->absent_max / 8;
}

/* ---- expiring ------------------------------------------------------------------------------- */

/*
 * Waits for an answer that gave the name to a thread, which may not have taken it in. If the name
 * expired before that, the answer would make it valid again. Only answers about names that the
 * kernel already has are taken in without the directory's lock.
 */
static void await_taken_in(struct kcache *k, uint64_t ino)
{
	uint64_t wait_ns = WAIT_FIRST_NS;
	bool taken_in, made;

	for (;;) {
		rt_mutex_lock(&k->lock);
		taken_in = known_taken_in(k, ino, &made);
		rt_mutex_unlock(&k->lock);
		if (taken_in || atomic_load(&k->gone))
			return;
		rt_sleep_ns(wait_ns);
		wait_ns = MIN(wait_ns * 2, WAIT_LAST_NS);
	}
}

static void name_expire(struct kcache *k, uint64_t dir, const char *name, size_t len)
{
	if (!atomic_load(&k->gone))
		k->ops->expire_name(k->owner, dir, (struct ops_name){name, len});
}

static void absent_expire(struct kcache *k, struct absent *list)
{
	while (list) {
		struct absent *a = list;

		list = a->next;
		name_expire(k, a->dir, a->name, a->len);
		rt_free(a);
	}
}

struct expiring {
	struct kcache *k;
	uint64_t dir;
};

static void expire_item(void *arg, struct disk_key key, const void *value, size_t len)
{
	const struct expiring *x = (const struct expiring *)arg;
	const struct disk_entry *e;
	size_t at = 0;
	int error;

	if (key_type(key) != DISK_ITEM_ENTRY || key_ino(key) != x->dir)
		return;
	while (disk_entry_step(value, len, &at, &e, &error)) {
		await_taken_in(x->k, e->ino);
		name_expire(x->k, x->dir, e->name, e->name_bytes);
		if (e->type == DT_DIR)
			kcache_dir_doubt(x->k, e->ino, x->dir);
	}
}

/* Under the lock. */
static void leaf_put(struct names_leaf *leaf)
{
	if (--leaf->users == 0)
		rt_free(leaf);
}

static void job_end(struct kcache_names *n, struct names_job *job)
{
	rt_mutex_lock(&n->lock);
	gate_open(n, &job->gate);
	leaf_put(job->leaf);
	n->jobs--;
	rt_mutex_unlock(&n->lock);
	rt_cond_broadcast(&n->opened);
	rt_free(job);
}

static void job_run(struct kcache *k, struct names_job *job)
{
	struct kcache_names *n = &k->names;
	struct expiring x = {.k = k, .dir = job->gate.dir};
	struct tree_leaf_range range;
	struct absent *list;

	(void)tree_leaf_range(job->leaf->image, &range);
	tree_leaf_items(job->leaf->image, expire_item, &x);
	rt_mutex_lock(&n->lock);
	list = absent_take(n, x.dir, &range);
	rt_mutex_unlock(&n->lock);
	absent_expire(k, list);
	job_end(n, job);
}

/* Expires the oldest absent name. It stays noted until then: another node may make it meanwhile.
 * Returns false if there is enough room. */
static bool trim_one(struct kcache *k)
{
	struct kcache_names *n = &k->names;
	char name[DISK_NAME_MAX];
	uint64_t dir, number;
	struct absent *a;
	size_t len;

	rt_mutex_lock(&n->lock);
	a = absent_crowded(n) ? n->oldest : NULL;
	if (!a) {
		n->trimming = false;
		rt_mutex_unlock(&n->lock);
		return false;
	}
	dir = a->dir;
	number = a->number;
	len = a->len;
	memcpy(name, a->name, len);
	rt_mutex_unlock(&n->lock);
	name_expire(k, dir, name, len);
	rt_mutex_lock(&n->lock);
	a = n->oldest;
	if (a && a->number == number)
		rt_free(absent_take_oldest(n));
	rt_mutex_unlock(&n->lock);
	return true;
}

/* If there are too many, makes the kernel request the oldest again. */
static void absent_trim(struct kcache *k)
{
	while (trim_one(k))
		;
}

static void names_main(void *arg)
{
	struct kcache *k = (struct kcache *)arg;
	struct kcache_names *n = &k->names;

	rt_mutex_lock(&n->lock);
	while (n->queue || n->trim || !n->stopping) {
		struct names_job *job = n->queue;
		bool trims = !job && n->trim;

		if (!job && !trims) {
			n->idle++;
			rt_cond_wait(&n->work, &n->lock, RT_FOREVER);
			n->idle--;
			continue;
		}
		if (job && !(n->queue = job->next))
			n->queue_end = &n->queue;
		n->queued -= job != NULL;
		n->trim &= !trims;
		rt_mutex_unlock(&n->lock);
		if (job)
			job_run(k, job);
		else
			absent_trim(k);
		rt_mutex_lock(&n->lock);
	}
	rt_mutex_unlock(&n->lock);
}

/* Adds a task. If that fails, the existing tasks must do. Under the lock. */
static int names_task_add(struct kcache *k)
{
	struct kcache_names *n = &k->names;
	int rc;

	if (n->queued + n->trim <= n->idle || n->tasks == NAME_TASKS_MAX)
		return 0;
	rc = rt_task_spawn(&n->task[n->tasks], "weft-names", names_main, k);
	if (!rc)
		n->tasks++;
	return rc;
}

/* ---- a leaf is given up ------------------------------------------------------------------ */

struct gathering {
	struct kcache *k;
	struct names_leaf *leaf;
	struct tree_leaf_range range;
	uint64_t dir; /* the current directory */
	bool entries; /* it has entries in the leaf */
};

/* If there are too many jobs, or no memory, the leaf is not given up yet. */
static struct names_job *job_get(struct kcache_names *n)
{
	struct names_job *job = NULL;
	bool room;

	for (;;) {
		rt_mutex_lock(&n->lock);
		room = n->jobs < NAME_JOBS_MAX;
		n->jobs += room;
		rt_mutex_unlock(&n->lock);
		if (room)
			job = rt_alloc(sizeof(*job));
		if (job)
			return job;
		rt_mutex_lock(&n->lock);
		n->jobs -= room;
		rt_mutex_unlock(&n->lock);
		rt_sleep_ns(WAIT_LAST_NS);
	}
}

static void job_queue(struct kcache *k, struct names_job *job)
{
	struct kcache_names *n = &k->names;

	rt_mutex_lock(&n->lock);
	*n->queue_end = job;
	n->queue_end = &job->next;
	n->queued++;
	(void)names_task_add(k);
	rt_mutex_unlock(&n->lock);
	rt_cond_signal(&n->work);
}

/* Shuts the gate: a walk that makes a request from here on waits. If the kernel does not have the
 * directory, it has no names of it. */
static void gate_dir(struct kcache *k, struct names_leaf *leaf, uint64_t dir)
{
	struct kcache_names *n = &k->names;
	struct names_job *job = job_get(n);

	rt_mutex_lock(&n->lock);
	job->leaf = leaf;
	leaf->users++;
	gate_shut(n, &job->gate, dir);
	rt_mutex_unlock(&n->lock);
	if (k->ops->drop_attributes(k->owner, dir))
		job_queue(k, job);
	else
		job_end(n, job);
}

/* Ends a directory of the leaf, when all its items have been seen. */
static void gather_end(struct gathering *g)
{
	struct kcache_names *n = &g->k->names;
	bool absent;

	rt_mutex_lock(&n->lock);
	absent = absent_first(n, g->dir, &g->range);
	rt_mutex_unlock(&n->lock);
	if (g->entries || absent)
		gate_dir(g->k, g->leaf, g->dir);
	g->entries = false;
}

static void gather_item(void *arg, struct disk_key key, const void *value, size_t len)
{
	struct gathering *g = (struct gathering *)arg;

	if (g->dir != key_ino(key)) {
		gather_end(g);
		g->dir = key_ino(key);
	}
	g->entries |= key_type(key) == DISK_ITEM_ENTRY;
}

void kcache_names_drop(struct kcache *k, const void *image)
{
	struct gathering g = {.k = k};

	if (!tree_leaf_range(image, &g.range))
		return;
	while (!(g.leaf = rt_alloc(sizeof(*g.leaf))))
		rt_sleep_ns(WAIT_LAST_NS);
	g.leaf->users = 1;
	memcpy(g.leaf->image, image, PAGE_SIZE);
	g.dir = key_ino(g.range.low);
	tree_leaf_items(g.leaf->image, gather_item, &g);
	gather_end(&g);
	rt_mutex_lock(&k->names.lock);
	leaf_put(g.leaf);
	rt_mutex_unlock(&k->names.lock);
}

/* ---- names that the kernel may keep ---------------------------------------------------- */

bool kcache_absent(struct kcache *k, uint64_t dir, struct ops_name name,
	const struct kcache_looked *looked)
{
	struct kcache_names *n = &k->names;
	struct absent *a;
	bool room;

	if (!looked->name || kcache_names_gated(k, dir))
		return false;
	a = rt_alloc(sizeof(*a) + name.len);
	if (!a)
		return false;
	a->dir = dir;
	a->hash = k->source->name_hash(k->source_owner, name);
	a->len = (uint8_t)name.len;
	memcpy(a->name, name.bytes, name.len);
	rt_mutex_lock(&n->lock);
	room = n->absent_bytes + absent_bytes(a) <= n->absent_max;
	if (room)
		absent_add(n, a);
	if (absent_crowded(n) && !n->trimming) {
		n->trimming = n->trim = true;
		(void)names_task_add(k);
		rt_cond_signal(&n->work);
	}
	rt_mutex_unlock(&n->lock);
	if (!room)
		rt_free(a);
	return room && cache_kcopy_stands(k->cache, &looked->names);
}

void kcache_names_gate(struct kcache *k, uint64_t dir, struct kcache_gate *gate)
{
	rt_mutex_lock(&k->names.lock);
	gate_shut(&k->names, gate, dir);
	rt_mutex_unlock(&k->names.lock);
	(void)k->ops->drop_attributes(k->owner, dir);
}

void kcache_names_expire(
	struct kcache *k, struct kcache_gate *gate, struct ops_name name, uint64_t ino)
{
	await_taken_in(k, ino);
	name_expire(k, gate->dir, name.bytes, name.len);
	rt_mutex_lock(&k->names.lock);
	gate_open(&k->names, gate);
	rt_mutex_unlock(&k->names.lock);
	rt_cond_broadcast(&k->names.opened);
}

/* ---- the kernel comes and goes ----------------------------------------------------------- */

int kcache_names_start(struct kcache *k)
{
	struct kcache_names *n = &k->names;
	int rc;

	n->queue_end = &n->queue;
	n->absent_max = cache_frame_count(k->cache) * PAGE_SIZE / ABSENT_SHARE;
	rc = rt_task_spawn(&n->task[0], "weft-names", names_main, k);
	n->tasks = !rc;
	return rc;
}

void kcache_names_stop(struct kcache *k)
{
	struct kcache_names *n = &k->names;
	struct absent *a;

	rt_mutex_lock(&n->lock);
	n->stopping = true;
	rt_mutex_unlock(&n->lock);
	rt_cond_broadcast(&n->work);
	for (unsigned i = 0; i < n->tasks; i++)
		rt_task_join(n->task[i]);
	while ((a = absent_take_oldest(n)))
		rt_free(a);
}
