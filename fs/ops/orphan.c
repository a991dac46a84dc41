/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The lifetime of an inode without links. It ends after the last close here and, with
 * ops_options.caller_forgets, after the caller's forget.
 *
 * A kernel refers to each inode that it unlinks. It sends a FORGET when its last reference ends.
 * That may be a working directory, an O_PATH descriptor or a bound socket, of which this node has
 * no open. Such inodes are *awaited*. The kernel may send a FORGET for one of several references (a
 * look-up that it could not use). It ends an orphan early: fstat then returns ENOENT, while open
 * files stay open.
 *
 * If opens are hidden (borrow.c), an open file is one of the kernel's references, and nothing else
 * shows it. So an inode without links is always awaited. Its forget counts only if the kernel has
 * nothing of it; the caller of ops_forget asks the kernel.
 *
 * An inode that is neither awaited nor open is *ready*. A task reclaims many of them in one
 * transaction, shortly after, so unlink does not wait for it. A task that finds the queue half full
 * helps to reclaim. A crash loses this state. The orphan items are in the tree, and the next mount
 * reclaims.
 *
 * Other nodes that may have an inode open are asked first (elsewhere.c). A node that has it open
 * takes it over. If a node cannot be asked, the inode stays on the list in the tree. The task goes
 * through the list again, ever more rarely, until all nodes were asked. It does the same after an
 * open, which waits for no inode that other nodes have listed. Inodes that need a node that is away
 * are skipped.
 *
 * Keeps: memory is bounded (invariant 10). An inode that cannot be awaited any more is ready at
 * once. Order of locks: a stripe of the table of files, then `lock`. No task waits under `lock`.
 */
#include <errno.h>

#include "fs/ops/data_internal.h"

#define AWAITED_MAX ORPHANS_AWAITED_MAX
#define BUCKETS     (1u << 14)
/* If opens are hidden: places for operations under way. There are fewer threads that serve. */
#define AWAITED_SPARE 2048u
#define READY_MAX     1024u
#define READY_HALF    (READY_MAX / 2)
/* Longest time that an inode is ready before it is reclaimed alone. */
#define LINGER_NS 20000000ull
/* Ages of ready inodes on a volume of several nodes: of the oldest in a batch, and of each other
 * one. Another node's kernel may just have got the name, and open the inode next. */
#define LINGER_SHARED_NS 1000000000ull
#define LINGER_TOLD_NS   500000000ull
/* A forget follows its unlink within this time, unless the kernel has another reason to keep the
 * inode. */
#define GRACE_NS 200000000ull
/* Limit of the wait for a place for an awaited inode. */
#define ROOM_NS 1000000000ull
/* Limit of the wait for room that the first look at the lists may find. */
#define LISTS_NS 10000000000ull
/* Number of times that nodes are asked about an orphan that changes meanwhile, before it stays on
 * the list. */
#define TAKEN_TRIES 3u
/* Time until the next look at the list, at first and at last. */
#define RETRY_MIN_NS 1000000000ull
#define RETRY_MAX_NS 8000000000ull

struct awaited {
	uint64_t ino;
	uint32_t next; /* 1 + place; 0: none */
};

struct orphans {
	_Atomic uint32_t
		bucket[BUCKETS];  /* 1 + place of the first; changed under `lock` */
	_Atomic uint32_t pending; /* number of inodes ready or in work; changed under `lock` */

	struct rt_mutex lock; /* for all below */
	struct awaited *place;
	uint32_t place_free;  /* 1 + the first place given back; 0: none */
	uint32_t place_fresh; /* places from here on were never used */
	uint32_t awaited;
	uint32_t moving;     /* number of inodes taken off, and not yet ready or left to a close */
	uint64_t awaited_ns; /* time of the latest one */
	/* A ring. Counted since open: pushed >= taken >= done. */
	struct {
		uint64_t ino, since_ns;
	} ready[READY_MAX];
	uint64_t pushed, taken, done;
	unsigned settlers;       /* number of tasks that wait for `progress` */
	struct rt_cond wanted;   /* signals that the reclaimer has work */
	struct rt_cond progress; /* signals that an inode is ready, or done */
	bool left;               /* the list must be gone through (again) */
	bool intents;            /* also the list of intents, whose end was not reached yet */
	bool unread;             /* neither list was gone through since the open */
	uint64_t retry_ns;       /* time of the next look */
	uint64_t pause_ns;       /* delay until the look after that */
	bool stopping;
	bool hurry; /* an operation needs the room of ready inodes */
	struct rt_task *reclaimer;
};

/* ---- awaited ---------------------------------------------------------------------- */

static _Atomic uint32_t *awaited_bucket(struct orphans *o, uint64_t ino)
{
	return &o->bucket[(ino * 0x9e3779b97f4a7c15ull) >> 50];
}
_Static_assert(BUCKETS == 1u << (64 - 50), "the hash names a bucket");

static uint32_t chain_load(const _Atomic uint32_t *head)
{
	return atomic_load_explicit(head, memory_order_acquire);
}

/* Returns true if no inode of this hash is awaited. Read without the lock: an inode's own unlink
 * has happened before. */
static bool surely_not_awaited(struct orphans *o, uint64_t ino)
{
	return chain_load(awaited_bucket(o, ino)) == 0;
}

static struct awaited *awaited_find(struct orphans *o, uint64_t ino)
{
	uint32_t at = chain_load(awaited_bucket(o, ino));

	while (at && o->place[at - 1].ino != ino)
		at = o->place[at - 1].next;
	return at ? &o->place[at - 1] : NULL;
}

/* Returns false if there is no room. */
static bool awaited_insert(struct orphans *o, uint64_t ino)
{
	_Atomic uint32_t *head = awaited_bucket(o, ino);
	uint32_t at = o->place_free;

	if (awaited_find(o, ino))
		return true;
	if (at)
		o->place_free = o->place[at - 1].next;
	else if (o->place_fresh < AWAITED_MAX)
		at = ++o->place_fresh;
	else
		return false;
	o->place[at - 1] = (struct awaited){.ino = ino, .next = chain_load(head)};
	atomic_store_explicit(head, at, memory_order_release);
	o->awaited++;
	return true;
}

static bool awaited_remove(struct orphans *o, uint64_t ino)
{
	_Atomic uint32_t *head = awaited_bucket(o, ino);
	uint32_t at = chain_load(head), before = 0;

	while (at && o->place[at - 1].ino != ino) {
		before = at;
		at = o->place[at - 1].next;
	}
	if (!at)
		return false;
	if (before)
		o->place[before - 1].next = o->place[at - 1].next;
	else
		atomic_store_explicit(head, o->place[at - 1].next, memory_order_release);
	o->place[at - 1] = (struct awaited){.next = o->place_free};
	o->place_free = at;
	o->awaited--;
	return true;
}

bool orphan_await(struct fs *fs, uint64_t ino)
{
	struct orphans *o = fs->orphans;
	bool awaited;

	if (!o || !fs->options.caller_forgets)
		return false;
	rt_mutex_lock(&o->lock);
	awaited = !o->stopping && awaited_insert(o, ino);
	o->awaited_ns = rt_now_ns();
	rt_mutex_unlock(&o->lock);
	return awaited;
}

int orphans_room(struct fs *fs)
{
	struct orphans *o = fs->orphans;
	uint64_t deadline;
	bool room;

	if (!o || !fs_opens_hidden(fs))
		return 0;
	rt_mutex_lock(&o->lock);
	deadline = rt_now_ns() + ROOM_NS;
	while (!(room = o->awaited < AWAITED_MAX - AWAITED_SPARE) &&
		rt_now_ns() < deadline) {
		o->settlers++;
		rt_cond_wait(&o->progress, &o->lock, deadline);
		o->settlers--;
	}
	rt_mutex_unlock(&o->lock);
	return room ? 0 : -ENFILE;
}

bool orphan_is_awaited(struct fs *fs, uint64_t ino)
{
	struct orphans *o = fs->orphans;
	bool awaited;

	if (!o || surely_not_awaited(o, ino))
		return false;
	rt_mutex_lock(&o->lock);
	awaited = awaited_find(o, ino);
	rt_mutex_unlock(&o->lock);
	return awaited;
}

bool orphan_is_used(struct fs *fs, uint64_t ino)
{
	return file_leave_to_close(fs, ino) || orphan_is_awaited(fs, ino);
}

bool orphan_lives(struct fs *fs, uint64_t ino)
{
	uint32_t unknown;

	return orphan_is_used(fs, ino) || elsewhere_used(fs, &ino, 1, false, &unknown) ||
	       unknown;
}

/* ---- ready ------------------------------------------------------------------------ */

/* Some inodes stay on the list: they are tried again later. */
static void list_again(struct fs *fs)
{
	struct orphans *o = fs->orphans;

	if (!o)
		return;
	rt_mutex_lock(&o->lock);
	if (!o->left) {
		o->left = true;
		o->pause_ns = MIN(MAX(o->pause_ns * 2, RETRY_MIN_NS), RETRY_MAX_NS);
		o->retry_ns = rt_now_ns() + o->pause_ns;
		rt_cond_signal(&o->wanted);
	}
	rt_mutex_unlock(&o->lock);
}

/* Reads the inodes' change counts. Returns a bit for each that could not be read. */
static uint32_t changes_read(
	struct fs *fs, const uint64_t *ino, unsigned count, uint64_t *changes)
{
	uint32_t unread = 0;

	for (unsigned i = 0; i < count; i++) {
		struct disk_inode inode;
		int rc = inode_get(fs, ino[i], &inode);

		changes[i] = rc ? 0 : inode.changes;
		if (rc < 0 && rc != -ENOENT)
			unread |= 1u << i;
	}
	return unread;
}

/* Does one round of orphans_reclaim on a volume of several nodes. Leaves in ino[] the inodes that
 * changed meanwhile, and returns their number: a node may have taken them (orphan_take). */
static unsigned reclaim_asking(struct fs *fs, uint64_t *ino, unsigned count, bool listed)
{
	uint64_t changes[32];
	uint32_t used, unknown, changed;
	unsigned n = 0, left = 0;

	unknown = changes_read(fs, ino, count, changes);
	used = elsewhere_used(fs, ino, count, listed, &changed);
	unknown |= changed;
	if (unknown)
		list_again(fs);
	for (unsigned i = 0; i < count; i++)
		if (!((used | unknown) & 1u << i) && !orphan_is_used(fs, ino[i])) {
			changes[n] = changes[i];
			ino[n++] = ino[i];
		}
	changed = n > 0 ? reclaim_many(fs, ino, changes, n) : 0;
	for (unsigned i = 0; i < n; i++)
		if (changed & 1u << i)
			ino[left++] = ino[i];
	return left;
}

void orphans_reclaim(struct fs *fs, const uint64_t *ino, unsigned count, bool listed)
{
	uint64_t left[32];

	WEFT_ASSERT(count <= ARRAY_SIZE(left));
	if (!fs->elsewhere) {
		(void)reclaim_many(fs, ino, NULL, count);
		return;
	}
	memcpy(left, ino, count * sizeof(*ino));
	for (unsigned tries = 0; count > 0 && tries < TAKEN_TRIES; tries++) {
		if (listed && elsewhere_busy(fs))
			break;
		count = reclaim_asking(fs, left, count, listed);
	}
	if (count > 0)
		list_again(fs);
}

/* Takes a batch of inodes that became ready at `before_ns` or earlier. Under the lock. */
static unsigned ready_take(struct orphans *o, uint64_t before_ns, uint64_t *ino)
{
	unsigned count = 0;

	for (; count < RECLAIM_BATCH && o->taken < o->pushed; o->taken++) {
		if (o->ready[o->taken % READY_MAX].since_ns > before_ns)
			break;
		ino[count++] = o->ready[o->taken % READY_MAX].ino;
	}
	return count;
}

/* Reclaims a batch of inodes that became ready at `before_ns` or earlier. Returns false if there
 * was none. */
static bool ready_work_before(struct fs *fs, uint64_t before_ns)
{
	struct orphans *o = fs->orphans;
	uint64_t ino[RECLAIM_BATCH];
	unsigned count;

	rt_mutex_lock(&o->lock);
	count = ready_take(o, before_ns, ino);
	rt_mutex_unlock(&o->lock);
	if (count == 0)
		return false;
	orphans_reclaim(fs, ino, count, false);
	rt_mutex_lock(&o->lock);
	o->done += count;
	atomic_fetch_sub_explicit(&o->pending, count, memory_order_relaxed);
	rt_cond_broadcast(&o->progress);
	rt_mutex_unlock(&o->lock);
	return true;
}

static bool ready_work(struct fs *fs)
{
	return ready_work_before(fs, UINT64_MAX);
}

/* Returns false if the ring is full. Under the lock. */
static bool ready_push(struct orphans *o, uint64_t ino)
{
	uint64_t count = o->pushed - o->taken;

	if (count == READY_MAX)
		return false;
	o->ready[o->pushed % READY_MAX].ino = ino;
	o->ready[o->pushed++ % READY_MAX].since_ns = rt_now_ns();
	atomic_fetch_add_explicit(&o->pending, 1, memory_order_relaxed);
	if (count == 0 || count + 1 == RECLAIM_BATCH)
		rt_cond_signal(&o->wanted);
	if (o->settlers)
		rt_cond_broadcast(&o->progress);
	return true;
}

/* Notes that no node refers to the inode any more. Waits. */
static void orphan_ready(struct fs *fs, uint64_t ino)
{
	struct orphans *o = fs->orphans;
	bool direct = !o, pushed = false;

	while (!direct && !pushed) {
		rt_mutex_lock(&o->lock);
		direct = o->stopping;
		pushed = !direct && ready_push(o, ino);
		rt_mutex_unlock(&o->lock);
		if (!direct && !pushed)
			(void)ready_work(fs);
	}
	if (direct)
		orphans_reclaim(fs, &ino, 1, false);
}

bool orphans_hurry(struct fs *fs)
{
	struct orphans *o = fs->orphans;

	if (!o || atomic_load_explicit(&o->pending, memory_order_relaxed) == 0)
		return false;
	rt_mutex_lock(&o->lock);
	o->hurry = true;
	rt_mutex_unlock(&o->lock);
	rt_cond_signal(&o->wanted);
	return true;
}

/* A task that makes orphans faster than the reclaimer frees them helps. */
static void orphans_help(struct fs *fs)
{
	if (atomic_load_explicit(&fs->orphans->pending, memory_order_relaxed) >=
		READY_HALF)
		(void)ready_work(fs);
}

/* Looks at the list again, or waits until it is time to. Under the lock, which it releases
 * meanwhile. */
static void list_work(struct fs *fs)
{
	struct orphans *o = fs->orphans;
	int rc, intents = 0;
	bool first = o->pause_ns == 0;

	if (rt_now_ns() < o->retry_ns) {
		rt_cond_wait(&o->wanted, &o->lock, o->retry_ns);
		return;
	}
	o->left = false;
	rt_mutex_unlock(&o->lock);
	rc = reclaim_listed(fs);
	if (o->intents)
		intents = reclaim_intents(fs);
	o->intents = intents < 0;
	rc = rc < 0 ? rc : intents;
	if (rc < 0 && rc != -EROFS && rc != -EHOSTUNREACH && rc != -EAGAIN && first)
		weft_log(4,
			"cannot read the list of unlinked files: %s; it is tried "
			"again, and their space stays in use until then",
			strerror(-rc));
	if (rc < 0 && rc != -EROFS)
		list_again(fs);
	rt_mutex_lock(&o->lock);
	o->unread = false;
	rt_cond_broadcast(&o->progress);
	if (!o->left)
		o->pause_ns = 0;
}

static void reclaimer_main(void *arg)
{
	struct fs *fs = arg;
	struct orphans *o = fs->orphans;
	bool shared = fs_has_peers(fs);
	uint64_t linger = shared ? LINGER_SHARED_NS : LINGER_NS;
	uint64_t young = shared ? LINGER_TOLD_NS : 0;
	uint64_t many = shared ? READY_HALF : RECLAIM_BATCH;

	rt_mutex_lock(&o->lock);
	while (!o->stopping) {
		uint64_t count = o->pushed - o->taken, now = rt_now_ns();
		uint64_t deadline = o->ready[o->taken % READY_MAX].since_ns + linger;
		bool all = count >= many || o->hurry;

		if (count == 0)
			o->hurry = false;
		if (count == 0 && o->left) {
			list_work(fs);
		} else if (count == 0) {
			rt_cond_wait(&o->wanted, &o->lock, RT_FOREVER);
		} else if (!all && now < deadline) {
			rt_cond_wait(&o->wanted, &o->lock, deadline);
		} else {
			rt_mutex_unlock(&o->lock);
			(void)ready_work_before(fs, all ? UINT64_MAX : now - young);
			rt_mutex_lock(&o->lock);
		}
	}
	rt_mutex_unlock(&o->lock);
}

/* ---- what happens to orphans ------------------------------------------------------ */

void orphan_drop(struct fs *fs, uint64_t ino)
{
	bool awaited = orphan_await(fs, ino);
	bool open = file_leave_to_close(fs, ino);

	if (awaited)
		(void)elsewhere_note(fs, ino); /* it was, with the name: for the next */
	if (awaited)
		orphans_help(fs);
	else if (!open)
		orphan_ready(fs, ino);
}

bool ops_awaits_forget(struct fs *fs, uint64_t ino)
{
	return orphan_is_awaited(fs, ino);
}

void orphan_closed(struct fs *fs, uint64_t ino)
{
	if (!orphan_is_awaited(fs, ino))
		orphan_ready(fs, ino);
}

/*
 * A close at the same time drops its handle and then looks whether the inode is awaited. This
 * function ends the wait and then looks for handles. So at least one of them finds the inode ready.
 * If both do, reclaiming twice does no harm.
 */
void ops_forget(struct fs *fs, uint64_t ino)
{
	struct orphans *o = fs->orphans;
	bool removed, ready;

	kcache_forgot(fs->kcache, ino);
	borrowed_forget(fs, ino);
	if (!o || likely(surely_not_awaited(o, ino)))
		return;
	rt_mutex_lock(&o->lock);
	removed = awaited_remove(o, ino);
	o->moving += removed;
	rt_mutex_unlock(&o->lock);
	if (!removed)
		return;
	ready = !file_leave_to_close(fs, ino);
	if (ready)
		orphan_ready(fs, ino);
	rt_mutex_lock(&o->lock);
	if (--o->moving == 0 && o->settlers)
		rt_cond_broadcast(&o->progress);
	rt_mutex_unlock(&o->lock);
	if (ready)
		orphans_help(fs);
}

/* ---- finishing --------------------------------------------------------------------- */

/* Waits while inodes from before this node was opened are being freed. Under the lock. */
static bool await_lists(struct orphans *o)
{
	bool unread = o->unread;
	uint64_t deadline = rt_now_ns() + LISTS_NS;

	while (o->unread && !o->stopping && !rt_task_unwanted() &&
		rt_now_ns() < deadline) {
		o->settlers++;
		rt_cond_wait(&o->progress, &o->lock, MIN(deadline, rt_task_asks_ns()));
		o->settlers--;
	}
	return unread;
}

bool orphans_settle(struct fs *fs, bool patient)
{
	struct orphans *o = fs->orphans;
	uint64_t until, deadline;
	bool any, recent;

	if (!o)
		return false;
	rt_mutex_lock(&o->lock);
	any = patient && await_lists(o);
	deadline = o->awaited_ns + GRACE_NS;
	recent = patient && o->awaited > 0 && rt_now_ns() < deadline;
	while (recent && o->pushed == o->done && o->awaited > 0 &&
		rt_now_ns() < deadline) {
		o->settlers++;
		rt_cond_wait(&o->progress, &o->lock, deadline);
		o->settlers--;
	}
	until = o->pushed;
	any |= recent || o->done < until;
	while (o->done < until) {
		bool left = o->taken < until;

		if (!left)
			rt_cond_wait(&o->progress, &o->lock, RT_FOREVER);
		rt_mutex_unlock(&o->lock);
		if (left)
			(void)ready_work(fs);
		rt_mutex_lock(&o->lock);
	}
	rt_mutex_unlock(&o->lock);
	return any;
}

void ops_settle(struct fs *fs)
{
	struct orphans *o = fs->orphans;
	uint64_t deadline;

	if (!o)
		return;
	rt_mutex_lock(&o->lock);
	deadline = o->awaited_ns + GRACE_NS;
	while ((o->awaited > 0 || o->moving > 0) && rt_now_ns() < deadline) {
		o->settlers++;
		rt_cond_wait(&o->progress, &o->lock, deadline);
		o->settlers--;
	}
	rt_mutex_unlock(&o->lock);
}

int orphans_open(struct fs *fs)
{
	struct orphans *o;
	int rc;

	if (fs->volume->read_only || !(fs->options.caller_forgets || fs_has_peers(fs)))
		return 0;
	o = rt_alloc(sizeof(*o));
	if (!o)
		return -ENOMEM;
	if (fs->options.caller_forgets)
		o->place = rt_alloc(AWAITED_MAX * sizeof(*o->place));
	fs->orphans = o;
	rc = o->place || !fs->options.caller_forgets
		     ? rt_task_spawn(&o->reclaimer, "reclaimer", reclaimer_main, fs)
		     : -ENOMEM;
	if (rc) {
		orphans_close(fs);
		fs->orphans = NULL;
	}
	return rc;
}

void orphans_recover(struct fs *fs)
{
	struct orphans *o = fs->orphans;

	rt_mutex_lock(&o->lock);
	o->left = o->intents = o->unread = true;
	rt_mutex_unlock(&o->lock);
	rt_cond_signal(&o->wanted);
}

/* Inodes that are open are left to their last close. */
static void reclaim_awaited(struct fs *fs)
{
	struct orphans *o = fs->orphans;
	uint64_t ino[RECLAIM_BATCH];
	unsigned count = 0;

	for (uint32_t i = 0; i < o->place_fresh; i++) {
		uint64_t next = o->place[i].ino;

		if (next && awaited_remove(o, next) && !file_leave_to_close(fs, next))
			ino[count++] = next;
		if (count == RECLAIM_BATCH || (count > 0 && i + 1 == o->place_fresh)) {
			orphans_reclaim(fs, ino, count, false);
			count = 0;
		}
	}
}

void orphans_stop(struct fs *fs)
{
	struct orphans *o = fs->orphans;

	if (!o)
		return;
	rt_mutex_lock(&o->lock);
	o->stopping = true;
	rt_cond_broadcast(&o->wanted);
	rt_mutex_unlock(&o->lock);
	rt_task_join(o->reclaimer);
	o->reclaimer = NULL;
	while (ready_work(fs))
		;
	reclaim_awaited(fs);
}

void orphans_close(struct fs *fs)
{
	struct orphans *o = fs->orphans;

	if (!o)
		return;
	WEFT_ASSERT(!o->reclaimer);
	rt_free(o->place);
	rt_free(o);
}
