/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes, numbers and UUIDs as people write and read them; the version of weft. */
#ifndef WEFT_COMMON_TEXT_H
#define WEFT_COMMON_TEXT_H

#include "engine/common/base.h"

#define WEFT_VERSION "0.1.0"

/* "16M", "2GiB", "4096B", powers of 1024 up to P: bytes. 0 or -EINVAL. */
int size_parse(const char *text, uint64_t *out);
#define SIZE_TEXT 16u

/* "512 bytes", "1.5 GiB". */
void size_print(uint64_t bytes, char out[SIZE_TEXT]);
/* For people. */
static inline double pages_mib(uint64_t pages)
{
	return (double)pages * PAGE_SIZE / (1 << 20);
}
/* Digits, or 0x and hexadecimal ones, and nothing else. 0 or -EINVAL. */
int number_parse(const char *text, uint64_t *out);

/* The word that was meant where another was given: text_nearest_try for all there are. */
struct text_nearest {
	const char *word; /* was given */
	size_t bytes;     /* of it, those that count */
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
/* A UUID and nothing else, letters of either case; *out is set where this is true. */
bool uuid_parse(const char *text, uint8_t out[UUID_BYTES]);
/* 2 * bytes hexadecimal digits, of any text; *out is set where this is true. */
bool hex_parse(const char *text, uint8_t *out, size_t bytes);
/* 2 * bytes digits and the final zero. */
void hex_print(const uint8_t *in, size_t bytes, char *out);

#endif
