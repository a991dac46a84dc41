/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many processes in one tree of names, in the manner of fsstress: any of the errors that
 * a race explains may come, and no other. Then the tree is walked: link counts, types,
 * listings.
 */
#include "tests/mount/fsx/fsx.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

struct walker {
	const struct options *o;
	const char *directory;
	uint64_t random;
	unsigned process;
	int held[8]; /* open files, some unlinked by now */
};

/* A name in one of a few directories up to three deep. */
static void pick(struct walker *w, char *to, size_t cap)
{
	uint64_t r = random_next(&w->random);
	unsigned depth = (unsigned)(r % 4);
	size_t at = (size_t)snprintf(to, cap, "%s", w->directory);

	for (unsigned i = 0; i < depth; i++)
		at += (size_t)snprintf(
			to + at, cap - at, "/d%u", (unsigned)(r >> (4 + 3 * i) & 3));
	snprintf(to + at, cap - at, "/%c%u", r >> 20 & 1 ? 'd' : 'f',
		(unsigned)(r >> 24 & 7));
}

/* What another process may have caused. */
static bool explained(const struct options *o, int error)
{
	static const int errors[] = {ENOENT, EEXIST, ENOTDIR, EISDIR, ENOTEMPTY, EINVAL,
		ELOOP, EPERM, ENODATA, ENXIO, EMLINK, EBUSY, ENOSPC, EAGAIN, EOPNOTSUPP,
		ENAMETOOLONG, ESPIPE};

	for (size_t i = 0; i < sizeof(errors) / sizeof(errors[0]); i++)
		if (error == errors[i])
			return true;
	/* what another mount has removed and this kernel still knew */
	return o->directories > 1 && (error == ESTALE || error == EXDEV);
}

static int try_file(struct walker *w, const char *path, int flags)
{
	char bytes[5000];
	int fd = open(path, flags | O_NONBLOCK | O_CLOEXEC, 0644);
	uint64_t r = random_next(&w->random);
	struct stat st;
	int ret = 0;

	if (fd < 0)
		return -1;
	memset(bytes, (int)r, sizeof(bytes));
	if (flags & O_WRONLY)
		ret = pwrite(fd, bytes, r % sizeof(bytes), (off_t)(r >> 16 & 0xfffff)) < 0
			      ? -1
			      : 0;
	if (ret == 0 && (r & 31) == 0)
		ret = fsync(fd);
	if (ret == 0 && (flags & O_WRONLY) && (r & 7) == 1)
		ret = ftruncate(fd, (off_t)(r >> 8 & 0xfffff));
	/* a directory or a pipe that another mount removes does not live on */
	if (w->o->directories > 1 && (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode)))
		return close(fd) < 0 ? -1 : ret;
	if (w->held[r % 8] >= 0)
		close(w->held[r % 8]);
	w->held[r % 8] = fd;
	return ret;
}

static int try_list(const char *path)
{
	DIR *d = opendir(path);

	if (!d)
		return -1;
	while (readdir(d))
		;
	closedir(d);
	return 0;
}

static int one_operation(struct walker *w, const char **what)
{
	static const char *const names[] = {"create", "mkdir", "unlink", "rmdir",
		"rename", "exchange", "noreplace", "link", "symlink", "open", "stat",
		"list", "chmod", "setxattr", "removexattr", "mkfifo", "truncate",
		"tmpfile", "readlink", "utimes"};
	char a[4096], b[4096];
	struct stat st;
	unsigned op = (unsigned)random_below(&w->random, 20);

	pick(w, a, sizeof(a));
	pick(w, b, sizeof(b));
	*what = names[op];
	switch (op) {
	case 0:
		return try_file(w, a, O_CREAT | O_WRONLY);
	case 1:
		return mkdir(a, 0755);
	case 2:
		return unlink(a);
	case 3:
		return rmdir(a);
	case 4:
		return rename(a, b);
	case 5:
		return renameat2(AT_FDCWD, a, AT_FDCWD, b, RENAME_EXCHANGE);
	case 6:
		return renameat2(AT_FDCWD, a, AT_FDCWD, b, RENAME_NOREPLACE);
	case 7:
		return link(a, b);
	case 8:
		return symlink(b, a);
	case 9:
		return try_file(w, a, O_RDONLY);
	case 10:
		return stat(a, &st);
	case 11:
		return try_list(a);
	case 12:
		return chmod(a, 0700 | (random_next(&w->random) & 077));
	case 13:
		return setxattr(a, "user.name", b, random_below(&w->random, 3000), 0);
	case 14:
		return removexattr(a, "user.name");
	case 15:
		return mkfifo(a, 0644);
	case 16:
		return truncate(a, (off_t)random_below(&w->random, 1 << 20));
	case 17:
		return try_file(w, w->directory, O_TMPFILE | O_WRONLY);
	case 18:
		return readlink(a, b, sizeof(b)) < 0 ? -1 : 0;
	default:
		return utimensat(AT_FDCWD, a, NULL, AT_SYMLINK_NOFOLLOW);
	}
}

int names_run(const struct options *o, unsigned process)
{
	struct walker w = {.o = o,
		.directory = directory_of(o, process),
		.random = o->seed + process * 104729,
		.process = process};
	const char *what;

	for (unsigned i = 0; i < 8; i++)
		w.held[i] = -1;
	for (unsigned i = 0; i < o->operations; i++) {
		if (one_operation(&w, &what) == 0 || explained(o, errno))
			continue;
		printf("process %u, operation %u, %s: %s\n", process, i, what,
			strerror(errno));
		return 1;
	}
	for (unsigned i = 0; i < 8; i++)
		if (w.held[i] >= 0 && fstat(w.held[i], &(struct stat){0}) < 0) {
			printf("process %u: fstat of an open file: %s\n", process,
				strerror(errno));
			return 1;
		}
	return 0;
}

/* ---- afterwards -------------------------------------------------------------------- */

struct seen {
	ino_t ino;
	nlink_t links, names;
};
static struct seen *all;
static size_t all_count, all_room;
static int bad;

static void count_name(const struct stat *st)
{
	for (size_t i = 0; i < all_count; i++) {
		if (all[i].ino == st->st_ino) {
			all[i].names++;
			return;
		}
	}
	if (all_count == all_room) {
		all_room = all_room ? all_room * 2 : 1024;
		all = realloc(all, all_room * sizeof(*all));
		if (!all)
			abort();
	}
	all[all_count++] = (struct seen){st->st_ino, st->st_nlink, 1};
}

static void check_directory(const char *path, const struct stat *st)
{
	nlink_t subdirectories = 0;
	struct dirent *e;
	struct stat entry;
	DIR *d = opendir(path);

	if (!d) {
		printf("%s: %s\n", path, strerror(errno));
		bad = 1;
		return;
	}
	while ((e = readdir(d)) != NULL) {
		if (fstatat(dirfd(d), e->d_name, &entry, AT_SYMLINK_NOFOLLOW) < 0) {
			printf("%s/%s: listed, and %s\n", path, e->d_name,
				strerror(errno));
			bad = 1;
			continue;
		}
		if (e->d_type != IFTODT(entry.st_mode) ||
			(strcmp(e->d_name, "..") != 0 && e->d_ino != entry.st_ino)) {
			printf("%s/%s: listed as another\n", path, e->d_name);
			bad = 1;
		}
		subdirectories += S_ISDIR(entry.st_mode) && e->d_name[0] != '.';
	}
	closedir(d);
	if (st->st_nlink != subdirectories + 2) {
		printf("%s: %lu links, %lu subdirectories\n", path,
			(unsigned long)st->st_nlink, (unsigned long)subdirectories);
		bad = 1;
	}
}

static int visit(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	if (type == FTW_NS || type == FTW_DNR) {
		printf("%s cannot be visited\n", path);
		bad = 1;
	} else if (S_ISDIR(st->st_mode)) {
		check_directory(path, st);
	} else {
		count_name(st);
	}
	return 0;
}

int names_check(const char *directory)
{
	if (nftw(directory, visit, 32, FTW_PHYS | FTW_MOUNT) < 0) {
		perror(directory);
		return 1;
	}
	for (size_t i = 0; i < all_count; i++) {
		if (all[i].links == all[i].names)
			continue;
		printf("inode %lu: %lu links, %lu names\n", (unsigned long)all[i].ino,
			(unsigned long)all[i].links, (unsigned long)all[i].names);
		bad = 1;
	}
	free(all);
	all = NULL;
	all_count = all_room = 0;
	return bad;
}

/* ---- replacing --------------------------------------------------------------------- */

/*
 * Process 0 renames new files over one name; the others find a whole file under it,
 * always.
 */
static int replace_once(const char *name, const char *from, unsigned i)
{
	int fd = open(from, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0644);

	if (fd < 0 || dprintf(fd, "%10u", i) != 10 || close(fd) < 0)
		return -1;
	return rename(from, name);
}

static int find_it(const char *name, unsigned how)
{
	struct stat st;
	char text[16];
	int fd;

	if (how == 0)
		return stat(name, &st);
	if (how == 1)
		return utimensat(AT_FDCWD, name, NULL, 0);
	fd = open(name, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -1;
	if (read(fd, text, sizeof(text)) != 10) {
		printf("a file that is not whole\n");
		errno = EIO;
		return -1;
	}
	return close(fd);
}

int replace_run(const struct options *o, unsigned process)
{
	char name[4096], from[4096];
	int ret = 0;

	snprintf(name, sizeof(name), "%s/name", directory_of(o, process));
	snprintf(from, sizeof(from), "%s/from", directory_of(o, process));
	if (process == 0) {
		for (unsigned i = 0; i < o->operations && ret == 0; i++)
			ret = replace_once(name, from, i);
	} else {
		/* the first makes it, unless it has failed */
		for (unsigned waited = 0; access(name, F_OK) < 0 && ret == 0; waited++)
			ret = waited == 10000 ? -1 : usleep(1000);
		for (unsigned i = 0; i < o->operations && ret == 0; i++) {
			ret = find_it(name, i % 3);
			/* replaced by another mount, twice between look-up and use */
			if (ret < 0 && errno == ESTALE && o->directories > 1)
				ret = 0;
		}
	}
	if (ret < 0)
		printf("process %u: %s\n", process, strerror(errno));
	return ret < 0;
}
