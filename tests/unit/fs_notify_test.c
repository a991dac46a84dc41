/* SPDX-License-Identifier: Apache-2.0 */
/* Names, and attributes that come with them, are kept where the kernel can be told to ask again, and where
 * threads can be looked at. */
#include "fs/notify.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "fs/thread_state.h"
#include "fs/session_internal.h"

/* Who looks a name up: it sleeps, as one does that waits for the answer. */
static pid_t looker;
static bool may_be_seen; /* whoever runs this may look at other threads */

static int begin(void **state)
{
	int seen;

	looker = fork();
	if (looker == 0)
		for (;;)
			pause();
	while ((seen = thread_seen((uint32_t)looker)) == 0)
		nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
	may_be_seen = seen > 0;
	return looker < 0;
}

static int end(void **state)
{
	kill(looker, SIGKILL);
	return waitpid(looker, NULL, 0) != looker;
}

static struct session *session_with(int device)
{
	struct session *s = calloc(1, sizeof(*s));

	assert_non_null(s);
	assert_true(device >= 0);
	s->device = device;
	s->shared = s->keeps = true;
	return s;
}

static void names_are_kept_where_they_can_be_expired(void **state)
{
	struct session *s = session_with(0);

	s->shim.minor = 42;
	assert_false(notify_keeps_names(s)); /* no thread was looked at yet */
	assert_false(notify_looks_at(s, 0)); /* of another pid namespace */
	assert_int_equal(notify_looks_at(s, (uint32_t)looker), may_be_seen);
	assert_false(notify_keeps_names(s)); /* the kernel did not offer it */
	assert_int_equal(notify_keeps_named(s), may_be_seen);
	s->shim.offered = WIRE_HAS_EXPIRE_ONLY;
	assert_int_equal(notify_keeps_names(s), may_be_seen);
	s->shim.minor = 41;
	assert_false(notify_keeps_named(s));
	assert_int_equal(notify_keeps_names(s), may_be_seen);
	free(s);
}

static void nothing_is_kept_where_the_kernel_keeps_nothing(void **state)
{
	struct session *s = session_with(0);

	s->shim.minor = 42;
	s->shim.offered = WIRE_HAS_EXPIRE_ONLY;
	s->keeps = false;
	assert_false(notify_looks_at(s, (uint32_t)looker));
	assert_false(notify_keeps_names(s));
	assert_false(notify_keeps_named(s));
	free(s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(names_are_kept_where_they_can_be_expired),
		cmocka_unit_test(nothing_is_kept_where_the_kernel_keeps_nothing),
	};

	return cmocka_run_group_tests(tests, begin, end);
}
