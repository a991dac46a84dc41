/* SPDX-License-Identifier: Apache-2.0 */
/* Walks through values of items. Their bytes may be anything (invariant 9). */
#include "engine/common/format.h"

#include <errno.h>

bool disk_entry_step(const void *value, size_t len, size_t *at,
	const struct disk_entry **out, int *error)
{
	const struct disk_entry *e;
	size_t left = len - *at;

	*error = 0;
	if (left == 0)
		return false;
	e = (const struct disk_entry *)((const uint8_t *)value + *at);
	if (left < sizeof(*e) || e->name_bytes == 0 ||
		left - sizeof(*e) < e->name_bytes || e->ino == 0 ||
		e->ino > DISK_INO_MAX) {
		*error = -EUCLEAN;
		return false;
	}
	*at += sizeof(*e) + e->name_bytes;
	*out = e;
	return true;
}
