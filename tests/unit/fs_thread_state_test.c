/* SPDX-License-Identifier: Apache-2.0 */
/* What a thread has done since it was given an answer, as seen from outside: it sleeps, is stopped, computes, has
 * ended; or is in the kernel, where it may still be taking the answer in, though not for long. */
#include "fs/thread_state.h"

#include <linux/capability.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#define TRIES 30000 /* of a millisecond, each */

static void pause_ms(void)
{
	nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

static bool goes_on(pid_t thread)
{
	struct kcache_seen seen = {0};

	for (unsigned i = 0; i < TRIES; i++) {
		if (thread_returned((uint32_t)thread, &seen))
			return true;
		pause_ms();
	}
	return false;
}

static pid_t child_of(void (*what)(int), int arg)
{
	pid_t pid = fork();

	assert_true(pid >= 0);
	if (pid)
		return pid;
	what(arg);
	_exit(0);
}

static void reads(int fd)
{
	char c;

	(void)!read(fd, &c, 1);
}

static void computes(int unused)
{
	for (volatile unsigned i = 0;; i++)
		;
}

static void reap(pid_t pid)
{
	kill(pid, SIGKILL);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
}

static void who_sleeps_stops_or_computes_has_gone_on(void **state)
{
	int ends[2];
	pid_t pid;

	assert_int_equal(pipe(ends), 0);
	pid = child_of(reads, ends[0]);
	assert_true(goes_on(pid));
	assert_int_equal(kill(pid, SIGSTOP), 0);
	assert_int_equal(waitpid(pid, NULL, WUNTRACED), pid);
	assert_true(goes_on(pid));
	reap(pid);
	assert_true(goes_on(pid)); /* has ended */
	close(ends[0]);
	close(ends[1]);

	pid = child_of(computes, 0);
	assert_true(goes_on(pid));
	reap(pid);
}

/* vfork's parent sleeps so that no signal but one that kills it ends it, until the child ends. */
static void forks(int fd)
{
	char c;

	if (vfork() == 0) {
		(void)!read(fd, &c, 1);
		_exit(0);
	}
}

static char state_of(pid_t pid)
{
	char path[64], text[256] = "";
	const char *at;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	f = fopen(path, "r");
	assert_non_null(f);
	assert_non_null(fgets(text, sizeof(text), f));
	fclose(f);
	at = strrchr(text, ')');
	assert_non_null(at);
	return at[2];
}

static uint64_t now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

/* It is not woken in between: for memory nobody sleeps for long. */
static void who_sleeps_so_that_no_signal_wakes_it_has_after_a_while(void **state)
{
	struct kcache_seen seen = {0};
	uint64_t begin;
	int ends[2];
	pid_t pid;

	assert_int_equal(pipe(ends), 0);
	pid = child_of(forks, ends[0]);
	for (unsigned i = 0; i < TRIES && state_of(pid) != 'D'; i++)
		pause_ms();
	begin = now_ms();
	for (unsigned i = 0; i < 50; i++) {
		bool returned = thread_returned((uint32_t)pid, &seen);

		assert_true(!returned || now_ms() - begin >= 1000);
		pause_ms();
	}
	while (!thread_returned((uint32_t)pid, &seen)) {
		assert_true(now_ms() - begin < TRIES);
		pause_ms();
	}
	assert_true(now_ms() - begin >= 1000);
	assert_int_equal(state_of(pid), 'D');
	assert_int_equal(write(ends[1], "x", 1), 1);
	assert_true(goes_on(pid));
	reap(pid);
	close(ends[0]);
	close(ends[1]);
}

static bool has_rights(void)
{
	return geteuid() == 0 && prctl(PR_CAPBSET_READ, CAP_SYS_PTRACE, 0, 0, 0) == 1;
}

static void rights_are_looked_at(void **state)
{
	int ends[2], seen = 0;
	pid_t pid;

	assert_int_equal(pipe(ends), 0);
	pid = child_of(reads, ends[0]);
	for (unsigned i = 0; i < TRIES && !seen; i++) {
		seen = thread_seen((uint32_t)pid);
		pause_ms();
	}
	assert_int_equal(seen, has_rights() ? 1 : -1);
	reap(pid);
	close(ends[0]);
	close(ends[1]);
}

/* A mount that looked at such a thread first would keep no names for good. */
static void a_thread_that_runs_or_has_ended_says_nothing_of_rights(void **state)
{
	const int expected = has_rights() ? 0 : -1;
	pid_t pid = child_of(computes, 0);
	int seen = expected;

	for (unsigned i = 0; i < 1000 && seen == expected; i++)
		seen = thread_seen((uint32_t)pid);
	reap(pid);
	assert_int_equal(seen, expected);
	assert_int_equal(thread_seen((uint32_t)pid), expected);
}

static void is_another_user(int ready)
{
	if (setresuid(1000, 1000, 1000) == 0)
		(void)!write(ready, "x", 1);
	pause();
}

static void a_thread_has_the_user_that_files_are_used_by(void **state)
{
	int ready[2];
	pid_t child;
	char c;

	if (geteuid() != 0)
		skip();
	assert_int_equal(pipe(ready), 0);
	child = child_of(is_another_user, ready[1]);
	assert_int_equal(read(ready[0], &c, 1), 1);
	assert_int_equal(thread_uid((uint32_t)child), 1000);
	kill(child, SIGKILL);
	assert_int_equal(waitpid(child, NULL, 0), child);
	assert_int_equal(thread_uid((uint32_t)child), UINT32_MAX);
	assert_int_equal(thread_uid(0), UINT32_MAX);
	assert_int_equal(thread_uid((uint32_t)getpid()), 0);
	close(ready[0]);
	close(ready[1]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(who_sleeps_stops_or_computes_has_gone_on),
		cmocka_unit_test(who_sleeps_so_that_no_signal_wakes_it_has_after_a_while),
		cmocka_unit_test(rights_are_looked_at),
		cmocka_unit_test(a_thread_that_runs_or_has_ended_says_nothing_of_rights),
		cmocka_unit_test(a_thread_has_the_user_that_files_are_used_by),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
