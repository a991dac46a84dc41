/* SPDX-License-Identifier: Apache-2.0 */
/* The tcp transport on the real runtime: what every transport must do. */
#include "tests/unit/net_conformance.h"

static const char *test_listen_address(void)
{
	return "127.0.0.1:0";
}

static void run_real(void **state)
{
	int (**run)(void *) = *state;

	assert_int_equal((*run)(NULL), 0);
}

int main(int argc, char **argv)
{
	rt_real_start();
	test_transport = "tcp";
	return conformance_main(run_real, argc > 1 ? argv[1] : NULL);
}
