/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Changes memory that another task may be reading, if that task will find out and not use it. One
 * example is a frame that is filled anew, seen by an optimistic reader of its earlier page. Another
 * is a home that reads an image which has been persisted meanwhile. Under ThreadSanitizer it uses
 * relaxed atomics, so that the other accesses can be checked. Elsewhere the compiler's own
 * functions do the same.
 */
#ifndef WEFT_RACY_H
#define WEFT_RACY_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__SANITIZE_THREAD__)
static inline void racy_copy(void *dst, const void *src, size_t len)
{
	for (size_t i = 0; i < len; i++)
		__atomic_store_n((uint8_t *)dst + i,
			__atomic_load_n((const uint8_t *)src + i, __ATOMIC_RELAXED),
			__ATOMIC_RELAXED);
}

static inline void racy_clear(void *dst, size_t len)
{
	for (size_t i = 0; i < len; i++)
		__atomic_store_n((uint8_t *)dst + i, 0, __ATOMIC_RELAXED);
}
#else
static inline void racy_copy(void *dst, const void *src, size_t len)
{
	memcpy(dst, src, len);
}

static inline void racy_clear(void *dst, size_t len)
{
	memset(dst, 0, len);
}
#endif

#endif
