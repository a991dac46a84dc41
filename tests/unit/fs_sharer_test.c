/* SPDX-License-Identifier: Apache-2.0 */
/* How long the kernel may believe a name: for ever, if it can be told to forget all at once
 * (FUSE_NOTIFY_INC_EPOCH); else not at all. A pipe stands for a kernel that takes that, a timer, which
 * nobody can write to, for one that does not know it. */
#include "fs/sharer.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "fs/asker.h"
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
	while ((seen = asker_seen((uint32_t)looker)) == 0)
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

/* Notifications that are in the pipe. */
static unsigned taken(int fd)
{
	struct fuse_out_header h;
	unsigned count = 0;

	while (read(fd, &h, sizeof(h)) == (ssize_t)sizeof(h)) {
		assert_int_equal(h.len, sizeof(h));
		assert_int_equal(h.error, WIRE_NOTIFY_INC_EPOCH);
		assert_int_equal(h.unique, 0);
		count++;
	}
	assert_int_equal(errno, EAGAIN);
	return count;
}

static void names_are_kept_where_all_can_be_dropped(void **state)
{
	struct session *s;
	int way[2];

	assert_int_equal(pipe2(way, O_NONBLOCK | O_CLOEXEC), 0);
	s = session_with(way[1]);
	assert_true(sharer_name_timeout_s(s, false) == 0); /* its leaf was not exposed */
	assert_int_equal(taken(way[0]), 0);
	assert_true(sharer_name_timeout_s(s, true) > 0);
	assert_true(sharer_name_timeout_s(s, true) > 0);
	assert_true(sharer_name_timeout_s(s, false) == 0);
	assert_int_equal(taken(way[0]), 1); /* to find out, once */
	sharer_drop_names(s);
	assert_int_equal(taken(way[0]), 1);
	assert_int_equal(sharer_keeps_named(s, (uint32_t)looker), may_be_seen);
	free(s);
	close(way[0]);
	close(way[1]);
}

static void no_name_is_kept_where_the_kernel_refuses(void **state)
{
	int timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC);
	struct session *s = session_with(timer);

	assert_int_equal(write(timer, "0123456789abcdef", 16), -1);
	assert_int_equal(errno, EINVAL);
	for (unsigned i = 0; i < 3; i++)
		assert_true(sharer_name_timeout_s(s, true) == 0);
	/* nor attributes that come with a name */
	assert_false(sharer_keeps_named(s, (uint32_t)looker));
	sharer_drop_names(s); /* there is none */
	free(s);
	close(timer);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(names_are_kept_where_all_can_be_dropped),
		cmocka_unit_test(no_name_is_kept_where_the_kernel_refuses),
	};

	return cmocka_run_group_tests(tests, begin, end);
}
