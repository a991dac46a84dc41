/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random work on a mounted filesystem, checked as it goes. Every run prints the seed that
 * repeats its choices.
 */
#ifndef WEFT_TESTS_FSX_H
#define WEFT_TESTS_FSX_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#define VIEWS_MAX 8u

struct options {
	const char
		*directory[VIEWS_MAX]; /* the same one, by as many mounts of a volume */
	unsigned directories;
	uint64_t seed;
	unsigned operations; /* of each process */
	unsigned processes;
	size_t size; /* a file's, at most */
	unsigned kills;
	bool direct; /* O_DIRECT half of the time */
	bool mappings;
	bool readers; /* read by descriptors that only read, too */
};

/* Random numbers from a seed (splitmix64). */
static inline uint64_t random_next(uint64_t *state)
{
	uint64_t z = *state += 0x9e3779b97f4a7c15ull;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ z >> 27) * 0x94d049bb133111ebull;
	return z ^ z >> 31;
}

static inline uint64_t random_below(uint64_t *state, uint64_t bound)
{
	return bound ? random_next(state) % bound : 0;
}

static inline const char *directory_of(const struct options *o, unsigned process)
{
	return o->directory[process % o->directories];
}

/* One process of each kind of work: 0 if all was as it must be. */
int data_run(const struct options *o, unsigned process);
int names_run(const struct options *o, unsigned process);
int replace_run(const struct options *o, unsigned process);
/* The only process. */
int killed_run(const struct options *o);
/* After names_run's processes: is the tree in itself right? */
int names_check(const char *directory);

#endif
