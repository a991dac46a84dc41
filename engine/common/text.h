/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes, numbers and UUIDs in the form for users, and the version of weft. */
#ifndef WEFT_COMMON_TEXT_H
#define WEFT_COMMON_TEXT_H

#include "engine/common/base.h"

#define WEFT_VERSION "0.1.0"

/* "16M", "2GiB", "4096B", powers of 1024 up to P: bytes. 0 or -EINVAL. */
int size_parse(const char *text, uint64_t *out);
#define SIZE_TEXT 16u

/* "512 bytes", "1.5 GiB". */
void size_print(uint64_t bytes, char out[SIZE_TEXT]);
/* For output. */
static inline double pages_mib(uint64_t pages)
{
	return (double)pages * PAGE_SIZE / (1 << 20);
}
/* Parses digits, or 0x and hexadecimal digits, and nothing else. Returns 0 or -EINVAL. */
int number_parse(const char *text, uint64_t *out);

/* Finds the word that a user meant in place of a wrong one. Call text_nearest_try for each possible
 * word. */
struct text_nearest {
	const char *word; /* the given word */
	size_t bytes;     /* of it: only these count */
	const char *best; /* out: NULL if none is near enough to be a slip */
	unsigned distance;
};
void text_nearest_try(struct text_nearest *n, const char *candidate);

#define UUID_BYTES 16u
#define UUID_TEXT  37u

/* 36 characters and the final zero. */
void uuid_print(const uint8_t uuid[UUID_BYTES], char out[UUID_TEXT]);
/* Makes 16 random bytes a UUID of version 4 (RFC 4122). */
void uuid_of_random(uint8_t bytes[UUID_BYTES]);
/* Parses a UUID and nothing else, letters of either case. Sets *out only if it returns true. */
bool uuid_parse(const char *text, uint8_t out[UUID_BYTES]);
/* Parses 2 * bytes hexadecimal digits, at the beginning of any text. Sets *out only if it returns
 * true. */
bool hex_parse(const char *text, uint8_t *out, size_t bytes);
/* 2 * bytes digits and the final zero. */
void hex_print(const uint8_t *in, size_t bytes, char *out);

#endif
