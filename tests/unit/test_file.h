/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A file for a test on a real disk. It has no name, so nothing of it stays behind however
 * the test ends, and can be opened again and again while its descriptor is.
 */
#ifndef WEFT_TEST_FILE_H
#define WEFT_TEST_FILE_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

struct test_file {
	int fd;
	char path[32]; /* to open it by, in this process */
};

/* In `folder`; NULL: where tests have their files. Ends the test when it cannot be made. */
static inline void test_file_make(
	struct test_file *f, const char *folder, uint64_t size_bytes)
{
	char name[512];

	if (!folder)
		folder = getenv("WEFT_TMP");
	snprintf(name, sizeof(name), "%s/weft-unit-XXXXXX", folder ? folder : "/tmp");
	f->fd = mkstemp(name);
	if (f->fd < 0 || unlink(name) || ftruncate(f->fd, (off_t)size_bytes)) {
		perror(name);
		abort();
	}
	snprintf(f->path, sizeof(f->path), "/proc/self/fd/%d", f->fd);
}

static inline void test_file_drop(struct test_file *f)
{
	close(f->fd);
}

#endif
