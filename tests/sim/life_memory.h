/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that a task of a simulated node holds while it waits, beside what the engine has:
 * a cut takes it away with the task, so that the sanitizer finds no leak where there is
 * none. It never fails, and does not count among the node's own allocations.
 */
#ifndef WEFT_TESTS_SIM_LIFE_MEMORY_H
#define WEFT_TESTS_SIM_LIFE_MEMORY_H

#include <stdlib.h>

#include "engine/rt/rt.h"

/* Zeroed. */
static inline void *life_alloc(size_t size)
{
	void *p = calloc(1, size);

	WEFT_ASSERT(p);
	rt_on_crash(free, p);
	return p;
}

static inline void life_free(void *p)
{
	rt_on_crash_forget(free, p);
	free(p);
}

#endif
