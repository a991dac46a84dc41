/* SPDX-License-Identifier: Apache-2.0 */
/* The daemon as a user of its own mount. Internal to fs/. */
#ifndef WEFT_FS_OWN_MOUNT_H
#define WEFT_FS_OWN_MOUNT_H

#include "fs/session.h"

/*
 * Looks the name up in directory `dir`, as a program would. Linux then moves the dentry of a
 * directory to the place where it is found. Returns 0 or -errno. -ESTALE: not now, because Linux
 * only tries to get a lock that is held. This makes requests, so other workers must be free to
 * answer them. Waits.
 */
int own_mount_look(struct session *s, uint64_t dir, uint32_t generation, struct ops_name name);
/* Returns true if the thread belongs to this process. Never waits. */
bool own_mount_is_own(uint32_t thread);

#endif
