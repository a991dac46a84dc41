/* SPDX-License-Identifier: Apache-2.0 */
/* Latency histograms, cheap enough to stay on. Counters are relaxed. Buckets are log-linear, four
 * to each power of two, so a percentile is right within an eighth. */
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

/* Summary of one histogram, in nanoseconds. */
struct latency_summary {
	uint64_t count, total_ns, mean_ns, p50_ns, p90_ns, p99_ns, max_ns;
	uint64_t below[LATENCY_POWERS]; /* number of values below 2^(FIRST + i) */
};

/* Adds one value. May be called by any task. */
void latency_add(struct latency *l, uint64_t ns);
/* Summarizes a histogram. If other tasks add values meanwhile, the numbers may differ by these. */
void latency_summarise(struct latency *l, struct latency_summary *out);

#endif
