/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Preloaded into weftd it is a kernel of before Linux 6.2, as far as names go: one that cannot expire
 * them, and says so in INIT.
 */
#include <linux/fuse.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define HAS_EXPIRE_ONLY_2 (1u << 3) /* of flags2 */

struct init {
	struct fuse_in_header in;
	struct fuse_init_in what;
};

ssize_t read(int fd, void *buf, size_t len)
{
	ssize_t got = syscall(SYS_read, fd, buf, len);
	struct init init;

	if (got != (ssize_t)sizeof(init))
		return got;
	memcpy(&init, buf, sizeof(init));
	if (init.in.len != sizeof(init) || init.in.opcode != FUSE_INIT)
		return got;
	init.what.flags2 &= ~HAS_EXPIRE_ONLY_2;
	memcpy(buf, &init, sizeof(init));
	return got;
}
