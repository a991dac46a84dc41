/* SPDX-License-Identifier: Apache-2.0 */
/* Capabilities of a daemon that root has started. */
#ifndef WEFT_FS_RIGHTS_H
#define WEFT_FS_RIGHTS_H

#include "engine/common/base.h"

/*
 * Drops all capabilities but those that weftd uses, for good, and for what it starts. To be called while the
 * process has one thread: Linux keeps capabilities by thread. Of an ordinary user there is nothing to drop.
 */
void rights_drop(void);

#endif
