/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/dead_cache.h"

#include <errno.h>
#include <linux/fuse.h>
#include <poll.h>
#include <stdatomic.h>
#include <unistd.h>

/* An answer that was given before may be taken in after the first turn: then there is a second
 * one. */
#define TURNS      2
#define TAKE_IN_MS 50

static bool write_notification(int device, const void *notification, size_t len)
{
	return write(device, notification, len) >= 0 || errno == ENOENT;
}

/* False: the filesystem has gone. */
static bool drop_inode(int device, uint64_t ino)
{
	struct {
		struct fuse_out_header out;
		struct fuse_notify_inval_inode_out what;
	} n = {
		.out = {.len = sizeof(n), .error = FUSE_NOTIFY_INVAL_INODE},
		.what = {.ino = ino},
	};

	return write_notification(device, &n, sizeof(n));
}

void dead_cache_drop(int device, const struct kcache_noted *noted)
{
	for (unsigned turn = 0; turn < TURNS; turn++) {
		if (turn > 0)
			poll(NULL, 0, TAKE_IN_MS);
		for (uint32_t i = 0; i < noted->count; i++) {
			uint64_t ino = atomic_load_explicit(
				&noted->ino[i], memory_order_relaxed);

			if (ino && !drop_inode(device, ino))
				return;
		}
	}
}
