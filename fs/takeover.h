/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A node that is unmounted serves its store on for others (engine/volume/member.h). Who wants
 * to mount it again asks the daemon that does to leave now, and waits until it has gone.
 */
#ifndef WEFT_FS_TAKEOVER_H
#define WEFT_FS_TAKEOVER_H

#include "engine/common/text.h"

/*
 * The store is in use. 0: it was served on, and is free now, or will be in a moment; -EBUSY:
 * it is mounted, or nobody is found who would free it. Waits.
 */
int takeover(const char *store, struct weft_error *err);

#endif
