/* SPDX-License-Identifier: Apache-2.0 */
/* Wait queues of the real runtime: futexes. */
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "engine/rt/real.h"

int real_wait(_Atomic uint32_t *word, uint32_t expected, uint64_t deadline_ns)
{
	struct timespec until;
	struct timespec *timeout = NULL;

	if (deadline_ns != RT_FOREVER) {
		until.tv_sec = (time_t)(deadline_ns / 1000000000u);
		until.tv_nsec = (long)(deadline_ns % 1000000000u);
		timeout = &until;
	}
	/* WAIT_BITSET takes an absolute time of the monotonic clock. */
	if (syscall(SYS_futex, word, FUTEX_WAIT_BITSET | FUTEX_PRIVATE_FLAG, expected,
		    timeout, NULL, FUTEX_BITSET_MATCH_ANY) == 0)
		return 0;
	switch (errno) {
	case ETIMEDOUT:
		return -ETIMEDOUT;
	case EAGAIN: /* the word has changed */
	case EINTR:
		return 0;
	default:
		weft_log(3, "futex wait: errno %d", errno);
		WEFT_ASSERT(!"futex wait failed");
		return 0;
	}
}

/* The word may be gone by now (a mutex freed by its next holder). The kernel uses only the address,
 * and a task that it wakes by mistake waits again. */
int real_wake(_Atomic uint32_t *word, int count)
{
	long woken = syscall(
		SYS_futex, word, FUTEX_WAKE | FUTEX_PRIVATE_FLAG, count, NULL, NULL, 0);

	return woken > 0 ? (int)woken : 0;
}
