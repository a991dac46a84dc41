/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hot SECONDS SEED MOUNT...: processes on all nodes make, rename and remove names in one directory,
 * and look at each other's. MOUNT are mounts of one volume; WORKERS processes on each.
 *
 * A process has SLOTS names of its own: slot S is a file under one of two names, or under none.
 * Which is known to all. What had been done before a look began is seen by it, and nothing that
 * had not begun when it ended:
 *
 *   stat       of a name of any process
 *   readdir    of the whole directory: a name that is there all the time is listed, once;
 *              one that is there at no time is not
 *   nlink      of a file that has two names, then one
 *
 * The first look that is wrong ends it with exit code 1.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MOUNTS_MAX     8u
#define WORKERS        2u /* on each mount */
#define PROCESSES_MAX  (MOUNTS_MAX * WORKERS)
#define SLOTS          12u
#define NAMES          2u
#define LONGER_SECONDS 60 /* for those that have changed nothing yet */

/* Counts changes: odd while one is under way. `there` is what it leaves. */
struct name {
	_Atomic uint64_t count;
	_Atomic bool there;
};

static struct shared {
	_Atomic bool stop;
	_Atomic uint64_t looks, changes, listings;
	_Atomic uint64_t of[PROCESSES_MAX]; /* changes */
	struct name name[PROCESSES_MAX][SLOTS][NAMES];
} * shared;

static const char *mount[MOUNTS_MAX];
static unsigned mounts, processes, self;
static uint64_t seed, random_state;

static unsigned pick(unsigned n)
{
	random_state = random_state * 6364136223846793005u + 1442695040888963407u;
	return (unsigned)(random_state >> 33) % n;
}

static void end_with(int code, const char *fmt, ...)
	__attribute__((format(printf, 2, 3), noreturn));

static void end_with(int code, const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	fprintf(stderr, "hot: process %u, seed %llu: ", self, (unsigned long long)seed);
	vfprintf(stderr, fmt, args);
	va_end(args);
	fputc('\n', stderr);
	atomic_store(&shared->stop, true);
	exit(code);
}

static void path_of(char out[512], unsigned p, unsigned slot, unsigned n)
{
	snprintf(out, 512, "%s/hot/p%u-%u-%u", mount[self % mounts], p, slot, n);
}

static struct name *name_of(unsigned p, unsigned slot, unsigned n)
{
	return &shared->name[p][slot][n];
}

/* ---- changes ------------------------------------------------------------------------------- */

static void begin(unsigned slot, unsigned n)
{
	atomic_fetch_add(&name_of(self, slot, n)->count, 1);
}

static void done(unsigned slot, unsigned n, bool there)
{
	atomic_store(&name_of(self, slot, n)->there, there);
	atomic_fetch_add(&name_of(self, slot, n)->count, 1);
}

static bool is_there(unsigned slot, unsigned n)
{
	return atomic_load(&name_of(self, slot, n)->there);
}

static void make(unsigned slot, unsigned n)
{
	char path[512];
	int fd;

	path_of(path, self, slot, n);
	begin(slot, n);
	fd = open(path, O_WRONLY | O_CREAT | O_EXCL, 0644);
	if (fd < 0 || close(fd))
		end_with(1, "making %s: %s", path, strerror(errno));
	done(slot, n, true);
}

static void drop(unsigned slot, unsigned n)
{
	char path[512];

	path_of(path, self, slot, n);
	begin(slot, n);
	if (unlink(path))
		end_with(1, "removing %s: %s", path, strerror(errno));
	done(slot, n, false);
}

static void move(unsigned slot, unsigned from)
{
	char old[512], fresh[512];

	path_of(old, self, slot, from);
	path_of(fresh, self, slot, !from);
	begin(slot, 0);
	begin(slot, 1);
	if (rename(old, fresh))
		end_with(1, "renaming %s: %s", old, strerror(errno));
	done(slot, from, false);
	done(slot, !from, true);
}

static void second(unsigned slot, unsigned from)
{
	char old[512], fresh[512];
	struct stat st;

	path_of(old, self, slot, from);
	path_of(fresh, self, slot, !from);
	begin(slot, !from);
	if (link(old, fresh) || stat(old, &st))
		end_with(1, "linking %s: %s", old, strerror(errno));
	done(slot, !from, true);
	if (st.st_nlink != 2)
		end_with(1, "%s has %u links, not 2", old, (unsigned)st.st_nlink);
	drop(slot, pick(2));
}

static void change(void)
{
	unsigned slot = pick(SLOTS), n = is_there(slot, 0) ? 0 : 1;

	if (!is_there(slot, n))
		make(slot, pick(NAMES));
	else if (pick(3) == 0)
		drop(slot, n);
	else if (pick(3))
		move(slot, n);
	else
		second(slot, n);
	atomic_fetch_add(&shared->changes, 1);
	atomic_fetch_add(&shared->of[self], 1);
}

/* ---- looks --------------------------------------------------------------------------------- */

static void look_stat(void)
{
	unsigned p = pick(processes), slot = pick(SLOTS), n = pick(NAMES);
	struct name *name = name_of(p, slot, n);
	uint64_t count = atomic_load(&name->count);
	bool there = atomic_load(&name->there), seen;
	char path[512];
	struct stat st;

	path_of(path, p, slot, n);
	seen = stat(path, &st) == 0;
	if (!seen && errno != ENOENT)
		end_with(1, "stat of %s: %s", path, strerror(errno));
	if (count % 2 == 0 && count == atomic_load(&name->count) && seen != there)
		end_with(1, "%s is %sthere", path, seen ? "" : "not ");
	atomic_fetch_add(&shared->looks, 1);
}

static unsigned list(unsigned seen[PROCESSES_MAX][SLOTS][NAMES])
{
	unsigned p, slot, n, count = 0;
	char path[512];
	struct dirent *e;
	DIR *dir;

	snprintf(path, sizeof(path), "%s/hot", mount[self % mounts]);
	dir = opendir(path);
	if (!dir)
		end_with(1, "opendir: %s", strerror(errno));
	for (errno = 0; (e = readdir(dir)); errno = 0) {
		if (e->d_name[0] == '.')
			continue;
		if (sscanf(e->d_name, "p%u-%u-%u", &p, &slot, &n) != 3 ||
			p >= processes || slot >= SLOTS || n >= NAMES)
			end_with(1, "%s is listed", e->d_name);
		seen[p][slot][n]++;
		count++;
	}
	if (errno)
		end_with(1, "readdir: %s", strerror(errno));
	closedir(dir);
	return count;
}

static void look_list(void)
{
	static struct name before[PROCESSES_MAX][SLOTS][NAMES];
	static unsigned seen[PROCESSES_MAX][SLOTS][NAMES];

	memset(seen, 0, sizeof(seen));
	for (unsigned i = 0; i < processes * SLOTS * NAMES; i++) {
		const struct name *now = &shared->name[0][0][0] + i;
		struct name *kept = &before[0][0][0] + i;

		atomic_store(&kept->count, atomic_load(&now->count));
		atomic_store(&kept->there, atomic_load(&now->there));
	}
	list(seen);
	for (unsigned i = 0; i < processes * SLOTS * NAMES; i++) {
		uint64_t count = atomic_load(&(&before[0][0][0] + i)->count);
		bool there = atomic_load(&(&before[0][0][0] + i)->there);
		unsigned times = (&seen[0][0][0])[i];

		if (count % 2 ||
			count != atomic_load(&(&shared->name[0][0][0] + i)->count))
			continue;
		if (times != there)
			end_with(1, "p%u-%u-%u is listed %u times, and is %sthere",
				i / NAMES / SLOTS, i / NAMES % SLOTS, i % NAMES, times,
				there ? "" : "not ");
	}
	atomic_fetch_add(&shared->listings, 1);
}

/* ---- the runner ---------------------------------------------------------------------------- */

static void work(void)
{
	while (!atomic_load(&shared->stop)) {
		change();
		for (unsigned i = pick(6); i; i--)
			look_stat();
		if (pick(8) == 0)
			look_list();
	}
}

static bool all_have_changed(void)
{
	for (unsigned p = 0; p < processes; p++)
		if (!atomic_load(&shared->of[p]))
			return false;
	return true;
}

/* Or until one has found something wrong; longer where a slow machine has not come to all of them. */
static void wait_seconds(double seconds)
{
	struct timespec t = {.tv_nsec = 20000000};
	double left = seconds * 50, longer = LONGER_SECONDS * 50;

	while (!atomic_load(&shared->stop) &&
		(left > 0 || (longer > 0 && !all_have_changed()))) {
		nanosleep(&t, NULL);
		if (left > 0)
			left--;
		else
			longer--;
	}
}

int main(int argc, char **argv)
{
	static unsigned seen[PROCESSES_MAX][SLOTS][NAMES];
	unsigned names = 0;
	char path[512];
	int code = 0, status;

	if (argc < 4 || argc > 3 + (int)MOUNTS_MAX) {
		fputs("usage: hot SECONDS SEED MOUNT...\n", stderr);
		return 2;
	}
	seed = strtoull(argv[2], NULL, 10);
	for (int i = 3; i < argc; i++)
		mount[mounts++] = argv[i];
	processes = mounts * WORKERS;
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE,
		MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	snprintf(path, sizeof(path), "%s/hot", mount[0]);
	if (shared == MAP_FAILED || mkdir(path, 0755)) {
		perror("hot");
		return 2;
	}
	for (unsigned p = 0; p < processes; p++)
		if (fork() == 0) {
			self = p;
			random_state = seed + p;
			work();
			exit(0);
		}
	wait_seconds(atof(argv[1]));
	atomic_store(&shared->stop, true);
	for (unsigned p = 0; p < processes; p++) {
		if (wait(&status) < 0)
			return 2;
		if (status)
			code = WIFEXITED(status) ? WEXITSTATUS(status) : 3;
	}
	for (self = 0; !code && self < mounts; self++)
		names = list(seen); /* none that is unknown */
	for (unsigned p = 0; p < processes; p++)
		if (!atomic_load(&shared->of[p]) && !code) {
			fprintf(stderr, "hot: process %u has changed nothing\n", p);
			code = 1;
		}
	printf("%llu changes, %llu looks, %llu listings, %u names left, seed %llu\n",
		(unsigned long long)shared->changes, (unsigned long long)shared->looks,
		(unsigned long long)shared->listings, names, (unsigned long long)seed);
	return code;
}
