/* SPDX-License-Identifier: Apache-2.0 */
/* The verbs transport over a device that is not there: what every transport must do. */
#include "tests/unit/verbs_fake.h"

#include "tests/unit/net_conformance.h"

static const char *test_listen_address(void)
{
	return "127.0.0.1:0";
}

static void run_real(void **state)
{
	int (**run)(void *) = *state;

	assert_int_equal((*run)(NULL), 0);
	/* nothing is left of any link */
	assert_int_equal(fake.pairs, 0);
	assert_int_equal(fake.keys_used, 0);
	assert_int_equal(fake.windows_used, 0);
	assert_int_equal(fake.completion_queues, 0);
	assert_int_equal(fake.ids, 0);
}

int main(int argc, char **argv)
{
	fake_usual();
	rt_real_start();
	test_transport = "verbs";
	return conformance_main(run_real, argc > 1 ? argv[1] : NULL);
}
