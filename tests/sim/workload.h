/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Seeded mixes of all operations on names and files, by several tasks at once, each step
 * told to the model. What an operation must answer is known beforehand; a wrong answer
 * aborts, and the harness prints what repeats the run.
 */
#ifndef WEFT_TESTS_SIM_WORKLOAD_H
#define WEFT_TESTS_SIM_WORKLOAD_H

#include "tests/sim/model.h"

/* Errors that the harness has arranged for, beside those that POSIX asks for. */
#define WORKLOAD_EIO    (1u << 0) /* and EROFS once the log has failed */
#define WORKLOAD_ENOMEM (1u << 1)
#define WORKLOAD_ENOSPC (1u << 2)

struct workload {
	struct model *model;
	struct fs *fs;
	uint64_t seed; /* of choices; the runtime's own are another matter */
	unsigned tasks, ops;
	unsigned errors;    /* WORKLOAD_*: allowed */
	bool large;         /* files grow to all they may have: for full disks */
	void (*heal)(void); /* takes faults away that keep the model from looking */
	/* out */
	uint64_t failed; /* operations that got one of the errors */
	uint64_t syncs;  /* that succeeded */
	bool choked; /* after the log's failure there was no room to read: look no more */
};

/* Runs all tasks to their end. */
void workload_run(struct workload *w);
/* Looks at all of a task's names and files, and compares with the model. */
void workload_audit(struct workload *w, unsigned task);

_Noreturn void workload_die(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

#endif
