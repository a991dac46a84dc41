/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of open files: one state per inode, shared by all its handles.
 *
 * A hash table by inode number, in stripes with a lock each. A state lives while an operation or a
 * handle uses it. It stays longer while it has dirty blocks, so that fsync after a close and
 * another open finds them. Idle states are bounded (invariant 10). The oldest is dropped; from then
 * on a new state assumes that its whole file is dirty.
 *
 * Unlinking and opening meet here. An open counts before it reads the inode. An unlink reads the
 * count after its transaction. So either the open sees that no link is left, or the unlink sees the
 * open and leaves the inode to the last close.
 */
#include "fs/ops/data_internal.h"

#define STRIPES         64u
#define STRIPE_BUCKETS  1024u
#define STRIPE_IDLE_MAX 256u
#define OPEN_FILES_MAX  1048576u
/* Number of direct writes in a row before which the kernel's pages of a file are dropped range by
 * range, if opens are hidden. */
#define DIRECT_WRITES_MIN 64u

struct stripe {
	struct rt_mutex lock;
	struct inode_state *bucket[STRIPE_BUCKETS];
	struct inode_state *idle_oldest, *idle_newest;
	unsigned idle_count;
} __attribute__((aligned(CACHE_LINE)));

struct file_table {
	struct stripe stripe[STRIPES];
	_Atomic uint32_t open_files;
	uint32_t open_files_max;
	_Atomic uint32_t forgotten;  /* number of dirty states that were dropped */
	_Atomic uint32_t covered;    /* number of these that were made durable since */
	_Atomic uint32_t dirty_heap; /* of the states' dirty sets */
};

int file_table_open(struct fs *fs)
{
	struct file_table *t = rt_alloc(sizeof(*t));

	if (!t)
		return -ENOMEM;
	t->open_files_max =
		fs->options.open_files_max ? fs->options.open_files_max : OPEN_FILES_MAX;
	fs->files = t;
	return 0;
}

/* ---- states ---------------------------------------------------------------------- */

static uint64_t ino_hash(uint64_t ino)
{
	return (ino * 0x9e3779b97f4a7c15ull) >> 40;
}

static struct stripe *stripe_of(struct fs *fs, uint64_t ino)
{
	return &fs->files->stripe[ino_hash(ino) % STRIPES];
}

static struct inode_state **inode_bucket(struct stripe *s, uint64_t ino)
{
	return &s->bucket[ino_hash(ino) / STRIPES % STRIPE_BUCKETS];
}

static void idle_remove(struct stripe *s, struct inode_state *st)
{
	*(st->older ? &st->older->newer : &s->idle_oldest) = st->newer;
	*(st->newer ? &st->newer->older : &s->idle_newest) = st->older;
	st->older = st->newer = NULL;
	s->idle_count--;
}

static void idle_add(struct stripe *s, struct inode_state *st)
{
	st->older = s->idle_newest;
	*(st->older ? &st->older->newer : &s->idle_oldest) = st;
	s->idle_newest = st;
	s->idle_count++;
}

/* Returns the state, or NULL. Under the stripe's lock. */
static struct inode_state *state_in(struct stripe *s, uint64_t ino)
{
	struct inode_state *st = *inode_bucket(s, ino);

	while (st && st->ino != ino)
		st = st->next;
	return st;
}

/* As state_in, and adds a reference. */
static struct inode_state *state_take(struct stripe *s, uint64_t ino)
{
	struct inode_state *st = state_in(s, ino);

	if (st && st->users++ == 0)
		idle_remove(s, st);
	return st;
}

/* Returns the state, or NULL. Takes the lock of *stripe, which the caller releases after use. */
static struct inode_state *state_peek(struct fs *fs, uint64_t ino, struct stripe **stripe)
{
	*stripe = stripe_of(fs, ino);
	rt_mutex_lock(&(*stripe)->lock);
	return state_in(*stripe, ino);
}

struct inode_state *state_open_peek(struct fs *fs, uint64_t ino, struct rt_mutex **lock)
{
	struct stripe *s;
	struct inode_state *st = state_peek(fs, ino, &s);

	*lock = &s->lock;
	return st && st->handles > 0 ? st : NULL;
}

struct inode_state *state_find(struct fs *fs, uint64_t ino)
{
	struct stripe *s = stripe_of(fs, ino);
	struct inode_state *st;

	rt_mutex_lock(&s->lock);
	st = state_take(s, ino);
	rt_mutex_unlock(&s->lock);
	return st;
}

int state_get(struct fs *fs, uint64_t ino, struct inode_state **out)
{
	struct stripe *s = stripe_of(fs, ino);
	struct inode_state *st = state_find(fs, ino), *fresh, **bucket;

	*out = st;
	if (st)
		return 0;
	fresh = rt_alloc(sizeof(*fresh));
	if (!fresh)
		return -ENOMEM;
	fresh->ino = fresh->kcache.ino = ino;
	fresh->users = 1;
	fresh->pages_given = 1; /* as far as known */
	fresh->dirty.heap = &fs->files->dirty_heap;
	rt_mutex_lock(&s->lock);
	st = state_take(s, ino);
	if (!st) {
		/* Under the lock: another task's state may have been made and dropped meanwhile. */
		fresh->dirty_unknown =
			atomic_load_explicit(
				&fs->files->forgotten, memory_order_acquire) !=
			atomic_load_explicit(&fs->files->covered, memory_order_acquire);
		bucket = inode_bucket(s, ino);
		fresh->next = *bucket;
		*bucket = fresh;
		st = fresh;
		fresh = NULL;
	}
	rt_mutex_unlock(&s->lock);
	rt_free(fresh);
	*out = st;
	return 0;
}

static void state_unlink(struct stripe *s, struct inode_state *st)
{
	struct inode_state **link = inode_bucket(s, st->ino);

	while (*link != st)
		link = &(*link)->next;
	*link = st->next;
}

static void state_free(struct inode_state *st)
{
	WEFT_ASSERT(st->users == 0 && st->handles == 0 && st->ahead.length == 0);
	dirty_clear(&st->dirty);
	rt_free(st);
}

void state_put(struct fs *fs, struct inode_state *st)
{
	struct stripe *s = stripe_of(fs, st->ino);
	struct inode_state *drop = NULL;

	rt_mutex_lock(&s->lock);
	WEFT_ASSERT(st->users > 0);
	if (st->users == 1)
		ahead_release(fs, st);
	if (--st->users == 0) {
		if (st->dirty.count == 0 && st->mtime_ns == 0 && st->atime_ns == 0) {
			state_unlink(s, st);
			drop = st;
		} else {
			idle_add(s, st);
			if (s->idle_count > STRIPE_IDLE_MAX) {
				drop = s->idle_oldest;
				idle_remove(s, drop);
				state_unlink(s, drop);
				if (drop->dirty.count)
					atomic_fetch_add_explicit(&fs->files->forgotten,
						1, memory_order_release);
			}
		}
	}
	rt_mutex_unlock(&s->lock);
	if (drop)
		state_free(drop);
}

void state_reclaiming(struct fs *fs, struct inode_state *st, bool reclaiming)
{
	struct stripe *s = stripe_of(fs, st->ino);

	rt_mutex_lock(&s->lock);
	st->reclaiming = reclaiming;
	rt_mutex_unlock(&s->lock);
}

uint32_t forgotten_mark(struct fs *fs)
{
	return atomic_load_explicit(&fs->files->forgotten, memory_order_acquire);
}

void forgotten_clear(struct fs *fs, uint32_t mark)
{
	uint32_t covered =
		atomic_load_explicit(&fs->files->covered, memory_order_relaxed);

	/* Concurrent syncs end in any order. */
	while ((int32_t)(mark - covered) > 0 &&
		!atomic_compare_exchange_weak_explicit(&fs->files->covered, &covered,
			mark, memory_order_release, memory_order_relaxed))
		;
}

/* Returns a state of the bucket with times that are not in the tree, with a reference, or NULL. */
static struct inode_state *bucket_unsettled(struct stripe *s, unsigned b)
{
	struct inode_state *st;

	rt_mutex_lock(&s->lock);
	for (st = s->bucket[b]; st; st = st->next) {
		bool unsettled;

		rt_mutex_lock(&st->lock);
		unsettled = st->mtime_ns || st->atime_ns;
		rt_mutex_unlock(&st->lock);
		if (unsettled)
			break;
	}
	if (st && st->users++ == 0)
		idle_remove(s, st);
	rt_mutex_unlock(&s->lock);
	return st;
}

void states_settle(struct fs *fs)
{
	for (unsigned i = 0; i < STRIPES * STRIPE_BUCKETS; i++) {
		struct stripe *s = &fs->files->stripe[i / STRIPE_BUCKETS];

		for (unsigned tries = 0; tries < 64; tries++) {
			struct inode_state *st = bucket_unsettled(s, i % STRIPE_BUCKETS);
			int rc;

			if (!st)
				break;
			rc = state_settle(fs, st);
			state_put(fs, st);
			if (rc < 0)
				return;
		}
	}
}

/* Returns the next state of the bucket, by inode number, into which programs may have stored. Adds
 * a reference. NULL: none. */
static struct inode_state *bucket_mapped(struct stripe *s, unsigned b, uint64_t after)
{
	struct inode_state *next = NULL;

	rt_mutex_lock(&s->lock);
	for (struct inode_state *st = s->bucket[b]; st; st = st->next)
		if (st->ino > after && (!next || st->ino < next->ino) &&
			atomic_load_explicit(&st->kcache.mapped, memory_order_acquire))
			next = st;
	if (next && next->users++ == 0)
		idle_remove(s, next);
	rt_mutex_unlock(&s->lock);
	return next;
}

void states_fetch(struct fs *fs)
{
	for (unsigned i = 0; i < STRIPES * STRIPE_BUCKETS; i++) {
		struct stripe *s = &fs->files->stripe[i / STRIPE_BUCKETS];
		struct inode_state *st;
		uint64_t ino = 0;

		while ((st = bucket_mapped(s, i % STRIPE_BUCKETS, ino))) {
			ino = st->ino;
			kcache_fetch_stores(fs->kcache, &st->kcache);
			state_put(fs, st);
		}
	}
}

/* ---- views of a mapping ------------------------------------------------------------ */

void map_view_begin(struct fs *fs, struct inode_state *st, bool locked, bool again,
	struct map_view *view)
{
	view->st = st;
	view->shared = fs_has_peers(fs);
	view->sequence = atomic_load_explicit(&st->map_sequence, memory_order_acquire);
	while (!locked && (view->sequence & 1)) {
		rt_gate_enter(&st->alloc_gate, 1);
		rt_gate_leave(&st->alloc_gate, 1);
		view->sequence =
			atomic_load_explicit(&st->map_sequence, memory_order_acquire);
	}
	tree_seen_begin(&view->seen, again);
}

/* Called with the pages latched. The acquire orders it behind that. */
bool map_view_stands(const struct map_view *view)
{
	return atomic_load_explicit(&view->st->map_sequence, memory_order_acquire) ==
		       view->sequence &&
	       (!view->shared || tree_seen_stands(&view->seen));
}

void map_view_end(struct fs *fs, const struct map_view *view)
{
	if (view->shared && view->seen.keeps)
		tree_seen_used(fs->tree, &view->seen);
}

void views_pause(const struct fs *fs, unsigned views)
{
	if (fs_has_peers(fs) && views > 4)
		rt_sleep_ns(1000 + rt_random() % (1000ull * MIN(views, 1000u)));
}

/* ---- room: write-ahead reservations ------------------------------------------------ */

void ahead_release(struct fs *fs, struct inode_state *st)
{
	struct space_run run;

	rt_mutex_lock(&st->lock);
	run = st->ahead;
	st->ahead.length = 0;
	st->ahead_pages = 0;
	rt_mutex_unlock(&st->lock);
	if (run.length)
		space_unreserve(fs->volume->space, &run);
}

void ahead_release_all(struct fs *fs)
{
	for (unsigned i = 0; i < STRIPES; i++) {
		struct stripe *s = &fs->files->stripe[i];

		rt_mutex_lock(&s->lock);
		for (unsigned b = 0; b < STRIPE_BUCKETS; b++)
			for (struct inode_state *st = s->bucket[b]; st; st = st->next)
				ahead_release(fs, st);
		rt_mutex_unlock(&s->lock);
	}
}

int run_reserve(struct fs *fs, page_id goal, uint32_t want, struct space_run *out)
{
	struct space *space = fs->volume->space;
	int rc = space_reserve(space, goal, want, SPACE_ALONE, out);

	if (space_exhausted(space, rc)) {
		ahead_release_all(fs);
		rc = space_reserve(space, goal, want, SPACE_ALONE, out);
	}
	if (fs_has_peers(fs) && space_exhausted(space, rc))
		rc = space_reserve(space, goal, want, 0, out);
	if (space_exhausted(space, rc) && orphans_settle(fs, true))
		rc = space_reserve(space, goal, want, 0, out);
	return rc;
}

/* ---- open and close -------------------------------------------------------------- */

/* Drops a handle. The last one writes times to the tree, or ends an orphan. Each handle that may
 * have been mapped for stores writes the times of stores. */
static void handle_drop(struct fs *fs, struct ops_file *file)
{
	struct inode_state *st = file->state;
	struct stripe *s = stripe_of(fs, st->ino);
	bool last, orphan, settle, stores;

	rt_mutex_lock(&s->lock);
	*(file->previous ? &file->previous->next : &st->files) = file->next;
	if (file->next)
		file->next->previous = file->previous;
	if (file->confirmed)
		st->confirmed--;
	stores_closed(file);
	last = --st->handles == 0;
	if (last && fs->kcache)
		kcache_push_closed(fs->kcache, &st->kcache);
	orphan = last && st->orphan;
	settle = last && !fs->kcache && (!orphan || st->naming || fs_opens_hidden(fs));
	stores = file->mappable && (!orphan || st->naming);
	if (last)
		st->linkable = false;
	if (orphan)
		st->orphan = false;
	rt_mutex_unlock(&s->lock);
	rt_free(file);
	atomic_fetch_sub_explicit(&fs->files->open_files, 1, memory_order_relaxed);
	if (settle)
		(void)state_settle(fs, st);
	else if (stores)
		stores_settle(fs, st);
	if (orphan)
		orphan_closed(fs, st->ino);
	state_put(fs, st);
}

/* Makes a handle that is counted but not yet confirmed. */
static int handle_make(struct fs *fs, uint64_t ino, int flags, struct ops_file **out)
{
	struct file_table *t = fs->files;
	struct stripe *s = stripe_of(fs, ino);
	struct ops_file *file;
	int rc = -ENOMEM;

	if (atomic_fetch_add_explicit(&t->open_files, 1, memory_order_relaxed) >=
		t->open_files_max) {
		rc = -ENFILE;
		goto out_count;
	}
	file = rt_alloc(sizeof(*file));
	if (!file)
		goto out_count;
	file->fs = fs;
	file->flags = flags & ~OPS_OPEN_APPENDS;
	rc = state_get(fs, ino, &file->state);
	if (rc < 0)
		goto out_free;
	rt_mutex_lock(&s->lock);
	stores_opened(fs, file);
	file->state->handles++;
	file->next = file->state->files;
	if (file->next)
		file->next->previous = file;
	file->state->files = file;
	rt_mutex_unlock(&s->lock);
	*out = file;
	rc = elsewhere_note(fs, ino);
	if (rc < 0)
		handle_drop(fs, file);
	return rc;
out_free:
	rt_free(file);
out_count:
	atomic_fetch_sub_explicit(&t->open_files, 1, memory_order_relaxed);
	return rc;
}

/* Confirms an open that found the file as *inode, if it may be opened. `taken`: orphan_take has
 * succeeded. */
static int handle_confirm(
	struct fs *fs, struct ops_file *file, const struct disk_inode *inode, bool taken)
{
	struct stripe *s = stripe_of(fs, file->state->ino);
	int rc = 0;

	if (S_ISDIR(inode->mode))
		return -EISDIR;
	if (S_ISLNK(inode->mode))
		return -ELOOP;
	if (!S_ISREG(inode->mode))
		return -EINVAL;
	rt_mutex_lock(&s->lock);
	if (inode->nlink == 0)
		file->state->orphan = true;
	if (inode->nlink == 0 && !taken &&
		(file->state->reclaiming ||
			(file->state->confirmed == 0 &&
				!orphan_is_awaited(fs, file->state->ino)))) {
		rc = -ENOENT;
	} else {
		file->state->confirmed++;
		file->confirmed = true;
	}
	rt_mutex_unlock(&s->lock);
	return rc;
}

/* As handle_confirm. An orphan that is not in use here can be opened as long as no node frees
 * it. */
static int handle_check(
	struct fs *fs, struct ops_file *file, const struct disk_inode *inode)
{
	int rc = handle_confirm(fs, file, inode, false);

	if (rc != -ENOENT || !fs->elsewhere)
		return rc;
	rc = orphan_take(fs, file->state->ino);
	return rc ? rc : handle_confirm(fs, file, inode, true);
}

static bool flags_write(int flags)
{
	return (flags & O_ACCMODE) != O_RDONLY || (flags & O_TRUNC);
}

static bool is_writer(int flags)
{
	return (flags & O_ACCMODE) != O_RDONLY;
}

static bool may_map_to_store(int flags)
{
	return (flags & O_ACCMODE) == O_RDWR;
}

static bool is_buffered(int flags)
{
	return !(flags & O_DIRECT);
}

static bool has_handle(struct fs *fs, struct inode_state *st, bool (*which)(int flags))
{
	struct stripe *s = stripe_of(fs, st->ino);
	struct ops_file *file;

	rt_mutex_lock(&s->lock);
	for (file = st->files; file; file = file->next)
		if (which(file->flags))
			break;
	rt_mutex_unlock(&s->lock);
	return file != NULL;
}

bool stores_unseen(struct fs *fs, struct inode_state *st)
{
	if (!fs_has_peers(fs))
		return fs_opens_hidden(fs) || has_handle(fs, st, may_map_to_store);
	return fs->options.mmap == OPS_MMAP_LOCAL && fs->kcache &&
	       atomic_load_explicit(&st->kcache.mapped, memory_order_acquire);
}

bool file_open_to_write(struct fs *fs, uint64_t ino)
{
	struct inode_state *st;
	bool open;

	if (fs_opens_hidden(fs))
		return true;
	st = state_find(fs, ino);
	if (!st)
		return false;
	open = has_handle(fs, st, is_writer);
	state_put(fs, st);
	return open;
}

/* As may_open() does for other filesystems. */
static int open_allowed(const struct disk_inode *inode, int flags, bool appends)
{
	if (!flags_write(flags) || !inode_is_fixed(inode) || !S_ISREG(inode->mode))
		return 0;
	return (inode->flags & DISK_INODE_IMMUTABLE) || !appends || (flags & O_TRUNC)
		       ? -EPERM
		       : 0;
}

int ops_open(struct fs *fs, uint64_t ino, const struct ops_caller *c, int flags,
	struct ops_file **out, struct ops_attr *attr)
{
	const struct ops_setattr cut = {.set = OPS_SET_SIZE | OPS_SET_MTIME_NOW |
					       (c->keeps_setid ? 0 : OPS_KILL_SETID)};
	struct ops_attr local;
	struct ops_file *file;
	int rc;

	ops_count(fs, OPS_CALL_OPEN);
	if (!attr)
		attr = &local;
	if (flags_write(flags)) {
		rc = fs_check_writable(fs);
		if (rc < 0)
			return rc;
	}
	rc = handle_make(fs, ino, flags, &file);
	if (rc < 0)
		return rc;
	rc = inode_attr(fs, ino, attr);
	if (rc == 0)
		rc = open_allowed(
			&attr->inode, flags, flags & (O_APPEND | OPS_OPEN_APPENDS));
	if (rc == 0)
		rc = handle_check(fs, file, &attr->inode);
	if (rc == 0 && (flags & O_TRUNC))
		rc = ops_truncate(fs, ino, c, &cut, attr);
	if (rc < 0) {
		handle_drop(fs, file);
		return rc;
	}
	/* Reads from the kernel's cache make no request here, so an open for reading counts as an
	 * access. */
	if ((flags & O_ACCMODE) == O_RDONLY && !(flags & (O_NOATIME | O_TRUNC)) &&
		attr->inode.size > 0)
		file->accessed =
			state_accessed(fs, file->state, &attr->inode, fs->kcache != NULL);
	*out = file;
	return 0;
}

int file_open_hidden(struct fs *fs, uint64_t ino, struct ops_file **out)
{
	struct ops_file *file;
	struct ops_attr attr;
	int rc;

	ops_count(fs, OPS_CALL_OPEN);
	rc = handle_make(fs, ino, O_RDWR, &file);
	if (rc < 0)
		return rc;
	rc = inode_attr(fs, ino, &attr);
	if (rc == 0)
		rc = handle_check(fs, file, &attr.inode);
	if (rc < 0)
		handle_drop(fs, file);
	else
		*out = file;
	return rc;
}

void ops_close(struct fs *fs, struct ops_file *file)
{
	ops_count(fs, OPS_CALL_CLOSE);
	if (atomic_load_explicit(&file->locked, memory_order_relaxed))
		locks_closing(fs, file);
	handle_drop(fs, file);
}

bool ops_file_accessed(struct ops_file *file)
{
	return file->accessed;
}

bool ops_file_made(struct ops_file *file)
{
	return file->made;
}

bool ops_file_mappable(struct ops_file *file)
{
	return stores_possible(file->state);
}

/* Counted before the bytes for the kernel are looked up. A change reads the count after its end. So
 * either the look-up sees the change, or the change sees the count. */
void ops_file_paged(struct ops_file *file)
{
	atomic_fetch_add_explicit(&file->state->pages_given, 1, memory_order_seq_cst);
}

/* If opens are hidden: no program has read the file through the kernel's pages for many direct
 * writes. */
static bool is_direct_for_long(struct inode_state *st, uint64_t given)
{
	if (atomic_exchange_explicit(&st->pages_seen, given, memory_order_relaxed) !=
		given)
		atomic_store_explicit(&st->direct_writes, 0, memory_order_relaxed);
	return atomic_fetch_add_explicit(&st->direct_writes, 1, memory_order_relaxed) >=
	       DIRECT_WRITES_MIN;
}

bool ops_file_has_pages(struct ops_file *file, uint64_t *given, bool *alone)
{
	struct inode_state *st = file->state;

	atomic_thread_fence(memory_order_seq_cst);
	*given = atomic_load_explicit(&st->pages_given, memory_order_relaxed);
	if (*given == atomic_load_explicit(&st->pages_gone, memory_order_acquire))
		return false;
	*alone = fs_opens_hidden(file->fs) ? is_direct_for_long(st, *given)
					   : !has_handle(file->fs, st, is_buffered);
	return true;
}

/* A call that came meanwhile is counted, or had its pages locked in the kernel during the drop. */
void ops_pages_gone(struct fs *fs, uint64_t ino, uint64_t given)
{
	struct inode_state *st = state_find(fs, ino);

	if (!st)
		return;
	atomic_store_explicit(&st->pages_gone, given, memory_order_release);
	state_put(fs, st);
}

bool ops_goes_by_size(struct fs *fs, uint64_t ino, bool keeps)
{
	struct stripe *s;
	struct inode_state *st = state_peek(fs, ino, &s);
	bool goes = st && st->handles > 0 && (!keeps || stores_possible(st));

	rt_mutex_unlock(&s->lock);
	return goes;
}

uint64_t ops_file_ino(struct ops_file *file)
{
	return file->state->ino;
}

int file_open_new(struct fs *fs, uint64_t ino, int flags, struct ops_file **out)
{
	struct stripe *s = stripe_of(fs, ino);
	struct inode_state *st;
	int rc = handle_make(fs, ino, flags, out);

	if (rc < 0)
		return rc;
	(*out)->made = true;
	st = (*out)->state;
	/* Numbers are never used twice. So no state of this one was ever dropped, and no kernel has
	 * pages. */
	rt_mutex_lock(&st->lock);
	st->dirty_unknown = false;
	rt_mutex_unlock(&st->lock);
	atomic_store_explicit(&st->pages_given, 0, memory_order_relaxed);
	rt_mutex_lock(&s->lock);
	st->confirmed++;
	(*out)->confirmed = true;
	if ((flags & O_TMPFILE) == O_TMPFILE) {
		st->orphan = true;
		st->linkable = !(flags & O_EXCL);
	}
	rt_mutex_unlock(&s->lock);
	return 0;
}

void file_abandon(struct fs *fs, struct ops_file *file)
{
	struct stripe *s = stripe_of(fs, file->state->ino);

	rt_mutex_lock(&s->lock);
	file->state->orphan = false;
	rt_mutex_unlock(&s->lock);
	handle_drop(fs, file);
}

bool file_is_open(struct fs *fs, uint64_t ino)
{
	struct stripe *s;
	struct inode_state *st = state_peek(fs, ino, &s);
	bool open = st && st->handles > 0;

	rt_mutex_unlock(&s->lock);
	return open;
}

bool file_naming(struct fs *fs, uint64_t ino)
{
	struct stripe *s;
	struct inode_state *st = state_peek(fs, ino, &s);
	bool linkable =
		fs_opens_hidden(fs)
			? orphan_is_awaited(fs, ino) && !(st && st->reclaiming)
			: st && st->linkable && st->confirmed > 0 && !st->reclaiming;

	if (linkable && st)
		st->naming = true;
	rt_mutex_unlock(&s->lock);
	return linkable;
}

void file_named(struct fs *fs, uint64_t ino)
{
	struct stripe *s;
	struct inode_state *st = state_peek(fs, ino, &s);

	if (st)
		st->linkable = false;
	rt_mutex_unlock(&s->lock);
}

bool file_leave_to_close(struct fs *fs, uint64_t ino)
{
	struct stripe *s;
	struct inode_state *st = state_peek(fs, ino, &s);
	bool open = st && st->handles > 0;

	if (open)
		st->orphan = true;
	rt_mutex_unlock(&s->lock);
	return open;
}

bool state_is_idle(struct fs *fs, uint64_t ino)
{
	struct stripe *s;
	struct inode_state *st = state_peek(fs, ino, &s);
	bool idle = !st || (st->users == 0 && !st->naming);

	rt_mutex_unlock(&s->lock);
	return idle;
}

/* Closes all handles of the stripe, then frees its states. States without users are in one list. */
static void stripe_close(struct fs *fs, struct stripe *s)
{
	struct inode_state *st;

	for (unsigned b = 0; b < STRIPE_BUCKETS; b++) {
		st = s->bucket[b];
		while (st) {
			if (st->files) {
				handle_drop(fs, st->files);
				st = s->bucket[b];
			} else {
				st = st->next;
			}
		}
	}
	for (unsigned b = 0; b < STRIPE_BUCKETS; b++)
		while ((st = s->bucket[b]) != NULL) {
			WEFT_ASSERT(st->users == 0);
			s->bucket[b] = st->next;
			state_free(st);
		}
}

void file_table_close(struct fs *fs)
{
	if (!fs->files)
		return;
	for (unsigned i = 0; i < STRIPES; i++)
		stripe_close(fs, &fs->files->stripe[i]);
	rt_free(fs->files);
	fs->files = NULL;
}
