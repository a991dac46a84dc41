/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Links between pairs of nodes that break, or are silent in one direction or in both, for a shorter
 * or a longer time than a silent link lives, and then work again. Several at a time. Or links that
 * change bits of what they carry.
 */
#ifndef WEFT_TESTS_WORLD_WEATHER_H
#define WEFT_TESTS_WORLD_WEATHER_H

#include "tests/world/world.h"

#define WEATHER_STALL_NS 100000000ull /* for struct world's stall_ns */
#define WEATHER_TASKS    2u           /* links that are ill at a time */

struct weather {
	_Atomic bool clears;         /* nothing new happens */
	_Atomic uint32_t left;       /* tasks that still run */
	uint64_t pause_ns;           /* the longest one */
	uint64_t flip_every;         /* bytes; 0: links break, and change no bit */
	unsigned cuts, silent;       /* so far */
	uint64_t flips;
};
extern struct weather weather;

/* Starts it. Pauses between two faults are `pause_ns` at most. Never waits. */
void weather_begin(struct world *w, uint64_t pause_ns);
/* Ends it: all links work, or will soon. Waits for its tasks. */
void weather_end(void);

#endif
