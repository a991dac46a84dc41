/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A model of each node's kernel, as Linux behaves under FUSE.
 *
 * - A page is locked from the READ until its answer has been taken in, a moment after it was given.
 *   A drop waits for locked pages.
 * - Attributes have a version. An answer to a question from before a drop is not kept. Drops of
 *   attributes never wait.
 * - Names are expired under the directory's lock, and are asked for again without it. A walk into
 *   the directory needs its attributes.
 * - An inode that is not open may be evicted. Then there is nothing to drop, and an answer to an
 *   earlier question with a name brings it back.
 *
 * With `kernel_stores` programs also store into the pages through mappings, without a request. The
 * stores are written back before a page is dropped, or at any time, but not while a program of the
 * node sets the file's size. Until then the page is locked.
 */
#ifndef WEFT_TESTS_WORLD_KERNEL_H
#define WEFT_TESTS_WORLD_KERNEL_H

#include "fs/ops/kept.h"
#include "tests/world/world.h"

#define FILES       4
#define BLOCKS      8
#define LINKS       6 /* names in the one directory */
#define ANSWERS_MAX 32
#define TASKS       32 /* that look up at a time */
#define DENTRIES    4096
#define PLACES_MAX  64
#define WORD_HOLE   0ull
#define WORD_END    UINT64_MAX /* behind the end of the file */

struct kernel_page {
	bool locked, good;
	uint64_t word; /* that all of the page is made of */
	bool mapped,
		loaded; /* a processor loads `is` through a mapping until it is told */
	uint64_t is;
	bool earlier; /* that is of an earlier copy: what is stored is not seen there */
	bool dirty;   /* stored into since it was read, or written back */
};

struct kernel_file {
	uint64_t ino;
	bool known;       /* attributes may be gone by */
	bool absent;      /* the inode is not there */
	unsigned used;    /* by calls, so it stays */
	unsigned making;  /* who has the answer to a CREATE to come, or to take in */
	uint64_t version; /* of the attributes: when they were dropped last */
	uint64_t size;
	bool sets_size;    /* a program does: no other one is taken in from a READ */
	bool keeps_stores; /* the same: nothing is written back */
	unsigned writes;   /* being written back */
	struct kernel_page page[BLOCKS];
};

/* A dentry: it keeps what it is when it is moved, or leaves the directory. */
struct kernel_name {
	bool known;
	uint64_t ino; /* 0: absent */
};

/* A READ on its way. */
struct kernel_request {
	unsigned file, first, count;
	uint64_t version;
	size_t got;
	bool done;
	uint64_t word[BLOCKS];
	struct kernel_request *next;
};

struct kernel_model {
	struct node *n;
	struct kernel_file file[FILES];
	struct kernel_name *name[LINKS],
		dentry[DENTRIES]; /* one is used again when it has long been gone */
	unsigned dentries;
	uint64_t version, evictions;
	uint32_t
		taking[TASKS]; /* threads that have an answer, and have not taken it in */
	uint32_t walking[TASKS],
		locking[TASKS]; /* that ask for the directory's attributes */
	struct rt_mutex dir;    /* the directory's: looked up in, or changed */
	bool dir_known;         /* its attributes */
	uint64_t dir_version;
	struct rt_mutex lock;
	struct rt_cond changed, answered;
	struct kernel_request *answers;
	bool stopping;
	struct ops_file *open[FILES];
	uint32_t processes; /* that have come and gone */
	unsigned life;      /* of the node */
	uint64_t reads, reads_asked, stats, stats_asked, looks, looks_asked, drops;
	uint64_t finds, finds_kept, makes_kept, evicted, dropped_absent, expired;
};

extern struct kernel_model kernels[NODES_MAX];
/* Programs store through mappings. */
extern bool kernel_stores;
/* Places for inodes in the table of the daemon; 0: as kcache_inodes says. */
extern unsigned kernel_places;
extern _Atomic uint64_t kernel_noted[NODES_MAX][PLACES_MAX];
/* The model's notifications; the argument is the kernel_model. */
extern const struct kcache_ops kernel_ops;
bool kernel_drop_waits(void *owner, const _Atomic uint32_t *by);
enum kcache_walk kernel_walks(void *owner, uint32_t thread);

void kernel_start(struct node *n, const struct kcache_ops *ops, struct kernel_model *k);
void kernel_attributes_drop(struct kernel_model *k, struct kernel_file *f);
/* Under the lock. */
void kernel_write_range(
	struct kernel_model *k, struct kernel_file *f, uint64_t first, uint64_t end);
/* The kernel's own, behind a change by this node: at once. */
void kernel_own_drop(
	struct kernel_model *k, struct kernel_file *f, uint64_t first, uint64_t end);
/*
 * The kernel does so by itself: in front of a write by this node, or since a reader finds the mtime
 * changed. Who finds a page that a drop under way has unmapped
 * takes it out, and does not wait until processors have been told.
 */
void kernel_drop_itself(struct kernel_model *k, struct kernel_file *f, uint64_t block);
/* The answer is given; somebody takes it in, soon. */
int kernel_answer(void *arg, const struct iovec *iov, unsigned count, size_t total);
void kernel_main(void *arg);
/* As the kernel calls this task. */
uint32_t kernel_thread(const struct kernel_model *k);
/* This task asks, and waits for the answer. */
void kernel_heard(struct kernel_model *k);
/*
 * One question. *stale: the answer was not kept, since the attributes were dropped meanwhile.
 */
uint64_t kernel_ask_stat(struct kernel_model *k, unsigned file, bool *stale);
/* Memory is short: the kernel has let go of the inode, and gets one of which nothing is known. */
void kernel_forget_attributes(struct kernel_model *k, unsigned file);
void kernel_let_go(struct kernel_model *k, struct kernel_file *f);
/* Which is not open here. The daemon hears of it a moment later, by FORGET: it may be there
 * again by then. */
void kernel_evict(struct kernel_model *k, struct kernel_file *f);
/*
 * Whoever makes a file has its directory locked, and nobody had it before: no other program of this
 * node changes it before the maker has taken the answer in.
 */
void kernel_await_made(struct kernel_model *k, unsigned file);
/*
 * A name of the file is looked up: the answer has attributes, which may be kept where it is not
 * open. The inode is used until kernel_let_go. `may_make`: where it is absent the answer may be
 * that to who made it.
 */
uint64_t kernel_find(struct kernel_model *k, uint64_t dir, unsigned file, bool may_make);
uint64_t kernel_stat(struct kernel_model *k, unsigned file);
/* read(2) of one block: looks at the attributes first (AUTO_INVAL_DATA). Or an fstat and a load
 * through a mapping. */
uint64_t kernel_read_block(struct kernel_model *k, unsigned file, unsigned block);
/* A store through a mapping. False: the file has no such block. */
bool kernel_store(struct kernel_model *k, unsigned file, unsigned block, uint64_t word);
struct ops_name kernel_link_name(char out[8], unsigned i);
/*
 * Permission to use the directory: each walk into it asks for it, and so does, with the directory
 * locked, whoever changes it. That takes attributes, which need not be kept.
 */
void kernel_enter(struct kernel_model *k, uint64_t dir, bool locked);
/* The inode, or 0. */
uint64_t kernel_look(struct kernel_model *k, uint64_t dir, unsigned i);

#endif
