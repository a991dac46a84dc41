/* SPDX-License-Identifier: Apache-2.0 */
/* CRC32C, by libisal, which picks the processor's fastest instructions, or a table. It finds
 * accidents, not attacks, since any program can compute it. */
#ifndef WEFT_CRC32C_H
#define WEFT_CRC32C_H

#include <isa-l/crc.h>
#include <limits.h>

#include "engine/common/base.h"

/* `before` is the checksum of some bytes. Returns the checksum of those bytes with the given ones
 * behind them. */
static inline uint32_t crc32c_more(uint32_t before, const void *bytes, size_t count)
{
	WEFT_ASSERT(count <= INT_MAX);
	return ~crc32_iscsi((unsigned char *)bytes, (int)count, ~before);
}

static inline uint32_t crc32c(const void *bytes, size_t count)
{
	return crc32c_more(0, bytes, count);
}

#endif
