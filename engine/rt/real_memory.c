/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of the real runtime. Small blocks come from calloc, which does not touch large zeroed
 * blocks before they are used. Pages come from mmap for the same reason. */
#include <stdlib.h>
#include <sys/mman.h>

#include "engine/rt/real.h"

#define HUGE_BYTES (2ull << 20)

/* calloc aligns to 16 bytes, so there is always room for the pointer below the block. */
void *real_alloc(size_t size)
{
	char *raw, *p;

	if (size > SIZE_MAX / 2)
		return NULL;
	raw = calloc(1, size + CACHE_LINE);
	if (!raw)
		return NULL;
	p = (char *)(((uintptr_t)raw + CACHE_LINE) & ~(uintptr_t)(CACHE_LINE - 1));
	((void **)p)[-1] = raw;
	return p;
}

void real_free(void *p)
{
	free(((void **)p)[-1]);
}

static void *map_anonymous(size_t size)
{
	void *p = mmap(NULL, size, PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	return p == MAP_FAILED ? NULL : p;
}

/* Maps a huge page more than wanted, and cuts the mapping to start at a huge page. */
void *real_alloc_pages(size_t size)
{
	char *raw, *p;
	size_t mapped;

	if (size == 0 || size > SIZE_MAX / 2)
		return NULL;
	size = ALIGN_UP(size, (size_t)PAGE_SIZE);
	if (size < HUGE_BYTES)
		return map_anonymous(size);
	mapped = size + HUGE_BYTES;
	raw = map_anonymous(mapped);
	if (!raw)
		return NULL;
	p = (char *)ALIGN_UP((uintptr_t)raw, (uintptr_t)HUGE_BYTES);
	if (p > raw)
		munmap(raw, (size_t)(p - raw));
	if (p + size < raw + mapped)
		munmap(p + size, (size_t)(raw + mapped - (p + size)));
	madvise(p, size, MADV_HUGEPAGE); /* a hint */
	return p;
}

void real_free_pages(void *p, size_t size)
{
	size = ALIGN_UP(size, (size_t)PAGE_SIZE);
	real_disks_forget(p, size);
	WEFT_ASSERT(munmap(p, size) == 0);
}
