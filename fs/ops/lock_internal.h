/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Declarations that the files of locks share (docs/nodes/locks.md):
 *
 * - lock_list.c: the rules of a list of locks
 * - lock_item.c: the list in the tree
 * - lock.c: requests
 * - lock_wait.c: waiting requests
 * - lock_owner.c: the owners of this node
 * - lock_nodes.c: other nodes
 * - lock_cycle.c: deadlocks
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
/* Time that a request waits for an earlier one that itself only waits. */
#define LOCK_PATIENCE_NS 100000000ull

/* ---- lists (lock_list.c): no I/O, no locks ------------------------------------------ */

/* Begins as zeros, and ends with lock_list_free. */
struct lock_list {
	unsigned count, room;          /* records in `at`, and for how many it has memory */
	unsigned changes;              /* number of items that differ from the tree's, */
	bool changed[DISK_LOCK_ITEMS]; /* and which */
	struct disk_lock *at;          /* moves when records are added */
};
void lock_list_free(struct lock_list *l);

/* A change of many records stops after this many items and continues in a further transaction. A
 * transaction has room for 32 items, and a request may change some more on its way. */
#define LOCK_CHANGES_MAX 24u
static inline bool lock_list_spent(const struct lock_list *l)
{
	return l->changes >= LOCK_CHANGES_MAX;
}

static inline bool lock_waits(const struct disk_lock *r)
{
	return r->type & DISK_LOCK_WAITS;
}
/* Returns the type without DISK_LOCK_WAITS. */
static inline unsigned lock_type(const struct disk_lock *r)
{
	return r->type & ~DISK_LOCK_WAITS;
}
/* Returns true if both have one owner and one kind, whether they wait or not. */
bool lock_same_owner(const struct disk_lock *a, const struct disk_lock *b);
/* Returns true if the owners differ, the ranges overlap, and one is exclusive. */
bool lock_conflicts(const struct disk_lock *a, const struct disk_lock *b);
/* Adds the records of an item's value. Call it for the items in their order. Returns 0 or
 * -EUCLEAN, -ENOMEM. */
int lock_list_parse(struct lock_list *l, const void *value, size_t len);
/* *r does not lie in the list. Returns 0, -ENOLCK or -ENOMEM. */
int lock_list_add(struct lock_list *l, const struct disk_lock *r);
/* Removes record i. The last record takes its place. */
void lock_list_remove(struct lock_list *l, unsigned i);
/* Returns a lock that conflicts with *want, or NULL. */
const struct disk_lock *lock_list_conflict(
	const struct lock_list *l, const struct disk_lock *want);
/* Returns the conflicting lock that begins first, as F_GETLK answers, or NULL. */
const struct disk_lock *lock_list_first(
	const struct lock_list *l, const struct disk_lock *want);
/* Returns true if *want must wait for a waiting request of lower order than `order`. */
bool lock_list_must_queue(
	const struct lock_list *l, const struct disk_lock *want, uint64_t order);
/* Returns true if the owner has a lock. */
bool lock_list_has(const struct lock_list *l, const struct disk_lock *owner);
/*
 * Gives the owner's locks in the range the type; 0: none. The caller has looked for conflicts.
 * Merges and splits records. Returns 0, -ENOLCK or -ENOMEM. Returns 1 if there is more to do: older
 * records of the owner are left, or not all is unlocked. The caller then writes the list and calls
 * again.
 */
int lock_list_set(struct lock_list *l, const struct disk_lock *lock, unsigned type);
/* Removes the owner's locks. Returns 0; 1: there are more, as above. */
int lock_list_clear(struct lock_list *l, const struct disk_lock *owner);
/* Returns a waiter's record, or NULL. */
struct disk_lock *lock_list_waiter(
	struct lock_list *l, unsigned node, uint64_t incarnation, uint64_t ticket);
/* Returns an order higher than all in the list. */
uint64_t lock_list_order(const struct lock_list *l);
/* Returns true if the waiter must go on waiting, apart from its patience. */
bool lock_list_blocked(const struct lock_list *l, const struct disk_lock *waiter);

/* ---- in the tree (lock_item.c) ------------------------------------------------------- */

/* Reads the list in a transaction. Returns 0, -EAGAIN, -EUCLEAN, ... */
int lock_list_read(struct txn *x, uint64_t ino, struct lock_list *l);
/* Writes the items that have changed. */
int lock_list_write(struct txn *x, uint64_t ino, const struct lock_list *l);
/* Reads the list as of one moment, by a transaction of its own. Waits. */
int lock_list_get(struct fs *fs, uint64_t ino, struct lock_list *l);

/* The requests to wake. */
#define LOCK_WAKES_MAX 32u
struct lock_wakes {
	unsigned count;
	/* Nodes with more requests than fit: wake all that wait there, in this incarnation. */
	uint64_t all[LOCK_NODES];
	struct {
		unsigned node;
		uint64_t incarnation, ticket;
	} at[LOCK_WAKES_MAX];
};

/*
 * Changes a file's list. Each request is one such transaction. `change` gets the list without void
 * records, and may run many times. Its value decides:
 * - 0, -EINPROGRESS, or -EAGAIN (refused, but its changes stay): the list is written, and the
 *   requests that this unblocks are woken
 * - 1: the same, and `change` is called again in a further transaction
 * - another error: nothing is changed
 *
 * Returns the last value of `change`. `frees`: the change makes room, so it may use the last pages.
 * Waits.
 */
struct lock_change {
	struct fs *fs;
	uint64_t ino;
	int (*change)(struct lock_list *l, struct lock_change *c);
	/* for `change`: */
	const struct disk_lock *lock; /* its owner, range, type, ticket */
	bool waits;                   /* record the request if it is blocked */
	bool patient;                 /* lets earlier waiters go first */
	bool behind;                  /* out: the request waits only for earlier waiters */
	struct ops_lock_held held;    /* out, with `waits`: the locks in the way */
	/* private to lock_list_change: */
	int said; /* last value of `change`; 1: call it again */
	struct lock_list list;
	struct lock_wakes wakes;
};
int lock_list_change(struct lock_change *c, bool frees);

/* ---- what a node keeps in memory ------------------------------------------------------ */

struct lock_owner {
	struct lock_owner *next;
	uint64_t ino, owner;
	enum ops_lock_kind kind;
	unsigned requests;     /* number of requests under way */
	struct ops_file *file; /* the file by which it locked last */
};

struct lock_courier;

struct locks {
	struct fs *fs;
	unsigned node;
	uint64_t incarnation;
	_Atomic uint64_t heard[LOCK_NODES]; /* the highest known incarnation of each node */

	/* Inside it, only locks of the network and the runtime are taken. */
	struct rt_mutex owners_lock;
	struct lock_owner *owner[LOCK_BUCKETS]; /* by inode */
	unsigned owners;
	struct rt_cond owner_idle; /* an owner has no request under way any more */

	struct rt_mutex lock;                      /* the same; protects all below */
	struct ops_lock_wait *wait[LOCK_BUCKETS];  /* by ticket */
	struct ops_lock_wait *ready, **ready_last; /* woken, and not taken yet */
	unsigned waits, deferred; /* number of waiting requests; of those parked until a time */
	uint64_t ticket;
	bool ending, stopping;
	unsigned takers, idle;
	struct rt_cond work, ended;
	struct rt_task *taker[LOCK_TAKERS_MAX];
	uint64_t taken[LOCK_TAKERS_MAX]; /* inodes that a taker works on */
	unsigned takens;

	_Atomic(struct lock_courier *) courier[LOCK_NODES]; /* to other nodes; more may be added */
};

/* Returns the record of a request. */
struct disk_lock lock_record(
	const struct locks *k, const struct ops_lock *lock, uint64_t ticket);
int lock_check(const struct ops_lock *lock); /* 0 or -EINVAL */
/* Returns the error for a caller of locks that an error of the volume means. */
int lock_error(int rc);

static inline unsigned lock_bucket(uint64_t ino)
{
	return (unsigned)((ino * 0x9e3779b97f4a7c15ull) >> 56);
}
_Static_assert(LOCK_BUCKETS == 256, "the hash names a bucket");

/* lock_owner.c. Counts a request of the owner. Returns 0 or -ENOLCK. */
int lock_owner_enter(struct locks *k, struct ops_file *file, const struct ops_lock *lock,
	struct lock_owner **out);
void lock_owner_leave(struct locks *k, struct lock_owner *owner);
void lock_owners_end(struct locks *k);

/* lock.c. Tries once. Returns 0, -EAGAIN, ... With a ticket, -EINPROGRESS: the request is recorded
 * as waiting. *behind: it waits only for other waiters. *held: the locks in its way. */
int lock_try(struct fs *fs, uint64_t ino, const struct disk_lock *r, bool patient,
	bool *behind, struct ops_lock_held *held);
/* Finds the locks of the list that conflict with *want. */
struct ops_lock_held lock_list_held(
	const struct lock_list *l, const struct disk_lock *want);
/* Removes a waiter's record. */
int lock_unwait(struct fs *fs, uint64_t ino, const struct disk_lock *r);
/* Frees the owner's locks of the kind. */
int lock_clear(struct fs *fs, uint64_t ino, enum ops_lock_kind kind, uint64_t owner);

/* lock_wait.c */
void lock_waits_open(struct locks *k);
void lock_waits_close(struct locks *k);
/* Makes a waiting request of this node look again. Ticket 0: all. Returns -ENOENT if there is
 * none. */
int lock_wait_wake(struct locks *k, uint64_t ticket);
/* Finds the request that the owner waits with. Returns false if there is none. */
struct lock_edge {
	uint64_t ticket, ino;
	struct disk_lock want; /* also names its owner */
};
bool lock_wait_of(struct locks *k, uint64_t owner, struct lock_edge *out);

/* lock_nodes.c */
/* Starts, or adds the nodes that are new. One caller at a time. Returns 0 or -errno. */
int lock_nodes_open(struct locks *k);
void lock_nodes_stop(struct locks *k); /* sends the pending messages first */
/* Returns true if records of this incarnation of the node are void. */
bool lock_void(const struct locks *k, unsigned node, uint64_t incarnation);
void lock_heard(struct locks *k, unsigned node, uint64_t incarnation);
void lock_nodes_wake(struct locks *k, uint64_t ino, const struct lock_wakes *w);
/* As lock_wait_of, for an owner on any node. Returns false if there is none, or if it cannot be
 * found out. Waits. */
bool lock_nodes_wait_of(
	struct locks *k, const struct disk_lock *owner, struct lock_edge *out);

/* lock_cycle.c. Returns true if the owner of `start` waits for itself. *other: another owner must
 * give up, if its node sees the cycle, too. Waits. */
bool lock_cycle(struct locks *k, const struct lock_edge *start, bool *other);

#endif
