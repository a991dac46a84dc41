/* SPDX-License-Identifier: Apache-2.0 */
/* The requests that wait, as `weft waits` and `weft top` show them. */
#ifndef WEFT_TOOLS_WAITS_H
#define WEFT_TOOLS_WAITS_H

#include "tools/tools.h"

/* Adds the paths of the inodes that the answer to "waits" names, as far as processes have them
 * open. */
void waits_paths(const json_t *answer, json_t *paths);
/* Prints the table of up to `max` requests. */
void waits_table(const json_t *answer, const json_t *paths, unsigned max);

#endif
