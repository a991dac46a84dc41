/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which seeds a simulation runs, and with how many nodes: what the test says, unless the
 * environment says otherwise (docs/testing.md).
 */
#ifndef WEFT_TEST_SEEDS_H
#define WEFT_TEST_SEEDS_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define SIM_NODES_MAX 8u

static inline uint64_t setting(const char *name, uint64_t otherwise)
{
	const char *text = getenv(name);

	return text && *text ? strtoull(text, NULL, 0) : otherwise;
}

static inline uint64_t seeds_first(void)
{
	return setting("WEFT_SIM_SEED", setting("WEFT_SIM_FIRST", 1));
}

static inline uint64_t seeds_count(uint64_t otherwise)
{
	return setting("WEFT_SIM_SEED", 0) ? 1 : setting("WEFT_SIM_SEEDS", otherwise);
}

/* WEFT_SIM_NODES=5: five; WEFT_SIM_NODES=any: 2 to 8, as the seed says. */
static inline unsigned seeds_nodes(unsigned otherwise, uint64_t seed)
{
	const char *text = getenv("WEFT_SIM_NODES");
	unsigned nodes = otherwise;

	if (text && !strcmp(text, "any"))
		nodes = 2 + (unsigned)((seed * 0x9e3779b97f4a7c15ull >> 32) %
				       (SIM_NODES_MAX - 1));
	else if (text && *text)
		nodes = (unsigned)strtoul(text, NULL, 0);
	return nodes < 2 ? 2 : nodes > SIM_NODES_MAX ? SIM_NODES_MAX : nodes;
}

#endif
