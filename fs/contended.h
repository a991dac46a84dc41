/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The inodes that nodes contend for: their requests take pages back that another node has taken
 * from this one.
 *
 * Counts the pages by inode, and keeps the inodes with most of them. The algorithm is Space-Saving
 * (Metwally, Agrawal, El Abbadi: Efficient computation of frequent and top-k elements, 2005). An
 * inode with more than one in CONTENDED_MAX of the pages of a window is always listed. Only
 * requests that have waited for another node are noted.
 */
#ifndef WEFT_FS_CONTENDED_H
#define WEFT_FS_CONTENDED_H

#include "engine/rt/rt.h"

#define CONTENDED_MAX       64u
#define CONTENDED_LISTED    16u /* in a status */
#define CONTENDED_WINDOW_NS 30000000000ull

struct contended_inode {
	uint64_t ino;
	uint64_t changed;  /* pages that its requests took back to change them, */
	uint64_t read;     /* and to read them */
	uint64_t error;    /* pages of inodes that had this place before; part of its count */
	uint64_t requests; /* requests that took pages back, and the time that they took in all */
	uint64_t took_ns;
};

/* Begins as zeros. */
struct contended {
	struct rt_mutex lock; /* a leaf, held briefly; for all below */
	/* the present window, and the one before: the list is about both */
	struct {
		uint64_t began_ns;
		unsigned count;
		struct contended_inode at[CONTENDED_MAX];
	} window[2];
	unsigned now;
};

/* Notes a request for `ino`: the pages that it took back to change and to read them, and its
 * duration. Never waits. */
void contended_note(struct contended *c, uint64_t now_ns, uint64_t ino, uint64_t changed,
	uint64_t read, uint64_t took_ns);
/* Lists up to `max` inodes, those first that changed most pages. Returns their number. *since_ns:
 * the begin of the time that the list is about, one to two windows ago. Never waits. */
unsigned contended_list(struct contended *c, uint64_t now_ns, struct contended_inode *out,
	unsigned max, uint64_t *since_ns);

#endif
