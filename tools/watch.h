/* SPDX-License-Identifier: Apache-2.0 */
/* Output that is printed again and again, until the user ends it. */
#ifndef WEFT_TOOLS_WATCH_H
#define WEFT_TOOLS_WATCH_H

#include <stdbool.h>

#define WATCH_SECONDS 2.0 /* interval by default */

/* Parses an interval in seconds, of 0.1 to 3600. Returns 0. Otherwise prints an error of `option`
 * and returns EXIT_USAGE. */
int watch_interval(const char *who, const char *option, const char *text, double *seconds);
/*
 * Calls `show`, which prints on stdout, at each interval. On a terminal, clears the screen first,
 * shows as many lines as it has, and ends with the key q. Elsewhere prints one output below the
 * other. A signal ends it, and leaves the terminal as it was.
 *
 * If `show` fails the first time, returns its exit code at once. Later failures are shown. Returns
 * 0 at the end.
 */
int watch_run(double seconds, int (*show)(void *arg), void *arg);

#endif
