/* SPDX-License-Identifier: Apache-2.0 */
/* Phases of a simulation: one task goes on to the next, and tasks of all nodes wait for it. */
#ifndef WEFT_SIM_PHASES_H
#define WEFT_SIM_PHASES_H

#include "engine/rt/rt.h"

static _Atomic uint32_t phase; /* only rises within a run, which sets it to 0 */

static void come_to(uint32_t wanted)
{
	uint32_t seen;

	while ((seen = atomic_load(&phase)) < wanted)
		rt_wait(&phase, seen, RT_FOREVER);
}

static void go_on_to(uint32_t next)
{
	if (atomic_load(&phase) < next)
		atomic_store(&phase, next);
	rt_wake(&phase, INT32_MAX);
}

#endif
