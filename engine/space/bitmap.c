/* SPDX-License-Identifier: Apache-2.0 */
/* Ranges of bits in an array of words, a word at a time. Bit i is bit i % 64 of word i / 64. On a
 * little-endian machine that is bit i % 8 of byte i / 8, as on disk. */
#include "engine/space/space_internal.h"

/* Bits [first, last] of a word. */
static uint64_t word_mask(uint32_t first, uint32_t last)
{
	return (~0ull << first) & (~0ull >> (63 - last));
}

/* Calls for each word that a range touches, as `mask` and `word`. A statement expression would hide
 * the loop. A callback would cost more than the work. */
/* NOLINTBEGIN(bugprone-macro-parentheses): it declares `word` */
#define FOR_EACH_WORD(word, mask, first, count)                                          \
	for (uint32_t at_ = (first), end_ = (first) + (count), word = at_ / 64,          \
		      last_ = MIN(end_ - at_, 64 - at_ % 64);                            \
		at_ < end_ &&                                                            \
		((mask) = word_mask(at_ % 64, at_ % 64 + last_ - 1), true);              \
		at_ += last_, word = at_ / 64, last_ = MIN(end_ - at_, 64u))
/* NOLINTEND(bugprone-macro-parentheses) */

void bitmap_set(uint64_t *map, uint32_t first, uint32_t count)
{
	uint64_t mask;

	FOR_EACH_WORD(word, mask, first, count)
	map[word] |= mask;
}

void bitmap_clear(uint64_t *map, uint32_t first, uint32_t count)
{
	uint64_t mask;

	FOR_EACH_WORD(word, mask, first, count)
	map[word] &= ~mask;
}

bool bitmap_all_set(const uint64_t *map, uint32_t first, uint32_t count)
{
	uint64_t mask;

	FOR_EACH_WORD(word, mask, first, count)
	if ((map[word] & mask) != mask)
		return false;
	return true;
}

bool bitmap_all_clear(const uint64_t *map, uint32_t first, uint32_t count)
{
	uint64_t mask;

	FOR_EACH_WORD(word, mask, first, count)
	if (map[word] & mask)
		return false;
	return true;
}

uint32_t bitmap_count(const uint64_t *map, uint32_t bits)
{
	uint64_t mask;
	uint32_t n = 0;

	FOR_EACH_WORD(word, mask, 0, bits)
	n += (uint32_t)__builtin_popcountll(map[word] & mask);
	return n;
}

/* First bit in [from, end) that is set in map ^ invert; end when there is none. */
static uint32_t next_bit(
	const uint64_t *map, uint64_t invert, uint32_t from, uint32_t end)
{
	uint64_t bits;
	uint32_t word = from / 64;

	if (from >= end)
		return end;
	bits = (map[word] ^ invert) & (~0ull << from % 64);
	while (!bits) {
		if (++word * 64 >= end)
			return end;
		bits = map[word] ^ invert;
	}
	return MIN(word * 64 + (uint32_t)__builtin_ctzll(bits), end);
}

/* 1 + the last bit in [0, end) that is set in map ^ invert; 0 when there is none. */
static uint32_t last_bit(const uint64_t *map, uint64_t invert, uint32_t end)
{
	uint32_t word;
	uint64_t bits;

	if (!end)
		return 0;
	word = (end - 1) / 64;
	bits = (map[word] ^ invert) & (~0ull >> (63 - (end - 1) % 64));
	while (!bits) {
		if (!word)
			return 0;
		bits = map[--word] ^ invert;
	}
	return word * 64 + 64 - (uint32_t)__builtin_clzll(bits);
}

uint32_t bitmap_run(const uint64_t *map, uint32_t first, uint32_t end, uint32_t most)
{
	if (first >= end)
		return 0;
	return next_bit(map, 0, first, MIN(end, first + most)) - first;
}

uint32_t bitmap_find(
	const uint64_t *map, uint32_t from, uint32_t end, uint32_t want, uint32_t *first)
{
	uint32_t best = 0;

	while ((from = next_bit(map, ~0ull, from, end)) < end) {
		uint32_t length = bitmap_run(map, from, end, want);

		if (length > best) {
			best = length;
			*first = from;
			if (best == want)
				break;
		}
		from += length;
	}
	return best;
}

uint32_t bitmap_find_down(
	const uint64_t *map, uint32_t end, uint32_t want, uint32_t *first)
{
	uint32_t best = 0;

	while ((end = last_bit(map, ~0ull, end)) > 0) {
		uint32_t begin = last_bit(map, 0, end);
		uint32_t length = MIN(end - begin, want);

		if (length > best) {
			best = length;
			*first = end - length;
			if (best == want)
				break;
		}
		end = begin;
	}
	return best;
}
