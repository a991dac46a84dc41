/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What tests say of results. Tasks of the simulator have stacks of their own, where cmocka cannot
 * jump back: a failure prints its place and aborts.
 */
#ifndef WEFT_TESTS_WORLD_EXPECT_H
#define WEFT_TESTS_WORLD_EXPECT_H

#include <stdio.h>
#include <stdlib.h>

#include "engine/common/base.h"

#define EQ(expr, want)                                                                   \
	do {                                                                             \
		long long eq_ = (long long)(expr), want_ = (long long)(want);            \
		if (eq_ != want_) {                                                      \
			fprintf(stderr, "%s:%d: %s is %lld, not %lld\n", __FILE__,       \
				__LINE__, #expr, eq_, want_);                            \
			abort();                                                         \
		}                                                                        \
	} while (0)
#define OK(expr)    EQ(expr, 0)
#define HOLDS(expr) WEFT_ASSERT(expr)

#endif
