/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the kernel still has of a mount that nobody serves any more. Programs that have files of it open go on
 * reading that, and stat it, while other nodes change it (docs/many-nodes.md, "When the daemon is killed").
 */
#ifndef WEFT_FS_DEAD_CACHE_H
#define WEFT_FS_DEAD_CACHE_H

#include "engine/common/base.h"

/*
 * Drops names, attributes and pages; what was mapped faults. `device` is a descriptor of the connection's, whose
 * requests are answered with errors from here on; inodes: `count` of those of which the kernel may have
 * something, 0 for none. Waits for answers that are being taken in. Safe in a signal handler.
 */
void dead_cache_drop(int device, const _Atomic uint64_t *inodes, size_t count);

#endif
