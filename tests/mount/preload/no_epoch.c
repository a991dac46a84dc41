/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Preloaded into weftd it is a kernel of before Linux 6.16, as far as names go: one that knows no
 * FUSE_NOTIFY_INC_EPOCH, and refuses it as it does all that it does not know.
 */
#include <errno.h>
#include <linux/fuse.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define NOTIFY_INC_EPOCH 8

ssize_t write(int fd, const void *buf, size_t len)
{
	struct fuse_out_header h;

	if (len == sizeof(h)) {
		memcpy(&h, buf, sizeof(h));
		if (h.len == sizeof(h) && h.error == NOTIFY_INC_EPOCH && h.unique == 0) {
			errno = EINVAL;
			return -1;
		}
	}
	return syscall(SYS_write, fd, buf, len);
}
