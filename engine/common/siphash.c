/* SPDX-License-Identifier: Apache-2.0 */
/* SipHash-2-4, as in its paper. */
#include "engine/common/siphash.h"

#include <string.h>

static inline uint64_t rotate_left(uint64_t v, unsigned bits)
{
	return v << bits | v >> (64 - bits);
}

static inline void sip_round(uint64_t v[4])
{
	v[0] += v[1];
	v[1] = rotate_left(v[1], 13) ^ v[0];
	v[0] = rotate_left(v[0], 32);
	v[2] += v[3];
	v[3] = rotate_left(v[3], 16) ^ v[2];
	v[0] += v[3];
	v[3] = rotate_left(v[3], 21) ^ v[0];
	v[2] += v[1];
	v[1] = rotate_left(v[1], 17) ^ v[2];
	v[2] = rotate_left(v[2], 32);
}

uint64_t siphash_2_4(const uint64_t key[2], const void *data, size_t len)
{
	const uint8_t *bytes = data;
	uint64_t v[4] = {
		0x736f6d6570736575ull ^ key[0],
		0x646f72616e646f6dull ^ key[1],
		0x6c7967656e657261ull ^ key[0],
		0x7465646279746573ull ^ key[1],
	};
	uint64_t word, last = (uint64_t)len << 56;
	size_t whole = len & ~(size_t)7;

	for (size_t i = 0; i < whole; i += 8) {
		memcpy(&word, bytes + i, 8);
		v[3] ^= word;
		sip_round(v);
		sip_round(v);
		v[0] ^= word;
	}
	for (size_t i = whole; i < len; i++)
		last |= (uint64_t)bytes[i] << (8 * (i - whole));
	v[3] ^= last;
	sip_round(v);
	sip_round(v);
	v[0] ^= last;
	v[2] ^= 0xff;
	for (int i = 0; i < 4; i++)
		sip_round(v);
	return v[0] ^ v[1] ^ v[2] ^ v[3];
}
