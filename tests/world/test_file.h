/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A file for a test on a real disk. It has no name, so it is gone with its descriptor, however the
 * test ends. Until then it can be opened again and again.
 */
#ifndef WEFT_TESTS_WORLD_TEST_FILE_H
#define WEFT_TESTS_WORLD_TEST_FILE_H

#include <stdint.h>

struct test_file {
	int fd;
	char path[32]; /* to open it by, in this process */
};

/* Makes it in `folder`; NULL: in WEFT_TMP, or /tmp. Ends the test if it cannot be made. */
void test_file_make(struct test_file *f, const char *folder, uint64_t size_bytes);
void test_file_drop(struct test_file *f);

#endif
