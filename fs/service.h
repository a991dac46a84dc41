/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The daemon as a service of systemd, or of another manager with its protocol, sd_notify(3).
 * The protocol is datagrams of NAME=VALUE lines to the socket that NOTIFY_SOCKET names. A daemon
 * that was started otherwise has no manager, and all functions do nothing.
 *
 * The protocol takes a page of code. libsystemd would bring six more libraries into a process of
 * root that has the cluster's key.
 */
#ifndef WEFT_FS_SERVICE_H
#define WEFT_FS_SERVICE_H

#include "engine/common/base.h"

/* Exit code of a service without a mount that all other nodes have left. It asks to be started
 * again, to be there when they come back. */
#define EXIT_AGAIN 75

/* Takes the manager's variables out of the environment, so that no child uses them. Call it
 * first. */
void service_open(void);
/* From here on the process speaks to its manager, and messages carry the levels of sd-daemon(3).
 * Not for a daemon in the background, which is not the process that the manager has started. */
void service_begin(void);
/* Returns true if a service manager has started this process, after service_begin. */
bool service_managed(void);
/* Sends a line NAME=VALUE. Waits only while the manager does not read. */
void service_tell(const char *line);
/* Sends the text as STATUS. Newlines become blanks, so that no name of a file adds lines. */
void service_tell_status(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/*
 * Tells the manager several times in each of its intervals (WatchdogSec=) that the daemon works, as
 * long as works(arg) returns. `works` takes the locks of all parts that could be stuck. It must not
 * wait for devices and other nodes. It runs on a task of its own. Returns 0 or -errno.
 */
int service_watchdog_start(void (*works)(void *arg), void *arg);
/* From here on `works` is not called. */
void service_watchdog_stop(void);

#endif
