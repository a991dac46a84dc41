/* SPDX-License-Identifier: Apache-2.0 */
/* An inode's attributes and a name, as the operations answer them and the kernel caches them. */
#ifndef WEFT_KCACHE_ATTR_H
#define WEFT_KCACHE_ATTR_H

#include "engine/volume/volume.h"

struct ops_attr {
	uint64_t ino;
	struct disk_inode inode;
};

/* `len` bytes, no slash, no NUL. Not terminated. */
struct ops_name {
	const char *bytes;
	size_t len;
};

#endif
