/* SPDX-License-Identifier: Apache-2.0 */
/* A READ for the kernel's cache, step by step (kernel.c, data_read.c). */
#ifndef WEFT_OPS_KERNEL_H
#define WEFT_OPS_KERNEL_H

#include "fs/ops/data_internal.h"

/* Leaves that one READ may have been told from: those of 256 extents, and the inode's. */
#define KERNEL_READ_LEAVES 16u

struct kernel_read {
	struct kernel_read *next; /* pending ones; under the lock of kernel.c */
	struct inode_state *st;
	uint64_t ino, first, end; /* file blocks [first, end) */
	bool pending, stale;      /* listed; the kernel does not wait for it any more */
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

#endif
