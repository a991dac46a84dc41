/* SPDX-License-Identifier: Apache-2.0 */
/* What weft dump prints: shared by its two files. */
#ifndef WEFT_TOOLS_DUMP_H
#define WEFT_TOOLS_DUMP_H

#include "engine/volume/volume.h"

/* A line of a field and its value. */
void print_uuid(const char *label, const uint8_t u[16]);
void print_u64(const char *label, uint64_t value);
void print_time(const char *label, int64_t ns);
/* Bytes as a person can read them, without a newline. */
void print_text(const void *bytes, size_t len);
void print_hex(const uint8_t *p, size_t len);
/* Items; a value that is not what its key says is shown as malformed or in hex. */
void print_item(struct disk_key key, const uint8_t *value, size_t len);
/* Of pages that have passed tree_check_page. */
void print_node(const struct disk_node *n);
void print_leaf(const struct disk_leaf *leaf);

#endif
