/* SPDX-License-Identifier: Apache-2.0 */
/* fcntl locks, open file description locks, flock, leases. */
#include "tests/mount/posix/posix.h"

#include <signal.h>
#include <sys/file.h>
#include <sys/time.h>
#include <sys/wait.h>

static struct flock range(short type, off_t start, off_t len)
{
	return (struct flock){
		.l_type = type, .l_whence = SEEK_SET, .l_start = start, .l_len = len};
}

static int lock(int fd, int command, short type, off_t start, off_t len)
{
	struct flock l = range(type, start, len);

	return fcntl(fd, command, &l);
}

/* What a child is asked to do with its own descriptor. */
struct ask {
	int command;
	short type;
	off_t start, len;
};

static int try_lock(void *arg)
{
	struct ask *a = arg;
	int fd = open("f", O_RDWR);

	return fd < 0 || lock(fd, a->command, a->type, a->start, a->len) < 0 ? errno : 0;
}

static int other_says(short type, off_t start, off_t len)
{
	struct ask a = {F_SETLK, type, start, len};

	return posix_child(try_lock, &a);
}

static void ranges_exclude_other_processes(void **state)
{
	struct flock l;
	int fd = posix_open("f", O_CREAT | O_RDWR);

	must(lock(fd, F_SETLK, F_WRLCK, 100, 50));
	assert_int_equal(other_says(F_WRLCK, 0, 100), 0);
	assert_int_equal(other_says(F_WRLCK, 0, 101), EAGAIN);
	assert_int_equal(other_says(F_RDLCK, 149, 1), EAGAIN);
	assert_int_equal(other_says(F_RDLCK, 150, 0), 0);
	must(lock(fd, F_SETLK, F_RDLCK, 100, 50)); /* downgraded */
	assert_int_equal(other_says(F_RDLCK, 100, 50), 0);
	assert_int_equal(other_says(F_WRLCK, 100, 50), EAGAIN);
	must(lock(fd, F_SETLK, F_UNLCK, 110, 10)); /* a gap in the middle */
	assert_int_equal(other_says(F_WRLCK, 110, 10), 0);
	assert_int_equal(other_says(F_WRLCK, 109, 1), EAGAIN);
	assert_int_equal(other_says(F_WRLCK, 120, 1), EAGAIN);
	must(lock(fd, F_SETLK, F_WRLCK, 0, 0)); /* to the end of time */
	assert_int_equal(other_says(F_RDLCK, INT64_MAX - 1, 1), EAGAIN);
	l = range(F_WRLCK, 0, 10);
	must(fcntl(fd, F_GETLK, &l)); /* one's own do not conflict */
	assert_int_equal(l.l_type, F_UNLCK);
	refuses(EINVAL, lock(fd, F_SETLK, F_WRLCK, -1, 1));
	must(close(fd));
	fd = posix_open("f", O_RDONLY);
	refuses(EBADF, lock(fd, F_SETLK, F_WRLCK, 0, 1));
	must(close(fd));
}

static int get_lock(void *arg)
{
	struct flock l = range(F_WRLCK, 0, 0);
	int fd = open("f", O_RDWR);

	if (fd < 0 || fcntl(fd, F_GETLK, &l) < 0)
		return 1;
	if (l.l_type != F_RDLCK || l.l_start != 10 || l.l_len != 5 ||
		l.l_pid != getppid())
		return 2;
	return 0;
}

static void getlk_names_the_holder(void **state)
{
	int fd = posix_open("f", O_CREAT | O_RDWR);

	must(lock(fd, F_SETLK, F_RDLCK, 10, 5));
	assert_int_equal(posix_child(get_lock, NULL), 0);
	must(close(fd));
}

static int walk_locks(void *arg)
{
	static const off_t starts[] = {0, 200, 500, 1000};
	int fd = open("f", O_RDWR);
	off_t at = 0;

	for (unsigned i = 0; i < 4; i++) {
		struct flock l = range(F_WRLCK, at, 0);

		if (fcntl(fd, F_GETLK, &l) < 0 || l.l_type != F_WRLCK ||
			l.l_start != starts[i] || l.l_len != 10)
			return 1;
		at = l.l_start + l.l_len;
	}
	return 0;
}

static void getlk_names_the_first_in_the_way(void **state)
{
	int fd = posix_open("f", O_CREAT | O_RDWR);

	must(lock(fd, F_SETLK, F_WRLCK, 1000, 10));
	must(lock(fd, F_SETLK, F_WRLCK, 0, 10));
	must(lock(fd, F_SETLK, F_WRLCK, 500, 10));
	must(lock(fd, F_SETLK, F_WRLCK, 200, 10));
	assert_int_equal(posix_child(walk_locks, NULL), 0);
	must(close(fd));
}

static void any_close_releases(void **state)
{
	int fd = posix_open("f", O_CREAT | O_RDWR), other;

	must(lock(fd, F_SETLK, F_WRLCK, 0, 10));
	other = posix_open("f", O_RDONLY);
	assert_int_equal(other_says(F_WRLCK, 0, 1), EAGAIN);
	must(close(other));
	assert_int_equal(other_says(F_WRLCK, 0, 1), 0);
	must(close(fd));
}

/* A child that holds a lock until it is killed; returns once it has it. */
static pid_t holder(short type, off_t start, off_t len)
{
	int pipes[2];
	char byte;
	pid_t child;

	must(pipe2(pipes, O_CLOEXEC));
	fflush(NULL);
	child = (pid_t)must(fork());
	if (child == 0) {
		int fd = open("f", O_RDWR);

		alarm(30);
		if (lock(fd, F_SETLKW, type, start, len) < 0)
			_exit(errno);
		if (write(pipes[1], "x", 1) != 1)
			_exit(1);
		for (;;)
			pause();
	}
	assert_int_equal(must(read(pipes[0], &byte, 1)), 1);
	must(close(pipes[0]));
	must(close(pipes[1]));
	return child;
}

static void death_releases_and_wakes(void **state)
{
	int fd = posix_open("f", O_CREAT | O_RDWR);
	pid_t child = holder(F_WRLCK, 0, 0);

	refuses(EAGAIN, lock(fd, F_SETLK, F_RDLCK, 5, 1));
	must(kill(child, SIGKILL));
	must(lock(fd, F_SETLKW, F_WRLCK, 5, 1)); /* waits for the death */
	must(waitpid(child, NULL, 0));
	must(close(fd));
}

static void on_alarm(int number)
{
}

static void waiting_is_interrupted(void **state)
{
	struct sigaction action = {.sa_handler = on_alarm};
	const struct itimerval often = {{.tv_sec = 1}, {.tv_usec = 500000}}, never = {0};
	int fd = posix_open("f", O_CREAT | O_RDWR);
	pid_t child = holder(F_WRLCK, 0, 10);

	must(sigaction(SIGALRM, &action, NULL));
	/* again and again: the first may come before it waits */
	must(setitimer(ITIMER_REAL, &often, NULL));
	refuses(EINTR, lock(fd, F_SETLKW, F_WRLCK, 0, 1));
	must(setitimer(ITIMER_REAL, &never, NULL));
	must(kill(child, SIGKILL));
	must(waitpid(child, NULL, 0));
	must(close(fd));
}

/* Holds [1, 2) and waits for [0, 1), which the parent holds. */
static void circles_are_edeadlk(void **state)
{
	int fd = posix_open("f", O_CREAT | O_RDWR), pipes[2], status, error = 0;
	char byte;
	pid_t child;

	must(lock(fd, F_SETLK, F_WRLCK, 0, 1));
	must(pipe2(pipes, O_CLOEXEC));
	fflush(NULL);
	child = (pid_t)must(fork());
	if (child == 0) {
		fd = open("f", O_RDWR);
		alarm(30);
		if (lock(fd, F_SETLK, F_WRLCK, 1, 1) < 0 || write(pipes[1], "x", 1) != 1)
			_exit(100);
		_exit(lock(fd, F_SETLKW, F_WRLCK, 0, 1) < 0 ? errno : 0);
	}
	assert_int_equal(must(read(pipes[0], &byte, 1)), 1);
	/* One of the two closes the circle and is told so; the other then gets its lock.
	 */
	alarm(30);
	if (lock(fd, F_SETLKW, F_WRLCK, 1, 1) < 0)
		error = errno;
	alarm(0);
	if (error)
		must(lock(fd, F_SETLK, F_UNLCK, 0, 1));
	must(waitpid(child, &status, 0));
	assert_true((error == EDEADLK && status == 0) ||
		    (error == 0 && WEXITSTATUS(status) == EDEADLK));
	must(close(fd));
	must(close(pipes[0]));
	must(close(pipes[1]));
}

static void description_locks_belong_to_the_open(void **state)
{
	int a = posix_open("f", O_CREAT | O_RDWR), b = posix_open("f", O_RDWR), c, d;

	must(lock(a, F_OFD_SETLK, F_WRLCK, 0, 10));
	refuses(EAGAIN, lock(b, F_OFD_SETLK, F_RDLCK, 5, 1)); /* the same process */
	refuses(EAGAIN, lock(b, F_SETLK, F_RDLCK, 5, 1));
	must(lock(b, F_OFD_SETLK, F_WRLCK, 10, 10));
	d = (int)must(dup(a));
	must(close(a));
	refuses(EAGAIN, lock(b, F_OFD_SETLK, F_RDLCK, 5, 1)); /* d holds it */
	c = posix_open("f", O_RDWR);
	must(close(c)); /* releases nothing */
	refuses(EAGAIN, lock(b, F_OFD_SETLK, F_RDLCK, 5, 1));
	must(close(d));
	must(lock(b, F_OFD_SETLK, F_WRLCK, 5, 1));
	must(close(b));
}

static void flock_belongs_to_the_open(void **state)
{
	int a = posix_open("f", O_CREAT | O_RDWR), b = posix_open("f", O_RDONLY), d;

	must(flock(a, LOCK_EX));
	refuses(EAGAIN, flock(b, LOCK_SH | LOCK_NB));
	must(flock(a, LOCK_SH));
	must(flock(b, LOCK_SH | LOCK_NB));
	refuses(EAGAIN, flock(a, LOCK_EX | LOCK_NB));
	must(flock(b, LOCK_UN));
	must(flock(a, LOCK_EX | LOCK_NB));
	d = (int)must(dup(a));
	must(close(a));
	refuses(EAGAIN, flock(b, LOCK_SH | LOCK_NB));
	must(flock(d, LOCK_UN));
	must(flock(b, LOCK_EX | LOCK_NB));     /* read-only will do */
	must(lock(d, F_SETLK, F_WRLCK, 0, 0)); /* another kind of lock */
	must(close(b));
	must(close(d));
	refuses(EBADF, flock(d, LOCK_UN));
	d = posix_open(".", O_RDONLY);
	must(flock(d, LOCK_EX | LOCK_NB));
	must(close(d));
}

static const struct CMUnitTest tests[] = {
	posix_test(ranges_exclude_other_processes),
	posix_test(getlk_names_the_holder),
	posix_test(getlk_names_the_first_in_the_way),
	posix_test(any_close_releases),
	posix_test(death_releases_and_wakes),
	posix_test(waiting_is_interrupted),
	posix_test(circles_are_edeadlk),
	posix_test(description_locks_belong_to_the_open),
	posix_test(flock_belongs_to_the_open),
};
POSIX_TOPIC(locks, tests);
