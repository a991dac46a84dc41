/* SPDX-License-Identifier: Apache-2.0 */
/* SipHash-2-4 (Aumasson and Bernstein, 2012), with 64 bits of result: hashes of names. */
#ifndef WEFT_COMMON_SIPHASH_H
#define WEFT_COMMON_SIPHASH_H

#include <stddef.h>
#include <stdint.h>

uint64_t siphash_2_4(const uint64_t key[2], const void *bytes, size_t len);

/* The place of a name's item: bit 63 and the low four bits clear, at least 16 (format.h). */
#define NAME_HASH_MASK 0x7ffffffffffffff0ull
#define NAME_HASH_MIN  16u

#endif
