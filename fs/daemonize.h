/* SPDX-License-Identifier: Apache-2.0 */
/* Moves the process into the background once the mount answers. Until then the caller's process
 * waits. It then exits with the child's exit code and prints the child's message. */
#ifndef WEFT_FS_DAEMONIZE_H
#define WEFT_FS_DAEMONIZE_H

#include "engine/common/base.h"

/* Exit codes, those of mount(8). */
#define EXIT_USAGE 1
#define EXIT_MOUNT 32

/* Forks. The child returns. The parent waits for it and exits: with 0 after daemonize_ready,
 * otherwise with the child's exit code. Call it before any thread exists. Returns 0 or -errno. */
int daemonize_begin(void);
/* Sends messages to syslog from the beginning, because stderr was closed at the start. */
void daemonize_unheard(void);
/* Lets the parent exit. From here on messages go to syslog. Does nothing in the foreground. */
void daemonize_ready(void);

#endif
