/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of locks share (docs/many-nodes.md, "Locks"): lock_list.c is what a list
 * of locks means, lock_item.c keeps it in the tree, lock.c serves requests, lock_wait.c
 * those that wait, lock_owner.c who may have locks here, lock_nodes.c other nodes,
 * lock_cycle.c deadlocks.
 */
#ifndef WEFT_OPS_LOCK_INTERNAL_H
#define WEFT_OPS_LOCK_INTERNAL_H

#include <errno.h>

#include "fs/ops/data_internal.h"

#define LOCKS_A_FILE_MAX (DISK_LOCKS_AN_ITEM * DISK_LOCK_ITEMS)
#define LOCK_NODES       (DISK_NODE_MAX + 1)
#define LOCK_WAITS_MAX   4096u
#define LOCK_OWNERS_MAX  16384u
#define LOCK_BUCKETS     256u
#define LOCK_TAKERS_MAX  64u
/* So long a request waits for one that only waits before it. */
#define LOCK_PATIENCE_NS 100000000ull

/* ---- lists (lock_list.c): no I/O, no locks ------------------------------------------ */

struct lock_list {
	unsigned count, changes;       /* how many items differ from the tree's, */
	bool changed[DISK_LOCK_ITEMS]; /* and which */
	struct disk_lock at[LOCKS_A_FILE_MAX];
};

/*
 * Behind so many changed items whatever changes many records stops, and goes on in a further
 * transaction: one has room for 32 items, and a request may change some more on its way.
 */
#define LOCK_CHANGES_MAX 24u
static inline bool lock_list_spent(const struct lock_list *l)
{
	return l->changes >= LOCK_CHANGES_MAX;
}

static inline bool lock_waits(const struct disk_lock *r)
{
	return r->type & DISK_LOCK_WAITS;
}
/* Without DISK_LOCK_WAITS. */
static inline unsigned lock_type(const struct disk_lock *r)
{
	return r->type & ~DISK_LOCK_WAITS;
}
/* One owner of one kind; a waiter and what is held as well. */
bool lock_same_owner(const struct disk_lock *a, const struct disk_lock *b);
/* Two owners, ranges that overlap, one exclusive. */
bool lock_conflicts(const struct disk_lock *a, const struct disk_lock *b);
/* 0 or -EUCLEAN: a value of an item, behind what was added of those before it. */
int lock_list_parse(struct lock_list *l, const void *value, size_t len);
/* -ENOLCK */
int lock_list_add(struct lock_list *l, const struct disk_lock *r);
/* The last one takes its place. */
void lock_list_remove(struct lock_list *l, unsigned i);
/* What is held and in the way of *want, or NULL. */
const struct disk_lock *lock_list_conflict(
	const struct lock_list *l, const struct disk_lock *want);
/* Of all of these the one that begins first, as F_GETLK answers. */
const struct disk_lock *lock_list_first(
	const struct lock_list *l, const struct disk_lock *want);
/* Does it have to wait for one that waits? Lower in order than `order`. */
bool lock_list_must_queue(
	const struct lock_list *l, const struct disk_lock *want, uint64_t order);
/* Does the owner hold anything? */
bool lock_list_has(const struct lock_list *l, const struct disk_lock *owner);
/*
 * The owner's locks in the range become `type`; 0: none. What is in the way of that was
 * looked for. Merges and splits. 1: the range has the type, but older records of the owner
 * are still there, or not all is unlocked yet: the same again once this was written. -ENOLCK.
 */
int lock_list_set(struct lock_list *l, const struct disk_lock *lock, unsigned type);
/* Removes what the owner holds. 0; 1: there is more, as above. */
int lock_list_clear(struct lock_list *l, const struct disk_lock *owner);
/* A waiter's record, or NULL. */
struct disk_lock *lock_list_waiter(
	struct lock_list *l, unsigned node, uint64_t incarnation, uint64_t ticket);
/* Higher than the order of all. */
uint64_t lock_list_order(const struct lock_list *l);
/* Does the waiter have to go on waiting, but for its patience? */
bool lock_list_blocked(const struct lock_list *l, const struct disk_lock *waiter);

/* ---- in the tree (lock_item.c) ------------------------------------------------------- */

/* In a transaction. 0, -EAGAIN, -EUCLEAN, ... */
int lock_list_read(struct txn *x, uint64_t ino, struct lock_list *l);
/* What has changed. */
int lock_list_write(struct txn *x, uint64_t ino, const struct lock_list *l);
/* A list at one moment, by a transaction of its own. Waits. */
int lock_list_get(struct fs *fs, uint64_t ino, struct lock_list *l);

/* Who shall be woken. */
#define LOCK_WAKES_MAX 32u
struct lock_wakes {
	unsigned count;
	/* more of the node than fit: all that waits there, in this incarnation */
	uint64_t all[LOCK_NODES];
	struct {
		unsigned node;
		uint64_t incarnation, ticket;
	} at[LOCK_WAKES_MAX];
};

/*
 * Changes a file's list: the transaction of every request. `change` gets the list, without
 * what is void, and may run many times. When it says 0, -EAGAIN (no: but what it has
 * changed stays) or -EINPROGRESS, the list is written and whom that unblocks is woken;
 * with 1 as well, and it is called again in a further transaction; with an error nothing has
 * happened. What it said last is returned. `frees`: makes room, so it may use the last
 * pages. Waits.
 */
struct lock_change {
	struct fs *fs;
	uint64_t ino;
	int (*change)(struct lock_list *l, struct lock_change *c);
	/* for `change` */
	const struct disk_lock *lock; /* its owner, range, type, ticket */
	bool waits;                   /* it is recorded when it is blocked */
	bool patient;                 /* lets earlier waiters go first */
	bool behind;                  /* out: it is them that it waits for */
	/* lock_list_change's own */
	int said; /* 1: once more */
	struct lock_list *list;
	struct lock_wakes wakes;
};
int lock_list_change(struct lock_change *c, bool frees);

/* ---- what a node keeps in memory ------------------------------------------------------ */

struct lock_owner {
	struct lock_owner *next;
	uint64_t ino, owner;
	enum ops_lock_kind kind;
	unsigned requests;     /* under way */
	struct ops_file *file; /* through which it locked last */
};

struct lock_courier;

struct locks {
	struct fs *fs;
	unsigned node;
	uint64_t incarnation;
	_Atomic uint64_t heard[LOCK_NODES]; /* the highest incarnation of each */

	/* Before nothing else but the network's and the runtime's own locks. */
	struct rt_mutex owners_lock;
	struct lock_owner *owner[LOCK_BUCKETS]; /* by inode */
	unsigned owners;
	struct rt_cond owner_idle; /* one has no request under way any more */

	struct rt_mutex lock;                      /* the same; for all below */
	struct ops_lock_wait *wait[LOCK_BUCKETS];  /* by ticket */
	struct ops_lock_wait *ready, **ready_last; /* woken and nobody's yet */
	unsigned waits, deferred;                  /* of these parked with a time */
	uint64_t ticket;
	bool ending, stopping;
	unsigned takers, idle;
	struct rt_cond work, ended;
	struct rt_task *taker[LOCK_TAKERS_MAX];
	uint64_t taken[LOCK_TAKERS_MAX]; /* inodes that a taker is at */
	unsigned takens;

	_Atomic(struct lock_courier *) courier[LOCK_NODES]; /* to other nodes; some may come */
};

/* The record of a request. */
struct disk_lock lock_record(
	const struct locks *k, const struct ops_lock *lock, uint64_t ticket);
int lock_check(const struct ops_lock *lock); /* 0 or -EINVAL */
/* An error of the volume as who locks knows it. */
int lock_error(int rc);

static inline unsigned lock_bucket(uint64_t ino)
{
	return (unsigned)((ino * 0x9e3779b97f4a7c15ull) >> 56);
}
_Static_assert(LOCK_BUCKETS == 256, "the hash names a bucket");

/* lock_owner.c. Counts a request of the owner. 0, -ENOLCK. */
int lock_owner_enter(struct locks *k, struct ops_file *file, const struct ops_lock *lock,
	struct lock_owner **out);
void lock_owner_leave(struct locks *k, struct lock_owner *owner);
void lock_owners_end(struct locks *k);

/*
 * lock.c. One try. 0, -EAGAIN, ... With a ticket: -EINPROGRESS, it is recorded as waiting;
 * *behind: for others that wait, alone.
 */
int lock_try(struct fs *fs, uint64_t ino, const struct disk_lock *r, bool patient,
	bool *behind);
/* Takes a waiter's record away. */
int lock_unwait(struct fs *fs, uint64_t ino, const struct disk_lock *r);
/* Frees what the owner has of the kind. */
int lock_clear(struct fs *fs, uint64_t ino, enum ops_lock_kind kind, uint64_t owner);

/* lock_wait.c */
void lock_waits_open(struct locks *k);
void lock_waits_close(struct locks *k);
/* A request of this node shall look again; ticket 0: all. -ENOENT: none such. */
int lock_wait_wake(struct locks *k, uint64_t ticket);
/* What the owner waits for. False: nothing. */
struct lock_edge {
	uint64_t ticket, ino;
	struct disk_lock want; /* its owner as well */
};
bool lock_wait_of(struct locks *k, uint64_t owner, struct lock_edge *out);

/* lock_nodes.c */
/* Also when nodes were added: for those. One caller at a time. 0 or -errno. */
int lock_nodes_open(struct locks *k);
void lock_nodes_stop(struct locks *k); /* says what is to be said first */
/* Is what that start of a node has recorded void? */
bool lock_void(const struct locks *k, unsigned node, uint64_t incarnation);
void lock_heard(struct locks *k, unsigned node, uint64_t incarnation);
void lock_nodes_wake(struct locks *k, uint64_t ino, const struct lock_wakes *w);
/* The same of an owner anywhere. False: nothing, or it is not to be known. Waits. */
bool lock_nodes_wait_of(
	struct locks *k, const struct disk_lock *owner, struct lock_edge *out);

/* lock_cycle.c. Does the owner of `start`, which waits, wait for itself? *other: another
 * one shall give up, if that sees it too. Waits. */
bool lock_cycle(struct locks *k, const struct lock_edge *start, bool *other);

#endif
