/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/rights.h"

#include <cap-ng.h>
#include <errno.h>
#include <sys/prctl.h>
#include <unistd.h>

/* What root's weftd has and uses; all else goes. */
static const unsigned kept[] = {
	CAP_SYS_ADMIN, /* mount and umount; fusectl; FUSE over io_uring */
	CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, /* stores and keys of others, its own mount */
	CAP_SYS_PTRACE,       /* where threads of programs sleep (thread_state.c) */
	CAP_IPC_LOCK,         /* memory registered with cards and rings, and the key */
	CAP_SYS_RESOURCE,     /* PR_SET_IO_FLUSHER */
	CAP_NET_BIND_SERVICE, /* a port below 1024 in the cluster file */
};

void rights_drop(void)
{
	int have[ARRAY_SIZE(kept)];

	if (geteuid() != 0) /* fusermount3, which mounts for users, is setuid */
		return;
	if (capng_get_caps_process() < 0)
		goto failed;
	for (size_t i = 0; i < ARRAY_SIZE(kept); i++)
		have[i] = capng_have_capability(CAPNG_PERMITTED, kept[i]);
	capng_clear(CAPNG_SELECT_ALL);
	for (size_t i = 0; i < ARRAY_SIZE(kept); i++)
		if (have[i])
			capng_update(CAPNG_ADD,
				CAPNG_EFFECTIVE | CAPNG_PERMITTED |
					CAPNG_BOUNDING_SET,
				kept[i]);
	/* the bounding set takes CAP_SETPCAP, which a container may not give */
	if (capng_apply(CAPNG_SELECT_ALL) < 0 && capng_apply(CAPNG_SELECT_CAPS) < 0)
		goto failed;
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0)
		return;
failed:
	weft_log(4, "this weftd keeps all rights of root: capabilities cannot be dropped");
}
