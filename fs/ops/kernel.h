/* SPDX-License-Identifier: Apache-2.0 */
/* A READ for the kernel's cache, step by step (kernel.c, data_read.c). */
#ifndef WEFT_OPS_KERNEL_H
#define WEFT_OPS_KERNEL_H

#include "fs/ops/data_internal.h"

/* Leaves that one READ may have been told from: those of 256 extents, a few without any on the way, and
 * the inode's. */
#define KERNEL_READ_LEAVES 32u

struct kernel_read {
	struct kernel_read *next; /* pending ones; under the lock of kernel.c */
	struct inode_state *st;
	uint64_t ino, first, end; /* file blocks [first, end) */
	bool pending, stale;      /* listed; the kernel does not wait for it any more */
	bool noted;               /* the inode is in the table, and stays until it is not pending */
	bool hungry;              /* refused for long, since calls here change what it asks for */
	bool mappable;            /* whoever gets the pages may store into them */
	bool stores;              /* and they are this node's alone for that */
	bool maps;                /* and asks for a mapping of its own */
	bool told;                /* processors know of earlier copies that were unmapped */
	unsigned leaves;
	struct cache_exposure leaf[KERNEL_READ_LEAVES];
	uint64_t wait_ns;
};

/* It is pending. `r` lives until kernel_read_end. */
void kernel_read_begin(struct fs *fs, struct kernel_read *r, struct inode_state *st,
	uint64_t offset, size_t len);
/*
 * It is pending, and the leaves that say what is read are exposed: look at them now.
 * -EAGAIN: wait, with nothing latched, and begin here once more. Waits.
 */
int kernel_read_expose(struct fs *fs, struct kernel_read *r);
/*
 * With all pages latched and exposed. True: pending no longer, answer now. False: start
 * over, as above. `end`: the answer tells that the file ends there; UINT64_MAX: it does not.
 */
bool kernel_read_answers(struct fs *fs, struct kernel_read *r, uint64_t end);
/* A little longer each time. */
void kernel_read_wait(struct kernel_read *r);
void kernel_read_end(struct fs *fs, struct kernel_read *r);
/* The kernel has let go of the inode, or of one of several references to it. */
void kernel_forgot(struct fs *fs, uint64_t ino);
/* Brings what programs here have stored into the file through mappings. Waits, but for no page
 * that another node has. */
void kernel_fetch_stores(struct fs *fs, struct inode_state *st);
/* Those of file blocks [first, end), and they are in the file. 0 or -EINTR. Waits, as kernel_stores_await. */
int kernel_fetch_range(
	struct fs *fs, struct inode_state *st, uint64_t first, uint64_t end);

/* A call here that changes bytes of file blocks [first, end), past the kernel's pages. */
struct kernel_change {
	struct kernel_change *next; /* under the lock of kernel.c */
	struct inode_state *st;
	uint64_t ino, first, end;
	bool cuts; /* the kernel writes nothing back until it is answered */
	bool listed;
};

/*
 * Before it changes anything: what programs have stored there through mappings has come, and the kernel has
 * nothing of the range from here to the end, so nobody finds there what somebody elsewhere has seen to be
 * otherwise. UINT64_MAX: to the end of the file. Waits for nobody but processors, answers on their way, and
 * write-backs; no latch may be held.
 */
void kernel_change_begin(struct fs *fs, struct kernel_change *c, struct inode_state *st,
	uint64_t offset, uint64_t len);
/*
 * The same for a call that sets the size. Where the kernel may have stores it keeps its pages, since it
 * writes nothing back before the answer; then it drops what is behind the end by itself.
 */
void kernel_change_cuts(struct fs *fs, struct kernel_change *c, struct inode_state *st,
	uint64_t size);
void kernel_change_end(struct fs *fs, struct kernel_change *c);

/* ---- OPS_MMAP_LOCAL: what a mapping held is written back (kernel_stores.c) ------------------- */

struct kernel_store {
	struct kernel_store *next; /* under the lock of kernel.c, as all here */
	struct kernel_change change;
	uint64_t number;
	uint64_t offset;
	const uint8_t *bytes;
	size_t len;
	uint64_t since_ns;
	uint64_t cut; /* bytes of the file from here on have been cut off meanwhile */
	unsigned needed; /* later ones look at its bytes */
	bool compared;   /* what the pages were is known: it may be answered */
	bool answered;
	bool answering; /* the task is just at it */
	void (*answer)(void *arg);
	void *arg;
};

/*
 * `s` has offset, bytes, len, answer and arg; `bytes` stay until its end. From here to that no READ
 * of the range is answered for the kernel's cache. `answer` is called once, as ops_store_local
 * says. `was`: room for the pages of the range, as the kernel had them before programs stored what
 * comes now; holes were zeros. Waits for READs that are let go first, a millisecond at most.
 */
void kernel_store_begin(
	struct fs *fs, struct kernel_store *s, struct inode_state *st, uint8_t *was);
/* Those of the same blocks that began before have ended. 0, or -EINTR: nobody wants it. Waits. */
int kernel_store_turn(struct fs *fs, struct kernel_store *s);
/* The kernel has no page of the block any more, nor gets one before the end: it is answered for that. */
void kernel_store_drop(struct fs *fs, struct kernel_store *s, uint64_t block);
/* So far its bytes are the file's. */
uint64_t kernel_store_limit(struct fs *fs, struct kernel_store *s);
/* True: it has been answered. */
bool kernel_store_end(struct fs *fs, struct kernel_store *s);
/* Before a call reads, changes or syncs the file past the kernel's cache: all that has been
 * written back of the inode (NULL: of all) is in the file. 0 or -EINTR. Waits as these do. */
int kernel_stores_await(struct fs *fs, const struct inode_state *st);
/*
 * data_read.c. Of a part of one page, those bytes that differ from what they were: into the file's page, but
 * not behind its end. 1, 0 (nothing differs, or it was cut off) or -errno. Waits.
 */
int data_merge(struct fs *fs, struct inode_state *st, struct kernel_store *s,
	uint64_t offset, const uint8_t *bytes, const uint8_t *was, size_t len);
/* Before the size is set. */
void kernel_stores_cut(struct fs *fs, uint64_t ino, uint64_t size);

/* ---- sizes that are pushed (kernel_push.c) ------------------------------------------------ */

/* What says the size of the inode is about to be given up: if it is open here, the size is told again. */
void kernel_push(struct kernel *k, uint64_t ino);
/* The last handle is gone: under the stripe's lock. */
void kernel_push_closed(struct kernel *k, struct inode_state *st);

#endif
