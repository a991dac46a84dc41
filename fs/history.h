/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The last hour of a daemon's metrics, for the page at the address of -o metrics.
 *
 * A sample has one number for each series. A series is a metric, by its name: a counter as it
 * stands, or the sum over all other nodes. Others are the count and the response times of a group
 * of requests. The memory is set at the start. There is no lock, so one task uses a history.
 */
#ifndef WEFT_FS_HISTORY_H
#define WEFT_FS_HISTORY_H

#include <stdint.h>
#include <stdio.h>

#include <jansson.h>

#define HISTORY_STEP_MS 10000u
#define HISTORY_SAMPLES 361u /* an hour, with both ends */

struct history;

/* NULL: no memory. */
struct history *history_open(void);
void history_close(struct history *h); /* NULL is allowed */

/* Keeps a sample of the status (status_counters) in place of the oldest one. `at_ms` counts from
 * 1970 and grows with each sample. */
void history_add(struct history *h, int64_t at_ms, const json_t *status);
/*
 * Prints the samples after `after_ms` as JSON, oldest first, and as the last one the status of now,
 * which is not kept. A sample is a list: its time, and the values in the order of `series`, null
 * where there is none. Counters are since the start, response times of the time since the sample
 * before, in seconds.
 */
void history_print(
	FILE *to, const struct history *h, int64_t after_ms, int64_t now_ms, const json_t *now);

#endif
