/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the operations of linear_test should do, one after the other:
 * names, the bytes of a file, appends, locks. No simulation, and no filesystem.
 *
 * And what a crash may undo, of operations that nobody has been told the end of (`lossy`).
 */
#ifndef WEFT_TEST_LINEAR_SPEC_H
#define WEFT_TEST_LINEAR_SPEC_H

#include "tests/sim/linear.h"

#define SPEC_NODES  8u
#define SPEC_TASKS  3u /* of each node, at most */
#define SLOTS       6u /* names: in two directories */
#define INODES_MAX  48u
#define BLOCKS      3u
#define BLOCK_BYTES 4096u
#define RECORDS     64u
#define VALUE_BYTES 8u /* of a write, an append */
#define LOCK_PLACES 4u /* to be locked in a file; the last one is the rest of it */
#define UNKNOWN_MAX 4u

enum kind {
	NAME_LOOKUP,
	NAME_CREATE,
	NAME_UNLINK,
	NAME_LINK,
	NAME_RENAME,
	NAME_LINKS, /* getattr: how many links */
	NAME_KINDS,
	FILE_READ,
	FILE_WRITE,
	FILE_CUT, /* to a size in blocks, shorter or longer */
	FILE_SIZE,
	FILE_KINDS,
	LOG_APPEND,
	LOG_READ,
	LOG_SIZE,
	LOG_KINDS,
	LOCK_TRY,   /* F_SETLK, F_UNLCK too */
	LOCK_WAIT,  /* F_SETLKW */
	LOCK_TEST,  /* F_GETLK */
	LOCK_FLOCK, /* LOCK_NB, LOCK_UN too */
	LOCK_FLOCK_WAIT,
	LOCK_CLOSE, /* of the file: nothing is locked any more by fcntl */
	LOCK_KINDS,
	NODE_CRASH,  /* these, and those behind, of `nodes` */
	NODE_RETURN, /* they begin to open the volume again */
	NODE_HEARD   /* all know that they have returned */
};

/* As enum ops_lock_type. */
enum { LOCK_FREE, LOCK_SHARED, LOCK_ALONE };

/* What was asked and what came back; not all of it of each kind. */
struct action {
	enum kind kind;
	unsigned node, task;
	unsigned nodes;  /* by bits of their numbers */
	unsigned at, to; /* slots, block, record; the first and the last place */
	unsigned flags;  /* of a rename; how it shall be locked */
	uint64_t ino;    /* of LINK and LINKS; found by LOOKUP and CREATE */
	uint64_t value;  /* of bytes: written, or read; links; a size */
	/* of LOCK_TEST; by whom: known of a task of the same node, else 0 */
	unsigned found, found_at, found_to, found_by;
	int result;
	bool lost;   /* its node has crashed, and it had not ended */
	bool loose;  /* it has ended, and need not be durable yet */
	bool risked; /* its node has crashed while it was loose */
};

struct names_state {
	uint64_t slot[SLOTS]; /* inode; 0: there is none */
	/* by rising inode, so that equal states are equal bytes */
	uint64_t ino[INODES_MAX];
	uint8_t links[INODES_MAX];
	uint64_t inodes;
};

/* A block has eight bytes at its beginning, or nothing but zeros. */
struct file_state {
	uint64_t size;
	uint64_t value[BLOCKS];
};

struct log_state {
	uint64_t records, value[RECORDS];
};

/* An owner is a task of a node. */
#define OWNERS (SPEC_NODES * SPEC_TASKS)
struct locks_state {
	uint8_t range[OWNERS][LOCK_PLACES], whole[OWNERS];
	uint64_t returned; /* nodes (bits) whose return not all need have heard of */
};

extern const struct linear_model names_model, file_model, log_model, locks_model;

/* Would it change something, if it did what it is to do? */
bool action_changes(enum kind kind);
/* Is an operation durable that was done before the other, of which that is known? */
bool action_covered(const struct action *a, const struct action *by);
/* In a line. */
void action_print(const struct action *a);

/* ---- crashes --------------------------------------------------------------------------- */

/*
 * With a model of these what was risked, and what was lost and has its place in the order, may
 * be undone at its node's crash: `after` are all the states that the crash may leave. What
 * else changes something is done to each of them; where it could not have returned what it
 * did, the state is none any more: who has changed what was changed there has that, and
 * has not crashed, or has made it durable. What only looks need not have looked at what stays.
 */
#define AFTER_MAX 28u

struct linear_model lossy_model(const struct linear_model *of);
/* The state that `of` begins with, as one of the above; and back. */
void lossy_begin(const struct linear_model *of, const void *state, void *lossy);
void lossy_end(const struct linear_model *of, const void *lossy, void *state);
/* Inodes that were seen and that no create has told of: a lost one has made them. */
void lossy_unknown(const uint64_t *inos, unsigned count);

#endif
