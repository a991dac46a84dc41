/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The verbs transport on a device: what every transport must do. Run in a guest with
 * Soft-RoCE (tests/rdma/run), or wherever WEFT_RDMA_ADDRESS is one of an RDMA device's.
 */
#include "tests/unit/net_conformance.h"

static const char *test_listen_address(void)
{
	static char address[96];

	snprintf(address, sizeof(address), "%s:0", getenv("WEFT_RDMA_ADDRESS"));
	return address;
}

static void run_real(void **state)
{
	int (**run)(void *) = *state;

	assert_int_equal((*run)(NULL), 0);
}

int main(int argc, char **argv)
{
	if (!getenv("WEFT_RDMA_ADDRESS")) {
		fprintf(stderr, "WEFT_RDMA_ADDRESS=IP: an address of an RDMA device\n");
		return 2;
	}
	rt_real_start();
	test_transport = "verbs";
	owner_adds = false;
	if (getenv("WEFT_TEST_SCALE"))
		test_scale = (unsigned)atoi(getenv("WEFT_TEST_SCALE"));
	return conformance_main(run_real, argc > 1 ? argv[1] : NULL);
}
