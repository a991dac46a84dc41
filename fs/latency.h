/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Latency histograms that are cheap enough to stay on: log-linear buckets (four to each
 * power of two, so a percentile is right within an eighth), relaxed counters.
 */
#ifndef WEFT_FS_LATENCY_H
#define WEFT_FS_LATENCY_H

#include <stdatomic.h>

#include "engine/common/base.h"

#define LATENCY_SUB_BITS 2
#define LATENCY_BUCKETS  (40u << LATENCY_SUB_BITS) /* up to 2^40 ns, 18 minutes */

struct latency {
	_Atomic uint64_t bucket[LATENCY_BUCKETS];
	_Atomic uint64_t total_ns;
	_Atomic uint64_t max_ns;
};

/* Powers of two at which a summary counts: 1 us to 17 s. */
#define LATENCY_POWER_FIRST 10u
#define LATENCY_POWERS      25u

/* What one histogram says, in nanoseconds. */
struct latency_summary {
	uint64_t count, total_ns, mean_ns, p50_ns, p90_ns, p99_ns, max_ns;
	uint64_t below[LATENCY_POWERS]; /* how many took less than 2^(FIRST + i) */
};

/* Adds one. Any task, any time. */
void latency_add(struct latency *l, uint64_t ns);
/* Reads it while others add: the numbers may be apart by what came in meanwhile. */
void latency_summarise(struct latency *l, struct latency_summary *out);

#endif
