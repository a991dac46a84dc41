/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where leaves are: a plain table, a learned model (XStore §3 to §5), and the pages above the
 * leaves. Counts round trips: first at a node that has the same memory for each of them, and no
 * leaf in its cache. Then at a node with a cache of 1/64 to 1/2 of all leaves, of which a 64th is
 * the table's or the model's, or nothing (none).
 *
 *	weft dump STORE tree | learned_bench [lookups]
 *
 * The leaves, and the pages above them, are those of a real volume. Prints one key=value per line.
 * A lookup costs 1 round trip if the node knows the leaf's place. Otherwise it costs 2: one for the
 * page above the leaf, or for the question to the leaf's home. A block of the model, with up to
 * 1000 leaves, then comes beside the leaf, and is not counted.
 *
 * - table: engine/tree/learned.c, 64 bytes a leaf.
 * - model: blocks of segments (24 bytes, error of half a leaf) and a translation table (64 bytes
 *   for 7 leaves). All of its guesses count as right.
 * - pages: the pages above the leaves as they are.
 * - segments: the model without the tables. Each lookup reads a line of the table at the home, so
 *   it costs 2 round trips where the segment is known. It is printed as bytes a leaf alone.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/tree/tree_internal.h"

#define LEAVES_MAX   (1u << 20)
#define ENTRY_BYTES  64u
#define BLOCK_LEAVES 1000u
#define BLOCK_BYTES  80u /* its head and checksum */
#define SEGMENT      24u
#define LINE         64u /* of the translation table, for LINE_LEAVES */
#define LINE_LEAVES  7u
#define ERROR        0.5 /* of a segment, in leaves */
#define ZIPF         0.99

struct leaf {
	tree_key low, high;
	unsigned items, page, block;
	uint64_t first; /* number of its first item */
};

static struct leaf leaves[LEAVES_MAX];
static unsigned leaf_count, page_count, block_count;
static unsigned block_bytes[LEAVES_MAX], page_bytes[LEAVES_MAX];
static uint64_t item_count;

static uint64_t mix(uint64_t x)
{
	x ^= x >> 30;
	x *= 0xbf58476d1ce4e5b9ull;
	x ^= x >> 27;
	x *= 0x94d049bb133111ebull;
	return x ^ x >> 31;
}

/* ---- the volume --------------------------------------------------------------------- */

/* A key as `weft dump` prints it: inode/type/discriminator. */
static tree_key parse_key(const char *text)
{
	unsigned long long ino, disc;
	unsigned type;

	if (sscanf(text, "%llu/%u/%llx", &ino, &type, &disc) != 3)
		return TREE_KEY_MAX; /* "end" */
	return (tree_key)(ino << 8 | type) << 64 | disc;
}

static void read_dump(void)
{
	char line[256], from[64], to[64];
	unsigned level, count;

	while (fgets(line, sizeof(line), stdin)) {
		if (sscanf(line, " %*[^:]: level %u, %u %*[^,], keys %63s to %63s", &level,
			    &count, from, to) != 4)
			continue;
		if (level > 0 && level <= 2)
			page_count++;
		if (level > 0 || leaf_count == LEAVES_MAX)
			continue;
		leaves[leaf_count++] = (struct leaf){.low = parse_key(from),
			.high = parse_key(to),
			.items = count,
			.page = page_count,
			.first = item_count};
		item_count += count;
	}
}

/* ---- the model ---------------------------------------------------------------------- */

/* Returns the leaves from `first` on that one segment finds, within ERROR: a greedy cone. */
static unsigned segment_leaves(unsigned first, unsigned max)
{
	double least = 0, most = INFINITY;
	unsigned n = 1;

	for (; n < max; n++) {
		double x = (double)(leaves[first + n].low - leaves[first].low);
		double low = (n - ERROR) / x, high = (n + ERROR) / x;

		if (low > most || high < least)
			break;
		least = fmax(least, low);
		most = fmin(most, high);
	}
	return n;
}

/* Cuts the leaves into blocks. Returns the number of segments. */
static unsigned make_blocks(void)
{
	unsigned segments = 0, at = 0;

	while (at < leaf_count) {
		unsigned n = MIN(BLOCK_LEAVES, leaf_count - at), own = 0;

		for (unsigned i = 0; i < n; own++)
			i += segment_leaves(at + i, n - i);
		for (unsigned i = 0; i < n; i++)
			leaves[at + i].block = block_count;
		block_bytes[block_count++] =
			BLOCK_BYTES + own * SEGMENT + DIV_UP(n, LINE_LEAVES) * LINE;
		segments += own;
		at += n;
	}
	return segments;
}

/* ---- what is looked up -------------------------------------------------------------- */

static double zeta;

/* A rank of Zipf's distribution, by Gray et al. */
static uint64_t zipf_rank(uint64_t seed)
{
	double u = (double)(mix(seed) >> 11) / (double)(1ull << 53), n = (double)item_count;
	double zeta2 = 1 + pow(0.5, ZIPF), alpha = 1 / (1 - ZIPF);
	double eta = (1 - pow(2 / n, 1 - ZIPF)) / (1 - zeta2 / zeta);

	if (u * zeta < 1)
		return 0;
	if (u * zeta < zeta2)
		return 1;
	return (uint64_t)(n * pow(eta * u - eta + 1, alpha));
}

/* The leaf of the item that is looked up as the n-th. Popular items are anywhere. */
static const struct leaf *looked_up(uint64_t n, bool zipf)
{
	uint64_t item = mix(zipf ? zipf_rank(n) : n) % item_count;
	unsigned low = 0, high = leaf_count;

	while (low + 1 < high) {
		unsigned middle = (low + high) / 2;

		if (leaves[middle].first <= item)
			low = middle;
		else
			high = middle;
	}
	return &leaves[low];
}

/* ---- memory: the least recently used goes ------------------------------------------- */

static uint64_t used_at[LEAVES_MAX];

/* Returns true if the part was there. Makes room for it otherwise. */
static bool use_part(unsigned part, unsigned parts, const unsigned *bytes, uint64_t memory,
	uint64_t *used, uint64_t now)
{
	bool was = used_at[part];

	used_at[part] = now;
	if (was)
		return true;
	*used += bytes[part];
	while (*used > memory) {
		unsigned oldest = part;

		for (unsigned i = 0; i < parts; i++)
			if (used_at[i] && used_at[i] < used_at[oldest])
				oldest = i;
		*used -= bytes[oldest];
		used_at[oldest] = 0;
		if (oldest == part)
			break;
	}
	return false;
}

static double trips_parts(bool model, uint64_t memory, uint64_t lookups, bool zipf)
{
	const unsigned *bytes = model ? block_bytes : page_bytes;
	unsigned parts = model ? block_count : page_count + 1;
	uint64_t used = 0, missed = 0;

	memset(used_at, 0, sizeof(used_at));
	for (uint64_t n = 1; n <= 2 * lookups; n++) {
		const struct leaf *leaf = looked_up(n, zipf);
		bool had = use_part(
			model ? leaf->block : leaf->page, parts, bytes, memory, &used, n);

		missed += n > lookups && !had;
	}
	return 1 + (double)missed / (double)lookups;
}

static double trips_table(uint64_t memory, uint64_t lookups, bool zipf)
{
	struct learned *l;
	uint64_t missed = 0;

	if (learned_open(&l, memory))
		return 2;
	for (uint64_t n = 1; n <= 2 * lookups; n++) {
		const struct leaf *leaf = looked_up(n, zipf);
		struct learned_leaf found = {leaf->low, leaf->high, leaf->first + 1, 1};

		if (learned_find(l, leaf->low, &found))
			continue;
		missed += n > lookups;
		learned_note(l, &found);
	}
	learned_close(l);
	return 1 + (double)missed / (double)lookups;
}

/* ---- beside a cache ------------------------------------------------------------------ */

enum way { WAY_NONE, WAY_TABLE, WAY_MODEL };

/* The frames of a node: leaves by their numbers, then the pages above. Second chance. */
static struct {
	unsigned count, hand;
	struct {
		unsigned page;
		bool taken, used;
	} frame[LEAVES_MAX];
	unsigned at[2 * LEAVES_MAX]; /* 1 + its frame; 0: it is not here */
} cache;

static bool is_cached(unsigned page)
{
	if (!cache.at[page])
		return false;
	cache.frame[cache.at[page] - 1].used = true;
	return true;
}

static void bring(unsigned page)
{
	while (cache.frame[cache.hand].used) {
		cache.frame[cache.hand].used = false;
		cache.hand = (cache.hand + 1) % cache.count;
	}
	if (cache.frame[cache.hand].taken)
		cache.at[cache.frame[cache.hand].page] = 0;
	cache.frame[cache.hand].page = page;
	cache.frame[cache.hand].taken = cache.frame[cache.hand].used = true;
	cache.at[page] = cache.hand + 1;
	cache.hand = (cache.hand + 1) % cache.count;
}

/* Returns round trips for each lookup. `memory` of the cache's is the table's or the model's. */
static double trips_beside_cache(
	enum way way, uint64_t frames, uint64_t memory, uint64_t lookups, bool zipf)
{
	struct learned *l = NULL;
	uint64_t used = 0, trips = 0;

	memset(&cache, 0, sizeof(cache));
	memset(used_at, 0, sizeof(used_at));
	cache.count = (unsigned)(frames - (way == WAY_NONE ? 0 : memory / PAGE_SIZE));
	if (way == WAY_TABLE && learned_open(&l, memory))
		return 0;
	for (uint64_t n = 1; n <= 2 * lookups; n++) {
		const struct leaf *leaf = looked_up(n, zipf);
		unsigned number = (unsigned)(leaf - leaves);
		struct learned_leaf found = {leaf->low, leaf->high, leaf->first + 1, 1};
		unsigned cost = 1;

		if (is_cached(number))
			continue;
		if (!is_cached(leaf_count + leaf->page) &&
			!(way == WAY_TABLE && learned_find(l, leaf->low, &found))) {
			cost = 2;
			if (way == WAY_MODEL && use_part(leaf->block, block_count,
							block_bytes, memory, &used, n))
				cost = 1;
			else
				bring(leaf_count + leaf->page);
		}
		bring(number);
		if (way == WAY_TABLE)
			learned_note(l, &found);
		trips += n > lookups ? cost : 0;
	}
	learned_close(l);
	return (double)trips / (double)lookups;
}

static void print_same_memory(uint64_t lookups, bool zipf)
{
	for (unsigned part = 64; part >= 1; part /= 2) {
		uint64_t memory = (uint64_t)leaf_count * ENTRY_BYTES / part;

		printf("%s_bytes_leaf_%u: table=%.3f model=%.3f pages=%.3f\n",
			zipf ? "zipf" : "uniform", ENTRY_BYTES / part,
			trips_table(memory, lookups, zipf),
			trips_parts(true, memory, lookups, zipf),
			trips_parts(false, memory, lookups, zipf));
	}
}

static void print_beside_cache(uint64_t lookups, bool zipf)
{
	for (unsigned part = 64; part >= 2; part /= 2) {
		uint64_t frames = leaf_count / part, memory = frames * PAGE_SIZE / 64;

		printf("%s_cache_of_1/%u: none=%.3f table=%.3f model=%.3f\n",
			zipf ? "zipf" : "uniform", part,
			trips_beside_cache(WAY_NONE, frames, 0, lookups, zipf),
			trips_beside_cache(WAY_TABLE, frames, memory, lookups, zipf),
			trips_beside_cache(WAY_MODEL, frames, memory, lookups, zipf));
	}
}

int main(int argc, char **argv)
{
	uint64_t lookups = argc > 1 ? strtoull(argv[1], NULL, 0) : 200000;
	unsigned segments;

	read_dump();
	if (!leaf_count || !lookups) {
		fprintf(stderr, "no leaf: weft dump STORE tree | learned_bench [lookups]\n");
		return 1;
	}
	for (unsigned i = 0; i <= page_count; i++)
		page_bytes[i] = PAGE_SIZE;
	for (uint64_t i = 1; i <= item_count; i++)
		zeta += pow((double)i, -ZIPF);
	segments = make_blocks();
	printf("leaves=%u\nitems=%llu\npages_above=%u\nsegments=%u\n", leaf_count,
		(unsigned long long)item_count, page_count, segments);
	printf("table_bytes_leaf=%u\npages_bytes_leaf=%.1f\nmodel_bytes_leaf=%.1f\n"
	       "segments_bytes_leaf=%.2f\n",
		ENTRY_BYTES, (double)page_count * PAGE_SIZE / leaf_count,
		(double)segments * SEGMENT / leaf_count +
			(double)DIV_UP(leaf_count, LINE_LEAVES) * LINE / leaf_count +
			(double)block_count * BLOCK_BYTES / leaf_count,
		(double)segments * SEGMENT / leaf_count);
	for (unsigned zipf = 0; zipf < 2; zipf++) {
		print_same_memory(lookups, zipf);
		print_beside_cache(lookups, zipf);
	}
	return 0;
}
