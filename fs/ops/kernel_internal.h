/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of the kernel's cache share (docs/many-nodes.md, "The kernel"): kernel.c has READs
 * and drops, kernel_table.c the inodes, kernel_known.c what the kernel was told of them.
 */
#ifndef WEFT_OPS_KERNEL_INTERNAL_H
#define WEFT_OPS_KERNEL_INTERNAL_H

#include "fs/ops/kernel.h"

#define READ_BUCKETS 64u
#define TASKS_MAX    4096u /* workers, drops of the cache, and those left to READs */
#define HEARD_MAX    4096u

/* A range being dropped by one of the tasks. */
struct part {
	struct part *next; /* in the queue, then of those under way */
	uint64_t ino, first, end;
	unsigned users; /* who waits for it, and who does it */
	bool done;
	bool touched; /* by a READ: it may have to wait for that, and nobody waits for it */
	_Atomic uint32_t by;
	uint64_t
		told; /* the moment up to which processors know of what it has unmapped */
};

/* An inode of which the kernel may have something. Links are 1 + a place; 0: none. */
struct known {
	uint64_t ino;          /* 0: free */
	uint32_t next;         /* in its bucket, or of the free ones */
	uint32_t older, newer; /* by when they were noted last */
	uint32_t note;         /* changes whenever it is noted */
	uint32_t stamp;        /* changes with each READ's begin and end */
	bool pages, attributes;
	/* The size that attributes told it last, and whom, when. `sure`: it has taken it in. */
	bool told, sure;
	uint32_t asker, told_at;
	uint64_t size;
	/* Who was last given attributes with a name, and may not have taken them in: a thread (0: nobody),
	 * when, which answer, whether that has been given, what was seen of the thread since. */
	uint32_t looker, looked_at, look;
	bool answered;
	bool made; /* it was asked to make the inode: takes them in whatever the kernel has by then */
	struct ops_seen seen;
};

/* kernel_table.c; all is under the kernel's lock. */
struct known_table {
	struct known *place;
	uint32_t *bucket; /* 1 + the place of the first */
	uint32_t places, buckets;
	uint32_t fresh;  /* places from here on were never used */
	uint32_t unused; /* 1 + the first of those given back */
	uint32_t used;
	uint32_t oldest, newest;
	uint32_t moments;        /* counts notes and stamps */
	_Atomic uint64_t *noted; /* the numbers, by place (ops.h), or NULL */
	struct kernel_counters *counters;
	struct rt_task *trimmer; /* NULL: there is none */
	struct rt_cond few;      /* places are free: the trimmer's */
	bool trimming;
};

#define GATE_BUCKETS   64u
#define ABSENT_BUCKETS 4096u
#define NAME_TASKS_MAX 1024u
#define NAME_JOBS_MAX  4096u

/* The names that it keeps (kernel_names.c). */
struct kernel_names {
	struct rt_mutex lock; /* all here but `gated` */
	struct rt_cond work, opened;
	struct ops_gate *gates[GATE_BUCKETS];
	_Atomic uint32_t gated; /* gates that are shut */
	uint64_t gate_number;   /* of the last */
	struct names_job *queue, **queue_end;
	unsigned jobs; /* queued and under way */
	unsigned queued, idle, tasks;
	bool trim, trimming; /* queued; queued or under way */
	bool stopping;
	struct absent *absent[ABSENT_BUCKETS], *oldest, *newest;
	size_t absent_bytes, absent_max;
	uint64_t absent_number; /* of the newest */
	struct rt_task *task[NAME_TASKS_MAX];
};

#define DIR_BUCKETS    4096u
#define DIR_JOBS_MAX   256u
#define DIR_TASKS_MAX  16u

/* Where it has directories (kernel_dirs.c). */
struct kernel_dirs {
	struct rt_mutex lock; /* all here */
	struct rt_cond work, ended;
	struct dir_place *by_ino[DIR_BUCKETS], *by_doubt[DIR_BUCKETS];
	_Atomic uint32_t doubts; /* places in doubt */
	struct dir_place *oldest, *newest;
	unsigned count, max;
	struct dir_job *jobs; /* in order */
	unsigned count_jobs, queued, idle, tasks;
	unsigned checks, checking; /* jobs that are, and those that have begun */
	bool stopping;
	struct rt_task *task[DIR_TASKS_MAX];
};

struct kernel {
	struct fs *fs;
	const struct ops_kernel *ops;
	void *owner;
	struct rt_mutex lock;
	struct rt_cond work, changed;
	struct kernel_read *reads[READ_BUCKETS];     /* pending */
	struct kernel_change *changes[READ_BUCKETS]; /* by calls here, under way */
	struct kernel_store *stores, **stores_end;   /* kernel_stores.c: in order */
	uint64_t store_number;                       /* of the next */
	struct pushes *pushes;                       /* kernel_push.c */
	struct rt_cond late;                         /* for the task that answers them */
	struct rt_task *answering;                   /* NULL: there is none */
	struct part *queue, **queue_end, *under_way;
	uint64_t moment;
	unsigned queued, idle, tasks;
	bool stopping;
	_Atomic bool gone;
	uint32_t looks;
	struct rt_task *task[TASKS_MAX];
	struct known_table known;
	struct kernel_names names;
	struct kernel_dirs dirs;
	_Atomic uint32_t questions;        /* heard so far */
	_Atomic uint64_t heard[HEARD_MAX]; /* by thread: it, and the number of its last */
};

static inline unsigned ino_hash(uint64_t ino)
{
	return (unsigned)(ino * 0x9e3779b97f4a7c15ull >> 32);
}

/* Under the lock: a call here changes some of the blocks. */
bool kernel_changing(const struct kernel *k, uint64_t ino, uint64_t first, uint64_t end);

/* Under the lock: lists the change, as soon as nobody is let go first. */
void kernel_change_list(struct kernel *k, struct kernel_change *c);
void kernel_change_unlist(struct kernel *k, struct kernel_change *c);
/* The kernel has none of these pages any more, as far as READs are not pending. Waits. */
void kernel_drop(struct kernel *k, uint64_t ino, uint64_t first, uint64_t end);
/* Under the lock: somebody waits until the kernel has dropped some of the blocks. */
bool kernel_dropping(const struct kernel *k, uint64_t ino, uint64_t first, uint64_t end);

/* The leaf that has the inode is given up: the kernel drops its attributes, and with `pages` all pages that it
 * may have. Waits. */
void kernel_drop_inode(struct kernel *k, uint64_t ino, bool pages);
/* Under the lock: a READ of the inode is pending. */
bool kernel_read_pending(const struct kernel *k, uint64_t ino);

/* ---- what comes back of mappings, with OPS_MMAP_LOCAL (kernel_stores.c) --------------------- */

int kernel_stores_start(struct kernel *k);
void kernel_stores_stop(struct kernel *k);

/* ---- sizes that are pushed (kernel_push.c) ------------------------------------------------ */

int kernel_pushes_start(struct kernel *k);
/* k->pushes may be freed when no file is opened or closed any more. */
void kernel_pushes_stop(struct kernel *k);
/* kernel_known.c. The kernel has the size: it was told it, and has taken it in, or `asker` has. */
bool size_is_had(struct kernel *k, uint32_t asker, const struct ops_attr *attr);

/* ---- names (kernel_names.c) ------------------------------------------------------------- */

int kernel_names_start(struct kernel *k);
void kernel_names_stop(struct kernel *k);
/* The leaf with this image is given up: a walk that begins from here on uses no name of it unasked. Waits
 * for memory at most. */
void kernel_names_drop(struct kernel *k, const void *image);
/* Are names of the directory being expired? Then its attributes are not to be kept. */
bool kernel_gated(struct kernel *k, uint64_t dir);
/* Attributes of the directory are asked for, perhaps by a walk into it: returns when it may go on, 0, or
 * -EINTR if nobody waits for the answer any more. Waits. */
int kernel_gate_pass(struct kernel *k, uint64_t dir, uint32_t asker);

/* ---- directories that move (kernel_dirs.c) ---------------------------------------------- */

void kernel_dirs_start(struct kernel *k);
void kernel_dirs_stop(struct kernel *k);
/* Attributes of a directory are about to be answered: if it has another parent than the kernel has, the kernel
 * moves it before this returns, or cannot for a while. Waits. */
void kernel_dir_follow(struct fs *fs, const struct ops_attr *attr, uint32_t asker);
/* The name of a directory in `dir` was expired: it may be moved elsewhere from now on. Never waits. */
void kernel_dir_doubt(struct kernel *k, uint64_t ino, uint64_t dir);
/* May one that the kernel has in the directory have moved? Then its attributes are not to be kept. */
bool kernel_dir_doubted(struct kernel *k, uint64_t dir);
/* Attributes of the directory are about to be answered, perhaps to a walk into it: the kernel moves those below it
 * that have moved before this returns, or cannot for a while. Waits. */
void kernel_dir_verify(struct kernel *k, uint64_t dir, uint32_t asker);
/* The kernel may have let go of it. */
void kernel_dir_forgotten(struct kernel *k, uint64_t ino);

/* ---- which inodes (kernel_table.c): under the lock, but for open, start, stop and close ------------- */

/* At most as many places as `noted` has numbers. 0 or -ENOMEM. */
int known_open(struct kernel *k, const struct ops_noted *noted);
/* From here on the oldest inodes are dropped when few places are free. 0 or -errno. */
int known_start(struct kernel *k);
void known_stop(struct kernel *k);
void known_close(struct kernel *k);
/* NULL: the kernel has nothing of the inode. */
struct known *known_find(struct kernel *k, uint64_t ino);
/* Before the kernel is told anything of it. NULL: all places are taken, for now. */
struct known *known_note(struct kernel *k, uint64_t ino);
/* A new stamp. */
uint32_t known_moment(struct kernel *k);

/* ---- what it was told (kernel_known.c): under the lock -------------------------------------------- */

/* The kernel gets pages of it. False: there is no place, for now. */
bool pages_note(struct kernel *k, uint64_t ino);
/* The kernel's attributes of it are to be dropped, if this says so. */
bool attributes_forget(struct kernel *k, uint64_t ino);
/* May it have pages? */
bool pages_known(struct kernel *k, uint64_t ino);
/* Its attributes are dropped; may it have pages? */
bool known_drop(struct kernel *k, uint64_t ino, bool *attributes, uint32_t *stamp);
/* Whoever was given its attributes with a name has taken them in. */
bool looker_done(struct kernel *k, struct known *n);
/* Whoever was given its attributes with a name has taken them in; else this is to be asked again. *made: the
 * last of them made it. */
bool names_taken_in(struct kernel *k, uint64_t ino, bool *made);
/* All its pages were dropped, if nobody has read meanwhile. */
void pages_forget(struct kernel *k, uint64_t ino, uint32_t stamp);
/* Not all: a drop of them was not waited for. */
void pages_stay(struct kernel *k, uint64_t ino);
/* A READ is answered that tells the kernel where the file ends. */
void size_ended(struct kernel *k, uint64_t ino, uint64_t end);

#endif
