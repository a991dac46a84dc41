/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Is a history of operations that overlapped linearizable: is there an order of them which
 * keeps each that ended before another began in front of it, and in which each returns
 * what it did return? (Wing and Gong's search, with Lowe's memory of what was tried.)
 *
 * Of an operation whose node has crashed nobody knows whether it has happened: it may have
 * its place in the order, or none.
 */
#ifndef WEFT_TEST_LINEAR_H
#define WEFT_TEST_LINEAR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define LINEAR_OPS_MAX   64u
#define LINEAR_STATE_MAX 16384u

struct linear_op {
	uint64_t began, ended; /* of one clock that is never the same twice */
	const void *op;        /* what was asked, and what came back */
	bool lost; /* nothing came back: it is before what began after `ended`, or nowhere */
};

/* What the operations should do. A state has no pointers; equal ones have equal bytes. */
struct linear_model {
	size_t state_bytes; /* a multiple of 8 */
	/* Does the operation to the state; false: it could not have returned this. */
	bool (*step)(const void *op, unsigned way, void *state);
	/* In so many ways, of which each may be the right one; NULL: in one. */
	unsigned (*ways)(const void *op, const void *state);
};

/*
 * From `state`, which becomes that behind all of them. False: there is no such order;
 * then `deepest` has a bit for each operation of the longest beginning of one.
 */
bool linear_check(const struct linear_model *m, const struct linear_op *ops,
	unsigned count, void *state, uint64_t *deepest);

#endif
