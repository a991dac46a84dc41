/* SPDX-License-Identifier: Apache-2.0 */
/* The sim transport: what every transport must do, from many seeds. */
#include "engine/rt/rt_sim.h"
#include "tests/unit/net_conformance.h"

#define SEEDS 16u

static const char *test_listen_address(void)
{
	return "sim:0";
}

static void run_simulated(void **state)
{
	int (**run)(void *) = *state;
	const char *seed = getenv("WEFT_SIM_SEED");

	if (seed) {
		test_tls = strtoull(seed, NULL, 0) % 8 == 7;
		assert_int_equal(
			rt_sim_run(strtoull(seed, NULL, 0), NULL, *run, NULL), 0);
		return;
	}
	for (uint64_t s = 0; s < SEEDS; s++) {
		test_tls = s % 8 == 7;
		assert_int_equal(rt_sim_run(s, NULL, *run, NULL), 0);
	}
}

int main(int argc, char **argv)
{
	test_transport = "sim";
	test_scale = 8;
	return conformance_main(run_simulated, argc > 1 ? argv[1] : NULL);
}
