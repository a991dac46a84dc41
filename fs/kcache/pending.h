/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls by which the operations report to this layer. They report READs for the kernel's cache,
 * step by step, changes of a file past the kernel's pages, and write-backs of mappings.
 */
#ifndef WEFT_KCACHE_PENDING_H
#define WEFT_KCACHE_PENDING_H

#include "fs/kcache/kcache.h"

/* This layer's part of a file's state. The operations set `ino` at first, and `mappable`, `mapped`
 * and `storing`. */
struct kcache_file {
	uint64_t ino;
	/* Handles that may be mapped to store into. */
	_Atomic uint32_t mappable;
	/* OPS_MMAP_LOCAL: write-backs whose bytes are not in the file yet. */
	_Atomic uint32_t storing;
	/* The inode names this node among its writers, for stores through mappings. */
	_Atomic bool mapped;

	/* On one node, under the lock of kcache_sizes: the kernel has this size, or a larger one;
	 * bytes come into the file past its pages. */
	_Atomic bool passed;
	uint64_t told_size;

	/* With other nodes, while it is open: its size is to be told to the kernel. Under the lock
	 * of push.c. */
	struct {
		struct kcache_file *next;
		bool listed;
		unsigned tries;
		uint64_t number, due_ns, pushed_ns;
	} push;
};

/* Returns true if programs here may store into the file without a request. Then the kernel gets its
 * pages exclusively. */
static inline bool kcache_stores_possible(const struct kcache_file *file)
{
	return atomic_load_explicit(&file->mappable, memory_order_seq_cst) > 0;
}

/* ---- READs for the kernel's cache (reads.c) -------------------- */

/* The leaves that one READ depends on: of 256 extents, a few empty ones between, and the
 * inode's. */
#define KCACHE_READ_LEAVES 32u

struct kcache_read {
	struct kcache_read *next; /* of the pending ones */
	struct kcache_file *file;
	uint64_t ino, first, end; /* file blocks [first, end) */
	bool pending;             /* listed */
	bool stale;               /* the kernel has given it up: its process was killed */
	bool noted;    /* the inode has a place in the table while it is pending */
	bool hungry;   /* refused for long, since calls here change these blocks */
	bool mappable; /* programs may store into the pages */
	bool stores;   /* these pages are this node's alone for that */
	bool maps;     /* the handle asks for a mapping to store into */
	bool told;     /* processors know of earlier copies that were unmapped */
	unsigned leaves;
	struct cache_kcopy leaf[KCACHE_READ_LEAVES];
	uint64_t wait_ns;
};

/* Lists the READ as pending. `r` lives until kcache_read_end. */
void kcache_read_begin(struct kcache *k, struct kcache_read *r, struct kcache_file *file,
	uint64_t offset, size_t len);
/*
 * Makes the leaves that map the blocks kernel-cached. Look the blocks up after it. Returns 0, or
 * -EAGAIN: call kcache_read_wait with nothing latched, then this again; or another -errno. Waits.
 */
int kcache_read_leaves(struct kcache *k, struct kcache_read *r);
/*
 * Call it with all pages latched and kernel-cached. Returns true if the READ is to be answered now;
 * it is pending no longer. Returns false if all is to begin again, as above. `end`: the answer
 * tells that the file ends there; UINT64_MAX: it does not.
 */
bool kcache_read_answers(struct kcache *k, struct kcache_read *r, uint64_t end);
/* Waits a little longer each time. */
void kcache_read_wait(struct kcache_read *r);
void kcache_read_end(struct kcache *k, struct kcache_read *r);
/* The kernel has let go of the inode, or of one of several references to it. `k` may be NULL. */
void kcache_forgot(struct kcache *k, uint64_t ino);
/* Brings programs' stores through mappings into the file. `k` may be NULL. Waits, but for no page
 * that another node has. */
void kcache_fetch_stores(struct kcache *k, struct kcache_file *file);
/* The same for file blocks [first, end), until they are in the file. 0 or -EINTR. Waits, as
 * kcache_stores_await. */
int kcache_fetch_range(
	struct kcache *k, struct kcache_file *file, uint64_t first, uint64_t end);

/* ---- calls here that change a file (changes.c) -------------------- */

/* A call here that changes bytes of file blocks [first, end), past the kernel's pages. */
struct kcache_change {
	struct kcache_change *next;
	struct kcache_file *file;
	uint64_t ino, first, end;
	bool cuts; /* it sets the size: the kernel writes nothing back until the answer */
	bool listed;
};

/*
 * Call it before the first byte changes. Programs' stores in the range have come when it returns,
 * and the kernel has no page of the range until kcache_change_end. So no program here reads bytes
 * that another node has seen changed. `len` UINT64_MAX: to the end of the file. `k` may be NULL.
 * Waits for processors, answers on their way and write-backs only; no latch may be held.
 */
void kcache_change_begin(struct kcache *k, struct kcache_change *c,
	struct kcache_file *file, uint64_t offset, uint64_t len);
/*
 * The same for a call that sets the size. If the kernel may have stores, it keeps its pages: it
 * writes nothing back before the answer. Then it drops the pages behind the end by itself.
 */
void kcache_change_cuts(struct kcache *k, struct kcache_change *c,
	struct kcache_file *file, uint64_t size);
void kcache_change_end(struct kcache *k, struct kcache_change *c);

/* ---- write-backs of mappings, with maps_local (stores.c) -------------------- */

/* A WRITE by which the kernel writes stores back. */
struct kcache_store {
	struct kcache_store *next;
	struct kcache_change change;
	uint64_t number;
	uint64_t offset;
	const uint8_t *bytes;
	size_t len;
	uint64_t since_ns;
	uint64_t cut;    /* bytes of the file from here on have been cut off meanwhile */
	unsigned needed; /* later ones that will look at its bytes */
	bool compared;   /* the pages before the stores are known: it may be answered */
	bool answered;
	bool answering; /* `answer` is being called */
	void (*answer)(void *arg);
	void *arg;
};

/*
 * Begins one. The caller has set offset, bytes, len, answer and arg; `bytes` stay until
 * kcache_store_end. Until then no READ of the range is answered for the kernel's cache. `answer` is
 * called once at most, as ops_store_local says. `was` gets the pages of the range as the kernel had
 * them before the stores, zeros for holes. Waits for READs that go first, a millisecond at most.
 */
void kcache_store_begin(
	struct kcache *k, struct kcache_store *s, struct kcache_file *file, uint8_t *was);
/* Returns when earlier ones of the same blocks have ended. 0, or -EINTR: the requester has gone.
 * Waits. */
int kcache_store_turn(struct kcache *k, struct kcache_store *s);
/* The kernel drops its page of the block, and gets none before kcache_store_end. Answers the WRITE
 * for that. */
void kcache_store_drop(struct kcache *k, struct kcache_store *s, uint64_t block);
/* Its bytes belong to the file up to this offset. */
uint64_t kcache_store_limit(struct kcache *k, struct kcache_store *s);
/* Returns true if it has been answered. */
bool kcache_store_end(struct kcache *k, struct kcache_store *s);
/*
 * Call it before a call reads, changes or syncs the file past the kernel's cache. Returns when all
 * bytes that were written back so far are in the file (NULL: of all files). 0 or -EINTR. `k` may be
 * NULL. Waits.
 */
int kcache_stores_await(struct kcache *k, const struct kcache_file *file);
/* The size is about to be set. `k` may be NULL. */
void kcache_stores_cut(struct kcache *k, uint64_t ino, uint64_t size);

/* ---- sizes (sizes.c, push.c) -------------------- */

/* A cut of the file to `size` has been committed, and is not answered. From here on the kernel is
 * told no larger size. Waits. */
void kcache_sizes_cut(struct kcache_sizes *s, struct kcache_file *file, uint64_t size);
/* A change of the file is about to pass the kernel's pages of it. */
void kcache_sizes_pass(struct kcache_sizes *s, struct kcache_file *file);
/* The last handle is gone. Call it under the lock that kcache_source.peek locks. */
void kcache_push_closed(struct kcache *k, struct kcache_file *file);

#endif
