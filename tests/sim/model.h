/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a filesystem must look like after a cut: a model in the harness's memory.
 *
 * Each task of a workload owns names and files that no other task touches: its directory,
 * and in the shared directory the names that begin with its letter. So its operations
 * form a history, and the model keeps it: the state at the last recovery and the changes
 * since.
 *
 * The rule for names and attributes. What is found after a cut is, for each task, the
 * state behind its first k operations:
 *   - k is at least the number of those that a successful fsync or syncfs of any task
 * covered, that is, that had returned before it was called: the log has one order;
 *   - k is at most the number begun: the one in flight may have happened or not;
 *   - an operation of another task that had returned before the last of the k was begun
 * has happened too, for the same reason. An operation that is one transaction happened or
 * did not. A write, a copy and fallocate are as many transactions as they need; of the
 * last of the k operations, if it is one of these, some may be missing: the size is then
 * anywhere between the old and the new one.
 *
 * The rule for file data. Each page is one of the contents that it had in memory, as a
 * whole. A page's history is a list of contents, each by an operation and of a kind:
 *   - overwritten in place: no transaction. May be on the disk whatever k is, or be
 * missing;
 *   - filled and published (a hole or unwritten space gets its page): if the operation is
 *     among the k, this content or zeros (published, but its bytes never written);
 *   - changed within a transaction (what a truncation or punched hole leaves of a page),
 *     or freed: if the operation is among the k, this content or a later one.
 * Of these the contents from the last published, changed or freed one among the k (the
 * base) up to the next such one behind the k are allowed, and none older than what a sync
 * of the file covered. Bytes past the end of the file are not compared; when the file has
 * grown over them, they are zeros or what was written then. So bytes of other files, or
 * of operations that were lost, can never be met.
 */
#ifndef WEFT_TESTS_SIM_MODEL_H
#define WEFT_TESTS_SIM_MODEL_H

#include "fs/ops/ops.h"

#define MODEL_TASKS  4u
#define MODEL_NODES  64u
#define MODEL_NAMES  14u /* in a directory */
#define MODEL_XATTRS 4u
#define MODEL_PAGES  48u /* of a file */
/* inodes with data that a task makes between two recoveries */
#define MODEL_FILES      1024u
#define MODEL_OPS        4096u
#define MODEL_TARGET_MAX 3000u
#define MODEL_ROOT       0 /* the task's directory */
#define MODEL_SHARED     1 /* its part of the shared one */

struct model_xattr {
	bool set;
	uint32_t len, seed;
};

struct model_node {
	bool used;
	uint64_t ino; /* 0: not known yet */
	uint32_t mode, uid, gid, rdev, nlink;
	uint64_t size; /* of a regular file */
	uint32_t target_len;
	bool mtime_known;
	int64_t mtime;
	bool acl, acl_default;
	struct model_xattr xattr[MODEL_XATTRS];
	int parent; /* of a directory */
	unsigned entries;
	int entry[MODEL_NAMES]; /* node, or -1 */
	unsigned file;          /* its data */
};

struct model_state {
	struct model_node node[MODEL_NODES];
};

enum model_kind {
	MODEL_CREATE, /* dir -1: without a name */
	MODEL_REMOVE,
	MODEL_RENAME,
	MODEL_LINK,
	MODEL_ATTR,
	MODEL_SIZE, /* truncation */
	MODEL_DATA, /* write, copy, fallocate */
	MODEL_XATTR,
	MODEL_ACL,
};

#define MODEL_SET_MODE  (1u << 0)
#define MODEL_SET_UID   (1u << 1)
#define MODEL_SET_GID   (1u << 2)
#define MODEL_SET_MTIME (1u << 3)

struct model_op {
	enum model_kind kind;
	const char *what; /* for messages */
	int dir, name, dir2, name2, node;
	unsigned flags; /* of a rename, or MODEL_SET_* */
	uint32_t mode, uid, gid, rdev, target_len;
	uint64_t ino; /* of what was created */
	unsigned file;
	uint64_t size, size_before;
	int64_t mtime;
	unsigned which; /* xattr; ACL: 1 for the default one */
	struct model_xattr xattr;
	bool pieces;         /* more than one transaction */
	uint64_t start, end; /* order of calls and returns; end 0: in flight */
};

enum model_page_kind {
	PAGE_BASE,
	PAGE_OVERWRITTEN,
	PAGE_PUBLISHED,
	PAGE_CHANGED,
	PAGE_FREED
};

struct model_image {
	uint32_t op; /* 1 for the first since the recovery */
	enum model_page_kind kind;
	uint8_t *bytes; /* NULL: zeros */
};

enum model_mapped { MAPPED_UNKNOWN, MAPPED_HOLE, MAPPED_UNWRITTEN, MAPPED_WRITTEN };

struct model_page {
	struct model_image
		*image; /* oldest first; at least one if there was ever content */
	uint32_t count, capacity;
	uint32_t durable; /* index of the oldest that may be found */
	enum model_mapped mapped;
};

struct model_file {
	uint32_t serial; /* unique among all tasks and lives */
	uint32_t writes; /* stamps given */
	struct model_page page[MODEL_PAGES];
};

struct model_task {
	char letter;
	struct model_state base, now;
	struct model_op op[MODEL_OPS];
	uint32_t ops;     /* begun */
	uint32_t durable; /* k is at least this */
	struct model_file *file[MODEL_FILES];
	unsigned files;
};

struct model {
	unsigned tasks;
	uint64_t clock; /* order of calls and returns */
	uint32_t serial;
	struct model_task task[MODEL_TASKS];
	char why[512]; /* of the last comparison that failed */
};

/* Prints each operation as it begins. */
extern bool model_trace;

/* The tasks' directories are there and empty ("dir" + letter and "shared" in the root).
 */
void model_init(struct model *m, unsigned tasks);
void model_free(struct model *m);

/* Names and values that a model's numbers stand for. */
void model_name(const struct model_task *t, int dir, unsigned name, char *buf);
const char *model_xattr_name(unsigned which);
void model_xattr_value(const struct model_xattr *x, uint8_t *buf);
void model_target(uint32_t len, char *buf);
/* posix_acl_* as of this node; the length. */
#define MODEL_ACL_BYTES 44u
void model_acl(const struct model_node *n, bool is_default, uint8_t *buf);
/* Bytes that say which file and write they belong to. */
void model_stamp(
	struct model_file *f, uint32_t write, uint64_t offset, uint8_t *buf, size_t len);

/* A free node; -1: none. */
int model_node_new(const struct model_task *t);
unsigned model_file_new(struct model *m, struct model_task *t);

/*
 * Around a call that should succeed: begin notes the operation as in flight; done applies
 * it. A call that failed: undone, if the filesystem is as before.
 */
struct model_op *model_begin(
	struct model *m, struct model_task *t, const struct model_op *op);
void model_done(struct model *m, struct model_task *t, uint64_t ino);
void model_undone(struct model_task *t);
/* Contents, after model_begin: */
void model_write(struct model_task *t, unsigned file, uint64_t offset,
	const uint8_t *bytes, size_t len);
void model_cut(struct model_task *t, unsigned file, uint64_t size, uint64_t size_before);
void model_punch(
	struct model_task *t, unsigned file, uint64_t offset, uint64_t end, bool zero);
void model_allocate(struct model_task *t, unsigned file, uint64_t offset, uint64_t end);
/* What a read has to find. */
const uint8_t *model_page_now(const struct model_file *f, unsigned page);
void model_read(const struct model_task *t, unsigned file, uint64_t offset, uint8_t *buf,
	size_t len);

/* Syncs: note what they cover when called; it is durable when they succeed. */
struct model_cover {
	uint32_t ops[MODEL_TASKS]; /* returned before */
};
void model_cover(const struct model *m, struct model_cover *c);
void model_names_durable(struct model *m, const struct model_cover *c);
void model_file_durable(struct model_task *t, unsigned file, uint32_t ops);
void model_all_durable(struct model *m, const struct model_cover *c);

void model_apply(struct model_state *s, const struct model_op *op);
void model_forget_images(struct model_file *f);

/* ---- comparing (model_check.c) --------------------------------------------------- */

/* What a task's names look like: node 0 and 1 as in the model; the data in `data`. */
struct model_seen {
	struct model_state state;
	uint8_t *data[MODEL_NODES]; /* MODEL_PAGES pages, or as many as the size asks for
				     */
	unsigned count;
};

/* Reads a task's names and files. 0 or the error of the operation that failed. Waits. */
int model_look(struct model *m, unsigned task, struct fs *fs, struct model_seen *seen);
void model_seen_free(struct model_seen *seen);
/* After a recovery: false, with m->why, if what was seen breaks the rules. True: it is
 * the model's new base. */
bool model_recovered(struct model *m, struct model_seen seen[MODEL_TASKS]);
/* In a life: what was seen is the state now, exactly. */
bool model_is_now(struct model *m, unsigned task, const struct model_seen *seen);
/*
 * The last operation returned an error, and this was seen: it has happened, not, or in
 * part where it is made of pieces. False, with m->why: neither. True: the model follows.
 */
bool model_settle(struct model *m, unsigned task, const struct model_seen *seen);

#endif
