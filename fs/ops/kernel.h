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
	uint64_t ino, first, end; /* file blocks [first, end) */
	bool pending, stale;      /* listed; the kernel does not wait for it any more */
	bool hungry;              /* refused for long, since calls here change what it asks for */
	unsigned leaves;
	struct cache_exposure leaf[KERNEL_READ_LEAVES];
	uint64_t wait_ns;
};

/* It is pending. `r` lives until kernel_read_end. */
void kernel_read_begin(
	struct fs *fs, struct kernel_read *r, uint64_t ino, uint64_t offset, size_t len);
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

/* A call here that changes bytes of file blocks [first, end), past the kernel's pages. */
struct kernel_change {
	struct kernel_change *next; /* under the lock of kernel.c */
	uint64_t ino, first, end;
	bool listed;
};

/*
 * Before it changes anything: the kernel has nothing of the range from here to the end, so nobody
 * finds there what somebody elsewhere has seen to be otherwise. UINT64_MAX: to the end of the
 * file. Pages of it must be clean. Waits for nobody but processors and answers on their way; no
 * latch may be held.
 */
void kernel_change_begin(
	struct fs *fs, struct kernel_change *c, uint64_t ino, uint64_t offset, uint64_t len);
void kernel_change_end(struct fs *fs, struct kernel_change *c);

#endif
