/* SPDX-License-Identifier: Apache-2.0 */
/* Log-linear latency histograms; see latency.h. All counters are statistics: relaxed. */
#include "fs/latency.h"

static unsigned latency_bucket(uint64_t ns)
{
	unsigned top;
	unsigned index;

	if (ns < 1u << LATENCY_SUB_BITS)
		return (unsigned)ns;
	top = 63 - (unsigned)__builtin_clzll(ns);
	index = (top - LATENCY_SUB_BITS + 1) << LATENCY_SUB_BITS |
		(unsigned)(ns >> (top - LATENCY_SUB_BITS) &
			   ((1u << LATENCY_SUB_BITS) - 1));
	return MIN(index, LATENCY_BUCKETS - 1);
}

/* Middle of a bucket. */
static uint64_t bucket_value(unsigned index)
{
	unsigned shift;
	uint64_t low;

	if (index < 1u << LATENCY_SUB_BITS)
		return index;
	shift = (index >> LATENCY_SUB_BITS) - 1;
	low = (uint64_t)((1u << LATENCY_SUB_BITS) |
			 (index & ((1u << LATENCY_SUB_BITS) - 1)))
	      << shift;
	return low + ((1ull << shift) >> 1);
}

void latency_add(struct latency *l, uint64_t ns)
{
	uint64_t max = atomic_load_explicit(&l->max_ns, memory_order_relaxed);

	atomic_fetch_add_explicit(&l->bucket[latency_bucket(ns)], 1, memory_order_relaxed);
	atomic_fetch_add_explicit(&l->total_ns, ns, memory_order_relaxed);
	while (ns > max && !atomic_compare_exchange_weak_explicit(&l->max_ns, &max, ns,
				   memory_order_relaxed, memory_order_relaxed))
		;
}

static uint64_t counts_percentile(
	const uint64_t *counts, uint64_t total, unsigned percent)
{
	uint64_t rank = (total * percent + 99) / 100;
	uint64_t seen = 0;

	for (unsigned i = 0; i < LATENCY_BUCKETS; i++) {
		seen += counts[i];
		if (seen >= rank && seen > 0)
			return bucket_value(i);
	}
	return 0;
}

/* Powers of two are where buckets begin. */
static void count_below(const uint64_t *counts, struct latency_summary *out)
{
	uint64_t below = 0;
	unsigned at = 0;

	for (unsigned i = 0; i < LATENCY_POWERS; i++) {
		unsigned end = latency_bucket(1ull << (LATENCY_POWER_FIRST + i));

		while (at < end)
			below += counts[at++];
		out->below[i] = below;
	}
}

void latency_summarise(struct latency *l, struct latency_summary *out)
{
	uint64_t counts[LATENCY_BUCKETS];

	*out = (struct latency_summary){0};
	for (unsigned i = 0; i < LATENCY_BUCKETS; i++) {
		counts[i] = atomic_load_explicit(&l->bucket[i], memory_order_relaxed);
		out->count += counts[i];
	}
	if (out->count == 0)
		return;
	count_below(counts, out);
	out->total_ns = atomic_load_explicit(&l->total_ns, memory_order_relaxed);
	out->max_ns = atomic_load_explicit(&l->max_ns, memory_order_relaxed);
	out->mean_ns = out->total_ns / out->count;
	out->p50_ns = MIN(counts_percentile(counts, out->count, 50), out->max_ns);
	out->p90_ns = MIN(counts_percentile(counts, out->count, 90), out->max_ns);
	out->p99_ns = MIN(counts_percentile(counts, out->count, 99), out->max_ns);
}
