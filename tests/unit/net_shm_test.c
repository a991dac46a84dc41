/* SPDX-License-Identifier: Apache-2.0 */
/* The shm transport: what every transport must do. */
#include <unistd.h>

#include "tests/unit/net_conformance.h"

static char folder[64], path[96];

static const char *test_listen_address(void)
{
	static unsigned number;

	snprintf(path, sizeof(path), "%s/%u", folder, number++);
	return path;
}

static void run_real(void **state)
{
	int (**run)(void *) = *state;

	assert_int_equal((*run)(NULL), 0);
}

int main(int argc, char **argv)
{
	int r;

	rt_real_start();
	test_transport = "shm";
	snprintf(folder, sizeof(folder), "%s/weft-net-shm-%d",
		getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp", (int)getpid());
	r = conformance_main(run_real, argc > 1 ? argv[1] : NULL);
	/* Every socket has been taken away by who made it. */
	if (rmdir(folder))
		return 1;
	return r;
}
