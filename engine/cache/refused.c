/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A store that refuses writes: what is known of it. Its pages stay dirty and are tried again. If it
 * is full, new pages are refused to programs as well (cache_write_error), since nothing would take
 * them, and it is tried once in a while only.
 */
#include "engine/cache/cache_internal.h"

#include <errno.h>

/* Each try leaves descriptors in the log. */
#define FULL_NS 1000000000ull

int cache_write_error(struct cache *c)
{
	return atomic_load_explicit(&c->write_error, memory_order_relaxed);
}

void store_took(struct cache *c, int e, bool fresh)
{
	int before = cache_write_error(c);

	if (e == -ENOSPC)
		atomic_store_explicit(&c->full_until_ns, rt_now_ns() + FULL_NS,
			memory_order_relaxed);
	if (likely(e == before) || (!e && before == -ENOSPC && !fresh) ||
		!atomic_compare_exchange_strong_explicit(&c->write_error, &before, e,
			memory_order_relaxed, memory_order_relaxed))
		return;
	if (e)
		weft_log(3,
			"the store cannot be written: %s; changed pages stay in memory, and "
			"are tried again%s",
			strerrordesc_np(-e),
			e == -ENOSPC ? "; make room on the disk that the store is on" : "");
	else
		weft_log(5, "the store takes writes again");
}

bool store_rests(struct cache *c)
{
	return unlikely(cache_write_error(c) == -ENOSPC) &&
	       !atomic_load_explicit(&c->stopping, memory_order_acquire) &&
	       rt_now_ns() <
		       atomic_load_explicit(&c->full_until_ns, memory_order_relaxed);
}
