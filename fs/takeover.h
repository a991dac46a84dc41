/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A node that is unmounted serves its store on for others (engine/volume/member.h). Who wants
 * to mount it again asks the daemon that does to leave now, and waits until it has gone.
 */
#ifndef WEFT_FS_TAKEOVER_H
#define WEFT_FS_TAKEOVER_H

#include "engine/common/text.h"

/* The UUID of a store, which need not be opened for that. 0, -EBUSY: it cannot be read. */
int takeover_store_uuid(const char *store, uint8_t uuid[16]);
/*
 * The store is in use. 0: it was served on, and is free now, or will be in a moment; -EBUSY:
 * it is mounted; -ESRCH: nobody is found who would free it. Waits.
 */
int takeover(const char *store, struct weft_error *err);

#endif
