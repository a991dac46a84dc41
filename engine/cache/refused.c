/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state of a store that refuses writes. Its pages stay dirty and are tried again. If it is
 * full, new pages are refused to programs as well (cache_store_full), since the store would not
 * take them. Then it is tried only once in a while. A program is refused for some seconds after a
 * failed try. If no dirty page is left for a try, the next new page is the try.
 */
#include "engine/cache/cache_internal.h"

#include <errno.h>

/* Each try leaves descriptors in the log. */
#define FULL_NS    1000000000ull
#define REFUSED_NS 2000000000ull /* so long behind that programs are refused */
#define PASSED_NS                                                                        \
	10000000000ull /* after that a batch that the store takes says that it has room */

int cache_write_error(struct cache *c)
{
	return atomic_load_explicit(&c->refused.error, memory_order_relaxed);
}

/* Returns true if the store was full, and the last failed try is not long ago. */
static bool full_lately(struct cache *c, uint64_t behind_ns)
{
	return cache_write_error(c) == -ENOSPC &&
	       rt_now_ns() < behind_ns + atomic_load_explicit(&c->refused.full_until_ns,
						 memory_order_relaxed);
}

bool cache_store_full(struct cache *c)
{
	return unlikely(cache_write_error(c) == -ENOSPC) && full_lately(c, REFUSED_NS);
}

void store_took(struct cache *c, int rc, bool fresh)
{
	int before = cache_write_error(c);

	if (rc == -ENOSPC)
		atomic_store_explicit(&c->refused.full_until_ns, rt_now_ns() + FULL_NS,
			memory_order_relaxed);
	if (likely(rc == before) || (!rc && !fresh && full_lately(c, PASSED_NS)) ||
		!atomic_compare_exchange_strong_explicit(&c->refused.error, &before, rc,
			memory_order_relaxed, memory_order_relaxed))
		return;
	if (rc)
		weft_log(3,
			"the store cannot be written: %s; changed pages stay in memory, "
			"and "
			"are tried again%s",
			strerrordesc_np(-rc),
			rc == -ENOSPC ? "; make room on the disk that the store is on"
				     : "");
	else
		weft_log(5, "the store takes writes again");
}

bool store_rests(struct cache *c)
{
	return unlikely(cache_write_error(c) == -ENOSPC) &&
	       !atomic_load_explicit(&c->stopping, memory_order_acquire) &&
	       full_lately(c, 0);
}
