/* SPDX-License-Identifier: Apache-2.0 */
/* The daemon as a user of its own mount. Internal to fs/. */
#ifndef WEFT_FS_OWN_MOUNT_H
#define WEFT_FS_OWN_MOUNT_H

#include "fs/session.h"

/*
 * Looks the name up in the directory with that number, as a program would, so that Linux moves
 * the dentry of a directory to where it is found. 0; -ESTALE: not now, since a lock is held that
 * Linux only tries to get; or another -errno. Other workers must be free to answer the requests
 * that this makes. Waits.
 */
int own_mount_look(struct session *s, uint64_t dir, uint32_t generation, struct ops_name name);
/* Is the thread one of this process? Does not wait. */
bool own_mount_is_own(uint32_t thread);

#endif
