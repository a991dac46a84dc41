/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the state of threads that wait for this mount, from /proc: which of them have taken in
 * their answers. */
#ifndef WEFT_FS_THREAD_STATE_H
#define WEFT_FS_THREAD_STATE_H

#include "fs/ops/kept.h"

/*
 * Returns whether the state of threads can be read:
 * - 1: yes
 * - -1: never; rights or /proc are missing
 * - 0: not known yet; a `thread` that has ended or runs, also on its way to sleep, does not show it
 */
int thread_seen(uint32_t thread);
/* Returns the user for the thread's file accesses (its fsuid), or UINT32_MAX if it is unknown, as
 * for a thread of another pid namespace. */
uint32_t thread_uid(uint32_t thread);
/*
 * Returns true if the thread has ended, run its program, or gone to sleep since it was given an
 * answer. It has then left the kernel's function that took the answer in. The answer came before
 * the first call. *seen: the observations so far, all 0 at first. False: not yet, or not known.
 * Never waits.
 */
bool thread_returned(uint32_t thread, struct kcache_seen *seen);
/* Returns the use that the thread makes of the directory attributes that it waits for. Never
 * waits. */
enum kcache_walk thread_walks(uint32_t thread);

#endif
