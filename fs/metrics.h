/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a daemon says of itself (status.c), as Prometheus reads it: text of the exposition
 * format, and a listener that serves it over HTTP.
 *
 * Names, types and units are a promise: docs/operations.md, "Metrics".
 */
#ifndef WEFT_FS_METRICS_H
#define WEFT_FS_METRICS_H

#include <stdio.h>

#include <jansson.h>

#include "engine/common/base.h"

/*
 * Prints the metrics of all of `statuses`, an array of what status_build makes: each
 * family once, a sample for each status that has it.
 */
void metrics_print(FILE *to, const json_t *statuses);

#define METRICS_ADDRESS_MAX 64 /* of "[IPV6]:PORT", with the end */

/* Is it IPV4:PORT or [IPV6]:PORT? Numbers only: nobody is asked. */
bool metrics_address_valid(const char *address);

struct metrics_server;
/*
 * GET /metrics at this address answers with what `status` (of control.h's kind) says then.
 * Bounded in connections, memory and time for each. To be closed before what `status` uses goes.
 */
int metrics_server_open(struct metrics_server **out, const char *address,
	json_t *(*status)(void *arg), void *arg, struct weft_error *err);
/* Waits for answers that are being made. NULL is fine. */
void metrics_server_close(struct metrics_server *s);

#endif
