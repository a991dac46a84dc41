/* SPDX-License-Identifier: Apache-2.0 */
/* What the two files of a workload share; nobody else includes it. */
#ifndef WEFT_TESTS_SIM_WORKLOAD_INTERNAL_H
#define WEFT_TESTS_SIM_WORKLOAD_INTERNAL_H

#include <sys/stat.h>

#include "tests/sim/workload.h"

#define HANDLES     4u
#define WRITE_PAGES 24u
#define FILE_BYTES  ((uint64_t)MODEL_PAGES * PAGE_SIZE)
/* What a task's files may have together, so that a volume holds it. */
#define TASK_PAGES 500u

static const struct ops_caller caller = {.keeps_setid = true, .in_group = true};

struct handle {
	struct ops_file *file;
	int node;
};

struct worker {
	struct workload *w;
	struct model *m;
	struct model_task *t;
	struct fs *fs;
	unsigned task;
	uint64_t rng;
	struct handle handle[HANDLES];
	bool read_only; /* the log has failed */
	bool choked;    /* and the cache is full of what it kept from being written */
	struct model_seen seen;
	struct rt_task *rt;
	uint8_t bytes[(WRITE_PAGES + 2) * PAGE_SIZE];
	uint8_t value[DISK_XATTR_VALUE_MAX];
	char target[MODEL_TARGET_MAX + 1];
};

/* One operation, whichever. */
void any_op(struct worker *w);

/* ---- outcomes -------------------------------------------------------------------- */

/* Tells the model that the operation is in flight. */
struct model_op *op_begin(struct worker *w, const struct model_op *op);
/* The end of a call that had to succeed. True: it has. */
bool op_finish(struct worker *w, int64_t rc, uint64_t ino);
/* The end of one that had to fail, or that is no change. True: it answered `want`. */
bool op_expect(struct worker *w, const char *what, int64_t rc, int64_t want);
/* One in flight has returned an arranged error, or less than was asked for. */
void op_settle(struct worker *w, int64_t rc);
/* Looks at all that the task has, and compares with the model. */
void worker_audit(struct worker *w);

/* ---- choices --------------------------------------------------------------------- */

uint64_t rnd(struct worker *w, uint64_t below);
struct model_node *node_at(struct worker *w, int node);
uint64_t ino_of(struct worker *w, int node);
struct ops_name name_at(struct worker *w, int dir, int name, char *buf);
/* A node with a name that fits; -1: none. */
int any_node(struct worker *w, bool (*fits)(const struct model_node *));
int any_dir(struct worker *w);
bool fits_any(const struct model_node *n);
bool fits_dir(const struct model_node *n);
bool fits_file(const struct model_node *n);
bool fits_link(const struct model_node *n);
/* May the task have more pages? */
bool may_grow(const struct worker *w);

static inline bool is_dir(const struct model_node *n)
{
	return S_ISDIR(n->mode);
}

/* ---- handles --------------------------------------------------------------------- */

void handle_close(struct worker *w, struct handle *h);
/* A slot for another handle. */
struct handle *handle_free(struct worker *w);
/* Some file, open. NULL: none. */
struct handle *handle_any(struct worker *w);

#endif
