/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes, numbers and UUIDs as people write and read them; the version of weft. */
#ifndef WEFT_COMMON_TEXT_H
#define WEFT_COMMON_TEXT_H

#include "engine/common/base.h"

#define WEFT_VERSION "0.1.0"

/* "16M", "2GiB", "4096B", powers of 1024 up to P: bytes. 0 or -EINVAL. */
int size_parse(const char *text, uint64_t *out);
/* Digits, or 0x and hexadecimal ones, and nothing else. 0 or -EINVAL. */
int number_parse(const char *text, uint64_t *out);
/* 36 characters and the final zero. */
void uuid_print(const uint8_t uuid[16], char out[37]);

#endif
