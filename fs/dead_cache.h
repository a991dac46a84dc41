/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel's cache of a mount whose daemon has ended. Programs with open files read it, and stat
 * it, while other nodes change the files (docs/nodes/supervisor.md). */
#ifndef WEFT_FS_DEAD_CACHE_H
#define WEFT_FS_DEAD_CACHE_H

#include "fs/ops/kept.h"

/*
 * Drops names, attributes and pages. Accesses to mappings then fault. `device`: a descriptor of the
 * connection, whose requests are answered with errors from here on. Waits until answers under way
 * are taken in. May be called in a signal handler.
 */
void dead_cache_drop(int device, const struct kcache_noted *noted);

#endif
