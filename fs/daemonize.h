/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Into the background, but not before the mount answers: the caller's process waits for
 * the child's word and passes it on as its own exit code and message.
 */
#ifndef WEFT_FS_DAEMONIZE_H
#define WEFT_FS_DAEMONIZE_H

#include "engine/common/base.h"

/* Exit codes, those of mount(8). */
#define EXIT_USAGE 1
#define EXIT_MOUNT 32

/*
 * Forks. The child returns; the parent waits for it and exits: with 0 after
 * daemonize_ready, otherwise with the child's exit code. Call before any thread exists. 0
 * or -errno.
 */
int daemonize_begin(void);
/* Whoever started this hears nothing, as stderr was closed: messages go to syslog from the beginning. */
void daemonize_unheard(void);
/* Lets the parent go; from here on messages go to syslog. Nothing after a plain start. */
void daemonize_ready(void);

#endif
