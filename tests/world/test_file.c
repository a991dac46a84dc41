/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/world/test_file.h"

void test_file_make(struct test_file *f, const char *folder, uint64_t size_bytes)
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

void test_file_drop(struct test_file *f)
{
	close(f->fd);
}
