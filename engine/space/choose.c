/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The choice of the home that is asked for a group. It depends on the pages that each home could
 * hand over, and on its load (docs/nodes/space.md, "Which home is asked").
 *
 * The word of a home is a hint. A wrong one costs a call, or a group at a worse place.
 *
 * Locks: the caller holds ask_lock, which protects all of `home`. load_lock is a leaf.
 */
#include "engine/space/space_internal.h"

/* So long the answer of a home counts. */
#define TOLD_NS 1000000000ull
/* A home's load is an average over so long, and is computed anew at most so often. */
#define LOAD_NS      10000000000ull
#define LOAD_LOOK_NS 100000000ull
/* With no more than this load, in pages a second of all homes, no home counts as busy. */
#define LOAD_IDLE 4096.0
/* Of the weight of a busy home at least so much is left. */
#define WEIGHT_LEAST 0.25
/* The fraction of the golden ratio. */
#define GOLDEN_RATIO 0.6180339887498949

/* The word of an answer: the pages, and above them the load. */
#define WORD_PAGES_BITS 40
#define WORD_PAGES_MAX  ((1ull << WORD_PAGES_BITS) - 1)
#define WORD_LOAD_MAX   (UINT64_MAX >> WORD_PAGES_BITS)

/* ---- the word of a home ---------------------------------------------------------------- */

/* A group that this node does not own has no room in memory. */
static uint64_t pages_here(const struct space *sp)
{
	uint64_t pages = 0;

	for (uint64_t i = 0; i < sp->span[0].count; i++)
		pages += atomic_load_explicit(
			&sp->span[0].groups[i].room, memory_order_relaxed);
	return pages;
}

static uint64_t pages_moved(const struct space *sp)
{
	const struct store_counters *c = store_counters(cache_store(sp->cache));
	const struct log_counters *log = log_counters(sp->log);

	return atomic_load_explicit(&c->pages_read, memory_order_relaxed) +
	       atomic_load_explicit(&c->pages_written, memory_order_relaxed) +
	       atomic_load_explicit(&log->chunk_bytes, memory_order_relaxed) / PAGE_SIZE;
}

static uint64_t load_here(struct space *sp)
{
	uint64_t load, age;

	rt_mutex_lock(&sp->load_lock);
	age = rt_now_ns() - sp->load_at_ns;
	if (age >= LOAD_LOOK_NS) {
		uint64_t moved = pages_moved(sp);
		double rate = (double)(moved - sp->load_moved) * 1e9 / (double)age;
		double part = (double)MIN(age, LOAD_NS) / (double)LOAD_NS;

		sp->load += (rate - sp->load) * part;
		sp->load_moved = moved;
		sp->load_at_ns += age;
	}
	load = (uint64_t)sp->load;
	rt_mutex_unlock(&sp->load_lock);
	return load;
}

uint64_t home_word(struct space *sp)
{
	uint64_t pages = pages_here(sp), load = load_here(sp);

	return MIN(pages, WORD_PAGES_MAX) | MIN(load, WORD_LOAD_MAX) << WORD_PAGES_BITS;
}

/* ---- the choice of an asking node --------------------------------------------------- */

void home_says(struct space *sp, unsigned node, uint64_t word)
{
	struct home_told *home = &sp->home[node];

	home->pages = word & WORD_PAGES_MAX;
	home->load = word >> WORD_PAGES_BITS;
	home->at_ns = rt_now_ns();
}

void home_silent(struct space *sp, unsigned node)
{
	sp->home[node].pages = 0;
	sp->home[node].at_ns = 0;
}

static bool word_is_old(const struct home_told *home)
{
	return !home->at_ns || rt_now_ns() - home->at_ns >= TOLD_NS;
}

uint64_t homes_of(const struct space *sp)
{
	uint64_t homes = 0;

	for (unsigned i = 0; i < sp->shards->count; i++) {
		unsigned node =
			cache_home(sp->cache, pid_make(sp->shards->shard[i].id, 0));

		if (node <= DISK_NODE_MAX)
			homes |= 1ull << node;
	}
	return homes & others_of(sp);
}

void homes_learn(struct space *sp)
{
	uint64_t homes = homes_of(sp);

	for (unsigned node = 0; node <= DISK_NODE_MAX; node++)
		if ((homes >> node & 1) && word_is_old(&sp->home[node]))
			home_ask(sp, node);
	spans_grow(sp);
}

/* The part of each home of the next pages; of one without pages, or that was asked: 0. Returns
 * false if none is left. */
static bool homes_weigh(
	const struct space *sp, uint64_t asked, double part[DISK_NODE_MAX + 1])
{
	double pages = 0, load = LOAD_IDLE, sum = 0;

	for (unsigned node = 0; node <= DISK_NODE_MAX; node++) {
		const struct home_told *home = &sp->home[node];

		part[node] = asked >> node & 1 ? 0 : (double)home->pages;
		pages += part[node];
		load += part[node] > 0 ? (double)home->load : 0;
	}
	for (unsigned node = 0; node <= DISK_NODE_MAX; node++) {
		double of = pages > 0 ? part[node] / pages : 0;

		if (part[node] <= 0)
			continue;
		/* its part of the pages, by its part of the load */
		of *= load / ((double)sp->home[node].load + LOAD_IDLE * of);
		part[node] *= of >= 1 ? 1 : MAX(of, WEIGHT_LEAST);
		sum += part[node];
	}
	for (unsigned node = 0; node <= DISK_NODE_MAX && sum > 0; node++)
		part[node] /= sum;
	return sum > 0;
}

/*
 * Draws homes by the multiples of the golden ratio: their fractions are the places, from a random
 * one on. Each place gives a home with the probability of its part. The places are spread so evenly
 * that a few in a row give each home its part, to about one.
 */
unsigned home_choose(struct space *sp, uint64_t asked)
{
	double part[DISK_NODE_MAX + 1], left;
	unsigned chosen = 0;

	if (!homes_weigh(sp, asked, part))
		return 0;
	sp->home_turn += GOLDEN_RATIO;
	sp->home_turn -= sp->home_turn >= 1 ? 1 : 0;
	left = sp->home_turn;
	for (unsigned node = 0; node <= DISK_NODE_MAX && left >= 0; node++) {
		if (part[node] > 0)
			chosen = node;
		left -= part[node];
	}
	return chosen;
}

void choose_begin(struct space *sp)
{
	sp->home_turn = (double)(rt_random() >> 11) / (double)(1ull << 53);
	sp->load_at_ns = rt_now_ns();
	sp->load_moved = pages_moved(sp);
}
