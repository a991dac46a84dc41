/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the kernel still has of a mount that nobody serves any more. Programs that have files of it open go on
 * reading that, and stat it, while other nodes change it (docs/many-nodes.md, "When the daemon is killed").
 */
#ifndef WEFT_FS_DEAD_CACHE_H
#define WEFT_FS_DEAD_CACHE_H

#include "fs/ops/ops.h"

/*
 * Drops names, attributes and pages; what was mapped faults. `device` is a descriptor of the connection's, whose
 * requests are answered with errors from here on. Waits for answers that are being taken in. Safe in a signal handler.
 */
void dead_cache_drop(int device, const struct ops_noted *noted);

#endif
