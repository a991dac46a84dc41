/* SPDX-License-Identifier: Apache-2.0 */
/* Takes a store over from an unmounted node that still serves it to others (engine/node/node.h). A
 * new mount asks that daemon to leave now, and waits until it has ended. */
#ifndef WEFT_FS_TAKEOVER_H
#define WEFT_FS_TAKEOVER_H

#include "engine/common/text.h"

/* Reads the UUID of a store without opening it. Returns 0, or -EBUSY if it cannot be read. */
int takeover_store_uuid(const char *store, uint8_t uuid[16]);
/*
 * Waits for a store in use. Returns:
 * - 0: the store was only served; it is free now, or will be in a moment
 * - -EBUSY: the store is mounted
 * - -ESRCH: no daemon was found that can free it
 *
 * Waits.
 */
int takeover_wait(const char *store, struct weft_error *err);

#endif
