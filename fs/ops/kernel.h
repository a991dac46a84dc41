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
	bool hungry;              /* refused for long, since calls here change what it asks for */
	bool stores;              /* whoever gets the pages may store into them */
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
 * over, as above. `ends`: the answer tells where the file ends.
 */
bool kernel_read_answers(struct fs *fs, struct kernel_read *r, bool ends);
/* A little longer each time. */
void kernel_read_wait(struct kernel_read *r);
void kernel_read_end(struct fs *fs, struct kernel_read *r);
/* Brings what programs here have stored into the file through mappings. Waits, but for no page
 * that another node has. */
void kernel_fetch_stores(struct fs *fs, struct inode_state *st);

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

#endif
