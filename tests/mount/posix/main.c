/* SPDX-License-Identifier: Apache-2.0 */
/* `posix DIRECTORY weft|ext4 [TOPIC...]`: runs the conformance tests in DIRECTORY, as
 * root. */
#include "tests/mount/posix/posix.h"

#include <ftw.h>
#include <grp.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>

static const struct posix_topic *const topics[] = {
	&names_topic,
	&rename_topic,
	&permissions_topic,
	&times_topic,
	&data_topic,
	&space_topic,
	&mappings_topic,
	&locks_topic, &flags_topic,
	&xattrs_topic,
	&acls_topic,
	&directories_topic,
	&unlinked_topic,
};

static int base = -1;
static bool is_weft;

int64_t posix_must(int64_t ret, const char *call, const char *file, int line)
{
	if (ret < 0) {
		print_error("%s: %s\n", call, strerror(errno));
		_fail(file, line);
	}
	return ret;
}

void posix_refuses(int error, int64_t ret, const char *call, const char *file, int line)
{
	int said = ret < 0 ? errno : 0;

	if (said == error)
		return;
	print_error("%s: %s; should say %s\n", call, strerror(said), strerror(error));
	_fail(file, line);
}

bool posix_is_weft(void)
{
	return is_weft;
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	if (remove(path) < 0)
		fprintf(stderr, "cannot remove %s: %s\n", path, strerror(errno));
	return 0;
}

int posix_enter(void **state)
{
	if (fchdir(base) < 0 || mkdir("here", 0755) < 0 || chdir("here") < 0) {
		fprintf(stderr, "cannot make a directory to test in: %s\n",
			strerror(errno));
		return -1;
	}
	umask(022);
	return 0;
}

int posix_leave(void **state)
{
	as_root();
	umask(022);
	if (fchdir(base) < 0)
		return -1;
	nftw("here", remove_one, 32, FTW_DEPTH | FTW_PHYS);
	return 0;
}

static void or_die(int ret, const char *what)
{
	if (ret == 0)
		return;
	perror(what);
	_exit(3); /* as anybody else nothing here means anything */
}

void posix_act_as(uid_t uid, gid_t gid, gid_t other)
{
	or_die(seteuid(0), "seteuid");
	or_die(setgroups(other ? 1 : 0, &other), "setgroups");
	or_die(setegid(gid), "setegid");
	or_die(seteuid(uid), "seteuid");
}

void posix_file(const char *path, const char *content)
{
	int fd = posix_open(path, O_CREAT | O_TRUNC | O_WRONLY);

	assert_int_equal(must(write(fd, content, strlen(content))), strlen(content));
	must(close(fd));
}

int posix_open(const char *path, int flags)
{
	int fd = open(path, flags | O_CLOEXEC, 0644);

	if (fd < 0)
		fail_msg("open %s with 0%o: %s", path, (unsigned)flags, strerror(errno));
	return fd;
}

struct stat posix_stat(const char *path)
{
	struct stat st;

	if (lstat(path, &st) < 0)
		fail_msg("lstat %s: %s", path, strerror(errno));
	return st;
}

struct stat posix_fstat(int fd)
{
	struct stat st;

	must(fstat(fd, &st));
	return st;
}

mode_t posix_mode(const char *path)
{
	return posix_stat(path).st_mode & 07777;
}

void posix_assert_bytes(int fd, off_t offset, size_t len, unsigned char byte)
{
	unsigned char *buf = malloc(len);

	assert_non_null(buf);
	assert_int_equal(must(pread(fd, buf, len, offset)), len);
	for (size_t i = 0; i < len; i++)
		if (buf[i] != byte)
			fail_msg("byte %lld is %u, not %u",
				(long long)offset + (long long)i, buf[i], byte);
	free(buf);
}

void *posix_aligned(size_t len)
{
	void *p = aligned_alloc(4096, len);

	assert_non_null(p);
	return p;
}

void posix_tick(void)
{
	/* A jiffy of the coarse clock at CONFIG_HZ=100, and some. */
	const struct timespec pause = {.tv_nsec = 12000000};

	nanosleep(&pause, NULL);
}

bool posix_before(struct timespec a, struct timespec b)
{
	return a.tv_sec < b.tv_sec || (a.tv_sec == b.tv_sec && a.tv_nsec < b.tv_nsec);
}

bool posix_same(struct timespec a, struct timespec b)
{
	return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec;
}

int posix_child(int (*f)(void *), void *arg)
{
	pid_t child;
	int status;

	fflush(NULL);
	child = (pid_t)must(fork());
	if (child == 0) {
		alarm(30);
		signal(SIGBUS, SIG_DFL); /* cmocka catches it */
		_exit(f(arg));
	}
	must(waitpid(child, &status, 0));
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static int wanted(const char *name, int argc, char *argv[])
{
	if (argc == 3)
		return 1;
	for (int i = 3; i < argc; i++)
		if (strcmp(name, argv[i]) == 0)
			return 1;
	return 0;
}

int main(int argc, char *argv[])
{
	int failed = 0, ran = 0;

	if (argc < 3) {
		fprintf(stderr, "usage: %s DIRECTORY weft|ext4 [TOPIC...]\n", argv[0]);
		return 2;
	}
	is_weft = strcmp(argv[2], "weft") == 0;
	base = open(argv[1], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (base < 0) {
		perror(argv[1]);
		return 2;
	}
	signal(SIGXFSZ, SIG_IGN);
	signal(SIGPIPE, SIG_IGN);
	for (size_t i = 0; i < sizeof(topics) / sizeof(topics[0]); i++) {
		if (!wanted(topics[i]->name, argc, argv))
			continue;
		ran++;
		failed += _cmocka_run_group_tests(
			topics[i]->name, topics[i]->tests, topics[i]->count, NULL, NULL);
	}
	if (ran == 0)
		fprintf(stderr, "no such topic\n");
	return failed || ran == 0;
}
