/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads of programs that wait for this mount, looked at from outside (/proc): which have taken in the
 * answer that they were given.
 */
#ifndef WEFT_FS_ASKER_H
#define WEFT_FS_ASKER_H

#include "fs/ops/ops.h"

/*
 * Can threads be looked at? `thread` waits at this moment. 1; -1: never, for want of rights or of /proc; 0: not
 * known yet.
 */
int asker_seen(uint32_t thread);
/*
 * The user as whom the thread uses files (its fsuid); UINT32_MAX: not known, as of a thread of another pid
 * namespace.
 */
uint32_t asker_uid(uint32_t thread);
/*
 * The thread was given an answer before the first call. Has it ended, run its program, or gone to sleep
 * since? Then it has left the kernel's function that took the answer in. *seen, all 0 at first, is
 * what was seen of it so far. False: no, or not known. Does not wait.
 */
bool asker_gone_on(uint32_t thread, struct ops_seen *seen);
/* What the thread, which waits for the attributes of a directory, does with them. Does not wait. */
enum ops_walk asker_walks(uint32_t thread);

#endif
