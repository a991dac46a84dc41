/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state of a kernel's cache, and the calls between its files (docs/nodes/kernel-cache.md):
 *
 * - kcache.c starts and stops it; reads.c has pending READs; drops.c drops pages and attributes;
 * - changes.c has calls here that change a file; stores.c has write-backs of mappings;
 * - table.c has the inodes that the kernel may cache; known.c records their attributes and sizes;
 * - names.c has names, dirs.c directories that move, sizes.c and push.c sizes.
 *
 * "Under the lock" means kcache.lock.
 */
#ifndef WEFT_KCACHE_INTERNAL_H
#define WEFT_KCACHE_INTERNAL_H

#include <bsd/sys/tree.h>
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "fs/kcache/pending.h"

#define READ_BUCKETS 64u
#define TASKS_MAX    4096u /* workers, drops of the cache, and those left to READs */
#define HEARD_MAX    4096u

/* Waits that are repeated begin with the first of these, and grow to the last. */
#define WAIT_FIRST_NS 10000ull
#define WAIT_LAST_NS  200000ull

/* A range of blocks that one of the tasks drops. */
struct part {
	struct part *next; /* in the queue, then in the list of those under way */
	uint64_t ino, first, end;
	unsigned users; /* the tasks that wait for it, and the one that drops it */
	bool done;
	bool touched; /* a READ asks for some of it: the drop may wait for that READ, and no
			 task waits for the drop */
	/* The drop of the cache whose own task drops it, or NULL. `anew`: another task has begun
	 * that drop anew. */
	const struct cache_kcached *of;
	bool anew;
	_Atomic uint32_t by;
	uint64_t
		told; /* processors know of all pages that it had unmapped at this moment */
};

/* An inode of which the kernel may cache something. Links are 1 + a place; 0: none. */
struct known {
	uint64_t ino;          /* 0: the place is free */
	uint32_t next;         /* in its bucket, or in the list of free places */
	uint32_t older, newer; /* by the time of the last note */
	uint32_t note;         /* changes with each note */
	uint32_t stamp;        /* changes when a READ of it begins or ends */
	bool pages, attributes;
	/* The size that attributes told the kernel last, to which thread, and when. `sure`: the
	 * kernel has taken it in. */
	bool told, sure;
	uint32_t thread, told_at;
	uint64_t size;
	/* The last thread that was given attributes with a name, and may not have taken them in (0:
	 * none). When, by which answer, and whether that has been given. */
	uint32_t looker, looked_at, look;
	bool answered;
	bool made; /* that thread made the inode, so it takes the attributes in in any case */
	struct kcache_seen seen; /* of that thread since then */
};

/* table.c. All is under the lock. */
struct known_table {
	struct known *place;
	uint32_t *bucket; /* 1 + the place of the first */
	uint32_t places, buckets;
	uint32_t fresh;  /* places from here on were never used */
	uint32_t unused; /* 1 + the first free place below `fresh` */
	uint32_t used;
	uint32_t oldest, newest;
	uint32_t moments;        /* counts notes and stamps */
	_Atomic uint64_t *noted; /* the inode numbers, by place (kcache.h), or NULL */
	struct kernel_counters *counters;
	struct rt_task *trimmer; /* NULL: it is not running */
	struct rt_cond few;      /* signalled when few places are free */
	bool trimming;
};

#define GATE_BUCKETS   64u
#define NAME_TASKS_MAX 1024u
#define NAME_JOBS_MAX  4096u

/* The names that the kernel caches (names.c). */
struct kcache_names {
	struct rt_mutex lock; /* all here except `gated` */
	struct rt_cond work, opened;
	struct kcache_gate *gates[GATE_BUCKETS];
	_Atomic uint32_t gated; /* gates that are shut */
	uint64_t gate_number;   /* of the last */
	struct names_job *queue, **queue_end;
	unsigned jobs; /* queued and under way */
	unsigned queued, idle, tasks;
	bool trim, trimming; /* queued; queued or under way */
	bool stopping;
	RB_HEAD(absent_tree, absent) absent; /* by directory and hash */
	struct absent *oldest, *newest;
	size_t absent_bytes, absent_max;
	uint64_t absent_number; /* of the newest */
	struct rt_task *task[NAME_TASKS_MAX];
};

#define DIR_JOBS_MAX  256u
#define DIR_TASKS_MAX 16u

/* Under which names the kernel has directories (dirs.c). */
struct kcache_dirs {
	struct rt_mutex lock; /* all here */
	struct rt_cond work, ended;
	RB_HEAD(dir_ino_tree, dir_place) by_ino;
	RB_HEAD(dir_doubt_tree, dir_place) by_doubt; /* by parent, of those in doubt */
	_Atomic uint32_t doubts; /* places in doubt */
	struct dir_place *oldest, *newest;
	unsigned count, max;
	struct dir_job *jobs; /* in order */
	unsigned count_jobs, queued, idle, tasks;
	unsigned checks,
		checking; /* jobs that check a place, and those that have begun */
	bool stopping;
	struct rt_task *task[DIR_TASKS_MAX];
};

struct kcache {
	struct cache *cache;
	struct tree *tree;
	struct kcache_sizes *sizes;
	const struct kcache_ops *ops;
	void *owner; /* for ops */
	const struct kcache_source *source;
	void *source_owner;
	bool maps_alone, maps_local; /* kcache_config */

	struct rt_mutex lock;
	struct rt_cond work, changed;
	struct kcache_read *reads[READ_BUCKETS];     /* pending */
	struct kcache_change *changes[READ_BUCKETS]; /* by calls here, under way */
	struct kcache_store *stores, **stores_end;   /* stores.c: in order */
	uint64_t store_number;                       /* of the next */
	struct pushes *pushes;                       /* push.c */
	struct rt_cond late;                         /* for the task `answering` */
	struct rt_task
		*answering; /* answers write-backs that take long; NULL: not running */
	struct part *queue, **queue_end, *under_way;
	uint64_t moment;
	unsigned queued, idle, tasks;
	bool stopping;
	_Atomic bool gone;
	uint32_t looks; /* numbers answers with a name */
	struct rt_task *task[TASKS_MAX];
	struct known_table known;
	struct kcache_names names;
	struct kcache_dirs dirs;
	_Atomic uint32_t questions; /* heard so far */
	_Atomic uint64_t
		heard[HEARD_MAX]; /* by thread: the thread, and the number of its last
					      question */
};

static inline unsigned kcache_ino_hash(uint64_t ino)
{
	return (unsigned)(ino * 0x9e3779b97f4a7c15ull >> 32);
}

/* ---- READs (reads.c): under the lock ------------------------------ */

/* Returns true if a READ of the inode is pending. */
bool kcache_read_pending(const struct kcache *k, uint64_t ino);
/*
 * Says whether a pending READ covers the block `at` (*covered). Returns the block behind that READ,
 * or the block where the next pending READ begins; `end` at most.
 */
uint64_t kcache_read_covers(
	struct kcache *k, uint64_t ino, uint64_t at, uint64_t end, bool *covered);

/* ---- drops (drops.c) ------------------------------ */

/* A task that drops parts; the argument is the kcache. */
void kcache_part_main(void *arg);
/*
 * Has the kernel drop its pages of blocks [first, end), except those that a pending READ asks for.
 * `leaf`: the leaf that maps them is given up, not the pages; then it does not wait for a call that
 * sets the size. `of`: the drop of the cache that this is part of, or NULL. Returns false if
 * another task has begun that drop anew. Waits.
 */
bool kcache_drop_range(struct kcache *k, uint64_t ino, uint64_t first, uint64_t end,
	bool leaf, const struct cache_kcached *of);
/* Has the kernel drop the attributes, also of answers on their way. Waits for those. */
void kcache_attributes_drop(struct kcache *k, uint64_t ino);
/* The leaf that has the inode is given up: has the kernel drop its attributes, and with `pages` all
 * its pages. Returns as kcache_drop_range. Waits. */
bool kcache_drop_inode(
	struct kcache *k, uint64_t ino, bool pages, const struct cache_kcached *of);
/* Under the lock: a READ begins, so drops of its blocks may wait for it. */
void kcache_parts_touch(struct kcache *k, const struct kcache_read *r);
/* Under the lock: a call that sets the size is listed. Drops of its leaf may not wait for it, so
 * other tasks begin them anew. */
void kcache_parts_cut(struct kcache *k, uint64_t ino);
/* Under the lock: returns true if a drop of some of the blocks is queued or under way. */
bool kcache_dropping(const struct kcache *k, uint64_t ino, uint64_t first, uint64_t end);
/* Under the lock, which it lets go of: returns when all processors know of the pages in the range
 * that drops have unmapped so far. Waits. */
void kcache_range_told(struct kcache *k, uint64_t ino, uint64_t first, uint64_t end);

/* ---- calls here that change a file (changes.c): under the lock ------------------------------ */

/* Returns true if a call here changes some of the blocks. */
bool kcache_changing(const struct kcache *k, uint64_t ino, uint64_t first, uint64_t end);
/* Returns true if a call here sets the size of a file with stores through mappings: the kernel
 * writes these back only after the answer. */
bool kcache_cutting(const struct kcache *k, uint64_t ino);
/* The same for any file. */
bool kcache_sizing(const struct kcache *k, uint64_t ino);
/* Lists the change, after a READ that has waited long. Lets go of the lock for that. */
void kcache_change_list(struct kcache *k, struct kcache_change *c);
void kcache_change_unlist(struct kcache *k, struct kcache_change *c);

/* ---- write-backs of mappings, with maps_local (stores.c) ------------------------------ */

int kcache_stores_start(struct kcache *k);
void kcache_stores_stop(struct kcache *k);

/* ---- sizes that are pushed (push.c) ------------------------------ */

int kcache_pushes_start(struct kcache *k);
/* A leaf that says the size of the inode is given up. If the file is open here, a task tells the
 * kernel the size again. Never waits. */
void kcache_push(struct kcache *k, uint64_t ino);
/* k->pushes may be freed when no file is opened or closed any more. */
void kcache_pushes_stop(struct kcache *k);

/* ---- names (names.c) ------------------------------ */

int kcache_names_start(struct kcache *k);
void kcache_names_stop(struct kcache *k);
/* The leaf with this image is given up: a walk that begins from here on asks for each of its names.
 * Waits for memory at most. */
void kcache_names_drop(struct kcache *k, const void *image);
/* A thread asks for the attributes of the directory, perhaps to walk into it. Returns 0 when the
 * answer may be given, or -EINTR if the thread does not wait for it any more. Waits. */
int kcache_gate_pass(struct kcache *k, uint64_t dir, uint32_t thread);

/* ---- directories that move (dirs.c) ------------------------------ */

void kcache_dirs_start(struct kcache *k);
void kcache_dirs_stop(struct kcache *k);
/* The attributes of a directory are about to be answered. If the kernel has it in another parent,
 * the kernel moves it before this returns, or cannot for a while. Waits. */
void kcache_dir_follow(struct kcache *k, const struct ops_attr *attr, uint32_t thread);
/* The name of a directory in `dir` was expired, so another node may move it from now on. Never
 * waits. */
void kcache_dir_doubt(struct kcache *k, uint64_t ino, uint64_t dir);
/* Returns true if a directory that the kernel has in `dir` may have moved. The attributes of `dir`
 * are not to be kept then. */
bool kcache_dir_doubted(struct kcache *k, uint64_t dir);
/* The attributes of the directory are about to be answered, perhaps to a walk into it. The kernel
 * moves the directories in it that have moved before this returns, or cannot for a while. Waits. */
void kcache_dir_verify(struct kcache *k, uint64_t dir, uint32_t thread);
/* The kernel may have let go of the directory. */
void kcache_dir_forgotten(struct kcache *k, uint64_t ino);

/* ---- inodes that the kernel caches (table.c): under the lock, except open to close -------- */

/* Makes at most as many places as `noted` has numbers. 0 or -ENOMEM. */
int known_open(struct kcache *k, const struct kcache_noted *noted);
/* From here on the oldest inodes are dropped when few places are free. 0 or -errno. */
int known_start(struct kcache *k);
void known_stop(struct kcache *k);
void known_close(struct kcache *k);
/* NULL: the kernel caches nothing of the inode. */
struct known *known_find(struct kcache *k, uint64_t ino);
/* Call it before the kernel is told anything of the inode. NULL: all places are taken, for now. */
struct known *known_note(struct kcache *k, uint64_t ino);
/* A new stamp. */
uint32_t known_moment(struct kcache *k);

/* ---- attributes, pages and sizes that it was told (known.c): under the lock -------- */

/* The kernel gets pages of the inode. Returns false if there is no place, for now. */
bool known_note_pages(struct kcache *k, uint64_t ino);
bool known_has_pages(struct kcache *k, uint64_t ino);
/* Returns true if the kernel may have attributes of the inode. The caller has it drop them. */
bool known_forget_attributes(struct kcache *k, uint64_t ino);
/* The same, also for sizes on their way (*attributes). Returns true if the kernel may have pages;
 * *stamp is for known_forget_pages. */
bool known_drop(struct kcache *k, uint64_t ino, bool *attributes, uint32_t *stamp);
/* All pages were dropped. They are forgotten if no READ has begun or ended since `stamp`. */
void known_forget_pages(struct kcache *k, uint64_t ino, uint32_t stamp);
/* Some pages may not have been dropped, since the drop was not waited for. */
void known_keep_pages(struct kcache *k, uint64_t ino);
/* Returns true if the last thread that was given attributes with a name has taken them in. */
bool known_looker_done(struct kcache *k, struct known *n);
/* The same by number. Otherwise call it again later. *made: that thread made the inode. */
bool known_taken_in(struct kcache *k, uint64_t ino, bool *made);
/* A READ is answered that tells the kernel where the file ends. */
void known_end_size(struct kcache *k, uint64_t ino, uint64_t end);
/* Takes the lock itself. Returns true if the kernel, or `thread`, has taken in this size. */
bool known_has_size(struct kcache *k, uint32_t thread, const struct ops_attr *attr);

#endif
