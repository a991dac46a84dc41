/* SPDX-License-Identifier: Apache-2.0 */
/* Sorting requests by place, without the allocations of qsort. */
#include "engine/store/store_internal.h"

/* Shell's sort with Ciura's gaps: linear for items that are sorted already. */
void store_sort(struct store_order *items, unsigned count)
{
	static const unsigned gaps[] = {701, 301, 132, 57, 23, 10, 4, 1};

	for (unsigned g = 0; g < ARRAY_SIZE(gaps); g++) {
		unsigned gap = gaps[g];

		for (unsigned i = gap; i < count; i++) {
			struct store_order item = items[i];
			unsigned j = i;

			for (; j >= gap && items[j - gap].place > item.place; j -= gap)
				items[j] = items[j - gap];
			items[j] = item;
		}
	}
}
