/* SPDX-License-Identifier: Apache-2.0 */
/* Capabilities of a daemon that root has started. */
#ifndef WEFT_FS_RIGHTS_H
#define WEFT_FS_RIGHTS_H

#include "engine/common/base.h"

/*
 * Drops all capabilities that weftd does not use, for good, also for child processes. Call it while
 * the process has one thread: Linux keeps capabilities by thread. An ordinary user's process has
 * none to drop.
 */
void rights_drop(void);

#endif
