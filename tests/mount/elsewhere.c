/* SPDX-License-Identifier: Apache-2.0 */
/*
 * elsewhere COUNT SEED DIR DIR...: what is changed under one of the directories, the
 * mounts of one volume on several nodes, must be seen at once under all others.
 *
 * One change after the other, each on a node taken at random: a file overwritten, appended
 * to, cut, grown, renamed, made anew, its mode changed. After each the others look: through
 * a descriptor that they have held since the file was made, through one that is opened now,
 * and by stat. What they must see is kept in memory. Ends after COUNT looks, however long they
 * take; the first that is stale ends it with exit code 1.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define NODES_MAX      8
#define FILES          6
#define SIZE_MAX_BYTES 40000u

struct file {
	unsigned generation; /* its name changes with it */
	size_t size;
	mode_t mode;
	uint8_t data[SIZE_MAX_BYTES];
	int held[NODES_MAX];
};

static const char *dir[NODES_MAX];
static unsigned nodes;
static struct file file[FILES];
static uint64_t looks, changes, state;
static const char *last = "nothing"; /* the last change, and of whom */
static unsigned last_node;

static unsigned pick(unsigned n)
{
	state = state * 6364136223846793005u + 1442695040888963407u;
	return (unsigned)(state >> 33) % n;
}

static void stale(unsigned f, unsigned node, const char *fmt, ...)
	__attribute__((format(printf, 3, 4), noreturn));

static void stale(unsigned f, unsigned node, const char *fmt, ...)
{
	va_list args;

	printf("after %llu changes and %llu looks: file %u was changed on node %u (%s), "
	       "and node %u sees: ",
		(unsigned long long)changes, (unsigned long long)looks, f, last_node + 1,
		last, node + 1);
	va_start(args, fmt);
	vprintf(fmt, args);
	va_end(args);
	putchar('\n');
	exit(1);
}

static void path_of(char out[512], unsigned f, unsigned generation, unsigned node)
{
	snprintf(out, 512, "%s/elsewhere-%u.%u", dir[node], f, generation);
}

static int open_at(unsigned f, unsigned node, int flags)
{
	char path[512];
	int fd;

	path_of(path, f, file[f].generation, node);
	fd = open(path, flags | O_CLOEXEC, 0644);
	if (fd < 0)
		stale(f, node, "open: %s", strerror(errno));
	return fd;
}

static void fill(uint8_t *data, size_t n)
{
	for (size_t i = 0; i < n; i++)
		data[i] = (uint8_t)pick(256);
}

/* ---- changes ------------------------------------------------------------------------------ */

static void must(bool fine, unsigned f, unsigned node)
{
	if (!fine)
		stale(f, node, "its own change fails: %s", strerror(errno));
}

static void overwrite(unsigned f, unsigned node)
{
	size_t at = pick(SIZE_MAX_BYTES - 1), n = 1 + pick(9000);
	uint8_t *data = file[f].data;

	if (n > SIZE_MAX_BYTES - at)
		n = SIZE_MAX_BYTES - at;
	fill(data + at, n);
	must(pwrite(file[f].held[node], data + at, n, (off_t)at) == (ssize_t)n, f, node);
	if (at > file[f].size) /* a hole */
		memset(data + file[f].size, 0, at - file[f].size);
	if (at + n > file[f].size)
		file[f].size = at + n;
}

static void append(unsigned f, unsigned node)
{
	size_t n = 1 + pick(600);
	int fd;

	if (n > SIZE_MAX_BYTES - file[f].size)
		return;
	fill(file[f].data + file[f].size, n);
	fd = open_at(f, node, O_WRONLY | O_APPEND);
	must(write(fd, file[f].data + file[f].size, n) == (ssize_t)n, f, node);
	close(fd);
	file[f].size += n;
}

static void cut_or_grow(unsigned f, unsigned node)
{
	size_t size = pick(SIZE_MAX_BYTES);

	must(ftruncate(file[f].held[node], (off_t)size) == 0, f, node);
	if (size > file[f].size)
		memset(file[f].data + file[f].size, 0, size - file[f].size);
	file[f].size = size;
}

static void rename_it(unsigned f, unsigned node)
{
	char from[512], to[512];

	path_of(from, f, file[f].generation, node);
	path_of(to, f, ++file[f].generation, node);
	must(rename(from, to) == 0, f, node);
}

static void change_mode(unsigned f, unsigned node)
{
	file[f].mode = 0600 | pick(64);
	must(fchmod(file[f].held[node], file[f].mode) == 0, f, node);
}

/* Made on one node; all others open it, and keep it open. */
static void make(unsigned f, unsigned node)
{
	file[f].generation++;
	file[f].size = 0;
	file[f].held[node] = open_at(f, node, O_RDWR | O_CREAT | O_EXCL);
	change_mode(f, node);
	for (unsigned i = 0; i < nodes; i++)
		if (i != node)
			file[f].held[i] = open_at(f, i, O_RDWR);
}

static void make_anew(unsigned f, unsigned node)
{
	char path[512];

	path_of(path, f, file[f].generation, node);
	must(unlink(path) == 0, f, node);
	for (unsigned i = 0; i < nodes; i++) {
		struct stat st;

		if (fstat(file[f].held[i], &st) || st.st_nlink)
			stale(f, i, "the file that was unlinked has %u links",
				(unsigned)st.st_nlink);
		close(file[f].held[i]);
	}
	make(f, node);
}

/* ---- looks -------------------------------------------------------------------------------- */

static void look_data(unsigned f, unsigned node, int fd, const char *how)
{
	static uint8_t data[SIZE_MAX_BYTES + 1];
	ssize_t n = pread(fd, data, sizeof(data), 0);
	size_t at = 0;

	if (n != (ssize_t)file[f].size)
		stale(f, node, "%s: %zd bytes of %zu%s%s", how, n, file[f].size,
			n < 0 ? ", " : "", n < 0 ? strerror(errno) : "");
	while (at < file[f].size && data[at] == file[f].data[at])
		at++;
	if (at < file[f].size)
		stale(f, node, "%s: byte %zu is %02x, not %02x", how, at, data[at],
			file[f].data[at]);
	looks++;
}

static void look_stat(unsigned f, unsigned node)
{
	char path[512];
	struct stat st, held;

	path_of(path, f, file[f].generation, node);
	if (stat(path, &st) || fstat(file[f].held[node], &held))
		stale(f, node, "stat: %s", strerror(errno));
	if (st.st_ino != held.st_ino)
		stale(f, node, "another file of that name");
	if (st.st_size != (off_t)file[f].size || held.st_size != st.st_size)
		stale(f, node, "stat: size %lld, fstat: %lld, not %zu",
			(long long)st.st_size, (long long)held.st_size, file[f].size);
	if ((st.st_mode & 07777) != file[f].mode)
		stale(f, node, "stat: mode %o, not %o", st.st_mode & 07777, file[f].mode);
	path_of(path, f, file[f].generation - 1, node);
	if (stat(path, &st) == 0 || errno != ENOENT)
		stale(f, node, "a name that is no more");
	looks++;
}

static void look(unsigned f, unsigned node)
{
	int fd;

	switch (pick(3)) {
	case 0:
		look_data(f, node, file[f].held[node], "read of a held descriptor");
		break;
	case 1:
		fd = open_at(f, node, O_RDONLY);
		look_data(f, node, fd, "read of a fresh open");
		close(fd);
		break;
	default:
		look_stat(f, node);
	}
}

/* ---- the whole ---------------------------------------------------------------------------- */

static void step(void)
{
	static const struct {
		const char *name;
		unsigned weight;
		void (*change)(unsigned f, unsigned node);
	} kinds[] = {
		{"overwritten", 10, overwrite},
		{"appended to", 5, append},
		{"cut or grown", 3, cut_or_grow},
		{"renamed", 3, rename_it},
		{"mode changed", 2, change_mode},
		{"made anew", 1, make_anew},
	};
	unsigned f = pick(FILES), k = 0, which = pick(24);

	while (which >= kinds[k].weight)
		which -= kinds[k++].weight;
	last = kinds[k].name;
	last_node = pick(nodes);
	kinds[k].change(f, last_node);
	changes++;
	for (unsigned i = 0; i < nodes; i++)
		if (i != last_node)
			look(f, i);
}

int main(int argc, char **argv)
{
	uint64_t count;

	if (argc < 5 || argc > 3 + NODES_MAX) {
		fputs("usage: elsewhere COUNT SEED DIR DIR...\n", stderr);
		return 2;
	}
	count = strtoull(argv[1], NULL, 10);
	state = strtoull(argv[2], NULL, 10);
	nodes = (unsigned)argc - 3;
	for (unsigned i = 0; i < nodes; i++)
		dir[i] = argv[3 + i];
	umask(0);
	for (unsigned f = 0; f < FILES; f++)
		make(f, pick(nodes));
	while (looks < count)
		step();
	printf("%llu changes, %llu looks elsewhere, none stale\n",
		(unsigned long long)changes, (unsigned long long)looks);
	return 0;
}
